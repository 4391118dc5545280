//! KollectScope and KollectClusterScope: ceilings that targets, inventories and sinks cannot exceed.
//!
//! No scope means no ceiling. Several scopes apply together: what one of them forbids is forbidden.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use std::collections::BTreeMap;

use super::{
    rules,
    shapes::{GoDuration, Gvk, LabelSelector},
};

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
    /// Namespaces that may be collected from, or "*" for all. In a KollectScope this is also what lets its
    /// targets collect from other namespaces than their own. Empty, without allowedNamespaceSelector: forbids
    /// none and adds none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?|[*])$")), extend("x-kubernetes-list-type" = "set"))]
    pub allowed_namespaces: Vec<String>,
    /// Namespaces that may be collected from, by their labels; in addition to allowedNamespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules(&[(
        "has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",
        "an empty selector allows nothing; write \"*\" into allowedNamespaces to allow all namespaces",
    )])))]
    pub allowed_namespace_selector: Option<LabelSelector>,
    /// Namespaces that may not be collected from, even if another field allows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub denied_namespaces: Vec<String>,
    /// Whether profiles with export.mode Resource, whose rows have whole objects, may be used. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_resource_export: Option<bool>,
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

    /// Whether the kind is named, not only allowed because no kind is.
    pub fn names_kind(&self, gvk: &Gvk) -> bool {
        !self.allowed_gvks.is_empty() && self.allows_kind(gvk)
    }

    /// Whether objects of the namespace may be collected; `None`: its labels decide, and are not given.
    pub fn allows_namespace(&self, name: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        if self.denied_namespaces.iter().any(|denied| denied == name) {
            return Some(false);
        }
        if self.names_namespaces() { self.names_namespace(name, labels) } else { Some(true) }
    }

    /// Whether the namespace is named, not only allowed because none is; `None`: its labels decide, and are
    /// not given.
    pub fn names_namespace(&self, name: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        let listed = self.names_all_namespaces() || self.allowed_namespaces.iter().any(|n| n == name);
        match self.selector() {
            _ if listed => Some(true),
            None => Some(false),
            Some(selector) => labels.map(|labels| selector.matches(labels)),
        }
    }

    /// Whether namespaces are allowed by name or by labels: then no others are.
    pub fn names_namespaces(&self) -> bool {
        !self.allowed_namespaces.is_empty() || self.selector().is_some()
    }

    /// Whether all namespaces are named.
    pub fn names_all_namespaces(&self) -> bool {
        self.allowed_namespaces.iter().any(|name| name == "*")
    }

    /// What labels of namespaces must satisfy. An empty selector names none.
    pub fn selector(&self) -> Option<&LabelSelector> {
        self.allowed_namespace_selector.as_ref().filter(|selector| !selector.is_empty())
    }
}
