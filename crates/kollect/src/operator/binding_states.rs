//! The last known progress of each binding: statuses and metrics are computed from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use kollect_engine::{
    deliver::DestinationKey,
    export::{
        BindingEvent, BindingProgress, BlockedRemovals, CleaningOutcome, KeptRows, Outcome, ProgressSnapshot,
    },
};
use kollect_model::{
    batch::{Delta, Receipt},
    binding::BindingName,
    crd::inventory::{RecordedDestination, SinkExport},
    row::{RowKey, TargetId},
    sink::ErrorClass,
};
use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::destinations::{Destinations, KnownDestinations, cleaning_text, export_destination};

/// What is known about one binding.
#[derive(Clone, Default)]
pub(crate) struct BindingState {
    /// How far it has come in its destination.
    progress: BindingProgress,
    /// The version of the binding that is wanted.
    wanted: Option<WantedVersion>,
    /// Since when the specs have asked for a newer version that cannot be built yet, because the Secrets of the sink
    /// are being read.
    newer_since: Option<Instant>,
    /// The state that was last reported to the loop.
    reported: ReportedState,
    /// Rows that the sink refuses, by name.
    pub(crate) refused: Vec<String>,
    /// The latest failure, until an attempt succeeds.
    failure: Option<BindingFailure>,
    /// Another binding of the inventory writes to the same destination, so this one writes nothing.
    duplicate: Option<BindingFailure>,
    /// Rows that another writer had changed in the sink.
    pub(crate) drifted: u64,
    /// Rows that the sink keeps although their objects are not collected, by target.
    kept: BTreeMap<TargetId, KeptRows>,
    /// Rows written.
    pub(crate) written: u64,
    /// Removals that the guard holds, until the next write.
    pub(crate) held_removals: Option<BlockedRemovals>,
    /// Why nothing is sent although nothing failed.
    pub(crate) held_back: Option<String>,
    pub(crate) held_back_since: Option<SystemTime>,
    /// What is known about its destinations.
    pub(crate) destinations: KnownDestinations,
    /// The destinations that its line of the status should name; `None`: no change.
    pub(crate) status_line: Option<Destinations>,
    /// Destinations that hold rows, but where the sink does not lead any more.
    pub(crate) lost: BTreeSet<RecordedDestination>,
    /// Why a destination that it has left could not be cleaned.
    pub(crate) clean_error: Option<String>,
}

/// A version of a binding that is wanted.
#[derive(Clone, Debug)]
pub(crate) struct WantedVersion {
    pub(crate) number: u64,
    /// Since when.
    pub(crate) since: Instant,
    /// The least time between two writes.
    pub(crate) cadence: Duration,
    /// The value of the annotation that requests a comparison.
    pub(crate) requested: Option<String>,
}

/// A failure.
#[derive(Clone, Debug)]
pub(crate) struct BindingFailure {
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) since: SystemTime,
    pub(crate) next_attempt: Option<SystemTime>,
}

/// Bindings that have reported something.
#[derive(Default)]
pub(crate) struct ChangedBindings {
    pub(crate) bindings: BTreeSet<BindingName>,
    /// Those of them that have failed.
    pub(crate) failed: BTreeSet<BindingName>,
    /// The state of a destination has changed.
    pub(crate) destinations: bool,
}

/// The progress of all bindings. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct BindingStates {
    bindings: Arc<Mutex<BTreeMap<BindingName, BindingState>>>,
    /// Destinations that are another known destination under another name, until an event has reported it.
    adopted: Arc<Mutex<Vec<(BindingName, RecordedDestination)>>>,
    /// Bindings that have reported something since they were last taken.
    changed_bindings: Arc<Mutex<ChangedBindings>>,
    /// See [`Self::changes`].
    change_signal: watch::Sender<()>,
    /// See [`Self::counts`].
    count_signal: watch::Sender<()>,
}

