//! The text of a row in a file, documents of many rows, and how to read them back.
//!
//! A file is a sequence of chunks, one per row: a document has many, a file of a tree is one.

use std::io::{Read, Write};

use kollect_model::{
    crd::sinks::LayoutContent,
    envelope::{self, DocumentSettings, Item},
    row::{Row, RowKey},
    yaml,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::{DecidedLayout, ReadableFormat, json_text, manifest::BlobHash};

/// The name of the attribute that holds the whole object, if the row has no other attribute.
pub(crate) fn whole_object(row: &Row) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        api_version: String,
        kind: String,
    }
    let (name, value) = only_entry(row.attributes.get())?;
    let object: Object = serde_json::from_str(value).ok()?;
    (object.kind == *row.key.kind && !object.api_version.is_empty()).then_some(name)
}

/// The entry of a JSON object that has exactly one.
fn only_entry(json: &str) -> Option<(String, &str)> {
    let entries: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    let mut entries = entries.into_iter();
    let (name, value) = entries.next()?;
    entries.next().is_none().then(|| (name, value.get()))
}

/// The chunk of a row, from its attributes.
pub(crate) fn chunk(
    shape: DecidedLayout,
    key: &RowKey,
    version: &str,
    name: &str,
    attributes: &str,
) -> String {
    let text = match shape.content {
        LayoutContent::Item => envelope::item_json(key, version, name, attributes),
        LayoutContent::Attributes => envelope::escaped(attributes),
        LayoutContent::Manifest => {
            envelope::escaped(only_entry(attributes).map_or(attributes, |(_, object)| object))
        }
    };
    match (shape.format, shape.document) {
        (ReadableFormat::Json | ReadableFormat::Ndjson, true) => text,
        (ReadableFormat::Yaml, true) => yaml::list_item(&text),
        (ReadableFormat::Json, false) => json_text::indented(&text) + "\n",
        (ReadableFormat::Ndjson, false) => text + "\n",
        (ReadableFormat::Yaml, false) => yaml::document(&text),
    }
}

/// The attributes of a row, from its chunk. YAML may change the digits of decimal numbers.
pub(crate) fn attributes(
    shape: DecidedLayout,
    object_attribute: Option<&str>,
    chunk: &str,
) -> Option<String> {
    #[derive(Deserialize)]
    struct WithAttributes<'a> {
        #[serde(borrow)]
        attributes: &'a RawValue,
    }
    let json = match shape.format {
        ReadableFormat::Json | ReadableFormat::Ndjson => json_text::compact(chunk),
        ReadableFormat::Yaml if shape.document => {
            let items: Vec<serde_json::Value> = from_yaml(chunk)?;
            items.into_iter().next()?.to_string()
        }
        ReadableFormat::Yaml => from_yaml::<serde_json::Value>(chunk)?.to_string(),
    };
    Some(match shape.content {
        LayoutContent::Item => {
            serde_json::from_str::<WithAttributes<'_>>(&json).ok()?.attributes.get().to_owned()
        }
        LayoutContent::Attributes => json,
        LayoutContent::Manifest => format!("{{{}:{json}}}", serde_json::Value::from(object_attribute?)),
    })
}

/// Parses YAML. Our own files may be large and deeply nested, and the parser recurses: it gets a larger stack.
pub(super) fn from_yaml<T: DeserializeOwned + Send>(text: &str) -> Option<T> {
    let parse = || {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: usize::MAX,
                max_nodes: usize::MAX,
                max_depth: 256,
                max_total_scalar_bytes: usize::MAX,
            },
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).ok()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, parse).ok()?;
        thread.join().ok()?
    })
}

/// The chunks of a file; none if the file cannot be read in this shape.
pub(crate) fn split(shape: DecidedLayout, bytes: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Envelope<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let Some(text) = text(shape, bytes) else { return Vec::new() };
    if !shape.document {
        return vec![text];
    }
    match shape.format {
        ReadableFormat::Json => {
            let envelope = serde_json::from_str::<Envelope<'_>>(&text);
            envelope.map_or_else(
                |_| Vec::new(),
                |envelope| envelope.items.iter().map(|item| item.get().to_owned()).collect(),
            )
        }
        ReadableFormat::Ndjson => text.lines().map(ToOwned::to_owned).collect(),
        ReadableFormat::Yaml => {
            let mut chunks: Vec<String> = Vec::new();
            for line in text.split_inclusive('\n') {
                match chunks.last_mut() {
                    Some(chunk) if !line.starts_with("- ") => chunk.push_str(line),
                    _ => chunks.push(line.to_owned()),
                }
            }
            chunks
        }
    }
}

