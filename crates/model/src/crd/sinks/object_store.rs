//! Settings of S3, GCS and Azure Blob sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FileFormat, rules};

/// Settings of an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStore {
    /// Another way to set serialization.format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<ObjectFormat>,
    /// Attributes that have columns in Parquet and CSV. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub hot_attributes: Vec<String>,
    /// Region of the bucket, in S3. Default: us-east-1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub region: Option<String>,
    /// Name the bucket in the path of requests and not in the host, in S3. Default: true if endpoint names a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_style: Option<bool>,
    /// Class of the stored objects, such as STANDARD_IA.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub storage_class: Option<String>,
    /// How S3 encrypts the stored objects. Default: as the bucket says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<ObjectEncryption>,
    /// Keep the files generation=*.parquet of the Go implementation. Default: they are removed when the document has been written and
    /// read back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_generations: bool,
    /// Accept a store that does not keep the conditions of puts: two writers may overwrite each other. The condition Unconditional says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconditional: bool,
}

/// How a store encrypts objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    ("!has(self.kmsKeyID) || self.type == 'SSE-KMS'", "kmsKeyID is only for type SSE-KMS: remove it or change type"),
])))]
pub struct ObjectEncryption {
    /// SSE-S3 or SSE-KMS.
    #[serde(rename = "type")]
    pub type_: EncryptionType,
    /// Key of type SSE-KMS. Default: the key of the account.
    #[serde(rename = "kmsKeyID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub kms_key_id: Option<String>,
}

/// Kinds of encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EncryptionType {
    /// With keys of S3.
    #[serde(rename = "SSE-S3")]
    S3,
    /// With a key of the key management service.
    #[serde(rename = "SSE-KMS")]
    Kms,
}

/// Formats that objectStore.format knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectFormat {
    /// JSON.
    Json,
    /// Parquet.
    Parquet,
}

impl From<ObjectFormat> for FileFormat {
    fn from(format: ObjectFormat) -> Self {
        match format {
            ObjectFormat::Json => Self::Json,
            ObjectFormat::Parquet => Self::Parquet,
        }
    }
}
