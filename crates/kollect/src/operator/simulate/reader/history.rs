//! All versions of everything that rows depend on.

use std::{collections::BTreeMap, ops::Deref};

use tokio::time::Instant;

use super::super::{
    api_server::{ApiServer, StoredObject},
    schedule::COLLECTED_KINDS,
    specs::{self, InventorySpecs, NamespaceSpecs, ProfileSpecs, ScopeSpecs, SinkSpecs, name, text},
};

/// All versions of something, oldest first; `None`: it did not exist.
#[derive(Debug)]
pub(super) struct Versions<T> {
    all: Vec<Option<T>>,
    /// The records with which they came.
    records: Vec<u64>,
    /// The generation of the newest version when it came.
    generation: i64,
}

impl<T> Versions<T> {
    fn new(first: Option<T>) -> Self {
        Self { all: vec![first], records: vec![0], generation: 0 }
    }

    /// The generation of the newest version when it came.
    pub(super) fn generation(&self) -> i64 {
        self.generation
    }

    /// The record with which a version came.
    pub(super) fn record(&self, version: usize) -> u64 {
        self.records[version]
    }

    /// The newest version, if it is not newer than a record.
    pub(super) fn unchanged_since(&self, record: u64) -> Option<&T> {
        let last = self.all.last()?.as_ref();
        last.filter(|_| self.records.last().is_some_and(|last| *last <= record))
    }

    fn push(&mut self, version: Option<T>, record: u64, generation: i64) {
        self.all.push(version);
        self.records.push(record);
        self.generation = generation;
    }
}

impl<T> Deref for Versions<T> {
    type Target = [Option<T>];

    fn deref(&self) -> &[Option<T>] {
        &self.all
    }
}

/// An object that is collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CollectedObject {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) size: i64,
}

/// The versions of everything in a cluster.
#[derive(Debug)]
pub(super) struct History {
    pub(super) inventories: BTreeMap<String, Versions<InventorySpecs>>,
    pub(super) sinks: BTreeMap<String, Versions<SinkSpecs>>,
    pub(super) targets: BTreeMap<String, Versions<specs::TargetSpecs>>,
    pub(super) profiles: BTreeMap<String, Versions<ProfileSpecs>>,
    pub(super) namespaces: BTreeMap<String, Versions<NamespaceSpecs>>,
    /// By UID.
    pub(super) objects: BTreeMap<String, Versions<CollectedObject>>,
    pub(super) scopes: Versions<ScopeSpecs>,
    /// Whether everything may be listed.
    pub(super) sees_everything: Versions<bool>,
    /// When something was recorded.
    times: Vec<Instant>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            inventories: BTreeMap::new(),
            sinks: BTreeMap::new(),
            targets: BTreeMap::new(),
            profiles: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            objects: BTreeMap::new(),
            scopes: Versions::new(Some(ScopeSpecs::of(None))),
            sees_everything: Versions::new(Some(true)),
            times: Vec::new(),
        }
    }
}

/// The objects that exist now, with generations.
type CurrentVersions<T> = BTreeMap<String, (i64, T)>;

fn record_versions<T: PartialEq>(
    known: &mut BTreeMap<String, Versions<T>>,
    mut now: CurrentVersions<T>,
    record: u64,
) {
    for name in now.keys() {
        if !known.contains_key(name) {
            known.insert(name.clone(), Versions::new(None));
        }
    }
    for (name, versions) in known {
        let (generation, now) = now.remove(name).map_or((0, None), |(number, now)| (number, Some(now)));
        if versions.last() != Some(&now) {
            versions.push(now, record, generation);
        }
    }
}

impl History {
    /// When a record was made.
    pub(super) fn time(&self, record: u64) -> Instant {
        self.times[usize::try_from(record).unwrap() - 1]
    }

    /// Records new versions of everything that has changed.
    pub(super) fn record(&mut self, api: &ApiServer) {
        fn named<T>(api: &ApiServer, plural: &str, read: impl Fn(&StoredObject) -> T) -> CurrentVersions<T> {
            let objects = api.objects(plural);
            let existing = objects.iter().filter(|object| !object.is_being_deleted());
            let generation = |object: &StoredObject| object["metadata"]["generation"].as_i64().unwrap_or(0);
            existing.map(|object| (name(object).to_owned(), (generation(object), read(object)))).collect()
        }
        self.times.push(Instant::now());
        let record = self.times.len() as u64;
        record_versions(
            &mut self.inventories,
            named(api, "kollectinventories", |object| InventorySpecs::of(object)),
            record,
        );
        record_versions(
            &mut self.sinks,
            named(api, "kollectdatabasesinks", |object| SinkSpecs::of(object)),
            record,
        );
        record_versions(
            &mut self.targets,
            named(api, "kollecttargets", |object| specs::TargetSpecs::of(object)),
            record,
        );
        record_versions(
            &mut self.profiles,
            named(api, "kollectprofiles", |object| ProfileSpecs::of(object)),
            record,
        );
        record_versions(
            &mut self.namespaces,
            named(api, "namespaces", |object| NamespaceSpecs::of(object)),
            record,
        );
        let scope = Some(ScopeSpecs::now(api));
        if self.scopes.last() != Some(&scope) {
            self.scopes.push(scope, record, 0);
        }
        let sees_everything = Some(api.permits_everything());
        if self.sees_everything.last() != Some(&sees_everything) {
            self.sees_everything.push(sees_everything, record, 0);
        }
        let collected = |object: &StoredObject| {
            let metadata = &object["metadata"];
            let collected = CollectedObject {
                kind: text(&object["kind"]).to_owned(),
                namespace: text(&metadata["namespace"]).to_owned(),
                name: name(object).to_owned(),
                size: object["spec"]["size"].as_i64().unwrap_or(0),
            };
            (text(&metadata["uid"]).to_owned(), (0, collected))
        };
        let objects = COLLECTED_KINDS.into_iter().flat_map(|plural| api.objects(plural));
        record_versions(&mut self.objects, objects.map(|object| collected(&object)).collect(), record);
    }
}
