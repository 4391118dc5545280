//! Loads Kollect manifests from files and finds everything that is wrong with them.
//!
//! Nothing is collected unless all manifests are right: schema and names here, references, expressions
//! and scopes in [`resolve`].

mod resolve;
mod secrets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kollect_engine::{
    collect::Target,
    extract::Policy,
    schedule::{Cadence, Intervals},
    select::NamespaceDefaults,
};
use kollect_model::{
    SpecError,
    batch::PART_BYTES,
    crd::{
        GROUP, KollectClusterInventory, KollectClusterScope, KollectClusterTarget, KollectConnectionTest,
        KollectDatabaseSink, KollectEventSink, KollectInventory, KollectProfile, KollectScope,
        KollectSnapshotSink, KollectTarget, VERSION, inventory::SinkRef, shapes::GoDuration,
    },
    row::TargetId,
    schema,
    sink::SinkSpec,
};
use kollect_sinks::Secrets;
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
enum Family {
    Snapshot,
    Database,
    Event,
}

impl Family {
    fn kind(self) -> &'static str {
        match self {
            Self::Snapshot => "KollectSnapshotSink",
            Self::Database => "KollectDatabaseSink",
            Self::Event => "KollectEventSink",
        }
    }
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
    /// When it is written.
    pub(crate) cadence: Cadence,
    /// Largest part of a document.
    pub(crate) part_bytes: usize,
    /// What its Secrets hold, or which of them are missing.
    secrets: Result<Secrets, Vec<SpecError>>,
    /// Where the sink's manifest stands, for messages.
    place: String,
}

/// What an inventory says about when and how its sinks are written.
#[derive(Clone, Copy)]
struct Pace {
    intervals: Intervals,
    max_export_bytes: Option<i64>,
}

/// How long documents wait for further changes, so that a roll-out is one of them.
const DOCUMENTS: Duration = Duration::from_secs(10);

impl BoundSink {
    fn new(name: String, spec: SinkSpec, secrets: Result<Secrets, Vec<SpecError>>, place: String) -> Self {
        let cadence = Cadence::of([Intervals::default(); 3], None, Duration::ZERO);
        Self { name, spec, cadence, part_bytes: PART_BYTES, secrets, place }
    }

    /// What its reference and its inventory say about it.
    fn set_pace(&mut self, family: Family, sink_ref: &SinkRef, inventory: Pace, floor: Option<GoDuration>) {
        let SinkRef { export_min_interval, min_change_interval, audit_interval, .. } = *sink_ref;
        let common = self.spec.common();
        let level = |export_min, min_change, audit| Intervals { export_min, min_change, audit };
        let reference = level(export_min_interval, min_change_interval, audit_interval);
        let own = level(common.export_min_interval, common.min_change_interval, common.audit_interval);
        let min_change = if family == Family::Snapshot { DOCUMENTS } else { Duration::ZERO };
        self.cadence = Cadence::of([reference, own, inventory.intervals], floor.map(|d| d.0), min_change);
        let part_bytes = sink_ref.max_export_bytes.or(inventory.max_export_bytes);
        self.part_bytes = part_bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(PART_BYTES);
    }

    /// The plan of the sink, or a line for each problem.
    pub(crate) fn plan(&self) -> Result<kollect_sinks::Plan, Vec<String>> {
        let plan = kollect_sinks::plan(&self.spec)
            .and_then(|plan| plan.with_secrets(self.secrets.as_ref().map_err(Clone::clone)?));
        let line = |error: SpecError| format!("{}: {error}", self.place);
        plan.map_err(|errors| errors.into_iter().map(line).collect())
    }
}

/// A set of targets whose rows belong together, and where they go.
pub(crate) struct Inventory {
    /// `None` for cluster inventories.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// Its targets; those that are suspended as well, because their rows stay.
    pub(crate) targets: Vec<TargetId>,
    pub(crate) sinks: Vec<BoundSink>,
}

/// What the manifests ask for.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) targets: Vec<Arc<Target>>,
    pub(crate) inventories: Vec<Inventory>,
    /// What was left out, and what deserves a look.
    pub(crate) notes: Vec<String>,
}

/// Loads manifests; all problems at once.
pub(crate) fn load(
    paths: &[PathBuf],
    policy: &Policy,
    defaults: &NamespaceDefaults,
) -> Result<Work, Vec<String>> {
    let mut manifests = Manifests::default();
    for path in paths {
        match yaml::files(path) {
            Ok(files) => files.iter().for_each(|file| manifests.read(file)),
            Err(error) => manifests.problems.push(format!("{error:#}")),
        }
    }
    let work = manifests.resolve(policy, defaults);
    if manifests.problems.is_empty() { Ok(work) } else { Err(manifests.problems) }
}

