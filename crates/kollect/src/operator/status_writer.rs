//! The only writer of statuses. It writes differences only: changed conditions at once, counts at a limited rate.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kollect_model::{
    crd::{
        GROUP, VERSION,
        shapes::{Condition, ConditionStatus},
    },
    sink::ErrorClass,
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    conditions::{is_problem, recoveries, transitions},
    metrics::Meter,
    objects::ObjectKey,
};
use crate::{
    error_chain::{LastProblem, chain_text},
    reason::Reason,
    resolve::ObjectName,
};

/// The average interval between writes of one object that change counts only.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Writes of one object that may exceed the rate after a quiet period.
const BURST: u32 = 4;
/// Limit of concurrent writes.
const MAX_CONCURRENT: usize = 8;

/// The desired status of an object.
pub(crate) struct DesiredStatus {
    pub(crate) kind: &'static str,
    pub(crate) name: ObjectName,
    /// `None`: the status is as desired.
    pub(crate) change: Option<StatusChange>,
}

impl DesiredStatus {
    /// Compares the current status with the desired one; `None` if the object is being deleted.
    pub(crate) fn new<S: Serialize + PartialEq>(
        kind: &'static str,
        name: &ObjectName,
        metadata: &ObjectMeta,
        before: &S,
        after: &S,
    ) -> Option<Self> {
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        // Serialize only if the values differ. The serialized form decides.
        let serialized = (before != after).then(|| (json!(before), json!(after)));
        let change =
            serialized.filter(|(before, after)| before != after).map(|(before, after)| StatusChange {
                metadata: metadata.clone(),
                conditions_before: conditions(&before),
                conditions_after: conditions(&after),
                after,
                at_once: false,
            });
        Some(Self { kind, name: name.clone(), change })
    }

    /// Writes the change at once, regardless of the rate.
    pub(crate) fn at_once(mut self) -> Self {
        self.change.iter_mut().for_each(|change| change.at_once = true);
        self
    }
}

fn conditions(status: &Value) -> Vec<Condition> {
    status.get("conditions").and_then(|conditions| Vec::deserialize(conditions).ok()).unwrap_or_default()
}

/// A change of a status.
pub(crate) struct StatusChange {
    pub(crate) metadata: ObjectMeta,
    /// The desired status.
    pub(crate) after: Value,
    pub(crate) conditions_before: Vec<Condition>,
    pub(crate) conditions_after: Vec<Condition>,
    /// The change is written regardless of the rate.
    pub(crate) at_once: bool,
}

/// Writes statuses.
pub(crate) struct StatusWriter {
    client: Client,
    meter: Meter,
    /// Statuses that could not be written, not counting conflicts with other changes of the object.
    failures: u64,
    /// For each object the time at which its next write keeps the rate: every write moves it by [`WRITE_INTERVAL`].
    next_writes: BTreeMap<ObjectKey, Instant>,
    /// Why the last write of an object failed; each cause is logged once.
    failed: BTreeMap<ObjectKey, LastProblem>,
}

/// The API resource of a Kollect kind.
pub(crate) fn resource(kind: &str) -> ApiResource {
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind);
    let plural = format!("{}s", kind.to_lowercase()).replace("inventorys", "inventories");
    ApiResource::from_gvk_with_plural(&gvk, &plural)
}

/// The API of a Kollect kind in a namespace; an empty namespace is the cluster.
pub(crate) fn api(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = resource(kind);
    match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

impl StatusWriter {
    pub(crate) fn new(client: Client, meter: Meter) -> Self {
        Self { client, meter, failures: 0, next_writes: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Forgets objects for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&ObjectKey) -> bool) {
        self.next_writes.retain(|key, _| keep(key));
        self.failed.retain(|key, _| keep(key));
    }

    /// How many statuses could not be written so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Writes the changes that may be written now. Returns when the others are due.
    pub(crate) async fn write(&mut self, desired: Vec<DesiredStatus>) -> Vec<(ObjectKey, Instant)> {
        let now = Instant::now();
        let (mut due, mut ready) = (Vec::new(), Vec::new());
        for DesiredStatus { kind, name, change } in desired {
            let Some(change) = change else { continue };
            let changed = change.at_once
                || !transitions(&change.conditions_before, &change.conditions_after).is_empty()
                || change.conditions_before.len() != change.conditions_after.len();
            let key = (kind, name);
            match self.next_writes.get(&key) {
                Some(next_write) if *next_write > now + WRITE_INTERVAL * BURST && !changed => {
                    due.push((key, *next_write - WRITE_INTERVAL * BURST));
                }
                _ => ready.push((key, change)),
            }
        }
        let client = self.client.clone();
        let outcomes: Vec<(ObjectKey, WriteResult)> = stream::iter(ready)
            .map(|((kind, name), change)| {
                let client = client.clone();
                async move {
                    let written = replace_status(&client, kind, &name, &change).await;
                    ((kind, name), written)
                }
            })
            .buffer_unordered(MAX_CONCURRENT)
            .collect()
            .await;
        for (key, written) in outcomes {
            if let WriteResult::Failed { class, error } = &written {
                self.failures += 1;
                self.meter.count_failure(key.0, *class);
                if self.failed.entry(key.clone()).or_default().replace(error) {
                    let (kind, (namespace, name)) = &key;
                    warn!(kind, namespace, name, error, "cannot write a status; trying again");
                }
            }
            if matches!(written, WriteResult::Written) {
                self.failed.remove(&key);
                let next_write = self.next_writes.entry(key).or_insert(now);
                *next_write = (*next_write).max(now) + WRITE_INTERVAL;
            } else {
                due.push((key, now + Duration::from_secs(1)));
            }
        }
        due
    }
}

/// How a write ended.
enum WriteResult {
    Written,
    /// The object has changed since it was seen.
    Outdated,
    Failed {
        class: ErrorClass,
        error: String,
    },
}

/// Replaces a status. If the object has changed meanwhile nothing is written, and a later turn tries again.
async fn replace_status(
    client: &Client,
    kind: &'static str,
    key: &ObjectName,
    change: &StatusChange,
) -> WriteResult {
    let ((namespace, name), StatusChange { metadata, after, .. }) = (key, change);
    let mut object = DynamicObject::new(name, &resource(kind));
    object.metadata.namespace = metadata.namespace.clone();
    object.metadata.resource_version = metadata.resource_version.clone();
    object.metadata.uid = metadata.uid.clone();
    object.data = json!({ "status": after });
    match api(client, kind, namespace).replace_status(name, &PostParams::default(), &object).await {
        Ok(_) => {
            record_condition_changes(client, kind, key, change).await;
            WriteResult::Written
        }
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
            debug!(kind, namespace, name, "the object has changed; its status is made again");
            WriteResult::Outdated
        }
        Err(error) => {
            let forbidden = matches!(&error, kube::Error::Api(status) if status.code == 403);
            let class = if forbidden { ErrorClass::Forbidden } else { ErrorClass::Transient };
            WriteResult::Failed { class, error: chain_text(&error) }
        }
    }
}

