//! The rows of all targets: written by the tasks that watch, read by everybody else.
//!
//! Only rows are kept, never objects. Each row is written by one task, that of its kind. A snapshot
//! exists only when every kind of its targets has been seen or is known to be blind, and it says
//! which of its absences are knowledge.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
};

use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};
use tokio::sync::{Notify, watch};

/// How much of a kind has been seen for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing yet.
    Pending,
    /// Everything: what is absent does not exist.
    Everything,
    /// Everything except in these namespaces.
    AllBut(BTreeSet<Arc<str>>),
    /// Everything in these namespaces, and cluster-scoped objects not at all.
    Within(BTreeSet<Arc<str>>),
    /// Some objects; absence means nothing.
    Partial,
}

impl Sight {
    /// Whether an absent row with this key is known to be gone.
    pub(crate) fn covers(&self, key: &RowKey) -> bool {
        match self {
            Self::Everything => true,
            Self::AllBut(names) => !names.contains(&key.namespace),
            Self::Within(names) => names.contains(&key.namespace),
            Self::Pending | Self::Partial => false,
        }
    }
}

/// What a row was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Resource version of the object.
    pub version: u64,
    /// Number of the target's definition.
    pub definition: u32,
}

struct Held {
    row: Arc<Row>,
    origin: Origin,
}

struct Kind {
    /// Tells it from one of the same name that was removed before.
    number: u64,
    rows: BTreeMap<Arc<str>, Held>,
    /// `None`: the target has left the kind, whose rows leave when all others have been seen.
    sight: Option<Sight>,
}

type KindName = (Arc<str>, Arc<str>);

#[derive(Default)]
struct Target {
    kinds: BTreeMap<KindName, Kind>,
    /// Nobody collects the target, and its rows stay.
    frozen: bool,
    /// Number of the last change of a row.
    revision: u64,
    /// Sum of the digests of all rows.
    digest: u128,
    /// Objects that have no row because they cannot be read, by kind and UID, and why.
    failures: BTreeMap<(KindName, Arc<str>), String>,
    readers: Vec<Weak<Dirty>>,
}

#[derive(Default)]
struct Shared {
    targets: RwLock<BTreeMap<TargetId, Arc<Mutex<Target>>>>,
    /// Counts changes of rows.
    revision: Mutex<u64>,
    /// Changes whenever a sight does.
    sights: watch::Sender<()>,
}

// A panic while holding a lock cannot leave a half-made row behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn get(&self, id: &TargetId) -> Option<Arc<Mutex<Target>>> {
        self.targets.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn get_or_create(&self, id: &TargetId) -> Arc<Mutex<Target>> {
        if let Some(target) = self.get(id) {
            return target;
        }
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        targets.entry(id.clone()).or_default().clone()
    }

    fn next_revision(&self) -> u64 {
        let mut revision = lock(&self.revision);
        *revision += 1;
        *revision
    }
}

/// Writes rows.
#[derive(Clone)]
pub struct StoreWriter(Arc<Shared>);

/// Reads rows.
#[derive(Clone)]
pub struct StoreReader(Arc<Shared>);

/// An empty store.
pub fn store() -> (StoreWriter, StoreReader) {
    let shared = Arc::new(Shared::default());
    (StoreWriter(shared.clone()), StoreReader(shared))
}

impl StoreWriter {
    /// The rows of one kind of one target. Its snapshots wait for the kind from now on, unless it has
    /// been seen before.
    pub fn rows(&self, target: &TargetId, gvk: &Gvk) -> KindRows {
        let kind: KindName = (gvk.group.as_str().into(), gvk.kind.as_str().into());
        let shared = self.0.clone();
        let target = shared.get_or_create(target);
        let mut locked = lock(&target);
        if std::mem::take(&mut locked.frozen) {
            locked.kinds.values_mut().for_each(|kind| kind.sight = Some(Sight::Pending));
        }
        let own = locked.kinds.entry(kind.clone()).or_insert_with(|| Kind {
            number: shared.next_revision(),
            rows: BTreeMap::new(),
            sight: None,
        });
        own.sight.get_or_insert(Sight::Pending);
        let number = own.number;
        drop(locked);
        shared.sights.send_replace(());
        KindRows { shared, target, kind, number }
    }

