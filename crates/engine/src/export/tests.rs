//! Bindings against a sink that fails before, after and during every operation: when the faults have ended, it holds
//! exactly the rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::FutureExt;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt, Refusal},
    claim::{Claim, Claimant, TakeOver, Writer},
    crd::shapes::Gvk,
    row::{Row, RowDigest, RowKey},
    sink::{Atomicity, Delivery, Sink, SinkReason},
};
use serde_json::{json, value::to_raw_value};
use tokio::time::{self, Instant};

mod acknowledged;

use super::*;
use crate::{
    random::Random,
    store::{Changes, KindRows, Origin, StoreWriter, store},
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The sink fails and has done nothing.
    Before,
    /// The sink fails and has done everything.
    After,
    /// The sink refuses until an administrator corrects the cause.
    Terminal,
    /// The sink never answers.
    Stall,
    /// The sink has a bug.
    Crash,
    /// The sink has a bug in the code that removes rows.
    CrashWhenForgetting,
}

#[derive(Default)]
pub(crate) struct Held {
    pub(crate) rows: Baseline,
    pub(crate) faults: Vec<Fault>,
    /// Of rows; notes do not count.
    pub(crate) writes: usize,
    opened: usize,
    /// Rows that it cannot hold.
    unwelcome: BTreeSet<RowKey>,
    /// Whether it takes whole snapshots.
    forgetful: bool,
    coverage: String,
    pub(crate) claim: Option<Claim>,
    /// Claims that were read without changing anything.
    claim_reads: usize,
    /// What happens while it is claimed.
    on_claim: Option<Box<dyn FnOnce() + Send>>,
    /// Another writer has changed the rows since they were last read.
    pub(crate) drifted: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Held>>);

impl Memory {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn fault(&self) -> Option<Fault> {
        self.with(|held| held.faults.pop())
    }

    /// A fault of what comes before a write; those of writes wait.
    fn early_fault(&self) -> Option<Fault> {
        let late = [Fault::Stall, Fault::Crash, Fault::CrashWhenForgetting];
        self.with(|held| held.faults.pop_if(|fault| !late.contains(fault)))
    }
}

#[async_trait]
impl Open for Memory {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        self.with(|held| held.opened += 1);
        match self.early_fault() {
            Some(fault) => Err(failure(fault)),
            None => Ok(Box::new(self.clone())),
        }
    }
}

fn failure(fault: Fault) -> SinkError {
    let reason = if fault == Fault::Terminal { SinkReason::Missing } else { SinkReason::WriteFailed };
    SinkError::new(reason, format!("{fault:?}"))
}

#[async_trait]
impl Sink for Memory {
    fn delivery(&self) -> Delivery {
        if self.with(|held| held.forgetful) { Delivery::Snapshots } else { Delivery::Changes }
    }

    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        match self.early_fault() {
            Some(fault) => Err(failure(fault)),
            None => Ok(self.with(|held| {
                held.drifted = false;
                held.rows.clone()
            })),
        }
    }

    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        if let Some(fault) = self.early_fault() {
            return Err(failure(fault));
        }
        if let Some(happens) = self.with(|held| held.on_claim.take()) {
            happens();
        }
        self.with(|held| {
            let claim = Claim { writes: Some(0), ..claimant.take(inventory, held.claim.as_ref())? };
            Ok(held.claim.insert(claim).clone())
        })
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        if let Some(fault) = self.early_fault() {
            return Err(failure(fault));
        }
        Ok(self.with(|held| {
            held.claim_reads += 1;
            vec![held.claim.clone(); inventories.len()]
        }))
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        self.with(|held| Claim::admits(held.claim.as_ref(), batch.inventory, batch.claim))?;
        let fault = self.fault();
        match fault {
            Some(Fault::Stall) => std::future::pending().await,
            Some(Fault::Crash) => unreachable!("this is what a crash looks like"),
            _ => {}
        }
        if let Some(fault @ (Fault::Before | Fault::Terminal)) = fault {
            return Err(failure(fault));
        }
        time::sleep(Duration::from_millis(20)).await;
        let mut receipt = Receipt::default();
        self.with(|held| {
            batch.coverage.clone_into(&mut held.coverage);
            if held.forgetful {
                held.claim.iter_mut().for_each(Claim::count_write);
                let digests: Vec<String> = batch.delta.rows().map(|row| row.digest.to_string()).collect();
                let checksum = Some(digests.join(" "));
                held.writes += usize::from(checksum.as_deref() != batch.last_checksum);
                held.rows = batch.delta.rows().map(|row| (row.key.clone(), row.digest)).collect();
                receipt.checksum = checksum;
                return;
            }
            held.writes += usize::from(!batch.delta.is_empty());
            held.claim.iter_mut().for_each(Claim::count_write);
            let (delta, known) = (batch.delta, |key: &RowKey| held.rows.get(key).copied());
            if !held.drifted {
                assert!(delta.added.iter().all(|row| known(&row.key).is_none()), "added what was there");
                let differs = |row: &Arc<Row>| known(&row.key).is_some_and(|digest| digest != row.digest);
                assert!(delta.changed.iter().all(|row| differs(&row.after)), "wrote an unchanged row");
                assert!(
                    delta.removed.iter().all(|row| known(&row.key).is_some()),
                    "removed what was not there"
                );
            }
            for row in delta.rows() {
                if held.unwelcome.contains(&row.key) {
                    receipt.refused.push(Refusal { key: row.key.clone(), why: "unwelcome".into() });
                    continue;
                }
                held.rows.insert(row.key.clone(), row.digest);
            }
            held.rows.retain(|key, _| !delta.removed.iter().any(|gone| gone.key == *key));
        });
        fault.map_or(Ok(receipt), |fault| Err(failure(fault)))
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        if let Some(fault) = self.early_fault() {
            return Err(failure(fault));
        }
        let bug = self.with(|held| held.faults.pop_if(|fault| *fault == Fault::CrashWhenForgetting));
        assert!(bug.is_none(), "a bug in a sink");
        self.with(|held| {
            Claim::admits(held.claim.as_ref(), inventory, claim)?;
            (held.rows, held.claim) = (Baseline::new(), None);
            Ok(())
        })
    }
}

