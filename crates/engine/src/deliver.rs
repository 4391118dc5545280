//! Runs all bindings of a process as tasks.
//!
//! For each inventory in a destination at most one task is at work: it writes a binding, or it removes what a binding
//! has left there. `JobChanges::of` compares the wanted jobs with the running ones, and [`Deliveries::set`] carries
//! out the changes. A task that takes over a destination waits for the task before it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use kollect_model::{
    batch::InventoryId,
    binding::BindingName,
    destination::Destination,
    sink::{ErrorClass, SinkError, SinkReason},
};
use tokio::{sync::watch, time};

use crate::{
    export::{AbandonedDestination, AttemptStopped, Binding, BindingEvent, MayWrite, clean, follow},
    schedule::{TRANSIENT_PAUSES, TerminalPauses},
    store::StoreReader,
    tasks::{Task, TaskKind, TaskName, Tasks},
};

/// A binding that is wanted.
#[derive(Clone, Debug)]
pub struct WantedBinding {
    /// What to write, and where.
    pub binding: Arc<Binding>,
    /// Nothing is written, and the rows in the sink stay.
    pub suspended: bool,
}

/// An inventory in a destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DestinationKey {
    /// The destination.
    pub destination: Destination,
    /// Identifies the inventory in the destination.
    pub inventory: InventoryId,
}

impl Binding {
    fn destination_key(&self) -> DestinationKey {
        DestinationKey { destination: self.destination.clone(), inventory: self.inventory.clone() }
    }
}

/// The bindings in `wanted` that lead to the destination of an earlier one, each with the earlier one.
pub fn duplicates(wanted: &BTreeMap<BindingName, WantedBinding>) -> BTreeMap<BindingName, BindingName> {
    let mut first: BTreeMap<DestinationKey, &BindingName> = BTreeMap::new();
    let mut later = BTreeMap::new();
    for (name, wanted) in wanted {
        match first.get(&wanted.binding.destination_key()) {
            Some(earlier) => drop(later.insert(name.clone(), (*earlier).clone())),
            None => drop(first.insert(wanted.binding.destination_key(), name)),
        }
    }
    later
}

/// Status message of a binding whose task panicked.
const PANICKED: &str = "the task of this binding panicked and is started again; this is a bug: see the log";

