//! Namespaces that change: exactly the rows that this concerns are looked at again.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;

use super::KindTask;
use crate::{
    collect::feed::{Feed, Purpose},
    select::{NamespaceEffect, Namespaces, same_metadata},
    watch::Query,
};

impl KindTask {
    /// What a change of namespaces means for the rows.
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
            for served in &mut self.served {
                let selection = &served.target.selection;
                let effect = match selection.effect(&self.gvk, name, old, new) {
                    NamespaceEffect::None
                        if new.is_some()
                            && served.target.profile.reads_namespace()
                            && !same_metadata(old, new) =>
                    {
                        NamespaceEffect::Other
                    }
                    effect => effect,
                };
                if effect != NamespaceEffect::None {
                    // What was told about the namespace, or is being told, is about another one.
                    self.told.retain(|told| told.namespace.as_ref() != Some(name));
                    let renewals = self.feeds.iter_mut().filter(|feed| feed.purpose == Purpose::Renew);
                    for feed in renewals.filter(|feed| feed.query.namespace.as_ref() == Some(name)) {
                        feed.serves.remove(&served.definition);
                    }
                }
                match effect {
                    NamespaceEffect::Lost => {
                        for uid in served.rows.find(|key, _| key.namespace == *name) {
                            served.claims.iter_mut().for_each(|claims| drop(claims.remove(&uid)));
                            served.rows.remove(&uid);
                        }
                    }
                    NamespaceEffect::Other => {
                        let renewal = self.renewals.entry(name.clone()).or_insert((now, BTreeSet::new()));
                        renewal.1.insert(served.definition);
                    }
                    NamespaceEffect::None => {}
                }
            }
        }
        self.renew();
        self.replan = true;
    }

    /// Lists namespaces once more that have changed.
    pub(super) fn renew(&mut self) {
        let now = Instant::now();
        let due: Vec<Arc<str>> =
            self.renewals.iter().filter(|(_, (due, _))| *due <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            let Some((_, mut definitions)) = self.renewals.remove(&name) else { continue };
            // An older list that is still running would bring older news after newer ones.
            let older = |feed: &mut Feed| {
                feed.purpose == Purpose::Renew && feed.query.namespace.as_ref() == Some(&name)
            };
            definitions.extend(self.feeds.extract_if(.., older).flat_map(|feed| feed.serves));
            // Each target has one list per field selector: that of its newest feed.
            let mut queries: Vec<(Query, BTreeSet<u32>)> = Vec::new();
            for feed in self.feeds.iter().rev().filter(|feed| looks_at(feed, &name)) {
                let same =
                    queries.iter().filter(|(query, _)| query.field_selector == feed.query.field_selector);
                let done: BTreeSet<u32> = same.flat_map(|(_, serves)| serves).copied().collect();
                let serves = feed.serves.intersection(&definitions).copied().filter(|d| !done.contains(d));
                let query = Query { namespace: Some(name.clone()), follow: false, ..(*feed.query).clone() };
                queries.push((query, serves.collect()));
            }
            // Where nobody can look now, whoever looks next must look twice.
            for served in self.served.iter_mut().filter(|served| definitions.contains(&served.definition)) {
                if !queries.iter().any(|(_, serves)| serves.contains(&served.definition)) {
                    served.rows.outdate(&name);
                    served.stale = true;
                }
            }
            for (query, serves) in queries.into_iter().filter(|(_, serves)| !serves.is_empty()) {
                self.start(query, Purpose::Renew, serves);
            }
        }
        self.notice_overlap();
    }
}

impl KindTask {
    /// A list is complete. What lists beside it have not told yet may be older: they begin again.
    pub(super) fn restart_renewals(&mut self, listed: &Query) {
        let older = |feed: &mut Feed| feed.purpose == Purpose::Renew && feed.overlaps(listed);
        for feed in self.feeds.extract_if(.., older).collect::<Vec<_>>() {
            let Some(namespace) = feed.query.namespace.clone() else { continue };
            let renewal = self.renewals.entry(namespace).or_insert((Instant::now(), BTreeSet::new()));
            renewal.1.extend(feed.serves);
        }
        self.renew();
    }
}

/// Whether changes in the namespace come from this feed.
fn looks_at(feed: &Feed, namespace: &str) -> bool {
    feed.purpose == Purpose::Follow && !feed.ended && feed.covers(namespace)
}
