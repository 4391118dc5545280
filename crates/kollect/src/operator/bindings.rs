//! From inventories to bindings: what is wanted, what stays as it is, and what is cleaned up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    deliver::{Deliveries, Wanted},
    export::{Binding, Choice, LastChecksum, Open},
    schedule::Breaker,
    select::Namespaces,
    store::Sight,
};
use kollect_model::{
    binding::{BindingName, SinkName},
    claim::{Claimant, TakeOver, Writer},
    crd::inventory::{ExportPlace, SinkExport},
    sink::{Sink, SinkError},
};
use kollect_sinks::{Plan, Policy, Sinks};

use super::{finalize::is_protected, metrics::Meter, objects::Known, progress::Board};
use crate::{
    reason::Reason,
    world::{BoundSink, Family, InventoryName, Name, Resolved, ResolvedInventory, Rules},
};

/// Annotation: the sinks of the inventory are compared when it changes.
pub(crate) const REQUESTED_AT: &str = "kollect.dev/requestedAt";
/// Annotation: id of the cluster whose rows this inventory takes over.
const TAKE_OVER: &str = "kollect.dev/take-over";

/// The bindings of all inventories.
pub(crate) struct Bindings {
    sinks: Arc<dyn OpenPlan>,
    meter: Meter,
    rules: Arc<Rules>,
    board: Board,
    /// Id of this cluster.
    cluster: String,
    /// All that the operator looks at.
    scope: Sight,
    /// What is known about namespaces.
    pub(crate) namespaces: Option<Arc<Namespaces>>,
    /// The last definition of each binding that could be opened.
    good: BTreeMap<BindingName, Good>,
    /// One per sink object, for as long as somebody uses it.
    breakers: BTreeMap<(Family, Name), Arc<Breaker>>,
}

struct Good {
    plan: Plan,
    place: ExportPlace,
    moves: u64,
    wanted: Wanted,
}

/// The name of a binding.
pub(crate) fn binding_name(inventory: &InventoryName, sink: &SinkName) -> BindingName {
    BindingName { inventory: inventory.clone(), sink: sink.clone() }
}

/// Connects to what plans describe: [`Sinks`] in the program, destinations in memory in the simulator.
#[async_trait]
pub(crate) trait OpenPlan: Send + Sync {
    /// Opens what a plan describes, within a policy.
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

impl Bindings {
    pub(crate) fn new(
        sinks: Arc<dyn OpenPlan>,
        meter: Meter,
        rules: Arc<Rules>,
        board: Board,
        cluster: String,
        scope: Sight,
    ) -> Self {
        let (good, breakers) = (BTreeMap::new(), BTreeMap::new());
        Self { sinks, meter, rules, board, cluster, scope, namespaces: None, good, breakers }
    }

    /// All that the operator looks at.
    pub(crate) fn scope(&self) -> &Sight {
        &self.scope
    }

