//! Every clause that can reject an object, and the queries that targets need.

use kollect_model::crd::scope::ScopeCeiling;
use serde_json::{Value, json};

mod reach;

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
    let bounds = Bounds { ceilings: ceiling.into_iter().collect(), ..Bounds::default() };
    Selection::of_target(
        &spec,
        &gvk("Deployment"),
        &bounds,
        &ExtractPolicy::default(),
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
    .map(|value| (value["name"].as_str().unwrap().into(), Arc::new(metadata(value))))
    .collect();
    Namespaces { known, complete: true }
}

/// Everything of the kind, with the field selector of the first rule.
fn any_query(selection: &Selection) -> Query {
    let field_selector = selection.field_selectors().next().map(ToOwned::to_owned);
    Query { field_selector, ..Query::all(gvk("Deployment")) }
}

fn check(target: Value, ceiling: Value, metadata: Value) -> Result<(), RejectingClause> {
    let selection = selection(&target, ceiling);
    let query = any_query(&selection);
    selection.check(&query, &object(metadata), &namespaces())
}

#[test]
fn each_clause_of_a_target_can_reject_an_object() {
    let object = json!({ "name": "web", "namespace": "a", "labels": { "app": "web" } });
    let cases = [
        (json!({ "profileRef": "p" }), Ok(())),
        (json!({ "profileRef": "p", "includedNamespaces": ["b"] }), Err(RejectingClause::Namespace)),
        (json!({ "profileRef": "p", "excludedNamespaces": ["a"] }), Err(RejectingClause::Namespace)),
        (
            json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "b" } } }),
            Err(RejectingClause::Namespace),
        ),
        (
            json!({ "profileRef": "p", "namespaceExcludeSelector": { "matchLabels": { "team": "a" } } }),
            Err(RejectingClause::Namespace),
        ),
        (json!({ "profileRef": "p", "names": ["api"] }), Err(RejectingClause::Rules)),
        (
            json!({ "profileRef": "p", "labelSelector": { "matchLabels": { "app": "api" } } }),
            Err(RejectingClause::Rules),
        ),
        (json!({ "profileRef": "p", "watchMode": "OptIn" }), Err(RejectingClause::OptedOut)),
        (
            json!({ "profileRef": "p", "resourceRules": [
            { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" }, "matchLabels": { "app": "web" } },
        ] }),
            Ok(()),
        ),
    ];
    for (target, expected) in cases {
        assert_eq!(check(target.clone(), Value::Null, object.clone()), expected, "{target}");
    }
}

#[test]
fn a_target_without_a_known_namespace_selects_nothing() {
    let object = json!({ "name": "web", "namespace": "elsewhere" });
    assert_eq!(
        check(json!({ "profileRef": "p", "includedNamespaces": ["not-there"] }), Value::Null, object.clone()),
        Err(RejectingClause::Namespace)
    );
    assert_eq!(
        check(json!({ "profileRef": "p" }), Value::Null, object),
        Err(RejectingClause::Namespace),
        "unknown namespace"
    );
}

#[test]
fn the_watch_label_of_an_object_wins_over_that_of_its_namespace() {
    for (object, expected) in [
        (json!({ "name": "x", "namespace": "off" }), Err(RejectingClause::OptedOut)),
        (json!({ "name": "x", "namespace": "off", "labels": { "kollect.dev/watch": "enabled" } }), Ok(())),
        (
            json!({ "name": "x", "namespace": "a", "labels": { "kollect.dev/watch": "disabled" } }),
            Err(RejectingClause::OptedOut),
        ),
    ] {
        assert_eq!(check(json!({ "profileRef": "p" }), Value::Null, object.clone()), expected, "{object}");
    }
    let opt_in = json!({ "profileRef": "p", "watchMode": "OptIn" });
    assert_eq!(check(opt_in, Value::Null, json!({ "name": "x", "namespace": "in" })), Ok(()));
}

#[test]
fn scopes_restrict_targets_and_an_empty_list_allows_all() {
    let target = json!({ "profileRef": "p" });
    let in_a = json!({ "name": "x", "namespace": "a" });
    let in_b = json!({ "name": "x", "namespace": "b" });
    let only_a = json!({ "allowedNamespaces": ["a"] });
    assert_eq!(check(target.clone(), only_a.clone(), in_a.clone()), Ok(()));
    assert_eq!(check(target.clone(), only_a, in_b), Err(RejectingClause::NamespaceDenied));
    assert_eq!(
        check(target.clone(), json!({ "deniedNamespaces": ["a"] }), in_a.clone()),
        Err(RejectingClause::NamespaceDenied)
    );
    assert_eq!(check(target.clone(), json!({ "allowedGVKs": [] }), in_a.clone()), Ok(()));
    let pods = json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] });
    assert_eq!(check(target.clone(), pods, in_a.clone()), Err(RejectingClause::KindDenied));
    let deployments = json!({ "allowedGVKs": [{ "group": "APPS", "version": "v1", "kind": "deployment" }] });
    assert_eq!(check(target, deployments, in_a), Ok(()));
}

