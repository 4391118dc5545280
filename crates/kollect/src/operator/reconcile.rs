//! The loop: after each change a turn checks the affected objects, updates the engine and writes statuses.
//!
//! All objects are resolved again when a spec, a Secret or the plan of a sink changes. For any other change a turn
//! checks only the affected objects; without a change it does nothing.

mod connection;
mod links;
mod objects_to_check;
mod preview;
mod statuses;
mod turn_changes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_engine::{
    clock,
    collect::{Collector, Target},
    deliver::Deliveries,
    store::{StoreReader, Visibility},
    tasks::Tasks,
    watch::WatchSource,
};
use kollect_model::{
    binding::SinkName,
    crd::inventory::{InventoryStatus, TakeOverRecord},
    row::TargetId,
};
use kube::Client;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tracing::{info, warn};

use connection::{test_connection, tested_sink};
pub(crate) use links::ObjectLinks;
use objects_to_check::ObjectsToCheck;
use turn_changes::{ChangeSignals, TurnChanges};

use super::{
    binding_states::{BindingState, BindingStates},
    bindings::{Bindings, CleaningState, MeasuredPlan, OpenPlan, RELEASE_REMOVALS, binding_name},
    destinations::Destinations,
    finalize::{self, MetadataChange},
    health::Health,
    leader::{self, Leadership},
    metrics::{Metrics, MetricsView},
    objects::{ObjectCache, ObjectKey, ObjectWatches, requested_at},
    plans::SinkPlanner,
    probe::{Probed, Probes},
    profile_warnings::ProfileWarnings,
    secrets::SecretWatches,
    status_writer::StatusWriter,
    take_over::{self, TakeOverRequests},
};
use crate::{
    cluster::ClusterSource,
    object_schemas::ObjectSchemas,
    resolve::{
        BoundSink, CompiledObjects, Family, InventoryName, ObjectName, ObjectSet, OperatorPolicy, Resolved,
    },
};

/// How long a leader waits for objects that have not been listed before it checks its term again.
const LISTING_TIMEOUT: Duration = Duration::from_secs(10);

/// The resolved objects, and their version.
struct Resolution {
    /// [`ObjectCache::definitions`] of the objects.
    definitions: u64,
    object_set: ObjectSet,
    resolved: Resolved,
    links: ObjectLinks,
}

/// The state of the loop, and everything that it runs.
pub(crate) struct Operator {
    source: Arc<ClusterSource>,
    client: Client,
    policy: Arc<OperatorPolicy>,
    objects: Arc<ObjectWatches>,
    secrets: SecretWatches,
    collector: Collector,
    rows: StoreReader,
    compiled: CompiledObjects,
    /// Changes whenever the plan of a sink was made.
    plans: watch::Receiver<()>,
    /// The targets that the collector last got.
    collected: (Vec<Arc<Target>>, BTreeSet<TargetId>),
    sinks: Arc<dyn OpenPlan>,
    bindings: Bindings,
    binding_states: BindingStates,
    /// `None` unless this process leads: only the leader writes.
    deliveries: Option<Deliveries>,
    probes: Probes,
    profile_warnings: ProfileWarnings,
    writer: StatusWriter,
    resolution: Option<Arc<Resolution>>,
    /// The resolution with which all statuses were last checked.
    checked: Option<Arc<Resolution>>,
    /// The destinations in the statuses of inventories when bindings were last passed to the engine.
    delivered_destinations: BTreeMap<InventoryName, StatusDestinations>,
    /// Objects that must be checked although nothing changes, and when.
    due_checks: BTreeMap<ObjectKey, Instant>,
    /// When bindings must be passed to the engine although nothing changes.
    deliver_at: Option<Instant>,
    /// When connection tests must be checked although nothing changes.
    tests_at: Option<Instant>,
    /// Profiles and targets whose newest generation is not in all sinks.
    unexported: BTreeSet<ObjectKey>,
    leadership: watch::Receiver<Leadership>,
    /// The term in which this process leads; `None`: it does not lead.
    term: Option<u64>,
    led_since: Instant,
    /// The term in which all known objects were listed. In another term they may be older than what another process has
    /// written.
    listed_in_term: Option<u64>,
    health: Health,
    metrics: Metrics,
    tasks: Tasks,
    /// How long deleted inventories wait for sinks that cannot be cleaned.
    cleanup_timeout: Duration,
}

