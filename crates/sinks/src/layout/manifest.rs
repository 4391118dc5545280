//! The manifest of an inventory: which files belong to it, and where each row is.
//!
//! One JSON object per line. The first line describes how the files were made, each other line is a row.

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::{
    batch::InventoryId,
    row::{RowDigest, RowKey, TargetId},
};
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::{DecidedLayout, path_owners::OwnersByPath, paths};

/// The files and rows of an inventory in a destination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) header: ManifestHeader,
    pub(crate) rows: BTreeMap<RowKey, ManifestLine>,
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ManifestHeader {
    /// The inventory: cluster, namespace and name. For people and messages.
    pub(crate) inventory: [String; 3],
    /// Fingerprint of the settings.
    pub(crate) settings: String,
    pub(crate) shape: DecidedLayout,
    /// Files that are not the file of one row, with the hash of their bytes.
    pub(crate) files: BTreeMap<String, BlobHash>,
    /// Files that an unfinished write may have created.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) claimed: BTreeSet<String>,
    /// Whether a write has begun and not finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) writing: bool,
}

/// Where a row is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ManifestLine {
    pub(crate) version: String,
    pub(crate) name: String,
    pub(crate) digest: RowDigest,
    /// The attribute that holds the whole object, if the row has no other attribute.
    pub(crate) object_attribute: Option<String>,
    /// Its file; empty if the row was lost.
    pub(crate) path: String,
    /// Hash of its chunk.
    pub(crate) hash: BlobHash,
}

/// The first 16 bytes of the id of the Git blob with these bytes: in a Git tree, changed files are found without
/// reading them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlobHash(pub(super) u128);

impl BlobHash {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", bytes.len()));
        hasher.update(bytes);
        Self::of_blob_id(&hasher.finalize())
    }

    /// The hash, from the id of a blob.
    pub(crate) fn of_blob_id(id: &[u8]) -> Self {
        Self(id.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }
}

impl Serialize for BlobHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for BlobHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// The file of the header if a manifest is split into several files.
const HEADER: &str = "manifest.json";
/// The approximate number of rows per file.
const ROWS_PER_FILE: usize = 64;
/// The maximum number of files: Git rewrites the whole list of a directory with every change.
const MAX_FILES: usize = 4096;

/// A line as it is written.
#[derive(Serialize, Deserialize)]
struct WrittenLine<'a> {
    #[serde(borrow)]
    target: (Option<LineText<'a>>, LineText<'a>),
    group: LineText<'a>,
    kind: LineText<'a>,
    namespace: LineText<'a>,
    uid: LineText<'a>,
    version: LineText<'a>,
    name: LineText<'a>,
    digest: BlobHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<LineText<'a>>,
    path: LineText<'a>,
    hash: BlobHash,
}

type LineText<'a> = std::borrow::Cow<'a, str>;

/// The fields of a line that concern its file.
#[derive(Deserialize)]
pub(crate) struct NamedLine<'a> {
    #[serde(borrow)]
    pub(crate) group: LineText<'a>,
    #[serde(borrow)]
    pub(crate) path: LineText<'a>,
    pub(crate) hash: BlobHash,
}

impl<'a> NamedLine<'a> {
    /// Every line; an error for one that is damaged.
    pub(crate) fn read(bytes: &'a [u8]) -> impl Iterator<Item = serde_json::Result<Self>> {
        bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice)
    }
}

impl Manifest {
    pub(crate) fn new(inventory: &InventoryId, settings: String, shape: DecidedLayout) -> Self {
        let names = [&*inventory.cluster, inventory.stored_namespace(), &inventory.name];
        let header = ManifestHeader {
            inventory: names.map(ToOwned::to_owned),
            settings,
            shape,
            files: BTreeMap::new(),
            claimed: BTreeSet::new(),
            writing: false,
        };
        Self { header, rows: BTreeMap::new() }
    }

