//! What the events of the feeds mean for the rows.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kollect_model::row::{Row, RowKey};
use serde_json::value::RawValue;
use tokio::time::{Duration, Instant};

use super::KindTask;
use crate::{
    collect::{
        Problem,
        feed::{Arrival, Feed, List, Purpose, Sight},
    },
    coverage::{Place, State},
    extract::{CompiledProfile, ExtractError, Extracted},
    select::Rejected,
    store::Origin,
    watch::{BlindReason, Blindness, Event, Metadata, Object, Query},
};

/// How long a list that failed beside a watch is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// A list that ended: whatever is older than it is old news.
pub(super) struct Told {
    pub(super) namespace: Option<Arc<str>>,
    field_selector: Option<String>,
    serves: BTreeSet<u32>,
    version: u64,
}

impl KindTask {
    pub(super) fn hear(&mut self, (id, event): Arrival) {
        let Some(index) = self.feeds.iter().position(|feed| feed.id == id) else { return };
        let feed = &mut self.feeds[index];
        feed.heard = Instant::now();
        let follows = feed.purpose == Purpose::Follow;
        match event {
            Some(Event::Listing { total }) => {
                feed.list = Some(List::default());
                if follows {
                    self.context.coverage.set(&feed.place, State::Listing { seen: 0, total });
                }
            }
            Some(Event::Apply(object)) if feed.purpose == Purpose::Compare => self.compare(index, &object),
            Some(Event::Apply(object)) => self.apply(index, &object),
            Some(Event::Delete(metadata)) => self.delete(index, &metadata),
            Some(Event::Synced { version }) => self.synced(index, version),
            Some(Event::Progress { version }) => {
                feed.position = feed.position.max(version);
                self.context.coverage.set(&feed.place, State::synced(version));
                self.forget_overlap();
            }
            Some(Event::Resumed) => {
                feed.sight = Sight::Synced;
                self.context.coverage.set(&feed.place, State::synced(feed.position));
                self.replan = true;
            }
            Some(Event::Blind(blindness)) => self.blind(index, blindness),
            None if follows => feed.ended = true,
            None => {
                self.feeds.remove(index);
                self.notice_overlap();
            }
        }
    }

    pub(super) fn blind(&mut self, index: usize, blindness: Blindness) {
        let feed = &mut self.feeds[index];
        match feed.purpose {
            Purpose::Follow => {}
            Purpose::Renew => {
                let Some(namespace) = feed.query.namespace.clone() else { return };
                let due = Instant::now() + RETRY;
                let renewal = self.renewals.entry(namespace).or_insert((due, BTreeSet::new()));
                renewal.1.extend(feed.serves.iter().copied());
                return;
            }
            Purpose::Compare => {
                let by = feed.id;
                self.suspicions.retain(|suspicion| suspicion.by != by);
                return;
            }
        }
        let (place, namespace) = (feed.place.clone(), feed.query.namespace.clone());
        feed.sight = Sight::Blind(blindness.clone());
        if blindness.reason == BlindReason::Forbidden {
            self.allowed.remove(&namespace);
            self.denied.insert(namespace);
        }
        let known = self.context.coverage.of_kind(&self.gvk);
        if known.get(&place).is_some_and(|known| known.state.is_blind_for(blindness.reason)) {
            self.context.coverage.set(&place, State::blind(blindness));
        } else {
            self.tell_blind(&place, &blindness);
        }
        self.replan = true;
    }

    /// Called whenever the feeds have changed.
    pub(super) fn notice_overlap(&mut self) {
        let mut places = BTreeSet::new();
        let mut selectors = BTreeMap::new();
        for Feed { query, .. } in &self.feeds {
            let whole = selectors.entry(&query.field_selector).or_insert((0, false));
            whole.0 += 1;
            whole.1 |= query.namespace.is_none();
            places.insert((&query.field_selector, &query.namespace));
        }
        let split = self.served.iter().any(|served| served.claims.is_some());
        self.overlap = places.len() < self.feeds.len()
            || selectors.values().any(|(count, whole)| *whole && *count > 1)
            || split && selectors.len() > 1;
        self.forget_overlap();
    }

