//! The loop: whenever something has changed, look at everything, hand over what is wanted, say what is true.

mod connection;
mod left;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kollect_engine::{
    collect::{Collector, Target},
    deliver::{BindingName, Deliveries},
    store::{Sight, StoreReader},
    watch::WatchSource,
};
use kollect_model::{
    crd::{
        inventory::{ClusterInventoryStatus, InventoryStatus, SinkExport},
        sinks::SinkStatus,
    },
    row::TargetId,
};
use kollect_sinks::Sinks;
use kube::Client;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tracing::warn;

use connection::{test_connection, tested_sink};
use left::left_sink;

use super::{
    bindings::{Bindings, Planned, binding_name, binding_prefix},
    conditions::Conditions,
    finalize::{self, Deleted},
    health::Health,
    leader::{self, Leadership},
    metrics::{Metrics, Picture},
    objects::{Known, Objects, SinkObject},
    probe::{Probed, Probes},
    progress::Board,
    secrets::Secrets,
    shards::Shards,
    status::{self, View},
    write::{Change, Desired, StatusWriter},
};
use crate::{
    cluster::ClusterSource,
    world::{Compiled, Fault, InventoryName, Name, Resolved, Rules, World},
};

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Counts and coverage are looked at so often even if nobody says anything.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Rows that were written change nothing but counts, which are looked at no more often.
const COUNT_AGAIN: Duration = Duration::from_secs(1);

/// Everything that the operator runs.
pub(crate) struct Operator {
    source: Arc<ClusterSource>,
    client: Client,
    rules: Arc<Rules>,
    objects: Arc<Objects>,
    secrets: Secrets,
    collector: Collector,
    rows: StoreReader,
    compiled: Compiled,
    /// What the collector was last given.
    collected: (Vec<Arc<Target>>, BTreeSet<TargetId>),
    sinks: Sinks,
    bindings: Bindings,
    board: Board,
    /// Only whoever leads writes.
    deliveries: Option<Deliveries>,
    probes: Probes,
    writer: StatusWriter,
    /// When something must be looked at although nothing changes.
    due: Option<Instant>,
    leadership: watch::Receiver<Leadership>,
    /// The one that this process leads in.
    term: Option<u64>,
    health: Health,
    shards: Shards,
    metrics: Metrics,
    /// How long deleted inventories wait for sinks that cannot be cleaned.
    cleanup_timeout: Duration,
}

/// What the operator is made from.
pub(crate) struct Setup {
    pub(crate) source: Arc<ClusterSource>,
    pub(crate) watch_source: Arc<dyn WatchSource>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) collector: Collector,
    pub(crate) rows: StoreReader,
    pub(crate) rest: Sight,
    pub(crate) within: Option<BTreeSet<Arc<str>>>,
    pub(crate) board: Board,
    pub(crate) metrics: Metrics,
    pub(crate) cleanup_timeout: Duration,
}

impl Operator {
    pub(crate) fn new(setup: Setup, leadership: watch::Receiver<Leadership>, health: Health) -> Self {
        let Setup {
            source,
            watch_source,
            rules,
            collector,
            rows,
            rest,
            within,
            board,
            metrics,
            cleanup_timeout,
        } = setup;
        let client = source.client();
        let sinks = Sinks::default();
        Self {
            objects: Arc::new(Objects::follow(&watch_source, within.as_ref())),
            secrets: Secrets::new(client.clone(), watch_source),
            bindings: Bindings::new(
                sinks.clone(),
                metrics.meter.clone(),
                rules.clone(),
                board.clone(),
                source.id.clone(),
                rest,
            ),
            writer: StatusWriter::new(client.clone(), metrics.meter.clone()),
            source,
            client,
            rules,
            collector,
            rows,
            compiled: Compiled::default(),
            collected: (Vec::new(), BTreeSet::new()),
            sinks,
            board,
            deliveries: None,
            probes: Probes::default(),
            due: None,
            leadership,
            term: None,
            health,
            shards: Shards::default(),
            metrics,
            cleanup_timeout,
        }
    }

