//! The pipeline without a server: a scripted source in, a recording sink out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, mpsc},
};

use async_trait::async_trait;
use futures::{StreamExt, stream, stream::BoxStream};
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    crd::{profile::KollectProfileSpec, shapes::Gvk, target::KollectTargetSpec},
    row::{Row, RowKey, TargetId},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::watch;

use crate::{
    collect::{Collector, Problem, Settings, Target, rest},
    export::{Binding, KeptRows, Open, Outcome, export},
    extract::{CompiledProfile, OptIns, Policy},
    select::{Bounds, NamespaceDefaults, Selection},
    store::{Origin, StoreReader, Visibility, store},
    tasks::Tasks,
    watch::{Event, Object, Query, Resolution, Resource, WatchSource},
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
    bounds: Bounds,
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
            bounds: Bounds::default(),
            sink: Remembering::default(),
            problems: Vec::new(),
        }
    }

    fn script(&self) -> Script {
        Script { objects: self.objects.clone(), blind: self.blind.clone(), complete: self.complete }
    }

    fn pods(&mut self, pods: impl IntoIterator<Item = Value>) -> &mut Self {
        self.objects.insert("Pod".into(), pods.into_iter().collect());
        self
    }

    fn targets(&self) -> Vec<Arc<Target>> {
        let profile: KollectProfileSpec = serde_json::from_value(json!({
            "targetGVK": { "version": "v1", "kind": "Pod" },
            "attributes": [{ "name": "image", "path": "$.spec.image", "type": "string" }],
        }))
        .unwrap();
        let spec: KollectTargetSpec = serde_json::from_value(self.target.clone()).unwrap();
        let profile = CompiledProfile::compile(&profile, &OptIns::default(), &Policy::default())
            .unwrap_or_else(|e| unreachable!("{e:?}"));
        let (policy, defaults) = (Policy::default(), NamespaceDefaults::default());
        let selection = Selection::of_target(&spec, &profile.gvk, &self.bounds, &policy, &defaults).unwrap();
        vec![Arc::new(Target::new(target_id(), Arc::new(profile), selection))]
    }

    async fn collect(&mut self, only: Option<&str>) -> StoreReader {
        let (writer, reader) = store();
        let (report, problems) = mpsc::channel();
        let settings = settings(only);
        let source = Arc::new(self.script());
        let mut collector = Collector::start(source, writer, settings, Tasks::default(), move |problem| {
            report.send(problem).unwrap();
        });
        collector.set_targets(&self.targets(), &BTreeSet::new());
        reader.settled().await;
        self.problems = problems.try_iter().collect();
        reader
    }

    async fn run_in(&mut self, only: Option<&str>) -> Outcome {
        let rows = self.collect(only).await;
        let rest = rest(&self.script(), &settings(only));
        let snapshot = rows.snapshot(&[target_id()], rest).expect("every kind was listed");
        export(&self.binding(), &snapshot).await.unwrap()
    }

    fn binding(&self) -> Binding {
        let sink = Arc::new(self.sink.clone());
        Binding {
            targets: vec![target_id()],
            ..Binding::new(inventory(), Claimant::default(), "memory".into(), sink)
        }
    }

    async fn run(&mut self) -> Outcome {
        self.run_in(None).await
    }
}

fn settings(only: Option<&str>) -> Settings {
    let within = only.map(|only| [only.into()].into());
    Settings { within, follow: false, ..Settings::default() }
}

fn target_id() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "pods".into() }
}

fn inventory() -> InventoryId {
    InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "pods".into() }
}

/// What a World shows to one run.
struct Script {
    objects: BTreeMap<String, Vec<Value>>,
    blind: Vec<(String, Option<String>)>,
    complete: bool,
}

#[async_trait]
impl WatchSource for Script {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: gvk.kind != "Namespace" })
    }

    async fn permits(&self, query: &Query) -> bool {
        let place = (query.gvk.kind.clone(), query.namespace.as_deref().map(ToOwned::to_owned));
        !self.blind.contains(&place)
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let objects = self.objects.get(&query.gvk.kind).into_iter().flatten();
        let objects = objects.map(|object| Object::parse(to_raw_value(object).unwrap(), &query.gvk).unwrap());
        let here = |object: &Object| query.namespace.as_ref().is_none_or(|n| *n == object.metadata.namespace);
        let mut events = vec![Event::Listing { total: None }];
        events.extend(objects.filter(here).map(Event::Apply));
        events.push(Event::Synced { version: 0 });
        stream::iter(events).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_complete(&self) -> bool {
        self.complete
    }
}

