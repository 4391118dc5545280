//! Probes of sinks: now and then, with the client that also writes. They inform and block nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kollect_engine::{export::Open, schedule::Backoff};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{self, Instant},
};

use super::bindings::Planned;
use crate::{
    causes::told_once,
    world::{Family, Name},
};

/// How often a sink is probed that works.
const PERIOD: Duration = Duration::from_mins(5);
/// How long a probe may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How a probe ended: how long it took, or why it failed.
pub(crate) type Verdict = Result<Duration, String>;

/// What is probed: a sink, or a connection test in one of its generations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Probed {
    Sink(Family, Name),
    Test(Name, i64),
}

/// Probes sinks for as long as it lives.
#[derive(Default)]
pub(crate) struct Probes {
    verdicts: Arc<Mutex<BTreeMap<Probed, Verdict>>>,
    changed: watch::Sender<()>,
    tasks: BTreeMap<Probed, (Arc<Planned>, JoinHandle<()>)>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.tasks.values().for_each(|(_, task)| task.abort());
    }
}

impl Probes {
    /// Changes whenever a probe has ended.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// How the last probe ended; `None`: none has yet.
    pub(crate) fn verdict(&self, probed: &Probed) -> Option<Verdict> {
        lock(&self.verdicts).get(probed).cloned()
    }

    /// Probes exactly these from now on: sinks again and again, tests once.
    pub(crate) fn set(&mut self, wanted: BTreeMap<Probed, Planned>) {
        for (probed, (_, task)) in self.tasks.extract_if(.., |probed, _| !wanted.contains_key(probed)) {
            task.abort();
            lock(&self.verdicts).remove(&probed);
        }
        for (probed, planned) in wanted {
            let same = |known: &Arc<Planned>| known.plan == planned.plan && known.policy == planned.policy;
            let is_test = matches!(probed, Probed::Test(..));
            if self.tasks.get(&probed).is_some_and(|(known, _)| is_test || same(known)) {
                continue;
            }
            if let Some((_, task)) = self.tasks.remove(&probed) {
                task.abort();
                // It was about another definition.
                lock(&self.verdicts).remove(&probed);
            }
            let planned = Arc::new(planned);
            let (verdicts, changed) = (self.verdicts.clone(), self.changed.clone());
            let task = tokio::spawn(probe(probed.clone(), planned.clone(), verdicts, changed));
            self.tasks.insert(probed, (planned, task));
        }
    }
}

fn lock(verdicts: &Mutex<BTreeMap<Probed, Verdict>>) -> MutexGuard<'_, BTreeMap<Probed, Verdict>> {
    verdicts.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn probe(
    probed: Probed,
    planned: Arc<Planned>,
    verdicts: Arc<Mutex<BTreeMap<Probed, Verdict>>>,
    changed: watch::Sender<()>,
) {
    let mut backoff = Backoff::default();
    loop {
        let verdict = once(&planned).await;
        planned.meter.tested(planned.plan.type_name(), verdict.is_ok());
        let pause = match &verdict {
            Ok(_) => {
                backoff.reset();
                PERIOD
            }
            Err(_) => backoff.next(fastrand::f64()).max(Duration::from_secs(5)),
        };
        let before = lock(&verdicts).insert(probed.clone(), verdict.clone());
        let news = match (&before, &verdict) {
            (Some(Ok(_)), Ok(_)) => false,
            (Some(Err(before)), Err(now)) => before != now,
            _ => true,
        };
        if news {
            changed.send_replace(());
        }
        if matches!(probed, Probed::Test(..)) {
            return;
        }
        time::sleep(pause).await;
    }
}

async fn once(planned: &Planned) -> Verdict {
    let began = Instant::now();
    let work = async { planned.open().await?.check().await };
    match time::timeout(LIMIT, work).await {
        Ok(Ok(())) => Ok(began.elapsed()),
        Ok(Err(error)) => Err(told_once(&error)),
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    }
}
