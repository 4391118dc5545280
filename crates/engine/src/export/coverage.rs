//! Describes in one line what could be seen.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    names,
    store::{Sight, Sights},
};

/// How many blind kinds are named.
const NAMED_KINDS: usize = 5;

/// What could be seen, in one line: `complete`, or what is blind. `scope` is everything that a run covers.
pub fn coverage(seen: &Sights, scope: &Sight) -> String {
    unseen(seen, |sight| is_complete(sight, scope))
}

/// The same; `is_seen` decides whether a sight is complete.
pub(super) fn unseen(seen: &Sights, is_seen: impl Fn(&Sight) -> bool) -> String {
    let blind: Vec<String> = seen
        .iter()
        .filter(|(_, sight)| !is_seen(sight))
        .map(|((target, group, kind), sight)| {
            let dot = if group.is_empty() { "" } else { "." };
            let names = |found: &BTreeSet<Arc<str>>| names::namespaces(found, found.len());
            let place = match sight.within_reach() {
                Sight::AllBut(dark) => format!(" in {}", names(dark)),
                Sight::Within(seen) => format!(" but in {}", names(seen)),
                Sight::Everything
                | Sight::Absent
                | Sight::Pending
                | Sight::Partial
                | Sight::WithinReach { .. } => String::new(),
            };
            format!("{kind}{dot}{group} of {target}{place}")
        })
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

/// Whether everything that the run covers was seen.
pub(super) fn is_complete(sight: &Sight, scope: &Sight) -> bool {
    let seen = sight.within_reach();
    matches!(seen, Sight::Everything | Sight::Absent) || (matches!(seen, Sight::Within(_)) && seen == scope)
}
