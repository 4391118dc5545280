//! Reviews against fixed objects, without a socket.

mod fixture;
mod tenancy;

use std::sync::Arc;

use fixture::{TestAnswer, WebhookTest, create, object, profile, update};
use http::StatusCode;
use kollect_engine::watch::BlindReason;
use kollect_model::crd;
use serde_json::{Value, json};

use super::path;
use crate::{
    resolve::{FileRoot, NetworkFlags, OperatorPolicy, SinkNetwork},
    schema,
};

/// The policy of an operator without flags.
fn strict() -> OperatorPolicy {
    OperatorPolicy {
        secret_namespaces: Some([].into()),
        network: SinkNetwork::Guarded(NetworkFlags::default()),
        files: FileRoot::Refused,
        ..OperatorPolicy::default()
    }
}

fn scope(spec: &Value) -> Value {
    object("KollectScope", "limits", spec)
}

fn sqlite() -> Value {
    json!({ "type": "sqlite", "sqlite": { "path": "a.db" } })
}

#[tokio::test]
async fn an_invalid_object_is_refused_with_every_problem_and_its_field() {
    let test = WebhookTest::of(&[], strict());
    let spec = json!({
        "targetGVK": { "version": "v1", "kind": "Secret" },
        "attributes": [{ "name": "a", "path": "cel:object." }, { "name": "b", "path": "$.data.password" }],
    });
    let answer = test.review(create("KollectProfile", "secrets", &spec)).await;
    answer.denied(422, &["KollectProfile \"secrets\": spec.attributes[0].path", "; spec.attributes[1].path"]);

    let answer = test.review(create("KollectTarget", "t", &json!({ "profileRef": "a/b" }))).await;
    answer.denied(422, &["KollectTarget \"t\": spec.profileRef = \"a/b\": "]);
    // The resource rules are checked although there is no profile.
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    let answer = test
        .review(create("KollectTarget", "t", &json!({ "profileRef": "p", "resourceRules": [rule] })))
        .await;
    answer.denied(422, &["spec.resourceRules[0].matchPolicy"]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    let spec = json!({
        "profileRef": { "name": "p", "namespace": "shop" }, "resourceRules": [rule],
        "namespaceSelector": { "matchLabels": { "a": "b" } },
    });
    test.review(create("KollectClusterTarget", "t", &spec))
        .await
        .denied(422, &["spec.resourceRules[0].matchPolicy"]);

    let refs = json!({ "databaseSinkRefs": ["a", { "name": "b", "namespace": "x" }] });
    test.review(create("KollectInventory", "i", &refs))
        .await
        .denied(422, &["spec.databaseSinkRefs[1].namespace"]);
    let mut reserved = create("KollectInventory", "i", &json!({}));
    reserved["request"]["object"]["metadata"]["namespace"] = json!("cluster");
    reserved["request"]["namespace"] = json!("cluster");
    test.review(reserved).await.denied(422, &["metadata.namespace = \"cluster\""]);

    let two = json!({ "sinkRef": { "eventSinkRef": "a", "databaseSinkRef": "b" } });
    test.review(create("KollectConnectionTest", "t", &two)).await.denied(422, &["spec.sinkRef"]);
    test.review(create("KollectScope", "s", &json!({ "minExportInterval": "25h" })))
        .await
        .denied(422, &["spec.minExportInterval"]);
    test.review(create("KollectClusterScope", "s", &json!({ "allowedNamespaces": ["A"] })))
        .await
        .denied(422, &["spec.allowedNamespaces[0]"]);
}

#[tokio::test]
async fn sinks_that_the_operator_would_not_open_are_refused() {
    let test = WebhookTest::of(&[], strict());
    test.review(create("KollectDatabaseSink", "s", &sqlite())).await.denied(422, &["spec.sqlite.path"]);
    let nats = |url: &str| json!({ "type": "nats", "nats": { "url": url, "subject": "a" } });
    for denied in ["nats://127.0.0.1:4222", "nats://169.254.169.254:4222", "nats://localhost:4222"] {
        test.review(create("KollectEventSink", "s", &nats(denied))).await.denied(422, &["spec.nats.url"]);
    }
    test.review(create("KollectEventSink", "s", &nats("nats://nats.example.com:4222"))).await.allowed(&[]);
    let git = |endpoint: &str| json!({ "type": "git", "endpoint": endpoint });
    for denied in ["https://127.0.0.1/a.git", "ssh://git@169.254.169.254/a.git", "file:a.git"] {
        let mut sink = git(denied);
        sink["secretRef"] = json!({ "name": "git" });
        test.review(create("KollectSnapshotSink", "s", &sink)).await.denied(422, &["spec.endpoint"]);
    }
    let answer = test.review(create("KollectSnapshotSink", "s", &git("https://example.com/a.git"))).await;
    answer.allowed(&["written as yaml"]);
    let gitlab = json!({ "type": "gitlab", "endpoint": "https://example.com/a.git" });
    let answer = test.review(create("KollectSnapshotSink", "s", &gitlab)).await;
    answer.denied(422, &["spec.type = \"gitlab\": is not available in this build"]);
    let postgres = |reference: Value| json!({ "type": "postgres", "postgres": { "databaseRef": reference, "table": "t" } });
    let own = create("KollectDatabaseSink", "s", &postgres(json!({ "name": "missing" })));
    test.review(own).await.allowed(&[]);
    let foreign = postgres(json!({ "name": "a", "namespace": "kube-system" }));
    let answer = test.review(create("KollectDatabaseSink", "s", &foreign)).await;
    answer.denied(422, &["spec.postgres.databaseRef.namespace = \"kube-system\"", "shop=kube-system"]);
}

#[tokio::test]
async fn a_missing_object_is_a_warning_because_objects_come_in_any_order() {
    let test = WebhookTest::of(&[], strict());
    let target = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    test.review(target.clone()).await.allowed(&["no KollectProfile p in namespace shop"]);
    let inventory = json!({ "databaseSinkRefs": ["portal"], "targetRefs": ["t"] });
    let inventory = create("KollectInventory", "i", &inventory);
    test.review(inventory.clone()).await.allowed(&["no KollectTarget t", "no database sink portal"]);
    let connection_test =
        create("KollectConnectionTest", "c", &json!({ "sinkRef": { "databaseSinkRef": "portal" } }));
    test.review(connection_test.clone()).await.allowed(&["no database sink portal"]);
    let spec = json!({
        "profileRef": { "name": "p", "namespace": "shop" },
        "namespaceSelector": { "matchLabels": { "a": "b" } },
    });
    let cluster = create("KollectClusterTarget", "t", &spec);
    test.review(cluster.clone()).await.allowed(&["no KollectProfile p in namespace shop"]);

    let objects = [
        profile("p", "ConfigMap"),
        object("KollectTarget", "t", &json!({ "profileRef": "p" })),
        object("KollectDatabaseSink", "portal", &sqlite()),
    ];
    let test = WebhookTest::of(&objects, strict());
    // The sink cannot work; its own status reports that.
    for review in [target, inventory, connection_test, cluster] {
        test.review(review).await.allowed(&[]);
    }
}

#[tokio::test]
async fn scopes_are_enforced_with_the_field_that_breaks_them() {
    let limits = json!({
        "allowedGVKs": [{ "version": "v1", "kind": "Pod" }], "deniedNamespaces": ["kube-system"],
        "minExportInterval": "5m", "databaseSinkRefs": ["portal"],
    });
    let cluster_limits = json!({ "allowedStaticRefNamespaces": ["platform"], "minExportInterval": "1m" });
    let objects = [
        scope(&limits),
        object("KollectClusterScope", "all", &cluster_limits),
        profile("maps", "ConfigMap"),
        profile("pods", "Pod"),
    ];
    let test = WebhookTest::of(&objects, strict());
    let target = |spec: Value| create("KollectTarget", "t", &spec);
    test.review(target(json!({ "profileRef": "maps" })))
        .await
        .denied(403, &["KollectScope limits does not allow kind"]);
    test.review(target(json!({ "profileRef": "pods" }))).await.allowed(&[]);
    let answer = test
        .review(target(json!({ "profileRef": "pods", "includedNamespaces": ["a", "kube-system"] })))
        .await;
    answer.denied(403, &["spec.includedNamespaces[1] = \"kube-system\": KollectScope limits"]);
    let resource_rules: Vec<Value> =
        ["Pod", "Secret"].iter().map(|kind| json!({ "gvk": { "version": "v1", "kind": kind } })).collect();
    test.review(target(json!({ "profileRef": "pods", "resourceRules": resource_rules })))
        .await
        .denied(403, &["does not allow kind"]);
    let both = json!({
        "profileRef": "maps",
        "resourceRules": [{ "gvk": { "version": "v1", "kind": "Secret" }, "matchPolicy": "1 +" }],
    });
    test.review(target(both))
        .await
        .denied(422, &["does not allow kind", "spec.resourceRules[0].matchPolicy"]);

    let inventory = |spec: Value| create("KollectInventory", "i", &spec);
    let missing = ["no database sink portal"];
    // The default was not requested by a user: the floor raises it.
    test.review(inventory(json!({ "databaseSinkRefs": ["portal"] }))).await.allowed(&missing);
    let defaulted = json!({ "databaseSinkRefs": ["portal"], "exportMinInterval": "30s" });
    test.review(inventory(defaulted)).await.allowed(&missing);
    test.review(inventory(json!({ "exportMinInterval": "1m" })))
        .await
        .denied(403, &["spec.exportMinInterval = \"1m0s\": KollectScope limits requires at least 5m0s"]);
    let quick = json!({ "databaseSinkRefs": [{ "name": "portal", "exportMinInterval": "0s" }] });
    test.review(inventory(quick)).await.denied(403, &["spec.databaseSinkRefs[0].exportMinInterval = \"0s\""]);
    test.review(inventory(json!({ "databaseSinkRefs": ["other"] })))
        .await
        .denied(403, &["spec.databaseSinkRefs[0] = \"other\": KollectScope limits does not allow this sink"]);
    let sink = |interval: &str| json!({ "type": "nats", "exportMinInterval": interval, "nats": { "url": "nats://a.example:4222", "subject": "a" } });
    test.review(create("KollectEventSink", "s", &sink("1m")))
        .await
        .denied(403, &["spec.exportMinInterval = \"1m0s\""]);
    test.review(create("KollectEventSink", "s", &sink("5m"))).await.allowed(&[]);

    let cluster = |namespace: &str| {
        json!({
            "profileRef": { "name": "pods", "namespace": namespace },
            "namespaceSelector": { "matchLabels": { "a": "b" } },
        })
    };
    test.review(create("KollectClusterTarget", "t", &cluster("shop")))
        .await
        .denied(403, &["spec.profileRef.namespace: KollectClusterScope all"]);
    test.review(create("KollectClusterTarget", "t", &cluster("platform")))
        .await
        .allowed(&["no KollectProfile pods"]);
    let inventory = |namespace: &str, interval: &str| json!({ "sinkNamespace": namespace, "databaseSinkRefs": ["portal"], "exportMinInterval": interval });
    test.review(create("KollectClusterInventory", "i", &inventory("shop", "1m")))
        .await
        .denied(403, &["spec.databaseSinkRefs[0] = \"portal\": KollectClusterScope all"]);
    test.review(create("KollectClusterInventory", "i", &inventory("platform", "59s")))
        .await
        .denied(403, &["spec.exportMinInterval = \"59s\": KollectClusterScope all"]);
    test.review(create("KollectClusterInventory", "i", &inventory("platform", "1m")))
        .await
        .allowed(&["no database sink portal in namespace platform"]);
}

#[tokio::test]
async fn a_spec_that_may_be_a_mistake_gets_a_warning() {
    let test =
        WebhookTest::of(&[], OperatorPolicy { files: FileRoot::Directory("/data".into()), ..strict() });
    let spec = json!({
        "targetGVK": { "version": "v1", "kind": "Pod" },
        "attributes": [
            { "name": "a", "path": "{.spec.containers[?(@.name=='x')].image}" },
            { "name": "b", "path": "$.spec.x", "type": "text" },
        ],
    });
    let expected = ["spec.attributes[0].path", "spec.attributes[1].type = \"text\": is not enforced"];
    test.review(create("KollectProfile", "p", &spec)).await.allowed(&expected);
    let parts = create("KollectInventory", "i", &json!({ "maxExportBytes": 1000 }));
    test.review(parts).await.allowed(&["spec.maxExportBytes is the size of one part"]);
    let sink = json!({
        "type": "nats", "tls": { "insecureSkipVerify": true }, "provisioning": { "mode": "existing" },
        "nats": { "url": "tls://a.example:4222", "subject": "a" },
    });
    let expected = ["spec.tls.insecureSkipVerify", "spec.provisioning.mode = existing"];
    test.review(create("KollectEventSink", "s", &sink)).await.allowed(&expected);
    let files = json!({
        "type": "filesystem", "filesystem": { "path": "out" }, "serialization": { "format": "yaml" },
        "pathTemplate": "{namespace}/{name}.json",
    });
    test.review(create("KollectSnapshotSink", "s", &files))
        .await
        .allowed(&["spec.pathTemplate ends with .json"]);
    let git = json!({
        "type": "git", "endpoint": "https://example.com/a.git", "git": { "pushPolicy": "ForcePush" },
    });
    let answer = test.review(create("KollectSnapshotSink", "s", &git)).await;
    answer.warns(&["ForcePush", "written as yaml"]);
}

#[tokio::test]
async fn a_scope_may_forbid_whole_objects() {
    let whole = json!({ "targetGVK": { "version": "v1", "kind": "Pod" }, "export": { "mode": "Resource" } });
    let objects = |limits: &Value| {
        [scope(limits), profile("attributes", "Pod"), object("KollectProfile", "whole", &whole)]
    };
    let target = |profile: &str| create("KollectTarget", "t", &json!({ "profileRef": profile }));
    let test = WebhookTest::of(&objects(&json!({ "allowResourceExport": false })), strict());
    test.review(target("attributes")).await.allowed(&[]);
    test.review(target("whole"))
        .await
        .denied(403, &["KollectScope limits does not allow profiles with export.mode Resource"]);
    let test = WebhookTest::of(&objects(&json!({ "deniedNamespaces": ["x"] })), strict());
    test.review(target("whole")).await.allowed(&[]);
}

#[tokio::test]
async fn deletion_and_changes_of_metadata_are_always_allowed() {
    let test =
        WebhookTest::of(&[scope(&json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }))], strict());
    let wrong =
        json!({ "profileRef": "p", "resourceRules": [{ "gvk": { "version": "v1", "kind": "Secret" } }] });
    let mut changed = wrong.clone();
    changed["suspend"] = json!(true);
    test.review(update("KollectTarget", "t", &wrong, &changed)).await.denied(403, &["does not allow kind"]);
    let mut finalized = update("KollectTarget", "t", &wrong, &wrong);
    finalized["request"]["oldObject"]["metadata"]["finalizers"] = json!(["kollect.dev/cleanup"]);
    test.review(finalized).await.allowed(&[]);
    let mut being_deleted = update("KollectTarget", "t", &wrong, &changed);
    being_deleted["request"]["object"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    test.review(being_deleted).await.allowed(&[]);
    let mut deleted = update("KollectTarget", "t", &wrong, &wrong);
    deleted["request"]["operation"] = json!("DELETE");
    deleted["request"]["object"] = Value::Null;
    test.review(deleted).await.allowed(&[]);

    // An update that removes a permission is allowed, with a warning.
    let secret = json!({
        "targetGVK": { "version": "v1", "kind": "Secret" }, "attributes": [{ "name": "a", "path": "$.data.a" }],
    });
    let mut opted = update("KollectProfile", "p", &secret, &secret);
    let annotations = json!({ "kollect.dev/allow-secret-extraction": "true" });
    opted["request"]["oldObject"]["metadata"]["annotations"] = annotations.clone();
    test.review(opted).await.allowed(&["spec.attributes[0].path"]);
    let mut created = create("KollectProfile", "p", &secret);
    test.review(created.clone()).await.denied(422, &["spec.attributes[0].path"]);
    created["request"]["object"]["metadata"]["annotations"] = annotations;
    test.review(created).await.allowed(&[]);
}

