//! The possible states of one row: every combination of versions of what it depends on, and which of them come first.

use kollect_model::row::{RowDigest, RowKey};

use super::{
    super::{
        schedule::{PROFILES, SINKS},
        specs::{Inventory, Namespace, Profile, Scope, Sink, Target},
        truth::{Place, row},
    },
    history::{Collected, History, Versions},
};

/// Numbers of versions, in the order of the constants below.
pub(super) type Point = [usize; 7 + SINKS.len()];
const INVENTORY: usize = 0;
const TARGET: usize = 1;
const PROFILE: usize = 2;
const SCOPE: usize = 4;
const NAMESPACE: usize = 5;
const OBJECT: usize = 6;
const SINK: usize = 7;

/// Everything that one row depends on.
pub(super) struct Course<'a> {
    destination: &'a str,
    /// Name of the cluster in the rows.
    cluster: &'a str,
    key: &'a RowKey,
    inventories: &'a Versions<Inventory>,
    sinks: Vec<&'a Versions<Sink>>,
    targets: &'a Versions<Target>,
    profiles: [&'a Versions<Profile>; PROFILES.len()],
    scopes: &'a Versions<Scope>,
    namespaces: &'a Versions<Namespace>,
    objects: &'a Versions<Collected>,
}

impl<'a> Course<'a> {
    /// `None`: such a row never existed.
    pub(super) fn of(history: &'a History, place: &'a Place, key: &'a RowKey) -> Option<Self> {
        let (destination, inventory) = place;
        Some(Self {
            destination,
            cluster: &inventory.cluster,
            key,
            inventories: history.inventories.get(&inventory.name)?,
            sinks: SINKS.iter().map(|(sink, _)| history.sinks.get(*sink)).collect::<Option<_>>()?,
            targets: history.targets.get(&*key.target.name)?,
            profiles: [history.profiles.get(PROFILES[0])?, history.profiles.get(PROFILES[1])?],
            scopes: &history.scopes,
            namespaces: history.namespaces.get(&*key.namespace)?,
            objects: history.objects.get(&*key.uid)?,
        })
    }

    /// The newest versions.
    pub(super) fn last(&self) -> Point {
        let mut point = Point::default();
        point[INVENTORY] = self.inventories.len() - 1;
        point[TARGET] = self.targets.len() - 1;
        point[PROFILE] = self.profiles[0].len() - 1;
        point[PROFILE + 1] = self.profiles[1].len() - 1;
        point[SCOPE] = self.scopes.len() - 1;
        point[NAMESPACE] = self.namespaces.len() - 1;
        point[OBJECT] = self.objects.len() - 1;
        for (number, sink) in self.sinks.iter().enumerate() {
            point[SINK + number] = sink.len() - 1;
        }
        point
    }

    /// Whether a version of the inventory has the target, and whether it names a sink.
    fn has_target(&self, version: usize) -> bool {
        self.inventories[version].as_ref().is_some_and(|i| i.has_target(&self.key.target.name))
    }

    fn names_sink(&self, version: usize, sink: usize) -> bool {
        let names = |inventory: &Inventory| inventory.sinks.iter().any(|name| name == SINKS[sink].0);
        self.inventories[version].as_ref().is_some_and(names)
    }

    fn leads_here(&self, sink: usize, version: usize) -> bool {
        let leads = |sink: &Sink| sink.destination == self.destination && sink.cluster == self.cluster;
        self.sinks[sink][version].as_ref().is_some_and(leads)
    }

    /// The number of the profile that a version of the target uses.
    fn profile_of(&self, version: usize) -> Option<usize> {
        let target = self.targets[version].as_ref()?;
        PROFILES.iter().position(|name| *name == target.profile)
    }

    fn is_awake(&self, version: usize) -> bool {
        self.targets[version].as_ref().is_some_and(|target| !target.suspended)
    }

    fn selects(&self, target: usize, namespace: usize) -> bool {
        let namespace = self.namespaces[namespace];
        self.targets[target].as_ref().is_some_and(|t| t.wants(&self.key.namespace, namespace))
    }

    fn permits(&self, version: usize) -> Option<bool> {
        self.scopes[version].as_ref()?.permits(&self.key.namespace)
    }

