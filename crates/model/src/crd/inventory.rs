//! KollectInventory and KollectClusterInventory: whose rows form one snapshot, and where it goes.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    on_items, rules,
    shapes::{Condition, GoDuration, LabelSelector, NamespacedRef, is_namespace_name},
    target::local_name,
};
use crate::{SpecError, binding::SinkName, destination::Destination};

/// Sink refs that one inventory may have in all three lists together.
pub const MAX_SINK_REFS: usize = 20;

/// A team's inventory.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectInventory",
    doc = "KollectInventory keeps the rows of the targets of its namespace in sinks.",
    namespaced,
    status = "InventoryStatus",
    shortname = "kinv",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Rows","type":"integer","jsonPath":".status.itemCount"}"#,
    printcolumn = r#"{"name":"Last Export","type":"date","jsonPath":".status.lastExportTime"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "!has(self.targetRefs) || size(self.targetRefs) == 0 || !has(self.targetSelector)",
        "targetSelector has no effect next to targetRefs: remove one of them",
    ),
    (
        "!has(self.httpEndpoint)",
        "httpEndpoint has no effect: there is no HTTP API to read inventories yet; remove it",
    ),
])))]
pub struct KollectInventorySpec {
    /// Snapshot sinks of the same namespace: names, or objects with name, exportMinInterval, minChangeInterval,
    /// auditInterval and maxExportBytes.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub snapshot_sink_refs: SinkRefs,
    /// Database sinks of the same namespace, written as in snapshotSinkRefs.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub database_sink_refs: SinkRefs,
    /// Event sinks of the same namespace, written as in snapshotSinkRefs.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub event_sink_refs: SinkRefs,
    /// Targets of the namespace whose rows belong to the inventory; empty: all, or those of targetSelector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)), transform = on_items(local_name()))]
    pub target_refs: Vec<String>,
    /// Targets of the namespace, by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_selector: Option<LabelSelector>,
    /// Least time between two confirmations of unchanged content. A change is never delayed.
    #[serde(default = "default_interval")]
    pub export_min_interval: GoDuration,
    /// Least time between two writes of changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_change_interval: Option<GoDuration>,
    /// How often the sinks are compared with the rows; 0s: never. Default: the larger of exportMinInterval and 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_interval: Option<GoDuration>,
    /// Size of one part of a document, in bytes. It never limits the inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_export_bytes: Option<i64>,
    /// Hold writes that would remove many rows because specs changed, until they are released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal_guard: Option<RemovalGuard>,
    /// Stop writing. Rows and sinks stay as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Refused: has no effect. There is no HTTP API to read inventories yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_endpoint: Option<HttpEndpoint>,
}

impl Default for KollectInventorySpec {
    fn default() -> Self {
        Self {
            snapshot_sink_refs: SinkRefs::default(),
            database_sink_refs: SinkRefs::default(),
            event_sink_refs: SinkRefs::default(),
            target_refs: Vec::new(),
            target_selector: None,
            export_min_interval: default_interval(),
            min_change_interval: None,
            audit_interval: None,
            max_export_bytes: None,
            removal_guard: None,
            suspend: false,
            http_endpoint: None,
        }
    }
}

/// How many rows one write to a sink may remove because targets, profiles, scopes or the inventory changed. Rows whose
/// objects are gone do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[(
    "has(self.percent) || has(self.rows)",
    "removalGuard needs percent, rows or both",
)])))]
pub struct RemovalGuard {
    /// Of the rows that the sink holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
    /// In all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub rows: Option<i64>,
}

/// Refused: has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpEndpoint {
    /// Refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enabled: bool,
    /// Refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

fn default_interval() -> GoDuration {
    GoDuration(std::time::Duration::from_secs(30))
}

