//! Deleted inventories: their sinks are cleaned, and then they may go. That always ends.

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kollect_engine::deliver::Deliveries;
use kube::Client;
use tracing::{info, warn};

use super::{
    bindings::{Bindings, binding_name},
    progress::Board,
    write::{create_event, record, set_finalizers},
};
use crate::{
    reason::Reason,
    world::{InventoryName, ResolvedInventory},
};

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

/// A deleted inventory.
pub(crate) struct Deleted<'a> {
    pub(crate) kind: &'static str,
    pub(crate) name: &'a InventoryName,
    pub(crate) metadata: &'a ObjectMeta,
    pub(crate) resolved: &'a ResolvedInventory,
    /// How long it waits for sinks that cannot be cleaned.
    pub(crate) deadline: Duration,
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
        if ours(self.kind).and_then(|finalizer| without(self.metadata, finalizer)).is_none() {
            return;
        }
        let mut left = Vec::new();
        // What never could be written, because its name is another's, is not there.
        let sinks = if self.name.is_reserved() { &[][..] } else { &self.resolved.sinks };
        for sink in sinks {
            let binding = binding_name(self.name, &sink.name);
            if !board.of(&binding).cleaned {
                bindings.clean(self.name, self.metadata, sink, deliveries);
                left.push(binding);
            }
        }
        let deleted = self.metadata.deletion_timestamp.as_ref().map_or(Timestamp::now(), |time| time.0);
        let waited = Timestamp::now().as_second() - deleted.as_second();
        let late = waited >= i64::try_from(self.deadline.as_secs()).unwrap_or(i64::MAX);
        if !left.is_empty() && !late {
            return;
        }
        let behind: Vec<String> = left.iter().map(ToString::to_string).collect();
        if !behind.is_empty() {
            let message =
                format!("rows were left behind, because sinks could not be cleaned: {}", behind.join(", "));
            warn!(kind = self.kind, inventory = %self.name, message, "deleted");
            let event =
                record(self.kind, self.metadata, "Warning", Reason::CleanupTerminal.as_str(), &message);
            let namespace = self.name.namespace.as_deref().unwrap_or_default();
            if let Err(error) = create_event(client, namespace, event).await {
                info!(%error, "cannot record an event");
            }
        }
        release(client, self.kind, self.metadata).await;
    }
}
