//! Logs of the operator: which events are written to standard error, and in which format.
//!
//! A line of the JSON format is one object with unique keys: fields of an event stand beside `timestamp`,
//! `level`, `target` and `message`, and must not have these names.

use std::{fmt, io::IsTerminal};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::MakeWriter,
    layer::{Context, Filter, SubscriberExt},
    registry::LookupSpan,
    util::{SubscriberInitExt, TryInitError},
};

use super::args::LogFormat;

/// Events of the client of the API server that come with every connection or request and do not say which
/// it was. What they are about is logged once, by what connected or sent the request.
const SAID_ELSEWHERE: [&str; 3] = ["Server cert bypassed", "failed with status ", "failed with error "];

/// Where these events come from.
const CLIENT: &str = "kube_client";

/// Logs go to standard error from here on. `levels` is a level or a filter such as `kollect=debug`.
pub(super) fn start(levels: &str, format: Option<LogFormat>) -> Result<(), TryInitError> {
    let terminal = std::io::stderr().is_terminal();
    let format = format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let filter = EnvFilter::try_new(levels).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = lines(levels, format, terminal, std::io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).try_init()
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
    // Whoever names the client wants to read all that it says.
    lines.with_filter(NotSaidElsewhere { all: levels.contains(CLIENT) })
}

/// Leaves out [`SAID_ELSEWHERE`].
struct NotSaidElsewhere {
    all: bool,
}

impl<S> Filter<S> for NotSaidElsewhere {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if self.all || !event.metadata().target().starts_with(CLIENT) {
            return true;
        }
        let mut message = Message::default();
        event.record(&mut message);
        !SAID_ELSEWHERE.iter().any(|said| message.0.starts_with(said))
    }
}

/// The text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{error, subscriber::with_default, warn};

    use super::*;

    /// What is logged at these levels.
    fn logged(levels: &str, log: impl FnOnce()) -> Vec<serde_json::Value> {
        let bytes = Arc::new(Mutex::new(Vec::<u8>::new()));
        let lines = lines(levels, LogFormat::Json, false, Bytes(bytes.clone()));
        with_default(tracing_subscriber::registry().with(EnvFilter::new(levels)).with(lines), log);
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

    fn client_talks() {
        warn!(target: "kube_client::client::tls::rustls_tls", "Server cert bypassed");
        error!(target: "kube_client::client::builder", "failed with status {}", "503 Service Unavailable");
        error!(target: "kube_client::client::builder", "failed with error {}", "connection refused");
        warn!(target: "kube_client::client::tls::rustls_tls", path = "ca.crt", "failed to reload CA bundle");
        warn!("failed with status 503, which is ours");
    }

    #[test]
    fn events_that_do_not_say_what_they_are_about_are_left_out() {
        let said: Vec<_> = logged("info", client_talks).iter().map(|line| line["message"].clone()).collect();
        assert_eq!(said, ["failed to reload CA bundle", "failed with status 503, which is ours"]);
    }

    #[test]
    fn whoever_asks_for_the_client_hears_all_of_it() {
        assert_eq!(logged("info,kube_client=debug", client_talks).len(), 5);
    }
}
