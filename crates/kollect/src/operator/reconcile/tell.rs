//! What a turn says: the statuses of all objects as they should be.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kollect_engine::clock;
use kollect_model::{
    crd::{
        inventory::{ClusterInventoryStatus, InventoryStatus, SinkExport},
        sinks::SinkStatus,
    },
    row::TargetId,
};
use tokio::time::Instant;

use super::{Operator, preview::preview};
use crate::{
    operator::{
        conditions::Conditions,
        objects::{Known, SinkObject},
        probe::Probed,
        shards::Shards,
        status::{self, View},
        write::Desired,
    },
    reason::Reason,
    world::{Fault, Resolved},
};

impl Operator {
    /// Writes what has changed about the objects. Answers when to look again.
    pub(super) async fn tell(&mut self, known: &Known, resolved: &Resolved) -> Option<Instant> {
        let view = View {
            rows: &self.rows,
            coverage: self.collector.coverage().read(),
            namespaces: self.collector.namespaces().borrow().clone(),
            board: &self.board,
            bindings: &self.bindings,
            kept: self.board.kept_rows(),
            rules: &self.rules,
            scope: self.bindings.scope(),
            now: Timestamp::from_second(clock::timestamp().as_second()).unwrap_or_default(),
        };
        let mut desired = Vec::new();
        profiles(known, resolved, view.now, &mut desired);
        targets(known, resolved, &view, &mut desired);
        inventories(known, resolved, &view, &mut self.shards, &mut desired);
        self.sinks(known, resolved, view.now, &mut desired);
        let tests = self.connection_tests(known, resolved, view.now, &mut desired);
        let written = self.writer.write(desired).await;
        self.acknowledge_tests(known).await;
        self.own_tests(known).await;
        self.delete_expired(tests.expired).await;
        [written, tests.due].into_iter().flatten().min()
    }

    fn sinks(&self, known: &Known, resolved: &Resolved, now: Timestamp, desired: &mut Vec<Desired>) {
        for (key, sink) in known.sinks() {
            let faults = resolved.sinks.get(&key).and_then(|plan| plan.as_ref().as_ref().err());
            let (family, name) = key;
            let verdict = self.probes.verdict(&Probed::Sink(family, name.clone()));
            let after = sink_status(sink, faults.map(Vec::as_slice), verdict, now);
            desired.extend(Desired::new(family.kind(), &name, &sink.metadata, &sink.status, &after));
        }
    }
}

fn profiles(known: &Known, resolved: &Resolved, now: Timestamp, desired: &mut Vec<Desired>) {
    let mut users: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for ((namespace, _), target) in known.targets() {
        *users.entry((namespace, &target.spec.profile_ref)).or_default() += 1;
    }
    for target in known.cluster_targets().values() {
        let reference = &target.spec.profile_ref;
        *users.entry((&reference.namespace, &reference.name)).or_default() += 1;
    }
    for (name, profile) in known.profiles() {
        let Some(compiled) = resolved.profiles.get(name) else { continue };
        let users = users.get(&(name.0.as_str(), name.1.as_str())).copied().unwrap_or(0);
        let before = profile.status.clone().unwrap_or_default();
        let errors = compiled.as_ref().err().map(Vec::as_slice);
        let after = status::profile(&profile.metadata, &before.conditions, errors, users, now);
        desired.extend(Desired::new("KollectProfile", name, &profile.metadata, &before, &after));
    }
}

fn targets(known: &Known, resolved: &Resolved, view: &View<'_>, desired: &mut Vec<Desired>) {
    let own = known.targets().iter().map(|(name, target)| {
        ("KollectTarget", name, &target.metadata, &target.status, target.spec.filter.resource_rules.len())
    });
    let of_cluster = known.cluster_targets().iter().map(|(name, target)| {
        let rules = target.spec.filter.resource_rules.len();
        ("KollectClusterTarget", name, &target.metadata, &target.status, rules)
    });
    for (kind, name, metadata, before, rules) in own.chain(of_cluster) {
        let namespace = Some(name.0.as_str()).filter(|namespace| !namespace.is_empty());
        let id = TargetId { namespace: namespace.map(Into::into), name: name.1.as_str().into() };
        let Some(outcome) = resolved.targets.get(&id) else { continue };
        let before = before.clone().unwrap_or_default();
        let after = view.target(metadata, &before, &id, outcome, rules);
        desired.extend(Desired::new(kind, name, metadata, &before, &after));
    }
}

