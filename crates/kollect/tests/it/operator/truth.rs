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
    Postgres, Rule,
    git::{GitHttp, Repository},
};
use serde_json::{Value, json};

use super::{World, readers::Destinations};
use crate::program::eventually;

impl World {
    /// What the status of the inventory says of a sink.
    fn line(&self, sink: &str) -> Value {
        self.export("kollectinventory/all", sink)
    }

    fn status(&self) -> Value {
        self.get("kollectinventory/all")["status"].clone()
    }

    /// The revision that the table holds.
    fn held_revision(&self, postgres: &Postgres) -> String {
        let table = self.table();
        let sql = format!("SELECT revision FROM kollect_bindings WHERE inventory_table = '{table}'");
        postgres.psql(&sql).unwrap().trim().to_owned()
    }

    fn eventually(&self, what: &str, mut found: impl FnMut(&Value) -> bool) {
        eventually(what, || {
            let status = self.status();
            found(&status).then_some(()).ok_or(status.to_string())
        });
    }
}

#[test]
fn law_12_changes_that_wait_for_the_cadence_are_pending_and_not_acknowledged() {
    let mut world = World::new("pending");
    world.map("a", "1");
    world.install();
    let reference = json!({ "name": "portal", "minChangeInterval": "10m" });
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [reference] }));
    world.start(&[]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    let before = world.line("database/portal");
    assert_eq!(before["rows"], 1);
    assert_eq!(before["revision"].to_string(), world.held_revision(world.postgres));
    world.map("b", "1");
    world.map("a", "2");
    world.eventually("both wait", |status| status["sinkExports"][0]["pending"]["rows"] == 2);
    let line = world.line("database/portal");
    for field in ["revision", "lastChecksum", "rows", "lastExportTime"] {
        assert_eq!(line[field], before[field], "{field} is that of the table: {line}");
    }
    assert!(line["pending"]["since"].is_string() && line["pending"]["nextWriteTime"].is_string(), "{line}");
    let status = world.status();
    assert_eq!((&status["observedRevision"], &status["itemCount"]), (&before["revision"], &json!(1)));
    assert_eq!(world.rows(), ["a=1"]);
    assert_eq!(world.condition("kollectinventory/all", "Synced"), "True Exported", "within its cadence");
    world.becomes("kollectinventory/all", "ExportSucceeded", "True Exported");
}

/// A Git sink with files per row, and its repository.
pub(super) fn git_sink(world: &World) -> Repository {
    let git = GitHttp::shared();
    let repository = git.create(&world.namespace).unwrap();
    world.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git" },
        "stringData": { "username": GitHttp::USER, "password": GitHttp::PASSWORD },
    }));
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &git.certificates().ca);
    let sink = json!({
        "type": "git", "endpoint": git.url(&world.namespace), "secretRef": { "name": "git" },
        "tls": { "caBundle": ca }, "layout": { "mode": "perResource" },
    });
    world.kollect("KollectSnapshotSink", "git", sink);
    repository
}

fn files(repository: &Repository) -> usize {
    let tree = repository.git(&["ls-tree", "-r", "--name-only", "main"]).unwrap_or_default();
    tree.lines().filter(|line| line.contains(".yaml")).count()
}

#[test]
fn law_12_the_sink_that_is_behind_decides_what_an_inventory_says() {
    let mut world = World::new("behind");
    world.map("a", "1");
    world.install();
    let repository = git_sink(&world);
    let inventory = json!({ "databaseSinkRefs": ["portal"], "snapshotSinkRefs": ["git"] });
    world.kollect("KollectInventory", "all", inventory);
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    // Two touches 2 s apart: the first is a commit, the second waits for ten seconds.
    thread::sleep(Duration::from_secs(10));
    world.map("b", "1");
    eventually("the first commit", || (files(&repository) == 2).then_some(()).ok_or(String::new()));
    thread::sleep(Duration::from_secs(1));
    world.map("c", "1");
    world.holds(&["a=1", "b=1", "c=1"]);
    let mut seen_behind = false;
    eventually("Git has it", || {
        let status = world.status();
        let line = |name: &str| {
            let lines = status["sinkExports"].as_array().unwrap();
            lines.iter().find(|line| line["name"] == name).unwrap().clone()
        };
        let (git, portal) = (line("snapshot/git"), line("database/portal"));
        // Read after the status: the repository may have more by now, and never less.
        let held = files(&repository);
        let told = git["rows"].as_u64().and_then(|rows| usize::try_from(rows).ok()).unwrap();
        assert!(told <= held, "{held} files, and {git}");
        let smallest = git["revision"].as_i64().min(portal["revision"].as_i64());
        assert_eq!(status["observedRevision"].as_i64(), smallest, "{status}");
        seen_behind |= git["pending"]["rows"] == 1 && portal["rows"] == 3 && status["itemCount"] == 2;
        (told == 3).then_some(()).ok_or(status.to_string())
    });
    assert!(seen_behind, "Git waits, and the status says so");
    world.eventually("nothing waits", |status| {
        let lines = status["sinkExports"].as_array().unwrap();
        lines.iter().all(|line| line["pending"].is_null()) && status["itemCount"] == 3
    });
}

