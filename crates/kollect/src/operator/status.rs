//! What the objects say about themselves: one pure function per kind.
//!
//! Ready is False whenever Degraded is True. A condition that is not set is gone. Counts are what is
//! true now; times move with what they describe.

mod blind;
mod destinations;
mod reach;

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kollect_engine::{
    clock,
    coverage::{Known, Place},
    export::{HeldRemovals, KeptRows},
    select::{Namespaces, SelectedNamespaces},
    store::{Sight, StoreReader},
};
use kollect_model::{
    SpecError,
    crd::{
        inventory::{InventoryStatus, MAX_SINK_REFS, SinkExport},
        profile::ProfileStatus,
        shapes::Condition,
        target::TargetStatus,
    },
    row::TargetId,
    sink::ErrorClass,
};

use super::{
    bindings::{Bindings, RELEASE_REMOVALS, binding_name},
    conditions::Conditions,
    progress::Board,
};
use crate::{
    reason::Reason,
    world::{BoundSink, Fault, InventoryName, ResolvedInventory, ResolvedTarget, Rules},
};
use blind::{FORBIDDEN, Line, cut, sentence};

/// What statuses are made from, besides the objects.
pub(crate) struct View<'a> {
    pub(crate) rows: &'a StoreReader,
    pub(crate) coverage: BTreeMap<Place, Known>,
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    pub(crate) board: &'a Board,
    pub(crate) bindings: &'a Bindings,
    /// Rows that sinks keep although their objects are not collected.
    pub(crate) kept: BTreeMap<TargetId, KeptRows>,
    pub(crate) rules: &'a Rules,
    /// All that the operator looks at.
    pub(crate) scope: &'a Sight,
    pub(crate) now: Timestamp,
}

