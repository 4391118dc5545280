//! A feed: the event stream of one query, and its progress.

use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::StreamExt;
use tokio::{
    sync::mpsc,
    time::{self, Duration, Instant},
};

use super::order::{ListedQuery, ObjectEvent};
use crate::{
    collect::{CollectContext, panic_of},
    coverage::WatchKey,
    tasks::{Task, TaskKind, TaskName},
    watch::{Event, Metadata, Query, WatchSource},
};

/// Events that may wait for the task of the kind; when there are more, the stream waits.
pub(super) const QUEUE_LENGTH: usize = 256;

/// Which feed an event comes from. `None`: the feed has ended.
pub(super) type FeedEvent = (u64, Option<Event>);

/// What a feed is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedPurpose {
    /// Keep the rows of its members up to date.
    Follow,
    /// List one namespace once more, because the namespace has changed.
    Renew,
    /// List metadata, to find out whether events were missed.
    Compare,
}

/// How much a feed has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedProgress {
    /// Its first list is running.
    Listing,
    /// Every event up to its position.
    Synced,
    /// No events for the time being.
    Blind,
}

pub(super) struct Feed {
    pub(super) id: u64,
    pub(super) watched: WatchKey,
    pub(super) purpose: FeedPurpose,
    /// Its query, and its last complete list.
    pub(super) listed: ListedQuery,
    progress: FeedProgress,
    /// Every event up to this version has been received.
    position: u64,
    /// The list that is running.
    list: Option<ListedUids>,
    /// When its last event came.
    last_event: Instant,
    /// Whether it has missed events, and must be replaced.
    pub(super) missed_events: bool,
    /// Whether it replaces a feed that missed events: changes by its first list are repairs.
    pub(super) repairs: bool,
    /// No more events will come.
    ended: bool,
    _task: Task,
}

/// Hashes of the UIDs in a list. A collision would keep a deleted row until the next list; for a million objects its
/// probability is below 10⁻⁷.
#[derive(Default)]
pub(super) struct ListedUids(HashSet<u64>);

impl ListedUids {
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.0.contains(&hash(uid))
    }
}

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// Passes the events of a query to the task of its kind.
async fn forward_events(
    id: u64,
    source: Arc<dyn WatchSource>,
    query: Query,
    events: mpsc::Sender<FeedEvent>,
) {
    let mut stream = source.watch(query);
    while let Some(event) = stream.next().await {
        if events.send((id, Some(event))).await.is_err() {
            return;
        }
    }
    drop(events.send((id, None)).await);
}

impl Feed {
    pub(super) fn start(
        id: u64,
        context: &CollectContext,
        purpose: FeedPurpose,
        (query, serves): (Query, BTreeSet<u32>),
        events: mpsc::Sender<FeedEvent>,
    ) -> Self {
        let name = TaskName::of_kind(TaskKind::Watch, &query.gvk, query.namespace.as_ref());
        let (source, watched_query, sender) = (context.source.clone(), query.clone(), events.clone());
        let work = move || forward_events(id, source.clone(), watched_query.clone(), sender.clone());
        let gvk = query.gvk.clone();
        let task = context.tasks.restarted(name, work, move |pause| {
            let (events, blindness) = (events.clone(), panic_of(&gvk));
            async move {
                drop(events.send((id, Some(Event::Blind(blindness)))).await);
                // Other feeds end here: the task of the kind drops them, and starts new ones if needed.
                if purpose != FeedPurpose::Follow {
                    drop(events.send((id, None)).await);
                }
                time::sleep(pause).await;
            }
        });
        Self {
            id,
            watched: WatchKey::of(&query),
            purpose,
            listed: ListedQuery { query, serves: Arc::new(serves), version: 0 },
            progress: FeedProgress::Listing,
            position: 0,
            list: None,
            last_event: Instant::now(),
            missed_events: false,
            repairs: false,
            ended: false,
            _task: task,
        }
    }

