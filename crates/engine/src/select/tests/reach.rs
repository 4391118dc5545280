//! A target of namespace `a` that reaches its own namespace, and what scopes name.

use super::*;

/// A selection within the reach of namespace `a`.
fn reaching(target: &Value, ceilings: &Value) -> Selection {
    let spec: KollectTargetSpec = serde_json::from_value(target.clone()).unwrap();
    let bounds = Bounds {
        ceilings: serde_json::from_value(ceilings.clone()).unwrap(),
        namespaces: Some([Arc::from("a")].into()),
        cluster_scoped_by_name: true,
    };
    let defaults = NamespaceDefaults::default();
    Selection::of_target(&spec, &gvk("Deployment"), &bounds, &ExtractPolicy::default(), &defaults).unwrap()
}

fn check_in(selection: &Selection, namespace: &str) -> Result<(), RejectingClause> {
    let object = object(json!({ "name": "x", "namespace": namespace }));
    selection.check(&any_query(selection), &object, &namespaces())
}

fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn only_a_scope_that_names_a_namespace_adds_it() {
    let all = json!({ "profileRef": "p" });
    let beyond = Err(RejectingClause::BeyondReach);
    let denied = Err(RejectingClause::NamespaceDenied);
    for (scopes, expected) in [
        (json!([]), beyond),
        (json!([{}]), beyond),
        (json!([{ "allowedGVKs": [gvk("Deployment")] }]), beyond),
        (json!([{ "allowedNamespaceSelector": {} }]), beyond),
        (json!([{ "deniedNamespaces": ["b"] }]), denied),
        (json!([{ "deniedNamespaces": ["in"] }]), beyond),
        (json!([{ "allowedNamespaces": ["b"] }]), Ok(())),
        (json!([{ "allowedNamespaces": ["*"] }]), Ok(())),
        (json!([{ "allowedNamespaces": ["*"], "deniedNamespaces": ["b"] }]), denied),
        (json!([{ "allowedNamespaces": ["in"] }]), denied),
        (json!([{ "allowedNamespaceSelector": { "matchLabels": { "team": "b" } } }]), Ok(())),
        (json!([{ "allowedNamespaceSelector": { "matchLabels": { "team": "c" } } }]), denied),
        (
            json!([{ "allowedNamespaces": ["b"], "allowedNamespaceSelector": { "matchLabels": { "team": "c" } } }]),
            Ok(()),
        ),
        (json!([{ "allowedNamespaces": ["b"] }, {}]), Ok(())),
        (json!([{ "allowedNamespaces": ["b"] }, { "allowedNamespaces": ["in"] }]), denied),
    ] {
        assert_eq!(check_in(&reaching(&all, &scopes), "b"), expected, "{scopes}");
    }
    assert_eq!(check_in(&reaching(&all, &json!([])), "a"), Ok(()), "its own");
    let bounded = reaching(&all, &json!([{ "allowedNamespaces": ["b"] }]));
    assert_eq!(check_in(&bounded, "a"), denied, "a list without its own namespace leaves it out");
}

#[test]
fn cluster_scoped_kinds_need_an_entry_in_a_scope() {
    let node = json!({ "name": "n" });
    let entry = json!([gvk("Deployment")]);
    for (target, scopes, expected) in [
        (json!({ "profileRef": "p" }), json!([]), Err(RejectingClause::BeyondReach)),
        (
            json!({ "profileRef": "p" }),
            json!([{ "allowedNamespaces": ["*"] }]),
            Err(RejectingClause::BeyondReach),
        ),
        (json!({ "profileRef": "p" }), json!([{ "allowedGVKs": entry }]), Ok(())),
        (json!({ "profileRef": "p" }), json!([{ "allowedGVKs": entry, "allowedNamespaces": ["b"] }]), Ok(())),
        (
            json!({ "profileRef": "p" }),
            json!([{ "allowedNamespaces": ["b"] }]),
            Err(RejectingClause::ClusterScoped),
        ),
        (
            json!({ "profileRef": "p", "includedNamespaces": ["a"] }),
            json!([{ "allowedGVKs": entry }]),
            Err(RejectingClause::ClusterScoped),
        ),
    ] {
        let selection = reaching(&target, &scopes);
        let result = selection.check(&any_query(&selection), &object(node.clone()), &namespaces());
        assert_eq!(result, expected, "{target} {scopes}");
        let beyond = selection.beyond(&gvk("Deployment"), false, &namespaces());
        assert_eq!(
            beyond == Some(BeyondReach::Kind),
            expected == Err(RejectingClause::BeyondReach),
            "{scopes}"
        );
    }
}

