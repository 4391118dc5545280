//! Reads rows: snapshots, counts, and how much has been seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};
use tokio::{sync::watch, time::Instant};

use super::{
    Changes, Dirty, NullCause, NullCount, RedactionCount, Revision, RowStore, StoredKind, StoredRow,
    StoredTarget, TargetKind, Visibility, changes::ChangeReader, is_replaced, lock,
};

/// Reads rows.
#[derive(Clone)]
pub struct StoreReader(pub(super) Arc<RowStore>);

/// A running list of a kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingProgress {
    /// The kind has never been listed completely before.
    pub is_first: bool,
    /// When it began.
    pub since: Instant,
}

/// How much has been seen of each kind of each target.
pub type Visibilities = BTreeMap<TargetKind, Visibility>;

/// The rows of some targets at one time.
#[derive(Debug)]
pub struct Snapshot {
    /// The rows, in a stable order.
    pub rows: BTreeMap<RowKey, Arc<Row>>,
    /// Every change of the targets up to this revision is included.
    pub reached: Revision,
    visibilities: Visibilities,
    /// Targets that no task collects now: an absent row of theirs proves nothing.
    frozen: BTreeSet<TargetId>,
    /// Objects without a row of which it is not known whether they are selected.
    undecided: BTreeSet<RowKey>,
    outside: Visibility,
}

impl Snapshot {
    /// How much of each kind it has seen.
    pub fn visibilities(&self) -> &Visibilities {
        &self.visibilities
    }

    /// Whether a target is frozen: it may have rows that are not here.
    pub(crate) fn has_frozen(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// Number of objects without a row of which it is not known whether they are selected.
    pub(crate) fn undecided(&self) -> usize {
        self.undecided.len()
    }

    /// How much has been seen of targets and kinds that are not in the snapshot.
    pub fn outside(&self) -> &Visibility {
        &self.outside
    }

    /// Whether a row is known to be gone. It is in a sink, and not in the snapshot. A row of a kind that its target
    /// no longer selects is gone when the kinds that the target selects now have been listed.
    pub fn knows_gone(&self, key: &RowKey) -> bool {
        if self.rows.contains_key(key) || self.frozen.contains(&key.target) || self.undecided.contains(key) {
            return false;
        }
        match self.visibilities.get(&(key.target.clone(), key.group.clone(), key.kind.clone())) {
            Some(visibility) => visibility.covers(key),
            None => self.outside.covers(key) && is_replaced(key, self.visibilities_of(&key.target)),
        }
    }

    /// Whether a row is known to be gone because of specs: its target is not in the snapshot, or no longer selects the
    /// kind. Otherwise the object may be gone, or the target may select fewer objects.
    pub fn is_gone_by_spec(&self, key: &RowKey) -> bool {
        let target_kind = (key.target.clone(), key.group.clone(), key.kind.clone());
        self.knows_gone(key) && !self.visibilities.contains_key(&target_kind)
    }

    /// The visibility of each kind that the target selects; none if the target is not in the snapshot.
    fn visibilities_of(&self, target: &TargetId) -> impl Iterator<Item = &Visibility> {
        let visibilities = self.visibilities.range((target.clone(), "".into(), "".into())..);
        visibilities.take_while(move |((id, _, _), _)| id == target).map(|(_, visibility)| visibility)
    }
}

impl StoreReader {
    /// The rows of the targets; `None` while one of their kinds is still pending. A target that no task collects is
    /// frozen. `outside` is how much has been seen of all other targets and kinds.
    pub fn snapshot(&self, targets: &[TargetId], outside: Visibility) -> Option<Snapshot> {
        let snapshot = self.snapshot_of_seen(targets, outside);
        (!snapshot.visibilities.values().any(|visibility| *visibility == Visibility::Pending))
            .then_some(snapshot)
    }

