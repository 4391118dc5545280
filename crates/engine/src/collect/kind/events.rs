//! Applies the events of the feeds to the rows.

use tokio::time::{Duration, Instant};

use super::{
    KindTask,
    feed::{Arrival, Purpose},
    order::Step,
    target::{Extractions, KindTarget},
};
use crate::{
    coverage::State,
    watch::{BlindReason, Blindness, Event, Metadata, Object},
};

/// Pause before the list of a changed namespace is tried again.
const RETRY: Duration = Duration::from_secs(5);

impl KindTask {
    pub(super) fn hear(&mut self, (id, event): Arrival) {
        let Some(index) = self.feeds.find(id) else { return };
        let coverage = &self.context.coverage;
        let feed = self.feeds.at_mut(index);
        feed.hear();
        match event {
            Some(Event::Listing { total }) => {
                feed.begin_list();
                if feed.follows() {
                    coverage.set(&feed.place, State::Listing { seen: 0, total });
                }
            }
            Some(Event::Apply(object)) => self.show(index, &object),
            Some(Event::Delete(metadata)) => self.delete(index, &metadata),
            Some(Event::Synced { version }) => self.synced(index, version),
            Some(Event::Progress { version }) => {
                coverage.set(&feed.place, State::synced(version));
                self.feeds.pass(index, version);
            }
            Some(Event::Resumed) => {
                let position = feed.resume();
                coverage.set(&feed.place, State::synced(position));
                self.plan.outdate();
            }
            Some(Event::Blind(blindness)) => self.blind(index, blindness),
            None if feed.follows() => feed.end(),
            None => drop(self.feeds.remove(index)),
        }
    }

    pub(super) fn blind(&mut self, index: usize, blindness: Blindness) {
        let feed = self.feeds.at_mut(index);
        let namespace = feed.query().namespace.clone();
        match (feed.purpose, namespace) {
            (Purpose::Follow, namespace) => {
                feed.go_blind();
                if blindness.reason == BlindReason::Forbidden {
                    self.plan.permissions.deny(namespace);
                }
                let known = self.context.coverage.of_kind(&self.kind.gvk);
                if known.get(&feed.place).is_some_and(|known| known.state.is_blind_for(blindness.reason)) {
                    self.context.coverage.set(&feed.place, State::blind(blindness));
                } else {
                    self.context.tell_blind(&feed.place, blindness);
                }
                self.plan.outdate();
            }
            (Purpose::Renew, Some(namespace)) => {
                self.renewals.add(&namespace, Instant::now() + RETRY, &*feed.listed.serves);
            }
            (Purpose::Renew, None) => {}
            (Purpose::Compare, _) => self.comparisons.abandon(feed.id),
        }
    }

    /// A feed has sent an object.
    fn show(&mut self, index: usize, object: &Object) {
        let Self { context, kind, targets, namespaces, feeds, comparisons, .. } = self;
        let metadata = &object.metadata;
        let feed = feeds.at_mut(index);
        let listed = feed.show(metadata);
        if feed.purpose == Purpose::Compare {
            comparisons.compare(feed, targets, object, namespaces);
            return;
        }
        if listed && feed.follows() {
            context.coverage.count(&feed.place, 1);
        }
        feeds.note_object(index, metadata);
        let mut extractions = Extractions::default();
        for target in targets {
            let feed = feeds.at(index);
            if !feed.serves(target.definition()) {
                continue;
            }
            match feeds.step(index, metadata, target.definition(), target.version(&metadata.uid)) {
                Step::Ignore => {}
                Step::Reselect => target.reselect(feed.query(), object, namespaces),
                Step::Read => {
                    let query = feed.query();
                    let changed = target.read(context, kind, namespaces, query, object, &mut extractions);
                    if changed && feed.is_repairing() {
                        context.coverage.count_repairs(&feed.place, 1);
                    }
                    feeds.keep_version(index, metadata, || target.knows(&metadata.uid));
                }
            }
        }
    }

    fn delete(&mut self, index: usize, metadata: &Metadata) {
        let Self { kind, targets, namespaces, feeds, .. } = self;
        feeds.note_deletion(index, metadata);
        let feed = feeds.at(index);
        for target in targets.iter_mut().filter(|target| feed.serves(target.definition())) {
            target.delete(kind, namespaces, feed.query(), metadata);
        }
    }

    /// A list is complete: objects that it did not contain are gone, unless a newer event reported them.
    fn synced(&mut self, index: usize, version: u64) {
        let Self { context, targets, feeds, .. } = self;
        let feed = feeds.at_mut(index);
        if feed.went_back(version) {
            self.start_over();
            return;
        }
        let (shown, repairs) = feed.end_list(version);
        if feed.purpose == Purpose::Compare {
            let feed = feeds.remove(index);
            self.comparisons.finish(&feed, targets, &shown.unwrap_or_default());
            return;
        }
        // An incomplete source, such as files, does not prove that an object is gone.
        if let Some(shown) = shown.filter(|_| context.source.is_complete()) {
            for target in targets.iter_mut().filter(|target| feed.serves(target.definition())) {
                let removed = target.prune(&feed.listed, &shown);
                if repairs {
                    context.coverage.count_repairs(&feed.place, removed);
                }
            }
        }
        if feed.follows() {
            context.coverage.set(&feed.place, State::synced(version));
            self.restart_renewals(index);
        } else {
            feeds.end_renewal(index);
        }
        self.plan.outdate();
    }

    /// Resource versions went back: the cluster was restored from a backup. ScopeCoverage versions do not order events any
    /// more, so everything is read again.
    fn start_over(&mut self) {
        self.feeds.clear();
        self.comparisons.clear();
        self.targets.iter_mut().for_each(KindTarget::start_over);
        self.plan.outdate();
    }
}
