//! The real operator between a real control plane and a real PostgreSQL: how soon changes can be seen, how much memory,
//! CPU and requests it needs, and that it writes changed rows only.
//!
//! A missed target is reported and fails nothing; a part that does not work fails.
//!
//! `N` says how many Deployments there are; few are the quick form.
#![expect(clippy::disallowed_methods, reason = "benchmarks start tasks and threads as they like")]

mod definitions;
#[path = "../scale/manifests.rs"]
#[expect(dead_code, reason = "the other benchmark watches more kinds")]
mod manifests;
#[path = "../scale/objects.rs"]
mod objects;
mod operator_process;
#[path = "../scale/process.rs"]
#[expect(dead_code, reason = "the other benchmark reads what is printed")]
mod process;
mod reader;
#[path = "../scale/table.rs"]
mod table;

use std::{
    collections::BTreeMap,
    env,
    fmt::Display,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use definitions::{SharedTeams, Teams};
use kollect_testbed::{ControlPlane, Postgres, Proxy};
use kube::Client;
use manifests::Manifests;
use operator_process::OperatorProcess;
use reader::{Expected, Reader};
use serde_json::{Value, json};
use table::Table;
use tokio::{runtime::Runtime, time::sleep};

/// Fewer objects are the quick form.
const FULL_COUNT: usize = 50_000;
/// Namespace of the large inventory.
const LARGE_NAMESPACE: &str = "home";
/// After this time freed memory has been returned to the system, and statuses have been written.
const SETTLE_TIME: Duration = Duration::from_secs(12);
/// How long an idle operator is measured.
const IDLE_TIME: Duration = Duration::from_secs(20);
/// How long an idle operator with many inventories is measured: longer than all its regular intervals.
const LONG_IDLE_TIME: Duration = Duration::from_mins(11);
/// Requests are counted for so long.
const MINUTE: Duration = Duration::from_mins(1);

fn main() -> Result<()> {
    // Cargo passes this argument when it is asked to test benches.
    if env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    let count = match env::var("N").ok().filter(|text| !text.is_empty()) {
        None => 100_000,
        Some(text) => text.parse().with_context(|| format!("N={text}"))?,
    };
    let mut table = Table::default();
    // PART=rows, teams, idle or recovery: one of them only.
    let only = env::var("PART").ok().filter(|text| !text.is_empty());
    let is_selected = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let is_full = count >= FULL_COUNT;
    Runtime::new()?.block_on(async {
        if is_selected("rows") {
            many_rows(&mut table, count).await?;
        }
        if is_selected("teams") {
            let full = Teams { count: 200, targets: 500 };
            many_teams(&mut table, if is_full { full } else { Teams { count: 20, targets: 50 } }).await?;
        }
        if is_selected("idle") {
            let full = SharedTeams { count: 100, targets: 3, maps: 1000 };
            let few = SharedTeams { count: 20, targets: 3, maps: 50 };
            idle_teams(&mut table, if is_full { full } else { few }).await?;
        }
        if is_selected("recovery") {
            recovery(&mut table, 10_000).await?;
        }
        anyhow::Ok(())
    })?;
    println!("\n{table}");
    Ok(())
}

fn print_step(what: impl Display) {
    println!("-- {what}");
}

#[expect(clippy::cast_precision_loss, reason = "so many digits are not needed")]
fn float(number: usize) -> f64 {
    number as f64
}

fn mebibytes(bytes: usize) -> f64 {
    float(bytes) / 1024.0 / 1024.0
}

/// A control plane that knows all kinds, a database, and a reader of its table.
struct Bench {
    plane: ControlPlane,
    client: Client,
    postgres: Postgres,
    reader: Reader,
}

impl Bench {
    async fn start() -> Result<Self> {
        print_step("starting a control plane and PostgreSQL");
        let plane = ControlPlane::start()?;
        definitions::install(&plane)?;
        let postgres = Postgres::start()?;
        let client = objects::client(plane.kubeconfig()).await?;
        let reader = Reader::connect(&postgres.dsn()).await?;
        Ok(Self { plane, client, postgres, reader })
    }

    /// Creates Deployments, and an inventory with all of them.
    async fn create_deployments(&self, count: usize) -> Result<()> {
        objects::create_namespaces(&self.client).await?;
        let on_progress =
            |done: usize, seconds: f64| print_step(format_args!("{done} Deployments after {seconds:.0} s"));
        objects::create(&self.client, count, on_progress).await?;
        definitions::create_namespace(&self.client, LARGE_NAMESPACE).await?;
        definitions::allow_all_namespaces(&self.client, LARGE_NAMESPACE).await?;
        let manifests = Manifests::deployments(&[])?;
        let path = manifests.path().to_str().context("a strange directory")?;
        self.plane.kubectl(&["apply", "-n", LARGE_NAMESPACE, "-f", path])?;
        definitions::create_sink_and_inventory(&self.client, LARGE_NAMESPACE, &self.postgres.dsn()).await
    }

    /// Changes an object, and waits until its row can be seen.
    async fn change(&mut self, path: &str, namespace: &str, target: &str, value: &str) -> Result<Change> {
        let change = json!({ "metadata": { "annotations": { "owner": value } } });
        let began = Instant::now();
        let object = objects::patch(&self.client, path, &change).await?;
        let answered = began.elapsed();
        let object: Value = serde_json::from_str(&object)?;
        let uid = object["metadata"]["uid"].as_str().context("an object without UID")?;
        let expected = Expected { namespace, target, uid, attribute: "owner", value };
        let seen = self.reader.wait_for_row(&expected).await?;
        Ok(Change { answered, seen: seen.duration_since(began) })
    }
}

/// How long it took after the request was sent.
struct Change {
    answered: Duration,
    seen: Duration,
}

/// The percentile of the changes, in milliseconds.
fn percentile(changes: &[Change], percent: usize, time_of: impl Fn(&Change) -> Duration) -> f64 {
    let mut times: Vec<Duration> = changes.iter().map(time_of).collect();
    times.sort_unstable();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3)
}

