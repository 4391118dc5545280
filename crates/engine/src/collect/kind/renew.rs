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
                let covered = |feed: &Feed| feed.serves.contains(&served.definition) && feed.covers(name);
                match effect {
                    NamespaceEffect::Lost => {
                        for uid in served.rows.find(|row, _| row.key.namespace == *name) {
                            served.claims.iter_mut().for_each(|claims| drop(claims.remove(&uid)));
                            served.rows.remove(&uid);
                        }
                    }
                    NamespaceEffect::Other if self.feeds.iter().any(covered) => {
                        let renewal = self.renewals.entry(name.clone()).or_insert((now, BTreeSet::new()));
                        renewal.1.insert(served.definition);
                    }
                    NamespaceEffect::Other | NamespaceEffect::None => {}
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
            let Some((_, definitions)) = self.renewals.remove(&name) else { continue };
            let covering = self.feeds.iter().filter(|f| f.purpose == Purpose::Follow && f.covers(&name));
            let queries: Vec<(Query, BTreeSet<u32>)> = covering
                .map(|feed| {
                    let query =
                        Query { namespace: Some(name.clone()), follow: false, ..(*feed.query).clone() };
                    (query, feed.serves.intersection(&definitions).copied().collect())
                })
                .collect();
            for (query, serves) in queries {
                let covered: BTreeSet<u32> = serves;
                if !covered.is_empty() {
                    self.start(query, Purpose::Renew, covered);
                }
            }
        }
    }
}
