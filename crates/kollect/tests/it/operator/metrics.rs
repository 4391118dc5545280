//! `/metrics` of a running operator: metrics change with what they count.

mod tls;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::*;
use crate::exposition::Exposition;

/// Metrics without TLS and authorization, on a free port.
pub(super) const PLAIN: [&str; 4] =
    ["--metrics-bind-address", "127.0.0.1:0", "--metrics-secure=false", "--enable-http2"];

fn metrics_page() -> String {
    std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap()
}

/// Requests `/metrics`. Returns status and body.
fn get_metrics(mut stream: impl Read + Write, headers: &str) -> (String, String) {
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    // Some servers end a TLS connection without a close message.
    stream.read_to_string(&mut text).ok();
    let (head, body) = text.split_once("\r\n\r\n").expect(&text);
    let status = head.split(' ').nth(1).unwrap().to_owned();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    (status, body.to_owned())
}

impl OperatorTest {
    /// The address of the metrics server, from the last line of the log that names it.
    fn metrics_address(&self) -> SocketAddr {
        let mut found = None;
        eventually("an address", || {
            let log = std::fs::read_to_string(&self.operator.as_ref().unwrap().log).unwrap();
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let last = lines.rfind(|line| line["message"] == "metrics are served");
            found = last.and_then(|line| line["address"].as_str()?.parse().ok());
            found.map(|_| ()).ok_or(log)
        });
        found.unwrap()
    }

    pub(super) fn scrape(&self) -> Exposition {
        let (status, body) = get_metrics(TcpStream::connect(self.metrics_address()).unwrap(), "");
        assert_eq!(status, "200", "{body}");
        let exposition = Exposition::parse(&body);
        assert_eq!(exposition.undocumented(&metrics_page()), "");
        exposition
    }

    /// The value of a series; `None` if it is not exposed.
    pub(super) fn metric(&self, series: &str) -> Option<f64> {
        self.scrape().get(series)
    }

    pub(super) fn wait_for_metric(&self, series: &str, expected: f64) {
        eventually(&format!("{series} {expected}"), || {
            let found = self.metric(series);
            (found == Some(expected)).then_some(()).ok_or(format!("{found:?}"))
        });
    }

