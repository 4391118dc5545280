//! Tables whose primary key lacks the API group and the kind, as older versions and the Go implementation
//! made them.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kollect_model::{
    batch::{Delta, Receipt},
    row::Row,
    sink::{Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{Plan, SinkPolicy, plan};
use kollect_testbed::Postgres;
use serde_json::json;

use crate::{
    conformance::{added, changed, holding, ingress, inventory, removed, row, write},
    postgres::{locking_session, planned, schema},
};

async fn open(plan: &Plan) -> Box<dyn Sink> {
    kollect_sinks::open(plan, &SinkPolicy::default()).await.unwrap()
}

/// One object in two groups.
fn one_object_in_two_groups() -> [Arc<Row>; 2] {
    [ingress("extensions", "u1", "{}"), ingress("networking.k8s.io", "u1", "{}")]
}

/// Behavior with the old key: one of two rows with one UID is refused by name, and all others are written. The
/// warning is given once.
async fn check_collisions(sink: &dyn Sink, advice: &str) {
    let all = inventory("", "all");
    let ([first, second], beside) = (one_object_in_two_groups(), row("beside", "{}"));
    let assert_second_refused = |receipt: &Receipt| {
        let [refusal] = receipt.refused.as_slice() else { unreachable!("{:?}", receipt.refused) };
        assert_eq!(refusal.key, second.key);
        for part in ["Ingress shop/cart-u1", "(uid u1)", "Ingress.networking.k8s.io", "Ingress.extensions"] {
            assert!(refusal.why.contains(part), "{part}: {}", refusal.why);
        }
    };
    // The order of rows in a delta has no effect.
    let receipt =
        write(sink, &all, None, &added(&[second.clone(), beside.clone(), first.clone()])).await.unwrap();
    assert_second_refused(&receipt);
    let [warning] = receipt.warnings.as_slice() else { unreachable!("{:?}", receipt.warnings) };
    assert!(
        warning.contains("primary key without api_group and kind") && warning.contains(advice),
        "{warning}"
    );
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&first, &beside]));

    // The stored row can change, and the other one does not replace it.
    let later = ingress("extensions", "u1", r#"{"n":1}"#);
    let delta = Delta { added: vec![second.clone()], changed: vec![changed(&later)], ..Delta::default() };
    let receipt = write(sink, &all, None, &delta).await.unwrap();
    assert_second_refused(&receipt);
    assert_eq!(receipt.warnings, Vec::<String>::new(), "reported once");
    let receipt = write(sink, &all, None, &added(std::slice::from_ref(&second))).await.unwrap();
    assert_second_refused(&receipt);
    let removal = Delta { removed: vec![removed(&second)], ..Delta::default() };
    write(sink, &all, None, &removal).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&later, &beside]));

    // The other row is written once the stored one is removed.
    let moved = Delta { added: vec![second.clone()], removed: vec![removed(&later)], ..Delta::default() };
    assert!(write(sink, &all, None, &moved).await.unwrap().refused.is_empty());
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&second, &beside]));

    // Enough rows that a sink uses its bulk path, for stored rows and for new ones.
    let many = |group: &str, attributes: &str| -> Vec<_> {
        (0..600).map(|i| ingress(group, &format!("u{i}"), attributes)).collect()
    };
    let many_rows = inventory("", "many");
    for attributes in ["{}", r#"{"n":1}"#] {
        let rows = [many("networking.k8s.io", attributes), many("extensions", attributes)].concat();
        let receipt = write(sink, &many_rows, None, &added(&rows)).await.unwrap();
        assert_eq!(receipt.refused.len(), 600);
        assert_eq!(sink.baseline(&many_rows).await.unwrap(), holding(&many("extensions", attributes)));
    }
}

/// Both rows of one object are written.
async fn check_both_fit(sink: &dyn Sink) {
    let both = inventory("", "twice");
    let receipt = write(sink, &both, None, &added(&one_object_in_two_groups())).await.unwrap();
    assert!(receipt.refused.is_empty() && receipt.warnings.is_empty(), "{receipt:?}");
    assert_eq!(sink.baseline(&both).await.unwrap(), holding(&one_object_in_two_groups()));
}

