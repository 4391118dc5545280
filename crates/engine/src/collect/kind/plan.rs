//! Which feeds the kind needs, and what they let its targets know.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream};
use tokio::time::Instant;

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

impl KindTask {
    /// Brings the feeds in line with what is wanted and permitted.
    pub(super) async fn reconcile(&mut self) {
        let Some(Resolution::Served(resource)) = self.resolution.clone() else {
            self.feeds.clear();
            self.notice_overlap();
            self.plan = Queries::default();
            self.tell_sights();
            return;
        };
        self.plan = self.permitted(resource.namespaced).await;
        let current: BTreeSet<u32> = self.served.iter().map(|served| served.definition).collect();
        for feed in &mut self.feeds {
            feed.serves.retain(|definition| current.contains(definition));
        }
        for (query, members) in self.plan.wanted.clone() {
            let busy = |feed: &Feed| {
                feed.purpose == Purpose::Follow
                    && feed.sight == Sight::Listing
                    && !feed.serves.is_empty()
                    && feed.overlaps(&query)
            };
            // A list that runs is not thrown away for another one: with changes that come faster than
            // lists end, none would ever end.
            if self.feed_for(&query, &members).is_none() && !self.feeds.iter().any(busy) {
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
            self.asked = Instant::now();
        }
    }

    /// The feed that serves all members of a query; the newest, if there are several.
    fn feed_for(&self, query: &Query, members: &BTreeSet<u32>) -> Option<&Feed> {
        self.feeds.iter().rev().find(|feed| {
            feed.purpose == Purpose::Follow
                && !feed.suspect
                && *feed.query == *query
                && feed.serves.is_superset(members)
        })
    }

    pub(super) fn start(&mut self, query: Query, purpose: Purpose, serves: BTreeSet<u32>) -> &mut Feed {
        let id = self.next_feed;
        self.next_feed += 1;
        let feed = Feed::start(id, &self.context.source, query, purpose, serves, self.events.clone());
        if purpose == Purpose::Follow {
            self.context.coverage.set(&feed.place, State::Waiting);
        }
        self.feeds.push(feed);
        self.notice_overlap();
        let last = self.feeds.len() - 1;
        &mut self.feeds[last]
    }

    /// Stops feeds that nobody needs, and those that others have replaced.
    fn retire(&mut self) {
        let keep: BTreeSet<u64> = self
            .feeds
            .iter()
            .filter(|feed| {
                let replaced = || {
                    let mut heirs = self.plan.wanted.iter().filter(|(query, _)| feed.overlaps(query));
                    heirs.all(|(query, members)| {
                        let heir = self.feed_for(query, members);
                        heir.is_some_and(|heir| heir.id != feed.id && heir.sight != Sight::Listing)
                    })
                };
                let wanted = self.plan.wanted.iter().any(|(query, members)| {
                    self.feed_for(query, members).is_some_and(|heir| heir.id == feed.id)
                });
                !feed.serves.is_empty() && (feed.purpose != Purpose::Follow || wanted || !replaced())
            })
            .map(|feed| feed.id)
            .collect();
        self.feeds.retain(|feed| keep.contains(&feed.id));
        self.notice_overlap();
    }

    /// Tells the ledger where nothing can be seen, and removes from it where nobody looks.
    fn tell_places(&self, resource: &str) {
        let known = self.context.coverage.read();
        for namespace in self.plan.dark.keys() {
            let place = Place { gvk: self.gvk.clone(), namespace: namespace.clone(), field_selector: None };
            let told = known.get(&place).is_some_and(|known| match &known.state {
                State::Blind { blindness, .. } => blindness.reason == BlindReason::Forbidden,
                _ => false,
            });
            if !told {
                let scope = match namespace {
                    Some(namespace) => format!("in namespace {namespace}"),
                    None => "in the whole cluster".into(),
                };
                let message = format!("list {resource} {scope}: forbidden; grant the verb list on it");
                self.tell_blind(&place, &Blindness { reason: BlindReason::Forbidden, message });
            }
        }
        let looked = |p: &Place| {
            self.plan.dark.contains_key(&p.namespace)
                || self.feeds.iter().any(|feed| feed.purpose == Purpose::Follow && feed.place == *p)
        };
        self.context.coverage.forget(|place| place.gvk == self.gvk && !looked(place));
    }

    /// Tells the store what is known for each target, and drops what only earlier definitions made.
    fn tell_sights(&mut self) {
        for index in 0..self.served.len() {
            let sight = self.sight(&self.served[index]);
            let served = &mut self.served[index];
            let undecided = self.plan.undecided.contains(&served.definition);
            if undecided && !std::mem::replace(&mut served.undecided, undecided) {
                let target = served.target.id.clone();
                (self.context.report)(Problem::Undecided { target, gvk: self.gvk.clone() });
            }
            if served.stale && !matches!(sight, store::Sight::Pending | store::Sight::Partial) {
                let definition = served.definition;
                served
                    .rows
                    .remove_where(|row, origin| origin.definition != definition && sight.covers(&row.key));
                served.stale = !matches!(sight, store::Sight::Everything);
            }
            served.rows.set_sight(sight);
        }
    }

    /// What is known for a target: the sum of what its feeds see.
    fn sight(&self, served: &Served) -> store::Sight {
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
            let serving = |feed: &&Feed| {
                feed.purpose == Purpose::Follow
                    && feed.overlaps(query)
                    && (feed.query.namespace.is_none() || feed.query.namespace == query.namespace)
                    && feed.serves.contains(&definition)
            };
            let synced = |feed: &Feed| feed.sight == Sight::Synced;
            let heir = self.feed_for(query, members);
            if heir.is_some_and(synced) || self.feeds.iter().filter(serving).any(synced) {
                continue;
            }
            match heir.map(|feed| &feed.sight) {
                Some(Sight::Blind(_)) => drop(dark.insert(query.namespace.clone())),
                _ => return store::Sight::Pending,
            }
        }
        let within = self.context.settings.within.as_ref().filter(|_| namespaced);
        match (dark.contains(&None), within) {
            (true, _) => store::Sight::Partial,
            (false, Some(within)) => {
                let seen = within.iter().filter(|name| !dark.contains(&Some((*name).clone())));
                store::Sight::Within(seen.cloned().collect())
            }
            (false, None) if dark.is_empty() => store::Sight::Everything,
            (false, None) => store::Sight::AllBut(dark.into_iter().flatten().collect()),
        }
    }
}
