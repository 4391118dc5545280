//! The task of one kind: which feeds it needs, and how their events change the rows.
//!
//! ```text
//! targets, namespaces ──▶ plan ──▶ feeds ──▶ events ──▶ target ──▶ rows
//!           permissions ───┘         └─ order: is it stale?
//! ```
//!
//! Feeds overlap while one replaces another, or while a namespace is listed once more. `order` decides from versions
//! which of their events are stale.

mod compare;
mod events;
mod feed;
mod feeds;
mod order;
mod permissions;
mod plan;
mod renew;
mod target;

use std::{collections::BTreeMap, sync::Arc};

use kollect_model::crd::shapes::Gvk;
use tokio::{
    sync::{mpsc, watch},
    time::{self, Duration, Instant},
};

use super::{CollectContext, Target};
use crate::{
    coverage::{WatchKey, WatchState},
    select::Namespaces,
    watch::{BlindReason, Blindness, Resolution},
};
use compare::Comparisons;
use feed::{Feed, FeedEvent, QUEUE_LENGTH};
use feeds::Feeds;
use plan::QueryPlan;
use renew::Renewals;
use target::KindTarget;

/// Keeps the rows of a kind up to date while targets select it.
pub(super) async fn follow(
    context: Arc<CollectContext>,
    gvk: Gvk,
    mut wanted: watch::Receiver<Vec<Arc<Target>>>,
) {
    let mut namespaces = context.namespaces.subscribe();
    let mut kinds = context.source.kinds();
    let Ok(known) = namespaces.wait_for(Option::is_some).await.map(|known| known.clone()) else { return };
    let (sender, mut events) = mpsc::channel(QUEUE_LENGTH);
    let period = context.settings.review.min(Duration::from_secs(5));
    let mut kind = KindTask::new(context, gvk, known.unwrap_or_default(), sender);
    kind.take_targets(&wanted.borrow_and_update().clone());
    kind.resolve().await;
    let mut tick = time::interval(period);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut received = Vec::with_capacity(QUEUE_LENGTH);
    loop {
        if kind.plan.take_outdated() {
            kind.reconcile().await;
        }
        tokio::select! {
            // Targets are handled before events. They change too rarely to delay events.
            biased;
            changed = wanted.changed() => match changed {
                Ok(()) => kind.take_targets(&wanted.borrow_and_update().clone()),
                Err(_) => return,
            },
            Ok(()) = namespaces.changed() => {
                let known = namespaces.borrow_and_update().clone();
                kind.take_namespaces(known.unwrap_or_default());
            }
            Ok(()) = kinds.changed() => kind.resolve().await,
            _ = tick.tick() => kind.tick().await,
            _ = events.recv_many(&mut received, QUEUE_LENGTH) => {
                received.drain(..).for_each(|event| kind.handle_event(event));
            }
        }
    }
}

/// The kind as rows and queries name it, and what the source knows about it.
struct ResolvedKind {
    gvk: Gvk,
    group: Arc<str>,
    kind: Arc<str>,
    version: Arc<str>,
    /// `None`: the source has not been asked yet.
    resolution: Option<Resolution>,
}

impl ResolvedKind {
    fn new(gvk: Gvk) -> Self {
        let [group, kind, version] = [&gvk.group, &gvk.kind, &gvk.version].map(|text| text.as_str().into());
        Self { gvk, group, kind, version, resolution: None }
    }

    fn is_served(&self) -> bool {
        matches!(self.resolution, Some(Resolution::Served(_)))
    }

    fn is_namespaced(&self) -> bool {
        matches!(&self.resolution, Some(Resolution::Served(resource)) if resource.namespaced)
    }
}

struct KindTask {
    context: Arc<CollectContext>,
    kind: ResolvedKind,
    targets: Vec<KindTarget>,
    namespaces: Arc<Namespaces>,
    plan: QueryPlan,
    feeds: Feeds,
    renewals: Renewals,
    comparisons: Comparisons,
    /// When ended feeds and kinds that are not served were last checked.
    last_check: Instant,
}

