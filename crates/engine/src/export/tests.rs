//! Bindings against a sink that fails before, after and in the middle of everything: when it has had
//! its rest, it holds exactly the rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use kollect_model::{
    batch::{Baseline, Receipt},
    crd::shapes::Gvk,
    row::{Row, RowDigest, RowKey},
};
use serde_json::{json, value::to_raw_value};

use super::*;
use crate::{
    random::Random,
    store::{KindRows, Origin, StoreWriter, store},
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The sink fails and has done nothing.
    Before,
    /// The sink fails and has done everything.
    After,
    /// The sink refuses until somebody changes something.
    Terminal,
}

#[derive(Default)]
struct Held {
    rows: Baseline,
    faults: Vec<Fault>,
    writes: usize,
    epoch: i64,
    /// Somebody else has changed the rows since they were last read.
    drifted: bool,
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Held>>);

impl Memory {
    fn with<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn fault(&self) -> Option<Fault> {
        self.with(|held| held.faults.pop())
    }

    fn open(&self) -> std::future::Ready<Result<Box<dyn Sink>, SinkError>> {
        std::future::ready(match self.fault() {
            Some(fault) => Err(failure(fault)),
            None => Ok(Box::new(self.clone())),
        })
    }
}

fn failure(fault: Fault) -> SinkError {
    let reason = if fault == Fault::Terminal { SinkReason::Missing } else { SinkReason::WriteFailed };
    SinkError::new(reason, format!("{fault:?}"))
}

#[async_trait]
impl Sink for Memory {
    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        match self.fault() {
            Some(fault) => Err(failure(fault)),
            None => Ok(self.with(|held| {
                held.drifted = false;
                held.rows.clone()
            })),
        }
    }

    async fn claim(&self, _: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        if let Some(fault) = self.fault() {
            return Err(failure(fault));
        }
        let epoch = self.with(|held| {
            held.epoch += 1;
            held.epoch
        });
        Ok(Claim { owner: claimant.owner.clone(), epoch })
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        if batch.claim.epoch != self.with(|held| held.epoch) {
            return Err(SinkError::new(SinkReason::Fenced, "somebody else has claimed it"));
        }
        let fault = self.fault();
        if matches!(fault, Some(Fault::Before | Fault::Terminal)) {
            return Err(failure(Fault::Before));
        }
        time::sleep(Duration::from_millis(20)).await;
        self.with(|held| {
            held.writes += 1;
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
                held.rows.insert(row.key.clone(), row.digest);
            }
            delta.removed.iter().for_each(|row| drop(held.rows.remove(&row.key)));
        });
        fault.map_or(Ok(Receipt::default()), |fault| Err(failure(fault)))
    }

    async fn forget(&self, _: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        if let Some(fault) = self.fault() {
            return Err(failure(fault));
        }
        assert_eq!(claim.epoch, self.with(|held| held.epoch));
        self.with(|held| held.rows.clear());
        Ok(())
    }
}

fn target() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "pods".into() }
}

fn gvk(kind: &str) -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: kind.into() }
}

fn row(kind: &str, uid: usize, value: usize) -> Row {
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

fn binding(min_change: Duration, audit: Option<Duration>) -> Binding {
    Binding {
        inventory: InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "i".into() },
        claimant: Claimant::default(),
        targets: vec![target()],
        cadence: Cadence { min_change, audit },
        rest: Sight::Everything,
    }
}

struct World {
    writer: StoreWriter,
    rows: StoreReader,
    kinds: BTreeMap<&'static str, KindRows>,
    memory: Memory,
    running: Option<tokio::task::JoinHandle<()>>,
    stop: watch::Sender<bool>,
    min_change: Duration,
    audit: Option<Duration>,
}

impl World {
    fn new(min_change: Duration) -> Self {
        let (writer, rows) = store();
        let kinds = ["Pod", "Node"].map(|kind| (kind, writer.rows(&target(), &gvk(kind)))).into();
        let (memory, stop) = (Memory::default(), watch::Sender::default());
        let audit = Some(Duration::from_mins(10));
        Self { writer, rows, kinds, memory, running: None, stop, min_change, audit }
    }

    fn start(&mut self) {
        self.stop.send_replace(false);
        let (rows, memory, stop) = (self.rows.clone(), self.memory.clone(), self.stop.subscribe());
        let binding = binding(self.min_change, self.audit);
        self.running = Some(tokio::spawn(async move {
            binding.follow(&rows, || memory.open(), stop, |_| {}).await;
        }));
    }

    async fn halt(&mut self, gently: bool) {
        if let Some(running) = self.running.take() {
            if gently {
                self.stop.send_replace(true);
                running.await.unwrap();
            } else {
                running.abort();
                drop(running.await);
            }
        }
    }

    fn see(&self, kind: &str, sight: Sight) {
        self.kinds[kind].set_sight(sight);
    }

    fn put(&self, kind: &str, uid: usize, value: usize) {
        self.kinds[kind].upsert(row(kind, uid, value), Origin::default());
    }

    fn expected(&self) -> Baseline {
        let snapshot = self.rows.snapshot(&[target()], Sight::Everything).unwrap();
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
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Sight::Everything));
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
    world.see("Node", Sight::Everything);
    world.start();
    world.rest().await;
    assert_eq!(world.writes(), 0, "pods are still being listed");
    world.see("Pod", Sight::Everything);
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
    world.see("Pod", Sight::Partial);
    world.see("Node", Sight::Everything);
    world.start();
    world.rest().await;
    let held: BTreeSet<String> = world.holds().keys().map(|key| key.uid.to_string()).collect();
    assert_eq!(held, ["Pod1".to_owned()].into(), "the node is known to be gone");
    world.see("Pod", Sight::Everything);
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
    world.see("Secret", Sight::Everything);
    world.rest().await;
    assert_eq!(secrets(&world), 2);
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_the_interval_and_become_one_write() {
    let mut world = World::new(Duration::from_secs(10));
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Sight::Everything));
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
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!((world.writes(), world.holds()), (2, world.expected()));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_down_for_long_costs_one_write_afterwards() {
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
        world.audit = world.audit.filter(|_| audited);
        ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Sight::Everything));
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
                    world.see(kind, Sight::Partial);
                    world.see(kind, Sight::Everything);
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

#[tokio::test(start_paused = true)]
async fn a_late_writer_is_fenced_and_gives_up() {
    let mut world = filled().await;
    // Somebody else claims the inventory, and writes.
    let row = row("Pod", 8, 8);
    world.memory.with(|held| {
        held.epoch += 1;
        held.rows.insert(row.key.clone(), row.digest);
    });
    let before = world.holds();
    world.put("Pod", 1, 7);
    world.rest().await;
    assert_eq!(world.holds(), before);
    assert!(world.running.take().unwrap().is_finished());
}

#[tokio::test(start_paused = true)]
async fn law_6_an_inventory_without_targets_empties_the_sink() {
    let world = World::new(Duration::ZERO);
    let old = row("Pod", 1, 1);
    world.memory.with(|held| held.rows.insert(old.key.clone(), old.digest));
    let nobody = Binding { targets: Vec::new(), ..binding(Duration::ZERO, None) };
    let (rows, memory, stop) = (world.rows.clone(), world.memory.clone(), world.stop.subscribe());
    let running = tokio::spawn(async move {
        nobody.follow(&rows, || memory.open(), stop, |_| {}).await;
    });
    world.rest().await;
    running.abort();
    assert!(world.holds().is_empty());
}
