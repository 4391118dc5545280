//! Logs of the operator: which events are written to standard error, and in which format.
//!
//! A line of the JSON format is one object with unique keys: fields of an event stand beside `timestamp`,
//! `level`, `target` and `message`, and must not have these names.

use std::{
    collections::BTreeMap,
    fmt,
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::MakeWriter,
    layer::{Context, Filter, SubscriberExt},
    registry::LookupSpan,
    util::{SubscriberInitExt, TryInitError},
};

use super::args::LogFormat;

/// The client of the API server. It logs every try of every request that fails, without the request, and
/// every connection whose certificate it does not verify.
const CLIENT_TARGET: &str = "kube_client";
/// The part of it that sends requests: it has a span for each.
const REQUEST_TARGET: &str = "kube_client::client::builder";
/// The code that connects logs this once, with the server.
const NOT_VERIFIED: &str = "Server cert bypassed";
/// How long a request that fails in the same way is not logged again.
const REPEAT_AFTER: Duration = Duration::from_mins(10);
/// Limit of remembered requests; beyond it all are forgotten, and may be logged again.
const MAX_REMEMBERED: usize = 1024;

/// Starts logging to standard error. `levels` is a level or a filter such as `kollect=debug`.
pub(super) fn start(levels: &str, format: Option<LogFormat>) -> Result<(), TryInitError> {
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let filter = filter(levels);
    let lines = lines(levels, format, terminal, std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).try_init()
}

/// Whether the levels name the client: then all its events at these levels are logged.
fn names_client(levels: &str) -> bool {
    levels.contains(CLIENT_TARGET)
}

/// The levels that are logged, and the spans that show which request an event is about.
fn filter(levels: &str) -> EnvFilter {
    let filter = EnvFilter::try_new(levels).unwrap_or_else(|_| EnvFilter::new("info"));
    let requests = format!("{REQUEST_TARGET}=debug").parse().ok().filter(|_| !names_client(levels));
    requests.into_iter().fold(filter, EnvFilter::add_directive)
}

/// Writes events as lines.
fn lines<S, W>(levels: &str, format: LogFormat, colours: bool, writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => lines.with_ansi(colours).with_target(false).boxed(),
    };
    lines.with_filter(DropRepeated { drops_nothing: names_client(levels), logged_failures: Mutex::default() })
}

/// Drops repeated events of the client.
struct DropRepeated {
    /// Drop nothing.
    drops_nothing: bool,
    /// Requests, with how they failed and when that was logged.
    logged_failures: Mutex<BTreeMap<String, (String, Instant)>>,
}

impl DropRepeated {
    /// Whether the failure of a request has not been logged for a while.
    fn is_new(&self, request: String, failure: String) -> bool {
        let mut logged_failures = self.logged_failures.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_repeated = |(before, logged): &(String, Instant)| {
            *before == failure && now.duration_since(*logged) < REPEAT_AFTER
        };
        if logged_failures.get(&request).is_some_and(is_repeated) {
            return false;
        }
        if logged_failures.len() >= MAX_REMEMBERED {
            logged_failures.clear();
        }
        logged_failures.insert(request, (failure, now));
        true
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Filter<S> for DropRepeated {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target() == REQUEST_TARGET
            && let Some(span) = context.span(id)
        {
            let mut request = LoggedRequest::default();
            attributes.record(&mut request);
            span.extensions_mut().insert(request);
        }
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if self.drops_nothing || !metadata.target().starts_with(CLIENT_TARGET) {
            return true;
        }
        let mut message = EventText::default();
        event.record(&mut message);
        if metadata.target() != REQUEST_TARGET {
            return message.0 != NOT_VERIFIED;
        }
        let span = context.event_span(event);
        let request = span.and_then(|span| span.extensions().get::<LoggedRequest>().map(ToString::to_string));
        *metadata.level() == Level::ERROR && self.is_new(request.unwrap_or_default(), message.0)
    }
}

/// Method and path of a request, without parameters: these differ between attempts.
#[derive(Default)]
struct LoggedRequest {
    method: String,
    path: String,
}

impl fmt::Display for LoggedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Visit for LoggedRequest {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "http.method" => self.method = format!("{value:?}"),
            "http.url" => {
                let url = format!("{value:?}");
                url.split('?').next().unwrap_or_default().clone_into(&mut self.path);
            }
            _ => {}
        }
    }
}

/// The text of an event.
#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{debug, debug_span, error, subscriber::with_default, warn};

    use super::*;

    /// What is logged at these levels.
    fn logged(levels: &str, log: impl FnOnce()) -> Vec<serde_json::Value> {
        let bytes = Arc::new(Mutex::new(Vec::<u8>::new()));
        let lines = lines(levels, LogFormat::Json, false, Bytes(bytes.clone()));
        with_default(tracing_subscriber::registry().with(filter(levels)).with(lines), log);
        let text = String::from_utf8(bytes.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[derive(Clone)]
    struct Bytes(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Bytes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Bytes {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    /// A request that is tried so often and fails.
    fn fail_requests(path: &str, tries: u32) {
        for number in 0..tries {
            let url = format!("{path}?resourceVersion={number}");
            let span = debug_span!(target: "kube_client::client::builder", "HTTP", http.method = "GET", http.url = %url);
            let _entered = span.entered();
            debug!(target: "kube_client::client::builder", "requesting");
            error!(target: "kube_client::client::builder", "failed with status {}", "503 Service Unavailable");
        }
    }

    fn messages(lines: &[serde_json::Value]) -> Vec<&str> {
        lines.iter().map(|line| line["message"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_request_that_fails_again_and_again_is_logged_once_with_its_url() {
        let lines = logged("info", || {
            fail_requests("/api/v1/pods", 5);
            fail_requests("/api/v1/secrets", 5);
        });
        assert_eq!(messages(&lines), ["failed with status 503 Service Unavailable"; 2]);
        assert_eq!(lines[0]["spans"][0]["http.url"], "/api/v1/pods?resourceVersion=0");
        assert_eq!(lines[1]["spans"][0]["http.url"], "/api/v1/secrets?resourceVersion=0");
    }

    #[test]
    fn the_client_does_not_log_a_certificate_that_is_not_verified() {
        let lines = logged("info", || {
            warn!(target: "kube_client::client::tls::rustls_tls", "Server cert bypassed");
            warn!(target: "kube_client::client::tls::rustls_tls", path = "ca.crt", "failed to reload CA bundle");
            warn!("ours");
        });
        assert_eq!(messages(&lines), ["failed to reload CA bundle", "ours"]);
    }

    #[test]
    fn a_filter_that_names_the_client_shows_all_its_lines() {
        assert_eq!(logged("info,kube_client=debug", || fail_requests("/api", 3)).len(), 6);
    }
}
