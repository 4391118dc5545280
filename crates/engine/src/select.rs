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
        shapes::{Gvk, LabelSelector},
        target::{
            CollectionFilter, KollectClusterTargetSpec, KollectTargetSpec, NAMESPACE_WATCH_ANNOTATION,
            ResourceRule, WATCH_LABEL, WatchMode,
        },
    },
};

use crate::{
    extract::{ExtractPolicy, MatchPolicy},
    watch::{Metadata, Object, Query},
};

mod bounds;
mod queries;

pub use bounds::{BeyondReach, Bounds};
pub use queries::{KindQueries, QueryTarget, queries};

/// What is known about namespaces.
#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    /// Metadata by name.
    pub known: BTreeMap<Arc<str>, Arc<Metadata>>,
    /// Whether `known` contains every namespace, with its labels.
    pub complete: bool,
}

/// Namespaces that an administrator includes or excludes for every target.
#[derive(Clone, Debug, Default)]
pub struct NamespaceDefaults {
    /// Namespaces of targets that have no list of their own; empty: all namespaces.
    pub included: Vec<String>,
    /// Namespaces that every target excludes.
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
    cluster_scoped: ClusterScoped,
    /// Whether the spec selects namespaces; otherwise the target selects all within its reach.
    selects_namespaces: bool,
    namespace_selector: Option<LabelSelector>,
    /// Namespaces that the spec names.
    named: Vec<String>,
    filter: CollectionFilter,
    rules: Vec<SelectionRule>,
    watch_mode: WatchMode,
    bounds: Bounds,
}

/// Whether a target can select cluster-scoped objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterScoped {
    /// Its spec limits it to namespaces.
    Never,
    /// As far as its bounds allow.
    WithinBounds,
    /// It is a cluster target.
    Always,
}

/// The namespaces that a target requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedNamespaces {
    /// Selected by its spec; all within its reach, if the spec selects no namespaces.
    pub requested: Vec<Arc<str>>,
    /// Those of `requested` that are collected.
    pub allowed: Vec<Arc<str>>,
    /// Those of `requested` that are beyond its reach: no scope denies them, and none names them.
    pub beyond: Vec<Arc<str>>,
}

/// One rule of a target: a kind, and which of its objects.
#[derive(Clone, Debug)]
struct SelectionRule {
    gvk: Gvk,
    field_selector: Option<String>,
    namespace_selector: Option<LabelSelector>,
    labels: LabelSelector,
    names: BTreeSet<String>,
    policy: Option<Arc<MatchPolicy>>,
}

/// The clause that rejected an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectingClause {
    /// The scope does not allow the kind.
    KindDenied,
    /// The namespace is not selected by the target.
    Namespace,
    /// The scope does not allow the namespace.
    NamespaceDenied,
    /// The kind is cluster-scoped and the target or its scope is limited to namespaces.
    ClusterScoped,
    /// No scope denies the namespace or the cluster-scoped kind, and none names it.
    BeyondReach,
    /// No rule matches the object's name and labels.
    Rules,
    /// A rule matches, but its policy is not true.
    Policy,
    /// Whether a policy is true depends on a redacted value.
    Undecided,
    /// The object or its namespace opted out, or did not opt in.
    OptedOut,
}

impl Selection {
    /// What a KollectTarget selects.
    pub fn of_target(
        spec: &KollectTargetSpec,
        profile: &Gvk,
        bounds: &Bounds,
        policy: &ExtractPolicy,
        defaults: &NamespaceDefaults,
    ) -> Result<Self, Vec<SpecError>> {
        let own = SelectionRule {
            field_selector: spec.field_selector.clone(),
            labels: spec.label_selector.clone().unwrap_or_default(),
            names: spec.names.iter().cloned().collect(),
            ..SelectionRule::all_of(profile)
        };
        let filter = &spec.filter;
        let selects_namespaces = spec.namespace_selector.is_some()
            || !filter.included_namespaces.is_empty()
            || filter.resource_rules.iter().any(|rule| rule.namespace_selector.is_some());
        // Namespace filters do not apply to cluster-scoped objects: a KollectTarget selects those only if its spec
        // does not limit it to namespaces.
        let filtered = selects_namespaces
            || !filter.excluded_namespaces.is_empty()
            || filter.namespace_exclude_selector.is_some();
        Ok(Self {
            cluster_scoped: if filtered { ClusterScoped::Never } else { ClusterScoped::WithinBounds },
            selects_namespaces,
            namespace_selector: spec.namespace_selector.clone(),
            named: spec.filter.included_namespaces.clone(),
            rules: rules(&spec.filter.resource_rules, own, policy)?,
            filter: defaults.complete(&spec.filter),
            watch_mode: spec.watch_mode,
            bounds: bounds.clone(),
        })
    }

