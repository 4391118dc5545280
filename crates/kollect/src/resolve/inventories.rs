//! Inventories of both kinds: whose rows they hold, and where these go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_engine::{
    export::RowFilter,
    schedule::{Cadence, Intervals},
    select::Namespaces,
};
use kollect_model::{
    SpecError,
    batch::{CLUSTER_NAMESPACE, PART_BYTES},
    binding::SinkName,
    crd::{
        inventory::{Dedupe, MAX_SINK_REFS, RecordedDestination, RemovalGuard, SinkRef, SinkRefs},
        shapes::LabelSelector,
    },
    row::TargetId,
    schema::Schema,
};

use serde::Serialize;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Ceilings, Family, InventoryName, ObjectFault, ObjectName, ObjectSet, OperatorPolicy, ResolvedTarget,
    SinkPlan, dangling, sinks::SinkPlans,
};
use crate::reason::Reason;

/// An inventory after its references were resolved.
#[derive(Default)]
pub(crate) struct ResolvedInventory {
    /// Its targets, including those that are suspended or invalid: their rows stay.
    pub(crate) targets: Vec<TargetId>,
    /// What they declare about their rows.
    pub(crate) schema: Arc<Schema>,
    /// Which rows of these targets belong to it.
    pub(crate) rows: RowsWanted,
    pub(crate) sinks: Vec<BoundSink>,
    pub(crate) suspended: bool,
    /// Limits how many rows a change of specs may remove.
    pub(crate) removal_guard: Option<RemovalGuard>,
    /// Faults of the inventory itself: nothing is written.
    pub(crate) faults: Vec<ObjectFault>,
    /// Faults of targets that it names but that do not exist; rows of the others are written.
    pub(crate) missing: Vec<ObjectFault>,
    /// Notes for the user that are not faults.
    pub(crate) notes: Vec<String>,
    /// Why users other than those who may edit the inventory decide where its rows go.
    pub(crate) tenant_editable: Option<String>,
}

/// Which rows of its targets an inventory wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RowsWanted {
    namespaces: Vec<String>,
    selector: Option<LabelSelector>,
    one_row_per_object: bool,
}

impl RowsWanted {
    /// The row filter among the namespaces that exist; `None` while their labels are not known.
    pub(crate) fn among(&self, known: Option<&Namespaces>) -> Option<RowFilter> {
        let named = |name: &str| {
            self.namespaces.is_empty() || self.namespaces.iter().any(|included| included == name)
        };
        let namespaces = match &self.selector {
            None if self.namespaces.is_empty() => None,
            None => Some(self.namespaces.iter().map(|name| name.as_str().into()).collect()),
            Some(selector) => {
                let known = known.filter(|known| known.complete)?;
                let matching = known
                    .known
                    .iter()
                    .filter(|(name, metadata)| named(name) && selector.matches(&metadata.labels));
                Some(matching.map(|(name, _)| name.clone()).collect())
            }
        };
        Some(RowFilter { namespaces, one_row_per_object: self.one_row_per_object })
    }
}

/// A sink that an inventory names.
#[derive(Clone, Debug)]
pub(crate) struct BoundSink {
    pub(crate) name: SinkName,
    pub(crate) family: Family,
    /// The field that names it.
    pub(crate) field: String,
    /// Value of the sink's annotation `kollect.dev/requestedAt`.
    pub(crate) requested: Option<String>,
    /// Namespace and name of the sink.
    pub(crate) key: ObjectName,
    pub(crate) cluster: String,
    /// When it is written.
    pub(crate) cadence: Cadence,
    /// Largest size of one part of a document, in bytes.
    pub(crate) part_bytes: usize,
    /// How to open it, or why it cannot be used.
    pub(crate) plan: Arc<SinkPlan>,
    /// Its destination; `None` while there is no plan.
    pub(crate) destination: Option<RecordedDestination>,
}

/// How long a document waits for further changes, so that a roll-out becomes one document.
const DOCUMENT_WAIT: Duration = Duration::from_secs(10);

/// Note for inventories that set the field: it used to limit the inventory.
const PARTS_NOTE: &str =
    "spec.maxExportBytes is the size of one part of a document; it does not limit the inventory";

/// Fields that both kinds of inventories have.
struct InventorySpec<'a> {
    name: InventoryName,
    refs: &'a [String],
    selector: Option<&'a LabelSelector>,
    lists: [&'a SinkRefs; 3],
    /// Namespace of sinks that are named without one.
    sink_namespace: &'a str,
    intervals: Intervals,
    max_export_bytes: Option<i64>,
    suspended: bool,
    removal_guard: Option<RemovalGuard>,
    ceilings: Ceilings<'a>,
}

