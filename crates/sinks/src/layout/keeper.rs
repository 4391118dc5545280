//! Keeps inventories as files of a store, whatever store it is.
//!
//! At any moment the manifest names every file that is ours, so a write that was cut off is continued and
//! nothing of others is ever removed. What we stopped in the middle of is repaired by the next write.

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
    foreign::{self, Foreign},
    manifest::{Hash, Manifest, unreadable},
    paths,
};

/// How many files are read or written at once.
const AT_ONCE: usize = 4;

/// Inventories as files of a store.
pub struct Keeper<B> {
    blobs: B,
    settings: Settings,
    /// Held from looking whose files are there until the manifest says that they are ours. Without it two
    /// inventories that want one path would both find it free.
    writing: Arc<Mutex<()>>,
    /// The manifests of inventories when they were last read or written; `None`: there was none. Another one means that
    /// the files are not as this keeper left them.
    known: std::sync::Mutex<HashMap<InventoryId, Option<Hash>>>,
}

/// A chunk in the journal.
#[derive(Serialize, Deserialize)]
struct Noted {
    hash: Hash,
    text: String,
}

impl<B: Blobs> Keeper<B> {
    /// Keeps files in this store in this way. All keepers of one store must be given the same lock.
    pub fn new(blobs: B, settings: Settings, writing: Arc<Mutex<()>>) -> Self {
        Self { blobs, settings, writing, known: std::sync::Mutex::default() }
    }

    /// The manifest of an inventory, and the hash of its bytes.
    async fn manifest(&self, books: &str) -> Result<Option<(Manifest, Hash)>, SinkError> {
        let path = format!("{books}/manifest.ndjson");
        let Some(bytes) = self.blobs.read(&path).await? else { return Ok(None) };
        let manifest = Manifest::read(&bytes).map_err(|error| {
            let attempt =
                format!("read {path} in {}, which says which files are ours", self.blobs.describe());
            SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
        })?;
        Ok(Some((manifest, Hash::of(&bytes))))
    }

