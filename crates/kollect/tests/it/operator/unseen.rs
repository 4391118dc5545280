//! Changes while no operator runs cause no event. The next operator finds the difference.

use serde_json::{Value, json};

use super::{World, own_plane};
use crate::program::eventually;

fn definition() -> String {
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

impl World {
    /// A profile and a target of one kind in some namespaces.
    fn target(&self, name: &str, gvk: &Value, namespaces: &[&str]) {
        let profile = json!({ "targetGVK": gvk, "attributes": [{ "name": "n", "path": "$.metadata.name" }] });
        self.kollect("KollectProfile", name, profile);
        self.kollect("KollectTarget", name, json!({ "profileRef": name, "includedNamespaces": namespaces }));
    }

    fn inventory(&self, name: &str, targets: &[&str], sinks: &[&str]) {
        let spec = json!({ "targetRefs": targets, "databaseSinkRefs": sinks });
        self.kollect("KollectInventory", name, spec);
    }

    /// Inventory and name of all rows of a table.
    fn rows_of(&self, table: &str) -> String {
        let sql = format!("SELECT inventory_name || ' ' || name FROM {table} ORDER BY 1");
        self.postgres.psql(&sql).unwrap_or_default().replace('\n', ",")
    }

    fn put(&self, namespace: &str, api_version: &str, kind: &str, name: &str) {
        let object = json!({
            "apiVersion": api_version, "kind": kind, "metadata": { "name": name, "namespace": namespace },
        });
        eventually("the kind is served", || {
            self.plane.apply(&object.to_string()).map(drop).map_err(|error| error.to_string())
        });
    }

    fn define(&self) {
        self.plane.apply(&definition()).unwrap();
        self.plane
            .kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd/wharves.shop.test"])
            .unwrap();
    }
}

#[test]
fn what_happened_while_no_operator_ran_is_found_by_the_next_one() {
    let mut world = World::on(own_plane(), "unseen");
    let (here, there) = (world.namespace.clone(), world.plane.namespace("there").unwrap());
    let [first, second] = ["first", "second"].map(|end| format!("{}_{end}", world.table()));
    world.define();
    world.secret(&world.postgres.dsn());
    for (name, table) in [("first", &first), ("second", &second)] {
        let spec = json!({ "type": "postgres", "postgres": { "databaseRef": { "name": "portal" }, "table": table } });
        world.kollect("KollectDatabaseSink", name, spec);
    }
    world.target("maps", &json!({ "version": "v1", "kind": "ConfigMap" }), &[&here, &there]);
    world.target(
        "leases",
        &json!({ "group": "coordination.k8s.io", "version": "v1", "kind": "Lease" }),
        &[&here],
    );
    world.target("wharves", &json!({ "group": "shop.test", "version": "v1", "kind": "Wharf" }), &[&here]);
    world.target("doomed", &json!({ "version": "v1", "kind": "ConfigMap" }), &[&here]);
    for (namespace, name) in [(&here, "stays"), (&here, "goes"), (&there, "far")] {
        world.put(namespace, "v1", "ConfigMap", name);
    }
    world.put(&here, "coordination.k8s.io/v1", "Lease", "robot");
    world.put(&here, "shop.test/v1", "Wharf", "old");
    world.inventory("again", &["maps"], &["first"]);
    world.inventory("both", &["maps"], &["first", "second"]);
    world.inventory("doomed", &["doomed"], &["first"]);
    world.inventory("moved", &["leases"], &["first"]);
    world.inventory("scoped", &["leases"], &["first"]);
    world.inventory("wharves", &["wharves"], &["first"]);
    let holds = |world: &World, table: &str, expected: &str| {
        eventually(&format!("{table} holds {expected}"), || {
            let found = world.rows_of(table);
            (found == expected).then_some(()).ok_or(found)
        });
    };
    // One of the targets collects from both namespaces.
    let start = |world: &mut World| {
        world.start(&["--watch-namespaces", &there, "--cross-namespace-targets=all"]);
    };
    start(&mut world);
    let both = "both far,both goes,both stays,";
    let before = format!(
        "again far,again goes,again stays,{both}doomed goes,doomed stays,moved robot,scoped robot,wharves old,"
    );
    holds(&world, &first, &before);
    holds(&world, &second, both);
    eventually("all is told", || {
        let unready = World::unready(&world.objects());
        unready.is_empty().then_some(()).ok_or(format!("{unready:?}"))
    });
    world.operator.as_mut().unwrap().kill();

    // Objects come and go.
    world.plane.kubectl(&["delete", "configmap", "-n", &here, "goes"]).unwrap();
    world.put(&here, "v1", "ConfigMap", "new");
    // A namespace with everything in it.
    world.plane.kubectl(&["delete", "namespace", &there]).unwrap();
    // An inventory is forced away, and another one gets its name.
    world.delete("kollectinventory/again");
    let force = r#"{"metadata":{"finalizers":null}}"#;
    let patch = ["patch", "-n", &here, "kollectinventory/again", "--type=merge", "-p", force];
    world.plane.kubectl(&patch).unwrap();
    world.inventory("again", &["maps"], &["first"]);
    // A reference is removed, a sink replaced by another, a target deleted.
    world.inventory("both", &["maps"], &["first"]);
    world.inventory("moved", &["leases"], &["second"]);
    world.delete("kollecttarget/doomed");
    // A kind goes and comes back with other objects.
    world.plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
    world.define();
    world.put(&here, "shop.test/v1", "Wharf", "young");
    start(&mut world);
    let after = "again new,again stays,both new,both stays,scoped robot,wharves young,";
    holds(&world, &first, after);
    holds(&world, &second, "moved robot,");

    // A scope is tightened.
    world.operator.as_mut().unwrap().kill();
    let allowed = json!([
        { "version": "v1", "kind": "ConfigMap" },
        { "group": "shop.test", "version": "v1", "kind": "Wharf" },
    ]);
    world.kollect("KollectScope", "tight", json!({ "allowedGVKs": allowed }));
    start(&mut world);
    holds(&world, &first, "again new,again stays,both new,both stays,wharves young,");
    holds(&world, &second, "");
    world.becomes("kollectinventory/both", "Ready", "True Exported");
    world.becomes("kollecttarget/leases", "Degraded", "True ScopeGVKDenied");
    let exports = world.get("kollectinventory/both")["status"]["sinkExports"].clone();
    assert_eq!(exports.as_array().map(Vec::len), Some(1), "{exports}");

    // The same while it runs: without the kind there are no objects, and with it there are others.
    world.plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
    holds(&world, &first, "again new,again stays,both new,both stays,");
    world.define();
    world.put(&here, "shop.test/v1", "Wharf", "newborn");
    holds(&world, &first, "again new,again stays,both new,both stays,wharves newborn,");
    world.becomes("kollecttarget/wharves", "Ready", "True Collecting");
}
