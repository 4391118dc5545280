//! What has changed in the rows of some targets since a reader last asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use kollect_model::row::{Row, RowKey, TargetId};
use tokio::{sync::Notify, time::Instant};

use super::{KindName, Revision, RowStore, ShownRows, Snapshot, StoredKind, StoredTarget, lock};

/// Rows that have changed since a reader last asked.
pub(super) type TouchedRows = BTreeMap<RowKey, TouchedRow>;

/// A row that has changed since a reader last asked.
pub(super) struct TouchedRow {
    /// The row at that time; `None`: it did not exist.
    pub(super) before: Option<Arc<Row>>,
    /// Why it was removed; `None`: it exists.
    pub(super) removal: Option<RemovalCause>,
    /// The store never had the row, but a sink may hold it.
    pub(super) may_be_held: bool,
}

/// Why a row was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// The object is gone, is no longer selected by the same definition of the target, or cannot be read.
    ObjectGone,
    /// The target was removed or no longer selects the kind, or an earlier definition of the target made the row.
    SpecChanged,
}

/// What has changed since a reader last asked.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) rows: Mutex<DirtyRows>,
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct DirtyRows {
    pub(super) targets: BTreeMap<TargetId, BTreeMap<KindName, TouchedRows>>,
    /// When the oldest change that the reader may see was made.
    pub(super) since: Option<Instant>,
}

/// One row before and after a change. Neither: the store never had the row, a sink may hold it, and it is gone.
#[derive(Clone, Debug)]
pub struct StoreChange {
    /// Which row.
    pub key: RowKey,
    /// What the reader knew; `None`: there was no row.
    pub before: Option<Arc<Row>>,
    /// What it is now; `None`: it is gone.
    pub after: Option<Arc<Row>>,
    /// If it is gone: why.
    pub removal: Option<RemovalCause>,
}

/// What has changed since a reader last asked.
pub struct TakenChanges {
    /// The changes.
    pub changes: Vec<StoreChange>,
    /// Every change of the targets up to this revision has been taken, now or before.
    pub reached: Revision,
    /// When the oldest of them was made; `None`: there was none.
    pub since: Option<Instant>,
}

/// A subscription to changes in the rows of some targets. Several changes of one row are merged, no change is lost
/// while the reader is busy, and the first change wakes the reader at once.
pub struct Changes(pub(super) Arc<ChangeReader>);

pub(super) struct ChangeReader {
    pub(super) shared: Arc<RowStore>,
    pub(super) dirty: Arc<Dirty>,
    pub(super) targets: BTreeMap<TargetId, Arc<Mutex<StoredTarget>>>,
}

impl Drop for ChangeReader {
    fn drop(&mut self) {
        self.targets.iter().for_each(|(id, target)| self.shared.release(id, target));
    }
}

/// Counts changes that the reader has not taken yet, for as long as its [`Changes`] exists.
#[derive(Clone, Default)]
pub struct WaitingChanges(Weak<ChangeReader>);

impl WaitingChanges {
    /// Number of waiting rows, and since when the oldest waits; `None`: no row waits.
    pub fn count(&self) -> Option<(usize, Instant)> {
        let reader = self.0.upgrade()?;
        let since = lock(&reader.dirty.rows).since;
        let mut count = 0;
        reader.for_each_target(|target, dirty| {
            for (name, rows) in dirty.iter().flat_map(|dirty| dirty.iter()) {
                count += match target.shown_rows(name) {
                    ShownRows::All => rows.len(),
                    shown => rows.keys().filter(|key| shown.contains(key)).count(),
                };
            }
        });
        (count > 0).then(|| (count, since.unwrap_or_else(Instant::now)))
    }
}

impl Changes {
    /// All changes since the last call. Rows of a kind that has not been seen yet wait until it has been seen.
    pub fn take(&mut self) -> Vec<StoreChange> {
        self.take_all().changes
    }

    /// Like [`Self::take`], with the revision that has been reached.
    pub fn take_all(&mut self) -> TakenChanges {
        self.take_beside(|_| {})
    }

    /// The same, with all rows of the targets that can be seen, as they are when the changes are taken.
    pub fn take_with_rows(&mut self) -> (TakenChanges, BTreeMap<RowKey, Arc<Row>>) {
        let mut all = BTreeMap::new();
        let taken = self.take_beside(|target| {
            all.extend(target.kinds.values().flat_map(StoredKind::visible_rows));
        });
        (taken, all)
    }

