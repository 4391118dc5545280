//! Finalizers: an object that cannot be changed does not delay the others.

use super::*;

#[test]
fn a_finalizer_that_takes_long_does_not_hold_up_the_others() {
    let mut world = World::new("protected");
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    world.install();
    world.kollect("KollectInventory", "zoo", json!({ "databaseSinkRefs": ["portal"] }));
    let is_first = |line: &str| line.starts_with("PATCH ") && line.contains("/kollectinventories/all");
    proxy.hold(is_first);
    world.start(&[]);
    let finalizers = |name: &str| world.get(name)["metadata"]["finalizers"].clone();
    let expected = json!(["kollect.dev/inventory-cleanup"]);
    let protected = |name: &str| {
        eventually(&format!("{name} is protected"), || {
            let found = finalizers(name);
            (found == expected).then_some(()).ok_or(found.to_string())
        });
    };
    protected("kollectinventory/zoo");
    assert!(proxy.requests().iter().any(|line| is_first(line)), "the operator tries");
    assert_eq!(finalizers("kollectinventory/all"), Value::Null);
    proxy.release();
    protected("kollectinventory/all");
}
