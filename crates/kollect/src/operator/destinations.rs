//! The destinations of a binding as a state machine: where its rows are, where they should be, where they have been.
//!
//! ```text
//!              wanted              claim granted           another one is granted        cleaned
//!   (nothing) ───────▶ `claiming` ──────────────▶ `place` ────────────────────────▶ `left` ───────▶ (nothing)
//!                          │                                                           ▲
//!                          └─────────────── no longer wanted ──────────────────────────┘
//! ```
//!
//! The line of the sink in the status stores the state. A claim is requested only for a destination that the line
//! names, so that a later process finds every destination that may hold rows. A destination that was left is cleaned
//! when the new one holds all rows, or at once if the binding is gone.

use std::collections::BTreeSet;

use kollect_engine::{
    deliver::Place,
    export::{BindingEvent, Cleaned},
};
use kollect_model::{
    claim::Claim,
    crd::inventory::{ExportPlace, SinkExport},
    sink::SinkReason,
};

/// Limit of the CRD schema.
const MAX_LEFT: usize = 20;

/// The destinations of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destinations {
    /// Where the rows are: the claim was granted.
    pub(crate) held: Option<ExportPlace>,
    /// Where a claim is asked for.
    pub(crate) claiming: Option<ExportPlace>,
    /// Destinations that must be cleaned.
    pub(crate) left: Vec<ExportPlace>,
}

/// What this process knows about the destinations of a binding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownDestinations {
    /// The destination that it writes or wants to write.
    current: Option<ExportPlace>,
    /// The claim that was granted there.
    claim: Option<Claim>,
    /// It has held all rows since the binding last changed.
    filled: bool,
    /// Destinations that need no cleaning any more: clean, not owned by this cluster, or unreachable and reported.
    done: BTreeSet<(String, String)>,
}

fn key(place: &ExportPlace) -> (String, String) {
    (place.destination.to_string(), place.cluster.clone())
}

/// A place as a status names it.
pub(crate) fn export_place(place: &Place) -> ExportPlace {
    ExportPlace::new(place.destination.clone(), place.inventory.cluster.clone())
}

impl KnownDestinations {
    /// The initial state of a process, from the status: where the rows are.
    pub(crate) fn told(export: &SinkExport) -> Self {
        Self { current: export.place.as_ref().map(ExportPlace::without_id), ..Self::default() }
    }

    /// Starts a new version of the binding in a destination, which is not yet known to hold all rows.
    pub(crate) fn begin(&mut self, place: &ExportPlace) {
        if !self.is_current(place) {
            (self.current, self.claim) = (Some(place.clone()), None);
        }
        self.filled = false;
        self.done.remove(&key(place));
    }

    /// Whether the binding writes, or wants to write, to a destination.
    pub(crate) fn is_current(&self, place: &ExportPlace) -> bool {
        self.current.as_ref().is_some_and(|current| current.is_at(place))
    }

    /// Updates the state with a report of a binding about a destination.
    pub(crate) fn hear(&mut self, place: &ExportPlace, told: &BindingEvent<'_>) {
        match told {
            BindingEvent::Cleaned { .. } => {
                if self.is_current(place) {
                    (self.current, self.claim, self.filled) = (None, None, false);
                }
                self.done.insert(key(place));
            }
            _ if !self.is_current(place) => {}
            BindingEvent::Claimed(claim) => {
                self.claim = Some((*claim).clone());
                self.done.remove(&key(place));
            }
            BindingEvent::Compared(outcome) => self.filled |= outcome.is_complete,
            BindingEvent::ClaimLost(_) => self.claim = None,
            BindingEvent::Failed { error, .. } if error.reason == SinkReason::Fenced => self.claim = None,
            // Another cluster owns the destination, so it holds no rows of this cluster.
            BindingEvent::Failed { error, .. } if error.reason == SinkReason::OwnedByOther => {
                self.claim = None;
                self.done.insert(key(place));
            }
            _ => {}
        }
    }

