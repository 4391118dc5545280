//! What travels to a sink: whose rows, and which of them differ from what the sink holds.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    claim::Claim,
    row::{Row, RowDigest, RowKey},
};

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
    pub changed: Vec<Changed>,
    /// Rows that the sink has and the inventory has not.
    pub removed: Vec<Removed>,
}

/// A row that differs from what a sink holds.
#[derive(Clone, Debug)]
pub struct Changed {
    /// What the sink holds; `None` if only its digest is known, as after a restart.
    pub before: Option<Arc<Row>>,
    /// What it shall hold.
    pub after: Arc<Row>,
}

/// A row that a sink shall no longer hold.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Which row.
    pub key: RowKey,
    /// What the sink holds; `None` if only its digest is known.
    pub before: Option<Arc<Row>>,
}

impl Delta {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many rows differ.
    pub fn len(&self) -> usize {
        self.added.len() + self.changed.len() + self.removed.len()
    }

    /// The rows that the sink shall hold, new and changed.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &Arc<Row>> {
        self.added.iter().chain(self.changed.iter().map(|changed| &changed.after))
    }
}

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Whose rows.
    pub inventory: &'a InventoryId,
    /// By what right.
    pub claim: &'a Claim,
    /// What to change. Empty: only what is said about the inventory as a whole.
    pub delta: &'a Delta,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Number of the last change that the rows contain.
    pub revision: u64,
    /// What could be seen: `complete`, or what is blind.
    pub coverage: &'a str,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// Checksum of what was sent last, for sinks that cannot be read back.
    pub last_checksum: Option<&'a str>,
}

/// Size of document parts where nobody says anything.
pub const PART_BYTES: usize = 1_572_864;

impl<'a> Batch<'a> {
    /// A write of complete rows, with no more said about them.
    pub fn new(inventory: &'a InventoryId, claim: &'a Claim, delta: &'a Delta) -> Self {
        Self {
            inventory,
            claim,
            delta,
            generation: 0,
            revision: 0,
            coverage: "complete",
            part_bytes: PART_BYTES,
            last_checksum: None,
        }
    }
}

/// What a sink says about a write that it has made.
#[derive(Debug, Default)]
pub struct Receipt {
    /// Checksum of the document or event that the sink now holds; rows in databases have none.
    pub checksum: Option<String>,
    /// Rows that the destination cannot hold. All others were written.
    pub refused: Vec<Refusal>,
    /// What deserves attention and did not stop anything. Told when it begins, not with every write.
    pub warnings: Vec<String>,
}

/// A row that a destination cannot hold.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which row.
    pub key: RowKey,
    /// Names the row and says why.
    pub why: String,
}
