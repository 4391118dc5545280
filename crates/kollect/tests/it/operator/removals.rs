//! Removals because specs changed: held if they are more than the guard allows, until a person releases them.

use std::{thread, time::Duration};

use serde_json::json;

use super::World;
use crate::program::eventually;

impl World {
    fn select(&self, app: &str) {
        let target = json!({
            "profileRef": "maps", "includedNamespaces": [self.namespace],
            "labelSelector": { "matchLabels": { "app": app } },
        });
        self.kollect("KollectTarget", "maps", target);
    }
}

#[test]
fn a_selector_that_selects_too_little_removes_nothing_until_it_is_released() {
    let mut world = World::new("guarded");
    let names = ["a", "b", "c", "d", "e"];
    names.iter().for_each(|name| world.map(name, "1"));
    world.install();
    let inventory = json!({ "databaseSinkRefs": ["portal"], "removalGuard": { "percent": 50, "rows": 100 } });
    world.kollect("KollectInventory", "all", inventory);
    world.start(&[]);
    let all = ["a=1", "b=1", "c=1", "d=1", "e=1"];
    world.holds(&all);
    world.becomes("kollectinventory/all", "Ready", "True Exported");

    // Rows of deleted objects are removed, however many.
    for name in ["a", "b", "c"] {
        world.delete(&format!("configmap/{name}"));
    }
    world.holds(&["d=1", "e=1"]);
    ["a", "b", "c"].iter().for_each(|name| world.map(name, "1"));
    world.holds(&all);

    // A selector that selects nothing: held, also while no operator runs, and nothing else is written.
    world.select("shopp");
    world.becomes("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    world.becomes("kollectinventory/all", "Degraded", "True RemovalsHeld");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False RemovalsHeld");
    world.operator.as_mut().unwrap().kill();
    world.start(&[]);
    world.map("f", "1");
    thread::sleep(Duration::from_secs(15));
    assert_eq!(world.rows(), all);
    world.becomes("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    let message = world.message("kollectinventory/all", "RemovalsHeld");
    assert!(message.contains("5 of 5 rows would be removed because specs changed"), "{message}");
    let told = world.get("events")["items"].as_array().unwrap().clone();
    assert!(told.iter().any(|event| event["reason"] == "RemovalsHeld"), "an event says so");

    // The right selector again: nothing is held any more.
    world.select("shop");
    world.holds(&["a=1", "b=1", "c=1", "d=1", "e=1", "f=1"]);
    world.becomes("kollectinventory/all", "RemovalsHeld", "");

    // The removal is intended: the message has the annotation that releases it, once.
    world.select("shopp");
    world.becomes("kollectinventory/all", "RemovalsHeld", "True RemovalsHeld");
    let message = world.message("kollectinventory/all", "RemovalsHeld");
    let (_, text) = message.split_once("kollect.dev/release-removals: ").unwrap();
    let token = text.split_whitespace().next().unwrap();
    world.annotate("kollectinventory/all", &format!("kollect.dev/release-removals={token}"));
    world.holds(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    eventually("the annotation is gone", || {
        let annotations = world.get("kollectinventory/all")["metadata"]["annotations"].clone();
        let asked = annotations.get("kollect.dev/release-removals").is_some();
        (!asked).then_some(()).ok_or(annotations.to_string())
    });
}
