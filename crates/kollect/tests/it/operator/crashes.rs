//! The process is killed at each of its requests that change something, before or after the API server has received the
//! request. The next process completes everything.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{FailureMoment, Proxy};
use serde_json::json;

use super::{OperatorTest, plane};
use crate::program::eventually;

/// Number of runs at the same time.
const PARALLEL_RUNS: usize = 4;
/// More requests than any scenario needs.
const MAX_REQUESTS: usize = 40;

/// A change, and a check that everything is done.
struct Scenario {
    name: &'static str,
    /// Runs while the operator runs; `None`: the operator starts when all objects exist.
    action: Option<fn(&OperatorTest)>,
    /// The error says what is missing.
    check_done: fn(&OperatorTest) -> Result<(), String>,
}

/// How a run ended.
#[derive(PartialEq)]
enum End {
    /// The process was killed, and the next one finished.
    Killed,
    /// Everything was done before that request came.
    NotReached,
}

impl Scenario {
    /// Kills the process at the first request, at the second, and so on, until there are no more.
    fn check_every_crash(&self) {
        let proxy = Proxy::start(plane()).unwrap();
        for moment in [FailureMoment::BeforeServer, FailureMoment::AfterServer] {
            let mut crashes = 0;
            for first in (1..MAX_REQUESTS).step_by(PARALLEL_RUNS) {
                let ends: Vec<End> = thread::scope(|spawner| {
                    let proxy = &proxy;
                    let runs: Vec<_> = (first..first + PARALLEL_RUNS)
                        .map(|number| spawner.spawn(move || self.run(proxy, number, moment)))
                        .collect();
                    runs.into_iter().map(|run| run.join().unwrap()).collect()
                });
                crashes += ends.iter().filter(|end| **end == End::Killed).count();
                if ends.contains(&End::NotReached) {
                    break;
                }
            }
            eprintln!("{}: {crashes} crashes, {moment:?}", self.name);
            assert!((1..MAX_REQUESTS - PARALLEL_RUNS).contains(&crashes), "{crashes} crashes, {moment:?}");
        }
    }

