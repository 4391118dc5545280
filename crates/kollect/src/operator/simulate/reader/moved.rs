//! A sink leads somewhere else: its old destination is cleaned only when the new one holds the rows.

use kollect_model::row::RowKey;

use super::{
    super::{
        specs::{Profile, Sink},
        truth::Place,
    },
    history::{Collected, History},
};

/// Checks that `gone`, which was removed when `place` was cleaned, is where the sink leads now. `holds` says whether a
/// place holds a row, or may refuse it. If anything else that the row depends on has changed since the sink was moved,
/// or the inventory since the sink led here, nothing is checked.
pub(super) fn check(
    history: &History,
    place: &Place,
    gone: &RowKey,
    holds: &impl Fn(&Place, &RowKey, i64) -> bool,
) -> Result<(), String> {
    let (destination, inventory) = place;
    for (name, versions) in &history.sinks {
        let [.., Some(before), Some(now)] = &**versions else { continue };
        let leads_here = |sink: &Sink| sink.destination == *destination && sink.cluster == inventory.cluster;
        if !leads_here(before) || leads_here(now) || now.cluster != inventory.cluster {
            continue;
        }
        let (came, record) = (versions.record(versions.len() - 2), versions.record(versions.len() - 1));
        let named = history.inventories.get(&inventory.name).and_then(|own| own.unchanged_since(came));
        if !named.is_some_and(|own| own.sinks.contains(name) && own.has_target(&gone.target.name)) {
            continue;
        }
        let Some(size) = expected_size(history, gone, record) else { continue };
        let new = (now.destination.clone(), inventory.clone());
        if !holds(&new, gone, size) {
            return Err(format!("{place:?} is cleaned, and {} does not hold {gone:?}", new.0));
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
    let Collected { size, .. } = history.objects.get(&*key.uid)?.unchanged_since(record)?;
    let is_collected = !target.suspended
        && Profile::collects(profile).is_none_or(|kind| *kind.kind == *key.kind)
        && target.wants(&key.namespace, Some(*namespace))
        && scope.permits(&key.namespace) == Some(true);
    is_collected.then_some(*size)
}