    /// Nobody collects the target from now on; its rows stay as they are.
    pub fn freeze(&self, id: &TargetId) {
        let target = self.0.get_or_create(id);
        let mut target = lock(&target);
        target.frozen = true;
        target.kinds.values_mut().for_each(|kind| kind.sight = Some(Sight::Partial));
        self.0.sights.send_replace(());
    }

    /// The target wants no kinds but these.
    pub fn keep_kinds(&self, id: &TargetId, kinds: &BTreeSet<&Gvk>) {
        let target = self.0.get_or_create(id);
        let mut target = lock(&target);
        for ((group, name), kind) in &mut target.kinds {
            if !kinds.iter().any(|gvk| (&*gvk.group, &*gvk.kind) == (&**group, &**name)) {
                kind.sight = None;
            }
        }
        target.sweep_left_kinds(&self.0);
        self.0.sights.send_replace(());
    }

    /// Everything that the target owned is removed.
    pub fn remove_target(&self, id: &TargetId) {
        let Some(target) = self.0.get(id) else { return };
        let mut target = lock(&target);
        target.frozen = false;
        target.failures.clear();
        let kinds = std::mem::take(&mut target.kinds);
        for held in kinds.into_values().flat_map(|kind| kind.rows.into_values()) {
            target.changed(&self.0, &held.row.key, Some(&held.row), None);
        }
        self.0.sights.send_replace(());
    }
}

impl Target {
    /// Rows of a kind that is being listed wake nobody: they wait until it has been seen.
    fn changed(
        &mut self,
        shared: &Shared,
        key: &RowKey,
        before: Option<&Arc<Row>>,
        after: Option<&Arc<Row>>,
    ) {
        let place = (key.target.clone(), key.group.clone(), key.kind.clone());
        let pending = self.is_pending(&place);
        self.revision = shared.next_revision();
        let digest = |row: Option<&Arc<Row>>| row.map_or(0, |row| row.digest.0);
        self.digest = self.digest.wrapping_sub(digest(before)).wrapping_add(digest(after));
        self.readers.retain(|reader| {
            let Some(reader) = reader.upgrade() else { return false };
            let mut rows = lock(&reader.rows);
            let rows = rows.entry(place.clone()).or_default();
            rows.entry(key.clone()).or_insert_with(|| before.cloned());
            if !pending {
                reader.wake.notify_one();
            }
            true
        });
    }

    fn is_pending(&self, (_, group, kind): &Place) -> bool {
        let kind = self.kinds.get(&(group.clone(), kind.clone()));
        kind.is_some_and(|kind| kind.sight == Some(Sight::Pending))
    }

    /// A kind that takes rows from this writer.
    fn open(&mut self, rows: &KindRows) -> Option<&mut Kind> {
        let own = |kind: &&mut Kind| kind.number == rows.number && kind.sight.is_some();
        self.kinds.get_mut(&rows.kind).filter(|kind| !self.frozen && own(kind))
    }

    /// Kinds that the target has left go when everything else has been seen.
    fn sweep_left_kinds(&mut self, shared: &Shared) {
        if self.kinds.values().any(|kind| kind.sight == Some(Sight::Pending)) {
            return;
        }
        let left = |kind: &Kind| kind.sight.is_none();
        let names: Vec<KindName> =
            self.kinds.iter().filter(|(_, kind)| left(kind)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.failures.retain(|(kind, _), _| *kind != name);
            for held in self.kinds.remove(&name).into_iter().flat_map(|kind| kind.rows.into_values()) {
                self.changed(shared, &held.row.key, Some(&held.row), None);
            }
        }
    }
}

/// The rows of one kind of one target.
pub struct KindRows {
    shared: Arc<Shared>,
    target: Arc<Mutex<Target>>,
    kind: KindName,
    number: u64,
}

impl KindRows {
    /// What the row of an object was made from, if there is one.
    pub fn origin(&self, uid: &str) -> Option<Origin> {
        let target = lock(&self.target);
        Some(target.kinds.get(&self.kind)?.rows.get(uid)?.origin)
    }

