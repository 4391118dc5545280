//! Loads Kollect manifests from files and finds everything that is wrong with them.
//!
//! Nothing is collected unless all manifests are valid. Schema and names are checked here, references between objects
//! in [`crate::resolve`], and what a run of the command line needs in [`requested_run`].

mod readable;
mod requested_run;
mod secrets;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use kollect_engine::{collect::Target, schedule::Cadence};
use kollect_model::{
    SpecError,
    binding::SinkName,
    crd::{
        GROUP, KollectConnectionTest, KollectDatabaseSink, KollectEventSink, KollectSnapshotSink, VERSION,
        profile::KollectProfileSpec,
    },
    row::TargetId,
    schema::Schema,
    sink::SinkSpec,
};
use kollect_sinks::Plan;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    documents,
    resolve::{CompiledObjects, Family, ObjectName, ObjectSet, OperatorPolicy, RowsWanted, Secret},
    schema,
};

/// The file of a manifest, and its document in the file.
#[derive(Clone, Debug)]
struct ManifestPosition {
    file: PathBuf,
    document: usize,
}

impl fmt::Display for ManifestPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file.display(), self.document)
    }
}

/// A sink that an inventory is bound to.
#[derive(Clone, Debug)]
pub(crate) struct RunSink {
    pub(crate) name: SinkName,
    /// Name of the cluster in the sink.
    pub(crate) cluster: String,
    /// When it is written.
    pub(crate) cadence: Cadence,
    /// Largest part of a document.
    pub(crate) part_bytes: usize,
    /// How to open it, or a line for each problem.
    pub(crate) plan: Result<Plan, Vec<String>>,
}

/// A set of targets whose rows belong together, and where they go.
pub(crate) struct RunInventory {
    /// `None` for cluster inventories.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// Its targets; those that are suspended as well, because their rows stay.
    pub(crate) targets: Vec<TargetId>,
    /// What they declare about their rows.
    pub(crate) schema: Arc<Schema>,
    /// Which of their rows.
    pub(crate) rows: RowsWanted,
    pub(crate) sinks: Vec<RunSink>,
}

/// A profile, and what messages call it.
pub(crate) type LabelledProfile = (String, KollectProfileSpec);

/// What the manifests ask for.
#[derive(Default)]
pub(crate) struct RequestedRun {
    pub(crate) targets: Vec<Arc<Target>>,
    pub(crate) inventories: Vec<RunInventory>,
    /// Notes for the user: what was left out, and what else is not a problem.
    pub(crate) notes: Vec<String>,
    pub(crate) profiles: Vec<LabelledProfile>,
}

/// Loads manifests. Returns what they ask for, as far as they can be read, and every problem. If there is a problem
/// the run must not be done: it only helps to find more problems.
pub(crate) fn load(paths: &[PathBuf], operator_policy: &OperatorPolicy) -> (RequestedRun, Vec<String>) {
    let mut manifests = Manifests::default();
    for path in paths {
        match documents::files(path) {
            Ok(files) => files.iter().for_each(|file| manifests.read(file)),
            Err(error) => manifests.problems.push(format!("{error:#}")),
        }
    }
    let resolved = manifests.object_set.resolve(operator_policy, &mut CompiledObjects::default());
    let run = manifests.requested_run(resolved, operator_policy);
    (run, manifests.problems)
}