    /// The claim that was granted in the current destination.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.claim.as_ref()
    }

    fn granted(&self) -> Option<ExportPlace> {
        let (current, claim) = (self.current.as_ref()?, self.claim.as_ref()?);
        Some(ExportPlace { id: claim.destination_id.clone(), ..current.clone() })
    }

    /// Whether a destination needs no cleaning any more.
    pub(crate) fn is_done(&self, place: &ExportPlace) -> bool {
        self.done.contains(&key(place))
    }

    /// Stops cleaning a destination.
    pub(crate) fn give_up(&mut self, place: &ExportPlace) {
        self.done.insert(key(place));
    }

    /// Whether destinations that the binding has left may be cleaned: the one that it is wanted in holds all rows, or
    /// it is wanted nowhere.
    pub(crate) fn may_clean(&self, wanted: Option<&ExportPlace>) -> bool {
        wanted.is_none_or(|wanted| self.filled && self.is_current(wanted))
    }

    /// Keeps the state of these destinations only. The others are forgotten, because rows may be written there again.
    pub(crate) fn retain(&mut self, destinations: &Destinations) {
        let spoken: BTreeSet<_> = destinations.all().map(key).collect();
        self.done.retain(|place| spoken.contains(place));
    }
}

impl Destinations {
    /// Reads a line of a status. Older versions stored no destinations: their rows are assumed to be where the sink
    /// leads now, at `leads_to`.
    pub(crate) fn of(export: &SinkExport, leads_to: Option<&ExportPlace>) -> Self {
        let unknown = || ExportPlace::new("an unknown place".into(), "");
        let untold = || export.last_export_time.as_ref().map(|_| leads_to.cloned().unwrap_or_else(unknown));
        let is_told = export.claiming.is_some() || !export.left.is_empty();
        let held = export.place.clone().or_else(|| if is_told { None } else { untold() });
        Self { held, claiming: export.claiming.clone(), left: export.left.clone() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ExportPlace> {
        self.held.iter().chain(&self.claiming).chain(&self.left)
    }

    /// Whether the line names a destination as held or claiming. Only then may it be claimed: a later process finds it.
    pub(crate) fn speak_of(&self, place: &ExportPlace) -> bool {
        self.held.iter().chain(&self.claiming).any(|told| told.is_at(place))
    }

    /// The next content of the line; `wanted` is where the binding should write, `None` if it should write nowhere.
    pub(crate) fn next(mut self, wanted: Option<&ExportPlace>, known: &KnownDestinations) -> Self {
        if let Some(granted) = known.granted() {
            if let Some(before) = self.held.replace(granted.clone()).filter(|before| !before.is_at(&granted))
            {
                self.left.push(before);
            }
            self.claiming = self.claiming.filter(|claiming| !claiming.is_at(&granted));
        }
        let is_wanted = |place: &ExportPlace| wanted.is_some_and(|wanted| wanted.is_at(place));
        let asked_for = self.claiming.take_if(|claiming| !is_wanted(claiming));
        self.left.extend(asked_for.map(|place| ExportPlace { asked_only: true, ..place }));
        match wanted {
            None => self.left.extend(self.held.take()),
            Some(wanted) if !self.speak_of(wanted) => self.claiming = Some(wanted.clone()),
            Some(_) => {}
        }
        let mut told = Vec::new();
        let stays = |place: &ExportPlace| !known.is_done(place);
        self.left.reverse();
        self.left.retain(|place| {
            let is_new = !told.contains(&key(place));
            told.push(key(place));
            is_new && stays(place) && !self.held.iter().chain(&self.claiming).any(|kept| kept.is_at(place))
        });
        self.left.truncate(MAX_LEFT);
        self.left.reverse();
        self
    }

    /// Whether a destination that cannot be reached is, by its id, the one that holds the rows, or a copy of it.
    pub(crate) fn is_held_under_another_name(&self, place: &ExportPlace) -> bool {
        let id = |place: &ExportPlace| place.id.clone();
        place.id.is_some() && self.held.as_ref().and_then(id) == place.id
    }
}

/// The result of a cleaning, for the log.
pub(crate) fn described(cleaned: &Cleaned) -> String {
    match cleaned {
        Cleaned::Removed => "nothing is left".into(),
        Cleaned::SameAs(sink) => format!("it is the destination of {sink} under another name"),
        Cleaned::NotOurs => "nothing there is ours".into(),
    }
}

#[cfg(test)]
mod tests;
