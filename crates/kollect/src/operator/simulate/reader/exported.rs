//! Checks a status that begins to say Exported: the destinations must hold the rows of that generation.
//!
//! Only what has not changed since the object was edited is checked: rows must be as the current specs make them,
//! and no other row may be there.

use kollect_model::row::{RowDigest, RowKey, TargetId};
use tokio::time::Instant;

use super::{
    super::{
        api_server::kind_of,
        schedule::COLLECTED,
        specs::{Inventory, Profile, TEAM, Target},
        truth::{Place, Rows, inventory_id, row},
    },
    history::{Collected, History, Versions},
};

/// An object whose status has begun to say Exported.
#[derive(Debug)]
pub(in super::super) struct Exported<'a> {
    pub(in super::super) plural: &'a str,
    pub(in super::super) name: &'a str,
    /// The generation whose rows all sinks hold.
    pub(in super::super) generation: i64,
    /// Name of the cluster in the rows.
    pub(in super::super) cluster: &'a str,
    /// Since then operators of the cluster have seen each change at once.
    pub(in super::super) on_time_since: Instant,
}

/// Rows of a place that are known to be what operators wrote, and the size from which on it may have refused some.
pub(in super::super) type Contents<'a> = (&'a Rows, i64);

impl Exported<'_> {
    fn is(&self, plural: &str, name: &str) -> bool {
        self.plural == plural && self.name == name
    }

    /// The record with which the object got what it is now, if that is the generation that was told, and if operators then
    /// knew everything else as it was.
    fn record(&self, history: &History) -> Option<u64> {
        fn of<T>(versions: &Versions<T>, generation: i64) -> Option<u64> {
            (versions.generation() <= generation).then(|| versions.record(versions.len() - 1))
        }
        let record = match self.plural {
            "kollectprofiles" => of(history.profiles.get(self.name)?, self.generation),
            "kollecttargets" => of(history.targets.get(self.name)?, self.generation),
            _ => of(history.inventories.get(self.name)?, self.generation),
        };
        record.filter(|record| history.time(*record) >= self.on_time_since)
    }
}

/// Whether every place holds what the status says, and how many rows that are or are not there show it. `held` is what a
/// place holds, if that can be told.
pub(super) fn check<'a>(
    history: &History,
    exported: &Exported<'_>,
    held: impl Fn(&Place) -> Option<Contents<'a>>,
) -> Result<u64, String> {
    let Some(record) = exported.record(history) else { return Ok(0) };
    // Rows of kinds that may not be listed are those of the last list.
    if history.sees_everything.unchanged_since(record) != Some(&true) {
        return Ok(0);
    }
    let mut compared = 0;
    let concerns = |plural: &str, name: &str| exported.plural != plural || exported.is(plural, name);
    for (name, target) in history.targets.iter().filter(|(name, _)| concerns("kollecttargets", name)) {
        let Some(target) = target.unchanged_since(record).filter(|target| !target.suspended) else {
            continue;
        };
        if !concerns("kollectprofiles", &target.profile) {
            continue;
        }
        let profile = history.profiles.get(&target.profile).and_then(|own| own.unchanged_since(record));
        let Some(profile) = profile else { continue };
        for (inventory, versions) in &history.inventories {
            let wanted = versions.unchanged_since(record).filter(|own| own.has_target(name));
            let Some(wanted) = wanted.filter(|_| concerns("kollectinventories", inventory)) else { continue };
            for place in places(history, record, exported.cluster, inventory, wanted) {
                if let Some(contents) = held(&place) {
                    let own = (name.as_str(), target, profile);
                    compared += check_place(history, record, own, contents)
                        .map_err(|why| format!("{exported:?}, and {place:?} {why}"))?;
                }
            }
        }
    }
    Ok(compared)
}

/// Where an inventory is written, if its sinks have not changed.
fn places(history: &History, record: u64, cluster: &str, name: &str, inventory: &Inventory) -> Vec<Place> {
    let sinks = inventory.sinks.iter().filter_map(|sink| history.sinks.get(sink)?.unchanged_since(record));
    let own = sinks.filter(|sink| sink.cluster == cluster);
    own.map(|sink| (sink.destination.clone(), inventory_id(cluster, name))).collect()
}

fn check_place(
    history: &History,
    record: u64,
    (target, spec, profile): (&str, &Target, &Profile),
    (held, limit): Contents<'_>,
) -> Result<u64, String> {
    let Some(scope) = history.scopes.unchanged_since(record) else { return Ok(0) };
    let mut compared = 0;
    for (uid, object) in &history.objects {
        let Some(Collected { kind, namespace, name, size }) = object.unchanged_since(record) else {
            continue;
        };
        let Some(labels) = history.namespaces.get(namespace).and_then(|own| own.unchanged_since(record))
        else {
            continue;
        };
        let mut resources = COLLECTED.into_iter().filter_map(kind_of);
        let resource = resources.find(|resource| resource.kind == *kind);
        let (Some(resource), Some(permitted)) = (resource, scope.permits(namespace)) else { continue };
        let is_selected = profile.kind == *kind && spec.wants(namespace, Some(*labels)) && permitted;
        let key = RowKey {
            target: TargetId { namespace: Some(TEAM.into()), name: target.into() },
            group: resource.group.into(),
            kind: resource.kind.into(),
            namespace: namespace.as_str().into(),
            uid: uid.as_str().into(),
        };
        let wanted: Option<RowDigest> =
            is_selected.then(|| row(key.clone(), name, *size, profile.twice).digest);
        let found = held.get(&key).copied();
        if found != wanted && *size < limit {
            let what = if wanted.is_some() { "does not hold the row of" } else { "still holds the row of" };
            return Err(format!("{what} {key:?}"));
        }
        compared += 1;
    }
    Ok(compared)
}
