//! An API server in memory: objects with versions, a history that watches read, rights, and faults.
//!
//! A schedule changes objects through it, the operator talks to it through [`ApiServer::client`].

mod answer;
mod watch_stream;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use kollect_engine::clock;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{journal::Journal, signal::Signal};

/// A kind of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
}

const fn kind(
    (group, version): (&'static str, &'static str),
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Resource {
    Resource { group, version, kind, plural, namespaced }
}

const KOLLECT: (&str, &str) = ("kollect.dev", "v1alpha1");

/// All kinds that the cluster can serve. A plural is enough to tell them apart.
pub(super) static KINDS: &[Resource] = &[
    kind(("", "v1"), "Namespace", "namespaces", false),
    kind(("", "v1"), "Secret", "secrets", true),
    kind(("apps", "v1"), "Deployment", "deployments", true),
    kind(("example.com", "v1"), "Widget", "widgets", true),
    kind(("apiextensions.k8s.io", "v1"), "CustomResourceDefinition", "customresourcedefinitions", false),
    kind(("apiregistration.k8s.io", "v1"), "APIService", "apiservices", false),
    kind(KOLLECT, "KollectProfile", "kollectprofiles", true),
    kind(KOLLECT, "KollectTarget", "kollecttargets", true),
    kind(KOLLECT, "KollectInventory", "kollectinventories", true),
    kind(KOLLECT, "KollectScope", "kollectscopes", true),
    kind(KOLLECT, "KollectConnectionTest", "kollectconnectiontests", true),
    kind(KOLLECT, "KollectSnapshotSink", "kollectsnapshotsinks", true),
    kind(KOLLECT, "KollectDatabaseSink", "kollectdatabasesinks", true),
    kind(KOLLECT, "KollectEventSink", "kollecteventsinks", true),
    kind(KOLLECT, "KollectClusterTarget", "kollectclustertargets", false),
    kind(KOLLECT, "KollectClusterInventory", "kollectclusterinventories", false),
    kind(KOLLECT, "KollectClusterScope", "kollectclusterscopes", false),
];

/// The kind with this plural.
pub(super) fn kind_of(plural: &str) -> Option<&'static Resource> {
    KINDS.iter().find(|kind| kind.plural == plural)
}

