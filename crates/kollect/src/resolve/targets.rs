//! Targets of both kinds: their profile, what scopes leave of them, and what they select.

use std::{collections::BTreeMap, sync::Arc};

use kollect_engine::{
    collect::Target,
    extract::CompiledProfile,
    select::{Bounds, Rejected, Selection},
};
use kollect_model::{
    SpecError,
    crd::{scope::ScopeCeiling, shapes::Gvk, target::ResourceRule},
    row::TargetId,
};
use kube::ResourceExt;

use crate::reason::Reason;

use super::{
    AskedSpec, CachedTarget, Ceilings, Compiled, Fault, Name, ObjectSet, OperatorPolicy, Profiles,
    REQUESTED_AT, dangling,
};

/// A target after its references were resolved.
pub(crate) struct ResolvedTarget {
    /// What is collected; `None` if nothing can be, or if the target is suspended: then its rows stay.
    pub(crate) target: Option<Arc<Target>>,
    /// Its profile, whether it exists or not.
    pub(crate) profile: Name,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) suspended: bool,
    /// Scopes allow nothing of it: its rows are removed.
    pub(crate) denied: bool,
    /// Why nothing is collected.
    pub(crate) faults: Vec<Fault>,
    /// What scopes deny of it, and the namespaces that it names beyond its reach.
    pub(crate) clipped: Vec<Fault>,
    /// Notes for the user that are not faults.
    pub(crate) notes: Vec<String>,
    /// Why users other than those who may edit the target decide what it collects.
    pub(crate) tenant_editable: Option<String>,
}

/// A target of either kind, before it is known whether it can have what it asks for.
struct Asked<'a> {
    id: TargetId,
    labels: &'a BTreeMap<String, String>,
    profile: Name,
    resource_rules: &'a [ResourceRule],
    included: &'a [String],
    suspended: bool,
    /// Value of the annotation `kollect.dev/requestedAt`: all objects are read again when it changes.
    requested: Option<String>,
    ceilings: Ceilings<'a>,
    bounds: Bounds,
    spec: AskedSpec,
}

impl ObjectSet {
    pub(super) fn resolve_targets(
        &self,
        operator_policy: &OperatorPolicy,
        [profiles, cluster_profiles]: [&Profiles; 2],
        compiled: &mut Compiled,
    ) -> BTreeMap<TargetId, ResolvedTarget> {
        let asked = self.asked(operator_policy);
        let resolved: BTreeMap<TargetId, ResolvedTarget> = asked
            .into_iter()
            .map(|asked| {
                let profiles = if asked.id.namespace.is_some() { profiles } else { cluster_profiles };
                (asked.id.clone(), self.resolve_target(asked, operator_policy, profiles, compiled))
            })
            .collect();
        compiled.targets.retain(|id, _| resolved.contains_key(id));
        resolved
    }

