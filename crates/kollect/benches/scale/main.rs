//! Many objects on a real control plane, followed by the real program: time, memory and churn.
//!
//! Times are compared with a yardstick of the same run: the same objects, read in pages by a client that does not parse
//! them. Both are measured in turns and the faster turn of each counts, so that a busy machine slows both. A missed
//! target is reported but does not fail the run; a part that does not work does.
//!
//! `N` says how many objects, `SECONDS` how long they are changed.
#![expect(clippy::disallowed_methods, reason = "benchmarks start tasks and threads as they like")]

mod churn;
mod kinds;
mod manifests;
mod objects;
mod process;
mod table;
mod yardstick;

use std::{env, fmt::Display, str::FromStr, thread::sleep, time::Duration};

use anyhow::{Context, Result};
use kollect_testbed::{ControlPlane, Proxy};
use kube::Client;
use manifests::Manifests;
use process::KollectProcess;
use table::Table;
use tokio::runtime::Runtime;
use yardstick::Listing;

/// Fewer objects are the quick form.
const FULL_COUNT: usize = 50_000;
/// After this time freed memory has been returned to the system.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// How often each time is measured; the smallest counts.
const MEASUREMENTS: usize = 2;

fn main() -> Result<()> {
    // Cargo passes this argument when it is asked to test benches.
    if env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    let count = setting("N", 100_000)?;
    let full = count >= FULL_COUNT;
    let seconds = setting("SECONDS", if full { 60 } else { 5 })?;
    let mut table = Table::default();
    let mut bench = Bench::start(count)?;
    bench.create()?;
    let idle = bench.measure_idle(&mut table)?;
    let watching = bench.measure_lists(&mut table, "streamed", 1.0)?;
    bench.measure_memory(&mut table, &watching, idle)?;
    bench.measure_churn(&mut table, watching, Duration::from_secs(seconds))?;
    bench.restart("lists are not streamed", &["--feature-gates=WatchList=false"])?;
    drop(bench.measure_lists(&mut table, "in pages", 1.3)?);
    bench.restart("lists are streamed again", &[])?;
    bench.measure_kinds(&mut table, if full { 200 } else { 20 }, idle)?;
    println!("\n{table}");
    Ok(())
}

/// A number from the environment.
fn setting<T: FromStr<Err: Display>>(name: &str, default: T) -> Result<T> {
    match env::var(name).ok().filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|error| anyhow::anyhow!("{name}={text}: {error}")),
    }
}

fn print_step(what: impl Display) {
    println!("-- {what}");
}

#[expect(clippy::cast_precision_loss, reason = "so many digits are not needed")]
fn float(number: usize) -> f64 {
    number as f64
}

/// A control plane with objects, and a client.
struct Bench {
    runtime: Runtime,
    plane: ControlPlane,
    client: Client,
    count: usize,
}

impl Bench {
    fn start(count: usize) -> Result<Self> {
        print_step("starting a control plane");
        let plane = ControlPlane::start()?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(objects::client(plane.kubeconfig()))?;
        Ok(Self { runtime, plane, client, count })
    }

    fn restart(&mut self, why: &str, flags: &[&str]) -> Result<()> {
        print_step(format_args!("restarting the API server: {why}"));
        Ok(self.plane.restart_api_server(flags)?)
    }

    fn create(&self) -> Result<()> {
        let on_progress = |done: usize, seconds: f64| {
            print_step(format_args!("{done} of {} Deployments after {seconds:.0} s", self.count));
        };
        self.runtime.block_on(async {
            objects::create_namespaces(&self.client).await?;
            objects::create(&self.client, self.count, on_progress).await
        })
    }

    fn watch(&self, manifests: &Manifests) -> Result<KollectProcess> {
        KollectProcess::start(manifests.path(), self.plane.kubeconfig())
    }

    /// Memory of the program without rows, in bytes.
    fn measure_idle(&self, table: &mut Table) -> Result<usize> {
        print_step("watching nothing");
        let manifests = Manifests::deployments(&["nowhere"])?;
        let mut watching = self.watch(&manifests)?;
        watching.wait_until_synced(0)?;
        sleep(SETTLE_TIME);
        let idle = watching.memory()?.now;
        table.check("memory of an idle process, MB", float(idle) / 1e6, 25.0);
        Ok(idle)
    }

