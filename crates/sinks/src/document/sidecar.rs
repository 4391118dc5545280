//! The record of an inventory beside its document: who may write it, where the document is and in which state, and which rows it
//! holds. About 33 bytes for each row.
//!
//! | Bytes | What |
//! |---|---|
//! | 8 | `KLCTDOC1` |
//! | 4 | length of the header, little-endian |
//! | … | header, JSON |
//! | for each row, in the order of the header's groups | length of the UID (255: 16 bytes of a UUID follow), UID, 16 bytes of the digest |
//! | 8 | XXH3 of everything before |

use std::{collections::BTreeMap, sync::Arc};

use kollect_model::{
    batch::{Baseline, InventoryId},
    claim::Claim,
    row::{RowDigest, RowKey, TargetId},
    schema::{Schema, TargetSchema},
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::read::Unreadable;
use crate::bucket::ObjectVersion;

const MAGIC: &[u8; 8] = b"KLCTDOC1";

/// In place of the length of a UID: it is a UUID.
const UUID: u8 = u8::MAX;
/// The longest other UID.
const MAX_UID: usize = 254;

/// The record of an inventory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sidecar {
    pub(super) inventory: [String; 3],
    pub(super) claim: Option<Claim>,
    pub(super) document: Option<StoredDocument>,
    /// Paths of documents that the inventory had before, and that must be removed.
    pub(super) former: Vec<String>,
    /// Whether files of the Go implementation beside the document are gone.
    pub(super) generations_removed: bool,
    /// What targets declared when the document was written: a target whose profile is missing now keeps its columns.
    pub(super) schema: Schema,
    pub(super) rows: Baseline,
}

/// A document that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredDocument {
    pub(super) path: String,
    /// State of the object after it was written.
    pub(super) version: ObjectVersion,
    /// Epoch of the claim under which it was written.
    pub(super) epoch: i64,
    pub(super) fingerprint: String,
    pub(super) checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    inventory: [String; 3],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    document: Option<StoredDocument>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    generations_removed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    schema: Vec<(Option<Arc<str>>, Arc<str>, TargetSchema)>,
    groups: Vec<RowGroup>,
}

/// Rows with the same key but for the UID.
#[derive(Serialize, Deserialize)]
struct RowGroup {
    target: (Option<Arc<str>>, Arc<str>),
    group: Arc<str>,
    kind: Arc<str>,
    namespace: Arc<str>,
    rows: usize,
}

impl Sidecar {
    pub(super) fn of(inventory: &InventoryId) -> Self {
        let names = [&*inventory.cluster, inventory.stored_namespace(), &inventory.name];
        Self { inventory: names.map(ToOwned::to_owned), ..Self::default() }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.rows.len() * 33);
        let mut groups: Vec<RowGroup> = Vec::new();
        for (key, digest) in &self.rows {
            let RowKey { target, group, kind, namespace, uid } = key;
            let is_of = |known: &&mut RowGroup| {
                (&known.target.0, &known.target.1) == (&target.namespace, &target.name)
                    && (&known.group, &known.kind, &known.namespace) == (group, kind, namespace)
            };
            // Keys are sorted, so that the rows of a group follow each other.
            match groups.last_mut().filter(is_of) {
                Some(known) => known.rows += 1,
                None => groups.push(RowGroup {
                    target: (target.namespace.clone(), target.name.clone()),
                    group: group.clone(),
                    kind: kind.clone(),
                    namespace: namespace.clone(),
                    rows: 1,
                }),
            }
            match uuid_bytes(uid) {
                Some(uuid) => {
                    body.push(UUID);
                    body.extend(uuid);
                }
                None => {
                    // UIDs of Kubernetes are UUIDs. A longer text would lose its end, and its row is written again.
                    let text = uid.as_bytes().get(..MAX_UID).unwrap_or(uid.as_bytes());
                    body.push(u8::try_from(text.len()).unwrap_or_default());
                    body.extend(text);
                }
            }
            body.extend(digest.0.to_le_bytes());
        }
        let schema = self.schema.targets.iter();
        let header = Header {
            inventory: self.inventory.clone(),
            claim: self.claim.clone(),
            document: self.document.clone(),
            former: self.former.clone(),
            generations_removed: self.generations_removed,
            schema: schema
                .map(|(target, schema)| (target.namespace.clone(), target.name.clone(), schema.clone()))
                .collect(),
            groups,
        };
        let header = serde_json::to_vec(&header).expect("a header is always JSON");
        let mut bytes = Vec::with_capacity(header.len() + body.len() + 20);
        bytes.extend(MAGIC);
        bytes.extend(u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(header);
        bytes.extend(body);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        const DAMAGED: Unreadable = Unreadable("it is damaged");
        let (content, sum) = bytes.split_last_chunk::<8>().ok_or(DAMAGED)?;
        let rest = content.strip_prefix(MAGIC).ok_or(Unreadable("it is no record of this version"))?;
        if xxh3_64(content) != u64::from_le_bytes(*sum) {
            return Err(DAMAGED);
        }
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (header, mut body) = rest.split_at_checked(length).ok_or(DAMAGED)?;
        let header: Header = serde_json::from_slice(header).map_err(|_| DAMAGED)?;
        if header.document.as_ref().is_some_and(|document| !document.version.is_plain()) {
            return Err(DAMAGED);
        }
        let mut rows = BTreeMap::new();
        for known in header.groups {
            let target = TargetId { namespace: known.target.0, name: known.target.1 };
            for _ in 0..known.rows {
                let (uid, rest) = read_uid(body).ok_or(DAMAGED)?;
                let (digest, rest) = rest.split_first_chunk::<16>().ok_or(DAMAGED)?;
                body = rest;
                let key = RowKey {
                    target: target.clone(),
                    group: known.group.clone(),
                    kind: known.kind.clone(),
                    namespace: known.namespace.clone(),
                    uid,
                };
                rows.insert(key, RowDigest(u128::from_le_bytes(*digest)));
            }
        }
        let schema = header.schema.into_iter();
        let targets =
            schema.map(|(namespace, name, schema)| (TargetId { namespace, name }, schema)).collect();
        Ok(Self {
            inventory: header.inventory,
            claim: header.claim,
            document: header.document,
            former: header.former,
            generations_removed: header.generations_removed,
            schema: Schema { targets },
            rows,
        })
    }
}

