//! Turns inventories into bindings: which rows are written to which destination, and which destinations are cleaned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    deliver::{Deliveries, WantedBinding},
    export::{
        AbandonedDestination, Binding, BindingProgress, ClaimChecks, CurrentClaim, LastChecksum, OpenSink,
        RemovalGuard, SelectionDigests, SiblingBinding, SiblingBindings,
    },
    schedule::Breaker,
    select::Namespaces,
    store::Visibility,
};
use kollect_model::{
    binding::{BindingName, SinkName},
    claim::{Claimant, TakeOver, WriterProgram},
    crd::inventory::{InventoryStatus, RecordedDestination, SinkExport},
    sink::{Sink, SinkError},
};
use kollect_sinks::{Plan, SinkPolicy, Sinks};
use tokio::time::Instant;

use super::{
    binding_states::{BindingStates, WantedVersion},
    destinations::Destinations,
    finalize::is_protected,
    metrics::Meter,
    objects::ObjectCache,
    take_over::TakeOverRequests,
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
    watched: Visibility,
    claim_check_interval: Option<Duration>,
    /// The namespaces of the cluster, as far as they are known.
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    /// The last usable definition of each binding.
    usable: BTreeMap<BindingName, UsableBinding>,
    /// How each destination is opened; kept for as long as a status names the destination.
    openers: BTreeMap<(BindingName, RecordedDestination), (Plan, Arc<dyn OpenSink>)>,
    /// State that the bindings of a sink share; kept for as long as an inventory names the sink.
    shared: BTreeMap<SinkKey, SinkShared>,
    /// State that the bindings of an inventory share.
    siblings: BTreeMap<InventoryName, SiblingBindings>,
    /// Number of the last version of a binding.
    last_version: u64,
}

struct UsableBinding {
    destination: RecordedDestination,
    binding: Arc<Binding>,
}

/// State that the bindings of one sink share.
#[derive(Clone, Default)]
struct SinkShared {
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
    async fn open(&self, plan: &Plan, policy: &SinkPolicy) -> Result<Box<dyn Sink>, SinkError>;
}

#[async_trait]
impl OpenPlan for Sinks {
    async fn open(&self, plan: &Plan, policy: &SinkPolicy) -> Result<Box<dyn Sink>, SinkError> {
        Self::open(self, plan, policy).await
    }
}

/// Opens a sink according to its plan.
pub(crate) struct MeasuredPlan {
    pub(crate) sinks: Arc<dyn OpenPlan>,
    pub(crate) plan: Plan,
    pub(crate) policy: SinkPolicy,
    pub(crate) meter: Meter,
    /// Kind of the inventory whose attempts are counted; `None`: it is only probed.
    pub(crate) counted: Option<&'static str>,
}

#[async_trait]
impl OpenSink for MeasuredPlan {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        let opened = self.sinks.open(&self.plan, &self.policy).await;
        match self.counted {
            Some(kind) => self.meter.measure(opened, self.plan.type_name(), kind),
            None => opened,
        }
    }
}

/// An inventory with the data that its bindings are built from.
struct InventoryBindings<'a> {
    name: &'a InventoryName,
    metadata: &'a ObjectMeta,
    resolved: &'a ResolvedInventory,
    take_overs: TakeOverRequests,
    status: &'a InventoryStatus,
    /// Digest of what the specs select; empty without a guard.
    selected: String,
}

/// A sink of an inventory that the spec names, the status names, or both.
struct SinkLine<'a> {
    binding: BindingName,
    /// The sink as it is now; `None` if the status names no sink object.
    sink: Option<BoundSink>,
    export: Option<&'a SinkExport>,
    /// Whether the spec names the sink.
    is_named: bool,
}

/// Results for the destinations that inventories have left.
#[derive(Default)]
pub(crate) struct CleaningState {
    /// Destinations whose rows cannot be removed, by inventory.
    pub(crate) left_behind: BTreeMap<InventoryName, Vec<String>>,
    /// Deleted inventories that still wait for a destination to be cleaned.
    pub(crate) waiting: BTreeSet<InventoryName>,
    /// Deleted inventories with destinations that are not clean.
    pub(crate) unclean: BTreeMap<InventoryName, Vec<String>>,
}

/// Whether a destination can be cleaned.
enum CleaningDecision {
    Begins(AbandonedDestination),
    /// Not now: a sink cannot be used at the moment. A later turn tries again.
    Waits,
    /// The sink object was deleted, or its spec leads to another server now.
    Impossible,
}

