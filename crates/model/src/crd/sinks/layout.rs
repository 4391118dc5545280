//! How an inventory is cut into files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{super::rules, path_template};

/// How an inventory is cut into files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// One file, one file per row, or an index and one file per row. Default: document; perResource when each row
    /// embeds its whole object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<LayoutMode>,
    /// What the file of one row contains. Default: item; manifest when each row embeds its whole object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<LayoutContent>,
    /// Path of a row's file. Default: {cluster}/{sourceNamespace}/{kind}/{sourceName}{extension}
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), extend("x-kubernetes-validations" = rules(&[
        ("!self.startsWith('/') && !self.contains('..')", "must be a relative path without .."),
        (
            "self.contains('{sourceName}') || self.contains('{name}') || self.contains('{uid}')",
            "must contain {sourceName}, {name} or {uid}: two rows must not share a file",
        ),
        (
            "self.matches('^([^{}]|[{](cluster|namespace|name|targetNamespace|targetName|sourceNamespace|sourceName|group|kind|uid|generation|extension)[}])*$')",
            "knows only {cluster}, {namespace}, {name}, {targetNamespace}, {targetName}, {sourceNamespace}, {sourceName}, {group}, {kind}, {uid}, {generation} and {extension}",
        ),
    ])))]
    pub path_template: Option<String>,
    /// The index file that mode split writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<LayoutIndex>,
    /// How path segments are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<FileName>,
}

/// How many files an inventory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LayoutMode {
    /// One file.
    Document,
    /// One file per row.
    PerResource,
    /// An index and one file per row.
    Split,
}

/// What the file of one row contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LayoutContent {
    /// The row with its identity.
    Item,
    /// The attributes alone.
    Attributes,
    /// The embedded object.
    Manifest,
}

/// The index file that mode split writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutIndex {
    /// Write it. Default: true in mode split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its path. Default: inventory/{namespace}/{name}{extension}
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), extend("x-kubernetes-validations" = path_template()))]
    pub path_template: Option<String>,
}

/// How path segments are made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileName {
    /// Whether {group} shows. Default: auto.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_in_path: Option<GroupInPath>,
    /// Write {kind} in lower case. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lowercase_kind: Option<bool>,
    /// Longest segment. Default: 63.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_segment_length: Option<i32>,
}

/// Whether the API group shows in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GroupInPath {
    /// Only if the object has an API group.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
