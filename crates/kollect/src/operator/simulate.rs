//! A simulator of the complete operator: one seed is one schedule of changes, faults and crashes on paused time.
//!
//! ```text
//! schedule ──▶ API servers in memory ──▶ operator processes as they are ──▶ destinations in memory ◀── a reader
//!                        └──────────────▶ expected rows: what each row was at each time ◀──────────────────┘
//! ```
//!
//! After each change of a destination a reader checks it: a row that exists is never missing, no row goes back in time
//! and none is there that never was. When the faults are over every destination holds the rows that the objects
//! yield, and nothing is written any more.
//!
//! `cargo test` runs some seeds, `make simulate SEEDS=N` N of them, `make simulate SEED=N` one.
//! `scripts/check-simulator` plants the faults of `simulate/faults` and expects that they are found.
//!
//! | | |
//! |---|---|
//! | `schedule`, `shrink` | what happens, and how a failing schedule is made smaller |
//! | `simulation`, `report` | runs one schedule, or those of many seeds on all cores |
//! | `cluster`, `process`, `executor` | clusters, their operator processes, and the tasks of these |
//! | `network`, `api_server`, `sink_servers` | requests, and the servers that apply them |
//! | `reader`, `statuses`, `specs`, `expected_rows` | what may be seen, and what should be there in the end |
//! | `journal`, `signal` | a record of what happened, and how tasks are woken in the same order every time |

mod api_server;
mod cluster;
mod executor;
mod expected_rows;
mod journal;
mod network;
mod process;
mod reader;
mod report;
mod schedule;
mod shrink;
mod signal;
mod simulation;
mod sink_servers;
mod specs;
mod statuses;

use std::time::{Duration, SystemTime};

use kollect_engine::clock;

use executor::Executor;
use journal::{Journal, Outcomes};
use network::{CountedRequests, CrashPoint};
use report::{OnFailure, run_seeds};
use schedule::{ClusterStep, MISSPELT_KIND, ProcessStep, Schedule, ScheduleStep};
use simulation::Simulation;

/// Seeds that `cargo test` runs; `make test` runs more.
const SEEDS: u64 = 200;
/// Seeds that it runs twice, and with steps of its own.
const SEEDS_RUN_TWICE: u64 = 20;
/// The time of the clock of every simulated machine at the start: 2026-01-01 00:00:00 UTC.
const CLOCK_START: Duration = Duration::from_hours(490_896);

/// How the run of a schedule ended.
#[derive(Debug, PartialEq, Eq)]
struct ScheduleRun {
    result: Result<(), String>,
    /// The digest of everything that happened.
    digest: u64,
    outcomes: Outcomes,
}

/// Runs a schedule on paused time.
fn run(schedule: &Schedule) -> ScheduleRun {
    fastrand::seed(schedule.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let executor = Executor::new(schedule.seed);
    let (tasks, schedule) = (executor.clone(), schedule.clone());
    executor.run(&runtime.unwrap(), async move {
        clock::simulate(SystemTime::UNIX_EPOCH + CLOCK_START);
        let journal = Journal::new();
        let began = tokio::time::Instant::now();
        let result = Simulation::new(&schedule, &tasks, &journal).run(&schedule).await;
        journal.count("seconds of virtual time", began.elapsed().as_secs());
        ScheduleRun { result, digest: journal.digest(), outcomes: journal.outcomes() }
    })
}

fn environment_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn environment_number(name: &str) -> Option<u64> {
    environment_variable(name).map(|text| text.parse().unwrap())
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..SEEDS_RUN_TWICE {
        let schedule = Schedule::of(seed);
        assert_eq!(run(&schedule), run(&schedule), "seed {seed} is not the same run twice");
    }
}

/// Runs steps in a cluster with one process, in the order of several seeds.
fn run_steps(steps: &[(ScheduleStep, u64)]) {
    for seed in 0..SEEDS_RUN_TWICE {
        let schedule = Schedule { seed, clusters: vec![1], steps: steps.to_vec() };
        assert_eq!(run(&schedule).result, Ok(()), "seed {seed}");
    }
}

#[test]
fn a_process_that_starts_while_the_api_server_fails_works_when_it_answers() {
    run_steps(&[
        (ScheduleStep::Process(0, 0, ProcessStep::Crash), 0),
        (ScheduleStep::In(0, ClusterStep::ApiErrors(100)), 0),
        (ScheduleStep::Process(0, 0, ProcessStep::Start), 60_000),
    ]);
}

#[test]
fn a_deleted_inventory_with_two_sinks_of_one_destination_is_cleaned() {
    let crash = ProcessStep::CrashAt(CountedRequests::SinkWrites, 1, CrashPoint::Applied);
    run_steps(&[
        (ScheduleStep::In(0, ClusterStep::Inventory("some", vec!["s1", "s3"], Vec::new())), 1),
        (ScheduleStep::In(0, ClusterStep::MoveSink("s1", "db-3")), 0),
        (ScheduleStep::Process(0, 0, crash), 58),
        (ScheduleStep::In(0, ClusterStep::DeleteInventory("some")), 0),
    ]);
}

#[test]
fn rows_that_wait_for_another_kind_stay_when_their_sink_moves() {
    run_steps(&[
        (ScheduleStep::In(0, ClusterStep::Object("deployments", "a", 1, 1)), 60_000),
        (ScheduleStep::In(0, ClusterStep::ProfileKind("p1", MISSPELT_KIND)), 60_000),
        (ScheduleStep::Process(0, 0, ProcessStep::Crash), 0),
        (ScheduleStep::In(0, ClusterStep::MoveSink("s1", "db-2")), 0),
        (ScheduleStep::Process(0, 0, ProcessStep::Start), 600_000),
    ]);
}

#[test]
fn readers_see_only_rows_that_were_true_at_some_time() {
    let from = environment_number("FROM").unwrap_or(0);
    let seeds = match environment_number("SEED") {
        Some(seed) => seed..seed + 1,
        None => from..from + environment_number("SEEDS").unwrap_or(SEEDS),
    };
    let cut = environment_variable("CUT").map(|text| text.parse().unwrap());
    let make_schedule = |seed| {
        let schedule = Schedule::of(seed);
        cut.as_ref().map_or(schedule.clone(), |cut| schedule.cut(cut))
    };
    let stop_at_first = cut.is_some() || environment_variable("FIRST").is_some();
    run_seeds(seeds, make_schedule, if stop_at_first { OnFailure::Stop } else { OnFailure::Shrink });
}
