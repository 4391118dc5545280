//! Keeps the certificate of the webhooks valid and trusted, without cert-manager.
//!
//! ```text
//! Secret (certificate, key, authority) ──▶ caBundle of every webhook ──▶ this replica serves the certificate
//! ```
//!
//! Every replica does this, whether it leads or not. Replicas agree through the Secret: it is changed only if it is as it was
//! read (`resourceVersion`), and each replica follows what is stored. The order is what makes it safe:
//!
//! * The configuration is read before the Secret, and changed only if it is as it was read. A replica that has read an
//!   outdated Secret therefore cannot overwrite a newer `caBundle`.
//! * A new authority is added to `caBundle`; earlier ones stay there until a replica has seen it there for an hour.
//! * A replica serves another certificate only after every webhook trusts it, and after API servers have had time to
//!   notice ([`SETTLE`]). Until then it serves the one that it has. A replica that has none waits in the same way, unless it
//!   is the first one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret},
};
use kollect_engine::clock;
use kollect_model::backoff::Backoff;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{self, Instant};
use tracing::{info, warn};

use super::{
    super::serve::ServedCertificate,
    certificate::{Authorities, WebhookCertificate},
};
use crate::{
    cluster::innermost_cause,
    error_chain::{LastProblem, chain_text},
    operator::health::Health,
    resolve::WEBHOOK_CERTIFICATE_TYPE,
};

/// The field manager of the certificate and of `caBundle`.
const MANAGER: &str = "kollect-webhook-certificate";
/// The field manager of an empty Secret. It owns no data, so applying it again removes none.
const EMPTY_MANAGER: &str = "kollect-webhook-secret";

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often Secret and configuration are read while nothing changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How long API servers may take to notice a changed configuration.
const SETTLE: Duration = Duration::from_secs(30);
/// How long earlier authorities stay trusted after this process has seen the new one in the configuration. Other replicas
/// change to the new certificate within a minute or two.
const OVERLAP: Duration = Duration::from_hours(1);
/// Attempts in a row while other replicas write.
const ATTEMPTS: u32 = 10;

/// Names of other Services that a certificate keeps.
const MAX_OTHER_NAMES: usize = 3;

/// Objects that the certificate is kept in and used by.
pub(super) struct RotationNames {
    /// Secret in the operator's namespace.
    pub(super) secret: String,
    /// ValidatingWebhookConfiguration.
    pub(super) configuration: String,
    /// Service that API servers call, in the operator's namespace.
    pub(super) service: String,
}

/// Makes, renews and publishes the certificate of one replica.
pub(super) struct CertificateRotation {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    names: RotationNames,
    /// The name that API servers verify.
    dns_name: String,
    served: Arc<ServedCertificate>,
    health: Health,
    /// The certificate that is served.
    current: Option<WebhookCertificate>,
    /// A certificate that is going to be served, and since when all webhooks trust it.
    next: Option<(WebhookCertificate, Instant)>,
    /// The stored certificate, and since when this process knows that all webhooks trust it.
    published: Option<(WebhookCertificate, Instant)>,
}

/// The result of one attempt.
enum SyncResult {
    /// Secret, configuration and server agree, except for a change that is due after this time.
    Done(Duration),
    /// Another replica has written first.
    Conflict,
}

impl CertificateRotation {
    pub(super) fn new(
        client: Client,
        names: RotationNames,
        served: Arc<ServedCertificate>,
        health: Health,
    ) -> Self {
        let dns_name = format!("{}.{}.svc", names.service, client.default_namespace());
        Self {
            secrets: Api::default_namespaced(client.clone()),
            configurations: Api::all(client),
            names,
            dns_name,
            served,
            health,
            current: None,
            next: None,
            published: None,
        }
    }

