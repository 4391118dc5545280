//! One binding at work: what it knows about its sink, and what it does next.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use kollect_model::{
    backoff::Backoff,
    batch::{Changed, Delta, Refusal, Removed},
    row::{RowKey, TargetId},
    sink::{Delivery, ErrorClass, SinkError, SinkReason},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{
    Binding, MayWrite, Outcome, TERMINAL_PAUSE, Told,
    claims::{self, Disputes},
    coverage::{self, is_complete},
    guard::Causes,
    outcome::ClaimedSink,
};
use crate::store::{Change, Changes, Sight, Sights, StoreReader};

/// How a wait ended.
pub(super) enum Woken {
    Changed,
    Audit,
    ClaimCheck,
    Wanted,
}

/// Why an attempt ended early.
pub(crate) enum Stopped {
    Breaker(Instant),
    Sink(SinkError),
    /// This process does not lead any more.
    MayNotWrite,
}

impl From<SinkError> for Stopped {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

/// How far a binding is.
enum Phase {
    /// The next attempt opens the sink, claims the inventory and compares.
    Closed,
    /// The inventory is claimed, and this is known about what the sink holds.
    Claimed(Box<ClaimedSink>, Contents),
}

/// What is known about what a sink holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// Nothing: it must be read before anything is written.
    Unknown,
    /// What was written.
    Known,
    /// What was written, unless others have changed it: it is read again.
    Doubted,
    /// What it was; writing would remove too many rows.
    Held,
}

/// Removals that are held are looked at again no more often than this.
const HELD_AGAIN: Duration = Duration::from_secs(10);

pub(super) struct State<'a> {
    binding: Arc<Binding>,
    rows: &'a StoreReader,
    may_write: &'a MayWrite,
    phase: Phase,
    changes: Changes,
    /// What the snapshot of the last comparison had seen. Rows of everything else are not in the sink yet.
    seen: Sights,
    /// Rows that the sink held at the last comparison, and whose objects could not be seen.
    left_alone: BTreeSet<RowKey>,
    /// Rows that the sink cannot hold.
    refused: BTreeMap<RowKey, Refusal>,
    /// Places that have been seen as a whole at some time.
    once_complete: BTreeSet<(TargetId, Arc<str>, Arc<str>)>,
    last_write: Option<Instant>,
    /// `None`: this process has not compared yet.
    last_comparison: Option<Instant>,
    disputes: Disputes,
    backoff: Backoff,
}

impl<'a> State<'a> {
    pub(super) fn new(binding: Arc<Binding>, rows: &'a StoreReader, may_write: &'a MayWrite) -> Self {
        binding.selection.observe(&binding.selected);
        Self {
            phase: Phase::Closed,
            changes: rows.changes(&binding.targets),
            seen: Sights::new(),
            left_alone: BTreeSet::new(),
            refused: BTreeMap::new(),
            once_complete: BTreeSet::new(),
            last_write: None,
            last_comparison: None,
            disputes: Disputes::default(),
            backoff: Backoff::default(),
            binding,
            rows,
            may_write,
        }
    }

    /// Takes over what has changed in the binding.
    pub(super) fn update(&mut self, binding: Arc<Binding>) {
        let known = mem::replace(&mut self.binding, binding);
        let binding = &self.binding;
        binding.selection.observe(&binding.selected);
        if !Arc::ptr_eq(&binding.sink, &known.sink) || binding.claimant != known.claimant {
            self.phase = Phase::Closed;
        }
        if binding.targets != known.targets || binding.choice != known.choice {
            self.changes = self.rows.changes(&binding.targets);
            if let Phase::Claimed(_, contents) = &mut self.phase {
                *contents = Contents::Unknown;
            }
        }
        self.doubt();
        self.disputes = Disputes::default();
        self.backoff.reset();
    }

