//! Selects the objects that a turn checks: those that a change affects.

use std::collections::BTreeSet;

use kollect_model::{binding::BindingName, row::TargetId};
use tokio::time::Instant;

use super::{
    ObjectCache, ObjectKey, Operator, RELEASE_REMOVALS, Resolution, StatusDestinations, tested_sink,
};
use crate::{
    operator::{probe::Probed, take_over},
    resolve::{InventoryName, SinkKey},
};

/// What a turn checks.
#[derive(Default)]
pub(super) struct ObjectsToCheck {
    /// All objects.
    pub(super) everything: bool,
    /// These objects.
    pub(super) objects: BTreeSet<ObjectKey>,
    /// Bindings are passed to the engine again.
    pub(super) destinations: bool,
    /// Connection tests and probes.
    pub(super) tests: bool,
    /// Sinks of which an attempt has failed.
    pub(super) failed_sinks: BTreeSet<SinkKey>,
}

/// Kind and name of a target.
pub(super) fn target_key(id: &TargetId) -> ObjectKey {
    match &id.namespace {
        Some(namespace) => ("KollectTarget", (namespace.to_string(), id.name.to_string())),
        None => ("KollectClusterTarget", (String::new(), id.name.to_string())),
    }
}

/// Kind and name of an inventory.
pub(super) fn inventory_key(name: &InventoryName) -> ObjectKey {
    (name.kind(), (name.namespace.clone().unwrap_or_default(), name.name.clone()))
}

/// The target of a kind and name.
pub(super) fn target_id((_, (namespace, name)): &ObjectKey) -> TargetId {
    let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
    TargetId { namespace: namespace.map(Into::into), name: name.as_str().into() }
}

/// The inventory of a kind and name.
pub(super) fn inventory_name((_, (namespace, name)): &ObjectKey) -> InventoryName {
    let namespace = Some(namespace.clone()).filter(|namespace| !namespace.is_empty());
    InventoryName { namespace, name: name.clone() }
}

impl ObjectsToCheck {
    /// Adds the inventories of bindings.
    pub(super) fn add_bindings(&mut self, bindings: BTreeSet<BindingName>) {
        self.objects.extend(bindings.iter().map(|binding| inventory_key(&binding.inventory)));
    }
}

impl Operator {
    /// Collects what has changed since the last turn.
    pub(super) fn objects_to_check(
        &mut self,
        cache: &ObjectCache,
        changed_statuses: BTreeSet<ObjectKey>,
        resolution: &Resolution,
        everything: bool,
    ) -> ObjectsToCheck {
        let mut checks = ObjectsToCheck { everything, ..ObjectsToCheck::default() };
        self.add_changed_targets(resolution, &mut checks);
        self.add_changed_bindings(cache, resolution, &mut checks);
        self.add_ended_probes(cache, &mut checks);
        self.add_changed_statuses(cache, changed_statuses, &mut checks);
        let now = Instant::now();
        checks.objects.extend(self.due_checks.extract_if(.., |_, at| *at <= now).map(|(key, _)| key));
        self.add_unexported(resolution, &mut checks);
        checks.tests |= self.tests_at.is_some_and(|at| at <= now);
        checks
    }

    /// Adds targets whose rows, failures or coverage have changed, and their inventories.
    fn add_changed_targets(&self, resolution: &Resolution, checks: &mut ObjectsToCheck) {
        let mut targets = self.rows.take_changed_targets();
        let kinds = self.collector.coverage().take_changed_kinds();
        if !kinds.is_empty() {
            let concerned = resolution.resolved.targets.iter().filter(|(_, target)| {
                let target = target.target.as_ref();
                target.is_some_and(|target| target.selection.kinds().iter().any(|gvk| kinds.contains(gvk)))
            });
            targets.extend(concerned.map(|(id, _)| id.clone()));
        }
        for id in &targets {
            checks.objects.insert(target_key(id));
            checks.objects.extend(resolution.links.inventories_of(id).iter().map(inventory_key));
        }
    }

    fn add_changed_bindings(
        &self,
        cache: &ObjectCache,
        resolution: &Resolution,
        checks: &mut ObjectsToCheck,
    ) {
        let changed = self.binding_states.take_changed();
        checks.destinations |= changed.destinations;
        for binding in &changed.bindings {
            let Some((metadata, _)) = cache.inventory(&binding.inventory) else { continue };
            // A request by annotation may be complete; then the annotation is removed.
            let has_annotation = |key: &str| {
                metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
            };
            checks.destinations |= has_annotation(RELEASE_REMOVALS) || has_annotation(take_over::ANNOTATION);
        }
        for binding in &changed.failed {
            let inventory = resolution.resolved.inventories.get(&binding.inventory);
            let sinks = inventory.into_iter().flat_map(|inventory| &inventory.sinks);
            let failed = sinks.filter(|sink| sink.name == binding.sink);
            checks.failed_sinks.extend(failed.map(|sink| (sink.family, sink.key.clone())));
        }
        checks.add_bindings(changed.bindings);
    }

    fn add_ended_probes(&self, cache: &ObjectCache, checks: &mut ObjectsToCheck) {
        for (probed, failed) in self.probes.take_ended() {
            let sink = match probed {
                Probed::Sink(family, name) => {
                    checks.objects.insert((family.kind(), name.clone()));
                    Some((family, name))
                }
                Probed::Test(name, _) => {
                    let test = cache.connection_tests().get(&name).and_then(|test| tested_sink(test));
                    test.map(|(family, sink)| (family, (name.0, sink)))
                }
            };
            checks.tests = true;
            checks.failed_sinks.extend(sink.filter(|_| failed));
        }
    }

    /// Adds objects whose status was written, by this process too.
    fn add_changed_statuses(
        &self,
        cache: &ObjectCache,
        changed: BTreeSet<ObjectKey>,
        checks: &mut ObjectsToCheck,
    ) {
        for key in changed {
            let is_inventory = matches!(key.0, "KollectInventory" | "KollectClusterInventory");
            if is_inventory {
                let name = inventory_name(&key);
                let in_status = cache.inventory(&name).map(|(_, status)| StatusDestinations::of(status));
                checks.destinations |= self.delivered_destinations.get(&name) != in_status.as_ref();
            }
            checks.tests |= key.0 == "KollectConnectionTest";
            checks.objects.insert(key);
        }
    }

    /// Adds profiles and targets whose rows may have arrived in the sinks of the inventories that are checked.
    fn add_unexported(&self, resolution: &Resolution, checks: &mut ObjectsToCheck) {
        if self.unexported.is_empty() {
            return;
        }
        let mut candidates = BTreeSet::new();
        for key in checks.objects.iter().filter(|key| key.0.ends_with("Inventory")) {
            let Some(inventory) = resolution.resolved.inventories.get(&inventory_name(key)) else { continue };
            for id in &inventory.targets {
                candidates.insert(target_key(id));
                let profile = resolution.resolved.targets.get(id).map(|target| target.profile.clone());
                candidates.extend(profile.map(|profile| ("KollectProfile", profile)));
            }
        }
        checks.objects.extend(candidates.into_iter().filter(|key| self.unexported.contains(key)));
    }
}
