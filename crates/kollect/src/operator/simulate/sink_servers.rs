//! Destinations in memory, which all operators of a schedule share: rows, claims, atomicity and faults.
//!
//! Whenever something changes a reader looks: what it sees is compared with what was at some time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant, Holder},
    row::{RowDigest, RowKey},
    sink::{Sink, SinkError, SinkReason},
};
use kollect_sinks::{Plan, Policy};
use tokio::time;

use super::{super::bindings::OpenPlan, journal::Journal, reader::Reader, truth::Rows};

/// What is wrong with a destination for now.
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
pub(super) struct Held {
    pub(super) rows: Rows,
    pub(super) holder: Option<Holder>,
}

/// All inventories of a destination.
pub(super) type Contents = BTreeMap<InventoryId, Held>;

#[derive(Default)]
struct Destination {
    contents: Contents,
    fault: SinkFault,
    backup: Option<Contents>,
}

/// The destination that a name leads to: some have two names.
pub(super) fn destination_of(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or_default();
    name.strip_suffix("-alias").unwrap_or(name)
}

/// All destinations of a schedule. Cheap to clone.
#[derive(Clone)]
pub(super) struct SinkServers(Arc<Mutex<State>>);

pub(super) struct State {
    destinations: BTreeMap<String, Destination>,
    random: fastrand::Rng,
    journal: Journal,
    pub(super) reader: Reader,
    /// What readers saw that cannot be.
    pub(super) violation: Option<String>,
    /// Rows that were written.
    pub(super) rows_written: u64,
    /// Destinations that others have edited or restored: what operators know of them is not true for a while.
    pub(super) changed_by_others: BTreeSet<String>,
    /// What each inventory has held: numbers of rows.
    counts: BTreeMap<(String, InventoryId), Vec<usize>>,
}