impl Bindings {
    pub(crate) fn new(
        sinks: Arc<dyn OpenPlan>,
        meter: Meter,
        operator_policy: Arc<OperatorPolicy>,
        binding_states: BindingStates,
        cluster: String,
        watched: Visibility,
        claim_check_interval: Option<Duration>,
    ) -> Self {
        Self {
            sinks,
            meter,
            operator_policy,
            binding_states,
            cluster,
            watched,
            claim_check_interval,
            namespaces: None,
            usable: BTreeMap::new(),
            openers: BTreeMap::new(),
            shared: BTreeMap::new(),
            siblings: BTreeMap::new(),
            last_version: 0,
        }
    }

    /// The namespaces that the operator watches, or everything.
    pub(crate) fn watched(&self) -> &Visibility {
        &self.watched
    }

    /// Digest of what the specs of an inventory selected when the sink last got all rows.
    pub(crate) fn acknowledged_selection(&self, binding: &BindingName) -> Option<String> {
        self.usable.get(binding)?.binding.selection.acknowledged().filter(|digest| !digest.is_empty())
    }

    /// Forgets everything: another process may lead and write in the meantime.
    pub(crate) fn clear(&mut self) {
        self.usable.clear();
        self.openers.clear();
        self.shared.clear();
        self.siblings.clear();
    }

