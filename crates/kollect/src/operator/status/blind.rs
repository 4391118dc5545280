//! Kinds of a target that the operator cannot see: the lines of `status.coverage`, and a sentence for each that names
//! the missing permission, the namespaces, and what to grant.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_engine::{
    coverage::{Coverage, KindCoverage, WatchKey, WatchState},
    names,
    store::{Visibilities, Visibility},
    watch::{BlindReason, Blindness},
};
use kollect_model::{
    crd::{shapes::Gvk, target::CoverageStatus},
    row::TargetId,
};

use super::{StatusInputs, count, time};
use crate::resolve::{ResolvedInventory, ResolvedTarget};

/// The documented value for namespaces where listing is forbidden.
const FORBIDDEN: &str = "skipped:forbidden";

/// Limit of names in a list of a status; other fields have the total.
const MAX_NAMES: usize = 100;

/// Limit of kinds that a message names; the others are counted.
const NAMED_KINDS: usize = 2;

/// The beginning of a list of names, for a status.
pub(super) fn cut(names: &[Arc<str>]) -> Vec<String> {
    names.iter().take(MAX_NAMES).map(ToString::to_string).collect()
}

/// Whether a kind can be seen in some namespaces.
pub(super) struct CoverageLine {
    pub(super) status: CoverageStatus,
    /// The resource name of the kind, as in permissions.
    resource: String,
    /// All namespaces concerned; none: the whole cluster.
    names: Vec<Arc<str>>,
    /// Why the kind cannot be seen there.
    blindness: Option<Blindness>,
}

impl StatusInputs<'_> {
    /// For each kind of a target: since when it has been watched, or why not.
    pub(super) fn coverage_of(
        &self,
        resolved: &ResolvedTarget,
        namespaces: &[Arc<str>],
    ) -> Vec<CoverageLine> {
        let Some(target) = &resolved.target else { return Vec::new() };
        let kinds = target.selection.kinds();
        let namespaces: BTreeSet<&str> = namespaces.iter().map(|name| &**name).collect();
        lines(self.coverage, kinds, |watched| {
            target.selection.selects_kind(&watched.gvk, watched.field_selector.as_deref())
                && watched.namespace.as_deref().is_none_or(|name| namespaces.contains(name))
        })
    }

    /// What of an inventory cannot be seen, as far as the coverage has the cause.
    pub(super) fn unseen(&self, resolved: &ResolvedInventory, visibilities: &Visibilities) -> Option<String> {
        let mut by_kind: BTreeMap<(&str, &str), Vec<&Visibility>> = BTreeMap::new();
        for ((_, group, kind), visibility) in visibilities {
            by_kind.entry((group, kind)).or_default().push(visibility.within_reach());
        }
        let targets = resolved.targets.iter().filter_map(|id| self.resolved.targets.get(id)?.target.as_ref());
        let kinds: BTreeSet<&Gvk> = targets.flat_map(|target| target.selection.kinds()).collect();
        let lines = lines(self.coverage, kinds, |watched| {
            let visibilities = by_kind.get(&(&*watched.gvk.group, &*watched.gvk.kind));
            visibilities.is_some_and(|visibilities| {
                visibilities
                    .iter()
                    .any(|visibility| is_unseen_everywhere(visibility, watched.namespace.as_ref()))
            })
        });
        sentence(&lines, "the selections of its targets")
    }
}

impl StatusInputs<'_> {
    /// The message about a target whose kind is not served while sinks hold rows of its previous kind.
    pub(super) fn waiting(&self, id: &TargetId, visibilities: &Visibilities) -> Option<String> {
        if !visibilities.values().any(|visibility| *visibility == Visibility::Absent) {
            return None;
        }
        let kept = Some(self.kept(id)).filter(|kept| kept.waiting > 0)?;
        let absent: Vec<String> = visibilities
            .iter()
            .filter(|(_, visibility)| **visibility == Visibility::Absent)
            .map(|((_, group, kind), _)| {
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}")
            })
            .collect();
        let left: Vec<&str> = kept.left_kinds.iter().map(|kind| &**kind).collect();
        Some(format!(
            "target {id}: the cluster does not serve {}; {} rows of {} stay in the sinks until it can be listed. Correct \
             spec.targetGVK of the profile, or delete the target to remove the rows",
            absent.join(", "),
            kept.waiting,
            left.join(", ")
        ))
    }
}

