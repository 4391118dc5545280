//! A change of one row as a CloudEvents 1.0 event, the same for every stream.
//!
//! [`ChangeEvent`] serializes to the structured JSON form. A stream that carries the attributes in headers takes
//! them one by one and serializes [`ChangeEvent::data`] alone.

use std::fmt::Write as _;

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    batch::{ChangedRow, Delta, InventoryId, RemovedRow},
    difference::differences,
    row::{Row, RowKey},
};

/// Content type of a whole event in the structured form.
pub const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

/// Name of the cluster in sources and subjects if the sink has no `spec.cluster`.
pub const DEFAULT_CLUSTER: &str = "default";

/// What happened to a row.
#[derive(Clone, Copy, Debug)]
pub enum RowChange<'a> {
    /// It is new.
    Added(&'a Row),
    /// It existed before with other content.
    Changed(&'a ChangedRow),
    /// It is gone.
    Removed(&'a RemovedRow),
}

impl<'a> RowChange<'a> {
    /// The changes of a delta, removals first: a row that moved is removed before it is added again.
    pub fn all(delta: &'a Delta) -> impl Iterator<Item = Self> {
        let removed = delta.removed.iter().map(Self::Removed);
        let added = delta.added.iter().map(|row| Self::Added(row));
        removed.chain(added).chain(delta.changed.iter().map(Self::Changed))
    }

    /// Key of the row.
    pub fn key(self) -> &'a RowKey {
        match self {
            Self::Added(row) => &row.key,
            Self::Changed(changed) => &changed.after.key,
            Self::Removed(removed) => &removed.key,
        }
    }

    /// The row before the change, if it existed and is known.
    pub fn before(self) -> Option<&'a Row> {
        match self {
            Self::Added(_) => None,
            Self::Changed(changed) => changed.before.as_deref(),
            Self::Removed(removed) => removed.before.as_deref(),
        }
    }

    /// The row after the change; `None` if it was removed.
    pub fn after(self) -> Option<&'a Row> {
        match self {
            Self::Added(row) => Some(row),
            Self::Changed(changed) => Some(&changed.after),
            Self::Removed(_) => None,
        }
    }

    /// The operation: `added`, `changed` or `removed`.
    pub fn op(self) -> &'static str {
        match self {
            Self::Added(_) => "added",
            Self::Changed(_) => "changed",
            Self::Removed(_) => "removed",
        }
    }

    /// The CloudEvents `type`.
    pub fn event_type(self) -> &'static str {
        match self {
            Self::Added(_) => "dev.kollect.row.added",
            Self::Changed(_) => "dev.kollect.row.changed",
            Self::Removed(_) => "dev.kollect.row.removed",
        }
    }
}

/// One change of one row.
#[derive(Clone, Copy, Debug)]
pub struct ChangeEvent<'a> {
    /// Inventory that the row belongs to.
    pub inventory: &'a InventoryId,
    /// The change of the row.
    pub change: RowChange<'a>,
    /// The CloudEvents `id`: the same for the same change, however often it is sent.
    pub id: &'a str,
    /// When it was sent, RFC 3339.
    pub time: &'a str,
    /// Number of the last change that the rows contain.
    pub revision: u64,
    /// Whether `before` is included. A large row may fit into a message only once.
    pub with_before: bool,
}

impl ChangeEvent<'_> {
    /// The CloudEvents `source`: `kollect/CLUSTER/NAMESPACE/INVENTORY`, as a URI reference.
    pub fn source(&self) -> String {
        let InventoryId { cluster, name, .. } = self.inventory;
        let cluster = if cluster.is_empty() { DEFAULT_CLUSTER } else { cluster };
        let namespace = self.inventory.stored_namespace();
        format!("kollect/{}/{}/{}", segment(cluster), segment(namespace), segment(name))
    }

    /// The CloudEvents `subject`: target, group, kind, namespace and UID of the row.
    pub fn subject(&self) -> String {
        let RowKey { target, group, kind, namespace, uid } = self.change.key();
        format!("{target}/{group}/{kind}/{namespace}/{uid}")
    }

    /// The CloudEvents `data`: operation, key, the row before and after, and the revision.
    pub fn data(&self) -> impl Serialize {
        EventData(*self)
    }
}

impl Serialize for ChangeEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut event = serializer.serialize_map(None)?;
        event.serialize_entry("specversion", "1.0")?;
        event.serialize_entry("id", self.id)?;
        event.serialize_entry("source", &self.source())?;
        event.serialize_entry("type", self.change.event_type())?;
        event.serialize_entry("subject", &self.subject())?;
        event.serialize_entry("time", self.time)?;
        event.serialize_entry("datacontenttype", "application/json")?;
        event.serialize_entry("data", &EventData(*self))?;
        event.end()
    }
}

struct EventData<'a>(ChangeEvent<'a>);

impl Serialize for EventData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ChangeEvent { change, revision, with_before, .. } = self.0;
        let (before, after) = (change.before().filter(|_| with_before), change.after());
        let mut data = serializer.serialize_map(None)?;
        data.serialize_entry("op", change.op())?;
        data.serialize_entry("key", &EventKey(self.0))?;
        data.serialize_entry("before", &before)?;
        data.serialize_entry("after", &after)?;
        // Included even if `before` is left out for lack of space.
        if let (Some(before), Some(after)) = (change.before(), after) {
            data.serialize_entry("changed", &changed(before, after))?;
        }
        data.serialize_entry("revision", &revision)?;
        data.end()
    }
}

