//! `kollect collect` on live objects, into a terminal and into SQLite.

use std::path::{Path, PathBuf};

use kollect_testbed::{ControlPlane, Rule};
use tempfile::TempDir;

use crate::program::{Finished, kollect, root};

/// A namespace with two Deployments, manifests that collect them, and a database file.
struct World {
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

impl World {
    fn new() -> Self {
        let plane = ControlPlane::shared();
        let namespace = plane.namespace("collect").unwrap();
        let world = Self { plane, namespace, dir: tempfile::tempdir().unwrap() };
        world.apply("cart", "cart:1.0");
        world.apply("pay", "pay:1.0");
        world
    }

    fn apply(&self, name: &str, image: &str) {
        self.plane.apply(&deployment(&self.namespace, name, image)).unwrap();
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("inventory.db")
    }

    fn collect(&self, args: &[&str]) -> Finished {
        collect_as(self.plane.kubeconfig(), args)
    }

    fn fill(&self) -> Finished {
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
    let base = ["collect", "-f", examples.to_str().unwrap(), "--kubeconfig", kubeconfig.to_str().unwrap()];
    kollect(base.iter().chain(args))
}

fn pair(name: &str, image: &str) -> (String, String) {
    (name.into(), image.into())
}

#[test]
fn live_objects_become_a_table() {
    let world = World::new();
    let table = world.collect(&["--namespace", &world.namespace]).ok();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["default/deployments", "·", "apps/v1", "Deployment", "·", "2", "rows"]);
    assert_eq!(lines[1], ["NAMESPACE", "NAME", "IMAGE", "REPLICAS", "STRATEGY", "TEAM"]);
    assert_eq!(lines[2], [&*world.namespace, "cart", "cart:1.0", "2", "RollingUpdate", "shop"]);
    assert_eq!(lines.len(), 4);
}

#[test]
fn only_changed_rows_reach_sqlite() {
    let world = World::new();
    let summary = |finished: Finished| -> Vec<String> {
        let text = finished.ok();
        let line = text.lines().last().unwrap();
        line.split_whitespace().skip(2).take(6).map(Into::into).collect()
    };
    // rows, added, changed, removed, unchanged, left alone
    assert_eq!(summary(world.fill()), ["2", "2", "0", "0", "0", "0"]);
    assert_eq!(summary(world.fill()), ["2", "0", "0", "0", "2", "0"]);
    world.apply("cart", "cart:1.1");
    let finished = world.fill();
    assert!(
        finished.stdout.starts_with(&format!("~ Deployment {}/cart\n", world.namespace)),
        "{}",
        finished.stdout
    );
    assert_eq!(summary(finished), ["2", "0", "1", "0", "1", "0"]);
    assert_eq!(world.rows(), [pair("cart", "cart:1.1"), pair("pay", "pay:1.0")]);
    world.plane.kubectl(&["delete", "deployment/pay", "-n", &world.namespace]).unwrap();
    assert_eq!(summary(world.fill()), ["1", "0", "0", "1", "1", "0"]);
    assert_eq!(world.rows(), [pair("cart", "cart:1.1")]);
}

#[test]
fn what_a_run_did_not_look_at_stays() {
    let world = World::new();
    world.fill().ok();
    let other = world.plane.namespace("other").unwrap();
    let out = format!("sqlite:{}", world.database().display());
    world.collect(&["--namespace", &other, "--out", &out]).ok();
    assert_eq!(world.rows().len(), 2);

    let empty = world.dir.path().join("empty.json");
    std::fs::write(&empty, r#"{"apiVersion":"v1","kind":"List","items":[]}"#).unwrap();
    let unowned = format!("sqlite:{}", world.dir.path().join("files.db").display());
    let examples = root().join("docs/examples/deployments");
    let from = |file: &Path, out: &str| {
        kollect(["collect", "-f", examples.to_str().unwrap(), "--from", file.to_str().unwrap(), "--out", out])
    };
    let dump = world.dir.path().join("dump.yaml");
    let yaml = world.plane.kubectl(&["get", "deployments", "-n", &world.namespace, "-o", "yaml"]).unwrap();
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
    assert_eq!(world.rows()[0], pair("cart", "cart:1.0"));
}

#[test]
fn what_may_not_be_listed_is_named_after_the_rest_was_collected() {
    let world = World::new();
    let services = world.dir.path().join("services.yaml");
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
        Rule::cluster("", &["namespaces"], &["get", "list"]),
        Rule::in_namespace(&world.namespace, "apps", &["deployments"], &["list"]),
    ];
    let user = world.plane.user(&world.namespace, "reader", &rules).unwrap();
    let finished = collect_as(&user, &["-f", services.to_str().unwrap(), "--namespace", &world.namespace]);
    assert_eq!(finished.code, 3, "{}{}", finished.stdout, finished.stderr);
    let expected =
        format!("forbidden: list services in namespace {}: forbidden; grant the verb list", world.namespace);
    assert!(finished.stderr.contains(&expected), "{}", finished.stderr);
    assert!(finished.stdout.contains("cart:1.0"), "{}", finished.stdout);
}

#[test]
fn without_namespaces_named_ones_are_enough() {
    let world = World::new();
    let rules = [Rule::in_namespace(&world.namespace, "apps", &["deployments"], &["list"])];
    let user = world.plane.user(&world.namespace, "tenant", &rules).unwrap();
    let finished = collect_as(&user, &["--namespace", &world.namespace]);
    assert!(
        finished.stderr.contains("warning: list namespaces in the whole cluster: forbidden"),
        "{}",
        finished.stderr
    );
    assert!(finished.ok().contains("cart:1.0"));
}

#[test]
fn a_kind_that_is_no_longer_served_keeps_its_rows() {
    let world = World::new();
    let namespace = &world.namespace;
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
    world.plane.apply(crd).unwrap();
    world.plane.wait(&["crd/widgets.example.com", "--for=condition=Established"]).unwrap();
    let widget = format!(
        "{{apiVersion: example.com/v1, kind: Widget, metadata: {{name: w, namespace: {namespace}}}, image: 'w:1'}}"
    );
    world.plane.apply(&widget).unwrap();
    let manifests = world.dir.path().join("widgets.yaml");
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
    let out = format!("sqlite:{}", world.database().display());
    let kubeconfig = world.plane.kubeconfig().to_str().unwrap();
    let run =
        || kollect(["collect", "-f", manifests.to_str().unwrap(), "--kubeconfig", kubeconfig, "--out", &out]);
    run().ok();
    assert_eq!(world.rows(), [pair("w", "w:1")]);
    world.plane.kubectl(&["delete", "crd/widgets.example.com"]).unwrap();
    let finished = run();
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("example.com/v1 Widget is not served by the cluster"),
        "{}",
        finished.stderr
    );
    assert_eq!(world.rows(), [pair("w", "w:1")]);
}

