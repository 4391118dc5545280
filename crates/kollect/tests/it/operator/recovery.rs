//! After a problem was corrected everything works again within seconds, and what vanished is created again.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use async_nats::jetstream;
use kollect_testbed::{Grant, Postgres};
use serde_json::json;

use super::{OperatorTest, readers::Destinations};
use crate::program::{Finished, eventually, kollect};

#[test]
fn tables_branches_files_and_streams_that_vanished_are_created_again() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("vanished", "east");
    test.start_with_files(&destinations);
    destinations.wait_for_rows("east", &["a", "b"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    destinations.postgres.psql(&format!("DROP TABLE {}", destinations.table())).unwrap();
    destinations.repository.git(&["update-ref", "-d", "refs/heads/main"]).unwrap();
    fs::remove_dir_all(destinations.directory().join("files")).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(destinations.directory().join(format!("rows.db{suffix}"))).ok();
    }
    destinations.delete_stream();
    test.apply_config_map("c", "1");
    destinations.wait_for_rows("east", &["a", "b", "c"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

impl Destinations {
    fn delete_stream(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (url, stream) = (self.nats_url().to_owned(), self.table());
        runtime.block_on(async {
            let jetstream = jetstream::new(async_nats::connect(url).await.unwrap());
            jetstream.delete_stream(stream).await.unwrap();
        });
    }
}

#[test]
fn a_corrected_secret_is_read_within_seconds_after_any_failure_without_watching_secrets() {
    let mut test = OperatorTest::new("mended-soon");
    test.apply_config_map("a", "1");
    test.install();
    test.kubeconfig = Some(super::secrets::user_without_secret_lists(&test));
    // A database that does not exist: retries cannot help.
    let wrong = test.postgres.dsn().replace("/postgres", "/there_is_no_such");
    assert_ne!(wrong, test.postgres.dsn());
    test.apply_secret(&wrong);
    test.start(&[]);
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/portal"),
        "Synced",
        "False ExportTerminal",
    );
    test.apply_secret(&test.postgres.dsn());
    let began = Instant::now();
    test.wait_for_rows(&["a=1"]);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

impl OperatorTest {
    /// What `kollect reconcile` prints; an error if it fails.
    fn reconcile(&self, resource: &str, seconds: u32) -> Result<String, String> {
        let kubeconfig = self.plane.kubeconfig().to_str().unwrap();
        let timeout = seconds.to_string();
        let arguments =
            ["reconcile", resource, "-n", &self.namespace, "--kubeconfig", kubeconfig, "--timeout", &timeout];
        let Finished { code, stdout, stderr } = kollect(arguments);
        if code == 0 { Ok(stdout) } else { Err(format!("{code}: {stdout}{stderr}")) }
    }
}

/// An operator whose sink has no table and may not create it.
fn operator_without_table(name: &str, server: &Postgres) -> OperatorTest {
    let mut test = OperatorTest::new(name);
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&server.dsn());
    let mut sink = test.sink();
    sink["provisioning"] = json!({ "mode": "existing" });
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.start(&[]);
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/portal"),
        "Synced",
        "False ExportTerminal",
    );
    test
}

#[test]
fn a_corrected_sink_is_tried_again_within_a_minute() {
    let server = Postgres::start().unwrap();
    let test = operator_without_table("mended-unasked", &server);
    server.psql(&test.expected_ddl("kollectdatabasesink/portal")).unwrap();
    let corrected = Instant::now();
    let count = format!("SELECT count(*) FROM {}", test.table());
    while server.psql(&count).unwrap() != "1\n" {
        assert!(corrected.elapsed() < Duration::from_secs(70));
        thread::sleep(Duration::from_millis(200));
    }
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_corrected_sink_is_tried_at_once_on_request() {
    let server = Postgres::start().unwrap();
    let test = operator_without_table("mended-server", &server);
    let line = test.export_line_of("kollectinventory/all", "database/portal");
    let next = line["nextAttemptTime"].as_str().unwrap().to_owned();
    // Nothing has changed: it fails again, and the command does not wait until it is Ready.
    let failed = test.reconcile("inventory/all", 60).unwrap_err();
    assert!(failed.contains("not Ready: KollectInventory all in namespace"), "{failed}");
    assert!(failed.contains("ExportTerminal: 0 of 1 sink holds the rows; database/portal"), "{failed}");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True ExportTerminal");
    // The administrator creates the tables from the preview of the sink.
    server.psql(&test.expected_ddl("kollectdatabasesink/portal")).unwrap();
    let began = Instant::now();
    // The answer is that of an attempt that was made after the request: the last one had failed.
    let output = test.reconcile("kinv/all", 60).unwrap();
    assert!(output.contains("Exported: 1 of 1 sink holds the rows"), "{output}");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {}", test.table())).unwrap(), "1\n");
    assert!(began.elapsed() < Duration::from_secs(20), "not at {next}: {:?}", began.elapsed());
    // A sink is probed, and its inventories are compared.
    server.psql(&format!("DELETE FROM {}", test.table())).unwrap();
    let output = test.reconcile("databasesink/portal", 60).unwrap();
    assert!(output.contains("Ready: KollectDatabaseSink portal"), "{output}");
    eventually("the rows", || {
        let found = server.psql(&format!("SELECT count(*) FROM {}", test.table())).unwrap();
        (found == "1\n").then_some(()).ok_or(found)
    });
    let output = test.reconcile("target/maps", 60).unwrap();
    assert!(output.contains("Ready: KollectTarget maps") && output.contains("collecting 1 row"), "{output}");
    let refused = test.reconcile("profile/maps", 60).unwrap_err();
    assert!(refused.contains("is not a kind that can be reconciled"), "{refused}");
    let missing = test.reconcile("target/none", 60).unwrap_err();
    assert!(missing.contains("not found"), "{missing}");
}

#[test]
fn a_reconcile_request_for_a_target_checks_its_rights_again() {
    let mut test = OperatorTest::new("granted");
    test.apply_config_map("a", "1");
    test.install();
    test.kubeconfig = Some(super::acknowledged_status::blind_user(&test, None));
    test.start(&[]);
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ScopeForbidden");
    let refused = test.reconcile("target/maps", 60).unwrap_err();
    assert!(refused.contains("ScopeForbidden"), "{refused}");
    let more = Grant::cluster("", &["configmaps"], &["get", "list", "watch"]);
    super::acknowledged_status::blind_user(&test, Some(more));
    let output = test.reconcile("target/maps", 60).unwrap();
    assert!(output.contains("collecting 1 row"), "{output}");
}

#[test]
fn a_reconcile_request_times_out_while_no_operator_runs() {
    let test = OperatorTest::new("no-operator");
    test.install();
    let failed = test.reconcile("inventory/all", 2).unwrap_err();
    assert!(failed.contains("not done after 2 s: no operator has handled it"), "{failed}");
}

#[test]
fn a_killed_container_leads_again_at_once_and_another_pod_waits_for_the_lease() {
    let mut test = OperatorTest::new("restarted");
    let namespace = test.namespace.clone();
    let elect = [
        "--leader-elect",
        "--leader-election-namespace",
        &namespace,
        "--leader-elect-lease-duration=600s",
        "--leader-elect-renew-deadline=500s",
    ];
    test.apply_config_map("a", "1");
    test.install();
    test.environment = vec![("POD_NAME".into(), "kollect-0".into()), ("POD_UID".into(), "uid-0".into())];
    test.start(&elect);
    test.wait_for_rows(&["a=1"]);
    let epoch =
        format!("SELECT epoch, writer_id FROM kollect_bindings WHERE inventory_table = '{}'", test.table());
    let before = test.postgres.psql(&epoch).unwrap();
    test.operator.as_mut().unwrap().kill();
    test.apply_config_map("b", "2");
    let began = Instant::now();
    test.start(&elect);
    test.wait_for_rows(&["a=1", "b=2"]);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let after = test.postgres.psql(&epoch).unwrap();
    assert_ne!(before, after, "another epoch and another writer");
    // Another Pod of the same name is another holder.
    test.operator.as_mut().unwrap().kill();
    test.environment = vec![("POD_NAME".into(), "kollect-0".into()), ("POD_UID".into(), "uid-1".into())];
    test.apply_config_map("c", "3");
    test.start(&elect);
    thread::sleep(Duration::from_secs(8));
    assert_eq!(test.rows(), ["a=1", "b=2"]);
}
