//! The pipeline without a server: a scripted source in, a recording sink out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use kollect_model::{
    batch::{Baseline, Batch, InventoryId},
    crd::{profile::KollectProfileSpec, shapes::Gvk, target::KollectTargetSpec},
    row::TargetId,
    sink::{Sink, SinkError},
};
use serde_json::{Value, json, value::to_raw_value};

use crate::{
    collect::{Problem, Target, collect, namespaces, rest},
    export::{Outcome, export},
    extract::{CompiledProfile, OptIns, Policy},
    select::{NamespaceDefaults, Namespaces, Selection},
    store::{Sight, StoreReader, store},
    watch::{BlindReason, Blindness, Event, Metadata, Object, Query, Scope, WatchSource},
};

fn gvk(kind: &str) -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: kind.into() }
}

fn pod(namespace: &str, name: &str, image: &str) -> Value {
    json!({ "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}") }, "spec": { "image": image } })
}

/// A scripted source, one target on Pods, and a sink that remembers.
struct World {
    objects: BTreeMap<String, Vec<Value>>,
    blind: Vec<(String, Option<String>)>,
    complete: bool,
    target: Value,
    sink: Remembering,
    problems: Vec<Problem>,
}

impl World {
    fn new() -> Self {
        let namespaces =
            ["a", "b"].map(|name| json!({ "metadata": { "name": name, "labels": { "team": name } } }));
        Self {
            objects: [("Namespace".to_owned(), namespaces.to_vec())].into(),
            blind: Vec::new(),
            complete: true,
            target: json!({ "profileRef": "p" }),
            sink: Remembering::default(),
            problems: Vec::new(),
        }
    }

    fn pods(&mut self, pods: impl IntoIterator<Item = Value>) -> &mut Self {
        self.objects.insert("Pod".into(), pods.into_iter().collect());
        self
    }

    fn targets(&self) -> Vec<Target> {
        let profile: KollectProfileSpec = serde_json::from_value(json!({
            "targetGVK": { "version": "v1", "kind": "Pod" },
            "attributes": [{ "name": "image", "path": "$.spec.image", "type": "string" }],
        }))
        .unwrap();
        let spec: KollectTargetSpec = serde_json::from_value(self.target.clone()).unwrap();
        let profile = CompiledProfile::compile(&profile, OptIns::default(), &Policy::default())
            .unwrap_or_else(|e| unreachable!("{e:?}"));
        vec![Target {
            id: target_id(),
            selection: Selection::of_target(
                &spec,
                &profile.gvk,
                None,
                &Policy::default(),
                &NamespaceDefaults::default(),
            )
            .unwrap(),
            profile: Arc::new(profile),
        }]
    }

    async fn collect(&mut self, only: Option<&str>) -> StoreReader {
        let (mut writer, reader) = store();
        let known = namespaces(self).await.unwrap_or_else(|_| Namespaces {
            known: [("a".to_owned(), Metadata::default())].into(),
            complete: false,
        });
        let mut problems = Vec::new();
        collect(self, &self.targets(), &known, only, &mut writer, |problem| problems.push(problem)).await;
        self.problems = problems;
        reader
    }

    async fn run_in(&mut self, only: Option<&str>) -> Outcome {
        let rows = self.collect(only).await;
        let snapshot = rows.snapshot(&[target_id()], rest(self, only)).expect("every kind was listed");
        export(&self.sink, &inventory(), None, &snapshot).await.unwrap()
    }

    async fn run(&mut self) -> Outcome {
        self.run_in(None).await
    }
}

fn target_id() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "pods".into() }
}

fn inventory() -> InventoryId {
    InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "pods".into() }
}

impl WatchSource for World {
    fn watch(&self, query: Query) -> BoxStream<'_, Event> {
        let mut events = Vec::new();
        let blind = |place: Option<&str>| {
            let dark = |(kind, namespace): &&(String, Option<String>)| {
                *kind == query.gvk.kind && namespace.as_deref() == place
            };
            self.blind.iter().find(dark).map(|_| {
                let message = format!("{} {place:?}", query.gvk.kind);
                Event::Blind(Blindness {
                    namespace: place.map(Into::into),
                    reason: BlindReason::Forbidden,
                    message,
                })
            })
        };
        if let Some(event) = blind(None) {
            return stream::iter([event]).boxed();
        }
        if let Scope::Namespaces(names) = &query.scope {
            events.extend(names.iter().filter_map(|name| blind(Some(name))));
        }
        for object in self.objects.get(&query.gvk.kind).into_iter().flatten() {
            let object = Object::parse(to_raw_value(object).unwrap(), &query.gvk).unwrap();
            let namespace = object.metadata.namespace.clone();
            if query.scope.contains(&namespace) && blind(Some(&namespace)).is_none() {
                events.push(Event::Apply(object));
            }
        }
        events.push(Event::Synced { namespaced: query.gvk.kind != "Namespace" });
        stream::iter(events).boxed()
    }

    fn is_complete(&self) -> bool {
        self.complete
    }
}

#[derive(Default)]
struct Remembering {
    rows: Mutex<Baseline>,
    writes: Mutex<usize>,
}

impl Remembering {
    fn names(&self) -> Vec<String> {
        self.rows.lock().unwrap().keys().map(|key| key.uid.to_string()).collect()
    }
}

#[async_trait]
impl Sink for Remembering {
    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        Ok(self.rows.lock().unwrap().clone())
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<(), SinkError> {
        *self.writes.lock().unwrap() += 1;
        let mut rows = self.rows.lock().unwrap();
        for key in &batch.delta.removed {
            rows.remove(key);
        }
        for row in batch.delta.added.iter().chain(&batch.delta.changed) {
            rows.insert(row.key.clone(), row.digest);
        }
        Ok(())
    }
}

