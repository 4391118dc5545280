//! SQLite files.

use std::path::Path;

use kollect_model::{
    batch::{Delta, InventoryId},
    sink::{ErrorClass, Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{FilePolicy, SinkPolicy, open, plan};
use serde_json::json;

use crate::conformance::{self, Sql, changed, conformance, removed, row};

fn inventory(cluster: &str) -> InventoryId {
    InventoryId { cluster: cluster.into(), namespace: Some("team".into()), name: "all".into() }
}

fn spec(file: &Path, mode: &str) -> SinkSpec {
    let spec = json!({ "type": "sqlite", "sqlite": { "path": file }, "provisioning": { "mode": mode } });
    SinkSpec::Database(serde_json::from_value(spec).unwrap())
}

async fn open_file(file: &Path) -> Box<dyn Sink> {
    open(&plan(&spec(file, "ensure")).unwrap(), &SinkPolicy::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.db");
    let sql = async |statement: &str| run_sql(&file, statement);
    conformance(&Sql { open: async || open_file(&file).await, sql }).await;
}

/// Runs a statement as another program; returns its rows as text.
fn run_sql(file: &Path, statement: &str) -> String {
    let connection = rusqlite::Connection::open(file).unwrap();
    let mut statement = connection.prepare(statement).unwrap();
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut text = String::new();
    while let Some(row) = rows.next().unwrap() {
        for column in 0..columns {
            let value: rusqlite::types::Value = row.get(column).unwrap();
            text.push_str(&match value {
                rusqlite::types::Value::Text(value) => value,
                rusqlite::types::Value::Integer(value) => value.to_string(),
                _ => String::new(),
            });
            text.push('\n');
        }
    }
    text
}

async fn write(sink: &dyn Sink, cluster: &str, owner: Option<&str>, delta: &Delta) -> Result<(), SinkReason> {
    let written = conformance::write(sink, &inventory(cluster), owner, delta).await;
    written.map(drop).map_err(|error| error.reason)
}

#[tokio::test]
async fn rows_come_back_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let sink = open_file(&dir.path().join("x.db")).await;
    sink.check().await.unwrap();
    let unusual = r#"{"n":9223372036854775807,"s":"it's \"quoted\" \u0000 🦀"}"#;
    let (one, two) = (row("u1", unusual), row("u2", "{}"));
    let delta = Delta { added: vec![one.clone(), two.clone()], ..Delta::default() };
    write(&*sink, "", Some("c1"), &delta).await.unwrap();
    let baseline = sink.baseline(&inventory("")).await.unwrap();
    assert_eq!(baseline.get(&one.key), Some(&one.digest));
    assert_eq!(baseline.len(), 2);

    let second = row("u1", r#"{"n":1}"#);
    let delta = Delta { changed: vec![changed(&second)], removed: vec![removed(&two)], ..Delta::default() };
    write(&*sink, "", Some("c1"), &delta).await.unwrap();
    let baseline = sink.baseline(&inventory("")).await.unwrap();
    assert_eq!(baseline.into_iter().collect::<Vec<_>>(), [(second.key.clone(), second.digest)]);

    let file = rusqlite::Connection::open(dir.path().join("x.db")).unwrap();
    let (n, first, last): (i64, String, String) = file
        .query_row(
            "SELECT payload ->> '$.attributes.n', first_seen_at, changed_at FROM inventory",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    assert_eq!(n, 1);
    assert!(first <= last);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_an_error_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.db");
    std::fs::write(&text, "this is not a database, it is a text file of some length").unwrap();
    let newer = dir.path().join("newer.db");
    rusqlite::Connection::open(&newer)
        .unwrap()
        .execute_batch("PRAGMA application_id = 1263488108; PRAGMA user_version = 99")
        .unwrap();
    let of_other_program = dir.path().join("foreign.db");
    rusqlite::Connection::open(&of_other_program)
        .unwrap()
        .execute_batch("CREATE TABLE precious (x)")
        .unwrap();
    for (file, mode, reason) in [
        (text.as_path(), "ensure", SinkReason::Incompatible),
        (&newer, "ensure", SinkReason::Incompatible),
        (&of_other_program, "ensure", SinkReason::Incompatible),
        (&dir.path().join("absent.db"), "existing", SinkReason::Missing),
        (&dir.path().join("no/such/dir/x.db"), "ensure", SinkReason::Missing),
    ] {
        let Err(error) = open(&plan(&spec(file, mode)).unwrap(), &SinkPolicy::default()).await else {
            unreachable!("{} must not open", file.display())
        };
        assert_eq!((error.reason, error.class()), (reason, ErrorClass::Terminal), "{error}");
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    }
    assert!(!dir.path().join("absent.db").exists(), "existing never creates");
    assert!(plan(&spec(Path::new(":memory:"), "ensure")).is_err(), "nothing would be kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fresh_file_can_be_opened_many_times_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let sinks = kollect_sinks::Sinks::default();
    for round in 0..20 {
        let file = dir.path().join(format!("{round}.db"));
        let planned = plan(&spec(&file, "ensure")).unwrap();
        let policy = SinkPolicy::default();
        let tasks = (0..16).map(|_| {
            let (sinks, planned, policy) = (sinks.clone(), planned.clone(), policy.clone());
            tokio::spawn(async move { sinks.open(&planned, &policy).await.map(drop) })
        });
        for opened in futures::future::join_all(tasks).await {
            opened.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn there_is_no_limit_on_rows_or_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let sink = open_file(&dir.path().join("x.db")).await;
    let attributes = format!(r#"{{"text":"{}"}}"#, "x".repeat(200));
    let mut added: Vec<_> = (0..50_000).map(|i| row(&format!("u{i}"), &attributes)).collect();
    added.push(row("large", &format!(r#"{{"text":"{}"}}"#, "x".repeat(2 << 20))));
    write(&*sink, "", None, &Delta { added, ..Delta::default() }).await.unwrap();
    assert_eq!(sink.baseline(&inventory("")).await.unwrap().len(), 50_001);
}

#[tokio::test]
async fn files_of_the_first_version_are_migrated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.db");
    let delta = Delta { added: vec![row("u1", "{}")], ..Delta::default() };
    write(&*open_file(&file).await, "", Some("c1"), &delta).await.unwrap();
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute_batch(
            "CREATE TABLE kollect_owners AS SELECT cluster, inventory_namespace, inventory_name, owner FROM kollect_bindings;
             DROP TABLE kollect_bindings; PRAGMA user_version = 1",
        )
        .unwrap();
    let sink = open_file(&file).await;
    assert_eq!(sink.baseline(&inventory("")).await.unwrap().len(), 1);
    assert_eq!(write(&*sink, "", Some("c2"), &delta).await, Err(SinkReason::OwnedByOther));
    write(&*sink, "", Some("c1"), &delta).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_files_stay_below_its_directory() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let below = SinkPolicy { files: FilePolicy::Below(root.path().join("team")), ..SinkPolicy::default() };
    let planned = |path: &str| plan(&spec(Path::new(path), "ensure")).unwrap();
    let rows = [row("u1", "{}")];
    let sink = open(&planned("deep/x.db"), &below).await.unwrap();
    write(&*sink, "", None, &conformance::added(&rows)).await.unwrap();
    assert!(root.path().join("team/deep/x.db").is_file());

    std::os::unix::fs::symlink(outside.path(), root.path().join("team/out")).unwrap();
    for (path, at_admission) in [("../x.db", true), ("/tmp/x.db", true), ("out/x.db", false)] {
        let refused = planned(path);
        assert_eq!(refused.check(&below).is_err(), at_admission, "{path}");
        let Err(error) = open(&refused, &below).await else { unreachable!("{path} must not open") };
        assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden), "{error}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);

    let no_files = SinkPolicy { files: FilePolicy::Refused, ..SinkPolicy::default() };
    let errors = planned("x.db").check(&no_files).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "spec.sqlite.path = \"x.db\": the operator was started without --file-sink-root"
    );
    let Err(error) = open(&planned("x.db"), &no_files).await else { unreachable!("x.db must not open") };
    assert_eq!(error.reason, SinkReason::Forbidden);
}

#[test]
fn one_file_is_one_destination_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("x.db");
    std::fs::write(&real, "").unwrap();
    std::os::unix::fs::symlink(&real, dir.path().join("link.db")).unwrap();
    let destination =
        |path: &Path, policy: &SinkPolicy| plan(&spec(path, "ensure")).unwrap().destination(policy);
    let anywhere = SinkPolicy::default();
    let name = destination(&real, &anywhere);
    let directory_name = Path::new(dir.path().file_name().unwrap());
    for same in
        [Path::new("link.db"), Path::new("./x.db"), &Path::new("..").join(directory_name).join("x.db")]
    {
        assert_eq!(destination(&dir.path().join(same), &anywhere), name, "{}", same.display());
    }
    // The operator accesses no file for a destination; it refuses links when it opens the file.
    let below = SinkPolicy { files: FilePolicy::Below(dir.path().to_owned()), ..SinkPolicy::default() };
    for path in ["x.db", "./x.db"] {
        assert_eq!(destination(Path::new(path), &below), name, "{path}");
    }
    for (one, other) in [("a.db", "b.db"), ("x.db", "X.db")] {
        assert_ne!(
            destination(&dir.path().join(one), &anywhere),
            destination(&dir.path().join(other), &anywhere)
        );
    }
    assert_eq!(
        destination(Path::new("absent.db"), &anywhere),
        destination(Path::new("./absent.db"), &anywhere)
    );
}