/// A platform team's inventory.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectClusterInventory",
    doc = "KollectClusterInventory keeps the rows of cluster targets in sinks.",
    status = "ClusterInventoryStatus",
    shortname = "kcinv",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Rows","type":"integer","jsonPath":".status.itemCount"}"#,
    printcolumn = r#"{"name":"Targets","type":"integer","jsonPath":".status.targetCount"}"#,
    printcolumn = r#"{"name":"Last Export","type":"date","jsonPath":".status.lastExportTime"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "!has(self.targetRefs) || size(self.targetRefs) == 0 || !has(self.targetSelector)",
        "targetSelector has no effect next to targetRefs: remove one of them",
    ),
    (
        "!has(self.profileRef)",
        "profileRef has no effect: the profile of each cluster target decides what a row holds",
    ),
])))]
pub struct KollectClusterInventorySpec {
    /// Refused: has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile_ref: Option<NamespacedRef>,
    /// Cluster targets whose rows belong to the inventory; empty: all, or those of targetSelector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 253)), transform = on_items(local_name()))]
    pub target_refs: Vec<String>,
    /// Cluster targets, by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_selector: Option<LabelSelector>,
    /// Namespaces whose rows are rolled up, by label; absent: all namespaces of the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Namespaces whose rows are rolled up, by name; together with namespaceSelector both must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1024),
        inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub namespaces: Vec<String>,
    /// Snapshot sinks: names, or objects with name, namespace, exportMinInterval, minChangeInterval, auditInterval
    /// and maxExportBytes.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub snapshot_sink_refs: SinkRefs,
    /// Database sinks, written as in snapshotSinkRefs.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub database_sink_refs: SinkRefs,
    /// Event sinks, written as in snapshotSinkRefs.
    #[serde(default, skip_serializing_if = "SinkRefs::is_empty")]
    pub event_sink_refs: SinkRefs,
    /// Namespace of sinks that are named without one.
    #[serde(default = "default_sink_namespace")]
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub sink_namespace: String,
    /// Least time between two confirmations of unchanged content. A change is never delayed.
    #[serde(default = "default_interval")]
    pub export_min_interval: GoDuration,
    /// Least time between two writes of changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_change_interval: Option<GoDuration>,
    /// How often the sinks are compared with the rows; 0s: never. Default: the larger of exportMinInterval and 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_interval: Option<GoDuration>,
    /// What happens to rows that several targets extracted from one object.
    #[serde(default)]
    pub dedupe: Dedupe,
    /// Hold writes that would remove many rows because specs changed, until they are released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal_guard: Option<RemovalGuard>,
    /// Stop writing. Rows and sinks stay as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

fn default_sink_namespace() -> String {
    "kollect-system".into()
}

/// How a cluster inventory treats several rows of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Dedupe {
    /// Every row is kept.
    #[default]
    KeepAll,
    /// One row per object is kept.
    #[serde(rename = "byResourceUID")]
    ByResourceUid,
}

/// What an inventory holds and where it has been written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InventoryStatus {
    /// State of the inventory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Every sink holds all rows up to this revision: the smallest revision of sinkExports. Revisions count changes of
    /// rows since the operator started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_revision: Option<i64>,
    /// Rows that the sink with the smallest revision holds, those included whose objects cannot be seen now. Without sinks:
    /// rows that were collected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_count: Option<i32>,
    /// Newest write that a sink acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_export_time: Option<Time>,
    /// Value of the annotation kollect.dev/requestedAt for which all sinks were compared last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_requested_at: Option<String>,
    /// State per sink, also of those that are no longer named and still hold rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 40),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub sink_exports: Vec<SinkExport>,
    /// Take-overs that were done, the latest 100. None of them is done again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub take_overs: Vec<TakeOverRecord>,
}

/// A take-over that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TakeOverRecord {
    /// Family and name of the sink, such as `database/portal`.
    pub sink: SinkName,
    /// Id of the destination.
    pub destination_id: String,
    /// Id of the cluster that owned the rows before.
    pub from: String,
    /// When it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// Take-overs that a status keeps.
pub const MAX_TAKE_OVERS: usize = 100;

/// What a cluster inventory holds and where it has been written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInventoryStatus {
    /// What every inventory reports.
    #[serde(flatten)]
    pub inventory: InventoryStatus,
    /// Targets that are included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_count: Option<i32>,
    /// Number of namespaces with rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_shard_count: Option<i32>,
    /// Summary per namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace"]))]
    pub namespace_shards: Vec<NamespaceShard>,
}

