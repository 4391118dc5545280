//! Writes the rows of one kind of one target. The task of the kind holds it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex},
};

use kollect_model::row::{Row, RowKey, TargetId};

use super::{
    DroppedRow, KindName, NullExamples, RemovalCause, RowNotes, RowOrigin, RowStore, StoredRow, StoredTarget,
    UndecidedObject, Visibility, lock,
};

/// The rows of one kind of one target, and the objects of the kind that have none because an attribute failed.
pub struct KindRows {
    pub(super) id: TargetId,
    pub(super) shared: Arc<RowStore>,
    pub(super) target: Arc<Mutex<StoredTarget>>,
    pub(super) kind: KindName,
    pub(super) number: u64,
    /// The definition of the target that writes; `None`: the target has only one.
    pub(super) definition: Option<u32>,
}

/// What [`KindRows::fail`] changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailChange {
    /// The object had a row.
    pub removed_row: bool,
    /// It was not known that the object has no row, or not for this reason.
    pub is_new: bool,
}

impl Drop for KindRows {
    fn drop(&mut self) {
        self.shared.release(&self.id, &self.target);
    }
}

impl KindRows {
    /// Writes for a definition of the target: removing rows of another definition counts as a change of specs.
    #[must_use]
    pub fn for_definition(mut self, definition: u32) -> Self {
        self.definition = Some(definition);
        self
    }

    /// The cause to record when a row with this origin is removed now.
    fn cause(&self, origin: RowOrigin) -> RemovalCause {
        match self.definition {
            Some(definition) if definition != origin.definition => RemovalCause::SpecChanged,
            _ => RemovalCause::ObjectGone,
        }
    }

    /// Origin of the row or failure of an object, or of the last look at one that is undecided; `None`: there is none.
    pub fn origin(&self, uid: &str) -> Option<RowOrigin> {
        let target = lock(&self.target);
        let kind = target.kinds.get(&self.kind)?;
        if let Some(object) = kind.undecided.get(uid) {
            return Some(object.origin);
        }
        let row = kind.rows.get(uid).map(|held| held.origin);
        row.or_else(|| kind.failures.get(uid).map(|failure| failure.origin))
    }

    /// Whether it is not known if the target selects an object.
    pub fn is_undecided(&self, uid: &str) -> bool {
        let target = lock(&self.target);
        target.kinds.get(&self.kind).is_some_and(|kind| kind.undecided.contains_key(uid))
    }

