//! What a reader of destinations may see: every row as it was at some time, and no row that goes back in time.
//!
//! A row depends on an inventory, sinks, a target, profiles, a scope, a namespace and an object, each of which the
//! operator sees through a watch of its own. So a reader may see a row made from any versions of them, as long as none of
//! these versions is older than the one that the row was made from before.
//!
//! Destinations that apply a whole delta at once never show half of a change of kinds: when a profile gets another kind,
//! the old rows of its targets leave in the delta that brings the new ones. So at a moment when an old row has left,
//! although its object is still there and nothing else changed but the kind, every object of the new kind that existed
//! in its namespace when the kind changed, and has not changed since, has its row (`kind_change`).
//!
//! When a sink leads to another destination, the old one is cleaned only when the new one holds the rows (`moved_sink`).
//!
//! When a status reports that the rows of a generation are exported, every destination holds them (`exported`).

mod exported;
mod history;
mod kind_change;
mod moved_sink;
mod row_history;

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::{
    batch::InventoryId,
    row::{RowDigest, RowKey},
};

use super::{
    api_server::ApiServer,
    expected_rows::{RowsByKey, StoredInventory},
    schedule::PROFILES,
};
pub(super) use exported::{ExportedObject, TrustedRows};
use history::History;
use row_history::{RowHistory, VersionNumbers, earliest};

/// Sees all rows of all destinations.
#[derive(Default)]
pub(super) struct DestinationReader {
    /// By id of the cluster.
    clusters: BTreeMap<String, History>,
    /// The first points at which rows may have been made as they were seen last.
    seen: BTreeMap<StoredInventory, BTreeMap<RowKey, Vec<VersionNumbers>>>,
    /// Those that may hold rows of another cluster: they got another owner, or were restored.
    may_hold_others: BTreeSet<StoredInventory>,
}

/// What a reader sees after a change.
pub(super) struct DestinationView<'a> {
    pub(super) stored: &'a StoredInventory,
    /// Rows that have changed; `None`: removed.
    pub(super) changes: &'a [(&'a RowKey, Option<RowDigest>)],
    /// All rows that are there now.
    pub(super) held: &'a RowsByKey,
    /// Whether the destination applies whole deltas at once.
    pub(super) is_atomic: bool,
    /// From which size on the destination has ever refused rows.
    pub(super) limit: i64,
    /// Id of the cluster that has changed the rows.
    pub(super) cluster: &'a str,
}

impl DestinationReader {
    /// Records the objects of a cluster after a change.
    pub(super) fn record(&mut self, cluster: &str, api: &ApiServer) {
        if !self.clusters.contains_key(cluster) {
            self.clusters.insert(cluster.to_owned(), History::default());
        }
        self.clusters.get_mut(cluster).unwrap().record(api);
    }

    /// A destination was restored, or edited by other writers: readers may see all earlier states again.
    pub(super) fn forget_seen_rows<'a>(
        &mut self,
        destination: &str,
        inventories: impl Iterator<Item = &'a InventoryId>,
    ) {
        self.seen.retain(|stored, _| stored.0 != destination);
        inventories.for_each(|inventory| self.note_new_owner(destination, inventory));
    }

    /// Another cluster owns an inventory in a destination now, and may remove the rows that are there.
    pub(super) fn note_new_owner(&mut self, destination: &str, inventory: &InventoryId) {
        let stored = (destination.to_owned(), inventory.clone());
        self.seen.remove(&stored);
        self.may_hold_others.insert(stored);
    }

    /// Checks the rows after the status of an object has begun to report Exported. Returns how many rows confirm it.
    /// `held` are the rows of an inventory in a destination, if these are known.
    pub(super) fn check_exported<'a>(
        &self,
        cluster: &str,
        exported: &ExportedObject<'_>,
        held: impl Fn(&StoredInventory) -> Option<TrustedRows<'a>>,
    ) -> Result<u64, String> {
        let Some(history) = self.clusters.get(cluster) else { return Ok(0) };
        exported::check(history, exported, held)
    }

    /// Checks a destination that was cleaned. `holds` says whether a destination holds a row, or may refuse it.
    pub(super) fn check_cleaned(
        &self,
        cluster: &str,
        stored: &StoredInventory,
        removed: &[(RowKey, Option<RowDigest>)],
        holds: impl Fn(&StoredInventory, &RowKey, i64) -> bool,
    ) -> Result<(), String> {
        let Some(history) = self.clusters.get(cluster) else { return Ok(()) };
        removed.iter().try_for_each(|(key, _)| moved_sink::check(history, stored, key, &holds))
    }

    /// Checks rows of an inventory in a destination that have changed. The error says what is impossible.
    pub(super) fn check_changes(&mut self, view: &DestinationView<'_>) -> Result<(), String> {
        let DestinationView { stored, changes, .. } = *view;
        if changes.is_empty() {
            return Ok(());
        }
        let history = self.clusters.get(view.cluster);
        let seen = match self.seen.get_mut(stored) {
            Some(seen) => seen,
            None => self.seen.entry(stored.clone()).or_default(),
        };
        for (key, now) in changes {
            let row_history = history.and_then(|history| RowHistory::of(history, stored, key));
            let Some(row_history) = row_history else {
                if now.is_none() && self.may_hold_others.contains(stored) {
                    continue;
                }
                return Err(format!("{stored:?} holds a row that never existed: {key:?}"));
            };
            let start = [VersionNumbers::default()];
            let from = seen.get(*key).map_or(&start[..], |from| from);
            let possible = from.iter().flat_map(|from| row_history.first_seen(*from, *now));
            let points = earliest(possible.collect());
            if points.is_empty() {
                let problem = match now {
                    None => "lost a row that exists",
                    Some(_) => "shows a row with values that it never had, or has no longer",
                };
                let last = row_history.last();
                return Err(format!("{stored:?} {problem}: {key:?}, seen last at {from:?} of {last:?}"));
            }
            if let Some(history) = history.filter(|_| view.is_atomic && now.is_none())
                && let Some((profile, version)) = row_history.only_another_kind(&points)
            {
                kind_change::check(history, view, key, PROFILES[profile], version)?;
            }
            seen.insert((*key).clone(), points);
        }
        Ok(())
    }
}
