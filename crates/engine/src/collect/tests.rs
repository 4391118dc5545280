//! Collection against a scripted cluster whose streams are slow, out of step and interrupted at random. Whatever the
//! order: the rows and failures end up as a fresh list has them, no row ever goes back to an older version of its
//! object, and no row of a deleted object comes back.

mod failures;
mod kinds;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt, channel::mpsc, stream::BoxStream};
use kollect_model::{
    crd::{profile::KollectProfileSpec, shapes::Gvk, target::KollectTargetSpec},
    row::{RowKey, TargetId},
};
use serde_json::{Value, json, value::to_raw_value};
use tokio::{sync::watch, time};

use super::{CollectProblem, CollectSettings, Collector, Target};
use crate::{
    coverage::WatchState,
    extract::{CompiledProfile, ExtractPolicy, OptIns},
    random::Random,
    select::{Bounds, NamespaceDefaults, Selection},
    store::{Changes, RemovalCause, StoreReader, Visibility, store},
    tasks::{TaskKind, Tasks},
    watch::{BlindReason, Blindness, Event, Object, Query, Resolution, Resource, WatchSource},
};

/// The whole cluster: every object that exists, and everything that ever happened.
#[derive(Default)]
struct TestCluster {
    version: u64,
    objects: BTreeMap<String, (String, Value)>,
    /// Version, kind, and the object before and after.
    history: Vec<(u64, String, Option<Value>, Option<Value>)>,
    streams: Vec<Stream>,
    /// Kind and namespace that may not be listed.
    denied: BTreeSet<(String, Option<String>)>,
    /// Kinds that are not served, and those of them that are known not to exist.
    missing: BTreeSet<String>,
    absent: BTreeSet<String>,
    /// How many streams were ever opened.
    opened: usize,
    silent: bool,
    /// Kinds whose next event makes its watch panic.
    watch_bugs: BTreeSet<String>,
    /// Kinds that panic when they are asked for the next time.
    resolve_bugs: BTreeSet<String>,
}

struct Stream {
    query: Query,
    events: mpsc::UnboundedSender<Event>,
    phase: WatchPhase,
}

enum WatchPhase {
    Requested,
    Listing { version: u64, objects: Vec<Value> },
    Watching { cursor: usize, version: u64 },
    Ended,
}

/// Whether the query returns an object.
fn sees(query: &Query, kind: &str, object: Option<&Value>) -> bool {
    let Some(object) = object else { return false };
    let text = |value: &Value| value.as_str().map(ToOwned::to_owned).unwrap_or_default();
    let holds = |selector: &Option<String>, root: &Value| {
        selector.as_ref().is_none_or(|selector| {
            let (path, wanted) = selector.split_once('=').expect("a simple selector");
            let value = path.split('.').fold(root, |value, key| &value[key]);
            text(value) == wanted
        })
    };
    kind == query.gvk.kind
        && query.namespace.as_deref().is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
        && query.name.as_deref().is_none_or(|name| object["metadata"]["name"] == name)
        && holds(&query.label_selector, &object["metadata"]["labels"])
        && holds(&query.field_selector, object)
}

fn parsed(object: &Value, gvk: &Gvk) -> Object {
    Object::parse(to_raw_value(object).unwrap(), gvk).unwrap()
}

impl TestCluster {
    fn put(&mut self, kind: &str, uid: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let before = self.objects.insert(uid.into(), (kind.into(), object.clone())).map(|(_, object)| object);
        self.history.push((self.version, kind.into(), before, Some(object)));
    }

    fn delete(&mut self, uid: &str) {
        if let Some((kind, object)) = self.objects.remove(uid) {
            self.version += 1;
            self.history.push((self.version, kind, Some(object), None));
        }
    }

    /// One step of one stream. Returns whether there was one.
    fn step(&mut self, index: usize, random: &mut Random) -> bool {
        let stream = &mut self.streams[index];
        let is_missing = self.missing.contains(&stream.query.gvk.kind);
        let kind_and_namespace =
            (stream.query.gvk.kind.clone(), stream.query.namespace.as_deref().map(ToOwned::to_owned));
        let refused = self.denied.contains(&kind_and_namespace);
        if (is_missing || refused) && !matches!(stream.phase, WatchPhase::Ended) {
            let reason = if is_missing { BlindReason::NotServed } else { BlindReason::Forbidden };
            stream.events.unbounded_send(Event::Blind(Blindness { reason, message: "no".into() })).ok();
            stream.events.close_channel();
            stream.phase = WatchPhase::Ended;
            return true;
        }
        let (event, next) = match &mut stream.phase {
            WatchPhase::Ended => return false,
            WatchPhase::Requested => {
                let objects =
                    self.objects.values().filter(|(kind, object)| sees(&stream.query, kind, Some(object)));
                let mut objects: Vec<Value> = objects.map(|(_, object)| object.clone()).collect();
                for index in (1..objects.len()).rev() {
                    objects.swap(index, random.below(index + 1));
                }
                (Event::Listing { total: None }, WatchPhase::Listing { version: self.version, objects })
            }
            // A streamed list reports deletions while it runs.
            WatchPhase::Listing { version, .. }
                if stream.query.follow && random.below(6) == 0 && self.history.last().is_some() =>
            {
                let (at, kind, before, after) = self.history.last().unwrap();
                let query = &stream.query;
                if after.is_some() || *at != *version + 1 || !sees(query, kind, before.as_ref()) {
                    return true;
                }
                *version = *at;
                let mut last = before.clone().unwrap();
                last["metadata"]["resourceVersion"] = at.to_string().into();
                let deleted_metadata = parsed(&last, &query.gvk).metadata;
                if let WatchPhase::Listing { objects, .. } = &mut stream.phase {
                    objects.retain(|object| object["metadata"]["uid"] != *deleted_metadata.uid);
                }
                stream.events.unbounded_send(Event::Delete(deleted_metadata)).ok();
                return true;
            }
            WatchPhase::Listing { version, objects } => match objects.pop() {
                Some(object) => {
                    let (version, objects) = (*version, std::mem::take(objects));
                    (
                        Event::Apply(parsed(&object, &stream.query.gvk)),
                        WatchPhase::Listing { version, objects },
                    )
                }
                None => {
                    let cursor = self.history.iter().take_while(|(v, ..)| *v <= *version).count();
                    (Event::Synced { version: *version }, WatchPhase::Watching { cursor, version: *version })
                }
            },
            WatchPhase::Watching { cursor, version } => {
                let Some((at, kind, before, after)) = self.history.get(*cursor) else {
                    if *version == self.version || self.silent {
                        return false;
                    }
                    *version = self.version;
                    stream.events.unbounded_send(Event::Progress { version: self.version }).ok();
                    return true;
                };
                let query = &stream.query;
                let event = match (sees(query, kind, before.as_ref()), sees(query, kind, after.as_ref())) {
                    (_, true) => Some(Event::Apply(parsed(after.as_ref().unwrap(), &query.gvk))),
                    (true, false) => {
                        let mut last = after.clone().or_else(|| before.clone()).unwrap();
                        last["metadata"]["resourceVersion"] = at.to_string().into();
                        Some(Event::Delete(parsed(&last, &query.gvk).metadata))
                    }
                    (false, false) => None,
                };
                (*cursor, *version) = (*cursor + 1, *at);
                if let Some(event) = event {
                    stream.events.unbounded_send(event).ok();
                }
                return true;
            }
        };
        let ends = matches!(event, Event::Synced { .. }) && !stream.query.follow;
        stream.events.unbounded_send(event).ok();
        stream.phase = if ends { WatchPhase::Ended } else { next };
        if ends {
            stream.events.close_channel();
        }
        true
    }

