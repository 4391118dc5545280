//! Brings a sink up to date: once, or for as long as rows change.
//!
//! A binding is one inventory and one sink. It compares what the sink holds with the rows when it
//! starts, after an error, when something can be seen again, and on audits; in between it writes what
//! has changed. A sink that fails or is slow concerns its binding only: changes of one row become one,
//! so that a day of failures costs memory for the rows that changed, not for the changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use kollect_model::{
    backoff::Backoff,
    batch::{Baseline, Batch, Changed, Delta, InventoryId, Receipt, Refusal, Removed},
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
    delta::difference,
    names,
    schedule::{Breaker, Cadence},
    store::{Change, Changes, Sight, Sights, Snapshot, StoreReader},
};

/// What an export did.
#[derive(Debug)]
pub struct Outcome {
    /// What differed, and was written but for the rows that were refused.
    pub delta: Delta,
    /// What the sink says about it; empty if nothing was written.
    pub receipt: Receipt,
    /// Rows that the sink had already.
    pub unchanged: usize,
    /// Rows of the sink that were left alone because nobody looked at their objects.
    pub left_alone: usize,
    /// Rows that were in the sink as they should be, until somebody else changed them.
    pub drifted: usize,
    /// Rows of the sink that are beyond the reach of their target, by target: they stay as they were.
    pub beyond: BTreeMap<TargetId, BeyondReach>,
}

/// Rows of a target that are beyond its reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BeyondReach {
    /// How many.
    pub rows: usize,
    /// Their namespaces; none for cluster-scoped objects.
    pub namespaces: BTreeSet<Arc<str>>,
}

impl BeyondReach {
    /// Those of what a sink holds.
    fn among(baseline: &Baseline, seen: &Sights) -> BTreeMap<TargetId, Self> {
        let mut found: BTreeMap<TargetId, Self> = BTreeMap::new();
        if seen.values().all(|sight| sight.beyond().is_none()) {
            return found;
        }
        for key in baseline.keys() {
            let place = (key.target.clone(), key.group.clone(), key.kind.clone());
            let beyond = seen.get(&place).and_then(Sight::beyond);
            if beyond.is_some_and(|beyond| beyond.contains(&key.namespace)) {
                let of_target = found.entry(key.target.clone()).or_default();
                of_target.rows += 1;
                of_target.namespaces.extend(Some(&key.namespace).filter(|name| !name.is_empty()).cloned());
            }
        }
        found
    }
}

/// Brings a sink up to date once, with a snapshot that was taken before.
pub async fn export(binding: &Binding, snapshot: &Snapshot) -> Result<Outcome, SinkError> {
    let (sink, claim) = open_claimed(binding).await?;
    write_difference(binding, &*sink, &claim, snapshot, snapshot.sights()).await
}

/// Opens the sink and claims the inventory in it. Every export begins here: what is read from a sink
/// afterwards changes only through this claim, and a sink that refuses the claim is not read.
async fn open_claimed(binding: &Binding) -> Result<(Box<dyn Sink>, Claim), SinkError> {
    let sink = binding.sink.open().await?;
    let claim = sink.claim(&binding.inventory, &binding.claimant).await?;
    Ok((sink, claim))
}

/// Reads what a claimed sink holds and writes what differs from the snapshot. A sink that holds all rows
/// is written too, without rows: it notes when that was and what could be seen.
async fn write_difference(
    binding: &Binding,
    sink: &dyn Sink,
    claim: &Claim,
    snapshot: &Snapshot,
    seen: &Sights,
) -> Result<Outcome, SinkError> {
    let baseline = sink.baseline(&binding.inventory).await?;
    let delta = difference(&baseline, snapshot);
    let receipt = write(binding, sink, claim, &delta, snapshot.revision, seen).await?;
    let beyond = BeyondReach::among(&baseline, seen);
    Ok(Outcome { beyond, ..Outcome::new(delta, receipt, &baseline, snapshot) })
}

