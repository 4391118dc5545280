//! Objects from files instead of a cluster.
//!
//! Files say what exists, never what does not: nothing is removed from a sink because of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::Context;
use futures::{StreamExt, stream, stream::BoxStream};
use kollect_engine::watch::{Event, Metadata, Object, Query, WatchSource};
use kollect_model::crd::shapes::Gvk;
use serde_json::{Value, json, value::to_raw_value};

use crate::cli::yaml;

/// The objects of some files.
pub(crate) struct FileSource {
    objects: BTreeMap<Gvk, Vec<Value>>,
}

impl FileSource {
    /// Reads all files. Lists are taken apart.
    pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut source = Self { objects: BTreeMap::new() };
        for path in paths {
            let stdin = path.as_os_str() == "-";
            let files = if stdin { vec![path.clone()] } else { yaml::files(path)? };
            for file in files {
                for (number, document) in yaml::documents(&file)? {
                    let place = || format!("{}: document {number}", file.display());
                    source.add(document).with_context(place)?;
                }
            }
        }
        source.imply_namespaces();
        Ok(source)
    }

    fn add(&mut self, mut document: Value) -> anyhow::Result<()> {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&document, "apiVersion"), text(&document, "kind"));
        if let (Some(item_kind), Value::Array(items)) = (kind.strip_suffix("List"), &mut document["items"]) {
            for mut item in items.drain(..) {
                // Items of a typed list do not repeat what the list says.
                if !item_kind.is_empty() && item.is_object() && item["kind"].is_null() {
                    item["kind"] = item_kind.into();
                    item["apiVersion"] = api_version.clone().into();
                }
                self.add(item)?;
            }
            return Ok(());
        }
        anyhow::ensure!(
            !api_version.is_empty() && !kind.is_empty(),
            "apiVersion and kind are needed: this is not a Kubernetes object"
        );
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        anyhow::ensure!(!name.is_empty(), "metadata.name is needed in {kind}");
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let gvk = Gvk { group: group.into(), version: version.into(), kind };
        self.objects.entry(gvk).or_default().push(document);
        Ok(())
    }

    /// A namespace that an object is in exists, even if no file shows it.
    fn imply_namespaces(&mut self) {
        let gvk = Gvk { group: String::new(), version: "v1".into(), kind: "Namespace".into() };
        let names = |objects: &[Value], field: &str| -> BTreeSet<String> {
            objects.iter().filter_map(|o| Some(o["metadata"][field].as_str()?.to_owned())).collect()
        };
        let used: BTreeSet<String> =
            self.objects.values().flat_map(|objects| names(objects, "namespace")).collect();
        let namespaces = self.objects.entry(gvk).or_default();
        let shown = names(namespaces, "name");
        for name in used.difference(&shown) {
            namespaces.push(json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            }));
        }
    }
}

impl WatchSource for FileSource {
    fn watch(&self, query: Query) -> BoxStream<'_, Event> {
        let objects = self.objects.get(&query.gvk).map(Vec::as_slice).unwrap_or_default();
        let events = objects.iter().filter_map(move |value| {
            let raw = to_raw_value(value).ok()?;
            let object = Object::parse(raw, &query.gvk).ok()?;
            let Metadata { namespace, .. } = &object.metadata;
            let wanted = namespace.is_empty() || query.scope.contains(namespace);
            wanted.then_some(Event::Apply(object))
        });
        stream::iter(events).chain(stream::iter([Event::Synced { namespaced: true }])).boxed()
    }

    fn is_complete(&self) -> bool {
        false
    }
}
