//! KollectConnectionTest: one audited probe of a sink.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{rules, shapes::Condition, target::local_name};

/// A probe.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectConnectionTest",
    doc = "KollectConnectionTest probes a sink of its namespace once per generation.",
    namespaced,
    status = "ConnectionTestStatus",
    shortname = "kconntest",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Sink","type":"string","jsonPath":".spec.sinkRef.*"}"#,
    printcolumn = r#"{"name":"Verified","type":"string","jsonPath":".status.conditions[?(@.type==\"ConnectionVerified\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    ("!has(self.profileRef)", "profileRef has no effect: a connection test probes a sink"),
])))]
pub struct KollectConnectionTestSpec {
    /// Sink to probe.
    pub sink_ref: ConnectionTestSinkRef,
    /// Refused: has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub profile_ref: Option<String>,
    /// Make the sink the owner of this object. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_sink: Option<bool>,
    /// Delete this object so long after the probe has ended.
    #[serde(default = "default_ttl")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: i32,
}

fn default_ttl() -> i32 {
    300
}

/// Exactly one sink of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "[has(self.snapshotSinkRef), has(self.databaseSinkRef), has(self.eventSinkRef)].filter(set, set).size() == 1",
        "name exactly one of snapshotSinkRef, databaseSinkRef and eventSinkRef",
    ),
])))]
pub struct ConnectionTestSinkRef {
    /// KollectSnapshotSink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = local_name()))]
    pub snapshot_sink_ref: Option<String>,
    /// KollectDatabaseSink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = local_name()))]
    pub database_sink_ref: Option<String>,
    /// KollectEventSink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = local_name()))]
    pub event_sink_ref: Option<String>,
}

/// Outcome of a probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionTestStatus {
    /// State of the probe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that was probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How long the probe took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<i64>,
    /// Whether the probe has ended, either way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// When the probe ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}
