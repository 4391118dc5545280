//! One object per inventory, which holds all of its rows: where it is, in which format, and what it holds.
//!
//! [`DocumentSettings`] is what a spec says about it. [`encode`] makes the object of rows, [`read`] is its inverse; neither does any
//! I/O. [`sink`] keeps such objects in a bucket.

use kollect_model::{
    SpecError,
    batch::InventoryId,
    crd::sinks::{Compression, FileFormat, KollectSnapshotSinkSpec},
};
use serde_json::json;
use xxhash_rust::xxh3::xxh3_128;

use crate::layout::paths::{self, PathTemplate};

mod csv;
pub(crate) mod encode;
mod parquet;
mod read;
mod sidecar;
pub(crate) mod sink;
mod values;

const DEFAULT_PATH: &str = "inventory/{namespace}/{name}{extension}";
/// Readers take these directories for columns, which replace those of the file: none may be called like another column.
const DEFAULT_PARQUET_PATH: &str =
    "inventory/cluster={cluster}/ns={namespace}/inventory={name}/inventory{extension}";
/// Where the Go implementation kept a file for each generation.
const GENERATIONS_PATH: &str = "inventory/cluster={cluster}/ns={namespace}/name={name}/generation{extension}";

/// Version of all code that decides the bytes of documents: documents of another version are written again.
const DOCUMENT_VERSION: u32 = 1;

/// Formats of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentFormat {
    /// The export document.
    Json,
    /// An item per line.
    Ndjson,
    /// A line per row.
    Csv,
    /// Typed columns.
    Parquet,
}

impl DocumentFormat {
    const ALL: [Self; 4] = [Self::Json, Self::Ndjson, Self::Csv, Self::Parquet];

    /// The format of that name.
    pub(crate) fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == text)
    }

    /// Its name, as specs write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

/// What a spec says about documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentSettings {
    pub(crate) format: DocumentFormat,
    pub(crate) compression: Compression,
    template: PathTemplate,
    /// The attributes that have columns; `None`: all.
    pub(crate) hot_attributes: Option<Vec<String>>,
    /// Files of the Go implementation stay beside the document.
    pub(crate) keeps_generations: bool,
}

impl DocumentSettings {
    /// Documents of a format at the default path.
    pub(crate) fn of(format: DocumentFormat) -> Self {
        let (template, compression) = match format {
            DocumentFormat::Parquet => (DEFAULT_PARQUET_PATH, Compression::Zstd),
            _ => (DEFAULT_PATH, Compression::None),
        };
        let template = PathTemplate::new(template);
        Self { format, compression, template, hot_attributes: None, keeps_generations: false }
            .with_extension()
    }

    /// The same with the extension filled into the template.
    fn with_extension(self) -> Self {
        let compressed = match (self.format, self.compression) {
            (DocumentFormat::Parquet, _) => "",
            (_, Compression::Gzip) => ".gz",
            (_, Compression::Zstd) => ".zst",
            _ => "",
        };
        let extension = format!(".{}{compressed}", self.format.name());
        let mut template = self.template.text().replace("{extension}", &extension);
        if !template.ends_with(compressed) {
            template.push_str(compressed);
        }
        self.at(&template)
    }

    /// The same documents at other paths.
    #[must_use]
    pub(crate) fn at(self, template: &str) -> Self {
        Self { template: PathTemplate::new(template), ..self }
    }

    /// The template of paths. It is a part of the destination: an inventory can have documents of several formats below one prefix.
    pub(crate) fn template(&self) -> &str {
        self.template.text()
    }

    /// The settings of a spec, or everything that is wrong with it.
    pub(crate) fn plan(spec: &KollectSnapshotSinkSpec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let format = match spec.format() {
            FileFormat::Json => DocumentFormat::Json,
            FileFormat::Ndjson => DocumentFormat::Ndjson,
            FileFormat::Csv => DocumentFormat::Csv,
            FileFormat::Parquet => DocumentFormat::Parquet,
            FileFormat::Yaml => {
                let problem = "is for Git and directories: write json, ndjson, csv or parquet";
                errors.push(SpecError::new("spec.serialization.format", &json!(FileFormat::Yaml), problem));
                DocumentFormat::Json
            }
        };
        let mut settings = Self::of(format);
        let compression =
            spec.common.serialization.as_ref().and_then(|serialization| serialization.compression);
        settings.compression = compression.unwrap_or(settings.compression);
        if settings.compression == Compression::Snappy && format != DocumentFormat::Parquet {
            let problem = "is only for format parquet: write gzip, zstd or none";
            errors.push(SpecError::new(
                "spec.serialization.compression",
                &json!(Compression::Snappy),
                problem,
            ));
        }
        match spec.common.path_template.as_deref() {
            None | Some("") => {}
            Some(text) => match paths::template_problem(text) {
                None => settings.template = PathTemplate::new(text),
                Some(problem) => errors.push(SpecError::new("spec.pathTemplate", &json!(text), problem)),
            },
        }
        let hot = spec.object_store.as_ref().map(|store| &store.hot_attributes).filter(|hot| !hot.is_empty());
        if hot.is_some() && !settings.has_columns() {
            let problem = "has no effect in this format: remove it, or write format parquet or csv";
            errors.push(SpecError::new("spec.objectStore.hotAttributes", &json!(hot), problem));
        }
        settings.hot_attributes = hot.cloned();
        settings.keeps_generations = spec.object_store.as_ref().is_some_and(|store| store.keep_generations);
        if errors.is_empty() { Ok(settings.with_extension()) } else { Err(errors) }
    }

    /// Whether the format has a column for each attribute.
    pub(crate) fn has_columns(&self) -> bool {
        matches!(self.format, DocumentFormat::Csv | DocumentFormat::Parquet)
    }

    /// The path of an inventory's document.
    pub(crate) fn path(&self, inventory: &InventoryId, generation: i64) -> String {
        paths::document_at(&self.template, "", None, inventory, generation).full_path()
    }

    /// The directory in which the Go implementation kept Parquet files of an inventory.
    pub(crate) fn generations_directory(inventory: &InventoryId) -> String {
        let file =
            paths::document_at(&PathTemplate::new(GENERATIONS_PATH), "", None, inventory, 0).full_path();
        file.rsplit_once('/').map(|(directory, _)| directory.to_owned()).unwrap_or_default()
    }

    /// What the object is, for readers who ask for it by its URL.
    pub(crate) fn media_type(&self) -> &'static str {
        match (self.format, self.compression) {
            (DocumentFormat::Parquet, _) => "application/vnd.apache.parquet",
            (_, Compression::Gzip) => "application/gzip",
            (_, Compression::Zstd) => "application/zstd",
            (DocumentFormat::Json, _) => "application/json",
            (DocumentFormat::Ndjson, _) => "application/x-ndjson",
            (DocumentFormat::Csv, _) => "text/csv; charset=utf-8",
        }
    }

    /// Differs for settings that give different bytes.
    pub(crate) fn fingerprint(&self) -> String {
        let Self { format, compression, template: _, hot_attributes, keeps_generations: _ } = self;
        let spelling = format!(
            "document {DOCUMENT_VERSION}\nformat {}\ncompression {}\ncolumns {}\n",
            format.name(),
            json!(compression),
            json!(hot_attributes),
        );
        format!("{:032x}", xxh3_128(spelling.as_bytes()))
    }
}
