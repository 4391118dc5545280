//! /healthz: the loop is not stuck. /readyz: all objects have been listed; the answer says whether the process leads.

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
    serve::{Endpoint, Limits, Server, Tls},
};

/// A loop that has not started a turn for this long is stuck.
const STUCK: Duration = Duration::from_mins(2);

/// The state that both probes report.
#[derive(Clone)]
pub(crate) struct Health {
    turned: watch::Sender<Instant>,
    settled: Arc<AtomicBool>,
}

impl Default for Health {
    fn default() -> Self {
        Self { turned: watch::Sender::new(Instant::now()), settled: Arc::default() }
    }
}

impl Health {
    /// Records that the loop has started a turn.
    pub(crate) fn turned(&self) {
        self.turned.send_replace(Instant::now());
    }

    /// Records that all objects have been listed.
    pub(crate) fn settled(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    fn is_alive(&self) -> bool {
        self.turned.borrow().elapsed() < STUCK
    }
}

/// Serves both paths on `address`; with `0` nothing is served.
pub(crate) async fn serve(
    address: &str,
    health: Health,
    leadership: watch::Receiver<Leadership>,
    tasks: &Tasks,
) -> anyhow::Result<Option<Server>> {
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
        if health.settled.load(Ordering::Relaxed) {
            (StatusCode::OK, format!("ok: {leadership}\n"))
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "objects are being listed\n".to_owned())
        }
    };
    let router = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
    let endpoint = Endpoint {
        flag: "--health-probe-bind-address",
        address: address.to_owned(),
        tls: Tls::Off,
        http2: false,
        limits: Limits::default(),
    };
    let report = Arc::new(|notice: super::serve::Notice| warn!(%notice, "probes"));
    Server::start(tasks, endpoint, router, report).await.map(Some)
}
