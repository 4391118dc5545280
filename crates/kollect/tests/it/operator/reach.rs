//! What a KollectTarget reaches: its own namespace, and what a KollectScope of its namespace names.

use super::*;

const CROSS_NAMESPACE: &[&str] = &["--cross-namespace-targets=all"];

impl OperatorTest {
    /// A ConfigMap that the target selects by its labels, in a namespace.
    fn apply_config_map_in(&self, namespace: &str, name: &str, value: &str) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": value },
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": "shop" } },
        });
        self.plane.apply(&map.to_string()).unwrap();
    }

    fn apply_target_of_maps(&self, more: Value) {
        let labels = json!({ "matchLabels": { "app": "shop" } });
        let mut spec = json!({ "profileRef": "maps", "labelSelector": labels });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply_kollect("KollectTarget", "maps", spec);
    }

    fn apply_scope(&self, spec: Value) {
        self.apply_kollect("KollectScope", "limits", spec);
    }

    fn wait_for_message(&self, type_: &str, words: &[&str]) {
        eventually(&format!("{type_} says {words:?}"), || {
            let message = self.condition_message("kollecttarget/maps", type_);
            words.iter().all(|words| message.contains(words)).then_some(()).ok_or(message)
        });
    }
}

/// A test whose operator also watches a second namespace, with the name of that.
fn test_with_second_namespace(name: &str) -> (OperatorTest, String) {
    let mut test = OperatorTest::new(name);
    let other = test.plane.namespace("neighbour").unwrap();
    test.watched = format!("{},{other}", test.namespace);
    test.apply_config_map("a", "1");
    test.apply_config_map_in(&other, "b", "1");
    test.install();
    (test, other)
}

#[test]
fn an_upgrade_to_the_default_reach_removes_no_rows_and_a_scope_extends_the_reach() {
    let (mut test, other) = test_with_second_namespace("upgrade");
    test.apply_target_of_maps(json!({}));
    test.start(CROSS_NAMESPACE);
    test.wait_for_rows(&["a=1", "b=1"]);
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    test.stop();

    // Restarted under the default: the rows of the other namespace stay, and are counted.
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    let scope = format!("a KollectScope in namespace {}", test.namespace);
    test.wait_for_message("ScopeClipped", &["1 row from there", &other, "spec.allowedNamespaces", &scope]);
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    test.apply_config_map_in(&other, "b", "2");
    test.apply_config_map_in(&other, "c", "2");
    test.apply_config_map("a", "2");
    test.wait_for_rows(&["a=2", "b=1"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let effective = test.get("kollecttarget/maps")["status"]["effectiveNamespaces"].clone();
    assert_eq!(effective, json!([test.namespace]));

    // A scope without namespaces adds none; one that names the namespace does.
    test.apply_scope(json!({ "allowedGVKs": [{ "version": "v1", "kind": "ConfigMap" }] }));
    test.apply_config_map("a", "3");
    test.wait_for_rows(&["a=3", "b=1"]);
    test.apply_scope(json!({ "allowedNamespaces": [test.namespace, other] }));
    test.wait_for_rows(&["a=3", "b=2", "c=2"]);
    eventually("nothing is cut off", || {
        let found = test.condition("kollecttarget/maps", "ScopeClipped");
        found.is_empty().then_some(()).ok_or(found)
    });

    // Without the scope the rows stay as they were, also if their objects are deleted.
    test.delete("kollectscope/limits");
    test.wait_for_condition("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    test.plane.kubectl(&["delete", "-n", &other, "configmap/c"]).unwrap();
    test.apply_config_map("a", "4");
    test.wait_for_rows(&["a=4", "b=2", "c=2"]);
    test.wait_for_message("ScopeClipped", &["2 rows from there"]);

    // A scope that was read and denies them removes them.
    test.apply_scope(json!({ "deniedNamespaces": [other] }));
    test.wait_for_rows(&["a=4"]);
    test.apply_scope(json!({ "allowedNamespaceSelector": {
        "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": [test.namespace, other] }],
    } }));
    test.wait_for_rows(&["a=4", "b=2"]);
}

#[test]
fn namespaces_and_kinds_beyond_the_reach_of_a_target_are_reported() {
    let (mut test, other) = test_with_second_namespace("asking");
    test.apply_target_of_maps(json!({ "includedNamespaces": [other] }));
    let profile = json!({
        "targetGVK": { "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" },
        "attributes": [{ "name": "value", "path": "$.value" }],
    });
    test.apply_kollect("KollectProfile", "classes", profile);
    test.apply_kollect("KollectTarget", "classes", json!({ "profileRef": "classes" }));
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True BeyondReach");
    test.wait_for_message("ScopeClipped", &[&format!("namespace {other}"), "spec.allowedNamespaces"]);
    test.wait_for_condition("kollecttarget/classes", "Degraded", "True BeyondReach");
    let message = test.condition_message("kollecttarget/classes", "ScopeClipped");
    let scope = format!("spec.allowedGVKs of a KollectScope in namespace {}", test.namespace);
    assert!(message.contains("PriorityClass") && message.contains(&scope), "{message}");
    test.wait_for_condition("kollectinventory/all", "Synced", "True Exported");
    assert_eq!(test.rows(), [""; 0]);

    // A selector of all namespaces: those within reach are collected.
    test.apply_target_of_maps(json!({ "namespaceSelector": {} }));
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    test.apply_scope(json!({
        "allowedNamespaces": ["*"],
        "allowedGVKs": [
            { "version": "v1", "kind": "ConfigMap" },
            { "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" },
        ],
    }));
    test.wait_for_condition("kollecttarget/classes", "Ready", "True Collecting");
    eventually("classes arrive", || {
        let rows = test.rows();
        let classes = rows.iter().any(|row| row.starts_with("system-node-critical="));
        (classes && rows.contains(&"b=1".to_owned())).then_some(()).ok_or(format!("{rows:?}"))
    });
}

/// A user with all rights but to read scopes.
fn user_without_scopes(test: &OperatorTest) -> PathBuf {
    let kinds = [
        "kollectprofiles",
        "kollecttargets",
        "kollectinventories",
        "kollectsnapshotsinks",
        "kollectdatabasesinks",
        "kollecteventsinks",
        "kollectconnectiontests",
    ];
    let statuses = kinds.map(|kind| format!("{kind}/status"));
    let all = kinds.into_iter().chain(statuses.iter().map(String::as_str)).collect::<Vec<_>>();
    let read = ["get", "list", "watch"];
    let rules = [
        Grant::cluster("kollect.dev", &all, &["*"]),
        Grant::cluster("", &["namespaces", "secrets", "configmaps"], &read),
        Grant::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &read),
        Grant::cluster("", &["events"], &["create"]),
    ];
    test.plane.user(&test.namespace, "unscoped", &rules).unwrap()
}

#[test]
fn scopes_that_may_not_be_read_stop_collection_also_after_a_restart() {
    let mut test = OperatorTest::new("scopeless");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.stop();
    test.apply_config_map("b", "1");
    test.kubeconfig = Some(user_without_scopes(&test));
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ScopeUnreadable");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True ScopeUnreadable");
    let message = test.condition_message("kollecttarget/maps", "Ready");
    assert!(message.contains("KollectScopes cannot be read"), "{message}");
    assert_eq!(test.rows(), ["a=1"], "what is there stays");
}
