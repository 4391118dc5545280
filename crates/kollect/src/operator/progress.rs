//! What each binding did last: the memory of statuses and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use kollect_engine::export::{BeyondReach, Outcome, Told};
use kollect_model::{
    batch::{Delta, Receipt},
    binding::BindingName,
    crd::inventory::{ExportPlace, SinkExport},
    row::{RowKey, TargetId},
    sink::ErrorClass,
};
use tokio::sync::watch;
use tracing::{info, warn};

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
    refusals: BTreeSet<RowKey>,
    /// The latest failure, until something works.
    pub(crate) failure: Option<Failure>,
    /// How many attempts the sink has refused for who we are.
    pub(crate) refused_attempts: u64,
    /// Rows that others had changed.
    pub(crate) drifted: u64,
    /// Rows of the sink that are beyond the reach of their target, by target.
    beyond: BTreeMap<TargetId, BeyondReach>,
    /// Rows written.
    pub(crate) written: u64,
    /// Why nothing is sent although nothing failed.
    pub(crate) held_back: Option<String>,
    pub(crate) held_back_since: Option<SystemTime>,
    /// Places that nothing is left to do about: they are clean, or nobody can clean them.
    done_with: BTreeSet<ExportPlace>,
    /// How many places were cleaned after it had moved away.
    pub(crate) moves: u64,
    /// Places that hold rows, and where the sink does not lead any more.
    pub(crate) lost: BTreeSet<ExportPlace>,
    /// The sink is no longer named, and nothing is left to do about any of its places.
    pub(crate) cleared: bool,
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

    /// Rows that are beyond the reach of their target, by target, in the sink that holds most of them.
    pub(crate) fn beyond_reach(&self) -> BTreeMap<TargetId, BeyondReach> {
        let mut most: BTreeMap<TargetId, BeyondReach> = BTreeMap::new();
        for (target, beyond) in self.lock().values().flat_map(|progress| &progress.beyond) {
            let known = most.entry(target.clone()).or_default();
            if known.rows < beyond.rows {
                known.clone_from(beyond);
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
            ..Progress::default()
        });
    }

    /// A binding wants something else now, or begins: it has not been seen that its place holds that.
    pub(crate) fn doubt(&self, name: &BindingName, place: &ExportPlace) {
        if let Some(progress) = self.lock().get_mut(name) {
            (progress.confirmed, progress.cleared) = (false, false);
            progress.done_with.remove(place);
        }
    }

    /// Nobody can clean what a binding wrote to a place.
    pub(crate) fn give_up(&self, name: &BindingName, place: &ExportPlace) {
        warn!(binding = %name, %place, "rows were left behind");
        self.lock().entry(name.clone()).or_default().done_with.insert(place.clone());
    }

    /// Whether nothing is left to do about a place of a binding.
    pub(crate) fn is_done_with(&self, name: &BindingName, place: &ExportPlace) -> bool {
        self.look(name, |progress| progress.done_with.contains(place)).unwrap_or(false)
    }

    /// Only these places that a sink has left are still spoken of, and nobody gets to the `lost` ones. Others
    /// are forgotten: rows may come there again.
    pub(crate) fn speak_of(&self, name: &BindingName, places: &[ExportPlace], lost: BTreeSet<ExportPlace>) {
        if let Some(progress) = self.lock().get_mut(name) {
            progress.done_with.retain(|place| places.contains(place));
            progress.lost = lost;
        }
    }

    /// Forgets what is clean: another process may have led meanwhile, and written there.
    pub(crate) fn forget_places(&self) {
        for progress in self.lock().values_mut() {
            progress.done_with.clear();
            progress.cleared = false;
        }
    }

    /// Nothing is left to do about any place of a binding that nobody wants.
    pub(crate) fn clear(&self, name: &BindingName) {
        let mut bindings = self.lock();
        let cleared = &mut bindings.entry(name.clone()).or_default().cleared;
        if !std::mem::replace(cleared, true) {
            drop(bindings);
            self.changed.send_replace(());
        }
    }

    /// Hears what a binding did.
    pub(crate) fn hear(&self, name: &BindingName, told: &Told<'_>) {
        let mut bindings = self.lock();
        let progress = bindings.entry(name.clone()).or_default();
        let now = kollect_engine::clock::now();
        let worked = progress.works();
        let beyond = progress.beyond.clone();
        let warnings = match told {
            Told::Compared(outcome) => &*outcome.receipt.warnings,
            Told::Written(_, receipt) => &*receipt.warnings,
            _ => &[],
        };
        for warning in warnings {
            warn!(binding = %name, warning, "written with a warning");
        }
        match told {
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
            Told::Cleaned { destination, inventory, moved } => {
                info!(binding = %name, %destination, moved, "cleaned");
                if !moved {
                    let done_with = std::mem::take(&mut progress.done_with);
                    *progress = Progress { done_with, ..Progress::default() };
                }
                progress.moves += u64::from(*moved);
                let (destination, cluster) = ((*destination).clone(), inventory.cluster.clone());
                progress.done_with.insert(ExportPlace { destination, cluster });
            }
            Told::NotCleaned { error, moved, .. } => {
                warn!(binding = %name, moved, error = crate::causes::told_once(*error), "cannot clean");
            }
        }
        let as_before = worked
            && progress.works()
            && progress.beyond == beyond
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
    /// Whether there is nothing to tell but how much was written.
    fn works(&self) -> bool {
        let Self { confirmed, refused, failure, held_back, .. } = self;
        *confirmed && refused.is_empty() && failure.is_none() && held_back.is_none()
    }

    fn compared(&mut self, outcome: &Outcome, now: SystemTime, name: &BindingName) {
        let Outcome { delta, receipt, unchanged, left_alone, drifted, beyond } = outcome;
        self.beyond.clone_from(beyond);
        let refused = receipt.refused.len();
        let held = unchanged + left_alone + delta.added.len() + delta.changed.len();
        self.rows = Some(count(held.saturating_sub(refused)));
        self.drifted += *drifted as u64;
        if *drifted > 0 {
            warn!(binding = %name, rows = drifted, "others had changed rows; they are repaired");
        }
        self.worked(delta, receipt, now, name);
    }

    fn written(&mut self, delta: &Delta, receipt: &Receipt, now: SystemTime, name: &BindingName) {
        let now_refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let refused = delta.added.iter().filter(|row| now_refused.contains(&row.key)).count();
        // What was refused before was not held: it comes with a change, and goes without a trace.
        let fits = |key: &RowKey| self.refusals.contains(key) && !now_refused.contains(key);
        let came = delta.changed.iter().filter(|changed| fits(&changed.after.key)).count();
        let went = delta.removed.iter().filter(|gone| fits(&gone.key)).count();
        let grown = count(delta.added.len() + came + went) - count(delta.removed.len() + refused);
        self.rows = Some(self.rows.unwrap_or(0) + grown);
        self.worked(delta, receipt, now, name);
    }

    fn worked(&mut self, delta: &Delta, receipt: &Receipt, now: SystemTime, name: &BindingName) {
        if self.failure.take().is_some() {
            info!(binding = %name, "writes again");
        }
        self.last_export = Some(now);
        self.confirmed = true;
        (self.held_back, self.held_back_since) = (None, None);
        let now_refused: BTreeSet<&RowKey> = receipt.refused.iter().map(|refusal| &refusal.key).collect();
        let refused = delta.rows().filter(|row| now_refused.contains(&row.key)).count();
        self.written += delta.len().saturating_sub(refused) as u64;
        self.checksum.clone_from(&receipt.checksum);
        self.refused = receipt.refused.iter().map(|refusal| refusal.why.clone()).collect();
        self.refusals = receipt.refused.iter().map(|refusal| refusal.key.clone()).collect();
    }
}

#[cfg(test)]
mod tests;