impl BindingStates {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BindingName, BindingState>> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever a binding reports more than new counts and times.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.change_signal.subscribe()
    }

    /// Changes whenever a binding reports new counts or times only, after a successful write.
    pub(crate) fn counts(&self) -> watch::Receiver<()> {
        self.count_signal.subscribe()
    }

    /// What is known about a binding.
    pub(crate) fn of(&self, name: &BindingName) -> BindingState {
        self.lock().get(name).cloned().unwrap_or_default()
    }

    /// Reads what is known about a binding.
    pub(crate) fn read<T>(&self, name: &BindingName, read: impl FnOnce(&BindingState) -> T) -> Option<T> {
        self.lock().get(name).map(read)
    }

    /// Bindings that have reported something since the last call.
    pub(crate) fn take_changed(&self) -> ChangedBindings {
        std::mem::take(&mut *self.changed_bindings())
    }

    fn changed_bindings(&self) -> MutexGuard<'_, ChangedBindings> {
        self.changed_bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_change(&self, name: &BindingName, destinations: bool) {
        let mut changed_bindings = self.changed_bindings();
        changed_bindings.bindings.insert(name.clone());
        changed_bindings.destinations |= destinations;
    }

    /// Forgets bindings for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&BindingName) -> bool) {
        self.lock().retain(|name, _| keep(name));
    }

    /// Initializes a binding that is not known yet from its line of the status.
    pub(crate) fn remember(&self, name: &BindingName, export: &SinkExport) {
        self.lock().entry(name.clone()).or_insert_with(|| BindingState {
            destinations: KnownDestinations::from_status(export),
            ..BindingState::default()
        });
    }

    /// Starts a new version of a binding. Its destination is not yet known to hold that version.
    pub(crate) fn begin(
        &self,
        name: &BindingName,
        destination: &RecordedDestination,
        progress: &BindingProgress,
        wanted: WantedVersion,
    ) {
        let mut bindings = self.lock();
        let state = bindings.entry(name.clone()).or_default();
        if !state.destinations.is_current(destination) {
            state.reset_for_new_destination();
        }
        (state.progress, state.wanted) = (progress.clone(), Some(wanted));
        state.reported.is_acknowledged = false;
        state.newer_since = None;
        state.destinations.begin(destination);
        drop(bindings);
        self.record_change(name, false);
    }

    /// Records whether the wanted version of a binding is what the specs ask for.
    pub(crate) fn set_newest(&self, name: &BindingName, is_newest: bool) {
        let mut bindings = self.lock();
        let Some(state) = bindings.get_mut(name) else { return };
        if is_newest != state.newer_since.is_none() {
            state.newer_since = if is_newest { None } else { Some(Instant::now()) };
            drop(bindings);
            self.record_change(name, false);
        }
    }

    /// Computes what the line of a binding should name, and whether destinations that it has left may be cleaned.
    pub(crate) fn advance(
        &self,
        name: &BindingName,
        in_status: Destinations,
        wanted: Option<&RecordedDestination>,
    ) -> (Destinations, bool) {
        let mut bindings = self.lock();
        let state = bindings.entry(name.clone()).or_default();
        state.destinations.retain(&in_status);
        let line = in_status.next(wanted, &state.destinations);
        state.status_line = Some(line.clone());
        (line, state.destinations.may_clean(wanted))
    }

    /// Whether the line of a binding names a destination.
    pub(crate) fn status_names(&self, name: &BindingName, destination: &RecordedDestination) -> bool {
        let names = |line: &Destinations| line.all().any(|named| named.is_at(destination));
        self.read(name, |state| state.status_line.as_ref().is_some_and(names)).unwrap_or(false)
    }

    /// Stops cleaning a destination that a binding has left.
    pub(crate) fn give_up(&self, name: &BindingName, destination: &RecordedDestination) {
        self.lock().entry(name.clone()).or_default().destinations.give_up(destination);
        self.record_change(name, true);
        self.change_signal.send_replace(());
    }

    /// Stops cleaning a destination that is, by its id, the one that holds the rows, under another name.
    pub(crate) fn adopt(&self, name: &BindingName, destination: &RecordedDestination) {
        self.give_up(name, destination);
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), destination.clone()));
    }

    /// The destinations given to [`Self::adopt`], or found while cleaning, since the last call.
    pub(crate) fn take_adopted(&self) -> Vec<(BindingName, RecordedDestination)> {
        std::mem::take(&mut *self.adopted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the destinations of a binding that hold rows and cannot be reached.
    pub(crate) fn set_lost(&self, name: &BindingName, lost: BTreeSet<RecordedDestination>) {
        if let Some(state) = self.lock().get_mut(name) {
            state.lost = lost;
        }
    }

    /// Forgets what is known about destinations: another process may have led meanwhile, and written there.
    pub(crate) fn forget_destinations(&self) {
        for state in self.lock().values_mut() {
            (state.destinations, state.status_line) = (KnownDestinations::default(), None);
        }
    }

    /// Marks these bindings, and no others, as duplicates: each has the destination of the binding that it maps to.
    pub(crate) fn refuse_duplicates(&self, duplicates: &BTreeMap<BindingName, BindingName>) {
        let mut bindings = self.lock();
        for (name, state) in bindings.iter_mut().filter(|(_, state)| state.duplicate.is_some()) {
            if !duplicates.contains_key(name) {
                // The other one has written meanwhile: what the sink holds is known after the next comparison.
                state.duplicate = None;
                state.progress.forget_contents();
                self.record_change(name, false);
            }
        }
        for (name, other) in duplicates {
            let state = bindings.entry(name.clone()).or_default();
            let message =
                format!("two references of one inventory have the same destination: this one and {other}");
            if state.duplicate.as_ref().is_none_or(|known| known.message != message) {
                warn!(binding = %name, error = message, "cannot write to the sink; trying again");
                let (class, since) = (ErrorClass::Terminal, kollect_engine::clock::now());
                state.duplicate = Some(BindingFailure { class, message, since, next_attempt: None });
                state.progress.forget_contents();
                self.record_change(name, false);
            }
        }
    }

    /// Records a report of a binding.
    pub(crate) fn handle_event(
        &self,
        name: &BindingName,
        destination: &DestinationKey,
        event: &BindingEvent<'_>,
    ) {
        let destination = export_destination(destination);
        let mut bindings = self.lock();
        let state = bindings.entry(name.clone()).or_default();
        let is_current = state.destinations.is_current(&destination);
        let destinations_before = state.destinations.clone();
        state.destinations.handle_event(&destination, event);
        let destinations_changed = state.destinations != destinations_before;
        if is_current && matches!(event, BindingEvent::Cleaned { .. }) {
            state.reset_for_new_destination();
        }
        if !is_current && !matches!(event, BindingEvent::Cleaned { .. } | BindingEvent::NotCleaned { .. }) {
            // A late report about a destination that the binding has left.
            return;
        }
        let reported_before = state.reported.clone();
        state.handle_event(name, &destination, event);
        state.reported = state.reported_state();
        if let BindingEvent::Cleaned { cleaned: CleaningOutcome::SameAs(_), .. } = event {
            self.adopted.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), destination));
        }
        let is_change =
            matches!(event, BindingEvent::Late) || state.reported != reported_before || destinations_changed;
        drop(bindings);
        self.record_change(name, destinations_changed);
        if matches!(event, BindingEvent::Failed { .. }) {
            self.changed_bindings().failed.insert(name.clone());
        }
        let signal = if is_change { &self.change_signal } else { &self.count_signal };
        signal.send_replace(());
    }
}

