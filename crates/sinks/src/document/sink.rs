//! Keeps the documents of inventories in a bucket: one object for each, replaced as a whole.
//!
//! Beside each document is its record ([`Sidecar`]), below `.kollect`. A writer claims the inventory by replacing the record, and
//! writes the document before the record, both under the condition that they are as it left them. A writer that was paused since
//! another one has taken over therefore replaces neither: the new one has written both. A write that stops between document and record
//! leaves a document that is newer than its record; then the document itself is read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    row::{Row, RowDigest, RowKey},
    schema::{Schema, columns::Columns},
    sink::{Atomicity, Delivery, Sink, SinkError, SinkReason},
};
use tokio::sync::{Mutex, OnceCell, Semaphore};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{
    DocumentFormat, DocumentSettings,
    encode::{DocumentFacts, EncodedDocument, encode},
    read,
    sidecar::{Sidecar, StoredDocument},
};
use crate::{
    bucket::{Bucket, NewObject, ObjectVersion, PutCondition, PutOutcome},
    layout::paths,
};

/// How many times other writers may claim first before this one gives up.
const ATTEMPTS: usize = 8;

/// Documents are read one after the other: they are texts of tenants' servers, and memory is the operator's.
static READING: Semaphore = Semaphore::const_new(1);

/// Documents in a bucket.
pub(crate) struct DocumentSink {
    bucket: Bucket,
    settings: DocumentSettings,
    /// Whether the store was found to keep the conditions of puts; shared by all sinks of the store.
    probed: Arc<OnceCell<()>>,
    /// The inventories that were claimed with this sink.
    inventories: Mutex<HashMap<InventoryId, ClaimedInventory>>,
}

/// What is known about an inventory that is claimed.
struct ClaimedInventory {
    sidecar: Sidecar,
    /// State of the record.
    version: ObjectVersion,
    /// State of the document when it was last looked at; `None`: there is none, or it was not looked at.
    document: Option<ObjectVersion>,
    /// Whether the document was looked at.
    is_read: bool,
    /// What the document holds, if that is not what the record says.
    other_rows: Option<Baseline>,
    /// The document is written with the next write, also if no row differs.
    is_stale: bool,
}

impl ClaimedInventory {
    fn new(sidecar: Sidecar, version: ObjectVersion) -> Self {
        Self { sidecar, version, document: None, is_read: false, other_rows: None, is_stale: true }
    }

    /// What the document holds.
    fn rows(&self) -> &Baseline {
        self.other_rows.as_ref().unwrap_or(&self.sidecar.rows)
    }
}

impl DocumentSink {
    pub(crate) fn new(bucket: Bucket, settings: DocumentSettings, probed: Arc<OnceCell<()>>) -> Self {
        Self { bucket, settings, probed, inventories: Mutex::default() }
    }

    /// Where the record of an inventory is: another one for each template.
    fn sidecar_path(&self, inventory: &InventoryId) -> String {
        let template = xxh3_64(self.settings.template().as_bytes());
        format!("{}/document-{template:016x}", paths::inventory_directory(inventory))
    }

    /// Marks the objects of an inventory.
    fn owner(&self, inventory: &InventoryId) -> String {
        format!("{:032x}", xxh3_128(self.sidecar_path(inventory).as_bytes()))
    }

    async fn probe(&self) -> Result<(), SinkError> {
        let name = format!("{}/probe-{:016x}", paths::KOLLECT_DIRECTORY, fastrand::u64(..));
        self.bucket.probe(&name).await
    }

    async fn sidecar(&self, inventory: &InventoryId) -> Result<Option<(Sidecar, ObjectVersion)>, SinkError> {
        let path = self.sidecar_path(inventory);
        let Some(found) = self.bucket.read(&path).await? else { return Ok(None) };
        let bytes = found.bytes;
        let sidecar = blocking(move || Sidecar::read(&bytes)).await?.map_err(|read::Unreadable(why)| {
            let attempt = format!(
                "read {path} in {}, which says what the document of inventory {inventory} holds: {why}; remove it and the document",
                self.bucket.described()
            );
            SinkError::new(SinkReason::Incompatible, attempt)
        })?;
        Ok(Some((sidecar, found.version)))
    }

