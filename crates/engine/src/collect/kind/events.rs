//! Applies the events of the feeds to the rows.

use tokio::time::{Duration, Instant};

use super::{
    KindTask,
    feed::{FeedEvent, FeedPurpose},
    order::EventDecision,
    target::{Extractions, KindTarget},
};
use crate::{
    coverage::WatchState,
    watch::{BlindReason, Blindness, Event, Metadata, Object},
};

/// Pause before the list of a changed namespace is tried again.
const RETRY: Duration = Duration::from_secs(5);

impl KindTask {
    pub(super) fn handle_event(&mut self, (id, event): FeedEvent) {
        let Some(index) = self.feeds.find(id) else { return };
        let coverage = &self.context.coverage;
        let feed = self.feeds.at_mut(index);
        feed.record_event();
        match event {
            Some(Event::Listing { total }) => {
                feed.begin_list();
                if feed.follows() {
                    coverage.set(&feed.watched, WatchState::Listing { seen: 0, total });
                }
            }
            Some(Event::Apply(object)) => self.handle_object(index, &object),
            Some(Event::Delete(metadata)) => self.handle_deletion(index, &metadata),
            Some(Event::Synced { version }) => self.handle_synced(index, version),
            Some(Event::Progress { version }) => {
                coverage.set(&feed.watched, WatchState::synced(version));
                self.feeds.advance_to(index, version);
            }
            Some(Event::Resumed) => {
                let position = feed.resume();
                coverage.set(&feed.watched, WatchState::synced(position));
                self.plan.outdate();
            }
            Some(Event::Blind(blindness)) => self.handle_blind(index, blindness),
            None if feed.follows() => feed.end(),
            None => drop(self.feeds.remove(index)),
        }
    }

    pub(super) fn handle_blind(&mut self, index: usize, blindness: Blindness) {
        let feed = self.feeds.at_mut(index);
        let namespace = feed.query().namespace.clone();
        match (feed.purpose, namespace) {
            (FeedPurpose::Follow, namespace) => {
                feed.go_blind();
                if blindness.reason == BlindReason::Forbidden {
                    self.plan.permissions.deny(namespace);
                }
                let known = self.context.coverage.of_kind(&self.kind.gvk);
                if known.get(&feed.watched).is_some_and(|known| known.state.is_blind_for(blindness.reason)) {
                    self.context.coverage.set(&feed.watched, WatchState::blind(blindness));
                } else {
                    self.context.report_blind(&feed.watched, blindness);
                }
                self.plan.outdate();
            }
            (FeedPurpose::Renew, Some(namespace)) => {
                self.renewals.add(&namespace, Instant::now() + RETRY, &*feed.listed.serves);
            }
            (FeedPurpose::Renew, None) => {}
            (FeedPurpose::Compare, _) => self.comparisons.remove(feed.id),
        }
    }

    /// A feed has sent an object.
    fn handle_object(&mut self, index: usize, object: &Object) {
        let Self { context, kind, targets, namespaces, feeds, comparisons, .. } = self;
        let metadata = &object.metadata;
        let feed = feeds.at_mut(index);
        let listed = feed.record_object(metadata);
        if feed.purpose == FeedPurpose::Compare {
            comparisons.compare(feed, targets, object, namespaces);
            return;
        }
        if listed && feed.follows() {
            context.coverage.count(&feed.watched, 1);
        }
        feeds.record_object(index, metadata);
        let mut extractions = Extractions::default();
        for target in targets {
            let feed = feeds.at(index);
            if !feed.serves(target.definition()) {
                continue;
            }
            match feeds.step(index, metadata, target.definition(), target.version(&metadata.uid)) {
                EventDecision::Ignore => {}
                EventDecision::Reselect => target.reselect(feed.query(), object, namespaces),
                EventDecision::Read => {
                    let query = feed.query();
                    let changed = target.read(context, kind, namespaces, query, object, &mut extractions);
                    if changed && feed.is_repairing() {
                        context.coverage.count_repairs(&feed.watched, 1);
                    }
                    feeds.keep_version(index, metadata, || target.knows(&metadata.uid));
                }
            }
        }
    }

    fn handle_deletion(&mut self, index: usize, metadata: &Metadata) {
        let Self { kind, targets, namespaces, feeds, .. } = self;
        feeds.record_deletion(index, metadata);
        let feed = feeds.at(index);
        for target in targets.iter_mut().filter(|target| feed.serves(target.definition())) {
            target.delete(kind, namespaces, feed.query(), metadata);
        }
    }

    /// A list is complete: objects that it did not contain are gone, unless a newer event reported them.
    fn handle_synced(&mut self, index: usize, version: u64) {
        let Self { context, targets, feeds, .. } = self;
        let feed = feeds.at_mut(index);
        if feed.is_older_list(version) {
            self.start_over();
            return;
        }
        let (listed_uids, repairs) = feed.end_list(version);
        if feed.purpose == FeedPurpose::Compare {
            let feed = feeds.remove(index);
            self.comparisons.finish(&feed, targets, &listed_uids.unwrap_or_default());
            return;
        }
        // An incomplete source, such as files, does not prove that an object is gone.
        if let Some(listed_uids) = listed_uids.filter(|_| context.source.is_complete()) {
            for target in targets.iter_mut().filter(|target| feed.serves(target.definition())) {
                let removed = target.prune(&feed.listed, &listed_uids);
                if repairs {
                    context.coverage.count_repairs(&feed.watched, removed);
                }
            }
        }
        if feed.follows() {
            context.coverage.set(&feed.watched, WatchState::synced(version));
            self.restart_renewals(index);
        } else {
            feeds.end_renewal(index);
        }
        self.plan.outdate();
    }

    /// Resource versions went back: the cluster was restored from a backup. Known versions do not order events any
    /// more, so everything is read again.
    fn start_over(&mut self) {
        self.feeds.clear();
        self.comparisons.clear();
        self.targets.iter_mut().for_each(KindTarget::start_over);
        self.plan.outdate();
    }
}
