//! Signals of the system that ask the program to end.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    time,
};

/// Some programs, such as timeout(1), send a signal to a process and once more to its group: signals that come
/// within this time are one request.
const SAME_REQUEST: Duration = Duration::from_millis(250);

/// Returns when the program is asked to end: SIGINT (Ctrl-C) or SIGTERM.
pub(crate) async fn stop_signal() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()];
    let signals = signals.map(signal).into_iter().collect::<Result<Vec<_>, _>>();
    // Without handlers the signals end the program by themselves.
    let Ok(mut signals) = signals else { return std::future::pending().await };
    let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(waits).await;
}

/// Returns when the program is asked to end once more. To be called when [`stop_signal`] has returned.
pub(crate) async fn second_stop_signal() {
    // Without a listener the signals of this time are lost.
    time::sleep(SAME_REQUEST).await;
    stop_signal().await;
}
