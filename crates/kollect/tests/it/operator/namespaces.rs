//! An operator that watches some namespaces: which rows it removes from sinks, and which stay.

use super::*;

/// The targets here collect from other namespaces, or a kind without namespaces.
const CROSS_NAMESPACE: &[&str] = &["--cross-namespace-targets=all"];

impl OperatorTest {
    /// A target without namespaces, of a kind that has none.
    fn install_classes(&self) {
        let gvk = json!({ "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" });
        let value = json!([{ "name": "value", "path": "$.value" }]);
        self.apply_kollect("KollectProfile", "classes", json!({ "targetGVK": gvk, "attributes": value }));
        let labels = json!({ "matchLabels": { "team": self.namespace } });
        self.apply_kollect(
            "KollectTarget",
            "classes",
            json!({ "profileRef": "classes", "labelSelector": labels }),
        );
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7,
            "metadata": { "name": self.class_name(), "labels": { "team": self.namespace } },
        });
        self.plane.apply(&class.to_string()).unwrap();
    }

    fn class_name(&self) -> String {
        format!("class-{}", self.namespace)
    }
}

#[test]
fn all_rows_of_a_deleted_target_are_removed_for_every_namespace() {
    let mut test = OperatorTest::new("limited");
    let other = test.plane.namespace("other").unwrap();
    let other_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": "2" },
        "metadata": { "name": "b", "namespace": other, "labels": { "app": "shop" } },
    });
    test.plane.apply(&other_map.to_string()).unwrap();
    test.apply_config_map("a", "1");
    test.install();
    let labels = json!({ "matchLabels": { "app": "shop" } });
    test.apply_kollect("KollectTarget", "maps", json!({ "profileRef": "maps", "labelSelector": labels }));
    test.install_classes();
    let class = format!("{}=7", test.class_name());
    test.watched = format!("{},{other}", test.namespace);
    test.start(CROSS_NAMESPACE);
    test.wait_for_rows(&["a=1", "b=2", &class]);
    test.stop();

    // An operator that watches fewer namespaces knows nothing about the others: their rows stay with their target.
    test.watched.clone_from(&test.namespace);
    test.start(CROSS_NAMESPACE);
    test.apply_config_map("c", "3");
    test.wait_for_rows(&["a=1", "b=2", "c=3", &class]);
    // Rows of a deleted target are removed, although the operator cannot see its objects.
    test.delete("kollecttarget/classes");
    test.wait_for_rows(&["a=1", "b=2", "c=3"]);
    test.stop();
    test.delete("kollecttarget/maps");
    test.start(CROSS_NAMESPACE);
    test.wait_for_rows(&[]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
}

#[test]
fn rows_of_objects_that_a_tenant_may_not_see_stay_until_their_target_is_deleted() {
    let mut test = OperatorTest::new("tenant");
    test.apply_config_map("a", "1");
    test.install();
    test.install_classes();
    let class = format!("{}=7", test.class_name());
    test.start(CROSS_NAMESPACE);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.wait_for_rows(&["a=1", &class]);
    test.stop();

    // The same team without rights outside of its namespace takes its rows over.
    let sql = format!("SELECT owner FROM kollect_bindings WHERE inventory_table = '{}'", test.table());
    let owner = test.postgres.psql(&sql).unwrap();
    let take_over = format!("kollect.dev/take-over=database/portal={}", owner.trim());
    test.plane.kubectl(&["annotate", "-n", &test.namespace, "kollectinventory/all", &take_over]).unwrap();
    let namespace = &test.namespace;
    let all = |group, kinds| Grant::in_namespace(namespace, group, kinds, &["*"]);
    let rules = [all("kollect.dev", &["*"]), all("", &["configmaps", "secrets", "events"])];
    let kubeconfig = test.plane.user(namespace, "tenant", &rules).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(kubeconfig).unwrap()).unwrap();
    config["contexts"][0]["context"]["namespace"] = json!(namespace);
    let kubeconfig = test.dir.path().join("kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    test.kubeconfig = Some(kubeconfig);
    test.start(&[&["--tenant-mode"], CROSS_NAMESPACE].concat());
    test.wait_for_condition("kollecttarget/classes", "Blind", "True ScopeForbidden");
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2", &class]);
    test.delete("kollecttarget/classes");
    test.wait_for_rows(&["a=1", "b=2"]);
}
