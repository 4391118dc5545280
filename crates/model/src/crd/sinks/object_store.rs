//! Settings of S3, GCS and Azure Blob sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileFormat;

/// Settings of an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStore {
    /// Another way to set serialization.format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<ObjectFormat>,
    /// Attributes that become columns of Parquet files. Default: image, version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub hot_attributes: Vec<String>,
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
