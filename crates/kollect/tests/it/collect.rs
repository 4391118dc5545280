//! `kollect collect` on live objects, into a terminal and into SQLite.

use std::path::{Path, PathBuf};

use kollect_testbed::{ControlPlane, Grant};
use tempfile::TempDir;

use crate::program::{Finished, kollect, root};

/// A namespace with two Deployments, manifests that collect them, and a database file.
struct CollectTest {
    plane: &'static ControlPlane,
    namespace: String,
    dir: TempDir,
}

fn deployment(namespace: &str, name: &str, image: &str) -> String {
    format!(
        "
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: {namespace}, labels: {{ team: shop }} }}
spec:
  replicas: 2
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec: {{ containers: [{{ name: main, image: '{image}' }}] }}
"
    )
}

impl CollectTest {
    fn new() -> Self {
        let plane = ControlPlane::shared();
        let namespace = plane.namespace("collect").unwrap();
        let test = Self { plane, namespace, dir: tempfile::tempdir().unwrap() };
        test.apply_deployment("cart", "cart:1.0");
        test.apply_deployment("pay", "pay:1.0");
        test
    }

    fn apply_deployment(&self, name: &str, image: &str) {
        self.plane.apply(&deployment(&self.namespace, name, image)).unwrap();
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("inventory.db")
    }

    fn collect(&self, args: &[&str]) -> Finished {
        collect_as(self.plane.kubeconfig(), args)
    }

    fn collect_into_database(&self) -> Finished {
        let out = format!("sqlite:{}", self.database().display());
        self.collect(&["--namespace", &self.namespace, "--out", &out])
    }

    fn rows(&self) -> Vec<(String, String)> {
        let database = rusqlite::Connection::open(self.database()).unwrap();
        let mut statement = database
            .prepare("SELECT name, payload ->> '$.attributes.image' FROM inventory ORDER BY name")
            .unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

/// Runs with the example manifests, as the given user.
fn collect_as(kubeconfig: &Path, args: &[&str]) -> Finished {
    let examples = root().join("docs/examples/deployments");
    let arguments =
        ["collect", "-f", examples.to_str().unwrap(), "--kubeconfig", kubeconfig.to_str().unwrap()];
    kollect(arguments.iter().chain(args))
}

fn row(name: &str, image: &str) -> (String, String) {
    (name.into(), image.into())
}

#[test]
fn live_objects_become_a_table() {
    let test = CollectTest::new();
    let table = test.collect(&["--namespace", &test.namespace]).ok();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["default/deployments", "·", "apps/v1", "Deployment", "·", "2", "rows"]);
    assert_eq!(lines[1], ["NAMESPACE", "NAME", "IMAGE", "REPLICAS", "STRATEGY", "TEAM"]);
    assert_eq!(lines[2], [&*test.namespace, "cart", "cart:1.0", "2", "RollingUpdate", "shop"]);
    assert_eq!(lines.len(), 4);
}

#[test]
fn only_changed_rows_reach_sqlite() {
    let test = CollectTest::new();
    let summary = |finished: Finished| -> Vec<String> {
        let stdout = finished.ok();
        let line = stdout.lines().last().unwrap();
        line.split_whitespace().skip(2).take(6).map(Into::into).collect()
    };
    // rows, added, changed, removed, unchanged, left alone
    assert_eq!(summary(test.collect_into_database()), ["2", "2", "0", "0", "0", "0"]);
    assert_eq!(summary(test.collect_into_database()), ["2", "0", "0", "0", "2", "0"]);
    test.apply_deployment("cart", "cart:1.1");
    let finished = test.collect_into_database();
    assert!(
        finished.stdout.starts_with(&format!("~ Deployment {}/cart\n", test.namespace)),
        "{}",
        finished.stdout
    );
    assert_eq!(summary(finished), ["2", "0", "1", "0", "1", "0"]);
    assert_eq!(test.rows(), [row("cart", "cart:1.1"), row("pay", "pay:1.0")]);
    test.plane.kubectl(&["delete", "deployment/pay", "-n", &test.namespace]).unwrap();
    assert_eq!(summary(test.collect_into_database()), ["1", "0", "0", "1", "1", "0"]);
    assert_eq!(test.rows(), [row("cart", "cart:1.1")]);
}

#[test]
fn rows_that_a_run_did_not_look_at_stay() {
    let test = CollectTest::new();
    test.collect_into_database().ok();
    let other = test.plane.namespace("other").unwrap();
    let out = format!("sqlite:{}", test.database().display());
    test.collect(&["--namespace", &other, "--out", &out]).ok();
    assert_eq!(test.rows().len(), 2);

    let empty = test.dir.path().join("empty.json");
    std::fs::write(&empty, r#"{"apiVersion":"v1","kind":"List","items":[]}"#).unwrap();
    let unowned = format!("sqlite:{}", test.dir.path().join("files.db").display());
    let examples = root().join("docs/examples/deployments");
    let from = |file: &Path, out: &str| {
        kollect(["collect", "-f", examples.to_str().unwrap(), "--from", file.to_str().unwrap(), "--out", out])
    };
    let dump = test.dir.path().join("dump.yaml");
    let yaml = test.plane.kubectl(&["get", "deployments", "-n", &test.namespace, "-o", "yaml"]).unwrap();
    std::fs::write(&dump, yaml).unwrap();
    from(&dump, &unowned).ok();
    let stdout = from(&empty, &unowned).ok();
    let left_alone = stdout.lines().last().unwrap().split_whitespace().nth(7);
    assert_eq!(left_alone, Some("2"), "{stdout}");

    for image in ["cart:1.0", "cart:9"] {
        std::fs::write(&dump, std::fs::read_to_string(&dump).unwrap().replace("cart:1.0", image)).unwrap();
        let finished = from(&dump, &out);
        assert_eq!(finished.code, 1, "a run from files writes unowned inventories only, whatever differs");
        assert!(finished.stderr.contains("it belongs to cluster"), "{}", finished.stderr);
    }
    assert_eq!(test.rows()[0], row("cart", "cart:1.0"));
}

#[test]
fn a_kind_that_may_not_be_listed_is_named_and_all_others_are_collected() {
    let test = CollectTest::new();
    let services = test.dir.path().join("services.yaml");
    let manifest = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: services }
spec: { targetGVK: { version: v1, kind: Service }, attributes: [{ name: ip, path: $.spec.clusterIP }] }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: services }
spec: { profileRef: services }
";
    std::fs::write(&services, manifest).unwrap();
    let rules = [
        Grant::cluster("", &["namespaces"], &["get", "list"]),
        Grant::in_namespace(&test.namespace, "apps", &["deployments"], &["list"]),
    ];
    let user = test.plane.user(&test.namespace, "reader", &rules).unwrap();
    let finished = collect_as(&user, &["-f", services.to_str().unwrap(), "--namespace", &test.namespace]);
    assert_eq!(finished.code, 3, "{}{}", finished.stdout, finished.stderr);
    let expected =
        format!("forbidden: list services in namespace {}: forbidden; grant the verb list", test.namespace);
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    assert!(finished.stdout.contains("cart:1.0"), "{}", finished.stdout);
}