/// State of a binding that is reported to the loop at once when it changes. Everything else is counts and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReportedState {
    is_acknowledged: bool,
    refused: usize,
    failure: Option<(ErrorClass, String)>,
    is_held_back: bool,
    holds_removals: bool,
    clean_error: Option<String>,
    kept: usize,
}

impl BindingState {
    /// Records a report about the destination of the binding, or about cleaning one that it has left.
    fn handle_event(
        &mut self,
        name: &BindingName,
        destination: &RecordedDestination,
        event: &BindingEvent<'_>,
    ) {
        let now = kollect_engine::clock::now();
        let warnings = match event {
            BindingEvent::Compared(outcome) => &*outcome.receipt.warnings,
            BindingEvent::Written(_, receipt) => &*receipt.warnings,
            _ => &[],
        };
        for warning in warnings {
            warn!(binding = %name, warning, "written with a warning");
        }
        match event {
            BindingEvent::Claimed(claim) => {
                info!(binding = %name, destination = %destination, epoch = claim.epoch, taken_from = claim.taken_from, "the inventory is claimed in its destination");
            }
            BindingEvent::ClaimLost(error) => {
                warn!(binding = %name, reason = ?error.reason, error = crate::error_chain::chain_text(*error), "the claim was lost; claiming the inventory again");
            }
            BindingEvent::Passed | BindingEvent::Waits | BindingEvent::Late => {}
            BindingEvent::Compared(outcome) => self.compared(outcome, name),
            BindingEvent::Written(delta, receipt) => self.succeeded(delta, receipt, name),
            BindingEvent::Failed { error, pause } => {
                let since = self.failure.as_ref().map_or(now, |failure| failure.since);
                let message = crate::error_chain::chain_text(*error);
                // One line per change of state, not one per attempt.
                if self.failure.as_ref().is_none_or(|failure| failure.message != message) {
                    warn!(binding = %name, reason = ?error.reason, error = message, "cannot write to the sink; trying again");
                }
                let next_attempt = pause.map(|pause| now + pause);
                self.failure = Some(BindingFailure { class: error.class(), message, since, next_attempt });
            }
            BindingEvent::Paused { pause } => {
                let failure = self.failure.get_or_insert_with(|| BindingFailure {
                    class: ErrorClass::Transient,
                    message: "the sink keeps failing, for other inventories too".into(),
                    since: now,
                    next_attempt: None,
                });
                failure.next_attempt = Some(now + *pause);
            }
            BindingEvent::HeldBack { coverage } => {
                self.failure = None;
                self.held_back = Some((*coverage).to_owned());
                self.held_back_since.get_or_insert(now);
            }
            BindingEvent::RemovalsHeld(held) => {
                if self.held_removals.as_ref() != Some(held) {
                    warn!(binding = %name, rows = held.rows, of = held.held, token = held.token, "removals are held");
                }
                self.failure = None;
                self.held_removals = Some((*held).clone());
            }
            BindingEvent::Cleaned { cleaned, moved } => {
                info!(binding = %name, destination = %destination, moved, outcome = cleaning_text(cleaned), "an old destination is cleaned");
                self.clean_error = None;
            }
            BindingEvent::NotCleaned { error, moved, .. } => {
                let message = crate::error_chain::chain_text(*error);
                warn!(binding = %name, moved, error = message, "cannot clean an old destination; trying again");
                self.clean_error = Some(message);
            }
        }
    }

