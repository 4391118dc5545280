//! The queries that the targets of the kind need and may make, and how much each target has seen.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    KindTask, ResolvedKind,
    feed::FeedProgress,
    feeds::{FeedIndex, Feeds},
    permissions::Permissions,
    target::KindTarget,
};
use crate::{
    collect::{CollectContext, CollectProblem},
    coverage::WatchKey,
    select::{KindQueries, Namespaces, QueryTarget, queries},
    store::Visibility,
    watch::{BlindReason, Blindness, Query, Resolution},
};

pub(super) struct QueryPlan {
    queries: KindQueries,
    /// Whether it must be made again.
    outdated: bool,
    pub(super) permissions: Permissions,
}

impl QueryPlan {
    pub(super) fn new() -> Self {
        Self { queries: KindQueries::default(), outdated: true, permissions: Permissions::new() }
    }

    /// Marks the plan: targets, namespaces, permissions, feeds or the kind itself have changed.
    pub(super) fn outdate(&mut self) {
        self.outdated = true;
    }

    /// Whether the plan must be made again; clears the mark.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.outdated)
    }

    /// Plans the queries that may be made. Permissions that are not known yet are asked for.
    async fn make(
        &mut self,
        context: &CollectContext,
        kind: &ResolvedKind,
        targets: &[KindTarget],
        namespaces: &Namespaces,
    ) {
        let members: Vec<QueryTarget<'_>> = targets.iter().map(KindTarget::member).collect();
        let (within, follow) = (context.settings.within.as_ref(), context.settings.follow);
        loop {
            let denied = self.permissions.denied();
            let mut plan = queries(&kind.gvk, kind.is_namespaced(), &members, namespaces, within, denied);
            plan.wanted = plan.wanted.into_iter().map(|(query, m)| (Query { follow, ..query }, m)).collect();
            if !self.permissions.ask(&*context.source, plan.wanted.keys()).await {
                self.queries = plan;
                return;
            }
        }
    }

    /// Reports what is forbidden to the coverage, and removes from it what is not watched.
    fn report_forbidden(&self, context: &CollectContext, kind: &ResolvedKind, feeds: &Feeds) {
        let Some(Resolution::Served(resource)) = &kind.resolution else {
            let cluster =
                |watched: &WatchKey| watched.namespace.is_none() && watched.field_selector.is_none();
            context.coverage.retain(&kind.gvk, cluster);
            return;
        };
        let known = context.coverage.of_kind(&kind.gvk);
        let verbs = if context.settings.follow { "verbs list and watch" } else { "verb list" };
        for namespace in self.queries.forbidden.keys() {
            let watched =
                WatchKey { gvk: kind.gvk.clone(), namespace: namespace.clone(), field_selector: None };
            let was_reported =
                known.get(&watched).is_some_and(|k| k.state.is_blind_for(BlindReason::Forbidden));
            if !was_reported {
                let area = match namespace {
                    Some(namespace) => format!("in namespace {namespace}"),
                    None => "in the whole cluster".into(),
                };
                let message = format!("list {} {area}: forbidden; grant the {verbs} on it", resource.name);
                context.report_blind(&watched, Blindness { reason: BlindReason::Forbidden, message });
            }
        }
        let followed: BTreeSet<&WatchKey> =
            feeds.iter().filter(|f| f.follows()).map(|feed| &feed.watched).collect();
        let forbidden = |watched: &WatchKey| self.queries.forbidden.contains_key(&watched.namespace);
        context.coverage.retain(&kind.gvk, |watched| followed.contains(watched) || forbidden(watched));
    }

    /// How much all feeds of a target have seen, ignoring the limits of its reach.
    fn visibility(
        &self,
        context: &CollectContext,
        kind: &ResolvedKind,
        definition: u32,
        feeds: &FeedIndex<'_>,
    ) -> Visibility {
        match &kind.resolution {
            None => return Visibility::Pending,
            Some(Resolution::Absent) => return Visibility::Absent,
            Some(Resolution::Blind(_)) => return Visibility::Partial,
            Some(Resolution::Served(_)) => {}
        }
        if self.queries.undecided.contains(&definition) || !context.source.is_complete() {
            return if feeds.is_listing_for(definition) { Visibility::Pending } else { Visibility::Partial };
        }
        let own = self.queries.forbidden.iter().filter(|(_, members)| members.contains(&definition));
        let mut blind: BTreeSet<Option<Arc<str>>> = own.map(|(namespace, _)| namespace.clone()).collect();
        let own = self.queries.wanted.iter().filter(|(_, members)| members.contains(&definition));
        for (query, members) in own {
            match feeds.progress(query, members, definition) {
                FeedProgress::Synced => {}
                FeedProgress::Blind => drop(blind.insert(query.namespace.clone())),
                FeedProgress::Listing => return Visibility::Pending,
            }
        }
        match context.settings.within.as_ref().filter(|_| kind.is_namespaced()) {
            _ if blind.contains(&None) => Visibility::Partial,
            Some(within) => {
                let seen = within.iter().filter(|name| !blind.contains(&Some((*name).clone())));
                Visibility::Within(seen.cloned().collect())
            }
            None if blind.is_empty() => Visibility::Everything,
            None => Visibility::AllBut(blind.into_iter().flatten().collect()),
        }
    }
}

impl KindTask {
    /// Starts and stops feeds as wanted and permitted, and updates the visibilities of the targets.
    pub(super) async fn reconcile(&mut self) {
        let Self { context, kind, targets, namespaces, plan, feeds, .. } = self;
        if kind.is_served() {
            plan.make(context, kind, targets, namespaces).await;
            feeds.follow(
                context,
                &plan.queries.wanted,
                &targets.iter().map(KindTarget::definition).collect(),
            );
        } else {
            plan.queries = KindQueries::default();
            feeds.clear();
            self.comparisons.clear();
        }
        // The coverage is updated before the visibilities: readers that wait for visibilities find it complete.
        plan.report_forbidden(context, kind, feeds);
        let index = FeedIndex::of(feeds);
        for target in targets {
            let definition = target.definition();
            let visibility = plan.visibility(context, kind, definition, &index);
            if target.set_undecided(plan.queries.undecided.contains(&definition)) {
                let (target, gvk) = (target.id().clone(), kind.gvk.clone());
                (context.report)(CollectProblem::Undecided { target, gvk });
            }
            let within = context.settings.within.as_ref().filter(|_| kind.is_namespaced());
            let is_complete = match &visibility {
                Visibility::Everything => true,
                Visibility::Within(seen) => within == Some(seen),
                _ => false,
            };
            target.set_visibility(visibility, is_complete, kind, namespaces);
        }
    }
}
