//! `kollect operator` beside a real control plane, with real sinks. Each test has a namespace of its own
//! and an operator that watches no other one.

mod acknowledged_status;
mod alerts;
mod changes_while_stopped;
mod cleanup;
mod condition_reasons;
mod crashes;
mod discovery;
mod documents;
mod faults;
mod finalizers;
mod git;
mod logs;
mod metrics;
mod namespaces;
mod network;
mod outdated_api_server;
mod preview;
mod profile_warnings;
mod reach;
mod readers;
mod recovery;
mod redaction;
mod removal_guard;
mod secrets;
mod stopping;
mod target_warnings;

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use kollect_testbed::{ControlPlane, Grant, Postgres, Proxy};
use serde_json::{Value, json};

use crate::{
    logs::check_lines,
    program::{eventually, root},
};

/// The shared control plane, with the definitions of all kinds.
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

struct RunningOperator {
    child: Child,
    log: PathBuf,
}

impl RunningOperator {
    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for RunningOperator {
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
struct OperatorTest {
    plane: &'static ControlPlane,
    postgres: &'static Postgres,
    namespace: String,
    /// Namespaces that the operator watches; empty: all.
    watched: String,
    /// Of the operator; else that of the control plane.
    kubeconfig: Option<PathBuf>,
    /// Of the operator, besides that of the test.
    environment: Vec<(String, String)>,
    /// Dropped before the directory of its log.
    operator: Option<RunningOperator>,
    dir: tempfile::TempDir,
}

impl OperatorTest {
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
        self.operator = Some(RunningOperator { child, log });
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

    fn apply_config_map(&self, name: &str, value: &str) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "app": "shop" } },
            "data": { "value": value },
        }));
    }

    fn apply_kollect(&self, kind: &str, name: &str, spec: Value) {
        self.apply(json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        }));
    }

    fn table(&self) -> String {
        self.namespace.replace('-', "_")
    }

    /// Profile, target, sink with its Secret, inventory.
    fn install(&self) {
        self.plane.apply(&self.all_manifests().to_string()).unwrap();
    }

    fn all_manifests(&self) -> Value {
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

    fn apply_secret(&self, dsn: &str) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal" }, "stringData": { "dsn": dsn },
        }));
    }

    fn get(&self, resource: &str) -> Value {
        let text = self.plane.kubectl(&["get", "-n", &self.namespace, resource, "-o", "json"]).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn delete(&self, resource: &str) {
        self.plane.kubectl(&["delete", "-n", &self.namespace, resource, "--wait=false"]).unwrap();
    }

    /// `status reason` of a condition.
    fn condition(&self, resource: &str, type_: &str) -> String {
        let object = self.get(resource);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == type_);
        found.map_or_else(String::new, |condition| {
            format!("{} {}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
        })
    }

    /// The message of a condition, as soon as the object has it.
    fn condition_message(&self, resource: &str, type_: &str) -> String {
        let mut message = String::new();
        eventually(&format!("{resource} {type_}"), || {
            let conditions =
                self.get(resource)["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.iter().find(|condition| condition["type"] == type_);
            message = found.ok_or("not yet")?["message"].to_string();
            Ok(())
        });
        message
    }

    fn wait_for_condition(&self, resource: &str, type_: &str, expected: &str) {
        eventually(&format!("{resource} {type_} {expected}"), || {
            let found = self.condition(resource, type_);
            (found == expected).then_some(()).ok_or(found)
        });
    }

    /// All objects of Kollect but connection tests.
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

    fn wait_for_rows(&self, expected: &[&str]) {
        eventually(&format!("{expected:?}"), || {
            let found = self.rows();
            (found == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    }
}

#[test]
fn objects_become_rows_of_the_table_and_statuses_report_it() {
    let mut test = OperatorTest::new("whole");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    test.wait_for_condition("kollectprofile/maps", "Ready", "True Compiled");
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    test.apply_config_map("b", "2");
    test.apply_config_map("a", "3");
    test.wait_for_rows(&["a=3", "b=2"]);
    eventually("counts", || {
        let status = test.get("kollectinventory/all")["status"].clone();
        let counts = (&status["itemCount"], &status["sinkExports"][0]["rows"]);
        (counts == (&json!(2), &json!(2))).then_some(()).ok_or(status.to_string())
    });

    // A restart with nothing changed writes nothing; Ready does not flicker.
    let last_write = format!("SELECT max(exported_at), max(xmin::text::bigint) FROM {}", test.table());
    let before = test.postgres.psql(&last_write).unwrap();
    let before_restart = test.get("kollectinventory/all")["status"]["conditions"].clone();
    test.stop();
    test.start(&[]);
    test.apply_config_map("c", "1");
    test.wait_for_rows(&["a=3", "b=2", "c=1"]);
    let sql =
        format!("SELECT max(exported_at), max(xmin::text::bigint) FROM {} WHERE name <> 'c'", test.table());
    assert_eq!(test.postgres.psql(&sql).unwrap(), before);
    let ready_since = |conditions: &Value| {
        let all = conditions.as_array().unwrap();
        let ready = all.iter().find(|condition| condition["type"] == "Ready");
        ready.map(|condition| condition["lastTransitionTime"].clone())
    };
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let after_restart = test.get("kollectinventory/all")["status"]["conditions"].clone();
    assert_eq!(ready_since(&before_restart), ready_since(&after_restart));
}

#[test]
fn rows_of_a_removed_reference_and_of_a_deleted_inventory_are_removed() {
    let mut test = OperatorTest::new("cleaned");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    test.wait_for_rows(&[]);
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");

    // Deleted while no operator runs: cleaned at the next start.
    test.operator.as_mut().unwrap().kill();
    test.delete("kollectinventory/all");
    assert_eq!(test.rows(), ["a=1"]);
    test.start(&[]);
    test.wait_for_rows(&[]);
    eventually("the inventory is gone", || {
        let found = test.plane.kubectl(&["get", "-n", &test.namespace, "kollectinventory/all"]);
        found.is_err().then_some(()).ok_or("it is still there".into())
    });
    let bindings =
        format!("SELECT count(*) FROM kollect_bindings WHERE inventory_table = '{}'", test.table());
    assert_eq!(test.postgres.psql(&bindings).unwrap(), "0\n");
}

#[test]
fn problems_are_reported_with_their_reason_and_end_when_they_are_corrected() {
    let mut test = OperatorTest::new("mended");
    test.apply_config_map("a", "1");
    test.apply_kollect(
        "KollectTarget",
        "maps",
        json!({
            "profileRef": "maps", "includedNamespaces": [test.namespace],
            "labelSelector": { "matchLabels": { "app": "shop" } },
        }),
    );
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ProfileNotFound");
    test.wait_for_condition("kollecttarget/maps", "Ready", "False ProfileNotFound");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True SinkNotFound");
    test.apply_kollect("KollectDatabaseSink", "portal", test.sink());
    test.wait_for_condition("kollectinventory/all", "Degraded", "True SecretResolveFailed");
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    test.apply_secret("postgres://user@127.0.0.1:1/x");
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    test.apply_kollect(
        "KollectProfile",
        "maps",
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "value", "path": "$.data.value" }],
        }),
    );
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    test.wait_for_condition("kollectinventory/all", "Synced", "False Progressing");
    // The Secret is corrected, and nothing is restarted.
    test.apply_secret(&test.postgres.dsn());
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(test.condition("kollectinventory/all", "Degraded"), "");
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");

    // A scope that denies the kind stops the collection, and the rows are removed.
    test.apply_kollect(
        "KollectScope",
        "none",
        json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }),
    );
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ScopeGVKDenied");
    test.wait_for_rows(&[]);
    test.delete("kollectscope/none");
    test.wait_for_rows(&["a=1"]);

    // Suspended: rows stay as they are when objects change.
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"], "suspend": true }));
    test.wait_for_condition("kollectinventory/all", "Degraded", "True Suspended");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False Suspended");
    test.apply_config_map("b", "2");
    eventually("the count", || {
        let status = test.get("kollecttarget/maps")["status"]["collectedCount"].clone();
        (status == json!(2)).then_some(()).ok_or(status.to_string())
    });
    assert_eq!(test.rows(), ["a=1"]);
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    test.wait_for_rows(&["a=1", "b=2"]);
}