pub(crate) fn target() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "pods".into() }
}

pub(crate) fn gvk(kind: &str) -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: kind.into() }
}

pub(crate) fn row(kind: &str, uid: usize, value: usize) -> Row {
    let key = RowKey {
        target: target(),
        group: "".into(),
        kind: kind.into(),
        namespace: "a".into(),
        uid: format!("{kind}{uid}").into(),
    };
    let attributes = to_raw_value(&json!({ "value": value })).unwrap().into();
    Row::new(key, "v1".into(), format!("n{uid}").into(), attributes)
}

pub(crate) fn binding(sink: &Memory) -> Binding {
    let inventory = InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "i".into() };
    Binding {
        generation: 1,
        targets: vec![target()],
        ..Binding::new(inventory, claimant(), "memory".into(), Arc::new(sink.clone()))
    }
}

fn in_short(told: &BindingEvent<'_>) -> String {
    match told {
        BindingEvent::Claimed(_) => "claimed".into(),
        BindingEvent::ClaimLost(_) => "claim lost".into(),
        BindingEvent::Compared(outcome) => {
            format!("compared {} {}", outcome.delta.len(), outcome.drifted)
        }
        BindingEvent::Written(delta, receipt) => {
            format!("written {} refused {}", delta.len(), receipt.refused.len())
        }
        BindingEvent::Failed { error, .. } => format!("failed {:?}", error.reason),
        BindingEvent::Paused { .. } => "paused".into(),
        BindingEvent::Waits => "waits".into(),
        BindingEvent::Passed => "passed".into(),
        BindingEvent::Late => "late".into(),
        BindingEvent::HeldBack { coverage } => format!("held back, {coverage}"),
        BindingEvent::RemovalsHeld(held) => format!("{} of {} removals held", held.rows, held.held),
        BindingEvent::Cleaned { .. } | BindingEvent::NotCleaned { .. } => {
            unreachable!("no destination is cleaned here")
        }
    }
}

struct World {
    writer: StoreWriter,
    rows: StoreReader,
    kinds: BTreeMap<&'static str, KindRows>,
    memory: Memory,
    running: Option<tokio::task::JoinHandle<()>>,
    wanted: watch::Sender<Option<Arc<Binding>>>,
    binding: Binding,
    told: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new(min_change: Duration) -> Self {
        let (writer, rows) = store();
        let kinds = ["Pod", "Node"].map(|kind| (kind, writer.rows(&target(), &gvk(kind)))).into();
        let memory = Memory::default();
        let mut binding = binding(&memory);
        binding.cadence.min_change = min_change;
        let (wanted, told) = (watch::Sender::default(), Arc::default());
        Self { writer, rows, kinds, memory, running: None, wanted, binding, told }
    }

    fn start(&mut self) {
        self.wanted.send_replace(Some(Arc::new(self.binding.clone())));
        let (rows, wanted, told) = (self.rows.clone(), self.wanted.subscribe(), self.told.clone());
        self.running = Some(tokio::spawn(async move {
            let tell = |event: BindingEvent<'_>| match event {
                BindingEvent::Claimed(_) | BindingEvent::Passed => {}
                event => told.lock().unwrap().push(in_short(&event)),
            };
            follow(wanted, &rows, &|| true, tell).await;
        }));
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    async fn halt(&mut self, gently: bool) {
        if let Some(running) = self.running.take() {
            if gently {
                self.wanted.send_replace(None);
                running.await.unwrap();
            } else {
                running.abort();
                drop(running.await);
            }
        }
    }

    fn see(&self, kind: &str, visibility: Visibility) {
        self.kinds[kind].set_visibility(visibility);
    }

    fn put(&self, kind: &str, uid: usize, value: usize) {
        self.kinds[kind].upsert(row(kind, uid, value), Origin::default(), None);
    }

    fn expected(&self) -> Baseline {
        let snapshot = self.rows.snapshot(&[target()], Visibility::Everything).unwrap();
        snapshot.rows.into_iter().map(|(key, row)| (key, row.digest)).collect()
    }

    async fn rest(&self) {
        time::sleep(Duration::from_mins(30)).await;
    }

    fn holds(&self) -> Baseline {
        self.memory.with(|held| held.rows.clone())
    }

    fn writes(&self) -> usize {
        self.memory.with(|held| held.writes)
    }
}

