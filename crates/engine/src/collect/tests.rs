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

use super::{Collector, Problem, Settings, Target};
use crate::{
    coverage::State,
    extract::{CompiledProfile, OptIns, Policy},
    random::Random,
    select::{Bounds, NamespaceDefaults, Selection},
    store::{Changes, RemovalCause, StoreReader, Visibility, store},
    tasks::{TaskKind, Tasks},
    watch::{BlindReason, Blindness, Event, Object, Query, Resolution, Resource, WatchSource},
};

/// The whole cluster: every object that exists, and everything that ever happened.
#[derive(Default)]
struct World {
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
    phase: Phase,
}

enum Phase {
    Asked,
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

impl World {
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
        let gone = self.missing.contains(&stream.query.gvk.kind);
        let place = (stream.query.gvk.kind.clone(), stream.query.namespace.as_deref().map(ToOwned::to_owned));
        let refused = self.denied.contains(&place);
        if (gone || refused) && !matches!(stream.phase, Phase::Ended) {
            let reason = if gone { BlindReason::NotServed } else { BlindReason::Forbidden };
            stream.events.unbounded_send(Event::Blind(Blindness { reason, message: "no".into() })).ok();
            stream.events.close_channel();
            stream.phase = Phase::Ended;
            return true;
        }
        let (event, next) = match &mut stream.phase {
            Phase::Ended => return false,
            Phase::Asked => {
                let objects =
                    self.objects.values().filter(|(kind, object)| sees(&stream.query, kind, Some(object)));
                let mut objects: Vec<Value> = objects.map(|(_, object)| object.clone()).collect();
                for index in (1..objects.len()).rev() {
                    objects.swap(index, random.below(index + 1));
                }
                (Event::Listing { total: None }, Phase::Listing { version: self.version, objects })
            }
            // A streamed list reports deletions while it runs.
            Phase::Listing { version, .. }
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
                let gone = parsed(&last, &query.gvk).metadata;
                if let Phase::Listing { objects, .. } = &mut stream.phase {
                    objects.retain(|object| object["metadata"]["uid"] != *gone.uid);
                }
                stream.events.unbounded_send(Event::Delete(gone)).ok();
                return true;
            }
            Phase::Listing { version, objects } => match objects.pop() {
                Some(object) => {
                    let (version, objects) = (*version, std::mem::take(objects));
                    (Event::Apply(parsed(&object, &stream.query.gvk)), Phase::Listing { version, objects })
                }
                None => {
                    let cursor = self.history.iter().take_while(|(v, ..)| *v <= *version).count();
                    (Event::Synced { version: *version }, Phase::Watching { cursor, version: *version })
                }
            },
            Phase::Watching { cursor, version } => {
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
        stream.phase = if ends { Phase::Ended } else { next };
        if ends {
            stream.events.close_channel();
        }
        true
    }

    /// A stream loses its connection: it goes on where it was, or begins with a list.
    fn disturb(&mut self, index: usize, random: &mut Random) {
        let stream = &mut self.streams[index];
        if !matches!(stream.phase, Phase::Watching { .. }) {
            return;
        }
        let blindness = Blindness { reason: BlindReason::Failed, message: "cut".into() };
        stream.events.unbounded_send(Event::Blind(blindness)).ok();
        if random.below(2) == 0 {
            stream.events.unbounded_send(Event::Resumed).ok();
        } else {
            stream.phase = Phase::Asked;
        }
    }
}

struct Script {
    world: Arc<Mutex<World>>,
    kinds: watch::Sender<u64>,
}

#[async_trait]
impl WatchSource for Script {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        let mut world = self.world.lock().unwrap();
        let bug = world.resolve_bugs.remove(&gvk.kind);
        let (absent, missing) = (world.absent.contains(&gvk.kind), world.missing.contains(&gvk.kind));
        drop(world);
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
        let place = (query.gvk.kind.clone(), query.namespace.as_deref().map(ToOwned::to_owned));
        !self.world.lock().unwrap().denied.contains(&place)
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let (events, receiver) = mpsc::unbounded();
        let mut world = self.world.lock().unwrap();
        world.opened += 1;
        let (shared, kind) = (self.world.clone(), query.gvk.kind.clone());
        world.streams.push(Stream { query, events, phase: Phase::Asked });
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
    Arc::new(CompiledProfile::compile(&spec, &OptIns::default(), &Policy::default()).unwrap())
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
    let (policy, defaults) = (Policy::default(), NamespaceDefaults::default());
    let selection = Selection::of_target(&spec, &profile.gvk, bounds, &policy, &defaults).unwrap();
    Arc::new(Target::new(target_id(number), profile.clone(), selection))
}

fn target_id(number: usize) -> TargetId {
    TargetId { namespace: Some("team".into()), name: format!("t{number}").into() }
}

struct Lab {
    world: Arc<Mutex<World>>,
    kinds: watch::Sender<u64>,
    collector: Collector,
    tasks: Tasks,
    rows: StoreReader,
    targets: BTreeMap<usize, Arc<Target>>,
    changes: Changes,
    /// The newest version of each row, and the rows whose objects were deleted since targets changed.
    seen: BTreeMap<RowKey, u64>,
    dead: BTreeSet<RowKey>,
    /// What was reported about objects that cannot be read.
    reported: Arc<Mutex<Vec<String>>>,
    /// Nothing but objects changes, so that nothing else can bring a row back.
    calm: bool,
    /// Targets do not change, so that no row goes because of specs.
    same_specs: bool,
    random: Random,
    next_uid: usize,
}

const TARGETS: usize = 4;

impl Lab {
    fn new(seed: u64) -> Self {
        let world = Arc::new(Mutex::new(World::default()));
        let kinds = watch::Sender::default();
        let source = Script { world: world.clone(), kinds: kinds.clone() };
        let (writer, rows) = store();
        let reported = Arc::<Mutex<Vec<String>>>::default();
        let (heard, tasks) = (reported.clone(), Tasks::default());
        let report = move |problem| {
            if let Problem::Unreadable { object, .. } = problem {
                heard.lock().unwrap().push(object);
            }
        };
        let collector =
            Collector::start(Arc::new(source), writer, Settings::default(), tasks.clone(), report);
        let ids: Vec<TargetId> = (0..TARGETS).map(target_id).collect();
        let changes = rows.changes(&ids);
        Self {
            world,
            kinds,
            collector,
            tasks,
            rows,
            targets: BTreeMap::new(),
            changes,
            seen: BTreeMap::new(),
            dead: BTreeSet::new(),
            reported,
            calm: false,
            same_specs: false,
            random: Random(seed),
            next_uid: 0,
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.world.lock().unwrap())
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
            if self.calm {
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
            self.with(|world| {
                let pods: Vec<String> = world
                    .objects
                    .iter()
                    .filter(|(_, (_, o))| inside(o))
                    .map(|(uid, _)| uid.clone())
                    .collect();
                pods.iter().for_each(|pod| world.delete(pod));
                world.delete(&uid);
            });
            return;
        }
        let mark = self.random.pick(&["enabled", "disabled", "none", "none"]);
        let labels = json!({ "team": self.random.pick(&["red", "blue"]), "kollect.dev/watch": mark });
        self.with(|world| {
            world.put("Namespace", &uid, json!({ "metadata": { "name": name, "labels": labels } }));
        });
    }

