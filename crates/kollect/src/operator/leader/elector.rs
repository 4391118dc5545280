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
    LEASE, Leadership, LeaseTimings,
    record::{self, ObservedLease},
    sleep_until,
};
use crate::{cluster::innermost_cause, error_chain::LastProblem};

/// The time limit of a request; far less than the time that Kubernetes gives a process to stop.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts to release the lease while other writers cause conflicts.
const RELEASE_ATTEMPTS: u32 = 3;
/// The longest duration of a watch: a dead connection may go undetected. API servers end watches sooner.
const LONGEST_WATCH: Duration = Duration::from_mins(5);

pub(super) struct Elector {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    timings: LeaseTimings,
    leadership: watch::Sender<Leadership>,
    observed: Option<ObservedLease>,
    last_term: u64,
    problem: LastProblem,
}

/// The result of one attempt.
enum AttemptResult {
    /// This candidate holds the lease, by a request that was sent at that time.
    Acquired(Instant),
    /// Another candidate holds it, until that time unless it renews.
    HeldByOther(Instant),
    /// Another candidate wrote the lease first.
    Conflict,
}

/// Why a request failed.
enum LeaseFailure {
    /// The lease has changed since it was read.
    Conflict,
    Other(String),
}

impl Elector {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        identity: String,
        timings: LeaseTimings,
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
            observed: None,
            last_term: 0,
            problem: LastProblem::default(),
        }
    }

    pub(super) async fn run(mut self, stop: oneshot::Receiver<()>) {
        let lease_free = Notify::new();
        let leadership = self.leadership.clone();
        let (leases, pause) = (self.leases.clone(), self.timings.retry);
        tokio::select! {
            // `biased`: an expired term ends before anything else happens, also in a process that was paused. This
            // branch is rarely ready, so it does not starve the others.
            biased;
            () = stop_at_the_deadline(&leadership) => {}
            () = self.compete(stop, &lease_free) => {}
            () = watch_for_release(&leases, pause, &lease_free) => {}
        }
    }

    async fn compete(&mut self, mut stop: oneshot::Receiver<()>, lease_free: &Notify) {
        loop {
            // Not cancelled: the API server could still apply a dropped request after the release.
            let pause = self.attempt().await;
            tokio::select! {
                // `biased`: the end of the candidacy comes before another attempt, which the other two branches start.
                biased;
                _ = &mut stop => break,
                () = time::sleep(pause) => {}
                () = lease_free.notified() => {}
            }
        }
        self.release().await;
    }

    /// One attempt to acquire or renew the lease. Returns the pause before the next one.
    async fn attempt(&mut self) -> Duration {
        // Jitter: candidates that started together must not send requests together.
        let pause = self.timings.retry.mul_f64(0.8 + 0.2 * fastrand::f64());
        let outcome = self.acquire_or_renew().await;
        self.log(outcome.as_ref().err());
        match outcome {
            Ok(AttemptResult::Acquired(sent)) => {
                self.lead(sent);
                pause
            }
            Ok(AttemptResult::HeldByOther(expires)) => {
                self.stand_by(None);
                pause.min(expires.saturating_duration_since(Instant::now()))
            }
            outcome => {
                // A leader continues until its deadline, which `stop_at_the_deadline` enforces.
                let problem = outcome.err();
                let term = self.leadership.borrow().term();
                match term {
                    Some(_) => self.set_problem(problem),
                    None => self.stand_by(problem),
                }
                pause
            }
        }
    }

    /// Logs each problem once, not with every attempt.
    fn log(&mut self, problem: Option<&String>) {
        match problem {
            Some(error) if self.problem.replace(error) => {
                warn!(error, "cannot acquire or renew the lease; trying again");
            }
            None if self.problem.clear() => info!("the lease can be read and written again"),
            _ => {}
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<AttemptResult, String> {
        // A leader updates without reading: the resource version detects any change.
        if let Some(observed) =
            self.observed.as_ref().filter(|observed| observed.holder() == Some(&self.identity))
        {
            match self.write_holder(observed.lease.clone()).await {
                Ok(sent) => return Ok(AttemptResult::Acquired(sent)),
                Err(LeaseFailure::Other(problem)) => return Err(problem),
                Err(LeaseFailure::Conflict) => {}
            }
        }
        let found = self.request("get", self.leases.get_opt(LEASE)).await;
        let lease = match found {
            Ok(Some(lease)) => lease,
            Ok(None) => {
                self.observed = None;
                let name = Some(LEASE.to_owned());
                Lease { metadata: ObjectMeta { name, ..ObjectMeta::default() }, spec: None }
            }
            Err(LeaseFailure::Other(problem)) => return Err(problem),
            Err(LeaseFailure::Conflict) => return Ok(AttemptResult::Conflict),
        };
        if lease.metadata.resource_version.is_some() {
            ObservedLease::record(&mut self.observed, lease.clone(), Instant::now());
        }
        if record::holder(&lease) != Some(&self.identity) {
            // Another process may have led since the last renewal, even if the lease has no holder now.
            if self.leadership.borrow().until().is_some() {
                self.stand_by(None);
            }
            if let Some(observed) = self.observed.as_ref().filter(|observed| observed.holder().is_some()) {
                let expires = observed.expires(self.timings.lease);
                if Instant::now() < expires {
                    return Ok(AttemptResult::HeldByOther(expires));
                }
            }
        }
        match self.write_holder(lease).await {
            Ok(sent) => Ok(AttemptResult::Acquired(sent)),
            Err(LeaseFailure::Conflict) => Ok(AttemptResult::Conflict),
            Err(LeaseFailure::Other(problem)) => Err(problem),
        }
    }

    /// Writes this candidate into the lease. Returns when the request was sent: other candidates wait for the lease
    /// duration from then on, or longer.
    async fn write_holder(&mut self, before: Lease) -> Result<Instant, LeaseFailure> {
        let sent = Instant::now();
        let is_new = before.metadata.resource_version.is_none();
        let lease = record::held_by(before, &self.identity, self.timings.lease, clock::timestamp());
        let parameters = PostParams::default();
        let written = if is_new {
            self.request("create", self.leases.create(&parameters, &lease)).await?
        } else {
            self.request("update", self.leases.replace(LEASE, &parameters, &lease)).await?
        };
        ObservedLease::record(&mut self.observed, written, Instant::now());
        Ok(sent)
    }

    async fn request<T>(
        &self,
        verb: &str,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, LeaseFailure> {
        let timeout = REQUEST_TIMEOUT.min(self.timings.renew_deadline / 3);
        let namespace = &self.namespace;
        let failed = |cause: String| {
            LeaseFailure::Other(format!("{verb} lease {LEASE} in namespace {namespace}: {cause}"))
        };
        match time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(LeaseFailure::Conflict),
            // The lease was deleted after it was read: a conflict too.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 && verb == "update" => {
                Err(LeaseFailure::Conflict)
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(failed(format!(
                "forbidden; grant get, create, update and watch on leases.coordination.k8s.io there ({})",
                status.message
            ))),
            Ok(Err(error)) => Err(failed(innermost_cause(error).to_string())),
            Err(_) => Err(failed(format!("no answer for {timeout:?}"))),
        }
    }

    /// Extends the running term, or begins a new one.
    fn lead(&mut self, sent: Instant) {
        let until = sent + self.timings.renew_deadline;
        let term = self.leadership.borrow().term().unwrap_or(self.last_term + 1);
        self.last_term = term;
        self.leadership.send_replace(Leadership::Leading { term, until: Some(until), problem: None });
    }

    fn set_problem(&self, new_problem: Option<String>) {
        self.leadership.send_if_modified(|now| match now {
            Leadership::Leading { problem, .. } if *problem != new_problem => {
                *problem = new_problem;
                true
            }
            _ => false,
        });
    }

    fn stand_by(&self, problem: Option<String>) {
        let holder = self.observed.as_ref().and_then(ObservedLease::holder).map(Into::into);
        publish(&self.leadership, Leadership::Standby { holder, problem });
    }

    async fn release(&mut self) {
        self.stand_by(None);
        for _ in 0..RELEASE_ATTEMPTS {
            // The last request may have succeeded although its answer was lost.
            let Ok(Some(lease)) = self.request("get", self.leases.get_opt(LEASE)).await else { return };
            if record::holder(&lease) != Some(&self.identity) {
                return;
            }
            let lease = record::released(lease, clock::timestamp());
            let parameters = PostParams::default();
            let answer = self.request("update", self.leases.replace(LEASE, &parameters, &lease)).await;
            if !matches!(answer, Err(LeaseFailure::Conflict)) {
                return;
            }
        }
    }
}

/// Publishes a role. Receivers wake only if it has changed.
fn publish(leadership: &watch::Sender<Leadership>, role: Leadership) {
    leadership.send_if_modified(|now| {
        let changed = *now != role;
        *now = role;
        changed
    });
}

/// Ends terms that were not renewed in time, even while a request waits for its answer.
async fn stop_at_the_deadline(leadership: &watch::Sender<Leadership>) {
    let mut receiver = leadership.subscribe();
    loop {
        let until = receiver.borrow_and_update().until();
        tokio::select! {
            // At the deadline the newest state decides, so a renewal at the same moment counts.
            biased;
            () = sleep_until(until) => {
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
            changed = receiver.changed() => if changed.is_err() { return },
        }
    }
}

/// Detects that the holder has released the lease. Without the permission to watch, or without a connection, the next
/// attempt detects it.
async fn watch_for_release(leases: &Api<Lease>, pause: Duration, lease_free: &Notify) {
    let parameters = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
    loop {
        let watch = async {
            let Ok(events) = leases.watch(&parameters, "0").await else { return };
            let mut events = pin!(events);
            while let Some(Ok(event)) = events.next().await {
                let is_free = match event {
                    WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                        record::holder(&lease).is_none()
                    }
                    WatchEvent::Deleted(_) => true,
                    WatchEvent::Bookmark(_) => false,
                    WatchEvent::Error(_) => return,
                };
                if is_free {
                    lease_free.notify_one();
                }
            }
        };
        // The end of the watch and the timeout are handled alike.
        time::timeout(LONGEST_WATCH, watch).await.ok();
        time::sleep(pause).await;
    }
}
