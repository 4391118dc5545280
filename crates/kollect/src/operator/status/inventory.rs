//! The status of an inventory: what each sink has acknowledged, what waits and why, and a summary of all sinks.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    clock,
    export::{Acknowledged, Activity, BlockedRemovals, LATE, LateReason, NamespaceRows, ProgressSnapshot},
    store::Visibility,
};
use kollect_model::{
    binding::BindingName,
    crd::{
        inventory::{InventoryStatus, MAX_SINK_REFS, NamespaceShard, PendingRows, SinkExport},
        shapes::ConditionStatus,
    },
    row::TargetId,
    sink::ErrorClass,
};
use tokio::time::Instant;

use super::{StatusInputs, count, counted, first_fault, is_current_status, nothing_seen, time, wall_clock};
use crate::{
    operator::{
        binding_states::{BindingFailure, BindingState},
        bindings::{RELEASE_REMOVALS, binding_name},
        conditions::{Conditions, SEE_READY},
        objects::requested_at,
    },
    reason::Reason,
    resolve::{BoundSink, InventoryName, ObjectFault, ResolvedInventory},
};

/// An inventory with a sink that has failed for this long is not Ready.
const LONG_FAILURE: Duration = Duration::from_mins(1);
/// Rows that wait for less than this are not worth a write of the status.
const MIN_REPORTED_WAIT: Duration = Duration::from_secs(1);

/// The state of a sink of an inventory.
pub(super) enum SinkState {
    /// It holds the rows, and nothing newer has waited for too long.
    Synced,
    /// It does not hold the rows yet, and nothing failed.
    Busy(Reason, String),
    /// Nothing will be written until a user changes something.
    Stopped(Reason, String),
    /// The last attempt failed, and trying again may help.
    Failing(BindingFailure),
}

impl SinkState {
    fn reason(&self) -> Reason {
        match self {
            Self::Synced => Reason::Exported,
            Self::Busy(reason, _) | Self::Stopped(reason, _) => *reason,
            Self::Failing(_) => Reason::ExportFailed,
        }
    }

    fn message(&self) -> &str {
        match self {
            Self::Synced => "the sink holds the rows",
            Self::Busy(_, message) | Self::Stopped(_, message) => message,
            Self::Failing(failure) => &failure.message,
        }
    }