    fn asked<'a>(&'a self, operator_policy: &OperatorPolicy) -> Vec<Asked<'a>> {
        let targets = self.targets.iter().map(|((namespace, name), target)| {
            let ceilings = self.scopes_of(namespace);
            Asked {
                id: TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() },
                labels: target.labels(),
                profile: (namespace.clone(), target.spec.profile_ref.clone()),
                resource_rules: &target.spec.filter.resource_rules,
                included: &target.spec.filter.included_namespaces,
                suspended: target.spec.suspend,
                requested: target.annotations().get(REQUESTED_AT).cloned(),
                bounds: operator_policy.bounds(Some(namespace), ceilings.values()),
                ceilings,
                spec: AskedSpec::Target(Box::new(target.spec.clone())),
            }
        });
        let cluster_targets = self.cluster_targets.iter().map(|((_, name), target)| {
            let ceilings = self.cluster_scopes();
            Asked {
                id: TargetId { namespace: None, name: name.as_str().into() },
                labels: target.labels(),
                profile: (target.spec.profile_ref.namespace.clone(), target.spec.profile_ref.name.clone()),
                resource_rules: &target.spec.filter.resource_rules,
                included: &target.spec.filter.included_namespaces,
                suspended: target.spec.suspend,
                requested: target.annotations().get(REQUESTED_AT).cloned(),
                bounds: operator_policy.bounds(None, ceilings.values()),
                ceilings,
                spec: AskedSpec::ClusterTarget(Box::new(target.spec.clone())),
            }
        });
        targets.chain(cluster_targets).collect()
    }

    fn resolve_target(
        &self,
        asked: Asked<'_>,
        operator_policy: &OperatorPolicy,
        profiles: &Profiles,
        compiled: &mut Compiled,
    ) -> ResolvedTarget {
        let mut resolved = ResolvedTarget {
            target: None,
            profile: asked.profile.clone(),
            labels: asked.labels.clone(),
            suspended: asked.suspended,
            denied: false,
            faults: asked.ceilings.unreadable().into_iter().collect(),
            clipped: Vec::new(),
            notes: asked.notes(),
            tenant_editable: None,
        };
        let profile = profiles.get(&asked.profile);
        let (namespace, name) = &asked.profile;
        if asked.id.namespace.is_none() {
            let what = format!("KollectProfile {name}");
            let decides = "what this cluster target collects";
            resolved.tenant_editable =
                asked.ceilings.tenant_editable(operator_policy, namespace, &what, decides);
        }
        match profile {
            None if self.is_refused("KollectProfile", &asked.profile) => {}
            None => {
                let error = dangling("spec.profileRef", name, &format!("KollectProfile {name}"), namespace);
                resolved.faults.push(Fault::new(Reason::ProfileNotFound, error));
            }
            Some(Err(errors)) => {
                let first = errors.first().map_or_else(String::new, |error| format!(": {error}"));
                let problem = format!("KollectProfile {name} is wrong{first}");
                let error = SpecError::new("spec.profileRef", &name.as_str().into(), problem);
                resolved.faults.push(Fault::new(Reason::ProfileInvalid, error));
            }
            Some(Ok(_)) => {}
        }
        let profile = profile.and_then(|profile| profile.as_ref().ok());
        asked.check_scopes(profile, &mut resolved);
        let Some(profile) = profile.filter(|_| resolved.faults.is_empty()) else { return resolved };
        match definition(&asked, profile, operator_policy, compiled) {
            Ok(_) if asked.suspended => {}
            Ok(target) => resolved.target = Some(target),
            Err(errors) => {
                resolved
                    .faults
                    .extend(errors.into_iter().map(|error| Fault::new(Reason::InvalidSpec, error)));
            }
        }
        resolved
    }
}

impl ObjectSet {
    /// What is wrong with the resource rules of a target, whatever its profile and its scopes say.
    pub(crate) fn check_rules(&self, id: &TargetId, operator_policy: &OperatorPolicy) -> Vec<Fault> {
        let asked = self.asked(operator_policy).into_iter().find(|asked| asked.id == *id);
        let Some(asked) = asked else { return Vec::new() };
        // The kind does not matter: resource rules name their own.
        let kind = Gvk { group: String::new(), version: "v1".into(), kind: "ConfigMap".into() };
        let errors =
            select(&asked.spec, &kind, &Bounds::default(), operator_policy).err().unwrap_or_default();
        errors.into_iter().map(|error| Fault::new(Reason::InvalidSpec, error)).collect()
    }
}

fn select(
    spec: &AskedSpec,
    gvk: &Gvk,
    bounds: &Bounds,
    operator_policy: &OperatorPolicy,
) -> Result<Selection, Vec<SpecError>> {
    let OperatorPolicy { policy, defaults, .. } = operator_policy;
    match spec {
        AskedSpec::Target(spec) => Selection::of_target(spec, gvk, bounds, policy, defaults),
        AskedSpec::ClusterTarget(spec) => Selection::of_cluster_target(spec, gvk, bounds, policy, defaults),
    }
}

