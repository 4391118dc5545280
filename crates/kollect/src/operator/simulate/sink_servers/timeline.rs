//! Which rows of an inventory a destination held at which moment, and which cluster owned them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::super::expected_rows::StoredInventory;

/// A write that has been applied is reported as `Writing` if its answer takes longer than 10 s. Until then a status
/// reports what the sink has acknowledged before. The other 5 s are for the status itself.
const UNANSWERED: Duration = Duration::from_secs(15);

/// What is held from a moment on, until the next entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TimelineEntry {
    from: u64,
    written_at: Instant,
    /// How many, and the sum of their digests.
    rows: (usize, u128),
    /// Id of the cluster; `None`: the inventory is not claimed.
    owner: Option<String>,
    /// More rows of the same write follow: its sender has no answer yet.
    is_part: bool,
}

#[derive(Default)]
pub(super) struct Timelines(BTreeMap<StoredInventory, Vec<TimelineEntry>>);

impl Timelines {
    /// What a destination holds from now on.
    pub(super) fn note(
        &mut self,
        stored: &StoredInventory,
        from: u64,
        rows: (usize, u128),
        owner: Option<&str>,
        is_part: bool,
    ) {
        let entries = match self.0.get_mut(stored) {
            Some(entries) => entries,
            None => self.0.entry(stored.clone()).or_default(),
        };
        let is_same = |last: &TimelineEntry| {
            last.rows == rows && last.owner.as_deref() == owner && last.is_part == is_part
        };
        if !entries.last().is_some_and(is_same) {
            let written_at = Instant::now();
            entries.push(TimelineEntry {
                from,
                written_at,
                rows,
                owner: owner.map(ToOwned::to_owned),
                is_part,
            });
        }
    }

    /// Whether a destination held these rows for a cluster at some moment of a period that ended at `reported_at`, or
    /// until a write that may not have been answered then. While parts of a write arrive, what was there before it
    /// counts.
    pub(super) fn held(
        &self,
        stored: &StoredInventory,
        rows: (usize, u128),
        owner: &str,
        (from, until): (u64, u64),
        reported_at: Instant,
    ) -> bool {
        let entries = self.0.get(stored).map_or(&[][..], |entries| entries);
        entries.iter().enumerate().any(|(number, entry)| {
            let next = entries.iter().skip(number + 1).find(|next| !next.is_part);
            let is_recent =
                next.is_none_or(|next| next.from >= from || next.written_at + UNANSWERED >= reported_at);
            entry.rows == rows && entry.owner.as_deref() == Some(owner) && entry.from <= until && is_recent
        })
    }
}
