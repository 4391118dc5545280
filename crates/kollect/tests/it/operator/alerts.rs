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

use super::{OperatorTest, metrics::PLAIN};
use crate::program::{eventually, root};

/// The value of each series, by its name with labels.
type Scrape = BTreeMap<String, f64>;

/// What was recorded before a problem, during it, and after it was corrected.
struct Recording {
    before: Scrape,
    during: Vec<Scrape>,
    after: Vec<Scrape>,
    /// Seconds that are a minute of the replay.
    minute: u32,
}

/// Minutes of the replay before the problem, and after the last scrape.
const QUIET_MINUTES: [usize; 2] = [10, 60];

impl OperatorTest {
    fn scrape_all(&self) -> Scrape {
        let exposition = self.scrape();
        let series = |sample: &crate::exposition::Sample| {
            let labels: Vec<String> =
                sample.labels.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
            (format!("{}{{{}}}", sample.name, labels.join(",")), sample.value)
        };
        exposition.samples.iter().map(series).collect()
    }

    /// Scrapes once for each of so many minutes of the replay; `minute` is its length in seconds.
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
        let quiet_before = std::iter::repeat_n(&self.before, QUIET_MINUTES[0]);
        let quiet_after = std::iter::repeat_n(last, QUIET_MINUTES[1]);
        quiet_before.chain(&self.during).chain(&self.after).chain(quiet_after).collect()
    }

    /// The input of a test of rules: each series with its value in each minute.
    fn series(&self) -> Vec<Value> {
        let minutes = self.minutes();
        let names: BTreeSet<&String> = minutes.iter().flat_map(|scrape| scrape.keys()).collect();
        let time_factor = 60.0 / f64::from(self.minute);
        let line = |name: &&String| {
            let factor = if name.starts_with("kollect_binding_lag_seconds") { time_factor } else { 1.0 };
            let mut values = String::new();
            let mut was_there = false;
            for scrape in &minutes {
                match scrape.get(*name) {
                    Some(value) => write!(values, "{} ", value * factor).unwrap(),
                    // Prometheus marks a series that has ended.
                    None => values.push_str(if was_there { "stale " } else { "_ " }),
                }
                was_there = scrape.contains_key(*name);
            }
            json!({ "series": name, "values": values.trim() })
        };
        names.iter().map(line).collect()
    }

    /// Fails unless exactly these alerts fire, once, and only during the problem.
    fn assert_fires(&self, situation: &str, expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), rules()).unwrap();
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
                    { "expr": firing, "eval_time": format!("{}m", QUIET_MINUTES[0] - 1), "exp_samples": [] },
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
    fs::read_to_string(root().join("charts/kollect/files/alerts.yaml")).unwrap()
}

/// A situation, what was recorded in it, and the alerts that must fire.
type Situation = (&'static str, Recording, &'static [&'static str]);

fn a_sink_is_unreachable() -> Situation {
    let mut test = OperatorTest::new("alert-away");
    let mut server = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&server.dsn());
    test.start(&PLAIN);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectdatabasesink/portal", "Ready", "True ConnectionOK");
    let before = test.scrape_all();
    server.crash();
    test.apply_config_map("b", "1");
    // Pauses between attempts are not shortened as the replay is: without requests they would be hours there.
    let request = |number: u32| {
        for object in ["kollectdatabasesink/portal", "kollectinventory/all"] {
            test.annotate(object, &format!("kollect.dev/requestedAt={number}"));
        }
    };
    let during = thread::scope(|spawner| {
        spawner.spawn(|| {
            for number in 0..6 {
                request(number);
                sleep(Duration::from_secs(6));
            }
        });
        test.record(40, 1)
    });
    server.resume().unwrap();
    request(6);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectdatabasesink/portal", "Ready", "True ConnectionOK");
    let recording = Recording { before, during, after: test.record(5, 1), minute: 1 };
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
    let mut test = OperatorTest::new("alert-slow");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&PLAIN);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let before = test.scrape_all();
    let table = test.table();
    let slow = format!(
        "CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS
             $$BEGIN PERFORM pg_sleep(6); RETURN NULL; END$$;
         CREATE TRIGGER slow AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {table}_slow()"
    );
    test.postgres.psql(&slow).unwrap();
    let during = thread::scope(|spawner| {
        spawner.spawn(|| {
            for number in 0..50 {
                test.apply_config_map("a", &format!("changed-{number}"));
                sleep(Duration::from_secs(1));
            }
        });
        test.record(30, 2)
    });
    test.postgres.psql(&format!("DROP TRIGGER slow ON {table}")).unwrap();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let after = test.record(5, 2);
    ("writes are slow", Recording { before, during, after, minute: 2 }, &["KollectExportLatencyHigh"])
}

