//! One query that is being read: its stream, and how far it has come.

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

/// Events that wait for the task of the kind; more make the stream wait.
pub(super) const QUEUE: usize = 256;

/// Which feed an event comes from. `None`: the feed has ended.
pub(super) type Arrival = (u64, Option<Event>);

/// What a feed is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Rows of its members, from now on.
    Follow,
    /// Rows of one namespace once more, because the namespace has changed.
    Renew,
    /// Find out whether events were missed.
    Compare,
}

/// How much a feed has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its first list is running.
    Listing,
    /// Everything up to its position.
    Synced,
    /// Nothing, for the time being.
    Blind,
}

pub(super) struct Feed {
    pub(super) id: u64,
    pub(super) place: Place,
    pub(super) purpose: Purpose,
    /// What it reads, and its last complete list.
    pub(super) listed: Listed,
    progress: Progress,
    /// Everything that happened up to this version has been told.
    position: u64,
    /// The list that is running.
    list: Option<List>,
    /// When its last event came.
    heard: Instant,
    /// Whether it is suspected to have missed something, and must be replaced.
    pub(super) suspect: bool,
    /// Whether it replaces a suspect: what its first list changes was missed.
    pub(super) repairs: bool,
    /// No more events will come.
    ended: bool,
    _task: Task,
}

/// The objects that a list has shown. Hashes are enough: a collision of two of a million objects, which
/// would keep a deleted row until the next list, is less likely than one in 10⁷.
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

/// Hands the events of a query to the task of its kind.
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
                // What is read once more is asked for again by the task of the kind, which drops this feed.
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

    /// It serves none but these definitions from now on.
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

    /// Whether its first list, which has begun, has stood still for so long. Before its list begins a feed may
    /// be waiting for its turn.
    pub(super) fn is_stalled(&self, now: Instant, patience: Duration) -> bool {
        self.follows()
            && self.progress == Progress::Listing
            && self.list.is_some()
            && now.duration_since(self.heard) >= patience
    }

    /// Whether what it changes now was missed before.
    pub(super) fn is_repairing(&self) -> bool {
        self.repairs && self.list.is_some()
    }

    /// Everything up to this version has been told. `None`: it has seen nothing and cannot see now, so that it
    /// will begin with a list that is newer than all that is known.
    pub(super) fn passed(&self) -> Option<u64> {
        (self.progress != Progress::Blind || self.listed.version != 0).then_some(self.position)
    }

    /// An event came.
    pub(super) fn hear(&mut self) {
        self.heard = Instant::now();
    }

    pub(super) fn begin_list(&mut self) {
        self.list = Some(List::default());
    }

    /// It shows an object. Says whether in a list.
    pub(super) fn show(&mut self, object: &Metadata) -> bool {
        self.advance(object.version);
        if let Some(list) = &mut self.list {
            list.0.insert(hash(&object.uid));
        }
        self.list.is_some()
    }

    /// An event of this version came. Events of a list are in no order.
    pub(super) fn advance(&mut self, version: u64) {
        if self.list.is_none() {
            self.pass(version);
        }
    }

    /// The object is gone. A streamed list tells what happens while it runs.
    pub(super) fn hide(&mut self, object: &Metadata) {
        if let Some(list) = &mut self.list {
            list.0.remove(&hash(&object.uid));
        }
    }

    /// What happened up to this version has been told.
    pub(super) fn pass(&mut self, version: u64) {
        self.position = self.position.max(version);
    }

    /// Whether a complete list of this version is older than what was told before.
    pub(super) fn went_back(&self, version: u64) -> bool {
        version != 0 && version < self.position
    }

    /// The list is complete. Returns what it showed, and whether that repairs what was missed.
    pub(super) fn end_list(&mut self, version: u64) -> (Option<List>, bool) {
        self.pass(version);
        self.listed.version = version;
        self.progress = Progress::Synced;
        (self.list.take(), std::mem::take(&mut self.repairs))
    }

    /// It can be seen again, and nothing was missed. Returns how far it has come.
    pub(super) fn resume(&mut self) -> u64 {
        self.progress = Progress::Synced;
        self.position
    }

    /// Nothing can be seen from now on.
    pub(super) fn go_blind(&mut self) {
        self.progress = Progress::Blind;
    }

    /// No more events will come.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }
}
