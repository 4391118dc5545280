//! Brings a sink up to date: once, or for as long as rows change.
//!
//! A binding is one inventory and one sink. It claims the inventory in the sink, compares what the sink holds with
//! the rows when it starts, after an error, when something can be seen again, and on audits; in between it writes
//! what has changed, and looks now and then whether its claim still stands. A sink that fails or is slow concerns its
//! binding only: changes of one row become one, so that a day of failures costs memory for the rows that changed, not
//! for the changes.

mod claims;
mod clean;
mod coverage;
mod outcome;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use kollect_model::{
    backoff::Backoff,
    batch::{Changed, Delta, InventoryId, PART_BYTES, Receipt, Refusal, Removed},
    claim::{Claim, Claimant},
    destination::Destination,
    row::{RowKey, TargetId},
    sink::{Delivery, ErrorClass, Sink, SinkError, SinkReason},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{
    schedule::{Breaker, Cadence},
    store::{Change, Changes, Sight, Sights, Snapshot, StoreReader},
};
use claims::Disputes;
pub use claims::{ClaimChecks, CurrentClaim, Sibling, Siblings};
pub(crate) use clean::clean;
pub use clean::{Cleaned, Leftover};
pub use coverage::coverage;
use coverage::is_complete;
use outcome::ClaimedSink;
pub use outcome::{KeptRows, Outcome};

/// Brings a sink up to date once, with a snapshot that was taken before.
pub async fn export(binding: &Binding, snapshot: &Snapshot) -> Result<Outcome, SinkError> {
    let sink = binding.sink.open().await?;
    let granted = claims::claim(binding, &*sink, 0).await?;
    let mut sink = ClaimedSink::new(sink, granted, binding);
    let difference = sink.compare(binding, snapshot, snapshot.sights()).await?;
    let receipt = sink.write(binding, &difference.delta, snapshot.revision, snapshot.sights()).await?;
    Ok(difference.written(receipt, 0))
}

/// The pause after an error that a person must mend: it is tried again now and then.
pub(crate) const TERMINAL_PAUSE: Duration = Duration::from_mins(5);

/// Which rows of its targets an inventory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of these namespaces only; `None`: of all, and of cluster-scoped objects.
    pub namespaces: Option<BTreeSet<Arc<str>>>,
    /// Of several rows of one object that of the target with the smallest name.
    pub one_row_per_object: bool,
}

impl Choice {
    fn takes(&self, key: &RowKey) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.contains(&key.namespace))
    }

    /// Leaves what the inventory holds.
    pub fn apply(&self, snapshot: &mut Snapshot) {
        snapshot.rows.retain(|key, _| self.takes(key));
        if self.one_row_per_object {
            // Rows are in the order of their targets.
            let mut seen = HashSet::new();
            snapshot.rows.retain(|key, _| seen.insert((key.namespace.clone(), key.uid.clone())));
        }
    }
}

/// Checksum of what was sent last.
#[derive(Clone, Debug, Default)]
pub struct LastChecksum(Arc<Mutex<Option<String>>>);

impl LastChecksum {
    /// Begins with what is known.
    pub fn new(known: Option<String>) -> Self {
        Self(Arc::new(Mutex::new(known)))
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, checksum: Option<&String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = checksum.cloned();
    }
}

/// Opens a sink, as often as it takes. A change of the sink's spec or Secrets makes another one.
#[async_trait]
pub trait Open: Send + Sync {
    /// Connects.
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError>;
}

/// Whether this process may write now: it leads, or it is alone. Asked before each request that changes something.
pub type MayWrite = dyn Fn() -> bool + Send + Sync;