#[test]
fn law_12_after_a_change_of_kind_the_count_is_that_of_the_files() {
    let mut world = World::new("kinds");
    for number in 0..20 {
        world.map(&format!("m{number}"), "1");
    }
    world.apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s", "labels": { "app": "shop" } },
        "spec": { "ports": [{ "port": 80 }] },
    }));
    world.install();
    let repository = git_sink(&world);
    world.kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["git"] }));
    world.start(&[]);
    world.eventually("all files", |status| status["itemCount"] == 20);
    assert_eq!(files(&repository), 20);
    let profile = json!({
        "targetGVK": { "version": "v1", "kind": "Service" },
        "attributes": [{ "name": "value", "path": "$.spec.type" }],
    });
    world.kollect("KollectProfile", "maps", profile);
    world.eventually("the new kind", |status| {
        let told = status["sinkExports"][0]["rows"].as_u64().and_then(|rows| usize::try_from(rows).ok());
        let held = files(&repository);
        assert!(told == Some(20) || held == 1, "{held} files, and {status}");
        told == Some(1)
    });
    assert_eq!(files(&repository), 1);
}

#[test]
fn law_12_a_server_that_hangs_shows_after_ten_seconds_and_nothing_is_lost() {
    let mut world = World::new("hanging");
    let server = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&server.dsn());
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectprofile/maps", "Exported", "True Exported");
    let before = world.line("database/portal");
    let frozen = server.freeze().unwrap();
    let began = Instant::now();
    world.map("b", "1");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False Writing");
    let seconds = began.elapsed().as_secs();
    assert!((9..25).contains(&seconds), "after {seconds} s");
    world.becomes("kollectinventory/all", "Ready", "False Writing");
    world.becomes("kollectinventory/all", "Synced", "False Writing");
    world.becomes("kollectinventory/all", "Reconciling", "True Writing");
    let line = world.line("database/portal");
    for field in ["revision", "lastChecksum", "rows", "lastExportTime"] {
        assert_eq!(line[field], before[field], "{field} is that of the table: {line}");
    }
    assert_eq!(line["pending"]["rows"], 1, "{line}");
    world.eventually("the lag", |status| status["sinkExports"][0]["lagSeconds"] == 10);
    drop(frozen);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.eventually("nothing waits", |status| {
        let line = &status["sinkExports"][0];
        line["pending"].is_null() && line["lagSeconds"].is_null() && line["rows"] == 2
    });
    let count = server.psql(&format!("SELECT count(*) FROM {}", world.table())).unwrap();
    assert_eq!(count, "2\n");
    assert_eq!(world.line("database/portal")["revision"].to_string(), world.held_revision(&server));

    // A comparison that takes long shows in the status as well.
    let frozen = server.freeze().unwrap();
    world.annotate("kollectinventory/all", "kollect.dev/requestedAt=1");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False Comparing");
    world.becomes("kollectinventory/all", "Synced", "False Comparing");
    world.becomes("kollectinventory/all", "Reconciling", "True Comparing");
    drop(frozen);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.eventually("handled", |status| status["lastHandledRequestedAt"] == "1");
}

#[test]
fn law_12_rows_that_wait_behind_slow_writes_are_pending() {
    let mut world = World::new("slow");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let table = world.table();
    let slow = format!(
        "CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN PERFORM pg_sleep(6); RETURN NULL; END$$;
         CREATE TRIGGER slow AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_slow()"
    );
    world.postgres.psql(&slow).unwrap();
    // Each write takes six seconds, and changes meanwhile wait for it: a row is written after up to twelve seconds.
    let mut number = 0;
    world.eventually("it is late", |status| {
        number += 1;
        world.map(&format!("m{number}"), "1");
        thread::sleep(Duration::from_millis(500));
        let line = &status["sinkExports"][0];
        line["conditions"][0]["reason"] == "Pending"
    });
    world.becomes("kollectinventory/all", "Synced", "False Pending");
    world.becomes("kollectinventory/all", "Reconciling", "True Pending");
    world.postgres.psql(&format!("DROP TRIGGER slow ON {table}")).unwrap();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.eventually("all rows", |status| status["itemCount"] == number + 1);
}

