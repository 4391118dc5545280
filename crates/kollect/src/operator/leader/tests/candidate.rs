//! A candidate with a writer task that runs while it leads and records when that was.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use kollect_engine::tasks::Tasks;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{self, Instant},
};

use super::{
    super::{Leader, LeaderHandle, Leadership, LeaseTimings, wait_for_end, wait_for_term},
    WAIT_LIMIT,
};

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A candidate, and from when until when it led.
pub(super) struct Candidate {
    pub(super) handle: LeaderHandle,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) terms: Arc<Mutex<Vec<Term>>>,
    writer: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Term {
    pub(super) number: u64,
    pub(super) from: Instant,
    pub(super) until: Option<Instant>,
}

impl Candidate {
    pub(super) async fn start(
        kubeconfig: &Path,
        namespace: &str,
        identity: &str,
        timings: LeaseTimings,
    ) -> Self {
        let identity = super::super::identity(|name| (name == "HOSTNAME").then(|| identity.to_owned()));
        Self::start_as(kubeconfig, namespace, identity, timings).await
    }

    /// The same with an identity that others may have.
    pub(super) async fn start_as(
        kubeconfig: &Path,
        namespace: &str,
        identity: String,
        timings: LeaseTimings,
    ) -> Self {
        let client = client(kubeconfig).await;
        let handle = Leader::start(client, namespace, identity, timings, &Tasks::default()).unwrap();
        let terms: Arc<Mutex<Vec<Term>>> = Arc::default();
        let (mut leadership, recorded) = (handle.watch(), terms.clone());
        // As the operator starts and stops its writers.
        let writer = tokio::spawn(async move {
            while let Some(number) = wait_for_term(&mut leadership).await {
                recorded.lock().unwrap().push(Term { number, from: Instant::now(), until: None });
                wait_for_end(&mut leadership, number).await;
                recorded.lock().unwrap().last_mut().unwrap().until = Some(Instant::now());
            }
        });
        Self { leadership: handle.watch(), handle, terms, writer }
    }

    /// Stops writing, and then leaves, as the operator does. Returns when it led.
    pub(super) async fn leave(self) -> Vec<Term> {
        self.writer.abort();
        if let Some(term) = self.terms.lock().unwrap().last_mut() {
            term.until.get_or_insert_with(Instant::now);
        }
        self.handle.release().await;
        self.terms.lock().unwrap().clone()
    }

    pub(super) fn now(&self) -> Leadership {
        self.leadership.borrow().clone()
    }

    pub(super) fn leads(&self) -> bool {
        self.now().term().is_some()
    }

    pub(super) fn terms(&self) -> Vec<Term> {
        self.terms.lock().unwrap().clone()
    }

    pub(super) async fn until(
        &self,
        expected: &str,
        condition: impl FnMut(&Leadership) -> bool,
    ) -> Leadership {
        let mut leadership = self.leadership.clone();
        let found = time::timeout(WAIT_LIMIT, leadership.wait_for(condition)).await;
        found.unwrap_or_else(|_| panic!("{expected} never came true: {}", self.now())).unwrap().clone()
    }

    /// Waits until its writers run.
    pub(super) async fn until_leads(&self) {
        self.until("leading", |now| now.term().is_some()).await;
        let deadline = Instant::now() + WAIT_LIMIT;
        while self.terms().last().is_none_or(|term| term.until.is_some()) {
            assert!(Instant::now() < deadline, "its writer has not started: {}", self.now());
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(super) async fn until_stands_by_for(&self, identity: &str) {
        let prefix = format!("{identity}_");
        self.until("standing by", |now| match now {
            Leadership::Standby { holder: Some(holder), .. } => holder.starts_with(&prefix),
            _ => false,
        })
        .await;
    }

    pub(super) async fn until_problem(&self, text: &str) {
        self.until(text, |now| match now {
            Leadership::Standby { problem: Some(problem), .. } => problem.contains(text),
            _ => false,
        })
        .await;
    }
}
