//! The backstop: now and then the rows are compared with a fresh list of metadata.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::{Duration, Instant};

use super::KindTask;
use crate::{
    collect::feed::{Feed, List, Purpose, Sight},
    select::Rejected,
    watch::{Object, Query},
};

/// How long a comparison waits for events that are still on their way.
const SETTLE: Duration = Duration::from_secs(10);

/// What a list of metadata shows that the rows do not.
pub(super) struct Suspicion {
    /// The feed that lists.
    pub(super) by: u64,
    /// The feed that may have missed something.
    feed: u64,
    /// Objects with their versions; 0: the object is gone.
    objects: Vec<(u32, Arc<str>, u64)>,
    due: Option<Instant>,
}

impl KindTask {
    pub(super) fn start_comparisons(&mut self) {
        let synced = |feed: &&Feed| feed.purpose == Purpose::Follow && feed.sight == Sight::Synced;
        let feeds: Vec<(u64, Query, BTreeSet<u32>)> = self
            .feeds
            .iter()
            .filter(synced)
            .map(|feed| (feed.id, (*feed.query).clone(), feed.serves.clone()))
            .collect();
        for (feed, query, serves) in feeds {
            let query = Query { metadata_only: true, follow: false, ..query };
            let by = self.start(query, Purpose::Compare, serves).id;
            self.suspicions.push(Suspicion { by, feed, objects: Vec::new(), due: None });
        }
        self.notice_overlap();
    }

    /// What the rows do not show of an object that a comparison lists.
    pub(super) fn compare(&mut self, index: usize, object: &Object) {
        let feed = &mut self.feeds[index];
        let metadata = &object.metadata;
        feed.list.get_or_insert_default().show(&metadata.uid);
        let feed = &self.feeds[index];
        let Some(suspicion) = self.suspicions.iter_mut().find(|s| s.by == feed.id) else { return };
        for served in self.served.iter().filter(|served| feed.serves.contains(&served.definition)) {
            let missed = match served.rows.origin(&metadata.uid) {
                // Rows beyond the reach of the target, which stay as they were, are of an earlier definition.
                Some(origin) => origin.definition == served.definition && origin.version < metadata.version,
                // Policies may read what metadata does not show.
                None => {
                    let verdict = served.target.selection.verdict(&feed.query, object, &self.namespaces);
                    matches!(verdict, Ok(()) | Err(Rejected::Policy))
                }
            };
            if missed {
                suspicion.objects.push((served.definition, metadata.uid.clone(), metadata.version));
            }
        }
    }

    pub(super) fn finish_comparison(&mut self, index: usize, version: u64, list: &List) {
        let feed = self.feeds.remove(index);
        self.notice_overlap();
        let Some(suspicion) = self.suspicions.iter_mut().find(|s| s.by == feed.id) else { return };
        for served in self.served.iter().filter(|served| feed.serves.contains(&served.definition)) {
            let extra = served.rows.find(|key, origin| {
                origin.definition == served.definition
                    && origin.version <= version
                    && feed.covers(&key.namespace)
                    && !list.shows(&key.uid)
                    && !served.belongs_to_others(&key.uid, &feed.query)
            });
            suspicion.objects.extend(extra.into_iter().map(|uid| (served.definition, uid, 0)));
        }
        suspicion.due = Some(Instant::now() + SETTLE);
    }

    /// What a comparison found and no event has explained since was missed: the feed is replaced.
    pub(super) fn judge(&mut self, now: Instant) {
        let (due, waiting): (Vec<Suspicion>, Vec<Suspicion>) = std::mem::take(&mut self.suspicions)
            .into_iter()
            .partition(|s| s.due.is_some_and(|due| due <= now));
        self.suspicions = waiting;
        for Suspicion { feed, objects, .. } in due {
            let missed = objects.iter().any(|(definition, uid, version)| {
                let served = self.served.iter().find(|served| served.definition == *definition);
                let origin = served.map(|served| served.rows.origin(uid));
                match (origin, version) {
                    (None, _) => false,
                    (Some(origin), 0) => origin.is_some(),
                    (Some(origin), version) => origin.is_none_or(|origin| origin.version < *version),
                }
            });
            if missed {
                self.feeds.iter_mut().filter(|f| f.id == feed).for_each(|feed| feed.suspect = true);
                self.replan = true;
            }
        }
    }
}