    async fn put_sidecar(
        &self,
        inventory: &InventoryId,
        sidecar: &Sidecar,
        condition: &PutCondition,
    ) -> Result<PutOutcome, SinkError> {
        let object = NewObject {
            bytes: sidecar.to_bytes().into(),
            media_type: "application/octet-stream",
            owner: &self.owner(inventory),
            claim: sidecar.claim.as_ref().and_then(|claim| serde_json::to_string(claim).ok()),
        };
        self.bucket.put(&self.sidecar_path(inventory), object, condition).await
    }

    /// The error of a writer whose condition does not hold any more.
    async fn conflict(&self, inventory: &InventoryId, granted: &Claim) -> SinkError {
        let held = match self.sidecar(inventory).await {
            Ok(found) => found.and_then(|(sidecar, _)| sidecar.claim),
            Err(error) => return error,
        };
        Claim::admits(held.as_ref(), inventory, granted).err().unwrap_or_else(|| {
            let why = "another program has changed its document or its record";
            SinkError::new(SinkReason::ClaimLost, format!("write inventory {inventory}: {why}"))
        })
    }

    /// Looks at the document of an inventory: its state, and which rows it holds. Rows of one that cannot be read have no digest.
    async fn look(&self, inventory: &InventoryId, claimed: &mut ClaimedInventory) -> Result<(), SinkError> {
        let stored = claimed.sidecar.document.as_ref();
        // Without a record it may be one of the Go implementation.
        let path = stored.map_or_else(|| self.settings.path(inventory, 0), |stored| stored.path.clone());
        (claimed.is_read, claimed.document, claimed.other_rows) =
            (true, self.bucket.version(&path).await?, None);
        if stored.is_some_and(|stored| Some(&stored.version) == claimed.document.as_ref()) {
            return Ok(());
        }
        (claimed.is_stale, claimed.other_rows) = (true, Some(Baseline::new()));
        if claimed.document.take().is_none() {
            return Ok(());
        }
        let is_recorded = stored.is_some();
        let _permit = READING.acquire().await;
        let Some(found) = self.bucket.read(&path).await? else { return Ok(()) };
        let is_of_other = found.owner.as_ref().is_some_and(|found| *found != self.owner(inventory));
        if is_of_other || !is_recorded && !self.may_adopt(found.owner.as_deref()) {
            return Ok(());
        }
        let (settings, id, bytes) = (self.settings.clone(), inventory.clone(), found.bytes);
        let rows = match blocking(move || read::rows(&settings, &id, &bytes)).await? {
            Ok(rows) => rows.into_iter().map(|row| (row.key.clone(), row.digest)).collect(),
            // Not a document of the Go implementation: the write refuses to replace it.
            Err(_) if !is_recorded => return Ok(()),
            Err(_) => claimed.sidecar.rows.keys().map(|key| (key.clone(), RowDigest(0))).collect(),
        };
        (claimed.document, claimed.other_rows) = (Some(found.version), Some(rows));
        Ok(())
    }

    /// Whether a document that the record does not know, and that is of no other inventory, may be replaced: this inventory has marked
    /// it, or the Go implementation may have written it. What the latter has written is JSON.
    fn may_adopt(&self, owner: Option<&str>) -> bool {
        owner.is_some() || self.settings.format == DocumentFormat::Json
    }

