//! Stores inventories as files, in any store that implements [`Blobs`].
//!
//! At any moment the manifest names every file of the inventory: the next write completes an interrupted one,
//! and files of others are never removed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future, stream};
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::{
    LayoutSettings,
    adopt::{self, Adoption},
    baseline::{self, ReadFile},
    blobs::Blobs,
    claims,
    draft::{FileChanges, WriteDraft},
    foreign::ForeignPaths,
    manifest::{BlobHash, Manifest, unreadable},
    path_owners::{OwnerSearch, OwnersByPath, PathOwners, SettledPaths},
    paths,
};

/// How many files are read or written at once.
const CONCURRENT_FILES: usize = 4;

/// The file of a manifest, in the directory of its inventory.
const MANIFEST: &str = "/manifest.ndjson";

/// Inventories as files of a store.
pub struct FileSink<B> {
    blobs: B,
    settings: LayoutSettings,
    /// Held from the check of path owners until the manifest is written. Without it two inventories that need one
    /// path would both find it free. It guards the remembered paths of all manifests.
    write_lock: Arc<Mutex<PathOwners>>,
    /// Hashes of the manifests when this sink last read or wrote them; `None`: there was none. A different hash means
    /// that another writer has changed the files.
    known: std::sync::Mutex<HashMap<String, Option<BlobHash>>>,
}

/// A chunk in the journal.
#[derive(Serialize, Deserialize)]
struct JournalChunk {
    hash: BlobHash,
    text: String,
}

impl<B: Blobs> FileSink<B> {
    /// All sinks of one store must be given the same lock.
    pub fn new(blobs: B, settings: LayoutSettings, write_lock: Arc<Mutex<PathOwners>>) -> Self {
        Self { blobs, settings, write_lock, known: std::sync::Mutex::default() }
    }

    /// The manifest of an inventory, and the hash of its bytes.
    async fn manifest(&self, inventory_directory: &str) -> Result<Option<(Manifest, BlobHash)>, SinkError> {
        let path = format!("{inventory_directory}{MANIFEST}");
        let Some(bytes) = self.blobs.read(&path).await? else { return Ok(None) };
        let manifest = Manifest::read(&bytes).map_err(|error| {
            let attempt =
                format!("read {path} in {}, which lists the files of the inventory", self.blobs.describe());
            SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
        })?;
        Ok(Some((manifest, BlobHash::of(&bytes))))
    }

