//! Targets of both kinds: their profile, what scopes leave of them, and what they select.

use std::{collections::BTreeMap, sync::Arc};

use kollect_engine::{
    collect::Target,
    extract::CompiledProfile,
    select::{Bounds, RejectingClause, Selection},
};
use kollect_model::{
    SpecError,
    crd::{scope::ScopeCeiling, shapes::Gvk, target::ResourceRule},
    row::TargetId,
    schema::TargetSchema,
};
use kube::ResourceExt;

use crate::reason::Reason;

use super::{
    CachedTarget, Ceilings, CompiledObjects, ObjectFault, ObjectName, ObjectSet, OperatorPolicy, Profiles,
    REQUESTED_AT, TargetSpec, dangling,
};

/// A target after its references were resolved.
pub(crate) struct ResolvedTarget {
    /// What is collected; `None` if nothing can be, or if the target is suspended: then its rows stay.
    pub(crate) target: Option<Arc<Target>>,
    /// Its profile, whether it exists or not.
    pub(crate) profile: ObjectName,
    /// What it declares about its rows; `None` without a valid profile.
    pub(crate) schema: Option<TargetSchema>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) suspended: bool,
    /// Scopes allow nothing of it: its rows are removed.
    pub(crate) denied: bool,
    /// Why nothing is collected.
    pub(crate) faults: Vec<ObjectFault>,
    /// What scopes deny of it, and the namespaces that it names beyond its reach.
    pub(crate) clipped: Vec<ObjectFault>,
    /// Notes for the user that are not faults.
    pub(crate) notes: Vec<String>,
    /// Why users other than those who may edit the target decide what it collects.
    pub(crate) tenant_editable: Option<String>,
}

/// A target of either kind, before its references are resolved.
struct RequestedTarget<'a> {
    id: TargetId,
    labels: &'a BTreeMap<String, String>,
    profile: ObjectName,
    resource_rules: &'a [ResourceRule],
    included: &'a [String],
    suspended: bool,
    /// Value of the annotation `kollect.dev/requestedAt`: all objects are read again when it changes.
    requested: Option<String>,
    ceilings: Ceilings<'a>,
    bounds: Bounds,
    spec: TargetSpec,
}

impl ObjectSet {
    pub(super) fn resolve_targets(
        &self,
        operator_policy: &OperatorPolicy,
        [profiles, cluster_profiles]: [&Profiles; 2],
        compiled: &mut CompiledObjects,
    ) -> BTreeMap<TargetId, ResolvedTarget> {
        let requests = self.requested_targets(operator_policy);
        let resolved: BTreeMap<TargetId, ResolvedTarget> = requests
            .into_iter()
            .map(|request| {
                let profiles = if request.id.namespace.is_some() { profiles } else { cluster_profiles };
                (request.id.clone(), self.resolve_target(request, operator_policy, profiles, compiled))
            })
            .collect();
        compiled.targets.retain(|id, _| resolved.contains_key(id));
        resolved
    }

