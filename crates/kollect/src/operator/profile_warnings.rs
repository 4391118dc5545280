//! What the schemas of kinds show about profiles, for their statuses.
//!
//! A profile is checked once for each of its specs, outside of the operator's loop, one at a time. A kind whose schema cannot be
//! had yet, because it is being defined, is asked for again a few times.

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_engine::tasks::{Task, TaskKind, Tasks};
use kollect_model::crd::profile::KollectProfileSpec;
use tokio::time::Instant;

use crate::{object_schemas::ObjectSchemas, resolve::ObjectName};

/// How soon the result of a running check is looked for.
const RUNNING: Duration = Duration::from_secs(1);
/// How soon a schema that could not be had is asked for again, and how often.
const RETRY: Duration = Duration::from_secs(30);
const MAX_ATTEMPTS: u32 = 5;

pub(crate) struct ProfileWarnings {
    schemas: ObjectSchemas,
    tasks: Tasks,
    checks: Arc<Mutex<ProfileChecks>>,
    /// Serves the queue until it is empty.
    running: Mutex<Option<Task>>,
}

#[derive(Default)]
struct ProfileChecks {
    known: BTreeMap<ObjectName, CheckedProfile>,
    queue: VecDeque<ObjectName>,
    is_served: bool,
}

struct CheckedProfile {
    spec: KollectProfileSpec,
    attempts: u32,
    state: CheckState,
}

enum CheckState {
    Running,
    /// The schema could not be had.
    Failed(Instant),
    Done(Vec<String>),
}

/// What is known about a profile.
pub(crate) enum FoundWarnings {
    /// Each is a line.
    Known(Vec<String>),
    /// It is being checked; look again after this time.
    Pending(Duration),
    /// There is no schema.
    Unknown,
}

impl ProfileWarnings {
    pub(crate) fn new(schemas: ObjectSchemas, tasks: Tasks) -> Self {
        Self { schemas, tasks, checks: Arc::default(), running: Mutex::default() }
    }

    pub(crate) fn schemas(&self) -> ObjectSchemas {
        self.schemas.clone()
    }

    /// The warnings about a profile. A check begins if there was none of this spec.
    pub(crate) fn of(&self, name: &ObjectName, spec: &KollectProfileSpec) -> FoundWarnings {
        let mut checks = lock(&self.checks);
        let attempts = match checks.known.get(name).filter(|known| known.spec == *spec) {
            None => 0,
            Some(known) => match &known.state {
                CheckState::Done(warnings) => return FoundWarnings::Known(warnings.clone()),
                CheckState::Running => return FoundWarnings::Pending(RUNNING),
                CheckState::Failed(_) if known.attempts >= MAX_ATTEMPTS => return FoundWarnings::Unknown,
                CheckState::Failed(at) if at.elapsed() < RETRY => return FoundWarnings::Pending(RETRY),
                CheckState::Failed(_) => known.attempts,
            },
        };
        let checked =
            CheckedProfile { spec: spec.clone(), attempts: attempts + 1, state: CheckState::Running };
        checks.known.insert(name.clone(), checked);
        checks.queue.push_back(name.clone());
        if !std::mem::replace(&mut checks.is_served, true) {
            let (schemas, checks) = (self.schemas.clone(), self.checks.clone());
            let work = move || serve(schemas.clone(), checks.clone());
            // What panicked is not tried again, so the restart needs no pause.
            let task = self.tasks.restarted(TaskKind::Schema.into(), work, |_| future::ready(()));
            *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
        FoundWarnings::Pending(RUNNING)
    }

    /// Forgets profiles that do not exist.
    pub(crate) fn retain(&self, exists: impl Fn(&ObjectName) -> bool) {
        lock(&self.checks).known.retain(|name, _| exists(name));
    }
}

fn lock(checks: &Mutex<ProfileChecks>) -> MutexGuard<'_, ProfileChecks> {
    checks.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(schemas: ObjectSchemas, checks: Arc<Mutex<ProfileChecks>>) {
    loop {
        let (name, spec) = {
            let mut checks = lock(&checks);
            let Some(name) = checks.queue.pop_front() else {
                checks.is_served = false;
                return;
            };
            let Some(known) = checks.known.get_mut(&name) else { continue };
            // Until the end, so that a check that panics is one that failed.
            known.state = CheckState::Failed(Instant::now());
            (name, known.spec.clone())
        };
        let found = schemas.warnings(&spec).await;
        if let Some(known) = lock(&checks).known.get_mut(&name).filter(|known| known.spec == spec) {
            known.state = match found {
                Some(found) => {
                    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
                    CheckState::Done(found.iter().map(|warning| first_line(warning.to_string())).collect())
                }
                None => CheckState::Failed(Instant::now()),
            };
        }
    }
}