    /// A stream loses its connection: it goes on where it was, or begins with a list.
    fn disconnect(&mut self, index: usize, random: &mut Random) {
        let stream = &mut self.streams[index];
        if !matches!(stream.phase, WatchPhase::Watching { .. }) {
            return;
        }
        let blindness = Blindness { reason: BlindReason::Failed, message: "cut".into() };
        stream.events.unbounded_send(Event::Blind(blindness)).ok();
        if random.below(2) == 0 {
            stream.events.unbounded_send(Event::Resumed).ok();
        } else {
            stream.phase = WatchPhase::Requested;
        }
    }
}

struct EventScript {
    cluster: Arc<Mutex<TestCluster>>,
    kinds: watch::Sender<u64>,
}

#[async_trait]
impl WatchSource for EventScript {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        let mut cluster = self.cluster.lock().unwrap();
        let bug = cluster.resolve_bugs.remove(&gvk.kind);
        let (absent, missing) = (cluster.absent.contains(&gvk.kind), cluster.missing.contains(&gvk.kind));
        drop(cluster);
        assert!(!bug, "a bug in the task of a kind");
        if absent {
            return Resolution::Absent;
        }
        if missing {
            let message = "not served".into();
            return Resolution::Blind(Blindness { reason: BlindReason::NotServed, message });
        }
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: gvk.kind != "Node" })
    }

    async fn permits(&self, query: &Query) -> bool {
        let kind_and_namespace = (query.gvk.kind.clone(), query.namespace.as_deref().map(ToOwned::to_owned));
        !self.cluster.lock().unwrap().denied.contains(&kind_and_namespace)
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let (events, receiver) = mpsc::unbounded();
        let mut cluster = self.cluster.lock().unwrap();
        cluster.opened += 1;
        let (shared, kind) = (self.cluster.clone(), query.gvk.kind.clone());
        cluster.streams.push(Stream { query, events, phase: WatchPhase::Requested });
        let checked = receiver.map(move |event| {
            let bug = shared.lock().unwrap().watch_bugs.remove(&kind);
            assert!(!bug, "a bug in a watch");
            event
        });
        checked.boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        self.kinds.subscribe()
    }

    fn is_complete(&self) -> bool {
        true
    }
}

/// What targets can look like.
fn target_specs() -> Vec<Value> {
    let pods = json!({ "version": "v1", "kind": "Pod" });
    let red = json!({ "matchLabels": { "team": "red" } });
    vec![
        json!({}),
        json!({ "includedNamespaces": ["a"] }),
        json!({ "includedNamespaces": ["a", "b"], "labelSelector": { "matchLabels": { "app": "x" } } }),
        json!({ "namespaceSelector": red }),
        json!({ "namespaceExcludeSelector": red }),
        json!({ "labelSelector": { "matchLabels": { "app": "x" } } }),
        json!({ "watchMode": "OptIn" }),
        json!({ "fieldSelector": "spec.node=1" }),
        json!({ "names": ["p1"] }),
        json!({ "resourceRules": [
            { "gvk": pods, "fieldSelector": "spec.node=1" },
            { "gvk": pods, "matchLabels": { "app": "x" } },
        ] }),
        json!({ "resourceRules": [
            { "gvk": pods, "matchPolicy": "namespaceObject.metadata.labels.team == 'red'" },
            { "gvk": { "version": "v1", "kind": "Node" } },
        ] }),
        json!({ "resourceRules": [{ "gvk": { "version": "v1", "kind": "Node" } }] }),
        json!({ "resourceRules": [{ "gvk": { "version": "v1", "kind": "Job" } }] }),
    ]
}

fn profile(attributes: &Value) -> Arc<CompiledProfile> {
    let spec: KollectProfileSpec = serde_json::from_value(json!({
        "targetGVK": { "version": "v1", "kind": "Pod" }, "attributes": attributes,
    }))
    .unwrap();
    Arc::new(CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default()).unwrap())
}

fn target(number: usize, spec: &Value, profile: &Arc<CompiledProfile>) -> Arc<Target> {
    bounded_target(number, spec, profile, &Bounds::default())
}

fn bounded_target(
    number: usize,
    spec: &Value,
    profile: &Arc<CompiledProfile>,
    bounds: &Bounds,
) -> Arc<Target> {
    let mut spec = spec.clone();
    spec["profileRef"] = "p".into();
    let spec: KollectTargetSpec = serde_json::from_value(spec).unwrap();
    let (policy, defaults) = (ExtractPolicy::default(), NamespaceDefaults::default());
    let selection = Selection::of_target(&spec, &profile.gvk, bounds, &policy, &defaults).unwrap();
    Arc::new(Target::new(target_id(number), profile.clone(), selection))
}

fn target_id(number: usize) -> TargetId {
    TargetId { namespace: Some("team".into()), name: format!("t{number}").into() }
}

struct CollectTest {
    cluster: Arc<Mutex<TestCluster>>,
    kinds: watch::Sender<u64>,
    collector: Collector,
    tasks: Tasks,
    rows: StoreReader,
    targets: BTreeMap<usize, Arc<Target>>,
    changes: Changes,
    /// The newest version of each row, and the rows whose objects were deleted since targets changed.
    seen: BTreeMap<RowKey, u64>,
    deleted: BTreeSet<RowKey>,
    /// What was reported about objects that cannot be read.
    reported: Arc<Mutex<Vec<String>>>,
    /// Nothing but objects changes, so that nothing else can bring a row back.
    only_objects_change: bool,
    /// Targets do not change, so that no row goes because of specs.
    same_specs: bool,
    random: Random,
    next_uid: usize,
}

const TARGETS: usize = 4;

impl CollectTest {
    fn new(seed: u64) -> Self {
        let cluster = Arc::new(Mutex::new(TestCluster::default()));
        let kinds = watch::Sender::default();
        let source = EventScript { cluster: cluster.clone(), kinds: kinds.clone() };
        let (writer, rows) = store();
        let reported = Arc::<Mutex<Vec<String>>>::default();
        let (collected_reports, tasks) = (reported.clone(), Tasks::default());
        let report = move |problem| {
            if let CollectProblem::RowDropped { object, .. } = problem {
                collected_reports.lock().unwrap().push(object);
            }
        };
        let collector =
            Collector::start(Arc::new(source), writer, CollectSettings::default(), tasks.clone(), report);
        let ids: Vec<TargetId> = (0..TARGETS).map(target_id).collect();
        let changes = rows.changes(&ids);
        Self {
            cluster,
            kinds,
            collector,
            tasks,
            rows,
            targets: BTreeMap::new(),
            changes,
            seen: BTreeMap::new(),
            deleted: BTreeSet::new(),
            reported,
            only_objects_change: false,
            same_specs: false,
            random: Random(seed),
            next_uid: 0,
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut TestCluster) -> T) -> T {
        change(&mut self.cluster.lock().unwrap())
    }

