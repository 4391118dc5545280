//! What admission says to a team that asks for more than its namespace.

use super::*;
use crate::resolve::Reach;

/// OperatorPolicy of an operator in namespace kollect-system, without flags.
fn scoped() -> OperatorPolicy {
    OperatorPolicy {
        reach: Reach::OwnNamespace,
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
async fn law_9_what_is_beyond_the_reach_is_refused_with_what_to_write() {
    let elsewhere = json!({ "includedNamespaces": ["shop", "bank"] });
    let world = World::of(&[profile("p", "Pod")], scoped());
    world.ask(target(&json!({}))).await.allowed(&[]);
    let fix = "spec.allowedNamespaces of a KollectScope in namespace shop";
    world.ask(target(&elsewhere)).await.denied(403, &["spec.includedNamespaces[1] = \"bank\"", fix]);
    world.ask(target(&json!({ "namespaceSelector": {} }))).await.allowed(&[fix]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "namespaceSelector": {} });
    world.ask(target(&json!({ "resourceRules": [rule] }))).await.allowed(&[fix]);

    for grant in [json!(["shop", "bank"]), json!(["*"])] {
        let scope = scope(&json!({ "allowedNamespaces": grant }));
        World::of(&[profile("p", "Pod"), scope], scoped()).ask(target(&elsewhere)).await.allowed(&[]);
    }
    let by_labels = scope(&json!({ "allowedNamespaceSelector": { "matchLabels": { "a": "b" } } }));
    World::of(&[profile("p", "Pod"), by_labels], scoped()).ask(target(&elsewhere)).await.allowed(&[]);
    let all = OperatorPolicy { reach: Reach::All, ..scoped() };
    World::of(&[profile("p", "Pod")], all).ask(target(&elsewhere)).await.allowed(&[]);
    let empty = json!({ "allowedNamespaceSelector": {} });
    let answer = world.ask(create("KollectScope", "s", &empty)).await;
    answer.denied(422, &["spec.allowedNamespaceSelector", "allowedNamespaces"]);
}

#[tokio::test]
async fn law_9_a_scope_that_cannot_be_read_forbids() {
    let mut broken = scope(&json!({}));
    broken["spec"]["minExportInterval"] = json!("soon");
    let world = World::of(&[profile("p", "Pod"), broken], scoped());
    world.ask(target(&json!({}))).await.denied(403, &["KollectScope limits cannot be read"]);
    let inventory = create("KollectInventory", "i", &json!({}));
    world.ask(inventory).await.denied(403, &["KollectScope limits cannot be read"]);
}

#[tokio::test]
async fn law_10_data_of_secrets_needs_the_annotation_and_the_flag() {
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
        for (operator_policy, question) in [
            (scoped(), &plain),
            (scoped(), &annotated),
            (named(&["bank", "kollect-system"]), &annotated),
            (named(&["shop"]), &plain),
        ] {
            World::of(&[], operator_policy).ask(question.clone()).await.denied(422, &both);
        }
        World::of(&[], named(&["shop"])).ask(annotated).await.allowed(&[]);
    }
}

#[tokio::test]
async fn cluster_objects_in_the_hands_of_a_team_are_warned_about() {
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
    let world = World::of(&objects, scoped());
    let profile = ["KollectProfile p: users who may edit it in namespace shop", "move it to kollect-system"];
    let answer = world.ask(target("shop")).await;
    answer.allowed(&profile[..1]);
    answer.allowed(&profile[1..]);
    world.ask(inventory("shop")).await.allowed(&["database sink d: users who may edit it in namespace shop"]);
    world.ask(target("kollect-system")).await.allowed(&["add it or correct the name"]);
    let listed =
        object("KollectClusterScope", "platform", &json!({ "allowedStaticRefNamespaces": ["shop"] }));
    let world = World::of(&[&objects[..], &[listed]].concat(), scoped());
    world.ask(target("shop")).await.allowed(&[]);
    world.ask(inventory("shop")).await.allowed(&[]);
}

#[tokio::test]
async fn law_10_cluster_targets_read_secrets_only_if_the_operators_namespace_is_named() {
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
    let hands = "users who may edit it";
    for (named, warnings) in
        [("shop", &[hands, "and start the operator with"][..]), ("kollect-system", &[hands][..])]
    {
        let operator_policy =
            OperatorPolicy { secret_extraction: Some([named.to_owned()].into()), ..scoped() };
        World::of(&[secrets.clone()], operator_policy).ask(target.clone()).await.allowed(warnings);
    }
}
