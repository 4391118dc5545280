//! Previews against a real server: the statements that they show work.

use kollect_model::{crd::sinks::Preview, sink::SinkSpec};
use kollect_sinks::{SinkPolicy, open, plan};
use serde_json::{Value, json};

use crate::postgres;

/// The preview of a sink. No server is needed for it.
fn preview(spec: SinkSpec) -> Preview {
    plan(&spec).unwrap().preview("east")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_a_preview_create_a_usable_table() {
    let server = kollect_testbed::Postgres::shared();
    let ddl = |schema: &str| {
        preview(postgres::spec(schema, "existing", json!({}))).postgres.unwrap().expected_ddl.unwrap()
    };
    server.psql(&ddl("previewed")).unwrap();
    // `existing` opens only a complete table.
    let plan = postgres::planned(&server.dsn(), "previewed", "existing");
    open(&plan, &SinkPolicy::default()).await.unwrap();
    assert!(!ddl("public").contains("CREATE SCHEMA"), "it is always there");
}

#[tokio::test]
async fn the_statements_of_a_preview_create_a_usable_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.db");
    let spec = || {
        let spec =
            json!({ "type": "sqlite", "sqlite": { "path": file }, "provisioning": { "mode": "existing" } });
        SinkSpec::Database(serde_json::from_value(spec).unwrap())
    };
    let shown = preview(spec());
    assert_eq!(shown.warnings.len(), 1, "{shown:?}");
    let ddl = shown.sqlite.unwrap().expected_ddl.unwrap();
    rusqlite::Connection::open(&file).unwrap().execute_batch(&ddl).unwrap();
    open(&plan(&spec()).unwrap(), &SinkPolicy::default()).await.unwrap();
}

#[test]
fn messages_of_a_preview_are_those_of_its_mode() {
    let shown = |mode: &str| {
        let nats = json!({ "url": "nats://nats.example.com", "subject": "kollect.rows" });
        let spec = json!({ "type": "nats", "mode": mode, "nats": nats });
        let shown = preview(SinkSpec::Event(serde_json::from_value(spec).unwrap()));
        let nats = shown.nats.unwrap();
        assert_eq!(nats.stream.as_deref(), Some("kollect_events"));
        let message: Value = serde_json::from_str(&nats.sample_message.unwrap()).unwrap();
        (nats.subject.unwrap(), message)
    };
    let (subject, event) = shown("rows");
    assert!(subject.starts_with("kollect.rows.east.team-a.api.Deployment.team-a."), "{subject}");
    assert_eq!(event["type"], "dev.kollect.row.added");
    assert_eq!(event["data"]["after"]["attributes"]["replicas"], 3);
    let (subject, event) = shown("snapshot");
    assert_eq!(subject, "kollect.rows");
    assert_eq!((&event["cluster"], &event["payload"]["itemCount"]), (&json!("east"), &json!(2)));
}
