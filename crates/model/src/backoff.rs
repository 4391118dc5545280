//! Pauses between attempts. Only this module computes them.

use std::time::Duration;

/// Exponential backoff: the pause doubles with every failure up to a limit, and jitter keeps those that
/// failed together from trying again together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Default for Backoff {
    /// From one second to five minutes.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_mins(5))
    }
}

impl Backoff {
    /// Pauses of at most `first` after one failure, and never longer than `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Counts a failure and returns the pause before the next attempt: between half of the current limit
    /// and all of it. `jitter` is a random number between 0 and 1.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let limit = self.first.saturating_mul(2u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        limit.mul_f64(0.5 + jitter / 2.0)
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The longest pause.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Records a success: the next failure gets the first pause again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..60).map(|_| backoff.next(1.0)).collect();
        assert_eq!(pauses[..3], [1, 2, 4].map(Duration::from_secs));
        assert_eq!(pauses[59], Duration::from_mins(5));
        assert_eq!(backoff.failures(), 60);
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(500));
    }

    #[test]
    fn the_first_and_the_longest_pause_can_be_set() {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(50));
        let pauses: Vec<u128> = (0..4).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 50, 50]);
    }
}