#[test]
fn a_user_who_may_not_list_namespaces_can_collect_from_a_named_one() {
    let test = CollectTest::new();
    let rules = [Grant::in_namespace(&test.namespace, "apps", &["deployments"], &["list"])];
    let user = test.plane.user(&test.namespace, "tenant", &rules).unwrap();
    let finished = collect_as(&user, &["--namespace", &test.namespace]);
    assert!(
        finished.stderr.contains("warning: list namespaces in the whole cluster: forbidden"),
        "{}",
        finished.stderr
    );
    assert!(finished.ok().contains("cart:1.0"));
}

#[test]
fn a_kind_that_is_no_longer_served_keeps_its_rows() {
    let test = CollectTest::new();
    let namespace = &test.namespace;
    let crd = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: widgets.example.com }
spec:
  group: example.com
  scope: Namespaced
  names: { kind: Widget, plural: widgets, singular: widget }
  versions:
    - { name: v1, served: true, storage: true, schema: { openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true } } }
";
    test.plane.apply(crd).unwrap();
    test.plane.wait(&["crd/widgets.example.com", "--for=condition=Established"]).unwrap();
    let widget = format!(
        "{{apiVersion: example.com/v1, kind: Widget, metadata: {{name: w, namespace: {namespace}}}, image: 'w:1'}}"
    );
    test.plane.apply(&widget).unwrap();
    let manifests = test.dir.path().join("widgets.yaml");
    let manifest = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: widgets }
spec: { targetGVK: { group: example.com, version: v1, kind: Widget }, attributes: [{ name: image, path: $.image }] }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: widgets }
spec: { profileRef: widgets }
";
    std::fs::write(&manifests, manifest).unwrap();
    let out = format!("sqlite:{}", test.database().display());
    let kubeconfig = test.plane.kubeconfig().to_str().unwrap();
    let run =
        || kollect(["collect", "-f", manifests.to_str().unwrap(), "--kubeconfig", kubeconfig, "--out", &out]);
    run().ok();
    assert_eq!(test.rows(), [row("w", "w:1")]);
    test.plane.kubectl(&["delete", "crd/widgets.example.com"]).unwrap();
    let finished = run();
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("example.com/v1 Widget is not served by the cluster"),
        "{}",
        finished.stderr
    );
    assert_eq!(test.rows(), [row("w", "w:1")]);
}

