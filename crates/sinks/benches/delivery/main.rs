//! Rows from the store to real sinks: how much is written, how soon it is visible, and what it costs.
//!
//! Times are compared with a reference measurement of the same run, in alternation; the fastest of each counts. A
//! missed target is reported and does not fail the benchmark; a part that does not work fails it.
//!
//! `N` is the number of rows of a table; all other numbers follow from it. `PART` runs one part only.
#![expect(clippy::disallowed_methods, reason = "benchmarks start tasks and threads as they like")]

mod bytes;
mod destinations;
mod documents;
mod downtime;
mod fill;
mod git;
mod lag;
mod restarts;
mod rows;
mod running;
#[path = "../../../kollect/benches/scale/table.rs"]
mod table;
mod writes;

use std::{
    alloc::System,
    env,
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use destinations::{BenchDestination, Schema, SqliteFile, Stream, Tree};
use kollect_sinks::SinkPolicy;
use kollect_testbed::{Nats, Postgres, S3};
use lag::{Reader, RowEdit};
use rows::Rows;
use running::{Running, inventory};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use table::Table;
use tokio::time::sleep;
use writes::Writes;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Parts that can be run alone.
const PARTS: [&str; 5] = ["documents", "git", "writes", "table", "faults"];
/// How many times each time is measured.
const ROUNDS: usize = 3;
/// Changes per second of a busy cluster.
const RATE: u32 = 500;

fn main() -> Result<()> {
    // Cargo passes this argument when it is asked to test benches.
    if env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    let count = match env::var("N").ok().filter(|text| !text.is_empty()) {
        None => 100_000,
        Some(text) => text.parse().with_context(|| format!("N={text}"))?,
    };
    anyhow::ensure!(count >= 1000, "N={count} is too few");
    let server = Postgres::start()?;
    let mut table = Table::default();
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let bench = Bench { server: &server, count };
        let only = env::var("PART").unwrap_or_default();
        let wanted = |part: &str| only.is_empty() || only == part;
        anyhow::ensure!(PARTS.iter().any(|part| wanted(part)), "PART={only} is none of {PARTS:?}");
        if wanted("documents") {
            bench.documents(&mut table).await?;
        }
        if wanted("git") {
            bench.git(&mut table).await?;
        }
        if wanted("writes") {
            bench.writes(&mut table).await?;
            bench.bytes(&mut table).await?;
        }
        if wanted("table") {
            bench.large_table(&mut table).await?;
        }
        if wanted("faults") {
            bench.downtime(&mut table).await?;
            bench.restarts(&mut table).await?;
        }
        Ok(())
    })?;
    println!("\n{table}");
    Ok(())
}

fn print_progress(what: impl Display) {
    println!("-- {what}");
}

#[expect(clippy::cast_precision_loss, reason = "digits beyond f64 precision are not needed")]
fn float(number: usize) -> f64 {
    number as f64
}

/// Bytes in use.
fn allocated() -> usize {
    let stats = INSTRUMENTED_SYSTEM.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// Bytes in use after all activity has ended.
async fn settled() -> usize {
    sleep(Duration::from_millis(500)).await;
    allocated()
}

/// Changes single rows, as many as there are.
async fn writes_of(
    name: &str,
    destination: &impl BenchDestination,
    changes: usize,
    table: &mut Table,
) -> Result<()> {
    print_progress(format_args!("{name}: {changes} changes of single rows"));
    let began = Instant::now();
    let Writes { changes: written, statuses, restart } =
        writes::measure(destination, changes, changes).await?;
    print_progress(format_args!("{name}: after {:.1} s", began.elapsed().as_secs_f64()));
    table.check(&format!("{name}: rows written / rows changed"), float(written) / float(changes), 1.05);
    table.check(&format!("{name}: rows written, 400 statuses changed"), float(statuses), 0.0);
    table.check(&format!("{name}: rows written, restart"), float(restart), 0.0);
    Ok(())
}

struct Bench<'a> {
    server: &'a Postgres,
    /// Rows of the large table.
    count: usize,
}

