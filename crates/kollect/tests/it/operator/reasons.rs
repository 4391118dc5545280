//! Conditions that no other test covers: each with its reason, as docs/conditions.md lists them.

use std::net::TcpListener;

use kollect_testbed::{Nats, Rule};

use super::*;

#[test]
fn what_specs_ask_for_and_cannot_have_is_said() {
    let mut world = World::new("denied");
    world.map("a", "1");
    world.install();
    let gvk = json!({ "version": "v1", "kind": "ConfigMap" });
    let wrong = json!({ "targetGVK": gvk, "attributes": [{ "name": "x", "path": "cel:object." }] });
    world.kollect("KollectProfile", "broken", wrong);
    let own = world.namespace.clone();
    let target = |name: &str, profile: &str, more: Value| {
        let mut spec = json!({ "profileRef": profile, "includedNamespaces": [own] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.kollect("KollectTarget", name, spec);
    };
    target("broken", "broken", json!({}));
    target("rule", "maps", json!({ "resourceRules": [{ "gvk": gvk, "matchPolicy": "object." }] }));
    target("resting", "maps", json!({ "suspend": true }));
    target("wide", "maps", json!({ "includedNamespaces": [own, "elsewhere"] }));
    let service = json!({ "gvk": { "version": "v1", "kind": "Service" } });
    target("two-kinds", "maps", json!({ "resourceRules": [{ "gvk": gvk }, service] }));
    let files = json!({ "type": "filesystem", "filesystem": { "path": "x" } });
    world.kollect("KollectSnapshotSink", "files", files);
    world.kollect("KollectInventory", "nowhere", json!({ "targetRefs": ["maps", "nobody"] }));
    world.kollect("KollectInventory", "files", json!({ "snapshotSinkRefs": ["files"] }));
    world.kollect(
        "KollectConnectionTest",
        "files",
        json!({ "sinkRef": { "snapshotSinkRef": "files" }, "ttlSecondsAfterFinished": 3600 }),
    );
    world.kollect(
        "KollectConnectionTest",
        "nobody",
        json!({ "sinkRef": { "snapshotSinkRef": "nobody" }, "ttlSecondsAfterFinished": 3600 }),
    );
    world.start(&[]);
    world.becomes("kollectprofile/broken", "Degraded", "True InvalidSpec");
    world.becomes("kollectprofile/broken", "Stalled", "True InvalidSpec");
    world.becomes("kollecttarget/broken", "Degraded", "True ProfileInvalid");
    world.becomes("kollecttarget/rule", "Degraded", "True InvalidSpec");
    world.becomes("kollecttarget/resting", "Degraded", "True Suspended");
    world.becomes("kollectsnapshotsink/files", "ConnectionVerified", "False InvalidSpec");
    world.becomes("kollectsnapshotsink/files", "Degraded", "True InvalidSpec");
    world.becomes("kollectinventory/files", "Degraded", "True InvalidSpec");
    world.becomes("kollectinventory/files", "SinkReachable", "False InvalidSpec");
    world.becomes("kollectinventory/nowhere", "Ready", "True NoExport");
    world.becomes("kollectinventory/nowhere", "Synced", "True NoExport");
    world.becomes("kollectinventory/nowhere", "SinkReachable", "True NoSinksConfigured");
    world.becomes("kollectinventory/nowhere", "TargetsMissing", "True TargetNotFound");
    world.becomes("kollectconnectiontest/files", "ConnectionVerified", "False InvalidSpec");
    world.becomes("kollectconnectiontest/nobody", "ConnectionVerified", "False SinkNotFound");
    world.becomes("kollectconnectiontest/nobody", "Ready", "False SinkNotFound");

    // ⚠28: a scope that comes later takes effect without a change of anything else.
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    let scope = json!({
        "allowedNamespaces": [own], "allowedGVKs": [gvk], "databaseSinkRefs": ["another"],
    });
    world.kollect("KollectScope", "narrow", scope);
    world.becomes("kollectinventory/all", "Degraded", "True ScopeSinkDenied");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ScopeSinkDenied");
    world.becomes("kollecttarget/wide", "ScopeClipped", "True ScopeNamespaceDenied");
    world.becomes("kollecttarget/wide", "Ready", "True Collecting");
    world.becomes("kollecttarget/two-kinds", "ScopeClipped", "True ScopeGVKDenied");
}

/// The kubeconfig of an operator that may collect these.
fn user(world: &World, collected: &[&str]) -> PathBuf {
    let read = ["get", "list", "watch"];
    let rules = [
        Rule::cluster("kollect.dev", &["*"], &["*"]),
        Rule::cluster("", &[&["namespaces", "secrets"], collected].concat(), &read),
        Rule::cluster("apiextensions.k8s.io", &["customresourcedefinitions"], &read),
        Rule::cluster("", &["events"], &["create"]),
    ];
    world.plane.user(&world.namespace, "operator", &rules).unwrap()
}

#[test]
fn what_cannot_be_seen_is_said() {
    let mut world = World::new("unseen");
    world.map("a", "1");
    world.install();
    let own = world.namespace.clone();
    let kind = |group: &str, kind: &str| json!({ "gvk": { "group": group, "version": "v1", "kind": kind } });
    let target = |name: &str, rules: Value| {
        let spec = json!({ "profileRef": "maps", "includedNamespaces": [own], "resourceRules": rules });
        world.kollect("KollectTarget", name, spec);
    };
    // Widgets are not served, and services may not be listed.
    let widgets = || kind("nobody.example", "Widget");
    target("widgets", json!([widgets()]));
    target("some-widgets", json!([widgets(), kind("", "ConfigMap")]));
    target("services", json!([kind("", "Service")]));
    target("some-services", json!([kind("", "Service"), kind("", "ConfigMap")]));
    world.kollect("KollectInventory", "widgets", json!({ "targetRefs": ["widgets"] }));
    let proxy = Proxy::start(world.plane).unwrap();
    world.kubeconfig = Some(proxy.kubeconfig(&user(&world, &["configmaps"])).unwrap());
    // The lists of ConfigMaps begin, and nothing comes.
    let path = format!("GET /api/v1/namespaces/{own}/configmaps");
    proxy.ignore(1, move |line| line.starts_with(&path));
    world.start(&[]);
    world.becomes("kollecttarget/widgets", "Degraded", "True InformerRegistrationFailed");
    world.becomes("kollecttarget/widgets", "Blind", "True NotSeen");
    world.becomes("kollectinventory/widgets", "Blind", "True NotSeen");
    world.becomes("kollecttarget/maps", "Reconciling", "True Listing");
    world.becomes("kollectinventory/all", "Reconciling", "True Listing");
    world.becomes("kollectinventory/all", "Synced", "False Listing");
    world.becomes("kollectinventory/all", "SinkReachable", "Unknown NotAttempted");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False Listing");
    proxy.cut();
    world.becomes("kollecttarget/some-widgets", "Synced", "False NotSeen");
    world.becomes("kollecttarget/maps", "Synced", "True Collecting");
    world.becomes("kollecttarget/services", "Degraded", "True ScopeForbidden");
    world.becomes("kollecttarget/some-services", "Synced", "False ScopeForbidden");
    world.becomes("kollecttarget/some-services", "Blind", "True ScopeForbidden");
    world.becomes("kollecttarget/some-services", "Ready", "True Collecting");
    // What may not be done, where, and what to grant.
    let told = |what: &str| {
        let status = world.get(what)["status"].clone();
        let conditions = status["conditions"].as_array().unwrap().iter();
        let blind = conditions
            .filter(|condition| condition["type"] == "Blind")
            .map(|c| c["message"].as_str().unwrap());
        (blind.collect::<String>(), status)
    };
    let (message, status) = told("kollecttarget/some-services");
    let denied = format!(
        "the operator may not list and watch services in namespace {own}: grant both verbs to its ServiceAccount \
         there, or remove it from "
    );
    assert_eq!(message, format!("{denied}the target's selection"));
    assert_eq!(
        (&status["matchedNamespaceCount"], &status["effectiveNamespaceCount"]),
        (&json!(1), &json!(1))
    );
    let lines = status["coverage"].as_array().unwrap();
    assert!(lines.iter().all(|line| line["namespaceCount"] == 1), "{lines:?}");
    eventually("the inventory says so too", || {
        let (message, _) = told("kollectinventory/all");
        message.contains(&format!("{denied}the selections of its targets")).then_some(()).ok_or(message)
    });
}

#[test]
fn a_snapshot_that_would_lack_rows_is_held_back() {
    let mut world = World::new("whole-only");
    world.map("a", "1");
    world.install();
    let nats = json!({ "url": Nats::shared().url(), "subject": world.table(), "stream": world.table() });
    world.kollect("KollectEventSink", "events", json!({ "type": "nats", "nats": nats }));
    world.kollect("KollectInventory", "all", json!({ "eventSinkRefs": ["events"] }));
    world.start(&[]);
    world.export_becomes(("kollectinventory/all", "event/events"), "Synced", "True Exported");
    world.stop();
    world.kubeconfig = Some(user(&world, &[]));
    world.start(&[]);
    world.export_becomes(("kollectinventory/all", "event/events"), "Synced", "False HeldBack");
    world.becomes("kollectinventory/all", "Reconciling", "True HeldBack");
    world.becomes("kollecttarget/maps", "Degraded", "True ScopeForbidden");
}

#[test]
fn a_row_that_its_sink_refuses_is_said() {
    let mut world = World::new("refusing");
    world.map("a", "1");
    world.install();
    world.map("nul", "before\0after");
    world.start(&[]);
    world.holds(&["a=1"]);
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False RowsRefused");
    world.becomes("kollectinventory/all", "Degraded", "True RowsRefused");
    world.map("nul", "2");
    world.holds(&["a=1", "nul=2"]);
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
}

#[test]
fn a_probe_that_takes_long_and_a_server_that_is_trusted_blindly_are_said() {
    let mut world = World::new("probing");
    // A server that listens and never answers.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let nats =
        json!({ "url": format!("nats://{}", server.local_addr().unwrap()), "subject": "kollect.rows" });
    let spec = json!({ "type": "nats", "nats": nats, "mode": "rows", "tls": { "insecureSkipVerify": true } });
    world.kollect("KollectEventSink", "events", spec);
    world.start(&[]);
    world.becomes("kollecteventsink/events", "Reconciling", "True Probing");
    world.becomes("kollecteventsink/events", "TLSInsecure", "True InsecureSkipVerify");
}
