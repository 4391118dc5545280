//! Turns inventories into bindings: which rows are written to which destination, and which destinations are cleaned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    deliver::{Deliveries, Wanted},
    export::{
        Binding, BindingProgress, ClaimChecks, CurrentClaim, LastChecksum, Leftover, Open, RemovalGuard,
        Selection, Sibling, Siblings,
    },
    schedule::Breaker,
    select::Namespaces,
    store::Visibility,
};
use kollect_model::{
    binding::{BindingName, SinkName},
    claim::{Claimant, TakeOver, Writer},
    crd::inventory::{ExportPlace, InventoryStatus, SinkExport},
    sink::{Sink, SinkError},
};
use kollect_sinks::{Plan, Policy, Sinks};
use tokio::time::Instant;

use super::{
    destinations::Destinations,
    finalize::is_protected,
    metrics::Meter,
    objects::ObjectCache,
    progress::{BindingStates, WantedVersion},
    take_over::Requests,
};
use crate::{
    reason::Reason,
    resolve::{
        BoundSink, InventoryName, ObjectSet, OperatorPolicy, REQUESTED_AT, Resolved, ResolvedInventory,
        SinkKey,
    },
};

/// Annotation that releases the removals which the guard holds; its value is their token.
pub(crate) const RELEASE_REMOVALS: &str = "kollect.dev/release-removals";

/// The bindings of all inventories.
pub(crate) struct Bindings {
    sinks: Arc<dyn OpenPlan>,
    meter: Meter,
    operator_policy: Arc<OperatorPolicy>,
    binding_states: BindingStates,
    /// Id of this cluster.
    cluster: String,
    /// The namespaces that the operator watches, or everything.
    scope: Visibility,
    claim_check_interval: Option<Duration>,
    /// The namespaces of the cluster, as far as they are known.
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    /// The last usable definition of each binding.
    good: BTreeMap<BindingName, Good>,
    /// How each destination is opened; kept for as long as a status names the destination.
    openers: BTreeMap<(BindingName, ExportPlace), (Plan, Arc<dyn Open>)>,
    /// State that the bindings of a sink share; kept for as long as an inventory names the sink.
    shared: BTreeMap<SinkKey, Shared>,
    /// State that the bindings of an inventory share.
    siblings: BTreeMap<InventoryName, Siblings>,
    /// Number of the last version of a binding.
    versions: u64,
}

struct Good {
    place: ExportPlace,
    binding: Arc<Binding>,
}

/// State that the bindings of one sink share.
#[derive(Clone, Default)]
struct Shared {
    breaker: Arc<Breaker>,
    claim_checks: Arc<ClaimChecks>,
}

/// The name of a binding.
pub(crate) fn binding_name(inventory: &InventoryName, sink: &SinkName) -> BindingName {
    BindingName { inventory: inventory.clone(), sink: sink.clone() }
}

/// Opens the destinations of plans: [`Sinks`] in the program, destinations in memory in the simulator.
#[async_trait]
pub(crate) trait OpenPlan: Send + Sync {
    /// Opens the destination of a plan, within the limits of a policy.
    async fn open(&self, plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError>;
}

#[async_trait]
impl OpenPlan for Sinks {
    async fn open(&self, plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError> {
        Self::open(self, plan, policy).await
    }
}

/// Opens a sink as its plan says.
pub(crate) struct Planned {
    pub(crate) sinks: Arc<dyn OpenPlan>,
    pub(crate) plan: Plan,
    pub(crate) policy: Policy,
    pub(crate) meter: Meter,
    /// Kind of the inventory whose attempts are counted; `None`: it is only probed.
    pub(crate) counted: Option<&'static str>,
}

#[async_trait]
impl Open for Planned {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        let opened = self.sinks.open(&self.plan, &self.policy).await;
        match self.counted {
            Some(kind) => self.meter.measure(opened, self.plan.type_name(), kind),
            None => opened,
        }
    }
}

/// An inventory with the data that its bindings are built from.
struct Inventory<'a> {
    name: &'a InventoryName,
    metadata: &'a ObjectMeta,
    resolved: &'a ResolvedInventory,
    take_overs: Requests,
    status: &'a InventoryStatus,
    /// Digest of what the specs select; empty without a guard.
    selected: String,
}

