//! The possible states of one row: every combination of versions of what it depends on, and which of them come first.

use kollect_model::row::{RowDigest, RowKey};

use super::{
    super::{
        expected_rows::{StoredInventory, row},
        schedule::{PROFILES, SINKS},
        specs::{InventorySpecs, NamespaceSpecs, ProfileSpecs, ScopeSpecs, SinkSpecs, TargetSpecs},
    },
    history::{CollectedObject, History, Versions},
};

/// A point in the history of a row: numbers of versions, in the order of the constants below.
pub(super) type VersionNumbers = [usize; 7 + SINKS.len()];
const INVENTORY: usize = 0;
const TARGET: usize = 1;
const PROFILE: usize = 2;
const SCOPE: usize = 4;
const NAMESPACE: usize = 5;
const OBJECT: usize = 6;
const SINK: usize = 7;

/// Everything that one row depends on.
pub(super) struct RowHistory<'a> {
    destination: &'a str,
    /// Name of the cluster in the rows.
    cluster: &'a str,
    key: &'a RowKey,
    inventories: &'a Versions<InventorySpecs>,
    sinks: Vec<&'a Versions<SinkSpecs>>,
    targets: &'a Versions<TargetSpecs>,
    profiles: [&'a Versions<ProfileSpecs>; PROFILES.len()],
    scopes: &'a Versions<ScopeSpecs>,
    namespaces: &'a Versions<NamespaceSpecs>,
    objects: &'a Versions<CollectedObject>,
}

