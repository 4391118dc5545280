//! Schemas of the kinds that profiles collect, from the API server's OpenAPI documents, and what they show about profiles.
//!
//! Built-in and custom kinds are in the same documents, which every user may read. Without one there are no warnings: a schema
//! never decides whether a profile is used.

use std::time::Duration;

use http::Request;
use kollect_engine::extract::schema::{ObjectSchema, check};
use kollect_model::{
    SpecError,
    crd::{profile::KollectProfileSpec, shapes::Gvk},
};
use kube::Client;
use serde_json::Value;
use tokio::{task::spawn_blocking, time};

/// How long a document is waited for.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Mistakes in a profile that the schema of its kind shows; none if the schema cannot be had.
pub(crate) async fn warnings(client: &Client, spec: &KollectProfileSpec) -> Vec<SpecError> {
    let Ok(Some(document)) = time::timeout(TIMEOUT, document(client, &spec.target_gvk)).await else {
        return Vec::new();
    };
    let spec = spec.clone();
    // A document has megabytes, and an expression is parsed again.
    let checked = spawn_blocking(move || {
        ObjectSchema::of(&document, &spec.target_gvk).map(|schema| check(&spec, &schema)).unwrap_or_default()
    });
    checked.await.unwrap_or_default()
}

/// The OpenAPI document of the group and version of a kind.
async fn document(client: &Client, gvk: &Gvk) -> Option<String> {
    let index: Value = serde_json::from_str(&get(client, "/openapi/v3").await?).ok()?;
    let name = match gvk.group.as_str() {
        "" => format!("api/{}", gvk.version),
        group => format!("apis/{group}/{}", gvk.version),
    };
    get(client, index["paths"][name]["serverRelativeURL"].as_str()?).await
}

async fn get(client: &Client, path: &str) -> Option<String> {
    let request = Request::get(path).header("Accept", "application/json").body(Vec::new()).ok()?;
    client.request_text(request).await.ok()
}
