//! The claims of inventories on a branch: each has a ref of its own, so that the history contains only rows.
//!
//! The ref names a commit without files whose message is the claim. It is changed by compare and swap, and checked
//! again at the moment of a push.

use std::sync::{Arc, PoisonError};

use git2::{Oid, Repository, Signature};
use kollect_model::{
    batch::InventoryId,
    claim::{Claim, Claimant},
    sink::{SinkError, SinkReason},
};
use tokio::time;

use super::{
    branch::{ATTEMPTS, Branch, PAUSES, RemoteState, blocking},
    commit::{self, InventoryWrite},
    mirror::{GitError, Mirror},
    transport::RejectedPush,
};
use crate::layout::paths;

impl Branch {
    /// Claims an inventory.
    pub(super) async fn claim(
        &self,
        inventory: &InventoryId,
        claimant: &Claimant,
    ) -> Result<Claim, SinkError> {
        let _guard = self.mirror_lock.lock().await;
        let mirror = self.mirror().await?;
        let reference = self.claim_ref(inventory);
        let mut backoff = PAUSES;
        for _ in 0..ATTEMPTS {
            let refs = self.remote.refs().await?;
            let found = refs.refs.get(&reference).copied();
            let held = self.claim_at(&mirror, found).await?;
            let granted = claimant.take(inventory, held.as_ref())?;
            let claim = granted.clone();
            let created =
                blocking(&mirror, move |mirror| claim_commit(&mirror.repository()?, &claim)).await?;
            let (commit, pack) = created.map_err(|failure| self.mirror_error(failure))?;
            match self.remote.push(&reference, found.unwrap_or(Oid::ZERO_SHA1), commit, &[], pack).await? {
                Ok(()) => {
                    self.remember(commit, &granted);
                    return Ok(granted);
                }
                Err(RejectedPush::NonFastForward(_)) => time::sleep(backoff.next(fastrand::f64())).await,
                Err(RejectedPush::Refused(refusal)) => {
                    let why = format!(
                        "claim inventory {inventory} in {}: the server does not take {reference}, where \
                         Kollect keeps its claim: {refusal}",
                        self.destination
                    );
                    return Err(SinkError::new(SinkReason::Forbidden, why));
                }
            }
        }
        let why = format!(
            "claim inventory {inventory} in {}: other writers claimed it first, again and again",
            self.destination
        );
        Err(SinkError::new(SinkReason::Busy, why))
    }

    /// The claims of some inventories, in their order: lists the refs once, and fetches each claim that is new.
    pub(super) async fn held_claims(
        &self,
        inventories: &[InventoryId],
    ) -> Result<Vec<Option<Claim>>, SinkError> {
        let _guard = self.mirror_lock.lock().await;
        let refs = self.remote.refs().await?;
        let mirror = self.mirror().await?;
        let mut claims = Vec::with_capacity(inventories.len());
        for inventory in inventories {
            let found = refs.refs.get(&self.claim_ref(inventory)).copied();
            claims.push(self.claim_at(&mirror, found).await?);
        }
        Ok(claims)
    }

    /// Releases the claim of an inventory.
    pub(super) async fn release(&self, inventory: &InventoryId, granted: &Claim) -> Result<(), SinkError> {
        let _guard = self.mirror_lock.lock().await;
        let mirror = self.mirror().await?;
        let reference = self.claim_ref(inventory);
        let refs = self.remote.refs().await?;
        let Some(found) = refs.refs.get(&reference).copied() else { return Ok(()) };
        Claim::admits(self.claim_at(&mirror, Some(found)).await?.as_ref(), inventory, granted)?;
        match self.remote.push(&reference, found, Oid::ZERO_SHA1, &[], bytes::Bytes::new()).await? {
            Ok(()) => Ok(()),
            Err(rejected) => {
                let (reason, why) = match rejected {
                    RejectedPush::NonFastForward(why) => (SinkReason::Busy, why),
                    RejectedPush::Refused(why) => (SinkReason::Forbidden, why),
                };
                Err(SinkError::new(reason, format!("remove {reference} in {}: {why}", self.destination)))
            }
        }
    }

    /// Returns an error unless the request holds the claim. Returns the ref of the claim and its commit.
    pub(super) async fn check_claim(
        &self,
        mirror: &Arc<Mirror>,
        state: &RemoteState,
        request: &InventoryWrite,
    ) -> Result<(String, Oid), SinkError> {
        if request.operation.is_write() {
            self.check_exists(state)?;
        }
        let reference = self.claim_ref(&request.inventory);
        let found = state.refs.refs.get(&reference).copied();
        let held = self.claim_at(mirror, found).await?;
        Claim::admits(held.as_ref(), &request.inventory, &request.claim)?;
        Ok((reference, found.unwrap_or(Oid::ZERO_SHA1)))
    }

    /// The claim in a commit.
    async fn claim_at(&self, mirror: &Arc<Mirror>, commit: Option<Oid>) -> Result<Option<Claim>, SinkError> {
        let Some(commit) = commit else { return Ok(None) };
        let known = self.claims.lock().unwrap_or_else(PoisonError::into_inner).get(&commit).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let read = move |mirror: &Mirror| Ok(claim_of(&mirror.repository()?, commit));
        let mut claim = blocking(mirror, read).await?.map_err(|failure| self.mirror_error(failure))?;
        if claim.is_none() {
            self.fetch(mirror, commit, &[], 1).await?.map_err(|failure| self.mirror_error(failure))?;
            claim = blocking(mirror, read).await?.map_err(|failure| self.mirror_error(failure))?;
        }
        let Some(claim) = claim else {
            let why = format!(
                "read commit {commit} in {}, where Kollect keeps a claim: it was changed by others; remove the ref \
                 that names it and start again",
                self.destination
            );
            return Err(SinkError::new(SinkReason::Incompatible, why));
        };
        self.remember(commit, &claim);
        Ok(Some(claim))
    }

    fn remember(&self, commit: Oid, claim: &Claim) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claims.len() > 1000 {
            claims.clear();
        }
        claims.insert(commit, claim.clone());
    }

    /// The ref of the claim of an inventory.
    fn claim_ref(&self, inventory: &InventoryId) -> String {
        let directory = paths::inventory_directory(inventory);
        let name = directory.rsplit('/').next().unwrap_or(&directory);
        let safe: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        format!("refs/kollect/{}/{safe}", self.key.remote.branch)
    }
}

/// The commit of a claim, which has no files.
fn claim_commit(repository: &Repository, claim: &Claim) -> Result<(Oid, bytes::Bytes), GitError> {
    repository.odb()?.add_new_mempack_backend(1000)?;
    let tree = repository.treebuilder(None)?.write()?;
    let signature = Signature::now("kollect", "kollect@kollect.dev")?;
    // The message contains the id of the claim, so two claims of the same second are two commits.
    let message = serde_json::to_string(claim).expect("a claim is always JSON");
    let commit =
        repository.commit(None, &signature, &signature, &message, &repository.find_tree(tree)?, &[])?;
    Ok((commit, commit::pack(repository, &[tree, commit])?))
}

fn claim_of(repository: &Repository, commit: Oid) -> Option<Claim> {
    let commit = repository.find_commit(commit).ok()?;
    serde_json::from_slice(commit.message_bytes()).ok()
}
