//! What a look at several manifests tells: references, scopes, which targets and sinks belong together.

use std::{collections::BTreeMap, sync::Arc};

use kollect_engine::{
    collect::Target,
    extract::{CompiledProfile, OptIns, Policy},
    schedule::Intervals,
    select::{NamespaceDefaults, Selection},
};
use kollect_model::{
    SpecError,
    batch::CLUSTER_NAMESPACE,
    crd::{
        inventory::{Dedupe, MAX_SINK_REFS, SinkRef, SinkRefs},
        scope::ScopeCeiling,
        shapes::{Gvk, LabelSelector, SecretReference},
        target::ResourceRule,
    },
    row::TargetId,
    sink::SinkSpec,
};
use kollect_sinks::Secrets;
use kube::ResourceExt;

use super::{BoundSink, Family, Inventory, Loaded, Manifests, Name, Pace, Work};

/// Said once where the field used to limit an inventory.
const PARTS: &str =
    "spec.maxExportBytes is the size of one part of a document; it does not limit the inventory";

/// Compiled profiles by name; `None` for those that exist and do not compile.
type Profiles = BTreeMap<Name, Option<Arc<CompiledProfile>>>;
type Labels = BTreeMap<String, String>;

/// A target as inventories see it.
struct Known {
    id: TargetId,
    labels: Labels,
}

/// A target of either kind, before it is known whether it can have what it asks for.
struct Asked<'a> {
    who: String,
    id: TargetId,
    labels: &'a Labels,
    profile: Name,
    rules: &'a [ResourceRule],
    suspended: bool,
    ceiling: Option<Ceiling<'a>>,
    select: Box<Select<'a>>,
}

type Select<'a> = dyn Fn(&Gvk, Option<&ScopeCeiling>) -> Result<Selection, Vec<SpecError>> + 'a;

/// A scope: its kind and name for messages, and what it allows.
struct Ceiling<'a> {
    who: String,
    allows: &'a ScopeCeiling,
    static_namespaces: &'a [String],
}

impl Manifests {
    /// Puts the work together and notes every problem.
    pub(super) fn resolve(&mut self, policy: &Policy, defaults: &NamespaceDefaults) -> Work {
        let profiles = self.compile_profiles(policy);
        let (targets, known) = self.resolve_targets(&profiles, policy, defaults);
        self.check_connection_tests();
        let inventories = self.resolve_inventories(&known);
        if known.is_empty() && self.problems.is_empty() {
            self.problems.push("the manifests hold no KollectTarget or KollectClusterTarget: add one".into());
        }
        Work { targets, inventories, notes: std::mem::take(&mut self.notes) }
    }

    fn compile_profiles(&mut self, policy: &Policy) -> Profiles {
        let mut compiled = Profiles::new();
        for (name, Loaded { place, object }) in &self.profiles {
            let line = |error: &SpecError| format!("{place}: KollectProfile {}: {error}", name.1);
            let profile = CompiledProfile::compile(&object.spec, OptIns::of(object.annotations()), policy);
            match &profile {
                Ok(profile) => self.notes.extend(profile.warnings.iter().map(line)),
                Err(errors) => self.problems.extend(errors.iter().map(line)),
            }
            compiled.insert(name.clone(), profile.ok().map(Arc::new));
        }
        compiled
    }

