//! Sinks: how to open each of them, which Secrets are needed, and what makes their plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_model::{SpecError, crd::shapes::SecretReference, sink::SinkSpec};
use kollect_sinks::{Plan, Secrets, SinkPolicy};

use super::{Family, ObjectFault, ObjectName, ObjectSet, OperatorPolicy, Secret, SecretContents, dangling};
use crate::reason::Reason;

/// How to open a sink, or why it cannot be used; `Ok(None)` while its Secrets are being looked up, or its plan is
/// being made.
pub(crate) type SinkPlan = Result<Option<Plan>, Vec<ObjectFault>>;

/// Family, namespace and name of a sink.
pub(crate) type SinkKey = (Family, ObjectName);

/// The plan of each sink.
pub(crate) type SinkPlans = BTreeMap<SinkKey, Arc<SinkPlan>>;

/// Everything that the plan of a sink is made from. Equal requests have equal plans. Never printed: it holds credentials.
pub(crate) struct PlanRequest {
    pub(crate) name: String,
    spec: Arc<SinkSpec>,
    /// What its Secrets hold, by the field that names them; `None` while they are being looked up.
    secrets: Result<Option<BTreeMap<String, Arc<SecretContents>>>, Vec<ObjectFault>>,
    policy: SinkPolicy,
}

impl PartialEq for PlanRequest {
    fn eq(&self, other: &Self) -> bool {
        let Self { name, spec, secrets, policy } = self;
        *name == other.name
            && (Arc::ptr_eq(spec, &other.spec) || *spec == other.spec)
            && *secrets == other.secrets
            && *policy == other.policy
    }
}

impl PlanRequest {
    /// The plan. This parses keys and certificates, and opens keys with their passphrases: up to a second of work.
    pub(crate) fn plan(&self) -> SinkPlan {
        let plan = plan_without_secrets(&self.spec, &self.policy)?;
        let Some(contents) = self.secrets.clone()? else { return Ok(None) };
        let mut secrets = Secrets::default();
        for (field, contents) in contents {
            secrets.insert(field, (*contents).clone());
        }
        let unfit = |error| ObjectFault::new(Reason::SecretResolveFailed, error);
        let plan = plan
            .with_secrets(&secrets)
            .map_err(|errors| errors.into_iter().map(unfit).collect::<Vec<_>>())?;
        plan.check(&self.policy).map_err(invalid)?;
        Ok(Some(plan.named(&self.name)))
    }
}

/// Makes the plans of sinks.
pub(crate) trait PlanSinks: Send {
    /// The requested plan; `Ok(None)` while it is being made.
    fn plan(&mut self, sink: &SinkKey, request: PlanRequest) -> Arc<SinkPlan>;

    /// Drops the plans of all sinks for which `keep` returns false.
    fn retain(&mut self, keep: &dyn Fn(&SinkKey) -> bool);
}

/// Makes each plan at once when it is requested: for runs that resolve their objects once.
pub(super) struct PlanAtOnce;

impl PlanSinks for PlanAtOnce {
    fn plan(&mut self, _: &SinkKey, request: PlanRequest) -> Arc<SinkPlan> {
        Arc::new(request.plan())
    }

    fn retain(&mut self, _: &dyn Fn(&SinkKey) -> bool) {}
}

impl ObjectSet {
    pub(super) fn plan_sinks(
        &self,
        operator_policy: &OperatorPolicy,
        planner: &mut dyn PlanSinks,
    ) -> SinkPlans {
        planner.retain(&|sink| self.sinks.contains_key(sink));
        let plan = |(sink, spec): (&SinkKey, &Arc<SinkSpec>)| {
            let (namespace, name) = &sink.1;
            let request = PlanRequest {
                name: name.clone(),
                spec: spec.clone(),
                secrets: self.secrets_of(spec, namespace, operator_policy),
                policy: operator_policy.sink_policy(namespace),
            };
            (sink.clone(), planner.plan(sink, request))
        };
        self.sinks.iter().map(plan).collect()
    }

    /// The Secrets that sinks may read.
    pub(crate) fn wanted_secrets(&self, operator_policy: &OperatorPolicy) -> BTreeSet<ObjectName> {
        self.sinks.keys().flat_map(|sink| self.secrets_named_by(sink, operator_policy)).collect()
    }

