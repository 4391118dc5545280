//! What an export would look like, made from rows that nobody has collected. Nothing is opened.
//!
//! The same code draws files, messages and statements that writes them later, so a preview cannot lie.

#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
use std::sync::Arc;

use kollect_model::crd::sinks::Preview;
#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
use kollect_model::{
    batch::{Batch, Delta, InventoryId},
    claim::Claim,
    row::{Row, RowKey, TargetId},
};
#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
use serde_json::{Value, json, value::to_raw_value};

use crate::Plan;

/// When the sample is exported. It stands still, so that a preview changes only with its sink.
#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
pub(crate) const TIME: &str = "2026-01-01T00:00:00Z";

impl Plan {
    /// What an export of a few made-up rows would look like, in a cluster that the sink calls so.
    #[cfg_attr(
        not(any(feature = "filesystem", feature = "git", feature = "nats")),
        expect(unused_variables, reason = "tables look the same in every cluster")
    )]
    pub fn preview(&self, cluster: &str) -> Preview {
        let preview = match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.preview(),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => config.preview(),
            #[cfg(feature = "filesystem")]
            Self::Filesystem(config) => config.preview(cluster),
            #[cfg(feature = "git")]
            Self::Git(config) => config.preview(cluster),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.preview(cluster),
        };
        Preview { input_sample_source: Some("synthetic".into()), ..preview }
    }
}

/// The part of a preview that says what is created, with a warning if that is nothing.
pub(crate) fn provisioned(create: bool, what: &str) -> Preview {
    let mode = if create { "ensure" } else { "existing" };
    let warning = format!("provisioning.mode is existing: {what}");
    Preview {
        provisioning_mode: Some(mode.into()),
        serialization_format: Some("json".into()),
        warnings: if create { Vec::new() } else { vec![warning] },
        ..Preview::default()
    }
}

/// Rows that nobody has collected.
#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
pub(crate) struct Sample {
    pub(crate) inventory: InventoryId,
    pub(crate) claim: Claim,
    delta: Delta,
}

#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
impl Sample {
    /// `whole`: each row is a whole object.
    pub(crate) fn new(cluster: &str, whole: bool) -> Self {
        let row = |number: u8, name: &str, replicas: u32| {
            let attributes = if whole {
                json!({ "resource": {
                    "apiVersion": "apps/v1", "kind": "Deployment",
                    "metadata": { "name": name, "namespace": "team-a" }, "spec": { "replicas": replicas },
                } })
            } else {
                json!({ "image": format!("registry.example.com/{name}:1.4.2"), "replicas": replicas })
            };
            Arc::new(sample_row(number, name, &attributes))
        };
        let added = vec![row(1, "api", 3), row(2, "web", 2)];
        Self {
            inventory: InventoryId {
                cluster: cluster.to_owned(),
                namespace: Some("team-a".into()),
                name: "api".into(),
            },
            claim: Claim { owner: None, epoch: 1 },
            delta: Delta { added, ..Delta::default() },
        }
    }

    /// The write that brings them.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { generation: 1, revision: 1, ..Batch::new(&self.inventory, &self.claim, &self.delta) }
    }
}

#[cfg(any(feature = "filesystem", feature = "git", feature = "nats"))]
fn sample_row(number: u8, name: &str, attributes: &Value) -> Row {
    let key = RowKey {
        target: TargetId { namespace: Some("team-a".into()), name: "deployments".into() },
        group: "apps".into(),
        kind: "Deployment".into(),
        namespace: "team-a".into(),
        uid: format!("00000000-0000-4000-8000-0000000000{number:02x}").into(),
    };
    let attributes = to_raw_value(attributes).expect("a value is JSON");
    Row::new(key, "v1".into(), name.into(), attributes.into())
}
