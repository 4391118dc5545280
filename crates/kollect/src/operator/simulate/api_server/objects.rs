//! Objects, and the history of their changes.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use serde_json::{Value, json};

use super::{ApiServerState, KINDS};

/// Namespace and name.
pub(super) type StoredName = (String, String);

/// An object in one version.
#[derive(Debug)]
pub(in super::super) struct StoredObject {
    pub(super) value: Value,
    /// As it is sent.
    pub(super) text: String,
}

impl Deref for StoredObject {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

impl StoredObject {
    /// Whether it is being deleted.
    pub(in super::super) fn is_being_deleted(&self) -> bool {
        self.value["metadata"].get("deletionTimestamp").is_some()
    }

    pub(super) fn has_finalizers(&self) -> bool {
        self.value["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
    }

    /// The part that clients read in answers to their writes.
    pub(super) fn without_spec_and_status(&self) -> String {
        let value = |name: &str| &self.value[name];
        format!(
            r#"{{"apiVersion":{},"kind":{},"metadata":{}}}"#,
            value("apiVersion"),
            value("kind"),
            value("metadata")
        )
    }

    /// With a version.
    fn new(mut value: Value, version: u64) -> Arc<Self> {
        value["metadata"]["resourceVersion"] = json!(version.to_string());
        let text = value.to_string();
        Arc::new(Self { value, text })
    }
}

/// One change of an object.
pub(super) struct ObjectChange {
    pub(super) version: u64,
    pub(super) name: StoredName,
    pub(super) before: Option<Arc<StoredObject>>,
    /// What it is now, or what it was when it was removed.
    pub(super) object: Arc<StoredObject>,
    pub(super) removed: bool,
}

/// The objects of a kind, and all of their changes.
#[derive(Default)]
pub(super) struct StoredKind {
    pub(super) objects: BTreeMap<StoredName, Arc<StoredObject>>,
    pub(super) history: Vec<ObjectChange>,
}

impl StoredKind {
    /// The objects as they were at a version.
    pub(super) fn at(&self, version: u64) -> Vec<Arc<StoredObject>> {
        let later = self.history.partition_point(|change| change.version <= version);
        if later == self.history.len() {
            return self.objects.values().cloned().collect();
        }
        let mut objects = self.objects.clone();
        for change in self.history[later..].iter().rev() {
            match &change.before {
                Some(before) => objects.insert(change.name.clone(), before.clone()),
                None => objects.remove(&change.name),
            };
        }
        objects.into_values().collect()
    }
}

impl ApiServerState {
    pub(super) fn new_object(&mut self, cluster: &str, kind: usize, (namespace, name): &StoredName) -> Value {
        self.uid_count += 1;
        let kind = &KINDS[kind];
        let api_version = match kind.group {
            "" => kind.version.to_owned(),
            group => format!("{group}/{}", kind.version),
        };
        let mut metadata = json!({
            "name": name,
            "uid": format!("{cluster}-{}", self.uid_count),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        json!({ "apiVersion": api_version, "kind": kind.kind, "metadata": metadata })
    }

    pub(super) fn store(&mut self, kind: usize, name: StoredName, object: Value) -> Arc<StoredObject> {
        self.version += 1;
        let version = self.version;
        let object = StoredObject::new(object, version);
        let StoredKind { objects, history } = &mut self.kinds[kind];
        let before = objects.insert(name.clone(), object.clone());
        history.push(ObjectChange { version, name, before, object: object.clone(), removed: false });
        object
    }

    pub(super) fn remove(&mut self, kind: usize, name: &StoredName) {
        let StoredKind { objects, history } = &mut self.kinds[kind];
        let Some(before) = objects.remove(name) else { return };
        self.version += 1;
        let version = self.version;
        let object = StoredObject::new(before.value.clone(), version);
        history.push(ObjectChange {
            version,
            name: name.clone(),
            before: Some(before),
            object,
            removed: true,
        });
    }
}
