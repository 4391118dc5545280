//! Settings of NATS sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::SecretReference;

/// Settings of a NATS JetStream sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Nats {
    /// URL of the server; absent: the sink's endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub url: Option<String>,
    /// Subject.
    #[schemars(length(min = 1, max = 255))]
    pub subject: String,
    /// Stream; dots become _. Default: kollect_events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub stream: Option<String>,
    /// Secret with token, or username and password; absent: the sink's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}