#[derive(Clone, Default)]
struct Remembering {
    rows: Arc<Mutex<Baseline>>,
    /// Of rows; notes do not count.
    writes: Arc<Mutex<usize>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// Whether the inventory belongs to another cluster.
    refuses: bool,
}

#[async_trait]
impl Open for Remembering {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.clone()))
    }
}

impl Remembering {
    fn names(&self) -> Vec<String> {
        self.rows.lock().unwrap().keys().map(|key| key.uid.to_string()).collect()
    }
}

#[async_trait]
impl Sink for Remembering {
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        Ok(vec![None; inventories.len()])
    }

    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        self.calls.lock().unwrap().push("baseline");
        Ok(self.rows.lock().unwrap().clone())
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.calls.lock().unwrap().push("claim");
        if self.refuses {
            return Err(SinkError::new(SinkReason::OwnedByOther, "it belongs to another cluster"));
        }
        claimant.take(inventory, None)
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        self.calls.lock().unwrap().push("write");
        *self.writes.lock().unwrap() += usize::from(!batch.delta.is_empty());
        let mut rows = self.rows.lock().unwrap();
        for gone in &batch.delta.removed {
            rows.remove(&gone.key);
        }
        for row in batch.delta.rows() {
            rows.insert(row.key.clone(), row.digest);
        }
        Ok(Receipt::default())
    }

    async fn forget(&self, _: &InventoryId, _: &Claim) -> Result<(), SinkError> {
        self.rows.lock().unwrap().clear();
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
async fn law_9_rows_beyond_the_reach_stay_and_are_counted() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    for target in [
        json!({ "profileRef": "p" }),
        json!({ "profileRef": "p", "includedNamespaces": ["a", "b"] }),
        json!({ "profileRef": "p", "namespaceSelector": {} }),
    ] {
        world.target = target;
        world.bounds.namespaces = Some([Arc::from("a")].into());
        // The object in b changes and is deleted: both are beyond the reach.
        for pods in [vec![pod("a", "one", "x:2"), pod("b", "two", "x:2")], vec![pod("a", "one", "x:1")]] {
            let outcome = world.pods(pods).run().await;
            let counts = (outcome.delta.changed.len(), outcome.delta.removed.len(), outcome.left_alone);
            assert_eq!(counts, (1, 0, 1), "{}", world.target);
            let kept = KeptRows { beyond: 1, namespaces: ["b".into()].into(), ..KeptRows::default() };
            assert_eq!(outcome.kept, [(target_id(), kept)].into());
            assert_eq!(world.sink.names(), ["a-one", "b-two"]);
        }
    }
    world.bounds.namespaces = None;
    assert_eq!(world.run().await.delta.removed.len(), 1, "within reach again, what is gone goes");

    for scope in [json!({ "deniedNamespaces": ["b"] }), json!({ "allowedNamespaces": ["a"] })] {
        world.bounds = Bounds::default();
        world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
        world.bounds.namespaces = Some([Arc::from("a")].into());
        world.bounds.ceilings = vec![serde_json::from_value(scope.clone()).unwrap()];
        assert_eq!(world.run().await.delta.removed.len(), 1, "{scope} denies it");
    }

    world.bounds = Bounds::default();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.bounds.namespaces = Some([Arc::from("a")].into());
    world.target = json!({ "profileRef": "p", "includedNamespaces": ["a"] });
    assert_eq!(world.run().await.delta.removed.len(), 1, "the target does not ask for it any more");
}

#[tokio::test]
async fn a_run_claims_then_reads_then_writes() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1")]).run().await;
    assert_eq!(*world.sink.calls.lock().unwrap(), ["claim", "baseline", "write"]);

    world.sink.calls.lock().unwrap().clear();
    world.sink.refuses = true;
    let rows = world.pods([]).collect(None).await;
    let snapshot = rows.snapshot(&[target_id()], Visibility::Everything).unwrap();
    let error = export(&world.binding(), &snapshot).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::OwnedByOther);
    assert_eq!(*world.sink.calls.lock().unwrap(), ["claim"], "a refused run reads and writes nothing");
    assert_eq!(world.sink.names(), ["a-one"]);
}