/// The destinations and take-overs in a status: bindings depend on them.
#[derive(Clone, Default, PartialEq)]
struct StatusDestinations {
    lines: Vec<(SinkName, Destinations)>,
    take_overs: Vec<TakeOverRecord>,
}

impl StatusDestinations {
    fn of(status: &InventoryStatus) -> Self {
        let lines = status.sink_exports.iter().map(|export| {
            let (held, claiming) = (export.place.clone(), export.claiming.clone());
            (export.name.clone(), Destinations { held, claiming, left: export.left.clone() })
        });
        Self { lines: lines.collect(), take_overs: status.take_overs.clone() }
    }
}

/// Parts that the operator is built from.
pub(crate) struct OperatorParts {
    pub(crate) source: Arc<ClusterSource>,
    pub(crate) operator_policy: Arc<OperatorPolicy>,
    pub(crate) collector: Collector,
    pub(crate) rows: StoreReader,
    pub(crate) within: Option<BTreeSet<Arc<str>>>,
    pub(crate) sinks: Arc<dyn OpenPlan>,
    pub(crate) binding_states: BindingStates,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
    pub(crate) cleanup_timeout: Duration,
    /// How often claims are checked between writes; `None`: the default of each sink; zero: never.
    pub(crate) claim_check_interval: Option<Duration>,
}

impl Operator {
    pub(crate) fn new(parts: OperatorParts, leadership: watch::Receiver<Leadership>, health: Health) -> Self {
        let OperatorParts {
            source,
            operator_policy,
            collector,
            rows,
            within,
            sinks,
            binding_states,
            metrics,
            tasks,
            ..
        } = parts;
        let OperatorParts { cleanup_timeout, claim_check_interval, .. } = parts;
        let client = source.client();
        let watch_source: Arc<dyn WatchSource> = source.clone();
        let planner = SinkPlanner::new(tasks.clone());
        let profile_warnings = ProfileWarnings::new(ObjectSchemas::new(client.clone()), tasks.clone());
        let watched = within.clone().map_or(Visibility::Everything, Visibility::Within);
        // Lists that start here are not older than a term that has begun.
        let listed_in_term = leadership.borrow().term();
        Self {
            objects: Arc::new(ObjectWatches::follow(watch_source.clone(), within, tasks.clone())),
            secrets: SecretWatches::new(client.clone(), watch_source, tasks.clone()),
            bindings: Bindings::new(
                sinks.clone(),
                metrics.meter.clone(),
                operator_policy.clone(),
                binding_states.clone(),
                source.id.clone(),
                watched,
                claim_check_interval,
            ),
            writer: StatusWriter::new(client.clone(), metrics.meter.clone()),
            source,
            client,
            policy: operator_policy,
            collector,
            rows,
            plans: planner.changes(),
            compiled: CompiledObjects::planned_by(Box::new(planner)),
            collected: (Vec::new(), BTreeSet::new()),
            sinks,
            binding_states,
            deliveries: None,
            probes: Probes::new(tasks.clone()),
            profile_warnings,
            resolution: None,
            checked: None,
            delivered_destinations: BTreeMap::new(),
            due_checks: BTreeMap::new(),
            deliver_at: None,
            tests_at: None,
            unexported: BTreeSet::new(),
            leadership,
            term: None,
            led_since: Instant::now(),
            listed_in_term,
            health,
            metrics,
            tasks,
            cleanup_timeout,
        }
    }

    /// The objects of Kollect that it watches.
    pub(crate) fn objects(&self) -> Arc<ObjectWatches> {
        self.objects.clone()
    }

    /// Schemas of the kinds of the cluster.
    pub(crate) fn schemas(&self) -> ObjectSchemas {
        self.profile_warnings.schemas()
    }

