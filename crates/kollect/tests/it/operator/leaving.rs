//! Rows that no inventory wants any more are found and removed, whatever happened to the process, the sink and the
//! inventory meanwhile. Rows that cannot be removed are reported.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{Postgres, Proxy};
use serde_json::{Value, json};

use super::World;
use crate::program::eventually;

impl World {
    /// Messages of events with a reason.
    fn events(&self, reason: &str) -> Vec<String> {
        let events = self.get("events")["items"].as_array().cloned().unwrap_or_default();
        let found = events.iter().filter(|event| event["reason"] == reason);
        found.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }

    fn is_gone(&self, what: &str) -> Result<(), String> {
        let found = self.plane.kubectl(&["get", "-n", &self.namespace, what]);
        found.is_err().then_some(()).ok_or(format!("{what} is still there"))
    }

    /// The places that the sink has left.
    fn left(&self) -> Value {
        self.get("kollectinventory/all")["status"]["sinkExports"][0]["left"].clone()
    }

    /// Where the rows are, as the status says.
    fn place(&self) -> String {
        let place = &self.get("kollectinventory/all")["status"]["sinkExports"][0]["place"]["destination"];
        place.as_str().unwrap().to_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("operator.log")).unwrap_or_default()
    }

    /// Waits for a line of the log from now on.
    fn logs(&self, what: &str, act: impl FnOnce()) {
        let lines = || self.log().lines().filter(|line| line.contains(what)).count();
        let before = lines();
        act();
        eventually(&format!("a log line with {what}"), || {
            (lines() > before).then_some(()).ok_or("none".into())
        });
    }
}

fn count(postgres: &Postgres, table: &str) -> String {
    postgres.psql(&format!("SELECT count(*) FROM {table}")).unwrap_or_else(|_| "no table\n".into())
}

#[test]
fn nothing_is_written_before_the_next_process_could_find_it() {
    let requests = [("PATCH", "/kollectinventories/all"), ("PUT", "/kollectinventories/all/status")];
    for (verb, path) in requests {
        let mut world = World::new("found");
        let proxy = Proxy::start(world.plane).unwrap();
        world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
        let deaf = Arc::new(AtomicBool::new(true));
        let is_deaf = deaf.clone();
        let asks = move |line: &str| {
            let target = line.split([' ', '?']).nth(1).unwrap_or_default();
            line.starts_with(verb) && target.ends_with(path) && is_deaf.load(SeqCst)
        };
        proxy.answer(usize::MAX, asks, 500, &[], "{}");
        world.map("a", "1");
        world.install();
        world.start(&[]);
        world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
        world.becomes("kollecttarget/maps", "Ready", "True Collecting");
        // Everything else is there. A claim comes before rows; tables may come with the probe.
        let owner = format!("SELECT epoch FROM kollect_bindings WHERE inventory_table = '{}'", world.table());
        let looked = Instant::now();
        while looked.elapsed() < Duration::from_secs(3) {
            assert_eq!(world.postgres.psql(&owner).unwrap(), "", "without {verb} {path}");
            thread::sleep(Duration::from_millis(100));
        }
        deaf.store(false, SeqCst);
        world.holds(&["a=1"]);
    }
}

