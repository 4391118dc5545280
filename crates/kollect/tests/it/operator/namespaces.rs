//! An operator that looks at some namespaces: what it removes from sinks, and what it leaves there.

use super::*;

/// The targets here collect from other namespaces, or a kind without namespaces.
const ALL: &[&str] = &["--cross-namespace-targets=all"];

impl World {
    /// A target that nothing limits to namespaces, of a kind that has none.
    fn install_classes(&self) {
        let gvk = json!({ "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" });
        let value = json!([{ "name": "value", "path": "$.value" }]);
        self.kollect("KollectProfile", "classes", json!({ "targetGVK": gvk, "attributes": value }));
        let labels = json!({ "matchLabels": { "team": self.namespace } });
        self.kollect("KollectTarget", "classes", json!({ "profileRef": "classes", "labelSelector": labels }));
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7,
            "metadata": { "name": self.class(), "labels": { "team": self.namespace } },
        });
        self.plane.apply(&class.to_string()).unwrap();
    }

    fn class(&self) -> String {
        format!("class-{}", self.namespace)
    }
}

#[test]
fn law_6_a_target_that_goes_leaves_nothing_behind_wherever_its_objects_were() {
    let mut world = World::new("limited");
    let other = world.plane.namespace("other").unwrap();
    let elsewhere = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": "2" },
        "metadata": { "name": "b", "namespace": other, "labels": { "app": "shop" } },
    });
    world.plane.apply(&elsewhere.to_string()).unwrap();
    world.map("a", "1");
    world.install();
    let labels = json!({ "matchLabels": { "app": "shop" } });
    world.kollect("KollectTarget", "maps", json!({ "profileRef": "maps", "labelSelector": labels }));
    world.install_classes();
    let class = format!("{}=7", world.class());
    world.watched = format!("{},{other}", world.namespace);
    world.start(ALL);
    world.holds(&["a=1", "b=2", &class]);
    world.stop();

    // An operator that watches fewer namespaces knows nothing about the others: their rows stay with their target.
    world.watched.clone_from(&world.namespace);
    world.start(ALL);
    world.map("c", "3");
    world.holds(&["a=1", "b=2", "c=3", &class]);
    // Rows of a deleted target are removed, although the operator cannot see its objects.
    world.delete("kollecttarget/classes");
    world.holds(&["a=1", "b=2", "c=3"]);
    world.stop();
    world.delete("kollecttarget/maps");
    world.start(ALL);
    world.holds(&[]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
}

#[test]
fn law_5_a_tenant_keeps_rows_of_objects_that_it_may_not_see_until_their_target_goes() {
    let mut world = World::new("tenant");
    world.map("a", "1");
    world.install();
    world.install_classes();
    let class = format!("{}=7", world.class());
    world.start(ALL);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.holds(&["a=1", &class]);
    world.stop();

    // The same team without rights outside of its namespace takes over what it had written.
    let sql = format!("SELECT owner FROM kollect_bindings WHERE inventory_table = '{}'", world.table());
    let owner = world.postgres.psql(&sql).unwrap();
    let take_over = format!("kollect.dev/take-over=database/portal={}", owner.trim());
    world.plane.kubectl(&["annotate", "-n", &world.namespace, "kollectinventory/all", &take_over]).unwrap();
    let namespace = &world.namespace;
    let all = |group, kinds| Rule::in_namespace(namespace, group, kinds, &["*"]);
    let rules = [all("kollect.dev", &["*"]), all("", &["configmaps", "secrets", "events"])];
    let kubeconfig = world.plane.user(namespace, "tenant", &rules).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig).unwrap()).unwrap();
    config["contexts"][0]["context"]["namespace"] = json!(namespace);
    let kubeconfig = world.dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    world.kubeconfig = Some(kubeconfig);
    world.start(&[&["--tenant-mode"], ALL].concat());
    world.becomes("kollecttarget/classes", "Blind", "True ScopeForbidden");
    world.map("b", "2");
    world.holds(&["a=1", "b=2", &class]);
    world.delete("kollecttarget/classes");
    world.holds(&["a=1", "b=2"]);
}
