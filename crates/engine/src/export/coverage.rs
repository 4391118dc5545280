//! Describes in one line what could be seen.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    names,
    store::{Visibilities, Visibility},
};

/// How many blind kinds are named.
const NAMED_KINDS: usize = 5;

/// What could be seen, in one line: `complete`, or what is blind. `watched` is everything that a run watches; `undecided` is the
/// number of objects of which it is not known whether they are selected.
pub fn coverage(seen: &Visibilities, watched: &Visibility, undecided: usize) -> String {
    unseen(seen, |visibility| is_complete(visibility, watched), undecided)
}

/// The same; `is_seen` decides whether a visibility is complete.
pub(super) fn unseen(seen: &Visibilities, is_seen: impl Fn(&Visibility) -> bool, undecided: usize) -> String {
    let noun = if undecided == 1 { "object" } else { "objects" };
    let undecided = (undecided > 0).then(|| format!("{undecided} {noun} undecided by matchPolicy"));
    let blind: Vec<String> = seen
        .iter()
        .filter(|(_, visibility)| !is_seen(visibility))
        .map(|((target, group, kind), visibility)| {
            let dot = if group.is_empty() { "" } else { "." };
            let names = |found: &BTreeSet<Arc<str>>| names::namespaces(found, found.len());
            let namespaces = match visibility.within_reach() {
                Visibility::AllBut(blind_namespaces) => format!(" in {}", names(blind_namespaces)),
                Visibility::Within(seen) => format!(" but in {}", names(seen)),
                Visibility::Everything
                | Visibility::Absent
                | Visibility::Pending
                | Visibility::Partial
                | Visibility::WithinReach { .. } => String::new(),
            };
            format!("{kind}{dot}{group} of {target}{namespaces}")
        })
        .chain(undecided)
        .collect();
    match blind.len() {
        0 => "complete".to_owned(),
        count if count > NAMED_KINDS => {
            let named = blind.get(..NAMED_KINDS).unwrap_or_default();
            format!("blind: {}; and {} more", named.join("; "), count - NAMED_KINDS)
        }
        _ => format!("blind: {}", blind.join("; ")),
    }
}

/// Whether everything that the run watches was seen.
pub(super) fn is_complete(visibility: &Visibility, watched: &Visibility) -> bool {
    let seen = visibility.within_reach();
    matches!(seen, Visibility::Everything | Visibility::Absent)
        || (matches!(seen, Visibility::Within(_)) && seen == watched)
}
