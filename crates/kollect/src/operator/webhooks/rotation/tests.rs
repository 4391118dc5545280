//! Several replicas with one Secret, on an API server in memory that answers late, in simulated time. Whatever happens
//! to the Secret and to the configuration, no API server is ever presented a certificate that it does not trust.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kollect_engine::tasks::{Task, TaskKind, Tasks};
use kube::client::Body;
use rustls::pki_types::CertificateDer;
use tower::service_fn;

use super::*;
use crate::operator::webhooks::certificate::verify;

const NAMESPACE: &str = "kollect-system";
const SERVICE: &str = "kollect-webhook-service";
/// How long the caches of API servers may be behind. Must be less than [`SETTLE`].
const CACHE_LAG: Duration = Duration::from_secs(20);

/// How often replicas are checked. Must be less than [`CACHE_LAG`], so that no bundle is missed.
const CHECK_SECONDS: u64 = 5;

/// The Secret and the configuration, and which bundles API servers have known.
struct CertificateApiState {
    version: u64,
    secret: Option<Value>,
    configuration: Option<Value>,
    /// Every bundle, and since when it was in the configuration.
    bundles: Vec<(Instant, String)>,
    /// How many certificates were stored.
    writes: usize,
    random: fastrand::Rng,
}

#[derive(Clone)]
struct CertificateApi(Arc<Mutex<CertificateApiState>>);

impl CertificateApi {
    fn new(seed: u64) -> Self {
        let webhooks = ["a", "b"].map(|name| json!({
            "name": format!("{name}.kb.io"), "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {},
        }));
        let api = Self(Arc::new(Mutex::new(CertificateApiState {
            version: 0,
            secret: None,
            configuration: None,
            bundles: Vec::new(),
            writes: 0,
            random: fastrand::Rng::with_seed(seed),
        })));
        api.put_configuration(json!({ "metadata": { "name": "config" }, "webhooks": webhooks }));
        api
    }

    fn state(&self) -> MutexGuard<'_, CertificateApiState> {
        self.0.lock().unwrap()
    }

    fn random(&self, range: std::ops::Range<u64>) -> u64 {
        self.state().random.u64(range)
    }

    fn put_configuration(&self, mut configuration: Value) {
        let mut state = self.state();
        state.version += 1;
        configuration["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let bundle: ByteString =
            serde_json::from_value(configuration["webhooks"][0]["clientConfig"]["caBundle"].clone())
                .unwrap_or_default();
        state.bundles.push((Instant::now(), String::from_utf8(bundle.0).unwrap()));
        state.configuration = Some(configuration);
    }

    /// Replaces the configuration as `helm upgrade --force` does.
    fn empty_bundles(&self) {
        let mut configuration = self.state().configuration.clone().unwrap();
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"] = json!({});
        }
        self.put_configuration(configuration);
    }

    fn put_secret(&self, data: &BTreeMap<String, ByteString>) {
        let mut state = self.state();
        state.version += 1;
        let version = state.version.to_string();
        state.secret = Some(json!({
            "metadata": { "name": "cert", "resourceVersion": version }, "type": WEBHOOK_CERTIFICATE_TYPE, "data": data,
        }));
    }

    fn answer(&self, method: &Method, path: &str, manifest: &Value) -> (u16, Value) {
        let is_secret = path.contains("/secrets/");
        let found = {
            let state = self.state();
            if is_secret { state.secret.clone() } else { state.configuration.clone() }
        };
        if method == Method::GET {
            return found.map_or((404, Value::Null), |found| (200, found));
        }
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        match found {
            Some(found)
                if manifest["metadata"].get("resourceVersion").is_some_and(|v| *v != version(&found)) =>
            {
                return (409, Value::Null);
            }
            // An empty Secret is applied to one that exists: nothing changes.
            Some(found) if is_secret && manifest.get("data").is_none() => return (200, found),
            Some(mut found) if !is_secret => {
                for (webhook, applied) in found["webhooks"]
                    .as_array_mut()
                    .unwrap()
                    .iter_mut()
                    .zip(manifest["webhooks"].as_array().unwrap())
                {
                    assert_eq!(webhook["name"], applied["name"]);
                    webhook["clientConfig"]["caBundle"] = applied["clientConfig"]["caBundle"].clone();
                }
                self.put_configuration(found);
            }
            _ => {
                let data: BTreeMap<String, ByteString> =
                    serde_json::from_value(manifest.get("data").cloned().unwrap_or(json!({}))).unwrap();
                self.state().writes += usize::from(!data.is_empty());
                self.put_secret(&data);
            }
        }
        (
            200,
            if is_secret { self.state().secret.clone() } else { self.state().configuration.clone() }.unwrap(),
        )
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let manifest = serde_json::from_slice(&body).unwrap_or_default();
                // Requests and answers take their time, so those of several replicas mix.
                time::sleep(Duration::from_millis(api.random(0..3000))).await;
                let (code, object) = api.answer(&parts.method, parts.uri.path(), &manifest);
                time::sleep(Duration::from_millis(api.random(0..3000))).await;
                let answer = match code {
                    200 => object,
                    _ => {
                        let reason = if code == 404 { "NotFound" } else { "Conflict" };
                        json!({ "kind": "Status", "status": "Failure", "code": code, "message": reason, "reason": reason })
                    }
                };
                Ok::<_, Infallible>(
                    Response::builder()
                        .status(code)
                        .body(Body::from(answer.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        });
        Client::new(service, NAMESPACE)
    }

    /// Bundles that the cache of some API server may hold: those of the last [`CACHE_LAG`]. Without any no webhook was ever
    /// called.
    fn visible_bundles(&self) -> Vec<String> {
        let state = self.state();
        let oldest = Instant::now().checked_sub(CACHE_LAG).unwrap();
        let current = state.bundles.iter().rposition(|(at, _)| *at <= oldest).unwrap_or(0);
        let bundles = state.bundles.iter().skip(current).map(|(_, bundle)| bundle.clone());
        bundles.filter(|bundle| !bundle.is_empty()).collect()
    }

    fn bundle(&self) -> String {
        self.state().bundles.last().unwrap().1.clone()
    }
}

