//! Objects of a live cluster, read once: discovery, then pages of a list.

use std::path::Path;

use anyhow::{Context, anyhow};
use futures::{SinkExt, StreamExt, channel::mpsc, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::Namespace;
use kollect_engine::watch::{BlindReason, Blindness, Event, Object, Query, Scope, WatchSource};
use kollect_model::crd::shapes::{Gvk, is_namespace_name};
use kube::{
    Api, Client, Config,
    api::{ApiResource, GroupVersionKind, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
    discovery,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

/// Objects per page: what kubectl asks for.
const PAGE: u32 = 500;

/// A cluster that has answered.
pub(crate) struct ClusterSource {
    client: Client,
    /// What tells this cluster from all others.
    pub(crate) id: String,
}

impl ClusterSource {
    /// Connects with a context of the user's kubeconfig. The error names the context.
    pub(crate) async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Self> {
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
        let server = config.cluster_url.to_string();
        let anonymous = anonymous_identity(&config);
        let client =
            Client::try_from(config).with_context(|| format!("set up the client of context {name}"))?;
        let unreachable = || format!("reach the cluster at {server} (context {name})");
        client.apiserver_version().await.map_err(plain).with_context(unreachable)?;
        let id = match Api::<Namespace>::all(client.clone()).get("kube-system").await {
            // Every cluster has this namespace, and nobody can recreate it.
            Ok(namespace) => namespace.metadata.uid.unwrap_or(anonymous),
            Err(kube::Error::Api(status)) if status.code == 403 => anonymous,
            Err(error) => return Err(plain(error)).with_context(unreachable),
        };
        Ok(Self { client, id })
    }

    async fn list(&self, query: &Query, events: &mut mpsc::Sender<Event>) -> Result<bool, Blindness> {
        let gvk = &query.gvk;
        let kind = GroupVersionKind::gvk(&gvk.group, &gvk.version, &gvk.kind);
        let (resource, capabilities) =
            discovery::pinned_kind(&self.client, &kind).await.map_err(|error| not_served(gvk, error))?;
        if !capabilities.supports_operation(discovery::verbs::LIST) {
            let message = format!("{gvk} cannot be listed: the API server offers no list verb for it");
            return Err(Blindness { namespace: None, reason: BlindReason::NotServed, message });
        }
        let namespaced = capabilities.scope == discovery::Scope::Namespaced;
        match &query.scope {
            Scope::Namespaces(names) if namespaced => {
                for name in names {
                    if let Err(blindness) = self.list_pages(&resource, Some(name), query, events).await {
                        send(events, Event::Blind(blindness)).await;
                    }
                }
            }
            _ => self.list_pages(&resource, None, query, events).await?,
        }
        Ok(namespaced)
    }

    /// One page in flight: memory does not grow with the list.
    async fn list_pages(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        query: &Query,
        events: &mut mpsc::Sender<Event>,
    ) -> Result<(), Blindness> {
        let blind = |error| blindness(resource, namespace, error);
        let mut params = ListParams {
            limit: Some(PAGE),
            label_selector: query.label_selector.clone(),
            field_selector: field_selector(query),
            ..ListParams::default()
        };
        let Some(url) = url_path(resource, namespace) else {
            let message = format!("{} is not the name of a namespace", namespace.unwrap_or_default());
            return Err(Blindness {
                namespace: namespace.map(Into::into),
                reason: BlindReason::Failed,
                message,
            });
        };
        loop {
            let request =
                Request::new(&url).list(&params).map_err(kube::Error::BuildRequest).map_err(blind)?;
            let page: Page = self.client.request(request).await.map_err(blind)?;
            for raw in page.items {
                let object =
                    Object::parse(raw, &query.gvk).map_err(kube::Error::SerdeError).map_err(blind)?;
                send(events, Event::Apply(object)).await;
            }
            match page.metadata.continue_token {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return Ok(()),
            }
        }
    }
}

/// One page of a list, with the items as they were sent.
#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// Tells clusters apart for those who may not see kube-system: two clusters may have one address, but
/// hardly one certificate authority.
fn anonymous_identity(config: &Config) -> String {
    let authority = config.root_cert.iter().flatten().fold(Xxh3::new(), |mut hash, certificate| {
        hash.update(certificate);
        hash
    });
    format!("{} {:032x}", config.cluster_url, authority.digest128())
}

/// Field selectors are terms that must all hold.
fn field_selector(query: &Query) -> Option<String> {
    let name = query.name.as_ref().map(|name| format!("metadata.name={name}"));
    let terms: Vec<String> = name.into_iter().chain(query.field_selector.clone()).collect();
    (!terms.is_empty()).then(|| terms.join(","))
}

fn url_path(resource: &ApiResource, namespace: Option<&str>) -> Option<String> {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    let namespace = match namespace {
        // A name from a manifest must not become another path.
        Some(name) if !is_namespace_name(name) => return None,
        Some(name) => format!("namespaces/{name}/"),
        None => String::new(),
    };
    Some(format!("/{root}/{}/{namespace}{}", resource.api_version, resource.plural))
}

fn not_served(gvk: &Gvk, error: kube::Error) -> Blindness {
    let missing = match &error {
        kube::Error::Api(status) => status.code == 404,
        kube::Error::Discovery(_) => true,
        _ => false,
    };
    let (reason, message) = if missing {
        (BlindReason::NotServed, format!("{gvk} is not served by the cluster: check group, version and kind"))
    } else {
        (BlindReason::Failed, format!("discover {gvk}: {:#}", plain(error)))
    };
    Blindness { namespace: None, reason, message }
}

fn blindness(resource: &ApiResource, namespace: Option<&str>, error: kube::Error) -> Blindness {
    let name = match &*resource.group {
        "" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    };
    let place = match namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "in the whole cluster".into(),
    };
    let reason = match &error {
        kube::Error::Api(status) if status.code == 403 => BlindReason::Forbidden,
        _ => BlindReason::Failed,
    };
    let message = match reason {
        BlindReason::Forbidden => format!("list {name} {place}: forbidden; grant the verb list on it"),
        _ => format!("list {name} {place}: {:#}", plain(error)),
    };
    Blindness { namespace: namespace.map(Into::into), reason, message }
}

/// kube's errors repeat their causes in their own text; the innermost says what happened.
fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{} ({})", status.message, status.code),
        other => match anyhow::Error::from(other).chain().last() {
            Some(cause) => anyhow!("{cause}"),
            None => anyhow!("unknown error"),
        },
    }
}

async fn send(events: &mut mpsc::Sender<Event>, event: Event) {
    // The receiver is gone only when nobody wants to know any more.
    drop(events.send(event).await);
}

impl WatchSource for ClusterSource {
    fn watch(&self, query: Query) -> BoxStream<'_, Event> {
        let (mut sender, receiver) = mpsc::channel(64);
        let work = async move {
            let last = match self.list(&query, &mut sender).await {
                Ok(namespaced) => Event::Synced { namespaced },
                Err(blindness) => Event::Blind(blindness),
            };
            send(&mut sender, last).await;
        };
        // The work runs while the stream is read, and yields nothing itself.
        let work = stream::once(work).filter_map(|()| async { None });
        stream::select(receiver, work).boxed()
    }

    fn is_complete(&self) -> bool {
        true
    }
}