    /// The objects that it looks at.
    pub(crate) fn objects(&self) -> Arc<Objects> {
        self.objects.clone()
    }

    /// Id of the cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.source.id
    }

    /// Looks and acts, for ever.
    pub(crate) async fn run(&mut self) {
        self.objects.settled().await;
        self.health.settled();
        let mut leadership = self.leadership.clone();
        let mut objects = self.objects.changes();
        let mut secrets = self.secrets.changes();
        let mut board = self.board.changes();
        let mut counts = self.board.counts();
        let mut probes = self.probes.changes();
        let mut sights = self.rows.sight_changes();
        let mut namespaces = self.collector.namespaces();
        loop {
            self.health.turned();
            let term = self.leadership.borrow_and_update().term();
            if term != self.term {
                self.strip();
                self.term = term;
            }
            // Whoever does not lead writes nothing, whatever else it is doing.
            match term {
                Some(term) => {
                    tokio::select! {
                        () = self.timed_turn(true) => {}
                        () = leader::ended(&mut leadership, term) => self.strip(),
                    }
                }
                None => self.timed_turn(false).await,
            }
            let lost = async {
                match term {
                    Some(term) => leader::ended(&mut leadership, term).await,
                    None => std::future::pending().await,
                }
            };
            let turned = Instant::now();
            let again = turned + LOOK_AGAIN;
            let counted = async {
                time::sleep_until(turned + COUNT_AGAIN).await;
                counts.changed().await
            };
            let due = self.due.take().map_or(again, |due| due.min(again));
            tokio::select! {
                () = lost => self.strip(),
                Ok(()) = self.leadership.changed() => {}
                Ok(()) = objects.changed() => {}
                Ok(()) = secrets.changed() => {}
                Ok(()) = board.changed() => {}
                Ok(()) = counted => {}
                Ok(()) = probes.changed() => {}
                Ok(()) = sights.changed() => {}
                Ok(()) = namespaces.changed() => {}
                () = time::sleep_until(due) => {}
            }
            time::sleep(TOGETHER).await;
            objects.mark_unchanged();
            secrets.mark_unchanged();
            board.mark_unchanged();
            counts.mark_unchanged();
            probes.mark_unchanged();
            sights.mark_unchanged();
            namespaces.mark_unchanged();
        }
    }

    /// Stops writing at once, and forgets what only a leader knows.
    fn strip(&mut self) {
        if self.deliveries.take().is_some() {
            warn!("no longer leading: nothing is written");
        }
        self.bindings.clear();
        self.board.forget_places();
        self.probes.set(BTreeMap::new());
    }

    /// Lets running writes finish, for as long as this process leads.
    pub(crate) async fn stop(&mut self) {
        let (Some(deliveries), Some(term)) = (self.deliveries.take(), self.term) else { return };
        tokio::select! {
            () = deliveries.stop() => {}
            () = leader::ended(&mut self.leadership, term) => {}
        }
    }

    /// A turn that is cut short by the end of leadership does not count.
    async fn timed_turn(&mut self, leading: bool) {
        let (began, failures) = (Instant::now(), self.writer.failures());
        self.turn(leading).await;
        self.metrics.meter.turned(began.elapsed(), self.writer.failures() == failures);
    }

    async fn turn(&mut self, leading: bool) {
        let known = self.objects.known();
        let mut world = known.world();
        let wanted = self.wanted_secrets(&world);
        self.secrets.set(&wanted);
        world.secrets = self.secrets.known();
        let resolved = world.resolve(&self.rules, &mut self.compiled);
        self.collect(&resolved);
        self.metrics.show(Picture::of(&world, &resolved));
        // Secrets that are being looked up shall not be told to be missing.
        if !leading || !self.secrets.knows_all(&wanted) {
            return;
        }
        self.deliver(&known, &world, &resolved).await;
        self.probe(&known, &world);
        self.due = self.tell(&known, &world, &resolved).await;
    }

    /// The Secrets that sinks may read.
    fn wanted_secrets(&self, world: &World) -> BTreeSet<Name> {
        let mut wanted = BTreeSet::new();
        for ((_, (own, _)), spec) in &world.sinks {
            for (_, reference) in spec.secret_refs() {
                let namespace = reference.namespace.clone().unwrap_or_else(|| own.clone());
                let pair = (own.clone(), namespace.clone());
                let allowed = namespace == *own
                    || self.rules.secret_namespaces.as_ref().is_none_or(|pairs| pairs.contains(&pair));
                if allowed {
                    wanted.insert((namespace, reference.name.clone()));
                }
            }
        }
        wanted
    }

    fn collect(&mut self, resolved: &Resolved) {
        let targets: Vec<Arc<Target>> =
            resolved.targets.values().filter_map(|target| target.target.clone()).collect();
        let frozen: BTreeSet<TargetId> = resolved
            .targets
            .iter()
            .filter(|(_, target)| target.target.is_none() && !target.denied)
            .map(|(id, _)| id.clone())
            .collect();
        let (before, frozen_before) = &self.collected;
        let same = before.len() == targets.len()
            && before.iter().zip(&targets).all(|(a, b)| Arc::ptr_eq(a, b))
            && *frozen_before == frozen;
        if !same {
            self.collector.set_targets(&targets, &frozen);
            self.collected = (targets, frozen);
        }
    }

    async fn deliver(&mut self, known: &Known, world: &World, resolved: &Resolved) {
        let (rows, board) = (self.rows.clone(), self.board.clone());
        let deliveries = self
            .deliveries
            .get_or_insert_with(|| Deliveries::new(rows, move |name, told| board.hear(name, &told)));
        let metadata = |name: &InventoryName| metadata(known, name);
        for (name, inventory) in &resolved.inventories {
            for export in exports(known, name) {
                if inventory.sinks.iter().any(|sink| sink.name == export.name) {
                    let at = export.last_export_time.as_ref().map(|time| time.0.into());
                    let checksum = export.last_checksum.clone();
                    self.board.remember(&binding_name(name, &export.name), at, export.rows, checksum);
                }
            }
        }
        self.bindings.namespaces.clone_from(&self.collector.namespaces().borrow());
        self.bindings.deliver(resolved, metadata, |name| exports(known, name), deliveries);
        for (name, behind) in self.clean_left(known, world, resolved) {
            if let Some(metadata) = metadata(&name) {
                let kind = inventory_kind(&name);
                finalize::warn_left_behind(&self.client, kind, metadata, &[behind]).await;
            }
        }
        let Some(deliveries) = &mut self.deliveries else { return };
        for (name, inventory) in &resolved.inventories {
            let Some(metadata) = metadata(name) else { continue };
            let kind = inventory_kind(name);
            if metadata.deletion_timestamp.is_none() {
                if !inventory.sinks.is_empty() && !name.is_reserved() {
                    finalize::protect(&self.client, kind, metadata).await;
                }
                continue;
            }
            // What never could be written, because its name is another's, is not there.
            let exports = if name.is_reserved() { &[][..] } else { exports(known, name) };
            let sink = |export| left_sink(world, &self.rules, name, export);
            let written = exports.iter().map(|export| (export, sink(export))).collect();
            let deleted = Deleted { kind, name, metadata, written, patience: self.cleanup_timeout };
            deleted.finish(&self.client, &mut self.bindings, &self.board, deliveries).await;
        }
        for target in known.targets().values().filter(|target| target.metadata.deletion_timestamp.is_some()) {
            finalize::release(&self.client, "KollectTarget", &target.metadata).await;
        }
        let deleted = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_some();
        for target in known.cluster_targets().values().filter(|target| deleted(&target.metadata)) {
            finalize::release(&self.client, "KollectClusterTarget", &target.metadata).await;
        }
        let names: BTreeSet<String> = resolved.inventories.keys().map(binding_prefix).collect();
        let kept = |binding: &BindingName| names.iter().any(|name| binding.starts_with(name.as_str()));
        self.board.retain(kept);
    }

    fn probe(&mut self, known: &Known, world: &World) {
        let mut wanted = BTreeMap::new();
        let planned = |spec: &kollect_model::sink::SinkSpec, namespace: &str| {
            let plan = world.plan_sink(spec, namespace, &self.rules).ok()?;
            let policy = self.rules.sink_policy(namespace);
            let meter = self.metrics.meter.clone();
            Some(Planned { sinks: self.sinks.clone(), plan, policy, meter, counted: None })
        };
        for ((family, name), sink) in known.sinks() {
            let asked = sink.spec.common().connection_test.unwrap_or(true) || test_connection(&sink.metadata);
            if let Some(planned) = asked.then(|| planned(&sink.spec, &name.0)).flatten() {
                wanted.insert(Probed::Sink(family, name.clone()), planned);
            }
        }
        for (name, test) in known.connection_tests() {
            let generation = test.metadata.generation.unwrap_or(0);
            let done = test
                .status
                .as_ref()
                .is_some_and(|status| status.completed && status.observed_generation == Some(generation));
            let Some((family, sink)) = tested_sink(test).filter(|_| !done) else { continue };
            let key = (name.0.clone(), sink);
            let spec = world.sinks.get(&(family, key.clone()));
            if let Some(planned) = spec.and_then(|spec| planned(spec, &name.0)) {
                wanted.insert(Probed::Test(name.clone(), generation), planned);
            }
        }
        self.probes.set(wanted);
    }

    /// Writes what has changed about the objects. Answers when to look again.
    async fn tell(&mut self, known: &Known, world: &World, resolved: &Resolved) -> Option<Instant> {
        let view = View {
            rows: &self.rows,
            coverage: self.collector.coverage().read(),
            namespaces: self.collector.namespaces().borrow().clone(),
            board: &self.board,
            rest: self.bindings.rest(),
            now: Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default(),
        };
        let mut desired = Vec::new();
        profiles(known, resolved, view.now, &mut desired);
        targets(known, resolved, &view, &mut desired);
        inventories(known, resolved, &view, &mut self.shards, &mut desired);
        self.sinks(known, world, view.now, &mut desired);
        let tests = self.connection_tests(known, world, view.now, &mut desired);
        let written = self.writer.write(desired).await;
        self.acknowledge_tests(known).await;
        self.own_tests(known).await;
        self.delete_expired(tests.expired).await;
        [written, tests.due].into_iter().flatten().min()
    }

    fn sinks(&self, known: &Known, world: &World, now: Timestamp, desired: &mut Vec<Desired>) {
        for ((family, name), sink) in known.sinks() {
            let faults = world.plan_sink(&sink.spec, &name.0, &self.rules).err();
            let verdict = self.probes.verdict(&Probed::Sink(family, name.clone()));
            let after = sink_status(sink, faults.as_deref(), verdict, now);
            push(desired, family.kind(), &name, &sink.metadata, &sink.status, &after, |status| {
                status.conditions.clone()
            });
        }
    }
}

