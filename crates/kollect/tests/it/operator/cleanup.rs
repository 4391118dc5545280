//! Rows that no inventory selects any more are found and removed, also after restarts and after changes of the sink and
//! the inventory. Rows that cannot be removed are reported.

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

use super::OperatorTest;
use crate::program::eventually;

impl OperatorTest {
    /// Messages of events with a reason.
    fn event_messages(&self, reason: &str) -> Vec<String> {
        let events = self.get("events")["items"].as_array().cloned().unwrap_or_default();
        let found = events.iter().filter(|event| event["reason"] == reason);
        found.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }

    fn check_deleted(&self, resource: &str) -> Result<(), String> {
        let found = self.plane.kubectl(&["get", "-n", &self.namespace, resource]);
        found.is_err().then_some(()).ok_or(format!("{resource} is still there"))
    }

    /// The destinations that the sink has left.
    fn left_destinations(&self) -> Value {
        self.get("kollectinventory/all")["status"]["sinkExports"][0]["left"].clone()
    }

    /// The destination of the rows, as the status reports it.
    fn destination(&self) -> String {
        let destination =
            &self.get("kollectinventory/all")["status"]["sinkExports"][0]["place"]["destination"];
        destination.as_str().unwrap().to_owned()
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("operator.log")).unwrap_or_default()
    }

    /// Waits until an action has caused a line of the log.
    fn wait_for_log(&self, text: &str, action: impl FnOnce()) {
        let lines = || self.log().lines().filter(|line| line.contains(text)).count();
        let before = lines();
        action();
        eventually(&format!("a log line with {text}"), || {
            (lines() > before).then_some(()).ok_or("none".into())
        });
    }
}

fn count(postgres: &Postgres, table: &str) -> String {
    postgres.psql(&format!("SELECT count(*) FROM {table}")).unwrap_or_else(|_| "no table\n".into())
}

#[test]
fn nothing_is_claimed_before_the_finalizer_and_the_status_are_stored() {
    let requests = [("PATCH", "/kollectinventories/all"), ("PUT", "/kollectinventories/all/status")];
    for (verb, path) in requests {
        let mut test = OperatorTest::new("found");
        let proxy = Proxy::start(test.plane).unwrap();
        test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
        let fails = Arc::new(AtomicBool::new(true));
        let still_fails = fails.clone();
        let is_failing = move |line: &str| {
            let request_path = line.split([' ', '?']).nth(1).unwrap_or_default();
            line.starts_with(verb) && request_path.ends_with(path) && still_fails.load(SeqCst)
        };
        proxy.answer(usize::MAX, is_failing, 500, &[], "{}");
        test.apply_config_map("a", "1");
        test.install();
        test.start(&[]);
        test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
        test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
        // Everything else is there. A claim comes before rows; tables may come with the probe.
        let owner = format!("SELECT epoch FROM kollect_bindings WHERE inventory_table = '{}'", test.table());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            assert_eq!(test.postgres.psql(&owner).unwrap(), "", "without {verb} {path}");
            thread::sleep(Duration::from_millis(100));
        }
        fails.store(false, SeqCst);
        test.wait_for_rows(&["a=1"]);
    }
}

#[test]
fn a_destination_that_a_sink_left_while_no_operator_ran_is_cleaned_or_reported() {
    let mut test = OperatorTest::new("moved");
    let other = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let (first, second) = (test.table(), format!("{}_new", test.table()));
    // Another table of the same database: the sink still reaches the old one.
    test.operator.as_mut().unwrap().kill();
    let mut sink = test.sink();
    sink["postgres"]["table"] = json!(second);
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.start(&[]);
    eventually("the new table is filled, the old one clean", || {
        let found = (count(test.postgres, &second), count(test.postgres, &first));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
    eventually("nothing is left", || {
        test.left_destinations().is_null().then_some(()).ok_or(test.left_destinations().to_string())
    });
    assert_eq!(test.condition("kollectinventory/all", "LeftBehind"), "");

    // Another server: the running process still has the client of the old one, and cleans it.
    test.apply_secret(&other.dsn());
    eventually("the new server is filled, the old one clean", || {
        let found = (count(&other, &second), count(test.postgres, &second));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
    eventually("nothing is left", || {
        test.left_destinations().is_null().then_some(()).ok_or(test.left_destinations().to_string())
    });

    assert_eq!(test.event_messages("CleanupTerminal"), [""; 0]);

    // After a restart no process has that client: the status and an event name the destination.
    let old_destination = test.destination();
    test.operator.as_mut().unwrap().kill();
    test.apply_secret(&test.postgres.dsn());
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "LeftBehind", "True CleanupTerminal");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert_eq!((count(test.postgres, &second), count(&other, &second)), ("1\n".into(), "1\n".into()));
    eventually("an event that names it", || {
        let messages = test.event_messages("CleanupTerminal");
        let is_named = messages.iter().any(|message| message.contains(&old_destination));
        is_named.then_some(()).ok_or(format!("{messages:?}"))
    });
    assert_eq!(test.left_destinations()[0]["destination"], json!(old_destination));
    assert_ne!(test.destination(), old_destination);
    // An administrator who has removed the rows by hand removes the entry from the status.
    let patch = r#"[{"op":"remove","path":"/status/sinkExports/0/left"}]"#;
    test.plane
        .kubectl(&[
            "patch",
            "-n",
            &test.namespace,
            "kollectinventory/all",
            "--subresource=status",
            "--type=json",
            "-p",
            patch,
        ])
        .unwrap();
    test.wait_for_condition("kollectinventory/all", "LeftBehind", "");
}

#[test]
fn a_new_destination_is_filled_although_another_sink_is_missing() {
    let mut test = OperatorTest::new("aside");
    test.apply_config_map("a", "1");
    test.install();
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "missing"] }));
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "False PartiallySynced");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
    test.operator.as_mut().unwrap().kill();
    let (first, second) = (test.table(), format!("{}_new", test.table()));
    let mut sink = test.sink();
    sink["postgres"]["table"] = json!(second);
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.start(&[]);
    eventually("the new table is filled, the old one clean", || {
        let found = (count(test.postgres, &second), count(test.postgres, &first));
        (found == ("1\n".into(), "0\n".into())).then_some(()).ok_or(format!("{found:?}"))
    });
}