    /// Every file of the inventory.
    pub(crate) fn paths(&self) -> BTreeSet<&str> {
        let rows = self.rows.values().map(|line| &*line.path).filter(|path| !path.is_empty());
        rows.chain(self.header.files.keys().map(|path| &**path))
            .chain(self.header.claimed.iter().map(|path| &**path))
            .collect()
    }

    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.header)?;
        bytes.push(b'\n');
        for (key, line) in &self.rows {
            write_line(&mut bytes, key, line)?;
        }
        Ok(bytes)
    }

    /// The manifest in several files, so that a changed row changes a small file.
    pub(crate) fn to_files(&self) -> serde_json::Result<BTreeMap<String, Vec<u8>>> {
        let mut header = serde_json::to_vec(&self.header)?;
        header.push(b'\n');
        let mut files = BTreeMap::from([(HEADER.to_owned(), header)]);
        // The number of files depends only on the number of rows: equal rows give equal files.
        let shards = (self.rows.len() / ROWS_PER_FILE).next_power_of_two().min(MAX_FILES);
        for (key, line) in &self.rows {
            let shard = paths::key_hash(key) >> 64 & (shards as u128 - 1);
            write_line(files.entry(format!("rows-{shard:04x}.ndjson")).or_default(), key, line)?;
        }
        Ok(files)
    }

    /// The inverse of [`to_files`](Self::to_files).
    pub(crate) fn of_files<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> serde_json::Result<Option<Self>> {
        let (header, lines) = Self::split_files(files);
        if header.is_empty() && lines.is_empty() {
            return Ok(None);
        }
        let mut manifest = Self { header: Self::read_header(header)?, rows: BTreeMap::new() };
        for bytes in lines {
            manifest.read_lines(bytes)?;
        }
        Ok(Some(manifest))
    }

    /// The header and the lines of rows of a manifest that is in several files.
    pub(crate) fn split_files<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> (&'a [u8], Vec<&'a [u8]>) {
        let (mut header, mut lines) = (&[][..], Vec::new());
        for (name, bytes) in files {
            if name == HEADER {
                header = bytes;
            } else if name.starts_with("rows-") {
                lines.push(bytes);
            }
        }
        (header, lines)
    }

    pub(crate) fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        let (header, lines) = Self::split(bytes);
        let mut manifest = Self { header: Self::read_header(header)?, rows: BTreeMap::new() };
        manifest.read_lines(lines)?;
        Ok(manifest)
    }

    /// The header and the lines of rows of a manifest that is in one file.
    pub(crate) fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        bytes.split_at(end)
    }

    pub(crate) fn read_header(bytes: &[u8]) -> serde_json::Result<ManifestHeader> {
        serde_json::from_slice(bytes)
    }

    /// Stops naming these files. Their rows are lost until they are written again.
    pub(crate) fn give_up(&mut self, paths: &OwnersByPath) {
        self.header.files.retain(|path, _| !paths.contains_key(path));
        self.header.claimed.retain(|path| !paths.contains_key(path));
        for line in self.rows.values_mut().filter(|line| paths.contains_key(&line.path)) {
            line.path.clear();
        }
    }

    fn read_lines(&mut self, bytes: &[u8]) -> serde_json::Result<()> {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: WrittenLine<'_> = serde_json::from_slice(line)?;
            let key = RowKey {
                target: TargetId {
                    namespace: line.target.0.map(|namespace| (*namespace).into()),
                    name: (*line.target.1).into(),
                },
                group: (*line.group).into(),
                kind: (*line.kind).into(),
                namespace: (*line.namespace).into(),
                uid: (*line.uid).into(),
            };
            let value = ManifestLine {
                version: line.version.into_owned(),
                name: line.name.into_owned(),
                digest: RowDigest(line.digest.0),
                object_attribute: line.whole.map(LineText::into_owned),
                path: line.path.into_owned(),
                hash: line.hash,
            };
            self.rows.insert(key, value);
        }
        Ok(())
    }
}

fn write_line(bytes: &mut Vec<u8>, key: &RowKey, line: &ManifestLine) -> serde_json::Result<()> {
    let written = WrittenLine {
        target: (
            key.target.namespace.as_deref().map(LineText::Borrowed),
            LineText::Borrowed(&key.target.name),
        ),
        group: LineText::Borrowed(&key.group),
        kind: LineText::Borrowed(&key.kind),
        namespace: LineText::Borrowed(&key.namespace),
        uid: LineText::Borrowed(&key.uid),
        version: LineText::Borrowed(&line.version),
        name: LineText::Borrowed(&line.name),
        digest: BlobHash(line.digest.0),
        whole: line.object_attribute.as_deref().map(LineText::Borrowed),
        path: LineText::Borrowed(&line.path),
        hash: line.hash,
    };
    serde_json::to_writer(&mut *bytes, &written)?;
    bytes.push(b'\n');
    Ok(())
}

/// Why a manifest cannot be read: the position, without quoting the text, because it may come from any server.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Data => "it has other fields than expected",
        _ => "it is not JSON",
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_manifest_is_not_quoted() {
        const MARKER: &str = "what-the-server-said";
        for manifest in [format!("\"{MARKER}\""), MARKER.to_owned(), format!("{{\"shape\":\"{MARKER}\"}}")] {
            let text = unreadable(&Manifest::read(manifest.as_bytes()).unwrap_err());
            assert!(!text.contains(MARKER) && text.contains("line 1"), "{text}");
        }
    }
}
