//! Places that hold rows and that nobody writes to any more.

use std::collections::BTreeSet;

use kollect_model::crd::inventory::SinkExport;

use super::Operator;
use crate::{
    operator::{
        bindings::{Cleaning, binding_name, places},
        finalize::{Step, leave_behind},
        objects::Known,
    },
    world::{BoundSink, InventoryName, Resolved, Rules, World},
};

impl Operator {
    /// Places that hold rows and are written no more, whoever wrote there: the status knows them. Answers
    /// what there is to say about those that nobody can clean.
    pub(super) fn clean_left<'a>(
        &mut self,
        known: &'a Known,
        world: &World,
        resolved: &Resolved,
    ) -> Vec<Step<'a>> {
        let mut steps = Vec::new();
        let Some(deliveries) = &mut self.deliveries else { return steps };
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, exports)) = known.inventory(name) else { continue };
            let exports = self.rules.shown_exports(exports);
            if metadata.deletion_timestamp.is_some() || !inventory.faults.is_empty() {
                continue;
            }
            let mut behind = Vec::new();
            for export in &*exports {
                let binding = binding_name(name, &export.name);
                if let Some(sink) = inventory.sinks.iter().find(|sink| sink.name == export.name) {
                    // The new place is filled first.
                    let filled = self.board.look(&binding, |progress| progress.confirmed).unwrap_or(false);
                    let mut lost = BTreeSet::new();
                    for place in &export.left {
                        if self.board.is_done_with(&binding, place) {
                            continue;
                        }
                        if self.bindings.is_lost(name, sink, place, deliveries) {
                            lost.insert(place.clone());
                        } else if filled {
                            self.bindings.clean(name, metadata, sink, place, true, deliveries);
                        }
                    }
                    self.board.speak_of(&binding, &export.left, lost);
                    continue;
                }
                let sink = left_sink(world, &self.rules, resolved, name, export);
                let mut open = false;
                for place in places(export, sink.as_ref()) {
                    if self.board.is_done_with(&binding, &place) {
                        continue;
                    }
                    let cleaning = sink.as_ref().map_or(Cleaning::Impossible, |sink| {
                        self.bindings.clean(name, metadata, sink, &place, false, deliveries)
                    });
                    open |= cleaning != Cleaning::Impossible;
                    if cleaning == Cleaning::Impossible {
                        self.board.give_up(&binding, &place);
                        behind.push(format!("{} at {place}", export.name));
                    }
                }
                if !open {
                    self.board.clear(&binding);
                }
            }
            steps.extend(leave_behind(name.kind(), metadata, behind));
        }
        steps
    }
}

/// The sink that a line of a status is about, as it is now.
pub(super) fn left_sink(
    world: &World,
    rules: &Rules,
    resolved: &Resolved,
    name: &InventoryName,
    export: &SinkExport,
) -> Option<BoundSink> {
    let namespace = export.namespace.as_deref().or(name.namespace.as_deref()).unwrap_or_default();
    world.left_sink(&export.name, namespace, rules, &resolved.sinks)
}