/// A process that serves webhooks.
struct WebhookReplica {
    name: String,
    served: Arc<ServedCertificate>,
    health: Health,
    _task: Task<Option<()>>,
}

impl WebhookReplica {
    fn start(api: &CertificateApi, service: &str) -> Self {
        let (served, health) = (Arc::<ServedCertificate>::default(), Health::default());
        health.record_all_listed();
        health.expect_webhooks();
        let names =
            RotationNames { secret: "cert".into(), configuration: "config".into(), service: service.into() };
        let rotation = CertificateRotation::new(api.client(), names, served.clone(), health.clone());
        let task = Tasks::default().core(TaskKind::Certificate.into(), rotation.run());
        let name = format!("{service}.{NAMESPACE}.svc");
        Self { name, served, health, _task: task }
    }

    fn certificate(&self) -> Option<CertificateDer<'static>> {
        self.served.get().map(|key| key.cert[0].clone())
    }

    /// API servers call replicas that are ready: they must trust the certificate.
    fn check(&self, api: &CertificateApi) {
        if self.health.pending().is_some() {
            return;
        }
        let certificate = self.certificate().expect("a replica that is ready serves");
        for bundle in api.visible_bundles() {
            verify(&certificate, &bundle, &self.name, clock::now()).unwrap();
        }
    }
}

async fn run_for(seconds: u64, api: &CertificateApi, replicas: &[WebhookReplica]) {
    for _ in 0..seconds / CHECK_SECONDS {
        time::sleep(Duration::from_secs(CHECK_SECONDS)).await;
        replicas.iter().for_each(|replica| replica.check(api));
    }
}

fn simulate_time() {
    clock::simulate(SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 56));
}

