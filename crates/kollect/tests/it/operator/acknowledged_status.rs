//! Statuses report what sinks have acknowledged, and nothing else, also while changes wait, servers hang and objects
//! cannot be seen.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{
    Grant, Postgres,
    git::{GitHttp, Repository},
};
use serde_json::{Value, json};

use super::{OperatorTest, readers::Destinations};
use crate::program::eventually;

impl OperatorTest {
    /// The line of a sink in the status of the inventory `all`.
    fn export_line(&self, sink: &str) -> Value {
        self.export_line_of("kollectinventory/all", sink)
    }

    fn inventory_status(&self) -> Value {
        self.get("kollectinventory/all")["status"].clone()
    }

    fn revision_in_table(&self, postgres: &Postgres) -> String {
        let table = self.table();
        let sql = format!("SELECT revision FROM kollect_bindings WHERE inventory_table = '{table}'");
        postgres.psql(&sql).unwrap().trim().to_owned()
    }

    fn wait_for_status(&self, expectation: &str, mut found: impl FnMut(&Value) -> bool) {
        eventually(expectation, || {
            let status = self.inventory_status();
            found(&status).then_some(()).ok_or(status.to_string())
        });
    }
}

#[test]
fn changes_that_wait_for_the_cadence_are_pending_and_not_acknowledged() {
    let mut test = OperatorTest::new("pending");
    test.apply_config_map("a", "1");
    test.install();
    let reference = json!({ "name": "portal", "minChangeInterval": "10m" });
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [reference] }));
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    let before = test.export_line("database/portal");
    assert_eq!(before["rows"], 1);
    assert_eq!(before["revision"].to_string(), test.revision_in_table(test.postgres));
    test.apply_config_map("b", "1");
    test.apply_config_map("a", "2");
    test.wait_for_status("both wait", |status| status["sinkExports"][0]["pending"]["rows"] == 2);
    let line = test.export_line("database/portal");
    for field in ["revision", "lastChecksum", "rows", "lastExportTime"] {
        assert_eq!(line[field], before[field], "{field} is that of the table: {line}");
    }
    assert!(line["pending"]["since"].is_string() && line["pending"]["nextWriteTime"].is_string(), "{line}");
    let status = test.inventory_status();
    assert_eq!((&status["observedRevision"], &status["itemCount"]), (&before["revision"], &json!(1)));
    assert_eq!(test.rows(), ["a=1"]);
    assert_eq!(test.condition("kollectinventory/all", "Synced"), "True Exported", "within its cadence");
    test.wait_for_condition("kollectinventory/all", "ExportSucceeded", "True Exported");
}

/// A Git sink with files per row, and its repository.
pub(super) fn git_sink(test: &OperatorTest) -> Repository {
    let git = GitHttp::shared();
    let repository = git.create(&test.namespace).unwrap();
    test.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git" },
        "stringData": { "username": GitHttp::USER, "password": GitHttp::PASSWORD },
    }));
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &git.certificates().ca);
    let sink = json!({
        "type": "git", "endpoint": git.url(&test.namespace), "secretRef": { "name": "git" },
        "tls": { "caBundle": ca }, "layout": { "mode": "perResource" },
    });
    test.apply_kollect("KollectSnapshotSink", "git", sink);
    repository
}

fn files(repository: &Repository) -> usize {
    let tree = repository.git(&["ls-tree", "-r", "--name-only", "main"]).unwrap_or_default();
    tree.lines().filter(|line| line.contains(".yaml")).count()
}