    /// Stores a row, and says whether it differs from what was there. A target that is frozen or has
    /// left the kind takes no rows.
    pub fn upsert(&self, row: Row, origin: Origin) -> bool {
        let row = Arc::new(row);
        let mut target = lock(&self.target);
        target.failures.remove(&(self.kind.clone(), row.key.uid.clone()));
        let Some(kind) = target.open(self) else { return false };
        let before = match kind.rows.entry(row.key.uid.clone()) {
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                held.origin = origin;
                if held.row.digest == row.digest {
                    return false;
                }
                Some(std::mem::replace(&mut held.row, row.clone()))
            }
            Entry::Vacant(place) => {
                place.insert(Held { row: row.clone(), origin });
                None
            }
        };
        target.changed(&self.shared, &row.key, before.as_ref(), Some(&row));
        true
    }

    /// Drops the row of an object, and says whether there was one.
    pub fn remove(&self, uid: &str) -> bool {
        let mut target = lock(&self.target);
        target.failures.remove(&(self.kind.clone(), uid.into()));
        let held = target.open(self).and_then(|kind| kind.rows.remove(uid));
        if let Some(held) = &held {
            target.changed(&self.shared, &held.row.key, Some(&held.row), None);
        }
        held.is_some()
    }

    /// Drops the row of an object that cannot be read, and says whether there was one.
    pub fn fail(&self, uid: &Arc<str>, why: String) -> bool {
        let removed = self.remove(uid);
        let mut target = lock(&self.target);
        if target.open(self).is_some() {
            target.failures.insert((self.kind.clone(), uid.clone()), why);
            self.shared.sights.send_replace(());
        }
        removed
    }

    /// Forgets failures of objects that are gone.
    pub fn retain_failures(&self, exists: impl Fn(&str) -> bool) {
        let mut target = lock(&self.target);
        target.failures.retain(|(kind, uid), _| *kind != self.kind || exists(uid));
    }

    /// Drops the rows that satisfy the condition.
    pub fn remove_where(&self, condition: impl Fn(&Row, Origin) -> bool) {
        let mut target = lock(&self.target);
        let Some(kind) = target.open(self) else { return };
        let gone: Vec<Held> = kind
            .rows
            .extract_if(.., |_, held| condition(&held.row, held.origin))
            .map(|(_, held)| held)
            .collect();
        gone.iter().for_each(|held| target.changed(&self.shared, &held.row.key, Some(&held.row), None));
    }

    /// The rows of a namespace are made again when their objects are next seen.
    pub fn outdate(&self, namespace: &str) {
        let mut target = lock(&self.target);
        let rows = target.open(self).into_iter().flat_map(|kind| kind.rows.values_mut());
        rows.filter(|held| &*held.row.key.namespace == namespace).for_each(|held| held.origin.definition = 0);
    }

    /// The objects whose rows satisfy the condition.
    pub fn find(&self, condition: impl Fn(&Row, Origin) -> bool) -> Vec<Arc<str>> {
        let target = lock(&self.target);
        let rows = target.kinds.get(&self.kind).into_iter().flat_map(|kind| &kind.rows);
        rows.filter(|(_, held)| condition(&held.row, held.origin)).map(|(uid, _)| uid.clone()).collect()
    }

    /// Records how much of the kind has been seen.
    pub fn set_sight(&self, sight: Sight) {
        let mut target = lock(&self.target);
        let Some(kind) = target.open(self) else { return };
        if kind.sight.as_ref() != Some(&sight) {
            kind.sight = Some(sight);
            target.sweep_left_kinds(&self.shared);
            // Rows may have waited for this.
            target.readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.wake.notify_one());
            self.shared.sights.send_replace(());
        }
    }
}

/// Target, API group and kind.
type Place = (TargetId, Arc<str>, Arc<str>);

/// How much has been seen of each kind of each target.
pub type Sights = BTreeMap<Place, Sight>;

/// The rows of some targets at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// The rows, in a stable order.
    pub rows: BTreeMap<RowKey, Arc<Row>>,
    /// Number of the last change that it contains.
    pub revision: u64,
    sights: Sights,
    /// Targets of which nothing is known: nobody collects them now.
    frozen: BTreeSet<TargetId>,
    rest: Sight,
}

impl Snapshot {
    /// How much of each kind it has seen.
    pub fn sights(&self) -> &Sights {
        &self.sights
    }

    /// What is known about targets and kinds that are not among its own.
    pub fn rest(&self) -> &Sight {
        &self.rest
    }