    async fn write_manifest(
        &self,
        owners: &mut PathOwners,
        inventory_directory: &str,
        manifest: &Manifest,
    ) -> Result<(), SinkError> {
        let bytes = manifest.to_bytes().expect("a manifest is always JSON");
        let hash = BlobHash::of(&bytes);
        // Removed first: after a failed write the stored state is unknown.
        owners.forget(inventory_directory);
        self.known().remove(inventory_directory);
        let version = self.blobs.write(&format!("{inventory_directory}{MANIFEST}"), bytes.into()).await?;
        owners.remember(inventory_directory, version, manifest);
        self.known().insert(inventory_directory.to_owned(), Some(hash));
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Option<BlobHash>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn journal(&self, inventory_directory: &str) -> Result<BTreeMap<BlobHash, String>, SinkError> {
        let bytes =
            self.blobs.read(&format!("{inventory_directory}/journal.ndjson")).await?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let chunks = lines.filter_map(|line| serde_json::from_slice::<JournalChunk>(line).ok());
        Ok(chunks.map(|chunk| (chunk.hash, chunk.text)).collect())
    }

    /// Reads files; missing ones are left out.
    async fn read_all<T: Send>(
        &self,
        paths: Vec<String>,
        convert: impl Fn(Bytes) -> T + Sync,
    ) -> Result<BTreeMap<String, T>, SinkError> {
        let convert = &convert;
        let read = |path: String| async move {
            let bytes = self.blobs.read(&path).await?;
            Ok::<_, SinkError>(bytes.map(|bytes| (path, convert(bytes))))
        };
        let found: Vec<Option<(String, T)>> = stream::iter(paths.into_iter().map(read))
            .buffer_unordered(CONCURRENT_FILES)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Leaves out files that already have the right bytes. Returns also the existing files that are not ours, each
    /// with whether it may be replaced.
    async fn only_changes(
        &self,
        held: Option<&Manifest>,
        adoption: Option<&Adoption<'_>>,
        writes: Vec<(String, Bytes)>,
    ) -> Result<(Vec<(String, Bytes)>, Vec<(String, bool)>), SinkError> {
        let paths = writes.iter().map(|(path, _)| path.clone()).collect();
        let existing = self.read_all(paths, |bytes| (BlobHash::of(&bytes), bytes.len())).await?;
        let own_paths = held.map(Manifest::paths).unwrap_or_default();
        let mut foreign = Vec::new();
        let mut changes = Vec::new();
        for (path, bytes) in writes {
            let found = existing.get(&path);
            let same = found.is_some_and(|(hash, _)| *hash == BlobHash::of(&bytes));
            if let Some((_, size)) = found.filter(|_| !own_paths.contains(&*path)) {
                let adoption = adoption.filter(|_| !same && *size <= adopt::MAX_BYTES);
                let adopted = match adoption.filter(|_| !self.blobs.has_other_records(&path)) {
                    Some(adoption) => {
                        let found = self.blobs.read(&path).await?;
                        found.is_some_and(|found| adoption.may_replace(&path, &found, &bytes))
                    }
                    None => false,
                };
                foreign.push((path.clone(), same || adopted));
            }
            if !same {
                changes.push((path, bytes));
            }
        }
        Ok((changes, foreign))
    }

    /// Which of these paths of an inventory other manifests name. Reads only manifests that have changed since the
    /// last search.
    async fn find_owners(
        &self,
        owners: &mut PathOwners,
        inventory_directory: &str,
        paths: impl IntoIterator<Item = &str>,
    ) -> Result<OwnersByPath, SinkError> {
        let listed = self.blobs.list_versions(paths::KOLLECT_DIRECTORY).await?;
        let listed = listed
            .into_iter()
            .filter_map(|(path, version)| Some((path.strip_suffix(MANIFEST)?.to_owned(), version)));
        let mut search = OwnerSearch::new(paths);
        for unread in
            search.use_remembered(owners, inventory_directory, listed.collect()).chunks(CONCURRENT_FILES)
        {
            let read = async |directory: &str| {
                let bytes = self.blobs.read(&format!("{directory}{MANIFEST}")).await?;
                Ok::<_, SinkError>(bytes.map(|bytes| {
                    let (header, lines) = Manifest::split(&bytes);
                    search.scan(directory, header, [lines])
                }))
            };
            let scanned = future::try_join_all(unread.iter().map(|(directory, _)| read(directory))).await?;
            for (listed, scanned) in unread.iter().zip(scanned) {
                if let Some(scanned) = scanned {
                    search.add(owners, listed.clone(), scanned);
                }
            }
        }
        Ok(search.found())
    }

    /// Records whether other manifests name paths of an inventory as well.
    async fn find_contested(&self, inventory_directory: &str, manifest: &Manifest) -> Result<(), SinkError> {
        let mut owners = self.write_lock.lock().await;
        let found = self.find_owners(&mut owners, inventory_directory, manifest.paths()).await?;
        owners.set_contested(inventory_directory, !found.is_empty());
        Ok(())
    }

    /// If a comparison has found that other manifests name paths of an inventory: decides who owns each path, and
    /// gives up those that belong to others.
    async fn settle_contested_paths(
        &self,
        owners: &mut PathOwners,
        inventory_directory: &str,
        batch: &Batch<'_>,
        held: &mut Option<Manifest>,
    ) -> Result<SettledPaths, SinkError> {
        let Some(manifest) = held.as_mut().filter(|_| owners.is_contested(inventory_directory)) else {
            return Ok(SettledPaths::default());
        };
        let found = self.find_owners(owners, inventory_directory, manifest.paths()).await?;
        owners.set_contested(inventory_directory, !found.is_empty());
        let files = self.read_all(found.keys().cloned().collect(), |bytes| BlobHash::of(&bytes)).await?;
        let settled = SettledPaths::new(manifest, inventory_directory, found, &files);
        if !settled.lost.is_empty() {
            manifest.give_up(&settled.lost);
            self.check_claim(inventory_directory, batch.inventory, batch.claim).await?;
            self.write_manifest(owners, inventory_directory, manifest).await?;
        }
        Ok(settled)
    }

    /// Computes a write that avoids the files of others. Returns also whether there was a journal.
    async fn draft_write(
        &self,
        owners: &mut PathOwners,
        inventory_directory: &str,
        batch: &Batch<'_>,
        held: Option<&Manifest>,
        settled: &SettledPaths,
    ) -> Result<(FileChanges, bool), SinkError> {
        let now = jiff::Timestamp::now().to_string();
        let journal = self.journal(inventory_directory).await?;
        let has_journal = !journal.is_empty();
        let mut foreign = ForeignPaths::of(&settled.lost);
        loop {
            let draft = WriteDraft::new(&self.settings, batch, held, &foreign);
            let reads = draft.reads().into_iter().map(ToOwned::to_owned).collect();
            let files = self.read_all(reads, |bytes| bytes).await?;
            let mut change = draft.change(&files, journal.clone(), &now);
            let destination = self.blobs.describe();
            let new = foreign.not_looked_up(&change.new_paths);
            if !new.is_empty() {
                let found = self.find_owners(owners, inventory_directory, new).await?;
                if !found.is_empty() {
                    change.note_owned(held, &destination, found, &mut foreign)?;
                    continue;
                }
            }
            let writes = std::mem::take(&mut change.writes);
            let adoption = Adoption::new(batch.inventory, held.is_none(), &change.manifest);
            let adoption = Some(&adoption).filter(|_| !owners.has_damaged(inventory_directory));
            let (changes, found) = self.only_changes(held, adoption, writes).await?;
            change.writes = changes;
            let found = foreign.unknown_of(found);
            if found.is_empty() {
                change.deletes.retain(|path| !settled.shared.contains_key(path));
                return Ok((change, has_journal));
            }
            change.note_files(held, &destination, found, &mut foreign)?;
        }
    }

    async fn check_claim(
        &self,
        inventory_directory: &str,
        inventory: &InventoryId,
        granted: &Claim,
    ) -> Result<(), SinkError> {
        let held = claims::held(&self.blobs, inventory_directory).await?;
        Claim::admits(held.as_ref(), inventory, granted)
    }

    async fn delete_all(&self, paths: Vec<String>) -> Result<(), SinkError> {
        for paths in paths.chunks(CONCURRENT_FILES) {
            all(paths.iter().map(|path| self.blobs.delete(path))).await?;
        }
        Ok(())
    }

    async fn apply(
        &self,
        owners: &mut PathOwners,
        inventory_directory: &str,
        held: Option<&Manifest>,
        change: FileChanges,
        has_journal: bool,
    ) -> Result<(), SinkError> {
        let journal = format!("{inventory_directory}/journal.ndjson");
        if !change.journal.is_empty() {
            let mut bytes = Vec::new();
            for (hash, text) in &change.journal {
                let chunk = JournalChunk { hash: *hash, text: text.clone() };
                serde_json::to_writer(&mut bytes, &chunk).expect("a chunk is always JSON");
                bytes.push(b'\n');
            }
            self.blobs.write(&journal, bytes.into()).await?;
        }
        if let Some(intent) = &change.intent {
            self.write_manifest(owners, inventory_directory, intent).await?;
        }
        for writes in change.writes.chunks(CONCURRENT_FILES) {
            all(writes.iter().map(|(path, bytes)| self.blobs.write(path, bytes.clone()))).await?;
        }
        self.delete_all(change.deletes).await?;
        if held != Some(&change.manifest) {
            self.write_manifest(owners, inventory_directory, &change.manifest).await?;
        }
        if has_journal || !change.journal.is_empty() {
            self.blobs.delete(&journal).await?;
        }
        Ok(())
    }
}

/// Waits for all operations, also if one fails: no operation may still be running when a write has ended.
async fn all<T>(
    operations: impl Iterator<Item = impl Future<Output = Result<T, SinkError>>>,
) -> Result<(), SinkError> {
    future::join_all(operations).await.into_iter().try_for_each(|ended| ended.map(drop))
}

#[async_trait]
impl<B: Blobs> Sink for FileSink<B> {
    /// A document is one file. If it has several parts, each part is replaced separately.
    fn atomicity(&self) -> Atomicity {
        if self.settings.is_document() { Atomicity::WholeDelta } else { Atomicity::SingleRows }
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.blobs.check().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let inventory_directory = paths::inventory_directory(inventory);
        let found = self.manifest(&inventory_directory).await?;
        self.known().insert(inventory_directory.clone(), found.as_ref().map(|(_, hash)| *hash));
        let Some((manifest, _)) = found else { return Ok(Baseline::new()) };
        self.find_contested(&inventory_directory, &manifest).await?;
        let shape = manifest.header.shape;
        let files = manifest.paths().into_iter().map(ToOwned::to_owned).collect();
        let files_read = self.read_all(files, |bytes| ReadFile::new(shape, &bytes)).await?;
        Ok(baseline::baseline(&manifest, &self.settings, &files_read))
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        claims::claim(&self.blobs, &paths::inventory_directory(inventory), inventory, claimant).await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let read = |inventory: &InventoryId| {
            let inventory_directory = paths::inventory_directory(inventory);
            async move { claims::held(&self.blobs, &inventory_directory).await }
        };
        stream::iter(inventories.iter().map(read)).buffered(CONCURRENT_FILES).try_collect().await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let inventory_directory = paths::inventory_directory(batch.inventory);
        let mut owners = self.write_lock.lock().await;
        self.check_claim(&inventory_directory, batch.inventory, batch.claim).await?;
        let found = self.manifest(&inventory_directory).await?;
        let hash = found.as_ref().map(|(_, hash)| *hash);
        // Removed first: after a failure the stored state is unknown.
        if self.known().remove(&inventory_directory).is_some_and(|known| known != hash) {
            let attempt =
                format!("write inventory {}: its manifest was changed by another writer", batch.inventory);
            return Err(SinkError::new(SinkReason::ClaimLost, attempt));
        }
        let mut held = found.map(|(manifest, _)| manifest);
        let settled =
            self.settle_contested_paths(&mut owners, &inventory_directory, batch, &mut held).await?;
        let (mut change, has_journal) =
            self.draft_write(&mut owners, &inventory_directory, batch, held.as_ref(), &settled).await?;
        // Another writer may have claimed the inventory while this one was reading.
        self.check_claim(&inventory_directory, batch.inventory, batch.claim).await?;
        let checksum = Some(change.checksum.clone());
        let refused = std::mem::take(&mut change.refused);
        let warnings = std::mem::take(&mut change.warnings);
        self.apply(&mut owners, &inventory_directory, held.as_ref(), change, has_journal).await?;
        self.known().entry(inventory_directory).or_insert(hash);
        Ok(Receipt { checksum, refused, warnings })
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let inventory_directory = paths::inventory_directory(inventory);
        let mut owners = self.write_lock.lock().await;
        self.check_claim(&inventory_directory, inventory, claim).await?;
        self.known().remove(&inventory_directory);
        if let Some((manifest, _)) = self.manifest(&inventory_directory).await? {
            // Files that another manifest names stay.
            let others = self.find_owners(&mut owners, &inventory_directory, manifest.paths()).await?;
            let own_paths = manifest.paths().into_iter().filter(|path| !others.contains_key(*path));
            self.delete_all(own_paths.map(ToOwned::to_owned).collect()).await?;
        }
        owners.forget(&inventory_directory);
        // The claim is removed last: if this run is interrupted, the next one repeats it.
        self.blobs.delete(&format!("{inventory_directory}/journal.ndjson")).await?;
        self.blobs.delete(&format!("{inventory_directory}{MANIFEST}")).await?;
        claims::remove(&self.blobs, &inventory_directory).await
    }
}