fn inventories(
    known: &Known,
    resolved: &Resolved,
    view: &View<'_>,
    shards: &mut Shards,
    desired: &mut Vec<Desired>,
) {
    shards.retain(|name| resolved.inventories.contains_key(name));
    for (name, outcome) in &resolved.inventories {
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        if let Some(inventory) = name.namespace.as_ref().and_then(|_| known.inventories().get(&key)) {
            let before = inventory.status.clone().unwrap_or_default();
            let after = view.inventory(&inventory.metadata, &view.rules.shown_status(&before), name, outcome);
            let told = Desired::new("KollectInventory", &key, &inventory.metadata, &before, &after);
            desired.extend(hurry_if_moved(told, &before, &after));
        } else if let Some(inventory) = known.cluster_inventories().get(&key) {
            let before = inventory.status.clone().unwrap_or_default();
            let shown = view.rules.shown_status(&before.inventory);
            let own = view.inventory(&inventory.metadata, &shown, name, outcome);
            let choice = outcome.rows.among(view.namespaces.as_deref());
            let namespace_shards =
                choice.map(|choice| shards.of(name, view.rows, &outcome.targets, choice)).unwrap_or_default();
            let rows = namespace_shards.iter().filter_map(|shard| shard.item_count).sum();
            let after = ClusterInventoryStatus {
                inventory: InventoryStatus { item_count: Some(rows), ..own },
                target_count: outcome.targets.len().try_into().ok(),
                namespace_shard_count: namespace_shards.len().try_into().ok(),
                namespace_shards,
            };
            let kind = "KollectClusterInventory";
            let told = Desired::new(kind, &key, &inventory.metadata, &before, &after);
            desired.extend(hurry_if_moved(told, &before.inventory, &after.inventory));
        }
    }
}

/// No claim is asked for before the status says where, and no take-over is forgotten.
fn hurry_if_moved(
    told: Option<Desired>,
    before: &InventoryStatus,
    after: &InventoryStatus,
) -> Option<Desired> {
    let places = |export: &SinkExport| {
        (export.name.clone(), export.place.clone(), export.claiming.clone(), export.left.clone())
    };
    let same = before.sink_exports.iter().map(places).eq(after.sink_exports.iter().map(places))
        && before.take_overs == after.take_overs;
    if same { told } else { told.map(Desired::hurry) }
}

fn sink_status(
    sink: &SinkObject,
    faults: Option<&[Fault]>,
    verdict: Option<Result<Duration, String>>,
    now: Timestamp,
) -> SinkStatus {
    let preview = preview(sink, now);
    let SinkStatus { observed_generation, conditions, .. } = &sink.status;
    let unheard = faults.is_none() && verdict.is_none();
    let tested = sink.spec.common().connection_test != Some(false);
    if unheard && tested && status::stands(&sink.metadata, *observed_generation, conditions) {
        return SinkStatus { preview, ..sink.status.clone() };
    }
    let mut conditions = Conditions::after(&sink.status.conditions, sink.metadata.generation, now);
    if sink.spec.common().tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify) {
        conditions.set("TLSInsecure", true, Reason::InsecureSkipVerify, "any server is trusted");
    }
    match (faults, verdict) {
        (Some(faults), _) => {
            let reason = faults.first().map_or(Reason::InvalidSpec, |fault| fault.reason);
            let message = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            conditions.set("ConnectionVerified", false, reason, message.clone());
            conditions.degraded(reason, message, true);
        }
        (None, Some(Ok(_))) => {
            conditions.set("ConnectionVerified", true, Reason::ConnectionOK, "the sink answers");
            conditions.ready(Reason::ConnectionOK, "the sink answers");
        }
        (None, Some(Err(message))) => {
            conditions.set("ConnectionVerified", false, Reason::ConnectionTestFailed, message.clone());
            conditions.degraded(Reason::ConnectionTestFailed, message, false);
        }
        (None, None) if sink.spec.common().connection_test == Some(false) => {
            conditions.ready(Reason::NotTested, "connectionTest is false");
        }
        (None, None) => conditions.progressing(Reason::Probing, "the first probe has not ended yet"),
    }
    SinkStatus { conditions: conditions.done(), observed_generation: sink.metadata.generation, preview }
}
