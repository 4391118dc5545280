//! `kollect operator` beside a real control plane, with real sinks. Each test has a namespace of its own
//! and an operator that looks at nothing else.

mod alerts;
mod behind;
mod crashes;
mod discovery;
mod faults;
mod finalizers;
mod git;
mod leaving;
mod logs;
mod metrics;
mod namespaces;
mod network;
mod preview;
mod reach;
mod readers;
mod reasons;
mod recovery;
mod removals;
mod secrets;
mod selected;
mod stopping;
mod truth;
mod unseen;

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use kollect_testbed::{ControlPlane, Postgres, Proxy, Rule};
use serde_json::{Value, json};

use crate::{
    logs::check_lines,
    program::{eventually, root},
};

/// The definitions of all kinds, once per control plane.
fn plane() -> &'static ControlPlane {
    use std::sync::Once;
    static INSTALLED: Once = Once::new();
    let plane = ControlPlane::shared();
    INSTALLED.call_once(|| {
        let crds = root().join("config/crd/bases");
        plane.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]).unwrap();
        let kinds = "crd/kollectinventories.kollect.dev";
        plane.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", kinds]).unwrap();
    });
    plane
}

struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        if std::thread::panicking() {
            eprintln!("--- log of the operator\n{log}");
        } else {
            check_lines(&log);
        }
    }
}

/// A namespace with an operator.
struct World {
    plane: &'static ControlPlane,
    postgres: &'static Postgres,
    namespace: String,
    /// Where the operator looks; empty: everywhere.
    watched: String,
    /// Of the operator; else that of the control plane.
    kubeconfig: Option<PathBuf>,
    /// Of the operator, besides that of the test.
    environment: Vec<(String, String)>,
    /// Ends before its log is gone.
    operator: Option<Operator>,
    dir: tempfile::TempDir,
}

impl World {
    fn new(name: &str) -> Self {
        Self::on(plane(), name)
    }

    fn on(plane: &'static ControlPlane, name: &str) -> Self {
        let postgres = Postgres::shared();
        let namespace = plane.namespace(name).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let watched = namespace.clone();
        let environment = Vec::new();
        Self { plane, postgres, namespace, watched, kubeconfig: None, environment, operator: None, dir }
    }

    fn start(&mut self, args: &[&str]) {
        let log = self.dir.path().join("operator.log");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_kollect"))
            .args(["operator", "--kubeconfig"])
            .arg(self.kubeconfig.as_deref().unwrap_or(self.plane.kubeconfig()))
            .args(["--watch-namespaces", &self.watched])
            .args(if args.contains(&"--allow-sink-cidrs") {
                &[][..]
            } else {
                &["--allow-sink-cidrs", "127.0.0.0/8,::1/128"]
            })
            .args(["--health-probe-bind-address", "127.0.0.1:0"])
            .args(if args.contains(&"--log-level") { &[][..] } else { &["--log-level", "kollect=debug"] })
            .arg("--validating-webhooks-enabled=false")
            .env("KOLLECT_GIT_MIRROR_DIR", self.dir.path().join("mirrors"))
            .envs(self.environment.iter().cloned())
            .args(args)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        self.operator = Some(Operator { child, log });
    }

    fn stop(&mut self) {
        let mut operator = self.operator.take().unwrap();
        let pid = operator.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(operator.child.wait().unwrap().success(), "a clean stop");
    }

    fn apply(&self, mut object: Value) {
        object["metadata"]["namespace"] = json!(self.namespace);
        self.plane.apply(&object.to_string()).unwrap();
    }

