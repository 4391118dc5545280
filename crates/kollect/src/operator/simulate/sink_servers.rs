//! Destinations in memory, which all operators of a schedule share: rows, claims, atomicity and faults.
//!
//! After each change a reader checks that the rows it sees were true at some time. What a request does to a
//! destination is in `requests`, how a process sends it in `open_sink`: only these two know the trait `Sink`.

mod open_sink;
mod requests;
mod timeline;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use kollect_model::{batch::InventoryId, claim::Claim, row::RowDigest};
use tokio::time::Instant;

use timeline::Timelines;

use super::{
    expected_rows::{RowsByKey, StoredInventory},
    journal::Journal,
    network::ProcessLink,
    reader::{DestinationReader, ExportedObject},
};

/// The current fault of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SinkFault {
    #[default]
    None,
    /// Nothing is applied.
    FailsBefore,
    /// A write is applied, and its answer is lost.
    FailsAfter,
    /// Some requests fail, before or after they are applied.
    Flaky,
    /// Every request takes so many seconds.
    Stalls(u64),
}

/// What a destination holds of an inventory.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldInventory {
    pub(super) rows: RowsByKey,
    pub(super) claim: Option<Claim>,
}

impl HeldInventory {
    /// Id of the cluster that owns the inventory.
    fn owner(&self) -> Option<&str> {
        self.claim.as_ref()?.owner.as_deref()
    }
}

/// All inventories of a destination.
pub(super) type DestinationContents = BTreeMap<InventoryId, HeldInventory>;

struct SimulatedDestination {
    contents: DestinationContents,
    fault: SinkFault,
    /// Rows of objects of this size or larger are refused.
    limit: i64,
    /// The smallest limit that it ever had.
    smallest_limit: i64,
    backup: Option<DestinationContents>,
}

impl Default for SimulatedDestination {
    fn default() -> Self {
        let (contents, fault) = (DestinationContents::default(), SinkFault::None);
        Self { contents, fault, limit: i64::MAX, smallest_limit: i64::MAX, backup: None }
    }
}

/// The destination that a name leads to: some have two names.
pub(super) fn destination_of(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or_default();
    name.strip_suffix("-alias").unwrap_or(name)
}

/// Whether a destination applies a whole delta at once; others apply single rows.
fn is_atomic(destination: &str) -> bool {
    !destination.starts_with("rows")
}

/// A cluster takes rows of another one over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SimulatedTakeOver {
    /// Id of the cluster.
    pub(super) cluster: String,
    /// Name of the inventory.
    pub(super) inventory: String,
    /// A sink or a destination.
    pub(super) subject: String,
    /// Id of the other cluster.
    pub(super) from: String,
}

/// All destinations of a schedule. Cheap to clone.
#[derive(Clone)]
pub(super) struct SinkServers(Arc<Mutex<SinkServersState>>);

/// The destinations as one process reaches them.
pub(super) struct ProcessSinks {
    pub(super) servers: SinkServers,
    pub(super) sender: SendingProcess,
}

/// A process that sends requests.
#[derive(Clone)]
pub(super) struct SendingProcess {
    pub(super) link: ProcessLink,
    /// Id of its cluster.
    pub(super) cluster: Arc<str>,
}

pub(super) struct SinkServersState {
    destinations: BTreeMap<String, SimulatedDestination>,
    random: fastrand::Rng,
    journal: Journal,
    pub(super) reader: DestinationReader,
    /// The first violation that was found.
    pub(super) violation: Option<String>,
    /// Rows that were written.
    pub(super) rows_written: u64,
    /// Destinations that were edited or restored by others than operators: what operators know of them is outdated for
    /// a while.
    changed_by_others: BTreeSet<String>,
    /// Destinations that were restored, or lost their claims.
    pub(super) claims_changed: BTreeSet<String>,
    /// Those with a claim that arrived when its client did not wait any more.
    pub(super) late_claims: BTreeSet<StoredInventory>,
    /// Take-overs that were requested, with names of sinks.
    take_overs_requested: BTreeSet<SimulatedTakeOver>,
    /// Those that happened, with ids of destinations.
    take_overs_done: BTreeSet<SimulatedTakeOver>,
    timelines: Timelines,
}

