//! `mode: rows`.

use std::{sync::Arc, time::Duration};

use async_nats::HeaderMap;
use futures::StreamExt as _;
use kollect_model::{
    batch::{Batch, ChangedRow, Delta, RemovedRow},
    row::Row,
    sink::{ErrorClass, Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{Backend as _, Plan, nats::NatsConfig, plan};
use kollect_testbed::Nats;
use serde_json::{Value, json};

use super::{Message, OtherClient, open, opened, planned, refused, settings, spec, wait_until};
use crate::conformance::{
    TestDestination, added, assert_holds, changed, claimant, conformance, holding, inventory, removed, row,
    write,
};

struct StreamRows {
    server: &'static Nats,
    other: OtherClient,
    name: &'static str,
}

impl TestDestination for StreamRows {
    async fn open(&self) -> Box<dyn Sink> {
        opened(self.server, self.name, "rows").await
    }

    async fn read_all(&self) -> String {
        let all = self.other.rows(self.name, "all").await;
        let seen: Vec<_> =
            all.iter().map(|message| (message.sequence, &message.subject, &message.body)).collect();
        format!("{seen:?}")
    }

    async fn edit_as_other_client(&self) {
        for message in self.other.rows(self.name, "all").await {
            if message.uid() == "u1" {
                self.other.purge(self.name, &message.subject).await;
            }
            if message.uid() == "u2" {
                // A copy on another subject is not a row, nor is a message without headers.
                let copy = format!("{}x", message.subject);
                let sent =
                    self.other.jetstream.publish_with_headers(copy, message.headers_of_key(), "x".into());
                sent.await.unwrap().await.unwrap();
                self.other.jetstream.publish(message.subject, "garbage".into()).await.unwrap().await.unwrap();
            }
        }
    }

    async fn attributes(&self, uid: &str) -> String {
        let all = self.other.rows(self.name, "awkward").await;
        let message = all.iter().find(|message| message.uid() == uid).unwrap();
        message.json()["data"]["after"]["attributes"].to_string()
    }

    /// Without removals, which stay as markers for a while.
    async fn read_torn(&self) -> String {
        let all = self.other.rows(self.name, "torn").await;
        all.iter()
            .filter(|message| message.header("Kollect-Op") != Some("removed"))
            .map(|message| &*message.body)
            .collect()
    }

    type Backup = Vec<Message>;

    async fn back_up(&self) -> Vec<Message> {
        self.other.messages(self.name, ">").await
    }

    async fn restore(&self, backup: &Vec<Message>) {
        let config = self.other.stream(self.name).await["config"].clone();
        let deleted: Value =
            self.other.jetstream.request(format!("STREAM.DELETE.{}", self.name), &json!({})).await.unwrap();
        assert_eq!(deleted["success"], true, "{deleted}");
        self.other.create(config).await;
        for Message { subject, headers, body, .. } in backup {
            let mut kept = HeaderMap::new();
            for (name, values) in headers.iter().filter(|(name, _)| !name.to_string().starts_with("Nats-")) {
                values.iter().for_each(|value| kept.append(name.clone(), value.clone()));
            }
            let sent = self.other.jetstream.publish_with_headers(subject.clone(), kept, body.clone().into());
            sent.await.unwrap().await.unwrap();
        }
    }
}

impl Message {
    fn headers_of_key(&self) -> HeaderMap {
        let names = ["Kollect-Row-Key", "Kollect-Row-Digest", "Kollect-Op"];
        let mut headers = HeaderMap::new();
        for name in names {
            headers.insert(name, self.header(name).unwrap());
        }
        headers
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_conforms() {
    let server = Nats::shared();
    conformance(&StreamRows { server, other: OtherClient::connect(server).await, name: "conforms" }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_messages_hold_what_a_comparison_needs() {
    let (server, name) = (Nats::shared(), "headers");
    let (sink, other, all) =
        (opened(server, name, "rows").await, OtherClient::connect(server).await, inventory("", "all"));
    let (old, new) = (row("u1", r#"{"n":1}"#), row("u1", r#"{"n":2}"#));
    write(&*sink, &all, Some("c1"), &added(std::slice::from_ref(&old))).await.unwrap();
    let first = other.rows(name, "all").await.remove(0);
    assert!(first.subject.starts_with("headers.default.team.all.Deployment.shop."), "{first:?}");
    assert_eq!(first.header("Kollect-Op"), Some("added"));
    assert_eq!(first.header("Kollect-Row-Key"), Some("team/pods/apps/Deployment/shop/u1"));
    assert_eq!(first.header("Kollect-Row-Digest"), Some(old.digest.to_string().as_str()));
    assert_eq!(first.header("Content-Type"), Some("application/cloudevents+json; charset=UTF-8"));
    assert_eq!(first.header("Nats-TTL"), None, "rows stay");
    assert_eq!(first.json()["id"].as_str(), first.header("Nats-Msg-Id"));

    let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let change = ChangedRow { before: Some(old.clone()), after: new.clone() };
    let delta = Delta { changed: vec![change], ..Delta::default() };
    sink.write(&Batch { revision: 42, ..Batch::new(&all, &claim, &delta) }).await.unwrap();
    let second = other.rows(name, "all").await;
    assert_eq!(second.len(), 1, "the last message of a subject stays");
    let event = second[0].json();
    assert_eq!(event["type"], "dev.kollect.row.changed");
    assert_eq!(event["data"]["before"], json!(*old));
    assert_eq!(event["data"]["after"], json!(*new));
    assert_eq!((&event["data"]["changed"], &event["data"]["revision"]), (&json!(["n"]), &json!(42)));

    let removal = Delta {
        removed: vec![RemovedRow { key: new.key.clone(), before: Some(new.clone()) }],
        ..Delta::default()
    };
    sink.write(&Batch::new(&all, &claim, &removal)).await.unwrap();
    let marker = other.rows(name, "all").await.remove(0);
    assert_eq!((marker.header("Kollect-Op"), marker.header("Nats-TTL")), (Some("removed"), Some("86400s")));
    assert_eq!(marker.json()["data"]["before"], json!(*new));
    // The claim is a separate message.
    let message = other.messages(name, "headers.default.team.all.$holder").await;
    assert_eq!(message[0].json(), json!(claim));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_can_be_written_again_after_its_removal_has_expired() {
    let (server, name) = (Nats::shared(), "expiring");
    let SinkSpec::Event(spec) = spec(&server.url(), name, "rows", json!({})) else { unreachable!() };
    let plan = Plan::of(NatsConfig::plan(&spec).unwrap().with_marker_ttl(Duration::from_secs(1)));
    let (sink, other, all) =
        (open(&plan).await.unwrap(), OtherClient::connect(server).await, inventory("", "all"));
    let one = row("u1", "{}");
    let first = added(std::slice::from_ref(&one));
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    sink.write(&Batch::new(&all, &claim, &first)).await.unwrap();
    let removal = Delta { removed: vec![removed(&one)], ..Delta::default() };
    sink.write(&Batch::new(&all, &claim, &removal)).await.unwrap();
    wait_until("the removal expires", async || other.rows(name, "all").await.is_empty()).await;
    // The sink remembers a message that does not exist any more.
    sink.write(&Batch::new(&all, &claim, &first)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_expiry_keeps_removals() {
    let (server, name) = (Nats::shared(), "lasting");
    let other = OtherClient::connect(server).await;
    other.create(json!({ "name": name, "subjects": ["lasting.>"], "max_msgs_per_subject": 1 })).await;
    let (sink, all, one) = (opened(server, name, "rows").await, inventory("", "all"), row("u1", "{}"));
    write(&*sink, &all, None, &added(std::slice::from_ref(&one))).await.unwrap();
    let removal = Delta { removed: vec![removed(&one)], ..Delta::default() };
    write(&*sink, &all, None, &removal).await.unwrap();
    assert!(sink.baseline(&all).await.unwrap().is_empty());
    let marker = other.rows(name, "all").await.remove(0);
    assert_eq!((marker.header("Kollect-Op"), marker.header("Nats-TTL")), (Some("removed"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn row_sinks_share_a_stream() {
    let (server, name) = (Nats::shared(), "w35");
    let other = OtherClient::connect(server).await;
    // A stream of another owner, with a setting that our client does not know.
    other
        .create(json!({
            "name": name, "subjects": ["w35.theirs"], "max_msgs_per_subject": 1, "max_msg_size": 1_000_000,
            "description": "ours, hands off", "metadata": { "team": "a" }, "allow_msg_schedules": true,
        }))
        .await;
    let before = settings(&other.stream(name).await);
    let sink = async |subject: &str| {
        let fields = json!({ "nats": { "subject": subject } });
        open(&plan(&spec(&server.url(), name, "rows", fields)).unwrap()).await.unwrap()
    };
    let (all, one) = (inventory("", "all"), row("u1", "{}"));
    // At the same time, and again.
    let first = futures::join!(sink("w35.a"), sink("w35.b"), sink("w35.c"));
    let second = (sink("w35.a").await, sink("w35.b").await, sink("w35.c").await);
    for (number, sink) in [first.0, first.1, first.2, second.0, second.1, second.2].iter().enumerate() {
        sink.check().await.unwrap();
        let row = row(&format!("u{number}"), "{}");
        write(&**sink, &all, None, &added(&[one.clone(), row.clone()])).await.unwrap();
        let held = sink.baseline(&all).await.unwrap();
        assert_eq!(held.get(&row.key), Some(&row.digest));
    }
    let after = other.stream(name).await;
    assert_eq!(settings(&after), before);
    let mut subjects: Vec<String> = serde_json::from_value(after["config"]["subjects"].clone()).unwrap();
    subjects.sort();
    assert_eq!(subjects, ["w35.a.>", "w35.b.>", "w35.c.>", "w35.theirs"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_returns_to_a_former_value_is_sent_and_a_repeated_write_is_not() {
    let (server, name) = (Nats::shared(), "back");
    let (sink, other, all) =
        (opened(server, name, "rows").await, OtherClient::connect(server).await, inventory("", "all"));
    let mut subscriber = other.client.subscribe("back.*.*.*.*.*.*").await.unwrap();
    other.client.flush().await.unwrap();
    let (a, b) = (row("u1", r#"{"n":"a"}"#), row("u1", r#"{"n":"b"}"#));
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    sink.write(&Batch::new(&all, &claim, &added(std::slice::from_ref(&a)))).await.unwrap();
    for next in [&b, &a, &b, &a] {
        let delta = Delta { changed: vec![changed(next)], ..Delta::default() };
        for _ in 0..2 {
            sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap();
        }
    }
    let mut ids = Vec::new();
    for expected in ["a", "b", "a", "b", "a"] {
        let message = subscriber.next().await.unwrap();
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(event["data"]["after"]["attributes"]["n"], expected);
        ids.push(event["id"].to_string());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    other.client.publish("back.x.x.x.x.x.x", "end".into()).await.unwrap();
    assert_eq!(subscriber.next().await.unwrap().payload, "end", "nothing was sent twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_client_is_not_replaced_before_a_comparison() {
    let (server, name) = (Nats::shared(), "meanwhile");
    let (sink, other, all) =
        (opened(server, name, "rows").await, OtherClient::connect(server).await, inventory("", "all"));
    let (one, two) = (row("u1", "{}"), row("u1", r#"{"n":2}"#));
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    sink.write(&Batch::new(&all, &claim, &added(std::slice::from_ref(&one)))).await.unwrap();
    let message = other.rows(name, "all").await.remove(0);
    let sent = other.jetstream.publish(message.subject.clone(), "mine".into()).await.unwrap().await.unwrap();

    let delta = Delta { changed: vec![changed(&two)], ..Delta::default() };
    let error = sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::WriteFailed, ErrorClass::Transient));
    assert_eq!(other.rows(name, "all").await[0].sequence, sent.sequence);
    // The engine compares after an error.
    assert!(sink.baseline(&all).await.unwrap().is_empty());
    sink.write(&Batch::new(&all, &claim, &added(std::slice::from_ref(&two)))).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&two]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_with_an_old_claim_is_fenced_even_if_it_has_read_the_stream() {
    let (server, name) = (Nats::shared(), "late");
    let (first_writer, second_writer) =
        (opened(server, name, "rows").await, opened(server, name, "rows").await);
    let (all, one, two) = (inventory("", "all"), row("u1", "{}"), row("u1", r#"{"n":2}"#));
    let old = first_writer.claim(&all, &claimant(Some("c1"))).await.unwrap();
    first_writer.write(&Batch::new(&all, &old, &added(std::slice::from_ref(&one)))).await.unwrap();
    let new = second_writer.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let delta = Delta { changed: vec![changed(&two)], ..Delta::default() };
    second_writer.write(&Batch::new(&all, &new, &delta)).await.unwrap();
    let error = first_writer.write(&Batch::new(&all, &old, &delta)).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Fenced);
    // After a new claim, changes by another writer in between are read again.
    let again = first_writer.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let back = Delta { changed: vec![changed(&one)], ..Delta::default() };
    first_writer.write(&Batch::new(&all, &again, &back)).await.unwrap();
    assert_eq!(second_writer.baseline(&all).await.unwrap(), holding([&one]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_during_a_write_gets_each_row_once() {
    let (mut server, name, count) = (Nats::start().unwrap(), "killed", 60_000);
    let rows: Vec<Arc<Row>> = (0..count).map(|i| row(&format!("u{i}"), r#"{"text":"some"}"#)).collect();
    let all = inventory("", "all");
    let writing = {
        let (sink, delta, all) = (opened(&server, name, "rows").await, added(&rows), all.clone());
        tokio::spawn(async move {
            let claim = sink.claim(&all, &claimant(None)).await.unwrap();
            sink.write(&Batch::new(&all, &claim, &delta)).await
        })
    };
    let other = OtherClient::connect(&server).await;
    let arrived = async || other.stream(name).await["state"]["messages"].as_u64().unwrap();
    wait_until("some rows arrive", async || arrived().await > 1000).await;
    server.kill();
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::Unreachable, ErrorClass::Transient), "{error}");
    assert_eq!(refused(&planned(&server.url(), name, "rows")).await.reason, SinkReason::Unreachable);

    server.resume().unwrap();
    let sink = opened(&server, name, "rows").await;
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let held = sink.baseline(&all).await.unwrap();
    assert!(!held.is_empty() && held.len() < count, "{} rows were there", held.len());
    let missing: Vec<_> = rows.iter().filter(|row| !held.contains_key(&row.key)).cloned().collect();
    sink.write(&Batch::new(&all, &claim, &added(&missing))).await.unwrap();
    assert_holds(&*sink, &all, &rows).await;
    // Two claims, and each row once.
    let state = OtherClient::connect(&server).await.stream(name).await["state"].clone();
    assert_eq!(state["last_seq"], count + 2, "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_not_restored() {
    let (mut server, name) = (Nats::start().unwrap(), "lost");
    let sink = opened(&server, name, "rows").await;
    server.kill();
    server.resume().unwrap();
    let error = sink.check().await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Unreachable, "{error}");
    opened(&server, name, "rows").await.check().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_too_large_are_named_and_all_others_are_written() {
    let (server, name) = (Nats::shared(), "oversize");
    let (sink, other, all) =
        (opened(server, name, "rows").await, OtherClient::connect(server).await, inventory("", "all"));
    let text = |megabytes: usize| format!(r#"{{"text":"{}"}}"#, "x".repeat(megabytes << 20));
    let (small, large) = (row("small", "{}"), row("large", &text(9)));
    let receipt = write(&*sink, &all, None, &added(&[large.clone(), small.clone()])).await.unwrap();
    assert_eq!(receipt.refused.len(), 1);
    assert_eq!(receipt.refused[0].key, large.key);
    let why = &receipt.refused[0].why;
    assert!(
        why.contains("Deployment shop/cart") && why.contains("uid large") && why.contains("8388608"),
        "{why}"
    );
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&small]));

    // Before and after together are too large: the former row is left out.
    let (old, new) = (row("both", &text(5)), row("both", &text(6)));
    write(&*sink, &all, None, &added(std::slice::from_ref(&old))).await.unwrap();
    let change = ChangedRow { before: Some(old), after: new.clone() };
    let receipt =
        write(&*sink, &all, None, &Delta { changed: vec![change], ..Delta::default() }).await.unwrap();
    assert!(receipt.refused.is_empty());
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&small, &new]));
    let event = other.rows(name, "all").await.pop().unwrap().json();
    assert_eq!((&event["data"]["before"], &event["data"]["changed"]), (&Value::Null, &json!(["text"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn provisioning_mode_existing_never_creates_or_alters_a_stream() {
    let (server, name) = (Nats::shared(), "existing");
    let other = OtherClient::connect(server).await;
    let fields = json!({ "provisioning": { "mode": "existing" } });
    let plan = plan(&spec(&server.url(), name, "rows", fields)).unwrap();
    let error = refused(&plan).await;
    assert_eq!((error.reason, error.class()), (SinkReason::Missing, ErrorClass::Terminal));
    assert!(error.to_string().contains("nats stream add existing --subjects='existing.>'"), "{error}");
    assert_eq!(other.stream(name).await["error"]["err_code"], 10059);

    other.create(json!({ "name": name, "subjects": ["else"], "max_msgs_per_subject": 1 })).await;
    let before = other.stream(name).await["config"].clone();
    let error = refused(&plan).await;
    assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
    assert!(
        error.to_string().contains("nats stream edit existing --subjects='SUBJECT,…,existing.>'"),
        "{error}"
    );
    assert_eq!(other.stream(name).await["config"], before);

    // A part of the needed subjects is not enough; all of them are, in any spelling.
    for (subjects, enough) in [("existing.*.*.>", false), ("existing.>", true)] {
        let mut config = before.clone();
        config["subjects"] = json!(["else", subjects]);
        let answer: Value = other.jetstream.request("STREAM.UPDATE.existing", &config).await.unwrap();
        assert_eq!(answer.get("error"), None, "{answer}");
        let config = other.stream(name).await["config"].clone();
        match open(&plan).await {
            Err(error) => assert!(!enough && error.reason == SinkReason::Incompatible, "{error}"),
            Ok(sink) => {
                assert!(enough);
                write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap();
            }
        }
        assert_eq!(other.stream(name).await["config"], config);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_do_not_keep_exactly_the_last_message_are_refused() {
    let (server, other) = (Nats::shared(), OtherClient::connect(Nats::shared()).await);
    other.create(json!({ "name": "several", "subjects": ["several.>"], "max_msgs_per_subject": 5 })).await;
    let error = refused(&planned(&server.url(), "several", "rows")).await;
    assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
    assert!(error.to_string().contains("nats stream edit several --max-msgs-per-subject=1"), "{error}");

    let queue = json!({
        "name": "queue", "subjects": ["queue.>"], "max_msgs_per_subject": 1, "retention": "workqueue",
    });
    other.create(queue).await;
    let error = refused(&planned(&server.url(), "queue", "rows")).await;
    assert_eq!(error.reason, SinkReason::Incompatible);
    assert!(error.to_string().contains("its retention is not limits"), "{error}");

    // Another stream has the subject already.
    other.create(json!({ "name": "taker", "subjects": ["taken.>"] })).await;
    let error = refused(&planned(&server.url(), "taken", "rows")).await;
    assert_eq!(error.reason, SinkReason::Incompatible);
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_get_the_removals_of_a_forgotten_inventory() {
    let (server, name) = (Nats::shared(), "forgotten");
    let (sink, other, all) =
        (opened(server, name, "rows").await, OtherClient::connect(server).await, inventory("", "all"));
    let rows = [row("u1", "{}"), row("u2", "{}")];
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    let mut subscriber = other.client.subscribe("forgotten.*.*.*.*.*.*").await.unwrap();
    other.client.flush().await.unwrap();
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    sink.forget(&all, &claim).await.unwrap();
    for _ in 0..2 {
        let event: Value = serde_json::from_slice(&subscriber.next().await.unwrap().payload).unwrap();
        assert_eq!(event["type"], "dev.kollect.row.removed");
    }
    let remaining = other.messages(name, "forgotten.>").await;
    assert_eq!(remaining.len(), 2, "the removals stay until they expire, the record does not");
    assert!(remaining.iter().all(|message| !message.subject.ends_with("$holder")), "{remaining:?}");
}
