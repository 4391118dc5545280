//! `kollect operator`: the process that runs in the cluster.
//!
//! ```text
//! objects, Secrets ──▶ object set ──▶ Collector (targets) ──▶ rows ──▶ Deliveries (bindings) ──▶ sinks
//!                        │                                            │
//!                        └──────────────▶ statuses, events ◀──────────┘
//! ```
//!
//! One loop reads the known objects after each change and passes the wanted targets and bindings to the engine, which
//! starts and stops tasks accordingly. The process keeps no state that it could not read again after a restart.

mod args;
mod binding_states;
mod bindings;
mod conditions;
mod destinations;
mod finalize;
mod health;
mod leader;
mod logs;
mod metrics;
mod objects;
mod plans;
mod probe;
mod profile_warnings;
mod reconcile;
mod secrets;
mod serve;
mod shutdown;
#[cfg(test)]
mod simulate;
mod status;
mod status_writer;
mod take_over;
mod webhooks;

pub(crate) use args::OperatorArgs;
pub(crate) use leader::LEASE;
pub(crate) use status_writer::api;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use kollect_engine::{
    collect::{CollectProblem, CollectSettings, Collector},
    store::store,
    tasks::{Task, TaskKind, Tasks},
};
use kollect_model::backoff::Backoff;
use kollect_sinks::Sinks;
use reconcile::Operator;
use tokio::{sync::watch, time};
use tracing::{debug, info, warn};

use crate::{
    cluster::ClusterSource,
    error_chain::{LastProblem, chain_text},
    resolve::{OperatorPolicy, api_servers},
};

/// `kollect operator`
pub(crate) fn run(args: OperatorArgs) -> ExitCode {
    args.start_logs();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.context("start the runtime").and_then(|runtime| runtime.block_on(operate(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain_text(error.as_ref()), "cannot run");
            ExitCode::FAILURE
        }
    }
}

async fn operate(args: OperatorArgs) -> anyhow::Result<()> {
    let mut operator_policy = args.operator_policy()?;
    args.webhooks.check(args.tenant_mode)?;
    args.warn_about_retired_flags();
    let source = connect(&args).await?;
    operator_policy.network.deny_api_servers(api_servers(source.url(), |name| std::env::var(name).ok()));
    let own_namespace = Some(source.client().default_namespace().to_owned());
    let operator_policy =
        Arc::new(OperatorPolicy { own_namespace, cluster_id: Some(source.id.clone()), ..operator_policy });
    let tasks = Tasks::default();
    let settings = CollectSettings {
        within: args.within(),
        resync: args.informer_resync_period(),
        ..CollectSettings::default()
    };
    let client = source.client();
    let leader = args.lead(client.clone(), &tasks)?;
    leader.wait_for_first_answer().await;
    let parts = ReplicaParts {
        source,
        operator_policy: operator_policy.clone(),
        settings,
        sinks: Arc::new(Sinks::default()),
        tasks: tasks.clone(),
        cleanup_timeout: args.cleanup_timeout,
        claim_check_interval: args.claim_check_interval,
    };
    let Replica { mut operator, metrics, health, kinds: _kinds } = Replica::new(parts, leader.watch());
    let address = &args.health_probe_bind_address;
    let probes = health::serve(address, health.clone(), leader.watch(), &tasks).await?;
    let (metrics_server, _sampling_task) =
        serve_metrics(&args, &metrics, client.clone(), &tasks).await?.unzip();
    let admission = webhooks::Admission::new(
        operator.objects(),
        operator_policy,
        args.within(),
        Some(operator.schemas()),
    );
    let (tenant_mode, http2, webhook_flags) = (args.tenant_mode, args.enable_http2, &args.webhooks);
    let webhooks = match webhook_flags.serve(admission, tenant_mode, http2, (client, &health), &tasks).await {
        Ok(webhooks) => webhooks,
        Err(error) => {
            // Release the lease: another replica must not wait until the lease of this process expires.
            leader.release().await;
            return Err(error);
        }
    };
    info!(version = crate::version::text(), cluster = operator.cluster(), "started");
    let stop = shutdown::until_stopped(&tasks, operator.run(), crate::signals::stop_signal()).await;
    let webhooks = webhooks.map(|webhooks| webhooks.server);
    let servers = [metrics_server, probes, webhooks].into_iter().flatten().collect();
    let grace = Duration::from_secs(args.shutdown_grace_period);
    let last_steps = shutdown::release(leader, servers);
    let stopped =
        shutdown::stop(&tasks, grace, operator.stop(), last_steps, crate::signals::second_stop_signal())
            .await;
    stop?;
    stopped
}

/// Parts that a replica is built from.
struct ReplicaParts {
    source: Arc<ClusterSource>,
    operator_policy: Arc<OperatorPolicy>,
    settings: CollectSettings,
    sinks: Arc<dyn bindings::OpenPlan>,
    tasks: Tasks,
    cleanup_timeout: Duration,
    claim_check_interval: Option<Duration>,
}

