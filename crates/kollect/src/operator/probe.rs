//! Periodic probes of sinks, with the client that also writes. They report problems and block nothing.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_engine::{
    export::Open,
    tasks::{Task, TaskKind, TaskName, Tasks},
};
use kollect_model::backoff::Backoff;
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::bindings::Planned;
use crate::{
    error_chain::told_once,
    resolve::{Family, Name},
};

/// How often a working sink is probed.
const PERIOD: Duration = Duration::from_mins(5);
/// How long a probe may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What a status says about a probe that panicked.
const PANICKED: &str = "the probe panicked and is tried again; this is a bug: see the log";

/// How a probe ended: how long it took, or why it failed.
pub(crate) type Verdict = Result<Duration, String>;

/// What is probed: a sink, or a connection test in one of its generations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Probed {
    Sink(Family, Name),
    Test(Name, i64),
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
    verdicts: Verdicts,
    running: BTreeMap<Probed, Running>,
}

/// A running probe.
struct Running {
    planned: Arc<Planned>,
    /// Value of the annotation that asked for it.
    requested: Option<String>,
    /// Dropping it ends the probe.
    #[expect(dead_code, reason = "dropping it would end the probe")]
    task: Task,
}

/// What is probed, and the value of the annotation that asks for it.
pub(crate) type Wanted = BTreeMap<Probed, (Planned, Option<String>)>;

impl Probes {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks, verdicts: Verdicts::default(), running: BTreeMap::new() }
    }

    /// Changes whenever a probe has ended.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.verdicts.changed.subscribe()
    }

    /// How the last probe ended; `None`: none has yet.
    pub(crate) fn verdict(&self, probed: &Probed) -> Option<Verdict> {
        self.verdicts.lock().get(probed).cloned()
    }

    /// The value of the annotation that asked for the last probe of a sink, if it has ended.
    pub(crate) fn handled(&self, probed: &Probed) -> Option<String> {
        let running = self.running.get(probed)?;
        running.requested.clone().filter(|_| self.verdicts.lock().contains_key(probed))
    }

    /// Probes that have ended since the last call, and whether they failed.
    pub(crate) fn take_ended(&self) -> BTreeMap<Probed, bool> {
        std::mem::take(&mut *self.verdicts.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Probes exactly these from now on: sinks periodically, tests once.
    pub(crate) fn set(&mut self, wanted: Wanted) {
        for (probed, _) in self.running.extract_if(.., |probed, _| !wanted.contains_key(probed)) {
            self.verdicts.lock().remove(&probed);
        }
        for (probed, (planned, requested)) in wanted {
            let same = |known: &Running| {
                known.planned.plan == planned.plan
                    && known.planned.policy == planned.policy
                    && known.requested == requested
            };
            let is_test = matches!(probed, Probed::Test(..));
            if self.running.get(&probed).is_some_and(|known| is_test || same(known)) {
                continue;
            }
            if self.running.remove(&probed).is_some() {
                // The verdict is about another definition.
                self.verdicts.lock().remove(&probed);
            }
            let planned = Arc::new(planned);
            let own = planned.clone();
            let task = self.verdicts.probe(&self.tasks, &probed, move || {
                let planned = own.clone();
                async move { once(&planned).await }
            });
            self.running.insert(probed, Running { planned, requested, task });
        }
    }
}

/// How the last probes ended. Cheap to clone.
#[derive(Clone, Default)]
struct Verdicts {
    known: Arc<Mutex<BTreeMap<Probed, Verdict>>>,
    /// Probes that have ended since the last call of [`Probes::take_ended`], and whether they failed.
    ended: Arc<Mutex<BTreeMap<Probed, bool>>>,
    changed: watch::Sender<()>,
}

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Probed, Verdict>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to probe. A panic counts as a failed probe, and the next one comes after a pause.
    fn probe<F: Future<Output = Verdict> + Send>(
        &self,
        tasks: &Tasks,
        probed: &Probed,
        attempt: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> Task {
        let name = TaskName::of_sink(TaskKind::Probe, probed);
        let (own, failed, about, panicked) = (self.clone(), self.clone(), probed.clone(), probed.clone());
        let work = move || own.clone().follow(about.clone(), attempt.clone());
        tasks.restarted(name, work, move |pause| {
            failed.put(&panicked, Err(PANICKED.to_owned()));
            time::sleep(pause)
        })
    }

    async fn follow<F: Future<Output = Verdict>>(self, probed: Probed, attempt: impl Fn() -> F) {
        let mut backoff = Backoff::default();
        loop {
            let verdict = attempt().await;
            let pause = match &verdict {
                Ok(_) => {
                    backoff.reset();
                    PERIOD
                }
                Err(_) => backoff.next(fastrand::f64()).max(Duration::from_secs(5)),
            };
            self.put(&probed, verdict);
            if matches!(probed, Probed::Test(..)) {
                return;
            }
            time::sleep(pause).await;
        }
    }

    fn put(&self, probed: &Probed, verdict: Verdict) {
        let before = self.lock().insert(probed.clone(), verdict.clone());
        let is_news = !matches!((&before, &verdict), (Some(Ok(_)), Ok(_)));
        if is_news {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.insert(probed.clone(), verdict.is_err());
            drop(ended);
            self.changed.send_replace(());
        }
    }
}

async fn once(planned: &Planned) -> Verdict {
    let began = Instant::now();
    let work = async { planned.open().await?.check().await };
    let verdict = match time::timeout(LIMIT, work).await {
        Ok(Ok(())) => Ok(began.elapsed()),
        Ok(Err(error)) => Err(told_once(&error)),
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    };
    planned.meter.tested(planned.plan.type_name(), verdict.is_ok());
    verdict
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn law_16_a_probe_that_panics_is_shown_and_comes_again() {
        let (tasks, verdicts) = (Tasks::default(), Verdicts::default());
        let mut changed = verdicts.changed.subscribe();
        let probed = Probed::Sink(Family::Database, ("shop".into(), "portal".into()));
        let attempts = Arc::new(AtomicUsize::new(0));
        let _task = verdicts.probe(&tasks, &probed, move || {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                assert_ne!(attempt, 0, "the first probe has a bug");
                Ok(Duration::from_millis(3))
            }
        });
        changed.changed().await.unwrap();
        assert_eq!(verdicts.lock().get(&probed), Some(&Err(PANICKED.to_owned())));
        changed.changed().await.unwrap();
        assert_eq!(verdicts.lock().get(&probed), Some(&Ok(Duration::from_millis(3))));
        assert!(tasks.restarts().any(|counted| counted == (TaskKind::Probe, 1)));
    }
}
