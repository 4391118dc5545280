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
    collect::{CollectProblem, CollectSettings, Collector, Target, visibility_outside},
    export::{Binding, KeptRows, OpenSink, Outcome, export},
    extract::{CompiledProfile, ExtractPolicy, OptIns},
    select::{Bounds, NamespaceDefaults, Selection},
    store::{RowOrigin, StoreReader, Visibility, store},
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
struct PipelineTest {
    objects: BTreeMap<String, Vec<Value>>,
    blind: Vec<(String, Option<String>)>,
    complete: bool,
    target: Value,
    bounds: Bounds,
    sink: RecordingSink,
    problems: Vec<CollectProblem>,
}

impl PipelineTest {
    fn new() -> Self {
        let namespaces =
            ["a", "b"].map(|name| json!({ "metadata": { "name": name, "labels": { "team": name } } }));
        Self {
            objects: [("Namespace".to_owned(), namespaces.to_vec())].into(),
            blind: Vec::new(),
            complete: true,
            target: json!({ "profileRef": "p" }),
            bounds: Bounds::default(),
            sink: RecordingSink::default(),
            problems: Vec::new(),
        }
    }

    fn script(&self) -> RunScript {
        RunScript { objects: self.objects.clone(), blind: self.blind.clone(), complete: self.complete }
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
        let profile = CompiledProfile::compile(&profile, &OptIns::default(), &ExtractPolicy::default())
            .unwrap_or_else(|e| unreachable!("{e:?}"));
        let (policy, defaults) = (ExtractPolicy::default(), NamespaceDefaults::default());
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
        reader.wait_until_seen().await;
        self.problems = problems.try_iter().collect();
        reader
    }

    async fn run_in(&mut self, only: Option<&str>) -> Outcome {
        let rows = self.collect(only).await;
        let outside = visibility_outside(&self.script(), &settings(only));
        let snapshot = rows.snapshot(&[target_id()], outside).expect("every kind was listed");
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

fn settings(only: Option<&str>) -> CollectSettings {
    let within = only.map(|only| [only.into()].into());
    CollectSettings { within, follow: false, ..CollectSettings::default() }
}

fn target_id() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "pods".into() }
}

fn inventory() -> InventoryId {
    InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "pods".into() }
}

/// What a [`PipelineTest`] shows to one run.
struct RunScript {
    objects: BTreeMap<String, Vec<Value>>,
    blind: Vec<(String, Option<String>)>,
    complete: bool,
}

#[async_trait]
impl WatchSource for RunScript {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: gvk.kind != "Namespace" })
    }

    async fn permits(&self, query: &Query) -> bool {
        let kind_and_namespace = (query.gvk.kind.clone(), query.namespace.as_deref().map(ToOwned::to_owned));
        !self.blind.contains(&kind_and_namespace)
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
struct RecordingSink {
    rows: Arc<Mutex<Baseline>>,
    /// Writes of rows; writes without rows do not count.
    writes: Arc<Mutex<usize>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    /// Whether the inventory belongs to another cluster.
    refuses: bool,
}

#[async_trait]
impl OpenSink for RecordingSink {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.clone()))
    }
}

impl RecordingSink {
    fn names(&self) -> Vec<String> {
        self.rows.lock().unwrap().keys().map(|key| key.uid.to_string()).collect()
    }
}

#[async_trait]
impl Sink for RecordingSink {
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
        for removed in &batch.delta.removed {
            rows.remove(&removed.key);
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
async fn only_changed_rows_are_written() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    assert_eq!(test.sink.names(), ["a-one", "b-two"]);

    let mut status_only = pod("b", "two", "x:1");
    status_only["status"] = json!({ "phase": "Running" });
    let outcome = test.pods([pod("a", "one", "x:1"), status_only]).run().await;
    assert!(outcome.delta.is_empty());
    assert_eq!(*test.sink.writes.lock().unwrap(), 1, "nothing changed, nothing written");

    let outcome = test.pods([pod("a", "one", "x:2")]).run().await;
    let counts = (outcome.delta.added.len(), outcome.delta.changed.len(), outcome.delta.removed.len());
    assert_eq!(counts, (0, 1, 1));
    assert_eq!(test.sink.names(), ["a-one"]);
}

#[tokio::test]
async fn rows_beyond_the_reach_stay_and_are_counted() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    for target in [
        json!({ "profileRef": "p" }),
        json!({ "profileRef": "p", "includedNamespaces": ["a", "b"] }),
        json!({ "profileRef": "p", "namespaceSelector": {} }),
    ] {
        test.target = target;
        test.bounds.namespaces = Some([Arc::from("a")].into());
        // The object in b changes and is deleted: both are beyond the reach.
        for pods in [vec![pod("a", "one", "x:2"), pod("b", "two", "x:2")], vec![pod("a", "one", "x:1")]] {
            let outcome = test.pods(pods).run().await;
            let counts = (outcome.delta.changed.len(), outcome.delta.removed.len(), outcome.left_alone);
            assert_eq!(counts, (1, 0, 1), "{}", test.target);
            let kept = KeptRows { beyond: 1, namespaces: ["b".into()].into(), ..KeptRows::default() };
            assert_eq!(outcome.kept, [(target_id(), kept)].into());
            assert_eq!(test.sink.names(), ["a-one", "b-two"]);
        }
    }
    test.bounds.namespaces = None;
    assert_eq!(
        test.run().await.delta.removed.len(),
        1,
        "within reach again, the row of a deleted object is removed"
    );

