//! The id of a cluster. Sinks store it with the rows, so that one cluster does not overwrite the rows of another.

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, Config, api::PostParams};
use tokio::time;
use xxhash_rust::xxh3::Xxh3;

use super::{innermost_cause, request::REQUEST_TIMEOUT};

/// The ConfigMap whose UID identifies an operator that sees one namespace only.
const IDENTITY: &str = "kollect-identity";

/// Where the id comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterIdentity {
    /// The cluster itself.
    Cluster,
    /// The operator's own namespace: its Role permits nothing else.
    Namespace,
}

impl ClusterIdentity {
    pub(super) async fn find(self, client: &Client, fallback_id: String) -> anyhow::Result<String> {
        match self {
            Self::Cluster => cluster_id(client, fallback_id).await,
            Self::Namespace => namespace_id(client).await,
        }
    }
}

/// The UID of kube-system: every cluster has this namespace, and it cannot be recreated.
async fn cluster_id(client: &Client, fallback_id: String) -> anyhow::Result<String> {
    let namespaces = Api::<Namespace>::all(client.clone());
    match time::timeout(REQUEST_TIMEOUT, namespaces.get("kube-system")).await.context("no answer")? {
        Ok(namespace) => Ok(namespace.metadata.uid.unwrap_or(fallback_id)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(fallback_id),
        Err(error) => Err(innermost_cause(error)),
    }
}

/// The UID of the ConfigMap, created if missing. Operators that start at the same time use the one that was first.
async fn namespace_id(client: &Client) -> anyhow::Result<String> {
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    let map_name = || format!("ConfigMap {IDENTITY} in namespace {}", client.default_namespace());
    let read = || async {
        let found = time::timeout(REQUEST_TIMEOUT, maps.get_opt(IDENTITY)).await.context("no answer")?;
        found.map_err(innermost_cause).with_context(|| format!("read {}", map_name()))
    };
    let mut found = read().await?;
    if found.is_none() {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(IDENTITY.into());
        let parameters = PostParams::default();
        found = match time::timeout(REQUEST_TIMEOUT, maps.create(&parameters, &map))
            .await
            .context("no answer")?
        {
            Ok(map) => Some(map),
            Err(kube::Error::Api(status)) if status.code == 409 => read().await?,
            Err(error) => {
                return Err(innermost_cause(error)).with_context(|| format!("create {}", map_name()));
            }
        };
    }
    found.and_then(|map| map.metadata.uid).ok_or_else(|| anyhow!("{} has no UID", map_name()))
}

/// The id for clients that may not read kube-system: two clusters may share an address, but hardly a certificate
/// authority.
pub(super) fn fallback_id(config: &Config) -> String {
    let authority = config.root_cert.iter().flatten().fold(Xxh3::new(), |mut hash, certificate| {
        hash.update(certificate);
        hash
    });
    format!("{} {:032x}", config.cluster_url, authority.digest128())
}
