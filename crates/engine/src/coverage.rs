//! The coverage ledger: which places are watched, since when, and every gap with its reason.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use kollect_model::crd::shapes::Gvk;
use tokio::sync::watch;

use crate::{
    clock,
    watch::{BlindReason, Blindness, Query},
};

/// Gaps that are kept per place; the oldest is dropped first.
const GAPS: usize = 16;

/// A kind, and the scope in which it is watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Kind.
    pub gvk: Gvk,
    /// Namespace; `None`: the whole cluster.
    pub namespace: Option<Arc<str>>,
    /// Field selector, if the API server filters with one.
    pub field_selector: Option<String>,
}

impl Place {
    pub(crate) fn of(query: &Query) -> Self {
        Self {
            gvk: query.gvk.clone(),
            namespace: query.namespace.clone(),
            field_selector: query.field_selector.clone(),
        }
    }
}

/// How much is known about the objects of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The list has not begun yet.
    Waiting,
    /// The first list is running.
    Listing {
        /// Objects so far.
        seen: u64,
        /// Objects in all, if known.
        total: Option<u64>,
    },
    /// All objects are known.
    Synced {
        /// Start of the time without a gap.
        since: SystemTime,
        /// Every event up to this resource version has been received.
        version: u64,
    },
    /// The kind does not exist.
    Absent,
    /// Events are not received now; what was known is frozen.
    Blind {
        /// Since when.
        since: SystemTime,
        /// Why.
        blindness: Blindness,
    },
}

impl State {
    pub(crate) fn synced(version: u64) -> Self {
        Self::Synced { since: clock::now(), version }
    }

    pub(crate) fn is_blind_for(&self, reason: BlindReason) -> bool {
        matches!(self, Self::Blind { blindness, .. } if blindness.reason == reason)
    }

    pub(crate) fn blind(blindness: Blindness) -> Self {
        Self::Blind { since: clock::now(), blindness }
    }
}

/// A period in which events were not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it began.
    pub from: SystemTime,
    /// When it ended.
    pub to: SystemTime,
    /// Why.
    pub blindness: Blindness,
}

/// What is known about a place.
#[derive(Clone, Debug)]
pub struct ScopeCoverage {
    /// Current state.
    pub state: State,
    /// Resource name as in RBAC rules, such as `deployments.apps`; `None`: not known yet.
    pub resource: Option<Arc<str>>,
    /// The last gaps, oldest first.
    pub gaps: VecDeque<Gap>,
    /// Rows that the periodic comparison with a list has repaired.
    pub repaired: u64,
}

impl ScopeCoverage {
    fn add_gap(&mut self, gap: Gap) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
    }
}

/// The coverage ledger. Collector tasks write it, other tasks read it. Clones share one ledger.
#[derive(Clone, Default)]
pub struct Coverage {
    ledger: Arc<Mutex<Ledger>>,
    news: watch::Sender<()>,
}

#[derive(Default)]
struct Ledger {
    places: BTreeMap<Place, ScopeCoverage>,
    /// Number of ended gaps by reason, including gaps of places that were removed.
    restarts: BTreeMap<BlindReason, u64>,
    /// Resource name of each kind as in RBAC rules, and whether the kind is namespaced.
    resources: BTreeMap<Gvk, (Arc<str>, bool)>,
    /// Kinds that have changed since [`Coverage::take_changed_kinds`] was last called.
    changed: BTreeSet<Gvk>,
}

impl Coverage {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified when a place is added or removed, or when its state or resource name changes.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// The kinds with such a change since the last call.
    pub fn take_changed_kinds(&self) -> BTreeSet<Gvk> {
        std::mem::take(&mut self.ledger().changed)
    }

