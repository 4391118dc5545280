//! Loads Kollect manifests from files and finds everything that is wrong with them.
//!
//! Nothing is collected unless all manifests are right: schema, names, references, expressions, sinks.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use kollect_engine::{collect::Target, extract::CompiledProfile, select::Selection};
use kollect_model::{
    SpecError,
    batch::CLUSTER_NAMESPACE,
    crd::{
        GROUP, KollectClusterInventory, KollectClusterScope, KollectClusterTarget, KollectConnectionTest,
        KollectDatabaseSink, KollectEventSink, KollectInventory, KollectProfile, KollectScope,
        KollectSnapshotSink, KollectTarget, VERSION,
        inventory::{Dedupe, MAX_SINK_REFS, SinkRef, SinkRefs},
        scope::ScopeCeiling,
        shapes::{Gvk, LabelSelector},
    },
    row::TargetId,
    schema,
    sink::SinkSpec,
};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::yaml;

/// Where a manifest stands.
#[derive(Clone, Debug)]
struct Place {
    file: PathBuf,
    document: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file.display(), self.document)
    }
}

/// An object from a file.
struct Loaded<K> {
    place: Place,
    object: K,
}

/// Namespace (empty for cluster kinds) and name.
type Name = (String, String);
type Objects<K> = BTreeMap<Name, Loaded<K>>;

/// Family of a sink, as status and messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Snapshot,
    Database,
    Event,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snapshot => "snapshot",
            Self::Database => "database",
            Self::Event => "event",
        })
    }
}

/// A sink that an inventory is bound to.
#[derive(Clone, Debug)]
pub(crate) struct BoundSink {
    /// `family/name`
    pub(crate) name: String,
    pub(crate) spec: SinkSpec,
    /// Where the sink's manifest stands, for messages.
    place: String,
}

impl BoundSink {
    /// The plan of the sink, or a line for each problem.
    pub(crate) fn plan(&self) -> Result<kollect_sinks::Plan, Vec<String>> {
        let line = |error: SpecError| format!("{}: {error}", self.place);
        kollect_sinks::plan(&self.spec).map_err(|errors| errors.into_iter().map(line).collect())
    }
}

/// A set of targets whose rows belong together, and where they go.
pub(crate) struct Inventory {
    /// `None` for cluster inventories.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) targets: Vec<TargetId>,
    pub(crate) sinks: Vec<BoundSink>,
}

/// What the manifests ask for.
pub(crate) struct Work {
    pub(crate) targets: Vec<Target>,
    pub(crate) inventories: Vec<Inventory>,
    /// Documents that are not Kollect's, and objects that are switched off.
    pub(crate) notes: Vec<String>,
}

/// Loads manifests; all problems at once, one per line.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Work, Vec<String>> {
    let mut loader = Loader::default();
    for path in paths {
        match yaml::files(path) {
            Ok(files) => files.iter().for_each(|file| loader.read(file)),
            Err(error) => loader.problems.push(format!("{error:#}")),
        }
    }
    let work = loader.resolve();
    if loader.problems.is_empty() { Ok(work) } else { Err(loader.problems) }
}

