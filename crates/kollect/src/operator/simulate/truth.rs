//! The rows that every destination must hold in the end, computed from the objects in the simplest way.

use std::collections::BTreeMap;

use kollect_model::{
    batch::InventoryId,
    row::{Row, RowDigest, RowKey, TargetId},
};
use serde_json::{Value, value::RawValue};

use super::{
    api_server::ApiServer,
    specs::{Inventory, Namespace, Profile, Scope, Sink, TEAM, Target, name, text},
};

/// A destination, and the inventory that the rows belong to.
pub(super) type Place = (String, InventoryId);

pub(super) type Rows = BTreeMap<RowKey, RowDigest>;

/// A row as it should be.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) digest: RowDigest,
    /// Destinations may refuse large ones.
    pub(super) size: i64,
    /// What a status calls it.
    pub(super) described: String,
}

pub(super) type ExpectedRows = BTreeMap<RowKey, Expected>;

/// The id of an inventory in the rows of a sink.
pub(super) fn inventory_id(cluster: &str, name: &str) -> InventoryId {
    InventoryId { cluster: cluster.to_owned(), namespace: Some(TEAM.into()), name: name.to_owned() }
}

/// What a cluster wants now, unless something is suspended.
pub(super) fn expected(cluster: &str, api: &ApiServer) -> BTreeMap<Place, ExpectedRows> {
    let mut expected: BTreeMap<Place, ExpectedRows> = BTreeMap::new();
    let targets: Vec<_> = api.objects("kollecttargets").into_iter().filter(|t| !t.is_leaving()).collect();
    let rows: Vec<(&str, ExpectedRows)> =
        targets.iter().map(|target| (name(target), rows_of(api, target).unwrap_or_default())).collect();
    for inventory in api.objects("kollectinventories").iter().filter(|object| !object.is_leaving()) {
        let spec = Inventory::of(inventory);
        for sink in &spec.sinks {
            let Some(sink) = api.object("kollectdatabasesinks", TEAM, sink) else { continue };
            let sink = Sink::of(&sink);
            if sink.cluster != cluster {
                // It belongs to the other cluster.
                continue;
            }
            let place = (sink.destination, inventory_id(cluster, name(inventory)));
            let wanted = expected.entry(place).or_default();
            for (_, rows) in rows.iter().filter(|(target, _)| spec.has_target(target)) {
                wanted.extend(rows.clone());
            }
        }
    }
    expected
}

/// Whether a row of an inventory stays although no object yields it: its target has left the kind of the row, and
/// the kind that the target wants now is not served.
pub(super) fn waits_for_kind(api: &ApiServer, inventory: &str, key: &RowKey) -> bool {
    unserved_kind(api, inventory, &key.target.name).is_some_and(|kind| *kind != *key.kind)
}

/// The kind that a target of an inventory wants, if it is not served.
pub(super) fn unserved_kind(api: &ApiServer, inventory: &str, target: &str) -> Option<String> {
    let inventory = Inventory::of(&*api.object("kollectinventories", TEAM, inventory)?);
    let object = api.object("kollecttargets", TEAM, target)?;
    let is_wanted = !object.is_leaving() && inventory.has_target(target);
    let profile = Profile::of(&*api.object("kollectprofiles", TEAM, &Target::of(&object).profile)?);
    (is_wanted && !api.serves(&profile.kind)).then_some(profile.kind)
}

/// The rows of a target; `None`: its profile or its kind does not exist.
fn rows_of(api: &ApiServer, target: &Value) -> Option<ExpectedRows> {
    let id = TargetId { namespace: Some(TEAM.into()), name: name(target).into() };
    let (spec, scope) = (Target::of(target), Scope::now(api));
    let profile = api.object("kollectprofiles", TEAM, &spec.profile)?;
    let profile = Profile::of(&profile);
    let kind = profile.collects()?;
    let mut rows = ExpectedRows::new();
    for object in api.objects(kind.plural) {
        let metadata = &object["metadata"];
        let namespace = text(&metadata["namespace"]);
        let labels = api.object("namespaces", "", namespace).map(|namespace| Namespace::of(&namespace));
        if !spec.wants(namespace, labels) || scope.permits(namespace) != Some(true) {
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
        let row = row(key.clone(), name(&object), size, profile.twice);
        rows.insert(key, Expected { digest: row.digest, size, described: row.described() });
    }
    Some(rows)
}

/// A row with an attribute for the size of its object, or with two of them.
pub(super) fn row(key: RowKey, name: &str, size: i64, twice: bool) -> Row {
    let attributes =
        if twice { format!(r#"{{"again":{size},"size":{size}}}"#) } else { format!(r#"{{"size":{size}}}"#) };
    let attributes = RawValue::from_string(attributes).unwrap();
    Row::new(key, "v1".into(), name.into(), attributes.into())
}