#[test]
fn a_destination_that_moved_while_no_operator_ran_is_cleaned_or_told() {
    let mut world = World::new("moved");
    let other = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let (first, second) = (world.table(), format!("{}_new", world.table()));
    // Another table of the same database: the sink still leads there.
    world.operator.as_mut().unwrap().kill();
    let mut sink = world.sink();
    sink["postgres"]["table"] = json!(second);
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.start(&[]);
    eventually("the new table is filled, the old one clean", || {
        let found = (count(world.postgres, &second), count(world.postgres, &first));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
    eventually("nothing is left", || world.left().is_null().then_some(()).ok_or(world.left().to_string()));
    assert_eq!(world.condition("kollectinventory/all", "LeftBehind"), "");

    // Another server: the running process still has the client of the old one, and cleans it.
    world.secret(&other.dsn());
    eventually("the new server is filled, the old one clean", || {
        let found = (count(&other, &second), count(world.postgres, &second));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
    eventually("nothing is left", || world.left().is_null().then_some(()).ok_or(world.left().to_string()));

    assert_eq!(world.events("CleanupTerminal"), [""; 0]);

    // After a restart no process has that client: the status and an event name the place.
    let place = world.place();
    world.operator.as_mut().unwrap().kill();
    world.secret(&world.postgres.dsn());
    world.start(&[]);
    world.becomes("kollectinventory/all", "LeftBehind", "True CleanupTerminal");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert_eq!((count(world.postgres, &second), count(&other, &second)), ("1\n".into(), "1\n".into()));
    eventually("an event that names it", || {
        let told = world.events("CleanupTerminal");
        told.iter().any(|message| message.contains(&place)).then_some(()).ok_or(format!("{told:?}"))
    });
    assert_eq!(world.left()[0]["destination"], json!(place));
    assert_ne!(world.place(), place);
    // An administrator who has removed the rows by hand removes the entry from the status.
    let patch = r#"[{"op":"remove","path":"/status/sinkExports/0/left"}]"#;
    world
        .plane
        .kubectl(&[
            "patch",
            "-n",
            &world.namespace,
            "kollectinventory/all",
            "--subresource=status",
            "--type=json",
            "-p",
            patch,
        ])
        .unwrap();
    world.becomes("kollectinventory/all", "LeftBehind", "");
}

#[test]
fn a_sink_that_moved_while_no_operator_ran_is_filled_whatever_is_wrong_with_another() {
    let mut world = World::new("aside");
    world.map("a", "1");
    world.install();
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "missing"] }));
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "False PartiallySynced");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
    world.operator.as_mut().unwrap().kill();
    let (first, second) = (world.table(), format!("{}_new", world.table()));
    let mut sink = world.sink();
    sink["postgres"]["table"] = json!(second);
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.start(&[]);
    eventually("the new table is filled, the old one clean", || {
        let found = (count(world.postgres, &second), count(world.postgres, &first));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
}

#[test]
fn a_deleted_inventory_waits_for_a_sink_that_is_down_but_not_for_ever() {
    let mut world = World::new("down");
    let mut postgres = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&postgres.dsn());
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    postgres.crash();
    world.logs("cannot clean", || world.delete("kollectinventory/all"));
    assert!(world.is_gone("kollectinventory/all").is_err());
    // A restart does not change that.
    world.operator.as_mut().unwrap().kill();
    world.start(&[]);
    world.logs("cannot clean", || {});
    postgres.resume().unwrap();
    eventually("the end", || world.is_gone("kollectinventory/all"));
    assert_eq!(count(&postgres, &world.table()), "0\n");
    assert_eq!(world.events("CleanupTerminal"), [""; 0]);

    world.stop();
    world.install();
    world.secret(&postgres.dsn());
    world.start(&["--cleanup-timeout=3s"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let place = format!("database/portal at {}", world.place());
    postgres.crash();
    world.delete("kollectinventory/all");
    eventually("the end", || world.is_gone("kollectinventory/all"));
    let told = world.events("CleanupTerminal");
    assert!(told.len() == 1 && told[0].contains(&place), "{told:?}");
}

#[test]
fn a_deleted_inventory_waits_for_a_secret_and_not_for_a_sink_that_is_gone() {
    let mut world = World::new("gone");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    // The running process still has its client.
    world.delete("kollectdatabasesink/portal");
    world.becomes("kollectinventory/all", "Degraded", "True SinkNotFound");
    world.delete("kollectinventory/all");
    eventually("the end", || world.is_gone("kollectinventory/all"));
    world.holds(&[]);
    assert_eq!(world.events("CleanupTerminal"), [""; 0]);

    // Without a client the Secret is needed, and may come back.
    world.install();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.operator.as_mut().unwrap().kill();
    world.delete("secret/portal");
    world.delete("kollectinventory/all");
    world.start(&[]);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    assert!(world.is_gone("kollectinventory/all").is_err());
    world.secret(&world.postgres.dsn());
    eventually("the end", || world.is_gone("kollectinventory/all"));
    world.holds(&[]);

    // A sink that is gone does not come back as it was.
    world.install();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.operator.as_mut().unwrap().kill();
    world.delete("kollectdatabasesink/portal");
    world.delete("kollectinventory/all");
    let began = Instant::now();
    world.start(&[]);
    eventually("the end", || world.is_gone("kollectinventory/all"));
    assert!(began.elapsed().as_secs() < 30, "it does not wait for --cleanup-timeout, which is 5 minutes");
    let told = world.events("CleanupTerminal");
    assert!(told.len() == 1 && told[0].contains(&format!("\"{}\"", world.table())), "{told:?}");
    assert_eq!(world.rows(), ["a=1"]);
}

#[test]
fn a_removed_reference_to_a_sink_that_is_gone_is_told() {
    let mut world = World::new("dangling");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.operator.as_mut().unwrap().kill();
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    world.delete("kollectdatabasesink/portal");
    world.start(&[]);
    eventually("the status forgets the sink", || {
        let exports = world.get("kollectinventory/all")["status"]["sinkExports"].clone();
        exports.as_array().is_none_or(Vec::is_empty).then_some(()).ok_or(exports.to_string())
    });
    let told = world.events("CleanupTerminal");
    assert!(told.len() == 1 && told[0].contains(&format!("\"{}\"", world.table())), "{told:?}");
    world.becomes("kollectinventory/all", "Ready", "True NoExport");
}

#[test]
fn a_database_under_another_name_keeps_its_rows() {
    let mut world = World::new("alias");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let dsn = world.postgres.dsn();
    let alias = dsn.replace("127.0.0.1", "localhost");
    assert_ne!(dsn, alias);
    world.logs("cleaned", || world.secret(&alias));
    world.map("b", "2");
    world.holds(&["a=1", "b=2"]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
}
