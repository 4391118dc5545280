//! Secrets that take long to read delay only the sinks that name them.

use super::*;

/// A user who may get Secrets, and neither list nor watch them.
pub(super) fn get_only(world: &World) -> std::path::PathBuf {
    let read = ["get", "list", "watch"];
    let rules = [
        Rule::cluster("kollect.dev", &["*"], &["*"]),
        Rule::cluster("", &["namespaces", "configmaps"], &read),
        Rule::cluster("", &["secrets"], &["get"]),
        Rule::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"]),
        Rule::cluster("", &["events"], &["create"]),
    ];
    world.plane.user(&world.namespace, "get-only", &rules).unwrap()
}

#[test]
fn law_11_a_secret_that_is_being_looked_up_holds_up_its_own_sinks_only() {
    let mut world = World::new("patient");
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    world.map("a", "1");
    world.install();
    let vault = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "vault" },
        "stringData": { "dsn": world.postgres.dsn() },
    });
    world.apply(vault);
    let table = format!("{}_vault", world.table());
    let sink = |secret: &str| json!({ "type": "postgres", "postgres": { "databaseRef": { "name": secret }, "table": table } });
    world.kollect("KollectDatabaseSink", "vault", sink("vault"));
    world.kollect("KollectInventory", "late", json!({ "databaseSinkRefs": ["vault"] }));
    let test = json!({ "sinkRef": { "databaseSinkRef": "vault" } });
    world.kollect("KollectConnectionTest", "late", test);
    let late = || {
        let sql = format!("SELECT string_agg(name, ' ' ORDER BY name) FROM {table}");
        world.postgres.psql(&sql).unwrap_or_else(|_| "no table".into())
    };
    let comes = |expected: &str| {
        eventually(expected, || {
            let found = late();
            (found.trim() == expected).then_some(()).ok_or(found)
        });
    };
    let is_vault = |line: &str| line.contains("/secrets") && line.contains("vault");
    proxy.hold(is_vault);
    world.start(&[]);
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    assert!(proxy.requests().iter().any(|line| is_vault(line)), "the operator looks it up");
    // The Secret is not known yet: statuses report progress, neither success nor failure.
    world.becomes("kollectinventory/late", "Synced", "False Progressing");
    world.becomes("kollectinventory/late", "Reconciling", "True Progressing");
    world.becomes("kollectdatabasesink/vault", "Reconciling", "True Probing");
    assert_eq!(world.condition("kollectinventory/late", "Degraded"), "");
    assert_eq!(world.get("kollectconnectiontest/late")["status"]["completed"], Value::Null);
    assert_eq!(late(), "no table");
    proxy.release();
    comes("a b");
    world.becomes("kollectinventory/late", "Ready", "True Exported");
    world.becomes("kollectconnectiontest/late", "Ready", "True ProbeSucceeded");

    // Another Secret is looked up for a sink that is being written: the old one is used until it is there.
    proxy.hold(|line| line.contains("/secrets") && line.contains("other"));
    world.kollect("KollectDatabaseSink", "vault", sink("other"));
    eventually("the other one is looked up", || {
        let asked = proxy.requests();
        let found = asked.iter().any(|line| line.contains("/secrets") && line.contains("other"));
        found.then_some(()).ok_or(format!("{asked:?}"))
    });
    world.map("c", "3");
    comes("a b c");
    proxy.release();
    world.becomes("kollectinventory/late", "Degraded", "True SecretResolveFailed");
    world.map("d", "4");
    world.holds(&["a=1", "b=2", "c=3", "d=4"]);
    assert_eq!(late().trim(), "a b c", "without its Secret nothing is written");
}

#[test]
fn a_secret_of_the_cluster_itself_is_no_credential_of_a_sink() {
    let mut world = World::new("tokens");
    world.map("a", "1");
    world.install();
    for (name, type_) in [
        ("account", "kubernetes.io/service-account-token"),
        ("bootstrap", "bootstrap.kubernetes.io/token"),
        ("release", "helm.sh/release.v1"),
    ] {
        world.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "type": type_,
            "metadata": { "name": name, "annotations": { "kubernetes.io/service-account.name": "default" } },
            "stringData": { "dsn": world.postgres.dsn() },
        }));
        let table = format!("{}_{name}", world.table());
        let spec =
            json!({ "type": "postgres", "postgres": { "databaseRef": { "name": name }, "table": table } });
        world.kollect("KollectDatabaseSink", name, spec);
        world.kollect("KollectInventory", name, json!({ "databaseSinkRefs": [name] }));
    }
    world.start(&[]);
    world.holds(&["a=1"]);
    for name in ["account", "bootstrap", "release"] {
        let sink = format!("kollectdatabasesink/{name}");
        world.becomes(&sink, "ConnectionVerified", "False SecretResolveFailed");
        let message = world.get(&sink)["status"]["conditions"].to_string();
        assert!(message.contains("make a Secret of type Opaque"), "{message}");
        world.becomes(&format!("kollectinventory/{name}"), "Degraded", "True SecretResolveFailed");
        let table = format!("SELECT to_regclass('{}_{name}')", world.table());
        assert_eq!(world.postgres.psql(&table).unwrap().trim(), "", "nothing was opened");
    }
    // The type of a Secret cannot be changed: it is made anew.
    world.delete("secret/release");
    world.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "release" },
        "stringData": { "dsn": world.postgres.dsn() },
    }));
    world.becomes("kollectinventory/release", "Ready", "True Exported");
}