    /// The rows of the present document that the batch does not mention: their objects cannot be seen.
    async fn carried_rows(
        &self,
        batch: &Batch<'_>,
        claimed: &ClaimedInventory,
    ) -> Result<Vec<Arc<Row>>, SinkError> {
        let removed = batch.delta.removed.iter().map(|removed| &removed.key);
        let written = batch.delta.rows().map(|row| &row.key).filter(|key| !batch.rows.contains_key(*key));
        let mentioned: BTreeSet<&RowKey> = removed.chain(written).collect();
        let is_kept = |key: &RowKey| !batch.rows.contains_key(key) && !mentioned.contains(key);
        if !claimed.rows().keys().any(is_kept) {
            return Ok(Vec::new());
        }
        let path = claimed.sidecar.document.as_ref().map(|stored| stored.path.clone());
        let path = path.unwrap_or_else(|| self.settings.path(batch.inventory, 0));
        let _permit = READING.acquire().await;
        let found = self.bucket.read(&path).await?;
        let found = found.filter(|found| Some(&found.version) == claimed.document.as_ref());
        let Some(found) = found else { return Err(self.conflict(batch.inventory, batch.claim).await) };
        let (settings, id) = (self.settings.clone(), batch.inventory.clone());
        let rows = blocking(move || read::rows(&settings, &id, &found.bytes)).await?;
        let rows = rows.map_err(|read::Unreadable(why)| {
            let attempt = format!(
                "write {path} in {}: it holds rows whose objects cannot be seen now, and it cannot be read: {why}; it stays as it is \
                 until all objects can be seen",
                self.bucket.described()
            );
            SinkError::new(SinkReason::Incompatible, attempt)
        })?;
        // By key: another program may have repeated a row.
        let kept = rows.into_iter().filter(|row| is_kept(&row.key));
        let kept: BTreeMap<RowKey, Row> = kept.map(|row| (row.key.clone(), row)).collect();
        Ok(kept.into_values().map(Arc::new).collect())
    }

    /// Puts the document. Where none is expected, one that may be adopted is replaced.
    async fn put_document(
        &self,
        batch: &Batch<'_>,
        path: &str,
        encoded: &EncodedDocument,
        claimed: &ClaimedInventory,
        expected: Option<&ObjectVersion>,
    ) -> Result<ObjectVersion, SinkError> {
        let owner = self.owner(batch.inventory);
        let put = async |condition: &PutCondition| {
            let object = NewObject {
                bytes: encoded.bytes.clone(),
                media_type: self.settings.media_type(),
                owner: &owner,
                claim: None,
            };
            self.bucket.put(path, object, condition).await
        };
        let condition =
            expected.map_or(PutCondition::IsAbsent, |version| PutCondition::IsAt(version.clone()));
        if let PutOutcome::Stored(version) = put(&condition).await? {
            return Ok(version);
        }
        if expected.is_some() {
            return Err(self.conflict(batch.inventory, batch.claim).await);
        }
        let found = self.bucket.read(path).await?;
        match found {
            // A write that did not reach the record.
            Some(found) if found.owner.as_ref() == Some(&owner) => {
                self.check_record(batch, claimed).await?;
                match put(&PutCondition::IsAt(found.version)).await? {
                    PutOutcome::Stored(version) => Ok(version),
                    PutOutcome::Conflict => Err(self.conflict(batch.inventory, batch.claim).await),
                }
            }
            Some(found) => {
                let whose = if found.owner.is_some() {
                    "of another inventory"
                } else {
                    "that Kollect has not written"
                };
                let attempt = format!(
                    "write {path} in {}: there is an object {whose}, which is never replaced; remove it, or set another spec.pathTemplate, \
                     with {{cluster}} if several clusters share the bucket",
                    self.bucket.described()
                );
                Err(SinkError::new(SinkReason::Incompatible, attempt))
            }
            None => Err(self.conflict(batch.inventory, batch.claim).await),
        }
    }

    /// Fails if another writer has replaced the record.
    async fn check_record(&self, batch: &Batch<'_>, claimed: &ClaimedInventory) -> Result<(), SinkError> {
        let version = self.bucket.version(&self.sidecar_path(batch.inventory)).await?;
        if version.as_ref() == Some(&claimed.version) {
            return Ok(());
        }
        Err(self.conflict(batch.inventory, batch.claim).await)
    }

    /// Removes documents at former paths, and forgets them.
    async fn remove_former(
        &self,
        inventory: &InventoryId,
        claimed: &mut ClaimedInventory,
        granted: &Claim,
    ) -> Result<(), SinkError> {
        if claimed.sidecar.former.is_empty() {
            return Ok(());
        }
        for path in std::mem::take(&mut claimed.sidecar.former) {
            self.remove_own(inventory, &path).await?;
        }
        let condition = PutCondition::IsAt(claimed.version.clone());
        match self.put_sidecar(inventory, &claimed.sidecar, &condition).await? {
            PutOutcome::Stored(version) => claimed.version = version,
            PutOutcome::Conflict => return Err(self.conflict(inventory, granted).await),
        }
        Ok(())
    }