/// One inventory with all Deployments of the cluster.
async fn many_rows(table: &mut Table, count: usize) -> Result<()> {
    let mut bench = Bench::start().await?;
    bench.create_deployments(count).await?;
    let operator = OperatorProcess::start(bench.plane.kubeconfig())?;
    definitions::wait_until_ready(&bench.client, 1, async || Ok(())).await?;
    let took = operator.began.elapsed();
    let rows = bench.reader.rows().await?;
    ensure!(rows == count, "the table has {rows} rows");
    print_step(format_args!("{rows} rows after {:.1} s", took.as_secs_f64()));
    table.report(&format!("{count} Deployments: start until Ready, s"), took.as_secs_f64());
    sleep(SETTLE_TIME).await;
    let memory = operator.memory()?;
    table.check("memory with all rows exported, MiB", mebibytes(memory.now), 160.0);
    table.report("peak memory, MiB", mebibytes(memory.peak));

    bench.reader.listen().await?;
    measure_latency(table, &mut bench, &operator, count).await?;
    sleep(SETTLE_TIME).await;
    print_step(format_args!("idling for {} s", IDLE_TIME.as_secs()));
    table.check("idle: CPU, % of a core", operator.cpu_percent(IDLE_TIME)?, 1.0);
    table.report("memory after the changes, MiB", mebibytes(operator.memory()?.now));
    operator.stop()?;
    restart(table, &mut bench, count).await
}

/// One change after the other.
async fn measure_latency(
    table: &mut Table,
    bench: &mut Bench,
    operator: &OperatorProcess,
    count: usize,
) -> Result<()> {
    let changes = (count / 100).max(300).min(count);
    print_step(format_args!("{changes} changes, one after the other"));
    let before = operator.cpu()?;
    let mut seen = Vec::new();
    for index in 0..changes {
        seen.push(
            bench.change(&objects::path(index), LARGE_NAMESPACE, "scale", &format!("change-{index}")).await?,
        );
    }
    let cpu = operator.cpu()?.saturating_sub(before);
    table.report(
        "change sent until the API server answers, p50, ms",
        percentile(&seen, 50, |change| change.answered),
    );
    table.check("change sent until visible, p50, ms", percentile(&seen, 50, |change| change.seen), 15.0);
    table.check("change sent until visible, p99, ms", percentile(&seen, 99, |change| change.seen), 50.0);
    table.report("CPU per change, ms", cpu.as_secs_f64() * 1e3 / float(changes));
    Ok(())
}