/// The watches of these kinds for which `concerns` is true, grouped by kind and by why they cannot be seen.
fn lines<'a>(
    coverage: &Coverage,
    kinds: impl IntoIterator<Item = &'a Gvk>,
    concerns: impl Fn(&WatchKey) -> bool,
) -> Vec<CoverageLine> {
    let mut lines = CoverageLines::default();
    for gvk in kinds {
        coverage.visit_kind(gvk, |watched, known| {
            if concerns(watched) {
                lines.add(watched, known);
            }
        });
    }
    lines.done()
}

/// Lines that are being made.
#[derive(Default)]
struct CoverageLines(BTreeMap<(Gvk, Option<BlindReason>), CoverageLine>);

impl CoverageLines {
    fn add(&mut self, watched: &WatchKey, known: &KindCoverage) {
        let (since, blindness) = match &known.state {
            WatchState::Synced { since, .. } => (time(*since), None),
            WatchState::Blind { since, blindness } => (time(*since), Some(blindness)),
            WatchState::Absent => (None, None),
            WatchState::Waiting | WatchState::Listing { .. } => return,
        };
        let reason = blindness.map(|blindness| blindness.reason);
        let line = self.0.entry((watched.gvk.clone(), reason)).or_insert_with(|| CoverageLine {
            resource: known.resource.as_deref().map_or_else(|| watched.gvk.to_string(), str::to_owned),
            status: CoverageStatus {
                gvk: watched.gvk.clone(),
                blind: blindness.map(|blindness| match blindness.reason {
                    BlindReason::Forbidden => FORBIDDEN.to_owned(),
                    reason => format!("{reason}: {}", blindness.message),
                }),
                ..CoverageStatus::default()
            },
            names: Vec::new(),
            blindness: blindness.cloned(),
        });
        // One namespace may be watched with several field selectors; watches of a kind are in the order of namespaces.
        line.names.extend(watched.namespace.clone().filter(|name| line.names.last() != Some(name)));
        line.status.since = line.status.since.clone().max(since);
    }

    fn done(self) -> Vec<CoverageLine> {
        let mut lines: Vec<CoverageLine> = self.0.into_values().collect();
        for CoverageLine { status, names, .. } in &mut lines {
            status.namespaces = cut(names);
            status.namespace_count = count(names.len()).filter(|_| !names.is_empty());
        }
        lines
    }
}

fn is_unseen_everywhere(visibility: &Visibility, namespace: Option<&Arc<str>>) -> bool {
    match (visibility, namespace) {
        (Visibility::Everything | Visibility::Absent | Visibility::Pending, _) => false,
        (Visibility::AllBut(blind), Some(namespace)) => blind.contains(namespace),
        (Visibility::Within(seen), Some(namespace)) => !seen.contains(namespace),
        (_, _) => true,
    }
}

/// What cannot be seen; `None`: everything can. `selection` is what names the namespaces.
pub(super) fn sentence(lines: &[CoverageLine], selection: &str) -> Option<String> {
    let blind: Vec<String> = lines.iter().filter_map(|line| line.sentence(selection)).collect();
    let named = blind.iter().take(NAMED_KINDS).cloned().collect::<Vec<_>>().join("; ");
    match blind.len().saturating_sub(NAMED_KINDS) {
        0 => Some(named).filter(|named| !named.is_empty()),
        1 => Some(format!("{named}; and 1 more kind")),
        more => Some(format!("{named}; and {more} more kinds")),
    }
}

impl CoverageLine {
    pub(super) fn is_forbidden(&self) -> bool {
        self.blindness.as_ref().is_some_and(|blindness| blindness.reason == BlindReason::Forbidden)
    }

