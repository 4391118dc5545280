//! Every clause that can say no, and the queries that targets need.

use serde_json::{Value, json};

use super::*;

fn gvk(kind: &str) -> Gvk {
    Gvk { group: "apps".into(), version: "v1".into(), kind: kind.into() }
}

fn metadata(value: Value) -> Metadata {
    serde_json::from_value(value).unwrap()
}

fn object(metadata: Value) -> Object {
    let raw =
        serde_json::value::to_raw_value(&json!({ "metadata": metadata, "spec": { "replicas": 3 } })).unwrap();
    Object::parse(raw, &gvk("Deployment")).unwrap()
}

fn selection(target: &Value, ceiling: Value) -> Selection {
    let spec: KollectTargetSpec = serde_json::from_value(target.clone()).unwrap();
    let ceiling: Option<ScopeCeiling> = serde_json::from_value(ceiling).unwrap();
    Selection::of_target(
        &spec,
        &gvk("Deployment"),
        ceiling.as_ref(),
        &Policy::default(),
        &NamespaceDefaults::default(),
    )
    .unwrap()
}

fn namespaces() -> Namespaces {
    let known = [
        json!({ "name": "a", "labels": { "team": "a" } }),
        json!({ "name": "b", "labels": { "team": "b" } }),
        json!({ "name": "off", "labels": { "kollect.dev/watch": "disabled" } }),
        json!({ "name": "in", "annotations": { "kollect.dev/namespace-watch": "enabled" } }),
    ]
    .into_iter()
    .map(|value| (value["name"].as_str().unwrap().to_owned(), metadata(value)))
    .collect();
    Namespaces { known, complete: true }
}

fn verdict(target: Value, ceiling: Value, metadata: Value) -> Result<(), Rejected> {
    let selection = selection(&target, ceiling);
    let own = || Query {
        gvk: gvk("Deployment"),
        scope: Scope::All,
        label_selector: None,
        name: None,
        field_selector: None,
    };
    let query = queries(&[&selection], None).into_keys().next().unwrap_or_else(own);
    selection.verdict(&query, &object(metadata), &namespaces())
}

#[test]
fn clauses() {
    let object = json!({ "name": "web", "namespace": "a", "labels": { "app": "web" } });
    let cases = [
        (json!({ "profileRef": "p" }), Ok(())),
        (json!({ "profileRef": "p", "includedNamespaces": ["b"] }), Err(Rejected::Namespace)),
        (json!({ "profileRef": "p", "excludedNamespaces": ["a"] }), Err(Rejected::Namespace)),
        (
            json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "b" } } }),
            Err(Rejected::Namespace),
        ),
        (
            json!({ "profileRef": "p", "namespaceExcludeSelector": { "matchLabels": { "team": "a" } } }),
            Err(Rejected::Namespace),
        ),
        (json!({ "profileRef": "p", "names": ["api"] }), Err(Rejected::Rules)),
        (
            json!({ "profileRef": "p", "labelSelector": { "matchLabels": { "app": "api" } } }),
            Err(Rejected::Rules),
        ),
        (json!({ "profileRef": "p", "watchMode": "OptIn" }), Err(Rejected::OptedOut)),
        (
            json!({ "profileRef": "p", "resourceRules": [
            { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" }, "matchLabels": { "app": "web" } },
        ] }),
            Ok(()),
        ),
    ];
    for (target, expected) in cases {
        assert_eq!(verdict(target.clone(), Value::Null, object.clone()), expected, "{target}");
    }
}

#[test]
fn w5_no_namespace_left_selects_nothing() {
    let object = json!({ "name": "web", "namespace": "elsewhere" });
    assert_eq!(
        verdict(
            json!({ "profileRef": "p", "includedNamespaces": ["not-there"] }),
            Value::Null,
            object.clone()
        ),
        Err(Rejected::Namespace)
    );
    assert_eq!(
        verdict(json!({ "profileRef": "p" }), Value::Null, object),
        Err(Rejected::Namespace),
        "unknown namespace"
    );
}

#[test]
fn the_object_wins_over_its_namespace() {
    for (object, expected) in [
        (json!({ "name": "x", "namespace": "off" }), Err(Rejected::OptedOut)),
        (json!({ "name": "x", "namespace": "off", "labels": { "kollect.dev/watch": "enabled" } }), Ok(())),
        (
            json!({ "name": "x", "namespace": "a", "labels": { "kollect.dev/watch": "disabled" } }),
            Err(Rejected::OptedOut),
        ),
    ] {
        assert_eq!(verdict(json!({ "profileRef": "p" }), Value::Null, object.clone()), expected, "{object}");
    }
    let opt_in = json!({ "profileRef": "p", "watchMode": "OptIn" });
    assert_eq!(verdict(opt_in, Value::Null, json!({ "name": "x", "namespace": "in" })), Ok(()));
}

