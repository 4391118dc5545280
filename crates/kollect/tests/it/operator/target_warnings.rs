//! A target that selects nothing, and attributes without a value, are reported: by status, event and metric.

use serde_json::{Value, json};

use super::{OperatorTest, metrics::PLAIN, separate_plane};
use crate::program::eventually;

fn apply_target(test: &OperatorTest, name: &str, spec: Value) {
    test.apply_kollect("KollectTarget", name, spec);
}

/// A profile whose attribute `team` has a type.
fn apply_typed_profile(test: &OperatorTest, type_: &str) {
    let attributes = json!([
        { "name": "value", "path": "$.data.value" },
        { "name": "team", "path": "$.data.value", "type": type_ },
        { "name": "owner", "path": "$.metadata.annotations.owner", "optional": true },
    ]);
    let gvk = json!({ "version": "v1", "kind": "ConfigMap" });
    test.apply_kollect("KollectProfile", "maps", json!({ "targetGVK": gvk, "attributes": attributes }));
}

impl OperatorTest {
    fn null_attributes(&self) -> Vec<Value> {
        self.get("kollecttarget/maps")["status"]["nullAttributes"].as_array().cloned().unwrap_or_default()
    }

    fn wait_for_event_about(&self, resource: &str, expected: &str) {
        eventually(&format!("{resource} {expected}"), || {
            let events = self.events_about(resource);
            events.iter().any(|event| event == expected).then_some(()).ok_or(format!("{events:?}"))
        });
    }
}

#[test]
fn targets_that_match_nothing_are_reported_with_what_to_do() {
    let mut test = OperatorTest::on(separate_plane(), "selects");
    test.watched = String::new();
    let namespace = test.namespace.clone();
    test.apply_config_map("a", "1");
    test.install();
    let apply_profile = |name: &str, group: &str, kind: &str| {
        let gvk = json!({ "group": group, "version": "v1", "kind": kind });
        let attributes = json!([{ "name": "name", "path": "$.metadata.name" }]);
        test.apply_kollect("KollectProfile", name, json!({ "targetGVK": gvk, "attributes": attributes }));
    };
    apply_profile("typo", "", "ConfigMapp");
    apply_profile("roles", "rbac.authorization.k8s.io", "ClusterRole");
    let labels = json!({ "matchLabels": { "there-is": "no-such-label" } });
    apply_target(&test, "typo", json!({ "profileRef": "typo" }));
    apply_target(
        &test,
        "nowhere",
        json!({ "profileRef": "maps", "includedNamespaces": ["there-is-no-such"] }),
    );
    apply_target(
        &test,
        "half",
        json!({ "profileRef": "maps", "includedNamespaces": [namespace, "there-is-no-such"] }),
    );
    apply_target(&test, "roles", json!({ "profileRef": "roles", "namespaceSelector": labels.clone() }));
    apply_target(&test, "unlabelled", json!({ "profileRef": "maps", "namespaceSelector": labels.clone() }));
    apply_target(
        &test,
        "no-object",
        json!({ "profileRef": "maps", "includedNamespaces": [namespace], "labelSelector": labels }),
    );
    test.start(&[]);
    test.wait_for_condition("kollecttarget/nowhere", "Degraded", "True NamespaceNotFound");
    test.wait_for_condition("kollecttarget/nowhere", "Unmatched", "True NamespaceNotFound");
    test.wait_for_condition("kollecttarget/roles", "Degraded", "True ClusterScopedKind");
    test.wait_for_condition("kollecttarget/roles", "Unmatched", "True ClusterScopedKind");
    test.wait_for_condition("kollecttarget/half", "Unmatched", "True NamespaceNotFound");
    test.wait_for_condition("kollecttarget/half", "Ready", "True Collecting");
    test.wait_for_condition("kollecttarget/unlabelled", "Unmatched", "True NoNamespaceMatches");
    test.wait_for_condition("kollecttarget/no-object", "Unmatched", "True NothingSelected");
    test.wait_for_condition("kollecttarget/typo", "Degraded", "True KindNotServed");
    test.wait_for_condition("kollecttarget/typo", "Unmatched", "True KindNotServed");
    test.wait_for_condition("kollecttarget/typo", "Exported", "False KindNotServed");
    for (target, words) in [
        ("typo", "the cluster does not serve v1 ConfigMapp: correct spec.targetGVK of KollectProfile typo"),
        ("nowhere", "the namespace does not exist: there-is-no-such; create what is missing"),
        (
            "roles",
            "ClusterRole are in no namespace, and the spec selects namespaces: remove spec.namespaceSelector",
        ),
        ("unlabelled", "no namespace has the labels that the spec requires"),
        ("no-object", "no object of v1 ConfigMap matches the selectors"),
    ] {
        let message = test.condition_message(&format!("kollecttarget/{target}"), "Unmatched");
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
        test.wait_for_event_about(&format!("KollectTarget/{target}"), &format!("Warning {reason}"));
    }
    assert_eq!(test.condition("kollecttarget/maps", "Unmatched"), "");
    // A corrected target has an event too.
    apply_target(&test, "half", json!({ "profileRef": "maps", "includedNamespaces": [namespace] }));
    test.wait_for_condition("kollecttarget/half", "Unmatched", "");
    test.wait_for_event_about("KollectTarget/half", "Normal Recovered");
    apply_target(&test, "typo", json!({ "profileRef": "maps", "includedNamespaces": [namespace] }));
    test.wait_for_condition("kollecttarget/typo", "Ready", "True Collecting");
}

