//! The three sink kinds and what their specs share. Each backend's own block is a file below `sinks/`.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    rules,
    shapes::{GoDuration, SecretReference},
};

mod bigquery;
mod files;
mod git;
mod kafka;
mod layout;
mod mongodb;
mod nats;
mod object_store;
mod postgres;
mod status;

pub use bigquery::BigQuery;
pub use files::{Filesystem, Sqlite};
pub use git::{
    Git, GitAuth, GitAuthType, GitAuthor, GitEngine, GitLab, MergeRequest, MergeRequestMode, PushPolicy,
};
pub use kafka::Kafka;
pub use layout::{FileName, GroupInPath, Layout, LayoutContent, LayoutIndex, LayoutMode};
pub use mongodb::MongoDb;
pub use nats::Nats;
pub use object_store::{EncryptionType, ObjectEncryption, ObjectFormat, ObjectStore};
pub use postgres::Postgres;
pub use status::{
    GitPreview, KafkaPreview, LayoutPreview, MongoDbPreview, NatsPreview, Preview, SinkStatus, TablePreview,
};

/// Snapshots as files: Git, object stores, directories.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectSnapshotSink",
    doc = "KollectSnapshotSink keeps inventories as files in Git, an object store or a directory.",
    namespaced,
    status = "SinkStatus",
    shortname = "ksnap",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    SAME_TYPE,
    ("!has(self.git) || self.type == 'git'", "git is only for type git: remove it or change type"),
    ("!has(self.gitlab) || self.type == 'gitlab'", "gitlab is only for type gitlab: remove it or change type"),
    (
        "!has(self.objectStore) || self.type in ['s3', 'gcs', 'azureblob']",
        "objectStore is only for types s3, gcs and azureblob: remove it or change type",
    ),
    (
        "has(self.filesystem) == (self.type == 'filesystem')",
        "type filesystem needs filesystem.path, and no other type takes it",
    ),
    (
        "self.type == 'filesystem' || (has(self.endpoint) && self.endpoint != '')",
        "endpoint is needed: the URL of the repository or the bucket",
    ),
    (
        "self.type != 'filesystem' || (!has(self.endpoint) && !has(self.secretRef) && !has(self.tls))",
        "endpoint, secretRef and tls have no effect for type filesystem: remove them",
    ),
    (
        "!has(self.layout) || self.type in ['git', 'gitlab', 'filesystem']",
        "layout is only for types git, gitlab and filesystem: remove it",
    ),
    (
        "!has(self.serialization) || !has(self.serialization.format) || (self.type in ['git', 'gitlab'] ? self.serialization.format in ['json', 'yaml', 'ndjson'] : self.type == 'filesystem' || self.serialization.format in ['json', 'ndjson', 'parquet', 'csv'])",
        "serialization.format is json, yaml or ndjson for git and gitlab; json, ndjson, parquet or csv for s3, gcs and azureblob",
    ),
    (
        "!has(self.serialization) || !has(self.serialization.format) || !has(self.objectStore) || !has(self.objectStore.format) || self.serialization.format == self.objectStore.format",
        "serialization.format and objectStore.format contradict each other: keep one of them",
    ),
    (
        "!has(self.serialization) || !has(self.serialization.compression) || self.serialization.compression == 'none' || !(self.type in ['git', 'gitlab'])",
        "serialization.compression has no effect in Git: remove it",
    ),
    (
        "!has(self.serialization) || !has(self.serialization.compression) || self.serialization.compression != 'snappy' || (has(self.serialization.format) && self.serialization.format == 'parquet') || (has(self.objectStore) && has(self.objectStore.format) && self.objectStore.format == 'parquet')",
        "compression snappy is only for format parquet",
    ),
])))]
pub struct KollectSnapshotSinkSpec {
    /// Where the files are kept.
    #[serde(rename = "type")]
    pub type_: SnapshotSinkType,
    /// What all sinks share.
    #[serde(flatten)]
    pub common: SinkCommon,
    /// Settings of type git.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<Git>,
    /// Settings of type gitlab.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gitlab: Option<GitLab>,
    /// Settings of types s3, gcs and azureblob.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStore>,
    /// Settings of type filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Filesystem>,
}

