//! What every destination should hold in the end, computed from the objects in the plainest way.

use std::collections::BTreeMap;

use kollect_model::{
    batch::InventoryId,
    row::{Row, RowDigest, RowKey, TargetId},
};
use serde_json::{Value, json, value::RawValue};

use super::{
    api_server::{ApiServer, kind_of},
    sink_servers::destination_of,
};

/// The namespace of the objects of Kollect.
pub(super) const TEAM: &str = "team";

/// A destination, and whose rows.
pub(super) type Place = (String, InventoryId);

pub(super) type Rows = BTreeMap<RowKey, RowDigest>;

/// What a cluster wants now, unless something is suspended.
pub(super) fn expected(name: &str, api: &ApiServer) -> BTreeMap<Place, Rows> {
    let mut expected: BTreeMap<Place, Rows> = BTreeMap::new();
    let targets: Vec<_> = api.objects("kollecttargets").into_iter().filter(|t| !is_leaving(t)).collect();
    for inventory in api.objects("kollectinventories").iter().filter(|object| !is_leaving(object)) {
        let chosen = &inventory["spec"]["targetRefs"];
        for sink in inventory["spec"]["databaseSinkRefs"].as_array().into_iter().flatten() {
            let Some(sink) = api.object("kollectdatabasesinks", TEAM, text(sink)) else { continue };
            let id = InventoryId {
                cluster: text(&sink["spec"]["cluster"]).to_owned(),
                namespace: Some(TEAM.into()),
                name: text(&inventory["metadata"]["name"]).to_owned(),
            };
            if id.cluster != name {
                // It belongs to the other cluster.
                continue;
            }
            let place = (destination_of(text(&sink["spec"]["sqlite"]["path"])).to_owned(), id);
            let mut rows = Rows::new();
            for target in &targets {
                let name = &target["metadata"]["name"];
                if chosen.as_array().is_some_and(|chosen| !chosen.is_empty() && !chosen.contains(name)) {
                    continue;
                }
                let id = TargetId { namespace: Some(TEAM.into()), name: text(name).into() };
                rows.extend(rows_of(api, &id, target).unwrap_or_default());
            }
            expected.entry(place).or_default().extend(rows);
        }
    }
    expected
}

/// Whether a row of an inventory stays although no object yields it: its target has left the kind of the row, and
/// the kind that the target wants now is not served.
pub(super) fn waits_for_kind(api: &ApiServer, inventory: &str, key: &RowKey) -> bool {
    let kind = || {
        let inventory = api.object("kollectinventories", TEAM, inventory)?;
        let chosen = inventory["spec"]["targetRefs"].as_array().filter(|chosen| !chosen.is_empty());
        let target =
            api.object("kollecttargets", TEAM, &key.target.name).filter(|target| !is_leaving(target))?;
        let profile = api.object("kollectprofiles", TEAM, text(&target["spec"]["profileRef"]))?;
        let kind = text(&profile["spec"]["targetGVK"]["kind"]).to_owned();
        chosen.is_none_or(|chosen| chosen.contains(&json!(key.target.name))).then_some(kind)
    };
    kind().is_some_and(|kind| *kind != *key.kind && !api.serves(&kind))
}

/// The rows of a target; `None`: it is not complete.
fn rows_of(api: &ApiServer, id: &TargetId, target: &Value) -> Option<Rows> {
    let spec = &target["spec"];
    let profile = api.object("kollectprofiles", TEAM, text(&spec["profileRef"]))?;
    let kind = text(&profile["spec"]["targetGVK"]["kind"]);
    let plural =
        ["deployments", "widgets"].into_iter().find(|p| kind_of(p).is_some_and(|k| k.kind == kind))?;
    let included = spec["includedNamespaces"].as_array()?;
    let twice = profile["spec"]["attributes"].as_array()?.len() > 1;
    let mut rows = Rows::new();
    for object in api.objects(plural) {
        let (metadata, size) = (&object["metadata"], &object["spec"]["size"]);
        if !included.contains(&metadata["namespace"]) {
            continue;
        }
        let kind = kind_of(plural)?;
        let key = RowKey {
            target: id.clone(),
            group: kind.group.into(),
            kind: kind.kind.into(),
            namespace: text(&metadata["namespace"]).into(),
            uid: text(&metadata["uid"]).into(),
        };
        rows.insert(key.clone(), digest(key, text(&metadata["name"]), size.as_i64()?, twice));
    }
    Some(rows)
}

/// The digest of a row with an attribute for the size of its object, or with two of them.
pub(super) fn digest(key: RowKey, name: &str, size: i64, twice: bool) -> RowDigest {
    let attributes = if twice { json!({ "again": size, "size": size }) } else { json!({ "size": size }) };
    let attributes = RawValue::from_string(attributes.to_string()).unwrap();
    Row::new(key, "v1".into(), name.into(), attributes.into()).digest
}

pub(super) fn is_leaving(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
