//! One binding at work: what it knows about its sink, and what it does next.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use kollect_model::{
    backoff::Backoff,
    batch::{ChangedRow, Delta, Receipt, RefusedRow, RemovedRow},
    row::{Row, RowDigest, RowKey, TargetId},
    sink::{Delivery, ErrorClass, SinkError, SinkReason},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{
    Acknowledgement, Activity, Binding, BindingEvent, BindingProgress, MayWrite, Outcome,
    claims::{self, ClaimDisputes},
    coverage::{self, is_complete},
    deadline,
    guard::RemovalCauses,
    outcome::ClaimedSink,
    progress::HeldRows,
};
use crate::{
    schedule::{TRANSIENT_PAUSES, TerminalPauses},
    store::{Changes, Revision, StoreChange, StoreReader, TakenChanges, Visibilities, Visibility},
};

/// Why a wait ended.
pub(super) enum WakeReason {
    Changed,
    Audit,
    ClaimCheck,
    BindingChanged,
}

/// Why an attempt ended early.
pub(crate) enum AttemptStopped {
    Breaker(Instant),
    Sink(SinkError),
    /// This process may not write any more.
    MayNotWrite,
}

impl From<SinkError> for AttemptStopped {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

/// State of the connection to the sink.
enum ConnectionPhase {
    /// The next attempt opens the sink, claims the inventory and compares.
    Closed,
    /// The inventory is claimed, and this is known about what the sink holds.
    Claimed(Box<ClaimedSink>, KnownContents),
}

/// What is known about what a sink holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KnownContents {
    /// Nothing: it must be read before anything is written.
    Unknown,
    /// The rows that were written.
    Known,
    /// The rows that were written, unless another writer has changed them: they are read again.
    Uncertain,
    /// The rows of the last comparison: a write would remove too many of them, and the removal guard blocks it.
    RemovalsBlocked,
}

/// Shortest time between two comparisons while removals are blocked.
const BLOCKED_COMPARISON_INTERVAL: Duration = Duration::from_secs(10);

/// Waiting for the cadence is reported only if it takes longer than this.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(1);

/// A row that the sink cannot hold as it is.
struct RefusedRowState {
    refusal: RefusedRow,
    /// What the sink holds of it: an older version, or nothing.
    held: Option<RowDigest>,
}

pub(super) struct RunningBinding<'a> {
    binding: Arc<Binding>,
    rows: &'a StoreReader,
    may_write: &'a MayWrite,
    phase: ConnectionPhase,
    changes: Changes,
    /// Visibilities of the last comparison. Rows of kinds that it had not seen are not in the sink yet.
    seen: Visibilities,
    /// Rows that the sink held at the last comparison, and whose objects could not be seen.
    left_alone: BTreeSet<RowKey>,
    refused: BTreeMap<RowKey, RefusedRowState>,
    /// Targets and kinds that have been seen completely at some time.
    once_complete: BTreeSet<(TargetId, Arc<str>, Arc<str>)>,
    last_write: Option<Instant>,
    /// `None`: this process has not compared yet.
    last_comparison: Option<Instant>,
    disputes: ClaimDisputes,
    backoff: Backoff,
    terminal: TerminalPauses,
    /// The last attempt began with a sink that was open.
    was_open: bool,
}

impl<'a> RunningBinding<'a> {
    pub(super) fn new(binding: Arc<Binding>, rows: &'a StoreReader, may_write: &'a MayWrite) -> Self {
        binding.selection.observe(&binding.selected);
        let changes = rows.changes(&binding.targets);
        binding.progress.follow(changes.waiting());
        binding.progress.forget_contents();
        Self {
            phase: ConnectionPhase::Closed,
            changes,
            seen: Visibilities::new(),
            left_alone: BTreeSet::new(),
            refused: BTreeMap::new(),
            once_complete: BTreeSet::new(),
            last_write: None,
            last_comparison: None,
            disputes: ClaimDisputes::default(),
            backoff: TRANSIENT_PAUSES,
            terminal: TerminalPauses::default(),
            was_open: false,
            binding,
            rows,
            may_write,
        }
    }

    /// How far the binding has come, and the least time between two writes.
    pub(super) fn progress(&self) -> (BindingProgress, Duration) {
        (self.binding.progress.clone(), self.binding.cadence.min_change)
    }

