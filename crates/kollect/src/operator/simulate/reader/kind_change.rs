//! Checks for half of a change of kinds: a row of the old kind was removed, and rows of the new kind are missing.

use kollect_model::row::RowKey;

use super::{
    super::specs::ProfileSpecs,
    DestinationView,
    history::{CollectedObject, History},
};

/// Checks that the rows of the new kind are there, now that `removed` has left because `version` of a profile has
/// another kind. If anything else that the rows depend on has changed since then, nothing is checked.
pub(super) fn check(
    history: &History,
    DestinationView { stored, held, limit, .. }: &DestinationView<'_>,
    removed: &RowKey,
    profile: &str,
    version: usize,
) -> Result<(), String> {
    let profiles = &history.profiles[profile];
    let record = profiles.record(version);
    let target = history.targets.get(&*removed.target.name).and_then(|target| target.unchanged_since(record));
    let inventory =
        history.inventories.get(&stored.1.name).and_then(|versions| versions.unchanged_since(record));
    let scope = history.scopes.unchanged_since(record);
    let kind = profiles.unchanged_since(record).and_then(ProfileSpecs::collected_kind);
    let (Some(target), Some(_), Some(scope), Some(kind)) = (target, inventory, scope, kind) else {
        return Ok(());
    };
    let sinks_stay = history.sinks.values().all(|sink| sink.unchanged_since(record).is_some());
    let old = history.objects.get(&*removed.uid).and_then(|object| object.unchanged_since(record));
    if !sinks_stay || old.is_none() {
        return Ok(());
    }
    for (uid, object) in &history.objects {
        let Some(CollectedObject { kind: object_kind, namespace, size, .. }) = object.unchanged_since(record)
        else {
            continue;
        };
        let labels = history.namespaces.get(namespace).and_then(|versions| versions.unchanged_since(record));
        let selected = target.selects(namespace, labels.copied()) && scope.permits(namespace) == Some(true);
        // Where the new kind may not be listed the old rows stay, namespace by namespace.
        let is_in_other_namespace = *namespace != *removed.namespace;
        if *object_kind != kind.kind || is_in_other_namespace || !selected || size >= limit {
            continue;
        }
        let key = RowKey {
            group: kind.group.into(),
            kind: kind.kind.into(),
            namespace: namespace.as_str().into(),
            uid: uid.as_str().into(),
            ..removed.clone()
        };
        if !held.contains_key(&key) {
            return Err(format!(
                "{stored:?}: {removed:?} has left because profile {profile} collects {} now, and {key:?} is not there",
                kind.kind
            ));
        }
    }
    Ok(())
}