/// A sink of an inventory that the spec names, the status names, or both.
struct Line<'a> {
    binding: BindingName,
    /// The sink as it is now; `None` if the status names no sink object.
    sink: Option<BoundSink>,
    export: Option<&'a SinkExport>,
    /// Whether the spec names the sink.
    is_named: bool,
}

/// Results for the destinations that inventories have left.
#[derive(Default)]
pub(crate) struct Left {
    /// Destinations whose rows cannot be removed, by inventory.
    pub(crate) behind: BTreeMap<InventoryName, Vec<String>>,
    /// Deleted inventories that still wait for a destination to be cleaned.
    pub(crate) waiting: BTreeSet<InventoryName>,
    /// Deleted inventories with destinations that are not clean.
    pub(crate) unclean: BTreeMap<InventoryName, Vec<String>>,
}

/// Whether a destination can be cleaned.
enum Cleaning {
    Begins(Leftover),
    /// Not now: a sink cannot be used at the moment. A later turn tries again.
    Waits,
    /// The sink object is gone, or its spec leads to another server now.
    Impossible,
}

impl Bindings {
    pub(crate) fn new(
        sinks: Arc<dyn OpenPlan>,
        meter: Meter,
        operator_policy: Arc<OperatorPolicy>,
        binding_states: BindingStates,
        cluster: String,
        scope: Visibility,
        claim_check_interval: Option<Duration>,
    ) -> Self {
        Self {
            sinks,
            meter,
            operator_policy,
            binding_states,
            cluster,
            scope,
            claim_check_interval,
            namespaces: None,
            good: BTreeMap::new(),
            openers: BTreeMap::new(),
            shared: BTreeMap::new(),
            siblings: BTreeMap::new(),
            versions: 0,
        }
    }

    /// The namespaces that the operator watches, or everything.
    pub(crate) fn scope(&self) -> &Visibility {
        &self.scope
    }

    /// Digest of what the specs of an inventory selected when the sink last got all rows.
    pub(crate) fn acknowledged_selection(&self, binding: &BindingName) -> Option<String> {
        self.good.get(binding)?.binding.selection.acknowledged().filter(|digest| !digest.is_empty())
    }

    /// Forgets everything: another process may lead and write in the meantime.
    pub(crate) fn clear(&mut self) {
        self.good.clear();
        self.openers.clear();
        self.shared.clear();
        self.siblings.clear();
    }

