//! How many rows of an inventory a destination held at which moment, and which cluster owned them.

use std::collections::BTreeMap;

use super::super::truth::Place;

/// From a moment on until the next entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    from: u64,
    rows: usize,
    /// Id of the cluster; `None`: the inventory is not claimed.
    owner: Option<String>,
}

#[derive(Default)]
pub(super) struct Timelines(BTreeMap<Place, Vec<Entry>>);

impl Timelines {
    /// What a destination holds from now on.
    pub(super) fn note(&mut self, place: &Place, from: u64, rows: usize, owner: Option<&str>) {
        let entries = match self.0.get_mut(place) {
            Some(entries) => entries,
            None => self.0.entry(place.clone()).or_default(),
        };
        let same = |last: &Entry| last.rows == rows && last.owner.as_deref() == owner;
        if !entries.last().is_some_and(same) {
            entries.push(Entry { from, rows, owner: owner.map(ToOwned::to_owned) });
        }
    }

    /// Whether a destination held so many rows for a cluster at some moment of a time.
    pub(super) fn held(&self, place: &Place, rows: usize, owner: &str, (from, until): (u64, u64)) -> bool {
        let entries = self.0.get(place).map_or(&[][..], |entries| entries);
        entries.iter().enumerate().any(|(number, entry)| {
            let end = entries.get(number + 1).map_or(u64::MAX, |next| next.from);
            entry.rows == rows && entry.owner.as_deref() == Some(owner) && entry.from <= until && end >= from
        })
    }
}