impl Bench<'_> {
    async fn writes(&self, table: &mut Table) -> Result<()> {
        let nats = Nats::start()?;
        let postgres = Schema { server: self.server, name: "writes" };
        let many = self.count / 10;
        writes_of("SQLite", &SqliteFile::new()?, many, table).await?;
        writes_of("PostgreSQL", &postgres, many, table).await?;
        writes_of("NATS", &Stream::new(&nats, "writes"), many, table).await?;
        // A file takes more work than a row.
        writes_of("files", &Tree::new("perResource")?, many / 10, table).await
    }

    async fn documents(&self, table: &mut Table) -> Result<()> {
        let server = S3::start()?;
        let mut json = 1.0;
        for (format, compression) in [("json", "none"), ("csv", "zstd"), ("parquet", "zstd")] {
            let measured = documents::measure(&server, format, compression, self.count).await?;
            let (name, bytes) = (format!("{format} {compression}"), float(measured.bytes));
            if format == "json" {
                json = bytes;
            }
            table.report(&format!("{name}: {} rows, MB", self.count), bytes / 1e6);
            table.report(&format!("{name}: first document, s"), measured.first.as_secs_f64());
            table.report(
                &format!("{name}: first document / curl put of the same bytes"),
                measured.first.as_secs_f64() / measured.bare.as_secs_f64(),
            );
            table.report(&format!("{name}: one changed row, s"), measured.change.as_secs_f64());
            table.report(
                &format!("{name}: record, bytes per row"),
                float(measured.record) / float(self.count),
            );
            table.report(&format!("{name}: most memory above idle, MB"), float(measured.peak) / 1e6);
            table.report(
                &format!("{name}: most memory above idle / JSON document"),
                float(measured.peak) / json,
            );
        }
        let parquet = documents::measure(&server, "parquet", "snappy", self.count).await?;
        table.report("Parquet snappy / JSON, bytes", float(parquet.bytes) / json);
        Ok(())
    }

    async fn git(&self, table: &mut Table) -> Result<()> {
        let (files, changes) = (self.count / 10, self.count / 100);
        print_progress(format_args!("a branch of {files} files, then {changes} commits"));
        let mut measured = git::measure(files, changes).await?;
        let (first, program) = (measured.first.as_secs_f64(), measured.program.as_secs_f64());
        table.report(&format!("Git, {files} files: git add, commit and push, s"), program);
        table.check(&format!("Git, {files} files: first export / git program"), first / program, 2.0);
        let ms = |all: &mut Vec<Duration>, percent: usize| {
            all.sort_unstable();
            all.get((all.len().saturating_sub(1)) * percent / 100)
                .map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        table.check(
            "Git: one changed file in a directory, p50, ms",
            ms(&mut measured.in_directory, 50),
            150.0,
        );
        table.report("Git: one changed file over HTTPS, p50, ms", ms(&mut measured.changes, 50));
        table.report("Git: one changed file over HTTPS, p99, ms", ms(&mut measured.changes, 99));
        table.check("Git: objects sent per changed file", float(measured.objects), 10.0);
        let (first_size, max_size) = measured.mirror;
        #[expect(clippy::cast_precision_loss, reason = "digits beyond f64 precision are not needed")]
        let (first_size, max_size, memory) = (first_size as f64, max_size as f64, measured.memory as f64);
        table.report("Git: mirror after the first export, MB", first_size / 1e6);
        table.check(
            &format!("Git: mirror in {changes} commits, at most / at first"),
            max_size / first_size,
            2.0,
        );
        table.check("Git: memory above idle, at most, MB", memory / 1e6, 60.0);
        Ok(())
    }

    async fn bytes(&self, table: &mut Table) -> Result<()> {
        for (mode, name) in [("perResource", "a file per row"), ("document", "one document")] {
            for count in [self.count / 100, self.count / 10] {
                print_progress(format_args!("bytes of {name} with {count} rows"));
                let bytes = bytes::measure(&Tree::new(mode)?, count, 50).await?;
                let (bytes, row) = (bytes.per_change / 1e3, bytes.held / 1e3 / float(count));
                table.report(&format!("{name}, {count} rows of {row:.1} KB: KB per change"), bytes);
            }
        }
        Ok(())
    }

    /// Fills a table, and changes it.
    async fn large_table(&self, table: &mut Table) -> Result<()> {
        let rows = Arc::new(Rows::filled(self.count)?);
        let copy = fill::Copy::of(&rows)?;
        // Creates the table whose definition the reference measurement copies.
        let like = Schema { server: self.server, name: "bare" };
        drop(kollect_sinks::open(&like.plan()?, &SinkPolicy::default()).await?);
        let (mut bare, mut filled) = (Duration::MAX, Duration::MAX);
        let mut last: Option<(Schema<'_>, usize, Running)> = None;
        for (round, name) in (1..).zip(["first", "second", "third"]) {
            if let Some((.., running)) = last.take() {
                running.stop().await;
            }
            let took = copy.run(self.server, &like.table(), &format!("bare.{name}")).await?;
            print_progress(format_args!(
                "round {round}: {} rows copied after {:.2} s",
                self.count,
                took.as_secs_f64()
            ));
            bare = bare.min(took);
            self.server.psql("CHECKPOINT")?;
            let destination = Schema { server: self.server, name };
            let (before, began) = (settled().await, Instant::now());
            let mut running = Running::start(&rows, destination.plan()?);
            running.compared().await?;
            let took = began.elapsed();
            print_progress(format_args!(
                "round {round}: {} rows filled after {:.2} s",
                self.count,
                took.as_secs_f64()
            ));
            filled = filled.min(took);
            last = Some((destination, settled().await.saturating_sub(before), running));
        }
        drop(copy);
        let (destination, bytes, running) = last.context("no round was run")?;
        table.report(&format!("{} rows: bare COPY, fastest of {ROUNDS}, s", self.count), bare.as_secs_f64());
        table.report(
            &format!("{} rows: first fill, fastest of {ROUNDS}, s", self.count),
            filled.as_secs_f64(),
        );
        table.check("first fill / bare COPY", filled.as_secs_f64() / bare.as_secs_f64(), 1.5);
        self.baseline(&destination, table).await?;
        table.check("memory of a binding, bytes per row", float(bytes) / float(self.count), 100.0);
        self.lags(&rows, &destination, table).await?;
        running.stop().await;
        Ok(())
    }

    async fn baseline(&self, destination: &Schema<'_>, table: &mut Table) -> Result<()> {
        let sink = kollect_sinks::open(&destination.plan()?, &SinkPolicy::default()).await?;
        let mut took = Duration::MAX;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let held = sink.baseline(&inventory()).await?.len();
            took = took.min(began.elapsed());
            anyhow::ensure!(held == self.count, "the baseline has {held} rows");
        }
        table.check(&format!("{} rows: baseline, s", self.count), took.as_secs_f64(), 1.0);
        Ok(())
    }

    async fn lags(&self, rows: &Arc<Rows>, destination: &Schema<'_>, table: &mut Table) -> Result<()> {
        let mut reader = Reader::connect(destination).await?;
        let few = self.count / 100;
        let many = few * 5;
        print_progress(format_args!("{few} changes and as many removals, one after the other"));
        let lags = lag::one_by_one(rows, &mut reader, 0..few, RowEdit::Change(1)).await?;
        table.check("change until visible, p50, ms", lags.percentile(50), 12.0);
        table.check("change until visible, p99, ms", lags.percentile(99), 40.0);
        let lags = lag::one_by_one(rows, &mut reader, 0..few, RowEdit::Remove).await?;
        table.check("removal until visible, p50, ms", lags.percentile(50), 12.0);
        table.check("removal until visible, p99, ms", lags.percentile(99), 40.0);
        print_progress(format_args!("{many} changes and as many removals, {RATE} per second"));
        let indexes = few..few + many;
        let lags = lag::paced(rows, &mut reader, indexes.clone(), RATE, RowEdit::Change(2)).await?;
        table.report(&format!("{RATE} changes/s until visible, p50, ms"), lags.percentile(50));
        table.check(&format!("{RATE} changes/s until visible, p99, ms"), lags.percentile(99), 250.0);
        let lags = lag::paced(rows, &mut reader, indexes, RATE, RowEdit::Remove).await?;
        table.report(&format!("{RATE} removals/s until visible, p50, ms"), lags.percentile(50));
        table.check(&format!("{RATE} removals/s until visible, p99, ms"), lags.percentile(99), 250.0);
        Ok(())
    }

    async fn downtime(&self, table: &mut Table) -> Result<()> {
        let (count, changes) = (self.count / 10, self.count * 10);
        print_progress(format_args!("a server that is down for {changes} changes of {count} rows"));
        let downtime = downtime::measure(count, changes, allocated).await?;
        let bytes = float(downtime.bytes) / float(count);
        table.report(&format!("down for {changes} changes: bytes per row"), bytes);
        table.check(&format!("down for {changes} changes: deltas"), float(downtime.deltas), 1.0);
        table.check(&format!("down for {changes} changes: rows written"), float(downtime.rows), float(count));
        Ok(())
    }

    async fn restarts(&self, table: &mut Table) -> Result<()> {
        let count = self.count / 10;
        print_progress(format_args!("a reader of {count} rows through ten restarts"));
        let destination = Schema { server: self.server, name: "restarts" };
        let counts = restarts::measure(&destination, count, 10).await?;
        table.report("ten restarts: reads by a reader", float(counts.reads));
        table.report(
            "ten restarts: ms between two reads",
            counts.took.as_secs_f64() * 1e3 / float(counts.reads),
        );
        table.check("ten restarts: incomplete states seen", float(counts.incomplete), 0.0);
        Ok(())
    }
}
