//! The export document: rows of an inventory as versioned JSON, in one part or several.
//!
//! The same rows always give the same bytes. Consumers that were written for older releases read these
//! documents: the order of keys, the omitted fields and the checksum algorithm must not change.

use std::fmt::Write as _;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::row::{Row, RowKey};

/// Version of the document; the only one.
pub const SCHEMA_VERSION: &str = "kollect.dev/v1alpha1";

/// Fields of a document besides its items, and the size of its parts.
#[derive(Clone, Copy, Debug)]
pub struct DocumentSettings<'a> {
    /// Generation of the inventory's spec; 0 is left out.
    pub generation: i64,
    /// Name of the cluster; empty is left out.
    pub cluster: &'a str,
    /// Time of the export, as RFC 3339 in UTC.
    pub exported_at: &'a str,
    /// Size limit of a part, in bytes. An item that is larger has a part of its own.
    pub part_bytes: usize,
}

/// One document, or one part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// SHA-256 of the items, as lower-case hex.
    pub checksum: String,
    /// Number of the part, from 1, and number of parts; `None` if there is only one.
    pub part: Option<(usize, usize)>,
    /// Number of items.
    pub item_count: usize,
    /// The document.
    pub bytes: Vec<u8>,
}

/// The documents of rows: at least one, even without rows.
pub fn documents<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
    settings: &DocumentSettings<'_>,
) -> Vec<Document> {
    let parts = pack(rows.into_iter().map(Item::of).collect(), overhead(settings), settings.part_bytes);
    let total = parts.len();
    let part = |index: usize| (total > 1).then_some((index + 1, total));
    parts.iter().enumerate().map(|(index, items)| document(items, part(index), settings)).collect()
}

/// The checksum of a document, or of all its parts.
pub fn checksum(documents: &[Document]) -> String {
    combined(documents.iter().map(|document| &*document.checksum))
}

/// Combines checksums into one. A single checksum stays as it is.
pub fn combined<'a>(checksums: impl IntoIterator<Item = &'a str>) -> String {
    let mut checksums = checksums.into_iter().peekable();
    let first = checksums.next().unwrap_or_default();
    if checksums.peek().is_none() {
        return first.to_owned();
    }
    let mut hasher = Sha256::new();
    for checksum in [first].into_iter().chain(checksums) {
        hasher.update(checksum);
        hasher.update("\n");
    }
    hex(&hasher.finalize())
}

/// An item of a document: its text in any format, and its two sort keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Sorts items inside a document.
    pub document_key: String,
    /// Sorts items before they are distributed over parts.
    pub pack_key: String,
    /// The item as it is written.
    pub text: String,
}

impl Item {
    /// The item of a row, as JSON.
    pub fn of(row: &Row) -> Self {
        let text = item_json(&row.key, &row.version, &row.name, row.attributes.get());
        Self::with_text(&row.key, &row.version, &row.name, text)
    }

    /// An item whose text is already known.
    pub fn with_text(key: &RowKey, version: &str, name: &str, text: String) -> Self {
        let document_key = [
            target_namespace(key),
            &key.target.name,
            &key.namespace,
            name,
            &key.uid,
            &key.group,
            version,
            &key.kind,
        ];
        Self { document_key: document_key.join("\0"), pack_key: identity(key, version, name), text }
    }
}

/// The JSON text of an item, from attributes that are canonical JSON.
pub fn item_json(key: &RowKey, version: &str, name: &str, attributes: &str) -> String {
    let mut text = identity(key, version, name);
    text.reserve(attributes.len() + 1);
    escape_html(attributes, &mut text);
    text.push('}');
    text
}

/// `targetNamespace` of an item; see [`Row::target_namespace`].
fn target_namespace(key: &RowKey) -> &str {
    key.target.namespace.as_deref().unwrap_or(&key.namespace)
}

/// Fields of an item, without the attributes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemIdentity<'a> {
    target_namespace: &'a str,
    target_name: &'a str,
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    uid: &'a str,
}

