//! Whether an object belongs to a target: pure functions over specs and metadata.
//!
//! Selection fails closed: an empty set of namespaces selects nothing, and a namespace that is not
//! known is not selected.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_model::{
    SpecError,
    crd::{
        scope::ScopeCeiling,
        shapes::{Gvk, LabelOperator, LabelSelector},
        target::{
            CollectionFilter, KollectClusterTargetSpec, KollectTargetSpec, NAMESPACE_WATCH_ANNOTATION,
            ResourceRule, WATCH_LABEL, WatchMode,
        },
    },
};

use crate::{
    extract::{MatchPolicy, Policy},
    watch::{Metadata, Object, Query, Scope},
};

/// What is known about namespaces.
#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    /// Metadata by name.
    pub known: BTreeMap<String, Metadata>,
    /// Whether these are all there are, with the labels that they have.
    pub complete: bool,
}

/// Namespaces that whoever runs the program includes or excludes for every target.
#[derive(Clone, Debug, Default)]
pub struct NamespaceDefaults {
    /// What targets without a list of their own include; empty: everything.
    pub included: Vec<String>,
    /// What every target excludes.
    pub excluded: Vec<String>,
}

impl NamespaceDefaults {
    fn complete(&self, filter: &CollectionFilter) -> CollectionFilter {
        let mut filter = filter.clone();
        if filter.included_namespaces.is_empty() {
            filter.included_namespaces.clone_from(&self.included);
        }
        filter.excluded_namespaces.extend(self.excluded.iter().cloned());
        filter
    }
}

/// What a target selects.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Whether cluster-scoped objects can be selected at all.
    cluster_scoped: bool,
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
    policy: Option<Arc<MatchPolicy>>,
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
    /// No rule matches the object's name and labels.
    Rules,
    /// A rule matches, and its policy does not say true.
    Policy,
    /// The object or its namespace opted out, or did not opt in.
    OptedOut,
}

impl Selection {
    /// What a KollectTarget selects.
    pub fn of_target(
        spec: &KollectTargetSpec,
        profile: &Gvk,
        ceiling: Option<&ScopeCeiling>,
        policy: &Policy,
        defaults: &NamespaceDefaults,
    ) -> Result<Self, Vec<SpecError>> {
        let own = Rule {
            field_selector: spec.field_selector.clone(),
            labels: spec.label_selector.clone().unwrap_or_default(),
            names: spec.names.iter().cloned().collect(),
            ..Rule::all_of(profile)
        };
        // Namespace filters say nothing about cluster-scoped objects: a team's target takes them only if
        // nothing limits it to namespaces.
        let filter = &spec.filter;
        let filtered = spec.namespace_selector.is_some()
            || !filter.included_namespaces.is_empty()
            || !filter.excluded_namespaces.is_empty()
            || filter.namespace_exclude_selector.is_some()
            || filter.resource_rules.iter().any(|rule| rule.namespace_selector.is_some());
        let limited = ceiling.is_some_and(|ceiling| {
            !ceiling.allowed_namespaces.is_empty() || !ceiling.denied_namespaces.is_empty()
        });
        Ok(Self {
            cluster_scoped: !filtered && !limited,
            namespace_selector: spec.namespace_selector.clone(),
            rules: rules(&spec.filter.resource_rules, own, policy)?,
            filter: defaults.complete(&spec.filter),
            watch_mode: spec.watch_mode,
            ceiling: ceiling.cloned(),
        })
    }

    /// What a KollectClusterTarget selects.
    pub fn of_cluster_target(
        spec: &KollectClusterTargetSpec,
        profile: &Gvk,
        ceiling: Option<&ScopeCeiling>,
        policy: &Policy,
        defaults: &NamespaceDefaults,
    ) -> Result<Self, Vec<SpecError>> {
        let own = Rule { field_selector: spec.field_selector.clone(), ..Rule::all_of(profile) };
        Ok(Self {
            cluster_scoped: true,
            namespace_selector: spec.namespace_selector.clone(),
            rules: rules(&spec.filter.resource_rules, own, policy)?,
            filter: defaults.complete(&spec.filter),
            watch_mode: WatchMode::All,
            ceiling: ceiling.cloned(),
        })
    }

    /// Field selectors that only an API server can evaluate.
    pub fn field_selectors(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter_map(|rule| rule.field_selector.as_deref())
    }

    /// The namespaces that can be selected at all, as far as names alone tell; `None`: any.
    fn named_namespaces(&self) -> Option<BTreeSet<String>> {
        let lists =
            [Some(&self.filter.included_namespaces), self.ceiling.as_ref().map(|c| &c.allowed_namespaces)];
        let mut named: Option<BTreeSet<String>> = None;
        for list in lists.into_iter().flatten().filter(|list| !list.is_empty()) {
            let list: BTreeSet<String> = list.iter().cloned().collect();
            named = Some(match named {
                Some(known) => known.intersection(&list).cloned().collect(),
                None => list,
            });
        }
        named
    }

    /// Whether the selection can be decided with the names of namespaces alone.
    pub fn needs_only_names(&self) -> bool {
        self.namespace_selector.is_none()
            && self.filter.namespace_exclude_selector.is_none()
            && self.watch_mode == WatchMode::All
            && self.rules.iter().all(|rule| rule.namespace_selector.is_none())
    }