    /// Old news can come only from feeds that are behind.
    fn forget_overlap(&mut self) {
        if self.latest.is_empty() && self.told.is_empty() {
            return;
        }
        // Who has seen nothing yet and cannot see now begins with a list that is newer than all of it.
        let nothing = |feed: &Feed| matches!(feed.sight, Sight::Blind(_)) && feed.listed == 0;
        let feeds = self.feeds.iter().filter(|feed| !nothing(feed));
        let behind = feeds.map(|feed| feed.position).min().unwrap_or(u64::MAX);
        self.told.retain(|told| told.version > behind);
        self.latest.forget(behind);
    }

    fn advance(&mut self, index: usize, version: u64) {
        let feed = &mut self.feeds[index];
        if feed.list.is_none() {
            feed.position = feed.position.max(version);
        }
    }

    /// Remembers how new the event of a watch is.
    fn note(&mut self, index: usize, metadata: &Metadata) {
        let feed = &self.feeds[index];
        if feed.list.is_none() && (self.overlap || !self.latest.is_empty()) {
            self.latest.note(&metadata.uid, &feed.query, metadata.version);
        }
    }

    /// Whether a complete list of another feed already accounts for the event.
    fn is_told(&self, feed: &Feed, definition: u32, metadata: &Metadata) -> bool {
        let version = metadata.version;
        let covers =
            |namespace: &Option<Arc<str>>| namespace.as_ref().is_none_or(|n| *n == metadata.namespace);
        version != 0
            && (self.overlap || !self.told.is_empty())
            && feed.purpose == Purpose::Follow
            && (self.feeds.iter().any(|other| {
                other.id != feed.id
                    && other.purpose == Purpose::Follow
                    && !other.suspect
                    && !other.ended
                    && other.listed >= version
                    && other.serves.contains(&definition)
                    && other.query.field_selector == feed.query.field_selector
                    && other.covers(&metadata.namespace)
            }) || self.told.iter().any(|told| {
                told.version >= version
                    && told.serves.contains(&definition)
                    && told.field_selector == feed.query.field_selector
                    && covers(&told.namespace)
            }))
    }

    fn apply(&mut self, index: usize, object: &Object) {
        let metadata = &object.metadata;
        let feed = &mut self.feeds[index];
        if let Some(list) = &mut feed.list {
            list.show(&metadata.uid);
            if feed.purpose == Purpose::Follow {
                self.context.coverage.count(&feed.place, 1);
            }
        }
        self.advance(index, metadata.version);
        if self.latest.of_all(&metadata.uid) > metadata.version && metadata.version != 0 {
            return;
        }
        self.note(index, metadata);
        let renews = self.feeds[index].purpose == Purpose::Renew;
        let mut extracted = Extractions::default();
        for number in 0..self.served.len() {
            let feed = &self.feeds[index];
            let definition = self.served[number].definition;
            if !feed.serves.contains(&definition) {
                continue;
            }
            let query = feed.query.clone();
            let (told, counts) =
                (self.is_told(feed, definition, metadata), feed.repairs && feed.list.is_some());
            let served = &mut self.served[number];
            let origin = served.rows.origin(&metadata.uid).filter(|origin| origin.definition == definition);
            match origin.filter(|_| metadata.version != 0).map(|origin| origin.version) {
                Some(version) if version > metadata.version => continue,
                Some(version) if version == metadata.version && !renews => {
                    // The row stands; whether this query selects it too is another question.
                    if served.claims.is_some() {
                        match served.target.selection.verdict(&query, object, &self.namespaces) {
                            Ok(()) => served.claim(metadata, &query),
                            Err(Rejected::BeyondReach) => {}
                            Err(_) => {
                                served.release(&metadata.uid, &query, metadata.version);
                            }
                        }
                    }
                    continue;
                }
                // A newer event than the row's is news, whatever was told.
                None if told => continue,
                _ => {}
            }
            let changed = self.decide(number, &query, object, &mut extracted);
            // Rows and failures remember their version; where there is neither, `latest` must.
            if self.overlap && self.served[number].rows.origin(&metadata.uid).is_none() {
                self.latest.note(&metadata.uid, &query, metadata.version);
            }
            if changed && counts {
                self.context.coverage.count_repairs(&Place::of(&query), 1);
            }
        }
    }