#[derive(Default)]
struct Loader {
    profiles: Objects<KollectProfile>,
    targets: Objects<KollectTarget>,
    cluster_targets: Objects<KollectClusterTarget>,
    inventories: Objects<KollectInventory>,
    cluster_inventories: Objects<KollectClusterInventory>,
    sinks: BTreeMap<(Family, Name), Loaded<SinkSpec>>,
    scopes: Objects<KollectScope>,
    cluster_scopes: Objects<KollectClusterScope>,
    connection_tests: Objects<KollectConnectionTest>,
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Loader {
    fn read(&mut self, file: &Path) {
        match yaml::documents(file) {
            Ok(documents) => {
                for (document, value) in documents {
                    self.add(Place { file: file.to_owned(), document }, value);
                }
            }
            Err(error) => self.problems.push(format!("{error:#}").replace('\n', " ")),
        }
    }

    fn problem(&mut self, place: &Place, who: &str, error: &SpecError) {
        self.problems.push(format!("{place}: {who}: {error}"));
    }

    fn add(&mut self, place: Place, mut value: Value) {
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        if api_version.is_empty() || kind.is_empty() {
            let error =
                SpecError::absent("apiVersion, kind", "are needed: this is not a Kubernetes manifest");
            return self.problem(&place, "?", &error);
        }
        if api_version.split('/').next() != Some(GROUP) {
            return self
                .notes
                .push(format!("{place}: {api_version} {kind} is not Kollect's and was ignored"));
        }
        let Some(known) = schema::kinds().get(&kind).filter(|_| api_version == format!("{GROUP}/{VERSION}"))
        else {
            let names: Vec<_> = schema::kinds().keys().map(String::as_str).collect();
            let problem = format!("is unknown; known in {GROUP}/{VERSION}: {}", names.join(", "));
            return self.problem(
                &place,
                &kind,
                &SpecError::new("kind", &format!("{api_version} {kind}").into(), problem),
            );
        };
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if known.namespaced && value["metadata"]["namespace"].is_null() && value["metadata"].is_object() {
            value["metadata"]["namespace"] = "default".into();
        }
        let who = format!("{kind} {name}");
        if name.is_empty() {
            self.problem(&place, &who, &SpecError::absent("metadata.name", "is required"));
        }
        let errors = known.check(&mut value);
        if !errors.is_empty() {
            return errors.iter().for_each(|error| self.problem(&place, &who, error));
        }
        self.keep(place, &kind, &who, value);
    }

    fn keep(&mut self, place: Place, kind: &str, who: &str, value: Value) {
        let problems = &mut self.problems;
        match kind {
            "KollectProfile" => insert(&mut self.profiles, place, who, value, problems),
            "KollectTarget" => insert(&mut self.targets, place, who, value, problems),
            "KollectClusterTarget" => insert(&mut self.cluster_targets, place, who, value, problems),
            "KollectInventory" => insert(&mut self.inventories, place, who, value, problems),
            "KollectClusterInventory" => insert(&mut self.cluster_inventories, place, who, value, problems),
            "KollectScope" => insert(&mut self.scopes, place, who, value, problems),
            "KollectClusterScope" => insert(&mut self.cluster_scopes, place, who, value, problems),
            "KollectConnectionTest" => insert(&mut self.connection_tests, place, who, value, problems),
            _ => self.keep_sink(place, kind, who, value),
        }
    }

    fn keep_sink(&mut self, place: Place, kind: &str, who: &str, value: Value) {
        let mut parsed: BTreeMap<Name, Loaded<SinkSpec>> = BTreeMap::new();
        let family = match kind {
            "KollectSnapshotSink" => {
                let spec = |sink: KollectSnapshotSink| SinkSpec::Snapshot(sink.spec);
                insert_as(&mut parsed, place, who, value, &mut self.problems, spec);
                Family::Snapshot
            }
            "KollectDatabaseSink" => {
                let spec = |sink: KollectDatabaseSink| SinkSpec::Database(sink.spec);
                insert_as(&mut parsed, place, who, value, &mut self.problems, spec);
                Family::Database
            }
            _ => {
                let spec = |sink: KollectEventSink| SinkSpec::Event(sink.spec);
                insert_as(&mut parsed, place, who, value, &mut self.problems, spec);
                Family::Event
            }
        };
        for (name, loaded) in parsed {
            if let Some(first) = self.sinks.get(&(family, name.clone())) {
                let problem = twice(who, &loaded.place, &first.place);
                self.problems.push(problem);
            }
            self.sinks.insert((family, name), loaded);
        }
    }

    /// Checks what a look at other manifests can tell, and puts the work together.
    fn resolve(&mut self) -> Work {
        let profiles = self.compile_profiles();
        let mut targets = self.resolve_targets(&profiles);
        targets.extend(self.resolve_cluster_targets(&profiles));
        self.check_connection_tests();
        let inventories = self.resolve_inventories(&targets);
        Work { targets, inventories, notes: std::mem::take(&mut self.notes) }
    }

    fn compile_profiles(&mut self) -> BTreeMap<Name, Option<Arc<CompiledProfile>>> {
        let mut compiled = BTreeMap::new();
        for (name, Loaded { place, object }) in &self.profiles {
            let profile = CompiledProfile::compile(&object.spec).map(Arc::new);
            if let Err(errors) = &profile {
                let lines = errors.iter().map(|e| format!("{place}: KollectProfile {}: {e}", name.1));
                self.problems.extend(lines);
            }
            compiled.insert(name.clone(), profile.ok());
        }
        compiled
    }

    fn resolve_targets(&mut self, profiles: &BTreeMap<Name, Option<Arc<CompiledProfile>>>) -> Vec<Target> {
        let mut resolved = Vec::new();
        for ((namespace, name), Loaded { place, object }) in &self.targets {
            let spec = &object.spec;
            let scope = self.scopes.iter().find(|((scope_namespace, _), _)| scope_namespace == namespace);
            let ceiling = scope.map(|((_, name), scope)| (name.as_str(), &scope.object.spec.ceiling));
            let result = Referrer {
                place,
                who: format!("KollectTarget {name}"),
                rules: spec
                    .filter
                    .resource_rules
                    .iter()
                    .map(|rule| (&rule.gvk, &*rule.match_policy))
                    .collect(),
                ceiling: ceiling.map(|(name, ceiling)| (format!("KollectScope {name}"), ceiling)),
            }
            .profile(profiles, &(namespace.clone(), spec.profile_ref.clone()), "spec.profileRef");
            match result {
                Ok(_) if spec.suspend => {
                    self.notes
                        .push(format!("{place}: KollectTarget {name} is suspended and was not collected"));
                }
                Ok(Some(profile)) => resolved.push(Target {
                    id: TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() },
                    selection: Selection::of_target(spec, &profile.gvk, ceiling.map(|(_, c)| c)),
                    profile,
                }),
                Ok(None) => {}
                Err(problems) => self.problems.extend(problems),
            }
        }
        resolved
    }