#[test]
fn connection_tests_run_once_and_expire() {
    let mut test = OperatorTest::new("tested");
    test.install();
    test.apply_kollect(
        "KollectConnectionTest",
        "good",
        json!({ "sinkRef": { "databaseSinkRef": "portal" } }),
    );
    test.apply_kollect(
        "KollectConnectionTest",
        "none",
        json!({ "sinkRef": { "eventSinkRef": "x" }, "ttlSecondsAfterFinished": 1 }),
    );
    test.start(&[]);
    test.wait_for_condition("kollectconnectiontest/good", "Ready", "True ProbeSucceeded");
    let status = test.get("kollectconnectiontest/good")["status"].clone();
    assert!(status["latencyMs"].is_i64() && status["completed"] == true, "{status}");
    eventually("the sink owns its test", || {
        let owners = test.get("kollectconnectiontest/good")["metadata"]["ownerReferences"].clone();
        (owners[0]["name"] == "portal").then_some(()).ok_or(owners.to_string())
    });
    // A probe on request, for a sink that is not probed otherwise.
    let mut sink = test.sink();
    sink["connectionTest"] = json!(false);
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.wait_for_condition("kollectdatabasesink/portal", "Ready", "True NotTested");
    let annotate = "kollect.dev/test-connection=true";
    test.plane.kubectl(&["annotate", "-n", &test.namespace, "kollectdatabasesink/portal", annotate]).unwrap();
    eventually("the annotation goes after the probe", || {
        let annotations = test.get("kollectdatabasesink/portal")["metadata"]["annotations"].clone();
        annotations["kollect.dev/test-connection"].is_null().then_some(()).ok_or(annotations.to_string())
    });
    eventually("the test expires", || {
        let found = test.plane.kubectl(&["get", "-n", &test.namespace, "kollectconnectiontest/none"]);
        found.is_err().then_some(()).ok_or("it is still there".into())
    });
}

