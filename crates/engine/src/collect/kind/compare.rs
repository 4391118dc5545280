//! Finds missed events: periodically compares the rows with a fresh list of metadata.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{
    KindTask,
    feed::{Feed, FeedPurpose, ListedUids},
    target::KindTarget,
};
use crate::{
    select::Namespaces,
    watch::{Object, Query},
};

/// How long a comparison waits for events that are still on their way.
const WAIT_FOR_EVENTS: Duration = Duration::from_secs(10);

pub(super) struct Comparisons {
    differences: Vec<ListDifferences>,
    begun: Instant,
    /// Spreads the comparisons of kinds over time.
    jitter: f64,
}

/// Differences between a list of metadata and the rows.
struct ListDifferences {
    /// Id of the feed that lists.
    list_feed: u64,
    /// Id of the feed that may have missed events.
    feed: u64,
    /// Definitions and objects, with their versions; 0: the object is gone.
    objects: Vec<(u32, Arc<str>, u64)>,
    due: Option<Instant>,
}

impl Comparisons {
    pub(super) fn new() -> Self {
        Self { differences: Vec::new(), begun: Instant::now(), jitter: 0.8 + fastrand::f64() / 5.0 }
    }

    /// Whether a comparison is due, which begins now.
    pub(super) fn are_due(&mut self, now: Instant, period: Duration) -> bool {
        let due = now.duration_since(self.begun) >= period.mul_f64(self.jitter);
        if due {
            self.begun = now;
        }
        due
    }

    pub(super) fn clear(&mut self) {
        self.differences.clear();
    }

    /// The list of a comparison has failed.
    pub(super) fn remove(&mut self, list_feed: u64) {
        self.differences.retain(|difference| difference.list_feed != list_feed);
    }

    /// Records the targets that lack this version of an object in the list of a comparison.
    pub(super) fn compare(
        &mut self,
        list_feed: &Feed,
        targets: &[KindTarget],
        object: &Object,
        namespaces: &Namespaces,
    ) {
        let Some(difference) =
            self.differences.iter_mut().find(|difference| difference.list_feed == list_feed.id)
        else {
            return;
        };
        let missing = |target: &&KindTarget| {
            list_feed.serves(target.definition()) && target.misses(list_feed.query(), object, namespaces)
        };
        let (uid, version) = (&object.metadata.uid, object.metadata.version);
        let missing =
            targets.iter().filter(missing).map(|target| (target.definition(), uid.clone(), version));
        difference.objects.extend(missing);
    }

    /// The list of a comparison is complete: records rows whose objects it did not contain.
    pub(super) fn finish(&mut self, list_feed: &Feed, targets: &[KindTarget], listed_uids: &ListedUids) {
        let Some(difference) =
            self.differences.iter_mut().find(|difference| difference.list_feed == list_feed.id)
        else {
            return;
        };
        for target in targets.iter().filter(|target| list_feed.serves(target.definition())) {
            let extra = target.extra(&list_feed.listed, listed_uids).into_iter();
            difference.objects.extend(extra.map(|uid| (target.definition(), uid, 0)));
        }
        difference.due = Some(Instant::now() + WAIT_FOR_EVENTS);
    }

    /// Removes the differences that are due. Returns the feeds for which one of them still exists.
    fn take_feeds_with_missed_events(&mut self, now: Instant, targets: &[KindTarget]) -> Vec<u64> {
        let differs = |(definition, uid, version): &(u32, Arc<str>, u64)| {
            let target = targets.iter().find(|target| target.definition() == *definition);
            target.is_some_and(|target| target.still_differs(uid, *version))
        };
        let due = self.differences.extract_if(.., |difference| difference.due.is_some_and(|due| due <= now));
        due.filter(|difference| difference.objects.iter().any(differs))
            .map(|difference| difference.feed)
            .collect()
    }
}

impl KindTask {
    pub(super) fn start_comparisons(&mut self) {
        let synced = |feed: &&Feed| feed.follows() && feed.is_synced();
        let (compared, lists): (Vec<_>, Vec<_>) = self
            .feeds
            .iter()
            .filter(synced)
            .map(|feed| {
                let query = Query { metadata_only: true, follow: false, ..feed.query().clone() };
                (feed.id, (query, (*feed.listed.serves).clone()))
            })
            .unzip();
        let ids = self.feeds.start_lists(&self.context, FeedPurpose::Compare, lists);
        let begun = ids.into_iter().zip(compared);
        let begun = begun.map(|(list_feed, feed)| ListDifferences {
            list_feed,
            feed,
            objects: Vec::new(),
            due: None,
        });
        self.comparisons.differences.extend(begun);
    }

    /// Marks feeds that have missed events, so that they are replaced.
    pub(super) fn mark_feeds_with_missed_events(&mut self, now: Instant) {
        for feed in self.comparisons.take_feeds_with_missed_events(now, &self.targets) {
            self.feeds.replace_later(feed);
            self.plan.outdate();
        }
    }
}
