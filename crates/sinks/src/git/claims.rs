//! Who may write an inventory on a branch: a ref of its own for each, so that history tells about rows alone.
//!
//! The ref names a commit without files whose message is the record. It is moved by compare and swap, and looked
//! at again in the moment of a push.

use std::sync::{Arc, PoisonError};

use git2::{Oid, Repository, Signature};
use kollect_model::{
    batch::InventoryId,
    claim::{Claim, Claimant, Holder},
    sink::{SinkError, SinkReason},
};
use tokio::time;

use super::{
    branch::{ATTEMPTS, Branch, PAUSES, Seen, blocking},
    draw::{self, Work},
    mirror::{Failure, Mirror},
    transport::Rejected,
};
use crate::layout::paths;

impl Branch {
    /// Takes the next number for an inventory.
    pub(super) async fn claim(
        &self,
        inventory: &InventoryId,
        claimant: &Claimant,
    ) -> Result<Claim, SinkError> {
        let _turn = self.turn.lock().await;
        let mirror = self.mirror().await?;
        let reference = self.claims(inventory);
        let mut backoff = PAUSES;
        for _ in 0..ATTEMPTS {
            let refs = self.remote.refs().await?;
            let found = refs.refs.get(&reference).copied();
            let held = self.holder(&mirror, found).await?;
            let taken = claimant.take(inventory, held.as_ref())?;
            let record = taken.clone();
            let made = blocking(&mirror, move |mirror| claim_commit(&mirror.repository()?, &record)).await?;
            let (commit, pack) = made.map_err(|failure| self.unusable(failure))?;
            match self.remote.push(&reference, found.unwrap_or(Oid::ZERO_SHA1), commit, &[], pack).await? {
                Ok(()) => {
                    self.remember(commit, &taken);
                    return Ok(taken.claim());
                }
                Err(Rejected::NonFastForward(_)) => time::sleep(backoff.next(fastrand::f64())).await,
                Err(Rejected::Refused(words)) => {
                    let why = format!(
                        "claim inventory {inventory} in {}: the server does not take {reference}, where \
                         Kollect notes who writes: {words}",
                        self.place
                    );
                    return Err(SinkError::new(SinkReason::Forbidden, why));
                }
            }
        }
        let why = format!("claim inventory {inventory} in {}: others keep claiming it", self.place);
        Err(SinkError::new(SinkReason::Busy, why))
    }

    /// Gives an inventory back.
    pub(super) async fn release(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let _turn = self.turn.lock().await;
        let mirror = self.mirror().await?;
        let reference = self.claims(inventory);
        let refs = self.remote.refs().await?;
        let Some(found) = refs.refs.get(&reference).copied() else { return Ok(()) };
        Holder::admits(self.holder(&mirror, Some(found)).await?.as_ref(), inventory, claim)?;
        match self.remote.push(&reference, found, Oid::ZERO_SHA1, &[], bytes::Bytes::new()).await? {
            Ok(()) => Ok(()),
            Err(rejected) => {
                let (reason, words) = match rejected {
                    Rejected::NonFastForward(words) => (SinkReason::Busy, words),
                    Rejected::Refused(words) => (SinkReason::Forbidden, words),
                };
                Err(SinkError::new(reason, format!("remove {reference} in {}: {words}", self.place)))
            }
        }
    }

    /// The ref that says that a work may be done, and where it is.
    pub(super) async fn admitted(
        &self,
        mirror: &Arc<Mirror>,
        seen: &Seen,
        work: &Work,
    ) -> Result<(String, Oid), SinkError> {
        if work.task.is_write() {
            self.exists(seen)?;
        }
        let reference = self.claims(&work.inventory);
        let Some(found) = seen.refs.refs.get(&reference).copied() else {
            let why = format!(
                "write inventory {} in {}: the ref {reference} is gone, where Kollect notes who writes; it is \
                 claimed again",
                work.inventory, self.place
            );
            return Err(SinkError::new(SinkReason::Busy, why));
        };
        let held = self.holder(mirror, Some(found)).await?;
        Holder::admits(held.as_ref(), &work.inventory, &work.claim)?;
        Ok((reference, found))
    }

    /// What a claim says.
    async fn holder(&self, mirror: &Arc<Mirror>, claim: Option<Oid>) -> Result<Option<Holder>, SinkError> {
        let Some(claim) = claim else { return Ok(None) };
        let known = self.holders.lock().unwrap_or_else(PoisonError::into_inner).get(&claim).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let read = move |mirror: &Mirror| Ok(claim_of(&mirror.repository()?, claim));
        let mut holder = blocking(mirror, read).await?.map_err(|failure| self.unusable(failure))?;
        if holder.is_none() {
            self.fetch(mirror, claim, &[], 1).await?.map_err(|failure| self.unusable(failure))?;
            holder = blocking(mirror, read).await?.map_err(|failure| self.unusable(failure))?;
        }
        let Some(holder) = holder else {
            let why = format!(
                "read commit {claim} in {}, where Kollect notes who writes: somebody has changed it; remove \
                 the ref that names it and start again",
                self.place
            );
            return Err(SinkError::new(SinkReason::Incompatible, why));
        };
        self.remember(claim, &holder);
        Ok(Some(holder))
    }

    fn remember(&self, claim: Oid, holder: &Holder) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.len() > 1000 {
            holders.clear();
        }
        holders.insert(claim, holder.clone());
    }

    /// The ref of the claims of an inventory.
    fn claims(&self, inventory: &InventoryId) -> String {
        let books = paths::books(inventory);
        let name = books.rsplit('/').next().unwrap_or(&books);
        let safe: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        format!("refs/kollect/{}/{safe}", self.key.remote.branch)
    }
}

/// The commit of a claim, which has no files.
fn claim_commit(repository: &Repository, holder: &Holder) -> Result<(Oid, bytes::Bytes), Failure> {
    repository.odb()?.add_new_mempack_backend(1000)?;
    let tree = repository.treebuilder(None)?.write()?;
    let signature = Signature::now("kollect", "kollect@kollect.dev")?;
    let mut record = serde_json::to_value(holder).expect("a holder is always JSON");
    // Two claims of the same second are two commits.
    record["nonce"] = format!("{:016x}", fastrand::u64(..)).into();
    let message = record.to_string();
    let commit =
        repository.commit(None, &signature, &signature, &message, &repository.find_tree(tree)?, &[])?;
    Ok((commit, draw::pack(repository, &[tree, commit])?))
}

fn claim_of(repository: &Repository, commit: Oid) -> Option<Holder> {
    let commit = repository.find_commit(commit).ok()?;
    serde_json::from_slice(commit.message_bytes()).ok()
}
