//! The manifest of an inventory: which files are its own, and what each row occupies.
//!
//! One JSON object per line. The first says how the files were made, each other is about a row.

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::{
    batch::InventoryId,
    row::{RowDigest, RowKey, TargetId},
};
use serde::{Deserialize, Serialize};

use super::Shape;

/// What an inventory has in a destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manifest {
    pub(super) header: Header,
    pub(super) rows: BTreeMap<RowKey, Line>,
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Header {
    /// For people: the inventory.
    pub(super) inventory: [String; 3],
    /// Fingerprint of the settings.
    pub(super) settings: String,
    pub(super) shape: Shape,
    /// Files that are not of one row, with the hash of their bytes.
    pub(super) files: BTreeMap<String, Hash>,
    /// Files that a write that has not ended may have made.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) claimed: BTreeSet<String>,
    /// Whether a write has begun and not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) writing: bool,
}

/// What a row occupies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) version: String,
    pub(super) name: String,
    pub(super) digest: RowDigest,
    /// The attribute that holds the whole object, if that is all there is.
    pub(super) whole: Option<String>,
    /// Its file; empty if the row was lost.
    pub(super) path: String,
    /// Hash of its bytes.
    pub(super) hash: Hash,
}

/// XXH3 of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Hash(pub(super) u128);

impl Hash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A line as it is written.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    target: (Option<Text<'a>>, Text<'a>),
    group: Text<'a>,
    kind: Text<'a>,
    namespace: Text<'a>,
    uid: Text<'a>,
    version: Text<'a>,
    name: Text<'a>,
    digest: Hash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    whole: Option<Text<'a>>,
    path: Text<'a>,
    hash: Hash,
}

type Text<'a> = std::borrow::Cow<'a, str>;

impl Manifest {
    pub(super) fn new(inventory: &InventoryId, settings: String, shape: Shape) -> Self {
        let names = [&*inventory.cluster, inventory.stored_namespace(), &inventory.name];
        let header = Header {
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
    pub(super) fn paths(&self) -> BTreeSet<&str> {
        let rows = self.rows.values().map(|line| &*line.path).filter(|path| !path.is_empty());
        rows.chain(self.header.files.keys().map(|p| &**p))
            .chain(self.header.claimed.iter().map(|p| &**p))
            .collect()
    }

    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.header)?;
        bytes.push(b'\n');
        for (key, line) in &self.rows {
            let text = |text: &'_ str| -> Text<'_> { Text::Owned(text.to_owned()) };
            let written = Written {
                target: (key.target.namespace.as_deref().map(text), text(&key.target.name)),
                group: text(&key.group),
                kind: text(&key.kind),
                namespace: text(&key.namespace),
                uid: text(&key.uid),
                version: text(&line.version),
                name: text(&line.name),
                digest: Hash(line.digest.0),
                whole: line.whole.as_deref().map(text),
                path: text(&line.path),
                hash: line.hash,
            };
            serde_json::to_writer(&mut bytes, &written)?;
            bytes.push(b'\n');
        }
        Ok(bytes)
    }

    pub(super) fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let header: Header = serde_json::from_slice(lines.next().unwrap_or_default())?;
        let mut rows = BTreeMap::new();
        for line in lines {
            let line: Written<'_> = serde_json::from_slice(line)?;
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
            let value = Line {
                version: line.version.into_owned(),
                name: line.name.into_owned(),
                digest: RowDigest(line.digest.0),
                whole: line.whole.map(Text::into_owned),
                path: line.path.into_owned(),
                hash: line.hash,
            };
            rows.insert(key, value);
        }
        Ok(Self { header, rows })
    }
}