    /// One object and one target: a row, a failure, or neither. Says whether that changed a row.
    fn decide(&mut self, number: usize, query: &Query, object: &Object, extracted: &mut Extractions) -> bool {
        let metadata = &object.metadata;
        let served = &mut self.served[number];
        match served.target.selection.verdict(query, object, &self.namespaces) {
            Ok(()) => {}
            // What was collected before stays as it was.
            Err(Rejected::BeyondReach) => return false,
            Err(_) => return served.release(&metadata.uid, query, metadata.version),
        }
        let target = &served.target;
        let namespace = self.namespaces.known.get_key_value(&metadata.namespace);
        let report = &self.context.report;
        let extraction = extracted.of(&target.profile, || {
            let namespace = namespace.map(|(_, metadata)| &**metadata);
            target.profile.extract(&self.gvk, &object.raw, namespace)
        });
        let key = RowKey {
            target: target.id.clone(),
            group: self.group.clone(),
            kind: self.kind.clone(),
            // Names of namespaces are shared by all rows.
            namespace: namespace.map_or_else(|| metadata.namespace.clone(), |(name, _)| name.clone()),
            uid: metadata.uid.clone(),
        };
        let origin = Origin { version: metadata.version, definition: served.definition };
        let target = target.id.clone();
        served.claim(metadata, query);
        match extraction {
            Ok((attributes, mismatches)) => {
                let row = Row::new(key, self.version.clone(), metadata.name.clone(), attributes.clone());
                let changed = served.rows.upsert(row, origin);
                // What has not changed has been told.
                if changed && !mismatches.is_empty() {
                    let (object, attributes) = (path(metadata), mismatches.clone());
                    report(Problem::TypeMismatch { target, object, attributes });
                }
                changed
            }
            Err(error) => {
                let object = path(metadata);
                let failed = served.rows.fail(key, origin, format!("{object}: {error}"));
                if failed.is_new {
                    report(Problem::Unreadable { target, object, error: error.clone() });
                }
                failed.removed_row
            }
        }
    }

    fn delete(&mut self, index: usize, metadata: &Metadata) {
        self.advance(index, metadata.version);
        // Nobody else tells that the object has left this query.
        let latest = self.latest.of(&metadata.uid, &self.feeds[index].query);
        if latest > metadata.version && metadata.version != 0 {
            return;
        }
        self.note(index, metadata);
        if let Some(list) = &mut self.feeds[index].list {
            // A streamed list tells what happens while it runs.
            list.hide(&metadata.uid);
            if self.overlap {
                let query = self.feeds[index].query.clone();
                self.latest.note(&metadata.uid, &query, metadata.version);
            }
        }
        for number in 0..self.served.len() {
            let feed = &self.feeds[index];
            let definition = self.served[number].definition;
            if !feed.serves.contains(&definition) {
                continue;
            }
            let query = feed.query.clone();
            let served = &mut self.served[number];
            if served.target.selection.is_beyond(&self.gvk, metadata, &self.namespaces) {
                continue;
            }
            let newer = |origin: Origin| metadata.version != 0 && origin.version > metadata.version;
            // Whether a newer row of a split target stays is up to those who claim it.
            if served.claims.is_some() || !served.rows.origin(&metadata.uid).is_some_and(newer) {
                served.release(&metadata.uid, &query, metadata.version);
            }
        }
    }

