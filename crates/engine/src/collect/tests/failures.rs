//! Objects that cannot be read: they count as failed for as long as a row of theirs would exist.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{CollectTest, Target, WatchPhase, profile, target, target_id};

/// A profile that needs a number. Of an object without one there can be no row.
fn numbers(spec: &Value) -> Arc<Target> {
    let version = json!({ "name": "version", "path": "$.metadata.resourceVersion", "type": "string" });
    let number = json!({ "name": "number", "path": "cel:int(object.spec.number)" });
    target(0, spec, &profile(&json!([version, number])))
}

fn pod(number: &str) -> Value {
    json!({
        "metadata": { "name": "p", "namespace": "a", "labels": { "app": "y" } },
        "spec": { "node": "1", "number": number },
    })
}

/// One namespace with one pod that the target cannot read.
async fn test_with_failure(spec: &Value) -> CollectTest {
    let mut test = CollectTest::new(1);
    test.with(|cluster| {
        let labels = json!({ "team": "red" });
        cluster.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
        cluster.put("Pod", "u0", pod("many"));
    });
    test.targets.insert(0, numbers(spec));
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(failed(&test), ["u0"]);
    test
}

fn failed(test: &CollectTest) -> Vec<String> {
    test.rows.failed_objects(&target_id(0)).iter().map(ToString::to_string).collect()
}

/// Streams of pods that satisfy the condition lose their connection for so long that they list again.
fn list_again(test: &CollectTest, field_selector: Option<&str>) {
    test.with(|cluster| {
        let pods = cluster.streams.iter_mut().filter(|stream| stream.query.gvk.kind == "Pod");
        for stream in pods.filter(|stream| stream.query.field_selector.as_deref() == field_selector) {
            stream.phase = WatchPhase::Requested;
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_removed_with_an_object_that_is_deleted_in_a_gap_of_a_namespaced_watch() {
    let mut test = test_with_failure(&json!({ "includedNamespaces": ["a"] })).await;
    test.with(|cluster| {
        assert!(cluster.streams.iter().any(|stream| stream.query.namespace.as_deref() == Some("a")));
        cluster.delete("u0");
    });
    list_again(&test, None);
    test.drain_streams().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_removed_when_its_namespace_is_no_longer_selected() {
    let red = json!({ "matchLabels": { "team": "red" } });
    let mut test = test_with_failure(&json!({ "namespaceSelector": red })).await;
    let labels = json!({ "team": "blue" });
    test.with(|cluster| {
        cluster.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
    });
    test.drain_streams().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_removed_with_the_definition_of_its_kind() {
    let mut test = test_with_failure(&json!({})).await;
    test.with(|cluster| {
        cluster.missing.insert("Pod".into());
        cluster.absent.insert("Pod".into());
    });
    test.kinds.send_modify(|number| *number += 1);
    test.drain_streams().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_removed_when_a_changed_target_no_longer_selects_its_object() {
    let mut test = test_with_failure(&json!({})).await;
    test.targets.insert(0, numbers(&json!({ "includedNamespaces": ["b"] })));
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_one_field_selector_leaves_the_failures_of_others_alone() {
    let pods = json!({ "version": "v1", "kind": "Pod" });
    let rules = json!({ "resourceRules": [
        { "gvk": pods, "fieldSelector": "spec.node=1" },
        { "gvk": pods, "matchLabels": { "app": "x" } },
    ] });
    let mut test = test_with_failure(&rules).await;
    list_again(&test, None);
    test.drain_streams().await;
    assert_eq!(failed(&test), ["u0"], "the other list does not contain it, and need not");
    // Now nothing selects it.
    let mut elsewhere = pod("many");
    elsewhere["spec"]["node"] = "2".into();
    test.with(|cluster| cluster.put("Pod", "u0", elsewhere));
    list_again(&test, Some("spec.node=1"));
    test.drain_streams().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_while_nothing_can_be_seen() {
    let mut test = test_with_failure(&json!({})).await;
    let pods = [("Pod".to_owned(), None), ("Pod".to_owned(), Some("a".to_owned()))];
    test.with(|cluster| {
        cluster.denied.extend(pods);
        cluster.delete("u0");
    });
    test.finish().await;
    assert_eq!(failed(&test), ["u0"]);
    test.with(|cluster| cluster.denied.clear());
    test.finish().await;
    assert_eq!(failed(&test), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_once_and_again_after_it_was_gone() {
    let mut test = test_with_failure(&json!({})).await;
    test.with(|cluster| cluster.put("Pod", "u0", pod("many")));
    list_again(&test, None);
    test.drain_streams().await;
    assert_eq!(test.reported.lock().unwrap().len(), 1, "the object fails as before");
    test.with(|cluster| cluster.put("Pod", "u0", pod("1")));
    test.drain_streams().await;
    assert_eq!((failed(&test), test.rows.count(&target_id(0))), (Vec::new(), 1));
    test.with(|cluster| cluster.put("Pod", "u0", pod("many")));
    test.drain_streams().await;
    assert_eq!(*test.reported.lock().unwrap(), ["a/p"; 2]);
    assert_eq!(test.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn the_comparison_with_a_list_does_not_count_failures_as_missed_events() {
    let mut test = test_with_failure(&json!({})).await;
    let opened = |test: &CollectTest| test.with(|cluster| cluster.opened);
    let before = opened(&test);
    for _ in 0..(13 * 60) {
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        test.drain_streams().await;
    }
    assert_eq!(opened(&test), before + 1, "one list of metadata, and no list to repair what is not broken");
    assert_eq!(failed(&test), ["u0"]);
}

#[tokio::test(start_paused = true)]
async fn removed_targets_are_forgotten() {
    let mut test = test_with_failure(&json!({})).await;
    test.changes = test.rows.changes(&[]);
    test.targets.clear();
    test.set_targets();
    test.drain_streams().await;
    assert_eq!(test.rows.known_targets(), BTreeSet::new());
}
