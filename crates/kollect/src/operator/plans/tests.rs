//! Plans that take long or panic, built by a function that replaces the real one.

use std::sync::{
    Condvar,
    atomic::{AtomicUsize, Ordering},
};

use kollect_model::sink::SinkSpec;
use serde_json::json;

use super::*;
use crate::resolve::{CompiledObjects, Family, ObjectSet, OperatorPolicy, Resolved, Secret};

/// How often the plan of each sink was begun, by name.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<BTreeMap<String, usize>>>);

impl Begun {
    fn count(&self, request: &PlanRequest) {
        *self.0.lock().unwrap().entry(request.name.clone()).or_default() += 1;
    }

    fn of(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

fn sink(namespace: &str, name: &str) -> SinkKey {
    (Family::Database, (namespace.into(), name.into()))
}

/// An object set of sinks, each with a Secret of its own name.
fn object_set(sinks: &[SinkKey]) -> ObjectSet {
    let mut object_set = ObjectSet::default();
    for (family, (namespace, name)) in sinks {
        let spec =
            json!({ "type": "postgres", "postgres": { "databaseRef": { "name": name }, "table": "rows" } });
        let spec = SinkSpec::Database(serde_json::from_value(spec).unwrap());
        object_set.sinks.insert((*family, (namespace.clone(), name.clone())), Arc::new(spec));
        put_secret(&mut object_set, namespace, name, "postgres://me@db.example/shop");
    }
    object_set
}

fn put_secret(object_set: &mut ObjectSet, namespace: &str, name: &str, dsn: &str) {
    let contents = [("dsn".to_owned(), dsn.into())].into();
    object_set.secrets.insert((namespace.into(), name.into()), Secret::Contents(Arc::new(contents)));
}

fn is_planned(resolved: &Resolved, sink: &SinkKey) -> bool {
    matches!(&*resolved.sinks[sink], Ok(Some(_)))
}

/// Turns of the loop until `done`.
async fn turn_until(
    object_set: &ObjectSet,
    compiled: &mut CompiledObjects,
    changes: &mut watch::Receiver<()>,
    done: impl Fn(&Resolved) -> bool,
) -> Resolved {
    loop {
        let resolved = object_set.resolve(&OperatorPolicy::default(), compiled);
        if done(&resolved) {
            return resolved;
        }
        changes.changed().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_plans_of_one_namespace_do_not_delay_another_and_no_plan_is_made_twice() {
    let (slow_1, slow_2, fast) = (sink("slow", "slow-1"), sink("slow", "slow-2"), sink("fast", "fast"));
    let mut object_set = object_set(&[slow_1.clone(), slow_2.clone(), fast.clone()]);
    let begun = Begun::default();
    let released = Arc::new((Mutex::new(false), Condvar::new()));
    let (running, peak_running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, gate, peak) = (begun.clone(), released.clone(), peak_running.clone());
    let make = move |request: &PlanRequest| {
        counted.count(request);
        if request.name.starts_with("slow") {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let (released, changed) = &*gate;
            drop(changed.wait_while(released.lock().unwrap(), |released| !*released).unwrap());
            running.fetch_sub(1, Ordering::SeqCst);
        }
        request.plan()
    };
    let planner = SinkPlanner::with(Tasks::default(), Arc::new(make));
    let mut changes = planner.changes();
    let mut compiled = CompiledObjects::planned_by(Box::new(planner));

    // The other namespace makes progress while the first one waits for its keys.
    for dsn in ["postgres://me@db.example/a", "postgres://me@db.example/b"] {
        put_secret(&mut object_set, "fast", "fast", dsn);
        let resolved =
            turn_until(&object_set, &mut compiled, &mut changes, |resolved| is_planned(resolved, &fast))
                .await;
        for slow in [&slow_1, &slow_2] {
            assert_eq!(*resolved.sinks[slow], Ok(None));
        }
    }
    assert_eq!(begun.of("fast"), 2, "once for each of its Secrets");

    *released.0.lock().unwrap() = true;
    released.1.notify_all();
    turn_until(&object_set, &mut compiled, &mut changes, |resolved| {
        is_planned(resolved, &slow_1) && is_planned(resolved, &slow_2)
    })
    .await;
    assert_eq!(peak_running.load(Ordering::SeqCst), 1, "a namespace makes one plan at a time");
    for _ in 0..3 {
        let resolved = object_set.resolve(&OperatorPolicy::default(), &mut compiled);
        assert!([&slow_1, &slow_2, &fast].into_iter().all(|sink| is_planned(&resolved, sink)));
    }
    assert_eq!(
        ["slow-1", "slow-2", "fast"].map(|name| begun.of(name)),
        [1, 1, 2],
        "an unchanged sink is kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_panics_is_an_error_of_its_sink_only() {
    let (bad, good) = (sink("shop", "bad"), sink("shop", "good"));
    let object_set = object_set(&[bad.clone(), good.clone()]);
    let tasks = Tasks::default();
    let make = |request: &PlanRequest| {
        assert_ne!(request.name, "bad", "a parser has a bug");
        request.plan()
    };
    let planner = SinkPlanner::with(tasks.clone(), Arc::new(make));
    let mut changes = planner.changes();
    let mut compiled = CompiledObjects::planned_by(Box::new(planner));
    let resolved = turn_until(&object_set, &mut compiled, &mut changes, |resolved| {
        is_planned(resolved, &good) && resolved.sinks[&bad].is_err()
    })
    .await;
    let faults = resolved.sinks[&bad].as_ref().as_ref().unwrap_err();
    assert!(faults[0].to_string().contains("this is a bug"), "{faults:?}");
    assert!(tasks.restarts().any(|counted| counted == (TaskKind::Plan, 1)));
}
