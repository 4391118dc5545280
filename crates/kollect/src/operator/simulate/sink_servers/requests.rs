//! What requests do to a destination. Claims are decided as in every sink: by `Claimant::take` and `Claim::admits`.

use std::fmt;

use kollect_model::{
    batch::{Baseline, Delta, InventoryId, Receipt, Refusal},
    claim::{Claim, Claimant},
    row::{Row, RowDigest, RowKey},
    sink::{SinkError, SinkReason},
};
use serde::Deserialize;

use super::{Sender, SinkFault, SinkServers, State, TakeOver, is_atomic};
use crate::operator::simulate::{
    network::{Answer, Client},
    reader::Look,
    truth::Place,
};

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Never,
    Before,
    After,
}

/// A change of a row.
pub(super) struct RowWrite {
    key: RowKey,
    /// `None`: it is removed.
    digest: Option<RowDigest>,
    /// What is said if the destination cannot hold it, and what that depends on.
    described: String,
    size: i64,
}

impl RowWrite {
    /// All changes of a delta.
    pub(super) fn of(delta: &Delta) -> Vec<Self> {
        let removed = delta.removed.iter().map(|gone| Self {
            key: gone.key.clone(),
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

impl<T: Send + 'static> Answer for Result<T, SinkError> {
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
        apply: impl FnOnce(&mut State) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let mut state = self.lock();
        let failure = state.failure(destination);
        if failure == Failure::Before {
            return Err(failed(attempt));
        }
        let answer = apply(&mut state)?;
        if failure == Failure::After { Err(failed(attempt)) } else { Ok(answer) }
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
        by: &Sender,
        inventory: &InventoryId,
        (claimant, client): (&Claimant, Client),
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
            if client == Client::Gone {
                state.late_claims.insert((destination.to_owned(), inventory.clone()));
            }
            if before.as_deref() != Some(&*by.cluster) {
                state.reader.note_new_owner(destination, inventory);
            }
            if let Some(before) = before.filter(|before| **before != *by.cluster) {
                journal.count("claims taken over from another cluster", 1);
                state.check_take_over(destination, by, inventory, (claimant, &before, &claim));
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

    /// Applies changes of rows, all or none but for those that the destination cannot hold. `ends`: no more rows of this
    /// write follow.
    pub(super) fn write(
        &self,
        destination: &str,
        by: &Sender,
        inventory: &InventoryId,
        claim: &Claim,
        (rows, ends): (Vec<RowWrite>, bool),
    ) -> Result<Receipt, SinkError> {
        self.request(destination, "write", |state| {
            state.admits(destination, inventory, claim)?;
            let limit = state.destination(destination).limit;
            let (rows, refused): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.size < limit);
            let rows: Vec<_> = rows.into_iter().map(|row| (row.key, row.digest)).collect();
            state.apply(destination, by, inventory, (&rows, !ends));
            let claim = state.held(destination, inventory).claim.as_mut().filter(|_| ends);
            claim.into_iter().for_each(Claim::count_write);
            state.journal.count("rows refused", refused.len() as u64);
            let refused = refused.into_iter().map(|row| Refusal {
                key: row.key,
                why: format!("{}: the destination cannot hold it", row.described),
            });
            Ok(Receipt { refused: refused.collect(), ..Receipt::default() })
        })
    }

    pub(super) fn forget(
        &self,
        destination: &str,
        by: &Sender,
        inventory: &InventoryId,
        claim: &Claim,
    ) -> Result<(), SinkError> {
        self.request(destination, "clean", |state| {
            state.admits(destination, inventory, claim)?;
            let held = &state.held(destination, inventory).rows;
            let gone: Vec<_> = held.keys().map(|key| (key.clone(), None)).collect();
            state.apply(destination, by, inventory, (&gone, false));
            state.check_cleaned(by, (destination.to_owned(), inventory.clone()), &gone);
            state.destination(destination).contents.remove(inventory);
            state.note_held(destination, inventory, false);
            state.journal.count("destinations cleaned", 1);
            Ok(())
        })
    }
}

impl State {
    fn failure(&mut self, destination: &str) -> Failure {
        match self.destination(destination).fault {
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

    fn admits(&mut self, destination: &str, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let admitted = Claim::admits(self.held(destination, inventory).claim.as_ref(), inventory, claim);
        if admitted.is_err() {
            self.journal.count("writes fenced", 1);
        }
        admitted
    }

    /// Rows that were cleaned are where their sinks lead now, unless other writers have changed that destination.
    fn check_cleaned(&mut self, by: &Sender, place: Place, gone: &[(RowKey, Option<RowDigest>)]) {
        let holds = |(name, inventory): &Place, key: &RowKey, size: i64| {
            let destination = self.destinations.get(name);
            let held = destination.and_then(|destination| destination.contents.get(inventory));
            self.changed_by_others.contains(name)
                || destination.is_some_and(|destination| size >= destination.smallest_limit)
                || held.is_some_and(|held| held.rows.contains_key(key))
        };
        if let Err(violation) = self.reader.see_cleaned(&by.cluster, &place, gone, holds) {
            self.violation.get_or_insert(violation);
        }
    }

    /// Only a take-over that was asked for, for this sink, makes rows of another cluster ours, and only once in a
    /// destination.
    fn check_take_over(
        &mut self,
        destination: &str,
        by: &Sender,
        inventory: &InventoryId,
        (claimant, from, claim): (&Claimant, &str, &Claim),
    ) {
        let own = |what: &str| TakeOver {
            cluster: by.cluster.to_string(),
            inventory: inventory.name.clone(),
            what: what.to_owned(),
            from: from.to_owned(),
        };
        let asked = self.take_overs_asked.contains(&own(&claimant.sink));
        let id = claim.destination_id.as_deref().unwrap_or_default();
        let again = !self.take_overs_done.insert(own(id));
        if again || !asked {
            let why = if asked { "it has done so before" } else { "nothing asks for it" };
            let cluster = &by.cluster;
            let violation = format!("{cluster} takes {inventory} in {destination} from {from}, and {why}");
            self.violation.get_or_insert(violation);
        }
    }

    /// Changes rows, and lets the reader look. `is_part`: more rows of the same write follow.
    fn apply(
        &mut self,
        destination: &str,
        by: &Sender,
        inventory: &InventoryId,
        (rows, is_part): (&[(RowKey, Option<RowDigest>)], bool),
    ) {
        let held = self.held(destination, inventory);
        let owner = held.owner().filter(|owner| **owner != *by.cluster).map(ToOwned::to_owned);
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
        let (written, place) = (rows.len() as u64, (destination.to_owned(), inventory.clone()));
        for (key, digest) in rows {
            self.journal.note(format_args!("{destination} {inventory} {}: {digest:?}", key.uid));
        }
        self.journal.count("rows written", written);
        self.rows_written += written;
        self.note_held(destination, inventory, is_part);
        if let Some(owner) = owner.filter(|_| !changes.is_empty()) {
            let name = by.link.name();
            let violation =
                format!("{name} changes rows of {inventory} in {destination}, which {owner} owns");
            self.violation.get_or_insert(violation);
        }
        let known = &self.destinations[destination];
        let look = Look {
            place: &place,
            changes: &changes,
            held: &known.contents[inventory].rows,
            is_atomic: is_atomic(destination),
            limit: known.smallest_limit,
            cluster: &by.cluster,
        };
        if let Err(violation) = self.reader.see(&look) {
            self.violation.get_or_insert(violation);
        }
    }
}
