//! Collection: one task for each kind that a target selects.
//!
//! ```text
//!              ┌─ namespaces ──┐  what is known about namespaces
//! Collector ───┤               ▼
//!  targets     └─ kind ◀── feed ◀── WatchSource      one task per kind, one feed per query
//!                  │
//!                  └──▶ select, extract ──▶ store
//! ```
//!
//! A kind that fails, stalls or panics does not affect the others. Dropping the collector stops all tasks.

mod kind;
mod namespaces;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kollect_model::{crd::shapes::Gvk, row::TargetId};
use tokio::{sync::watch, time};

use crate::{
    coverage::{Coverage, WatchKey, WatchState},
    extract::{CompiledProfile, ExtractError},
    scrub::RedactedPlace,
    select::{Namespaces, Selection},
    store::{StoreWriter, Visibility},
    tasks::{self, Task, TaskKind, TaskName, Tasks},
    watch::{BlindReason, Blindness, WatchSource},
};

/// A target, ready to collect. A changed target is a new value with a new pointer: pointers are compared.
pub struct Target {
    /// Which target.
    pub id: TargetId,
    /// What it extracts.
    pub profile: Arc<CompiledProfile>,
    /// What it selects.
    pub selection: Selection,
    /// Number of this definition of the target; each row records which definition made it.
    definition: u32,
}

static DEFINITIONS: AtomicU32 = AtomicU32::new(1);

impl Target {
    /// A definition of a target.
    pub fn new(id: TargetId, profile: Arc<CompiledProfile>, selection: Selection) -> Self {
        let definition = DEFINITIONS.fetch_add(1, Ordering::Relaxed);
        Self { id, profile, selection, definition }
    }

    /// Number of this definition; no other definition in the process has it.
    pub fn definition(&self) -> u32 {
        self.definition
    }
}

/// A problem of collection, such as a kind that cannot be watched or an object that has no row.
#[derive(Debug)]
pub enum CollectProblem {
    /// A kind, or a part of it, cannot be listed or watched.
    Blind {
        /// The kind, its namespace and its field selector.
        watched: WatchKey,
        /// Why.
        blindness: Blindness,
    },
    /// Namespaces cannot be listed, and the target's selection depends on them.
    Undecided {
        /// The target.
        target: TargetId,
        /// The kind.
        gvk: Gvk,
    },
    /// An attribute of an object has another type than declared; it is null.
    TypeMismatch {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
        /// The attribute.
        attribute: Arc<str>,
        /// The value, redacted and cut.
        found: String,
        /// The declared type, and what the value is.
        types: (&'static str, &'static str),
    },
    /// Values of an object were redacted. Only reported if the profile records places.
    Redacted {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
        /// Where, and why.
        places: Vec<RedactedPlace>,
    },
    /// Whether a target selects an object depends on a redacted value; its row stays as it was.
    ObjectUndecided {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
    },
    /// A required attribute of an object failed, so that it has no row.
    RowDropped {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
        /// Why.
        error: ExtractError,
    },
    /// The task of a kind ended unexpectedly. It is started again.
    Crashed {
        /// The kind.
        gvk: Gvk,
    },
}

/// How to collect.
#[derive(Clone, Debug)]
pub struct CollectSettings {
    /// Collect from these namespaces only, and cluster-scoped kinds.
    pub within: Option<BTreeSet<Arc<str>>>,
    /// Whether to follow changes; otherwise everything is read once.
    pub follow: bool,
    /// How often everything is compared with a fresh list of metadata.
    pub resync: Duration,
    /// How often denied permissions and kinds that are not served are checked again.
    pub review: Duration,
    /// How long a first list may receive nothing before it counts as blind.
    pub stall_timeout: Duration,
}

impl Default for CollectSettings {
    fn default() -> Self {
        Self {
            within: None,
            follow: true,
            resync: Duration::from_hours(12),
            review: Duration::from_secs(30),
            stall_timeout: Duration::from_mins(1),
        }
    }
}