    /// Whether an object that `query` returned belongs to the target, or which clause said no.
    pub fn verdict(&self, query: &Query, object: &Object, namespaces: &Namespaces) -> Result<(), Rejected> {
        let metadata = &object.metadata;
        if self.ceiling.as_ref().is_some_and(|ceiling| !ceiling.allows_kind(&query.gvk)) {
            return Err(Rejected::KindDenied);
        }
        let namespace = namespaces.known.get(&*metadata.namespace);
        if !metadata.namespace.is_empty() {
            self.takes_namespace(&metadata.namespace, namespace)?;
        } else if !self.cluster_scoped {
            return Err(Rejected::ClusterScoped);
        }
        let mut matching =
            self.rules.iter().filter(|rule| rule.matches(query, metadata, namespace)).peekable();
        if matching.peek().is_none() {
            return Err(Rejected::Rules);
        }
        if self.opted_out(metadata, namespace) {
            return Err(Rejected::OptedOut);
        }
        // Policies come last: they cost the most.
        let mut agreed = matching.map(|rule| &rule.policy).map(|policy| {
            policy.as_ref().is_none_or(|policy| policy.agrees(&query.gvk, &object.raw, namespace))
        });
        if agreed.any(|agreed| agreed) { Ok(()) } else { Err(Rejected::Policy) }
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

fn rules(written: &[ResourceRule], own: Rule, policy: &Policy) -> Result<Vec<Rule>, Vec<SpecError>> {
    if written.is_empty() {
        return Ok(vec![own]);
    }
    let mut rules = Vec::with_capacity(written.len());
    let mut errors = Vec::new();
    for (index, rule) in written.iter().enumerate() {
        let compiled = Some(&rule.match_policy).filter(|text| !text.trim().is_empty()).map(|text| {
            MatchPolicy::compile(text, &format!("spec.resourceRules[{index}].matchPolicy"), policy)
                .map(Arc::new)
        });
        match compiled.transpose() {
            Ok(policy) => rules.push(Rule {
                field_selector: rule.field_selector.clone(),
                namespace_selector: rule.namespace_selector.clone(),
                labels: LabelSelector {
                    match_labels: rule.match_labels.clone(),
                    match_expressions: rule.match_expressions.clone(),
                },
                policy,
                ..Rule::all_of(&rule.gvk)
            }),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(rules) } else { Err(errors) }
}

impl Rule {
    fn all_of(gvk: &Gvk) -> Self {
        Self {
            gvk: gvk.clone(),
            field_selector: None,
            namespace_selector: None,
            labels: LabelSelector::default(),
            names: BTreeSet::new(),
            policy: None,
        }
    }

    fn matches(&self, query: &Query, object: &Metadata, namespace: Option<&Metadata>) -> bool {
        let in_namespace =
            |selector: &LabelSelector| namespace.is_some_and(|namespace| selector.matches(&namespace.labels));
        self.gvk == query.gvk
            && self.field_selector == query.field_selector
            && self.namespace_selector.as_ref().is_none_or(in_namespace)
            && (self.names.is_empty() || self.names.contains(&*object.name))
            && self.labels.matches(&object.labels)
    }
}

/// What must be watched so that all of the selections are seen, and nothing that none of them wants:
/// for each kind and field selector one query, with the selections that it serves. `only` restricts a
/// run to one namespace.
pub fn queries(selections: &[&Selection], only: Option<&str>) -> BTreeMap<Query, Vec<usize>> {
    // Rules with their selections, by what the API server must be asked separately.
    let mut groups: BTreeMap<_, Vec<(usize, &Rule)>> = BTreeMap::new();
    for (index, selection) in selections.iter().enumerate() {
        // What a scope denies is not even listed.
        let allowed = |rule: &&Rule| selection.ceiling.as_ref().is_none_or(|c| c.allows_kind(&rule.gvk));
        for rule in selection.rules.iter().filter(allowed) {
            groups.entry((&rule.gvk, &rule.field_selector)).or_default().push((index, rule));
        }
    }
    let mut queries = BTreeMap::new();
    for ((gvk, field_selector), rules) in groups {
        let served: BTreeSet<usize> = rules.iter().map(|(index, _)| *index).collect();
        let query = Query {
            gvk: gvk.clone(),
            scope: scope(served.iter().map(|index| selections[*index]), only),
            label_selector: common_labels(rules.iter().map(|(_, rule)| *rule)),
            name: common_name(rules.iter().map(|(_, rule)| *rule)),
            field_selector: field_selector.clone(),
        };
        queries.insert(query, served.into_iter().collect());
    }
    queries
}

/// The union of the namespaces; everything as soon as one selection can want any.
fn scope<'s>(selections: impl Iterator<Item = &'s Selection>, only: Option<&str>) -> Scope {
    if let Some(namespace) = only {
        return Scope::Namespaces([namespace.to_owned()].into());
    }
    let named: Option<Vec<BTreeSet<String>>> = selections.map(Selection::named_namespaces).collect();
    named.map_or(Scope::All, |sets| Scope::Namespaces(sets.into_iter().flatten().collect()))
}

/// A label selector that all rules share, for the API server.
fn common_labels<'r>(mut rules: impl Iterator<Item = &'r Rule>) -> Option<String> {
    let first = rules.next()?;
    let shared = !first.labels.is_empty() && rules.all(|rule| rule.labels == first.labels);
    shared.then(|| selector_text(&first.labels))
}

/// The one name that all rules ask for.
fn common_name<'r>(mut rules: impl Iterator<Item = &'r Rule>) -> Option<String> {
    let first = rules.next()?;
    let shared = first.names.len() == 1 && rules.all(|rule| rule.names == first.names);
    first.names.first().filter(|_| shared).cloned()
}

/// A selector in the notation of the API server.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let terms = selector.match_expressions.iter().map(|term| {
        let (key, values) = (&term.key, term.values.join(","));
        match term.operator {
            LabelOperator::In => format!("{key} in ({values})"),
            LabelOperator::NotIn => format!("{key} notin ({values})"),
            LabelOperator::Exists => key.clone(),
            LabelOperator::DoesNotExist => format!("!{key}"),
        }
    });
    equal.chain(terms).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