    fn scope(&self, namespace: &str) -> Option<Ceiling<'_>> {
        let ((_, name), scope) = self.scopes.iter().find(|((scope, _), _)| scope == namespace)?;
        let who = format!("KollectScope {name}");
        Some(Ceiling { who, allows: &scope.object.spec.ceiling, static_namespaces: &[] })
    }

    fn cluster_scope(&self) -> Option<Ceiling<'_>> {
        let ((_, name), scope) = self.cluster_scopes.iter().next()?;
        let spec = &scope.object.spec;
        let static_namespaces = &spec.allowed_static_ref_namespaces;
        Some(Ceiling { who: format!("KollectClusterScope {name}"), allows: &spec.ceiling, static_namespaces })
    }

    /// What the targets of both kinds ask for.
    fn asked<'a>(&'a self, policy: &'a Policy, defaults: &'a NamespaceDefaults) -> Vec<Asked<'a>> {
        let targets = self.targets.iter().map(|((namespace, name), Loaded { place, object })| {
            let spec = &object.spec;
            Asked {
                who: format!("{place}: KollectTarget {name}"),
                id: TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() },
                labels: object.labels(),
                profile: (namespace.clone(), spec.profile_ref.clone()),
                rules: &spec.filter.resource_rules,
                suspended: spec.suspend,
                ceiling: self.scope(namespace),
                select: Box::new(move |gvk, allows| {
                    Selection::of_target(spec, gvk, allows, policy, defaults)
                }),
            }
        });
        let cluster_targets = self.cluster_targets.iter().map(|((_, name), Loaded { place, object })| {
            let spec = &object.spec;
            Asked {
                who: format!("{place}: KollectClusterTarget {name}"),
                id: TargetId { namespace: None, name: name.as_str().into() },
                labels: object.labels(),
                profile: (spec.profile_ref.namespace.clone(), spec.profile_ref.name.clone()),
                rules: &spec.filter.resource_rules,
                suspended: spec.suspend,
                ceiling: self.cluster_scope(),
                select: Box::new(move |gvk, allows| {
                    Selection::of_cluster_target(spec, gvk, allows, policy, defaults)
                }),
            }
        });
        targets.chain(cluster_targets).collect()
    }

    fn resolve_targets(
        &mut self,
        profiles: &Profiles,
        policy: &Policy,
        defaults: &NamespaceDefaults,
    ) -> (Vec<Arc<Target>>, Vec<Known>) {
        let (mut targets, mut known) = (Vec::new(), Vec::new());
        let (mut problems, mut notes) = (Vec::new(), Vec::new());
        for asked in self.asked(policy, defaults) {
            known.push(Known { id: asked.id.clone(), labels: asked.labels.clone() });
            let profile = self.profile(profiles, &asked.profile, asked.rules, asked.ceiling.as_ref());
            let allows = asked.ceiling.as_ref().map(|ceiling| ceiling.allows);
            let selected = profile.and_then(|profile| {
                profile.map(|profile| Ok(((asked.select)(&profile.gvk, allows)?, profile))).transpose()
            });
            let who = asked.who;
            match selected {
                Ok(_) if asked.suspended => {
                    notes.push(format!("{who} is suspended: it was not collected, its rows stay"));
                }
                Ok(Some((selection, profile))) => {
                    targets.push(Arc::new(Target::new(asked.id, profile, selection)));
                }
                Ok(None) => {}
                Err(errors) => problems.extend(errors.iter().map(|error| format!("{who}: {error}"))),
            }
        }
        self.problems.extend(problems);
        self.notes.extend(notes);
        (targets, known)
    }

    /// The profile of a target, `None` when it exists and is wrong, or why the target may not use it.
    fn profile(
        &self,
        profiles: &Profiles,
        name: &Name,
        rules: &[ResourceRule],
        ceiling: Option<&Ceiling<'_>>,
    ) -> Result<Option<Arc<CompiledProfile>>, Vec<SpecError>> {
        let profile = profiles.get(name);
        let mut errors = Vec::new();
        if profile.is_none() && !self.refused.contains(&("KollectProfile".into(), name.clone())) {
            errors.push(dangling("spec.profileRef", &name.1, &format!("KollectProfile {}", name.1), &name.0));
        }
        let own = profile.and_then(|p| p.as_ref()).map(|p| &p.gvk).filter(|_| rules.is_empty());
        let kinds = rules.iter().map(|rule| &rule.gvk).chain(own);
        if let Some(Ceiling { who, allows, static_namespaces }) = ceiling {
            let denied = |gvk: &&Gvk| !allows.allows_kind(gvk);
            let refuse =
                |gvk: &Gvk| SpecError::absent("spec.profileRef", format!("{who} does not allow kind {gvk}"));
            errors.extend(kinds.filter(denied).map(refuse));
            if !static_namespaces.is_empty() && !static_namespaces.contains(&name.0) {
                let problem = format!("{who} does not allow profiles of namespace {}", name.0);
                errors.push(SpecError::absent("spec.profileRef.namespace", problem));
            }
        }
        if errors.is_empty() { Ok(profile.cloned().flatten()) } else { Err(errors) }
    }

    fn check_connection_tests(&mut self) {
        for ((namespace, name), Loaded { place, object }) in &self.connection_tests {
            let reference = &object.spec.sink_ref;
            let named = [
                (Family::Snapshot, "spec.sinkRef.snapshotSinkRef", &reference.snapshot_sink_ref),
                (Family::Database, "spec.sinkRef.databaseSinkRef", &reference.database_sink_ref),
                (Family::Event, "spec.sinkRef.eventSinkRef", &reference.event_sink_ref),
            ];
            for (family, field, sink) in named {
                let Some(sink) = sink else { continue };
                if let Err(error) = self.sink(family, sink, namespace, field) {
                    self.problems
                        .extend(error.map(|e| format!("{place}: KollectConnectionTest {name}: {e}")));
                }
            }
        }
    }

    /// A sink by name; the error is `None` when the sink exists and is wrong.
    fn sink(
        &self,
        family: Family,
        name: &str,
        namespace: &str,
        field: &str,
    ) -> Result<BoundSink, Option<SpecError>> {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(Loaded { place, object }) = self.sinks.get(&family).and_then(|sinks| sinks.get(&key)) else {
            let known = self.refused.contains(&(family.kind().to_owned(), key));
            return Err((!known).then(|| dangling(field, name, &format!("{family} sink {name}"), namespace)));
        };
        let place = format!("{place}: {} {name}", family.kind());
        let secrets = self.secrets_of(object, namespace);
        Ok(BoundSink::new(format!("{family}/{name}"), object.clone(), secrets, place))
    }

    /// What the Secrets of a sink hold, if all of them are among the manifests.
    fn secrets_of(&self, sink: &SinkSpec, sink_namespace: &str) -> Result<Secrets, Vec<SpecError>> {
        let (mut secrets, mut errors) = (Secrets::default(), Vec::new());
        for (field, SecretReference { name, namespace }) in sink.secret_refs() {
            let namespace = namespace.as_deref().unwrap_or(sink_namespace);
            let key = (namespace.to_owned(), name.clone());
            match self.secrets.get(&key) {
                Some(Loaded { object, .. }) => secrets.insert(field, object.clone()),
                // It is there, and what is wrong with it has been said.
                None if self.refused.contains(&("Secret".to_owned(), key)) => {}
                None => errors.push(dangling(field, name, &format!("Secret {name}"), namespace)),
            }
        }
        if errors.is_empty() { Ok(secrets) } else { Err(errors) }
    }

    fn resolve_inventories(&mut self, known: &[Known]) -> Vec<Inventory> {
        if self.inventories.is_empty() && self.cluster_inventories.is_empty() {
            return self.own_inventories(known);
        }
        let mut resolved = Vec::new();
        let (mut problems, mut notes) = (Vec::new(), Vec::new());
        for ((namespace, name), Loaded { place, object }) in &self.inventories {
            let who = format!("{place}: KollectInventory {name}");
            let spec = &object.spec;
            if namespace == CLUSTER_NAMESPACE {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                problems.push(format!("{who}: metadata.namespace = \"{namespace}\": {problem}"));
            }
            let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
            let choice = Choice {
                namespace: Some(namespace),
                refs: &spec.target_refs,
                selector: spec.target_selector.as_ref(),
            };
            let (targets, mut errors) = choice.of(known);
            let intervals = Intervals {
                export_min: Some(spec.export_min_interval),
                min_change: spec.min_change_interval,
                audit: spec.audit_interval,
            };
            let own = Pace { intervals, max_export_bytes: spec.max_export_bytes };
            notes.extend(spec.max_export_bytes.map(|_| format!("{who}: {PARTS}")));
            let (sinks, wrong) =
                self.bound(lists, Some(namespace), namespace, self.scope(namespace).as_ref(), own);
            errors.extend(wrong);
            problems.extend(errors.iter().map(|error| format!("{who}: {error}")));
            if spec.suspend {
                notes.push(format!("{who} is suspended and was not written"));
            } else {
                resolved.push(Inventory {
                    namespace: Some(namespace.clone()),
                    name: name.clone(),
                    targets,
                    sinks,
                });
            }
        }
        for ((_, name), Loaded { place, object }) in &self.cluster_inventories {
            let who = format!("{place}: KollectClusterInventory {name}");
            let spec = &object.spec;
            let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
            let choice =
                Choice { namespace: None, refs: &spec.target_refs, selector: spec.target_selector.as_ref() };
            let (targets, mut errors) = choice.of(known);
            let intervals = Intervals {
                export_min: Some(spec.export_min_interval),
                min_change: spec.min_change_interval,
                audit: spec.audit_interval,
            };
            let own = Pace { intervals, max_export_bytes: None };
            let ceiling = self.cluster_scope();
            let (sinks, wrong) = self.bound(lists, None, &spec.sink_namespace, ceiling.as_ref(), own);
            errors.extend(wrong);
            if spec.namespace_selector.is_some()
                || !spec.namespaces.is_empty()
                || spec.dedupe != Dedupe::default()
            {
                let problem = "are not available in this build: remove them";
                errors
                    .push(SpecError::absent("spec.namespaceSelector, spec.namespaces, spec.dedupe", problem));
            }
            problems.extend(errors.iter().map(|error| format!("{who}: {error}")));
            if spec.suspend {
                notes.push(format!("{who} is suspended and was not written"));
            } else {
                resolved.push(Inventory { namespace: None, name: name.clone(), targets, sinks });
            }
        }
        let bound = |target: &&Known| resolved.iter().any(|inventory| inventory.targets.contains(&target.id));
        let unbound = known.iter().filter(|target| !bound(target));
        notes.extend(unbound.map(|target| format!("target {} belongs to no inventory", target.id)));
        self.problems.extend(problems);
        self.notes.extend(notes);
        resolved
    }

    /// Without inventories among the manifests each target is its own.
    fn own_inventories(&mut self, known: &[Known]) -> Vec<Inventory> {
        let mut inventories = Vec::new();
        for Known { id, .. } in known {
            if id.namespace.as_deref() == Some(CLUSTER_NAMESPACE) {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                self.problems
                    .push(format!("KollectTarget {}: metadata.namespace = \"cluster\": {problem}", id.name));
            }
            inventories.push(Inventory {
                namespace: id.namespace.as_deref().map(Into::into),
                name: id.name.to_string(),
                targets: vec![id.clone()],
                sinks: Vec::new(),
            });
        }
        inventories
    }

    /// The sinks of an inventory, in its three lists, and what is wrong with them.
    fn bound(
        &self,
        lists: [&SinkRefs; 3],
        namespace: Option<&String>,
        sink_namespace: &str,
        ceiling: Option<&Ceiling<'_>>,
        own: Pace,
    ) -> (Vec<BoundSink>, Vec<SpecError>) {
        let mut found = Vec::new();
        let mut errors = Vec::new();
        let families = [
            (Family::Snapshot, "spec.snapshotSinkRefs"),
            (Family::Database, "spec.databaseSinkRefs"),
            (Family::Event, "spec.eventSinkRefs"),
        ];
        for ((family, field), list) in families.into_iter().zip(lists) {
            let (refs, wrong) = list.decode(field, namespace.is_some());
            errors.extend(wrong);
            for (index, sink_ref) in refs {
                let field = format!("{field}[{index}]");
                let sink_namespace = sink_ref.namespace.as_deref().unwrap_or(sink_namespace);
                let denied =
                    ceiling.and_then(|ceiling| ceiling.denies_sink(family, &sink_ref, sink_namespace));
                errors.extend(
                    denied.map(|problem| SpecError::new(&field, &sink_ref.name.as_str().into(), problem)),
                );
                match self.sink(family, &sink_ref.name, sink_namespace, &field) {
                    Ok(mut sink) => {
                        let floor = ceiling.and_then(|ceiling| ceiling.allows.min_export_interval);
                        sink.set_pace(family, &sink_ref, own, floor);
                        found.push(sink);
                    }
                    Err(error) => errors.extend(error),
                }
            }
        }
        let total: usize = lists.iter().map(|list| list.0.len()).sum();
        if total > MAX_SINK_REFS {
            let problem = format!("has more than {MAX_SINK_REFS} sink references");
            errors.push(SpecError::new("spec", &total.into(), problem));
        }
        (found, errors)
    }
}

