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
    ObjectCache, ObjectKey, ObjectsToCheck, Operator, Resolution,
    objects_to_check::{inventory_name, target_id},
    preview::preview,
};
use crate::{
    operator::{
        conditions::{Conditions, SEE_READY},
        objects::{SinkObject, requested_at},
        probe::Probed,
        status::{self, StatusInputs},
        status_writer::DesiredStatus,
    },
    reason::Reason,
    resolve::{Family, ObjectFault},
};

impl Operator {
    /// Writes the changed statuses of the objects that are checked.
    pub(super) async fn write_statuses(
        &mut self,
        cache: &ObjectCache,
        resolution: &Resolution,
        checks: ObjectsToCheck,
    ) {
        let view = StatusInputs {
            cache,
            resolved: &resolution.resolved,
            links: &resolution.links,
            rows: &self.rows,
            coverage: self.collector.coverage(),
            namespaces: self.collector.namespaces().borrow().clone(),
            binding_states: &self.binding_states,
            bindings: &self.bindings,
            profile_warnings: &self.profile_warnings,
            operator_policy: &self.policy,
            watched: self.bindings.watched(),
            led_since: self.led_since,
            now: Timestamp::from_second(clock::timestamp().as_second()).unwrap_or_default(),
            due: Cell::new(None),
        };
        let (everything, tests) = (checks.everything, checks.everything || checks.tests);
        let keys = if everything { cache.names() } else { checks.objects };
        if everything {
            self.due_checks.clear();
            self.unexported.clear();
            self.profile_warnings.retain(|name| cache.profiles().contains_key(name));
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
                Some(at) => drop(self.due_checks.insert(key, at)),
                None => drop(self.due_checks.remove(&key)),
            }
            desired.extend(change.desired);
        }
        let tests = tests.then(|| self.connection_tests(cache, &resolution.resolved, view.now, &mut desired));
        for (key, at) in self.writer.write(desired).await {
            let due = self.due_checks.entry(key).or_insert(at);
            *due = (*due).min(at);
        }
        let Some(tests) = tests else { return };
        self.tests_at = tests.due;
        self.acknowledge_tests(cache).await;
        self.set_test_owners(cache).await;
        self.delete_expired(tests.expired).await;
    }

    /// The desired status of an object; `None` if it was deleted or is not resolved yet.
    fn desired(&self, view: &StatusInputs<'_>, key: &ObjectKey) -> Option<ComputedStatus> {
        let (kind, name) = key;
        match *kind {
            "KollectProfile" => profile(view, key),
            "KollectTarget" => {
                let object = view.cache.targets().get(name)?;
                target(
                    view,
                    key,
                    &object.metadata,
                    object.spec.filter.resource_rules.len(),
                    object.status.as_ref(),
                )
            }
            "KollectClusterTarget" => {
                let object = view.cache.cluster_targets().get(name)?;
                target(
                    view,
                    key,
                    &object.metadata,
                    object.spec.filter.resource_rules.len(),
                    object.status.as_ref(),
                )
            }
            "KollectInventory" | "KollectClusterInventory" => inventory(view, key),
            _ => self.sink(view, key),
        }
    }

    fn sink(&self, view: &StatusInputs<'_>, (kind, name): &ObjectKey) -> Option<ComputedStatus> {
        let families = [Family::Snapshot, Family::Database, Family::Event];
        let family = families.into_iter().find(|family| family.kind() == *kind)?;
        let key = (family, name.clone());
        let sink = view.cache.sink(&key)?;
        let faults = view.resolved.sinks.get(&key).and_then(|plan| plan.as_ref().as_ref().err());
        let probed = Probed::Sink(family, name.clone());
        let probe_result = self.probes.result(&probed);
        let handled = self.probes.handled(&probed);
        let after = sink_status(sink, faults.map(Vec::as_slice), (probe_result, handled), view.now);
        Some(ComputedStatus::without_export(DesiredStatus::new(
            kind,
            name,
            &sink.metadata,
            &sink.status,
            &after,
        )))
    }
}

/// The desired status of an object, and whether its rows have arrived.
struct ComputedStatus {
    /// All sinks hold the rows of its newest generation, as far as that concerns it.
    is_exported: bool,
    /// `None`: it is being deleted.
    desired: Option<DesiredStatus>,
}

impl ComputedStatus {
    /// For an object that need not be checked when rows arrive in sinks.
    fn without_export(desired: Option<DesiredStatus>) -> Self {
        Self { is_exported: true, desired }
    }

    fn of(conditions: &[Condition], generation: Option<i64>, desired: Option<DesiredStatus>) -> Self {
        let is_exported = conditions.iter().any(|condition| {
            condition.type_ == "Exported"
                && condition.status == ConditionStatus::True
                && condition.observed_generation == generation
        });
        Self { is_exported, desired }
    }
}

