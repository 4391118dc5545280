//! How the rows of an inventory become files: in how many, where, and in which format.
//!
//! The files are the state: a write reads what it must keep, applies a delta and writes the files that
//! differ. `draft` computes that without any I/O; [`file_sink`] applies it to a store, together with the
//! `manifest` of each inventory, which names its files. A path that a manifest names belongs to that
//! inventory alone: [`path_owners`].

use std::path::Path;

use kollect_model::{
    SpecError,
    crd::sinks::{
        Compression, FileFormat, GroupInPath, KollectSnapshotSinkSpec, LayoutContent, LayoutMode,
        SnapshotSinkType,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub(crate) mod adopt;
pub(crate) mod baseline;
pub mod blobs;
pub(crate) mod chunks;
mod claims;
pub(crate) mod draft;
pub mod file_sink;
mod fingerprint;
pub(crate) mod foreign;
mod json_text;
pub(crate) mod manifest;
pub mod path_owners;
pub(crate) mod paths;
pub(crate) mod preview;
mod row_paths;

use paths::PathTemplate;

/// Everything that a spec says about files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutSettings {
    mode: Option<LayoutMode>,
    content: Option<LayoutContent>,
    format: ReadableFormat,
    gzip: bool,
    documents: PathTemplate,
    rows: PathTemplate,
    index: Option<PathTemplate>,
    group_in_path: GroupInPath,
    lowercase_kind: bool,
    max_segment: usize,
}

/// The formats that can be read back and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadableFormat {
    /// The export document; rows are indented JSON.
    Json,
    /// YAML: rows in a list.
    Yaml,
    /// One row per line.
    Ndjson,
}

impl ReadableFormat {
    fn extension(self) -> &'static str {
        match self {
            Self::Json => ".json",
            Self::Yaml => ".yaml",
            Self::Ndjson => ".ndjson",
        }
    }
}

/// The form of an inventory's files. Settings that the spec leaves open are decided from the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DecidedLayout {
    /// Whether all rows are in documents.
    pub(crate) document: bool,
    index: bool,
    content: LayoutContent,
    format: ReadableFormat,
    gzip: bool,
}

impl LayoutSettings {
    /// One document per inventory, at the default path.
    pub fn document(format: ReadableFormat) -> Self {
        Self {
            mode: Some(LayoutMode::Document),
            content: None,
            format,
            gzip: false,
            documents: PathTemplate::new("inventory/{namespace}/{name}{extension}"),
            rows: PathTemplate::new(row_paths::DEFAULT_TEMPLATE),
            index: None,
            group_in_path: GroupInPath::Auto,
            lowercase_kind: true,
            max_segment: 63,
        }
    }

    /// The same settings with one file per row.
    #[must_use]
    pub fn per_resource(self) -> Self {
        Self { mode: Some(LayoutMode::PerResource), ..self }
    }

