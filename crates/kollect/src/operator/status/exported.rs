//! The condition `Exported`: whether all sinks concerned hold the rows of a generation.
//!
//! Its `observedGeneration` is the newest generation whose rows they hold, so that `kubectl wait
//! --for=condition=Exported` after an edit returns when the edit has arrived in every sink, and not before.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{export::Acknowledged, store::Visibility};
use kollect_model::{
    SpecError,
    crd::{
        inventory::SinkExport,
        shapes::{Condition, ConditionStatus},
        target::TargetStatus,
    },
    row::TargetId,
    sink::ErrorClass,
};

use super::{StatusInputs, inventory::is_synced};
use crate::{
    operator::{
        binding_states::BindingState,
        bindings::binding_name,
        conditions::{Conditions, SEE_READY},
    },
    reason::Reason,
    resolve::{BoundSink, InventoryName, ObjectName, ResolvedInventory, ResolvedTarget},
};

const TYPE: &str = "Exported";

/// The message while rows are on their way. It names no sink, because that changes too quickly; the status of the
/// inventory names the sink if it takes long.
const ON_THE_WAY: &str = "some sinks do not have the rows of this generation yet";

/// Why the rows of a generation are not in a sink.
enum NotExported {
    OnTheWay,
    Because(Reason, String),
}

impl NotExported {
    fn because(reason: Reason, message: impl Into<String>) -> Self {
        Self::Because(reason, message.into())
    }
}

/// Whether a sink holds rows.
enum SinkHolds {
    Yes,
    /// According to the status it does; this process has not compared the sink yet.
    OnlyInStatus,
    OnTheWay,
    No(Reason),
}

