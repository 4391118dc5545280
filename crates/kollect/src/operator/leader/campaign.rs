//! One candidate: acquires, renews and releases the lease, and publishes its role.

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kollect_engine::clock;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams, WatchParams},
    core::WatchEvent,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{self, Instant},
};
use tracing::{info, warn};

use super::{
    LEASE, Leadership, Timings, at,
    record::{self, Observation},
};
use crate::{cluster::plain, error_chain::LastProblem};

/// The time limit of a request; far less than the time that Kubernetes gives a process to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts to release the lease while other writers cause conflicts.
const RELEASES: u32 = 3;
/// The longest duration of a watch: a dead connection may go undetected. API servers end watches sooner.
const WATCH: Duration = Duration::from_mins(5);

pub(super) struct Campaign {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    timings: Timings,
    leadership: watch::Sender<Leadership>,
    seen: Option<Observation>,
    terms: u64,
    problem: LastProblem,
}

/// The result of one attempt.
enum Round {
    /// This candidate holds the lease, by a request that was sent at that time.
    Won(Instant),
    /// Another candidate holds it, until that time unless it renews.
    Held(Instant),
    /// Another candidate wrote the lease first.
    Outrun,
}

/// Why a request failed.
enum Failure {
    /// The lease has changed since it was read.
    Conflict,
    Other(String),
}

impl Campaign {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        identity: String,
        timings: Timings,
        leadership: watch::Sender<Leadership>,
    ) -> Self {
        let leases = Api::namespaced(client, namespace);
        let namespace = namespace.to_owned();
        Self {
            leases,
            namespace,
            identity,
            timings,
            leadership,
            seen: None,
            terms: 0,
            problem: LastProblem::default(),
        }
    }

    pub(super) async fn run(mut self, stop: oneshot::Receiver<()>) {
        let vacancy = Notify::new();
        let leadership = self.leadership.clone();
        let (leases, pause) = (self.leases.clone(), self.timings.retry);
        tokio::select! {
            // `biased`: an expired term ends before anything else happens, also in a process that was paused. This
            // branch is rarely ready, so it does not starve the others.
            biased;
            () = stop_at_the_deadline(&leadership) => {}
            () = self.compete(stop, &vacancy) => {}
            () = look_out(&leases, pause, &vacancy) => {}
        }
    }

    async fn compete(&mut self, mut stop: oneshot::Receiver<()>, vacancy: &Notify) {
        loop {
            // Not cancelled: the API server could still apply a dropped request after the release.
            let pause = self.round().await;
            tokio::select! {
                // `biased`: the end of the candidacy comes before another attempt, which the other two branches start.
                biased;
                _ = &mut stop => break,
                () = time::sleep(pause) => {}
                () = vacancy.notified() => {}
            }
        }
        self.release().await;
    }

    /// One attempt to acquire or renew the lease. Returns the pause before the next one.
    async fn round(&mut self) -> Duration {
        // Jitter: candidates that started together must not send requests together.
        let pause = self.timings.retry.mul_f64(0.8 + 0.2 * fastrand::f64());
        let outcome = self.acquire_or_renew().await;
        self.log(outcome.as_ref().err());
        match outcome {
            Ok(Round::Won(sent)) => {
                self.lead(sent);
                pause
            }
            Ok(Round::Held(expires)) => {
                self.stand_by(None);
                pause.min(expires.saturating_duration_since(Instant::now()))
            }
            outcome => {
                // A leader continues until its deadline, which `stop_at_the_deadline` enforces.
                let problem = outcome.err();
                let term = self.leadership.borrow().term();
                match term {
                    Some(_) => self.note(problem),
                    None => self.stand_by(problem),
                }
                pause
            }
        }
    }

    /// Logs each problem once, not with every attempt.
    fn log(&mut self, problem: Option<&String>) {
        match problem {
            Some(error) if self.problem.is_new(error) => {
                warn!(error, "cannot acquire or renew the lease; trying again");
            }
            None if self.problem.is_solved() => info!("the lease can be read and written again"),
            _ => {}
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<Round, String> {
        // A leader updates without reading: the resource version detects any change.
        if let Some(seen) = self.seen.as_ref().filter(|seen| seen.holder() == Some(&self.identity)) {
            match self.claim(seen.lease.clone()).await {
                Ok(sent) => return Ok(Round::Won(sent)),
                Err(Failure::Other(problem)) => return Err(problem),
                Err(Failure::Conflict) => {}
            }
        }
        let found = self.request("get", self.leases.get_opt(LEASE)).await;
        let lease = match found {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                self.seen = None;
                let name = Some(LEASE.to_owned());
                Lease { metadata: ObjectMeta { name, ..ObjectMeta::default() }, spec: None }
            }
            Err(Failure::Other(problem)) => return Err(problem),
            Err(Failure::Conflict) => return Ok(Round::Outrun),
        };
        if lease.metadata.resource_version.is_some() {
            Observation::note(&mut self.seen, lease.clone(), Instant::now());
        }
        if record::holder(&lease) != Some(&self.identity) {
            // Another process may have led since the last renewal, even if the lease has no holder now.
            if self.leadership.borrow().until().is_some() {
                self.stand_by(None);
            }
            if let Some(seen) = self.seen.as_ref().filter(|seen| seen.holder().is_some()) {
                let expires = seen.expires(self.timings.lease);
                if Instant::now() < expires {
                    return Ok(Round::Held(expires));
                }
            }
        }
        match self.claim(lease).await {
            Ok(sent) => Ok(Round::Won(sent)),
            Err(Failure::Conflict) => Ok(Round::Outrun),
            Err(Failure::Other(problem)) => Err(problem),
        }
    }

    /// Writes this candidate into the lease. Returns when the request was sent: other candidates wait for the lease
    /// duration from then on, or longer.
    async fn claim(&mut self, before: Lease) -> Result<Instant, Failure> {
        let sent = Instant::now();
        let is_new = before.metadata.resource_version.is_none();
        let lease = record::claimed(before, &self.identity, self.timings.lease, clock::timestamp());
        let parameters = PostParams::default();
        let written = if is_new {
            self.request("create", self.leases.create(&parameters, &lease)).await?
        } else {
            self.request("update", self.leases.replace(LEASE, &parameters, &lease)).await?
        };
        Observation::note(&mut self.seen, written, Instant::now());
        Ok(sent)
    }

    async fn request<T>(
        &self,
        verb: &str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        let patience = PATIENCE.min(self.timings.renew_deadline / 3);
        let namespace = &self.namespace;
        let failed =
            |cause: String| Failure::Other(format!("{verb} lease {LEASE} in namespace {namespace}: {cause}"));
        match time::timeout(patience, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Failure::Conflict),
            // The lease was deleted after it was read: a conflict too.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && verb == "update" => {
                Err(Failure::Conflict)
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(failed(format!(
                "forbidden; grant get, create, update and watch on leases.coordination.k8s.io there ({})",
                status.message
            ))),
            Ok(Err(error)) => Err(failed(plain(error).to_string())),
            Err(_) => Err(failed(format!("no answer for {patience:?}"))),
        }
    }

    /// Extends the running term, or begins a new one.
    fn lead(&mut self, sent: Instant) {
        let until = sent + self.timings.renew_deadline;
        let term = self.leadership.borrow().term().unwrap_or(self.terms + 1);
        self.terms = term;
        self.leadership.send_replace(Leadership::Leading { term, until: Some(until), problem: None });
    }

    fn note(&self, news: Option<String>) {
        self.leadership.send_if_modified(|now| match now {
            Leadership::Leading { problem, .. } if *problem != news => {
                *problem = news;
                true
            }
            _ => false,
        });
    }

    fn stand_by(&self, problem: Option<String>) {
        let holder = self.seen.as_ref().and_then(Observation::holder).map(Into::into);
        publish(&self.leadership, Leadership::Standby { holder, problem });
    }

    async fn release(&mut self) {
        self.stand_by(None);
        for _ in 0..RELEASES {
            // The last request may have succeeded although its answer was lost.
            let Ok(Some(lease)) = self.request("get", self.leases.get_opt(LEASE)).await else { return };
            if record::holder(&lease) != Some(&self.identity) {
                return;
            }
            let lease = record::released(lease, clock::timestamp());
            let parameters = PostParams::default();
            let answer = self.request("update", self.leases.replace(LEASE, &parameters, &lease)).await;
            if !matches!(answer, Err(Failure::Conflict)) {
                return;
            }
        }
    }
}