    fn map(&self, name: &str, value: &str) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "app": "shop" } },
            "data": { "value": value },
        }));
    }

    fn kollect(&self, kind: &str, name: &str, spec: Value) {
        self.apply(json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        }));
    }

    fn table(&self) -> String {
        self.namespace.replace('-', "_")
    }

    /// Profile, target, sink with its Secret, inventory.
    fn install(&self) {
        self.plane.apply(&self.everything().to_string()).unwrap();
    }

    fn everything(&self) -> Value {
        let object = |kind: &str, name: &str, spec: Value| {
            json!({
                "apiVersion": "kollect.dev/v1alpha1", "kind": kind,
                "metadata": { "name": name, "namespace": self.namespace }, "spec": spec,
            })
        };
        let profile = json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "value", "path": "$.data.value" }],
        });
        let target = json!({
            "profileRef": "maps", "includedNamespaces": [self.namespace],
            "labelSelector": { "matchLabels": { "app": "shop" } },
        });
        json!({ "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "portal", "namespace": self.namespace },
                "stringData": { "dsn": self.postgres.dsn() },
            },
            object("KollectProfile", "maps", profile),
            object("KollectTarget", "maps", target),
            object("KollectDatabaseSink", "portal", self.sink()),
            object("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] })),
        ] })
    }

    fn sink(&self) -> Value {
        json!({ "type": "postgres", "postgres": { "databaseRef": { "name": "portal" }, "table": self.table() } })
    }

    fn secret(&self, dsn: &str) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal" }, "stringData": { "dsn": dsn },
        }));
    }

    fn get(&self, what: &str) -> Value {
        let text = self.plane.kubectl(&["get", "-n", &self.namespace, what, "-o", "json"]).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn delete(&self, what: &str) {
        self.plane.kubectl(&["delete", "-n", &self.namespace, what, "--wait=false"]).unwrap();
    }

    /// `status reason` of a condition.
    fn condition(&self, what: &str, type_: &str) -> String {
        let object = self.get(what);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == type_);
        found.map_or_else(String::new, |condition| {
            format!("{} {}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
        })
    }

    /// The message of a condition, once it is there.
    fn message(&self, what: &str, type_: &str) -> String {
        let mut message = String::new();
        eventually(&format!("{what} {type_}"), || {
            let conditions = self.get(what)["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().find(|condition| condition["type"] == type_);
            message = found.ok_or("not yet")?["message"].to_string();
            Ok(())
        });
        message
    }

    fn becomes(&self, what: &str, type_: &str, expected: &str) {
        eventually(&format!("{what} {type_} {expected}"), || {
            let found = self.condition(what, type_);
            (found == expected).then_some(()).ok_or(found)
        });
    }

    /// All objects of ours but connection tests.
    fn objects(&self) -> Vec<Value> {
        let kinds = "kollectprofiles,kollecttargets,kollectdatabasesinks,kollectinventories";
        self.get(kinds)["items"].as_array().cloned().unwrap_or_default()
    }

    /// Those that are not ready.
    fn unready(objects: &[Value]) -> Vec<String> {
        let ready = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let name = |object: &Value| format!("{}/{}", object["kind"], object["metadata"]["name"]);
        objects.iter().filter(|object| !ready(object)).map(name).collect()
    }

    /// The rows of the table: name and value.
    fn rows(&self) -> Vec<String> {
        let sql = format!(
            "SELECT name || '=' || (payload #>> '{{attributes,value}}') FROM {} ORDER BY 1",
            self.table()
        );
        self.postgres
            .psql(&sql)
            .map_or_else(|_| vec!["no table".into()], |text| text.lines().map(Into::into).collect())
    }

    fn holds(&self, expected: &[&str]) {
        eventually(&format!("{expected:?}"), || {
            let found = self.rows();
            (found == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    }
}

#[test]
fn objects_reach_the_table_and_statuses_say_so() {
    let mut world = World::new("whole");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    world.becomes("kollectprofile/maps", "Ready", "True Compiled");
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    world.map("b", "2");
    world.map("a", "3");
    world.holds(&["a=3", "b=2"]);
    eventually("counts", || {
        let status = world.get("kollectinventory/all")["status"].clone();
        let counts = (&status["itemCount"], &status["sinkExports"][0]["rows"]);
        (counts == (&json!(2), &json!(2))).then_some(()).ok_or(status.to_string())
    });

    // A restart with nothing changed writes nothing; Ready does not flicker.
    let stamp = format!("SELECT max(exported_at), max(xmin::text::bigint) FROM {}", world.table());
    let before = world.postgres.psql(&stamp).unwrap();
    let ready = world.get("kollectinventory/all")["status"]["conditions"].clone();
    world.stop();
    world.start(&[]);
    world.map("c", "1");
    world.holds(&["a=3", "b=2", "c=1"]);
    let sql =
        format!("SELECT max(exported_at), max(xmin::text::bigint) FROM {} WHERE name <> 'c'", world.table());
    assert_eq!(world.postgres.psql(&sql).unwrap(), before);
    let time = |conditions: &Value| {
        let all = conditions.as_array().unwrap();
        all.iter().find(|c| c["type"] == "Ready").map(|c| c["lastTransitionTime"].clone())
    };
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let again = world.get("kollectinventory/all")["status"]["conditions"].clone();
    assert_eq!(time(&ready), time(&again));
}

#[test]
fn w61_a_removed_reference_and_a_deleted_inventory_leave_nothing_behind() {
    let mut world = World::new("cleaned");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.holds(&["a=1"]);
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    world.holds(&[]);
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");

    // Deleted while no operator runs: cleaned at the next start.
    world.operator.as_mut().unwrap().kill();
    world.delete("kollectinventory/all");
    assert_eq!(world.rows(), ["a=1"]);
    world.start(&[]);
    world.holds(&[]);
    eventually("the inventory is gone", || {
        let gone = world.plane.kubectl(&["get", "-n", &world.namespace, "kollectinventory/all"]);
        gone.is_err().then_some(()).ok_or("it is still there".into())
    });
    let bindings =
        format!("SELECT count(*) FROM kollect_bindings WHERE inventory_table = '{}'", world.table());
    assert_eq!(world.postgres.psql(&bindings).unwrap(), "0\n");
}

#[test]
fn w24_w40_faults_show_with_their_reason_and_mending_them_is_enough() {
    let mut world = World::new("mended");
    world.map("a", "1");
    world.kollect(
        "KollectTarget",
        "maps",
        json!({
            "profileRef": "maps", "includedNamespaces": [world.namespace],
            "labelSelector": { "matchLabels": { "app": "shop" } },
        }),
    );
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    world.start(&[]);
    world.becomes("kollecttarget/maps", "Degraded", "True ProfileNotFound");
    world.becomes("kollecttarget/maps", "Ready", "False ProfileNotFound");
    world.becomes("kollectinventory/all", "Degraded", "True SinkNotFound");
    world.kollect("KollectDatabaseSink", "portal", world.sink());
    world.becomes("kollectinventory/all", "Degraded", "True SecretResolveFailed");
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    world.secret("postgres://nobody@127.0.0.1:1/x");
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    world.kollect(
        "KollectProfile",
        "maps",
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "value", "path": "$.data.value" }],
        }),
    );
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    world.becomes("kollectinventory/all", "Synced", "False Progressing");
    // W24: the Secret is mended, and nothing is restarted.
    world.secret(&world.postgres.dsn());
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(world.condition("kollectinventory/all", "Degraded"), "");
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");

    // W40: a scope that denies the kind stops the collection, and the rows go.
    world.kollect("KollectScope", "none", json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }));
    world.becomes("kollecttarget/maps", "Degraded", "True ScopeGVKDenied");
    world.holds(&[]);
    world.delete("kollectscope/none");
    world.holds(&["a=1"]);

    // Suspended: rows stay, whatever happens to objects.
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"], "suspend": true }));
    world.becomes("kollectinventory/all", "Degraded", "True Suspended");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False Suspended");
    world.map("b", "2");
    eventually("the count", || {
        let status = world.get("kollecttarget/maps")["status"]["collectedCount"].clone();
        (status == json!(2)).then_some(()).ok_or(status.to_string())
    });
    assert_eq!(world.rows(), ["a=1"]);
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    world.holds(&["a=1", "b=2"]);
}

