//! Where sinks of a namespace may connect to, and what statuses tell about their servers.

use super::*;

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
    let message = other.message("kollectdatabasesink/portal", "Ready");
    let form = format!("--allow-sink-cidrs {}=CIDR", other.namespace);
    assert!(message.contains(&form) && !message.contains("127.0.0.1"), "{message}");
    assert_eq!(other.rows(), ["no table"]);
    world.becomes("kollectsnapshotsink/api-server", "ConnectionVerified", "False InvalidSpec");
    let message = world.message("kollectsnapshotsink/api-server", "Ready");
    assert!(message.contains("is the API server at this port, which sinks may never reach"), "{message}");
    world.stop();

    let denied = ["--allow-sink-cidrs", &allowed, "--deny-sink-cidrs", "127.0.0.0/8,::1/128"];
    world.start(&denied);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False InvalidSpec");
    let message = world.message("kollectdatabasesink/portal", "Ready");
    assert!(message.contains("--deny-sink-cidrs"), "{message}");
}

/// Objects, events and logs of a namespace.
fn readable(world: &World) -> String {
    let kinds = "kollectprofiles,kollecttargets,kollectdatabasesinks,kollectinventories,events";
    let log = std::fs::read_to_string(world.dir.path().join("operator.log")).unwrap();
    format!("{}\n{log}", world.get(kinds))
}

#[test]
fn what_only_a_secret_names_is_in_no_status_event_or_log() {
    let mut world = World::new("hidden");
    let (table, port) = (world.table(), world.postgres.port());
    let database = format!("db_{table}");
    world.postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
    let (server, dead) = (format!("127.0.0.1:{port}"), kollect_testbed::free_port().unwrap());
    let is_hidden = |world: &World| {
        let text = readable(world);
        for secret in [&server, &format!("127.0.0.1:{dead}"), &format!(":{port}"), &database] {
            let line = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{secret} is in what people may read who may not read the Secret");
        }
    };
    let rows = |condition: &str| {
        let sql = format!("SELECT name, xmin, exported_at FROM {table} WHERE {condition} ORDER BY 1");
        world.postgres.psql_in(&database, &sql).unwrap_or_default()
    };
    let export = |world: &World| world.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
    let writes_next = |world: &World, name: &str| {
        world.map(name, "1");
        eventually(&format!("the row of {name}"), || {
            let found = rows("true");
            found.contains(&format!("{name}|")).then_some(()).ok_or(found)
        });
        world.becomes("kollectinventory/all", "Ready", "True Exported");
    };
    world.install();
    world.secret(&format!("postgres://postgres@{server}/{database}"));
    world.start(&["--log-level", "info"]);
    writes_next(&world, "a");
    let place = export(&world)["place"].clone();
    let text = place["destination"].as_str().unwrap().to_owned();
    assert!(
        text.starts_with("postgres://secret-") && text.ends_with(&format!("\"public\".\"{table}\"")),
        "{text}"
    );
    is_hidden(&world);
    let before = rows("true");

    // After a restart it is the same place.
    world.stop();
    world.start(&["--log-level", "info"]);
    writes_next(&world, "b");
    assert_eq!(rows("name = 'a'"), before, "nothing was written again");
    assert_eq!((&export(&world)["place"], &export(&world)["left"]), (&place, &Value::Null));

    // A status of an older version names the server: that is the same place, and is written in the new form.
    world.stop();
    let old = format!("postgres://{server}/{database} \"public\".\"{table}\"");
    let patch = json!([{ "op": "replace", "path": "/status/sinkExports/0/place/destination", "value": old }]);
    let patch = patch.to_string();
    let all =
        ["patch", "-n", &world.namespace, "kollectinventory/all", "--subresource=status", "--type=json"];
    world.plane.kubectl(&[&all[..], &["-p", &patch]].concat()).unwrap();
    assert_eq!(export(&world)["place"]["destination"], json!(old));
    world.start(&["--log-level", "info"]);
    writes_next(&world, "c");
    assert_eq!(rows("name = 'a'"), before, "nothing was written again");
    assert_eq!((&export(&world)["place"], &export(&world)["left"]), (&place, &Value::Null));
    is_hidden(&world);

    // A server that does not answer is not named.
    world.secret(&format!("postgres://postgres@127.0.0.1:{dead}/{database}"));
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ExportFailed");
    let message = export(&world)["lastError"].clone();
    assert!(message.as_str().unwrap().contains("Connection refused"), "{message}");
    is_hidden(&world);
}
