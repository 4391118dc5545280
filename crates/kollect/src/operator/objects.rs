//! Watches Kollect's own objects in the cluster.
//!
//! The watches use the same [`WatchSource`] as collected objects, so that lists, gaps and permissions are handled
//! alike, and no list is older than what was seen before. Objects that cannot be seen stay as they were. A kind counts
//! as absent only if the source reports it so: a single discovery without the kind proves nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    tasks::{self, Task, TaskKind, TaskName, Tasks},
    watch::{BlindReason, Blindness, Event, Query, Resolution, WatchSource},
};
use kollect_model::{
    crd::{
        GROUP, KollectClusterInventory, KollectClusterScope, KollectClusterTarget, KollectConnectionTest,
        KollectDatabaseSink, KollectEventSink, KollectInventory, KollectProfile, KollectScope,
        KollectSnapshotSink, KollectTarget, VERSION, inventory::InventoryStatus, shapes::Gvk,
        sinks::SinkStatus,
    },
    sink::SinkSpec,
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, time};
use tracing::{info, warn};

use crate::resolve::{Family, InventoryName, ObjectName, ObjectSet, REQUESTED_AT};

/// How often a watch that has ended is tried again: the kind is not served, or the watch is not permitted.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// A sink of any family.
#[derive(Clone, Debug)]
pub(crate) struct SinkObject {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Arc<SinkSpec>,
    pub(crate) status: SinkStatus,
}

/// The objects of one kind.
type KindObjects<T> = BTreeMap<ObjectName, Arc<T>>;