    /// Whether a row that a sink holds and the snapshot does not is known to be gone.
    pub fn knows_gone(&self, key: &RowKey) -> bool {
        let place = (key.target.clone(), key.group.clone(), key.kind.clone());
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
        let snapshot = self.snapshot_of_seen(targets, rest);
        (!snapshot.sights.values().any(|sight| *sight == Sight::Pending)).then_some(snapshot)
    }

    /// The rows of all kinds that have been seen. Kinds that are still pending count as frozen: their
    /// rows join when all of them are there.
    pub fn snapshot_of_seen(&self, targets: &[TargetId], rest: Sight) -> Snapshot {
        let mut snapshot = Snapshot {
            rows: BTreeMap::new(),
            revision: 0,
            sights: BTreeMap::new(),
            frozen: BTreeSet::new(),
            rest,
        };
        for id in targets {
            let Some(target) = self.0.get(id) else {
                snapshot.frozen.insert(id.clone());
                continue;
            };
            let target = lock(&target);
            snapshot.revision = snapshot.revision.max(target.revision);
            if target.frozen || target.kinds.values().all(|kind| kind.sight.is_none()) {
                snapshot.frozen.insert(id.clone());
            }
            for ((group, name), kind) in &target.kinds {
                if let Some(sight) = &kind.sight {
                    snapshot.sights.insert((id.clone(), group.clone(), name.clone()), sight.clone());
                }
                if kind.sight != Some(Sight::Pending) {
                    let rows = kind.rows.values().map(|held| (held.row.key.clone(), held.row.clone()));
                    snapshot.rows.extend(rows);
                }
            }
        }
        snapshot
    }

    /// Changes whenever it changes how much of something has been seen.
    pub fn sight_changes(&self) -> watch::Receiver<()> {
        self.0.sights.subscribe()
    }

    /// How much has been seen of each kind of the targets.
    pub fn sights(&self, targets: &[TargetId]) -> Sights {
        let mut sights = Sights::new();
        for id in targets {
            let Some(target) = self.0.get(id) else { continue };
            for ((group, name), kind) in &lock(&target).kinds {
                if let Some(sight) = &kind.sight {
                    sights.insert((id.clone(), group.clone(), name.clone()), sight.clone());
                }
            }
        }
        sights
    }

    /// Number of the last change of these targets' rows.
    pub fn revision(&self, targets: &[TargetId]) -> u64 {
        let targets = targets.iter().filter_map(|id| self.0.get(id));
        targets.map(|target| lock(&target).revision).max().unwrap_or(0)
    }

    /// Sum of the digests of these targets' rows: the same for the same rows, in whatever order they came.
    pub fn digest(&self, targets: &[TargetId]) -> u128 {
        let targets = targets.iter().filter_map(|id| self.0.get(id));
        targets.fold(0, |sum, target| lock(&target).digest.wrapping_add(sum))
    }

    /// How many objects of a target cannot be read now, and why one of them cannot.
    pub fn failures(&self, target: &TargetId) -> (usize, Option<String>) {
        let Some(target) = self.0.get(target) else { return (0, None) };
        let target = lock(&target);
        (target.failures.len(), target.failures.values().next().cloned())
    }

    /// How many rows a target has.
    pub fn count(&self, target: &TargetId) -> usize {
        self.0.get(target).map_or(0, |target| lock(&target).kinds.values().map(|kind| kind.rows.len()).sum())
    }

    /// How many rows a target has of each kind that it has rows of.
    pub fn counts(&self, target: &TargetId) -> Vec<(Gvk, usize)> {
        let Some(target) = self.0.get(target) else { return Vec::new() };
        let target = lock(&target);
        let kinds = target.kinds.values();
        kinds.filter_map(|kind| Some((kind.rows.values().next()?.row.gvk(), kind.rows.len()))).collect()
    }

    /// How many rows there are.
    pub fn total(&self) -> usize {
        let targets = self.0.targets.read().unwrap_or_else(PoisonError::into_inner);
        let targets: Vec<_> = targets.values().cloned().collect();
        targets
            .iter()
            .map(|target| lock(target).kinds.values().map(|kind| kind.rows.len()).sum::<usize>())
            .sum()
    }

    /// The rows of a target.
    pub fn rows(&self, target: &TargetId) -> Vec<Arc<Row>> {
        let Some(target) = self.0.get(target) else { return Vec::new() };
        let target = lock(&target);
        let rows = target.kinds.values().flat_map(|kind| kind.rows.values());
        rows.map(|held| held.row.clone()).collect()
    }

