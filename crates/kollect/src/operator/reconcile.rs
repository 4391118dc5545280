//! The loop: whenever something has changed, look at everything, hand over what is wanted, say what is true.

mod connection;
mod preview;
mod refused;
mod tell;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_engine::{
    collect::{Collector, Target},
    deliver::Deliveries,
    store::{Sight, StoreReader},
    tasks::Tasks,
    watch::WatchSource,
};
use kollect_model::{binding::SinkName, row::TargetId};
use kube::Client;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tracing::{info, warn};

use connection::{test_connection, tested_sink};
use refused::Refusals;

use super::{
    bindings::{Bindings, Left, OpenPlan, Planned, RELEASE_REMOVALS, binding_name},
    finalize::{self, Step},
    health::Health,
    leader::{self, Leadership},
    metrics::{Metrics, Picture},
    objects::{Known, Objects},
    plans::SinkPlanner,
    probe::{Probed, Probes},
    progress::{Board, Progress},
    secrets::Secrets,
    shards::Shards,
    take_over::{self, Requests},
    write::StatusWriter,
};
use crate::{
    cluster::ClusterSource,
    world::{BoundSink, Compiled, Family, InventoryName, Name, Resolved, Rules, World},
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
    /// Changes whenever the plan of a sink was made.
    plans: watch::Receiver<()>,
    /// What the collector was last given.
    collected: (Vec<Arc<Target>>, BTreeSet<TargetId>),
    sinks: Arc<dyn OpenPlan>,
    bindings: Bindings,
    board: Board,
    /// Only whoever leads writes.
    deliveries: Option<Deliveries>,
    probes: Probes,
    /// Attempts that sinks had refused when they were last looked at.
    refusals: Refusals,
    writer: StatusWriter,
    /// When something must be looked at although nothing changes.
    due: Option<Instant>,
    leadership: watch::Receiver<Leadership>,
    /// The one that this process leads in.
    term: Option<u64>,
    /// The term in which everything that is known was seen. In others it may be older than what another process has
    /// written.
    seen_in: Option<u64>,
    health: Health,
    shards: Shards,
    metrics: Metrics,
    tasks: Tasks,
    /// How long deleted inventories wait for sinks that cannot be cleaned.
    cleanup_timeout: Duration,
}

/// What the operator is made from.
pub(crate) struct Setup {
    pub(crate) source: Arc<ClusterSource>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) collector: Collector,
    pub(crate) rows: StoreReader,
    pub(crate) within: Option<BTreeSet<Arc<str>>>,
    pub(crate) sinks: Arc<dyn OpenPlan>,
    pub(crate) board: Board,
    pub(crate) metrics: Metrics,
    pub(crate) tasks: Tasks,
    pub(crate) cleanup_timeout: Duration,
    /// How often claims are looked at between writes; `None`: as each sink says; zero: never.
    pub(crate) claim_check_interval: Option<Duration>,
}

