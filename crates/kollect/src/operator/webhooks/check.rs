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
    review::{ObjectReview, RefusalReason, ReviewResult},
};
use crate::{
    reason::Reason,
    resolve::{
        CompiledObjects, Family, InventoryName, ObjectFault, ObjectName, ObjectSet, OperatorPolicy,
        check_sink,
    },
    schema::KindSchema,
};

/// Checks one object of a kind.
pub(super) struct ObjectCheck<'a> {
    kind: &'a KindSchema,
    cache: &'a ObjectCache,
    operator_policy: &'a OperatorPolicy,
    within: Option<&'a BTreeSet<Arc<str>>>,
    result: ReviewResult,
}

impl<'a> ObjectCheck<'a> {
    pub(super) fn new(
        kind: &'a KindSchema,
        cache: &'a ObjectCache,
        operator_policy: &'a OperatorPolicy,
        within: Option<&'a BTreeSet<Arc<str>>>,
    ) -> Self {
        Self { kind, cache, operator_policy, within, result: ReviewResult::default() }
    }

    pub(super) fn check(mut self, review: &ObjectReview) -> ReviewResult {
        let mut object = review.object.clone();
        if let Some(fields) = object.as_object_mut() {
            // The status is not part of the request.
            fields.remove("status");
        }
        let errors = self.kind.check(&mut object);
        if errors.is_empty() {
            self.check_object(object);
        } else {
            errors.into_iter().for_each(|error| self.refuse(error, false));
        }
        if review.is_same_spec() {
            let problems = std::mem::take(&mut self.result.problems);
            self.result.warnings.extend(problems.iter().map(|problem| problem.error.to_string()));
        }
        self.result
    }

    fn check_object(&mut self, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let name = (text("namespace"), text("name"));
        match &*self.kind.name {
            "KollectProfile" => self.read(object, |check, profile| check.profile(name, profile)),
            "KollectTarget" => self.read(object, |check, target| check.target(name, target)),
            "KollectClusterTarget" => self.read(object, |check, target| check.cluster_target(name, target)),
            "KollectInventory" => self.read(object, |check, inventory| check.inventory(name, inventory)),
            "KollectClusterInventory" => {
                self.read(object, |check, inventory| check.cluster_inventory(name, inventory));
            }
            "KollectSnapshotSink" => self.read(object, |check, sink: KollectSnapshotSink| {
                check.sink(&name, &SinkSpec::Snapshot(sink.spec));
            }),
            "KollectDatabaseSink" => self.read(object, |check, sink: KollectDatabaseSink| {
                check.sink(&name, &SinkSpec::Database(sink.spec));
            }),
            "KollectEventSink" => self.read(object, |check, sink: KollectEventSink| {
                check.sink(&name, &SinkSpec::Event(sink.spec));
            }),
            "KollectConnectionTest" => self.read(object, |check, test| check.connection_test(&name, &test)),
            // The schema is the only check of scopes.
            _ => drop(self.warn_if_not_watched(&name.0)),
        }
    }

    fn read<T: DeserializeOwned>(&mut self, object: Value, check: impl FnOnce(&mut Self, T)) {
        match serde_json::from_value(object) {
            Ok(object) => check(self, object),
            Err(error) => self.refuse(SpecError::absent("spec", error.to_string()), false),
        }
    }

    fn profile(&mut self, name: ObjectName, profile: KollectProfile) {
        self.warn_if_not_watched(&name.0);
        self.result.warnings.extend(advice::paths(&profile.spec));
        let object_set =
            ObjectSet { profiles: [(name.clone(), Arc::new(profile))].into(), ..ObjectSet::default() };
        match object_set.resolve(self.operator_policy, &mut CompiledObjects::default()).profiles.remove(&name)
        {
            Some(Ok(compiled)) => {
                self.result.warnings.extend(compiled.warnings.iter().map(ToString::to_string));
            }
            Some(Err(errors)) => errors.into_iter().for_each(|error| self.refuse(error, false)),
            None => {}
        }
    }

    fn target(&mut self, name: ObjectName, target: KollectTarget) {
        let profile = (name.0.clone(), target.spec.profile_ref.clone());
        let mut object_set = self.objects_of_target(&profile);
        let id = TargetId { namespace: Some(name.0.as_str().into()), name: name.1.as_str().into() };
        object_set.targets.insert(name, Arc::new(target));
        self.resolve_target(&id, &object_set);
    }

    fn cluster_target(&mut self, name: ObjectName, target: KollectClusterTarget) {
        let reference = &target.spec.profile_ref;
        let mut object_set = self.objects_of_target(&(reference.namespace.clone(), reference.name.clone()));
        let id = TargetId { namespace: None, name: name.1.as_str().into() };
        object_set.cluster_targets.insert((String::new(), name.1), Arc::new(target));
        self.resolve_target(&id, &object_set);
    }

    /// Scopes and one profile: a target depends on nothing else.
    fn objects_of_target(&self, profile: &ObjectName) -> ObjectSet {
        let object_set = self.cache.object_set();
        let profiles = object_set.profiles.get(profile).map(|found| (profile.clone(), found.clone()));
        ObjectSet {
            profiles: profiles.into_iter().collect(),
            scopes: object_set.scopes,
            cluster_scopes: object_set.cluster_scopes,
            refused: object_set.refused,
            ..ObjectSet::default()
        }
    }