#[test]
fn an_inventory_reports_the_revision_and_the_count_of_its_slowest_sink() {
    let mut test = OperatorTest::new("behind");
    test.apply_config_map("a", "1");
    test.install();
    let repository = git_sink(&test);
    let inventory = json!({ "databaseSinkRefs": ["portal"], "snapshotSinkRefs": ["git"] });
    test.apply_kollect("KollectInventory", "all", inventory);
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    // Two changes 2 s apart: the first is committed at once, the second waits for ten seconds.
    thread::sleep(Duration::from_secs(10));
    test.apply_config_map("b", "1");
    eventually("the first commit", || (files(&repository) == 2).then_some(()).ok_or(String::new()));
    thread::sleep(Duration::from_secs(1));
    test.apply_config_map("c", "1");
    test.wait_for_rows(&["a=1", "b=1", "c=1"]);
    let mut seen_behind = false;
    eventually("Git has it", || {
        let status = test.inventory_status();
        let line = |name: &str| {
            let lines = status["sinkExports"].as_array().unwrap();
            lines.iter().find(|line| line["name"] == name).unwrap().clone()
        };
        let (git, portal) = (line("snapshot/git"), line("database/portal"));
        // Read after the status: the repository may have more by now, and never less.
        let held = files(&repository);
        let reported = git["rows"].as_u64().and_then(|rows| usize::try_from(rows).ok()).unwrap();
        assert!(reported <= held, "{held} files, and {git}");
        let smallest = git["revision"].as_i64().min(portal["revision"].as_i64());
        assert_eq!(status["observedRevision"].as_i64(), smallest, "{status}");
        seen_behind |= git["pending"]["rows"] == 1 && portal["rows"] == 3 && status["itemCount"] == 2;
        (reported == 3).then_some(()).ok_or(status.to_string())
    });
    assert!(seen_behind, "Git waits, and the status says so");
    test.wait_for_status("nothing waits", |status| {
        let lines = status["sinkExports"].as_array().unwrap();
        lines.iter().all(|line| line["pending"].is_null()) && status["itemCount"] == 3
    });
}

#[test]
fn after_a_change_of_kind_the_reported_count_is_that_of_the_files() {
    let mut test = OperatorTest::new("kinds");
    for number in 0..20 {
        test.apply_config_map(&format!("m{number}"), "1");
    }
    test.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s", "labels": { "app": "shop" } },
        "spec": { "ports": [{ "port": 80 }] },
    }));
    test.install();
    let repository = git_sink(&test);
    test.apply_kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["git"] }));
    test.start(&[]);
    test.wait_for_status("all files", |status| status["itemCount"] == 20);
    assert_eq!(files(&repository), 20);
    let profile = json!({
        "targetGVK": { "version": "v1", "kind": "Service" },
        "attributes": [{ "name": "value", "path": "$.spec.type" }],
    });
    test.apply_kollect("KollectProfile", "maps", profile);
    test.wait_for_status("the new kind", |status| {
        let reported = status["sinkExports"][0]["rows"].as_u64().and_then(|rows| usize::try_from(rows).ok());
        let held = files(&repository);
        assert!(reported == Some(20) || held == 1, "{held} files, and {status}");
        reported == Some(1)
    });
    assert_eq!(files(&repository), 1);
}

#[test]
fn a_server_that_hangs_is_reported_after_ten_seconds_and_no_row_is_lost() {
    let mut test = OperatorTest::new("hanging");
    let server = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&server.dsn());
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectprofile/maps", "Exported", "True Exported");
    let before = test.export_line("database/portal");
    let frozen = server.freeze().unwrap();
    let began = Instant::now();
    test.apply_config_map("b", "1");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False Writing");
    let seconds = began.elapsed().as_secs();
    assert!((9..25).contains(&seconds), "after {seconds} s");
    test.wait_for_condition("kollectinventory/all", "Ready", "False Writing");
    test.wait_for_condition("kollectinventory/all", "Synced", "False Writing");
    test.wait_for_condition("kollectinventory/all", "Reconciling", "True Writing");
    let line = test.export_line("database/portal");
    for field in ["revision", "lastChecksum", "rows", "lastExportTime"] {
        assert_eq!(line[field], before[field], "{field} is that of the table: {line}");
    }
    assert_eq!(line["pending"]["rows"], 1, "{line}");
    test.wait_for_status("the lag", |status| status["sinkExports"][0]["lagSeconds"] == 10);
    drop(frozen);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_status("nothing waits", |status| {
        let line = &status["sinkExports"][0];
        line["pending"].is_null() && line["lagSeconds"].is_null() && line["rows"] == 2
    });
    let count = server.psql(&format!("SELECT count(*) FROM {}", test.table())).unwrap();
    assert_eq!(count, "2\n");
    assert_eq!(test.export_line("database/portal")["revision"].to_string(), test.revision_in_table(&server));

    // A comparison that takes long shows in the status as well.
    let frozen = server.freeze().unwrap();
    test.annotate("kollectinventory/all", "kollect.dev/requestedAt=1");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False Comparing");
    test.wait_for_condition("kollectinventory/all", "Synced", "False Comparing");
    test.wait_for_condition("kollectinventory/all", "Reconciling", "True Comparing");
    drop(frozen);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_status("handled", |status| status["lastHandledRequestedAt"] == "1");
}