fn metadata<'a>(known: &'a Known, name: &InventoryName) -> Option<&'a ObjectMeta> {
    match &name.namespace {
        Some(namespace) => {
            let key = (namespace.clone(), name.name.clone());
            known.inventories().get(&key).map(|inventory| &inventory.metadata)
        }
        None => {
            let key = (String::new(), name.name.clone());
            known.cluster_inventories().get(&key).map(|inventory| &inventory.metadata)
        }
    }
}

/// What the status of an inventory says about its sinks.
fn exports<'a>(known: &'a Known, name: &InventoryName) -> &'a [SinkExport] {
    let exports = match &name.namespace {
        Some(namespace) => {
            let inventory = known.inventories().get(&(namespace.clone(), name.name.clone()));
            inventory.and_then(|i| i.status.as_ref()).map(|status| &status.sink_exports)
        }
        None => {
            let inventory = known.cluster_inventories().get(&(String::new(), name.name.clone()));
            inventory.and_then(|i| i.status.as_ref()).map(|status| &status.inventory.sink_exports)
        }
    };
    exports.map_or(&[], Vec::as_slice)
}

/// The kind of an inventory.
pub(crate) fn inventory_kind(name: &InventoryName) -> &'static str {
    if name.namespace.is_some() { "KollectInventory" } else { "KollectClusterInventory" }
}

