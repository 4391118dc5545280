//! Flags of the operator. All flags of the Go implementation are parsed. A flag without effect is logged once, with its
//! replacement.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use kollect_engine::{extract::ExtractPolicy, select::NamespaceDefaults, tasks::Tasks};
use kollect_model::crd::shapes::{GoDuration, is_namespace_name};
use kollect_sinks::Cidr;
use kube::Client;
use tracing::warn;

use super::{
    leader::{self, Leader, LeaderHandle, LeaseTimings},
    logs,
    serve::{Limits, ListenEndpoint, ServerTls},
};
use crate::{
    cluster::ClusterIdentity,
    resolve::{AllowedCidr, FileRoot, NetworkFlags, OperatorPolicy, SinkNetwork, TargetReach},
};

/// Arguments of `kollect operator`.
#[derive(clap::Args)]
// The last one counts, so that `extraArgs` of the chart can repeat a flag. Lists add up.
#[command(args_override_self = true)]
#[allow(clippy::struct_excessive_bools, reason = "flags are what they are")]
pub(crate) struct OperatorArgs {
    /// Kubeconfig file; default: the service account of the pod, then $KUBECONFIG.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Watch these namespaces only, separated by commas; default: all.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = listed_namespace)]
    watch_namespaces: Vec<String>,
    /// Need nothing but a Role in the namespaces of --watch-namespaces.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) tenant_mode: bool,
    /// Namespaces of targets that include none by name.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = listed_namespace)]
    default_included_namespaces: Vec<String>,
    /// Namespaces that every target excludes.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = listed_namespace)]
    default_excluded_namespaces: Vec<String>,
    /// What KollectTargets collect from besides their own namespace: what their KollectScope names, or all.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "scoped")]
    cross_namespace_targets: CrossNamespaceTargets,
    /// Namespaces whose targets may read Secret data if their profile opts in, separated by commas; the
    /// operator's own namespace stands for cluster targets. Default: none.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = listed_namespace)]
    allow_secret_extraction: Vec<String>,
    /// More names of credentials, separated by commas: values whose key ends in one are redacted.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    scrub_keys: Vec<String>,
    /// Names that are no credentials, separated by commas: whole names, whatever the table of names says.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    scrub_allow_keys: Vec<String>,
    /// Mask credentials inside of texts: in URLs, files, arguments, and tokens by their shape.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    scrub_texts: bool,
    /// Most bytes of JSON that an attribute may have; one with more fails.
    #[arg(long, value_name = "BYTES", default_value_t = ExtractPolicy::MAX_ATTRIBUTE_BYTES)]
    max_attribute_bytes: usize,
    /// Let sinks connect to private addresses (RFC 1918, unique local).
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    allow_private_sinks: bool,
    /// Let sinks connect to these address ranges, whatever they are: CIDR for all sinks, NAMESPACE=CIDR for those
    /// of a namespace.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    allow_sink_cidrs: Vec<AllowedCidr>,
    /// Let no sink connect to these address ranges, whatever allows them.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    deny_sink_cidrs: Vec<Cidr>,
    /// Directory below which sinks may keep files, each namespace in its own; default: no files.
    #[arg(long, value_name = "DIR")]
    file_sink_root: Option<PathBuf>,
    /// Let sinks of a namespace read Secrets of another: SINK-NAMESPACE=SECRET-NAMESPACE, separated by commas.
    #[arg(long, value_name = "PAIR,…", value_delimiter = ',', value_parser = namespace_pair)]
    allow_secret_namespaces: Vec<(String, String)>,
    /// How often everything is compared with a fresh list.
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = duration)]
    informer_resync_period: Duration,
    /// Only one of several replicas writes; the others watch, and take over.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// How long a leader that does not renew its lease counts as alive.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    leader_elect_lease_duration: Duration,
    /// How long a leader that cannot renew its lease goes on writing.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    leader_elect_renew_deadline: Duration,
    /// How often the lease is read.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    leader_elect_retry_period: Duration,
    /// Namespace of the lease; default: the operator's own.
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    leader_election_namespace: Option<String>,
    /// Where /healthz and /readyz are served; 0: nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub(crate) health_probe_bind_address: String,
    /// Where /metrics is served, such as :8443; 0: nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    metrics_bind_address: String,
    /// Serve /metrics with TLS, and only to clients that may get it.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    metrics_secure: bool,
    /// Directory of the certificate of /metrics; default: one that is made at the start.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    metrics_cert_path: String,
    /// File of the certificate of /metrics.
    #[arg(long, value_name = "FILE", default_value = "tls.crt")]
    metrics_cert_name: String,
    /// File of the key of /metrics.
    #[arg(long, value_name = "FILE", default_value = "tls.key")]
    metrics_cert_key: String,
    /// Offer HTTP/2 wherever TLS is served.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(crate) enable_http2: bool,
    /// Least time between two computations of the series of a profile.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    collect_metrics_sample_interval: Duration,
    /// How long a deleted inventory waits for sinks that cannot be cleaned.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) cleanup_timeout: Duration,
    /// How often it is checked that this cluster still owns its inventories in a sink with nothing to write; 0s: never.
    /// Default: every minute, Git every five.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) claim_check_interval: Option<Duration>,
    /// Seconds that running writes get to finish.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) shutdown_grace_period: u64,
    /// What is logged: error, warn, info, debug, or a filter such as kollect=debug.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Format of the log. Default: json, or text on a terminal.
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    #[command(flatten)]
    pub(crate) webhooks: super::webhooks::WebhookFlags,
    #[command(flatten)]
    retired: RetiredFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CrossNamespaceTargets {
    /// What a KollectScope of their namespace names.
    Scoped,
    /// All that no KollectScope forbids.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LogFormat {
    Json,
    Text,
}

