//! `mode: rows`: one subject for each row, and one for the claim.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_nats::jetstream::{message::PublishMessage, publish::PublishAck};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use kollect_model::{
    batch::{Baseline, Batch, Delta, InventoryId, Receipt, RefusedRow, RemovedRow},
    claim::{Claim, Claimant},
    event::{ChangeEvent, RowChange},
    row::{Row, RowKey},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    NatsConfig,
    connect::{Connection, MAX_UNACKNOWLEDGED},
    failure::NatsError,
    message::{self, CheckedHeaders, HeldMessage},
    read::{self, KnownMessages, MessagePosition},
    stream::{self, StreamProperties},
    subjects::{Subjects, subject_hash},
};
use crate::sample::TIME;

/// Maximum bytes of unacknowledged messages.
const MAX_UNACKNOWLEDGED_BYTES: usize = 32 << 20;
/// After this many messages the claim is checked again.
const CLAIM_CHECK_INTERVAL: usize = 4096;
/// Attempts to claim: other writers may claim at the same moment.
const CLAIM_ATTEMPTS: usize = 8;

/// Rows of inventories as messages.
pub(super) struct RowSink {
    connection: Connection,
    stream: StreamProperties,
    subject: String,
    marker_ttl: Option<String>,
    /// Inventories that no write is using. A write removes its entry; if it fails, the entry is read again.
    known: Mutex<HashMap<InventoryId, KnownMessages>>,
    /// The highest sequence that the stream has given to one of our messages. A stream with a lower last sequence was
    /// restored from a backup.
    newest: AtomicU64,
}

/// One write.
struct RowWrite<'a> {
    batch: &'a Batch<'a>,
    subjects: Subjects,
    /// Sequence of our claim.
    claim_sequence: u64,
    /// `newest` of the sink when the write began.
    newest: u64,
    time: String,
}

/// A message that is being sent.
struct SentMessage<'a> {
    change: RowChange<'a>,
    subject: String,
    bytes: usize,
}

impl RowSink {
    pub(super) fn new(connection: Connection, stream: StreamProperties, config: &NatsConfig) -> Self {
        let marker_ttl = stream.expires.then(|| stream::ttl(config));
        let (subject, known) = (config.subject.clone(), Mutex::default());
        Self { connection, stream, subject, marker_ttl, known, newest: AtomicU64::new(0) }
    }

    fn subjects(&self, inventory: &InventoryId) -> Subjects {
        Subjects::new(&self.subject, inventory)
    }

    fn attempt(&self, what: &str, inventory: &InventoryId) -> String {
        format!("{what} inventory {inventory} in stream {}", self.stream.name)
    }

