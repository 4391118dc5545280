//! A process's connection to a destination: what each request of a [`Sink`] sends.

use std::sync::Arc;

use async_trait::async_trait;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use kollect_sinks::{Plan, SinkPolicy};

use super::{ProcessSinks, SendingProcess, SinkServers, destination_of, is_atomic, requests::RowWrite};
use crate::operator::{
    bindings::OpenPlan,
    simulate::network::{AnswerLost, ClientState, SentRequest, SimulatedServer},
};

/// A connection to a destination.
struct SimulatedSink {
    servers: SinkServers,
    sender: SendingProcess,
    destination: Arc<str>,
}

#[async_trait]
impl OpenPlan for ProcessSinks {
    async fn open(&self, plan: &Plan, policy: &SinkPolicy) -> Result<Box<dyn Sink>, SinkError> {
        let destination = plan.destination(policy).to_string();
        let destination = destination_of(&destination).into();
        let Self { servers, sender } = self;
        let sink = SimulatedSink { servers: servers.clone(), sender: sender.clone(), destination };
        sink.send("connect", false, |servers, destination, _| servers.check(destination, "connect")).await?;
        Ok(Box::new(sink))
    }
}

impl SimulatedSink {
    async fn send<T: Send + 'static>(
        &self,
        attempt: &str,
        may_change: bool,
        apply: impl FnOnce(&SinkServers, &str, ClientState) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let destination = self.destination.clone();
        let request = SentRequest {
            to: SimulatedServer::Destination(&self.destination),
            description: format!("{attempt} {destination}"),
            may_change,
            duration: self.servers.lock().request_duration(&destination),
        };
        let servers = self.servers.clone();
        let answer =
            self.sender.link.send(request, move |client| apply(&servers, &destination, client)).await;
        answer.unwrap_or_else(|lost: AnswerLost| {
            Err(SinkError::because(SinkReason::Unreachable, attempt.to_owned(), lost))
        })
    }
}

#[async_trait]
impl Sink for SimulatedSink {
    async fn check(&self) -> Result<(), SinkError> {
        self.send("check", false, |servers, destination, _| servers.check(destination, "check")).await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let inventory = inventory.clone();
        self.send("read", false, move |servers, destination, _| servers.read(destination, &inventory)).await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let (sender, inventory, claimant) = (self.sender.clone(), inventory.clone(), claimant.clone());
        self.send("claim", true, move |servers, destination, client| {
            servers.claim(destination, &sender, &inventory, (&claimant, client))
        })
        .await
    }

    fn atomicity(&self) -> Atomicity {
        if is_atomic(&self.destination) { Atomicity::WholeDelta } else { Atomicity::SingleRows }
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let inventories = inventories.to_vec();
        self.send("read claims", false, move |servers, destination, _| {
            servers.claims(destination, &inventories)
        })
        .await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let rows = RowWrite::of(batch.delta);
        let rows_at_once = if is_atomic(&self.destination) { rows.len().max(1) } else { 1 };
        let mut receipt = Receipt::default();
        let mut rows = rows.into_iter().peekable();
        // The claim is checked even if there are no rows.
        loop {
            let part: Vec<RowWrite> = rows.by_ref().take(rows_at_once).collect();
            let is_last = rows.peek().is_none();
            let (sender, inventory, claim) =
                (self.sender.clone(), batch.inventory.clone(), batch.claim.clone());
            let write = self.send("write", true, move |servers, destination, _| {
                servers.write(destination, &sender, &inventory, &claim, (part, is_last))
            });
            receipt.refused.extend(write.await?.refused);
            if is_last {
                return Ok(receipt);
            }
        }
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let (sender, inventory, claim) = (self.sender.clone(), inventory.clone(), claim.clone());
        self.send("clean", true, move |servers, destination, _| {
            servers.forget(destination, &sender, &inventory, &claim)
        })
        .await
    }
}
