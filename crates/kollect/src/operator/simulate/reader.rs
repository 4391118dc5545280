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
//! When a sink leads somewhere else, the old destination is cleaned only when the new one holds the rows (`moved`).
//!
//! When a status says that the rows of a generation are exported, every destination holds them (`exported`).

mod course;
mod exported;
mod history;
mod kind_change;
mod moved;

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::{
    batch::InventoryId,
    row::{RowDigest, RowKey},
};

use super::{
    api_server::ApiServer,
    schedule::PROFILES,
    truth::{Place, Rows},
};
use course::{Course, Point, earliest};
pub(super) use exported::{Contents, Exported};
use history::History;

/// Sees everything that destinations hold.
#[derive(Default)]
pub(super) struct Reader {
    /// By id of the cluster.
    clusters: BTreeMap<String, History>,
    /// The first points at which rows may have been made as they were seen last.
    seen: BTreeMap<Place, BTreeMap<RowKey, Vec<Point>>>,
    /// Places that may hold rows of another cluster: they got another owner, or were restored.
    may_hold_others: BTreeSet<Place>,
}

/// What a reader looks at.
pub(super) struct Look<'a> {
    pub(super) place: &'a Place,
    /// Rows that have changed; `None`: they are gone.
    pub(super) changes: &'a [(&'a RowKey, Option<RowDigest>)],
    /// All rows that are there now.
    pub(super) held: &'a Rows,
    /// Whether the destination applies whole deltas at once.
    pub(super) is_atomic: bool,
    /// From which size on the destination has ever refused rows.
    pub(super) limit: i64,
    /// Id of the cluster that has changed the rows.
    pub(super) cluster: &'a str,
}

impl Reader {
    /// Something in a cluster has changed.
    pub(super) fn record(&mut self, cluster: &str, api: &ApiServer) {
        if !self.clusters.contains_key(cluster) {
            self.clusters.insert(cluster.to_owned(), History::default());
        }
        self.clusters.get_mut(cluster).unwrap().record(api);
    }

    /// A destination was restored, or edited by other writers: readers may see all earlier states again.
    pub(super) fn begin_again<'a>(
        &mut self,
        destination: &str,
        inventories: impl Iterator<Item = &'a InventoryId>,
    ) {
        self.seen.retain(|place, _| place.0 != destination);
        inventories.for_each(|inventory| self.note_new_owner(destination, inventory));
    }

    /// Another cluster owns an inventory in a destination now, and may remove what it finds there.
    pub(super) fn note_new_owner(&mut self, destination: &str, inventory: &InventoryId) {
        let place = (destination.to_owned(), inventory.clone());
        self.seen.remove(&place);
        self.may_hold_others.insert(place);
    }

    /// The status of an object has begun to say Exported. Returns how many rows confirm it. `held` is what a place
    /// holds, if that is known.
    pub(super) fn see_exported<'a>(
        &self,
        cluster: &str,
        exported: &Exported<'_>,
        held: impl Fn(&Place) -> Option<Contents<'a>>,
    ) -> Result<u64, String> {
        let Some(history) = self.clusters.get(cluster) else { return Ok(0) };
        exported::check(history, exported, held)
    }

    /// Looks at a place that was cleaned. `holds` says whether a place holds a row, or may refuse it.
    pub(super) fn see_cleaned(
        &self,
        cluster: &str,
        place: &Place,
        gone: &[(RowKey, Option<RowDigest>)],
        holds: impl Fn(&Place, &RowKey, i64) -> bool,
    ) -> Result<(), String> {
        let Some(history) = self.clusters.get(cluster) else { return Ok(()) };
        gone.iter().try_for_each(|(key, _)| moved::check(history, place, key, &holds))
    }

    /// Checks rows of an inventory in a destination that have changed. The error says what is impossible.
    pub(super) fn see(&mut self, look: &Look<'_>) -> Result<(), String> {
        let Look { place, changes, .. } = *look;
        if changes.is_empty() {
            return Ok(());
        }
        let history = self.clusters.get(look.cluster);
        let seen = match self.seen.get_mut(place) {
            Some(seen) => seen,
            None => self.seen.entry(place.clone()).or_default(),
        };
        for (key, now) in changes {
            let course = history.and_then(|history| Course::of(history, place, key));
            let Some(course) = course else {
                if now.is_none() && self.may_hold_others.contains(place) {
                    continue;
                }
                return Err(format!("{place:?} holds a row that never was: {key:?}"));
            };
            let start = [Point::default()];
            let from = seen.get(*key).map_or(&start[..], |from| from);
            let seen_from = from.iter().flat_map(|from| course.first_seen(*from, *now));
            let points = earliest(seen_from.collect());
            if points.is_empty() {
                let what = match now {
                    None => "lost a row that exists",
                    Some(_) => "shows a row as it never was, or is no more",
                };
                let last = course.last();
                return Err(format!("{place:?} {what}: {key:?}, seen last at {from:?} of {last:?}"));
            }
            if let Some(history) = history.filter(|_| look.is_atomic && now.is_none())
                && let Some((profile, version)) = course.only_another_kind(&points)
            {
                kind_change::check(history, look, key, PROFILES[profile], version)?;
            }
            seen.insert((*key).clone(), points);
        }
        Ok(())
    }
}
