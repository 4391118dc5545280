//! Computes a write: from the files that an inventory has and a delta to the files that it must have.
//!
//! No I/O happens here. [`Draft::reads`] returns which files are needed, [`Draft::change`] returns what to do.
//! Rows that the delta does not mention stay, also if the layout changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use kollect_model::{
    batch::{Batch, Refusal},
    crd::sinks::LayoutContent,
    envelope::{self, About, Item},
    row::{Row, RowDigest, RowKey},
    sink::SinkError,
};

use super::{
    Settings, Shape, chunks,
    foreign::{self, Foreign},
    manifest::{Hash, Line, Manifest},
    path_owners::Owners,
    paths,
    row_paths::{self, Placed, Source},
};

/// A write that is being computed.
pub(crate) struct Draft<'a> {
    settings: &'a Settings,
    batch: &'a Batch<'a>,
    held: Option<&'a Manifest>,
    shape: Shape,
    /// Whether the existing files have other settings or another shape.
    stale: bool,
    wants: BTreeMap<&'a RowKey, Want<'a>>,
    /// Paths of `wants` in a tree, in the same order.
    tree: Vec<String>,
    index: Option<String>,
    refused: Vec<Refusal>,
    warnings: Vec<String>,
}

/// A row that the files must hold.
struct Want<'a> {
    from: Origin<'a>,
    whole: Option<String>,
}

#[derive(Clone, Copy)]
enum Origin<'a> {
    Given(&'a Row),
    Held(&'a Line),
}

impl Origin<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Given(row) => &row.name,
            Self::Held(line) => &line.name,
        }
    }
}

/// What to do, in this order: write the journal, the intent and the files, delete files, write the manifest.
pub(crate) struct Change {
    /// Chunks of rows that move. They would be lost if the process stopped in the middle of the write.
    pub(crate) journal: BTreeMap<Hash, String>,
    /// The held manifest with the new paths, written before any file.
    pub(crate) intent: Option<Manifest>,
    /// Paths that the held manifest does not name.
    pub(crate) new_paths: Vec<String>,
    pub(crate) writes: Vec<(String, Bytes)>,
    pub(crate) deletes: Vec<String>,
    pub(crate) manifest: Manifest,
    pub(crate) checksum: String,
    pub(crate) refused: Vec<Refusal>,
    pub(crate) warnings: Vec<String>,
}

impl Change {
    /// Records paths of this change that other manifests name. Fails if the whole inventory depends on one of them.
    pub(crate) fn note_owned(
        &self,
        held: Option<&Manifest>,
        place: &str,
        found: Owners,
        foreign: &mut Foreign,
    ) -> Result<(), SinkError> {
        for (path, owners) in found {
            let Some(owner) = owners.first() else { continue };
            if !self.is_of_one_row(held, &path) {
                return Err(foreign::owned_by_other(place, &path, owner));
            }
            foreign.add_owned(path, owner);
        }
        Ok(())
    }

