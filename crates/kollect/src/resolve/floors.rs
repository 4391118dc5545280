//! Export intervals below the minimum (floor) of a scope. Admission refuses them; a running operator or command line
//! uses the floor instead.

use std::time::Duration;

use kollect_model::{
    SpecError,
    crd::{
        inventory::{KollectInventorySpec, SinkRefs},
        shapes::GoDuration,
    },
    sink::SinkSpec,
};

use super::{Ceilings, InventoryName, ObjectSet};

impl ObjectSet {
    /// Intervals of an inventory and its references that are below the floor of its scopes.
    pub(crate) fn inventory_below_floor(&self, name: &InventoryName) -> Vec<SpecError> {
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        match &name.namespace {
            Some(namespace) => self.inventories.get(&key).map_or_else(Vec::new, |inventory| {
                let spec = &inventory.spec;
                let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
                below(&self.scopes_of(namespace), spec.export_min_interval, lists, true)
            }),
            None => self.cluster_inventories.get(&key).map_or_else(Vec::new, |inventory| {
                let spec = &inventory.spec;
                let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
                below(&self.cluster_scopes(), spec.export_min_interval, lists, false)
            }),
        }
    }

    /// The interval of a sink, if it is below the floor of its namespace.
    pub(crate) fn sink_below_floor(&self, spec: &SinkSpec, namespace: &str) -> Vec<SpecError> {
        let interval = spec.common().export_min_interval;
        let error = interval
            .and_then(|interval| self.scopes_of(namespace).floor_above("spec.exportMinInterval", interval));
        error.into_iter().collect()
    }
}

fn below(
    ceilings: &Ceilings<'_>,
    interval: GoDuration,
    lists: [&SinkRefs; 3],
    namespaced: bool,
) -> Vec<SpecError> {
    let mut errors = Vec::new();
    // The schema fills in the default, so an explicit default cannot be distinguished from a missing value.
    if interval != KollectInventorySpec::default().export_min_interval {
        errors.extend(ceilings.floor_above("spec.exportMinInterval", interval));
    }
    let fields = ["spec.snapshotSinkRefs", "spec.databaseSinkRefs", "spec.eventSinkRefs"];
    for (field, list) in fields.into_iter().zip(lists) {
        for (index, sink_ref) in list.decode(field, namespaced).0 {
            let Some(interval) = sink_ref.export_min_interval else { continue };
            errors.extend(ceilings.floor_above(&format!("{field}[{index}].exportMinInterval"), interval));
        }
    }
    errors
}

impl Ceilings<'_> {
    /// The scope whose floor is above an interval.
    fn floor_above(&self, field: &str, interval: GoDuration) -> Option<SpecError> {
        let floor = |floor: Option<GoDuration>| floor.map_or(Duration::ZERO, |floor| floor.0);
        let (scope_name, ceiling) =
            self.scopes.iter().max_by_key(|(_, ceiling)| floor(ceiling.min_export_interval))?;
        let least = ceiling.min_export_interval.filter(|least| interval.0 < least.0)?;
        let problem = format!("{scope_name} requires at least {least}");
        Some(SpecError::new(field, &interval.to_string().into(), problem))
    }
}
