//! The destinations of a binding as a state machine: where its rows are, where they should be, where they have been.
//!
//! ```text
//!              wanted              claim granted           another one is granted        cleaned
//!   (nothing) ───────▶ `claiming` ──────────────▶ `held` ─────────────────────────▶ `left` ───────▶ (nothing)
//!                          │                                                           ▲
//!                          └─────────────── no longer wanted ──────────────────────────┘
//! ```
//!
//! The line of the sink in the status stores the state; there `held` has the name `place`. A claim is requested only for
//! a destination that the line names, so that a later process finds every destination that may hold rows. A destination
//! that was left is cleaned when the new one holds all rows, or at once if the binding was removed.

use std::collections::BTreeSet;

use kollect_engine::{
    deliver::DestinationKey,
    export::{BindingEvent, CleaningOutcome},
};
use kollect_model::{
    claim::Claim,
    crd::inventory::{RecordedDestination, SinkExport},
    sink::SinkReason,
};

/// Limit of the CRD schema.
const MAX_LEFT: usize = 20;

/// The destinations of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destinations {
    /// Where the rows are: the claim was granted.
    pub(crate) held: Option<RecordedDestination>,
    /// Where a claim is requested.
    pub(crate) claiming: Option<RecordedDestination>,
    /// Destinations that must be cleaned.
    pub(crate) left: Vec<RecordedDestination>,
}

/// What this process knows about the destinations of a binding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownDestinations {
    /// The destination that it writes or will write.
    current: Option<RecordedDestination>,
    /// The claim that was granted there.
    claim: Option<Claim>,
    /// It has held all rows since the binding last changed.
    filled: bool,
    /// Destinations that need no cleaning any more: clean, not owned by this cluster, or unreachable and reported.
    no_cleaning: BTreeSet<(String, String)>,
}

fn key(destination: &RecordedDestination) -> (String, String) {
    (destination.destination.to_string(), destination.cluster.clone())
}

/// A destination as a status names it.
pub(crate) fn export_destination(destination: &DestinationKey) -> RecordedDestination {
    RecordedDestination::new(destination.destination.clone(), destination.inventory.cluster.clone())
}

impl KnownDestinations {
    /// The initial state of a process, from the status: where the rows are.
    pub(crate) fn from_status(export: &SinkExport) -> Self {
        Self { current: export.place.as_ref().map(RecordedDestination::without_id), ..Self::default() }
    }

    /// Starts a new version of the binding in a destination, which is not yet known to hold all rows.
    pub(crate) fn begin(&mut self, destination: &RecordedDestination) {
        if !self.is_current(destination) {
            (self.current, self.claim) = (Some(destination.clone()), None);
        }
        self.filled = false;
        self.no_cleaning.remove(&key(destination));
    }

    /// Whether the binding writes, or will write, to a destination.
    pub(crate) fn is_current(&self, destination: &RecordedDestination) -> bool {
        self.current.as_ref().is_some_and(|current| current.is_at(destination))
    }

    /// Updates the state with a report of a binding about a destination.
    pub(crate) fn handle_event(&mut self, destination: &RecordedDestination, event: &BindingEvent<'_>) {
        match event {
            BindingEvent::Cleaned { .. } => {
                if self.is_current(destination) {
                    (self.current, self.claim, self.filled) = (None, None, false);
                }
                self.no_cleaning.insert(key(destination));
            }
            _ if !self.is_current(destination) => {}
            BindingEvent::Claimed(claim) => {
                self.claim = Some((*claim).clone());
                self.no_cleaning.remove(&key(destination));
            }
            BindingEvent::Compared(outcome) => self.filled |= outcome.is_complete,
            BindingEvent::ClaimLost(_) => self.claim = None,
            BindingEvent::Failed { error, .. } if error.reason == SinkReason::Fenced => self.claim = None,
            // Another cluster owns the destination, so it holds no rows of this cluster.
            BindingEvent::Failed { error, .. } if error.reason == SinkReason::OwnedByOther => {
                self.claim = None;
                self.no_cleaning.insert(key(destination));
            }
            _ => {}
        }
    }