impl StatusInputs<'_> {
    /// Sets Exported of a profile: whether sinks hold its rows.
    pub(super) fn set_profile_exported(
        &self,
        name: &ObjectName,
        metadata: &ObjectMeta,
        before: &[Condition],
        errors: Option<&[SpecError]>,
        conditions: &mut Conditions<'_>,
    ) {
        let targets = self.links.targets_of(name);
        let mut used = targets.iter().filter(|id| !self.links.inventories_of(id).is_empty()).peekable();
        let outcome = if errors.is_some() {
            Err(NotExported::because(Reason::InvalidSpec, SEE_READY))
        } else if used.peek().is_none() {
            let message =
                if targets.is_empty() { "no target uses it" } else { "no inventory has its targets" };
            Err(NotExported::because(Reason::NotUsed, message))
        } else {
            used.map(|id| self.target_is_exported(id))
                .try_fold(true, |verified, target| Ok(verified & target?))
        };
        set_exported(metadata, before, outcome, conditions);
    }

    /// Sets Exported of a target: whether sinks hold its rows.
    pub(super) fn set_target_exported(
        &self,
        metadata: &ObjectMeta,
        before: &[Condition],
        id: &TargetId,
        conditions: &mut Conditions<'_>,
    ) {
        set_exported(metadata, before, self.target_is_exported(id), conditions);
    }

    /// The previous status, which stays while objects are listed again, with a new condition Exported.
    pub(super) fn with_target_export(
        &self,
        metadata: &ObjectMeta,
        before: &TargetStatus,
        id: &TargetId,
    ) -> TargetStatus {
        let mut exported = Conditions::after(&before.conditions, metadata.generation, self.now);
        self.set_target_exported(metadata, &before.conditions, id, &mut exported);
        let mut conditions: Vec<Condition> =
            before.conditions.iter().filter(|condition| condition.type_ != TYPE).cloned().collect();
        conditions.extend(exported.done());
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        TargetStatus { conditions, ..before.clone() }
    }

    /// Sets Exported of an inventory: whether sinks hold its rows.
    pub(super) fn set_inventory_exported(
        &self,
        metadata: &ObjectMeta,
        before: &[Condition],
        name: &InventoryName,
        resolved: &ResolvedInventory,
        conditions: &mut Conditions<'_>,
    ) {
        let outcome = if let Some(first) = resolved.faults.first() {
            Err(NotExported::because(first.reason, SEE_READY))
        } else {
            self.inventory_is_exported(name, resolved)
        };
        set_exported(metadata, before, outcome, conditions);
    }

    /// Whether all sinks of an inventory hold the rows of its targets. `Ok(false)`: they do according to the status,
    /// and this process has not verified it yet. A suspended target keeps its rows: nothing is missing.
    fn inventory_is_exported(
        &self,
        name: &InventoryName,
        inventory: &ResolvedInventory,
    ) -> Result<bool, NotExported> {
        let (mut verified, mut revision) = (true, 0);
        for id in &inventory.targets {
            let Some(target) = self.resolved.targets.get(id) else { return Err(NotExported::OnTheWay) };
            if target.target.is_none() && target.faults.is_empty() {
                continue;
            }
            match self.rows_of_target(id, target)? {
                Some(read) => revision = revision.max(read),
                None => verified = false,
            }
        }
        Ok(verified & self.sinks_hold(name, inventory, revision)?)
    }

    /// Whether all sinks of all inventories of a target hold its rows; `Ok(false)`: it has not been verified yet.
    fn target_is_exported(&self, id: &TargetId) -> Result<bool, NotExported> {
        let inventories = self.links.inventories_of(id);
        if inventories.is_empty() {
            return Err(NotExported::because(Reason::NotUsed, "no inventory has this target"));
        }
        let Some(resolved) = self.resolved.targets.get(id) else {
            return Err(NotExported::OnTheWay);
        };
        let read = self.rows_of_target(id, resolved)?;
        let mut verified = read.is_some();
        for name in inventories {
            let Some(inventory) = self.resolved.inventories.get(name) else { continue };
            verified &= self.sinks_hold(name, inventory, read.unwrap_or(0))?;
        }
        Ok(verified)
    }

    /// The revision at which all rows of a target are in the store; `None`: its first list in this process is running.
    fn rows_of_target(&self, id: &TargetId, resolved: &ResolvedTarget) -> Result<Option<u64>, NotExported> {
        if let Some(first) = resolved.faults.first() {
            return Err(NotExported::because(first.reason, format!("see condition Ready of target {id}")));
        }
        let Some(target) = &resolved.target else {
            return Err(NotExported::because(Reason::Suspended, format!("target {id} is suspended")));
        };
        if let Some(revision) = self.rows.completed(id, target.definition()) {
            return Ok(Some(revision));
        }
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        if visibilities.is_empty() || self.rows.listing(id).is_some_and(|listing| listing.is_first) {
            return Ok(None);
        }
        if !self.rows.has_read(id, target.definition()) {
            return Err(NotExported::OnTheWay);
        }
        if visibilities.values().any(|visibility| *visibility == Visibility::Absent) {
            return Err(NotExported::because(
                Reason::KindNotServed,
                format!("see condition Unmatched of target {id}"),
            ));
        }
        Err(NotExported::because(Reason::NotSeen, format!("see condition Blind of target {id}")))
    }

    /// Whether all sinks of an inventory hold all rows up to a revision; `Ok(false)`: it has not been verified yet.
    fn sinks_hold(
        &self,
        name: &InventoryName,
        inventory: &ResolvedInventory,
        revision: u64,
    ) -> Result<bool, NotExported> {
        // Users who may read this status may not be permitted to read cluster inventories.
        let label = match &name.namespace {
            Some(_) => format!("inventory {}", name.name),
            None => "a cluster inventory".to_owned(),
        };
        if inventory.suspended {
            return Err(NotExported::because(Reason::Suspended, format!("{label} is suspended")));
        }
        if let Some(first) = inventory.faults.first() {
            return Err(NotExported::because(
                first.reason,
                format!("nothing is written: see condition Ready of {label}"),
            ));
        }
        if inventory.sinks.is_empty() {
            return Err(NotExported::because(Reason::NoExport, format!("{label} has no sinks")));
        }
        let mut verified = true;
        for sink in &inventory.sinks {
            match self.sink_holds(name, sink, revision) {
                SinkHolds::Yes => {}
                SinkHolds::OnlyInStatus => verified = false,
                SinkHolds::OnTheWay => return Err(NotExported::OnTheWay),
                SinkHolds::No(reason) => {
                    return Err(NotExported::because(
                        reason,
                        format!("a sink lacks rows: see condition Synced of {label}"),
                    ));
                }
            }
        }
        Ok(verified)
    }

    fn sink_holds(&self, name: &InventoryName, sink: &BoundSink, revision: u64) -> SinkHolds {
        if let Err(faults) = &*sink.plan {
            return SinkHolds::No(faults.first().map_or(Reason::SinkNotFound, |fault| fault.reason));
        }
        let binding = binding_name(name, &sink.name);
        let state = self.binding_states.of(&binding);
        let acknowledged = state.progress_snapshot().acknowledged;
        let is_current = |acknowledged: &Acknowledged| {
            state.is_held()
                && state.newer_since().is_none()
                && state.wanted().is_some_and(|wanted| wanted.number == acknowledged.version)
                && acknowledged.refused == 0
                && acknowledged.shown_revision >= revision
        };
        match &acknowledged {
            Some(acknowledged) if is_current(acknowledged) => SinkHolds::Yes,
            None if state.failure().is_none() && self.status_shows_held(name, sink) => {
                SinkHolds::OnlyInStatus
            }
            _ => missing(&state),
        }
    }

    /// Whether a sink holds the rows according to the status of the inventory.
    fn status_shows_held(&self, name: &InventoryName, sink: &BoundSink) -> bool {
        let Some((_, status)) = self.cache.inventory(name) else { return false };
        let status = self.operator_policy.shown_status(status);
        let is_line = |export: &&SinkExport| export.name == sink.name;
        let line = status.sink_exports.iter().find(is_line);
        line.is_some_and(|line| is_synced(line) && self.is_about(&binding_name(name, &sink.name), line))
    }
}

