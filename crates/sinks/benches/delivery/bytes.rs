//! Bytes that go to files.

use std::fs;

use anyhow::{Context, Result};

use super::{
    places::{Place, Tree},
    rows::Rows,
    running::Running,
};

/// What a change of one row costs.
pub(crate) struct Bytes {
    /// Written for one change, books included.
    pub(crate) per_change: f64,
    /// Of all files.
    pub(crate) held: f64,
}

/// Changes single rows of so many, each written before the next.
pub(crate) async fn measure(place: &Tree, count: usize, changes: u32) -> Result<Bytes> {
    let rows = Rows::filled(count)?;
    let mut running = Running::start(&rows, place.plan()?);
    running.compared().await?;
    let before = written()?;
    for (number, index) in (1..=changes).zip((0..count).cycle()) {
        rows.change(index, number.into())?;
        running.written().await?;
    }
    let after = written()?;
    running.stop().await;
    Ok(Bytes { per_change: (after - before) / f64::from(changes), held: float(place.bytes()?) })
}

/// Bytes that this process has given the kernel so far. Servers are processes of their own.
fn written() -> Result<f64> {
    let counters = fs::read_to_string("/proc/self/io")?;
    let value = counters.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(float(value.context("the kernel does not count bytes")?.parse()?))
}

#[expect(clippy::cast_precision_loss, reason = "nobody needs that many digits")]
fn float(number: u64) -> f64 {
    number as f64
}