#[test]
fn q6_scopes_clip_and_q10_an_empty_list_allows_all() {
    let target = json!({ "profileRef": "p" });
    let in_a = json!({ "name": "x", "namespace": "a" });
    let in_b = json!({ "name": "x", "namespace": "b" });
    let only_a = json!({ "allowedNamespaces": ["a"] });
    assert_eq!(verdict(target.clone(), only_a.clone(), in_a.clone()), Ok(()));
    assert_eq!(verdict(target.clone(), only_a, in_b), Err(Rejected::NamespaceDenied));
    assert_eq!(
        verdict(target.clone(), json!({ "deniedNamespaces": ["a"] }), in_a.clone()),
        Err(Rejected::NamespaceDenied)
    );
    assert_eq!(verdict(target.clone(), json!({ "allowedGVKs": [] }), in_a.clone()), Ok(()));
    let pods = json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] });
    assert_eq!(verdict(target.clone(), pods, in_a.clone()), Err(Rejected::KindDenied));
    let deployments = json!({ "allowedGVKs": [{ "group": "APPS", "version": "v1", "kind": "deployment" }] });
    assert_eq!(verdict(target, deployments, in_a), Ok(()));
}

#[test]
fn w15_cluster_scoped_objects_are_in_no_namespace() {
    let node = json!({ "name": "node-1" });
    assert_eq!(verdict(json!({ "profileRef": "p" }), Value::Null, node.clone()), Ok(()));
    assert_eq!(
        verdict(json!({ "profileRef": "p", "includedNamespaces": ["a"] }), Value::Null, node.clone()),
        Err(Rejected::ClusterScoped)
    );
    assert_eq!(
        verdict(json!({ "profileRef": "p" }), json!({ "allowedNamespaces": ["a"] }), node),
        Err(Rejected::ClusterScoped)
    );
}

/// Kind, namespaces, label selector, field selector and served targets of each query, as text.
fn queries_of(targets: &[&Value], only: Option<&str>) -> Vec<String> {
    let selections: Vec<Selection> = targets.iter().map(|target| selection(target, Value::Null)).collect();
    let selections: Vec<&Selection> = selections.iter().collect();
    let text = |(query, served): (Query, Vec<usize>)| {
        let namespaces = match query.scope {
            Scope::All => "all".to_owned(),
            Scope::Namespaces(names) => names.into_iter().collect::<Vec<_>>().join(","),
        };
        let labels = query.label_selector.unwrap_or_default();
        let fields = query.name.or(query.field_selector).unwrap_or_default();
        format!("{} in {namespaces} with [{labels}] [{fields}] for {served:?}", query.gvk.kind)
    };
    queries(&selections, only).into_iter().map(text).collect()
}

#[test]
fn queries_are_as_narrow_as_all_targets_allow() {
    let labels = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [
        { "key": "tier", "operator": "NotIn", "values": ["x", "y"] },
        { "key": "a", "operator": "Exists" }, { "key": "b", "operator": "DoesNotExist" },
    ] });
    let in_a = json!({ "profileRef": "p", "includedNamespaces": ["a"], "labelSelector": labels });
    let in_b = json!({ "profileRef": "p", "includedNamespaces": ["b"], "labelSelector": labels });
    let everywhere = json!({ "profileRef": "p" });
    let field = json!({ "profileRef": "p", "fieldSelector": "metadata.name=x" });
    assert_eq!(
        queries_of(&[&in_a, &in_b], None),
        ["Deployment in a,b with [app=web,tier notin (x,y),a,!b] [] for [0, 1]"]
    );
    assert_eq!(queries_of(&[&in_a, &everywhere], None), ["Deployment in all with [] [] for [0, 1]"]);
    assert_eq!(queries_of(&[&everywhere], Some("c")), ["Deployment in c with [] [] for [0]"]);
    // What the API server filters for one target must not be missing for another.
    assert_eq!(
        queries_of(&[&everywhere, &field], None),
        ["Deployment in all with [] [] for [0]", "Deployment in all with [] [metadata.name=x] for [1]"]
    );
    let named = json!({ "profileRef": "p", "names": ["x"] });
    let two = json!({ "profileRef": "p", "names": ["x", "y"] });
    assert_eq!(queries_of(&[&named, &named], None), ["Deployment in all with [] [x] for [0, 1]"]);
    assert_eq!(queries_of(&[&named, &two], None), ["Deployment in all with [] [] for [0, 1]"]);
    let denied = selection(&named, json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }));
    assert!(queries(&[&denied], None).is_empty(), "what a scope denies is not listed");
    let nothing = selection(&in_a, json!({ "allowedNamespaces": ["b"] }));
    assert_eq!(scope([&nothing].into_iter(), None), Scope::Namespaces(BTreeSet::new()));
}

