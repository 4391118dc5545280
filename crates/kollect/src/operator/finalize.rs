//! Deleted inventories: their sinks are cleaned, and then they may go. That always ends.

use std::time::Duration;

use futures::{StreamExt, stream};
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

/// Objects that are changed at the same time.
const AT_ONCE: usize = 8;

/// The finalizer of a kind.
fn ours(kind: &str) -> Option<&'static str> {
    OURS.iter().find(|(own, _)| *own == kind).map(|(_, finalizer)| *finalizer)
}

fn without(metadata: &ObjectMeta, finalizer: &str) -> Option<Vec<String>> {
    let all = metadata.finalizers.as_ref()?;
    all.iter().any(|f| f == finalizer).then(|| all.iter().filter(|f| *f != finalizer).cloned().collect())
}

/// An object whose finalizers are to change.
pub(crate) struct Step<'a> {
    kind: &'static str,
    metadata: &'a ObjectMeta,
    finalizers: Vec<String>,
    /// What its going leaves behind.
    behind: Option<String>,
}

/// Keeps an inventory from vanishing before its sinks are clean.
pub(crate) fn protect<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<Step<'a>> {
    let finalizer = ours(kind)?;
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|f| f == finalizer) {
        return None;
    }
    finalizers.push(finalizer.to_owned());
    Some(Step { kind, metadata, finalizers, behind: None })
}

/// Lets an object go.
pub(crate) fn release<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<Step<'a>> {
    let finalizers = without(metadata, ours(kind)?)?;
    Some(Step { kind, metadata, finalizers, behind: None })
}

/// Takes the steps, some of them at the same time.
pub(crate) async fn take(client: &Client, steps: Vec<Step<'_>>) {
    stream::iter(steps).for_each_concurrent(AT_ONCE, |step| step.take(client)).await;
}

impl Step<'_> {
    async fn take(self, client: &Client) {
        let Self { kind, metadata, finalizers, behind } = self;
        let ObjectMeta { namespace, name, .. } = metadata;
        if let Some(message) = behind {
            warn!(kind, namespace, name, message, "deleted");
            let event = record(kind, metadata, "Warning", Reason::CleanupTerminal.as_str(), &message);
            let namespace = namespace.as_deref().unwrap_or_default();
            if let Err(error) = create_event(client, namespace, event).await {
                info!(%error, "cannot record an event");
            }
        }
        // A conflict means that the object comes again.
        if let Err(error) = set_finalizers(client, kind, metadata, &finalizers).await {
            info!(kind, namespace, name, %error, "cannot change the finalizers yet");
        }
    }
}

/// A deleted inventory.
pub(crate) struct Deleted<'a> {
    pub(crate) kind: &'static str,
    pub(crate) name: &'a InventoryName,
    pub(crate) metadata: &'a ObjectMeta,
    pub(crate) resolved: &'a ResolvedInventory,
    /// How long it waits for sinks that cannot be cleaned.
    pub(crate) timeout: Duration,
}

impl<'a> Deleted<'a> {
    /// Sees to the sinks of the inventory. It may go when nothing is left, or nothing can be done.
    pub(crate) fn finish(
        &self,
        bindings: &mut Bindings,
        board: &Board,
        deliveries: &mut Deliveries,
    ) -> Option<Step<'a>> {
        let step = release(self.kind, self.metadata)?;
        let mut left = Vec::new();
        // What never could be written, because its name is another's, is not there.
        let sinks = if self.name.is_reserved() { &[][..] } else { &self.resolved.sinks };
        for sink in sinks {
            let binding = binding_name(self.name, &sink.name);
            if !board.of(&binding).cleaned {
                bindings.clean(self.name, self.metadata, sink, deliveries);
                left.push(binding.to_string());
            }
        }
        if left.is_empty() {
            return Some(step);
        }
        let deleted = self.metadata.deletion_timestamp.as_ref().map_or(Timestamp::now(), |time| time.0);
        let waited = Timestamp::now().as_second() - deleted.as_second();
        let late = waited >= i64::try_from(self.timeout.as_secs()).unwrap_or(i64::MAX);
        let behind =
            format!("rows were left behind, because sinks could not be cleaned: {}", left.join(", "));
        late.then_some(Step { behind: Some(behind), ..step })
    }
}
