//! Deployments as they are found in clusters, many of them.

use std::{path::Path, time::Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use http::{Request, header::CONTENT_TYPE};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// Requests at the same time.
pub(crate) const WRITERS: usize = 32;
const NAMESPACES: usize = 100;
/// After how many objects progress is printed.
const PROGRESS_INTERVAL: usize = 10_000;

/// A client of the administrator.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    // The provider may already be installed; all providers are the same.
    rustls::crypto::ring::default_provider().install_default().ok();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Creates an object.
pub(crate) async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    client.request_text(request.body(object.to_string().into_bytes())?).await?;
    Ok(())
}

/// Changes an object. Returns what it is then.
pub(crate) async fn patch(client: &Client, path: &str, change: &Value) -> Result<String> {
    let request = Request::patch(path).header(CONTENT_TYPE, "application/merge-patch+json");
    Ok(client.request_text(request.body(change.to_string().into_bytes())?).await?)
}

/// The namespaces of the objects.
pub(crate) fn namespaces() -> impl Iterator<Item = String> {
    (0..NAMESPACES).map(namespace)
}

fn namespace(index: usize) -> String {
    format!("scale-{:02}", index % NAMESPACES)
}

/// The path of one of the objects.
pub(crate) fn path(index: usize) -> String {
    format!("{}/{}", collection(index), name(index))
}

fn collection(index: usize) -> String {
    format!("/apis/apps/v1/namespaces/{}/deployments", namespace(index))
}

fn name(index: usize) -> String {
    format!("web-{index:06}")
}

/// Creates the namespaces of the objects.
pub(crate) async fn create_namespaces(client: &Client) -> Result<()> {
    let created = stream::iter(namespaces()).map(|name| async move {
        let namespace = json!({ "metadata": { "name": name } });
        post(client, "/api/v1/namespaces", &namespace).await
    });
    created.buffer_unordered(WRITERS).try_collect().await
}

/// Creates that many objects. `on_progress` is called with the number of objects and of seconds so far.
pub(crate) async fn create(client: &Client, count: usize, on_progress: impl Fn(usize, f64)) -> Result<()> {
    let began = Instant::now();
    let created = stream::iter(0..count)
        .map(|index| async move { post(client, &collection(index), &deployment(index)).await });
    let mut created = created.buffer_unordered(WRITERS).enumerate();
    while let Some((done, outcome)) = created.next().await {
        outcome?;
        if (done + 1) % PROGRESS_INTERVAL == 0 || done + 1 == count {
            on_progress(done + 1, began.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// About 3.8 KB with the fields that the API server adds.
fn deployment(index: usize) -> Value {
    let name = name(index);
    let team = format!("team-{}", index % 40);
    let tier = ["web", "backend", "database", "batch"][index % 4];
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": {
                "team": team, "tier": tier,
                "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "scale",
            },
            "annotations": { "owner": format!("{team}@example.com") },
        },
        "spec": {
            "replicas": index % 7,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [container("main", index), container("proxy", index)] },
            },
        },
    })
}

fn container(name: &str, index: usize) -> Value {
    let env: Vec<Value> = (0..3)
        .map(|number| json!({ "name": format!("SETTING_{number}"), "value": format!("value-{index}-{number}") }))
        .collect();
    json!({
        "name": name,
        "image": format!("registry.example.com/scale/{name}:1.{}.{}", index % 20, index % 9),
        "env": env,
        "ports": [{ "containerPort": 8080 }, { "containerPort": 9090 }],
        "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
    })
}
