//! The claim of a binding: how it is requested, how other bindings see it, and how often it is checked.

use std::{
    collections::BTreeMap,
    mem, slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Unit;
use kollect_model::{
    backoff::Backoff,
    batch::InventoryId,
    binding::SinkName,
    claim::{Claim, Claimant, WriterProgram},
    sink::{Delivery, Sink, SinkError, SinkReason},
};
use tokio::time::Instant;

use super::{Binding, OpenSink};
use crate::{clock, schedule::TerminalPauses};

/// The claim that a binding holds now, visible to other bindings of its inventory. Empty while the binding holds
/// none, or does not know whether it does.
#[derive(Clone, Debug, Default)]
pub struct CurrentClaim(Arc<Mutex<ClaimState>>);

#[derive(Debug, Default)]
struct ClaimState {
    claim: Option<Claim>,
    /// Epoch of the last claim that was granted.
    last_epoch: i64,
    /// Ids of destinations that this one turned out to be a copy of.
    copy_of: Vec<String>,
}

impl CurrentClaim {
    fn lock(&self) -> MutexGuard<'_, ClaimState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim.
    pub fn get(&self) -> Option<Claim> {
        self.lock().claim.clone()
    }

    /// Whether this claim, which was read from a destination, is the one that the binding holds: then the
    /// destination is the one that the binding writes.
    pub(super) fn matches(&self, read: &Claim) -> bool {
        let known = self.lock();
        known.claim.as_ref().is_some_and(|claim| claim.writer_id.is_some() && claim.is_same_writer(read))
    }

    /// Records that the destination is a copy of another one and has its id: the next claim gives it a new id.
    pub(super) fn record_copy_of(&self, id: &str) {
        let mut known = self.lock();
        if !known.copy_of.iter().any(|known| known == id) {
            known.copy_of.push(id.to_owned());
        }
    }

    fn set(&self, claim: &Claim) {
        let mut known = self.lock();
        known.last_epoch = known.last_epoch.max(claim.epoch);
        known.claim = Some(claim.clone());
    }

    fn clear(&self) {
        self.lock().claim = None;
    }
}

/// The bindings of an inventory whose destinations may be the same one under several names. Shared by all of them.
#[derive(Clone, Default)]
pub struct SiblingBindings(Arc<Mutex<Vec<SiblingBinding>>>);

impl SiblingBindings {
    /// Replaces the bindings.
    pub fn set(&self, siblings: Vec<SiblingBinding>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = siblings;
    }

    /// All bindings except the one with this claim.
    fn except(&self, own: &CurrentClaim) -> Vec<SiblingBinding> {
        let siblings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        siblings.iter().filter(|sibling| !Arc::ptr_eq(&sibling.current.0, &own.0)).cloned().collect()
    }
}

/// A binding of an inventory, whose destination may be the same as that of another one.
#[derive(Clone)]
pub struct SiblingBinding {
    /// Its sink, for messages.
    pub name: SinkName,
    /// The claim that it holds.
    pub current: CurrentClaim,
    /// How to reach its destination.
    pub sink: Arc<dyn OpenSink>,
}

/// A claim that was granted. Other bindings see it until it is dropped.
pub(super) struct GrantedClaim {
    pub(super) claim: Claim,
    current: CurrentClaim,
}

impl Drop for GrantedClaim {
    fn drop(&mut self) {
        self.current.clear();
    }
}

/// Claims the inventory of a binding, for the first time or again. The epoch is higher than `epoch`.
pub(super) async fn claim(binding: &Binding, sink: &dyn Sink, epoch: i64) -> Result<GrantedClaim, SinkError> {
    let Binding { inventory, claimant, current, .. } = binding;
    // Until the sink answers, it is not known which claim the destination holds.
    current.clear();
    let (last_epoch, copy_of) = {
        let known = current.lock();
        (known.last_epoch.max(epoch), known.copy_of.clone())
    };
    let at = clock::timestamp().round(Unit::Second).unwrap_or_default().to_string();
    let id = format!("{:032x}", fastrand::u128(..));
    let claimant = Claimant { id, at, last_epoch, copy_of, ..claimant.clone() };
    let claim = sink.claim(inventory, &claimant).await?;
    current.set(&claim);
    Ok(GrantedClaim { claim, current: current.clone() })
}

/// The claim of an inventory as its destination holds it.
pub(super) async fn held(sink: &dyn Sink, inventory: &InventoryId) -> Result<Option<Claim>, SinkError> {
    Ok(sink.claims(slice::from_ref(inventory)).await?.pop().flatten())
}

/// Refuses a destination that must not be claimed although it could be: another binding of the inventory writes it
/// under another name, or the command line has taken it over since this binding held it (`fenced`).
pub(super) async fn check_free(binding: &Binding, sink: &dyn Sink, fenced: bool) -> Result<(), SinkError> {
    let Binding { inventory, claimant, .. } = binding;
    let siblings = binding.siblings.except(&binding.current);
    if sink.delivery() == Delivery::Snapshots || siblings.is_empty() && !fenced {
        return Ok(());
    }
    let Some(held) = held(sink, inventory).await? else { return Ok(()) };
    if let Some(sibling) = siblings.iter().find(|sibling| sibling.current.matches(&held)) {
        let why = format!(
            "two references of one inventory lead to one destination: {} writes it under another name; remove one \
             of them",
            sibling.name
        );
        return Err(SinkError::new(SinkReason::Incompatible, why));
    }
    let by_command_line = held.writer == WriterProgram::Cli && held.owner == claimant.owner;
    if fenced && by_command_line && claimant.writer == WriterProgram::Operator {
        let none = Claim { owner: claimant.owner.clone(), ..Claim::default() };
        return Claim::admits(Some(&held), inventory, &none);
    }
    Ok(())
}

/// Checks the claims of all bindings of a sink together: one request serves all of them.
#[derive(Debug, Default)]
pub struct ClaimChecks {
    /// How many bindings hold a claim for each inventory.
    holders: Mutex<BTreeMap<InventoryId, usize>>,
    checked: tokio::sync::Mutex<CheckedClaims>,
}

#[derive(Debug, Default)]
struct CheckedClaims {
    /// When the last request was sent.
    at: Option<Instant>,
    claims: BTreeMap<InventoryId, Option<Claim>>,
}

/// A binding that takes part in the checks of its sink.
pub(super) struct ClaimCheckMember {
    checks: Arc<ClaimChecks>,
    inventory: InventoryId,
}

impl ClaimChecks {
    fn holders(&self) -> MutexGuard<'_, BTreeMap<InventoryId, usize>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn join(self: &Arc<Self>, inventory: &InventoryId) -> ClaimCheckMember {
        *self.holders().entry(inventory.clone()).or_default() += 1;
        ClaimCheckMember { checks: self.clone(), inventory: inventory.clone() }
    }
}

