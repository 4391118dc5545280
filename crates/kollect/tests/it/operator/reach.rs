//! What a KollectTarget reaches: its own namespace, and what a KollectScope of its namespace names.

use super::*;

const ALL: &[&str] = &["--cross-namespace-targets=all"];

impl World {
    /// A ConfigMap that the target selects by its labels, in a namespace.
    fn map_in(&self, namespace: &str, name: &str, value: &str) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "value": value },
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": "shop" } },
        });
        self.plane.apply(&map.to_string()).unwrap();
    }

    fn target_of_maps(&self, more: Value) {
        let labels = json!({ "matchLabels": { "app": "shop" } });
        let mut spec = json!({ "profileRef": "maps", "labelSelector": labels });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.kollect("KollectTarget", "maps", spec);
    }

    fn scope(&self, spec: Value) {
        self.kollect("KollectScope", "limits", spec);
    }

    fn says(&self, type_: &str, words: &[&str]) {
        eventually(&format!("{type_} says {words:?}"), || {
            let message = self.message("kollecttarget/maps", type_);
            words.iter().all(|words| message.contains(words)).then_some(()).ok_or(message)
        });
    }
}

/// A namespace with an operator that also looks at another namespace.
fn world_with_other(name: &str) -> (World, String) {
    let mut world = World::new(name);
    let other = world.plane.namespace("neighbour").unwrap();
    world.watched = format!("{},{other}", world.namespace);
    world.map("a", "1");
    world.map_in(&other, "b", "1");
    world.install();
    (world, other)
}

#[test]
fn law_9_an_upgrade_to_the_default_removes_nothing_and_a_scope_lets_it_go_on() {
    let (mut world, other) = world_with_other("upgrade");
    world.target_of_maps(json!({}));
    world.start(ALL);
    world.holds(&["a=1", "b=1"]);
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    world.stop();

    // Restarted under the default: the rows of the other namespace stay, and are counted.
    world.start(&[]);
    world.becomes("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    let scope = format!("a KollectScope in namespace {}", world.namespace);
    world.says("ScopeClipped", &["1 row from there", &other, "spec.allowedNamespaces", &scope]);
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    world.map_in(&other, "b", "2");
    world.map_in(&other, "c", "2");
    world.map("a", "2");
    world.holds(&["a=2", "b=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let effective = world.get("kollecttarget/maps")["status"]["effectiveNamespaces"].clone();
    assert_eq!(effective, json!([world.namespace]));

    // A list that says nothing about namespaces adds none; one that names the namespace does.
    world.scope(json!({ "allowedGVKs": [{ "version": "v1", "kind": "ConfigMap" }] }));
    world.map("a", "3");
    world.holds(&["a=3", "b=1"]);
    world.scope(json!({ "allowedNamespaces": [world.namespace, other] }));
    world.holds(&["a=3", "b=2", "c=2"]);
    eventually("nothing is cut off", || {
        let found = world.condition("kollecttarget/maps", "ScopeClipped");
        found.is_empty().then_some(()).ok_or(found)
    });

    // Without the scope they stay as they were, also if their objects go.
    world.delete("kollectscope/limits");
    world.becomes("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    world.plane.kubectl(&["delete", "-n", &other, "configmap/c"]).unwrap();
    world.map("a", "4");
    world.holds(&["a=4", "b=2", "c=2"]);
    world.says("ScopeClipped", &["2 rows from there"]);

    // A scope that was read and denies them removes them.
    world.scope(json!({ "deniedNamespaces": [other] }));
    world.holds(&["a=4"]);
    world.scope(json!({ "allowedNamespaceSelector": {
        "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": [world.namespace, other] }],
    } }));
    world.holds(&["a=4", "b=2"]);
}

#[test]
fn law_9_what_a_target_asks_for_beyond_its_reach_is_said() {
    let (mut world, other) = world_with_other("asking");
    world.target_of_maps(json!({ "includedNamespaces": [other] }));
    let nodes = json!({
        "targetGVK": { "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" },
        "attributes": [{ "name": "value", "path": "$.value" }],
    });
    world.kollect("KollectProfile", "classes", nodes);
    world.kollect("KollectTarget", "classes", json!({ "profileRef": "classes" }));
    world.start(&[]);
    world.becomes("kollecttarget/maps", "Degraded", "True BeyondReach");
    world.says("ScopeClipped", &[&format!("namespace {other}"), "spec.allowedNamespaces"]);
    world.becomes("kollecttarget/classes", "Degraded", "True BeyondReach");
    let message = world.message("kollecttarget/classes", "ScopeClipped");
    let scope = format!("spec.allowedGVKs of a KollectScope in namespace {}", world.namespace);
    assert!(message.contains("PriorityClass") && message.contains(&scope), "{message}");
    world.becomes("kollectinventory/all", "Synced", "True Exported");
    assert_eq!(world.rows(), [""; 0]);

    // Everything by labels: what is within reach is collected.
    world.target_of_maps(json!({ "namespaceSelector": {} }));
    world.holds(&["a=1"]);
    world.becomes("kollecttarget/maps", "ScopeClipped", "True BeyondReach");
    world.scope(json!({
        "allowedNamespaces": ["*"],
        "allowedGVKs": [
            { "version": "v1", "kind": "ConfigMap" },
            { "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" },
        ],
    }));
    world.becomes("kollecttarget/classes", "Ready", "True Collecting");
    eventually("classes arrive", || {
        let rows = world.rows();
        let classes = rows.iter().any(|row| row.starts_with("system-node-critical="));
        (classes && rows.contains(&"b=1".to_owned())).then_some(()).ok_or(format!("{rows:?}"))
    });
}

/// Rights on everything but the scopes.
fn without_scopes(world: &World) -> PathBuf {
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
        Rule::cluster("kollect.dev", &all, &["*"]),
        Rule::cluster("", &["namespaces", "secrets", "configmaps"], &read),
        Rule::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &read),
        Rule::cluster("", &["events"], &["create"]),
    ];
    world.plane.user(&world.namespace, "unscoped", &rules).unwrap()
}

#[test]
fn law_9_scopes_that_may_not_be_read_stop_collection_also_on_a_fresh_start() {
    let mut world = World::new("scopeless");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.holds(&["a=1"]);
    world.stop();
    world.map("b", "1");
    world.kubeconfig = Some(without_scopes(&world));
    world.start(&[]);
    world.becomes("kollecttarget/maps", "Degraded", "True ScopeUnreadable");
    world.becomes("kollectinventory/all", "Degraded", "True ScopeUnreadable");
    let message = world.message("kollecttarget/maps", "Ready");
    assert!(message.contains("KollectScopes cannot be read"), "{message}");
    assert_eq!(world.rows(), ["a=1"], "what is there stays");
}