#[test]
fn connection_tests_run_once_and_expire() {
    let mut world = World::new("tested");
    world.install();
    world.kollect("KollectConnectionTest", "good", json!({ "sinkRef": { "databaseSinkRef": "portal" } }));
    world.kollect(
        "KollectConnectionTest",
        "none",
        json!({ "sinkRef": { "eventSinkRef": "x" }, "ttlSecondsAfterFinished": 1 }),
    );
    world.start(&[]);
    world.becomes("kollectconnectiontest/good", "Ready", "True ProbeSucceeded");
    let status = world.get("kollectconnectiontest/good")["status"].clone();
    assert!(status["latencyMs"].is_i64() && status["completed"] == true, "{status}");
    eventually("the sink owns its test", || {
        let owners = world.get("kollectconnectiontest/good")["metadata"]["ownerReferences"].clone();
        (owners[0]["name"] == "portal").then_some(()).ok_or(owners.to_string())
    });
    // A probe on request, for a sink that is not probed otherwise.
    let mut sink = world.sink();
    sink["connectionTest"] = json!(false);
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.becomes("kollectdatabasesink/portal", "Ready", "True NotTested");
    let annotate = "kollect.dev/test-connection=true";
    world
        .plane
        .kubectl(&["annotate", "-n", &world.namespace, "kollectdatabasesink/portal", annotate])
        .unwrap();
    eventually("the annotation goes after the probe", || {
        let annotations = world.get("kollectdatabasesink/portal")["metadata"]["annotations"].clone();
        annotations["kollect.dev/test-connection"].is_null().then_some(()).ok_or(annotations.to_string())
    });
    eventually("the test expires", || {
        let gone = world.plane.kubectl(&["get", "-n", &world.namespace, "kollectconnectiontest/none"]);
        gone.is_err().then_some(()).ok_or("it is still there".into())
    });
}

