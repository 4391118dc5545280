//! Changed namespaces: only the affected rows are read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{KindTask, feed::FeedPurpose};
use crate::{
    select::{NamespaceEffect, Namespaces},
    watch::Query,
};

/// Namespaces to list once more, when, and for which definitions of targets.
#[derive(Default)]
pub(super) struct Renewals(BTreeMap<Arc<str>, (Instant, BTreeSet<u32>)>);

impl Renewals {
    /// Plans to list the namespace once more. If that is already planned, its time stays.
    pub(super) fn add<'a>(
        &mut self,
        name: &Arc<str>,
        due: Instant,
        definitions: impl IntoIterator<Item = &'a u32>,
    ) {
        let (_, members) = self.0.entry(name.clone()).or_insert_with(|| (due, BTreeSet::new()));
        members.extend(definitions);
    }

    fn take_due(&mut self, now: Instant) -> Vec<(Arc<str>, BTreeSet<u32>)> {
        let due = self.0.extract_if(.., |_, (due, _)| *due <= now);
        due.map(|(name, (_, definitions))| (name, definitions)).collect()
    }
}

impl KindTask {
    /// Applies a change of namespaces to the rows.
    pub(super) fn take_namespaces(&mut self, known: Arc<Namespaces>) {
        let before = std::mem::replace(&mut self.namespaces, known);
        let names: BTreeSet<&Arc<str>> = before.known.keys().chain(self.namespaces.known.keys()).collect();
        let now = Instant::now();
        for name in names {
            let (old, new) = (before.known.get(name), self.namespaces.known.get(name));
            if let (Some(old), Some(new)) = (old, new)
                && Arc::ptr_eq(old, new)
            {
                continue;
            }
            let (old, new) = (old.map(|n| &**n), new.map(|n| &**n));
            for target in &mut self.targets {
                let effect = target.effect(&self.kind, name, old, new);
                if effect != NamespaceEffect::None {
                    self.feeds.forget_renewals(name, target.definition());
                }
                match effect {
                    NamespaceEffect::Lost => target.remove_namespace(name),
                    NamespaceEffect::Other => self.renewals.add(name, now, &[target.definition()]),
                    NamespaceEffect::None => {}
                }
            }
        }
        self.renew();
        self.plan.outdate();
    }

    /// Starts the planned lists that are due.
    pub(super) fn renew(&mut self) {
        for (name, mut definitions) in self.renewals.take_due(Instant::now()) {
            // An older list that is still running would send stale objects after newer ones.
            let older = self.feeds.take_renewals(|feed| feed.query().namespace.as_ref() == Some(&name));
            older.iter().for_each(|feed| definitions.extend(feed.listed.serves.iter()));
            // Each target has one list per field selector: that of its newest feed.
            let mut lists: Vec<(Query, BTreeSet<u32>)> = Vec::new();
            let feeds = self.feeds.iter().rev();
            for feed in feeds.filter(|feed| feed.follows() && !feed.is_ended() && feed.listed.covers(&name)) {
                let same = lists.iter().filter(|(q, _)| q.field_selector == feed.query().field_selector);
                let done: BTreeSet<u32> = same.flat_map(|(_, serves)| serves).copied().collect();
                let serves = feed.listed.serves.intersection(&definitions).copied();
                let query = Query { namespace: Some(name.clone()), follow: false, ..feed.query().clone() };
                lists.push((query, serves.filter(|definition| !done.contains(definition)).collect()));
            }
            // No feed reads the namespace now: the next one must make its rows again.
            for target in self.targets.iter_mut().filter(|target| definitions.contains(&target.definition()))
            {
                if !lists.iter().any(|(_, serves)| serves.contains(&target.definition())) {
                    target.outdate_namespace(&name);
                }
            }
            lists.retain(|(_, serves)| !serves.is_empty());
            self.feeds.start_lists(&self.context, FeedPurpose::Renew, lists);
        }
    }

    /// A list is complete. Running lists of changed namespaces may send older objects: they begin again.
    pub(super) fn restart_renewals(&mut self, index: usize) {
        let listed = self.feeds.at(index).query().clone();
        let now = Instant::now();
        for feed in self.feeds.take_renewals(|feed| feed.listed.overlaps(&listed)) {
            if let Some(namespace) = &feed.query().namespace {
                self.renewals.add(namespace, now, &*feed.listed.serves);
            }
        }
        self.renew();
    }
}
