//! An API server in memory: objects with versions, a history that watches read, rights, and faults.
//!
//! A schedule changes objects through it, operators talk to it through [`ApiServer::client`]. Every object is kept as a
//! value and as the text that is sent.

mod answer;
mod kinds;
mod objects;
mod watch_stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use kollect_engine::clock;
use serde_json::json;
use tokio::time::Instant;

use kinds::number_of;
pub(super) use kinds::{KINDS, SimulatedKind, kind_of};
pub(super) use objects::StoredObject;
use objects::{ObjectChange, StoredKind, StoredName};

use super::{journal::Journal, signal::Signal};

/// The current faults of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ApiFaults {
    /// How many of a hundred requests are answered with 500.
    pub(super) errors: u8,
    /// Requests and events are late by at most this time.
    pub(super) latency: Duration,
    /// How many versions old lists are.
    pub(super) stale: u64,
}

/// Lists are stale for at most this time: after two minutes an operator assumes that the cluster was restored.
const LONGEST_STALE: Duration = Duration::from_secs(45);
/// No list is stale for this time after a process has begun to lead. Real lists never are: they are quorum reads.
const FRESH_AFTER_ELECTION: Duration = Duration::from_mins(3);

/// One API server. Cheap to clone.
#[derive(Clone)]
pub(super) struct ApiServer(Arc<ApiServerShared>);

struct ApiServerShared {
    /// Name of the cluster, for UIDs.
    name: String,
    state: Mutex<ApiServerState>,
    /// By number of the kind.
    changed: Vec<Signal>,
    journal: Journal,
}

pub(super) struct ApiServerState {
    version: u64,
    /// By number of the kind.
    kinds: Vec<StoredKind>,
    /// Watches cannot begin before this version.
    oldest: u64,
    /// Kinds that are not served.
    unserved: BTreeSet<&'static str>,
    /// Plural and namespace of what may not be listed; an empty namespace: everywhere.
    denied: BTreeSet<(String, String)>,
    /// How often all watches were cut.
    cuts: u64,
    faults: ApiFaults,
    /// When lists are fresh again.
    stale_until: Instant,
    /// Until then no list is stale: a process has begun to lead, and knows no newer versions.
    fresh_until: Instant,
    /// Whether it knows streamed lists.
    streams_lists: bool,
    random: fastrand::Rng,
    uid_count: u64,
    /// How many objects clients have changed.
    client_writes: u64,
    /// Profiles, targets and inventories whose status was written, oldest first.
    written_statuses: Vec<WrittenStatus>,
    /// When the status of each of these was last written, and when before that.
    status_times: BTreeMap<(usize, StoredName), (u64, u64)>,
}

/// A status that was written.
pub(super) struct WrittenStatus {
    pub(super) plural: &'static str,
    pub(super) before: Arc<StoredObject>,
    pub(super) object: Arc<StoredObject>,
    /// From the status before the last one, whose successor may have been made before it was written, until this one.
    pub(super) period: (u64, u64),
    pub(super) written_at: Instant,
}

