//! Admission of objects with which a team requests more than its namespace.

use super::*;
use crate::resolve::TargetReach;

/// The policy of an operator in namespace kollect-system, without flags.
fn scoped() -> OperatorPolicy {
    OperatorPolicy {
        reach: TargetReach::OwnNamespace,
        secret_extraction: Some([].into()),
        own_namespace: Some("kollect-system".into()),
        ..strict()
    }
}

fn target(more: &Value) -> Value {
    let mut spec = json!({ "profileRef": "p" });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    create("KollectTarget", "t", &spec)
}

#[tokio::test]
async fn a_target_beyond_its_reach_is_refused_with_what_to_write_instead() {
    let two_namespaces = json!({ "includedNamespaces": ["shop", "bank"] });
    let test = WebhookTest::of(&[profile("p", "Pod")], scoped());
    test.review(target(&json!({}))).await.allowed(&[]);
    let fix = "spec.allowedNamespaces of a KollectScope in namespace shop";
    test.review(target(&two_namespaces)).await.denied(403, &["spec.includedNamespaces[1] = \"bank\"", fix]);
    test.review(target(&json!({ "namespaceSelector": {} }))).await.allowed(&[fix]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "namespaceSelector": {} });
    test.review(target(&json!({ "resourceRules": [rule] }))).await.allowed(&[fix]);

    for grant in [json!(["shop", "bank"]), json!(["*"])] {
        let scope = scope(&json!({ "allowedNamespaces": grant }));
        WebhookTest::of(&[profile("p", "Pod"), scope], scoped())
            .review(target(&two_namespaces))
            .await
            .allowed(&[]);
    }
    let by_labels = scope(&json!({ "allowedNamespaceSelector": { "matchLabels": { "a": "b" } } }));
    WebhookTest::of(&[profile("p", "Pod"), by_labels], scoped())
        .review(target(&two_namespaces))
        .await
        .allowed(&[]);
    let all = OperatorPolicy { reach: TargetReach::All, ..scoped() };
    WebhookTest::of(&[profile("p", "Pod")], all).review(target(&two_namespaces)).await.allowed(&[]);
    let empty = json!({ "allowedNamespaceSelector": {} });
    let answer = test.review(create("KollectScope", "s", &empty)).await;
    answer.denied(422, &["spec.allowedNamespaceSelector", "allowedNamespaces"]);
}

#[tokio::test]
async fn a_scope_that_cannot_be_read_forbids_everything() {
    let mut broken = scope(&json!({}));
    broken["spec"]["minExportInterval"] = json!("soon");
    let test = WebhookTest::of(&[profile("p", "Pod"), broken], scoped());
    test.review(target(&json!({}))).await.denied(403, &["KollectScope limits cannot be read"]);
    let inventory = create("KollectInventory", "i", &json!({}));
    test.review(inventory).await.denied(403, &["KollectScope limits cannot be read"]);
}

#[tokio::test]
async fn data_of_secrets_needs_the_annotation_and_the_flag() {
    let named = |namespaces: &[&str]| OperatorPolicy {
        secret_extraction: Some(namespaces.iter().map(ToString::to_string).collect()),
        ..scoped()
    };
    let gvk = json!({ "version": "v1", "kind": "Secret" });
    for path in ["$.data.password", "cel:object.data", "helm:release.config"] {
        let spec = json!({ "targetGVK": gvk, "attributes": [{ "name": "a", "path": path }] });
        let plain = create("KollectProfile", "p", &spec);
        let mut annotated = plain.clone();
        annotated["request"]["object"]["metadata"]["annotations"] =
            json!({ "kollect.dev/allow-secret-extraction": "true" });
        let both = ["kollect.dev/allow-secret-extraction: \"true\"", "--allow-secret-extraction shop"];
        for (operator_policy, review) in [
            (scoped(), &plain),
            (scoped(), &annotated),
            (named(&["bank", "kollect-system"]), &annotated),
            (named(&["shop"]), &plain),
        ] {
            WebhookTest::of(&[], operator_policy).review(review.clone()).await.denied(422, &both);
        }
        WebhookTest::of(&[], named(&["shop"])).review(annotated).await.allowed(&[]);
    }
}

#[tokio::test]
async fn cluster_objects_that_a_team_may_edit_get_a_warning() {
    let target = |namespace: &str| {
        let profile = json!({ "name": "p", "namespace": namespace });
        let spec = json!({ "profileRef": profile, "namespaceSelector": { "matchLabels": { "a": "b" } } });
        create("KollectClusterTarget", "t", &spec)
    };
    let inventory = |namespace: &str| {
        let spec = json!({ "sinkNamespace": namespace, "databaseSinkRefs": ["d"] });
        create("KollectClusterInventory", "i", &spec)
    };
    let database = object("KollectDatabaseSink", "d", &sqlite());
    let objects = [profile("p", "Pod"), database];
    let test = WebhookTest::of(&objects, scoped());
    let profile = ["KollectProfile p: users who may edit it in namespace shop", "move it to kollect-system"];
    let answer = test.review(target("shop")).await;
    answer.allowed(&profile[..1]);
    answer.allowed(&profile[1..]);
    test.review(inventory("shop"))
        .await
        .allowed(&["database sink d: users who may edit it in namespace shop"]);
    test.review(target("kollect-system")).await.allowed(&["add it or correct the name"]);
    let listed =
        object("KollectClusterScope", "platform", &json!({ "allowedStaticRefNamespaces": ["shop"] }));
    let test = WebhookTest::of(&[&objects[..], &[listed]].concat(), scoped());
    test.review(target("shop")).await.allowed(&[]);
    test.review(inventory("shop")).await.allowed(&[]);
}

#[tokio::test]
async fn cluster_targets_read_secrets_only_if_the_operators_namespace_is_named() {
    let gvk = json!({ "version": "v1", "kind": "Secret" });
    let spec = json!({ "targetGVK": gvk, "attributes": [{ "name": "a", "path": "$.data.password" }] });
    let mut secrets = object("KollectProfile", "p", &spec);
    secrets["metadata"]["annotations"] = json!({ "kollect.dev/allow-secret-extraction": "true" });
    let target = create(
        "KollectClusterTarget",
        "t",
        &json!({
            "profileRef": { "name": "p", "namespace": "shop" },
            "namespaceSelector": { "matchLabels": { "a": "b" } },
        }),
    );
    let editable = "users who may edit it";
    for (named, warnings) in
        [("shop", &[editable, "and start the operator with"][..]), ("kollect-system", &[editable][..])]
    {
        let operator_policy =
            OperatorPolicy { secret_extraction: Some([named.to_owned()].into()), ..scoped() };
        WebhookTest::of(&[secrets.clone()], operator_policy).review(target.clone()).await.allowed(warnings);
    }
}
