//! Computes commits: from the files of a commit and the works that wait to the next commits.
//!
//! New objects are kept in memory until they have been pushed. Commits that were not pushed leave nothing behind.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use git2::{ObjectType, Oid, Repository, Signature};
use kollect_model::{
    batch::{Baseline, Batch, Delta, InventoryId, Receipt},
    claim::Claim,
    row::RowKey,
    sink::{SinkError, SinkReason},
};

use super::{
    contested::find_owners,
    message::{self, About, Messages},
    mirror::Failure,
    tree::{Entry, Files},
};
use crate::layout::{
    Settings, baseline, chunks,
    draft::{Change, Draft},
    foreign::{self, Foreign},
    manifest::{Hash, Manifest, unreadable},
    path_owners::{PathOwners, Settled},
    paths,
};

/// Hides the files below `.kollect` from diffs: `git log -p` and web interfaces show one line for them.
const ATTRIBUTES: &str = "* -diff linguist-generated\n";

/// A write or a removal of an inventory.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) inventory: InventoryId,
    pub(super) claim: Claim,
    pub(super) settings: Arc<Settings>,
    pub(super) messages: Arc<Messages>,
    pub(super) known: Known,
    pub(super) task: Task,
}

/// What the sink knows about the books of an inventory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Not read yet, or not to be compared.
    Nothing,
    /// The id of their tree when they were last read or written; `None` if there were none.
    Books(Option<Oid>),
}

#[derive(Clone)]
pub(super) enum Task {
    Write { delta: Delta, sink: String, generation: i64, part_bytes: usize },
    Forget,
}