    fn take_known(&self, inventory: &InventoryId) -> Option<KnownMessages> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(inventory)
    }

    fn keep_known(&self, inventory: &InventoryId, known: KnownMessages) {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(inventory.clone(), known);
    }

    /// The claim of an inventory, and the sequence of its message.
    async fn held(&self, subjects: &Subjects) -> Result<Option<(u64, Claim)>, NatsError> {
        let subject = subjects.claim();
        let Some(last) = read::last(&self.connection, &self.stream.name, &subject).await? else {
            return Ok(None);
        };
        let claim = serde_json::from_slice(&last.body).map_err(|_| {
            let name = &self.stream.name;
            let why = format!(
                "read the claim: {subject} holds something else; if it is not needed, run: \
                 nats stream purge {name} --subject='{subject}'"
            );
            SinkError::new(SinkReason::Incompatible, why)
        })?;
        Ok(Some((last.sequence, claim)))
    }

    /// Returns an error unless the granted claim is still the held one. Returns the sequence of its message.
    async fn check_claim(
        &self,
        subjects: &Subjects,
        inventory: &InventoryId,
        granted: &Claim,
    ) -> Result<u64, NatsError> {
        let held = self.held(subjects).await?;
        Claim::admits(held.as_ref().map(|(_, claim)| claim), inventory, granted)?;
        Ok(held.map_or(0, |(sequence, _)| sequence))
    }

    async fn acquire_claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, NatsError> {
        let subjects = self.subjects(inventory);
        for _ in 0..CLAIM_ATTEMPTS {
            let held = self.held(&subjects).await?;
            let granted = claimant.take(inventory, held.as_ref().map(|(_, claim)| claim))?;
            let replaces = held.map_or(0, |(sequence, _)| sequence);
            let checked = CheckedHeaders { stream: &self.stream.name, replaces, id: None, ttl: None };
            let message = message::message(checked.headers(), Bytes::from(json!(granted).to_string()));
            match self.connection.publish(subjects.claim(), message).await {
                Ok(stored) => {
                    // No other writer had a claim since the positions were read, so they are still valid.
                    if let Some(mut known) =
                        self.take_known(inventory).filter(|known| known.claim_sequence == replaces)
                    {
                        known.claim_sequence = stored.sequence;
                        self.keep_known(inventory, known);
                    }
                    self.newest.store(stored.sequence, Ordering::Relaxed);
                    return Ok(granted);
                }
                Err(NatsError::Conflict) => {}
                Err(failure) => return Err(failure),
            }
        }
        let why =
            format!("{}: other writers claimed it first, again and again", self.attempt("claim", inventory));
        Err(SinkError::new(SinkReason::Busy, why).into())
    }

    async fn write_all(&self, batch: &Batch<'_>) -> Result<Receipt, NatsError> {
        let subjects = self.subjects(batch.inventory);
        let claim_sequence = self.check_claim(&subjects, batch.inventory, batch.claim).await?;
        if batch.delta.is_empty() {
            return Ok(Receipt::default());
        }
        let known = self.take_known(batch.inventory).filter(|known| known.claim_sequence == claim_sequence);
        let mut known = match known {
            Some(known) => known,
            None => read::all(&self.connection, &self.stream.name, &subjects).await?.1,
        };
        known.claim_sequence = claim_sequence;
        let newest = self.newest.load(Ordering::Relaxed);
        let write =
            RowWrite { batch, subjects, claim_sequence, newest, time: jiff::Timestamp::now().to_string() };
        let mut refused = Vec::new();
        self.send(&write, &mut known, &mut refused).await?;
        self.keep_known(batch.inventory, known);
        Ok(Receipt { refused, ..Receipt::default() })
    }

    /// Sends the changes. After a failure nothing more is sent, and no message is in flight when it returns.
    async fn send(
        &self,
        write: &RowWrite<'_>,
        known: &mut KnownMessages,
        refused: &mut Vec<RefusedRow>,
    ) -> Result<(), NatsError> {
        let mut changes = RowChange::all(write.batch.delta).enumerate();
        let mut unacknowledged = FuturesUnordered::new();
        let (mut bytes, mut failed) = (0, None);
        loop {
            let full = unacknowledged.len() >= MAX_UNACKNOWLEDGED || bytes >= MAX_UNACKNOWLEDGED_BYTES;
            let next = if full || failed.is_some() { None } else { changes.next() };
            if let Some((number, change)) = next {
                if number > 0 && number % CLAIM_CHECK_INTERVAL == 0 {
                    let batch = write.batch;
                    if let Err(failure) =
                        self.check_claim(&write.subjects, batch.inventory, batch.claim).await
                    {
                        failed = Some(failure);
                        continue;
                    }
                }
                match self.prepare(write, known, change) {
                    Ok(Some((sent, message))) => {
                        bytes += sent.bytes;
                        let publish = self.connection.publish(sent.subject.clone(), message);
                        unacknowledged.push(async move { (sent, publish.await) });
                    }
                    Ok(None) => {}
                    Err(refusal) => refused.push(refusal),
                }
                continue;
            }
            let Some((sent, outcome)) = unacknowledged.next().await else { break };
            bytes -= sent.bytes;
            if failed.is_some() {
                continue;
            }
            let hash = subject_hash(&sent.subject);
            match self.stored(write, &sent, outcome).await {
                Ok(sequence) => {
                    let held =
                        sent.change.after().map_or(HeldMessage::Marker, |row| HeldMessage::Row(row.digest));
                    known.rows.insert(hash, MessagePosition { sequence, held });
                }
                Err(NatsError::TooLarge) => {
                    refused.push(refusal(sent.change, "the stream takes no message so large"));
                }
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The message of a change; `None` if the stream already holds it.
    fn prepare<'a>(
        &self,
        write: &RowWrite<'_>,
        known: &KnownMessages,
        change: RowChange<'a>,
    ) -> Result<Option<(SentMessage<'a>, PublishMessage)>, RefusedRow> {
        let subject = write.subjects.row(change.key());
        let position = known.rows.get(&subject_hash(&subject));
        match (position.map(|position| position.held), change.after()) {
            (Some(HeldMessage::Row(digest)), Some(row)) if digest == row.digest => return Ok(None),
            (Some(HeldMessage::Marker) | None, None) => return Ok(None),
            _ => {}
        }
        let replaces = position.map_or(0, |position| position.sequence);
        let (message, bytes) = self.message_within_limits(write, change, &subject, replaces, true)?;
        Ok(Some((SentMessage { change, subject, bytes }, message)))
    }

    /// A message that fits the limits of the server, and its size. The former row is left out if the message would be
    /// too large. `deduplicated`: the server does not store it again if it was stored before.
    fn message_within_limits(
        &self,
        write: &RowWrite<'_>,
        change: RowChange<'_>,
        subject: &str,
        replaces: u64,
        deduplicated: bool,
    ) -> Result<(PublishMessage, usize), RefusedRow> {
        let id = write.id(subject, change, replaces);
        let ttl = change.after().is_none().then_some(self.marker_ttl.as_deref()).flatten();
        let checked =
            CheckedHeaders { stream: &self.stream.name, replaces, id: deduplicated.then_some(&*id), ttl };
        let headers = checked.row(change.key(), change.op(), change.after().map(|row| row.digest));
        let limit = self.stream.max_message.unwrap_or(usize::MAX).min(self.connection.max_payload());
        let mut with_before = true;
        loop {
            let body = write.body(change, &id, with_before);
            let body = body.map_err(|error| refusal(change, &error.to_string()))?;
            let bytes = message::size(&headers) + body.len();
            if bytes <= limit {
                return Ok((message::message(headers, body.into()), bytes));
            }
            if !with_before || change.before().is_none() {
                let why = format!("its message has {bytes} bytes, and the server takes {limit}");
                return Err(refusal(change, &why));
            }
            with_before = false;
        }
    }

    /// The sequence of a message that is stored, by this attempt or by an earlier one.
    async fn stored(
        &self,
        write: &RowWrite<'_>,
        sent: &SentMessage<'_>,
        outcome: Result<PublishAck, NatsError>,
    ) -> Result<u64, NatsError> {
        match outcome {
            Ok(stored) if !stored.duplicate => {
                self.newest.fetch_max(stored.sequence, Ordering::Relaxed);
                // Sequences only grow, unless the stream was restored from a backup.
                return if stored.sequence > write.newest {
                    Ok(stored.sequence)
                } else {
                    Err(self.restored_error(write.batch.inventory).into())
                };
            }
            // The message was stored before, or another message is there now.
            Ok(_) | Err(NatsError::Conflict) => {}
            Err(failure) => return Err(failure),
        }
        let batch = write.batch;
        self.check_claim(&write.subjects, batch.inventory, batch.claim).await?;
        let last = read::last(&self.connection, &self.stream.name, &sent.subject).await?;
        match (last, sent.change.after()) {
            (Some(read::LastMessage { held: HeldMessage::Row(digest), sequence, .. }), Some(row))
                if digest == row.digest =>
            {
                Ok(sequence)
            }
            (Some(read::LastMessage { held: HeldMessage::Marker, sequence, .. }), None) => Ok(sequence),
            // A removal has expired, or another client has deleted the message: there is nothing to replace.
            (None, _) => {
                let Ok((message, _)) =
                    self.message_within_limits(write, sent.change, &sent.subject, 0, false)
                else {
                    return Err(NatsError::TooLarge);
                };
                Ok(self.connection.publish(sent.subject.clone(), message).await?.sequence)
            }
            (Some(_), _) => Err(NatsError::Conflict),
        }
    }

    fn restored_error(&self, inventory: &InventoryId) -> SinkError {
        self.newest.store(0, Ordering::Relaxed);
        let why = "the stream has gone back to an earlier state";
        SinkError::new(SinkReason::ClaimLost, format!("{}: {why}", self.attempt("write", inventory)))
    }

    /// Returns an error if the stream lacks messages that it had acknowledged to us.
    async fn check_position(&self, inventory: &InventoryId) -> Result<(), NatsError> {
        let info = self.connection.request(format!("STREAM.INFO.{}", self.stream.name), &json!({})).await?;
        let last = info.get("state").and_then(|state| state.get("last_seq")).and_then(Value::as_u64);
        let newest = self.newest.load(Ordering::Relaxed);
        if last.is_some_and(|last| last < newest) {
            Err(self.restored_error(inventory).into())
        } else {
            Ok(())
        }
    }

    async fn forget_all(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), NatsError> {
        let subjects = self.subjects(inventory);
        self.check_claim(&subjects, inventory, claim).await?;
        let (held, known) = read::all(&self.connection, &self.stream.name, &subjects).await?;
        self.keep_known(inventory, known);
        let removed = held.into_keys().map(|key| RemovedRow { key, before: None }).collect();
        let delta = Delta { removed, ..Delta::default() };
        // Send removals first, so that subscribers learn of them.
        self.write_all(&Batch::new(inventory, claim, &delta)).await?;
        self.take_known(inventory);
        // Removals stay until they expire, so that a reader that was away for a while reads them too. Only our claim is
        // removed, not that of a writer that has claimed in the meantime.
        let claim_sequence = self.check_claim(&subjects, inventory, claim).await?;
        let purge = json!({ "filter": subjects.claim(), "seq": claim_sequence + 1 });
        self.connection.request(format!("STREAM.PURGE.{}", self.stream.name), &purge).await?;
        Ok(())
    }
}

impl RowWrite<'_> {
    /// The message id: equal for the same change of the same message of a subject, under the same claim.
    fn id(&self, subject: &str, change: RowChange<'_>, replaces: u64) -> String {
        let digest = change.after().map(|row| row.digest.to_string()).unwrap_or_default();
        let text = format!("{subject} {digest} {replaces} {}", self.claim_sequence);
        format!("{:032x}", xxh3_128(text.as_bytes()))
    }

    /// The body of a change's message.
    fn body(&self, change: RowChange<'_>, id: &str, with_before: bool) -> serde_json::Result<Vec<u8>> {
        let Batch { inventory, revision, .. } = *self.batch;
        serde_json::to_vec(&ChangeEvent { inventory, change, id, time: &self.time, revision, with_before })
    }
}