#[test]
fn rows_that_wait_behind_slow_writes_are_pending() {
    let mut test = OperatorTest::new("slow");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let table = test.table();
    let slow = format!(
        "CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN PERFORM pg_sleep(6); RETURN NULL; END$$;
         CREATE TRIGGER slow AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_slow()"
    );
    test.postgres.psql(&slow).unwrap();
    // Each write takes six seconds, and changes meanwhile wait for it: a row is written after up to twelve seconds.
    let mut number = 0;
    test.wait_for_status("it is late", |status| {
        number += 1;
        test.apply_config_map(&format!("m{number}"), "1");
        thread::sleep(Duration::from_millis(500));
        let line = &status["sinkExports"][0];
        line["conditions"][0]["reason"] == "Pending"
    });
    test.wait_for_condition("kollectinventory/all", "Synced", "False Pending");
    test.wait_for_condition("kollectinventory/all", "Reconciling", "True Pending");
    test.postgres.psql(&format!("DROP TRIGGER slow ON {table}")).unwrap();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_status("all rows", |status| status["itemCount"] == number + 1);
}

/// A user with all rights but to list the collected kind, and with one more right.
pub(super) fn blind_user(test: &OperatorTest, more: Option<Grant>) -> std::path::PathBuf {
    let mut rules = vec![
        Grant::cluster("kollect.dev", &["*"], &["*"]),
        Grant::cluster("", &["namespaces", "secrets"], &["get", "list", "watch"]),
        Grant::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"]),
        Grant::cluster("", &["events"], &["create"]),
    ];
    rules.extend(more);
    test.plane.user(&test.namespace, "blind", &rules).unwrap()
}

#[test]
fn an_inventory_whose_objects_cannot_be_seen_is_not_ready_and_counts_frozen_rows() {
    let mut test = OperatorTest::new("wholly-blind");
    for number in 0..20 {
        test.apply_config_map(&format!("m{number}"), "1");
    }
    test.install();
    test.start(&[]);
    test.wait_for_status("all rows", |status| status["itemCount"] == 20);
    let before = test.export_line("database/portal");
    test.stop();
    thread::sleep(Duration::from_secs(2));
    test.kubeconfig = Some(blind_user(&test, None));
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "False NotSeen");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True NotSeen");
    test.wait_for_condition("kollectinventory/all", "Blind", "True NotSeen");
    test.wait_for_condition("kollecttarget/maps", "Exported", "False NotSeen");
    let status = test.inventory_status();
    assert_eq!(
        (&status["itemCount"], &status["sinkExports"][0]["rows"]),
        (&json!(20), &json!(20)),
        "{status}"
    );
    assert_eq!(status["sinkExports"][0]["lastChecksum"], before["lastChecksum"], "the rows are the same");
    assert_eq!(test.rows().len(), 20);
}

#[test]
fn an_inventory_names_its_target_that_is_suspended_or_has_no_profile_and_keeps_its_rows() {
    let mut test = OperatorTest::new("not-collected");
    test.apply_config_map("m1", "1");
    test.install();
    test.start(&[]);
    test.wait_for_status("all rows", |status| status["itemCount"] == 1);
    for (spec, expected) in [
        (json!({ "profileRef": "maps", "suspend": true }), "target {id} is suspended"),
        (
            json!({ "profileRef": "missing" }),
            "target {id} collects nothing (ProfileNotFound): see its condition Ready",
        ),
    ] {
        test.apply_kollect("KollectTarget", "maps", spec);
        let expected = expected.replace("{id}", &format!("{}/maps", test.namespace));
        test.wait_for_status(&expected, |_| {
            test.condition_message("kollectinventory/all", "Ready").contains(&expected)
        });
        assert_eq!(test.rows().len(), 1);
    }
}