    fn change_object(&mut self) {
        let namespace = self.random.pick(&["a", "b", "c", "d"]);
        let alive: Vec<String> = self.with(|world| {
            world
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
            self.with(|world| world.delete(&uid));
            return;
        }
        let known = self.with(|world| world.objects.get(&uid).cloned());
        let kind = known.as_ref().map_or_else(
            || self.random.pick(&["Pod", "Pod", "Pod", "Node", "Job"]).to_string(),
            |(kind, _)| kind.clone(),
        );
        let name = self.random.pick(&["p1", "p2"]);
        let place = match known {
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
        let mut object = json!({ "metadata": place, "spec": spec });
        object["metadata"]["labels"] = labels;
        self.with(|world| world.put(&kind, &uid, object));
    }

    fn change_permissions(&mut self) {
        let place = self.random.pick(&["", "a", "b"]);
        let place = (
            self.random.pick(&["Pod", "Pod", "Job"]).to_string(),
            (!place.is_empty()).then(|| place.to_owned()),
        );
        self.with(|world| {
            if !world.denied.remove(&place) {
                world.denied.insert(place);
            }
        });
    }

    /// A kind is installed or removed. Its objects stay, for when it is installed again.
    fn change_kinds(&mut self) {
        let kind = self.random.pick(&["Pod", "Node", "Job"]).to_owned();
        self.with(|world| {
            if !world.absent.remove(&kind) {
                world.absent.insert(kind.clone());
            }
            world.missing.clone_from(&world.absent);
        });
        self.kinds.send_modify(|number| *number += 1);
    }

    fn step_streams(&mut self) {
        let count = self.with(|world| world.streams.len());
        for _ in 0..self.random.below(12) {
            if count > 0 {
                let index = self.random.below(count);
                let (world, random) = (self.world.clone(), &mut self.random);
                world.lock().unwrap().step(index, random);
            }
        }
        if count > 0 && self.random.below(20) == 0 {
            let index = self.random.below(count);
            let (world, random) = (self.world.clone(), &mut self.random);
            world.lock().unwrap().disturb(index, random);
        }
    }

    /// Everything that is on its way has arrived.
    async fn arrive(&mut self) {
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
                    let dead = self.dead.contains(&change.key) && version(row) <= known;
                    assert!(!dead || !self.calm, "{} came back from the dead", change.key.uid);
                    assert!(
                        known <= version(row),
                        "{} went back from {known} to {}",
                        change.key.uid,
                        version(row)
                    );
                }
                None => {
                    self.check_replaced(&change.key);
                    assert!(!self.calm || self.may_be_gone(&change.key), "{:?} exists", change.key);
                    // A row that left for another reason may come back from a stream that is behind.
                    if !self.calm {
                        self.seen.remove(&change.key);
                    }
                    let alive = self.with(|world| world.objects.contains_key(&*change.key.uid));
                    if !alive {
                        self.dead.insert(change.key.clone());
                    }
                }
            }
        }
    }

    /// Whether the target does not select or cannot read the object, or did not at some time since the reader
    /// last saw its row. Namespaces have not changed meanwhile.
    fn may_be_gone(&self, gone: &RowKey) -> bool {
        let number = (0..TARGETS).find(|number| target_id(*number) == gone.target);
        let Some(target) = number.and_then(|number| self.targets.get(&number)) else { return true };
        let gvk = target.selection.kinds().into_iter().find(|gvk| *gvk.kind == *gone.kind).cloned();
        // Field selectors are evaluated by the API server.
        let Some(gvk) = gvk.filter(|_| target.selection.field_selectors().next().is_none()) else {
            return true;
        };
        let namespaces = self.collector.namespaces().borrow().clone().unwrap();
        let namespace = namespaces.known.get(&gone.namespace).map(|namespace| &**namespace);
        let yields_row = |object: &Value| {
            let object = parsed(object, &gvk);
            let verdict = target.selection.verdict(&Query::all(gvk.clone()), &object, &namespaces);
            verdict.is_ok() && target.profile.extract(&gvk, &object.raw, namespace).is_ok()
        };
        let seen = self.seen.get(gone).copied().unwrap_or(0);
        let is_own = |object: &Value| object["metadata"]["uid"] == *gone.uid;
        self.with(|world| {
            world.history.iter().filter(|(version, ..)| *version >= seen).any(|(_, _, before, after)| {
                let own = before.as_ref().is_some_and(is_own) || after.as_ref().is_some_and(is_own);
                own && !after.as_ref().is_some_and(yields_row)
            })
        })
    }

