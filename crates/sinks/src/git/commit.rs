//! Computes commits: from the files of a commit and the waiting requests to the next commits.
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
    contested_paths::find_owners,
    message::{self, CommitMessages, MessageValues},
    mirror::GitError,
    tree::{CommitFiles, TreeEntry},
};
use crate::layout::{
    LayoutSettings,
    adopt::{self, Adoption},
    baseline, chunks,
    draft::{FileChanges, WriteDraft},
    foreign::{self, ForeignPaths},
    manifest::{BlobHash, Manifest, unreadable},
    path_owners::{PathOwners, SettledPaths},
    paths::{self, FilePath},
};

/// Hides the files below `.kollect` from diffs: `git log -p` and web interfaces show one line for them.
const ATTRIBUTES: &str = "* -diff linguist-generated\n";

/// A request to write or to remove an inventory.
#[derive(Clone)]
pub(super) struct InventoryWrite {
    pub(super) inventory: InventoryId,
    pub(super) claim: Claim,
    pub(super) settings: Arc<LayoutSettings>,
    pub(super) messages: Arc<CommitMessages>,
    pub(super) known: KnownManifest,
    pub(super) operation: WriteKind,
}

/// What the sink knows about the manifest of an inventory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownManifest {
    /// Not read yet, or not to be compared.
    Unknown,
    /// The id of its tree when it was last read or written; `None` if there was none.
    Tree(Option<Oid>),
}

#[derive(Clone)]
pub(super) enum WriteKind {
    Write { delta: Delta, sink: String, generation: i64, part_bytes: usize },
    Forget,
}