impl ObjectSet {
    pub(super) fn resolve_inventories(
        &self,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
        sinks: &SinkPlans,
        operator_policy: &OperatorPolicy,
    ) -> BTreeMap<InventoryName, ResolvedInventory> {
        let mut resolved = BTreeMap::new();
        for ((namespace, name), inventory) in &self.inventories {
            let spec = &inventory.spec;
            let inventory_spec = InventorySpec {
                name: InventoryName { namespace: Some(namespace.clone()), name: name.clone() },
                refs: &spec.target_refs,
                selector: spec.target_selector.as_ref(),
                lists: [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs],
                sink_namespace: namespace,
                intervals: Intervals {
                    export_min: Some(spec.export_min_interval),
                    min_change: spec.min_change_interval,
                    audit: spec.audit_interval,
                },
                max_export_bytes: spec.max_export_bytes,
                suspended: spec.suspend,
                removal_guard: spec.removal_guard.clone(),
                ceilings: self.scopes_of(namespace),
            };
            let (name, mut inventory) =
                self.resolve_inventory(inventory_spec, targets, sinks, operator_policy);
            if namespace == CLUSTER_NAMESPACE {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                let error = SpecError::new("metadata.namespace", &namespace.as_str().into(), problem);
                inventory.faults.push(ObjectFault::new(Reason::InvalidSpec, error));
            }
            resolved.insert(name, inventory);
        }
        for ((_, name), inventory) in &self.cluster_inventories {
            let spec = &inventory.spec;
            let inventory_spec = InventorySpec {
                name: InventoryName { namespace: None, name: name.clone() },
                refs: &spec.target_refs,
                selector: spec.target_selector.as_ref(),
                lists: [&spec.snapshot_sink_refs, &spec.database_sink_refs, &spec.event_sink_refs],
                sink_namespace: &spec.sink_namespace,
                intervals: Intervals {
                    export_min: Some(spec.export_min_interval),
                    min_change: spec.min_change_interval,
                    audit: spec.audit_interval,
                },
                max_export_bytes: None,
                suspended: spec.suspend,
                removal_guard: spec.removal_guard.clone(),
                ceilings: self.cluster_scopes(),
            };
            let (name, mut inventory) =
                self.resolve_inventory(inventory_spec, targets, sinks, operator_policy);
            inventory.rows = RowsWanted {
                namespaces: spec.namespaces.clone(),
                selector: spec.namespace_selector.clone(),
                one_row_per_object: spec.dedupe == Dedupe::ByResourceUid,
            };
            resolved.insert(name, inventory);
        }
        resolved
    }

    fn resolve_inventory(
        &self,
        inventory_spec: InventorySpec<'_>,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
        sinks: &SinkPlans,
        operator_policy: &OperatorPolicy,
    ) -> (InventoryName, ResolvedInventory) {
        let (suspended, removal_guard) = (inventory_spec.suspended, inventory_spec.removal_guard.clone());
        let mut resolved = ResolvedInventory { suspended, removal_guard, ..ResolvedInventory::default() };
        resolved.faults.extend(inventory_spec.ceilings.unreadable());
        inventory_spec.select_targets(targets, &self.refused, &mut resolved);
        resolved.notes.extend(inventory_spec.max_export_bytes.map(|_| PARTS_NOTE.to_owned()));
        self.bind(&inventory_spec, sinks, operator_policy, &mut resolved);
        (inventory_spec.name, resolved)
    }

    /// Resolves the sinks of the three lists, and adds their faults.
    fn bind(
        &self,
        inventory_spec: &InventorySpec<'_>,
        sinks: &SinkPlans,
        operator_policy: &OperatorPolicy,
        resolved: &mut ResolvedInventory,
    ) {
        let families = [
            (Family::Snapshot, "spec.snapshotSinkRefs"),
            (Family::Database, "spec.databaseSinkRefs"),
            (Family::Event, "spec.eventSinkRefs"),
        ];
        for ((family, field), list) in families.into_iter().zip(inventory_spec.lists) {
            let (refs, wrong) = list.decode(field, inventory_spec.name.namespace.is_some());
            resolved
                .faults
                .extend(wrong.into_iter().map(|error| ObjectFault::new(Reason::InvalidSpec, error)));
            for (index, sink_ref) in refs {
                let namespace = sink_ref.namespace.as_deref().unwrap_or(inventory_spec.sink_namespace);
                let key = (namespace.to_owned(), sink_ref.name.clone());
                let field = format!("{field}[{index}]");
                let denied = inventory_spec.ceilings.denies_sink(family, &sink_ref, namespace);
                let plan = match denied {
                    Some((reason, problem)) => {
                        let error = SpecError::new(&field, &sink_ref.name.as_str().into(), problem);
                        Arc::new(Err(vec![ObjectFault::new(reason, error)]))
                    }
                    None => self.plan(sinks, family, &key, &field),
                };
                if inventory_spec.name.namespace.is_none() && resolved.tenant_editable.is_none() {
                    let object = format!("{family} sink {}", sink_ref.name);
                    let decides = "where the rows of this inventory go";
                    resolved.tenant_editable =
                        inventory_spec.ceilings.tenant_editable(operator_policy, namespace, &object, decides);
                }
                let bound = self.bound(inventory_spec, operator_policy, family, key, &sink_ref, plan);
                resolved.sinks.push(BoundSink { field, ..bound });
            }
        }
        let total: usize = inventory_spec.lists.iter().map(|list| list.0.len()).sum();
        if total > MAX_SINK_REFS {
            let problem = format!("has more than {MAX_SINK_REFS} sink references");
            let error = SpecError::new("spec", &total.into(), problem);
            resolved.faults.push(ObjectFault::new(Reason::InvalidSpec, error));
        }
    }