type ReportEvent = dyn Fn(&BindingName, &DestinationKey, BindingEvent<'_>) + Send + Sync;

/// Runs the bindings that are wanted.
pub struct Deliveries {
    rows: StoreReader,
    tasks: Tasks,
    may_write: Arc<MayWrite>,
    report: Arc<ReportEvent>,
    /// Destinations with a running task or a suspended binding.
    running: BTreeMap<DestinationKey, RunningJob>,
    /// Tasks that are ending: they finish a write that has begun.
    ending: BTreeMap<DestinationKey, Vec<Task>>,
}

/// The job of a destination.
#[derive(Clone)]
enum Job {
    Write(BindingName, WantedBinding),
    Clean(AbandonedDestination),
}

enum RunningJob {
    Writes {
        name: BindingName,
        wanted: WantedBinding,
        signal: watch::Sender<Option<Arc<Binding>>>,
        /// `None` if it was suspended from the beginning.
        task: Option<Task>,
    },
    Cleans(AbandonedDestination, Task),
}

/// The steps from the running jobs to the wanted ones.
#[derive(Default)]
struct JobChanges {
    /// Bindings that keep their task, with their new version.
    updates: Vec<(DestinationKey, WantedBinding)>,
    /// Destinations whose task must end.
    ends: Vec<DestinationKey>,
    /// Jobs that begin, after the task that ends in their destination.
    starts: Vec<(DestinationKey, Job)>,
}

impl JobChanges {
    /// A destination that a binding writes is not cleaned.
    fn of(
        running: &BTreeMap<DestinationKey, RunningJob>,
        wanted: BTreeMap<BindingName, WantedBinding>,
        abandoned: Vec<AbandonedDestination>,
    ) -> Self {
        let cleanings = abandoned
            .into_iter()
            .map(|abandoned| (abandoned.binding.destination_key(), Job::Clean(abandoned)));
        let mut jobs: BTreeMap<DestinationKey, Job> = cleanings.collect();
        jobs.extend(
            wanted
                .into_iter()
                .map(|(name, wanted)| (wanted.binding.destination_key(), Job::Write(name, wanted))),
        );
        let mut changes = Self::default();
        changes.ends.extend(running.keys().filter(|destination| !jobs.contains_key(*destination)).cloned());
        for (destination, job) in jobs {
            match (running.get(&destination), job) {
                (Some(known), job) if known.can_continue_with(&job) => {
                    if let Job::Write(_, wanted) = job {
                        changes.updates.push((destination, wanted));
                    }
                }
                (known, job) => {
                    changes.ends.extend(known.map(|_| destination.clone()));
                    changes.starts.push((destination, job));
                }
            }
        }
        changes
    }
}

impl RunningJob {
    /// Whether the task can go on with the job. A write task that has ended cannot, unless it is suspended now.
    fn can_continue_with(&self, job: &Job) -> bool {
        match (self, job) {
            (Self::Writes { name, wanted: known, task, .. }, Job::Write(other, wanted)) => {
                let is_running = task.as_ref().is_some_and(|task| !task.is_finished());
                name == other && (wanted.suspended || is_running && !known.suspended)
            }
            (Self::Cleans(known, _), Job::Clean(abandoned)) => {
                known.name == abandoned.name
                    && known.moved == abandoned.moved
                    && known.binding.targets == abandoned.binding.targets
                    && Arc::ptr_eq(&known.binding.sink, &abandoned.binding.sink)
            }
            _ => false,
        }
    }
}

impl Deliveries {
    /// No bindings yet. `report` is called with the events of each binding, and their destination.
    pub fn new(
        rows: StoreReader,
        tasks: Tasks,
        may_write: Arc<MayWrite>,
        report: impl Fn(&BindingName, &DestinationKey, BindingEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        let (running, ending) = (BTreeMap::new(), BTreeMap::new());
        Self { rows, tasks, may_write, report: Arc::new(report), running, ending }
    }

    /// Writes exactly these bindings from now on, and cleans these abandoned destinations. Of two bindings that lead to
    /// one destination the second is refused. Returns the refused ones, each with the one that is written.
    pub fn set(
        &mut self,
        mut wanted: BTreeMap<BindingName, WantedBinding>,
        abandoned: Vec<AbandonedDestination>,
    ) -> BTreeMap<BindingName, BindingName> {
        let refused = duplicates(&wanted);
        wanted.retain(|name, _| !refused.contains_key(name));
        self.ending.retain(|_, tasks| {
            tasks.retain(|task| !task.is_finished());
            !tasks.is_empty()
        });
        let JobChanges { updates, ends, starts } = JobChanges::of(&self.running, wanted, abandoned);
        for (destination, wanted) in updates {
            self.running.entry(destination).and_modify(|running| running.update(wanted));
        }
        for destination in ends {
            self.end(destination);
        }
        for (destination, job) in starts {
            let is_suspended = matches!(&job, Job::Write(_, wanted) if wanted.suspended);
            let before = if is_suspended { None } else { self.ending.remove(&destination) };
            let running = match job {
                Job::Write(name, wanted) if is_suspended => {
                    RunningJob::Writes { name, wanted, signal: watch::Sender::new(None), task: None }
                }
                Job::Write(name, wanted) => self.write(name, wanted, before),
                Job::Clean(abandoned) => self.clean(abandoned, before),
            };
            self.running.insert(destination, running);
        }
        refused
    }

    /// Ends the task of a destination. A write that has begun is finished; cleaning is aborted.
    fn end(&mut self, destination: DestinationKey) {
        let task = match self.running.remove(&destination) {
            Some(RunningJob::Writes { signal, task, .. }) => {
                signal.send_replace(None);
                task
            }
            Some(RunningJob::Cleans(_, task)) => {
                task.abort();
                Some(task)
            }
            None => None,
        };
        self.ending.entry(destination).or_default().extend(task);
    }

    /// Stops everything; writes that have begun are finished. What was not cleaned stays.
    pub async fn stop(mut self) {
        let writers = std::mem::take(&mut self.running).into_values().filter_map(|running| match running {
            RunningJob::Writes { signal, task, .. } => {
                signal.send_replace(None);
                task
            }
            RunningJob::Cleans(..) => None,
        });
        join_all(writers).await;
    }

    /// The function to call with the events of a binding in a destination.
    fn report_for(
        &self,
        name: &BindingName,
        destination: DestinationKey,
    ) -> Arc<dyn Fn(BindingEvent<'_>) + Send + Sync> {
        let (report, name) = (self.report.clone(), name.clone());
        Arc::new(move |event| report(&name, &destination, event))
    }

    /// Writes a binding. If its task panics it is started again after a pause, or when the binding changes.
    fn write(&self, name: BindingName, wanted: WantedBinding, mut before: Option<Vec<Task>>) -> RunningJob {
        let (signal, receiver) = watch::channel(Some(wanted.binding.clone()));
        let (rows, may_write, mut changed) = (self.rows.clone(), self.may_write.clone(), receiver.clone());
        let report = self.report_for(&name, wanted.binding.destination_key());
        let report_event = report.clone();
        let work = move || {
            let (receiver, rows, may_write) = (receiver.clone(), rows.clone(), may_write.clone());
            let (report, before) = (report_event.clone(), before.take());
            async move {
                join_all(before.into_iter().flatten()).await;
                follow(receiver, &rows, &*may_write, |event| report(event)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            report(BindingEvent::Failed { error: &error, pause: Some(pause) });
            changed.mark_unchanged();
            let mut changed = changed.clone();
            async move {
                tokio::select! {
                    // Either branch leads to the next start.
                    biased;
                    () = time::sleep(pause) => {}
                    _ = changed.changed() => {}
                }
            }
        };
        let task = self.tasks.restarted(TaskName::of_binding(TaskKind::Binding, &name), work, panicked);
        RunningJob::Writes { name, wanted, signal, task: Some(task) }
    }

    /// Removes what a binding has left in a destination; retries until that succeeds.
    fn clean(&self, abandoned: AbandonedDestination, mut before: Option<Vec<Task>>) -> RunningJob {
        let report = self.report_for(&abandoned.name, abandoned.binding.destination_key());
        let (rows, may_write) = (self.rows.clone(), self.may_write.clone());
        let (job, report_event, moved) = (Arc::new(abandoned.clone()), report.clone(), abandoned.moved);
        let work = move || {
            let (job, rows, may_write) = (job.clone(), rows.clone(), may_write.clone());
            let (report, before) = (report_event.clone(), before.take());
            async move {
                join_all(before.into_iter().flatten()).await;
                clean_until_done(&job, &rows, &*may_write, |event| report(event)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            report(BindingEvent::NotCleaned { error: &error, pause, moved });
            time::sleep(pause)
        };
        let name = TaskName::of_binding(TaskKind::Cleaning, &abandoned.name);
        let task = self.tasks.restarted(name, work, panicked);
        RunningJob::Cleans(abandoned, task)
    }
}

impl RunningJob {
    /// Takes over another version of the same binding.
    fn update(&mut self, new: WantedBinding) {
        let Self::Writes { wanted, signal, .. } = self else { return };
        if new.suspended {
            // The task finishes a write that has begun, and ends.
            signal.send_replace(None);
        } else {
            signal.send_if_modified(|current| {
                let same = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &new.binding));
                *current = Some(new.binding.clone());
                !same
            });
        }
        *wanted = new;
    }
}

/// Removes what a binding wrote; retries until that succeeds or this process may not write any more.
async fn clean_until_done(
    abandoned: &AbandonedDestination,
    rows: &StoreReader,
    may_write: &MayWrite,
    report: impl Fn(BindingEvent<'_>),
) {
    let moved = abandoned.moved;
    let (mut backoff, mut terminal) = (TRANSIENT_PAUSES, TerminalPauses::default());
    loop {
        let error = match clean(abandoned, rows, may_write).await {
            Ok(cleaned) => {
                report(BindingEvent::Cleaned { cleaned: &cleaned, moved });
                return;
            }
            Err(AttemptStopped::Sink(error)) => error,
            Err(AttemptStopped::MayNotWrite | AttemptStopped::Breaker(_)) => return,
        };
        let pause: Duration = match error.class() {
            ErrorClass::Transient => backoff.next(fastrand::f64()),
            _ if error.reason == SinkReason::Fenced => backoff.next(fastrand::f64()),
            ErrorClass::Terminal | ErrorClass::Forbidden => terminal.next_pause(),
        };
        report(BindingEvent::NotCleaned { error: &error, pause, moved });
        time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests;
