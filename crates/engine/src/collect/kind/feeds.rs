//! The feeds of a kind: which of them the plan needs, which replace others, and the order of their events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{
    feed::{Feed, FeedEvent, FeedProgress, FeedPurpose},
    order::{EventDecision, EventOrder, overlap, step},
};
use crate::{
    collect::CollectContext,
    coverage::WatchState,
    watch::{Metadata, Query},
};

/// Queries, each with the definitions of the targets that it serves.
type WantedQueries = BTreeMap<Query, BTreeSet<u32>>;

pub(super) struct Feeds {
    all: Vec<Feed>,
    order: EventOrder,
    /// Whether one target has several field selectors.
    several_field_selectors: bool,
    events: mpsc::Sender<FeedEvent>,
    next_id: u64,
}

impl Feeds {
    pub(super) fn new(events: mpsc::Sender<FeedEvent>) -> Self {
        Self {
            all: Vec::new(),
            order: EventOrder::default(),
            several_field_selectors: false,
            events,
            next_id: 0,
        }
    }

    /// Index of the feed; `None`: it no longer exists.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.all.iter().position(|feed| feed.id == id)
    }

    pub(super) fn at(&self, index: usize) -> &Feed {
        &self.all[index]
    }

    pub(super) fn at_mut(&mut self, index: usize) -> &mut Feed {
        &mut self.all[index]
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Feed> {
        self.all.iter()
    }

    /// Whether a target of the kind has several field selectors.
    pub(super) fn set_several_field_selectors(&mut self, several_field_selectors: bool) {
        self.several_field_selectors = several_field_selectors;
    }

    /// Starts lists beside the feeds that follow. Returns the ids of their feeds.
    pub(super) fn start_lists(
        &mut self,
        context: &CollectContext,
        purpose: FeedPurpose,
        lists: impl IntoIterator<Item = (Query, BTreeSet<u32>)>,
    ) -> Vec<u64> {
        let ids = lists.into_iter().map(|list| self.start(context, purpose, list).id).collect();
        self.changed();
        ids
    }

    fn start(
        &mut self,
        context: &CollectContext,
        purpose: FeedPurpose,
        query_and_definitions: (Query, BTreeSet<u32>),
    ) -> &mut Feed {
        let feed = Feed::start(self.next_id, context, purpose, query_and_definitions, self.events.clone());
        self.next_id += 1;
        if feed.follows() {
            context.coverage.set(&feed.watched, WatchState::Waiting);
        }
        self.all.push(feed);
        let last = self.all.len() - 1;
        &mut self.all[last]
    }

    pub(super) fn remove(&mut self, index: usize) -> Feed {
        let feed = self.all.remove(index);
        self.changed();
        feed
    }

    /// Removes and returns the lists of changed namespaces that satisfy the condition.
    pub(super) fn take_renewals(&mut self, condition: impl Fn(&Feed) -> bool) -> Vec<Feed> {
        let taken = |feed: &mut Feed| feed.purpose == FeedPurpose::Renew && condition(feed);
        let taken = self.all.extract_if(.., taken).collect();
        self.changed();
        taken
    }

    /// The list of a changed namespace is complete.
    pub(super) fn end_renewal(&mut self, index: usize) {
        let feed = self.all.remove(index);
        self.order.end_list(feed.listed);
        self.changed();
    }

    /// The namespace has changed for a target: drops complete lists of the namespace, and running ones for this
    /// target.
    pub(super) fn forget_renewals(&mut self, namespace: &str, definition: u32) {
        self.order.forget_lists_of(namespace);
        let here = |feed: &&mut Feed| {
            feed.purpose == FeedPurpose::Renew && feed.query().namespace.as_deref() == Some(namespace)
        };
        self.all.iter_mut().filter(here).for_each(|feed| feed.serve_only(|other| other != definition));
    }

    /// Removes feeds that have ended, except those that `keep` selects.
    pub(super) fn drop_ended(&mut self, keep: impl Fn(&Feed) -> bool) {
        self.all.retain(|feed| !feed.is_ended() || keep(feed));
        self.changed();
    }

    /// Removes all feeds, and all records of their events.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.order = EventOrder::default();
    }

    /// The feed has missed events, and must be replaced.
    pub(super) fn replace_later(&mut self, id: u64) {
        self.all.iter_mut().filter(|feed| feed.id == id).for_each(|feed| feed.missed_events = true);
    }

    /// Must be called when the set of feeds has changed.
    fn changed(&mut self) {
        let overlap = overlap(self.all.iter().map(Feed::query), self.several_field_selectors);
        self.order.set_overlap(overlap, || received_up_to(&self.all));
    }

    /// A feed has received every event up to this version.
    pub(super) fn advance_to(&mut self, index: usize, version: u64) {
        self.all[index].advance_to(version);
        self.order.forget(|| received_up_to(&self.all));
    }

    /// Records an object that a feed has sent.
    pub(super) fn record_object(&mut self, index: usize, object: &Metadata) {
        self.order.record_object(self.all[index].event(object));
    }

    /// Records that an object is deleted, or has left the query of a feed.
    pub(super) fn record_deletion(&mut self, index: usize, object: &Metadata) {
        let feed = &mut self.all[index];
        feed.record_version(object.version);
        feed.remove_object(object);
        self.order.record_deletion(feed.event(object));
    }

    /// What to do with an object from a feed for a target that has version `known` of it.
    pub(super) fn step(
        &self,
        index: usize,
        object: &Metadata,
        definition: u32,
        known: Option<u64>,
    ) -> EventDecision {
        let feed = &self.all[index];
        let event = feed.event(object);
        let counts = |other: &&Feed| {
            other.id != feed.id && other.follows() && !other.missed_events && !other.is_ended()
        };
        let others = || self.all.iter().filter(counts).map(|other| &other.listed);
        let is_listed = || self.order.is_listed(event, definition, others());
        step(event, known, || self.order.is_old(event, definition), is_listed)
    }

    /// An object from a feed was read for a target. `is_kept`: a row or a failure has its version.
    pub(super) fn keep_version(&mut self, index: usize, object: &Metadata, is_kept: impl FnOnce() -> bool) {
        self.order.keep_version(self.all[index].event(object), is_kept);
    }

    /// Starts wanted feeds that are missing for the current definitions, and stops feeds that are not needed.
    pub(super) fn follow(
        &mut self,
        context: &CollectContext,
        wanted: &WantedQueries,
        current: &BTreeSet<u32>,
    ) {
        self.all.iter_mut().for_each(|feed| feed.serve_only(|definition| current.contains(&definition)));
        let index = FeedIndex::of(self);
        let missing: Vec<_> =
            wanted.iter().filter(|(query, members)| index.successor(query, members).is_none()).collect();
        for (query, members) in missing {
            let is_listing = |feed: &Feed| {
                feed.follows()
                    && feed.progress() == FeedProgress::Listing
                    && !feed.listed.serves.is_empty()
                    && feed.listed.overlaps(query)
            };
            // A running list is not replaced: if targets changed faster than lists end, no list would ever end.
            if !self.all.iter().any(is_listing) {
                let repairs = self.all.iter().any(|feed| feed.missed_events && feed.query() == query);
                self.start(context, FeedPurpose::Follow, (query.clone(), members.clone())).repairs = repairs;
            }
        }
        self.stop_unneeded(wanted);
    }

    /// Stops feeds that no target needs, and those that others have replaced.
    fn stop_unneeded(&mut self, wanted: &WantedQueries) {
        let index = FeedIndex::of(self);
        let successors: HashMap<FeedKey<'_>, Option<&Feed>> = wanted
            .iter()
            .map(|(query, members)| (feed_key(query), index.successor(query, members)))
            .collect();
        let current: BTreeSet<u64> = successors.values().flatten().map(|successor| successor.id).collect();
        let synced = |successor: Option<&Feed>| successor.is_some_and(Feed::is_synced);
        let replaced = |feed: &Feed| {
            let (selector, namespace) = feed_key(feed.query());
            match namespace {
                // A feed of the whole cluster stays until all feeds that replace it are synced.
                None => {
                    successors.iter().all(|((other, _), successor)| *other != selector || synced(*successor))
                }
                namespace => {
                    let covering = [namespace, &None].map(|namespace| successors.get(&(selector, namespace)));
                    covering.into_iter().flatten().all(|successor| synced(*successor))
                }
            }
        };
        let keep = |feed: &&Feed| {
            !feed.listed.serves.is_empty()
                && (!feed.follows() || current.contains(&feed.id) || !replaced(feed))
        };
        let keep: BTreeSet<u64> = self.all.iter().filter(keep).map(|feed| feed.id).collect();
        self.all.retain(|feed| keep.contains(&feed.id));
        self.changed();
    }
}

