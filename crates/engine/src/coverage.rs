//! Coverage: what is watched, since when, and every gap with its reason.

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

/// Gaps that are kept for each watched kind; the oldest is dropped first.
const MAX_GAPS: usize = 16;

/// A kind, and where it is watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchKey {
    /// Kind.
    pub gvk: Gvk,
    /// Namespace; `None`: the whole cluster.
    pub namespace: Option<Arc<str>>,
    /// Field selector, if the API server filters with one.
    pub field_selector: Option<String>,
}

impl WatchKey {
    pub(crate) fn of(query: &Query) -> Self {
        Self {
            gvk: query.gvk.clone(),
            namespace: query.namespace.clone(),
            field_selector: query.field_selector.clone(),
        }
    }
}

/// How much is known about the objects of a watched kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchState {
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

impl WatchState {
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

/// What is known about a watched kind.
#[derive(Clone, Debug)]
pub struct KindCoverage {
    /// Current state.
    pub state: WatchState,
    /// Resource name as in RBAC rules, such as `deployments.apps`; `None`: not known yet.
    pub resource: Option<Arc<str>>,
    /// The last gaps, oldest first.
    pub gaps: VecDeque<Gap>,
    /// Rows that the periodic comparison with a list has repaired.
    pub repaired: u64,
}

impl KindCoverage {
    fn add_gap(&mut self, gap: Gap) {
        if self.gaps.len() == MAX_GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
    }
}

/// What is watched, and every gap. Collector tasks write it, other tasks read it. Clones share the same records.
#[derive(Clone, Default)]
pub struct Coverage {
    records: Arc<Mutex<CoverageRecords>>,
    changed_sender: watch::Sender<()>,
}

#[derive(Default)]
struct CoverageRecords {
    kinds: BTreeMap<WatchKey, KindCoverage>,
    /// Number of ended gaps by reason, including gaps of watched kinds that were removed.
    restarts: BTreeMap<BlindReason, u64>,
    /// Resource name of each kind as in RBAC rules, and whether the kind is namespaced.
    resources: BTreeMap<Gvk, (Arc<str>, bool)>,
    /// Kinds that have changed since [`Coverage::take_changed_kinds`] was last called.
    changed: BTreeSet<Gvk>,
}

impl Coverage {
    fn records(&self) -> MutexGuard<'_, CoverageRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified when a watched kind is added or removed, or when its state or resource name changes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed_sender.subscribe()
    }

    /// The kinds with such a change since the last call.
    pub fn take_changed_kinds(&self) -> BTreeSet<Gvk> {
        std::mem::take(&mut self.records().changed)
    }

    fn notify(&self, records: &mut CoverageRecords, gvk: &Gvk) {
        records.changed.insert(gvk.clone());
        self.changed_sender.send_replace(());
    }

    fn with<T>(&self, change: impl FnOnce(&mut BTreeMap<WatchKey, KindCoverage>) -> T) -> T {
        change(&mut self.records().kinds)
    }

    /// Calls `visit_one` for everything that is watched, without a copy. The records are locked meanwhile: `visit_one`
    /// must return soon.
    pub fn visit(&self, mut visit_one: impl FnMut(&WatchKey, &KindCoverage)) {
        self.with(|kinds| kinds.iter().for_each(|(watched, known)| visit_one(watched, known)));
    }

    /// Number of gaps that have ended, by reason.
    pub fn restarts(&self) -> BTreeMap<BlindReason, u64> {
        self.records().restarts.clone()
    }

    /// Like [`Self::visit`], for one kind.
    pub fn visit_kind(&self, gvk: &Gvk, mut visit_one: impl FnMut(&WatchKey, &KindCoverage)) {
        let first = WatchKey { gvk: gvk.clone(), namespace: None, field_selector: None };
        self.with(|kinds| {
            let own = kinds.range(first..).take_while(|(watched, _)| watched.gvk == *gvk);
            own.for_each(|(watched, known)| visit_one(watched, known));
        });
    }

    /// Whether a kind is cluster-scoped; `None`: not known yet.
    pub fn is_cluster_scoped(&self, gvk: &Gvk) -> Option<bool> {
        self.records().resources.get(gvk).map(|(_, namespaced)| !namespaced)
    }

    /// A copy of everything.
    pub fn read(&self) -> BTreeMap<WatchKey, KindCoverage> {
        self.with(|kinds| kinds.clone())
    }

