//! Settings of Kafka sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::shapes::SecretReference;

/// Settings of a Kafka sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Kafka {
    /// Brokers to start from, as host:port.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 260)), extend("x-kubernetes-list-type" = "atomic"))]
    pub brokers: Vec<String>,
    /// Topic.
    #[schemars(length(min = 1, max = 249))]
    pub topic: String,
    /// Secret with username and password; absent: the sink's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}
