//! Watches Kollect's own objects in the cluster.
//!
//! The watches use the same [`WatchSource`] as collected objects, so that lists, gaps and permissions are handled
//! alike, and no list is older than what was seen before. Objects that cannot be seen stay as they were. A kind counts
//! as absent only if the source says so: a single discovery without the kind proves nothing.

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

use crate::resolve::{Family, InventoryName, Name, ObjectSet, REQUESTED_AT};

/// How often a watch that has ended is tried again: the kind is not served, or the watch is not permitted.
const REVIEW: Duration = Duration::from_secs(30);

/// A sink of any family.
#[derive(Clone, Debug)]
pub(crate) struct SinkObject {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Arc<SinkSpec>,
    pub(crate) status: SinkStatus,
}

/// The objects of one kind.
type Kind<T> = BTreeMap<Name, Arc<T>>;

/// Kind and name of an object.
pub(crate) type ObjectKey = (&'static str, Name);

/// A snapshot of all known objects.
#[derive(Clone, Default)]
pub(crate) struct ObjectCache {
    profiles: Kind<KollectProfile>,
    targets: Kind<KollectTarget>,
    cluster_targets: Kind<KollectClusterTarget>,
    inventories: Kind<KollectInventory>,
    cluster_inventories: Kind<KollectClusterInventory>,
    snapshot_sinks: Kind<SinkObject>,
    database_sinks: Kind<SinkObject>,
    event_sinks: Kind<SinkObject>,
    scopes: Kind<KollectScope>,
    cluster_scopes: Kind<KollectClusterScope>,
    connection_tests: Kind<KollectConnectionTest>,
    refused: BTreeSet<(String, Name)>,
    /// Watches that have not completed a list yet, and whose kind is not known to be absent.
    pending: BTreeSet<Query>,
    /// Why kinds cannot be seen.
    blind: BTreeMap<Query, Blindness>,
    /// Counts changes other than changes of a status.
    definitions: u64,
    /// Objects of which only the status has changed since the last call of [`Objects::take_changed`].
    changed_statuses: BTreeSet<ObjectKey>,
}

/// The value of the annotation that asks for a reconciliation.
pub(crate) fn request(metadata: &ObjectMeta) -> Option<String> {
    metadata.annotations.as_ref()?.get(REQUESTED_AT).cloned()
}

/// Whether two versions of an object differ in nothing but the status.
fn is_same_definition(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    a.uid == b.uid
        && a.generation == b.generation
        && a.labels == b.labels
        && a.annotations == b.annotations
        && a.finalizers == b.finalizers
        && a.deletion_timestamp == b.deletion_timestamp
        && a.owner_references == b.owner_references
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
        fn of<T>(kind: &'static str, all: &Kind<T>) -> impl Iterator<Item = ObjectKey> {
            all.keys().map(move |name| (kind, name.clone()))
        }
        of("KollectProfile", &self.profiles)
            .chain(of("KollectTarget", &self.targets))
            .chain(of("KollectClusterTarget", &self.cluster_targets))
            .chain(of("KollectInventory", &self.inventories))
            .chain(of("KollectClusterInventory", &self.cluster_inventories))
            .chain(of(Family::Snapshot.kind(), &self.snapshot_sinks))
            .chain(of(Family::Database.kind(), &self.database_sinks))
            .chain(of(Family::Event.kind(), &self.event_sinks))
            .collect()
    }

    /// A sink.
    pub(crate) fn sink(&self, (family, name): &(Family, Name)) -> Option<&Arc<SinkObject>> {
        match family {
            Family::Snapshot => self.snapshot_sinks.get(name),
            Family::Database => self.database_sinks.get(name),
            Family::Event => self.event_sinks.get(name),
        }
    }

    pub(crate) fn profiles(&self) -> &BTreeMap<Name, Arc<KollectProfile>> {
        &self.profiles
    }

    pub(crate) fn targets(&self) -> &BTreeMap<Name, Arc<KollectTarget>> {
        &self.targets
    }

    pub(crate) fn cluster_targets(&self) -> &BTreeMap<Name, Arc<KollectClusterTarget>> {
        &self.cluster_targets
    }

    pub(crate) fn inventories(&self) -> &BTreeMap<Name, Arc<KollectInventory>> {
        &self.inventories
    }

    pub(crate) fn cluster_inventories(&self) -> &BTreeMap<Name, Arc<KollectClusterInventory>> {
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

    pub(crate) fn connection_tests(&self) -> &BTreeMap<Name, Arc<KollectConnectionTest>> {
        &self.connection_tests
    }

    pub(crate) fn sinks(&self) -> impl Iterator<Item = ((Family, Name), &Arc<SinkObject>)> {
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
        let here = |query: &Query| query.namespace.as_deref().is_none_or(|own| own == namespace);
        let blind = self.blind.iter().find(|(query, _)| query.gvk.kind == kind && here(query));
        blind.map(|(_, blindness)| blindness.message.as_str())
    }

    /// The input of resolution. Targets that are being deleted are left out.
    pub(crate) fn object_set(&self) -> ObjectSet {
        let stays = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_none();
        let staying = |(name, target): (&Name, &Arc<KollectTarget>)| {
            stays(&target.metadata).then(|| (name.clone(), target.clone()))
        };
        ObjectSet {
            profiles: self.profiles.clone(),
            targets: self.targets.iter().filter_map(staying).collect(),
            cluster_targets: self
                .cluster_targets
                .iter()
                .filter(|(_, target)| stays(&target.metadata))
                .map(|(name, target)| (name.clone(), target.clone()))
                .collect(),
            inventories: self.inventories.clone(),
            cluster_inventories: self.cluster_inventories.clone(),
            sinks: self.sinks().map(|(key, sink)| (key, sink.spec.clone())).collect(),
            sink_requests: self
                .sinks()
                .filter_map(|(key, sink)| Some((key, request(&sink.metadata)?)))
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
        let line = |(query, blindness): (&Query, &Blindness)| {
            (query.gvk.kind.clone(), query.namespace.clone(), blindness.message.clone())
        };
        unseen.map(line).collect()
    }

    /// Whether every kind has been listed or is certainly absent. Forbidden scopes count as settled: nothing is
    /// collected where they would apply.
    fn is_settled(&self) -> bool {
        let stops = |query: &Query| self.blind.get(query).is_some_and(|why| is_unseen_scope(query, why));
        self.pending.iter().all(stops)
    }
}

/// Watches all kinds of Kollect until it is dropped.
pub(crate) struct Objects {
    source: Arc<dyn WatchSource>,
    /// `None`: everywhere.
    namespaces: Option<BTreeSet<Arc<str>>>,
    known: Arc<Mutex<ObjectCache>>,
    changed: watch::Sender<()>,
    statuses: watch::Sender<()>,
    tasks: Tasks,
    followers: Mutex<Vec<Task<Option<()>>>>,
}

impl Objects {
    /// Watches the namespaced kinds in these namespaces only; `None`: all kinds in the whole cluster.
    pub(crate) fn follow(
        source: Arc<dyn WatchSource>,
        namespaces: Option<BTreeSet<Arc<str>>>,
        tasks: Tasks,
    ) -> Self {
        let (known, changed, statuses) = (Arc::default(), watch::Sender::default(), watch::Sender::default());
        let objects =
            Self { source, namespaces, known, changed, statuses, tasks, followers: Mutex::default() };
        objects.start();
        objects
    }

    /// Lists everything again. Until that is complete, the known objects stay in use and nothing is settled.
    pub(crate) async fn begin_again(&self) {
        let mut followers =
            std::mem::take(&mut *self.followers.lock().unwrap_or_else(PoisonError::into_inner));
        tasks::abort(&mut followers).await;
        lock(&self.known).blind.clear();
        self.start();
    }

    fn start(&self) {
        let places: Vec<Option<Arc<str>>> = match &self.namespaces {
            Some(names) => names.iter().cloned().map(Some).collect(),
            None => vec![None],
        };
        for place in &places {
            self.add(place.as_ref(), "KollectProfile", |k| &mut k.profiles, |object| object);
            self.add(place.as_ref(), "KollectTarget", |k| &mut k.targets, |object| object);
            self.add(place.as_ref(), "KollectInventory", |k| &mut k.inventories, |object| object);
            self.add(place.as_ref(), "KollectScope", |k| &mut k.scopes, |object| object);
            self.add(place.as_ref(), "KollectConnectionTest", |k| &mut k.connection_tests, |object| object);
            self.add(
                place.as_ref(),
                "KollectSnapshotSink",
                |k| &mut k.snapshot_sinks,
                |sink| {
                    let KollectSnapshotSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Snapshot(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
            self.add(
                place.as_ref(),
                "KollectDatabaseSink",
                |k| &mut k.database_sinks,
                |sink| {
                    let KollectDatabaseSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Database(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
            self.add(
                place.as_ref(),
                "KollectEventSink",
                |k| &mut k.event_sinks,
                |sink| {
                    let KollectEventSink { metadata, spec, status } = sink;
                    let spec = Arc::new(SinkSpec::Event(spec));
                    SinkObject { metadata, spec, status: status.unwrap_or_default() }
                },
            );
        }
        if self.namespaces.is_none() {
            self.add(None, "KollectClusterTarget", |k| &mut k.cluster_targets, |object| object);
            self.add(None, "KollectClusterInventory", |k| &mut k.cluster_inventories, |object| object);
            self.add(None, "KollectClusterScope", |k| &mut k.cluster_scopes, |object| object);
        }
    }

    /// What is known now.
    pub(crate) fn known(&self) -> ObjectCache {
        lock(&self.known).clone()
    }

    /// Changes whenever an object does, other than in its status.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Changes whenever the status of an object does.
    pub(crate) fn status_changes(&self) -> watch::Receiver<()> {
        self.statuses.subscribe()
    }

    /// The known objects, and those of which only the status has changed since the last call. Both are read under one
    /// lock: a later change is returned by the next call.
    pub(crate) fn take_changed(&self) -> (ObjectCache, BTreeSet<ObjectKey>) {
        let mut known = lock(&self.known);
        let changed = std::mem::take(&mut known.changed_statuses);
        (known.clone(), changed)
    }

    /// Returns when every kind has been listed or is certainly absent: an incomplete set of objects would lead to wrong
    /// decisions.
    pub(crate) async fn settled(&self) {
        let mut changes = self.changes();
        while !lock(&self.known).is_settled() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns when something is known about every kind: its objects, or why they cannot be seen.
    pub(crate) async fn heard(&self) {
        let silent = |known: &ObjectCache| known.pending.iter().any(|query| !known.blind.contains_key(query));
        let mut changes = self.changes();
        while silent(&lock(&self.known)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn add<K, T>(
        &self,
        place: Option<&Arc<str>>,
        kind: &'static str,
        part: fn(&mut ObjectCache) -> &mut Kind<T>,
        make: fn(K) -> T,
    ) where
        K: DeserializeOwned + Send + 'static,
        T: HasMetadata + Send + Sync + 'static,
    {
        let gvk = Gvk { group: GROUP.into(), version: VERSION.into(), kind: kind.into() };
        let query = Query { namespace: place.cloned(), ..Query::all(gvk) };
        lock(&self.known).pending.insert(query.clone());
        let name = TaskName::of_kind(TaskKind::Objects, &query.gvk, place);
        let follower = Follower {
            query,
            kind,
            known: self.known.clone(),
            changed: self.changed.clone(),
            statuses: self.statuses.clone(),
            part,
            make,
            listing: None,
        };
        let task = self.tasks.core(name, follower.follow(self.source.clone()));
        self.followers.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }
}

fn lock(known: &Mutex<ObjectCache>) -> MutexGuard<'_, ObjectCache> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches one kind in one place.
struct Follower<K, T> {
    query: Query,
    kind: &'static str,
    known: Arc<Mutex<ObjectCache>>,
    changed: watch::Sender<()>,
    statuses: watch::Sender<()>,
    part: fn(&mut ObjectCache) -> &mut Kind<T>,
    make: fn(K) -> T,
    /// Objects that the running list has returned.
    listing: Option<BTreeSet<Name>>,
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

impl<K: DeserializeOwned, T: HasMetadata> Follower<K, T> {
    async fn follow(mut self, source: Arc<dyn WatchSource>) {
        let mut kinds = source.kinds();
        loop {
            kinds.mark_unchanged();
            let mut events = source.watch(self.query.clone());
            while let Some(event) = events.next().await {
                if is_not_served(&event) && source.resolve(&self.query.gvk).await == Resolution::Absent {
                    self.absent();
                } else {
                    self.hear(event);
                }
            }
            // Only a new definition or permission can help, and a changed permission sends no event.
            tokio::select! {
                // Both branches start the next round.
                biased;
                () = time::sleep(REVIEW) => {}
                Ok(()) = kinds.changed() => {}
            }
        }
    }

    fn hear(&mut self, event: Event) {
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
                self.change(|known, part| {
                    part(known).remove(&name);
                    known.refused.remove(&(kind, name));
                });
            }
            Event::Synced { .. } => {
                let shown = self.listing.take().unwrap_or_default();
                self.retain(&shown);
                self.seen();
            }
            Event::Resumed => self.seen(),
            Event::Progress { .. } => {}
            Event::Blind(blindness) => {
                let query = self.query.clone();
                let known_as = blindness.clone();
                let before = self.change(|known, _| known.blind.insert(query, known_as));
                if before.is_none_or(|before| before.reason != blindness.reason) {
                    warn!(kind = self.query.gvk.kind, reason = %blindness.reason, error = blindness.message, "cannot see objects");
                }
            }
        }
    }

    fn apply(&self, name: Name, raw: &str) {
        let parsed = match parse::<K>(raw).map(self.make) {
            Ok(object) if self.has_definition_of(&name, &object) => {
                let mut known = lock(&self.known);
                (self.part)(&mut known).insert(name.clone(), Arc::new(object));
                known.changed_statuses.insert((self.kind, name));
                drop(known);
                self.statuses.send_replace(());
                return;
            }
            parsed => parsed,
        };
        let kind = self.query.gvk.kind.clone();
        let wrong = self.change(|known, part| {
            match parsed {
                Ok(object) => {
                    part(known).insert(name.clone(), Arc::new(object));
                    known.refused.remove(&(kind, name.clone()));
                    None
                }
                // The last version that could be read stays in use.
                Err(error) => {
                    known.refused.insert((kind, name.clone()));
                    Some(error)
                }
            }
        });
        if let Some(error) = wrong {
            let (namespace, object) = &name;
            warn!(kind = self.query.gvk.kind, namespace, object, %error, "cannot read an object");
        }
    }

    /// Whether the last version of an object could be read and differs from this one in the status only.
    fn has_definition_of(&self, name: &Name, object: &T) -> bool {
        let mut known = lock(&self.known);
        let is_refused = known.refused.contains(&(self.query.gvk.kind.clone(), name.clone()));
        let before = (self.part)(&mut known).get(name);
        !is_refused && before.is_some_and(|before| is_same_definition(before.metadata(), object.metadata()))
    }

    /// Removes objects that a complete list did not return.
    fn retain(&self, shown: &BTreeSet<Name>) {
        let namespace = self.query.namespace.clone();
        let here = move |name: &Name| namespace.as_ref().is_none_or(|own| *name.0 == **own);
        let gvk = self.query.gvk.kind.clone();
        let mut known = lock(&self.known);
        let refused = known.refused.len();
        known.refused.retain(|(kind, name)| *kind != gvk || shown.contains(name) || !here(name));
        let is_other = known.refused.len() < refused;
        let part = (self.part)(&mut known);
        let count = part.len();
        part.retain(|name, _| shown.contains(name) || !here(name));
        let is_other = is_other || part.len() < count;
        known.definitions += u64::from(is_other);
        drop(known);
        if is_other {
            self.changed.send_replace(());
        }
    }

    /// Handles a kind that certainly does not exist: it has no objects.
    fn absent(&mut self) {
        self.listing = None;
        self.retain(&BTreeSet::new());
        let query = self.query.clone();
        let first = self.change(|known, _| {
            let pending = known.pending.remove(&query);
            known.blind.remove(&query).is_some() || pending
        });
        if first {
            info!(kind = self.query.gvk.kind, "the cluster does not have this kind");
        }
    }

    fn seen(&self) {
        let query = &self.query;
        let known = lock(&self.known);
        if !known.pending.contains(query) && !known.blind.contains_key(query) {
            return;
        }
        drop(known);
        let again = self.change(|known, _| {
            known.pending.remove(query);
            known.blind.remove(query).is_some()
        });
        if again {
            info!(kind = self.query.gvk.kind, "objects can be seen again");
        }
    }

    fn change<R>(
        &self,
        change: impl FnOnce(&mut ObjectCache, fn(&mut ObjectCache) -> &mut Kind<T>) -> R,
    ) -> R {
        let mut known = lock(&self.known);
        let result = change(&mut known, self.part);
        known.definitions += 1;
        drop(known);
        self.changed.send_replace(());
        result
    }
}

/// Whether the query is for scopes whose list is forbidden: nothing is collected where these scopes would apply.
fn is_unseen_scope(query: &Query, blindness: &Blindness) -> bool {
    let scope = ["KollectScope", "KollectClusterScope"].contains(&query.gvk.kind.as_str());
    scope && blindness.reason == BlindReason::Forbidden
}

/// Whether the event says that the kind is not served. A single discovery may be wrong about that.
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