/// Why a sink does not hold the rows.
fn missing(state: &BindingState) -> SinkHolds {
    match state.failure().map(|failure| failure.class) {
        Some(ErrorClass::Transient) => SinkHolds::No(Reason::ExportFailed),
        Some(ErrorClass::Terminal | ErrorClass::Forbidden) => SinkHolds::No(Reason::ExportTerminal),
        None if state.held_removals.is_some() => SinkHolds::No(Reason::RemovalsHeld),
        None if state.held_back.is_some() => SinkHolds::No(Reason::HeldBack),
        None if !state.refused.is_empty() => SinkHolds::No(Reason::RowsRefused),
        None => SinkHolds::OnTheWay,
    }
}

/// Sets the condition. True for this generation stays True until this process knows more.
fn set_exported(
    metadata: &ObjectMeta,
    before: &[Condition],
    outcome: Result<bool, NotExported>,
    conditions: &mut Conditions<'_>,
) {
    let before = before.iter().find(|condition| condition.type_ == TYPE);
    let held = before.and_then(|before| before.observed_generation);
    let was_exported =
        before.is_some_and(|before| before.status == ConditionStatus::True) && held == metadata.generation;
    match outcome {
        Ok(verified) if verified || was_exported => {
            conditions.set(TYPE, true, Reason::Exported, "all sinks hold the rows of this generation");
        }
        Ok(_) | Err(NotExported::OnTheWay) => {
            conditions.set_of(held, (TYPE, false), Reason::Reconciling, ON_THE_WAY);
        }
        Err(NotExported::Because(reason, message)) => {
            conditions.set_of(held, (TYPE, false), reason, message);
        }
    }
}