fn a_row_is_refused() -> Situation {
    let mut test = OperatorTest::new("alert-refused");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&PLAIN);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let before = test.scrape_all();
    test.apply_config_map("nul", "before\0after");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False RowsRefused");
    let during = test.record(30, 1);
    test.apply_config_map("nul", "2");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let after = test.record(5, 1);
    ("a row is refused", Recording { before, during, after, minute: 1 }, &["KollectRowsRefused"])
}

fn a_right_is_revoked() -> Situation {
    let mut test = OperatorTest::new("alert-blind");
    test.apply_config_map("a", "1");
    test.install();
    let namespace = test.namespace.clone();
    let proxy = test.run_as_watcher();
    test.start(&PLAIN);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let before = test.scrape_all();
    let role = format!("{namespace}-watcher-0");
    let get = ["get", "rolebinding", "-n", &namespace, &role, "-o", "json"];
    let mut binding: Value = serde_json::from_str(&test.plane.kubectl(&get).unwrap()).unwrap();
    test.plane.kubectl(&["delete", "rolebinding", "-n", &namespace, &role]).unwrap();
    let account = format!("--as=system:serviceaccount:{namespace}:watcher");
    let is_allowed =
        || test.plane.kubectl(&["auth", "can-i", "list", "configmaps", "-n", &namespace, &account]).is_ok();
    eventually("the right is gone", || (!is_allowed()).then_some(()).ok_or(String::new()));
    proxy.cut();
    test.wait_for_condition("kollecttarget/maps", "Blind", "True ScopeForbidden");
    let during = test.record(30, 1);
    binding["metadata"] = json!({ "name": role, "namespace": namespace });
    test.plane.apply(&binding.to_string()).unwrap();
    eventually("the right is back", || is_allowed().then_some(()).ok_or(String::new()));
    test.annotate("kollecttarget/maps", "kollect.dev/requestedAt=1");
    test.wait_for_condition("kollecttarget/maps", "Blind", "");
    let after = test.record(5, 1);
    ("a right is taken away", Recording { before, during, after, minute: 1 }, &["KollectBlind"])
}

fn another_process_holds_the_lease() -> Situation {
    let mut test = OperatorTest::new("alert-lease");
    let namespace = test.namespace.clone();
    test.apply_config_map("a", "1");
    test.install();
    let elect = ["--leader-elect", "--leader-election-namespace", &namespace];
    test.start(&[&PLAIN[..], &elect].concat());
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let before = test.scrape_all();
    let hold = |holder: &str| {
        let spec = json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 3600 } }).to_string();
        let lease = "lease/3274ac8a.kollect.dev";
        test.plane.kubectl(&["patch", "-n", &namespace, lease, "--type=merge", "-p", &spec]).unwrap();
    };
    hold("another");
    test.wait_for_metric("kollect_leader", 0.0);
    let during = test.record(20, 1);
    hold("");
    test.wait_for_metric("kollect_leader", 1.0);
    let after = test.record(5, 1);
    ("another holds the lease", Recording { before, during, after, minute: 1 }, &["KollectNoLeader"])
}

#[test]
fn every_alert_fires_once_and_resolves_once() {
    let situations = [
        a_sink_is_unreachable,
        writes_are_slow,
        a_row_is_refused,
        a_right_is_revoked,
        another_process_holds_the_lease,
    ];
    let recorded: Vec<Situation> = thread::scope(|spawner| {
        let running: Vec<_> = situations.into_iter().map(|situation| spawner.spawn(situation)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut fired = BTreeSet::new();
    for (situation, recording, expected) in &recorded {
        recording.assert_fires(situation, expected);
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
