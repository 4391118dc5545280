//! A server that is down while rows keep changing.

use anyhow::Result;
use kollect_testbed::Postgres;

use super::{
    destinations::{BenchDestination, Schema},
    rows::Rows,
    running::Running,
};

/// The cost of a downtime.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Downtime {
    /// Additional bytes that the binding held at the end of the downtime.
    pub(crate) bytes: usize,
    /// Deltas that were written when the server was back.
    pub(crate) deltas: usize,
    /// The rows in these deltas.
    pub(crate) rows: usize,
}

/// Stops the server, changes rows `changes` times, and starts it again. `allocated` returns the bytes in use.
pub(crate) async fn measure(count: usize, changes: usize, allocated: impl Fn() -> usize) -> Result<Downtime> {
    let mut server = Postgres::start()?;
    let rows = Rows::filled(count)?;
    let plan = Schema { server: &server, name: "downtime" }.plan()?;
    let mut running = Running::start(&rows, plan);
    running.compared().await?;
    server.crash();
    rows.change(0, 1)?;
    running.failed().await?;
    let (before, deltas) = (allocated(), running.deltas());
    for (number, index) in (2..).zip((0..count).cycle().take(changes)) {
        rows.change(index, number)?;
        if index % 100 == 0 {
            // Otherwise the binding never gets to run.
            tokio::task::yield_now().await;
        }
    }
    let bytes = allocated().saturating_sub(before);
    server.resume()?;
    let written = running.recovered().await?;
    let deltas = running.deltas() - deltas;
    running.stop().await;
    Ok(Downtime { bytes, deltas, rows: written })
}