#[derive(Default)]
struct Manifests {
    profiles: Objects<KollectProfile>,
    targets: Objects<KollectTarget>,
    cluster_targets: Objects<KollectClusterTarget>,
    inventories: Objects<KollectInventory>,
    cluster_inventories: Objects<KollectClusterInventory>,
    sinks: BTreeMap<Family, Objects<SinkSpec>>,
    scopes: Objects<KollectScope>,
    cluster_scopes: Objects<KollectClusterScope>,
    connection_tests: Objects<KollectConnectionTest>,
    secrets: Objects<secrets::Contents>,
    /// Kind and name of manifests that exist and are wrong: references to them are not dangling.
    refused: BTreeSet<(String, Name)>,
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Manifests {
    fn read(&mut self, file: &Path) {
        let text = match yaml::text(file) {
            Ok(text) => text,
            Err(error) => return self.problems.push(format!("{error:#}")),
        };
        for (document, value) in yaml::documents(&text) {
            let place = Place { file: file.to_owned(), document };
            match value {
                Ok(value) => yaml::unpack(value).into_iter().for_each(|value| self.add(place.clone(), value)),
                Err(error) => self.problems.push(format!("{place}: {error}")),
            }
        }
    }

    fn add(&mut self, place: Place, mut value: Value) {
        let api_version = value["apiVersion"].as_str().unwrap_or_default().to_owned();
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let who = format!("{place}: {kind} {name}");
        if api_version.is_empty() || kind.is_empty() {
            let problem = "apiVersion and kind are needed: this is not a Kubernetes manifest";
            return self.problems.push(format!("{place}: {problem}"));
        }
        if (&*api_version, &*kind) == ("v1", "Secret") {
            return self.add_secret(place, &who, &value);
        }
        if api_version.split('/').next() != Some(GROUP) {
            return self
                .notes
                .push(format!("{place}: {api_version} {kind} is not Kollect's and was ignored"));
        }
        let known = schema::kinds().get(&kind).filter(|_| api_version == format!("{GROUP}/{VERSION}"));
        let Some(known) = known else {
            let names: Vec<_> = schema::kinds().keys().map(String::as_str).collect();
            let problem = format!("is unknown; known in {GROUP}/{VERSION}: {}", names.join(", "));
            let error = SpecError::new("kind", &format!("{api_version} {kind}").into(), problem);
            return self.problems.push(format!("{place}: {error}"));
        };
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            if !known.namespaced {
                metadata.remove("namespace");
            } else if metadata.get("namespace").is_none_or(Value::is_null) {
                metadata.insert("namespace".into(), "default".into());
            }
        }
        let errors = known.check(&mut value);
        if !errors.is_empty() {
            let namespace = value["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            self.refused.insert((kind, (namespace, name)));
            return self.problems.extend(errors.iter().map(|error| format!("{who}: {error}")));
        }
        self.keep(place, &kind, &who, value);
    }

    fn add_secret(&mut self, place: Place, who: &str, value: &Value) {
        let text = |field: &str| value["metadata"][field].as_str();
        let name = (text("namespace").unwrap_or("default").into(), text("name").unwrap_or_default().into());
        match secrets::contents(value) {
            Ok(object) => drop(self.secrets.insert(name, Loaded { place, object })),
            Err(errors) => {
                self.refused.insert(("Secret".into(), name));
                self.problems.extend(errors.iter().map(|error| format!("{who}: {error}")));
            }
        }
    }

    fn keep(&mut self, place: Place, kind: &str, who: &str, value: Value) {
        let problems = &mut self.problems;
        match kind {
            "KollectProfile" => keep(&mut self.profiles, place, who, value, problems, |k| k),
            "KollectTarget" => keep(&mut self.targets, place, who, value, problems, |k| k),
            "KollectClusterTarget" => keep(&mut self.cluster_targets, place, who, value, problems, |k| k),
            "KollectInventory" => keep(&mut self.inventories, place, who, value, problems, |k| k),
            "KollectClusterInventory" => {
                keep(&mut self.cluster_inventories, place, who, value, problems, |k| k);
            }
            "KollectScope" => keep(&mut self.scopes, place, who, value, problems, |k| k),
            "KollectClusterScope" => keep(&mut self.cluster_scopes, place, who, value, problems, |k| k),
            "KollectConnectionTest" => keep(&mut self.connection_tests, place, who, value, problems, |k| k),
            "KollectSnapshotSink" => {
                let sinks = self.sinks.entry(Family::Snapshot).or_default();
                keep(sinks, place, who, value, problems, |k: KollectSnapshotSink| SinkSpec::Snapshot(k.spec));
            }
            "KollectDatabaseSink" => {
                let sinks = self.sinks.entry(Family::Database).or_default();
                keep(sinks, place, who, value, problems, |k: KollectDatabaseSink| SinkSpec::Database(k.spec));
            }
            _ => {
                let sinks = self.sinks.entry(Family::Event).or_default();
                keep(sinks, place, who, value, problems, |k: KollectEventSink| SinkSpec::Event(k.spec));
            }
        }
    }
}

fn keep<K: DeserializeOwned + ResourceExt, T>(
    objects: &mut Objects<T>,
    place: Place,
    who: &str,
    value: Value,
    problems: &mut Vec<String>,
    part: impl Fn(K) -> T,
) {
    match serde_json::from_value::<K>(value) {
        Ok(object) => {
            let name = (object.namespace().unwrap_or_default(), object.name_any());
            if let Some(first) = objects.get(&name) {
                let first = &first.place;
                problems.push(format!(
                    "{who}: metadata.name: is defined twice, first in {first}: rename one of them"
                ));
            }
            objects.insert(name, Loaded { place, object: part(object) });
        }
        Err(error) => problems.push(format!("{who}: {error}")),
    }
}
