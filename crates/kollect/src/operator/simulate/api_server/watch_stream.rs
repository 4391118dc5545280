//! One watch: lines of events from the history, until it ends or is cut.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::Value;
use tokio::time::{self, Instant};

use super::{
    super::network::{Link, Server},
    ApiServer, Change, KINDS, Resource,
    answer::{parameter, status},
};

/// How often a watch says how far it is.
const BOOKMARKS: Duration = Duration::from_mins(1);

/// What a list or watch asks for.
pub(super) struct Selected {
    namespace: String,
    /// Name of the object, if only one is asked for.
    name: Option<String>,
}

impl Selected {
    /// With the selectors that the operator writes.
    pub(super) fn of(namespace: &str, query: &str) -> Self {
        let fields = parameter(query, "fieldSelector");
        let name = fields.and_then(|terms| Some(terms.strip_prefix("metadata.name%3D")?.to_owned()));
        Self { namespace: namespace.to_owned(), name }
    }

    pub(super) fn takes(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        (self.namespace.is_empty() || metadata["namespace"] == *self.namespace)
            && self.name.as_deref().is_none_or(|name| metadata["name"] == *name)
    }
}

struct Watch {
    server: ApiServer,
    link: Link,
    kind: usize,
    selected: Selected,
    /// The last version that was looked at.
    version: u64,
    /// Lines that are ready to be sent.
    lines: VecDeque<String>,
    /// The number of cuts when it began: one more ends it.
    cuts: u64,
    ends: Instant,
    bookmark: Instant,
}

/// Where a watch begins.
pub(super) enum Begins {
    /// With everything that there is; some say when that was all.
    Now { says_end: bool },
    /// With what happened after a version.
    After(u64),
}

/// Opens a watch.
pub(super) fn open(
    server: &ApiServer,
    link: Link,
    kind: usize,
    selected: Selected,
    begins: Begins,
    seconds: u64,
) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    let state = server.lock();
    let (cuts, oldest) = (state.cuts, state.oldest);
    let mut lines = VecDeque::new();
    let version = match begins {
        Begins::Now { says_end } => {
            let all = state.kinds[kind].objects.values().filter(|object| selected.takes(object));
            lines.extend(all.map(|object| event("ADDED", &object.text)));
            if says_end {
                lines.push_back(bookmark(kind, state.version, true));
            }
            state.version
        }
        Begins::After(version) if version < oldest => {
            lines.push_back(event("ERROR", &status(410, "too old resource version").to_string()));
            u64::MAX
        }
        Begins::After(version) => version,
    };
    drop(state);
    let now = Instant::now();
    let watch = Watch {
        server: server.clone(),
        link,
        kind,
        selected,
        version,
        lines,
        cuts,
        ends: now + Duration::from_secs(seconds),
        bookmark: now + BOOKMARKS,
    };
    Box::pin(stream::unfold(watch, |mut watch| async move {
        let next = watch.next().await?;
        Some((Ok(Bytes::from(next)), watch))
    }))
}

fn event(what: &str, object: &str) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}\n")
}

fn bookmark(kind: usize, version: u64, ends_list: bool) -> String {
    let Resource { group, version: own, kind, .. } = &KINDS[kind];
    let slash = if group.is_empty() { "" } else { "/" };
    let marks = if ends_list { r#""k8s.io/initial-events-end":"true""# } else { "" };
    let metadata = format!(r#"{{"resourceVersion":"{version}","annotations":{{{marks}}}}}"#);
    event(
        "BOOKMARK",
        &format!(r#"{{"apiVersion":"{group}{slash}{own}","kind":"{kind}","metadata":{metadata}}}"#),
    )
}

impl Watch {
    async fn next(&mut self) -> Option<String> {
        loop {
            let signal = self.server.0.changed[self.kind].clone();
            let changes = signal.changes();
            if self.link.is_cut(Server::Api) {
                self.link.healed(Server::Api).await;
                // Connections do not survive for long if nothing gets through.
                if self.link.flip() {
                    return None;
                }
            }
            let delay = {
                let mut state = self.server.lock();
                let unserved = state.unserved.contains(KINDS[self.kind].plural);
                if state.cuts != self.cuts || unserved || Instant::now() >= self.ends {
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
            if Instant::now() >= self.bookmark {
                self.bookmark = Instant::now() + BOOKMARKS;
                return Some(bookmark(self.kind, self.version, false));
            }
            tokio::select! {
                biased;
                () = signal.changed_since(changes) => {}
                () = time::sleep_until(self.ends.min(self.bookmark)) => {}
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

    fn event(&self, Change { before, object, removed, .. }: &Change) -> Option<String> {
        let was = before.as_deref().is_some_and(|before| self.selected.takes(before));
        let is = !removed && self.selected.takes(object);
        let what = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(event(what, &object.text))
    }
}
