//! Progress of a binding: what its sink has acknowledged, what waits, and what is being done. The task of the binding
//! writes it, statuses and metrics read it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use kollect_model::row::{RowDigest, RowKey, TargetId};
use tokio::time::{self, Instant};

use crate::{
    clock,
    store::{Revision, WaitingChanges},
};

/// A call to a sink that takes longer than this is late, and so is a change that waits this much longer than the
/// cadence. The status reports both.
pub const LATE: Duration = Duration::from_secs(10);

/// What a sink has acknowledged to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The version of the binding that wrote it: [`super::Binding::version`].
    pub version: u64,
    /// Generation of the inventory's spec in that version.
    pub generation: i64,
    /// Every change of the inventory's rows up to this number is in the sink.
    pub revision: u64,
    /// The same, except rows of running lists: those are included when the list has ended.
    pub shown_revision: u64,
    /// How many rows the sink refuses: it holds older versions of them, or none.
    pub refused: usize,
    /// How many rows the sink holds.
    pub rows: usize,
    /// Sum of their digests: equal for equal rows, in any order.
    pub digest: u128,
    /// Checksum of the document or event that was written last.
    pub checksum: Option<String>,
    /// When the sink acknowledged the last row, or that it held all of them.
    pub at: SystemTime,
    /// Nothing was written since this process first compared the sink: the last row is older than `at`.
    pub is_found: bool,
}

/// The answer of a sink to a version of a binding.
#[derive(Clone, Debug)]
pub struct Acknowledgement {
    /// [`super::Binding::version`].
    pub version: u64,
    /// Generation of the inventory's spec in that version.
    pub generation: i64,
    /// The revision of the rows that the sink holds now.
    pub reached: Revision,
    /// Checksum of the document or event that was written last.
    pub checksum: Option<String>,
    /// How many rows it refuses.
    pub refused: usize,
    /// Whether something was written.
    pub wrote: bool,
}

/// Rows that a sink does not have yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// How many. One that has changed again while it was being written counts twice.
    pub rows: usize,
    /// Since when the oldest of them has waited.
    pub since: Instant,
    /// When they are written at the earliest; `None`: at once.
    pub next_write: Option<Instant>,
}

/// What is being done with a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// What it holds is being read.
    Comparing,
    /// Rows are being written.
    Writing,
}

/// Rows of one namespace in a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceRows {
    /// How many.
    pub rows: usize,
    /// Sum of their digests.
    pub digest: u128,
    /// How many of each target.
    pub targets: BTreeMap<TargetId, usize>,
}

/// Progress of a binding; shared by all its versions that lead to one destination.
#[derive(Clone, Default)]
pub struct BindingProgress(Arc<Mutex<ProgressState>>);

#[derive(Default)]
struct ProgressState {
    acknowledged: Option<Acknowledged>,
    tried: Option<u64>,
    held: HeldRows,
    is_known: bool,
    doing: Option<(Activity, Instant)>,
    /// Rows that were taken to be written, and since when they had waited.
    taken: Option<(usize, Instant)>,
    changes: WaitingChanges,
    next_write: Option<Instant>,
}

/// Progress of a binding at one time.
#[derive(Clone, Debug, Default)]
pub struct ProgressSnapshot {
    /// What the sink has acknowledged last; `None`: nothing since this process began to write it.
    pub acknowledged: Option<Acknowledged>,
    /// The newest version of the binding of which an attempt has ended, successful or not.
    pub tried: Option<u64>,
    /// Whether the sink is known to hold what it acknowledged last. Otherwise it will be compared.
    pub is_known: bool,
    /// What is being done, and since when.
    pub doing: Option<(Activity, Instant)>,
    /// What waits to be written.
    pub pending: Option<Pending>,
}

/// Why a sink counts as late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateReason {
    /// A call has taken longer than [`LATE`].
    Doing(Activity),
    /// A change has waited for longer than the cadence and [`LATE`].
    Pending,
}

impl ProgressSnapshot {
    /// Whether something takes too long now. `cadence` is the least time between two writes.
    pub fn late(&self, cadence: Duration, now: Instant) -> Option<LateReason> {
        match self.doing {
            Some((doing, since)) if now >= since + LATE => Some(LateReason::Doing(doing)),
            _ => self
                .pending
                .filter(|pending| now >= pending.since + cadence + LATE)
                .map(|_| LateReason::Pending),
        }
    }

    /// When something will be late, if nothing ends before.
    fn late_at(&self, cadence: Duration) -> Option<Instant> {
        let doing = self.doing.map(|(_, since)| since + LATE);
        let pending = self.pending.map(|pending| pending.since + cadence + LATE);
        [doing, pending].into_iter().flatten().min()
    }
}

