//! Brings a sink up to date: once, or for as long as rows change.
//!
//! A binding is one inventory and one sink. It compares what the sink holds with the rows when it
//! starts, after an error, when something can be seen again, and on audits; in between it writes what
//! has changed. A sink that fails or is slow concerns its binding only: changes of one row become one,
//! so that a day of failures costs memory for the rows that changed, not for the changes.

use std::{future::Future, time::Duration};

use kollect_model::{
    batch::{Batch, Changed, Delta, InventoryId, Removed},
    claim::{Claim, Claimant},
    row::TargetId,
    sink::{ErrorClass, Sink, SinkError, SinkReason},
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{
    delta::difference,
    schedule::{Backoff, Cadence},
    store::{Change, Changes, Sight, Sights, Snapshot, StoreReader},
};

/// What an export did.
#[derive(Debug)]
pub struct Outcome {
    /// What was written.
    pub delta: Delta,
    /// Rows that the sink had already.
    pub unchanged: usize,
    /// Rows of the sink that were left alone because nobody looked at their objects.
    pub left_alone: usize,
}

/// Writes the difference once, if there is one.
pub async fn export(
    sink: &dyn Sink,
    inventory: &InventoryId,
    claimant: &Claimant,
    snapshot: &Snapshot,
) -> Result<Outcome, SinkError> {
    let baseline = sink.baseline(inventory).await?;
    let delta = difference(&baseline, snapshot);
    if !delta.is_empty() {
        let claim = sink.claim(inventory, claimant).await?;
        sink.write(&Batch::new(inventory, &claim, &delta)).await?;
    }
    Ok(Outcome::new(delta, baseline.len(), snapshot))
}

impl Outcome {
    fn new(delta: Delta, held: usize, snapshot: &Snapshot) -> Self {
        let unchanged = snapshot.rows.len() - delta.added.len() - delta.changed.len();
        let left_alone = held - unchanged - delta.changed.len() - delta.removed.len();
        Self { delta, unchanged, left_alone }
    }
}

/// Somebody must change something first; until then it is tried again now and then.
const TERMINAL_PAUSE: Duration = Duration::from_mins(5);

/// One inventory bound to one sink.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Whose rows.
    pub inventory: InventoryId,
    /// Who writes them.
    pub claimant: Claimant,
    /// The targets of the inventory.
    pub targets: Vec<TargetId>,
    /// When to write.
    pub cadence: Cadence,
    /// What is known about targets that do not belong to the inventory.
    pub rest: Sight,
}

