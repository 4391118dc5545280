//! `mode: snapshot`: all rows of an inventory as one event, or one for each part of the document.
//!
//! Nothing can be read back: the sink knows only the checksum of what it sent last. There are no claims either:
//! an outdated writer is not prevented from sending, and consumers must compare the times of events.

use std::{collections::HashMap, sync::Mutex};

use async_nats::{HeaderMap, header};
use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::{
    batch::{Baseline, Batch, Delta, InventoryId, Receipt, RefusedRow},
    claim::{Claim, Claimant},
    envelope::{self, Document, DocumentSettings, Item},
    row::Row,
    sink::{Atomicity, Delivery, Sink, SinkError},
};
use serde::Serialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_128;

use super::{NatsConfig, connect::Connection, failure::NatsError, message, stream::StreamProperties};
use crate::sample::TIME;

/// Bytes of an event besides its document, cluster and namespace: headers and names of fields.
const EVENT_OVERHEAD: usize = 1024;

/// Snapshots of inventories as messages.
pub(super) struct SnapshotSink {
    connection: Connection,
    stream: StreamProperties,
    subject: String,
    last: Mutex<HashMap<InventoryId, LastSnapshot>>,
}

/// What was last sent for an inventory.
#[derive(Clone, Debug)]
struct LastSnapshot {
    checksum: String,
    /// Sequence of its last message.
    sequence: u64,
}

/// The event in the format that consumers read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotEvent<'a> {
    schema_version: &'static str,
    timestamp: &'a str,
    cluster: &'a str,
    namespace: &'a str,
    payload: &'a RawValue,
}

impl SnapshotSink {
    pub(super) fn new(connection: Connection, stream: StreamProperties, config: &NatsConfig) -> Self {
        Self { connection, stream, subject: config.subject.clone(), last: Mutex::default() }
    }

    fn last(&self, inventory: &InventoryId) -> Option<LastSnapshot> {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(inventory).cloned()
    }

    fn remember(&self, inventory: &InventoryId, last: LastSnapshot) {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(inventory.clone(), last);
    }

    async fn write_all(&self, batch: &Batch<'_>) -> Result<Receipt, NatsError> {
        let inventory = batch.inventory;
        let limit = self.stream.max_message.unwrap_or(usize::MAX).min(self.connection.max_payload());
        let names = 6 * (inventory.cluster.len() + inventory.stored_namespace().len());
        let room = limit.saturating_sub(EVENT_OVERHEAD + names);
        let now = jiff::Timestamp::now().to_string();
        let settings = DocumentSettings {
            generation: batch.generation,
            cluster: &inventory.cluster,
            exported_at: &now,
            part_bytes: batch.part_bytes.min(room),
        };
        let mut refused = Vec::new();
        let row_limit = room.saturating_sub(envelope::overhead(&settings) + 1);
        let rows = batch.delta.rows().map(|row| &**row).filter(|row| match fits(row, row_limit) {
            Ok(()) => true,
            Err(refusal) => {
                refused.push(refusal);
                false
            }
        });
        let documents = envelope::documents(rows, &settings);
        let checksum = envelope::checksum(&documents);
        let last = self.last(inventory);
        let last_checksum = last.as_ref().map(|last| last.checksum.as_str()).or(batch.last_checksum);
        if last_checksum != Some(&checksum) {
            let mut sequence = 0;
            for document in &documents {
                sequence = self.send(batch, document, &checksum, last_checksum, last.as_ref(), &now).await?;
            }
            self.remember(inventory, LastSnapshot { checksum: checksum.clone(), sequence });
        }
        Ok(Receipt { checksum: Some(checksum), refused, ..Receipt::default() })
    }

