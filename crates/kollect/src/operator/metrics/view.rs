//! The data of the last resolution that metrics depend on.

use kollect_engine::extract::attribute_names;
use kollect_model::{
    binding::BindingName,
    crd::{profile::ProfileMetric, shapes::Gvk},
    row::TargetId,
};

use super::super::bindings::binding_name;
use crate::resolve::{ObjectName, ObjectSet, Resolved};

/// Targets and inventories, with the data that metrics need.
#[derive(Default)]
pub(crate) struct MetricsView {
    pub(super) targets: Vec<TargetView>,
    pub(super) inventories: Vec<InventoryView>,
}

pub(super) struct TargetView {
    pub(super) id: TargetId,
    /// `namespace/name`: two namespaces may have a profile of one name.
    pub(super) profile: String,
    /// The kinds that it collects; empty if it is suspended or invalid.
    pub(super) kinds: Vec<Gvk>,
    pub(super) metrics: Vec<ProfileMetric>,
    /// Names of the attributes of its rows.
    pub(super) attributes: Vec<String>,
}

pub(super) struct InventoryView {
    pub(super) name: String,
    pub(super) targets: Vec<TargetId>,
    /// Nothing is written: it is suspended or has faults.
    pub(super) suspended: bool,
    /// The binding of each sink.
    pub(super) sinks: Vec<BindingName>,
}

impl MetricsView {
    /// Reads a resolution.
    pub(crate) fn of(object_set: &ObjectSet, resolved: &Resolved) -> Self {
        let targets = resolved.targets.iter().filter_map(|(id, target)| {
            let profile = profile_of(object_set, id)?;
            let spec = object_set.profiles.get(&profile).map(|profile| &profile.spec);
            let kinds = target.target.iter().flat_map(|target| target.selection.kinds()).cloned();
            Some(TargetView {
                id: id.clone(),
                profile: format!("{}/{}", profile.0, profile.1),
                kinds: kinds.collect(),
                metrics: spec.map(|spec| spec.metrics.clone()).unwrap_or_default(),
                attributes: spec.into_iter().flat_map(attribute_names).map(ToOwned::to_owned).collect(),
            })
        });
        let inventories = resolved.inventories.iter().map(|(name, inventory)| InventoryView {
            name: name.to_string(),
            targets: inventory.targets.clone(),
            suspended: inventory.suspended || !inventory.faults.is_empty(),
            sinks: inventory.sinks.iter().map(|sink| binding_name(name, &sink.name)).collect(),
        });
        Self { targets: targets.collect(), inventories: inventories.collect() }
    }
}

fn profile_of(object_set: &ObjectSet, id: &TargetId) -> Option<ObjectName> {
    match &id.namespace {
        Some(namespace) => {
            let target = object_set.targets.get(&(namespace.to_string(), id.name.to_string()))?;
            Some((namespace.to_string(), target.spec.profile_ref.clone()))
        }
        None => {
            let target = object_set.cluster_targets.get(&(String::new(), id.name.to_string()))?;
            let reference = &target.spec.profile_ref;
            Some((reference.namespace.clone(), reference.name.clone()))
        }
    }
}