    fn resolve_cluster_targets(
        &mut self,
        profiles: &BTreeMap<Name, Option<Arc<CompiledProfile>>>,
    ) -> Vec<Target> {
        let mut resolved = Vec::new();
        let scope = self.cluster_scopes.iter().next();
        let ceiling = scope.map(|(_, scope)| &scope.object.spec.ceiling);
        for ((_, name), Loaded { place, object }) in &self.cluster_targets {
            let spec = &object.spec;
            let reference = &spec.profile_ref;
            let result = Referrer {
                place,
                who: format!("KollectClusterTarget {name}"),
                rules: spec
                    .filter
                    .resource_rules
                    .iter()
                    .map(|rule| (&rule.gvk, &*rule.match_policy))
                    .collect(),
                ceiling: scope
                    .map(|((_, name), s)| (format!("KollectClusterScope {name}"), &s.object.spec.ceiling)),
            }
            .profile(
                profiles,
                &(reference.namespace.clone(), reference.name.clone()),
                "spec.profileRef",
            );
            match result {
                Ok(_) if spec.suspend => {
                    self.notes.push(format!(
                        "{place}: KollectClusterTarget {name} is suspended and was not collected"
                    ));
                }
                Ok(Some(profile)) => resolved.push(Target {
                    id: TargetId { namespace: None, name: name.as_str().into() },
                    selection: Selection::of_cluster_target(spec, &profile.gvk, ceiling),
                    profile,
                }),
                Ok(None) => {}
                Err(problems) => self.problems.extend(problems),
            }
        }
        resolved
    }