    fn resolve_target(&mut self, id: &TargetId, object_set: &ObjectSet) {
        let namespace = id.namespace.as_deref().unwrap_or_default();
        self.needs_scopes(namespace);
        let resolved =
            object_set.resolve(self.operator_policy, &mut CompiledObjects::default()).targets.remove(id);
        let (faults, clipped) = match resolved {
            Some(target) => {
                self.result.warnings.extend(target.notes);
                self.result.warnings.extend(target.tenant_editable);
                (target.faults, target.clipped)
            }
            None => Default::default(),
        };
        let is_watched = self.warn_if_not_watched(namespace);
        self.add_faults(
            faults.into_iter().chain(clipped).chain(object_set.check_rules(id, self.operator_policy)),
            is_watched,
        );
    }

    fn inventory(&mut self, name: ObjectName, inventory: KollectInventory) {
        let mut object_set = self.objects_of_inventory();
        let id = InventoryName { namespace: Some(name.0.clone()), name: name.1.clone() };
        object_set.inventories.insert(name, Arc::new(inventory));
        self.resolve_inventory(&id, &object_set);
    }

    fn cluster_inventory(&mut self, name: ObjectName, inventory: KollectClusterInventory) {
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
            ..self.cache.object_set()
        }
    }

    fn resolve_inventory(&mut self, id: &InventoryName, object_set: &ObjectSet) {
        let namespace = id.namespace.as_deref().unwrap_or_default();
        self.needs_scopes(namespace);
        let resolved =
            object_set.resolve(self.operator_policy, &mut CompiledObjects::default()).inventories.remove(id);
        let resolved = resolved.unwrap_or_default();
        let is_watched = self.warn_if_not_watched(namespace);
        self.add_faults(resolved.faults.into_iter().chain(resolved.missing), is_watched);
        self.forbid(object_set.inventory_below_floor(id));
        // The status of a sink reports errors in the sink itself.
        let of_reference = |fault: &&ObjectFault| fault.reason != Reason::InvalidSpec;
        let plans = resolved.sinks.iter().filter_map(|sink| sink.plan.as_ref().as_ref().err());
        self.add_faults(plans.flatten().filter(of_reference).cloned(), is_watched);
        self.result.warnings.extend(resolved.notes);
        self.result.warnings.extend(resolved.tenant_editable);
    }

    fn sink(&mut self, name: &ObjectName, spec: &SinkSpec) {
        self.warn_if_not_watched(&name.0);
        self.needs_scopes(&name.0);
        self.result.warnings.extend(advice::sink(spec));
        self.result.warnings.extend(kollect_sinks::advice(spec));
        self.add_faults(check_sink(spec, &name.0, self.operator_policy), true);
        self.forbid(self.cache.object_set().sink_below_floor(spec, &name.0));
    }

    fn connection_test(&mut self, name: &ObjectName, test: &KollectConnectionTest) {
        if !self.warn_if_not_watched(&name.0) {
            return;
        }
        let reference = &test.spec.sink_ref;
        let object_set = self.cache.object_set();
        for (family, field, sink) in [
            (Family::Snapshot, "spec.sinkRef.snapshotSinkRef", &reference.snapshot_sink_ref),
            (Family::Database, "spec.sinkRef.databaseSinkRef", &reference.database_sink_ref),
            (Family::Event, "spec.sinkRef.eventSinkRef", &reference.event_sink_ref),
        ] {
            let Some(sink) = sink else { continue };
            let missing = object_set.missing_sink(family, &(name.0.clone(), sink.clone()), field);
            self.result.warnings.extend(missing.map(|error| error.to_string()));
        }
    }

    /// Whether the operator watches the namespace; if not, a warning is added.
    fn warn_if_not_watched(&mut self, namespace: &str) -> bool {
        let Some(within) = self.within else { return true };
        let is_watched = self.kind.namespaced && within.contains(namespace);
        if !is_watched {
            let names: Vec<&str> = within.iter().map(|name| &**name).collect();
            let namespaces = names.join(", ");
            self.result.warnings.push(format!(
                "this operator watches {namespaces} only (--watch-namespaces): it will do nothing with this object"
            ));
        }
        is_watched
    }

    /// Refuses the object if scopes cannot be read: one of them may forbid it.
    fn needs_scopes(&mut self, namespace: &str) {
        let scope = if self.kind.namespaced { "KollectScope" } else { "KollectClusterScope" };
        if let Some(why) = self.cache.unseen(scope, namespace) {
            let problem = format!("no {scope} can be seen, and one may forbid this: {why}");
            self.refuse(SpecError::absent("metadata.namespace", problem), true);
        }
    }

    /// Refuses faults, and warns about missing objects unless the operator does not watch them (not `is_watched`).
    fn add_faults(&mut self, faults: impl IntoIterator<Item = ObjectFault>, is_watched: bool) {
        for ObjectFault { reason, error } in faults {
            match reason {
                Reason::ProfileNotFound
                | Reason::ProfileInvalid
                | Reason::SinkNotFound
                | Reason::TargetNotFound => {
                    self.result.warnings.extend(is_watched.then(|| error.to_string()));
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
        let problem = RefusalReason { error, forbidden };
        if !self.result.problems.contains(&problem) {
            self.result.problems.push(problem);
        }
    }
}