impl WriteKind {
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

/// The result of a request.
pub(super) struct WriteResult {
    pub(super) receipt: Receipt,
    /// The id of the tree that holds its manifest afterwards.
    pub(super) manifest_tree: Option<Oid>,
}

/// Commits, each on top of the one before.
pub(super) struct MadeCommits {
    /// One result per request.
    pub(super) results: Vec<Result<WriteResult, SinkError>>,
    /// The last commit, or the base if no commit was made.
    pub(super) tip: Option<Oid>,
    pub(super) pack: Bytes,
}

/// Makes a commit for each request that needs one. `refused` are the errors of requests that may not write, by index.
/// On a branch that does not exist there is nothing to forget, whatever its base contains.
pub(super) fn make_commits(
    repository: &Repository,
    destination: &str,
    base: Option<Oid>,
    branch_exists: bool,
    requests: &[InventoryWrite],
    refused: &mut HashMap<usize, SinkError>,
    owners: &Mutex<PathOwners>,
) -> Result<MadeCommits, GitError> {
    let odb = repository.odb()?;
    odb.add_new_mempack_backend(1000)?;
    let mut new_objects = Vec::new();
    let (mut tip, mut results) = (base, Vec::new());
    for (index, request) in requests.iter().enumerate() {
        if let Some(error) = refused.remove(&index) {
            results.push(Err(error));
            continue;
        }
        if !branch_exists && !request.operation.is_write() {
            results.push(Ok(WriteResult { receipt: Receipt::default(), manifest_tree: None }));
            continue;
        }
        let builder = |base, known| {
            let files = CommitFiles::of(repository, base)?;
            Ok::<_, GitError>(CommitBuilder { repository, destination, base, files, request, known, owners })
        };
        let outcome = builder(tip, request.known)?.settle_contested_paths(&mut new_objects).and_then(
            |(settled, commit)| {
                let known = if commit.is_some() { KnownManifest::Unknown } else { request.known };
                // Also if the write itself fails: the commit that gives up paths stays.
                tip = commit.or(tip);
                builder(tip, known)?.commit_write(&settled, &mut new_objects)
            },
        );
        match outcome {
            Ok((result, commit)) => {
                tip = commit.or(tip);
                results.push(Ok(result));
            }
            Err(GitError::Sink(error)) => results.push(Err(error)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(MadeCommits { results, tip, pack: pack(repository, &new_objects)? })
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

/// The rows of an inventory on the branch, and the id of the tree that holds its manifest.
pub(super) fn baseline(
    repository: &Repository,
    commit: Option<Oid>,
    inventory: &InventoryId,
    settings: &LayoutSettings,
    owners: &Mutex<PathOwners>,
) -> Result<(Baseline, Option<Oid>), GitError> {
    let files = CommitFiles::of(repository, commit)?;
    let inventory_directory = paths::inventory_directory(inventory);
    let (manifest_tree, manifest) = read_manifest(&files, &inventory_directory)?;
    let Some(manifest) = manifest else { return Ok((Baseline::new(), manifest_tree)) };
    let mut owners = owners.lock().unwrap_or_else(PoisonError::into_inner);
    let owners_by_path = find_owners(&files, &mut owners, &inventory_directory, manifest.paths())?;
    owners.set_contested(&inventory_directory, !owners_by_path.is_empty());
    drop(owners);
    let shape = manifest.header.shape;
    let mut files_read = BTreeMap::new();
    for path in manifest.paths() {
        let TreeEntry::File(id) = files.entry(path)? else { continue };
        let file = if shape.document {
            baseline::ReadFile::new(shape, &files.bytes(id)?)
        } else {
            baseline::ReadFile::of_hash(BlobHash::of_blob_id(id.as_bytes()))
        };
        files_read.insert(path.to_owned(), file);
    }
    Ok((baseline::baseline(&manifest, settings, &files_read), manifest_tree))
}

/// The id of the tree of an inventory's directory, and the manifest in it.
fn read_manifest(
    files: &CommitFiles<'_>,
    inventory_directory: &str,
) -> Result<(Option<Oid>, Option<Manifest>), GitError> {
    let Some(directory) = files.directory(inventory_directory)? else { return Ok((None, None)) };
    let contents = files.all_bytes(&directory)?;
    let manifest = Manifest::of_files(contents.iter().map(|(name, bytes)| (&**name, &**bytes)));
    let manifest = manifest.map_err(|error| {
        let attempt = format!(
            "read {inventory_directory}, which lists the files of the inventory: it was changed by others; restore it \
             from an older commit, or remove it together with the files of the inventory"
        );
        SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
    })?;
    Ok((Some(directory.id()), manifest))
}

/// Computes the commit of one request.
pub(super) struct CommitBuilder<'a> {
    repository: &'a Repository,
    destination: &'a str,
    base: Option<Oid>,
    pub(super) files: CommitFiles<'a>,
    pub(super) request: &'a InventoryWrite,
    known: KnownManifest,
    owners: &'a Mutex<PathOwners>,
}

impl CommitBuilder<'_> {
    fn commit_write(
        &self,
        settled: &SettledPaths,
        new_objects: &mut Vec<Oid>,
    ) -> Result<(WriteResult, Option<Oid>), GitError> {
        let inventory_directory = paths::inventory_directory(&self.request.inventory);
        let (old_tree, held) = self.read_manifest(&inventory_directory)?;
        let now = jiff::Timestamp::now().to_string();
        let Commit { edits, message, receipt, manifest } = match &self.request.operation {
            WriteKind::Forget => self.forget(&inventory_directory, held.as_ref(), &now)?,
            WriteKind::Write { .. } => self.write(&inventory_directory, held.as_ref(), settled, &now)?,
        };
        let Some(commit) = self.commit(edits, &message, new_objects)? else {
            return Ok((WriteResult { receipt, manifest_tree: old_tree }, None));
        };
        let manifest_tree = CommitFiles::of(self.repository, Some(commit))?
            .directory(&inventory_directory)?
            .map(|tree| tree.id());
        match (manifest_tree, manifest) {
            (Some(tree), Some(manifest)) => {
                self.owners().remember(&inventory_directory, Some(tree.to_string()), &manifest);
            }
            _ => self.owners().forget(&inventory_directory),
        }
        Ok((WriteResult { receipt, manifest_tree }, Some(commit)))
    }

    /// The id of the tree of the inventory's directory, and the manifest in it. Fails if the tree is not the known one.
    pub(super) fn read_manifest(
        &self,
        inventory_directory: &str,
    ) -> Result<(Option<Oid>, Option<Manifest>), GitError> {
        let (tree, manifest) = read_manifest(&self.files, inventory_directory)?;
        if !matches!(self.known, KnownManifest::Unknown) && self.known != KnownManifest::Tree(tree) {
            let why = format!(
                "write inventory {} in {}: the manifest was changed by others; all rows are compared \
                 again",
                self.request.inventory, self.destination
            );
            return Err(SinkError::new(SinkReason::ClaimLost, why).into());
        }
        Ok((tree, manifest))
    }

    pub(super) fn owners(&self) -> MutexGuard<'_, PathOwners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a commit with these changes, unless they change nothing.
    pub(super) fn commit(
        &self,
        edits: TreeEdits,
        message: &str,
        new_objects: &mut Vec<Oid>,
    ) -> Result<Option<Oid>, GitError> {
        if edits.is_empty() {
            return Ok(None);
        }
        let tree = self.files.change(edits, new_objects)?;
        let tree = self.repository.find_tree(tree)?;
        let parent = self.base.map(|base| self.repository.find_commit(base)).transpose()?;
        if parent.as_ref().is_some_and(|parent| parent.tree_id() == tree.id()) {
            return Ok(None);
        }
        let signature = Signature::now(&self.request.messages.author, &self.request.messages.email)?;
        let parents: Vec<_> = parent.iter().collect();
        let commit = self.repository.commit(None, &signature, &signature, message, &tree, &parents)?;
        new_objects.push(commit);
        Ok(Some(commit))
    }

    fn write(
        &self,
        inventory_directory: &str,
        held: Option<&Manifest>,
        settled: &SettledPaths,
        now: &str,
    ) -> Result<Commit, GitError> {
        let InventoryWrite { inventory, claim, settings, messages, operation, .. } = self.request;
        let WriteKind::Write { delta, sink, generation, part_bytes } = operation else {
            return Err(SinkError::new(SinkReason::WriteFailed, "nothing to write").into());
        };
        let batch =
            Batch { generation: *generation, part_bytes: *part_bytes, ..Batch::new(inventory, claim, delta) };
        let DraftedFiles { change, mut edits, files } =
            self.draft(inventory_directory, settings, &batch, held, settled, now)?;
        let FileChanges { manifest, checksum, refused, warnings, .. } = change;
        self.write_manifest(inventory_directory, &manifest, &mut edits)?;
        let receipt = Receipt { checksum: Some(checksum.clone()), refused, warnings };
        if edits.is_empty() {
            return Ok(Commit { edits, message: String::new(), receipt, manifest: None });
        }
        let old_attributes =
            held.map(|held| self.old_rows(held, &files, delta)).transpose()?.unwrap_or_default();
        let name = |key: &RowKey| held?.rows.get(key).map(|line| line.name.clone());
        let changes = message::changes(delta, |key| old_attributes.get(key).cloned(), name);
        let values = MessageValues {
            inventory,
            sink,
            generation: *generation,
            items: manifest.rows.len(),
            checksum: &checksum,
            exported_at: now,
            path: &settings.document_path(inventory, *generation),
            changes: if changes.is_empty() { "Files were rewritten; no row has changed." } else { &changes },
        };
        let message = messages.text(&values);
        Ok(Commit { edits, message, receipt, manifest: Some(manifest) })
    }

    /// Computes the files, and avoids those of others.
    fn draft(
        &self,
        inventory_directory: &str,
        settings: &LayoutSettings,
        batch: &Batch<'_>,
        held: Option<&Manifest>,
        settled: &SettledPaths,
        now: &str,
    ) -> Result<DraftedFiles, GitError> {
        if self.files.directory(paths::KOLLECT_DIRECTORY)?.is_none()
            && self.files.entry(paths::KOLLECT_DIRECTORY)? != TreeEntry::Nothing
        {
            foreign::refuse(self.destination, &[(paths::KOLLECT_DIRECTORY.to_owned(), false)])?;
        }
        let mut foreign = ForeignPaths::of(&settled.lost);
        loop {
            let draft = WriteDraft::new(settings, batch, held, &foreign);
            let mut files = BTreeMap::new();
            for path in draft.reads() {
                if let Some(bytes) = self.files.read(path)? {
                    files.insert(path.to_owned(), bytes);
                }
            }
            let mut change = draft.change(&files, BTreeMap::new(), now);
            let new = foreign.not_looked_up(&change.new_paths);
            if !new.is_empty() {
                let found = find_owners(&self.files, &mut self.owners(), inventory_directory, new)?;
                if !found.is_empty() {
                    change.note_owned(held, self.destination, found, &mut foreign)?;
                    continue;
                }
            }
            let mut removed = Vec::new();
            for path in std::mem::take(&mut change.deletes) {
                // If something else than a file is at the path, it is not ours. Files that another manifest names stay.
                if let TreeEntry::File(_) = self.files.entry(&path)?
                    && !settled.shared.contains_key(&path)
                {
                    removed.push(path);
                }
            }
            let writes = std::mem::take(&mut change.writes);
            let adoption = Adoption::new(batch.inventory, held.is_none(), &change.manifest);
            let adoption = Some(&adoption).filter(|_| !self.owners().has_damaged(inventory_directory));
            let (mut edits, found) = self.own_files(held, adoption, writes, &removed)?;
            let found = foreign.unknown_of(found);
            if found.is_empty() {
                if let Some(adoption) = adoption.filter(|adoption| adoption.is_first) {
                    let document = settings.document_file(batch.inventory, batch.generation);
                    removed.extend(self.outdated_documents(inventory_directory, &document, adoption)?);
                }
                edits.extend(removed.into_iter().map(|path| (path, None)));
                return Ok(DraftedFiles { change, edits, files });
            }
            change.note_files(held, self.destination, found, &mut foreign)?;
        }
    }

    /// Documents of the Go implementation that the new ones replace, at other paths: it may have had other parts. With its list
    /// of parts. Files that another manifest names stay.
    fn outdated_documents(
        &self,
        inventory_directory: &str,
        document: &FilePath,
        adoption: &Adoption<'_>,
    ) -> Result<Vec<String>, GitError> {
        let mut outdated = Vec::new();
        let list = adoption.list_of_parts();
        if self
            .files
            .read_up_to(&list, adopt::MAX_BYTES)?
            .is_some_and(|found| adoption.is_list_of_parts(&found))
        {
            outdated.push(list);
        }
        let path = document.full_path();
        let (directory, prefix) = match path.rsplit_once('/') {
            Some((directory, _)) => (directory, format!("{directory}/")),
            None => ("", String::new()),
        };
        for entry in self.files.directory(directory)?.iter().flat_map(|directory| directory.iter()) {
            let path = format!("{prefix}{}", entry.name().unwrap_or_default());
            if adoption.manifest.header.shape.document
                && adopt::is_path_of_document(document, &path)
                && let Some(found) = self.files.read_up_to(&path, adopt::MAX_BYTES)?
                && adoption.is_outdated(document, &path, &found)
            {
                outdated.push(path);
            }
        }
        let paths = outdated.iter().map(String::as_str);
        let owned = find_owners(&self.files, &mut self.owners(), inventory_directory, paths)?;
        outdated.retain(|path| !owned.contains_key(path));
        Ok(outdated)
    }

    /// The files that differ. Returns also the existing entries at these paths that are not ours, each with whether it
    /// may be replaced.
    fn own_files(
        &self,
        held: Option<&Manifest>,
        adoption: Option<&Adoption<'_>>,
        writes: Vec<(String, Bytes)>,
        removed: &[String],
    ) -> Result<(TreeEdits, Vec<(String, bool)>), GitError> {
        let own_paths = held.map(Manifest::paths).unwrap_or_default();
        let (mut edits, mut foreign) = (TreeEdits::new(), Vec::new());
        let mut without_removed: Option<CommitFiles<'_>> = None;
        for (path, bytes) in writes {
            let same = self.files.holds(&path, &bytes)?;
            let is_foreign = match self.files.entry(&path)? {
                TreeEntry::Nothing => false,
                TreeEntry::File(_) => !own_paths.contains(&*path),
                // Foreign, unless it is not there after our own files have been removed.
                TreeEntry::Other => {
                    if without_removed.is_none() {
                        without_removed = Some(self.files.without(removed)?);
                    }
                    without_removed.as_ref().is_none_or(|without_removed| {
                        !matches!(without_removed.entry(&path), Ok(TreeEntry::Nothing))
                    })
                }
            };
            if is_foreign {
                let found = match adoption.filter(|_| !same) {
                    Some(_) => self.files.read_up_to(&path, adopt::MAX_BYTES)?,
                    None => None,
                };
                let adopted = adoption
                    .zip(found)
                    .is_some_and(|(adoption, found)| adoption.may_replace(&path, &found, &bytes));
                foreign.push((path.clone(), same || adopted));
            }
            if !same {
                edits.insert(path, Some(bytes));
            }
        }
        Ok((edits, foreign))
    }

    /// Whether other inventories have a directory on the branch.
    fn has_others(&self, inventory_directory: &str) -> Result<bool, git2::Error> {
        let Some(directory) = self.files.directory(paths::KOLLECT_DIRECTORY)? else { return Ok(false) };
        let mut trees = directory.iter().filter(|entry| entry.kind() == Some(ObjectType::Tree));
        let own_name = inventory_directory
            .strip_prefix(paths::KOLLECT_DIRECTORY)
            .and_then(|name| name.strip_prefix('/'));
        Ok(trees.any(|entry| entry.name().ok() != own_name))
    }

    pub(super) fn write_manifest(
        &self,
        inventory_directory: &str,
        manifest: &Manifest,
        edits: &mut TreeEdits,
    ) -> Result<(), GitError> {
        let wanted = manifest.to_files().expect("a manifest is always JSON");
        for entry in self.files.directory(inventory_directory)?.iter().flat_map(|directory| directory.iter())
        {
            let name = entry.name().unwrap_or_default();
            if !wanted.contains_key(name) {
                edits.insert(format!("{inventory_directory}/{name}"), None);
            }
        }
        let names = wanted.into_iter().map(|(name, bytes)| (format!("{inventory_directory}/{name}"), bytes));
        let attributes = (format!("{}/.gitattributes", paths::KOLLECT_DIRECTORY), ATTRIBUTES.into());
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
    ) -> Result<HashMap<RowKey, String>, GitError> {
        let shape = held.header.shape;
        let unknown = delta.changed.iter().filter(|changed| changed.before.is_none());
        let lines = unknown.filter_map(|changed| held.rows.get_key_value(&changed.after.key));
        let mut rows = HashMap::new();
        let mut parts: HashMap<BlobHash, String> = HashMap::new();
        for (key, line) in lines.take(message::MAX_LINES) {
            let chunk = if shape.document {
                if parts.is_empty() {
                    let all = files.values().flat_map(|bytes| chunks::split(shape, bytes));
                    parts.extend(all.map(|chunk| (BlobHash::of(chunk.as_bytes()), chunk)));
                }
                parts.get(&line.hash).cloned()
            } else {
                let bytes = self.files.read(&line.path)?;
                bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
            };
            let attributes =
                chunk.and_then(|text| chunks::attributes(shape, line.object_attribute.as_deref(), &text));
            rows.extend(attributes.map(|attributes| (key.clone(), attributes)));
        }
        Ok(rows)
    }

    fn forget(
        &self,
        inventory_directory: &str,
        held: Option<&Manifest>,
        now: &str,
    ) -> Result<Commit, GitError> {
        let mut edits = TreeEdits::new();
        let own_paths = held.map(Manifest::paths).unwrap_or_default();
        let others =
            find_owners(&self.files, &mut self.owners(), inventory_directory, own_paths.iter().copied())?;
        for path in own_paths {
            // Files that another manifest names stay.
            if let TreeEntry::File(_) = self.files.entry(path)?
                && !others.contains_key(path)
            {
                edits.insert(path.to_owned(), None);
            }
        }
        for entry in self.files.directory(inventory_directory)?.iter().flat_map(|directory| directory.iter())
        {
            edits.insert(format!("{inventory_directory}/{}", entry.name().unwrap_or_default()), None);
        }
        if !edits.is_empty() && !self.has_others(inventory_directory)? {
            edits.insert(format!("{}/.gitattributes", paths::KOLLECT_DIRECTORY), None);
        }
        let message =
            CommitMessages::for_removal().text(&MessageValues::without_rows(&self.request.inventory, now));
        Ok(Commit { edits, message, receipt: Receipt::default(), manifest: None })
    }
}

/// The content of a commit.
struct Commit {
    edits: TreeEdits,
    message: String,
    receipt: Receipt,
    /// The manifest after the commit, if the commit changes it.
    manifest: Option<Manifest>,
}

/// The files of a commit.
struct DraftedFiles {
    change: FileChanges,
    edits: TreeEdits,
    /// The files that were read.
    files: BTreeMap<String, Bytes>,
}

/// The bytes of each file; `None` removes the file.
pub(super) type TreeEdits = BTreeMap<String, Option<Bytes>>;
