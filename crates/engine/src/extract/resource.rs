//! Export of whole objects: which sections, and what is removed from them.

use kollect_model::{
    SpecError,
    crd::profile::{ExportSections, ResourceExport},
};

use crate::{
    extract::jsonpath::Path,
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

/// How an object becomes an attribute.
#[derive(Debug)]
pub(crate) struct CompiledResourceExport {
    pub(crate) name: String,
    sections: &'static [&'static str],
    everything: bool,
    without_identity: bool,
    without_maintained_fields: bool,
    pointers: Vec<Vec<String>>,
    paths: Vec<Path>,
}

impl CompiledResourceExport {
    /// Compiles the pruning; each bad path is an error.
    pub(crate) fn compile(spec: &ResourceExport) -> Result<Self, Vec<SpecError>> {
        let prune = spec.prune.as_ref();
        let mut errors = Vec::new();
        let mut paths = Vec::new();
        for (index, text) in prune.iter().flat_map(|prune| &prune.json_paths).enumerate() {
            match Path::parse(text.trim()) {
                Ok(path) => paths.push(path),
                Err(error) => {
                    let field = format!("spec.export.prune.jsonPaths[{index}]");
                    errors.push(super::with_caret(field, text, Some(error.at), &error.problem));
                }
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let pointers = prune.iter().flat_map(|prune| &prune.json_pointers);
        Ok(Self {
            name: spec.as_.clone(),
            sections: match spec.include {
                ExportSections::MetadataOnly => &["metadata"],
                ExportSections::SpecOnly => &["spec"],
                ExportSections::StatusOnly => &["status"],
                ExportSections::SpecAndStatus => &["spec", "status"],
                ExportSections::All => &[],
            },
            everything: spec.include == ExportSections::All,
            without_identity: spec.dedupe_identity.unwrap_or(true),
            without_maintained_fields: prune.and_then(|prune| prune.defaults).unwrap_or(true),
            pointers: pointers.map(|pointer| segments(pointer)).collect(),
            paths,
        })
    }

    pub(crate) fn project(&self, projection: &mut Projection) {
        if self.everything {
            projection.take_all();
        }
        self.sections.iter().for_each(|section| projection.key(section).take_all());
    }

    /// What is exported of an object.
    pub(crate) fn build<'a>(&self, mut object: JsonMap<'a>) -> Json<'a> {
        let kept = |key: &str| {
            self.everything || key == "apiVersion" || key == "kind" || self.sections.contains(&key)
        };
        object.retain(kept);
        if self.without_identity
            && let Some(Json::Map(metadata)) = object.get_mut("metadata")
        {
            metadata.retain(|key| !matches!(key, "name" | "namespace" | "uid"));
        }
        let mut object = Json::Map(object);
        if self.without_maintained_fields {
            MAINTAINED_FIELDS.iter().for_each(|pointer| remove(&mut object, pointer));
        }
        self.pointers.iter().for_each(|pointer| remove(&mut object, pointer));
        self.paths.iter().for_each(|path| path.remove(&mut object));
        object
    }
}

/// The segments of an RFC 6901 pointer.
fn segments(pointer: &str) -> Vec<String> {
    let unescaped = |segment: &str| segment.replace("~1", "/").replace("~0", "~");
    pointer.split('/').skip(1).map(unescaped).collect()
}

/// Removes the value at a pointer. Items of a list become null, so that the others keep their index.
fn remove<S: AsRef<str>>(value: &mut Json<'_>, pointer: &[S]) {
    let Some((first, rest)) = pointer.split_first() else { return };
    let first = first.as_ref();
    match value {
        Json::Map(map) if rest.is_empty() => drop(map.remove(first)),
        Json::Map(map) => {
            if let Some(child) = map.get_mut(first) {
                remove(child, rest);
            }
        }
        Json::List(items) => {
            let item = first.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            match item {
                Some(item) if rest.is_empty() => *item = Json::Null,
                Some(item) => remove(item, rest),
                None => {}
            }
        }
        _ => {}
    }
}