/// Logs changed conditions and records events about them; a changed message alone is not reported.
async fn record_condition_changes(
    client: &Client,
    kind: &'static str,
    (namespace, name): &ObjectName,
    change: &StatusChange,
) {
    let StatusChange { metadata, conditions_before, conditions_after, .. } = change;
    for condition in transitions(conditions_before, conditions_after) {
        let Condition { type_, status, reason, message, .. } = condition;
        info!(kind, namespace, name, condition = type_, status = ?status, reason, detail = message, "condition changed");
    }
    for (type_, reason, message) in condition_events(conditions_before, conditions_after) {
        let event = event_json(kind, metadata, type_, &reason, &message);
        // Events are best effort.
        if let Err(error) = create_event(client, namespace, event).await {
            debug!(kind, namespace, name, %error, "cannot record an event");
        }
    }
}

/// Type, reason and message of the events about changed conditions.
fn condition_events(before: &[Condition], after: &[Condition]) -> Vec<(&'static str, String, String)> {
    let mut events = Vec::new();
    let changed = transitions(before, after);
    let has_own_condition =
        |reason: &String| changed.iter().any(|other| is_problem(&other.type_) && other.reason == *reason);
    for condition in &changed {
        let Condition { type_, status, reason, message, .. } = condition;
        let ready = after.iter().find(|condition| condition.type_ == "Ready");
        let (type_, message) = match type_.as_str() {
            "Ready" if *status == ConditionStatus::True => ("Normal", message),
            // The condition about the problem has an event of its own, with more details.
            "Degraded" if has_own_condition(reason) => continue,
            // The message of Ready has the cause.
            "Degraded" => ("Warning", ready.map_or(message, |ready| &ready.message)),
            "AttributesNull" if reason == Reason::ValueMissing.as_str() => ("Normal", message),
            problem if is_problem(problem) => ("Warning", message),
            _ => continue,
        };
        events.push((type_, reason.clone(), message.clone()));
    }
    for recovered in recoveries(before, after) {
        let message = format!("condition {} ({}) does not hold any more", recovered.type_, recovered.reason);
        events.push(("Normal", Reason::Recovered.as_str().to_owned(), message));
    }
    events
}

/// An event about an object.
pub(crate) fn event_json(
    kind: &str,
    metadata: &ObjectMeta,
    type_: &str,
    reason: &str,
    message: &str,
) -> Value {
    let now = kollect_engine::clock::timestamp();
    let stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let involved = ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(kind.to_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    };
    json!({
        "metadata": { "generateName": format!("{}.", metadata.name.as_deref().unwrap_or_default()) },
        "involvedObject": involved,
        "type": type_,
        "reason": reason,
        "message": message.chars().take(1024).collect::<String>(),
        "source": { "component": "kollect" },
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    })
}

/// Records an event. Events of cluster objects live in namespace default.
pub(crate) async fn create_event(client: &Client, namespace: &str, event: Value) -> Result<(), kube::Error> {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(client.clone(), namespace);
    let event = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
    events.create(&PostParams::default(), &event).await.map(drop)
}

/// Changes the metadata of an object by a merge patch. It fails if the object has changed since it was read.
pub(crate) async fn patch_metadata(
    client: &Client,
    kind: &str,
    metadata: &ObjectMeta,
    mut patch: serde_json::Map<String, Value>,
) -> Result<(), kube::Error> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    patch.insert("resourceVersion".into(), json!(metadata.resource_version));
    let patch = Patch::Merge(json!({ "metadata": patch }));
    match api(client, kind, namespace).patch(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests;