    /// The message of a sink that failed or is stopped.
    fn error(&self) -> Option<&str> {
        match self {
            Self::Stopped(_, message) => Some(message),
            Self::Failing(failure) => Some(&failure.message),
            Self::Synced | Self::Busy(..) => None,
        }
    }
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

/// The next number that [`rounded`] yields.
fn next_rounded(seconds: u64) -> u64 {
    let mut unit = 10;
    loop {
        if let Some(step) = [unit, 2 * unit, 5 * unit].into_iter().find(|step| *step > seconds) {
            return step;
        }
        unit *= 10;
    }
}

/// What [`kollect_engine::export::coverage`] says, as a part of a message.
fn cannot_be_seen(coverage: &str) -> String {
    let blind = coverage.strip_prefix("blind: ").unwrap_or(coverage).replace(" but in ", " outside of ");
    format!("some objects cannot be seen: {blind}")
}

/// Message of an inventory whose targets are all blind.
const NOTHING_SEEN: &str = "nothing of it can be seen";

impl StatusInputs<'_> {
    /// The status of an inventory.
    pub(crate) fn inventory(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> InventoryStatus {
        if self.nothing_is_known(metadata, before, name, resolved) {
            return self.with_all_destinations(before, name);
        }
        let states: Vec<SinkState> = resolved
            .sinks
            .iter()
            .map(|sink| self.sink_state(metadata, before, name, resolved, sink))
            .collect();
        let lines = resolved.sinks.iter().zip(&states);
        let mut exports: Vec<SinkExport> =
            lines.map(|(sink, state)| self.sink_export(metadata, before, name, sink, state)).collect();
        let is_named = |export: &&SinkExport| resolved.sinks.iter().any(|sink| sink.name == export.name);
        let abandoned = before.sink_exports.iter().filter(|export| !is_named(export));
        let abandoned: Vec<SinkExport> =
            abandoned.filter_map(|export| self.abandoned_export(metadata, name, export)).collect();
        let mut conditions = Conditions::after(&before.conditions, metadata.generation, self.now);
        self.set_inventory_conditions(name, resolved, &states, &mut conditions);
        self.set_removals_held(name, resolved, &mut conditions);
        self.set_left_behind(name, &exports, &mut conditions);
        Self::set_take_over(metadata, resolved, &mut conditions);
        self.set_inventory_exported(metadata, &before.conditions, name, resolved, &mut conditions);
        let oldest = exports.iter().min_by_key(|export| export.revision);
        let (revision, rows) = oldest.map_or((None, None), |export| (export.revision, export.rows));
        let rows = match oldest {
            Some(_) => rows.and_then(|rows| rows.try_into().ok()),
            None => count(resolved.targets.iter().map(|target| self.rows.count(target)).sum()),
        };
        let last_export_time = exports.iter().filter_map(|export| export.last_export_time.clone()).max();
        let was_tried = resolved.sinks.iter().all(|sink| self.was_tried(metadata, name, sink));
        // Limit of the CRD schema.
        exports.extend(abandoned);
        exports.truncate(2 * MAX_SINK_REFS);
        InventoryStatus {
            conditions: conditions.done(),
            observed_generation: metadata.generation,
            observed_revision: revision,
            item_count: rows,
            last_export_time,
            last_handled_requested_at: if was_tried || resolved.suspended || !resolved.faults.is_empty() {
                requested_at(metadata)
            } else {
                before.last_handled_requested_at.clone()
            },
            sink_exports: exports,
            take_overs: self.take_overs(&before.take_overs, name, resolved),
        }
    }

    /// Whether the last request to compare a sink has been handled, successfully or not.
    fn was_tried(&self, metadata: &ObjectMeta, name: &InventoryName, sink: &BoundSink) -> bool {
        let requested = requested_at(metadata);
        let was_tried = |binding_state: &BindingState| binding_state.has_handled(requested.as_ref());
        sink.plan.is_err()
            || self.binding_states.read(&binding_name(name, &sink.name), was_tried).unwrap_or(false)
    }

    /// Whether this process has just begun to lead, knows nothing about the sinks of an inventory yet, and the
    /// inventory has not been edited: then its status stays.
    fn nothing_is_known(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> bool {
        let is_unknown = |sink: &BoundSink| {
            let binding = binding_name(name, &sink.name);
            let line = before.sink_exports.iter().find(|export| export.name == sink.name);
            sink.plan.is_ok()
                && line.is_some_and(|line| self.is_about(&binding, line))
                && self.binding_states.read(&binding, has_reported_nothing).unwrap_or(true)
        };
        !resolved.suspended
            && resolved.faults.is_empty()
            && !resolved.sinks.is_empty()
            && resolved.sinks.iter().all(is_unknown)
            && is_current_status(metadata, before.observed_generation, &before.conditions)
            && !self.has_passed(self.led_since, LATE)
    }

    /// The state of a sink.
    pub(super) fn sink_state(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        sink: &BoundSink,
    ) -> SinkState {
        let binding = binding_name(name, &sink.name);
        let binding_state = self.binding_states.of(&binding);
        if let Err(faults) = &*sink.plan {
            let reason = faults.first().map_or(Reason::SinkNotFound, |fault| fault.reason);
            return SinkState::Stopped(reason, first_fault(faults));
        }
        if let Some(failure) = binding_state.failure() {
            return match failure.class {
                ErrorClass::Transient => SinkState::Failing(failure.clone()),
                ErrorClass::Terminal | ErrorClass::Forbidden => {
                    SinkState::Stopped(Reason::ExportTerminal, failure.message.clone())
                }
            };
        }
        if resolved.suspended {
            return SinkState::Busy(Reason::Suspended, "nothing is written".to_owned());
        }
        if let Some(fault) = resolved.faults.first() {
            return SinkState::Busy(fault.reason, "nothing is written: see condition Ready".to_owned());
        }
        if let Some(held) = &binding_state.held_removals {
            return SinkState::Stopped(Reason::RemovalsHeld, removals_held(held));
        }
        if let Some(why) = &binding_state.held_back {
            let message = format!("the sink takes whole snapshots only, and {}", cannot_be_seen(why));
            return SinkState::Busy(Reason::HeldBack, message);
        }
        let progress = binding_state.progress_snapshot();
        if let Some(busy) =
            self.sink_is_busy(metadata, before, resolved, (&binding, sink), &binding_state, &progress)
        {
            return busy;
        }
        let refused = progress.acknowledged.as_ref().map_or(0, |acknowledged| acknowledged.refused);
        if refused > 0 || !binding_state.refused.is_empty() {
            return SinkState::Stopped(Reason::RowsRefused, first_fault(&binding_state.refused));
        }
        SinkState::Synced
    }

    /// What is still to be done before a sink holds the rows.
    fn sink_is_busy(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        resolved: &ResolvedInventory,
        (binding, sink): (&BindingName, &BoundSink),
        binding_state: &BindingState,
        progress: &ProgressSnapshot,
    ) -> Option<SinkState> {
        let busy = |reason, message: &str| Some(SinkState::Busy(reason, message.to_owned()));
        // A sink that held the rows stays Synced while another sink fails, or while everything is listed again.
        let line = before.sink_exports.iter().find(|export| export.name == sink.name);
        let status_stays = has_reported_nothing(binding_state)
            && line.is_some_and(|line| is_synced(line) && self.is_about(binding, line))
            && is_current_status(metadata, before.observed_generation, &before.conditions)
            && !self.has_passed(self.led_since, LATE);
        if status_stays {
            return None;
        }
        if matches!(&*sink.plan, Ok(None)) && binding_state.wanted().is_none() {
            return busy(Reason::Progressing, "its Secrets are being looked up");
        }
        let cadence = binding_state.wanted().map(|wanted| wanted.cadence).unwrap_or_default();
        if let Some(listing) = self.listing(&resolved.targets, cadence) {
            return Some(SinkState::Busy(Reason::Listing, listing));
        }
        let acknowledged = progress.acknowledged.as_ref().filter(|_| progress.is_known);
        let Some((acknowledged, wanted)) = acknowledged.zip(binding_state.wanted()) else {
            return busy(Reason::Comparing, "what the sink holds is being read");
        };
        if !binding_state.is_held() {
            return busy(Reason::Progressing, "the destination is being claimed");
        }
        let is_edited = acknowledged.generation != metadata.generation.unwrap_or(0);
        let is_outdated = acknowledged.version != wanted.number || binding_state.newer_since().is_some();
        let since = binding_state.newer_since().unwrap_or(wanted.since);
        if is_outdated && (is_edited || self.has_passed(since, wanted.cadence + LATE)) {
            return busy(Reason::Comparing, "what the sink holds is being compared with changed specs");
        }
        if let Some((_, since)) = progress.doing {
            self.check_again_at(since + LATE);
        }
        if let Some(pending) = progress.pending {
            self.check_again_at(pending.since + wanted.cadence + LATE);
        }
        match progress.late(wanted.cadence, Instant::now())? {
            LateReason::Doing(Activity::Writing) => {
                busy(Reason::Writing, "a write has taken longer than 10 s")
            }
            LateReason::Doing(Activity::Comparing) => {
                busy(Reason::Comparing, "reading what the sink holds takes long")
            }
            LateReason::Pending => {
                busy(Reason::Pending, "changed rows have waited for longer than minChangeInterval and 10 s")
            }
        }
    }

    /// The targets whose first list is running, or a later one for longer than changes may wait.
    fn listing(&self, targets: &[TargetId], cadence: Duration) -> Option<String> {
        let is_listing = |id: &&TargetId| {
            let listing = self.rows.listing(id);
            listing.is_some_and(|listing| listing.is_first || self.has_passed(listing.since, cadence + LATE))
        };
        let listing: Vec<&TargetId> = targets.iter().filter(is_listing).collect();
        let first = listing.first()?;
        let more = listing.len() - 1;
        let others =
            if more == 0 { String::new() } else { format!(" and {}", counted(more, "other", "others")) };
        Some(format!("objects of target {first}{others} are being listed"))
    }

    fn set_inventory_conditions(
        &self,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        states: &[SinkState],
        conditions: &mut Conditions<'_>,
    ) {
        if let Some(why) = &resolved.tenant_editable {
            conditions.set("TenantEditable", true, Reason::NamespaceNotListed, why.clone());
        }
        if let Some(first) = resolved.faults.first() {
            conditions.degraded(first.reason, first_fault(&resolved.faults), true);
            synced(conditions, false, first.reason, SEE_READY);
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
            conditions.set("TargetsMissing", true, first.reason, first_fault(&resolved.missing));
        }
        let is_blind = self.set_blind(resolved, conditions);
        if states.is_empty() {
            if is_blind {
                let message = conditions.because(NOTHING_SEEN, "Blind");
                conditions.degraded(Reason::NotSeen, message, false);
            } else {
                conditions.ready(Reason::NoExport, "no sink is referenced");
            }
            synced(conditions, true, Reason::NoExport, "no sink is referenced");
            conditions.set("SinkReachable", true, Reason::NoSinksConfigured, "no sink is referenced");
            return;
        }
        self.set_sink_reachable(name, resolved, states, conditions);
        self.set_synced(resolved, states, is_blind, conditions);
    }

    /// Sets Blind for what cannot be seen. Returns whether nothing can be seen.
    fn set_blind(&self, resolved: &ResolvedInventory, conditions: &mut Conditions<'_>) -> bool {
        let visibilities = self.rows.visibilities(&resolved.targets);
        let blind = kollect_engine::export::coverage(&visibilities, self.watched, 0);
        let undecided: usize = resolved.targets.iter().map(|id| self.rows.undecided(id).0).sum();
        let waiting: Vec<String> = resolved
            .targets
            .iter()
            .filter_map(|id| self.waiting(id, &self.rows.visibilities(std::slice::from_ref(id))))
            .collect();
        if visibilities.values().any(|visibility| *visibility == Visibility::Pending) {
            // The first list is running.
            return false;
        }
        if blind != "complete" {
            conditions.set(
                "Blind",
                true,
                Reason::NotSeen,
                self.unseen(resolved, &visibilities)
                    .or_else(|| self.not_collected(resolved))
                    .unwrap_or_else(|| cannot_be_seen(&blind)),
            );
        } else if !waiting.is_empty() {
            conditions.set("Blind", true, Reason::NotSeen, first_fault(&waiting));
        } else if undecided > 0 {
            let objects = counted(undecided, "object is", "objects are");
            let message = format!(
                "whether {objects} selected depends on redacted values: see condition MatchUndecided of the targets"
            );
            conditions.set("Blind", true, Reason::RedactedValue, message);
        }
        !resolved.targets.is_empty() && resolved.targets.iter().all(|id| self.is_unseen(id))
    }

    /// The targets whose rows stay because they are suspended, or their specs are wrong.
    fn not_collected(&self, resolved: &ResolvedInventory) -> Option<String> {
        let targets = resolved.targets.iter().filter_map(|id| Some((id, self.resolved.targets.get(id)?)));
        let why = targets.filter_map(|(id, target)| match target.faults.first() {
            _ if target.suspended => Some(format!("target {id} is suspended")),
            Some(fault) => Some(format!(
                "target {id} collects nothing ({}): see its condition Ready",
                fault.reason.as_str()
            )),
            None => None,
        });
        let why: Vec<String> = why.collect();
        (!why.is_empty()).then(|| first_fault(&why))
    }

    /// Whether nothing of what a target selects can be seen.
    fn is_unseen(&self, id: &TargetId) -> bool {
        let Some(resolved) = self.resolved.targets.get(id) else { return true };
        if resolved.target.is_none() {
            return !resolved.denied;
        }
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        let coverage = self.coverage_of(resolved, &self.selected(resolved).allowed);
        visibilities.values().all(|visibility| *visibility == Visibility::Partial)
            || !coverage.is_empty() && nothing_seen(&coverage)
    }

    /// Whether sinks could be reached when that was last tried.
    fn set_sink_reachable(
        &self,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        states: &[SinkState],
        conditions: &mut Conditions<'_>,
    ) {
        let faults: Vec<&ObjectFault> =
            resolved.sinks.iter().filter_map(|sink| sink.plan.as_ref().as_ref().err()).flatten().collect();
        let is_failing = |state: &SinkState| {
            matches!(state, SinkState::Failing(_) | SinkState::Stopped(Reason::ExportTerminal, _))
        };
        let all = || resolved.sinks.iter().zip(states);
        let failing: Vec<String> = all()
            .filter(|(sink, state)| is_failing(state) || sink.plan.is_err())
            .map(|(sink, _)| sink_and_field(sink))
            .collect();
        let is_tried = |sink: &&BoundSink| {
            self.binding_states
                .read(&binding_name(name, &sink.name), BindingState::has_been_tried)
                .unwrap_or(false)
        };
        let tried = resolved.sinks.iter().filter(is_tried).count();
        if !failing.is_empty() {
            let reason = faults.first().map_or(Reason::ExportFailed, |fault| fault.reason);
            let message = format!("the last attempt failed: {}: see condition Synced", failing.join(", "));
            conditions.set("SinkReachable", false, reason, message);
        } else if tried == 0 {
            conditions.unknown("SinkReachable", Reason::NotAttempted, "no sink has been tried yet");
        } else {
            let message = format!("{tried} of {} could be reached", counted(states.len(), "sink", "sinks"));
            conditions.set("SinkReachable", true, Reason::SinksReachable, message);
        }
    }

    fn set_synced(
        &self,
        resolved: &ResolvedInventory,
        states: &[SinkState],
        is_blind: bool,
        conditions: &mut Conditions<'_>,
    ) {
        let all = states.len();
        let synced_count = states.iter().filter(|state| matches!(state, SinkState::Synced)).count();
        let sinks_hold = format!("{synced_count} of {} the rows", counted(all, "sink holds", "sinks hold"));
        if synced_count == all {
            synced(conditions, true, Reason::Exported, &sinks_hold);
            if is_blind {
                let begin = format!("{sinks_hold} as they were; {NOTHING_SEEN}");
                let message = conditions.because(&begin, "Blind");
                conditions.degraded(Reason::NotSeen, message, false);
            } else if resolved.targets.is_empty() {
                let message =
                    format!("{sinks_hold}; no target is selected: create one, or correct spec.targetRefs");
                conditions.ready(Reason::Exported, message);
            } else {
                conditions.ready(Reason::Exported, sinks_hold);
            }
            return;
        }
        let lacking =
            resolved.sinks.iter().zip(states).filter(|(_, state)| !matches!(state, SinkState::Synced));
        let details: Vec<String> = lacking
            .clone()
            .map(|(sink, state)| {
                let message = state.message();
                // A wrong reference names its field itself.
                if message.starts_with(&sink.field) {
                    return format!("{}: {message}", sink.name);
                }
                format!("{}: {message}", sink_and_field(sink))
            })
            .collect();
        let lacking: Vec<&SinkState> = lacking.map(|(_, state)| state).collect();
        let for_long = |state: &&&SinkState| match state {
            SinkState::Failing(failure) => self.has_passed_since(failure.since, LONG_FAILURE),
            _ => false,
        };
        let stopped = lacking.iter().find(|state| matches!(state, SinkState::Stopped(..)));
        let failing = lacking.iter().find(|state| matches!(state, SinkState::Failing(_)));
        let failed_for_long = lacking.iter().find(for_long);
        // Condition Synced has the details of all.
        let summary = match &details[..] {
            [only] => format!("{sinks_hold}; {only}"),
            [first, others @ ..] => {
                format!("{sinks_hold}; {first}; {} more: see condition Synced", others.len())
            }
            [] => sinks_hold,
        };
        if synced_count == 0 && lacking.iter().all(|state| state.error().is_some()) {
            let terminal = failing.is_none();
            let reason = stopped.filter(|_| terminal).map_or(Reason::Progressing, |state| state.reason());
            conditions.degraded(reason, summary, terminal);
            synced(conditions, false, reason, &details.join("; "));
        } else if stopped.is_some() || failed_for_long.is_some() {
            conditions.degraded(Reason::PartiallySynced, summary, stopped.is_some());
            synced(conditions, false, Reason::PartiallySynced, &details.join("; "));
        } else if synced_count > 0 && lacking.iter().all(|state| matches!(state, SinkState::Failing(_))) {
            if is_blind {
                let message = conditions.because(&format!("{summary}; {NOTHING_SEEN}"), "Blind");
                conditions.degraded(Reason::NotSeen, message, false);
            } else {
                conditions.ready(Reason::PartiallySynced, summary);
            }
            synced(conditions, false, Reason::PartiallySynced, &details.join("; "));
        } else {
            let busy = lacking.iter().find(|state| matches!(state, SinkState::Busy(..)));
            let reason = busy.map_or(Reason::Progressing, |state| state.reason());
            conditions.progressing(reason, summary);
            synced(conditions, false, reason, &details.join("; "));
        }
    }

    /// Sets RemovalsHeld for removals that the guard holds.
    fn set_removals_held(
        &self,
        name: &InventoryName,
        resolved: &ResolvedInventory,
        conditions: &mut Conditions<'_>,
    ) {
        let held = resolved.sinks.iter().filter_map(|sink| {
            let binding = binding_name(name, &sink.name);
            let held = self
                .binding_states
                .read(&binding, |binding_state| binding_state.held_removals.clone())
                .flatten()?;
            Some(format!("{}: {}", sink_and_field(sink), removals_held(&held)))
        });
        let held: Vec<String> = held.collect();
        if !held.is_empty() {
            conditions.set("RemovalsHeld", true, Reason::RemovalsHeld, held.join("; "));
        }
    }

    fn sink_export(
        &self,
        metadata: &ObjectMeta,
        before: &InventoryStatus,
        name: &InventoryName,
        sink: &BoundSink,
        state: &SinkState,
    ) -> SinkExport {
        let binding = binding_name(name, &sink.name);
        let known = before.sink_exports.iter().find(|export| export.name == sink.name);
        let binding_state = self.binding_states.of(&binding);
        let progress = binding_state.progress_snapshot();
        let no_conditions = Vec::new();
        let before = known.map_or(&no_conditions, |known| &known.conditions);
        let mut conditions = Conditions::after(before, metadata.generation, self.now);
        let message = match state.error() {
            Some(_) => "see lastError",
            None => state.message(),
        };
        conditions.set("Synced", matches!(state, SinkState::Synced), state.reason(), message);
        // Acknowledgements to an earlier process stay until this process has compared the sink.
        let known_here =
            known.filter(|known| binding_state.status_line.is_none() || self.is_about(&binding, known));
        let line = SinkExport {
            name: sink.name.clone(),
            namespace: name.namespace.is_none().then(|| sink.key.0.clone()),
            clean_error: binding_state.clean_error.clone(),
            selection: self.bindings.acknowledged_selection(&binding),
            pending: self.pending(&progress),
            lag_seconds: self.lag(&binding_state),
            next_attempt_time: binding_state
                .failure()
                .and_then(|failure| failure.next_attempt)
                .and_then(time),
            last_error: state.error().map(ToOwned::to_owned),
            conditions: conditions.done(),
            place: known.and_then(|known| known.place.clone()),
            claiming: known.and_then(|known| known.claiming.clone()),
            left: known.map(|known| known.left.clone()).unwrap_or_default(),
            // An acknowledgement is reported only together with its destination.
            ..acknowledged_line(
                progress.acknowledged.as_ref().filter(|_| binding_state.is_held()),
                known_here,
            )
        };
        self.with_destinations(&binding, line)
    }

    /// The rows that wait, if they have waited long enough to be reported.
    fn pending(&self, progress: &ProgressSnapshot) -> Option<PendingRows> {
        let pending = progress.pending?;
        let waits = pending.next_write.is_some_and(|at| at > Instant::now() + MIN_REPORTED_WAIT);
        if !waits && !self.has_passed(pending.since, MIN_REPORTED_WAIT) {
            return None;
        }
        Some(PendingRows {
            rows: pending.rows.try_into().unwrap_or(i64::MAX),
            since: wall_clock(pending.since),
            next_write_time: pending.next_write.and_then(wall_clock),
        })
    }

    /// For how long the sink has lacked rows that it should have.
    fn lag(&self, binding_state: &BindingState) -> Option<i64> {
        let seconds = binding_state.lag(clock::now())?.as_secs();
        self.check_again_at(Instant::now() + Duration::from_secs(next_rounded(seconds) - seconds));
        i64::try_from(rounded(seconds)).ok()
    }

    /// The rows of a cluster inventory by namespace, as the sink with the smallest revision holds them; `None`: that is
    /// not known.
    pub(crate) fn shards(
        &self,
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> Option<Vec<NamespaceShard>> {
        if resolved.sinks.is_empty() {
            return Some(Vec::new());
        }
        let acknowledged = |sink: &BoundSink| {
            let binding: BindingName = binding_name(name, &sink.name);
            self.binding_states.read(&binding, |binding_state| {
                let revision = binding_state.progress_snapshot().acknowledged?.revision;
                Some((revision, binding_state.progress().clone()))
            })?
        };
        let all: Option<Vec<_>> = resolved.sinks.iter().map(acknowledged).collect();
        let (_, progress) = all?.into_iter().min_by_key(|(revision, _)| *revision)?;
        let shard = |(namespace, rows): (std::sync::Arc<str>, NamespaceRows)| NamespaceShard {
            namespace: namespace.to_string(),
            item_count: count(rows.rows),
            target_count: count(rows.targets.len()),
            checksum: Some(format!("{:032x}", rows.digest)),
        };
        Some(progress.namespaces().into_iter().map(shard).collect())
    }
}

/// A sink with the field that names it.
fn sink_and_field(sink: &BoundSink) -> String {
    format!("{} ({})", sink.name, sink.field)
}

/// Sets `Synced`, and `ExportSucceeded`, which the Go implementation documents.
fn synced(conditions: &mut Conditions<'_>, holds: bool, reason: Reason, message: &str) {
    conditions.set("Synced", holds, reason, message);
    conditions.set("ExportSucceeded", holds, reason, "another name of condition Synced");
}

/// Whether a binding has reported nothing yet.
fn has_reported_nothing(binding_state: &BindingState) -> bool {
    let progress = binding_state.progress_snapshot();
    !progress.is_known
        && binding_state.failure().is_none()
        && binding_state.held_back.is_none()
        && binding_state.held_removals.is_none()
}

/// The part of a line that a sink has acknowledged, to this process or to an earlier one.
fn acknowledged_line(acknowledged: Option<&Acknowledged>, before: Option<&SinkExport>) -> SinkExport {
    let Some(acknowledged) = acknowledged else {
        let Some(SinkExport { last_export_time, last_checksum, rows, .. }) = before else {
            return SinkExport::default();
        };
        // Revisions of different processes cannot be compared.
        return SinkExport {
            last_export_time: last_export_time.clone(),
            last_checksum: last_checksum.clone(),
            rows: *rows,
            ..SinkExport::default()
        };
    };
    let checksum = acknowledged.checksum.clone().unwrap_or_else(|| format!("{:032x}", acknowledged.digest));
    // With the same checksum these are the rows that an earlier process wrote.
    let is_same = |before: &&SinkExport| before.last_checksum.as_ref() == Some(&checksum);
    let written = before.filter(|_| acknowledged.is_found).filter(is_same);
    SinkExport {
        last_export_time: written
            .and_then(|before| before.last_export_time.clone())
            .or_else(|| time(acknowledged.at)),
        revision: i64::try_from(acknowledged.revision).ok(),
        rows: count(acknowledged.rows),
        last_checksum: Some(checksum),
        ..SinkExport::default()
    }
}

/// The message about held removals, with the possible actions.
fn removals_held(held: &BlockedRemovals) -> String {
    format!(
        "{} of {} rows would be removed because specs changed, which is more than spec.removalGuard allows, and nothing \
         is written; correct the specs, or let the rows go with the annotation {RELEASE_REMOVALS}: {} on the inventory",
        held.rows, held.held, held.token
    )
}

/// Whether the sink of a line holds the rows according to the status.
pub(super) fn is_synced(export: &SinkExport) -> bool {
    let holds = |status: ConditionStatus| status == ConditionStatus::True;
    export.conditions.iter().any(|condition| condition.type_ == "Synced" && holds(condition.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_and_the_next_step_is_known() {
        for (seconds, now, next) in [
            (0, 0, 10),
            (9, 0, 10),
            (10, 10, 20),
            (19, 10, 20),
            (49, 20, 50),
            (50, 50, 100),
            (123, 100, 200),
            (999, 500, 1000),
        ] {
            assert_eq!((rounded(seconds), next_rounded(seconds)), (now, next), "{seconds}");
        }
    }
}
