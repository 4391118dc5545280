//! Claims of older versions: read, respected and upgraded.

use std::path::Path;

use kollect_model::{
    batch::Batch,
    claim::{Claim, Claimant, WriterProgram},
    sink::{Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{Plan, SinkPolicy, plan};
use kollect_testbed::{Nats, git::Repository};
use serde_json::{Value, json};

use crate::{
    conformance::{added, claimant, holding, inventory, row},
    postgres::{planned, schema},
};

async fn open(plan: &Plan) -> Box<dyn Sink> {
    kollect_sinks::open(plan, &SinkPolicy::default()).await.unwrap()
}

/// An operator of a cluster.
fn operator(owner: &str) -> Claimant {
    Claimant { writer: WriterProgram::Operator, ..claimant(Some(owner)) }
}

/// The claim that an older version wrote for an operator of cluster `c1`.
fn old_claim(epoch: i64) -> Claim {
    Claim { owner: Some("c1".into()), writer: WriterProgram::Operator, epoch, ..Claim::default() }
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
    assert_eq!((new.epoch, new.writer), (epoch + 1, WriterProgram::Operator));
    assert!(new.writer_id.is_some() && new.destination_id.is_some() && new.claimed_at.is_some(), "{new:?}");
    let delta = added(&[row("u2", "{}")]);
    let refused = sink.write(&Batch::new(&all, &old_claim(epoch), &delta)).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::Fenced);
    sink.write(&Batch::new(&all, &new, &delta)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&row("u1", "{}"), &row("u2", "{}")]));
}

/// Writes a row as an operator, and returns the epoch of its claim.
async fn write_row(sink: &dyn Sink) -> i64 {
    let all = inventory("", "all");
    let claim = sink.claim(&all, &operator("c1")).await.unwrap();
    sink.write(&Batch::new(&all, &claim, &added(&[row("u1", "{}")]))).await.unwrap();
    claim.epoch
}

fn database_plan(fields: Value) -> Plan {
    plan(&SinkSpec::Database(serde_json::from_value(fields).unwrap())).unwrap()
}

const NEWER_COLUMNS: [&str; 5] = ["writer_id", "destination_id", "claimed_at", "taken_from", "writes"];

#[tokio::test(flavor = "multi_thread")]
async fn old_claims_in_sqlite_are_upgraded() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.db");
    let plan_with_mode = |mode: &str| {
        database_plan(
            json!({ "type": "sqlite", "sqlite": { "path": file }, "provisioning": { "mode": mode } }),
        )
    };
    let epoch = write_row(&*open(&plan_with_mode("ensure")).await).await;
    let connection = rusqlite::Connection::open(&file).unwrap();
    for column in NEWER_COLUMNS {
        connection.execute_batch(&format!("ALTER TABLE kollect_bindings DROP COLUMN {column}")).unwrap();
    }
    connection.execute_batch("PRAGMA user_version = 4").unwrap();
    drop(connection);
    check_existing(&*open(&plan_with_mode("existing")).await, "provisioning.mode: ensure").await;
    check_upgrade(&*open(&plan_with_mode("ensure")).await, epoch + 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_claims_in_postgresql_are_upgraded() {
    let server = schema("old_claims");
    let plan_with_mode = |mode: &str| planned(&server.dsn(), "old_claims", mode);
    let epoch = write_row(&*open(&plan_with_mode("ensure")).await).await;
    let dropped = NEWER_COLUMNS.map(|column| format!("DROP COLUMN {column}")).join(", ");
    server.psql(&format!("ALTER TABLE old_claims.kollect_bindings {dropped}")).unwrap();
    check_existing(&*open(&plan_with_mode("existing")).await, "ADD COLUMN writer_id text").await;
    check_upgrade(&*open(&plan_with_mode("ensure")).await, epoch + 2).await;
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
    let refused = sink.write(&Batch::new(&all, &claim, &added(&[row("u3", "{}")]))).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::Fenced);
    let receipt = sink.write(&Batch::new(&all, &next, &added(&[row("u1", "{}")]))).await.unwrap();
    assert!(receipt.warnings.is_empty(), "reported once");
}

fn snapshot_plan(fields: Value) -> Plan {
    plan(&SinkSpec::Snapshot(serde_json::from_value(fields).unwrap())).unwrap()
}

fn old_claim_text(epoch: i64) -> String {
    json!({ "owner": "c1", "writer": "operator", "epoch": epoch, "nonce": "0123" }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_claims_in_files_are_upgraded() {
    let directory = tempfile::tempdir().unwrap();
    let sink =
        open(&snapshot_plan(json!({ "type": "filesystem", "filesystem": { "path": directory.path() } })))
            .await;
    let epoch = write_row(&*sink).await;
    let inventory_directory =
        std::fs::read_dir(directory.path().join(".kollect")).unwrap().next().unwrap().unwrap().path();
    let is_claim = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with("claim-");
    let files = std::fs::read_dir(inventory_directory).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| is_claim(path)) {
        std::fs::write(file, old_claim_text(epoch)).unwrap();
    }
    check_upgrade(&*sink, epoch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_claims_in_git_are_upgraded() {
    let directory = tempfile::tempdir().unwrap();
    let repository = Repository::at(directory.path().join("remote.git")).unwrap();
    let url = format!("file://{}", repository.path().display());
    let sink = open(&snapshot_plan(json!({ "type": "git", "endpoint": url }))).await;
    let epoch = write_row(&*sink).await;
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
        &old_claim_text(epoch),
    ]);
    git(&["update-ref", &reference, &commit]);
    check_upgrade(&*open(&snapshot_plan(json!({ "type": "git", "endpoint": url }))).await, epoch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_claims_in_nats_are_upgraded() {
    let (server, name) = (Nats::shared(), "old-claims");
    let spec = json!({
        "type": "nats", "mode": "rows", "nats": { "url": server.url(), "subject": name, "stream": name },
    });
    let sink = open(&plan(&SinkSpec::Event(serde_json::from_value(spec).unwrap())).unwrap()).await;
    let epoch = write_row(&*sink).await;
    let jetstream = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let subject = format!("{name}.default.team.all.$holder");
    jetstream.publish(subject, old_claim_text(epoch).into()).await.unwrap().await.unwrap();
    check_upgrade(&*sink, epoch).await;
}
