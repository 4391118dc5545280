//! Export of whole objects: which sections, and what is removed from them.

mod jq;

use std::sync::Arc;

use kollect_model::{
    SpecError,
    crd::profile::{ExportSections, PrunePreset, ResourceExport},
};

use crate::{
    extract::{
        cel::{CelVariables, EvalError, Expression},
        jsonpath::{Path, RemovalTree},
    },
    json::{Json, JsonMap, Projection},
};

/// Fields that the API server and tools maintain on every object; their changes would only be noise.
const MAINTAINED_FIELDS: [&[&str]; 5] = [
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
    &["metadata", "generation"],
    &["metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"],
    &["metadata", "annotations", "argocd.argoproj.io/tracking-id"],
];

/// What the cluster writes into objects, and a person would not keep in Git.
const WRITTEN_BY_THE_CLUSTER: [&[&str]; 8] = [
    &["status"],
    &["metadata", "creationTimestamp"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "deletionGracePeriodSeconds"],
    &["metadata", "ownerReferences"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "annotations", "deployment.kubernetes.io/revision"],
];

/// Addresses of a Service that the cluster has chosen.
const ADDRESSES: [&[&str]; 2] = [&["spec", "clusterIP"], &["spec", "clusterIPs"]];

/// The sections that are exported by default.
const SPEC_AND_STATUS: &[&str] = &["spec", "status"];

/// The most bytes of pointers that one expression of `prune.cel` may give, and how many all of them may.
const MAX_POINTER_BYTES: usize = 1 << 20;
const MAX_POINTERS: usize = 1000;

/// How an object becomes an attribute.
#[derive(Debug)]
pub(crate) struct CompiledResourceExport {
    pub(crate) name: Arc<str>,
    sections: &'static [&'static str],
    everything: bool,
    without_identity: bool,
    without_maintained_fields: bool,
    preset: Option<PrunePreset>,
    pointers: Vec<Vec<String>>,
    paths: Vec<Path>,
    /// Each gives pointers; what it reads of an object.
    expressions: Vec<(Expression, Projection)>,
}

/// Why an object is not exported.
pub(crate) enum PruneError {
    /// What is pruned depends on a redacted value.
    Redacted,
    /// An expression of `prune.cel` failed.
    Failed(String),
}