    /// Returns when every kind of every target has been seen or is known to be blind.
    pub async fn settled(&self) {
        let pending = |target: &Arc<Mutex<Target>>| {
            lock(target).kinds.values().any(|kind| kind.sight == Some(Sight::Pending))
        };
        let all_seen = || {
            let targets = self.0.targets.read().unwrap_or_else(PoisonError::into_inner);
            let targets: Vec<_> = targets.values().cloned().collect();
            !targets.iter().any(pending)
        };
        let mut sights = self.0.sights.subscribe();
        while !all_seen() {
            // The sender lives as long as this reader.
            drop(sights.changed().await);
        }
    }

    /// From now on, what changes in the rows of the targets.
    pub fn changes(&self, targets: &[TargetId]) -> Changes {
        let dirty = Arc::new(Dirty::default());
        let mut held = BTreeMap::new();
        for id in targets {
            let target = self.0.get_or_create(id);
            let mut locked = lock(&target);
            locked.readers.retain(|reader| reader.strong_count() > 0);
            locked.readers.push(Arc::downgrade(&dirty));
            drop(locked);
            held.insert(id.clone(), target);
        }
        Changes { dirty, targets: held }
    }
}

/// Rows with what they were when a reader last asked; `None`: they did not exist.
type Before = BTreeMap<RowKey, Option<Arc<Row>>>;

/// The rows that have changed since a reader last asked.
#[derive(Default)]
struct Dirty {
    rows: Mutex<BTreeMap<Place, Before>>,
    wake: Notify,
}

/// One row, then and now.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which row.
    pub key: RowKey,
    /// What the reader knew; `None`: there was no row.
    pub before: Option<Arc<Row>>,
    /// What it is now; `None`: it is gone.
    pub after: Option<Arc<Row>>,
}

/// What changes in the rows of some targets. Changes of one row are told as one, nothing is lost
/// while the reader is busy, and the first change is told at once.
pub struct Changes {
    dirty: Arc<Dirty>,
    targets: BTreeMap<TargetId, Arc<Mutex<Target>>>,
}

impl Changes {
    /// Everything that has changed since the last call. Rows of a kind that has not been seen yet wait
    /// until it has.
    pub fn take(&mut self) -> Vec<Change> {
        let places = self.seen();
        let mut dirty = lock(&self.dirty.rows);
        let rows: Vec<_> = places.iter().filter_map(|place| dirty.remove(place)).flatten().collect();
        drop(dirty);
        rows.into_iter().filter_map(|(key, before)| self.change(key, before)).collect()
    }

    /// Whether [`Self::take`] would find nothing.
    pub fn is_empty(&self) -> bool {
        self.seen().is_empty()
    }

    /// The reader knows this snapshot: what it contains is no change.
    pub fn rebase(&mut self, snapshot: &Snapshot) {
        for (key, before) in lock(&self.dirty.rows).values_mut().flatten() {
            *before = snapshot.rows.get(key).cloned();
        }
    }

    /// Returns when something may have changed.
    pub async fn ready(&self) {
        self.dirty.wake.notified().await;
    }

    /// Where rows have changed that need not wait. Nobody locks a target while holding the changes of a
    /// reader: writers do it the other way round.
    fn seen(&self) -> Vec<Place> {
        let places: Vec<Place> = lock(&self.dirty.rows).keys().cloned().collect();
        let pending = |place: &Place| self.targets.get(&place.0).is_some_and(|t| lock(t).is_pending(place));
        places.into_iter().filter(|place| !pending(place)).collect()
    }

    /// Everything that has changed since the last call; waits until there is something.
    pub async fn next(&mut self) -> Vec<Change> {
        loop {
            let changes = self.take();
            if !changes.is_empty() {
                return changes;
            }
            self.ready().await;
        }
    }

    fn change(&self, key: RowKey, before: Option<Arc<Row>>) -> Option<Change> {
        let after = self.targets.get(&key.target).and_then(|target| {
            let target = lock(target);
            let kind = target.kinds.get(&(key.group.clone(), key.kind.clone()))?;
            kind.rows.get(&key.uid).map(|held| held.row.clone())
        });
        let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
        (digest(&before) != digest(&after)).then_some(Change { key, before, after })
    }
}
