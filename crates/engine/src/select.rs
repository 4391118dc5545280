//! Whether an object belongs to a target: pure functions over specs and metadata.
//!
//! Selection fails closed: an empty set of namespaces selects nothing, and a namespace that is not
//! known is not selected.

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::crd::{
    scope::ScopeCeiling,
    shapes::{Gvk, LabelSelector, labels_match},
    target::{
        CollectionFilter, KollectClusterTargetSpec, KollectTargetSpec, NAMESPACE_WATCH_ANNOTATION,
        ResourceRule, WATCH_LABEL, WatchMode,
    },
};

use crate::watch::{Metadata, Query, Scope};

/// What is known about namespaces.
#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    /// Metadata by name.
    pub known: BTreeMap<String, Metadata>,
    /// Whether these are all there are, with the labels that they have.
    pub complete: bool,
}

/// What a target selects.
#[derive(Clone, Debug)]
pub struct Selection {
    cluster_target: bool,
    namespace_selector: Option<LabelSelector>,
    filter: CollectionFilter,
    rules: Vec<Rule>,
    watch_mode: WatchMode,
    ceiling: Option<ScopeCeiling>,
}

/// One alternative: a kind, and which of its objects.
#[derive(Clone, Debug)]
struct Rule {
    gvk: Gvk,
    field_selector: Option<String>,
    namespace_selector: Option<LabelSelector>,
    labels: LabelSelector,
    names: BTreeSet<String>,
}

/// Which clause said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The scope does not allow the kind.
    KindDenied,
    /// The namespace is not selected by the target.
    Namespace,
    /// The scope does not allow the namespace.
    NamespaceDenied,
    /// The kind is cluster-scoped and the target or its scope is limited to namespaces.
    ClusterScoped,
    /// No rule matches the object.
    Rules,
    /// The object or its namespace opted out, or did not opt in.
    OptedOut,
}

impl Selection {
    /// What a KollectTarget selects.
    pub fn of_target(spec: &KollectTargetSpec, profile: &Gvk, ceiling: Option<&ScopeCeiling>) -> Self {
        let own = Rule {
            gvk: profile.clone(),
            field_selector: spec.field_selector.clone(),
            namespace_selector: None,
            labels: spec.label_selector.clone().unwrap_or_default(),
            names: spec.names.iter().cloned().collect(),
        };
        Self {
            cluster_target: false,
            namespace_selector: spec.namespace_selector.clone(),
            rules: rules(&spec.filter.resource_rules, own),
            filter: spec.filter.clone(),
            watch_mode: spec.watch_mode,
            ceiling: ceiling.cloned(),
        }
    }

    /// What a KollectClusterTarget selects.
    pub fn of_cluster_target(
        spec: &KollectClusterTargetSpec,
        profile: &Gvk,
        ceiling: Option<&ScopeCeiling>,
    ) -> Self {
        let own = Rule {
            gvk: profile.clone(),
            field_selector: None,
            namespace_selector: None,
            labels: LabelSelector::default(),
            names: BTreeSet::new(),
        };
        Self {
            cluster_target: true,
            namespace_selector: spec.namespace_selector.clone(),
            rules: rules(&spec.filter.resource_rules, own),
            filter: spec.filter.clone(),
            watch_mode: WatchMode::All,
            ceiling: ceiling.cloned(),
        }
    }

    /// The kinds that the target reads.
    pub fn kinds(&self) -> BTreeSet<&Gvk> {
        self.rules.iter().map(|rule| &rule.gvk).collect()
    }

    /// What must be watched to see everything that the target selects. `only` restricts a run to one
    /// namespace.
    pub fn queries(&self, only: Option<&str>) -> BTreeSet<Query> {
        let included = &self.filter.included_namespaces;
        let scope = match only {
            Some(namespace) => Scope::Namespaces([namespace.to_owned()].into()),
            None if included.is_empty() => Scope::All,
            None => Scope::Namespaces(included.iter().cloned().collect()),
        };
        let query = |rule: &Rule| Query {
            gvk: rule.gvk.clone(),
            scope: scope.clone(),
            field_selector: rule.field_selector.clone(),
        };
        self.rules.iter().map(query).collect()
    }

    /// Whether the selection can be decided with the names of namespaces alone.
    pub fn needs_only_names(&self) -> bool {
        self.namespace_selector.is_none()
            && self.filter.namespace_exclude_selector.is_none()
            && self.watch_mode == WatchMode::All
            && self.rules.iter().all(|rule| rule.namespace_selector.is_none())
    }

    /// Whether an object that `query` returned belongs to the target, or why not.
    pub fn verdict(&self, query: &Query, object: &Metadata, namespaces: &Namespaces) -> Result<(), Rejected> {
        if self.ceiling.as_ref().is_some_and(|ceiling| !ceiling.allows_kind(&query.gvk)) {
            return Err(Rejected::KindDenied);
        }
        let namespace = namespaces.known.get(&*object.namespace);
        if object.namespace.is_empty() {
            self.takes_cluster_scoped()?;
        } else {
            self.takes_namespace(&object.namespace, namespace)?;
        }
        if !self.rules.iter().any(|rule| rule.matches(query, object, namespace)) {
            return Err(Rejected::Rules);
        }
        if self.opted_out(object, namespace) { Err(Rejected::OptedOut) } else { Ok(()) }
    }

