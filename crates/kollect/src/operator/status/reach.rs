//! The part of a selection that a target may not collect: the condition `ScopeClipped`.

use std::{collections::BTreeSet, sync::Arc};

use kollect_engine::{
    export::KeptRows,
    select::{BeyondReach, SelectedNamespaces},
};
use kollect_model::row::TargetId;

use super::{StatusInputs, first_fault};
use crate::{
    operator::conditions::Conditions,
    reason::Reason,
    resolve::{ObjectFault, ResolvedTarget},
};

impl StatusInputs<'_> {
    /// Sets ScopeClipped for what scopes deny and for what is beyond the reach of the target. Returns whether the reach
    /// leaves nothing to collect.
    pub(super) fn set_scope_clipped(
        &self,
        id: &TargetId,
        resolved: &ResolvedTarget,
        selected: &SelectedNamespaces,
        conditions: &mut Conditions<'_>,
    ) -> bool {
        let namespace = id.namespace.as_deref().unwrap_or_default();
        let kinds = self.kinds_beyond(id);
        let kept = self.kept(id);
        // A named namespace beyond the reach is also among the namespaces below, if it exists.
        let is_beyond = |fault: &&ObjectFault| fault.reason == Reason::BeyondReach;
        let named: Vec<&ObjectFault> = resolved.clipped.iter().filter(is_beyond).collect();
        let denied: Vec<&ObjectFault> = resolved.clipped.iter().filter(|fault| !is_beyond(fault)).collect();
        let mut sentences = Vec::new();
        if !kinds.is_empty() {
            sentences.push(kinds_sentence(namespace, &kinds));
        }
        sentences.extend(namespaces_sentence(namespace, &selected.beyond, &kept));
        if sentences.is_empty() && !named.is_empty() {
            sentences.push(first_fault(&named));
        }
        let reason = match denied.first() {
            _ if !sentences.is_empty() => Reason::BeyondReach,
            Some(first) => first.reason,
            None => return false,
        };
        sentences.extend(Some(first_fault(&denied)).filter(|text| !text.is_empty()));
        conditions.set("ScopeClipped", true, reason, sentences.join("; "));
        let all_kinds = resolved.target.as_ref().is_some_and(|target| {
            !kinds.is_empty() && target.selection.kinds().iter().all(|gvk| kinds.contains(&gvk.kind))
        });
        let no_namespace = selected.allowed.is_empty() && !selected.beyond.is_empty();
        all_kinds || no_namespace
    }

    /// Cluster-scoped kinds of a target that are beyond its reach.
    fn kinds_beyond(&self, id: &TargetId) -> BTreeSet<String> {
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        let beyond =
            visibilities.iter().filter(|(_, visibility)| visibility.beyond() == Some(&BeyondReach::Kind));
        beyond.map(|((_, _, kind), _)| kind.to_string()).collect()
    }
}

fn kinds_sentence(namespace: &str, kinds: &BTreeSet<String>) -> String {
    let kinds = kinds.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!(
        "{kinds}: cluster-scoped kinds are not collected by a target of namespace {namespace}; to allow it, add the \
         kind to spec.allowedGVKs of a KollectScope in namespace {namespace}"
    )
}

fn namespaces_sentence(namespace: &str, beyond: &[Arc<str>], kept: &KeptRows) -> Option<String> {
    let rows = match kept.beyond {
        0 => String::new(),
        1 => "; 1 row from there stays in the sinks as it was".to_owned(),
        rows => format!("; {rows} rows from there stay in the sinks as they were"),
    };
    let mut names: BTreeSet<Arc<str>> = beyond.iter().cloned().collect();
    names.extend(kept.namespaces.iter().cloned());
    if names.is_empty() {
        return None;
    }
    let examples = kollect_engine::names::namespaces(&names, names.len());
    Some(format!(
        "nothing is collected from {examples}{rows}: a target of namespace {namespace} collects from its own; to let \
         it collect from others too, list {namespace} and the others in spec.allowedNamespaces of a KollectScope in \
         namespace {namespace}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn one_sentence_names_the_namespaces_the_rows_and_the_scope() {
        assert_eq!(namespaces_sentence("team-a", &[], &KeptRows::default()), None);
        assert_eq!(
            namespaces_sentence("team-a", &names(&["x"]), &KeptRows::default()).unwrap(),
            "nothing is collected from namespace x: a target of namespace team-a collects from its own; to let \
             it collect from others too, list team-a and the others in spec.allowedNamespaces of a KollectScope in \
             namespace team-a"
        );
        let namespaces = names(&["x", "y", "z"]).into_iter().collect();
        let kept = KeptRows { beyond: 7, namespaces, ..KeptRows::default() };
        let sentence = namespaces_sentence("team-a", &[], &kept).unwrap();
        let begins = "nothing is collected from 3 namespaces (x, y and 1 more); 7 rows from there stay in the \
                      sinks as they were: ";
        assert!(sentence.starts_with(begins), "{sentence}");
    }
}