fn push<S: Serialize + PartialEq>(
    desired: &mut Vec<Desired>,
    kind: &'static str,
    name: &Name,
    metadata: &ObjectMeta,
    before: &S,
    after: &S,
    conditions: impl Fn(&S) -> Vec<kollect_model::crd::shapes::Condition>,
) {
    if metadata.deletion_timestamp.is_some() {
        return;
    }
    let value = |status: &S| -> Value { json!(status) };
    // Most objects are as they should be: only the others are worth their text, which decides.
    let differs = before != after && value(before) != value(after);
    let change = differs.then(|| Change {
        metadata: metadata.clone(),
        after: value(after),
        conditions_before: conditions(before),
        conditions_after: conditions(after),
        at_once: false,
    });
    desired.push(Desired { kind, name: name.clone(), change });
}

fn profiles(known: &Known, resolved: &Resolved, now: Timestamp, desired: &mut Vec<Desired>) {
    for (name, profile) in known.profiles() {
        let Some(compiled) = resolved.profiles.get(name) else { continue };
        let local = known
            .targets()
            .iter()
            .filter(|((namespace, _), target)| *namespace == name.0 && target.spec.profile_ref == name.1);
        let cluster = known.cluster_targets().values().filter(|target| {
            let reference = &target.spec.profile_ref;
            (&reference.namespace, &reference.name) == (&name.0, &name.1)
        });
        let users = local.count() + cluster.count();
        let before = profile.status.clone().unwrap_or_default();
        let errors = compiled.as_ref().err().map(Vec::as_slice);
        let after = status::profile(&profile.metadata, &before.conditions, errors, users, now);
        push(desired, "KollectProfile", name, &profile.metadata, &before, &after, |s| s.conditions.clone());
    }
}