#[test]
fn rules_of_several_kinds_are_each_watched() {
    let target = json!({ "profileRef": "p", "resourceRules": [
        { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" } },
        { "gvk": { "group": "apps", "version": "v1", "kind": "StatefulSet" } },
    ] });
    let expected = ["Deployment in all with [] [] for [0]", "StatefulSet in all with [] [] for [0]"];
    assert_eq!(queries_of(&[&target], None), expected);
}
#[test]
fn policies_decide_last_and_fail_closed() {
    let rule = |policy: &str| {
        json!({ "profileRef": "p", "resourceRules": [
        { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" }, "matchPolicy": policy },
    ] })
    };
    let web = json!({ "name": "web", "namespace": "a" });
    for (policy, expected) in [
        ("object.spec.replicas > 2", Ok(())),
        ("object.spec.replicas > 3", Err(Rejected::Policy)),
        ("object.spec.missing > 3", Err(Rejected::Policy)),
        ("object.spec.replicas", Err(Rejected::Policy)),
        ("namespaceObject.metadata.labels.team == 'a'", Ok(())),
    ] {
        assert_eq!(verdict(rule(policy), Value::Null, web.clone()), expected, "{policy}");
    }
    let spec = serde_json::from_value(rule("object.spec.replicas >")).unwrap();
    let errors = Selection::of_target(
        &spec,
        &gvk("Deployment"),
        None,
        &Policy::default(),
        &NamespaceDefaults::default(),
    )
    .unwrap_err();
    assert_eq!(errors[0].field, "spec.resourceRules[0].matchPolicy");
}

#[test]
fn defaults_complete_what_targets_leave_open() {
    let defaults = NamespaceDefaults { included: vec!["a".into()], excluded: vec!["b".into()] };
    let check = |target: Value, namespace: &str| {
        let spec: KollectTargetSpec = serde_json::from_value(target).unwrap();
        let selection =
            Selection::of_target(&spec, &gvk("Deployment"), None, &Policy::default(), &defaults).unwrap();
        let query = queries(&[&selection], None).into_keys().next().unwrap();
        selection.verdict(&query, &object(json!({ "name": "x", "namespace": namespace })), &namespaces())
    };
    assert_eq!(check(json!({ "profileRef": "p" }), "a"), Ok(()));
    assert_eq!(check(json!({ "profileRef": "p" }), "in"), Err(Rejected::Namespace));
    assert_eq!(check(json!({ "profileRef": "p", "includedNamespaces": ["in", "b"] }), "in"), Ok(()));
    assert_eq!(
        check(json!({ "profileRef": "p", "includedNamespaces": ["in", "b"] }), "b"),
        Err(Rejected::Namespace)
    );
    assert_eq!(
        check(json!({ "profileRef": "p" }), ""),
        Ok(()),
        "defaults say nothing about cluster-scoped objects"
    );
}

#[test]
fn policies_know_the_kind_and_see_no_secrets() {
    let agrees = |policy: &str, settings: &Policy| {
        let rule = json!({ "profileRef": "p", "resourceRules": [
            { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" }, "matchPolicy": policy },
        ] });
        let spec = serde_json::from_value(rule).unwrap();
        let selection =
            Selection::of_target(&spec, &gvk("Deployment"), None, settings, &NamespaceDefaults::default())
                .unwrap();
        let raw = json!({ "metadata": { "name": "x", "namespace": "a" }, "data": { "x": "hunter2" }, "pin": "hunter2" });
        let object =
            Object::parse(serde_json::value::to_raw_value(&raw).unwrap(), &gvk("Deployment")).unwrap();
        let query = queries(&[&selection], None).into_keys().next().unwrap();
        selection.verdict(&query, &object, &namespaces()).is_ok()
    };
    let strict = Policy {
        scrub_keys: vec!["pin".into()],
        sensitive_kinds: vec![("apps".into(), "Deployment".into())],
    };
    assert!(agrees("object.kind == 'Deployment' && object.apiVersion == 'apps/v1'", &strict));
    for policy in ["object.data.x.startsWith('hunter')", "object.pin == 'hunter2'"] {
        assert!(agrees(policy, &Policy::default()), "{policy}");
        assert!(!agrees(policy, &strict), "{policy}");
    }
}