    /// The rows of all kinds that have been seen. A pending kind has no rows here, and none of its rows counts
    /// as gone. Rows of a kind that replaces another one are included where the kind has been listed.
    pub fn snapshot_of_seen(&self, targets: &[TargetId], outside: Visibility) -> Snapshot {
        let mut snapshot = Snapshot {
            rows: BTreeMap::new(),
            reached: Revision::NOTHING,
            visibilities: BTreeMap::new(),
            frozen: BTreeSet::new(),
            undecided: BTreeSet::new(),
            outside,
        };
        let last = self.0.last_revision();
        for id in targets {
            let Some(target) = self.0.get(id) else {
                snapshot.frozen.insert(id.clone());
                continue;
            };
            let target = lock(&target);
            snapshot.reached = snapshot.reached.and(target.reached());
            if target.frozen || target.kinds.values().all(|kind| kind.deselected) {
                snapshot.frozen.insert(id.clone());
            }
            for ((group, name), kind) in &target.kinds {
                if !kind.deselected {
                    snapshot
                        .visibilities
                        .insert((id.clone(), group.clone(), name.clone()), kind.visibility.clone());
                }
                let without_row = kind.undecided.iter().filter(|(uid, _)| !kind.rows.contains_key(*uid));
                snapshot.undecided.extend(without_row.map(|(_, object)| object.key.clone()));
                snapshot.rows.extend(kind.visible_rows());
            }
        }
        // A target that was read first may have changed meanwhile, and that change is missing here. So the result is at
        // most `last`.
        snapshot.reached = snapshot.reached.up_to(last);
        snapshot
    }

    /// Notified when the visibility of a kind changes.
    pub fn visibility_changes(&self) -> watch::Receiver<()> {
        self.0.visibilities.subscribe()
    }

    /// How much has been seen of each kind of the targets.
    pub fn visibilities(&self, targets: &[TargetId]) -> Visibilities {
        let mut visibilities = Visibilities::new();
        for id in targets {
            let Some(target) = self.0.get(id) else { continue };
            for ((group, name), kind) in lock(&target).kinds.iter().filter(|(_, kind)| !kind.deselected) {
                visibilities.insert((id.clone(), group.clone(), name.clone()), kind.visibility.clone());
            }
        }
        visibilities
    }

    /// Number of the last change of any row.
    pub fn last_revision(&self) -> u64 {
        self.0.last_revision()
    }

    /// Number of the last change of these targets' rows.
    pub fn revision(&self, targets: &[TargetId]) -> u64 {
        let targets = targets.iter().filter_map(|id| self.0.get(id));
        targets.map(|target| lock(&target).revision).max().unwrap_or(0)
    }

    /// The revision of a target when a definition had read everything that it selects: a sink at this revision holds
    /// the rows of that definition, and no others. `None`: it has not read everything yet.
    pub fn completed(&self, target: &TargetId, definition: u32) -> Option<u64> {
        let target = self.0.get(target)?;
        let target = lock(&target);
        let mut kinds = target.kinds.values().filter(|kind| !kind.deselected).peekable();
        kinds.peek().filter(|_| !target.frozen)?;
        let own = |kind: &StoredKind| kind.completed.filter(|(by, _)| *by == definition).map(|(_, at)| at);
        kinds.try_fold(0, |newest, kind| Some(own(kind)?.max(newest)))
    }

    /// Whether a definition of a target has read all that it can, and no list of it is running.
    pub fn has_read(&self, target: &TargetId, definition: u32) -> bool {
        let Some(target) = self.0.get(target) else { return false };
        let target = lock(&target);
        let has_read =
            |kind: &StoredKind| kind.seen_by == Some(definition) && kind.visibility != Visibility::Pending;
        !target.frozen && target.kinds.values().filter(|kind| !kind.deselected).all(has_read)
    }

