//! Reads documents back: what a document holds besides the rows that are known, and whether it is one of ours.

use std::{borrow::Cow, io::Read as _};

use bytes::Bytes;
use kollect_model::{
    batch::InventoryId,
    crd::sinks::Compression,
    row::{Row, RowKey, TargetId},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{DocumentFormat, DocumentSettings, csv};
use crate::bucket::MAX_OBJECT_BYTES;

/// Why a document cannot be read. It quotes nothing of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(super) &'static str);

/// A row of a document, before it is known which inventory it is of.
#[derive(Debug)]
pub(crate) struct ReadRow {
    target_namespace: String,
    target_name: String,
    namespace: String,
    name: String,
    uid: String,
    version: String,
    kind: String,
    group: String,
    attributes: Box<RawValue>,
}

impl ReadRow {
    /// The columns that [`Self::of`] needs, in its order.
    pub(super) const COLUMNS: [&str; 9] = [
        "target_namespace",
        "target_name",
        "namespace",
        "name",
        "uid",
        "api_version",
        "kind",
        "group",
        "attributes",
    ];

    /// The row of these values.
    pub(super) fn of(values: &[&str]) -> Result<Self, Unreadable> {
        let [target_namespace, target_name, namespace, name, uid, api_version, kind, group, attributes] =
            *values
        else {
            return Err(Unreadable("it lacks columns of Kollect"));
        };
        let version = api_version.rsplit_once('/').map_or(api_version, |(_, version)| version);
        let attributes = own_attributes(attributes.to_owned())?;
        Ok(Self {
            target_namespace: target_namespace.to_owned(),
            target_name: target_name.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            group: group.to_owned(),
            attributes,
        })
    }

    /// The row in an inventory; `None` if it cannot be one of it.
    fn in_inventory(self, inventory: &InventoryId) -> Option<Row> {
        let target_namespace = match &inventory.namespace {
            Some(own) => {
                Some(Some(&self.target_namespace).filter(|namespace| *namespace == own)?.as_str().into())
            }
            // Rows of cluster targets have the namespace of their objects.
            None => None,
        };
        let key = RowKey {
            target: TargetId { namespace: target_namespace, name: self.target_name.into() },
            group: self.group.into(),
            kind: self.kind.into(),
            namespace: self.namespace.into(),
            uid: self.uid.into(),
        };
        Some(Row::new(key, self.version.into(), self.name.into(), self.attributes.into()))
    }
}

/// An item of the export document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadItem {
    #[serde(default)]
    target_namespace: String,
    target_name: String,
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
    uid: String,
    attributes: Box<RawValue>,
}

/// The export document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadEnvelope {
    schema_version: String,
    #[serde(default)]
    cluster: String,
    items: Vec<ReadItem>,
}

impl TryFrom<ReadItem> for ReadRow {
    type Error = Unreadable;

    fn try_from(item: ReadItem) -> Result<Self, Unreadable> {
        let ReadItem {
            target_namespace,
            target_name,
            namespace,
            name,
            group,
            version,
            kind,
            uid,
            attributes,
        } = item;
        let attributes = own_attributes(without_html_escapes(attributes.get()).into_owned())?;
        Ok(Self { target_namespace, target_name, namespace, name, uid, version, kind, group, attributes })
    }
}

/// The rows of a document of this inventory.
pub(crate) fn rows(
    settings: &DocumentSettings,
    inventory: &InventoryId,
    bytes: &Bytes,
) -> Result<Vec<Row>, Unreadable> {
    const OTHER: Unreadable = Unreadable("it belongs to another inventory");
    let read = match settings.format {
        // A hostile file would stop the process: the schema of Parquet may be nested without limit.
        DocumentFormat::Parquet => return Err(Unreadable("Parquet is not read back")),
        DocumentFormat::Csv => csv::read(&text(settings.compression, bytes)?)?,
        DocumentFormat::Json => {
            let text = text(settings.compression, bytes)?;
            let envelope: ReadEnvelope =
                serde_json::from_slice(&text).map_err(|_| Unreadable("it is no export document"))?;
            if envelope.schema_version != kollect_model::envelope::SCHEMA_VERSION {
                return Err(Unreadable("it is an export document of another version"));
            }
            let own = inventory.cluster.as_str();
            // The Go implementation wrote no cluster, or the name of one that has none.
            if ![own, "", "default"].contains(&&*envelope.cluster) {
                return Err(OTHER);
            }
            envelope.items.into_iter().map(ReadRow::try_from).collect::<Result<_, _>>()?
        }
        DocumentFormat::Ndjson => {
            let text = text(settings.compression, bytes)?;
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines
                .map(|line| {
                    let item: ReadItem =
                        serde_json::from_slice(line).map_err(|_| Unreadable("a line is no item"))?;
                    item.try_into()
                })
                .collect::<Result<Vec<ReadRow>, _>>()?
        }
    };
    read.into_iter().map(|row| row.in_inventory(inventory).ok_or(OTHER)).collect()
}

/// Attributes as Kollect writes them: a map in one line.
fn own_attributes(text: String) -> Result<Box<RawValue>, Unreadable> {
    const OTHER: Unreadable = Unreadable("its attributes are not as Kollect writes them");
    let is_own = text.starts_with('{') && !text.bytes().any(|byte| byte < b' ');
    if is_own { RawValue::from_string(text).map_err(|_| OTHER) } else { Err(OTHER) }
}

/// The text of a document that may be compressed.
fn text(compression: Compression, bytes: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    let mut text = Vec::new();
    let most = MAX_OBJECT_BYTES as u64 + 1;
    let read = match compression {
        Compression::None | Compression::Snappy => return Ok(bytes.into()),
        Compression::Gzip => flate2::read::GzDecoder::new(bytes).take(most).read_to_end(&mut text),
        Compression::Zstd => {
            zstd::Decoder::new(bytes).and_then(|decoder| decoder.take(most).read_to_end(&mut text))
        }
    };
    read.map_err(|_| Unreadable("it is not compressed as the sink says"))?;
    if text.len() > MAX_OBJECT_BYTES {
        return Err(Unreadable("it is larger than 128 MiB, which is not read"));
    }
    Ok(text.into())
}

/// JSON without the escapes that only export documents have: rows keep these characters as they are.
fn without_html_escapes(json: &str) -> Cow<'_, str> {
    const ESCAPES: [(&str, char); 5] =
        [("003c", '<'), ("003e", '>'), ("0026", '&'), ("2028", '\u{2028}'), ("2029", '\u{2029}')];
    if !json.contains("\\u") {
        return json.into();
    }
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let known = ESCAPES
            .iter()
            .find(|(digits, _)| escape.strip_prefix("\\u").is_some_and(|escape| escape.starts_with(digits)));
        // Every escape begins with a backslash and one more character.
        let length = match known {
            Some((_, c)) => {
                out.push(*c);
                6
            }
            None => {
                out.push_str(escape.get(..2).unwrap_or(escape));
                2
            }
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_documents_are_removed_and_others_stay() {
        for text in [r#"{"a":"<b>&\u0000\\u003c\n\" \u2028"}"#, "{\"a\":\"\u{2028}ü\u{2029}\"}", "{}"] {
            let canonical = text.replace(r" \u2028", "");
            let escaped = kollect_model::envelope::escaped(&canonical);
            assert_eq!(without_html_escapes(&escaped), canonical);
        }
    }
}
