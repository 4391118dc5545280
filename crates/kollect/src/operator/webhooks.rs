//! Validating admission: refuses objects that cannot work, before they are stored.
//!
//! The checks are those that run later: schema, compiler, [`crate::resolve`] and the plans of sinks. An object that is
//! wrong in itself or beyond its scopes is refused. A reference to an object that does not exist yet, such as a profile
//! or a sink, is a warning, because objects are applied in any order. Every replica answers.

mod advice;
mod certificate;
mod check;
mod review;
mod rotation;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Router,
    body::Bytes,
    response::{IntoResponse, Response},
    routing::post,
};
use check::ObjectCheck;
use http::{StatusCode, Uri, Version, header::CONTENT_TYPE};
use kollect_engine::tasks::{Task, TaskKind, Tasks};
use kollect_model::crd::{GROUP, VERSION};
use kube::Client;
use review::{ObjectReview, ReviewResponse, ReviewResult};
use rotation::{CertificateRotation, RotationNames};
use tokio::{task::spawn_blocking, time};
use tracing::{debug, error, info, warn};

use super::{
    health::Health,
    objects::ObjectWatches,
    serve::{HttpServer, Limits, ListenEndpoint, ServedCertificate, ServerNotice, ServerTls},
};
use crate::{
    object_schemas::ObjectSchemas,
    resolve::OperatorPolicy,
    schema::{self, KindSchema},
};

/// The default path of certificates, as in controller-runtime.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// How long a review waits for the first lists after a start. The API server waits for 10 seconds.
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(5);

/// How webhooks are served.
#[derive(clap::Args)]
#[command(next_help_heading = "Admission webhooks")]
pub(crate) struct WebhookFlags {
    /// Serve validating admission webhooks. Never in tenant mode.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    validating_webhooks_enabled: bool,
    /// Where webhooks are served.
    #[arg(long, value_name = "ADDRESS", default_value = ":9443")]
    webhook_bind_address: String,
    /// Directory of the certificate; read again when it changes.
    #[arg(long, value_name = "DIR", default_value = CERTIFICATES)]
    webhook_cert_path: String,
    /// File of the certificate.
    #[arg(long, value_name = "FILE", default_value = "tls.crt")]
    webhook_cert_name: String,
    /// File of its key.
    #[arg(long, value_name = "FILE", default_value = "tls.key")]
    webhook_cert_key: String,
    /// Instead of files: a Secret of the operator's namespace in which the operator keeps a certificate that it makes and
    /// renews itself.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    webhook_cert_secret: String,
    /// With --webhook-cert-secret: the Service that API servers call, in the operator's namespace.
    #[arg(long, value_name = "NAME", default_value = "kollect-webhook-service")]
    webhook_service: String,
    /// With --webhook-cert-secret: the ValidatingWebhookConfiguration that must trust the certificate.
    #[arg(long, value_name = "NAME", default_value = "kollect-validating-webhook-configuration")]
    webhook_configuration: String,
}

/// Running webhooks.
pub(crate) struct Webhooks {
    pub(crate) server: HttpServer,
    /// Keeps the certificate, if the operator makes it itself.
    _rotation: Option<Task<Option<()>>>,
}

impl WebhookFlags {
    fn tls(&self) -> ServerTls {
        let dir = if self.webhook_cert_path.is_empty() { CERTIFICATES } else { &self.webhook_cert_path };
        ServerTls::Files {
            dir: PathBuf::from(dir),
            cert: self.webhook_cert_name.clone(),
            key: self.webhook_cert_key.clone(),
        }
    }

    fn is_served(&self, tenant_mode: bool) -> bool {
        self.validating_webhooks_enabled && !tenant_mode
    }

    /// Checks the certificate before anything is started.
    pub(crate) fn check(&self, tenant_mode: bool) -> anyhow::Result<()> {
        if !self.is_served(tenant_mode) || self.makes_certificate() {
            return Ok(());
        }
        self.tls().check().context(
            "admission webhooks need a certificate (--webhook-cert-secret, or --webhook-cert-path with \
             --webhook-cert-name and --webhook-cert-key) or --validating-webhooks-enabled=false",
        )
    }

    fn makes_certificate(&self) -> bool {
        !self.webhook_cert_secret.is_empty()
    }

    /// Starts to keep a certificate in the Secret of the flags, for a server.
    fn keep_certificate(
        &self,
        client: Client,
        served: Arc<ServedCertificate>,
        health: &Health,
        tasks: &Tasks,
    ) -> Task<Option<()>> {
        health.expect_webhooks();
        let names = RotationNames {
            secret: self.webhook_cert_secret.clone(),
            configuration: self.webhook_configuration.clone(),
            service: self.webhook_service.clone(),
        };
        let rotation = CertificateRotation::new(client, names, served, health.clone());
        tasks.core(TaskKind::Certificate.into(), rotation.run())
    }