/// Rows of one namespace in a cluster inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceShard {
    /// Namespace.
    pub namespace: String,
    /// Rows after dedupe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_count: Option<i32>,
    /// Targets that contribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_count: Option<i32>,
    /// Digest of the rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// State of one sink of an inventory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SinkExport {
    /// Family and name of the sink, such as `database/portal`.
    pub name: SinkName,
    /// Namespace of the sink; only on cluster inventories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Destination that holds the rows: it has granted the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<RecordedDestination>,
    /// Destination that is being claimed. It is recorded before the claim is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claiming: Option<RecordedDestination>,
    /// Earlier destinations, or ones where a claim was requested, that may still hold rows; the latest 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub left: Vec<RecordedDestination>,
    /// Why a destination in left could not be cleaned; it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clean_error: Option<String>,
    /// When the sink acknowledged the last write; after a failure, or if none is known: that it holds the rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_export_time: Option<Time>,
    /// Digest of what the sink has acknowledged to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checksum: Option<String>,
    /// The sink has acknowledged all rows up to this revision; absent until the operator has compared it since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Rows that the sink has acknowledged to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<i64>,
    /// Rows that the sink does not have yet; absent if there are none, or they are being written at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingRows>,
    /// Digest of what specs selected when the sink last held all rows; only with removalGuard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
    /// Age of the oldest change that the sink does not have, in seconds, rounded down to 10, 20, 50, 100 and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<i64>,
    /// When the next attempt is due after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// The latest failure, until a write succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Whether the sink holds the snapshot: type Synced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Rows that a sink does not have yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingRows {
    /// How many changed rows wait.
    pub rows: i64,
    /// Since when the oldest of them has waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When they are written, if that depends on minChangeInterval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_write_time: Option<Time>,
}

/// A destination that holds rows of an inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedDestination {
    /// Server and table, file, directory or subject, without credentials. A server that only a Secret names is a
    /// digest of its address.
    pub destination: Destination,
    /// Name of the cluster in the rows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Random id of the destination, from its claim. Absent: no claim has been granted there, or it has no room for ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A claim was requested there, and is not known to have been granted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_only: bool,
}

impl RecordedDestination {
    /// A destination whose id is not known.
    pub fn new(destination: Destination, cluster: impl Into<String>) -> Self {
        Self { destination, cluster: cluster.into(), id: None, asked_only: false }
    }

    /// The same destination, without its id.
    #[must_use]
    pub fn without_id(&self) -> Self {
        Self::new(self.destination.clone(), self.cluster.clone())
    }

    /// Whether both are the same destination, by name.
    pub fn is_at(&self, other: &Self) -> bool {
        (&self.destination, &self.cluster) == (&other.destination, &other.cluster)
    }
}

impl fmt::Display for RecordedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.destination.fmt(f)?;
        if self.cluster.is_empty() { Ok(()) } else { write!(f, " (cluster {})", self.cluster) }
    }
}

/// A reference from an inventory to a sink, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SinkRef {
    /// Name of the sink.
    pub name: String,
    /// Namespace of the sink; cluster inventories only.
    pub namespace: Option<String>,
    /// Overrides the sink's and the inventory's value.
    pub export_min_interval: Option<GoDuration>,
    /// Overrides the sink's and the inventory's value.
    pub min_change_interval: Option<GoDuration>,
    /// Overrides the sink's and the inventory's value.
    pub audit_interval: Option<GoDuration>,
    /// Overrides the inventory's value.
    pub max_export_bytes: Option<i64>,
}

/// Sink references as they are written: each item is a name or an object.
///
/// A schema cannot say "string or object" and stay structural, so this is the only field of the kinds that
/// accepts any value; [`SinkRefs::decode`] checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SinkRefs(pub Vec<Value>);

impl JsonSchema for SinkRefs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SinkRefs".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "maxItems": MAX_SINK_REFS,
            "items": { "x-kubernetes-preserve-unknown-fields": true },
        })
    }
}

impl SinkRefs {
    /// Whether the list is empty or absent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The valid references, with their indexes in the list, and everything that is wrong with
    /// the others. `field` is the path of the list; `namespaced` refuses `namespace`, because namespaced
    /// inventories use sinks of their own namespace.
    pub fn decode(&self, field: &str, namespaced: bool) -> (Vec<(usize, SinkRef)>, Vec<SpecError>) {
        let mut refs = Vec::with_capacity(self.0.len());
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, item) in self.0.iter().enumerate() {
            let at = format!("{field}[{index}]");
            match decode_ref(item, &at, namespaced) {
                // The status identifies a sink by its name alone, without the namespace.
                Ok(sink_ref) if !seen.insert(sink_ref.name.clone()) => {
                    errors.push(SpecError::new(at, item, "is named twice: remove one of them"));
                }
                Ok(sink_ref) => refs.push((index, sink_ref)),
                Err(error) => errors.push(error),
            }
        }
        (refs, errors)
    }
}

