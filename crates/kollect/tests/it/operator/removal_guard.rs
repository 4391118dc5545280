//! Rows that changed specs would remove are held if they are more than the guard allows, until a person releases them.

use std::{thread, time::Duration};

use serde_json::json;

use super::OperatorTest;
use crate::program::eventually;

impl OperatorTest {
    fn select_label(&self, app: &str) {
        let target = json!({
            "profileRef": "maps", "includedNamespaces": [self.namespace],
            "labelSelector": { "matchLabels": { "app": app } },
        });
        self.apply_kollect("KollectTarget", "maps", target);
    }
}

#[test]
fn a_selector_that_selects_too_little_removes_no_rows_until_they_are_released() {
    let mut test = OperatorTest::new("guarded");
    let names = ["a", "b", "c", "d", "e"];
    names.iter().for_each(|name| test.apply_config_map(name, "1"));
    test.install();
    let inventory = json!({ "databaseSinkRefs": ["portal"], "removalGuard": { "percent": 50, "rows": 100 } });
    test.apply_kollect("KollectInventory", "all", inventory);
    test.start(&[]);
    let all = ["a=1", "b=1", "c=1", "d=1", "e=1"];
    test.wait_for_rows(&all);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");

    // Rows of deleted objects are removed, however many.
    for name in ["a", "b", "c"] {
        test.delete(&format!("configmap/{name}"));
    }
    test.wait_for_rows(&["d=1", "e=1"]);
    ["a", "b", "c"].iter().for_each(|name| test.apply_config_map(name, "1"));
    test.wait_for_rows(&all);

    // A selector that selects nothing: held, also while no operator runs, and nothing else is written.
    test.select_label("shopp");
    test.wait_for_condition("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True RemovalsHeld");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False RemovalsHeld");
    test.operator.as_mut().unwrap().kill();
    test.start(&[]);
    test.apply_config_map("f", "1");
    thread::sleep(Duration::from_secs(15));
    assert_eq!(test.rows(), all);
    test.wait_for_condition("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    let message = test.condition_message("kollectinventory/all", "RemovalsHeld");
    assert!(message.contains("5 of 5 rows would be removed because specs changed"), "{message}");
    let events = test.get("events")["items"].as_array().unwrap().clone();
    assert!(events.iter().any(|event| event["reason"] == "RemovalsHeld"), "an event says so");

    // The right selector again: nothing is held any more.
    test.select_label("shop");
    test.wait_for_rows(&["a=1", "b=1", "c=1", "d=1", "e=1", "f=1"]);
    test.wait_for_condition("kollectinventory/all", "RemovalsHeld", "");

    // The removal is intended: the message has the annotation that releases it, once.
    test.select_label("shopp");
    test.wait_for_condition("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    let message = test.condition_message("kollectinventory/all", "RemovalsHeld");
    let (_, hint) = message.split_once("kollect.dev/release-removals: ").unwrap();
    let token = hint.split_whitespace().next().unwrap();
    test.annotate("kollectinventory/all", &format!("kollect.dev/release-removals={token}"));
    test.wait_for_rows(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    eventually("the annotation is gone", || {
        let annotations = test.get("kollectinventory/all")["metadata"]["annotations"].clone();
        let is_requested = annotations.get("kollect.dev/release-removals").is_some();
        (!is_requested).then_some(()).ok_or(annotations.to_string())
    });
}
