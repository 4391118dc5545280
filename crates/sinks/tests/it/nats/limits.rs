//! Streams whose limits could remove rows that are still needed.

use std::time::Duration;

use kollect_model::{
    batch::{Batch, Delta},
    sink::{ErrorClass, SinkError, SinkReason},
};
use kollect_sinks::{Plan, plan};
use kollect_testbed::Nats;
use serde_json::{Value, json};

use super::{OtherClient, open, opened, planned, refused, settings, spec};
use crate::conformance::{added, changed, claimant, holding, inventory, removed, row, write};

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

/// Limits, what an error says about them, and how the owner of the stream lifts them.
fn limits() -> [(&'static str, Value, &'static str, &'static str, Value); 4] {
    let hour = nanoseconds(Duration::from_hours(1));
    [
        ("age", json!({ "max_age": hour }), "max_age=3600s", "--max-age=0s", json!({ "max_age": 0 })),
        (
            "messages",
            json!({ "max_msgs": 1000 }),
            "max_msgs=1000",
            "--max-msgs=-1",
            json!({ "max_msgs": -1 }),
        ),
        (
            "bytes",
            json!({ "max_bytes": 1_000_000 }),
            "max_bytes=1000000",
            "--max-bytes=-1",
            json!({ "max_bytes": -1 }),
        ),
        (
            "all",
            json!({ "max_age": hour, "max_msgs": 7, "max_bytes": 1_000_000 }),
            "max_age=3600s, max_msgs=7, max_bytes=1000000",
            "--max-age=0s --max-msgs=-1 --max-bytes=-1",
            json!({ "max_age": 0, "max_msgs": -1, "max_bytes": -1 }),
        ),
    ]
}

fn with_fields(mut config: Value, fields: &Value) -> Value {
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    config
}

async fn update(other: &OtherClient, name: &str, fields: &Value) {
    let config = with_fields(other.stream(name).await["config"].clone(), fields);
    let answer: Value = other.jetstream.request(format!("STREAM.UPDATE.{name}"), &config).await.unwrap();
    assert_eq!(answer.get("error"), None, "{answer}");
}

fn existing(server: &Nats, name: &str) -> Plan {
    plan(&spec(&server.url(), name, "rows", json!({ "provisioning": { "mode": "existing" } }))).unwrap()
}

fn assert_names(error: &SinkError, stream: &str, setting: &str, flags: &str) {
    assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal), "{error}");
    let text = error.to_string();
    assert!(text.contains(setting), "{text}");
    assert!(text.ends_with(&format!("nats stream edit {stream} {flags}")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_may_remove_rows_is_refused_until_its_owner_lifts_the_limits() {
    let (server, other) = (Nats::shared(), OtherClient::connect(Nats::shared()).await);
    let (all, one) = (inventory("", "all"), row("u1", "{}"));
    for (case, limit, setting, flags, lifted) in limits() {
        // Our subject is not added to such a stream.
        let name = &*format!("other-{case}");
        let config = json!({ "name": name, "subjects": [format!("{name}-else")], "max_msgs_per_subject": 1 });
        other.create(with_fields(config, &limit)).await;
        let before = other.stream(name).await["config"].clone();
        assert_names(&refused(&planned(&server.url(), name, "rows")).await, name, setting, flags);
        assert_eq!(other.stream(name).await["config"], before);

        let name = &*format!("limited-{case}");
        let config = json!({ "name": name, "subjects": [format!("{name}.>")], "max_msgs_per_subject": 1 });
        other.create(with_fields(config, &limit)).await;
        for plan in [planned(&server.url(), name, "rows"), existing(server, name)] {
            let sink = open(&plan).await.unwrap();
            let claim = sink.claim(&all, &claimant(None)).await.unwrap();
            let delta = added(std::slice::from_ref(&one));
            let refusals = [
                sink.check().await.unwrap_err(),
                sink.baseline(&all).await.unwrap_err(),
                sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap_err(),
            ];
            refusals.iter().for_each(|error| assert_names(error, name, setting, flags));
            assert!(other.rows(name, "all").await.is_empty());
        }
        update(&other, name, &lifted).await;
        let sink = open(&existing(server, name)).await.unwrap();
        sink.check().await.unwrap();
        write(&*sink, &all, None, &added(std::slice::from_ref(&one))).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]));

        // Limits that are set later are found, and existing rows can still be removed.
        update(&other, name, &limit).await;
        assert_names(&sink.check().await.unwrap_err(), name, setting, flags);
        assert_names(&sink.baseline(&all).await.unwrap_err(), name, setting, flags);
        let sink = open(&existing(server, name)).await.unwrap();
        let claim = sink.claim(&all, &claimant(None)).await.unwrap();
        sink.forget(&all, &claim).await.unwrap();
        let remaining = other.rows(name, "all").await;
        assert!(
            remaining.iter().all(|message| message.header("Kollect-Op") == Some("removed")),
            "{remaining:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_full_and_discards_new_messages_keeps_its_rows() {
    let (server, other, name) = (Nats::shared(), OtherClient::connect(Nats::shared()).await, "full");
    other
        .create(json!({
            "name": name, "subjects": ["full.>"], "max_msgs_per_subject": 1, "max_msgs": 3, "discard": "new",
        }))
        .await;
    let (sink, all) = (opened(server, name, "rows").await, inventory("", "all"));
    // The third message is the claim.
    let rows = [row("u1", "{}"), row("u2", "{}")];
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    let error = write(&*sink, &all, None, &added(&[row("u3", "{}")])).await.unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::WriteFailed, ErrorClass::Transient), "{error}");
    assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows));
    // A message that replaces another one needs no additional room.
    let later = row("u2", r#"{"n":2}"#);
    let delta =
        Delta { changed: vec![changed(&later)], removed: vec![removed(&rows[0])], ..Delta::default() };
    write(&*sink, &all, None, &delta).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&later]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_takes_no_second_message_of_a_subject_is_refused() {
    let (server, other, name) = (Nats::shared(), OtherClient::connect(Nats::shared()).await, "once");
    let config = json!({
        "name": name, "subjects": ["once.>"], "max_msgs_per_subject": 1, "discard": "new",
        "discard_new_per_subject": true,
    });
    other.create(config).await;
    let error = refused(&planned(&server.url(), name, "rows")).await;
    assert_names(&error, name, "discard_new_per_subject=true", "--no-discard-per-subject");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_our_own_has_no_limit_that_removes_rows() {
    let (server, other, name) = (Nats::shared(), OtherClient::connect(Nats::shared()).await, "unlimited");
    opened(server, name, "rows").await.check().await.unwrap();
    let new_stream = settings(&other.stream(name).await);
    for (setting, value) in [("max_age", 0), ("max_msgs", -1), ("max_bytes", -1), ("max_msgs_per_subject", 1)]
    {
        assert_eq!(new_stream.get(setting), Some(&json!(value)), "{setting}");
    }
    assert_eq!(new_stream.get("discard_new_per_subject"), None);
}