type ReportProblem = dyn Fn(CollectProblem) + Send + Sync;

/// What all tasks of a collector share.
struct CollectContext {
    source: Arc<dyn WatchSource>,
    store: StoreWriter,
    coverage: Coverage,
    report: Box<ReportProblem>,
    settings: CollectSettings,
    tasks: Tasks,
    /// `None`: nothing is known yet.
    namespaces: watch::Sender<Option<Arc<Namespaces>>>,
    /// Namespaces that targets name; used if listing namespaces is not permitted.
    named: watch::Sender<BTreeSet<Arc<str>>>,
}

struct RunningKind {
    wanted: watch::Sender<Vec<Arc<Target>>>,
    task: Task,
}

/// Keeps the rows of its targets up to date. Needs a tokio runtime.
pub struct Collector {
    context: Arc<CollectContext>,
    kinds: BTreeMap<Gvk, RunningKind>,
    /// Targets whose rows are in the store.
    known: BTreeSet<TargetId>,
    /// The task that watches namespaces.
    namespaces_task: Task,
}

impl Collector {
    /// A collector without targets. `report` is called with each problem.
    pub fn start(
        source: Arc<dyn WatchSource>,
        store: StoreWriter,
        settings: CollectSettings,
        tasks: Tasks,
        report: impl Fn(CollectProblem) + Send + Sync + 'static,
    ) -> Self {
        let context = Arc::new(CollectContext {
            source,
            store,
            coverage: Coverage::default(),
            report: Box::new(report),
            settings,
            tasks,
            namespaces: watch::Sender::default(),
            named: watch::Sender::default(),
        });
        let namespaces_task = namespaces::start(&context);
        Self { context, kinds: BTreeMap::new(), known: BTreeSet::new(), namespaces_task }
    }

    /// Resets the collector: it has no targets and no rows, and lists everything again when it gets targets.
    pub async fn begin_again(&mut self) {
        let kinds = self.kinds.values_mut().map(|kind| &mut kind.task);
        tasks::abort(kinds.chain([&mut self.namespaces_task])).await;
        self.kinds.clear();
        self.context.coverage.remove_kinds(|_| true);
        std::mem::take(&mut self.known).iter().for_each(|id| self.context.store.remove_target(id));
        self.context.namespaces.send_replace(None);
        self.namespaces_task = namespaces::start(&self.context);
    }

    /// What is watched, and what is blind.
    pub fn coverage(&self) -> &Coverage {
        &self.context.coverage
    }

    /// What is known about namespaces; `None`: nothing yet.
    pub fn namespaces(&self) -> watch::Receiver<Option<Arc<Namespaces>>> {
        self.context.namespaces.subscribe()
    }

    /// Sets the targets. Rows of targets that are neither among them nor frozen are removed; frozen targets keep
    /// their rows, and no task collects their objects.
    pub fn set_targets(&mut self, targets: &[Arc<Target>], frozen: &BTreeSet<TargetId>) {
        let store = &self.context.store;
        let current: BTreeSet<TargetId> = targets.iter().map(|target| target.id.clone()).collect();
        let removed = self.known.iter().filter(|id| !current.contains(id) && !frozen.contains(id));
        removed.for_each(|id| store.remove_target(id));
        frozen.iter().for_each(|id| store.freeze(id));
        let mut wanted: BTreeMap<Gvk, Vec<Arc<Target>>> = BTreeMap::new();
        for target in targets {
            let kinds = target.selection.kinds();
            // From here on, snapshots of the target wait for these kinds.
            drop(kinds.iter().map(|gvk| store.rows(&target.id, gvk)).collect::<Vec<_>>());
            store.set_selected_kinds(&target.id, &kinds);
            for gvk in kinds {
                wanted.entry(gvk.clone()).or_default().push(target.clone());
            }
        }
        let named = targets.iter().filter_map(|target| target.selection.named_namespaces());
        let named: BTreeSet<Arc<str>> = named.flatten().collect();
        self.context.named.send_if_modified(|known| std::mem::replace(known, named.clone()) != named);
        self.set_kinds(wanted);
        self.known = current.into_iter().chain(frozen.iter().cloned()).collect();
    }

