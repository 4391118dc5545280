//! Finds missed events: periodically compares the rows with a fresh list of metadata.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{
    KindTask,
    feed::{Feed, List, Purpose},
    target::KindTarget,
};
use crate::{
    select::Namespaces,
    watch::{Object, Query},
};

/// How long a comparison waits for events that are still on their way.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) struct Comparisons {
    suspicions: Vec<Suspicion>,
    begun: Instant,
    /// Spreads the comparisons of kinds over time.
    jitter: f64,
}

/// Differences between a list of metadata and the rows.
struct Suspicion {
    /// The feed that lists.
    by: u64,
    /// The feed that may have missed events.
    feed: u64,
    /// Definitions and objects, with their versions; 0: the object is gone.
    objects: Vec<(u32, Arc<str>, u64)>,
    due: Option<Instant>,
}

impl Comparisons {
    pub(super) fn new() -> Self {
        Self { suspicions: Vec::new(), begun: Instant::now(), jitter: 0.8 + fastrand::f64() / 5.0 }
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
        self.suspicions.clear();
    }

    /// The list of a comparison has failed.
    pub(super) fn abandon(&mut self, by: u64) {
        self.suspicions.retain(|suspicion| suspicion.by != by);
    }

    /// Records the targets that lack this version of an object in the list of a comparison.
    pub(super) fn compare(
        &mut self,
        by: &Feed,
        targets: &[KindTarget],
        object: &Object,
        namespaces: &Namespaces,
    ) {
        let Some(suspicion) = self.suspicions.iter_mut().find(|suspicion| suspicion.by == by.id) else {
            return;
        };
        let missing = |target: &&KindTarget| {
            by.serves(target.definition()) && target.misses(by.query(), object, namespaces)
        };
        let (uid, version) = (&object.metadata.uid, object.metadata.version);
        let missing =
            targets.iter().filter(missing).map(|target| (target.definition(), uid.clone(), version));
        suspicion.objects.extend(missing);
    }

    /// The list of a comparison is complete: records rows whose objects it did not contain.
    pub(super) fn finish(&mut self, by: &Feed, targets: &[KindTarget], shown: &List) {
        let Some(suspicion) = self.suspicions.iter_mut().find(|suspicion| suspicion.by == by.id) else {
            return;
        };
        for target in targets.iter().filter(|target| by.serves(target.definition())) {
            let extra = target.extra(&by.listed, shown).into_iter();
            suspicion.objects.extend(extra.map(|uid| (target.definition(), uid, 0)));
        }
        suspicion.due = Some(Instant::now() + SETTLE);
    }

    /// The feeds whose differences are due and still exist.
    fn take_suspects(&mut self, now: Instant, targets: &[KindTarget]) -> Vec<u64> {
        let differs = |(definition, uid, version): &(u32, Arc<str>, u64)| {
            let target = targets.iter().find(|target| target.definition() == *definition);
            target.is_some_and(|target| target.still_differs(uid, *version))
        };
        let due = self.suspicions.extract_if(.., |suspicion| suspicion.due.is_some_and(|due| due <= now));
        due.filter(|suspicion| suspicion.objects.iter().any(differs))
            .map(|suspicion| suspicion.feed)
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
        let ids = self.feeds.start_lists(&self.context, Purpose::Compare, lists);
        let begun = ids.into_iter().zip(compared);
        let begun = begun.map(|(by, feed)| Suspicion { by, feed, objects: Vec::new(), due: None });
        self.comparisons.suspicions.extend(begun);
    }

    /// Marks feeds that have missed events, so that they are replaced.
    pub(super) fn judge(&mut self, now: Instant) {
        for feed in self.comparisons.take_suspects(now, &self.targets) {
            self.feeds.suspect(feed);
            self.plan.outdate();
        }
    }
}