    fn requested_targets<'a>(&'a self, operator_policy: &OperatorPolicy) -> Vec<RequestedTarget<'a>> {
        let targets = self.targets.iter().map(|((namespace, name), target)| {
            let ceilings = self.scopes_of(namespace);
            RequestedTarget {
                id: TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() },
                labels: target.labels(),
                profile: (namespace.clone(), target.spec.profile_ref.clone()),
                resource_rules: &target.spec.filter.resource_rules,
                included: &target.spec.filter.included_namespaces,
                suspended: target.spec.suspend,
                requested: target.annotations().get(REQUESTED_AT).cloned(),
                bounds: operator_policy.bounds(Some(namespace), ceilings.values()),
                ceilings,
                spec: TargetSpec::Target(Box::new(target.spec.clone())),
            }
        });
        let cluster_targets = self.cluster_targets.iter().map(|((_, name), target)| {
            let ceilings = self.cluster_scopes();
            RequestedTarget {
                id: TargetId { namespace: None, name: name.as_str().into() },
                labels: target.labels(),
                profile: (target.spec.profile_ref.namespace.clone(), target.spec.profile_ref.name.clone()),
                resource_rules: &target.spec.filter.resource_rules,
                included: &target.spec.filter.included_namespaces,
                suspended: target.spec.suspend,
                requested: target.annotations().get(REQUESTED_AT).cloned(),
                bounds: operator_policy.bounds(None, ceilings.values()),
                ceilings,
                spec: TargetSpec::ClusterTarget(Box::new(target.spec.clone())),
            }
        });
        targets.chain(cluster_targets).collect()
    }

    fn resolve_target(
        &self,
        request: RequestedTarget<'_>,
        operator_policy: &OperatorPolicy,
        profiles: &Profiles,
        compiled: &mut CompiledObjects,
    ) -> ResolvedTarget {
        let mut resolved = ResolvedTarget {
            target: None,
            profile: request.profile.clone(),
            schema: None,
            labels: request.labels.clone(),
            suspended: request.suspended,
            denied: false,
            faults: request.ceilings.unreadable().into_iter().collect(),
            clipped: Vec::new(),
            notes: request.notes(),
            tenant_editable: None,
        };
        let profile = profiles.get(&request.profile);
        let (namespace, name) = &request.profile;
        if request.id.namespace.is_none() {
            let object = format!("KollectProfile {name}");
            let decides = "what this cluster target collects";
            resolved.tenant_editable =
                request.ceilings.tenant_editable(operator_policy, namespace, &object, decides);
        }
        match profile {
            None if self.is_refused("KollectProfile", &request.profile) => {}
            None => {
                let error = dangling("spec.profileRef", name, &format!("KollectProfile {name}"), namespace);
                resolved.faults.push(ObjectFault::new(Reason::ProfileNotFound, error));
            }
            Some(Err(errors)) => {
                let first = errors.first().map_or_else(String::new, |error| format!(": {error}"));
                let problem = format!("KollectProfile {name} is wrong{first}");
                let error = SpecError::new("spec.profileRef", &name.as_str().into(), problem);
                resolved.faults.push(ObjectFault::new(Reason::ProfileInvalid, error));
            }
            Some(Ok(profile)) => {
                let profile_name = format!("{namespace}/{name}");
                resolved.schema =
                    Some(TargetSchema { profile: profile_name, attributes: profile.schema.clone() });
            }
        }
        let profile = profile.and_then(|profile| profile.as_ref().ok());
        request.check_scopes(profile, &mut resolved);
        let Some(profile) = profile.filter(|_| resolved.faults.is_empty()) else { return resolved };
        match definition(&request, profile, operator_policy, compiled) {
            Ok(_) if request.suspended => {}
            Ok(target) => resolved.target = Some(target),
            Err(errors) => {
                resolved
                    .faults
                    .extend(errors.into_iter().map(|error| ObjectFault::new(Reason::InvalidSpec, error)));
            }
        }
        resolved
    }
}

impl ObjectSet {
    /// What is wrong with the resource rules of a target, regardless of its profile and its scopes.
    pub(crate) fn check_rules(&self, id: &TargetId, operator_policy: &OperatorPolicy) -> Vec<ObjectFault> {
        let request = self.requested_targets(operator_policy).into_iter().find(|request| request.id == *id);
        let Some(request) = request else { return Vec::new() };
        // The kind does not matter: resource rules name their own.
        let kind = Gvk { group: String::new(), version: "v1".into(), kind: "ConfigMap".into() };
        let errors =
            select(&request.spec, &kind, &Bounds::default(), operator_policy).err().unwrap_or_default();
        errors.into_iter().map(|error| ObjectFault::new(Reason::InvalidSpec, error)).collect()
    }
}

fn select(
    spec: &TargetSpec,
    gvk: &Gvk,
    bounds: &Bounds,
    operator_policy: &OperatorPolicy,
) -> Result<Selection, Vec<SpecError>> {
    let OperatorPolicy { policy, defaults, .. } = operator_policy;
    match spec {
        TargetSpec::Target(spec) => Selection::of_target(spec, gvk, bounds, policy, defaults),
        TargetSpec::ClusterTarget(spec) => Selection::of_cluster_target(spec, gvk, bounds, policy, defaults),
    }
}