impl Asked<'_> {
    /// Adds what scopes deny: some kinds and namespaces are cut off; if nothing is left the target is denied.
    fn check_scopes(&self, profile: Option<&Arc<CompiledProfile>>, resolved: &mut ResolvedTarget) {
        let own = profile.map(|profile| &profile.gvk).filter(|_| self.resource_rules.is_empty());
        let kinds: Vec<&Gvk> = self.resource_rules.iter().map(|rule| &rule.gvk).chain(own).collect();
        let mut denied = Vec::new();
        for gvk in &kinds {
            let scope = self.ceilings.scopes.iter().find(|(_, ceiling)| !ceiling.allows_kind(gvk));
            if let Some((who, _)) = scope {
                let error = SpecError::absent("spec.profileRef", format!("{who} does not allow kind {gvk}"));
                denied.push(Fault::new(Reason::ScopeGVKDenied, error));
            }
        }
        if denied.len() == kinds.len() && !kinds.is_empty() {
            resolved.denied = true;
            resolved.faults.append(&mut denied);
        }
        resolved.clipped.append(&mut denied);
        if let Some(who) = self.ceilings.denies_static(&self.profile.0) {
            let problem = format!("{who} does not allow profiles of namespace {}", self.profile.0);
            let error = SpecError::absent("spec.profileRef.namespace", problem);
            resolved.denied = true;
            resolved.faults.push(Fault::new(Reason::ScopeNamespaceDenied, error));
        }
        for (index, name) in self.included.iter().enumerate() {
            let (reason, problem) = match self.bounds.permit_namespace(name, None) {
                Some(Err(Rejected::BeyondReach)) => (Reason::BeyondReach, beyond_reach(&self.id)),
                Some(Err(_)) => (Reason::ScopeNamespaceDenied, self.denying_scope(name)),
                // Permitted, or decided by labels: the status reports that.
                Some(Ok(())) | None => continue,
            };
            let field = format!("spec.includedNamespaces[{index}]");
            let error = SpecError::new(field, &name.as_str().into(), problem);
            resolved.clipped.push(Fault::new(reason, error));
        }
    }

    /// A note if the target selects namespaces by labels although only its own is within reach.
    fn notes(&self) -> Vec<String> {
        let AskedSpec::Target(spec) = &self.spec else { return Vec::new() };
        let by_labels = spec.namespace_selector.is_some()
            || spec.filter.resource_rules.iter().any(|rule| rule.namespace_selector.is_some());
        if !by_labels || self.bounds.reach().is_none() {
            return Vec::new();
        }
        let own = self.id.namespace.as_deref().unwrap_or_default();
        vec![format!(
            "spec.namespaceSelector: only namespace {own} is within reach; name others in spec.allowedNamespaces \
             of a KollectScope in namespace {own}"
        )]
    }

    fn denying_scope(&self, namespace: &str) -> String {
        let denies = |ceiling: &ScopeCeiling| ceiling.allows_namespace(namespace, None) == Some(false);
        let scope = self.ceilings.scopes.iter().find(|(_, ceiling)| denies(ceiling));
        format!("{} does not allow this namespace", scope.map_or("a scope", |(who, _)| who))
    }
}

/// The message for a namespace that is beyond the reach of a target.
fn beyond_reach(target: &TargetId) -> String {
    let own = target.namespace.as_deref().unwrap_or_default();
    format!(
        "a target collects from its own namespace; to let this one collect from others, name them in \
         spec.allowedNamespaces of a KollectScope in namespace {own}"
    )
}

impl Ceilings<'_> {
    /// Why users of a namespace control a cluster object: it refers to `what`, which they may edit there.
    /// The operator's own namespace and those that a KollectClusterScope lists are trusted.
    pub(super) fn tenant_editable(
        &self,
        operator_policy: &OperatorPolicy,
        namespace: &str,
        what: &str,
        decides: &str,
    ) -> Option<String> {
        let own = operator_policy.own_namespace.as_deref()?;
        let trusted = namespace == own || self.names_static(namespace);
        (!trusted).then(|| {
            format!(
                "{what}: users who may edit it in namespace {namespace} decide {decides}; move it to {own}, or \
                 list {namespace} in allowedStaticRefNamespaces of a KollectClusterScope"
            )
        })
    }
}

/// The definition of a target: the same `Arc` as before if nothing has changed.
fn definition(
    asked: &Asked<'_>,
    profile: &Arc<CompiledProfile>,
    operator_policy: &OperatorPolicy,
    compiled: &mut Compiled,
) -> Result<Arc<Target>, Vec<SpecError>> {
    let same = |known: &&CachedTarget| {
        Arc::ptr_eq(&known.profile, profile)
            && known.asked == asked.spec
            && known.requested == asked.requested
            && known.bounds == asked.bounds
    };
    if let Some(known) = compiled.targets.get(&asked.id).filter(same) {
        return known.target.clone();
    }
    let selection = select(&asked.spec, &profile.gvk, &asked.bounds, operator_policy);
    let target =
        selection.map(|selection| Arc::new(Target::new(asked.id.clone(), profile.clone(), selection)));
    let cached = CachedTarget {
        asked: asked.spec.clone(),
        requested: asked.requested.clone(),
        bounds: asked.bounds.clone(),
        profile: profile.clone(),
        target: target.clone(),
    };
    compiled.targets.insert(asked.id.clone(), cached);
    target
}
