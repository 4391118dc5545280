//! All bindings of a process: what is wanted becomes tasks, and what is no longer wanted is cleaned up.
//!
//! A binding whose reference or inventory is gone is stopped, and then nothing of it is left in its
//! sink. If its destination changed, the new one is filled first. A suspended one is only stopped. A
//! place that another binding of the same inventory writes to is never cleaned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use kollect_model::{
    backoff::Backoff,
    batch::InventoryId,
    binding::BindingName,
    destination::Destination,
    sink::{ErrorClass, SinkError, SinkReason},
};
use tokio::{sync::watch, time};

use crate::{
    export::{Binding, TERMINAL_PAUSE, Told, clean, follow},
    store::StoreReader,
    tasks::{Task, TaskKind, TaskName, Tasks},
};

/// A binding that somebody wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What to write, and where.
    pub binding: Arc<Binding>,
    /// Where the rows are, the same for every sink that leads there.
    pub destination: Destination,
    /// Writes nothing, and leaves what is there.
    pub suspended: bool,
}

impl Wanted {
    /// What a sink tells inventories apart by.
    fn place(&self) -> Place {
        (self.destination.clone(), self.binding.inventory.clone())
    }

    fn cleaned(&self, moved: bool) -> Told<'_> {
        Told::Cleaned { destination: &self.destination, inventory: &self.binding.inventory, moved }
    }
}

type Place = (Destination, InventoryId);

/// The references of `wanted` that lead to the place of an earlier one.
pub fn duplicates(wanted: &BTreeMap<BindingName, Wanted>) -> BTreeMap<BindingName, BindingName> {
    let mut first: BTreeMap<Place, &BindingName> = BTreeMap::new();
    let mut later = BTreeMap::new();
    for (name, wanted) in wanted {
        match first.get(&wanted.place()) {
            Some(earlier) => drop(later.insert(name.clone(), (*earlier).clone())),
            None => drop(first.insert(wanted.place(), name)),
        }
    }
    later
}

/// What a status says about a binding whose task panicked.
const PANICKED: &str = "the task of this binding panicked and is started again; this is a bug: see the log";