    fn report(&self, ledger: &mut Ledger, gvk: &Gvk) {
        ledger.changed.insert(gvk.clone());
        self.news.send_replace(());
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Place, ScopeCoverage>) -> T) -> T {
        change(&mut self.ledger().places)
    }

    /// Calls `look` for every place, without a copy. The ledger is locked meanwhile: `look` must return soon.
    pub fn visit(&self, mut look: impl FnMut(&Place, &ScopeCoverage)) {
        self.with(|places| places.iter().for_each(|(place, known)| look(place, known)));
    }

    /// Number of gaps that have ended, by reason.
    pub fn restarts(&self) -> BTreeMap<BlindReason, u64> {
        self.ledger().restarts.clone()
    }

    /// Like [`Self::visit`], for the places of one kind.
    pub fn visit_kind(&self, gvk: &Gvk, mut look: impl FnMut(&Place, &ScopeCoverage)) {
        let first = Place { gvk: gvk.clone(), namespace: None, field_selector: None };
        self.with(|places| {
            let own = places.range(first..).take_while(|(place, _)| place.gvk == *gvk);
            own.for_each(|(place, known)| look(place, known));
        });
    }

    /// Whether a kind is cluster-scoped; `None`: not known yet.
    pub fn is_cluster_scoped(&self, gvk: &Gvk) -> Option<bool> {
        self.ledger().resources.get(gvk).map(|(_, namespaced)| !namespaced)
    }

    /// A copy of all places.
    pub fn read(&self) -> BTreeMap<Place, ScopeCoverage> {
        self.with(|places| places.clone())
    }

    pub(crate) fn set(&self, place: &Place, state: State) {
        let mut ledger = self.ledger();
        let Ledger { places, restarts, resources, .. } = &mut *ledger;
        let Some(known) = places.get_mut(place) else {
            let resource = resources.get(&place.gvk).map(|(resource, _)| resource.clone());
            places
                .insert(place.clone(), ScopeCoverage { state, resource, gaps: VecDeque::new(), repaired: 0 });
            self.report(&mut ledger, &place.gvk);
            return;
        };
        let state = match (&known.state, state) {
            // Keep the start of the gap, and take the newest reason.
            (State::Blind { since, .. }, State::Blind { blindness, .. }) => {
                State::Blind { since: *since, blindness }
            }
            // A list that is still running neither ends a gap nor replaces a synced state.
            (State::Blind { .. } | State::Synced { .. }, State::Listing { .. } | State::Waiting) => {
                return;
            }
            (State::Blind { since, blindness }, next @ (State::Synced { .. } | State::Absent)) => {
                let gap = Gap { from: *since, to: clock::now(), blindness: blindness.clone() };
                *restarts.entry(blindness.reason).or_default() += 1;
                known.add_gap(gap);
                next
            }
            (State::Synced { since, version: known_version }, State::Synced { version, .. }) => {
                let newer = version.max(*known_version);
                known.state = State::Synced { since: *since, version: newer };
                return;
            }
            (_, next) => next,
        };
        if std::mem::replace(&mut known.state, state.clone()) != state {
            self.report(&mut ledger, &place.gvk);
        }
    }

    /// Sets the resource name of a kind as in RBAC rules, and whether the kind is namespaced.
    pub(crate) fn name(&self, gvk: &Gvk, resource: &str, namespaced: bool) {
        let resource: Arc<str> = resource.into();
        let mut ledger = self.ledger();
        let own = ledger.places.iter_mut().filter(|(place, _)| place.gvk == *gvk);
        own.for_each(|(_, known)| known.resource = Some(resource.clone()));
        let named = (resource, namespaced);
        if ledger.resources.insert(gvk.clone(), named.clone()) != Some(named) {
            self.report(&mut ledger, gvk);
        }
    }

    /// Adds objects to the count of a running list.
    pub(crate) fn count(&self, place: &Place, more: u64) {
        self.with(|places| {
            if let Some(ScopeCoverage { state: State::Listing { seen, .. }, .. }) = places.get_mut(place) {
                *seen += more;
            }
        });
    }

    pub(crate) fn count_repairs(&self, place: &Place, rows: u64) {
        self.with(|places| {
            if let Some(known) = places.get_mut(place) {
                known.repaired += rows;
            }
        });
    }

    /// A copy of the places of one kind.
    pub(crate) fn of_kind(&self, gvk: &Gvk) -> BTreeMap<Place, ScopeCoverage> {
        let mut found = BTreeMap::new();
        self.visit_kind(gvk, |place, known| drop(found.insert(place.clone(), known.clone())));
        found
    }

    /// Removes the places of the kind that `keep` rejects. An open gap of a removed place is recorded as a gap of the
    /// remaining places of the kind.
    pub(crate) fn forget(&self, gvk: &Gvk, keep: impl Fn(&Place) -> bool) {
        let kind = self.of_kind(gvk);
        let gone: Vec<(&Place, &ScopeCoverage)> = kind.iter().filter(|(place, _)| !keep(place)).collect();
        if gone.is_empty() {
            return;
        }
        self.report(&mut self.ledger(), gvk);
        self.with(|places| {
            for (place, known) in gone {
                places.remove(place);
                if let State::Blind { since, blindness } = &known.state {
                    let gap = Gap { from: *since, to: clock::now(), blindness: blindness.clone() };
                    let others = places.iter_mut().filter(|(place, _)| place.gvk == *gvk);
                    others.for_each(|(_, known)| known.add_gap(gap.clone()));
                }
            }
        });
    }

    /// Removes kinds that no target selects any more.
    pub(crate) fn forget_kinds(&self, gone: impl Fn(&Gvk) -> bool) {
        let mut ledger = self.ledger();
        ledger.places.retain(|place, _| !gone(&place.gvk));
        ledger.resources.retain(|gvk, _| !gone(gvk));
    }
}