impl Task {
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

/// The result of a work.
pub(super) struct Done {
    pub(super) receipt: Receipt,
    /// The id of its books after the work.
    pub(super) books: Option<Oid>,
}

/// Commits, each on top of the one before.
pub(super) struct Drawn {
    /// One result per work.
    pub(super) done: Vec<Result<Done, SinkError>>,
    /// The last commit, or the base if no commit was made.
    pub(super) tip: Option<Oid>,
    pub(super) pack: Bytes,
}

/// Makes a commit for each work that needs one. `refused` are the works that may not write. On a branch that does
/// not exist there is nothing to forget, whatever its base contains.
pub(super) fn draw(
    repository: &Repository,
    place: &str,
    base: Option<Oid>,
    is_there: bool,
    works: &[Work],
    refused: &mut HashMap<usize, SinkError>,
    owners: &Mutex<PathOwners>,
) -> Result<Drawn, Failure> {
    let odb = repository.odb()?;
    odb.add_new_mempack_backend(1000)?;
    let mut made = Vec::new();
    let (mut tip, mut done) = (base, Vec::new());
    for (index, work) in works.iter().enumerate() {
        if let Some(error) = refused.remove(&index) {
            done.push(Err(error));
            continue;
        }
        if !is_there && !work.task.is_write() {
            done.push(Ok(Done { receipt: Receipt::default(), books: None }));
            continue;
        }
        let drawer = |base, known| {
            let files = Files::of(repository, base)?;
            Ok::<_, Failure>(Drawer { repository, place, base, files, work, known, owners })
        };
        let drawn = drawer(tip, work.known)?.settle_contested(&mut made).and_then(|(settled, commit)| {
            let known = if commit.is_some() { Known::Nothing } else { work.known };
            // Also if the write itself fails: the commit that gives up paths stays.
            tip = commit.or(tip);
            drawer(tip, known)?.draw(&settled, &mut made)
        });
        match drawn {
            Ok((one, commit)) => {
                tip = commit.or(tip);
                done.push(Ok(one));
            }
            Err(Failure::Sink(error)) => done.push(Err(error)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Drawn { done, tip, pack: pack(repository, &made)? })
}

/// A pack of these objects. Without any object it is a valid empty pack.
pub(super) fn pack(repository: &Repository, objects: &[Oid]) -> Result<Bytes, git2::Error> {
    let mut builder = repository.packbuilder()?;
    builder.set_threads(0);
    for object in objects {
        builder.insert_object(*object, None)?;
    }
    let mut buffer = git2::Buf::new();
    builder.write_buf(&mut buffer)?;
    Ok(Bytes::copy_from_slice(&buffer))
}

/// The rows of an inventory on the branch, and the id of its books.
pub(super) fn baseline(
    repository: &Repository,
    commit: Option<Oid>,
    inventory: &InventoryId,
    settings: &Settings,
    owners: &Mutex<PathOwners>,
) -> Result<(Baseline, Option<Oid>), Failure> {
    let files = Files::of(repository, commit)?;
    let own = paths::books(inventory);
    let (books, manifest) = held(&files, &own)?;
    let Some(manifest) = manifest else { return Ok((Baseline::new(), books)) };
    let mut owners = owners.lock().unwrap_or_else(PoisonError::into_inner);
    let found = find_owners(&files, &mut owners, &own, manifest.paths())?;
    owners.set_contested(&own, !found.is_empty());
    drop(owners);
    let shape = manifest.header.shape;
    let mut seen = BTreeMap::new();
    for path in manifest.paths() {
        let Entry::File(id) = files.entry(path)? else { continue };
        let found = if shape.document {
            baseline::Seen::new(shape, &files.bytes(id)?)
        } else {
            baseline::Seen::file(Hash::prefix(id.as_bytes()))
        };
        seen.insert(path.to_owned(), found);
    }
    Ok((baseline::baseline(&manifest, settings, &seen), books))
}

/// The books of an inventory: the id of their directory, and the manifest in them.
fn held(files: &Files<'_>, books: &str) -> Result<(Option<Oid>, Option<Manifest>), Failure> {
    let Some(directory) = files.directory(books)? else { return Ok((None, None)) };
    let read = files.all_bytes(&directory)?;
    let manifest = Manifest::of_files(read.iter().map(|(name, bytes)| (&**name, &**bytes)));
    let manifest = manifest.map_err(|error| {
        let attempt = format!(
            "read {books}, which says which files are ours: it was changed by others; take it from an older \
             commit, or remove it together with our files"
        );
        SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
    })?;
    Ok((Some(directory.id()), manifest))
}

/// Computes the commit of one work.
pub(super) struct Drawer<'a> {
    repository: &'a Repository,
    place: &'a str,
    base: Option<Oid>,
    pub(super) files: Files<'a>,
    pub(super) work: &'a Work,
    known: Known,
    owners: &'a Mutex<PathOwners>,
}

impl Drawer<'_> {
    fn draw(&self, settled: &Settled, made: &mut Vec<Oid>) -> Result<(Done, Option<Oid>), Failure> {
        let books = paths::books(&self.work.inventory);
        let (id, held) = self.held(&books)?;
        let now = jiff::Timestamp::now().to_string();
        let Commit { edits, message, receipt, manifest } = match &self.work.task {
            Task::Forget => self.forget(&books, held.as_ref(), &now)?,
            Task::Write { .. } => self.write(&books, held.as_ref(), settled, &now)?,
        };
        let Some(commit) = self.commit(edits, &message, made)? else {
            return Ok((Done { receipt, books: id }, None));
        };
        let id = Files::of(self.repository, Some(commit))?.directory(&books)?.map(|tree| tree.id());
        match (id, manifest) {
            (Some(id), Some(manifest)) => self.owners().remember(&books, Some(id.to_string()), &manifest),
            _ => self.owners().forget(&books),
        }
        Ok((Done { receipt, books: id }, Some(commit)))
    }

    /// The books of the inventory. Fails if they differ from the known ones.
    pub(super) fn held(&self, books: &str) -> Result<(Option<Oid>, Option<Manifest>), Failure> {
        let (id, held) = held(&self.files, books)?;
        if !matches!(self.known, Known::Nothing) && self.known != Known::Books(id) {
            let why = format!(
                "write inventory {} in {}: what says which files are ours was changed by others; all is compared \
                 again",
                self.work.inventory, self.place
            );
            return Err(SinkError::new(SinkReason::ClaimLost, why).into());
        }
        Ok((id, held))
    }

    pub(super) fn owners(&self) -> MutexGuard<'_, PathOwners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a commit with these changes, unless they change nothing.
    pub(super) fn commit(
        &self,
        edits: Edits,
        message: &str,
        made: &mut Vec<Oid>,
    ) -> Result<Option<Oid>, Failure> {
        if edits.is_empty() {
            return Ok(None);
        }
        let tree = self.files.change(edits, made)?;
        let tree = self.repository.find_tree(tree)?;
        let parent = self.base.map(|base| self.repository.find_commit(base)).transpose()?;
        if parent.as_ref().is_some_and(|parent| parent.tree_id() == tree.id()) {
            return Ok(None);
        }
        let signature = Signature::now(&self.work.messages.author, &self.work.messages.email)?;
        let parents: Vec<_> = parent.iter().collect();
        let commit = self.repository.commit(None, &signature, &signature, message, &tree, &parents)?;
        made.push(commit);
        Ok(Some(commit))
    }

    fn write(
        &self,
        books: &str,
        held: Option<&Manifest>,
        settled: &Settled,
        now: &str,
    ) -> Result<Commit, Failure> {
        let Work { inventory, claim, settings, messages, task, .. } = self.work;
        let Task::Write { delta, sink, generation, part_bytes } = task else {
            return Err(SinkError::new(SinkReason::WriteFailed, "nothing to write").into());
        };
        let batch =
            Batch { generation: *generation, part_bytes: *part_bytes, ..Batch::new(inventory, claim, delta) };
        let Drafted { change, mut edits, files } = self.draft(books, settings, &batch, held, settled, now)?;
        let Change { manifest, checksum, refused, warnings, .. } = change;
        self.keep_books(books, &manifest, &mut edits)?;
        let receipt = Receipt { checksum: Some(checksum.clone()), refused, warnings };
        if edits.is_empty() {
            return Ok(Commit { edits, message: String::new(), receipt, manifest: None });
        }
        let old = held.map(|held| self.old_rows(held, &files, delta)).transpose()?.unwrap_or_default();
        let name = |key: &RowKey| held?.rows.get(key).map(|line| line.name.clone());
        let changes = message::changes(delta, |key| old.get(key).cloned(), name);
        let about = About {
            inventory,
            sink,
            generation: *generation,
            items: manifest.rows.len(),
            checksum: &checksum,
            exported_at: now,
            path: &settings.document_path(inventory, *generation),
            changes: if changes.is_empty() {
                "Files are put in order; no row has changed."
            } else {
                &changes
            },
        };
        let message = messages.text(&about);
        Ok(Commit { edits, message, receipt, manifest: Some(manifest) })
    }

    /// Computes the files, and avoids those of others.
    fn draft(
        &self,
        books: &str,
        settings: &Settings,
        batch: &Batch<'_>,
        held: Option<&Manifest>,
        settled: &Settled,
        now: &str,
    ) -> Result<Drafted, Failure> {
        if self.files.directory(paths::BOOKS)?.is_none() && self.files.entry(paths::BOOKS)? != Entry::Nothing
        {
            foreign::refuse(self.place, &[(paths::BOOKS.to_owned(), false)])?;
        }
        let mut foreign = Foreign::of(&settled.lost);
        loop {
            let draft = Draft::new(settings, batch, held, &foreign);
            let mut files = BTreeMap::new();
            for path in draft.reads() {
                if let Some(bytes) = self.files.read(path)? {
                    files.insert(path.to_owned(), bytes);
                }
            }
            let mut change = draft.change(&files, BTreeMap::new(), now);
            let new = foreign.not_looked_up(&change.new_paths);
            if !new.is_empty() {
                let found = find_owners(&self.files, &mut self.owners(), books, new)?;
                if !found.is_empty() {
                    change.note_owned(held, self.place, found, &mut foreign)?;
                    continue;
                }
            }
            let mut removed = Vec::new();
            for path in std::mem::take(&mut change.deletes) {
                // If something else than a file is at the path, it is not ours. Files that another manifest names stay.
                if let Entry::File(_) = self.files.entry(&path)?
                    && !settled.shared.contains_key(&path)
                {
                    removed.push(path);
                }
            }
            let (mut edits, found) = self.own_files(held, std::mem::take(&mut change.writes), &removed)?;
            let found = foreign.unknown_of(found);
            if found.is_empty() {
                edits.extend(removed.into_iter().map(|path| (path, None)));
                return Ok(Drafted { change, edits, files });
            }
            change.note_files(held, self.place, found, &mut foreign)?;
        }
    }

    /// The files that differ. Returns also the existing entries at these paths that are not ours, each with whether it
    /// already has the bytes that we would write.
    fn own_files(
        &self,
        held: Option<&Manifest>,
        writes: Vec<(String, Bytes)>,
        removed: &[String],
    ) -> Result<(Edits, Vec<(String, bool)>), Failure> {
        let own = held.map(Manifest::paths).unwrap_or_default();
        let (mut edits, mut foreign) = (Edits::new(), Vec::new());
        let mut after: Option<Files<'_>> = None;
        for (path, bytes) in writes {
            let same = self.files.holds(&path, &bytes)?;
            let in_the_way = match self.files.entry(&path)? {
                Entry::Nothing => false,
                Entry::File(_) => !own.contains(&*path),
                // In the way, unless it is gone after our own files have been removed.
                Entry::Other => {
                    if after.is_none() {
                        after = Some(self.files.without(removed)?);
                    }
                    after.as_ref().is_none_or(|after| !matches!(after.entry(&path), Ok(Entry::Nothing)))
                }
            };
            if in_the_way {
                foreign.push((path.clone(), same));
            }
            if !same {
                edits.insert(path, Some(bytes));
            }
        }
        Ok((edits, foreign))
    }

    /// Whether other inventories have books on the branch.
    fn has_others(&self, books: &str) -> Result<bool, git2::Error> {
        let Some(directory) = self.files.directory(paths::BOOKS)? else { return Ok(false) };
        let mut trees = directory.iter().filter(|entry| entry.kind() == Some(ObjectType::Tree));
        let own = books.strip_prefix(paths::BOOKS).and_then(|name| name.strip_prefix('/'));
        Ok(trees.any(|entry| entry.name().ok() != own))
    }

    pub(super) fn keep_books(
        &self,
        books: &str,
        manifest: &Manifest,
        edits: &mut Edits,
    ) -> Result<(), Failure> {
        let wanted = manifest.to_files().expect("a manifest is always JSON");
        for entry in self.files.directory(books)?.iter().flat_map(|directory| directory.iter()) {
            let name = entry.name().unwrap_or_default();
            if !wanted.contains_key(name) {
                edits.insert(format!("{books}/{name}"), None);
            }
        }
        let names = wanted.into_iter().map(|(name, bytes)| (format!("{books}/{name}"), bytes));
        let attributes = (format!("{}/.gitattributes", paths::BOOKS), ATTRIBUTES.into());
        for (path, bytes) in names.chain([attributes]) {
            if !self.files.holds(&path, &bytes)? {
                edits.insert(path, Some(bytes.into()));
            }
        }
        Ok(())
    }

    /// The former attributes of changed rows, read from the files; only for rows whose delta does not have them.
    fn old_rows(
        &self,
        held: &Manifest,
        files: &BTreeMap<String, Bytes>,
        delta: &Delta,
    ) -> Result<HashMap<RowKey, String>, Failure> {
        let shape = held.header.shape;
        let unknown = delta.changed.iter().filter(|changed| changed.before.is_none());
        let lines = unknown.filter_map(|changed| held.rows.get_key_value(&changed.after.key));
        let mut rows = HashMap::new();
        let mut parts: HashMap<Hash, String> = HashMap::new();
        for (key, line) in lines.take(message::MOST_LINES) {
            let chunk = if shape.document {
                if parts.is_empty() {
                    let all = files.values().flat_map(|bytes| chunks::split(shape, bytes));
                    parts.extend(all.map(|chunk| (Hash::of(chunk.as_bytes()), chunk)));
                }
                parts.get(&line.hash).cloned()
            } else {
                let bytes = self.files.read(&line.path)?;
                bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
            };
            let attributes = chunk.and_then(|text| chunks::attributes(shape, line.whole.as_deref(), &text));
            rows.extend(attributes.map(|attributes| (key.clone(), attributes)));
        }
        Ok(rows)
    }

    fn forget(&self, books: &str, held: Option<&Manifest>, now: &str) -> Result<Commit, Failure> {
        let mut edits = Edits::new();
        let own = held.map(Manifest::paths).unwrap_or_default();
        let others = find_owners(&self.files, &mut self.owners(), books, own.iter().copied())?;
        for path in own {
            // Files that another manifest names stay.
            if let Entry::File(_) = self.files.entry(path)?
                && !others.contains_key(path)
            {
                edits.insert(path.to_owned(), None);
            }
        }
        for entry in self.files.directory(books)?.iter().flat_map(|directory| directory.iter()) {
            edits.insert(format!("{books}/{}", entry.name().unwrap_or_default()), None);
        }
        if !edits.is_empty() && !self.has_others(books)? {
            edits.insert(format!("{}/.gitattributes", paths::BOOKS), None);
        }
        let message = Messages::removal().text(&About::without_rows(&self.work.inventory, now));
        Ok(Commit { edits, message, receipt: Receipt::default(), manifest: None })
    }
}

/// The content of a commit.
struct Commit {
    edits: Edits,
    message: String,
    receipt: Receipt,
    /// The manifest after the commit, if the commit changes it.
    manifest: Option<Manifest>,
}

/// The files of a commit.
struct Drafted {
    change: Change,
    edits: Edits,
    /// The files that were read.
    files: BTreeMap<String, Bytes>,
}

/// The bytes of each file; `None` removes the file.
pub(super) type Edits = BTreeMap<String, Option<Bytes>>;