fn targets(known: &Known, resolved: &Resolved, view: &View<'_>, desired: &mut Vec<Desired>) {
    for ((namespace, name), target) in known.targets() {
        let id = TargetId { namespace: Some(namespace.as_str().into()), name: name.as_str().into() };
        let Some(outcome) = resolved.targets.get(&id) else { continue };
        let before = target.status.clone().unwrap_or_default();
        let rules = target.spec.filter.resource_rules.len();
        let after = view.target(&target.metadata, &before, &id, outcome, rules);
        let key = (namespace.clone(), name.clone());
        push(desired, "KollectTarget", &key, &target.metadata, &before, &after, |s| s.conditions.clone());
    }
    for ((_, name), target) in known.cluster_targets() {
        let id = TargetId { namespace: None, name: name.as_str().into() };
        let Some(outcome) = resolved.targets.get(&id) else { continue };
        let before = target.status.clone().unwrap_or_default();
        let rules = target.spec.filter.resource_rules.len();
        let after = view.target(&target.metadata, &before, &id, outcome, rules);
        let key = (String::new(), name.clone());
        push(desired, "KollectClusterTarget", &key, &target.metadata, &before, &after, |s| {
            s.conditions.clone()
        });
    }
}

fn inventories(
    known: &Known,
    resolved: &Resolved,
    view: &View<'_>,
    shards: &mut Shards,
    desired: &mut Vec<Desired>,
) {
    shards.retain(|name| resolved.inventories.contains_key(name));
    for (name, outcome) in &resolved.inventories {
        let key = (name.namespace.clone().unwrap_or_default(), name.name.clone());
        if let Some(inventory) = name.namespace.as_ref().and_then(|_| known.inventories().get(&key)) {
            let before = inventory.status.clone().unwrap_or_default();
            let after = view.inventory(&inventory.metadata, &before, name, outcome);
            push(desired, "KollectInventory", &key, &inventory.metadata, &before, &after, |s| {
                s.conditions.clone()
            });
            hurry(desired, &before, &after);
        } else if let Some(inventory) = known.cluster_inventories().get(&key) {
            let before = inventory.status.clone().unwrap_or_default();
            let own = view.inventory(&inventory.metadata, &before.inventory, name, outcome);
            let choice = outcome.rows.among(view.namespaces.as_deref());
            let namespace_shards =
                choice.map(|choice| shards.of(name, view.rows, &outcome.targets, choice)).unwrap_or_default();
            let rows = namespace_shards.iter().filter_map(|shard| shard.item_count).sum();
            let after = ClusterInventoryStatus {
                inventory: InventoryStatus { item_count: Some(rows), ..own },
                target_count: outcome.targets.len().try_into().ok(),
                namespace_shard_count: namespace_shards.len().try_into().ok(),
                namespace_shards,
            };
            push(desired, "KollectClusterInventory", &key, &inventory.metadata, &before, &after, |s| {
                s.inventory.conditions.clone()
            });
            hurry(desired, &before.inventory, &after.inventory);
        }
    }
}