impl Operator {
    pub(crate) fn new(setup: Setup, leadership: watch::Receiver<Leadership>, health: Health) -> Self {
        let Setup { source, rules, collector, rows, within, sinks, board, metrics, tasks, .. } = setup;
        let Setup { cleanup_timeout, claim_check_interval, .. } = setup;
        let client = source.client();
        let watches: Arc<dyn WatchSource> = source.clone();
        let planner = SinkPlanner::new(tasks.clone());
        let scope = within.clone().map_or(Sight::Everything, Sight::Within);
        // What is listed from here on is not older than a term that has begun.
        let seen_in = leadership.borrow().term();
        Self {
            objects: Arc::new(Objects::follow(watches.clone(), within, tasks.clone())),
            secrets: Secrets::new(client.clone(), watches, tasks.clone()),
            bindings: Bindings::new(
                sinks.clone(),
                metrics.meter.clone(),
                rules.clone(),
                board.clone(),
                source.id.clone(),
                scope,
                claim_check_interval,
            ),
            writer: StatusWriter::new(client.clone(), metrics.meter.clone()),
            source,
            client,
            rules,
            collector,
            rows,
            plans: planner.changes(),
            compiled: Compiled::planned_by(Box::new(planner)),
            collected: (Vec::new(), BTreeSet::new()),
            sinks,
            board,
            deliveries: None,
            probes: Probes::new(tasks.clone()),
            refusals: Refusals::default(),
            due: None,
            leadership,
            term: None,
            seen_in,
            health,
            shards: Shards::default(),
            metrics,
            tasks,
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
        let mut plans = self.plans.clone();
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
            if term.is_some() && term != self.seen_in {
                self.look_again().await;
                self.seen_in = term;
            }
            // A process that does not lead writes nothing.
            match term {
                Some(term) => {
                    tokio::select! {
                        // First of all it is made sure that the term is not over; it ends only once.
                        biased;
                        () = leader::ended(&mut leadership, term) => self.strip(),
                        () = self.leading_turn() => {}
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
                // The end of the term comes first. All others lead to the next turn, which looks at everything.
                biased;
                () = lost => self.strip(),
                Ok(()) = self.leadership.changed() => {}
                Ok(()) = objects.changed() => {}
                Ok(()) = secrets.changed() => {}
                Ok(()) = plans.changed() => {}
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
            plans.mark_unchanged();
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
        self.board.forget_destinations();
        self.probes.set(BTreeMap::new());
    }

    /// Lets running writes finish, for as long as this process leads.
    pub(crate) async fn stop(&mut self) {
        let (Some(deliveries), Some(term)) = (self.deliveries.take(), self.term) else { return };
        tokio::select! {
            // First of all it is made sure that the term is not over.
            biased;
            () = leader::ended(&mut self.leadership, term) => {}
            () = deliveries.stop() => {}
        }
    }

    /// A turn that is cut short by the end of leadership does not count.
    /// Forgets what was seen before this term: another process may have led meanwhile, and written what is newer.
    async fn look_again(&mut self) {
        info!("looking at everything again before the first write as the leader");
        self.objects.begin_again().await;
        self.secrets.begin_again().await;
        self.collector.begin_again().await;
        self.collected = (Vec::new(), BTreeSet::new());
    }

    /// A turn as the leader, if all objects have been seen.
    async fn leading_turn(&mut self) {
        if time::timeout(LOOK_AGAIN, self.objects.settled()).await.is_ok() {
            self.timed_turn(true).await;
        }
    }

    async fn timed_turn(&mut self, leading: bool) {
        let (began, failures) = (Instant::now(), self.writer.failures());
        Box::pin(self.turn(leading)).await;
        self.metrics.meter.turned(began.elapsed(), self.writer.failures() == failures);
    }

    async fn turn(&mut self, leading: bool) {
        let known = self.objects.known();
        let mut world = known.world();
        self.secrets.set(&world.wanted_secrets(&self.rules));
        world.secrets = self.secrets.known();
        let resolved = world.resolve(&self.rules, &mut self.compiled);
        self.collect(&resolved);
        self.metrics.show(Picture::of(&world, &resolved));
        if !leading {
            return;
        }
        self.deliver(&known, &world, &resolved).await;
        self.probe(&known, &resolved);
        self.read_refused_secrets(&known, &world, &resolved);
        self.due = self.tell(&known, &resolved).await;
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
        let (rows, tasks, board) = (self.rows.clone(), self.tasks.clone(), self.board.clone());
        let (leadership, term) = (self.leadership.clone(), self.term);
        let deliveries = self.deliveries.get_or_insert_with(|| {
            let may_write = Arc::new(move || leadership.borrow().term() == term);
            Deliveries::new(rows, tasks, may_write, move |name, place, told| board.hear(name, place, &told))
        });
        self.bindings.namespaces.clone_from(&self.collector.namespaces().borrow());
        let left = self.bindings.deliver(known, world, resolved, deliveries);
        let mut steps = self.steps(known, resolved, left);
        let targets = known.targets().values().map(|target| ("KollectTarget", &target.metadata));
        let cluster_targets = known.cluster_targets().values();
        let cluster_targets = cluster_targets.map(|target| ("KollectClusterTarget", &target.metadata));
        let deleted =
            targets.chain(cluster_targets).filter(|(_, metadata)| metadata.deletion_timestamp.is_some());
        steps.extend(deleted.filter_map(|(kind, metadata)| finalize::release(kind, metadata)));
        finalize::take(&self.client, steps).await;
        self.board.retain(|binding| resolved.inventories.contains_key(&binding.inventory));
    }

    /// What changes in the metadata of inventories, and what there is to say about their destinations.
    fn steps<'a>(&self, known: &'a Known, resolved: &Resolved, mut left: Left) -> Vec<Step<'a>> {
        let mut adopted: BTreeMap<InventoryName, Vec<String>> = BTreeMap::new();
        for (binding, place) in self.board.take_adopted() {
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
                self.board.look(&binding, |progress| progress.destinations.claim().cloned()).flatten()
            };
            let rest = requests.without_granted(claim, &status.take_overs);
            let mut done: Vec<_> = rest.map(|rest| (take_over::ANNOTATION, rest)).into_iter().collect();
            let is_written = |sink: &BoundSink| {
                self.board.look(&binding_name(name, &sink.name), Progress::is_synced).unwrap_or(false)
            };
            let asks = |key: &str| metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
            if asks(RELEASE_REMOVALS) && inventory.sinks.iter().all(is_written) {
                done.push((RELEASE_REMOVALS, String::new()));
            }
            steps.extend(finalize::annotate(kind, metadata, done));
        }
        steps
    }

    fn probe(&mut self, known: &Known, resolved: &Resolved) {
        let mut wanted = BTreeMap::new();
        let planned = |key: &(Family, Name)| {
            let plan = (**resolved.sinks.get(key)?).clone().ok()??;
            let policy = self.rules.sink_policy(&key.1.0);
            let meter = self.metrics.meter.clone();
            Some(Planned { sinks: self.sinks.clone(), plan, policy, meter, counted: None })
        };
        for (key, sink) in known.sinks() {
            let asked = sink.spec.common().connection_test.unwrap_or(true) || test_connection(&sink.metadata);
            if let Some(planned) = asked.then(|| planned(&key)).flatten() {
                wanted.insert(Probed::Sink(key.0, key.1), planned);
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
                wanted.insert(Probed::Test(name.clone(), generation), planned);
            }
        }
        self.probes.set(wanted);
    }
}