impl BindingProgress {
    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress now.
    pub fn read(&self) -> ProgressSnapshot {
        let (mut now, changes, taken, next_write) = {
            let inner = self.lock();
            let ProgressState { acknowledged, tried, is_known, doing, .. } = &*inner;
            let now = ProgressSnapshot {
                acknowledged: acknowledged.clone(),
                tried: *tried,
                is_known: *is_known,
                doing: *doing,
                pending: None,
            };
            (now, inner.changes.clone(), inner.taken, inner.next_write)
        };
        // Counting locks targets: it must not happen while this lock is held.
        now.pending = match (taken, changes.count()) {
            (None, None) => None,
            (Some((rows, since)), None) | (None, Some((rows, since))) => {
                Some(Pending { rows, since, next_write })
            }
            (Some((taken, since)), Some((more, later))) => {
                Some(Pending { rows: taken + more, since: since.min(later), next_write })
            }
        };
        now
    }

    /// Whether the sink has acknowledged a version of the binding, and is known to hold that.
    pub fn has_acknowledged(&self, version: u64) -> bool {
        let inner = self.lock();
        inner.is_known
            && inner.acknowledged.as_ref().is_some_and(|acknowledged| acknowledged.version == version)
    }

    /// Whether an attempt with this version of the binding, or a newer one, has ended, successful or not.
    pub fn has_tried(&self, version: u64) -> bool {
        self.lock().tried.is_some_and(|tried| tried >= version)
    }

    /// The rows that the sink holds by namespace, if the binding counts them.
    pub fn namespaces(&self) -> BTreeMap<Arc<str>, NamespaceRows> {
        self.lock().held.namespaces.clone().unwrap_or_default()
    }

    /// The task of the binding begins, with these changes to write.
    pub(super) fn follow(&self, changes: WaitingChanges) {
        self.lock().changes = changes;
    }

    /// Records what begins, and the rows that were taken to be written, with the time since when they have waited.
    pub(super) fn begin(&self, doing: Activity, taken: Option<(usize, Instant)>) {
        let mut inner = self.lock();
        (inner.doing, inner.next_write) = (Some((doing, Instant::now())), None);
        inner.taken = match (inner.taken, taken) {
            (Some((rows, since)), Some((more, later))) => Some((rows + more, since.min(later))),
            (before, taken) => taken.or(before),
        };
    }

    /// Records that it has ended.
    pub(super) fn end(&self) {
        self.lock().doing = None;
    }

    /// An attempt to bring the sink up to date with a version of the binding has ended.
    pub fn tried(&self, version: u64) {
        self.lock().tried = Some(version);
    }

    /// What the sink holds is not known any more.
    pub fn forget_contents(&self) {
        self.lock().is_known = false;
    }

    /// Records when the waiting changes will be written.
    pub(super) fn wait_until(&self, next_write: Instant) {
        self.lock().next_write = Some(next_write);
    }

    /// Replaces the rows that the sink holds.
    pub(super) fn set_held_rows(&self, held: HeldRows) {
        self.lock().held = held;
    }

    /// Records rows that have changed in the sink: key, digest before, digest after.
    pub fn change<'a>(&self, rows: impl Iterator<Item = (&'a RowKey, Option<RowDigest>, Option<RowDigest>)>) {
        let mut inner = self.lock();
        rows.for_each(|(key, before, after)| inner.held.change(key, before, after));
    }

    /// Records that the sink has acknowledged what it holds now. The time changes only if something was written, or
    /// if it was not known what the sink holds.
    pub fn acknowledge(&self, acknowledgement: Acknowledgement) {
        let Acknowledgement { version, generation, reached, checksum, refused, wrote } = acknowledgement;
        let mut inner = self.lock();
        let last = inner.acknowledged.as_ref();
        let before = last.filter(|_| inner.is_known && !wrote);
        let at = before.map_or_else(clock::now, |before| before.at);
        let is_found = !wrote && before.or(last).is_none_or(|last| last.is_found && inner.is_known);
        let HeldRows { rows, digest, .. } = inner.held;
        let (revision, shown_revision) = (reached.visible_up_to(), reached.visible_except_running_lists());
        inner.acknowledged = Some(Acknowledged {
            version,
            generation,
            revision,
            shown_revision,
            refused,
            rows,
            digest,
            checksum,
            at,
            is_found,
        });
        (inner.is_known, inner.taken, inner.tried) = (true, None, Some(version));
    }

    /// Records that no change up to `reached` needs a write, and how many rows the sink refuses now. Returns whether
    /// a revision has advanced.
    pub(super) fn advance(&self, reached: Revision, refused: usize) -> bool {
        let mut inner = self.lock();
        inner.taken = None;
        let Some(acknowledged) = &mut inner.acknowledged else { return false };
        let before = (acknowledged.revision, acknowledged.shown_revision);
        acknowledged.revision = acknowledged.revision.max(reached.visible_up_to());
        acknowledged.shown_revision = acknowledged.shown_revision.max(reached.visible_except_running_lists());
        acknowledged.refused = refused;
        before != (acknowledged.revision, acknowledged.shown_revision)
    }

    /// Calls `report` whenever something begins to take too long. Never returns.
    pub(super) async fn watch(&self, cadence: Duration, mut report: impl FnMut()) {
        let mut reported = None;
        loop {
            let progress = self.read();
            let now = Instant::now();
            let late = progress.late(cadence, now);
            if late.is_some() && late != reported {
                report();
            }
            reported = late;
            let next = progress.late_at(cadence).filter(|at| *at > now).unwrap_or(now + LATE);
            time::sleep_until(next).await;
        }
    }
}

