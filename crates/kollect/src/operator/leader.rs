//! Leader election on a Lease, compatible with client-go: only one of several replicas writes.
//!
//! A leader that cannot renew stops leading at its renew deadline, before another process can take over. It keeps
//! trying, and leads again in a new term. Losing the lease does not end the process.

mod elector;
mod record;

use std::{fmt, time::Duration};

use anyhow::bail;
use elector::Elector;
use kollect_engine::tasks::{Task, TaskKind, Tasks};
use kube::Client;
use tokio::{
    sync::{oneshot, watch},
    time::{self, Instant},
};

/// The Lease that all replicas compete for, including those of the Go implementation.
pub(crate) const LEASE: &str = "3274ac8a.kollect.dev";

/// How long a start waits for the first answer about the lease.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Timings of the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseTimings {
    /// How long other candidates wait for a leader that does not renew.
    pub(crate) lease: Duration,
    /// When a leader that cannot renew stops leading.
    pub(crate) renew_deadline: Duration,
    /// The longest pause between two attempts.
    pub(crate) retry: Duration,
}

impl Default for LeaseTimings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl LeaseTimings {
    /// Checks that a leader stops before another one may start. The error names the flags.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        let Self { lease, renew_deadline, retry } = self;
        if retry.is_zero() {
            bail!("--leader-elect-retry-period must be longer than nothing");
        }
        if retry >= renew_deadline {
            bail!(
                "--leader-elect-retry-period ({retry:?}) must be shorter than \
                 --leader-elect-renew-deadline ({renew_deadline:?})"
            );
        }
        if renew_deadline >= lease {
            bail!(
                "--leader-elect-renew-deadline ({renew_deadline:?}) must be shorter than \
                 --leader-elect-lease-duration ({lease:?})"
            );
        }
        if i32::try_from(lease.as_secs()).is_err() {
            bail!("--leader-elect-lease-duration ({lease:?}) is longer than a Lease can store");
        }
        Ok(())
    }
}

/// The role of this process in the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Another process writes, or none.
    Standby {
        /// The holder of the lease when it was last read.
        holder: Option<String>,
        /// Why the last attempt failed, for the log and for conditions.
        problem: Option<String>,
    },
    /// This process writes.
    Leading {
        /// Counts the times that this process became the leader.
        term: u64,
        /// When it stops unless it renews before; `None` without election.
        until: Option<Instant>,
        /// Why the last renewal failed, while there is still time for another one.
        problem: Option<String>,
    },
}

impl Leadership {
    /// The current term. It ends at the deadline, even if the elector has not published that yet.
    pub(crate) fn term(&self) -> Option<u64> {
        match *self {
            Self::Leading { term, until, .. } if until.is_none_or(|until| Instant::now() < until) => {
                Some(term)
            }
            _ => None,
        }
    }

    fn until(&self) -> Option<Instant> {
        match *self {
            Self::Leading { until, .. } => until,
            Self::Standby { .. } => None,
        }
    }
}

impl fmt::Display for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leading { term, problem: None, .. } => write!(f, "leads (term {term})"),
            Self::Leading { term, problem: Some(problem), .. } => {
                write!(f, "leads (term {term}): {problem}")
            }
            Self::Standby { holder: Some(holder), problem: None } => write!(f, "stands by for {holder}"),
            Self::Standby { holder: None, problem: None } => f.write_str("stands by"),
            Self::Standby { problem: Some(problem), .. } => write!(f, "stands by: {problem}"),
        }
    }
}

/// Waits until this process leads, and returns the term; `None` once the candidate has ended.
#[cfg(test)]
pub(crate) async fn wait_for_term(leadership: &mut watch::Receiver<Leadership>) -> Option<u64> {
    loop {
        let term = leadership.borrow_and_update().term();
        if term.is_some() {
            return term;
        }
        leadership.changed().await.ok()?;
    }
}

