//! Targets of both kinds: their profile, what scopes leave of them, and what they select.

use std::{collections::BTreeMap, sync::Arc};

use kollect_engine::{collect::Target, extract::CompiledProfile, select::Selection};
use kollect_model::{
    SpecError,
    crd::{scope::ScopeCeiling, shapes::Gvk, target::ResourceRule},
    row::TargetId,
};
use kube::ResourceExt;

use crate::reason::Reason;

use super::{AskedSpec, CachedTarget, Ceilings, Compiled, Fault, Name, Rules, World, dangling};

/// What a target means.
pub(crate) struct ResolvedTarget {
    /// What is collected; `None` if nothing can be, or it is suspended: then its rows stay.
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) suspended: bool,
    /// Scopes leave nothing of it: its rows go.
    pub(crate) denied: bool,
    /// Why nothing is collected.
    pub(crate) faults: Vec<Fault>,
    /// What scopes cut off.
    pub(crate) clipped: Vec<Fault>,
}

/// A target of either kind, before it is known whether it can have what it asks for.
struct Asked<'a> {
    id: TargetId,
    labels: &'a BTreeMap<String, String>,
    profile: Name,
    rules: &'a [ResourceRule],
    included: &'a [String],
    suspended: bool,
    ceilings: Ceilings<'a>,
    spec: AskedSpec,
}

type Profiles = BTreeMap<Name, Result<Arc<CompiledProfile>, Vec<SpecError>>>;

impl World {
    pub(super) fn resolve_targets(
        &self,
        rules: &Rules,
        profiles: &Profiles,
        compiled: &mut Compiled,
    ) -> BTreeMap<TargetId, ResolvedTarget> {
        let asked = self.asked();
        let resolved: BTreeMap<TargetId, ResolvedTarget> = asked
            .into_iter()
            .map(|asked| (asked.id.clone(), self.resolve_target(asked, rules, profiles, compiled)))
            .collect();
        compiled.targets.retain(|id, _| resolved.contains_key(id));
        resolved
    }

    fn asked(&self) -> Vec<Asked<'_>> {
        let targets = self.targets.iter().map(|((namespace, name), target)| Asked {
            id: TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() },
            labels: target.labels(),
            profile: (namespace.clone(), target.spec.profile_ref.clone()),
            rules: &target.spec.filter.resource_rules,
            included: &target.spec.filter.included_namespaces,
            suspended: target.spec.suspend,
            ceilings: self.scopes_of(namespace),
            spec: AskedSpec::Target(Box::new(target.spec.clone())),
        });
        let cluster_targets = self.cluster_targets.iter().map(|((_, name), target)| Asked {
            id: TargetId { namespace: None, name: name.as_str().into() },
            labels: target.labels(),
            profile: (target.spec.profile_ref.namespace.clone(), target.spec.profile_ref.name.clone()),
            rules: &target.spec.filter.resource_rules,
            included: &target.spec.filter.included_namespaces,
            suspended: target.spec.suspend,
            ceilings: self.cluster_scopes(),
            spec: AskedSpec::ClusterTarget(Box::new(target.spec.clone())),
        });
        targets.chain(cluster_targets).collect()
    }

    fn resolve_target(
        &self,
        asked: Asked<'_>,
        rules: &Rules,
        profiles: &Profiles,
        compiled: &mut Compiled,
    ) -> ResolvedTarget {
        let mut resolved = ResolvedTarget {
            target: None,
            labels: asked.labels.clone(),
            suspended: asked.suspended,
            denied: false,
            faults: Vec::new(),
            clipped: Vec::new(),
        };
        let profile = profiles.get(&asked.profile);
        let (namespace, name) = &asked.profile;
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
        match definition(&asked, profile, rules, compiled) {
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

impl World {
    /// What is wrong with the rules of a target, whatever its profile and its scopes say.
    pub(crate) fn check_rules(&self, id: &TargetId, rules: &Rules) -> Vec<Fault> {
        let Some(asked) = self.asked().into_iter().find(|asked| asked.id == *id) else { return Vec::new() };
        // Any kind: rules name their own.
        let kind = Gvk { group: String::new(), version: "v1".into(), kind: "ConfigMap".into() };
        let errors = select(&asked.spec, &kind, &[], rules).err().unwrap_or_default();
        errors.into_iter().map(|error| Fault::new(Reason::InvalidSpec, error)).collect()
    }
}

fn select(
    spec: &AskedSpec,
    gvk: &Gvk,
    ceilings: &[ScopeCeiling],
    rules: &Rules,
) -> Result<Selection, Vec<SpecError>> {
    let Rules { policy, defaults, .. } = rules;
    match spec {
        AskedSpec::Target(spec) => Selection::of_target(spec, gvk, ceilings, policy, defaults),
        AskedSpec::ClusterTarget(spec) => Selection::of_cluster_target(spec, gvk, ceilings, policy, defaults),
    }
}

impl Asked<'_> {
    /// What scopes deny: some kinds and namespaces are cut off; if nothing is left the target is denied.
    fn check_scopes(&self, profile: Option<&Arc<CompiledProfile>>, resolved: &mut ResolvedTarget) {
        let own = profile.map(|profile| &profile.gvk).filter(|_| self.rules.is_empty());
        let kinds: Vec<&Gvk> = self.rules.iter().map(|rule| &rule.gvk).chain(own).collect();
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
            let scope = self.ceilings.scopes.iter().find(|(_, ceiling)| !ceiling.allows_namespace(name));
            if let Some((who, _)) = scope {
                let field = format!("spec.includedNamespaces[{index}]");
                let problem = format!("{who} does not allow this namespace");
                let error = SpecError::new(field, &name.as_str().into(), problem);
                resolved.clipped.push(Fault::new(Reason::ScopeNamespaceDenied, error));
            }
        }
    }
}

/// The definition of a target, the same value as before if nothing has changed.
fn definition(
    asked: &Asked<'_>,
    profile: &Arc<CompiledProfile>,
    rules: &Rules,
    compiled: &mut Compiled,
) -> Result<Arc<Target>, Vec<SpecError>> {
    let ceilings = asked.ceilings.values();
    let same = |known: &&CachedTarget| {
        Arc::ptr_eq(&known.profile, profile) && known.asked == asked.spec && known.ceilings == ceilings
    };
    if let Some(known) = compiled.targets.get(&asked.id).filter(same) {
        return known.target.clone();
    }
    let selection = select(&asked.spec, &profile.gvk, &ceilings, rules);
    let target =
        selection.map(|selection| Arc::new(Target::new(asked.id.clone(), profile.clone(), selection)));
    let cached = CachedTarget {
        asked: asked.spec.clone(),
        ceilings,
        profile: profile.clone(),
        target: target.clone(),
    };
    compiled.targets.insert(asked.id.clone(), cached);
    target
}
