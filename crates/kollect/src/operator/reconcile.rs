//! The loop: after each change a turn checks the affected objects, updates the engine and writes statuses.
//!
//! All objects are resolved again when a spec, a Secret or the plan of a sink changes. For any other change a turn
//! checks only the affected objects; without a change it does nothing.

mod connection;
mod links;
mod look;
mod news;
mod preview;
mod statuses;

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
pub(crate) use links::Links;
use look::Look;
use news::{News, Signals};

use super::{
    bindings::{Bindings, Left, OpenPlan, Planned, RELEASE_REMOVALS, binding_name},
    destinations::Destinations,
    finalize::{self, Step},
    health::Health,
    leader::{self, Leadership},
    metrics::{Metrics, MetricsView},
    objects::{ObjectCache, ObjectKey, Objects, request},
    plans::SinkPlanner,
    probe::{Probed, Probes},
    progress::{BindingStates, Progress},
    secrets::Secrets,
    status_writer::StatusWriter,
    take_over::{self, Requests},
};
use crate::{
    cluster::ClusterSource,
    resolve::{BoundSink, Compiled, Family, InventoryName, Name, ObjectSet, OperatorPolicy, Resolved},
};

/// How long a leader waits for objects that have not been listed before it looks at its term again.
const OBJECTS: Duration = Duration::from_secs(10);

/// The resolved objects, and their version.
struct Resolution {
    /// [`ObjectCache::definitions`] of the objects.
    definitions: u64,
    object_set: ObjectSet,
    resolved: Resolved,
    links: Links,
}

/// The state of the loop, and everything that it runs.
pub(crate) struct Operator {
    source: Arc<ClusterSource>,
    client: Client,
    policy: Arc<OperatorPolicy>,
    objects: Arc<Objects>,
    secrets: Secrets,
    collector: Collector,
    rows: StoreReader,
    compiled: Compiled,
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
    writer: StatusWriter,
    resolution: Option<Arc<Resolution>>,
    /// The resolution with which all statuses were last checked.
    told: Option<Arc<Resolution>>,
    /// The destinations in the statuses of inventories when bindings were last passed to the engine.
    told_destinations: BTreeMap<InventoryName, ToldDestinations>,
    /// Objects that must be checked although nothing changes, and when.
    later: BTreeMap<ObjectKey, Instant>,
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
    seen_in: Option<u64>,
    health: Health,
    metrics: Metrics,
    tasks: Tasks,
    /// How long deleted inventories wait for sinks that cannot be cleaned.
    cleanup_timeout: Duration,
}

/// What a status says about destinations and take-overs: bindings depend on it.
#[derive(Clone, Default, PartialEq)]
struct ToldDestinations {
    lines: Vec<(SinkName, Destinations)>,
    take_overs: Vec<TakeOverRecord>,
}

impl ToldDestinations {
    fn of(status: &InventoryStatus) -> Self {
        let lines = status.sink_exports.iter().map(|export| {
            let (held, claiming) = (export.place.clone(), export.claiming.clone());
            (export.name.clone(), Destinations { held, claiming, left: export.left.clone() })
        });
        Self { lines: lines.collect(), take_overs: status.take_overs.clone() }
    }
}

/// Parts that the operator is built from.
pub(crate) struct Setup {
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
    /// How often claims are checked between writes; `None`: as each sink says; zero: never.
    pub(crate) claim_check_interval: Option<Duration>,
}

impl Operator {
    pub(crate) fn new(setup: Setup, leadership: watch::Receiver<Leadership>, health: Health) -> Self {
        let Setup {
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
        } = setup;
        let Setup { cleanup_timeout, claim_check_interval, .. } = setup;
        let client = source.client();
        let watches: Arc<dyn WatchSource> = source.clone();
        let planner = SinkPlanner::new(tasks.clone());
        let scope = within.clone().map_or(Visibility::Everything, Visibility::Within);
        // Lists that start here are not older than a term that has begun.
        let seen_in = leadership.borrow().term();
        Self {
            objects: Arc::new(Objects::follow(watches.clone(), within, tasks.clone())),
            secrets: Secrets::new(client.clone(), watches, tasks.clone()),
            bindings: Bindings::new(
                sinks.clone(),
                metrics.meter.clone(),
                operator_policy.clone(),
                binding_states.clone(),
                source.id.clone(),
                scope,
                claim_check_interval,
            ),
            writer: StatusWriter::new(client.clone(), metrics.meter.clone()),
            source,
            client,
            policy: operator_policy,
            collector,
            rows,
            plans: planner.changes(),
            compiled: Compiled::planned_by(Box::new(planner)),
            collected: (Vec::new(), BTreeSet::new()),
            sinks,
            binding_states,
            deliveries: None,
            probes: Probes::new(tasks.clone()),
            resolution: None,
            told: None,
            told_destinations: BTreeMap::new(),
            later: BTreeMap::new(),
            deliver_at: None,
            tests_at: None,
            unexported: BTreeSet::new(),
            leadership,
            term: None,
            led_since: Instant::now(),
            seen_in,
            health,
            metrics,
            tasks,
            cleanup_timeout,
        }
    }

