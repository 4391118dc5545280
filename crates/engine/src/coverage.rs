//! What is being watched, since when, and every gap with its reason.

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

/// How many gaps of a place are remembered.
const GAPS: usize = 16;

/// A kind, and where it is looked at.
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

/// How much of a place is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing has been asked yet.
    Waiting,
    /// The first list is running.
    Listing {
        /// Objects so far.
        seen: u64,
        /// Objects in all, if known.
        total: Option<u64>,
    },
    /// Everything is known.
    Synced {
        /// Since when without a gap.
        since: SystemTime,
        /// Resource version up to which everything is known.
        version: u64,
    },
    /// The kind does not exist.
    Absent,
    /// Nothing is known about what happens now; what was known is frozen.
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

/// A time of which nothing is known.
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
pub struct Known {
    /// Now.
    pub state: State,
    /// What permissions call the kind, such as `deployments.apps`, if that is known.
    pub resource: Option<Arc<str>>,
    /// The last gaps, oldest first.
    pub gaps: VecDeque<Gap>,
    /// Rows that the regular comparison with a list had to repair.
    pub repaired: u64,
}

impl Known {
    fn add_gap(&mut self, gap: Gap) {
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
    }
}

/// The ledger. Whoever watches writes it, everybody can read it.
#[derive(Clone, Default)]
pub struct Coverage {
    ledger: Arc<Mutex<Ledger>>,
    news: watch::Sender<()>,
}

#[derive(Default)]
struct Ledger {
    places: BTreeMap<Place, Known>,
    /// Gaps that have ended, those of forgotten places too.
    restarts: BTreeMap<BlindReason, u64>,
    /// What permissions call the kinds, and whether their objects are in namespaces.
    resources: BTreeMap<Gvk, (Arc<str>, bool)>,
    /// Kinds of which something else can be seen since [`Coverage::take_changed_kinds`] was last called.
    changed: BTreeSet<Gvk>,
}

impl Coverage {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever something can be seen or cannot be seen any more, or for another reason.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// The kinds of which that has changed since the last call.
    pub fn take_changed_kinds(&self) -> BTreeSet<Gvk> {
        std::mem::take(&mut self.ledger().changed)
    }

    fn report(&self, ledger: &mut Ledger, gvk: &Gvk) {
        ledger.changed.insert(gvk.clone());
        self.news.send_replace(());
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<Place, Known>) -> T) -> T {
        change(&mut self.ledger().places)
    }

    /// Looks at everything that is known now, without a copy. `look` must return soon.
    pub fn visit(&self, mut look: impl FnMut(&Place, &Known)) {
        self.with(|places| places.iter().for_each(|(place, known)| look(place, known)));
    }

    /// How many places could be seen again after they could not, by why they could not.
    pub fn restarts(&self) -> BTreeMap<BlindReason, u64> {
        self.ledger().restarts.clone()
    }

    /// Looks at what is known now about the places of a kind, without a copy. `look` must return soon.
    pub fn visit_kind(&self, gvk: &Gvk, mut look: impl FnMut(&Place, &Known)) {
        let first = Place { gvk: gvk.clone(), namespace: None, field_selector: None };
        self.with(|places| {
            let own = places.range(first..).take_while(|(place, _)| place.gvk == *gvk);
            own.for_each(|(place, known)| look(place, known));
        });
    }

    /// Whether objects of a kind are in no namespace; `None`: that is not known.
    pub fn is_cluster_scoped(&self, gvk: &Gvk) -> Option<bool> {
        self.ledger().resources.get(gvk).map(|(_, namespaced)| !namespaced)
    }

    /// Everything that is known now.
    pub fn read(&self) -> BTreeMap<Place, Known> {
        self.with(|places| places.clone())
    }

    pub(crate) fn set(&self, place: &Place, state: State) {
        let mut ledger = self.ledger();
        let Ledger { places, restarts, resources, .. } = &mut *ledger;
        let Some(known) = places.get_mut(place) else {
            let resource = resources.get(&place.gvk).map(|(resource, _)| resource.clone());
            places.insert(place.clone(), Known { state, resource, gaps: VecDeque::new(), repaired: 0 });
            self.report(&mut ledger, &place.gvk);
            return;
        };
        let state = match (&known.state, state) {
            // The newest reason stands, and the first time.
            (State::Blind { since, .. }, State::Blind { blindness, .. }) => {
                State::Blind { since: *since, blindness }
            }
            // A list after a gap does not end it, and what is known stays known while it runs.
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

    /// What permissions call a kind, and whether its objects are in namespaces.
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

    /// Counts an object of a running list.
    pub(crate) fn count(&self, place: &Place, more: u64) {
        self.with(|places| {
            if let Some(Known { state: State::Listing { seen, .. }, .. }) = places.get_mut(place) {
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

    /// What is known about the places of one kind.
    pub(crate) fn of_kind(&self, gvk: &Gvk) -> BTreeMap<Place, Known> {
        let mut found = BTreeMap::new();
        self.visit_kind(gvk, |place, known| drop(found.insert(place.clone(), known.clone())));
        found
    }

    /// Nobody looks at the other places of the kind any more. What was blind there is a gap in what is
    /// looked at instead.
    pub(crate) fn forget(&self, gvk: &Gvk, keep: impl Fn(&Place) -> bool) {
        let kind = self.of_kind(gvk);
        let gone: Vec<(&Place, &Known)> = kind.iter().filter(|(place, _)| !keep(place)).collect();
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

    /// Nobody wants these kinds any more.
    pub(crate) fn forget_kinds(&self, gone: impl Fn(&Gvk) -> bool) {
        let mut ledger = self.ledger();
        ledger.places.retain(|place, _| !gone(&place.gvk));
        ledger.resources.retain(|gvk, _| !gone(gvk));
    }
}