    /// Id of the cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.source.id
    }

    /// Runs the loop. Never returns.
    pub(crate) async fn run(&mut self) {
        self.objects.wait_until_listed().await;
        self.health.record_all_listed();
        let mut leadership = self.leadership.clone();
        let mut signals = ChangeSignals::of(
            (&self.objects, &self.secrets, &self.plans),
            (&self.binding_states, &self.probes),
            (&self.collector, &self.rows),
        );
        let mut changes = TurnChanges::EVERYTHING;
        loop {
            self.health.record_turn();
            let term = self.leadership.borrow_and_update().term();
            if term != self.term {
                self.step_down();
                (self.term, self.led_since) = (term, Instant::now());
                changes = TurnChanges::EVERYTHING;
            }
            if term.is_some() && term != self.listed_in_term {
                self.list_again().await;
                self.listed_in_term = term;
            }
            // A process that does not lead writes nothing.
            match term {
                _ if changes.is_nothing() && !self.is_due() => {}
                Some(term) => {
                    tokio::select! {
                        // `biased`: check the end of the term first. It ends once, so the turn is not starved.
                        biased;
                        () = leader::wait_for_end(&mut leadership, term) => self.step_down(),
                        () = self.leading_turn(changes) => {}
                    }
                }
                None => self.timed_turn(changes, false).await,
            }
            let term_ended = async {
                match term {
                    Some(term) => leader::wait_for_end(&mut leadership, term).await,
                    None => std::future::pending().await,
                }
            };
            let due = self.next_due();
            tokio::select! {
                // `biased`: the end of the term comes first. The other branches start the next turn.
                biased;
                () = term_ended => self.step_down(),
                Ok(()) = self.leadership.changed() => {}
                () = signals.wait(due) => {}
            }
            changes = signals.take();
        }
    }

    /// When a turn is due although nothing changes.
    fn next_due(&self) -> Option<Instant> {
        let due_checks = self.due_checks.values().min().copied();
        [due_checks, self.deliver_at, self.tests_at].into_iter().flatten().min()
    }

    fn is_due(&self) -> bool {
        self.next_due().is_some_and(|due| due <= Instant::now())
    }

    /// Stops writing at once, and forgets the state that only a leader has.
    fn step_down(&mut self) {
        if self.deliveries.take().is_some() {
            warn!("no longer leading: nothing is written");
        }
        self.bindings.clear();
        self.binding_states.forget_destinations();
        self.probes.set(BTreeMap::new());
        (self.resolution, self.checked) = (None, None);
        self.delivered_destinations.clear();
        self.due_checks.clear();
        self.unexported.clear();
        (self.deliver_at, self.tests_at) = (None, None);
    }

    /// Lets running writes finish, for as long as this process leads.
    pub(crate) async fn stop(&mut self) {
        let (Some(deliveries), Some(term)) = (self.deliveries.take(), self.term) else { return };
        tokio::select! {
            // `biased`: check the end of the term first.
            biased;
            () = leader::wait_for_end(&mut self.leadership, term) => {}
            () = deliveries.stop() => {}
        }
    }

    /// Lists everything again: another process may have led before this term and written newer data.
    async fn list_again(&mut self) {
        info!("listing everything again before the first write as the leader");
        self.objects.list_again().await;
        self.secrets.clear().await;
        self.collector.begin_again().await;
        self.collected = (Vec::new(), BTreeSet::new());
        self.resolution = None;
    }

    /// A turn as the leader, if all objects have been listed.
    async fn leading_turn(&mut self, changes: TurnChanges) {
        if time::timeout(LISTING_TIMEOUT, self.objects.wait_until_listed()).await.is_ok() {
            self.timed_turn(changes, true).await;
        } else {
            // A later turn resolves everything again.
            self.resolution = None;
            self.deliver_at = Some(Instant::now());
        }
    }

    async fn timed_turn(&mut self, changes: TurnChanges, leading: bool) {
        let (began, failures) = (Instant::now(), self.writer.failures());
        Box::pin(self.turn(changes, leading)).await;
        self.metrics.meter.count_turn(began.elapsed(), self.writer.failures() == failures);
    }

    /// Handles what has changed. If the term ends, the turn is cancelled; the next term begins with everything.
    async fn turn(&mut self, changes: TurnChanges, leading: bool) {
        let (cache, changed_statuses) = self.objects.take_changed();
        let before = self.resolution.clone();
        let is_same = |before: &Resolution| before.definitions == cache.definitions();
        let resolution = match before.filter(|before| is_same(before) && !changes.definitions) {
            Some(before) => before,
            None => {
                let resolution = Arc::new(self.resolve(&cache));
                self.collect(&resolution.resolved);
                self.metrics.set_view(MetricsView::of(&resolution.object_set, &resolution.resolved));
                self.resolution = Some(resolution.clone());
                // Changes that were recorded before, by the name of an object, are checked anyway.
                resolution
            }
        };
        if !leading {
            return;
        }
        let is_new = !self.has_checked_all(&resolution);
        let mut checks =
            self.objects_to_check(&cache, changed_statuses, &resolution, is_new || changes.namespaces);
        if checks.everything || checks.destinations || self.deliver_at.is_some_and(|at| at <= Instant::now())
        {
            self.deliver(&cache, &resolution.object_set, &resolution.resolved).await;
            // Newly wanted versions must show in statuses.
            checks.add_bindings(self.binding_states.take_changed().bindings);
        }
        if checks.everything || checks.tests {
            self.probe(&cache, &resolution.resolved);
        }
        self.read_failed_secrets(&resolution.object_set, &checks);
        self.write_statuses(&cache, &resolution, checks).await;
        self.checked = Some(resolution);
    }

    /// Whether all statuses have been checked with this resolution.
    fn has_checked_all(&self, resolution: &Arc<Resolution>) -> bool {
        self.checked.as_ref().is_some_and(|checked| Arc::ptr_eq(checked, resolution))
    }

    fn resolve(&mut self, cache: &ObjectCache) -> Resolution {
        let mut object_set = cache.object_set();
        self.secrets.set(&object_set.wanted_secrets(&self.policy));
        object_set.secrets = self.secrets.current();
        let resolved = object_set.resolve(&self.policy, &mut self.compiled);
        let links = ObjectLinks::of(&resolved);
        Resolution { definitions: cache.definitions(), object_set, resolved, links }
    }

    /// Reads the Secrets of sinks that have failed since the last turn: they may have changed.
    fn read_failed_secrets(&self, object_set: &ObjectSet, checks: &ObjectsToCheck) {
        for sink in &checks.failed_sinks {
            for secret in object_set.secrets_named_by(sink, &self.policy) {
                self.secrets.read_more_often(&secret);
            }
        }
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
            && before.iter().zip(&targets).all(|(old, new)| Arc::ptr_eq(old, new))
            && *frozen_before == frozen;
        if !same {
            self.collector.set_targets(&targets, &frozen);
            self.collected = (targets, frozen);
        }
    }

    async fn deliver(&mut self, cache: &ObjectCache, object_set: &ObjectSet, resolved: &Resolved) {
        let (rows, tasks, binding_states) =
            (self.rows.clone(), self.tasks.clone(), self.binding_states.clone());
        let (leadership, term) = (self.leadership.clone(), self.term);
        let deliveries = self.deliveries.get_or_insert_with(|| {
            let may_write = Arc::new(move || leadership.borrow().term() == term);
            Deliveries::new(rows, tasks, may_write, move |name, destination, event| {
                binding_states.handle_event(name, destination, &event);
            })
        });
        self.bindings.namespaces.clone_from(&self.collector.namespaces().borrow());
        let cleaning_state = self.bindings.deliver(cache, object_set, resolved, deliveries);
        self.delivered_destinations.clear();
        for name in resolved.inventories.keys() {
            if let Some((_, status)) = cache.inventory(name) {
                self.delivered_destinations.insert(name.clone(), StatusDestinations::of(status));
            }
        }
        self.deliver_at = self.next_timeout(cache, resolved);
        let mut steps = self.steps(cache, resolved, cleaning_state);
        let targets = cache.targets().values().map(|target| ("KollectTarget", &target.metadata));
        let cluster_targets = cache.cluster_targets().values();
        let cluster_targets = cluster_targets.map(|target| ("KollectClusterTarget", &target.metadata));
        // Only the Go implementation sets finalizers of targets. They go at once: after an uninstall nothing removes them.
        let all_targets = targets.chain(cluster_targets);
        steps.extend(all_targets.filter_map(|(kind, metadata)| finalize::release(kind, metadata)));
        finalize::apply(&self.client, steps).await;
        self.binding_states.retain(|binding| resolved.inventories.contains_key(&binding.inventory));
    }

    /// When the cleanup timeout of the first deleted inventory ends.
    fn next_timeout(&self, cache: &ObjectCache, resolved: &Resolved) -> Option<Instant> {
        let deleted = resolved.inventories.keys().filter_map(|name| {
            let deleted = cache.inventory(name)?.0.deletion_timestamp.as_ref()?.0;
            let waited = clock::timestamp().as_second() - deleted.as_second();
            let waited = Duration::from_secs(waited.try_into().unwrap_or(0));
            // At least a second: an object that is still there is checked repeatedly.
            Some(Instant::now() + self.cleanup_timeout.saturating_sub(waited).max(Duration::from_secs(1)))
        });
        deleted.min()
    }

    /// Changes of the metadata of inventories, and events about their destinations.
    fn steps<'a>(
        &self,
        cache: &'a ObjectCache,
        resolved: &Resolved,
        mut cleaning_state: CleaningState,
    ) -> Vec<MetadataChange<'a>> {
        let mut adopted: BTreeMap<InventoryName, Vec<String>> = BTreeMap::new();
        for (binding, destination) in self.binding_states.take_adopted() {
            adopted.entry(binding.inventory).or_default().push(format!("{} at {destination}", binding.sink));
        }
        let mut steps = Vec::new();
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, status)) = cache.inventory(name) else { continue };
            let kind = name.kind();
            steps.extend(
                adopted.remove(name).map(|adopted| finalize::report_adopted(kind, metadata, adopted)),
            );
            if metadata.deletion_timestamp.is_some() {
                let (unclean, can_be_cleaned) =
                    (cleaning_state.unclean.remove(name), cleaning_state.waiting.contains(name));
                let unclean = unclean.unwrap_or_default();
                steps.extend(finalize::finish(kind, metadata, unclean, can_be_cleaned, self.cleanup_timeout));
                continue;
            }
            steps.extend(
                cleaning_state
                    .left_behind
                    .remove(name)
                    .and_then(|sinks| finalize::report_left_behind(kind, metadata, sinks)),
            );
            if !inventory.sinks.is_empty() && !name.is_reserved() {
                steps.extend(finalize::protect(kind, metadata));
            }
            let requests = TakeOverRequests::of(metadata, inventory.sinks.iter().map(|sink| &sink.name));
            let claim = |sink: &SinkName| {
                let binding = binding_name(name, sink);
                self.binding_states.read(&binding, |state| state.destinations.claim().cloned()).flatten()
            };
            let remaining = requests.without_granted(claim, &status.take_overs);
            let mut handled: Vec<_> =
                remaining.map(|remaining| (take_over::ANNOTATION, remaining)).into_iter().collect();
            let is_written = |sink: &BoundSink| {
                self.binding_states
                    .read(&binding_name(name, &sink.name), BindingState::is_synced)
                    .unwrap_or(false)
            };
            let has_annotation = |key: &str| {
                metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
            };
            if has_annotation(RELEASE_REMOVALS) && inventory.sinks.iter().all(is_written) {
                handled.push((RELEASE_REMOVALS, String::new()));
            }
            steps.extend(finalize::annotate(kind, metadata, handled));
        }
        steps
    }

    fn probe(&mut self, cache: &ObjectCache, resolved: &Resolved) {
        let mut wanted = BTreeMap::new();
        let planned = |key: &(Family, ObjectName)| {
            let plan = (**resolved.sinks.get(key)?).clone().ok()??;
            let policy = self.policy.sink_policy(&key.1.0);
            let meter = self.metrics.meter.clone();
            Some(MeasuredPlan { sinks: self.sinks.clone(), plan, policy, meter, counted: None })
        };
        for (key, sink) in cache.sinks() {
            let requested = requested_at(&sink.metadata);
            let is_new = requested.is_some() && requested != sink.status.last_handled_requested_at;
            let is_probed = sink.spec.common().connection_test.unwrap_or(true)
                || test_connection(&sink.metadata)
                || is_new;
            if let Some(planned) = is_probed.then(|| planned(&key)).flatten() {
                wanted.insert(Probed::Sink(key.0, key.1), (planned, requested));
            }
        }
        for (name, test) in cache.connection_tests() {
            let generation = test.metadata.generation.unwrap_or(0);
            let is_completed = test
                .status
                .as_ref()
                .is_some_and(|status| status.completed && status.observed_generation == Some(generation));
            let Some((family, sink)) = tested_sink(test).filter(|_| !is_completed) else { continue };
            if let Some(planned) = planned(&(family, (name.0.clone(), sink))) {
                wanted.insert(Probed::Test(name.clone(), generation), (planned, None));
            }
        }
        self.probes.set(wanted);
    }
}