    /// Passes the wanted bindings and the destinations to clean to the engine.
    pub(crate) fn deliver(
        &mut self,
        known: &ObjectCache,
        object_set: &ObjectSet,
        resolved: &Resolved,
        deliveries: &mut Deliveries,
    ) -> Left {
        let (mut wanted, mut leftovers, mut left) = (BTreeMap::new(), Vec::new(), Left::default());
        let mut used = BTreeSet::new();
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, status)) = known.inventory(name) else { continue };
            let status = self.operator_policy.shown_status(status);
            let sinks = inventory.sinks.iter().map(|sink| &sink.name);
            let inventory = Inventory {
                name,
                metadata,
                resolved: inventory,
                take_overs: Requests::of(metadata, sinks),
                status: &status,
                selected: match &inventory.removal_guard {
                    Some(_) => object_set.selection_digest(name, inventory),
                    None => String::new(),
                },
            };
            // Nothing was ever written for it: sinks store cluster inventories under this namespace.
            if name.is_reserved() {
                continue;
            }
            used.extend(inventory.resolved.sinks.iter().map(|sink| (sink.family, sink.key.clone())));
            if inventory.resolved.faults.is_empty() || inventory.is_deleted() {
                let lines = inventory.lines(object_set, &self.operator_policy, resolved);
                for line in lines.iter().filter(|line| line.is_named) {
                    wanted.extend(self.write(&inventory, line));
                }
                self.join(name, &lines);
                for line in &lines {
                    leftovers.extend(self.clean(&inventory, line, &lines, &mut left));
                }
            } else {
                // Its sinks are unknown because of faults: the known bindings are suspended, and rows stay.
                for (binding, good) in self.good.iter().filter(|(binding, _)| binding.inventory == *name) {
                    wanted.insert(binding.clone(), Wanted { binding: good.binding.clone(), suspended: true });
                }
            }
        }
        self.shared.retain(|sink, _| used.contains(sink));
        self.good.retain(|binding, _| wanted.contains_key(binding));
        self.siblings.retain(|name, _| resolved.inventories.contains_key(name));
        self.openers.retain(|(binding, place), _| self.binding_states.speaks_of(binding, place));
        self.binding_states.refuse_duplicates(&deliveries.set(wanted, leftovers));
        left
    }

    /// The binding to run for a sink of the spec; `None` if the inventory is deleted or no definition is usable.
    fn write(&mut self, inventory: &Inventory<'_>, line: &Line<'_>) -> Option<(BindingName, Wanted)> {
        let sink = line.sink.as_ref()?;
        if inventory.is_deleted() {
            return None;
        }
        line.export.into_iter().for_each(|export| self.binding_states.remember(&line.binding, export));
        let is_newest = self.want(inventory, line, sink);
        self.binding_states.set_newest(&line.binding, is_newest);
        let binding = self.good.get(&line.binding)?.binding.clone();
        let suspended = inventory.resolved.suspended || sink.plan.is_err();
        Some((line.binding.clone(), Wanted { binding, suspended }))
    }

    /// Updates the definition of a binding; it stays the same value if nothing has changed. Returns whether it is what
    /// the specs ask for: while a new definition cannot be built, the last one stays in use.
    fn want(&mut self, inventory: &Inventory<'_>, line: &Line<'_>, sink: &BoundSink) -> bool {
        let Inventory { name, metadata, resolved, .. } = inventory;
        let row_filter = resolved.rows.among(self.namespaces.as_deref());
        let (Ok(Some(plan)), Some(place), Some(row_filter)) = (&*sink.plan, &sink.place, row_filter) else {
            return false;
        };
        // A claim may be requested only when the inventory has its finalizer and its status names the destination, so
        // that a later process finds the rows. Until then the rows are written to the previous destination.
        let findable = is_protected(name.kind(), metadata) && line.told().speak_of(place);
        let known = self.good.get(&line.binding).filter(|known| known.place.is_at(place));
        if known.is_none() && !findable {
            return false;
        }
        let (last_checksum, current, selection, progress) = match known.map(|known| &*known.binding) {
            Some(Binding { last_checksum, current, selection, progress, .. }) => {
                (last_checksum.clone(), current.clone(), selection.clone(), progress.clone())
            }
            None => {
                let checksum = line.export.and_then(|export| export.last_checksum.clone());
                let selection = line.export.and_then(|export| export.selection.clone());
                let progress = BindingProgress::default();
                (LastChecksum::new(checksum), CurrentClaim::default(), Selection::new(selection), progress)
            }
        };
        let take_over = inventory.take_overs.for_sink(&sink.name, &inventory.status.take_overs);
        let opener = self.opener(name, sink, place, plan);
        let candidate = Binding {
            generation: metadata.generation.unwrap_or(0),
            progress,
            counts_namespaces: name.namespace.is_none(),
            current,
            siblings: self.siblings.entry((*name).clone()).or_default().clone(),
            targets: resolved.targets.clone(),
            cadence: sink.cadence,
            row_filter,
            removal_guard: resolved.removal_guard.as_ref().map(|guard| RemovalGuard {
                percent: guard.percent.and_then(|percent| percent.try_into().ok()),
                rows: guard.rows.and_then(|rows| rows.try_into().ok()),
                released: annotation(metadata, RELEASE_REMOVALS),
            }),
            selected: inventory.selected.clone(),
            selection,
            part_bytes: sink.part_bytes,
            last_checksum,
            requested: requested(annotation(metadata, REQUESTED_AT), sink.requested.as_ref()),
            ..self.binding(name, sink, place, opener, take_over)
        };
        let known = self.good.get(&line.binding).filter(|known| known.place.is_at(place));
        if known.is_some_and(|known| same(&known.binding, &candidate)) {
            return true;
        }
        let is_other = |known: &Good| {
            known.binding.requested != candidate.requested
                || !Arc::ptr_eq(&known.binding.sink, &candidate.sink)
        };
        if known.is_some_and(is_other) {
            // The sink or the request is new: close the circuit breaker, because an attempt may succeed now.
            candidate.breaker.close();
        }
        self.versions += 1;
        let wanted = WantedVersion {
            number: self.versions,
            since: Instant::now(),
            cadence: candidate.cadence.min_change,
            requested: annotation(metadata, REQUESTED_AT),
        };
        self.binding_states.begin(&line.binding, place, &candidate.progress, wanted);
        let binding = Arc::new(Binding { version: self.versions, ..candidate });
        self.good.insert(line.binding.clone(), Good { place: place.clone(), binding });
        true
    }

    /// A binding without targets.
    fn binding(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        place: &ExportPlace,
        opener: Arc<dyn Open>,
        take_over: TakeOver,
    ) -> Binding {
        let claimant = Claimant {
            owner: Some(self.cluster.clone()),
            writer: Writer::Operator,
            take_over,
            sink: sink.name.to_string(),
            ..Claimant::default()
        };
        let Shared { breaker, claim_checks } =
            self.shared.entry((sink.family, sink.key.clone())).or_default().clone();
        let inventory = name.in_cluster(&place.cluster);
        Binding {
            scope: self.scope.clone(),
            claim_checks,
            claim_check_interval: self.claim_check_interval,
            breaker,
            ..Binding::new(inventory, claimant, place.destination.clone(), opener)
        }
    }

    /// How a destination is opened with a plan; the same value as before if the plan has not changed.
    fn opener(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        place: &ExportPlace,
        plan: &Plan,
    ) -> Arc<dyn Open> {
        let key = (binding_name(name, &sink.name), place.without_id());
        if let Some((_, opener)) = self.openers.get(&key).filter(|(known, _)| known == plan) {
            return opener.clone();
        }
        let opener: Arc<dyn Open> = Arc::new(Planned {
            sinks: self.sinks.clone(),
            plan: plan.clone(),
            policy: self.operator_policy.sink_policy(&sink.key.0),
            meter: self.meter.clone(),
            counted: Some(name.kind()),
        });
        self.openers.insert(key, (plan.clone(), opener.clone()));
        opener
    }

    /// How a destination that a binding has left is opened: with the current sink, or as this process opened it before.
    fn opener_of_left(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        place: &ExportPlace,
    ) -> Option<Arc<dyn Open>> {
        if let Ok(Some(plan)) = &*sink.plan {
            let policy = self.operator_policy.sink_policy(&sink.key.0);
            if let Some(plan) = self.operator_policy.plan_at(plan, &place.destination, &policy) {
                return Some(self.opener(name, sink, place, &plan));
            }
        }
        let key = (binding_name(name, &sink.name), place.without_id());
        self.openers.get(&key).map(|(_, opener)| opener.clone())
    }

    /// Tells the bindings of an inventory about each other.
    fn join(&self, name: &InventoryName, lines: &[Line<'_>]) {
        let Some(siblings) = self.siblings.get(name) else { return };
        siblings.set(lines.iter().filter_map(|line| self.sibling(line)).collect());
    }

    fn sibling(&self, line: &Line<'_>) -> Option<Sibling> {
        let Binding { current, sink, .. } = &*self.good.get(&line.binding)?.binding;
        Some(Sibling { name: line.binding.sink.clone(), current: current.clone(), sink: sink.clone() })
    }

    /// The destinations of a line to clean now. Those that cannot be cleaned are recorded in `left` or in the binding states.
    fn clean(
        &mut self,
        inventory: &Inventory<'_>,
        line: &Line<'_>,
        lines: &[Line<'_>],
        left: &mut Left,
    ) -> Vec<Leftover> {
        let told = line.told();
        let wanted = if inventory.is_deleted() { None } else { line.wanted(&told) };
        let (next, due) = self.binding_states.advance(&line.binding, told, wanted.as_ref());
        let mut leftovers = Vec::new();
        let mut lost = BTreeSet::new();
        for place in &next.left {
            let is_written = |other: &Line<'_>| other.binding != line.binding && other.writes(place);
            if !inventory.is_deleted() && lines.iter().any(is_written) {
                // Another sink of the inventory writes there now.
                self.binding_states.give_up(&line.binding, place);
                continue;
            }
            let named = format!("{} at {place}", line.binding.sink);
            if inventory.is_deleted() {
                left.unclean.entry(inventory.name.clone()).or_default().push(named.clone());
            }
            match self.cleaning(inventory, line, lines, place) {
                Cleaning::Begins(leftover) if due => leftovers.push(leftover),
                Cleaning::Begins(_) | Cleaning::Waits => {}
                Cleaning::Impossible if inventory.is_deleted() => continue,
                Cleaning::Impossible if place.asked_only => self.binding_states.give_up(&line.binding, place),
                Cleaning::Impossible if next.is_held_under_another_name(place) => {
                    self.binding_states.adopt(&line.binding, place);
                }
                Cleaning::Impossible if wanted.is_some() => drop(lost.insert(place.clone())),
                Cleaning::Impossible => {
                    self.binding_states.give_up(&line.binding, place);
                    left.behind.entry(inventory.name.clone()).or_default().push(named);
                }
            }
            if inventory.is_deleted() {
                left.waiting.insert(inventory.name.clone());
            }
        }
        self.binding_states.lose(&line.binding, lost);
        leftovers
    }

    fn cleaning(
        &mut self,
        inventory: &Inventory<'_>,
        line: &Line<'_>,
        lines: &[Line<'_>],
        place: &ExportPlace,
    ) -> Cleaning {
        let Some(sink) = &line.sink else { return Cleaning::Impossible };
        let name = inventory.name;
        let Some(opener) = self.opener_of_left(name, sink, place) else {
            let is_gone = |reason| reason == Reason::SinkNotFound;
            return match &*sink.plan {
                Ok(Some(_)) => Cleaning::Impossible,
                Err(faults) if faults.iter().any(|fault| is_gone(fault.reason)) => Cleaning::Impossible,
                Ok(None) | Err(_) => Cleaning::Waits,
            };
        };
        let mut others = Vec::new();
        for other in lines.iter().filter(|other| other.is_named && !inventory.is_deleted()) {
            let held = other.told().held.filter(|_| other.binding != line.binding);
            let good = self.good.get(&other.binding).map(|good| &good.place);
            if !good.or(held.as_ref()).is_some_and(|other| may_be(other, held.as_ref(), place)) {
                continue;
            }
            match self.sibling(other) {
                Some(sibling) => others.push(sibling),
                // The other sink cannot be asked now, and may lead to the same destination.
                None => return Cleaning::Waits,
            }
        }
        let moved = line.is_named && !inventory.is_deleted();
        let mut binding = self.binding(name, sink, place, opener, TakeOver::Never);
        if let Some(good) = self.good.get(&line.binding).filter(|_| moved) {
            (binding.targets, binding.rest) = (good.binding.targets.clone(), good.binding.rest.clone());
        }
        let binding = Arc::new(binding);
        let (name, was_granted) = (line.binding.clone(), !place.asked_only);
        Cleaning::Begins(Leftover { name, binding, was_granted, others, moved })
    }
}

impl Inventory<'_> {
    fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The sinks of the spec, and those that only the status names.
    fn lines(
        &self,
        object_set: &ObjectSet,
        operator_policy: &OperatorPolicy,
        resolved: &Resolved,
    ) -> Vec<Line<'_>> {
        let exports = &self.status.sink_exports;
        let binding = |sink: &SinkName| binding_name(self.name, sink);
        let mut lines = Vec::new();
        for sink in &self.resolved.sinks {
            let export = exports.iter().find(|export| export.name == sink.name);
            let (binding, sink) = (binding(&sink.name), Some(sink.clone()));
            lines.push(Line { binding, sink, export, is_named: true });
        }
        let is_named = |export: &&SinkExport| self.resolved.sinks.iter().any(|sink| sink.name == export.name);
        for export in exports.iter().filter(|export| !is_named(export)) {
            let namespace =
                export.namespace.as_deref().or(self.name.namespace.as_deref()).unwrap_or_default();
            let sink = object_set.left_sink(&export.name, namespace, operator_policy, &resolved.sinks);
            lines.push(Line { binding: binding(&export.name), sink, export: Some(export), is_named: false });
        }
        lines
    }
}

