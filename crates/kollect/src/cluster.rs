//! Objects of a live cluster: which kinds it serves, what may be listed, and one stream per query.

mod discovery;
mod follow;
mod identity;
mod request;

pub(crate) use identity::ClusterIdentity;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, anyhow};
use async_trait::async_trait;
use discovery::Discovery;
use follow::WatchLimits;
use futures::{StreamExt, channel::mpsc, stream, stream::BoxStream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kollect_engine::watch::{BlindReason, Blindness, Event, Query, Resolution, Resource, WatchSource};
use kollect_model::crd::shapes::Gvk;
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use request::{REQUEST_TIMEOUT, ResourceEndpoint};
use tokio::{
    sync::{Semaphore, watch},
    time,
};
use tracing::warn;

/// Maximum number of lists that run at the same time.
const MAX_LISTS: usize = 8;
/// Capacity of the event queue of a query; when it is full, the connection waits.
const QUEUE_CAPACITY: usize = 64;

/// A cluster whose API server has answered.
pub(crate) struct ClusterSource {
    shared: Arc<SourceState>,
    /// Id that distinguishes this cluster from all others.
    pub(crate) id: String,
    url: http::Uri,
}

/// State that all streams share.
struct SourceState {
    client: Client,
    discovery: Discovery,
    lists: Arc<Semaphore>,
    /// API groups whose servers do not support streamed lists.
    refuses_watch_lists: Mutex<BTreeSet<String>>,
    /// The newest resourceVersion of each kind that any stream has seen.
    newest_versions: Mutex<BTreeMap<Gvk, u64>>,
    limits: WatchLimits,
}

impl SourceState {
    fn newest_versions(&self) -> MutexGuard<'_, BTreeMap<Gvk, u64>> {
        self.newest_versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest resourceVersion of a kind that any stream has seen; 0: none.
    fn newest_version(&self, gvk: &Gvk) -> u64 {
        self.newest_versions().get(gvk).copied().unwrap_or(0)
    }

    fn record_version(&self, gvk: &Gvk, version: u64) {
        let mut newest = self.newest_versions();
        match newest.get_mut(gvk) {
            Some(known) => *known = version.max(*known),
            None => drop(newest.insert(gvk.clone(), version)),
        }
    }

    /// The cluster was restored from a backup: versions that were seen before no longer count.
    fn went_back(&self, gvk: &Gvk, version: u64) {
        warn!(kind = %gvk, version, "the versions of the cluster went back; everything is read again");
        self.newest_versions().insert(gvk.clone(), version);
    }

    fn refuses_watch_lists(&self, group: &str) -> bool {
        self.refuses_watch_lists.lock().unwrap_or_else(PoisonError::into_inner).contains(group)
    }

    fn note_refused_watch_list(&self, group: &str) {
        let mut groups = self.refuses_watch_lists.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert(group.to_owned());
    }

    /// Where to send the requests of a query.
    async fn endpoint(&self, query: &Query) -> Result<ResourceEndpoint, Blindness> {
        match self.discovery.find(&query.gvk).await {
            Ok(served) => ResourceEndpoint::new(self.client.clone(), &served, query),
            Err(Resolution::Blind(blindness)) => Err(blindness),
            Err(_) => {
                let message = format!("{} is not served by the cluster", query.gvk);
                Err(Blindness { reason: BlindReason::NotServed, message })
            }
        }
    }
}

impl ClusterSource {
    /// Connects with a context of the user's kubeconfig. The error names the context.
    pub(crate) async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
        Self::connect_with(kubeconfig, context, WatchLimits::default()).await
    }

    /// Connects with a kubeconfig file, or as the service account of the pod.
    pub(crate) async fn connect_in_cluster(
        kubeconfig: Option<&Path>,
        identity: ClusterIdentity,
    ) -> anyhow::Result<Self> {
        let (config, client_name) = match (kubeconfig, Config::incluster()) {
            (None, Ok(config)) => (config, "the service account".into()),
            _ => find_config(kubeconfig, None).await?,
        };
        Self::with_config(config, &client_name, WatchLimits::default(), identity).await
    }

    /// The cluster of an API server in memory.
    #[cfg(test)]
    pub(crate) async fn in_memory(client: Client) -> anyhow::Result<Self> {
        let url = http::Uri::from_static("https://in-memory/");
        Self::with_client(client, url, WatchLimits::default(), ClusterIdentity::Cluster, "anonymous".into())
            .await
    }

    /// Where the API server is.
    pub(crate) fn url(&self) -> &http::Uri {
        &self.url
    }

    /// The client that all requests go through.
    pub(crate) fn client(&self) -> Client {
        self.shared.client.clone()
    }

    /// Whether the last discovery was complete; `None`: no discovery was tried yet.
    pub(crate) fn knows_all_kinds(&self) -> Option<bool> {
        self.shared.discovery.is_healthy()
    }

    async fn connect_with(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        limits: WatchLimits,
    ) -> anyhow::Result<Self> {
        let (config, client_name) = find_config(kubeconfig, context).await?;
        Self::with_config(config, &client_name, limits, ClusterIdentity::Cluster).await
    }

    async fn with_config(
        config: Config,
        client_name: &str,
        limits: WatchLimits,
        identity: ClusterIdentity,
    ) -> anyhow::Result<Self> {
        let url = config.cluster_url.clone();
        let server = url.to_string();
        let unverified = config.accept_invalid_certs;
        let fallback_id = identity::fallback_id(&config);
        let client =
            Client::try_from(config).with_context(|| format!("set up the client of {client_name}"))?;
        let unreachable = || format!("reach the cluster at {server} ({client_name})");
        let version = time::timeout(REQUEST_TIMEOUT, client.apiserver_version()).await;
        version
            .context("no answer")
            .with_context(unreachable)?
            .map_err(innermost_cause)
            .with_context(unreachable)?;
        let source = Self::with_client(client, url, limits, identity, fallback_id);
        let source = source.await.with_context(unreachable)?;
        if unverified {
            warn!(
                server,
                "the certificate of the API server is not verified: insecure-skip-tls-verify is set"
            );
        }
        Ok(source)
    }

    /// The cluster that a client talks to. `fallback_id` is its id if the namespace kube-system may not be read.
    async fn with_client(
        client: Client,
        url: http::Uri,
        limits: WatchLimits,
        identity: ClusterIdentity,
        fallback_id: String,
    ) -> anyhow::Result<Self> {
        let id = identity.find(&client, fallback_id).await?;
        let shared = SourceState {
            discovery: Discovery::new(client.clone(), limits.absent_after),
            client,
            lists: Arc::new(Semaphore::new(MAX_LISTS)),
            refuses_watch_lists: Mutex::default(),
            newest_versions: Mutex::default(),
            limits,
        };
        Ok(Self { shared: Arc::new(shared), id, url })
    }

    /// Refreshes discovery when kinds come and go, for as long as it is awaited.
    pub(crate) async fn follow_kinds(self: Arc<Self>) {
        self.shared.discovery.clone().follow(self).await;
    }
}

