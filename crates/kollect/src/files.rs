//! Objects from files instead of a cluster.
//!
//! Files show what exists, never what does not: nothing is removed from a sink because of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use kollect_engine::watch::{Event, Object, Query, Resolution, Resource, WatchSource};
use kollect_model::crd::shapes::Gvk;
use serde::Deserialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};
use tokio::sync::watch;

use crate::documents;

/// The fields that objects and lists have in common.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectHeader {
    api_version: String,
    kind: String,
    items: Option<Vec<Box<RawValue>>>,
}

/// The objects of some files.
pub(crate) struct FileSource {
    objects: BTreeMap<Gvk, Arc<Vec<Box<RawValue>>>>,
    namespaces: BTreeSet<String>,
    /// Objects without a namespace, by kind: it is unknown whether they should have one.
    pub(crate) without_namespace: BTreeMap<Gvk, usize>,
}

impl FileSource {
    /// Reads all files, or returns everything that is wrong with them.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, Vec<String>> {
        let mut source = Self {
            objects: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            without_namespace: BTreeMap::new(),
        };
        let mut problems = Vec::new();
        for path in paths {
            let stdin = path.as_os_str() == "-";
            let files = if stdin { Ok(vec![path.clone()]) } else { documents::files(path) };
            for file in files.unwrap_or_else(|error| {
                problems.push(format!("{error:#}"));
                Vec::new()
            }) {
                match documents::text(&file) {
                    Ok(text) => source.add_all(&file.display().to_string(), &text, &mut problems),
                    Err(error) => problems.push(format!("{error:#}")),
                }
            }
        }
        source.imply_namespaces();
        if problems.is_empty() { Ok(source) } else { Err(problems) }
    }

    fn add_all(&mut self, file: &str, text: &str, problems: &mut Vec<String>) {
        // JSON is kept as it is written: a number that passes through a value may lose digits.
        let documents: Vec<(usize, Result<Box<RawValue>, String>)> = match documents::json(text) {
            Some(raw) => raw.into_iter().enumerate().map(|(index, raw)| (index + 1, Ok(raw))).collect(),
            None => {
                let raw = |value| to_raw_value(&value).map_err(|error| error.to_string());
                documents::parse(text)
                    .into_iter()
                    .map(|(number, value)| (number, value.and_then(raw)))
                    .collect()
            }
        };
        for (number, document) in documents {
            let added = document.and_then(|raw| self.add(raw, None).map_err(|error| format!("{error:#}")));
            problems.extend(added.err().map(|error| format!("{file}: document {number}: {error}")));
        }
    }

    /// Adds an object, or the items of a list. Items of a typed list do not repeat their kind.
    fn add(&mut self, raw: Box<RawValue>, list: Option<&ObjectHeader>) -> anyhow::Result<()> {
        let not_an_object = "apiVersion and kind are needed: this is not a Kubernetes object";
        let mut header: ObjectHeader = serde_json::from_str(raw.get()).context(not_an_object)?;
        if let Some(list) = list.filter(|list| header.kind.is_empty() && !list.kind.is_empty()) {
            header.api_version.clone_from(&list.api_version);
            header.kind.clone_from(&list.kind);
        }
        if let (Some(kind), Some(items)) = (header.kind.strip_suffix("List"), header.items.take()) {
            let header = ObjectHeader { kind: kind.to_owned(), ..header };
            return items.into_iter().try_for_each(|item| self.add(item, Some(&header)));
        }
        let ObjectHeader { api_version, kind, .. } = header;
        ensure!(!api_version.is_empty() && !kind.is_empty(), not_an_object);
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let gvk = Gvk { group: group.into(), version: version.into(), kind };
        let parsed = Object::parse(raw, &gvk).with_context(|| format!("{gvk}: read its metadata"))?;
        let metadata = &parsed.metadata;
        ensure!(!metadata.name.is_empty(), "metadata.name is needed in {}", gvk.kind);
        if !metadata.namespace.is_empty() {
            self.namespaces.insert(metadata.namespace.to_string());
        } else if gvk != namespace_kind() {
            *self.without_namespace.entry(gvk.clone()).or_default() += 1;
        }
        Arc::make_mut(self.objects.entry(gvk).or_default()).push(parsed.raw);
        Ok(())
    }

    /// Adds the namespaces that objects are in, even if no file contains them.
    fn imply_namespaces(&mut self) {
        let gvk = namespace_kind();
        let known = Arc::make_mut(self.objects.entry(gvk.clone()).or_default());
        let name = |raw: Box<RawValue>| Some(Object::parse(raw, &gvk).ok()?.metadata.name.to_string());
        let listed: BTreeSet<String> = known.iter().cloned().filter_map(name).collect();
        for name in self.namespaces.difference(&listed) {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
            });
            known.extend(to_raw_value(&namespace));
        }
    }
}

fn namespace_kind() -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: "Namespace".into() }
}

#[async_trait]
impl WatchSource for FileSource {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        let objects = self.objects.get(gvk).into_iter().flat_map(|objects| objects.iter());
        let namespaced = objects.filter_map(|raw| Object::parse(raw.clone(), gvk).ok());
        let namespaced = namespaced.into_iter().any(|object| !object.metadata.namespace.is_empty());
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced })
    }

    async fn permits(&self, _: &Query) -> bool {
        true
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let objects = self.objects.get(&query.gvk).cloned().unwrap_or_default();
        let total = Some(objects.len() as u64);
        let events = (0..objects.len()).filter_map(move |index| {
            let raw = objects[index].clone();
            let object = Object::parse(raw, &query.gvk).expect("it was parsed when it was added");
            let namespace = &object.metadata.namespace;
            let wanted = namespace.is_empty() || query.namespace.as_ref().is_none_or(|own| own == namespace);
            wanted.then_some(Event::Apply(object))
        });
        let begin = stream::iter([Event::Listing { total }]);
        begin.chain(stream::iter(events)).chain(stream::iter([Event::Synced { version: 0 }])).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_complete(&self) -> bool {
        false
    }
}