/// Flags of the Go implementation for what does not exist here.
#[derive(clap::Args)]
#[command(next_help_heading = "Accepted, without effect")]
struct RetiredFlags {
    #[arg(long, hide = true)]
    max_export_bytes: Option<u64>,
    #[arg(long, hide = true)]
    max_concurrent_reconciles_target: Option<u32>,
    #[arg(long, hide = true)]
    max_concurrent_reconciles_inventory: Option<u32>,
    #[arg(long, hide = true)]
    max_concurrent_reconciles_cluster_target: Option<u32>,
    #[arg(long, hide = true)]
    max_concurrent_reconciles_cluster_inventory: Option<u32>,
    #[arg(long, hide = true)]
    reconcile_rate_limit: Option<String>,
    #[arg(long, hide = true)]
    target_count_resync: Option<String>,
    #[arg(long, hide = true)]
    collect_dispatch_workers: Option<u32>,
    #[arg(long, hide = true)]
    collect_dispatch_queue_size: Option<u32>,
    #[arg(long, hide = true)]
    collect_dispatch_enqueue_wait: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    zap_devel: Option<bool>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    enable_pprof: Option<bool>,
    #[arg(long, hide = true)]
    pprof_bind_address: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    inventory_http_enabled: Option<bool>,
    #[arg(long, hide = true)]
    inventory_http_port: Option<u16>,
    #[arg(long, hide = true)]
    inventory_auth_mode: Option<String>,
    #[arg(long, hide = true)]
    inventory_auth_cache_ttl: Option<String>,
}

fn namespace_name(text: &str) -> Result<String, String> {
    let valid = is_namespace_name(text).then(|| text.to_owned());
    valid.ok_or_else(|| "must be the name of a namespace: lower-case letters, digits and -".into())
}

/// Accepts the empty string: Helm charts pass empty lists as such.
fn listed_namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { namespace_name(text) }
}

/// The names of a list, without empty strings.
fn names(list: &[String]) -> Vec<String> {
    list.iter().filter(|name| !name.is_empty()).cloned().collect()
}