    fn check_connection_tests(&mut self) {
        for ((namespace, name), Loaded { place, object }) in &self.connection_tests {
            let reference = &object.spec.sink_ref;
            let named = [
                (Family::Snapshot, "snapshotSinkRef", &reference.snapshot_sink_ref),
                (Family::Database, "databaseSinkRef", &reference.database_sink_ref),
                (Family::Event, "eventSinkRef", &reference.event_sink_ref),
            ];
            for (family, field, sink) in named {
                let Some(sink) = sink else { continue };
                if !self.sinks.contains_key(&(family, (namespace.clone(), sink.clone()))) {
                    let field = format!("spec.sinkRef.{field}");
                    let error = dangling(&field, sink, &format!("{family} sink {sink}"), namespace);
                    self.problems.push(format!("{place}: KollectConnectionTest {name}: {error}"));
                }
            }
        }
    }

    fn resolve_inventories(&mut self, targets: &[Target]) -> Vec<Inventory> {
        if self.inventories.is_empty() && self.cluster_inventories.is_empty() {
            return targets.iter().map(|target| own_inventory(&target.id)).collect();
        }
        let mut resolved = Vec::new();
        let mut problems = Vec::new();
        for ((namespace, name), Loaded { place, object }) in &self.inventories {
            let spec = &object.spec;
            let who = format!("{place}: KollectInventory {name}");
            if namespace == CLUSTER_NAMESPACE {
                problems.push(format!(
                    "{who}: metadata.namespace = \"cluster\": sinks keep cluster inventories under this name; use another namespace"
                ));
            }
            let labels = |target: &str| {
                self.targets.get(&(namespace.clone(), target.to_owned())).map(|t| t.object.labels().clone())
            };
            let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
            let scope = self.scopes.iter().find(|((scope_namespace, _), _)| scope_namespace == namespace);
            let ceiling =
                scope.map(|((_, name), s)| (format!("KollectScope {name}"), &s.object.spec.ceiling));
            resolved.push(Inventory {
                namespace: Some(namespace.clone()),
                name: name.clone(),
                targets: chosen(
                    Some(namespace),
                    &spec.target_refs,
                    spec.target_selector.as_ref(),
                    targets,
                    labels,
                )
                .unwrap_or_else(|errors| report(&mut problems, &who, &errors)),
                sinks: bound(&self.sinks, lists, Some(namespace), namespace, ceiling.as_ref())
                    .unwrap_or_else(|errors| report(&mut problems, &who, &errors)),
            });
            if spec.suspend {
                self.notes.push(format!("{who} is suspended and was not written"));
                resolved.pop();
            }
        }
        for ((_, name), Loaded { place, object }) in &self.cluster_inventories {
            let spec = &object.spec;
            let who = format!("{place}: KollectClusterInventory {name}");
            let labels = |target: &str| {
                self.cluster_targets
                    .get(&(String::new(), target.to_owned()))
                    .map(|t| t.object.labels().clone())
            };
            let lists = [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs];
            if spec.namespace_selector.is_some()
                || !spec.namespaces.is_empty()
                || spec.dedupe != Dedupe::default()
            {
                problems.push(format!(
                    "{who}: spec.namespaceSelector, spec.namespaces, spec.dedupe: are not available in this build: remove them"
                ));
            }
            let scope = self.cluster_scopes.iter().next();
            let ceiling =
                scope.map(|((_, name), s)| (format!("KollectClusterScope {name}"), &s.object.spec.ceiling));
            resolved.push(Inventory {
                namespace: None,
                name: name.clone(),
                targets: chosen(None, &spec.target_refs, spec.target_selector.as_ref(), targets, labels)
                    .unwrap_or_else(|errors| report(&mut problems, &who, &errors)),
                sinks: bound(&self.sinks, lists, None, &spec.sink_namespace, ceiling.as_ref())
                    .unwrap_or_else(|errors| report(&mut problems, &who, &errors)),
            });
            if spec.suspend {
                self.notes.push(format!("{who} is suspended and was not written"));
                resolved.pop();
            }
        }
        self.problems.extend(problems);
        resolved
    }
}

