//! Compares the files of an inventory with its manifest.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kollect_model::{batch::Baseline, row::RowDigest};

use super::{
    Settings, Shape, chunks,
    manifest::{Hash, Manifest},
};

/// What is known about a file that was read.
pub(crate) struct Seen {
    file: Hash,
    /// How many times each chunk occurs.
    chunks: HashMap<Hash, usize>,
}

impl Seen {
    /// A file of a tree, which is one chunk.
    pub(crate) fn file(file: Hash) -> Self {
        Self { file, chunks: HashMap::from([(file, 1)]) }
    }

    /// Hashes a file and its chunks. A file of a tree is one chunk.
    pub(crate) fn new(shape: Shape, bytes: &[u8]) -> Self {
        let file = Hash::of(bytes);
        let mut count = HashMap::new();
        if shape.document {
            for chunk in chunks::split(shape, bytes) {
                *count.entry(Hash::of(chunk.as_bytes())).or_default() += 1;
            }
        } else {
            count.insert(file, 1);
        }
        Self { file, chunks: count }
    }
}

/// The rows and their digests; the digest is 0 for rows that must be written again.
pub(crate) fn baseline(manifest: &Manifest, settings: &Settings, seen: &BTreeMap<String, Seen>) -> Baseline {
    let Manifest { header, rows } = manifest;
    let mut held: Baseline = rows.keys().map(|key| (key.clone(), RowDigest(0))).collect();
    // After a change of the settings, or after a crash in a write, all rows must be written again.
    if !settings.has_fingerprint(&header.settings) || header.writing {
        return held;
    }
    let altered: BTreeSet<&str> = header
        .files
        .iter()
        .filter(|(path, hash)| seen.get(*path).is_none_or(|seen| seen.file != **hash))
        .map(|(path, _)| &**path)
        .collect();
    if !header.shape.document && !altered.is_empty() {
        return held;
    }
    let mut explained: BTreeSet<&str> = BTreeSet::new();
    for (key, line) in rows {
        let intact = seen.get(&line.path).is_some_and(|seen| seen.chunks.contains_key(&line.hash));
        let doubled = altered.contains(&*line.path)
            && seen.get(&line.path).is_some_and(|seen| seen.chunks.get(&line.hash) != Some(&1));
        if intact && !doubled {
            held.insert(key.clone(), line.digest);
        } else {
            explained.insert(&line.path);
        }
    }
    // A document contains something that belongs to no row: writing its rows again removes it.
    for path in altered.difference(&explained) {
        for (key, _) in rows.iter().filter(|(_, line)| line.path == **path) {
            held.insert(key.clone(), RowDigest(0));
        }
    }
    held
}