/// The text of an item up to its attributes. [`pack`] sorts by it, which gives the same order as the full
/// text: different items nearly always differ here, and the full text decides between the others.
fn identity(key: &RowKey, version: &str, name: &str) -> String {
    let identity = ItemIdentity {
        target_namespace: target_namespace(key),
        target_name: &key.target.name,
        namespace: &key.namespace,
        name,
        group: &key.group,
        version,
        kind: &key.kind,
        uid: &key.uid,
    };
    open_field(to_json(&identity), "attributes")
}

/// The text of an object up to the value of one more field. Values that are long JSON texts already are
/// appended to it: as a `RawValue` each of them would be parsed once more.
fn open_field(mut object: String, name: &str) -> String {
    object.pop();
    object.extend([",\"", name, "\":"]);
    object
}

/// The JSON text of a value, with the escapes that documents have.
pub fn to_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("texts, numbers and lists of them have a JSON text");
    if json.contains(ESCAPED) { escaped(&json) } else { json }
}

/// A JSON text with the escapes that documents have.
pub fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    escape_html(json, &mut text);
    text
}

/// Go's encoder escapes these characters, and checksums depend on that. In JSON they occur inside strings
/// only.
const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];

fn escape_html(json: &str, text: &mut String) {
    if !json.contains(ESCAPED) {
        text.push_str(json);
        return;
    }
    for c in json.chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            c => text.push(c),
        }
    }
}

/// Upper bound of the bytes of a document besides its items. It does not depend on values that change from
/// one write to the next; otherwise equal rows could be cut into different parts.
pub fn overhead(settings: &DocumentSettings<'_>) -> usize {
    let longest =
        DocumentSettings { generation: i64::MIN, exported_at: "2026-01-01T00:00:00.000000000Z", ..*settings };
    document(&[], Some((LARGEST_PART, LARGEST_PART)), &longest).bytes.len() + LARGEST_PART.to_string().len()
}

/// Upper bound of the number of parts and of items; only its number of digits is used.
const LARGEST_PART: usize = 9_999_999_999;

/// Distributes items over parts, and fills one part after the other. There is at least one part; its items
/// are in the order of a document.
pub fn pack(mut items: Vec<Item>, overhead: usize, part_bytes: usize) -> Vec<Vec<Item>> {
    items.sort_unstable_by(|a, b| (&a.pack_key, &a.text).cmp(&(&b.pack_key, &b.text)));
    let mut parts = Vec::new();
    let (mut part, mut size) = (Vec::new(), overhead);
    for item in items {
        // One for the comma or the end of line.
        let bytes = item.text.len() + 1;
        if !part.is_empty() && size + bytes > part_bytes {
            parts.push(std::mem::take(&mut part));
            size = overhead;
        }
        size += bytes;
        part.push(item);
    }
    parts.push(part);
    for part in &mut parts {
        part.sort_unstable_by(|a, b| (&a.document_key, &a.text).cmp(&(&b.document_key, &b.text)));
    }
    parts
}

/// Fields of a document before its items.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DocumentHead<'a> {
    schema_version: &'a str,
    checksum: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    part_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part_total: Option<usize>,
    item_count: usize,
    exported_at: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cluster: &'a str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A document of items with JSON texts, in this order.
pub fn document(items: &[Item], part: Option<(usize, usize)>, settings: &DocumentSettings<'_>) -> Document {
    let texts: usize = items.iter().map(|item| item.text.len() + 1).sum();
    let mut array = String::with_capacity(texts + 2);
    array.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            array.push(',');
        }
        array.push_str(&item.text);
    }
    array.push(']');
    let checksum = hex(&Sha256::digest(&array));

    let head = DocumentHead {
        schema_version: SCHEMA_VERSION,
        checksum: &checksum,
        generation: settings.generation,
        part_index: part.map(|(index, _)| index),
        part_total: part.map(|(_, total)| total),
        item_count: items.len(),
        exported_at: settings.exported_at,
        cluster: settings.cluster,
    };
    let mut text = open_field(to_json(&head), "items");
    text.reserve(array.len() + 1);
    text.push_str(&array);
    text.push('}');
    Document { checksum, part, item_count: items.len(), bytes: text.into_bytes() }
}

/// Lower-case hex of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

#[cfg(test)]
mod tests;
