//! The loop: whenever something has changed, look at everything, hand over what is wanted, say what is true.

mod connection;
mod left;
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
use kollect_model::{crd::inventory::SinkExport, row::TargetId};
use kube::Client;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tracing::warn;

use connection::{test_connection, tested_sink};
use left::left_sink;
use refused::Refusals;

use super::{
    bindings::{Bindings, OpenPlan, Planned},
    finalize::{self, Deleted},
    health::Health,
    leader::{self, Leadership},
    metrics::{Metrics, Picture},
    objects::{Known, Objects},
    plans::SinkPlanner,
    probe::{Probed, Probes},
    progress::Board,
    secrets::Secrets,
    shards::Shards,
    write::StatusWriter,
};
use crate::{
    cluster::ClusterSource,
    world::{Compiled, Family, Name, Resolved, Rules, World},
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
}

impl Operator {
    pub(crate) fn new(setup: Setup, leadership: watch::Receiver<Leadership>, health: Health) -> Self {
        let Setup { source, rules, collector, rows, within, sinks, board, metrics, tasks, cleanup_timeout } =
            setup;
        let client = source.client();
        let watches: Arc<dyn WatchSource> = source.clone();
        let planner = SinkPlanner::new(tasks.clone());
        let scope = within.clone().map_or(Sight::Everything, Sight::Within);
        Self {
            objects: Arc::new(Objects::follow(&watches, within.as_ref(), tasks.clone())),
            secrets: Secrets::new(client.clone(), watches, tasks.clone()),
            bindings: Bindings::new(
                sinks.clone(),
                metrics.meter.clone(),
                rules.clone(),
                board.clone(),
                source.id.clone(),
                scope,
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
            // Whoever does not lead writes nothing, whatever else it is doing.
            match term {
                Some(term) => {
                    tokio::select! {
                        // First of all it is made sure that the term is not over; it ends only once.
                        biased;
                        () = leader::ended(&mut leadership, term) => self.strip(),
                        () = self.timed_turn(true) => {}
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
        self.board.forget_places();
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
    async fn timed_turn(&mut self, leading: bool) {
        let (began, failures) = (Instant::now(), self.writer.failures());
        self.turn(leading).await;
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
        let deliveries = self
            .deliveries
            .get_or_insert_with(|| Deliveries::new(rows, tasks, move |name, told| board.hear(name, &told)));
        self.bindings.namespaces.clone_from(&self.collector.namespaces().borrow());
        self.bindings.deliver(known, resolved, deliveries);
        let mut steps = self.clean_left(known, world, resolved);
        let Some(deliveries) = &mut self.deliveries else { return };
        for (name, inventory) in &resolved.inventories {
            let Some((metadata, exports)) = known.inventory(name) else { continue };
            let kind = name.kind();
            if metadata.deletion_timestamp.is_some() {
                // What never could be written, because its name is another's, is not there.
                let exports = if name.is_reserved() { &[][..] } else { exports };
                let exports = self.rules.shown_exports(exports);
                let sink = |export: &SinkExport| left_sink(world, &self.rules, resolved, name, export);
                let written = exports.iter().map(|export| (export.clone(), sink(export))).collect();
                let deleted = Deleted { kind, name, metadata, written, patience: self.cleanup_timeout };
                steps.extend(deleted.finish(&mut self.bindings, &self.board, deliveries));
            } else if !inventory.sinks.is_empty() && !name.is_reserved() {
                steps.extend(finalize::protect(kind, metadata));
            }
        }
        let targets = known.targets().values().map(|target| ("KollectTarget", &target.metadata));
        let cluster_targets = known.cluster_targets().values();
        let cluster_targets = cluster_targets.map(|target| ("KollectClusterTarget", &target.metadata));
        let deleted =
            targets.chain(cluster_targets).filter(|(_, metadata)| metadata.deletion_timestamp.is_some());
        steps.extend(deleted.filter_map(|(kind, metadata)| finalize::release(kind, metadata)));
        finalize::take(&self.client, steps).await;
        self.board.retain(|binding| resolved.inventories.contains_key(&binding.inventory));
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