/// What a binding did.
#[derive(Debug)]
pub enum Told<'a> {
    /// What the sink holds was compared with the rows, and the difference was written.
    Compared(&'a Outcome),
    /// What has changed was written.
    Written(&'a Delta),
    /// Something failed; it is tried again after a pause.
    Failed {
        /// What.
        error: &'a SinkError,
        /// How long.
        pause: Duration,
    },
}

/// How a wait ended.
enum Woken {
    Changed,
    Audit,
    Stopped,
}

impl Binding {
    /// Keeps the sink up to date until `stop` says so; a write that has begun is finished.
    pub async fn follow<O, F>(
        &self,
        rows: &StoreReader,
        open: O,
        mut stop: watch::Receiver<bool>,
        tell: impl Fn(Told<'_>),
    ) where
        O: Fn() -> F,
        F: Future<Output = Result<Box<dyn Sink>, SinkError>>,
    {
        let mut state = State {
            sink: None,
            changes: rows.changes(&self.targets),
            seen: Sights::new(),
            compare: true,
            last_write: None,
            last_comparison: Instant::now(),
        };
        let mut backoff = Backoff::default();
        // Nothing is written before everything has been seen or is known to be blind.
        tokio::select! {
            () = settled(rows, &self.targets) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        loop {
            match self.attempt(rows, &open, &mut state, &tell).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    // Nobody knows what arrived: the sink itself does.
                    (state.sink, state.compare) = (None, true);
                    let pause = match error.class() {
                        ErrorClass::Transient => backoff.next(jitter()),
                        ErrorClass::Terminal | ErrorClass::Forbidden => TERMINAL_PAUSE,
                    };
                    tell(Told::Failed { error: &error, pause });
                    if error.reason == SinkReason::Fenced {
                        // Two that take turns would never agree.
                        return;
                    }
                    tokio::select! {
                        () = time::sleep(pause) => continue,
                        _ = stop.wait_for(|stop| *stop) => return,
                    }
                }
            }
            match self.wait(rows, &state, &mut stop).await {
                Woken::Changed => {}
                Woken::Audit => state.compare = true,
                Woken::Stopped => return,
            }
        }
    }

    /// Waits until there is something to write and it may be written.
    async fn wait(&self, rows: &StoreReader, state: &State, stop: &mut watch::Receiver<bool>) -> Woken {
        let mut sights = rows.sight_changes();
        sights.mark_unchanged();
        let audit = self.cadence.next_audit(state.last_comparison);
        let audited = async {
            match audit {
                Some(at) => time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        if state.seen == rows.sights(&self.targets) {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Woken::Stopped,
                () = audited => return Woken::Audit,
                () = state.changes.ready() => {}
                Ok(()) = sights.changed() => {}
            }
        }
        let due = self.cadence.next_write(state.last_write, Instant::now());
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => Woken::Stopped,
            () = time::sleep_until(due) => Woken::Changed,
        }
    }

    async fn attempt<O, F>(
        &self,
        rows: &StoreReader,
        open: &O,
        state: &mut State,
        tell: &impl Fn(Told<'_>),
    ) -> Result<(), SinkError>
    where
        O: Fn() -> F,
        F: Future<Output = Result<Box<dyn Sink>, SinkError>>,
    {
        let seen = rows.sights(&self.targets);
        // What can be seen again may have left rows behind that nobody could remove before.
        let compare = state.compare || seen != state.seen;
        let inventory = &self.inventory;
        let (sink, claim) = match &mut state.sink {
            Some(known) => known,
            none => {
                let sink = open().await?;
                // Claimed before it is read: nobody else changes it from here on.
                let claim = sink.claim(inventory, &self.claimant).await?;
                none.insert((sink, claim))
            }
        };
        if compare {
            state.changes.take();
            let snapshot = rows.snapshot_of_seen(&self.targets, self.rest.clone());
            state.changes.rebase(&snapshot);
            let baseline = sink.baseline(inventory).await?;
            let delta = difference(&baseline, &snapshot);
            if !delta.is_empty() {
                sink.write(&Batch::new(inventory, claim, &delta)).await?;
                state.last_write = Some(Instant::now());
            }
            let outcome = Outcome::new(delta, baseline.len(), &snapshot);
            (state.seen, state.compare, state.last_comparison) = (seen, false, Instant::now());
            tell(Told::Compared(&outcome));
            return Ok(());
        }
        let delta = delta_of(state.changes.take());
        if !delta.is_empty() {
            sink.write(&Batch::new(inventory, claim, &delta)).await?;
            state.last_write = Some(Instant::now());
            tell(Told::Written(&delta));
        }
        Ok(())
    }
}

struct State {
    sink: Option<(Box<dyn Sink>, Claim)>,
    changes: Changes,
    /// What had been seen at the last comparison.
    seen: Sights,
    /// Whether the sink must be read before anything is written.
    compare: bool,
    last_write: Option<Instant>,
    last_comparison: Instant,
}

/// Returns when every kind of the targets has been seen or is known to be blind.
async fn settled(rows: &StoreReader, targets: &[TargetId]) {
    let mut sights = rows.sight_changes();
    while rows.sights(targets).values().any(|sight| *sight == Sight::Pending) {
        // The sender lives as long as the reader.
        drop(sights.changed().await);
    }
}

fn delta_of(changes: Vec<Change>) -> Delta {
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

fn jitter() -> f64 {
    fastrand::f64()
}

#[cfg(test)]
mod tests;
