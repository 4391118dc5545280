//! Which rows of an inventory a destination held at which moment, and which cluster owned them.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::super::truth::Place;

/// A write that has been applied is told as `Writing` if its answer takes longer than 10 s. Until then a status says what
/// the sink has acknowledged before. The rest is for the status itself.
const UNANSWERED: Duration = Duration::from_secs(15);

/// From a moment on until the next entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    from: u64,
    since: Instant,
    /// How many, and the sum of their digests.
    rows: (usize, u128),
    /// Id of the cluster; `None`: the inventory is not claimed.
    owner: Option<String>,
    /// More rows of the same write follow: its sender has not been told about them.
    is_part: bool,
}

#[derive(Default)]
pub(super) struct Timelines(BTreeMap<Place, Vec<Entry>>);

impl Timelines {
    /// What a destination holds from now on.
    pub(super) fn note(
        &mut self,
        place: &Place,
        from: u64,
        rows: (usize, u128),
        owner: Option<&str>,
        is_part: bool,
    ) {
        let entries = match self.0.get_mut(place) {
            Some(entries) => entries,
            None => self.0.entry(place.clone()).or_default(),
        };
        let same =
            |last: &Entry| last.rows == rows && last.owner.as_deref() == owner && last.is_part == is_part;
        if !entries.last().is_some_and(same) {
            let since = Instant::now();
            entries.push(Entry { from, since, rows, owner: owner.map(ToOwned::to_owned), is_part });
        }
    }

    /// Whether a destination held these rows for a cluster at some moment of a time that ended at `told`, or until a write
    /// that may not have been answered then. While parts of a write arrive, what was there before it counts.
    pub(super) fn held(
        &self,
        place: &Place,
        rows: (usize, u128),
        owner: &str,
        (from, until): (u64, u64),
        told: Instant,
    ) -> bool {
        let entries = self.0.get(place).map_or(&[][..], |entries| entries);
        entries.iter().enumerate().any(|(number, entry)| {
            let next = entries.iter().skip(number + 1).find(|next| !next.is_part);
            let is_recent = next.is_none_or(|next| next.from >= from || next.since + UNANSWERED >= told);
            entry.rows == rows && entry.owner.as_deref() == Some(owner) && entry.from <= until && is_recent
        })
    }
}