    for ceiling in [json!({ "deniedNamespaces": ["b"] }), json!({ "allowedNamespaces": ["a"] })] {
        test.bounds = Bounds::default();
        test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
        test.bounds.namespaces = Some([Arc::from("a")].into());
        test.bounds.ceilings = vec![serde_json::from_value(ceiling.clone()).unwrap()];
        assert_eq!(test.run().await.delta.removed.len(), 1, "{ceiling} denies it");
    }

    test.bounds = Bounds::default();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.bounds.namespaces = Some([Arc::from("a")].into());
    test.target = json!({ "profileRef": "p", "includedNamespaces": ["a"] });
    assert_eq!(test.run().await.delta.removed.len(), 1, "the target does not ask for it any more");
}

#[tokio::test]
async fn a_run_claims_then_reads_then_writes() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1")]).run().await;
    assert_eq!(*test.sink.calls.lock().unwrap(), ["claim", "baseline", "write"]);

    test.sink.calls.lock().unwrap().clear();
    test.sink.refuses = true;
    let rows = test.pods([]).collect(None).await;
    let snapshot = rows.snapshot(&[target_id()], Visibility::Everything).unwrap();
    let error = export(&test.binding(), &snapshot).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::OwnedByOther);
    assert_eq!(*test.sink.calls.lock().unwrap(), ["claim"], "a refused run reads and writes nothing");
    assert_eq!(test.sink.names(), ["a-one"]);
}

#[tokio::test]
async fn a_blind_kind_removes_no_rows() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.blind =
        vec![("Pod".into(), None), ("Pod".into(), Some("a".into())), ("Pod".into(), Some("b".into()))];
    let outcome = test.run().await;
    assert!(outcome.delta.is_empty());
    assert_eq!(outcome.left_alone, 2);
    assert!(
        matches!(&test.problems[..], [CollectProblem::Blind { .. }, CollectProblem::Blind { .. }]),
        "{:?}",
        test.problems
    );
}

#[tokio::test]
async fn without_permission_for_the_cluster_each_namespace_is_listed() {
    let mut test = PipelineTest::new();
    test.blind = vec![("Pod".into(), None), ("Pod".into(), Some("b".into()))];
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    assert_eq!(test.sink.names(), ["a-one"]);
    assert!(
        matches!(&test.problems[..], [CollectProblem::Blind { watched, .. }] if watched.namespace.as_deref() == Some("b"))
    );
}

#[tokio::test]
async fn rows_are_removed_only_outside_of_a_blind_namespace() {
    let mut test = PipelineTest::new();
    test.target = json!({ "profileRef": "p", "includedNamespaces": ["a", "b"] });
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.blind = vec![("Pod".into(), Some("b".into()))];
    test.pods([]).run().await;
    assert_eq!(test.sink.names(), ["b-two"]);
}

#[tokio::test]
async fn unknown_namespaces_remove_no_rows() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.blind = vec![("Namespace".into(), None)];
    let outcome = test.pods([]).run().await;
    assert!(outcome.delta.removed.is_empty());
    assert!(
        matches!(&test.problems[..], [CollectProblem::Blind { .. }, CollectProblem::Undecided { .. }]),
        "{:?}",
        test.problems
    );

    test.target = json!({ "profileRef": "p", "includedNamespaces": ["a"], "namespaceSelector": { "matchLabels": { "team": "a" } } });
    assert!(test.run().await.delta.removed.is_empty(), "labels are not known either");

    test.target = json!({ "profileRef": "p", "includedNamespaces": ["a"] });
    test.run().await;
    assert!(test.sink.names().is_empty(), "names alone decide here: a is empty, b is not selected");
}