    fn set_targets(&mut self) {
        let targets: Vec<Arc<Target>> = self.targets.values().cloned().collect();
        self.collector.set_targets(&targets, &BTreeSet::new());
    }

    fn change_target(&mut self) {
        let number = self.random.below(TARGETS);
        if self.random.below(4) == 0 {
            self.targets.remove(&number);
        } else {
            let mut specs = target_specs();
            if self.only_objects_change {
                // Two watches of one object are never at the same version: after one has reported the deletion, the
                // other may still send the object.
                specs.retain(|spec| spec["resourceRules"].as_array().is_none_or(|rules| rules.len() < 2));
            }
            let spec = &specs[self.random.below(specs.len())];
            let version =
                json!({ "name": "version", "path": "$.metadata.resourceVersion", "type": "string" });
            let count = json!({ "name": "number", "path": "cel:int(object.spec.number)" });
            let full = profile(&json!([version, { "name": "image", "path": "$.spec.image" }, count]));
            let slim = profile(&json!([version]));
            let profile = if self.random.below(3) == 0 { slim } else { full };
            self.targets.insert(number, target(number, spec, &profile));
        }
        self.set_targets();
    }

    fn change_namespace(&mut self) {
        let name = self.random.pick(&["a", "b", "c", "d"]);
        let uid = format!("ns-{name}");
        if self.random.below(6) == 0 {
            let inside = |object: &Value| object["metadata"]["namespace"] == *name;
            self.with(|cluster| {
                let pods: Vec<String> = cluster
                    .objects
                    .iter()
                    .filter(|(_, (_, o))| inside(o))
                    .map(|(uid, _)| uid.clone())
                    .collect();
                pods.iter().for_each(|pod| cluster.delete(pod));
                cluster.delete(&uid);
            });
            return;
        }
        let watch_label = self.random.pick(&["enabled", "disabled", "none", "none"]);
        let labels = json!({ "team": self.random.pick(&["red", "blue"]), "kollect.dev/watch": watch_label });
        self.with(|cluster| {
            cluster.put("Namespace", &uid, json!({ "metadata": { "name": name, "labels": labels } }));
        });
    }

    fn change_object(&mut self) {
        let namespace = self.random.pick(&["a", "b", "c", "d"]);
        let alive: Vec<String> = self.with(|cluster| {
            cluster
                .objects
                .iter()
                .filter(|(_, (kind, _))| kind != "Namespace")
                .map(|(uid, _)| uid.clone())
                .collect()
        });
        let new = alive.is_empty() || self.random.below(3) == 0;
        let uid = if new {
            self.next_uid += 1;
            format!("u{}", self.next_uid)
        } else {
            alive[self.random.below(alive.len())].clone()
        };
        if !new && self.random.below(4) == 0 {
            self.with(|cluster| cluster.delete(&uid));
            return;
        }
        let known = self.with(|cluster| cluster.objects.get(&uid).cloned());
        let kind = known.as_ref().map_or_else(
            || self.random.pick(&["Pod", "Pod", "Pod", "Node", "Job"]).to_string(),
            |(kind, _)| kind.clone(),
        );
        let name = self.random.pick(&["p1", "p2"]);
        let metadata = match known {
            Some((_, object)) => object["metadata"].clone(),
            None if kind == "Node" => json!({ "name": uid }),
            None => json!({ "name": name, "namespace": namespace }),
        };
        let labels = json!({ "app": self.random.pick(&["x", "y"]) });
        let image = self.random.pick(&["i1", "i2"]);
        let node_name = self.random.pick(&["1", "2"]);
        // Profiles that read the number cannot read some of the objects.
        let number = self.random.pick(&["1", "2", "many"]);
        let spec = json!({ "image": image, "node": node_name, "number": number });
        let mut object = json!({ "metadata": metadata, "spec": spec });
        object["metadata"]["labels"] = labels;
        self.with(|cluster| cluster.put(&kind, &uid, object));
    }

    fn change_permissions(&mut self) {
        let namespace = self.random.pick(&["", "a", "b"]);
        let kind_and_namespace = (
            self.random.pick(&["Pod", "Pod", "Job"]).to_string(),
            (!namespace.is_empty()).then(|| namespace.to_owned()),
        );
        self.with(|cluster| {
            if !cluster.denied.remove(&kind_and_namespace) {
                cluster.denied.insert(kind_and_namespace);
            }
        });
    }

    /// A kind is installed or removed. Its objects stay, for when it is installed again.
    fn change_kinds(&mut self) {
        let kind = self.random.pick(&["Pod", "Node", "Job"]).to_owned();
        self.with(|cluster| {
            if !cluster.absent.remove(&kind) {
                cluster.absent.insert(kind.clone());
            }
            cluster.missing.clone_from(&cluster.absent);
        });
        self.kinds.send_modify(|number| *number += 1);
    }

    fn step_streams(&mut self) {
        let count = self.with(|cluster| cluster.streams.len());
        for _ in 0..self.random.below(12) {
            if count > 0 {
                let index = self.random.below(count);
                let (cluster, random) = (self.cluster.clone(), &mut self.random);
                cluster.lock().unwrap().step(index, random);
            }
        }
        if count > 0 && self.random.below(20) == 0 {
            let index = self.random.below(count);
            let (cluster, random) = (self.cluster.clone(), &mut self.random);
            cluster.lock().unwrap().disconnect(index, random);
        }
    }

    /// Lets all events that were sent arrive, and checks the changes of rows that they caused.
    async fn receive_events(&mut self) {
        time::sleep(Duration::from_millis(1)).await;
        for change in self.changes.take() {
            assert_eq!(change.removal.is_some(), change.after.is_none(), "a removal has a cause");
            assert!(!self.same_specs || change.removal != Some(RemovalCause::SpecChanged), "{change:?}");
            let version = |row: &Arc<kollect_model::row::Row>| -> u64 {
                let attributes: Value = serde_json::from_str(row.attributes.get()).unwrap();
                attributes["version"].as_str().unwrap().parse().unwrap()
            };
            match &change.after {
                Some(row) => {
                    let known = self.seen.insert(change.key.clone(), version(row)).unwrap_or(0);
                    let deleted = self.deleted.contains(&change.key) && version(row) <= known;
                    assert!(
                        !deleted || !self.only_objects_change,
                        "{} came back although its object is deleted",
                        change.key.uid
                    );
                    assert!(
                        known <= version(row),
                        "{} went back from {known} to {}",
                        change.key.uid,
                        version(row)
                    );
                }
                None => {
                    self.check_replaced(&change.key);
                    assert!(
                        !self.only_objects_change || self.may_be_gone(&change.key),
                        "{:?} exists",
                        change.key
                    );
                    // A row that left for another reason may come back from a stream that is behind.
                    if !self.only_objects_change {
                        self.seen.remove(&change.key);
                    }
                    let alive = self.with(|cluster| cluster.objects.contains_key(&*change.key.uid));
                    if !alive {
                        self.deleted.insert(change.key.clone());
                    }
                }
            }
        }
    }