/// One inventory bound to one sink.
#[derive(Clone)]
pub struct Binding {
    /// Whose rows.
    pub inventory: InventoryId,
    /// Where they go, by a name that is the same for every sink that leads there.
    pub destination: Destination,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Who writes them.
    pub claimant: Claimant,
    /// The claim that it holds; the same for all versions of a binding.
    pub current: CurrentClaim,
    /// Bindings of the inventory whose destinations may be the same under another name, this one among them.
    pub siblings: Siblings,
    /// Shared by all bindings of the sink.
    pub claim_checks: Arc<ClaimChecks>,
    /// How often the claim is looked at between writes; `None`: as the sink says; zero: never.
    pub claim_check_interval: Option<Duration>,
    /// The targets of the inventory.
    pub targets: Vec<TargetId>,
    /// When to write.
    pub cadence: Cadence,
    /// What is known about targets and kinds that do not belong to the inventory.
    pub rest: Sight,
    /// All that the run looks at: a kind that was seen there is not blind.
    pub scope: Sight,
    /// Which of their rows belong to it.
    pub choice: Choice,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// What was sent last, for sinks that cannot be read back; the same for all versions of a binding.
    pub last_checksum: LastChecksum,
    /// Changes when the sink shall be compared now.
    pub requested: Option<String>,
    /// How to get there.
    pub sink: Arc<dyn Open>,
    /// Shared by all bindings of the sink.
    pub breaker: Arc<Breaker>,
}

impl Binding {
    /// All rows of no targets: what is said about an inventory without more.
    pub fn new(
        inventory: InventoryId,
        claimant: Claimant,
        destination: Destination,
        sink: Arc<dyn Open>,
    ) -> Self {
        Self {
            inventory,
            destination,
            generation: 0,
            claimant,
            current: CurrentClaim::default(),
            siblings: Siblings::default(),
            claim_checks: Arc::default(),
            claim_check_interval: None,
            targets: Vec::new(),
            cadence: Cadence::default(),
            rest: Sight::Everything,
            scope: Sight::Everything,
            choice: Choice::default(),
            part_bytes: PART_BYTES,
            last_checksum: LastChecksum::default(),
            requested: None,
            sink,
            breaker: Arc::default(),
        }
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("inventory", &self.inventory).finish_non_exhaustive()
    }
}

