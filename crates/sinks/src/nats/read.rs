//! Reads back what a stream holds of an inventory: the last message of each subject, headers only.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, DeliverPolicy, pull},
    stream::LastRawMessageErrorKind,
};
use bytes::Bytes;
use futures::StreamExt as _;
use kollect_model::{
    batch::Baseline,
    row::{RowDigest, RowKey, TargetId},
};
use tokio::time::timeout;

use super::{
    connect::{ANSWER_LIMIT, Connection},
    failure::NatsError,
    message::{self, HeldMessage},
    subjects::{Subjects, subject_hash},
};

/// Messages per request: fewer than the client buffers for a slow reader.
const FETCH_SIZE: usize = 20_000;
/// The server deletes a consumer that is not used for this long.
const CONSUMER_IDLE_LIMIT: Duration = Duration::from_secs(30);

/// The positions of an inventory's messages in the stream. At most a hundred bytes per row.
#[derive(Debug, Default)]
pub(super) struct KnownMessages {
    /// Sequence of the claim; 0 if there is none.
    pub(super) claim_sequence: u64,
    /// Positions by [`subject_hash`] of the subject.
    pub(super) rows: HashMap<u64, MessagePosition>,
}

/// The last message of a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePosition {
    pub(super) sequence: u64,
    pub(super) held: HeldMessage,
}

const MESSAGES_LOST: &str = "the server did not deliver all messages";

/// Everything that the stream holds of an inventory.
pub(super) async fn all(
    connection: &Connection,
    stream: &str,
    subjects: &Subjects,
) -> Result<(Baseline, KnownMessages), NatsError> {
    let config = pull::Config {
        deliver_policy: DeliverPolicy::LastPerSubject,
        ack_policy: AckPolicy::None,
        filter_subject: subjects.all(),
        headers_only: true,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: CONSUMER_IDLE_LIMIT,
        ..pull::Config::default()
    };
    let created = async {
        let created = connection.jetstream.create_consumer_on_stream(config, stream).await;
        created.map_err(|error| client_error(&error))
    };
    let consumer = connection.while_connected(created).await?;
    let outcome = if consumer.cached_info().num_pending == 0 {
        Ok((Baseline::new(), KnownMessages::default()))
    } else {
        connection.while_connected(fetch(&consumer, subjects)).await
    };
    let name = consumer.cached_info().name.clone();
    // If this fails, the server deletes the consumer on its own.
    connection
        .while_connected(async { Ok(connection.jetstream.delete_consumer_from_stream(name, stream).await) })
        .await
        .ok();
    outcome
}

async fn fetch(
    consumer: &jetstream::consumer::Consumer<pull::Config>,
    subjects: &Subjects,
) -> Result<(Baseline, KnownMessages), NatsError> {
    let claim = subjects.claim();
    let (mut baseline, mut known) = (Baseline::new(), KnownMessages::default());
    // Thousands of rows share a few targets, groups, kinds and namespaces: each text is allocated once.
    let mut shared = HashSet::new();
    let mut delivered = 0;
    loop {
        let before = delivered;
        let mut batch = consumer
            .fetch()
            .max_messages(FETCH_SIZE)
            .messages()
            .await
            .map_err(|error| client_error(&error))?;
        let mut pending = 0;
        while let Some(message) =
            timeout(ANSWER_LIMIT, batch.next()).await.map_err(|_| NatsError::TimedOut)?
        {
            let message = message.map_err(|_| NatsError::Other(MESSAGES_LOST.into()))?;
            let info = message.info().map_err(|_| NatsError::Other(MESSAGES_LOST.into()))?;
            delivered += 1;
            if info.consumer_sequence != delivered {
                return Err(NatsError::Other(MESSAGES_LOST.into()));
            }
            pending = info.pending;
            let sequence = info.stream_sequence;
            let subject = message.subject.as_str();
            if subject == claim {
                known.claim_sequence = sequence;
                continue;
            }
            let (key, held) = message::read(message.headers.as_ref());
            // A message that a client has copied to another subject is not a row.
            let key = key.filter(|key| subjects.row(key) == subject);
            let held = if key.is_some() { held } else { HeldMessage::Unknown };
            known.rows.insert(subject_hash(subject), MessagePosition { sequence, held });
            match (key, held) {
                (Some(key), HeldMessage::Row(digest)) => {
                    baseline.insert(with_shared_texts(key, &mut shared), digest)
                }
                // A damaged digest becomes 0, which equals no row's digest, so the row is sent again.
                (Some(key), HeldMessage::Unknown) => baseline.insert(key, RowDigest(0)),
                _ => None,
            };
        }
        if pending == 0 || delivered == before {
            return Ok((baseline, known));
        }
    }
}

fn with_shared_texts(key: RowKey, shared: &mut HashSet<Arc<str>>) -> RowKey {
    let mut share = |text: Arc<str>| match shared.get(&text) {
        Some(known) => known.clone(),
        None => {
            shared.insert(text.clone());
            text
        }
    };
    let RowKey { target: TargetId { namespace, name }, group, kind, namespace: object_namespace, uid } = key;
    RowKey {
        target: TargetId { namespace: namespace.map(&mut share), name: share(name) },
        group: share(group),
        kind: share(kind),
        namespace: share(object_namespace),
        uid,
    }
}

/// The last message of a subject.
pub(super) struct LastMessage {
    pub(super) sequence: u64,
    pub(super) held: HeldMessage,
    pub(super) body: Bytes,
}

/// The last message of a subject, read from the leader of the stream.
pub(super) async fn last(
    connection: &Connection,
    stream: &str,
    subject: &str,
) -> Result<Option<LastMessage>, NatsError> {
    let read = async {
        let stream =
            connection.jetstream.get_stream_no_info(stream).await.map_err(|error| client_error(&error))?;
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(LastMessage {
                sequence: message.sequence,
                held: message::read(Some(&message.headers)).1,
                body: message.payload,
            })),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(error) => Err((&error).into()),
                _ => Err(client_error(&error)),
            },
        }
    };
    connection.while_connected(read).await
}

/// An error of the client library; with the JetStream error if the server sent one.
fn client_error(error: &(dyn std::error::Error + 'static)) -> NatsError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(server_error) = error.downcast_ref::<jetstream::Error>() {
            return server_error.into();
        }
        if let Some(request) = error.downcast_ref::<jetstream::context::RequestError>() {
            return request.into();
        }
        cause = error.source();
    }
    NatsError::unexpected(error)
}
