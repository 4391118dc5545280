//! A target that selects nothing, and attributes without a value, are reported: by status, event and metric.

use serde_json::{Value, json};

use super::{World, metrics::PLAIN, own_plane};
use crate::program::eventually;

fn target(world: &World, name: &str, spec: Value) {
    world.kollect("KollectTarget", name, spec);
}

/// A profile whose attribute `team` has a type.
fn typed_profile(world: &World, type_: &str) {
    let attributes = json!([
        { "name": "value", "path": "$.data.value" },
        { "name": "team", "path": "$.data.value", "type": type_ },
        { "name": "owner", "path": "$.metadata.annotations.owner", "optional": true },
    ]);
    let gvk = json!({ "version": "v1", "kind": "ConfigMap" });
    world.kollect("KollectProfile", "maps", json!({ "targetGVK": gvk, "attributes": attributes }));
}

impl World {
    fn nulls(&self) -> Vec<Value> {
        self.get("kollecttarget/maps")["status"]["nullAttributes"].as_array().cloned().unwrap_or_default()
    }

    fn tells_event(&self, what: &str, expected: &str) {
        eventually(&format!("{what} {expected}"), || {
            let events = self.events_about(what);
            events.iter().any(|event| event == expected).then_some(()).ok_or(format!("{events:?}"))
        });
    }
}

#[test]
fn what_matches_nothing_is_said_with_what_to_do() {
    let mut world = World::on(own_plane(), "selects");
    world.watched = String::new();
    let own = world.namespace.clone();
    world.map("a", "1");
    world.install();
    let profile = |name: &str, group: &str, kind: &str| {
        let gvk = json!({ "group": group, "version": "v1", "kind": kind });
        let attributes = json!([{ "name": "name", "path": "$.metadata.name" }]);
        world.kollect("KollectProfile", name, json!({ "targetGVK": gvk, "attributes": attributes }));
    };
    profile("typo", "", "ConfigMapp");
    profile("roles", "rbac.authorization.k8s.io", "ClusterRole");
    let labels = json!({ "matchLabels": { "there-is": "no-such-label" } });
    target(&world, "typo", json!({ "profileRef": "typo" }));
    target(&world, "nowhere", json!({ "profileRef": "maps", "includedNamespaces": ["there-is-no-such"] }));
    target(&world, "half", json!({ "profileRef": "maps", "includedNamespaces": [own, "there-is-no-such"] }));
    target(&world, "roles", json!({ "profileRef": "roles", "namespaceSelector": labels.clone() }));
    target(&world, "unlabelled", json!({ "profileRef": "maps", "namespaceSelector": labels.clone() }));
    target(
        &world,
        "no-object",
        json!({ "profileRef": "maps", "includedNamespaces": [own], "labelSelector": labels }),
    );
    world.start(&[]);
    world.becomes("kollecttarget/nowhere", "Degraded", "True NamespaceNotFound");
    world.becomes("kollecttarget/nowhere", "Unmatched", "True NamespaceNotFound");
    world.becomes("kollecttarget/roles", "Degraded", "True ClusterScopedKind");
    world.becomes("kollecttarget/roles", "Unmatched", "True ClusterScopedKind");
    world.becomes("kollecttarget/half", "Unmatched", "True NamespaceNotFound");
    world.becomes("kollecttarget/half", "Ready", "True Collecting");
    world.becomes("kollecttarget/unlabelled", "Unmatched", "True NoNamespaceMatches");
    world.becomes("kollecttarget/no-object", "Unmatched", "True NothingSelected");
    world.becomes("kollecttarget/typo", "Degraded", "True KindNotServed");
    world.becomes("kollecttarget/typo", "Unmatched", "True KindNotServed");
    world.becomes("kollecttarget/typo", "Exported", "False KindNotServed");
    for (target, words) in [
        ("typo", "the cluster does not serve v1 ConfigMapp: correct spec.targetGVK of KollectProfile typo"),
        ("nowhere", "the namespace does not exist: there-is-no-such; create what is missing"),
        (
            "roles",
            "ClusterRole are in no namespace, and the spec selects namespaces: remove spec.namespaceSelector",
        ),
        ("unlabelled", "no namespace has the labels that the spec asks for"),
        ("no-object", "no object of v1 ConfigMap matches the selectors"),
    ] {
        let message = world.message(&format!("kollecttarget/{target}"), "Unmatched");
        assert!(message.contains(words), "{message}");
    }
    for (target, reason) in [
        ("typo", "KindNotServed"),
        ("nowhere", "NamespaceNotFound"),
        ("half", "NamespaceNotFound"),
        ("roles", "ClusterScopedKind"),
        ("unlabelled", "NoNamespaceMatches"),
        ("no-object", "NothingSelected"),
    ] {
        world.tells_event(&format!("KollectTarget/{target}"), &format!("Warning {reason}"));
    }
    assert_eq!(world.condition("kollecttarget/maps", "Unmatched"), "");
    // What is mended has an event too.
    target(&world, "half", json!({ "profileRef": "maps", "includedNamespaces": [own] }));
    world.becomes("kollecttarget/half", "Unmatched", "");
    world.tells_event("KollectTarget/half", "Normal Recovered");
    target(&world, "typo", json!({ "profileRef": "maps", "includedNamespaces": [own] }));
    world.becomes("kollecttarget/typo", "Ready", "True Collecting");
}

