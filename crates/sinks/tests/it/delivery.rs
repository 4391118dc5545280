//! What is written from the store to real sinks: a short version of the benchmark. `make bench-delivery` measures
//! times.

#[path = "../../benches/delivery/destinations.rs"]
#[expect(dead_code, reason = "the benchmark counts bytes")]
mod destinations;
#[path = "../../benches/delivery/downtime.rs"]
mod downtime;
#[path = "../../benches/delivery/restarts.rs"]
mod restarts;
#[path = "../../benches/delivery/rows.rs"]
#[expect(dead_code, reason = "the benchmark removes rows")]
mod rows;
#[path = "../../benches/delivery/running.rs"]
mod running;
#[path = "../../benches/delivery/writes.rs"]
mod writes;

use destinations::{BenchDestination, Schema, SqliteFile, Stream, Tree};
use downtime::Downtime;
use kollect_testbed::{Nats, Postgres};
use writes::Writes;

/// The number of changes and of rows.
const CHANGES: usize = 200;

async fn writes_only_what_has_changed(destination: &impl BenchDestination) {
    let writes = writes::measure(destination, CHANGES, CHANGES).await.unwrap();
    assert_eq!(writes, Writes { changes: CHANGES, statuses: 0, restart: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changed_rows_are_written_to_sqlite() {
    writes_only_what_has_changed(&SqliteFile::new().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changed_rows_are_written_to_postgresql() {
    let server = Postgres::shared();
    writes_only_what_has_changed(&Schema { server, name: "delivery_writes" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_changed_rows_are_sent_to_a_stream() {
    writes_only_what_has_changed(&Stream::new(Nats::shared(), "delivery_writes")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_files_of_changed_rows_are_written() {
    writes_only_what_has_changed(&Tree::new("perResource").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_down_gets_each_changed_row_once() {
    let downtime = downtime::measure(100, 10_000, || 0).await.unwrap();
    assert_eq!(downtime, Downtime { bytes: 0, deltas: 1, rows: 100 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_never_sees_an_inventory_half_written_by_a_restart() {
    let destination = Schema { server: Postgres::shared(), name: "delivery_restarts" };
    let counts = restarts::measure(&destination, 2000, 3).await.unwrap();
    assert!(counts.reads > 0);
    assert_eq!(counts.incomplete, 0, "{counts:?}");
}
