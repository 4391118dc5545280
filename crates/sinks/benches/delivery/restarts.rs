//! A reader that polls while the program stops and starts again with an empty store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::NoTls;

use super::{
    destinations::{BenchDestination, Schema},
    rows::Rows,
    running::Running,
};

/// The interval of the reader.
const READ_INTERVAL: Duration = Duration::from_millis(5);
/// One of this many rows differs after each restart.
const PART: usize = 100;

/// What the reader saw.
#[derive(Debug)]
pub(crate) struct ReaderCounts {
    pub(crate) reads: usize,
    /// The total time of all reads.
    pub(crate) took: Duration,
    /// Reads with missing or additional rows, or with only a part of the rows that changed together.
    pub(crate) incomplete: usize,
}

/// Restarts `restarts` times. Before each restart some rows change.
pub(crate) async fn measure(destination: &Schema<'_>, count: usize, restarts: u64) -> Result<ReaderCounts> {
    let rows = Rows::filled(count)?;
    let mut running = Running::start(&rows, destination.plan()?);
    running.compared().await?;
    let done = Arc::new(AtomicBool::new(false));
    let reader =
        tokio::spawn(read_until_done(destination.server.dsn(), destination.table(), count, done.clone()));
    for restart in 1..=restarts {
        running.stop().await;
        let rows = Rows::pending();
        running = Running::start(&rows, destination.plan()?);
        let edition = |index: usize| if index.is_multiple_of(PART) { restart } else { 0 };
        let contents: Vec<_> = (0..count).map(|index| Some(edition(index))).collect();
        // On another thread, so that the fill and the binding do not block each other.
        tokio::task::spawn_blocking(move || rows.fill(&contents)).await??;
        let written = running.compared().await?;
        anyhow::ensure!(written == count.div_ceil(PART), "{written} rows written after a restart");
    }
    running.stop().await;
    done.store(true, Ordering::Relaxed);
    reader.await?
}

async fn read_until_done(
    dsn: String,
    table: String,
    count: usize,
    done: Arc<AtomicBool>,
) -> Result<ReaderCounts> {
    let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await?;
    tokio::spawn(connection);
    let query = client
        .prepare(&format!(
            "SELECT count(*), count(DISTINCT row.edition) FILTER (WHERE row.number % {PART} = 0)
             FROM (SELECT payload #>> '{{attributes,edition}}' AS edition,
                 right(source_uid, 12)::bigint AS number FROM {table}) AS row"
        ))
        .await?;
    let count = i64::try_from(count)?;
    let mut counts = ReaderCounts { reads: 0, took: Duration::ZERO, incomplete: 0 };
    let began = Instant::now();
    let mut ticks = interval(READ_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !done.load(Ordering::Relaxed) {
        ticks.tick().await;
        let row = client.query_one(&query, &[]).await?;
        counts.reads += 1;
        counts.incomplete += usize::from((row.get::<_, i64>(0), row.get::<_, i64>(1)) != (count, 1));
    }
    counts.took = began.elapsed();
    Ok(counts)
}