#[test]
fn cluster_scoped_objects_are_in_no_namespace() {
    let node = json!({ "name": "node-1" });
    assert_eq!(check(json!({ "profileRef": "p" }), Value::Null, node.clone()), Ok(()));
    assert_eq!(
        check(json!({ "profileRef": "p", "includedNamespaces": ["a"] }), Value::Null, node.clone()),
        Err(RejectingClause::ClusterScoped)
    );
    assert_eq!(
        check(json!({ "profileRef": "p" }), json!({ "allowedNamespaces": ["a"] }), node),
        Err(RejectingClause::ClusterScoped)
    );
}

/// Namespaces in which listing is forbidden; `None`: the whole cluster.
type Denied<'a> = &'a [Option<&'a str>];

/// Namespace, label selector, field selector and served targets of each query, as text; then what may not be
/// queried, and the undecided targets.
fn queries_of(
    targets: &[&Value],
    only: Option<&str>,
    namespaces: &Namespaces,
    denied: Denied<'_>,
) -> Vec<String> {
    let selections: Vec<Selection> = targets.iter().map(|target| selection(target, Value::Null)).collect();
    let member = |(number, selection)| QueryTarget { number, selection, metadata_only: number == 7 };
    let members: Vec<QueryTarget<'_>> = (0..).zip(&selections).map(member).collect();
    let within: Option<BTreeSet<Arc<str>>> = only.map(|only| [only.into()].into());
    let denied = denied.iter().map(|namespace| namespace.map(Into::into)).collect();
    let found = queries(&gvk("Deployment"), true, &members, namespaces, within.as_ref(), &denied);
    let namespace_text =
        |namespace: Option<Arc<str>>| namespace.map_or("all".to_owned(), |name| name.to_string());
    let text = |(query, served): (Query, BTreeSet<u32>)| {
        let labels = query.label_selector.unwrap_or_default();
        let fields = query.name.or(query.field_selector).unwrap_or_default();
        format!("{} [{labels}] [{fields}] for {served:?}", namespace_text(query.namespace))
    };
    let forbidden = found
        .forbidden
        .into_iter()
        .map(|(namespace, served)| format!("dark {} for {served:?}", namespace_text(namespace)));
    let undecided = found.undecided.into_iter().map(|number| format!("undecided {number}"));
    found.wanted.into_iter().map(text).chain(forbidden).chain(undecided).collect()
}

fn permitted_queries(targets: &[&Value], only: Option<&str>) -> Vec<String> {
    queries_of(targets, only, &namespaces(), &[])
}

#[test]
fn queries_are_as_narrow_as_all_targets_allow() {
    let labels = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [
        { "key": "tier", "operator": "NotIn", "values": ["x", "y"] },
        { "key": "a", "operator": "Exists" }, { "key": "b", "operator": "DoesNotExist" },
    ] });
    let in_a = json!({ "profileRef": "p", "includedNamespaces": ["a"], "labelSelector": labels });
    let in_b = json!({ "profileRef": "p", "includedNamespaces": ["b"] });
    let everywhere = json!({ "profileRef": "p" });
    let field = json!({ "profileRef": "p", "fieldSelector": "metadata.name=x" });
    // Each namespace is queried only for what targets select there.
    let expected = ["a [app=web,tier notin (x,y),a,!b] [] for {0}", "b [] [] for {1}"];
    assert_eq!(permitted_queries(&[&in_a, &in_b], None), expected);
    assert_eq!(permitted_queries(&[&in_a, &everywhere], None), ["all [] [] for {0, 1}"]);
    assert_eq!(permitted_queries(&[&everywhere], Some("a")), ["a [] [] for {0}"]);
    // What the API server filters for one target must not be missing for another.
    assert_eq!(
        permitted_queries(&[&everywhere, &field], None),
        ["all [] [] for {0}", "all [] [metadata.name=x] for {1}"]
    );
    let named = json!({ "profileRef": "p", "names": ["x"] });
    let two = json!({ "profileRef": "p", "names": ["x", "y"] });
    assert_eq!(permitted_queries(&[&named, &named], None), ["all [] [x] for {0, 1}"]);
    assert_eq!(permitted_queries(&[&named, &two], None), ["all [] [] for {0, 1}"]);
    let labelled = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "b" } } });
    assert_eq!(permitted_queries(&[&labelled], None), ["b [] [] for {0}"]);
    let missing = json!({ "profileRef": "p", "includedNamespaces": ["not-there"] });
    assert!(permitted_queries(&[&missing], None).is_empty(), "an empty set selects nothing");
    let denied = selection(&named, json!({ "allowedGVKs": [{ "version": "v1", "kind": "Pod" }] }));
    assert!(denied.kinds().is_empty(), "what a scope denies is not listed");
}

