//! KollectTarget and KollectClusterTarget: which objects become rows.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    rules,
    shapes::{Condition, Gvk, LabelRequirement, LabelSelector, NamespacedRef},
};

/// Label on a namespace or an object that switches its collection: `enabled` or `disabled`.
pub const WATCH_LABEL: &str = "kollect.dev/watch";
/// Annotation on a namespace with the same meaning as [`WATCH_LABEL`].
pub const NAMESPACE_WATCH_ANNOTATION: &str = "kollect.dev/namespace-watch";

/// Objects that a team collects.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectTarget",
    doc = "KollectTarget collects objects of one profile for the inventories of its namespace.",
    namespaced,
    status = "TargetStatus",
    shortname = "ktgt",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Collected","type":"integer","jsonPath":".status.collectedCount"}"#,
    printcolumn = r#"{"name":"Exported","type":"string","jsonPath":".status.conditions[?(@.type==\"Exported\")].status"}"#,
    printcolumn = r#"{"name":"Updated","type":"date","jsonPath":".status.collectedCountUpdatedAt"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "!has(self.resourceRules) || size(self.resourceRules) == 0 || (!has(self.labelSelector) && !has(self.names) && !has(self.fieldSelector))",
        "labelSelector, names and fieldSelector have no effect next to resourceRules: move them into the rules",
    ),
])))]
pub struct KollectTargetSpec {
    /// KollectProfile of the same namespace.
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = local_name()))]
    pub profile_ref: String,
    /// Namespaces to collect from, by label; absent: all that the target reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which namespaces and objects.
    #[serde(flatten)]
    pub filter: CollectionFilter,
    /// Objects to collect, by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Objects to collect, by name; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(min = 1, max = 253)))]
    pub names: Vec<String>,
    /// Objects to collect, by a field selector that the API server evaluates, such as `status.phase=Running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub field_selector: Option<String>,
    /// Stop collecting. Rows stay as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Whether namespaces must opt in with the label kollect.dev/watch.
    #[serde(default)]
    pub watch_mode: WatchMode,
}

/// Objects that a platform team collects across namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectClusterTarget",
    doc = "KollectClusterTarget collects objects of one profile across namespaces for cluster inventories.",
    status = "TargetStatus",
    shortname = "kctgt",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Collected","type":"integer","jsonPath":".status.collectedCount"}"#,
    printcolumn = r#"{"name":"Exported","type":"string","jsonPath":".status.conditions[?(@.type==\"Exported\")].status"}"#,
    printcolumn = r#"{"name":"Updated","type":"date","jsonPath":".status.collectedCountUpdatedAt"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "has(self.namespaceSelector) && ((has(self.namespaceSelector.matchLabels) && size(self.namespaceSelector.matchLabels) > 0) || (has(self.namespaceSelector.matchExpressions) && size(self.namespaceSelector.matchExpressions) > 0))",
        "namespaceSelector needs at least one term: a cluster target must say which namespaces it selects",
    ),
    (
        "!has(self.resourceRules) || size(self.resourceRules) == 0 || !has(self.fieldSelector)",
        "fieldSelector has no effect next to resourceRules: move it into the rules",
    ),
])))]
pub struct KollectClusterTargetSpec {
    /// KollectProfile, with its namespace.
    pub profile_ref: NamespacedRef,
    /// Namespaces to collect from, by label; needs at least one term.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which namespaces and objects.
    #[serde(flatten)]
    pub filter: CollectionFilter,
    /// Objects to collect, by a field selector that the API server evaluates, such as `status.phase=Running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub field_selector: Option<String>,
    /// Stop collecting. Rows stay as they are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// Namespaces and objects that a target selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CollectionFilter {
    /// Only these namespaces; together with namespaceSelector both must hold. Empty: the operator's default list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub included_namespaces: Vec<String>,
    /// Never these namespaces; the operator's own list comes on top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")), extend("x-kubernetes-list-type" = "set"))]
    pub excluded_namespaces: Vec<String>,
    /// Never namespaces with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_exclude_selector: Option<LabelSelector>,
    /// Objects that match one of these rules; empty: every object of the profile's kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_rules: Vec<ResourceRule>,
}

/// One alternative of a target's object selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRule {
    /// Kind that the rule covers.
    pub gvk: Gvk,
    /// Further restricts the namespaces, by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Labels that the object must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Set-based label terms that must hold as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<LabelRequirement>,
    /// Field selector that the API server evaluates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub field_selector: Option<String>,
    /// CEL over `object`, without the prefix cel:; anything but true is no match. If it depends on a redacted value, the row of the
    /// object stays as it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 8192))]
    pub match_policy: String,
}

/// Whether namespaces opt out of or into collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WatchMode {
    /// Every namespace, unless it says kollect.dev/watch: disabled.
    #[default]
    All,
    /// Only namespaces that say kollect.dev/watch: enabled.
    OptIn,
}

/// What a target collects now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// State of the target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Objects whose extraction fails now: those without a row, and those with an attribute of another type than declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extraction_failures: Option<i32>,
    /// The latest extraction error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_extraction_error: Option<String>,
    /// Attributes that have no value in some rows, the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub null_attributes: Vec<NullAttributeStatus>,
    /// Attributes with redacted values, the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub redactions: Vec<RedactionStatus>,
    /// Value of the annotation kollect.dev/requestedAt for which all objects were read last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_requested_at: Option<String>,
    /// Rows of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected_count: Option<i64>,
    /// When collectedCount last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected_count_updated_at: Option<Time>,
    /// Namespaces that the spec selects, the first 100 of matchedNamespaceCount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub matched_namespaces: Vec<String>,
    /// How many namespaces the spec selects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_namespace_count: Option<i32>,
    /// Namespaces that remain after scopes, the first 100 of effectiveNamespaceCount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub effective_namespaces: Vec<String>,
    /// How many namespaces remain after scopes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_namespace_count: Option<i32>,
    /// Number of resource rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_resource_rules: Option<i32>,
    /// For each kind: since when it has been watched without a gap, or why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub coverage: Vec<CoverageStatus>,
}

/// An attribute that has no value in some rows: it is null there, or left out if it is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NullAttributeStatus {
    /// Name of the attribute.
    pub name: String,
    /// TypeMismatch: the value has another type than declared. Missing: the object has nothing there. Failed: the
    /// expression failed, and the attribute is optional.
    pub cause: String,
    /// How many rows.
    pub rows: i64,
    /// One of the objects, with what it has instead.
    pub example: String,
}

/// An attribute with values that are redacted, or with texts in which a credential was masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RedactionStatus {
    /// Name of the attribute.
    pub name: String,
    /// How many values, in all rows.
    pub values: i64,
    /// How many rows.
    pub rows: i64,
    /// One of the objects.
    pub example: String,
}

/// How well a kind is being watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CoverageStatus {
    /// Kind.
    pub gvk: Gvk,
    /// Namespaces concerned, the first 100 of namespaceCount; empty: all that the target selects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// How many namespaces are concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_count: Option<i32>,
    /// Since when the state holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Why the kind cannot be seen, such as `skipped:forbidden`; absent while it is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blind: Option<String>,
}

/// A name of the same namespace: what `profileRef` and `targetRefs` take.
pub(super) fn local_name() -> Value {
    rules(&[("self != '' && !self.contains('/')", "must be a name, without a namespace and /")])
}
