//! KollectScope and KollectClusterScope: ceilings that targets, inventories and sinks cannot exceed.
//!
//! No scope means no ceiling. Several scopes apply together: what one of them forbids is forbidden.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shapes::{GoDuration, Gvk};

/// Ceiling of one namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectScope",
    doc = "KollectScope limits what the targets, inventories and sinks of its namespace may do.",
    namespaced,
    shortname = "kscope",
    category = "kollect",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct KollectScopeSpec {
    /// What is allowed.
    #[serde(flatten)]
    pub ceiling: ScopeCeiling,
}

/// Ceiling of the cluster kinds.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectClusterScope",
    doc = "KollectClusterScope limits what cluster targets and cluster inventories may do.",
    shortname = "kcscope",
    category = "kollect",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct KollectClusterScopeSpec {
    /// What is allowed.
    #[serde(flatten)]
    pub ceiling: ScopeCeiling,
    /// Namespaces from which cluster kinds may take profiles and sinks; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub allowed_static_ref_namespaces: Vec<String>,
}

/// What a scope allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScopeCeiling {
    /// Kinds that may be collected; empty: any. Compared as a whole, without case.
    #[serde(rename = "allowedGVKs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub allowed_gvks: Vec<Gvk>,
    /// Namespaces that may be collected from; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub allowed_namespaces: Vec<String>,
    /// Namespaces that may not be collected from, whatever else says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub denied_namespaces: Vec<String>,
    /// Floor of exportMinInterval; 0s counts as below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_export_interval: Option<GoDuration>,
    /// Snapshot sinks that may be used; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub snapshot_sink_refs: Vec<String>,
    /// Database sinks that may be used; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub database_sink_refs: Vec<String>,
    /// Event sinks that may be used; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub event_sink_refs: Vec<String>,
}

impl ScopeCeiling {
    /// Whether the kind may be collected.
    pub fn allows_kind(&self, gvk: &Gvk) -> bool {
        let same = |a: &Gvk| {
            a.group.eq_ignore_ascii_case(&gvk.group)
                && a.version.eq_ignore_ascii_case(&gvk.version)
                && a.kind.eq_ignore_ascii_case(&gvk.kind)
        };
        self.allowed_gvks.is_empty() || self.allowed_gvks.iter().any(same)
    }

    /// Whether objects of the namespace may be collected.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|n| n == namespace);
        !listed(&self.denied_namespaces)
            && (self.allowed_namespaces.is_empty() || listed(&self.allowed_namespaces))
    }
}