    /// Stores a row and what is worth knowing about it. Returns whether the row has changed. A target that is frozen or no
    /// longer selects the kind takes no rows.
    pub fn upsert(&self, row: Row, origin: RowOrigin, notes: Option<(Arc<RowNotes>, &NullExamples)>) -> bool {
        let (notes, examples) = notes.map_or((None, &[][..]), |(notes, examples)| (Some(notes), examples));
        let row = Arc::new(row);
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return false };
        let uid = &row.key.uid;
        let mut must_report = kind.failures.remove(uid).is_some();
        must_report |= kind.undecided.remove(uid).is_some();
        let (before, changed) = match kind.rows.entry(uid.clone()) {
            Entry::Occupied(mut held) => {
                let held = held.get_mut();
                held.origin = origin;
                must_report |= kind.notes.replace(uid, held.notes.as_ref(), notes.as_ref(), examples);
                held.notes = notes;
                if held.row.digest == row.digest {
                    (None, false)
                } else {
                    (Some(std::mem::replace(&mut held.row, row.clone())), true)
                }
            }
            Entry::Vacant(entry) => {
                kind.notes.replace(uid, None, notes.as_ref(), examples);
                entry.insert(StoredRow { row: row.clone(), origin, notes });
                (None, true)
            }
        };
        if changed {
            target.changed(&self.shared, &row.key, before.as_ref(), Ok(&row));
        } else if must_report {
            self.shared.report(&self.id, &mut target);
        }
        changed
    }

    /// It is not known whether the target selects the object: its row stays as it is, here and in sinks. Returns whether that is
    /// new.
    pub fn undecide(&self, key: RowKey, name: Arc<str>, origin: RowOrigin) -> bool {
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return false };
        if let Some(held) = kind.rows.get_mut(&key.uid) {
            held.origin = origin;
        }
        kind.failures.remove(&key.uid);
        let is_new = kind.undecided.insert(key.uid.clone(), UndecidedObject { key, name, origin }).is_none();
        if is_new {
            self.shared.report(&self.id, &mut target);
        }
        is_new
    }

    /// Removes the row or the failure of an object. Returns whether there was a row.
    pub fn remove(&self, uid: &str) -> bool {
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return false };
        let had_failed = kind.failures.remove(uid).is_some();
        let undecided = kind.undecided.remove(uid);
        let held = kind.remove_row(uid);
        if let Some(StoredRow { row, origin, .. }) = &held {
            target.changed(&self.shared, &row.key, Some(row), Err(self.cause(*origin)));
        } else if let Some(object) = undecided {
            // A sink may hold its row.
            target.decided(&self.shared, &object.key, self.cause(object.origin));
        } else if had_failed {
            self.shared.report(&self.id, &mut target);
        }
        held.is_some()
    }

    /// Records that an object has no row because a required attribute failed, and removes the row that it had. A target that is
    /// frozen or no longer selects the kind takes no failures.
    pub fn fail(&self, key: RowKey, origin: RowOrigin, why: String) -> FailChange {
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return FailChange::default() };
        let held = kind.remove_row(&key.uid);
        let undecided = kind.undecided.remove(&key.uid);
        let before = kind.failures.get(&key.uid);
        let is_new =
            !before.is_some_and(|before| before.origin.is_of(origin.definition) && before.why == why);
        kind.failures.insert(key.uid.clone(), DroppedRow { key, origin, why });
        if let Some(StoredRow { row, origin, .. }) = &held {
            target.changed(&self.shared, &row.key, Some(row), Err(self.cause(*origin)));
        } else if let Some(object) = undecided {
            target.decided(&self.shared, &object.key, self.cause(object.origin));
        } else if is_new {
            self.shared.report(&self.id, &mut target);
        }
        FailChange { removed_row: held.is_some(), is_new }
    }

    /// Removes the rows and failures that satisfy the condition.
    pub fn remove_where(&self, condition: impl Fn(&RowKey, RowOrigin) -> bool) {
        self.drop_where(condition, |origin| self.cause(origin));
    }

    /// Removes all rows and failures: there are no objects.
    pub fn clear(&self) {
        self.drop_where(|_, _| true, |_| RemovalCause::ObjectGone);
    }

    fn drop_where(
        &self,
        condition: impl Fn(&RowKey, RowOrigin) -> bool,
        cause: impl Fn(RowOrigin) -> RemovalCause,
    ) {
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return };
        let failures = kind.failures.len();
        kind.failures.retain(|_, failure| !condition(&failure.key, failure.origin));
        let must_report = kind.failures.len() < failures;
        let undecided = kind.undecided.extract_if(.., |_, object| condition(&object.key, object.origin));
        let mut undecided: BTreeMap<Arc<str>, UndecidedObject> = undecided.collect();
        let removed = kind.remove_rows(|held| condition(&held.row.key, held.origin));
        for StoredRow { row, origin, .. } in &removed {
            undecided.remove(&row.key.uid);
            target.changed(&self.shared, &row.key, Some(row), Err(cause(*origin)));
        }
        for UndecidedObject { key, origin, .. } in undecided.values() {
            target.decided(&self.shared, key, cause(*origin));
        }
        if must_report {
            self.shared.report(&self.id, &mut target);
        }
    }

    /// Marks the rows and failures of a namespace, or all: they are made again when their objects are next seen.
    pub fn outdate(&self, namespace: Option<&str>) {
        let mut target = lock(&self.target);
        if let Some(kind) = target.writable_kind(self) {
            kind.outdate(namespace);
        }
    }

    /// UIDs of the objects whose rows or failures satisfy the condition.
    pub fn find(&self, condition: impl Fn(&RowKey, RowOrigin) -> bool) -> Vec<Arc<str>> {
        let target = lock(&self.target);
        let Some(kind) = target.kinds.get(&self.kind) else { return Vec::new() };
        let rows = kind.rows.values().map(|held| (&held.row.key, held.origin));
        let failures = kind.failures.values().map(|failure| (&failure.key, failure.origin));
        let without_row = kind.undecided.iter().filter(|(uid, _)| !kind.rows.contains_key(*uid));
        let undecided = without_row.map(|(_, object)| (&object.key, object.origin));
        let found = rows.chain(failures).chain(undecided).filter(|(key, origin)| condition(key, *origin));
        found.map(|(key, _)| key.uid.clone()).collect()
    }

    /// Records how much of the kind has been seen.
    pub fn set_visibility(&self, visibility: Visibility) {
        let mut target = lock(&self.target);
        let Some(kind) = target.writable_kind(self) else { return };
        let must_report = std::mem::replace(&mut kind.seen_by, self.definition) != self.definition;
        if kind.visibility != visibility {
            kind.set_visibility(visibility, self.shared.last_revision());
            target.remove_replaced_rows(&self.shared);
            self.shared.report_visibility(&self.id, &mut target);
        } else if must_report {
            self.shared.report(&self.id, &mut target);
        }
    }

    /// Records that the definition has read everything that it selects of the kind. Only the first call counts.
    pub fn complete(&self) {
        let Some(definition) = self.definition else { return };
        let mut target = lock(&self.target);
        let revision = target.revision;
        let Some(kind) = target.writable_kind(self) else { return };
        if kind.completed.is_none_or(|(by, _)| by != definition) {
            kind.completed = Some((definition, revision));
            self.shared.report(&self.id, &mut target);
        }
    }
}
