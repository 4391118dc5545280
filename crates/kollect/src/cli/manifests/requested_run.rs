//! Turns resolved manifests into a run of the command line. Each problem is a line, and prevents the run.

use std::sync::Arc;

use kollect_model::{
    SpecError,
    batch::CLUSTER_NAMESPACE,
    row::TargetId,
    schema::{Schema, TargetSchema},
};

use super::{Manifests, RequestedRun, RunInventory, RunSink, readable};
use crate::{
    reason::Reason,
    resolve::{
        self, Family, InventoryName, ObjectFault, ObjectName, OperatorPolicy, Resolved, ResolvedInventory,
        ResolvedTarget, RowsWanted,
    },
};

impl Manifests {
    /// Puts the run together and notes every problem.
    pub(super) fn requested_run(
        &mut self,
        resolved: Resolved,
        operator_policy: &OperatorPolicy,
    ) -> RequestedRun {
        for (name, profile) in &resolved.profiles {
            let label = self.label("KollectProfile", name);
            match profile {
                Ok(profile) => {
                    self.notes.extend(profile.warnings.iter().map(|warning| format!("{label}: {warning}")));
                }
                Err(errors) => {
                    let new = errors.iter().filter(|error| self.is_new("KollectProfile", name, error));
                    self.problems.extend(new.map(|error| format!("{label}: {error}")).collect::<Vec<_>>());
                }
            }
        }
        let mut run = RequestedRun::default();
        for (id, target) in &resolved.targets {
            self.check_target(id, target, operator_policy);
            run.targets.extend(target.target.clone());
        }
        self.check_connection_tests();
        let known: Vec<(TargetId, Option<TargetSchema>)> =
            resolved.targets.into_iter().map(|(id, target)| (id, target.schema)).collect();
        run.inventories = if resolved.inventories.is_empty() {
            self.inventory_for_each_target(&known)
        } else {
            let taken = resolved
                .inventories
                .into_iter()
                .filter_map(|(name, inventory)| self.run_inventory(name, inventory));
            taken.collect()
        };
        let unbound =
            |id: &&TargetId| !run.inventories.iter().any(|inventory| inventory.targets.contains(id));
        self.notes.extend(
            known
                .iter()
                .map(|(id, _)| id)
                .filter(unbound)
                .map(|id| format!("target {id} belongs to no inventory")),
        );
        if known.is_empty() && self.problems.is_empty() {
            self.problems.push("the manifests hold no KollectTarget or KollectClusterTarget: add one".into());
        }
        run.notes = std::mem::take(&mut self.notes);
        let profiles = self.object_set.profiles.iter();
        let labelled =
            profiles.map(|(name, profile)| (self.label("KollectProfile", name), profile.spec.clone()));
        run.profiles = labelled.collect();
        run
    }

    /// An object for messages: where it is defined, its kind and its name.
    fn label(&self, kind: &str, name: &ObjectName) -> String {
        match self.positions.get(&(kind.to_owned(), name.clone())) {
            Some(position) => format!("{position}: {kind} {}", name.1),
            None => format!("{kind} {}", name.1),
        }
    }

    /// Whether the schema has not reported the field already. A schema error of `spec` itself is about several
    /// fields together: it hides only errors of sinks, whose plans report the same again.
    fn is_new(&self, kind: &str, name: &ObjectName, error: &SpecError) -> bool {
        let Some(wrong) = self.invalid_fields.get(&(kind.to_owned(), name.clone())) else { return true };
        let is_sink =
            [Family::Snapshot, Family::Database, Family::Event].iter().any(|family| family.kind() == kind);
        let reported = wrong.iter().filter(|field| is_sink || *field != "spec");
        !reported.into_iter().any(|field| readable::covers(field, &error.field))
    }

    fn check_target(&mut self, id: &TargetId, target: &ResolvedTarget, operator_policy: &OperatorPolicy) {
        let kind = if id.namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
        let name = (id.namespace.as_deref().unwrap_or_default().to_owned(), id.name.to_string());
        let label = self.label(kind, &name);
        // Faults of the profile and of scopes are reported with these objects.
        let mut faults: Vec<ObjectFault> = target.faults.clone();
        faults.retain(|fault| !matches!(fault.reason, Reason::ProfileInvalid | Reason::ScopeUnreadable));
        if target.target.is_none() && !faults.iter().any(|fault| fault.reason == Reason::InvalidSpec) {
            // Its resource rules have not been checked: that needs a profile, and scopes that allow it.
            faults.extend(self.object_set.check_rules(id, operator_policy));
        }
        faults.retain(|fault| self.is_new(kind, &name, &fault.error));
        self.problems.extend(faults.iter().map(|fault| format!("{label}: {fault}")));
        self.notes.extend(target.clipped.iter().map(|fault| format!("{label}: {fault}")));
        if target.suspended && target.faults.is_empty() {
            self.notes.push(format!("{label} is suspended: it was not collected, its rows stay"));
        }
    }