    /// Removes an object with the mark of this inventory; others are not ours.
    async fn remove_own(&self, inventory: &InventoryId, path: &str) -> Result<(), SinkError> {
        let found = self.bucket.head(path).await?;
        if found.is_some_and(|found| found.owner == Some(self.owner(inventory))) {
            self.bucket.delete(path).await?;
        }
        Ok(())
    }

    async fn write_claimed(
        &self,
        batch: &Batch<'_>,
        claimed: &mut ClaimedInventory,
    ) -> Result<Receipt, SinkError> {
        if !claimed.is_read {
            self.look(batch.inventory, claimed).await?;
        }
        let path = self.settings.path(batch.inventory, batch.generation);
        let fingerprint = self.settings.fingerprint();
        let stored = claimed.sidecar.document.clone();
        let schema = merged(batch, claimed);
        let only = self.settings.hot_attributes.as_deref();
        let columns =
            if self.settings.has_columns() { Columns::of(&schema, only) } else { Columns::default() };
        let moved = stored.as_ref().is_some_and(|stored| stored.path != path);
        let has_same_columns = !self.settings.has_columns()
            || Columns::of(&claimed.sidecar.schema, only).columns == columns.columns;
        let is_current = stored.as_ref().is_some_and(|stored| {
            stored.epoch == batch.claim.epoch && stored.fingerprint == fingerprint && !moved
        });
        if batch.delta.is_empty() && is_current && !claimed.is_stale && has_same_columns {
            let checksum = stored.map(|stored| stored.checksum);
            return Ok(Receipt { checksum, warnings: columns.warnings, ..Receipt::default() });
        }
        let carried = self.carried_rows(batch, claimed).await?;
        let added = batch.delta.rows().filter(|row| !batch.rows.contains_key(&row.key));
        let rows: Vec<Arc<Row>> = batch.rows.values().chain(added).cloned().chain(carried).collect();
        let held = rows.iter().map(|row| (row.key.clone(), row.digest)).collect();
        let (mut warnings, encoded) = self.encoded(batch, rows, columns).await?;
        let expected = claimed.document.as_ref().filter(|_| !moved);
        // Nothing else keeps a writer from creating a document that it may not replace.
        if expected.is_none() {
            self.check_record(batch, claimed).await?;
        }
        let version = self.put_document(batch, &path, &encoded, claimed, expected).await?;
        (claimed.document, claimed.other_rows) = (Some(version.clone()), None);
        let sidecar = &mut claimed.sidecar;
        sidecar.former.extend(stored.filter(|_| moved).map(|stored| stored.path));
        sidecar.former.retain(|former| *former != path);
        sidecar.document = Some(StoredDocument {
            path,
            version,
            epoch: batch.claim.epoch,
            fingerprint,
            checksum: encoded.checksum.clone(),
        });
        (sidecar.schema, sidecar.rows) = (schema, held);
        let condition = PutCondition::IsAt(claimed.version.clone());
        match self.put_sidecar(batch.inventory, &claimed.sidecar, &condition).await? {
            PutOutcome::Stored(version) => claimed.version = version,
            PutOutcome::Conflict => return Err(self.conflict(batch.inventory, batch.claim).await),
        }
        claimed.is_stale = false;
        self.remove_former(batch.inventory, claimed, batch.claim).await?;
        warnings.extend(self.remove_generations(batch, claimed, &encoded.bytes).await);
        Ok(Receipt { checksum: Some(encoded.checksum), warnings, ..Receipt::default() })
    }

