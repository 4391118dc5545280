//! A binding: one inventory, one sink, and the settings that decide what is written when; and the events that it
//! reports.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use kollect_model::{
    batch::{Delta, InventoryId, PART_BYTES, Receipt},
    claim::{Claim, Claimant},
    destination::Destination,
    row::{RowKey, TargetId},
    schema::Schema,
    sink::{Sink, SinkError},
};

use super::{
    BindingProgress, BlockedRemovals, ClaimChecks, CleaningOutcome, CurrentClaim, Outcome, RemovalGuard,
    SelectionDigests, SiblingBindings,
};
use crate::{
    schedule::{Breaker, Cadence},
    store::{Snapshot, Visibility},
};

/// Which rows of its targets an inventory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// Only rows of these namespaces; `None`: of all namespaces, and of cluster-scoped objects.
    pub namespaces: Option<BTreeSet<Arc<str>>>,
    /// If several targets have a row of one object, only the row of the target whose name sorts first.
    pub one_row_per_object: bool,
}

impl RowFilter {
    pub(super) fn takes(&self, key: &RowKey) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.contains(&key.namespace))
    }

    /// Removes rows that the inventory does not hold.
    pub fn apply(&self, snapshot: &mut Snapshot) {
        snapshot.rows.retain(|key, _| self.takes(key));
        if self.one_row_per_object {
            // Rows are sorted by target: the first row of an object stays.
            let mut seen = HashSet::new();
            snapshot.rows.retain(|key, _| seen.insert((key.namespace.clone(), key.uid.clone())));
        }
    }
}

/// Checksum of the rows that were sent last.
#[derive(Clone, Debug, Default)]
pub struct LastChecksum(Arc<Mutex<Option<String>>>);

impl LastChecksum {
    /// Begins with a known checksum, if there is one.
    pub fn new(known: Option<String>) -> Self {
        Self(Arc::new(Mutex::new(known)))
    }

    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, checksum: Option<&String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = checksum.cloned();
    }
}

/// Opens a sink, any number of times. A change of the sink's spec or Secrets creates a new value.
#[async_trait]
pub trait OpenSink: Send + Sync {
    /// Connects.
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError>;
}

/// Whether this process may write now, as the leader or the only process. Called before each change of a sink.
pub type MayWrite = dyn Fn() -> bool + Send + Sync;

/// One inventory bound to one sink.
#[derive(Clone)]
pub struct Binding {
    /// The inventory whose rows are written.
    pub inventory: InventoryId,
    /// Destination of the rows; equal for all sinks that lead there.
    pub destination: Destination,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Version of the binding. What the sink acknowledged for another version does not count for this one.
    pub version: u64,
    /// Progress; shared by all versions of a binding that lead to one destination.
    pub progress: BindingProgress,
    /// Whether rows are counted by namespace.
    pub counts_namespaces: bool,
    /// The writer, as the sink records it.
    pub claimant: Claimant,
    /// The claim that it holds; shared by all versions of a binding.
    pub current: CurrentClaim,
    /// Bindings of the inventory whose destinations may be the same under another name, including this one.
    pub siblings: SiblingBindings,
    /// Shared by all bindings of the sink.
    pub claim_checks: Arc<ClaimChecks>,
    /// Time between checks of the claim without a write; `None`: the default of the sink; zero: no checks.
    pub claim_check_interval: Option<Duration>,
    /// The targets of the inventory.
    pub targets: Vec<TargetId>,
    /// What they declare about their rows.
    pub schema: Arc<Schema>,
    /// When to write.
    pub cadence: Cadence,
    /// What is known about targets and kinds that do not belong to the inventory.
    pub outside: Visibility,
    /// What the run watches: a kind that was seen there is not blind.
    pub watched: Visibility,
    /// Which rows of the targets belong to the inventory.
    pub row_filter: RowFilter,
    /// Limits how many rows changed specs may remove; `None`: no limit.
    pub removal_guard: Option<RemovalGuard>,
    /// Digest of what the specs select, for the guard; empty without one.
    pub selected: String,
    /// What the specs selected when the sink last got all rows; shared by all versions of a binding.
    pub selection: SelectionDigests,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// Checksum of what was sent last, for sinks that cannot be read back; shared by all versions of a binding.
    pub last_checksum: LastChecksum,
    /// A changed value requests a comparison now.
    pub requested: Option<String>,
    /// Opens the sink.
    pub sink: Arc<dyn OpenSink>,
    /// Shared by all bindings of the sink.
    pub breaker: Arc<Breaker>,
}

impl Binding {
    /// A binding without targets, with default settings.
    pub fn new(
        inventory: InventoryId,
        claimant: Claimant,
        destination: Destination,
        sink: Arc<dyn OpenSink>,
    ) -> Self {
        Self {
            inventory,
            destination,
            generation: 0,
            version: 0,
            progress: BindingProgress::default(),
            counts_namespaces: false,
            claimant,
            current: CurrentClaim::default(),
            siblings: SiblingBindings::default(),
            claim_checks: Arc::default(),
            claim_check_interval: None,
            targets: Vec::new(),
            schema: Arc::default(),
            cadence: Cadence::default(),
            outside: Visibility::Everything,
            watched: Visibility::Everything,
            row_filter: RowFilter::default(),
            removal_guard: None,
            selected: String::new(),
            selection: SelectionDigests::default(),
            part_bytes: PART_BYTES,
            last_checksum: LastChecksum::default(),
            requested: None,
            sink,
            breaker: Arc::default(),
        }
    }
}

impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binding").field("inventory", &self.inventory).finish_non_exhaustive()
    }
}

/// An event that a binding reports.
#[derive(Debug)]
pub enum BindingEvent<'a> {
    /// The sink has granted the claim.
    Claimed(&'a Claim),
    /// What the sink holds was compared with the rows, and the difference was written.
    Compared(&'a Outcome),
    /// What has changed was written.
    Written(&'a Delta, &'a Receipt),
    /// The sink is not as this binding left it, or is gone. The binding opens, claims and compares it again at once.
    ClaimLost(&'a SinkError),
    /// The changes need no write.
    Passed,
    /// There are changes to write, which wait for the cadence.
    Waits,
    /// Something takes longer than it should; see [`BindingProgress`].
    Late,
    /// Something failed; it is tried again after a pause, or when something has changed.
    Failed {
        /// The error.
        error: &'a SinkError,
        /// Pause before the next attempt; `None`: until something changes.
        pause: Option<Duration>,
    },
    /// The breaker of the sink is open: no binding tries before the pause is over.
    Paused {
        /// Length of the pause.
        pause: Duration,
    },
    /// Nothing is sent: the sink takes whole snapshots, and this one would lack rows that cannot be seen.
    HeldBack {
        /// What cannot be seen.
        coverage: &'a str,
    },
    /// Nothing is written, because that would remove more rows than the guard allows.
    RemovalsHeld(&'a BlockedRemovals),
    /// The cleaning of a destination that the inventory is no longer written to has ended.
    Cleaned {
        /// The result.
        cleaned: &'a CleaningOutcome,
        /// The binding has another destination now.
        moved: bool,
    },
    /// Cleaning failed; it is tried again after a pause.
    NotCleaned {
        /// Why.
        error: &'a SinkError,
        /// Length of the pause.
        pause: Duration,
        /// The binding has another destination now.
        moved: bool,
    },
}