    fn bound(
        &self,
        inventory_spec: &InventorySpec<'_>,
        operator_policy: &OperatorPolicy,
        family: Family,
        key: ObjectName,
        sink_ref: &SinkRef,
        plan: Arc<SinkPlan>,
    ) -> BoundSink {
        let spec = self.sinks.get(&(family, key.clone()));
        let intervals = |export_min, min_change, audit| Intervals { export_min, min_change, audit };
        let SinkRef { export_min_interval, min_change_interval, audit_interval, .. } = *sink_ref;
        let reference = intervals(export_min_interval, min_change_interval, audit_interval);
        let sink_intervals = spec.map_or_else(Intervals::default, |spec| {
            let common = spec.common();
            intervals(common.export_min_interval, common.min_change_interval, common.audit_interval)
        });
        let floors =
            inventory_spec.ceilings.scopes.iter().filter_map(|(_, ceiling)| ceiling.min_export_interval);
        let floor = floors.map(|floor| floor.0).max();
        let min_change = if family == Family::Snapshot { DOCUMENT_WAIT } else { Duration::ZERO };
        let part_bytes = sink_ref.max_export_bytes.or(inventory_spec.max_export_bytes);
        let cluster = spec.and_then(|spec| spec.common().cluster.clone()).unwrap_or_default();
        BoundSink {
            name: SinkName::Object { family, name: key.1.clone() },
            family,
            field: String::new(),
            requested: self.sink_requests.get(&(family, key.clone())).cloned(),
            destination: shown_destination_of(&plan, &key.0, &cluster, operator_policy),
            cluster,
            key,
            cadence: Cadence::of([reference, sink_intervals, inventory_spec.intervals], floor, min_change),
            part_bytes: part_bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(PART_BYTES),
            plan,
        }
    }

    /// Digest of what the specs select for an inventory: its targets, their profiles' kinds, scopes, and which rows of
    /// them it wants. Equal after a restart if nothing was edited.
    pub(crate) fn selection_digest(&self, name: &InventoryName, inventory: &ResolvedInventory) -> String {
        let mut digest = Xxh3::new();
        let mut add = |part: Value| digest.update(part.to_string().as_bytes());
        let kind = |namespace: &str, name: &str| {
            let profile = self.profiles.get(&(namespace.to_owned(), name.to_owned()));
            profile.map(|profile| profile.spec.target_gvk.clone())
        };
        for id in &inventory.targets {
            let key = (id.namespace.as_deref().unwrap_or_default().to_owned(), id.name.to_string());
            let (mut spec, kind) = if let Some(target) = self.targets.get(&key) {
                (json!(target.spec), kind(&key.0, &target.spec.profile_ref))
            } else if let Some(target) = self.cluster_targets.get(&key) {
                let profile = &target.spec.profile_ref;
                (json!(target.spec), kind(&profile.namespace, &profile.name))
            } else {
                continue;
            };
            // Suspending a target does not change what it selects.
            spec.as_object_mut().map(|spec| spec.remove("suspend"));
            add(json!([id.to_string(), spec, kind]));
        }
        let ceilings = match &name.namespace {
            Some(namespace) => self.scopes_of(namespace),
            None => self.cluster_scopes(),
        };
        add(json!([ceilings.values(), inventory.rows]));
        format!("{:016x}", digest.digest())
    }

    /// The error for a sink that does not exist; `None` if it exists, even if it is invalid.
    pub(crate) fn missing_sink(&self, family: Family, key: &ObjectName, field: &str) -> Option<SpecError> {
        let (namespace, name) = key;
        let known = self.sinks.contains_key(&(family, key.clone())) || self.is_refused(family.kind(), key);
        (!known).then(|| dangling(field, name, &format!("{family} sink {name}"), namespace))
    }

