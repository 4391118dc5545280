//! The part of a target's selection that matches nothing: the condition `Unmatched`.

use kollect_engine::{select::SelectedNamespaces, store::Visibility};
use kollect_model::{crd::shapes::Gvk, row::TargetId};

use super::StatusInputs;
use crate::{reason::Reason, resolve::ResolvedTarget};

/// A part of a selection that matches nothing.
pub(super) struct Unmatched {
    pub(super) reason: Reason,
    pub(super) message: String,
    /// Nothing can be selected with the current specs.
    pub(super) is_all: bool,
}

/// Limit of names in a message; the others are counted.
const MAX_NAMED: usize = 2;

fn names<T: ToString>(all: &[T]) -> String {
    let named: Vec<String> = all.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match all.len().saturating_sub(MAX_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl StatusInputs<'_> {
    /// The part of the selection of a target that matches nothing, once its kinds have been listed.
    pub(super) fn unmatched(
        &self,
        id: &TargetId,
        resolved: &ResolvedTarget,
        selected: &SelectedNamespaces,
        rows: i64,
    ) -> Option<Unmatched> {
        let target = resolved.target.as_ref()?;
        let selection = &target.selection;
        let kinds: Vec<&Gvk> = selection.kinds().into_iter().collect();
        let visibilities = self.rows.visibilities(std::slice::from_ref(id));
        let is_absent = |gvk: &&&Gvk| {
            let key = (id.clone(), gvk.group.as_str().into(), gvk.kind.as_str().into());
            visibilities.get(&key) == Some(&Visibility::Absent)
        };
        let absent: Vec<&Gvk> = kinds.iter().filter(is_absent).copied().collect();
        let is_cluster_scoped = |gvk: &&&Gvk| self.coverage.is_cluster_scoped(gvk) == Some(true);
        let cluster_scoped: Vec<&Gvk> = kinds.iter().filter(is_cluster_scoped).copied().collect();
        if !absent.is_empty() {
            let profile = &resolved.profile.1;
            let message = format!(
                "the cluster does not serve {}: correct spec.targetGVK of KollectProfile {profile}, or the gvk of \
                 spec.resourceRules, or install the CustomResourceDefinition",
                names(&absent),
            );
            return Some(Unmatched {
                reason: Reason::KindNotServed,
                message,
                is_all: absent.len() == kinds.len(),
            });
        }
        if selection.excludes_cluster_scoped() && !cluster_scoped.is_empty() {
            let message = format!(
                "objects of {} are in no namespace, and the spec selects namespaces: remove spec.namespaceSelector, \
                 spec.includedNamespaces and spec.excludedNamespaces",
                names(&cluster_scoped),
            );
            let is_all = cluster_scoped.len() == kinds.len();
            return Some(Unmatched { reason: Reason::ClusterScopedKind, message, is_all });
        }
        let namespaces = self.unmatched_namespaces(selection, selected);
        if let Some(unmatched) = namespaces.filter(|_| cluster_scoped.len() < kinds.len()) {
            return Some(unmatched);
        }
        let nothing = rows == 0 && selection.selects_objects() && self.rows.failures(id).0 == 0;
        let all_seen =
            visibilities.values().all(|visibility| *visibility.within_reach() == Visibility::Everything);
        (nothing && all_seen).then(|| Unmatched {
            reason: Reason::NothingSelected,
            message: format!("no object of {} matches the selectors of the target", names(&kinds)),
            is_all: false,
        })
    }

    fn unmatched_namespaces(
        &self,
        selection: &kollect_engine::select::Selection,
        selected: &SelectedNamespaces,
    ) -> Option<Unmatched> {
        // Without a complete list of namespaces none of them is known to be missing.
        let known = self.namespaces.as_ref().filter(|namespaces| namespaces.complete)?;
        let named = selection.named();
        let is_missing = |name: &&String| !known.known.contains_key(name.as_str());
        let missing: Vec<&String> = named.iter().filter(is_missing).collect();
        if !missing.is_empty() {
            let noun = if missing.len() == 1 { "namespace does" } else { "namespaces do" };
            let message = format!(
                "the {noun} not exist: {}; create what is missing, or remove it from spec.includedNamespaces",
                names(&missing)
            );
            let is_all = missing.len() == named.len();
            return Some(Unmatched { reason: Reason::NamespaceNotFound, message, is_all });
        }
        (selected.requested.is_empty() && selection.selects_by_labels()).then(|| Unmatched {
            reason: Reason::NoNamespaceMatches,
            message: "no namespace has the labels that the spec requires: correct spec.namespaceSelector, or label \
                      the namespaces"
                .to_owned(),
            is_all: false,
        })
    }
}
