//! Brings a sink up to date: once, or for as long as rows change.
//!
//! A binding is one inventory and one sink. It claims the inventory in the sink. It compares the rows of the sink
//! with those of the store when it starts, after an error, when more can be seen, and on audits. In between it writes
//! what has changed, and checks periodically that it still holds its claim. A sink that fails or is slow affects only
//! its binding: several changes of one row are merged, so that memory grows with the number of changed rows, not of
//! changes.

mod binding;
mod claims;
mod clean;
mod coverage;
mod deadline;
mod guard;
mod outcome;
mod progress;
mod running_binding;

use std::sync::Arc;

use kollect_model::{row::TargetId, sink::SinkError};
use tokio::sync::watch;

use crate::store::{Snapshot, StoreReader, Visibility};
pub use binding::{Binding, BindingEvent, LastChecksum, MayWrite, OpenSink, RowFilter};
pub use claims::{ClaimChecks, CurrentClaim, SiblingBinding, SiblingBindings};
pub(crate) use clean::clean;
pub use clean::{AbandonedDestination, CleaningOutcome};
pub use coverage::coverage;
pub use guard::{BlockedRemovals, RemovalGuard, SelectionDigests};
use outcome::ClaimedSink;
pub use outcome::{KeptRows, Outcome};
pub use progress::{
    Acknowledged, Acknowledgement, Activity, BindingProgress, LATE, LateReason, NamespaceRows, Pending,
    ProgressSnapshot,
};
pub(crate) use running_binding::AttemptStopped;
use running_binding::{RunningBinding, WakeReason};

/// Brings a sink up to date once, with a snapshot that was taken before.
pub async fn export(binding: &Binding, snapshot: &Snapshot) -> Result<Outcome, SinkError> {
    let sink = deadline::open(&*binding.sink).await?;
    let granted = claims::claim(binding, &*sink, 0).await?;
    let mut sink = ClaimedSink::new(sink, granted, binding);
    let difference = sink.compare(binding, snapshot, snapshot.visibilities()).await?;
    let coverage = coverage(snapshot.visibilities(), &binding.watched, snapshot.undecided());
    let revision = snapshot.reached.visible_up_to();
    let receipt = sink.write(binding, &difference.delta, &snapshot.rows, revision, &coverage).await?;
    Ok(difference.into_outcome(receipt, 0).0)
}

/// Keeps a sink up to date for as long as `wanted` holds a binding; a write that has begun is finished. Changes of
/// the binding take effect without a restart.
pub async fn follow(
    mut wanted: watch::Receiver<Option<Arc<Binding>>>,
    rows: &StoreReader,
    may_write: &MayWrite,
    report: impl Fn(BindingEvent<'_>),
) {
    // Nothing is written before every kind has been seen or is known to be blind.
    let binding = loop {
        let Some(binding) = wanted.borrow_and_update().clone() else { return };
        tokio::select! {
            // The loop below checks `wanted` again.
            biased;
            () = wait_until_seen(rows, &binding.targets) => break binding,
            changed = wanted.changed() => if changed.is_err() { return },
        }
    };
    let mut state = RunningBinding::new(binding, rows, may_write);
    let mut woken = WakeReason::Changed;
    loop {
        match wanted.has_changed() {
            Ok(false) => {}
            Ok(true) => {
                let Some(binding) = wanted.borrow_and_update().clone() else { return };
                state.update(binding);
            }
            Err(_) => return,
        }
        let (progress, cadence) = state.progress();
        let attempted = tokio::select! {
            // The second branch only reports that the first one takes long.
            biased;
            attempted = state.act(&woken, &report) => attempted,
            () = progress.watch(cadence, || report(BindingEvent::Late)) => return,
        };
        progress.end();
        woken = match attempted {
            Ok(()) => state.wait(&mut wanted, &report).await,
            Err(stopped) => {
                let Some(pause) = state.stopped(stopped, &report) else { return };
                state.pause(pause, &mut wanted).await
            }
        };
    }
}

/// Returns when every kind of the targets has been seen or is known to be blind.
async fn wait_until_seen(rows: &StoreReader, targets: &[TargetId]) {
    let mut visibilities = rows.visibility_changes();
    while rows.visibilities(targets).values().any(|visibility| *visibility == Visibility::Pending) {
        // The sender lives as long as the reader.
        drop(visibilities.changed().await);
    }
}

#[cfg(test)]
pub(crate) mod tests;
