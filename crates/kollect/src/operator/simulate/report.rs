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
    Run,
    journal::Outcomes,
    run,
    schedule::Schedule,
    shrink::{Smallest, shrink},
};

/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// A schedule that takes longer in real time does not end: a task runs without virtual time passing.
const ENDLESS: Duration = Duration::from_mins(2);
/// After so many failing seeds no more are run.
const MOST_FAILURES: usize = 5;

/// What becomes of seeds that fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Failures {
    /// Some are looked for, and the one that needs the fewest steps is printed.
    Shrink,
    /// The first one ends the run.
    Stop,
}

#[derive(Default)]
struct Totals {
    schedules: u64,
    steps: BTreeMap<String, u64>,
    outcomes: Outcomes,
    /// Failing seeds, with the reason.
    failures: Vec<(u64, String)>,
}

impl Totals {
    fn add(&mut self, schedule: &Schedule, run: Run) {
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
        println!("\nWhat they led to");
        self.outcomes.iter().for_each(|(name, count)| println!("{count:10}  {name}"));
    }
}

/// Runs seeds. Panics if one of them fails.
pub(super) fn run_seeds(seeds: Range<u64>, make: impl Fn(u64) -> Schedule + Sync, failures: Failures) {
    let most = if failures == Failures::Stop { 1 } else { MOST_FAILURES };
    let (began, next, totals) = (Instant::now(), AtomicU64::new(seeds.start), Mutex::new(Totals::default()));
    let running: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || totals.lock().unwrap().failures.len() >= most {
                return;
            }
            let schedule = make(seed);
            running.lock().unwrap().insert(seed, Instant::now());
            let run = run(&schedule);
            running.lock().unwrap().remove(&seed);
            totals.lock().unwrap().add(&schedule, run);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(50));
            if let Some(seed) = running.lock().unwrap().iter().find(|(_, since)| since.elapsed() > ENDLESS) {
                println!("Seed {} fails: it does not end", seed.0);
                std::process::exit(1);
            }
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                println!("{}", totals.lock().unwrap().rate(began));
            }
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{}, {threads} threads", totals.rate(began));
    totals.print();
    let failing = totals.failures.len();
    if failures == Failures::Shrink {
        let smallest = totals.failures.into_iter().map(|(seed, why)| (seed, shrink(&make(seed), why)));
        if let Some((seed, smallest)) = smallest.min_by_key(|(_, smallest)| smallest.cut.steps.len()) {
            tell(&make(seed), &smallest);
        }
    }
    assert_eq!(failing, 0, "schedules that fail, see above");
}

fn tell(schedule: &Schedule, Smallest { cut, why }: &Smallest) {
    let seed = schedule.seed;
    println!("\nThe smallest schedule that fails: {why}\n{}", schedule.cut(cut));
    println!("Reproduce it with: make simulate SEED={seed} CUT={cut}");
    println!("The whole schedule: make simulate SEED={seed}");
}
