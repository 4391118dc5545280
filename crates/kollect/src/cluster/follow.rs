//! Lists one query and then watches it: consistent, resumed at the last resourceVersion, and listed again only when
//! the API server no longer has that version.
//!
//! kube's own watcher starts with whatever a cache holds, which may be older than what was seen before and would
//! look like deletions. Here a list that is older than what this process has seen of the kind is refused, whichever
//! server sent it, until it is certain that the cluster was restored from a backup.

use std::{sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt, channel::mpsc};
use http::StatusCode;
use kollect_engine::watch::{Event, Object, Query};
use kollect_model::backoff::Backoff;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time;

use super::{
    SourceState,
    request::{ApiStatus, PAGE_SIZE, RequestFailure, ResourceEndpoint},
};

/// Annotation of the bookmark that ends the initial events of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// How often a list is tried again if no watch follows it.
const ATTEMPTS: u32 = 3;
/// After this many streamed lists that ended too early, the list is read in pages.
const MAX_CUT_LISTS: u32 = 2;
/// Longest Retry-After that is respected.
const LONGEST_REQUESTED_PAUSE: Duration = Duration::from_mins(5);
/// A watch that ends sooner counts as failed, even if it ended without an error.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The receiver of the events was dropped.
struct ReceiverDropped;

type FollowOutcome<T> = Result<T, FollowStop>;

/// Why a step ended.
enum FollowStop {
    ReceiverDropped,
    Failed(RequestFailure),
}

impl From<ReceiverDropped> for FollowStop {
    fn from(_: ReceiverDropped) -> Self {
        Self::ReceiverDropped
    }
}

impl From<RequestFailure> for FollowStop {
    fn from(failure: RequestFailure) -> Self {
        Self::Failed(failure)
    }
}

#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: String,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

/// Lists and follows a query until the receiver is dropped or an error is final; without `follow` it only lists.
pub(super) async fn follow(shared: Arc<SourceState>, query: Query, events: mpsc::Sender<Event>) {
    let endpoint = match shared.endpoint(&query).await {
        Ok(endpoint) => endpoint,
        Err(blindness) => {
            let mut events = events;
            drop(events.send(Event::Blind(blindness)).await);
            return;
        }
    };
    let version = String::new();
    let mut follower = QueryFollower {
        shared,
        query,
        endpoint,
        events,
        version,
        listed: false,
        cut_lists: 0,
        blind: false,
        outdated_since: None,
    };
    follower.run().await;
}

struct QueryFollower {
    shared: Arc<SourceState>,
    query: Query,
    endpoint: ResourceEndpoint,
    events: mpsc::Sender<Event>,
    /// resourceVersion at which the next watch begins; empty: list first.
    version: String,
    /// Whether a list has ever completed.
    listed: bool,
    /// Streamed lists that ended too early, one after the other.
    cut_lists: u32,
    blind: bool,
    /// Since when lists have been older than what was seen before.
    outdated_since: Option<time::Instant>,
}

impl QueryFollower {
    async fn run(&mut self) {
        let mut backoff = Backoff::new(self.shared.limits.first_pause, self.shared.limits.longest_pause);
        loop {
            let verb = if self.version.is_empty() { "list" } else { "watch" };
            let before = self.version.clone();
            let failure = match self.step().await {
                Ok(true) => {
                    backoff.reset();
                    continue;
                }
                Ok(false) | Err(FollowStop::ReceiverDropped) => return,
                Err(FollowStop::Failed(failure)) => failure,
            };
            // Reset the backoff only if this attempt got further than the one before.
            if !self.version.is_empty() && self.version != before {
                backoff.reset();
            }
            let version_expired = failure.is(StatusCode::GONE);
            if version_expired {
                // The server no longer has this version: list again. A fresh list is never older.
                self.version.clear();
            }
            // Retry once silently before reporting the kind as blind; without `follow` report only the last failure.
            let retries_silently = if self.query.follow {
                backoff.failures() == 0 && (self.listed || version_expired)
            } else {
                backoff.failures() < ATTEMPTS
            };
            if failure.is_final() || !retries_silently {
                self.blind = true;
                let blindness = self.endpoint.blindness(verb, &failure);
                let sent = self.send(Event::Blind(blindness)).await;
                if sent.is_err() || failure.is_final() || !self.query.follow {
                    return;
                }
            }
            // Wait at least as long as the server requests.
            let requested_pause = failure.retry_after.unwrap_or_default().min(LONGEST_REQUESTED_PAUSE);
            time::sleep(backoff.next(fastrand::f64()).max(requested_pause)).await;
        }
    }

