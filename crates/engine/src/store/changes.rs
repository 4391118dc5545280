//! What has changed in the rows of some targets since a reader last asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use kollect_model::row::{Row, RowKey, TargetId};
use tokio::sync::Notify;

use super::{Place, Shared, Snapshot, Target, lock};

/// Rows with what they were when a reader last asked; `None`: they did not exist.
pub(super) type Before = BTreeMap<RowKey, Option<Arc<Row>>>;

/// The rows that have changed since a reader last asked.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) rows: Mutex<BTreeMap<Place, Before>>,
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

    /// Where rows have changed that need not wait. No code locks a target while holding the changes of a
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
