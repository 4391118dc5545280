//! One line per measurement: its name, the value, the target, and whether the target is met.

use std::fmt;

/// Lines in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Table(Vec<Line>);

struct Line {
    what: String,
    measured: f64,
    target: Option<f64>,
}

impl Table {
    /// A measurement without a target: it describes the machine or explains another one.
    pub(crate) fn report(&mut self, what: &str, measured: f64) {
        self.0.push(Line { what: what.into(), measured, target: None });
    }

    /// A measurement that should not be above its target.
    pub(crate) fn check(&mut self, what: &str, measured: f64, target: f64) {
        self.0.push(Line { what: what.into(), measured, target: Some(target) });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<56}{:>10}{:>10}", "", "measured", "target")?;
        self.0.iter().try_for_each(|line| line.fmt(f))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<56}{:>10.2}", self.what, self.measured)?;
        match self.target {
            Some(target) => {
                writeln!(f, "{target:>10.2}  {}", if self.measured <= target { "ok" } else { "over" })
            }
            None => writeln!(f),
        }
    }
}