    /// A kind that is not served replaces no rows of kinds that the target has left.
    fn check_replaced(&self, gone: &RowKey) {
        let number = (0..TARGETS).find(|number| target_id(*number) == gone.target);
        let Some(target) = number.and_then(|number| self.targets.get(&number)) else { return };
        let kinds: Vec<String> = target.selection.kinds().into_iter().map(|gvk| gvk.kind.clone()).collect();
        if !kinds.contains(&gone.kind.to_string()) {
            let absent = self.with(|world| kinds.iter().find(|kind| world.absent.contains(*kind)).cloned());
            assert_eq!(absent, None, "{gone:?} was replaced by a kind that does not exist");
        }
    }

    /// Lets every stream send everything that it has.
    async fn flow(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let (world, random) = (self.world.clone(), &mut self.random);
            let moved = {
                let mut world = world.lock().unwrap();
                let count = world.streams.len();
                (0..count).filter(|index| world.step(*index, random)).count()
            };
            self.arrive().await;
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
    }

    /// Nothing changes any more, and all streams have sent everything.
    async fn rest(&mut self) {
        for _ in 0..12 {
            self.flow().await;
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
    async fn oracle(&self) -> (BTreeSet<(String, String, String)>, BTreeSet<(String, String)>) {
        let world = self.with(|world| World {
            version: world.version,
            objects: world.objects.clone(),
            denied: world.denied.clone(),
            ..World::default()
        });
        let world = Arc::new(Mutex::new(world));
        let source = Script { world: world.clone(), kinds: watch::Sender::default() };
        let (writer, rows) = store();
        let settings = Settings { follow: false, ..Settings::default() };
        let mut collector = Collector::start(Arc::new(source), writer, settings, Tasks::default(), |_| {});
        let targets: Vec<Arc<Target>> = self.targets.values().cloned().collect();
        collector.set_targets(&targets, &BTreeSet::new());
        for _ in 0..200 {
            {
                let mut world = world.lock().unwrap();
                let count = world.streams.len();
                (0..count).for_each(|index| while world.step(index, &mut Random(1)) {});
            }
            time::sleep(Duration::from_millis(1)).await;
        }
        rows.settled().await;
        (Self::contents(&rows, &self.targets), Self::failures(&rows, &self.targets))
    }
}

async fn run(seed: u64) {
    let mut lab = Lab::new(seed);
    lab.calm = seed.is_multiple_of(2);
    lab.change_target();
    if lab.calm {
        (0..12).for_each(|_| lab.change_namespace());
        lab.rest().await;
    }
    for _ in 0..120 {
        match lab.random.below(20) {
            0..8 => lab.change_object(),
            8..10 if !lab.calm => lab.change_namespace(),
            10 => {
                lab.dead.clear();
                lab.change_target();
            }
            11 if !lab.calm && lab.random.below(3) == 0 => lab.change_permissions(),
            12 if !lab.calm && lab.random.below(3) == 0 => lab.change_kinds(),
            _ => lab.step_streams(),
        }
        lab.arrive().await;
    }
    // What may not be listed is frozen, so that a fresh list knows less.
    lab.with(|world| {
        world.denied.clear();
        world.missing.clear();
        world.absent.clear();
    });
    lab.kinds.send_modify(|number| *number += 1);
    lab.rest().await;
    let (expected, expected_failures) = lab.oracle().await;
    let found = Lab::contents(&lab.rows, &lab.targets);
    let difference: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(difference.is_empty(), "seed {seed}: {difference:?}");
    let found = Lab::failures(&lab.rows, &lab.targets);
    let difference: Vec<_> = found.symmetric_difference(&expected_failures).collect();
    assert!(difference.is_empty(), "seed {seed}: failures {difference:?}");
    // Nothing remains of targets that are gone.
    lab.targets.clear();
    lab.set_targets();
    lab.changes = lab.rows.changes(&[]);
    lab.arrive().await;
    assert_eq!(lab.rows.known_targets(), BTreeSet::new(), "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn w11_rows_and_failures_end_up_as_a_fresh_list_has_them() {
    let seeds = match std::env::var("KOLLECT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=250).map(|number| number * 1_299_709).collect(),
    };
    for seed in seeds {
        run(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_go_because_of_specs_only_if_specs_have_changed() {
    for seed in (1..=60).map(|number| number * 1_299_721) {
        let mut lab = Lab::new(seed);
        (0..6).for_each(|_| lab.change_target());
        lab.same_specs = true;
        for _ in 0..120 {
            match lab.random.below(20) {
                0..8 => lab.change_object(),
                8..11 => lab.change_namespace(),
                11 if lab.random.below(3) == 0 => lab.change_permissions(),
                12 if lab.random.below(3) == 0 => lab.change_kinds(),
                13 if lab.random.below(6) == 0 => {
                    // A restarted task has no state, and reads everything once more.
                    lab.with(|world| world.resolve_bugs.insert("Pod".into()));
                    lab.kinds.send_modify(|number| *number += 1);
                }
                _ => lab.step_streams(),
            }
            lab.arrive().await;
        }
        lab.rest().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_selection_and_a_removed_target_are_causes_of_their_own() {
    let mut lab = lab_with_pods(3).await;
    let mut changes = lab.rows.changes(&[target_id(0)]);
    let mut causes = async |lab: &mut Lab| {
        lab.flow().await;
        let gone = changes.take().into_iter().filter(|change| change.after.is_none());
        gone.map(|change| (change.key.uid.to_string(), change.removal.unwrap())).collect::<Vec<_>>()
    };
    let one = |uid: &str, cause| vec![(uid.to_owned(), cause)];
    lab.with(|world| world.delete("u0"));
    assert_eq!(causes(&mut lab).await, one("u0", RemovalCause::ObjectGone));
    let profile = lab.targets[&0].profile.clone();
    lab.targets.insert(0, target(0, &json!({ "names": ["p2"] }), &profile));
    lab.set_targets();
    assert_eq!(causes(&mut lab).await, one("u1", RemovalCause::SpecChanged));
    // The definition is the same now: what it no longer selects has changed itself.
    let renamed = json!({ "metadata": { "name": "p9", "namespace": "a" }, "spec": { "image": "i" } });
    lab.with(|world| world.put("Pod", "u2", renamed));
    assert_eq!(causes(&mut lab).await, one("u2", RemovalCause::ObjectGone));
    let pod = json!({ "metadata": { "name": "p2", "namespace": "a" }, "spec": { "image": "i" } });
    lab.with(|world| world.put("Pod", "u3", pod));
    assert_eq!(causes(&mut lab).await, []);
    lab.targets.clear();
    lab.set_targets();
    assert_eq!(causes(&mut lab).await, one("u3", RemovalCause::SpecChanged));
}

fn everything() -> Arc<Target> {
    let version = json!({ "name": "version", "path": "$.metadata.resourceVersion", "type": "string" });
    target(0, &json!({}), &profile(&json!([version, { "name": "image", "path": "$.spec.image" }])))
}

/// One namespace with some pods, and a target that wants them all.
async fn lab_with_pods(pods: usize) -> Lab {
    let mut lab = Lab::new(1);
    lab.with(|world| world.put("Namespace", "ns-a", json!({ "metadata": { "name": "a" } })));
    for number in 0..pods {
        let pod = json!({ "metadata": { "name": format!("p{number}"), "namespace": "a" }, "spec": { "image": "i" } });
        lab.with(|world| world.put("Pod", &format!("u{number}"), pod));
    }
    lab.targets.insert(0, everything());
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), pods);
    lab
}

fn watches(lab: &Lab) -> usize {
    lab.with(|world| {
        let open = |stream: &&Stream| !stream.events.is_closed() && stream.query.gvk.kind == "Pod";
        world.streams.iter().filter(open).count()
    })
}

#[tokio::test(start_paused = true)]
async fn law_1_targets_of_a_kind_share_one_watch_and_the_last_one_ends_it() {
    let mut lab = lab_with_pods(2).await;
    assert_eq!(watches(&lab), 1);
    lab.targets.insert(1, target(1, &json!({ "names": ["p1"] }), &lab.targets[&0].profile.clone()));
    lab.set_targets();
    lab.flow().await;
    assert_eq!(watches(&lab), 1, "the list for the new target has replaced the old watch");
    assert_eq!(lab.rows.count(&target_id(1)), 1);
    let opened = lab.with(|world| world.opened);
    lab.targets.remove(&1);
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(1)), 0);
    assert_eq!(lab.with(|world| world.opened), opened, "nothing is listed again for those that stay");
    lab.targets.clear();
    lab.set_targets();
    lab.flow().await;
    assert_eq!(watches(&lab), 0);
    assert_eq!(lab.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_target_does_not_disturb_the_others() {
    let mut lab = lab_with_pods(3).await;
    lab.targets.insert(1, target(1, &json!({}), &lab.targets[&0].profile.clone()));
    lab.set_targets();
    time::sleep(Duration::from_millis(5)).await;
    // The new list stands still, and the old watch goes on.
    lab.with(|world| world.delete("u0"));
    let old =
        lab.with(|world| world.streams.iter().position(|stream| stream.query.gvk.kind == "Pod").unwrap());
    let (world, random) = (lab.world.clone(), &mut lab.random);
    while world.lock().unwrap().step(old, random) {}
    lab.arrive().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2);
    assert!(
        lab.rows.snapshot(&[target_id(1)], Visibility::Everything).is_none(),
        "nothing was listed for it yet"
    );
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(1)), 2);
}

#[tokio::test(start_paused = true)]
async fn targets_with_one_profile_share_the_attributes() {
    let mut lab = lab_with_pods(1).await;
    lab.targets.insert(1, target(1, &json!({}), &lab.targets[&0].profile.clone()));
    lab.set_targets();
    lab.flow().await;
    // The list for the new target skips rows that are there; the next change makes both.
    let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "new" } });
    lab.with(|world| world.put("Pod", "u0", pod));
    lab.flow().await;
    let snapshot = lab.rows.snapshot(&[target_id(0), target_id(1)], Visibility::Everything).unwrap();
    let bytes: Vec<_> = snapshot.rows.values().map(|row| row.attributes.clone()).collect();
    assert_eq!(bytes.len(), 2);
    assert!(Arc::ptr_eq(&bytes[0], &bytes[1]));
}

