//! Bytes written to files.

use std::fs;

use anyhow::{Context, Result};

use super::{
    destinations::{BenchDestination, Tree},
    rows::Rows,
    running::Running,
};

/// The cost of changing one row.
pub(crate) struct Bytes {
    /// Bytes written for one change, including manifests and claims.
    pub(crate) per_change: f64,
    /// Bytes of all files.
    pub(crate) held: f64,
}

/// Changes single rows of `count`, each written before the next.
pub(crate) async fn measure(destination: &Tree, count: usize, changes: u32) -> Result<Bytes> {
    let rows = Rows::filled(count)?;
    let mut running = Running::start(&rows, destination.plan()?);
    running.compared().await?;
    let before = written()?;
    for (number, index) in (1..=changes).zip((0..count).cycle()) {
        rows.change(index, number.into())?;
        running.written().await?;
    }
    let after = written()?;
    running.stop().await;
    Ok(Bytes { per_change: (after - before) / f64::from(changes), held: float(destination.bytes()?) })
}

/// Bytes that this process has written so far. Servers are separate processes.
fn written() -> Result<f64> {
    let counters = fs::read_to_string("/proc/self/io")?;
    let value = counters.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(float(value.context("the kernel does not count bytes")?.parse()?))
}

#[expect(clippy::cast_precision_loss, reason = "digits beyond f64 precision are not needed")]
fn float(number: u64) -> f64 {
    number as f64
}
