//! A time limit for every call to a sink: a server that stops answering must not block its binding permanently.

use std::time::Duration;

use async_trait::async_trait;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    sink::{Atomicity, Delivery, Sink, SinkError, SinkReason},
};
use tokio::time;

use super::OpenSink;

/// For calls that read or change little. Some sinks have shorter limits of their own.
const SHORT: Duration = Duration::from_mins(1);
/// For reading everything that a sink holds.
const READ: Duration = Duration::from_mins(10);
/// For a write, besides the time for its rows.
const WRITE: Duration = Duration::from_mins(2);
/// Additional time for each row of a write.
const ROW: Duration = Duration::from_millis(2);

/// Opens a sink, with a time limit for this and every later call.
pub(super) async fn open(sink: &dyn OpenSink) -> Result<Box<dyn Sink>, SinkError> {
    let inner = within(SHORT, "open the sink", sink.open()).await?;
    Ok(Box::new(TimedSink(inner)))
}

/// A sink whose calls have a time limit.
struct TimedSink(Box<dyn Sink>);

async fn within<T>(
    limit: Duration,
    attempt: &str,
    call: impl Future<Output = Result<T, SinkError>>,
) -> Result<T, SinkError> {
    time::timeout(limit, call).await.unwrap_or_else(|_| {
        let why = format!("{attempt}: no answer within {} s", limit.as_secs());
        Err(SinkError::new(SinkReason::Unreachable, why))
    })
}

#[async_trait]
impl Sink for TimedSink {
    fn delivery(&self) -> Delivery {
        self.0.delivery()
    }

    fn atomicity(&self) -> Atomicity {
        self.0.atomicity()
    }

    fn claim_check_interval(&self) -> Duration {
        self.0.claim_check_interval()
    }

    async fn check(&self) -> Result<(), SinkError> {
        within(SHORT, "check the sink", self.0.check()).await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        within(READ, "read the rows", self.0.baseline(inventory)).await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        within(SHORT, "claim the inventory", self.0.claim(inventory, claimant)).await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        within(SHORT, "read the claims", self.0.claims(inventories)).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        // A document has all rows.
        let rows = u32::try_from(batch.delta.len() + batch.rows.len()).unwrap_or(u32::MAX);
        within(WRITE + ROW * rows, "write rows", self.0.write(batch)).await
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        within(READ, "remove the rows", self.0.forget(inventory, claim)).await
    }
}