    pub(super) fn query(&self) -> &Query {
        &self.listed.query
    }

    pub(super) fn follows(&self) -> bool {
        self.purpose == FeedPurpose::Follow
    }

    pub(super) fn serves(&self, definition: u32) -> bool {
        self.listed.serves.contains(&definition)
    }

    pub(super) fn progress(&self) -> FeedProgress {
        self.progress
    }

    pub(super) fn is_synced(&self) -> bool {
        self.progress == FeedProgress::Synced
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Removes the definitions that `keep` rejects from those that it serves.
    pub(super) fn serve_only(&mut self, keep: impl Fn(u32) -> bool) {
        if !self.listed.serves.iter().all(|definition| keep(*definition)) {
            Arc::make_mut(&mut self.listed.serves).retain(|definition| keep(*definition));
        }
    }

    /// An event of this feed, for the order of events.
    pub(super) fn event<'a>(&'a self, object: &'a Metadata) -> ObjectEvent<'a> {
        let (listing, renewal) = (self.list.is_some(), self.purpose == FeedPurpose::Renew);
        ObjectEvent { object, query: &self.listed.query, serves: &self.listed.serves, listing, renewal }
    }

    /// Whether its first list has begun, and has received nothing for `timeout`. Before its list begins, a feed may
    /// be waiting for its turn.
    pub(super) fn is_stalled(&self, now: Instant, timeout: Duration) -> bool {
        self.follows()
            && self.progress == FeedProgress::Listing
            && self.list.is_some()
            && now.duration_since(self.last_event) >= timeout
    }

    /// Whether its changes are repairs now.
    pub(super) fn is_repairing(&self) -> bool {
        self.repairs && self.list.is_some()
    }

    /// Every event up to this version has been received. `None`: it has received nothing and is blind, so that its
    /// first list will be newer than all known versions.
    pub(super) fn received_up_to(&self) -> Option<u64> {
        (self.progress != FeedProgress::Blind || self.listed.version != 0).then_some(self.position)
    }

    /// Records that an event came.
    pub(super) fn record_event(&mut self) {
        self.last_event = Instant::now();
    }

    pub(super) fn begin_list(&mut self) {
        self.list = Some(ListedUids::default());
    }

    /// Records an object of an event. Returns whether a list is running.
    pub(super) fn record_object(&mut self, object: &Metadata) -> bool {
        self.record_version(object.version);
        if let Some(list) = &mut self.list {
            list.0.insert(hash(&object.uid));
        }
        self.list.is_some()
    }

    /// Records the version of an event. Events of a list are in no order.
    pub(super) fn record_version(&mut self, version: u64) {
        if self.list.is_none() {
            self.advance_to(version);
        }
    }

    /// Removes a deleted object from the running list: a streamed list reports deletions, too.
    pub(super) fn remove_object(&mut self, object: &Metadata) {
        if let Some(list) = &mut self.list {
            list.0.remove(&hash(&object.uid));
        }
    }

    /// Every event up to this version has been received.
    pub(super) fn advance_to(&mut self, version: u64) {
        self.position = self.position.max(version);
    }

    /// Whether a complete list of this version is older than events that were received before.
    pub(super) fn is_older_list(&self, version: u64) -> bool {
        version != 0 && version < self.position
    }

    /// The list is complete. Returns the objects that it contained, and whether its changes are repairs.
    pub(super) fn end_list(&mut self, version: u64) -> (Option<ListedUids>, bool) {
        self.advance_to(version);
        self.listed.version = version;
        self.progress = FeedProgress::Synced;
        (self.list.take(), std::mem::take(&mut self.repairs))
    }

    /// Events are received again, and none was missed. Returns its position.
    pub(super) fn resume(&mut self) -> u64 {
        self.progress = FeedProgress::Synced;
        self.position
    }

    /// No events are received from now on.
    pub(super) fn go_blind(&mut self) {
        self.progress = FeedProgress::Blind;
    }

    /// No more events will come.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }
}
