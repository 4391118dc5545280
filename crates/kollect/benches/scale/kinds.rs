//! Many kinds with one object each.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    manifests::{GROUP, kind},
    objects::post,
};

/// How long the API server may take to serve a new kind.
const TIMEOUT: Duration = Duration::from_mins(5);

/// Whether a request line asks for a watch of one of the kinds.
pub(crate) fn is_watch(request: &str) -> bool {
    request.contains(&format!("/apis/{GROUP}/")) && request.contains("watch=true")
}

/// Creates the kinds, and an object of each.
pub(crate) async fn create(client: &Client, count: usize) -> Result<()> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let created =
        stream::iter(0..count).map(|index| async move { post(client, path, &definition(index)).await });
    created.buffer_unordered(8).try_collect::<()>().await?;
    let deadline = Instant::now() + TIMEOUT;
    let created = stream::iter(0..count).map(|index| create_object(client, index, deadline));
    created.buffer_unordered(8).try_collect().await
}

/// Tries until the kind is served.
async fn create_object(client: &Client, index: usize, deadline: Instant) -> Result<()> {
    let kind = kind(index);
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": { "name": "only" }, "spec": { "size": index },
    });
    let path = format!("/apis/{GROUP}/v1/{}s", kind.to_lowercase());
    loop {
        match post(client, &path, &object).await {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(200)).await,
            outcome => return outcome,
        }
    }
}

fn definition(index: usize) -> Value {
    let kind = kind(index);
    let plural = format!("{}s", kind.to_lowercase());
    let schema = json!({
        "type": "object",
        "properties": { "spec": { "type": "object", "properties": { "size": { "type": "integer" } } } },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "names": { "kind": kind, "plural": plural },
            "scope": "Cluster",
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}
