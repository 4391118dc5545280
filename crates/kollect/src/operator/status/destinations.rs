//! Where the rows of an inventory are, in its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_model::{
    binding::BindingName,
    crd::inventory::{InventoryStatus, MAX_TAKE_OVERS, SinkExport, TakeOverRecord},
};

use super::View;
use crate::{
    operator::{
        bindings::binding_name,
        conditions::Conditions,
        destinations::Destinations,
        take_over::{self, Requests},
    },
    reason::Reason,
    world::{InventoryName, ResolvedInventory},
};

impl View<'_> {
    /// The line of a sink with its destinations as they shall be told. Where nothing else is known, as for an inventory
    /// that cannot be resolved, the destinations that the line names already stay.
    pub(super) fn with_destinations(&self, binding: &BindingName, line: SinkExport) -> SinkExport {
        match self.board.look(binding, |progress| progress.line.clone()).flatten() {
            Some(Destinations { held: place, claiming, left }) => {
                SinkExport { place, claiming, left, ..line }
            }
            None => line,
        }
    }

    /// Whether what was said about a sink is about the destination that it leads to.
    pub(super) fn is_about(&self, binding: &BindingName, line: &SinkExport) -> bool {
        let same = |told: &Destinations| match (&told.held, &line.place) {
            (Some(held), Some(place)) => held.is_at(place) && told.claiming.is_none(),
            _ => false,
        };
        self.board.look(binding, |progress| progress.line.as_ref().is_some_and(same)).unwrap_or(false)
    }

    /// What was said of all sinks stands.
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
    pub(super) fn left_export(
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
            .board
            .look(&binding_name(name, &export.name), |progress| progress.clean_error.clone())
            .flatten();
        let SinkExport { name, namespace, place, claiming, left, .. } = line;
        let conditions = conditions.done();
        // What it has acknowledged was about the place that is being cleaned.
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

    /// Rows in destinations where no sink leads any more are for people to remove.
    pub(super) fn judge_destinations(
        &self,
        name: &InventoryName,
        exports: &[SinkExport],
        conditions: &mut Conditions<'_>,
    ) {
        let mut behind = Vec::new();
        for export in exports {
            let lost = self.board.look(&binding_name(name, &export.name), |progress| progress.lost.clone());
            let lost = lost.unwrap_or_default();
            behind.extend(lost.iter().map(|place| format!("{} at {place}", export.name)));
        }
        if !behind.is_empty() {
            let message = format!(
                "rows were left behind: {}; the sinks lead to other servers now. Remove the rows by hand; then the \
                 lines from status.sinkExports[].left",
                behind.join(", ")
            );
            conditions.set("LeftBehind", true, Reason::CleanupTerminal, message);
        }
    }

    /// Requests for take-overs that name no sink.
    pub(super) fn judge_take_overs(
        metadata: &ObjectMeta,
        resolved: &ResolvedInventory,
        conditions: &mut Conditions<'_>,
    ) {
        let requests = Requests::of(metadata, resolved.sinks.iter().map(|sink| &sink.name));
        if !requests.problems.is_empty() {
            conditions.set("TakeOver", false, Reason::TakeOverInvalid, requests.problems.join("; "));
        }
    }

    /// The take-overs that were done, the latest at the end.
    pub(super) fn take_overs(
        &self,
        before: &[TakeOverRecord],
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> Vec<TakeOverRecord> {
        let mut all = before.to_vec();
        for sink in &resolved.sinks {
            let binding = binding_name(name, &sink.name);
            let claim =
                self.board.look(&binding, |progress| progress.destinations.claim().cloned()).flatten();
            all.extend(claim.and_then(|claim| take_over::record(&sink.name, &claim, before)));
        }
        let oldest = all.len().saturating_sub(MAX_TAKE_OVERS);
        all.split_off(oldest)
    }
}