#[test]
fn the_reported_count_is_right_within_seconds_in_any_order_of_objects() {
    let mut test = OperatorTest::new("order");
    test.install();
    test.delete("kollecttarget/maps");
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert!(test.condition_message("kollectinventory/all", "Ready").contains("no target is selected"));
    for number in 0..30 {
        test.apply_config_map(&format!("m{number}"), "1");
    }
    test.install();
    let began = Instant::now();
    test.wait_for_status("the count", |status| {
        let is_right = status["itemCount"] == 30;
        let ready = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .unwrap();
        assert!(
            is_right || ready["status"] == "False" || began.elapsed() < Duration::from_secs(6),
            "{status}"
        );
        is_right
    });
}

#[test]
fn a_sink_that_fails_for_a_minute_or_permanently_makes_the_inventory_not_ready() {
    let mut test = OperatorTest::new("partly");
    test.apply_config_map("a", "1");
    test.install();
    let mut second = Postgres::start().unwrap();
    test.apply_second_sink(&second);
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "second"] }));
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    second.crash();
    test.apply_config_map("b", "1");
    let began = Instant::now();
    test.wait_for_condition("kollectinventory/all", "Synced", "False PartiallySynced");
    assert_eq!(test.condition("kollectinventory/all", "Ready"), "True PartiallySynced");
    thread::sleep(Duration::from_secs(50).saturating_sub(began.elapsed()));
    assert_eq!(test.condition("kollectinventory/all", "Ready"), "True PartiallySynced");
    test.wait_for_condition("kollectinventory/all", "Ready", "False PartiallySynced");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True PartiallySynced");
    assert_eq!(test.condition("kollectinventory/all", "Stalled"), "", "it is tried again");
    // Ready and Synced name the sink with its field and say what is wrong; no other condition repeats it.
    let status = test.inventory_status();
    let conditions = status["conditions"].as_array().unwrap();
    let message = |type_: &str| {
        conditions.iter().find(|condition| condition["type"] == type_).unwrap()["message"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for type_ in ["Ready", "Synced"] {
        assert!(message(type_).contains("database/second (spec.databaseSinkRefs[1])"), "{}", message(type_));
    }
    let error = status["sinkExports"][1]["lastError"].as_str().unwrap();
    let repeated =
        conditions.iter().filter(|condition| condition["message"].as_str().unwrap().contains(error)).count();
    assert_eq!(repeated, 2, "{conditions:#?}");
    second.resume().unwrap();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert!(test.events_about("kollectinventory/all").contains(&"Warning PartiallySynced".to_owned()));

    // A permanent error: reported at once, and not retried until its cause is removed. The table does not exist.
    let mut sink = test.sink();
    sink["postgres"]["databaseRef"]["name"] = json!("second");
    sink["postgres"]["table"] = json!("there_is_no_such_table");
    sink["provisioning"] = json!({ "mode": "existing" });
    test.apply_kollect("KollectDatabaseSink", "second", sink);
    let began = Instant::now();
    test.wait_for_condition("kollectinventory/all", "Ready", "False PartiallySynced");
    test.wait_for_condition("kollectinventory/all", "Stalled", "True PartiallySynced");
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/second"),
        "Synced",
        "False ExportTerminal",
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // A sink that does not exist stalls the inventory as well.
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "missing"] }));
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/missing"),
        "Synced",
        "False SinkNotFound",
    );
    test.wait_for_condition("kollectinventory/all", "Stalled", "True PartiallySynced");
}

impl OperatorTest {
    /// `type reason` of the events about an object.
    pub(super) fn events_about(&self, resource: &str) -> Vec<String> {
        let name = resource.split_once('/').unwrap().1;
        let field = format!("involvedObject.name={name}");
        let text = self
            .plane
            .kubectl(&["get", "events", "-n", &self.namespace, "--field-selector", &field, "-o", "json"])
            .unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let events = list["items"].as_array().unwrap().iter();
        let kind = resource.split_once('/').unwrap().0;
        let about_object = events.filter(|event| {
            event["involvedObject"]["kind"].as_str().unwrap().to_lowercase() == kind.to_lowercase()
        });
        about_object
            .map(|event| format!("{} {}", event["type"].as_str().unwrap(), event["reason"].as_str().unwrap()))
            .collect()
    }
}