    /// Namespace filters say nothing about cluster-scoped objects. A cluster target takes them; a
    /// team's target takes them only if nothing limits it to namespaces.
    fn takes_cluster_scoped(&self) -> Result<(), Rejected> {
        let filtered = self.namespace_selector.is_some()
            || !self.filter.included_namespaces.is_empty()
            || !self.filter.excluded_namespaces.is_empty()
            || self.filter.namespace_exclude_selector.is_some();
        let limited = self.ceiling.as_ref().is_some_and(|ceiling| {
            !ceiling.allowed_namespaces.is_empty() || !ceiling.denied_namespaces.is_empty()
        });
        if !self.cluster_target && (filtered || limited) { Err(Rejected::ClusterScoped) } else { Ok(()) }
    }

    fn takes_namespace(&self, name: &str, namespace: Option<&Metadata>) -> Result<(), Rejected> {
        let listed = |list: &[String]| list.iter().any(|item| item == name);
        let filter = &self.filter;
        let Some(namespace) = namespace else { return Err(Rejected::Namespace) };
        let selected = (filter.included_namespaces.is_empty() || listed(&filter.included_namespaces))
            && !listed(&filter.excluded_namespaces)
            && self.namespace_selector.as_ref().is_none_or(|s| s.matches(&namespace.labels))
            && !filter.namespace_exclude_selector.as_ref().is_some_and(|s| s.matches(&namespace.labels));
        if !selected {
            return Err(Rejected::Namespace);
        }
        match &self.ceiling {
            Some(ceiling) if !ceiling.allows_namespace(name) => Err(Rejected::NamespaceDenied),
            _ => Ok(()),
        }
    }

    /// The object's own label wins, then the namespace's label or annotation, then the target's mode.
    fn opted_out(&self, object: &Metadata, namespace: Option<&Metadata>) -> bool {
        let watch = |metadata: &Metadata| metadata.labels.get(WATCH_LABEL).cloned();
        match watch(object).as_deref() {
            Some("disabled") => return true,
            Some("enabled") => return false,
            _ => {}
        }
        let says = |value: &str| {
            namespace.is_some_and(|namespace| {
                watch(namespace).as_deref() == Some(value)
                    || namespace.annotations.get(NAMESPACE_WATCH_ANNOTATION).is_some_and(|v| v == value)
            })
        };
        says("disabled") || self.watch_mode == WatchMode::OptIn && !says("enabled")
    }
}

fn rules(written: &[ResourceRule], own: Rule) -> Vec<Rule> {
    if written.is_empty() {
        return vec![own];
    }
    let rule = |rule: &ResourceRule| Rule {
        gvk: rule.gvk.clone(),
        field_selector: rule.field_selector.clone(),
        namespace_selector: rule.namespace_selector.clone(),
        labels: LabelSelector {
            match_labels: rule.match_labels.clone(),
            match_expressions: rule.match_expressions.clone(),
        },
        names: BTreeSet::new(),
    };
    written.iter().map(rule).collect()
}

impl Rule {
    fn matches(&self, query: &Query, object: &Metadata, namespace: Option<&Metadata>) -> bool {
        let in_namespace =
            |selector: &LabelSelector| namespace.is_some_and(|namespace| selector.matches(&namespace.labels));
        self.gvk == query.gvk
            && self.field_selector == query.field_selector
            && self.namespace_selector.as_ref().is_none_or(in_namespace)
            && (self.names.is_empty() || self.names.contains(&*object.name))
            && labels_match(&self.labels.match_labels, &self.labels.match_expressions, &object.labels)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gvk(kind: &str) -> Gvk {
        Gvk { group: "apps".into(), version: "v1".into(), kind: kind.into() }
    }

    fn metadata(value: Value) -> Metadata {
        serde_json::from_value(value).unwrap()
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

    fn verdict(target: Value, ceiling: Value, object: Value) -> Result<(), Rejected> {
        let spec: KollectTargetSpec = serde_json::from_value(target).unwrap();
        let ceiling: Option<ScopeCeiling> = serde_json::from_value(ceiling).unwrap();
        let selection = Selection::of_target(&spec, &gvk("Deployment"), ceiling.as_ref());
        let query = selection.queries(None).into_iter().next().unwrap();
        selection.verdict(&query, &metadata(object), &namespaces())
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
            (
                json!({ "name": "x", "namespace": "off", "labels": { "kollect.dev/watch": "enabled" } }),
                Ok(()),
            ),
            (
                json!({ "name": "x", "namespace": "a", "labels": { "kollect.dev/watch": "disabled" } }),
                Err(Rejected::OptedOut),
            ),
        ] {
            assert_eq!(
                verdict(json!({ "profileRef": "p" }), Value::Null, object.clone()),
                expected,
                "{object}"
            );
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
        let deployments =
            json!({ "allowedGVKs": [{ "group": "APPS", "version": "v1", "kind": "deployment" }] });
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
}
