//! Deleted inventories: their sinks are cleaned, and then they may go. That always ends.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kollect_engine::deliver::Deliveries;
use kollect_model::crd::inventory::SinkExport;
use kube::Client;
use tracing::{info, warn};

use super::{
    bindings::{Bindings, Cleaning, binding_name, places},
    progress::Board,
    write::{create_event, record, set_finalizers},
};
use crate::world::{BoundSink, InventoryName};

/// Finalizers that this program or the Go implementation has set, by kind.
const OURS: [(&str, &str); 4] = [
    ("KollectInventory", "kollect.dev/inventory-cleanup"),
    ("KollectClusterInventory", "kollect.dev/cluster-inventory-cleanup"),
    ("KollectTarget", "kollect.dev/target-cleanup"),
    ("KollectClusterTarget", "kollect.dev/cluster-target-cleanup"),
];

/// The finalizer of a kind.
fn ours(kind: &str) -> Option<&'static str> {
    OURS.iter().find(|(own, _)| *own == kind).map(|(_, finalizer)| *finalizer)
}

fn without(metadata: &ObjectMeta, finalizer: &str) -> Option<Vec<String>> {
    let all = metadata.finalizers.as_ref()?;
    all.iter().any(|f| f == finalizer).then(|| all.iter().filter(|f| *f != finalizer).cloned().collect())
}

/// Keeps an inventory from vanishing before its sinks are clean.
pub(crate) async fn protect(client: &Client, kind: &str, metadata: &ObjectMeta) {
    let Some(finalizer) = ours(kind) else { return };
    let mut all = metadata.finalizers.clone().unwrap_or_default();
    if all.iter().any(|f| f == finalizer) {
        return;
    }
    all.push(finalizer.to_owned());
    // A conflict means that the object comes again.
    if let Err(error) = set_finalizers(client, kind, metadata, &all).await {
        info!(kind, name = metadata.name, %error, "cannot set the finalizer yet");
    }
}

/// Lets an object go.
pub(crate) async fn release(client: &Client, kind: &str, metadata: &ObjectMeta) {
    let Some(rest) = ours(kind).and_then(|finalizer| without(metadata, finalizer)) else { return };
    if let Err(error) = set_finalizers(client, kind, metadata, &rest).await {
        info!(kind, name = metadata.name, %error, "cannot remove the finalizer yet");
    }
}

/// Whether an inventory cannot vanish before its sinks are clean.
pub(crate) fn is_protected(kind: &str, metadata: &ObjectMeta) -> bool {
    ours(kind).and_then(|finalizer| without(metadata, finalizer)).is_some()
}

/// A deleted inventory.
pub(crate) struct Deleted<'a> {
    pub(crate) kind: &'static str,
    pub(crate) name: &'a InventoryName,
    pub(crate) metadata: &'a ObjectMeta,
    /// What it has written, and the sinks that did, as they are now.
    pub(crate) written: Vec<(&'a SinkExport, Option<BoundSink>)>,
    /// How long it waits for sinks that cannot be cleaned.
    pub(crate) patience: Duration,
}

impl Deleted<'_> {
    /// Sees to the sinks of the inventory, and lets it go when nothing is left, or nothing can be done.
    pub(crate) async fn finish(
        &self,
        client: &Client,
        bindings: &mut Bindings,
        board: &Board,
        deliveries: &mut Deliveries,
    ) {
        if !is_protected(self.kind, self.metadata) {
            return;
        }
        let (mut behind, mut hope) = (Vec::new(), false);
        for (export, sink) in &self.written {
            let binding = binding_name(self.name, &export.name);
            for place in places(export, sink.as_ref()) {
                if board.is_done_with(&binding, &place) {
                    continue;
                }
                let cleaning = sink.as_ref().map_or(Cleaning::Impossible, |sink| {
                    bindings.clean(self.name, self.metadata, sink, &place, false, deliveries)
                });
                hope |= cleaning != Cleaning::Impossible;
                behind.push(format!("{} at {place}", export.name));
            }
        }
        let deleted = self.metadata.deletion_timestamp.as_ref().map_or(Timestamp::now(), |time| time.0);
        let waited = Timestamp::now().as_second() - deleted.as_second();
        let late = waited >= i64::try_from(self.patience.as_secs()).unwrap_or(i64::MAX);
        if hope && !late {
            return;
        }
        if !behind.is_empty() {
            warn_left_behind(client, self.kind, self.metadata, &behind).await;
        }
        release(client, self.kind, self.metadata).await;
    }
}

/// Records that rows of an inventory stay in places that nobody can clean.
pub(crate) async fn warn_left_behind(client: &Client, kind: &str, metadata: &ObjectMeta, behind: &[String]) {
    let message = format!(
        "rows were left behind, because sinks could not be cleaned: {}; remove them by hand",
        behind.join(", ")
    );
    let (namespace, name) = (metadata.namespace.as_deref().unwrap_or_default(), &metadata.name);
    warn!(kind, namespace, name, message, "left behind");
    let event = record(kind, metadata, "Warning", "CleanupTerminal", &message);
    if let Err(error) = create_event(client, namespace, event).await {
        info!(%error, "cannot record an event");
    }
}
