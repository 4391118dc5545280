//! Computes the statuses of objects: one pure function per kind.
//!
//! Ready is False whenever Degraded is True. A condition that is not set is removed. Statuses report what sinks have
//! acknowledged; a time changes only together with the value that it describes.

mod blind;
mod destinations;
mod exported;
mod inventory;
mod nulls;
mod reach;
mod selection;

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kollect_engine::{
    clock,
    coverage::Coverage,
    export::KeptRows,
    select::{Namespaces, SelectedNamespaces},
    store::{StoreReader, Visibility},
};
use kollect_model::{
    SpecError,
    crd::{
        profile::{KollectProfileSpec, ProfileStatus},
        shapes::Condition,
        target::TargetStatus,
    },
    row::TargetId,
};
use tokio::time::Instant;

use super::{
    binding_states::BindingStates,
    bindings::{Bindings, binding_name},
    conditions::Conditions,
    objects::{ObjectCache, requested_at},
    profile_warnings::{FoundWarnings, ProfileWarnings},
    reconcile::ObjectLinks,
};
use crate::{
    reason::Reason,
    resolve::{ObjectName, OperatorPolicy, Resolved, ResolvedTarget},
};
use blind::{CoverageLine, cut, sentence};

/// The input of the status functions, besides the objects.
pub(crate) struct StatusInputs<'a> {
    pub(crate) cache: &'a ObjectCache,
    pub(crate) resolved: &'a Resolved,
    pub(crate) links: &'a ObjectLinks,
    pub(crate) rows: &'a StoreReader,
    pub(crate) coverage: &'a Coverage,
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    pub(crate) binding_states: &'a BindingStates,
    pub(crate) bindings: &'a Bindings,
    pub(crate) profile_warnings: &'a ProfileWarnings,
    pub(crate) operator_policy: &'a OperatorPolicy,
    /// The namespaces that the operator watches, or everything.
    pub(crate) watched: &'a Visibility,
    /// Since when this process has led.
    pub(crate) led_since: Instant,
    pub(crate) now: Timestamp,
    /// When the current object must be checked again because time passes.
    pub(crate) due: Cell<Option<Instant>>,
}

