//! Steps of all schedules, and how likely they are.

use fastrand::Rng;

use super::{
    CLUSTERS, COLLECTED_KINDS, ClusterStep, CountedRequests, CrashPoint, DESTINATIONS, INVENTORIES,
    MISSPELT_KIND, NAMESPACES, PROFILES, ProcessStep, SINKS, ScheduleStep, ScopeForm, SinkFault, SinkStep,
    TARGETS, WantedNamespaces, choose, subset,
};

/// A step. `clusters` are the numbers of their processes.
pub(super) fn step(random: &mut Rng, clusters: &[usize]) -> ScheduleStep {
    let cluster = random.usize(..clusters.len());
    match random.u8(..100) {
        0..35 => ScheduleStep::In(cluster, object_step(random)),
        35..39 if clusters.len() > 1 => neighbour_step(random, cluster),
        35..54 => ScheduleStep::In(cluster, spec_step(random)),
        54..72 => ScheduleStep::In(cluster, api_step(random)),
        72..83 => {
            let destination = choose(random, &DESTINATIONS);
            ScheduleStep::Sink(destination, sink_step(random))
        }
        _ => {
            let process = random.usize(..clusters[cluster]);
            ScheduleStep::Process(cluster, process, process_step(random))
        }
    }
}

fn object_step(random: &mut Rng) -> ClusterStep {
    let (plural, namespace) = (choose(random, &COLLECTED_KINDS), choose(random, &NAMESPACES));
    match random.u8(..35) {
        0..22 => ClusterStep::Object(plural, namespace, random.u8(..4), random.u8(..6)),
        22..32 => ClusterStep::DeleteObject(plural, namespace, random.u8(..4)),
        _ => ClusterStep::ServeWidgets(random.bool()),
    }
}

fn spec_step(random: &mut Rng) -> ClusterStep {
    match random.u8(..27) {
        0..5 => {
            let (target, profile) = (choose(random, &TARGETS), choose(random, &PROFILES));
            let namespaces = match random.u8(..6) {
                0 => WantedNamespaces::All,
                1 => WantedNamespaces::Labelled,
                _ => {
                    let mut names = subset(random, &NAMESPACES);
                    if names.is_empty() {
                        // An empty list means all of them.
                        names.push(choose(random, &NAMESPACES));
                    }
                    WantedNamespaces::Named(names)
                }
            };
            ClusterStep::Target(target, profile, namespaces)
        }
        5 | 6 => ClusterStep::SuspendTarget(choose(random, &TARGETS), random.bool()),
        7 | 8 => ClusterStep::DeleteTarget(choose(random, &TARGETS)),
        9 | 10 => {
            let kinds = [
                COLLECTED_KINDS[0],
                COLLECTED_KINDS[1],
                COLLECTED_KINDS[0],
                COLLECTED_KINDS[1],
                MISSPELT_KIND,
            ];
            ClusterStep::ProfileKind(choose(random, &PROFILES), choose(random, &kinds))
        }
        11 => ClusterStep::ProfileAttributes(choose(random, &PROFILES), random.u8(1..=2)),
        12..16 => {
            let sinks = subset(random, &SINKS.map(|(name, _)| name));
            let targets = if random.bool() { subset(random, &TARGETS) } else { Vec::new() };
            ClusterStep::Inventory(choose(random, &INVENTORIES), sinks, targets)
        }
        16 | 17 => ClusterStep::SuspendInventory(choose(random, &INVENTORIES), random.bool()),
        18 => ClusterStep::DeleteInventory(choose(random, &INVENTORIES)),
        19..23 => {
            let (sink, destinations) = choose(random, &SINKS);
            ClusterStep::MoveSink(sink, choose(random, &destinations))
        }
        23 => match random.u8(..4) {
            0 => ClusterStep::Scope(ScopeForm::Unreadable),
            1 => ClusterStep::Scope(ScopeForm::Allows(subset(random, &NAMESPACES))),
            _ => ClusterStep::Scope(ScopeForm::Denies(subset(random, &NAMESPACES))),
        },
        24 => ClusterStep::DeleteScope,
        25 => {
            let rows = choose(random, &[None, Some(0), Some(1), Some(3)]);
            ClusterStep::RemovalGuard(choose(random, &INVENTORIES), rows)
        }
        _ => ClusterStep::LabelNamespace(choose(random, &NAMESPACES), random.bool()),
    }
}

/// What two clusters that share destinations may do to each other. Only the second one uses the name of the first: if
/// each used that of the other, each would wait for the other to leave.
fn neighbour_step(random: &mut Rng, cluster: usize) -> ScheduleStep {
    let (sink, inventory) = (choose(random, &SINKS).0, choose(random, &INVENTORIES));
    match random.u8(..8) {
        0..5 => ScheduleStep::In(1, ClusterStep::ClusterName(sink, choose(random, &CLUSTERS))),
        5 => ScheduleStep::In(cluster, ClusterStep::TakeOver(inventory, None)),
        _ => ScheduleStep::In(cluster, ClusterStep::TakeOver(inventory, Some(sink))),
    }
}

fn api_step(random: &mut Rng) -> ClusterStep {
    match random.u8(..24) {
        0..4 => ClusterStep::Namespace(choose(random, &NAMESPACES), random.bool()),
        4..8 => {
            let namespace = if random.bool() { "" } else { choose(random, &NAMESPACES) };
            ClusterStep::Permit(choose(random, &COLLECTED_KINDS), namespace, random.bool())
        }
        8..12 => ClusterStep::CutWatches,
        12..16 => ClusterStep::ForgetHistory,
        16..19 => ClusterStep::ApiErrors(choose(random, &[0, 10, 50, 100])),
        19..22 => ClusterStep::ApiLatency(choose(random, &[0, 100, 5_000])),
        _ => ClusterStep::StaleLists(choose(random, &[0, 3, 20])),
    }
}

fn sink_step(random: &mut Rng) -> SinkStep {
    match random.u8(..18) {
        13 | 14 => SinkStep::BackUp,
        15 | 16 => SinkStep::Restore,
        17 => SinkStep::LoseClaims,
        0 | 1 => SinkStep::EditRow(random.u8(..8), random.bool()),
        2 => SinkStep::Limit(choose(random, &[None, Some(5), Some(4)])),
        3 | 4 => SinkStep::Fault(SinkFault::FailsBefore),
        5 => SinkStep::Fault(SinkFault::FailsAfter),
        6 | 7 => SinkStep::Fault(SinkFault::Flaky),
        8 | 9 => SinkStep::Fault(SinkFault::Stalls(random.u64(1..60))),
        _ => SinkStep::Fault(SinkFault::None),
    }
}

fn process_step(random: &mut Rng) -> ProcessStep {
    match random.u8(..20) {
        0..3 => ProcessStep::Crash,
        3..5 => {
            let counted = choose(
                random,
                &[CountedRequests::ApiWrites, CountedRequests::SinkWrites, CountedRequests::SinkWrites],
            );
            let points = [CrashPoint::BeforeSent, CrashPoint::OnTheWay, CrashPoint::Applied];
            ProcessStep::CrashAt(counted, random.u8(1..5), choose(random, &points))
        }
        5..7 => ProcessStep::Stop,
        7..10 => ProcessStep::Pause(choose(random, &[2, 12, 20, 60, 200])),
        10 | 11 => ProcessStep::CutOffApi(true),
        12 => ProcessStep::CutOffApi(false),
        13 | 14 => ProcessStep::CutOff(choose(random, &DESTINATIONS), true),
        15 => ProcessStep::CutOff(choose(random, &DESTINATIONS), false),
        _ => ProcessStep::Start,
    }
}
