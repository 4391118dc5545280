//! When a binding writes and when it audits its sink: computed from specs and a clock.
//!
//! A change is written at once, but not sooner than `minChangeInterval` after the last write. Without changes nothing
//! is written; every `auditInterval` the binding compares the rows of the sink with those of the store.
//! `exportMinInterval` never delays a change.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_model::{backoff::Backoff, crd::shapes::GoDuration};
use tokio::{sync::Notify, time::Instant};

/// The intervals that one level of configuration sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Intervals {
    /// `exportMinInterval`
    pub export_min: Option<GoDuration>,
    /// `minChangeInterval`
    pub min_change: Option<GoDuration>,
    /// `auditInterval`
    pub audit: Option<GoDuration>,
}

const DEFAULT_EXPORT_MIN: Duration = Duration::from_secs(30);
const SHORTEST_DEFAULT_AUDIT: Duration = Duration::from_mins(10);

/// How often one binding writes and audits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    /// Shortest time between two writes.
    pub min_change: Duration,
    /// Time between two comparisons of the sink with the rows; `None`: there are none.
    pub audit: Option<Duration>,
}

/// Changes are written at once, and audits have their default interval.
impl Default for Cadence {
    fn default() -> Self {
        Self::of([Intervals::default(); 3], None, Duration::ZERO)
    }
}

impl Cadence {
    /// The first level that sets an interval decides: reference, sink, inventory. `floor` is the scope's
    /// `minExportInterval`; `min_change` is the default of the sink type.
    pub fn of(levels: [Intervals; 3], floor: Option<Duration>, min_change: Duration) -> Self {
        let first = |get: fn(&Intervals) -> Option<GoDuration>| levels.iter().find_map(get).map(|d| d.0);
        let export_min = first(|level| level.export_min).unwrap_or(DEFAULT_EXPORT_MIN);
        let export_min = export_min.max(floor.unwrap_or_default());
        let audit = first(|level| level.audit).unwrap_or_else(|| export_min.max(SHORTEST_DEFAULT_AUDIT));
        Self {
            min_change: first(|level| level.min_change).unwrap_or(min_change),
            audit: (!audit.is_zero()).then_some(audit),
        }
    }

    /// When a change that is known now may be written.
    pub fn next_write(&self, last_write: Option<Instant>, now: Instant) -> Instant {
        last_write.map_or(now, |last| (last + self.min_change).max(now))
    }

    /// When to audit next.
    pub fn next_audit(&self, last_comparison: Instant) -> Option<Instant> {
        self.audit.map(|audit| last_comparison + audit)
    }
}

/// Pauses after transient errors: a sink that works again is tried within 30 seconds. [`Breaker`] limits all bindings
/// of one sink to the attempts that one binding would make.
pub const TRANSIENT_PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Pauses after errors that an administrator must correct: the first ten are short, later ones are long.
#[derive(Clone, Copy, Debug, Default)]
pub struct TerminalPauses {
    attempts: u32,
}

impl TerminalPauses {
    const SHORT_PAUSES: u32 = 10;
    const SHORT: Duration = Duration::from_mins(1);
    /// The longest pause.
    pub const LONG: Duration = Duration::from_mins(5);

    /// How long to wait before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts <= Self::SHORT_PAUSES { Self::SHORT } else { Self::LONG }
    }

    /// Starts again with short pauses, after a success or a change.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Limits the attempts of all bindings of a failing sink. It opens after five transient failures without a success.