/// Rows in databases.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectDatabaseSink",
    doc = "KollectDatabaseSink keeps inventories as rows of a database.",
    namespaced,
    status = "SinkStatus",
    shortname = "kdb",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    SAME_TYPE,
    NO_LAYOUT,
    NO_PATH_TEMPLATE,
    JSON_ONLY,
    ("has(self.postgres) == (self.type == 'postgres')", "type postgres needs postgres, and no other type takes it"),
    ("has(self.bigquery) == (self.type == 'bigquery')", "type bigquery needs bigquery, and no other type takes it"),
    ("has(self.mongodb) == (self.type == 'mongodb')", "type mongodb needs mongodb, and no other type takes it"),
    ("has(self.sqlite) == (self.type == 'sqlite')", "type sqlite needs sqlite.path, and no other type takes it"),
    (
        "!has(self.endpoint)",
        "endpoint has no effect for databases: the address is part of the backend's own settings",
    ),
    (
        "!has(self.secretRef) || self.type == 'bigquery'",
        "secretRef has no effect for this type: credentials are in the Secret of databaseRef",
    ),
    ("self.type != 'sqlite' || !has(self.tls)", "tls has no effect for type sqlite: remove it"),
])))]
pub struct KollectDatabaseSinkSpec {
    /// Which database.
    #[serde(rename = "type")]
    pub type_: DatabaseSinkType,
    /// What all sinks share.
    #[serde(flatten)]
    pub common: SinkCommon,
    /// Settings of type postgres.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Postgres>,
    /// Settings of type bigquery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bigquery: Option<BigQuery>,
    /// Settings of type mongodb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mongodb: Option<MongoDb>,
    /// Settings of type sqlite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<Sqlite>,
}

/// Events in streams.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kollect.dev",
    version = "v1alpha1",
    kind = "KollectEventSink",
    doc = "KollectEventSink sends inventories to a stream, as snapshots or as changes of rows.",
    namespaced,
    status = "SinkStatus",
    shortname = "kevt",
    category = "kollect",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    SAME_TYPE,
    NO_LAYOUT,
    NO_PATH_TEMPLATE,
    JSON_ONLY,
    ("has(self.nats) == (self.type == 'nats')", "type nats needs nats, and no other type takes it"),
    ("has(self.kafka) == (self.type == 'kafka')", "type kafka needs kafka, and no other type takes it"),
    (
        "self.type != 'nats' || has(self.endpoint) || (has(self.nats) && has(self.nats.url))",
        "the address of the server is missing: set nats.url",
    ),
    (
        "!has(self.endpoint) || !has(self.nats) || !has(self.nats.url)",
        "endpoint has no effect next to nats.url: remove one of them",
    ),
    ("self.type != 'kafka' || !has(self.endpoint)", "endpoint has no effect for kafka: use kafka.brokers"),
])))]
pub struct KollectEventSinkSpec {
    /// Which stream.
    #[serde(rename = "type")]
    pub type_: EventSinkType,
    /// What all sinks share.
    #[serde(flatten)]
    pub common: SinkCommon,
    /// What an event holds: the whole snapshot, or one changed row. Absent: snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<EventMode>,
    /// Settings of type nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<Nats>,
    /// Settings of type kafka.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kafka: Option<Kafka>,
}

const SAME_TYPE: (&str, &str) =
    ("self.type == oldSelf.type", "type cannot change: create another sink and move the references");
const NO_LAYOUT: (&str, &str) = ("!has(self.layout)", "layout is only for files: remove it");
const NO_PATH_TEMPLATE: (&str, &str) =
    ("!has(self.pathTemplate)", "pathTemplate is only for files: remove it");
const JSON_ONLY: (&str, &str) = (
    "!has(self.serialization) || ((!has(self.serialization.format) || self.serialization.format == 'json') && (!has(self.serialization.compression) || self.serialization.compression == 'none'))",
    "serialization is json without compression for databases and streams",
);

/// Kinds of snapshot sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotSinkType {
    /// Any Git server.
    #[default]
    Git,
    /// GitLab, optionally by merge request.
    Gitlab,
    /// S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azureblob,
    /// A directory.
    Filesystem,
}

/// Kinds of database sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DatabaseSinkType {
    /// PostgreSQL.
    #[default]
    Postgres,
    /// Google BigQuery.
    Bigquery,
    /// MongoDB.
    Mongodb,
    /// An SQLite file.
    Sqlite,
}

/// Kinds of event sinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventSinkType {
    /// NATS JetStream.
    #[default]
    Nats,
    /// Kafka.
    Kafka,
}

/// What one event of a stream holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventMode {
    /// The whole snapshot.
    #[default]
    Snapshot,
    /// One change of one row.
    Rows,
}

/// What all sinks share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SinkCommon {
    /// URL of the repository, bucket or server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub endpoint: Option<String>,
    /// Secret with the credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Which servers to trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Probe the sink regularly. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_test: Option<bool>,
    /// Name of this cluster in rows and paths, so that several clusters can share a destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub cluster: Option<String>,
    /// Path of documents. Default: inventory/{namespace}/{name} and an extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), extend("x-kubernetes-validations" = path_template()))]
    pub path_template: Option<String>,
    /// Least time between two confirmations of unchanged content, for references without their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_min_interval: Option<GoDuration>,
    /// Least time between two writes of changes. Default: 0s for databases and streams, 10s for Git and files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_change_interval: Option<GoDuration>,
    /// How often the sink is compared with the rows; 0s: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_interval: Option<GoDuration>,
    /// Format of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serialization: Option<Serialization>,
    /// How an inventory is cut into files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Whether the destination may be created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// Settings of the server. PostgreSQL knows statement_timeout (default 5min) and lock_timeout (default 10s); other
    /// keys have no effect, and admission warns about them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "x-kubernetes-validations" = rules(&[
        (
            "self.all(key, !key.matches('(?i)(passw|pwd|secret|token|(api|access|private)[_-]?key|credential)'))",
            "options hold no credentials: put them into a Secret and name it in secretRef",
        ),
    ])))]
    pub options: BTreeMap<String, String>,
}