/// Kind and name of an object.
pub(crate) type ObjectKey = (&'static str, ObjectName);

/// A snapshot of all known objects.
#[derive(Clone, Default)]
pub(crate) struct ObjectCache {
    profiles: KindObjects<KollectProfile>,
    targets: KindObjects<KollectTarget>,
    cluster_targets: KindObjects<KollectClusterTarget>,
    inventories: KindObjects<KollectInventory>,
    cluster_inventories: KindObjects<KollectClusterInventory>,
    snapshot_sinks: KindObjects<SinkObject>,
    database_sinks: KindObjects<SinkObject>,
    event_sinks: KindObjects<SinkObject>,
    scopes: KindObjects<KollectScope>,
    cluster_scopes: KindObjects<KollectClusterScope>,
    connection_tests: KindObjects<KollectConnectionTest>,
    refused: BTreeSet<(String, ObjectName)>,
    /// Watches that have not completed a list yet, and whose kind is not known to be absent.
    pending: BTreeSet<Query>,
    /// Why kinds cannot be seen.
    blind: BTreeMap<Query, Blindness>,
    /// Counts changes other than changes of a status.
    definitions: u64,
    /// Objects of which only the status has changed since the last call of [`ObjectWatches::take_changed`].
    changed_statuses: BTreeSet<ObjectKey>,
}

/// The value of the annotation that requests a reconciliation.
pub(crate) fn requested_at(metadata: &ObjectMeta) -> Option<String> {
    metadata.annotations.as_ref()?.get(REQUESTED_AT).cloned()
}

/// Whether two versions of an object differ in nothing but the status.
fn is_same_definition(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.uid == other.uid
        && one.generation == other.generation
        && one.labels == other.labels
        && one.annotations == other.annotations
        && one.finalizers == other.finalizers
        && one.deletion_timestamp == other.deletion_timestamp
        && one.owner_references == other.owner_references
}

/// The status of an inventory that has none yet.
static NO_STATUS: InventoryStatus = InventoryStatus {
    conditions: Vec::new(),
    observed_generation: None,
    observed_revision: None,
    item_count: None,
    last_export_time: None,
    last_handled_requested_at: None,
    sink_exports: Vec::new(),
    take_overs: Vec::new(),
};

impl ObjectCache {
    /// The version of the snapshot. Every change increases it, except changes of a status.
    pub(crate) fn definitions(&self) -> u64 {
        self.definitions
    }

    /// Kind and name of all objects that have statuses, except connection tests.
    pub(crate) fn names(&self) -> BTreeSet<ObjectKey> {
        fn keys_of<T>(kind: &'static str, all: &KindObjects<T>) -> impl Iterator<Item = ObjectKey> {
            all.keys().map(move |name| (kind, name.clone()))
        }
        keys_of("KollectProfile", &self.profiles)
            .chain(keys_of("KollectTarget", &self.targets))
            .chain(keys_of("KollectClusterTarget", &self.cluster_targets))
            .chain(keys_of("KollectInventory", &self.inventories))
            .chain(keys_of("KollectClusterInventory", &self.cluster_inventories))
            .chain(keys_of(Family::Snapshot.kind(), &self.snapshot_sinks))
            .chain(keys_of(Family::Database.kind(), &self.database_sinks))
            .chain(keys_of(Family::Event.kind(), &self.event_sinks))
            .collect()
    }

    /// A sink.
    pub(crate) fn sink(&self, (family, name): &(Family, ObjectName)) -> Option<&Arc<SinkObject>> {
        match family {
            Family::Snapshot => self.snapshot_sinks.get(name),
            Family::Database => self.database_sinks.get(name),
            Family::Event => self.event_sinks.get(name),
        }
    }

    pub(crate) fn profiles(&self) -> &BTreeMap<ObjectName, Arc<KollectProfile>> {
        &self.profiles
    }

    pub(crate) fn targets(&self) -> &BTreeMap<ObjectName, Arc<KollectTarget>> {
        &self.targets
    }

    pub(crate) fn cluster_targets(&self) -> &BTreeMap<ObjectName, Arc<KollectClusterTarget>> {
        &self.cluster_targets
    }

    pub(crate) fn inventories(&self) -> &BTreeMap<ObjectName, Arc<KollectInventory>> {
        &self.inventories
    }

    pub(crate) fn cluster_inventories(&self) -> &BTreeMap<ObjectName, Arc<KollectClusterInventory>> {
        &self.cluster_inventories
    }

    /// Metadata and status of an inventory of either kind.
    pub(crate) fn inventory(&self, name: &InventoryName) -> Option<(&ObjectMeta, &InventoryStatus)> {
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        let (metadata, status) = if name.namespace.is_some() {
            let inventory = self.inventories.get(&key)?;
            (&inventory.metadata, inventory.status.as_ref())
        } else {
            let inventory = self.cluster_inventories.get(&key)?;
            (&inventory.metadata, inventory.status.as_ref().map(|status| &status.inventory))
        };
        Some((metadata, status.unwrap_or(&NO_STATUS)))
    }

    pub(crate) fn connection_tests(&self) -> &BTreeMap<ObjectName, Arc<KollectConnectionTest>> {
        &self.connection_tests
    }

    pub(crate) fn sinks(&self) -> impl Iterator<Item = ((Family, ObjectName), &Arc<SinkObject>)> {
        let families = [
            (Family::Snapshot, &self.snapshot_sinks),
            (Family::Database, &self.database_sinks),
            (Family::Event, &self.event_sinks),
        ];
        families
            .into_iter()
            .flat_map(|(family, kind)| kind.iter().map(move |(name, sink)| ((family, name.clone()), sink)))
    }

    /// Why objects of a kind that may exist cannot be seen in a namespace, or anywhere.
    pub(crate) fn unseen(&self, kind: &str, namespace: &str) -> Option<&str> {
        let covers_namespace =
            |query: &Query| query.namespace.as_deref().is_none_or(|watched| watched == namespace);
        let blind = self.blind.iter().find(|(query, _)| query.gvk.kind == kind && covers_namespace(query));
        blind.map(|(_, blindness)| blindness.message.as_str())
    }

    /// The input of resolution. Targets that are being deleted are left out.
    pub(crate) fn object_set(&self) -> ObjectSet {
        let is_kept = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
        let kept_target = |(name, target): (&ObjectName, &Arc<KollectTarget>)| {
            is_kept(&target.metadata).then(|| (name.clone(), target.clone()))
        };
        ObjectSet {
            profiles: self.profiles.clone(),
            targets: self.targets.iter().filter_map(kept_target).collect(),
            cluster_targets: self
                .cluster_targets
                .iter()
                .filter(|(_, target)| is_kept(&target.metadata))
                .map(|(name, target)| (name.clone(), target.clone()))
                .collect(),
            inventories: self.inventories.clone(),
            cluster_inventories: self.cluster_inventories.clone(),
            sinks: self.sinks().map(|(key, sink)| (key, sink.spec.clone())).collect(),
            sink_requests: self
                .sinks()
                .filter_map(|(key, sink)| Some((key, requested_at(&sink.metadata)?)))
                .collect(),
            scopes: self.scopes.clone(),
            cluster_scopes: self.cluster_scopes.clone(),
            secrets: BTreeMap::new(),
            refused: self.refused.clone(),
            unseen_scopes: self.unseen_scopes(),
        }
    }

    /// Where listing scopes is forbidden. While the API server does not answer, the known scopes stay in force.
    fn unseen_scopes(&self) -> Vec<(String, Option<Arc<str>>, String)> {
        let unseen = self.blind.iter().filter(|(query, blindness)| is_unseen_scope(query, blindness));
        let unseen_scope = |(query, blindness): (&Query, &Blindness)| {
            (query.gvk.kind.clone(), query.namespace.clone(), blindness.message.clone())
        };
        unseen.map(unseen_scope).collect()
    }

    /// Whether every kind has been listed or is certainly absent. Forbidden scopes count as listed: nothing is
    /// collected where they would apply.
    fn is_listed(&self) -> bool {
        let is_forbidden_scope =
            |query: &Query| self.blind.get(query).is_some_and(|why| is_unseen_scope(query, why));
        self.pending.iter().all(is_forbidden_scope)
    }
}

/// Watches all kinds of Kollect until it is dropped.
pub(crate) struct ObjectWatches {
    source: Arc<dyn WatchSource>,
    /// `None`: everywhere.
    namespaces: Option<BTreeSet<Arc<str>>>,
    cache: Arc<Mutex<ObjectCache>>,
    changed: watch::Sender<()>,
    status_changed: watch::Sender<()>,
    tasks: Tasks,
    followers: Mutex<Vec<Task<Option<()>>>>,
}

impl ObjectWatches {
    /// Watches the namespaced kinds in these namespaces only; `None`: all kinds in the whole cluster.
    pub(crate) fn follow(
        source: Arc<dyn WatchSource>,
        namespaces: Option<BTreeSet<Arc<str>>>,
        tasks: Tasks,
    ) -> Self {
        let (cache, changed, status_changed) =
            (Arc::default(), watch::Sender::default(), watch::Sender::default());
        let objects =
            Self { source, namespaces, cache, changed, status_changed, tasks, followers: Mutex::default() };
        objects.start();
        objects
    }

    /// Lists everything again. Until that is complete, the known objects stay in use.
    pub(crate) async fn list_again(&self) {
        let mut followers =
            std::mem::take(&mut *self.followers.lock().unwrap_or_else(PoisonError::into_inner));
        tasks::abort(&mut followers).await;
        lock(&self.cache).blind.clear();
        self.start();
    }

    fn start(&self) {
        let namespaces: Vec<Option<Arc<str>>> = match &self.namespaces {
            Some(names) => names.iter().cloned().map(Some).collect(),
            None => vec![None],
        };
        for namespace in &namespaces {
            self.add(namespace.as_ref(), "KollectProfile", |cache| &mut cache.profiles, |object| object);
            self.add(namespace.as_ref(), "KollectTarget", |cache| &mut cache.targets, |object| object);
            self.add(namespace.as_ref(), "KollectInventory", |cache| &mut cache.inventories, |object| object);
            self.add(namespace.as_ref(), "KollectScope", |cache| &mut cache.scopes, |object| object);
            self.add(
                namespace.as_ref(),
                "KollectConnectionTest",
                |cache| &mut cache.connection_tests,
                |object| object,
            );
            self.add(
                namespace.as_ref(),
                "KollectSnapshotSink",
                |cache| &mut cache.snapshot_sinks,
                |sink| {
                    let KollectSnapshotSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Snapshot(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
            self.add(
                namespace.as_ref(),
                "KollectDatabaseSink",
                |cache| &mut cache.database_sinks,
                |sink| {
                    let KollectDatabaseSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Database(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
            self.add(
                namespace.as_ref(),
                "KollectEventSink",
                |cache| &mut cache.event_sinks,
                |sink| {
                    let KollectEventSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Event(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
        }
        if self.namespaces.is_none() {
            self.add(None, "KollectClusterTarget", |cache| &mut cache.cluster_targets, |object| object);
            self.add(
                None,
                "KollectClusterInventory",
                |cache| &mut cache.cluster_inventories,
                |object| object,
            );
            self.add(None, "KollectClusterScope", |cache| &mut cache.cluster_scopes, |object| object);
        }
    }

    /// What is known now.
    pub(crate) fn cache(&self) -> ObjectCache {
        lock(&self.cache).clone()
    }

    /// Changes whenever an object does, other than in its status.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Changes whenever the status of an object does.
    pub(crate) fn status_changes(&self) -> watch::Receiver<()> {
        self.status_changed.subscribe()
    }

    /// The known objects, and those of which only the status has changed since the last call. Both are read under one
    /// lock: a later change is returned by the next call.
    pub(crate) fn take_changed(&self) -> (ObjectCache, BTreeSet<ObjectKey>) {
        let mut cache = lock(&self.cache);
        let changed = std::mem::take(&mut cache.changed_statuses);
        (cache.clone(), changed)
    }

    /// Returns when every kind has been listed or is certainly absent: an incomplete set of objects would lead to wrong
    /// decisions.
    pub(crate) async fn wait_until_listed(&self) {
        let mut changes = self.changes();
        while !lock(&self.cache).is_listed() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns when something is known about every kind: its objects, or why they cannot be seen.
    pub(crate) async fn wait_until_known(&self) {
        let has_unknown_kind =
            |cache: &ObjectCache| cache.pending.iter().any(|query| !cache.blind.contains_key(query));
        let mut changes = self.changes();
        while has_unknown_kind(&lock(&self.cache)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn add<K, T>(
        &self,
        namespace: Option<&Arc<str>>,
        kind: &'static str,
        objects: fn(&mut ObjectCache) -> &mut KindObjects<T>,
        convert: fn(K) -> T,
    ) where
        K: DeserializeOwned + Send + 'static,
        T: HasMetadata + Send + Sync + 'static,
    {
        let gvk = Gvk { group: GROUP.into(), version: VERSION.into(), kind: kind.into() };
        let query = Query { namespace: namespace.cloned(), ..Query::all(gvk) };
        lock(&self.cache).pending.insert(query.clone());
        let name = TaskName::of_kind(TaskKind::Objects, &query.gvk, namespace);
        let follower = KindFollower {
            query,
            kind,
            cache: self.cache.clone(),
            changed: self.changed.clone(),
            status_changed: self.status_changed.clone(),
            objects,
            convert,
            listing: None,
        };
        let task = self.tasks.core(name, follower.follow(self.source.clone()));
        self.followers.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }
}

fn lock(cache: &Mutex<ObjectCache>) -> MutexGuard<'_, ObjectCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches one kind, in one namespace or in all.
struct KindFollower<K, T> {
    query: Query,
    kind: &'static str,
    cache: Arc<Mutex<ObjectCache>>,
    changed: watch::Sender<()>,
    status_changed: watch::Sender<()>,
    objects: fn(&mut ObjectCache) -> &mut KindObjects<T>,
    convert: fn(K) -> T,
    /// Objects that the running list has returned.
    listing: Option<BTreeSet<ObjectName>>,
}

/// An object of Kollect.
trait HasMetadata {
    fn metadata(&self) -> &ObjectMeta;
}

macro_rules! has_metadata {
    ($($kind:ident),*) => {
        $(impl HasMetadata for $kind {
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
        })*
    };
}

has_metadata!(
    KollectProfile,
    KollectTarget,
    KollectClusterTarget,
    KollectInventory,
    KollectClusterInventory,
    KollectScope,
    KollectClusterScope,
    KollectConnectionTest,
    SinkObject
);

impl<K: DeserializeOwned, T: HasMetadata> KindFollower<K, T> {
    async fn follow(mut self, source: Arc<dyn WatchSource>) {
        let mut kinds = source.kinds();
        loop {
            kinds.mark_unchanged();
            let mut events = source.watch(self.query.clone());
            while let Some(event) = events.next().await {
                if is_not_served(&event) && source.resolve(&self.query.gvk).await == Resolution::Absent {
                    self.mark_absent();
                } else {
                    self.handle_event(event);
                }
            }
            // Only a new definition or permission can help, and a changed permission sends no event.
            tokio::select! {
                // Both branches start the next round.
                biased;
                () = time::sleep(RETRY_INTERVAL) => {}
                Ok(()) = kinds.changed() => {}
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Listing { .. } => self.listing = Some(BTreeSet::new()),
            Event::Apply(object) => {
                let name = (object.metadata.namespace.to_string(), object.metadata.name.to_string());
                if let Some(listing) = &mut self.listing {
                    listing.insert(name.clone());
                }
                self.apply(name, object.raw.get());
            }
            Event::Delete(metadata) => {
                let name = (metadata.namespace.to_string(), metadata.name.to_string());
                if let Some(listing) = &mut self.listing {
                    listing.remove(&name);
                }
                let kind = self.query.gvk.kind.clone();
                self.change(|cache, objects| {
                    objects(cache).remove(&name);
                    cache.refused.remove(&(kind, name));
                });
            }
            Event::Synced { .. } => {
                let listed = self.listing.take().unwrap_or_default();
                self.retain(&listed);
                self.mark_seen();
            }
            Event::Resumed => self.mark_seen(),
            Event::Progress { .. } => {}
            Event::Blind(blindness) => {
                let query = self.query.clone();
                let newest = blindness.clone();
                let before = self.change(|cache, _| cache.blind.insert(query, newest));
                if before.is_none_or(|before| before.reason != blindness.reason) {
                    warn!(kind = self.query.gvk.kind, reason = %blindness.reason, error = blindness.message, "cannot see objects");
                }
            }
        }
    }

    fn apply(&self, name: ObjectName, raw: &str) {
        let parsed = match parse::<K>(raw).map(self.convert) {
            Ok(object) if self.has_definition_of(&name, &object) => {
                let mut cache = lock(&self.cache);
                (self.objects)(&mut cache).insert(name.clone(), Arc::new(object));
                cache.changed_statuses.insert((self.kind, name));
                drop(cache);
                self.status_changed.send_replace(());
                return;
            }
            parsed => parsed,
        };
        let kind = self.query.gvk.kind.clone();
        let error = self.change(|cache, objects| {
            match parsed {
                Ok(object) => {
                    objects(cache).insert(name.clone(), Arc::new(object));
                    cache.refused.remove(&(kind, name.clone()));
                    None
                }
                // The last version that could be read stays in use.
                Err(error) => {
                    cache.refused.insert((kind, name.clone()));
                    Some(error)
                }
            }
        });
        if let Some(error) = error {
            let (namespace, object) = &name;
            warn!(kind = self.query.gvk.kind, namespace, object, %error, "cannot read an object");
        }
    }

    /// Whether the last version of an object could be read and differs from this one in the status only.
    fn has_definition_of(&self, name: &ObjectName, object: &T) -> bool {
        let mut cache = lock(&self.cache);
        let is_refused = cache.refused.contains(&(self.query.gvk.kind.clone(), name.clone()));
        let before = (self.objects)(&mut cache).get(name);
        !is_refused && before.is_some_and(|before| is_same_definition(before.metadata(), object.metadata()))
    }

    /// Removes objects that a complete list did not return.
    fn retain(&self, listed: &BTreeSet<ObjectName>) {
        let namespace = self.query.namespace.clone();
        let in_namespace =
            move |name: &ObjectName| namespace.as_ref().is_none_or(|namespace| *name.0 == **namespace);
        let gvk = self.query.gvk.kind.clone();
        let mut cache = lock(&self.cache);
        let refused = cache.refused.len();
        cache.refused.retain(|(kind, name)| *kind != gvk || listed.contains(name) || !in_namespace(name));
        let changed = cache.refused.len() < refused;
        let objects = (self.objects)(&mut cache);
        let count = objects.len();
        objects.retain(|name, _| listed.contains(name) || !in_namespace(name));
        let changed = changed || objects.len() < count;
        cache.definitions += u64::from(changed);
        drop(cache);
        if changed {
            self.changed.send_replace(());
        }
    }

    /// Handles a kind that certainly does not exist: it has no objects.
    fn mark_absent(&mut self) {
        self.listing = None;
        self.retain(&BTreeSet::new());
        let query = self.query.clone();
        let was_unknown = self.change(|cache, _| {
            let pending = cache.pending.remove(&query);
            cache.blind.remove(&query).is_some() || pending
        });
        if was_unknown {
            info!(kind = self.query.gvk.kind, "the cluster does not have this kind");
        }
    }

    fn mark_seen(&self) {
        let query = &self.query;
        let cache = lock(&self.cache);
        if !cache.pending.contains(query) && !cache.blind.contains_key(query) {
            return;
        }
        drop(cache);
        let was_blind = self.change(|cache, _| {
            cache.pending.remove(query);
            cache.blind.remove(query).is_some()
        });
        if was_blind {
            info!(kind = self.query.gvk.kind, "objects can be seen again");
        }
    }

    fn change<R>(
        &self,
        change: impl FnOnce(&mut ObjectCache, fn(&mut ObjectCache) -> &mut KindObjects<T>) -> R,
    ) -> R {
        let mut cache = lock(&self.cache);
        let result = change(&mut cache, self.objects);
        cache.definitions += 1;
        drop(cache);
        self.changed.send_replace(());
        result
    }
}

/// Whether the query is for scopes whose list is forbidden: nothing is collected where these scopes would apply.
fn is_unseen_scope(query: &Query, blindness: &Blindness) -> bool {
    let is_scope = ["KollectScope", "KollectClusterScope"].contains(&query.gvk.kind.as_str());
    is_scope && blindness.reason == BlindReason::Forbidden
}

/// Whether the event means that the kind is not served. A single discovery may be wrong about that.
fn is_not_served(event: &Event) -> bool {
    matches!(event, Event::Blind(blindness) if blindness.reason == BlindReason::NotServed)
}

/// Parses an object. If the status cannot be parsed, the object is read without it.
fn parse<K: DeserializeOwned>(raw: &str) -> Result<K, serde_json::Error> {
    serde_json::from_str(raw).or_else(|error| {
        let mut object: serde_json::Value = serde_json::from_str(raw)?;
        object.as_object_mut().and_then(|object| object.remove("status")).ok_or(error)?;
        serde_json::from_value(object)
    })
}

#[cfg(test)]
mod tests;