    /// Never ends.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_secs(1), CHECK_INTERVAL);
        let mut problem = LastProblem::default();
        loop {
            let pause = match self.sync().await {
                Ok(pause) => {
                    backoff.reset();
                    if problem.clear() {
                        info!("the certificate of the webhooks is kept again");
                    }
                    pause
                }
                Err(error) => {
                    let error = chain_text(error.as_ref());
                    self.health.record_webhook_problem(&error);
                    if problem.replace(&error) {
                        warn!(error, "cannot keep the certificate of the webhooks; trying again");
                    }
                    backoff.next(fastrand::f64())
                }
            };
            time::sleep(pause).await;
        }
    }

    /// Returns when to look again.
    async fn sync(&mut self) -> anyhow::Result<Duration> {
        for _ in 0..ATTEMPTS {
            if let SyncResult::Done(pause) = self.attempt().await? {
                return Ok(pause);
            }
        }
        bail!("Secret {} or its webhooks were changed by others {ATTEMPTS} times in a row", self.names.secret)
    }

    async fn attempt(&mut self) -> anyhow::Result<SyncResult> {
        let configuration = self.read_configuration().await?;
        let webhooks = configuration.webhooks.unwrap_or_default();
        let bundles: Vec<&[u8]> = webhooks
            .iter()
            .map(|webhook| webhook.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0))
            .collect();
        let trusted = Authorities::of(bundles.iter().copied());
        let Some(certificate) = self.store().await? else { return Ok(SyncResult::Conflict) };
        let bundle = match &self.published {
            Some((published, since)) if *published == certificate && since.elapsed() >= OVERLAP => {
                certificate.bundle(&Authorities::default())
            }
            _ => certificate.bundle(&trusted),
        };
        if bundles.iter().any(|found| *found != bundle.as_bytes()) {
            let names = webhooks.iter().map(|webhook| webhook.name.as_str());
            if !self.publish(names, &bundle, configuration.metadata.resource_version).await? {
                return Ok(SyncResult::Conflict);
            }
        }
        if self.published.as_ref().is_none_or(|(published, _)| *published != certificate) {
            self.published = Some((certificate.clone(), Instant::now()));
        }
        let pause = self.serve(certificate, &bundle, &trusted)?;
        if self.current.is_some() {
            self.health.record_webhooks_served();
        }
        Ok(SyncResult::Done(pause))
    }

    async fn read_configuration(&self) -> anyhow::Result<ValidatingWebhookConfiguration> {
        let name = &self.names.configuration;
        let found = answer(self.configurations.get_opt(name)).await;
        let found = found.with_context(|| format!("read ValidatingWebhookConfiguration {name}"))?;
        found.ok_or_else(|| {
            anyhow!(
                "there is no ValidatingWebhookConfiguration {name}: install it, name another one with \
                 --webhook-configuration, or set --validating-webhooks-enabled=false"
            )
        })
    }

    /// The certificate that all replicas use from now on; stored first if it is new. `None`: another replica has written
    /// the Secret.
    async fn store(&self) -> anyhow::Result<Option<WebhookCertificate>> {
        let secret = self.read_secret().await?;
        let (name, now) = (&self.dns_name, clock::now());
        let stored = secret.data.as_ref().and_then(WebhookCertificate::of_secret);
        if stored.as_ref().is_some_and(|stored| stored.is_good_for(name, now)) {
            return Ok(stored);
        }
        let names = certificate_names(name, stored.as_ref(), now);
        let new = WebhookCertificate::make(&names, now).context("make a certificate")?;
        if !new.is_good_for(name, now) {
            bail!("{name} is no name that a certificate can have: correct --webhook-service");
        }
        let manifest = json!({
            "apiVersion": "v1", "kind": "Secret", "type": WEBHOOK_CERTIFICATE_TYPE, "data": new.secret_data(),
            "metadata": { "name": self.names.secret, "resourceVersion": secret.metadata.resource_version },
        });
        let stored = apply(&self.secrets, &self.names.secret, MANAGER, &manifest).await;
        let stored = stored.with_context(|| format!("write Secret {}", self.names.secret))?;
        if stored {
            info!(secret = self.names.secret, name, "new certificate of the webhooks");
        }
        Ok(stored.then_some(new))
    }

    /// The Secret; an empty one is created if there is none.
    async fn read_secret(&self) -> anyhow::Result<Secret> {
        let name = &self.names.secret;
        let read = || async {
            let found = answer(self.secrets.get_opt(name)).await;
            found.with_context(|| format!("read Secret {name}"))
        };
        let found = match read().await? {
            Some(secret) => Some(secret),
            None => {
                // Server-side apply: the right to create can be limited to this name.
                let manifest = json!({
                    "apiVersion": "v1", "kind": "Secret", "type": WEBHOOK_CERTIFICATE_TYPE, "metadata": { "name": name },
                });
                let created = apply(&self.secrets, name, EMPTY_MANAGER, &manifest).await;
                created.with_context(|| format!("create Secret {name}"))?;
                read().await?
            }
        };
        let secret = found.ok_or_else(|| anyhow!("Secret {name} was deleted as soon as it was created"))?;
        match secret.type_.as_deref() {
            // Another Secret is not overwritten.
            Some(WEBHOOK_CERTIFICATE_TYPE) => Ok(secret),
            other => bail!(
                "Secret {name} has the type {}, so it was not made for this: remove it, or name another one with \
                 --webhook-cert-secret",
                other.unwrap_or("Opaque")
            ),
        }
    }

    /// Puts the authorities into every webhook of the configuration. Returns whether it was as it was read.
    async fn publish<'n>(
        &self,
        webhooks: impl Iterator<Item = &'n str>,
        bundle: &str,
        version: Option<String>,
    ) -> anyhow::Result<bool> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let webhooks = webhooks.map(|name| json!({ "name": name, "clientConfig": { "caBundle": bundle } }));
        let name = &self.names.configuration;
        let manifest = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name, "resourceVersion": version }, "webhooks": webhooks.collect::<Vec<_>>(),
        });
        let applied = apply(&self.configurations, name, MANAGER, &manifest).await;
        let applied = applied.with_context(|| format!("write ValidatingWebhookConfiguration {name}"))?;
        if applied {
            info!(configuration = name, "webhooks trust the certificate of the Secret");
        }
        Ok(applied)
    }

    /// Serves a certificate that all webhooks trust, which trust `bundle` now and trusted `before` until now. Waits for
    /// [`SETTLE`] if API servers that have not noticed yet would refuse it, unless they refuse what is served now as well.
    /// Returns when to look again.
    fn serve(
        &mut self,
        certificate: WebhookCertificate,
        bundle: &str,
        before: &Authorities,
    ) -> anyhow::Result<Duration> {
        if self.current.as_ref() == Some(&certificate) {
            self.next = None;
            return Ok(jittered(CHECK_INTERVAL));
        }
        let (name, now) = (&self.dns_name, clock::now());
        let must_wait = match &self.current {
            Some(current) => current.is_trusted_by(bundle, name, now),
            // The first replica of all has no API server that trusts another certificate. Several authorities: another
            // replica may have added this one just now.
            None => match before.count() {
                0 => false,
                1 => !before.accept(&certificate, name, now),
                _ => true,
            },
        };
        let since = match &self.next {
            Some((next, since)) if *next == certificate => Some(*since),
            _ => must_wait.then(Instant::now),
        };
        let remaining = since.map_or(Duration::ZERO, |since| SETTLE.saturating_sub(since.elapsed()));
        if let Some(since) = since.filter(|_| !remaining.is_zero()) {
            self.health.record_webhook_problem("API servers are given time to trust the new certificate");
            self.next = Some((certificate, since));
            return Ok(remaining);
        }
        self.served.replace(certificate.certified_key()?);
        info!(name = self.dns_name, "webhooks are served with the certificate of the Secret");
        self.next = None;
        self.current = Some(certificate);
        Ok(jittered(CHECK_INTERVAL))
    }
}

