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
    batch::{Baseline, Batch, InventoryId, Receipt, RefusedRow},
    claim::{Claim, Claimant, TakeOver, WriterProgram},
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
    store::{Changes, KindRows, RowOrigin, StoreWriter, store},
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SinkFault {
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
pub(crate) struct MemorySinkRows {
    pub(crate) rows: Baseline,
    pub(crate) faults: Vec<SinkFault>,
    /// Writes of rows; writes without rows do not count.
    pub(crate) writes: usize,
    opened: usize,
    /// Rows that it cannot hold.
    refused_keys: BTreeSet<RowKey>,
    /// Whether it takes whole snapshots.
    takes_snapshots: bool,
    takes_documents: bool,
    /// How many rows the last batch had besides its delta.
    mentioned: usize,
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
pub(crate) struct MemorySink(Arc<Mutex<MemorySinkRows>>);

impl MemorySink {
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut MemorySinkRows) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn fault(&self) -> Option<SinkFault> {
        self.with(|held| held.faults.pop())
    }

    /// A fault of what comes before a write; those of writes wait.
    fn early_fault(&self) -> Option<SinkFault> {
        let late = [SinkFault::Stall, SinkFault::Crash, SinkFault::CrashWhenForgetting];
        self.with(|held| held.faults.pop_if(|fault| !late.contains(fault)))
    }
}

#[async_trait]
impl OpenSink for MemorySink {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        self.with(|held| held.opened += 1);
        match self.early_fault() {
            Some(fault) => Err(failure(fault)),
            None => Ok(Box::new(self.clone())),
        }
    }
}

fn failure(fault: SinkFault) -> SinkError {
    let reason = if fault == SinkFault::Terminal { SinkReason::Missing } else { SinkReason::WriteFailed };
    SinkError::new(reason, format!("{fault:?}"))
}

