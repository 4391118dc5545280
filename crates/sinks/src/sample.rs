//! A few made-up rows, for previews.

use std::sync::Arc;

use kollect_model::{
    batch::{Batch, Delta, InventoryId},
    claim::Claim,
    row::{Row, RowKey, TargetId},
};
use serde_json::{Value, json, value::to_raw_value};

/// The time of the sample export. It is constant, so that a preview changes only with its sink.
pub(crate) const TIME: &str = "2026-01-01T00:00:00Z";

/// Sample rows for a preview.
pub(crate) struct SampleRows {
    pub(crate) inventory: InventoryId,
    pub(crate) claim: Claim,
    delta: Delta,
}

impl SampleRows {
    /// `whole_objects`: each row is a whole object.
    pub(crate) fn new(cluster: &str, whole_objects: bool) -> Self {
        let row = |number: u8, name: &str, replicas: u32| {
            let attributes = if whole_objects {
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
            claim: Claim { epoch: 1, ..Claim::default() },
            delta: Delta { added, ..Delta::default() },
        }
    }

    /// The batch that writes the sample rows.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { generation: 1, revision: 1, ..Batch::new(&self.inventory, &self.claim, &self.delta) }
    }
}

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
