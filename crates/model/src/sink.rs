//! [`Sink`]: the interface between the engine and the sinks.
//!
//! The engine knows only this trait; the sinks crate implements it.

use std::{error::Error, time::Duration};

use async_trait::async_trait;

use crate::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    crd::{
        shapes::SecretReference,
        sinks::{KollectDatabaseSinkSpec, KollectEventSinkSpec, KollectSnapshotSinkSpec, SinkCommon},
    },
};

/// An open connection to a destination of rows.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Whether the sink takes changed rows, whole documents or whole snapshots.
    fn delivery(&self) -> Delivery {
        Delivery::Changes
    }

    /// What a reader of the destination can see while a write is under way.
    fn atomicity(&self) -> Atomicity;

    /// How often a writer that has nothing to write checks that it still holds its claim.
    fn claim_check_interval(&self) -> Duration {
        Duration::from_mins(1)
    }

    /// Whether the destination can be reached and used, with the client that also writes.
    async fn check(&self) -> Result<(), SinkError>;

    /// The rows of an inventory that the destination holds; empty if it cannot be read back.
    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError>;

    /// Claims an inventory for this writer alone. [`Claimant::take`] decides; if it refuses, the destination
    /// is not changed.
    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError>;

    /// The claims of some inventories as the destination holds them now, in their order; `None` for one that is not
    /// claimed. Nothing is changed.
    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError>;

    /// Applies a batch, except for rows that the destination cannot hold: the receipt names them. [`Self::atomicity`]
    /// says what a reader sees meanwhile. After an error it is not known what was applied: the caller compares again. A writer whose claim the destination does not hold is refused, as [`Claim::admits`] decides; so
    /// is one that does not know the present state of the destination ([`SinkReason::ClaimLost`]).
    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError>;

    /// Removes everything of an inventory, its claim too.
    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError>;
}

/// What a sink takes in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The rows that differ from what it holds.
    Changes,
    /// The rows that differ, and all rows beside them ([`Batch::rows`]): the sink replaces a document as a whole.
    Documents,
    /// All rows as added ones, each time that one of them has changed: the sink keeps none of them.
    Snapshots,
}

/// What a reader of a destination can see while a write is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// All rows as they were before the write, or all as they are after it.
    WholeDelta,
    /// Each row as it was before or as it is after. A row that exists before and after is never missing.
    SingleRows,
}

/// A sink's spec, of whichever kind.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkSpec {
    /// KollectSnapshotSink
    Snapshot(KollectSnapshotSinkSpec),
    /// KollectDatabaseSink
    Database(KollectDatabaseSinkSpec),
    /// KollectEventSink
    Event(KollectEventSinkSpec),
}

impl SinkSpec {
    /// What all sinks share.
    pub fn common(&self) -> &SinkCommon {
        match self {
            Self::Snapshot(spec) => &spec.common,
            Self::Database(spec) => &spec.common,
            Self::Event(spec) => &spec.common,
        }
    }

    /// `spec.type`, as it is written.
    pub fn type_name(&self) -> String {
        let text = match self {
            Self::Snapshot(spec) => serde_json::to_value(spec.type_),
            Self::Database(spec) => serde_json::to_value(spec.type_),
            Self::Event(spec) => serde_json::to_value(spec.type_),
        };
        text.ok().and_then(|text| Some(text.as_str()?.to_owned())).expect("types are texts")
    }

    /// Whether the sink accepts a store that does not keep the conditions of puts.
    pub fn is_unconditional(&self) -> bool {
        match self {
            Self::Snapshot(spec) => spec.object_store.as_ref().is_some_and(|store| store.unconditional),
            Self::Database(_) | Self::Event(_) => false,
        }
    }

    /// Every Secret that the sink reads, with the field that names it.
    pub fn secret_refs(&self) -> Vec<(&'static str, &SecretReference)> {
        match self {
            Self::Snapshot(spec) => spec.secret_refs(),
            Self::Database(spec) => spec.secret_refs(),
            Self::Event(spec) => spec.secret_refs(),
        }
    }
}

/// A failed operation of a sink.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}")]
pub struct SinkError {
    /// Category of the failure; it decides whether the operation is tried again.
    pub reason: SinkReason,
    attempt: String,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SinkError {
    /// A failure without an underlying error.
    pub fn new(reason: SinkReason, attempt: impl Into<String>) -> Self {
        Self { reason, attempt: attempt.into(), source: None }
    }

    /// A failure with an underlying error. `attempt` says what was tried, and does not repeat that error.
    pub fn because(
        reason: SinkReason,
        attempt: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { reason, attempt: attempt.into(), source: Some(source.into()) }
    }

    /// Whether and when to try again.
    pub fn class(&self) -> ErrorClass {
        match self.reason {
            SinkReason::Unreachable | SinkReason::Busy | SinkReason::WriteFailed | SinkReason::ClaimLost => {
                ErrorClass::Transient
            }
            SinkReason::Missing
            | SinkReason::Incompatible
            | SinkReason::OwnedByOther
            | SinkReason::Fenced
            | SinkReason::Refused => ErrorClass::Terminal,
            SinkReason::Forbidden => ErrorClass::Forbidden,
        }
    }
}

/// Why a sink failed: the word that statuses and metrics use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SinkReason {
    /// The destination does not answer.
    Unreachable,
    /// Another writer, or another inventory of this operator, uses the destination at the moment.
    Busy,
    /// The destination failed while writing.
    WriteFailed,
    /// The destination does not exist and may not be created.
    Missing,
    /// The destination is not what the sink expects.
    Incompatible,
    /// The inventory belongs to another cluster.
    OwnedByOther,
    /// Another writer has claimed the inventory since.
    Fenced,
    /// The destination is not as this writer left it: restored from a backup, emptied, or changed by others in a way
    /// that only a comparison can repair. The writer claims the inventory again and compares.
    ClaimLost,
    /// The destination refuses access.
    Forbidden,
    /// The destination cannot hold a row as it is.
    Refused,
}

/// Whether a failure may pass by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Trying again may help.
    Transient,
    /// A user or an administrator must change the sink, a Secret or the destination first.
    Terminal,
    /// An administrator of the destination must grant access first.
    Forbidden,
}
