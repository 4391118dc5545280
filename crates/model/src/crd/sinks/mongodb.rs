//! Settings of MongoDB sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::SecretReference;

/// Settings of a MongoDB sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MongoDb {
    /// Secret with the connection string in key uri, url, connectionString or MONGODB_URI.
    pub database_ref: SecretReference,
    /// Database.
    #[schemars(length(min = 1, max = 63))]
    pub database: String,
    /// Collection.
    #[schemars(length(min = 1, max = 255))]
    pub collection: String,
}
