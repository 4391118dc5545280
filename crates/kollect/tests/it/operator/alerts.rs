//! Every alert fires once and resolves once: the metrics of a real operator are recorded in each situation, and
//! replayed with promtool's rule tests.
//!
//! The replay is slower than the recording, because alerts wait for minutes: one recorded second is one minute of the
//! replay, and durations are longer by the same factor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    process::Command,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use kollect_testbed::{Postgres, promtool};
use serde_json::{Value, json};

use super::{World, metrics::PLAIN};
use crate::program::{eventually, root};

/// The value of each series, by its name with labels.
type Scrape = BTreeMap<String, f64>;

/// What was recorded before something went wrong, meanwhile, and after it was mended.
struct Recording {
    before: Scrape,
    during: Vec<Scrape>,
    after: Vec<Scrape>,
    /// Seconds that are a minute of the replay.
    minute: u32,
}

/// Minutes of the replay before anything happens, and after the last scrape.
const CALM: [usize; 2] = [10, 60];

impl World {
    fn scrape_all(&self) -> Scrape {
        let told = self.scrape();
        let series = |sample: &crate::exposition::Sample| {
            let labels: Vec<String> =
                sample.labels.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
            (format!("{}{{{}}}", sample.name, labels.join(",")), sample.value)
        };
        told.samples.iter().map(series).collect()
    }

    /// So many minutes of the replay.
    fn record(&self, minutes: u32, minute: u32) -> Vec<Scrape> {
        let began = Instant::now();
        let scrape = |number: u32| {
            let due = Duration::from_secs(minute.into()) * number;
            sleep(due.saturating_sub(began.elapsed()));
            self.scrape_all()
        };
        (0..minutes).map(scrape).collect()
    }
}

impl Recording {
    /// The scrapes of the replay, minute by minute.
    fn minutes(&self) -> Vec<&Scrape> {
        let last = self.after.last().unwrap();
        let calm = std::iter::repeat_n(&self.before, CALM[0]);
        let rest = std::iter::repeat_n(last, CALM[1]);
        calm.chain(&self.during).chain(&self.after).chain(rest).collect()
    }

    /// The input of a test of rules: each series with its value in each minute.
    fn series(&self) -> Vec<Value> {
        let minutes = self.minutes();
        let names: BTreeSet<&String> = minutes.iter().flat_map(|scrape| scrape.keys()).collect();
        let longer = 60.0 / f64::from(self.minute);
        let line = |name: &&String| {
            let factor = if name.starts_with("kollect_binding_lag_seconds") { longer } else { 1.0 };
            let mut values = String::new();
            let mut was_there = false;
            for scrape in &minutes {
                match scrape.get(*name) {
                    Some(value) => write!(values, "{} ", value * factor).unwrap(),
                    // Prometheus notes that a series is gone.
                    None => values.push_str(if was_there { "stale " } else { "_ " }),
                }
                was_there = scrape.contains_key(*name);
            }
            json!({ "series": name, "values": values.trim() })
        };
        names.iter().map(line).collect()
    }

    /// Makes sure that exactly these alerts fire, once, and only while something is wrong.
    fn fires(&self, situation: &str, expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let rules: Value = serde_saphyr::from_str(&rules()).unwrap();
        fs::write(dir.path().join("rules.yaml"), rules["spec"].to_string()).unwrap();
        let end = self.minutes().len() - 1;
        // How often each alert began to fire, where it did so most often.
        let begins = format!(
            "max by (alertname) (sum_over_time((ALERTS{{alertstate=\"firing\"}} unless \
             ALERTS{{alertstate=\"firing\"}} offset 1m)[{end}m:1m]))"
        );
        let once = |alert: &&str| json!({ "labels": format!("{{alertname={alert:?}}}"), "value": 1 });
        let once: Vec<Value> = expected.iter().map(once).collect();
        let firing = "ALERTS{alertstate=\"firing\"}";
        let test = json!({
            "rule_files": ["rules.yaml"],
            "evaluation_interval": "1m",
            "tests": [{
                "interval": "1m",
                "input_series": self.series(),
                "promql_expr_test": [
                    { "expr": firing, "eval_time": format!("{}m", CALM[0] - 1), "exp_samples": [] },
                    { "expr": begins, "eval_time": format!("{end}m"), "exp_samples": once },
                    { "expr": firing, "eval_time": format!("{end}m"), "exp_samples": [] },
                ],
            }],
        });
        fs::write(dir.path().join("test.yaml"), test.to_string()).unwrap();
        let output = Command::new(promtool().unwrap())
            .args(["test", "rules", "test.yaml"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{situation}: {}", String::from_utf8_lossy(&printed));
    }
}

fn rules() -> String {
    fs::read_to_string(root().join("config/prometheus/rules.yaml")).unwrap()
}

/// A situation, what was recorded in it, and the alerts that must fire.
type Situation = (&'static str, Recording, &'static [&'static str]);

fn a_sink_is_away() -> Situation {
    let mut world = World::new("alert-away");
    let mut server = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&server.dsn());
    world.start(&PLAIN);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectdatabasesink/portal", "Ready", "True ConnectionOK");
    let before = world.scrape_all();
    server.crash();
    world.map("b", "1");
    world.annotate("kollectdatabasesink/portal", "kollect.dev/requestedAt=1");
    let during = world.record(40, 1);
    server.resume().unwrap();
    world.annotate("kollectdatabasesink/portal", "kollect.dev/requestedAt=2");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectdatabasesink/portal", "Ready", "True ConnectionOK");
    let recording = Recording { before, during, after: world.record(5, 1), minute: 1 };
    let alerts = &[
        "KollectReconcileErrors",
        "KollectInventoryExportErrors",
        "KollectSinkExportErrors",
        "KollectSinkConnectionTestFailures",
        "KollectBindingLag",
    ];
    ("a sink is away", recording, alerts)
}

fn writes_are_slow() -> Situation {
    let mut world = World::new("alert-slow");
    world.map("a", "1");
    world.install();
    world.start(&PLAIN);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let before = world.scrape_all();
    let table = world.table();
    let slow = format!(
        "CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN PERFORM pg_sleep(6); RETURN NULL; END$$;
         CREATE TRIGGER slow AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_slow()"
    );
    world.postgres.psql(&slow).unwrap();
    let during = thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..50 {
                world.map("a", &format!("changed-{number}"));
                sleep(Duration::from_secs(1));
            }
        });
        world.record(30, 2)
    });
    world.postgres.psql(&format!("DROP TRIGGER slow ON {table}")).unwrap();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let after = world.record(5, 2);
    ("writes are slow", Recording { before, during, after, minute: 2 }, &["KollectExportLatencyHigh"])
}

