//! Runs a schedule: takes its steps, checks everything after each of them, and at the end waits until everything is in
//! order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_model::row::RowKey;
use tokio::time;

use super::{
    api_server::{Object, WrittenStatus},
    cluster::Cluster,
    executor::Executor,
    journal::Journal,
    network::Network,
    process::Process,
    reader::Exported,
    schedule::{CLUSTERS, ClusterStep, Schedule, SinkStep, Step, TARGETS},
    sink_servers::{Contents, SinkServers},
    specs::{Inventory, Profile, Sink, TEAM, Target, name},
    statuses::{Export, check_summary, exported, exports, generation},
    truth::{Expected, ExpectedRows, Place, Rows, expected, inventory_id, unserved_kind, waits_for_kind},
};

/// After the faults have ended, everything must be in order within this time.
const SETTLING: Duration = Duration::from_mins(16);
/// How often it is checked whether everything is in order.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// One of so many schedules goes on for [`QUIET`] afterwards.
const WATCHED_LONGER: u64 = 20;
/// Kinds that are not served are known to be gone within this time, and the last writes have ended.
const LAST_WRITES: Duration = Duration::from_mins(2);
/// During this time nothing may be written.
const QUIET: Duration = Duration::from_mins(11);

/// What a status says about the second of two sinks that lead to one destination.
const TWO_REFERENCES: &str = "two references of one inventory";

/// The clusters and the destinations that they share.
pub(super) struct Simulation {
    clusters: Vec<Cluster>,
    sinks: SinkServers,
    network: Network,
}

impl Simulation {
    pub(super) fn new(schedule: &Schedule, executor: &Executor, journal: &Journal) -> Self {
        let seed = schedule.seed;
        let sinks = SinkServers::new(seed ^ 1, journal.clone());
        let network = Network::new(seed ^ 2, executor.clone(), journal.clone());
        let parts = (executor, &network, journal);
        let names = CLUSTERS.into_iter().zip(&schedule.clusters);
        let clusters =
            names.map(|(name, processes)| Cluster::new(name, seed, *processes, &sinks, parts)).collect();
        let simulation = Self { clusters, sinks, network };
        simulation.record();
        simulation
    }

    /// Records the objects of all clusters after a change, for the reader.
    fn record(&self) {
        for cluster in &self.clusters {
            self.sinks.lock().reader.record(&cluster.id, &cluster.api);
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::In(cluster, ClusterStep::TakeOver(inventory, sink)) => {
                let other = self.clusters.len() - 1 - cluster;
                let other = self.clusters[other].id.clone();
                self.clusters[*cluster].take_over(inventory, *sink, &other, &self.sinks);
            }
            Step::In(cluster, step) => {
                if let ClusterStep::DeleteInventory(inventory) = step {
                    self.sinks.forget_take_overs(&self.clusters[*cluster].id, inventory);
                }
                let cluster = &mut self.clusters[*cluster];
                cluster.take(step);
                self.sinks.lock().reader.record(&cluster.id, &cluster.api);
            }
            Step::Process(cluster, process, step) => self.clusters[*cluster].take_process(*process, step),
            Step::Sink(destination, step) => match *step {
                SinkStep::Fault(fault) => self.sinks.set_fault(destination, fault),
                SinkStep::EditRow(number, remove) => self.sinks.edit_rows(destination, number, remove),
                SinkStep::Limit(limit) => self.sinks.set_limit(destination, limit.map(i64::from)),
                SinkStep::BackUp => self.sinks.back_up(destination),
                SinkStep::Restore => self.sinks.restore(destination),
                SinkStep::LoseClaims => self.sinks.lose_claims(destination),
            },
        }
    }

    /// Checks what readers of destinations and statuses have seen so far, and the state of the processes.
    fn check(&self) -> Result<(), String> {
        if let Some(violation) = self.sinks.lock().violation.clone() {
            return Err(violation);
        }
        for (number, cluster) in self.clusters.iter().enumerate() {
            cluster.processes.iter().try_for_each(Process::check)?;
            for told in cluster.api.told() {
                self.check_status(number, &told)?;
            }
        }
        Ok(())
    }

