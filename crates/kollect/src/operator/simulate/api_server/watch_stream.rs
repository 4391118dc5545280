//! One watch: lines of events from the history, until it ends or is cut.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use super::{
    ApiServer, Change,
    answer::{Parameters, status, takes},
};

/// How often a watch says how far it is.
const BOOKMARKS: Duration = Duration::from_mins(1);

struct Watch {
    server: ApiServer,
    plural: &'static str,
    namespace: String,
    parameters: Parameters,
    /// The last version that was looked at.
    version: u64,
    /// Lines that are ready to be sent.
    lines: VecDeque<Value>,
    /// The number of cuts when it began: one more ends it.
    cuts: u64,
    ends: Instant,
    bookmark: Instant,
}

/// Opens a watch at a version, or with a list.
pub(super) fn open(
    server: &ApiServer,
    plural: &'static str,
    namespace: String,
    parameters: Parameters,
    begins: u64,
    lists: bool,
) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    let seconds = parameters.get("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
    let state = server.lock();
    let (cuts, oldest) = (state.cuts, state.oldest);
    let mut lines = VecDeque::new();
    let mut version = begins;
    if lists {
        version = state.version;
        let all = state.objects.iter().filter(|(key, _)| key.0 == plural);
        let selected = all.filter(|(_, object)| takes(&parameters, &namespace, object));
        lines.extend(selected.map(|(_, object)| json!({ "type": "ADDED", "object": &**object })));
        lines.push_back(bookmark(version, true));
    } else if begins < oldest {
        lines.push_back(json!({ "type": "ERROR", "object": status(410, "too old resource version") }));
        version = u64::MAX;
    }
    drop(state);
    let watch = Watch {
        server: server.clone(),
        plural,
        namespace,
        parameters,
        version,
        lines,
        cuts,
        ends: Instant::now() + Duration::from_secs(seconds),
        bookmark: Instant::now() + BOOKMARKS,
    };
    Box::pin(stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok(Bytes::from(format!("{line}\n"))), watch))
    }))
}

fn bookmark(version: u64, ends_list: bool) -> Value {
    let marks = if ends_list { json!({ "k8s.io/initial-events-end": "true" }) } else { json!({}) };
    let metadata = json!({ "resourceVersion": version.to_string(), "annotations": marks });
    json!({ "type": "BOOKMARK", "object": { "metadata": metadata } })
}

impl Watch {
    async fn next(&mut self) -> Option<Value> {
        loop {
            let (delay, ended) = {
                let mut state = self.server.lock();
                (state.delay(), state.cuts != self.cuts || state.unserved.contains(self.plural))
            };
            if ended || Instant::now() >= self.ends {
                return None;
            }
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            let changes = self.server.0.changed.changes();
            if let Some(line) = self.read_history() {
                return Some(line);
            }
            if Instant::now() >= self.bookmark {
                self.bookmark = Instant::now() + BOOKMARKS;
                return Some(bookmark(self.version, false));
            }
            tokio::select! {
                biased;
                () = self.server.0.changed.changed_since(changes) => {}
                () = time::sleep_until(self.ends.min(self.bookmark)) => {}
            }
        }
    }

    /// The next event.
    fn read_history(&mut self) -> Option<Value> {
        let server = self.server.clone();
        let state = server.lock();
        let first = state.history.partition_point(|change| change.version <= self.version);
        for change in &state.history[first..] {
            self.version = change.version;
            if let Some(line) = self.event(change) {
                return Some(line);
            }
        }
        None
    }

    fn event(&self, Change { key, before, object, removed, .. }: &Change) -> Option<Value> {
        if key.0 != self.plural {
            return None;
        }
        let takes = |object: &Value| takes(&self.parameters, &self.namespace, object);
        let was = before.as_deref().is_some_and(takes);
        let is = !removed && takes(object);
        let what = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(json!({ "type": what, "object": &**object }))
    }
}