    /// Removes the Parquet files of the Go implementation beside a document with all rows that can be read back: it kept one for each
    /// generation of the inventory, and readers count the rows of all of them. Once, and the next write records it. Returns a message.
    async fn remove_generations(
        &self,
        batch: &Batch<'_>,
        claimed: &mut ClaimedInventory,
        written: &Bytes,
    ) -> Option<String> {
        let is_wanted = self.settings.format == DocumentFormat::Parquet && !self.settings.keeps_generations;
        if !is_wanted || claimed.sidecar.generations_removed || batch.coverage != "complete" {
            return None;
        }
        let directory = DocumentSettings::generations_directory(batch.inventory);
        let removed = match self.remove_generations_of(batch, &directory, written).await {
            Ok(removed) => removed,
            Err(error) => {
                return Some(format!(
                    "files {directory}/generation=*.parquet may be there, and stay: {error}"
                ));
            }
        };
        claimed.sidecar.generations_removed = true;
        (removed > 0).then(|| {
            format!("removed {removed} files {directory}/generation=*.parquet of the Go implementation: the document has their rows")
        })
    }

    /// Returns how many files were removed.
    async fn remove_generations_of(
        &self,
        batch: &Batch<'_>,
        directory: &str,
        written: &Bytes,
    ) -> Result<usize, SinkError> {
        let is_generation = |path: &String| {
            let name = path.strip_prefix(directory).and_then(|name| name.strip_prefix("/generation="));
            let number = name.and_then(|name| name.strip_suffix(".parquet"));
            number
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let found: Vec<String> =
            self.bucket.list(directory).await?.into_iter().filter(is_generation).collect();
        if found.is_empty() {
            return Ok(0);
        }
        let path = self.settings.path(batch.inventory, batch.generation);
        if self.bucket.read(&path).await?.is_none_or(|read| read.bytes != *written) {
            let why = format!("{path} cannot be read back as it was written");
            return Err(SinkError::new(SinkReason::WriteFailed, why));
        }
        for path in &found {
            self.bucket.delete(path).await?;
        }
        Ok(found.len())
    }

    /// The document, and warnings about its columns.
    async fn encoded(
        &self,
        batch: &Batch<'_>,
        rows: Vec<Arc<Row>>,
        columns: Columns,
    ) -> Result<(Vec<String>, EncodedDocument), SinkError> {
        let (settings, inventory) = (self.settings.clone(), batch.inventory.clone());
        let coverage = batch.coverage.to_owned();
        let (generation, revision, epoch) = (batch.generation, batch.revision, batch.claim.epoch);
        blocking(move || {
            let facts = DocumentFacts {
                exported_at: Timestamp::now(),
                generation,
                revision,
                epoch,
                coverage: &coverage,
            };
            let rows = rows.iter().map(|row| &**row).collect();
            let encoded = encode(&settings, &inventory, rows, &columns, &facts)?;
            Ok((columns.warnings, encoded))
        })
        .await?
    }
}

/// Runs work that takes long on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, SinkError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| SinkError::because(SinkReason::WriteFailed, "make or read a document", error))
}

/// The schema of a batch, with what is known of targets that keep rows and declare nothing now.
fn merged(batch: &Batch<'_>, claimed: &ClaimedInventory) -> Schema {
    let mut schema = batch.schema.clone();
    let known = claimed.sidecar.schema.targets.iter();
    let missing: BTreeMap<_, _> = known.filter(|(target, _)| !schema.targets.contains_key(*target)).collect();
    if missing.is_empty() {
        return schema;
    }
    let removed: BTreeSet<&RowKey> = batch.delta.removed.iter().map(|removed| &removed.key).collect();
    let kept = claimed.rows().keys().filter(|key| !removed.contains(key));
    let with_rows: BTreeSet<_> = batch.rows.keys().chain(kept).map(|key| &key.target).collect();
    let missing = missing.into_iter().filter(|(target, _)| with_rows.contains(target));
    schema.targets.extend(missing.map(|(target, declared)| (target.clone(), declared.clone())));
    schema
}

