//! An API server that does not yet serve all kinds, as one that has just started.

use super::*;

/// A discovery document without the kind KollectTarget.
fn discovery_without_targets() -> String {
    let resource = |kind: &str, plural: &str| {
        json!({
            "resource": plural, "scope": "Namespaced", "verbs": ["get", "list", "watch", "update", "patch"],
            "responseKind": { "group": "kollect.dev", "version": "v1alpha1", "kind": kind },
        })
    };
    let resources = [
        resource("KollectProfile", "kollectprofiles"),
        resource("KollectInventory", "kollectinventories"),
        resource("KollectSnapshotSink", "kollectsnapshotsinks"),
        resource("KollectDatabaseSink", "kollectdatabasesinks"),
        resource("KollectEventSink", "kollecteventsinks"),
        resource("KollectScope", "kollectscopes"),
        resource("KollectConnectionTest", "kollectconnectiontests"),
    ];
    let version = json!({ "version": "v1alpha1", "freshness": "Current", "resources": resources });
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{ "metadata": { "name": "kollect.dev" }, "versions": [version] }],
    })
    .to_string()
}

#[test]
fn discovery_without_the_kind_of_targets_removes_no_rows() {
    let mut test = OperatorTest::new("incomplete");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.stop();
    let row_version = format!("SELECT xmin FROM {}", test.table());
    let written = test.postgres.psql(&row_version).unwrap();
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    let header = [("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    proxy.answer(2, |line| line.starts_with("GET /apis "), 200, &header, &discovery_without_targets());
    test.start(&[]);
    // The old row is not written again, so it was not removed meanwhile.
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
    let old = format!("SELECT xmin FROM {} WHERE name = 'a'", test.table());
    assert_eq!(test.postgres.psql(&old).unwrap(), written, "the row was removed and written again");
    test.wait_for_log_line("the kind that cannot be seen is named", |line| {
        line["message"] == "cannot see objects" && line["kind"] == "KollectTarget"
    });
}
