//! The operator reconnects to an API server with older data than it saw before, which lists outdated objects. No row is
//! written, removed or restored because of that.

use std::{
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{Proxy, RecordedList};
use serde_json::json;

use super::OperatorTest;
use crate::program::eventually;

const OUTDATED_KINDS: [&str; 2] = ["kollectinventories", "kollectdatabasesinks"];

#[test]
fn outdated_lists_of_an_api_server_neither_restore_nor_remove_rows() {
    let mut test = OperatorTest::new("behind");
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    let apply_inventory = |test: &OperatorTest, name: &str, suspend: bool| {
        let spec = json!({ "databaseSinkRefs": ["portal"], "suspend": suspend });
        test.apply_kollect("KollectInventory", name, spec);
    };
    test.apply_config_map("a", "1");
    test.install();
    apply_inventory(&test, "ended", false);
    apply_inventory(&test, "held", false);
    test.start(&[]);
    let wait_for_rows = |table: &str, expected: &str| {
        eventually(&format!("{table} holds {expected}"), || {
            let sql = format!("SELECT inventory_name || ' ' || name FROM {table} ORDER BY 1");
            let found = test.postgres.psql(&sql).unwrap_or_default().replace('\n', ",");
            (found == expected).then_some(()).ok_or(found)
        });
    };
    let (old, new) = (test.table(), format!("{}_new", test.table()));
    wait_for_rows(&old, "all a,ended a,held a,");
    for name in ["all", "ended", "held"] {
        test.wait_for_condition(&format!("kollectinventory/{name}"), "Ready", "True Exported");
    }
    let path = format!("/apis/kollect.dev/v1alpha1/namespaces/{}", test.namespace);
    let past = OUTDATED_KINDS.map(|kind| RecordedList::of(test.plane, &format!("{path}/{kind}")).unwrap());

    // What the older data does not contain: one inventory moved, one deleted, one suspended, one created.
    let mut sink = test.sink();
    sink["postgres"]["table"] = json!(new);
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.delete("kollectinventory/ended");
    wait_for_rows(&new, "all a,held a,");
    apply_inventory(&test, "held", true);
    apply_inventory(&test, "late", false);
    test.wait_for_condition("kollectinventory/held", "Degraded", "True Suspended");
    test.apply_config_map("b", "2");
    let expected = "all a,all b,held a,late a,late b,";
    wait_for_rows(&new, expected);
    wait_for_rows(&old, "");
    test.wait_for_condition("kollectinventory/late", "Ready", "True Exported");
    let rows = || {
        let sql = format!("SELECT inventory_name, name, exported_at, xmin FROM {new} ORDER BY 1, 2");
        test.postgres.psql(&sql).unwrap()
    };
    let before = rows();

    past.iter().for_each(|past| proxy.lag(past, 4));
    let mut seen_again = 0;
    let deadline = Instant::now() + Duration::from_mins(1);
    while seen_again < 2 {
        assert_eq!(rows(), before);
        let log = std::fs::read_to_string(test.dir.path().join("operator.log")).unwrap();
        seen_again = log.lines().filter(|line| line.contains("objects can be seen again")).count();
        assert!(Instant::now() < deadline, "{log}");
        thread::sleep(Duration::from_millis(50));
    }
    // The operator has current objects again.
    test.apply_config_map("c", "3");
    wait_for_rows(&new, "all a,all b,all c,held a,late a,late b,late c,");
    wait_for_rows(&old, "");
    let rows_without_c =
        |text: &str| text.lines().filter(|line| !line.contains("|c|")).map(Into::into).collect();
    let (before, after): (Vec<String>, Vec<String>) = (rows_without_c(&before), rows_without_c(&rows()));
    assert_eq!(before, after, "nothing was written again");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectinventory/held", "Degraded", "True Suspended");
    test.wait_for_condition("kollectinventory/late", "Ready", "True Exported");
}