    async fn send(&mut self, event: Event) -> Result<(), ReceiverDropped> {
        self.events.send(event).await.map_err(|_| ReceiverDropped)
    }

    /// One list or one watch. Returns whether to go on.
    async fn step(&mut self) -> FollowOutcome<bool> {
        if !self.version.is_empty() {
            let began = time::Instant::now();
            self.resume_watch().await?;
            if began.elapsed() < SHORTEST_WATCH {
                return Err(RequestFailure::failed("the watch ended at once").into());
            }
            return Ok(true);
        }
        let permit = self.shared.lists.clone().acquire_owned().await;
        // A streamed list has its version only at its end, a list in pages with the first page.
        let streamed = self.cut_lists < MAX_CUT_LISTS && self.shared.newest_version(&self.query.gvk) == 0;
        if self.query.follow && streamed && !self.shared.refuses_watch_lists(&self.query.gvk.group) {
            self.cut_lists += 1;
            match self.watch_list(permit.ok()).await {
                Err(FollowStop::Failed(failure))
                    if failure.is(StatusCode::UNPROCESSABLE_ENTITY)
                        || failure.is(StatusCode::BAD_REQUEST) =>
                {
                    // The server supports no streamed lists, or rejects the selectors: the list in pages shows which.
                    let permit = self.shared.lists.clone().acquire_owned().await;
                    self.list_pages().await?;
                    self.shared.note_refused_watch_list(&self.query.gvk.group);
                    drop(permit);
                }
                other => other?,
            }
        } else {
            self.list_pages().await?;
            drop(permit);
        }
        Ok(self.query.follow)
    }

    async fn synced(&mut self, version: String) -> Result<(), ReceiverDropped> {
        self.listed = true;
        self.blind = false;
        self.cut_lists = 0;
        let number = version.parse().unwrap_or(0);
        self.version = version;
        self.shared.record_version(&self.query.gvk, number);
        self.send(Event::Synced { version: number }).await
    }

    /// Lists in pages, one request at a time: memory does not grow with the list.
    async fn list_pages(&mut self) -> FollowOutcome<()> {
        // Versions that other streams see while this list runs do not make it stale.
        let seen = self.shared.newest_version(&self.query.gvk);
        let mut page = self.endpoint.page(None).await?;
        let version = page.metadata.resource_version.clone();
        self.refuse_old_list(&version, seen)?;
        if version.is_empty() && self.query.follow {
            return Err(
                RequestFailure::failed("the list has no resourceVersion, and cannot be followed").into()
            );
        }
        let total = match page.metadata.remaining_item_count {
            Some(more) => Some(page.items.len() as u64 + more),
            None => (page.items.len() < PAGE_SIZE).then_some(page.items.len() as u64),
        };
        self.send(Event::Listing { total }).await?;
        loop {
            for raw in std::mem::take(&mut page.items) {
                self.apply(raw).await?;
            }
            let token = page.metadata.continue_token.take().filter(|token| !token.is_empty());
            let Some(token) = token else { break };
            page = self.endpoint.page(Some(&token)).await?;
        }
        Ok(self.synced(version).await?)
    }

    /// Refuses a list that is older than what was seen: its API server lags behind. If lists stay old for
    /// `WatchLimits::restored_after`, the cluster was restored from a backup and the list is accepted.
    fn refuse_old_list(&mut self, version: &str, seen: u64) -> Result<(), RequestFailure> {
        let number: u64 = version.parse().unwrap_or(0);
        if number == 0 || number >= seen {
            self.outdated_since = None;
            return Ok(());
        }
        let since = *self.outdated_since.get_or_insert_with(time::Instant::now);
        if since.elapsed() >= self.shared.limits.restored_after {
            self.outdated_since = None;
            self.shared.went_back(&self.query.gvk, number);
            return Ok(());
        }
        let message = format!("the list is of version {number}, and {seen} was seen before");
        Err(RequestFailure::failed(message))
    }

    async fn apply(&mut self, raw: Box<RawValue>) -> FollowOutcome<()> {
        let object = Object::parse(raw, &self.query.gvk);
        let object = object.map_err(|error| RequestFailure::failed(format!("read an object: {error}")))?;
        Ok(self.send(Event::Apply(object)).await?)
    }

    /// A list as the beginning of a watch: a consistent read, streamed.
    async fn watch_list(&mut self, permit: Option<tokio::sync::OwnedSemaphorePermit>) -> FollowOutcome<()> {
        let parameters = format!(
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&{}",
            self.watch_parameters()
        );
        self.read_watch(&parameters, permit).await
    }

