//! PostgreSQL.

use std::{error::Error, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::{
    batch::{Baseline, Batch, Delta, RemovedRow},
    sink::{ErrorClass, Sink, SinkError, SinkReason, SinkSpec},
};
use kollect_sinks::{Plan, Secrets, SinkPolicy, plan, plan_out};
use kollect_testbed::Postgres;
use serde_json::{Value, json};

use crate::conformance::{
    Sql, added, assert_holds, changed, claimant, conformance, holding, inventory, removed, row, write,
};

/// A schema of its own on the shared server.
pub(crate) fn schema(name: &str) -> &'static Postgres {
    let server = Postgres::shared();
    server.psql(&format!("CREATE SCHEMA {name}")).unwrap();
    server
}

pub(crate) fn spec(schema: &str, mode: &str, tls: Value) -> SinkSpec {
    let spec = json!({
        "type": "postgres",
        "postgres": { "databaseRef": { "name": "db" }, "table": "inventory", "schema": schema },
        "provisioning": { "mode": mode },
        "tls": tls,
    });
    SinkSpec::Database(serde_json::from_value(spec).unwrap())
}

pub(crate) fn secrets(dsn: &str) -> Secrets {
    let mut secrets = Secrets::default();
    secrets.insert("spec.postgres.databaseRef", [("dsn".to_owned(), dsn.into())].into());
    secrets
}

pub(crate) fn planned(dsn: &str, schema: &str, mode: &str) -> Plan {
    plan(&spec(schema, mode, json!({}))).unwrap().with_secrets(&secrets(dsn)).unwrap()
}

async fn open(plan: &Plan) -> Result<Box<dyn Sink>, SinkError> {
    kollect_sinks::open(plan, &SinkPolicy::default()).await
}

pub(crate) async fn opened(server: &Postgres, schema: &str) -> Box<dyn Sink> {
    open(&planned(&server.dsn(), schema, "ensure")).await.unwrap()
}

async fn refused(plan: &Plan) -> SinkError {
    let Err(error) = open(plan).await else { unreachable!("{plan:?} must not open") };
    error
}

/// A session that has run `statements` in an open transaction: its locks block others.
pub(crate) async fn locking_session(server: &Postgres, statements: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.dsn(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("BEGIN; {statements}")).await.unwrap();
    client
}

