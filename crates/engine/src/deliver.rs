//! Runs all bindings of a process as tasks.
//!
//! In each place (an inventory in a destination) at most one task is at work: it writes a binding, or it removes what
//! a binding has left there. [`Plan::of`] compares the wanted jobs with the running ones, and [`Deliveries::set`]
//! carries out the plan. A task that takes a place over waits for the task before it.

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
    export::{Binding, BindingEvent, Leftover, MayWrite, Stopped, clean, follow},
    schedule::{TRANSIENT_PAUSES, TerminalPauses},
    store::StoreReader,
    tasks::{Task, TaskKind, TaskName, Tasks},
};

/// A binding that is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What to write, and where.
    pub binding: Arc<Binding>,
    /// Nothing is written, and the rows in the sink stay.
    pub suspended: bool,
}

/// An inventory in a destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The destination.
    pub destination: Destination,
    /// Identifies the inventory in the destination.
    pub inventory: InventoryId,
}

impl Binding {
    fn place(&self) -> Place {
        Place { destination: self.destination.clone(), inventory: self.inventory.clone() }
    }
}

/// The bindings in `wanted` that lead to the place of an earlier one, each with the earlier one.
pub fn duplicates(wanted: &BTreeMap<BindingName, Wanted>) -> BTreeMap<BindingName, BindingName> {
    let mut first: BTreeMap<Place, &BindingName> = BTreeMap::new();
    let mut later = BTreeMap::new();
    for (name, wanted) in wanted {
        match first.get(&wanted.binding.place()) {
            Some(earlier) => drop(later.insert(name.clone(), (*earlier).clone())),
            None => drop(first.insert(wanted.binding.place(), name)),
        }
    }
    later
}

/// Status message of a binding whose task panicked.
const PANICKED: &str = "the task of this binding panicked and is started again; this is a bug: see the log";