    /// Resumes where the last watch ended.
    async fn resume_watch(&mut self) -> FollowOutcome<()> {
        let parameters = format!("watch=true&resourceVersion={}&{}", self.version, self.watch_parameters());
        self.read_watch(&parameters, None).await
    }

    /// Watches end after some minutes, so that a revoked permission is noticed; at random times, not all at once.
    fn watch_parameters(&self) -> String {
        let longest = self.shared.limits.longest_watch.as_secs().max(2);
        format!("allowWatchBookmarks=true&timeoutSeconds={}", fastrand::u64(longest * 4 / 5..=longest))
    }

    async fn read_watch(
        &mut self,
        parameters: &str,
        mut permit: Option<tokio::sync::OwnedSemaphorePermit>,
    ) -> FollowOutcome<()> {
        let mut lines = self.endpoint.watch(parameters).await?;
        let mut listing = self.version.is_empty();
        if listing {
            self.send(Event::Listing { total: None }).await?;
        } else if std::mem::take(&mut self.blind) {
            self.send(Event::Resumed).await?;
        }
        loop {
            // No line for longer than the interval of bookmarks may mean a dead connection: open another one.
            let line = match time::timeout(self.shared.limits.longest_silence, lines.next()).await {
                Ok(Some(line)) => line?,
                Ok(None) if listing => {
                    return Err(RequestFailure::failed("the list ended before its end").into());
                }
                Err(_) if listing => {
                    // Some servers accept the request and never send the bookmark that ends the list.
                    self.list_pages().await?;
                    return Ok(());
                }
                Ok(None) | Err(_) => return Ok(()),
            };
            let line: WatchLine<'_> = serde_json::from_slice(&line)
                .map_err(|error| RequestFailure::failed(format!("read an event: {error}")))?;
            match line.kind {
                "ADDED" | "MODIFIED" | "DELETED" => self.change(line.kind, line.object, listing).await?,
                "BOOKMARK" => {
                    let bookmark: Bookmark = serde_json::from_str(line.object.get()).map_err(unreadable)?;
                    let BookmarkMetadata { resource_version, annotations } = bookmark.metadata;
                    let ends =
                        annotations.is_some_and(|annotations| annotations.contains_key(INITIAL_EVENTS_END));
                    if listing && ends {
                        listing = false;
                        self.synced(resource_version).await?;
                    } else if !listing {
                        let version = resource_version.parse().unwrap_or(0);
                        self.version = resource_version;
                        self.shared.record_version(&self.query.gvk, version);
                        self.send(Event::Progress { version }).await?;
                    }
                }
                "ERROR" => {
                    let status: ApiStatus = serde_json::from_str(line.object.get()).unwrap_or_default();
                    let message = format!("{} ({})", status.message, status.code);
                    let status = StatusCode::from_u16(status.code).ok();
                    return Err(RequestFailure { status, message, retry_after: None }.into());
                }
                _ => {}
            }
            // The permit is held until the list is complete.
            permit = permit.filter(|_| listing);
        }
    }

    async fn change(&mut self, kind: &str, raw: &RawValue, listing: bool) -> FollowOutcome<()> {
        let object = Object::parse(raw.to_owned(), &self.query.gvk).map_err(unreadable)?;
        if !listing && object.metadata.version != 0 {
            self.version = object.metadata.version.to_string();
            self.shared.record_version(&self.query.gvk, object.metadata.version);
        }
        let event = if kind == "DELETED" { Event::Delete(object.metadata) } else { Event::Apply(object) };
        Ok(self.send(event).await?)
    }
}

fn unreadable(error: serde_json::Error) -> RequestFailure {
    RequestFailure::failed(format!("read an event: {error}"))
}

/// Time limits of lists and watches.
#[derive(Clone, Debug)]
pub(super) struct WatchLimits {
    /// First pause after a failure; each further one is twice as long.
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    /// Longest duration of a watch.
    pub(super) longest_watch: Duration,
    /// A watch without a line for this long is opened again. Bookmarks come once a minute.
    pub(super) longest_silence: Duration,
    /// How long a kind must be missing until it is certain that it does not exist.
    pub(super) absent_after: Duration,
    /// How long lists must be too old until it is certain that the cluster was restored from a backup.
    pub(super) restored_after: Duration,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            longest_watch: Duration::from_mins(5),
            longest_silence: Duration::from_secs(90),
            absent_after: Duration::from_secs(30),
            restored_after: Duration::from_mins(2),
        }
    }
}