const OLD_KEY: &str = "cluster, inventory_namespace, inventory_name, target_name, source_uid";

/// A table of the last version, with 5,000 rows.
fn old_table(server: &Postgres, schema: &str) {
    server
        .psql(&format!(
            "ALTER TABLE {schema}.inventory DROP CONSTRAINT inventory_pkey, ADD PRIMARY KEY ({OLD_KEY});
             INSERT INTO {schema}.inventory
                 SELECT '', 'team', 'old', 'pods', 'u' || i, 'team', 'apps', 'v1', 'Deployment', 'shop', 'cart',
                     'shop', '{{}}', '', now(), now(), now() FROM generate_series(1, 5000) AS i"
        ))
        .unwrap();
}

/// A table of the Go implementation, with 5,000 rows.
fn go_table(server: &Postgres, schema: &str) {
    server
        .psql(&format!(
            "DROP TABLE {schema}.inventory, {schema}.kollect_bindings;
             CREATE TABLE {schema}.inventory (
                 inventory_namespace TEXT NOT NULL, inventory_name TEXT NOT NULL, target_name TEXT NOT NULL,
                 source_uid TEXT NOT NULL, cluster TEXT NOT NULL DEFAULT '',
                 resource_namespace TEXT NOT NULL DEFAULT '', payload JSONB NOT NULL,
                 exported_at TIMESTAMPTZ NOT NULL,
                 PRIMARY KEY (inventory_namespace, inventory_name, target_name, source_uid));
             INSERT INTO {schema}.inventory
                 SELECT 'team', 'old', 'pods', 'u' || i, '', 'shop',
                     '{{\"group\":\"apps\",\"version\":\"v1\",\"kind\":\"Deployment\"}}', now()
                 FROM generate_series(1, 5000) AS i"
        ))
        .unwrap();
}

/// The columns of the primary key in their order, and the OID of the constraint, which DDL would change.
fn primary_key(server: &Postgres, schema: &str) -> String {
    server
        .psql(&format!(
            "SELECT oid, conname, pg_get_constraintdef(oid) FROM pg_constraint
             WHERE conrelid = '{schema}.inventory'::regclass AND contype = 'p'"
        ))
        .unwrap()
}