    /// Whether the target does not select or cannot read the object, or did not at some time since the reader
    /// last saw its row. Namespaces have not changed meanwhile.
    fn may_be_gone(&self, removed: &RowKey) -> bool {
        let number = (0..TARGETS).find(|number| target_id(*number) == removed.target);
        let Some(target) = number.and_then(|number| self.targets.get(&number)) else { return true };
        let gvk = target.selection.kinds().into_iter().find(|gvk| *gvk.kind == *removed.kind).cloned();
        // Field selectors are evaluated by the API server.
        let Some(gvk) = gvk.filter(|_| target.selection.field_selectors().next().is_none()) else {
            return true;
        };
        let namespaces = self.collector.namespaces().borrow().clone().unwrap();
        let namespace = namespaces.known.get(&removed.namespace).map(|namespace| &**namespace);
        let yields_row = |object: &Value| {
            let object = parsed(object, &gvk);
            let selected = target.selection.check(&Query::all(gvk.clone()), &object, &namespaces);
            selected.is_ok() && target.profile.extract(&gvk, &object.raw, namespace).is_ok()
        };
        let seen = self.seen.get(removed).copied().unwrap_or(0);
        let is_own = |object: &Value| object["metadata"]["uid"] == *removed.uid;
        self.with(|cluster| {
            cluster.history.iter().filter(|(version, ..)| *version >= seen).any(|(_, _, before, after)| {
                let own = before.as_ref().is_some_and(is_own) || after.as_ref().is_some_and(is_own);
                own && !after.as_ref().is_some_and(yields_row)
            })
        })
    }

    /// A kind that is not served replaces no rows of kinds that the target no longer selects.
    fn check_replaced(&self, removed: &RowKey) {
        let number = (0..TARGETS).find(|number| target_id(*number) == removed.target);
        let Some(target) = number.and_then(|number| self.targets.get(&number)) else { return };
        let kinds: Vec<String> = target.selection.kinds().into_iter().map(|gvk| gvk.kind.clone()).collect();
        if !kinds.contains(&removed.kind.to_string()) {
            let absent =
                self.with(|cluster| kinds.iter().find(|kind| cluster.absent.contains(*kind)).cloned());
            assert_eq!(absent, None, "{removed:?} was replaced by a kind that does not exist");
        }
    }

    /// Lets every stream send everything that it has.
    async fn drain_streams(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let (cluster, random) = (self.cluster.clone(), &mut self.random);
            let moved = {
                let mut cluster = cluster.lock().unwrap();
                let count = cluster.streams.len();
                (0..count).filter(|index| cluster.step(*index, random)).count()
            };
            self.receive_events().await;
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
    }

    /// Nothing changes any more, and all streams have sent everything.
    async fn finish(&mut self) {
        for _ in 0..12 {
            self.drain_streams().await;
            time::sleep(Duration::from_secs(8)).await;
        }
    }

    /// Target, uid and digest of every row.
    fn contents(
        rows: &StoreReader,
        targets: &BTreeMap<usize, Arc<Target>>,
    ) -> BTreeSet<(String, String, String)> {
        let ids: Vec<TargetId> = targets.values().map(|target| target.id.clone()).collect();
        let snapshot = rows.snapshot(&ids, Visibility::Everything).expect("everything is known");
        let row = |row: &Arc<kollect_model::row::Row>| {
            (row.key.target.to_string(), row.key.uid.to_string(), row.attributes.get().to_owned())
        };
        snapshot.rows.values().map(row).collect()
    }

    /// Target and uid of every object that cannot be read.
    fn failures(rows: &StoreReader, targets: &BTreeMap<usize, Arc<Target>>) -> BTreeSet<(String, String)> {
        let of_target = |target: &Arc<Target>| {
            let failed = rows.failed_objects(&target.id);
            assert_eq!(rows.failures(&target.id).0, failed.len(), "each is counted once");
            let id = target.id.to_string();
            failed.into_iter().map(move |uid| (id.clone(), uid.to_string()))
        };
        targets.values().flat_map(of_target).collect()
    }

    /// The rows and failures that a fresh list gives.
    async fn expected_rows_and_failures(
        &self,
    ) -> (BTreeSet<(String, String, String)>, BTreeSet<(String, String)>) {
        let cluster = self.with(|cluster| TestCluster {
            version: cluster.version,
            objects: cluster.objects.clone(),
            denied: cluster.denied.clone(),
            ..TestCluster::default()
        });
        let cluster = Arc::new(Mutex::new(cluster));
        let source = EventScript { cluster: cluster.clone(), kinds: watch::Sender::default() };
        let (writer, rows) = store();
        let settings = CollectSettings { follow: false, ..CollectSettings::default() };
        let mut collector = Collector::start(Arc::new(source), writer, settings, Tasks::default(), |_| {});
        let targets: Vec<Arc<Target>> = self.targets.values().cloned().collect();
        collector.set_targets(&targets, &BTreeSet::new());
        for _ in 0..200 {
            {
                let mut cluster = cluster.lock().unwrap();
                let count = cluster.streams.len();
                (0..count).for_each(|index| while cluster.step(index, &mut Random(1)) {});
            }
            time::sleep(Duration::from_millis(1)).await;
        }
        rows.wait_until_seen().await;
        (Self::contents(&rows, &self.targets), Self::failures(&rows, &self.targets))
    }
}