#[test]
fn attributes_without_a_value_are_counted_with_an_example() {
    let mut test = OperatorTest::new("nulls");
    for (name, value) in [("a", "red"), ("b", "7"), ("c", "blue")] {
        test.apply_config_map(name, value);
    }
    test.install();
    apply_typed_profile(&test, "int");
    test.start(&PLAIN);
    test.wait_for_condition("kollecttarget/maps", "AttributesNull", "True TypeMismatch");
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    let status = test.get("kollecttarget/maps")["status"].clone();
    let nulls = test.null_attributes();
    assert_eq!(
        (&nulls[0]["name"], &nulls[0]["cause"], &nulls[0]["rows"]),
        (&json!("team"), &json!("TypeMismatch"), &json!(2)),
        "{status}"
    );
    let example = nulls[0]["example"].as_str().unwrap();
    assert!(example.ends_with("/a has a string, \"red\", declared int"), "{status}");
    assert_eq!(
        (&nulls[1]["name"], &nulls[1]["cause"], &nulls[1]["rows"]),
        (&json!("owner"), &json!("Missing"), &json!(3)),
        "{status}"
    );
    assert_eq!(status["extractionFailures"], 2, "{status}");
    assert!(status["lastExtractionError"].as_str().unwrap().starts_with("attribute team is null in 2 rows"));
    test.wait_for_event_about("KollectTarget/maps", "Warning TypeMismatch");
    let series = |attribute: &str, cause: &str| {
        let profile = format!("{}/maps", test.namespace);
        format!(r#"kollect_null_attributes{{profile="{profile}",attribute="{attribute}",cause="{cause}"}}"#)
    };
    test.wait_for_metric(&series("team", "TypeMismatch"), 2.0);
    test.wait_for_metric(&series("owner", "Missing"), 3.0);
    // One of them is corrected.
    test.apply_config_map("a", "8");
    eventually("one row is left", || {
        let nulls = test.null_attributes();
        (nulls[0]["rows"] == 1 && nulls[0]["example"].as_str().unwrap().contains("/c has"))
            .then_some(())
            .ok_or(format!("{nulls:?}"))
    });
    apply_typed_profile(&test, "string");
    test.wait_for_condition("kollecttarget/maps", "AttributesNull", "True ValueMissing");
    test.wait_for_event_about("KollectTarget/maps", "Normal ValueMissing");
    eventually("nothing fails", || {
        let status = test.get("kollecttarget/maps")["status"].clone();
        let is_good = status["extractionFailures"] == 0 && status["lastExtractionError"].is_null();
        is_good.then_some(()).ok_or(status.to_string())
    });
    for name in ["a", "b", "c"] {
        test.annotate(&format!("configmap/{name}"), "owner=me");
    }
    test.wait_for_condition("kollecttarget/maps", "AttributesNull", "");
    test.wait_for_event_about("KollectTarget/maps", "Normal Recovered");
}
