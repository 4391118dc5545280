//! A simulator of the whole operator: one seed is one schedule of changes, faults and crashes on paused time.
//!
//! ```text
//! schedule ──▶ API servers in memory ──▶ the operator as it is ──▶ destinations in memory ◀── a reader
//!                        └──────────────▶ truth: what each row was at each time ◀──────────────┘
//! ```
//!
//! Whenever a destination changes a reader looks at it: a row that exists is never missing, no row goes back in time
//! and none is there that never was. When the faults are over every destination holds the rows that the objects
//! yield, and nothing is written any more.
//!
//! `cargo test` runs some seeds, `make simulate SEEDS=N` as many as asked for, `make simulate SEED=N` one of them.

mod api_server;
mod cluster;
mod executor;
mod journal;
mod reader;
mod schedule;
mod signal;
mod sink_servers;
mod truth;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use kollect_engine::clock;
use kollect_model::batch::InventoryId;
use serde_json::Value;
use tokio::time;

use cluster::Cluster;
use executor::Executor;
use journal::Journal;
use schedule::{KNOWN_FAULTS, Schedule, Step};
use sink_servers::{SinkServers, destination_of};
use truth::{TEAM, expected, text};

/// Seeds that `cargo test` runs.
const SEEDS: u64 = 60;
/// Seeds that it runs twice.
const SEEDS_TWICE: u64 = 10;
/// What the clock of every simulated machine shows at first: 2026-01-01 00:00:00 UTC.
const START: Duration = Duration::from_hours(490_896);
/// After the faults are over everything is in order within this time.
const SETTLING: Duration = Duration::from_mins(16);
/// How often it is looked whether everything is in order.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// One of so many schedules goes on for [`QUIET`] afterwards.
const WATCHED_LONGER: u64 = 5;
/// For this long nothing is written.
const QUIET: Duration = Duration::from_mins(11);
/// So many failing seeds are shown.
const FAILURES: u32 = 5;
/// Runs that are spent on making a failing schedule smaller.
const CUTS: usize = 60;

/// The clusters and the destinations that they share.
struct Simulation {
    clusters: Vec<Cluster>,
    sinks: SinkServers,
    /// Whether statuses of moved sinks must be true, too: a known fault.
    checks_moved: bool,
}

impl Simulation {
    fn new(schedule: &Schedule, executor: &Executor, journal: &Journal) -> Self {
        let sinks = SinkServers::new(schedule.seed ^ 1, journal.clone());
        let names = ["east", "west"].into_iter().take(schedule.clusters);
        let cluster =
            |name| Cluster::new(name, schedule.seed, sinks.clone(), executor.clone(), journal.clone());
        let clusters = names.map(cluster).collect();
        let checks_moved = shows_known_fault("moved-status");
        let simulation = Self { clusters, sinks, checks_moved };
        simulation.record();
        simulation
    }

    /// What is wanted has changed.
    fn record(&self) {
        for cluster in &self.clusters {
            self.sinks.lock().reader.record(&cluster.name, &cluster.api);
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Sink(destination, fault) => self.sinks.set_fault(destination, fault),
            Step::EditRows(destination, number, remove) => self.sinks.edit_rows(destination, number, remove),
            Step::BackUp(destination) => self.sinks.back_up(destination),
            Step::Restore(destination) => self.sinks.restore(destination),
            Step::LoseClaims(destination) => self.sinks.lose_claims(destination),
            Step::TakeOver(cluster, inventory) => {
                let other = self.clusters[1 - cluster].id();
                self.clusters[cluster].take_over(inventory, &other);
            }
            Step::Object(cluster, ..)
            | Step::DeleteObject(cluster, ..)
            | Step::Namespace(cluster, ..)
            | Step::ServeWidgets(cluster, ..)
            | Step::Target(cluster, ..)
            | Step::SuspendTarget(cluster, ..)
            | Step::DeleteTarget(cluster, ..)
            | Step::ProfileKind(cluster, ..)
            | Step::ProfileAttributes(cluster, ..)
            | Step::Inventory(cluster, ..)
            | Step::SuspendInventory(cluster, ..)
            | Step::DeleteInventory(cluster, ..)
            | Step::MoveSink(cluster, ..)
            | Step::ClusterName(cluster, ..)
            | Step::Permit(cluster, ..)
            | Step::CutWatches(cluster)
            | Step::ForgetHistory(cluster)
            | Step::ApiErrors(cluster, ..)
            | Step::ApiLatency(cluster, ..)
            | Step::StaleLists(cluster, ..)
            | Step::Crash(cluster)
            | Step::Start(cluster) => self.clusters[cluster].take(step),
        }
        self.record();
    }

