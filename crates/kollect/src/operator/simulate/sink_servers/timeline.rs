//! Which rows of an inventory a destination held at which moment, and which cluster owned them.

use std::collections::BTreeMap;

use super::super::truth::Place;

/// From a moment on until the next entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    from: u64,
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
            entries.push(Entry { from, rows, owner: owner.map(ToOwned::to_owned), is_part });
        }
    }

    /// Whether a destination held these rows for a cluster at some moment of a time. While parts of a write arrive, what
    /// was there before it counts.
    pub(super) fn held(
        &self,
        place: &Place,
        rows: (usize, u128),
        owner: &str,
        (from, until): (u64, u64),
    ) -> bool {
        let entries = self.0.get(place).map_or(&[][..], |entries| entries);
        entries.iter().enumerate().any(|(number, entry)| {
            let mut later = entries.iter().skip(number + 1).filter(|next| !next.is_part);
            let end = later.next().map_or(u64::MAX, |next| next.from);
            entry.rows == rows && entry.owner.as_deref() == Some(owner) && entry.from <= until && end >= from
        })
    }
}