fn assert_all_serve_the_stored_certificate(api: &CertificateApi, replicas: &[WebhookReplica]) {
    let secret: Secret = serde_json::from_value(api.state().secret.clone().unwrap()).unwrap();
    let stored = WebhookCertificate::of_secret(secret.data.as_ref().unwrap()).unwrap();
    let key = stored.certified_key().unwrap();
    for replica in replicas {
        assert_eq!(replica.health.pending(), None);
        assert_eq!(replica.certificate().as_ref(), key.cert.first());
        assert!(stored.is_good_for(&replica.name, clock::now()));
    }
    let bundle = api.bundle();
    assert_eq!(stored.bundle(&Authorities::of([bundle.as_bytes()])), bundle, "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_use_one_certificate() {
    simulate_time();
    for seed in 0..10 {
        let api = CertificateApi::new(seed);
        let replicas = [(); 3].map(|()| WebhookReplica::start(&api, SERVICE));
        run_for(90, &api, &replicas).await;
        assert_all_serve_the_stored_certificate(&api, &replicas);
        assert_eq!(api.state().writes, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_early_and_both_authorities_are_trusted_meanwhile() {
    simulate_time();
    let names = [format!("{SERVICE}.{NAMESPACE}.svc")];
    // It is renewed ten minutes from now.
    let made = clock::now() - Duration::from_hours(24 * 245) + Duration::from_mins(10);
    let old = WebhookCertificate::make(&names, made).unwrap();
    let api = CertificateApi::new(1);
    api.put_secret(&old.secret_data());
    let replicas = [(); 2].map(|()| WebhookReplica::start(&api, SERVICE));
    let writes_and_authorities = || {
        let writes = api.state().writes;
        (writes, api.bundle().matches("BEGIN CERTIFICATE").count())
    };
    run_for(300, &api, &replicas).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
    assert_eq!(writes_and_authorities(), (0, 1), "it is good for five minutes more");
    run_for(600, &api, &replicas).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
    assert_eq!(writes_and_authorities(), (1, 2));
    run_for(2 * 3600, &api, &replicas).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
    assert_eq!(writes_and_authorities(), (1, 1), "only the new authority is trusted");
}

/// A Secret from a backup holds a certificate that is good and that no API server trusts any more.
#[tokio::test(start_paused = true)]
async fn a_restored_secret_does_not_interrupt_the_webhooks() {
    simulate_time();
    let api = CertificateApi::new(1);
    let replicas = [(); 2].map(|()| WebhookReplica::start(&api, SERVICE));
    run_for(2 * 3600, &api, &replicas).await;
    let names = [format!("{SERVICE}.{NAMESPACE}.svc")];
    let backup = WebhookCertificate::make(&names, clock::now() - Duration::from_hours(24 * 30)).unwrap();
    api.put_secret(&backup.secret_data());
    run_for(200, &api, &replicas).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
    assert_eq!(api.state().writes, 1, "no other certificate was made");
}

#[tokio::test(start_paused = true)]
async fn webhooks_stay_trusted_whatever_happens_to_the_secret_and_the_replicas() {
    simulate_time();
    for seed in 0..10 {
        let api = CertificateApi::new(seed);
        let mut replicas: Vec<WebhookReplica> =
            (0..3).map(|_| WebhookReplica::start(&api, SERVICE)).collect();
        for _ in 0..20 {
            run_for(api.random(5..200), &api, &replicas).await;
            match api.random(0..4) {
                0 => api.state().secret = None,
                // Half of a Secret, as an editor may leave it.
                1 => api.put_secret(&BTreeMap::from([("tls.crt".into(), ByteString(b"x".into()))])),
                2 => {
                    let replica = usize::try_from(api.random(0..3)).unwrap();
                    replicas[replica] = WebhookReplica::start(&api, SERVICE);
                }
                // The chart was installed again with another name.
                _ => {
                    let replica = usize::try_from(api.random(0..3)).unwrap();
                    let service = ["kollect-webhook-service", "inventory-webhook-service"];
                    let service = service[usize::try_from(api.random(0..2)).unwrap()];
                    replicas[replica] = WebhookReplica::start(&api, service);
                }
            }
        }
        run_for(200, &api, &replicas).await;
        assert_all_serve_the_stored_certificate(&api, &replicas);
    }
}

#[tokio::test(start_paused = true)]
async fn authorities_that_were_removed_come_back() {
    simulate_time();
    let api = CertificateApi::new(1);
    let replicas = [WebhookReplica::start(&api, SERVICE)];
    run_for(60, &api, &replicas).await;
    api.empty_bundles();
    time::sleep(CHECK_INTERVAL * 2).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
    assert_eq!(api.state().writes, 1, "the certificate is as it was");
}

#[tokio::test(start_paused = true)]
async fn a_replica_says_why_it_is_not_ready() {
    simulate_time();
    let api = CertificateApi::new(1);
    let configuration = api.state().configuration.take().unwrap();
    let replicas = [WebhookReplica::start(&api, SERVICE)];
    time::sleep(Duration::from_secs(30)).await;
    let reason = replicas[0].health.pending().unwrap();
    assert!(
        reason.contains("no ValidatingWebhookConfiguration config") && reason.contains("install it"),
        "{reason}"
    );

    api.put_configuration(configuration);
    let opaque = json!({ "metadata": { "name": "cert", "resourceVersion": "1" }, "type": "Opaque" });
    api.state().secret = Some(opaque.clone());
    time::sleep(Duration::from_mins(2)).await;
    let reason = replicas[0].health.pending().unwrap();
    assert!(reason.contains("Secret cert has the type Opaque"), "{reason}");
    assert_eq!(api.state().secret, Some(opaque), "a Secret of others is not touched");

    api.state().secret = None;
    time::sleep(Duration::from_mins(2)).await;
    assert_all_serve_the_stored_certificate(&api, &replicas);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_no_certificate_can_have_is_reported_and_nothing_is_stored() {
    simulate_time();
    let api = CertificateApi::new(1);
    let replica = WebhookReplica::start(&api, "");
    time::sleep(Duration::from_mins(2)).await;
    let reason = replica.health.pending().unwrap();
    assert!(reason.contains("correct --webhook-service"), "{reason}");
    assert_eq!(api.state().writes, 0);
}