impl ApiServer {
    pub(super) fn new(name: &str, seed: u64, journal: Journal) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let streams_lists = random.u8(..4) > 0;
        let state = ApiServerState {
            version: 1,
            kinds: KINDS.iter().map(|_| StoredKind::default()).collect(),
            oldest: 0,
            unserved: BTreeSet::new(),
            denied: BTreeSet::new(),
            cuts: 0,
            faults: ApiFaults::default(),
            stale_until: Instant::now(),
            fresh_until: Instant::now(),
            streams_lists,
            random,
            uid_count: 0,
            client_writes: 0,
            written_statuses: Vec::new(),
            status_times: BTreeMap::new(),
        };
        let changed = KINDS.iter().map(|_| Signal::default()).collect();
        let server =
            Self(Arc::new(ApiServerShared { name: name.into(), state: Mutex::new(state), changed, journal }));
        server.change("namespaces", "", "kube-system", |_| {});
        server
    }

    fn lock(&self) -> MutexGuard<'_, ApiServerState> {
        self.0.state.lock().unwrap()
    }

    /// Wakes the watches of a kind.
    fn announce(&self, kind: usize) {
        self.0.changed[kind].announce();
    }

    fn announce_all(&self) {
        self.0.changed.iter().for_each(Signal::announce);
    }

    /// Creates or changes an object.
    pub(super) fn change(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&mut serde_json::Value),
    ) {
        let kind = number_of(plural);
        let mut state = self.lock();
        let name: StoredName = (namespace.to_owned(), name.to_owned());
        let before = state.kinds[kind].objects.get(&name).cloned();
        let mut object = match &before {
            Some(before) => before.value.clone(),
            None => state.new_object(&self.0.name, kind, &name),
        };
        let spec = object.get("spec").cloned();
        edit(&mut object);
        if before.is_some_and(|before| before.value == object) {
            return;
        }
        if object.get("spec") != spec.as_ref() {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        state.store(kind, name, object);
        drop(state);
        self.announce(kind);
    }

    /// Deletes an object; one with finalizers is removed when they are.
    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let kind = number_of(plural);
        let mut state = self.lock();
        let name: StoredName = (namespace.to_owned(), name.to_owned());
        let Some(object) = state.kinds[kind].objects.get(&name).cloned() else { return };
        if !object.has_finalizers() {
            state.remove(kind, &name);
        } else if !object.is_being_deleted() {
            let mut object = object.value.clone();
            object["metadata"]["deletionTimestamp"] =
                json!(clock::timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            state.store(kind, name, object);
        }
        drop(state);
        self.announce(kind);
    }

    /// Deletes a namespace with all objects in it.
    pub(super) fn delete_namespace(&self, name: &str) {
        let mut state = self.lock();
        for kind in 0..KINDS.len() {
            let names: Vec<StoredName> = state.kinds[kind].objects.keys().cloned().collect();
            names.iter().filter(|found| found.0 == name).for_each(|found| state.remove(kind, found));
        }
        state.remove(number_of("namespaces"), &(String::new(), name.to_owned()));
        drop(state);
        self.announce_all();
    }

    /// Serves a kind, or stops serving it and removes its objects.
    pub(super) fn serve(&self, plural: &'static str, served: bool) {
        let kind = number_of(plural);
        let definition = format!("{plural}.{}", KINDS[kind].group);
        let mut state = self.lock();
        if served {
            state.unserved.remove(plural);
            drop(state);
            self.change("customresourcedefinitions", "", &definition, |_| {});
            return;
        }
        let names: Vec<StoredName> = state.kinds[kind].objects.keys().cloned().collect();
        names.iter().for_each(|name| state.remove(kind, name));
        state.unserved.insert(plural);
        state.remove(number_of("customresourcedefinitions"), &(String::new(), definition));
        drop(state);
        self.announce_all();
    }

    /// Whether a kind is served.
    pub(super) fn serves(&self, kind: &str) -> bool {
        let resource = KINDS.iter().find(|resource| resource.kind == kind);
        resource.is_some_and(|resource| !self.lock().unserved.contains(resource.plural))
    }

    /// All objects of a kind, by namespace and name.
    pub(super) fn objects(&self, plural: &str) -> Vec<Arc<StoredObject>> {
        self.lock().kinds[number_of(plural)].objects.values().cloned().collect()
    }

    /// One object.
    pub(super) fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        self.lock().kinds[number_of(plural)].objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether a kind is served.
    pub(super) fn is_served(&self, plural: &str) -> bool {
        !self.lock().unserved.contains(plural)
    }

    /// Ends all watches.
    pub(super) fn cut_watches(&self) {
        self.lock().cuts += 1;
        self.announce_all();
    }

    /// Forgets the history: watches that begin in the past are answered with 410.
    pub(super) fn forget_history(&self) {
        let mut state = self.lock();
        state.oldest = state.version;
    }

    /// Grants or revokes list and watch. Without a namespace: everywhere.
    pub(super) fn permit(&self, plural: &str, namespace: &str, allowed: bool) {
        let mut state = self.lock();
        let right = (plural.to_owned(), namespace.to_owned());
        if allowed {
            state.denied.remove(&right);
        } else {
            state.denied.insert(right);
            // A revoked right is noticed when a watch is opened again.
            state.cuts += 1;
        }
        drop(state);
        self.announce_all();
    }

    /// Whether everything may be listed.
    pub(super) fn permits_everything(&self) -> bool {
        self.lock().denied.is_empty()
    }

    pub(super) fn set_faults(&self, faults: ApiFaults) {
        let mut state = self.lock();
        if faults.stale > state.faults.stale {
            state.stale_until = Instant::now() + LONGEST_STALE;
        }
        state.faults = faults;
    }

    pub(super) fn end_faults(&self) {
        let mut state = self.lock();
        state.faults = ApiFaults::default();
        state.denied.clear();
    }

    /// How many objects clients have changed.
    pub(super) fn client_writes(&self) -> u64 {
        self.lock().client_writes
    }

    /// Statuses that were written since the last call.
    pub(super) fn take_written_statuses(&self) -> Vec<WrittenStatus> {
        std::mem::take(&mut self.lock().written_statuses)
    }
}

impl ApiServerState {
    fn is_denied(&self, plural: &str, namespace: &str) -> bool {
        // A client that may not list one namespace may not list all of them either.
        self.denied.iter().any(|(denied_plural, denied_namespace)| {
            denied_plural == plural
                && (denied_namespace.is_empty() || namespace.is_empty() || denied_namespace == namespace)
        })
    }

    /// How many versions old lists are now.
    fn stale_versions(&self) -> u64 {
        let now = Instant::now();
        if now < self.stale_until && now >= self.fresh_until { self.faults.stale } else { 0 }
    }

    /// How late the next answer is.
    fn delay(&mut self) -> Duration {
        let longest = u64::try_from(self.faults.latency.as_millis()).unwrap_or(0);
        if longest == 0 { Duration::ZERO } else { Duration::from_millis(self.random.u64(0..=longest)) }
    }
}