    /// Passes the wanted bindings and the destinations to clean to the engine.
    pub(crate) fn deliver(
        &mut self,
        object_cache: &ObjectCache,
        object_set: &ObjectSet,
        resolved: &Resolved,
        deliveries: &mut Deliveries,
    ) -> CleaningState {
        let (mut wanted, mut to_clean, mut cleaning_state) =
            (BTreeMap::new(), Vec::new(), CleaningState::default());
        let mut used = BTreeSet::new();
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, status)) = object_cache.inventory(name) else { continue };
            let status = self.operator_policy.shown_status(status);
            let sinks = inventory.sinks.iter().map(|sink| &sink.name);
            let inventory = InventoryBindings {
                name,
                metadata,
                resolved: inventory,
                take_overs: TakeOverRequests::of(metadata, sinks),
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
                    wanted.extend(self.wanted_binding(&inventory, line));
                }
                self.set_siblings(name, &lines);
                for line in &lines {
                    to_clean.extend(self.clean(&inventory, line, &lines, &mut cleaning_state));
                }
            } else {
                // Its sinks are unknown because of faults: the known bindings are suspended, and rows stay.
                for (binding, usable) in self.usable.iter().filter(|(binding, _)| binding.inventory == *name)
                {
                    wanted.insert(
                        binding.clone(),
                        WantedBinding { binding: usable.binding.clone(), suspended: true },
                    );
                }
            }
        }
        self.shared.retain(|sink, _| used.contains(sink));
        self.usable.retain(|binding, _| wanted.contains_key(binding));
        self.siblings.retain(|name, _| resolved.inventories.contains_key(name));
        self.openers
            .retain(|(binding, destination), _| self.binding_states.status_names(binding, destination));
        self.binding_states.refuse_duplicates(&deliveries.set(wanted, to_clean));
        cleaning_state
    }

    /// The binding to run for a sink of the spec; `None` if the inventory is deleted or no definition is usable.
    fn wanted_binding(
        &mut self,
        inventory: &InventoryBindings<'_>,
        line: &SinkLine<'_>,
    ) -> Option<(BindingName, WantedBinding)> {
        let sink = line.sink.as_ref()?;
        if inventory.is_deleted() {
            return None;
        }
        line.export.into_iter().for_each(|export| self.binding_states.remember(&line.binding, export));
        let is_newest = self.update_definition(inventory, line, sink);
        self.binding_states.set_newest(&line.binding, is_newest);
        let binding = self.usable.get(&line.binding)?.binding.clone();
        let suspended = inventory.resolved.suspended || sink.plan.is_err();
        Some((line.binding.clone(), WantedBinding { binding, suspended }))
    }

    /// Updates the definition of a binding; it stays the same value if nothing has changed. Returns whether it is what
    /// the specs ask for: while a new definition cannot be built, the last one stays in use.
    fn update_definition(
        &mut self,
        inventory: &InventoryBindings<'_>,
        line: &SinkLine<'_>,
        sink: &BoundSink,
    ) -> bool {
        let InventoryBindings { name, metadata, resolved, .. } = inventory;
        let row_filter = resolved.rows.among(self.namespaces.as_deref());
        let (Ok(Some(plan)), Some(destination), Some(row_filter)) =
            (&*sink.plan, &sink.destination, row_filter)
        else {
            return false;
        };
        // A claim may be requested only when the inventory has its finalizer and its status names the destination, so
        // that a later process finds the rows. Until then the rows are written to the previous destination.
        let findable = is_protected(name.kind(), metadata) && line.destinations().names(destination);
        let known = self.usable.get(&line.binding).filter(|known| known.destination.is_at(destination));
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
                (
                    LastChecksum::new(checksum),
                    CurrentClaim::default(),
                    SelectionDigests::new(selection),
                    progress,
                )
            }
        };
        let take_over = inventory.take_overs.for_sink(&sink.name, &inventory.status.take_overs);
        let opener = self.opener(name, sink, destination, plan);
        let candidate = Binding {
            generation: metadata.generation.unwrap_or(0),
            progress,
            counts_namespaces: name.namespace.is_none(),
            current,
            siblings: self.siblings.entry((*name).clone()).or_default().clone(),
            targets: resolved.targets.clone(),
            schema: resolved.schema.clone(),
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
            ..self.binding(name, sink, destination, opener, take_over)
        };
        let known = self.usable.get(&line.binding).filter(|known| known.destination.is_at(destination));
        if known.is_some_and(|known| is_same_definition(&known.binding, &candidate)) {
            return true;
        }
        let has_new_sink_or_request = |known: &UsableBinding| {
            known.binding.requested != candidate.requested
                || !Arc::ptr_eq(&known.binding.sink, &candidate.sink)
        };
        if known.is_some_and(has_new_sink_or_request) {
            // The sink or the request is new: close the circuit breaker, because an attempt may succeed now.
            candidate.breaker.close();
        }
        self.last_version += 1;
        let wanted = WantedVersion {
            number: self.last_version,
            since: Instant::now(),
            cadence: candidate.cadence.min_change,
            requested: annotation(metadata, REQUESTED_AT),
        };
        self.binding_states.begin(&line.binding, destination, &candidate.progress, wanted);
        let binding = Arc::new(Binding { version: self.last_version, ..candidate });
        self.usable.insert(line.binding.clone(), UsableBinding { destination: destination.clone(), binding });
        true
    }

    /// A binding without targets.
    fn binding(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        destination: &RecordedDestination,
        opener: Arc<dyn OpenSink>,
        take_over: TakeOver,
    ) -> Binding {
        let claimant = Claimant {
            owner: Some(self.cluster.clone()),
            writer: WriterProgram::Operator,
            take_over,
            sink: sink.name.to_string(),
            ..Claimant::default()
        };
        let SinkShared { breaker, claim_checks } =
            self.shared.entry((sink.family, sink.key.clone())).or_default().clone();
        let inventory = name.in_cluster(&destination.cluster);
        Binding {
            watched: self.watched.clone(),
            claim_checks,
            claim_check_interval: self.claim_check_interval,
            breaker,
            ..Binding::new(inventory, claimant, destination.destination.clone(), opener)
        }
    }

    /// How a destination is opened with a plan; the same value as before if the plan has not changed.
    fn opener(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        destination: &RecordedDestination,
        plan: &Plan,
    ) -> Arc<dyn OpenSink> {
        let key = (binding_name(name, &sink.name), destination.without_id());
        if let Some((_, opener)) = self.openers.get(&key).filter(|(known, _)| known == plan) {
            return opener.clone();
        }
        let opener: Arc<dyn OpenSink> = Arc::new(MeasuredPlan {
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
    fn opener_of_abandoned(
        &mut self,
        name: &InventoryName,
        sink: &BoundSink,
        destination: &RecordedDestination,
    ) -> Option<Arc<dyn OpenSink>> {
        if let Ok(Some(plan)) = &*sink.plan {
            let policy = self.operator_policy.sink_policy(&sink.key.0);
            if let Some(plan) = self.operator_policy.plan_at(plan, &destination.destination, &policy) {
                return Some(self.opener(name, sink, destination, &plan));
            }
        }
        let key = (binding_name(name, &sink.name), destination.without_id());
        self.openers.get(&key).map(|(_, opener)| opener.clone())
    }

    /// Gives each binding of an inventory the list of the others.
    fn set_siblings(&self, name: &InventoryName, lines: &[SinkLine<'_>]) {
        let Some(siblings) = self.siblings.get(name) else { return };
        siblings.set(lines.iter().filter_map(|line| self.sibling(line)).collect());
    }

    fn sibling(&self, line: &SinkLine<'_>) -> Option<SiblingBinding> {
        let Binding { current, sink, .. } = &*self.usable.get(&line.binding)?.binding;
        Some(SiblingBinding { name: line.binding.sink.clone(), current: current.clone(), sink: sink.clone() })
    }

    /// The destinations of a line to clean now. Those that cannot be cleaned are recorded in `cleaning_state` or in the
    /// binding states.
    fn clean(
        &mut self,
        inventory: &InventoryBindings<'_>,
        line: &SinkLine<'_>,
        lines: &[SinkLine<'_>],
        cleaning_state: &mut CleaningState,
    ) -> Vec<AbandonedDestination> {
        let in_status = line.destinations();
        let wanted = if inventory.is_deleted() { None } else { line.wanted(&in_status) };
        let (next, may_clean) = self.binding_states.advance(&line.binding, in_status, wanted.as_ref());
        let mut to_clean = Vec::new();
        let mut lost = BTreeSet::new();
        for destination in &next.left {
            let is_written =
                |other: &SinkLine<'_>| other.binding != line.binding && other.writes(destination);
            if !inventory.is_deleted() && lines.iter().any(is_written) {
                // Another sink of the inventory writes there now.
                self.binding_states.give_up(&line.binding, destination);
                continue;
            }
            let sink_at_destination = format!("{} at {destination}", line.binding.sink);
            if inventory.is_deleted() {
                cleaning_state
                    .unclean
                    .entry(inventory.name.clone())
                    .or_default()
                    .push(sink_at_destination.clone());
            }
            match self.cleaning(inventory, line, lines, destination) {
                CleaningDecision::Begins(abandoned) if may_clean => to_clean.push(abandoned),
                CleaningDecision::Begins(_) | CleaningDecision::Waits => {}
                CleaningDecision::Impossible if inventory.is_deleted() => continue,
                CleaningDecision::Impossible if destination.asked_only => {
                    self.binding_states.give_up(&line.binding, destination);
                }
                CleaningDecision::Impossible if next.is_held_under_another_name(destination) => {
                    self.binding_states.adopt(&line.binding, destination);
                }
                CleaningDecision::Impossible if wanted.is_some() => drop(lost.insert(destination.clone())),
                CleaningDecision::Impossible => {
                    self.binding_states.give_up(&line.binding, destination);
                    cleaning_state
                        .left_behind
                        .entry(inventory.name.clone())
                        .or_default()
                        .push(sink_at_destination);
                }
            }
            if inventory.is_deleted() {
                cleaning_state.waiting.insert(inventory.name.clone());
            }
        }
        self.binding_states.set_lost(&line.binding, lost);
        to_clean
    }

    fn cleaning(
        &mut self,
        inventory: &InventoryBindings<'_>,
        line: &SinkLine<'_>,
        lines: &[SinkLine<'_>],
        destination: &RecordedDestination,
    ) -> CleaningDecision {
        let Some(sink) = &line.sink else { return CleaningDecision::Impossible };
        let name = inventory.name;
        let Some(opener) = self.opener_of_abandoned(name, sink, destination) else {
            let is_missing = |reason| reason == Reason::SinkNotFound;
            return match &*sink.plan {
                Ok(Some(_)) => CleaningDecision::Impossible,
                Err(faults) if faults.iter().any(|fault| is_missing(fault.reason)) => {
                    CleaningDecision::Impossible
                }
                Ok(None) | Err(_) => CleaningDecision::Waits,
            };
        };
        let mut others = Vec::new();
        for other in lines.iter().filter(|other| other.is_named && !inventory.is_deleted()) {
            let held = other.destinations().held.filter(|_| other.binding != line.binding);
            let usable = self.usable.get(&other.binding).map(|usable| &usable.destination);
            if !usable
                .or(held.as_ref())
                .is_some_and(|other| may_be_same_destination(other, held.as_ref(), destination))
            {
                continue;
            }
            match self.sibling(other) {
                Some(sibling) => others.push(sibling),
                // The other sink cannot be opened now, and may lead to the same destination.
                None => return CleaningDecision::Waits,
            }
        }
        let moved = line.is_named && !inventory.is_deleted();
        let mut binding = self.binding(name, sink, destination, opener, TakeOver::Never);
        if let Some(usable) = self.usable.get(&line.binding).filter(|_| moved) {
            (binding.targets, binding.outside) =
                (usable.binding.targets.clone(), usable.binding.outside.clone());
        }
        let binding = Arc::new(binding);
        let (name, was_granted) = (line.binding.clone(), !destination.asked_only);
        CleaningDecision::Begins(AbandonedDestination { name, binding, was_granted, others, moved })
    }
}

impl InventoryBindings<'_> {
    fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The sinks of the spec, and those that only the status names.
    fn lines(
        &self,
        object_set: &ObjectSet,
        operator_policy: &OperatorPolicy,
        resolved: &Resolved,
    ) -> Vec<SinkLine<'_>> {
        let exports = &self.status.sink_exports;
        let binding = |sink: &SinkName| binding_name(self.name, sink);
        let mut lines = Vec::new();
        for sink in &self.resolved.sinks {
            let export = exports.iter().find(|export| export.name == sink.name);
            let (binding, sink) = (binding(&sink.name), Some(sink.clone()));
            lines.push(SinkLine { binding, sink, export, is_named: true });
        }
        let is_named = |export: &&SinkExport| self.resolved.sinks.iter().any(|sink| sink.name == export.name);
        for export in exports.iter().filter(|export| !is_named(export)) {
            let namespace =
                export.namespace.as_deref().or(self.name.namespace.as_deref()).unwrap_or_default();
            let sink = object_set.abandoned_sink(&export.name, namespace, operator_policy, &resolved.sinks);
            lines.push(SinkLine {
                binding: binding(&export.name),
                sink,
                export: Some(export),
                is_named: false,
            });
        }
        lines
    }
}

impl SinkLine<'_> {
    /// The destinations in the status.
    fn destinations(&self) -> Destinations {
        let leads_to = self.sink.as_ref().and_then(|sink| sink.destination.as_ref());
        self.export.map(|export| Destinations::of(export, leads_to)).unwrap_or_default()
    }

    /// Whether the rows are written to a destination, and the status names it.
    fn writes(&self, destination: &RecordedDestination) -> bool {
        let in_status = self.destinations();
        in_status.names(destination)
            && self.wanted(&in_status).is_some_and(|wanted| wanted.is_at(destination))
    }

    /// Where the rows should be. While the destination of the sink is unknown, they stay where they are.
    fn wanted(&self, in_status: &Destinations) -> Option<RecordedDestination> {
        let sink = self.sink.as_ref().filter(|_| self.is_named)?;
        sink.destination.clone().or_else(|| in_status.claiming.clone()).or_else(|| in_status.held.clone())
    }
}

/// Whether the destination of another binding may be `destination` under another name. `held` is that destination with
/// its id: different ids mean different destinations.
fn may_be_same_destination(
    other: &RecordedDestination,
    held: Option<&RecordedDestination>,
    destination: &RecordedDestination,
) -> bool {
    let id = held.filter(|held| held.is_at(other)).and_then(|held| held.id.as_ref());
    other.cluster == destination.cluster
        && other.destination.scheme() == destination.destination.scheme()
        && (id.is_none() || destination.id.is_none() || id == destination.id.as_ref())
}

/// Combines the request annotations of an inventory and of its sink.
fn requested(inventory: Option<String>, sink: Option<&String>) -> Option<String> {
    match (inventory, sink) {
        (inventory, None) => inventory,
        (inventory, Some(sink)) => Some(format!("{} {sink}", inventory.unwrap_or_default())),
    }
}

fn annotation(metadata: &ObjectMeta, key: &str) -> Option<String> {
    metadata.annotations.as_ref().and_then(|annotations| annotations.get(key)).cloned()
}

/// Whether two definitions are equal in everything that a running binding depends on.
fn is_same_definition(old: &Binding, new: &Binding) -> bool {
    old.inventory == new.inventory
        && old.generation == new.generation
        && old.claimant == new.claimant
        && old.targets == new.targets
        && old.schema == new.schema
        && old.cadence == new.cadence
        && old.row_filter == new.row_filter
        && old.removal_guard == new.removal_guard
        && old.selected == new.selected
        && old.part_bytes == new.part_bytes
        && old.requested == new.requested
        && Arc::ptr_eq(&old.sink, &new.sink)
}
