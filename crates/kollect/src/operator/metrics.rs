//! `/metrics`: counters that are updated as events happen, and gauges that are computed for each scrape.
//!
//! Labels contain neither free text nor names of collected objects. The exception are attributes that a profile
//! selects, up to a limit. Names and labels are documented in `docs/reference/metrics.md`.

mod counters;
mod profile_series;
mod sample;
mod scrape;
mod view;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
pub(crate) use counters::Meter;
use kollect_engine::{coverage::Coverage, store::StoreReader, tasks::Tasks};
use kube::Client;
use prometheus_client::{encoding::text::encode, registry::Registry};
use sample::Samples;
use tokio::{sync::watch, time};
use tracing::warn;
pub(crate) use view::MetricsView;

use super::{
    binding_states::BindingStates,
    leader::Leadership,
    serve::{AccessGuard, HttpServer, ListenEndpoint, ReportNotice, ServerNotice},
};

/// The format of the library: OpenMetrics, which Prometheus supports since version 2.5.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The longest pause between two checks whether profiles must be sampled again.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The sources of the gauges.
pub(crate) struct GaugeSources {
    pub(crate) rows: StoreReader,
    pub(crate) coverage: Coverage,
    pub(crate) binding_states: BindingStates,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) tasks: Tasks,
    /// Whether all kinds of the cluster are known; `None`: discovery has not run yet.
    pub(crate) discovery: Box<dyn Fn() -> Option<bool> + Send + Sync>,
}

struct MetricsState {
    sources: GaugeSources,
    view: watch::Sender<Arc<MetricsView>>,
    samples: Samples,
}

impl MetricsState {
    fn view(&self) -> Arc<MetricsView> {
        self.view.borrow().clone()
    }
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Metrics {
    shared: Arc<MetricsState>,
    registry: Arc<Registry>,
    /// The counters.
    pub(crate) meter: Meter,
}

impl Metrics {
    pub(crate) fn new(sources: GaugeSources, meter: Meter) -> Self {
        let view = watch::Sender::default();
        let shared = Arc::new(MetricsState { sources, view, samples: Samples::default() });
        let mut registry = Registry::default();
        meter.register(&mut registry);
        shared.samples.register(&mut registry);
        registry.register_collector(Box::new(scrape::Scrape(shared.clone())));
        Self { shared, registry: Arc::new(registry), meter }
    }

    /// Replaces the data of the last resolution.
    pub(crate) fn set_view(&self, view: MetricsView) {
        self.shared.view.send_replace(Arc::new(view));
    }

    /// All metrics in the OpenMetrics text format.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Recomputes the series of each profile at most once per interval, and only after rows or profiles have changed.
    /// Never returns.
    pub(crate) async fn sample(self, interval: Duration) {
        let pause = CHECK_INTERVAL.min(interval).max(Duration::from_millis(10));
        let mut view = self.shared.view.subscribe();
        let mut sampled = None;
        loop {
            let revision = self.shared.sources.rows.last_revision();
            if view.has_changed().unwrap_or(false) || sampled != Some(revision) {
                view.mark_unchanged();
                let shared = self.shared.clone();
                // The work grows with the number of rows, so it runs on a blocking thread.
                let work = move || shared.samples.refresh(&shared.view(), &shared.sources.rows, interval);
                let is_done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
                    warn!("summing up the series of profiles crashed; this is a bug");
                    true
                });
                sampled = is_done.then_some(revision);
            }
            time::sleep(pause).await;
        }
    }

    /// Serves `/metrics`. With a client, a request needs the token of a user who may `get` the path.
    pub(crate) async fn serve(
        &self,
        endpoint: ListenEndpoint,
        guard: Option<Client>,
    ) -> anyhow::Result<HttpServer> {
        let metrics = self.clone();
        let answer = move || async move {
            match metrics.text() {
                Ok(text) => ([(CONTENT_TYPE, FORMAT)], text).into_response(),
                Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "cannot be written\n").into_response(),
            }
        };
        let router = Router::new().route("/metrics", get(answer));
        let report: ReportNotice =
            Arc::new(|notice: ServerNotice| warn!(%notice, "the server of the metrics reports"));
        let router = match guard {
            Some(client) => AccessGuard::new(client, report.clone()).protect(router),
            None => router,
        };
        HttpServer::start(&self.shared.sources.tasks, endpoint, router, report).await
    }
}

#[cfg(test)]
mod tests;