/// Waits until a term is over. The caller must then drop all writers. Returns at the renew deadline even if the
/// candidate itself is stuck.
pub(crate) async fn wait_for_end(leadership: &mut watch::Receiver<Leadership>, term: u64) {
    loop {
        let now = leadership.borrow_and_update().clone();
        if now.term() != Some(term) {
            return;
        }
        tokio::select! {
            // Both branches check the newest state again.
            biased;
            changed = leadership.changed() => if changed.is_err() { return },
            () = sleep_until(now.until()) => {}
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The identity of a candidate. In a Pod, whose name and UID the manifests pass, a restarted container is the same
/// candidate and takes its lease back at once: the kubelet starts a container after the previous one has ended, and
/// sinks refuse late writes of that one. Elsewhere every process has an identity of its own.
pub(crate) fn identity(variable: impl Fn(&str) -> Option<String>) -> String {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    match (variable("POD_NAME"), variable("POD_UID")) {
        (Some(name), Some(uid)) => format!("{name}_{uid}"),
        (name, _) => {
            let name = name.or_else(|| variable("HOSTNAME")).unwrap_or_else(|| "kollect".into());
            format!("{name}_{:032x}", fastrand::u128(..))
        }
    }
}

/// Starts candidates.
pub(crate) struct Leader;

impl Leader {
    /// Becomes a candidate for the lease in `namespace`. A lease that `identity` holds already is taken at once: see
    /// [`identity`].
    pub(crate) fn start(
        client: Client,
        namespace: &str,
        identity: String,
        timings: LeaseTimings,
        tasks: &Tasks,
    ) -> anyhow::Result<LeaderHandle> {
        timings.check()?;
        let (leadership, receiver) = watch::channel(Leadership::Standby { holder: None, problem: None });
        let (stop, stopped) = oneshot::channel();
        let elector = Elector::new(client, namespace, identity, timings, leadership);
        let task = tasks.core(TaskKind::Lease.into(), elector.run(stopped));
        Ok(LeaderHandle { receiver, stop: LeaderStop::Elected(stop, task) })
    }

    /// Leads without election until it is released.
    pub(crate) fn alone() -> LeaderHandle {
        let (leadership, receiver) =
            watch::channel(Leadership::Leading { term: 1, until: None, problem: None });
        LeaderHandle { receiver, stop: LeaderStop::Alone(leadership) }
    }
}

/// A running candidate. If it is dropped without [`release`](Self::release), other candidates must wait until the lease
/// expires.
pub(crate) struct LeaderHandle {
    receiver: watch::Receiver<Leadership>,
    stop: LeaderStop,
}

enum LeaderStop {
    Elected(oneshot::Sender<()>, Task<Option<()>>),
    Alone(watch::Sender<Leadership>),
}

impl LeaderHandle {
    /// The role of this process, and its changes; see [`wait_for_end`].
    pub(crate) fn watch(&self) -> watch::Receiver<Leadership> {
        self.receiver.clone()
    }

    /// Waits for the first answer about the lease, at most [`FIRST_ANSWER_TIMEOUT`]. Lists that start afterwards are not
    /// older than a term that begins at once.
    pub(crate) async fn wait_for_first_answer(&self) {
        let no_answer_yet = Leadership::Standby { holder: None, problem: None };
        let mut leadership = self.watch();
        drop(time::timeout(FIRST_ANSWER_TIMEOUT, leadership.wait_for(|now| *now != no_answer_yet)).await);
    }

    /// Ends the candidacy, and releases the lease so that a standby takes over at once. The caller must have stopped
    /// writing. Takes seconds at most, even if the API server does not answer.
    pub(crate) async fn release(self) {
        match self.stop {
            LeaderStop::Elected(stop, task) => {
                if stop.send(()).is_ok() {
                    // A task that panicked has not released the lease, which then expires.
                    task.await.ok();
                }
            }
            LeaderStop::Alone(leadership) => {
                leadership.send_replace(Leadership::Standby { holder: None, problem: None });
            }
        }
    }
}

#[cfg(test)]
mod tests;
