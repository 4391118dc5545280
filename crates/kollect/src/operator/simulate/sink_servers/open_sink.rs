//! A process's connection to a destination: what each request of a [`Sink`] sends.

use std::sync::Arc;

use async_trait::async_trait;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use kollect_sinks::{Plan, Policy};

use super::{ProcessSinks, Sender, SinkServers, destination_of, is_atomic, requests::RowWrite};
use crate::operator::{
    bindings::OpenPlan,
    simulate::network::{Client, Lost, Sent, Server},
};

/// A connection to a destination.
struct OpenSink {
    servers: SinkServers,
    sender: Sender,
    destination: Arc<str>,
}

#[async_trait]
impl OpenPlan for ProcessSinks {
    async fn open(&self, plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError> {
        let destination = plan.destination(policy).to_string();
        let destination = destination_of(&destination).into();
        let Self { servers, sender } = self;
        let sink = OpenSink { servers: servers.clone(), sender: sender.clone(), destination };
        sink.send("connect", false, |servers, destination, _| servers.check(destination, "connect")).await?;
        Ok(Box::new(sink))
    }
}

impl OpenSink {
    async fn send<T: Send + 'static>(
        &self,
        attempt: &str,
        changes: bool,
        apply: impl FnOnce(&SinkServers, &str, Client) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let destination = self.destination.clone();
        let sent = Sent {
            to: Server::Destination(&self.destination),
            what: format!("{attempt} {destination}"),
            changes,
            takes: self.servers.lock().duration(&destination),
        };
        let (servers, own) = (self.servers.clone(), destination.clone());
        let answer = self.sender.link.send(sent, move |client| apply(&servers, &own, client)).await;
        answer.unwrap_or_else(|lost: Lost| {
            Err(SinkError::because(SinkReason::Unreachable, attempt.to_owned(), lost))
        })
    }
}

#[async_trait]
impl Sink for OpenSink {
    async fn check(&self) -> Result<(), SinkError> {
        self.send("check", false, |servers, destination, _| servers.check(destination, "check")).await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let inventory = inventory.clone();
        self.send("read", false, move |servers, destination, _| servers.read(destination, &inventory)).await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let (by, inventory, claimant) = (self.sender.clone(), inventory.clone(), claimant.clone());
        self.send("claim", true, move |servers, to, client| {
            servers.claim(to, &by, &inventory, (&claimant, client))
        })
        .await
    }

    fn atomicity(&self) -> Atomicity {
        if is_atomic(&self.destination) { Atomicity::WholeDelta } else { Atomicity::SingleRows }
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let inventories = inventories.to_vec();
        self.send("read claims", false, move |servers, to, _| servers.claims(to, &inventories)).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let rows = RowWrite::of(batch.delta);
        let at_once = if is_atomic(&self.destination) { rows.len().max(1) } else { 1 };
        let mut receipt = Receipt::default();
        let mut rows = rows.into_iter().peekable();
        // The claim is checked even if there are no rows.
        loop {
            let part: Vec<RowWrite> = rows.by_ref().take(at_once).collect();
            let ends = rows.peek().is_none();
            let (by, inventory, claim) = (self.sender.clone(), batch.inventory.clone(), batch.claim.clone());
            let write = self.send("write", true, move |servers, to, _| {
                servers.write(to, &by, &inventory, &claim, (part, ends))
            });
            receipt.refused.extend(write.await?.refused);
            if ends {
                return Ok(receipt);
            }
        }
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let (by, inventory, claim) = (self.sender.clone(), inventory.clone(), claim.clone());
        self.send("clean", true, move |servers, to, _| servers.forget(to, &by, &inventory, &claim)).await
    }
}