type Tell = dyn Fn(&BindingName, &Place, BindingEvent<'_>) + Send + Sync;

/// Runs the bindings that are wanted.
pub struct Deliveries {
    rows: StoreReader,
    tasks: Tasks,
    may_write: Arc<MayWrite>,
    tell: Arc<Tell>,
    /// Places with a running task or a suspended binding.
    running: BTreeMap<Place, Running>,
    /// Tasks that are ending: they finish a write that has begun.
    ending: BTreeMap<Place, Vec<Task>>,
}

/// The job of a place.
#[derive(Clone)]
enum Job {
    Write(BindingName, Wanted),
    Clean(Leftover),
}

enum Running {
    Writes {
        name: BindingName,
        wanted: Wanted,
        signal: watch::Sender<Option<Arc<Binding>>>,
        /// `None` if it was suspended from the beginning.
        task: Option<Task>,
    },
    Cleans(Leftover, Task),
}

/// The steps from the running jobs to the wanted ones.
#[derive(Default)]
struct Plan {
    /// Bindings that keep their task, with their new version.
    updates: Vec<(Place, Wanted)>,
    /// Places whose task must end.
    ends: Vec<Place>,
    /// Jobs that begin, after the task that ends in their place.
    starts: Vec<(Place, Job)>,
}

impl Plan {
    /// A place that a binding writes is not cleaned.
    fn of(
        running: &BTreeMap<Place, Running>,
        wanted: BTreeMap<BindingName, Wanted>,
        leftovers: Vec<Leftover>,
    ) -> Self {
        let cleanings =
            leftovers.into_iter().map(|leftover| (leftover.binding.place(), Job::Clean(leftover)));
        let mut jobs: BTreeMap<Place, Job> = cleanings.collect();
        jobs.extend(
            wanted.into_iter().map(|(name, wanted)| (wanted.binding.place(), Job::Write(name, wanted))),
        );
        let mut plan = Self::default();
        plan.ends.extend(running.keys().filter(|place| !jobs.contains_key(*place)).cloned());
        for (place, job) in jobs {
            match (running.get(&place), job) {
                (Some(known), job) if known.goes_on_with(&job) => {
                    if let Job::Write(_, wanted) = job {
                        plan.updates.push((place, wanted));
                    }
                }
                (known, job) => {
                    plan.ends.extend(known.map(|_| place.clone()));
                    plan.starts.push((place, job));
                }
            }
        }
        plan
    }
}

impl Running {
    /// Whether the task can go on with the job. A write task that has ended cannot, unless it is suspended now.
    fn goes_on_with(&self, job: &Job) -> bool {
        match (self, job) {
            (Self::Writes { name, wanted: known, task, .. }, Job::Write(other, wanted)) => {
                let is_running = task.as_ref().is_some_and(|task| !task.is_finished());
                name == other && (wanted.suspended || is_running && !known.suspended)
            }
            (Self::Cleans(known, _), Job::Clean(leftover)) => {
                known.name == leftover.name
                    && known.moved == leftover.moved
                    && known.binding.targets == leftover.binding.targets
                    && Arc::ptr_eq(&known.binding.sink, &leftover.binding.sink)
            }
            _ => false,
        }
    }
}

impl Deliveries {
    /// No bindings yet. `tell` is called with what each binding does, and where.
    pub fn new(
        rows: StoreReader,
        tasks: Tasks,
        may_write: Arc<MayWrite>,
        tell: impl Fn(&BindingName, &Place, BindingEvent<'_>) + Send + Sync + 'static,
    ) -> Self {
        let (running, ending) = (BTreeMap::new(), BTreeMap::new());
        Self { rows, tasks, may_write, tell: Arc::new(tell), running, ending }
    }

    /// Writes exactly these bindings from now on, and cleans these leftovers. Of two bindings that lead to one place
    /// the second is refused. Returns the refused ones, each with the one that is written.
    pub fn set(
        &mut self,
        mut wanted: BTreeMap<BindingName, Wanted>,
        leftovers: Vec<Leftover>,
    ) -> BTreeMap<BindingName, BindingName> {
        let refused = duplicates(&wanted);
        wanted.retain(|name, _| !refused.contains_key(name));
        self.ending.retain(|_, tasks| {
            tasks.retain(|task| !task.is_finished());
            !tasks.is_empty()
        });
        let Plan { updates, ends, starts } = Plan::of(&self.running, wanted, leftovers);
        for (place, wanted) in updates {
            self.running.entry(place).and_modify(|running| running.update(wanted));
        }
        for place in ends {
            self.end(place);
        }
        for (place, job) in starts {
            let is_suspended = matches!(&job, Job::Write(_, wanted) if wanted.suspended);
            let before = if is_suspended { None } else { self.ending.remove(&place) };
            let running = match job {
                Job::Write(name, wanted) if is_suspended => {
                    Running::Writes { name, wanted, signal: watch::Sender::new(None), task: None }
                }
                Job::Write(name, wanted) => self.write(name, wanted, before),
                Job::Clean(leftover) => self.clean(leftover, before),
            };
            self.running.insert(place, running);
        }
        refused
    }

    /// Ends the task of a place. A write that has begun is finished; cleaning is aborted.
    fn end(&mut self, place: Place) {
        let task = match self.running.remove(&place) {
            Some(Running::Writes { signal, task, .. }) => {
                signal.send_replace(None);
                task
            }
            Some(Running::Cleans(_, task)) => {
                task.abort();
                Some(task)
            }
            None => None,
        };
        self.ending.entry(place).or_default().extend(task);
    }

    /// Stops everything; writes that have begun are finished. What was not cleaned stays.
    pub async fn stop(mut self) {
        let writers = std::mem::take(&mut self.running).into_values().filter_map(|running| match running {
            Running::Writes { signal, task, .. } => {
                signal.send_replace(None);
                task
            }
            Running::Cleans(..) => None,
        });
        join_all(writers).await;
    }

    /// The function to call with what a binding does in a place.
    fn tell_of(&self, name: &BindingName, place: Place) -> Arc<dyn Fn(BindingEvent<'_>) + Send + Sync> {
        let (tell, name) = (self.tell.clone(), name.clone());
        Arc::new(move |told| tell(&name, &place, told))
    }

    /// Writes a binding. If its task panics it is started again after a pause, or when the binding changes.
    fn write(&self, name: BindingName, wanted: Wanted, mut before: Option<Vec<Task>>) -> Running {
        let (signal, receiver) = watch::channel(Some(wanted.binding.clone()));
        let (rows, may_write, mut changed) = (self.rows.clone(), self.may_write.clone(), receiver.clone());
        let tell = self.tell_of(&name, wanted.binding.place());
        let heard = tell.clone();
        let work = move || {
            let (receiver, rows, may_write) = (receiver.clone(), rows.clone(), may_write.clone());
            let (tell, before) = (heard.clone(), before.take());
            async move {
                join_all(before.into_iter().flatten()).await;
                follow(receiver, &rows, &*may_write, |told| tell(told)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            tell(BindingEvent::Failed { error: &error, pause: Some(pause) });
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
        Running::Writes { name, wanted, signal, task: Some(task) }
    }

    /// Removes what a binding has left in a place; retries until that succeeds.
    fn clean(&self, leftover: Leftover, mut before: Option<Vec<Task>>) -> Running {
        let tell = self.tell_of(&leftover.name, leftover.binding.place());
        let (rows, may_write) = (self.rows.clone(), self.may_write.clone());
        let (job, heard, moved) = (Arc::new(leftover.clone()), tell.clone(), leftover.moved);
        let work = move || {
            let (job, rows, may_write) = (job.clone(), rows.clone(), may_write.clone());
            let (tell, before) = (heard.clone(), before.take());
            async move {
                join_all(before.into_iter().flatten()).await;
                clean_until_done(&job, &rows, &*may_write, |told| tell(told)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            tell(BindingEvent::NotCleaned { error: &error, pause, moved });
            time::sleep(pause)
        };
        let name = TaskName::of_binding(TaskKind::Cleaning, &leftover.name);
        let task = self.tasks.restarted(name, work, panicked);
        Running::Cleans(leftover, task)
    }
}

impl Running {
    /// Takes over another version of the same binding.
    fn update(&mut self, new: Wanted) {
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
    leftover: &Leftover,
    rows: &StoreReader,
    may_write: &MayWrite,
    tell: impl Fn(BindingEvent<'_>),
) {
    let moved = leftover.moved;
    let (mut backoff, mut terminal) = (TRANSIENT_PAUSES, TerminalPauses::default());
    loop {
        let error = match clean(leftover, rows, may_write).await {
            Ok(cleaned) => {
                tell(BindingEvent::Cleaned { cleaned: &cleaned, moved });
                return;
            }
            Err(Stopped::Sink(error)) => error,
            Err(Stopped::MayNotWrite | Stopped::Breaker(_)) => return,
        };
        let pause: Duration = match error.class() {
            ErrorClass::Transient => backoff.next(fastrand::f64()),
            _ if error.reason == SinkReason::Fenced => backoff.next(fastrand::f64()),
            ErrorClass::Terminal | ErrorClass::Forbidden => terminal.next_pause(),
        };
        tell(BindingEvent::NotCleaned { error: &error, pause, moved });
        time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests;
