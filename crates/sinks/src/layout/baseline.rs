//! Compares the files of an inventory with its manifest.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kollect_model::{batch::Baseline, row::RowDigest};

use super::{
    DecidedLayout, LayoutSettings, chunks,
    manifest::{BlobHash, Manifest},
};

/// What is known about a file that was read.
pub(crate) struct ReadFile {
    file_hash: BlobHash,
    /// How many times each chunk occurs.
    chunks: HashMap<BlobHash, usize>,
}

impl ReadFile {
    /// A file of a tree, which is one chunk.
    pub(crate) fn of_hash(file_hash: BlobHash) -> Self {
        Self { file_hash, chunks: HashMap::from([(file_hash, 1)]) }
    }

    /// Hashes a file and its chunks. A file of a tree is one chunk.
    pub(crate) fn new(shape: DecidedLayout, bytes: &[u8]) -> Self {
        let file_hash = BlobHash::of(bytes);
        let mut counts = HashMap::new();
        if shape.document {
            for chunk in chunks::split(shape, bytes) {
                *counts.entry(BlobHash::of(chunk.as_bytes())).or_default() += 1;
            }
        } else {
            counts.insert(file_hash, 1);
        }
        Self { file_hash, chunks: counts }
    }
}

/// The rows and their digests; the digest is 0 for rows that must be written again.
pub(crate) fn baseline(
    manifest: &Manifest,
    settings: &LayoutSettings,
    files: &BTreeMap<String, ReadFile>,
) -> Baseline {
    let Manifest { header, rows } = manifest;
    let mut held: Baseline = rows.keys().map(|key| (key.clone(), RowDigest(0))).collect();
    // After a change of the settings, or after a crash in a write, all rows must be written again.
    if !settings.has_fingerprint(&header.settings) || header.writing {
        return held;
    }
    let altered: BTreeSet<&str> = header
        .files
        .iter()
        .filter(|(path, hash)| files.get(*path).is_none_or(|file| file.file_hash != **hash))
        .map(|(path, _)| &**path)
        .collect();
    if !header.shape.document && !altered.is_empty() {
        return held;
    }
    let mut files_with_damaged_rows: BTreeSet<&str> = BTreeSet::new();
    for (key, line) in rows {
        let intact = files.get(&line.path).is_some_and(|file| file.chunks.contains_key(&line.hash));
        let duplicated = altered.contains(&*line.path)
            && files.get(&line.path).is_some_and(|file| file.chunks.get(&line.hash) != Some(&1));
        if intact && !duplicated {
            held.insert(key.clone(), line.digest);
        } else {
            files_with_damaged_rows.insert(&line.path);
        }
    }
    // A document contains something that belongs to no row: writing its rows again removes it.
    for path in altered.difference(&files_with_damaged_rows) {
        for (key, _) in rows.iter().filter(|(_, line)| line.path == **path) {
            held.insert(key.clone(), RowDigest(0));
        }
    }
    held
}
