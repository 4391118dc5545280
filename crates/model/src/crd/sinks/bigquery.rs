//! Settings of BigQuery sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::SecretReference;

/// Settings of a BigQuery sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BigQuery {
    /// Project.
    #[schemars(length(min = 1, max = 253))]
    pub project: String,
    /// Dataset; it must exist.
    #[schemars(length(min = 1, max = 1024))]
    pub dataset: String,
    /// Table.
    #[schemars(length(min = 1, max = 1024))]
    pub table: String,
    /// Location of jobs. Default: that of the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub location: Option<String>,
    /// Secret with credentials.json; absent: the environment's credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}
