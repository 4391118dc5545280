//! The order of events. While one feed replaces another, or a namespace is listed once more, an object can come from
//! several feeds, each at its own pace. The functions here decide from versions alone which events are stale, which
//! rows a complete list proves gone, and which records can be dropped. They use no stream, no store and no clock.
//! Version 0 means that the source has no versions: then no event is stale.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kollect_model::row::RowKey;

use crate::watch::{Metadata, Query};

/// Numbers of definitions of targets.
pub(super) type DefinitionNumbers = BTreeSet<u32>;

/// An event of a feed about one object.
#[derive(Clone, Copy)]
pub(super) struct ObjectEvent<'a> {
    pub(super) object: &'a Metadata,
    pub(super) query: &'a Query,
    /// The definitions that the feed serves.
    pub(super) serves: &'a Arc<DefinitionNumbers>,
    /// Whether the list of the feed is still running.
    pub(super) listing: bool,
    /// Whether the feed lists a namespace once more, because the namespace has changed.
    pub(super) renewal: bool,
}

/// What to do with an object from a feed for the row of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventDecision {
    /// The object is read: it is newer than the row, or there is no row.
    Read,
    /// The row was made from this version. Only whether the query selects the object is checked.
    Reselect,
    /// The event is stale.
    Ignore,
}

/// What to do with an object from a feed. `known` is the version of the row or failure that the current definition of
/// the target has made. `is_old`: a feed of the target has reported a newer version. `is_listed`: a complete list of
/// another feed already contained the event; it is used only if there is no `known` version.
pub(super) fn step(
    event: ObjectEvent<'_>,
    known: Option<u64>,
    is_old: impl FnOnce() -> bool,
    is_listed: impl FnOnce() -> bool,
) -> EventDecision {
    let version = event.object.version;
    match known.filter(|_| version != 0) {
        Some(known) if known > version => EventDecision::Ignore,
        _ if is_old() => EventDecision::Ignore,
        Some(known) if known == version && !event.renewal => EventDecision::Reselect,
        None if is_listed() => EventDecision::Ignore,
        _ => EventDecision::Read,
    }
}

/// Whether a deletion at `version` applies to a row or failure that was made from version `known`.
pub(super) fn deletes(version: u64, known: Option<u64>) -> bool {
    version == 0 || known.is_none_or(|known| known <= version)
}

/// A query, the definitions of the targets that it serves, and the version of its last complete list;
/// 0: there is none, or its version is not known.
#[derive(Debug)]
pub(super) struct ListedQuery {
    pub(super) query: Query,
    pub(super) serves: Arc<DefinitionNumbers>,
    pub(super) version: u64,
}

impl ListedQuery {
    /// Whether the query can return objects of the namespace.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.query.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// Whether both queries can return one object.
    pub(super) fn overlaps(&self, query: &Query) -> bool {
        let (a, b) = (&self.query.namespace, &query.namespace);
        self.query.field_selector == query.field_selector && (a.is_none() || b.is_none() || a == b)
    }

    /// Whether the list already contained the event of another feed.
    fn contains(&self, event: ObjectEvent<'_>, definition: u32) -> bool {
        self.version >= event.object.version
            && self.serves.contains(&definition)
            && self.query.field_selector == event.query.field_selector
            && self.covers(&event.object.namespace)
    }

    /// Whether the row of an object that the list did not contain is gone; it was made from `version`. Rows that are
    /// newer than the list stay, unless [`QueryMatches`] decides. Rows of other queries stay, too.
    pub(super) fn proves_gone(&self, row: &RowKey, version: u64, matches: Option<&QueryMatches>) -> bool {
        (self.version == 0 || version <= self.version || matches.is_some())
            && self.covers(&row.namespace)
            && !matches.is_some_and(|matches| matches.is_of_other_queries(&row.uid, &self.query))
    }
}

/// The records that are needed to order the events of several feeds.
#[derive(Default)]
pub(super) struct EventOrder {
    /// Whether an object can come from several feeds.
    overlap: bool,
    /// By UID: the newest versions that feeds have reported, each with the definitions that the feed served.
    newest: HashMap<Arc<str>, Vec<(Arc<DefinitionNumbers>, u64)>>,
    /// Complete lists of feeds that no longer exist.
    ended_lists: Vec<ListedQuery>,
}

impl EventOrder {
    /// Records the version of an object from a watch. A list sends objects in no order.
    pub(super) fn record_object(&mut self, event: ObjectEvent<'_>) {
        if !event.listing && self.is_recording() {
            self.record(event);
        }
    }

    /// Records the version of a deletion. Another feed may not report that an object has left this query: the version
    /// of each row decides whether it is removed.
    pub(super) fn record_deletion(&mut self, event: ObjectEvent<'_>) {
        // A streamed list reports deletions while it runs.
        if if event.listing { self.overlap } else { self.is_recording() } {
            self.record(event);
        }
    }

    /// Whether a feed that also serves this definition has reported a newer version of the object. Feeds of other
    /// targets do not count: this target may receive their events later, or never.
    pub(super) fn is_old(&self, event: ObjectEvent<'_>, definition: u32) -> bool {
        let version = event.object.version;
        let newer = |(serves, newest): &(Arc<DefinitionNumbers>, u64)| {
            *newest > version && serves.contains(&definition)
        };
        version != 0 && self.newest.get(&event.object.uid).is_some_and(|reported| reported.iter().any(newer))
    }