type Tell = dyn Fn(&BindingName, Told<'_>) + Send + Sync;

/// Runs the bindings that are wanted.
pub struct Deliveries {
    rows: StoreReader,
    tasks: Tasks,
    tell: Arc<Tell>,
    running: BTreeMap<BindingName, Running>,
    cleaning: Vec<Cleaning>,
    /// Those that lead to the place of another.
    refused: BTreeSet<BindingName>,
}

struct Cleaning {
    place: Place,
    name: BindingName,
    task: Task,
}

struct Running {
    wanted: Wanted,
    signal: watch::Sender<Option<Arc<Binding>>>,
    /// `None` while it is suspended.
    task: Option<Task>,
    /// Whether the sink has held all rows since it came to this place.
    filled: watch::Sender<bool>,
}

impl Deliveries {
    /// Nothing yet. `tell` hears what each binding does.
    pub fn new(
        rows: StoreReader,
        tasks: Tasks,
        tell: impl Fn(&BindingName, Told<'_>) + Send + Sync + 'static,
    ) -> Self {
        let (running, refused) = (BTreeMap::new(), BTreeSet::new());
        Self { rows, tasks, tell: Arc::new(tell), running, cleaning: Vec::new(), refused }
    }

    /// From now on exactly these are wanted. Of two that lead to one place the second is refused.
    pub fn set(&mut self, mut wanted: BTreeMap<BindingName, Wanted>) {
        self.cleaning.retain(|cleaning| !cleaning.task.is_finished());
        let places: BTreeSet<Place> = wanted.values().map(Wanted::place).collect();
        self.refuse_duplicates(&mut wanted);
        // Whoever still writes or cleans a place that is wanted by another must have ended before that
        // other one starts.
        let mut ended: BTreeMap<Place, Vec<Task>> = BTreeMap::new();
        for cleaning in self.cleaning.extract_if(.., |cleaning| places.contains(&cleaning.place)) {
            cleaning.task.abort();
            ended.entry(cleaning.place).or_default().push(cleaning.task);
        }
        let mut staying = std::mem::take(&mut self.running);
        let stays = |name: &BindingName, running: &Running| {
            wanted.get(name).is_some_and(|wanted| wanted.place() == running.wanted.place())
        };
        let mut leaving = BTreeMap::new();
        for (name, mut old) in staying.extract_if(.., |name, running| !stays(name, running)) {
            if places.contains(&old.wanted.place()) {
                old.signal.send_replace(None);
                ended.entry(old.wanted.place()).or_default().extend(old.task.take());
            } else {
                leaving.insert(name, old);
            }
        }
        for (name, wanted) in wanted {
            let running = match staying.remove(&name) {
                Some(running) => running.update(wanted, self, &name),
                None => {
                    let before = ended.remove(&wanted.place()).unwrap_or_default();
                    let old = leaving.remove(&name);
                    // The old place is cleaned when the new one has been filled, however often it moves.
                    let unfilled = old.as_ref().map(|old| old.filled.clone()).filter(|f| !*f.borrow());
                    let filled = unfilled.unwrap_or_default();
                    if let Some(old) = old {
                        self.retire(&name, old, Some(filled.subscribe()));
                    }
                    self.start(&name, wanted, before, filled)
                }
            };
            self.running.insert(name, running);
        }
        for (name, old) in leaving {
            self.retire(&name, old, None);
        }
    }

    /// Takes out what leads to the place of another, and says so once.
    fn refuse_duplicates(&mut self, wanted: &mut BTreeMap<BindingName, Wanted>) {
        let refused = duplicates(wanted);
        for (name, earlier) in &refused {
            wanted.remove(name);
            if !self.refused.contains(name) {
                let why =
                    format!("two references of one inventory lead to one place: this one and {earlier}");
                let error = SinkError::new(SinkReason::Incompatible, why);
                (self.tell)(name, Told::Failed { error: &error, pause: None });
            }
        }
        self.refused = refused.into_keys().collect();
    }

    /// Whether a binding is being written.
    pub fn is_running(&self, name: &BindingName) -> bool {
        self.running.contains_key(name)
    }

    /// Whether what a binding wrote is being removed.
    pub fn is_cleaning(&self, name: &BindingName) -> bool {
        self.cleaning.iter().any(|cleaning| cleaning.name == *name && !cleaning.task.is_finished())
    }

    /// Whether what somebody wrote to a place is being removed.
    pub fn is_cleaning_place(&self, destination: &Destination, inventory: &InventoryId) -> bool {
        self.cleaning.iter().any(|Cleaning { place, task, .. }| {
            place.0 == *destination && place.1 == *inventory && !task.is_finished()
        })
    }

    /// Removes what a binding left behind before this process began; it has ended, or it has moved. A
    /// place that somebody writes to stays.
    pub fn clean(&mut self, name: &BindingName, wanted: Wanted, moved: bool) {
        if self.running.values().any(|running| running.wanted.place() == wanted.place()) {
            (self.tell)(name, wanted.cleaned(moved));
            return;
        }
        let (signal, filled) = (watch::Sender::new(None), watch::Sender::new(true));
        let successor = moved.then(|| filled.subscribe());
        self.retire(name, Running { wanted, signal, task: None, filled }, successor);
    }

    /// Stops everything; writes that have begun are finished. What was not cleaned stays.
    pub async fn stop(mut self) {
        self.cleaning.clear();
        let running = std::mem::take(&mut self.running).into_values().filter_map(|running| {
            running.signal.send_replace(None);
            running.task
        });
        join_all(running).await;
    }

    fn start(
        &self,
        name: &BindingName,
        wanted: Wanted,
        before: Vec<Task>,
        filled: watch::Sender<bool>,
    ) -> Running {
        let (signal, receiver) = watch::channel(Some(wanted.binding.clone()));
        let task = (!wanted.suspended).then(|| {
            let (tell, called, is_filled) = (self.tell.clone(), name.clone(), filled.clone());
            let tell = move |told: Told<'_>| {
                if matches!(told, Told::Compared(_) | Told::Written(..)) {
                    is_filled.send_replace(true);
                }
                tell(&called, told);
            };
            self.run(name, receiver, before, tell)
        });
        Running { wanted, signal, task, filled }
    }

    /// The task of a binding. If it panics it is started again after a pause, or when the binding changes.
    fn run(
        &self,
        name: &BindingName,
        wanted: watch::Receiver<Option<Arc<Binding>>>,
        mut before: Vec<Task>,
        tell: impl Fn(Told<'_>) + Send + Sync + 'static,
    ) -> Task {
        let (rows, heard) = (self.rows.clone(), Arc::new(tell));
        let (mut changed, tell) = (wanted.clone(), heard.clone());
        let work = move || {
            let (wanted, rows, heard) = (wanted.clone(), rows.clone(), heard.clone());
            let before = std::mem::take(&mut before);
            async move {
                join_all(before).await;
                follow(wanted, &rows, |told| heard(told)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            tell(Told::Failed { error: &error, pause: Some(pause) });
            changed.mark_unchanged();
            let mut changed = changed.clone();
            async move {
                tokio::select! {
                    // Both lead to the next start.
                    biased;
                    () = time::sleep(pause) => {}
                    _ = changed.changed() => {}
                }
            }
        };
        self.tasks.restarted(TaskName::of_binding(TaskKind::Binding, name), work, panicked)
    }

    /// Stops a binding, waits until its successor has been filled, and removes what it wrote.
    fn retire(&mut self, name: &BindingName, old: Running, successor: Option<watch::Receiver<bool>>) {
        let Running { wanted, signal, mut task, filled: _ } = old;
        signal.send_replace(None);
        let (tell, called, place) = (self.tell.clone(), name.clone(), wanted.place());
        let (moved, wanted) = (successor.is_some(), Arc::new(wanted));
        let tell = Arc::new(move |told: Told<'_>| tell(&called, told));
        let heard = tell.clone();
        let work = move || {
            let (task, successor) = (task.take(), successor.clone());
            let (wanted, heard) = (wanted.clone(), heard.clone());
            async move {
                if let Some(task) = task {
                    task.await.ok();
                }
                if let Some(mut filled) = successor {
                    // A successor that is gone will not be filled any more.
                    filled.wait_for(|filled| *filled).await.ok();
                }
                clean_until_done(&wanted, moved, |told| heard(told)).await;
            }
        };
        let panicked = move |pause| {
            let error = SinkError::new(SinkReason::WriteFailed, PANICKED);
            tell(Told::NotCleaned { error: &error, pause, moved });
            time::sleep(pause)
        };
        let task = self.tasks.restarted(TaskName::of_binding(TaskKind::Cleaning, name), work, panicked);
        self.cleaning.push(Cleaning { place, name: name.clone(), task });
    }
}

impl Running {
    /// Another version of the same binding.
    fn update(mut self, wanted: Wanted, deliveries: &Deliveries, name: &BindingName) -> Self {
        if wanted.suspended {
            self.signal.send_replace(None);
            // It finishes its write by itself; nobody needs to wait for that but its successor.
            return Self { wanted, ..self };
        }
        if self.wanted.suspended || self.task.as_ref().is_none_or(Task::is_finished) {
            let before = self.task.take().into_iter().collect();
            return deliveries.start(name, wanted, before, self.filled);
        }
        self.signal.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &wanted.binding));
            *current = Some(wanted.binding.clone());
            !same
        });
        Self { wanted, ..self }
    }
}

/// Removes what a binding wrote, however long it takes.
async fn clean_until_done(wanted: &Wanted, moved: bool, tell: impl Fn(Told<'_>)) {
    let mut backoff = Backoff::default();
    loop {
        let Err(error) = clean(&wanted.binding).await else {
            tell(wanted.cleaned(moved));
            return;
        };
        let pause: Duration = match error.class() {
            ErrorClass::Transient => backoff.next(fastrand::f64()),
            ErrorClass::Terminal | ErrorClass::Forbidden => TERMINAL_PAUSE,
        };
        tell(Told::NotCleaned { error: &error, pause, moved });
        time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests;
