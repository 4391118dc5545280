//! /healthz: the loop is not stuck. /readyz: all objects have been listed, and API servers can call the webhooks of this
//! replica; the answer shows whether the process leads.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::get};
use kollect_engine::tasks::Tasks;
use tokio::{sync::watch, time::Instant};
use tracing::warn;

use super::{
    leader::Leadership,
    serve::{HttpServer, Limits, ListenEndpoint, ServerTls},
};

/// A loop that has not started a turn for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_mins(2);

/// The state that both probes report.
#[derive(Clone)]
pub(crate) struct Health {
    last_turn: watch::Sender<Instant>,
    all_listed: Arc<AtomicBool>,
    webhooks: Arc<Mutex<WebhookReadiness>>,
}

/// Whether API servers can call the webhooks of this replica.
enum WebhookReadiness {
    /// They can, or there are none.
    Ready,
    /// Not yet, for this reason.
    Pending(String),
}

impl Default for Health {
    fn default() -> Self {
        Self {
            last_turn: watch::Sender::new(Instant::now()),
            all_listed: Arc::default(),
            webhooks: Arc::new(Mutex::new(WebhookReadiness::Ready)),
        }
    }
}

impl Health {
    /// Records that the loop has started a turn.
    pub(crate) fn record_turn(&self) {
        self.last_turn.send_replace(Instant::now());
    }

    /// Records that all objects have been listed.
    pub(crate) fn record_all_listed(&self) {
        self.all_listed.store(true, Ordering::Relaxed);
    }

    /// The webhooks get a certificate later: the replica is not ready before [`Self::record_webhooks_served`].
    pub(crate) fn expect_webhooks(&self) {
        self.set_webhooks(WebhookReadiness::Pending("the certificate is being made".into()));
    }

    /// Records that API servers can call the webhooks. A replica that was ready stays so: without it there may be none.
    pub(crate) fn record_webhooks_served(&self) {
        self.set_webhooks(WebhookReadiness::Ready);
    }

    /// Records why API servers cannot call the webhooks, if they could not before.
    pub(crate) fn record_webhook_problem(&self, problem: &str) {
        let mut webhooks = self.webhooks.lock().unwrap_or_else(PoisonError::into_inner);
        if let WebhookReadiness::Pending(reason) = &mut *webhooks {
            problem.clone_into(reason);
        }
    }

    fn set_webhooks(&self, readiness: WebhookReadiness) {
        *self.webhooks.lock().unwrap_or_else(PoisonError::into_inner) = readiness;
    }

    /// Why the replica is not ready; `None` if it is.
    pub(crate) fn pending(&self) -> Option<String> {
        if !self.all_listed.load(Ordering::Relaxed) {
            return Some("objects are being listed".into());
        }
        match &*self.webhooks.lock().unwrap_or_else(PoisonError::into_inner) {
            WebhookReadiness::Ready => None,
            WebhookReadiness::Pending(reason) => Some(format!("webhooks: {reason}")),
        }
    }

    fn is_alive(&self) -> bool {
        self.last_turn.borrow().elapsed() < STUCK_AFTER
    }
}

/// Serves both paths on `address`; with `0` nothing is served.
pub(crate) async fn serve(
    address: &str,
    health: Health,
    leadership: watch::Receiver<Leadership>,
    tasks: &Tasks,
) -> anyhow::Result<Option<HttpServer>> {
    if address == "0" {
        return Ok(None);
    }
    let alive = health.clone();
    let healthz = move || async move {
        if alive.is_alive() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "the loop is stuck\n".to_owned())
        }
    };
    let readyz = move || async move {
        let leadership = leadership.borrow().to_string();
        match health.pending() {
            None => (StatusCode::OK, format!("ok: {leadership}\n")),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        }
    };
    let router = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
    let endpoint = ListenEndpoint {
        flag: "--health-probe-bind-address",
        address: address.to_owned(),
        tls: ServerTls::Off,
        http2: false,
        limits: Limits::default(),
    };
    let report =
        Arc::new(|notice: super::serve::ServerNotice| warn!(%notice, "the server of the probes reports"));
    HttpServer::start(tasks, endpoint, router, report).await.map(Some)
}