    fn reported_state(&self) -> ReportedState {
        ReportedState {
            is_acknowledged: self.is_acknowledged(),
            refused: self.refused.len(),
            failure: self.failure().map(|failure| (failure.class, failure.message.clone())),
            is_held_back: self.held_back.is_some(),
            holds_removals: self.held_removals.is_some(),
            clean_error: self.clean_error.clone(),
            kept: self.kept.values().map(|kept| kept.beyond + kept.waiting).sum(),
        }
    }

    /// How far the binding has come in its destination.
    pub(crate) fn progress_snapshot(&self) -> ProgressSnapshot {
        self.progress.read()
    }

    /// The progress that the task of the binding updates.
    pub(crate) fn progress(&self) -> &BindingProgress {
        &self.progress
    }

    /// The version of the binding that is wanted.
    pub(crate) fn wanted(&self) -> Option<&WantedVersion> {
        self.wanted.as_ref()
    }

    /// Since when the specs have asked for a newer version than the wanted one.
    pub(crate) fn newer_since(&self) -> Option<Instant> {
        self.newer_since
    }

    /// Whether an attempt has ended, successful or not, with the newest version of the binding and this value of the
    /// annotation that requests a comparison.
    pub(crate) fn has_handled(&self, requested: Option<&String>) -> bool {
        let is_tried = |wanted: &WantedVersion| {
            wanted.requested.as_ref() == requested && self.progress.has_tried(wanted.number)
        };
        self.duplicate.is_some() || self.newer_since.is_none() && self.wanted.as_ref().is_some_and(is_tried)
    }