    /// A running list of the target, if there is one; readers see its rows when it has ended.
    pub fn listing(&self, target: &TargetId) -> Option<ListingProgress> {
        let target = self.0.get(target)?;
        let target = lock(&target);
        let kinds = target.kinds.values().filter(|kind| !kind.deselected);
        let running = kinds.filter_map(|kind| Some((kind.completed.is_none(), kind.listing?.since)));
        running
            .map(|(is_first, since)| ListingProgress { is_first, since })
            .max_by_key(|listing| listing.is_first)
    }

    /// The targets whose rows, failures or visibilities have changed since the last call; the first call returns all
    /// targets.
    pub fn take_changed_targets(&self) -> BTreeSet<TargetId> {
        let changed = std::mem::take(&mut *lock(&self.0.changed));
        for target in changed.iter().filter_map(|id| self.0.get(id)) {
            lock(&target).is_in_changed = false;
        }
        changed
    }

    /// Notified when [`Self::take_changed_targets`] would return another target.
    pub fn target_changes(&self) -> watch::Receiver<()> {
        self.0.changed_sender.subscribe()
    }

    /// Number of objects of a target of which it is not known whether they are selected, and the names of some of them.
    pub fn undecided(&self, target: &TargetId) -> (usize, Vec<String>) {
        const NAMED: usize = 2;
        let Some(target) = self.0.get(target) else { return (0, Vec::new()) };
        let target = lock(&target);
        let objects = target.kinds.values().flat_map(|kind| kind.undecided.values());
        let names = objects.take(NAMED).map(|object| match &*object.key.namespace {
            "" => object.name.to_string(),
            namespace => format!("{namespace}/{}", object.name),
        });
        (target.kinds.values().map(|kind| kind.undecided.len()).sum(), names.collect())
    }

    /// Number of objects of a target that have no row because an attribute failed, and the reason of one of them.
    pub fn failures(&self, target: &TargetId) -> (usize, Option<String>) {
        let Some(target) = self.0.get(target) else { return (0, None) };
        let target = lock(&target);
        let mut failures = target.kinds.values().flat_map(|kind| kind.failures.values());
        let first = failures.next().map(|failure| failure.why.clone());
        (target.kinds.values().map(|kind| kind.failures.len()).sum(), first)
    }

    /// How many rows of a target have an attribute that is not of the declared type.
    pub fn mismatched(&self, target: &TargetId) -> usize {
        let Some(target) = self.0.get(target) else { return 0 };
        lock(&target).kinds.values().map(|kind| kind.notes.mismatched()).sum()
    }

    /// Number of rows of a target in which an attribute has no value, by name and cause.
    pub fn null_rows(&self, target: &TargetId) -> BTreeMap<(Arc<str>, NullCause), usize> {
        let mut sums = BTreeMap::new();
        let Some(target) = self.0.get(target) else { return sums };
        for kind in lock(&target).kinds.values() {
            for (name, cause, tally) in kind.notes.nulls() {
                *sums.entry((name.clone(), cause)).or_default() += tally.rows;
            }
        }
        sums
    }

    /// The same with an example of each. To find one, all rows may have to be searched.
    pub fn nulls(&self, target: &TargetId) -> Vec<NullCount> {
        let Some(target) = self.0.get(target) else { return Vec::new() };
        let target = lock(&target);
        let mut counts: BTreeMap<(Arc<str>, NullCause), NullCount> = BTreeMap::new();
        for kind in target.kinds.values() {
            for (name, cause, tally) in kind.notes.nulls() {
                let null_of = |held: &StoredRow| {
                    let nulls = held.notes.iter().flat_map(|notes| &notes.nulls);
                    nulls.clone().find(|null| null.name == *name && null.cause == cause).cloned()
                };
                let known =
                    tally.example.as_ref().and_then(|(uid, found)| Some((kind.rows.get(uid)?, &**found)));
                let example = known.or_else(|| {
                    kind.rows.values().find(|held| null_of(held).is_some()).map(|held| (held, ""))
                });
                let count = counts.entry((name.clone(), cause)).or_insert_with(|| NullCount {
                    attribute: name.clone(),
                    cause,
                    rows: 0,
                    object: example.map(|(held, _)| held.row.path()).unwrap_or_default(),
                    found: example.map(|(_, found)| found.to_owned()).unwrap_or_default(),
                    types: example.and_then(|(held, _)| null_of(held)?.types),
                });
                count.rows += tally.rows;
            }
        }
        counts.into_values().collect()
    }

