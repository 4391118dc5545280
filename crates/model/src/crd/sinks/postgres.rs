//! Settings of PostgreSQL sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::SecretReference;

/// Settings of a PostgreSQL sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Postgres {
    /// Secret with the connection string in key dsn, url, connectionString or DATABASE_URL. With keys tls.crt and
    /// tls.key (PEM) it also holds a client certificate.
    pub database_ref: SecretReference,
    /// Table.
    #[schemars(length(min = 1, max = 63))]
    pub table: String,
    /// Schema of the table. Default: public.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub schema: Option<String>,
}