#[tokio::test(start_paused = true)]
async fn law_5_a_revoked_permission_freezes_rows_and_a_granted_one_thaws_them() {
    let mut lab = lab_with_pods(2).await;
    let places = [("Pod".to_owned(), None), ("Pod".to_owned(), Some("a".to_owned()))];
    lab.with(|world| world.denied.extend(places.clone()));
    lab.flow().await;
    lab.with(|world| world.delete("u0"));
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2, "no event reported the deletion");
    let snapshot = lab.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let unknown = RowKey { uid: "u9".into(), ..snapshot.rows.keys().next().unwrap().clone() };
    assert!(!snapshot.knows_gone(&unknown), "what is absent may exist");
    let blind = |lab: &Lab| {
        let coverage = lab.collector.coverage().read();
        coverage.values().filter(|known| matches!(known.state, State::Blind { .. })).count()
    };
    assert_eq!(blind(&lab), 1);
    lab.with(|world| world.denied.clear());
    time::sleep(Duration::from_secs(40)).await;
    lab.flow().await;
    assert_eq!((lab.rows.count(&target_id(0)), blind(&lab)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn law_5_namespaces_that_cannot_be_listed_at_the_start_remove_nothing() {
    let mut lab = Lab::new(1);
    // Nothing is wanted yet when the first request fails.
    lab.arrive().await;
    let failed = || Blindness { reason: BlindReason::Failed, message: "no answer".into() };
    lab.with(|world| {
        let stream = world.streams.iter().find(|stream| stream.query.gvk.kind == "Namespace").unwrap();
        stream.events.unbounded_send(Event::Blind(failed())).unwrap();
    });
    lab.arrive().await;
    assert!(lab.collector.namespaces().borrow().as_ref().is_some_and(|known| known.known.is_empty()));
    let profile = everything().profile.clone();
    lab.targets.insert(0, target(0, &json!({ "includedNamespaces": ["a"] }), &profile));
    lab.set_targets();
    lab.arrive().await;
    let published = lab.collector.namespaces().borrow().clone().unwrap();
    assert!(published.known.contains_key("a") && !published.complete, "what the target names is looked at");
    let snapshot = lab.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything);
    let (group, kind, uid) = ("".into(), "Pod".into(), "u0".into());
    let held = RowKey { target: target_id(0), group, kind, namespace: "a".into(), uid };
    assert!(!snapshot.knows_gone(&held), "what a sink holds may exist");
}

#[tokio::test(start_paused = true)]
async fn law_9_what_is_beyond_the_reach_stays_as_it_was_until_it_is_within_again() {
    let mut lab = lab_with_pods(2).await;
    let pod = |namespace: &str, image: &str| json!({ "metadata": { "name": "p", "namespace": namespace }, "spec": { "image": image } });
    lab.with(|world| {
        world.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
        world.put("Pod", "b0", pod("b", "old"));
        world.put("Pod", "b1", pod("b", "old"));
        world.put("Node", "n0", json!({ "metadata": { "name": "n" }, "spec": { "image": "old" } }));
    });
    let profile = lab.targets[&0].profile.clone();
    let kinds = json!({ "resourceRules": [
        { "gvk": { "version": "v1", "kind": "Pod" } }, { "gvk": { "version": "v1", "kind": "Node" } },
    ] });
    // Another target that sees everything: one watch serves both.
    lab.targets.insert(0, target(0, &kinds, &profile));
    lab.targets.insert(1, target(1, &kinds, &profile));
    lab.set_targets();
    lab.flow().await;
    let images = |lab: &Lab, uid: &str| {
        let snapshot = lab.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
        let row =
            snapshot.rows.iter().find(|(key, _)| &*key.uid == uid).map(|(_, row)| row.attributes.to_string());
        row.map(|attributes| attributes.contains("new"))
    };
    assert_eq!(lab.rows.count(&target_id(0)), 5);
    let reach = Bounds {
        namespaces: Some([Arc::from("a")].into()),
        cluster_scoped_by_name: true,
        ..Bounds::default()
    };
    lab.targets.insert(0, bounded_target(0, &kinds, &profile, &reach));
    lab.set_targets();
    lab.flow().await;
    lab.with(|world| {
        world.put("Pod", "u0", pod("a", "new"));
        world.put("Pod", "b0", pod("b", "new"));
        world.put("Node", "n0", json!({ "metadata": { "name": "n" }, "spec": { "image": "new" } }));
        world.put("Pod", "b2", pod("b", "new"));
        world.delete("b1");
    });
    lab.flow().await;
    assert_eq!(images(&lab, "u0"), Some(true), "its own namespace is collected");
    let others = ["b0", "b1", "b2", "n0"].map(|uid| images(&lab, uid));
    assert_eq!(others, [Some(false), Some(false), None, Some(false)], "what is beyond stays as it was");
    assert_eq!(lab.rows.count(&target_id(1)), 5, "the other target sees all of it");
    let snapshot = lab.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let key = |namespace: &str, kind: &str| RowKey {
        uid: "u9".into(),
        namespace: namespace.into(),
        kind: kind.into(),
        ..snapshot.rows.keys().next().unwrap().clone()
    };
    let gone = [("a", "Pod"), ("b", "Pod"), ("", "Node")].map(|(n, kind)| snapshot.knows_gone(&key(n, kind)));
    assert_eq!(gone, [true, false, false], "also in a sink");

    lab.targets.insert(0, target(0, &kinds, &profile));
    lab.set_targets();
    lab.flow().await;
    let others = ["b0", "b1", "b2", "n0"].map(|uid| images(&lab, uid));
    assert_eq!(others, [Some(true), None, Some(true), Some(true)], "within reach again it goes on");
}

#[tokio::test(start_paused = true)]
async fn law_5_a_kind_that_is_not_served_freezes_and_comes_back() {
    let mut lab = lab_with_pods(2).await;
    lab.with(|world| world.missing.extend(["Pod".into()]));
    lab.kinds.send_modify(|number| *number += 1);
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2);
    lab.with(|world| {
        world.missing.clear();
        world.delete("u1");
    });
    lab.kinds.send_modify(|number| *number += 1);
    lab.arrive().await;
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_remembered_with_its_reason() {
    let mut lab = lab_with_pods(1).await;
    lab.with(|world| {
        let index = world.streams.iter().position(|stream| stream.query.gvk.kind == "Pod").unwrap();
        world.disturb(index, &mut Random(2));
    });
    lab.flow().await;
    let coverage = lab.collector.coverage().read();
    let pods = coverage.iter().find(|(place, _)| place.gvk.kind == "Pod").unwrap().1;
    assert!(matches!(pods.state, State::Synced { .. }));
    assert_eq!(pods.gaps.len(), 1);
    assert_eq!(pods.gaps[0].blindness.message, "cut");
    let reason = pods.gaps[0].blindness.reason;
    assert_eq!(lab.collector.coverage().restarts(), [(reason, 1)].into());
    let mut visited = 0;
    lab.collector.coverage().visit(|_, _| visited += 1);
    assert_eq!(visited, coverage.len());
}

#[tokio::test(start_paused = true)]
async fn a_missed_event_is_found_repaired_and_counted() {
    let mut lab = lab_with_pods(3).await;
    lab.with(|world| {
        // The watch does not send what happens next.
        world.silent = true;
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "new" } });
        world.put("Pod", "u0", pod);
        world.delete("u1");
        for stream in world.streams.iter_mut().filter(|stream| stream.query.gvk.kind == "Pod") {
            if let Phase::Watching { cursor, .. } = &mut stream.phase {
                *cursor += 2;
            }
        }
    });
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 3);
    for _ in 0..(13 * 60) {
        time::sleep(Duration::from_mins(1)).await;
        lab.flow().await;
    }
    assert_eq!(lab.rows.count(&target_id(0)), 2);
    let coverage = lab.collector.coverage().read();
    let pods = coverage.iter().find(|(place, _)| place.gvk.kind == "Pod").unwrap().1;
    assert_eq!(pods.repaired, 2);
    assert_eq!(watches(&lab), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_was_restored_from_a_backup_is_read_again() {
    let mut lab = lab_with_pods(3).await;
    lab.seen.clear();
    let mut changes = lab.rows.changes(&[target_id(0)]);
    lab.with(|world| {
        // Versions begin again, and one object is another one.
        world.version = 0;
        world.history.clear();
        world.delete("u1");
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "old" } });
        world.put("Pod", "u0", pod);
        for stream in &mut world.streams {
            stream.phase = Phase::Asked;
        }
    });
    // No row of an existing object is missing in between.
    let mut causes = BTreeMap::new();
    for _ in 0..40 {
        for index in 0..lab.with(|world| world.streams.len()) {
            let (world, random) = (lab.world.clone(), &mut lab.random);
            world.lock().unwrap().step(index, random);
        }
        time::sleep(Duration::from_millis(1)).await;
        let gone = changes.take().into_iter().filter(|change| change.after.is_none());
        causes.extend(gone.map(|change| (change.key.uid.to_string(), change.removal)));
    }
    assert_eq!(causes, [("u1".to_owned(), Some(RemovalCause::ObjectGone))].into());
    let rows = Lab::contents(&lab.rows, &lab.targets);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().next().unwrap().2.contains("old"));
}