#[test]
fn w61_a_reference_that_was_removed_while_no_operator_ran_is_cleaned() {
    let mut world = World::new("forgotten");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.operator.as_mut().unwrap().kill();
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    world.start(&[]);
    world.holds(&[]);
    eventually("the status forgets the sink", || {
        let exports = world.get("kollectinventory/all")["status"]["sinkExports"].clone();
        exports.as_array().is_none_or(Vec::is_empty).then_some(()).ok_or(exports.to_string())
    });
}

#[test]
fn another_destination_is_filled_before_the_old_one_is_cleaned() {
    let mut world = World::new("moving");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.holds(&["a=1"]);
    let old = world.table();
    let mut sink = world.sink();
    sink["postgres"]["table"] = json!(format!("{old}_new"));
    world.kollect("KollectDatabaseSink", "portal", sink);
    eventually("the new table is filled and the old one empty", || {
        let count =
            |table: &str| world.postgres.psql(&format!("SELECT count(*) FROM {table}")).unwrap_or_default();
        let counts = (count(&format!("{old}_new")), count(&old));
        (counts == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{counts:?}"))
    });
    world.becomes("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_standby_takes_over_and_the_old_leader_stops_writing() {
    let mut world = World::new("leading");
    let namespace = world.namespace.clone();
    let elect = [
        "--leader-elect",
        "--leader-election-namespace",
        &namespace,
        "--leader-elect-lease-duration=4s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=500ms",
    ];
    world.map("a", "1");
    world.install();
    world.start(&elect);
    world.holds(&["a=1"]);
    let mut first = world.operator.take().unwrap();
    world.start(&elect);
    // Frozen past its lease, then thawed: the standby has taken over and nothing is written twice.
    let signal = |name: &str, operator: &Operator| {
        assert!(
            Command::new("kill").args([name, &operator.child.id().to_string()]).status().unwrap().success()
        );
    };
    signal("-STOP", &first);
    let epoch = format!("SELECT epoch FROM kollect_bindings WHERE inventory_table = '{}'", world.table());
    let before = world.postgres.psql(&epoch).unwrap();
    eventually("the standby leads", || {
        let now = world.postgres.psql(&epoch).unwrap();
        (now != before).then_some(()).ok_or(now)
    });
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    signal("-CONT", &first);
    world.map("c", "3");
    world.holds(&["a=1", "b=2", "c=3"]);
    // The leader is killed; the other one leads again.
    world.operator.as_mut().unwrap().kill();
    world.map("d", "4");
    world.holds(&["a=1", "b=2", "c=3", "d=4"]);
    first.kill();
}

impl World {
    fn annotate(&self, what: &str, annotation: &str) {
        self.plane.kubectl(&["annotate", "--overwrite", "-n", &self.namespace, what, annotation]).unwrap();
    }

    /// The latest failure of the first sink.
    fn last_error(&self) -> String {
        let export = &self.get("kollectinventory/all")["status"]["sinkExports"][0];
        export["lastError"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn two_clusters_with_one_name_do_not_share_a_table() {
    let mut world = World::new("owned");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.stop();
    // Another cluster's: another id, and rows that are not ours.
    let table = world.table();
    let give = format!("UPDATE kollect_bindings SET owner = 'another' WHERE inventory_table = '{table}'");
    world.postgres.psql(&give).unwrap();
    world.map("b", "2");
    world.start(&[]);
    world.becomes("kollectinventory/all", "Degraded", "True ExportTerminal");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ExportTerminal");
    assert_eq!(world.rows(), ["a=1"]);
    let message = world.last_error();
    assert!(message.contains("spec.cluster"), "{message}");

    // A bare id, as older versions took it, shows the new form and does nothing else.
    world.annotate("kollectinventory/all", "kollect.dev/take-over=another");
    world.becomes("kollectinventory/all", "TakeOver", "False TakeOverInvalid");
    let told = world.message("kollectinventory/all", "TakeOver");
    assert!(told.contains("write database/portal=another"), "{told}");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(world.rows(), ["a=1"]);

    // The refusal has the exact text.
    let (_, text) = message.split_once("kollect.dev/take-over: ").unwrap();
    let text = text.split_whitespace().next().unwrap();
    world.annotate("kollectinventory/all", &format!("kollect.dev/take-over={text}"));
    world.holds(&["a=1", "b=2"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectinventory/all", "TakeOver", "");
    let taken = |world: &World| world.get("kollectinventory/all")["status"]["takeOvers"].clone();
    eventually("the take-over is remembered, and its request removed", || {
        let annotations = &world.get("kollectinventory/all")["metadata"]["annotations"];
        let asked = annotations.get("kollect.dev/take-over").is_some();
        let done = taken(&world)[0]["from"] == "another" && !asked;
        done.then_some(()).ok_or(format!("{annotations} {}", taken(&world)))
    });
    let sql = format!("SELECT destination_id FROM kollect_bindings WHERE inventory_table = '{table}'");
    assert_eq!(taken(&world)[0]["destinationId"], json!(world.postgres.psql(&sql).unwrap().trim()));

    // The other one takes it back. The same take-over is not done again, also if the annotation comes back.
    world.postgres.psql(&give).unwrap();
    world.map("c", "3");
    world.becomes("kollectinventory/all", "Degraded", "True ExportTerminal");
    world.annotate("kollectinventory/all", &format!("kollect.dev/take-over={text}"));
    eventually("it says what to do", || {
        let message = world.last_error();
        message.contains("remove its line from status.takeOvers").then_some(()).ok_or(message)
    });
    assert_eq!(world.rows(), ["a=1", "b=2"]);
    let owner = format!("SELECT owner FROM kollect_bindings WHERE inventory_table = '{table}'");
    assert_eq!(world.postgres.psql(&owner).unwrap(), "another\n");
    // When the inventory is deleted, rows that the other cluster owns stay.
    world.delete("kollectinventory/all");
    assert_eq!((world.rows().len(), world.postgres.psql(&owner).unwrap().as_str()), (2, "another\n"));
}

#[test]
fn drift_is_repaired_when_it_is_asked_for() {
    let mut world = World::new("drifting");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.postgres.psql(&format!("DELETE FROM {}", world.table())).unwrap();
    world
        .plane
        .kubectl(&["annotate", "-n", &world.namespace, "kollectinventory/all", "kollect.dev/requestedAt=now"])
        .unwrap();
    world.holds(&["a=1"]);
}

/// A control plane of its own: cluster kinds are seen by every operator that looks everywhere.
fn own_plane() -> &'static ControlPlane {
    let plane = Box::leak(Box::new(ControlPlane::start().unwrap()));
    let crds = root().join("config/crd/bases");
    plane.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]).unwrap();
    let kinds = "crd/kollectclusterinventories.kollect.dev";
    plane.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", kinds]).unwrap();
    plane
}

#[test]
fn w13_w14_w16_w54_cluster_inventories_roll_up_cluster_targets_and_nothing_else() {
    let plane = own_plane();
    let mut world = World::on(plane, "platform");
    let cluster = |kind: &str, name: &str, spec: Value| {
        let object = json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        plane.apply(&object.to_string()).unwrap();
    };
    for namespace in ["shop-a", "shop-b", "other"] {
        plane.kubectl(&["create", "namespace", namespace]).unwrap();
        let label = if namespace == "other" { "tier=back" } else { "tier=front" };
        plane.kubectl(&["label", "namespace", namespace, label, "all=yes"]).unwrap();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("map-{namespace}"), "namespace": namespace, "labels": { "app": "shop" } },
            "data": { "value": "1" },
        });
        plane.apply(&map.to_string()).unwrap();
    }
    // The team's own row, in a namespace that the cluster targets select too.
    world.map("own", "1");
    plane.kubectl(&["label", "namespace", &world.namespace, "all=yes"]).unwrap();
    world.install();
    let rule = json!([{ "gvk": { "version": "v1", "kind": "ConfigMap" }, "matchLabels": { "app": "shop" } }]);
    let target = |name: &str| {
        cluster(
            "KollectClusterTarget",
            name,
            json!({
                "profileRef": { "name": "maps", "namespace": world.namespace },
                "namespaceSelector": { "matchLabels": { "all": "yes" } }, "resourceRules": rule,
            }),
        );
    };
    // The same name as the team's target: the two are kept apart.
    target("maps");
    target("twice");
    cluster(
        "KollectClusterInventory",
        "rollup",
        json!({
            "databaseSinkRefs": [{ "name": "portal", "namespace": world.namespace }],
            "namespaceSelector": { "matchLabels": { "tier": "front" } }, "dedupe": "byResourceUID",
        }),
    );
    world.watched.clear();
    world.start(&[]);
    let rows = |inventory: &str| {
        let sql = format!(
            "SELECT target_name || ' ' || name FROM {} WHERE inventory_name = '{inventory}' ORDER BY 1",
            world.table()
        );
        world.postgres.psql(&sql).unwrap_or_default()
    };
    let becomes = |inventory: &str, expected: &str| {
        eventually(&format!("{inventory} holds {expected}"), || {
            let found = rows(inventory);
            (found == expected).then_some(()).ok_or(found)
        });
    };
    becomes("rollup", "maps map-shop-a\nmaps map-shop-b\n");
    eventually("shards", || {
        let text = plane.kubectl(&["get", "kollectclusterinventory/rollup", "-o", "json"]).unwrap();
        let status = serde_json::from_str::<Value>(&text).unwrap()["status"].clone();
        let shards = status["namespaceShards"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = shards.iter().filter_map(|shard| shard["namespace"].as_str()).collect();
        let good = names == ["shop-a", "shop-b"] && status["itemCount"] == 2 && status["targetCount"] == 2;
        good.then_some(()).ok_or(status.to_string())
    });
    // Rows of cluster targets are not the team's, and the team's are not in cluster inventories.
    becomes("all", "maps own\n");
    // The label decides, and a broken target does not stop the others.
    plane.kubectl(&["label", "namespace", "other", "tier=front", "--overwrite"]).unwrap();
    becomes("rollup", "maps map-other\nmaps map-shop-a\nmaps map-shop-b\n");
    cluster(
        "KollectClusterTarget",
        "broken",
        json!({
            "profileRef": { "name": "none", "namespace": world.namespace },
            "namespaceSelector": { "matchLabels": { "all": "yes" } },
        }),
    );
    plane.kubectl(&["delete", "configmap", "-n", "shop-b", "map-shop-b"]).unwrap();
    let began = std::time::Instant::now();
    becomes("rollup", "maps map-other\nmaps map-shop-a\n");
    assert!(began.elapsed() < Duration::from_secs(15), "nothing is polled: {:?}", began.elapsed());
    plane.kubectl(&["delete", "kollectclustertarget", "maps"]).unwrap();
    becomes("rollup", "twice map-other\ntwice map-shop-a\n");
    // ⚠27: without a selector all namespaces are meant.
    let sink = json!([{ "name": "portal", "namespace": world.namespace }]);
    cluster("KollectClusterInventory", "whole", json!({ "databaseSinkRefs": sink }));
    becomes("whole", "twice map-other\ntwice map-shop-a\ntwice own\n");
    assert_eq!(rows("all"), "maps own\n");
    cluster("KollectClusterScope", "none", json!({ "allowedStaticRefNamespaces": ["elsewhere"] }));
    world.becomes("kollectclusterinventory/rollup", "Degraded", "True SinkNamespaceDenied");
    world.becomes("kollectclustertarget/twice", "Degraded", "True ScopeNamespaceDenied");
    plane.kubectl(&["delete", "kollectclusterscope", "none"]).unwrap();
    world.becomes("kollectclusterinventory/rollup", "Ready", "True Exported");
    plane.kubectl(&["delete", "kollectclusterinventory", "rollup", "--timeout=30s"]).unwrap();
    becomes("rollup", "");
}

#[test]
fn the_api_server_goes_away_and_comes_back() {
    let mut world = World::new("away");
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    proxy.refuse(true);
    world.map("b", "2");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(world.rows(), ["a=1"], "what the operator could not see is neither written nor removed");
    // After the reconnect the operator lists the current state: there is no event for the deletion.
    world.plane.kubectl(&["delete", "configmap", "-n", &world.namespace, "a"]).unwrap();
    proxy.refuse(false);
    world.holds(&["b=2"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn w39_a_sink_reads_secrets_of_its_own_namespace() {
    let mut world = World::new("secretive");
    let elsewhere = world.plane.namespace("vault").unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal", "namespace": elsewhere },
        "stringData": { "dsn": world.postgres.dsn() },
    });
    world.plane.apply(&secret.to_string()).unwrap();
    world.map("a", "1");
    world.install();
    let mut sink = world.sink();
    sink["postgres"]["databaseRef"]["namespace"] = json!(elsewhere);
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.start(&[]);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    world.becomes("kollectinventory/all", "Degraded", "True SecretResolveFailed");
    assert_eq!(world.rows(), ["no table"]);
    world.stop();
    world.start(&["--allow-secret-namespaces", &format!("{}={elsewhere}", world.namespace)]);
    world.holds(&["a=1"]);
}

#[test]
fn w66_an_object_that_cannot_be_read_degrades_its_target_until_it_can() {
    let mut world = World::new("unreadable");
    world.map("a", "1");
    world.install();
    world.kollect(
        "KollectProfile",
        "maps",
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "value", "path": "cel:string(int(object.data.value) + 0)" }],
        }),
    );
    world.start(&[]);
    world.holds(&["a=1"]);
    world.map("b", "no number");
    world.becomes("kollecttarget/maps", "Degraded", "True ExtractionFailed");
    let status = world.get("kollecttarget/maps")["status"].clone();
    assert_eq!(
        (&status["extractionFailures"], &status["collectedCount"]),
        (&json!(1), &json!(1)),
        "{status}"
    );
    world.becomes("kollecttarget/maps", "Ready", "False ExtractionFailed");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    assert_eq!(world.condition("kollecttarget/maps", "Degraded"), "");
}

#[test]
fn law_5_half_of_the_objects_empties_no_sink() {
    let mut world = World::new("half");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.stop();
    // The next operator sees inventories and sinks, and for a while no targets.
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    proxy.answer(1, |line| line.contains("/kollecttargets"), 403, &[], r#"{"message":"not now"}"#);
    let log = world.dir.path().join("operator.log");
    std::fs::remove_file(&log).unwrap();
    world.start(&[]);
    eventually("targets cannot be seen", || {
        let told = std::fs::read_to_string(&log).unwrap_or_default();
        let blind = told.lines().any(|line| line.contains("cannot see") && line.contains("KollectTarget"));
        blind.then_some(()).ok_or(told)
    });
    let looked = std::time::Instant::now();
    while looked.elapsed() < Duration::from_secs(5) {
        assert_eq!(world.rows(), ["a=1"], "what cannot be seen is not gone");
        std::thread::sleep(Duration::from_millis(100));
    }
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
}