    /// The sink is read again.
    pub(super) fn doubt(&mut self) {
        match &mut self.phase {
            Phase::Claimed(_, contents @ Contents::Known) => *contents = Contents::Doubted,
            Phase::Claimed(_, contents @ Contents::Held) => *contents = Contents::Unknown,
            Phase::Claimed(_, Contents::Unknown | Contents::Doubted) | Phase::Closed => {}
        }
    }

    fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Claimed(_, Contents::Held))
    }

    /// How long to wait before the next attempt; `None`: this process may not write any more.
    pub(super) fn stopped(&mut self, stopped: Stopped, tell: &impl Fn(Told<'_>)) -> Option<Duration> {
        let error = match stopped {
            Stopped::Sink(error) => error,
            Stopped::Breaker(until) => {
                let pause = until.saturating_duration_since(Instant::now());
                tell(Told::Waiting { pause });
                return Some(pause);
            }
            Stopped::MayNotWrite => return None,
        };
        // What arrived is not known: the sink itself knows.
        self.phase = Phase::Closed;
        let pause = match error.reason {
            SinkReason::Fenced => self.disputes.fenced(),
            SinkReason::ClaimLost if self.disputes.may_claim_at_once() => {
                tell(Told::ClaimLost(&error));
                return Some(Duration::ZERO);
            }
            _ if error.class() == ErrorClass::Transient => {
                self.binding.breaker.count_failure(Instant::now());
                self.backoff.next(fastrand::f64())
            }
            _ => TERMINAL_PAUSE,
        };
        tell(Told::Failed { error: &error, pause: Some(pause) });
        Some(pause)
    }

    /// Waits until the pause is over, the sink works for another binding, or what may have been wrong has changed.
    pub(super) async fn rest(
        &self,
        pause: Duration,
        wanted: &mut watch::Receiver<Option<Arc<Binding>>>,
    ) -> Woken {
        tokio::select! {
            // Each leads to the next attempt, which looks at all of them.
            biased;
            () = time::sleep(pause) => Woken::Changed,
            () = self.binding.breaker.closed() => Woken::Changed,
            _ = wanted.changed() => {
                wanted.mark_changed();
                Woken::Wanted
            }
        }
    }

    /// Waits until there is something to write and it may be written, or something to look at.
    pub(super) async fn wait(&self, wanted: &mut watch::Receiver<Option<Arc<Binding>>>) -> Woken {
        let Binding { cadence, targets, .. } = &*self.binding;
        let mut sights = self.rows.sight_changes();
        sights.mark_unchanged();
        let claim_check = match &self.phase {
            Phase::Claimed(sink, _) => sink.next_claim_check(&self.binding, self.last_write),
            Phase::Closed => None,
        };
        if self.seen == self.rows.sights(targets) {
            tokio::select! {
                biased;
                _ = wanted.changed() => {
                    wanted.mark_changed();
                    return Woken::Wanted;
                }
                () = at(self.last_comparison.and_then(|last| cadence.next_audit(last))) => return Woken::Audit,
                () = self.changes.ready() => {}
                Ok(()) = sights.changed() => {}
                () = at(claim_check) => return Woken::ClaimCheck,
            }
        }
        let mut due = cadence.next_write(self.last_write, Instant::now());
        if let Some(compared) = self.last_comparison.filter(|_| self.is_held()) {
            due = due.max(compared + HELD_AGAIN);
        }
        tokio::select! {
            biased;
            _ = wanted.changed() => {
                wanted.mark_changed();
                Woken::Wanted
            }
            () = time::sleep_until(due) => Woken::Changed,
        }
    }

    /// Looks whether the claim still stands.
    pub(super) async fn check_claim(&mut self) -> Result<(), Stopped> {
        if let Phase::Claimed(sink, _) = &mut self.phase {
            sink.check_claim(&self.binding, self.last_write).await?;
        }
        Ok(())
    }

    pub(super) async fn attempt(&mut self, tell: &impl Fn(Told<'_>)) -> Result<(), Stopped> {
        let binding = self.binding.clone();
        let seen = self.rows.sights(&binding.targets);
        // Which of several rows of one object counts can be told only from all of them.
        let doubled = binding.choice.one_row_per_object && !self.changes.is_empty();
        // What can be seen again may have left rows behind that could not be removed before.
        let compare =
            !matches!(self.phase, Phase::Claimed(_, Contents::Known)) || seen != self.seen || doubled;
        if !compare && self.changes.is_empty() {
            return Ok(());
        }
        binding.breaker.admit(Instant::now()).map_err(Stopped::Breaker)?;
        let (mut sink, contents) = match mem::replace(&mut self.phase, Phase::Closed) {
            Phase::Claimed(sink, contents) => (sink, contents),
            Phase::Closed => (Box::new(self.claim(tell).await?), Contents::Unknown),
        };
        let contents = match sink.delivery() {
            Delivery::Snapshots => self.send_snapshot(&mut sink, tell).await?,
            Delivery::Changes => {
                // Not newer than the changes.
                let revision = self.rows.revision(&binding.targets);
                let changes = self.changes.take();
                let causes = Causes::of(&changes);
                let guarded = binding.removal_guard.is_some() && causes.has_spec_changes();
                // What the sink holds already is not new, although it is new to the store.
                let known = changes.iter().any(|change| self.left_alone.contains(&change.key));
                if compare || guarded || known {
                    self.compare(&mut sink, contents, (changes, causes), tell).await?
                } else {
                    self.write_changes(&mut sink, changes, revision, tell).await?
                }
            }
        };
        self.phase = Phase::Claimed(sink, contents);
        binding.breaker.close();
        self.backoff.reset();
        Ok(())
    }

    /// Opens the sink and claims the inventory in it: what is read afterwards changes only through this claim, and a
    /// sink that refuses the claim is not read.
    async fn claim(&mut self, tell: &impl Fn(Told<'_>)) -> Result<ClaimedSink, Stopped> {
        let sink = self.binding.sink.open().await?;
        claims::check_free(&self.binding, &*sink, self.disputes.is_fenced()).await?;
        self.check_may_write()?;
        let granted = claims::claim(&self.binding, &*sink, 0).await?;
        self.disputes.granted();
        tell(Told::Claimed(&granted.claim));
        Ok(ClaimedSink::new(sink, granted, &self.binding))
    }

    fn check_may_write(&self) -> Result<(), Stopped> {
        if (self.may_write)() { Ok(()) } else { Err(Stopped::MayNotWrite) }
    }

    /// Reads what the sink holds, and writes what differs.
    async fn compare(
        &mut self,
        sink: &mut ClaimedSink,
        contents: Contents,
        (changes, causes): (Vec<Change>, Causes),
        tell: &impl Fn(Told<'_>),
    ) -> Result<Contents, Stopped> {
        let binding = self.binding.clone();
        let unwritten: BTreeSet<RowKey> = changes.into_iter().map(|change| change.key).collect();
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.rest.clone());
        let seen = snapshot.sights().clone();
        self.changes.rebase(&snapshot);
        binding.choice.apply(&mut snapshot);
        let difference = sink.compare(&binding, &snapshot, &seen).await?;
        let held = binding.removal_guard.as_ref().and_then(|guard| {
            let (delta, held) = (&difference.delta, difference.held_rows());
            guard.holds(delta, held, &snapshot, &binding.choice, &causes, &binding.selection)
        });
        if let Some(held) = held {
            (self.seen, self.last_comparison) = (seen, Some(Instant::now()));
            tell(Told::RemovalsHeld(&held));
            return Ok(Contents::Held);
        }
        self.check_may_write()?;
        let receipt = sink.write(&binding, &difference.delta, snapshot.revision, &seen).await?;
        let delta = &difference.delta;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        let is_drift = |key: &&RowKey| !unwritten.contains(*key) && !self.refused.contains_key(*key);
        let drifted = match contents {
            Contents::Unknown | Contents::Held => 0,
            Contents::Known | Contents::Doubted if seen != self.seen => 0,
            Contents::Known | Contents::Doubted => keys(delta).filter(is_drift).count(),
        };
        self.refused = receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())).collect();
        binding.selection.acknowledge(self.last_comparison.is_none());
        (self.seen, self.last_comparison) = (seen, Some(Instant::now()));
        let (outcome, left_alone) = difference.written(receipt, drifted);
        self.left_alone = left_alone;
        tell(Told::Compared(&outcome));
        Ok(Contents::Known)
    }

    /// Writes what has changed since the last time.
    async fn write_changes(
        &mut self,
        sink: &mut ClaimedSink,
        changes: Vec<Change>,
        revision: u64,
        tell: &impl Fn(Told<'_>),
    ) -> Result<Contents, Stopped> {
        let binding = self.binding.clone();
        let delta = delta_of(changes.into_iter().filter(|change| binding.choice.takes(&change.key)));
        if delta.is_empty() {
            return Ok(Contents::Known);
        }
        self.check_may_write()?;
        let mut receipt = sink.write(&binding, &delta, revision, &self.seen).await?;
        self.last_write = Some(Instant::now());
        keys(&delta).for_each(|key| drop(self.refused.remove(key)));
        self.refused.extend(receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())));
        // Those of earlier writes are still missing.
        receipt.refused = self.refused.values().cloned().collect();
        binding.selection.acknowledge(false);
        tell(Told::Written(&delta, &receipt));
        Ok(Contents::Known)
    }

    /// Sends all rows to a sink that keeps none of them.
    async fn send_snapshot(
        &mut self,
        sink: &mut ClaimedSink,
        tell: &impl Fn(Told<'_>),
    ) -> Result<Contents, Stopped> {
        let binding = self.binding.clone();
        self.changes.take();
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.rest.clone());
        let seen = snapshot.sights().clone();
        self.changes.rebase(&snapshot);
        binding.choice.apply(&mut snapshot);
        // A kind that is not served may have replaced another one by mistake, whose rows are not known any more.
        let is_seen = |sight: &Sight| *sight != Sight::Absent && is_complete(sight, &binding.scope);
        let complete = seen.iter().filter(|(_, sight)| is_seen(sight)).map(|(place, _)| place);
        self.once_complete.extend(complete.cloned());
        // A target of which nothing is known, or not yet again, may have rows.
        let unseen = binding.targets.iter().any(|id| !seen.keys().any(|(target, _, _)| target == id));
        let pending = seen.values().any(|sight| *sight == Sight::Pending);
        let blind = unseen || pending || !seen.keys().all(|place| self.once_complete.contains(place));
        (self.seen, self.last_comparison) = (seen.clone(), Some(Instant::now()));
        if blind && binding.last_checksum.get().is_some() {
            tell(Told::HeldBack { coverage: &coverage::unseen(&seen, is_seen) });
            return Ok(Contents::Known);
        }
        let added = snapshot.rows.values().cloned().collect();
        let delta = Delta { added, ..Delta::default() };
        self.check_may_write()?;
        let receipt = sink.write(&binding, &delta, snapshot.revision, &seen).await?;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        binding.last_checksum.set(receipt.checksum.as_ref());
        let kept = BTreeMap::new();
        let is_complete = !blind;
        let outcome = Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, is_complete, kept };
        tell(Told::Compared(&outcome));
        Ok(Contents::Known)
    }
}

/// Returns at a time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// All rows of a delta.
fn keys(delta: &Delta) -> impl Iterator<Item = &RowKey> {
    delta.rows().map(|row| &row.key).chain(delta.removed.iter().map(|gone| &gone.key))
}

fn delta_of(changes: impl Iterator<Item = Change>) -> Delta {
    let mut delta = Delta::default();
    for Change { key, before, after, .. } in changes {
        match (before, after) {
            (None, Some(row)) => delta.added.push(row),
            (before @ Some(_), Some(after)) => delta.changed.push(Changed { before, after }),
            (before, None) => delta.removed.push(Removed { key, before }),
        }
    }
    delta
}