    /// Rows that a status reports as acknowledged are what the destination held for this cluster at an earlier moment;
    /// with Synced=True, that moment was not long before. A line that only repeats the one before is not checked again:
    /// while a scope cannot be read, or after a restart, the old line stays until more is known. When a status begins
    /// to say that rows are exported, the destination holds them.
    fn check_status(&self, cluster: usize, told: &WrittenStatus) -> Result<(), String> {
        let (before, cluster) = (exports(&told.before), &self.clusters[cluster]);
        let new = exports(&told.object).into_iter().filter(|export| !before.contains(export));
        for export in new.filter(|_| told.plural == "kollectinventories") {
            let place = (export.destination.clone(), export.inventory.clone());
            let time = if export.synced { told.time } else { (0, told.time.1) };
            let has_held = |rows| self.sinks.has_held(&place, rows, &cluster.id, time, told.at);
            if !export.acknowledged.map_or(!export.synced, has_held) {
                return Err(format!("a status says what was not so: {export:?}"));
            }
        }
        if told.plural == "kollectinventories" {
            check_summary(&told.object, &Inventory::of(&told.object).sinks)?;
        }
        let generation = exported(&told.object);
        let is_new = generation.is_some() && exported(&told.before) != generation;
        if let Some(generation) = generation.filter(|_| is_new)
            && let Some(on_time_since) = cluster.on_time_since()
        {
            let (plural, name) = (told.plural, name(&told.object));
            let exported = Exported { plural, name, generation, cluster: cluster.name, on_time_since };
            self.sinks.see_exported(&cluster.id, &exported)?;
        }
        Ok(())
    }

    pub(super) async fn run(&mut self, schedule: &Schedule) -> Result<(), String> {
        for (number, (step, pause)) in schedule.steps.iter().enumerate() {
            self.take(step);
            time::sleep(Duration::from_millis(*pause)).await;
            self.check().map_err(|why| format!("after step {number}: {why}"))?;
        }
        self.sinks.heal();
        self.network.heal();
        self.clusters.iter_mut().for_each(Cluster::heal);
        self.record();
        self.settle().await?;
        if !schedule.seed.is_multiple_of(WATCHED_LONGER) {
            return Ok(());
        }
        // Destinations that sinks have left, with rows that wait for another kind, pass the check.
        time::sleep(LAST_WRITES).await;
        let written = (self.sinks.lock().rows_written, self.statuses_written());
        time::sleep(QUIET).await;
        self.check()?;
        let again = (self.sinks.lock().rows_written, self.statuses_written());
        if again.0 != written.0 {
            return Err(format!("{} rows are written although nothing changes", again.0 - written.0));
        }
        // Statuses may report the times of audits.
        if again.1 - written.1 > 20 {
            return Err(format!("{} statuses are written although nothing changes", again.1 - written.1));
        }
        self.check_settled()
    }

