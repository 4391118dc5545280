//! How many rows are written, and how many of these writes are needed.

use anyhow::Result;

use super::{destinations::BenchDestination, rows::Rows, running::Running};

/// Objects whose status changes.
const STATUSES: usize = 400;

/// Rows that were written to a destination.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Writes {
    /// For changes of single rows, each written before the next.
    pub(crate) changes: usize,
    /// For objects that changed while their rows did not.
    pub(crate) statuses: usize,
    /// For a restart without changes.
    pub(crate) restart: usize,
}

/// Writes rows, changes single ones, and restarts.
pub(crate) async fn measure(
    destination: &impl BenchDestination,
    count: usize,
    changes: usize,
) -> Result<Writes> {
    let rows = Rows::filled(count)?;
    let mut running = Running::start(&rows, destination.plan()?);
    anyhow::ensure!(running.compared().await? == count, "not all rows were written at first");
    destination.count().await?;
    for (number, index) in (1..).zip((0..count).cycle().take(changes)) {
        rows.change(index, number)?;
        running.written().await?;
    }
    let singles = destination.written().await?;
    for index in (0..count).cycle().take(STATUSES) {
        rows.touch(index, u64::MAX)?;
    }
    // This write comes after everything that could have been written for the statuses.
    rows.change(0, u64::from(u32::MAX))?;
    running.written().await?;
    let statuses = destination.written().await? - singles - 1;
    running.stop().await;
    let before = destination.written().await?;
    let refilled = Rows::pending();
    let mut running = Running::start(&refilled, destination.plan()?);
    refilled.fill(&rows.contents())?;
    let compared = running.compared().await?;
    running.stop().await;
    let restart = destination.written().await? - before;
    anyhow::ensure!(compared == restart, "{compared} rows were compared and {restart} written");
    Ok(Writes { changes: singles, statuses, restart })
}
