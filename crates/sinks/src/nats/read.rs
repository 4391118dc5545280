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
    failure::Failure,
    message::{self, Held},
    subjects::{Subjects, place},
};

/// Messages per request: fewer than the client buffers for a slow reader.
const FETCH: usize = 20_000;
/// The server deletes a consumer that is not used for this long.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// The positions of an inventory's messages in the stream. At most a hundred bytes per row.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Sequence of the claim; 0 if there is none.
    pub(super) claim: u64,
    /// Positions by [`place`] of the subject.
    pub(super) rows: HashMap<u64, Position>,
}

/// The last message of a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) sequence: u64,
    pub(super) held: Held,
}

const LOST: &str = "messages were lost on the way";

/// Everything that the stream holds of an inventory.
pub(super) async fn all(
    connection: &Connection,
    stream: &str,
    subjects: &Subjects,
) -> Result<(Baseline, Known), Failure> {
    let config = pull::Config {
        deliver_policy: DeliverPolicy::LastPerSubject,
        ack_policy: AckPolicy::None,
        filter_subject: subjects.all(),
        headers_only: true,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: FORGOTTEN_AFTER,
        ..pull::Config::default()
    };
    let created = async {
        let created = connection.jetstream.create_consumer_on_stream(config, stream).await;
        created.map_err(|error| said(&error))
    };
    let consumer = connection.attentive(created).await?;
    let outcome = if consumer.cached_info().num_pending == 0 {
        Ok((Baseline::new(), Known::default()))
    } else {
        connection.attentive(fetch(&consumer, subjects)).await
    };
    let name = consumer.cached_info().name.clone();
    // If this fails, the server deletes the consumer on its own.
    connection
        .attentive(async { Ok(connection.jetstream.delete_consumer_from_stream(name, stream).await) })
        .await
        .ok();
    outcome
}

async fn fetch(
    consumer: &jetstream::consumer::Consumer<pull::Config>,
    subjects: &Subjects,
) -> Result<(Baseline, Known), Failure> {
    let claim = subjects.claim();
    let (mut baseline, mut known) = (Baseline::new(), Known::default());
    // Thousands of rows share a few targets, groups, kinds and namespaces: each text is allocated once.
    let mut shared = HashSet::new();
    let mut delivered = 0;
    loop {
        let before = delivered;
        let mut batch =
            consumer.fetch().max_messages(FETCH).messages().await.map_err(|error| said(&error))?;
        let mut pending = 0;
        while let Some(message) = timeout(ANSWER_LIMIT, batch.next()).await.map_err(|_| Failure::Late)? {
            let message = message.map_err(|_| Failure::Other(LOST.into()))?;
            let info = message.info().map_err(|_| Failure::Other(LOST.into()))?;
            delivered += 1;
            if info.consumer_sequence != delivered {
                return Err(Failure::Other(LOST.into()));
            }
            pending = info.pending;
            let sequence = info.stream_sequence;
            let subject = message.subject.as_str();
            if subject == claim {
                known.claim = sequence;
                continue;
            }
            let (key, held) = message::read(message.headers.as_ref());
            // A message that a client has copied to another subject is not a row.
            let key = key.filter(|key| subjects.row(key) == subject);
            let held = if key.is_some() { held } else { Held::Unknown };
            known.rows.insert(place(subject), Position { sequence, held });
            match (key, held) {
                (Some(key), Held::Row(digest)) => baseline.insert(thrifty(key, &mut shared), digest),
                // A damaged digest becomes 0, which equals no row's digest, so the row is sent again.
                (Some(key), Held::Unknown) => baseline.insert(key, RowDigest(0)),
                _ => None,
            };
        }
        if pending == 0 || delivered == before {
            return Ok((baseline, known));
        }
    }
}

fn thrifty(key: RowKey, shared: &mut HashSet<Arc<str>>) -> RowKey {
    let mut share = |text: Arc<str>| match shared.get(&text) {
        Some(known) => known.clone(),
        None => {
            shared.insert(text.clone());
            text
        }
    };
    let RowKey { target: TargetId { namespace, name }, group, kind, namespace: of_object, uid } = key;
    RowKey {
        target: TargetId { namespace: namespace.map(&mut share), name: share(name) },
        group: share(group),
        kind: share(kind),
        namespace: share(of_object),
        uid,
    }
}

/// The last message of a subject.
pub(super) struct Last {
    pub(super) sequence: u64,
    pub(super) held: Held,
    pub(super) body: Bytes,
}

/// The last message of a subject, read from the leader of the stream.
pub(super) async fn last(
    connection: &Connection,
    stream: &str,
    subject: &str,
) -> Result<Option<Last>, Failure> {
    let asked = async {
        let stream = connection.jetstream.get_stream_no_info(stream).await.map_err(|error| said(&error))?;
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(Last {
                sequence: message.sequence,
                held: message::read(Some(&message.headers)).1,
                body: message.payload,
            })),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(said) => Err((&said).into()),
                _ => Err(said(&error)),
            },
        }
    };
    connection.attentive(asked).await
}

/// An error of the client library; with the JetStream error if the server sent one.
fn said(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(said) = error.downcast_ref::<jetstream::Error>() {
            return said.into();
        }
        if let Some(request) = error.downcast_ref::<jetstream::context::RequestError>() {
            return request.into();
        }
        cause = error.source();
    }
    Failure::unexpected(error)
}