#[async_trait]
impl Sink for DocumentSink {
    fn delivery(&self) -> Delivery {
        Delivery::Documents
    }

    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    fn claim_check_interval(&self) -> Duration {
        Duration::from_mins(5)
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.probe().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let mut inventories = self.inventories.lock().await;
        let version = self.bucket.version(&self.sidecar_path(inventory)).await?;
        if let Some(claimed) = inventories.get_mut(inventory)
            && version.as_ref() == Some(&claimed.version)
        {
            self.look(inventory, claimed).await?;
            return Ok(claimed.rows().clone());
        }
        // Another writer has claimed it: what this one knows is of no use any more.
        inventories.remove(inventory);
        drop(inventories);
        let (sidecar, version) = self.sidecar(inventory).await?.unzip();
        let sidecar = sidecar.unwrap_or_else(|| Sidecar::of(inventory));
        let mut found = ClaimedInventory::new(sidecar, version.unwrap_or_default());
        self.look(inventory, &mut found).await?;
        Ok(found.other_rows.unwrap_or(found.sidecar.rows))
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.probed.get_or_try_init(|| self.probe()).await?;
        for _ in 0..ATTEMPTS {
            let (mut sidecar, condition) = match self.sidecar(inventory).await? {
                Some((sidecar, version)) => (sidecar, PutCondition::IsAt(version)),
                None => (Sidecar::of(inventory), PutCondition::IsAbsent),
            };
            let granted = claimant.take(inventory, sidecar.claim.as_ref())?;
            sidecar.claim = Some(granted.clone());
            if let PutOutcome::Stored(version) = self.put_sidecar(inventory, &sidecar, &condition).await? {
                let claimed = ClaimedInventory::new(sidecar, version);
                self.inventories.lock().await.insert(inventory.clone(), claimed);
                return Ok(granted);
            }
        }
        let why = "other writers claimed it first, again and again";
        Err(SinkError::new(SinkReason::Busy, format!("claim inventory {inventory}: {why}")))
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let mut claims = Vec::with_capacity(inventories.len());
        for inventory in inventories {
            let known = self.inventories.lock().await;
            let known =
                known.get(inventory).map(|claimed| (claimed.version.clone(), claimed.sidecar.claim.clone()));
            let found = self.bucket.head(&self.sidecar_path(inventory)).await?;
            let held = match (found, known) {
                (None, _) => None,
                (Some(found), Some((version, claim))) if found.version == version => claim,
                (Some(found), known) => {
                    let held = match found.claim.as_deref().map(serde_json::from_str::<Claim>) {
                        Some(Ok(held)) => Some(held),
                        _ => self.sidecar(inventory).await?.and_then(|(sidecar, _)| sidecar.claim),
                    };
                    // The claim that was granted, in a record that another program has changed: it must be read again.
                    let own = known.and_then(|(_, claim)| claim);
                    held.filter(|held| !own.is_some_and(|own| own.is_same_writer(held)))
                }
            };
            claims.push(held);
        }
        Ok(claims)
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        // After an error the inventory is not known any more: it must be claimed and compared again.
        let claimed = self.inventories.lock().await.remove(batch.inventory);
        let is_granted = |claimed: &ClaimedInventory| {
            claimed.sidecar.claim.as_ref().is_some_and(|held| held.is_same_writer(batch.claim))
        };
        let Some(mut claimed) = claimed.filter(is_granted) else {
            return Err(self.conflict(batch.inventory, batch.claim).await);
        };
        let receipt = self.write_claimed(batch, &mut claimed).await?;
        self.inventories.lock().await.insert(batch.inventory.clone(), claimed);
        Ok(receipt)
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.inventories.lock().await.remove(inventory);
        let Some((mut sidecar, version)) = self.sidecar(inventory).await? else { return Ok(()) };
        Claim::admits(sidecar.claim.as_ref(), inventory, claim)?;
        // Replaced first, so that a writer that has claimed it since keeps its document.
        sidecar.former.extend(sidecar.document.take().map(|stored| stored.path));
        sidecar.rows.clear();
        let PutOutcome::Stored(_) =
            self.put_sidecar(inventory, &sidecar, &PutCondition::IsAt(version)).await?
        else {
            return Err(self.conflict(inventory, claim).await);
        };
        for path in &sidecar.former {
            self.remove_own(inventory, path).await?;
        }
        self.bucket.delete(&self.sidecar_path(inventory)).await
    }
}

#[cfg(test)]
mod tests;