#[test]
fn the_inventory_of_the_manifests_is_written_to_its_sink() {
    let test = CollectTest::new();
    let manifests = test.dir.path().join("all.yaml");
    let namespace = &test.namespace;
    let example = std::fs::read_to_string(root().join("docs/examples/deployments/kollect.yaml")).unwrap();
    let inventory_and_sink = format!(
        "
---
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: {{ name: all }}
spec: {{ databaseSinkRefs: [laptop] }}
---
apiVersion: kollect.dev/v1alpha1
kind: KollectDatabaseSink
metadata: {{ name: laptop }}
spec: {{ type: sqlite, cluster: prod-1, sqlite: {{ path: '{}' }} }}
",
        test.database().display()
    );
    std::fs::write(&manifests, format!("{example}{inventory_and_sink}")).unwrap();
    let stdout = kollect([
        "collect",
        "-f",
        manifests.to_str().unwrap(),
        "--kubeconfig",
        test.plane.kubeconfig().to_str().unwrap(),
        "-n",
        namespace,
    ])
    .ok();
    assert!(stdout.contains("default/all  database/laptop  2"), "{stdout}");
    let database = rusqlite::Connection::open(test.database()).unwrap();
    let cluster: String =
        database.query_row("SELECT DISTINCT cluster FROM inventory", [], |row| row.get(0)).unwrap();
    assert_eq!(cluster, "prod-1");
}

#[test]
fn secret_data_never_becomes_a_row() {
    let test = CollectTest::new();
    test
        .plane
        .apply(&format!(
            "
apiVersion: v1
kind: Secret
metadata: {{ name: s, namespace: {}, annotations: {{ kubectl.kubernetes.io/last-applied-configuration: hunter2 }} }}
stringData: {{ password: hunter2, harmless: hunter2 }}
",
            test.namespace
        ))
        .unwrap();
    let manifests = test.dir.path().join("secrets.yaml");
    let manifest = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: secrets }
spec:
  targetGVK: { version: v1, kind: Secret }
  attributes:
    - { name: type, path: $.type }
    - { name: whole, path: '{.}' }
    - { name: cel, path: 'cel:object' }
    - { name: annotations, path: $.metadata.annotations }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: secrets }
spec: { profileRef: secrets, names: [s] }
";
    std::fs::write(&manifests, manifest).unwrap();
    let json = kollect([
        "collect",
        "-f",
        manifests.to_str().unwrap(),
        "--kubeconfig",
        test.plane.kubeconfig().to_str().unwrap(),
        "-n",
        &test.namespace,
        "-o",
        "json",
    ])
    .ok();
    assert!(json.contains("\"type\":\"Opaque\""), "{json}");
    assert!(json.contains("\"kind\":\"Secret\""), "the item of a list knows its kind: {json}");
    assert!(!json.contains("hunter2") && !json.contains("aHVudGVyMg"), "{json}");
}

#[test]
fn a_suspended_target_keeps_its_rows() {
    let test = CollectTest::new();
    let manifests = test.dir.path().join("all.yaml");
    let example = std::fs::read_to_string(root().join("docs/examples/deployments/kollect.yaml")).unwrap();
    let inventory = "
---
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: { name: all }
";
    let out = format!("sqlite:{}", test.database().display());
    let kubeconfig = test.plane.kubeconfig().to_str().unwrap();
    let run = |text: &str| {
        std::fs::write(&manifests, format!("{text}{inventory}spec: {{}}\n")).unwrap();
        kollect([
            "collect",
            "-f",
            manifests.to_str().unwrap(),
            "--kubeconfig",
            kubeconfig,
            "-n",
            &test.namespace,
            "--out",
            &out,
        ])
    };
    run(&example).ok();
    assert_eq!(test.rows().len(), 2);
    let finished =
        run(&example.replace("profileRef: deployments", "profileRef: deployments\n  suspend: true"));
    assert!(
        finished.stderr.contains("is suspended: it was not collected, its rows stay"),
        "{}",
        finished.stderr
    );
    assert_eq!(test.rows().len(), 2);
}

#[test]
fn expressions_work_on_live_objects() {
    let test = CollectTest::new();
    let namespace = &test.namespace;
    test.plane.kubectl(&["label", "namespace", namespace, "team=shop"]).unwrap();
    let pod = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{ name: web, namespace: {namespace} }}
spec:
  containers:
    - {{ name: a, image: 'web:1', resources: {{ limits: {{ memory: 1.5Gi }} }} }}
    - {{ name: b, image: 'web:1' }}
"
    );
    test.plane.apply(&pod).unwrap();
    let kubeconfig = test.plane.kubeconfig().to_str().unwrap();
    let json = kollect([
        "collect",
        "-f",
        "docs/examples/pods.yaml",
        "--kubeconfig",
        kubeconfig,
        "-n",
        namespace,
        "-o",
        "ndjson",
    ])
    .ok();
    let expected =
        r#""attributes":{"images":["web:1"],"memory":1610612736,"ready":null,"restarts":0,"team":"shop"}"#;
    assert!(json.contains(expected), "{json}");
}
