//! The process ends between any two of its requests that change something, before or after the API server has received
//! the request. The next process completes everything, wherever the first one stopped.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{Moment, Proxy};
use serde_json::json;

use super::{World, plane};
use crate::program::eventually;

/// Number of runs at the same time.
const TOGETHER: usize = 4;
/// More requests than any scenario needs.
const MOST: usize = 40;

/// Something to do, and how to see that it is done.
struct Scenario {
    name: &'static str,
    /// Runs while the operator runs; `None`: the operator starts when all objects exist.
    act: Option<fn(&World)>,
    /// The error says what is missing.
    done: fn(&World) -> Result<(), String>,
}

/// How a run ended.
#[derive(PartialEq)]
enum End {
    /// The process died, and its successor finished.
    Died,
    /// Everything was done before that request came.
    NotReached,
}

impl Scenario {
    /// Ends the process at the first request, at the second, and so on, until there are no more.
    fn survives_every_crash(&self) {
        let proxy = Proxy::start(plane()).unwrap();
        for moment in [Moment::BeforeServer, Moment::AfterServer] {
            let mut crashes = 0;
            for first in (1..MOST).step_by(TOGETHER) {
                let ends: Vec<End> = thread::scope(|scope| {
                    let proxy = &proxy;
                    let runs: Vec<_> = (first..first + TOGETHER)
                        .map(|number| scope.spawn(move || self.run(proxy, number, moment)))
                        .collect();
                    runs.into_iter().map(|run| run.join().unwrap()).collect()
                });
                crashes += ends.iter().filter(|end| **end == End::Died).count();
                if ends.contains(&End::NotReached) {
                    break;
                }
            }
            eprintln!("{}: {crashes} crashes, {moment:?}", self.name);
            assert!((1..MOST - TOGETHER).contains(&crashes), "{crashes} crashes, {moment:?}");
        }
    }

    fn run(&self, proxy: &Proxy, number: usize, moment: Moment) -> End {
        let mut world = World::new(self.name);
        world.map("a", "1");
        world.install();
        world.kubeconfig = Some(proxy.kubeconfig(world.plane.kubeconfig()).unwrap());
        let pid = Arc::new(AtomicU32::new(0));
        let died = Arc::new(AtomicU32::new(0));
        let place = format!("/namespaces/{}/", world.namespace);
        let trap = || {
            let (pid, died, place) = (pid.clone(), died.clone(), place.clone());
            let changes = move |line: &str| {
                let verb = ["PATCH", "POST", "PUT", "DELETE"].iter().any(|verb| line.starts_with(verb));
                let ours = line.contains("/apis/kollect.dev/") || line.contains("/events");
                verb && ours && line.contains(&place)
            };
            proxy.trap(number, changes, moment, move || {
                let pid = pid.load(SeqCst).to_string();
                assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
                died.store(1, SeqCst);
            });
        };
        if self.act.is_none() {
            trap();
        }
        world.start(&[]);
        pid.store(world.operator.as_ref().unwrap().child.id(), SeqCst);
        if let Some(act) = self.act {
            eventually("the beginning", || is_exported(&world));
            trap();
            act(&world);
        }
        let deadline = Instant::now() + Duration::from_mins(1);
        // Check only every 20 turns: a check costs more than a pause.
        for turn in 1_u32.. {
            if died.load(SeqCst) == 1 {
                break;
            }
            if turn.is_multiple_of(20) && (self.done)(&world).is_ok() {
                // The last request may be done while the process has not been killed yet.
                thread::sleep(Duration::from_millis(300));
                if died.load(SeqCst) == 0 {
                    return End::NotReached;
                }
            }
            assert!(Instant::now() < deadline, "neither died nor done: {:?}", (self.done)(&world));
            thread::sleep(Duration::from_millis(20));
        }
        world.operator.as_mut().unwrap().kill();
        world.kubeconfig = None;
        world.start(&[]);
        eventually(&format!("all after crash {number}, {moment:?}"), || (self.done)(&world));
        End::Died
    }
}

/// Rows are there, statuses say so, and the inventory cannot vanish.
fn is_exported(world: &World) -> Result<(), String> {
    let rows = world.rows();
    if rows != ["a=1"] {
        return Err(format!("{rows:?}"));
    }
    let objects = world.objects();
    let unready = World::unready(&objects);
    let inventory = objects.iter().find(|object| object["kind"] == "KollectInventory").unwrap();
    let finalizers = &inventory["metadata"]["finalizers"];
    let done = unready.is_empty() && *finalizers == json!(["kollect.dev/inventory-cleanup"]);
    done.then_some(()).ok_or(format!("{unready:?} {finalizers}"))
}

/// Neither rows nor a record of their owner.
fn is_clean(world: &World, table: &str) -> Result<(), String> {
    let count = |sql: String| world.postgres.psql(&sql).unwrap_or_else(|_| "no table\n".into());
    let rows = count(format!("SELECT count(*) FROM {table}"));
    let owners = count(format!("SELECT count(*) FROM kollect_bindings WHERE inventory_table = '{table}'"));
    let clean = (rows.as_str(), owners.as_str()) == ("0\n", "0\n");
    clean.then_some(()).ok_or(format!("{table} has {rows} rows and {owners} owners"))
}

#[test]
fn a_crash_at_any_request_while_everything_is_created() {
    Scenario { name: "crash-create", act: None, done: is_exported }.survives_every_crash();
}

#[test]
fn a_crash_at_any_request_while_an_inventory_is_deleted() {
    let scenario = Scenario {
        name: "crash-delete",
        act: Some(|world| world.delete("kollectinventory/all")),
        done: |world| {
            is_clean(world, &world.table())?;
            let gone = world.plane.kubectl(&["get", "-n", &world.namespace, "kollectinventory/all"]);
            gone.is_err().then_some(()).ok_or("the inventory is still there".into())
        },
    };
    scenario.survives_every_crash();
}

#[test]
fn a_crash_at_any_request_while_a_reference_is_removed() {
    let scenario = Scenario {
        name: "crash-remove",
        act: Some(|world| world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": [] }))),
        done: |world| {
            is_clean(world, &world.table())?;
            let status = world.get("kollectinventory/all")["status"].clone();
            let forgotten = status["sinkExports"].as_array().is_none_or(Vec::is_empty);
            let ready = world.condition("kollectinventory/all", "Ready") == "True NoExport";
            (forgotten && ready).then_some(()).ok_or(status.to_string())
        },
    };
    scenario.survives_every_crash();
}

#[test]
fn a_crash_at_any_request_while_a_destination_moves() {
    let scenario = Scenario {
        name: "crash-move",
        act: Some(|world| {
            let mut sink = world.sink();
            sink["postgres"]["table"] = json!(format!("{}_new", world.table()));
            world.kollect("KollectDatabaseSink", "portal", sink);
        }),
        done: |world| {
            is_clean(world, &world.table())?;
            let sql = format!("SELECT count(*) FROM {}_new", world.table());
            let rows = world.postgres.psql(&sql).unwrap_or_default();
            let export = world.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
            let forgotten = export["left"].is_null()
                && export["place"]["destination"]
                    .as_str()
                    .is_some_and(|place| place.ends_with(&format!("\"{}_new\"", world.table())));
            let unready = World::unready(&world.objects());
            let done = rows == "1\n" && forgotten && unready.is_empty();
            done.then_some(()).ok_or(format!("{rows} rows, {unready:?}, {export}"))
        },
    };
    scenario.survives_every_crash();
}
