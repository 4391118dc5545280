//! Finalizers: an object that cannot be changed does not delay the others.

use super::*;

#[test]
fn a_slow_finalizer_does_not_delay_the_others() {
    let mut test = OperatorTest::new("protected");
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
    test.install();
    test.apply_kollect("KollectInventory", "zoo", json!({ "databaseSinkRefs": ["portal"] }));
    let is_first = |line: &str| line.starts_with("PATCH ") && line.contains("/kollectinventories/all");
    proxy.hold(is_first);
    test.start(&[]);
    let finalizers = |name: &str| test.get(name)["metadata"]["finalizers"].clone();
    let expected = json!(["kollect.dev/inventory-cleanup"]);
    let wait_for_finalizer = |name: &str| {
        eventually(&format!("{name} is protected"), || {
            let found = finalizers(name);
            (found == expected).then_some(()).ok_or(found.to_string())
        });
    };
    wait_for_finalizer("kollectinventory/zoo");
    assert!(proxy.requests().iter().any(|line| is_first(line)), "the operator tries");
    assert_eq!(finalizers("kollectinventory/all"), Value::Null);
    proxy.release();
    wait_for_finalizer("kollectinventory/all");
}
