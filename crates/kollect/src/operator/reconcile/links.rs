//! An index of dependencies, built with each resolution, so that a change of one object requires few checks of others.

use std::collections::BTreeMap;

use kollect_model::row::TargetId;

use crate::resolve::{InventoryName, ObjectName, Resolved};

/// Which inventories have a target, and which targets use a profile.
#[derive(Default)]
pub(crate) struct ObjectLinks {
    inventories: BTreeMap<TargetId, Vec<InventoryName>>,
    targets: BTreeMap<ObjectName, Vec<TargetId>>,
}

impl ObjectLinks {
    pub(crate) fn of(resolved: &Resolved) -> Self {
        let mut links = Self::default();
        for (name, inventory) in &resolved.inventories {
            for target in &inventory.targets {
                links.inventories.entry(target.clone()).or_default().push(name.clone());
            }
        }
        for (id, target) in &resolved.targets {
            links.targets.entry(target.profile.clone()).or_default().push(id.clone());
        }
        links
    }

    /// The inventories that have a target.
    pub(crate) fn inventories_of(&self, target: &TargetId) -> &[InventoryName] {
        self.inventories.get(target).map_or(&[], |names| names)
    }

    /// The targets that use a profile.
    pub(crate) fn targets_of(&self, profile: &ObjectName) -> &[TargetId] {
        self.targets.get(profile).map_or(&[], |ids| ids)
    }
}