fn report<T: Default>(problems: &mut Vec<String>, who: &str, errors: &[SpecError]) -> T {
    problems.extend(errors.iter().map(|error| format!("{who}: {error}")));
    T::default()
}

fn own_inventory(target: &TargetId) -> Inventory {
    Inventory {
        namespace: target.namespace.as_deref().map(Into::into),
        name: target.name.to_string(),
        targets: vec![target.clone()],
        sinks: Vec::new(),
    }
}

fn insert<K: DeserializeOwned + ResourceExt>(
    objects: &mut Objects<K>,
    place: Place,
    who: &str,
    value: Value,
    problems: &mut Vec<String>,
) {
    insert_as(objects, place, who, value, problems, |object: K| object);
}

fn insert_as<K: DeserializeOwned + ResourceExt, T>(
    objects: &mut Objects<T>,
    place: Place,
    who: &str,
    value: Value,
    problems: &mut Vec<String>,
    keep: impl FnOnce(K) -> T,
) {
    match serde_json::from_value::<K>(value) {
        Ok(object) => {
            let name = (object.namespace().unwrap_or_default(), object.name_any());
            if let Some(first) = objects.get(&name) {
                problems.push(twice(who, &place, &first.place));
            }
            objects.insert(name, Loaded { place, object: keep(object) });
        }
        Err(error) => problems.push(format!("{place}: {who}: {error}")),
    }
}

fn twice(who: &str, place: &Place, first: &Place) -> String {
    format!("{place}: {who}: metadata.name: is defined twice, first in {first}: remove or rename one of them")
}

fn dangling(field: &str, value: &str, what: &str, namespace: &str) -> SpecError {
    let problem =
        format!("no {what} in namespace {namespace} among the manifests: add it or correct the name");
    SpecError::new(field, &value.into(), problem)
}

/// A target on the way to its profile.
struct Referrer<'a> {
    place: &'a Place,
    who: String,
    rules: Vec<(&'a Gvk, &'a str)>,
    ceiling: Option<(String, &'a ScopeCeiling)>,
}

impl Referrer<'_> {
    /// The profile, `None` when it exists and does not compile, or what is wrong.
    fn profile(
        &self,
        profiles: &BTreeMap<Name, Option<Arc<CompiledProfile>>>,
        name: &Name,
        field: &str,
    ) -> Result<Option<Arc<CompiledProfile>>, Vec<String>> {
        let mut errors = Vec::new();
        let profile = profiles.get(name);
        if profile.is_none() {
            errors.push(dangling(field, &name.1, &format!("KollectProfile {}", name.1), &name.0));
        }
        for (index, (_, policy)) in
            self.rules.iter().enumerate().filter(|(_, (_, policy))| !policy.is_empty())
        {
            let field = format!("spec.resourceRules[{index}].matchPolicy");
            errors.push(SpecError::new(
                field,
                &(*policy).into(),
                "CEL is not available in this build: use labels",
            ));
        }
        let own = profile.and_then(|p| p.as_ref()).map(|p| &p.gvk).filter(|_| self.rules.is_empty());
        for gvk in self.rules.iter().map(|(gvk, _)| *gvk).chain(own) {
            if let Some((scope, _)) = self.ceiling.as_ref().filter(|(_, ceiling)| !ceiling.allows_kind(gvk)) {
                errors.push(SpecError::new(
                    field,
                    &gvk.to_string().into(),
                    format!("{scope} does not allow this kind"),
                ));
            }
        }
        let line = |error: &SpecError| format!("{}: {}: {error}", self.place, self.who);
        if errors.is_empty() {
            Ok(profile.cloned().flatten())
        } else {
            Err(errors.iter().map(line).collect())
        }
    }
}