    /// What readers of destinations and statuses have seen so far.
    fn check(&self) -> Result<(), String> {
        if let Some(violation) = self.sinks.lock().violation.clone() {
            return Err(violation);
        }
        for cluster in &self.clusters {
            for inventory in cluster.api.told() {
                self.check_status(&inventory)?;
            }
        }
        Ok(())
    }

    /// A status never says that a sink holds more or less than it has ever held.
    fn check_status(&self, inventory: &Value) -> Result<(), String> {
        for export in exports(inventory) {
            let rows = usize::try_from(export.rows).unwrap_or(0);
            if self.checks_moved
                && export.synced
                && !self.sinks.has_held(&export.destination, &export.inventory, rows)
            {
                return Err(format!("a status says what never was: {export:?}"));
            }
        }
        Ok(())
    }

    async fn run(&mut self, schedule: &Schedule) -> Result<(), String> {
        for (number, (step, pause)) in schedule.steps.iter().enumerate() {
            self.take(step);
            time::sleep(Duration::from_millis(*pause)).await;
            self.check().map_err(|why| format!("after step {number}: {why}"))?;
        }
        self.sinks.heal();
        self.clusters.iter_mut().for_each(Cluster::heal);
        self.record();
        self.settle().await?;
        if !schedule.seed.is_multiple_of(WATCHED_LONGER) {
            return Ok(());
        }
        let written = (self.sinks.lock().rows_written, self.statuses_written());
        time::sleep(QUIET).await;
        self.check()?;
        let again = (self.sinks.lock().rows_written, self.statuses_written());
        if again.0 != written.0 {
            return Err(format!("{} rows are written although nothing changes", again.0 - written.0));
        }
        // Times of audits may be told.
        if again.1 - written.1 > 20 {
            return Err(format!("{} statuses are written although nothing changes", again.1 - written.1));
        }
        self.check_settled()
    }

