//! What has changed in the rows of some targets since a reader last asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use kollect_model::row::{Row, RowKey, TargetId};
use tokio::sync::Notify;

use super::{KindName, Shared, ShownRows, Snapshot, Target, lock};

/// Rows that have changed since a reader last asked.
pub(super) type TouchedRows = BTreeMap<RowKey, Touched>;

/// A row that has changed since a reader last asked.
pub(super) struct Touched {
    /// What it was then; `None`: it did not exist.
    pub(super) before: Option<Arc<Row>>,
    /// Why it was removed last; `None`: it has come back.
    pub(super) removal: Option<RemovalCause>,
}

/// Why a row was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// The object is gone, is no longer selected by the same definition of the target, or cannot be read.
    ObjectGone,
    /// The target was removed, has left the kind, or was defined in another way when the row was made.
    SpecChanged,
}

/// The rows that have changed since a reader last asked.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) rows: Mutex<BTreeMap<TargetId, BTreeMap<KindName, TouchedRows>>>,
    pub(super) wake: Notify,
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
    /// If it is gone: why.
    pub removal: Option<RemovalCause>,
}

/// What changes in the rows of some targets. Changes of one row are told as one, nothing is lost
/// while the reader is busy, and the first change is told at once.
pub struct Changes {
    pub(super) shared: Arc<Shared>,
    pub(super) dirty: Arc<Dirty>,
    pub(super) targets: BTreeMap<TargetId, Arc<Mutex<Target>>>,
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.targets.iter().for_each(|(id, target)| self.shared.release(id, target));
    }
}

impl Changes {
    /// Everything that has changed since the last call. Rows of a kind that has not been seen yet wait
    /// until it has.
    pub fn take(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.of_targets(|target, dirty| {
            dirty.retain(|name, rows| {
                let shown = target.shown_rows(name);
                let taken = match shown {
                    ShownRows::All => std::mem::take(rows),
                    ShownRows::CoveredBy(_) => rows.extract_if(.., |key, _| shown.contain(key)).collect(),
                    ShownRows::None => return true,
                };
                changes.reserve(taken.len());
                changes.extend(taken.into_iter().filter_map(|(key, touched)| change(target, key, touched)));
                !rows.is_empty()
            });
        });
        changes
    }

    /// Whether [`Self::take`] would find nothing.
    pub fn is_empty(&self) -> bool {
        let mut empty = true;
        self.of_targets(|target, dirty| {
            empty &= !dirty.iter().any(|(name, rows)| match target.shown_rows(name) {
                ShownRows::None => false,
                shown => rows.keys().any(|key| shown.contain(key)),
            });
        });
        empty
    }

    /// Looks at what has changed, target by target. Each is locked meanwhile, so that what was changed at once is
    /// seen at once. Writers lock in the same order: the target, then the changes of a reader.
    fn of_targets(&self, mut look: impl FnMut(&Target, &mut BTreeMap<KindName, TouchedRows>)) {
        let touched: Vec<TargetId> = lock(&self.dirty.rows).keys().cloned().collect();
        for (id, target) in touched.iter().filter_map(|id| self.targets.get_key_value(id)) {
            let target = lock(target);
            let mut rows = lock(&self.dirty.rows);
            if let Some(dirty) = rows.get_mut(id) {
                look(&target, dirty);
                if dirty.is_empty() {
                    rows.remove(id);
                }
            }
        }
    }

    /// The reader knows this snapshot: what it contains is no change.
    pub fn rebase(&mut self, snapshot: &Snapshot) {
        for (key, row) in lock(&self.dirty.rows).values_mut().flat_map(BTreeMap::values_mut).flatten() {
            row.before = snapshot.rows.get(key).cloned();
        }
    }

    /// Returns when something may have changed.
    pub async fn ready(&self) {
        self.dirty.wake.notified().await;
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
}

fn change(target: &Target, key: RowKey, Touched { before, removal }: Touched) -> Option<Change> {
    let kind = target.kinds.get(&(key.group.clone(), key.kind.clone()));
    let after = kind.and_then(|kind| kind.rows.get(&key.uid)).map(|held| held.row.clone());
    let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
    (digest(&before) != digest(&after)).then_some(Change { key, before, after, removal })
}
