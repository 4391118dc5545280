//! The clock of the machine. The engine and the operator read it here and nowhere else, so that the simulator can
//! replace it.
//!
//! Durations within a process are measured with `tokio::time::Instant`, not with this clock: it may be set back.

use std::{cell::Cell, time::SystemTime};

use jiff::Timestamp;
use tokio::time::Instant;

thread_local! {
    /// Start of the simulated time, and the instant at which it was set. Set only on threads of the simulator.
    static SIMULATED: Cell<Option<(SystemTime, Instant)>> = const { Cell::new(None) };
}

/// The time now.
#[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
pub fn now() -> SystemTime {
    match SIMULATED.get() {
        None => SystemTime::now(),
        Some((start, at)) => start + at.elapsed(),
    }
}

/// The current time as a Kubernetes timestamp.
pub fn timestamp() -> Timestamp {
    Timestamp::try_from(now()).unwrap_or_default()
}

/// Sets the clock of this thread to `start`. It then advances with tokio's time, which tests may pause.
pub fn simulate(start: SystemTime) {
    SIMULATED.set(Some((start, Instant::now())));
}
