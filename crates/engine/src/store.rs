//! The rows of all targets. The tasks of kinds write them; bindings, statuses and metrics read them.
//!
//! Only rows are kept, never objects. Each row is written by one task, that of its kind. A snapshot exists only when
//! every kind of its targets has been seen or is known to be blind, and it shows which absent rows are known to be
//! gone. Rows of a kind that a target no longer selects stay until the kinds that it selects now have been listed;
//! readers see both changes at once.

mod changes;
mod kind_rows;
mod notes;
mod read;
mod visibility;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
};

use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};
use tokio::{sync::watch, time::Instant};

pub use changes::{Changes, RemovalCause, StoreChange, TakenChanges, WaitingChanges};
use changes::{Dirty, TouchedRow};
pub use kind_rows::{FailChange, KindRows};
use notes::NoteCounts;
pub use notes::{
    NullAttribute, NullCause, NullCount, NullExamples, RedactedAttribute, RedactionCount, RowNotes,
};
pub use read::{ListingProgress, Snapshot, StoreReader, Visibilities};
pub use visibility::Visibility;
use visibility::is_replaced;

/// What a row was made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowOrigin {
    /// Resource version of the object.
    pub version: u64,
    /// Number of the target's definition.
    pub definition: u32,
    /// The object must be read again, although the definition is the same.
    pub outdated: bool,
}

impl RowOrigin {
    /// Whether this definition has made the row, and the row is not outdated.
    pub fn is_of(&self, definition: u32) -> bool {
        self.definition == definition && !self.outdated
    }
}

struct StoredRow {
    row: Arc<Row>,
    origin: RowOrigin,
    notes: Option<Arc<RowNotes>>,
}

/// An object that is selected and has no row, because a required attribute failed.
struct DroppedRow {
    key: RowKey,
    origin: RowOrigin,
    why: String,
}

/// An object of which it is not known whether it is selected, because that depends on a redacted value. Its row stays as it was.
struct UndecidedObject {
    key: RowKey,
    name: Arc<str>,
    origin: RowOrigin,
}

struct StoredKind {
    /// Distinguishes it from a removed kind with the same name.
    number: u64,
    rows: BTreeMap<Arc<str>, StoredRow>,
    /// By UID, like the rows. An object has a row or a failure, never both. Code that removes rows also removes
    /// failures.
    failures: BTreeMap<Arc<str>, DroppedRow>,
    /// By UID. An object here may have a row, which is that of an earlier decision, or a failure.
    undecided: BTreeMap<Arc<str>, UndecidedObject>,
    /// What is counted in the rows.
    notes: NoteCounts,
    visibility: Visibility,
    /// The running list; readers see its rows when it has ended.
    listing: Option<RunningList>,
    /// The definition of the target that has set `visibility`.
    seen_by: Option<u32>,
    /// The last definition of the target that has read everything it selects, and the revision of the target then.
    completed: Option<(u32, u64)>,
    /// The target no longer selects the kind. Its rows stay until [`is_replaced`] returns true for them.
    deselected: bool,
    /// Readers may have seen rows of the kind.
    shown: bool,
    /// This kind takes the place of deselected kinds: readers see its rows in the change that removes theirs.
    replaces: bool,
}

/// A list whose rows readers do not see before it has ended.
#[derive(Clone, Copy, Debug)]
struct RunningList {
    since: Instant,
    /// Number of the last change before the list began.
    revision: u64,
}

impl StoredKind {
    /// Sets how much of the kind has been seen. `revision` is the number of the last change.
    fn set_visibility(&mut self, visibility: Visibility, revision: u64) {
        self.listing = match visibility {
            Visibility::Pending => self.listing.or(Some(RunningList { since: Instant::now(), revision })),
            _ => None,
        };
        self.visibility = visibility;
    }

    /// The rows that readers see now; the others wait.
    fn shown_rows(&self) -> ShownRows<'_> {
        match &self.visibility {
            _ if self.deselected => ShownRows::All,
            Visibility::Pending => ShownRows::None,
            _ if !self.replaces => ShownRows::All,
            visibility if visibility.is_listed() => ShownRows::CoveredBy(visibility),
            _ => ShownRows::None,
        }
    }

    /// The rows that readers see now, by key.
    fn visible_rows(&self) -> impl Iterator<Item = (RowKey, Arc<Row>)> {
        let shown = self.shown_rows();
        let rows = self.rows.values().filter(move |held| shown.contains(&held.row.key));
        rows.map(|held| (held.row.key.clone(), held.row.clone()))
    }
}

/// The rows of a kind that readers see.
enum ShownRows<'a> {
    All,
    CoveredBy(&'a Visibility),
    None,
}

