//! /healthz: the loop is not stuck. /readyz: all objects have been listed; the answer shows whether the process leads.

use std::{
    sync::{
        Arc,
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
}

impl Default for Health {
    fn default() -> Self {
        Self { last_turn: watch::Sender::new(Instant::now()), all_listed: Arc::default() }
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
        if health.all_listed.load(Ordering::Relaxed) {
            (StatusCode::OK, format!("ok: {leadership}\n"))
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "objects are being listed\n".to_owned())
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
    let report = Arc::new(|notice: super::serve::ServerNotice| warn!(%notice, "probes"));
    HttpServer::start(tasks, endpoint, router, report).await.map(Some)
}