/// Starts the operator again, behind a proxy that counts requests.
async fn restart(table: &mut Table, bench: &mut Bench, count: usize) -> Result<()> {
    print_step("starting again, behind a proxy that counts");
    let proxy = Proxy::start(&bench.plane)?;
    let (own, others) = bench.reader.writes(LARGE_NAMESPACE).await?;
    let kubeconfig = proxy.kubeconfig(bench.plane.kubeconfig())?;
    let operator = OperatorProcess::start(&kubeconfig)?;
    // Any difference is written before, or together with, this change.
    bench.change(&objects::path(count - 1), LARGE_NAMESPACE, "scale", "restarted").await?;
    sleep(SETTLE_TIME).await;
    let (own_after, others_after) = bench.reader.writes(LARGE_NAMESPACE).await?;
    let written = own_after + others_after - own - others;
    ensure!(written > 0, "a change was seen and not counted");
    table.check("restart, nothing changed: rows written", float(written - 1), 0.0);
    let before = proxy.requests().len();
    ensure!(before > 0, "the operator does not use the proxy");
    print_step(format_args!("idling for {} s", MINUTE.as_secs()));
    sleep(MINUTE).await;
    let requests = proxy.requests();
    let idle = requests.get(before..).unwrap_or_default();
    idle.iter().for_each(print_step);
    table.check("idle: API requests per minute", float(idle.len()), 20.0);
    operator.stop()
}

/// Many small inventories in one database.
async fn many_teams(table: &mut Table, teams: Teams) -> Result<()> {
    let mut bench = Bench::start().await?;
    let dsn = bench.postgres.dsn();
    teams.create(&bench.client, &dsn).await?;
    let Teams { count, targets } = teams;
    print_step(format_args!("{targets} targets of {count} teams"));
    let operator = OperatorProcess::start(bench.plane.kubeconfig())?;
    let mut max_sessions = 0;
    let count_sessions = async || {
        max_sessions = max_sessions.max(bench.reader.sessions().await?);
        Ok(())
    };
    definitions::wait_until_ready(&bench.client, count, count_sessions).await?;
    let took = operator.began.elapsed().as_secs_f64();
    let rows = bench.reader.rows().await?;
    ensure!(rows == teams.rows(), "the table has {rows} rows instead of {}", teams.rows());
    let what = format!("{targets} targets, {count} inventories");
    table.check(&format!("{what}: start until Ready, s"), took, 30.0);
    table.check(
        &format!("{what}: connections"),
        float(max_sessions.max(bench.reader.sessions().await?)),
        20.0,
    );
    table.report(&format!("{what}: CPU until Ready, s"), operator.cpu()?.as_secs_f64());
    sleep(SETTLE_TIME).await;
    bench.reader.listen().await?;
    let namespace = Teams::namespace(0);
    bench.change(&Teams::path(0), &namespace, "part-0", "alone").await?;
    sleep(SETTLE_TIME).await;
    let (own, others) = bench.reader.writes(&namespace).await?;
    ensure!(own == 1, "{own} rows were written for one change");
    table.check(&format!("{what}: other rows written"), float(others), 0.0);
    let before = operator.cpu()?;
    let mut seen = Vec::new();
    for round in 0..10 {
        for team in 0..count.min(20) {
            let (path, namespace) = (Teams::path(team), Teams::namespace(team));
            seen.push(bench.change(&path, &namespace, "part-0", &format!("change-{round}")).await?);
        }
    }
    let cpu = operator.cpu()?.saturating_sub(before).as_secs_f64() * 1e3 / float(seen.len());
    table.report(&format!("{what}: until visible, p50, ms"), percentile(&seen, 50, |change| change.seen));
    table.report(&format!("{what}: until visible, p99, ms"), percentile(&seen, 99, |change| change.seen));
    table.report(&format!("{what}: CPU per change, ms"), cpu);
    sleep(SETTLE_TIME).await;
    table.report(&format!("{what}: idle CPU, % of a core"), operator.cpu_percent(IDLE_TIME)?);
    table.report(&format!("{what}: memory, MiB"), mebibytes(operator.memory()?.now));
    operator.stop()
}

