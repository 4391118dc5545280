//! One watch: lines of events from the history, until it ends or is cut.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::Value;
use tokio::time::{self, Instant};

use super::{
    super::network::{ProcessLink, SimulatedServer},
    ApiServer, KINDS, ObjectChange, SimulatedKind,
    answer::{parameter, status},
};

/// How often a watch sends its version.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);

/// Which objects a list or watch selects.
pub(super) struct ListSelection {
    namespace: String,
    /// Name of the object, if only one is selected.
    name: Option<String>,
}

impl ListSelection {
    /// Knows only the selectors that the operator sends.
    pub(super) fn of(namespace: &str, query: &str) -> Self {
        let fields = parameter(query, "fieldSelector");
        let name = fields.and_then(|terms| Some(terms.strip_prefix("metadata.name%3D")?.to_owned()));
        Self { namespace: namespace.to_owned(), name }
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        (self.namespace.is_empty() || metadata["namespace"] == *self.namespace)
            && self.name.as_deref().is_none_or(|name| metadata["name"] == *name)
    }
}

struct WatchStream {
    server: ApiServer,
    link: ProcessLink,
    kind: usize,
    selected: ListSelection,
    /// The last version that was looked at.
    version: u64,
    /// Lines that are ready to be sent.
    lines: VecDeque<String>,
    /// The number of cuts when it began: one more ends it.
    cuts: u64,
    ends_at: Instant,
    next_bookmark: Instant,
}

/// Where a watch begins.
pub(super) enum WatchStart {
    /// With all objects that exist; a bookmark may mark the end of these.
    Now { marks_end: bool },
    /// With what happened after a version.
    After(u64),
}

/// Opens a watch.
pub(super) fn open(
    server: &ApiServer,
    link: ProcessLink,
    kind: usize,
    selected: ListSelection,
    start: WatchStart,
    seconds: u64,
) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    let state = server.lock();
    let (cuts, oldest) = (state.cuts, state.oldest);
    let mut lines = VecDeque::new();
    let version = match start {
        WatchStart::Now { marks_end } => {
            let all = state.kinds[kind].objects.values().filter(|object| selected.selects(object));
            lines.extend(all.map(|object| event("ADDED", &object.text)));
            if marks_end {
                lines.push_back(bookmark(kind, state.version, true));
            }
            state.version
        }
        WatchStart::After(version) if version < oldest => {
            lines.push_back(event("ERROR", &status(410, "too old resource version").to_string()));
            u64::MAX
        }
        WatchStart::After(version) => version,
    };
    drop(state);
    let now = Instant::now();
    let watch = WatchStream {
        server: server.clone(),
        link,
        kind,
        selected,
        version,
        lines,
        cuts,
        ends_at: now + Duration::from_secs(seconds),
        next_bookmark: now + BOOKMARK_INTERVAL,
    };
    Box::pin(stream::unfold(watch, |mut watch| async move {
        let next = watch.next().await?;
        Some((Ok(Bytes::from(next)), watch))
    }))
}

fn event(type_: &str, object: &str) -> String {
    format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n")
}

fn bookmark(kind: usize, version: u64, ends_list: bool) -> String {
    let SimulatedKind { group, version: api_version, kind, .. } = &KINDS[kind];
    let slash = if group.is_empty() { "" } else { "/" };
    let annotations = if ends_list { r#""k8s.io/initial-events-end":"true""# } else { "" };
    let metadata = format!(r#"{{"resourceVersion":"{version}","annotations":{{{annotations}}}}}"#);
    event(
        "BOOKMARK",
        &format!(r#"{{"apiVersion":"{group}{slash}{api_version}","kind":"{kind}","metadata":{metadata}}}"#),
    )
}

impl WatchStream {
    async fn next(&mut self) -> Option<String> {
        loop {
            let signal = self.server.0.changed[self.kind].clone();
            let changes = signal.changes();
            if self.link.is_cut(SimulatedServer::Api) {
                self.link.wait_until_connected(SimulatedServer::Api).await;
                // Connections do not survive for long if nothing gets through.
                if self.link.random_bool() {
                    return None;
                }
            }
            let delay = {
                let mut state = self.server.lock();
                let unserved = state.unserved.contains(KINDS[self.kind].plural);
                if state.cuts != self.cuts || unserved || Instant::now() >= self.ends_at {
                    return None;
                }
                state.delay()
            };
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
            if let Some(line) = self.lines.pop_front().or_else(|| self.read_history()) {
                return Some(line);
            }
            if Instant::now() >= self.next_bookmark {
                self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                return Some(bookmark(self.kind, self.version, false));
            }
            tokio::select! {
                biased;
                () = signal.changed_since(changes) => {}
                () = time::sleep_until(self.ends_at.min(self.next_bookmark)) => {}
            }
        }
    }

    /// The next event.
    fn read_history(&mut self) -> Option<String> {
        let state = self.server.lock();
        let history = &state.kinds[self.kind].history;
        let first = history.partition_point(|change| change.version <= self.version);
        let found = history[first..].iter().find_map(|change| Some((change.version, self.event(change)?)));
        match found {
            Some((version, line)) => {
                drop(state);
                self.version = version;
                Some(line)
            }
            None => {
                let version = state.version;
                drop(state);
                self.version = self.version.max(version);
                None
            }
        }
    }

    fn event(&self, ObjectChange { before, object, removed, .. }: &ObjectChange) -> Option<String> {
        let was_selected = before.as_deref().is_some_and(|before| self.selected.selects(before));
        let is_selected = !removed && self.selected.selects(object);
        let type_ = match (was_selected, is_selected) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(event(type_, &object.text))
    }
}
