//! The destinations and take-overs in the status of an inventory.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_model::{
    binding::BindingName,
    crd::inventory::{InventoryStatus, MAX_TAKE_OVERS, SinkExport, TakeOverRecord},
};

use super::StatusInputs;
use crate::{
    operator::{
        bindings::binding_name,
        conditions::Conditions,
        destinations::Destinations,
        take_over::{self, TakeOverRequests},
    },
    reason::Reason,
    resolve::{InventoryName, ResolvedInventory},
};

impl StatusInputs<'_> {
    /// The line of a sink with its new destinations. If none are known, as for an inventory that cannot be resolved,
    /// the destinations in the line stay.
    pub(super) fn with_destinations(&self, binding: &BindingName, line: SinkExport) -> SinkExport {
        match self.binding_states.read(binding, |state| state.status_line.clone()).flatten() {
            Some(Destinations { held, claiming, left }) => SinkExport { place: held, claiming, left, ..line },
            None => line,
        }
    }

    /// Whether a line of the status is about the destination that the sink leads to.
    pub(super) fn is_about(&self, binding: &BindingName, line: &SinkExport) -> bool {
        let is_same = |known: &Destinations| match (&known.held, &line.place) {
            (Some(held), Some(in_line)) => held.is_at(in_line) && known.claiming.is_none(),
            _ => false,
        };
        self.binding_states
            .read(binding, |state| state.status_line.as_ref().is_some_and(is_same))
            .unwrap_or(false)
    }

    /// The previous status with the new destinations of all sinks.
    pub(super) fn with_all_destinations(
        &self,
        before: &InventoryStatus,
        name: &InventoryName,
    ) -> InventoryStatus {
        let mut status = before.clone();
        let lines = status.sink_exports.into_iter();
        let lines = lines.map(|line| self.with_destinations(&binding_name(name, &line.name), line));
        status.sink_exports = lines.collect();
        status
    }

    /// The line of a sink that is no longer named; `None` if nothing is left of it.
    pub(super) fn abandoned_export(
        &self,
        metadata: &ObjectMeta,
        name: &InventoryName,
        export: &SinkExport,
    ) -> Option<SinkExport> {
        let line = self.with_destinations(&binding_name(name, &export.name), export.clone());
        if line.place.is_none() && line.claiming.is_none() && line.left.is_empty() {
            return None;
        }
        let mut conditions = Conditions::after(&export.conditions, metadata.generation, self.now);
        conditions.set(
            "Synced",
            false,
            Reason::Cleaning,
            "the sink is no longer named; its rows are being removed",
        );
        let clean_error = self
            .binding_states
            .read(&binding_name(name, &export.name), |state| state.clean_error.clone())
            .flatten();
        let SinkExport { name, namespace, place, claiming, left, .. } = line;
        let conditions = conditions.done();
        // Acknowledgements are left out: they are about the destination that is being cleaned.
        Some(SinkExport {
            name,
            namespace,
            place,
            claiming,
            left,
            clean_error,
            conditions,
            ..SinkExport::default()
        })
    }

    /// Sets LeftBehind for destinations with rows where no sink leads any more: a user must remove the rows.
    pub(super) fn set_left_behind(
        &self,
        name: &InventoryName,
        exports: &[SinkExport],
        conditions: &mut Conditions<'_>,
    ) {
        let mut left_behind = Vec::new();
        for export in exports {
            let lost =
                self.binding_states.read(&binding_name(name, &export.name), |state| state.lost.clone());
            let lost = lost.unwrap_or_default();
            left_behind.extend(lost.iter().map(|destination| format!("{} at {destination}", export.name)));
        }
        if !left_behind.is_empty() {
            let message = format!(
                "rows were left behind: {}; the sinks lead to other servers now. Remove the rows by hand; then the \
                 lines from status.sinkExports[].left",
                left_behind.join(", ")
            );
            conditions.set("LeftBehind", true, Reason::CleanupTerminal, message);
        }
    }

    /// Sets TakeOver to False if requests name no sink of the inventory.
    pub(super) fn set_take_over(
        metadata: &ObjectMeta,
        resolved: &ResolvedInventory,
        conditions: &mut Conditions<'_>,
    ) {
        let requests = TakeOverRequests::of(metadata, resolved.sinks.iter().map(|sink| &sink.name));
        if !requests.problems.is_empty() {
            conditions.set("TakeOver", false, Reason::TakeOverInvalid, requests.problems.join("; "));
        }
    }

    /// All recorded take-overs, the latest at the end.
    pub(super) fn take_overs(
        &self,
        before: &[TakeOverRecord],
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> Vec<TakeOverRecord> {
        let mut records = before.to_vec();
        for sink in &resolved.sinks {
            let binding = binding_name(name, &sink.name);
            let claim =
                self.binding_states.read(&binding, |state| state.destinations.claim().cloned()).flatten();
            records.extend(claim.and_then(|claim| take_over::record(&sink.name, &claim, before)));
        }
        let oldest = records.len().saturating_sub(MAX_TAKE_OVERS);
        records.split_off(oldest)
    }
}
