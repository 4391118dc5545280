//! One candidate: acquires, renews and releases the lease, and says what it is meanwhile.

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
use crate::{causes::LastProblem, cluster::plain};

/// The longest that any request may take; far less than Kubernetes gives a process to stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a release is tried when others write to the lease too.
const RELEASES: u32 = 3;
/// Ends watches that nobody would notice to be dead. API servers end them sooner.
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

/// What one try has shown.
enum Round {
    /// The lease is ours, by a request that was sent at that time.
    Won(Instant),
    /// Somebody else has it, until that time unless they renew.
    Held(Instant),
    /// Somebody else was faster than this try.
    Outrun,
}

/// Why a request gave nothing.
enum Failure {
    /// The lease is not what it was when it was read.
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
            // A term that has run out ends before anything else happens, also in a process that was stopped for a
            // while. That is rarely, so the others are not kept waiting.
            biased;
            () = stop_at_the_deadline(&leadership) => {}
            () = self.compete(stop, &vacancy) => {}
            () = look_out(&leases, pause, &vacancy) => {}
        }
    }

    async fn compete(&mut self, mut stop: oneshot::Receiver<()>, vacancy: &Notify) {
        loop {
            // Not interrupted: a request that was dropped could still win the lease after the release.
            let pause = self.round().await;
            tokio::select! {
                // The end of the candidacy comes before another try; the other two both lead to one.
                biased;
                _ = &mut stop => break,
                () = time::sleep(pause) => {}
                () = vacancy.notified() => {}
            }
        }
        self.release().await;
    }

    /// One try to get or to keep the lease. Returns how long to wait before the next one.
    async fn round(&mut self) -> Duration {
        // Candidates that started together must not stay together.
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
                // A leader goes on until its deadline, which somebody else watches.
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

    /// Each problem is logged once, not with every try.
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
        // A leader writes without reading: the resource version says whether something has changed.
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
            // Others may have led since the last renewal, even if nobody does now.
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

    /// Writes our name into the lease. Returns when the request was sent: since then at the latest the
    /// others wait for us.
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
            // Whoever updates a lease that has been deleted has been outrun too.
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
            // What was last tried may have succeeded without an answer.
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

/// Wakes receivers only for news.
fn publish(leadership: &watch::Sender<Leadership>, news: Leadership) {
    leadership.send_if_modified(|now| {
        let changed = *now != news;
        *now = news;
        changed
    });
}

/// Ends terms that were not renewed in time, while a request may still be waiting for its answer.
async fn stop_at_the_deadline(leadership: &watch::Sender<Leadership>) {
    let mut news = leadership.subscribe();
    loop {
        let until = news.borrow_and_update().until();
        tokio::select! {
            // A deadline that has passed is checked against the newest state, so a renewal that came with it counts.
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

/// Notices that the holder has given the lease up. Without this right, or without a connection, the
/// next try notices it.
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
        // Whether it ended or was cut off is all the same.
        time::timeout(WATCH, watch).await.ok();
        time::sleep(pause).await;
    }
}