impl RequestedTarget<'_> {
    /// Adds what scopes deny: some kinds and namespaces are cut off; if nothing is left the target is denied.
    fn check_scopes(&self, profile: Option<&Arc<CompiledProfile>>, resolved: &mut ResolvedTarget) {
        let profile_kind = profile.map(|profile| &profile.gvk).filter(|_| self.resource_rules.is_empty());
        let kinds: Vec<&Gvk> = self.resource_rules.iter().map(|rule| &rule.gvk).chain(profile_kind).collect();
        let mut denied = Vec::new();
        for gvk in &kinds {
            let scope = self.ceilings.scopes.iter().find(|(_, ceiling)| !ceiling.allows_kind(gvk));
            if let Some((scope_name, _)) = scope {
                let error =
                    SpecError::absent("spec.profileRef", format!("{scope_name} does not allow kind {gvk}"));
                denied.push(ObjectFault::new(Reason::ScopeGVKDenied, error));
            }
        }
        if denied.len() == kinds.len() && !kinds.is_empty() {
            resolved.denied = true;
            resolved.faults.append(&mut denied);
        }
        resolved.clipped.append(&mut denied);
        let denies_resources = |ceiling: &ScopeCeiling| ceiling.allow_resource_export == Some(false);
        if profile.is_some_and(|profile| profile.exports_resources())
            && let Some((scope_name, _)) =
                self.ceilings.scopes.iter().find(|(_, ceiling)| denies_resources(ceiling))
        {
            let problem = format!("{scope_name} does not allow profiles with export.mode Resource");
            resolved.denied = true;
            let error = SpecError::absent("spec.profileRef", problem);
            resolved.faults.push(ObjectFault::new(Reason::ScopeGVKDenied, error));
        }
        if let Some(scope_name) = self.ceilings.denies_static(&self.profile.0) {
            let problem = format!("{scope_name} does not allow profiles of namespace {}", self.profile.0);
            let error = SpecError::absent("spec.profileRef.namespace", problem);
            resolved.denied = true;
            resolved.faults.push(ObjectFault::new(Reason::ScopeNamespaceDenied, error));
        }
        for (index, name) in self.included.iter().enumerate() {
            let (reason, problem) = match self.bounds.permit_namespace(name, None) {
                Some(Err(RejectingClause::BeyondReach)) => (Reason::BeyondReach, beyond_reach(&self.id)),
                Some(Err(_)) => (Reason::ScopeNamespaceDenied, self.denying_scope(name)),
                // Permitted, or decided by labels: the status reports that.
                Some(Ok(())) | None => continue,
            };
            let field = format!("spec.includedNamespaces[{index}]");
            let error = SpecError::new(field, &name.as_str().into(), problem);
            resolved.clipped.push(ObjectFault::new(reason, error));
        }
    }

    /// A note if the target selects namespaces by labels although only its own is within reach.
    fn notes(&self) -> Vec<String> {
        let TargetSpec::Target(spec) = &self.spec else { return Vec::new() };
        let by_labels = spec.namespace_selector.is_some()
            || spec.filter.resource_rules.iter().any(|rule| rule.namespace_selector.is_some());
        if !by_labels || self.bounds.reach().is_none() {
            return Vec::new();
        }
        let namespace = self.id.namespace.as_deref().unwrap_or_default();
        vec![format!(
            "spec.namespaceSelector: only namespace {namespace} is within reach; name others in spec.allowedNamespaces \
             of a KollectScope in namespace {namespace}"
        )]
    }

    fn denying_scope(&self, namespace: &str) -> String {
        let denies = |ceiling: &ScopeCeiling| ceiling.allows_namespace(namespace, None) == Some(false);
        let scope = self.ceilings.scopes.iter().find(|(_, ceiling)| denies(ceiling));
        format!("{} does not allow this namespace", scope.map_or("a scope", |(scope_name, _)| scope_name))
    }
}

/// The message for a namespace that is beyond the reach of a target.
fn beyond_reach(target: &TargetId) -> String {
    let namespace = target.namespace.as_deref().unwrap_or_default();
    format!(
        "a target collects from its own namespace; to let this one collect from others too, list {namespace} and the \
         others in spec.allowedNamespaces of a KollectScope in namespace {namespace}"
    )
}

impl Ceilings<'_> {
    /// Why users of a namespace control a cluster object: it refers to `object`, which they may edit there.
    /// The operator's own namespace and those that a KollectClusterScope lists are trusted.
    pub(super) fn tenant_editable(
        &self,
        operator_policy: &OperatorPolicy,
        namespace: &str,
        object: &str,
        decides: &str,
    ) -> Option<String> {
        let own_namespace = operator_policy.own_namespace.as_deref()?;
        let trusted = namespace == own_namespace || self.names_static(namespace);
        (!trusted).then(|| {
            format!(
                "{object}: users who may edit it in namespace {namespace} decide {decides}; move it to {own_namespace}, or \
                 list {namespace} in allowedStaticRefNamespaces of a KollectClusterScope"
            )
        })
    }
}

/// The definition of a target: the same `Arc` as before if nothing has changed.
fn definition(
    request: &RequestedTarget<'_>,
    profile: &Arc<CompiledProfile>,
    operator_policy: &OperatorPolicy,
    compiled: &mut CompiledObjects,
) -> Result<Arc<Target>, Vec<SpecError>> {
    let same = |known: &&CachedTarget| {
        Arc::ptr_eq(&known.profile, profile)
            && known.spec == request.spec
            && known.requested == request.requested
            && known.bounds == request.bounds
    };
    if let Some(known) = compiled.targets.get(&request.id).filter(same) {
        return known.target.clone();
    }
    let selection = select(&request.spec, &profile.gvk, &request.bounds, operator_policy);
    let target =
        selection.map(|selection| Arc::new(Target::new(request.id.clone(), profile.clone(), selection)));
    let cached = CachedTarget {
        spec: request.spec.clone(),
        requested: request.requested.clone(),
        bounds: request.bounds.clone(),
        profile: profile.clone(),
        target: target.clone(),
    };
    compiled.targets.insert(request.id.clone(), cached);
    target
}
