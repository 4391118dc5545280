//! Secrets that take long to read delay only the sinks that name them.

use super::*;

/// A user who may get Secrets, and neither list nor watch them.
pub(super) fn user_without_secret_lists(test: &OperatorTest) -> std::path::PathBuf {
    let read = ["get", "list", "watch"];
    let rules = [
        Grant::cluster("kollect.dev", &["*"], &["*"]),
        Grant::cluster("", &["namespaces", "configmaps"], &read),
        Grant::cluster("", &["secrets"], &["get"]),
        Grant::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &["list", "watch"]),
        Grant::cluster("", &["events"], &["create"]),
    ];
    test.plane.user(&test.namespace, "get-only", &rules).unwrap()
}

#[test]
fn a_secret_that_is_read_slowly_delays_only_the_sinks_that_name_it() {
    let mut test = OperatorTest::new("patient");
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    test.apply_config_map("a", "1");
    test.install();
    let vault = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "vault" },
        "stringData": { "dsn": test.postgres.dsn() },
    });
    test.apply(vault);
    let table = format!("{}_vault", test.table());
    let sink = |secret: &str| json!({ "type": "postgres", "postgres": { "databaseRef": { "name": secret }, "table": table } });
    test.apply_kollect("KollectDatabaseSink", "vault", sink("vault"));
    test.apply_kollect("KollectInventory", "late", json!({ "databaseSinkRefs": ["vault"] }));
    let connection_test = json!({ "sinkRef": { "databaseSinkRef": "vault" } });
    test.apply_kollect("KollectConnectionTest", "late", connection_test);
    let late_rows = || {
        let sql = format!("SELECT string_agg(name, ' ' ORDER BY name) FROM {table}");
        test.postgres.psql(&sql).unwrap_or_else(|_| "no table".into())
    };
    let wait_for_late_rows = |expected: &str| {
        eventually(expected, || {
            let found = late_rows();
            (found.trim() == expected).then_some(()).ok_or(found)
        });
    };
    let is_vault = |line: &str| line.contains("/secrets") && line.contains("vault");
    proxy.hold(is_vault);
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
    assert!(proxy.requests().iter().any(|line| is_vault(line)), "the operator looks it up");
    // The Secret is not known yet: statuses report progress, neither success nor failure.
    test.wait_for_condition("kollectinventory/late", "Synced", "False Progressing");
    test.wait_for_condition("kollectinventory/late", "Reconciling", "True Progressing");
    test.wait_for_condition("kollectdatabasesink/vault", "Reconciling", "True Probing");
    assert_eq!(test.condition("kollectinventory/late", "Degraded"), "");
    assert_eq!(test.get("kollectconnectiontest/late")["status"]["completed"], Value::Null);
    assert_eq!(late_rows(), "no table");
    proxy.release();
    wait_for_late_rows("a b");
    test.wait_for_condition("kollectinventory/late", "Ready", "True Exported");
    test.wait_for_condition("kollectconnectiontest/late", "Ready", "True ProbeSucceeded");

    // Another Secret is looked up for a sink that is being written: the old one is used until it is there.
    proxy.hold(|line| line.contains("/secrets") && line.contains("other"));
    test.apply_kollect("KollectDatabaseSink", "vault", sink("other"));
    eventually("the other one is looked up", || {
        let requests = proxy.requests();
        let found = requests.iter().any(|line| line.contains("/secrets") && line.contains("other"));
        found.then_some(()).ok_or(format!("{requests:?}"))
    });
    test.apply_config_map("c", "3");
    wait_for_late_rows("a b c");
    proxy.release();
    test.wait_for_condition("kollectinventory/late", "Degraded", "True SecretResolveFailed");
    test.apply_config_map("d", "4");
    test.wait_for_rows(&["a=1", "b=2", "c=3", "d=4"]);
    assert_eq!(late_rows().trim(), "a b c", "without its Secret nothing is written");
}

#[test]
fn a_secret_of_the_cluster_itself_is_refused_as_a_credential() {
    let mut test = OperatorTest::new("tokens");
    test.apply_config_map("a", "1");
    test.install();
    for (name, type_) in [
        ("account", "kubernetes.io/service-account-token"),
        ("bootstrap", "bootstrap.kubernetes.io/token"),
        ("release", "helm.sh/release.v1"),
    ] {
        test.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "type": type_,
            "metadata": { "name": name, "annotations": { "kubernetes.io/service-account.name": "default" } },
            "stringData": { "dsn": test.postgres.dsn() },
        }));
        let table = format!("{}_{name}", test.table());
        let spec =
            json!({ "type": "postgres", "postgres": { "databaseRef": { "name": name }, "table": table } });
        test.apply_kollect("KollectDatabaseSink", name, spec);
        test.apply_kollect("KollectInventory", name, json!({ "databaseSinkRefs": [name] }));
    }
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    for name in ["account", "bootstrap", "release"] {
        let sink = format!("kollectdatabasesink/{name}");
        test.wait_for_condition(&sink, "ConnectionVerified", "False SecretResolveFailed");
        let message = test.get(&sink)["status"]["conditions"].to_string();
        assert!(message.contains("make a Secret of type Opaque"), "{message}");
        test.wait_for_condition(&format!("kollectinventory/{name}"), "Degraded", "True SecretResolveFailed");
        let table = format!("SELECT to_regclass('{}_{name}')", test.table());
        assert_eq!(test.postgres.psql(&table).unwrap().trim(), "", "nothing was opened");
    }
    // The type of a Secret cannot be changed: it is made anew.
    test.delete("secret/release");
    test.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "release" },
        "stringData": { "dsn": test.postgres.dsn() },
    }));
    test.wait_for_condition("kollectinventory/release", "Ready", "True Exported");
}