    /// Records the version of an object that was read for a target, if neither a row nor a failure keeps it.
    pub(super) fn keep_version(&mut self, event: ObjectEvent<'_>, is_kept: impl FnOnce() -> bool) {
        if self.overlap && !is_kept() {
            self.record(event);
        }
    }

    /// Whether a complete list, of an ended feed or of one of the others, already contained the event. The list of a
    /// changed namespace is read in any case.
    pub(super) fn is_listed<'a>(
        &'a self,
        event: ObjectEvent<'_>,
        definition: u32,
        others: impl Iterator<Item = &'a ListedQuery>,
    ) -> bool {
        event.object.version != 0
            && !event.renewal
            && (self.overlap || !self.ended_lists.is_empty())
            && others.chain(&self.ended_lists).any(|list| list.contains(event, definition))
    }

    /// Keeps the complete list of a feed that has ended.
    pub(super) fn end_list(&mut self, list: ListedQuery) {
        self.ended_lists.push(list);
    }

    /// Drops lists of a changed namespace: they do not show what is selected now.
    pub(super) fn forget_lists_of(&mut self, namespace: &str) {
        self.ended_lists.retain(|list| list.query.namespace.as_deref() != Some(namespace));
    }

    /// The set of feeds has changed. All of them have received every event up to version `received_up_to`.
    pub(super) fn set_overlap(&mut self, overlap: bool, received_up_to: impl FnOnce() -> u64) {
        self.overlap = overlap;
        self.forget(received_up_to);
    }

    /// Drops records up to version `received_up_to`: all feeds have received those events, and none can come again.
    pub(super) fn forget(&mut self, received_up_to: impl FnOnce() -> u64) {
        if self.newest.is_empty() && self.ended_lists.is_empty() {
            return;
        }
        let received_up_to = received_up_to();
        self.ended_lists.retain(|list| list.version > received_up_to);
        self.newest.retain(|_, reported| {
            reported.retain(|(_, version)| *version > received_up_to);
            !reported.is_empty()
        });
        if self.newest.is_empty() {
            self.newest = HashMap::new();
        }
    }

    fn is_recording(&self) -> bool {
        self.overlap || !self.newest.is_empty()
    }

    fn record(&mut self, ObjectEvent { object, serves, .. }: ObjectEvent<'_>) {
        let reported = self.newest.entry(object.uid.clone()).or_default();
        match reported.iter_mut().find(|(known, _)| Arc::ptr_eq(known, serves)) {
            Some((_, newest)) => *newest = object.version.max(*newest),
            None => reported.push((serves.clone(), object.version)),
        }
    }
}

/// Whether an object can come from several of these queries. `several_field_selectors`: one target has several.
pub(super) fn overlap<'a>(queries: impl Iterator<Item = &'a Query>, several_field_selectors: bool) -> bool {
    let (mut count, mut keys) = (0, BTreeSet::new());
    // By field selector: how many queries, and whether one of them reads the whole cluster.
    let mut selectors: BTreeMap<_, (usize, bool)> = BTreeMap::new();
    for query in queries {
        count += 1;
        keys.insert((&query.field_selector, &query.namespace));
        let (queries_of_selector, reads_cluster) = selectors.entry(&query.field_selector).or_default();
        (*queries_of_selector, *reads_cluster) =
            (*queries_of_selector + 1, *reads_cluster || query.namespace.is_none());
    }
    keys.len() < count
        || selectors
            .values()
            .any(|(queries_of_selector, reads_cluster)| *reads_cluster && *queries_of_selector > 1)
        || several_field_selectors && selectors.len() > 1
}

/// Which queries of a target return an object, and since which version. There can be several, because the API server
/// evaluates field selectors. The row exists while at least one query returns the object.
#[derive(Default)]
pub(super) struct QueryMatches(HashMap<Arc<str>, BTreeMap<Option<String>, u64>>);

impl QueryMatches {
    /// Records that the query returns the object.
    pub(super) fn add(&mut self, object: &Metadata, query: &Query) {
        let queries = self.0.entry(object.uid.clone()).or_default();
        let since = queries.entry(query.field_selector.clone()).or_default();
        *since = object.version.max(*since);
    }

    /// Records that the query does not return the object at this version. Returns whether no query returns it.
    pub(super) fn remove(&mut self, uid: &str, query: &Query, version: u64) -> bool {
        if let Some(queries) = self.0.get_mut(uid) {
            let newer = |since: u64| since > version && version != 0;
            queries.retain(|selector, since| *selector != query.field_selector || newer(*since));
            if !queries.is_empty() {
                return false;
            }
            self.0.remove(uid);
        }
        true
    }

    /// Whether queries are known to return the object.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// Whether other queries return the object, and this one does not.
    fn is_of_other_queries(&self, uid: &str, query: &Query) -> bool {
        self.0.get(uid).is_some_and(|queries| !queries.contains_key(&query.field_selector))
    }

    /// Drops the matches of an object that has no row any more.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Drops all matches: no object has a row any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
