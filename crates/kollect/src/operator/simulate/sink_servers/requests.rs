//! What requests do to a destination. Claims are decided as in every sink: by `Claimant::take` and `Claim::admits`.

use std::fmt;

use kollect_model::{
    batch::{Baseline, Delta, InventoryId, Receipt, RefusedRow},
    claim::{Claim, Claimant},
    row::{Row, RowDigest, RowKey},
    sink::{SinkError, SinkReason},
};
use serde::Deserialize;

use super::{SendingProcess, SimulatedTakeOver, SinkFault, SinkServers, SinkServersState, is_atomic};
use crate::operator::simulate::{
    expected_rows::StoredInventory,
    network::{ClientState, ServerAnswer},
    reader::DestinationView,
};

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFailsWhen {
    Never,
    Before,
    After,
}

/// A change of a row.
pub(super) struct RowWrite {
    key: RowKey,
    /// `None`: it is removed.
    digest: Option<RowDigest>,
    /// For the message if the destination cannot hold it, which depends on the size.
    described: String,
    size: i64,
}

impl RowWrite {
    /// All changes of a delta.
    pub(super) fn of(delta: &Delta) -> Vec<Self> {
        let removed = delta.removed.iter().map(|removed| Self {
            key: removed.key.clone(),
            digest: None,
            described: String::new(),
            size: 0,
        });
        delta.rows().map(|row| Self::row(row)).chain(removed).collect()
    }

    fn row(row: &Row) -> Self {
        #[derive(Deserialize)]
        struct Attributes {
            size: i64,
        }
        let attributes: Attributes = serde_json::from_str(row.attributes.get()).unwrap();
        Self {
            key: row.key.clone(),
            digest: Some(row.digest),
            described: row.described(),
            size: attributes.size,
        }
    }
}

impl<T: Send + 'static> ServerAnswer for Result<T, SinkError> {
    fn is_refusal(&self) -> bool {
        self.is_err()
    }

    fn outcome(&self) -> impl fmt::Display {
        self.as_ref().err().map_or_else(|| "done".to_owned(), |error| format!("{:?}", error.reason))
    }
}

fn failed(attempt: &str) -> SinkError {
    SinkError::new(SinkReason::Unreachable, format!("{attempt}: the destination has a fault"))
}

impl SinkServers {
    /// A request to a destination, with its faults.
    fn request<T>(
        &self,
        destination: &str,
        attempt: &str,
        apply: impl FnOnce(&mut SinkServersState) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let mut state = self.lock();
        let failure = state.next_failure(destination);
        if failure == RequestFailsWhen::Before {
            return Err(failed(attempt));
        }
        let answer = apply(&mut state)?;
        if failure == RequestFailsWhen::After { Err(failed(attempt)) } else { Ok(answer) }
    }

    /// A request that changes nothing.
    pub(super) fn check(&self, destination: &str, attempt: &str) -> Result<(), SinkError> {
        self.request(destination, attempt, |_| Ok(()))
    }

    pub(super) fn read(&self, destination: &str, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.request(destination, "read", |state| {
            state.journal.count("comparisons", 1);
            Ok(state.held(destination, inventory).rows.clone())
        })
    }

    pub(super) fn claim(
        &self,
        destination: &str,
        sender: &SendingProcess,
        inventory: &InventoryId,
        (claimant, client): (&Claimant, ClientState),
    ) -> Result<Claim, SinkError> {
        self.request(destination, "claim", |state| {
            let journal = state.journal.clone();
            let held = state.held(destination, inventory);
            let granted = claimant.take(inventory, held.claim.as_ref());
            let granted = granted.inspect_err(|_| journal.count("claims refused", 1))?;
            let before = held.owner().map(ToOwned::to_owned);
            journal.count("claims granted", 1);
            let claim = held.claim.insert(Claim { writes: Some(0), ..granted }).clone();
            state.note_held(destination, inventory, false);
            if client == ClientState::NotWaiting {
                state.late_claims.insert((destination.to_owned(), inventory.clone()));
            }
            if before.as_deref() != Some(&*sender.cluster) {
                state.reader.note_new_owner(destination, inventory);
            }
            if let Some(before) = before.filter(|before| **before != *sender.cluster) {
                journal.count("claims taken over from another cluster", 1);
                state.check_take_over(destination, sender, inventory, (claimant, &before, &claim));
            }
            Ok(claim)
        })
    }

    pub(super) fn claims(
        &self,
        destination: &str,
        inventories: &[InventoryId],
    ) -> Result<Vec<Option<Claim>>, SinkError> {
        self.request(destination, "read claims", |state| {
            Ok(inventories.iter().map(|inventory| state.held(destination, inventory).claim.clone()).collect())
        })
    }

