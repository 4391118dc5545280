//! The claims of an inventory: one small file for each; the one with the highest epoch is valid.
//!
//! Creating a file is atomic and fails if it exists, so no two claims have the same epoch.

use bytes::Bytes;
use kollect_model::{
    batch::InventoryId,
    claim::{Claim, Claimant},
    sink::{SinkError, SinkReason},
};

use super::blobs::Blobs;

/// How many times other writers may claim first before this one gives up.
const ATTEMPTS: usize = 32;

fn claim_file(inventory_directory: &str, epoch: i64) -> String {
    format!("{inventory_directory}/claim-{epoch:019}.json")
}

/// The epochs of all claims that have a file, ascending.
async fn epochs(blobs: &dyn Blobs, inventory_directory: &str) -> Result<Vec<i64>, SinkError> {
    let prefix = format!("{inventory_directory}/claim-");
    let number = |path: &String| path.strip_prefix(&prefix)?.strip_suffix(".json")?.parse().ok();
    let mut epochs: Vec<i64> = blobs.list(inventory_directory).await?.iter().filter_map(number).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// The claim of an inventory.
pub(super) async fn held(blobs: &dyn Blobs, inventory_directory: &str) -> Result<Option<Claim>, SinkError> {
    for _ in 0..ATTEMPTS {
        let Some(epoch) = epochs(blobs, inventory_directory).await?.pop() else { return Ok(None) };
        // Removed since it was listed: there is a newer one.
        let Some(bytes) = blobs.read(&claim_file(inventory_directory, epoch)).await? else { continue };
        let claim = serde_json::from_slice::<Claim>(&bytes).ok().filter(|claim| claim.epoch == epoch);
        let Some(claim) = claim else {
            let attempt = format!(
                "{} is damaged: remove the files claim-* beside it and start again",
                claim_file(inventory_directory, epoch)
            );
            return Err(SinkError::new(SinkReason::Incompatible, attempt));
        };
        return Ok(Some(claim));
    }
    Err(busy(inventory_directory))
}

/// Claims an inventory.
pub(super) async fn claim(
    blobs: &dyn Blobs,
    inventory_directory: &str,
    inventory: &InventoryId,
    claimant: &Claimant,
) -> Result<Claim, SinkError> {
    for _ in 0..ATTEMPTS {
        let held = held(blobs, inventory_directory).await?;
        let granted = claimant.take(inventory, held.as_ref())?;
        let bytes = serde_json::to_vec(&granted).expect("a claim is always JSON");
        if !blobs.create(&claim_file(inventory_directory, granted.epoch), Bytes::from(bytes)).await? {
            continue;
        }
        let epochs = epochs(blobs, inventory_directory).await?;
        if epochs.last() != Some(&granted.epoch) {
            // Another writer has claimed a higher epoch in the meantime.
            blobs.delete(&claim_file(inventory_directory, granted.epoch)).await?;
            continue;
        }
        for old in epochs.iter().filter(|epoch| **epoch < granted.epoch) {
            blobs.delete(&claim_file(inventory_directory, *old)).await?;
        }
        return Ok(granted);
    }
    Err(busy(inventory_directory))
}

/// Removes the claim.
pub(super) async fn remove(blobs: &dyn Blobs, inventory_directory: &str) -> Result<(), SinkError> {
    for epoch in epochs(blobs, inventory_directory).await? {
        blobs.delete(&claim_file(inventory_directory, epoch)).await?;
    }
    Ok(())
}

fn busy(inventory_directory: &str) -> SinkError {
    SinkError::new(
        SinkReason::Busy,
        format!("claim {inventory_directory}: other writers claimed it first, again and again"),
    )
}
