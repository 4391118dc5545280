//! Computes a write: from the files that an inventory has and a delta to the files that it must have.
//!
//! No I/O happens here. [`WriteDraft::reads`] returns which files are needed, [`WriteDraft::change`] returns what to
//! do. Rows that the delta does not mention stay, also if the layout changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use kollect_model::{
    batch::{Batch, RefusedRow},
    crd::sinks::LayoutContent,
    envelope::{self, DocumentSettings, Item},
    row::{Row, RowDigest, RowKey},
    sink::SinkError,
};

use super::{
    DecidedLayout, LayoutSettings, chunks,
    foreign::{self, ForeignPaths},
    manifest::{BlobHash, Manifest, ManifestLine},
    path_owners::OwnersByPath,
    paths,
    row_paths::{self, PathRow, RowPath},
};

/// A write that is being computed.
pub(crate) struct WriteDraft<'a> {
    settings: &'a LayoutSettings,
    batch: &'a Batch<'a>,
    held: Option<&'a Manifest>,
    shape: DecidedLayout,
    /// Whether the existing files have other settings or another shape.
    stale: bool,
    wanted: BTreeMap<&'a RowKey, WantedRow<'a>>,
    /// Paths of `wanted` in a tree, in the same order.
    tree_paths: Vec<String>,
    index: Option<String>,
    refused: Vec<RefusedRow>,
    warnings: Vec<String>,
}

/// A row that the files must hold.
struct WantedRow<'a> {
    source: RowSource<'a>,
    object_attribute: Option<String>,
}

#[derive(Clone, Copy)]
enum RowSource<'a> {
    Delta(&'a Row),
    Manifest(&'a ManifestLine),
}

impl RowSource<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Delta(row) => &row.name,
            Self::Manifest(line) => &line.name,
        }
    }
}

/// What to do, in this order: write the journal, the intent and the files, delete files, write the manifest.
pub(crate) struct FileChanges {
    /// Chunks of rows that move. They would be lost if the process stopped in the middle of the write.
    pub(crate) journal: BTreeMap<BlobHash, String>,
    /// The held manifest with the new paths, written before any file.
    pub(crate) intent: Option<Manifest>,
    /// Paths that the held manifest does not name.
    pub(crate) new_paths: Vec<String>,
    pub(crate) writes: Vec<(String, Bytes)>,
    pub(crate) deletes: Vec<String>,
    pub(crate) manifest: Manifest,
    pub(crate) checksum: String,
    pub(crate) refused: Vec<RefusedRow>,
    pub(crate) warnings: Vec<String>,
}

impl FileChanges {
    /// Records paths of this change that other manifests name. Fails if the whole inventory depends on one of them.
    pub(crate) fn note_owned(
        &self,
        held: Option<&Manifest>,
        destination: &str,
        found: OwnersByPath,
        foreign: &mut ForeignPaths,
    ) -> Result<(), SinkError> {
        for (path, owners) in found {
            let Some(owner) = owners.first() else { continue };
            if !self.is_of_one_row(held, &path) {
                return Err(foreign::owned_by_other(destination, &path, owner));
            }
            foreign.add_owned(path, owner);
        }
        Ok(())
    }

    /// Records files at paths of this change that no manifest names, each with whether it may be replaced. Fails if the
    /// whole inventory depends on one that may not.
    pub(crate) fn note_files(
        &self,
        held: Option<&Manifest>,
        destination: &str,
        found: Vec<(String, bool)>,
        foreign: &mut ForeignPaths,
    ) -> Result<(), SinkError> {
        let shared = found.iter().filter(|(path, _)| !self.is_of_one_row(held, path));
        foreign::refuse(destination, &shared.cloned().collect::<Vec<_>>())?;
        foreign.add_files(found);
        Ok(())
    }