/// One process that competes for the lease, without the HTTP servers that it has in a cluster.
struct Replica {
    operator: Operator,
    metrics: metrics::Metrics,
    health: health::Health,
    /// Detects kinds that are added to the cluster or removed from it.
    kinds: Task<Option<()>>,
}

impl Replica {
    fn new(parts: ReplicaParts, leadership: watch::Receiver<leader::Leadership>) -> Self {
        let ReplicaParts {
            source,
            operator_policy,
            settings,
            sinks,
            tasks,
            cleanup_timeout,
            claim_check_interval,
        } = parts;
        let kinds = tasks.core(TaskKind::Discovery.into(), source.clone().follow_kinds());
        let (writer, rows) = store();
        let meter = metrics::Meter::default();
        let within = settings.within.clone();
        let report = counted(meter.clone());
        let collector = Collector::start(source.clone(), writer, settings, tasks.clone(), report);
        let health = health::Health::default();
        let binding_states = binding_states::BindingStates::default();
        let discovery = source.clone();
        let sources = metrics::GaugeSources {
            rows: rows.clone(),
            coverage: collector.coverage().clone(),
            binding_states: binding_states.clone(),
            leadership: leadership.clone(),
            tasks: tasks.clone(),
            discovery: Box::new(move || discovery.knows_all_kinds()),
        };
        let metrics = metrics::Metrics::new(sources, meter);
        let setup = reconcile::OperatorParts {
            source,
            operator_policy,
            collector,
            rows,
            within,
            sinks,
            binding_states,
            metrics: metrics.clone(),
            tasks,
            cleanup_timeout,
            claim_check_interval,
        };
        let operator = Operator::new(setup, leadership, health.clone());
        Self { operator, metrics, health, kinds }
    }
}

/// Serves `/metrics`, on standby replicas too, and starts the task that samples the series of profiles.
async fn serve_metrics(
    args: &OperatorArgs,
    metrics: &metrics::Metrics,
    client: kube::Client,
    tasks: &Tasks,
) -> anyhow::Result<Option<(serve::HttpServer, Task<Option<()>>)>> {
    let Some((endpoint, guarded)) = args.metrics() else { return Ok(None) };
    let server = metrics.serve(endpoint, guarded.then_some(client)).await?;
    info!(address = %server.address, guarded, "metrics are served");
    let sampling = metrics.clone().sample(args.metrics_sample_interval());
    Ok(Some((server, tasks.core(TaskKind::Sampling.into(), sampling))))
}

/// Connects to the cluster. Retries without a time limit until the API server answers or a signal stops the process.
async fn connect(args: &OperatorArgs) -> anyhow::Result<Arc<ClusterSource>> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let mut problem = LastProblem::default();
    loop {
        match ClusterSource::connect_in_cluster(args.kubeconfig.as_deref(), args.identity()).await {
            Ok(source) => return Ok(Arc::new(source)),
            Err(error) => {
                let error = chain_text(error.as_ref());
                if problem.replace(&error) {
                    warn!(error, "cannot reach the cluster; trying again");
                }
            }
        }
        tokio::select! {
            () = time::sleep(backoff.next(fastrand::f64())) => {}
            () = crate::signals::stop_signal() => anyhow::bail!("stopped before the cluster answered"),
        }
    }
}

/// Counts each problem and passes it to [`report`].
fn counted(meter: metrics::Meter) -> impl Fn(CollectProblem) + Send + Sync {
    move |problem| {
        meter.count_problem(&problem);
        report(problem);
    }
}

/// Logs a problem. Blind kinds and single objects are logged at debug level only: statuses show them too.
fn report(problem: CollectProblem) {
    match problem {
        CollectProblem::Crashed { gvk } => {
            warn!(%gvk, "collecting a kind crashed and was started again; this is a bug");
        }
        CollectProblem::Undecided { target, gvk } => {
            info!(collected_by = %target, %gvk, "which objects are selected depends on namespaces that cannot be listed");
        }
        CollectProblem::Blind { watched, blindness } => {
            debug!(gvk = %watched.gvk, namespace = watched.namespace.as_deref(), reason = %blindness.reason, error = blindness.message, "a kind cannot be seen in a namespace");
        }
        CollectProblem::TypeMismatch { target, object, attribute, types: (declared, found), .. } => {
            debug!(collected_by = %target, object, %attribute, declared, found, "an attribute is not of the declared type");
        }
        CollectProblem::RowDropped { target, object, error } => {
            debug!(collected_by = %target, object, error = chain_text(&error), "an object has no row: a required attribute failed");
        }
        CollectProblem::ObjectUndecided { target, object } => {
            debug!(collected_by = %target, object, "whether an object is selected depends on a redacted value");
        }
        CollectProblem::Redacted { target, object, places } => {
            debug!(collected_by = %target, object, places = places.len(), "values of an object were redacted");
        }
    }
}