#[test]
fn the_inventory_of_the_manifests_is_written_to_its_sink() {
    let world = World::new();
    let manifests = world.dir.path().join("all.yaml");
    let namespace = &world.namespace;
    let example = std::fs::read_to_string(root().join("docs/examples/deployments/kollect.yaml")).unwrap();
    let more = format!(
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
        world.database().display()
    );
    std::fs::write(&manifests, format!("{example}{more}")).unwrap();
    let stdout = kollect([
        "collect",
        "-f",
        manifests.to_str().unwrap(),
        "--kubeconfig",
        world.plane.kubeconfig().to_str().unwrap(),
        "-n",
        namespace,
    ])
    .ok();
    assert!(stdout.contains("default/all  database/laptop  2"), "{stdout}");
    let database = rusqlite::Connection::open(world.database()).unwrap();
    let cluster: String =
        database.query_row("SELECT DISTINCT cluster FROM inventory", [], |row| row.get(0)).unwrap();
    assert_eq!(cluster, "prod-1");
}

#[test]
fn q11_secret_data_never_becomes_a_row() {
    let world = World::new();
    world
        .plane
        .apply(&format!(
            "
apiVersion: v1
kind: Secret
metadata: {{ name: s, namespace: {}, annotations: {{ kubectl.kubernetes.io/last-applied-configuration: hunter2 }} }}
stringData: {{ password: hunter2, harmless: hunter2 }}
",
            world.namespace
        ))
        .unwrap();
    let manifests = world.dir.path().join("secrets.yaml");
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
        world.plane.kubeconfig().to_str().unwrap(),
        "-n",
        &world.namespace,
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
    let world = World::new();
    let manifests = world.dir.path().join("all.yaml");
    let example = std::fs::read_to_string(root().join("docs/examples/deployments/kollect.yaml")).unwrap();
    let inventory = "
---
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: { name: all }
";
    let out = format!("sqlite:{}", world.database().display());
    let kubeconfig = world.plane.kubeconfig().to_str().unwrap();
    let run = |text: &str| {
        std::fs::write(&manifests, format!("{text}{inventory}spec: {{}}\n")).unwrap();
        kollect([
            "collect",
            "-f",
            manifests.to_str().unwrap(),
            "--kubeconfig",
            kubeconfig,
            "-n",
            &world.namespace,
            "--out",
            &out,
        ])
    };
    run(&example).ok();
    assert_eq!(world.rows().len(), 2);
    let finished =
        run(&example.replace("profileRef: deployments", "profileRef: deployments\n  suspend: true"));
    assert!(
        finished.stderr.contains("is suspended: it was not collected, its rows stay"),
        "{}",
        finished.stderr
    );
    assert_eq!(world.rows().len(), 2);
}

#[test]
fn expressions_work_on_live_objects() {
    let world = World::new();
    let namespace = &world.namespace;
    world.plane.kubectl(&["label", "namespace", namespace, "team=shop"]).unwrap();
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
    world.plane.apply(&pod).unwrap();
    let kubeconfig = world.plane.kubeconfig().to_str().unwrap();
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