async fn write(
    binding: &Binding,
    sink: &dyn Sink,
    claim: &Claim,
    delta: &Delta,
    revision: u64,
    seen: &Sights,
) -> Result<Receipt, SinkError> {
    let Binding { inventory, generation, part_bytes, scope, .. } = binding;
    let last_checksum = binding.last_checksum.get();
    let batch = Batch {
        generation: *generation,
        revision,
        coverage: &coverage(seen, scope),
        part_bytes: *part_bytes,
        last_checksum: last_checksum.as_deref(),
        ..Batch::new(inventory, claim, delta)
    };
    sink.write(&batch).await
}

impl Outcome {
    fn new(delta: Delta, receipt: Receipt, baseline: &Baseline, snapshot: &Snapshot) -> Self {
        let unchanged = snapshot.rows.len() - delta.added.len() - delta.changed.len();
        let left_alone = baseline.len() - unchanged - delta.changed.len() - delta.removed.len();
        Self { delta, receipt, unchanged, left_alone, drifted: 0, beyond: BTreeMap::new() }
    }
}

/// Somebody must change something first; until then it is tried again now and then.
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

/// One inventory bound to one sink.
#[derive(Clone)]
pub struct Binding {
    /// Whose rows.
    pub inventory: InventoryId,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Who writes them.
    pub claimant: Claimant,
    /// The targets of the inventory.
    pub targets: Vec<TargetId>,
    /// When to write.
    pub cadence: Cadence,
    /// What is known about targets and kinds that do not belong to the inventory.
    pub rest: Sight,
    /// All that the run looks at: whoever has seen that is not blind.
    pub scope: Sight,
    /// Which of their rows belong to it.
    pub choice: Choice,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// What was sent last, for sinks that cannot be read back; the same for all versions of a binding.
    pub last_checksum: LastChecksum,
    /// Changes when somebody wants the sink to be compared now.
    pub requested: Option<String>,
    /// Where they go.
    pub sink: Arc<dyn Open>,
    /// Shared by all bindings of the sink.
    pub breaker: Arc<Breaker>,
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("inventory", &self.inventory).finish_non_exhaustive()
    }
}

/// What a binding did.
#[derive(Debug)]
pub enum Told<'a> {
    /// What the sink holds was compared with the rows, and the difference was written.
    Compared(&'a Outcome),
    /// What has changed was written.
    Written(&'a Delta, &'a Receipt),
    /// Something failed; it is tried again after a pause, or when something has changed.
    Failed {
        /// What.
        error: &'a SinkError,
        /// How long.
        pause: Option<Duration>,
    },
    /// The sink keeps failing for all of its bindings; nobody tries before.
    Waiting {
        /// How long.
        pause: Duration,
    },
    /// The sink wants whole snapshots, and what cannot be seen would be missing from this one.
    HeldBack {
        /// What cannot be seen.
        coverage: &'a str,
    },
    /// Nothing of the inventory is left where it was written.
    Cleaned {
        /// Id of the place.
        destination: &'a Destination,
        /// Whose rows were there.
        inventory: &'a InventoryId,
        /// It is written somewhere else now.
        moved: bool,
    },
    /// What was written could not be removed; it is tried again after a pause.
    NotCleaned {
        /// Why.
        error: &'a SinkError,
        /// How long.
        pause: Duration,
        /// It is written somewhere else now.
        moved: bool,
    },
}

/// How a wait ended.
enum Woken {
    Changed,
    Audit,
    Wanted,
}

