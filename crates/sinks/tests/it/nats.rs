//! NATS JetStream.

use std::{collections::BTreeMap, error::Error, time::Duration};

use async_nats::{HeaderMap, jetstream};
use futures::StreamExt as _;
use kollect_model::sink::{Sink, SinkError, SinkSpec};
use kollect_sinks::{Plan, Secrets, SinkPolicy, plan};
use kollect_testbed::Nats;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

mod access;
mod limits;
mod rows;
mod snapshots;

async fn open(plan: &Plan) -> Result<Box<dyn Sink>, SinkError> {
    kollect_sinks::open(plan, &SinkPolicy::default()).await
}

/// The spec of a sink; subject and stream have the same name.
fn spec(url: &str, name: &str, mode: &str, fields: Value) -> SinkSpec {
    let mut spec = json!({
        "type": "nats",
        "mode": mode,
        "nats": { "url": url, "subject": name, "stream": name },
    });
    for (key, value) in fields.as_object().unwrap() {
        match (&mut spec[key], value) {
            (Value::Object(known), Value::Object(new)) => known.extend(new.clone()),
            (field, value) => *field = value.clone(),
        }
    }
    SinkSpec::Event(serde_json::from_value(spec).unwrap())
}

fn secrets(field: &str, content: &[(&str, &str)]) -> Secrets {
    let mut secrets = Secrets::default();
    secrets.insert(field, content.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect());
    secrets
}

fn planned(url: &str, name: &str, mode: &str) -> Plan {
    plan(&spec(url, name, mode, json!({}))).unwrap()
}

async fn opened(server: &Nats, name: &str, mode: &str) -> Box<dyn Sink> {
    open(&planned(&server.url(), name, mode)).await.unwrap()
}

async fn refused(plan: &Plan) -> SinkError {
    let Err(error) = open(plan).await else { unreachable!("{plan:?} must not open") };
    error
}

/// Everything of an error that a user or a log could show.
fn full_text(error: &SinkError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    text
}

/// Another client of the same server.
struct OtherClient {
    client: async_nats::Client,
    jetstream: jetstream::Context,
}

/// A message as any client can read it.
#[derive(Debug)]
struct Message {
    sequence: u64,
    subject: String,
    headers: HeaderMap,
    body: String,
}

impl Message {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    fn uid(&self) -> Value {
        self.json()["data"]["key"]["uid"].clone()
    }
}

impl OtherClient {
    async fn connect(server: &Nats) -> Self {
        let client = async_nats::connect(server.url()).await.unwrap();
        Self { jetstream: jetstream::new(client.clone()), client }
    }

    /// All messages of a stream below a subject, oldest first.
    async fn messages(&self, stream: &str, filter: &str) -> Vec<Message> {
        let config = jetstream::consumer::pull::Config {
            filter_subject: filter.into(),
            ack_policy: jetstream::consumer::AckPolicy::None,
            ..Default::default()
        };
        let consumer = self.jetstream.create_consumer_on_stream(config, stream).await.unwrap();
        let mut found = Vec::new();
        loop {
            let mut batch = consumer.fetch().max_messages(10_000).messages().await.unwrap();
            let before = found.len();
            while let Some(message) = batch.next().await {
                let message = message.unwrap();
                found.push(Message {
                    sequence: message.info().unwrap().stream_sequence,
                    subject: message.subject.to_string(),
                    headers: message.headers.clone().unwrap_or_default(),
                    body: str::from_utf8(&message.payload).unwrap().to_owned(),
                });
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// Messages of rows, without claims.
    async fn rows(&self, name: &str, inventory: &str) -> Vec<Message> {
        self.messages(name, &format!("{name}.default.team.{inventory}.*.*.*")).await
    }

    /// The server's information about a stream.
    async fn stream(&self, name: &str) -> Value {
        self.jetstream.request(format!("STREAM.INFO.{name}"), &json!({})).await.unwrap()
    }

    async fn create(&self, config: Value) {
        let name = config["name"].as_str().unwrap();
        let answer: Value = self.jetstream.request(format!("STREAM.CREATE.{name}"), &config).await.unwrap();
        assert_eq!(answer.get("error"), None, "{answer}");
    }

    async fn purge(&self, stream: &str, subject: &str) {
        let filter = json!({ "filter": subject });
        let answer: Value = self.jetstream.request(format!("STREAM.PURGE.{stream}"), &filter).await.unwrap();
        assert_eq!(answer["purged"], 1, "{answer}");
    }
}

/// Polls until `is_ready` returns true.
async fn wait_until(what: &str, mut is_ready: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_ready().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The settings of a stream except its subjects.
fn settings(info: &Value) -> BTreeMap<String, Value> {
    let all: BTreeMap<String, Value> = serde_json::from_value(info["config"].clone()).unwrap();
    all.into_iter().filter(|(key, _)| key != "subjects").collect()
}