impl Ceiling<'_> {
    fn denies_sink(&self, family: Family, sink: &SinkRef, namespace: &str) -> Option<String> {
        let allowed = match family {
            Family::Snapshot => &self.allows.snapshot_sink_refs,
            Family::Database => &self.allows.database_sink_refs,
            Family::Event => &self.allows.event_sink_refs,
        };
        let who = &self.who;
        if !allowed.is_empty() && !allowed.contains(&sink.name) {
            return Some(format!("{who} does not allow this sink"));
        }
        let elsewhere =
            !self.static_namespaces.is_empty() && !self.static_namespaces.iter().any(|n| n == namespace);
        elsewhere.then(|| format!("{who} does not allow sinks of namespace {namespace}"))
    }
}

fn dangling(field: &str, value: &str, what: &str, namespace: &str) -> SpecError {
    let problem =
        format!("no {what} in namespace {namespace} among the manifests: add it or correct the name");
    SpecError::new(field, &value.into(), problem)
}

/// Which targets an inventory wants.
struct Choice<'a> {
    namespace: Option<&'a String>,
    refs: &'a [String],
    selector: Option<&'a LabelSelector>,
}

impl Choice<'_> {
    fn of(&self, known: &[Known]) -> (Vec<TargetId>, Vec<SpecError>) {
        let kind = if self.namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
        let here = |target: &&Known| target.id.namespace.as_deref() == self.namespace.map(String::as_str);
        let exists = |name: &String| known.iter().filter(here).any(|target| *target.id.name == **name);
        let missing = self.refs.iter().enumerate().filter(|(_, name)| !exists(name)).map(|(index, name)| {
            let problem = format!("no {kind} {name} among the manifests: add it or correct the name");
            SpecError::new(format!("spec.targetRefs[{index}]"), &name.as_str().into(), problem)
        });
        let wanted = |target: &&Known| {
            (self.refs.is_empty() || self.refs.iter().any(|name| **name == *target.id.name))
                && self.selector.is_none_or(|selector| selector.matches(&target.labels))
        };
        let chosen = known.iter().filter(here).filter(wanted).map(|target| target.id.clone());
        (chosen.collect(), missing.collect())
    }
}
