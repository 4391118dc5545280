//! Which feeds the kind needs, and what they let its targets know.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures::{StreamExt, stream};

use super::{KindTask, Served};
use crate::{
    collect::{
        Problem, Target,
        feed::{Feed, Purpose, Sight},
    },
    coverage::{Place, State},
    extract::Needs,
    select::{Member, Queries, queries},
    store,
    watch::{BlindReason, Blindness, Query, Resolution},
};

/// Permissions that are asked for at the same time.
const QUESTIONS: usize = 8;

/// The feeds by what they ask: there may be as many as there are namespaces.
struct Index<'a> {
    by_query: HashMap<&'a Query, Vec<&'a Feed>>,
    by_place: HashMap<FeedPlace<'a>, Vec<&'a Feed>>,
}

/// Field selector and namespace.
type FeedPlace<'a> = (&'a Option<String>, &'a Option<Arc<str>>);

impl<'a> Index<'a> {
    fn of(feeds: &'a [Feed]) -> Self {
        let (mut by_query, mut by_place) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for feed in feeds.iter().filter(|feed| feed.purpose == Purpose::Follow) {
            by_query.entry(&*feed.query).or_default().push(feed);
            by_place.entry((&feed.query.field_selector, &feed.query.namespace)).or_default().push(feed);
        }
        Self { by_query, by_place }
    }

    /// The feed that serves all members of a query; the newest, if there are several.
    fn heir(&self, query: &Query, members: &BTreeSet<u32>) -> Option<&'a Feed> {
        let feeds = self.by_query.get(query)?;
        feeds.iter().rev().find(|feed| !feed.suspect && feed.serves.is_superset(members)).copied()
    }

    /// The feeds that see everything that the query asks for.
    fn covering(&self, query: &Query) -> Vec<&'a Feed> {
        let whole = query.namespace.as_ref().and_then(|_| self.by_place.get(&(&query.field_selector, &None)));
        let same = self.by_place.get(&(&query.field_selector, &query.namespace));
        whole.into_iter().chain(same).flatten().copied().collect()
    }
}

impl KindTask {
    /// Brings the feeds in line with what is wanted and permitted.
    pub(super) async fn reconcile(&mut self) {
        let Some(Resolution::Served(resource)) = self.resolution.clone() else {
            self.feeds.clear();
            self.suspicions.clear();
            self.notice_overlap();
            self.plan = Queries::default();
            let cluster = |place: &Place| place.namespace.is_none() && place.field_selector.is_none();
            self.context.coverage.forget(&self.gvk, cluster);
            self.tell_sights();
            return;
        };
        self.plan = self.permitted(resource.namespaced).await;
        let current: BTreeSet<u32> = self.served.iter().map(|served| served.definition).collect();
        for feed in &mut self.feeds {
            feed.serves.retain(|definition| current.contains(definition));
        }
        let index = Index::of(&self.feeds);
        let missing = |(query, members): &(&Query, &BTreeSet<u32>)| index.heir(query, members).is_none();
        let missing: Vec<(Query, BTreeSet<u32>)> =
            self.plan.wanted.iter().filter(missing).map(|(q, m)| (q.clone(), m.clone())).collect();
        for (query, members) in missing {
            let busy = |feed: &Feed| {
                feed.purpose == Purpose::Follow
                    && feed.sight == Sight::Listing
                    && !feed.serves.is_empty()
                    && feed.overlaps(&query)
            };
            // A list that runs is not thrown away for another one: with changes that come faster than
            // lists end, none would ever end.
            if !self.feeds.iter().any(busy) {
                let repairs = self.feeds.iter().any(|feed| feed.suspect && *feed.query == query);
                self.start(query, Purpose::Follow, members).repairs = repairs;
            }
        }
        self.retire();
        // Whoever waits for the sights finds the ledger complete.
        self.tell_places(&resource.name);
        self.tell_sights();
    }

