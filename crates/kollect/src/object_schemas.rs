//! Schemas of the kinds that profiles collect, from the API server's OpenAPI documents, and what they show about profiles.
//!
//! Built-in and custom kinds are in the same documents, which every user may read. Without one there are no warnings: a schema
//! never decides whether a profile is used.

use std::{sync::Arc, time::Duration};

use http::Request;
use kollect_engine::extract::schema::{ObjectSchema, check};
use kollect_model::{
    SpecError,
    crd::{profile::KollectProfileSpec, shapes::Gvk},
};
use kube::Client;
use serde_json::Value;
use tokio::{sync::Mutex, task::spawn_blocking, time};

/// How long a document is waited for, with those that are fetched before it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// How many schemas are kept: a profile that is edited is checked at admission and for its status.
const MAX_KEPT: usize = 2;

/// A larger document is not read. That of apps/v1 has one megabyte.
const MAX_DOCUMENT: usize = 32 << 20;

/// Fetches schemas, one at a time.
#[derive(Clone)]
pub(crate) struct ObjectSchemas {
    client: Client,
    kept: Arc<Mutex<Vec<KeptSchema>>>,
}

/// A schema, and the address of its document, which changes with its content.
struct KeptSchema {
    address: String,
    gvk: Gvk,
    schema: Arc<ObjectSchema>,
}

impl ObjectSchemas {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, kept: Arc::default() }
    }

    /// Mistakes in a profile that the schema of its kind shows; `None` if the schema cannot be had.
    pub(crate) async fn warnings(&self, spec: &KollectProfileSpec) -> Option<Vec<SpecError>> {
        let schema = time::timeout(TIMEOUT, self.schema(&spec.target_gvk)).await.ok()??;
        let spec = spec.clone();
        // Expressions are parsed again.
        spawn_blocking(move || check(&spec, &schema)).await.ok()
    }

    async fn schema(&self, gvk: &Gvk) -> Option<Arc<ObjectSchema>> {
        let mut kept = self.kept.lock().await;
        let index: Value = serde_json::from_str(&self.get("/openapi/v3").await?).ok()?;
        let name = match gvk.group.as_str() {
            "" => format!("api/{}", gvk.version),
            group => format!("apis/{group}/{}", gvk.version),
        };
        let address = index["paths"][name]["serverRelativeURL"].as_str()?;
        if let Some(known) = kept.iter().find(|known| known.address == address && known.gvk == *gvk) {
            return Some(known.schema.clone());
        }
        let document = self.get(address).await?;
        let wanted = gvk.clone();
        let schema = spawn_blocking(move || ObjectSchema::of(&document, &wanted)).await.ok()??;
        let schema = Arc::new(schema);
        kept.truncate(MAX_KEPT - 1);
        kept.insert(0, KeptSchema { address: address.to_owned(), gvk: gvk.clone(), schema: schema.clone() });
        Some(schema)
    }

    async fn get(&self, path: &str) -> Option<String> {
        let request = Request::get(path).header("Accept", "application/json").body(Vec::new()).ok()?;
        self.client.request_text(request).await.ok().filter(|text| text.len() <= MAX_DOCUMENT)
    }
}