    /// The claim that was granted in the current destination.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    fn granted(&self) -> Option<RecordedDestination> {
        let (current, claim) = (self.current.as_ref()?, self.claim.as_ref()?);
        Some(RecordedDestination { id: claim.destination_id.clone(), ..current.clone() })
    }

    /// Whether a destination needs no cleaning any more.
    pub(crate) fn needs_no_cleaning(&self, destination: &RecordedDestination) -> bool {
        self.no_cleaning.contains(&key(destination))
    }

    /// Stops cleaning a destination.
    pub(crate) fn give_up(&mut self, destination: &RecordedDestination) {
        self.no_cleaning.insert(key(destination));
    }

    /// Whether destinations that the binding has left may be cleaned: the one that it is wanted in holds all rows, or
    /// it is wanted nowhere.
    pub(crate) fn may_clean(&self, wanted: Option<&RecordedDestination>) -> bool {
        wanted.is_none_or(|wanted| self.filled && self.is_current(wanted))
    }

    /// Keeps the state of these destinations only. The others are forgotten, because rows may be written there again.
    pub(crate) fn retain(&mut self, destinations: &Destinations) {
        let named: BTreeSet<_> = destinations.all().map(key).collect();
        self.no_cleaning.retain(|destination| named.contains(destination));
    }
}

impl Destinations {
    /// Reads a line of a status. Older versions stored no destinations: their rows are assumed to be where the sink
    /// leads now, at `leads_to`.
    pub(crate) fn of(export: &SinkExport, leads_to: Option<&RecordedDestination>) -> Self {
        let unknown = || RecordedDestination::new("an unknown place".into(), "");
        let of_older_version =
            || export.last_export_time.as_ref().map(|_| leads_to.cloned().unwrap_or_else(unknown));
        let names_any = export.claiming.is_some() || !export.left.is_empty();
        let held = export.place.clone().or_else(|| if names_any { None } else { of_older_version() });
        Self { held, claiming: export.claiming.clone(), left: export.left.clone() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &RecordedDestination> {
        self.held.iter().chain(&self.claiming).chain(&self.left)
    }

    /// Whether the line names a destination as held or claiming. Only then may it be claimed: a later process finds it.
    pub(crate) fn names(&self, destination: &RecordedDestination) -> bool {
        self.held.iter().chain(&self.claiming).any(|named| named.is_at(destination))
    }

    /// The next content of the line; `wanted` is where the binding should write, `None` if it should write nowhere.
    pub(crate) fn next(mut self, wanted: Option<&RecordedDestination>, known: &KnownDestinations) -> Self {
        if let Some(granted) = known.granted() {
            if let Some(before) = self.held.replace(granted.clone()).filter(|before| !before.is_at(&granted))
            {
                self.left.push(before);
            }
            self.claiming = self.claiming.filter(|claiming| !claiming.is_at(&granted));
        }
        let is_wanted =
            |destination: &RecordedDestination| wanted.is_some_and(|wanted| wanted.is_at(destination));
        let unwanted = self.claiming.take_if(|claiming| !is_wanted(claiming));
        self.left.extend(unwanted.map(|destination| RecordedDestination { asked_only: true, ..destination }));
        match wanted {
            None => self.left.extend(self.held.take()),
            Some(wanted) if !self.names(wanted) => self.claiming = Some(wanted.clone()),
            Some(_) => {}
        }
        let mut checked = Vec::new();
        let needs_cleaning = |destination: &RecordedDestination| !known.needs_no_cleaning(destination);
        self.left.reverse();
        self.left.retain(|destination| {
            let is_new = !checked.contains(&key(destination));
            checked.push(key(destination));
            is_new
                && needs_cleaning(destination)
                && !self.held.iter().chain(&self.claiming).any(|kept| kept.is_at(destination))
        });
        self.left.truncate(MAX_LEFT);
        self.left.reverse();
        self
    }

    /// Whether a destination that cannot be reached is, by its id, the one that holds the rows, or a copy of it.
    pub(crate) fn is_held_under_another_name(&self, destination: &RecordedDestination) -> bool {
        let id = |destination: &RecordedDestination| destination.id.clone();
        destination.id.is_some() && self.held.as_ref().and_then(id) == destination.id
    }
}

/// The result of a cleaning, for the log.
pub(crate) fn cleaning_text(cleaned: &CleaningOutcome) -> String {
    match cleaned {
        CleaningOutcome::Removed => "nothing is left".into(),
        CleaningOutcome::SameAs(sink) => format!("it is the destination of {sink} under another name"),
        CleaningOutcome::NotOurs => "this cluster owns nothing there".into(),
    }
}

#[cfg(test)]
mod tests;
