//! Signals of the system that ask the program to end.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the program is asked to end: SIGINT (Ctrl-C) or SIGTERM.
pub(crate) async fn asked_to_stop() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()];
    let signals = signals.map(signal).into_iter().collect::<Result<Vec<_>, _>>();
    // Without handlers the signals end the program by themselves.
    let Ok(mut signals) = signals else { return std::future::pending().await };
    let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(waits).await;
}
