//! Removes an inventory from a destination that it is no longer written to.
//!
//! A destination is cleaned only under a claim of our own, and only if no other binding of the inventory writes it
//! under another name. To check this, cleaning writes its claim under the old name and reads the claims under the
//! other names: none of them may be the same. A binding that claims in between fences the cleaning.

use std::{collections::BTreeSet, sync::Arc};

use kollect_model::{
    binding::{BindingName, SinkName},
    claim::{Claim, Claimant, TakeOver},
    sink::{Delivery, Sink, SinkError, SinkReason},
};

use super::{
    AttemptStopped, Binding, CurrentClaim, KeptRows, MayWrite, SiblingBinding,
    claims::{self, GrantedClaim},
    deadline,
};
use crate::store::{StoreReader, Visibility};

/// A destination that an inventory is no longer written to.
#[derive(Clone)]
pub struct AbandonedDestination {
    /// The binding that wrote there.
    pub name: BindingName,
    /// Where that is, how to reach it, and as which inventory and cluster. A take-over is never used. If the binding
    /// has moved, its targets are those that the inventory has now; otherwise they do not matter.
    pub binding: Arc<Binding>,
    /// The claim was granted at some time. Otherwise it may have been granted to a process that crashed.
    pub was_granted: bool,
    /// Bindings of the inventory that may write the same destination under another name.
    pub others: Vec<SiblingBinding>,
    /// The binding has another destination now.
    pub moved: bool,
}

/// How cleaning ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleaningOutcome {
    /// Nothing of the inventory is left.
    Removed,
    /// The destination is the one of this sink under another name: nothing was touched.
    SameAs(SinkName),
    /// The inventory has no claim there, or one of another owner: nothing was touched.
    NotOurs,
}

/// Range of the random step of the epoch. Tables of older versions have no ids of writers: there, an epoch that no
/// other claim has distinguishes two destinations.
const EPOCH_STEP: std::ops::Range<i64> = 1..1_000_000;

/// Removes everything of an inventory from a destination, if the claim there belongs to this owner.
pub(crate) async fn clean(
    abandoned: &AbandonedDestination,
    rows: &StoreReader,
    may_write: &MayWrite,
) -> Result<CleaningOutcome, AttemptStopped> {
    let AbandonedDestination { binding, was_granted, others, moved, .. } = abandoned;
    let own = Binding {
        claimant: Claimant { take_over: TakeOver::Never, ..binding.claimant.clone() },
        current: CurrentClaim::default(),
        ..Binding::clone(binding)
    };
    let sink = deadline::open(&*own.sink).await?;
    if sink.delivery() == Delivery::Snapshots {
        let granted = claim(&own, &*sink, 0, may_write).await?;
        sink.forget(&own.inventory, &granted.claim).await?;
        return Ok(CleaningOutcome::Removed);
    }
    let held = claims::held(&*sink, &own.inventory).await?;
    match &held {
        None if !was_granted => return Ok(CleaningOutcome::NotOurs),
        Some(held) if held.owner != own.claimant.owner => return Ok(CleaningOutcome::NotOurs),
        _ => {}
    }
    if let Some(other) =
        held.as_ref().and_then(|held| others.iter().find(|other| other.current.matches(held)))
    {
        return Ok(CleaningOutcome::SameAs(other.name.clone()));
    }
    if *moved {
        check_replaced(&own, &*sink, rows).await?;
    }
    let epoch = held.as_ref().map_or(0, |held| held.epoch) + fastrand::i64(EPOCH_STEP);
    let granted = claim(&own, &*sink, epoch, may_write).await?;
    for other in others {
        if is_same(other, &own, &granted.claim).await? {
            return Ok(CleaningOutcome::SameAs(other.name.clone()));
        }
        let id = other.current.get().and_then(|claim| claim.destination_id);
        if let Some(id) = id.filter(|id| Some(id) == granted.claim.destination_id.as_ref()) {
            other.current.record_copy_of(&id);
        }
    }
    if !may_write() {
        return Err(AttemptStopped::MayNotWrite);
    }
    sink.forget(&own.inventory, &granted.claim).await?;
    Ok(CleaningOutcome::Removed)
}

/// Fails while rows of kinds that a target has left wait for the kinds that it selects now. If this process does not
/// know such rows, they are not in the new destination, so the old one keeps them.
async fn check_replaced(binding: &Binding, sink: &dyn Sink, rows: &StoreReader) -> Result<(), SinkError> {
    if rows.visibilities(&binding.targets).values().all(|visibility| *visibility == Visibility::Everything) {
        // Nothing waits: the destination need not be read.
        return Ok(());
    }
    let snapshot = rows.snapshot_of_seen(&binding.targets, binding.outside.clone());
    let mut baseline = sink.baseline(&binding.inventory).await?;
    baseline.retain(|key, _| !snapshot.rows.contains_key(key));
    let kept = KeptRows::among(&baseline, &snapshot, snapshot.visibilities());
    let waiting: usize = kept.values().map(|kept| kept.waiting).sum();
    if waiting == 0 {
        return Ok(());
    }
    let kinds: BTreeSet<&str> = kept.values().flat_map(|kept| &kept.left_kinds).map(|kind| &**kind).collect();
    let kinds = Vec::from_iter(kinds).join(", ");
    let message = format!(
        "{} holds {waiting} rows of {kinds}: they stay until the kinds that replace them can be listed",
        binding.destination,
    );
    Err(SinkError::new(SinkReason::Incompatible, message))
}

async fn claim(
    binding: &Binding,
    sink: &dyn Sink,
    epoch: i64,
    may_write: &MayWrite,
) -> Result<GrantedClaim, AttemptStopped> {
    if !may_write() {
        return Err(AttemptStopped::MayNotWrite);
    }
    Ok(claims::claim(binding, sink, epoch).await?)
}

/// Whether a claim that was just written is read in the destination of another binding, too.
async fn is_same(other: &SiblingBinding, own: &Binding, written: &Claim) -> Result<bool, SinkError> {
    let sink = deadline::open(&*other.sink).await?;
    if sink.delivery() == Delivery::Snapshots {
        return Ok(false);
    }
    let read = claims::held(&*sink, &own.inventory).await?;
    Ok(read.is_some_and(|read| read.is_same_writer(written)))
}
