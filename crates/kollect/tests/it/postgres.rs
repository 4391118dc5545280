//! `kollect watch` into PostgreSQL, with manifests as an operator has them and a Secret from the
//! environment.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{ControlPlane, Postgres};

const TIMEOUT: Duration = Duration::from_secs(30);

const MANIFESTS: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: maps, namespace: team }
spec:
  targetGVK: { version: v1, kind: ConfigMap }
  attributes: [{ name: value, path: $.data.value }]
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: maps, namespace: team }
spec: { profileRef: maps, includedNamespaces: [NAMESPACE] }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: { name: maps, namespace: team }
spec: { databaseSinkRefs: [portal] }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectDatabaseSink
metadata: { name: portal, namespace: team }
spec: { type: postgres, postgres: { databaseRef: { name: portal }, table: TABLE } }
---
apiVersion: v1
kind: Secret
metadata: { name: portal, namespace: team }
stringData: { dsn: '${env:PORTAL_DSN}' }
";

struct RunningWatch(Child);

impl Drop for RunningWatch {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn changed_rows_reach_the_table_and_a_restart_writes_nothing() {
    let (plane, postgres) = (ControlPlane::shared(), Postgres::shared());
    let namespace = plane.namespace("portal").unwrap();
    let table = namespace.replace('-', "_");
    let dir = tempfile::tempdir().unwrap();
    let manifests = MANIFESTS.replace("NAMESPACE", &namespace).replace("TABLE", &table);
    std::fs::write(dir.path().join("manifests.yaml"), manifests).unwrap();
    let apply_config_map = |name: &str, value: &str| {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": namespace }, "data": { "value": value },
        });
        plane.apply(&object.to_string()).unwrap();
    };
    let start = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kollect"))
            .args(["watch", "-f", dir.path().to_str().unwrap()])
            .args(["--kubeconfig", plane.kubeconfig().to_str().unwrap()])
            .env("PORTAL_DSN", postgres.dsn())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let messages = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
        (RunningWatch(child), messages)
    };
    let rows = || {
        let query = format!("SELECT name, payload->'attributes'->>'value', xmin FROM {table} ORDER BY name");
        postgres.psql(&query).unwrap_or_default().trim().to_owned()
    };
    let wait_for_rows = |is_right: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + TIMEOUT;
        while !is_right(&rows()) {
            assert!(Instant::now() < deadline, "found {:?}", rows());
            thread::sleep(Duration::from_millis(20));
        }
    };
    apply_config_map("a", "1");
    apply_config_map("b", "1");
    let (running, messages) = start();
    wait_for_rows(&|rows| rows.lines().count() == 2);
    let before = rows();
    apply_config_map("a", "2");
    wait_for_rows(&|rows| rows.contains('2') && rows != before);
    let after = rows();
    assert_eq!(before.lines().last(), after.lines().last(), "the other row was not touched");
    drop(running);
    let (running, _) = start();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(rows(), after, "nothing changed, nothing written");
    plane.kubectl(&["delete", "configmap", "a", "-n", &namespace]).unwrap();
    wait_for_rows(&|rows| rows.lines().count() == 1);
    drop(running);
    let messages = messages.join().unwrap().join("\n");
    assert!(messages.contains("team/maps → database/portal: 2 added"), "{messages}");
    assert!(!messages.contains(&postgres.dsn()), "{messages}");
}
