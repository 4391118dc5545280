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
    Settings,
    baseline::{self, Seen},
    blobs::Blobs,
    claims,
    draft::{Change, Draft},
    foreign::Foreign,
    manifest::{Hash, Manifest, unreadable},
    path_owners::{Owners, PathOwners, Search, Settled},
    paths,
};

/// How many files are read or written at once.
const AT_ONCE: usize = 4;

/// The file of a manifest, in the directory of its inventory.
const MANIFEST: &str = "/manifest.ndjson";

/// Inventories as files of a store.
pub struct Keeper<B> {
    blobs: B,
    settings: Settings,
    /// Held from the check of path owners until the manifest is written. Without it two inventories that need one
    /// path would both find it free. It guards the remembered paths of all manifests.
    writing: Arc<Mutex<PathOwners>>,
    /// Hashes of the manifests when this keeper last read or wrote them; `None`: there was none. A different hash means
    /// that another writer has changed the files.
    known: std::sync::Mutex<HashMap<String, Option<Hash>>>,
}

/// A chunk in the journal.
#[derive(Serialize, Deserialize)]
struct Noted {
    hash: Hash,
    text: String,
}

impl<B: Blobs> Keeper<B> {
    /// All keepers of one store must be given the same lock.
    pub fn new(blobs: B, settings: Settings, writing: Arc<Mutex<PathOwners>>) -> Self {
        Self { blobs, settings, writing, known: std::sync::Mutex::default() }
    }

    /// The manifest of an inventory, and the hash of its bytes.
    async fn manifest(&self, books: &str) -> Result<Option<(Manifest, Hash)>, SinkError> {
        let path = format!("{books}{MANIFEST}");
        let Some(bytes) = self.blobs.read(&path).await? else { return Ok(None) };
        let manifest = Manifest::read(&bytes).map_err(|error| {
            let attempt =
                format!("read {path} in {}, which says which files are ours", self.blobs.describe());
            SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
        })?;
        Ok(Some((manifest, Hash::of(&bytes))))
    }

