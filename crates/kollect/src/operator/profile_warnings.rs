//! What the schemas of kinds show about profiles, for their statuses.
//!
//! A profile is checked once for each of its specs, outside of the operator's loop, one at a time.

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kollect_engine::tasks::{Task, TaskKind, Tasks};
use kollect_model::crd::profile::KollectProfileSpec;
use kube::Client;

use crate::{object_schemas, resolve::ObjectName};

pub(crate) struct ProfileWarnings {
    client: Client,
    tasks: Tasks,
    checks: Arc<Mutex<ProfileChecks>>,
    /// Serves the queue until it is empty.
    running: Mutex<Option<Task>>,
}

#[derive(Default)]
struct ProfileChecks {
    /// By profile; the warnings are missing until it has been checked.
    known: BTreeMap<ObjectName, (KollectProfileSpec, Option<Vec<String>>)>,
    queue: VecDeque<ObjectName>,
    is_served: bool,
}

impl ProfileWarnings {
    pub(crate) fn new(client: Client, tasks: Tasks) -> Self {
        Self { client, tasks, checks: Arc::default(), running: Mutex::default() }
    }

    /// The warnings about a profile, each a line; none while it is being checked, which begins now.
    pub(crate) fn of(&self, name: &ObjectName, spec: &KollectProfileSpec) -> Option<Vec<String>> {
        let mut checks = lock(&self.checks);
        if let Some((known, warnings)) = checks.known.get(name)
            && known == spec
        {
            return warnings.clone();
        }
        checks.known.insert(name.clone(), (spec.clone(), None));
        checks.queue.push_back(name.clone());
        if !std::mem::replace(&mut checks.is_served, true) {
            let (client, checks) = (self.client.clone(), self.checks.clone());
            let work = move || serve(client.clone(), checks.clone());
            // What panicked is not tried again, so the restart needs no pause.
            let task = self.tasks.restarted(TaskKind::Schema.into(), work, |_| future::ready(()));
            *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        }
        None
    }

    /// Forgets profiles that do not exist.
    pub(crate) fn retain(&self, exists: impl Fn(&ObjectName) -> bool) {
        lock(&self.checks).known.retain(|name, _| exists(name));
    }
}

fn lock(checks: &Mutex<ProfileChecks>) -> MutexGuard<'_, ProfileChecks> {
    checks.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(client: Client, checks: Arc<Mutex<ProfileChecks>>) {
    loop {
        let (name, spec) = {
            let mut checks = lock(&checks);
            let Some(name) = checks.queue.pop_front() else {
                checks.is_served = false;
                return;
            };
            let Some((spec, None)) = checks.known.get(&name) else { continue };
            let spec = spec.clone();
            (name, spec)
        };
        let found = object_schemas::warnings(&client, &spec).await;
        let lines =
            found.iter().map(|warning| warning.to_string().lines().next().unwrap_or_default().to_owned());
        if let Some((known, warnings)) = lock(&checks).known.get_mut(&name)
            && *known == spec
        {
            *warnings = Some(lines.collect());
        }
    }
}
