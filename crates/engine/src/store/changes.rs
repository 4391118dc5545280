//! What has changed in the rows of some targets since a reader last asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use kollect_model::row::{Row, RowKey, TargetId};
use tokio::sync::Notify;

use super::{KindName, Shared, ShownRows, Snapshot, Target, lock};

/// Rows with what they were when a reader last asked; `None`: they did not exist.
pub(super) type Before = BTreeMap<RowKey, Option<Arc<Row>>>;

/// The rows that have changed since a reader last asked.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) rows: Mutex<BTreeMap<TargetId, BTreeMap<KindName, Before>>>,
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
        self.of_targets(|target, dirty| {
            let mut changes = Vec::new();
            dirty.retain(|name, rows| {
                let shown = target.shown_rows(name);
                let taken = match shown {
                    ShownRows::All => std::mem::take(rows),
                    ShownRows::CoveredBy(_) => rows.extract_if(.., |key, _| shown.contain(key)).collect(),
                    ShownRows::None => return true,
                };
                changes.extend(taken.into_iter().filter_map(|(key, before)| change(target, key, before)));
                !rows.is_empty()
            });
            changes
        })
    }

    /// Whether [`Self::take`] would find nothing.
    pub fn is_empty(&self) -> bool {
        let found = self.of_targets(|target, dirty| {
            let shown = |(name, rows): (&KindName, &Before)| match target.shown_rows(name) {
                ShownRows::None => false,
                shown => rows.keys().any(|key| shown.contain(key)),
            };
            if dirty.iter().any(shown) { vec![()] } else { Vec::new() }
        });
        found.is_empty()
    }

    /// Looks at what has changed, target by target. Each is locked meanwhile, so that what was changed at once is
    /// seen at once. Writers lock in the same order: the target, then the changes of a reader.
    fn of_targets<T>(&self, look: impl Fn(&Target, &mut BTreeMap<KindName, Before>) -> Vec<T>) -> Vec<T> {
        let touched: Vec<TargetId> = lock(&self.dirty.rows).keys().cloned().collect();
        let mut found = Vec::new();
        for (id, target) in touched.iter().filter_map(|id| self.targets.get_key_value(id)) {
            let target = lock(target);
            let mut rows = lock(&self.dirty.rows);
            if let Some(dirty) = rows.get_mut(id) {
                found.extend(look(&target, dirty));
                if dirty.is_empty() {
                    rows.remove(id);
                }
            }
        }
        found
    }

    /// The reader knows this snapshot: what it contains is no change.
    pub fn rebase(&mut self, snapshot: &Snapshot) {
        for (key, before) in lock(&self.dirty.rows).values_mut().flat_map(BTreeMap::values_mut).flatten() {
            *before = snapshot.rows.get(key).cloned();
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

fn change(target: &Target, key: RowKey, before: Option<Arc<Row>>) -> Option<Change> {
    let kind = target.kinds.get(&(key.group.clone(), key.kind.clone()));
    let after = kind.and_then(|kind| kind.rows.get(&key.uid)).map(|held| held.row.clone());
    let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
    (digest(&before) != digest(&after)).then_some(Change { key, before, after })
}