/// A user who may do everything but list what is collected, and more.
pub(super) fn blind_user(world: &World, more: Option<Rule>) -> std::path::PathBuf {
    let mut rules = vec![
        Rule::cluster("kollect.dev", &["*"], &["*"]),
        Rule::cluster("", &["namespaces", "secrets"], &["get", "list", "watch"]),
        Rule::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"]),
        Rule::cluster("", &["events"], &["create"]),
    ];
    rules.extend(more);
    world.plane.user(&world.namespace, "blind", &rules).unwrap()
}

#[test]
fn law_12_an_inventory_of_which_nothing_can_be_seen_is_not_ready_and_counts_what_is_frozen() {
    let mut world = World::new("wholly-blind");
    for number in 0..20 {
        world.map(&format!("m{number}"), "1");
    }
    world.install();
    world.start(&[]);
    world.eventually("all rows", |status| status["itemCount"] == 20);
    let before = world.line("database/portal");
    world.stop();
    thread::sleep(Duration::from_secs(2));
    world.kubeconfig = Some(blind_user(&world, None));
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "False NotSeen");
    world.becomes("kollectinventory/all", "Degraded", "True NotSeen");
    world.becomes("kollectinventory/all", "Blind", "True NotSeen");
    world.becomes("kollecttarget/maps", "Exported", "False NotSeen");
    let status = world.status();
    assert_eq!(
        (&status["itemCount"], &status["sinkExports"][0]["rows"]),
        (&json!(20), &json!(20)),
        "{status}"
    );
    assert_eq!(status["sinkExports"][0]["lastChecksum"], before["lastChecksum"], "the rows are the same");
    assert_eq!(world.rows().len(), 20);
}

#[test]
fn counts_are_there_within_seconds_in_whatever_order_objects_come() {
    let mut world = World::new("order");
    world.install();
    world.delete("kollecttarget/maps");
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert!(world.message("kollectinventory/all", "Ready").contains("no target is selected"));
    for number in 0..30 {
        world.map(&format!("m{number}"), "1");
    }
    world.install();
    let began = Instant::now();
    world.eventually("the count", |status| {
        let is_told = status["itemCount"] == 30;
        let ready = status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
        assert!(
            is_told || ready["status"] == "False" || began.elapsed() < Duration::from_secs(6),
            "{status}"
        );
        is_told
    });
}

#[test]
fn w36_one_sink_that_fails_for_good_or_for_a_minute_makes_the_inventory_not_ready() {
    let mut world = World::new("partly");
    world.map("a", "1");
    world.install();
    let mut away = Postgres::start().unwrap();
    world.second_sink(&away);
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "second"] }));
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    away.crash();
    world.map("b", "1");
    let began = Instant::now();
    world.becomes("kollectinventory/all", "Synced", "False PartiallySynced");
    assert_eq!(world.condition("kollectinventory/all", "Ready"), "True PartiallySynced");
    thread::sleep(Duration::from_secs(50).saturating_sub(began.elapsed()));
    assert_eq!(world.condition("kollectinventory/all", "Ready"), "True PartiallySynced");
    world.becomes("kollectinventory/all", "Ready", "False PartiallySynced");
    world.becomes("kollectinventory/all", "Degraded", "True PartiallySynced");
    assert_eq!(world.condition("kollectinventory/all", "Stalled"), "", "it is tried again");
    // Each condition says something else, and names the sink with its field.
    let status = world.status();
    let conditions = status["conditions"].as_array().unwrap();
    let message = |type_: &str| {
        conditions.iter().find(|c| c["type"] == type_).unwrap()["message"].as_str().unwrap().to_owned()
    };
    for type_ in ["Ready", "Synced"] {
        assert!(message(type_).contains("database/second (spec.databaseSinkRefs[1])"), "{}", message(type_));
    }
    let error = status["sinkExports"][1]["lastError"].as_str().unwrap();
    let repeated = conditions.iter().filter(|c| c["message"].as_str().unwrap().contains(error)).count();
    assert_eq!(repeated, 1, "{conditions:#?}");
    away.resume().unwrap();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert!(world.events_about("kollectinventory/all").contains(&"Warning PartiallySynced".to_owned()));

    // A permanent error: reported at once, and not retried until its cause is removed. The table does not exist.
    let mut sink = world.sink();
    sink["postgres"]["databaseRef"]["name"] = json!("second");
    sink["postgres"]["table"] = json!("there_is_no_such_table");
    sink["provisioning"] = json!({ "mode": "existing" });
    world.kollect("KollectDatabaseSink", "second", sink);
    let began = Instant::now();
    world.becomes("kollectinventory/all", "Ready", "False PartiallySynced");
    world.becomes("kollectinventory/all", "Stalled", "True PartiallySynced");
    world.export_becomes(("kollectinventory/all", "database/second"), "Synced", "False ExportTerminal");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // A sink that does not exist stalls the inventory as well.
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "missing"] }));
    world.export_becomes(("kollectinventory/all", "database/missing"), "Synced", "False SinkNotFound");
    world.becomes("kollectinventory/all", "Stalled", "True PartiallySynced");
}