fn text(shape: DecidedLayout, bytes: &[u8]) -> Option<String> {
    let mut text = String::new();
    if shape.gzip {
        flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).ok()?;
    } else {
        text.push_str(str::from_utf8(bytes).ok()?);
    }
    Some(text)
}

/// A finished document.
pub(crate) struct FinishedDocument {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: String,
}

/// The document of these chunks. If only its time differs from `before`, the time of `before` is kept, so that
/// the bytes stay the same.
pub(crate) fn document(
    shape: DecidedLayout,
    items: &[Item],
    part: Option<(usize, usize)>,
    settings: &DocumentSettings<'_>,
    before: Option<&[u8]>,
) -> FinishedDocument {
    let without_envelope = |text: String| {
        let checksum = envelope::hex(&Sha256::digest(&text));
        FinishedDocument { bytes: compressed(shape, text.into_bytes()), checksum }
    };
    match shape.format {
        ReadableFormat::Json => {
            let document_with = |settings: &DocumentSettings<'_>| {
                let document = envelope::document(items, part, settings);
                FinishedDocument { bytes: compressed(shape, document.bytes), checksum: document.checksum }
            };
            let old =
                before.and_then(|bytes| exported_at(shape, bytes).map(|exported_at| (bytes, exported_at)));
            if let Some((bytes, exported_at)) = old {
                let same = document_with(&DocumentSettings { exported_at: &exported_at, ..*settings });
                if same.bytes == bytes {
                    return same;
                }
            }
            document_with(settings)
        }
        ReadableFormat::Ndjson => {
            without_envelope(items.iter().flat_map(|item| [&*item.text, "\n"]).collect())
        }
        ReadableFormat::Yaml if items.is_empty() => without_envelope("[]\n".into()),
        ReadableFormat::Yaml => without_envelope(items.iter().map(|item| &*item.text).collect()),
    }
}

/// The time in an older document.
pub(crate) fn exported_at(shape: DecidedLayout, bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct WithTime {
        exported_at: String,
    }
    let text = text(shape, bytes)?;
    let document: WithTime = match shape.format {
        ReadableFormat::Json | ReadableFormat::Ndjson => serde_json::from_str(&text).ok()?,
        ReadableFormat::Yaml => from_yaml(&text)?,
    };
    Some(document.exported_at)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IndexFile<'a> {
    schema_version: &'a str,
    item_count: usize,
    checksum: &'a str,
    exported_at: &'a str,
    cluster: &'a str,
    paths: &'a [&'a str],
}

/// The index file of mode split.
pub(crate) fn index(
    shape: DecidedLayout,
    cluster: &str,
    paths: &[&str],
    checksum: &str,
    exported_at: &str,
) -> Vec<u8> {
    let json = envelope::to_json(&IndexFile {
        schema_version: envelope::SCHEMA_VERSION,
        item_count: paths.len(),
        checksum,
        exported_at,
        cluster: if cluster.is_empty() { "default" } else { cluster },
        paths,
    });
    let text = match shape.format {
        ReadableFormat::Json => json_text::indented(&json) + "\n",
        ReadableFormat::Ndjson => json + "\n",
        ReadableFormat::Yaml => yaml::document(&json),
    };
    text.into_bytes()
}

/// The checksum of a tree, over the paths and hashes of its files.
pub(crate) fn tree_checksum<'a>(files: impl IntoIterator<Item = (&'a str, BlobHash)>) -> String {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable();
    let mut hasher = Sha256::new();
    for (path, hash) in files {
        hasher.update(format!("{path}\0{:032x}\n", hash.0));
    }
    envelope::hex(&hasher.finalize())
}

/// Compresses the bytes without a timestamp: the same text gives the same bytes.
fn compressed(shape: DecidedLayout, bytes: Vec<u8>) -> Vec<u8> {
    if shape.gzip { gzip(&bytes) } else { bytes }
}

/// Compresses without a time.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new()
        .mtime(0)
        .write(Vec::with_capacity(bytes.len() / 4), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}