fn namespace_pair(text: &str) -> Result<(String, String), String> {
    let pair =
        text.split_once('=').filter(|(sink, secret)| is_namespace_name(sink) && is_namespace_name(secret));
    let valid = pair.map(|(sink, secret)| (sink.to_owned(), secret.to_owned()));
    valid.ok_or_else(|| "must be SINK-NAMESPACE=SECRET-NAMESPACE, such as team-a=shared".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    let valid = GoDuration::parse(text).map(|duration| duration.0);
    valid.ok_or_else(|| "must be a duration such as 30s, 5m or 12h".into())
}

impl OperatorArgs {
    /// Starts logging to standard error.
    pub(crate) fn start_logs(&self) {
        if logs::start(&self.log_level, self.log_format).is_err() {
            eprintln!("error: logs were started twice");
        }
    }

    /// Namespaces that are watched; `None`: all.
    pub(crate) fn within(&self) -> Option<BTreeSet<Arc<str>>> {
        let names: BTreeSet<Arc<str>> =
            names(&self.watch_namespaces).iter().map(|name| name.as_str().into()).collect();
        (!names.is_empty()).then_some(names)
    }

    /// What distinguishes the rows of this operator from those of other operators.
    pub(crate) fn identity(&self) -> ClusterIdentity {
        if self.tenant_mode { ClusterIdentity::Namespace } else { ClusterIdentity::Cluster }
    }

    pub(crate) fn informer_resync_period(&self) -> Duration {
        // Zero means the default.
        if self.informer_resync_period.is_zero() {
            Duration::from_hours(12)
        } else {
            self.informer_resync_period
        }
    }

    /// What targets may collect from without a KollectScope that names it.
    fn reach(&self) -> TargetReach {
        match self.cross_namespace_targets {
            CrossNamespaceTargets::All => TargetReach::All,
            // In tenant mode the operator watches only the namespaces of the flag.
            CrossNamespaceTargets::Scoped if self.tenant_mode => TargetReach::AllNamespaces,
            CrossNamespaceTargets::Scoped => TargetReach::OwnNamespace,
        }
    }

    /// The operator policy that the flags set. The addresses of the API servers and the cluster id are added later.
    pub(crate) fn operator_policy(&self) -> anyhow::Result<OperatorPolicy> {
        if self.tenant_mode && self.within().is_none() {
            bail!("--tenant-mode needs --watch-namespaces: a Role counts in its namespace only");
        }
        if self.retired.inventory_http_enabled == Some(true) {
            bail!("--inventory-http-enabled: the read API is not part of this build; remove the flag");
        }
        // Resolve symbolic links, so that one directory has one path.
        let files = match &self.file_sink_root {
            None => FileRoot::Refused,
            Some(root) => FileRoot::Directory(
                kollect_sinks::real_path(root)
                    .with_context(|| format!("--file-sink-root {}: look it up", root.display()))?,
            ),
        };
        Ok(OperatorPolicy {
            policy: ExtractPolicy {
                scrub_keys: self.scrub_keys.clone(),
                scrub_allow_keys: self.scrub_allow_keys.clone(),
                scrub_texts: self.scrub_texts,
                max_attribute_bytes: self.max_attribute_bytes,
                ..ExtractPolicy::default()
            },
            defaults: NamespaceDefaults {
                included: names(&self.default_included_namespaces),
                excluded: names(&self.default_excluded_namespaces),
            },
            reach: self.reach(),
            secret_extraction: Some(names(&self.allow_secret_extraction).into_iter().collect()),
            own_namespace: None,
            secret_namespaces: Some(self.allow_secret_namespaces.iter().cloned().collect()),
            network: SinkNetwork::Guarded(NetworkFlags {
                allow_private: self.allow_private_sinks,
                allowed: self.allow_sink_cidrs.clone(),
                denied: self.deny_sink_cidrs.clone(),
                api_servers: Vec::new(),
            }),
            files,
            cluster_id: None,
        })
    }

    /// Where /metrics is served and whether it is guarded; `None`: nowhere.
    pub(crate) fn metrics(&self) -> Option<(ListenEndpoint, bool)> {
        let tls = match (self.metrics_secure, self.metrics_cert_path.as_str()) {
            (false, _) => ServerTls::Off,
            (true, "") => ServerTls::SelfSigned,
            (true, dir) => ServerTls::Files {
                dir: dir.into(),
                cert: self.metrics_cert_name.clone(),
                key: self.metrics_cert_key.clone(),
            },
        };
        let endpoint = ListenEndpoint {
            flag: "--metrics-bind-address",
            address: self.metrics_bind_address.clone(),
            tls,
            http2: self.enable_http2,
            limits: Limits::default(),
        };
        (self.metrics_bind_address != "0").then_some((endpoint, self.metrics_secure))
    }

    pub(crate) fn metrics_sample_interval(&self) -> Duration {
        // Zero means the default.
        if self.collect_metrics_sample_interval.is_zero() {
            Duration::from_secs(30)
        } else {
            self.collect_metrics_sample_interval
        }
    }

    /// Starts leader election; without the flag this process leads alone.
    pub(crate) fn lead(&self, client: Client, tasks: &Tasks) -> anyhow::Result<LeaderHandle> {
        if !self.leader_elect {
            return Ok(Leader::alone());
        }
        let timings = LeaseTimings {
            lease: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry: self.leader_elect_retry_period,
        };
        let namespace =
            self.leader_election_namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let identity = leader::identity(|name| std::env::var(name).ok());
        Leader::start(client, &namespace, identity, timings, tasks)
    }

    /// Warns about flags that were given and have no effect, with their replacements.
    pub(crate) fn warn_about_retired_flags(&self) {
        let RetiredFlags {
            max_export_bytes,
            max_concurrent_reconciles_target,
            max_concurrent_reconciles_inventory,
            max_concurrent_reconciles_cluster_target,
            max_concurrent_reconciles_cluster_inventory,
            reconcile_rate_limit,
            target_count_resync,
            collect_dispatch_workers,
            collect_dispatch_queue_size,
            collect_dispatch_enqueue_wait,
            zap_devel,
            zap_encoder,
            zap_log_level,
            zap_stacktrace_level,
            zap_time_encoding,
            enable_pprof,
            pprof_bind_address,
            inventory_http_enabled: _,
            inventory_http_port,
            inventory_auth_mode,
            inventory_auth_cache_ttl,
        } = &self.retired;
        let logs = "--log-level and --log-format";
        let profiles = "perf reads the program as it is";
        let served = "nothing is served over HTTP in this build";
        let concurrency = "everything is concurrent already";
        let queue = "a watch waits for its reader, and nothing is queued";
        for (flag, given, instead) in [
            (
                "--max-export-bytes",
                max_export_bytes.is_some(),
                "inventories have no size limit; spec.maxExportBytes cuts documents into parts",
            ),
            ("--max-concurrent-reconciles-target", max_concurrent_reconciles_target.is_some(), concurrency),
            (
                "--max-concurrent-reconciles-inventory",
                max_concurrent_reconciles_inventory.is_some(),
                concurrency,
            ),
            (
                "--max-concurrent-reconciles-cluster-target",
                max_concurrent_reconciles_cluster_target.is_some(),
                concurrency,
            ),
            (
                "--max-concurrent-reconciles-cluster-inventory",
                max_concurrent_reconciles_cluster_inventory.is_some(),
                concurrency,
            ),
            ("--reconcile-rate-limit", reconcile_rate_limit.is_some(), "sinks have their own pauses"),
            ("--target-count-resync", target_count_resync.is_some(), "counts are live"),
            (
                "--collect-dispatch-workers",
                collect_dispatch_workers.is_some(),
                "each kind has a task of its own",
            ),
            ("--collect-dispatch-queue-size", collect_dispatch_queue_size.is_some(), queue),
            ("--collect-dispatch-enqueue-wait", collect_dispatch_enqueue_wait.is_some(), queue),
            ("--zap-devel", zap_devel.is_some(), logs),
            ("--zap-encoder", zap_encoder.is_some(), logs),
            ("--zap-log-level", zap_log_level.is_some(), logs),
            ("--zap-stacktrace-level", zap_stacktrace_level.is_some(), logs),
            ("--zap-time-encoding", zap_time_encoding.is_some(), logs),
            ("--enable-pprof", enable_pprof.is_some(), profiles),
            ("--pprof-bind-address", pprof_bind_address.is_some(), profiles),
            ("--inventory-http-port", inventory_http_port.is_some(), served),
            ("--inventory-auth-mode", inventory_auth_mode.is_some(), served),
            ("--inventory-auth-cache-ttl", inventory_auth_cache_ttl.is_some(), served),
        ] {
            if given {
                warn!(flag, instead, "the flag has no effect");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct FlagLine {
        #[command(flatten)]
        args: OperatorArgs,
    }

    #[test]
    fn the_read_api_is_refused() {
        let operator_policy = |flag: &str| {
            FlagLine::try_parse_from(["kollect", flag]).map(|line| line.args).unwrap().operator_policy()
        };
        let refused = operator_policy("--inventory-http-enabled=true").unwrap_err().to_string();
        assert!(refused.contains("--inventory-http-enabled: the read API is not part"), "{refused}");
        operator_policy("--inventory-http-enabled=false").unwrap();
    }

    #[test]
    fn of_repeated_flags_the_last_one_counts_and_lists_add_up() {
        let flags = [
            "kollect",
            "--tenant-mode",
            "--watch-namespaces=a,b",
            "--tenant-mode=false",
            "--watch-namespaces=c",
        ];
        let args = FlagLine::try_parse_from(flags).map(|line| line.args).unwrap();
        assert!(!args.tenant_mode && args.watch_namespaces == ["a", "b", "c"]);
    }

    fn metrics(flags: &[&str]) -> Option<(String, bool, bool)> {
        let args = FlagLine::try_parse_from([&["kollect"], flags].concat()).map(|line| line.args).unwrap();
        let (endpoint, guarded) = args.metrics()?;
        Some((format!("{} {:?}", endpoint.address, endpoint.tls), guarded, endpoint.http2))
    }

    #[test]
    fn metrics_are_off_by_default_and_secure_when_they_are_on() {
        assert_eq!(metrics(&[]), None);
        let bind = "--metrics-bind-address=:8443";
        assert_eq!(metrics(&[bind]), Some((":8443 SelfSigned".into(), true, false)));
        assert_eq!(metrics(&[bind, "--metrics-cert-path="]), metrics(&[bind]));
        let plain =
            metrics(&["--metrics-bind-address=:8080", "--metrics-secure=false", "--metrics-cert-path=/x"]);
        assert_eq!(plain, Some((":8080 Off".into(), false, false)));
        let (files, guarded, http2) =
            metrics(&[bind, "--metrics-secure", "--metrics-cert-path=/certs", "--enable-http2"]).unwrap();
        assert!(
            files.contains("/certs") && files.contains("tls.crt") && files.contains("tls.key"),
            "{files}"
        );
        assert!(guarded && http2);
    }
}