    /// Sends one part and returns its sequence.
    async fn send(
        &self,
        batch: &Batch<'_>,
        document: &Document,
        checksum: &str,
        last_checksum: Option<&str>,
        last: Option<&LastSnapshot>,
        now: &str,
    ) -> Result<u64, NatsError> {
        let inventory = batch.inventory;
        let unreadable =
            |error: &dyn std::fmt::Display| NatsError::Other(format!("write the event: {error}"));
        let body = Bytes::from(body(inventory, document, now).map_err(|error| unreadable(&error))?);
        // The id contains the former checksum, so that content that returns to a former state is sent again, and the
        // subject, because the stream may have events of other subjects.
        let id = |salt: u64| {
            let InventoryId { cluster, name, .. } = inventory;
            let (part, namespace) = (document.part.map_or(0, |(part, _)| part), inventory.stored_namespace());
            let text = format!(
                "{} {cluster:?} {namespace:?} {name:?} {checksum} {part} {last_checksum:?} {} {salt}",
                self.subject, batch.revision
            );
            format!("{:032x}", xxh3_128(text.as_bytes()))
        };
        let message = |id: String| {
            let mut headers = HeaderMap::new();
            headers.insert(header::NATS_EXPECTED_STREAM, self.stream.name.as_str());
            headers.insert(header::NATS_MESSAGE_ID, id);
            message::message(headers, body.clone())
        };
        let stored = self.connection.publish(self.subject.clone(), message(id(0))).await?;
        match last {
            // An earlier event has the same id, and a newer event was sent after it: send again with another id.
            Some(last) if stored.duplicate && stored.sequence <= last.sequence => {
                let resent = message(id(last.sequence));
                Ok(self.connection.publish(self.subject.clone(), resent).await?.sequence)
            }
            _ => Ok(stored.sequence),
        }
    }
}

/// The body of a document's event.
fn body(inventory: &InventoryId, document: &Document, now: &str) -> serde_json::Result<Vec<u8>> {
    let payload: &RawValue = serde_json::from_slice(&document.bytes)?;
    serde_json::to_vec(&SnapshotEvent {
        schema_version: envelope::SCHEMA_VERSION,
        timestamp: now,
        cluster: &inventory.cluster,
        namespace: inventory.stored_namespace(),
        payload,
    })
}

/// Subject and body of the first event of a write.
pub(super) fn sample(subject: &str, batch: &Batch<'_>) -> Option<(String, Vec<u8>)> {
    let Batch { inventory, generation, part_bytes, .. } = *batch;
    let settings =
        DocumentSettings { generation, cluster: &inventory.cluster, exported_at: TIME, part_bytes };
    let documents = envelope::documents(batch.delta.rows().map(|row| &**row), &settings);
    Some((subject.to_owned(), body(inventory, documents.first()?, TIME).ok()?))
}

/// Refuses a row that is too large for any event.
fn fits(row: &Row, limit: usize) -> Result<(), RefusedRow> {
    // Shortcut: attributes are nearly all of an item, and escapes make them at most six times as long.
    if row.attributes.get().len() < limit / 12 {
        return Ok(());
    }
    let bytes = Item::of(row).text.len();
    if bytes <= limit {
        return Ok(());
    }
    let why = format!("{}: it has {bytes} bytes, and an event has room for {limit}", row.described());
    Err(RefusedRow { key: row.key.clone(), why })
}

#[async_trait]
impl Sink for SnapshotSink {
    fn delivery(&self) -> Delivery {
        Delivery::Snapshots
    }

    /// An event is a whole snapshot, if it has one part.
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.stream.check(&self.connection).await
    }

    /// Always empty: a stream of snapshots records what was sent, not what exists.
    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        Ok(Baseline::new())
    }

    /// Always granted: there is no record of claims, so every writer may send.
    async fn claim(&self, _: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        Ok(Claim { owner: claimant.owner.clone(), writer: claimant.writer, epoch: 1, ..Claim::default() })
    }

    /// Always `None`: a stream of snapshots has no record of claims.
    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        Ok(vec![None; inventories.len()])
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let written = self.write_all(batch).await;
        written.map_err(|failure| {
            failure.into_error(&format!("send inventory {} to {}", batch.inventory, self.subject))
        })
    }

    /// Sends a snapshot without rows.
    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.write(&Batch::new(inventory, claim, &Delta::default())).await.map(drop)
    }
}