    /// Carries out what the binding was woken for.
    pub(super) async fn act(
        &mut self,
        woken: &WakeReason,
        report: &impl Fn(BindingEvent<'_>),
    ) -> Result<(), AttemptStopped> {
        self.was_open = matches!(self.phase, ConnectionPhase::Claimed(..));
        match woken {
            WakeReason::ClaimCheck => self.check_claim().await,
            WakeReason::Audit => {
                self.read_again();
                self.attempt(report).await
            }
            WakeReason::Changed | WakeReason::BindingChanged => self.attempt(report).await,
        }
    }

    /// Takes over what has changed in the binding.
    pub(super) fn update(&mut self, binding: Arc<Binding>) {
        let known = mem::replace(&mut self.binding, binding);
        let binding = &self.binding;
        binding.selection.observe(&binding.selected);
        if !Arc::ptr_eq(&binding.sink, &known.sink) || binding.claimant != known.claimant {
            self.phase = ConnectionPhase::Closed;
        }
        if binding.targets != known.targets || binding.row_filter != known.row_filter {
            self.changes = self.rows.changes(&binding.targets);
            binding.progress.follow(self.changes.waiting());
            if let ConnectionPhase::Claimed(_, contents) = &mut self.phase {
                *contents = KnownContents::Unknown;
            }
        }
        self.read_again();
        self.disputes = ClaimDisputes::default();
        self.backoff.reset();
        self.terminal.reset();
    }

    /// Marks the contents of the sink, so that they are read again.
    pub(super) fn read_again(&mut self) {
        match &mut self.phase {
            ConnectionPhase::Claimed(_, contents @ KnownContents::Known) => {
                *contents = KnownContents::Uncertain;
            }
            ConnectionPhase::Claimed(_, contents @ KnownContents::RemovalsBlocked) => {
                *contents = KnownContents::Unknown;
            }
            ConnectionPhase::Claimed(_, KnownContents::Unknown | KnownContents::Uncertain)
            | ConnectionPhase::Closed => {}
        }
    }

    fn is_blocked(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Claimed(_, KnownContents::RemovalsBlocked))
    }

