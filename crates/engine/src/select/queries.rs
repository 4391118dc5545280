//! The queries of a kind: all targets see what they select, and as few other objects as possible. A pure function:
//! equal inputs give equal queries.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_model::crd::shapes::{Gvk, LabelOperator, LabelSelector};

use super::{Namespaces, Selection, SelectionRule};
use crate::watch::Query;

/// More namespaces than this are watched with one cluster-wide watch, which costs less than one watch for each.
const MAX_WATCHED_NAMESPACES: usize = 16;

/// One target of the kind.
#[derive(Clone, Copy)]
pub struct QueryTarget<'a> {
    /// Identifies the target among the members.
    pub number: u32,
    /// What it selects.
    pub selection: &'a Selection,
    /// Whether its profile reads nothing but metadata.
    pub metadata_only: bool,
}

/// The queries to make, and what cannot be queried.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KindQueries {
    /// Disjoint queries, with the members that each serves. Field selectors are an exception: only
    /// the API server can evaluate them, so queries with different ones may return one object.
    pub wanted: BTreeMap<Query, BTreeSet<u32>>,
    /// Namespaces in which listing is not permitted, with the members that need it; `None`: the whole kind.
    pub forbidden: BTreeMap<Option<Arc<str>>, BTreeSet<u32>>,
    /// Members whose selection depends on namespaces that could not be listed.
    pub undecided: BTreeSet<u32>,
}

/// The queries of one kind. `within` restricts them to some namespaces; `denied` are the namespaces in which
/// listing is known to be forbidden; `None` in it: the whole cluster.
pub fn queries(
    gvk: &Gvk,
    is_namespaced: bool,
    members: &[QueryTarget<'_>],
    namespaces: &Namespaces,
    within: Option<&BTreeSet<Arc<str>>>,
    denied: &BTreeSet<Option<Arc<str>>>,
) -> KindQueries {
    let mut result = KindQueries::default();
    let mut groups: BTreeMap<&Option<String>, Vec<QueryNeed<'_>>> = BTreeMap::new();
    for member in members {
        if is_namespaced && member.selection.is_undecided(namespaces, within) {
            result.undecided.insert(member.number);
            continue;
        }
        if !is_namespaced && member.selection.check_cluster_scoped(gvk).is_err() {
            continue;
        }
        for rule in member.selection.rules.iter().filter(|rule| rule.gvk == *gvk) {
            let group = groups.entry(&rule.field_selector).or_default();
            match group.last_mut().filter(|need| need.member.number == member.number) {
                Some(need) => need.rules.push(rule),
                None => group.push(QueryNeed { member: *member, rules: vec![rule] }),
            }
        }
    }
    for (field_selector, needs) in groups {
        for (namespace, needs) in queried_namespaces(is_namespaced, &needs, namespaces, within, denied) {
            let numbers: BTreeSet<u32> = needs.iter().map(|need| need.member.number).collect();
            if denied.contains(&namespace) {
                result.forbidden.entry(namespace).or_default().extend(numbers);
                continue;
            }
            let rules = || needs.iter().flat_map(|need| need.rules.iter().copied());
            let query = Query {
                namespace,
                label_selector: common_labels(rules()),
                name: common_name(rules()),
                field_selector: field_selector.clone(),
                metadata_only: needs.iter().all(QueryNeed::metadata_only),
                ..Query::all(gvk.clone())
            };
            result.wanted.insert(query, numbers);
        }
    }
    result
}

/// The rules of one member that one query must serve.
#[derive(Clone)]
struct QueryNeed<'a> {
    member: QueryTarget<'a>,
    rules: Vec<&'a SelectionRule>,
}