    fn binding_series(&self, name: &str, more: &str) -> String {
        format!(r#"{name}{{inventory="{}/all",sink="database/portal"{more}}}"#, self.namespace)
    }

    /// Requests a comparison of all sinks, and waits for its end.
    fn audit(&self, number: u32) {
        let annotation = format!("kollect.dev/requestedAt={number}");
        let inventory = "kollectinventory/all";
        self.plane
            .kubectl(&["annotate", "-n", &self.namespace, "--overwrite", inventory, &annotation])
            .unwrap();
        eventually("the audit", || {
            let handled = self.get("kollectinventory/all")["status"]["lastHandledRequestedAt"].clone();
            (handled == json!(number.to_string())).then_some(()).ok_or(handled.to_string())
        });
    }
}

const WRITES: &str = r#"kollect_export_duration_seconds_count{sink_type="postgres"}"#;
const BYTES: &str = r#"kollect_export_bytes_total{sink_type="postgres"}"#;

#[test]
fn metrics_change_with_what_they_count() {
    let mut test = OperatorTest::new("numbers");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&PLAIN);
    test.wait_for_rows(&["a=1"]);
    let held = test.binding_series("kollect_binding_rows", r#",state="held""#);
    test.wait_for_metric(&held, 1.0);
    test.wait_for_metric(r#"kollect_sink_connection_test_total{type="postgres",result="success"}"#, 1.0);
    let exposition = test.scrape();
    assert_eq!(exposition.missing(&metrics_page()), ["kollect_custom_resource_labeled_series_capped_total"]);
    let profile = format!(r#"profile="{}/maps",gvk="v1 ConfigMap""#, test.namespace);
    for (series, expected) in [
        ("kollect_leader", 1.0),
        ("kollect_discovery_healthy", 1.0),
        ("kollect_collect_items_total", 1.0),
        ("kollect_inventory_items_total", 1.0),
        (&format!("kollect_collected_objects{{{profile}}}"), 1.0),
        (&test.binding_series("kollect_binding_rows", r#",state="refused""#), 0.0),
        (&test.binding_series("kollect_binding_lag_seconds", ""), 0.0),
        (&test.binding_series("kollect_rows_written_total", ""), 1.0),
        (&test.binding_series("kollect_drift_repaired_total", ""), 0.0),
        (&format!(r#"kollect_watch_synced{{gvk="v1 ConfigMap",namespace="{}"}}"#, test.namespace), 1.0),
        (r#"kollect_sink_errors_total{reason="transient"}"#, 0.0),
        (r#"kollect_reconcile_total{result="failure"}"#, 0.0),
        (WRITES, 1.0),
        (BYTES, 13.0),
    ] {
        assert_eq!(exposition.get(series), Some(expected), "{series}");
    }
    assert!(exposition.get(r#"kollect_reconcile_total{result="success"}"#).unwrap() > 0.0);

    test.apply_config_map("b", "22");
    test.wait_for_metric(WRITES, 2.0);
    test.wait_for_metric(BYTES, 13.0 + 14.0);
    test.wait_for_metric("kollect_collect_items_total", 2.0);
    test.wait_for_metric(&test.binding_series("kollect_rows_written_total", ""), 2.0);
    test.wait_for_metric(&held, 2.0);

    // Nothing to repair: compared, and not written.
    test.audit(1);
    let exposition = test.scrape();
    assert_eq!((exposition.get(WRITES), exposition.get(BYTES)), (Some(2.0), Some(27.0)));
    let drift = test.binding_series("kollect_drift_repaired_total", "");
    assert_eq!(exposition.get(&drift), Some(0.0));
    test.postgres.psql(&format!("DELETE FROM {} WHERE name = 'a'", test.table())).unwrap();
    test.audit(2);
    test.wait_for_metric(&drift, 1.0);
    test.wait_for_metric(WRITES, 3.0);
    assert_eq!(test.metric(&held), Some(2.0));
    test.wait_for_rows(&["a=1", "b=22"]);

    test.plane.kubectl(&["delete", "-n", &test.namespace, "configmap/a"]).unwrap();
    test.wait_for_metric("kollect_collect_items_total", 1.0);
    test.wait_for_metric(&held, 1.0);
    assert_eq!(test.metric(BYTES), Some(27.0 + 13.0), "the repaired row counts, the removed one does not");
}

#[test]
fn a_database_that_is_down_is_shown_as_lag_and_errors() {
    let mut test = OperatorTest::new("lag");
    let mut postgres = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&postgres.dsn());
    test.start(&PLAIN);
    let lag = test.binding_series("kollect_binding_lag_seconds", "");
    test.wait_for_metric(&lag, 0.0);
    postgres.crash();
    test.apply_config_map("a", "2");
    eventually("lag", || {
        let exposition = test.scrape();
        let found = [
            exposition.get(&lag).unwrap(),
            exposition.get(r#"kollect_sink_errors_total{reason="transient"}"#).unwrap(),
            exposition
                .get(r#"kollect_reconcile_errors_total{kind="KollectInventory",error_class="transient"}"#)
                .unwrap(),
        ];
        (found[0] > 1.0 && found[1] > 0.0 && found[2] > 0.0).then_some(()).ok_or(format!("{found:?}"))
    });
    let failed = test.metric(WRITES).unwrap();
    assert!(failed <= 2.0, "a sink that cannot be reached is not written: {failed}");
    postgres.resume().unwrap();
    test.wait_for_metric(&lag, 0.0);
    let rows = format!("SELECT payload #>> '{{attributes,value}}' FROM {}", test.table());
    assert_eq!(postgres.psql(&rows).unwrap(), "2\n");
}

#[test]
fn kinds_that_cannot_be_watched_have_a_metric_with_the_reason() {
    let mut test = OperatorTest::new("blind");
    test.apply_kollect(
        "KollectProfile",
        "widgets",
        json!({
            "targetGVK": { "group": "missing.example", "version": "v1", "kind": "Widget" },
            "attributes": [{ "name": "n", "path": "$.metadata.name" }],
        }),
    );
    test.apply_kollect(
        "KollectTarget",
        "widgets",
        json!({ "profileRef": "widgets", "includedNamespaces": [test.namespace] }),
    );
    test.start(&PLAIN);
    let labels = r#"gvk="missing.example/v1 Widget""#;
    test.wait_for_metric(&format!(r#"kollect_coverage_blind{{{labels},reason="NotServed"}}"#), 1.0);
    test.wait_for_metric(&format!("kollect_watch_synced{{{labels}}}"), 0.0);
    // After a while it is certain that the kind does not exist.
    eventually("no widgets", || {
        let exposition = test.scrape();
        let found = (
            exposition.get(&format!("kollect_coverage_blind{{{labels}}}")),
            exposition.get(&format!("kollect_watch_synced{{{labels}}}")),
            exposition.get(r#"kollect_watch_restarts_total{reason="NotServed"}"#),
        );
        (found == (None, Some(1.0), Some(1.0))).then_some(()).ok_or(format!("{found:?}"))
    });
}

impl OperatorTest {
    /// Gives the service account `watcher` its rights, the first of which is to list ConfigMaps of the namespace.
    fn grant_watcher(&self) -> std::path::PathBuf {
        let namespace = &self.namespace;
        let all = |group, kinds| Grant::in_namespace(namespace, group, kinds, &["*"]);
        let rules = [
            all("", &["configmaps"]),
            all("kollect.dev", &["*"]),
            all("", &["secrets", "events"]),
            Grant::cluster("", &["namespaces"], &["get", "list", "watch"]),
        ];
        self.plane.user(namespace, "watcher", &rules).unwrap()
    }

    /// Lets the operator run as the service account `watcher`, behind a proxy.
    pub(super) fn run_as_watcher(&mut self) -> Proxy {
        let kubeconfig = self.grant_watcher();
        let proxy = Proxy::start(self.plane).unwrap();
        self.kubeconfig = Some(proxy.kubeconfig(&kubeconfig).unwrap());
        proxy
    }
}

#[test]
fn a_revoked_right_is_reported_and_removes_no_rows() {
    let mut test = OperatorTest::new("revoked");
    test.apply_config_map("a", "1");
    test.install();
    let namespace = test.namespace.clone();
    let proxy = test.run_as_watcher();
    test.start(&PLAIN);
    test.wait_for_rows(&["a=1"]);
    let labels = format!(r#"gvk="v1 ConfigMap",namespace="{namespace}""#);
    let blind = format!(r#"kollect_coverage_blind{{{labels},reason="Forbidden"}}"#);
    let synced = format!("kollect_watch_synced{{{labels}}}");
    test.wait_for_metric(&synced, 1.0);
    assert_eq!(test.metric(&blind), None);

    // The API server does not end a watch when a right is revoked; here a lost connection shows it.
    let role = format!("{namespace}-watcher-0");
    test.plane.kubectl(&["delete", "rolebinding", "-n", &namespace, &role]).unwrap();
    let account = format!("--as=system:serviceaccount:{namespace}:watcher");
    eventually("the right is gone", || {
        let answer = test.plane.kubectl(&["auth", "can-i", "list", "configmaps", "-n", &namespace, &account]);
        answer.is_err().then_some(()).ok_or(format!("{answer:?}"))
    });
    proxy.cut();
    test.wait_for_metric(&blind, 1.0);
    test.wait_for_metric(&synced, 0.0);
    test.wait_for_condition("kollecttarget/maps", "Blind", "True ScopeForbidden");
    test.apply_config_map("b", "2");
    test.plane.kubectl(&["delete", "configmap", "-n", &namespace, "a"]).unwrap();
    test.audit(1);
    assert_eq!(test.rows(), ["a=1"], "what the operator may not see is neither written nor removed");
    // A new process has never seen the objects: the same result. It serves on another port, which its log says.
    test.stop();
    std::fs::remove_file(test.dir.path().join("operator.log")).unwrap();
    test.start(&PLAIN);
    test.wait_for_metric(&blind, 1.0);
    test.audit(2);
    assert_eq!(test.rows(), ["a=1"]);

    test.grant_watcher();
    test.wait_for_rows(&["b=2"]);
    test.wait_for_metric(&synced, 1.0);
    assert_eq!(test.metric(&blind), None);
}

#[test]
fn of_two_replicas_one_leads_and_both_count_rows() {
    let mut first = OperatorTest::new("replicas");
    first.apply_config_map("a", "1");
    first.install();
    let namespace = first.namespace.clone();
    let args = [&PLAIN[..], &["--leader-elect", "--leader-election-namespace", &namespace]].concat();
    first.start(&args);
    first.wait_for_metric("kollect_leader", 1.0);
    let mut second = OperatorTest {
        plane: first.plane,
        postgres: first.postgres,
        namespace: namespace.clone(),
        watched: namespace.clone(),
        kubeconfig: None,
        environment: Vec::new(),
        operator: None,
        dir: tempfile::tempdir().unwrap(),
    };
    second.start(&args);
    second.wait_for_metric("kollect_collect_items_total", 1.0);
    assert_eq!(second.metric("kollect_leader"), Some(0.0));
    let lag = first.binding_series("kollect_binding_lag_seconds", "");
    first.wait_for_metric(&lag, 0.0);
    assert_eq!(second.metric(&lag), None, "a replica that does not write is not late");
    first.stop();
    second.wait_for_metric("kollect_leader", 1.0);
    second.wait_for_metric(&lag, 0.0);
}

#[test]
fn profiles_get_their_series_and_no_more_than_200_combinations() {
    let mut test = OperatorTest::new("series");
    test.apply_kollect(
        "KollectProfile",
        "maps",
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [
                { "name": "size", "path": "$.data.size" },
                { "name": "app/team", "path": "$.data.team" },
            ],
            "metrics": [
                { "name": "bytes", "path": "size" },
                { "name": "by_team", "path": "size", "labels": ["app/team"] },
            ],
        }),
    );
    test.apply_kollect(
        "KollectTarget",
        "maps",
        json!({
            "profileRef": "maps", "includedNamespaces": [test.namespace],
            "labelSelector": { "matchLabels": { "app": "shop" } },
        }),
    );
    let maps: Vec<Value> = (0..203)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("m{number}"), "namespace": test.namespace, "labels": { "app": "shop" } },
                "data": { "size": "2", "team": format!("{number:03}") },
            })
        })
        .collect();
    test.plane.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": maps }).to_string()).unwrap();
    test.start(&[&PLAIN[..], &["--collect-metrics-sample-interval", "100ms"]].concat());
    let series = |name: &str, series: &str, more: &str| {
        let profile = format!("{}/maps", test.namespace);
        format!(
            r#"kollect_custom_resource_{name}{{profile="{profile}",gvk="v1 ConfigMap",series="{series}"{more}}}"#
        )
    };
    test.wait_for_metric(&series("series", "object_count", ""), 203.0);
    test.wait_for_metric(&series("series", "bytes", ""), 406.0);
    test.wait_for_metric(&series("labeled_series_capped_total", "by_team", ""), 3.0);
    let exposition = test.scrape();
    assert_eq!(exposition.get(&series("series", "by_team", "")), Some(406.0));
    let labeled = exposition.samples.iter().filter(|sample| sample.family.ends_with("_labeled_series"));
    assert_eq!(labeled.count(), 200);
    assert_eq!(exposition.get(&series("labeled_series", "by_team", r#",app_team="199""#)), Some(2.0));
    assert_eq!(exposition.get(&series("labeled_series", "by_team", r#",app_team="200""#)), None);
    test.plane.kubectl(&["delete", "-n", &test.namespace, "configmap/m0"]).unwrap();
    test.wait_for_metric(&series("series", "object_count", ""), 202.0);
    test.wait_for_metric(&series("labeled_series", "by_team", r#",app_team="200""#), 2.0);
}

#[test]
fn alerts_use_documented_metrics() {
    let rules = std::fs::read_to_string(root().join("charts/kollect/files/alerts.yaml")).unwrap();
    let page = metrics_page();
    let current = page.split("## Retired").next().unwrap();
    let mut count = 0;
    for line in rules.lines().filter(|line| line.trim_start().starts_with("expr:")) {
        let words = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for name in words.filter(|name| name.starts_with("kollect_")) {
            count += 1;
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(current.contains(&format!("| `{name}` |")), "{line}");
        }
    }
    assert_eq!(count, 9, "one for each alert");
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(page.contains(&format!("| `{alert}` |")), "{alert}");
    }
}