#[async_trait]
impl Sink for MemorySink {
    fn delivery(&self) -> Delivery {
        self.with(|held| match (held.takes_snapshots, held.takes_documents) {
            (true, _) => Delivery::Snapshots,
            (_, true) => Delivery::Documents,
            _ => Delivery::Changes,
        })
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
        if let Some(action) = self.with(|held| held.on_claim.take()) {
            action();
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
            Some(SinkFault::Stall) => std::future::pending().await,
            Some(SinkFault::Crash) => unreachable!("this is what a crash looks like"),
            _ => {}
        }
        if let Some(fault @ (SinkFault::Before | SinkFault::Terminal)) = fault {
            return Err(failure(fault));
        }
        time::sleep(Duration::from_millis(20)).await;
        let mut receipt = Receipt::default();
        self.with(|held| {
            batch.coverage.clone_into(&mut held.coverage);
            if held.takes_snapshots {
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
                if held.refused_keys.contains(&row.key) {
                    receipt.refused.push(RefusedRow { key: row.key.clone(), why: "unwelcome".into() });
                    continue;
                }
                held.rows.insert(row.key.clone(), row.digest);
            }
            held.rows.retain(|key, _| !delta.removed.iter().any(|removed| removed.key == *key));
            if held.takes_documents && !held.drifted {
                let differs = |row: &&Arc<Row>| held.rows.get(&row.key) != Some(&row.digest);
                assert!(!batch.rows.values().any(|row| differs(&row)), "all rows and the delta disagree");
                assert!(delta.rows().all(|row| batch.rows.contains_key(&row.key)), "not all rows are there");
                held.mentioned = batch.rows.len();
            }
        });
        fault.map_or(Ok(receipt), |fault| Err(failure(fault)))
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        if let Some(fault) = self.early_fault() {
            return Err(failure(fault));
        }
        let bug = self.with(|held| held.faults.pop_if(|fault| *fault == SinkFault::CrashWhenForgetting));
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

pub(crate) fn binding(sink: &MemorySink) -> Binding {
    let inventory = InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "i".into() };
    Binding {
        generation: 1,
        targets: vec![target()],
        ..Binding::new(inventory, claimant(), "memory".into(), Arc::new(sink.clone()))
    }
}

fn summary(event: &BindingEvent<'_>) -> String {
    match event {
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

struct ExportTest {
    writer: StoreWriter,
    rows: StoreReader,
    kinds: BTreeMap<&'static str, KindRows>,
    memory: MemorySink,
    running: Option<tokio::task::JoinHandle<()>>,
    wanted: watch::Sender<Option<Arc<Binding>>>,
    binding: Binding,
    reported: Arc<Mutex<Vec<String>>>,
}

impl ExportTest {
    fn new(min_change: Duration) -> Self {
        let (writer, rows) = store();
        let kinds = ["Pod", "Node"].map(|kind| (kind, writer.rows(&target(), &gvk(kind)))).into();
        let memory = MemorySink::default();
        let mut binding = binding(&memory);
        binding.cadence.min_change = min_change;
        let (wanted, reported) = (watch::Sender::default(), Arc::default());
        Self { writer, rows, kinds, memory, running: None, wanted, binding, reported }
    }

    fn start(&mut self) {
        self.wanted.send_replace(Some(Arc::new(self.binding.clone())));
        let (rows, wanted, reported) = (self.rows.clone(), self.wanted.subscribe(), self.reported.clone());
        self.running = Some(tokio::spawn(async move {
            let report = |event: BindingEvent<'_>| match event {
                BindingEvent::Claimed(_) | BindingEvent::Passed => {}
                event => reported.lock().unwrap().push(summary(&event)),
            };
            follow(wanted, &rows, &|| true, report).await;
        }));
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *self.reported.lock().unwrap())
    }

    async fn stop(&mut self, gracefully: bool) {
        if let Some(running) = self.running.take() {
            if gracefully {
                self.wanted.send_replace(None);
                running.await.unwrap();
            } else {
                running.abort();
                drop(running.await);
            }
        }
    }

    fn set_visibility(&self, kind: &str, visibility: Visibility) {
        self.kinds[kind].set_visibility(visibility);
    }

    fn put(&self, kind: &str, uid: usize, value: usize) {
        self.kinds[kind].upsert(row(kind, uid, value), RowOrigin::default(), None);
    }

    fn expected(&self) -> Baseline {
        let snapshot = self.rows.snapshot(&[target()], Visibility::Everything).unwrap();
        snapshot.rows.into_iter().map(|(key, row)| (key, row.digest)).collect()
    }

    async fn wait(&self) {
        time::sleep(Duration::from_mins(30)).await;
    }

    fn holds(&self) -> Baseline {
        self.memory.with(|held| held.rows.clone())
    }

    fn writes(&self) -> usize {
        self.memory.with(|held| held.writes)
    }
}

async fn test_with_rows() -> ExportTest {
    let mut test = ExportTest::new(Duration::ZERO);
    test.put("Pod", 1, 1);
    test.put("Node", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.start();
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
    test
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_everything_was_seen() {
    let mut test = ExportTest::new(Duration::ZERO);
    let old = row("Pod", 9, 1);
    test.memory.with(|held| held.rows.insert(old.key.clone(), old.digest));
    test.put("Node", 1, 1);
    test.set_visibility("Node", Visibility::Everything);
    test.start();
    test.wait().await;
    assert_eq!(test.writes(), 0, "pods are still being listed");
    test.set_visibility("Pod", Visibility::Everything);
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
    assert_eq!(test.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_changed_row_is_written_once_and_unchanged_rows_are_not_written() {
    let test = test_with_rows().await;
    let before = test.writes();
    test.wait().await;
    assert_eq!(test.writes(), before, "audits find nothing");
    test.put("Pod", 1, 2);
    test.put("Pod", 1, 3);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (before + 1, test.expected()));
    test.kinds["Pod"].remove("Pod1");
    test.wait().await;
    assert_eq!((test.writes(), test.holds().len()), (before + 2, 1));
    test.kinds["Node"].remove("Node1");
    test.wait().await;
    assert!(test.holds().is_empty(), "no rows are a state, too");
}

#[tokio::test(start_paused = true)]
async fn a_sink_of_documents_gets_all_rows_with_every_change() {
    let test = test_with_rows().await;
    test.memory.with(|held| held.takes_documents = true);
    test.put("Pod", 1, 2);
    test.wait().await;
    assert_eq!((test.memory.with(|held| held.mentioned), test.holds()), (2, test.expected()));
    test.kinds["Node"].remove("Node1");
    test.wait().await;
    assert_eq!((test.memory.with(|held| held.mentioned), test.holds()), (1, test.expected()));
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_changes_writes_nothing() {
    let mut test = test_with_rows().await;
    let before = test.writes();
    for gracefully in [true, false] {
        test.stop(gracefully).await;
        test.start();
        test.wait().await;
    }
    assert_eq!(test.writes(), before);
}

#[tokio::test(start_paused = true)]
async fn rows_that_others_have_changed_in_the_sink_are_repaired() {
    let test = test_with_rows().await;
    test.memory.with(|held| {
        held.rows.clear();
        let foreign_row = row("Pod", 7, 7);
        held.rows.insert(foreign_row.key.clone(), RowDigest(7));
        held.drifted = true;
    });
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_blind_kind_are_not_removed_until_it_can_be_seen() {
    let mut test = test_with_rows().await;
    test.stop(true).await;
    // After a restart pods cannot be seen, and the store knows none.
    let (writer, rows) = store();
    test.kinds = ["Pod", "Node"].map(|kind| (kind, writer.rows(&target(), &gvk(kind)))).into();
    (test.writer, test.rows) = (writer, rows);
    test.set_visibility("Pod", Visibility::Partial);
    test.set_visibility("Node", Visibility::Everything);
    test.start();
    test.wait().await;
    let held: BTreeSet<String> = test.holds().keys().map(|key| key.uid.to_string()).collect();
    assert_eq!(held, ["Pod1".to_owned()].into(), "the node is known to be gone");
    // A row that the sink holds and the store learns of is compared, not counted as new.
    test.events();
    test.put("Pod", 1, 1);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(test.events(), ["compared 0 0"]);
    test.kinds["Pod"].remove("Pod1");
    test.set_visibility("Pod", Visibility::Everything);
    test.wait().await;
    assert!(test.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_added_later_does_not_delay_the_others() {
    let mut test = test_with_rows().await;
    test.kinds.insert("Secret", test.writer.rows(&target(), &gvk("Secret")));
    test.put("Secret", 1, 1);
    test.put("Pod", 1, 2);
    test.wait().await;
    let secrets = |test: &ExportTest| test.holds().keys().filter(|key| &*key.kind == "Secret").count();
    assert_eq!(test.holds()[&row("Pod", 1, 2).key], row("Pod", 1, 2).digest);
    assert_eq!(secrets(&test), 0, "half a list is not written");
    test.put("Secret", 2, 1);
    test.put("Pod", 1, 3);
    test.wait().await;
    assert_eq!(secrets(&test), 0, "nor the next part of it");
    test.set_visibility("Secret", Visibility::Everything);
    test.wait().await;
    assert_eq!(secrets(&test), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_listed_again_while_the_sink_is_claimed_is_written_later() {
    let mut test = ExportTest::new(Duration::ZERO);
    test.put("Pod", 1, 1);
    test.put("Node", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    let pods = test.writer.rows(&target(), &gvk("Pod"));
    test.memory.with(|held| held.on_claim = Some(Box::new(move || pods.set_visibility(Visibility::Pending))));
    test.start();
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!((test.holds().len(), test.events().len()), (1, 1), "pods are being listed");
    test.put("Pod", 1, 2);
    test.set_visibility("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(test.holds(), test.expected());
    assert_eq!(test.events(), ["compared 1 0"], "what the sink does not hold has not changed, it is new");
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_the_interval_and_become_one_write() {
    let mut test = ExportTest::new(Duration::from_secs(10));
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.start();
    test.put("Pod", 1, 0);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.writes(), 1, "the first change is written at once");
    for value in 1..=5 {
        test.put("Pod", 1, value);
        test.put("Pod", value, value);
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(test.writes(), 1);
    // Further changes do not delay it.
    for value in 6..=12 {
        test.put("Pod", 1, value);
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(test.writes(), 2);
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!((test.writes(), test.holds()), (3, test.expected()));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_was_down_for_long_gets_one_write_afterwards() {
    let test = test_with_rows().await;
    let before = test.writes();
    test.memory.with(|held| held.faults = vec![SinkFault::Before; 100]);
    for value in 0..10_000 {
        test.put("Pod", value % 10, value);
    }
    time::sleep(Duration::from_hours(24)).await;
    assert_eq!((test.writes(), test.holds()), (before + 1, test.expected()));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_finishes_the_write() {
    let mut test = test_with_rows().await;
    test.put("Pod", 5, 5);
    time::sleep(Duration::from_millis(5)).await;
    test.stop(true).await;
    assert_eq!(test.holds(), test.expected());
}

#[tokio::test(start_paused = true)]
async fn after_random_faults_the_sink_holds_the_rows() {
    for seed in 1..=150_u64 {
        let mut random = Random(seed * 7919);
        let mut test = ExportTest::new(Duration::from_millis(if seed % 2 == 0 { 0 } else { 300 }));
        test.memory.with(|held| held.takes_documents = seed % 3 == 0);
        // Without audits nothing hides a change that was lost; nor is drift found.
        let audited = random.below(2) == 0;
        test.binding.cadence.audit = test.binding.cadence.audit.filter(|_| audited);
        ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
        test.start();
        for _ in 0..60 {
            let kind = random.pick(&["Pod", "Node"]);
            match random.below(12) {
                0..5 => test.put(kind, random.below(6), random.below(3)),
                5..7 => drop(test.kinds[kind].remove(&format!("{kind}{}", random.below(6)))),
                7 => {
                    let fault = [SinkFault::Before, SinkFault::After, SinkFault::Terminal][random.below(3)];
                    test.memory.with(|held| held.faults.push(fault));
                }
                8 if audited => test.memory.with(|held| {
                    let row = row(kind, random.below(6), 9);
                    held.rows.insert(row.key.clone(), RowDigest(9));
                    held.drifted = true;
                }),
                9 => {
                    test.stop(random.below(2) == 0).await;
                    test.start();
                }
                10 => {
                    test.set_visibility(kind, Visibility::Partial);
                    test.set_visibility(kind, Visibility::Everything);
                }
                _ => time::sleep(Duration::from_millis(random.below(400) as u64)).await,
            }
            time::sleep(Duration::from_millis(random.below(30) as u64)).await;
        }
        test.memory.with(|held| held.faults.clear());
        test.wait().await;
        assert_eq!(test.holds(), test.expected(), "seed {seed}");
        test.stop(false).await;
    }
}

impl ExportTest {
    /// Another writer claims the inventory.
    fn claimed_by(&self, writer: WriterProgram, owner: &str) {
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
    let mut test = test_with_rows().await;
    test.events();
    let row = row("Pod", 8, 8);
    test.claimed_by(WriterProgram::Cli, "c1");
    test.memory.with(|held| held.rows.insert(row.key.clone(), row.digest));
    let before = test.holds();
    test.put("Pod", 1, 7);
    test.wait().await;
    assert_eq!(test.holds(), before);
    let events = test.events();
    assert!(
        (3..20).contains(&events.len()) && events.iter().all(|event| event == "failed Fenced"),
        "{events:?}"
    );
    test.memory.with(|held| held.drifted = true);
    test.binding.requested = Some("now".into());
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_of_another_operator_stops_the_leader_for_seconds_only() {
    let test = test_with_rows().await;
    test.events();
    test.claimed_by(WriterProgram::Operator, "c1");
    test.put("Pod", 1, 7);
    time::sleep(Duration::from_secs(6)).await;
    assert_eq!(test.events(), ["failed Fenced", "compared 1 0"]);
    assert_eq!(test.holds(), test.expected());
}

#[tokio::test(start_paused = true)]
async fn two_operators_that_fence_each_other_do_so_less_and_less_often() {
    let test = test_with_rows().await;
    test.events();
    for _ in 0..1000 {
        test.claimed_by(WriterProgram::Operator, "c1");
        time::sleep(Duration::from_secs(10)).await;
    }
    let fenced = test.events().iter().filter(|event| *event == "failed Fenced").count();
    // Nearly three hours: every five minutes at the most, and a few times at the beginning.
    assert!((20..60).contains(&fenced), "{fenced}");
}

#[tokio::test(start_paused = true)]
async fn an_inventory_of_another_owner_is_not_written_and_not_claimed_back() {
    let test = test_with_rows().await;
    test.events();
    test.claimed_by(WriterProgram::Operator, "c2");
    let before = test.holds();
    test.put("Pod", 1, 7);
    test.wait().await;
    let events = test.events();
    assert_eq!(events[..2], ["failed Fenced", "failed OwnedByOther"]);
    assert_eq!((test.holds(), test.owner().as_deref()), (before, Some("c2")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_found_without_a_write() {
    let test = test_with_rows().await;
    let reads = test.memory.with(|held| held.claim_reads);
    time::sleep(Duration::from_mins(10)).await;
    let reads = test.memory.with(|held| held.claim_reads) - reads;
    assert!((7..=13).contains(&reads), "once a minute: {reads}");
    test.events();
    test.claimed_by(WriterProgram::Operator, "c2");
    time::sleep(Duration::from_secs(90)).await;
    assert!(test.events().contains(&"failed Fenced".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_was_restored_is_claimed_again_and_compared() {
    let test = test_with_rows().await;
    let old = test.memory.with(|held| (held.rows.clone(), held.claim.clone()));
    let older = Claim { epoch: 0, writer_id: Some("older".into()), ..old.1.clone().unwrap() };
    // With the claim that it had then, with one of before, with none; noticed by a write, or by looking.
    for claim in [old.1, Some(older), None] {
        for with_a_write in [true, false] {
            test.put("Pod", 1, 5);
            test.put("Pod", 2, 5);
            time::sleep(Duration::from_secs(1)).await;
            test.events();
            let epoch = test.memory.with(|held| {
                let epoch = held.claim.as_ref().unwrap().epoch;
                (held.rows, held.claim, held.drifted) = (old.0.clone(), claim.clone(), true);
                epoch
            });
            let seconds = if with_a_write { 1 } else { 90 };
            if with_a_write {
                test.put("Pod", 3, 3);
            }
            time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(test.events()[0], "claim lost", "{claim:?}");
            assert_eq!(test.holds(), test.expected(), "{claim:?}");
            assert!(test.memory.with(|held| held.claim.as_ref().unwrap().epoch) > epoch);
            test.kinds["Pod"].remove("Pod2");
            test.kinds["Pod"].remove("Pod3");
            time::sleep(Duration::from_mins(20)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_bindings_of_a_sink_check_their_claims_together() {
    let test = test_with_rows().await;
    let mut others = Vec::new();
    for number in 0..20 {
        let mut other = ExportTest::new(Duration::ZERO);
        other.memory = test.memory.clone();
        other.binding = Binding {
            sink: Arc::new(SharedSink(test.memory.clone())),
            claim_checks: test.binding.claim_checks.clone(),
            ..test.binding.clone()
        };
        other.binding.inventory.name = format!("i{number}");
        other.binding.current = CurrentClaim::default();
        ["Pod", "Node"].iter().for_each(|kind| other.set_visibility(kind, Visibility::Everything));
        other.start();
        others.push(other);
    }
    time::sleep(Duration::from_mins(5)).await;
    let reads = test.memory.with(|held| held.claim_reads);
    time::sleep(Duration::from_mins(10)).await;
    let reads = test.memory.with(|held| held.claim_reads) - reads;
    assert!((8..=20).contains(&reads), "{reads} requests of 21 bindings in ten minutes");
}

/// A sink that several inventories use, each with a claim of its own that is never lost.
struct SharedSink(MemorySink);

#[async_trait]
impl OpenSink for SharedSink {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Self(self.0.clone())))
    }
}

#[async_trait]
impl Sink for SharedSink {
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
    Claimant { owner: Some("c1".into()), writer: WriterProgram::Operator, ..Claimant::default() }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_lead_claims_and_writes_nothing() {
    let mut test = ExportTest::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.put("Pod", 1, 1);
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    let (leads, reported) = (Arc::new(AtomicBool::new(false)), test.reported.clone());
    let run = |test: &ExportTest| {
        let (rows, wanted, leads) = (test.rows.clone(), test.wanted.subscribe(), leads.clone());
        let reported = reported.clone();
        async move {
            let may_write = move || leads.load(Relaxed);
            follow(wanted, &rows, &may_write, |event| reported.lock().unwrap().push(summary(&event))).await;
        }
    };
    // It ends by itself.
    run(&test).await;
    assert_eq!((test.memory.with(|held| held.claim.clone()), test.events()), (None, vec![]));
    leads.store(true, Relaxed);
    let running = tokio::spawn(run(&test));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.events(), ["claimed", "compared 1 0"]);
    leads.store(false, Relaxed);
    test.put("Pod", 2, 2);
    running.await.unwrap();
    assert_eq!((test.holds().len(), test.events()), (1, vec![]));
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn an_inventory_without_targets_empties_the_sink() {
    let test = ExportTest::new(Duration::ZERO);
    let old = row("Pod", 1, 1);
    test.memory.with(|held| held.rows.insert(old.key.clone(), old.digest));
    let mut test = test;
    test.binding.targets.clear();
    test.start();
    test.wait().await;
    assert!(test.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refused_row_is_reported_and_the_others_are_written() {
    let mut test = test_with_rows().await;
    let refused = row("Pod", 7, 1);
    test.memory.with(|held| held.refused_keys.insert(refused.key.clone()));
    test.events();
    test.put("Pod", 7, 1);
    test.put("Pod", 8, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert!(test.events().contains(&"written 2 refused 1".to_owned()));
    test.put("Pod", 9, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.events(), ["written 1 refused 1"], "another write does not make it fit");
    let mut expected = test.expected();
    expected.remove(&refused.key);
    assert_eq!(test.holds(), expected);
    // Audits try it again, and do not take it for drift.
    time::sleep(Duration::from_mins(11)).await;
    assert_eq!(test.events(), ["compared 1 0"]);
    test.memory.with(|held| held.refused_keys.clear());
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_distinguished_from_changes() {
    let test = test_with_rows().await;
    test.events();
    test.memory.with(|held| {
        held.rows.pop_first();
        held.rows.insert(row("Pod", 7, 7).key, RowDigest(7));
        held.drifted = true;
    });
    time::sleep(Duration::from_mins(11)).await;
    assert_eq!(test.events()[0], "compared 2 2");
    assert_eq!(test.holds(), test.expected());
    // What could not be seen for a while is no drift.
    test.set_visibility("Pod", Visibility::Partial);
    test.put("Pod", 2, 2);
    test.set_visibility("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    assert!(test.events().iter().all(|event| event.ends_with(" 0")));
}

#[tokio::test(start_paused = true)]
async fn the_bindings_of_a_sink_share_its_circuit_breaker() {
    let mut test = test_with_rows().await;
    let mut other = ExportTest::new(Duration::ZERO);
    other.binding.breaker = test.binding.breaker.clone();
    other.memory = test.memory.clone();
    ["Pod", "Node"].iter().for_each(|kind| other.set_visibility(kind, Visibility::Everything));
    test.memory.with(|held| held.faults = vec![SinkFault::Before; 1000]);
    test.put("Pod", 1, 2);
    // Connecting counts too: only the first attempt is a write.
    time::sleep(Duration::from_secs(40)).await;
    let opened = test.memory.with(|held| held.opened);
    assert!((5..=7).contains(&opened), "{opened}");
    other.binding.sink = Arc::new(other.memory.clone());
    other.start();
    let before = test.memory.with(|held| held.opened);
    time::sleep(Duration::from_secs(20)).await;
    assert!(other.events().iter().all(|event| event == "paused"));
    assert!(test.memory.with(|held| held.opened) <= before + 1, "one attempt per pause");
    // When the sink works for one binding, it works for all.
    other.stop(false).await;
    test.memory.with(|held| held.faults.clear());
    test.wait().await;
    assert_eq!(test.holds(), test.expected());
    assert_eq!(test.binding.breaker.admit(Instant::now()), Ok(()));
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_is_used_at_once_even_after_a_terminal_error() {
    let mut test = test_with_rows().await;
    test.memory.with(|held| held.faults = vec![SinkFault::Terminal; 1000]);
    // Another password: the old session is not used any more.
    test.binding.sink = Arc::new(test.memory.clone());
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.events().last().unwrap(), "failed Missing");
    test.put("Pod", 1, 9);
    time::sleep(Duration::from_secs(50)).await;
    assert!(test.events().is_empty(), "no attempt before the pause is over");
    // Every minute for the first ten, then every five.
    time::sleep(Duration::from_secs(590)).await;
    assert_eq!(test.events(), ["failed Missing"; 10]);
    time::sleep(Duration::from_mins(10)).await;
    assert_eq!(test.events(), ["failed Missing"; 2]);
    test.memory.with(|held| held.faults.clear());
    let opened = test.memory.with(|held| held.opened);
    test.binding.sink = Arc::new(test.memory.clone());
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((test.holds(), test.memory.with(|held| held.opened)), (test.expected(), opened + 1));
    // A change of only the inventory needs no new session.
    test.binding.generation += 1;
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.memory.with(|held| held.opened), opened + 1);
    assert_eq!(test.events().last().unwrap(), "compared 0 0");
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn the_rows_of_a_target_are_added_and_removed_with_it() {
    let mut test = test_with_rows().await;
    let late = TargetId { namespace: Some("team".into()), name: "late".into() };
    let rows = test.writer.rows(&late, &gvk("Secret"));
    let mut key = row("Secret", 1, 1);
    key.key.target = late.clone();
    let joined = Row::new(key.key, "v1".into(), "n".into(), key.attributes);
    rows.upsert(joined.clone(), RowOrigin::default(), None);
    test.binding.targets.push(late);
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    test.put("Pod", 1, 5);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.holds(), test.expected(), "the others go on");
    rows.set_visibility(Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.holds().get(&joined.key), Some(&joined.digest));
    test.binding.targets.pop();
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.holds(), test.expected());
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_for_snapshots_gets_no_snapshot_twice() {
    let mut test = ExportTest::new(Duration::ZERO);
    test.memory.with(|held| held.takes_snapshots = true);
    test.put("Pod", 1, 1);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.start();
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (1, test.expected()));
    test.put("Pod", 2, 1);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (2, test.expected()));
    test.kinds["Pod"].remove("Pod1");
    test.kinds["Pod"].remove("Pod2");
    test.wait().await;
    assert_eq!((test.writes(), test.holds().len()), (3, 0), "zero rows are a snapshot");
    test.stop(true).await;

    // After a restart nothing can be read back; what was sent last is known from the status.
    test.put("Node", 1, 1);
    test.binding.last_checksum = LastChecksum::new(Some(String::new()));
    test.set_visibility("Pod", Visibility::Partial);
    test.start();
    test.wait().await;
    assert_eq!(test.writes(), 3, "rows of pods may be missing");
    assert_eq!(test.events().last().unwrap(), "held back, blind: Pod of team/pods");
    test.set_visibility("Pod", Visibility::Everything);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (4, test.expected()));
    // What is listed again is missing until the list is complete.
    test.kinds.insert("Secret", test.writer.rows(&target(), &gvk("Secret")));
    test.put("Secret", 1, 1);
    test.wait().await;
    assert_eq!(test.writes(), 4);
    test.set_visibility("Secret", Visibility::Everything);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (5, test.expected()));
    test.writer.rows(&target(), &gvk("Secret")).set_visibility(Visibility::Pending);
    test.put("Node", 7, 1);
    test.wait().await;
    assert_eq!(test.writes(), 5, "rows that were known are being listed again");
    test.set_visibility("Secret", Visibility::Everything);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (6, test.expected()));
    // Once they have been seen, they are known even while they are frozen.
    test.set_visibility("Pod", Visibility::Partial);
    test.put("Node", 2, 1);
    test.wait().await;
    assert_eq!((test.writes(), test.holds()), (7, test.expected()));
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_records_what_could_be_seen() {
    let test = test_with_rows().await;
    assert_eq!(test.memory.with(|held| held.coverage.clone()), "complete");
    test.set_visibility("Pod", Visibility::AllBut(["a".into(), "b".into()].into()));
    test.wait().await;
    assert_eq!(
        test.memory.with(|held| held.coverage.clone()),
        "blind: Pod of team/pods in 2 namespaces (a and b)"
    );
    let within = Visibility::Within(["a".into()].into());
    let seen = [((target(), Arc::from("apps"), Arc::from("Deployment")), within.clone())].into();
    assert_eq!(coverage(&seen, &within, 0), "complete", "the run looks nowhere else");
    assert_eq!(
        coverage(&seen, &Visibility::Everything, 0),
        "blind: Deployment.apps of team/pods but in namespace a"
    );
}

#[tokio::test(start_paused = true)]
async fn of_several_rows_of_an_object_only_that_of_the_first_target_is_written() {
    let mut test = test_with_rows().await;
    test.binding.row_filter.one_row_per_object = true;
    let other_row = |name: &str, value: usize| {
        let row = row("Pod", 1, value);
        let target = TargetId { namespace: Some("team".into()), name: name.into() };
        let key = RowKey { target, ..row.key };
        Row::new(key, row.version, row.name, row.attributes)
    };
    let targets = ["another", "zebra"].map(|name| other_row(name, 1).key.target);
    let rows = targets.each_ref().map(|target| test.writer.rows(target, &gvk("Pod")));
    rows.iter().for_each(|rows| rows.set_visibility(Visibility::Everything));
    rows[1].upsert(other_row("zebra", 1), RowOrigin::default(), None);
    test.binding.targets.extend(targets.clone());
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    let pods = |test: &ExportTest| -> Vec<String> {
        let held = test.holds();
        held.keys().filter(|key| &*key.kind == "Pod").map(|key| key.target.name.to_string()).collect()
    };
    assert_eq!(pods(&test), ["pods"]);
    // The row of the target whose name sorts first is written, whenever it came; without it the next one is.
    rows[0].upsert(other_row("another", 1), RowOrigin::default(), None);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&test), ["another"]);
    rows[0].remove("Pod1");
    test.kinds["Pod"].remove("Pod1");
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pods(&test), ["zebra"]);
    // Namespaces that do not belong to the inventory.
    test.binding.row_filter.namespaces = Some(["b".into()].into());
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert!(test.holds().is_empty());
    test.put("Node", 5, 5);
    time::sleep(Duration::from_secs(1)).await;
    assert!(test.holds().is_empty());
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn the_digest_does_not_depend_on_the_order_of_changes() {
    let (mut one, mut other) = (ExportTest::new(Duration::ZERO), ExportTest::new(Duration::ZERO));
    for uid in 0..20 {
        one.put("Pod", uid, uid);
        other.put("Pod", 19 - uid, 7);
        other.put("Pod", 19 - uid, 19 - uid);
    }
    for test in [&mut one, &mut other] {
        ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
        test.start();
    }
    let digest = async |test: &ExportTest| {
        time::sleep(Duration::from_secs(1)).await;
        let held = test.holds();
        let Acknowledged { rows, digest, .. } = test.binding.progress.read().acknowledged.unwrap();
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
    one.stop(true).await;
    other.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_kind_that_is_being_listed_wake_no_binding_until_all_of_them_are_there() {
    let test = ExportTest::new(Duration::ZERO);
    test.set_visibility("Pod", Visibility::Everything);
    let mut changes = test.rows.changes(&[target()]);
    let woken = |changes: &Changes| changes.ready().now_or_never().is_some();
    let wakes = (0..1000).filter(|uid| {
        test.put("Node", *uid, 1);
        woken(&changes)
    });
    assert_eq!(wakes.count(), 0);
    assert!(changes.is_empty(), "there is nothing to write yet");
    test.put("Pod", 0, 1);
    assert!(woken(&changes), "others need not wait");
    assert_eq!(changes.take().len(), 1);
    assert!(!woken(&changes));
    test.set_visibility("Node", Visibility::Everything);
    assert!(woken(&changes));
    assert_eq!(changes.take().len(), 1000);
    assert!(changes.is_empty());
}

/// Ten pods that a definition of the target has made, in a sink whose binding has a guard.
async fn guarded(percent: Option<u32>, rows: Option<usize>) -> ExportTest {
    let mut test = ExportTest::new(Duration::ZERO);
    test.binding.removal_guard = Some(RemovalGuard { percent, rows, released: None });
    test.binding.selected = "one".into();
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    let pods = test.writer.rows(&target(), &gvk("Pod")).for_definition(1);
    for uid in 0..10 {
        pods.upsert(row("Pod", uid, 1), RowOrigin { definition: 1, ..RowOrigin::default() }, None);
    }
    test.kinds.insert("Pod", pods);
    test.start();
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.events(), ["compared 10 0"]);
    test
}

impl ExportTest {
    /// The target is defined in another way, and selects only these of its pods.
    fn redefine(&mut self, definition: u32, selected: &str, pods: &[usize]) {
        let rows = self.writer.rows(&target(), &gvk("Pod")).for_definition(definition);
        for uid in 0..10 {
            if pods.contains(&uid) {
                rows.upsert(row("Pod", uid, 1), RowOrigin { definition, ..RowOrigin::default() }, None);
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
    let test = guarded(Some(0), Some(0)).await;
    (0..9).for_each(|uid| assert!(test.kinds["Pod"].remove(&format!("Pod{uid}"))));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((test.holds().len(), test.events()), (1, vec!["written 9 refused 0".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_changed_selection_that_removes_too_much_is_held_until_it_is_released_or_corrected() {
    for (percent, rows) in [(Some(50), None), (None, Some(5)), (Some(100), Some(5))] {
        let mut test = guarded(percent, rows).await;
        test.redefine(2, "two", &[0, 1, 2, 3]);
        test.put("Node", 1, 1);
        time::sleep(Duration::from_mins(30)).await;
        assert_eq!(test.holds().len(), 10, "nothing is written, nothing is removed");
        let events = test.events();
        assert!(
            events.len() < 200 && events.iter().all(|event| event == "6 of 10 removals held"),
            "{events:?}"
        );
        // A token of something else releases nothing.
        test.release("one");
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(test.holds().len(), 10);
        test.release("two");
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(test.holds(), test.expected());
        test.events();

        // After the correction all rows are still there, and none was removed meanwhile.
        test.redefine(3, "three", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        time::sleep(Duration::from_mins(10)).await;
        assert_eq!(test.holds(), test.expected());
        test.redefine(4, "four", &[]);
        time::sleep(Duration::from_mins(1)).await;
        assert_eq!(test.holds().len(), 11);
        test.redefine(5, "three", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        test.put("Node", 1, 2);
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(test.holds(), test.expected());
        assert_eq!(test.events().last().unwrap(), "compared 1 0");
    }
}

#[tokio::test(start_paused = true)]
async fn removals_within_the_limits_of_the_guard_are_written_at_once() {
    let mut test = guarded(Some(50), Some(5)).await;
    test.redefine(2, "two", &[0, 1, 2, 3, 4]);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.holds(), test.expected());
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_removals_are_held_if_the_specs_select_something_else() {
    for (selected, held) in [("one", 4), ("two", 10)] {
        let mut test = guarded(Some(50), None).await;
        test.stop(true).await;
        let acknowledged = test.binding.selection.acknowledged();
        assert_eq!(acknowledged.as_deref(), Some("one"));
        // A restarted process that has only the sink and the status, and finds fewer pods.
        let (writer, rows) = store();
        (test.writer, test.rows) = (writer, rows);
        for kind in ["Pod", "Node"] {
            test.kinds.insert(kind, test.writer.rows(&target(), &gvk(kind)));
            test.set_visibility(kind, Visibility::Everything);
        }
        (0..4).for_each(|uid| test.put("Pod", uid, 1));
        test.binding.selection = SelectionDigests::new(acknowledged);
        test.binding.selected = selected.into();
        test.start();
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(test.holds().len(), held, "{selected}");
        test.stop(true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn rows_of_removed_targets_are_guarded_too() {
    let mut test = guarded(Some(50), None).await;
    test.binding.targets.clear();
    test.binding.selected = "none".into();
    test.wanted.send_replace(Some(Arc::new(test.binding.clone())));
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((test.holds().len(), test.events()), (10, vec!["10 of 10 removals held".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_snapshots_waits_for_a_kind_that_is_not_served() {
    let mut test = ExportTest::new(Duration::ZERO);
    test.memory.with(|held| held.takes_snapshots = true);
    test.binding.last_checksum = LastChecksum::new(Some("before".into()));
    test.set_visibility("Node", Visibility::Everything);
    test.set_visibility("Pod", Visibility::Absent);
    test.start();
    test.wait().await;
    assert_eq!(
        (test.writes(), test.events().pop().unwrap().as_str()),
        (0, "held back, blind: Pod of team/pods")
    );
    test.set_visibility("Pod", Visibility::Everything);
    test.wait().await;
    assert_eq!(test.writes(), 1);
}
