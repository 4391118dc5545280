//! Writes to a sink: the inventory, the claim, and the rows that differ from what the sink holds.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    claim::Claim,
    row::{Row, RowDigest, RowKey},
    schema::Schema,
};

/// Namespace under which cluster inventories appear in sinks.
pub const CLUSTER_NAMESPACE: &str = "cluster";

/// Identifies an inventory in a sink. `cluster` distinguishes clusters that share the sink.
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

/// The rows of one inventory that a sink holds: their keys and digests.
pub type Baseline = BTreeMap<RowKey, RowDigest>;

/// The rows of an inventory that differ from what a sink holds.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Rows that the sink does not have.
    pub added: Vec<Arc<Row>>,
    /// Rows that the sink has with another digest.
    pub changed: Vec<ChangedRow>,
    /// Rows that the sink has and the inventory has not.
    pub removed: Vec<RemovedRow>,
}

/// A row that differs from what a sink holds.
#[derive(Clone, Debug)]
pub struct ChangedRow {
    /// What the sink holds; `None` if only its digest is known, as after a restart.
    pub before: Option<Arc<Row>>,
    /// The row that the sink must hold after the write.
    pub after: Arc<Row>,
}

/// A row to remove from a sink.
#[derive(Clone, Debug)]
pub struct RemovedRow {
    /// Key of the row.
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

    /// The rows to write: added ones, and changed ones with their new content.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &Arc<Row>> {
        self.added.iter().chain(self.changed.iter().map(|changed| &changed.after))
    }
}

/// One write to a sink.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Inventory that the rows belong to.
    pub inventory: &'a InventoryId,
    /// Claim that the writer was granted. The destination refuses the write if it holds another claim.
    pub claim: &'a Claim,
    /// Rows to change. If empty, only the record of the inventory as a whole is updated.
    pub delta: &'a Delta,
    /// All rows of the inventory that are known now, for sinks of [`Delivery::Documents`](crate::sink::Delivery). Rows of the sink whose
    /// objects cannot be seen are neither here nor among the removed ones: the document must keep them.
    pub rows: &'a BTreeMap<RowKey, Arc<Row>>,
    /// What the targets of the inventory declare about their rows.
    pub schema: &'a Schema,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Number of the last change that the rows contain.
    pub revision: u64,
    /// `complete`, or the parts that are blind: those that could not be listed or watched.
    pub coverage: &'a str,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// Checksum of what was sent last, for sinks that cannot be read back.
    pub last_checksum: Option<&'a str>,
}

/// Default size of document parts, in bytes.
pub const PART_BYTES: usize = 1_572_864;

/// The rows of a batch that only has a delta.
static NO_ROWS: BTreeMap<RowKey, Arc<Row>> = BTreeMap::new();

/// The schema of a batch without one.
static NO_SCHEMA: Schema = Schema { targets: BTreeMap::new() };

impl<'a> Batch<'a> {
    /// A write with complete coverage, and defaults for all other fields.
    pub fn new(inventory: &'a InventoryId, claim: &'a Claim, delta: &'a Delta) -> Self {
        Self {
            inventory,
            claim,
            delta,
            rows: &NO_ROWS,
            schema: &NO_SCHEMA,
            generation: 0,
            revision: 0,
            coverage: "complete",
            part_bytes: PART_BYTES,
            last_checksum: None,
        }
    }
}

/// Result of a write that succeeded.
#[derive(Debug, Default)]
pub struct Receipt {
    /// Checksum of the document or event that the sink now holds; rows in databases have none.
    pub checksum: Option<String>,
    /// Rows that the destination cannot hold. All others were written.
    pub refused: Vec<RefusedRow>,
    /// Problems that did not stop the write. Each is reported when it begins, not with every write.
    pub warnings: Vec<String>,
}

/// A row that a destination cannot hold.
#[derive(Clone, Debug)]
pub struct RefusedRow {
    /// Key of the row.
    pub key: RowKey,
    /// Message that names the row and the reason.
    pub why: String,
}