/// The bytes of a UUID in the usual spelling; `None`: another text.
fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|at| bytes[*at] != b'-') {
        return None;
    }
    let mut digits = bytes.iter().filter(|byte| **byte != b'-');
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        let mut digit = || match *digits.next()? {
            digit @ b'0'..=b'9' => Some(digit - b'0'),
            digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        *byte = digit()? << 4 | digit()?;
    }
    digits.next().is_none().then_some(uuid)
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let digits = kollect_model::envelope::hex(&uuid);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits.get(range).unwrap_or_default());
    parts.join("-")
}

fn read_uid(bytes: &[u8]) -> Option<(Arc<str>, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    if *length == UUID {
        let (uuid, rest) = rest.split_first_chunk::<16>()?;
        return Some((uuid_text(*uuid).into(), rest));
    }
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((str::from_utf8(text).ok()?.into(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: Option<&str>, namespace: &str, uid: &str) -> RowKey {
        RowKey {
            target: TargetId { namespace: target.map(Into::into), name: "web".into() },
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: namespace.into(),
            uid: uid.into(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let inventory = InventoryId { cluster: "c".into(), namespace: None, name: "all".into() };
        let uuid = |number: u32| format!("{number:08x}-0000-4000-8000-0123456789ab");
        let mut rows = Baseline::new();
        for number in 0..1000 {
            let namespace = format!("ns{}", number % 7);
            rows.insert(key(None, &namespace, &uuid(number)), RowDigest(u128::from(number) << 70));
        }
        for odd in ["x", "ABCDEF00-0000-4000-8000-0123456789AB", "0123456789abcdef0123456789abcdef0123", ""] {
            rows.insert(key(Some("team"), "a", odd), RowDigest(u128::MAX));
        }
        let document = StoredDocument { path: "x.json".into(), epoch: 3, ..StoredDocument::default() };
        let sidecar = Sidecar { document: Some(document), rows, ..Sidecar::of(&inventory) };
        let bytes = sidecar.to_bytes();
        assert_eq!(Sidecar::read(&bytes).unwrap(), sidecar);
        assert!(bytes.len() < 36 * 1000 + 2000, "{} bytes", bytes.len());
        for damage in [0, 9, 40, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[damage] ^= 1;
            assert!(Sidecar::read(&damaged).is_err());
        }
        for length in 0..bytes.len().min(64) {
            assert!(Sidecar::read(&bytes[..length]).is_err());
        }
    }
}
