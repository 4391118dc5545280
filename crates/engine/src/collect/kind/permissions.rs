//! Where the kind may be listed, according to the answers of the source.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use futures::{StreamExt, stream};
use tokio::time::{Duration, Instant};

use crate::{
    select::Namespaces,
    watch::{Query, WatchSource},
};

/// Concurrent permission requests.
const CONCURRENT_REQUESTS: usize = 8;

/// Denials of namespaces that one review asks for again, at most.
const DENIALS_PER_REVIEW: usize = 100;

pub(super) struct Permissions {
    /// Namespaces; `None`: the whole cluster.
    allowed: BTreeSet<Option<Arc<str>>>,
    denied: BTreeSet<Option<Arc<str>>>,
    /// The last namespace that a review asked for again; the next review continues after it.
    last_requested: Option<Arc<str>>,
    last_review: Instant,
    /// Number of reviews since targets or permissions last changed.
    reviews: u32,
}

/// The first reviews, which are one period apart; the pauses between later ones grow.
const FREQUENT_REVIEWS: u32 = 10;
/// The longest pause between two reviews, in periods.
const LONGEST_PAUSE: u32 = 20;

impl Permissions {
    pub(super) fn new() -> Self {
        let (allowed, denied) = (BTreeSet::new(), BTreeSet::new());
        Self { allowed, denied, last_requested: None, last_review: Instant::now(), reviews: 0 }
    }

    /// Targets or permissions may have changed: the pauses between reviews are short again.
    pub(super) fn review_soon(&mut self) {
        self.reviews = 0;
    }

    /// Where listing is known to be forbidden; `None`: in the whole cluster.
    pub(super) fn denied(&self) -> &BTreeSet<Option<Arc<str>>> {
        &self.denied
    }

    /// A list was refused.
    pub(super) fn deny(&mut self, namespace: Option<Arc<str>>) {
        if self.allowed.remove(&namespace) {
            self.review_soon();
        }
        self.denied.insert(namespace);
    }

    /// Asks for permissions that are not known yet. Returns whether there were any.
    pub(super) async fn ask(
        &mut self,
        source: &dyn WatchSource,
        queries: impl Iterator<Item = &Query>,
    ) -> bool {
        let unknown = queries.filter(|query| !self.allowed.contains(&query.namespace));
        let answers: Vec<(Option<Arc<str>>, bool)> = stream::iter(unknown.cloned().collect::<Vec<_>>())
            .map(|query| async move { (query.namespace.clone(), source.permits(&query).await) })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .collect()
            .await;
        let had_unknown = !answers.is_empty();
        if answers.iter().any(|(_, is_allowed)| *is_allowed) {
            self.review_soon();
        }
        for (namespace, is_allowed) in answers {
            let known = if is_allowed { &mut self.allowed } else { &mut self.denied };
            known.insert(namespace);
        }
        had_unknown
    }

    /// Whether a review of denied permissions is due, which begins now.
    pub(super) fn is_review_due(&mut self, now: Instant, period: Duration) -> bool {
        let periods = (1 << self.reviews.saturating_sub(FREQUENT_REVIEWS).min(5)).min(LONGEST_PAUSE);
        let due = now.duration_since(self.last_review) >= period * periods;
        if due {
            (self.last_review, self.reviews) = (now, self.reviews.saturating_add(1));
        }
        due
    }

    /// Forgets denials, so that they are asked for again: for the whole cluster, for unknown namespaces, and in turn
    /// for some of the others.
    pub(super) fn forget_denials(&mut self, namespaces: &Namespaces) {
        self.denied
            .retain(|namespace| namespace.as_ref().is_some_and(|name| namespaces.known.contains_key(name)));
        let next = self.denied.range((Bound::Excluded(self.last_requested.clone()), Bound::Unbounded));
        let requested: Vec<_> = next.chain(self.denied.iter()).take(DENIALS_PER_REVIEW).cloned().collect();
        requested.iter().for_each(|namespace| drop(self.denied.take(namespace)));
        self.last_requested = requested.last().cloned().flatten();
    }
}