#[tokio::test]
async fn a_malformed_review_gets_an_error_that_names_the_problem() {
    let test = WebhookTest::of(&[], strict());
    let valid = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    let target_path = path("KollectTarget");
    let mut cases = vec![(target_path.clone(), "{".to_owned(), "this is no AdmissionReview")];
    for (pointer, value, expected) in [
        (
            "/apiVersion",
            json!("admission.k8s.io/v1beta1"),
            "only admission.k8s.io/v1 AdmissionReview is known",
        ),
        ("/request", Value::Null, "the review has no request"),
        ("/request/kind/version", json!("v2"), "the review is about kollect.dev/v2 KollectTarget"),
        ("/request/kind/kind", json!("Pod"), "the review is about kollect.dev/v1alpha1 Pod"),
        ("/request/object", Value::Null, "the review has no object"),
        ("/request/object", json!([1]), "the review has no object"),
    ] {
        let mut review = valid.clone();
        *review.pointer_mut(pointer).unwrap() = value;
        cases.push((target_path.clone(), review.to_string(), expected));
    }
    cases.push((
        path("KollectThing"),
        valid.to_string(),
        "is unknown; known: /validate-kollect-dev-v1alpha1-",
    ));
    for (path, body, expected) in cases {
        let (status, answer) = test.post(&path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert!(answer.contains(expected), "{answer}");
    }
    let mut odd = valid.clone();
    odd["request"]["object"]["spec"] = json!("text");
    odd["request"]["object"]["metadata"]["labels"] = json!(7);
    test.review(odd).await.denied(422, &["spec = \"text\""]);
    let mut unnamed = valid;
    unnamed["request"]["name"] = json!("");
    unnamed["request"]["object"]["metadata"] = json!({ "generateName": "t-", "namespace": "shop" });
    test.review(unnamed).await.allowed(&["no KollectProfile p"]);
}

#[tokio::test]
async fn an_object_in_a_namespace_that_is_not_watched_gets_one_warning() {
    let objects = [profile("p", "Pod"), object("KollectTarget", "t", &json!({ "profileRef": "p" }))];
    let test = WebhookTest::within(&objects, strict(), &["shop"]);
    test.review(create("KollectTarget", "t", &json!({ "profileRef": "p" }))).await.allowed(&[]);
    let mut elsewhere = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    elsewhere["request"]["object"]["metadata"]["namespace"] = json!("other");
    let answer = test.review(elsewhere).await;
    answer.allowed(&["watches shop only (--watch-namespaces)"]);
    let cluster = create("KollectClusterScope", "s", &json!({}));
    test.review(cluster).await.allowed(&["watches shop only"]);
}

#[tokio::test]
async fn nothing_is_allowed_before_scopes_are_known_or_while_they_cannot_be_seen() {
    let blind = WebhookTest::blind("KollectScope", BlindReason::Forbidden);
    let target = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    blind.review(target.clone()).await.denied(403, &["no KollectScope can be seen", "may not list"]);
    blind.review(profile_review()).await.allowed(&[]);
    let sink = json!({ "type": "nats", "nats": { "url": "nats://a.example:4222", "subject": "a" } });
    blind.review(create("KollectEventSink", "s", &sink)).await.denied(403, &["no KollectScope can be seen"]);
    blind.review(create("KollectClusterInventory", "i", &json!({}))).await.allowed(&[]);
    // A single discovery without the kind proves nothing.
    let unknown = WebhookTest::blind("KollectScope", BlindReason::NotServed);
    unknown.review(target.clone()).await.denied(403, &["no KollectScope can be seen"]);
    // Where the kind does not exist, no scope does.
    let without = WebhookTest::without("KollectScope");
    without.review(target.clone()).await.allowed(&["no KollectProfile p"]);
    let silent = WebhookTest::silent();
    let (status, text) = silent.post(&path("KollectTarget"), target.to_string()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    let unchanged =
        update("KollectTarget", "t", &json!({ "profileRef": "p" }), &json!({ "profileRef": "p" }));
    silent.review(unchanged).await.allowed(&[]);
}

#[tokio::test]
async fn a_review_that_crashes_is_one_error_and_the_next_is_answered() {
    let kind = &schema::kinds()["KollectTarget"];
    let crashed = super::run_blocking(kind, || panic!("a bug")).await;
    assert_eq!(crashed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    WebhookTest::of(&[], strict()).review(profile_review()).await.allowed(&[]);
}

fn profile_review() -> Value {
    create("KollectProfile", "p", &profile("p", "Pod")["spec"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reviews_at_the_same_time_are_answered_each_by_itself() {
    let test = Arc::new(WebhookTest::of(&[profile("p", "Pod")], strict()));
    let mut running = tokio::task::JoinSet::new();
    for index in 0..64 {
        let test = test.clone();
        running.spawn(async move {
            let name = if index % 2 == 0 { "p" } else { "a/b" };
            let answer: TestAnswer = test
                .review(create("KollectTarget", &format!("t{index}"), &json!({ "profileRef": name })))
                .await;
            if index % 2 == 0 {
                answer.allowed(&[]);
            } else {
                answer.denied(422, &[&format!("KollectTarget \"t{index}\": spec.profileRef")]);
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

#[test]
fn a_missing_certificate_is_named_with_its_flag_unless_nothing_is_served() {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        flags: super::WebhookFlags,
    }
    let parse = |args: &[&str]| {
        let args = [&["kollect"], args].concat();
        <Program as clap::Parser>::try_parse_from(args).unwrap().flags
    };
    let wrong = parse(&["--webhook-cert-path=/nowhere"]).check(false).unwrap_err();
    let wrong = format!("{wrong:#}");
    assert!(wrong.contains("--webhook-cert-path") && wrong.contains("/nowhere/tls.crt"), "{wrong}");
    assert!(parse(&["--webhook-cert-path=/nowhere"]).check(true).is_ok(), "tenant mode");
    let off = ["--webhook-cert-path=/nowhere", "--validating-webhooks-enabled=false"];
    assert!(parse(&off).check(false).is_ok());
}

#[test]
fn the_manifest_names_every_kind_and_the_path_that_is_served() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/default/kollect.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let found = objects.iter().find(|object| object["kind"] == "ValidatingWebhookConfiguration").unwrap();
    let plurals: Vec<(String, String)> = crd::all()
        .iter()
        .map(|crd| &crd["spec"]["names"])
        .map(|names| (names["kind"].as_str().unwrap().into(), names["plural"].as_str().unwrap().into()))
        .collect();
    let expected: Vec<Value> = schema::kinds()
        .keys()
        .map(|kind| {
            let (_, plural) = plurals.iter().find(|(named, _)| named == kind).unwrap();
            json!({
                "name": format!("v{}.kb.io", kind.to_lowercase()),
                "admissionReviewVersions": ["v1"],
                "clientConfig": { "service": {
                    "name": "kollect-webhook-service", "namespace": "kollect-system", "path": path(kind),
                } },
                "failurePolicy": "Fail",
                "matchConditions": [{
                    "name": "is-not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)",
                }],
                "rules": [{
                    "apiGroups": ["kollect.dev"], "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE", "UPDATE"], "resources": [plural],
                }],
                "sideEffects": "None",
            })
        })
        .collect();
    assert_eq!(found["webhooks"], json!(expected));
}
