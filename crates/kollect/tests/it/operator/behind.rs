//! The API server that the operator reconnects to is behind the one it saw before, and lists outdated objects. Nothing
//! is written, removed or brought back because of that.

use std::{
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{Past, Proxy};
use serde_json::json;

use super::World;
use crate::program::eventually;

const KINDS: [&str; 2] = ["kollectinventories", "kollectdatabasesinks"];

#[test]
fn an_api_server_that_is_behind_brings_nothing_back_and_takes_nothing_away() {
    let mut world = World::new("behind");
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    let inventory = |world: &World, name: &str, suspend: bool| {
        let spec = json!({ "databaseSinkRefs": ["portal"], "suspend": suspend });
        world.kollect("KollectInventory", name, spec);
    };
    world.map("a", "1");
    world.install();
    inventory(&world, "ended", false);
    inventory(&world, "held", false);
    world.start(&[]);
    let holds = |table: &str, expected: &str| {
        eventually(&format!("{table} holds {expected}"), || {
            let sql = format!("SELECT inventory_name || ' ' || name FROM {table} ORDER BY 1");
            let found = world.postgres.psql(&sql).unwrap_or_default().replace('\n', ",");
            (found == expected).then_some(()).ok_or(found)
        });
    };
    let (old, new) = (world.table(), format!("{}_new", world.table()));
    holds(&old, "all a,ended a,held a,");
    for name in ["all", "ended", "held"] {
        world.becomes(&format!("kollectinventory/{name}"), "Ready", "True Exported");
    }
    let path = format!("/apis/kollect.dev/v1alpha1/namespaces/{}", world.namespace);
    let past = KINDS.map(|kind| Past::of(world.plane, &format!("{path}/{kind}")).unwrap());

    // What an older server does not know: one moved, one gone, one suspended, one created.
    let mut sink = world.sink();
    sink["postgres"]["table"] = json!(new);
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.delete("kollectinventory/ended");
    holds(&new, "all a,held a,");
    inventory(&world, "held", true);
    inventory(&world, "late", false);
    world.becomes("kollectinventory/held", "Degraded", "True Suspended");
    world.map("b", "2");
    let expected = "all a,all b,held a,late a,late b,";
    holds(&new, expected);
    holds(&old, "");
    world.becomes("kollectinventory/late", "Ready", "True Exported");
    let rows = || {
        let sql = format!("SELECT inventory_name, name, exported_at, xmin FROM {new} ORDER BY 1, 2");
        world.postgres.psql(&sql).unwrap()
    };
    let before = rows();

    past.iter().for_each(|past| proxy.lag(past, 4));
    let mut told = 0;
    let deadline = Instant::now() + Duration::from_mins(1);
    while told < 2 {
        assert_eq!(rows(), before);
        let log = std::fs::read_to_string(world.dir.path().join("operator.log")).unwrap();
        told = log.lines().filter(|line| line.contains("objects can be seen again")).count();
        assert!(Instant::now() < deadline, "{log}");
        thread::sleep(Duration::from_millis(50));
    }
    // It has caught up.
    world.map("c", "3");
    holds(&new, "all a,all b,all c,held a,late a,late b,late c,");
    holds(&old, "");
    let kept = |text: &str| text.lines().filter(|line| !line.contains("|c|")).map(Into::into).collect();
    let (kept_before, kept_after): (Vec<String>, Vec<String>) = (kept(&before), kept(&rows()));
    assert_eq!(kept_before, kept_after, "nothing was written again");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectinventory/held", "Degraded", "True Suspended");
    world.becomes("kollectinventory/late", "Ready", "True Exported");
}