    /// Serves webhooks, unless the flags disable them.
    pub(crate) async fn serve(
        &self,
        admission: Admission,
        tenant_mode: bool,
        http2: bool,
        (client, health): (Client, &Health),
        tasks: &Tasks,
    ) -> anyhow::Result<Option<Webhooks>> {
        if !self.is_served(tenant_mode) {
            info!("no admission webhooks: statuses show what is wrong with objects");
            return Ok(None);
        }
        let provided = self.makes_certificate().then(Arc::<ServedCertificate>::default);
        let endpoint = ListenEndpoint {
            flag: "--webhook-bind-address",
            address: self.webhook_bind_address.clone(),
            tls: provided.clone().map_or_else(|| self.tls(), ServerTls::Provided),
            http2,
            limits: Limits::default(),
        };
        let report = Arc::new(|notice: ServerNotice| match notice {
            ServerNotice::CertificateReplaced(_) => info!(%notice, "the server of the webhooks reports"),
            _ => warn!(%notice, "the server of the webhooks reports"),
        });
        let server = HttpServer::start(tasks, endpoint, admission.router(), report).await?;
        info!(address = %server.address, "admission webhooks are served");
        let rotation = provided.map(|served| self.keep_certificate(client, served, health, tasks));
        Ok(Some(Webhooks { server, _rotation: rotation }))
    }
}

/// What reviews depend on.
#[derive(Clone)]
pub(crate) struct Admission {
    objects: Arc<ObjectWatches>,
    operator_policy: Arc<OperatorPolicy>,
    /// Namespaces that are watched; `None`: all.
    within: Option<Arc<BTreeSet<Arc<str>>>>,
    /// How long a review waits for the first lists.
    first_lists_timeout: Duration,
    /// Schemas of kinds; tests have none.
    schemas: Option<ObjectSchemas>,
}

impl Admission {
    pub(crate) fn new(
        objects: Arc<ObjectWatches>,
        operator_policy: Arc<OperatorPolicy>,
        within: Option<BTreeSet<Arc<str>>>,
        schemas: Option<ObjectSchemas>,
    ) -> Self {
        Self {
            objects,
            schemas,
            operator_policy,
            within: within.map(Arc::new),
            first_lists_timeout: FIRST_LISTS_TIMEOUT,
        }
    }

    /// One path for each kind.
    fn router(&self) -> Router {
        let unknown = |uri: Uri| async move {
            let kinds: Vec<String> = schema::kinds().keys().map(|kind| path(kind)).collect();
            text_response(
                StatusCode::BAD_REQUEST,
                format!("{} is unknown; known: {}", uri.path(), kinds.join(", ")),
            )
        };
        schema::kinds().values().fold(Router::new().fallback(unknown), |router, kind| {
            let admission = self.clone();
            let answer = move |version: Version, body: Bytes| async move {
                debug!(kind = kind.name, ?version, "review received");
                admission.answer(kind, &body).await
            };
            router.route(&path(&kind.name), post(answer))
        })
    }

    /// Answers one review: with a result for the object, or with an error if the review is malformed.
    async fn answer(&self, kind: &'static KindSchema, body: &[u8]) -> Response {
        let review = match ObjectReview::read(body, kind) {
            Ok(review) => review,
            Err(problem) => return text_response(StatusCode::BAD_REQUEST, problem),
        };
        if review.is_exempt() {
            return json_response(&review.respond(ReviewResult::default()));
        }
        // Without the scopes everything would be allowed.
        if time::timeout(self.first_lists_timeout, self.objects.wait_until_known()).await.is_err() {
            return text_response(
                StatusCode::SERVICE_UNAVAILABLE,
                "objects are being listed; try again".into(),
            );
        }
        let cache = self.objects.cache();
        let (operator_policy, within) = (self.operator_policy.clone(), self.within.clone());
        let schema_warnings = self.schema_warnings(&review).await;
        run_blocking(kind, move || {
            let mut result =
                ObjectCheck::new(kind, &cache, &operator_policy, within.as_deref()).check(&review);
            if result.problems.is_empty() {
                result.warnings.extend(schema_warnings);
            }
            let ReviewResult { problems, warnings } = &result;
            // The content of the object is not logged.
            debug!(kind = kind.name, problems = problems.len(), warnings = warnings.len(), "reviewed");
            review.respond(result)
        })
        .await
    }
}

impl Admission {
    /// What the schema of its kind shows about a profile.
    async fn schema_warnings(&self, review: &ObjectReview) -> Vec<String> {
        let Some(schemas) = self.schemas.as_ref().filter(|_| review.object["kind"] == "KollectProfile")
        else {
            return Vec::new();
        };
        let Ok(spec) = serde_json::from_value(review.object["spec"].clone()) else { return Vec::new() };
        let warnings = schemas.warnings(&spec).await.unwrap_or_default();
        warnings.iter().map(ToString::to_string).collect()
    }
}

/// Runs a review on a blocking thread: compiling may take long, and a panic must not affect other requests.
async fn run_blocking(
    kind: &KindSchema,
    check: impl FnOnce() -> ReviewResponse + Send + 'static,
) -> Response {
    match spawn_blocking(check).await {
        Ok(review) => json_response(&review),
        Err(_) => {
            error!(kind = kind.name, "a review crashed; this is a bug");
            text_response(StatusCode::INTERNAL_SERVER_ERROR, "the review crashed; this is a bug".into())
        }
    }
}

/// `/validate-kollect-dev-v1alpha1-kollecttarget`
fn path(kind: &str) -> String {
    format!("/validate-{}-{VERSION}-{}", GROUP.replace('.', "-"), kind.to_lowercase())
}

fn text_response(status: StatusCode, problem: String) -> Response {
    (status, problem + "\n").into_response()
}

fn json_response(review: &ReviewResponse) -> Response {
    match serde_json::to_vec(review) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests;
