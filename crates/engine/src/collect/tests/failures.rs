//! Objects that cannot be read: they count as failed for as long as a row of theirs would exist.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{Lab, Phase, Target, profile, target, target_id};

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
async fn lab_with_failure(spec: &Value) -> Lab {
    let mut lab = Lab::new(1);
    lab.with(|world| {
        let labels = json!({ "team": "red" });
        world.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
        world.put("Pod", "u0", pod("many"));
    });
    lab.targets.insert(0, numbers(spec));
    lab.set_targets();
    lab.flow().await;
    assert_eq!(failed(&lab), ["u0"]);
    lab
}

fn failed(lab: &Lab) -> Vec<String> {
    lab.rows.failed_objects(&target_id(0)).iter().map(ToString::to_string).collect()
}

/// Streams of pods that satisfy the condition lose their connection for so long that they list again.
fn list_again(lab: &Lab, field_selector: Option<&str>) {
    lab.with(|world| {
        let pods = world.streams.iter_mut().filter(|stream| stream.query.gvk.kind == "Pod");
        for stream in pods.filter(|stream| stream.query.field_selector.as_deref() == field_selector) {
            stream.phase = Phase::Asked;
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_failure_goes_with_an_object_that_vanishes_in_a_gap_of_a_namespaced_watch() {
    let mut lab = lab_with_failure(&json!({ "includedNamespaces": ["a"] })).await;
    lab.with(|world| {
        assert!(world.streams.iter().any(|stream| stream.query.namespace.as_deref() == Some("a")));
        world.delete("u0");
    });
    list_again(&lab, None);
    lab.flow().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_goes_when_its_namespace_is_no_longer_selected() {
    let red = json!({ "matchLabels": { "team": "red" } });
    let mut lab = lab_with_failure(&json!({ "namespaceSelector": red })).await;
    let labels = json!({ "team": "blue" });
    lab.with(|world| {
        world.put("Namespace", "ns-a", json!({ "metadata": { "name": "a", "labels": labels } }));
    });
    lab.flow().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_goes_with_the_definition_of_its_kind() {
    let mut lab = lab_with_failure(&json!({})).await;
    lab.with(|world| {
        world.missing.insert("Pod".into());
        world.absent.insert("Pod".into());
    });
    lab.kinds.send_modify(|number| *number += 1);
    lab.flow().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_goes_when_a_changed_target_no_longer_selects_its_object() {
    let mut lab = lab_with_failure(&json!({})).await;
    lab.targets.insert(0, numbers(&json!({ "includedNamespaces": ["b"] })));
    lab.set_targets();
    lab.flow().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_one_field_selector_leaves_the_failures_of_others_alone() {
    let pods = json!({ "version": "v1", "kind": "Pod" });
    let rules = json!({ "resourceRules": [
        { "gvk": pods, "fieldSelector": "spec.node=1" },
        { "gvk": pods, "matchLabels": { "app": "x" } },
    ] });
    let mut lab = lab_with_failure(&rules).await;
    list_again(&lab, None);
    lab.flow().await;
    assert_eq!(failed(&lab), ["u0"], "the other list does not contain it, and need not");
    // Now nothing selects it.
    let mut elsewhere = pod("many");
    elsewhere["spec"]["node"] = "2".into();
    lab.with(|world| world.put("Pod", "u0", elsewhere));
    list_again(&lab, Some("spec.node=1"));
    lab.flow().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_stays_while_nothing_can_be_seen() {
    let mut lab = lab_with_failure(&json!({})).await;
    let places = [("Pod".to_owned(), None), ("Pod".to_owned(), Some("a".to_owned()))];
    lab.with(|world| {
        world.denied.extend(places);
        world.delete("u0");
    });
    lab.rest().await;
    assert_eq!(failed(&lab), ["u0"]);
    lab.with(|world| world.denied.clear());
    lab.rest().await;
    assert_eq!(failed(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_once_and_again_after_it_was_gone() {
    let mut lab = lab_with_failure(&json!({})).await;
    lab.with(|world| world.put("Pod", "u0", pod("many")));
    list_again(&lab, None);
    lab.flow().await;
    assert_eq!(lab.reported.lock().unwrap().len(), 1, "the object fails as before");
    lab.with(|world| world.put("Pod", "u0", pod("1")));
    lab.flow().await;
    assert_eq!((failed(&lab), lab.rows.count(&target_id(0))), (Vec::new(), 1));
    lab.with(|world| world.put("Pod", "u0", pod("many")));
    lab.flow().await;
    assert_eq!(*lab.reported.lock().unwrap(), ["a/p"; 2]);
    assert_eq!(lab.rows.count(&target_id(0)), 0);
}

#[tokio::test(start_paused = true)]
async fn the_comparison_with_a_list_does_not_suspect_failures() {
    let mut lab = lab_with_failure(&json!({})).await;
    let opened = |lab: &Lab| lab.with(|world| world.opened);
    let before = opened(&lab);
    for _ in 0..(13 * 60) {
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        lab.flow().await;
    }
    assert_eq!(opened(&lab), before + 1, "one list of metadata, and no list to repair what is not broken");
    assert_eq!(failed(&lab), ["u0"]);
}

#[tokio::test(start_paused = true)]
async fn targets_that_are_gone_are_forgotten() {
    let mut lab = lab_with_failure(&json!({})).await;
    lab.changes = lab.rows.changes(&[]);
    lab.targets.clear();
    lab.set_targets();
    lab.flow().await;
    assert_eq!(lab.rows.known_targets(), BTreeSet::new());
}