    /// Writes the manifest of an inventory. Answers the hash of its bytes.
    async fn note(&self, books: &str, manifest: &Manifest) -> Result<Hash, SinkError> {
        let bytes = manifest.to_bytes().expect("a manifest is always JSON");
        let hash = Hash::of(&bytes);
        self.blobs.write(&format!("{books}/manifest.ndjson"), bytes.into()).await?;
        Ok(hash)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<InventoryId, Option<Hash>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn journal(&self, books: &str) -> Result<BTreeMap<Hash, String>, SinkError> {
        let bytes = self.blobs.read(&format!("{books}/journal.ndjson")).await?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let noted = lines.filter_map(|line| serde_json::from_slice::<Noted>(line).ok());
        Ok(noted.map(|noted| (noted.hash, noted.text)).collect())
    }

    /// Reads files; those that are not there are left out.
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

    /// Leaves out what is as it should be already. Answers also the files that are there and not ours, each
    /// with whether it holds just what we would write.
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

    /// The manifests of other inventories.
    async fn others(&self, books: &str) -> Result<Vec<Manifest>, SinkError> {
        let manifests: Vec<String> = self
            .blobs
            .list(paths::BOOKS)
            .await?
            .into_iter()
            .filter(|path| path.ends_with("/manifest.ndjson") && !path.starts_with(books))
            .collect();
        let others = self.read_all(manifests, |bytes| Manifest::read(&bytes)).await?;
        Ok(others.into_values().flatten().collect())
    }

    /// Draws a write up, around the files of others. Answers also whether there was a journal.
    async fn draw(
        &self,
        books: &str,
        batch: &Batch<'_>,
        held: Option<&Manifest>,
    ) -> Result<(Change, bool), SinkError> {
        let now = jiff::Timestamp::now().to_string();
        let journal = self.journal(books).await?;
        let noted = !journal.is_empty();
        let mut foreign = Foreign::default();
        loop {
            let draft = Draft::new(&self.settings, batch, held, &foreign);
            let reads = draft.reads().into_iter().map(ToOwned::to_owned).collect();
            let files = self.read_all(reads, |bytes| bytes).await?;
            let mut change = draft.change(&files, journal.clone(), &now);
            let (changes, found) = self.only_changes(held, std::mem::take(&mut change.writes)).await?;
            change.writes = changes;
            let found = foreign.unknown_of(found);
            if found.is_empty() {
                return Ok((change, noted));
            }
            let others = self.others(books).await?;
            let (of_rows, of_all) = change.sort_foreign(held, found);
            foreign::refuse(&self.blobs.describe(), &of_all, &others)?;
            foreign.add(&of_rows, &others);
            foreign.add(&of_all, &[]);
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

    /// Makes a change. Answers the hash of the manifest, if it was written.
    async fn apply(
        &self,
        books: &str,
        held: Option<&Manifest>,
        change: Change,
        noted: bool,
    ) -> Result<Option<Hash>, SinkError> {
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
            self.note(books, intent).await?;
        }
        for writes in change.writes.chunks(AT_ONCE) {
            all(writes.iter().map(|(path, bytes)| self.blobs.write(path, bytes.clone()))).await?;
        }
        self.delete_all(change.deletes).await?;
        let mut hash = None;
        if held != Some(&change.manifest) {
            hash = Some(self.note(books, &change.manifest).await?);
        }
        if noted || !change.journal.is_empty() {
            self.blobs.delete(&journal).await?;
        }
        Ok(hash)
    }
}

/// Waits for all, also if one fails: nothing may still be under way when a write has ended.
async fn all(
    operations: impl Iterator<Item = impl Future<Output = Result<(), SinkError>>>,
) -> Result<(), SinkError> {
    future::join_all(operations).await.into_iter().collect()
}

#[async_trait]
impl<B: Blobs> Sink for Keeper<B> {
    /// A document is one file, unless it has several parts: then each part is replaced by itself.
    fn atomicity(&self) -> Atomicity {
        if self.settings.is_document() { Atomicity::WholeDelta } else { Atomicity::SingleRows }
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.blobs.check().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let found = self.manifest(&paths::books(inventory)).await?;
        self.known().insert(inventory.clone(), found.as_ref().map(|(_, hash)| *hash));
        let Some((manifest, _)) = found else { return Ok(Baseline::new()) };
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
        let _one = self.writing.lock().await;
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let found = self.manifest(&books).await?;
        let hash = found.as_ref().map(|(_, hash)| *hash);
        // After a failure nothing is known.
        if self.known().remove(batch.inventory).is_some_and(|known| known != hash) {
            let attempt = format!("write inventory {}: its files are not as they were left", batch.inventory);
            return Err(SinkError::new(SinkReason::ClaimLost, attempt));
        }
        let held = found.map(|(manifest, _)| manifest);
        let (mut change, noted) = self.draw(&books, batch, held.as_ref()).await?;
        // Others may have claimed the inventory while we were reading.
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let checksum = Some(change.checksum.clone());
        let refused = std::mem::take(&mut change.refused);
        let warnings = std::mem::take(&mut change.warnings);
        let written = self.apply(&books, held.as_ref(), change, noted).await?;
        self.known().insert(batch.inventory.clone(), written.or(hash));
        Ok(Receipt { checksum, refused, warnings })
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let books = paths::books(inventory);
        let _one = self.writing.lock().await;
        self.admitted(&books, inventory, claim).await?;
        self.known().remove(inventory);
        if let Some((manifest, _)) = self.manifest(&books).await? {
            self.delete_all(manifest.paths().into_iter().map(ToOwned::to_owned).collect()).await?;
        }
        // The right to do all this goes last: a run that was cut off is repeated.
        self.blobs.delete(&format!("{books}/journal.ndjson")).await?;
        self.blobs.delete(&format!("{books}/manifest.ndjson")).await?;
        claims::forget(&self.blobs, &books).await
    }
}