#[tokio::test(start_paused = true)]
async fn w12_a_target_that_changes_its_kind_takes_its_old_rows_along() {
    let mut lab = lab_with_pods(2).await;
    lab.with(|world| world.put("Node", "n1", json!({ "metadata": { "name": "n1" }, "spec": {} })));
    let nodes = json!({ "resourceRules": [{ "gvk": { "version": "v1", "kind": "Node" } }] });
    lab.targets.insert(0, target(0, &nodes, &lab.targets[&0].profile.clone()));
    lab.set_targets();
    lab.arrive().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2, "the old rows stay until the new ones are there");
    lab.flow().await;
    let rows = Lab::contents(&lab.rows, &lab.targets);
    assert_eq!(rows.into_iter().map(|(_, uid, _)| uid).collect::<Vec<_>>(), ["n1"]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_target_keeps_its_rows_until_it_is_deleted() {
    let mut lab = lab_with_pods(2).await;
    let frozen = BTreeSet::from([target_id(0)]);
    lab.collector.set_targets(&[], &frozen);
    lab.with(|world| world.delete("u0"));
    lab.flow().await;
    assert_eq!((lab.rows.count(&target_id(0)), watches(&lab)), (2, 0));
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 1);
    lab.collector.set_targets(&[], &frozen);
    lab.collector.set_targets(&[], &BTreeSet::new());
    assert_eq!(lab.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_went_while_its_target_was_frozen_leaves_no_rows() {
    let mut lab = lab_with_pods(1).await;
    lab.with(|world| {
        world.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
        world.put(
            "Pod",
            "ub",
            json!({ "metadata": { "name": "p", "namespace": "b" }, "spec": { "image": "i" } }),
        );
    });
    let named = target(0, &json!({ "includedNamespaces": ["a", "b"] }), &lab.targets[&0].profile.clone());
    lab.targets.insert(0, named);
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2);
    lab.collector.set_targets(&[], &BTreeSet::from([target_id(0)]));
    lab.with(|world| {
        world.delete("ub");
        world.delete("ns-b");
    });
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 2, "rows of a frozen target stay");
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_stands_still_counts_as_blind() {
    let mut lab = Lab::new(1);
    lab.targets.insert(0, everything());
    lab.set_targets();
    lab.arrive().await;
    // Namespaces answer, pods do not.
    let (world, random) = (lab.world.clone(), &mut lab.random);
    while world.lock().unwrap().step(0, random) {}
    lab.arrive().await;
    // The list of pods begins, and that is all.
    let (world, random) = (lab.world.clone(), &mut lab.random);
    assert!(world.lock().unwrap().step(1, random));
    lab.arrive().await;
    assert!(lab.rows.snapshot(&[target_id(0)], Visibility::Everything).is_none());
    time::sleep(Duration::from_secs(70)).await;
    assert!(
        lab.rows.snapshot(&[target_id(0)], Visibility::Everything).is_some(),
        "others need not wait for it"
    );
}

#[tokio::test(start_paused = true)]
async fn w53_changes_are_told_at_once_and_never_lost() {
    let mut lab = lab_with_pods(1).await;
    let mut changes = lab.rows.changes(&[target_id(0)]);
    for number in 0..50 {
        let image = format!("i{number}");
        let pod = json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": image } });
        lab.with(|world| world.put("Pod", "u0", pod));
        lab.flow().await;
    }
    let told = changes.next().await;
    assert_eq!(told.len(), 1, "one row, told once");
    assert!(told[0].before.as_ref().unwrap().attributes.get().contains("\"i\""));
    assert!(told[0].after.as_ref().unwrap().attributes.get().contains("i49"));
    assert!(changes.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn w52_what_is_not_selected_wakes_no_reader() {
    let mut lab = lab_with_pods(2).await;
    let mine = target(0, &json!({ "names": ["p0"] }), &lab.targets[&0].profile.clone());
    lab.targets.insert(0, mine);
    lab.set_targets();
    lab.flow().await;
    let revision = lab.rows.revision(&[target_id(0)]);
    let mut changes = lab.rows.changes(&[target_id(0)]);
    let pod = json!({ "metadata": { "name": "p1", "namespace": "a" }, "spec": { "image": "new" } });
    lab.with(|world| world.put("Pod", "u1", pod));
    lab.with(|world| world.delete("u1"));
    lab.flow().await;
    assert_eq!(lab.rows.revision(&[target_id(0)]), revision);
    assert!(changes.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn law_5_what_is_absent_while_the_connection_is_gone_may_exist() {
    let mut lab = lab_with_pods(1).await;
    let absent = |lab: &Lab| {
        let snapshot = lab.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
        let key = snapshot.rows.keys().next().unwrap().clone();
        snapshot.knows_gone(&RowKey { uid: "u9".into(), ..key })
    };
    assert!(absent(&lab), "everything is seen");
    let blindness = Blindness { reason: BlindReason::Failed, message: "cut".into() };
    let send = |lab: &Lab, event: Event| {
        lab.with(|world| {
            let stream = world.streams.iter().find(|stream| stream.query.gvk.kind == "Pod").unwrap();
            stream.events.unbounded_send(event).unwrap();
        });
    };
    send(&lab, Event::Blind(blindness));
    lab.arrive().await;
    assert!(!absent(&lab));
    send(&lab, Event::Resumed);
    lab.arrive().await;
    assert!(absent(&lab), "nothing was missed");
}

#[tokio::test(start_paused = true)]
async fn law_4_what_no_attribute_shows_is_no_change() {
    let mut lab = lab_with_pods(1).await;
    let image = profile(&json!([{ "name": "image", "path": "$.spec.image" }]));
    lab.targets.insert(0, target(0, &json!({}), &image));
    lab.set_targets();
    // These rows have no version to check.
    lab.changes = lab.rows.changes(&[]);
    lab.flow().await;
    let revision = lab.rows.revision(&[target_id(0)]);
    let pod = |status: &str| json!({ "metadata": { "name": "p0", "namespace": "a" }, "spec": { "image": "i" }, "status": status });
    lab.with(|world| world.put("Pod", "u0", pod("Running")));
    lab.flow().await;
    assert_eq!(lab.rows.revision(&[target_id(0)]), revision);
}

fn labelled(app: &str, image: &str) -> Value {
    json!({ "metadata": { "name": "p", "namespace": "a", "labels": { "app": app } }, "spec": { "image": image } })
}

fn step(lab: &mut Lab, stream: usize) -> bool {
    let (world, random) = (lab.world.clone(), &mut lab.random);
    world.lock().unwrap().step(stream, random)
}

/// One pod, and two targets that both want it now. A new feed that is narrower has begun its list, and the old
/// one serves only the second target any more. Returns the streams of both.
async fn lab_with_narrower_feed() -> (Lab, usize, usize) {
    let mut lab = lab_with_pods(0).await;
    lab.with(|world| world.put("Pod", "u", labelled("x", "i")));
    let some = json!({ "labelSelector": { "matchLabels": { "app": "x" } } });
    let profile = lab.targets[&0].profile.clone();
    lab.targets.insert(1, target(1, &some, &profile));
    lab.set_targets();
    lab.flow().await;
    lab.targets.insert(0, target(0, &some, &profile));
    lab.set_targets();
    lab.arrive().await;
    let streams: Vec<usize> = lab.with(|world| {
        let open = |stream: &Stream| !stream.events.is_closed() && stream.query.gvk.kind == "Pod";
        (0..world.streams.len()).filter(|index| open(&world.streams[*index])).collect()
    });
    let [old, new] = streams[..] else { panic!("{streams:?}") };
    assert!(step(&mut lab, new));
    lab.arrive().await;
    (lab, old, new)
}

#[tokio::test(start_paused = true)]
async fn law_3_an_object_that_leaves_a_query_goes_although_another_feed_was_faster() {
    let (mut lab, old, new) = lab_with_narrower_feed().await;
    while lab.with(
        |world| matches!(&world.streams[new].phase, Phase::Listing { objects, .. } if !objects.is_empty()),
    ) {
        step(&mut lab, new);
    }
    lab.arrive().await;
    assert_eq!([0, 1].map(|number| lab.rows.count(&target_id(number))), [1, 1]);
    lab.with(|world| world.put("Pod", "u", labelled("y", "i")));
    lab.with(|world| world.delete("u"));
    while step(&mut lab, old) {}
    lab.flow().await;
    assert_eq!([0, 1].map(|number| lab.rows.count(&target_id(number))), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn law_3_a_row_stays_although_another_feed_has_told_others_of_a_newer_version() {
    let (mut lab, old, new) = lab_with_narrower_feed().await;
    let mut changes = lab.rows.changes(&[target_id(0)]);
    lab.with(|world| world.put("Pod", "u", labelled("x", "new")));
    while step(&mut lab, old) {}
    lab.arrive().await;
    // The list of the new feed shows the object as it was.
    while lab.with(|world| matches!(world.streams[new].phase, Phase::Listing { .. })) {
        step(&mut lab, new);
    }
    lab.arrive().await;
    assert!(changes.take().iter().all(|change| change.after.is_some()), "a row that exists is never missing");
    lab.flow().await;
    assert!(changes.take()[0].after.as_ref().unwrap().attributes.get().contains("new"));
}

#[tokio::test(start_paused = true)]
async fn law_3_a_namespace_that_is_listed_once_more_brings_nothing_back() {
    let mut lab = lab_with_pods(2).await;
    let of_pods = |lab: &Lab, follow: bool| {
        lab.with(|world| {
            let wanted = |stream: &Stream| {
                stream.query.gvk.kind == "Pod" && stream.query.follow == follow && !stream.events.is_closed()
            };
            world.streams.iter().position(wanted).unwrap()
        })
    };
    let watch = of_pods(&lab, true);
    let labels = json!({ "kollect.dev/watch": "enabled" });
    lab.with(|world| {
        world.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
    });
    while step(&mut lab, 0) {}
    lab.arrive().await;
    // The list of the namespace begins before the object is deleted, and is slow.
    let slow = of_pods(&lab, false);
    assert!(step(&mut lab, slow));
    lab.with(|world| {
        world.delete("u0");
        world.streams[watch].phase = Phase::Asked;
    });
    while step(&mut lab, watch) {}
    lab.arrive().await;
    assert_eq!(lab.rows.count(&target_id(0)), 1);
    lab.rest().await;
    assert_eq!(lab.rows.count(&target_id(0)), 1);
}

/// Kinds that are blind, with the message.
fn blind_kinds(lab: &Lab) -> Vec<(String, String)> {
    let coverage = lab.collector.coverage().read();
    let blind = coverage.into_iter().filter_map(|(place, known)| match known.state {
        State::Blind { blindness, .. } => Some((place.gvk.kind, blindness.message)),
        _ => None,
    });
    blind.collect()
}

fn restarted_watches(lab: &Lab) -> u64 {
    lab.tasks.restarts().find(|(kind, _)| *kind == TaskKind::Watch).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn law_16_a_watch_that_panics_is_shown_and_restarted() {
    let mut lab = lab_with_pods(2).await;
    lab.with(|world| {
        world.watch_bugs.insert("Pod".into());
        world.delete("u0");
    });
    lab.flow().await;
    let blind = blind_kinds(&lab);
    assert!(
        matches!(&*blind, [(kind, message)] if kind == "Pod" && message.contains("panicked")),
        "{blind:?}"
    );
    assert_eq!((lab.rows.count(&target_id(0)), restarted_watches(&lab)), (2, 1), "rows are frozen");
    time::sleep(Duration::from_secs(2)).await;
    lab.flow().await;
    assert_eq!((lab.rows.count(&target_id(0)), watches(&lab)), (1, 1));
    assert!(blind_kinds(&lab).is_empty());
}

#[tokio::test(start_paused = true)]
async fn law_16_the_task_of_a_kind_that_panics_is_shown_and_restarted() {
    let mut lab = lab_with_pods(2).await;
    lab.with(|world| {
        world.resolve_bugs.insert("Pod".into());
        world.delete("u0");
    });
    lab.kinds.send_modify(|number| *number += 1);
    lab.arrive().await;
    let blind = blind_kinds(&lab);
    assert!(
        matches!(&*blind, [(kind, message)] if kind == "Pod" && message.contains("panicked")),
        "{blind:?}"
    );
    assert_eq!((lab.rows.count(&target_id(0)), restarted_watches(&lab)), (2, 1));
    let snapshot = lab.rows.snapshot(&[target_id(0)], Visibility::Everything).unwrap();
    let unknown = RowKey { uid: "u9".into(), ..snapshot.rows.keys().next().unwrap().clone() };
    assert!(!snapshot.knows_gone(&unknown), "what is absent may exist");
    time::sleep(Duration::from_secs(2)).await;
    lab.flow().await;
    assert_eq!((lab.rows.count(&target_id(0)), watches(&lab)), (1, 1));
    assert!(blind_kinds(&lab).is_empty());
}

#[tokio::test(start_paused = true)]
async fn law_16_the_watch_of_namespaces_that_panics_is_shown_and_restarted() {
    let mut lab = lab_with_pods(1).await;
    lab.with(|world| {
        world.watch_bugs.insert("Namespace".into());
        world.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } }));
    });
    lab.flow().await;
    let blind = blind_kinds(&lab);
    assert!(matches!(&*blind, [(kind, _)] if kind == "Namespace"), "{blind:?}");
    let known = |lab: &Lab| lab.collector.namespaces().borrow().as_ref().unwrap().known.len();
    assert_eq!((known(&lab), restarted_watches(&lab)), (1, 1));
    time::sleep(Duration::from_secs(2)).await;
    lab.flow().await;
    assert_eq!(known(&lab), 2);
    assert!(blind_kinds(&lab).is_empty());
}
