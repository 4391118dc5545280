//! What a reader of destinations may see: every row as it was at some time, and no row that goes back in time.
//!
//! A row depends on an inventory, a sink, a target, a profile and an object, each of which the operator sees through a
//! watch of its own. So a reader may see a row made from any versions of them, as long as none of these versions is
//! older than the one that the row was made from before.

use std::collections::BTreeMap;

use kollect_model::{
    batch::InventoryId,
    row::{RowDigest, RowKey},
};
use serde_json::Value;

use super::{
    api_server::{ApiServer, Resource, kind_of},
    schedule::{COLLECTED, PROFILES, SINKS},
    sink_servers::destination_of,
    truth::{Place, Rows, digest, is_leaving, text},
};

/// All versions of something, oldest first; `None`: it did not exist.
type Versions<T> = Vec<Option<T>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inventory {
    sinks: Vec<String>,
    targets: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    profile: String,
    namespaces: Vec<String>,
    suspended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Profile {
    kind: String,
    twice: bool,
}

/// The versions of everything in a cluster.
#[derive(Debug, Default)]
struct History {
    inventories: BTreeMap<String, Versions<Inventory>>,
    /// Destinations.
    sinks: BTreeMap<String, Versions<String>>,
    targets: BTreeMap<String, Versions<Target>>,
    profiles: BTreeMap<String, Versions<Profile>>,
    /// Name and size, by UID.
    objects: BTreeMap<String, Versions<(String, i64)>>,
}

fn put<T: PartialEq>(known: &mut BTreeMap<String, Versions<T>>, mut now: BTreeMap<String, T>) {
    for name in now.keys() {
        known.entry(name.clone()).or_insert_with(|| vec![None]);
    }
    for (name, versions) in known {
        let now = now.remove(name);
        if versions.last() != Some(&now) {
            versions.push(now);
        }
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|value| text(value).to_owned()).collect()
}

impl History {
    fn record(&mut self, api: &ApiServer) {
        let named = |plural| {
            let staying = api.objects(plural).into_iter().filter(|object| !is_leaving(object));
            staying.map(|object| (text(&object["metadata"]["name"]).to_owned(), object))
        };
        let inventory = |spec: &Value| Inventory {
            sinks: texts(&spec["databaseSinkRefs"]),
            targets: texts(&spec["targetRefs"]),
        };
        let target = |spec: &Value| Target {
            profile: text(&spec["profileRef"]).to_owned(),
            namespaces: texts(&spec["includedNamespaces"]),
            suspended: spec["suspend"] == true,
        };
        let profile = |spec: &Value| Profile {
            kind: text(&spec["targetGVK"]["kind"]).to_owned(),
            twice: spec["attributes"].as_array().is_some_and(|all| all.len() > 1),
        };
        let path = |spec: &Value| destination_of(text(&spec["sqlite"]["path"])).to_owned();
        put(
            &mut self.inventories,
            named("kollectinventories").map(|(n, o)| (n, inventory(&o["spec"]))).collect(),
        );
        put(&mut self.sinks, named("kollectdatabasesinks").map(|(n, o)| (n, path(&o["spec"]))).collect());
        put(&mut self.targets, named("kollecttargets").map(|(n, o)| (n, target(&o["spec"]))).collect());
        put(&mut self.profiles, named("kollectprofiles").map(|(n, o)| (n, profile(&o["spec"]))).collect());
        let objects = COLLECTED.into_iter().flat_map(|plural| api.objects(plural));
        let object = |object: &Value| {
            let size = object["spec"]["size"].as_i64().unwrap_or(0);
            (text(&object["metadata"]["name"]).to_owned(), size)
        };
        let by_uid = objects.map(|found| (text(&found["metadata"]["uid"]).to_owned(), object(&found)));
        put(&mut self.objects, by_uid.collect());
    }
}

/// Numbers of versions: of the inventory, the sink, the target, both profiles and the object.
type Point = [usize; 6];
const INVENTORY: usize = 0;
const SINK: usize = 1;
const TARGET: usize = 2;
const PROFILE: usize = 3;
const OBJECT: usize = 5;

/// What a row is at a point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Row(RowDigest),
    Absent,
    /// It stays as it is, or it is not there yet: its target is suspended.
    Frozen,
}

