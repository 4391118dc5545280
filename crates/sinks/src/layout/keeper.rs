//! Keeps inventories as files of a store, whatever store it is.
//!
//! At any moment the manifest names every file that is ours, so a write that was cut off is continued and
//! nothing of others is ever removed. What we stopped in the middle of is repaired by the next write.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future, stream};
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant, Holder},
    sink::{Sink, SinkError, SinkReason},
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
        Self { blobs, settings, writing }
    }

    async fn manifest(&self, books: &str) -> Result<Option<Manifest>, SinkError> {
        let path = format!("{books}/manifest.ndjson");
        let Some(bytes) = self.blobs.read(&path).await? else { return Ok(None) };
        Manifest::read(&bytes).map(Some).map_err(|error| {
            let attempt =
                format!("read {path} in {}, which says which files are ours", self.blobs.describe());
            SinkError::because(SinkReason::Incompatible, attempt, unreadable(&error))
        })
    }

    async fn note(&self, books: &str, manifest: &Manifest) -> Result<(), SinkError> {
        let bytes = manifest.to_bytes().expect("a manifest is always JSON");
        self.blobs.write(&format!("{books}/manifest.ndjson"), bytes.into()).await
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

    async fn admitted(&self, books: &str, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let held = claims::holder(&self.blobs, books).await?;
        Holder::admits(held.as_ref(), inventory, claim)
    }

    async fn delete_all(&self, paths: Vec<String>) -> Result<(), SinkError> {
        for paths in paths.chunks(AT_ONCE) {
            all(paths.iter().map(|path| self.blobs.delete(path))).await?;
        }
        Ok(())
    }

    async fn apply(
        &self,
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
            self.note(books, intent).await?;
        }
        for writes in change.writes.chunks(AT_ONCE) {
            all(writes.iter().map(|(path, bytes)| self.blobs.write(path, bytes.clone()))).await?;
        }
        self.delete_all(change.deletes).await?;
        if held != Some(&change.manifest) {
            self.note(books, &change.manifest).await?;
        }
        if noted || !change.journal.is_empty() {
            self.blobs.delete(&journal).await?;
        }
        Ok(())
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
    async fn check(&self) -> Result<(), SinkError> {
        self.blobs.check().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let Some(manifest) = self.manifest(&paths::books(inventory)).await? else {
            return Ok(Baseline::new());
        };
        let shape = manifest.header.shape;
        let files = manifest.paths().into_iter().map(ToOwned::to_owned).collect();
        let seen = self.read_all(files, |bytes| Seen::new(shape, &bytes)).await?;
        Ok(baseline::baseline(&manifest, &self.settings, &seen))
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        claims::claim(&self.blobs, &paths::books(inventory), inventory, claimant).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let books = paths::books(batch.inventory);
        let _one = self.writing.lock().await;
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let held = self.manifest(&books).await?;
        let (mut change, noted) = self.draw(&books, batch, held.as_ref()).await?;
        // Others may have claimed the inventory while we were reading.
        self.admitted(&books, batch.inventory, batch.claim).await?;
        let checksum = Some(change.checksum.clone());
        let refused = std::mem::take(&mut change.refused);
        let warnings = std::mem::take(&mut change.warnings);
        self.apply(&books, held.as_ref(), change, noted).await?;
        Ok(Receipt { checksum, refused, warnings })
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let books = paths::books(inventory);
        let _one = self.writing.lock().await;
        self.admitted(&books, inventory, claim).await?;
        if let Some(manifest) = self.manifest(&books).await? {
            self.delete_all(manifest.paths().into_iter().map(ToOwned::to_owned).collect()).await?;
        }
        // The right to do all this goes last: a run that was cut off is repeated.
        self.blobs.delete(&format!("{books}/journal.ndjson")).await?;
        self.blobs.delete(&format!("{books}/manifest.ndjson")).await?;
        claims::forget(&self.blobs, &books).await
    }
}