/// How often a profile is changed.
fn rounds() -> usize {
    std::env::var("TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(15)
}

/// Changes objects all the time, until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Load {
    fn start(test: &OperatorTest) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, plane, namespace) = (stop.clone(), test.plane, test.namespace.clone());
        let thread = thread::spawn(move || {
            let mut round = 0;
            while !stopped.load(Relaxed) {
                round += 1;
                let item = |number: usize| {
                    json!({
                        "apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": { "name": format!("load-{number}"), "namespace": namespace, "labels": { "app": "shop" } },
                        "data": { "value": "1", "other": "2", "round": round.to_string() },
                    })
                };
                let items: Vec<Value> = (0..10).map(item).collect();
                plane
                    .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
                    .unwrap();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn kubectl_wait_for_exported_after_an_edit_returns_when_every_sink_has_the_new_rows() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("exported", "east");
    // Objects that do not change by themselves: their rows must be those of the new generation.
    for number in 0..20 {
        test.apply_config_map(&format!("still-{number}"), "1");
    }
    test.start_with_files(&destinations);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let load = Load::start(&test);
    let wait = |what: &str| {
        let args = ["wait", "-n", &test.namespace, what, "--for=condition=Exported", "--timeout=60s"];
        test.plane.kubectl(&args).unwrap();
    };
    for round in 0..rounds() {
        let attributes = json!([
            { "name": "value", "path": "$.data.value" },
            { "name": format!("mark{round}"), "path": "cel:'yes'" },
        ]);
        let profile =
            json!({ "targetGVK": { "version": "v1", "kind": "ConfigMap" }, "attributes": attributes });
        test.apply_kollect("KollectProfile", "maps", profile);
        wait("kprof/maps");
        for sink in Destinations::ALL {
            let rows = destinations.attributes(sink, "east").unwrap();
            let mark = format!("mark{round}");
            let old: BTreeMap<_, _> = rows.iter().filter(|(_, row)| row[&mark] != "yes").collect();
            assert!(
                rows.len() >= 22 && old.is_empty(),
                "round {round}: {sink} has {} rows, {old:?}",
                rows.len()
            );
        }
    }
    // The same for targets and inventories.
    for round in 0..3 {
        let label = format!("app in (shop, x{round})");
        let target = json!({
            "profileRef": "maps", "includedNamespaces": [test.namespace],
            "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["shop", format!("x{round}")] }] },
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": "1" },
            "metadata": { "name": format!("x{round}"), "labels": { "app": format!("x{round}") } },
        });
        test.apply(map);
        test.apply_kollect("KollectTarget", "maps", target);
        wait("ktgt/maps");
        for sink in Destinations::ALL {
            let rows = destinations.attributes(sink, "east").unwrap();
            assert!(rows.contains_key(&format!("x{round}")), "{label}: {sink}");
        }
    }
    let none =
        json!({ "targetRefs": ["nothing"], "databaseSinkRefs": ["postgres"], "minChangeInterval": "0s" });
    test.apply_kollect("KollectInventory", "all", none);
    wait("kinv/all");
    assert_eq!(destinations.attributes("postgres", "east").unwrap().len(), 0);
    drop(load);
    test.wait_for_condition("kollecttarget/maps", "Exported", "False NotUsed");
    test.wait_for_condition("kollectprofile/maps", "Exported", "False NotUsed");
}

#[test]
fn kubectl_wait_after_one_apply_of_a_sink_and_its_inventory_returns_when_the_rows_are_there() {
    let mut test = OperatorTest::new("together");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    for round in 0..rounds() {
        // A changed Secret and a changed sink are read outside of the loop; meanwhile the old inventory is in force.
        let (target, expected) = if round % 2 == 0 { ("none", &[][..]) } else { ("maps", &["a=1"][..]) };
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({ "name": name, "namespace": test.namespace });
            json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
        };
        let mut sink = test.sink();
        sink["auditInterval"] = json!(format!("{}m", 10 + round));
        let dsn = format!("{}?application_name=round{round}", test.postgres.dsn());
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": { "dsn": dsn },
            "metadata": { "name": "portal", "namespace": test.namespace },
        });
        let inventory = json!({ "databaseSinkRefs": ["portal"], "targetRefs": [target] });
        let items = json!([
            secret,
            object("KollectDatabaseSink", "portal", sink),
            object("KollectInventory", "all", inventory),
        ]);
        test.plane.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).unwrap();
        let args = ["wait", "-n", &test.namespace, "kinv/all", "--for=condition=Exported", "--timeout=60s"];
        test.plane.kubectl(&args).unwrap();
        assert_eq!(test.rows(), expected, "round {round}");
    }
}

