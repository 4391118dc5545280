//! Schedules: a seed makes a list of steps, and a list of steps can be cut to find the smallest one that fails.

mod cut;
mod random_steps;

use std::fmt;

use fastrand::Rng;

pub(super) use cut::Cut;

use super::{
    network::{CountedRequests, CrashPoint},
    sink_servers::SinkFault,
};

/// Namespaces whose objects are collected.
pub(super) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
/// Kinds whose objects are collected.
pub(super) const COLLECTED_KINDS: [&str; 2] = ["deployments", "widgets"];
/// A kind that no server serves.
pub(super) const MISSPELT_KIND: &str = "deploymints";
pub(super) const TARGETS: [&str; 3] = ["t1", "t2", "t3"];
pub(super) const PROFILES: [&str; 2] = ["p1", "p2"];
pub(super) const INVENTORIES: [&str; 2] = ["all", "some"];
/// Sinks, each with the destinations that it may lead to.
pub(super) const SINKS: [(&str, [&str; 4]); 3] = [
    ("s1", ["db-1", "db-2", "db-1-alias", "db-3"]),
    ("s2", ["rows-1", "rows-2", "rows-1-alias", "rows-2-alias"]),
    ("s3", ["db-3", "db-3-alias", "db-1", "db-2-alias"]),
];
/// Those that begin with `rows` apply single rows. Each has a second name, which ends in `-alias`.
pub(super) const DESTINATIONS: [&str; 5] = ["db-1", "db-2", "db-3", "rows-1", "rows-2"];
/// Names of the clusters.
pub(super) const CLUSTERS: [&str; 2] = ["east", "west"];

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScheduleStep {
    /// In a cluster.
    In(usize, ClusterStep),
    /// To one of the operator processes of a cluster.
    Process(usize, usize, ProcessStep),
    /// To a destination.
    Sink(&'static str, SinkStep),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClusterStep {
    /// Kind, namespace, number and size of an object.
    Object(&'static str, &'static str, u8, u8),
    DeleteObject(&'static str, &'static str, u8),
    Namespace(&'static str, bool),
    LabelNamespace(&'static str, bool),
    ServeWidgets(bool),
    /// A target with its profile and the namespaces that it names.
    Target(&'static str, &'static str, WantedNamespaces),
    SuspendTarget(&'static str, bool),
    DeleteTarget(&'static str),
    ProfileKind(&'static str, &'static str),
    ProfileAttributes(&'static str, u8),
    /// An inventory with its sinks and its targets; all of them, if it names none.
    Inventory(&'static str, Vec<&'static str>, Vec<&'static str>),
    SuspendInventory(&'static str, bool),
    DeleteInventory(&'static str),
    MoveSink(&'static str, &'static str),
    Scope(ScopeForm),
    DeleteScope,
    /// Grants or revokes list and watch of a kind, in a namespace or everywhere.
    Permit(&'static str, &'static str, bool),
    CutWatches,
    ForgetHistory,
    ApiErrors(u8),
    ApiLatency(u64),
    StaleLists(u64),
    /// Name of the cluster in the rows of a sink; it may be that of the other cluster.
    ClusterName(&'static str, &'static str),
    /// An inventory is annotated with the id of the other cluster, for a sink or, as older versions had it, for none.
    TakeOver(&'static str, Option<&'static str>),
    /// How many rows of an inventory may be removed because specs have changed.
    RemovalGuard(&'static str, Option<u8>),
}

/// The namespaces that a target selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WantedNamespaces {
    All,
    Labelled,
    Named(Vec<&'static str>),
}

/// What a KollectScope contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScopeForm {
    Denies(Vec<&'static str>),
    Allows(Vec<&'static str>),
    /// No operator can read it.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessStep {
    Crash,
    /// It crashes with its nth request of a kind from now on.
    CrashAt(CountedRequests, u8, CrashPoint),
    Start,
    /// It stops in order, and gives the lease up.
    Stop,
    /// None of its tasks runs for so many seconds.
    Pause(u64),
    /// It is cut off from its API server, or no longer.
    CutOffApi(bool),
    /// It is cut off from a destination, or no longer.
    CutOff(&'static str, bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SinkStep {
    Fault(SinkFault),
    /// Another writer removes the nth row, or changes it.
    EditRow(u8, bool),
    /// Rows of objects of this size or larger are refused.
    Limit(Option<u8>),
    /// The destination is saved, and later restored with its claims.
    BackUp,
    Restore,
    /// All claims are lost, and the rows stay.
    LoseClaims,
}

impl ScheduleStep {
    /// The name of the step, for counts.
    pub(super) fn name(&self) -> String {
        let text = match self {
            Self::In(_, step) => format!("{step:?}"),
            Self::Process(_, _, step) => format!("{step:?}"),
            Self::Sink(_, step) => format!("Sink{step:?}"),
        };
        let end = text.find(['(', ' ']).unwrap_or(text.len());
        text.split_at(end).0.to_owned()
    }

    /// The number of the cluster that it happens to.
    pub(super) fn cluster(&self) -> Option<usize> {
        match self {
            Self::In(cluster, _) | Self::Process(cluster, _, _) => Some(*cluster),
            Self::Sink(..) => None,
        }
    }
}

/// Steps, each with the milliseconds that pass after it.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    /// For each cluster the number of its operator processes.
    pub(super) clusters: Vec<usize>,
    pub(super) steps: Vec<(ScheduleStep, u64)>,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, operator processes of each cluster: {:?}", self.seed, self.clusters)?;
        for (number, (step, pause)) in self.steps.iter().enumerate() {
            writeln!(f, "{number:3}  {step:?}, then {pause} ms")?;
        }
        Ok(())
    }
}

impl Schedule {
    /// The schedule of a seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let count = 1 + usize::from(random.u8(..3) == 0);
        let processes = |random: &mut Rng| match random.u8(..10) {
            0..6 => 1,
            6..9 => 2,
            _ => 3,
        };
        let clusters: Vec<usize> = (0..count).map(|_| processes(&mut random)).collect();
        let steps = (0..5 + random.usize(..30))
            .map(|_| {
                let step = random_steps::step(&mut random, &clusters);
                let pause = match random.u8(..20) {
                    0 | 1 => 0,
                    2..8 => random.u64(..50),
                    8..17 => random.u64(..3_000),
                    17 | 18 => random.u64(..40_000),
                    _ => random.u64(..150_000),
                };
                (step, pause)
            })
            .collect();
        Self { seed, clusters, steps }
    }
}

fn choose<T: Copy>(random: &mut Rng, values: &[T]) -> T {
    values[random.usize(..values.len())]
}

/// A random subset, in the same order.
fn subset(random: &mut Rng, values: &[&'static str]) -> Vec<&'static str> {
    values.iter().copied().filter(|_| random.bool()).collect()
}
