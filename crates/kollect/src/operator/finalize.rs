//! Finalizers and annotations. Inventories keep theirs until their destinations are clean, or a timeout.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::clock;
use kube::Client;
use serde_json::json;
use tracing::{info, warn};

use super::status_writer::{create_event, event_json, patch_metadata};
use crate::reason::Reason;

/// Finalizers that this program or the Go implementation has set, by kind.
const FINALIZERS: [(&str, &str); 4] = [
    ("KollectInventory", "kollect.dev/inventory-cleanup"),
    ("KollectClusterInventory", "kollect.dev/cluster-inventory-cleanup"),
    ("KollectTarget", "kollect.dev/target-cleanup"),
    ("KollectClusterTarget", "kollect.dev/cluster-target-cleanup"),
];

/// Limit of objects that are patched concurrently.
const MAX_CONCURRENT: usize = 8;

/// The finalizer of a kind.
fn finalizer_of(kind: &str) -> Option<&'static str> {
    FINALIZERS.iter().find(|(known, _)| *known == kind).map(|(_, finalizer)| *finalizer)
}

fn without_finalizer(metadata: &ObjectMeta, finalizer: &str) -> Option<Vec<String>> {
    let all = metadata.finalizers.as_ref()?;
    all.iter()
        .any(|other| other == finalizer)
        .then(|| all.iter().filter(|other| *other != finalizer).cloned().collect())
}

/// A change of the metadata of an object, and the events to record with it.
pub(crate) struct MetadataChange<'a> {
    kind: &'static str,
    metadata: &'a ObjectMeta,
    /// The new list; `None`: no change.
    finalizers: Option<Vec<String>>,
    /// Destinations that hold rows which cannot be removed.
    left_behind: Vec<String>,
    /// Destinations that are, by their id, another known destination under another name.
    adopted: Vec<String>,
    /// Annotations to set; an empty value removes the annotation.
    annotations: Vec<(&'static str, String)>,
}

impl<'a> MetadataChange<'a> {
    fn new(kind: &'static str, metadata: &'a ObjectMeta) -> Self {
        let (left_behind, adopted, annotations) = (Vec::new(), Vec::new(), Vec::new());
        Self { kind, metadata, finalizers: None, left_behind, adopted, annotations }
    }
}

/// Adds the finalizer that keeps an inventory until its destinations are clean; `None` if it is there already.
pub(crate) fn protect<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<MetadataChange<'a>> {
    if is_protected(kind, metadata) {
        return None;
    }
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(finalizer_of(kind)?.to_owned());
    Some(MetadataChange { finalizers: Some(finalizers), ..MetadataChange::new(kind, metadata) })
}

/// Whether an inventory has the finalizer of [`protect`].
pub(crate) fn is_protected(kind: &str, metadata: &ObjectMeta) -> bool {
    finalizer_of(kind).and_then(|finalizer| without_finalizer(metadata, finalizer)).is_some()
}

/// Removes the finalizer; `None` if the object does not have it.
pub(crate) fn release<'a>(kind: &'static str, metadata: &'a ObjectMeta) -> Option<MetadataChange<'a>> {
    let finalizers = without_finalizer(metadata, finalizer_of(kind)?)?;
    Some(MetadataChange { finalizers: Some(finalizers), ..MetadataChange::new(kind, metadata) })
}

/// Reports that rows of an inventory stay in destinations that the operator cannot clean.
pub(crate) fn report_left_behind<'a>(
    kind: &'static str,
    metadata: &'a ObjectMeta,
    left_behind: Vec<String>,
) -> Option<MetadataChange<'a>> {
    (!left_behind.is_empty()).then_some(MetadataChange { left_behind, ..MetadataChange::new(kind, metadata) })
}

/// Applies the steps, at most [`MAX_CONCURRENT`] concurrently.
pub(crate) async fn apply(client: &Client, steps: Vec<MetadataChange<'_>>) {
    stream::iter(steps).for_each_concurrent(MAX_CONCURRENT, |step| step.apply(client)).await;
}

impl MetadataChange<'_> {
    async fn apply(self, client: &Client) {
        let Self { kind, metadata, finalizers, left_behind, adopted, annotations } = self;
        let ObjectMeta { namespace, name, .. } = metadata;
        if !left_behind.is_empty() {
            let message = format!(
                "sinks could not be cleaned, and may hold rows of this inventory: {}; remove the rows by hand",
                left_behind.join(", ")
            );
            warn!(
                kind,
                namespace,
                name,
                detail = message,
                "rows are left in destinations that cannot be cleaned"
            );
            record_event(client, kind, metadata, "Warning", Reason::CleanupTerminal, &message).await;
        }
        if !adopted.is_empty() {
            let message = format!(
                "{}: by its id that is the destination that holds the rows, under another name, or a copy of it; nothing \
                 was removed there",
                adopted.join(", ")
            );
            record_event(client, kind, metadata, "Normal", Reason::Adopted, &message).await;
        }
        let mut patch = serde_json::Map::new();
        if let Some(finalizers) = finalizers {
            patch.insert("finalizers".into(), json!(finalizers));
        }
        if !annotations.is_empty() {
            let changed = annotations
                .into_iter()
                .map(|(key, value)| (key, Some(value).filter(|value| !value.is_empty())));
            patch.insert("annotations".into(), json!(changed.collect::<BTreeMap<_, _>>()));
        }
        if patch.is_empty() {
            return;
        }
        // After a conflict the watch delivers the newer object, and a later turn tries again.
        if let Err(error) = patch_metadata(client, kind, metadata, patch).await {
            info!(kind, namespace, name, %error, "cannot change the metadata yet");
        }
    }
}

async fn record_event(
    client: &Client,
    kind: &'static str,
    metadata: &ObjectMeta,
    type_: &str,
    reason: Reason,
    message: &str,
) {
    let event = event_json(kind, metadata, type_, reason.as_str(), message);
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if let Err(error) = create_event(client, namespace, event).await {
        info!(%error, "cannot record an event");
    }
}

/// Removes the finalizer of a deleted inventory if no destination is `unclean`, if none of these `can_be_cleaned` any
/// more, or if the deletion has lasted for `timeout`. `unclean` are the destinations that still hold rows.
pub(crate) fn finish<'a>(
    kind: &'static str,
    metadata: &'a ObjectMeta,
    unclean: Vec<String>,
    can_be_cleaned: bool,
    timeout: Duration,
) -> Option<MetadataChange<'a>> {
    let step = release(kind, metadata)?;
    let deleted = metadata.deletion_timestamp.as_ref().map_or(clock::timestamp(), |time| time.0);
    let waited = clock::timestamp().as_second() - deleted.as_second();
    let timed_out = waited >= i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    (unclean.is_empty() || !can_be_cleaned || timed_out)
        .then_some(MetadataChange { left_behind: unclean, ..step })
}

/// Changes annotations whose request has been handled; an empty value removes the annotation.
pub(crate) fn annotate<'a>(
    kind: &'static str,
    metadata: &'a ObjectMeta,
    annotations: Vec<(&'static str, String)>,
) -> Option<MetadataChange<'a>> {
    (!annotations.is_empty()).then_some(MetadataChange { annotations, ..MetadataChange::new(kind, metadata) })
}

/// Reports that destinations are, by their id, another known destination under another name.
pub(crate) fn report_adopted<'a>(
    kind: &'static str,
    metadata: &'a ObjectMeta,
    adopted: Vec<String>,
) -> MetadataChange<'a> {
    MetadataChange { adopted, ..MetadataChange::new(kind, metadata) }
}
