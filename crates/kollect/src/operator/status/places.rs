//! Where the rows of an inventory are, and where they have been and may still be.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_model::crd::inventory::{ExportPlace, InventoryStatus, SinkExport};

use super::View;
use crate::{
    operator::{bindings::binding_name, conditions::Conditions},
    reason::Reason,
    world::{BoundSink, InventoryName, ResolvedInventory},
};

/// As many as the schema allows.
const MAX_LEFT: usize = 20;

impl View<'_> {
    /// What was said of all sinks stands.
    pub(super) fn with_places(
        &self,
        before: &InventoryStatus,
        name: &InventoryName,
        resolved: &ResolvedInventory,
    ) -> InventoryStatus {
        let mut status = before.clone();
        for export in &mut status.sink_exports {
            if let Some(sink) = resolved.sinks.iter().find(|sink| sink.name == export.name) {
                *export = self.with_place(export, name, sink);
            }
        }
        status
    }

    /// What was said of a sink stands, but nothing is written to a place before it is told.
    pub(super) fn with_place(
        &self,
        before: &SinkExport,
        name: &InventoryName,
        sink: &BoundSink,
    ) -> SinkExport {
        let (place, left) = self.places(name, sink, Some(before));
        SinkExport { place, left, ..before.clone() }
    }

    /// Where the rows of a sink are, and where they have been and may still be.
    pub(super) fn places(
        &self,
        name: &InventoryName,
        sink: &BoundSink,
        known: Option<&SinkExport>,
    ) -> (Option<ExportPlace>, Vec<ExportPlace>) {
        let before = known.and_then(|known| known.place.clone());
        let place = sink.place.clone().or_else(|| before.clone());
        let binding = binding_name(name, &sink.name);
        let mut left: Vec<ExportPlace> =
            known.into_iter().flat_map(|known| known.left.clone()).chain(before).collect();
        left.retain(|old| Some(old) != place.as_ref() && !self.board.is_done_with(&binding, old));
        left.dedup();
        let oldest = left.len().saturating_sub(MAX_LEFT);
        (place, left.split_off(oldest))
    }

    /// A sink that is no longer named, and still holds rows.
    pub(super) fn left_export(&self, metadata: &ObjectMeta, export: &SinkExport) -> SinkExport {
        let mut conditions = Conditions::after(&export.conditions, metadata.generation, self.now);
        conditions.set(
            "Synced",
            false,
            Reason::Cleaning,
            "the sink is no longer named; its rows are being removed",
        );
        SinkExport { conditions: conditions.done(), ..export.clone() }
    }

    /// Rows in places where no sink leads any more are for people to remove.
    pub(super) fn judge_places(
        &self,
        name: &InventoryName,
        exports: &[SinkExport],
        conditions: &mut Conditions<'_>,
    ) {
        let mut behind = Vec::new();
        for export in exports {
            let lost = self.board.of(&binding_name(name, &export.name)).lost;
            behind.extend(lost.iter().map(|place| format!("{} at {place}", export.name)));
        }
        if !behind.is_empty() {
            let message = format!(
                "rows were left behind: {}; the sinks lead to other servers now. Unless that is the same server \
                 under another name, remove the rows by hand; then the lines from status.sinkExports[].left",
                behind.join(", ")
            );
            conditions.set("LeftBehind", true, Reason::CleanupTerminal, message);
        }
    }
}
