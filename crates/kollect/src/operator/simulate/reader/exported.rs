//! Checks a status that begins to report Exported: the destinations must hold the rows of that generation.
//!
//! Only what has not changed since the object was edited is checked: rows must be as the current specs make them,
//! and no other row may be there.

use kollect_model::row::{RowDigest, RowKey, TargetId};
use tokio::time::Instant;

use super::{
    super::{
        api_server::kind_of,
        expected_rows::{RowsByKey, StoredInventory, inventory_id, row},
        schedule::COLLECTED_KINDS,
        specs::{InventorySpecs, ProfileSpecs, TEAM, TargetSpecs},
    },
    history::{CollectedObject, History, Versions},
};

/// An object whose status has begun to report Exported.
#[derive(Debug)]
pub(in super::super) struct ExportedObject<'a> {
    pub(in super::super) plural: &'a str,
    pub(in super::super) name: &'a str,
    /// The generation whose rows all sinks hold.
    pub(in super::super) generation: i64,
    /// Name of the cluster in the rows.
    pub(in super::super) cluster: &'a str,
    /// Since then operators of the cluster have seen each change at once.
    pub(in super::super) on_time_since: Instant,
}

/// Rows in a destination that only operators have written, and the size from which on it may have refused some.
pub(in super::super) type TrustedRows<'a> = (&'a RowsByKey, i64);

impl ExportedObject<'_> {
    fn is(&self, plural: &str, name: &str) -> bool {
        self.plural == plural && self.name == name
    }

    /// The record of the last change of the object, if its generation is the reported one, and if operators saw changes
    /// without delay at that time.
    fn record(&self, history: &History) -> Option<u64> {
        fn last_record<T>(versions: &Versions<T>, generation: i64) -> Option<u64> {
            (versions.generation() <= generation).then(|| versions.record(versions.len() - 1))
        }
        let record = match self.plural {
            "kollectprofiles" => last_record(history.profiles.get(self.name)?, self.generation),
            "kollecttargets" => last_record(history.targets.get(self.name)?, self.generation),
            _ => last_record(history.inventories.get(self.name)?, self.generation),
        };
        record.filter(|record| history.time(*record) >= self.on_time_since)
    }
}

/// Fails unless every destination holds what the status reports. Returns how many rows, present or absent, were
/// compared. `held` are the rows of an inventory in a destination, if these are known.
pub(super) fn check<'a>(
    history: &History,
    exported: &ExportedObject<'_>,
    held: impl Fn(&StoredInventory) -> Option<TrustedRows<'a>>,
) -> Result<u64, String> {
    let Some(record) = exported.record(history) else { return Ok(0) };
    // Rows of kinds that may not be listed are those of the last list.
    if history.sees_everything.unchanged_since(record) != Some(&true) {
        return Ok(0);
    }
    let mut compared = 0;
    let is_concerned = |plural: &str, name: &str| exported.plural != plural || exported.is(plural, name);
    for (name, target) in history.targets.iter().filter(|(name, _)| is_concerned("kollecttargets", name)) {
        let Some(target) = target.unchanged_since(record).filter(|target| !target.suspended) else {
            continue;
        };
        if !is_concerned("kollectprofiles", &target.profile) {
            continue;
        }
        let profile =
            history.profiles.get(&target.profile).and_then(|versions| versions.unchanged_since(record));
        let Some(profile) = profile else { continue };
        for (inventory, versions) in &history.inventories {
            let wanted = versions.unchanged_since(record).filter(|inventory| inventory.has_target(name));
            let Some(wanted) = wanted.filter(|_| is_concerned("kollectinventories", inventory)) else {
                continue;
            };
            for stored in written_inventories(history, record, exported.cluster, inventory, wanted) {
                if let Some(contents) = held(&stored) {
                    let target_specs = (name.as_str(), target, profile);
                    compared += check_rows(history, record, target_specs, contents)
                        .map_err(|why| format!("{exported:?}, and {stored:?} {why}"))?;
                }
            }
        }
    }
    Ok(compared)
}

/// The destinations of an inventory, if its sinks have not changed.
fn written_inventories(
    history: &History,
    record: u64,
    cluster: &str,
    name: &str,
    inventory: &InventorySpecs,
) -> Vec<StoredInventory> {
    let sinks = inventory.sinks.iter().filter_map(|sink| history.sinks.get(sink)?.unchanged_since(record));
    let own_sinks = sinks.filter(|sink| sink.cluster == cluster);
    own_sinks.map(|sink| (sink.destination.clone(), inventory_id(cluster, name))).collect()
}

fn check_rows(
    history: &History,
    record: u64,
    (target, spec, profile): (&str, &TargetSpecs, &ProfileSpecs),
    (held, limit): TrustedRows<'_>,
) -> Result<u64, String> {
    let Some(scope) = history.scopes.unchanged_since(record) else { return Ok(0) };
    let mut compared = 0;
    for (uid, object) in &history.objects {
        let Some(CollectedObject { kind, namespace, name, size }) = object.unchanged_since(record) else {
            continue;
        };
        let Some(labels) =
            history.namespaces.get(namespace).and_then(|versions| versions.unchanged_since(record))
        else {
            continue;
        };
        let mut resources = COLLECTED_KINDS.into_iter().filter_map(kind_of);
        let resource = resources.find(|resource| resource.kind == *kind);
        let (Some(resource), Some(permitted)) = (resource, scope.permits(namespace)) else { continue };
        let is_selected = profile.kind == *kind && spec.selects(namespace, Some(*labels)) && permitted;
        let key = RowKey {
            target: TargetId { namespace: Some(TEAM.into()), name: target.into() },
            group: resource.group.into(),
            kind: resource.kind.into(),
            namespace: namespace.as_str().into(),
            uid: uid.as_str().into(),
        };
        let wanted: Option<RowDigest> =
            is_selected.then(|| row(key.clone(), name, *size, profile.has_two_attributes).digest);
        let found = held.get(&key).copied();
        if found != wanted && *size < limit {
            let problem =
                if wanted.is_some() { "does not hold the row of" } else { "still holds the row of" };
            return Err(format!("{problem} {key:?}"));
        }
        compared += 1;
    }
    Ok(compared)
}