    fn run(&self, proxy: &Proxy, number: usize, moment: FailureMoment) -> End {
        let mut test = OperatorTest::new(self.name);
        test.apply_config_map("a", "1");
        test.install();
        test.kubeconfig = Some(proxy.kubeconfig(test.plane.kubeconfig()).unwrap());
        let pid = Arc::new(AtomicU32::new(0));
        let killed = Arc::new(AtomicU32::new(0));
        let in_namespace = format!("/namespaces/{}/", test.namespace);
        let set_failure = || {
            let (pid, killed, in_namespace) = (pid.clone(), killed.clone(), in_namespace.clone());
            let is_change = move |line: &str| {
                let changes = ["PATCH", "POST", "PUT", "DELETE"].iter().any(|verb| line.starts_with(verb));
                let is_kollect = line.contains("/apis/kollect.dev/") || line.contains("/events");
                changes && is_kollect && line.contains(&in_namespace)
            };
            proxy.fail_nth(number, is_change, moment, move || {
                let pid = pid.load(SeqCst).to_string();
                assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
                killed.store(1, SeqCst);
            });
        };
        if self.action.is_none() {
            set_failure();
        }
        test.start(&[]);
        pid.store(test.operator.as_ref().unwrap().child.id(), SeqCst);
        if let Some(action) = self.action {
            eventually("the beginning", || is_exported(&test));
            set_failure();
            action(&test);
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        // Check only every 20 attempts: a check takes longer than a pause.
        for attempt in 1_u32.. {
            if killed.load(SeqCst) == 1 {
                break;
            }
            if attempt.is_multiple_of(20) && (self.check_done)(&test).is_ok() {
                // The last request may be done while the process has not been killed yet.
                thread::sleep(Duration::from_millis(300));
                if killed.load(SeqCst) == 0 {
                    return End::NotReached;
                }
            }
            assert!(Instant::now() < deadline, "neither died nor done: {:?}", (self.check_done)(&test));
            thread::sleep(Duration::from_millis(20));
        }
        test.operator.as_mut().unwrap().kill();
        test.kubeconfig = None;
        test.start(&[]);
        eventually(&format!("all after crash {number}, {moment:?}"), || (self.check_done)(&test));
        End::Killed
    }
}

/// Rows are in the table, statuses report it, and the inventory has its finalizer.
fn is_exported(test: &OperatorTest) -> Result<(), String> {
    let rows = test.rows();
    if rows != ["a=1"] {
        return Err(format!("{rows:?}"));
    }
    let objects = test.objects();
    let unready = OperatorTest::unready(&objects);
    let inventory = objects.iter().find(|object| object["kind"] == "KollectInventory").unwrap();
    let finalizers = &inventory["metadata"]["finalizers"];
    let is_done = unready.is_empty() && *finalizers == json!(["kollect.dev/inventory-cleanup"]);
    is_done.then_some(()).ok_or(format!("{unready:?} {finalizers}"))
}

/// Neither rows nor a record of their owner.
fn is_clean(test: &OperatorTest, table: &str) -> Result<(), String> {
    let count = |sql: String| test.postgres.psql(&sql).unwrap_or_else(|_| "no table\n".into());
    let rows = count(format!("SELECT count(*) FROM {table}"));
    let owners = count(format!("SELECT count(*) FROM kollect_bindings WHERE inventory_table = '{table}'"));
    let clean = (rows.as_str(), owners.as_str()) == ("0\n", "0\n");
    clean.then_some(()).ok_or(format!("{table} has {rows} rows and {owners} owners"))
}

#[test]
fn everything_is_created_after_a_crash_at_any_request() {
    Scenario { name: "crash-create", action: None, check_done: is_exported }.check_every_crash();
}

#[test]
fn an_inventory_is_deleted_after_a_crash_at_any_request() {
    let scenario = Scenario {
        name: "crash-delete",
        action: Some(|test| test.delete("kollectinventory/all")),
        check_done: |test| {
            is_clean(test, &test.table())?;
            let found = test.plane.kubectl(&["get", "-n", &test.namespace, "kollectinventory/all"]);
            found.is_err().then_some(()).ok_or("the inventory is still there".into())
        },
    };
    scenario.check_every_crash();
}

#[test]
fn a_reference_is_removed_after_a_crash_at_any_request() {
    let scenario = Scenario {
        name: "crash-remove",
        action: Some(|test| test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }))),
        check_done: |test| {
            is_clean(test, &test.table())?;
            let status = test.get("kollectinventory/all")["status"].clone();
            let forgotten = status["sinkExports"].as_array().is_none_or(Vec::is_empty);
            let ready = test.condition("kollectinventory/all", "Ready") == "True NoExport";
            (forgotten && ready).then_some(()).ok_or(status.to_string())
        },
    };
    scenario.check_every_crash();
}

#[test]
fn a_sink_moves_to_another_destination_after_a_crash_at_any_request() {
    let scenario = Scenario {
        name: "crash-move",
        action: Some(|test| {
            let mut sink = test.sink();
            sink["postgres"]["table"] = json!(format!("{}_new", test.table()));
            test.apply_kollect("KollectDatabaseSink", "portal", sink);
        }),
        check_done: |test| {
            is_clean(test, &test.table())?;
            let sql = format!("SELECT count(*) FROM {}_new", test.table());
            let rows = test.postgres.psql(&sql).unwrap_or_default();
            let export = test.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
            let forgotten = export["left"].is_null()
                && export["place"]["destination"]
                    .as_str()
                    .is_some_and(|destination| destination.ends_with(&format!("\"{}_new\"", test.table())));
            let unready = OperatorTest::unready(&test.objects());
            let done = rows == "1\n" && forgotten && unready.is_empty();
            done.then_some(()).ok_or(format!("{rows} rows, {unready:?}, {export}"))
        },
    };
    scenario.check_every_crash();
}