    /// Applies changes of rows, all or none but for those that the destination cannot hold. `is_last`: no more rows of
    /// this write follow.
    pub(super) fn write(
        &self,
        destination: &str,
        sender: &SendingProcess,
        inventory: &InventoryId,
        claim: &Claim,
        (rows, is_last): (Vec<RowWrite>, bool),
    ) -> Result<Receipt, SinkError> {
        self.request(destination, "write", |state| {
            state.check_admitted(destination, inventory, claim)?;
            let limit = state.destination(destination).limit;
            let (rows, refused): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.size < limit);
            let rows: Vec<_> = rows.into_iter().map(|row| (row.key, row.digest)).collect();
            state.apply(destination, sender, inventory, (&rows, !is_last));
            let claim = state.held(destination, inventory).claim.as_mut().filter(|_| is_last);
            claim.into_iter().for_each(Claim::count_write);
            state.journal.count("rows refused", refused.len() as u64);
            let refused = refused.into_iter().map(|row| RefusedRow {
                key: row.key,
                why: format!("{}: the destination cannot hold it", row.described),
            });
            Ok(Receipt { refused: refused.collect(), ..Receipt::default() })
        })
    }

    pub(super) fn forget(
        &self,
        destination: &str,
        sender: &SendingProcess,
        inventory: &InventoryId,
        claim: &Claim,
    ) -> Result<(), SinkError> {
        self.request(destination, "clean", |state| {
            state.check_admitted(destination, inventory, claim)?;
            let held = &state.held(destination, inventory).rows;
            let removed: Vec<_> = held.keys().map(|key| (key.clone(), None)).collect();
            state.apply(destination, sender, inventory, (&removed, false));
            state.check_cleaned(sender, (destination.to_owned(), inventory.clone()), &removed);
            state.destination(destination).contents.remove(inventory);
            state.note_held(destination, inventory, false);
            state.journal.count("destinations cleaned", 1);
            Ok(())
        })
    }
}

impl SinkServersState {
    fn next_failure(&mut self, destination: &str) -> RequestFailsWhen {
        match self.destination(destination).fault {
            SinkFault::None | SinkFault::Stalls(_) => RequestFailsWhen::Never,
            SinkFault::FailsBefore => RequestFailsWhen::Before,
            SinkFault::FailsAfter => RequestFailsWhen::After,
            SinkFault::Flaky => match self.random.u8(..4) {
                0 => RequestFailsWhen::Before,
                1 => RequestFailsWhen::After,
                _ => RequestFailsWhen::Never,
            },
        }
    }

    fn check_admitted(
        &mut self,
        destination: &str,
        inventory: &InventoryId,
        claim: &Claim,
    ) -> Result<(), SinkError> {
        let admitted = Claim::admits(self.held(destination, inventory).claim.as_ref(), inventory, claim);
        if admitted.is_err() {
            self.journal.count("writes fenced", 1);
        }
        admitted
    }

    /// Rows that were cleaned are in the destinations that their sinks lead to now, unless others have changed these.
    fn check_cleaned(
        &mut self,
        sender: &SendingProcess,
        stored: StoredInventory,
        removed: &[(RowKey, Option<RowDigest>)],
    ) {
        let holds = |(name, inventory): &StoredInventory, key: &RowKey, size: i64| {
            let destination = self.destinations.get(name);
            let held = destination.and_then(|destination| destination.contents.get(inventory));
            self.changed_by_others.contains(name)
                || destination.is_some_and(|destination| size >= destination.smallest_limit)
                || held.is_some_and(|held| held.rows.contains_key(key))
        };
        if let Err(violation) = self.reader.check_cleaned(&sender.cluster, &stored, removed, holds) {
            self.violation.get_or_insert(violation);
        }
    }

    /// Rows of another cluster may be taken over only if that was requested for this sink, and only once in a
    /// destination.
    fn check_take_over(
        &mut self,
        destination: &str,
        sender: &SendingProcess,
        inventory: &InventoryId,
        (claimant, from, claim): (&Claimant, &str, &Claim),
    ) {
        let take_over = |subject: &str| SimulatedTakeOver {
            cluster: sender.cluster.to_string(),
            inventory: inventory.name.clone(),
            subject: subject.to_owned(),
            from: from.to_owned(),
        };
        let is_requested = self.take_overs_requested.contains(&take_over(&claimant.sink));
        let id = claim.destination_id.as_deref().unwrap_or_default();
        let is_repeated = !self.take_overs_done.insert(take_over(id));
        if is_repeated || !is_requested {
            let why = if is_requested { "it has done so before" } else { "it was not requested" };
            let cluster = &sender.cluster;
            let violation = format!("{cluster} takes {inventory} in {destination} from {from}, and {why}");
            self.violation.get_or_insert(violation);
        }
    }

    /// Changes rows, and lets the reader check them. `is_part`: more rows of the same write follow.
    fn apply(
        &mut self,
        destination: &str,
        sender: &SendingProcess,
        inventory: &InventoryId,
        (rows, is_part): (&[(RowKey, Option<RowDigest>)], bool),
    ) {
        let held = self.held(destination, inventory);
        let owner = held.owner().filter(|owner| **owner != *sender.cluster).map(ToOwned::to_owned);
        let mut changes = Vec::new();
        for (key, digest) in rows {
            let before = match digest {
                Some(digest) => held.rows.insert(key.clone(), *digest),
                None => held.rows.remove(key),
            };
            if before != *digest {
                changes.push((key, *digest));
            }
        }
        let (written, stored) = (rows.len() as u64, (destination.to_owned(), inventory.clone()));
        for (key, digest) in rows {
            self.journal.note(format_args!("{destination} {inventory} {}: {digest:?}", key.uid));
        }
        self.journal.count("rows written", written);
        self.rows_written += written;
        self.note_held(destination, inventory, is_part);
        if let Some(owner) = owner.filter(|_| !changes.is_empty()) {
            let name = sender.link.name();
            let violation =
                format!("{name} changes rows of {inventory} in {destination}, which {owner} owns");
            self.violation.get_or_insert(violation);
        }
        let destination_state = &self.destinations[destination];
        let view = DestinationView {
            stored: &stored,
            changes: &changes,
            held: &destination_state.contents[inventory].rows,
            is_atomic: is_atomic(destination),
            limit: destination_state.smallest_limit,
            cluster: &sender.cluster,
        };
        if let Err(violation) = self.reader.check_changes(&view) {
            self.violation.get_or_insert(violation);
        }
    }
}