/// Subject and body of the first message of a write to an empty stream.
pub(super) fn sample(subject: &str, batch: &Batch<'_>) -> Option<(String, Vec<u8>)> {
    let subjects = Subjects::new(subject, batch.inventory);
    let write = RowWrite { batch, subjects, claim_sequence: 1, newest: 0, time: TIME.to_owned() };
    let change = RowChange::all(batch.delta).next()?;
    let subject = write.subjects.row(change.key());
    let body = write.body(change, &write.id(&subject, change, 0), true).ok()?;
    Some((subject, body))
}

fn refusal(change: RowChange<'_>, why: &str) -> RefusedRow {
    let RowKey { target, kind, uid, .. } = change.key();
    let row = change.after().or(change.before());
    let row = row.map_or_else(|| format!("{kind} of target {target} (uid {uid})"), Row::described);
    RefusedRow { key: change.key().clone(), why: format!("{row}: {why}") }
}

#[async_trait]
impl Sink for RowSink {
    fn atomicity(&self) -> Atomicity {
        Atomicity::SingleRows
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.stream.check(&self.connection).await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        // Limits of the stream may have been set since it was opened.
        self.stream.check(&self.connection).await?;
        let read = read::all(&self.connection, &self.stream.name, &self.subjects(inventory)).await;
        let (baseline, known) =
            read.map_err(|failure| failure.into_error(&self.attempt("read", inventory)))?;
        self.keep_known(inventory, known);
        Ok(baseline)
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let claimed = self.acquire_claim(inventory, claimant).await;
        claimed.map_err(|failure| failure.into_error(&self.attempt("claim", inventory)))
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let mut claims = Vec::with_capacity(inventories.len());
        for inventory in inventories {
            let subjects = self.subjects(inventory);
            let read = async {
                self.check_position(inventory).await?;
                self.held(&subjects).await
            };
            let held = read.await;
            let held = held.map_err(|failure| failure.into_error(&self.attempt("read", inventory)))?;
            claims.push(held.map(|(_, claim)| claim));
        }
        Ok(claims)
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        self.stream.check_keeps_rows(&self.attempt("write", batch.inventory))?;
        let written = self.write_all(batch).await;
        written.map_err(|failure| failure.into_error(&self.attempt("write", batch.inventory)))
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let forgotten = self.forget_all(inventory, claim).await;
        forgotten.map_err(|failure| failure.into_error(&self.attempt("clean", inventory)))
    }
}