#[tokio::test]
async fn law_5_a_blind_kind_deletes_nothing() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    world.blind =
        vec![("Pod".into(), None), ("Pod".into(), Some("a".into())), ("Pod".into(), Some("b".into()))];
    let outcome = world.run().await;
    assert!(outcome.delta.is_empty());
    assert_eq!(outcome.left_alone, 2);
    assert!(
        matches!(&world.problems[..], [Problem::Blind { .. }, Problem::Blind { .. }]),
        "{:?}",
        world.problems
    );
}

#[tokio::test]
async fn without_permission_for_the_cluster_namespaces_are_asked_one_by_one() {
    let mut world = World::new();
    world.blind = vec![("Pod".into(), None), ("Pod".into(), Some("b".into()))];
    world.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    assert_eq!(world.sink.names(), ["a-one"]);
    assert!(
        matches!(&world.problems[..], [Problem::Blind { place, .. }] if place.namespace.as_deref() == Some("b"))
    );
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
    assert!(
        matches!(&world.problems[..], [Problem::Blind { .. }, Problem::Undecided { .. }]),
        "{:?}",
        world.problems
    );

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
async fn law_5_a_target_that_no_task_collects_keeps_its_rows() {
    let mut world = World::new();
    world.pods([pod("a", "one", "x:1")]).run().await;
    let (_, reader) = store();
    let snapshot = reader.snapshot(&[target_id()], Visibility::Everything).unwrap();
    assert!(export(&world.binding(), &snapshot).await.unwrap().delta.is_empty());
    let snapshot = reader.snapshot(&[], Visibility::Everything).unwrap();
    export(&world.binding(), &snapshot).await.unwrap();
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
    let (writer, reader) = store();
    let rows = writer.rows(&target_id(), &gvk("Pod"));
    assert!(reader.snapshot(&[target_id()], Visibility::Everything).is_none());
    rows.set_visibility(Visibility::Everything);
    assert!(reader.snapshot(&[target_id()], Visibility::Everything).is_some());
}

#[tokio::test]
async fn objects_without_a_uid_have_a_stable_key() {
    let mut world = World::new();
    let mut anonymous = pod("a", "one", "x:1");
    anonymous["metadata"].as_object_mut().unwrap().remove("uid");
    world.pods([anonymous.clone()]).run().await;
    assert!(world.pods([anonymous]).run().await.delta.is_empty());
}

#[tokio::test]
async fn a_removed_target_leaves_nothing_behind() {
    let (writer, reader) = store();
    let rows = writer.rows(&target_id(), &gvk("Pod"));
    writer.remove_target(&target_id());
    assert_eq!(reader.known_targets().len(), 1, "its writer may still be there");
    drop(rows);
    assert!(reader.known_targets().is_empty());
    writer.freeze(&target_id());
    writer.remove_target(&target_id());
    assert!(reader.known_targets().is_empty());
    drop(reader.changes(&[target_id()]));
    assert!(reader.known_targets().is_empty(), "a reader of a target that never came");
}

#[tokio::test]
async fn a_reader_hears_of_the_successor_of_a_removed_target() {
    let (writer, reader) = store();
    let mut changes = reader.changes(&[target_id()]);
    drop(writer.rows(&target_id(), &gvk("Pod")));
    writer.remove_target(&target_id());
    let rows = writer.rows(&target_id(), &gvk("Pod"));
    let text = |text: &str| Arc::<str>::from(text);
    let key = RowKey {
        target: target_id(),
        group: text(""),
        kind: text("Pod"),
        namespace: text("a"),
        uid: text("u"),
    };
    let attributes = Arc::from(to_raw_value(&json!({})).unwrap());
    rows.upsert(Row::new(key, text("v1"), text("one"), attributes), Origin::default(), None);
    rows.set_visibility(Visibility::Everything);
    assert_eq!(changes.take().len(), 1);
}

#[tokio::test]
async fn a_writer_of_a_removed_target_does_not_write_for_its_successor() {
    let (writer, reader) = store();
    let old = writer.rows(&target_id(), &gvk("Pod"));
    writer.remove_target(&target_id());
    let new = writer.rows(&target_id(), &gvk("Pod"));
    old.set_visibility(Visibility::Everything);
    assert!(
        reader.snapshot(&[target_id()], Visibility::Everything).is_none(),
        "the new one has seen nothing"
    );
    new.set_visibility(Visibility::Everything);
    assert!(reader.snapshot(&[target_id()], Visibility::Everything).is_some());
}
