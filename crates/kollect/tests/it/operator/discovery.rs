//! An API server that does not yet serve all kinds, as one that has just started.

use super::*;

/// What the API server says that it serves when it does not know about targets yet.
fn without_targets() -> String {
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
fn law_5_a_discovery_without_targets_empties_no_sink() {
    let mut world = World::new("incomplete");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.stop();
    let stamp = format!("SELECT xmin FROM {}", world.table());
    let written = world.postgres.psql(&stamp).unwrap();
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    let header = [("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    proxy.answer(2, |line| line.starts_with("GET /apis "), 200, &header, &without_targets());
    world.start(&[]);
    // What was written before is not written again: not removed meanwhile, that is.
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    let old = format!("SELECT xmin FROM {} WHERE name = 'a'", world.table());
    assert_eq!(world.postgres.psql(&old).unwrap(), written, "the row was removed and written again");
    world.logs_line("the kind that cannot be seen is named", |line| {
        line["message"] == "cannot see objects" && line["kind"] == "KollectTarget"
    });
}