/// What a binding did.
#[derive(Debug)]
pub enum Told<'a> {
    /// The sink has granted the claim.
    Claimed(&'a Claim),
    /// What the sink holds was compared with the rows, and the difference was written.
    Compared(&'a Outcome),
    /// What has changed was written.
    Written(&'a Delta, &'a Receipt),
    /// The sink is not as this binding left it; it is claimed again and compared at once.
    ClaimLost(&'a SinkError),
    /// Something failed; it is tried again after a pause, or when something has changed.
    Failed {
        /// What.
        error: &'a SinkError,
        /// How long; `None`: until something changes.
        pause: Option<Duration>,
    },
    /// The sink keeps failing for all of its bindings; none tries before.
    Waiting {
        /// How long.
        pause: Duration,
    },
    /// The sink wants whole snapshots, and what cannot be seen would be missing from this one.
    HeldBack {
        /// What cannot be seen.
        coverage: &'a str,
    },
    /// A destination that the inventory is no longer written to has been dealt with.
    Cleaned {
        /// What came of it.
        cleaned: &'a Cleaned,
        /// The binding is written somewhere else now.
        moved: bool,
    },
    /// What was written could not be removed; it is tried again after a pause.
    NotCleaned {
        /// Why.
        error: &'a SinkError,
        /// How long.
        pause: Duration,
        /// The binding is written somewhere else now.
        moved: bool,
    },
}

/// How a wait ended.
enum Woken {
    Changed,
    Audit,
    ClaimCheck,
    Wanted,
}

/// Keeps a sink up to date for as long as `wanted` holds a binding; a write that has begun is finished.
/// Whatever changes in the binding takes effect without a new start.
pub async fn follow(
    mut wanted: watch::Receiver<Option<Arc<Binding>>>,
    rows: &StoreReader,
    may_write: &MayWrite,
    tell: impl Fn(Told<'_>),
) {
    // Nothing is written before everything has been seen or is known to be blind.
    let binding = loop {
        let Some(binding) = wanted.borrow_and_update().clone() else { return };
        tokio::select! {
            () = settled(rows, &binding.targets) => break binding,
            changed = wanted.changed() => if changed.is_err() { return },
        }
    };
    let mut state = State::new(binding, rows, may_write);
    let mut woken = Woken::Changed;
    loop {
        match wanted.has_changed() {
            Ok(false) => {}
            Ok(true) => {
                let Some(binding) = wanted.borrow_and_update().clone() else { return };
                state.update(binding);
            }
            Err(_) => return,
        }
        let attempted = match woken {
            Woken::ClaimCheck => state.check_claim().await,
            Woken::Audit => {
                state.doubt();
                state.attempt(&tell).await
            }
            Woken::Changed | Woken::Wanted => state.attempt(&tell).await,
        };
        woken = match attempted {
            Ok(()) => state.wait(&mut wanted).await,
            Err(stopped) => {
                let Some(pause) = state.stopped(stopped, &tell) else { return };
                state.rest(pause, &mut wanted).await
            }
        };
    }
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
    Claimed(ClaimedSink, Contents),
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
}

struct State<'a> {
    binding: Arc<Binding>,
    rows: &'a StoreReader,
    may_write: &'a MayWrite,
    phase: Phase,
    changes: Changes,
    /// What had been seen at the last comparison.
    seen: Sights,
    /// Rows that the sink cannot hold.
    refused: BTreeMap<RowKey, Refusal>,
    /// Places that have been seen as a whole at some time.
    once_complete: BTreeSet<(TargetId, Arc<str>, Arc<str>)>,
    last_write: Option<Instant>,
    last_comparison: Instant,
    disputes: Disputes,
    backoff: Backoff,
}

impl<'a> State<'a> {
    fn new(binding: Arc<Binding>, rows: &'a StoreReader, may_write: &'a MayWrite) -> Self {
        Self {
            phase: Phase::Closed,
            changes: rows.changes(&binding.targets),
            seen: Sights::new(),
            refused: BTreeMap::new(),
            once_complete: BTreeSet::new(),
            last_write: None,
            last_comparison: Instant::now(),
            disputes: Disputes::default(),
            backoff: Backoff::default(),
            binding,
            rows,
            may_write,
        }
    }

    /// Takes over what has changed in the binding.
    fn update(&mut self, binding: Arc<Binding>) {
        let known = mem::replace(&mut self.binding, binding);
        let binding = &self.binding;
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
    fn doubt(&mut self) {
        if let Phase::Claimed(_, contents @ Contents::Known) = &mut self.phase {
            *contents = Contents::Doubted;
        }
    }

    /// How long to wait before the next attempt; `None`: this process may not write any more.
    fn stopped(&mut self, stopped: Stopped, tell: &impl Fn(Told<'_>)) -> Option<Duration> {
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
    async fn rest(&self, pause: Duration, wanted: &mut watch::Receiver<Option<Arc<Binding>>>) -> Woken {
        tokio::select! {
            () = time::sleep(pause) => Woken::Changed,
            () = self.binding.breaker.closed() => Woken::Changed,
            _ = wanted.changed() => {
                wanted.mark_changed();
                Woken::Wanted
            }
        }
    }

    /// Waits until there is something to write and it may be written, or something to look at.
    async fn wait(&self, wanted: &mut watch::Receiver<Option<Arc<Binding>>>) -> Woken {
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
                () = at(cadence.next_audit(self.last_comparison)) => return Woken::Audit,
                () = self.changes.ready() => {}
                Ok(()) = sights.changed() => {}
                () = at(claim_check) => return Woken::ClaimCheck,
            }
        }
        let due = cadence.next_write(self.last_write, Instant::now());
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
    async fn check_claim(&mut self) -> Result<(), Stopped> {
        if let Phase::Claimed(sink, _) = &mut self.phase {
            sink.check_claim(&self.binding, self.last_write).await?;
        }
        Ok(())
    }

    async fn attempt(&mut self, tell: &impl Fn(Told<'_>)) -> Result<(), Stopped> {
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
            Phase::Closed => (self.claim(tell).await?, Contents::Unknown),
        };
        match sink.delivery() {
            Delivery::Snapshots => self.send_snapshot(&mut sink, seen, tell).await?,
            Delivery::Changes if compare => self.compare(&mut sink, contents, seen, tell).await?,
            Delivery::Changes => self.write_changes(&mut sink, tell).await?,
        }
        self.phase = Phase::Claimed(sink, Contents::Known);
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
        seen: Sights,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), Stopped> {
        let binding = self.binding.clone();
        let unwritten: BTreeSet<RowKey> = self.changes.take().into_iter().map(|change| change.key).collect();
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.rest.clone());
        self.changes.rebase(&snapshot);
        binding.choice.apply(&mut snapshot);
        let difference = sink.compare(&binding, &snapshot, &seen).await?;
        self.check_may_write()?;
        let receipt = sink.write(&binding, &difference.delta, snapshot.revision, &seen).await?;
        let delta = &difference.delta;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        let is_drift = |key: &&RowKey| !unwritten.contains(*key) && !self.refused.contains_key(*key);
        let drifted = match contents {
            Contents::Unknown => 0,
            Contents::Known | Contents::Doubted if seen != self.seen => 0,
            Contents::Known | Contents::Doubted => keys(delta).filter(is_drift).count(),
        };
        self.refused = receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())).collect();
        (self.seen, self.last_comparison) = (seen, Instant::now());
        tell(Told::Compared(&difference.written(receipt, drifted)));
        Ok(())
    }

    /// Writes what has changed since the last time.
    async fn write_changes(
        &mut self,
        sink: &mut ClaimedSink,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), Stopped> {
        let binding = self.binding.clone();
        let revision = self.rows.revision(&binding.targets);
        let changes = self.changes.take();
        let delta = delta_of(changes.into_iter().filter(|change| binding.choice.takes(&change.key)));
        if delta.is_empty() {
            return Ok(());
        }
        self.check_may_write()?;
        let mut receipt = sink.write(&binding, &delta, revision, &self.seen).await?;
        self.last_write = Some(Instant::now());
        keys(&delta).for_each(|key| drop(self.refused.remove(key)));
        self.refused.extend(receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())));
        // Those of earlier writes are still missing.
        receipt.refused = self.refused.values().cloned().collect();
        tell(Told::Written(&delta, &receipt));
        Ok(())
    }

    /// Sends all rows to a sink that keeps none of them.
    async fn send_snapshot(
        &mut self,
        sink: &mut ClaimedSink,
        seen: Sights,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), Stopped> {
        let binding = self.binding.clone();
        self.changes.take();
        let mut snapshot = self.rows.snapshot_of_seen(&binding.targets, binding.rest.clone());
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
        (self.seen, self.last_comparison) = (seen.clone(), Instant::now());
        if blind && binding.last_checksum.get().is_some() {
            tell(Told::HeldBack { coverage: &coverage::unseen(&seen, is_seen) });
            return Ok(());
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
        let outcome = Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, kept };
        tell(Told::Compared(&outcome));
        Ok(())
    }
}

/// Returns at a time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns when every kind of the targets has been seen or is known to be blind.
async fn settled(rows: &StoreReader, targets: &[TargetId]) {
    let mut sights = rows.sight_changes();
    while rows.sights(targets).values().any(|sight| *sight == Sight::Pending) {
        // The sender lives as long as the reader.
        drop(sights.changed().await);
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

#[cfg(test)]
pub(crate) mod tests;