    /// Whether a path concerns one row and not the whole inventory. Rows in documents have no file of their own
    /// to stay in.
    fn is_of_one_row(&self, held: Option<&Manifest>, path: &str) -> bool {
        let in_documents = held.is_some_and(|held| held.header.shape.document);
        !in_documents && !self.manifest.header.files.contains_key(path)
    }
}

impl<'a> WriteDraft<'a> {
    pub(crate) fn new(
        settings: &'a LayoutSettings,
        batch: &'a Batch<'a>,
        held: Option<&'a Manifest>,
        foreign: &ForeignPaths,
    ) -> Self {
        let mut wanted: BTreeMap<&RowKey, WantedRow<'_>> = BTreeMap::new();
        let kept = |line: &'a ManifestLine| WantedRow {
            source: RowSource::Manifest(line),
            object_attribute: line.object_attribute.clone(),
        };
        for (key, line) in held.iter().flat_map(|held| &held.rows) {
            wanted.insert(key, kept(line));
        }
        for removed in &batch.delta.removed {
            wanted.remove(&removed.key);
        }
        for row in batch.delta.rows() {
            wanted.insert(
                &row.key,
                WantedRow { source: RowSource::Delta(row), object_attribute: chunks::whole_object(row) },
            );
        }
        let shape = settings.shape(wanted.values().map(|row| row.object_attribute.is_some()));
        let mut refused = Vec::new();
        if shape.content == LayoutContent::Manifest {
            for row in batch.delta.rows() {
                if wanted.get(&row.key).is_some_and(|row| row.object_attribute.is_none()) {
                    refused.push(RefusedRow { key: row.key.clone(), why: no_manifest(row) });
                    wanted.remove(&row.key);
                    if let Some((key, line)) = held.and_then(|held| held.rows.get_key_value(&row.key)) {
                        wanted.insert(key, kept(line));
                    }
                }
            }
        }
        let stale = held.is_some_and(|held| {
            !settings.has_fingerprint(&held.header.settings) || held.header.shape != shape
        });
        let mut draft = Self {
            settings,
            batch,
            held,
            shape,
            stale,
            wanted,
            tree_paths: Vec::new(),
            index: None,
            refused,
            warnings: Vec::new(),
        };
        if !shape.document {
            draft.assign_paths(foreign);
        }
        draft
    }

    /// Gives every row its file. Rows whose path is occupied by a file of others are refused; if such a row has a file
    /// already, it stays there.
    fn assign_paths(&mut self, foreign: &ForeignPaths) {
        let (inventory, generation) = (self.batch.inventory, self.batch.generation);
        if let Some(template) = self.settings.index.as_ref().filter(|_| self.shape.index) {
            self.index = Some(paths::document(template, self.settings, inventory, generation).full_path());
        }
        let mut kept_paths: BTreeMap<&RowKey, String> = BTreeMap::new();
        loop {
            let taken: Vec<String> = self.index.iter().chain(kept_paths.values()).cloned().collect();
            let moving: Vec<(&'a RowKey, &WantedRow<'a>)> = self
                .wanted
                .iter()
                .filter(|(key, _)| !kept_paths.contains_key(*key))
                .map(|(key, row)| (*key, row))
                .collect();
            let sources = moving.iter().map(|(key, row)| PathRow { key, name: row.source.name() });
            let assigned =
                row_paths::assign(sources, self.settings, self.shape, inventory, generation, &taken, foreign);
            let mut refused = Vec::new();
            for ((key, row), assigned) in moving.iter().zip(&assigned) {
                let why = foreign.refusal(&assigned.path, &key.group);
                refused
                    .extend(why.map(|why| (*key, format!("{}: {why}", described(key, row.source.name())))));
            }
            if refused.is_empty() {
                let warnings = self.shared_paths(&moving, &assigned);
                let mut paths: BTreeMap<&RowKey, String> = moving
                    .iter()
                    .map(|(key, _)| *key)
                    .zip(assigned.into_iter().map(|row| row.path))
                    .collect();
                paths.append(&mut kept_paths);
                (self.tree_paths, self.warnings) = (paths.into_values().collect(), warnings);
                return;
            }
            for (key, why) in refused {
                self.refused.push(RefusedRow { key: key.clone(), why });
                let has_file = |line: &ManifestLine| {
                    !line.path.is_empty() && foreign.refusal(&line.path, &key.group).is_none()
                };
                match self.held.and_then(|held| held.rows.get_key_value(key)) {
                    Some((key, line)) if has_file(line) => {
                        kept_paths.insert(key, line.path.clone());
                        self.wanted.insert(
                            key,
                            WantedRow {
                                source: RowSource::Manifest(line),
                                object_attribute: line.object_attribute.clone(),
                            },
                        );
                    }
                    _ => drop(self.wanted.remove(key)),
                }
            }
        }
    }

    /// Warnings about rows that have a suffix because they share a path, if one of them is new there.
    fn shared_paths(&self, rows: &[(&RowKey, &WantedRow<'_>)], assigned: &[RowPath]) -> Vec<String> {
        let mut groups: BTreeMap<&str, (bool, Vec<String>)> = BTreeMap::new();
        for ((key, row), assigned) in rows.iter().zip(assigned) {
            let Some(shared) = assigned.shared.as_deref() else { continue };
            let (new, rows) = groups.entry(shared).or_default();
            let before = self.held.and_then(|held| held.rows.get(*key)).map(|line| &*line.path);
            *new |= before != Some(&assigned.path);
            let RowKey { kind, namespace, group, uid, .. } = key;
            let name = row.source.name();
            rows.push(format!("{kind} {namespace}/{name} (group {group:?}, uid {uid})"));
        }
        let warnings = groups.into_iter().filter(|(_, (new, _))| *new).map(|(path, (_, mut rows))| {
            let more = rows.len().saturating_sub(4);
            rows.truncate(4);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "{}{more} would be the file {path}: each has a suffix now; put {{group}}, {{targetName}} or \
                 {{uid}} into spec.layout.pathTemplate to choose the names",
                rows.join(" and ")
            )
        });
        warnings.collect()
    }

    /// The files whose bytes [`WriteDraft::change`] needs.
    pub(crate) fn reads(&self) -> BTreeSet<&str> {
        let Some(held) = self.held else { return BTreeSet::new() };
        if self.shape.document || self.stale || held.header.writing {
            return held.paths();
        }
        let moved = self.wanted.values().zip(&self.tree_paths).filter_map(|(row, path)| match row.source {
            RowSource::Manifest(line) if line.path != *path && !line.path.is_empty() => Some(&*line.path),
            _ => None,
        });
        moved.chain(held.header.files.keys().map(|path| &**path)).collect()
    }

    /// What to do, given the bytes of the files and the journal of an interrupted write.
    pub(crate) fn change(
        self,
        files: &BTreeMap<String, Bytes>,
        journal: BTreeMap<BlobHash, String>,
        exported_at: &str,
    ) -> FileChanges {
        let mut old_chunks = journal;
        if let Some(held) = self.held {
            for bytes in files.values() {
                for chunk in chunks::split(held.header.shape, bytes) {
                    old_chunks.insert(BlobHash::of(chunk.as_bytes()), chunk);
                }
            }
        }
        let mut change = FileChanges {
            journal: BTreeMap::new(),
            intent: None,
            new_paths: Vec::new(),
            writes: Vec::new(),
            deletes: Vec::new(),
            manifest: Manifest::new(self.batch.inventory, self.settings.fingerprint(), self.shape),
            checksum: String::new(),
            refused: Vec::new(),
            warnings: Vec::new(),
        };
        if self.shape.document {
            self.documents(files, &old_chunks, exported_at, &mut change);
        } else {
            self.tree(files, &old_chunks, exported_at, &mut change);
        }
        self.keep_fingerprint(&mut change.manifest);
        self.compare(&old_chunks, &mut change);
        change.refused = self.refused;
        change.warnings = self.warnings;
        change
    }

    /// The text of a row and its line of the manifest; no text if the row is lost.
    fn text(
        &self,
        key: &RowKey,
        wanted: &WantedRow<'_>,
        old_chunks: &BTreeMap<BlobHash, String>,
    ) -> (Option<String>, ManifestLine) {
        match wanted.source {
            RowSource::Delta(row) => {
                let text = chunks::chunk(self.shape, key, &row.version, &row.name, row.attributes.get());
                let line = ManifestLine {
                    version: row.version.to_string(),
                    name: row.name.to_string(),
                    digest: row.digest,
                    object_attribute: wanted.object_attribute.clone(),
                    path: String::new(),
                    hash: BlobHash::of(text.as_bytes()),
                };
                (Some(text), line)
            }
            RowSource::Manifest(line) => {
                let mut line = ManifestLine { path: String::new(), ..line.clone() };
                let mut text = old_chunks.get(&line.hash).cloned();
                if let Some(held) = self.held.filter(|_| self.stale) {
                    let before = held.header.shape;
                    text = text
                        .and_then(|text| chunks::attributes(before, line.object_attribute.as_deref(), &text))
                        .filter(|_| {
                            self.shape.content != LayoutContent::Manifest || line.object_attribute.is_some()
                        })
                        .map(|attributes| {
                            chunks::chunk(self.shape, key, &line.version, &line.name, &attributes)
                        });
                    if let Some(text) = &text {
                        line.hash = BlobHash::of(text.as_bytes());
                        // Decimals may have changed in the conversion: digest 0 makes a comparison write the row again.
                        line.digest = RowDigest(0);
                    }
                }
                (text, line)
            }
        }
    }

    fn documents(
        &self,
        files: &BTreeMap<String, Bytes>,
        old_chunks: &BTreeMap<BlobHash, String>,
        exported_at: &str,
        change: &mut FileChanges,
    ) {
        let batch = self.batch;
        let settings = DocumentSettings {
            generation: batch.generation,
            cluster: &batch.inventory.cluster,
            exported_at,
            part_bytes: batch.part_bytes,
        };
        let mut items = Vec::with_capacity(self.wanted.len());
        for (key, row) in &self.wanted {
            let (text, line) = self.text(key, row, old_chunks);
            if let Some(text) = text {
                items.push(Item::with_text(key, &line.version, &line.name, text));
            }
            change.manifest.rows.insert((*key).clone(), line);
        }
        let path =
            paths::document(&self.settings.documents, self.settings, batch.inventory, batch.generation);
        let overhead =
            if self.shape.format == super::ReadableFormat::Json { envelope::overhead(&settings) } else { 0 };
        let parts = envelope::pack(items, overhead, batch.part_bytes);
        let mut paths_by_hash: HashMap<BlobHash, Vec<String>> = HashMap::new();
        let mut checksums = Vec::new();
        for (index, items) in parts.iter().enumerate() {
            let part = (parts.len() > 1).then_some((index + 1, parts.len()));
            let path = path.part(part);
            for item in items {
                paths_by_hash.entry(BlobHash::of(item.text.as_bytes())).or_default().push(path.clone());
            }
            let document =
                chunks::document(self.shape, items, part, &settings, files.get(&path).map(|bytes| &**bytes));
            change.manifest.header.files.insert(path.clone(), BlobHash::of(&document.bytes));
            checksums.push(document.checksum);
            change.writes.push((path, document.bytes.into()));
        }
        for line in change.manifest.rows.values_mut() {
            line.path = paths_by_hash.get_mut(&line.hash).and_then(Vec::pop).unwrap_or_default();
        }
        change.checksum = envelope::combined(checksums.iter().map(|checksum| &**checksum));
    }

    fn tree(
        &self,
        files: &BTreeMap<String, Bytes>,
        old_chunks: &BTreeMap<BlobHash, String>,
        exported_at: &str,
        change: &mut FileChanges,
    ) {
        for ((key, row), path) in self.wanted.iter().zip(&self.tree_paths) {
            if let RowSource::Manifest(line) = row.source
                && line.path == *path
                && !self.stale
            {
                change.manifest.rows.insert((*key).clone(), line.clone());
                continue;
            }
            let (text, mut line) = self.text(key, row, old_chunks);
            if let Some(text) = text {
                line.path.clone_from(path);
                change.writes.push((path.clone(), text.into()));
            }
            change.manifest.rows.insert((*key).clone(), line);
        }
        let rows = change.manifest.rows.values().filter(|line| !line.path.is_empty());
        change.checksum = chunks::tree_checksum(rows.clone().map(|line| (&*line.path, line.hash)));
        if let Some(path) = &self.index {
            let mut listed: Vec<&str> = rows.map(|line| &*line.path).collect();
            listed.sort_unstable();
            let cluster = &self.batch.inventory.cluster;
            let index_file = |exported_at: &str| {
                chunks::index(self.shape, cluster, &listed, &change.checksum, exported_at)
            };
            let before = files.get(path);
            let same = before
                .and_then(|bytes| chunks::exported_at(self.shape, bytes))
                .map(|exported_at| index_file(&exported_at))
                .filter(|bytes| before.is_some_and(|before| **before == **bytes));
            let bytes = same.unwrap_or_else(|| index_file(exported_at));
            change.manifest.header.files.insert(path.clone(), BlobHash::of(&bytes));
            change.writes.push((path.clone(), bytes.into()));
        }
    }

    /// Keeps a fingerprint in the former spelling if nothing else of the manifest changes: the spelling alone is no
    /// reason to write.
    fn keep_fingerprint(&self, manifest: &mut Manifest) {
        let Some(held) = self.held.filter(|held| !self.stale && held.rows == manifest.rows) else { return };
        let current = std::mem::replace(&mut manifest.header.settings, held.header.settings.clone());
        if manifest.header != held.header {
            manifest.header.settings = current;
        }
    }

    /// Computes the files to delete, and the chunks to keep in the journal until the write is done.
    fn compare(&self, old_chunks: &BTreeMap<BlobHash, String>, change: &mut FileChanges) {
        let Some(held) = self.held else {
            let mut intent = Manifest::new(self.batch.inventory, self.settings.fingerprint(), self.shape);
            intent.header.writing = true;
            change.new_paths = change.manifest.paths().into_iter().map(ToOwned::to_owned).collect();
            intent.header.claimed = change.new_paths.iter().cloned().collect();
            change.intent = Some(intent);
            return;
        };
        let (old_paths, new_paths) = (held.paths(), change.manifest.paths());
        change.deletes = old_paths.difference(&new_paths).map(|path| (*path).to_owned()).collect();
        for (key, row) in &self.wanted {
            let RowSource::Manifest(line) = row.source else { continue };
            let after = change.manifest.rows.get(*key);
            let moves = after.is_some_and(|after| after.path != line.path || after.hash != line.hash);
            // After a crash a row may be in the journal only.
            if (moves || held.header.writing)
                && let Some(text) = old_chunks.get(&line.hash)
            {
                change.journal.insert(line.hash, text.clone());
            }
        }
        change.new_paths = new_paths.difference(&old_paths).map(|path| (*path).to_owned()).collect();
        if !change.new_paths.is_empty() || !change.journal.is_empty() {
            let mut intent = held.clone();
            intent.header.writing = true;
            intent.header.claimed.extend(change.new_paths.iter().cloned());
            change.intent = Some(intent);
        }
    }
}

fn described(key: &RowKey, name: &str) -> String {
    let RowKey { target, kind, namespace, uid, .. } = key;
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{name} of target {target} (uid {uid})")
}

fn no_manifest(row: &Row) -> String {
    format!(
        "{}: layout.content is manifest, and the row has no single attribute that holds the whole object; \
         write content item or attributes, or let the profile export the resource",
        row.described()
    )
}