/// Which servers to trust.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    ("!has(self.caBundle) || !has(self.caSecretRef)", "caBundle and caSecretRef exclude each other: keep one of them"),
])))]
pub struct Tls {
    /// Trust any server. The condition TLSInsecure says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_verify: bool,
    /// Certificates to trust, PEM, base64-encoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "byte"))]
    pub ca_bundle: Option<String>,
    /// Secret with certificates to trust, in key tls.crt, ca.crt or ca.pem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretReference>,
}

/// Format of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Serialization {
    /// Format. Default: yaml in Git, else json.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<FileFormat>,
    /// Compression. Default: zstd for Parquet, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

/// Formats of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// One JSON document.
    Json,
    /// One YAML list.
    Yaml,
    /// Parquet.
    Parquet,
    /// Comma-separated values.
    Csv,
    /// One JSON object per line.
    Ndjson,
}

/// Compressions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression.
    None,
    /// gzip
    Gzip,
    /// Snappy, in Parquet only.
    Snappy,
    /// Zstandard
    Zstd,
}

/// Whether the destination may be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provisioning {
    /// Create what is missing, or never create. Default: ensure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ProvisioningMode>,
    /// Refused: has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rules(&[
        ("!has(self.template)", "naming has no effect: name the table, bucket or topic itself"),
    ])))]
    pub naming: Option<Naming>,
}

/// Whether a missing destination is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProvisioningMode {
    /// Create what is missing.
    #[default]
    Ensure,
    /// Never create or alter anything.
    Existing,
}

/// Refused: has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Naming {
    /// Refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// What a path template may say.
fn path_template() -> Value {
    rules(&[
        ("!self.startsWith('/') && !self.contains('..')", "must be a relative path without .."),
        (
            "self == '' || (self.contains('{namespace}') && self.contains('{name}'))",
            "must contain {namespace} and {name}: two inventories must not share a file",
        ),
        (
            "self.matches('^([^{}]|[{](namespace|name|cluster|generation|extension)[}])*$')",
            "knows only {namespace}, {name}, {cluster}, {generation} and {extension}",
        ),
    ])
}

impl KollectSnapshotSinkSpec {
    /// The format of documents: one answer, whichever field says it.
    pub fn format(&self) -> FileFormat {
        let serialization = self.common.serialization.as_ref().and_then(|s| s.format);
        let object_store = self.object_store.as_ref().and_then(|o| o.format).map(FileFormat::from);
        serialization.or(object_store).unwrap_or(match self.type_ {
            SnapshotSinkType::Git | SnapshotSinkType::Gitlab => FileFormat::Yaml,
            _ => FileFormat::Json,
        })
    }

    /// Every Secret that the sink reads, with the field that names it.
    pub fn secret_refs(&self) -> Vec<(&'static str, &SecretReference)> {
        let git = self.git.as_ref().and_then(|git| git.auth.as_ref()?.secret_ref.as_ref());
        self.common.secret_refs().chain(git.map(|r| ("spec.git.auth.secretRef", r))).collect()
    }
}

impl KollectDatabaseSinkSpec {
    /// Every Secret that the sink reads, with the field that names it.
    pub fn secret_refs(&self) -> Vec<(&'static str, &SecretReference)> {
        let own = [
            self.postgres.as_ref().map(|p| ("spec.postgres.databaseRef", &p.database_ref)),
            self.mongodb.as_ref().map(|m| ("spec.mongodb.databaseRef", &m.database_ref)),
            self.bigquery
                .as_ref()
                .and_then(|b| b.secret_ref.as_ref())
                .map(|r| ("spec.bigquery.secretRef", r)),
        ];
        self.common.secret_refs().chain(own.into_iter().flatten()).collect()
    }
}

impl KollectEventSinkSpec {
    /// Every Secret that the sink reads, with the field that names it.
    pub fn secret_refs(&self) -> Vec<(&'static str, &SecretReference)> {
        let nats = self.nats.as_ref().and_then(|n| n.secret_ref.as_ref());
        let kafka = self.kafka.as_ref().and_then(|k| k.secret_ref.as_ref());
        self.common
            .secret_refs()
            .chain(nats.map(|r| ("spec.nats.secretRef", r)))
            .chain(kafka.map(|r| ("spec.kafka.secretRef", r)))
            .collect()
    }
}

impl SinkCommon {
    fn secret_refs(&self) -> impl Iterator<Item = (&'static str, &SecretReference)> {
        let ca = self.tls.as_ref().and_then(|tls| tls.ca_secret_ref.as_ref());
        self.secret_ref
            .as_ref()
            .map(|r| ("spec.secretRef", r))
            .into_iter()
            .chain(ca.map(|r| ("spec.tls.caSecretRef", r)))
    }
}