impl Line<'_> {
    /// What the status says about the destinations.
    fn told(&self) -> Destinations {
        let leads_to = self.sink.as_ref().and_then(|sink| sink.place.as_ref());
        self.export.map(|export| Destinations::of(export, leads_to)).unwrap_or_default()
    }

    /// Whether the rows are written to a destination, and the status says so.
    fn writes(&self, place: &ExportPlace) -> bool {
        let told = self.told();
        told.speak_of(place) && self.wanted(&told).is_some_and(|wanted| wanted.is_at(place))
    }

    /// Where the rows should be. While the destination of the sink is unknown, they stay where they are.
    fn wanted(&self, told: &Destinations) -> Option<ExportPlace> {
        let sink = self.sink.as_ref().filter(|_| self.is_named)?;
        sink.place.clone().or_else(|| told.claiming.clone()).or_else(|| told.held.clone())
    }
}

/// Whether the destination of another binding may be `place` under another name. `held` is that destination with its
/// id: different ids mean different destinations.
fn may_be(other: &ExportPlace, held: Option<&ExportPlace>, place: &ExportPlace) -> bool {
    let id = held.filter(|held| held.is_at(other)).and_then(|held| held.id.as_ref());
    other.cluster == place.cluster
        && other.destination.scheme() == place.destination.scheme()
        && (id.is_none() || place.id.is_none() || id == place.id.as_ref())
}

/// Combines the request annotations of an inventory and of its sink.
fn requested(inventory: Option<String>, sink: Option<&String>) -> Option<String> {
    match (inventory, sink) {
        (inventory, None) => inventory,
        (inventory, Some(sink)) => Some(format!("{} {sink}", inventory.unwrap_or_default())),
    }
}

fn annotation(metadata: &ObjectMeta, key: &str) -> Option<String> {
    metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned()
}

/// Whether two definitions are equal in everything that a running binding depends on.
fn same(a: &Binding, b: &Binding) -> bool {
    a.inventory == b.inventory
        && a.generation == b.generation
        && a.claimant == b.claimant
        && a.targets == b.targets
        && a.cadence == b.cadence
        && a.row_filter == b.row_filter
        && a.removal_guard == b.removal_guard
        && a.selected == b.selected
        && a.part_bytes == b.part_bytes
        && a.requested == b.requested
        && Arc::ptr_eq(&a.sink, &b.sink)
}