impl CompiledResourceExport {
    /// Compiles the pruning; each bad path is an error.
    pub(crate) fn compile(spec: &ResourceExport) -> Result<Self, Vec<SpecError>> {
        let prune = spec.prune.as_ref();
        let mut errors = Vec::new();
        let (mut paths, mut expressions) = (Vec::new(), Vec::new());
        for (index, text) in prune.iter().flat_map(|prune| &prune.json_paths).enumerate() {
            match Path::parse(text.trim()) {
                Ok(path) => paths.push(path),
                Err(error) => {
                    let field = format!("spec.export.prune.jsonPaths[{index}]");
                    errors.push(super::with_caret(field, text, Some(error.at), &error.problem));
                }
            }
        }
        for (index, text) in prune.iter().flat_map(|prune| &prune.jq_path_expressions).enumerate() {
            match jq::parse(text) {
                Ok(path) => paths.push(path),
                Err(problem) => {
                    let field = format!("spec.export.prune.jqPathExpressions[{index}]");
                    errors.push(SpecError::new(field, &text.as_str().into(), problem));
                }
            }
        }
        for (index, text) in prune.iter().flat_map(|prune| &prune.cel).enumerate() {
            let text = text.trim();
            let text = text.strip_prefix("cel:").unwrap_or(text);
            match Expression::compile(text) {
                Ok(expression) => {
                    let mut reads = Projection::default();
                    expression.add_reads_to(&mut reads);
                    expressions.push((expression, reads));
                }
                Err(error) => {
                    let field = format!("spec.export.prune.cel[{index}]");
                    errors.push(super::with_caret(field, text, error.at, &error.problem));
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let pointers = prune.iter().flat_map(|prune| &prune.json_pointers);
        Ok(Self {
            name: spec.as_.as_str().into(),
            sections: match spec.include {
                ExportSections::MetadataOnly => &["metadata"],
                ExportSections::SpecOnly => &["spec"],
                ExportSections::StatusOnly => &["status"],
                ExportSections::SpecAndStatus => SPEC_AND_STATUS,
                ExportSections::All => &[],
            },
            everything: spec.include == ExportSections::All,
            without_identity: spec.dedupe_identity.unwrap_or(true),
            without_maintained_fields: prune.and_then(|prune| prune.defaults).unwrap_or(true),
            preset: prune.and_then(|prune| prune.preset),
            pointers: pointers.map(|pointer| segments(pointer)).collect(),
            paths,
            expressions,
        })
    }

    pub(crate) fn project(&self, projection: &mut Projection) {
        if self.everything {
            projection.take_all();
        }
        self.sections.iter().for_each(|section| projection.key(section).take_all());
        self.expressions.iter().for_each(|(expression, _)| expression.add_reads_to(projection));
    }

    /// Whether the object is exported as a whole because it has no `spec`, such as a ConfigMap: then all of it must be read.
    pub(crate) fn exports_everything_of(&self, object: &JsonMap<'_>) -> bool {
        self.sections == SPEC_AND_STATUS && object.get("spec").is_none()
    }

    pub(crate) fn reads_namespace(&self) -> bool {
        self.expressions.iter().any(|(expression, _)| expression.reads_namespace())
    }

    /// What is exported of an object. An object that cannot be pruned as it was asked for is not exported.
    pub(crate) fn build<'a>(
        &self,
        object: JsonMap<'a>,
        namespace: Option<&Json<'_>>,
    ) -> Result<Json<'a>, PruneError> {
        let everything = self.everything || self.exports_everything_of(&object);
        let object = Json::Map(object);
        let computed = self.computed_pointers(&object, namespace)?;
        let Json::Map(mut object) = object else { return Ok(object) };
        let kept =
            |key: &str| everything || key == "apiVersion" || key == "kind" || self.sections.contains(&key);
        object.retain(kept);
        if let Some(Json::Map(metadata)) = object.get_mut("metadata") {
            let minimal = self.preset == Some(PrunePreset::Minimal);
            metadata.retain(|key| match key {
                "name" | "namespace" => !self.without_identity,
                "uid" => !self.without_identity && !minimal,
                "labels" | "annotations" => true,
                _ => !minimal,
            });
        }
        let mut object = Json::Map(object);
        if self.without_maintained_fields {
            MAINTAINED_FIELDS.iter().for_each(|pointer| remove(&mut object, pointer));
        }
        match self.preset {
            Some(PrunePreset::Gitops | PrunePreset::Minimal) => {
                WRITTEN_BY_THE_CLUSTER.iter().for_each(|pointer| remove(&mut object, pointer));
                // A Service without an address is one that a person asked for.
                let address =
                    object.get("spec").and_then(|spec| spec.get("clusterIP")).and_then(Json::as_str);
                if address != Some("None") {
                    ADDRESSES.iter().for_each(|pointer| remove(&mut object, pointer));
                }
            }
            Some(PrunePreset::Status) => remove(&mut object, &["status"]),
            None => {}
        }
        let mut removals = RemovalTree::default();
        let pointers = self.pointers.iter().chain(&computed).filter(|pointer| !pointer.is_empty());
        pointers.for_each(|pointer| removals.add_pointer(&object, pointer));
        self.paths.iter().for_each(|path| path.add_removals(&object, &mut removals));
        removals.apply(&mut object);
        Ok(object)
    }

    /// The pointers that expressions give.
    fn computed_pointers(
        &self,
        object: &Json<'_>,
        namespace: Option<&Json<'_>>,
    ) -> Result<Vec<Vec<String>>, PruneError> {
        let mut pointers = Vec::new();
        for (index, (expression, reads)) in self.expressions.iter().enumerate() {
            let failed = |problem: String| PruneError::Failed(format!("prune.cel[{index}]: {problem}"));
            let result = CelVariables::new(object, reads, namespace)
                .and_then(|variables| expression.evaluate(&variables, MAX_POINTER_BYTES));
            let result = match result {
                Err(EvalError::Redacted) => return Err(PruneError::Redacted),
                result => result.map_err(|error| failed(error.to_string()))?,
            };
            let texts = match result {
                Json::Null => Vec::new(),
                Json::List(items) => items,
                text => vec![text],
            };
            if pointers.len() + texts.len() > MAX_POINTERS {
                return Err(failed(format!("more than {MAX_POINTERS} pointers")));
            }
            if texts.contains(&Json::Redacted) {
                return Err(PruneError::Redacted);
            }
            for text in texts {
                match text.as_str().filter(|text| text.starts_with('/')) {
                    Some(pointer) => pointers.push(segments(pointer)),
                    None => return Err(failed("it must give JSON pointers, such as /spec/replicas".into())),
                }
            }
        }
        Ok(pointers)
    }
}

/// The segments of an RFC 6901 pointer.
fn segments(pointer: &str) -> Vec<String> {
    let unescaped = |segment: &str| segment.replace("~1", "/").replace("~0", "~");
    pointer.split('/').skip(1).map(unescaped).collect()
}

/// Removes the value of nested keys.
fn remove(value: &mut Json<'_>, keys: &[&str]) {
    match (value, keys) {
        (Json::Map(map), [key]) => drop(map.remove(key)),
        (Json::Map(map), [key, rest @ ..]) => {
            if let Some(child) = map.get_mut(key) {
                remove(child, rest);
            }
        }
        _ => {}
    }
}