/// All feeds have received every event up to this version.
fn received_up_to(feeds: &[Feed]) -> u64 {
    feeds.iter().filter_map(Feed::received_up_to).min().unwrap_or(u64::MAX)
}

/// Field selector and namespace.
type FeedKey<'a> = (&'a Option<String>, &'a Option<Arc<str>>);

fn feed_key(query: &Query) -> FeedKey<'_> {
    (&query.field_selector, &query.namespace)
}

/// The feeds that follow, by query and by key: there may be as many as there are namespaces.
pub(super) struct FeedIndex<'a> {
    by_query: HashMap<&'a Query, Vec<&'a Feed>>,
    by_key: HashMap<FeedKey<'a>, Vec<&'a Feed>>,
}

impl<'a> FeedIndex<'a> {
    pub(super) fn of(feeds: &'a Feeds) -> Self {
        let (mut by_query, mut by_key) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
        for feed in feeds.iter().filter(|feed| feed.follows()) {
            by_query.entry(feed.query()).or_default().push(feed);
            by_key.entry(feed_key(feed.query())).or_default().push(feed);
        }
        Self { by_query, by_key }
    }

    /// The feed that serves all members of a query; the newest, if there are several.
    fn successor(&self, query: &Query, members: &BTreeSet<u32>) -> Option<&'a Feed> {
        let feeds = self.by_query.get(query)?;
        feeds
            .iter()
            .rev()
            .find(|feed| !feed.missed_events && feed.listed.serves.is_superset(members))
            .copied()
    }

    /// Whether a first list for the target is running.
    pub(super) fn is_listing_for(&self, member: u32) -> bool {
        let mut feeds = self.by_query.values().flatten().filter(|feed| feed.serves(member));
        feeds.any(|feed| feed.progress() == FeedProgress::Listing)
    }

    /// Progress of a query for one of its members: that of its own feed, or of one that covers the query.
    pub(super) fn progress(&self, query: &Query, members: &BTreeSet<u32>, member: u32) -> FeedProgress {
        let successor = self.successor(query, members);
        let of_cluster =
            query.namespace.as_ref().and_then(|_| self.by_key.get(&(&query.field_selector, &None)));
        let covering = of_cluster.into_iter().chain(self.by_key.get(&feed_key(query))).flatten().copied();
        let mut serving = covering.filter(|feed| feed.serves(member)).chain(successor);
        if serving.any(Feed::is_synced) {
            return FeedProgress::Synced;
        }
        successor.map_or(FeedProgress::Listing, Feed::progress)
    }
}