    pub(crate) fn set(&self, watched: &WatchKey, state: WatchState) {
        let mut records = self.records();
        let CoverageRecords { kinds, restarts, resources, .. } = &mut *records;
        let Some(known) = kinds.get_mut(watched) else {
            let resource = resources.get(&watched.gvk).map(|(resource, _)| resource.clone());
            kinds.insert(
                watched.clone(),
                KindCoverage { state, resource, gaps: VecDeque::new(), repaired: 0 },
            );
            self.notify(&mut records, &watched.gvk);
            return;
        };
        let state = match (&known.state, state) {
            // Keep the start of the gap, and take the newest reason.
            (WatchState::Blind { since, .. }, WatchState::Blind { blindness, .. }) => {
                WatchState::Blind { since: *since, blindness }
            }
            // A list that is still running neither ends a gap nor replaces a synced state.
            (
                WatchState::Blind { .. } | WatchState::Synced { .. },
                WatchState::Listing { .. } | WatchState::Waiting,
            ) => {
                return;
            }
            (
                WatchState::Blind { since, blindness },
                next @ (WatchState::Synced { .. } | WatchState::Absent),
            ) => {
                let gap = Gap { from: *since, to: clock::now(), blindness: blindness.clone() };
                *restarts.entry(blindness.reason).or_default() += 1;
                known.add_gap(gap);
                next
            }
            (WatchState::Synced { since, version: known_version }, WatchState::Synced { version, .. }) => {
                let newer = version.max(*known_version);
                known.state = WatchState::Synced { since: *since, version: newer };
                return;
            }
            (_, next) => next,
        };
        if std::mem::replace(&mut known.state, state.clone()) != state {
            self.notify(&mut records, &watched.gvk);
        }
    }

    /// Sets the resource name of a kind as in RBAC rules, and whether the kind is namespaced.
    pub(crate) fn set_resource(&self, gvk: &Gvk, resource: &str, namespaced: bool) {
        let resource: Arc<str> = resource.into();
        let mut records = self.records();
        let own = records.kinds.iter_mut().filter(|(watched, _)| watched.gvk == *gvk);
        own.for_each(|(_, known)| known.resource = Some(resource.clone()));
        let named = (resource, namespaced);
        if records.resources.insert(gvk.clone(), named.clone()) != Some(named) {
            self.notify(&mut records, gvk);
        }
    }

    /// Adds objects to the count of a running list.
    pub(crate) fn count(&self, watched: &WatchKey, objects: u64) {
        self.with(|kinds| {
            if let Some(KindCoverage { state: WatchState::Listing { seen, .. }, .. }) = kinds.get_mut(watched)
            {
                *seen += objects;
            }
        });
    }

    pub(crate) fn count_repairs(&self, watched: &WatchKey, rows: u64) {
        self.with(|kinds| {
            if let Some(known) = kinds.get_mut(watched) {
                known.repaired += rows;
            }
        });
    }

    /// A copy of what is watched of one kind.
    pub(crate) fn of_kind(&self, gvk: &Gvk) -> BTreeMap<WatchKey, KindCoverage> {
        let mut found = BTreeMap::new();
        self.visit_kind(gvk, |watched, known| drop(found.insert(watched.clone(), known.clone())));
        found
    }

    /// Removes what `keep` rejects of the kind. An open gap of what is removed is recorded as a gap of what remains of
    /// the kind.
    pub(crate) fn retain(&self, gvk: &Gvk, keep: impl Fn(&WatchKey) -> bool) {
        let kind = self.of_kind(gvk);
        let removed: Vec<(&WatchKey, &KindCoverage)> =
            kind.iter().filter(|(watched, _)| !keep(watched)).collect();
        if removed.is_empty() {
            return;
        }
        self.notify(&mut self.records(), gvk);
        self.with(|kinds| {
            for (watched, known) in removed {
                kinds.remove(watched);
                if let WatchState::Blind { since, blindness } = &known.state {
                    let gap = Gap { from: *since, to: clock::now(), blindness: blindness.clone() };
                    let others = kinds.iter_mut().filter(|(watched, _)| watched.gvk == *gvk);
                    others.for_each(|(_, known)| known.add_gap(gap.clone()));
                }
            }
        });
    }

    /// Removes kinds that no target selects any more.
    pub(crate) fn remove_kinds(&self, is_removed: impl Fn(&Gvk) -> bool) {
        let mut records = self.records();
        records.kinds.retain(|watched, _| !is_removed(&watched.gvk));
        records.resources.retain(|gvk, _| !is_removed(gvk));
    }
}