/// Everything that one row depends on.
struct Course<'a> {
    destination: &'a str,
    sink: &'static str,
    key: &'a RowKey,
    inventories: &'a Versions<Inventory>,
    sinks: &'a Versions<String>,
    targets: &'a Versions<Target>,
    profiles: [&'a Versions<Profile>; 2],
    objects: &'a Versions<(String, i64)>,
}

impl<'a> Course<'a> {
    fn of(history: &'a History, place: &'a Place, key: &'a RowKey) -> Option<Self> {
        let (destination, inventory) = place;
        let (sink, _) = SINKS.into_iter().find(|(_, all)| all.contains(&destination.as_str()))?;
        Some(Self {
            destination,
            sink,
            key,
            inventories: history.inventories.get(&inventory.name)?,
            sinks: history.sinks.get(sink)?,
            targets: history.targets.get(&*key.target.name)?,
            profiles: [history.profiles.get(PROFILES[0])?, history.profiles.get(PROFILES[1])?],
            objects: history.objects.get(&*key.uid)?,
        })
    }

    fn versions(&self) -> Point {
        let [p1, p2] = self.profiles;
        [self.inventories.len(), self.sinks.len(), self.targets.len(), p1.len(), p2.len(), self.objects.len()]
    }

    fn inventory_wants(&self, version: usize) -> bool {
        self.inventories[version].as_ref().is_some_and(|inventory| {
            let all = inventory.targets.is_empty();
            inventory.sinks.iter().any(|name| name == self.sink)
                && (all || inventory.targets.iter().any(|name| **name == *self.key.target.name))
        })
    }

    fn leads_here(&self, version: usize) -> bool {
        self.sinks[version].as_deref() == Some(self.destination)
    }

    /// The profile that a version of the target uses, if it selects the object.
    fn profile_of(&self, version: usize) -> Option<usize> {
        let target = self.targets[version].as_ref()?;
        let here = target.namespaces.iter().any(|name| **name == *self.key.namespace);
        here.then(|| PROFILES.iter().position(|name| *name == target.profile)).flatten()
    }

    fn at(&self, point: Point) -> Is {
        if !self.inventory_wants(point[INVENTORY]) || !self.leads_here(point[SINK]) {
            return Is::Absent;
        }
        if self.targets[point[TARGET]].as_ref().is_some_and(|target| target.suspended) {
            return Is::Frozen;
        }
        let profile = self.profile_of(point[TARGET]);
        let version = profile.and_then(|number| self.profiles[number][point[PROFILE + number]].as_ref());
        if version.is_some_and(|version| collected(&version.kind).is_none()) {
            return Is::Frozen;
        }
        let found = profile.and_then(|number| self.row(point, number));
        found.map_or(Is::Absent, Is::Row)
    }

    fn row(&self, point: Point, profile: usize) -> Option<RowDigest> {
        let version = self.profiles[profile][point[PROFILE + profile]].as_ref()?;
        let (name, size) = self.objects[point[OBJECT]].as_ref()?;
        let kind = collected(&version.kind)?;
        (*kind.kind == *self.key.kind).then(|| digest(self.key.clone(), name, *size, version.twice))
    }

    /// The first points, not before `from`, where the row is `seen`.
    fn first_seen(&self, from: Point, seen: Option<RowDigest>) -> Vec<Point> {
        match seen {
            Some(seen) => {
                [0, 1].into_iter().filter_map(|profile| self.first_row(from, profile, seen)).collect()
            }
            None => self.first_absent(from),
        }
    }

    fn first_row(&self, from: Point, profile: usize, seen: RowDigest) -> Option<Point> {
        let ends = self.versions();
        let first = |dimension: usize, holds: &dyn Fn(usize) -> bool| {
            (from[dimension]..ends[dimension]).find(|&version| holds(version))
        };
        let mut point = from;
        point[INVENTORY] = first(INVENTORY, &|version| self.inventory_wants(version))?;
        point[SINK] = first(SINK, &|version| self.leads_here(version))?;
        // A suspended target keeps the rows that it had.
        point[TARGET] = first(TARGET, &|version| self.profile_of(version) == Some(profile))?;
        let (of_profile, of_object) = (PROFILE + profile, OBJECT);
        (from[of_profile]..ends[of_profile])
            .flat_map(|p| (from[of_object]..ends[of_object]).map(move |o| (p, o)))
            .map(|(p, o)| {
                (point[of_profile], point[of_object]) = (p, o);
                point
            })
            .find(|point| self.row(*point, profile) == Some(seen))
    }

