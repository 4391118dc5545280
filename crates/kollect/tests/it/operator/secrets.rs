//! Secrets that take their time: they concern the sinks that name them, and nobody else.

use super::*;

#[test]
fn law_11_a_secret_that_is_being_looked_up_holds_up_its_own_sinks_only() {
    let mut world = World::new("patient");
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
    world.map("a", "1");
    world.install();
    let vault = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "vault" },
        "stringData": { "dsn": world.postgres.dsn() },
    });
    world.apply(vault);
    let table = format!("{}_vault", world.table());
    let sink = |secret: &str| json!({ "type": "postgres", "postgres": { "databaseRef": { "name": secret }, "table": table } });
    world.kollect("KollectDatabaseSink", "vault", sink("vault"));
    world.kollect("KollectInventory", "late", json!({ "databaseSinkRefs": ["vault"] }));
    let test = json!({ "sinkRef": { "databaseSinkRef": "vault" } });
    world.kollect("KollectConnectionTest", "late", test);
    let late = || {
        let sql = format!("SELECT string_agg(name, ' ' ORDER BY name) FROM {table}");
        world.postgres.psql(&sql).unwrap_or_else(|_| "no table".into())
    };
    let comes = |expected: &str| {
        eventually(expected, || {
            let found = late();
            (found.trim() == expected).then_some(()).ok_or(found)
        });
    };
    let is_vault = |line: &str| line.contains("/secrets") && line.contains("vault");
    proxy.hold(is_vault);
    world.start(&[]);
    world.holds(&["a=1"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    assert!(proxy.requests().iter().any(|line| is_vault(line)), "somebody looks it up");
    // Nobody knows yet, and nobody says otherwise.
    world.becomes("kollectinventory/late", "Synced", "False Progressing");
    world.becomes("kollectdatabasesink/vault", "Reconciling", "True Probing");
    assert_eq!(world.condition("kollectinventory/late", "Degraded"), "");
    assert_eq!(world.get("kollectconnectiontest/late")["status"]["completed"], Value::Null);
    assert_eq!(late(), "no table");
    proxy.release();
    comes("a b");
    world.becomes("kollectinventory/late", "Ready", "True Exported");
    world.becomes("kollectconnectiontest/late", "Ready", "True ProbeSucceeded");

    // Another Secret is looked up for a sink that is being written: until it is there, the old one counts.
    proxy.hold(|line| line.contains("/secrets") && line.contains("other"));
    world.kollect("KollectDatabaseSink", "vault", sink("other"));
    eventually("the other one is looked up", || {
        let asked = proxy.requests();
        let found = asked.iter().any(|line| line.contains("/secrets") && line.contains("other"));
        found.then_some(()).ok_or(format!("{asked:?}"))
    });
    world.map("c", "3");
    comes("a b c");
    proxy.release();
    world.becomes("kollectinventory/late", "Degraded", "True SecretResolveFailed");
    world.map("d", "4");
    world.holds(&["a=1", "b=2", "c=3", "d=4"]);
    assert_eq!(late().trim(), "a b c", "without its Secret nothing is written");
}