    /// What a KollectClusterTarget selects.
    pub fn of_cluster_target(
        spec: &KollectClusterTargetSpec,
        profile: &Gvk,
        bounds: &Bounds,
        policy: &ExtractPolicy,
        defaults: &NamespaceDefaults,
    ) -> Result<Self, Vec<SpecError>> {
        let own =
            SelectionRule { field_selector: spec.field_selector.clone(), ..SelectionRule::all_of(profile) };
        Ok(Self {
            cluster_scoped: ClusterScoped::Always,
            selects_namespaces: true,
            namespace_selector: spec.namespace_selector.clone(),
            named: spec.filter.included_namespaces.clone(),
            rules: rules(&spec.filter.resource_rules, own, policy)?,
            filter: defaults.complete(&spec.filter),
            watch_mode: WatchMode::All,
            bounds: bounds.clone(),
        })
    }

    /// Field selectors that only an API server can evaluate.
    pub fn field_selectors(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().filter_map(|rule| rule.field_selector.as_deref())
    }

    /// Whether a rule selects the kind with this field selector.
    pub fn selects_kind(&self, gvk: &Gvk, field_selector: Option<&str>) -> bool {
        self.rules.iter().any(|rule| rule.gvk == *gvk && rule.field_selector.as_deref() == field_selector)
    }

    /// The selected kinds, without those that a scope denies.
    pub fn kinds(&self) -> BTreeSet<&Gvk> {
        let kinds = self.rules.iter().map(|rule| &rule.gvk);
        kinds.filter(|gvk| self.bounds.permit_kind(gvk)).collect()
    }

    /// The namespaces that the spec names.
    pub fn named(&self) -> &[String] {
        &self.named
    }

    /// Whether namespaces are chosen by their labels.
    pub fn selects_by_labels(&self) -> bool {
        let by_labels = |selector: &Option<LabelSelector>| selector.as_ref().is_some_and(|s| !s.is_empty());
        by_labels(&self.namespace_selector)
            || by_labels(&self.filter.namespace_exclude_selector)
            || self.watch_mode == WatchMode::OptIn
            || self.rules.iter().any(|rule| by_labels(&rule.namespace_selector))
    }

    /// Whether objects are chosen by their names, labels, fields or a policy.
    pub fn selects_objects(&self) -> bool {
        let selects = |rule: &SelectionRule| {
            rule.field_selector.is_some()
                || !rule.labels.is_empty()
                || !rule.names.is_empty()
                || rule.policy.is_some()
        };
        self.rules.iter().all(selects)
    }

    /// Whether the spec limits the target to namespaces, so that objects in no namespace are never selected.
    pub fn excludes_cluster_scoped(&self) -> bool {
        self.cluster_scoped == ClusterScoped::Never
    }

    /// Whether rules of this kind have several field selectors: then several queries may return one object.
    pub fn has_several_field_selectors(&self, gvk: &Gvk) -> bool {
        let mut selectors =
            self.rules.iter().filter(|rule| rule.gvk == *gvk).map(|rule| &rule.field_selector);
        let first = selectors.next();
        selectors.any(|selector| Some(selector) != first)
    }

    /// The namespaces that the target requests.
    pub fn namespaces(&self, known: &Namespaces) -> SelectedNamespaces {
        let mut selected = SelectedNamespaces::default();
        for (name, metadata) in &known.known {
            match self.check_namespace(name, Some(metadata)) {
                Ok(()) => selected.allowed.push(name.clone()),
                Err(RejectingClause::NamespaceDenied) => {}
                Err(RejectingClause::BeyondReach) if self.selects_beyond_reach(metadata) => {
                    selected.beyond.push(name.clone());
                }
                Err(_) => continue,
            }
            selected.requested.push(name.clone());
        }
        selected
    }

    /// Whether the spec itself asks for a namespace that is beyond the reach.
    fn selects_beyond_reach(&self, namespace: &Metadata) -> bool {
        self.selects_namespaces && self.rules.iter().any(|rule| rule.selects_namespace(Some(namespace)))
    }