impl World {
    /// `type reason` of the events about an object.
    pub(super) fn events_about(&self, what: &str) -> Vec<String> {
        let name = what.split_once('/').unwrap().1;
        let field = format!("involvedObject.name={name}");
        let text = self
            .plane
            .kubectl(&["get", "events", "-n", &self.namespace, "--field-selector", &field, "-o", "json"])
            .unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let events = list["items"].as_array().unwrap().iter();
        let kind = what.split_once('/').unwrap().0;
        let own = events.filter(|event| {
            event["involvedObject"]["kind"].as_str().unwrap().to_lowercase() == kind.to_lowercase()
        });
        own.map(|event| format!("{} {}", event["type"].as_str().unwrap(), event["reason"].as_str().unwrap()))
            .collect()
    }
}

/// How often a profile is changed.
fn times() -> usize {
    std::env::var("TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(15)
}

/// The objects of two namespaces change all the time, until this is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Load {
    fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, plane, namespace) = (stop.clone(), world.plane, world.namespace.clone());
        let thread = thread::spawn(move || {
            let mut round = 0;
            while !ended.load(Relaxed) {
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
    let (mut world, destinations) = World::five_sinks("exported", "east");
    // Objects that do not change by themselves: their rows must be those of the new generation.
    for number in 0..20 {
        world.map(&format!("still-{number}"), "1");
    }
    world.start_with_files(&destinations);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let load = Load::start(&world);
    let wait = |what: &str| {
        let args = ["wait", "-n", &world.namespace, what, "--for=condition=Exported", "--timeout=60s"];
        world.plane.kubectl(&args).unwrap();
    };
    for round in 0..times() {
        let attributes = json!([
            { "name": "value", "path": "$.data.value" },
            { "name": format!("mark{round}"), "path": "cel:'yes'" },
        ]);
        let profile =
            json!({ "targetGVK": { "version": "v1", "kind": "ConfigMap" }, "attributes": attributes });
        world.kollect("KollectProfile", "maps", profile);
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
    // Targets and inventories the same.
    for round in 0..3 {
        let label = format!("app in (shop, x{round})");
        let target = json!({
            "profileRef": "maps", "includedNamespaces": [world.namespace],
            "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["shop", format!("x{round}")] }] },
        });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": "1" },
            "metadata": { "name": format!("x{round}"), "labels": { "app": format!("x{round}") } },
        });
        world.apply(map);
        world.kollect("KollectTarget", "maps", target);
        wait("ktgt/maps");
        for sink in Destinations::ALL {
            let rows = destinations.attributes(sink, "east").unwrap();
            assert!(rows.contains_key(&format!("x{round}")), "{label}: {sink}");
        }
    }
    let none =
        json!({ "targetRefs": ["nothing"], "databaseSinkRefs": ["postgres"], "minChangeInterval": "0s" });
    world.kollect("KollectInventory", "all", none);
    wait("kinv/all");
    assert_eq!(destinations.attributes("postgres", "east").unwrap().len(), 0);
    drop(load);
    world.becomes("kollecttarget/maps", "Exported", "False NotUsed");
    world.becomes("kollectprofile/maps", "Exported", "False NotUsed");
}

#[test]
fn kubectl_wait_after_one_apply_of_a_sink_and_its_inventory_returns_when_the_rows_are_there() {
    let mut world = World::new("together");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    for round in 0..times() {
        // A changed Secret and a changed sink are looked at beside the loop; the inventory is what it was meanwhile.
        let (targets, expected) = if round % 2 == 0 { ("none", &[][..]) } else { ("maps", &["a=1"][..]) };
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({ "name": name, "namespace": world.namespace });
            json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
        };
        let mut sink = world.sink();
        sink["auditInterval"] = json!(format!("{}m", 10 + round));
        let dsn = format!("{}?application_name=round{round}", world.postgres.dsn());
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "stringData": { "dsn": dsn },
            "metadata": { "name": "portal", "namespace": world.namespace },
        });
        let inventory = json!({ "databaseSinkRefs": ["portal"], "targetRefs": [targets] });
        let items = json!([
            secret,
            object("KollectDatabaseSink", "portal", sink),
            object("KollectInventory", "all", inventory),
        ]);
        world
            .plane
            .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
            .unwrap();
        let args = ["wait", "-n", &world.namespace, "kinv/all", "--for=condition=Exported", "--timeout=60s"];
        world.plane.kubectl(&args).unwrap();
        assert_eq!(world.rows(), expected, "round {round}");
    }
}

