//! What is written from the store to real sinks: a short version of the benchmark. `make bench-delivery` measures
//! times.

#[path = "../../benches/delivery/downtime.rs"]
mod downtime;
#[path = "../../benches/delivery/places.rs"]
#[expect(dead_code, reason = "the benchmark counts bytes")]
mod places;
#[path = "../../benches/delivery/restarts.rs"]
mod restarts;
#[path = "../../benches/delivery/rows.rs"]
#[expect(dead_code, reason = "the benchmark removes rows")]
mod rows;
#[path = "../../benches/delivery/running.rs"]
mod running;
#[path = "../../benches/delivery/writes.rs"]
mod writes;

use downtime::Downtime;
use kollect_testbed::{Nats, Postgres};
use places::{Place, Schema, SqliteFile, Stream, Tree};
use writes::Writes;

/// The number of changes and of rows.
const CHANGES: usize = 200;

async fn writes_only_what_has_changed(place: &impl Place) {
    let writes = writes::measure(place, CHANGES, CHANGES).await.unwrap();
    assert_eq!(writes, Writes { changes: CHANGES, statuses: 0, restart: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_written_only_what_has_changed() {
    writes_only_what_has_changed(&SqliteFile::new().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_written_only_what_has_changed() {
    let server = Postgres::shared();
    writes_only_what_has_changed(&Schema { server, name: "delivery_writes" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_sent_only_what_has_changed() {
    writes_only_what_has_changed(&Stream::new(Nats::shared(), "delivery_writes")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_only_where_a_row_has_changed() {
    writes_only_what_has_changed(&Tree::new("perResource").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_down_gets_each_changed_row_once() {
    let downtime = downtime::measure(100, 10_000, || 0).await.unwrap();
    assert_eq!(downtime, Downtime { bytes: 0, deltas: 1, rows: 100 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_never_sees_an_inventory_half_written_by_a_restart() {
    let place = Schema { server: Postgres::shared(), name: "delivery_restarts" };
    let seen = restarts::measure(&place, 2000, 3).await.unwrap();
    assert!(seen.looks > 0);
    assert_eq!(seen.incomplete, 0, "{seen:?}");
}