    /// What is beyond the reach of the target: rows of the kind from there stay as they were.
    pub fn beyond(&self, gvk: &Gvk, namespaced: bool, known: &Namespaces) -> Option<BeyondReach> {
        if !namespaced {
            let beyond = self.check_cluster_scoped(gvk) == Err(RejectingClause::BeyondReach);
            return beyond.then_some(BeyondReach::Kind);
        }
        let reach = self.bounds.reach()?;
        if !self.filters_namespaces() {
            let denied = self.bounds.ceilings.iter().flat_map(|ceiling| &ceiling.denied_namespaces);
            let out = denied.chain(&self.filter.excluded_namespaces).map(|name| name.as_str().into());
            return Some(BeyondReach::OtherNamespaces(reach.iter().cloned().chain(out).collect()));
        }
        let beyond = |(name, metadata): &(&Arc<str>, &Arc<Metadata>)| {
            self.check_namespace(name, Some(metadata)) == Err(RejectingClause::BeyondReach)
        };
        let names: BTreeSet<Arc<str>> =
            known.known.iter().filter(beyond).map(|(name, _)| name.clone()).collect();
        (!names.is_empty()).then_some(BeyondReach::Namespaces(names))
    }

    /// Whether the object is beyond the reach of the target, so that its rows stay as they were.
    pub fn is_beyond_reach(&self, gvk: &Gvk, object: &Metadata, known: &Namespaces) -> bool {
        let result = if object.namespace.is_empty() {
            self.check_cluster_scoped(gvk)
        } else {
            self.check_namespace(&object.namespace, known.known.get(&object.namespace).map(|n| &**n))
        };
        result == Err(RejectingClause::BeyondReach)
    }

    /// Whether the selection leaves out namespaces that it does not name.
    fn filters_namespaces(&self) -> bool {
        let filter = &self.filter;
        self.namespace_selector.as_ref().is_some_and(|selector| !selector.is_empty())
            || !filter.included_namespaces.is_empty()
            || filter.namespace_exclude_selector.is_some()
    }

    fn check_cluster_scoped(&self, gvk: &Gvk) -> Result<(), RejectingClause> {
        match self.cluster_scoped {
            ClusterScoped::Never => Err(RejectingClause::ClusterScoped),
            ClusterScoped::WithinBounds => self.bounds.permit_cluster_scoped(gvk),
            ClusterScoped::Always => Ok(()),
        }
    }

    /// Whether the selection can be decided with the names of namespaces alone.
    pub fn needs_only_names(&self) -> bool {
        self.namespace_selector.is_none()
            && self.filter.namespace_exclude_selector.is_none()
            && self.watch_mode == WatchMode::All
            && !self.bounds.read_labels()
            && self.rules.iter().all(|rule| rule.namespace_selector.is_none())
    }

    /// Whether an object that `query` returned belongs to the target, or which clause rejects it.
    pub fn check(
        &self,
        query: &Query,
        object: &Object,
        namespaces: &Namespaces,
    ) -> Result<(), RejectingClause> {
        let metadata = &object.metadata;
        if !self.bounds.permit_kind(&query.gvk) {
            return Err(RejectingClause::KindDenied);
        }
        let namespace = namespaces.known.get(&metadata.namespace).map(|namespace| &**namespace);
        if metadata.namespace.is_empty() {
            self.check_cluster_scoped(&query.gvk)?;
        } else {
            self.check_namespace(&metadata.namespace, namespace)?;
        }
        let mut matching =
            self.rules.iter().filter(|rule| rule.matches(query, metadata, namespace)).peekable();
        if matching.peek().is_none() {
            return Err(RejectingClause::Rules);
        }
        if self.opted_out(metadata, namespace) {
            return Err(RejectingClause::OptedOut);
        }
        // Evaluate policies last: they cost the most.
        let mut rejected = RejectingClause::Policy;
        for rule in matching {
            let Some(policy) = &rule.policy else { return Ok(()) };
            match policy.matches(&query.gvk, &object.raw, namespace) {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => rejected = RejectingClause::Undecided,
            }
        }
        Err(rejected)
    }

    fn check_namespace(&self, name: &str, namespace: Option<&Metadata>) -> Result<(), RejectingClause> {
        let listed = |list: &[String]| list.iter().any(|item| item == name);
        let filter = &self.filter;
        let Some(namespace) = namespace else { return Err(RejectingClause::Namespace) };
        let selected = (filter.included_namespaces.is_empty() || listed(&filter.included_namespaces))
            && !listed(&filter.excluded_namespaces)
            && self.namespace_selector.as_ref().is_none_or(|s| s.matches(&namespace.labels))
            && !filter.namespace_exclude_selector.as_ref().is_some_and(|s| s.matches(&namespace.labels));
        if !selected {
            return Err(RejectingClause::Namespace);
        }
        // The answer is never `None` when labels are given.
        self.bounds
            .permit_namespace(name, Some(&namespace.labels))
            .unwrap_or(Err(RejectingClause::NamespaceDenied))
    }