/// While it is open, one attempt per pause is admitted; a success closes it.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<BreakerState>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct BreakerState {
    failures: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    const FAILURES: u32 = 5;
    const PAUSE: Duration = Duration::from_secs(30);

    /// Admits an attempt, or returns when to try again. While the breaker is open, it admits one attempt per pause.
    pub fn admit(&self, now: Instant) -> Result<(), Instant> {
        let mut state = self.state();
        match state.open_until {
            Some(until) if until > now => Err(until),
            Some(_) => {
                state.open_until = Some(now + Self::PAUSE);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records a success: closes the breaker and resets the count of failures.
    pub fn close(&self) {
        if std::mem::take(&mut *self.state()).open_until.is_some() {
            self.closed.notify_waiters();
        }
    }

    /// Waits until the breaker closes.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Counts a transient failure.
    pub fn count_failure(&self, now: Instant) {
        let mut state = self.state();
        state.failures += 1;
        if state.failures >= Self::FAILURES {
            state.open_until = Some(now + Self::PAUSE);
        }
    }

    /// Whether attempts are refused now.
    pub fn is_open(&self, now: Instant) -> bool {
        let state = self.state();
        state.open_until.is_some_and(|until| until > now)
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breaker_opens_after_five_failures_and_admits_one_attempt_per_pause() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..4 {
            breaker.count_failure(now);
        }
        assert_eq!(breaker.admit(now), Ok(()));
        breaker.close();
        for _ in 0..5 {
            assert_eq!(breaker.admit(now), Ok(()), "counted from the last success");
            breaker.count_failure(now);
        }
        let until = now + Duration::from_secs(30);
        assert_eq!(breaker.admit(now), Err(until));
        assert!(breaker.is_open(now));
        assert_eq!(breaker.admit(until), Ok(()));
        assert_eq!(breaker.admit(until), Err(until + Duration::from_secs(30)), "one at a time");
        // An admitted attempt that reports no result does not block later attempts.
        assert_eq!(breaker.admit(until + Duration::from_mins(1)), Ok(()));
        breaker.close();
        assert_eq!(breaker.admit(until), Ok(()));
        assert_eq!(breaker.admit(until), Ok(()));
    }

    fn level(export_min: &str, min_change: &str, audit: &str) -> Intervals {
        let parse = |text: &str| (!text.is_empty()).then(|| GoDuration::parse(text).unwrap());
        Intervals { export_min: parse(export_min), min_change: parse(min_change), audit: parse(audit) }
    }

    #[test]
    fn the_first_level_that_sets_an_interval_decides() {
        let none = level("", "", "");
        let ten = Duration::from_secs(10);
        let secs = |n| Some(Duration::from_secs(n));
        for (levels, floor, min_change, audit) in [
            ([none, none, none], None, 10, secs(600)),
            ([none, none, level("1h", "", "")], None, 10, secs(3600)),
            ([none, level("15m", "", ""), level("1h", "", "")], None, 10, secs(900)),
            ([level("0s", "", ""), level("15m", "", ""), none], None, 10, secs(600)),
            // A floor raises shorter export intervals, and never delays a change.
            ([level("0s", "0s", ""), none, none], secs(1200), 0, secs(1200)),
            ([level("2h", "", ""), none, none], secs(1200), 10, secs(7200)),
            ([none, level("", "2s", ""), level("", "5s", "")], None, 2, secs(600)),
            ([none, none, level("", "", "0s")], None, 10, None),
            ([level("", "", "1m"), none, level("1h", "", "0s")], None, 10, secs(60)),
        ] {
            let expected = Cadence { min_change: Duration::from_secs(min_change), audit };
            assert_eq!(Cadence::of(levels, floor, ten), expected, "{levels:?}");
        }
    }

    #[test]
    fn a_write_waits_for_the_last_one_only() {
        let cadence = Cadence { min_change: Duration::from_secs(10), audit: Some(Duration::from_mins(10)) };
        let now = Instant::now();
        assert_eq!(cadence.next_write(None, now), now);
        assert_eq!(cadence.next_write(Some(now), now), now + Duration::from_secs(10));
        let later = now + Duration::from_mins(1);
        assert_eq!(cadence.next_write(Some(now), later), later);
        assert_eq!(cadence.next_audit(now), Some(now + Duration::from_mins(10)));
    }
}