/// Names of a new certificate. While replicas with another Service name are running, which also look at the Secret, the
/// certificate must suit them too: it keeps the names of the one that it replaces early.
fn certificate_names(own: &str, stored: Option<&WebhookCertificate>, now: SystemTime) -> Vec<String> {
    let others =
        stored.filter(|stored| stored.names().first().is_some_and(|name| stored.is_good_for(name, now)));
    let others = others.into_iter().flat_map(WebhookCertificate::names).filter(|name| *name != own);
    [own.to_owned()].into_iter().chain(others.take(MAX_OTHER_NAMES).cloned()).collect()
}

/// Replicas that started together must not send requests together.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    time::timeout(REQUEST_TIMEOUT, request).await.context("no answer")?.map_err(innermost_cause)
}

/// Server-side apply, with force: `caBundle` and the certificate belong to the operator. Returns false if the object was
/// not at the `resourceVersion` of the manifest.
async fn apply<K: Clone + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    manifest: &Value,
) -> anyhow::Result<bool> {
    let params = PatchParams::apply(manager).force();
    let applied = time::timeout(REQUEST_TIMEOUT, api.patch(name, &params, &Patch::Apply(manifest))).await;
    match applied.context("no answer")? {
        Ok(_) => Ok(true),
        // An object that was deleted after it was read is created again.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(innermost_cause(error)),
    }
}

#[cfg(test)]
mod tests;
