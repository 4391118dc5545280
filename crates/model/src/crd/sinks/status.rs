//! What a sink reports: its state, and a preview of what it would write.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::Condition;

/// State of a sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SinkStatus {
    /// State of the sink.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Value of the annotation kollect.dev/requestedAt for which the sink was probed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_requested_at: Option<String>,
    /// What an export would look like; only while the annotation kollect.dev/preview is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<Preview>,
}

/// What an export would look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// When the preview was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rendered_at: Option<Time>,
    /// Where the sample rows come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_sample_source: Option<String>,
    /// Provisioning in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning_mode: Option<String>,
    /// Format in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serialization_format: Option<String>,
    /// Path of a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_path: Option<String>,
    /// A commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitPreview>,
    /// Files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutPreview>,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<TablePreview>,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<TablePreview>,
    /// The indexes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mongodb: Option<MongoDbPreview>,
    /// The topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaPreview>,
    /// A message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<NatsPreview>,
    /// What deserves attention.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
}

/// A commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitPreview {
    /// Subject line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_commit_subject: Option<String>,
    /// Body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_commit_body: Option<String>,
}

/// Files of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutPreview {
    /// Mode in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Content in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether files of vanished rows are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// Some paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub sample_paths: Vec<String>,
    /// What the first of them holds, before compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_content: Option<String>,
}

/// The table of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TablePreview {
    /// Statements that create it in an empty database.
    #[serde(rename = "expectedDDL", skip_serializing_if = "Option::is_none")]
    pub expected_ddl: Option<String>,
}

/// The collection of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MongoDbPreview {
    /// Keys of its unique index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub expected_index_keys: Vec<String>,
}

/// The topic of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KafkaPreview {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
}

/// A message of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NatsPreview {
    /// The stream that keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// Where it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_message: Option<String>,
}
