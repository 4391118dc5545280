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

fn file(books: &str, epoch: i64) -> String {
    format!("{books}/claim-{epoch:019}.json")
}

/// The epochs of all claims that have a file, ascending.
async fn epochs(blobs: &dyn Blobs, books: &str) -> Result<Vec<i64>, SinkError> {
    let prefix = format!("{books}/claim-");
    let number = |path: &String| path.strip_prefix(&prefix)?.strip_suffix(".json")?.parse().ok();
    let mut epochs: Vec<i64> = blobs.list(books).await?.iter().filter_map(number).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// The claim of an inventory.
pub(super) async fn held(blobs: &dyn Blobs, books: &str) -> Result<Option<Claim>, SinkError> {
    for _ in 0..ATTEMPTS {
        let Some(epoch) = epochs(blobs, books).await?.pop() else { return Ok(None) };
        // Removed since it was listed: there is a newer one.
        let Some(bytes) = blobs.read(&file(books, epoch)).await? else { continue };
        let claim = serde_json::from_slice::<Claim>(&bytes).ok().filter(|claim| claim.epoch == epoch);
        let Some(claim) = claim else {
            let attempt = format!(
                "{} is damaged: remove the files claim-* beside it and start again",
                file(books, epoch)
            );
            return Err(SinkError::new(SinkReason::Incompatible, attempt));
        };
        return Ok(Some(claim));
    }
    Err(busy(books))
}

/// Claims an inventory.
pub(super) async fn claim(
    blobs: &dyn Blobs,
    books: &str,
    inventory: &InventoryId,
    claimant: &Claimant,
) -> Result<Claim, SinkError> {
    for _ in 0..ATTEMPTS {
        let held = held(blobs, books).await?;
        let granted = claimant.take(inventory, held.as_ref())?;
        let bytes = serde_json::to_vec(&granted).expect("a claim is always JSON");
        if !blobs.create(&file(books, granted.epoch), Bytes::from(bytes)).await? {
            continue;
        }
        let epochs = epochs(blobs, books).await?;
        if epochs.last() != Some(&granted.epoch) {
            // Another writer has claimed a higher epoch in the meantime.
            blobs.delete(&file(books, granted.epoch)).await?;
            continue;
        }
        for old in epochs.iter().filter(|epoch| **epoch < granted.epoch) {
            blobs.delete(&file(books, *old)).await?;
        }
        return Ok(granted);
    }
    Err(busy(books))
}

/// Removes the claim.
pub(super) async fn forget(blobs: &dyn Blobs, books: &str) -> Result<(), SinkError> {
    for epoch in epochs(blobs, books).await? {
        blobs.delete(&file(books, epoch)).await?;
    }
    Ok(())
}

fn busy(books: &str) -> SinkError {
    SinkError::new(SinkReason::Busy, format!("claim {books}: others keep claiming it"))
}
