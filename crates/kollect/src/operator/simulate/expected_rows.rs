//! The rows that every destination must hold in the end, computed from the objects in the simplest way.

use std::collections::BTreeMap;

use kollect_model::{
    batch::InventoryId,
    row::{Row, RowDigest, RowKey, TargetId},
};
use serde_json::{Value, value::RawValue};

use super::{
    api_server::ApiServer,
    specs::{
        InventorySpecs, NamespaceSpecs, ProfileSpecs, ScopeSpecs, SinkSpecs, TEAM, TargetSpecs, name, text,
    },
};

/// A destination, and the inventory that the rows belong to.
pub(super) type StoredInventory = (String, InventoryId);

pub(super) type RowsByKey = BTreeMap<RowKey, RowDigest>;

/// A row as it should be.
#[derive(Clone)]
pub(super) struct ExpectedRow {
    pub(super) digest: RowDigest,
    /// Destinations may refuse large ones.
    pub(super) size: i64,
    /// How a status names it.
    pub(super) described: String,
}

pub(super) type ExpectedRows = BTreeMap<RowKey, ExpectedRow>;

/// The id of an inventory in the rows of a sink.
pub(super) fn inventory_id(cluster: &str, name: &str) -> InventoryId {
    InventoryId { cluster: cluster.to_owned(), namespace: Some(TEAM.into()), name: name.to_owned() }
}

/// What the destinations of a cluster must hold now, unless something is suspended.
pub(super) fn expected(cluster: &str, api: &ApiServer) -> BTreeMap<StoredInventory, ExpectedRows> {
    let mut expected: BTreeMap<StoredInventory, ExpectedRows> = BTreeMap::new();
    let targets: Vec<_> =
        api.objects("kollecttargets").into_iter().filter(|target| !target.is_being_deleted()).collect();
    let rows: Vec<(&str, ExpectedRows)> =
        targets.iter().map(|target| (name(target), rows_of(api, target).unwrap_or_default())).collect();
    for inventory in api.objects("kollectinventories").iter().filter(|object| !object.is_being_deleted()) {
        let spec = InventorySpecs::of(inventory);
        for sink in &spec.sinks {
            let Some(sink) = api.object("kollectdatabasesinks", TEAM, sink) else { continue };
            let sink = SinkSpecs::of(&sink);
            if sink.cluster != cluster {
                // It belongs to the other cluster.
                continue;
            }
            let stored = (sink.destination, inventory_id(cluster, name(inventory)));
            let wanted = expected.entry(stored).or_default();
            for (_, rows) in rows.iter().filter(|(target, _)| spec.has_target(target)) {
                wanted.extend(rows.clone());
            }
        }
    }
    expected
}

/// Whether a row of an inventory stays although no object yields it: its target has left the kind of the row, and
/// the kind that the target selects now is not served.
pub(super) fn waits_for_kind(api: &ApiServer, inventory: &str, key: &RowKey) -> bool {
    unserved_kind(api, inventory, &key.target.name).is_some_and(|kind| *kind != *key.kind)
}

/// The kind that a target of an inventory selects, if it is not served.
pub(super) fn unserved_kind(api: &ApiServer, inventory: &str, target: &str) -> Option<String> {
    let inventory = InventorySpecs::of(&*api.object("kollectinventories", TEAM, inventory)?);
    let object = api.object("kollecttargets", TEAM, target)?;
    let is_wanted = !object.is_being_deleted() && inventory.has_target(target);
    let profile =
        ProfileSpecs::of(&*api.object("kollectprofiles", TEAM, &TargetSpecs::of(&object).profile)?);
    (is_wanted && !api.serves(&profile.kind)).then_some(profile.kind)
}

/// The rows of a target; `None`: its profile or its kind does not exist.
fn rows_of(api: &ApiServer, target: &Value) -> Option<ExpectedRows> {
    let id = TargetId { namespace: Some(TEAM.into()), name: name(target).into() };
    let (spec, scope) = (TargetSpecs::of(target), ScopeSpecs::now(api));
    let profile = api.object("kollectprofiles", TEAM, &spec.profile)?;
    let profile = ProfileSpecs::of(&profile);
    let kind = profile.collected_kind()?;
    let mut rows = ExpectedRows::new();
    for object in api.objects(kind.plural) {
        let metadata = &object["metadata"];
        let namespace = text(&metadata["namespace"]);
        let labels = api.object("namespaces", "", namespace).map(|namespace| NamespaceSpecs::of(&namespace));
        if !spec.selects(namespace, labels) || scope.permits(namespace) != Some(true) {
            continue;
        }
        let key = RowKey {
            target: id.clone(),
            group: kind.group.into(),
            kind: kind.kind.into(),
            namespace: namespace.into(),
            uid: text(&metadata["uid"]).into(),
        };
        let size = object["spec"]["size"].as_i64()?;
        let row = row(key.clone(), name(&object), size, profile.has_two_attributes);
        rows.insert(key, ExpectedRow { digest: row.digest, size, described: row.described() });
    }
    Some(rows)
}

/// A row with an attribute for the size of its object, or with two of them.
pub(super) fn row(key: RowKey, name: &str, size: i64, has_two_attributes: bool) -> Row {
    let attributes = if has_two_attributes {
        format!(r#"{{"again":{size},"size":{size}}}"#)
    } else {
        format!(r#"{{"size":{size}}}"#)
    };
    let attributes = RawValue::from_string(attributes).unwrap();
    Row::new(key, "v1".into(), name.into(), attributes.into())
}