#[test]
fn a_deleted_inventory_waits_for_an_unreachable_sink_until_the_cleanup_timeout() {
    let mut test = OperatorTest::new("down");
    let mut postgres = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&postgres.dsn());
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    postgres.crash();
    test.wait_for_log("cannot clean", || test.delete("kollectinventory/all"));
    assert!(test.check_deleted("kollectinventory/all").is_err());
    // A restart does not change that.
    test.operator.as_mut().unwrap().kill();
    test.start(&[]);
    test.wait_for_log("cannot clean", || {});
    postgres.resume().unwrap();
    eventually("the end", || test.check_deleted("kollectinventory/all"));
    assert_eq!(count(&postgres, &test.table()), "0\n");
    assert_eq!(test.event_messages("CleanupTerminal"), [""; 0]);

    test.stop();
    test.install();
    test.apply_secret(&postgres.dsn());
    test.start(&["--cleanup-timeout=3s"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let left = format!("database/portal at {}", test.destination());
    postgres.crash();
    test.delete("kollectinventory/all");
    eventually("the end", || test.check_deleted("kollectinventory/all"));
    let messages = test.event_messages("CleanupTerminal");
    assert!(messages.len() == 1 && messages[0].contains(&left), "{messages:?}");
}

#[test]
fn a_deleted_inventory_waits_for_a_missing_secret_and_not_for_a_deleted_sink() {
    let mut test = OperatorTest::new("gone");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    // The running process still has its client.
    test.delete("kollectdatabasesink/portal");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True SinkNotFound");
    test.delete("kollectinventory/all");
    eventually("the end", || test.check_deleted("kollectinventory/all"));
    test.wait_for_rows(&[]);
    assert_eq!(test.event_messages("CleanupTerminal"), [""; 0]);

    // Without a client the Secret is needed, and may come back.
    test.install();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.operator.as_mut().unwrap().kill();
    test.delete("secret/portal");
    test.delete("kollectinventory/all");
    test.start(&[]);
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False SecretResolveFailed");
    assert!(test.check_deleted("kollectinventory/all").is_err());
    test.apply_secret(&test.postgres.dsn());
    eventually("the end", || test.check_deleted("kollectinventory/all"));
    test.wait_for_rows(&[]);

    // A deleted sink is not waited for.
    test.install();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.operator.as_mut().unwrap().kill();
    test.delete("kollectdatabasesink/portal");
    test.delete("kollectinventory/all");
    let began = Instant::now();
    test.start(&[]);
    eventually("the end", || test.check_deleted("kollectinventory/all"));
    assert!(began.elapsed().as_secs() < 30, "it does not wait for --cleanup-timeout, which is 5 minutes");
    let messages = test.event_messages("CleanupTerminal");
    assert!(messages.len() == 1 && messages[0].contains(&format!("\"{}\"", test.table())), "{messages:?}");
    assert_eq!(test.rows(), ["a=1"]);
}

#[test]
fn rows_of_a_removed_reference_to_a_deleted_sink_are_reported() {
    let mut test = OperatorTest::new("dangling");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.operator.as_mut().unwrap().kill();
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }));
    test.delete("kollectdatabasesink/portal");
    test.start(&[]);
    eventually("the status forgets the sink", || {
        let exports = test.get("kollectinventory/all")["status"]["sinkExports"].clone();
        exports.as_array().is_none_or(Vec::is_empty).then_some(()).ok_or(exports.to_string())
    });
    let messages = test.event_messages("CleanupTerminal");
    assert!(messages.len() == 1 && messages[0].contains(&format!("\"{}\"", test.table())), "{messages:?}");
    test.wait_for_condition("kollectinventory/all", "Ready", "True NoExport");
}

#[test]
fn a_database_under_another_host_name_keeps_its_rows() {
    let mut test = OperatorTest::new("alias");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let dsn = test.postgres.dsn();
    let alias = dsn.replace("127.0.0.1", "localhost");
    assert_ne!(dsn, alias);
    test.wait_for_log("cleaned", || test.apply_secret(&alias));
    test.apply_config_map("b", "2");
    test.wait_for_rows(&["a=1", "b=2"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}
