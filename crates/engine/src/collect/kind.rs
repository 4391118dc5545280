//! The task of one kind: which feeds it needs, and what their events mean for the rows.
//!
//! Feeds overlap while one replaces another, or while a namespace is listed once more. Versions bring
//! their events into order: whatever comes from whom, a row never goes back to an older version of its
//! object, and what one feed has seen vanish no slower feed brings back.

mod compare;
mod events;
mod plan;
mod renew;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use kollect_model::crd::shapes::Gvk;
use tokio::{
    sync::{mpsc, watch},
    time::{self, Duration, Instant},
};

use super::{
    Context, Problem, Target,
    feed::{Arrival, Feed, Purpose, QUEUE, Sight},
};
use crate::{
    coverage::{Place, State},
    select::{Namespaces, Queries},
    store::{self, KindRows},
    watch::{BlindReason, Blindness, Metadata, Query, Resolution},
};
use compare::Suspicion;
use events::{Latest, Told};

/// Permissions that are asked for again at a time.
const DOUBTED: usize = 64;

/// Keeps the rows of a kind up to date until nobody wants them.
pub(super) async fn follow(context: Arc<Context>, gvk: Gvk, mut wanted: watch::Receiver<Vec<Arc<Target>>>) {
    let mut namespaces = context.namespaces.subscribe();
    let mut kinds = context.source.kinds();
    let Ok(known) = namespaces.wait_for(Option::is_some).await.map(|known| known.clone()) else { return };
    let (sender, mut events) = mpsc::channel(QUEUE);
    let period = context.settings.review.min(Duration::from_secs(5));
    let mut kind = KindTask::new(context, gvk, known.unwrap_or_default(), sender);
    kind.take_targets(&wanted.borrow_and_update().clone());
    kind.resolve().await;
    let mut tick = time::interval(period);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut arrivals = Vec::with_capacity(QUEUE);
    loop {
        if std::mem::take(&mut kind.replan) {
            kind.reconcile().await;
        }
        tokio::select! {
            // What is wanted comes before what is told; it is rare enough to starve nobody.
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
            _ = events.recv_many(&mut arrivals, QUEUE) => {
                arrivals.drain(..).for_each(|arrival| kind.hear(arrival));
            }
        }
    }
}

/// A target that this kind serves.
struct Served {
    target: Arc<Target>,
    definition: u32,
    rows: KindRows,
    /// Rows of earlier definitions may still be there.
    stale: bool,
    /// Where several queries may return one object: which of them do, and since which version.
    claims: Option<HashMap<Arc<str>, Claimed>>,
    undecided: bool,
    /// What the store was told, once something had been seen.
    sight: Option<store::Sight>,
}

/// Field selectors of queries, with versions.
type Claimed = BTreeMap<Option<String>, u64>;

impl Served {
    /// At this version of the object a query does not select it any more. Says whether that removed a
    /// row. A target with one query per object need not be told twice: its rows know their version.
    fn release(&mut self, uid: &str, query: &Query, version: u64) -> bool {
        if let Some(claims) = &mut self.claims
            && let Some(claimed) = claims.get_mut(uid)
        {
            claimed.retain(|own, since| *own != query.field_selector || *since > version && version != 0);
            if !claimed.is_empty() {
                return false;
            }
            claims.remove(uid);
        }
        self.rows.remove(uid)
    }

    fn claim(&mut self, metadata: &Metadata, query: &Query) {
        if let Some(claims) = &mut self.claims {
            let claimed = claims.entry(metadata.uid.clone()).or_default();
            let since = claimed.entry(query.field_selector.clone()).or_default();
            *since = metadata.version.max(*since);
        }
    }

    /// Whether only other queries than this one select the object.
    fn belongs_to_others(&self, uid: &str, query: &Query) -> bool {
        let claims = self.claims.as_ref().and_then(|claims| claims.get(uid));
        claims.is_some_and(|claimed| !claimed.contains_key(&query.field_selector))
    }
}

struct KindTask {
    context: Arc<Context>,
    gvk: Gvk,
    group: Arc<str>,
    kind: Arc<str>,
    version: Arc<str>,
    events: mpsc::Sender<Arrival>,
    served: Vec<Served>,
    namespaces: Arc<Namespaces>,
    resolution: Option<Resolution>,
    /// Where listing is permitted, and where not.
    allowed: BTreeSet<Option<Arc<str>>>,
    denied: BTreeSet<Option<Arc<str>>>,
    /// The namespace whose denial was last doubted.
    doubted: Option<Arc<str>>,
    feeds: Vec<Feed>,
    plan: Queries,
    replan: bool,
    latest: Latest,
    told: Vec<Told>,
    /// Namespaces to list once more, when, and for whom.
    renewals: BTreeMap<Arc<str>, (Instant, BTreeSet<u32>)>,
    suspicions: Vec<Suspicion>,
    /// Whether an object can come from several feeds.
    overlap: bool,
    asked: Instant,
    compared: Instant,
    /// Kinds are not compared all at once.
    jitter: f64,
    next_feed: u64,
}

