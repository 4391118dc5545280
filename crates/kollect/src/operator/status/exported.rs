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

use super::{View, inventory::is_synced};
use crate::{
    operator::{
        bindings::binding_name,
        conditions::{Conditions, SEE_READY},
        progress::Progress,
    },
    reason::Reason,
    resolve::{BoundSink, InventoryName, Name, ResolvedInventory, ResolvedTarget},
};

const TYPE: &str = "Exported";

/// The message while rows are on their way. It names no sink, because that changes too quickly; the status of the
/// inventory names the sink if it takes long.
const ON_THE_WAY: &str = "some sinks do not have the rows of this generation yet";

/// Why the rows of a generation are not in a sink.
enum Missing {
    OnTheWay,
    Because(Reason, String),
}

impl Missing {
    fn because(reason: Reason, message: impl Into<String>) -> Self {
        Self::Because(reason, message.into())
    }
}

/// Whether a sink holds rows.
enum Held {
    Yes,
    /// This process has not compared the sink yet; its status says that it holds the rows.
    SaidSo,
    OnTheWay,
    No(Reason),
}

impl View<'_> {
    /// Sets Exported of a profile: whether sinks hold its rows.
    pub(super) fn judge_profile_export(
        &self,
        name: &Name,
        metadata: &ObjectMeta,
        before: &[Condition],
        errors: Option<&[SpecError]>,
        conditions: &mut Conditions<'_>,
    ) {
        let targets = self.links.targets_of(name);
        let mut used = targets.iter().filter(|id| !self.links.inventories_of(id).is_empty()).peekable();
        let outcome = if errors.is_some() {
            Err(Missing::because(Reason::InvalidSpec, SEE_READY))
        } else if used.peek().is_none() {
            let message =
                if targets.is_empty() { "no target uses it" } else { "no inventory has its targets" };
            Err(Missing::because(Reason::NotUsed, message))
        } else {
            used.map(|id| self.target_is_exported(id)).try_fold(true, |sure, target| Ok(sure & target?))
        };
        tell(metadata, before, outcome, conditions);
    }

    /// Sets Exported of a target: whether sinks hold its rows.
    pub(super) fn judge_target_export(
        &self,
        metadata: &ObjectMeta,
        before: &[Condition],
        id: &TargetId,
        conditions: &mut Conditions<'_>,
    ) {
        tell(metadata, before, self.target_is_exported(id), conditions);
    }

    /// The previous status, which stays while objects are listed again, with a new condition Exported.
    pub(super) fn with_target_export(
        &self,
        metadata: &ObjectMeta,
        before: &TargetStatus,
        id: &TargetId,
    ) -> TargetStatus {
        let mut made = Conditions::after(&before.conditions, metadata.generation, self.now);
        self.judge_target_export(metadata, &before.conditions, id, &mut made);
        let mut conditions: Vec<Condition> =
            before.conditions.iter().filter(|condition| condition.type_ != TYPE).cloned().collect();
        conditions.extend(made.done());
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        TargetStatus { conditions, ..before.clone() }
    }

    /// Sets Exported of an inventory: whether sinks hold its rows.
    pub(super) fn judge_inventory_export(
        &self,
        metadata: &ObjectMeta,
        before: &[Condition],
        name: &InventoryName,
        resolved: &ResolvedInventory,
        conditions: &mut Conditions<'_>,
    ) {
        let outcome = if let Some(first) = resolved.faults.first() {
            Err(Missing::because(first.reason, SEE_READY))
        } else {
            self.inventory_is_exported(name, resolved)
        };
        tell(metadata, before, outcome, conditions);
    }

    /// Whether all sinks of an inventory hold the rows of its targets. `Ok(false)`: the status says so, and this
    /// process has not verified it yet. A suspended target keeps its rows: nothing is missing.
    fn inventory_is_exported(
        &self,
        name: &InventoryName,
        inventory: &ResolvedInventory,
    ) -> Result<bool, Missing> {
        let (mut sure, mut revision) = (true, 0);
        for id in &inventory.targets {
            let Some(target) = self.resolved.targets.get(id) else { return Err(Missing::OnTheWay) };
            if target.target.is_none() && target.faults.is_empty() {
                continue;
            }
            match self.rows_of_target(id, target)? {
                Some(read) => revision = revision.max(read),
                None => sure = false,
            }
        }
        Ok(sure & self.sinks_hold(name, inventory, revision)?)
    }

    /// Whether all sinks of all inventories of a target hold its rows; `Ok(false)`: it has not been verified yet.
    fn target_is_exported(&self, id: &TargetId) -> Result<bool, Missing> {
        let inventories = self.links.inventories_of(id);
        if inventories.is_empty() {
            return Err(Missing::because(Reason::NotUsed, "no inventory has this target"));
        }
        let Some(resolved) = self.resolved.targets.get(id) else {
            return Err(Missing::OnTheWay);
        };
        let read = self.rows_of_target(id, resolved)?;
        let mut sure = read.is_some();
        for name in inventories {
            let Some(inventory) = self.resolved.inventories.get(name) else { continue };
            sure &= self.sinks_hold(name, inventory, read.unwrap_or(0))?;
        }
        Ok(sure)
    }

    /// The revision at which all rows of a target are in the store; `None`: its first list in this process is running.
    fn rows_of_target(&self, id: &TargetId, resolved: &ResolvedTarget) -> Result<Option<u64>, Missing> {
        if let Some(first) = resolved.faults.first() {
            return Err(Missing::because(first.reason, format!("target {id}: see its Ready")));
        }
        let Some(target) = &resolved.target else {
            return Err(Missing::because(Reason::Suspended, format!("target {id} is suspended")));
        };
        if let Some(revision) = self.rows.completed(id, target.definition()) {
            return Ok(Some(revision));
        }
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        if visibilities.is_empty() || self.rows.listing(id).is_some_and(|listing| listing.is_first) {
            return Ok(None);
        }
        if !self.rows.has_read(id, target.definition()) {
            return Err(Missing::OnTheWay);
        }
        if visibilities.values().any(|visibility| *visibility == Visibility::Absent) {
            return Err(Missing::because(Reason::KindNotServed, format!("target {id}: see its Unmatched")));
        }
        Err(Missing::because(Reason::NotSeen, format!("target {id}: see its Blind")))
    }

    /// Whether all sinks of an inventory hold all rows up to a revision; `Ok(false)`: it has not been verified yet.
    fn sinks_hold(
        &self,
        name: &InventoryName,
        inventory: &ResolvedInventory,
        revision: u64,
    ) -> Result<bool, Missing> {
        // Users who may read this status may not be permitted to read cluster inventories.
        let shown = match &name.namespace {
            Some(_) => format!("inventory {}", name.name),
            None => "a cluster inventory".to_owned(),
        };
        if inventory.suspended {
            return Err(Missing::because(Reason::Suspended, format!("{shown} is suspended")));
        }
        if let Some(first) = inventory.faults.first() {
            return Err(Missing::because(first.reason, format!("{shown} is not written: see its Ready")));
        }
        if inventory.sinks.is_empty() {
            return Err(Missing::because(Reason::NoExport, format!("{shown} has no sinks")));
        }
        let mut sure = true;
        for sink in &inventory.sinks {
            match self.sink_holds(name, sink, revision) {
                Held::Yes => {}
                Held::SaidSo => sure = false,
                Held::OnTheWay => return Err(Missing::OnTheWay),
                Held::No(reason) => {
                    return Err(Missing::because(
                        reason,
                        format!("a sink of {shown} lacks rows: see its Synced"),
                    ));
                }
            }
        }
        Ok(sure)
    }

    fn sink_holds(&self, name: &InventoryName, sink: &BoundSink, revision: u64) -> Held {
        if let Err(faults) = &*sink.plan {
            return Held::No(faults.first().map_or(Reason::SinkNotFound, |fault| fault.reason));
        }
        let binding = binding_name(name, &sink.name);
        let progress = self.binding_states.of(&binding);
        let acknowledged = progress.now().acknowledged;
        let is_current = |acknowledged: &Acknowledged| {
            progress.is_held()
                && progress.newer_since().is_none()
                && progress.wanted().is_some_and(|wanted| wanted.number == acknowledged.version)
                && acknowledged.refused == 0
                && acknowledged.shown_revision >= revision
        };
        match &acknowledged {
            Some(acknowledged) if is_current(acknowledged) => Held::Yes,
            None if progress.failure().is_none() && self.said_so(name, sink) => Held::SaidSo,
            _ => missing(&progress),
        }
    }

    /// Whether the status of an inventory says that a sink holds the rows.
    fn said_so(&self, name: &InventoryName, sink: &BoundSink) -> bool {
        let Some((_, status)) = self.known.inventory(name) else { return false };
        let status = self.operator_policy.shown_status(status);
        let is_line = |export: &&SinkExport| export.name == sink.name;
        let line = status.sink_exports.iter().find(is_line);
        line.is_some_and(|line| is_synced(line) && self.is_about(&binding_name(name, &sink.name), line))
    }
}