impl SinkServers {
    pub(super) fn new(seed: u64, journal: Journal) -> Self {
        Self(Arc::new(Mutex::new(SinkServersState {
            destinations: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            journal,
            reader: DestinationReader::default(),
            violation: None,
            rows_written: 0,
            changed_by_others: BTreeSet::new(),
            claims_changed: BTreeSet::new(),
            late_claims: BTreeSet::new(),
            take_overs_requested: BTreeSet::new(),
            take_overs_done: BTreeSet::new(),
            timelines: Timelines::default(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SinkServersState> {
        self.0.lock().unwrap()
    }

    pub(super) fn set_fault(&self, destination: &str, fault: SinkFault) {
        self.lock().destination(destination).fault = fault;
    }

    /// Another writer removes the nth row of each inventory in a destination, or changes it.
    pub(super) fn edit_rows(&self, destination: &str, number: u8, remove: bool) {
        let mut state = self.lock();
        for held in state.destination(destination).contents.values_mut() {
            let Some(key) = held.rows.keys().nth(number.into()).cloned() else { continue };
            if remove {
                held.rows.remove(&key);
            } else {
                held.rows.insert(key, RowDigest(0));
            }
        }
        state.note_change_by_others(destination);
    }

    pub(super) fn back_up(&self, destination: &str) {
        let mut state = self.lock();
        let destination = state.destination(destination);
        destination.backup = Some(destination.contents.clone());
    }

    /// Everything is as it was when the destination was saved.
    pub(super) fn restore(&self, destination: &str) {
        let mut state = self.lock();
        let restored = state.destination(destination);
        if let Some(backup) = restored.backup.clone() {
            restored.contents = backup;
            state.claims_changed.insert(destination.to_owned());
            state.note_change_by_others(destination);
        }
    }

    pub(super) fn lose_claims(&self, destination: &str) {
        let mut state = self.lock();
        state.destination(destination).contents.values_mut().for_each(|held| held.claim = None);
        state.claims_changed.insert(destination.to_owned());
        state.note_change_by_others(destination);
    }

    /// From now on a destination cannot hold rows of objects of this size or larger.
    pub(super) fn set_limit(&self, destination: &str, limit: Option<i64>) {
        let mut state = self.lock();
        let destination = state.destination(destination);
        destination.limit = limit.unwrap_or(i64::MAX);
        destination.smallest_limit = destination.smallest_limit.min(destination.limit);
    }

    /// From which size on a destination refuses rows.
    pub(super) fn limit(&self, destination: &str) -> i64 {
        self.lock().destination(destination).limit
    }

    /// An annotation requests a take-over.
    pub(super) fn request_take_over(&self, requested: SimulatedTakeOver) {
        self.lock().take_overs_requested.insert(requested);
    }

    /// An inventory is deleted, and with it the record of what it took over.
    pub(super) fn forget_take_overs(&self, cluster: &str, inventory: &str) {
        let is_own = |done: &SimulatedTakeOver| done.cluster == cluster && done.inventory == inventory;
        self.lock().take_overs_done.retain(|done| !is_own(done));
    }

    /// Limits stay.
    pub(super) fn end_faults(&self) {
        self.lock().destinations.values_mut().for_each(|destination| destination.fault = SinkFault::None);
    }

    /// Calls a function with the contents of all destinations.
    pub(super) fn with_contents<T>(
        &self,
        check: impl FnOnce(&BTreeMap<&str, &DestinationContents>) -> T,
    ) -> T {
        let state = self.lock();
        let all = state.destinations.iter();
        check(&all.map(|(name, destination)| (name.as_str(), &destination.contents)).collect())
    }

    /// Whether a destination held these rows for a cluster at some moment of a period: how many, and the sum of their
    /// digests. True if others have changed the destination: operators cannot know that at once.
    pub(super) fn has_held(
        &self,
        stored: &StoredInventory,
        rows: (usize, u128),
        owner: &str,
        period: (u64, u64),
        reported_at: Instant,
    ) -> bool {
        let state = self.lock();
        state.changed_by_others.contains(&stored.0)
            || state.timelines.held(stored, rows, owner, period, reported_at)
    }

    /// Checks the rows after the status of an object has begun to report Exported.
    pub(super) fn check_exported(&self, cluster: &str, exported: &ExportedObject<'_>) -> Result<(), String> {
        let state = self.lock();
        state.journal.count("statuses that became Exported", 1);
        let empty = RowsByKey::new();
        let compared = state.reader.check_exported(cluster, exported, |(name, inventory)| {
            if state.changed_by_others.contains(name) || state.claims_changed.contains(name) {
                return None;
            }
            let destination = state.destinations.get(name)?;
            let held = destination.contents.get(inventory);
            let is_own = held.is_none_or(|held| held.owner() == Some(cluster));
            is_own.then_some((held.map_or(&empty, |held| &held.rows), destination.smallest_limit))
        })?;
        state.journal.count("rows compared when a status became Exported", compared);
        Ok(())
    }
}

impl SinkServersState {
    fn destination(&mut self, name: &str) -> &mut SimulatedDestination {
        if !self.destinations.contains_key(name) {
            self.destinations.insert(name.to_owned(), SimulatedDestination::default());
        }
        self.destinations.get_mut(name).unwrap()
    }

    /// A destination does not hold any more what an operator wrote last.
    fn note_change_by_others(&mut self, destination: &str) {
        self.changed_by_others.insert(destination.to_owned());
        let contents = &self.destinations[destination].contents;
        self.reader.forget_seen_rows(destination, contents.keys());
        self.note_all_held(destination);
    }

    /// Records what a destination holds now.
    fn note_all_held(&mut self, destination: &str) {
        let inventories: Vec<InventoryId> = self.destination(destination).contents.keys().cloned().collect();
        inventories.iter().for_each(|inventory| self.note_held(destination, inventory, false));
    }

    /// Records what a destination holds of an inventory now; `is_part`: more rows of the same write follow.
    fn note_held(&mut self, destination: &str, inventory: &InventoryId, is_part: bool) {
        let moment = self.journal.moment();
        let stored = (destination.to_owned(), inventory.clone());
        let contents = self.destinations.get(destination).map(|destination| &destination.contents);
        let held = contents.and_then(|contents| contents.get(inventory));
        let sum = |rows: &RowsByKey| rows.values().fold(0_u128, |sum, digest| sum.wrapping_add(digest.0));
        let (rows, owner) =
            held.map_or(((0, 0), None), |held| ((held.rows.len(), sum(&held.rows)), held.owner()));
        self.timelines.note(&stored, moment, rows, owner, is_part);
    }

    fn held(&mut self, destination: &str, inventory: &InventoryId) -> &mut HeldInventory {
        let contents = &mut self.destination(destination).contents;
        if !contents.contains_key(inventory) {
            contents.insert(inventory.clone(), HeldInventory::default());
        }
        contents.get_mut(inventory).unwrap()
    }

    /// How long a request to a destination takes.
    fn request_duration(&mut self, destination: &str) -> Duration {
        match self.destination(destination).fault {
            SinkFault::Stalls(seconds) => Duration::from_secs(seconds),
            _ => Duration::from_millis(self.random.u64(..20)),
        }
    }
}