    /// How long to wait before the next attempt; `None`: this process may not write any more.
    pub(super) fn stopped(
        &mut self,
        stopped: AttemptStopped,
        report: &impl Fn(BindingEvent<'_>),
    ) -> Option<Duration> {
        let error = match stopped {
            AttemptStopped::Sink(error) => error,
            AttemptStopped::Breaker(until) => {
                self.binding.progress.tried(self.binding.version);
                let pause = until.saturating_duration_since(Instant::now());
                report(BindingEvent::Paused { pause });
                return Some(pause);
            }
            AttemptStopped::MayNotWrite => return None,
        };
        // It is not known which rows have arrived: the sink must be read.
        self.phase = ConnectionPhase::Closed;
        self.binding.progress.forget_contents();
        // What is missing in an open sink, such as a table, may be created again when the sink is opened.
        let is_lost =
            error.reason == SinkReason::ClaimLost || error.reason == SinkReason::Missing && self.was_open;
        let pause = match error.reason {
            SinkReason::Fenced => self.disputes.fenced(),
            _ if is_lost && self.disputes.may_claim_at_once() => {
                report(BindingEvent::ClaimLost(&error));
                return Some(Duration::ZERO);
            }
            _ if is_lost || error.class() == ErrorClass::Transient => {
                self.binding.breaker.count_failure(Instant::now());
                self.backoff.next(fastrand::f64())
            }
            _ => self.terminal.next_pause(),
        };
        self.binding.progress.tried(self.binding.version);
        report(BindingEvent::Failed { error: &error, pause: Some(pause) });
        Some(pause)
    }

    /// Waits until the pause is over, the sink works for another binding, or the binding has changed.
    pub(super) async fn pause(
        &self,
        pause: Duration,
        wanted: &mut watch::Receiver<Option<Arc<Binding>>>,
    ) -> WakeReason {
        tokio::select! {
            // Each branch leads to the next attempt, which checks all of them.
            biased;
            () = time::sleep(pause) => WakeReason::Changed,
            () = self.binding.breaker.closed() => WakeReason::Changed,
            _ = wanted.changed() => {
                wanted.mark_changed();
                WakeReason::BindingChanged
            }
        }
    }

    /// Waits until changes may be written, or until an audit or a check of the claim is due.
    pub(super) async fn wait(
        &self,
        wanted: &mut watch::Receiver<Option<Arc<Binding>>>,
        report: &impl Fn(BindingEvent<'_>),
    ) -> WakeReason {
        let Binding { cadence, targets, .. } = &*self.binding;
        let claim_check = match &self.phase {
            ConnectionPhase::Claimed(sink, _) => sink.next_claim_check(&self.binding, self.last_write),
            ConnectionPhase::Closed => None,
        };
        if self.seen == self.rows.visibilities(targets) {
            tokio::select! {
                biased;
                _ = wanted.changed() => {
                    wanted.mark_changed();
                    return WakeReason::BindingChanged;
                }
                () = wait_until(self.last_comparison.and_then(|last| cadence.next_audit(last))) => return WakeReason::Audit,
                // Also returns when a visibility has changed.
                () = self.changes.ready() => {}
                () = wait_until(claim_check) => return WakeReason::ClaimCheck,
            }
        }
        let now = Instant::now();
        let mut due = cadence.next_write(self.last_write, now);
        if let Some(compared) = self.last_comparison.filter(|_| self.is_blocked()) {
            due = due.max(compared + BLOCKED_COMPARISON_INTERVAL);
        }
        if due > now + REPORT_WAIT_AFTER && !self.changes.is_empty() {
            self.binding.progress.wait_until(due);
            report(BindingEvent::Waits);
        }
        tokio::select! {
            biased;
            _ = wanted.changed() => {
                wanted.mark_changed();
                WakeReason::BindingChanged
            }
            () = time::sleep_until(due) => WakeReason::Changed,
        }
    }

    /// Checks that the claim is still held.
    pub(super) async fn check_claim(&mut self) -> Result<(), AttemptStopped> {
        if let ConnectionPhase::Claimed(sink, _) = &mut self.phase {
            sink.check_claim(&self.binding, self.last_write).await?;
        }
        Ok(())
    }

    pub(super) async fn attempt(&mut self, report: &impl Fn(BindingEvent<'_>)) -> Result<(), AttemptStopped> {
        let binding = self.binding.clone();
        let seen = self.rows.visibilities(&binding.targets);
        // Which of several rows of one object counts depends on all of them.
        let may_have_duplicates = binding.row_filter.one_row_per_object && !self.changes.is_empty();
        // The sink may hold rows of a kind that can be seen again, which could not be removed before.
        let compare = !matches!(self.phase, ConnectionPhase::Claimed(_, KnownContents::Known))
            || seen != self.seen
            || may_have_duplicates;
        if !compare && self.changes.is_empty() {
            self.skip_write(report);
            return Ok(());
        }
        binding.breaker.admit(Instant::now()).map_err(AttemptStopped::Breaker)?;
        binding.progress.begin(Activity::Comparing, None);
        let (mut sink, contents) = match mem::replace(&mut self.phase, ConnectionPhase::Closed) {
            ConnectionPhase::Claimed(sink, contents) => (sink, contents),
            ConnectionPhase::Closed => (Box::new(self.claim(report).await?), KnownContents::Unknown),
        };
        let contents = match sink.delivery() {
            Delivery::Snapshots => self.send_snapshot(&mut sink, report).await?,
            delivery @ (Delivery::Changes | Delivery::Documents) => {
                let (taken, mut rows) = match delivery {
                    Delivery::Documents => self.changes.take_with_rows(),
                    _ => (self.changes.take_all(), BTreeMap::new()),
                };
                rows.retain(|key, _| binding.row_filter.takes(key));
                let TakenChanges { changes, reached, since } = taken;
                // A new visibility may prove rows gone that only the sink holds.
                let compare = compare || self.rows.visibilities(&binding.targets) != self.seen;
                let doing = if compare { Activity::Comparing } else { Activity::Writing };
                binding.progress.begin(doing, since.map(|since| (changes.len(), since)).filter(has_rows));
                let causes = RemovalCauses::of(&changes);
                let guarded = binding.removal_guard.is_some() && causes.has_spec_changes();
                // A row that the sink already holds is not new, although it is new to the store.
                let known = changes.iter().any(|change| self.left_alone.contains(&change.key));
                if compare || guarded || known {
                    self.compare(&mut sink, contents, (changes, causes), report).await?
                } else {
                    self.write_changes(&mut sink, changes, rows, reached, report).await?
                }
            }
        };
        self.phase = ConnectionPhase::Claimed(sink, contents);
        binding.breaker.close();
        self.backoff.reset();
        self.terminal.reset();
        Ok(())
    }

    /// The changes need no write: records that the sink has reached their revision.
    fn skip_write(&mut self, report: &impl Fn(BindingEvent<'_>)) {
        let Some(reached) = self.changes.reached_if_empty() else { return };
        // If a visibility has changed meanwhile, the next attempt compares.
        let is_same = self.rows.visibilities(&self.binding.targets) == self.seen;
        if is_same && self.binding.progress.advance(reached, self.refused.len()) {
            report(BindingEvent::Passed);
        }
    }

    /// Opens the sink and claims the inventory in it: what is read afterwards changes only through this claim, and a
    /// sink that refuses the claim is not read.
    async fn claim(&mut self, report: &impl Fn(BindingEvent<'_>)) -> Result<ClaimedSink, AttemptStopped> {
        let sink = deadline::open(&*self.binding.sink).await?;
        claims::check_free(&self.binding, &*sink, self.disputes.is_fenced()).await?;
        self.check_may_write()?;
        let granted = claims::claim(&self.binding, &*sink, 0).await?;
        self.disputes.granted();
        report(BindingEvent::Claimed(&granted.claim));
        Ok(ClaimedSink::new(sink, granted, &self.binding))
    }

    fn check_may_write(&self) -> Result<(), AttemptStopped> {
        if (self.may_write)() { Ok(()) } else { Err(AttemptStopped::MayNotWrite) }
    }

    /// Reads what the sink holds, and writes what differs.
    async fn compare(
        &mut self,
        sink: &mut ClaimedSink,
        contents: KnownContents,
        (changes, causes): (Vec<StoreChange>, RemovalCauses),
        report: &impl Fn(BindingEvent<'_>),
    ) -> Result<KnownContents, AttemptStopped> {
        let binding = self.binding.clone();
        let unwritten: BTreeSet<RowKey> = changes.into_iter().map(|change| change.key).collect();
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.outside.clone());
        let seen = snapshot.visibilities().clone();
        self.changes.rebase(&snapshot);
        binding.row_filter.apply(&mut snapshot);
        let mut difference = sink.compare(&binding, &snapshot, &seen).await?;
        let blocked = binding.removal_guard.as_ref().and_then(|guard| {
            let (delta, held) = (&difference.delta, difference.held_rows());
            guard.blocks(delta, held, &snapshot, &binding.row_filter, &causes, &binding.selection)
        });
        if let Some(blocked) = blocked {
            (self.seen, self.last_comparison) = (seen, Some(Instant::now()));
            binding.progress.forget_contents();
            binding.progress.tried(binding.version);
            report(BindingEvent::RemovalsHeld(&blocked));
            return Ok(KnownContents::RemovalsBlocked);
        }
        self.check_may_write()?;
        let delta = &difference.delta;
        if !delta.is_empty() {
            binding.progress.begin(Activity::Writing, None);
        }
        let revision = snapshot.reached.visible_up_to();
        let coverage = self.coverage(&seen);
        let receipt = sink.write(&binding, delta, &snapshot.rows, revision, &coverage).await?;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        let is_drift = |key: &&RowKey| !unwritten.contains(*key) && !self.refused.contains_key(*key);
        let drifted = match contents {
            KnownContents::Unknown | KnownContents::RemovalsBlocked => 0,
            KnownContents::Known | KnownContents::Uncertain if seen != self.seen => 0,
            KnownContents::Known | KnownContents::Uncertain => keys(delta).filter(is_drift).count(),
        };
        let before = |key: &RowKey| difference.before.get(key).copied();
        let refused = receipt.refused.iter().map(|refusal| {
            let refused = RefusedRowState { refusal: refusal.clone(), held: before(&refusal.key) };
            (refusal.key.clone(), refused)
        });
        self.refused = refused.collect();
        binding.progress.set_held_rows(mem::take(&mut difference.held));
        binding.progress.change(written(delta, &self.refused, before));
        let wrote = !delta.is_empty();
        binding.progress.acknowledge(self.acknowledgement(snapshot.reached, &receipt, wrote));
        binding.selection.acknowledge(self.last_comparison.is_none());
        (self.seen, self.last_comparison) = (seen, Some(Instant::now()));
        let (outcome, left_alone) = difference.into_outcome(receipt, drifted);
        self.left_alone = left_alone;
        report(BindingEvent::Compared(&outcome));
        Ok(KnownContents::Known)
    }

    /// Writes what has changed since the last time. `rows` are all rows after it, if the sink takes them.
    async fn write_changes(
        &mut self,
        sink: &mut ClaimedSink,
        changes: Vec<StoreChange>,
        rows: BTreeMap<RowKey, Arc<Row>>,
        reached: Revision,
        report: &impl Fn(BindingEvent<'_>),
    ) -> Result<KnownContents, AttemptStopped> {
        let binding = self.binding.clone();
        let mut refused_before = Vec::new();
        let wanted = changes.into_iter().filter(|change| binding.row_filter.takes(&change.key));
        // If the sink refused a row before, it does not hold the version that the store had before.
        let delta = delta_of(wanted.map(|change| {
            let refused = self.refused.get(&change.key);
            refused_before.extend(refused.map(|_| change.key.clone()));
            (refused.map(|refused| refused.held), change)
        }));
        if delta.is_empty() {
            // The changed rows do not belong to this inventory, or have changed back.
            refused_before.iter().for_each(|key| drop(self.refused.remove(key)));
            let is_newer = binding.progress.advance(reached, self.refused.len());
            if is_newer && refused_before.is_empty() {
                report(BindingEvent::Passed);
            }
            if !refused_before.is_empty() {
                report(BindingEvent::Written(
                    &delta,
                    &Receipt { refused: self.refusals(), ..Receipt::default() },
                ));
            }
            return Ok(KnownContents::Known);
        }
        self.check_may_write()?;
        let coverage = self.coverage(&self.seen);
        let mut receipt = sink.write(&binding, &delta, &rows, reached.visible_up_to(), &coverage).await?;
        self.last_write = Some(Instant::now());
        // What the sink held of each row before.
        let mut held: BTreeMap<RowKey, Option<RowDigest>> = BTreeMap::new();
        for (key, known) in changed_rows(&delta) {
            let refused = self.refused.get(key);
            held.insert(key.clone(), refused.map_or(known, |refused| refused.held));
        }
        refused_before.iter().for_each(|key| drop(self.refused.remove(key)));
        let before = |key: &RowKey| held.get(key).copied().flatten();
        for refusal in &receipt.refused {
            let refused = RefusedRowState { refusal: refusal.clone(), held: before(&refusal.key) };
            self.refused.insert(refusal.key.clone(), refused);
        }
        binding.progress.change(written(&delta, &self.refused, before));
        binding.progress.acknowledge(self.acknowledgement(reached, &receipt, true));
        // Rows that earlier writes refused are still missing.
        receipt.refused = self.refusals();
        binding.selection.acknowledge(false);
        report(BindingEvent::Written(&delta, &receipt));
        Ok(KnownContents::Known)
    }

    /// The acknowledgement of a write; [`Self::refused`] must be up to date.
    fn acknowledgement(&self, reached: Revision, receipt: &Receipt, wrote: bool) -> Acknowledgement {
        let Binding { version, generation, .. } = *self.binding;
        let (checksum, refused) = (receipt.checksum.clone(), self.refused.len());
        Acknowledgement { version, generation, reached, checksum, refused, wrote }
    }

    /// What could be seen, in one line.
    fn coverage(&self, seen: &Visibilities) -> String {
        let undecided = self.binding.targets.iter().map(|target| self.rows.undecided(target).0).sum();
        coverage::coverage(seen, &self.binding.watched, undecided)
    }

    fn refusals(&self) -> Vec<RefusedRow> {
        self.refused.values().map(|refused| refused.refusal.clone()).collect()
    }

    /// Sends all rows to a sink that takes whole snapshots.
    async fn send_snapshot(
        &mut self,
        sink: &mut ClaimedSink,
        report: &impl Fn(BindingEvent<'_>),
    ) -> Result<KnownContents, AttemptStopped> {
        let binding = self.binding.clone();
        let TakenChanges { changes, since, .. } = self.changes.take_all();
        let taken = since.map(|since| (changes.len(), since)).filter(has_rows);
        binding.progress.begin(Activity::Writing, taken);
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.outside.clone());
        let seen = snapshot.visibilities().clone();
        self.changes.rebase(&snapshot);
        binding.row_filter.apply(&mut snapshot);
        // A kind that is not served may be a typing error: the rows of the kind before it are not known any more.
        let is_seen = |visibility: &Visibility| {
            *visibility != Visibility::Absent && is_complete(visibility, &binding.watched)
        };
        let complete =
            seen.iter().filter(|(_, visibility)| is_seen(visibility)).map(|(target_kind, _)| target_kind);
        self.once_complete.extend(complete.cloned());
        // A target without visibilities may have rows that are not known.
        let unseen = binding.targets.iter().any(|id| !seen.keys().any(|(target, _, _)| target == id));
        let pending = seen.values().any(|visibility| *visibility == Visibility::Pending);
        // Rows of undecided objects would be missing.
        let blind = unseen
            || pending
            || snapshot.undecided() > 0
            || !seen.keys().all(|target_kind| self.once_complete.contains(target_kind));
        (self.seen, self.last_comparison) = (seen.clone(), Some(Instant::now()));
        if blind && binding.last_checksum.get().is_some() {
            binding.progress.tried(binding.version);
            let coverage = coverage::unseen(&seen, is_seen, snapshot.undecided());
            report(BindingEvent::HeldBack { coverage: &coverage });
            return Ok(KnownContents::Known);
        }
        let added = snapshot.rows.values().cloned().collect();
        let delta = Delta { added, ..Delta::default() };
        self.check_may_write()?;
        let revision = snapshot.reached.visible_up_to();
        let coverage = self.coverage(&seen);
        let receipt = sink.write(&binding, &delta, &snapshot.rows, revision, &coverage).await?;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        // The sink does not send the same rows twice.
        let wrote = binding.last_checksum.get() != receipt.checksum;
        binding.last_checksum.set(receipt.checksum.as_ref());
        let mut held = HeldRows::new(binding.counts_namespaces);
        delta.rows().for_each(|row| held.change(&row.key, None, Some(row.digest)));
        binding.progress.set_held_rows(held);
        binding.progress.acknowledge(self.acknowledgement(snapshot.reached, &receipt, wrote));
        let kept = BTreeMap::new();
        let is_complete = !blind;
        let outcome = Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, is_complete, kept };
        report(BindingEvent::Compared(&outcome));
        Ok(KnownContents::Known)
    }
}

/// Whether rows were taken to be written.
fn has_rows((rows, _): &(usize, Instant)) -> bool {
    *rows > 0
}

/// Waits until a time; never returns if there is none.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Keys of all rows of a delta.
fn keys(delta: &Delta) -> impl Iterator<Item = &RowKey> {
    delta.rows().map(|row| &row.key).chain(delta.removed.iter().map(|removed| &removed.key))
}

/// All rows of a delta, with the digest of what the sink holds, as far as the delta knows.
fn changed_rows(delta: &Delta) -> impl Iterator<Item = (&RowKey, Option<RowDigest>)> {
    let digest = |row: &Option<Arc<Row>>| row.as_ref().map(|row| row.digest);
    let added = delta.added.iter().map(|row| (&row.key, None));
    let changed = delta.changed.iter().map(move |changed| (&changed.after.key, digest(&changed.before)));
    let removed = delta.removed.iter().map(move |removed| (&removed.key, digest(&removed.before)));
    added.chain(changed).chain(removed)
}

/// The rows that a delta has changed in a sink, but for those that it refused: what they were, and what they are.
fn written<'a>(
    delta: &'a Delta,
    refused: &'a BTreeMap<RowKey, RefusedRowState>,
    before: impl Fn(&RowKey) -> Option<RowDigest> + Copy + 'a,
) -> impl Iterator<Item = (&'a RowKey, Option<RowDigest>, Option<RowDigest>)> {
    let rows = delta.rows().filter(|row| !refused.contains_key(&row.key));
    let rows = rows.map(move |row| (&row.key, before(&row.key), Some(row.digest)));
    rows.chain(delta.removed.iter().map(move |removed| (&removed.key, before(&removed.key), None)))
}

/// What to write for changes, each with the digest that the sink holds if that is not what the store knew.
fn delta_of(changes: impl Iterator<Item = (Option<Option<RowDigest>>, StoreChange)>) -> Delta {
    let mut delta = Delta::default();
    for (held, StoreChange { key, before, after, .. }) in changes {
        let known = before.as_ref().map(|row| row.digest);
        let held = held.unwrap_or(known);
        let before = before.filter(|_| held == known);
        match (held, after) {
            (None, None) => {}
            (Some(held), Some(after)) if held == after.digest => {}
            (None, Some(row)) => delta.added.push(row),
            (Some(_), Some(after)) => delta.changed.push(ChangedRow { before, after }),
            (Some(_), None) => delta.removed.push(RemovedRow { key, before }),
        }
    }
    delta
}
