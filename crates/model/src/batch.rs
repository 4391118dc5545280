//! What travels to a sink: whose rows, and which of them differ from what the sink holds.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::row::{Row, RowDigest, RowKey};

/// Namespace under which cluster inventories appear in sinks.
pub const CLUSTER_NAMESPACE: &str = "cluster";

/// An inventory in a sink. Clusters that share a sink are told apart by `cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InventoryId {
    /// Name of the cluster; empty when the sink has none.
    pub cluster: String,
    /// Namespace of a KollectInventory; `None` for a KollectClusterInventory.
    pub namespace: Option<String>,
    /// Name of the inventory.
    pub name: String,
}

impl InventoryId {
    /// The namespace as sinks store it.
    pub fn stored_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE)
    }
}

impl fmt::Display for InventoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stored_namespace(), self.name)
    }
}

/// What a sink holds of one inventory.
pub type Baseline = BTreeMap<RowKey, RowDigest>;

/// The rows of an inventory that differ from what a sink holds.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Rows that the sink does not have.
    pub added: Vec<Arc<Row>>,
    /// Rows that the sink has with another digest.
    pub changed: Vec<Arc<Row>>,
    /// Rows that the sink has and the inventory has not.
    pub removed: Vec<RowKey>,
}

impl Delta {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

/// The right to write an inventory in a sink, until somebody else claims it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The cluster that owns the inventory; `None` for a run that knows no cluster. Such a run writes
    /// unowned inventories only.
    pub owner: Option<String>,
    /// Grows with every claim: a write with an older one comes too late.
    pub epoch: i64,
}

/// One write.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Whose rows.
    pub inventory: &'a InventoryId,
    /// By what right.
    pub claim: &'a Claim,
    /// What to change.
    pub delta: &'a Delta,
}