/// Everything of an error that a user or a log could show.
pub(crate) fn full_text(error: &SinkError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_conforms() {
    let server = schema("conforms");
    let sql =
        async |statement: &str| server.psql(&format!("SET search_path = conforms; {statement}")).unwrap();
    conformance(&Sql { open: async || opened(server, "conforms").await, sql }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn provisioning_mode_existing_never_creates_a_table() {
    let server = schema("existing");
    let plan = planned(&server.dsn(), "existing", "existing");
    let tables = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'existing'";
    let error = refused(&plan).await;
    assert_eq!((error.reason, error.class()), (SinkReason::Missing, ErrorClass::Terminal));
    assert_eq!(server.psql(tables).unwrap(), "0\n");

    // The statements in the error message help.
    let text = error.to_string();
    let (_, statements) = text.split_once("run: ").unwrap();
    server.psql(statements).unwrap();
    let before = server.psql(tables).unwrap();
    let sink = open(&plan).await.unwrap();
    write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap();
    assert_eq!(server.psql(tables).unwrap(), before);

    server.psql("ALTER TABLE existing.inventory ALTER COLUMN payload TYPE text").unwrap();
    for mode in ["existing", "ensure"] {
        let error = refused(&planned(&server.dsn(), "existing", mode)).await;
        assert_eq!((error.reason, error.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
        assert!(error.to_string().contains("column payload is not of type jsonb"), "{error}");
    }
}

/// The table as the Go implementation creates it.
const REFERENCE: &str = "
CREATE TABLE legacy.inventory (
    inventory_namespace TEXT NOT NULL, inventory_name TEXT NOT NULL, target_name TEXT NOT NULL,
    source_uid TEXT NOT NULL, cluster TEXT NOT NULL DEFAULT '', resource_namespace TEXT NOT NULL DEFAULT '',
    payload JSONB NOT NULL, exported_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (inventory_namespace, inventory_name, target_name, source_uid));
INSERT INTO legacy.inventory VALUES
    ('team', 'all', 'pods', 'u1', '', 'shop', '{\"targetNamespace\":\"team\",\"targetName\":\"pods\",\"namespace\":\"shop\",\"name\":\"cart\",\"group\":\"apps\",\"version\":\"v1\",\"kind\":\"Deployment\",\"uid\":\"u1\",\"attributes\":{}}', '2024-05-06T07:08:09Z'),
    ('team', 'all', 'pods', 'u2', '', 'team', '{\"targetName\":\"pods\",\"name\":\"n1\",\"version\":\"v1\",\"kind\":\"Node\",\"uid\":\"u2\",\"attributes\":{}}', '2024-05-06T07:08:09Z'),
    ('team', 'all.part-0001-of-0002', 'pods', 'u3', '', 'team', '{}', '2024-05-06T07:08:09Z'),
    ('team', 'all.part-time', 'pods', 'u3', '', 'team', '{}', '2024-05-06T07:08:09Z')";

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_the_go_implementation_are_migrated() {
    let server = schema("legacy");
    server.psql(REFERENCE).unwrap();
    let error = refused(&planned(&server.dsn(), "legacy", "existing")).await;
    assert_eq!(error.reason, SinkReason::Missing);
    assert!(
        error.to_string().contains("ALTER TABLE \"legacy\".\"inventory\" ADD COLUMN target_namespace text"),
        "{error}"
    );
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'legacy'";
    assert_eq!(server.psql(columns).unwrap(), "8\n", "existing alters nothing");

    // Several sinks open it at the same time: one migrates, the others find it migrated.
    let sinks = futures::future::join_all((0..4).map(|_| opened(server, "legacy"))).await;
    let sink = &*sinks[0];
    let filled = server
        .psql("SELECT api_group, kind, namespace, name, target_namespace, first_seen_at = exported_at FROM legacy.inventory WHERE inventory_name = 'all' ORDER BY source_uid")
        .unwrap();
    assert_eq!(filled, "apps|Deployment|shop|cart|team|t\n|Node||n1||t\n");
    let all = inventory("", "all");
    let (one, two) = (row("u1", "{}"), row("u2", "{}"));
    let held = sink.baseline(&all).await.unwrap();
    assert_eq!(held.len(), 2);
    assert!(held.contains_key(&one.key), "{held:?}");

    let node = held.keys().find(|key| &*key.kind == "Node").unwrap();
    let delta = Delta {
        added: vec![two.clone()],
        changed: vec![changed(&one)],
        removed: vec![RemovedRow { key: node.clone(), before: None }],
    };
    write(sink, &all, Some("c1"), &delta).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two]));
    let state = server.psql("SELECT inventory_name, source_uid, first_seen_at < changed_at FROM legacy.inventory ORDER BY 1, 2").unwrap();
    assert_eq!(
        state, "all|u1|t\nall|u2|f\nall.part-time|u3|f\n",
        "parts are gone, other inventories are not"
    );
    // The key now includes the cluster.
    write(sink, &inventory("prod", "all"), Some("c2"), &added(std::slice::from_ref(&one))).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two]));
    let counts = server.psql("SELECT cluster, row_count FROM legacy.kollect_bindings ORDER BY 1").unwrap();
    assert_eq!(counts, "|2\nprod|1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tables_of_one_schema_do_not_fence_each_other() {
    let server = schema("neighbours");
    let url = |table: &str| format!("{}?schema=neighbours&table={table}", server.dsn());
    let (a, b) = (plan_out(&url("a")).unwrap(), plan_out(&url("b")).unwrap());
    let (a, b) = (open(&a).await.unwrap(), open(&b).await.unwrap());
    let all = inventory("", "all");
    let claim = a.claim(&all, &claimant(Some("c1"))).await.unwrap();
    b.claim(&all, &claimant(Some("c1"))).await.unwrap();
    a.write(&Batch::new(&all, &claim, &added(&[row("u1", "{}")]))).await.unwrap();
    assert_eq!(b.baseline(&all).await.unwrap(), Baseline::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_access_gets_an_error_that_says_why_and_holds_no_secret() {
    let server = schema("guarded");
    server
        .psql("CREATE ROLE with_password; CREATE ROLE guest LOGIN PASSWORD 'hunter2' IN ROLE with_password; GRANT USAGE ON SCHEMA guarded TO guest")
        .unwrap();
    drop(opened(server, "guarded").await);
    let dsn = |password: &str, database: &str| {
        format!("postgres://guest{password}@127.0.0.1:{}/{database}", server.port())
    };
    for (dsn, reason, class) in [
        (dsn(":wrongword", "postgres"), SinkReason::Forbidden, ErrorClass::Forbidden),
        (dsn("", "postgres"), SinkReason::Forbidden, ErrorClass::Forbidden),
        (dsn(":hunter2", "absent"), SinkReason::Missing, ErrorClass::Terminal),
        (
            "postgres://guest:hunter2@127.0.0.1:1/postgres".into(),
            SinkReason::Unreachable,
            ErrorClass::Transient,
        ),
        (
            "postgres://guest:hunter2@no.such.host.invalid/postgres".into(),
            SinkReason::Unreachable,
            ErrorClass::Transient,
        ),
        (
            format!("{}?sslmode=require", dsn(":hunter2", "postgres")),
            SinkReason::Incompatible,
            ErrorClass::Terminal,
        ),
    ] {
        let plan = planned(&dsn, "guarded", "ensure");
        let error = refused(&plan).await;
        let text = format!("{} {plan:?} {:?}", full_text(&error), secrets(&dsn));
        assert_eq!((error.reason, error.class()), (reason, class), "{text}");
        for secret in ["hunter2", "wrongword", &dsn] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let sink = open(&planned(&dsn(":hunter2", "postgres"), "guarded", "ensure")).await.unwrap();
    let all = inventory("", "all");
    for error in [
        sink.check().await.unwrap_err(),
        sink.baseline(&all).await.unwrap_err(),
        sink.claim(&all, &claimant(None)).await.unwrap_err(),
    ] {
        assert_eq!(
            (error.reason, error.class()),
            (SinkReason::Forbidden, ErrorClass::Forbidden),
            "{}",
            full_text(&error)
        );
    }
    server.psql("GRANT ALL ON ALL TABLES IN SCHEMA guarded TO guest").unwrap();
    let sink = open(&planned(&dsn(":hunter2", "postgres"), "guarded", "existing")).await.unwrap();
    sink.check().await.unwrap();

    // A user who may not create temporary tables can still write many rows.
    server.psql("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC").unwrap();
    let staged = open(&planned(&dsn(":hunter2", "postgres"), "guarded", "existing")).await.unwrap();
    for version in 1..=2 {
        let rows: Vec<_> =
            (0..1_200).map(|i| row(&format!("u{i}"), &format!(r#"{{"v":{version}}}"#))).collect();
        write(&*staged, &all, None, &added(&rows)).await.unwrap();
        assert_holds(&*staged, &all, &rows).await;
    }
    server.psql("REVOKE DELETE ON guarded.inventory FROM guest").unwrap();
    let error = sink.check().await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Forbidden);
    assert!(
        error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE ON \"guarded\".\"inventory\""),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_connections_and_does_not_answer_is_unreachable() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let dsn = format!("postgres://guest@127.0.0.1:{}/postgres", listener.local_addr().unwrap().port());
    let error = refused(&planned(&dsn, "public", "ensure")).await;
    assert_eq!(error.reason, SinkReason::Unreachable);
    assert!(error.to_string().ends_with("no answer within 10 s"), "{error}");
}

#[test]
fn command_lines_and_secrets_are_checked() {
    for (text, part) in [
        ("postgres://u:hunter2@h/db", "PGPASSWORD"),
        ("postgres://u@h/db?password=hunter2", "PGPASSWORD"),
        ("postgres://u@h/db?table=hunter2.x", "is not a name"),
        ("postgres:", "is not a connection string"),
    ] {
        let problem = plan_out(text).unwrap_err();
        assert!(problem.contains(part) && !problem.contains("hunter2"), "{problem}");
    }
    let bad = json!({
        "type": "postgres",
        "postgres": { "databaseRef": { "name": "db" }, "table": "a.b", "schema": "1" },
        "tls": { "caBundle": "AAAA" },
    });
    let errors = plan(&SinkSpec::Database(serde_json::from_value(bad).unwrap())).unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.postgres.schema", "spec.postgres.table", "spec.tls.caBundle"]);

    let plan = plan(&spec("public", "ensure", json!({}))).unwrap();
    for content in [json!({}), json!({ "password": "hunter2" }), json!({ "dsn": "hunter2" })] {
        let mut secrets = Secrets::default();
        let content = content.as_object().unwrap().iter();
        let content = content.map(|(key, value)| (key.clone(), value.as_str().unwrap().into())).collect();
        secrets.insert("spec.postgres.databaseRef", content);
        let errors = plan.clone().with_secrets(&secrets).unwrap_err();
        assert_eq!(errors[0].field, "spec.postgres.databaseRef");
        assert!(!errors[0].to_string().contains("hunter2"), "{}", errors[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_during_a_write_has_the_whole_delta_or_nothing() {
    let mut server = Postgres::start().unwrap();
    let sink = opened(&server, "public").await;
    let all = inventory("", "all");
    let first: Vec<_> = (0..20_000).map(|i| row(&format!("u{i}"), r#"{"v":1}"#)).collect();
    write(&*sink, &all, Some("c1"), &added(&first)).await.unwrap();
    let second: Vec<_> = (0..20_000).map(|i| row(&format!("u{i}"), r#"{"v":2}"#)).collect();
    let delta = Delta { changed: second.iter().map(changed).collect(), ..Delta::default() };
    let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let batch = Batch::new(&all, &claim, &delta);
    // The last row is locked, so the write cannot end.
    let lock = locking_session(&server, "SELECT FROM inventory WHERE source_uid = 'u19999' FOR UPDATE").await;
    let crash = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::task::block_in_place(|| server.crash());
    };
    let (outcome, ()) = tokio::join!(sink.write(&batch), crash);
    let error = outcome.unwrap_err();
    assert_eq!(
        (error.reason, error.class()),
        (SinkReason::Unreachable, ErrorClass::Transient),
        "{}",
        full_text(&error)
    );
    drop(lock);
    let error = sink.baseline(&all).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Unreachable);
    let error_while_down = refused(&planned(&server.dsn(), "public", "ensure")).await;
    assert_eq!(error_while_down.reason, SinkReason::Unreachable);

    server.resume().unwrap();
    let sink = opened(&server, "public").await;
    assert_holds(&*sink, &all, &first).await;
    write(&*sink, &all, Some("c1"), &delta).await.unwrap();
    assert_holds(&*sink, &all, &second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_never_see_a_part_of_a_delta() {
    let server = schema("halves");
    let sink = opened(server, "halves").await;
    let all = inventory("", "all");
    let rows = |version: usize| -> Vec<_> {
        (0..5_000).map(|i| row(&format!("u{i}"), &format!(r#"{{"v":{version}}}"#))).collect()
    };
    write(&*sink, &all, None, &added(&rows(0))).await.unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let reader = tokio::spawn(async move {
        let (client, connection) =
            tokio_postgres::connect(&server.dsn(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let query = "SELECT count(*), count(DISTINCT payload -> 'attributes' -> 'v') FROM halves.inventory";
        let mut reads = 0;
        while !*stopped.borrow() {
            let seen = client.query_one(query, &[]).await.unwrap();
            let seen: (i64, i64) = (seen.get(0), seen.get(1));
            assert_eq!(seen, (5_000, 1));
            reads += 1;
        }
        reads
    });
    for version in 1..=5 {
        let delta = Delta { changed: rows(version).iter().map(changed).collect(), ..Delta::default() };
        write(&*sink, &all, None, &delta).await.unwrap();
        let delta = Delta {
            added: rows(version + 100),
            removed: rows(version).iter().map(|row| removed(row)).collect(),
            ..Delta::default()
        };
        write(&*sink, &all, None, &delta).await.unwrap();
    }
    stop.send(true).unwrap();
    assert!(reader.await.unwrap() > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_write_leaves_nothing_and_the_sink_usable() {
    let server = schema("cancelled");
    let sink = opened(server, "cancelled").await;
    let all = inventory("", "all");
    let rows = |version: usize| -> Vec<_> {
        (0..2_000).map(|i| row(&format!("u{i}"), &format!(r#"{{"v":{version}}}"#))).collect()
    };
    write(&*sink, &all, None, &added(&rows(1))).await.unwrap();
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let delta = Delta { changed: rows(2).iter().map(changed).collect(), ..Delta::default() };
    let batch = Batch::new(&all, &claim, &delta);
    // The last row is locked, so the write cannot end.
    let locked = "SELECT FROM cancelled.inventory WHERE source_uid = 'u1999' FOR UPDATE";
    let lock = locking_session(server, locked).await;
    tokio::time::timeout(Duration::from_millis(500), sink.write(&batch)).await.unwrap_err();
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_holds(&*sink, &all, &rows(1)).await;
    sink.write(&batch).await.unwrap();
    assert_holds(&*sink, &all, &rows(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_inventory_is_busy() {
    let server = schema("locked");
    let sink = opened(server, "locked").await;
    let all = inventory("", "all");
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let lock = locking_session(server, "SELECT FROM locked.kollect_bindings FOR UPDATE").await;
    let delta = added(&[row("u1", "{}")]);
    let batch = Batch::new(&all, &claim, &delta);
    let error = sink.write(&batch).await.unwrap_err();
    assert_eq!(
        (error.reason, error.class()),
        (SinkReason::Busy, ErrorClass::Transient),
        "{}",
        full_text(&error)
    );
    lock.batch_execute("ROLLBACK").await.unwrap();
    sink.write(&batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_servers_are_checked_by_sslmode() {
    let server = Postgres::start_with_tls("localhost").unwrap();
    let other_server = Postgres::start_with_tls("localhost").unwrap();
    let bundle = |server: &Postgres| json!({ "caBundle": STANDARD.encode(server.certificate().unwrap()) });
    let (own_authority, other_authority, any_server) =
        (bundle(&server), bundle(&other_server), json!({ "insecureSkipVerify": true }));
    let no_settings = json!({});
    let good = None;
    let bad = Some(SinkReason::Incompatible);
    for (host, mode, tls, expected) in [
        ("localhost", "?sslmode=verify-full", &own_authority, good),
        ("127.0.0.1", "?sslmode=verify-full", &own_authority, bad),
        ("localhost", "?sslmode=verify-full", &other_authority, bad),
        ("localhost", "?sslmode=verify-full", &no_settings, bad),
        ("127.0.0.1", "?sslmode=verify-full", &any_server, good),
        ("127.0.0.1", "?sslmode=verify-ca", &own_authority, good),
        ("127.0.0.1", "?sslmode=verify-ca", &other_authority, bad),
        ("127.0.0.1", "?sslmode=require", &own_authority, good),
        ("127.0.0.1", "?sslmode=require", &other_authority, bad),
        ("127.0.0.1", "?sslmode=require", &no_settings, good),
        ("127.0.0.1", "?sslmode=prefer", &no_settings, good),
        ("localhost", "", &own_authority, good),
        ("127.0.0.1", "", &own_authority, bad),
        ("127.0.0.1", "?sslmode=disable", &no_settings, good),
    ] {
        let dsn = format!("postgres://postgres@{host}:{}/postgres{mode}", server.port());
        let plan =
            plan(&spec("public", "ensure", tls.clone())).unwrap().with_secrets(&secrets(&dsn)).unwrap();
        let outcome = open(&plan).await;
        let reason = outcome.as_ref().err().map(|error| error.reason);
        assert_eq!(reason, expected, "{host} {mode} {tls}: {:?}", outcome.as_ref().err().map(full_text));
        if outcome.is_ok() {
            let encrypted = server.psql("SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'kollect'").unwrap();
            assert_eq!(encrypted, if mode.ends_with("disable") { "f\n" } else { "t\n" }, "{host} {mode}");
        }
        drop(outcome);
        // The next case counts sessions, so wait until these are closed.
        while server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kollect'").unwrap()
            != "0\n"
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_one_schema_are_created_at_the_same_time() {
    let server = Postgres::shared();
    for round in 0..5 {
        let schema = format!("at_once_{round}");
        let open = |table: usize| {
            let url = format!("{}?schema={schema}&table=t{table}", server.dsn());
            let plan = plan_out(&url).unwrap();
            tokio::spawn(async move { open(&plan).await.map(drop) })
        };
        let opened: Vec<_> = (0..4).map(open).collect();
        for opened in opened {
            opened.await.unwrap().unwrap();
        }
    }
}