#[tokio::test]
async fn an_undecided_target_collects_nothing() {
    let mut test = PipelineTest::new();
    test.blind = vec![("Namespace".into(), None)];
    test.target = json!({ "profileRef": "p", "includedNamespaces": ["a"], "namespaceExcludeSelector": { "matchLabels": { "team": "a" } } });
    test.pods([pod("a", "one", "x:1")]).run().await;
    assert!(test.sink.names().is_empty());
}

#[tokio::test]
async fn a_target_that_no_task_collects_keeps_its_rows() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1")]).run().await;
    let (_, reader) = store();
    let snapshot = reader.snapshot(&[target_id()], Visibility::Everything).unwrap();
    assert!(export(&test.binding(), &snapshot).await.unwrap().delta.is_empty());
    let snapshot = reader.snapshot(&[], Visibility::Everything).unwrap();
    export(&test.binding(), &snapshot).await.unwrap();
    assert!(test.sink.names().is_empty(), "a target that no longer belongs to the inventory loses its rows");
}

#[tokio::test]
async fn an_object_needs_to_match_only_one_of_several_rules() {
    let mut test = PipelineTest::new();
    let mut labelled = pod("a", "two", "x:1");
    labelled["metadata"]["labels"] = json!({ "app": "b" });
    let pods = json!({ "version": "v1", "kind": "Pod" });
    test.target = json!({ "profileRef": "p", "resourceRules": [
        { "gvk": pods, "matchLabels": { "app": "b" } },
        { "gvk": pods, "matchLabels": { "app": "a" }, "fieldSelector": "spec.nodeName=x" },
    ] });
    test.pods([pod("a", "one", "x:1"), labelled]).run().await;
    assert_eq!(test.sink.names(), ["a-two"]);
}

#[tokio::test]
async fn a_rule_that_cannot_be_decided_does_not_stop_another_one() {
    let pods = json!({ "version": "v1", "kind": "Pod" });
    let policy = "object.spec.password == 'x'";
    let mut rules = vec![
        json!({ "gvk": pods, "fieldSelector": "spec.nodeName=x", "matchPolicy": policy }),
        json!({ "gvk": pods, "fieldSelector": "spec.nodeName=y" }),
    ];
    let mut with_password = pod("a", "one", "x:1");
    with_password["spec"]["password"] = json!("hunter2");
    with_password["metadata"]["resourceVersion"] = json!("7");
    for _ in 0..2 {
        let mut test = PipelineTest::new();
        test.target = json!({ "profileRef": "p", "resourceRules": rules });
        test.pods([with_password.clone()]).run().await;
        assert_eq!(test.sink.names(), ["a-one"], "{rules:?}");
        test.target = json!({ "profileRef": "p", "resourceRules": rules.iter().filter(|rule| rule.get("matchPolicy").is_some()).collect::<Vec<_>>() });
        test.run().await;
        assert_eq!(test.sink.names(), ["a-one"], "the row of an undecided object stays");
        rules.reverse();
    }
}

#[tokio::test]
async fn a_narrowed_selection_removes_rows_that_it_no_longer_selects() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.target = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "a" } } });
    test.run().await;
    assert_eq!(test.sink.names(), ["a-one"]);
    test.target = json!({ "profileRef": "p", "includedNamespaces": ["b"] });
    test.run().await;
    assert_eq!(test.sink.names(), ["b-two"], "names in the spec are knowledge");
}

#[tokio::test]
async fn rows_that_a_run_does_not_cover_are_not_removed() {
    let mut test = PipelineTest::new();
    test.pods([pod("a", "one", "x:1"), pod("b", "two", "x:1")]).run().await;
    test.pods([]).run_in(Some("a")).await;
    assert_eq!(test.sink.names(), ["b-two"], "only namespace a was looked at");
    test.complete = false;
    assert!(test.run().await.delta.is_empty(), "files say nothing about what they do not contain");
    test.complete = true;
    test.run().await;
    assert!(test.sink.names().is_empty());
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
    let mut test = PipelineTest::new();
    let mut without_uid = pod("a", "one", "x:1");
    without_uid["metadata"].as_object_mut().unwrap().remove("uid");
    test.pods([without_uid.clone()]).run().await;
    assert!(test.pods([without_uid]).run().await.delta.is_empty());
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
async fn a_reader_gets_the_changes_of_the_successor_of_a_removed_target() {
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
    rows.upsert(Row::new(key, text("v1"), text("one"), attributes), RowOrigin::default(), None);
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