impl ShownRows<'_> {
    fn contains(&self, key: &RowKey) -> bool {
        match self {
            Self::All => true,
            Self::CoveredBy(visibility) => visibility.covers(key),
            Self::None => false,
        }
    }
}

/// API group and kind.
type KindName = (Arc<str>, Arc<str>);

/// Target, API group and kind.
type TargetKind = (TargetId, Arc<str>, Arc<str>);

#[derive(Default)]
struct StoredTarget {
    kinds: BTreeMap<KindName, StoredKind>,
    /// No task collects the target, and its rows stay.
    frozen: bool,
    /// Number of the last change of a row, or of which rows readers see.
    revision: u64,
    readers: Vec<Weak<Dirty>>,
    /// Whether it is in [`RowStore::changed`].
    is_in_changed: bool,
    /// How many [`KindRows`] and [`Changes`] refer to it.
    users: usize,
}

#[derive(Default)]
struct RowStore {
    targets: RwLock<BTreeMap<TargetId, Arc<Mutex<StoredTarget>>>>,
    /// Counts changes of rows, and of which rows readers see.
    revision: Mutex<u64>,
    /// Notified when a visibility changes.
    visibilities: watch::Sender<()>,
    /// Targets in which something has changed since [`StoreReader::take_changed_targets`] was last called.
    changed: Mutex<BTreeSet<TargetId>>,
    changed_sender: watch::Sender<()>,
}

// A panic while a lock is held leaves no partial row: a poisoned lock can be used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RowStore {
    fn get(&self, id: &TargetId) -> Option<Arc<Mutex<StoredTarget>>> {
        self.targets.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Calls `work` with a target, which is created if it does not exist. The target is not removed meanwhile.
    fn with<T>(
        &self,
        id: &TargetId,
        work: impl FnOnce(&Arc<Mutex<StoredTarget>>, &mut StoredTarget) -> T,
    ) -> T {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(id) {
            return work(target, &mut lock(target));
        }
        drop(targets);
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        let target = targets.entry(id.clone()).or_default();
        work(target, &mut lock(target))
    }

    /// Removes a target that has no kinds, is not frozen and has no users.
    fn forget_unused(&self, id: &TargetId) {
        let mut targets = self.targets.write().unwrap_or_else(PoisonError::into_inner);
        if targets.get(id).is_some_and(|target| lock(target).is_unused()) {
            targets.remove(id);
        }
    }

    /// Drops one user of a target, and removes the target if it is unused now.
    fn release(&self, id: &TargetId, target: &Mutex<StoredTarget>) {
        let mut target = lock(target);
        target.users -= 1;
        let unused = target.is_unused();
        drop(target);
        if unused {
            self.forget_unused(id);
        }
    }

    fn next_revision(&self) -> u64 {
        let mut revision = lock(&self.revision);
        *revision += 1;
        *revision
    }

    fn last_revision(&self) -> u64 {
        *lock(&self.revision)
    }

    /// Reports that a target has changed: its rows, its failures, or how much has been seen.
    fn report(&self, id: &TargetId, target: &mut StoredTarget) {
        if !std::mem::replace(&mut target.is_in_changed, true) {
            lock(&self.changed).insert(id.clone());
            self.changed_sender.send_replace(());
        }
    }

    /// Reports that the visibility of a kind has changed, and wakes the readers of the target.
    fn report_visibility(&self, id: &TargetId, target: &mut StoredTarget) {
        target.revision = self.next_revision();
        target.wake_readers(id);
        self.report(id, target);
        self.visibilities.send_replace(());
    }
}

/// The revision that the rows of some targets have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Number of the last change of a row, or of which rows readers see.
    revision: u64,
    /// Rows of running lists may have changed after this number, and are not visible yet.
    hidden_after: u64,
}

impl Revision {
    /// No change, and no running list.
    const NOTHING: Self = Self { revision: 0, hidden_after: u64::MAX };

    /// This revision, and no running list.
    pub fn at(revision: u64) -> Self {
        Self { revision, ..Self::NOTHING }
    }

    fn and(self, other: Self) -> Self {
        Self {
            revision: self.revision.max(other.revision),
            hidden_after: self.hidden_after.min(other.hidden_after),
        }
    }

    /// Limits the revision to `last`: later changes have not been read.
    fn up_to(self, last: u64) -> Self {
        Self { revision: self.revision.min(last), ..self }
    }

    /// Every change up to this number is visible.
    pub fn visible_up_to(self) -> u64 {
        self.revision.min(self.hidden_after)
    }

    /// Every change up to this number is visible, except rows of running lists.
    pub fn visible_except_running_lists(self) -> u64 {
        self.revision
    }
}

/// Writes rows.
#[derive(Clone)]
pub struct StoreWriter(Arc<RowStore>);