impl KindTask {
    fn new(context: Arc<Context>, gvk: Gvk, known: Arc<Namespaces>, events: mpsc::Sender<Arrival>) -> Self {
        Self {
            context,
            group: gvk.group.as_str().into(),
            kind: gvk.kind.as_str().into(),
            version: gvk.version.as_str().into(),
            gvk,
            events,
            served: Vec::new(),
            namespaces: known,
            resolution: None,
            allowed: BTreeSet::new(),
            denied: BTreeSet::new(),
            doubted: None,
            feeds: Vec::new(),
            plan: Queries::default(),
            replan: true,
            latest: Latest::default(),
            told: Vec::new(),
            renewals: BTreeMap::new(),
            suspicions: Vec::new(),
            overlap: false,
            asked: Instant::now(),
            compared: Instant::now(),
            jitter: 0.8 + fastrand::f64() / 5.0,
            next_feed: 0,
        }
    }

    fn take_targets(&mut self, targets: &[Arc<Target>]) {
        let mut before: BTreeMap<u32, Served> =
            self.served.drain(..).map(|served| (served.definition, served)).collect();
        for target in targets {
            let definition = target.definition();
            let served = before.remove(&definition).unwrap_or_else(|| Served {
                target: target.clone(),
                definition,
                rows: self.context.store.rows(&target.id, &self.gvk),
                stale: true,
                claims: target.selection.is_split(&self.gvk).then(HashMap::new),
                undecided: false,
                sight: None,
            });
            self.served.push(served);
        }
        self.replan = true;
    }

    async fn resolve(&mut self) {
        let resolution = self.context.source.resolve(&self.gvk).await;
        let failed = |blindness: &Blindness| blindness.reason == BlindReason::Failed;
        let served = matches!(self.resolution, Some(Resolution::Served(_)));
        match &resolution {
            same if self.resolution.as_ref() == Some(same) => return,
            // No answer is no reason to stop a watch that works.
            Resolution::Blind(blindness) if served && failed(blindness) => return,
            _ => {}
        }
        let everywhere = Place { gvk: self.gvk.clone(), namespace: None, field_selector: None };
        match &resolution {
            Resolution::Served(resource) => self.context.coverage.name(&self.gvk, &resource.name),
            Resolution::Absent => {
                self.context.coverage.set(&everywhere, State::Absent);
                for served in &mut self.served {
                    served.rows.remove_where(|_, _| true);
                    served.claims.iter_mut().for_each(HashMap::clear);
                }
            }
            Resolution::Blind(blindness) => self.tell_blind(&everywhere, blindness),
        }
        self.resolution = Some(resolution);
        self.feeds.retain(|feed| !feed.ended || feed.sight == Sight::Synced);
        self.replan = true;
    }

    fn tell_blind(&self, place: &Place, blindness: &Blindness) {
        (self.context.report)(Problem::Blind { place: place.clone(), blindness: blindness.clone() });
        self.context.coverage.set(place, State::blind(blindness.clone()));
    }

    /// Asks again for the whole cluster, and for some of the namespaces, taking turns.
    fn doubt_denials(&mut self) {
        self.denied.remove(&None);
        self.denied.retain(|place| place.as_ref().is_some_and(|n| self.namespaces.known.contains_key(n)));
        let next = self.denied.range((Bound::Excluded(self.doubted.clone()), Bound::Unbounded));
        let doubted: Vec<_> = next.chain(self.denied.iter()).take(DOUBTED).cloned().collect();
        doubted.iter().for_each(|place| drop(self.denied.take(place)));
        self.doubted = doubted.last().cloned().flatten();
    }

    async fn tick(&mut self) {
        let (now, settings) = (Instant::now(), self.context.settings.clone());
        if !settings.follow {
            return;
        }
        if now.duration_since(self.asked) >= settings.review {
            self.asked = now;
            if !matches!(self.resolution, Some(Resolution::Served(_))) || self.feeds.iter().any(|f| f.ended) {
                self.resolve().await;
            }
            // What was refused is tried again, after asking whether it is permitted.
            self.replan |= !self.denied.is_empty() || self.feeds.iter().any(|feed| feed.ended);
            self.doubt_denials();
            self.feeds.retain(|feed| !feed.ended);
            self.notice_overlap();
        }
        for index in 0..self.feeds.len() {
            let feed = &self.feeds[index];
            // Before its list begins it may be waiting for its turn.
            let stalled = feed.purpose == Purpose::Follow
                && feed.sight == Sight::Listing
                && feed.list.is_some()
                && now.duration_since(feed.heard) >= settings.patience;
            if stalled {
                let message =
                    format!("list {}: nothing came for {} s", self.gvk, settings.patience.as_secs());
                self.blind(index, Blindness { reason: BlindReason::Failed, message });
            }
        }
        self.renew();
        self.judge(now);
        if now.duration_since(self.compared) >= settings.resync.mul_f64(self.jitter) {
            self.compared = now;
            self.start_comparisons();
        }
    }
}