fn decode_ref(item: &Value, at: &str, namespaced: bool) -> Result<SinkRef, SpecError> {
    let sink_ref = match item {
        Value::String(name) => SinkRef { name: name.clone(), ..SinkRef::default() },
        Value::Object(_) => SinkRef::deserialize(item).map_err(|error| {
            SpecError::new(at, item, format!("{error}; write a name, or an object with name"))
        })?,
        _ => return Err(SpecError::new(at, item, "must be a name, or an object with name")),
    };
    if sink_ref.name.is_empty() || sink_ref.name.contains('/') {
        let problem = "must be the name of a sink, without a namespace and /";
        return Err(SpecError::new(format!("{at}.name"), item, problem));
    }
    if namespaced && sink_ref.namespace.is_some() {
        let problem = "is not allowed here: an inventory uses sinks of its own namespace; remove it";
        return Err(SpecError::new(format!("{at}.namespace"), item, problem));
    }
    if let Some(namespace) = sink_ref.namespace.as_deref().filter(|name| !is_namespace_name(name)) {
        let problem = "must be the name of a namespace: lower-case letters, digits and -";
        return Err(SpecError::new(format!("{at}.namespace"), &namespace.into(), problem));
    }
    for (name, interval) in [
        ("exportMinInterval", sink_ref.export_min_interval),
        ("minChangeInterval", sink_ref.min_change_interval),
        ("auditInterval", sink_ref.audit_interval),
    ] {
        if interval.is_some_and(|i| i.0 > super::shapes::MAX_INTERVAL) {
            return Err(SpecError::new(format!("{at}.{name}"), &item[name], "must be at most 24h"));
        }
    }
    if sink_ref.max_export_bytes.is_some_and(|bytes| bytes < 1) {
        let at = format!("{at}.maxExportBytes");
        return Err(SpecError::new(at, &item["maxExportBytes"], "must be at least 1"));
    }
    Ok(sink_ref)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(items: Value, namespaced: bool) -> (Vec<SinkRef>, Vec<String>) {
        let refs: SinkRefs = serde_json::from_value(items).unwrap();
        let (refs, errors) = refs.decode("spec.databaseSinkRefs", namespaced);
        (refs.into_iter().map(|(_, r)| r).collect(), errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_list_of_sink_references_may_mix_names_and_objects() {
        let (refs, errors) = decode(json!(["a", { "name": "b", "exportMinInterval": "5m" }]), true);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(refs[0].name, "a");
        assert_eq!(refs[1].export_min_interval.unwrap().to_string(), "5m0s");
    }

    #[test]
    fn every_invalid_sink_reference_is_named() {
        let (refs, errors) = decode(
            json!(["ok", 7, { "nam": "x" }, "ok", "ns/x", { "name": "y", "namespace": "other" },
                   { "name": "z", "auditInterval": "25h" }, { "name": "w", "maxExportBytes": 0 }, { "name": "v", "auditInterval": "soon" }]),
            true,
        );
        assert_eq!(refs.len(), 1, "what is right is kept");
        let expected = [
            "spec.databaseSinkRefs[1] = 7: must be a name, or an object with name",
            "spec.databaseSinkRefs[2] = {\"nam\":\"x\"}: unknown field `nam`",
            "spec.databaseSinkRefs[3] = \"ok\": is named twice",
            "spec.databaseSinkRefs[4].name = \"ns/x\": must be the name of a sink",
            "spec.databaseSinkRefs[5].namespace",
            "spec.databaseSinkRefs[6].auditInterval = \"25h\": must be at most 24h",
            "spec.databaseSinkRefs[7].maxExportBytes = 0: must be at least 1",
            "spec.databaseSinkRefs[8] = {\"auditInterval\":\"soon\",\"name\":\"v\"}: \"soon\" is not a duration",
        ];
        assert_eq!(errors.len(), expected.len(), "{errors:#?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn cluster_inventories_may_name_a_namespace() {
        let (refs, errors) =
            decode(json!([{ "name": "a", "namespace": "one" }, { "name": "b", "namespace": "two" }]), false);
        assert_eq!((refs.len(), errors.len()), (2, 0));
        let (_, errors) =
            decode(json!([{ "name": "a", "namespace": "one" }, { "name": "a", "namespace": "two" }]), false);
        assert!(errors[0].contains("is named twice"), "{errors:?}");
        let (_, errors) = decode(json!([{ "name": "a", "namespace": "x/secrets?y=" }]), false);
        assert!(errors[0].contains("must be the name of a namespace"), "{errors:?}");
    }
}
