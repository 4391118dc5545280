//! What each binding did last: the memory of statuses and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use kollect_engine::{
    deliver::Place,
    export::{Cleaned, HeldRemovals, KeptRows, Outcome, Told},
};
use kollect_model::{
    batch::{Delta, Receipt},
    binding::BindingName,
    crd::inventory::{ExportPlace, SinkExport},
    row::{RowKey, TargetId},
    sink::ErrorClass,
};
use tokio::sync::watch;
use tracing::{info, warn};

use super::destinations::{Destinations, KnownDestinations, described, export_place};

/// What is known about one binding.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// When the sink last confirmed that it holds the rows.
    pub(crate) last_export: Option<SystemTime>,
    /// Whether this process has seen that the sink holds the rows.
    pub(crate) confirmed: bool,
    /// Rows that the sink holds.
    pub(crate) rows: Option<i64>,
    /// Of the document or event that was written last.
    pub(crate) checksum: Option<String>,
    /// Rows that the sink refuses, by name.
    pub(crate) refused: Vec<String>,
    /// Those of them that it does not hold in an older version either.
    missing: BTreeSet<RowKey>,
    /// The latest failure, until something works.
    failure: Option<Failure>,
    /// Another binding of the inventory writes the same place, so this one writes nothing.
    duplicate: Option<Failure>,
    /// How many attempts the sink has refused for who we are.
    pub(crate) refused_attempts: u64,
    /// Rows that others had changed.
    pub(crate) drifted: u64,
    /// Rows that the sink keeps although their objects are not collected, by target.
    kept: BTreeMap<TargetId, KeptRows>,
    /// Rows written.
    pub(crate) written: u64,
    /// Removals that are held, until something is written.
    pub(crate) held_removals: Option<HeldRemovals>,
    /// Why nothing is sent although nothing failed.
    pub(crate) held_back: Option<String>,
    pub(crate) held_back_since: Option<SystemTime>,
    /// What is known about its destinations.
    pub(crate) destinations: KnownDestinations,
    /// What its line of the status shall say about them; `None`: what it says already.
    pub(crate) line: Option<Destinations>,
    /// Destinations that hold rows, and where the sink does not lead any more.
    pub(crate) lost: BTreeSet<ExportPlace>,
}

/// A failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) since: SystemTime,
    pub(crate) next_attempt: Option<SystemTime>,
}

/// All bindings.
#[derive(Clone, Default)]
pub(crate) struct Board {
    bindings: Arc<Mutex<BTreeMap<BindingName, Progress>>>,
    /// Destinations that turned out to be others under another name, until that has been told.
    adopted: Arc<Mutex<Vec<(BindingName, ExportPlace)>>>,
    changed: watch::Sender<()>,
    counted: watch::Sender<()>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BindingName, Progress>> {
        self.bindings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever something was heard other than that rows were written, as before.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Changes whenever rows were written, as before: nothing but counts and times has changed.
    pub(crate) fn counts(&self) -> watch::Receiver<()> {
        self.counted.subscribe()
    }

    /// What is known about a binding.
    pub(crate) fn of(&self, name: &BindingName) -> Progress {
        self.lock().get(name).cloned().unwrap_or_default()
    }

    /// Reads what is known about a binding.
    pub(crate) fn look<T>(&self, name: &BindingName, read: impl FnOnce(&Progress) -> T) -> Option<T> {
        self.lock().get(name).map(read)
    }

    /// Rows that sinks keep although their objects are not collected, by target, in the sink that has most of them.
    pub(crate) fn kept_rows(&self) -> BTreeMap<TargetId, KeptRows> {
        let mut most: BTreeMap<TargetId, KeptRows> = BTreeMap::new();
        for (target, kept) in self.lock().values().flat_map(|progress| &progress.kept) {
            let known = most.entry(target.clone()).or_default();
            if known.beyond + known.waiting < kept.beyond + kept.waiting {
                known.clone_from(kept);
            }
        }
        most
    }

    /// Forgets bindings that nobody asks for any more.
    pub(crate) fn retain(&self, keep: impl Fn(&BindingName) -> bool) {
        self.lock().retain(|name, _| keep(name));
    }

    /// Takes over what a status knows of a binding that has not done anything yet.
    pub(crate) fn remember(&self, name: &BindingName, export: &SinkExport) {
        self.lock().entry(name.clone()).or_insert_with(|| Progress {
            last_export: export.last_export_time.as_ref().map(|time| time.0.into()),
            rows: export.rows,
            checksum: export.last_checksum.clone(),
            destinations: KnownDestinations::told(export),
            ..Progress::default()
        });
    }

    /// A binding wants something else now, or begins: it has not been seen that its destination holds that.
    pub(crate) fn begin(&self, name: &BindingName, place: &ExportPlace) {
        let mut bindings = self.lock();
        let progress = bindings.entry(name.clone()).or_default();
        if !progress.destinations.is_current(place) {
            progress.begin_elsewhere();
        }
        progress.confirmed = false;
        progress.destinations.begin(place);
    }

    /// What the line of a binding shall say about its destinations, and whether those that it has left may be cleaned.
    pub(crate) fn advance(
        &self,
        name: &BindingName,
        told: Destinations,
        wanted: Option<&ExportPlace>,
    ) -> (Destinations, bool) {
        let mut bindings = self.lock();
        let progress = bindings.entry(name.clone()).or_default();
        progress.destinations.retain(&told);
        let line = told.next(wanted, &progress.destinations);
        progress.line = Some(line.clone());
        (line, progress.destinations.may_clean(wanted))
    }

    /// Whether the line of a binding names a destination.
    pub(crate) fn speaks_of(&self, name: &BindingName, place: &ExportPlace) -> bool {
        let speaks = |line: &Destinations| line.all().any(|told| told.is_at(place));
        self.look(name, |progress| progress.line.as_ref().is_some_and(speaks)).unwrap_or(false)
    }

    /// Nothing more is done about a destination that a binding has left.
    pub(crate) fn give_up(&self, name: &BindingName, place: &ExportPlace) {
        self.lock().entry(name.clone()).or_default().destinations.give_up(place);
        self.changed.send_replace(());
    }

    /// A destination that a binding has left is the one that holds the rows, under another name.
    pub(crate) fn adopt(&self, name: &BindingName, place: &ExportPlace) {
        self.give_up(name, place);
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).push((name.clone(), place.clone()));
    }

