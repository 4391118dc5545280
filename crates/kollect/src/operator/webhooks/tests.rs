//! Reviews against a world of files, without a socket.

mod asks;
mod tenancy;

use std::sync::Arc;

use asks::{Answer, World, create, object, profile, update};
use http::StatusCode;
use kollect_engine::watch::BlindReason;
use kollect_model::crd;
use serde_json::{Value, json};

use super::path;
use crate::{
    resolve::{FileRoot, NetworkFlags, OperatorPolicy, SinkNetwork},
    schema,
};

/// OperatorPolicy of an operator without flags.
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
async fn what_is_wrong_in_itself_is_refused_with_every_problem_and_its_field() {
    let world = World::of(&[], strict());
    let spec = json!({
        "targetGVK": { "version": "v1", "kind": "Secret" },
        "attributes": [{ "name": "a", "path": "cel:object." }, { "name": "b", "path": "$.data.password" }],
    });
    let answer = world.ask(create("KollectProfile", "secrets", &spec)).await;
    answer.denied(422, &["KollectProfile \"secrets\": spec.attributes[0].path", "; spec.attributes[1].path"]);

    let answer = world.ask(create("KollectTarget", "t", &json!({ "profileRef": "a/b" }))).await;
    answer.denied(422, &["KollectTarget \"t\": spec.profileRef = \"a/b\": "]);
    // The resource rules are checked although there is no profile.
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    let answer =
        world.ask(create("KollectTarget", "t", &json!({ "profileRef": "p", "resourceRules": [rule] }))).await;
    answer.denied(422, &["spec.resourceRules[0].matchPolicy"]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    let spec = json!({
        "profileRef": { "name": "p", "namespace": "shop" }, "resourceRules": [rule],
        "namespaceSelector": { "matchLabels": { "a": "b" } },
    });
    world
        .ask(create("KollectClusterTarget", "t", &spec))
        .await
        .denied(422, &["spec.resourceRules[0].matchPolicy"]);

    let refs = json!({ "databaseSinkRefs": ["a", { "name": "b", "namespace": "x" }] });
    world
        .ask(create("KollectInventory", "i", &refs))
        .await
        .denied(422, &["spec.databaseSinkRefs[1].namespace"]);
    let mut own = create("KollectInventory", "i", &json!({}));
    own["request"]["object"]["metadata"]["namespace"] = json!("cluster");
    own["request"]["namespace"] = json!("cluster");
    world.ask(own).await.denied(422, &["metadata.namespace = \"cluster\""]);

    let two = json!({ "sinkRef": { "eventSinkRef": "a", "databaseSinkRef": "b" } });
    world.ask(create("KollectConnectionTest", "t", &two)).await.denied(422, &["spec.sinkRef"]);
    world
        .ask(create("KollectScope", "s", &json!({ "minExportInterval": "25h" })))
        .await
        .denied(422, &["spec.minExportInterval"]);
    world
        .ask(create("KollectClusterScope", "s", &json!({ "allowedNamespaces": ["A"] })))
        .await
        .denied(422, &["spec.allowedNamespaces[0]"]);
}

#[tokio::test]
async fn sinks_are_refused_where_the_operator_would_not_go() {
    let world = World::of(&[], strict());
    world.ask(create("KollectDatabaseSink", "s", &sqlite())).await.denied(422, &["spec.sqlite.path"]);
    let nats = |url: &str| json!({ "type": "nats", "nats": { "url": url, "subject": "a" } });
    for inside in ["nats://127.0.0.1:4222", "nats://169.254.169.254:4222", "nats://localhost:4222"] {
        world.ask(create("KollectEventSink", "s", &nats(inside))).await.denied(422, &["spec.nats.url"]);
    }
    world.ask(create("KollectEventSink", "s", &nats("nats://nats.example.com:4222"))).await.allowed(&[]);
    let git = |endpoint: &str| json!({ "type": "git", "endpoint": endpoint });
    for inside in ["https://127.0.0.1/a.git", "ssh://git@169.254.169.254/a.git", "file:a.git"] {
        let mut sink = git(inside);
        sink["secretRef"] = json!({ "name": "git" });
        world.ask(create("KollectSnapshotSink", "s", &sink)).await.denied(422, &["spec.endpoint"]);
    }
    let answer = world.ask(create("KollectSnapshotSink", "s", &git("https://example.com/a.git"))).await;
    answer.allowed(&["written as yaml"]);
    let gitlab = json!({ "type": "gitlab", "endpoint": "https://example.com/a.git" });
    let answer = world.ask(create("KollectSnapshotSink", "s", &gitlab)).await;
    answer.denied(422, &["spec.type = \"gitlab\": is not available in this build"]);
    let postgres = |reference: Value| json!({ "type": "postgres", "postgres": { "databaseRef": reference, "table": "t" } });
    let own = create("KollectDatabaseSink", "s", &postgres(json!({ "name": "missing" })));
    world.ask(own).await.allowed(&[]);
    let foreign = postgres(json!({ "name": "a", "namespace": "kube-system" }));
    let answer = world.ask(create("KollectDatabaseSink", "s", &foreign)).await;
    answer.denied(422, &["spec.postgres.databaseRef.namespace = \"kube-system\"", "shop=kube-system"]);
}

#[tokio::test]
async fn what_is_missing_is_a_warning_because_objects_come_in_any_order() {
    let world = World::of(&[], strict());
    let target = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    world.ask(target.clone()).await.allowed(&["no KollectProfile p in namespace shop"]);
    let inventory = json!({ "databaseSinkRefs": ["portal"], "targetRefs": ["t"] });
    let inventory = create("KollectInventory", "i", &inventory);
    world.ask(inventory.clone()).await.allowed(&["no KollectTarget t", "no database sink portal"]);
    let test = create("KollectConnectionTest", "c", &json!({ "sinkRef": { "databaseSinkRef": "portal" } }));
    world.ask(test.clone()).await.allowed(&["no database sink portal"]);
    let spec = json!({
        "profileRef": { "name": "p", "namespace": "shop" },
        "namespaceSelector": { "matchLabels": { "a": "b" } },
    });
    let cluster = create("KollectClusterTarget", "t", &spec);
    world.ask(cluster.clone()).await.allowed(&["no KollectProfile p in namespace shop"]);

    let there = [
        profile("p", "ConfigMap"),
        object("KollectTarget", "t", &json!({ "profileRef": "p" })),
        object("KollectDatabaseSink", "portal", &sqlite()),
    ];
    let world = World::of(&there, strict());
    // The sink cannot work; its own status reports that.
    for question in [target, inventory, test, cluster] {
        world.ask(question).await.allowed(&[]);
    }
}

#[tokio::test]
async fn scopes_are_enforced_with_the_field_that_breaks_them() {
    let limits = json!({
        "allowedGVKs": [{ "version": "v1", "kind": "Pod" }], "deniedNamespaces": ["kube-system"],
        "minExportInterval": "5m", "databaseSinkRefs": ["portal"],
    });
    let cluster_limits = json!({ "allowedStaticRefNamespaces": ["platform"], "minExportInterval": "1m" });
    let there = [
        scope(&limits),
        object("KollectClusterScope", "all", &cluster_limits),
        profile("maps", "ConfigMap"),
        profile("pods", "Pod"),
    ];
    let world = World::of(&there, strict());
    let target = |spec: Value| create("KollectTarget", "t", &spec);
    world
        .ask(target(json!({ "profileRef": "maps" })))
        .await
        .denied(403, &["KollectScope limits does not allow kind"]);
    world.ask(target(json!({ "profileRef": "pods" }))).await.allowed(&[]);
    let answer =
        world.ask(target(json!({ "profileRef": "pods", "includedNamespaces": ["a", "kube-system"] }))).await;
    answer.denied(403, &["spec.includedNamespaces[1] = \"kube-system\": KollectScope limits"]);
    let resource_rules: Vec<Value> =
        ["Pod", "Secret"].iter().map(|kind| json!({ "gvk": { "version": "v1", "kind": kind } })).collect();
    world
        .ask(target(json!({ "profileRef": "pods", "resourceRules": resource_rules })))
        .await
        .denied(403, &["does not allow kind"]);
    let both = json!({
        "profileRef": "maps",
        "resourceRules": [{ "gvk": { "version": "v1", "kind": "Secret" }, "matchPolicy": "1 +" }],
    });
    world.ask(target(both)).await.denied(422, &["does not allow kind", "spec.resourceRules[0].matchPolicy"]);

    let inventory = |spec: Value| create("KollectInventory", "i", &spec);
    let missing = ["no database sink portal"];
    // The default was not requested by a user: the floor raises it.
    world.ask(inventory(json!({ "databaseSinkRefs": ["portal"] }))).await.allowed(&missing);
    let defaulted = json!({ "databaseSinkRefs": ["portal"], "exportMinInterval": "30s" });
    world.ask(inventory(defaulted)).await.allowed(&missing);
    world
        .ask(inventory(json!({ "exportMinInterval": "1m" })))
        .await
        .denied(403, &["spec.exportMinInterval = \"1m0s\": KollectScope limits asks for at least 5m0s"]);
    let quick = json!({ "databaseSinkRefs": [{ "name": "portal", "exportMinInterval": "0s" }] });
    world.ask(inventory(quick)).await.denied(403, &["spec.databaseSinkRefs[0].exportMinInterval = \"0s\""]);
    world
        .ask(inventory(json!({ "databaseSinkRefs": ["other"] })))
        .await
        .denied(403, &["spec.databaseSinkRefs[0] = \"other\": KollectScope limits does not allow this sink"]);
    let sink = |interval: &str| json!({ "type": "nats", "exportMinInterval": interval, "nats": { "url": "nats://a.example:4222", "subject": "a" } });
    world
        .ask(create("KollectEventSink", "s", &sink("1m")))
        .await
        .denied(403, &["spec.exportMinInterval = \"1m0s\""]);
    world.ask(create("KollectEventSink", "s", &sink("5m"))).await.allowed(&[]);

    let cluster = |namespace: &str| {
        json!({
            "profileRef": { "name": "pods", "namespace": namespace },
            "namespaceSelector": { "matchLabels": { "a": "b" } },
        })
    };
    world
        .ask(create("KollectClusterTarget", "t", &cluster("shop")))
        .await
        .denied(403, &["spec.profileRef.namespace: KollectClusterScope all"]);
    world
        .ask(create("KollectClusterTarget", "t", &cluster("platform")))
        .await
        .allowed(&["no KollectProfile pods"]);
    let inventory = |namespace: &str, interval: &str| json!({ "sinkNamespace": namespace, "databaseSinkRefs": ["portal"], "exportMinInterval": interval });
    world
        .ask(create("KollectClusterInventory", "i", &inventory("shop", "1m")))
        .await
        .denied(403, &["spec.databaseSinkRefs[0] = \"portal\": KollectClusterScope all"]);
    world
        .ask(create("KollectClusterInventory", "i", &inventory("platform", "59s")))
        .await
        .denied(403, &["spec.exportMinInterval = \"59s\": KollectClusterScope all"]);
    world
        .ask(create("KollectClusterInventory", "i", &inventory("platform", "1m")))
        .await
        .allowed(&["no database sink portal in namespace platform"]);
}

#[tokio::test]
async fn what_may_not_be_meant_is_a_warning() {
    let world = World::of(&[], OperatorPolicy { files: FileRoot::Directory("/data".into()), ..strict() });
    let spec = json!({
        "targetGVK": { "version": "v1", "kind": "Pod" },
        "attributes": [
            { "name": "a", "path": "{.spec.containers[?(@.name=='x')].image}" },
            { "name": "b", "path": "$.spec.x", "type": "text" },
        ],
    });
    let expected = ["spec.attributes[0].path", "spec.attributes[1].type = \"text\": is not enforced"];
    world.ask(create("KollectProfile", "p", &spec)).await.allowed(&expected);
    let parts = create("KollectInventory", "i", &json!({ "maxExportBytes": 1000 }));
    world.ask(parts).await.allowed(&["spec.maxExportBytes is the size of one part"]);
    let sink = json!({
        "type": "nats", "tls": { "insecureSkipVerify": true }, "provisioning": { "mode": "existing" },
        "nats": { "url": "tls://a.example:4222", "subject": "a" },
    });
    let expected = ["spec.tls.insecureSkipVerify", "spec.provisioning.mode = existing"];
    world.ask(create("KollectEventSink", "s", &sink)).await.allowed(&expected);
    let files = json!({
        "type": "filesystem", "filesystem": { "path": "out" }, "serialization": { "format": "yaml" },
        "pathTemplate": "{namespace}/{name}.json",
    });
    world
        .ask(create("KollectSnapshotSink", "s", &files))
        .await
        .allowed(&["spec.pathTemplate ends with .json"]);
    let git = json!({
        "type": "git", "endpoint": "https://example.com/a.git", "git": { "pushPolicy": "ForcePush" },
    });
    let answer = world.ask(create("KollectSnapshotSink", "s", &git)).await;
    answer.warns(&["ForcePush", "written as yaml"]);
}

#[tokio::test]
async fn deletion_and_metadata_are_never_in_the_way_q3() {
    let world =
        World::of(&[scope(&json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }))], strict());
    let wrong =
        json!({ "profileRef": "p", "resourceRules": [{ "gvk": { "version": "v1", "kind": "Secret" } }] });
    let mut changed = wrong.clone();
    changed["suspend"] = json!(true);
    world.ask(update("KollectTarget", "t", &wrong, &changed)).await.denied(403, &["does not allow kind"]);
    let mut finalized = update("KollectTarget", "t", &wrong, &wrong);
    finalized["request"]["oldObject"]["metadata"]["finalizers"] = json!(["kollect.dev/cleanup"]);
    world.ask(finalized).await.allowed(&[]);
    let mut going = update("KollectTarget", "t", &wrong, &changed);
    going["request"]["object"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    world.ask(going).await.allowed(&[]);
    let mut deleted = update("KollectTarget", "t", &wrong, &wrong);
    deleted["request"]["operation"] = json!("DELETE");
    deleted["request"]["object"] = Value::Null;
    world.ask(deleted).await.allowed(&[]);

    // An update that removes a permission is allowed, with a warning.
    let secret = json!({
        "targetGVK": { "version": "v1", "kind": "Secret" }, "attributes": [{ "name": "a", "path": "$.data.a" }],
    });
    let mut opted = update("KollectProfile", "p", &secret, &secret);
    let annotations = json!({ "kollect.dev/allow-secret-extraction": "true" });
    opted["request"]["oldObject"]["metadata"]["annotations"] = annotations.clone();
    world.ask(opted).await.allowed(&["spec.attributes[0].path"]);
    let mut created = create("KollectProfile", "p", &secret);
    world.ask(created.clone()).await.denied(422, &["spec.attributes[0].path"]);
    created["request"]["object"]["metadata"]["annotations"] = annotations;
    world.ask(created).await.allowed(&[]);
}