    /// The queries that may be made. Permissions that are not known yet are asked for.
    async fn permitted(&mut self, namespaced: bool) -> Queries {
        loop {
            let member = |served: &Served| (served.definition, served.target.clone());
            let members: Vec<(u32, Arc<Target>)> = self.served.iter().map(member).collect();
            let members: Vec<Member<'_>> = members
                .iter()
                .map(|(number, target)| Member {
                    number: *number,
                    selection: &target.selection,
                    metadata_only: target.profile.needs() == Needs::MetadataOnly,
                })
                .collect();
            let within = self.context.settings.within.as_ref();
            let mut plan = queries(&self.gvk, namespaced, &members, &self.namespaces, within, &self.denied);
            let follow = self.context.settings.follow;
            plan.wanted = plan.wanted.into_iter().map(|(query, m)| (Query { follow, ..query }, m)).collect();
            let unknown = plan.wanted.keys().filter(|query| !self.allowed.contains(&query.namespace));
            let unknown: Vec<Query> = unknown.cloned().collect();
            if unknown.is_empty() {
                return plan;
            }
            let source = &self.context.source;
            let answers: Vec<(Option<Arc<str>>, bool)> = stream::iter(unknown)
                .map(|query| async move { (query.namespace.clone(), source.permits(&query).await) })
                .buffer_unordered(QUESTIONS)
                .collect()
                .await;
            for (namespace, yes) in answers {
                let known = if yes { &mut self.allowed } else { &mut self.denied };
                known.insert(namespace);
            }
        }
    }

    pub(super) fn start(&mut self, query: Query, purpose: Purpose, serves: BTreeSet<u32>) -> &mut Feed {
        let id = self.next_feed;
        self.next_feed += 1;
        let feed = Feed::start(id, &self.context, query, purpose, serves, self.events.clone());
        if purpose == Purpose::Follow {
            self.context.coverage.set(&feed.place, State::Waiting);
        }
        self.feeds.push(feed);
        let last = self.feeds.len() - 1;
        &mut self.feeds[last]
    }

    /// Stops feeds that nobody needs, and those that others have replaced.
    fn retire(&mut self) {
        let index = Index::of(&self.feeds);
        let heirs: HashMap<_, Option<&Feed>> = self
            .plan
            .wanted
            .iter()
            .map(|(query, members)| ((&query.field_selector, &query.namespace), index.heir(query, members)))
            .collect();
        let wanted: BTreeSet<u64> = heirs.values().flatten().map(|heir| heir.id).collect();
        let synced = |heir: Option<&Feed>| heir.is_some_and(|heir| heir.sight == Sight::Synced);
        let replaced = |feed: &Feed| match &feed.query.namespace {
            // Until everything that comes after it is there, it is all that there is.
            None => {
                heirs.iter().all(|((fields, _), heir)| **fields != feed.query.field_selector || synced(*heir))
            }
            namespace => {
                let places = [namespace, &None].map(|place| heirs.get(&(&feed.query.field_selector, place)));
                places.into_iter().flatten().all(|heir| synced(*heir))
            }
        };
        let keep = |feed: &&Feed| {
            !feed.serves.is_empty()
                && (feed.purpose != Purpose::Follow || wanted.contains(&feed.id) || !replaced(feed))
        };
        let keep: BTreeSet<u64> = self.feeds.iter().filter(keep).map(|feed| feed.id).collect();
        self.feeds.retain(|feed| keep.contains(&feed.id));
        self.notice_overlap();
    }

    /// Tells the ledger where nothing can be seen, and removes from it where nobody looks.
    fn tell_places(&self, resource: &str) {
        let known = self.context.coverage.of_kind(&self.gvk);
        let verbs = if self.context.settings.follow { "verbs list and watch" } else { "verb list" };
        for namespace in self.plan.dark.keys() {
            let place = Place { gvk: self.gvk.clone(), namespace: namespace.clone(), field_selector: None };
            let told =
                known.get(&place).is_some_and(|known| known.state.is_blind_for(BlindReason::Forbidden));
            if !told {
                let scope = match namespace {
                    Some(namespace) => format!("in namespace {namespace}"),
                    None => "in the whole cluster".into(),
                };
                let message = format!("list {resource} {scope}: forbidden; grant the {verbs} on it");
                self.tell_blind(&place, &Blindness { reason: BlindReason::Forbidden, message });
            }
        }
        let followed = self.feeds.iter().filter(|feed| feed.purpose == Purpose::Follow);
        let looked: BTreeSet<&Place> = followed.map(|feed| &feed.place).collect();
        let looked = |place: &Place| looked.contains(place) || self.plan.dark.contains_key(&place.namespace);
        self.context.coverage.forget(&self.gvk, looked);
    }