    /// Records files at paths of this change that no manifest names, each with whether it already has the bytes that
    /// would be written. Fails if the whole inventory depends on one with other bytes.
    pub(crate) fn note_files(
        &self,
        held: Option<&Manifest>,
        place: &str,
        found: Vec<(String, bool)>,
        foreign: &mut Foreign,
    ) -> Result<(), SinkError> {
        let shared = found.iter().filter(|(path, _)| !self.is_of_one_row(held, path));
        foreign::refuse(place, &shared.cloned().collect::<Vec<_>>())?;
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

impl<'a> Draft<'a> {
    pub(crate) fn new(
        settings: &'a Settings,
        batch: &'a Batch<'a>,
        held: Option<&'a Manifest>,
        foreign: &Foreign,
    ) -> Self {
        let mut wants: BTreeMap<&RowKey, Want<'_>> = BTreeMap::new();
        let kept = |line: &'a Line| Want { from: Origin::Held(line), whole: line.whole.clone() };
        for (key, line) in held.iter().flat_map(|held| &held.rows) {
            wants.insert(key, kept(line));
        }
        for removed in &batch.delta.removed {
            wants.remove(&removed.key);
        }
        for row in batch.delta.rows() {
            wants.insert(&row.key, Want { from: Origin::Given(row), whole: chunks::whole_object(row) });
        }
        let shape = settings.shape(wants.values().map(|want| want.whole.is_some()));
        let mut refused = Vec::new();
        if shape.content == LayoutContent::Manifest {
            for row in batch.delta.rows() {
                if wants.get(&row.key).is_some_and(|want| want.whole.is_none()) {
                    refused.push(Refusal { key: row.key.clone(), why: no_manifest(row) });
                    wants.remove(&row.key);
                    if let Some((key, line)) = held.and_then(|held| held.rows.get_key_value(&row.key)) {
                        wants.insert(key, kept(line));
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
            wants,
            tree: Vec::new(),
            index: None,
            refused,
            warnings: Vec::new(),
        };
        if !shape.document {
            draft.place(foreign);
        }
        draft
    }

    /// Gives every row its file. Rows whose path is occupied by a file of others are refused; if such a row has a file
    /// already, it stays there.
    fn place(&mut self, foreign: &Foreign) {
        let (inventory, generation) = (self.batch.inventory, self.batch.generation);
        if let Some(template) = self.settings.index.as_ref().filter(|_| self.shape.index) {
            self.index = Some(paths::document(template, self.settings, inventory, generation).whole());
        }
        let mut stay: BTreeMap<&RowKey, String> = BTreeMap::new();
        loop {
            let taken: Vec<String> = self.index.iter().chain(stay.values()).cloned().collect();
            let moving: Vec<(&'a RowKey, &Want<'a>)> =
                self.wants.iter().filter(|(key, _)| !stay.contains_key(*key)).map(|(k, w)| (*k, w)).collect();
            let sources = moving.iter().map(|(key, want)| Source { key, name: want.from.name() });
            let placed =
                row_paths::rows(sources, self.settings, self.shape, inventory, generation, &taken, foreign);
            let mut refused = Vec::new();
            for ((key, want), placed) in moving.iter().zip(&placed) {
                let why = foreign.refusal(&placed.path, &key.group);
                refused.extend(why.map(|why| (*key, format!("{}: {why}", described(key, want.from.name())))));
            }
            if refused.is_empty() {
                let warnings = self.shared_paths(&moving, &placed);
                let mut paths: BTreeMap<&RowKey, String> =
                    moving.iter().map(|(key, _)| *key).zip(placed.into_iter().map(|p| p.path)).collect();
                paths.append(&mut stay);
                (self.tree, self.warnings) = (paths.into_values().collect(), warnings);
                return;
            }
            for (key, why) in refused {
                self.refused.push(Refusal { key: key.clone(), why });
                let has_file =
                    |line: &Line| !line.path.is_empty() && foreign.refusal(&line.path, &key.group).is_none();
                match self.held.and_then(|held| held.rows.get_key_value(key)) {
                    Some((key, line)) if has_file(line) => {
                        stay.insert(key, line.path.clone());
                        self.wants.insert(key, Want { from: Origin::Held(line), whole: line.whole.clone() });
                    }
                    _ => drop(self.wants.remove(key)),
                }
            }
        }
    }

    /// Warnings about rows that have a suffix because they share a path, if one of them is new there.
    fn shared_paths(&self, rows: &[(&RowKey, &Want<'_>)], placed: &[Placed]) -> Vec<String> {
        let mut groups: BTreeMap<&str, (bool, Vec<String>)> = BTreeMap::new();
        for ((key, want), placed) in rows.iter().zip(placed) {
            let Some(shared) = placed.shared.as_deref() else { continue };
            let (new, rows) = groups.entry(shared).or_default();
            let before = self.held.and_then(|held| held.rows.get(*key)).map(|line| &*line.path);
            *new |= before != Some(&placed.path);
            let RowKey { kind, namespace, group, uid, .. } = key;
            let name = want.from.name();
            rows.push(format!("{kind} {namespace}/{name} (group {group:?}, uid {uid})"));
        }
        let told = groups.into_iter().filter(|(_, (new, _))| *new).map(|(path, (_, mut rows))| {
            let more = rows.len().saturating_sub(4);
            rows.truncate(4);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "{}{more} would be the file {path}: each has a suffix now; put {{group}}, {{targetName}} or \
                 {{uid}} into spec.layout.pathTemplate to choose the names",
                rows.join(" and ")
            )
        });
        told.collect()
    }

    /// The files whose bytes [`Draft::change`] needs.
    pub(crate) fn reads(&self) -> BTreeSet<&str> {
        let Some(held) = self.held else { return BTreeSet::new() };
        if self.shape.document || self.stale || held.header.writing {
            return held.paths();
        }
        let moved = self.wants.values().zip(&self.tree).filter_map(|(want, path)| match want.from {
            Origin::Held(line) if line.path != *path && !line.path.is_empty() => Some(&*line.path),
            _ => None,
        });
        moved.chain(held.header.files.keys().map(|path| &**path)).collect()
    }

    /// What to do, given the bytes of the files and the journal of an interrupted write.
    pub(crate) fn change(
        self,
        files: &BTreeMap<String, Bytes>,
        journal: BTreeMap<Hash, String>,
        exported_at: &str,
    ) -> Change {
        let mut old = journal;
        if let Some(held) = self.held {
            for bytes in files.values() {
                for chunk in chunks::split(held.header.shape, bytes) {
                    old.insert(Hash::of(chunk.as_bytes()), chunk);
                }
            }
        }
        let mut change = Change {
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
            self.documents(files, &old, exported_at, &mut change);
        } else {
            self.tree(files, &old, exported_at, &mut change);
        }
        self.keep_fingerprint(&mut change.manifest);
        self.compare(&old, &mut change);
        change.refused = self.refused;
        change.warnings = self.warnings;
        change
    }

    /// The text of a row and its line of the manifest; no text if the row is lost.
    fn text(&self, key: &RowKey, want: &Want<'_>, old: &BTreeMap<Hash, String>) -> (Option<String>, Line) {
        match want.from {
            Origin::Given(row) => {
                let text = chunks::chunk(self.shape, key, &row.version, &row.name, row.attributes.get());
                let line = Line {
                    version: row.version.to_string(),
                    name: row.name.to_string(),
                    digest: row.digest,
                    whole: want.whole.clone(),
                    path: String::new(),
                    hash: Hash::of(text.as_bytes()),
                };
                (Some(text), line)
            }
            Origin::Held(line) => {
                let mut line = Line { path: String::new(), ..line.clone() };
                let mut text = old.get(&line.hash).cloned();
                if let Some(held) = self.held.filter(|_| self.stale) {
                    let before = held.header.shape;
                    text = text
                        .and_then(|text| chunks::attributes(before, line.whole.as_deref(), &text))
                        .filter(|_| self.shape.content != LayoutContent::Manifest || line.whole.is_some())
                        .map(|attributes| {
                            chunks::chunk(self.shape, key, &line.version, &line.name, &attributes)
                        });
                    if let Some(text) = &text {
                        line.hash = Hash::of(text.as_bytes());
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
        old: &BTreeMap<Hash, String>,
        exported_at: &str,
        change: &mut Change,
    ) {
        let batch = self.batch;
        let about = About {
            generation: batch.generation,
            cluster: &batch.inventory.cluster,
            exported_at,
            part_bytes: batch.part_bytes,
        };
        let mut items = Vec::with_capacity(self.wants.len());
        for (key, want) in &self.wants {
            let (text, line) = self.text(key, want, old);
            if let Some(text) = text {
                items.push(Item::with_text(key, &line.version, &line.name, text));
            }
            change.manifest.rows.insert((*key).clone(), line);
        }
        let path =
            paths::document(&self.settings.documents, self.settings, batch.inventory, batch.generation);
        let overhead =
            if self.shape.format == super::FileFormat::Json { envelope::overhead(&about) } else { 0 };
        let parts = envelope::pack(items, overhead, batch.part_bytes);
        let mut places: HashMap<Hash, Vec<String>> = HashMap::new();
        let mut checksums = Vec::new();
        for (index, items) in parts.iter().enumerate() {
            let part = (parts.len() > 1).then_some((index + 1, parts.len()));
            let path = path.part(part);
            for item in items {
                places.entry(Hash::of(item.text.as_bytes())).or_default().push(path.clone());
            }
            let made =
                chunks::document(self.shape, items, part, &about, files.get(&path).map(|bytes| &**bytes));
            change.manifest.header.files.insert(path.clone(), Hash::of(&made.bytes));
            checksums.push(made.checksum);
            change.writes.push((path, made.bytes.into()));
        }
        for line in change.manifest.rows.values_mut() {
            line.path = places.get_mut(&line.hash).and_then(Vec::pop).unwrap_or_default();
        }
        change.checksum = envelope::combined(checksums.iter().map(|checksum| &**checksum));
    }

    fn tree(
        &self,
        files: &BTreeMap<String, Bytes>,
        old: &BTreeMap<Hash, String>,
        exported_at: &str,
        change: &mut Change,
    ) {
        for ((key, want), path) in self.wants.iter().zip(&self.tree) {
            if let Origin::Held(line) = want.from
                && line.path == *path
                && !self.stale
            {
                change.manifest.rows.insert((*key).clone(), line.clone());
                continue;
            }
            let (text, mut line) = self.text(key, want, old);
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
            let made = |at: &str| chunks::index(self.shape, cluster, &listed, &change.checksum, at);
            let before = files.get(path);
            let same = before
                .and_then(|bytes| chunks::exported_at(self.shape, bytes))
                .map(|at| made(&at))
                .filter(|bytes| before.is_some_and(|before| **before == **bytes));
            let bytes = same.unwrap_or_else(|| made(exported_at));
            change.manifest.header.files.insert(path.clone(), Hash::of(&bytes));
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
    fn compare(&self, old: &BTreeMap<Hash, String>, change: &mut Change) {
        let Some(held) = self.held else {
            let mut intent = Manifest::new(self.batch.inventory, self.settings.fingerprint(), self.shape);
            intent.header.writing = true;
            change.new_paths = change.manifest.paths().into_iter().map(ToOwned::to_owned).collect();
            intent.header.claimed = change.new_paths.iter().cloned().collect();
            change.intent = Some(intent);
            return;
        };
        let (had, has) = (held.paths(), change.manifest.paths());
        change.deletes = had.difference(&has).map(|path| (*path).to_owned()).collect();
        for (key, want) in &self.wants {
            let Origin::Held(line) = want.from else { continue };
            let after = change.manifest.rows.get(*key);
            let moves = after.is_some_and(|after| after.path != line.path || after.hash != line.hash);
            // After a crash the journal may be the only place that still has a row.
            if (moves || held.header.writing)
                && let Some(text) = old.get(&line.hash)
            {
                change.journal.insert(line.hash, text.clone());
            }
        }
        change.new_paths = has.difference(&had).map(|path| (*path).to_owned()).collect();
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