/// Publishes a role. Receivers wake only if it has changed.
fn publish(leadership: &watch::Sender<Leadership>, news: Leadership) {
    leadership.send_if_modified(|now| {
        let changed = *now != news;
        *now = news;
        changed
    });
}

/// Ends terms that were not renewed in time, even while a request waits for its answer.
async fn stop_at_the_deadline(leadership: &watch::Sender<Leadership>) {
    let mut news = leadership.subscribe();
    loop {
        let until = news.borrow_and_update().until();
        tokio::select! {
            // At the deadline the newest state decides, so a renewal at the same moment counts.
            biased;
            () = at(until) => {
                leadership.send_if_modified(|now| {
                    let over = now.term().is_none();
                    if let Leadership::Leading { problem, .. } = now && over {
                        let cause = problem.take().unwrap_or_else(|| "no answer yet".to_owned());
                        let problem = Some(format!("not renewed before the deadline: {cause}"));
                        *now = Leadership::Standby { holder: None, problem };
                        return true;
                    }
                    false
                });
            }
            changed = news.changed() => if changed.is_err() { return },
        }
    }
}

/// Detects that the holder has released the lease. Without the permission to watch, or without a connection, the next
/// attempt detects it.
async fn look_out(leases: &Api<Lease>, pause: Duration, vacancy: &Notify) {
    let parameters = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
    loop {
        let watch = async {
            let Ok(events) = leases.watch(&parameters, "0").await else { return };
            let mut events = pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let vacant = match event {
                    WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                        record::holder(&lease).is_none()
                    }
                    WatchEvent::Deleted(_) => true,
                    WatchEvent::Bookmark(_) => false,
                    WatchEvent::Error(_) => return,
                };
                if vacant {
                    vacancy.notify_one();
                }
            }
        };
        // The end of the watch and the timeout are handled alike.
        time::timeout(WATCH, watch).await.ok();
        time::sleep(pause).await;
    }
}
