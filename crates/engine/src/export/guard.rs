//! Holds writes that would remove many rows because specs changed: a mistyped selector must not empty a sink.
//!
//! Rows whose objects are gone do not count. Why a row goes is known from the store while the process runs. After a
//! restart only the sink knows the row: then it counts if the specs select something else than when the sink last got
//! all rows.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_model::{batch::Delta, row::RowKey};
use tokio::time::Instant;

use super::RowFilter;
use crate::store::{RemovalCause, Snapshot, StoreChange};

/// How many rows one write may remove because specs changed. A limit that is not set does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalGuard {
    /// Limit in percent of the rows that the sink holds.
    pub percent: Option<u32>,
    /// Limit in rows.
    pub rows: Option<usize>,
    /// Token of the removals that were released.
    pub released: Option<String>,
}

/// Removals that are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedRemovals {
    /// Number of rows that would be removed because specs changed.
    pub rows: usize,
    /// Number of rows that the sink holds.
    pub held: usize,
    /// The token that releases them.
    pub token: String,
}

/// What the specs select, and what they selected when the sink last got all rows.
#[derive(Clone, Debug, Default)]
pub struct SelectionDigests(Arc<Mutex<ObservedSelection>>);

#[derive(Debug, Default)]
struct ObservedSelection {
    /// Digest of what the specs select, and since when.
    now: Option<(String, Instant)>,
    /// Digest of what they selected when the sink last got all rows.
    acknowledged: Option<String>,
}

/// After this time, a changed selection is assumed to have taken effect on the rows.
const TAKES_EFFECT_AFTER: Duration = Duration::from_mins(5);

impl SelectionDigests {
    /// Begins with what a status remembers.
    pub fn new(acknowledged: Option<String>) -> Self {
        Self(Arc::new(Mutex::new(ObservedSelection { now: None, acknowledged })))
    }

    fn lock(&self) -> MutexGuard<'_, ObservedSelection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the specs selected when the sink last got all rows.
    pub fn acknowledged(&self) -> Option<String> {
        self.lock().acknowledged.clone()
    }

    /// Records what the specs select now.
    pub(super) fn observe(&self, digest: &str) {
        let mut known = self.lock();
        if known.now.as_ref().is_none_or(|(now, _)| now != digest) {
            known.now = Some((digest.to_owned(), Instant::now()));
        }
    }

    /// The sink has got all rows. The first comparison of a process waits for all lists, so the selection has taken
    /// effect; a selection that changed later takes effect after some time.
    pub(super) fn acknowledge(&self, is_first: bool) {
        let mut known = self.lock();
        if let Some((digest, since)) = &known.now
            && (is_first || since.elapsed() >= TAKES_EFFECT_AFTER)
        {
            known.acknowledged = Some(digest.clone());
        }
    }

    fn has_changed(&self) -> bool {
        let known = self.lock();
        known.now.as_ref().map(|(digest, _)| digest) != known.acknowledged.as_ref()
    }
}

/// Why rows were removed, as far as the store knows.
#[derive(Default)]
pub(super) struct RemovalCauses(BTreeMap<RowKey, RemovalCause>);

impl RemovalCauses {
    pub(super) fn of<'a>(changes: impl IntoIterator<Item = &'a StoreChange>) -> Self {
        let removals = changes.into_iter().filter_map(|change| Some((change.key.clone(), change.removal?)));
        Self(removals.collect())
    }

    pub(super) fn has_spec_changes(&self) -> bool {
        self.0.values().any(|cause| *cause == RemovalCause::SpecChanged)
    }
}

impl RemovalGuard {
    /// What a write would remove beyond the limits because specs changed; `None`: it may be made. `held`: the rows of
    /// the sink before the write.
    pub(super) fn blocks(
        &self,
        delta: &Delta,
        held: usize,
        snapshot: &Snapshot,
        row_filter: &RowFilter,
        causes: &RemovalCauses,
        selection: &SelectionDigests,
    ) -> Option<BlockedRemovals> {
        let unknown = selection.has_changed();
        let by_spec = |key: &RowKey| match causes.0.get(key) {
            Some(cause) => *cause == RemovalCause::SpecChanged,
            None => unknown || snapshot.is_gone_by_spec(key) || !row_filter.takes(key),
        };
        let rows = delta.removed.iter().filter(|removed| by_spec(&removed.key)).count();
        let over_percent = self.percent.is_some_and(|percent| rows * 100 > held * percent as usize);
        let over_rows = self.rows.is_some_and(|limit| rows > limit);
        let token = selection.lock().now.as_ref().map_or_else(String::new, |(digest, _)| digest.clone());
        let is_released = self.released.as_ref() == Some(&token);
        (!is_released && (over_percent || over_rows)).then_some(BlockedRemovals { rows, held, token })
    }
}