async fn run(seed: u64) {
    let mut test = CollectTest::new(seed);
    test.only_objects_change = seed.is_multiple_of(2);
    test.change_target();
    if test.only_objects_change {
        (0..12).for_each(|_| test.change_namespace());
        test.finish().await;
    }
    for _ in 0..120 {
        match test.random.below(20) {
            0..8 => test.change_object(),
            8..10 if !test.only_objects_change => test.change_namespace(),
            10 => {
                test.deleted.clear();
                test.change_target();
            }
            11 if !test.only_objects_change && test.random.below(3) == 0 => test.change_permissions(),
            12 if !test.only_objects_change && test.random.below(3) == 0 => test.change_kinds(),
            _ => test.step_streams(),
        }
        test.receive_events().await;
    }
    // What may not be listed is frozen, so that a fresh list knows less.
    test.with(|cluster| {
        cluster.denied.clear();
        cluster.missing.clear();
        cluster.absent.clear();
    });
    test.kinds.send_modify(|number| *number += 1);
    test.finish().await;
    let (expected, expected_failures) = test.expected_rows_and_failures().await;
    let found = CollectTest::contents(&test.rows, &test.targets);
    let difference: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(difference.is_empty(), "seed {seed}: {difference:?}");
    let found = CollectTest::failures(&test.rows, &test.targets);
    let difference: Vec<_> = found.symmetric_difference(&expected_failures).collect();
    assert!(difference.is_empty(), "seed {seed}: failures {difference:?}");
    // Nothing remains of removed targets.
    test.targets.clear();
    test.set_targets();
    test.changes = test.rows.changes(&[]);
    test.receive_events().await;
    assert_eq!(test.rows.known_targets(), BTreeSet::new(), "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn rows_and_failures_end_up_as_a_fresh_list_has_them() {
    let seeds = match std::env::var("KOLLECT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=250).map(|number| number * 1_299_709).collect(),
    };
    for seed in seeds {
        run(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_have_the_cause_spec_changed_only_if_specs_have_changed() {
    for seed in (1..=60).map(|number| number * 1_299_721) {
        let mut test = CollectTest::new(seed);
        (0..6).for_each(|_| test.change_target());
        test.same_specs = true;
        for _ in 0..120 {
            match test.random.below(20) {
                0..8 => test.change_object(),
                8..11 => test.change_namespace(),
                11 if test.random.below(3) == 0 => test.change_permissions(),
                12 if test.random.below(3) == 0 => test.change_kinds(),
                13 if test.random.below(6) == 0 => {
                    // A restarted task has no state, and reads everything once more.
                    test.with(|cluster| cluster.resolve_bugs.insert("Pod".into()));
                    test.kinds.send_modify(|number| *number += 1);
                }
                _ => test.step_streams(),
            }
            test.receive_events().await;
        }
        test.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_selection_and_a_removed_target_have_the_cause_spec_changed() {
    let mut test = test_with_pods(3).await;
    let mut changes = test.rows.changes(&[target_id(0)]);
    let mut causes = async |test: &mut CollectTest| {
        test.drain_streams().await;
        let removals = changes.take().into_iter().filter(|change| change.after.is_none());
        removals.map(|change| (change.key.uid.to_string(), change.removal.unwrap())).collect::<Vec<_>>()
    };
    let one = |uid: &str, cause| vec![(uid.to_owned(), cause)];
    test.with(|cluster| cluster.delete("u0"));
    assert_eq!(causes(&mut test).await, one("u0", RemovalCause::ObjectGone));
    let profile = test.targets[&0].profile.clone();
    test.targets.insert(0, target(0, &json!({ "names": ["p2"] }), &profile));
    test.set_targets();
    assert_eq!(causes(&mut test).await, one("u1", RemovalCause::SpecChanged));
    // The definition is the same now: what it no longer selects has changed itself.
    let renamed = json!({ "metadata": { "name": "p9", "namespace": "a" }, "spec": { "image": "i" } });
    test.with(|cluster| cluster.put("Pod", "u2", renamed));
    assert_eq!(causes(&mut test).await, one("u2", RemovalCause::ObjectGone));
    let pod = json!({ "metadata": { "name": "p2", "namespace": "a" }, "spec": { "image": "i" } });
    test.with(|cluster| cluster.put("Pod", "u3", pod));
    assert_eq!(causes(&mut test).await, []);
    test.targets.clear();
    test.set_targets();
    assert_eq!(causes(&mut test).await, one("u3", RemovalCause::SpecChanged));
}

fn everything() -> Arc<Target> {
    let version = json!({ "name": "version", "path": "$.metadata.resourceVersion", "type": "string" });
    target(0, &json!({}), &profile(&json!([version, { "name": "image", "path": "$.spec.image" }])))
}

/// One namespace with some pods, and a target that selects them all.
async fn test_with_pods(pods: usize) -> CollectTest {
    let mut test = CollectTest::new(1);
    test.with(|cluster| cluster.put("Namespace", "ns-a", json!({ "metadata": { "name": "a" } })));
    for number in 0..pods {
        let pod = json!({ "metadata": { "name": format!("p{number}"), "namespace": "a" }, "spec": { "image": "i" } });
        test.with(|cluster| cluster.put("Pod", &format!("u{number}"), pod));
    }
    test.targets.insert(0, everything());
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), pods);
    test
}

fn watches(test: &CollectTest) -> usize {
    test.with(|cluster| {
        let open = |stream: &&Stream| !stream.events.is_closed() && stream.query.gvk.kind == "Pod";
        cluster.streams.iter().filter(open).count()
    })
}

#[tokio::test(start_paused = true)]
async fn targets_of_a_kind_share_one_watch_and_the_last_one_ends_it() {
    let mut test = test_with_pods(2).await;
    assert_eq!(watches(&test), 1);
    test.targets.insert(1, target(1, &json!({ "names": ["p1"] }), &test.targets[&0].profile.clone()));
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(watches(&test), 1, "the list for the new target has replaced the old watch");
    assert_eq!(test.rows.count(&target_id(1)), 1);
    let opened = test.with(|cluster| cluster.opened);
    test.targets.remove(&1);
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(1)), 0);
    assert_eq!(test.with(|cluster| cluster.opened), opened, "nothing is listed again for those that stay");
    test.targets.clear();
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(watches(&test), 0);
    assert_eq!(test.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_target_does_not_disturb_the_others() {
    let mut test = test_with_pods(3).await;
    test.targets.insert(1, target(1, &json!({}), &test.targets[&0].profile.clone()));
    test.set_targets();
    time::sleep(Duration::from_millis(5)).await;
    // The new list stands still, and the old watch goes on.
    test.with(|cluster| cluster.delete("u0"));
    let old = test
        .with(|cluster| cluster.streams.iter().position(|stream| stream.query.gvk.kind == "Pod").unwrap());
    let (cluster, random) = (test.cluster.clone(), &mut test.random);
    while cluster.lock().unwrap().step(old, random) {}
    test.receive_events().await;
    assert_eq!(test.rows.count(&target_id(0)), 2);
    assert!(
        test.rows.snapshot(&[target_id(1)], Visibility::Everything).is_none(),
        "nothing was listed for it yet"
    );
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(1)), 2);
}

#[tokio::test(start_paused = true)]
async fn targets_with_one_profile_share_the_attributes() {
    let mut test = test_with_pods(1).await;
    test.targets.insert(1, target(1, &json!({}), &test.targets[&0].profile.clone()));
    test.set_targets();
    test.drain_streams().await;
    // The list for the new target skips rows that are there; the next change makes both.
    let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "new" } });
    test.with(|cluster| cluster.put("Pod", "u0", pod));
    test.drain_streams().await;
    let snapshot = test.rows.snapshot(&[target_id(0), target_id(1)], Visibility::Everything).unwrap();
    let bytes: Vec<_> = snapshot.rows.values().map(|row| row.attributes.clone()).collect();
    assert_eq!(bytes.len(), 2);
    assert!(Arc::ptr_eq(&bytes[0], &bytes[1]));
}

