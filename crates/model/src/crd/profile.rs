//! KollectProfile: what to read from objects of one kind.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    on_items, rules,
    shapes::{Condition, Gvk},
};

/// Annotation that lets a profile read `data` of Secrets.
pub const ALLOW_SECRET_EXTRACTION: &str = "kollect.dev/allow-secret-extraction";
/// Annotation that lets a profile embed whole Secrets.
pub const ALLOW_FULL_RESOURCE_EXPORT: &str = "kollect.dev/allow-full-resource-export";

/// What to collect and which attributes to extract.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectProfile",
    doc = "KollectProfile says which kind to collect and which attributes of its objects matter.",
    namespaced,
    status = "ProfileStatus",
    shortname = "kprof",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.targetGVK.kind"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Exported","type":"string","jsonPath":".status.conditions[?(@.type==\"Exported\")].status"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "!has(self.export) || self.export.mode == 'Resource' || (has(self.attributes) && size(self.attributes) > 0)",
        "export in mode Attributes exports nothing without attributes: add attributes or set export.mode: Resource",
    ),
    (
        "!has(self.export) || self.export.mode != 'Resource' || !has(self.attributes) || !self.attributes.exists(a, a.name == self.export.__as__)",
        "export.as is also the name of an attribute: rename one of them",
    ),
    (
        "!has(self.metrics) || has(self.export) || self.metrics.all(m, has(self.attributes) && self.attributes.exists(a, m.path.startsWith(a.name)))",
        "metrics[].path must be the name of one of the attributes, or a path inside of one",
    ),
    (
        "!has(self.metrics) || has(self.export) || self.metrics.all(m, !has(m.labels) || m.labels.all(l, has(self.attributes) && self.attributes.exists(a, l.startsWith(a.name))))",
        "metrics[].labels must be names of attributes, or paths inside of them",
    ),
])))]
pub struct KollectProfileSpec {
    /// Kind to collect.
    #[serde(rename = "targetGVK")]
    pub target_gvk: Gvk,
    /// Extraction rules; each becomes one key of the row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub attributes: Vec<Attribute>,
    /// Export of whole objects, next to or instead of attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ResourceExport>,
    /// Prometheus series that the operator computes from attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub metrics: Vec<ProfileMetric>,
}

/// One attribute of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attribute {
    /// Key of the attribute in the row.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Where the value comes from: a kubectl JSONPath (`{.spec.replicas}`, `$.spec.replicas`), `cel:` and an
    /// expression over `object`, or `helm:release.` and a field.
    #[schemars(length(min = 1, max = 8192), extend("x-kubernetes-validations" = rules(&[
        (
            "!self.matches('^[ ]*object[.\\\\[]')",
            "this looks like CEL: write cel: in front of it",
        ),
        (
            "!self.matches('^[ ]*helm:release[.]?[ ]*$')",
            "name a field of the release, such as helm:release.chartVersion",
        ),
    ])))]
    pub path: String,
    /// Type of the value: string, int, number, bool, list, map, timestamp or quantity. Values are converted
    /// where nothing is lost; otherwise the attribute is null and counted as a failure. Any other text is not enforced.
    #[serde(rename = "type", default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub type_: String,
    /// A missing or failed value leaves the key out. Otherwise a missing value is null, and a failed one fails the row.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Export of whole objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceExport {
    /// Attributes alone, or the object as one more attribute.
    #[serde(default)]
    pub mode: ExportMode,
    /// Attribute that holds the object.
    #[serde(rename = "as", default = "default_as")]
    #[schemars(length(min = 1, max = 253))]
    pub as_: String,
    /// Sections of the object that are kept; apiVersion and kind always are. Of an object without a spec, SpecAndStatus keeps all of it.
    #[serde(default)]
    pub include: ExportSections,
    /// Leave out metadata.name, .namespace and .uid, which the row has anyway. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_identity: Option<bool>,
    /// What to remove from the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
}

fn default_as() -> String {
    "resource".into()
}

/// Whether rows carry whole objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExportMode {
    /// Only the extracted attributes.
    #[default]
    Attributes,
    /// The object as an attribute as well.
    Resource,
}

/// Sections of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExportSections {
    /// metadata
    MetadataOnly,
    /// spec
    SpecOnly,
    /// status
    StatusOnly,
    /// spec and status
    #[default]
    SpecAndStatus,
    /// Every section, also data, rules and the like.
    All,
}

/// Removals from an exported object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// Drop managedFields, resourceVersion, generation, and the annotations of kubectl apply and Argo CD. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<bool>,
    /// RFC 6901 pointers to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)), transform = on_items(rules(&[
        (
            "self.matches('^/([^~]|~[01])*$')",
            "a JSON pointer starts with / and writes ~ as ~0 and / as ~1",
        ),
    ])))]
    pub json_pointers: Vec<String>,
    /// JSONPaths to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 1024)))]
    pub json_paths: Vec<String>,
    /// More names of credentials: values whose key ends in one are redacted, in attributes as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)))]
    pub scrub_keys: Vec<String>,
    /// A set of fields to remove: gitops, what the cluster writes into an object; status, the status; minimal, that of gitops and all
    /// metadata but name, namespace, labels and annotations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<PrunePreset>,
    /// Paths of jq to remove, as far as they are JSONPaths: .spec.template.spec.containers[].env
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 1024)))]
    pub jq_path_expressions: Vec<String>,
    /// CEL expressions over object; each gives an RFC 6901 pointer, or a list of them, to remove. One that fails fails the row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 8192)))]
    pub cel: Vec<String>,
}

/// Sets of fields to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PrunePreset {
    /// What the cluster writes: status, and metadata such as creationTimestamp and ownerReferences.
    Gitops,
    /// The status.
    Status,
    /// That of gitops, and all metadata but name, namespace, labels and annotations.
    Minimal,
}

/// A Prometheus series computed from attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProfileMetric {
    /// Name of the series.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Attribute that is summed, or a value inside of one, such as resource.spec.replicas.
    #[schemars(length(min = 1, max = 253))]
    pub path: String,
    /// Attributes, or values inside of them, that become labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub labels: Vec<String>,
}

/// Whether the profile compiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileStatus {
    /// State of the profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
