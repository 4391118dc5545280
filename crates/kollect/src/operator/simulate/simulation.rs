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
    api_server::{StoredObject, WrittenStatus},
    cluster::SimulatedCluster,
    executor::Executor,
    expected_rows::{
        ExpectedRow, ExpectedRows, RowsByKey, StoredInventory, expected, inventory_id, unserved_kind,
        waits_for_kind,
    },
    journal::Journal,
    network::Network,
    process::OperatorProcess,
    reader::ExportedObject,
    schedule::{CLUSTERS, ClusterStep, Schedule, ScheduleStep, SinkStep, TARGETS},
    sink_servers::{DestinationContents, SinkServers},
    specs::{InventorySpecs, ProfileSpecs, SinkSpecs, TEAM, TargetSpecs, name},
    statuses::{StatusExport, check_summary, exported, exports, generation},
};

/// After the faults have ended, everything must be in order within this time.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(16);
/// How often it is checked whether everything is in order.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// One of so many schedules runs on for [`QUIET_TIME`] afterwards.
const LONG_RUN_EVERY: u64 = 20;
/// Within this time operators know which kinds are not served, and the last writes have ended.
const LAST_WRITES: Duration = Duration::from_mins(2);
/// During this time nothing may be written.
const QUIET_TIME: Duration = Duration::from_mins(11);

/// Part of the error of the second of two sinks that lead to one destination.
const TWO_REFERENCES: &str = "two references of one inventory";

/// The clusters and the destinations that they share.
pub(super) struct Simulation {
    clusters: Vec<SimulatedCluster>,
    sinks: SinkServers,
    network: Network,
}

