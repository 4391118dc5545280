//! Where sinks of a namespace may connect to, and what statuses tell about their servers.

use super::*;

impl World {
    /// The message of a condition.
    fn condition_message(&self, what: &str, type_: &str) -> String {
        let object = self.get(what);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == type_);
        found.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned()
    }
}

#[test]
fn an_address_is_open_for_the_sinks_of_one_namespace_and_the_api_server_for_none() {
    let mut world = World::new("addresses");
    let other = World::new("addresses-of-others");
    world.watched = format!("{},{}", world.namespace, other.namespace);
    world.map("a", "1");
    world.install();
    other.map("a", "1");
    other.install();
    // The same host as that of the database.
    let endpoint = format!("{}/x.git", world.plane.url());
    world.kollect("KollectSnapshotSink", "api-server", json!({ "type": "git", "endpoint": endpoint }));
    let allowed = format!("{0}=127.0.0.0/8,{0}=::1/128", world.namespace);
    world.start(&["--allow-sink-cidrs", &allowed]);
    world.holds(&["a=1"]);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    other.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False InvalidSpec");
    let message = other.condition_message("kollectdatabasesink/portal", "ConnectionVerified");
    let form = format!("--allow-sink-cidrs {}=CIDR", other.namespace);
    assert!(message.contains(&form) && !message.contains("127.0.0.1"), "{message}");
    assert_eq!(other.rows(), ["no table"]);
    world.becomes("kollectsnapshotsink/api-server", "ConnectionVerified", "False InvalidSpec");
    let message = world.condition_message("kollectsnapshotsink/api-server", "ConnectionVerified");
    assert!(message.contains("is the API server at this port, which sinks may never reach"), "{message}");
    world.stop();

    let denied = ["--allow-sink-cidrs", &allowed, "--deny-sink-cidrs", "127.0.0.0/8,::1/128"];
    world.start(&denied);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False InvalidSpec");
    let message = world.condition_message("kollectdatabasesink/portal", "ConnectionVerified");
    assert!(message.contains("--deny-sink-cidrs"), "{message}");
}