    /// The plan of a sink, or the fault that it does not exist; `field` is the reference to it.
    fn plan(&self, sinks: &SinkPlans, family: Family, key: &ObjectName, field: &str) -> Arc<SinkPlan> {
        sinks.get(&(family, key.clone())).cloned().unwrap_or_else(|| {
            let missing = self.missing_sink(family, key, field);
            let fault = missing.map(|error| ObjectFault::new(Reason::SinkNotFound, error));
            Arc::new(Err(fault.into_iter().collect()))
        })
    }

    /// A sink that an inventory has written to, whether the inventory still names it or not.
    pub(crate) fn abandoned_sink(
        &self,
        written: &SinkName,
        namespace: &str,
        operator_policy: &OperatorPolicy,
        sinks: &SinkPlans,
    ) -> Option<BoundSink> {
        let SinkName::Object { family, name } = written else { return None };
        let family = *family;
        let key = (namespace.to_owned(), name.to_owned());
        let plan = self.plan(sinks, family, &key, "status.sinkExports");
        let spec = self.sinks.get(&(family, key.clone()));
        let cluster = spec.and_then(|spec| spec.common().cluster.clone()).unwrap_or_default();
        Some(BoundSink {
            name: written.clone(),
            family,
            field: "status.sinkExports".to_owned(),
            requested: None,
            destination: shown_destination_of(&plan, namespace, &cluster, operator_policy),
            cluster,
            cadence: Cadence::of([Intervals::default(); 3], None, Duration::ZERO),
            part_bytes: PART_BYTES,
            plan,
            key,
        })
    }
}

/// The destination of a sink of a namespace, as statuses show it.
fn shown_destination_of(
    plan: &SinkPlan,
    namespace: &str,
    cluster: &str,
    operator_policy: &OperatorPolicy,
) -> Option<RecordedDestination> {
    let destination = plan.as_ref().ok()?.as_ref()?.destination(&operator_policy.sink_policy(namespace));
    Some(RecordedDestination::new(operator_policy.shown(&destination), cluster))
}

impl InventorySpec<'_> {
    /// The targets whose rows belong to the inventory.
    fn select_targets(
        &self,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
        refused: &BTreeSet<(String, ObjectName)>,
        resolved: &mut ResolvedInventory,
    ) {
        let namespace: Option<Arc<str>> = self.name.namespace.as_deref().map(Into::into);
        let target_id = |name: &str| TargetId { namespace: namespace.clone(), name: name.into() };
        let kind = if namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
        for (index, name) in self.refs.iter().enumerate() {
            let target_namespace = namespace.as_deref().unwrap_or_default().to_owned();
            let is_refused = refused.contains(&(kind.to_owned(), (target_namespace, (*name).clone())));
            if !targets.contains_key(&target_id(name)) && !is_refused {
                let field = format!("spec.targetRefs[{index}]");
                let error = dangling(&field, name, &format!("{kind} {name}"), "");
                resolved.missing.push(ObjectFault::new(Reason::TargetNotFound, error));
            }
        }
        let wanted = |(id, target): &(&TargetId, &ResolvedTarget)| {
            (self.refs.is_empty() || self.refs.iter().any(|name| **name == *id.name))
                && self.selector.is_none_or(|selector| selector.matches(&target.labels))
                && !target.denied
        };
        let in_namespace = targets.range(target_id("")..).take_while(|(id, _)| id.namespace == namespace);
        let wanted = in_namespace.filter(wanted);
        let mut schema = Schema::default();
        for (id, target) in wanted {
            resolved.targets.push(id.clone());
            schema.targets.extend(target.schema.clone().map(|declared| (id.clone(), declared)));
        }
        resolved.schema = Arc::new(schema);
        // It is not known what targets that cannot be read select: their rows stay.
        for (_, (target_namespace, name)) in refused.iter().filter(|(refused, _)| refused == kind) {
            let id = target_id(name);
            if namespace.as_deref().unwrap_or_default() == target_namespace && !targets.contains_key(&id) {
                resolved.targets.push(id);
            }
        }
    }
}

impl Ceilings<'_> {
    /// Why a sink may not be used.
    fn denies_sink(&self, family: Family, sink: &SinkRef, namespace: &str) -> Option<(Reason, String)> {
        for (scope_name, ceiling) in &self.scopes {
            let allowed = match family {
                Family::Snapshot => &ceiling.snapshot_sink_refs,
                Family::Database => &ceiling.database_sink_refs,
                Family::Event => &ceiling.event_sink_refs,
            };
            if !allowed.is_empty() && !allowed.contains(&sink.name) {
                return Some((Reason::ScopeSinkDenied, format!("{scope_name} does not allow this sink")));
            }
        }
        let scope_name = self.denies_static(namespace)?;
        Some((
            Reason::SinkNamespaceDenied,
            format!("{scope_name} does not allow sinks of namespace {namespace}"),
        ))
    }
}