impl<'a> RowHistory<'a> {
    /// `None`: such a row never existed.
    pub(super) fn of(history: &'a History, stored: &'a StoredInventory, key: &'a RowKey) -> Option<Self> {
        let (destination, inventory) = stored;
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
    pub(super) fn last(&self) -> VersionNumbers {
        let mut point = VersionNumbers::default();
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

    /// Whether a version of the inventory has the target.
    fn has_target(&self, version: usize) -> bool {
        self.inventories[version]
            .as_ref()
            .is_some_and(|inventory| inventory.has_target(&self.key.target.name))
    }

    fn names_sink(&self, version: usize, sink: usize) -> bool {
        let names = |inventory: &InventorySpecs| inventory.sinks.iter().any(|name| name == SINKS[sink].0);
        self.inventories[version].as_ref().is_some_and(names)
    }

    fn leads_here(&self, sink: usize, version: usize) -> bool {
        let leads = |sink: &SinkSpecs| sink.destination == self.destination && sink.cluster == self.cluster;
        self.sinks[sink][version].as_ref().is_some_and(leads)
    }

    /// The number of the profile that a version of the target uses.
    fn profile_of(&self, version: usize) -> Option<usize> {
        let target = self.targets[version].as_ref()?;
        PROFILES.iter().position(|name| *name == target.profile)
    }

    fn is_active(&self, version: usize) -> bool {
        self.targets[version].as_ref().is_some_and(|target| !target.suspended)
    }

    fn selects(&self, target: usize, namespace: usize) -> bool {
        let namespace = self.namespaces[namespace];
        self.targets[target].as_ref().is_some_and(|target| target.selects(&self.key.namespace, namespace))
    }

    fn permits(&self, version: usize) -> Option<bool> {
        self.scopes[version].as_ref()?.permits(&self.key.namespace)
    }

    /// The kind that a version of a profile collects.
    fn kind(&self, profile: usize, version: usize) -> Option<&'static str> {
        Some(self.profiles[profile][version].as_ref()?.collected_kind()?.kind)
    }

    fn digest(&self, profile: usize, version: usize, object: usize) -> Option<RowDigest> {
        let has_two_attributes = self.profiles[profile][version].as_ref()?.has_two_attributes;
        let CollectedObject { name, size, .. } = self.objects[object].as_ref()?;
        let same_kind = self.kind(profile, version)? == &*self.key.kind;
        same_kind.then(|| row(self.key.clone(), name, *size, has_two_attributes).digest)
    }

    /// The first version, not before that of `from`, with a property.
    fn first(&self, from: VersionNumbers, dimension: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
        (from[dimension]..=self.last()[dimension]).find(|&version| holds(version))
    }

    /// The first points, not before `from`, where the row is `seen`.
    pub(super) fn first_seen(&self, from: VersionNumbers, seen: Option<RowDigest>) -> Vec<VersionNumbers> {
        match seen {
            Some(seen) => self.first_shown(from, seen),
            None => self.first_absent(from),
        }
    }

    /// Where the row looks like this. What a suspended target has collected before may still be written.
    fn first_shown(&self, from: VersionNumbers, seen: RowDigest) -> Vec<VersionNumbers> {
        let mut found = Vec::new();
        let mut base = from;
        let Some(scope) = self.first(from, SCOPE, |version| self.permits(version) == Some(true)) else {
            return found;
        };
        base[SCOPE] = scope;
        for sink in 0..SINKS.len() {
            let wanted = |version| self.has_target(version) && self.names_sink(version, sink);
            let Some(inventory) = self.first(from, INVENTORY, wanted) else { continue };
            let Some(sink_version) = self.first(from, SINK + sink, |version| self.leads_here(sink, version))
            else {
                continue;
            };
            (base[INVENTORY], base[SINK + sink]) = (inventory, sink_version);
            for profile in 0..PROFILES.len() {
                found.extend(self.first_selected(base, profile, |point| {
                    let (profile_dimension, last) = (PROFILE + profile, self.last());
                    let versions =
                        (point[profile_dimension]..=last[profile_dimension]).flat_map(|profile_version| {
                            (point[OBJECT]..=last[OBJECT]).map(move |object| (profile_version, object))
                        });
                    let mut points = versions
                        .filter(|(version, object)| self.digest(profile, *version, *object) == Some(seen));
                    points.next().map(|versions| {
                        let mut point = point;
                        (point[profile_dimension], point[OBJECT]) = versions;
                        point
                    })
                }));
            }
            base[SINK + sink] = from[SINK + sink];
        }
        found
    }

    /// The first points where a target with this profile selects the namespace, completed by `complete`.
    fn first_selected(
        &self,
        from: VersionNumbers,
        profile: usize,
        complete: impl Fn(VersionNumbers) -> Option<VersionNumbers>,
    ) -> Vec<VersionNumbers> {
        let last = self.last();
        let mut found = Vec::new();
        for target in from[TARGET]..=last[TARGET] {
            if self.profile_of(target) != Some(profile) {
                continue;
            }
            if let Some(namespace) = self.first(from, NAMESPACE, |version| self.selects(target, version)) {
                let mut point = from;
                (point[TARGET], point[NAMESPACE]) = (target, namespace);
                found.extend(complete(point));
            }
        }
        found
    }

    /// Where there is no such row.
    fn first_absent(&self, from: VersionNumbers) -> Vec<VersionNumbers> {
        let mut found = self.first_unwanted(from);
        let with = |changes: &[(usize, Option<usize>)]| {
            changes.iter().try_fold(from, |mut point, (dimension, version)| {
                point[*dimension] = (*version)?;
                Some(point)
            })
        };
        // Its target was deleted.
        found.extend(with(&[(TARGET, self.first(from, TARGET, |version| self.targets[version].is_none()))]));
        // Everything else is noticed only while the target is not suspended and its scope can be read.
        let readable = self.first(from, SCOPE, |version| self.permits(version).is_some());
        let denies = self.first(from, SCOPE, |version| self.permits(version) == Some(false));
        let deleted = self.first(from, OBJECT, |version| self.objects[version].is_none());
        for target in (from[TARGET]..=self.last()[TARGET]).filter(|&version| self.is_active(version)) {
            let Some(profile) = self.profile_of(target) else { continue };
            let collects =
                self.first(from, PROFILE + profile, |version| self.kind(profile, version).is_some());
            let differs = |version| self.kind(profile, version).is_some_and(|kind| *kind != *self.key.kind);
            let other_kind = self.first(from, PROFILE + profile, differs);
            let unselected = self.first(from, NAMESPACE, |version| !self.selects(target, version));
            let base = (TARGET, Some(target));
            let profile_dimension = PROFILE + profile;
            found.extend(with(&[base, (profile_dimension, collects), (SCOPE, denies)]));
            found.extend(with(&[base, (profile_dimension, collects), (SCOPE, readable), (OBJECT, deleted)]));
            found.extend(with(&[base, (profile_dimension, other_kind), (SCOPE, readable)]));
            found.extend(with(&[
                base,
                (profile_dimension, collects),
                (SCOPE, readable),
                (NAMESPACE, unselected),
            ]));
        }
        found
    }

    /// The profile and its first version with another kind, if the row can be absent at these points only because of
    /// that.
    pub(super) fn only_another_kind(&self, absent: &[VersionNumbers]) -> Option<(usize, usize)> {
        let other = |point: &VersionNumbers| {
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

    /// Where the inventory does not select the row for this destination.
    fn first_unwanted(&self, from: VersionNumbers) -> Vec<VersionNumbers> {
        let mut found = Vec::new();
        for inventory in from[INVENTORY]..=self.last()[INVENTORY] {
            let mut point = from;
            point[INVENTORY] = inventory;
            let named = (0..SINKS.len()).filter(|&sink| self.names_sink(inventory, sink));
            let left = named.map(|sink| {
                let dimension = SINK + sink;
                Some((dimension, self.first(from, dimension, |version| !self.leads_here(sink, version))?))
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
pub(super) fn earliest(mut points: Vec<VersionNumbers>) -> Vec<VersionNumbers> {
    points.sort_unstable();
    points.dedup();
    let after = |point: &VersionNumbers, other: &VersionNumbers| {
        point != other && point.iter().zip(other).all(|(version, other)| version >= other)
    };
    let all = points.clone();
    points.retain(|point| !all.iter().any(|other| after(point, other)));
    points
}