/// The targets that belong to an inventory.
fn chosen(
    namespace: Option<&String>,
    refs: &[String],
    selector: Option<&LabelSelector>,
    targets: &[Target],
    labels: impl Fn(&str) -> Option<BTreeMap<String, String>>,
) -> Result<Vec<TargetId>, Vec<SpecError>> {
    let kind = if namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
    let missing: Vec<SpecError> = refs
        .iter()
        .enumerate()
        .filter(|(_, name)| labels(name).is_none())
        .map(|(index, name)| {
            let problem = format!("no {kind} {name} among the manifests: add it or correct the name");
            SpecError::new(format!("spec.targetRefs[{index}]"), &name.as_str().into(), problem)
        })
        .collect();
    if !missing.is_empty() {
        return Err(missing);
    }
    let belongs = |id: &TargetId| {
        id.namespace.as_deref() == namespace.map(String::as_str)
            && (refs.is_empty() || refs.iter().any(|name| **name == *id.name))
            && selector.is_none_or(|selector| labels(&id.name).is_some_and(|l| selector.matches(&l)))
    };
    Ok(targets.iter().map(|target| target.id.clone()).filter(belongs).collect())
}

/// The sinks of an inventory, in its three lists.
fn bound(
    sinks: &BTreeMap<(Family, Name), Loaded<SinkSpec>>,
    lists: [&SinkRefs; 3],
    namespace: Option<&String>,
    sink_namespace: &str,
    ceiling: Option<&(String, &ScopeCeiling)>,
) -> Result<Vec<BoundSink>, Vec<SpecError>> {
    let mut found = Vec::new();
    let mut errors = Vec::new();
    let families = [
        (Family::Snapshot, "spec.snapshotSinkRefs"),
        (Family::Database, "spec.databaseSinkRefs"),
        (Family::Event, "spec.eventSinkRefs"),
    ];
    for ((family, field), list) in families.into_iter().zip(lists) {
        let refs = list.decode(field, namespace.is_some()).unwrap_or_else(|problems| {
            errors.extend(problems);
            Vec::new()
        });
        for (index, sink_ref) in refs.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if let Some((scope, _)) =
                ceiling.filter(|(_, ceiling)| !allows_sink(ceiling, family, &sink_ref.name))
            {
                errors.push(SpecError::new(
                    &field,
                    &sink_ref.name.as_str().into(),
                    format!("{scope} does not allow this sink"),
                ));
            }
            match bind(sinks, family, sink_ref, sink_namespace, &field) {
                Ok(sink) => found.push(sink),
                Err(error) => errors.push(error),
            }
        }
    }
    let total: usize = lists.iter().map(|list| list.0.len()).sum();
    if total > MAX_SINK_REFS {
        errors.push(SpecError::new(
            "spec",
            &total.into(),
            format!("has more than {MAX_SINK_REFS} sink references"),
        ));
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

fn allows_sink(ceiling: &ScopeCeiling, family: Family, name: &str) -> bool {
    let list = match family {
        Family::Snapshot => &ceiling.snapshot_sink_refs,
        Family::Database => &ceiling.database_sink_refs,
        Family::Event => &ceiling.event_sink_refs,
    };
    list.is_empty() || list.iter().any(|allowed| allowed == name)
}

fn bind(
    sinks: &BTreeMap<(Family, Name), Loaded<SinkSpec>>,
    family: Family,
    sink_ref: &SinkRef,
    default_namespace: &str,
    field: &str,
) -> Result<BoundSink, SpecError> {
    let namespace = sink_ref.namespace.as_deref().unwrap_or(default_namespace);
    let name = format!("{family}/{}", sink_ref.name);
    let key = (family, (namespace.to_owned(), sink_ref.name.clone()));
    let Some(Loaded { place, object: spec }) = sinks.get(&key) else {
        return Err(dangling(field, &sink_ref.name, &format!("{family} sink {}", sink_ref.name), namespace));
    };
    Ok(BoundSink { place: format!("{place}: {family} sink {}", sink_ref.name), name, spec: spec.clone() })
}