    fn sentence(&self, selection: &str) -> Option<String> {
        let (Blindness { reason, message }, resource) = (self.blindness.as_ref()?, &self.resource);
        let namespaces = match self.names.len() {
            0 => "the whole cluster".to_owned(),
            all => names::namespaces(&self.names, all),
        };
        let grant = match self.names.len() {
            0 => "grant both verbs to its ServiceAccount with a ClusterRole".to_owned(),
            all => {
                let them = if all == 1 { "the namespace" } else { "the namespaces" };
                format!("grant both verbs to its ServiceAccount there, or leave {them} out of {selection}")
            }
        };
        Some(match reason {
            BlindReason::Forbidden => {
                format!("the operator may not list and watch {resource} in {namespaces}: {grant}")
            }
            // The message names the kind, which is served nowhere.
            BlindReason::NotServed | BlindReason::VersionNotServed => message.clone(),
            _ => format!("{resource} cannot be seen in {namespaces}: {message}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::SystemTime};

    use super::*;

    /// The same coverage of a kind in so many namespaces; 0: in the whole cluster.
    fn kind_coverage(
        resource: &str,
        namespaces: usize,
        reason: Option<BlindReason>,
    ) -> BTreeMap<WatchKey, KindCoverage> {
        let gvk = Gvk { kind: resource.to_uppercase(), ..Gvk::default() };
        let names: Vec<Option<Arc<str>>> = match namespaces {
            0 => vec![None],
            all => (0..all).map(|number| Some(format!("team-{number:03}").into())).collect(),
        };
        let since = SystemTime::UNIX_EPOCH;
        let known = |namespace: Option<Arc<str>>| {
            let message = format!("list {resource} in {}: no route", namespace.as_deref().unwrap_or("all"));
            let state = match reason {
                None => WatchState::Synced { since, version: 1 },
                Some(reason) => WatchState::Blind { since, blindness: Blindness { reason, message } },
            };
            let known =
                KindCoverage { state, resource: Some(resource.into()), gaps: VecDeque::new(), repaired: 0 };
            (WatchKey { gvk: gvk.clone(), namespace, field_selector: None }, known)
        };
        names.into_iter().map(known).collect()
    }

    fn all_lines(kind_coverage: &BTreeMap<WatchKey, KindCoverage>) -> Vec<CoverageLine> {
        let mut lines = CoverageLines::default();
        kind_coverage.iter().for_each(|(watched, known)| lines.add(watched, known));
        lines.done()
    }

    fn messages(kind_coverage: &BTreeMap<WatchKey, KindCoverage>) -> String {
        sentence(&all_lines(kind_coverage), "the target's selection").unwrap()
    }

    #[test]
    fn a_message_names_the_missing_permission_the_namespaces_and_what_to_grant() {
        let forbidden = Some(BlindReason::Forbidden);
        assert_eq!(sentence(&all_lines(&kind_coverage("secrets", 0, None)), ""), None);
        assert_eq!(
            messages(&kind_coverage("secrets", 250, forbidden)),
            "the operator may not list and watch secrets in 250 namespaces (team-000, team-001 and 248 more): grant \
             both verbs to its ServiceAccount there, or leave the namespaces out of the target's \
             selection"
        );
        assert_eq!(
            messages(&kind_coverage("secrets", 1, forbidden)),
            "the operator may not list and watch secrets in namespace team-000: grant both verbs to its \
             ServiceAccount there, or leave the namespace out of the target's selection"
        );
        assert_eq!(
            messages(&kind_coverage("nodes", 0, forbidden)),
            "the operator may not list and watch nodes in the whole cluster: grant both verbs to its \
             ServiceAccount with a ClusterRole"
        );
        assert_eq!(
            messages(&kind_coverage("deployments.apps", 3, Some(BlindReason::Failed))),
            "deployments.apps cannot be seen in 3 namespaces (team-000, team-001 and 1 more): list deployments.apps in \
             team-000: no route"
        );
    }

    #[test]
    fn a_namespace_that_is_watched_with_several_field_selectors_is_named_once() {
        let mut coverage = kind_coverage("pods", 2, Some(BlindReason::Forbidden));
        for (watched, known) in coverage.clone() {
            coverage.insert(WatchKey { field_selector: Some("spec.nodeName=a".into()), ..watched }, known);
        }
        let found = all_lines(&coverage);
        assert_eq!(
            (found.len(), &found[0].status.namespaces),
            (1, &vec!["team-000".into(), "team-001".into()])
        );
        assert_eq!(found[0].status.namespace_count, Some(2));
    }

    #[test]
    fn lists_are_cut_and_counted_and_have_a_line_for_each_reason_only() {
        let mut coverage = kind_coverage("secrets", 250, Some(BlindReason::Failed));
        let found = all_lines(&coverage);
        assert_eq!(found.len(), 1, "each namespace has a message of its own");
        let status = &found[0].status;
        assert_eq!((status.namespaces.len(), status.namespace_count), (100, Some(250)));
        for resource in ["a", "b", "c"] {
            coverage.extend(kind_coverage(resource, 1, Some(BlindReason::Forbidden)));
        }
        let message = messages(&coverage);
        assert!(message.ends_with("; and 2 more kinds"), "{message}");
        assert!(message.len() < 400, "{message}");
    }
}
