//! Claims of older versions: read, respected and upgraded.

use std::path::Path;

use kollect_model::{
    batch::Batch,
    claim::{Claim, Claimant, Writer},
    sink::{Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{Plan, Policy, plan};
use kollect_testbed::{Nats, git::Repository};
use serde_json::{Value, json};

use crate::{
    conformance::{added, claimant, holding, inventory, row},
    postgres::{planned, schema},
};

async fn open(plan: &Plan) -> Box<dyn Sink> {
    kollect_sinks::open(plan, &Policy::default()).await.unwrap()
}

/// An operator of a cluster.
fn operator(owner: &str) -> Claimant {
    Claimant { writer: Writer::Operator, ..claimant(Some(owner)) }
}

/// The claim that an older version wrote for an operator of cluster `c1`.
fn old_claim(epoch: i64) -> Claim {
    Claim { owner: Some("c1".into()), writer: Writer::Operator, epoch, ..Claim::default() }
}

/// The claim of inventory `all` is one of an older version, with this epoch. Another cluster is refused, the same
/// cluster upgrades it, and the writer of the older version is fenced.
async fn check_upgrade(sink: &dyn Sink, epoch: i64) {
    let all = inventory("", "all");
    let held = sink.claims(std::slice::from_ref(&all)).await.unwrap().remove(0).unwrap();
    assert_eq!(held, old_claim(epoch));
    let refused = sink.claim(&all, &operator("c2")).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::OwnedByOther);
    let new = sink.claim(&all, &operator("c1")).await.unwrap();
    assert_eq!((new.epoch, new.writer), (epoch + 1, Writer::Operator));
    assert!(new.writer_id.is_some() && new.destination_id.is_some() && new.claimed_at.is_some(), "{new:?}");
    let delta = added(&[row("u2", "{}")]);
    let late = sink.write(&Batch::new(&all, &old_claim(epoch), &delta)).await.unwrap_err();
    assert_eq!(late.reason, SinkReason::Fenced);
    sink.write(&Batch::new(&all, &new, &delta)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&row("u1", "{}"), &row("u2", "{}")]));
}

/// Writes a row as an operator, and returns the epoch of its claim.
async fn filled(sink: &dyn Sink) -> i64 {
    let all = inventory("", "all");
    let claim = sink.claim(&all, &operator("c1")).await.unwrap();
    sink.write(&Batch::new(&all, &claim, &added(&[row("u1", "{}")]))).await.unwrap();
    claim.epoch
}

fn database(fields: Value) -> Plan {
    plan(&SinkSpec::Database(serde_json::from_value(fields).unwrap())).unwrap()
}

const NEWER: [&str; 5] = ["writer_id", "destination_id", "claimed_at", "taken_from", "writes"];

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_sqlite_get_their_columns() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.db");
    let at = |mode: &str| {
        database(json!({ "type": "sqlite", "sqlite": { "path": file }, "provisioning": { "mode": mode } }))
    };
    let epoch = filled(&*open(&at("ensure")).await).await;
    let connection = rusqlite::Connection::open(&file).unwrap();
    for column in NEWER {
        connection.execute_batch(&format!("ALTER TABLE kollect_bindings DROP COLUMN {column}")).unwrap();
    }
    connection.execute_batch("PRAGMA user_version = 4").unwrap();
    drop(connection);
    check_existing(&*open(&at("existing")).await, "provisioning.mode: ensure").await;
    check_upgrade(&*open(&at("ensure")).await, epoch + 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_postgresql_get_their_columns() {
    let server = schema("old_claims");
    let at = |mode: &str| planned(&server.dsn(), "old_claims", mode);
    let epoch = filled(&*open(&at("ensure")).await).await;
    let dropped = NEWER.map(|column| format!("DROP COLUMN {column}")).join(", ");
    server.psql(&format!("ALTER TABLE old_claims.kollect_bindings {dropped}")).unwrap();
    check_existing(&*open(&at("existing")).await, "ADD COLUMN writer_id text").await;
    check_upgrade(&*open(&at("ensure")).await, epoch + 2).await;
}

/// A table without the newer columns that may not be altered is used as it is, and a warning says what to do.
async fn check_existing(sink: &dyn Sink, advice: &str) {
    let all = inventory("", "all");
    let claim = sink.claim(&all, &operator("c1")).await.unwrap();
    assert_eq!((&claim.writer_id, &claim.destination_id, claim.writes), (&None, &None, None));
    let receipt = sink.write(&Batch::new(&all, &claim, &added(&[row("u1", "{}")]))).await.unwrap();
    let [warning] = receipt.warnings.as_slice() else { unreachable!("{:?}", receipt.warnings) };
    assert!(warning.contains("writer_id, destination_id") && warning.contains(advice), "{warning}");
    let next = sink.claim(&all, &operator("c1")).await.unwrap();
    let late = sink.write(&Batch::new(&all, &claim, &added(&[row("u3", "{}")]))).await.unwrap_err();
    assert_eq!(late.reason, SinkReason::Fenced);
    let receipt = sink.write(&Batch::new(&all, &next, &added(&[row("u1", "{}")]))).await.unwrap();
    assert!(receipt.warnings.is_empty(), "said once");
}

fn snapshots(fields: Value) -> Plan {
    plan(&SinkSpec::Snapshot(serde_json::from_value(fields).unwrap())).unwrap()
}

fn old_text(epoch: i64) -> String {
    json!({ "owner": "c1", "writer": "operator", "epoch": epoch, "nonce": "0123" }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_files_are_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    let sink =
        open(&snapshots(json!({ "type": "filesystem", "filesystem": { "path": directory.path() } }))).await;
    let epoch = filled(&*sink).await;
    let books = std::fs::read_dir(directory.path().join(".kollect")).unwrap().next().unwrap().unwrap().path();
    let claim = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("claim-");
    let files = std::fs::read_dir(books).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| claim(path)) {
        std::fs::write(file, old_text(epoch)).unwrap();
    }
    check_upgrade(&*sink, epoch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_git_are_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::at(directory.path().join("remote.git")).unwrap();
    let url = format!("file://{}", repository.path().display());
    let sink = open(&snapshots(json!({ "type": "git", "endpoint": url }))).await;
    let epoch = filled(&*sink).await;
    let git = |arguments: &[&str]| repository.git(arguments).unwrap().trim().to_owned();
    let reference = git(&["for-each-ref", "--format=%(refname)", "refs/kollect"]);
    let tree = git(&["rev-parse", &format!("{reference}^{{tree}}")]);
    let commit = git(&[
        "-c",
        "user.name=kollect",
        "-c",
        "user.email=kollect@kollect.dev",
        "commit-tree",
        &tree,
        "-m",
        &old_text(epoch),
    ]);
    git(&["update-ref", &reference, &commit]);
    check_upgrade(&*open(&snapshots(json!({ "type": "git", "endpoint": url }))).await, epoch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_nats_are_brought_up_to_date() {
    let (server, name) = (Nats::shared(), "old-claims");
    let spec = json!({
        "type": "nats", "mode": "rows", "nats": { "url": server.url(), "subject": name, "stream": name },
    });
    let sink = open(&plan(&SinkSpec::Event(serde_json::from_value(spec).unwrap())).unwrap()).await;
    let epoch = filled(&*sink).await;
    let jetstream = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let subject = format!("{name}.default.team.all.$holder");
    jetstream.publish(subject, old_text(epoch).into()).await.unwrap().await.unwrap();
    check_upgrade(&*sink, epoch).await;
}
