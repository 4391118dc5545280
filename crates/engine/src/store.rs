//! The rows of all targets: one writer, many readers.
//!
//! Only rows are kept, never objects. A snapshot exists only when every kind of its targets has been
//! seen or is known to be blind, and it says which of its absences are knowledge.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock},
};

use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};

/// How much of a kind has been seen for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing yet.
    Pending,
    /// Everything: what is absent does not exist.
    Everything,
    /// Everything except in these namespaces.
    AllBut(BTreeSet<String>),
    /// Everything in this namespace, and cluster-scoped objects not at all.
    Namespace(String),
    /// Some objects; absence means nothing.
    Partial,
}

impl Sight {
    /// Whether an absent row with this key is known to be gone.
    fn covers(&self, key: &RowKey) -> bool {
        match self {
            Self::Everything => true,
            Self::AllBut(names) => !names.contains(&*key.namespace),
            Self::Namespace(name) => **name == *key.namespace,
            Self::Pending | Self::Partial => false,
        }
    }
}

#[derive(Default)]
struct Targets(BTreeMap<TargetId, Target>);

#[derive(Default)]
struct Target {
    rows: BTreeMap<Arc<str>, Arc<Row>>,
    sights: BTreeMap<(String, String), Sight>,
}

/// Writes rows. There is one.
pub struct StoreWriter(Arc<RwLock<Targets>>);

/// Reads rows.
#[derive(Clone)]
pub struct StoreReader(Arc<RwLock<Targets>>);

/// An empty store.
pub fn store() -> (StoreWriter, StoreReader) {
    let targets = Arc::new(RwLock::new(Targets::default()));
    (StoreWriter(targets.clone()), StoreReader(targets))
}

impl StoreWriter {
    fn with<T>(&mut self, target: &TargetId, change: impl FnOnce(&mut Target) -> T) -> T {
        // A panic while holding the lock cannot leave a half-made row behind.
        let mut targets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(targets.0.entry(target.clone()).or_default())
    }

    /// Announces a kind of a target: its snapshots wait for it from now on.
    pub fn expect(&mut self, target: &TargetId, gvk: &Gvk) {
        self.set_sight(target, gvk, Sight::Pending);
    }

    /// Records how much of a kind has been seen.
    pub fn set_sight(&mut self, target: &TargetId, gvk: &Gvk, sight: Sight) {
        let kind = (gvk.group.clone(), gvk.kind.clone());
        self.with(target, |t| t.sights.insert(kind, sight));
    }

    /// Stores a row. An equal row changes nothing.
    pub fn upsert(&mut self, row: Row) {
        let target = row.key.target.clone();
        self.with(&target, |t| {
            let known = t.rows.get(&row.key.uid).map(|known| known.digest);
            if known != Some(row.digest) {
                t.rows.insert(row.key.uid.clone(), Arc::new(row));
            }
        });
    }

    /// Drops the row of an object, if there is one.
    pub fn remove(&mut self, target: &TargetId, uid: &str) {
        self.with(target, |t| t.rows.remove(uid));
    }
}

/// The rows of some targets at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// The rows, in a stable order.
    pub rows: BTreeMap<RowKey, Arc<Row>>,
    sights: BTreeMap<(TargetId, String, String), Sight>,
    /// Targets of which nothing is known: nobody collects them now.
    frozen: BTreeSet<TargetId>,
    rest: Sight,
}

impl Snapshot {
    /// Whether a row that a sink holds and the snapshot does not is known to be gone.
    pub fn knows_gone(&self, key: &RowKey) -> bool {
        let place = (key.target.clone(), key.group.to_string(), key.kind.to_string());
        !self.rows.contains_key(key)
            && !self.frozen.contains(&key.target)
            && self.sights.get(&place).unwrap_or(&self.rest).covers(key)
    }
}

impl StoreReader {
    /// The rows of the targets, or nothing while one of their kinds is still pending. A target that
    /// nobody collects is frozen. `rest` says what is known about targets and kinds that are not among
    /// them: whether the run looked everywhere.
    pub fn snapshot(&self, targets: &[TargetId], rest: Sight) -> Option<Snapshot> {
        let store = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot =
            Snapshot { rows: BTreeMap::new(), sights: BTreeMap::new(), frozen: BTreeSet::new(), rest };
        for id in targets {
            let Some(target) = store.0.get(id) else {
                snapshot.frozen.insert(id.clone());
                continue;
            };
            for ((group, kind), sight) in &target.sights {
                if *sight == Sight::Pending {
                    return None;
                }
                snapshot.sights.insert((id.clone(), group.clone(), kind.clone()), sight.clone());
            }
            snapshot.rows.extend(target.rows.values().map(|row| (row.key.clone(), row.clone())));
        }
        Some(snapshot)
    }
}
