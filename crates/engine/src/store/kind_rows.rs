//! Writes the rows of one kind of one target. The task of the kind holds it.

use std::{
    collections::btree_map::Entry,
    sync::{Arc, Mutex, Weak},
};

use kollect_model::row::Row;

use super::{Held, KindName, Origin, Shared, Sight, Target, lock};

/// The rows of one kind of one target.
pub struct KindRows {
    pub(super) shared: Arc<Shared>,
    pub(super) target: Arc<Mutex<Target>>,
    pub(super) kind: KindName,
    pub(super) number: u64,
}

impl KindRows {
    /// What the row of an object was made from, if there is one.
    pub fn origin(&self, uid: &str) -> Option<Origin> {
        let target = lock(&self.target);
        Some(target.kinds.get(&self.kind)?.rows.get(uid)?.origin)
    }

    /// Stores a row, and says whether it differs from what was there. A target that is frozen or has
    /// left the kind takes no rows.
    pub fn upsert(&self, row: Row, origin: Origin) -> bool {
        let row = Arc::new(row);
        let mut target = lock(&self.target);
        target.failures.remove(&(self.kind.clone(), row.key.uid.clone()));
        let Some(kind) = target.open(self) else { return false };
        let before = match kind.rows.entry(row.key.uid.clone()) {
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                held.origin = origin;
                if held.row.digest == row.digest {
                    return false;
                }
                Some(std::mem::replace(&mut held.row, row.clone()))
            }
            Entry::Vacant(place) => {
                place.insert(Held { row: row.clone(), origin });
                None
            }
        };
        target.changed(&self.shared, &row.key, before.as_ref(), Some(&row));
        true
    }

    /// Drops the row of an object, and says whether there was one.
    pub fn remove(&self, uid: &str) -> bool {
        let mut target = lock(&self.target);
        target.failures.remove(&(self.kind.clone(), uid.into()));
        let held = target.open(self).and_then(|kind| kind.rows.remove(uid));
        if let Some(held) = &held {
            target.changed(&self.shared, &held.row.key, Some(&held.row), None);
        }
        held.is_some()
    }

    /// Drops the row of an object that cannot be read, and says whether there was one.
    pub fn fail(&self, uid: &Arc<str>, why: String) -> bool {
        let removed = self.remove(uid);
        let mut target = lock(&self.target);
        if target.open(self).is_some() {
            target.failures.insert((self.kind.clone(), uid.clone()), why);
            self.shared.sights.send_replace(());
        }
        removed
    }

    /// Forgets failures of objects that are gone.
    pub fn retain_failures(&self, exists: impl Fn(&str) -> bool) {
        let mut target = lock(&self.target);
        target.failures.retain(|(kind, uid), _| *kind != self.kind || exists(uid));
    }

    /// Drops the rows that satisfy the condition.
    pub fn remove_where(&self, condition: impl Fn(&Row, Origin) -> bool) {
        let mut target = lock(&self.target);
        let Some(kind) = target.open(self) else { return };
        let gone: Vec<Held> = kind
            .rows
            .extract_if(.., |_, held| condition(&held.row, held.origin))
            .map(|(_, held)| held)
            .collect();
        gone.iter().for_each(|held| target.changed(&self.shared, &held.row.key, Some(&held.row), None));
    }

    /// The rows of a namespace are made again when their objects are next seen.
    pub fn outdate(&self, namespace: &str) {
        let mut target = lock(&self.target);
        let rows = target.open(self).into_iter().flat_map(|kind| kind.rows.values_mut());
        rows.filter(|held| &*held.row.key.namespace == namespace).for_each(|held| held.origin.definition = 0);
    }

    /// The objects whose rows satisfy the condition.
    pub fn find(&self, condition: impl Fn(&Row, Origin) -> bool) -> Vec<Arc<str>> {
        let target = lock(&self.target);
        let rows = target.kinds.get(&self.kind).into_iter().flat_map(|kind| &kind.rows);
        rows.filter(|(_, held)| condition(&held.row, held.origin)).map(|(uid, _)| uid.clone()).collect()
    }

    /// Records how much of the kind has been seen.
    pub fn set_sight(&self, sight: Sight) {
        let mut target = lock(&self.target);
        let Some(kind) = target.open(self) else { return };
        if kind.sight.as_ref() != Some(&sight) {
            kind.sight = Some(sight);
            target.sweep_left_kinds(&self.shared);
            // Rows may have waited for this.
            target.readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.wake.notify_one());
            self.shared.sights.send_replace(());
        }
    }
}
