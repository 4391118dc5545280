//! Which addresses sinks of a namespace may connect to, and what statuses show of their servers.

use super::*;

#[test]
fn an_address_is_allowed_for_sinks_of_one_namespace_and_the_api_server_for_none() {
    let mut test = OperatorTest::new("addresses");
    let other = OperatorTest::new("addresses-of-others");
    test.watched = format!("{},{}", test.namespace, other.namespace);
    test.apply_config_map("a", "1");
    test.install();
    other.apply_config_map("a", "1");
    other.install();
    // The same host as that of the database.
    let endpoint = format!("{}/x.git", test.plane.url());
    test.apply_kollect("KollectSnapshotSink", "api-server", json!({ "type": "git", "endpoint": endpoint }));
    let allowed = format!("{0}=127.0.0.0/8,{0}=::1/128", test.namespace);
    test.start(&["--allow-sink-cidrs", &allowed]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    other.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False InvalidSpec");
    let message = other.condition_message("kollectdatabasesink/portal", "Ready");
    let form = format!("--allow-sink-cidrs {}=CIDR", other.namespace);
    assert!(message.contains(&form) && !message.contains("127.0.0.1"), "{message}");
    assert_eq!(other.rows(), ["no table"]);
    test.wait_for_condition("kollectsnapshotsink/api-server", "ConnectionVerified", "False InvalidSpec");
    let message = test.condition_message("kollectsnapshotsink/api-server", "Ready");
    assert!(message.contains("is the API server at this port, which sinks may never reach"), "{message}");
    test.stop();

    let denied = ["--allow-sink-cidrs", &allowed, "--deny-sink-cidrs", "127.0.0.0/8,::1/128"];
    test.start(&denied);
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False InvalidSpec");
    let message = test.condition_message("kollectdatabasesink/portal", "Ready");
    assert!(message.contains("--deny-sink-cidrs"), "{message}");
}

/// Objects, events and logs of a namespace.
fn public_texts(test: &OperatorTest) -> String {
    let kinds = "kollectprofiles,kollecttargets,kollectdatabasesinks,kollectinventories,events";
    let log = std::fs::read_to_string(test.dir.path().join("operator.log")).unwrap();
    format!("{}\n{log}", test.get(kinds))
}

#[test]
fn an_address_that_only_a_secret_names_is_in_no_status_event_or_log() {
    let mut test = OperatorTest::new("hidden");
    let (table, port) = (test.table(), test.postgres.port());
    let database = format!("db_{table}");
    test.postgres.psql(&format!("CREATE DATABASE {database}")).unwrap();
    let (server, unused_port) = (format!("127.0.0.1:{port}"), kollect_testbed::free_port().unwrap());
    let assert_hidden = |test: &OperatorTest| {
        let public = public_texts(test);
        for secret in [&server, &format!("127.0.0.1:{unused_port}"), &format!(":{port}"), &database] {
            let line = public.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{secret} is in what people may read who may not read the Secret");
        }
    };
    let rows = |condition: &str| {
        let sql = format!("SELECT name, xmin, exported_at FROM {table} WHERE {condition} ORDER BY 1");
        test.postgres.psql_in(&database, &sql).unwrap_or_default()
    };
    let export = |test: &OperatorTest| test.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
    let write_row = |test: &OperatorTest, name: &str| {
        test.apply_config_map(name, "1");
        eventually(&format!("the row of {name}"), || {
            let found = rows("true");
            found.contains(&format!("{name}|")).then_some(()).ok_or(found)
        });
        test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    };
    test.install();
    test.apply_secret(&format!("postgres://postgres@{server}/{database}"));
    test.start(&["--log-level", "info"]);
    write_row(&test, "a");
    let destination = export(&test)["place"].clone();
    let shown = destination["destination"].as_str().unwrap().to_owned();
    assert!(
        shown.starts_with("postgres://secret-") && shown.ends_with(&format!("\"public\".\"{table}\"")),
        "{shown}"
    );
    assert_hidden(&test);
    let before = rows("true");

    // After a restart it is the same destination.
    test.stop();
    test.start(&["--log-level", "info"]);
    write_row(&test, "b");
    assert_eq!(rows("name = 'a'"), before, "nothing was written again");
    assert_eq!((&export(&test)["place"], &export(&test)["left"]), (&destination, &Value::Null));

    // A status of an older version names the server: it is the same destination, and is written in the new form.
    test.stop();
    let old = format!("postgres://{server}/{database} \"public\".\"{table}\"");
    let patch = json!([{ "op": "replace", "path": "/status/sinkExports/0/place/destination", "value": old }]);
    let patch = patch.to_string();
    let all = ["patch", "-n", &test.namespace, "kollectinventory/all", "--subresource=status", "--type=json"];
    test.plane.kubectl(&[&all[..], &["-p", &patch]].concat()).unwrap();
    assert_eq!(export(&test)["place"]["destination"], json!(old));
    test.start(&["--log-level", "info"]);
    write_row(&test, "c");
    assert_eq!(rows("name = 'a'"), before, "nothing was written again");
    assert_eq!((&export(&test)["place"], &export(&test)["left"]), (&destination, &Value::Null));
    assert_hidden(&test);

    // A server that does not answer is not named.
    test.apply_secret(&format!("postgres://postgres@127.0.0.1:{unused_port}/{database}"));
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False ExportFailed");
    let message = export(&test)["lastError"].clone();
    assert!(message.as_str().unwrap().contains("Connection refused"), "{message}");
    assert_hidden(&test);
}