    /// Takes the changes; `visit` sees each target while it is locked.
    fn take_beside(&mut self, mut visit: impl FnMut(&StoredTarget)) -> TakenChanges {
        let mut changes = Vec::new();
        let since = lock(&self.0.dirty.rows).since.take();
        // A change gets its number and is recorded while its target is locked. A change that has a number now is
        // therefore recorded when its target can be locked below.
        let last = self.0.shared.last_revision();
        let reached = self.0.for_each_target(|target, dirty| {
            visit(target);
            let Some(dirty) = dirty else { return };
            dirty.retain(|name, rows| {
                let shown = target.shown_rows(name);
                let taken = match shown {
                    ShownRows::All => std::mem::take(rows),
                    ShownRows::CoveredBy(_) => rows.extract_if(.., |key, _| shown.contains(key)).collect(),
                    ShownRows::None => return true,
                };
                changes.reserve(taken.len());
                changes.extend(taken.into_iter().filter_map(|(key, touched)| change(target, key, touched)));
                !rows.is_empty()
            });
        });
        let mut dirty = lock(&self.0.dirty.rows);
        if dirty.targets.is_empty() {
            dirty.since = None;
        }
        TakenChanges { changes, reached: reached.up_to(last), since }
    }

    /// A handle that counts the changes not taken yet.
    pub fn waiting(&self) -> WaitingChanges {
        WaitingChanges(Arc::downgrade(&self.0))
    }

    /// Whether [`Self::take`] would return no changes.
    pub fn is_empty(&self) -> bool {
        lock(&self.0.dirty.rows).targets.is_empty() || self.reached_if_empty().is_some()
    }

    /// The revision that [`Self::take`] would reach; `None`: it would return changes.
    pub fn reached_if_empty(&self) -> Option<Revision> {
        let last = self.0.shared.last_revision();
        let mut empty = true;
        let reached = self.0.for_each_target(|target, dirty| {
            empty &= !dirty.iter().flat_map(|dirty| dirty.iter()).any(|(name, rows)| {
                match target.shown_rows(name) {
                    ShownRows::None => false,
                    shown => rows.keys().any(|key| shown.contains(key)),
                }
            });
        });
        empty.then_some(reached.up_to(last))
    }

    /// The reader has this snapshot: waiting changes are compared with it instead of with earlier rows.
    pub fn rebase(&mut self, snapshot: &Snapshot) {
        let mut dirty = lock(&self.0.dirty.rows);
        for (key, row) in dirty.targets.values_mut().flat_map(BTreeMap::values_mut).flatten() {
            row.before = snapshot.rows.get(key).cloned();
        }
    }

    /// Returns when something may have changed: rows, or how much has been seen.
    pub async fn ready(&self) {
        self.0.dirty.wake.notified().await;
    }

    /// All changes since the last call; waits until there is at least one.
    pub async fn next(&mut self) -> Vec<StoreChange> {
        loop {
            let changes = self.take();
            if !changes.is_empty() {
                return changes;
            }
            self.ready().await;
        }
    }
}

impl ChangeReader {
    /// Calls `visit` with each target and its changes, if there are any. The target is locked meanwhile, so that changes made together
    /// are seen together. Writers lock in the same order: the target, then the changes of a reader. Returns the
    /// revision that the targets have reached.
    fn for_each_target(
        &self,
        mut visit: impl FnMut(&StoredTarget, Option<&mut BTreeMap<KindName, TouchedRows>>),
    ) -> Revision {
        let mut reached = Revision::NOTHING;
        for (id, target) in &self.targets {
            let target = lock(target);
            reached = reached.and(target.reached());
            let mut rows = lock(&self.dirty.rows);
            visit(&target, rows.targets.get_mut(id));
            if rows.targets.get(id).is_some_and(BTreeMap::is_empty) {
                rows.targets.remove(id);
            }
        }
        reached
    }
}

fn change(
    target: &StoredTarget,
    key: RowKey,
    TouchedRow { before, removal, may_be_held }: TouchedRow,
) -> Option<StoreChange> {
    let kind = target.kinds.get(&(key.group.clone(), key.kind.clone()));
    let after = kind.and_then(|kind| kind.rows.get(&key.uid)).map(|held| held.row.clone());
    let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
    let has_changed = digest(&before) != digest(&after) || may_be_held && after.is_none();
    has_changed.then_some(StoreChange { key, before, after, removal })
}