    /// Tells the store what is known for each target, and drops what only earlier definitions made.
    fn tell_sights(&mut self) {
        let index = Index::of(&self.feeds);
        let sights: Vec<store::Sight> = self.served.iter().map(|served| self.sight(served, &index)).collect();
        for (served, sight) in self.served.iter_mut().zip(sights) {
            // What has been seen once is known, as it was, while others look at it again.
            let sight = match (&served.sight, sight) {
                (Some(known), store::Sight::Pending) => known.clone(),
                (_, sight) => sight,
            };
            served.sight = (sight != store::Sight::Pending).then(|| sight.clone());
            let undecided = self.plan.undecided.contains(&served.definition);
            if undecided && !std::mem::replace(&mut served.undecided, undecided) {
                let target = served.target.id.clone();
                (self.context.report)(Problem::Undecided { target, gvk: self.gvk.clone() });
            }
            if served.stale && !matches!(sight, store::Sight::Pending | store::Sight::Partial) {
                let definition = served.definition;
                served.rows.remove_where(|key, origin| origin.definition != definition && sight.covers(key));
                served.stale = !matches!(sight, store::Sight::Everything);
            }
            served.rows.set_sight(sight);
        }
    }

    /// What is known for a target: the sum of what its feeds see.
    fn sight(&self, served: &Served, index: &Index<'_>) -> store::Sight {
        let namespaced = match &self.resolution {
            None => return store::Sight::Pending,
            Some(Resolution::Absent) => return store::Sight::Everything,
            Some(Resolution::Blind(_)) => return store::Sight::Partial,
            Some(Resolution::Served(resource)) => resource.namespaced,
        };
        let definition = served.definition;
        if self.plan.undecided.contains(&definition) || !self.context.source.is_complete() {
            let feeds = self.feeds.iter().filter(|feed| feed.serves.contains(&definition));
            let pending = feeds.into_iter().any(|feed| feed.sight == Sight::Listing);
            return if pending { store::Sight::Pending } else { store::Sight::Partial };
        }
        let own = |(_, members): &(&Option<Arc<str>>, &BTreeSet<u32>)| members.contains(&definition);
        let mut dark: BTreeSet<Option<Arc<str>>> =
            self.plan.dark.iter().filter(own).map(|(place, _)| place.clone()).collect();
        for (query, members) in self.plan.wanted.iter().filter(|(_, members)| members.contains(&definition)) {
            let synced = |feed: &Feed| feed.sight == Sight::Synced;
            let heir = index.heir(query, members);
            let covering = index.covering(query);
            let mut serving = covering.into_iter().filter(|feed| feed.serves.contains(&definition));
            if heir.is_some_and(synced) || serving.any(synced) {
                continue;
            }
            match heir.map(|feed| &feed.sight) {
                Some(Sight::Blind(_)) => drop(dark.insert(query.namespace.clone())),
                _ => return store::Sight::Pending,
            }
        }
        let within = self.context.settings.within.as_ref().filter(|_| namespaced);
        let seen = match (dark.contains(&None), within) {
            (true, _) => store::Sight::Partial,
            (false, Some(within)) => {
                let seen = within.iter().filter(|name| !dark.contains(&Some((*name).clone())));
                store::Sight::Within(seen.cloned().collect())
            }
            (false, None) if dark.is_empty() => store::Sight::Everything,
            (false, None) => store::Sight::AllBut(dark.into_iter().flatten().collect()),
        };
        seen.but(served.target.selection.beyond(&self.gvk, namespaced, &self.namespaces))
    }
}
