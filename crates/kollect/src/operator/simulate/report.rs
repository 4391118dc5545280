//! Runs the schedules of many seeds on all cores, and prints what happened and what it led to.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    ScheduleRun,
    journal::Outcomes,
    run,
    schedule::Schedule,
    shrink::{SmallestSchedule, shrink},
};

/// How often a long run prints how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// A schedule that takes longer in real time does not end: a task runs without virtual time passing.
const MAX_REAL_TIME: Duration = Duration::from_mins(2);
/// After so many failing seeds no more are run.
const MAX_FAILURES: usize = 5;

/// What is done when seeds fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// More seeds are run, and the failing schedule with the fewest steps is printed.
    Shrink,
    /// The first one ends the run.
    Stop,
}

#[derive(Default)]
struct RunTotals {
    schedules: u64,
    steps: BTreeMap<String, u64>,
    outcomes: Outcomes,
    /// Failing seeds, with the reason.
    failures: Vec<(u64, String)>,
}

impl RunTotals {
    fn add(&mut self, schedule: &Schedule, run: ScheduleRun) {
        self.schedules += 1;
        for (step, _) in &schedule.steps {
            *self.steps.entry(step.name()).or_default() += 1;
        }
        for (outcome, count) in run.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        if let Err(why) = run.result {
            println!("Seed {} fails: {why}", schedule.seed);
            self.failures.push((schedule.seed, why));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn rate(&self, began: Instant) -> String {
        let seconds = began.elapsed().as_secs_f64();
        let (count, rate) = (self.schedules, self.schedules as f64 / seconds);
        format!("{count} schedules in {seconds:.1} s, {rate:.1} per second")
    }

    fn print(&self) {
        println!("\nSteps");
        self.steps.iter().for_each(|(name, count)| println!("{count:10}  {name}"));
        println!("\nOutcomes");
        self.outcomes.iter().for_each(|(name, count)| println!("{count:10}  {name}"));
    }
}

/// Runs seeds. Panics if one of them fails.
pub(super) fn run_seeds(
    seeds: Range<u64>,
    make_schedule: impl Fn(u64) -> Schedule + Sync,
    on_failure: OnFailure,
) {
    let max_failures = if on_failure == OnFailure::Stop { 1 } else { MAX_FAILURES };
    let (began, next, totals) =
        (Instant::now(), AtomicU64::new(seeds.start), Mutex::new(RunTotals::default()));
    let running: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || totals.lock().unwrap().failures.len() >= max_failures {
                return;
            }
            let schedule = make_schedule(seed);
            running.lock().unwrap().insert(seed, Instant::now());
            let run = run(&schedule);
            running.lock().unwrap().remove(&seed);
            totals.lock().unwrap().add(&schedule, run);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|spawner| {
        let workers: Vec<_> = (0..threads).map(|_| spawner.spawn(work)).collect();
        let mut last_progress = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(50));
            if let Some(seed) =
                running.lock().unwrap().iter().find(|(_, since)| since.elapsed() > MAX_REAL_TIME)
            {
                println!("Seed {} fails: it does not end", seed.0);
                std::process::exit(1);
            }
            if last_progress.elapsed() >= PROGRESS_INTERVAL {
                last_progress = Instant::now();
                println!("{}", totals.lock().unwrap().rate(began));
            }
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{}, {threads} threads", totals.rate(began));
    totals.print();
    let failing = totals.failures.len();
    if on_failure == OnFailure::Shrink {
        let smallest =
            totals.failures.into_iter().map(|(seed, why)| (seed, shrink(&make_schedule(seed), why)));
        if let Some((seed, smallest)) = smallest.min_by_key(|(_, smallest)| smallest.cut.steps.len()) {
            print_smallest(&make_schedule(seed), &smallest);
        }
    }
    assert_eq!(failing, 0, "schedules that fail, see above");
}

fn print_smallest(schedule: &Schedule, SmallestSchedule { cut, why }: &SmallestSchedule) {
    let seed = schedule.seed;
    println!("\nThe smallest schedule that fails: {why}\n{}", schedule.cut(cut));
    println!("Reproduce it with: make simulate SEED={seed} CUT={cut}");
    println!("The complete schedule: make simulate SEED={seed}");
}
