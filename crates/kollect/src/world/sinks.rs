//! Sinks: how to open each of them, and which Secrets that takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_model::{SpecError, crd::shapes::SecretReference, sink::SinkSpec};
use kollect_sinks::{Plan, Secrets};

use super::{Family, Fault, Name, Rules, Secret, World, dangling};
use crate::reason::Reason;

/// How to open a sink, or why it cannot be used; `Ok(None)` while its Secrets are being looked up.
pub(crate) type SinkPlan = Result<Option<Plan>, Vec<Fault>>;

/// The plan of each sink.
pub(crate) type SinkPlans = BTreeMap<(Family, Name), Arc<SinkPlan>>;

impl World {
    pub(super) fn plan_sinks(&self, rules: &Rules) -> SinkPlans {
        let plan = |(key, spec): (&(Family, Name), &Arc<SinkSpec>)| {
            let plan = self.plan_sink(spec, &key.1.0, rules);
            (key.clone(), Arc::new(plan.map(|plan| plan.map(|plan| plan.named(&key.1.1)))))
        };
        self.sinks.iter().map(plan).collect()
    }

    fn plan_sink(&self, spec: &SinkSpec, namespace: &str, rules: &Rules) -> SinkPlan {
        let plan = plan_without_secrets(spec, namespace, rules)?;
        let Some(secrets) = self.secrets_of(spec, namespace, rules)? else { return Ok(None) };
        let unfit = |error| Fault::new(Reason::SecretResolveFailed, error);
        let plan = plan
            .with_secrets(&secrets)
            .map_err(|errors| errors.into_iter().map(unfit).collect::<Vec<_>>())?;
        plan.check(&rules.sink_policy(namespace)).map_err(invalid)?;
        Ok(Some(plan))
    }

    /// The Secrets that sinks may read.
    pub(crate) fn wanted_secrets(&self, rules: &Rules) -> BTreeSet<Name> {
        let mut wanted = BTreeSet::new();
        for ((_, (own, _)), spec) in &self.sinks {
            for (field, SecretReference { name, namespace }) in spec.secret_refs() {
                let namespace = namespace.as_deref().unwrap_or(own);
                if foreign_secret(field, own, namespace, rules).is_none() {
                    wanted.insert((namespace.to_owned(), name.clone()));
                }
            }
        }
        wanted
    }

    /// What the Secrets of a sink hold, if all of them can be read; `None`: nobody knows yet.
    fn secrets_of(&self, spec: &SinkSpec, own: &str, rules: &Rules) -> Result<Option<Secrets>, Vec<Fault>> {
        let (mut secrets, mut faults, mut awaited) = (Secrets::default(), Vec::new(), false);
        for (field, SecretReference { name, namespace }) in spec.secret_refs() {
            let namespace = namespace.as_deref().unwrap_or(own);
            if let Some(error) = foreign_secret(field, own, namespace, rules) {
                faults.push(Fault::new(Reason::SecretResolveFailed, error));
                continue;
            }
            let key = (namespace.to_owned(), name.clone());
            match self.secrets.get(&key) {
                Some(Secret::Awaited) => awaited = true,
                Some(Secret::Known(contents)) => secrets.insert(field, (**contents).clone()),
                Some(Secret::Unreadable(why)) => {
                    let error = SpecError::new(field, &name.as_str().into(), why.clone());
                    faults.push(Fault::new(Reason::SecretResolveFailed, error));
                }
                // It is there, and what is wrong with it has been said.
                None if self.is_refused("Secret", &key) => {}
                None => {
                    let error = dangling(field, name, &format!("Secret {name}"), namespace);
                    faults.push(Fault::new(Reason::SecretResolveFailed, error));
                }
            }
        }
        if faults.is_empty() { Ok((!awaited).then_some(secrets)) } else { Err(faults) }
    }
}

fn invalid(errors: Vec<SpecError>) -> Vec<Fault> {
    errors.into_iter().map(|error| Fault::new(Reason::InvalidSpec, error)).collect()
}

fn plan_without_secrets(spec: &SinkSpec, namespace: &str, rules: &Rules) -> Result<Plan, Vec<Fault>> {
    let plan = kollect_sinks::plan(spec).map_err(invalid)?;
    plan.check(&rules.sink_policy(namespace)).map_err(invalid)?;
    Ok(plan)
}

/// What is wrong with a sink, whatever its Secrets hold.
pub(crate) fn check_sink(spec: &SinkSpec, own: &str, rules: &Rules) -> Vec<Fault> {
    let mut faults = plan_without_secrets(spec, own, rules).err().unwrap_or_default();
    let foreign = spec.secret_refs().into_iter().filter_map(|(field, reference)| {
        foreign_secret(field, own, reference.namespace.as_deref().unwrap_or(own), rules)
    });
    faults.extend(foreign.map(|error| Fault::new(Reason::InvalidSpec, error)));
    faults
}

/// Why a sink of namespace `own` may not read Secrets of `namespace`.
fn foreign_secret(field: &str, own: &str, namespace: &str, rules: &Rules) -> Option<SpecError> {
    let pair = (own.to_owned(), namespace.to_owned());
    let allowed =
        namespace == own || rules.secret_namespaces.as_ref().is_none_or(|allowed| allowed.contains(&pair));
    if allowed {
        return None;
    }
    let problem = format!(
        "a sink reads Secrets of its own namespace; the operator's --allow-secret-namespaces \
         {own}={namespace} would allow this one"
    );
    Some(SpecError::new(format!("{field}.namespace"), &namespace.into(), problem))
}
