//! What was broken and is mended works again within seconds, and what vanished is made again.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use async_nats::jetstream;
use kollect_testbed::{Postgres, Rule};
use serde_json::json;

use super::{World, readers::Destinations};
use crate::program::{Finished, eventually, kollect};

#[test]
fn what_may_be_created_is_created_again_wherever_it_vanished() {
    let (mut world, destinations) = World::five_sinks("vanished", "east");
    world.start_with_files(&destinations);
    destinations.holds("east", &["a", "b"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    destinations.postgres.psql(&format!("DROP TABLE {}", destinations.table())).unwrap();
    destinations.repository.git(&["update-ref", "-d", "refs/heads/main"]).unwrap();
    fs::remove_dir_all(destinations.directory().join("files")).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(destinations.directory().join(format!("rows.db{suffix}"))).ok();
    }
    destinations.delete_stream();
    world.map("c", "1");
    destinations.holds("east", &["a", "b", "c"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
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
fn w24_a_mended_secret_is_read_within_seconds_after_any_failure_without_watching_secrets() {
    let mut world = World::new("mended-soon");
    world.map("a", "1");
    world.install();
    world.kubeconfig = Some(super::secrets::get_only(&world));
    // A database that does not exist: retries cannot help.
    let wrong = world.postgres.dsn().replace("/postgres", "/there_is_no_such");
    assert_ne!(wrong, world.postgres.dsn());
    world.secret(&wrong);
    world.start(&[]);
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ExportTerminal");
    world.secret(&world.postgres.dsn());
    let began = Instant::now();
    world.holds(&["a=1"]);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    world.becomes("kollectinventory/all", "Ready", "True Exported");
}

impl World {
    /// What `kollect reconcile` prints; an error if it fails.
    fn reconcile(&self, what: &str, seconds: u32) -> Result<String, String> {
        let kubeconfig = self.plane.kubeconfig().to_str().unwrap();
        let timeout = seconds.to_string();
        let arguments =
            ["reconcile", what, "-n", &self.namespace, "--kubeconfig", kubeconfig, "--timeout", &timeout];
        let Finished { code, stdout, stderr } = kollect(arguments);
        if code == 0 { Ok(stdout) } else { Err(format!("{code}: {stdout}{stderr}")) }
    }
}

/// An operator whose sink lacks its table, which it may not create.
fn without_table(name: &str, server: &Postgres) -> World {
    let mut world = World::new(name);
    world.map("a", "1");
    world.install();
    world.secret(&server.dsn());
    let mut sink = world.sink();
    sink["provisioning"] = json!({ "mode": "existing" });
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.start(&[]);
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ExportTerminal");
    world
}

#[test]
fn a_sink_that_was_mended_is_tried_again_within_a_minute() {
    let server = Postgres::start().unwrap();
    let world = without_table("mended-unasked", &server);
    server.psql(&world.expected_ddl("kollectdatabasesink/portal")).unwrap();
    let mended = Instant::now();
    let count = format!("SELECT count(*) FROM {}", world.table());
    while server.psql(&count).unwrap() != "1\n" {
        assert!(mended.elapsed() < Duration::from_secs(70));
        thread::sleep(Duration::from_millis(200));
    }
    world.becomes("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_sink_that_was_mended_is_tried_at_once_when_asked() {
    let server = Postgres::start().unwrap();
    let world = without_table("mended-server", &server);
    let line = world.export("kollectinventory/all", "database/portal");
    let next = line["nextAttemptTime"].as_str().unwrap().to_owned();
    // Nothing has changed: it fails again, and the answer is not waited for.
    let failed = world.reconcile("inventory/all", 60).unwrap_err();
    assert!(failed.contains("not Ready: KollectInventory all in namespace"), "{failed}");
    assert!(failed.contains("ExportTerminal: 0 of 1 sink holds the rows; not database/portal"), "{failed}");
    world.becomes("kollectinventory/all", "Degraded", "True ExportTerminal");
    // The administrator makes the tables: by the preview of the sink.
    server.psql(&world.expected_ddl("kollectdatabasesink/portal")).unwrap();
    let began = Instant::now();
    // The answer is that of an attempt that was made after the request: the last one had failed.
    let done = world.reconcile("kinv/all", 60).unwrap();
    assert!(done.contains("Exported: 1 of 1 sink holds the rows"), "{done}");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {}", world.table())).unwrap(), "1\n");
    assert!(began.elapsed() < Duration::from_secs(20), "not at {next}: {:?}", began.elapsed());
    // A sink is probed, and its inventories are compared.
    server.psql(&format!("DELETE FROM {}", world.table())).unwrap();
    let done = world.reconcile("databasesink/portal", 60).unwrap();
    assert!(done.contains("Ready: KollectDatabaseSink portal"), "{done}");
    eventually("the rows", || {
        let found = server.psql(&format!("SELECT count(*) FROM {}", world.table())).unwrap();
        (found == "1\n").then_some(()).ok_or(found)
    });
    let done = world.reconcile("target/maps", 60).unwrap();
    assert!(done.contains("Ready: KollectTarget maps") && done.contains("collecting 1 row"), "{done}");
    let refused = world.reconcile("profile/maps", 60).unwrap_err();
    assert!(refused.contains("is not a kind that can be reconciled"), "{refused}");
    let missing = world.reconcile("target/none", 60).unwrap_err();
    assert!(missing.contains("not found"), "{missing}");
}

#[test]
fn a_target_is_answered_after_its_rights_were_asked_for_again() {
    let mut world = World::new("granted");
    world.map("a", "1");
    world.install();
    world.kubeconfig = Some(super::truth::blind_user(&world, None));
    world.start(&[]);
    world.becomes("kollecttarget/maps", "Degraded", "True ScopeForbidden");
    let refused = world.reconcile("target/maps", 60).unwrap_err();
    assert!(refused.contains("ScopeForbidden"), "{refused}");
    let more = Rule::cluster("", &["configmaps"], &["get", "list", "watch"]);
    super::truth::blind_user(&world, Some(more));
    let done = world.reconcile("target/maps", 60).unwrap();
    assert!(done.contains("collecting 1 row"), "{done}");
}

#[test]
fn nothing_deals_with_a_request_while_no_operator_runs() {
    let world = World::new("no-operator");
    world.install();
    let failed = world.reconcile("inventory/all", 2).unwrap_err();
    assert!(failed.contains("not done after 2 s: no operator has dealt with it"), "{failed}");
}

#[test]
fn a_killed_container_leads_again_at_once_and_another_pod_waits_for_the_lease() {
    let mut world = World::new("restarted");
    let namespace = world.namespace.clone();
    let elect = [
        "--leader-elect",
        "--leader-election-namespace",
        &namespace,
        "--leader-elect-lease-duration=600s",
        "--leader-elect-renew-deadline=500s",
    ];
    world.map("a", "1");
    world.install();
    world.environment = vec![("POD_NAME".into(), "kollect-0".into()), ("POD_UID".into(), "uid-0".into())];
    world.start(&elect);
    world.holds(&["a=1"]);
    let epoch =
        format!("SELECT epoch, writer_id FROM kollect_bindings WHERE inventory_table = '{}'", world.table());
    let before = world.postgres.psql(&epoch).unwrap();
    world.operator.as_mut().unwrap().kill();
    world.map("b", "2");
    let began = Instant::now();
    world.start(&elect);
    world.holds(&["a=1", "b=2"]);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let after = world.postgres.psql(&epoch).unwrap();
    assert_ne!(before, after, "another epoch and another writer");
    // Another Pod of the same name is another holder.
    world.operator.as_mut().unwrap().kill();
    world.environment = vec![("POD_NAME".into(), "kollect-0".into()), ("POD_UID".into(), "uid-1".into())];
    world.map("c", "3");
    world.start(&elect);
    thread::sleep(Duration::from_secs(8));
    assert_eq!(world.rows(), ["a=1", "b=2"]);
}