/// Several operators open an old table at the same time, beside a reader in a transaction and a reader that polls.
async fn migrate_beside_readers(name: &'static str, make_table: fn(&Postgres, &str)) {
    let server = schema(name);
    let plan = planned(&server.dsn(), name, "ensure");
    drop(open(&plan).await);
    make_table(server, name);
    let count = format!("SELECT count(*) FROM {name}.inventory");
    let open_reader = locking_session(server, &count).await;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (stop, count) = (stop.clone(), count.clone());
        async move {
            let (client, connection) =
                tokio_postgres::connect(&server.dsn(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let mut reads = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 5_000);
                reads += 1;
            }
            reads
        }
    });
    let opening: Vec<_> = (0..3)
        .map(|_| {
            let plan = plan.clone();
            tokio::spawn(async move { open(&plan).await })
        })
        .collect();
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE relation = '{name}.inventory'::regclass
             AND mode = 'AccessExclusiveLock' AND NOT granted"
    );
    while open_reader.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The migration waits for the reader, which continues to read.
    assert_eq!(open_reader.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 5_000);
    open_reader.batch_execute("COMMIT").await.unwrap();
    let sinks = futures::future::join_all(opening).await;
    stop.store(true, Ordering::Relaxed);
    assert!(reader.await.unwrap() > 0);

    let key = primary_key(server, name);
    let expected = format!("|inventory_pkey|PRIMARY KEY ({OLD_KEY}, api_group, kind)\n");
    assert!(key.ends_with(&expected), "{key}");
    check_both_fit(&**sinks[0].as_ref().unwrap()).await;
    let held = sinks[1].as_ref().unwrap().baseline(&inventory("", "old")).await.unwrap();
    assert_eq!(held.len(), 5_000);
    // A second open changes nothing.
    drop(open(&plan).await);
    assert_eq!(primary_key(server, name), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_widens_the_key_of_a_table_in_use() {
    migrate_beside_readers("widened", old_table).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_migrates_a_table_of_the_go_implementation_in_use() {
    migrate_beside_readers("widened_go", go_table).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_the_old_key_of_existing_tables() {
    let server = schema("narrow");
    drop(open(&planned(&server.dsn(), "narrow", "ensure")).await);
    old_table(server, "narrow");
    let key = primary_key(server, "narrow");
    let sink = open(&planned(&server.dsn(), "narrow", "existing")).await;
    check_collisions(&*sink, "run: CREATE UNIQUE INDEX").await;
    assert_eq!(primary_key(server, "narrow"), key, "no DDL");
    let counted =
        server.psql("SELECT row_count FROM narrow.kollect_bindings WHERE inventory_name = 'all'").unwrap();
    assert_eq!(counted, "2\n");

    // The statements of the warning help, also a sink that is already open.
    let sink = open(&planned(&server.dsn(), "narrow", "existing")).await;
    let receipt = write(&*sink, &inventory("", "all"), None, &Delta::default()).await.unwrap();
    let (_, statements) = receipt.warnings[0].split_once("run: ").unwrap();
    server.psql(statements).unwrap();
    let both = inventory("", "twice");
    let error = write(&*sink, &both, None, &added(&one_object_in_two_groups())).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::WriteFailed, "{error}");
    check_both_fit(&*sink).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_a_key_that_it_may_not_change() {
    let server = schema("kept");
    drop(open(&planned(&server.dsn(), "kept", "ensure")).await);
    old_table(server, "kept");
    let key = primary_key(server, "kept");
    // A user who may write and not alter.
    server
        .psql(
            "CREATE ROLE kept_writer LOGIN; GRANT USAGE, CREATE ON SCHEMA kept TO kept_writer;
             GRANT ALL ON ALL TABLES IN SCHEMA kept TO kept_writer",
        )
        .unwrap();
    let dsn = format!("postgres://kept_writer@127.0.0.1:{}/postgres", server.port());
    check_collisions(&*open(&planned(&dsn, "kept", "ensure")).await, "run: CREATE UNIQUE INDEX").await;
    assert_eq!(primary_key(server, "kept"), key);

    // A view that depends on the primary key.
    server
        .psql(&format!(
            "TRUNCATE kept.inventory, kept.kollect_bindings;
             CREATE VIEW kept.v AS SELECT source_uid, name FROM kept.inventory GROUP BY {OLD_KEY}"
        ))
        .unwrap();
    let plan = planned(&server.dsn(), "kept", "ensure");
    check_collisions(&*open(&plan).await, "run: CREATE UNIQUE INDEX").await;
    assert_eq!(primary_key(server, "kept"), key);
    server.psql("DROP VIEW kept.v").unwrap();
    check_both_fit(&*open(&plan).await).await;
}

/// The table of rows in a file of the last version.
const OLD_FILE: &str = "
CREATE TABLE narrow (
    cluster TEXT NOT NULL DEFAULT '', inventory_namespace TEXT NOT NULL, inventory_name TEXT NOT NULL,
    target_name TEXT NOT NULL, source_uid TEXT NOT NULL, target_namespace TEXT NOT NULL,
    api_group TEXT NOT NULL, api_version TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, resource_namespace TEXT NOT NULL DEFAULT '', payload TEXT NOT NULL,
    row_digest TEXT NOT NULL, first_seen_at TEXT NOT NULL, changed_at TEXT NOT NULL, exported_at TEXT NOT NULL,
    PRIMARY KEY (cluster, inventory_namespace, inventory_name, target_name, source_uid));
DROP TABLE inventory;
ALTER TABLE narrow RENAME TO inventory;
CREATE INDEX inventory_by_object ON inventory (kind, namespace, name);
CREATE INDEX of_others ON inventory (name);
CREATE TABLE log (uid TEXT);
CREATE TRIGGER of_others_too AFTER INSERT ON inventory BEGIN INSERT INTO log VALUES (new.source_uid); END;
CREATE VIEW names AS SELECT name FROM inventory;
WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 5000)
    INSERT INTO inventory SELECT '', 'team', 'old', 'pods', 'u' || i, 'team', 'apps', 'v1', 'Deployment', 'shop',
        'cart', 'shop', '{}', '', '2026', '2026', '2026' FROM numbers;
DELETE FROM log;
PRAGMA user_version = 3;";

fn file_plan(file: &Path, mode: &str) -> Plan {
    let spec = json!({ "type": "sqlite", "sqlite": { "path": file }, "provisioning": { "mode": mode } });
    plan(&SinkSpec::Database(serde_json::from_value(spec).unwrap())).unwrap()
}

async fn old_file(file: &Path) -> rusqlite::Connection {
    drop(open(&file_plan(file, "ensure")).await);
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.execute_batch(OLD_FILE).unwrap();
    connection
}

fn number(connection: &rusqlite::Connection, query: &str) -> i64 {
    connection.query_row(query, [], |row| row.get(0)).unwrap()
}

const DEFINITIONS: &str = "SELECT group_concat(sql, ';') FROM sqlite_master";

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_widens_the_key_of_a_file_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.db");
    let open_reader = old_file(&file).await;
    open_reader.execute_batch("BEGIN").unwrap();
    assert_eq!(number(&open_reader, "SELECT count(*) FROM names"), 5_000);
    let stop = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (stop, file) = (stop.clone(), file.clone());
        move || {
            let connection = rusqlite::Connection::open(file).unwrap();
            let mut reads = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(number(&connection, "SELECT count(*) FROM inventory"), 5_000);
                reads += 1;
            }
            reads
        }
    });
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let plan = file_plan(&file, "ensure");
            tokio::spawn(async move { open(&plan).await })
        })
        .collect();
    let sinks = futures::future::join_all(opening).await;
    // A reader that began before still sees the old state; the migration did not wait for it.
    assert_eq!(number(&open_reader, "SELECT count(*) FROM names"), 5_000);
    assert_eq!(number(&open_reader, "PRAGMA user_version"), 3);
    open_reader.execute_batch("COMMIT").unwrap();
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);

    let sink = &**sinks[0].as_ref().unwrap();
    check_both_fit(sink).await;
    assert_eq!(sink.baseline(&inventory("", "old")).await.unwrap().len(), 5_000);
    for (query, expected) in [
        ("PRAGMA user_version", 5),
        ("SELECT count(*) FROM names", 5_002),
        ("SELECT count(*) FROM log", 2),
        (
            "SELECT count(*) FROM pragma_index_list('inventory') WHERE name IN ('of_others', 'inventory_by_object')",
            2,
        ),
        ("SELECT count(*) FROM pragma_table_info('inventory') WHERE pk > 0", 7),
        ("SELECT count(*) FROM sqlite_master WHERE name LIKE '%widened%'", 0),
    ] {
        assert_eq!(number(&open_reader, query), expected, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_the_old_key_of_existing_files() {
    let dir = tempfile::tempdir().unwrap();
    for (name, mode, change) in [
        ("existing.db", "existing", ""),
        ("extended.db", "ensure", "ALTER TABLE inventory ADD COLUMN of_others TEXT"),
        ("referred.db", "ensure", "CREATE TABLE other (uid TEXT REFERENCES inventory (source_uid))"),
    ] {
        let file = dir.path().join(name);
        let connection = old_file(&file).await;
        connection.execute_batch(change).unwrap();
        let definitions = || -> String { connection.query_row(DEFINITIONS, [], |row| row.get(0)).unwrap() };
        let before = definitions();
        let sink = open(&file_plan(&file, mode)).await;
        if name != "referred.db" {
            check_collisions(&*sink, "provisioning.mode: ensure").await;
            let counted =
                number(&connection, "SELECT row_count FROM kollect_bindings WHERE inventory_name = 'all'");
            assert_eq!(counted, 2, "{name}");
        }
        assert_eq!((definitions(), number(&connection, "PRAGMA user_version")), (before, 3), "{name}");
    }
    // Files of earlier versions cannot be used without a migration.
    let file = dir.path().join("second.db");
    old_file(&file).await.execute_batch("PRAGMA user_version = 2").unwrap();
    let refused = kollect_sinks::open(&file_plan(&file, "existing"), &SinkPolicy::default()).await;
    let Err(error) = refused else { unreachable!("no DDL in existing files") };
    assert_eq!(error.reason, SinkReason::Incompatible);
    assert!(error.to_string().contains("mode ensure"), "{error}");
}