    /// The objects of Kollect that it watches.
    pub(crate) fn objects(&self) -> Arc<Objects> {
        self.objects.clone()
    }

    /// Id of the cluster.
    pub(crate) fn cluster(&self) -> &str {
        &self.source.id
    }

    /// Runs the loop. Never returns.
    pub(crate) async fn run(&mut self) {
        self.objects.settled().await;
        self.health.settled();
        let mut leadership = self.leadership.clone();
        let mut signals = Signals::of(
            (&self.objects, &self.secrets, &self.plans),
            (&self.binding_states, &self.probes),
            (&self.collector, &self.rows),
        );
        let mut news = News::EVERYTHING;
        loop {
            self.health.turned();
            let term = self.leadership.borrow_and_update().term();
            if term != self.term {
                self.step_down();
                (self.term, self.led_since) = (term, Instant::now());
                news = News::EVERYTHING;
            }
            if term.is_some() && term != self.seen_in {
                self.look_again().await;
                self.seen_in = term;
            }
            // A process that does not lead writes nothing.
            match term {
                _ if news.is_nothing() && !self.is_due() => {}
                Some(term) => {
                    tokio::select! {
                        // `biased`: check the end of the term first. It ends once, so the turn is not starved.
                        biased;
                        () = leader::ended(&mut leadership, term) => self.step_down(),
                        () = self.leading_turn(news) => {}
                    }
                }
                None => self.timed_turn(news, false).await,
            }
            let lost = async {
                match term {
                    Some(term) => leader::ended(&mut leadership, term).await,
                    None => std::future::pending().await,
                }
            };
            let due = self.next_due();
            tokio::select! {
                // `biased`: the end of the term comes first. The other branches start the next turn.
                biased;
                () = lost => self.step_down(),
                Ok(()) = self.leadership.changed() => {}
                () = signals.wait(due) => {}
            }
            news = signals.take();
        }
    }

    /// When a turn is due although nothing changes.
    fn next_due(&self) -> Option<Instant> {
        let later = self.later.values().min().copied();
        [later, self.deliver_at, self.tests_at].into_iter().flatten().min()
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
        (self.resolution, self.told) = (None, None);
        self.told_destinations.clear();
        self.later.clear();
        self.unexported.clear();
        (self.deliver_at, self.tests_at) = (None, None);
    }

    /// Lets running writes finish, for as long as this process leads.
    pub(crate) async fn stop(&mut self) {
        let (Some(deliveries), Some(term)) = (self.deliveries.take(), self.term) else { return };
        tokio::select! {
            // `biased`: check the end of the term first.
            biased;
            () = leader::ended(&mut self.leadership, term) => {}
            () = deliveries.stop() => {}
        }
    }

    /// Lists everything again: another process may have led before this term and written newer data.
    async fn look_again(&mut self) {
        info!("looking at everything again before the first write as the leader");
        self.objects.begin_again().await;
        self.secrets.begin_again().await;
        self.collector.begin_again().await;
        self.collected = (Vec::new(), BTreeSet::new());
        self.resolution = None;
    }

    /// A turn as the leader, if all objects have been listed.
    async fn leading_turn(&mut self, news: News) {
        if time::timeout(OBJECTS, self.objects.settled()).await.is_ok() {
            self.timed_turn(news, true).await;
        } else {
            // A later turn resolves everything again.
            self.resolution = None;
            self.deliver_at = Some(Instant::now());
        }
    }

    async fn timed_turn(&mut self, news: News, leading: bool) {
        let (began, failures) = (Instant::now(), self.writer.failures());
        Box::pin(self.turn(news, leading)).await;
        self.metrics.meter.turned(began.elapsed(), self.writer.failures() == failures);
    }

