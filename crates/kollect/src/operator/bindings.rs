//! From inventories to bindings: what is wanted, what stays as it is, and what is cleaned up.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_engine::{
    deliver::{BindingName, Deliveries, Wanted},
    export::{Binding, LastChecksum, Open},
    schedule::Breaker,
    select::Namespaces,
    store::Sight,
};
use kollect_model::{
    claim::{Claimant, TakeOver, Writer},
    sink::{Sink, SinkError},
};
use kollect_sinks::{Plan, Policy, Sinks};

use super::{metrics::Meter, objects::Known, progress::Board, reconcile::inventory_kind};
use crate::world::{BoundSink, Family, InventoryName, Name, Resolved, ResolvedInventory, Rules};

/// Annotation: the sinks of the inventory are compared when it changes.
pub(crate) const REQUESTED_AT: &str = "kollect.dev/requestedAt";
/// Annotation: id of the cluster whose rows this inventory takes over.
const TAKE_OVER: &str = "kollect.dev/take-over";

/// The bindings of all inventories.
pub(crate) struct Bindings {
    sinks: Sinks,
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
    wanted: Wanted,
}

/// The name of a binding. Names of cluster inventories have no slash: no namespace is taken for one.
pub(crate) fn binding_name(inventory: &InventoryName, sink: &str) -> BindingName {
    format!("{}{sink}", binding_prefix(inventory)).into()
}

/// What the names of all bindings of an inventory begin with.
pub(crate) fn binding_prefix(inventory: &InventoryName) -> String {
    let InventoryName { namespace, name } = inventory;
    namespace.as_ref().map_or_else(|| format!("{name} "), |namespace| format!("{namespace}/{name} "))
}

/// Opens a sink as its plan says.
pub(crate) struct Planned {
    pub(crate) sinks: Sinks,
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
        sinks: Sinks,
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
                let checksum = export.and_then(|export| export.last_checksum.as_ref());
                self.want(&binding, name, metadata, inventory, sink, checksum);
                if let Some(good) = self.good.get(&binding) {
                    let suspended = !usable || sink.plan.is_err();
                    wanted.insert(binding, Wanted { suspended, ..good.wanted.clone() });
                }
            }
            if !inventory.faults.is_empty() {
                // Which sinks it names cannot be told.
                let prefix = binding_prefix(name);
                let own = self.good.range::<str, _>((Bound::Included(&*prefix), Bound::Unbounded));
                for (binding, good) in own.take_while(|(binding, _)| binding.starts_with(&prefix)) {
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
        binding: &BindingName,
        name: &InventoryName,
        metadata: &ObjectMeta,
        inventory: &ResolvedInventory,
        sink: &BoundSink,
        last_checksum: Option<&String>,
    ) {
        let choice = inventory.rows.among(self.namespaces.as_deref());
        let (Ok(Some(plan)), Some(choice)) = (&*sink.plan, choice) else { return };
        let policy = self.rules.sink_policy(&sink.key.0);
        let breaker = self.breakers.entry((sink.family, sink.key.clone())).or_default().clone();
        let known = self.good.get(binding);
        let opener: Arc<dyn Open> = match known.filter(|known| known.plan == *plan) {
            Some(known) => known.wanted.binding.sink.clone(),
            None => Arc::new(Planned {
                sinks: self.sinks.clone(),
                plan: plan.clone(),
                policy: policy.clone(),
                meter: self.meter.clone(),
                counted: Some(inventory_kind(name)),
            }),
        };
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let take_over = annotation(TAKE_OVER).map_or(TakeOver::Never, TakeOver::From);
        let candidate = Binding {
            inventory: name.in_cluster(&sink.cluster),
            generation: metadata.generation.unwrap_or(0),
            claimant: Claimant { owner: Some(self.cluster.clone()), writer: Writer::Operator, take_over },
            targets: inventory.targets.clone(),
            cadence: sink.cadence,
            // All targets of an inventory are known, wherever the operator looks for what they select: rows
            // of others, and of kinds that they have left, do not belong there.
            rest: Sight::Everything,
            scope: self.scope.clone(),
            choice,
            part_bytes: sink.part_bytes,
            last_checksum: known.map_or_else(
                || LastChecksum::new(last_checksum.cloned()),
                |known| known.wanted.binding.last_checksum.clone(),
            ),
            requested: annotation(REQUESTED_AT),
            sink: opener,
            breaker,
        };
        let destination = plan.destination(&policy).into();
        let same = |known: &&Good| {
            same(&known.wanted.binding, &candidate) && known.wanted.destination == destination
        };
        if known.as_ref().is_none_or(|known| !same(known)) {
            // It has not been seen that the sink holds what this one wants.
            self.board.doubt(binding);
            let wanted = Wanted { binding: Arc::new(candidate), destination, suspended: false };
            self.good.insert(binding.clone(), Good { plan: plan.clone(), wanted });
        }
    }

    /// Forgets everything: another process may have led meanwhile.
    pub(crate) fn clear(&mut self) {
        self.good.clear();
        self.breakers.clear();
    }

    /// Cleans a sink that an inventory no longer names, unless that is being done or nobody knows how.
    pub(crate) fn clean(
        &mut self,
        name: &InventoryName,
        metadata: &ObjectMeta,
        sink: &BoundSink,
        deliveries: &mut Deliveries,
    ) {
        let binding = binding_name(name, &sink.name);
        if deliveries.is_cleaning(&binding) || deliveries.is_running(&binding) {
            return;
        }
        self.want(&binding, name, metadata, &ResolvedInventory::default(), sink, None);
        if let Some(good) = self.good.remove(&binding) {
            deliveries.clean(&binding, good.wanted);
        }
    }
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
