//! `mode: snapshot`, and the default mode.

use std::sync::Arc;

use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    row::Row,
    sink::{Delivery, Sink, SinkReason},
};
use kollect_sinks::plan;
use kollect_testbed::Nats;
use serde_json::json;

use super::{OtherClient, open, opened, planned, refused, settings, spec};
use crate::conformance::{added, claimant, inventory, row};

async fn send(sink: &dyn Sink, inventory: &InventoryId, rows: &[Arc<Row>], last: Option<&str>) -> Receipt {
    let claim = sink.claim(inventory, &claimant(Some("c1"))).await.unwrap();
    let delta = added(rows);
    let batch = Batch { last_checksum: last, generation: 3, ..Batch::new(inventory, &claim, &delta) };
    sink.write(&batch).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_an_event_in_the_documented_format() {
    let (server, name) = (Nats::shared(), "snapshots");
    let fields = json!({ "mode": null, "nats": { "stream": "snap.shots" } });
    let sink = open(&plan(&spec(&server.url(), name, "rows", fields)).unwrap()).await.unwrap();
    assert_eq!(sink.delivery(), Delivery::Snapshots);
    sink.check().await.unwrap();
    let (other, all) = (OtherClient::connect(server).await, inventory("east", "all"));
    let receipt = send(&*sink, &all, &[row("u2", "{}"), row("u1", r#"{"n":1}"#)], None).await;
    assert_eq!(sink.baseline(&all).await.unwrap(), Baseline::new());
    let sent = other.messages("snap_shots", name).await;
    assert_eq!(sent.len(), 1);
    let event = sent[0].json();
    let keys: Vec<&String> = event.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["cluster", "namespace", "payload", "schemaVersion", "timestamp"]);
    assert_eq!((&event["cluster"], &event["namespace"]), (&json!("east"), &json!("team")));
    let payload = &event["payload"];
    assert_eq!(payload["schemaVersion"], "kollect.dev/v1alpha1");
    assert_eq!((&payload["generation"], &payload["itemCount"]), (&json!(3), &json!(2)));
    assert_eq!(payload["items"][0]["uid"], "u1");
    assert_eq!(payload["checksum"].as_str(), receipt.checksum.as_deref());
    assert!(sent[0].body.starts_with(r#"{"schemaVersion":"kollect.dev/v1alpha1","timestamp":""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_without_rows_is_sent_as_an_event() {
    let (server, name) = (Nats::shared(), "w9");
    let (sink, other, all) =
        (opened(server, name, "snapshot").await, OtherClient::connect(server).await, inventory("", "all"));
    send(&*sink, &all, &[row("u1", "{}")], None).await;
    send(&*sink, &all, &[], None).await;
    let sent = other.messages(name, name).await;
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[1].json()["payload"]["items"], json!([]));
    // A forgotten inventory is sent as empty, too.
    let next = inventory("", "next");
    send(&*sink, &next, &[row("u1", "{}")], None).await;
    let claim = sink.claim(&next, &claimant(None)).await.unwrap();
    sink.forget(&next, &claim).await.unwrap();
    let sent = other.messages(name, name).await;
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[3].json()["payload"]["itemCount"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_snapshot_is_not_sent_again() {
    let (server, name) = (Nats::shared(), "w46");
    let (other, all) = (OtherClient::connect(server).await, inventory("", "all"));
    let sink = opened(server, name, "snapshot").await;
    let rows = [row("u1", "{}")];
    let checksum = send(&*sink, &all, &rows, None).await.checksum.unwrap();
    assert_eq!(send(&*sink, &all, &rows, None).await.checksum.as_deref(), Some(checksum.as_str()));
    // After a restart only its checksum is known.
    let restarted = opened(server, name, "snapshot").await;
    assert_eq!(send(&*restarted, &all, &rows, Some(&checksum)).await.checksum.as_ref(), Some(&checksum));
    assert_eq!(other.messages(name, name).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_returns_to_a_former_state_is_sent_and_a_repeated_one_is_not() {
    let (server, name) = (Nats::shared(), "returning");
    let (other, all) = (OtherClient::connect(server).await, inventory("", "all"));
    let sink = opened(server, name, "snapshot").await;
    let (a, b) = ([row("u1", r#"{"n":"a"}"#)], [row("u1", r#"{"n":"b"}"#)]);
    for rows in [&a, &b, &a, &b, &a, &b] {
        send(&*sink, &all, rows, None).await;
    }
    let sent = other.messages(name, name).await;
    let values: Vec<_> =
        sent.iter().map(|message| message.json()["payload"]["items"][0]["attributes"]["n"].clone()).collect();
    assert_eq!(values, ["a", "b", "a", "b", "a", "b"]);
    // The same snapshot from a writer that does not know whether it arrived: times differ, content does not.
    let unknown = inventory("", "unknown");
    for _ in 0..2 {
        send(&*opened(server, name, "snapshot").await, &unknown, &a, None).await;
    }
    assert_eq!(other.messages(name, name).await.len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_sinks_share_a_stream() {
    let (server, name) = (Nats::shared(), "sharing");
    let other = OtherClient::connect(server).await;
    other
        .create(json!({ "name": name, "subjects": ["sharing.theirs"], "max_age": 3_600_000_000_000_i64 }))
        .await;
    let before = settings(&other.stream(name).await);
    for _ in 0..2 {
        for subject in ["sharing.a", "sharing.b"] {
            let fields = json!({ "nats": { "subject": subject } });
            let sink = open(&plan(&spec(&server.url(), name, "snapshot", fields)).unwrap()).await.unwrap();
            send(&*sink, &inventory("", "all"), &[row("u1", "{}")], None).await;
        }
    }
    let after = other.stream(name).await;
    assert_eq!(settings(&after), before);
    assert_eq!(after["config"]["subjects"], json!(["sharing.theirs", "sharing.a", "sharing.b"]));
    assert_eq!(other.messages(name, "sharing.*").await.len(), 2);

    // A stream for rows keeps one message per subject: one inventory would replace the other.
    opened(server, "for_rows", "rows").await;
    let error = refused(&planned(&server.url(), "for_rows", "snapshot")).await;
    assert_eq!(error.reason, SinkReason::Incompatible);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_snapshots_are_split_and_rows_that_are_too_large_for_an_event_are_named() {
    let (server, name) = (Nats::shared(), "parts");
    let (sink, other, all) =
        (opened(server, name, "snapshot").await, OtherClient::connect(server).await, inventory("", "all"));
    let text = |megabytes: usize| format!(r#"{{"text":"{}"}}"#, "<".repeat(megabytes << 20));
    // Escapes make them six times as long.
    let mut rows: Vec<_> = (0..3).map(|i| row(&format!("u{i}"), &text(1))).collect();
    rows.push(row("large", &text(2)));
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let delta = added(&rows);
    let batch = Batch { part_bytes: 1 << 30, ..Batch::new(&all, &claim, &delta) };
    let receipt = sink.write(&batch).await.unwrap();
    assert_eq!(receipt.refused.len(), 1);
    assert!(receipt.refused[0].why.contains("uid large"), "{}", receipt.refused[0].why);
    let sent = other.messages(name, name).await;
    assert_eq!(sent.len(), 3);
    for (index, message) in sent.iter().enumerate() {
        let payload = &message.json()["payload"];
        assert_eq!((&payload["partIndex"], &payload["partTotal"]), (&json!(index + 1), &json!(3)));
    }
}