    /// Hands over what is wanted now.
    pub(crate) fn deliver(&mut self, known: &Known, resolved: &Resolved, deliveries: &mut Deliveries) {
        let mut wanted = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, exports)) = known.inventory(name) else { continue };
            let exports = self.rules.shown_exports(exports);
            if metadata.deletion_timestamp.is_some() {
                continue;
            }
            // What is wrong stops writing, and leaves what is there.
            let usable = inventory.faults.is_empty() && !inventory.suspended;
            for sink in &inventory.sinks {
                used.insert((sink.family, sink.key.clone()));
                let binding = binding_name(name, &sink.name);
                let export = exports.iter().find(|export| export.name == sink.name);
                export.into_iter().for_each(|export| self.board.remember(&binding, export));
                self.want(name, metadata, inventory, sink, export);
                if let Some(good) = self.good.get(&binding) {
                    let suspended = !usable || sink.plan.is_err();
                    wanted.insert(binding, Wanted { suspended, ..good.wanted.clone() });
                }
            }
            if !inventory.faults.is_empty() {
                // Which sinks it names cannot be told.
                for (binding, good) in self.good.iter().filter(|(binding, _)| binding.inventory == *name) {
                    wanted.insert(binding.clone(), Wanted { suspended: true, ..good.wanted.clone() });
                }
            }
        }
        self.breakers.retain(|sink, _| used.contains(sink));
        self.good.retain(|binding, _| wanted.contains_key(binding));
        deliveries.set(wanted);
    }

    /// Keeps the definition of a binding, the same value as before if nothing has changed.
    fn want(
        &mut self,
        name: &InventoryName,
        metadata: &ObjectMeta,
        inventory: &ResolvedInventory,
        sink: &BoundSink,
        export: Option<&SinkExport>,
    ) {
        let choice = inventory.rows.among(self.namespaces.as_deref());
        let (Ok(Some(plan)), Some(place), Some(choice)) = (&*sink.plan, &sink.place, choice) else { return };
        let binding = binding_name(name, &sink.name);
        let known = self.good.get(&binding);
        // Before the first row is written the inventory cannot vanish, and its status says where rows are:
        // whoever comes after this process finds them. Until then it is written where it was.
        let findable = is_protected(name.kind(), metadata)
            && export.is_some_and(|export| export.place.as_ref() == Some(place));
        if known.is_none_or(|known| known.place != *place) && !findable {
            return;
        }
        // The old place and the new one may be one under two names: whatever was cleaned is compared again,
        // with a claim of its own.
        let moves = self.board.look(&binding, |progress| progress.moves).unwrap_or(0);
        let opener = match known.filter(|known| known.plan == *plan && known.moves == moves) {
            Some(known) => known.wanted.binding.sink.clone(),
            None => self.opener(name, sink, plan.clone()),
        };
        let breaker = self.breakers.entry((sink.family, sink.key.clone())).or_default().clone();
        let candidate = Binding {
            targets: inventory.targets.clone(),
            choice,
            last_checksum: known.map_or_else(
                || LastChecksum::new(export.and_then(|export| export.last_checksum.clone())),
                |known| known.wanted.binding.last_checksum.clone(),
            ),
            requested: annotation(metadata, REQUESTED_AT),
            breaker,
            ..self.binding(name, metadata, sink, place, opener)
        };
        let same = |known: &Good| same(&known.wanted.binding, &candidate) && known.place == *place;
        if !known.is_some_and(same) {
            self.board.doubt(&binding, place);
            let destination = place.destination.clone();
            let wanted = Wanted { binding: Arc::new(candidate), destination, suspended: false };
            let (plan, place) = (plan.clone(), place.clone());
            self.good.insert(binding, Good { plan, place, moves, wanted });
        }
    }

    fn opener(&self, name: &InventoryName, sink: &BoundSink, plan: Plan) -> Arc<dyn Open> {
        Arc::new(Planned {
            sinks: self.sinks.clone(),
            plan,
            policy: self.rules.sink_policy(&sink.key.0),
            meter: self.meter.clone(),
            counted: Some(name.kind()),
        })
    }

    /// A binding without targets.
    fn binding(
        &self,
        name: &InventoryName,
        metadata: &ObjectMeta,
        sink: &BoundSink,
        place: &ExportPlace,
        opener: Arc<dyn Open>,
    ) -> Binding {
        let take_over = annotation(metadata, TAKE_OVER).map_or(TakeOver::Never, TakeOver::From);
        Binding {
            inventory: name.in_cluster(&place.cluster),
            generation: metadata.generation.unwrap_or(0),
            claimant: Claimant { owner: Some(self.cluster.clone()), writer: Writer::Operator, take_over },
            targets: Vec::new(),
            cadence: sink.cadence,
            // All targets of an inventory are known, wherever the operator looks for what they select: rows
            // of others, and of kinds that they have left, do not belong there.
            rest: Sight::Everything,
            scope: self.scope.clone(),
            choice: Choice::default(),
            part_bytes: sink.part_bytes,
            last_checksum: LastChecksum::default(),
            requested: None,
            sink: opener,
            breaker: Arc::default(),
        }
    }

    /// Forgets everything: another process may have led meanwhile.
    pub(crate) fn clear(&mut self) {
        self.good.clear();
        self.breakers.clear();
    }

    /// Whether nobody knows how to get to a place of a sink that leads somewhere else now.
    pub(crate) fn is_lost(
        &self,
        name: &InventoryName,
        sink: &BoundSink,
        place: &ExportPlace,
        deliveries: &Deliveries,
    ) -> bool {
        let policy = self.rules.sink_policy(&sink.key.0);
        let leads_there = |plan: &Plan| self.rules.plan_at(plan, &place.destination, &policy).is_some();
        !deliveries.is_cleaning_place(&place.destination, &name.in_cluster(&place.cluster))
            && matches!(&*sink.plan, Ok(Some(plan)) if !leads_there(plan))
    }

    /// Sees to it that a place where an inventory was written is cleaned. `moved`: its sink is still
    /// named, and leads somewhere else.
    pub(crate) fn clean(
        &mut self,
        name: &InventoryName,
        metadata: &ObjectMeta,
        sink: &BoundSink,
        place: &ExportPlace,
        moved: bool,
        deliveries: &mut Deliveries,
    ) -> Cleaning {
        if deliveries.is_cleaning_place(&place.destination, &name.in_cluster(&place.cluster)) {
            return Cleaning::Underway;
        }
        let plan = match &*sink.plan {
            Ok(Some(plan)) => {
                let policy = self.rules.sink_policy(&sink.key.0);
                self.rules.plan_at(plan, &place.destination, &policy)
            }
            Err(faults) if faults.iter().any(|fault| fault.reason == Reason::SinkNotFound) => None,
            Ok(None) | Err(_) => return Cleaning::Waiting,
        };
        let Some(plan) = plan else { return Cleaning::Impossible };
        let opener = self.opener(name, sink, plan);
        let binding = Arc::new(self.binding(name, metadata, sink, place, opener));
        let destination = place.destination.clone();
        let wanted = Wanted { binding, destination, suspended: false };
        deliveries.clean(&binding_name(name, &sink.name), wanted, moved);
        Cleaning::Underway
    }
}

/// What can be done about a place that shall be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cleaning {
    Underway,
    /// The sink cannot be used now, and may be mended.
    Waiting,
    /// Nobody knows how to get there: the sink is gone, or leads to another server now.
    Impossible,
}

fn annotation(metadata: &ObjectMeta, key: &str) -> Option<String> {
    metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned()
}

/// The places that hold rows, as a line of a status tells. What was written before places were told is
/// where its sink leads now, as far as anybody knows.
pub(crate) fn places(export: &SinkExport, sink: Option<&BoundSink>) -> Vec<ExportPlace> {
    let untold = || {
        export.last_export_time.as_ref()?;
        let unknown = || ExportPlace { destination: "an unknown place".into(), cluster: String::new() };
        Some(sink.and_then(|sink| sink.place.clone()).unwrap_or_else(unknown))
    };
    export.place.clone().or_else(untold).into_iter().chain(export.left.iter().cloned()).collect()
}

/// Whether nothing has changed that a binding would notice.
fn same(a: &Binding, b: &Binding) -> bool {
    a.inventory == b.inventory
        && a.generation == b.generation
        && a.claimant == b.claimant
        && a.targets == b.targets
        && a.cadence == b.cadence
        && a.choice == b.choice
        && a.part_bytes == b.part_bytes
        && a.requested == b.requested
        && Arc::ptr_eq(&a.sink, &b.sink)
}
