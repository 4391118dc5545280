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

use super::order::{Listed, ObjectEvent};
use crate::{
    collect::{Context, panic_of},
    coverage::Place,
    tasks::{Task, TaskKind, TaskName},
    watch::{Event, Metadata, Query, WatchSource},
};

/// Events that may wait for the task of the kind; when there are more, the stream waits.
pub(super) const QUEUE: usize = 256;

/// Which feed an event comes from. `None`: the feed has ended.
pub(super) type Arrival = (u64, Option<Event>);

/// What a feed is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Keep the rows of its members up to date.
    Follow,
    /// List one namespace once more, because the namespace has changed.
    Renew,
    /// List metadata, to find out whether events were missed.
    Compare,
}

/// How much a feed has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its first list is running.
    Listing,
    /// Every event up to its position.
    Synced,
    /// No events for the time being.
    Blind,
}

pub(super) struct Feed {
    pub(super) id: u64,
    pub(super) place: Place,
    pub(super) purpose: Purpose,
    /// Its query, and its last complete list.
    pub(super) listed: Listed,
    progress: Progress,
    /// Every event up to this version has been received.
    position: u64,
    /// The list that is running.
    list: Option<List>,
    /// When its last event came.
    heard: Instant,
    /// Whether it may have missed events, and must be replaced.
    pub(super) suspect: bool,
    /// Whether it replaces a suspect: changes by its first list are repairs.
    pub(super) repairs: bool,
    /// No more events will come.
    ended: bool,
    _task: Task,
}

/// Hashes of the UIDs in a list. A collision would keep a deleted row until the next list; for a million objects its
/// probability is below 10⁻⁷.
#[derive(Default)]
pub(super) struct List(HashSet<u64>);

impl List {
    pub(super) fn shows(&self, uid: &str) -> bool {
        self.0.contains(&hash(uid))
    }
}

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

/// Passes the events of a query to the task of its kind.
async fn pass_on(id: u64, source: Arc<dyn WatchSource>, query: Query, events: mpsc::Sender<Arrival>) {
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
        context: &Context,
        purpose: Purpose,
        (query, serves): (Query, BTreeSet<u32>),
        events: mpsc::Sender<Arrival>,
    ) -> Self {
        let name = TaskName::of_kind(TaskKind::Watch, &query.gvk, query.namespace.as_ref());
        let (source, asked, sender) = (context.source.clone(), query.clone(), events.clone());
        let work = move || pass_on(id, source.clone(), asked.clone(), sender.clone());
        let gvk = query.gvk.clone();
        let task = context.tasks.restarted(name, work, move |pause| {
            let (events, blindness) = (events.clone(), panic_of(&gvk));
            async move {
                drop(events.send((id, Some(Event::Blind(blindness)))).await);
                // Other feeds end here: the task of the kind drops them, and starts new ones if needed.
                if purpose != Purpose::Follow {
                    drop(events.send((id, None)).await);
                }
                time::sleep(pause).await;
            }
        });
        Self {
            id,
            place: Place::of(&query),
            purpose,
            listed: Listed { query, serves: Arc::new(serves), version: 0 },
            progress: Progress::Listing,
            position: 0,
            list: None,
            heard: Instant::now(),
            suspect: false,
            repairs: false,
            ended: false,
            _task: task,
        }
    }

    pub(super) fn query(&self) -> &Query {
        &self.listed.query
    }

    pub(super) fn follows(&self) -> bool {
        self.purpose == Purpose::Follow
    }

    pub(super) fn serves(&self, definition: u32) -> bool {
        self.listed.serves.contains(&definition)
    }

    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    pub(super) fn is_synced(&self) -> bool {
        self.progress == Progress::Synced
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
        let (listing, renewal) = (self.list.is_some(), self.purpose == Purpose::Renew);
        ObjectEvent { object, query: &self.listed.query, serves: &self.listed.serves, listing, renewal }
    }

    /// Whether its first list has begun, and has received nothing for `patience`. Before its list begins, a feed may
    /// be waiting for its turn.
    pub(super) fn is_stalled(&self, now: Instant, patience: Duration) -> bool {
        self.follows()
            && self.progress == Progress::Listing
            && self.list.is_some()
            && now.duration_since(self.heard) >= patience
    }

    /// Whether its changes are repairs now.
    pub(super) fn is_repairing(&self) -> bool {
        self.repairs && self.list.is_some()
    }

    /// Every event up to this version has been received. `None`: it has received nothing and is blind, so that its
    /// first list will be newer than all known versions.
    pub(super) fn passed(&self) -> Option<u64> {
        (self.progress != Progress::Blind || self.listed.version != 0).then_some(self.position)
    }

    /// Records that an event came.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    pub(super) fn begin_list(&mut self) {
        self.list = Some(List::default());
    }

    /// Records an object of an event. Returns whether a list is running.
    pub(super) fn show(&mut self, object: &Metadata) -> bool {
        self.advance(object.version);
        if let Some(list) = &mut self.list {
            list.0.insert(hash(&object.uid));
        }
        self.list.is_some()
    }

    /// Records the version of an event. Events of a list are in no order.
    pub(super) fn advance(&mut self, version: u64) {
        if self.list.is_none() {
            self.pass(version);
        }
    }

    /// Removes a deleted object from the running list: a streamed list reports deletions, too.
    pub(super) fn hide(&mut self, object: &Metadata) {
        if let Some(list) = &mut self.list {
            list.0.remove(&hash(&object.uid));
        }
    }

    /// Every event up to this version has been received.
    pub(super) fn pass(&mut self, version: u64) {
        self.position = self.position.max(version);
    }

    /// Whether a complete list of this version is older than events that were received before.
    pub(super) fn went_back(&self, version: u64) -> bool {
        version != 0 && version < self.position
    }

    /// The list is complete. Returns the objects that it contained, and whether its changes are repairs.
    pub(super) fn end_list(&mut self, version: u64) -> (Option<List>, bool) {
        self.pass(version);
        self.listed.version = version;
        self.progress = Progress::Synced;
        (self.list.take(), std::mem::take(&mut self.repairs))
    }

    /// Events are received again, and none was missed. Returns its position.
    pub(super) fn resume(&mut self) -> u64 {
        self.progress = Progress::Synced;
        self.position
    }

    /// No events are received from now on.
    pub(super) fn go_blind(&mut self) {
        self.progress = Progress::Blind;
    }

    /// No more events will come.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }
}
