//! Periodic probes of sinks, with the client that also writes. They report problems and block nothing.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_engine::{
    export::OpenSink,
    tasks::{Task, TaskKind, TaskName, Tasks},
};
use kollect_model::backoff::Backoff;
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::bindings::MeasuredPlan;
use crate::{
    error_chain::chain_text,
    resolve::{Family, ObjectName},
};

/// How often a working sink is probed.
const PROBE_INTERVAL: Duration = Duration::from_mins(5);
/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The message in the status of a sink whose probe panicked.
const PANICKED: &str = "the probe panicked and is tried again; this is a bug: see the log";

/// How a probe ended: how long it took, or why it failed.
pub(crate) type ProbeResult = Result<Duration, String>;

/// What is probed: a sink, or a connection test in one of its generations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Probed {
    Sink(Family, ObjectName),
    Test(ObjectName, i64),
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sink(family, (namespace, name)) => write!(f, "{namespace} {family}/{name}"),
            Self::Test((namespace, name), _) => write!(f, "{namespace} connection test {name}"),
        }
    }
}

/// Probes sinks until it is dropped.
pub(crate) struct Probes {
    tasks: Tasks,
    results: ProbeResults,
    running: BTreeMap<Probed, RunningProbe>,
}

/// A running probe.
struct RunningProbe {
    planned: Arc<MeasuredPlan>,
    /// Value of the annotation that requested it.
    requested: Option<String>,
    /// Dropping it ends the probe.
    #[expect(dead_code, reason = "dropping it would end the probe")]
    task: Task,
}

/// What is probed, and the value of the annotation that requests it.
pub(crate) type WantedProbe = BTreeMap<Probed, (MeasuredPlan, Option<String>)>;

impl Probes {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks, results: ProbeResults::default(), running: BTreeMap::new() }
    }

    /// Changes whenever a probe has ended.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.results.changed.subscribe()
    }

    /// How the last probe ended; `None`: none has yet.
    pub(crate) fn result(&self, probed: &Probed) -> Option<ProbeResult> {
        self.results.lock().get(probed).cloned()
    }

    /// The value of the annotation that requested the last probe of a sink, if it has ended.
    pub(crate) fn handled(&self, probed: &Probed) -> Option<String> {
        let running = self.running.get(probed)?;
        running.requested.clone().filter(|_| self.results.lock().contains_key(probed))
    }

    /// Probes that have ended since the last call, and whether they failed.
    pub(crate) fn take_ended(&self) -> BTreeMap<Probed, bool> {
        std::mem::take(&mut *self.results.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Probes exactly these from now on: sinks periodically, tests once.
    pub(crate) fn set(&mut self, wanted: WantedProbe) {
        for (probed, _) in self.running.extract_if(.., |probed, _| !wanted.contains_key(probed)) {
            self.results.lock().remove(&probed);
        }
        for (probed, (planned, requested)) in wanted {
            let is_same = |known: &RunningProbe| {
                known.planned.plan == planned.plan
                    && known.planned.policy == planned.policy
                    && known.requested == requested
            };
            let is_test = matches!(probed, Probed::Test(..));
            if self.running.get(&probed).is_some_and(|known| is_test || is_same(known)) {
                continue;
            }
            if self.running.remove(&probed).is_some() {
                // The result belongs to another definition.
                self.results.lock().remove(&probed);
            }
            let planned = Arc::new(planned);
            let attempted = planned.clone();
            let task = self.results.probe(&self.tasks, &probed, move || {
                let planned = attempted.clone();
                async move { probe_once(&planned).await }
            });
            self.running.insert(probed, RunningProbe { planned, requested, task });
        }
    }
}

/// How the last probes ended. Cheap to clone.
#[derive(Clone, Default)]
struct ProbeResults {
    last: Arc<Mutex<BTreeMap<Probed, ProbeResult>>>,
    /// Probes that have ended since the last call of [`Probes::take_ended`], and whether they failed.
    ended: Arc<Mutex<BTreeMap<Probed, bool>>>,
    changed: watch::Sender<()>,
}

impl ProbeResults {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Probed, ProbeResult>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to probe. A panic counts as a failed probe, and the next one comes after a pause.
    fn probe<F: Future<Output = ProbeResult> + Send>(
        &self,
        tasks: &Tasks,
        probed: &Probed,
        attempt: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> Task {
        let name = TaskName::of_sink(TaskKind::Probe, probed);
        let (results, results_after_panic, followed, panicked) =
            (self.clone(), self.clone(), probed.clone(), probed.clone());
        let work = move || results.clone().follow(followed.clone(), attempt.clone());
        tasks.restarted(name, work, move |pause| {
            results_after_panic.set_result(&panicked, Err(PANICKED.to_owned()));
            time::sleep(pause)
        })
    }

    async fn follow<F: Future<Output = ProbeResult>>(self, probed: Probed, attempt: impl Fn() -> F) {
        let mut backoff = Backoff::default();
        loop {
            let result = attempt().await;
            let pause = match &result {
                Ok(_) => {
                    backoff.reset();
                    PROBE_INTERVAL
                }
                Err(_) => backoff.next(fastrand::f64()).max(Duration::from_secs(5)),
            };
            self.set_result(&probed, result);
            if matches!(probed, Probed::Test(..)) {
                return;
            }
            time::sleep(pause).await;
        }
    }

    fn set_result(&self, probed: &Probed, result: ProbeResult) {
        let before = self.lock().insert(probed.clone(), result.clone());
        let is_new = !matches!((&before, &result), (Some(Ok(_)), Ok(_)));
        if is_new {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.insert(probed.clone(), result.is_err());
            drop(ended);
            self.changed.send_replace(());
        }
    }
}

async fn probe_once(planned: &MeasuredPlan) -> ProbeResult {
    let began = Instant::now();
    let work = async { planned.open().await?.check().await };
    let result = match time::timeout(PROBE_TIMEOUT, work).await {
        Ok(Ok(())) => Ok(began.elapsed()),
        Ok(Err(error)) => Err(chain_text(&error)),
        Err(_) => Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
    };
    planned.meter.count_probe(planned.plan.type_name(), result.is_ok());
    result
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_panics_is_reported_and_tried_again() {
        let (tasks, results) = (Tasks::default(), ProbeResults::default());
        let mut changed = results.changed.subscribe();
        let probed = Probed::Sink(Family::Database, ("shop".into(), "portal".into()));
        let attempts = Arc::new(AtomicUsize::new(0));
        let _task = results.probe(&tasks, &probed, move || {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                assert_ne!(attempt, 0, "the first probe has a bug");
                Ok(Duration::from_millis(3))
            }
        });
        changed.changed().await.unwrap();
        assert_eq!(results.lock().get(&probed), Some(&Err(PANICKED.to_owned())));
        changed.changed().await.unwrap();
        assert_eq!(results.lock().get(&probed), Some(&Ok(Duration::from_millis(3))));
        assert!(tasks.restarts().any(|counted| counted == (TaskKind::Probe, 1)));
    }
}
