//! `/metrics` of a running operator: numbers move with what they count.

mod guarded;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::*;
use crate::exposition::Exposition;

/// Metrics without TLS and authorization, on a free port.
pub(super) const PLAIN: [&str; 4] =
    ["--metrics-bind-address", "127.0.0.1:0", "--metrics-secure=false", "--enable-http2"];

fn page() -> String {
    std::fs::read_to_string(root().join("docs/metrics.md")).unwrap()
}

/// Status and body of an answer.
fn ask(mut stream: impl Read + Write, headers: &str) -> (String, String) {
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    // Some servers end a TLS connection without saying so.
    stream.read_to_string(&mut text).ok();
    let (head, body) = text.split_once("\r\n\r\n").expect(&text);
    let status = head.split(' ').nth(1).unwrap().to_owned();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    (status, body.to_owned())
}

impl World {
    /// Where the operator said last that it serves metrics.
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
        let (status, body) = ask(TcpStream::connect(self.metrics_address()).unwrap(), "");
        assert_eq!(status, "200", "{body}");
        let told = Exposition::parse(&body);
        assert_eq!(told.undocumented(&page()), "");
        told
    }

    /// The value of a series; `None` if it is not exposed.
    pub(super) fn number(&self, series: &str) -> Option<f64> {
        self.scrape().get(series)
    }

    pub(super) fn counts(&self, series: &str, expected: f64) {
        eventually(&format!("{series} {expected}"), || {
            let found = self.number(series);
            (found == Some(expected)).then_some(()).ok_or(format!("{found:?}"))
        });
    }

    fn binding(&self, name: &str, more: &str) -> String {
        format!(r#"{name}{{inventory="{}/all",sink="database/portal"{more}}}"#, self.namespace)
    }

    /// Has the sinks compared, and waits until they have been.
    fn audit(&self, number: u32) {
        let at = format!("kollect.dev/requestedAt={number}");
        let inventory = "kollectinventory/all";
        self.plane.kubectl(&["annotate", "-n", &self.namespace, "--overwrite", inventory, &at]).unwrap();
        eventually("the audit", || {
            let handled = self.get("kollectinventory/all")["status"]["lastHandledRequestedAt"].clone();
            (handled == json!(number.to_string())).then_some(()).ok_or(handled.to_string())
        });
    }
}

const WRITES: &str = r#"kollect_export_duration_seconds_count{sink_type="postgres"}"#;
const BYTES: &str = r#"kollect_export_bytes_total{sink_type="postgres"}"#;

