//! A sink leads to another destination: the old one is cleaned only when the new one holds the rows.

use kollect_model::row::RowKey;

use super::{
    super::{
        expected_rows::StoredInventory,
        specs::{ProfileSpecs, SinkSpecs},
    },
    history::{CollectedObject, History},
};

/// Checks that the row `removed`, which was there before `stored` was cleaned, is in the destination that the sink
/// leads to now. `holds` says whether a destination holds a row, or may refuse it. If anything else that the row
/// depends on has changed since the sink was moved, or the inventory since the sink led here, nothing is checked.
pub(super) fn check(
    history: &History,
    stored: &StoredInventory,
    removed: &RowKey,
    holds: &impl Fn(&StoredInventory, &RowKey, i64) -> bool,
) -> Result<(), String> {
    let (destination, inventory) = stored;
    for (name, versions) in &history.sinks {
        let [.., Some(before), Some(now)] = &**versions else { continue };
        let leads_here =
            |sink: &SinkSpecs| sink.destination == *destination && sink.cluster == inventory.cluster;
        if !leads_here(before) || leads_here(now) || now.cluster != inventory.cluster {
            continue;
        }
        let (led_here_since, moved) =
            (versions.record(versions.len() - 2), versions.record(versions.len() - 1));
        let named = history
            .inventories
            .get(&inventory.name)
            .and_then(|versions| versions.unchanged_since(led_here_since));
        if !named.is_some_and(|named| named.sinks.contains(name) && named.has_target(&removed.target.name)) {
            continue;
        }
        let Some(size) = expected_size(history, removed, moved) else { continue };
        let new = (now.destination.clone(), inventory.clone());
        if !holds(&new, removed, size) {
            return Err(format!("{stored:?} is cleaned, and {} does not hold {removed:?}", new.0));
        }
    }
    Ok(())
}

/// The size of the object of a row, if it is collected, or the row waits for a kind that is not served, and nothing
/// that the row depends on has changed since a record.
fn expected_size(history: &History, key: &RowKey, record: u64) -> Option<i64> {
    history.sees_everything.unchanged_since(record).filter(|sees_everything| **sees_everything)?;
    let target = history.targets.get(&*key.target.name)?.unchanged_since(record)?;
    let profile = history.profiles.get(&target.profile)?.unchanged_since(record)?;
    let scope = history.scopes.unchanged_since(record)?;
    let namespace = history.namespaces.get(&*key.namespace)?.unchanged_since(record)?;
    let CollectedObject { size, .. } = history.objects.get(&*key.uid)?.unchanged_since(record)?;
    let is_collected = !target.suspended
        && ProfileSpecs::collected_kind(profile).is_none_or(|kind| *kind.kind == *key.kind)
        && target.selects(&key.namespace, Some(*namespace))
        && scope.permits(&key.namespace) == Some(true);
    is_collected.then_some(*size)
}
