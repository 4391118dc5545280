//! `/metrics`: what is counted while it happens, and what is true at the moment somebody asks.
//!
//! No label has free text or names of collected objects in it, but for attributes that a profile asks
//! for, and of those only so many. Names and labels are documented in `docs/metrics.md`.

mod domain;
mod meter;
mod picture;
mod sample;
mod scrape;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use kollect_engine::{coverage::Coverage, store::StoreReader, tasks::Tasks};
use kube::Client;
pub(crate) use meter::Meter;
pub(crate) use picture::Picture;
use prometheus_client::{encoding::text::encode, registry::Registry};
use sample::Samples;
use tokio::{sync::watch, time};
use tracing::warn;

use super::{
    leader::Leadership,
    progress::Board,
    serve::{Endpoint, Guard, Notice, Report, Server},
};

/// The format of the library: OpenMetrics, which Prometheus has read since version 2.5.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The least time between two looks whether something can be sampled again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What numbers are computed from.
pub(crate) struct Sources {
    pub(crate) rows: StoreReader,
    pub(crate) coverage: Coverage,
    pub(crate) board: Board,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) tasks: Tasks,
    /// Whether all kinds of the cluster are known; `None`: nobody has asked yet.
    pub(crate) discovery: Box<dyn Fn() -> Option<bool> + Send + Sync>,
}

struct Shared {
    sources: Sources,
    picture: watch::Sender<Arc<Picture>>,
    samples: Samples,
}

impl Shared {
    fn picture(&self) -> Arc<Picture> {
        self.picture.borrow().clone()
    }
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    /// Counts what happens.
    pub(crate) meter: Meter,
}

impl Metrics {
    pub(crate) fn new(sources: Sources, meter: Meter) -> Self {
        let picture = watch::Sender::default();
        let shared = Arc::new(Shared { sources, picture, samples: Samples::default() });
        let mut registry = Registry::default();
        meter.register(&mut registry);
        shared.samples.register(&mut registry);
        registry.register_collector(Box::new(scrape::Now(shared.clone())));
        Self { shared, registry: Arc::new(registry), meter }
    }

    /// What the loop sees now.
    pub(crate) fn show(&self, picture: Picture) {
        self.shared.picture.send_replace(Arc::new(picture));
    }

    /// Everything, as Prometheus reads it.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Keeps the series of profiles fresh, each at most once per interval, for ever. While rows do not change there is
    /// nothing to do.
    pub(crate) async fn sample(self, interval: Duration) {
        let pause = LOOK_AGAIN.min(interval).max(Duration::from_millis(10));
        let mut picture = self.shared.picture.subscribe();
        let mut sampled = None;
        loop {
            let revision = self.shared.sources.rows.last_revision();
            if picture.has_changed().unwrap_or(false) || sampled != Some(revision) {
                picture.mark_unchanged();
                let shared = self.shared.clone();
                // Sums take as long as there are rows; nothing else waits for them.
                let work = move || shared.samples.refresh(&shared.picture(), &shared.sources.rows, interval);
                let is_done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
                    warn!("summing up the series of profiles crashed; this is a bug");
                    true
                });
                sampled = is_done.then_some(revision);
            }
            time::sleep(pause).await;
        }
    }

    /// Serves `/metrics`. With a client only those are let in who may `get` it.
    pub(crate) async fn serve(&self, endpoint: Endpoint, guard: Option<Client>) -> anyhow::Result<Server> {
        let metrics = self.clone();
        let answer = move || async move {
            match metrics.text() {
                Ok(text) => ([(CONTENT_TYPE, FORMAT)], text).into_response(),
                Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "cannot be written\n").into_response(),
            }
        };
        let router = Router::new().route("/metrics", get(answer));
        let report: Report = Arc::new(|notice: Notice| warn!(%notice, "metrics"));
        let router = match guard {
            Some(client) => Guard::new(client, report.clone()).protect(router),
            None => router,
        };
        Server::start(&self.shared.sources.tasks, endpoint, router, report).await
    }
}

#[cfg(test)]
mod tests;