#[test]
fn rows_that_are_not_written_yet_are_not_exported_and_the_reason_is_reported() {
    let mut test = OperatorTest::new("on-its-way");
    let mut server = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&server.dsn());
    test.start(&[]);
    for what in ["kollectprofile/maps", "kollecttarget/maps", "kollectinventory/all"] {
        test.wait_for_condition(what, "Exported", "True Exported");
    }
    let exported = |what: &str| {
        let object = test.get(what);
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|condition| condition["type"] == "Exported").unwrap().clone();
        (
            condition["status"] == "True",
            condition["observedGeneration"].as_i64(),
            object["metadata"]["generation"].as_i64(),
        )
    };
    assert_eq!(exported("kollectprofile/maps"), (true, Some(1), Some(1)));
    // While the server hangs the rows of the new generation are not written: the last one was exported.
    let frozen = server.freeze().unwrap();
    let profile = json!({
        "targetGVK": { "version": "v1", "kind": "ConfigMap" },
        "attributes": [{ "name": "value", "path": "$.data.value" }, { "name": "more", "path": "$.metadata.name" }],
    });
    test.apply_kollect("KollectProfile", "maps", profile.clone());
    test.wait_for_condition("kollectprofile/maps", "Exported", "False Reconciling");
    assert_eq!(exported("kollectprofile/maps"), (false, Some(1), Some(2)));
    drop(frozen);
    test.wait_for_condition("kollectprofile/maps", "Exported", "True Exported");
    assert_eq!(exported("kollectprofile/maps"), (true, Some(2), Some(2)));
    // While the server is down, the status says so. Annotations do not change a generation.
    server.crash();
    test.annotate("kollectprofile/maps", "note=1");
    test.apply_kollect("KollectTarget", "maps", json!({ "profileRef": "maps", "names": ["a"] }));
    test.wait_for_condition("kollecttarget/maps", "Exported", "False ExportFailed");
    server.resume().unwrap();
    test.wait_for_condition("kollecttarget/maps", "Exported", "True Exported");
    // A restart does not change the conditions.
    let before = test.get("kollecttarget/maps")["status"]["conditions"].clone();
    test.stop();
    test.start(&[]);
    test.apply_config_map("a", "2");
    eventually("the row", || {
        let value = format!("SELECT payload #>> '{{attributes,value}}' FROM {}", test.table());
        let found = server.psql(&value).unwrap();
        (found == "2\n").then_some(()).ok_or(found)
    });
    assert_eq!(test.get("kollecttarget/maps")["status"]["conditions"], before);
    // Without a sink, and suspended.
    test.apply_kollect("KollectInventory", "all", json!({}));
    test.wait_for_condition("kollectinventory/all", "Exported", "False NoExport");
    test.wait_for_condition("kollecttarget/maps", "Exported", "False NoExport");
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"], "suspend": true }));
    test.wait_for_condition("kollectprofile/maps", "Exported", "False Suspended");
}

#[test]
fn an_operator_without_changes_runs_almost_no_turns() {
    // On a control plane of its own: namespaces that other tests create are changes, too.
    let mut test = OperatorTest::on(super::separate_plane(), "idle-loop");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&super::metrics::PLAIN);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectprofile/maps", "Exported", "True Exported");
    thread::sleep(Duration::from_secs(12));
    let turns = || test.metric(r#"kollect_reconcile_total{result="success"}"#).unwrap();
    let before = turns();
    thread::sleep(Duration::from_secs(20));
    assert!(turns() - before <= 1.0, "{} turns in 20 s", turns() - before);
}