/// Keeps a sink up to date for as long as `wanted` holds a binding; a write that has begun is finished.
/// Whatever changes in the binding takes effect without a new start.
pub async fn follow(
    mut wanted: watch::Receiver<Option<Arc<Binding>>>,
    rows: &StoreReader,
    tell: impl Fn(Told<'_>),
) {
    // Nothing is written before everything has been seen or is known to be blind.
    let binding = loop {
        let Some(binding) = wanted.borrow_and_update().clone() else { return };
        tokio::select! {
            // The first round below looks at what is wanted again.
            biased;
            () = settled(rows, &binding.targets) => break binding,
            changed = wanted.changed() => if changed.is_err() { return },
        }
    };
    let mut state = State::new(binding, rows);
    loop {
        match wanted.has_changed() {
            Ok(false) => {}
            Ok(true) => {
                let Some(binding) = wanted.borrow_and_update().clone() else { return };
                state.become_(binding, rows);
            }
            Err(_) => return,
        }
        match state.attempt(rows, &tell).await {
            Ok(()) => state.backoff.reset(),
            Err(stopped) => {
                let pause = state.stopped(stopped, &tell);
                state.rest(pause, &mut wanted).await;
                continue;
            }
        }
        match state.wait(rows, &mut wanted).await {
            Woken::Changed => {}
            Woken::Audit => state.compare = true,
            Woken::Wanted => wanted.mark_changed(),
        }
    }
}

/// Why an attempt ended early.
enum Stopped {
    Breaker(Instant),
    Sink(SinkError),
}

impl From<SinkError> for Stopped {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

struct State {
    binding: Arc<Binding>,
    sink: Option<(Box<dyn Sink>, Claim)>,
    changes: Changes,
    /// What had been seen at the last comparison.
    seen: Sights,
    /// Whether the sink must be read before anything is written.
    compare: bool,
    /// Whether the sink holds all that was written, as far as this binding knows.
    sure: bool,
    /// Rows that the sink cannot hold.
    refused: BTreeMap<RowKey, Refusal>,
    /// Places that have been seen as a whole at some time.
    once_complete: BTreeSet<(TargetId, Arc<str>, Arc<str>)>,
    last_write: Option<Instant>,
    last_comparison: Instant,
    backoff: Backoff,
}

impl State {
    fn new(binding: Arc<Binding>, rows: &StoreReader) -> Self {
        Self {
            sink: None,
            changes: rows.changes(&binding.targets),
            seen: Sights::new(),
            compare: true,
            sure: false,
            refused: BTreeMap::new(),
            once_complete: BTreeSet::new(),
            last_write: None,
            last_comparison: Instant::now(),
            backoff: Backoff::default(),
            binding,
        }
    }

    /// Takes over what has changed in the binding.
    fn become_(&mut self, binding: Arc<Binding>, rows: &StoreReader) {
        if !Arc::ptr_eq(&binding.sink, &self.binding.sink) || binding.claimant != self.binding.claimant {
            (self.sink, self.sure) = (None, false);
        }
        if binding.targets != self.binding.targets || binding.choice != self.binding.choice {
            self.changes = rows.changes(&binding.targets);
            self.sure = false;
        }
        self.binding = binding;
        self.compare = true;
        self.backoff.reset();
    }

    /// How long to wait before the next attempt; `None`: until something changes.
    fn stopped(&mut self, stopped: Stopped, tell: &impl Fn(Told<'_>)) -> Option<Duration> {
        let error = match stopped {
            Stopped::Sink(error) => error,
            Stopped::Breaker(until) => {
                let pause = until.saturating_duration_since(Instant::now());
                tell(Told::Waiting { pause });
                return Some(pause);
            }
        };
        // Nobody knows what arrived: the sink itself does.
        (self.sink, self.compare, self.sure) = (None, true, false);
        let pause = match error.class() {
            // Two that take turns would never agree.
            _ if error.reason == SinkReason::Fenced => None,
            ErrorClass::Transient => {
                self.binding.breaker.count_failure(Instant::now());
                Some(self.backoff.next(fastrand::f64()))
            }
            ErrorClass::Terminal | ErrorClass::Forbidden => Some(TERMINAL_PAUSE),
        };
        tell(Told::Failed { error: &error, pause });
        pause
    }

    /// Waits until the pause is over, the sink works for somebody else, or somebody has changed what may
    /// have been wrong.
    async fn rest(&self, pause: Option<Duration>, wanted: &mut watch::Receiver<Option<Arc<Binding>>>) {
        let over = async {
            match pause {
                Some(pause) => time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Each leads to the next attempt, which looks at all of them.
            biased;
            () = over => {}
            () = self.binding.breaker.closed() => {}
            _ = wanted.changed() => wanted.mark_changed(),
        }
    }

    /// Waits until there is something to write and it may be written.
    async fn wait(&self, rows: &StoreReader, wanted: &mut watch::Receiver<Option<Arc<Binding>>>) -> Woken {
        let Binding { cadence, targets, .. } = &*self.binding;
        let mut sights = rows.sight_changes();
        sights.mark_unchanged();
        let audited = async {
            match cadence.next_audit(self.last_comparison) {
                Some(at) => time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        if self.seen == rows.sights(targets) {
            tokio::select! {
                biased;
                _ = wanted.changed() => return Woken::Wanted,
                () = audited => return Woken::Audit,
                () = self.changes.ready() => {}
                Ok(()) = sights.changed() => {}
            }
        }
        let due = cadence.next_write(self.last_write, Instant::now());
        tokio::select! {
            biased;
            _ = wanted.changed() => Woken::Wanted,
            () = time::sleep_until(due) => Woken::Changed,
        }
    }

    async fn attempt(&mut self, rows: &StoreReader, tell: &impl Fn(Told<'_>)) -> Result<(), Stopped> {
        let binding = self.binding.clone();
        let seen = rows.sights(&binding.targets);
        // What can be seen again may have left rows behind that nobody could remove before.
        // Which of several rows of one object counts can be told only from all of them.
        let doubled = binding.choice.one_row_per_object && !self.changes.is_empty();
        let compare = self.compare || seen != self.seen || doubled;
        if !compare && self.changes.is_empty() {
            return Ok(());
        }
        binding.breaker.admit(Instant::now()).map_err(Stopped::Breaker)?;
        let (sink, claim) = match self.sink.take() {
            Some(known) => known,
            None => open_claimed(&binding).await?,
        };
        match sink.delivery() {
            Delivery::Snapshots => self.send_snapshot(&*sink, &claim, rows, seen, tell).await?,
            Delivery::Changes if compare => self.compare(&*sink, &claim, rows, seen, tell).await?,
            Delivery::Changes => self.write_changes(&*sink, &claim, rows, tell).await?,
        }
        self.sink = Some((sink, claim));
        binding.breaker.close();
        Ok(())
    }

    /// Reads what the sink holds, and writes what differs.
    async fn compare(
        &mut self,
        sink: &dyn Sink,
        claim: &Claim,
        rows: &StoreReader,
        seen: Sights,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), SinkError> {
        let binding = self.binding.clone();
        let unwritten: BTreeSet<RowKey> = self.changes.take().into_iter().map(|change| change.key).collect();
        let mut snapshot = rows.snapshot_of_seen(&binding.targets, binding.rest.clone());
        self.changes.rebase(&snapshot);
        binding.choice.apply(&mut snapshot);
        let mut outcome = write_difference(&binding, sink, claim, &snapshot, &seen).await?;
        let Outcome { delta, receipt, .. } = &outcome;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        let drifted = if self.sure && seen == self.seen {
            let others = |key: &RowKey| !unwritten.contains(key) && !self.refused.contains_key(key);
            let keys = delta.rows().map(|row| &row.key).chain(delta.removed.iter().map(|gone| &gone.key));
            keys.filter(|key| others(key)).count()
        } else {
            0
        };
        self.refused = receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())).collect();
        outcome.drifted = drifted;
        (self.seen, self.compare, self.sure, self.last_comparison) = (seen, false, true, Instant::now());
        tell(Told::Compared(&outcome));
        Ok(())
    }

    /// Writes what has changed since the last time.
    async fn write_changes(
        &mut self,
        sink: &dyn Sink,
        claim: &Claim,
        rows: &StoreReader,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), SinkError> {
        let revision = rows.revision(&self.binding.targets);
        let changes = self.changes.take();
        let changes = changes.into_iter().filter(|change| self.binding.choice.takes(&change.key));
        let delta = delta_of(changes);
        if delta.is_empty() {
            return Ok(());
        }
        let mut receipt = self.write(sink, claim, &delta, revision, &self.seen.clone()).await?;
        let keys = delta.rows().map(|row| &row.key).chain(delta.removed.iter().map(|gone| &gone.key));
        keys.for_each(|key| drop(self.refused.remove(key)));
        self.refused.extend(receipt.refused.iter().map(|refused| (refused.key.clone(), refused.clone())));
        // Those of earlier writes are still missing.
        receipt.refused = self.refused.values().cloned().collect();
        tell(Told::Written(&delta, &receipt));
        Ok(())
    }

    /// Sends all rows to a sink that keeps none of them.
    async fn send_snapshot(
        &mut self,
        sink: &dyn Sink,
        claim: &Claim,
        rows: &StoreReader,
        seen: Sights,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), SinkError> {
        self.changes.take();
        let mut snapshot = rows.snapshot_of_seen(&self.binding.targets, self.binding.rest.clone());
        self.changes.rebase(&snapshot);
        self.binding.choice.apply(&mut snapshot);
        let complete = seen.iter().filter(|(_, sight)| is_complete(sight, &self.binding.scope));
        let complete = complete.map(|(place, _)| place);
        self.once_complete.extend(complete.cloned());
        // A target of which nothing is known, or not yet again, may have rows.
        let unseen = self.binding.targets.iter().any(|id| !seen.keys().any(|(target, _, _)| target == id));
        let pending = seen.values().any(|sight| *sight == Sight::Pending);
        let blind = unseen || pending || !seen.keys().all(|place| self.once_complete.contains(place));
        (self.seen, self.compare, self.last_comparison) = (seen.clone(), false, Instant::now());
        if blind && self.binding.last_checksum.get().is_some() {
            tell(Told::HeldBack { coverage: &coverage(&seen, &self.binding.scope) });
            return Ok(());
        }
        let added = snapshot.rows.values().cloned().collect();
        let delta = Delta { added, ..Delta::default() };
        let receipt = self.write(sink, claim, &delta, snapshot.revision, &seen).await?;
        self.binding.last_checksum.set(receipt.checksum.as_ref());
        let beyond = BTreeMap::new();
        let outcome = Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, beyond };
        tell(Told::Compared(&outcome));
        Ok(())
    }

    async fn write(
        &mut self,
        sink: &dyn Sink,
        claim: &Claim,
        delta: &Delta,
        revision: u64,
        seen: &Sights,
    ) -> Result<Receipt, SinkError> {
        let receipt = write(&self.binding, sink, claim, delta, revision, seen).await?;
        if !delta.is_empty() {
            self.last_write = Some(Instant::now());
        }
        Ok(receipt)
    }
}

/// Removes everything of an inventory from a sink.
pub async fn clean(binding: &Binding) -> Result<(), SinkError> {
    let (sink, claim) = open_claimed(binding).await?;
    sink.forget(&binding.inventory, &claim).await
}

/// Returns when every kind of the targets has been seen or is known to be blind.
async fn settled(rows: &StoreReader, targets: &[TargetId]) {
    let mut sights = rows.sight_changes();
    while rows.sights(targets).values().any(|sight| *sight == Sight::Pending) {
        // The sender lives as long as the reader.
        drop(sights.changed().await);
    }
}

/// How many blind kinds are named.
const NAMED_KINDS: usize = 5;

/// What could be seen, in a line: `complete`, or what is blind. `scope` is all that a run looks at.
pub fn coverage(seen: &Sights, scope: &Sight) -> String {
    let blind: Vec<String> = seen
        .iter()
        .filter(|(_, sight)| !is_complete(sight, scope))
        .map(|((target, group, kind), sight)| {
            let dot = if group.is_empty() { "" } else { "." };
            let names = |found: &BTreeSet<Arc<str>>| names::namespaces(found, found.len());
            let place = match sight.within_reach() {
                Sight::AllBut(dark) => format!(" in {}", names(dark)),
                Sight::Within(seen) => format!(" but in {}", names(seen)),
                Sight::Everything | Sight::Pending | Sight::Partial | Sight::WithinReach { .. } => {
                    String::new()
                }
            };
            format!("{kind}{dot}{group} of {target}{place}")
        })
        .collect();
    match blind.len() {
        0 => "complete".to_owned(),
        count if count > NAMED_KINDS => {
            let named = blind.get(..NAMED_KINDS).unwrap_or_default();
            format!("blind: {}; and {} more", named.join("; "), count - NAMED_KINDS)
        }
        _ => format!("blind: {}", blind.join("; ")),
    }
}

/// Whether everything was seen that the run looks at.
fn is_complete(sight: &Sight, scope: &Sight) -> bool {
    let seen = sight.within_reach();
    *seen == Sight::Everything || (matches!(seen, Sight::Within(_)) && seen == scope)
}

fn delta_of(changes: impl Iterator<Item = Change>) -> Delta {
    let mut delta = Delta::default();
    for Change { key, before, after } in changes {
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