    /// The kind that a version of a profile collects.
    fn kind(&self, profile: usize, version: usize) -> Option<&'static str> {
        Some(self.profiles[profile][version].as_ref()?.collects()?.kind)
    }

    fn digest(&self, profile: usize, version: usize, object: usize) -> Option<RowDigest> {
        let twice = self.profiles[profile][version].as_ref()?.twice;
        let Collected { name, size, .. } = self.objects[object].as_ref()?;
        let same_kind = self.kind(profile, version)? == &*self.key.kind;
        same_kind.then(|| row(self.key.clone(), name, *size, twice).digest)
    }

    /// The first version, not before that of `from`, with a property.
    fn first(&self, from: Point, dimension: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
        (from[dimension]..=self.last()[dimension]).find(|&version| holds(version))
    }

    /// The first points, not before `from`, where the row is `seen`.
    pub(super) fn first_seen(&self, from: Point, seen: Option<RowDigest>) -> Vec<Point> {
        match seen {
            Some(seen) => self.first_shown(from, seen),
            None => self.first_absent(from),
        }
    }

    /// Where the row looks like this. What a suspended target has collected before may still be written.
    fn first_shown(&self, from: Point, seen: RowDigest) -> Vec<Point> {
        let mut found = Vec::new();
        let mut base = from;
        let Some(scope) = self.first(from, SCOPE, |v| self.permits(v) == Some(true)) else { return found };
        base[SCOPE] = scope;
        for sink in 0..SINKS.len() {
            let wanted = |v| self.has_target(v) && self.names_sink(v, sink);
            let Some(inventory) = self.first(from, INVENTORY, wanted) else { continue };
            let Some(leads) = self.first(from, SINK + sink, |v| self.leads_here(sink, v)) else { continue };
            (base[INVENTORY], base[SINK + sink]) = (inventory, leads);
            for profile in 0..PROFILES.len() {
                found.extend(self.first_selected(base, profile, |point| {
                    let (of_profile, last) = (PROFILE + profile, self.last());
                    let versions = (point[of_profile]..=last[of_profile])
                        .flat_map(|p| (point[OBJECT]..=last[OBJECT]).map(move |o| (p, o)));
                    let mut points = versions.filter(|(p, o)| self.digest(profile, *p, *o) == Some(seen));
                    points.next().map(|(p, o)| {
                        let mut point = point;
                        (point[of_profile], point[OBJECT]) = (p, o);
                        point
                    })
                }));
            }
            base[SINK + sink] = from[SINK + sink];
        }
        found
    }

    /// The first points where a target with this profile selects the namespace, completed by `rest`.
    fn first_selected(
        &self,
        from: Point,
        profile: usize,
        rest: impl Fn(Point) -> Option<Point>,
    ) -> Vec<Point> {
        let last = self.last();
        let mut found = Vec::new();
        for target in from[TARGET]..=last[TARGET] {
            if self.profile_of(target) != Some(profile) {
                continue;
            }
            if let Some(namespace) = self.first(from, NAMESPACE, |v| self.selects(target, v)) {
                let mut point = from;
                (point[TARGET], point[NAMESPACE]) = (target, namespace);
                found.extend(rest(point));
            }
        }
        found
    }

    /// Where there is no such row.
    fn first_absent(&self, from: Point) -> Vec<Point> {
        let mut found = self.first_unwanted(from);
        let with = |changes: &[(usize, Option<usize>)]| {
            changes.iter().try_fold(from, |mut point, (dimension, version)| {
                point[*dimension] = (*version)?;
                Some(point)
            })
        };
        // Its target is gone.
        found.extend(with(&[(TARGET, self.first(from, TARGET, |v| self.targets[v].is_none()))]));
        // Everything else is noticed only while the target is not suspended and its scope can be read.
        let readable = self.first(from, SCOPE, |v| self.permits(v).is_some());
        let denies = self.first(from, SCOPE, |v| self.permits(v) == Some(false));
        let gone = self.first(from, OBJECT, |v| self.objects[v].is_none());
        for target in (from[TARGET]..=self.last()[TARGET]).filter(|&version| self.is_awake(version)) {
            let Some(profile) = self.profile_of(target) else { continue };
            let collects = self.first(from, PROFILE + profile, |v| self.kind(profile, v).is_some());
            let differs = |v| self.kind(profile, v).is_some_and(|kind| *kind != *self.key.kind);
            let other = self.first(from, PROFILE + profile, differs);
            let leaves = self.first(from, NAMESPACE, |v| !self.selects(target, v));
            let base = (TARGET, Some(target));
            let of_profile = PROFILE + profile;
            found.extend(with(&[base, (of_profile, collects), (SCOPE, denies)]));
            found.extend(with(&[base, (of_profile, collects), (SCOPE, readable), (OBJECT, gone)]));
            found.extend(with(&[base, (of_profile, other), (SCOPE, readable)]));
            found.extend(with(&[base, (of_profile, collects), (SCOPE, readable), (NAMESPACE, leaves)]));
        }
        found
    }

    /// Whether the row can be absent at these points only because a profile has got another kind. Answers the profile and
    /// its first such version.
    pub(super) fn only_another_kind(&self, absent: &[Point]) -> Option<(usize, usize)> {
        let other = |point: &Point| {
            let profile = self.profile_of(point[TARGET])?;
            let version = point[PROFILE + profile];
            let is_other = *self.kind(profile, version)? != *self.key.kind;
            let unwanted = !self.has_target(point[INVENTORY])
                || !(0..SINKS.len()).any(|sink| {
                    self.names_sink(point[INVENTORY], sink) && self.leads_here(sink, point[SINK + sink])
                });
            (is_other && !unwanted).then_some((profile, version))
        };
        absent.iter().map(other).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Where the inventory does not want the row in this destination.
    fn first_unwanted(&self, from: Point) -> Vec<Point> {
        let mut found = Vec::new();
        for inventory in from[INVENTORY]..=self.last()[INVENTORY] {
            let mut point = from;
            point[INVENTORY] = inventory;
            let named = (0..SINKS.len()).filter(|&sink| self.names_sink(inventory, sink));
            let left = named.map(|sink| {
                let dimension = SINK + sink;
                Some((dimension, self.first(from, dimension, |v| !self.leads_here(sink, v))?))
            });
            if !self.has_target(inventory) {
                found.push(point);
            } else if let Some(left) = left.collect::<Option<Vec<_>>>() {
                left.into_iter().for_each(|(dimension, version)| point[dimension] = version);
                found.push(point);
            }
        }
        found
    }
}

/// Keeps only points that do not come after another one.
pub(super) fn earliest(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_unstable();
    points.dedup();
    let after = |a: &Point, b: &Point| a != b && a.iter().zip(b).all(|(a, b)| a >= b);
    let all = points.clone();
    points.retain(|point| !all.iter().any(|other| after(point, other)));
    points
}