#[test]
fn rows_of_a_reference_that_was_removed_while_no_operator_ran_are_removed() {
    let mut test = OperatorTest::new("forgotten");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.operator.as_mut().unwrap().kill();
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    test.start(&[]);
    test.wait_for_rows(&[]);
    eventually("the status forgets the sink", || {
        let exports = test.get("kollectinventory/all")["status"]["sinkExports"].clone();
        exports.as_array().is_none_or(Vec::is_empty).then_some(()).ok_or(exports.to_string())
    });
}

#[test]
fn a_new_destination_is_filled_before_the_old_one_is_cleaned() {
    let mut test = OperatorTest::new("moving");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    let old = test.table();
    let mut sink = test.sink();
    sink["postgres"]["table"] = json!(format!("{old}_new"));
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    eventually("the new table is filled and the old one empty", || {
        let count =
            |table: &str| test.postgres.psql(&format!("SELECT count(*) FROM {table}")).unwrap_or_default();
        let counts = (count(&format!("{old}_new")), count(&old));
        (counts == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{counts:?}"))
    });
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_standby_takes_over_and_the_old_leader_stops_writing() {
    let mut test = OperatorTest::new("leading");
    let namespace = test.namespace.clone();
    let elect = [
        "--leader-elect",
        "--leader-election-namespace",
        &namespace,
        "--leader-elect-lease-duration=4s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=500ms",
    ];
    test.apply_config_map("a", "1");
    test.install();
    test.start(&elect);
    test.wait_for_rows(&["a=1"]);
    let mut first = test.operator.take().unwrap();
    test.start(&elect);
    // Stopped until its lease has expired, then continued: the standby has taken over and nothing is written twice.
    let signal = |name: &str, operator: &RunningOperator| {
        assert!(
            Command::new("kill").args([name, &operator.child.id().to_string()]).status().unwrap().success()
        );
    };
    signal("-STOP", &first);
    let epoch = format!("SELECT epoch FROM kollect_bindings WHERE inventory_table = '{}'", test.table());
    let before = test.postgres.psql(&epoch).unwrap();
    eventually("the standby leads", || {
        let now = test.postgres.psql(&epoch).unwrap();
        (now != before).then_some(()).ok_or(now)
    });
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
    signal("-CONT", &first);
    test.apply_config_map("c", "3");
    test.wait_for_rows(&["a=1", "b=2", "c=3"]);
    // The leader is killed; the other one leads again.
    test.operator.as_mut().unwrap().kill();
    test.apply_config_map("d", "4");
    test.wait_for_rows(&["a=1", "b=2", "c=3", "d=4"]);
    first.kill();
}

impl OperatorTest {
    fn annotate(&self, resource: &str, annotation: &str) {
        self.plane
            .kubectl(&["annotate", "--overwrite", "-n", &self.namespace, resource, annotation])
            .unwrap();
    }

    /// The latest failure of the first sink.
    fn last_error(&self) -> String {
        let export = &self.get("kollectinventory/all")["status"]["sinkExports"][0];
        export["lastError"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn two_clusters_with_one_name_do_not_share_a_table() {
    let mut test = OperatorTest::new("owned");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.stop();
    // The rows belong to another cluster, with another id.
    let table = test.table();
    let set_owner =
        format!("UPDATE kollect_bindings SET owner = 'another' WHERE inventory_table = '{table}'");
    test.postgres.psql(&set_owner).unwrap();
    test.apply_config_map("b", "2");
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Degraded", "True ExportTerminal");
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/portal"),
        "Synced",
        "False ExportTerminal",
    );
    assert_eq!(test.rows(), ["a=1"]);
    let message = test.last_error();
    assert!(message.contains("spec.cluster"), "{message}");

    // An id without a sink, as older versions accepted it, is answered with the new form and has no other effect.
    test.annotate("kollectinventory/all", "kollect.dev/take-over=another");
    test.wait_for_condition("kollectinventory/all", "TakeOver", "False TakeOverInvalid");
    let hint = test.condition_message("kollectinventory/all", "TakeOver");
    assert!(hint.contains("write database/portal=another"), "{hint}");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(test.rows(), ["a=1"]);

    // The refusal has the exact text.
    let (_, advice) = message.split_once("kollect.dev/take-over: ").unwrap();
    let annotation = advice.split_whitespace().next().unwrap();
    test.annotate("kollectinventory/all", &format!("kollect.dev/take-over={annotation}"));
    test.wait_for_rows(&["a=1", "b=2"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectinventory/all", "TakeOver", "");
    let take_overs = |test: &OperatorTest| test.get("kollectinventory/all")["status"]["takeOvers"].clone();
    eventually("the take-over is remembered, and its request removed", || {
        let annotations = &test.get("kollectinventory/all")["metadata"]["annotations"];
        let is_requested = annotations.get("kollect.dev/take-over").is_some();
        let done = take_overs(&test)[0]["from"] == "another" && !is_requested;
        done.then_some(()).ok_or(format!("{annotations} {}", take_overs(&test)))
    });
    let sql = format!("SELECT destination_id FROM kollect_bindings WHERE inventory_table = '{table}'");
    assert_eq!(take_overs(&test)[0]["destinationId"], json!(test.postgres.psql(&sql).unwrap().trim()));

    // The other cluster takes it back. The same take-over is not done again, also if the annotation is set again.
    test.postgres.psql(&set_owner).unwrap();
    test.apply_config_map("c", "3");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True ExportTerminal");
    test.annotate("kollectinventory/all", &format!("kollect.dev/take-over={annotation}"));
    eventually("it says what to do", || {
        let message = test.last_error();
        message.contains("remove its line from status.takeOvers").then_some(()).ok_or(message)
    });
    assert_eq!(test.rows(), ["a=1", "b=2"]);
    let owner = format!("SELECT owner FROM kollect_bindings WHERE inventory_table = '{table}'");
    assert_eq!(test.postgres.psql(&owner).unwrap(), "another\n");
    // When the inventory is deleted, rows that the other cluster owns stay.
    test.delete("kollectinventory/all");
    assert_eq!((test.rows().len(), test.postgres.psql(&owner).unwrap().as_str()), (2, "another\n"));
}

#[test]
fn changes_by_others_are_repaired_on_request() {
    let mut test = OperatorTest::new("drifting");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.postgres.psql(&format!("DELETE FROM {}", test.table())).unwrap();
    test.plane
        .kubectl(&["annotate", "-n", &test.namespace, "kollectinventory/all", "kollect.dev/requestedAt=now"])
        .unwrap();
    test.wait_for_rows(&["a=1"]);
}

/// A control plane for one test: cluster kinds are seen by every operator that watches all namespaces.
fn separate_plane() -> &'static ControlPlane {
    let plane = Box::leak(Box::new(ControlPlane::start().unwrap()));
    let crds = root().join("config/crd/bases");
    plane.kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()]).unwrap();
    let kinds = "crd/kollectclusterinventories.kollect.dev";
    plane.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", kinds]).unwrap();
    plane
}

#[test]
fn cluster_inventories_contain_rows_of_cluster_targets_and_no_others() {
    let plane = separate_plane();
    let mut test = OperatorTest::on(plane, "platform");
    let apply_cluster_object = |kind: &str, name: &str, spec: Value| {
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
    test.apply_config_map("own", "1");
    plane.kubectl(&["label", "namespace", &test.namespace, "all=yes"]).unwrap();
    test.install();
    let rule = json!([{ "gvk": { "version": "v1", "kind": "ConfigMap" }, "matchLabels": { "app": "shop" } }]);
    let apply_cluster_target = |name: &str| {
        apply_cluster_object(
            "KollectClusterTarget",
            name,
            json!({
                "profileRef": { "name": "maps", "namespace": test.namespace },
                "namespaceSelector": { "matchLabels": { "all": "yes" } }, "resourceRules": rule,
            }),
        );
    };
    // The same name as the team's target: the two are kept apart.
    apply_cluster_target("maps");
    apply_cluster_target("twice");
    apply_cluster_object(
        "KollectClusterInventory",
        "rollup",
        json!({
            "databaseSinkRefs": [{ "name": "portal", "namespace": test.namespace }],
            "namespaceSelector": { "matchLabels": { "tier": "front" } }, "dedupe": "byResourceUID",
        }),
    );
    test.watched.clear();
    test.start(&[]);
    let rows = |inventory: &str| {
        let sql = format!(
            "SELECT target_name || ' ' || name FROM {} WHERE inventory_name = '{inventory}' ORDER BY 1",
            test.table()
        );
        test.postgres.psql(&sql).unwrap_or_default()
    };
    let wait_for_rows = |inventory: &str, expected: &str| {
        eventually(&format!("{inventory} holds {expected}"), || {
            let found = rows(inventory);
            (found == expected).then_some(()).ok_or(found)
        });
    };
    wait_for_rows("rollup", "maps map-shop-a\nmaps map-shop-b\n");
    eventually("shards", || {
        let json = plane.kubectl(&["get", "kollectclusterinventory/rollup", "-o", "json"]).unwrap();
        let status = serde_json::from_str::<Value>(&json).unwrap()["status"].clone();
        let shards = status["namespaceShards"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = shards.iter().filter_map(|shard| shard["namespace"].as_str()).collect();
        let is_right =
            names == ["shop-a", "shop-b"] && status["itemCount"] == 2 && status["targetCount"] == 2;
        is_right.then_some(()).ok_or(status.to_string())
    });
    // Rows of cluster targets are not the team's, and the team's are not in cluster inventories.
    wait_for_rows("all", "maps own\n");
    // The label decides, and a broken target does not stop the others.
    plane.kubectl(&["label", "namespace", "other", "tier=front", "--overwrite"]).unwrap();
    wait_for_rows("rollup", "maps map-other\nmaps map-shop-a\nmaps map-shop-b\n");
    apply_cluster_object(
        "KollectClusterTarget",
        "broken",
        json!({
            "profileRef": { "name": "none", "namespace": test.namespace },
            "namespaceSelector": { "matchLabels": { "all": "yes" } },
        }),
    );
    plane.kubectl(&["delete", "configmap", "-n", "shop-b", "map-shop-b"]).unwrap();
    let began = std::time::Instant::now();
    wait_for_rows("rollup", "maps map-other\nmaps map-shop-a\n");
    assert!(began.elapsed() < Duration::from_secs(15), "nothing is polled: {:?}", began.elapsed());
    plane.kubectl(&["delete", "kollectclustertarget", "maps"]).unwrap();
    wait_for_rows("rollup", "twice map-other\ntwice map-shop-a\n");
    // Without a selector all namespaces are selected.
    let sink = json!([{ "name": "portal", "namespace": test.namespace }]);
    apply_cluster_object("KollectClusterInventory", "whole", json!({ "databaseSinkRefs": sink }));
    wait_for_rows("whole", "twice map-other\ntwice map-shop-a\ntwice own\n");
    assert_eq!(rows("all"), "maps own\n");
    apply_cluster_object(
        "KollectClusterScope",
        "none",
        json!({ "allowedStaticRefNamespaces": ["elsewhere"] }),
    );
    test.wait_for_condition("kollectclusterinventory/rollup", "Degraded", "True SinkNamespaceDenied");
    test.wait_for_condition("kollectclustertarget/twice", "Degraded", "True ScopeNamespaceDenied");
    plane.kubectl(&["delete", "kollectclusterscope", "none"]).unwrap();
    test.wait_for_condition("kollectclusterinventory/rollup", "Ready", "True Exported");
    plane.kubectl(&["delete", "kollectclusterinventory", "rollup", "--timeout=30s"]).unwrap();
    wait_for_rows("rollup", "");
}

#[test]
fn an_operator_continues_after_the_api_server_was_unreachable() {
    let mut test = OperatorTest::new("away");
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    proxy.refuse(true);
    test.apply_config_map("b", "2");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(test.rows(), ["a=1"], "what the operator could not see is neither written nor removed");
    // After the reconnect the operator lists the current state: there is no event for the deletion.
    test.plane.kubectl(&["delete", "configmap", "-n", &test.namespace, "a"]).unwrap();
    proxy.refuse(false);
    test.wait_for_rows(&["b=2"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_sink_reads_secrets_of_its_own_namespace() {
    let mut test = OperatorTest::new("secretive");
    let secret_namespace = test.plane.namespace("vault").unwrap();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal", "namespace": secret_namespace },
        "stringData": { "dsn": test.postgres.dsn() },
    });
    test.plane.apply(&secret.to_string()).unwrap();
    test.apply_config_map("a", "1");
    test.install();
    let mut sink = test.sink();
    sink["postgres"]["databaseRef"]["namespace"] = json!(secret_namespace);
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.start(&[]);
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True SecretResolveFailed");
    assert_eq!(test.rows(), ["no table"]);
    test.stop();
    test.start(&["--allow-secret-namespaces", &format!("{}={secret_namespace}", test.namespace)]);
    test.wait_for_rows(&["a=1"]);
}

#[test]
fn an_object_that_cannot_be_read_degrades_its_target_until_it_can() {
    let mut test = OperatorTest::new("unreadable");
    test.apply_config_map("a", "1");
    test.install();
    test.apply_kollect(
        "KollectProfile",
        "maps",
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "value", "path": "cel:string(int(object.data.value) + 0)" }],
        }),
    );
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.apply_config_map("b", "no number");
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ExtractionFailed");
    let status = test.get("kollecttarget/maps")["status"].clone();
    assert_eq!(
        (&status["extractionFailures"], &status["collectedCount"]),
        (&json!(1), &json!(1)),
        "{status}"
    );
    test.wait_for_condition("kollecttarget/maps", "Ready", "False ExtractionFailed");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    assert_eq!(test.condition("kollecttarget/maps", "Degraded"), "");
}

#[test]
fn an_operator_that_cannot_see_targets_removes_no_rows() {
    let mut test = OperatorTest::new("half");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.stop();
    // The next operator sees inventories and sinks, and for a while no targets.
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    proxy.answer(1, |line| line.contains("/kollecttargets"), 403, &[], r#"{"message":"not now"}"#);
    let log = test.dir.path().join("operator.log");
    std::fs::remove_file(&log).unwrap();
    test.start(&[]);
    eventually("targets cannot be seen", || {
        let content = std::fs::read_to_string(&log).unwrap_or_default();
        let is_blind =
            content.lines().any(|line| line.contains("cannot see") && line.contains("KollectTarget"));
        is_blind.then_some(()).ok_or(content)
    });
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(test.rows(), ["a=1"], "rows of targets that cannot be seen stay");
        std::thread::sleep(Duration::from_millis(100));
    }
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
}