#[test]
fn rows_stay_in_namespaces_that_are_selected_and_beyond_the_reach() {
    let kind = gvk("Deployment");
    let beyond = |target: Value, scopes: Value| reaching(&target, &scopes).beyond(&kind, true, &namespaces());
    let others = |own: &[&str]| Some(BeyondReach::OtherNamespaces(names(own)));
    assert_eq!(beyond(json!({ "profileRef": "p" }), json!([])), others(&["a"]));
    assert_eq!(
        beyond(
            json!({ "profileRef": "p", "excludedNamespaces": ["b"] }),
            json!([{ "deniedNamespaces": ["in"] }])
        ),
        others(&["a", "b", "in"]),
        "what the spec or a scope leaves out is removed"
    );
    let included = json!({ "profileRef": "p", "includedNamespaces": ["a", "b"] });
    assert_eq!(beyond(included.clone(), json!([])), Some(BeyondReach::Namespaces(names(&["b"]))));
    assert_eq!(beyond(included, json!([{ "allowedNamespaces": ["*"] }])), None);
    assert_eq!(beyond(json!({ "profileRef": "p", "includedNamespaces": ["a"] }), json!([])), None);
    let labels = json!({ "profileRef": "p", "namespaceSelector": { "matchLabels": { "team": "b" } } });
    assert_eq!(beyond(labels, json!([])), Some(BeyondReach::Namespaces(names(&["b"]))));
}

#[test]
fn a_target_without_a_namespace_selection_requests_its_reach() {
    let selected = |target: Value, scopes: Value| {
        let SelectedNamespaces { requested, allowed, beyond } =
            reaching(&target, &scopes).namespaces(&namespaces());
        [requested, allowed, beyond]
            .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(selected(json!({ "profileRef": "p" }), json!([])), ["a", "a", ""]);
    let granted = json!([{ "allowedNamespaces": ["a", "b"] }]);
    assert_eq!(selected(json!({ "profileRef": "p" }), granted)[1], "a b");
    let everything = json!({ "profileRef": "p", "namespaceSelector": {} });
    assert_eq!(selected(everything, json!([])), ["a b in off", "a", "b in off"]);
}

#[test]
fn a_namespace_that_is_not_known_yet_leaves_its_target_undecided() {
    let named = reaching(&json!({ "profileRef": "p", "includedNamespaces": ["a"] }), &json!([]));
    let own = reaching(&json!({ "profileRef": "p" }), &json!([]));
    for selection in [&named, &own] {
        let member = QueryTarget { number: 1, selection, metadata_only: false };
        let counts = |known: &Namespaces, within: Option<&BTreeSet<Arc<str>>>| {
            let queries = queries(&gvk("Deployment"), true, &[member], known, within, &BTreeSet::new());
            (queries.wanted.len(), queries.undecided.len())
        };
        assert_eq!(counts(&Namespaces::default(), None), (0, 1), "nothing has been published");
        assert_eq!(counts(&Namespaces::default(), Some(&names(&["a", "b"]))), (0, 1));
        assert_eq!(counts(&Namespaces { complete: false, ..namespaces() }, None), (1, 0));
        assert_eq!(
            counts(&Namespaces { complete: true, ..Namespaces::default() }, None),
            (0, 0),
            "it is gone"
        );
    }
}

#[test]
fn queries_stay_within_reach() {
    let selection = reaching(&json!({ "profileRef": "p" }), &json!([]));
    let member = QueryTarget { number: 1, selection: &selection, metadata_only: false };
    let queried = |known: &Namespaces| {
        let queries = queries(&gvk("Deployment"), true, &[member], known, None, &BTreeSet::new());
        assert!(queries.undecided.is_empty());
        queries.wanted.into_keys().map(|query| query.namespace).collect::<Vec<_>>()
    };
    assert_eq!(queried(&namespaces()), [Some(Arc::from("a"))]);
    let unlisted = Namespaces { complete: false, ..namespaces() };
    assert_eq!(queried(&unlisted), [Some(Arc::from("a"))], "its own namespace needs no list of namespaces");
    let cluster_scoped = queries(&gvk("Deployment"), false, &[member], &namespaces(), None, &BTreeSet::new());
    assert!(cluster_scoped.wanted.is_empty());
}
