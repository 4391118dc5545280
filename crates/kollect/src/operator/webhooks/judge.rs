//! Checks an object with the code that would process it later.

use std::{collections::BTreeSet, sync::Arc};

use kollect_model::{
    SpecError,
    crd::{
        KollectClusterInventory, KollectClusterTarget, KollectConnectionTest, KollectDatabaseSink,
        KollectEventSink, KollectInventory, KollectProfile, KollectSnapshotSink, KollectTarget,
    },
    row::TargetId,
    sink::SinkSpec,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    super::objects::ObjectCache,
    advice,
    review::{Problem, Question, Verdict},
};
use crate::{
    reason::Reason,
    resolve::{Compiled, Family, Fault, InventoryName, Name, ObjectSet, OperatorPolicy, check_sink},
    schema::Kind,
};

/// Judges one object of a kind.
pub(super) struct Judge<'a> {
    kind: &'a Kind,
    known: &'a ObjectCache,
    operator_policy: &'a OperatorPolicy,
    within: Option<&'a BTreeSet<Arc<str>>>,
    verdict: Verdict,
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        kind: &'a Kind,
        known: &'a ObjectCache,
        operator_policy: &'a OperatorPolicy,
        within: Option<&'a BTreeSet<Arc<str>>>,
    ) -> Self {
        Self { kind, known, operator_policy, within, verdict: Verdict::default() }
    }

    pub(super) fn judge(mut self, question: &Question) -> Verdict {
        let mut object = question.object.clone();
        if let Some(fields) = object.as_object_mut() {
            // The status is not part of the request.
            fields.remove("status");
        }
        let errors = self.kind.check(&mut object);
        if errors.is_empty() {
            self.consider(object);
        } else {
            errors.into_iter().for_each(|error| self.refuse(error, false));
        }
        if question.is_same_spec() {
            let problems = std::mem::take(&mut self.verdict.problems);
            self.verdict.warnings.extend(problems.iter().map(|problem| problem.error.to_string()));
        }
        self.verdict
    }

    fn consider(&mut self, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let name = (text("namespace"), text("name"));
        match &*self.kind.name {
            "KollectProfile" => self.read(object, |judge, profile| judge.profile(name, profile)),
            "KollectTarget" => self.read(object, |judge, target| judge.target(name, target)),
            "KollectClusterTarget" => self.read(object, |judge, target| judge.cluster_target(name, target)),
            "KollectInventory" => self.read(object, |judge, inventory| judge.inventory(name, inventory)),
            "KollectClusterInventory" => {
                self.read(object, |judge, inventory| judge.cluster_inventory(name, inventory));
            }
            "KollectSnapshotSink" => self.read(object, |judge, sink: KollectSnapshotSink| {
                judge.sink(&name, &SinkSpec::Snapshot(sink.spec));
            }),
            "KollectDatabaseSink" => self.read(object, |judge, sink: KollectDatabaseSink| {
                judge.sink(&name, &SinkSpec::Database(sink.spec));
            }),
            "KollectEventSink" => self.read(object, |judge, sink: KollectEventSink| {
                judge.sink(&name, &SinkSpec::Event(sink.spec));
            }),
            "KollectConnectionTest" => self.read(object, |judge, test| judge.connection_test(&name, &test)),
            // The schema is the only check of scopes.
            _ => drop(self.say_if_out_of_sight(&name.0)),
        }
    }

    fn read<T: DeserializeOwned>(&mut self, object: Value, judge: impl FnOnce(&mut Self, T)) {
        match serde_json::from_value(object) {
            Ok(object) => judge(self, object),
            Err(error) => self.refuse(SpecError::absent("spec", error.to_string()), false),
        }
    }

    fn profile(&mut self, name: Name, profile: KollectProfile) {
        self.say_if_out_of_sight(&name.0);
        self.verdict.warnings.extend(advice::paths(&profile.spec));
        let object_set =
            ObjectSet { profiles: [(name.clone(), Arc::new(profile))].into(), ..ObjectSet::default() };
        match object_set.resolve(self.operator_policy, &mut Compiled::default()).profiles.remove(&name) {
            Some(Ok(compiled)) => {
                self.verdict.warnings.extend(compiled.warnings.iter().map(ToString::to_string));
            }
            Some(Err(errors)) => errors.into_iter().for_each(|error| self.refuse(error, false)),
            None => {}
        }
    }

    fn target(&mut self, name: Name, target: KollectTarget) {
        let profile = (name.0.clone(), target.spec.profile_ref.clone());
        let mut object_set = self.objects_of_target(&profile);
        let id = TargetId { namespace: Some(name.0.as_str().into()), name: name.1.as_str().into() };
        object_set.targets.insert(name, Arc::new(target));
        self.resolve_target(&id, &object_set);
    }

    fn cluster_target(&mut self, name: Name, target: KollectClusterTarget) {
        let reference = &target.spec.profile_ref;
        let mut object_set = self.objects_of_target(&(reference.namespace.clone(), reference.name.clone()));
        let id = TargetId { namespace: None, name: name.1.as_str().into() };
        object_set.cluster_targets.insert((String::new(), name.1), Arc::new(target));
        self.resolve_target(&id, &object_set);
    }

    /// Scopes and one profile: a target depends on nothing else.
    fn objects_of_target(&self, profile: &Name) -> ObjectSet {
        let known = self.known.object_set();
        let profiles = known.profiles.get(profile).map(|found| (profile.clone(), found.clone()));
        ObjectSet {
            profiles: profiles.into_iter().collect(),
            scopes: known.scopes,
            cluster_scopes: known.cluster_scopes,
            refused: known.refused,
            ..ObjectSet::default()
        }
    }

    fn resolve_target(&mut self, id: &TargetId, object_set: &ObjectSet) {
        let namespace = id.namespace.as_deref().unwrap_or_default();
        self.needs_scopes(namespace);
        let resolved = object_set.resolve(self.operator_policy, &mut Compiled::default()).targets.remove(id);
        let (faults, clipped) = match resolved {
            Some(target) => {
                self.verdict.warnings.extend(target.notes);
                self.verdict.warnings.extend(target.tenant_editable);
                (target.faults, target.clipped)
            }
            None => Default::default(),
        };
        let sighted = self.say_if_out_of_sight(namespace);
        self.weigh(
            faults.into_iter().chain(clipped).chain(object_set.check_rules(id, self.operator_policy)),
            sighted,
        );
    }

    fn inventory(&mut self, name: Name, inventory: KollectInventory) {
        let mut object_set = self.objects_of_inventory();
        let id = InventoryName { namespace: Some(name.0.clone()), name: name.1.clone() };
        object_set.inventories.insert(name, Arc::new(inventory));
        self.resolve_inventory(&id, &object_set);
    }

    fn cluster_inventory(&mut self, name: Name, inventory: KollectClusterInventory) {
        let mut object_set = self.objects_of_inventory();
        let id = InventoryName { namespace: None, name: name.1.clone() };
        object_set.cluster_inventories.insert((String::new(), name.1), Arc::new(inventory));
        self.resolve_inventory(&id, &object_set);
    }

    /// Targets without their profiles: an inventory depends only on their names and labels.
    fn objects_of_inventory(&self) -> ObjectSet {
        ObjectSet {
            profiles: [].into(),
            inventories: [].into(),
            cluster_inventories: [].into(),
            ..self.known.object_set()
        }
    }

    fn resolve_inventory(&mut self, id: &InventoryName, object_set: &ObjectSet) {
        let namespace = id.namespace.as_deref().unwrap_or_default();
        self.needs_scopes(namespace);
        let resolved =
            object_set.resolve(self.operator_policy, &mut Compiled::default()).inventories.remove(id);
        let resolved = resolved.unwrap_or_default();
        let sighted = self.say_if_out_of_sight(namespace);
        self.weigh(resolved.faults.into_iter().chain(resolved.missing), sighted);
        self.forbid(object_set.inventory_below_floor(id));
        // The status of a sink reports errors in the sink itself.
        let of_reference = |fault: &&Fault| fault.reason != Reason::InvalidSpec;
        let plans = resolved.sinks.iter().filter_map(|sink| sink.plan.as_ref().as_ref().err());
        self.weigh(plans.flatten().filter(of_reference).cloned(), sighted);
        self.verdict.warnings.extend(resolved.notes);
        self.verdict.warnings.extend(resolved.tenant_editable);
    }

    fn sink(&mut self, name: &Name, spec: &SinkSpec) {
        self.say_if_out_of_sight(&name.0);
        self.needs_scopes(&name.0);
        self.verdict.warnings.extend(advice::sink(spec));
        self.verdict.warnings.extend(kollect_sinks::advice(spec));
        self.weigh(check_sink(spec, &name.0, self.operator_policy), true);
        self.forbid(self.known.object_set().sink_below_floor(spec, &name.0));
    }

    fn connection_test(&mut self, name: &Name, test: &KollectConnectionTest) {
        if !self.say_if_out_of_sight(&name.0) {
            return;
        }
        let reference = &test.spec.sink_ref;
        let object_set = self.known.object_set();
        for (family, field, sink) in [
            (Family::Snapshot, "spec.sinkRef.snapshotSinkRef", &reference.snapshot_sink_ref),
            (Family::Database, "spec.sinkRef.databaseSinkRef", &reference.database_sink_ref),
            (Family::Event, "spec.sinkRef.eventSinkRef", &reference.event_sink_ref),
        ] {
            let Some(sink) = sink else { continue };
            let missing = object_set.missing_sink(family, &(name.0.clone(), sink.clone()), field);
            self.verdict.warnings.extend(missing.map(|error| error.to_string()));
        }
    }

    /// Whether the operator watches the namespace; if not, a warning is added.
    fn say_if_out_of_sight(&mut self, namespace: &str) -> bool {
        let Some(within) = self.within else { return true };
        let sighted = self.kind.namespaced && within.contains(namespace);
        if !sighted {
            let names: Vec<&str> = within.iter().map(|name| &**name).collect();
            let place = names.join(", ");
            self.verdict.warnings.push(format!(
                "this operator looks at {place} only (--watch-namespaces): it will do nothing with this object"
            ));
        }
        sighted
    }

    /// Refuses the object if scopes cannot be read: one of them may forbid it.
    fn needs_scopes(&mut self, namespace: &str) {
        let scope = if self.kind.namespaced { "KollectScope" } else { "KollectClusterScope" };
        if let Some(why) = self.known.unseen(scope, namespace) {
            let problem = format!("no {scope} can be seen, and one may forbid this: {why}");
            self.refuse(SpecError::absent("metadata.namespace", problem), true);
        }
    }

    /// Refuses faults, and warns about missing objects unless the operator cannot see them (no `sighted`).
    fn weigh(&mut self, faults: impl IntoIterator<Item = Fault>, sighted: bool) {
        for Fault { reason, error } in faults {
            match reason {
                Reason::ProfileNotFound
                | Reason::ProfileInvalid
                | Reason::SinkNotFound
                | Reason::TargetNotFound => {
                    self.verdict.warnings.extend(sighted.then(|| error.to_string()));
                }
                // Secrets are not read here.
                Reason::SecretResolveFailed => {}
                Reason::InvalidSpec => self.refuse(error, false),
                _ => self.refuse(error, true),
            }
        }
    }

    /// Refuses what scopes do not allow.
    fn forbid(&mut self, errors: Vec<SpecError>) {
        errors.into_iter().for_each(|error| self.refuse(error, true));
    }

    fn refuse(&mut self, error: SpecError, forbidden: bool) {
        let problem = Problem { error, forbidden };
        if !self.verdict.problems.contains(&problem) {
            self.verdict.problems.push(problem);
        }
    }
}