#[test]
fn rows_that_are_on_their_way_are_not_exported_and_say_why() {
    let mut world = World::new("on-its-way");
    let mut server = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&server.dsn());
    world.start(&[]);
    for what in ["kollectprofile/maps", "kollecttarget/maps", "kollectinventory/all"] {
        world.becomes(what, "Exported", "True Exported");
    }
    let exported = |what: &str| {
        let object = world.get(what);
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|c| c["type"] == "Exported").unwrap().clone();
        (
            condition["status"] == "True",
            condition["observedGeneration"].as_i64(),
            object["metadata"]["generation"].as_i64(),
        )
    };
    assert_eq!(exported("kollectprofile/maps"), (true, Some(1), Some(1)));
    // While the server hangs the rows of the new generation are on their way: the last one was exported.
    let frozen = server.freeze().unwrap();
    let profile = json!({
        "targetGVK": { "version": "v1", "kind": "ConfigMap" },
        "attributes": [{ "name": "value", "path": "$.data.value" }, { "name": "more", "path": "$.metadata.name" }],
    });
    world.kollect("KollectProfile", "maps", profile.clone());
    world.becomes("kollectprofile/maps", "Exported", "False Reconciling");
    assert_eq!(exported("kollectprofile/maps"), (false, Some(1), Some(2)));
    drop(frozen);
    world.becomes("kollectprofile/maps", "Exported", "True Exported");
    assert_eq!(exported("kollectprofile/maps"), (true, Some(2), Some(2)));
    // While the server is down, the status says so. Annotations do not change a generation.
    server.crash();
    world.annotate("kollectprofile/maps", "note=1");
    world.kollect("KollectTarget", "maps", json!({ "profileRef": "maps", "names": ["a"] }));
    world.becomes("kollecttarget/maps", "Exported", "False ExportFailed");
    server.resume().unwrap();
    world.becomes("kollecttarget/maps", "Exported", "True Exported");
    // A restart does not change the conditions.
    let before = world.get("kollecttarget/maps")["status"]["conditions"].clone();
    world.stop();
    world.start(&[]);
    world.map("a", "2");
    eventually("the row", || {
        let value = format!("SELECT payload #>> '{{attributes,value}}' FROM {}", world.table());
        let found = server.psql(&value).unwrap();
        (found == "2\n").then_some(()).ok_or(found)
    });
    assert_eq!(world.get("kollecttarget/maps")["status"]["conditions"], before);
    // Without a sink, and suspended.
    world.kollect("KollectInventory", "all", json!({}));
    world.becomes("kollectinventory/all", "Exported", "False NoExport");
    world.becomes("kollecttarget/maps", "Exported", "False NoExport");
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"], "suspend": true }));
    world.becomes("kollectprofile/maps", "Exported", "False Suspended");
}

#[test]
fn an_operator_that_has_nothing_to_do_does_nothing() {
    // On a control plane of its own: namespaces that other tests create are changes, too.
    let mut world = World::on(super::own_plane(), "idle-loop");
    world.map("a", "1");
    world.install();
    world.start(&super::metrics::PLAIN);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectprofile/maps", "Exported", "True Exported");
    thread::sleep(Duration::from_secs(12));
    let turns = || world.number(r#"kollect_reconcile_total{result="success"}"#).unwrap();
    let before = turns();
    thread::sleep(Duration::from_secs(20));
    assert!(turns() - before <= 1.0, "{} turns in 20 s", turns() - before);
}
