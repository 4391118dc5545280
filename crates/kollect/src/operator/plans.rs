//! Builds plans of sinks outside of the operator's loop: parses and decrypts keys and certificates of tenants.
//!
//! A plan is built once for each combination of spec, contents of its Secrets and policy. Until it is ready the loop
//! gets `Ok(None)`. A namespace builds one plan at a time, and no namespace waits for all plans of another.

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kollect_engine::tasks::{Task, TaskKind, TaskName, Tasks};
use kollect_model::SpecError;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinError,
};

use crate::{
    reason::Reason,
    resolve::{ObjectFault, PlanRequest, PlanSinks, SinkKey, SinkPlan},
};

/// Plans that are made at the same time. Each takes a second of a core and 64 MiB at most.
const MAX_CONCURRENT: usize = 2;

/// Makes a plan; it may take long.
type MakePlan = Arc<dyn Fn(&PlanRequest) -> SinkPlan + Send + Sync>;

/// Builds plans until it is dropped.
pub(crate) struct SinkPlanner {
    tasks: Tasks,
    make: MakePlan,
    plans: Arc<Plans>,
    /// A fair semaphore; a namespace acquires it again for every plan.
    permits: Arc<Semaphore>,
    /// By namespace; some have ended.
    running: BTreeMap<String, Task>,
}

/// The requested plans and their results.
#[derive(Default)]
struct Plans {
    state: Mutex<PlansState>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct PlansState {
    sinks: BTreeMap<SinkKey, RequestedPlan>,
    /// Sinks whose plan must be built, by namespace. A namespace has an entry while a task serves it.
    queues: BTreeMap<String, VecDeque<SinkKey>>,
}

struct RequestedPlan {
    request: Arc<PlanRequest>,
    /// `None` while it is being made.
    plan: Option<Arc<SinkPlan>>,
}

impl SinkPlanner {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self::with(tasks, Arc::new(PlanRequest::plan))
    }

    fn with(tasks: Tasks, make: MakePlan) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
        Self { tasks, make, plans: Arc::default(), permits, running: BTreeMap::new() }
    }

    /// Changes whenever a plan was made.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.plans.changed.subscribe()
    }

    /// Starts the task of a namespace. It ends when nothing is left to do there.
    fn start(&mut self, namespace: &str) {
        let name = TaskName::of_object(TaskKind::Plan, namespace);
        let (plans, permits, make) = (self.plans.clone(), self.permits.clone(), self.make.clone());
        let (served, tasks) = (namespace.to_owned(), self.tasks.clone());
        let work = move || plans.clone().serve(served.clone(), permits.clone(), make.clone(), tasks.clone());
        // A request that panicked is not tried again, so the restart needs no pause.
        let task = self.tasks.restarted(name, work, |_| future::ready(()));
        self.running.insert(namespace.to_owned(), task);
    }
}

impl PlanSinks for SinkPlanner {
    fn plan(&mut self, sink: &SinkKey, request: PlanRequest) -> Arc<SinkPlan> {
        let namespace = &sink.1.0;
        let mut state = self.plans.lock();
        if let Some(requested) = state.sinks.get(sink).filter(|requested| *requested.request == request) {
            return requested.plan.clone().unwrap_or_else(|| Arc::new(Ok(None)));
        }
        state.sinks.insert(sink.clone(), RequestedPlan { request: Arc::new(request), plan: None });
        let is_served = state.queues.contains_key(namespace);
        let queue = state.queues.entry(namespace.clone()).or_default();
        if !queue.contains(sink) {
            queue.push_back(sink.clone());
        }
        drop(state);
        if !is_served {
            self.start(namespace);
        }
        Arc::new(Ok(None))
    }

    fn retain(&mut self, keep: &dyn Fn(&SinkKey) -> bool) {
        self.plans.lock().sinks.retain(|sink, _| keep(sink));
        self.running.retain(|_, task| !task.is_finished());
    }
}

impl Plans {
    fn lock(&self) -> MutexGuard<'_, PlansState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the plans that a namespace waits for, one after the other.
    async fn serve(
        self: Arc<Self>,
        namespace: String,
        permits: Arc<Semaphore>,
        make: MakePlan,
        tasks: Tasks,
    ) {
        loop {
            let permit = permits.clone().acquire_owned().await;
            let Some((sink, request)) = self.next(&namespace) else { return };
            let (planned, make) = (request.clone(), make.clone());
            let work = tasks.run_blocking(move || {
                // Blocking work continues after its task was aborted, so it must keep its permit.
                let _permit = permit;
                make(&planned)
            });
            match work.await {
                Ok(plan) => self.finish(&sink, &request, plan),
                Err(error) => {
                    self.finish(&sink, &request, Err(vec![panicked()]));
                    if let Ok(panic) = JoinError::try_into_panic(error) {
                        resume_unwind(panic);
                    }
                }
            }
        }
    }

    /// The next sink of a namespace; `None` removes the queue, and its task ends.
    fn next(&self, namespace: &str) -> Option<(SinkKey, Arc<PlanRequest>)> {
        let mut state = self.lock();
        while let Some(sink) = state.queues.get_mut(namespace)?.pop_front() {
            if let Some(requested) = state.sinks.get(&sink) {
                let request = requested.request.clone();
                return Some((sink, request));
            }
        }
        state.queues.remove(namespace);
        None
    }

    /// Stores a plan, unless the request has changed in the meantime.
    fn finish(&self, sink: &SinkKey, request: &Arc<PlanRequest>, plan: SinkPlan) {
        let mut state = self.lock();
        if let Some(requested) =
            state.sinks.get_mut(sink).filter(|requested| Arc::ptr_eq(&requested.request, request))
        {
            requested.plan = Some(Arc::new(plan));
            drop(state);
            self.changed.send_replace(());
        }
    }
}

fn panicked() -> ObjectFault {
    let problem = "reading it, or a Secret that it names, panicked; this is a bug: see the log";
    ObjectFault::new(Reason::InvalidSpec, SpecError::absent("spec", problem))
}

#[cfg(test)]
mod tests;