    fn set_kinds(&mut self, mut wanted: BTreeMap<Gvk, Vec<Arc<Target>>>) {
        let coverage = &self.context.coverage;
        self.kinds.retain(|gvk, _| wanted.contains_key(gvk));
        coverage.remove_kinds(|gvk| !wanted.contains_key(gvk) && *gvk != namespaces::kind());
        for (gvk, kind) in &self.kinds {
            let targets = wanted.remove(gvk).unwrap_or_default();
            kind.wanted.send_if_modified(|known| {
                let same = known.len() == targets.len()
                    && known.iter().zip(&targets).all(|(a, b)| Arc::ptr_eq(a, b));
                *known = targets;
                !same
            });
        }
        for (gvk, targets) in wanted {
            let (sender, receiver) = watch::channel(targets);
            let task = follow_kind(&self.context, &gvk, receiver);
            self.kinds.insert(gvk, RunningKind { wanted: sender, task });
        }
    }
}

/// Starts the task of a kind. If it panics, the kind is blind until it has been listed again.
fn follow_kind(context: &Arc<CollectContext>, gvk: &Gvk, wanted: watch::Receiver<Vec<Arc<Target>>>) -> Task {
    let name = TaskName::of_kind(TaskKind::Watch, gvk, None);
    let (own, gvk, targets) = (context.clone(), gvk.clone(), wanted.clone());
    let (again, kind) = (context.clone(), gvk.clone());
    let work = move || kind::follow(again.clone(), kind.clone(), wanted.clone());
    context.tasks.restarted(name, work, move |pause| {
        (own.report)(CollectProblem::Crashed { gvk: gvk.clone() });
        own.report_panic(&gvk);
        for target in targets.borrow().iter() {
            // The task may have stopped at any step: all objects are read again, and no absent row counts as gone.
            let rows = own.store.rows(&target.id, &gvk);
            rows.outdate(None);
            rows.set_visibility(Visibility::Partial);
        }
        time::sleep(pause)
    })
}

/// The blindness of a kind whose task panicked.
fn panic_of(gvk: &Gvk) -> Blindness {
    let message = format!("watch {gvk}: the task panicked and is started again; this is a bug: see the log");
    Blindness { reason: BlindReason::Failed, message }
}

impl CollectContext {
    /// Reports that a watched kind is blind from now on.
    fn report_blind(&self, watched: &WatchKey, blindness: Blindness) {
        (self.report)(CollectProblem::Blind { watched: watched.clone(), blindness: blindness.clone() });
        self.coverage.set(watched, WatchState::blind(blindness));
    }

    /// Marks everything that is watched of a kind as blind after a panic.
    fn report_panic(&self, gvk: &Gvk) {
        let known = self.coverage.of_kind(gvk);
        let everywhere = WatchKey { gvk: gvk.clone(), namespace: None, field_selector: None };
        let watched_kinds = if known.is_empty() { vec![everywhere] } else { known.into_keys().collect() };
        watched_kinds.iter().for_each(|watched| self.coverage.set(watched, WatchState::blind(panic_of(gvk))));
    }
}

/// How much has been seen of targets and kinds that do not belong to a run.
pub fn visibility_outside(source: &dyn WatchSource, settings: &CollectSettings) -> Visibility {
    match &settings.within {
        _ if !source.is_complete() => Visibility::Partial,
        Some(namespaces) => Visibility::Within(namespaces.clone()),
        None => Visibility::Everything,
    }
}

#[cfg(test)]
mod tests;