    fn first_absent(&self, from: Point) -> Vec<Point> {
        let ends = self.versions();
        let awake = (from[TARGET]..ends[TARGET])
            .find(|&version| !self.targets[version].as_ref().is_some_and(|target| target.suspended));
        let mut found = Vec::new();
        for start in [Some(from[TARGET]), awake].into_iter().flatten() {
            let mut start_point = from;
            start_point[TARGET] = start;
            for dimension in 0..ends.len() {
                let mut point = start_point;
                while point[dimension] < ends[dimension] && self.at(point) != Is::Absent {
                    point[dimension] += 1;
                }
                if point[dimension] < ends[dimension] {
                    found.push(point);
                }
            }
        }
        found
    }
}

/// The resource of a kind, if there can be objects of it.
fn collected(kind: &str) -> Option<&'static Resource> {
    COLLECTED.into_iter().filter_map(kind_of).find(|resource| resource.kind == kind)
}

/// Only points that are not after another one.
fn earliest(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_unstable();
    points.dedup();
    let after = |a: &Point, b: &Point| a != b && a.iter().zip(b).all(|(a, b)| a >= b);
    let all = points.clone();
    points.retain(|point| !all.iter().any(|other| after(point, other)));
    points
}

/// Sees everything that destinations hold.
#[derive(Default)]
pub(super) struct Reader {
    /// By name of the cluster.
    clusters: BTreeMap<String, History>,
    /// What destinations held when they were last seen.
    held: BTreeMap<Place, Rows>,
    /// The first points at which rows may have been made as they were seen last.
    seen: BTreeMap<(Place, RowKey), Vec<Point>>,
}

impl Reader {
    /// Something in a cluster has changed.
    pub(super) fn record(&mut self, cluster: &str, api: &ApiServer) {
        self.clusters.entry(cluster.into()).or_default().record(api);
    }

    /// A destination was restored or edited by others: it holds these rows now, and readers may see everything again.
    pub(super) fn begin_again(&mut self, destination: &str, rows: &BTreeMap<InventoryId, Rows>) {
        self.held.retain(|place, _| place.0 != destination);
        self.seen.retain(|(place, _), _| place.0 != destination);
        for (inventory, rows) in rows {
            self.held.insert((destination.to_owned(), inventory.clone()), rows.clone());
        }
    }

    /// Looks at an inventory in a destination. The error says what cannot have been.
    pub(super) fn see(&mut self, place: &Place, held: &Rows) -> Result<(), String> {
        let before = self.held.insert(place.clone(), held.clone()).unwrap_or_default();
        let removed = before.keys().filter(|key| !held.contains_key(key)).map(|key| (key, None));
        let shown = held.iter().filter(|(key, digest)| before.get(key) != Some(digest));
        let changes: Vec<_> = shown.map(|(key, digest)| (key, Some(*digest))).chain(removed).collect();
        for (key, now) in changes {
            let history = self.clusters.get(&place.1.cluster);
            let course = history.and_then(|history| Course::of(history, place, key));
            let Some(course) = course else {
                return Err(format!("{place:?} holds a row that never was: {key:?}"));
            };
            let from =
                self.seen.entry((place.clone(), key.clone())).or_insert_with(|| vec![Point::default()]);
            let points = from.iter().flat_map(|from| course.first_seen(*from, now)).collect();
            let points = earliest(points);
            if points.is_empty() {
                let what = if now.is_none() {
                    "lost a row that exists"
                } else {
                    "shows a row as it never was, or is no more"
                };
                return Err(format!(
                    "{place:?} {what}: {key:?}, seen last at {from:?} of {:?}",
                    course.versions()
                ));
            }
            *from = points;
        }
        Ok(())
    }
}