    /// Reads everything in turns: as a client that does not parse, and as the program. Returns the last program,
    /// still watching.
    fn measure_lists(&self, table: &mut Table, how: &str, target: f64) -> Result<KollectProcess> {
        let manifests = Manifests::deployments(&[])?;
        let (mut raw, mut took) = (f64::INFINITY, f64::INFINITY);
        let mut last = None;
        for turn in 1..=MEASUREMENTS {
            // Only one at a time.
            drop(last.take());
            let listing = self.runtime.block_on(yardstick::list(&self.client))?;
            let Listing { pages, bytes, seconds } = listing;
            anyhow::ensure!(bytes > self.count * 1000, "the list has only {bytes} bytes");
            print_step(format_args!("turn {turn}: raw list, {pages} pages, after {seconds:.1} s"));
            let mut watching = self.watch(&manifests)?;
            let synced = watching.wait_until_synced(self.count)?.as_secs_f64();
            print_step(format_args!("turn {turn}: {} rows, {how}, after {synced:.1} s", self.count));
            (raw, took) = (raw.min(seconds), took.min(synced));
            last = Some((bytes, watching));
        }
        let (bytes, watching) = last.context("there was no turn")?;
        table.report(&format!("{} Deployments, bytes each", self.count), float(bytes / self.count));
        table.report(&format!("yardstick: raw list in pages of 500, fastest of {MEASUREMENTS}, s"), raw);
        table.report(&format!("kollect watch, {how}, fastest of {MEASUREMENTS}, s"), took);
        table.check(&format!("kollect watch, {how} / yardstick"), took / raw, target);
        Ok(watching)
    }

    fn measure_memory(&self, table: &mut Table, watching: &KollectProcess, idle: usize) -> Result<()> {
        sleep(SETTLE_TIME);
        let memory = watching.memory()?;
        table.report("memory with all rows, MB", float(memory.now) / 1e6);
        let rows = memory.now.saturating_sub(idle);
        table.check("memory per row above idle, KB", float(rows) / float(self.count) / 1e3, 1.2);
        table.check("peak memory / memory", float(memory.peak) / float(memory.now), 1.3);
        Ok(())
    }

    fn measure_churn(&self, table: &mut Table, mut watching: KollectProcess, time: Duration) -> Result<()> {
        print_step(format_args!("changing objects for {} s", time.as_secs()));
        let (cpu, before) = (watching.cpu()?, watching.memory()?.now);
        let churned = self.runtime.block_on(churn::churn(&self.client, self.count, time))?;
        let printed = watching.wait_for_printed(churn::LAST_OWNER)?;
        let cpu = watching.cpu()?.saturating_sub(cpu);
        sleep(SETTLE_TIME);
        let after = watching.memory()?.now;
        table.report("churn: changes per second", float(churned.changes) / time.as_secs_f64());
        table.report("churn: CPU µs per change", cpu.as_secs_f64() * 1e6 / float(churned.changes));
        let lag = printed.at.saturating_duration_since(churned.ended);
        table.report("churn: lines printed / changes", float(printed.lines) / float(churned.changes));
        table.report("churn: lag of the last change, s", lag.as_secs_f64());
        table.report("churn: memory before, MB", float(before) / 1e6);
        table.report("churn: memory after, MB", float(after) / 1e6);
        Ok(())
    }

    /// Many kinds with one object each.
    fn measure_kinds(&self, table: &mut Table, kinds: usize, idle: usize) -> Result<()> {
        print_step(format_args!("creating {kinds} kinds"));
        self.runtime.block_on(kinds::create(&self.client, kinds))?;
        let manifests = Manifests::kinds(kinds)?;
        print_step(format_args!("watching {kinds} kinds through a proxy that counts"));
        let proxy = Proxy::start(&self.plane)?;
        let mut watching =
            KollectProcess::start(manifests.path(), &proxy.kubeconfig(self.plane.kubeconfig())?)?;
        watching.wait_until_synced(kinds)?;
        let requests = proxy.requests();
        let watches = requests.iter().filter(|line| kinds::is_watch(line)).count();
        anyhow::ensure!(watches >= kinds, "only {watches} watches of {kinds} kinds");
        table.check(&format!("{kinds} kinds: watches per kind"), float(watches) / float(kinds), 1.0);
        drop((watching, proxy));
        print_step(format_args!("watching {kinds} kinds"));
        let mut watching = self.watch(&manifests)?;
        let took = watching.wait_until_synced(kinds)?;
        sleep(SETTLE_TIME);
        let memory = watching.memory()?.now.saturating_sub(idle);
        table.report(&format!("{kinds} kinds: until every row is there, s"), took.as_secs_f64());
        let per_watch = float(memory) / float(kinds) / 1e3;
        table.report(&format!("{kinds} kinds: memory per idle watch, KB"), per_watch);
        Ok(())
    }
}