    /// Handles what has changed. If the term ends, the turn is cancelled; the next term begins with everything.
    async fn turn(&mut self, news: News, leading: bool) {
        let (known, changed_statuses) = self.objects.take_changed();
        let before = self.resolution.clone();
        let is_same = |known_then: &Resolution| known_then.definitions == known.definitions();
        let resolution = match before.filter(|before| is_same(before) && !news.definitions) {
            Some(before) => before,
            None => {
                let resolution = Arc::new(self.resolve(&known));
                self.collect(&resolution.resolved);
                self.metrics.show(MetricsView::of(&resolution.object_set, &resolution.resolved));
                self.resolution = Some(resolution.clone());
                // What is known by name from before is looked at anyway.
                resolution
            }
        };
        if !leading {
            return;
        }
        let is_new = !self.told_about(&resolution);
        let mut look = self.look(&known, changed_statuses, &resolution, is_new || news.namespaces);
        if look.everything || look.destinations || self.deliver_at.is_some_and(|at| at <= Instant::now()) {
            self.deliver(&known, &resolution.object_set, &resolution.resolved).await;
            // Newly wanted versions must show in statuses.
            look.add_bindings(self.binding_states.take_heard().bindings);
        }
        if look.everything || look.tests {
            self.probe(&known, &resolution.resolved);
        }
        self.read_failed_secrets(&resolution.object_set, &look);
        self.tell(&known, &resolution, look).await;
        self.told = Some(resolution);
    }

    /// Whether all statuses have been checked with this resolution.
    fn told_about(&self, resolution: &Arc<Resolution>) -> bool {
        self.told.as_ref().is_some_and(|told| Arc::ptr_eq(told, resolution))
    }

    fn resolve(&mut self, known: &ObjectCache) -> Resolution {
        let mut object_set = known.object_set();
        self.secrets.set(&object_set.wanted_secrets(&self.policy));
        object_set.secrets = self.secrets.known();
        let resolved = object_set.resolve(&self.policy, &mut self.compiled);
        let links = Links::of(&resolved);
        Resolution { definitions: known.definitions(), object_set, resolved, links }
    }