/// Plural of the kind, namespace and name.
pub(super) type ObjectKey = (&'static str, String, String);

/// What is wrong with the API server for now.
#[derive(Clone, Debug, Default)]
pub(super) struct ApiFaults {
    /// Of a hundred requests so many are answered with 500.
    pub(super) errors: u8,
    /// Requests and events are late by at most so long.
    pub(super) latency: Duration,
    /// Lists are so many versions behind.
    pub(super) stale: u64,
}

/// Lists are stale for no longer than this: after two minutes an operator takes it for a cluster that was restored.
const LONGEST_STALE: Duration = Duration::from_secs(45);

/// One API server. Cheap to clone.
#[derive(Clone)]
pub(super) struct ApiServer(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Signal,
    journal: Journal,
}

pub(super) struct State {
    version: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: Vec<Change>,
    /// Watches cannot begin before this version.
    oldest: u64,
    /// Kinds that are not served.
    unserved: BTreeSet<&'static str>,
    /// Plural and namespace of what may not be listed; without a namespace: nowhere.
    denied: BTreeSet<(String, String)>,
    /// How often all watches were cut.
    cuts: u64,
    faults: ApiFaults,
    /// When lists are fresh again.
    stale_until: Instant,
    /// Whether it knows streamed lists.
    streams_lists: bool,
    random: fastrand::Rng,
    uids: u64,
    /// Name of the cluster, for UIDs.
    name: String,
    /// How many objects clients have changed.
    written: u64,
    /// Inventories whose status was written, oldest first.
    told: Vec<Arc<Value>>,
}

/// What happened to an object.
struct Change {
    version: u64,
    key: ObjectKey,
    before: Option<Arc<Value>>,
    /// What it is now, or what it was when it was removed.
    object: Arc<Value>,
    removed: bool,
}

impl ApiServer {
    pub(super) fn new(name: &str, seed: u64, journal: Journal) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let streams_lists = random.u8(..4) > 0;
        let state = State {
            version: 1,
            objects: BTreeMap::new(),
            history: Vec::new(),
            oldest: 0,
            unserved: BTreeSet::new(),
            denied: BTreeSet::new(),
            cuts: 0,
            faults: ApiFaults::default(),
            stale_until: Instant::now(),
            streams_lists,
            random,
            uids: 0,
            name: name.into(),
            written: 0,
            told: Vec::new(),
        };
        let (state, changed) = (Mutex::new(state), Signal::default());
        let server = Self(Arc::new(Shared { state, changed, journal }));
        server.change("namespaces", "", "kube-system", |_| {});
        server
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn announce(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.0.changed.announce();
    }

    /// Creates or changes an object.
    pub(super) fn change(
        &self,
        plural: &'static str,
        namespace: &str,
        name: &str,
        edit: impl FnOnce(&mut Value),
    ) {
        let mut state = self.lock();
        let key = (plural, namespace.to_owned(), name.to_owned());
        let before = state.objects.get(&key).cloned();
        let mut object = match &before {
            Some(before) => (**before).clone(),
            None => state.new_object(&key),
        };
        let spec = object.get("spec").cloned();
        edit(&mut object);
        if before.as_deref() == Some(&object) {
            return;
        }
        if object.get("spec").cloned() != spec {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        state.store(key, object);
        self.announce(state);
    }

    /// Deletes an object; one with finalizers goes when they are gone.
    pub(super) fn delete(&self, plural: &'static str, namespace: &str, name: &str) {
        let mut state = self.lock();
        let key = (plural, namespace.to_owned(), name.to_owned());
        let Some(object) = state.objects.get(&key).cloned() else { return };
        let guarded = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !guarded {
            state.remove(&key);
        } else if object["metadata"].get("deletionTimestamp").is_none() {
            let mut object = (*object).clone();
            object["metadata"]["deletionTimestamp"] =
                json!(clock::timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            state.store(key, object);
        }
        self.announce(state);
    }

    /// Deletes a namespace with all objects in it.
    pub(super) fn delete_namespace(&self, name: &str) {
        let mut state = self.lock();
        let inside: Vec<ObjectKey> = state.objects.keys().filter(|key| key.1 == name).cloned().collect();
        inside.iter().for_each(|key| state.remove(key));
        state.remove(&("namespaces", String::new(), name.to_owned()));
        self.announce(state);
    }

    /// Serves a kind, or no longer: its objects go with it.
    pub(super) fn serve(&self, plural: &'static str, served: bool) {
        let definition = kind_of(plural).map(|kind| format!("{plural}.{}", kind.group)).unwrap_or_default();
        if served {
            self.lock().unserved.remove(plural);
            self.change("customresourcedefinitions", "", &definition, |_| {});
            return;
        }
        let mut state = self.lock();
        let all: Vec<ObjectKey> = state.objects.keys().filter(|key| key.0 == plural).cloned().collect();
        all.iter().for_each(|key| state.remove(key));
        state.unserved.insert(plural);
        state.remove(&("customresourcedefinitions", String::new(), definition));
        self.announce(state);
    }

    /// All objects of a kind, by namespace and name.
    pub(super) fn objects(&self, plural: &'static str) -> Vec<Arc<Value>> {
        let state = self.lock();
        let of_kind = state.objects.iter().filter(|(key, _)| key.0 == plural);
        of_kind.map(|(_, object)| object.clone()).collect()
    }

    /// One object.
    pub(super) fn object(&self, plural: &'static str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().objects.get(&(plural, namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether a kind is served.
    pub(super) fn is_served(&self, plural: &'static str) -> bool {
        !self.lock().unserved.contains(plural)
    }

    /// Ends all watches.
    pub(super) fn cut_watches(&self) {
        let mut state = self.lock();
        state.cuts += 1;
        self.announce(state);
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
        self.announce(state);
    }

    pub(super) fn set_faults(&self, faults: ApiFaults) {
        let mut state = self.lock();
        if faults.stale > state.faults.stale {
            state.stale_until = Instant::now() + LONGEST_STALE;
        }
        state.faults = faults;
    }

    /// Everything works again.
    pub(super) fn heal(&self) {
        let mut state = self.lock();
        state.faults = ApiFaults::default();
        state.denied.clear();
        self.announce(state);
    }

    /// How many objects clients have changed.
    pub(super) fn written(&self) -> u64 {
        self.lock().written
    }

    /// Statuses of inventories that were written since the last time.
    pub(super) fn told(&self) -> Vec<Arc<Value>> {
        std::mem::take(&mut self.lock().told)
    }
}

impl State {
    fn new_object(&mut self, (plural, namespace, name): &ObjectKey) -> Value {
        self.uids += 1;
        let kind = kind_of(plural).unwrap();
        let api_version = match kind.group {
            "" => kind.version.to_owned(),
            group => format!("{group}/{}", kind.version),
        };
        let mut metadata = json!({
            "name": name,
            "uid": format!("{}-{}", self.name, self.uids),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        json!({ "apiVersion": api_version, "kind": kind.kind, "metadata": metadata })
    }

    fn store(&mut self, key: ObjectKey, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), object.clone());
        self.history.push(Change { version: self.version, key, before, object, removed: false });
    }

    fn remove(&mut self, key: &ObjectKey) {
        let Some(before) = self.objects.remove(key) else { return };
        self.version += 1;
        let mut object = (*before).clone();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.history.push(Change {
            version: self.version,
            key: key.clone(),
            before: Some(before),
            object: Arc::new(object),
            removed: true,
        });
    }

    /// The objects of a kind as they were at a version.
    fn objects_at(&self, plural: &str, version: u64) -> BTreeMap<ObjectKey, Arc<Value>> {
        let of_kind = self.objects.iter().filter(|(key, _)| key.0 == plural);
        let mut objects: BTreeMap<ObjectKey, Arc<Value>> =
            of_kind.map(|(key, object)| (key.clone(), object.clone())).collect();
        let later = self.history.iter().rev().take_while(|change| change.version > version);
        for change in later.filter(|change| change.key.0 == plural) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        objects
    }

    fn is_denied(&self, plural: &str, namespace: &str) -> bool {
        // Who may not list somewhere may not list everywhere.
        self.denied.iter().any(|(denied, place)| {
            denied == plural && (place.is_empty() || namespace.is_empty() || place == namespace)
        })
    }

    /// How many versions lists are behind now.
    fn behind(&self) -> u64 {
        if Instant::now() < self.stale_until { self.faults.stale } else { 0 }
    }

    /// How late the next answer is.
    fn delay(&mut self) -> Duration {
        let longest = u64::try_from(self.faults.latency.as_millis()).unwrap_or(0);
        Duration::from_millis(self.random.u64(0..=longest))
    }
}
