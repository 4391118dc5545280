//! What the files of an inventory hold, compared with what its manifest says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kollect_model::{batch::Baseline, row::RowDigest};

use super::{
    Settings, Shape, chunks,
    manifest::{Hash, Manifest},
};

/// What is known of a file after reading it.
pub(crate) struct Seen {
    file: Hash,
    /// How often each chunk is there.
    chunks: HashMap<Hash, usize>,
}

impl Seen {
    /// A file of a tree, which is one chunk.
    pub(crate) fn file(file: Hash) -> Self {
        Self { file, chunks: HashMap::from([(file, 1)]) }
    }

    /// Files of trees are one chunk.
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

/// The rows and their digests; a digest of 0 for rows that must be written again.
pub(crate) fn baseline(manifest: &Manifest, settings: &Settings, seen: &BTreeMap<String, Seen>) -> Baseline {
    let Manifest { header, rows } = manifest;
    let mut held: Baseline = rows.keys().map(|key| (key.clone(), RowDigest(0))).collect();
    // After a change of the settings all is written in the new way, and after a crash all is looked at.
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
    // A document with something that no row explains: only writing its rows again brings it in order.
    for path in altered.difference(&explained) {
        for (key, _) in rows.iter().filter(|(_, line)| line.path == **path) {
            held.insert(key.clone(), RowDigest(0));
        }
    }
    held
}