/// An empty store.
pub fn store() -> (StoreWriter, StoreReader) {
    let shared = Arc::new(RowStore::default());
    (StoreWriter(shared.clone()), StoreReader(shared))
}

impl StoreWriter {
    /// The rows of one kind of one target. From now on snapshots of the target wait for this kind,
    /// unless it has been seen before.
    pub fn rows(&self, target: &TargetId, gvk: &Gvk) -> KindRows {
        let kind: KindName = (gvk.group.as_str().into(), gvk.kind.as_str().into());
        let shared = self.0.clone();
        let rows = self.0.with(target, |entry, locked| {
            if std::mem::take(&mut locked.frozen) {
                for kind in locked.kinds.values_mut() {
                    kind.set_visibility(Visibility::Pending, shared.last_revision());
                    (kind.seen_by, kind.completed) = (None, None);
                    // Events were missed while the target was frozen: rows that the next list does not make again are removed, also
                    // those whose namespace is gone.
                    kind.outdate(None);
                }
            }
            let own = locked.kinds.entry(kind.clone()).or_insert_with(|| StoredKind {
                number: shared.next_revision(),
                rows: BTreeMap::new(),
                failures: BTreeMap::new(),
                undecided: BTreeMap::new(),
                notes: NoteCounts::default(),
                visibility: Visibility::Pending,
                listing: None,
                seen_by: None,
                completed: None,
                deselected: false,
                shown: false,
                replaces: false,
            });
            if std::mem::take(&mut own.deselected) || own.visibility == Visibility::Pending {
                own.set_visibility(Visibility::Pending, shared.last_revision());
            }
            let number = own.number;
            locked.users += 1;
            self.0.report(target, locked);
            KindRows { id: target.clone(), target: entry.clone(), shared, kind, number, definition: None }
        });
        self.0.visibilities.send_replace(());
        rows
    }

    /// No task collects the target from now on; its rows stay as they are.
    pub fn freeze(&self, id: &TargetId) {
        self.0.with(id, |_, target| {
            target.frozen = true;
            target.kinds.values_mut().for_each(|kind| kind.set_visibility(Visibility::Partial, 0));
            target.update_shown_kinds();
            self.0.report_visibility(id, target);
        });
    }

    /// Sets the kinds that the target selects. Rows of other kinds are removed when these have been listed.
    pub fn set_selected_kinds(&self, id: &TargetId, kinds: &BTreeSet<&Gvk>) {
        self.0.with(id, |_, target| {
            for ((group, name), kind) in &mut target.kinds {
                kind.deselected = !kinds.iter().any(|gvk| (&*gvk.group, &*gvk.kind) == (&**group, &**name));
            }
            target.remove_replaced_rows(&self.0);
            self.0.report_visibility(id, target);
        });
    }

    /// Removes all rows of the target, and the target itself as soon as nothing refers to it.
    pub fn remove_target(&self, id: &TargetId) {
        let Some(target) = self.0.get(id) else { return };
        let mut target = lock(&target);
        self.0.report(id, &mut target);
        target.frozen = false;
        let kinds = std::mem::take(&mut target.kinds);
        for held in kinds.into_values().flat_map(|kind| kind.rows.into_values()) {
            target.changed(&self.0, &held.row.key, Some(&held.row), Err(RemovalCause::SpecChanged));
        }
        drop(target);
        self.0.forget_unused(id);
        self.0.visibilities.send_replace(());
    }
}

impl StoredKind {
    /// Marks the rows and failures of a namespace, or all: they are made again when their objects are next seen.
    fn outdate(&mut self, namespace: Option<&str>) {
        let rows = self.rows.values_mut().map(|held| (&held.row.key, &mut held.origin));
        let failures = self.failures.values_mut().map(|failure| (&failure.key, &mut failure.origin));
        let here =
            |(key, _): &(&RowKey, &mut RowOrigin)| namespace.is_none_or(|name| *name == *key.namespace);
        let undecided = self.undecided.values_mut().map(|object| (&object.key, &mut object.origin));
        rows.chain(failures).chain(undecided).filter(here).for_each(|(_, origin)| origin.outdated = true);
    }

    fn remove_row(&mut self, uid: &str) -> Option<StoredRow> {
        let held = self.rows.remove(uid)?;
        self.notes.replace(&held.row.key.uid, held.notes.as_ref(), None, &[]);
        Some(held)
    }

    fn remove_rows(&mut self, condition: impl Fn(&StoredRow) -> bool) -> Vec<StoredRow> {
        let removed: Vec<StoredRow> =
            self.rows.extract_if(.., |_, held| condition(held)).map(|(_, held)| held).collect();
        for held in &removed {
            self.notes.replace(&held.row.key.uid, held.notes.as_ref(), None, &[]);
        }
        removed
    }
}