async fn filled() -> World {
    let mut world = World::new(Duration::ZERO);
    world.put("Pod", 1, 1);
    world.put("Node", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.start();
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
    world
}

#[tokio::test(start_paused = true)]
async fn w4_nothing_is_written_before_everything_was_seen() {
    let mut world = World::new(Duration::ZERO);
    let old = row("Pod", 9, 1);
    world.memory.with(|held| held.rows.insert(old.key.clone(), old.digest));
    world.put("Node", 1, 1);
    world.see("Node", Visibility::Everything);
    world.start();
    world.rest().await;
    assert_eq!(world.writes(), 0, "pods are still being listed");
    world.see("Pod", Visibility::Everything);
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
    assert_eq!(world.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn w45_w46_one_change_is_one_row_and_no_change_is_none() {
    let world = filled().await;
    let before = world.writes();
    world.rest().await;
    assert_eq!(world.writes(), before, "audits find nothing");
    world.put("Pod", 1, 2);
    world.put("Pod", 1, 3);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (before + 1, world.expected()));
    world.kinds["Pod"].remove("Pod1");
    world.rest().await;
    assert_eq!((world.writes(), world.holds().len()), (before + 2, 1));
    world.kinds["Node"].remove("Node1");
    world.rest().await;
    assert!(world.holds().is_empty(), "W9: empty is a state");
}

#[tokio::test(start_paused = true)]
async fn w24_w46_a_restart_with_nothing_changed_writes_nothing() {
    let mut world = filled().await;
    let before = world.writes();
    for gently in [true, false] {
        world.halt(gently).await;
        world.start();
        world.rest().await;
    }
    assert_eq!(world.writes(), before);
}

#[tokio::test(start_paused = true)]
async fn w64_what_others_have_changed_is_repaired() {
    let world = filled().await;
    world.memory.with(|held| {
        held.rows.clear();
        let stranger = row("Pod", 7, 7);
        held.rows.insert(stranger.key.clone(), RowDigest(7));
        held.drifted = true;
    });
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
}

#[tokio::test(start_paused = true)]
async fn law_5_blindness_removes_nothing_until_it_ends() {
    let mut world = filled().await;
    world.halt(true).await;
    // After a restart pods cannot be seen, and the store knows none.
    let (writer, rows) = store();
    world.kinds = ["Pod", "Node"].map(|kind| (kind, writer.rows(&target(), &gvk(kind)))).into();
    (world.writer, world.rows) = (writer, rows);
    world.see("Pod", Visibility::Partial);
    world.see("Node", Visibility::Everything);
    world.start();
    world.rest().await;
    let held: BTreeSet<String> = world.holds().keys().map(|key| key.uid.to_string()).collect();
    assert_eq!(held, ["Pod1".to_owned()].into(), "the node is known to be gone");
    // A row that the sink holds and the store learns of is compared, not counted as new.
    world.told();
    world.put("Pod", 1, 1);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.told(), ["compared 0 0"]);
    world.kinds["Pod"].remove("Pod1");
    world.see("Pod", Visibility::Everything);
    world.rest().await;
    assert!(world.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_joins_later_does_not_hold_up_the_others() {
    let mut world = filled().await;
    world.kinds.insert("Secret", world.writer.rows(&target(), &gvk("Secret")));
    world.put("Secret", 1, 1);
    world.put("Pod", 1, 2);
    world.rest().await;
    let secrets = |world: &World| world.holds().keys().filter(|key| &*key.kind == "Secret").count();
    assert_eq!(world.holds()[&row("Pod", 1, 2).key], row("Pod", 1, 2).digest);
    assert_eq!(secrets(&world), 0, "half a list is not written");
    world.put("Secret", 2, 1);
    world.put("Pod", 1, 3);
    world.rest().await;
    assert_eq!(secrets(&world), 0, "nor the next part of it");
    world.see("Secret", Visibility::Everything);
    world.rest().await;
    assert_eq!(secrets(&world), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_listed_again_while_the_sink_is_claimed_joins_later() {
    let mut world = World::new(Duration::ZERO);
    world.put("Pod", 1, 1);
    world.put("Node", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    let pods = world.writer.rows(&target(), &gvk("Pod"));
    world
        .memory
        .with(|held| held.on_claim = Some(Box::new(move || pods.set_visibility(Visibility::Pending))));
    world.start();
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!((world.holds().len(), world.told().len()), (1, 1), "pods are being listed");
    world.put("Pod", 1, 2);
    world.see("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.holds(), world.expected());
    assert_eq!(world.told(), ["compared 1 0"], "what the sink does not hold has not changed, it is new");
}

#[tokio::test(start_paused = true)]
async fn w47_w53_changes_wait_for_the_interval_and_become_one_write() {
    let mut world = World::new(Duration::from_secs(10));
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.start();
    world.put("Pod", 1, 0);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.writes(), 1, "the first change is written at once");
    for value in 1..=5 {
        world.put("Pod", 1, value);
        world.put("Pod", value, value);
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.writes(), 1);
    // Further changes do not delay it.
    for value in 6..=12 {
        world.put("Pod", 1, value);
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.writes(), 2);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!((world.writes(), world.holds()), (3, world.expected()));
}

#[tokio::test(start_paused = true)]
async fn w58_a_sink_that_is_down_for_long_costs_one_write_afterwards() {
    let world = filled().await;
    let before = world.writes();
    world.memory.with(|held| held.faults = vec![Fault::Before; 100]);
    for value in 0..10_000 {
        world.put("Pod", value % 10, value);
    }
    time::sleep(Duration::from_hours(24)).await;
    assert_eq!((world.writes(), world.holds()), (before + 1, world.expected()));
}

#[tokio::test(start_paused = true)]
async fn a_gentle_stop_finishes_the_write() {
    let mut world = filled().await;
    world.put("Pod", 5, 5);
    time::sleep(Duration::from_millis(5)).await;
    world.halt(true).await;
    assert_eq!(world.holds(), world.expected());
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_the_sink_ends_up_with_the_rows() {
    for seed in 1..=150_u64 {
        let mut random = Random(seed * 7919);
        let mut world = World::new(Duration::from_millis(if seed % 2 == 0 { 0 } else { 300 }));
        // Without audits nothing hides a change that was lost; nor is drift found.
        let audited = random.below(2) == 0;
        world.binding.cadence.audit = world.binding.cadence.audit.filter(|_| audited);
        ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
        world.start();
        for _ in 0..60 {
            let kind = random.pick(&["Pod", "Node"]);
            match random.below(12) {
                0..5 => world.put(kind, random.below(6), random.below(3)),
                5..7 => drop(world.kinds[kind].remove(&format!("{kind}{}", random.below(6)))),
                7 => {
                    let fault = [Fault::Before, Fault::After, Fault::Terminal][random.below(3)];
                    world.memory.with(|held| held.faults.push(fault));
                }
                8 if audited => world.memory.with(|held| {
                    let row = row(kind, random.below(6), 9);
                    held.rows.insert(row.key.clone(), RowDigest(9));
                    held.drifted = true;
                }),
                9 => {
                    world.halt(random.below(2) == 0).await;
                    world.start();
                }
                10 => {
                    world.see(kind, Visibility::Partial);
                    world.see(kind, Visibility::Everything);
                }
                _ => time::sleep(Duration::from_millis(random.below(400) as u64)).await,
            }
            time::sleep(Duration::from_millis(random.below(30) as u64)).await;
        }
        world.memory.with(|held| held.faults.clear());
        world.rest().await;
        assert_eq!(world.holds(), world.expected(), "seed {seed}");
        world.halt(false).await;
    }
}

impl World {
    /// Another writer claims the inventory.
    fn claimed_by(&self, writer: Writer, owner: &str) {
        self.memory.with(|held| {
            let claimant = Claimant {
                owner: Some(owner.into()),
                writer,
                take_over: TakeOver::Always,
                id: "another".into(),
                at: "2026-01-01T00:00:00Z".into(),
                ..Claimant::default()
            };
            let claim = claimant.take(&self.binding.inventory, held.claim.as_ref()).unwrap();
            held.claim = Some(Claim { writes: Some(0), ..claim });
        });
    }

    fn owner(&self) -> Option<String> {
        self.memory.with(|held| held.claim.as_ref().and_then(|claim| claim.owner.clone()))
    }
}

#[tokio::test(start_paused = true)]
async fn an_inventory_that_the_command_line_took_over_is_left_to_it_until_the_binding_changes() {
    let mut world = filled().await;
    world.told();
    let row = row("Pod", 8, 8);
    world.claimed_by(Writer::Cli, "c1");
    world.memory.with(|held| held.rows.insert(row.key.clone(), row.digest));
    let before = world.holds();
    world.put("Pod", 1, 7);
    world.rest().await;
    assert_eq!(world.holds(), before);
    let told = world.told();
    assert!((3..20).contains(&told.len()) && told.iter().all(|told| told == "failed Fenced"), "{told:?}");
    world.memory.with(|held| held.drifted = true);
    world.binding.requested = Some("now".into());
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_an_operator_that_came_too_late_stops_the_leader_for_seconds_only() {
    let world = filled().await;
    world.told();
    world.claimed_by(Writer::Operator, "c1");
    world.put("Pod", 1, 7);
    time::sleep(Duration::from_secs(6)).await;
    assert_eq!(world.told(), ["failed Fenced", "compared 1 0"]);
    assert_eq!(world.holds(), world.expected());
}

#[tokio::test(start_paused = true)]
async fn two_operators_that_take_turns_do_it_more_and_more_rarely() {
    let world = filled().await;
    world.told();
    for _ in 0..1000 {
        world.claimed_by(Writer::Operator, "c1");
        time::sleep(Duration::from_secs(10)).await;
    }
    let fenced = world.told().iter().filter(|told| *told == "failed Fenced").count();
    // Nearly three hours: every five minutes at the most, and a few times at the beginning.
    assert!((20..60).contains(&fenced), "{fenced}");
}

#[tokio::test(start_paused = true)]
async fn an_inventory_of_another_owner_is_not_written_and_not_claimed_back() {
    let world = filled().await;
    world.told();
    world.claimed_by(Writer::Operator, "c2");
    let before = world.holds();
    world.put("Pod", 1, 7);
    world.rest().await;
    let told = world.told();
    assert_eq!(told[..2], ["failed Fenced", "failed OwnedByOther"]);
    assert_eq!((world.holds(), world.owner().as_deref()), (before, Some("c2")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_shows_without_a_write() {
    let world = filled().await;
    let reads = world.memory.with(|held| held.claim_reads);
    time::sleep(Duration::from_mins(10)).await;
    let reads = world.memory.with(|held| held.claim_reads) - reads;
    assert!((7..=13).contains(&reads), "once a minute: {reads}");
    world.told();
    world.claimed_by(Writer::Operator, "c2");
    time::sleep(Duration::from_secs(90)).await;
    assert!(world.told().contains(&"failed Fenced".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_was_restored_is_claimed_again_and_compared() {
    let world = filled().await;
    let old = world.memory.with(|held| (held.rows.clone(), held.claim.clone()));
    let older = Claim { epoch: 0, writer_id: Some("older".into()), ..old.1.clone().unwrap() };
    // With the claim that it had then, with one of before, with none; noticed by a write, or by looking.
    for claim in [old.1, Some(older), None] {
        for with_a_write in [true, false] {
            world.put("Pod", 1, 5);
            world.put("Pod", 2, 5);
            time::sleep(Duration::from_secs(1)).await;
            world.told();
            let epoch = world.memory.with(|held| {
                let epoch = held.claim.as_ref().unwrap().epoch;
                (held.rows, held.claim, held.drifted) = (old.0.clone(), claim.clone(), true);
                epoch
            });
            let seconds = if with_a_write { 1 } else { 90 };
            if with_a_write {
                world.put("Pod", 3, 3);
            }
            time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(world.told()[0], "claim lost", "{claim:?}");
            assert_eq!(world.holds(), world.expected(), "{claim:?}");
            assert!(world.memory.with(|held| held.claim.as_ref().unwrap().epoch) > epoch);
            world.kinds["Pod"].remove("Pod2");
            world.kinds["Pod"].remove("Pod3");
            time::sleep(Duration::from_mins(20)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_bindings_of_a_sink_look_at_their_claims_together() {
    let world = filled().await;
    let mut others = Vec::new();
    for number in 0..20 {
        let mut other = World::new(Duration::ZERO);
        other.memory = world.memory.clone();
        other.binding = Binding {
            sink: Arc::new(Shared(world.memory.clone())),
            claim_checks: world.binding.claim_checks.clone(),
            ..world.binding.clone()
        };
        other.binding.inventory.name = format!("i{number}");
        other.binding.current = CurrentClaim::default();
        ["Pod", "Node"].iter().for_each(|kind| other.see(kind, Visibility::Everything));
        other.start();
        others.push(other);
    }
    time::sleep(Duration::from_mins(5)).await;
    let reads = world.memory.with(|held| held.claim_reads);
    time::sleep(Duration::from_mins(10)).await;
    let reads = world.memory.with(|held| held.claim_reads) - reads;
    assert!((8..=20).contains(&reads), "{reads} requests of 21 bindings in ten minutes");
}

/// A sink that several inventories use, each with a claim of its own that always stands.
struct Shared(Memory);

#[async_trait]
impl Open for Shared {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

#[async_trait]
impl Sink for Shared {
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        Ok(Baseline::new())
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        claimant.take(inventory, None).map(|claim| Claim { writer_id: None, ..claim })
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.0.with(|held| held.claim_reads += 1);
        let claim = |inventory| Some(Claim { writer_id: None, ..claimant().take(inventory, None).unwrap() });
        Ok(inventories.iter().map(claim).collect())
    }

    async fn write(&self, _: &Batch<'_>) -> Result<Receipt, SinkError> {
        Ok(Receipt::default())
    }

    async fn forget(&self, _: &InventoryId, _: &Claim) -> Result<(), SinkError> {
        Ok(())
    }
}

fn claimant() -> Claimant {
    Claimant { owner: Some("c1".into()), writer: Writer::Operator, ..Claimant::default() }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_claims_and_writes_nothing() {
    let mut world = World::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.put("Pod", 1, 1);
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    let (leads, told) = (Arc::new(AtomicBool::new(false)), world.told.clone());
    let run = |world: &World| {
        let (rows, wanted, leads) = (world.rows.clone(), world.wanted.subscribe(), leads.clone());
        let told = told.clone();
        async move {
            let may_write = move || leads.load(Relaxed);
            follow(wanted, &rows, &may_write, |event| told.lock().unwrap().push(in_short(&event))).await;
        }
    };
    // It ends by itself.
    run(&world).await;
    assert_eq!((world.memory.with(|held| held.claim.clone()), world.told()), (None, vec![]));
    leads.store(true, Relaxed);
    let running = tokio::spawn(run(&world));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told(), ["claimed", "compared 1 0"]);
    leads.store(false, Relaxed);
    world.put("Pod", 2, 2);
    running.await.unwrap();
    assert_eq!((world.holds().len(), world.told()), (1, vec![]));
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn law_6_an_inventory_without_targets_empties_the_sink() {
    let world = World::new(Duration::ZERO);
    let old = row("Pod", 1, 1);
    world.memory.with(|held| held.rows.insert(old.key.clone(), old.digest));
    let mut world = world;
    world.binding.targets.clear();
    world.start();
    world.rest().await;
    assert!(world.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn law_8_a_refused_row_fails_alone_and_by_name() {
    let mut world = filled().await;
    let unwelcome = row("Pod", 7, 1);
    world.memory.with(|held| held.unwelcome.insert(unwelcome.key.clone()));
    world.told();
    world.put("Pod", 7, 1);
    world.put("Pod", 8, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert!(world.told().contains(&"written 2 refused 1".to_owned()));
    world.put("Pod", 9, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told(), ["written 1 refused 1"], "another write does not make it fit");
    let mut expected = world.expected();
    expected.remove(&unwelcome.key);
    assert_eq!(world.holds(), expected);
    // Audits try it again, and do not take it for drift.
    time::sleep(Duration::from_mins(11)).await;
    assert_eq!(world.told(), ["compared 1 0"]);
    world.memory.with(|held| held.unwelcome.clear());
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_told_from_changes() {
    let world = filled().await;
    world.told();
    world.memory.with(|held| {
        held.rows.pop_first();
        held.rows.insert(row("Pod", 7, 7).key, RowDigest(7));
        held.drifted = true;
    });
    time::sleep(Duration::from_mins(11)).await;
    assert_eq!(world.told()[0], "compared 2 2");
    assert_eq!(world.holds(), world.expected());
    // What could not be seen for a while is no drift.
    world.see("Pod", Visibility::Partial);
    world.put("Pod", 2, 2);
    world.see("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    assert!(world.told().iter().all(|told| told.ends_with(" 0")));
}

#[tokio::test(start_paused = true)]
async fn w59_the_bindings_of_a_sink_share_its_breaker() {
    let mut world = filled().await;
    let mut other = World::new(Duration::ZERO);
    other.binding.breaker = world.binding.breaker.clone();
    other.memory = world.memory.clone();
    ["Pod", "Node"].iter().for_each(|kind| other.see(kind, Visibility::Everything));
    world.memory.with(|held| held.faults = vec![Fault::Before; 1000]);
    world.put("Pod", 1, 2);
    // Connecting counts too: only the first attempt is a write.
    time::sleep(Duration::from_secs(40)).await;
    let opened = world.memory.with(|held| held.opened);
    assert!((5..=7).contains(&opened), "{opened}");
    other.binding.sink = Arc::new(other.memory.clone());
    other.start();
    let before = world.memory.with(|held| held.opened);
    time::sleep(Duration::from_secs(20)).await;
    assert!(other.told().iter().all(|told| told == "paused"));
    assert!(world.memory.with(|held| held.opened) <= before + 1, "one attempt per pause");
    // When the sink works for one binding, it works for all.
    other.halt(false).await;
    world.memory.with(|held| held.faults.clear());
    world.rest().await;
    assert_eq!(world.holds(), world.expected());
    assert_eq!(world.binding.breaker.admit(Instant::now()), Ok(()));
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn w24_a_changed_secret_is_used_at_once_even_after_a_terminal_error() {
    let mut world = filled().await;
    world.memory.with(|held| held.faults = vec![Fault::Terminal; 1000]);
    // Another password: the old session is not used any more.
    world.binding.sink = Arc::new(world.memory.clone());
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().last().unwrap(), "failed Missing");
    world.put("Pod", 1, 9);
    time::sleep(Duration::from_secs(50)).await;
    assert!(world.told().is_empty(), "no attempt before the pause is over");
    // Every minute for the first ten, then every five.
    time::sleep(Duration::from_secs(590)).await;
    assert_eq!(world.told(), ["failed Missing"; 10]);
    time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.told(), ["failed Missing"; 2]);
    world.memory.with(|held| held.faults.clear());
    let opened = world.memory.with(|held| held.opened);
    world.binding.sink = Arc::new(world.memory.clone());
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((world.holds(), world.memory.with(|held| held.opened)), (world.expected(), opened + 1));
    // A change of only the inventory needs no new session.
    world.binding.generation += 1;
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.memory.with(|held| held.opened), opened + 1);
    assert_eq!(world.told().last().unwrap(), "compared 0 0");
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_target_that_joins_or_leaves_takes_its_rows_along() {
    let mut world = filled().await;
    let late = TargetId { namespace: Some("team".into()), name: "late".into() };
    let rows = world.writer.rows(&late, &gvk("Secret"));
    let mut key = row("Secret", 1, 1);
    key.key.target = late.clone();
    let joined = Row::new(key.key, "v1".into(), "n".into(), key.attributes);
    rows.upsert(joined.clone(), Origin::default(), None);
    world.binding.targets.push(late);
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    world.put("Pod", 1, 5);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.holds(), world.expected(), "the others go on");
    rows.set_visibility(Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.holds().get(&joined.key), Some(&joined.digest));
    world.binding.targets.pop();
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.holds(), world.expected());
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_keeps_nothing_gets_snapshots_and_none_twice() {
    let mut world = World::new(Duration::ZERO);
    world.memory.with(|held| held.forgetful = true);
    world.put("Pod", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.start();
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (1, world.expected()));
    world.put("Pod", 2, 1);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (2, world.expected()));
    world.kinds["Pod"].remove("Pod1");
    world.kinds["Pod"].remove("Pod2");
    world.rest().await;
    assert_eq!((world.writes(), world.holds().len()), (3, 0), "W9: zero rows are a snapshot");
    world.halt(true).await;

    // After a restart nothing can be read back; what was sent last is known from the status.
    world.put("Node", 1, 1);
    world.binding.last_checksum = LastChecksum::new(Some(String::new()));
    world.see("Pod", Visibility::Partial);
    world.start();
    world.rest().await;
    assert_eq!(world.writes(), 3, "rows of pods may be missing");
    assert_eq!(world.told().last().unwrap(), "held back, blind: Pod of team/pods");
    world.see("Pod", Visibility::Everything);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (4, world.expected()));
    // What is listed again is missing until the list is complete.
    world.kinds.insert("Secret", world.writer.rows(&target(), &gvk("Secret")));
    world.put("Secret", 1, 1);
    world.rest().await;
    assert_eq!(world.writes(), 4);
    world.see("Secret", Visibility::Everything);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (5, world.expected()));
    world.writer.rows(&target(), &gvk("Secret")).set_visibility(Visibility::Pending);
    world.put("Node", 7, 1);
    world.rest().await;
    assert_eq!(world.writes(), 5, "rows that were known are being listed again");
    world.see("Secret", Visibility::Everything);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (6, world.expected()));
    // Once they have been seen, they are known even while they are frozen.
    world.see("Pod", Visibility::Partial);
    world.put("Node", 2, 1);
    world.rest().await;
    assert_eq!((world.writes(), world.holds()), (7, world.expected()));
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn what_could_be_seen_is_noted() {
    let world = filled().await;
    assert_eq!(world.memory.with(|held| held.coverage.clone()), "complete");
    world.see("Pod", Visibility::AllBut(["a".into(), "b".into()].into()));
    world.rest().await;
    assert_eq!(
        world.memory.with(|held| held.coverage.clone()),
        "blind: Pod of team/pods in 2 namespaces (a and b)"
    );
    let within = Visibility::Within(["a".into()].into());
    let seen = [((target(), Arc::from("apps"), Arc::from("Deployment")), within.clone())].into();
    assert_eq!(coverage(&seen, &within), "complete", "the run looks nowhere else");
    assert_eq!(
        coverage(&seen, &Visibility::Everything),
        "blind: Deployment.apps of team/pods but in namespace a"
    );
}

#[tokio::test(start_paused = true)]
async fn w16_of_several_rows_of_an_object_the_first_target_counts() {
    let mut world = filled().await;
    world.binding.row_filter.one_row_per_object = true;
    let twin = |name: &str, value: usize| {
        let row = row("Pod", 1, value);
        let target = TargetId { namespace: Some("team".into()), name: name.into() };
        let key = RowKey { target, ..row.key };
        Row::new(key, row.version, row.name, row.attributes)
    };
    let targets = ["another", "zebra"].map(|name| twin(name, 1).key.target);
    let rows = targets.each_ref().map(|target| world.writer.rows(target, &gvk("Pod")));
    rows.iter().for_each(|rows| rows.set_visibility(Visibility::Everything));
    rows[1].upsert(twin("zebra", 1), Origin::default(), None);
    world.binding.targets.extend(targets.clone());
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    let pods = |world: &World| -> Vec<String> {
        let held = world.holds();
        held.keys().filter(|key| &*key.kind == "Pod").map(|key| key.target.name.to_string()).collect()
    };
    assert_eq!(pods(&world), ["pods"]);
    // The row of the target whose name sorts first is written, whenever it came; without it the next one is.
    rows[0].upsert(twin("another", 1), Origin::default(), None);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&world), ["another"]);
    rows[0].remove("Pod1");
    world.kinds["Pod"].remove("Pod1");
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&world), ["zebra"]);
    // Namespaces that do not belong to the inventory.
    world.binding.row_filter.namespaces = Some(["b".into()].into());
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert!(world.holds().is_empty());
    world.put("Node", 5, 5);
    time::sleep(Duration::from_secs(1)).await;
    assert!(world.holds().is_empty());
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn w49_one_digest_whatever_the_order() {
    let (mut one, mut other) = (World::new(Duration::ZERO), World::new(Duration::ZERO));
    for uid in 0..20 {
        one.put("Pod", uid, uid);
        other.put("Pod", 19 - uid, 7);
        other.put("Pod", 19 - uid, 19 - uid);
    }
    for world in [&mut one, &mut other] {
        ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
        world.start();
    }
    let digest = async |world: &World| {
        time::sleep(Duration::from_secs(1)).await;
        let held = world.holds();
        let Acknowledged { rows, digest, .. } = world.binding.progress.read().acknowledged.unwrap();
        assert_eq!(rows, held.len());
        assert_eq!(digest, held.values().fold(0, |sum, row| row.0.wrapping_add(sum)), "what the sink holds");
        digest
    };
    assert_eq!(digest(&one).await, digest(&other).await);
    one.kinds["Pod"].remove("Pod3");
    assert_ne!(digest(&one).await, digest(&other).await);
    one.put("Pod", 3, 3);
    assert_eq!(digest(&one).await, digest(&other).await);
    one.kinds["Pod"].clear();
    assert_eq!(digest(&one).await, 0);
    one.halt(true).await;
    other.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_kind_that_is_being_listed_wake_no_binding_until_all_of_them_are_there() {
    let world = World::new(Duration::ZERO);
    world.see("Pod", Visibility::Everything);
    let mut changes = world.rows.changes(&[target()]);
    let woken = |changes: &Changes| changes.ready().now_or_never().is_some();
    let wakes = (0..1000).filter(|uid| {
        world.put("Node", *uid, 1);
        woken(&changes)
    });
    assert_eq!(wakes.count(), 0);
    assert!(changes.is_empty(), "there is nothing to write yet");
    world.put("Pod", 0, 1);
    assert!(woken(&changes), "others need not wait");
    assert_eq!(changes.take().len(), 1);
    assert!(!woken(&changes));
    world.see("Node", Visibility::Everything);
    assert!(woken(&changes));
    assert_eq!(changes.take().len(), 1000);
    assert!(changes.is_empty());
}

/// Ten pods that a definition of the target has made, in a sink whose binding has a guard.
async fn guarded(percent: Option<u32>, rows: Option<usize>) -> World {
    let mut world = World::new(Duration::ZERO);
    world.binding.removal_guard = Some(RemovalGuard { percent, rows, released: None });
    world.binding.selected = "one".into();
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    let pods = world.writer.rows(&target(), &gvk("Pod")).for_definition(1);
    for uid in 0..10 {
        pods.upsert(row("Pod", uid, 1), Origin { definition: 1, ..Origin::default() }, None);
    }
    world.kinds.insert("Pod", pods);
    world.start();
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told(), ["compared 10 0"]);
    world
}

impl World {
    /// The target is defined in another way, and selects only these of its pods.
    fn redefine(&mut self, definition: u32, selected: &str, pods: &[usize]) {
        let rows = self.writer.rows(&target(), &gvk("Pod")).for_definition(definition);
        for uid in 0..10 {
            if pods.contains(&uid) {
                rows.upsert(row("Pod", uid, 1), Origin { definition, ..Origin::default() }, None);
            } else {
                rows.remove(&format!("Pod{uid}"));
            }
        }
        self.kinds.insert("Pod", rows);
        self.binding.selected = selected.into();
        self.wanted.send_replace(Some(Arc::new(self.binding.clone())));
    }

    fn release(&mut self, token: &str) {
        let guard = self.binding.removal_guard.as_mut().unwrap();
        guard.released = Some(token.into());
        self.wanted.send_replace(Some(Arc::new(self.binding.clone())));
    }
}

#[tokio::test(start_paused = true)]
async fn rows_whose_objects_are_gone_are_not_guarded() {
    let world = guarded(Some(0), Some(0)).await;
    (0..9).for_each(|uid| assert!(world.kinds["Pod"].remove(&format!("Pod{uid}"))));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((world.holds().len(), world.told()), (1, vec!["written 9 refused 0".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_changed_selection_that_removes_too_much_is_held_until_it_is_released_or_corrected() {
    for (percent, rows) in [(Some(50), None), (None, Some(5)), (Some(100), Some(5))] {
        let mut world = guarded(percent, rows).await;
        world.redefine(2, "two", &[0, 1, 2, 3]);
        world.put("Node", 1, 1);
        time::sleep(Duration::from_mins(30)).await;
        assert_eq!(world.holds().len(), 10, "nothing is written, nothing is removed");
        let told = world.told();
        assert!(told.len() < 200 && told.iter().all(|told| told == "6 of 10 removals held"), "{told:?}");
        // A token of something else releases nothing.
        world.release("one");
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.holds().len(), 10);
        world.release("two");
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.holds(), world.expected());
        world.told();

        // After the correction all rows are still there, and none was removed meanwhile.
        world.redefine(3, "three", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        time::sleep(Duration::from_mins(10)).await;
        assert_eq!(world.holds(), world.expected());
        world.redefine(4, "four", &[]);
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(world.holds().len(), 11);
        world.redefine(5, "three", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        world.put("Node", 1, 2);
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(world.holds(), world.expected());
        assert_eq!(world.told().last().unwrap(), "compared 1 0");
    }
}

#[tokio::test(start_paused = true)]
async fn less_than_the_guard_allows_goes_at_once() {
    let mut world = guarded(Some(50), Some(5)).await;
    world.redefine(2, "two", &[0, 1, 2, 3, 4]);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.holds(), world.expected());
}

#[tokio::test(start_paused = true)]
async fn what_was_removed_while_no_process_ran_is_judged_by_what_the_specs_select() {
    for (selected, held) in [("one", 4), ("two", 10)] {
        let mut world = guarded(Some(50), None).await;
        world.halt(true).await;
        let acknowledged = world.binding.selection.acknowledged();
        assert_eq!(acknowledged.as_deref(), Some("one"));
        // A restarted process that has only the sink and the status, and finds fewer pods.
        let (writer, rows) = store();
        (world.writer, world.rows) = (writer, rows);
        for kind in ["Pod", "Node"] {
            world.kinds.insert(kind, world.writer.rows(&target(), &gvk(kind)));
            world.see(kind, Visibility::Everything);
        }
        (0..4).for_each(|uid| world.put("Pod", uid, 1));
        world.binding.selection = Selection::new(acknowledged);
        world.binding.selected = selected.into();
        world.start();
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.holds().len(), held, "{selected}");
        world.halt(true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn targets_that_leave_are_guarded_too() {
    let mut world = guarded(Some(50), None).await;
    world.binding.targets.clear();
    world.binding.selected = "none".into();
    world.wanted.send_replace(Some(Arc::new(world.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((world.holds().len(), world.told()), (10, vec!["10 of 10 removals held".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_snapshots_waits_for_a_kind_that_is_not_served() {
    let mut world = World::new(Duration::ZERO);
    world.memory.with(|held| held.forgetful = true);
    world.binding.last_checksum = LastChecksum::new(Some("before".into()));
    world.see("Node", Visibility::Everything);
    world.see("Pod", Visibility::Absent);
    world.start();
    world.rest().await;
    assert_eq!(
        (world.writes(), world.told().pop().unwrap().as_str()),
        (0, "held back, blind: Pod of team/pods")
    );
    world.see("Pod", Visibility::Everything);
    world.rest().await;
    assert_eq!(world.writes(), 1);
}