/// The rows that a sink holds, summed up.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldRows {
    rows: usize,
    digest: u128,
    /// `None`: they are not counted by namespace.
    namespaces: Option<BTreeMap<Arc<str>, NamespaceRows>>,
}

impl HeldRows {
    /// No rows.
    pub(super) fn new(by_namespace: bool) -> Self {
        Self { namespaces: by_namespace.then(BTreeMap::new), ..Self::default() }
    }

    /// Records a changed row; `None`: it does not exist.
    pub(super) fn change(&mut self, key: &RowKey, before: Option<RowDigest>, after: Option<RowDigest>) {
        let digest = |row: Option<RowDigest>| row.map_or(0, |row| row.0);
        let replaced = |sum: u128| sum.wrapping_sub(digest(before)).wrapping_add(digest(after));
        let count = |rows: usize| rows + usize::from(after.is_some()) - usize::from(before.is_some());
        (self.rows, self.digest) = (count(self.rows), replaced(self.digest));
        let Some(namespaces) = &mut self.namespaces else { return };
        let own = namespaces.entry(key.namespace.clone()).or_default();
        (own.rows, own.digest) = (count(own.rows), replaced(own.digest));
        let of_target = own.targets.entry(key.target.clone()).or_default();
        *of_target = count(*of_target);
        if *of_target == 0 {
            own.targets.remove(&key.target);
        }
        if own.rows == 0 {
            namespaces.remove(&key.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledgement(wrote: bool) -> Acknowledgement {
        let reached = Revision::at(5);
        Acknowledgement { version: 1, generation: 1, reached, checksum: None, refused: 0, wrote }
    }

    fn key(namespace: &str, uid: &str) -> RowKey {
        RowKey {
            target: TargetId { namespace: None, name: "all".into() },
            group: "".into(),
            kind: "Pod".into(),
            namespace: namespace.into(),
            uid: uid.into(),
        }
    }

    #[test]
    fn sums_of_rows_do_not_depend_on_their_order() {
        let digest = |number| Some(RowDigest(number));
        let mut one = HeldRows::new(true);
        one.change(&key("a", "1"), None, digest(7));
        one.change(&key("b", "2"), None, digest(8));
        one.change(&key("a", "1"), digest(7), digest(9));
        let mut other = HeldRows::new(true);
        other.change(&key("b", "2"), None, digest(8));
        other.change(&key("a", "1"), None, digest(9));
        assert_eq!((one.rows, one.digest, &one.namespaces), (2, 17, &other.namespaces));
        one.change(&key("b", "2"), digest(8), None);
        assert_eq!(one.namespaces.as_ref().unwrap().keys().collect::<Vec<_>>(), [&Arc::from("a")]);
        assert_eq!((one.rows, one.digest), (1, 9));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_and_a_change_are_late_after_ten_seconds_and_the_cadence() {
        let cadence = Duration::from_mins(10);
        let progress = BindingProgress::default();
        let late = || progress.read().late(cadence, Instant::now());
        progress.begin(Activity::Writing, Some((2, Instant::now())));
        time::sleep(Duration::from_secs(9)).await;
        assert_eq!(late(), None);
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(late(), Some(LateReason::Doing(Activity::Writing)));
        progress.end();
        assert_eq!(late(), None);
        assert_eq!(progress.read().pending.map(|pending| pending.rows), Some(2), "nothing acknowledged them");
        time::sleep(cadence).await;
        assert_eq!(late(), Some(LateReason::Pending));
        progress.acknowledge(acknowledgement(true));
        assert_eq!((late(), progress.read().pending), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn the_acknowledged_time_changes_only_after_a_write_or_a_comparison_of_unknown_contents() {
        clock::simulate(SystemTime::UNIX_EPOCH);
        let progress = BindingProgress::default();
        let at = || progress.read().acknowledged.map(|acknowledged| acknowledged.at);
        let is_found = || progress.read().acknowledged.is_some_and(|acknowledged| acknowledged.is_found);
        progress.acknowledge(acknowledgement(false));
        let first = at();
        time::sleep(Duration::from_mins(1)).await;
        progress.acknowledge(acknowledgement(false));
        assert_eq!((at(), is_found()), (first, true), "an audit that finds nothing");
        progress.forget_contents();
        progress.acknowledge(acknowledgement(false));
        assert!(at() > first && !is_found(), "it was not known what the sink held");
    }
}