/// A client for single requests, with a kubeconfig.
pub(crate) async fn client(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Client> {
    let (config, client_name) = find_config(kubeconfig, context).await?;
    Client::try_from(config).with_context(|| format!("make a client for {client_name}"))
}

/// The configuration of a context, and how messages name the context.
async fn find_config(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<(Config, String)> {
    let kubeconfig = match kubeconfig {
        Some(file) => Kubeconfig::read_from(file).with_context(|| format!("read {}", file.display()))?,
        None => Kubeconfig::read().context("read the kubeconfig; name one with --kubeconfig")?,
    };
    let context = context.map(Into::into).or_else(|| kubeconfig.current_context.clone());
    let name = context.clone().unwrap_or_else(|| "none".into());
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("find the cluster of context {name} in the kubeconfig"))?;
    Ok((config, format!("context {name}")))
}

/// Keeps only the innermost cause of an error: kube's errors repeat their causes in their own text.
pub(crate) fn innermost_cause(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{} ({})", status.message, status.code),
        other => match anyhow::Error::from(other).chain().last() {
            Some(cause) => anyhow!("{cause}"),
            None => anyhow!("unknown error"),
        },
    }
}

#[async_trait]
impl WatchSource for ClusterSource {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        match self.shared.discovery.find(gvk).await {
            Ok(served) => Resolution::Served(Resource {
                name: served.resource_name(&gvk.group),
                namespaced: served.namespaced,
            }),
            Err(resolution) => resolution,
        }
    }

    async fn permits(&self, query: &Query) -> bool {
        // Discovery failed: assume the list is permitted; the list itself reports the real error.
        let Ok(served) = self.shared.discovery.find(&query.gvk).await else { return true };
        let verbs = if query.follow { &["list", "watch"][..] } else { &["list"] };
        for verb in verbs {
            let attributes = ResourceAttributes {
                group: Some(query.gvk.group.clone()),
                version: Some(query.gvk.version.clone()),
                resource: Some(served.plural.clone()),
                namespace: query.namespace.as_deref().map(Into::into),
                name: query.name.clone(),
                verb: Some((*verb).into()),
                ..ResourceAttributes::default()
            };
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let reviews = Api::<SelfSubjectAccessReview>::all(self.shared.client.clone());
            let parameters = PostParams::default();
            let answer = time::timeout(REQUEST_TIMEOUT, reviews.create(&parameters, &review)).await;
            let denies =
                |review: SelfSubjectAccessReview| review.status.is_some_and(|status| !status.allowed);
            if answer.is_ok_and(|answer| answer.is_ok_and(denies)) {
                return false;
            }
        }
        true
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let work = follow::follow(self.shared.clone(), query, sender);
        // The work runs while the stream is read, and yields nothing itself.
        let work = stream::once(work).filter_map(|()| async { None });
        stream::select(receiver, work).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        self.shared.discovery.changes.subscribe()
    }

    fn is_complete(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
