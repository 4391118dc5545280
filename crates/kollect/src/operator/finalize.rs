//! Deleted inventories: their sinks are cleaned, and then they may go. That always ends.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{clock, deliver::Deliveries};
use kollect_model::crd::inventory::SinkExport;
use kube::Client;
use tracing::{info, warn};

use super::{
    bindings::{Bindings, Cleaning, binding_name, places},
    progress::Board,
    write::{create_event, record, set_finalizers},
};
use crate::{
    reason::Reason,
    world::{BoundSink, InventoryName},
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

/// A change of the finalizers of an object, and what there is to say about it.
pub(crate) struct Step<'a> {
    kind: &'static str,
    metadata: &'a ObjectMeta,
    /// `None`: they stay.
    finalizers: Option<Vec<String>>,
    /// Places that hold rows which nobody can remove.
    behind: Vec<String>,
}

/// Keeps an inventory from vanishing before its sinks are clean.
pub(crate) fn protect<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<Step<'a>> {
    if is_protected(kind, metadata) {
        return None;
    }
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(ours(kind)?.to_owned());
    Some(Step { kind, metadata, finalizers: Some(finalizers), behind: Vec::new() })
}

/// Whether an inventory cannot vanish before its sinks are clean.
pub(crate) fn is_protected(kind: &str, metadata: &ObjectMeta) -> bool {
    ours(kind).and_then(|finalizer| without(metadata, finalizer)).is_some()
}

/// Lets an object go.
pub(crate) fn release<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<Step<'a>> {
    let finalizers = without(metadata, ours(kind)?)?;
    Some(Step { kind, metadata, finalizers: Some(finalizers), behind: Vec::new() })
}

/// Says that rows of an inventory stay in places that nobody can clean.
pub(crate) fn leave_behind<'a>(
    kind: &'static str,
    metadata: &'a ObjectMeta,
    behind: Vec<String>,
) -> Option<Step<'a>> {
    (!behind.is_empty()).then_some(Step { kind, metadata, finalizers: None, behind })
}

/// Takes the steps, some of them at the same time.
pub(crate) async fn take(client: &Client, steps: Vec<Step<'_>>) {
    stream::iter(steps).for_each_concurrent(AT_ONCE, |step| step.take(client)).await;
}

impl Step<'_> {
    async fn take(self, client: &Client) {
        let Self { kind, metadata, finalizers, behind } = self;
        let ObjectMeta { namespace, name, .. } = metadata;
        if !behind.is_empty() {
            let message = format!(
                "rows were left behind, because sinks could not be cleaned: {}; remove them by hand",
                behind.join(", ")
            );
            warn!(kind, namespace, name, detail = message, "left behind");
            let event = record(kind, metadata, "Warning", Reason::CleanupTerminal.as_str(), &message);
            let namespace = namespace.as_deref().unwrap_or_default();
            if let Err(error) = create_event(client, namespace, event).await {
                info!(%error, "cannot record an event");
            }
        }
        let Some(finalizers) = finalizers else { return };
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
    /// What it has written, and the sinks that did, as they are now.
    pub(crate) written: Vec<(SinkExport, Option<BoundSink>)>,
    /// How long it waits for sinks that cannot be cleaned.
    pub(crate) patience: Duration,
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
        let deleted = self.metadata.deletion_timestamp.as_ref().map_or(clock::timestamp(), |time| time.0);
        let waited = clock::timestamp().as_second() - deleted.as_second();
        let late = waited >= i64::try_from(self.patience.as_secs()).unwrap_or(i64::MAX);
        (!hope || late).then_some(Step { behind, ..step })
    }
}
