//! Turns resolved manifests into a run of the command line. Each problem is a line, and prevents the run.

use kollect_model::{SpecError, batch::CLUSTER_NAMESPACE, row::TargetId};

use super::{BoundSink, Inventory, Manifests, Work, readable};
use crate::{
    reason::Reason,
    resolve::{
        self, Family, Fault, InventoryName, Name, OperatorPolicy, Resolved, ResolvedInventory,
        ResolvedTarget, RowsWanted,
    },
};

impl Manifests {
    /// Puts the work together and notes every problem.
    pub(super) fn work(&mut self, resolved: Resolved, operator_policy: &OperatorPolicy) -> Work {
        for (name, profile) in &resolved.profiles {
            let who = self.who("KollectProfile", name);
            match profile {
                Ok(profile) => self.notes.extend(profile.warnings.iter().map(|w| format!("{who}: {w}"))),
                Err(errors) => {
                    let new = errors.iter().filter(|error| self.is_new("KollectProfile", name, error));
                    self.problems.extend(new.map(|error| format!("{who}: {error}")).collect::<Vec<_>>());
                }
            }
        }
        let mut work = Work::default();
        for (id, target) in &resolved.targets {
            self.take_target(id, target, operator_policy);
            work.targets.extend(target.target.clone());
        }
        self.check_connection_tests();
        let known: Vec<TargetId> = resolved.targets.into_keys().collect();
        work.inventories = if resolved.inventories.is_empty() {
            self.own_inventories(&known)
        } else {
            let taken = resolved.inventories.into_iter().filter_map(|(name, i)| self.take_inventory(name, i));
            taken.collect()
        };
        let unbound = |id: &&TargetId| !work.inventories.iter().any(|i| i.targets.contains(id));
        self.notes
            .extend(known.iter().filter(unbound).map(|id| format!("target {id} belongs to no inventory")));
        if known.is_empty() && self.problems.is_empty() {
            self.problems.push("the manifests hold no KollectTarget or KollectClusterTarget: add one".into());
        }
        work.notes = std::mem::take(&mut self.notes);
        work
    }

    /// An object for messages: where it stands, its kind and its name.
    fn who(&self, kind: &str, name: &Name) -> String {
        match self.places.get(&(kind.to_owned(), name.clone())) {
            Some(place) => format!("{place}: {kind} {}", name.1),
            None => format!("{kind} {}", name.1),
        }
    }

    /// Whether the schema has not reported the field already. A schema error of a whole `spec` is about several
    /// fields together: it hides only errors of sinks, whose plans report the same again.
    fn is_new(&self, kind: &str, name: &Name, error: &SpecError) -> bool {
        let Some(wrong) = self.wrong.get(&(kind.to_owned(), name.clone())) else { return true };
        let is_sink = [Family::Snapshot, Family::Database, Family::Event].iter().any(|f| f.kind() == kind);
        let told = wrong.iter().filter(|field| is_sink || *field != "spec");
        !told.into_iter().any(|field| readable::covers(field, &error.field))
    }

    fn take_target(&mut self, id: &TargetId, target: &ResolvedTarget, operator_policy: &OperatorPolicy) {
        let kind = if id.namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
        let name = (id.namespace.as_deref().unwrap_or_default().to_owned(), id.name.to_string());
        let who = self.who(kind, &name);
        // Faults of the profile and of scopes are reported with these objects.
        let mut faults: Vec<Fault> = target.faults.clone();
        faults.retain(|fault| !matches!(fault.reason, Reason::ProfileInvalid | Reason::ScopeUnreadable));
        if target.target.is_none() && !faults.iter().any(|fault| fault.reason == Reason::InvalidSpec) {
            // Its resource rules have not been checked: that needs a profile, and scopes that allow it.
            faults.extend(self.object_set.check_rules(id, operator_policy));
        }
        faults.retain(|fault| self.is_new(kind, &name, &fault.error));
        self.problems.extend(faults.iter().map(|fault| format!("{who}: {fault}")));
        self.notes.extend(target.clipped.iter().map(|fault| format!("{who}: {fault}")));
        if target.suspended && target.faults.is_empty() {
            self.notes.push(format!("{who} is suspended: it was not collected, its rows stay"));
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
                    self.problems.push(format!("{}: {error}", self.who("KollectConnectionTest", name)));
                }
            }
        }
    }

    fn take_inventory(&mut self, name: InventoryName, inventory: ResolvedInventory) -> Option<Inventory> {
        let kind = if name.namespace.is_some() { "KollectInventory" } else { "KollectClusterInventory" };
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        let who = self.who(kind, &key);
        let faults = inventory.faults.iter().chain(&inventory.missing);
        let faults = faults.filter(|fault| fault.reason != Reason::ScopeUnreadable);
        let new = faults.filter(|fault| self.is_new(kind, &key, &fault.error));
        self.problems.extend(new.map(|fault| format!("{who}: {fault}")).collect::<Vec<_>>());
        self.notes.extend(inventory.notes.iter().map(|note| format!("{who}: {note}")));
        let sinks = inventory.sinks.into_iter().map(|sink| self.take_sink(&who, sink)).collect();
        if inventory.suspended {
            self.notes.push(format!("{who} is suspended and was not written"));
            return None;
        }
        let InventoryName { namespace, name } = name;
        Some(Inventory { namespace, name, targets: inventory.targets, rows: inventory.rows, sinks })
    }

    /// Faults of the reference are problems of the inventory; faults of the sink matter only to a run that writes.
    fn take_sink(&mut self, who: &str, sink: resolve::BoundSink) -> BoundSink {
        let resolve::BoundSink { name, family, key, cluster, cadence, part_bytes, plan, .. } = sink;
        // Manifests hold their Secrets: none is being looked up.
        let plan = (*plan).clone().and_then(|plan| plan.ok_or_else(Vec::new)).map_err(|faults| {
            let of_reference = |fault: &Fault| {
                matches!(
                    fault.reason,
                    Reason::SinkNotFound | Reason::ScopeSinkDenied | Reason::SinkNamespaceDenied
                )
            };
            let (own, others): (Vec<Fault>, Vec<Fault>) = faults.into_iter().partition(of_reference);
            self.problems.extend(own.iter().map(|fault| format!("{who}: {fault}")));
            let sink = self.who(family.kind(), &key);
            let others = others.iter().filter(|fault| self.is_new(family.kind(), &key, &fault.error));
            others.map(|fault| format!("{sink}: {fault}")).collect()
        });
        BoundSink { name, cluster, cadence, part_bytes, plan }
    }

    /// Without inventories among the manifests each target is an inventory of its own.
    fn own_inventories(&mut self, known: &[TargetId]) -> Vec<Inventory> {
        let mut inventories = Vec::new();
        for id in known {
            if id.namespace.as_deref() == Some(CLUSTER_NAMESPACE) {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                self.problems
                    .push(format!("KollectTarget {}: metadata.namespace = \"cluster\": {problem}", id.name));
            }
            inventories.push(Inventory {
                namespace: id.namespace.as_deref().map(Into::into),
                name: id.name.to_string(),
                targets: vec![id.clone()],
                rows: RowsWanted::default(),
                sinks: Vec::new(),
            });
        }
        inventories
    }
}
