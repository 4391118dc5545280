//! Inventories of both kinds: whose rows they hold, and where these go.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use kollect_engine::{
    export::Choice,
    schedule::{Cadence, Intervals},
    select::Namespaces,
};
use kollect_model::{
    SpecError,
    batch::{CLUSTER_NAMESPACE, InventoryId, PART_BYTES},
    crd::{
        inventory::{Dedupe, ExportPlace, MAX_SINK_REFS, SinkRef, SinkRefs},
        shapes::{LabelSelector, SecretReference},
    },
    row::TargetId,
    sink::SinkSpec,
};
use kollect_sinks::{Plan, Secrets};

use super::{Ceilings, Family, Fault, INVALID_SPEC, Name, ResolvedTarget, Rules, Secret, World, dangling};

/// An inventory of either kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InventoryName {
    /// `None` for a KollectClusterInventory.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl InventoryName {
    /// Whether sinks keep cluster inventories under its name.
    pub(crate) fn is_reserved(&self) -> bool {
        self.namespace.as_deref() == Some(CLUSTER_NAMESPACE)
    }

    /// The inventory as a sink knows it that calls the cluster so.
    pub(crate) fn in_cluster(&self, cluster: &str) -> InventoryId {
        InventoryId {
            cluster: cluster.to_owned(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl fmt::Display for InventoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.in_cluster("").fmt(f)
    }
}

/// What an inventory means.
#[derive(Default)]
pub(crate) struct ResolvedInventory {
    /// Its targets; those that are suspended or wrong as well, because their rows stay.
    pub(crate) targets: Vec<TargetId>,
    /// Which of their rows.
    pub(crate) rows: RowsWanted,
    pub(crate) sinks: Vec<BoundSink>,
    pub(crate) suspended: bool,
    /// What is wrong with the inventory itself: nothing is written.
    pub(crate) faults: Vec<Fault>,
    /// Targets that it names and that do not exist; the others are written.
    pub(crate) missing: Vec<Fault>,
    /// What deserves a look.
    pub(crate) notes: Vec<String>,
}

/// Which rows of its targets an inventory wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsWanted {
    namespaces: Vec<String>,
    selector: Option<LabelSelector>,
    one_row_per_object: bool,
}

impl RowsWanted {
    /// What that means for the namespaces that exist; `None` while their labels are not known.
    pub(crate) fn among(&self, known: Option<&Namespaces>) -> Option<Choice> {
        let named = |name: &str| self.namespaces.is_empty() || self.namespaces.iter().any(|n| n == name);
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
        Some(Choice { namespaces, one_row_per_object: self.one_row_per_object })
    }
}

/// A sink that an inventory names.
#[derive(Clone, Debug)]
pub(crate) struct BoundSink {
    /// `family/name`
    pub(crate) name: String,
    pub(crate) family: Family,
    /// Of the sink.
    pub(crate) key: Name,
    pub(crate) cluster: String,
    /// When it is written.
    pub(crate) cadence: Cadence,
    /// Largest part of a document.
    pub(crate) part_bytes: usize,
    /// How to open it, or why it cannot be used.
    pub(crate) plan: Result<Plan, Vec<Fault>>,
    /// Where it leads, if it can be used.
    pub(crate) place: Option<ExportPlace>,
}

/// The reason of a fault: the object does not exist.
pub(crate) const SINK_NOT_FOUND: &str = "SinkNotFound";

/// How long documents wait for further changes, so that a roll-out is one of them.
const DOCUMENTS: Duration = Duration::from_secs(10);

/// Said once where the field used to limit an inventory.
const PARTS: &str =
    "spec.maxExportBytes is the size of one part of a document; it does not limit the inventory";

/// What both kinds of inventories say.
struct Asked<'a> {
    name: InventoryName,
    refs: &'a [String],
    selector: Option<&'a LabelSelector>,
    lists: [&'a SinkRefs; 3],
    /// Of sinks that are named without one.
    sink_namespace: &'a str,
    intervals: Intervals,
    max_export_bytes: Option<i64>,
    suspended: bool,
    ceilings: Ceilings<'a>,
}

