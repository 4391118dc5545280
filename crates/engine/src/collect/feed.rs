//! One query that is being read: its stream, and how far it has come.

use std::{
    collections::{BTreeSet, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::StreamExt;
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use super::{Context, panic_of};
use crate::{
    coverage::Place,
    tasks::{Task, TaskKind, TaskName},
    watch::{Blindness, Event, Query, WatchSource},
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// Its first list is running.
    Listing,
    /// Everything up to its position.
    Synced,
    /// Nothing, for the time being.
    Blind(Blindness),
}

pub(super) struct Feed {
    pub(super) id: u64,
    pub(super) query: Arc<Query>,
    pub(super) place: Place,
    pub(super) purpose: Purpose,
    /// Definitions of the targets that it serves.
    pub(super) serves: BTreeSet<u32>,
    pub(super) sight: Sight,
    /// Everything that happened up to this version has been told.
    pub(super) position: u64,
    /// Version of its last complete list.
    pub(super) listed: u64,
    /// The list that is running.
    pub(super) list: Option<List>,
    /// When something was last heard of it.
    pub(super) heard: Instant,
    /// Whether it is suspected to have missed something, and must be replaced.
    pub(super) suspect: bool,
    /// Whether it replaces a suspect: what its list changes was missed.
    pub(super) repairs: bool,
    /// Nothing more will come.
    pub(super) ended: bool,
    _task: Task,
}

/// The objects that a running list has shown. Hashes are enough: a collision of two of a million
/// objects, which would keep a deleted row until the next list, is less likely than one in 10⁷.
#[derive(Default)]
pub(super) struct List(HashSet<u64>);

impl List {
    pub(super) fn show(&mut self, uid: &str) {
        self.0.insert(hash(uid));
    }

    /// The object is gone before the list has ended.
    pub(super) fn hide(&mut self, uid: &str) {
        self.0.remove(&hash(uid));
    }

    pub(super) fn shows(&self, uid: &str) -> bool {
        self.0.contains(&hash(uid))
    }
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

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

impl Feed {
    pub(super) fn start(
        id: u64,
        context: &Context,
        query: Query,
        purpose: Purpose,
        serves: BTreeSet<u32>,
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
            query: Arc::new(query),
            purpose,
            serves,
            sight: Sight::Listing,
            position: 0,
            listed: 0,
            list: None,
            heard: Instant::now(),
            suspect: false,
            repairs: false,
            ended: false,
            _task: task,
        }
    }

    /// Whether objects of the namespace can be among its own.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.query.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// Whether an object can be in both.
    pub(super) fn overlaps(&self, query: &Query) -> bool {
        let (a, b) = (&self.query.namespace, &query.namespace);
        self.query.field_selector == query.field_selector && (a.is_none() || b.is_none() || a == b)
    }
}