#[tokio::test(start_paused = true)]
async fn a_revoked_permission_freezes_rows_until_it_is_granted_again() {
    let mut test = test_with_pods(2).await;
    let pods = [("Pod".to_owned(), None), ("Pod".to_owned(), Some("a".to_owned()))];
    test.with(|cluster| cluster.denied.extend(pods.clone()));
    test.drain_streams().await;
    test.with(|cluster| cluster.delete("u0"));
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 2, "no event reported the deletion");
    let snapshot = test.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let unknown = RowKey { uid: "u9".into(), ..snapshot.rows.keys().next().unwrap().clone() };
    assert!(!snapshot.knows_gone(&unknown), "what is absent may exist");
    let blind = |test: &CollectTest| {
        let coverage = test.collector.coverage().read();
        coverage.values().filter(|known| matches!(known.state, WatchState::Blind { .. })).count()
    };
    assert_eq!(blind(&test), 1);
    test.with(|cluster| cluster.denied.clear());
    time::sleep(Duration::from_secs(40)).await;
    test.drain_streams().await;
    assert_eq!((test.rows.count(&target_id(0)), blind(&test)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn namespaces_that_cannot_be_listed_at_the_start_remove_nothing() {
    let mut test = CollectTest::new(1);
    // Nothing is wanted yet when the first request fails.
    test.receive_events().await;
    let failed = || Blindness { reason: BlindReason::Failed, message: "no answer".into() };
    test.with(|cluster| {
        let stream = cluster.streams.iter().find(|stream| stream.query.gvk.kind == "Namespace").unwrap();
        stream.events.unbounded_send(Event::Blind(failed())).unwrap();
    });
    test.receive_events().await;
    assert!(test.collector.namespaces().borrow().as_ref().is_some_and(|known| known.known.is_empty()));
    let profile = everything().profile.clone();
    test.targets.insert(0, target(0, &json!({ "includedNamespaces": ["a"] }), &profile));
    test.set_targets();
    test.receive_events().await;
    let published = test.collector.namespaces().borrow().clone().unwrap();
    assert!(published.known.contains_key("a") && !published.complete, "what the target names is looked at");
    let snapshot = test.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything);
    let (group, kind, uid) = ("".into(), "Pod".into(), "u0".into());
    let held = RowKey { target: target_id(0), group, kind, namespace: "a".into(), uid };
    assert!(!snapshot.knows_gone(&held), "what a sink holds may exist");
}

#[tokio::test(start_paused = true)]
async fn rows_beyond_the_reach_stay_as_they_were_until_they_are_within_reach_again() {
    let mut test = test_with_pods(2).await;
    let pod = |namespace: &str, image: &str| json!({ "metadata": { "name": "p", "namespace": namespace }, "spec": { "image": image } });
    test.with(|cluster| {
        cluster.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
        cluster.put("Pod", "b0", pod("b", "old"));
        cluster.put("Pod", "b1", pod("b", "old"));
        cluster.put("Node", "n0", json!({ "metadata": { "name": "n" }, "spec": { "image": "old" } }));
    });
    let profile = test.targets[&0].profile.clone();
    let kinds = json!({ "resourceRules": [
        { "gvk": { "version": "v1", "kind": "Pod" } }, { "gvk": { "version": "v1", "kind": "Node" } },
    ] });
    // Another target that sees everything: one watch serves both.
    test.targets.insert(0, target(0, &kinds, &profile));
    test.targets.insert(1, target(1, &kinds, &profile));
    test.set_targets();
    test.drain_streams().await;
    let images = |test: &CollectTest, uid: &str| {
        let snapshot = test.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
        let row =
            snapshot.rows.iter().find(|(key, _)| &*key.uid == uid).map(|(_, row)| row.attributes.to_string());
        row.map(|attributes| attributes.contains("new"))
    };
    assert_eq!(test.rows.count(&target_id(0)), 5);
    let reach = Bounds {
        namespaces: Some([Arc::from("a")].into()),
        cluster_scoped_by_name: true,
        ..Bounds::default()
    };
    test.targets.insert(0, bounded_target(0, &kinds, &profile, &reach));
    test.set_targets();
    test.drain_streams().await;
    test.with(|cluster| {
        cluster.put("Pod", "u0", pod("a", "new"));
        cluster.put("Pod", "b0", pod("b", "new"));
        cluster.put("Node", "n0", json!({ "metadata": { "name": "n" }, "spec": { "image": "new" } }));
        cluster.put("Pod", "b2", pod("b", "new"));
        cluster.delete("b1");
    });
    test.drain_streams().await;
    assert_eq!(images(&test, "u0"), Some(true), "its own namespace is collected");
    let others = ["b0", "b1", "b2", "n0"].map(|uid| images(&test, uid));
    assert_eq!(others, [Some(false), Some(false), None, Some(false)], "what is beyond stays as it was");
    assert_eq!(test.rows.count(&target_id(1)), 5, "the other target sees all of it");
    let snapshot = test.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let key = |namespace: &str, kind: &str| RowKey {
        uid: "u9".into(),
        namespace: namespace.into(),
        kind: kind.into(),
        ..snapshot.rows.keys().next().unwrap().clone()
    };
    let known_gone =
        [("a", "Pod"), ("b", "Pod"), ("", "Node")].map(|(n, kind)| snapshot.knows_gone(&key(n, kind)));
    assert_eq!(known_gone, [true, false, false], "also in a sink");

    test.targets.insert(0, target(0, &kinds, &profile));
    test.set_targets();
    test.drain_streams().await;
    let others = ["b0", "b1", "b2", "n0"].map(|uid| images(&test, uid));
    assert_eq!(others, [Some(true), None, Some(true), Some(true)], "within reach again it goes on");
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_kind_that_is_not_served_are_frozen_until_it_is_served_again() {
    let mut test = test_with_pods(2).await;
    test.with(|cluster| cluster.missing.extend(["Pod".into()]));
    test.kinds.send_modify(|number| *number += 1);
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 2);
    test.with(|cluster| {
        cluster.missing.clear();
        cluster.delete("u1");
    });
    test.kinds.send_modify(|number| *number += 1);
    test.receive_events().await;
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_recorded_with_its_reason() {
    let mut test = test_with_pods(1).await;
    test.with(|cluster| {
        let index = cluster.streams.iter().position(|stream| stream.query.gvk.kind == "Pod").unwrap();
        cluster.disconnect(index, &mut Random(2));
    });
    test.drain_streams().await;
    let coverage = test.collector.coverage().read();
    let pods = coverage.iter().find(|(watched, _)| watched.gvk.kind == "Pod").unwrap().1;
    assert!(matches!(pods.state, WatchState::Synced { .. }));
    assert_eq!(pods.gaps.len(), 1);
    assert_eq!(pods.gaps[0].blindness.message, "cut");
    let reason = pods.gaps[0].blindness.reason;
    assert_eq!(test.collector.coverage().restarts(), [(reason, 1)].into());
    let mut visited = 0;
    test.collector.coverage().visit(|_, _| visited += 1);
    assert_eq!(visited, coverage.len());
}

#[tokio::test(start_paused = true)]
async fn a_missed_event_is_found_repaired_and_counted() {
    let mut test = test_with_pods(3).await;
    test.with(|cluster| {
        // The watch does not send what happens next.
        cluster.silent = true;
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "new" } });
        cluster.put("Pod", "u0", pod);
        cluster.delete("u1");
        for stream in cluster.streams.iter_mut().filter(|stream| stream.query.gvk.kind == "Pod") {
            if let WatchPhase::Watching { cursor, .. } = &mut stream.phase {
                *cursor += 2;
            }
        }
    });
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 3);
    for _ in 0..(13 * 60) {
        time::sleep(Duration::from_mins(1)).await;
        test.drain_streams().await;
    }
    assert_eq!(test.rows.count(&target_id(0)), 2);
    let coverage = test.collector.coverage().read();
    let pods = coverage.iter().find(|(watched, _)| watched.gvk.kind == "Pod").unwrap().1;
    assert_eq!(pods.repaired, 2);
    assert_eq!(watches(&test), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_was_restored_from_a_backup_is_read_again() {
    let mut test = test_with_pods(3).await;
    test.seen.clear();
    let mut changes = test.rows.changes(&[target_id(0)]);
    test.with(|cluster| {
        // Versions begin again, and one object is another one.
        cluster.version = 0;
        cluster.history.clear();
        cluster.delete("u1");
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "old" } });
        cluster.put("Pod", "u0", pod);
        for stream in &mut cluster.streams {
            stream.phase = WatchPhase::Requested;
        }
    });
    // No row of an existing object is missing in between.
    let mut causes = BTreeMap::new();
    for _ in 0..40 {
        for index in 0..test.with(|cluster| cluster.streams.len()) {
            let (cluster, random) = (test.cluster.clone(), &mut test.random);
            cluster.lock().unwrap().step(index, random);
        }
        time::sleep(Duration::from_millis(1)).await;
        let removals = changes.take().into_iter().filter(|change| change.after.is_none());
        causes.extend(removals.map(|change| (change.key.uid.to_string(), change.removal)));
    }
    assert_eq!(causes, [("u1".to_owned(), Some(RemovalCause::ObjectGone))].into());
    let rows = CollectTest::contents(&test.rows, &test.targets);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().next().unwrap().2.contains("old"));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_changes_its_kind_loses_its_old_rows() {
    let mut test = test_with_pods(2).await;
    test.with(|cluster| cluster.put("Node", "n1", json!({ "metadata": { "name": "n1" }, "spec": {} })));
    let nodes = json!({ "resourceRules": [{ "gvk": { "version": "v1", "kind": "Node" } }] });
    test.targets.insert(0, target(0, &nodes, &test.targets[&0].profile.clone()));
    test.set_targets();
    test.receive_events().await;
    assert_eq!(test.rows.count(&target_id(0)), 2, "the old rows stay until the new ones are there");
    test.drain_streams().await;
    let rows = CollectTest::contents(&test.rows, &test.targets);
    assert_eq!(rows.into_iter().map(|(_, uid, _)| uid).collect::<Vec<_>>(), ["n1"]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_target_keeps_its_rows_until_it_is_deleted() {
    let mut test = test_with_pods(2).await;
    let frozen = BTreeSet::from([target_id(0)]);
    test.collector.set_targets(&[], &frozen);
    test.with(|cluster| cluster.delete("u0"));
    test.drain_streams().await;
    assert_eq!((test.rows.count(&target_id(0)), watches(&test)), (2, 0));
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 1);
    test.collector.set_targets(&[], &frozen);
    test.collector.set_targets(&[], &BTreeSet::new());
    assert_eq!(test.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_was_deleted_while_its_target_was_frozen_leaves_no_rows() {
    let mut test = test_with_pods(1).await;
    test.with(|cluster| {
        cluster.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
        cluster.put(
            "Pod",
            "ub",
            json!({ "metadata": { "name": "p", "namespace": "b" }, "spec": { "image": "i" } }),
        );
    });
    let named = target(0, &json!({ "includedNamespaces": ["a", "b"] }), &test.targets[&0].profile.clone());
    test.targets.insert(0, named);
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 2);
    test.collector.set_targets(&[], &BTreeSet::from([target_id(0)]));
    test.with(|cluster| {
        cluster.delete("ub");
        cluster.delete("ns-b");
    });
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 2, "rows of a frozen target stay");
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stands_still_counts_as_blind() {
    let mut test = CollectTest::new(1);
    test.targets.insert(0, everything());
    test.set_targets();
    test.receive_events().await;
    // Namespaces answer, pods do not.
    let (cluster, random) = (test.cluster.clone(), &mut test.random);
    while cluster.lock().unwrap().step(0, random) {}
    test.receive_events().await;
    // The list of pods begins, and that is all.
    let (cluster, random) = (test.cluster.clone(), &mut test.random);
    assert!(cluster.lock().unwrap().step(1, random));
    test.receive_events().await;
    assert!(test.rows.snapshot(&[target_id(0)], Visibility::Everything).is_none());
    time::sleep(Duration::from_secs(70)).await;
    assert!(
        test.rows.snapshot(&[target_id(0)], Visibility::Everything).is_some(),
        "others need not wait for it"
    );
}

#[tokio::test(start_paused = true)]
async fn changes_are_reported_at_once_and_never_lost() {
    let mut test = test_with_pods(1).await;
    let mut changes = test.rows.changes(&[target_id(0)]);
    for number in 0..50 {
        let image = format!("i{number}");
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": image } });
        test.with(|cluster| cluster.put("Pod", "u0", pod));
        test.drain_streams().await;
    }
    let taken = changes.next().await;
    assert_eq!(taken.len(), 1, "one row, reported once");
    assert!(taken[0].before.as_ref().unwrap().attributes.get().contains("\"i\""));
    assert!(taken[0].after.as_ref().unwrap().attributes.get().contains("i49"));
    assert!(changes.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_not_selected_wake_no_reader() {
    let mut test = test_with_pods(2).await;
    let one_pod = target(0, &json!({ "names": ["p0"] }), &test.targets[&0].profile.clone());
    test.targets.insert(0, one_pod);
    test.set_targets();
    test.drain_streams().await;
    let revision = test.rows.revision(&[target_id(0)]);
    let mut changes = test.rows.changes(&[target_id(0)]);
    let pod = json!({ "metadata": { "name": "p1", "namespace": "a" }, "spec": { "image": "new" } });
    test.with(|cluster| cluster.put("Pod", "u1", pod));
    test.with(|cluster| cluster.delete("u1"));
    test.drain_streams().await;
    assert_eq!(test.rows.revision(&[target_id(0)]), revision);
    assert!(changes.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_absent_while_the_connection_is_lost_may_exist() {
    let mut test = test_with_pods(1).await;
    let absent = |test: &CollectTest| {
        let snapshot = test.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
        let key = snapshot.rows.keys().next().unwrap().clone();
        snapshot.knows_gone(&RowKey { uid: "u9".into(), ..key })
    };
    assert!(absent(&test), "everything is seen");
    let blindness = Blindness { reason: BlindReason::Failed, message: "cut".into() };
    let send = |test: &CollectTest, event: Event| {
        test.with(|cluster| {
            let stream = cluster.streams.iter().find(|stream| stream.query.gvk.kind == "Pod").unwrap();
            stream.events.unbounded_send(event).unwrap();
        });
    };
    send(&test, Event::Blind(blindness));
    test.receive_events().await;
    assert!(!absent(&test));
    send(&test, Event::Resumed);
    test.receive_events().await;
    assert!(absent(&test), "nothing was missed");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_an_object_that_affects_no_attribute_is_no_change_of_its_row() {
    let mut test = test_with_pods(1).await;
    let image = profile(&json!([{ "name": "image", "path": "$.spec.image" }]));
    test.targets.insert(0, target(0, &json!({}), &image));
    test.set_targets();
    // These rows have no version to check.
    test.changes = test.rows.changes(&[]);
    test.drain_streams().await;
    let revision = test.rows.revision(&[target_id(0)]);
    let pod = |status: &str| json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "i" }, "status": status });
    test.with(|cluster| cluster.put("Pod", "u0", pod("Running")));
    test.drain_streams().await;
    assert_eq!(test.rows.revision(&[target_id(0)]), revision);
}

fn labelled(app: &str, image: &str) -> Value {
    json!({ "metadata": { "name": "p", "namespace": "a", "labels": { "app": app } }, "spec": { "image": image } })
}

fn step(test: &mut CollectTest, stream: usize) -> bool {
    let (cluster, random) = (test.cluster.clone(), &mut test.random);
    cluster.lock().unwrap().step(stream, random)
}

/// One pod, and two targets that both select it now. A new feed that is narrower has begun its list, and the old
/// one serves only the second target any more. Returns the streams of both.
async fn test_with_narrower_feed() -> (CollectTest, usize, usize) {
    let mut test = test_with_pods(0).await;
    test.with(|cluster| cluster.put("Pod", "u", labelled("x", "i")));
    let some = json!({ "labelSelector": { "matchLabels": { "app": "x" } } });
    let profile = test.targets[&0].profile.clone();
    test.targets.insert(1, target(1, &some, &profile));
    test.set_targets();
    test.drain_streams().await;
    test.targets.insert(0, target(0, &some, &profile));
    test.set_targets();
    test.receive_events().await;
    let streams: Vec<usize> = test.with(|cluster| {
        let open = |stream: &Stream| !stream.events.is_closed() && stream.query.gvk.kind == "Pod";
        (0..cluster.streams.len()).filter(|index| open(&cluster.streams[*index])).collect()
    });
    let [old, new] = streams[..] else { panic!("{streams:?}") };
    assert!(step(&mut test, new));
    test.receive_events().await;
    (test, old, new)
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_a_query_is_removed_although_another_feed_was_faster() {
    let (mut test, old, new) = test_with_narrower_feed().await;
    while test.with(
        |cluster| matches!(&cluster.streams[new].phase, WatchPhase::Listing { objects, .. } if !objects.is_empty()),
    ) {
        step(&mut test, new);
    }
    test.receive_events().await;
    assert_eq!([0, 1].map(|number| test.rows.count(&target_id(number))), [1, 1]);
    test.with(|cluster| cluster.put("Pod", "u", labelled("y", "i")));
    test.with(|cluster| cluster.delete("u"));
    while step(&mut test, old) {}
    test.drain_streams().await;
    assert_eq!([0, 1].map(|number| test.rows.count(&target_id(number))), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_row_stays_although_a_feed_of_other_targets_has_reported_a_newer_version() {
    let (mut test, old, new) = test_with_narrower_feed().await;
    let mut changes = test.rows.changes(&[target_id(0)]);
    test.with(|cluster| cluster.put("Pod", "u", labelled("x", "new")));
    while step(&mut test, old) {}
    test.receive_events().await;
    // The list of the new feed shows the object as it was.
    while test.with(|cluster| matches!(cluster.streams[new].phase, WatchPhase::Listing { .. })) {
        step(&mut test, new);
    }
    test.receive_events().await;
    assert!(changes.take().iter().all(|change| change.after.is_some()), "a row that exists is never missing");
    test.drain_streams().await;
    assert!(changes.take()[0].after.as_ref().unwrap().attributes.get().contains("new"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_listed_once_more_brings_no_deleted_row_back() {
    let mut test = test_with_pods(2).await;
    let of_pods = |test: &CollectTest, follow: bool| {
        test.with(|cluster| {
            let wanted = |stream: &Stream| {
                stream.query.gvk.kind == "Pod" && stream.query.follow == follow && !stream.events.is_closed()
            };
            cluster.streams.iter().position(wanted).unwrap()
        })
    };
    let watch = of_pods(&test, true);
    let labels = json!({ "kollect.dev/watch": "enabled" });
    test.with(|cluster| {
        cluster.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
    });
    while step(&mut test, 0) {}
    test.receive_events().await;
    // The list of the namespace begins before the object is deleted, and is slow.
    let slow = of_pods(&test, false);
    assert!(step(&mut test, slow));
    test.with(|cluster| {
        cluster.delete("u0");
        cluster.streams[watch].phase = WatchPhase::Requested;
    });
    while step(&mut test, watch) {}
    test.receive_events().await;
    assert_eq!(test.rows.count(&target_id(0)), 1);
    test.finish().await;
    assert_eq!(test.rows.count(&target_id(0)), 1);
}

/// Kinds that are blind, with the message.
fn blind_kinds(test: &CollectTest) -> Vec<(String, String)> {
    let coverage = test.collector.coverage().read();
    let blind = coverage.into_iter().filter_map(|(watched, known)| match known.state {
        WatchState::Blind { blindness, .. } => Some((watched.gvk.kind, blindness.message)),
        _ => None,
    });
    blind.collect()
}

fn restarted_watches(test: &CollectTest) -> u64 {
    test.tasks.restarts().find(|(kind, _)| *kind == TaskKind::Watch).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_panics_is_reported_and_restarted() {
    let mut test = test_with_pods(2).await;
    test.with(|cluster| {
        cluster.watch_bugs.insert("Pod".into());
        cluster.delete("u0");
    });
    test.drain_streams().await;
    let blind = blind_kinds(&test);
    assert!(
        matches!(&*blind, [(kind, message)] if kind == "Pod" && message.contains("panicked")),
        "{blind:?}"
    );
    assert_eq!((test.rows.count(&target_id(0)), restarted_watches(&test)), (2, 1), "rows are frozen");
    time::sleep(Duration::from_secs(2)).await;
    test.drain_streams().await;
    assert_eq!((test.rows.count(&target_id(0)), watches(&test)), (1, 1));
    assert!(blind_kinds(&test).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_task_of_a_kind_that_panics_is_reported_and_restarted() {
    let mut test = test_with_pods(2).await;
    test.with(|cluster| {
        cluster.resolve_bugs.insert("Pod".into());
        cluster.delete("u0");
    });
    test.kinds.send_modify(|number| *number += 1);
    test.receive_events().await;
    let blind = blind_kinds(&test);
    assert!(
        matches!(&*blind, [(kind, message)] if kind == "Pod" && message.contains("panicked")),
        "{blind:?}"
    );
    assert_eq!((test.rows.count(&target_id(0)), restarted_watches(&test)), (2, 1));
    let snapshot = test.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let unknown = RowKey { uid: "u9".into(), ..snapshot.rows.keys().next().unwrap().clone() };
    assert!(!snapshot.knows_gone(&unknown), "what is absent may exist");
    time::sleep(Duration::from_secs(2)).await;
    test.drain_streams().await;
    assert_eq!((test.rows.count(&target_id(0)), watches(&test)), (1, 1));
    assert!(blind_kinds(&test).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_watch_of_namespaces_that_panics_is_reported_and_restarted() {
    let mut test = test_with_pods(1).await;
    test.with(|cluster| {
        cluster.watch_bugs.insert("Namespace".into());
        cluster.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
    });
    test.drain_streams().await;
    let blind = blind_kinds(&test);
    assert!(matches!(&*blind, [(kind, _)] if kind == "Namespace"), "{blind:?}");
    let known = |test: &CollectTest| test.collector.namespaces().borrow().as_ref().unwrap().known.len();
    assert_eq!((known(&test), restarted_watches(&test)), (1, 1));
    time::sleep(Duration::from_secs(2)).await;
    test.drain_streams().await;
    assert_eq!(known(&test), 2);
    assert!(blind_kinds(&test).is_empty());
}