    /// Reads the Secrets of sinks that have failed since the last turn: they may have changed.
    fn read_failed_secrets(&self, object_set: &ObjectSet, look: &Look) {
        for sink in &look.failed_sinks {
            for secret in object_set.secrets_named_by(sink, &self.policy) {
                self.secrets.read_again(&secret);
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
            && before.iter().zip(&targets).all(|(a, b)| Arc::ptr_eq(a, b))
            && *frozen_before == frozen;
        if !same {
            self.collector.set_targets(&targets, &frozen);
            self.collected = (targets, frozen);
        }
    }

    async fn deliver(&mut self, known: &ObjectCache, object_set: &ObjectSet, resolved: &Resolved) {
        let (rows, tasks, binding_states) =
            (self.rows.clone(), self.tasks.clone(), self.binding_states.clone());
        let (leadership, term) = (self.leadership.clone(), self.term);
        let deliveries = self.deliveries.get_or_insert_with(|| {
            let may_write = Arc::new(move || leadership.borrow().term() == term);
            Deliveries::new(rows, tasks, may_write, move |name, place, told| {
                binding_states.hear(name, place, &told);
            })
        });
        self.bindings.namespaces.clone_from(&self.collector.namespaces().borrow());
        let left = self.bindings.deliver(known, object_set, resolved, deliveries);
        self.told_destinations.clear();
        for name in resolved.inventories.keys() {
            if let Some((_, status)) = known.inventory(name) {
                self.told_destinations.insert(name.clone(), ToldDestinations::of(status));
            }
        }
        self.deliver_at = self.next_timeout(known, resolved);
        let mut steps = self.steps(known, resolved, left);
        let targets = known.targets().values().map(|target| ("KollectTarget", &target.metadata));
        let cluster_targets = known.cluster_targets().values();
        let cluster_targets = cluster_targets.map(|target| ("KollectClusterTarget", &target.metadata));
        let deleted =
            targets.chain(cluster_targets).filter(|(_, metadata)| metadata.deletion_timestamp.is_some());
        steps.extend(deleted.filter_map(|(kind, metadata)| finalize::release(kind, metadata)));
        finalize::take(&self.client, steps).await;
        self.binding_states.retain(|binding| resolved.inventories.contains_key(&binding.inventory));
    }

    /// When the cleanup timeout of the first deleted inventory ends.
    fn next_timeout(&self, known: &ObjectCache, resolved: &Resolved) -> Option<Instant> {
        let deleted = resolved.inventories.keys().filter_map(|name| {
            let deleted = known.inventory(name)?.0.deletion_timestamp.as_ref()?.0;
            let waited = clock::timestamp().as_second() - deleted.as_second();
            let waited = Duration::from_secs(waited.try_into().unwrap_or(0));
            // At least a second: an object that is still there is checked repeatedly.
            Some(Instant::now() + self.cleanup_timeout.saturating_sub(waited).max(Duration::from_secs(1)))
        });
        deleted.min()
    }

    /// Changes of the metadata of inventories, and events about their destinations.
    fn steps<'a>(&self, known: &'a ObjectCache, resolved: &Resolved, mut left: Left) -> Vec<Step<'a>> {
        let mut adopted: BTreeMap<InventoryName, Vec<String>> = BTreeMap::new();
        for (binding, place) in self.binding_states.take_adopted() {
            adopted.entry(binding.inventory).or_default().push(format!("{} at {place}", binding.sink));
        }
        let mut steps = Vec::new();
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, status)) = known.inventory(name) else { continue };
            let kind = name.kind();
            steps.extend(adopted.remove(name).map(|adopted| finalize::adopt(kind, metadata, adopted)));
            if metadata.deletion_timestamp.is_some() {
                let (unclean, hope) = (left.unclean.remove(name), left.waiting.contains(name));
                let unclean = unclean.unwrap_or_default();
                steps.extend(finalize::finish(kind, metadata, unclean, hope, self.cleanup_timeout));
                continue;
            }
            steps.extend(left.behind.remove(name).and_then(|b| finalize::leave_behind(kind, metadata, b)));
            if !inventory.sinks.is_empty() && !name.is_reserved() {
                steps.extend(finalize::protect(kind, metadata));
            }
            let requests = Requests::of(metadata, inventory.sinks.iter().map(|sink| &sink.name));
            let claim = |sink: &SinkName| {
                let binding = binding_name(name, sink);
                self.binding_states
                    .look(&binding, |progress| progress.destinations.claim().cloned())
                    .flatten()
            };
            let rest = requests.without_granted(claim, &status.take_overs);
            let mut done: Vec<_> = rest.map(|rest| (take_over::ANNOTATION, rest)).into_iter().collect();
            let is_written = |sink: &BoundSink| {
                self.binding_states
                    .look(&binding_name(name, &sink.name), Progress::is_synced)
                    .unwrap_or(false)
            };
            let asks = |key: &str| metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
            if asks(RELEASE_REMOVALS) && inventory.sinks.iter().all(is_written) {
                done.push((RELEASE_REMOVALS, String::new()));
            }
            steps.extend(finalize::annotate(kind, metadata, done));
        }
        steps
    }

    fn probe(&mut self, known: &ObjectCache, resolved: &Resolved) {
        let mut wanted = BTreeMap::new();
        let planned = |key: &(Family, Name)| {
            let plan = (**resolved.sinks.get(key)?).clone().ok()??;
            let policy = self.policy.sink_policy(&key.1.0);
            let meter = self.metrics.meter.clone();
            Some(Planned { sinks: self.sinks.clone(), plan, policy, meter, counted: None })
        };
        for (key, sink) in known.sinks() {
            let requested = request(&sink.metadata);
            let is_new = requested.is_some() && requested != sink.status.last_handled_requested_at;
            let asked = sink.spec.common().connection_test.unwrap_or(true)
                || test_connection(&sink.metadata)
                || is_new;
            if let Some(planned) = asked.then(|| planned(&key)).flatten() {
                wanted.insert(Probed::Sink(key.0, key.1), (planned, requested));
            }
        }
        for (name, test) in known.connection_tests() {
            let generation = test.metadata.generation.unwrap_or(0);
            let done = test
                .status
                .as_ref()
                .is_some_and(|status| status.completed && status.observed_generation == Some(generation));
            let Some((family, sink)) = tested_sink(test).filter(|_| !done) else { continue };
            if let Some(planned) = planned(&(family, (name.0.clone(), sink))) {
                wanted.insert(Probed::Test(name.clone(), generation), (planned, None));
            }
        }
        self.probes.set(wanted);
    }
}