    /// Parses the options of a command line: `layout=perResource&format=yaml`.
    pub(crate) fn options(options: &str, mut format: ReadableFormat) -> Result<Self, String> {
        let mut per_resource = false;
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("layout", "document")) => per_resource = false,
                Some(("layout", "perResource")) => per_resource = true,
                Some(("format", "json")) => format = ReadableFormat::Json,
                Some(("format", "yaml")) => format = ReadableFormat::Yaml,
                Some(("format", "ndjson")) => format = ReadableFormat::Ndjson,
                _ => {
                    return Err(format!(
                        "has an option that is not known, {option}; write layout=document or layout=perResource, \
                         and format=json, format=yaml or format=ndjson"
                    ));
                }
            }
        }
        let settings = Self::document(format);
        Ok(if per_resource { settings.per_resource() } else { settings })
    }

    /// The settings of a spec, or everything that is wrong with it.
    pub fn plan(spec: &KollectSnapshotSinkSpec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let format = match spec.format() {
            FileFormat::Json => ReadableFormat::Json,
            FileFormat::Yaml => ReadableFormat::Yaml,
            FileFormat::Ndjson => ReadableFormat::Ndjson,
            other @ (FileFormat::Parquet | FileFormat::Csv) => {
                let field =
                    match spec.common.serialization.as_ref().and_then(|serialization| serialization.format) {
                        Some(_) => "spec.serialization.format",
                        None => "spec.objectStore.format",
                    };
                let problem = "is not available in this build: write json, yaml or ndjson";
                errors.push(SpecError::new(field, &json!(other), problem));
                ReadableFormat::Json
            }
        };
        let mut settings = Self::document(format);
        let layout = spec.common.layout.clone().unwrap_or_default();
        settings.mode = layout.mode;
        settings.content = layout.content;
        let compression =
            spec.common.serialization.as_ref().and_then(|serialization| serialization.compression);
        let in_git = matches!(spec.type_, SnapshotSinkType::Git | SnapshotSinkType::Gitlab);
        settings.gzip = match compression {
            None | Some(Compression::None) => false,
            Some(other) => {
                let problem = match other {
                    Compression::Gzip if in_git => Some("has no effect in Git: remove it"),
                    Compression::Gzip if settings.mode.is_some_and(|mode| mode != LayoutMode::Document) => {
                        Some("is for documents: remove it, or write layout.mode document")
                    }
                    Compression::Gzip => None,
                    _ => Some("is only for format parquet: write gzip or none"),
                };
                errors.extend(
                    problem.map(|problem| {
                        SpecError::new("spec.serialization.compression", &json!(other), problem)
                    }),
                );
                true
            }
        };
        if settings.mode == Some(LayoutMode::Document)
            && let Some(content @ (LayoutContent::Attributes | LayoutContent::Manifest)) = layout.content
        {
            let problem =
                "has no effect in mode document, which holds items: remove it, or write perResource";
            errors.push(SpecError::new("spec.layout.content", &json!(content), problem));
        }
        let mut template = |field: &str, text: &Option<String>, default: &PathTemplate| match text.as_deref()
        {
            None | Some("") => default.clone(),
            Some(text) => match paths::template_problem(text) {
                None => PathTemplate::new(text),
                Some(problem) => {
                    errors.push(SpecError::new(field, &json!(text), problem));
                    default.clone()
                }
            },
        };
        let documents = template("spec.pathTemplate", &spec.common.path_template, &settings.documents);
        let rows = template("spec.layout.pathTemplate", &layout.path_template, &settings.rows);
        let index = layout.index.unwrap_or_default();
        let index_path =
            template("spec.layout.index.pathTemplate", &index.path_template, &settings.documents);
        settings.documents = documents;
        settings.rows = rows;
        settings.index =
            (layout.mode == Some(LayoutMode::Split) && index.enabled != Some(false)).then_some(index_path);
        let filename = layout.filename.unwrap_or_default();
        settings.group_in_path = filename.group_in_path.unwrap_or(GroupInPath::Auto);
        settings.lowercase_kind = filename.lowercase_kind.unwrap_or(true);
        // With extension and suffix, a longer segment would exceed the limit of file systems.
        settings.max_segment = filename
            .max_segment_length
            .map_or(63, |length| usize::try_from(length).unwrap_or(1).clamp(1, 180));
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    /// Whether the spec puts all rows into documents, independent of what the rows are.
    pub(crate) fn is_document(&self) -> bool {
        self.mode == Some(LayoutMode::Document)
    }

    /// The path of a document with all rows.
    pub(crate) fn document_path(
        &self,
        inventory: &kollect_model::batch::InventoryId,
        generation: i64,
    ) -> String {
        self.document_file(inventory, generation).full_path()
    }

    /// The same, with its extension apart.
    pub(crate) fn document_file(
        &self,
        inventory: &kollect_model::batch::InventoryId,
        generation: i64,
    ) -> paths::FilePath {
        paths::document(&self.documents, self, inventory, generation)
    }

    /// Decides the settings that the spec leaves open. `are_whole` has for each row whether it is a whole object.
    fn shape(&self, mut are_whole: impl ExactSizeIterator<Item = bool>) -> DecidedLayout {
        let only_whole_objects =
            self.mode.is_none() && are_whole.len() > 0 && are_whole.all(|is_whole| is_whole);
        let mode = self.mode.unwrap_or(if only_whole_objects {
            LayoutMode::PerResource
        } else {
            LayoutMode::Document
        });
        let document = mode == LayoutMode::Document;
        let default = if only_whole_objects { LayoutContent::Manifest } else { LayoutContent::Item };
        DecidedLayout {
            document,
            index: mode == LayoutMode::Split && self.index.is_some(),
            content: if document { LayoutContent::Item } else { self.content.unwrap_or(default) },
            format: self.format,
            gzip: self.gzip && document,
        }
    }
}

/// Warnings about a valid spec whose documents may not be what its author wants.
pub(crate) fn advice(spec: &KollectSnapshotSinkSpec) -> Vec<String> {
    let template = Path::new(spec.common.path_template.as_deref().unwrap_or_default());
    let is_json = template.extension().is_some_and(|extension| extension == "json");
    if is_json && spec.format() != FileFormat::Json {
        vec!["spec.pathTemplate ends with .json, and the format is another".into()]
    } else {
        Vec::new()
    }
}