impl SinkServers {
    pub(super) fn new(seed: u64, journal: Journal) -> Self {
        Self(Arc::new(Mutex::new(State {
            destinations: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            journal,
            reader: Reader::default(),
            violation: None,
            rows_written: 0,
            changed_by_others: BTreeSet::new(),
            counts: BTreeMap::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn set_fault(&self, destination: &str, fault: SinkFault) {
        self.lock().destinations.entry(destination.into()).or_default().fault = fault;
    }

    /// Others remove the nth row of a destination, or change it.
    pub(super) fn edit_rows(&self, destination: &str, number: u8, remove: bool) {
        let mut state = self.lock();
        let contents = state.destinations.entry(destination.into()).or_default();
        for held in contents.contents.values_mut() {
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
        let destination = state.destinations.entry(destination.into()).or_default();
        destination.backup = Some(destination.contents.clone());
    }

    /// Everything is as it was when the destination was saved.
    pub(super) fn restore(&self, destination: &str) {
        let mut state = self.lock();
        let known = state.destinations.entry(destination.into()).or_default();
        if let Some(backup) = known.backup.clone() {
            known.contents = backup;
            state.note_change_by_others(destination);
        }
    }

    pub(super) fn lose_claims(&self, destination: &str) {
        let mut state = self.lock();
        let destination = state.destinations.entry(destination.into()).or_default();
        destination.contents.values_mut().for_each(|held| held.holder = None);
    }

    /// Everything works again.
    pub(super) fn heal(&self) {
        self.lock().destinations.values_mut().for_each(|destination| destination.fault = SinkFault::None);
    }

    /// What a destination holds.
    pub(super) fn contents(&self) -> BTreeMap<String, Contents> {
        let all = &self.lock().destinations;
        all.iter().map(|(name, destination)| (name.clone(), destination.contents.clone())).collect()
    }

    /// Whether an inventory in a destination may have had so many rows at some time.
    pub(super) fn has_held(&self, destination: &str, inventory: &InventoryId, rows: usize) -> bool {
        let state = self.lock();
        if state.changed_by_others.contains(destination) {
            return true;
        }
        let counts = state.counts.get(&(destination.to_owned(), inventory.clone()));
        rows == 0 || counts.is_some_and(|counts| counts.contains(&rows))
    }
}

/// Whether a destination applies a whole delta at once; others apply single rows.
fn is_atomic(destination: &str) -> bool {
    !destination.starts_with("rows")
}

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Never,
    Before,
    After,
}

impl State {
    /// What a destination holds is not what an operator wrote last.
    fn note_change_by_others(&mut self, destination: &str) {
        self.changed_by_others.insert(destination.to_owned());
        let contents = &self.destinations[destination].contents;
        let rows = contents.iter().map(|(inventory, held)| (inventory.clone(), held.rows.clone())).collect();
        self.reader.begin_again(destination, &rows);
    }

    fn of(&mut self, destination: &str, inventory: &InventoryId) -> &mut Held {
        let destination = self.destinations.entry(destination.into()).or_default();
        destination.contents.entry(inventory.clone()).or_default()
    }

    fn failure(&mut self, destination: &str) -> Failure {
        match self.destinations.get(destination).map(|destination| destination.fault).unwrap_or_default() {
            SinkFault::None | SinkFault::Stalls(_) => Failure::Never,
            SinkFault::FailsBefore => Failure::Before,
            SinkFault::FailsAfter => Failure::After,
            SinkFault::Flaky => match self.random.u8(..4) {
                0 => Failure::Before,
                1 => Failure::After,
                _ => Failure::Never,
            },
        }
    }

    fn stall(&mut self, destination: &str) -> Duration {
        match self.destinations.get(destination).map(|destination| destination.fault) {
            Some(SinkFault::Stalls(seconds)) => Duration::from_secs(seconds),
            _ => Duration::from_millis(self.random.u64(..20)),
        }
    }

    fn admits(&mut self, destination: &str, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        Holder::admits(self.of(destination, inventory).holder.as_ref(), inventory, claim)
    }

    fn apply(&mut self, destination: &str, inventory: &InventoryId, rows: &[(RowKey, Option<RowDigest>)]) {
        let held = self.of(destination, inventory);
        for (key, digest) in rows {
            match digest {
                Some(digest) => held.rows.insert(key.clone(), *digest),
                None => held.rows.remove(key),
            };
        }
        let held = held.rows.clone();
        self.journal.note(format_args!("{} rows of {inventory} in {destination}: {held:?}", rows.len()));
        self.rows_written += rows.len() as u64;
        let place = (destination.to_owned(), inventory.clone());
        let counts = self.counts.entry(place.clone()).or_default();
        if !counts.contains(&held.len()) {
            counts.push(held.len());
        }
        let seen = self.reader.see(&place, &held);
        if let Err(violation) = seen {
            self.violation.get_or_insert(violation);
        }
    }
}

/// A connection to a destination.
struct OpenSink {
    servers: SinkServers,
    destination: String,
}

#[async_trait]
impl OpenPlan for SinkServers {
    async fn open(&self, plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError> {
        let destination = plan.destination(policy).to_string();
        let destination = destination_of(&destination).to_owned();
        let sink = OpenSink { servers: self.clone(), destination };
        sink.request("connect").await?;
        Ok(Box::new(sink))
    }
}

fn failed(attempt: &str) -> SinkError {
    SinkError::new(SinkReason::Unreachable, format!("{attempt}: the destination has a fault"))
}

impl OpenSink {
    /// Waits as long as the destination takes, and says when the request fails.
    async fn begin(&self, attempt: &str) -> Failure {
        let stall = self.servers.lock().stall(&self.destination);
        time::sleep(stall).await;
        let mut state = self.servers.lock();
        let failure = state.failure(&self.destination);
        state.journal.note(format_args!("{attempt} {}, fails: {failure:?}", self.destination));
        failure
    }

    /// A request that changes nothing.
    async fn request(&self, attempt: &str) -> Result<(), SinkError> {
        let failed_before = self.begin(attempt).await == Failure::Before;
        if failed_before { Err(failed(attempt)) } else { Ok(()) }
    }

    /// The answer of a request that was applied.
    async fn end<T>(&self, attempt: &str, failure: Failure, answer: T) -> Result<T, SinkError> {
        // The client may be gone before the answer comes.
        tokio::task::yield_now().await;
        if failure == Failure::After { Err(failed(attempt)) } else { Ok(answer) }
    }
}

#[async_trait]
impl Sink for OpenSink {
    async fn check(&self) -> Result<(), SinkError> {
        self.request("check").await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.request("read").await?;
        Ok(self.servers.lock().of(&self.destination, inventory).rows.clone())
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let failure = self.begin("claim").await;
        if failure == Failure::Before {
            return Err(failed("claim"));
        }
        let claim = {
            let mut state = self.servers.lock();
            let held = state.of(&self.destination, inventory);
            let holder = claimant.take(inventory, held.holder.as_ref())?;
            held.holder.insert(holder).claim()
        };
        self.end("claim", failure, claim).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let failure = self.begin("write").await;
        if failure == Failure::Before {
            return Err(failed("write"));
        }
        let Batch { inventory, claim, delta, .. } = batch;
        let rows = delta.rows().map(|row| (row.key.clone(), Some(row.digest)));
        let rows: Vec<_> = rows.chain(delta.removed.iter().map(|gone| (gone.key.clone(), None))).collect();
        let at_once = if is_atomic(&self.destination) { rows.len().max(1) } else { 1 };
        let mut left = rows.len();
        for rows in rows.chunks(at_once) {
            {
                let mut state = self.servers.lock();
                state.admits(&self.destination, inventory, claim)?;
                state.apply(&self.destination, inventory, rows);
            }
            left -= rows.len();
            // Single rows may end anywhere.
            if failure == Failure::After && left > 0 {
                return Err(failed("write"));
            }
            tokio::task::yield_now().await;
        }
        self.servers.lock().admits(&self.destination, inventory, claim)?;
        self.end("write", failure, Receipt::default()).await
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let failure = self.begin("clean").await;
        if failure == Failure::Before {
            return Err(failed("clean"));
        }
        {
            let mut state = self.servers.lock();
            state.admits(&self.destination, inventory, claim)?;
            let gone: Vec<_> =
                state.of(&self.destination, inventory).rows.keys().map(|key| (key.clone(), None)).collect();
            state.apply(&self.destination, inventory, &gone);
            let destination = state.destinations.get_mut(&self.destination);
            destination.map(|destination| destination.contents.remove(inventory));
        }
        self.end("clean", failure, ()).await
    }
}
