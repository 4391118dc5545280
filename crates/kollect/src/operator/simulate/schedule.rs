//! Schedules: a seed makes a list of steps, and a list of steps can be cut to find the smallest one that fails.

use std::fmt;

use fastrand::Rng;

use super::sink_servers::SinkFault;

/// Namespaces whose objects are collected.
pub(super) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
/// Kinds whose objects are collected.
pub(super) const COLLECTED: [&str; 2] = ["deployments", "widgets"];
const TARGETS: [&str; 3] = ["t1", "t2", "t3"];
pub(super) const PROFILES: [&str; 2] = ["p1", "p2"];
const INVENTORIES: [&str; 2] = ["all", "some"];
/// Sinks, each with the destinations that it may lead to. Those that begin with `rows` apply single rows.
pub(super) const SINKS: [(&str, [&str; 2]); 2] = [("s1", ["db-1", "db-2"]), ("s2", ["rows-1", "rows-2"])];

/// Something that happens, with the number of the cluster that it happens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Object(usize, &'static str, &'static str, u8, u8),
    DeleteObject(usize, &'static str, &'static str, u8),
    Namespace(usize, &'static str, bool),
    ServeWidgets(usize, bool),
    Target(usize, &'static str, &'static str, Vec<&'static str>),
    SuspendTarget(usize, &'static str, bool),
    DeleteTarget(usize, &'static str),
    ProfileKind(usize, &'static str, &'static str),
    ProfileAttributes(usize, &'static str, u8),
    Inventory(usize, &'static str, Vec<&'static str>, Vec<&'static str>),
    SuspendInventory(usize, &'static str, bool),
    DeleteInventory(usize, &'static str),
    MoveSink(usize, &'static str, &'static str),
    Permit(usize, &'static str, &'static str, bool),
    CutWatches(usize),
    ForgetHistory(usize),
    ApiErrors(usize, u8),
    ApiLatency(usize, u64),
    StaleLists(usize, u64),
    Sink(&'static str, SinkFault),
    /// Others remove a row from a destination, or change it.
    EditRows(&'static str, u8, bool),
    Crash(usize),
    Start(usize),
    /// A destination is saved, and later restored with its claims.
    BackUp(&'static str),
    Restore(&'static str),
    /// All claims of a destination are lost, and its rows stay.
    LoseClaims(&'static str),
    /// Name of the cluster in the rows of a sink; it may be that of the other cluster.
    ClusterName(usize, &'static str, &'static str),
    /// An inventory is annotated with the id of the other cluster.
    TakeOver(usize, &'static str),
}

/// Faults of the operator that are known: schedules contain the steps that show them only if they are asked for, with
/// `make simulate KNOWN_FAULT=name`. The steps of a mended one move to those of all schedules.
pub(super) const KNOWN_FAULTS: [(&str, &str); 5] = [
    (
        "moved-status",
        "a line of a status says Synced=True for a new destination before anything was written there",
    ),
    ("two-names", "a destination that gets another name is emptied and filled again"),
    ("restore", "a binding stops for good when the epoch of its claim went back"),
    ("lost-claims", "a binding stops for good when its claim is gone"),
    (
        "neighbour",
        "rows of another cluster are removed after a take-over that was meant for another destination",
    ),
];

fn step_of_known_fault(random: &mut Rng, name: &str, cluster: usize, clusters: usize) -> Option<Step> {
    let database = choose(random, &["db-1", "db-2", "rows-1", "rows-2"]);
    Some(match name {
        "moved-status" => {
            let (sink, destinations) = choose(random, &SINKS);
            Step::MoveSink(cluster, sink, choose(random, &destinations))
        }
        "two-names" => Step::MoveSink(cluster, "s1", choose(random, &["db-1", "db-1-alias"])),
        "restore" if random.bool() => Step::BackUp(database),
        "restore" => Step::Restore(database),
        "lost-claims" => Step::LoseClaims(database),
        "neighbour" if clusters > 1 && random.u8(..3) == 0 => Step::TakeOver(1, choose(random, &INVENTORIES)),
        "neighbour" if clusters > 1 => {
            let name = choose(random, &["east", "west"]);
            Step::ClusterName(1, choose(random, &["s1", "s2"]), name)
        }
        _ => return None,
    })
}

impl Step {
    /// The name of what happens, for counts.
    pub(super) fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(['(', ' ']).unwrap_or(text.len());
        text.split_at(end).0.to_owned()
    }
}

/// What happens, with the milliseconds that pass afterwards.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) clusters: usize,
    pub(super) steps: Vec<(Step, u64)>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} cluster(s)", self.seed, self.clusters)?;
        for (number, (step, pause)) in self.steps.iter().enumerate() {
            writeln!(f, "{number:3}  {step:?}, then {pause} ms")?;
        }
        Ok(())
    }
}

fn choose<T: Copy>(random: &mut Rng, among: &[T]) -> T {
    among[random.usize(..among.len())]
}

/// A part of them, in their order.
fn some_of(random: &mut Rng, among: &[&'static str]) -> Vec<&'static str> {
    among.iter().copied().filter(|_| random.bool()).collect()
}

impl Schedule {
    /// The schedule of a seed, with steps that show a known fault if one is named.
    pub(super) fn of(seed: u64, known_fault: Option<&str>) -> Self {
        let mut random = Rng::with_seed(seed);
        let clusters = 1 + usize::from(random.u8(..3) == 0);
        let steps = 5 + random.usize(..35);
        let steps = (0..steps)
            .map(|_| {
                let cluster = random.usize(..clusters);
                let special = known_fault.filter(|_| random.u8(..5) == 0);
                let special =
                    special.and_then(|name| step_of_known_fault(&mut random, name, cluster, clusters));
                let step = special.unwrap_or_else(|| step(&mut random, cluster));
                let pause = match random.u8(..10) {
                    0 => 0,
                    1..=3 => random.u64(..50),
                    4..=7 => random.u64(..3_000),
                    8 => random.u64(..40_000),
                    _ => random.u64(..150_000),
                };
                (step, pause)
            })
            .collect();
        Self { seed, clusters, steps }
    }
}

fn step(random: &mut Rng, cluster: usize) -> Step {
    match random.u8(..100) {
        0..25 => {
            let (plural, namespace) = (choose(random, &COLLECTED), choose(random, &NAMESPACES));
            Step::Object(cluster, plural, namespace, random.u8(..4), random.u8(..6))
        }
        25..37 => {
            let (plural, namespace) = (choose(random, &COLLECTED), choose(random, &NAMESPACES));
            Step::DeleteObject(cluster, plural, namespace, random.u8(..4))
        }
        37..41 => Step::Namespace(cluster, choose(random, &NAMESPACES), random.bool()),
        41..44 => Step::ServeWidgets(cluster, random.bool()),
        44..59 => step_of_specs(random, cluster),
        59..63 => {
            let namespace = if random.bool() { "" } else { choose(random, &NAMESPACES) };
            Step::Permit(cluster, choose(random, &COLLECTED), namespace, random.bool())
        }
        63..67 => Step::CutWatches(cluster),
        67..71 => Step::ForgetHistory(cluster),
        71..74 => Step::ApiErrors(cluster, choose(random, &[0, 10, 50, 100])),
        74..77 => Step::ApiLatency(cluster, choose(random, &[0, 100, 5_000])),
        77..79 => Step::StaleLists(cluster, choose(random, &[0, 3, 20])),
        79 | 80 => {
            let destination = choose(random, &["db-1", "db-2", "rows-1", "rows-2"]);
            Step::EditRows(destination, random.u8(..8), random.bool())
        }
        81..90 => {
            let destination = choose(random, &["db-1", "db-2", "rows-1", "rows-2"]);
            let fault = match random.u8(..8) {
                0 => SinkFault::FailsBefore,
                1 => SinkFault::FailsAfter,
                2 | 3 => SinkFault::Flaky,
                4 => SinkFault::Stalls(random.u64(1..60)),
                _ => SinkFault::None,
            };
            Step::Sink(destination, fault)
        }
        90..94 => Step::Crash(cluster),
        _ => Step::Start(cluster),
    }
}

fn step_of_specs(random: &mut Rng, cluster: usize) -> Step {
    match random.u8(..20) {
        0..5 => {
            let (target, profile) = (choose(random, &TARGETS), choose(random, &PROFILES));
            let mut namespaces = some_of(random, &NAMESPACES);
            if namespaces.is_empty() {
                // An empty list means all of them.
                namespaces.push(choose(random, &NAMESPACES));
            }
            Step::Target(cluster, target, profile, namespaces)
        }
        5 | 6 => Step::SuspendTarget(cluster, choose(random, &TARGETS), random.bool()),
        7 | 8 => Step::DeleteTarget(cluster, choose(random, &TARGETS)),
        // The last one is mistyped.
        9 => {
            let kinds = [COLLECTED[0], COLLECTED[1], "deploymints"];
            Step::ProfileKind(cluster, choose(random, &PROFILES), choose(random, &kinds))
        }
        10 => Step::ProfileAttributes(cluster, choose(random, &PROFILES), random.u8(1..=2)),
        11..14 => {
            let sinks = some_of(random, &["s1", "s2"]);
            let targets = if random.bool() { some_of(random, &TARGETS) } else { Vec::new() };
            Step::Inventory(cluster, choose(random, &INVENTORIES), sinks, targets)
        }
        14 | 15 => Step::SuspendInventory(cluster, choose(random, &INVENTORIES), random.bool()),
        16 => Step::DeleteInventory(cluster, choose(random, &INVENTORIES)),
        _ => {
            let (sink, destinations) = choose(random, &SINKS);
            Step::MoveSink(cluster, sink, choose(random, &destinations))
        }
    }
}