    fn check_connection_tests(&mut self) {
        for (name, test) in &self.connection_tests {
            let reference = &test.spec.sink_ref;
            let named = [
                (Family::Snapshot, "spec.sinkRef.snapshotSinkRef", &reference.snapshot_sink_ref),
                (Family::Database, "spec.sinkRef.databaseSinkRef", &reference.database_sink_ref),
                (Family::Event, "spec.sinkRef.eventSinkRef", &reference.event_sink_ref),
            ];
            for (family, field, sink) in named {
                let Some(sink) = sink else { continue };
                if let Some(error) =
                    self.object_set.missing_sink(family, &(name.0.clone(), sink.clone()), field)
                {
                    self.problems.push(format!("{}: {error}", self.label("KollectConnectionTest", name)));
                }
            }
        }
    }

    fn run_inventory(&mut self, name: InventoryName, inventory: ResolvedInventory) -> Option<RunInventory> {
        let kind = if name.namespace.is_some() { "KollectInventory" } else { "KollectClusterInventory" };
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        let label = self.label(kind, &key);
        let faults = inventory.faults.iter().chain(&inventory.missing);
        let faults = faults.filter(|fault| fault.reason != Reason::ScopeUnreadable);
        let new = faults.filter(|fault| self.is_new(kind, &key, &fault.error));
        self.problems.extend(new.map(|fault| format!("{label}: {fault}")).collect::<Vec<_>>());
        self.notes.extend(inventory.notes.iter().map(|note| format!("{label}: {note}")));
        let sinks = inventory.sinks.into_iter().map(|sink| self.run_sink(&label, sink)).collect();
        if inventory.suspended {
            self.notes.push(format!("{label} is suspended and was not written"));
            return None;
        }
        let InventoryName { namespace, name } = name;
        let ResolvedInventory { targets, schema, rows, .. } = inventory;
        Some(RunInventory { namespace, name, targets, schema, rows, sinks })
    }

    /// Faults of the reference are problems of the inventory; faults of the sink matter only to a run that writes.
    fn run_sink(&mut self, label: &str, sink: resolve::BoundSink) -> RunSink {
        let resolve::BoundSink { name, family, key, cluster, cadence, part_bytes, plan, .. } = sink;
        // Manifests hold their Secrets: none is being looked up.
        let plan = (*plan).clone().and_then(|plan| plan.ok_or_else(Vec::new)).map_err(|faults| {
            let of_reference = |fault: &ObjectFault| {
                matches!(
                    fault.reason,
                    Reason::SinkNotFound | Reason::ScopeSinkDenied | Reason::SinkNamespaceDenied
                )
            };
            let (of_inventory, others): (Vec<ObjectFault>, Vec<ObjectFault>) =
                faults.into_iter().partition(of_reference);
            self.problems.extend(of_inventory.iter().map(|fault| format!("{label}: {fault}")));
            let sink = self.label(family.kind(), &key);
            let others = others.iter().filter(|fault| self.is_new(family.kind(), &key, &fault.error));
            others.map(|fault| format!("{sink}: {fault}")).collect()
        });
        RunSink { name, cluster, cadence, part_bytes, plan }
    }

    /// Without inventories among the manifests each target is an inventory of its own.
    fn inventory_for_each_target(&mut self, known: &[(TargetId, Option<TargetSchema>)]) -> Vec<RunInventory> {
        let mut inventories = Vec::new();
        for (id, declared) in known {
            if id.namespace.as_deref() == Some(CLUSTER_NAMESPACE) {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                self.problems
                    .push(format!("KollectTarget {}: metadata.namespace = \"cluster\": {problem}", id.name));
            }
            inventories.push(RunInventory {
                namespace: id.namespace.as_deref().map(Into::into),
                name: id.name.to_string(),
                targets: vec![id.clone()],
                schema: Arc::new(Schema {
                    targets: declared.iter().map(|declared| (id.clone(), declared.clone())).collect(),
                }),
                rows: RowsWanted::default(),
                sinks: Vec::new(),
            });
        }
        inventories
    }
}