#[test]
fn attributes_without_a_value_are_counted_with_an_example() {
    let mut world = World::new("nulls");
    for (name, value) in [("a", "red"), ("b", "7"), ("c", "blue")] {
        world.map(name, value);
    }
    world.install();
    typed_profile(&world, "int");
    world.start(&PLAIN);
    world.becomes("kollecttarget/maps", "AttributesNull", "True TypeMismatch");
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    let status = world.get("kollecttarget/maps")["status"].clone();
    let nulls = world.nulls();
    assert_eq!(
        (&nulls[0]["name"], &nulls[0]["cause"], &nulls[0]["rows"]),
        (&json!("team"), &json!("TypeMismatch"), &json!(2)),
        "{status}"
    );
    assert!(nulls[0]["example"].as_str().unwrap().ends_with("has a string"), "{status}");
    assert_eq!(
        (&nulls[1]["name"], &nulls[1]["cause"], &nulls[1]["rows"]),
        (&json!("owner"), &json!("Missing"), &json!(3)),
        "{status}"
    );
    assert_eq!(status["extractionFailures"], 2, "{status}");
    assert!(status["lastExtractionError"].as_str().unwrap().starts_with("attribute team is null in 2 rows"));
    assert!(!status.to_string().contains("blue"), "values are not told: {status}");
    world.tells_event("KollectTarget/maps", "Warning TypeMismatch");
    let number = |attribute: &str, cause: &str| {
        let profile = format!("{}/maps", world.namespace);
        format!(r#"kollect_null_attributes{{profile="{profile}",attribute="{attribute}",cause="{cause}"}}"#)
    };
    world.counts(&number("team", "TypeMismatch"), 2.0);
    world.counts(&number("owner", "Missing"), 3.0);
    // One of them is mended.
    world.map("a", "8");
    eventually("one row is left", || {
        let nulls = world.nulls();
        (nulls[0]["rows"] == 1 && nulls[0]["example"].as_str().unwrap().contains("/c has"))
            .then_some(())
            .ok_or(format!("{nulls:?}"))
    });
    typed_profile(&world, "string");
    world.becomes("kollecttarget/maps", "AttributesNull", "True ValueMissing");
    world.tells_event("KollectTarget/maps", "Normal ValueMissing");
    eventually("nothing fails", || {
        let status = world.get("kollecttarget/maps")["status"].clone();
        let is_good = status["extractionFailures"] == 0 && status["lastExtractionError"].is_null();
        is_good.then_some(()).ok_or(status.to_string())
    });
    for name in ["a", "b", "c"] {
        world.annotate(&format!("configmap/{name}"), "owner=me");
    }
    world.becomes("kollecttarget/maps", "AttributesNull", "");
    world.tells_event("KollectTarget/maps", "Normal Recovered");
}