impl StoredTarget {
    fn is_unused(&self) -> bool {
        self.users == 0 && !self.frozen && self.kinds.is_empty()
    }

    /// Records a changed or removed row for the readers. They are woken only if they see rows of its kind now.
    fn changed(
        &mut self,
        shared: &RowStore,
        key: &RowKey,
        before: Option<&Arc<Row>>,
        after: Result<&Arc<Row>, RemovalCause>,
    ) {
        self.touch(shared, key, before, after.err(), false);
    }

    /// Records that an object of which it was not known whether it is selected is not selected. It has no row here, but a sink may
    /// hold one.
    fn decided(&mut self, shared: &RowStore, key: &RowKey, cause: RemovalCause) {
        self.touch(shared, key, None, Some(cause), true);
    }

    fn touch(
        &mut self,
        shared: &RowStore,
        key: &RowKey,
        before: Option<&Arc<Row>>,
        removal: Option<RemovalCause>,
        may_be_held: bool,
    ) {
        let name = (key.group.clone(), key.kind.clone());
        let shown = self.shown_rows(&name).contains(key);
        self.revision = shared.next_revision();
        shared.report(&key.target, self);
        self.readers.retain(|reader| {
            let Some(reader) = reader.upgrade() else { return false };
            let mut dirty = lock(&reader.rows);
            let rows = dirty.targets.entry(key.target.clone()).or_default().entry(name.clone()).or_default();
            let new = || TouchedRow { before: before.cloned(), removal: None, may_be_held: false };
            let touched = rows.entry(key.clone()).or_insert_with(new);
            touched.removal = removal;
            touched.may_be_held |= may_be_held;
            if shown {
                dirty.since.get_or_insert_with(Instant::now);
                reader.wake.notify_one();
            }
            true
        });
    }

    /// The kind, if it takes rows from this writer.
    fn writable_kind(&mut self, rows: &KindRows) -> Option<&mut StoredKind> {
        let own = |kind: &&mut StoredKind| kind.number == rows.number && !kind.deselected;
        self.kinds.get_mut(&rows.kind).filter(|kind| !self.frozen && own(kind))
    }

    /// Removes rows of deselected kinds, where the kinds that the target selects now replace them. Must be called when
    /// the selected kinds or their visibilities have changed.
    fn remove_replaced_rows(&mut self, shared: &RowStore) {
        let wanted: Vec<Visibility> =
            self.kinds.values().filter(|kind| !kind.deselected).map(|kind| kind.visibility.clone()).collect();
        let mut removed: Vec<StoredRow> = Vec::new();
        for kind in self.kinds.values_mut().filter(|kind| kind.deselected) {
            // Readers have seen no rows of a kind that was never shown: those go at once.
            let shown = kind.shown;
            let is_removed = |key: &RowKey| !shown || is_replaced(key, wanted.iter());
            kind.failures.retain(|_, failure| !is_removed(&failure.key));
            kind.undecided.retain(|_, object| !is_removed(&object.key));
            removed.extend(kind.remove_rows(|held| is_removed(&held.row.key)));
        }
        self.kinds.retain(|_, kind| !kind.deselected || !kind.rows.is_empty() || !kind.failures.is_empty());
        for StoredRow { row, .. } in &removed {
            self.changed(shared, &row.key, Some(row), Err(RemovalCause::SpecChanged));
        }
        self.update_shown_kinds();
    }

    /// Updates which kinds replace others, and of which kinds readers may have seen rows.
    fn update_shown_kinds(&mut self) {
        let deselected = self.kinds.values().any(|kind| kind.deselected && !kind.rows.is_empty());
        for kind in self.kinds.values_mut().filter(|kind| !kind.deselected) {
            kind.replaces = deselected && (kind.replaces || !kind.shown);
            kind.shown |= !matches!(kind.shown_rows(), ShownRows::None);
        }
    }

    /// The revision that the target has reached.
    fn reached(&self) -> Revision {
        let listing = self.kinds.values().filter(|kind| !kind.deselected).filter_map(|kind| kind.listing);
        let hidden_after = listing.map(|listing| listing.revision).min().unwrap_or(u64::MAX);
        Revision { revision: self.revision, hidden_after }
    }

    /// The rows of a kind that readers see.
    fn shown_rows(&self, name: &KindName) -> ShownRows<'_> {
        self.kinds.get(name).map_or(ShownRows::All, StoredKind::shown_rows)
    }

    /// Wakes the readers: rows that waited may be visible now.
    fn wake_readers(&self, id: &TargetId) {
        for reader in self.readers.iter().filter_map(Weak::upgrade) {
            let mut dirty = lock(&reader.rows);
            if dirty.targets.contains_key(id) {
                dirty.since.get_or_insert_with(Instant::now);
            }
            drop(dirty);
            reader.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