impl QueryNeed<'_> {
    fn metadata_only(&self) -> bool {
        let policies = self.rules.iter().filter_map(|rule| rule.policy.as_ref());
        self.member.metadata_only && policies.into_iter().all(|policy| policy.reads_only_metadata())
    }

    /// The namespaces that can be selected; `None`: any.
    fn reach(&self, namespaces: &Namespaces) -> Option<BTreeSet<Arc<str>>> {
        let selection = self.member.selection;
        let restricted = selection.namespace_selector.is_some()
            || !selection.filter.included_namespaces.is_empty()
            || selection.bounds.limit_namespaces()
            || self.rules.iter().all(|rule| rule.namespace_selector.is_some());
        restricted.then(|| self.selected_namespaces(namespaces))
    }

    fn selected_namespaces(&self, namespaces: &Namespaces) -> BTreeSet<Arc<str>> {
        let is_selected = |(name, metadata): &(&Arc<str>, &Arc<crate::watch::Metadata>)| {
            self.member.selection.check_namespace(name, Some(metadata)).is_ok()
                && self.rules.iter().any(|rule| rule.selects_namespace(Some(metadata)))
        };
        namespaces.known.iter().filter(is_selected).map(|(name, _)| name.clone()).collect()
    }
}

/// What to query, each with the needs that it serves: the whole cluster or some namespaces, never both.
fn queried_namespaces<'a>(
    is_namespaced: bool,
    needs: &[QueryNeed<'a>],
    namespaces: &Namespaces,
    within: Option<&BTreeSet<Arc<str>>>,
    denied: &BTreeSet<Option<Arc<str>>>,
) -> BTreeMap<Option<Arc<str>>, Vec<QueryNeed<'a>>> {
    let everywhere = || BTreeMap::from([(None, needs.to_vec())]);
    if !is_namespaced {
        return everywhere();
    }
    let reaches: Vec<_> = needs.iter().map(|need| need.reach(namespaces)).collect();
    let bounded: Option<Vec<&BTreeSet<Arc<str>>>> = reaches.iter().map(Option::as_ref).collect();
    let count = bounded.map(|sets| sets.into_iter().flatten().collect::<BTreeSet<_>>().len());
    let per_namespace = within.is_some()
        || count.is_some_and(|count| count <= MAX_WATCHED_NAMESPACES)
        || denied.contains(&None) && namespaces.complete
        || !namespaces.complete && count.is_some();
    if !per_namespace {
        return everywhere();
    }
    let mut by_namespace: BTreeMap<Option<Arc<str>>, Vec<QueryNeed<'a>>> = BTreeMap::new();
    for (need, reach) in needs.iter().zip(reaches) {
        let reach = reach.unwrap_or_else(|| need.selected_namespaces(namespaces));
        for name in reach.into_iter().filter(|name| within.is_none_or(|within| within.contains(name))) {
            by_namespace.entry(Some(name)).or_default().push(need.clone());
        }
    }
    by_namespace
}

impl Selection {
    /// Whether the selection depends on namespaces that could not be listed. Those that a spec names are assumed to
    /// exist; their labels are not known.
    fn is_undecided(&self, namespaces: &Namespaces, within: Option<&BTreeSet<Arc<str>>>) -> bool {
        if namespaces.complete {
            return false;
        }
        let needed = match (self.named_namespaces(), within) {
            (Some(named), Some(within)) => named.intersection(within).cloned().collect(),
            (Some(named), None) => named,
            (None, Some(within)) => within.clone(),
            (None, None) => return true,
        };
        // A namespace whose name is not published yet may exist all the same.
        !self.needs_only_names() || !needed.iter().all(|name| namespaces.known.contains_key(name))
    }

    /// The namespaces that can be selected, as far as names alone decide; `None`: any.
    pub fn named_namespaces(&self) -> Option<BTreeSet<Arc<str>>> {
        let included = Some(&self.filter.included_namespaces).filter(|list| !list.is_empty());
        let included = included.map(|list| list.iter().map(|name| name.as_str().into()).collect());
        let lists = self.bounds.named_namespaces().into_iter().chain(included);
        lists.reduce(|a, b| a.intersection(&b).cloned().collect())
    }
}

/// A label selector that all rules share, for the API server.
fn common_labels<'r>(mut rules: impl Iterator<Item = &'r SelectionRule>) -> Option<String> {
    let first = rules.next()?;
    let shared = !first.labels.is_empty() && rules.all(|rule| rule.labels == first.labels);
    shared.then(|| selector_text(&first.labels))
}

/// The one name that all rules ask for.
fn common_name<'r>(mut rules: impl Iterator<Item = &'r SelectionRule>) -> Option<String> {
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