    /// A list is complete: what it did not show, and nobody has told since, is gone.
    fn synced(&mut self, index: usize, version: u64) {
        let feed = &mut self.feeds[index];
        let list = feed.list.take();
        if feed.purpose == Purpose::Compare {
            self.finish_comparison(index, version, &list.unwrap_or_default());
            return;
        }
        if version != 0 && version < feed.position {
            self.start_over();
            return;
        }
        feed.position = feed.position.max(version);
        feed.listed = version;
        feed.sight = Sight::Synced;
        let (query, serves, purpose) = (feed.query.clone(), feed.serves.clone(), feed.purpose);
        let repairs = std::mem::take(&mut feed.repairs);
        // Files may have been read for the tenth time: absence means nothing there.
        if let Some(list) = list.filter(|_| self.context.source.is_complete()) {
            for served in self.served.iter_mut().filter(|served| serves.contains(&served.definition)) {
                let here = |key: &RowKey| query.namespace.as_ref().is_none_or(|n| *n == key.namespace);
                let gone = served.rows.find(|key, origin| {
                    origin.definition == served.definition
                        && (version == 0 || origin.version <= version || served.claims.is_some())
                        && here(key)
                        && !list.shows(&key.uid)
                        && !served.belongs_to_others(&key.uid, &query)
                });
                for uid in gone {
                    if served.release(&uid, &query, version) && repairs {
                        self.context.coverage.count_repairs(&Place::of(&query), 1);
                    }
                }
            }
        }
        match purpose {
            Purpose::Follow => {
                self.context.coverage.set(&Place::of(&query), State::synced(version));
                self.restart_renewals(&query);
            }
            Purpose::Renew | Purpose::Compare => {
                let (namespace, field_selector) = (query.namespace.clone(), query.field_selector.clone());
                self.told.push(Told { namespace, field_selector, serves, version });
                self.feeds.remove(index);
            }
        }
        self.notice_overlap();
        self.replan = true;
    }

    /// Versions went back: the cluster was restored from a backup, and what is known about the order of
    /// events is worth nothing.
    fn start_over(&mut self) {
        self.latest = Latest::default();
        self.told.clear();
        self.feeds.clear();
        self.suspicions.clear();
        for served in &mut self.served {
            served.target.renew();
            served.definition = served.target.definition();
            served.stale = true;
            served.claims.iter_mut().for_each(HashMap::clear);
        }
        self.replan = true;
    }
}

/// While feeds overlap: the newest version of each object that the feeds of a query have told.
#[derive(Default)]
pub(super) struct Latest(HashMap<Arc<str>, Vec<(Option<String>, u64)>>);

impl Latest {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// By whatever query.
    fn of_all(&self, uid: &str) -> u64 {
        self.0.get(uid).into_iter().flatten().map(|(_, version)| *version).max().unwrap_or(0)
    }

    fn of(&self, uid: &str, query: &Query) -> u64 {
        let told = self.0.get(uid).into_iter().flatten();
        told.filter(|(own, _)| *own == query.field_selector).map(|(_, version)| *version).max().unwrap_or(0)
    }

    fn note(&mut self, uid: &Arc<str>, query: &Query, version: u64) {
        let told = self.0.entry(uid.clone()).or_default();
        match told.iter_mut().find(|(own, _)| *own == query.field_selector) {
            Some((_, known)) => *known = version.max(*known),
            None => told.push((query.field_selector.clone(), version)),
        }
    }

    /// Everybody has come as far as this version.
    fn forget(&mut self, version: u64) {
        self.0.retain(|_, told| told.iter().any(|(_, newest)| *newest > version));
        if self.0.is_empty() {
            self.0 = HashMap::new();
        }
    }
}

fn path(metadata: &Metadata) -> String {
    match &*metadata.namespace {
        "" => metadata.name.to_string(),
        namespace => format!("{namespace}/{}", metadata.name),
    }
}

type Extraction = Result<(Arc<RawValue>, Vec<String>), ExtractError>;

/// What the profiles make of one object: each reads it once, however many targets use it.
#[derive(Default)]
struct Extractions(Vec<(*const CompiledProfile, Extraction)>);

impl Extractions {
    fn of(
        &mut self,
        profile: &Arc<CompiledProfile>,
        extract: impl FnOnce() -> Result<Extracted, ExtractError>,
    ) -> &Extraction {
        let pointer = Arc::as_ptr(profile);
        let index = self.0.iter().position(|(known, _)| *known == pointer).unwrap_or_else(|| {
            // One object that breaks the engine must not break the kind.
            let result = catch_unwind(AssertUnwindSafe(extract)).unwrap_or(Err(ExtractError::Panicked));
            self.0.push((pointer, result.map(|extracted| (extracted.attributes, extracted.mismatches))));
            self.0.len() - 1
        });
        &self.0[index].1
    }
}
