//! Conditions that no other test covers: each with its reason, as docs/reference/conditions.md lists them.

use std::net::TcpListener;

use kollect_testbed::{Grant, Nats};

use super::*;

#[test]
fn specs_that_are_invalid_or_denied_are_reported_with_a_reason() {
    let mut test = OperatorTest::new("denied");
    test.apply_config_map("a", "1");
    test.install();
    let gvk = json!({ "version": "v1", "kind": "ConfigMap" });
    let wrong = json!({ "targetGVK": gvk, "attributes": [{ "name": "x", "path": "cel:object." }] });
    test.apply_kollect("KollectProfile", "broken", wrong);
    let namespace = test.namespace.clone();
    let apply_target = |name: &str, profile: &str, more: Value| {
        let mut spec = json!({ "profileRef": profile, "includedNamespaces": [namespace] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        test.apply_kollect("KollectTarget", name, spec);
    };
    apply_target("broken", "broken", json!({}));
    apply_target("rule", "maps", json!({ "resourceRules": [{ "gvk": gvk, "matchPolicy": "object." }] }));
    apply_target("resting", "maps", json!({ "suspend": true }));
    apply_target("wide", "maps", json!({ "includedNamespaces": [namespace, "elsewhere"] }));
    let service = json!({ "gvk": { "version": "v1", "kind": "Service" } });
    apply_target("two-kinds", "maps", json!({ "resourceRules": [{ "gvk": gvk }, service] }));
    let files = json!({ "type": "filesystem", "filesystem": { "path": "x" } });
    test.apply_kollect("KollectSnapshotSink", "files", files);
    test.apply_kollect("KollectInventory", "nowhere", json!({ "targetRefs": ["maps", "missing"] }));
    test.apply_kollect("KollectInventory", "files", json!({ "snapshotSinkRefs": ["files"] }));
    test.apply_kollect(
        "KollectConnectionTest",
        "files",
        json!({ "sinkRef": { "snapshotSinkRef": "files" }, "ttlSecondsAfterFinished": 3600 }),
    );
    test.apply_kollect(
        "KollectConnectionTest",
        "missing",
        json!({ "sinkRef": { "snapshotSinkRef": "missing" }, "ttlSecondsAfterFinished": 3600 }),
    );
    test.start(&[]);
    test.wait_for_condition("kollectprofile/broken", "Degraded", "True InvalidSpec");
    test.wait_for_condition("kollectprofile/broken", "Stalled", "True InvalidSpec");
    test.wait_for_condition("kollecttarget/broken", "Degraded", "True ProfileInvalid");
    test.wait_for_condition("kollecttarget/rule", "Degraded", "True InvalidSpec");
    test.wait_for_condition("kollecttarget/resting", "Degraded", "True Suspended");
    test.wait_for_condition("kollectsnapshotsink/files", "ConnectionVerified", "False InvalidSpec");
    test.wait_for_condition("kollectsnapshotsink/files", "Degraded", "True InvalidSpec");
    test.wait_for_condition("kollectinventory/files", "Degraded", "True InvalidSpec");
    test.wait_for_condition("kollectinventory/files", "SinkReachable", "False InvalidSpec");
    test.wait_for_condition("kollectinventory/nowhere", "Ready", "True NoExport");
    test.wait_for_condition("kollectinventory/nowhere", "Synced", "True NoExport");
    test.wait_for_condition("kollectinventory/nowhere", "SinkReachable", "True NoSinksConfigured");
    test.wait_for_condition("kollectinventory/nowhere", "TargetsMissing", "True TargetNotFound");
    test.wait_for_condition("kollectconnectiontest/files", "ConnectionVerified", "False InvalidSpec");
    test.wait_for_condition("kollectconnectiontest/missing", "ConnectionVerified", "False SinkNotFound");
    test.wait_for_condition("kollectconnectiontest/missing", "Ready", "False SinkNotFound");

    // A scope that is created later takes effect without a change of anything else.
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let scope = json!({
        "allowedNamespaces": [namespace], "allowedGVKs": [gvk], "databaseSinkRefs": ["another"],
    });
    test.apply_kollect("KollectScope", "narrow", scope);
    test.wait_for_condition("kollectinventory/all", "Degraded", "True ScopeSinkDenied");
    test.wait_for_sink_condition(
        ("kollectinventory/all", "database/portal"),
        "Synced",
        "False ScopeSinkDenied",
    );
    test.wait_for_condition("kollecttarget/wide", "ScopeClipped", "True ScopeNamespaceDenied");
    test.wait_for_condition("kollecttarget/wide", "Ready", "True Collecting");
    test.wait_for_condition("kollecttarget/two-kinds", "ScopeClipped", "True ScopeGVKDenied");
}

/// The kubeconfig of an operator that may collect these resources.
fn operator_user(test: &OperatorTest, collected: &[&str]) -> PathBuf {
    let read = ["get", "list", "watch"];
    let rules = [
        Grant::cluster("kollect.dev", &["*"], &["*"]),
        Grant::cluster("", &[&["namespaces", "secrets"], collected].concat(), &read),
        Grant::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &read),
        Grant::cluster("", &["events"], &["create"]),
    ];
    test.plane.user(&test.namespace, "operator", &rules).unwrap()
}

#[test]
fn kinds_that_cannot_be_listed_are_reported_with_what_to_grant() {
    let mut test = OperatorTest::new("unseen");
    test.apply_config_map("a", "1");
    test.install();
    let namespace = test.namespace.clone();
    let kind = |group: &str, kind: &str| json!({ "gvk": { "group": group, "version": "v1", "kind": kind } });
    let apply_target = |name: &str, rules: Value| {
        let spec = json!({ "profileRef": "maps", "includedNamespaces": [namespace], "resourceRules": rules });
        test.apply_kollect("KollectTarget", name, spec);
    };
    // Widgets are not served, and services may not be listed.
    let widgets = || kind("missing.example", "Widget");
    apply_target("widgets", json!([widgets()]));
    apply_target("some-widgets", json!([widgets(), kind("", "ConfigMap")]));
    apply_target("services", json!([kind("", "Service")]));
    apply_target("some-services", json!([kind("", "Service"), kind("", "ConfigMap")]));
    test.apply_kollect("KollectInventory", "widgets", json!({ "targetRefs": ["widgets"] }));
    let proxy = Proxy::start(test.plane).unwrap();
    test.kubeconfig = Some(proxy.kubeconfig(&operator_user(&test, &["configmaps"])).unwrap());
    // The lists of ConfigMaps are requested, and no answer comes.
    let path = format!("GET /api/v1/namespaces/{namespace}/configmaps");
    proxy.ignore(1, move |line| line.starts_with(&path));
    test.start(&[]);
    test.wait_for_condition("kollecttarget/widgets", "Degraded", "True InformerRegistrationFailed");
    test.wait_for_condition("kollecttarget/widgets", "Blind", "True NotSeen");
    test.wait_for_condition("kollectinventory/widgets", "Blind", "True NotSeen");
    test.wait_for_condition("kollecttarget/maps", "Reconciling", "True Listing");
    test.wait_for_condition("kollectinventory/all", "Reconciling", "True Listing");
    test.wait_for_condition("kollectinventory/all", "Synced", "False Listing");
    test.wait_for_condition("kollectinventory/all", "SinkReachable", "Unknown NotAttempted");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False Listing");
    proxy.cut();
    test.wait_for_condition("kollecttarget/some-widgets", "Synced", "False NotSeen");
    test.wait_for_condition("kollecttarget/maps", "Synced", "True Collecting");
    test.wait_for_condition("kollecttarget/services", "Degraded", "True ScopeForbidden");
    test.wait_for_condition("kollecttarget/some-services", "Synced", "False ScopeForbidden");
    test.wait_for_condition("kollecttarget/some-services", "Blind", "True ScopeForbidden");
    test.wait_for_condition("kollecttarget/some-services", "Ready", "True Collecting");
    // The message names the missing right, the namespace and what to grant.
    let blindness = |what: &str| {
        let status = test.get(what)["status"].clone();
        let conditions = status["conditions"].as_array().unwrap().iter();
        let blind = conditions
            .filter(|condition| condition["type"] == "Blind")
            .map(|condition| condition["message"].as_str().unwrap());
        (blind.collect::<String>(), status)
    };
    let (message, status) = blindness("kollecttarget/some-services");
    let denied = format!(
        "the operator may not list and watch services in namespace {namespace}: grant both verbs to its ServiceAccount \
         there, or leave the namespace out of "
    );
    assert_eq!(message, format!("{denied}the target's selection"));
    assert_eq!(
        (&status["matchedNamespaceCount"], &status["effectiveNamespaceCount"]),
        (&json!(1), &json!(1))
    );
    let lines = status["coverage"].as_array().unwrap();
    assert!(lines.iter().all(|line| line["namespaceCount"] == 1), "{lines:?}");
    eventually("the inventory says so too", || {
        let (message, _) = blindness("kollectinventory/all");
        message.contains(&format!("{denied}the selections of its targets")).then_some(()).ok_or(message)
    });
}

#[test]
fn a_snapshot_that_would_lack_rows_is_held_back() {
    let mut test = OperatorTest::new("whole-only");
    test.apply_config_map("a", "1");
    test.install();
    let nats = json!({ "url": Nats::shared().url(), "subject": test.table(), "stream": test.table() });
    test.apply_kollect("KollectEventSink", "events", json!({ "type": "nats", "nats": nats }));
    test.apply_kollect("KollectInventory", "all", json!({ "eventSinkRefs": ["events"] }));
    test.start(&[]);
    test.wait_for_sink_condition(("kollectinventory/all", "event/events"), "Synced", "True Exported");
    test.stop();
    test.kubeconfig = Some(operator_user(&test, &[]));
    test.start(&[]);
    test.wait_for_sink_condition(("kollectinventory/all", "event/events"), "Synced", "False HeldBack");
    test.wait_for_condition("kollectinventory/all", "Reconciling", "True HeldBack");
    test.wait_for_condition("kollecttarget/maps", "Degraded", "True ScopeForbidden");
}

#[test]
fn a_row_that_its_sink_refuses_is_reported() {
    let mut test = OperatorTest::new("refusing");
    test.apply_config_map("a", "1");
    test.install();
    test.apply_config_map("nul", "before\0after");
    test.start(&[]);
    test.wait_for_rows(&["a=1"]);
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False RowsRefused");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True RowsRefused");
    test.apply_config_map("nul", "2");
    test.wait_for_rows(&["a=1", "nul=2"]);
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
}

#[test]
fn a_slow_probe_and_an_unverified_server_are_reported() {
    let mut test = OperatorTest::new("probing");
    // A server that listens and never answers.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let nats =
        json!({ "url": format!("nats://{}", server.local_addr().unwrap()), "subject": "kollect.rows" });
    let spec = json!({ "type": "nats", "nats": nats, "mode": "rows", "tls": { "insecureSkipVerify": true } });
    test.apply_kollect("KollectEventSink", "events", spec);
    test.start(&[]);
    test.wait_for_condition("kollecteventsink/events", "Reconciling", "True Probing");
    test.wait_for_condition("kollecteventsink/events", "TLSInsecure", "True InsecureSkipVerify");
}
