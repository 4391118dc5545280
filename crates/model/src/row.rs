//! A row: what one target extracted from one object.
//!
//! The identity of a row stays in typed fields from the watch to the sink. It is never parsed from a path.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

use crate::crd::shapes::Gvk;

/// The target that a row belongs to. A cluster target and a target of the same name are different.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId {
    /// Namespace of a KollectTarget; `None` for a KollectClusterTarget.
    pub namespace: Option<Arc<str>>,
    /// Name of the target.
    pub name: Arc<str>,
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => write!(f, "cluster/{}", self.name),
        }
    }
}

/// Identifies a row in an inventory. A sink must be able to return the key of each row that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// Target that extracted the row.
    pub target: TargetId,
    /// API group of the object.
    pub group: Arc<str>,
    /// Kind of the object.
    pub kind: Arc<str>,
    /// Namespace of the object; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// UID of the object.
    pub uid: Arc<str>,
}

/// 128-bit digest of the key and the content of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowDigest(pub u128);

impl fmt::Display for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for RowDigest {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// What one target extracted from one object.
#[derive(Clone, Debug)]
pub struct Row {
    /// Key of the row.
    pub key: RowKey,
    /// API version of the object, without the group.
    pub version: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
    /// The attributes as canonical JSON: sorted keys, no white space. Targets with the same profile share them.
    pub attributes: Arc<RawValue>,
    /// Digest of key, version, name and attributes.
    pub digest: RowDigest,
}

impl Row {
    /// A row with its digest.
    pub fn new(key: RowKey, version: Arc<str>, name: Arc<str>, attributes: Arc<RawValue>) -> Self {
        let digest = digest(&key, &version, &name, attributes.get());
        Self { key, version, name, attributes, digest }
    }

    /// Kind of the object.
    pub fn gvk(&self) -> Gvk {
        Gvk {
            group: self.key.group.to_string(),
            version: self.version.to_string(),
            kind: self.key.kind.to_string(),
        }
    }

    /// `namespace/name` of the object; its name alone if it is in no namespace.
    pub fn path(&self) -> String {
        let namespace = &self.key.namespace;
        let slash = if namespace.is_empty() { "" } else { "/" };
        format!("{namespace}{slash}{}", self.name)
    }

    /// The row in messages: kind, object, target and UID.
    pub fn described(&self) -> String {
        let RowKey { target, kind, uid, .. } = &self.key;
        format!("{kind} {} of target {target} (uid {uid})", self.path())
    }

    /// `targetNamespace` of an exported row: the namespace of the target; for cluster targets the namespace
    /// of the object.
    pub fn target_namespace(&self) -> &str {
        self.key.target.namespace.as_deref().unwrap_or(&self.key.namespace)
    }
}

/// The length of each part is hashed before the part, so that different rows never hash the same bytes.
fn digest(key: &RowKey, version: &str, name: &str, attributes: &str) -> RowDigest {
    let mut hasher = Xxh3::new();
    let target_namespace = key.target.namespace.as_deref();
    hasher.update(&[u8::from(target_namespace.is_some())]);
    for part in [
        target_namespace.unwrap_or_default(),
        &key.target.name,
        &key.group,
        &key.kind,
        &key.namespace,
        &key.uid,
        version,
        name,
        attributes,
    ] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    RowDigest(hasher.digest128())
}

/// Serializes the row as an item, with the order of keys that export documents have.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut item = serializer.serialize_map(None)?;
        item.serialize_entry("targetNamespace", self.target_namespace())?;
        item.serialize_entry("targetName", &*self.key.target.name)?;
        item.serialize_entry("namespace", &*self.key.namespace)?;
        item.serialize_entry("name", &*self.name)?;
        if !self.key.group.is_empty() {
            item.serialize_entry("group", &*self.key.group)?;
        }
        item.serialize_entry("version", &*self.version)?;
        item.serialize_entry("kind", &*self.key.kind)?;
        item.serialize_entry("uid", &*self.key.uid)?;
        item.serialize_entry("attributes", &self.attributes)?;
        item.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target_namespace: Option<&str>, name: &str, attributes: &str) -> Row {
        let key = RowKey {
            target: TargetId { namespace: target_namespace.map(Into::into), name: "web".into() },
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            uid: "u1".into(),
        };
        Row::new(key, "v1".into(), name.into(), RawValue::from_string(attributes.into()).unwrap().into())
    }

    #[test]
    fn items_have_the_documented_key_order() {
        assert_eq!(
            serde_json::to_string(&row(Some("team"), "cart", r#"{"replicas":3}"#)).unwrap(),
            r#"{"targetNamespace":"team","targetName":"web","namespace":"shop","name":"cart","group":"apps","version":"v1","kind":"Deployment","uid":"u1","attributes":{"replicas":3}}"#
        );
    }

    #[test]
    fn rows_that_differ_have_different_digests() {
        let base = row(Some("team"), "cart", "{}").digest;
        assert_eq!(base, row(Some("team"), "cart", "{}").digest);
        assert_ne!(base, row(Some("team"), "cart", r#"{"a":1}"#).digest);
        assert_ne!(base, row(Some("team"), "cart2", "{}").digest);
        assert_ne!(row(None, "cart", "{}").digest, row(Some(""), "cart", "{}").digest);
        assert_eq!(base.to_string().parse(), Ok(base));
    }
}