impl Simulation {
    pub(super) fn new(schedule: &Schedule, executor: &Executor, journal: &Journal) -> Self {
        let seed = schedule.seed;
        let sinks = SinkServers::new(seed ^ 1, journal.clone());
        let network = Network::new(seed ^ 2, executor.clone(), journal.clone());
        let environment = (executor, &network, journal);
        let names = CLUSTERS.into_iter().zip(&schedule.clusters);
        let clusters = names
            .map(|(name, processes)| SimulatedCluster::new(name, seed, *processes, &sinks, environment))
            .collect();
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

    fn apply_step(&mut self, step: &ScheduleStep) {
        match step {
            ScheduleStep::In(cluster, ClusterStep::TakeOver(inventory, sink)) => {
                let other_number = self.clusters.len() - 1 - cluster;
                let other = self.clusters[other_number].id.clone();
                self.clusters[*cluster].take_over(inventory, *sink, &other, &self.sinks);
            }
            ScheduleStep::In(cluster, step) => {
                if let ClusterStep::DeleteInventory(inventory) = step {
                    self.sinks.forget_take_overs(&self.clusters[*cluster].id, inventory);
                }
                let cluster = &mut self.clusters[*cluster];
                cluster.apply_step(step);
                self.sinks.lock().reader.record(&cluster.id, &cluster.api);
            }
            ScheduleStep::Process(cluster, process, step) => {
                self.clusters[*cluster].apply_process_step(*process, step);
            }
            ScheduleStep::Sink(destination, step) => match *step {
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
            cluster.processes.iter().try_for_each(OperatorProcess::check)?;
            for written in cluster.api.take_written_statuses() {
                self.check_status(number, &written)?;
            }
        }
        Ok(())
    }

    /// Rows that a status reports as acknowledged are what the destination held for this cluster at an earlier moment;
    /// with Synced=True, that moment was not long before. A line that only repeats the one before is not checked again:
    /// while a KollectScope cannot be read, or after a restart, the old line stays until more is known. When a status
    /// begins to report that rows are exported, the destination holds them.
    fn check_status(&self, cluster: usize, written: &WrittenStatus) -> Result<(), String> {
        let (before, cluster) = (exports(&written.before), &self.clusters[cluster]);
        let new = exports(&written.object).into_iter().filter(|export| !before.contains(export));
        for export in new.filter(|_| written.plural == "kollectinventories") {
            let stored = (export.destination.clone(), export.inventory.clone());
            let period = if export.synced { written.period } else { (0, written.period.1) };
            let has_held = |rows| self.sinks.has_held(&stored, rows, &cluster.id, period, written.written_at);
            if !export.acknowledged.map_or(!export.synced, has_held) {
                return Err(format!("a status reports rows that the destination did not hold: {export:?}"));
            }
        }
        if written.plural == "kollectinventories" {
            check_summary(&written.object, &InventorySpecs::of(&written.object).sinks)?;
        }
        let generation = exported(&written.object);
        let is_new = generation.is_some() && exported(&written.before) != generation;
        if let Some(generation) = generation.filter(|_| is_new)
            && let Some(on_time_since) = cluster.on_time_since()
        {
            let (plural, name) = (written.plural, name(&written.object));
            let exported = ExportedObject { plural, name, generation, cluster: cluster.name, on_time_since };
            self.sinks.check_exported(&cluster.id, &exported)?;
        }
        Ok(())
    }

    pub(super) async fn run(&mut self, schedule: &Schedule) -> Result<(), String> {
        for (number, (step, pause)) in schedule.steps.iter().enumerate() {
            self.apply_step(step);
            time::sleep(Duration::from_millis(*pause)).await;
            self.check().map_err(|why| format!("after step {number}: {why}"))?;
        }
        self.sinks.end_faults();
        self.network.end_faults();
        self.clusters.iter_mut().for_each(SimulatedCluster::end_faults);
        self.record();
        self.settle().await?;
        if !schedule.seed.is_multiple_of(LONG_RUN_EVERY) {
            return Ok(());
        }
        // Destinations that sinks have left, with rows that wait for another kind, pass the check.
        time::sleep(LAST_WRITES).await;
        let written = (self.sinks.lock().rows_written, self.client_writes());
        time::sleep(QUIET_TIME).await;
        self.check()?;
        let written_later = (self.sinks.lock().rows_written, self.client_writes());
        if written_later.0 != written.0 {
            return Err(format!("{} rows are written although nothing changes", written_later.0 - written.0));
        }
        // Statuses may report the times of audits.
        if written_later.1 - written.1 > 20 {
            return Err(format!(
                "{} statuses are written although nothing changes",
                written_later.1 - written.1
            ));
        }
        self.check_settled()
    }

    /// Waits until everything is in order.
    async fn settle(&mut self) -> Result<(), String> {
        let deadline = time::Instant::now() + SETTLE_TIMEOUT;
        loop {
            time::sleep(CHECK_INTERVAL).await;
            // Some processes may have been stopping.
            self.clusters.iter_mut().for_each(SimulatedCluster::start);
            self.check()?;
            match self.check_settled() {
                Err(why) if time::Instant::now() >= deadline => return Err(why),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    fn client_writes(&self) -> u64 {
        self.clusters.iter().map(|cluster| cluster.api.client_writes()).sum()
    }

    /// Whether a row waits for another kind in the cluster that has its object.
    fn waits(&self, (_, inventory): &StoredInventory, key: &RowKey) -> bool {
        let cluster = self.clusters.iter().find(|cluster| key.uid.starts_with(cluster.name));
        cluster.is_some_and(|cluster| waits_for_kind(&cluster.api, &inventory.name, key))
    }

    /// Every destination holds what the objects yield, and every status reports it.
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
        let kept = clusters().flat_map(kept_by_refused_sinks).collect::<BTreeSet<StoredInventory>>();
        self.sinks.with_contents(|all| {
            let held = |stored: &StoredInventory| {
                all.get(stored.0.as_str()).and_then(|contents| contents.get(&stored.1))
            };
            // A destination that a sink has left stays as it is while a row in it waits, for the other cluster too.
            let keeps_rows = |cluster: &SimulatedCluster, stored: &StoredInventory| {
                let waits = |key: &RowKey| {
                    self.waits(stored, key) || waits_for_kind(&cluster.api, &stored.1.name, key)
                };
                held(stored).is_some_and(|held| held.rows.keys().any(waits))
            };
            // The claim of the other cluster arrived after its process had ended, and the destination was clean.
            let is_taken = |stored: &&StoredInventory| {
                let named = self.clusters.iter().find(|cluster| cluster.name == stored.1.cluster);
                let owner = held(stored).and_then(|held| held.claim.as_ref()?.owner.as_deref());
                owner.is_some() && owner != named.map(|cluster| cluster.id.as_str())
            };
            let mut blocked: BTreeSet<StoredInventory> =
                late_claims.iter().filter(is_taken).cloned().collect();
            for cluster in clusters() {
                blocked.extend(moved_from(cluster).into_iter().filter(|stored| keeps_rows(cluster, stored)));
            }
            for (&destination, &contents) in all {
                for (inventory, held) in contents {
                    let stored = (destination.to_owned(), inventory.clone());
                    let rows = wanted.get(&stored);
                    if rows.is_none() && (claims_changed.contains(destination) || kept.contains(&stored)) {
                        // No operator finds rows that are restored in a destination that is not used any more, and none
                        // removes rows that may belong to another.
                        continue;
                    }
                    let limit = limits.get(destination).copied().unwrap_or(i64::MAX);
                    let name = &inventory.cluster;
                    let waits = |key: &RowKey| key.uid.starts_with(name) && self.waits(&stored, key);
                    if blocked.contains(&stored) {
                        continue;
                    }
                    let empty = ExpectedRows::new();
                    let rows_or_none = rows.unwrap_or(&empty);
                    if let Some(wrong) = difference(&held.rows, rows_or_none, limit, waits) {
                        return Err(format!("at the end {destination} and {inventory} of {name}: {wrong}"));
                    }
                    // A claim that arrives after its process has ended may come after the cleaning.
                    if held.claim.is_some() && rows.is_none() && !late_claims.contains(&stored) {
                        return Err(format!(
                            "at the end the claim of {inventory:?} is left in {destination}"
                        ));
                    }
                }
            }
            let exists = |(name, inventory): &StoredInventory| {
                all.get(name.as_str()).is_some_and(|contents| contents.contains_key(inventory))
            };
            wanted.retain(|stored, _| !blocked.contains(stored));
            let missing = wanted.iter().find(|(stored, rows)| !rows.is_empty() && !exists(stored));
            if let Some((stored, _)) = missing {
                return Err(format!("at the end {stored:?} does not exist"));
            }
            let check =
                |cluster: &SimulatedCluster| check_last_statuses(cluster, all, &wanted, &limits, &blocked);
            clusters().try_for_each(check)?;
            clusters().try_for_each(check_last_exports)
        })
    }
}

/// A row that is wrong in a destination, other than those that are too large, and those that wait for another kind.
fn difference(
    held: &RowsByKey,
    wanted: &ExpectedRows,
    limit: i64,
    waits: impl Fn(&RowKey) -> bool,
) -> Option<String> {
    let described =
        |key: &RowKey| format!("{} in {} of {} ({})", key.kind, key.namespace, key.target, key.uid);
    let extra = held.keys().find(|key| !wanted.contains_key(key) && !waits(key));
    if let Some(key) = extra {
        return Some(format!("an unexpected row: {}", described(key)));
    }
    let (key, _) = wanted.iter().find(|(key, row)| row.size < limit && held.get(key) != Some(&row.digest))?;
    let problem = if held.contains_key(key) { "an old row" } else { "a row is missing" };
    Some(format!("{problem}: {}", described(key)))
}

/// What sinks have written that are refused now, because another one of their inventory leads to the same destination:
/// their statuses name these destinations, and the rows stay until the sinks lead to other ones.
fn kept_by_refused_sinks(cluster: &SimulatedCluster) -> Vec<StoredInventory> {
    let inventories = cluster.api.objects("kollectinventories");
    let exports = inventories.iter().flat_map(|inventory| exports(inventory));
    let refused = exports.filter(|export| export.error.contains(TWO_REFERENCES));
    refused
        .flat_map(|export| [(export.destination, export.inventory)].into_iter().chain(export.left))
        .collect()
}

/// Destinations that sinks have left which their inventories still name.
fn moved_from(cluster: &SimulatedCluster) -> Vec<StoredInventory> {
    let mut found = Vec::new();
    for inventory in
        cluster.api.objects("kollectinventories").iter().filter(|object| !object.is_being_deleted())
    {
        let sinks = InventorySpecs::of(inventory).sinks;
        let named =
            |export: &StatusExport| sinks.iter().any(|sink| export.sink == format!("database/{sink}"));
        found.extend(exports(inventory).into_iter().filter(named).flat_map(|export| export.left));
    }
    found
}

fn check_last_statuses(
    cluster: &SimulatedCluster,
    all: &BTreeMap<&str, &DestinationContents>,
    wanted: &BTreeMap<StoredInventory, ExpectedRows>,
    limits: &BTreeMap<String, i64>,
    blocked: &BTreeSet<StoredInventory>,
) -> Result<(), String> {
    for inventory in cluster.api.objects("kollectinventories") {
        if inventory.is_being_deleted() {
            return Err(format!("at the end the inventory is still being deleted: {}", **inventory));
        }
        let mut used: Vec<String> = Vec::new();
        let mut all_exports = exports(&inventory);
        all_exports.sort_by_key(|export| export.error.contains(TWO_REFERENCES));
        for export in all_exports {
            let name = export.sink.strip_prefix("database/").unwrap_or_default();
            let sink = cluster.api.object("kollectdatabasesinks", TEAM, name);
            // Of two sinks of one inventory that lead to one destination only one is used.
            if let Some(sink) = sink.map(|sink| SinkSpecs::of(&sink)) {
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
            let held =
                all.get(export.destination.as_str()).and_then(|contents| contents.get(&export.inventory));
            let is_held =
                |key, row: &ExpectedRow| held.is_some_and(|held| held.rows.get(key) == Some(&row.digest));
            let stored = (export.destination.clone(), export.inventory.clone());
            let limit = limits.get(&export.destination).copied().unwrap_or(i64::MAX);
            let rows = wanted.get(&stored);
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
                !export.synced && names_refused(&export, &large)
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

/// Where all sinks are synced, the statuses of inventories, their targets and the profiles of these report that their
/// rows are exported.
fn check_last_exports(cluster: &SimulatedCluster) -> Result<(), String> {
    let api = &cluster.api;
    // By target: whether all sinks of all its inventories are synced.
    let mut all_synced = BTreeMap::new();
    let is_reported =
        |object: &StoredObject| exported(object).is_some() && exported(object) == generation(object);
    let profile =
        |target: &StoredObject| api.object("kollectprofiles", TEAM, &TargetSpecs::of(target).profile);
    let is_served = |target: &StoredObject| {
        profile(target).is_some_and(|profile| api.serves(&ProfileSpecs::of(&profile).kind))
    };
    for inventory in api.objects("kollectinventories") {
        let spec = InventorySpecs::of(&inventory);
        let lines = exports(&inventory);
        let synced =
            |sink: &String| lines.iter().any(|line| line.sink == format!("database/{sink}") && line.synced);
        let is_synced = !spec.sinks.is_empty() && spec.sinks.iter().all(synced);
        let mut all_served = true;
        for target in api.objects("kollecttargets").iter().filter(|target| spec.has_target(name(target))) {
            let target_synced: &mut bool = all_synced.entry(name(target).to_owned()).or_insert(true);
            *target_synced &= is_synced;
            all_served &= is_served(target);
        }
        if is_synced && all_served && !is_reported(&inventory) {
            return Err(format!("at the end the inventory is not exported: {}", **inventory));
        }
    }
    for target in
        api.objects("kollecttargets").iter().filter(|target| all_synced.get(name(target)) == Some(&true))
    {
        if is_served(target) && !is_reported(target) {
            return Err(format!("at the end the target is not exported: {}", ***target));
        }
    }
    for profile in api.objects("kollectprofiles") {
        let is_used = |target: &&Arc<StoredObject>| TargetSpecs::of(target).profile == name(&profile);
        let targets = api.objects("kollecttargets");
        let mut users =
            targets.iter().filter(is_used).filter_map(|target| all_synced.get(name(target))).peekable();
        let is_expected = users.peek().is_some() && users.all(|synced| *synced);
        if is_expected && api.serves(&ProfileSpecs::of(&profile).kind) && !is_reported(&profile) {
            return Err(format!("at the end the profile is not exported: {}", **profile));
        }
    }
    Ok(())
}

/// Whether a line names refused rows: one of them, and how many there are.
fn names_refused(export: &StatusExport, refused: &[&str]) -> bool {
    let more = refused.len() - 1;
    let has_count = if more == 0 {
        !export.error.contains(" more)")
    } else {
        export.error.contains(&format!("(and {more} more)"))
    };
    has_count && refused.iter().any(|row| export.error.contains(row))
}