    /// The attributes of a target that have redacted values. To find an example, all rows may have to be searched.
    pub fn redactions(&self, target: &TargetId) -> Vec<RedactionCount> {
        let Some(target) = self.0.get(target) else { return Vec::new() };
        let target = lock(&target);
        let mut counts: BTreeMap<Arc<str>, RedactionCount> = BTreeMap::new();
        for kind in target.kinds.values() {
            for (name, tally) in kind.notes.redactions() {
                let is_example = |held: &&StoredRow| {
                    held.notes
                        .iter()
                        .flat_map(|notes| &notes.redactions)
                        .any(|redacted| redacted.name == *name)
                };
                let known = tally.example.as_ref().and_then(|(uid, _)| kind.rows.get(uid));
                let example = known.or_else(|| kind.rows.values().find(is_example));
                let count = counts.entry(name.clone()).or_insert_with(|| RedactionCount {
                    attribute: name.clone(),
                    rows: 0,
                    values: 0,
                    object: example.map(|held| held.row.path()).unwrap_or_default(),
                });
                count.rows += tally.rows;
                count.values += tally.values;
            }
        }
        counts.into_values().collect()
    }

    /// Number of redacted values of a target, by attribute.
    pub fn redacted_values(&self, target: &TargetId) -> BTreeMap<Arc<str>, usize> {
        let mut sums = BTreeMap::new();
        let Some(target) = self.0.get(target) else { return sums };
        for kind in lock(&target).kinds.values() {
            for (name, tally) in kind.notes.redactions() {
                *sums.entry(name.clone()).or_default() += tally.values;
            }
        }
        sums
    }

    /// The UIDs of the objects of a target that have no row because an attribute failed.
    #[cfg(test)]
    pub(crate) fn failed_objects(&self, target: &TargetId) -> BTreeSet<Arc<str>> {
        let Some(target) = self.0.get(target) else { return BTreeSet::new() };
        lock(&target).kinds.values().flat_map(|kind| kind.failures.keys().cloned()).collect()
    }

    /// The targets that the store knows.
    #[cfg(test)]
    pub(crate) fn known_targets(&self) -> BTreeSet<TargetId> {
        self.0.targets.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
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
    pub async fn wait_until_seen(&self) {
        let pending = |target: &Arc<Mutex<StoredTarget>>| {
            lock(target).kinds.values().any(|kind| !kind.deselected && kind.visibility == Visibility::Pending)
        };
        let all_seen = || {
            let targets = self.0.targets.read().unwrap_or_else(PoisonError::into_inner);
            let targets: Vec<_> = targets.values().cloned().collect();
            !targets.iter().any(pending)
        };
        let mut visibilities = self.0.visibilities.subscribe();
        while !all_seen() {
            // The sender lives as long as this reader.
            drop(visibilities.changed().await);
        }
    }

    /// Subscribes to changes in the rows of the targets, from now on.
    pub fn changes(&self, targets: &[TargetId]) -> Changes {
        let dirty = Arc::new(Dirty::default());
        let mut held = BTreeMap::new();
        for id in targets {
            if held.contains_key(id) {
                continue;
            }
            let target = self.0.with(id, |entry, target| {
                target.readers.retain(|reader| reader.strong_count() > 0);
                target.readers.push(Arc::downgrade(&dirty));
                target.users += 1;
                entry.clone()
            });
            held.insert(id.clone(), target);
        }
        Changes(Arc::new(ChangeReader { shared: self.0.clone(), dirty, targets: held }))
    }
}
