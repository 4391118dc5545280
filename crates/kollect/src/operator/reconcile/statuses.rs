//! Computes and writes the statuses of the objects that a turn checks.

use std::{cell::Cell, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kollect_engine::clock;
use kollect_model::crd::{
    inventory::{ClusterInventoryStatus, InventoryStatus, SinkExport},
    shapes::{Condition, ConditionStatus},
    sinks::SinkStatus,
    target::TargetStatus,
};

use super::{
    Look, ObjectCache, ObjectKey, Operator, Resolution,
    look::{inventory_name, target_id},
    preview::preview,
};
use crate::{
    operator::{
        conditions::{Conditions, SEE_READY},
        objects::{SinkObject, request},
        probe::Probed,
        status::{self, View},
        status_writer::Desired,
    },
    reason::Reason,
    resolve::{Family, Fault},
};

impl Operator {
    /// Writes the changed statuses of the objects that are checked.
    pub(super) async fn tell(&mut self, known: &ObjectCache, resolution: &Resolution, look: Look) {
        let view = View {
            known,
            resolved: &resolution.resolved,
            links: &resolution.links,
            rows: &self.rows,
            coverage: self.collector.coverage(),
            namespaces: self.collector.namespaces().borrow().clone(),
            binding_states: &self.binding_states,
            bindings: &self.bindings,
            operator_policy: &self.policy,
            scope: self.bindings.scope(),
            led_since: self.led_since,
            now: Timestamp::from_second(clock::timestamp().as_second()).unwrap_or_default(),
            due: Cell::new(None),
        };
        let (everything, tests) = (look.everything, look.everything || look.tests);
        let keys = if everything { known.names() } else { look.objects };
        if everything {
            self.later.clear();
            self.unexported.clear();
            self.writer.retain(|key| keys.contains(key) || key.0 == "KollectConnectionTest");
        }
        let mut desired = Vec::new();
        for key in keys {
            let Some(change) = self.desired(&view, &key) else { continue };
            if change.is_exported {
                self.unexported.remove(&key);
            } else {
                self.unexported.insert(key.clone());
            }
            match view.due.take() {
                Some(at) => drop(self.later.insert(key, at)),
                None => drop(self.later.remove(&key)),
            }
            desired.extend(change.desired);
        }
        let tests = tests.then(|| self.connection_tests(known, &resolution.resolved, view.now, &mut desired));
        for (key, at) in self.writer.write(desired).await {
            let later = self.later.entry(key).or_insert(at);
            *later = (*later).min(at);
        }
        let Some(tests) = tests else { return };
        self.tests_at = tests.due;
        self.acknowledge_tests(known).await;
        self.own_tests(known).await;
        self.delete_expired(tests.expired).await;
    }

    /// The desired status of an object; `None` if it is gone or not resolved yet.
    fn desired(&self, view: &View<'_>, key: &ObjectKey) -> Option<Judgement> {
        let (kind, name) = key;
        match *kind {
            "KollectProfile" => profile(view, key),
            "KollectTarget" => {
                let own = view.known.targets().get(name)?;
                target(view, key, &own.metadata, own.spec.filter.resource_rules.len(), own.status.as_ref())
            }
            "KollectClusterTarget" => {
                let own = view.known.cluster_targets().get(name)?;
                target(view, key, &own.metadata, own.spec.filter.resource_rules.len(), own.status.as_ref())
            }
            "KollectInventory" | "KollectClusterInventory" => inventory(view, key),
            _ => self.sink(view, key),
        }
    }

    fn sink(&self, view: &View<'_>, (kind, name): &ObjectKey) -> Option<Judgement> {
        let families = [Family::Snapshot, Family::Database, Family::Event];
        let family = families.into_iter().find(|family| family.kind() == *kind)?;
        let key = (family, name.clone());
        let sink = view.known.sink(&key)?;
        let faults = view.resolved.sinks.get(&key).and_then(|plan| plan.as_ref().as_ref().err());
        let probed = Probed::Sink(family, name.clone());
        let verdict = self.probes.verdict(&probed);
        let handled = self.probes.handled(&probed);
        let after = sink_status(sink, faults.map(Vec::as_slice), (verdict, handled), view.now);
        Some(Judgement::whole(Desired::new(kind, name, &sink.metadata, &sink.status, &after)))
    }
}

/// The desired status of an object, and whether its rows have arrived.
struct Judgement {
    /// All sinks hold the rows of its newest generation, as far as that concerns it.
    is_exported: bool,
    /// `None`: it is being deleted.
    desired: Option<Desired>,
}

impl Judgement {
    /// For an object that need not be checked when rows arrive in sinks.
    fn whole(desired: Option<Desired>) -> Self {
        Self { is_exported: true, desired }
    }

    fn of(conditions: &[Condition], generation: Option<i64>, desired: Option<Desired>) -> Self {
        let is_exported = conditions.iter().any(|condition| {
            condition.type_ == "Exported"
                && condition.status == ConditionStatus::True
                && condition.observed_generation == generation
        });
        Self { is_exported, desired }
    }
}

fn profile(view: &View<'_>, (kind, name): &ObjectKey) -> Option<Judgement> {
    let profile = view.known.profiles().get(name)?;
    let compiled = view.resolved.profiles.get(name)?;
    let before = profile.status.clone().unwrap_or_default();
    let errors = compiled.as_ref().err().map(Vec::as_slice);
    let metadata = &profile.metadata;
    let after = view.profile(name, metadata, &before.conditions, errors);
    Some(Judgement::of(
        &after.conditions,
        metadata.generation,
        Desired::new(kind, name, metadata, &before, &after),
    ))
}

fn target(
    view: &View<'_>,
    key: &ObjectKey,
    metadata: &ObjectMeta,
    resource_rules: usize,
    before: Option<&TargetStatus>,
) -> Option<Judgement> {
    let before = before.cloned().unwrap_or_default();
    let id = target_id(key);
    let after = view.target(metadata, &before, &id, view.resolved.targets.get(&id)?, resource_rules);
    let desired = Desired::new(key.0, &key.1, metadata, &before, &after);
    Some(Judgement::of(&after.conditions, metadata.generation, desired))
}

fn inventory(view: &View<'_>, key: &ObjectKey) -> Option<Judgement> {
    let (kind, name) = key;
    let own = inventory_name(key);
    let outcome = view.resolved.inventories.get(&own)?;
    if let Some(inventory) = own.namespace.as_ref().and_then(|_| view.known.inventories().get(name)) {
        let before = inventory.status.clone().unwrap_or_default();
        let after =
            view.inventory(&inventory.metadata, &view.operator_policy.shown_status(&before), &own, outcome);
        let told = Desired::new(kind, name, &inventory.metadata, &before, &after);
        return Some(Judgement::whole(hurry_if_moved(told, &before, &after)));
    }
    let inventory = view.known.cluster_inventories().get(name)?;
    let before = inventory.status.clone().unwrap_or_default();
    let shown = view.operator_policy.shown_status(&before.inventory);
    let status = view.inventory(&inventory.metadata, &shown, &own, outcome);
    // The lines of an earlier process stay until a sink has acknowledged what it holds.
    let namespace_shards = view.shards(&own, outcome).unwrap_or_else(|| before.namespace_shards.clone());
    let after = ClusterInventoryStatus {
        inventory: status,
        target_count: outcome.targets.len().try_into().ok(),
        namespace_shard_count: namespace_shards.len().try_into().ok(),
        namespace_shards,
    };
    let told = Desired::new(kind, name, &inventory.metadata, &before, &after);
    Some(Judgement::whole(hurry_if_moved(told, &before.inventory, &after.inventory)))
}

/// Changed destinations and take-overs are written at once: no claim is requested before the status names its place.
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
    (verdict, handled): (Option<Result<Duration, String>>, Option<String>),
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
    let last_handled_requested_at = match faults {
        Some(_) => request(&sink.metadata),
        None => handled.or_else(|| sink.status.last_handled_requested_at.clone()),
    };
    match (faults, verdict) {
        (Some(faults), _) => {
            let reason = faults.first().map_or(Reason::InvalidSpec, |fault| fault.reason);
            let message = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            conditions.set("ConnectionVerified", false, reason, SEE_READY);
            conditions.degraded(reason, message, true);
        }
        (None, Some(Ok(_))) => {
            conditions.set("ConnectionVerified", true, Reason::ConnectionOK, "the sink answers");
            conditions.ready(Reason::ConnectionOK, "the sink answers");
        }
        (None, Some(Err(message))) => {
            conditions.set("ConnectionVerified", false, Reason::ConnectionTestFailed, SEE_READY);
            conditions.degraded(Reason::ConnectionTestFailed, message, false);
        }
        (None, None) if sink.spec.common().connection_test == Some(false) => {
            conditions.ready(Reason::NotTested, "connectionTest is false");
        }
        (None, None) => conditions.progressing(Reason::Probing, "the first probe has not ended yet"),
    }
    SinkStatus {
        conditions: conditions.done(),
        observed_generation: sink.metadata.generation,
        last_handled_requested_at,
        preview,
    }
}
