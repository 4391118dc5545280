//! What has changed in the rows of some targets since a reader last asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, Weak},
};

use kollect_model::row::{Row, RowKey, TargetId};
use tokio::{sync::Notify, time::Instant};

use super::{KindName, Reached, Shared, ShownRows, Snapshot, Target, lock};

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

/// What has changed since a reader last asked.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) rows: Mutex<DirtyRows>,
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct DirtyRows {
    pub(super) targets: BTreeMap<TargetId, BTreeMap<KindName, TouchedRows>>,
    /// Since when there may have been something for the reader.
    pub(super) since: Option<Instant>,
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

/// What has changed since a reader last asked.
pub struct Taken {
    /// The changes.
    pub changes: Vec<Change>,
    /// Every change of the targets up to there has been taken, now or before.
    pub reached: Reached,
    /// Since when there was one, if there was.
    pub since: Option<Instant>,
}

/// What changes in the rows of some targets. Changes of one row are told as one, nothing is lost
/// while the reader is busy, and the first change is told at once.
pub struct Changes(pub(super) Arc<Reader>);

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) dirty: Arc<Dirty>,
    pub(super) targets: BTreeMap<TargetId, Arc<Mutex<Target>>>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.targets.iter().for_each(|(id, target)| self.shared.release(id, target));
    }
}

/// Looks at changes that nothing has taken yet, for as long as there is a [`Changes`].
#[derive(Clone, Default)]
pub struct WaitingChanges(Weak<Reader>);

impl WaitingChanges {
    /// How many rows wait, and since when there has been one; `None`: none waits.
    pub fn count(&self) -> Option<(usize, Instant)> {
        let reader = self.0.upgrade()?;
        let since = lock(&reader.dirty.rows).since;
        let mut count = 0;
        reader.of_targets(|target, dirty| {
            for (name, rows) in dirty.iter() {
                count += match target.shown_rows(name) {
                    ShownRows::All => rows.len(),
                    shown => rows.keys().filter(|key| shown.contain(key)).count(),
                };
            }
        });
        (count > 0).then(|| (count, since.unwrap_or_else(Instant::now)))
    }
}

impl Changes {
    /// Everything that has changed since the last call. Rows of a kind that has not been seen yet wait
    /// until it has.
    pub fn take(&mut self) -> Vec<Change> {
        self.take_all().changes
    }

    /// The same, with the revision that has been reached.
    pub fn take_all(&mut self) -> Taken {
        let mut changes = Vec::new();
        let since = lock(&self.0.dirty.rows).since.take();
        // A change gets its number and is noted while its target is locked. So what has a number now has been noted
        // when its target can be locked afterwards.
        let last = self.0.shared.last_revision();
        let reached = self.0.of_targets(|target, dirty| {
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
        let mut dirty = lock(&self.0.dirty.rows);
        if dirty.targets.is_empty() {
            dirty.since = None;
        }
        Taken { changes, reached: reached.up_to(last), since }
    }

    /// To look at what nothing has taken yet.
    pub fn waiting(&self) -> WaitingChanges {
        WaitingChanges(Arc::downgrade(&self.0))
    }

    /// Whether [`Self::take`] would find nothing.
    pub fn is_empty(&self) -> bool {
        lock(&self.0.dirty.rows).targets.is_empty() || self.reached_if_empty().is_some()
    }

    /// If [`Self::take`] would find nothing: how far it would reach.
    pub fn reached_if_empty(&self) -> Option<Reached> {
        let last = self.0.shared.last_revision();
        let mut empty = true;
        let reached = self.0.of_targets(|target, dirty| {
            empty &= !dirty.iter().any(|(name, rows)| match target.shown_rows(name) {
                ShownRows::None => false,
                shown => rows.keys().any(|key| shown.contain(key)),
            });
        });
        empty.then_some(reached.up_to(last))
    }

    /// The reader knows this snapshot: what it contains is no change.
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

impl Reader {
    /// Looks at what has changed, target by target. Each is locked meanwhile, so that what was changed at once is
    /// seen at once. Writers lock in the same order: the target, then the changes of a reader. Answers how far the
    /// targets have come.
    fn of_targets(&self, mut look: impl FnMut(&Target, &mut BTreeMap<KindName, TouchedRows>)) -> Reached {
        let mut reached = Reached::NOTHING;
        for (id, target) in &self.targets {
            let target = lock(target);
            reached = reached.and(target.reached());
            let mut rows = lock(&self.dirty.rows);
            if let Some(dirty) = rows.targets.get_mut(id) {
                look(&target, dirty);
                if dirty.is_empty() {
                    rows.targets.remove(id);
                }
            }
        }
        reached
    }
}

fn change(target: &Target, key: RowKey, Touched { before, removal }: Touched) -> Option<Change> {
    let kind = target.kinds.get(&(key.group.clone(), key.kind.clone()));
    let after = kind.and_then(|kind| kind.rows.get(&key.uid)).map(|held| held.row.clone());
    let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
    (digest(&before) != digest(&after)).then_some(Change { key, before, after, removal })
}