    /// Waits until everything is in order.
    async fn settle(&self) -> Result<(), String> {
        let until = time::Instant::now() + SETTLING;
        loop {
            time::sleep(LOOK_AGAIN).await;
            self.check()?;
            match self.check_settled() {
                Err(why) if time::Instant::now() >= until => return Err(why),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    fn statuses_written(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.api.written()).sum()
    }

    /// Every destination holds what the objects yield, and every status says so.
    fn check_settled(&self) -> Result<(), String> {
        let mut wanted = BTreeMap::new();
        for cluster in &self.clusters {
            wanted.extend(expected(&cluster.name, &cluster.api));
        }
        let restored = self.sinks.lock().changed_by_others.clone();
        for (destination, contents) in self.sinks.contents() {
            for (inventory, held) in contents {
                let rows = wanted.remove(&(destination.clone(), inventory.clone()));
                let exists = rows.is_some();
                if !exists && restored.contains(&destination) {
                    // What comes back in a destination that is not used any more is found by no operator.
                    continue;
                }
                if rows.unwrap_or_default() != held.rows {
                    return Err(format!("at the end {destination} holds other rows of {inventory:?}"));
                }
                if held.holder.is_some() && !exists {
                    return Err(format!("at the end the claim of {inventory:?} is left in {destination}"));
                }
            }
        }
        if let Some((place, _)) = wanted.iter().find(|(_, rows)| !rows.is_empty()) {
            return Err(format!("at the end {place:?} does not exist"));
        }
        self.clusters.iter().try_for_each(|cluster| self.check_last_statuses(cluster))
    }

    fn check_last_statuses(&self, cluster: &Cluster) -> Result<(), String> {
        let contents = self.sinks.contents();
        for inventory in cluster.api.objects("kollectinventories") {
            if inventory["metadata"].get("deletionTimestamp").is_some() {
                return Err(format!("at the end the inventory is still being deleted: {inventory}"));
            }
            for export in exports(&inventory) {
                let held = contents.get(&export.destination).and_then(|all| all.get(&export.inventory));
                let held = held.map_or(0, |held| held.rows.len());
                if !export.synced || usize::try_from(export.rows) != Ok(held) {
                    return Err(format!(
                        "at the end the sink holds {held} rows, and the status says {export:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A line of a status.
#[derive(Debug)]
struct Export {
    destination: String,
    inventory: InventoryId,
    rows: i64,
    synced: bool,
}

fn exports(inventory: &Value) -> Vec<Export> {
    let lines = inventory["status"]["sinkExports"].as_array().cloned().unwrap_or_default();
    let is_synced = |condition: &Value| condition["type"] == "Synced" && condition["status"] == "True";
    let export = |line: Value| Export {
        destination: destination_of(text(&line["place"]["destination"])).to_owned(),
        inventory: InventoryId {
            cluster: text(&line["place"]["cluster"]).to_owned(),
            namespace: Some(TEAM.into()),
            name: text(&inventory["metadata"]["name"]).to_owned(),
        },
        rows: line["rows"].as_i64().unwrap_or(0),
        synced: line["conditions"].as_array().is_some_and(|all| all.iter().any(is_synced)),
    };
    lines.into_iter().map(export).collect()
}

/// Runs a schedule on paused time.
fn run(schedule: &Schedule) -> Result<(), String> {
    run_noted(schedule).0
}

/// Runs a schedule, and returns the digest of everything that happened, too.
fn run_noted(schedule: &Schedule) -> (Result<(), String>, u64) {
    fastrand::seed(schedule.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let executor = Executor::new(schedule.seed);
    let (own, schedule) = (executor.clone(), schedule.clone());
    executor.run(&runtime.unwrap(), async move {
        clock::simulate(SystemTime::UNIX_EPOCH + START);
        let journal = Journal::new();
        let result = Simulation::new(&schedule, &own, &journal).run(&schedule).await;
        (result, journal.digest())
    })
}

/// Leaves out steps for as long as the schedule fails.
fn shrink(mut schedule: Schedule, mut why: String) -> (Schedule, String) {
    let mut runs = 0;
    let mut size = schedule.steps.len() / 2;
    while size > 0 && runs < CUTS {
        let mut at = 0;
        while at < schedule.steps.len() && runs < CUTS {
            let mut smaller = schedule.clone();
            smaller.steps.drain(at..(at + size).min(smaller.steps.len()));
            runs += 1;
            match run(&smaller) {
                Err(still) => (schedule, why) = (smaller, still),
                Ok(()) => at += size,
            }
        }
        size /= 2;
    }
    (schedule, why)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

/// The known fault whose steps schedules shall contain.
fn known_fault() -> Option<String> {
    let name = std::env::var("KNOWN_FAULT").ok().filter(|name| !name.is_empty())?;
    let known = KNOWN_FAULTS.iter().any(|(known, _)| *known == name);
    assert!(known, "no such known fault; there are {KNOWN_FAULTS:?}");
    Some(name)
}

/// Whether schedules shall show this known fault.
fn shows_known_fault(name: &str) -> bool {
    known_fault().as_deref() == Some(name)
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in 0..SEEDS_TWICE {
        let schedule = Schedule::of(seed, None);
        let [first, second] = [run_noted(&schedule), run_noted(&schedule)];
        assert_eq!(first, second, "seed {seed} is not the same run twice");
    }
}

#[test]
fn readers_see_only_what_was_true() {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let (began, count) = (Instant::now(), seeds.end - seeds.start);
    let mut happened: BTreeMap<String, u64> = BTreeMap::new();
    let mut failing = 0;
    for seed in seeds {
        let schedule = Schedule::of(seed, known_fault().as_deref());
        for (step, _) in &schedule.steps {
            *happened.entry(step.name()).or_default() += 1;
        }
        if let Err(why) = run(&schedule) {
            failing += 1;
            let known_fault = known_fault().map(|name| format!(" KNOWN_FAULT={name}")).unwrap_or_default();
            println!("\nSeed {seed} fails: {why}");
            println!("Reproduce it with: make simulate SEED={seed}{known_fault}\n{schedule}");
            let (smallest, why) = shrink(schedule, why);
            println!("The smallest schedule that fails: {why}\n{smallest}");
            if failing == FAILURES {
                break;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count as f64 / seconds;
    println!("{count} schedules in {seconds:.1} s, {rate:.1} per second");
    for (name, count) in happened {
        println!("{count:8}  {name}");
    }
    assert_eq!(failing, 0, "schedules that fail, see above");
}
