//! Faults of the operator that are known.
//!
//! Schedules contain the steps that show them, and readers make the checks that find them, only if they are asked for with
//! `make simulate KNOWN_FAULT=name`. The steps of a mended fault move to those of all schedules.

use fastrand::Rng;

use super::{
    CLUSTERS, COLLECTED, ClusterStep, Counted, CrashPoint, DESTINATIONS, INVENTORIES, PROFILES, ProcessStep,
    SINKS, SinkStep, Step, choose,
};

/// Names and descriptions.
pub(in super::super) const KNOWN_FAULTS: [(&str, &str); 10] = [
    (
        "moved-status",
        "a line of a status says Synced=True for a new destination before anything was written there",
    ),
    ("kind-change", "when a profile gets another kind, its old rows leave before the new ones are there"),
    ("wrong-kind", "rows are removed when a profile names a kind that is not served"),
    (
        "two-refs",
        "two sinks of one inventory that lead to one destination: statuses are written again and again, or stay wrong",
    ),
    ("two-names", "a destination that gets another name is emptied and filled again"),
    ("late-claim", "a binding stops for good when a claim of an earlier process arrives late"),
    (
        "stale-leader",
        "a process that was paused or cut off takes the lease, and writes the older state that it saw",
    ),
    ("restore", "a binding stops for good when the epoch of its claim went back"),
    ("lost-claims", "a binding stops for good when its claim is gone"),
    (
        "neighbour",
        "rows of another cluster are removed after a take-over that was meant for another destination",
    ),
];

/// A step that may show a fault.
pub(super) fn step(random: &mut Rng, name: &str, clusters: usize) -> Option<Step> {
    let (cluster, destination) = (random.usize(..clusters), choose(random, &DESTINATIONS));
    let in_cluster = |step| Some(Step::In(cluster, step));
    let to_sink = |step| Some(Step::Sink(destination, step));
    match name {
        "moved-status" => {
            let (sink, destinations) = choose(random, &SINKS);
            in_cluster(ClusterStep::MoveSink(sink, choose(random, &destinations)))
        }
        "kind-change" => {
            in_cluster(ClusterStep::ProfileKind(choose(random, &PROFILES), choose(random, &COLLECTED)))
        }
        "wrong-kind" => {
            let kind = choose(random, &["deploymints", COLLECTED[0]]);
            in_cluster(ClusterStep::ProfileKind(choose(random, &PROFILES), kind))
        }
        "two-refs" if random.bool() => {
            let names = SINKS.map(|(name, _)| name).to_vec();
            in_cluster(ClusterStep::Inventory(choose(random, &INVENTORIES), names, Vec::new()))
        }
        "two-refs" => in_cluster(ClusterStep::MoveSink("s3", choose(random, &["db-1", "db-2", "db-3"]))),
        "two-names" => in_cluster(ClusterStep::MoveSink("s1", choose(random, &["db-1", "db-1-alias"]))),
        "late-claim" => {
            let step = ProcessStep::CrashAt(Counted::SinkWrites, random.u8(1..4), CrashPoint::OnTheWay);
            Some(Step::Process(cluster, random.usize(..3), step))
        }
        "stale-leader" => {
            let (process, steps) = (random.usize(..3), [ProcessStep::Pause(60), ProcessStep::Stop]);
            Some(Step::Process(cluster, process, choose(random, &steps)))
        }
        "restore" if random.bool() => to_sink(SinkStep::BackUp),
        "restore" => to_sink(SinkStep::Restore),
        "lost-claims" => to_sink(SinkStep::LoseClaims),
        "neighbour" if clusters > 1 && random.u8(..3) == 0 => {
            let sink = choose(random, &SINKS).0;
            Some(Step::In(1, ClusterStep::TakeOver(choose(random, &INVENTORIES), sink)))
        }
        "neighbour" if clusters > 1 => {
            let sink = choose(random, &SINKS).0;
            Some(Step::In(1, ClusterStep::ClusterName(sink, choose(random, &CLUSTERS))))
        }
        _ => None,
    }
}