#[test]
fn many_namespaces_are_one_query() {
    let known = (0..20).map(|number| {
        let name: Arc<str> = format!("n{number}").into();
        (
            name.clone(),
            Arc::new(metadata(json!({ "name": &*name, "labels": { "few": (number < 3).to_string() } }))),
        )
    });
    let namespaces = Namespaces { known: known.collect(), complete: true };
    let target = |labels: Value| json!({ "profileRef": "p", "namespaceSelector": labels });
    let few = target(json!({ "matchLabels": { "few": "true" } }));
    let many = target(json!({ "matchExpressions": [{ "key": "few", "operator": "Exists" }] }));
    assert_eq!(queries_of(&[&few], None, &namespaces, &[]).len(), 3);
    assert_eq!(queries_of(&[&many], None, &namespaces, &[]), ["all [] [] for {0}"]);
    // Not permitted: as many as there are.
    let queries_by_namespace = queries_of(&[&many], None, &namespaces, &[None, Some("n7")]);
    assert_eq!(queries_by_namespace.len(), 20);
    assert_eq!(queries_by_namespace[19], "dark n7 for {0}");
}

#[test]
fn without_a_list_of_namespaces_only_named_namespaces_are_queried() {
    let unknown = Namespaces { known: [("a".into(), Arc::default())].into(), complete: false };
    let everywhere = json!({ "profileRef": "p" });
    let in_a = json!({ "profileRef": "p", "includedNamespaces": ["a"] });
    let opt_in = json!({ "profileRef": "p", "includedNamespaces": ["a"], "watchMode": "OptIn" });
    assert_eq!(
        queries_of(&[&everywhere, &in_a, &opt_in], None, &unknown, &[]),
        ["a [] [] for {1}", "undecided 0", "undecided 2"]
    );
    assert_eq!(queries_of(&[&everywhere], Some("a"), &unknown, &[]), ["a [] [] for {0}"]);
}

#[test]
fn rules_of_several_kinds_are_each_watched() {
    let target = json!({ "profileRef": "p", "resourceRules": [
        { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" } },
        { "gvk": { "group": "apps", "version": "v1", "kind": "StatefulSet" } },
    ] });
    let kinds = selection(&target, Value::Null);
    let kinds: Vec<&str> = kinds.kinds().into_iter().map(|gvk| &*gvk.kind).collect();
    assert_eq!(kinds, ["Deployment", "StatefulSet"]);
    let twice = json!({ "profileRef": "p", "resourceRules": [
        { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" } },
        { "gvk": { "group": "apps", "version": "v1beta1", "kind": "Deployment" } },
    ] });
    let spec = serde_json::from_value(twice).unwrap();
    let policy = ExtractPolicy::default();
    let errors = Selection::of_target(
        &spec,
        &gvk("Deployment"),
        &Bounds::default(),
        &policy,
        &NamespaceDefaults::default(),
    );
    assert_eq!(errors.unwrap_err()[0].field, "spec.resourceRules[1].gvk.version");
}

#[test]
fn a_namespace_that_changes_has_an_effect_only_where_it_is_read() {
    let before = metadata(json!({ "name": "a", "labels": { "team": "a", "other": "1" } }));
    let relabelled = metadata(json!({ "name": "a", "labels": { "team": "b" } }));
    let opted_out =
        metadata(json!({ "name": "a", "labels": { "team": "a", "kollect.dev/watch": "disabled" } }));
    let effect = |target: Value, after: Option<&Metadata>| {
        selection(&target, Value::Null).effect(&gvk("Deployment"), "a", Some(&before), after)
    };
    let everywhere = json!({ "profileRef": "p" });
    let by_label = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "a" } } });
    let joins = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "b" } } });
    let policy = json!({ "profileRef": "p", "resourceRules": [{
        "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" },
        "matchPolicy": "has(namespaceObject.metadata.labels.other)",
    }] });
    assert_eq!(effect(everywhere.clone(), Some(&relabelled)), NamespaceEffect::None);
    assert_eq!(effect(everywhere.clone(), Some(&opted_out)), NamespaceEffect::Other);
    assert_eq!(effect(everywhere, None), NamespaceEffect::Lost);
    assert_eq!(effect(by_label, Some(&relabelled)), NamespaceEffect::Lost);
    assert_eq!(effect(joins, Some(&relabelled)), NamespaceEffect::Other);
    assert_eq!(effect(policy, Some(&relabelled)), NamespaceEffect::Other);
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
        ("object.spec.replicas > 3", Err(RejectingClause::Policy)),
        ("object.spec.missing > 3", Err(RejectingClause::Policy)),
        ("object.spec.replicas", Err(RejectingClause::Policy)),
        ("namespaceObject.metadata.labels.team == 'a'", Ok(())),
    ] {
        assert_eq!(check(rule(policy), Value::Null, web.clone()), expected, "{policy}");
    }
    let spec = serde_json::from_value(rule("object.spec.replicas >")).unwrap();
    let errors = Selection::of_target(
        &spec,
        &gvk("Deployment"),
        &Bounds::default(),
        &ExtractPolicy::default(),
        &NamespaceDefaults::default(),
    )
    .unwrap_err();
    assert_eq!(errors[0].field, "spec.resourceRules[0].matchPolicy");
}