    /// Those of which that has become known since the last time.
    pub(crate) fn take_adopted(&self) -> Vec<(BindingName, ExportPlace)> {
        std::mem::take(&mut *self.adopted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// These destinations of a binding hold rows and cannot be reached.
    pub(crate) fn lose(&self, name: &BindingName, lost: BTreeSet<ExportPlace>) {
        if let Some(progress) = self.lock().get_mut(name) {
            progress.lost = lost;
        }
    }

    /// Forgets what is known about destinations: another process may have led meanwhile, and written there.
    pub(crate) fn forget_destinations(&self) {
        for progress in self.lock().values_mut() {
            (progress.destinations, progress.line) = (KnownDestinations::default(), None);
        }
    }

    /// These bindings, and no others, lead to the place of another one, which is named.
    pub(crate) fn refuse_duplicates(&self, duplicates: &BTreeMap<BindingName, BindingName>) {
        let mut bindings = self.lock();
        for (name, progress) in bindings.iter_mut().filter(|(_, progress)| progress.duplicate.is_some()) {
            if !duplicates.contains_key(name) {
                // The other one has written meanwhile: what the sink holds is known after the next comparison.
                (progress.duplicate, progress.confirmed, progress.rows) = (None, false, None);
            }
        }
        for (name, other) in duplicates {
            let progress = bindings.entry(name.clone()).or_default();
            let message = format!("two references of one inventory lead to one place: this one and {other}");
            if progress.duplicate.as_ref().is_none_or(|known| known.message != message) {
                warn!(binding = %name, error = message, "cannot write");
                let (class, since) = (ErrorClass::Terminal, kollect_engine::clock::now());
                progress.duplicate = Some(Failure { class, message, since, next_attempt: None });
            }
        }
    }

    /// Hears what a binding did.
    pub(crate) fn hear(&self, name: &BindingName, place: &Place, told: &Told<'_>) {
        let place = export_place(place);
        let mut bindings = self.lock();
        let progress = bindings.entry(name.clone()).or_default();
        let is_current = progress.destinations.is_current(&place);
        progress.destinations.hear(&place, told);
        if is_current && matches!(told, Told::Cleaned { .. }) {
            progress.begin_elsewhere();
        }
        if !is_current && !matches!(told, Told::Cleaned { .. } | Told::NotCleaned { .. }) {
            // A write to a destination that it has left.
            return;
        }
        if matches!(told, Told::Written(..)) && progress.rows.is_none() {
            // A write that began before the sink led somewhere else and back: the comparison that follows counts.
            return;
        }
        let now = kollect_engine::clock::now();
        let worked = progress.works();
        let kept = progress.kept.clone();
        let warnings = match told {
            Told::Compared(outcome) => &*outcome.receipt.warnings,
            Told::Written(_, receipt) => &*receipt.warnings,
            _ => &[],
        };
        for warning in warnings {
            warn!(binding = %name, warning, "written with a warning");
        }
        match told {
            Told::Claimed(claim) => {
                info!(binding = %name, %place, epoch = claim.epoch, taken_from = claim.taken_from, "claimed");
            }
            Told::ClaimLost(error) => {
                progress.confirmed = false;
                warn!(binding = %name, reason = ?error.reason, error = crate::causes::told_once(*error), "claims again");
            }
            Told::Compared(outcome) => progress.compared(outcome, now, name),
            Told::Written(delta, receipt) => progress.written(delta, receipt, now, name),
            Told::Failed { error, pause } => {
                let since = progress.failure.as_ref().map_or(now, |failure| failure.since);
                let message = crate::causes::told_once(*error);
                // One line per change of state, not one per attempt.
                if progress.failure.as_ref().is_none_or(|failure| failure.message != message) {
                    warn!(binding = %name, reason = ?error.reason, error = message, "cannot write");
                }
                let next_attempt = pause.map(|pause| now + pause);
                let class = error.class();
                progress.refused_attempts += u64::from(class == ErrorClass::Forbidden);
                progress.failure = Some(Failure { class, message, since, next_attempt });
            }
            Told::Waiting { pause } => {
                let failure = progress.failure.get_or_insert_with(|| Failure {
                    class: ErrorClass::Transient,
                    message: "the sink keeps failing, for other inventories too".into(),
                    since: now,
                    next_attempt: None,
                });
                failure.next_attempt = Some(now + *pause);
            }
            Told::HeldBack { coverage } => {
                progress.failure = None;
                progress.held_back = Some((*coverage).to_owned());
                progress.held_back_since.get_or_insert(now);
            }
            Told::RemovalsHeld(held) => {
                if progress.held_removals.as_ref() != Some(held) {
                    warn!(binding = %name, rows = held.rows, of = held.held, token = held.token, "removals are held");
                }
                progress.failure = None;
                progress.confirmed = false;
                progress.held_removals = Some((*held).clone());
            }
            Told::Cleaned { cleaned, moved } => {
                info!(binding = %name, %place, moved, outcome = described(cleaned), "cleaned");
                if matches!(cleaned, Cleaned::SameAs(_)) {
                    let mut adopted = self.adopted.lock().unwrap_or_else(PoisonError::into_inner);
                    adopted.push((name.clone(), place));
                }
            }
            Told::NotCleaned { error, moved, .. } => {
                warn!(binding = %name, moved, error = crate::causes::told_once(*error), "cannot clean");
            }
        }
        let as_before = worked
            && progress.works()
            && progress.kept == kept
            && matches!(told, Told::Written(..) | Told::Compared(_));
        drop(bindings);
        let heard = if as_before { &self.counted } else { &self.changed };
        heard.send_replace(());
    }
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

impl Progress {
    /// The destination is another one: what happened in the last one is not about it.
    fn begin_elsewhere(&mut self) {
        let Self { refused_attempts, drifted, written, destinations, line, lost, .. } = std::mem::take(self);
        *self = Self { refused_attempts, drifted, written, destinations, line, lost, ..Self::default() };
    }

    /// Why nothing is written.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.duplicate.as_ref().or(self.failure.as_ref())
    }

    /// Whether the sink holds the rows, in the destination that the status names.
    pub(crate) fn is_synced(&self) -> bool {
        let holds = |line: &Destinations| {
            let held = line.held.as_ref().filter(|_| line.claiming.is_none());
            held.is_some_and(|held| self.destinations.is_current(held))
        };
        self.confirmed && self.duplicate.is_none() && self.line.as_ref().is_some_and(holds)
    }

    /// Whether there is nothing to tell but how much was written.
    fn works(&self) -> bool {
        let Self { confirmed, refused, held_back, .. } = self;
        *confirmed && refused.is_empty() && self.failure().is_none() && held_back.is_none()
    }

    fn compared(&mut self, outcome: &Outcome, now: SystemTime, name: &BindingName) {
        let Outcome { delta, receipt, unchanged, left_alone, drifted, kept, .. } = outcome;
        self.kept.clone_from(kept);
        let refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let missing = delta.added.iter().map(|row| &row.key).filter(|key| refused.contains(key));
        self.missing = missing.cloned().collect();
        let held = unchanged + left_alone + delta.added.len() + delta.changed.len();
        self.rows = Some(count(held - self.missing.len()));
        self.drifted += *drifted as u64;
        if *drifted > 0 {
            warn!(binding = %name, rows = drifted, "others had changed rows; they are repaired");
        }
        self.worked(delta, receipt, now, name);
    }

    fn written(&mut self, delta: &Delta, receipt: &Receipt, now: SystemTime, name: &BindingName) {
        let refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let (mut came, mut went) = (0, 0);
        for row in &delta.added {
            if refused.contains(&row.key) {
                self.missing.insert(row.key.clone());
            } else {
                self.missing.remove(&row.key);
                came += 1;
            }
        }
        for changed in delta.changed.iter().filter(|changed| !refused.contains(&changed.after.key)) {
            came += i64::from(self.missing.remove(&changed.after.key));
        }
        for gone in &delta.removed {
            went += i64::from(!self.missing.remove(&gone.key));
        }
        self.rows = Some(self.rows.unwrap_or(0) + came - went);
        self.worked(delta, receipt, now, name);
    }

    fn worked(&mut self, delta: &Delta, receipt: &Receipt, now: SystemTime, name: &BindingName) {
        if self.failure.take().is_some() {
            info!(binding = %name, "writes again");
        }
        self.last_export = Some(now);
        self.confirmed = true;
        self.held_removals = None;
        (self.held_back, self.held_back_since) = (None, None);
        let now_refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let refused = delta.rows().filter(|row| now_refused.contains(&row.key)).count();
        self.written += delta.len().saturating_sub(refused) as u64;
        self.checksum.clone_from(&receipt.checksum);
        self.refused = receipt.refused.iter().map(|refusal| refusal.why.clone()).collect();
    }
}

#[cfg(test)]
mod tests;