fn profile(view: &StatusInputs<'_>, (kind, name): &ObjectKey) -> Option<ComputedStatus> {
    let profile = view.cache.profiles().get(name)?;
    let compiled = view.resolved.profiles.get(name)?;
    let before = profile.status.clone().unwrap_or_default();
    let errors = compiled.as_ref().err().map(Vec::as_slice);
    let metadata = &profile.metadata;
    let after = view.profile(name, &profile.spec, metadata, &before.conditions, errors);
    Some(ComputedStatus::of(
        &after.conditions,
        metadata.generation,
        DesiredStatus::new(kind, name, metadata, &before, &after),
    ))
}

fn target(
    view: &StatusInputs<'_>,
    key: &ObjectKey,
    metadata: &ObjectMeta,
    resource_rules: usize,
    before: Option<&TargetStatus>,
) -> Option<ComputedStatus> {
    let before = before.cloned().unwrap_or_default();
    let id = target_id(key);
    let after = view.target(metadata, &before, &id, view.resolved.targets.get(&id)?, resource_rules);
    let desired = DesiredStatus::new(key.0, &key.1, metadata, &before, &after);
    Some(ComputedStatus::of(&after.conditions, metadata.generation, desired))
}

fn inventory(view: &StatusInputs<'_>, key: &ObjectKey) -> Option<ComputedStatus> {
    let (kind, name) = key;
    let id = inventory_name(key);
    let resolved = view.resolved.inventories.get(&id)?;
    if let Some(inventory) = id.namespace.as_ref().and_then(|_| view.cache.inventories().get(name)) {
        let before = inventory.status.clone().unwrap_or_default();
        let after =
            view.inventory(&inventory.metadata, &view.operator_policy.shown_status(&before), &id, resolved);
        let desired = DesiredStatus::new(kind, name, &inventory.metadata, &before, &after);
        return Some(ComputedStatus::without_export(at_once_if_moved(desired, &before, &after)));
    }
    let inventory = view.cache.cluster_inventories().get(name)?;
    let before = inventory.status.clone().unwrap_or_default();
    let shown = view.operator_policy.shown_status(&before.inventory);
    let status = view.inventory(&inventory.metadata, &shown, &id, resolved);
    // The lines of an earlier process stay until a sink has acknowledged what it holds.
    let namespace_shards = view.shards(&id, resolved).unwrap_or_else(|| before.namespace_shards.clone());
    let after = ClusterInventoryStatus {
        inventory: status,
        target_count: resolved.targets.len().try_into().ok(),
        namespace_shard_count: namespace_shards.len().try_into().ok(),
        namespace_shards,
    };
    let desired = DesiredStatus::new(kind, name, &inventory.metadata, &before, &after);
    Some(ComputedStatus::without_export(at_once_if_moved(desired, &before.inventory, &after.inventory)))
}

/// Changed destinations and take-overs are written at once: no claim is requested before the status names its
/// destination.
fn at_once_if_moved(
    desired: Option<DesiredStatus>,
    before: &InventoryStatus,
    after: &InventoryStatus,
) -> Option<DesiredStatus> {
    let destinations = |export: &SinkExport| {
        (export.name.clone(), export.place.clone(), export.claiming.clone(), export.left.clone())
    };
    let is_same =
        before.sink_exports.iter().map(destinations).eq(after.sink_exports.iter().map(destinations))
            && before.take_overs == after.take_overs;
    if is_same { desired } else { desired.map(DesiredStatus::at_once) }
}

fn sink_status(
    sink: &SinkObject,
    faults: Option<&[ObjectFault]>,
    (probe_result, handled): (Option<Result<Duration, String>>, Option<String>),
    now: Timestamp,
) -> SinkStatus {
    let preview = preview(sink, now);
    let SinkStatus { observed_generation, conditions, .. } = &sink.status;
    let not_probed = faults.is_none() && probe_result.is_none();
    let is_tested = sink.spec.common().connection_test != Some(false);
    if not_probed && is_tested && status::is_current_status(&sink.metadata, *observed_generation, conditions)
    {
        return SinkStatus { preview, ..sink.status.clone() };
    }
    let mut conditions = Conditions::after(&sink.status.conditions, sink.metadata.generation, now);
    if sink.spec.common().tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify) {
        let message = "spec.tls.insecureSkipVerify is set: the certificate of the server is not verified; set spec.tls.caBundle instead";
        conditions.set("TLSInsecure", true, Reason::InsecureSkipVerify, message);
    }
    if sink.spec.is_unconditional() {
        let message = "spec.objectStore.unconditional is set: two writers may overwrite each other's documents; use a store that keeps the conditions of puts instead";
        conditions.set("Unconditional", true, Reason::ConditionsIgnored, message);
    }
    let last_handled_requested_at = match faults {
        Some(_) => requested_at(&sink.metadata),
        None => handled.or_else(|| sink.status.last_handled_requested_at.clone()),
    };
    match (faults, probe_result) {
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