    /// How a change of a namespace's metadata affects the objects of a kind in it.
    pub fn effect(
        &self,
        gvk: &Gvk,
        name: &str,
        before: Option<&Metadata>,
        after: Option<&Metadata>,
    ) -> NamespaceEffect {
        let view = |namespace: Option<&Metadata>| {
            let taken = self.check_namespace(name, namespace).is_ok();
            let rules = self.rules.iter().filter(|rule| rule.gvk == *gvk);
            let selected_by_rule: Vec<bool> =
                rules.map(|rule| taken && rule.selects_namespace(namespace)).collect();
            (selected_by_rule, ["disabled", "enabled"].map(|word| namespace_has_value(namespace, word)))
        };
        let seen = |view: &(Vec<bool>, [bool; 2])| view.0.contains(&true);
        let (old, new) = (view(before), view(after));
        let policies = self.rules.iter().filter_map(|rule| rule.policy.as_ref());
        let read = policies.into_iter().any(|policy| policy.reads_namespace());
        match (seen(&old), seen(&new)) {
            (_, false) if seen(&old) => NamespaceEffect::Lost,
            (_, true) if old != new || read && !same_metadata(before, after) => NamespaceEffect::Other,
            _ => NamespaceEffect::None,
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
        namespace_has_value(namespace, "disabled")
            || self.watch_mode == WatchMode::OptIn && !namespace_has_value(namespace, "enabled")
    }
}

/// How a change of a namespace affects the objects in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceEffect {
    /// Nothing.
    None,
    /// None of them is selected any more.
    Lost,
    /// Others may be selected, or the same ones with other attributes.
    Other,
}

fn namespace_has_value(namespace: Option<&Metadata>, word: &str) -> bool {
    let has_value = |namespace: &Metadata| {
        let label = namespace.labels.get(WATCH_LABEL);
        label
            .into_iter()
            .chain(namespace.annotations.get(NAMESPACE_WATCH_ANNOTATION))
            .any(|mark| mark == word)
    };
    namespace.is_some_and(has_value)
}

/// Whether expressions that read a namespace see no difference between the two.
pub(crate) fn same_metadata(a: Option<&Metadata>, b: Option<&Metadata>) -> bool {
    let parts = |namespace: Option<&Metadata>| {
        namespace.map(|n| (n.labels.clone(), n.annotations.clone(), n.uid.clone()))
    };
    parts(a) == parts(b)
}

fn rules(
    written: &[ResourceRule],
    own: SelectionRule,
    policy: &ExtractPolicy,
) -> Result<Vec<SelectionRule>, Vec<SpecError>> {
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
        let is_other_version = |other: &&ResourceRule| {
            let (a, b) = (&other.gvk, &rule.gvk);
            (&a.group, &a.kind) == (&b.group, &b.kind) && a.version != b.version
        };
        if let Some(other) = written[..index].iter().find(is_other_version) {
            errors.push(SpecError::new(
                format!("spec.resourceRules[{index}].gvk.version"),
                &rule.gvk.version.as_str().into(),
                format!("another rule of this target reads {}: every object would have two rows; name one version", other.gvk),
            ));
        }
        match compiled.transpose() {
            Ok(policy) => rules.push(SelectionRule {
                field_selector: rule.field_selector.clone(),
                namespace_selector: rule.namespace_selector.clone(),
                labels: LabelSelector {
                    match_labels: rule.match_labels.clone(),
                    match_expressions: rule.match_expressions.clone(),
                },
                policy,
                ..SelectionRule::all_of(&rule.gvk)
            }),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(rules) } else { Err(errors) }
}

impl SelectionRule {
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
        self.gvk == query.gvk
            && self.field_selector == query.field_selector
            && self.selects_namespace(namespace)
            && (self.names.is_empty() || self.names.contains(&*object.name))
            && self.labels.matches(&object.labels)
    }

    fn selects_namespace(&self, namespace: Option<&Metadata>) -> bool {
        let matches = |selector: &LabelSelector| namespace.is_some_and(|n| selector.matches(&n.labels));
        self.namespace_selector.as_ref().is_none_or(matches)
    }
}

#[cfg(test)]
mod tests;
