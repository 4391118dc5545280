//! Selects the objects that a turn checks: those that a change affects.

use std::collections::BTreeSet;

use kollect_model::{binding::BindingName, row::TargetId};
use tokio::time::Instant;

use super::{ObjectCache, ObjectKey, Operator, RELEASE_REMOVALS, Resolution, ToldDestinations, tested_sink};
use crate::{
    operator::{probe::Probed, take_over},
    resolve::{InventoryName, SinkKey},
};

/// What a turn checks.
#[derive(Default)]
pub(super) struct Look {
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

impl Look {
    /// Adds the inventories of bindings.
    pub(super) fn add_bindings(&mut self, bindings: BTreeSet<BindingName>) {
        self.objects.extend(bindings.iter().map(|binding| inventory_key(&binding.inventory)));
    }
}

impl Operator {
    /// Collects what has changed since the last turn.
    pub(super) fn look(
        &mut self,
        known: &ObjectCache,
        changed_statuses: BTreeSet<ObjectKey>,
        resolution: &Resolution,
        everything: bool,
    ) -> Look {
        let mut look = Look { everything, ..Look::default() };
        self.look_at_targets(resolution, &mut look);
        self.look_at_bindings(known, resolution, &mut look);
        self.look_at_probes(known, &mut look);
        self.look_at_statuses(known, changed_statuses, &mut look);
        let now = Instant::now();
        look.objects.extend(self.later.extract_if(.., |_, at| *at <= now).map(|(key, _)| key));
        self.look_at_unexported(resolution, &mut look);
        look.tests |= self.tests_at.is_some_and(|at| at <= now);
        look
    }

    /// Adds targets whose rows, failures or coverage have changed, and their inventories.
    fn look_at_targets(&self, resolution: &Resolution, look: &mut Look) {
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
            look.objects.insert(target_key(id));
            look.objects.extend(resolution.links.inventories_of(id).iter().map(inventory_key));
        }
    }

    fn look_at_bindings(&self, known: &ObjectCache, resolution: &Resolution, look: &mut Look) {
        let heard = self.binding_states.take_heard();
        look.destinations |= heard.destinations;
        for binding in &heard.bindings {
            let Some((metadata, _)) = known.inventory(&binding.inventory) else { continue };
            // A request by annotation may be complete; then the annotation is removed.
            let asks = |key: &str| metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
            look.destinations |= asks(RELEASE_REMOVALS) || asks(take_over::ANNOTATION);
        }
        for binding in &heard.failed {
            let inventory = resolution.resolved.inventories.get(&binding.inventory);
            let sinks = inventory.into_iter().flat_map(|inventory| &inventory.sinks);
            let own = sinks.filter(|sink| sink.name == binding.sink);
            look.failed_sinks.extend(own.map(|sink| (sink.family, sink.key.clone())));
        }
        look.add_bindings(heard.bindings);
    }

    fn look_at_probes(&self, known: &ObjectCache, look: &mut Look) {
        for (probed, failed) in self.probes.take_ended() {
            let sink = match probed {
                Probed::Sink(family, name) => {
                    look.objects.insert((family.kind(), name.clone()));
                    Some((family, name))
                }
                Probed::Test(name, _) => {
                    let test = known.connection_tests().get(&name).and_then(|test| tested_sink(test));
                    test.map(|(family, sink)| (family, (name.0, sink)))
                }
            };
            look.tests = true;
            look.failed_sinks.extend(sink.filter(|_| failed));
        }
    }

    /// Adds objects whose status was written, by this process too.
    fn look_at_statuses(&self, known: &ObjectCache, changed: BTreeSet<ObjectKey>, look: &mut Look) {
        for key in changed {
            let is_inventory = matches!(key.0, "KollectInventory" | "KollectClusterInventory");
            if is_inventory {
                let name = inventory_name(&key);
                let told = known.inventory(&name).map(|(_, status)| ToldDestinations::of(status));
                look.destinations |= self.told_destinations.get(&name) != told.as_ref();
            }
            look.tests |= key.0 == "KollectConnectionTest";
            look.objects.insert(key);
        }
    }

    /// Adds profiles and targets whose rows may have arrived in the sinks of the inventories that are checked.
    fn look_at_unexported(&self, resolution: &Resolution, look: &mut Look) {
        if self.unexported.is_empty() {
            return;
        }
        let mut more = BTreeSet::new();
        for key in look.objects.iter().filter(|key| key.0.ends_with("Inventory")) {
            let Some(inventory) = resolution.resolved.inventories.get(&inventory_name(key)) else { continue };
            for id in &inventory.targets {
                more.insert(target_key(id));
                let profile = resolution.resolved.targets.get(id).map(|target| target.profile.clone());
                more.extend(profile.map(|profile| ("KollectProfile", profile)));
            }
        }
        look.objects.extend(more.into_iter().filter(|key| self.unexported.contains(key)));
    }
}