fn a_row_is_refused() -> Situation {
    let mut world = World::new("alert-refused");
    world.map("a", "1");
    world.install();
    world.start(&PLAIN);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let before = world.scrape_all();
    world.map("nul", "before\0after");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False RowsRefused");
    let during = world.record(30, 1);
    world.map("nul", "2");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let after = world.record(5, 1);
    ("a row is refused", Recording { before, during, after, minute: 1 }, &["KollectRowsRefused"])
}

fn a_right_is_taken_away() -> Situation {
    let mut world = World::new("alert-blind");
    world.map("a", "1");
    world.install();
    let namespace = world.namespace.clone();
    let proxy = world.operate_as_watcher();
    world.start(&PLAIN);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let before = world.scrape_all();
    let role = format!("{namespace}-watcher-0");
    let get = ["get", "rolebinding", "-n", &namespace, &role, "-o", "json"];
    let mut binding: Value = serde_json::from_str(&world.plane.kubectl(&get).unwrap()).unwrap();
    world.plane.kubectl(&["delete", "rolebinding", "-n", &namespace, &role]).unwrap();
    let account = format!("--as=system:serviceaccount:{namespace}:watcher");
    let may =
        || world.plane.kubectl(&["auth", "can-i", "list", "configmaps", "-n", &namespace, &account]).is_ok();
    eventually("the right is gone", || (!may()).then_some(()).ok_or(String::new()));
    proxy.cut();
    world.becomes("kollecttarget/maps", "Blind", "True ScopeForbidden");
    let during = world.record(30, 1);
    binding["metadata"] = json!({ "name": role, "namespace": namespace });
    world.plane.apply(&binding.to_string()).unwrap();
    eventually("the right is back", || may().then_some(()).ok_or(String::new()));
    world.annotate("kollecttarget/maps", "kollect.dev/requestedAt=1");
    world.becomes("kollecttarget/maps", "Blind", "");
    let after = world.record(5, 1);
    ("a right is taken away", Recording { before, during, after, minute: 1 }, &["KollectBlind"])
}

fn another_holds_the_lease() -> Situation {
    let mut world = World::new("alert-lease");
    let namespace = world.namespace.clone();
    world.map("a", "1");
    world.install();
    let elect = ["--leader-elect", "--leader-election-namespace", &namespace];
    world.start(&[&PLAIN[..], &elect].concat());
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let before = world.scrape_all();
    let hold = |holder: &str| {
        let spec = json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 3600 } }).to_string();
        let lease = "lease/3274ac8a.kollect.dev";
        world.plane.kubectl(&["patch", "-n", &namespace, lease, "--type=merge", "-p", &spec]).unwrap();
    };
    hold("another");
    world.counts("kollect_leader", 0.0);
    let during = world.record(20, 1);
    hold("");
    world.counts("kollect_leader", 1.0);
    let after = world.record(5, 1);
    ("another holds the lease", Recording { before, during, after, minute: 1 }, &["KollectNoLeader"])
}

#[test]
fn every_alert_fires_once_and_resolves_once() {
    let situations =
        [a_sink_is_away, writes_are_slow, a_row_is_refused, a_right_is_taken_away, another_holds_the_lease];
    let recorded: Vec<Situation> = thread::scope(|scope| {
        let running: Vec<_> = situations.into_iter().map(|situation| scope.spawn(situation)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut fired = BTreeSet::new();
    for (situation, recording, expected) in &recorded {
        recording.fires(situation, expected);
        fired.extend(expected.iter().map(ToString::to_string));
    }
    let rules = rules();
    let alerts: BTreeSet<String> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(fired, alerts, "each alert has a situation");
}