    /// Waits until everything is in order.
    async fn settle(&mut self) -> Result<(), String> {
        let until = time::Instant::now() + SETTLING;
        loop {
            time::sleep(LOOK_AGAIN).await;
            // Some processes may have been stopping.
            self.clusters.iter_mut().for_each(Cluster::start);
            self.check()?;
            match self.check_settled() {
                Err(why) if time::Instant::now() >= until => return Err(why),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    fn statuses_written(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.api.written()).sum()
    }

    /// Whether a row waits for another kind in the cluster that has its object.
    fn waits(&self, (_, inventory): &Place, key: &RowKey) -> bool {
        let cluster = self.clusters.iter().find(|cluster| key.uid.starts_with(cluster.name));
        cluster.is_some_and(|cluster| waits_for_kind(&cluster.api, &inventory.name, key))
    }

    /// Every destination holds what the objects yield, and every status says so.
    fn check_settled(&self) -> Result<(), String> {
        let mut wanted = BTreeMap::new();
        // Without operators a cluster has no rows.
        let clusters = || self.clusters.iter().filter(|cluster| !cluster.processes.is_empty());
        for cluster in clusters() {
            wanted.extend(expected(cluster.name, &cluster.api));
        }
        let limits: BTreeMap<String, i64> =
            wanted.keys().map(|(name, _)| (name.clone(), self.sinks.limit(name))).collect();
        let claims_changed = self.sinks.lock().claims_changed.clone();
        let late_claims = self.sinks.lock().late_claims.clone();
        let kept = clusters().flat_map(kept_places).collect::<BTreeSet<Place>>();
        self.sinks.visit(|all| {
            let held = |place: &Place| all.get(place.0.as_str()).and_then(|contents| contents.get(&place.1));
            // What was left stays as it is while a row in it waits, for the other cluster too.
            let keeps_rows = |cluster: &Cluster, place: &Place| {
                let waits =
                    |key: &RowKey| self.waits(place, key) || waits_for_kind(&cluster.api, &place.1.name, key);
                held(place).is_some_and(|held| held.rows.keys().any(waits))
            };
            // The claim of the other cluster arrived after its process had ended, and the place was clean.
            let is_taken = |place: &&Place| {
                let named = self.clusters.iter().find(|cluster| cluster.name == place.1.cluster);
                let owner = held(place).and_then(|held| held.claim.as_ref()?.owner.as_deref());
                owner.is_some() && owner != named.map(|cluster| cluster.id.as_str())
            };
            let mut blocked: BTreeSet<Place> = late_claims.iter().filter(is_taken).cloned().collect();
            for cluster in clusters() {
                blocked.extend(moved_from(cluster).into_iter().filter(|place| keeps_rows(cluster, place)));
            }
            for (&destination, &contents) in all {
                for (inventory, held) in contents {
                    let place = (destination.to_owned(), inventory.clone());
                    let rows = wanted.get(&place);
                    if rows.is_none() && (claims_changed.contains(destination) || kept.contains(&place)) {
                        // No operator finds what comes back in a destination that is not used any more, and none removes
                        // rows that may not be its own.
                        continue;
                    }
                    let limit = limits.get(destination).copied().unwrap_or(i64::MAX);
                    let name = &inventory.cluster;
                    let waits = |key: &RowKey| key.uid.starts_with(name) && self.waits(&place, key);
                    if blocked.contains(&place) {
                        continue;
                    }
                    let empty = ExpectedRows::new();
                    let rows_or_none = rows.unwrap_or(&empty);
                    if let Some(wrong) = difference(&held.rows, rows_or_none, limit, waits) {
                        return Err(format!("at the end {destination} and {inventory} of {name}: {wrong}"));
                    }
                    // A claim that arrives after its process has ended may come after the cleaning.
                    if held.claim.is_some() && rows.is_none() && !late_claims.contains(&place) {
                        return Err(format!(
                            "at the end the claim of {inventory:?} is left in {destination}"
                        ));
                    }
                }
            }
            let exists = |(name, inventory): &Place| {
                all.get(name.as_str()).is_some_and(|contents| contents.contains_key(inventory))
            };
            wanted.retain(|place, _| !blocked.contains(place));
            let missing = wanted.iter().find(|(place, rows)| !rows.is_empty() && !exists(place));
            if let Some((place, _)) = missing {
                return Err(format!("at the end {place:?} does not exist"));
            }
            let check = |cluster: &Cluster| check_last_statuses(cluster, all, &wanted, &limits, &blocked);
            clusters().try_for_each(check)?;
            clusters().try_for_each(check_last_exports)
        })
    }
}

/// A row that is wrong in a destination, other than those that are too large, and those that wait for another kind.
fn difference(
    held: &Rows,
    wanted: &ExpectedRows,
    limit: i64,
    waits: impl Fn(&RowKey) -> bool,
) -> Option<String> {
    let described =
        |key: &RowKey| format!("{} in {} of {} ({})", key.kind, key.namespace, key.target, key.uid);
    let extra = held.keys().find(|key| !wanted.contains_key(key) && !waits(key));
    if let Some(key) = extra {
        return Some(format!("a row too many: {}", described(key)));
    }
    let (key, _) = wanted.iter().find(|(key, row)| row.size < limit && held.get(key) != Some(&row.digest))?;
    let what = if held.contains_key(key) { "an old row" } else { "a row is missing" };
    Some(format!("{what}: {}", described(key)))
}

/// Where sinks have written that are refused now, because another one of their inventory leads to the same destination:
/// their statuses name these places, and the rows stay until the sinks lead somewhere else.
fn kept_places(cluster: &Cluster) -> Vec<Place> {
    let inventories = cluster.api.objects("kollectinventories");
    let exports = inventories.iter().flat_map(|inventory| exports(inventory));
    let refused = exports.filter(|export| export.error.contains(TWO_REFERENCES));
    refused
        .flat_map(|export| [(export.destination, export.inventory)].into_iter().chain(export.left))
        .collect()
}

/// Where sinks have led before that their inventories still name.
fn moved_from(cluster: &Cluster) -> Vec<Place> {
    let mut found = Vec::new();
    for inventory in cluster.api.objects("kollectinventories").iter().filter(|object| !object.is_leaving()) {
        let sinks = Inventory::of(inventory).sinks;
        let named = |export: &Export| sinks.iter().any(|sink| export.sink == format!("database/{sink}"));
        found.extend(exports(inventory).into_iter().filter(named).flat_map(|export| export.left));
    }
    found
}

fn check_last_statuses(
    cluster: &Cluster,
    all: &BTreeMap<&str, &Contents>,
    wanted: &BTreeMap<Place, ExpectedRows>,
    limits: &BTreeMap<String, i64>,
    blocked: &BTreeSet<Place>,
) -> Result<(), String> {
    for inventory in cluster.api.objects("kollectinventories") {
        if inventory.is_leaving() {
            return Err(format!("at the end the inventory is still being deleted: {}", **inventory));
        }
        let mut used: Vec<String> = Vec::new();
        let mut all_exports = exports(&inventory);
        all_exports.sort_by_key(|export| export.error.contains(TWO_REFERENCES));
        for export in all_exports {
            let name = export.sink.strip_prefix("database/").unwrap_or_default();
            let sink = cluster.api.object("kollectdatabasesinks", TEAM, name);
            // Of two sinks of one inventory that lead to one destination only one is used.
            if let Some(sink) = sink.map(|sink| Sink::of(&sink)) {
                let id = inventory_id(&sink.cluster, &export.inventory.name);
                if blocked.contains(&(sink.destination.clone(), id)) {
                    // The other cluster still owns it, or owns it again.
                    continue;
                }
                if used.contains(&sink.destination) {
                    if export.synced {
                        return Err(format!("at the end two sinks lead to one destination: {export:?}"));
                    }
                    continue;
                }
                used.push(sink.destination);
            }
            let held = all.get(export.destination.as_str()).and_then(|all| all.get(&export.inventory));
            let is_held =
                |key, row: &Expected| held.is_some_and(|held| held.rows.get(key) == Some(&row.digest));
            let place = (export.destination.clone(), export.inventory.clone());
            let limit = limits.get(&export.destination).copied().unwrap_or(i64::MAX);
            let rows = wanted.get(&place);
            // Those that were there before the destination began to refuse them stay.
            let large =
                rows.into_iter().flatten().filter(|(key, row)| row.size >= limit && !is_held(key, row));
            let large: Vec<&str> = large.map(|(_, row)| row.described.as_str()).collect();
            let held = held.map_or(0, |held| held.rows.len());
            // A row that was refused and waits for another kind is still missing.
            let name = &export.inventory.name;
            let may_wait = TARGETS.iter().any(|target| unserved_kind(&cluster.api, name, target).is_some());
            let is_right = if may_wait && limit < i64::MAX && !export.synced {
                export.error.contains("cannot hold it")
            } else if large.is_empty() {
                export.synced && export.acknowledged.map(|(rows, _)| rows) == Some(held)
            } else {
                !export.synced && names(&export, &large)
            };
            if !is_right {
                return Err(format!(
                    "at the end the sink holds {held} rows, refuses {large:?}, and the status says {export:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Where all sinks are synced, inventories, their targets and the profiles of these say that their rows are exported.
fn check_last_exports(cluster: &Cluster) -> Result<(), String> {
    let api = &cluster.api;
    let mut said = BTreeMap::new();
    let is_told = |object: &Object| exported(object).is_some() && exported(object) == generation(object);
    let profile = |target: &Object| api.object("kollectprofiles", TEAM, &Target::of(target).profile);
    let is_served =
        |target: &Object| profile(target).is_some_and(|profile| api.serves(&Profile::of(&profile).kind));
    for inventory in api.objects("kollectinventories") {
        let spec = Inventory::of(&inventory);
        let lines = exports(&inventory);
        let synced =
            |sink: &String| lines.iter().any(|line| line.sink == format!("database/{sink}") && line.synced);
        let is_synced = !spec.sinks.is_empty() && spec.sinks.iter().all(synced);
        let mut all_served = true;
        for target in api.objects("kollecttargets").iter().filter(|target| spec.has_target(name(target))) {
            let all: &mut bool = said.entry(name(target).to_owned()).or_insert(true);
            *all &= is_synced;
            all_served &= is_served(target);
        }
        if is_synced && all_served && !is_told(&inventory) {
            return Err(format!("at the end the inventory is not exported: {}", **inventory));
        }
    }
    for target in api.objects("kollecttargets").iter().filter(|t| said.get(name(t)) == Some(&true)) {
        if is_served(target) && !is_told(target) {
            return Err(format!("at the end the target is not exported: {}", ***target));
        }
    }
    for profile in api.objects("kollectprofiles") {
        let is_used = |target: &&Arc<Object>| Target::of(target).profile == name(&profile);
        let targets = api.objects("kollecttargets");
        let mut users = targets.iter().filter(is_used).filter_map(|target| said.get(name(target))).peekable();
        let is_expected = users.peek().is_some() && users.all(|all| *all);
        if is_expected && api.serves(&Profile::of(&profile).kind) && !is_told(&profile) {
            return Err(format!("at the end the profile is not exported: {}", **profile));
        }
    }
    Ok(())
}

/// Whether a line names refused rows: one of them, and how many there are.
fn names(export: &Export, refused: &[&str]) -> bool {
    let more = refused.len() - 1;
    let count = if more == 0 {
        !export.error.contains(" more)")
    } else {
        export.error.contains(&format!("(and {more} more)"))
    };
    count && refused.iter().any(|row| export.error.contains(row))
}