    /// Whether an attempt has ended, successful or not.
    pub(crate) fn has_been_tried(&self) -> bool {
        self.progress.has_tried(0) || self.failure().is_some()
    }

    /// For how long the sink has lacked rows that it should have: because it fails, is held back, or is late.
    pub(crate) fn lag(&self, now: SystemTime) -> Option<Duration> {
        let failing = self.failure().map(|failure| failure.since);
        let since = [failing, self.held_back_since].into_iter().flatten().min();
        let failed = since.map(|since| now.duration_since(since).unwrap_or_default());
        let progress = self.progress_snapshot();
        let cadence = self.wanted.as_ref().map(|wanted| wanted.cadence).unwrap_or_default();
        let late = progress.late(cadence, Instant::now()).and(progress.pending);
        failed.max(late.map(|pending| pending.since.elapsed()))
    }

    /// Rows of a target that the sink keeps although their objects are not collected.
    pub(crate) fn kept(&self, target: &TargetId) -> Option<&KeptRows> {
        self.kept.get(target)
    }

    /// Whether the sink has acknowledged the version that is wanted, and is known to hold that.
    fn is_acknowledged(&self) -> bool {
        self.newer_since.is_none()
            && self.wanted.as_ref().is_some_and(|wanted| self.progress.has_acknowledged(wanted.number))
    }

    /// Whether the sink holds the rows of the version that is wanted, in the destination that the status names.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_held() && self.is_acknowledged() && self.duplicate.is_none()
    }

    /// Whether the destination that the status names is the one that is written, and no other is requested.
    pub(crate) fn is_held(&self) -> bool {
        let holds = |line: &Destinations| {
            let held = line.held.as_ref().filter(|_| line.claiming.is_none());
            held.is_some_and(|held| self.destinations.is_current(held))
        };
        self.status_line.as_ref().is_some_and(holds)
    }

    /// Resets everything that describes the previous destination.
    fn reset_for_new_destination(&mut self) {
        let Self { drifted, written, destinations, status_line, lost, clean_error, .. } =
            std::mem::take(self);
        *self = Self { drifted, written, destinations, status_line, lost, clean_error, ..Self::default() };
    }

    /// Why nothing is written.
    pub(crate) fn failure(&self) -> Option<&BindingFailure> {
        self.duplicate.as_ref().or(self.failure.as_ref())
    }

    fn compared(&mut self, outcome: &Outcome, name: &BindingName) {
        let Outcome { delta, receipt, drifted, kept, .. } = outcome;
        self.kept.clone_from(kept);
        self.drifted += *drifted as u64;
        if *drifted > 0 {
            warn!(binding = %name, rows = drifted, "others had changed rows; they are repaired");
        }
        self.succeeded(delta, receipt, name);
    }

    fn succeeded(&mut self, delta: &Delta, receipt: &Receipt, name: &BindingName) {
        if self.failure.take().is_some() {
            info!(binding = %name, "the sink works again");
        }
        self.held_removals = None;
        (self.held_back, self.held_back_since) = (None, None);
        let now_refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let refused = delta.rows().filter(|row| now_refused.contains(&row.key)).count();
        self.written += delta.len().saturating_sub(refused) as u64;
        self.refused = receipt.refused.iter().map(|refusal| refusal.why.clone()).collect();
    }
}

#[cfg(test)]
mod tests;