#[test]
fn defaults_apply_to_targets_that_name_no_namespaces() {
    let defaults = NamespaceDefaults { included: vec!["a".into()], excluded: vec!["b".into()] };
    let check = |target: Value, namespace: &str| {
        let spec: KollectTargetSpec = serde_json::from_value(target).unwrap();
        let selection = Selection::of_target(
            &spec,
            &gvk("Deployment"),
            &Bounds::default(),
            &ExtractPolicy::default(),
            &defaults,
        )
        .unwrap();
        let query = any_query(&selection);
        selection.check(&query, &object(json!({ "name": "x", "namespace": namespace })), &namespaces())
    };
    assert_eq!(check(json!({ "profileRef": "p" }), "a"), Ok(()));
    assert_eq!(check(json!({ "profileRef": "p" }), "in"), Err(RejectingClause::Namespace));
    assert_eq!(check(json!({ "profileRef": "p", "includedNamespaces": ["in", "b"] }), "in"), Ok(()));
    assert_eq!(
        check(json!({ "profileRef": "p", "includedNamespaces": ["in", "b"] }), "b"),
        Err(RejectingClause::Namespace)
    );
    assert_eq!(
        check(json!({ "profileRef": "p" }), ""),
        Ok(()),
        "defaults say nothing about cluster-scoped objects"
    );
}

#[test]
fn policies_know_the_kind_and_see_no_secrets() {
    let agrees = |policy: &str, settings: &ExtractPolicy| {
        let rule = json!({ "profileRef": "p", "resourceRules": [
            { "gvk": { "group": "apps", "version": "v1", "kind": "Deployment" }, "matchPolicy": policy },
        ] });
        let spec = serde_json::from_value(rule).unwrap();
        let selection = Selection::of_target(
            &spec,
            &gvk("Deployment"),
            &Bounds::default(),
            settings,
            &NamespaceDefaults::default(),
        )
        .unwrap();
        let raw = json!({ "metadata": { "name": "x", "namespace": "a" }, "data": { "x": "hunter2" }, "pin": "hunter2" });
        let object =
            Object::parse(serde_json::value::to_raw_value(&raw).unwrap(), &gvk("Deployment")).unwrap();
        let query = any_query(&selection);
        selection.check(&query, &object, &namespaces()).is_ok()
    };
    let strict = ExtractPolicy {
        scrub_keys: vec!["pin".into()],
        sensitive_kinds: vec![("apps".into(), "Deployment".into())],
        ..ExtractPolicy::default()
    };
    assert!(agrees("object.kind == 'Deployment' && object.apiVersion == 'apps/v1'", &strict));
    for policy in ["object.data.x.startsWith('hunter')", "object.pin == 'hunter2'"] {
        assert!(agrees(policy, &ExtractPolicy::default()), "{policy}");
        assert!(!agrees(policy, &strict), "{policy}");
    }
}