#[tokio::test]
async fn wrong_questions_get_words() {
    let world = World::of(&[], strict());
    let good = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    let at = path("KollectTarget");
    let mut cases = vec![(at.clone(), "{".to_owned(), "this is no AdmissionReview")];
    for (pointer, value, words) in [
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
        let mut question = good.clone();
        *question.pointer_mut(pointer).unwrap() = value;
        cases.push((at.clone(), question.to_string(), words));
    }
    cases.push((
        path("KollectThing"),
        good.to_string(),
        "is unknown; known: /validate-kollect-dev-v1alpha1-",
    ));
    for (path, body, words) in cases {
        let (status, text) = world.post(&path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        assert!(text.contains(words), "{text}");
    }
    let mut odd = good.clone();
    odd["request"]["object"]["spec"] = json!("text");
    odd["request"]["object"]["metadata"]["labels"] = json!(7);
    world.ask(odd).await.denied(422, &["spec = \"text\""]);
    let mut unnamed = good;
    unnamed["request"]["name"] = json!("");
    unnamed["request"]["object"]["metadata"] = json!({ "generateName": "t-", "namespace": "shop" });
    world.ask(unnamed).await.allowed(&["no KollectProfile p"]);
}

#[tokio::test]
async fn an_operator_of_some_namespaces_says_so_and_does_not_call_missing_what_it_cannot_see() {
    let there = [profile("p", "Pod"), object("KollectTarget", "t", &json!({ "profileRef": "p" }))];
    let world = World::within(&there, strict(), &["shop"]);
    world.ask(create("KollectTarget", "t", &json!({ "profileRef": "p" }))).await.allowed(&[]);
    let mut elsewhere = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    elsewhere["request"]["object"]["metadata"]["namespace"] = json!("other");
    let answer = world.ask(elsewhere).await;
    answer.allowed(&["looks at shop only (--watch-namespaces)"]);
    let cluster = create("KollectClusterScope", "s", &json!({}));
    world.ask(cluster).await.allowed(&["looks at shop only"]);
}

#[tokio::test]
async fn nothing_is_allowed_before_scopes_are_known_or_while_they_cannot_be_seen() {
    let blind = World::blind("KollectScope", BlindReason::Forbidden);
    let target = create("KollectTarget", "t", &json!({ "profileRef": "p" }));
    blind.ask(target.clone()).await.denied(403, &["no KollectScope can be seen", "may not list"]);
    blind.ask(profile_question()).await.allowed(&[]);
    let sink = json!({ "type": "nats", "nats": { "url": "nats://a.example:4222", "subject": "a" } });
    blind.ask(create("KollectEventSink", "s", &sink)).await.denied(403, &["no KollectScope can be seen"]);
    blind.ask(create("KollectClusterInventory", "i", &json!({}))).await.allowed(&[]);
    // A single discovery without the kind proves nothing.
    let unknown = World::blind("KollectScope", BlindReason::NotServed);
    unknown.ask(target.clone()).await.denied(403, &["no KollectScope can be seen"]);
    // Where the kind does not exist, no scope does.
    let without = World::without("KollectScope");
    without.ask(target.clone()).await.allowed(&["no KollectProfile p"]);
    let silent = World::silent();
    let (status, text) = silent.post(&path("KollectTarget"), target.to_string()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
    let unchanged =
        update("KollectTarget", "t", &json!({ "profileRef": "p" }), &json!({ "profileRef": "p" }));
    silent.ask(unchanged).await.allowed(&[]);
}

#[tokio::test]
async fn a_review_that_crashes_is_one_error_and_the_next_is_answered() {
    let kind = &schema::kinds()["KollectTarget"];
    let crashed = super::apart(kind, || panic!("a bug")).await;
    assert_eq!(crashed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    World::of(&[], strict()).ask(profile_question()).await.allowed(&[]);
}

fn profile_question() -> Value {
    create("KollectProfile", "p", &profile("p", "Pod")["spec"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reviews_at_the_same_time_are_answered_each_by_itself() {
    let world = Arc::new(World::of(&[profile("p", "Pod")], strict()));
    let mut running = tokio::task::JoinSet::new();
    for index in 0..64 {
        let world = world.clone();
        running.spawn(async move {
            let name = if index % 2 == 0 { "p" } else { "a/b" };
            let answer: Answer = world
                .ask(create("KollectTarget", &format!("t{index}"), &json!({ "profileRef": name })))
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
        flags: super::Flags,
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
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/webhook/manifests.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let found: Value = serde_saphyr::from_str(&text).unwrap();
    let plurals: Vec<(String, String)> = crd::all()
        .iter()
        .map(|crd| &crd["spec"]["names"])
        .map(|names| (names["kind"].as_str().unwrap().into(), names["plural"].as_str().unwrap().into()))
        .collect();
    let webhooks: Vec<Value> = schema::kinds()
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
                "rules": [{
                    "apiGroups": ["kollect.dev"], "apiVersions": ["v1alpha1"],
                    "operations": ["CREATE", "UPDATE"], "resources": [plural],
                }],
                "sideEffects": "None",
            })
        })
        .collect();
    let expected = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "kollect-validating-webhook-configuration" },
        "webhooks": webhooks,
    });
    assert_eq!(found, expected);
}