#[tokio::test]
async fn law_4_and_7_only_changed_rows_are_written() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    assert_eq!(world.sink.names(), ["a-one", "b-two"]);

    let mut status_only = pod("b", "two", "x:1");
    status_only["status"] = json!({ "phase": "Running" });
    let outcome = world.pods([pod("a", "one", "x:1"), status_only]).run().await;
    assert!(outcome.delta.is_empty());
    assert_eq!(*world.sink.writes.lock().unwrap(), 1, "nothing changed, nothing written");

    let outcome = world.pods([pod("a", "one", "x:2")]).run().await;
    let counts = (outcome.delta.added.len(), outcome.delta.changed.len(), outcome.delta.removed.len());
    assert_eq!(counts, (0, 1, 1));
    assert_eq!(world.sink.names(), ["a-one"]);
}

#[tokio::test]
async fn law_5_a_blind_kind_deletes_nothing() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.blind = vec![("Pod".into(), None)];
    let outcome = world.run().await;
    assert!(outcome.delta.is_empty());
    assert_eq!(outcome.left_alone, 2);
    assert!(matches!(&world.problems[..], [Problem::Blind { .. }]), "{:?}", world.problems);
}

#[tokio::test]
async fn law_5_a_blind_namespace_deletes_only_elsewhere() {
    let mut world = World::new();
    world.target = json!({ "profileRef": "p", "includedNamespaces": ["a", "b"] });
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.blind = vec![("Pod".into(), Some("b".into()))];
    world.pods([]).run().await;
    assert_eq!(world.sink.names(), ["b-two"]);
}

#[tokio::test]
async fn law_5_unknown_namespaces_delete_nothing() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.blind = vec![("Namespace".into(), None)];
    let outcome = world.pods([]).run().await;
    assert!(outcome.delta.removed.is_empty());
    assert!(matches!(&world.problems[..], [Problem::Undecided { .. }]), "{:?}", world.problems);

    world.target = json!({ "profileRef": "p", "includedNamespaces": ["a"], "namespaceSelector": { "matchLabels": { "team": "a" } } });
    assert!(world.run().await.delta.removed.is_empty(), "labels are not known either");

    world.target = json!({ "profileRef": "p", "includedNamespaces": ["a"] });
    world.run().await;
    assert!(world.sink.names().is_empty(), "names alone decide here: a is empty, b is not selected");
}

#[tokio::test]
async fn law_9_an_undecided_target_collects_nothing() {
    let mut world = World::new();
    world.blind = vec![("Namespace".into(), None)];
    world.target = json!({ "profileRef": "p", "includedNamespaces": ["a"], "namespaceExcludeSelector": { "matchLabels": { "team": "a" } } });
    world.pods([pod("a", "one", "x:1")]).run().await;
    assert!(world.sink.names().is_empty());
}

#[tokio::test]
async fn law_5_a_target_that_nobody_collects_keeps_its_rows() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1")]).run().await;
    let (_, reader) = store();
    let snapshot = reader.snapshot(&[target_id()], Sight::Everything).unwrap();
    assert!(export(&world.sink, &inventory(), None, &snapshot).await.unwrap().delta.is_empty());
    let snapshot = reader.snapshot(&[], Sight::Everything).unwrap();
    export(&world.sink, &inventory(), None, &snapshot).await.unwrap();
    assert!(world.sink.names().is_empty(), "a target that no longer belongs to the inventory loses its rows");
}

#[tokio::test]
async fn rules_are_alternatives_whatever_query_reads_them() {
    let mut world = World::new();
    let mut labelled = pod("a", "two", "x:1");
    labelled["metadata"]["labels"] = json!({ "app": "b" });
    let pods = json!({ "version": "v1", "kind": "Pod" });
    world.target = json!({ "profileRef": "p", "resourceRules": [
        { "gvk": pods, "matchLabels": { "app": "b" } },
        { "gvk": pods, "matchLabels": { "app": "a" }, "fieldSelector": "spec.nodeName=x" },
    ] });
    world.pods([pod("a", "one", "x:1"), labelled]).run().await;
    assert_eq!(world.sink.names(), ["a-two"]);
}

#[tokio::test]
async fn law_9_a_narrowed_selection_removes_what_it_no_longer_selects() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.target = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "a" } } });
    world.run().await;
    assert_eq!(world.sink.names(), ["a-one"]);
    world.target = json!({ "profileRef": "p", "includedNamespaces": ["b"] });
    world.run().await;
    assert_eq!(world.sink.names(), ["b-two"], "names in the spec are knowledge");
}

#[tokio::test]
async fn what_a_run_did_not_look_at_is_not_removed() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.pods([]).run_in(Some("a")).await;
    assert_eq!(world.sink.names(), ["b-two"], "only namespace a was looked at");
    world.complete = false;
    assert!(world.run().await.delta.is_empty(), "files say nothing about what they do not contain");
    world.complete = true;
    world.run().await;
    assert!(world.sink.names().is_empty());
}

#[tokio::test]
async fn a_snapshot_waits_for_every_kind() {
    let (mut writer, reader) = store();
    writer.expect(&target_id(), &gvk("Pod"));
    assert!(reader.snapshot(&[target_id()], Sight::Everything).is_none());
    writer.set_sight(&target_id(), &gvk("Pod"), Sight::Everything);
    assert!(reader.snapshot(&[target_id()], Sight::Everything).is_some());
}

#[tokio::test]
async fn objects_without_a_uid_have_a_stable_key() {
    let mut world = World::new();
    let mut anonymous = pod("a", "one", "x:1");
    anonymous["metadata"].as_object_mut().unwrap().remove("uid");
    world.pods([anonymous.clone()]).run().await;
    assert!(world.pods([anonymous]).run().await.delta.is_empty());
}