#[derive(Default)]
struct Manifests {
    object_set: ObjectSet,
    connection_tests: BTreeMap<ObjectName, KollectConnectionTest>,
    /// Where each object is defined, by kind and name.
    positions: BTreeMap<(String, ObjectName), ManifestPosition>,
    /// Fields that break the schema, by kind and name of their object.
    invalid_fields: BTreeMap<(String, ObjectName), Vec<String>>,
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Manifests {
    fn read(&mut self, file: &Path) {
        let text = match documents::text(file) {
            Ok(text) => text,
            Err(error) => return self.problems.push(format!("{error:#}")),
        };
        for (document, value) in documents::parse(&text) {
            let position = ManifestPosition { file: file.to_owned(), document };
            match value {
                Ok(value) => {
                    documents::unpack(value).into_iter().for_each(|value| self.add(position.clone(), value));
                }
                Err(error) => self.problems.push(format!("{position}: {error}")),
            }
        }
    }

    fn add(&mut self, position: ManifestPosition, mut value: Value) {
        let api_version = value["apiVersion"].as_str().unwrap_or_default().to_owned();
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let label = format!("{position}: {kind} {name}");
        if api_version.is_empty() || kind.is_empty() {
            let problem = "apiVersion and kind are needed: this is not a Kubernetes manifest";
            return self.problems.push(format!("{position}: {problem}"));
        }
        if (&*api_version, &*kind) == ("v1", "Secret") {
            return self.add_secret(position, &label, &value);
        }
        if api_version.split('/').next() != Some(GROUP) {
            return self
                .notes
                .push(format!("{position}: {api_version} {kind} is not Kollect's and was ignored"));
        }
        let known = schema::kinds().get(&kind).filter(|_| api_version == format!("{GROUP}/{VERSION}"));
        let Some(known) = known else {
            let names: Vec<_> = schema::kinds().keys().map(String::as_str).collect();
            let problem = format!("is unknown; known in {GROUP}/{VERSION}: {}", names.join(", "));
            let error = SpecError::new("kind", &format!("{api_version} {kind}").into(), problem);
            return self.problems.push(format!("{position}: {error}"));
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
            let object = (kind, (namespace, name));
            self.problems.extend(errors.iter().map(|error| format!("{label}: {error}")));
            let fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
            let mut attempts = readable::attempts(&value, &fields).into_iter();
            let inserted = attempts.any(|value| self.insert(&object.0, value).is_ok());
            self.object_set.refused.insert(object.clone());
            if inserted {
                self.add_position(position, &object.0, &label, object.1.clone());
            }
            self.invalid_fields.insert(object, fields);
            return;
        }
        match self.insert(&kind, value) {
            Ok(name) => self.add_position(position, &kind, &label, name),
            Err(error) => self.problems.push(format!("{label}: {error}")),
        }
    }

    fn add_position(&mut self, position: ManifestPosition, kind: &str, label: &str, name: ObjectName) {
        if let Some(first) = self.positions.insert((kind.to_owned(), name), position) {
            self.problems.push(format!(
                "{label}: metadata.name: is defined twice, first in {first}: rename one of them"
            ));
        }
    }

    fn add_secret(&mut self, position: ManifestPosition, label: &str, value: &Value) {
        let text = |field: &str| value["metadata"][field].as_str();
        let name = (text("namespace").unwrap_or("default").into(), text("name").unwrap_or_default().into());
        self.positions.insert(("Secret".into(), name.clone()), position);
        match secrets::contents(value) {
            Ok(contents) => drop(self.object_set.secrets.insert(name, Secret::Contents(contents.into()))),
            Err(errors) => {
                self.object_set.refused.insert(("Secret".into(), name));
                self.problems.extend(errors.iter().map(|error| format!("{label}: {error}")));
            }
        }
    }

    fn insert(&mut self, kind: &str, value: Value) -> Result<ObjectName, serde_json::Error> {
        let object_set = &mut self.object_set;
        match kind {
            "KollectProfile" => insert(value, &mut object_set.profiles, Arc::new),
            "KollectTarget" => insert(value, &mut object_set.targets, Arc::new),
            "KollectClusterTarget" => insert(value, &mut object_set.cluster_targets, Arc::new),
            "KollectInventory" => insert(value, &mut object_set.inventories, Arc::new),
            "KollectClusterInventory" => insert(value, &mut object_set.cluster_inventories, Arc::new),
            "KollectScope" => insert(value, &mut object_set.scopes, Arc::new),
            "KollectClusterScope" => insert(value, &mut object_set.cluster_scopes, Arc::new),
            "KollectConnectionTest" => insert(value, &mut self.connection_tests, |test| test),
            "KollectSnapshotSink" => {
                self.insert_sink(Family::Snapshot, value, |sink: KollectSnapshotSink| {
                    SinkSpec::Snapshot(sink.spec)
                })
            }
            "KollectDatabaseSink" => {
                self.insert_sink(Family::Database, value, |sink: KollectDatabaseSink| {
                    SinkSpec::Database(sink.spec)
                })
            }
            _ => self.insert_sink(Family::Event, value, |sink: KollectEventSink| SinkSpec::Event(sink.spec)),
        }
    }

    fn insert_sink<K: DeserializeOwned + ResourceExt>(
        &mut self,
        family: Family,
        value: Value,
        spec: impl Fn(K) -> SinkSpec,
    ) -> Result<ObjectName, serde_json::Error> {
        let mut sinks = BTreeMap::new();
        let name = insert(value, &mut sinks, |sink| Arc::new(spec(sink)))?;
        self.object_set.sinks.extend(sinks.into_iter().map(|(name, spec)| ((family, name), spec)));
        Ok(name)
    }
}

fn insert<K: DeserializeOwned + ResourceExt, T>(
    value: Value,
    objects: &mut BTreeMap<ObjectName, T>,
    part: impl Fn(K) -> T,
) -> Result<ObjectName, serde_json::Error> {
    let object: K = serde_json::from_value(value)?;
    let name = (object.namespace().unwrap_or_default(), object.name_any());
    objects.insert(name.clone(), part(object));
    Ok(name)
}