/// Nothing is written to a place before the status that was pushed last tells of it.
fn hurry(desired: &mut [Desired], before: &InventoryStatus, after: &InventoryStatus) {
    let places = |status: &InventoryStatus| -> Vec<_> {
        let exports = status.sink_exports.iter();
        exports.map(|export| (export.name.clone(), export.place.clone(), export.left.clone())).collect()
    };
    if let Some(change) = desired.last_mut().and_then(|desired| desired.change.as_mut()) {
        change.at_once = places(before) != places(after);
    }
}

fn sink_status(
    sink: &SinkObject,
    faults: Option<&[Fault]>,
    verdict: Option<Result<Duration, String>>,
    now: Timestamp,
) -> SinkStatus {
    let SinkStatus { observed_generation, conditions, .. } = &sink.status;
    let unheard = faults.is_none() && verdict.is_none();
    let tested = sink.spec.common().connection_test != Some(false);
    if unheard && tested && status::stands(&sink.metadata, *observed_generation, conditions) {
        return sink.status.clone();
    }
    let mut conditions = Conditions::after(&sink.status.conditions, sink.metadata.generation, now);
    if sink.spec.common().tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify) {
        conditions.set("TLSInsecure", true, "InsecureSkipVerify", "any server is trusted");
    }
    match (faults, verdict) {
        (Some(faults), _) => {
            let reason = faults.first().map_or("InvalidSpec", |fault| fault.reason);
            let message = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            conditions.set("ConnectionVerified", false, reason, message.clone());
            conditions.degraded(reason, message, true);
        }
        (None, Some(Ok(_))) => {
            conditions.set("ConnectionVerified", true, "ConnectionOK", "the sink answers");
            conditions.ready("ConnectionOK", "the sink answers");
        }
        (None, Some(Err(message))) => {
            conditions.set("ConnectionVerified", false, "ConnectionTestFailed", message.clone());
            conditions.degraded("ConnectionTestFailed", message, false);
        }
        (None, None) if sink.spec.common().connection_test == Some(false) => {
            conditions.ready("NotTested", "connectionTest is false");
        }
        (None, None) => conditions.progressing("Probing", "the first probe is running"),
    }
    SinkStatus {
        conditions: conditions.done(),
        observed_generation: sink.metadata.generation,
        preview: sink.status.preview.clone(),
    }
}