#[test]
fn numbers_move_with_what_they_count() {
    let mut world = World::new("numbers");
    world.map("a", "1");
    world.install();
    world.start(&PLAIN);
    world.holds(&["a=1"]);
    let held = world.binding("kollect_binding_rows", r#",state="held""#);
    world.counts(&held, 1.0);
    world.counts(r#"kollect_sink_connection_test_total{type="postgres",result="success"}"#, 1.0);
    let told = world.scrape();
    assert_eq!(told.untold(&page()), ["kollect_custom_resource_labeled_series_capped_total"]);
    let profile = format!(r#"profile="{}/maps",gvk="v1 ConfigMap""#, world.namespace);
    for (series, expected) in [
        ("kollect_leader", 1.0),
        ("kollect_discovery_healthy", 1.0),
        ("kollect_collect_items_total", 1.0),
        ("kollect_inventory_items_total", 1.0),
        (&format!("kollect_collected_objects{{{profile}}}"), 1.0),
        (&world.binding("kollect_binding_rows", r#",state="refused""#), 0.0),
        (&world.binding("kollect_binding_lag_seconds", ""), 0.0),
        (&world.binding("kollect_rows_written_total", ""), 1.0),
        (&world.binding("kollect_drift_repaired_total", ""), 0.0),
        (&format!(r#"kollect_watch_synced{{gvk="v1 ConfigMap",namespace="{}"}}"#, world.namespace), 1.0),
        (r#"kollect_sink_errors_total{reason="transient"}"#, 0.0),
        (r#"kollect_reconcile_total{result="failure"}"#, 0.0),
        (WRITES, 1.0),
        (BYTES, 13.0),
    ] {
        assert_eq!(told.get(series), Some(expected), "{series}");
    }
    assert!(told.get(r#"kollect_reconcile_total{result="success"}"#).unwrap() > 0.0);

    world.map("b", "22");
    world.counts(WRITES, 2.0);
    world.counts(BYTES, 13.0 + 14.0);
    world.counts("kollect_collect_items_total", 2.0);
    world.counts(&world.binding("kollect_rows_written_total", ""), 2.0);
    world.counts(&held, 2.0);

    // Nothing to repair: compared, and not written.
    world.audit(1);
    let told = world.scrape();
    assert_eq!((told.get(WRITES), told.get(BYTES)), (Some(2.0), Some(27.0)));
    let drift = world.binding("kollect_drift_repaired_total", "");
    assert_eq!(told.get(&drift), Some(0.0));
    world.postgres.psql(&format!("DELETE FROM {} WHERE name = 'a'", world.table())).unwrap();
    world.audit(2);
    world.counts(&drift, 1.0);
    world.counts(WRITES, 3.0);
    assert_eq!(world.number(&held), Some(2.0));
    world.holds(&["a=1", "b=22"]);

    world.plane.kubectl(&["delete", "-n", &world.namespace, "configmap/a"]).unwrap();
    world.counts("kollect_collect_items_total", 1.0);
    world.counts(&held, 1.0);
    assert_eq!(world.number(BYTES), Some(27.0 + 13.0), "the repaired row counts, the removed one does not");
}

#[test]
fn a_database_that_is_down_shows_as_lag_and_errors() {
    let mut world = World::new("lag");
    let mut postgres = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&postgres.dsn());
    world.start(&PLAIN);
    let lag = world.binding("kollect_binding_lag_seconds", "");
    world.counts(&lag, 0.0);
    postgres.crash();
    world.map("a", "2");
    eventually("lag", || {
        let told = world.scrape();
        let found = [
            told.get(&lag).unwrap(),
            told.get(r#"kollect_sink_errors_total{reason="transient"}"#).unwrap(),
            told.get(r#"kollect_reconcile_errors_total{kind="KollectInventory",error_class="transient"}"#)
                .unwrap(),
        ];
        (found[0] > 1.0 && found[1] > 0.0 && found[2] > 0.0).then_some(()).ok_or(format!("{found:?}"))
    });
    let failed = world.number(WRITES).unwrap();
    assert!(failed <= 2.0, "a sink that cannot be reached is not written: {failed}");
    postgres.resume().unwrap();
    world.counts(&lag, 0.0);
    let rows = format!("SELECT payload #>> '{{attributes,value}}' FROM {}", world.table());
    assert_eq!(postgres.psql(&rows).unwrap(), "2\n");
}

#[test]
fn places_that_cannot_be_seen_are_told_with_the_reason() {
    let mut world = World::new("blind");
    world.kollect(
        "KollectProfile",
        "widgets",
        json!({
            "targetGVK": { "group": "nobody.example", "version": "v1", "kind": "Widget" },
            "attributes": [{ "name": "n", "path": "$.metadata.name" }],
        }),
    );
    world.kollect(
        "KollectTarget",
        "widgets",
        json!({ "profileRef": "widgets", "includedNamespaces": [world.namespace] }),
    );
    world.start(&PLAIN);
    let place = r#"gvk="nobody.example/v1 Widget""#;
    world.counts(&format!(r#"kollect_coverage_blind{{{place},reason="NotServed"}}"#), 1.0);
    world.counts(&format!("kollect_watch_synced{{{place}}}"), 0.0);
    // After a while it is certain that the kind does not exist.
    eventually("no widgets", || {
        let told = world.scrape();
        let found = (
            told.get(&format!("kollect_coverage_blind{{{place}}}")),
            told.get(&format!("kollect_watch_synced{{{place}}}")),
            told.get(r#"kollect_watch_restarts_total{reason="NotServed"}"#),
        );
        (found == (None, Some(1.0), Some(1.0))).then_some(()).ok_or(format!("{found:?}"))
    });
}

impl World {
    /// Gives the service account `watcher` its rights, the first of which is to list ConfigMaps of the namespace.
    fn grant_watcher(&self) -> std::path::PathBuf {
        let namespace = &self.namespace;
        let all = |group, kinds| Rule::in_namespace(namespace, group, kinds, &["*"]);
        let rules = [
            all("", &["configmaps"]),
            all("kollect.dev", &["*"]),
            all("", &["secrets", "events"]),
            Rule::cluster("", &["namespaces"], &["get", "list", "watch"]),
        ];
        self.plane.user(namespace, "watcher", &rules).unwrap()
    }

    /// Lets the operator run as the service account `watcher`, behind a proxy.
    pub(super) fn operate_as_watcher(&mut self) -> Proxy {
        let kubeconfig = self.grant_watcher();
        let proxy = Proxy::start(self.plane).unwrap();
        self.kubeconfig = Some(proxy.kubeconfig(&kubeconfig).unwrap());
        proxy
    }
}

#[test]
fn law_9_a_right_that_is_taken_away_shows_and_empties_no_sink() {
    let mut world = World::new("revoked");
    world.map("a", "1");
    world.install();
    let namespace = world.namespace.clone();
    let proxy = world.operate_as_watcher();
    world.start(&PLAIN);
    world.holds(&["a=1"]);
    let place = format!(r#"gvk="v1 ConfigMap",namespace="{namespace}""#);
    let blind = format!(r#"kollect_coverage_blind{{{place},reason="Forbidden"}}"#);
    let synced = format!("kollect_watch_synced{{{place}}}");
    world.counts(&synced, 1.0);
    assert_eq!(world.number(&blind), None);

    // The API server does not end a watch when a right is revoked; here a lost connection shows it.
    let role = format!("{namespace}-watcher-0");
    world.plane.kubectl(&["delete", "rolebinding", "-n", &namespace, &role]).unwrap();
    let account = format!("--as=system:serviceaccount:{namespace}:watcher");
    eventually("the right is gone", || {
        let asked = world.plane.kubectl(&["auth", "can-i", "list", "configmaps", "-n", &namespace, &account]);
        asked.is_err().then_some(()).ok_or(format!("{asked:?}"))
    });
    proxy.cut();
    world.counts(&blind, 1.0);
    world.counts(&synced, 0.0);
    world.becomes("kollecttarget/maps", "Blind", "True ScopeForbidden");
    world.map("b", "2");
    world.plane.kubectl(&["delete", "configmap", "-n", &namespace, "a"]).unwrap();
    world.audit(1);
    assert_eq!(world.rows(), ["a=1"], "what the operator may not see is neither written nor removed");
    // A new process has never seen the objects: the same result. It serves on another port, which its log says.
    world.stop();
    std::fs::remove_file(world.dir.path().join("operator.log")).unwrap();
    world.start(&PLAIN);
    world.counts(&blind, 1.0);
    world.audit(2);
    assert_eq!(world.rows(), ["a=1"]);

    world.grant_watcher();
    world.holds(&["b=2"]);
    world.counts(&synced, 1.0);
    assert_eq!(world.number(&blind), None);
}

#[test]
fn of_two_replicas_one_leads_and_both_count_rows() {
    let mut first = World::new("replicas");
    first.map("a", "1");
    first.install();
    let namespace = first.namespace.clone();
    let args = [&PLAIN[..], &["--leader-elect", "--leader-election-namespace", &namespace]].concat();
    first.start(&args);
    first.counts("kollect_leader", 1.0);
    let mut second = World {
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
    second.counts("kollect_collect_items_total", 1.0);
    assert_eq!(second.number("kollect_leader"), Some(0.0));
    let lag = first.binding("kollect_binding_lag_seconds", "");
    first.counts(&lag, 0.0);
    assert_eq!(second.number(&lag), None, "a replica that does not write is not late");
    first.stop();
    second.counts("kollect_leader", 1.0);
    second.counts(&lag, 0.0);
}

#[test]
fn profiles_get_their_series_and_no_more_than_200_combinations() {
    let mut world = World::new("series");
    world.kollect(
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
    world.kollect(
        "KollectTarget",
        "maps",
        json!({
            "profileRef": "maps", "includedNamespaces": [world.namespace],
            "labelSelector": { "matchLabels": { "app": "shop" } },
        }),
    );
    let maps: Vec<Value> = (0..203)
        .map(|n| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("m{n}"), "namespace": world.namespace, "labels": { "app": "shop" } },
                "data": { "size": "2", "team": format!("{n:03}") },
            })
        })
        .collect();
    world.plane.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": maps }).to_string()).unwrap();
    world.start(&[&PLAIN[..], &["--collect-metrics-sample-interval", "100ms"]].concat());
    let series = |name: &str, series: &str, more: &str| {
        let profile = format!("{}/maps", world.namespace);
        format!(
            r#"kollect_custom_resource_{name}{{profile="{profile}",gvk="v1 ConfigMap",series="{series}"{more}}}"#
        )
    };
    world.counts(&series("series", "object_count", ""), 203.0);
    world.counts(&series("series", "bytes", ""), 406.0);
    world.counts(&series("labeled_series_capped_total", "by_team", ""), 3.0);
    let told = world.scrape();
    assert_eq!(told.get(&series("series", "by_team", "")), Some(406.0));
    let labeled = told.samples.iter().filter(|sample| sample.family.ends_with("_labeled_series"));
    assert_eq!(labeled.count(), 200);
    assert_eq!(told.get(&series("labeled_series", "by_team", r#",app_team="199""#)), Some(2.0));
    assert_eq!(told.get(&series("labeled_series", "by_team", r#",app_team="200""#)), None);
    world.plane.kubectl(&["delete", "-n", &world.namespace, "configmap/m0"]).unwrap();
    world.counts(&series("series", "object_count", ""), 202.0);
    world.counts(&series("labeled_series", "by_team", r#",app_team="200""#), 2.0);
}

#[test]
fn alerts_ask_for_numbers_that_are_told() {
    let rules = std::fs::read_to_string(root().join("config/prometheus/rules.yaml")).unwrap();
    let page = page();
    let told = page.split("## Retired").next().unwrap();
    let mut count = 0;
    for line in rules.lines().filter(|line| line.trim_start().starts_with("expr:")) {
        let name = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in name.filter(|name| name.starts_with("kollect_")) {
            count += 1;
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(told.contains(&format!("| `{name}` |")), "{line}");
        }
    }
    assert_eq!(count, 9, "one for each alert");
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(page.contains(&format!("| `{alert}` |")), "{alert}");
    }
}