impl KindTask {
    fn new(
        context: Arc<CollectContext>,
        gvk: Gvk,
        known: Arc<Namespaces>,
        events: mpsc::Sender<FeedEvent>,
    ) -> Self {
        Self {
            context,
            kind: ResolvedKind::new(gvk),
            targets: Vec::new(),
            namespaces: known,
            plan: QueryPlan::new(),
            feeds: Feeds::new(events),
            renewals: Renewals::default(),
            comparisons: Comparisons::new(),
            last_check: Instant::now(),
        }
    }

    fn take_targets(&mut self, targets: &[Arc<Target>]) {
        let before = self.targets.drain(..).map(|target| (target.definition(), target));
        let mut before: BTreeMap<u32, KindTarget> = before.collect();
        let mut is_new = false;
        let now = targets.iter().map(|target| {
            let known = before.remove(&target.definition);
            is_new |= known.is_none();
            known.unwrap_or_else(|| KindTarget::new(&self.context, &self.kind, target))
        });
        self.targets.extend(now);
        if is_new {
            // Ask for the permissions of a new definition at once.
            self.plan.permissions.review_soon();
            self.plan.permissions.forget_denials(&self.namespaces);
        }
        self.feeds
            .set_several_field_selectors(self.targets.iter().any(KindTarget::has_several_field_selectors));
        self.plan.outdate();
    }

    async fn resolve(&mut self) {
        let resolution = self.context.source.resolve(&self.kind.gvk).await;
        let failed = |blindness: &Blindness| blindness.reason == BlindReason::Failed;
        match &resolution {
            same if self.kind.resolution.as_ref() == Some(same) => return,
            // A failed discovery does not stop a watch that works.
            Resolution::Blind(blindness) if self.kind.is_served() && failed(blindness) => return,
            _ => {}
        }
        let everywhere = WatchKey { gvk: self.kind.gvk.clone(), namespace: None, field_selector: None };
        match &resolution {
            Resolution::Served(resource) => {
                self.context.coverage.set_resource(&self.kind.gvk, &resource.name, resource.namespaced);
            }
            Resolution::Absent => {
                self.context.coverage.set(&everywhere, WatchState::Absent);
                self.targets.iter_mut().for_each(KindTarget::remove_all);
            }
            Resolution::Blind(blindness) => self.context.report_blind(&everywhere, blindness.clone()),
        }
        self.kind.resolution = Some(resolution);
        self.feeds.drop_ended(Feed::is_synced);
        self.plan.outdate();
    }

    async fn tick(&mut self) {
        let (now, settings) = (Instant::now(), self.context.settings.clone());
        if !settings.follow {
            return;
        }
        if self.plan.permissions.is_review_due(now, settings.review) {
            // Denied queries are planned again, which asks for permission first.
            if !self.plan.permissions.denied().is_empty() {
                self.plan.outdate();
            }
            self.plan.permissions.forget_denials(&self.namespaces);
        }
        if now.duration_since(self.last_check) >= settings.review {
            self.last_check = now;
            let has_ended = self.feeds.iter().any(Feed::is_ended);
            if !self.kind.is_served() || has_ended {
                self.resolve().await;
            }
            if has_ended {
                self.feeds.drop_ended(|_| false);
                self.plan.outdate();
            }
        }
        let stalled = |index: &usize| self.feeds.at(*index).is_stalled(now, settings.stall_timeout);
        let stalled: Vec<usize> = (0..self.feeds.iter().len()).filter(stalled).collect();
        for index in stalled {
            let (kind, seconds) = (&self.kind.gvk, settings.stall_timeout.as_secs());
            let message = format!("list {kind}: received nothing for {seconds} s");
            self.handle_blind(index, Blindness { reason: BlindReason::Failed, message });
        }
        self.renew();
        self.mark_feeds_with_missed_events(now);
        if self.comparisons.are_due(now, settings.resync) {
            self.start_comparisons();
        }
    }
}
