//! Brings one sink up to date with one snapshot: reads what it holds, writes what differs.

use kollect_model::{
    batch::{Batch, Delta, InventoryId},
    sink::{Sink, SinkError},
};

use crate::{delta::difference, store::Snapshot};

/// What an export did.
#[derive(Debug)]
pub struct Outcome {
    /// What was written.
    pub delta: Delta,
    /// Rows that the sink had already.
    pub unchanged: usize,
    /// Rows of the sink that were left alone because nobody looked at their objects.
    pub left_alone: usize,
}

/// Writes the difference, if there is one.
pub async fn export(
    sink: &dyn Sink,
    inventory: &InventoryId,
    owner: Option<&str>,
    snapshot: &Snapshot,
) -> Result<Outcome, SinkError> {
    let baseline = sink.baseline(inventory).await?;
    let delta = difference(&baseline, snapshot);
    if !delta.is_empty() {
        sink.write(&Batch { inventory, owner, delta: &delta }).await?;
    }
    let unchanged = snapshot.rows.len() - delta.added.len() - delta.changed.len();
    let left_alone = baseline.len() - unchanged - delta.changed.len() - delta.removed.len();
    Ok(Outcome { delta, unchanged, left_alone })
}
