//! Time limits of statements, from `spec.options`.

use std::{collections::BTreeMap, time::Duration};

use kollect_model::SpecError;

/// Options of a sink, named as PostgreSQL names the settings.
pub(super) const OPTIONS: &[&str] = &[STATEMENT, LOCK];
const STATEMENT: &str = "statement_timeout";
const LOCK: &str = "lock_timeout";

/// A statement that takes longer occupies a session of the sink for too long.
const LONGEST: Duration = Duration::from_hours(1);

/// Time limits of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    statement: Duration,
    lock: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        // Writers hold locks only for a short time, so the lock timeout is short.
        Self { statement: Duration::from_mins(5), lock: Duration::from_secs(10) }
    }
}

impl Timeouts {
    pub(super) fn plan(options: &BTreeMap<String, String>) -> Result<Self, Vec<SpecError>> {
        let (mut timeouts, mut errors) = (Self::default(), Vec::new());
        for (name, limit) in [(STATEMENT, &mut timeouts.statement), (LOCK, &mut timeouts.lock)] {
            let Some(text) = options.get(name) else { continue };
            match parse(text).filter(|value| !value.is_zero() && *value <= LONGEST) {
                Some(value) => *limit = value,
                None => {
                    let problem =
                        "must be a time of PostgreSQL above 0 and up to 1h, such as 500ms, 30s or 5min";
                    errors.push(SpecError::new(
                        format!("spec.options.{name}"),
                        &text.as_str().into(),
                        problem,
                    ));
                }
            }
        }
        if errors.is_empty() { Ok(timeouts) } else { Err(errors) }
    }

    /// Statements that set the limits of a session.
    pub(super) fn settings(self) -> String {
        format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = '5min'",
            self.statement.as_millis(),
            self.lock.as_millis()
        )
    }

    /// Limit for a server that accepts requests and does not answer. A write has several statements, so it is longer than
    /// the limit of one, and not shorter than by default.
    pub(super) fn answer_limit(self) -> Duration {
        self.statement.max(Self::default().statement) + Duration::from_mins(1)
    }
}

/// A time as PostgreSQL writes it: without a unit these are milliseconds.
fn parse(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let milliseconds: u64 = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(name: &str, text: &str) -> Result<Timeouts, Vec<SpecError>> {
        Timeouts::plan(&BTreeMap::from([(name.to_owned(), text.to_owned())]))
    }

    #[test]
    fn times_are_those_of_postgresql() {
        for (text, milliseconds) in
            [("250", 250), ("30s", 30_000), ("500 ms", 500), ("5min", 300_000), ("1h", 3_600_000)]
        {
            let timeouts = plan(STATEMENT, text).unwrap();
            let settings = timeouts.settings();
            assert!(
                settings.starts_with(&format!(
                    "SET statement_timeout = {milliseconds}; SET lock_timeout = 10000;"
                )),
                "{settings}"
            );
            assert!(timeouts.answer_limit() > timeouts.statement);
        }
        assert!(plan(LOCK, "2s").unwrap().settings().contains("SET lock_timeout = 2000;"));
        assert_eq!(plan("region", "x").unwrap(), Timeouts::default());
        for wrong in ["0", "", "2h", "1d", "-1", "5 minutes", "1s; DROP TABLE x", "99999999999999999999"] {
            let errors = plan(LOCK, wrong).unwrap_err();
            assert_eq!(errors[0].field, "spec.options.lock_timeout");
        }
    }
}