impl ClaimCheckMember {
    /// The claim as the destination holds it, and when it was read. A result that was read for another binding is
    /// used if it is not older than `interval`, and newer than `since`: the last write or check of this binding.
    pub(super) async fn held(
        &self,
        sink: &dyn Sink,
        since: Instant,
        interval: Duration,
    ) -> Result<(Option<Claim>, Instant), SinkError> {
        let mut checked = self.checks.checked.lock().await;
        if let Some(at) = checked.at.filter(|at| *at > since && at.elapsed() < interval)
            && let Some(claim) = checked.claims.get(&self.inventory)
        {
            return Ok((claim.clone(), at));
        }
        let inventories: Vec<InventoryId> = self.checks.holders().keys().cloned().collect();
        let at = Instant::now();
        let claims = sink.claims(&inventories).await?;
        *checked = CheckedClaims { at: Some(at), claims: inventories.into_iter().zip(claims).collect() };
        Ok((checked.claims.get(&self.inventory).cloned().flatten(), at))
    }
}

impl Drop for ClaimCheckMember {
    fn drop(&mut self) {
        let mut holders = self.checks.holders();
        if let Some(count) = holders.get_mut(&self.inventory) {
            *count -= 1;
            if *count == 0 {
                holders.remove(&self.inventory);
            }
        }
    }
}

/// Pauses of a binding that another process of its cluster has fenced. They grow: two operators that fence each other
/// would otherwise do so at a constant rate.
const FENCED_PAUSES: Backoff = Backoff::new(Duration::from_secs(5), TerminalPauses::LONG);

/// A claim that was held for this long resets the pauses after a fencing.
const UNDISPUTED: Duration = Duration::from_mins(15);

/// A claim that is lost within this time is claimed again after a pause.
const LOST_AGAIN: Duration = Duration::from_secs(10);

/// What has happened to the claims of a binding since it last changed.
pub(super) struct ClaimDisputes {
    fenced: bool,
    /// When the last claim was granted.
    granted: Option<Instant>,
    pauses: Backoff,
}

impl Default for ClaimDisputes {
    fn default() -> Self {
        Self { fenced: false, granted: None, pauses: FENCED_PAUSES }
    }
}

impl ClaimDisputes {
    /// A claim was granted.
    pub(super) fn granted(&mut self) {
        (self.fenced, self.granted) = (false, Some(Instant::now()));
    }

    fn was_held_for(&self, time: Duration) -> bool {
        self.granted.is_none_or(|granted| granted.elapsed() >= time)
    }

    /// Another writer has claimed the inventory. Returns how long to wait before it is claimed again.
    pub(super) fn fenced(&mut self) -> Duration {
        if !mem::replace(&mut self.fenced, true) && self.was_held_for(UNDISPUTED) {
            self.pauses = FENCED_PAUSES;
        }
        self.pauses.next(fastrand::f64())
    }

    /// Whether another writer has claimed the inventory.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Whether a claim that is lost may be claimed again without a pause.
    pub(super) fn may_claim_at_once(&self) -> bool {
        self.was_held_for(LOST_AGAIN)
    }
}
