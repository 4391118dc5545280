//! One operator process of a cluster, wired as in the program except for its servers: it competes for the lease, and
//! can crash, stop, be paused and be cut off.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use kollect_engine::{collect::CollectSettings, tasks::Tasks};
use tokio::time;

use super::{
    super::{
        Replica, ReplicaParts,
        leader::{self, Leader, LeaseTimings},
        shutdown,
    },
    api_server::ApiServer,
    executor::{Executor, ProcessId},
    journal::Journal,
    network::{Network, ProcessLink},
    signal::Signal,
    sink_servers::{ProcessSinks, SendingProcess, SinkServers},
};
use crate::{
    cluster::ClusterSource,
    resolve::{FileRoot, OperatorPolicy},
};

/// The default lease timings of the operator.
const LEASE_TIMINGS: LeaseTimings = LeaseTimings {
    lease: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
/// How long running writes may take when a process stops.
const GRACE_PERIOD: Duration = Duration::from_secs(20);

pub(super) struct OperatorProcess {
    pub(super) id: ProcessId,
    executor: Executor,
    link: ProcessLink,
    api: ApiServer,
    sinks: SinkServers,
    cluster: Arc<str>,
    journal: Journal,
    /// The tasks of the last start.
    tasks: Option<Tasks>,
    stop: Signal,
    /// Why the process ended by itself.
    problem: Arc<Mutex<Option<String>>>,
}

impl OperatorProcess {
    pub(super) fn new(
        name: &str,
        api: &ApiServer,
        sinks: &SinkServers,
        cluster: &str,
        (executor, network, journal): (&Executor, &Network, &Journal),
    ) -> Self {
        let id = executor.add_process();
        Self {
            id,
            executor: executor.clone(),
            link: network.link(id, name),
            api: api.clone(),
            sinks: sinks.clone(),
            cluster: cluster.into(),
            journal: journal.clone(),
            tasks: None,
            stop: Signal::default(),
            problem: Arc::default(),
        }
    }

    /// Starts the process unless it runs.
    pub(super) fn start(&mut self) {
        if self.executor.is_running(self.id) {
            return;
        }
        self.stop = Signal::default();
        let tasks = Tasks::hosted_by(self.executor.host(self.id));
        self.tasks = Some(tasks.clone());
        let (api, link, stop) = (self.api.clone(), self.link.clone(), self.stop.clone());
        let sender = SendingProcess { link: link.clone(), cluster: self.cluster.clone() };
        let sinks = ProcessSinks { servers: self.sinks.clone(), sender };
        let (problem, journal) = (self.problem.clone(), self.journal.clone());
        self.executor.start(self.id, async move {
            journal.note(format_args!("{} starts", link.name()));
            let ended = Box::pin(operate(api, sinks, link, tasks, stop)).await;
            if let Err(error) = ended {
                problem.lock().unwrap().get_or_insert(format!("{error:#}"));
            }
        });
    }

    pub(super) fn crash(&self) {
        self.executor.crash(self.id);
    }

    /// Requests that the process stops: it finishes writes and gives the lease up.
    pub(super) fn stop(&self) {
        self.stop.announce();
    }

    /// None of its tasks runs for some seconds.
    pub(super) fn pause(&self, seconds: u64) {
        let (executor, id) = (self.executor.clone(), self.id);
        executor.pause(id);
        self.executor.serve(async move {
            time::sleep(Duration::from_secs(seconds)).await;
            executor.resume(id);
        });
    }

    /// A process that was paused continues.
    pub(super) fn resume(&self) {
        self.executor.resume(self.id);
    }

    /// What a process must never do: end by itself, or have a task that panics.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(problem) = self.problem.lock().unwrap().clone() {
            return Err(format!("{} has ended: {problem}", self.link.name()));
        }
        let restarts: u64 = self.tasks.iter().flat_map(Tasks::restarts).map(|(_, count)| count).sum();
        if restarts > 0 { Err(format!("a task of {} panicked", self.link.name())) } else { Ok(()) }
    }
}

async fn operate(
    api: ApiServer,
    sinks: ProcessSinks,
    link: ProcessLink,
    tasks: Tasks,
    stop: Signal,
) -> anyhow::Result<()> {
    let client = api.client(link.clone());
    let source = loop {
        match ClusterSource::in_memory(client.clone()).await {
            Ok(source) => break Arc::new(source),
            Err(_) => time::sleep(Duration::from_secs(1)).await,
        }
    };
    let files = FileRoot::Directory("/simulated".into());
    let own_namespace = Some("kollect-system".to_owned());
    let operator_policy = Arc::new(OperatorPolicy {
        own_namespace,
        cluster_id: Some(source.id.clone()),
        files,
        ..OperatorPolicy::default()
    });
    // Every other process runs in a Pod, whose container restarts with the same identity.
    let is_pod = link.name().ends_with(['0', '2', '4', '6', '8']);
    let identity = leader::identity(|name| match name {
        "POD_NAME" => Some(link.name().to_owned()),
        "POD_UID" if is_pod => Some("uid".to_owned()),
        _ => None,
    });
    let leader = Leader::start(client, "kollect-system", identity, LEASE_TIMINGS, &tasks)?;
    leader.wait_for_first_answer().await;
    let parts = ReplicaParts {
        source,
        operator_policy,
        settings: CollectSettings::default(),
        sinks: Arc::new(sinks),
        tasks: tasks.clone(),
        cleanup_timeout: Duration::from_hours(1),
        claim_check_interval: None,
    };
    let Replica { mut operator, kinds: _kinds, .. } = Replica::new(parts, leader.watch());
    let ended = shutdown::until_stopped(&tasks, operator.run(), stop.changed_since(0)).await;
    let last_steps = shutdown::release(leader, Vec::new());
    shutdown::stop(&tasks, GRACE_PERIOD, operator.stop(), last_steps, std::future::pending()).await?;
    Ok(ended?)
}