/// Why a sink does not hold the rows.
fn missing(progress: &Progress) -> Held {
    match progress.failure().map(|failure| failure.class) {
        Some(ErrorClass::Transient) => Held::No(Reason::ExportFailed),
        Some(ErrorClass::Terminal | ErrorClass::Forbidden) => Held::No(Reason::ExportTerminal),
        None if progress.held_removals.is_some() => Held::No(Reason::RemovalsHeld),
        None if progress.held_back.is_some() => Held::No(Reason::HeldBack),
        None if !progress.refused.is_empty() => Held::No(Reason::RowsRefused),
        None => Held::OnTheWay,
    }
}

/// Sets the condition. True for this generation stays True until this process knows better.
fn tell(
    metadata: &ObjectMeta,
    before: &[Condition],
    outcome: Result<bool, Missing>,
    conditions: &mut Conditions<'_>,
) {
    let before = before.iter().find(|condition| condition.type_ == TYPE);
    let held = before.and_then(|before| before.observed_generation);
    let said_so =
        before.is_some_and(|before| before.status == ConditionStatus::True) && held == metadata.generation;
    match outcome {
        Ok(sure) if sure || said_so => {
            conditions.set(TYPE, true, Reason::Exported, "all sinks hold the rows of this generation");
        }
        Ok(_) | Err(Missing::OnTheWay) => {
            conditions.set_of(held, (TYPE, false), Reason::Reconciling, ON_THE_WAY);
        }
        Err(Missing::Because(reason, message)) => {
            conditions.set_of(held, (TYPE, false), reason, message);
        }
    }
}