impl World {
    pub(super) fn resolve_inventories(
        &self,
        rules: &Rules,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
    ) -> BTreeMap<InventoryName, ResolvedInventory> {
        let mut resolved = BTreeMap::new();
        for ((namespace, name), inventory) in &self.inventories {
            let spec = &inventory.spec;
            let asked = Asked {
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
                ceilings: self.scopes_of(namespace),
            };
            let (name, mut inventory) = self.resolve_inventory(asked, rules, targets);
            if namespace == CLUSTER_NAMESPACE {
                let problem = "sinks keep cluster inventories under this name; use another namespace";
                let error = SpecError::new("metadata.namespace", &namespace.as_str().into(), problem);
                inventory.faults.push(Fault::new(INVALID_SPEC, error));
            }
            resolved.insert(name, inventory);
        }
        for ((_, name), inventory) in &self.cluster_inventories {
            let spec = &inventory.spec;
            let asked = Asked {
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
                ceilings: self.cluster_scopes(),
            };
            let (name, mut inventory) = self.resolve_inventory(asked, rules, targets);
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
        asked: Asked<'_>,
        rules: &Rules,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
    ) -> (InventoryName, ResolvedInventory) {
        let mut resolved = ResolvedInventory { suspended: asked.suspended, ..ResolvedInventory::default() };
        asked.choose(targets, &self.refused, &mut resolved);
        resolved.notes.extend(asked.max_export_bytes.map(|_| PARTS.to_owned()));
        self.bind(&asked, rules, &mut resolved);
        (asked.name, resolved)
    }

    /// The sinks of the three lists, and what is wrong with them.
    fn bind(&self, asked: &Asked<'_>, rules: &Rules, resolved: &mut ResolvedInventory) {
        let families = [
            (Family::Snapshot, "spec.snapshotSinkRefs"),
            (Family::Database, "spec.databaseSinkRefs"),
            (Family::Event, "spec.eventSinkRefs"),
        ];
        for ((family, field), list) in families.into_iter().zip(asked.lists) {
            let (refs, wrong) = list.decode(field, asked.name.namespace.is_some());
            resolved.faults.extend(wrong.into_iter().map(|error| Fault::new(INVALID_SPEC, error)));
            for (index, sink_ref) in refs {
                let namespace = sink_ref.namespace.as_deref().unwrap_or(asked.sink_namespace);
                let key = (namespace.to_owned(), sink_ref.name.clone());
                let field = format!("{field}[{index}]");
                let denied = asked.ceilings.denies_sink(family, &sink_ref, namespace);
                let plan = match denied {
                    Some((reason, problem)) => {
                        let error = SpecError::new(&field, &sink_ref.name.as_str().into(), problem);
                        Err(vec![Fault::new(reason, error)])
                    }
                    None => self.plan(family, &key, &field, rules),
                };
                resolved.sinks.push(self.bound(asked, rules, family, key, &sink_ref, plan));
            }
        }
        let total: usize = asked.lists.iter().map(|list| list.0.len()).sum();
        if total > MAX_SINK_REFS {
            let problem = format!("has more than {MAX_SINK_REFS} sink references");
            let error = SpecError::new("spec", &total.into(), problem);
            resolved.faults.push(Fault::new(INVALID_SPEC, error));
        }
    }

    fn bound(
        &self,
        asked: &Asked<'_>,
        rules: &Rules,
        family: Family,
        key: Name,
        sink_ref: &SinkRef,
        plan: Result<Plan, Vec<Fault>>,
    ) -> BoundSink {
        let spec = self.sinks.get(&(family, key.clone()));
        let level = |export_min, min_change, audit| Intervals { export_min, min_change, audit };
        let SinkRef { export_min_interval, min_change_interval, audit_interval, .. } = *sink_ref;
        let reference = level(export_min_interval, min_change_interval, audit_interval);
        let own = spec.map_or_else(Intervals::default, |spec| {
            let common = spec.common();
            level(common.export_min_interval, common.min_change_interval, common.audit_interval)
        });
        let floors = asked.ceilings.scopes.iter().filter_map(|(_, ceiling)| ceiling.min_export_interval);
        let floor = floors.map(|floor| floor.0).max();
        let min_change = if family == Family::Snapshot { DOCUMENTS } else { Duration::ZERO };
        let part_bytes = sink_ref.max_export_bytes.or(asked.max_export_bytes);
        let cluster = spec.and_then(|spec| spec.common().cluster.clone()).unwrap_or_default();
        BoundSink {
            name: format!("{family}/{}", key.1),
            family,
            place: place(&plan, &key.0, &cluster, rules),
            cluster,
            key,
            cadence: Cadence::of([reference, own, asked.intervals], floor, min_change),
            part_bytes: part_bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(PART_BYTES),
            plan,
        }
    }

    /// A sink that an inventory has written to, whoever names it now.
    pub(crate) fn left_sink(&self, written: &str, namespace: &str, rules: &Rules) -> Option<BoundSink> {
        let (family, name) = written.split_once('/')?;
        let families = [Family::Snapshot, Family::Database, Family::Event];
        let family = families.into_iter().find(|known| known.to_string() == family)?;
        let key = (namespace.to_owned(), name.to_owned());
        let plan = self.plan(family, &key, "status.sinkExports", rules);
        let spec = self.sinks.get(&(family, key.clone()));
        let cluster = spec.and_then(|spec| spec.common().cluster.clone()).unwrap_or_default();
        Some(BoundSink {
            name: written.to_owned(),
            family,
            place: place(&plan, namespace, &cluster, rules),
            cluster,
            cadence: Cadence::of([Intervals::default(); 3], None, Duration::ZERO),
            part_bytes: PART_BYTES,
            plan,
            key,
        })
    }

    /// How to open a sink, as far as objects tell; `field` is what names it.
    fn plan(&self, family: Family, key: &Name, field: &str, rules: &Rules) -> Result<Plan, Vec<Fault>> {
        let Some(spec) = self.sinks.get(&(family, key.clone())) else {
            let missing = self.missing_sink(family, key, field);
            return Err(missing.into_iter().map(|error| Fault::new(SINK_NOT_FOUND, error)).collect());
        };
        self.plan_sink(spec, &key.0, rules)
    }

    /// What to say about a sink that does not exist; nothing if it does, even if it is wrong.
    pub(crate) fn missing_sink(&self, family: Family, key: &Name, field: &str) -> Option<SpecError> {
        let (namespace, name) = key;
        let known = self.sinks.contains_key(&(family, key.clone())) || self.is_refused(family.kind(), key);
        (!known).then(|| dangling(field, name, &format!("{family} sink {name}"), namespace))
    }

    /// How to open a sink with this spec.
    pub(crate) fn plan_sink(
        &self,
        spec: &SinkSpec,
        namespace: &str,
        rules: &Rules,
    ) -> Result<Plan, Vec<Fault>> {
        let plan = plan_without_secrets(spec, namespace, rules)?;
        let secrets = self.secrets_of(spec, namespace, rules)?;
        let plan = plan.with_secrets(&secrets).map_err(|errors| {
            errors.into_iter().map(|error| Fault::new("SecretResolveFailed", error)).collect::<Vec<_>>()
        })?;
        plan.check(&rules.sink_policy(namespace)).map_err(invalid)?;
        Ok(plan)
    }

    /// What the Secrets of a sink hold, if all of them can be read.
    fn secrets_of(&self, spec: &SinkSpec, own: &str, rules: &Rules) -> Result<Secrets, Vec<Fault>> {
        let (mut secrets, mut faults) = (Secrets::default(), Vec::new());
        for (field, SecretReference { name, namespace }) in spec.secret_refs() {
            let namespace = namespace.as_deref().unwrap_or(own);
            if let Some(error) = foreign_secret(field, own, namespace, rules) {
                faults.push(Fault::new("SecretResolveFailed", error));
                continue;
            }
            let key = (namespace.to_owned(), name.clone());
            match self.secrets.get(&key) {
                Some(Secret::Known(contents)) => secrets.insert(field, (**contents).clone()),
                Some(Secret::Unreadable(why)) => {
                    let error = SpecError::new(field, &name.as_str().into(), why.clone());
                    faults.push(Fault::new("SecretResolveFailed", error));
                }
                // It is there, and what is wrong with it has been said.
                None if self.is_refused("Secret", &key) => {}
                None => {
                    let error = dangling(field, name, &format!("Secret {name}"), namespace);
                    faults.push(Fault::new("SecretResolveFailed", error));
                }
            }
        }
        if faults.is_empty() { Ok(secrets) } else { Err(faults) }
    }
}

/// Where a sink of a namespace leads.
fn place(
    plan: &Result<Plan, Vec<Fault>>,
    namespace: &str,
    cluster: &str,
    rules: &Rules,
) -> Option<ExportPlace> {
    let destination = plan.as_ref().ok()?.destination(&rules.sink_policy(namespace));
    Some(ExportPlace { destination, cluster: cluster.to_owned() })
}

fn invalid(errors: Vec<SpecError>) -> Vec<Fault> {
    errors.into_iter().map(|error| Fault::new(INVALID_SPEC, error)).collect()
}

fn plan_without_secrets(spec: &SinkSpec, namespace: &str, rules: &Rules) -> Result<Plan, Vec<Fault>> {
    let plan = kollect_sinks::plan(spec).map_err(invalid)?;
    plan.check(&rules.sink_policy(namespace)).map_err(invalid)?;
    Ok(plan)
}

/// What is wrong with a sink, whatever its Secrets hold.
pub(crate) fn check_sink(spec: &SinkSpec, own: &str, rules: &Rules) -> Vec<Fault> {
    let mut faults = plan_without_secrets(spec, own, rules).err().unwrap_or_default();
    let foreign = spec.secret_refs().into_iter().filter_map(|(field, reference)| {
        foreign_secret(field, own, reference.namespace.as_deref().unwrap_or(own), rules)
    });
    faults.extend(foreign.map(|error| Fault::new(INVALID_SPEC, error)));
    faults
}

/// Why a sink of namespace `own` may not read Secrets of `namespace`.
fn foreign_secret(field: &str, own: &str, namespace: &str, rules: &Rules) -> Option<SpecError> {
    let pair = (own.to_owned(), namespace.to_owned());
    let allowed =
        namespace == own || rules.secret_namespaces.as_ref().is_none_or(|allowed| allowed.contains(&pair));
    if allowed {
        return None;
    }
    let problem = format!(
        "a sink reads Secrets of its own namespace; the operator's --allow-secret-namespaces \
         {own}={namespace} would allow this one"
    );
    Some(SpecError::new(format!("{field}.namespace"), &namespace.into(), problem))
}

impl Asked<'_> {
    /// The targets whose rows belong to the inventory.
    fn choose(
        &self,
        targets: &BTreeMap<TargetId, ResolvedTarget>,
        refused: &BTreeSet<(String, Name)>,
        resolved: &mut ResolvedInventory,
    ) {
        let namespace = self.name.namespace.as_deref();
        let kind = if namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
        let here = || targets.iter().filter(|(id, _)| id.namespace.as_deref() == namespace);
        for (index, name) in self.refs.iter().enumerate() {
            if !here().any(|(id, _)| *id.name == **name) {
                let field = format!("spec.targetRefs[{index}]");
                let error = dangling(&field, name, &format!("{kind} {name}"), "");
                resolved.missing.push(Fault::new("TargetNotFound", error));
            }
        }
        let wanted = |(id, target): &(&TargetId, &ResolvedTarget)| {
            (self.refs.is_empty() || self.refs.iter().any(|name| **name == *id.name))
                && self.selector.is_none_or(|selector| selector.matches(&target.labels))
                && !target.denied
        };
        resolved.targets = here().filter(wanted).map(|(id, _)| id.clone()).collect();
        // Nobody knows what those that cannot be read select: their rows stay.
        for (_, (place, name)) in refused.iter().filter(|(refused, _)| refused == kind) {
            let id = TargetId { namespace: namespace.map(Into::into), name: name.as_str().into() };
            if namespace.unwrap_or_default() == place && !targets.contains_key(&id) {
                resolved.targets.push(id);
            }
        }
    }
}

impl Ceilings<'_> {
    /// Why a sink may not be used.
    fn denies_sink(&self, family: Family, sink: &SinkRef, namespace: &str) -> Option<(&'static str, String)> {
        for (who, ceiling) in &self.scopes {
            let allowed = match family {
                Family::Snapshot => &ceiling.snapshot_sink_refs,
                Family::Database => &ceiling.database_sink_refs,
                Family::Event => &ceiling.event_sink_refs,
            };
            if !allowed.is_empty() && !allowed.contains(&sink.name) {
                return Some(("ScopeSinkDenied", format!("{who} does not allow this sink")));
            }
        }
        let who = self.denies_static(namespace)?;
        Some(("SinkNamespaceDenied", format!("{who} does not allow sinks of namespace {namespace}")))
    }
}