/// From the crash of a leader until the next leader writes the first row.
async fn recovery(table: &mut Table, count: usize) -> Result<()> {
    let mut bench = Bench::start().await?;
    bench.create_deployments(count).await?;
    let kubeconfig = bench.plane.kubeconfig().to_owned();
    let mut leader = OperatorProcess::start_in_pod(&kubeconfig, "1")?;
    definitions::wait_until_ready(&bench.client, 1, async || Ok(())).await?;
    bench.reader.listen().await?;
    let what = format!("{count} rows, kill -9 until the first write, s");
    for (round, case) in ["container", "container", "container", "new Pod", "standby"].into_iter().enumerate()
    {
        print_step(format_args!("kill -9: {case}"));
        // A lease that was just renewed stays valid as long as it can.
        sleep(Duration::from_secs(3)).await;
        let standby =
            (case == "standby").then(|| OperatorProcess::start_in_pod(&kubeconfig, "3")).transpose()?;
        if standby.is_some() {
            sleep(SETTLE_TIME).await;
        }
        drop(leader);
        let killed = Instant::now();
        leader = match (case, standby) {
            (_, Some(standby)) => standby,
            ("container", None) => OperatorProcess::start_in_pod(&kubeconfig, "1")?,
            (_, None) => OperatorProcess::start_in_pod(&kubeconfig, "2")?,
        };
        let value = format!("recovered-{round}");
        bench.change(&objects::path(round), LARGE_NAMESPACE, "scale", &value).await?;
        let limit = if case == "container" { 15.0 } else { 25.0 };
        table.check(&format!("{what}: {case}"), killed.elapsed().as_secs_f64(), limit);
    }
    leader.stop()
}

/// What many targets and inventories cost while nothing happens, by kind of request.
async fn idle_teams(table: &mut Table, teams: SharedTeams) -> Result<()> {
    let bench = Bench::start().await?;
    let on_progress = |done: usize| {
        if done.is_multiple_of(10) {
            print_step(format_args!("{done} teams are there"));
        }
    };
    teams.create(&bench.client, &bench.postgres.dsn(), on_progress).await?;
    let proxy = Proxy::start(&bench.plane)?;
    let kubeconfig = proxy.kubeconfig(bench.plane.kubeconfig())?;
    let operator = OperatorProcess::start(&kubeconfig)?;
    definitions::wait_until_ready(&bench.client, teams.count, async || Ok(())).await?;
    let took = operator.began.elapsed().as_secs_f64();
    let rows = bench.reader.rows().await?;
    ensure!(rows == teams.rows(), "the table has {rows} rows instead of {}", teams.rows());
    let SharedTeams { count, targets, .. } = teams;
    let what = format!("{} targets, {count} inventories, {rows} rows", count * targets);
    table.report(&format!("{what}: start until Ready, s"), took);
    sleep(MINUTE).await;
    table.report(&format!("{what}: memory, MiB"), mebibytes(operator.memory()?.now));
    let before = proxy.requests().len();
    print_step(format_args!("idling for {} s", LONG_IDLE_TIME.as_secs()));
    table.check(&format!("{what}: idle CPU, % of a core"), operator.cpu_percent(LONG_IDLE_TIME)?, 0.5);
    let requests = proxy.requests();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests.get(before..).unwrap_or_default() {
        *kinds.entry(request_kind(request)).or_default() += 1;
    }
    kinds.iter().for_each(|(kind, count)| print_step(format_args!("{count:5}  {kind}")));
    let counted = kinds.iter().filter(|(kind, _)| !is_unlimited(kind)).map(|(_, count)| count).sum::<usize>();
    let per_second = float(counted) / LONG_IDLE_TIME.as_secs_f64();
    table.check(&format!("{what}: idle, API requests per second"), per_second, 0.2);
    operator.stop()
}

/// A request without the names in it.
fn request_kind(request: &str) -> String {
    let (path, query) = request.split_once('?').unwrap_or((request, ""));
    let mut parts: Vec<&str> = path.split('/').collect();
    for index in 1..parts.len() {
        if matches!(parts[index - 1], "namespaces" | "secrets" | "leases")
            || parts[index - 1].starts_with("kollect") && parts[index - 1] != "kollect.dev"
        {
            parts[index] = "…";
        }
    }
    let watch = if query.contains("watch=") { " watch" } else { "" };
    format!("{}{watch}", parts.join("/"))
}

/// Requests for leases, watches and Secrets are not limited.
fn is_unlimited(kind: &str) -> bool {
    kind.ends_with(" watch") || kind.contains("/leases") || kind.contains("/secrets")
}