struct EventKey<'a>(ChangeEvent<'a>);

impl Serialize for EventKey<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ChangeEvent { inventory, change, .. } = self.0;
        let RowKey { target, group, kind, namespace, uid } = change.key();
        let row = change.after().or(change.before());
        let mut key = serializer.serialize_map(None)?;
        key.serialize_entry("cluster", &inventory.cluster)?;
        key.serialize_entry("inventoryNamespace", inventory.stored_namespace())?;
        key.serialize_entry("inventory", &inventory.name)?;
        key.serialize_entry("targetNamespace", &target.namespace.as_deref())?;
        key.serialize_entry("targetName", &*target.name)?;
        key.serialize_entry("group", &**group)?;
        key.serialize_entry("version", &row.map(|row| &*row.version))?;
        key.serialize_entry("kind", &**kind)?;
        key.serialize_entry("namespace", &**namespace)?;
        key.serialize_entry("name", &row.map(|row| &*row.name))?;
        key.serialize_entry("uid", &**uid)?;
        key.end()
    }
}

fn changed(before: &Row, after: &Row) -> Vec<String> {
    let differences = differences(Some(before.attributes.get()), after.attributes.get());
    differences.into_iter().map(|difference| difference.name).collect()
}

/// A path segment of a URI.
fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            write!(segment, "%{byte:02X}").ok();
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;

    use super::*;
    use crate::row::TargetId;

    fn row(target_namespace: Option<&str>, attributes: &str) -> Arc<Row> {
        let key = RowKey {
            target: TargetId { namespace: target_namespace.map(Into::into), name: "web".into() },
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            uid: "u1".into(),
        };
        let attributes = RawValue::from_string(attributes.into()).unwrap();
        Arc::new(Row::new(key, "v1".into(), "cart".into(), attributes.into()))
    }

    fn json(inventory: &InventoryId, change: RowChange<'_>) -> String {
        let event = ChangeEvent {
            inventory,
            change,
            id: "0a1b",
            time: "2026-01-02T03:04:05Z",
            revision: 7,
            with_before: true,
        };
        serde_json::to_string(&event).unwrap()
    }

    #[test]
    fn events_are_written_as_documented() {
        let inventory =
            InventoryId { cluster: "east/1".into(), namespace: Some("team".into()), name: "all".into() };
        let (before, after) = (
            row(Some("team"), r#"{"a":1,"b":"x","gone":null}"#),
            row(Some("team"), r#"{"a":1,"b":"y","new":[]}"#),
        );
        let change = ChangedRow { before: Some(before), after };
        assert_eq!(
            json(&inventory, RowChange::Changed(&change)),
            concat!(
                r#"{"specversion":"1.0","id":"0a1b","source":"kollect/east%2F1/team/all","#,
                r#""type":"dev.kollect.row.changed","subject":"team/web/apps/Deployment/shop/u1","#,
                r#""time":"2026-01-02T03:04:05Z","datacontenttype":"application/json","data":{"op":"changed","#,
                r#""key":{"cluster":"east/1","inventoryNamespace":"team","inventory":"all","#,
                r#""targetNamespace":"team","targetName":"web","group":"apps","version":"v1","#,
                r#""kind":"Deployment","namespace":"shop","name":"cart","uid":"u1"},"#,
                r#""before":{"targetNamespace":"team","targetName":"web","namespace":"shop","name":"cart","#,
                r#""group":"apps","version":"v1","kind":"Deployment","uid":"u1","#,
                r#""attributes":{"a":1,"b":"x","gone":null}},"#,
                r#""after":{"targetNamespace":"team","targetName":"web","namespace":"shop","name":"cart","#,
                r#""group":"apps","version":"v1","kind":"Deployment","uid":"u1","#,
                r#""attributes":{"a":1,"b":"y","new":[]}},"changed":["b","gone","new"],"revision":7}}"#,
            )
        );
    }

    #[test]
    fn unknown_fields_of_an_event_are_null() {
        let inventory = InventoryId { cluster: String::new(), namespace: None, name: "all".into() };
        let removed = RemovedRow { key: row(None, "{}").key.clone(), before: None };
        let text = json(&inventory, RowChange::Removed(&removed));
        assert!(text.contains(r#""source":"kollect/default/cluster/all""#), "{text}");
        assert!(text.contains(r#""type":"dev.kollect.row.removed""#), "{text}");
        assert!(text.contains(r#""targetNamespace":null,"targetName":"web""#), "{text}");
        assert!(
            text.contains(r#""version":null,"kind":"Deployment","namespace":"shop","name":null"#),
            "{text}"
        );
        assert!(text.ends_with(r#""before":null,"after":null,"revision":7}}"#), "{text}");
    }

    #[test]
    fn a_changed_row_whose_old_content_is_unknown_has_no_list_of_changed_attributes() {
        let inventory = InventoryId { cluster: String::new(), namespace: None, name: "all".into() };
        let change = ChangedRow { before: None, after: row(None, r#"{"a":1}"#) };
        let text = json(&inventory, RowChange::Changed(&change));
        assert!(text.contains(r#""before":null"#) && !text.contains(r#""changed":["#), "{text}");
    }
}