fn time(at: SystemTime) -> Option<Time> {
    let at = Timestamp::try_from(at).ok()?;
    // Whole seconds, as the API server stores them.
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

/// Seconds, rounded down to 10, 20, 50, 100 and so on: a status that counted them would be written again and again.
fn rounded(seconds: u64) -> u64 {
    let unit = 10_u64.pow(seconds.max(10).ilog10());
    let digit = match seconds / unit {
        digit @ 0..=2 => digit,
        3 | 4 => 2,
        _ => 5,
    };
    digit * unit
}

fn count<T: TryFrom<usize>>(number: usize) -> Option<T> {
    number.try_into().ok()
}

/// The text of faults: the first in full, the others counted.
fn told<F: ToString>(faults: &[F]) -> String {
    let first = faults.first().map(ToString::to_string).unwrap_or_default();
    match faults.len() {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

/// Whether a profile compiles, and who uses it.
pub(crate) fn profile(
    metadata: &ObjectMeta,
    before: &[Condition],
    errors: Option<&[SpecError]>,
    users: usize,
    now: Timestamp,
) -> ProfileStatus {
    let mut conditions = Conditions::after(before, metadata.generation, now);
    match errors {
        None => {
            let noun = if users == 1 { "target uses" } else { "targets use" };
            conditions.ready(Reason::Compiled, format!("all expressions compile; {users} {noun} it"));
        }
        Some(errors) => conditions.degraded(Reason::InvalidSpec, told(errors), true),
    }
    ProfileStatus { conditions: conditions.done(), observed_generation: metadata.generation }
}

impl View<'_> {
    /// What a target collects.
    pub(crate) fn target(
        &self,
        metadata: &ObjectMeta,
        before: &TargetStatus,
        id: &TargetId,
        resolved: &ResolvedTarget,
        rules: usize,
    ) -> TargetStatus {
        let sights = self.rows.sights(std::slice::from_ref(id));
        let listing = sights.is_empty() || sights.values().any(|sight| *sight == Sight::Pending);
        let collected = resolved.target.is_some();
        if collected && listing && stands(metadata, before.observed_generation, &before.conditions) {
            return before.clone();
        }
        let mut conditions = Conditions::after(&before.conditions, metadata.generation, self.now);
        let rows: Option<i64> = count(self.rows.count(id));
        let (failures, failure) = self.rows.failures(id);
        let selected = self.selected(resolved);
        let coverage = self.coverage_of(resolved, &selected.allowed);
        self.judge_target(
            id,
            resolved,
            rows.unwrap_or(0),
            (failures, failure.as_deref()),
            (&selected, &coverage),
            &mut conditions,
        );
        let moved = before.collected_count != rows;
        TargetStatus {
            conditions: conditions.done(),
            observed_generation: metadata.generation,
            extraction_failures: count(failures),
            last_extraction_error: failure,
            collected_count: rows,
            collected_count_updated_at: if moved {
                Timestamp::from_second(self.now.as_second()).ok().map(Time)
            } else {
                before.collected_count_updated_at.clone()
            },
            matched_namespaces: cut(&selected.asked),
            matched_namespace_count: count(selected.asked.len()).filter(|_| collected),
            effective_namespaces: cut(&selected.allowed),
            effective_namespace_count: count(selected.allowed.len()).filter(|_| collected),
            active_resource_rules: count(rules),
            coverage: coverage.into_iter().map(|line| line.status).collect(),
        }
    }

    fn judge_target(
        &self,
        id: &TargetId,
        resolved: &ResolvedTarget,
        rows: i64,
        (failures, failure): (usize, Option<&str>),
        (selected, coverage): (&SelectedNamespaces, &[Line]),
        conditions: &mut Conditions<'_>,
    ) {
        if let Some(why) = &resolved.tenant_editable {
            conditions.set("TenantEditable", true, Reason::NamespaceNotListed, why.clone());
        }
        if let Some(first) = resolved.faults.first() {
            conditions.degraded(first.reason, told(&resolved.faults), true);
            return;
        }
        if resolved.suspended {
            conditions.degraded(
                Reason::Suspended,
                "spec.suspend is set: nothing is collected, rows stay",
                true,
            );
            return;
        }
        let beyond = self.judge_reach(id, resolved, selected, conditions);
        let sights = self.rows.sights(std::slice::from_ref(id));
        let blind = sentence(coverage, "the target's selection");
        let is_forbidden = |line: &Line| line.status.blind.as_deref() == Some(FORBIDDEN);
        let unseen = if coverage.iter().any(is_forbidden) { Reason::ScopeForbidden } else { Reason::NotSeen };
        if let Some(blind) = &blind {
            conditions.set("Blind", true, unseen, blind.clone());
        }
        let pending = sights.is_empty() || sights.values().any(|sight| *sight == Sight::Pending);
        let undecided = !sights.is_empty() && sights.values().all(|sight| *sight == Sight::Partial);
        let nothing_seen = coverage.iter().all(|line| line.status.blind.is_some());
        let waiting = self.waiting(id, &sights);
        if let Some(waiting) = waiting.as_ref().filter(|_| blind.is_none()) {
            conditions.set("Blind", true, Reason::NotSeen, waiting.clone());
        }
        if pending {
            conditions.progressing(Reason::Listing, "the first list is running");
        } else if let Some(waiting) = waiting.filter(|_| blind.is_none()) {
            conditions.degraded(Reason::InformerRegistrationFailed, waiting, false);
        } else if let Some(why) = beyond {
            conditions.degraded(Reason::BeyondReach, why, true);
        } else if undecided && blind.is_none() && self.namespaces.as_ref().is_some_and(|n| !n.complete) {
            conditions.set("Blind", true, Reason::ScopeForbidden, UNDECIDED);
            conditions.degraded(Reason::ScopeForbidden, UNDECIDED, false);
        } else if let Some(blind) = blind.as_ref().filter(|_| nothing_seen) {
            let forbidden = coverage.iter().all(is_forbidden);
            let reason = if forbidden { Reason::ScopeForbidden } else { Reason::InformerRegistrationFailed };
            conditions.degraded(reason, blind.clone(), false);
        } else if failures > 0 {
            let noun = if failures == 1 { "object cannot" } else { "objects cannot" };
            let why = failure.unwrap_or_default();
            conditions.degraded(Reason::ExtractionFailed, format!("{failures} {noun} be read: {why}"), false);
        } else {
            conditions.ready(Reason::Collecting, format!("collecting {rows} rows"));
            match blind {
                None => {
                    let seen = "everything that is selected has been seen";
                    conditions.set("Synced", true, Reason::Collecting, seen);
                }
                Some(blind) => conditions.set("Synced", false, unseen, blind),
            }
        }
    }

    /// The namespaces that a target asks for.
    fn selected(&self, resolved: &ResolvedTarget) -> SelectedNamespaces {
        let (Some(target), Some(namespaces)) = (&resolved.target, &self.namespaces) else {
            return SelectedNamespaces::default();
        };
        target.selection.namespaces(namespaces)
    }

    /// What an inventory holds and where it has been written.
    pub(crate) fn inventory(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> InventoryStatus {
        let unheard = |sink: &BoundSink| {
            let progress = self.board.of(&binding_name(name, &sink.name));
            let silent = !progress.confirmed
                && progress.failure().is_none()
                && progress.held_back.is_none()
                && progress.held_removals.is_none();
            sink.plan.is_ok() && silent
        };
        let failing = |sink: &BoundSink| {
            sink.plan.is_err() || self.board.of(&binding_name(name, &sink.name)).failure().is_some()
        };
        let waiting = !resolved.suspended
            && resolved.faults.is_empty()
            && resolved.sinks.iter().any(unheard)
            && !resolved.sinks.iter().any(failing);
        let line = |sink: &BoundSink| before.sink_exports.iter().find(|export| export.name == sink.name);
        let stays = |sink: &BoundSink| {
            line(sink).is_some_and(|line| self.is_about(&binding_name(name, &sink.name), line))
        };
        if waiting
            && resolved.sinks.iter().all(stays)
            && stands(metadata, before.observed_generation, &before.conditions)
        {
            return self.with_all_destinations(before, name);
        }
        let same = before.observed_generation == metadata.generation && !resolved.suspended;
        let export = |sink: &BoundSink| {
            // A sink that held the rows is not in doubt because another one fails.
            match line(sink).filter(|line| same && unheard(sink) && stays(sink) && is_synced(line)) {
                Some(line) => self.with_destinations(&binding_name(name, &sink.name), line.clone()),
                None => self.sink_export(metadata, before, name, resolved, sink),
            }
        };
        let mut exports: Vec<SinkExport> = resolved.sinks.iter().map(export).collect();
        let is_named = |export: &&SinkExport| resolved.sinks.iter().any(|sink| sink.name == export.name);
        let left = before.sink_exports.iter().filter(|export| !is_named(export));
        let left: Vec<SinkExport> =
            left.filter_map(|export| self.left_export(metadata, name, export)).collect();
        let mut conditions = Conditions::after(&before.conditions, metadata.generation, self.now);
        self.judge_inventory(name, resolved, &exports, &mut conditions);
        self.judge_removals(name, &exports, &mut conditions);
        self.judge_destinations(name, &exports, &mut conditions);
        Self::judge_take_overs(metadata, resolved, &mut conditions);
        let rows: usize = resolved.targets.iter().map(|target| self.rows.count(target)).sum();
        let synced = exports.iter().all(is_synced) && !exports.is_empty();
        let revision = i64::try_from(self.rows.revision(&resolved.targets)).ok();
        let last_export_time = exports.iter().filter_map(|export| export.last_export_time.clone()).max();
        // As many as the schema allows.
        exports.extend(left);
        exports.truncate(2 * MAX_SINK_REFS);
        InventoryStatus {
            conditions: conditions.done(),
            observed_generation: metadata.generation,
            observed_revision: if synced { revision } else { before.observed_revision },
            item_count: count(rows),
            last_export_time,
            sink_exports: exports,
            take_overs: self.take_overs(&before.take_overs, name, resolved),
        }
    }

    fn judge_inventory(
        &self,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        exports: &[SinkExport],
        conditions: &mut Conditions<'_>,
    ) {
        if let Some(why) = &resolved.tenant_editable {
            conditions.set("TenantEditable", true, Reason::NamespaceNotListed, why.clone());
        }
        if let Some(first) = resolved.faults.first() {
            conditions.degraded(first.reason, told(&resolved.faults), true);
            conditions.set("Synced", false, first.reason, told(&resolved.faults));
            return;
        }
        if resolved.suspended {
            conditions.degraded(
                Reason::Suspended,
                "spec.suspend is set: nothing is written, rows stay",
                true,
            );
            return;
        }
        if let Some(first) = resolved.missing.first() {
            conditions.set("TargetsMissing", true, first.reason, told(&resolved.missing));
        }
        let sights = self.rows.sights(&resolved.targets);
        let blind = kollect_engine::export::coverage(&sights, self.scope);
        let waiting: Vec<String> = resolved
            .targets
            .iter()
            .filter_map(|id| self.waiting(id, &self.rows.sights(std::slice::from_ref(id))))
            .collect();
        if sights.values().any(|sight| *sight == Sight::Pending) {
            // The first list is running.
        } else if blind != "complete" {
            conditions.set("Blind", true, Reason::NotSeen, self.unseen(&sights).unwrap_or(blind));
        } else if !waiting.is_empty() {
            conditions.set("Blind", true, Reason::NotSeen, told(&waiting));
        }
        let faults: Vec<&Fault> =
            resolved.sinks.iter().filter_map(|sink| sink.plan.as_ref().as_ref().err()).flatten().collect();
        if exports.is_empty() {
            conditions.ready(Reason::NoExport, "no sink is referenced");
            conditions.set("Synced", true, Reason::NoExport, "no sink is referenced");
            conditions.set("SinkReachable", true, Reason::NoSinksConfigured, "no sink is referenced");
            return;
        }
        let failed: Vec<String> = exports
            .iter()
            .filter_map(|export| Some(format!("{}: {}", export.name, export.last_error.as_deref()?)))
            .collect();
        let synced = exports.iter().filter(|export| is_synced(export)).count();
        if let Some(first) = faults.first() {
            conditions.set("SinkReachable", false, first.reason, told(&faults));
        } else if failed.is_empty() {
            conditions.set(
                "SinkReachable",
                true,
                Reason::SinksReachable,
                format!("{synced} of {} sinks", exports.len()),
            );
        } else {
            conditions.set("SinkReachable", false, Reason::ExportFailed, failed.join("; "));
        }
        let all = exports.len();
        if synced == all {
            conditions.ready(Reason::Exported, format!("{all} of {all} sinks hold the rows"));
            conditions.set("Synced", true, Reason::Exported, format!("{all} of {all} sinks hold the rows"));
        } else if failed.is_empty() && faults.is_empty() {
            conditions.progressing(Reason::Progressing, format!("{synced} of {all} sinks hold the rows"));
            conditions.set(
                "Synced",
                false,
                Reason::Progressing,
                format!("{synced} of {all} sinks hold the rows"),
            );
        } else if synced > 0 {
            let why =
                failed.iter().cloned().chain(faults.iter().map(ToString::to_string)).collect::<Vec<_>>();
            conditions.ready(Reason::PartiallySynced, format!("{synced} of {all} sinks hold the rows"));
            conditions.set("Synced", false, Reason::PartiallySynced, why.join("; "));
        } else {
            let terminal = self.all_terminal(name, resolved);
            let (reason, message) = match faults.first() {
                Some(first) => (first.reason, told(&faults)),
                None if terminal => (Reason::ExportTerminal, failed.join("; ")),
                None => (Reason::Progressing, failed.join("; ")),
            };
            conditions.degraded(reason, message.clone(), terminal || !faults.is_empty());
            conditions.set("Synced", false, reason, message);
        }
    }

    /// Removals that the guard holds.
    fn judge_removals(&self, name: &InventoryName, exports: &[SinkExport], conditions: &mut Conditions<'_>) {
        let held = exports.iter().filter_map(|export| {
            let held =
                self.board.look(&binding_name(name, &export.name), |p| p.held_removals.clone()).flatten()?;
            Some(format!("{}: {}", export.name, removals_held(&held)))
        });
        let held: Vec<String> = held.collect();
        if !held.is_empty() {
            conditions.set("RemovalsHeld", true, Reason::RemovalsHeld, held.join("; "));
        }
    }

    fn all_terminal(&self, name: &InventoryName, resolved: &ResolvedInventory) -> bool {
        resolved.sinks.iter().all(|sink| {
            let progress = self.board.of(&binding_name(name, &sink.name));
            progress.failure().is_some_and(|failure| failure.class != ErrorClass::Transient)
        })
    }

    fn sink_export(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        sink: &BoundSink,
    ) -> SinkExport {
        let known = before.sink_exports.iter().find(|export| export.name == sink.name);
        let progress = self.board.of(&binding_name(name, &sink.name));
        let no_conditions = Vec::new();
        let before = known.map_or(&no_conditions, |known| &known.conditions);
        let mut conditions = Conditions::after(before, metadata.generation, self.now);
        let mut last_error = None;
        match (&*sink.plan, progress.failure()) {
            (Err(faults), _) => {
                let reason = faults.first().map_or(Reason::SinkNotFound, |fault| fault.reason);
                conditions.set("Synced", false, reason, told(faults));
                last_error = Some(told(faults));
            }
            (Ok(_), Some(failure)) => {
                let reason = if failure.class == ErrorClass::Transient {
                    Reason::ExportFailed
                } else {
                    Reason::ExportTerminal
                };
                conditions.set("Synced", false, reason, failure.message.clone());
                last_error = Some(failure.message.clone());
            }
            (Ok(_), None) if resolved.suspended => {
                conditions.set("Synced", false, Reason::Suspended, "nothing is written");
            }
            (Ok(_), None) if progress.held_removals.is_some() => {
                let held = progress.held_removals.as_ref().map(removals_held).unwrap_or_default();
                conditions.set("Synced", false, Reason::RemovalsHeld, held.clone());
                last_error = Some(held);
            }
            (Ok(_), None) if !progress.refused.is_empty() => {
                conditions.set("Synced", false, Reason::RowsRefused, told(&progress.refused));
                last_error = Some(told(&progress.refused));
            }
            (Ok(_), None) => match (&progress.held_back, progress.last_export) {
                (Some(why), _) => conditions.set("Synced", false, Reason::HeldBack, why.clone()),
                (None, Some(_)) if progress.is_synced() => {
                    conditions.set("Synced", true, Reason::Exported, "the sink holds the rows");
                }
                (None, _) => {
                    conditions.set("Synced", false, Reason::Progressing, "the sink is being compared");
                }
            },
        }
        let digest = || format!("{:032x}", self.rows.digest(&resolved.targets));
        let checksum = if progress.is_synced() {
            progress.checksum.clone().or_else(|| Some(digest()))
        } else {
            known.and_then(|known| known.last_checksum.clone())
        };
        let now = clock::now();
        let since = progress.failure().map(|failure| failure.since);
        let lag = since.and_then(|since| now.duration_since(since).ok());
        let line = SinkExport {
            name: sink.name.clone(),
            namespace: name.namespace.is_none().then(|| sink.key.0.clone()),
            last_export_time: progress.last_export.and_then(time),
            last_checksum: checksum,
            rows: progress.rows,
            selection: self.bindings.acknowledged_selection(&binding_name(name, &sink.name)),
            lag_seconds: lag.and_then(|lag| i64::try_from(rounded(lag.as_secs())).ok()),
            next_attempt_time: progress.failure().and_then(|failure| failure.next_attempt).and_then(time),
            last_error,
            conditions: conditions.done(),
            place: known.and_then(|known| known.place.clone()),
            claiming: known.and_then(|known| known.claiming.clone()),
            left: known.map(|known| known.left.clone()).unwrap_or_default(),
        };
        self.with_destinations(&binding_name(name, &sink.name), line)
    }
}

/// What is said about removals that are held, with what to do.
fn removals_held(held: &HeldRemovals) -> String {
    format!(
        "{} of {} rows would be removed because specs changed, which is more than spec.removalGuard allows, and nothing \
         is written; correct the specs, or let the rows go with the annotation {RELEASE_REMOVALS}: {} on the inventory",
        held.rows, held.held, held.token
    )
}

/// Labels of namespaces decide, and nobody knows them.
const UNDECIDED: &str = "the selection depends on labels of namespaces, which may not be listed: \
                         grant list and watch on namespaces, or name them in spec.includedNamespaces";

/// Whether what an object says is about what it is now. It stands until something else is known, so
/// that a restart changes nothing that has not changed.
pub(crate) fn stands(metadata: &ObjectMeta, observed: Option<i64>, conditions: &[Condition]) -> bool {
    observed == metadata.generation && observed.is_some() && !conditions.is_empty()
}

fn is_synced(export: &SinkExport) -> bool {
    use kollect_model::crd::shapes::ConditionStatus::True;
    export.conditions.iter().any(|condition| condition.type_ == "Synced" && condition.status == True)
}