    /// The Secrets that a sink names and may read.
    pub(crate) fn secrets_named_by(
        &self,
        sink: &SinkKey,
        operator_policy: &OperatorPolicy,
    ) -> Vec<ObjectName> {
        let sink_namespace = &sink.1.0;
        let references = self.sinks.get(sink).map(|spec| spec.secret_refs()).unwrap_or_default();
        let allowed = references.into_iter().filter_map(|(field, SecretReference { name, namespace })| {
            let namespace = namespace.as_deref().unwrap_or(sink_namespace);
            let is_allowed = secret_refusal(field, sink_namespace, namespace, operator_policy).is_none();
            is_allowed.then(|| (namespace.to_owned(), name.clone()))
        });
        allowed.collect()
    }

    /// What the Secrets of a sink hold, if all of them can be read; `Ok(None)` while one of them is being looked up.
    fn secrets_of(
        &self,
        spec: &SinkSpec,
        sink_namespace: &str,
        operator_policy: &OperatorPolicy,
    ) -> Result<Option<BTreeMap<String, Arc<SecretContents>>>, Vec<ObjectFault>> {
        let (mut secrets, mut faults, mut awaited) = (BTreeMap::new(), Vec::new(), false);
        for (field, SecretReference { name, namespace }) in spec.secret_refs() {
            let namespace = namespace.as_deref().unwrap_or(sink_namespace);
            if let Some(error) = secret_refusal(field, sink_namespace, namespace, operator_policy) {
                faults.push(ObjectFault::new(Reason::SecretResolveFailed, error));
                continue;
            }
            let key = (namespace.to_owned(), name.clone());
            match self.secrets.get(&key) {
                Some(Secret::Awaited) => awaited = true,
                Some(Secret::Contents(contents)) => {
                    secrets.insert(field.into(), contents.clone());
                }
                Some(Secret::Unreadable(why)) => {
                    let error = SpecError::new(field, &name.as_str().into(), why.clone());
                    faults.push(ObjectFault::new(Reason::SecretResolveFailed, error));
                }
                // The Secret exists but is invalid, which was already reported.
                None if self.is_refused("Secret", &key) => {}
                None => {
                    let error = dangling(field, name, &format!("Secret {name}"), namespace);
                    faults.push(ObjectFault::new(Reason::SecretResolveFailed, error));
                }
            }
        }
        if faults.is_empty() { Ok((!awaited).then_some(secrets)) } else { Err(faults) }
    }
}

fn invalid(errors: Vec<SpecError>) -> Vec<ObjectFault> {
    errors.into_iter().map(|error| ObjectFault::new(Reason::InvalidSpec, error)).collect()
}

fn plan_without_secrets(spec: &SinkSpec, policy: &SinkPolicy) -> Result<Plan, Vec<ObjectFault>> {
    let plan = kollect_sinks::plan(spec).map_err(invalid)?;
    plan.check(policy).map_err(invalid)?;
    Ok(plan)
}

/// Problems of a sink that do not depend on what its Secrets hold.
pub(crate) fn check_sink(
    spec: &SinkSpec,
    sink_namespace: &str,
    operator_policy: &OperatorPolicy,
) -> Vec<ObjectFault> {
    let mut faults =
        plan_without_secrets(spec, &operator_policy.sink_policy(sink_namespace)).err().unwrap_or_default();
    let foreign = spec.secret_refs().into_iter().filter_map(|(field, reference)| {
        secret_refusal(
            field,
            sink_namespace,
            reference.namespace.as_deref().unwrap_or(sink_namespace),
            operator_policy,
        )
    });
    faults.extend(foreign.map(|error| ObjectFault::new(Reason::InvalidSpec, error)));
    faults
}

/// Why a sink of `sink_namespace` may not read Secrets of `namespace`.
fn secret_refusal(
    field: &str,
    sink_namespace: &str,
    namespace: &str,
    operator_policy: &OperatorPolicy,
) -> Option<SpecError> {
    let pair = (sink_namespace.to_owned(), namespace.to_owned());
    let allowed = namespace == sink_namespace
        || operator_policy.secret_namespaces.as_ref().is_none_or(|allowed| allowed.contains(&pair));
    if allowed {
        return None;
    }
    let problem = format!(
        "a sink reads Secrets of its own namespace; the operator's --allow-secret-namespaces \
         {sink_namespace}={namespace} would allow this one"
    );
    Some(SpecError::new(format!("{field}.namespace"), &namespace.into(), problem))
}