    async fn note(&self, owners: &mut PathOwners, books: &str, manifest: &Manifest) -> Result<(), SinkError> {
        let bytes = manifest.to_bytes().expect("a manifest is always JSON");
        let hash = Hash::of(&bytes);
        // Removed first: after a failed write the stored state is unknown.
        owners.forget(books);
        self.known().remove(books);
        let version = self.blobs.write(&format!("{books}{MANIFEST}"), bytes.into()).await?;
        owners.remember(books, version, manifest);
        self.known().insert(books.to_owned(), Some(hash));
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Option<Hash>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn journal(&self, books: &str) -> Result<BTreeMap<Hash, String>, SinkError> {
        let bytes = self.blobs.read(&format!("{books}/journal.ndjson")).await?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let noted = lines.filter_map(|line| serde_json::from_slice::<Noted>(line).ok());
        Ok(noted.map(|noted| (noted.hash, noted.text)).collect())
    }

    /// Reads files; missing ones are left out.
    async fn read_all<T: Send>(
        &self,
        paths: Vec<String>,
        take: impl Fn(Bytes) -> T + Sync,
    ) -> Result<BTreeMap<String, T>, SinkError> {
        let take = &take;
        let read = |path: String| async move {
            let bytes = self.blobs.read(&path).await?;
            Ok::<_, SinkError>(bytes.map(|bytes| (path, take(bytes))))
        };
        let found: Vec<Option<(String, T)>> =
            stream::iter(paths.into_iter().map(read)).buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Leaves out files that already have the right bytes. Returns also the existing files that are not ours, each
    /// with whether it has the bytes that we would write.
    async fn only_changes(
        &self,
        held: Option<&Manifest>,
        writes: Vec<(String, Bytes)>,
    ) -> Result<(Vec<(String, Bytes)>, Vec<(String, bool)>), SinkError> {
        let paths = writes.iter().map(|(path, _)| path.clone()).collect();
        let existing = self.read_all(paths, |bytes| Hash::of(&bytes)).await?;
        let own = held.map(Manifest::paths).unwrap_or_default();
        let mut foreign = Vec::new();
        let mut changes = Vec::new();
        for (path, bytes) in writes {
            let same = existing.get(&path).map(|hash| *hash == Hash::of(&bytes));
            if let Some(same) = same.filter(|_| !own.contains(&*path)) {
                foreign.push((path.clone(), same));
            }
            if same != Some(true) {
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
        books: &str,
        paths: impl IntoIterator<Item = &str>,
    ) -> Result<Owners, SinkError> {
        let listed = self.blobs.list_versions(paths::BOOKS).await?;
        let listed = listed
            .into_iter()
            .filter_map(|(path, version)| Some((path.strip_suffix(MANIFEST)?.to_owned(), version)));
        let mut search = Search::new(paths);
        for unread in search.ask(owners, books, listed.collect()).chunks(AT_ONCE) {
            let read = async |books: &str| {
                let bytes = self.blobs.read(&format!("{books}{MANIFEST}")).await?;
                Ok::<_, SinkError>(bytes.map(|bytes| {
                    let (header, lines) = Manifest::split(&bytes);
                    search.scan(books, header, [lines])
                }))
            };
            let scanned = future::try_join_all(unread.iter().map(|(books, _)| read(books))).await?;
            for (listed, scanned) in unread.iter().zip(scanned) {
                if let Some(scanned) = scanned {
                    search.take(owners, listed.clone(), scanned);
                }
            }
        }
        Ok(search.found())
    }

    /// Records whether other manifests name paths of an inventory as well.
    async fn look_for_contested(&self, books: &str, manifest: &Manifest) -> Result<(), SinkError> {
        let mut owners = self.writing.lock().await;
        let found = self.find_owners(&mut owners, books, manifest.paths()).await?;
        owners.set_contested(books, !found.is_empty());
        Ok(())
    }

    /// If a comparison has found that other manifests name paths of an inventory: decides who owns each path, and
    /// gives up those that belong to others.
    async fn settle_contested(
        &self,
        owners: &mut PathOwners,
        books: &str,
        batch: &Batch<'_>,
        held: &mut Option<Manifest>,
    ) -> Result<Settled, SinkError> {
        let Some(manifest) = held.as_mut().filter(|_| owners.is_contested(books)) else {
            return Ok(Settled::default());
        };
        let found = self.find_owners(owners, books, manifest.paths()).await?;
        owners.set_contested(books, !found.is_empty());
        let files = self.read_all(found.keys().cloned().collect(), |bytes| Hash::of(&bytes)).await?;
        let settled = Settled::new(manifest, books, found, &files);
        if !settled.lost.is_empty() {
            manifest.give_up(&settled.lost);
            self.admitted(books, batch.inventory, batch.claim).await?;
            self.note(owners, books, manifest).await?;
        }
        Ok(settled)
    }

    /// Computes a write that avoids the files of others. Returns also whether there was a journal.
    async fn draw(
        &self,
        owners: &mut PathOwners,
        books: &str,
        batch: &Batch<'_>,
        held: Option<&Manifest>,
        settled: &Settled,
    ) -> Result<(Change, bool), SinkError> {
        let now = jiff::Timestamp::now().to_string();
        let journal = self.journal(books).await?;
        let noted = !journal.is_empty();
        let mut foreign = Foreign::of(&settled.lost);
        loop {
            let draft = Draft::new(&self.settings, batch, held, &foreign);
            let reads = draft.reads().into_iter().map(ToOwned::to_owned).collect();
            let files = self.read_all(reads, |bytes| bytes).await?;
            let mut change = draft.change(&files, journal.clone(), &now);
            let place = self.blobs.describe();
            let new = foreign.not_looked_up(&change.new_paths);
            if !new.is_empty() {
                let found = self.find_owners(owners, books, new).await?;
                if !found.is_empty() {
                    change.note_owned(held, &place, found, &mut foreign)?;
                    continue;
                }
            }
            let (changes, found) = self.only_changes(held, std::mem::take(&mut change.writes)).await?;
            change.writes = changes;
            let found = foreign.unknown_of(found);
            if found.is_empty() {
                change.deletes.retain(|path| !settled.shared.contains_key(path));
                return Ok((change, noted));
            }
            change.note_files(held, &place, found, &mut foreign)?;
        }
    }

    async fn admitted(&self, books: &str, inventory: &InventoryId, granted: &Claim) -> Result<(), SinkError> {
        let held = claims::held(&self.blobs, books).await?;
        Claim::admits(held.as_ref(), inventory, granted)
    }

    async fn delete_all(&self, paths: Vec<String>) -> Result<(), SinkError> {
        for paths in paths.chunks(AT_ONCE) {
            all(paths.iter().map(|path| self.blobs.delete(path))).await?;
        }
        Ok(())
    }

    async fn apply(
        &self,
        owners: &mut PathOwners,
        books: &str,
        held: Option<&Manifest>,
        change: Change,
        noted: bool,
    ) -> Result<(), SinkError> {
        let journal = format!("{books}/journal.ndjson");
        if !change.journal.is_empty() {
            let mut bytes = Vec::new();
            for (hash, text) in &change.journal {
                let noted = Noted { hash: *hash, text: text.clone() };
                serde_json::to_writer(&mut bytes, &noted).expect("a chunk is always JSON");
                bytes.push(b'\n');
            }
            self.blobs.write(&journal, bytes.into()).await?;
        }
        if let Some(intent) = &change.intent {
            self.note(owners, books, intent).await?;
        }
        for writes in change.writes.chunks(AT_ONCE) {
            all(writes.iter().map(|(path, bytes)| self.blobs.write(path, bytes.clone()))).await?;
        }
        self.delete_all(change.deletes).await?;
        if held != Some(&change.manifest) {
            self.note(owners, books, &change.manifest).await?;
        }
        if noted || !change.journal.is_empty() {
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
impl<B: Blobs> Sink for Keeper<B> {
    /// A document is one file. If it has several parts, each part is replaced separately.
    fn atomicity(&self) -> Atomicity {
        if self.settings.is_document() { Atomicity::WholeDelta } else { Atomicity::SingleRows }
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.blobs.check().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let books = paths::books(inventory);
        let found = self.manifest(&books).await?;
        self.known().insert(books.clone(), found.as_ref().map(|(_, hash)| *hash));
        let Some((manifest, _)) = found else { return Ok(Baseline::new()) };
        self.look_for_contested(&books, &manifest).await?;
        let shape = manifest.header.shape;
        let files = manifest.paths().into_iter().map(ToOwned::to_owned).collect();
        let seen = self.read_all(files, |bytes| Seen::new(shape, &bytes)).await?;
        Ok(baseline::baseline(&manifest, &self.settings, &seen))
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        claims::claim(&self.blobs, &paths::books(inventory), inventory, claimant).await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let read = |inventory: &InventoryId| {
            let books = paths::books(inventory);
            async move { claims::held(&self.blobs, &books).await }
        };
        stream::iter(inventories.iter().map(read)).buffered(AT_ONCE).try_collect().await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let books = paths::books(batch.inventory);
        let mut owners = self.writing.lock().await;
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let found = self.manifest(&books).await?;
        let hash = found.as_ref().map(|(_, hash)| *hash);
        // Removed first: after a failure the stored state is unknown.
        if self.known().remove(&books).is_some_and(|known| known != hash) {
            let attempt = format!("write inventory {}: its files are not as they were left", batch.inventory);
            return Err(SinkError::new(SinkReason::ClaimLost, attempt));
        }
        let mut held = found.map(|(manifest, _)| manifest);
        let settled = self.settle_contested(&mut owners, &books, batch, &mut held).await?;
        let (mut change, noted) = self.draw(&mut owners, &books, batch, held.as_ref(), &settled).await?;
        // Another writer may have claimed the inventory while this one was reading.
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let checksum = Some(change.checksum.clone());
        let refused = std::mem::take(&mut change.refused);
        let warnings = std::mem::take(&mut change.warnings);
        self.apply(&mut owners, &books, held.as_ref(), change, noted).await?;
        self.known().entry(books).or_insert(hash);
        Ok(Receipt { checksum, refused, warnings })
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let books = paths::books(inventory);
        let mut owners = self.writing.lock().await;
        self.admitted(&books, inventory, claim).await?;
        self.known().remove(&books);
        if let Some((manifest, _)) = self.manifest(&books).await? {
            // Files that another manifest names stay.
            let others = self.find_owners(&mut owners, &books, manifest.paths()).await?;
            let own = manifest.paths().into_iter().filter(|path| !others.contains_key(*path));
            self.delete_all(own.map(ToOwned::to_owned).collect()).await?;
        }
        owners.forget(&books);
        // The claim is removed last: if this run is interrupted, the next one repeats it.
        self.blobs.delete(&format!("{books}/journal.ndjson")).await?;
        self.blobs.delete(&format!("{books}{MANIFEST}")).await?;
        claims::forget(&self.blobs, &books).await
    }
}