fn time(at: SystemTime) -> Option<Time> {
    let at = Timestamp::try_from(at).ok()?;
    // Whole seconds, as the API server stores them.
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

/// The time of the wall clock at an instant.
fn wall_clock(at: Instant) -> Option<Time> {
    let (now, clock) = (Instant::now(), clock::now());
    time(if at < now { clock - (now - at) } else { clock + (at - now) })
}

fn count<T: TryFrom<usize>>(number: usize) -> Option<T> {
    number.try_into().ok()
}

/// The text of faults: the first in full, the others counted.
fn first_fault<F: ToString>(faults: &[F]) -> String {
    let first = faults.first().map(ToString::to_string).unwrap_or_default();
    match faults.len() {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

/// What comes before the warning in the message of a profile.
const WARNING: &str = "; warning: ";

/// The warning in the message of the same generation: it stays while the profile is checked again after a start.
fn warning_before(before: &[Condition], generation: Option<i64>) -> String {
    let ready = before.iter().find(|condition| condition.type_ == "Ready");
    let ready = ready.filter(|condition| condition.observed_generation == generation);
    let warning = ready.and_then(|condition| condition.message.split_once(WARNING));
    warning.map_or_else(String::new, |(_, warning)| format!("{WARNING}{warning}"))
}

/// A number with its noun.
fn counted(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

impl StatusInputs<'_> {
    /// Schedules another check of the current object, if that time has not passed.
    fn check_again_at(&self, at: Instant) {
        if at <= Instant::now() {
            return;
        }
        self.due.set(Some(self.due.get().map_or(at, |due| due.min(at))));
    }

    /// Whether that much time has passed since something began; if not, the object is checked again when it has.
    fn has_passed(&self, since: Instant, time: Duration) -> bool {
        let over = Instant::now() >= since + time;
        if !over {
            self.check_again_at(since + time);
        }
        over
    }

    /// The same for a time of the wall clock.
    fn has_passed_since(&self, since: SystemTime, time: Duration) -> bool {
        let passed = clock::now().duration_since(since).unwrap_or_default();
        let remaining = time.saturating_sub(passed);
        self.check_again_at(Instant::now() + remaining);
        remaining.is_zero()
    }

    /// Whether a profile compiles, how many targets use it, and whether sinks hold its rows.
    pub(crate) fn profile(
        &self,
        name: &ObjectName,
        spec: &KollectProfileSpec,
        metadata: &ObjectMeta,
        before: &[Condition],
        errors: Option<&[SpecError]>,
    ) -> ProfileStatus {
        let mut conditions = Conditions::after(before, metadata.generation, self.now);
        match errors {
            None => {
                let users = self.links.targets_of(name).len();
                let noun = if users == 1 { "target uses" } else { "targets use" };
                let warned = match self.profile_warnings.of(name, spec) {
                    FoundWarnings::Known(warnings) if !warnings.is_empty() => {
                        format!("{WARNING}{}", first_fault(&warnings))
                    }
                    FoundWarnings::Known(_) | FoundWarnings::Unknown => String::new(),
                    FoundWarnings::Pending(time) => {
                        self.check_again_at(Instant::now() + time);
                        warning_before(before, metadata.generation)
                    }
                };
                conditions
                    .ready(Reason::Compiled, format!("all expressions compile; {users} {noun} it{warned}"));
            }
            Some(errors) => conditions.degraded(Reason::InvalidSpec, first_fault(errors), true),
        }
        self.set_profile_exported(name, metadata, before, errors, &mut conditions);
        ProfileStatus { conditions: conditions.done(), observed_generation: metadata.generation }
    }

    /// The status of a target.
    pub(crate) fn target(
        &self,
        metadata: &ObjectMeta,
        before: &TargetStatus,
        id: &TargetId,
        resolved: &ResolvedTarget,
        resource_rules: usize,
    ) -> TargetStatus {
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        let listing = visibilities.is_empty()
            || visibilities.values().any(|visibility| *visibility == Visibility::Pending);
        let collected = resolved.target.is_some();
        if collected && listing && is_current_status(metadata, before.observed_generation, &before.conditions)
        {
            return self.with_target_export(metadata, before, id);
        }
        let mut conditions = Conditions::after(&before.conditions, metadata.generation, self.now);
        let rows: Option<i64> = count(self.rows.count(id));
        let (failures, failure) = self.rows.failures(id);
        let (nulls, redactions) = (self.rows.nulls(id), self.rows.redactions(id));
        let selected = self.selected(resolved);
        let coverage = self.coverage_of(resolved, &selected.allowed);
        self.set_target_conditions(
            id,
            resolved,
            rows.unwrap_or(0),
            (failures, failure.as_deref()),
            (&selected, &coverage),
            &mut conditions,
        );
        nulls::set_attributes_null(&nulls, &mut conditions);
        self.set_target_exported(metadata, &before.conditions, id, &mut conditions);
        let count_changed = before.collected_count != rows;
        let definition = resolved.target.as_ref().map(|target| target.definition());
        let was_read = definition.is_none_or(|definition| self.rows.has_read(id, definition));
        TargetStatus {
            conditions: conditions.done(),
            observed_generation: metadata.generation,
            extraction_failures: count(failures + self.rows.mismatched(id)),
            last_extraction_error: failure.or_else(|| nulls::first_mismatch(&nulls)),
            null_attributes: nulls::lines(&nulls),
            redactions: nulls::redactions(&redactions),
            last_handled_requested_at: if was_read {
                requested_at(metadata)
            } else {
                before.last_handled_requested_at.clone()
            },
            collected_count: rows,
            collected_count_updated_at: if count_changed {
                Timestamp::from_second(self.now.as_second()).ok().map(Time)
            } else {
                before.collected_count_updated_at.clone()
            },
            matched_namespaces: cut(&selected.requested),
            matched_namespace_count: count(selected.requested.len()).filter(|_| collected),
            effective_namespaces: cut(&selected.allowed),
            effective_namespace_count: count(selected.allowed.len()).filter(|_| collected),
            active_resource_rules: count(resource_rules),
            coverage: coverage.into_iter().map(|line| line.status).collect(),
        }
    }

    fn set_target_conditions(
        &self,
        id: &TargetId,
        resolved: &ResolvedTarget,
        rows: i64,
        (failures, failure): (usize, Option<&str>),
        (selected, coverage): (&SelectedNamespaces, &[CoverageLine]),
        conditions: &mut Conditions<'_>,
    ) {
        if let Some(why) = &resolved.tenant_editable {
            conditions.set("TenantEditable", true, Reason::NamespaceNotListed, why.clone());
        }
        if let Some(first) = resolved.faults.first() {
            conditions.degraded(first.reason, first_fault(&resolved.faults), true);
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
        let beyond = self.set_scope_clipped(id, resolved, selected, conditions);
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        let blind = sentence(coverage, "the target's selection");
        let unseen = if coverage.iter().any(CoverageLine::is_forbidden) {
            Reason::ScopeForbidden
        } else {
            Reason::NotSeen
        };
        if let Some(blind) = &blind {
            conditions.set("Blind", true, unseen, blind.clone());
        }
        let pending = visibilities.is_empty()
            || visibilities.values().any(|visibility| *visibility == Visibility::Pending);
        let undecided = !visibilities.is_empty()
            && visibilities.values().all(|visibility| *visibility == Visibility::Partial);
        let waiting = self.waiting(id, &visibilities);
        if let Some(waiting) = waiting.as_ref().filter(|_| blind.is_none()) {
            conditions.set("Blind", true, Reason::NotSeen, waiting.clone());
        }
        let undecided_objects = self.set_match_undecided(id, conditions);
        let unmatched = if pending { None } else { self.unmatched(id, resolved, selected, rows) };
        if let Some(unmatched) = &unmatched {
            conditions.set("Unmatched", true, unmatched.reason, unmatched.message.clone());
        }
        if pending {
            conditions.progressing(Reason::Listing, "the first list is running");
        } else if waiting.is_some() && blind.is_none() {
            let message = conditions.because("rows of another kind stay", "Blind");
            conditions.degraded(Reason::InformerRegistrationFailed, message, false);
        } else if beyond {
            let message = conditions.because("everything is beyond its reach", "ScopeClipped");
            conditions.degraded(Reason::BeyondReach, message, true);
        } else if undecided
            && blind.is_none()
            && self.namespaces.as_ref().is_some_and(|namespaces| !namespaces.complete)
        {
            conditions.set("Blind", true, Reason::ScopeForbidden, UNDECIDED);
            let message = conditions.because("nothing can be seen", "Blind");
            conditions.degraded(Reason::ScopeForbidden, message, false);
        } else if blind.is_some() && nothing_seen(coverage) {
            let forbidden = coverage.iter().all(CoverageLine::is_forbidden);
            let reason = if forbidden { Reason::ScopeForbidden } else { Reason::InformerRegistrationFailed };
            let message = conditions.because("nothing can be seen", "Blind");
            conditions.degraded(reason, message, false);
        } else if let Some(unmatched) = unmatched.as_ref().filter(|unmatched| unmatched.is_all) {
            let message = conditions.because("nothing can be selected", "Unmatched");
            conditions.degraded(unmatched.reason, message, false);
        } else if failures > 0 {
            let objects = counted(failures, "object has", "objects have");
            let why = failure.unwrap_or_default();
            let message = format!("{objects} no row, because a required attribute failed: {why}");
            conditions.degraded(Reason::ExtractionFailed, message, false);
        } else {
            let rows = counted(usize::try_from(rows).unwrap_or(0), "row", "rows");
            conditions.ready(Reason::Collecting, format!("collecting {rows}"));
            match (blind, undecided_objects) {
                (None, 0) => {
                    let seen = "everything that is selected has been seen";
                    conditions.set("Synced", true, Reason::Collecting, seen);
                }
                (None, _) => {
                    conditions.set("Synced", false, Reason::RedactedValue, "see condition MatchUndecided");
                }
                (Some(_), _) => conditions.set("Synced", false, unseen, "see condition Blind"),
            }
        }
    }

    /// Sets MatchUndecided for objects of which it is not known whether they are selected. Returns their number.
    fn set_match_undecided(&self, id: &TargetId, conditions: &mut Conditions<'_>) -> usize {
        let (number, names) = self.rows.undecided(id);
        if number > 0 {
            let objects = counted(number, "object is", "objects are");
            let more = if number > names.len() { ", …" } else { "" };
            let message = format!(
                "whether {objects} selected depends on redacted values ({}{more}): their rows stay as they were; let matchPolicy \
                 read other fields, or take the name out with the operator's --scrub-allow-keys",
                names.join(", ")
            );
            conditions.set("MatchUndecided", true, Reason::RedactedValue, message);
        }
        number
    }

    /// The namespaces that a target selects.
    fn selected(&self, resolved: &ResolvedTarget) -> SelectedNamespaces {
        let (Some(target), Some(namespaces)) = (&resolved.target, &self.namespaces) else {
            return SelectedNamespaces::default();
        };
        target.selection.namespaces(namespaces)
    }

    /// Rows of a target that sinks keep although their objects are not collected, in the sink that has most of them.
    fn kept(&self, id: &TargetId) -> KeptRows {
        let mut most = KeptRows::default();
        for name in self.links.inventories_of(id) {
            let Some(inventory) = self.resolved.inventories.get(name) else { continue };
            for sink in &inventory.sinks {
                let kept = self.binding_states.read(&binding_name(name, &sink.name), |state| {
                    state.kept(id).filter(|kept| size(kept) > size(&most)).cloned()
                });
                if let Some(kept) = kept.flatten() {
                    most = kept;
                }
            }
        }
        most
    }
}

fn size(kept: &KeptRows) -> usize {
    kept.beyond + kept.waiting
}

/// Whether nothing of what a target selects can be seen.
fn nothing_seen(coverage: &[CoverageLine]) -> bool {
    coverage.iter().all(|line| line.status.blind.is_some())
}

/// The selection depends on labels of namespaces, which the operator may not list.
const UNDECIDED: &str = "the selection depends on labels of namespaces, which may not be listed: \
                         grant list and watch on namespaces, or name them in spec.includedNamespaces";

/// Whether a status is of the current generation. It stays until this process knows more, so that a restart alone
/// changes no status.
pub(crate) fn is_current_status(
    metadata: &ObjectMeta,
    observed: Option<i64>,
    conditions: &[Condition],
) -> bool {
    observed == metadata.generation && observed.is_some() && !conditions.is_empty()
}
