//! Changes while no operator runs cause no event. The next operator finds the difference.

use serde_json::{Value, json};

use super::{OperatorTest, separate_plane};
use crate::program::eventually;

fn wharf_definition() -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "wharves.shop.test" },
        "spec": {
            "group": "shop.test", "scope": "Namespaced",
            "names": { "plural": "wharves", "singular": "wharf", "kind": "Wharf" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
    .to_string()
}

impl OperatorTest {
    /// A profile and a target of one kind in some namespaces.
    fn apply_profile_and_target(&self, name: &str, gvk: &Value, namespaces: &[&str]) {
        let profile = json!({ "targetGVK": gvk, "attributes": [{ "name": "n", "path": "$.metadata.name" }] });
        self.apply_kollect("KollectProfile", name, profile);
        self.apply_kollect(
            "KollectTarget",
            name,
            json!({ "profileRef": name, "includedNamespaces": namespaces }),
        );
    }

    fn apply_inventory(&self, name: &str, targets: &[&str], sinks: &[&str]) {
        let spec = json!({ "targetRefs": targets, "databaseSinkRefs": sinks });
        self.apply_kollect("KollectInventory", name, spec);
    }

    /// Inventory and name of all rows of a table.
    fn rows_of(&self, table: &str) -> String {
        let sql = format!("SELECT inventory_name || ' ' || name FROM {table} ORDER BY 1");
        self.postgres.psql(&sql).unwrap_or_default().replace('\n', ",")
    }

    fn apply_object(&self, namespace: &str, api_version: &str, kind: &str, name: &str) {
        let object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": { "name": name, "namespace": namespace },
        });
        eventually("the kind is served", || {
            self.plane.apply(&object.to_string()).map(drop).map_err(|error| error.to_string())
        });
    }

    fn apply_definition(&self) {
        self.plane.apply(&wharf_definition()).unwrap();
        self.plane
            .kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd/wharves.shop.test"])
            .unwrap();
    }
}

#[test]
fn changes_while_no_operator_ran_are_found_by_the_next_one() {
    let mut test = OperatorTest::on(separate_plane(), "unseen");
    let (here, there) = (test.namespace.clone(), test.plane.namespace("there").unwrap());
    let [first, second] = ["first", "second"].map(|end| format!("{}_{end}", test.table()));
    test.apply_definition();
    test.apply_secret(&test.postgres.dsn());
    for (name, table) in [("first", &first), ("second", &second)] {
        let spec = json!({ "type": "postgres", "postgres": { "databaseRef": { "name": "portal" }, "table": table } });
        test.apply_kollect("KollectDatabaseSink", name, spec);
    }
    test.apply_profile_and_target("maps", &json!({ "version": "v1", "kind": "ConfigMap" }), &[&here, &there]);
    test.apply_profile_and_target(
        "leases",
        &json!({ "group": "coordination.k8s.io", "version": "v1", "kind": "Lease" }),
        &[&here],
    );
    test.apply_profile_and_target(
        "wharves",
        &json!({ "group": "shop.test", "version": "v1", "kind": "Wharf" }),
        &[&here],
    );
    test.apply_profile_and_target("doomed", &json!({ "version": "v1", "kind": "ConfigMap" }), &[&here]);
    for (namespace, name) in [(&here, "stays"), (&here, "goes"), (&there, "far")] {
        test.apply_object(namespace, "v1", "ConfigMap", name);
    }
    test.apply_object(&here, "coordination.k8s.io/v1", "Lease", "robot");
    test.apply_object(&here, "shop.test/v1", "Wharf", "old");
    test.apply_inventory("again", &["maps"], &["first"]);
    test.apply_inventory("both", &["maps"], &["first", "second"]);
    test.apply_inventory("doomed", &["doomed"], &["first"]);
    test.apply_inventory("moved", &["leases"], &["first"]);
    test.apply_inventory("scoped", &["leases"], &["first"]);
    test.apply_inventory("wharves", &["wharves"], &["first"]);
    let wait_for_rows = |test: &OperatorTest, table: &str, expected: &str| {
        eventually(&format!("{table} holds {expected}"), || {
            let found = test.rows_of(table);
            (found == expected).then_some(()).ok_or(found)
        });
    };
    // One of the targets collects from both namespaces.
    let start = |test: &mut OperatorTest| {
        test.start(&["--watch-namespaces", &there, "--cross-namespace-targets=all"]);
    };
    start(&mut test);
    let both = "both far,both goes,both stays,";
    let before = format!(
        "again far,again goes,again stays,{both}doomed goes,doomed stays,moved robot,scoped robot,wharves old,"
    );
    wait_for_rows(&test, &first, &before);
    wait_for_rows(&test, &second, both);
    eventually("all objects are Ready", || {
        let unready = OperatorTest::unready(&test.objects());
        unready.is_empty().then_some(()).ok_or(format!("{unready:?}"))
    });
    test.operator.as_mut().unwrap().kill();

    // Objects are created and deleted.
    test.plane.kubectl(&["delete", "configmap", "-n", &here, "goes"]).unwrap();
    test.apply_object(&here, "v1", "ConfigMap", "new");
    // A namespace with everything in it.
    test.plane.kubectl(&["delete", "namespace", &there]).unwrap();
    // An inventory is deleted by removing its finalizer, and another one gets its name.
    test.delete("kollectinventory/again");
    let no_finalizers = r#"{"metadata":{"finalizers":null}}"#;
    let patch = ["patch", "-n", &here, "kollectinventory/again", "--type=merge", "-p", no_finalizers];
    test.plane.kubectl(&patch).unwrap();
    test.apply_inventory("again", &["maps"], &["first"]);
    // A reference is removed, a sink replaced by another, a target deleted.
    test.apply_inventory("both", &["maps"], &["first"]);
    test.apply_inventory("moved", &["leases"], &["second"]);
    test.delete("kollecttarget/doomed");
    // A kind is removed and defined again with other objects.
    test.plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
    test.apply_definition();
    test.apply_object(&here, "shop.test/v1", "Wharf", "young");
    start(&mut test);
    let after = "again new,again stays,both new,both stays,scoped robot,wharves young,";
    wait_for_rows(&test, &first, after);
    wait_for_rows(&test, &second, "moved robot,");

    // A scope is tightened.
    test.operator.as_mut().unwrap().kill();
    let allowed = json!([
        { "version": "v1", "kind": "ConfigMap" },
        { "group": "shop.test", "version": "v1", "kind": "Wharf" },
    ]);
    test.apply_kollect("KollectScope", "tight", json!({ "allowedGVKs": allowed }));
    start(&mut test);
    wait_for_rows(&test, &first, "again new,again stays,both new,both stays,wharves young,");
    wait_for_rows(&test, &second, "");
    test.wait_for_condition("kollectinventory/both", "Ready", "True Exported");
    test.wait_for_condition("kollecttarget/leases", "Degraded", "True ScopeGVKDenied");
    let exports = test.get("kollectinventory/both")["status"]["sinkExports"].clone();
    assert_eq!(exports.as_array().map(Vec::len), Some(1), "{exports}");

    // The same while it runs: without the kind there are no objects, and with it there are others.
    test.plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
    wait_for_rows(&test, &first, "again new,again stays,both new,both stays,");
    test.apply_definition();
    test.apply_object(&here, "shop.test/v1", "Wharf", "newborn");
    wait_for_rows(&test, &first, "again new,again stays,both new,both stays,wharves newborn,");
    test.wait_for_condition("kollecttarget/wharves", "Ready", "True Collecting");
}
