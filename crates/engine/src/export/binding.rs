//! A binding: one inventory, one sink, and everything that says what is written when. What it does is told as it
//! happens.

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
    sink::{Sink, SinkError},
};

use super::{
    BindingProgress, ClaimChecks, Cleaned, CurrentClaim, HeldRemovals, Outcome, RemovalGuard, Selection,
    Siblings,
};
use crate::{
    schedule::{Breaker, Cadence},
    store::{Sight, Snapshot},
};

/// Which rows of its targets an inventory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of these namespaces only; `None`: of all, and of cluster-scoped objects.
    pub namespaces: Option<BTreeSet<Arc<str>>>,
    /// Of several rows of one object that of the target with the smallest name.
    pub one_row_per_object: bool,
}

impl Choice {
    pub(super) fn takes(&self, key: &RowKey) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.contains(&key.namespace))
    }

    /// Leaves what the inventory holds.
    pub fn apply(&self, snapshot: &mut Snapshot) {
        snapshot.rows.retain(|key, _| self.takes(key));
        if self.one_row_per_object {
            // Rows are in the order of their targets.
            let mut seen = HashSet::new();
            snapshot.rows.retain(|key, _| seen.insert((key.namespace.clone(), key.uid.clone())));
        }
    }
}

/// Checksum of what was sent last.
#[derive(Clone, Debug, Default)]
pub struct LastChecksum(Arc<Mutex<Option<String>>>);

impl LastChecksum {
    /// Begins with what is known.
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

/// Opens a sink, as often as it takes. A change of the sink's spec or Secrets makes another one.
#[async_trait]
pub trait Open: Send + Sync {
    /// Connects.
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError>;
}

/// Whether this process may write now: it leads, or it is alone. Asked before each request that changes something.
pub type MayWrite = dyn Fn() -> bool + Send + Sync;

/// One inventory bound to one sink.
#[derive(Clone)]
pub struct Binding {
    /// Whose rows.
    pub inventory: InventoryId,
    /// Where they go, by a name that is the same for every sink that leads there.
    pub destination: Destination,
    /// Generation of the inventory's spec; 0 if there is none.
    pub generation: i64,
    /// Tells versions of a binding apart: what was acknowledged under another one says nothing about this one.
    pub version: u64,
    /// How far it has come; the same for all versions of a binding that lead to one destination.
    pub progress: BindingProgress,
    /// Whether rows are counted by namespace.
    pub counts_namespaces: bool,
    /// Who writes them.
    pub claimant: Claimant,
    /// The claim that it holds; the same for all versions of a binding.
    pub current: CurrentClaim,
    /// Bindings of the inventory whose destinations may be the same under another name, this one among them.
    pub siblings: Siblings,
    /// Shared by all bindings of the sink.
    pub claim_checks: Arc<ClaimChecks>,
    /// How often the claim is looked at between writes; `None`: as the sink says; zero: never.
    pub claim_check_interval: Option<Duration>,
    /// The targets of the inventory.
    pub targets: Vec<TargetId>,
    /// When to write.
    pub cadence: Cadence,
    /// What is known about targets and kinds that do not belong to the inventory.
    pub rest: Sight,
    /// All that the run looks at: a kind that was seen there is not blind.
    pub scope: Sight,
    /// Which of their rows belong to it.
    pub choice: Choice,
    /// Limits what changed specs may remove; `None`: nothing does.
    pub removal_guard: Option<RemovalGuard>,
    /// Digest of what the specs select, for the guard; empty without one.
    pub selected: String,
    /// What they selected when the sink last got all rows; the same for all versions of a binding.
    pub selection: Selection,
    /// Largest part of a document, in bytes.
    pub part_bytes: usize,
    /// What was sent last, for sinks that cannot be read back; the same for all versions of a binding.
    pub last_checksum: LastChecksum,
    /// Changes when the sink shall be compared now.
    pub requested: Option<String>,
    /// How to get there.
    pub sink: Arc<dyn Open>,
    /// Shared by all bindings of the sink.
    pub breaker: Arc<Breaker>,
}

impl Binding {
    /// All rows of no targets: what is said about an inventory without more.
    pub fn new(
        inventory: InventoryId,
        claimant: Claimant,
        destination: Destination,
        sink: Arc<dyn Open>,
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
            siblings: Siblings::default(),
            claim_checks: Arc::default(),
            claim_check_interval: None,
            targets: Vec::new(),
            cadence: Cadence::default(),
            rest: Sight::Everything,
            scope: Sight::Everything,
            choice: Choice::default(),
            removal_guard: None,
            selected: String::new(),
            selection: Selection::default(),
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

/// What a binding did.
#[derive(Debug)]
pub enum Told<'a> {
    /// The sink has granted the claim.
    Claimed(&'a Claim),
    /// What the sink holds was compared with the rows, and the difference was written.
    Compared(&'a Outcome),
    /// What has changed was written.
    Written(&'a Delta, &'a Receipt),
    /// The sink is not as this binding left it, or is gone; it is opened and claimed again and compared at once.
    ClaimLost(&'a SinkError),
    /// What has changed left nothing to write.
    Passed,
    /// There is something to write, which waits for the cadence.
    Waits,
    /// Something takes longer than it should; see [`BindingProgress`].
    Late,
    /// Something failed; it is tried again after a pause, or when something has changed.
    Failed {
        /// What.
        error: &'a SinkError,
        /// How long; `None`: until something changes.
        pause: Option<Duration>,
    },
    /// The sink keeps failing for all of its bindings; none tries before.
    Paused {
        /// How long.
        pause: Duration,
    },
    /// The sink wants whole snapshots, and what cannot be seen would be missing from this one.
    HeldBack {
        /// What cannot be seen.
        coverage: &'a str,
    },
    /// Nothing is written, because that would remove more rows than the guard allows.
    RemovalsHeld(&'a HeldRemovals),
    /// A destination that the inventory is no longer written to has been dealt with.
    Cleaned {
        /// What came of it.
        cleaned: &'a Cleaned,
        /// The binding is written somewhere else now.
        moved: bool,
    },
    /// What was written could not be removed; it is tried again after a pause.
    NotCleaned {
        /// Why.
        error: &'a SinkError,
        /// How long.
        pause: Duration,
        /// The binding is written somewhere else now.
        moved: bool,
    },
}
