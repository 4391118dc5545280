//! Bindings that come, go, move and pause, and what they leave.

use std::sync::Mutex;

use kollect_model::{
    binding::InventoryName,
    claim::{Claim, Claimant, TakeOver, WriterProgram},
    row::RowKey,
};

use super::*;
use crate::{
    export::{
        CleaningOutcome, CurrentClaim, SiblingBinding,
        tests::{MemorySink, SinkFault, binding, gvk, row, target},
    },
    store::{KindRows, RowOrigin, StoreWriter, Visibility, store},
};

struct DeliverTest {
    deliveries: Deliveries,
    store: StoreWriter,
    pods: KindRows,
    wanted: BTreeMap<BindingName, WantedBinding>,
    abandoned: Vec<AbandonedDestination>,
    reported: Arc<Mutex<Vec<String>>>,
    tasks: Tasks,
}

impl DeliverTest {
    fn new() -> Self {
        let (store, rows) = store();
        let pods = store.rows(&target(), &gvk("Pod"));
        pods.set_visibility(Visibility::Everything);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let log = reported.clone();
        let tasks = Tasks::default();
        let deliveries = Deliveries::new(rows, tasks.clone(), Arc::new(|| true), move |name, _, event| {
            let text = match event {
                BindingEvent::Failed { error, .. } if error.to_string().contains("panicked") => "panicked",
                BindingEvent::NotCleaned { error, .. } if error.to_string().contains("panicked") => {
                    "not cleaned, panicked"
                }
                BindingEvent::Compared(_) => "compared",
                BindingEvent::Cleaned { cleaned: CleaningOutcome::NotOurs, .. } => "not ours",
                BindingEvent::Cleaned { cleaned: CleaningOutcome::SameAs(_), .. } => "the same",
                BindingEvent::Cleaned { moved: false, .. } => "cleaned",
                BindingEvent::Cleaned { moved: true, .. } => "moved",
                BindingEvent::NotCleaned { .. } => "not cleaned",
                BindingEvent::Failed { .. } => "failed",
                _ => return,
            };
            log.lock().unwrap().push(format!("{} {text}", name.sink));
        });
        let (wanted, abandoned) = (BTreeMap::new(), Vec::new());
        let test = Self { deliveries, store, pods, wanted, abandoned, reported, tasks };
        test.put(1, 1);
        test
    }

    fn put(&self, uid: usize, value: usize) {
        self.pods.upsert(row("Pod", uid, value), RowOrigin::default(), None);
    }

    /// Adds a binding to a destination, or replaces it.
    fn add(&mut self, name: &str, destination: &str, sink: &MemorySink) -> &mut WantedBinding {
        let binding = Binding { destination: destination.into(), ..binding(sink) };
        let wanted = WantedBinding { binding: Arc::new(binding), suspended: false };
        self.wanted.entry(named(name)).insert_entry(wanted).into_mut()
    }

    /// A binding is not wanted any more, and what it wrote must be removed.
    fn abandon(&mut self, name: &str) -> &mut AbandonedDestination {
        let WantedBinding { binding, .. } = self.wanted.remove(&named(name)).unwrap();
        let (name, others) = (named(name), Vec::new());
        self.abandoned.push(AbandonedDestination { name, binding, was_granted: true, others, moved: false });
        self.abandoned.last_mut().unwrap()
    }

    /// A binding that another one may be the same as.
    fn sibling(&self, name: &str) -> SiblingBinding {
        let WantedBinding { binding, .. } = &self.wanted[&named(name)];
        SiblingBinding { name: name.into(), current: binding.current.clone(), sink: binding.sink.clone() }
    }

    fn apply(&mut self) -> BTreeMap<BindingName, BindingName> {
        self.deliveries.set(self.wanted.clone(), self.abandoned.clone())
    }

    async fn set(&mut self) {
        drop(self.apply());
        time::sleep(Duration::from_secs(5)).await;
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *self.reported.lock().unwrap())
    }
}

/// The name of a binding of the one inventory.
fn named(sink: &str) -> BindingName {
    let inventory = InventoryName { namespace: Some("team".into()), name: "inventory".into() };
    BindingName { inventory, sink: sink.into() }
}

fn held(sink: &MemorySink) -> usize {
    sink.with(|held| held.rows.len())
}

#[tokio::test(start_paused = true)]
async fn a_removed_reference_leaves_nothing_behind() {
    let mut test = DeliverTest::new();
    let (one, two) = (MemorySink::default(), MemorySink::default());
    test.add("one", "a", &one);
    test.add("two", "b", &two);
    test.set().await;
    assert_eq!((held(&one), held(&two)), (1, 1));
    test.abandon("two");
    test.put(2, 2);
    test.set().await;
    assert_eq!((held(&one), held(&two)), (2, 0));
    assert_eq!(two.with(|held| held.claim.clone()), None);
    assert_eq!(test.events().last().unwrap(), "two cleaned");
    test.put(3, 3);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!((held(&one), held(&two)), (3, 0), "and it is not written again");
}

#[tokio::test(start_paused = true)]
async fn rows_that_wait_for_another_kind_stay_when_their_sink_moves() {
    let mut test = DeliverTest::new();
    let (old, new) = (MemorySink::default(), MemorySink::default());
    test.add("one", "a", &old);
    test.set().await;
    // A process that starts now knows only the kind that the target selects now, which is not served.
    test.add("one", "a", &old).suspended = true;
    test.set().await;
    test.store.remove_target(&target());
    let misspelt = gvk("Pood");
    let poods = test.store.rows(&target(), &misspelt);
    poods.set_visibility(Visibility::Absent);
    test.abandon("one").moved = true;
    test.add("one", "b", &new);
    test.set().await;
    assert_eq!((held(&old), held(&new)), (1, 0));
    assert!(old.with(|held| held.claim.clone()).is_some_and(|claim| claim.epoch == 1), "nothing was written");
    assert_eq!(test.events(), ["one compared", "one not cleaned", "one compared"]);
    poods.set_visibility(Visibility::Everything);
    time::sleep(Duration::from_mins(6)).await;
    assert_eq!(held(&old), 0);
    assert!(test.events().contains(&"one moved".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_binding_leaves_its_rows_and_goes_on_later() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    test.add("one", "a", &sink).suspended = true;
    test.set().await;
    test.put(2, 2);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 1);
    test.add("one", "a", &sink);
    test.set().await;
    assert_eq!(held(&sink), 2);
    // A binding that is deleted while it is suspended is cleaned like any other.
    test.add("one", "a", &sink).suspended = true;
    test.set().await;
    test.abandon("one");
    test.set().await;
    assert_eq!(held(&sink), 0);
}

#[tokio::test(start_paused = true)]
async fn the_second_of_two_references_to_one_destination_is_refused() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.add("two", "a", &sink);
    assert_eq!(test.apply(), BTreeMap::from([(named("two"), named("one"))]));
    time::sleep(Duration::from_secs(5)).await;
    assert!(test.events().iter().all(|event| event.starts_with("one ")));
    // The other binding takes over, and the sink keeps its rows meanwhile.
    test.wanted.remove(&named("one"));
    let rows: std::collections::BTreeSet<RowKey> = sink.with(|held| held.rows.keys().cloned().collect());
    test.set().await;
    assert_eq!(sink.with(|held| held.rows.keys().cloned().collect::<std::collections::BTreeSet<_>>()), rows);
    assert!(!test.events().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_written_again_is_not_cleaned_any_more() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    // The sink fails while the reference is removed, and works again when another reference is added.
    sink.with(|held| held.faults = vec![SinkFault::Before; 1000]);
    test.abandon("one");
    test.set().await;
    assert_eq!(test.events().last().unwrap(), "one not cleaned");
    test.add("two", "a", &sink);
    test.apply();
    sink.with(|held| held.faults.clear());
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 1, "a destination that is written is not cleaned");
    assert!(!test.events().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn cleaning_is_tried_until_it_succeeds() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    sink.with(|held| held.faults = vec![SinkFault::Before; 3]);
    test.abandon("one").moved = true;
    test.set().await;
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!((held(&sink), test.events().pop().unwrap().as_str()), (0, "one moved"));
    test.set().await;
    assert!(test.events().is_empty(), "it is done once");
}

/// What the sink holds as an operator of this cluster left it.
fn claimed_by(owner: &str) -> MemorySink {
    let sink = MemorySink::default();
    sink.with(|held| {
        held.rows.insert(row("Pod", 1, 1).key, row("Pod", 1, 1).digest);
        let claimant =
            Claimant { owner: Some(owner.into()), writer: WriterProgram::Operator, ..Claimant::default() };
        let inventory = binding(&MemorySink::default()).inventory;
        held.claim = Some(claimant.take(&inventory, None).unwrap());
    });
    sink
}

#[tokio::test(start_paused = true)]
async fn cleaning_touches_nothing_of_another_owner() {
    let mut test = DeliverTest::new();
    let foreign_sink = claimed_by("c2");
    let mut wanted = test.add("one", "a", &foreign_sink).clone();
    // Cleaning never takes over, even if the binding may.
    let claimant = Claimant { take_over: TakeOver::Always, ..wanted.binding.claimant.clone() };
    wanted.binding = Arc::new(Binding { claimant, ..Binding::clone(&wanted.binding) });
    test.wanted.insert(named("one"), wanted);
    test.abandon("one");
    let before = foreign_sink.with(|held| held.claim.clone());
    test.set().await;
    assert_eq!((held(&foreign_sink), foreign_sink.with(|held| held.claim.clone())), (1, before));
    assert_eq!(test.events(), ["one not ours"]);
}

#[tokio::test(start_paused = true)]
async fn a_destination_without_a_claim_is_cleaned_only_if_one_was_granted_there() {
    for (was_granted, left, event) in [(false, 1, "one not ours"), (true, 0, "one cleaned")] {
        let mut test = DeliverTest::new();
        let sink = claimed_by("c1");
        // Rows that were written before claims existed, or whose claim was lost.
        sink.with(|held| held.claim = None);
        test.add("one", "a", &sink);
        test.abandon("one").was_granted = was_granted;
        test.set().await;
        assert_eq!((held(&sink), test.events()), (left, vec![event.to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_written_under_another_name_is_not_cleaned() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    // The same under another name: what is there is adopted.
    test.add("two", "a", &sink);
    test.abandon("one").moved = true;
    test.add("one", "alias of a", &sink);
    test.wanted.remove(&named("two"));
    test.abandoned[0].others = vec![test.sibling("one")];
    let writes = sink.with(|held| held.writes);
    test.set().await;
    assert_eq!((held(&sink), sink.with(|held| held.writes)), (1, writes), "no row was touched");
    assert!(test.events().contains(&"one the same".to_owned()));

    // The writer under the other name is not known: the claim that cleaning writes is read there.
    test.abandoned[0].others[0].current = CurrentClaim::default();
    let old_destination = &mut test.abandoned[0];
    old_destination.binding = Arc::new(Binding { destination: "another alias".into(), ..binding(&sink) });
    test.events();
    test.set().await;
    assert!(test.events().contains(&"one the same".to_owned()));
    test.put(2, 2);
    time::sleep(Duration::from_secs(30)).await;
    assert_eq!(held(&sink), 2, "the writer claims it again");
}

#[tokio::test(start_paused = true)]
async fn the_original_of_a_copied_destination_is_cleaned_and_the_copy_gets_its_own_id() {
    let mut test = DeliverTest::new();
    let old = MemorySink::default();
    test.add("one", "a", &old);
    test.set().await;
    let copy = MemorySink::default();
    let (rows, claim) = old.with(|held| (held.rows.clone(), held.claim.clone()));
    copy.with(|held| (held.rows, held.claim) = (rows, claim.clone()));
    let id =
        |sink: &MemorySink| sink.with(|held| held.claim.as_ref().unwrap().destination_id.clone().unwrap());
    let old_id = id(&old);
    test.abandon("one").moved = true;
    let old_destination = test.abandoned.pop().unwrap();
    test.add("one", "b", &copy);
    test.set().await;
    test.abandoned.push(AbandonedDestination { others: vec![test.sibling("one")], ..old_destination });
    test.set().await;
    assert_eq!((held(&old), held(&copy)), (0, 1));
    assert_eq!(id(&copy), old_id);
    // The next claim of the copy gets a new id.
    copy.with(|held| held.claim = Some(Claim { epoch: 0, ..held.claim.clone().unwrap() }));
    test.put(2, 2);
    test.set().await;
    assert_ne!(id(&copy), old_id);
    assert_eq!(held(&copy), 2);
}

#[tokio::test(start_paused = true)]
async fn the_second_of_two_references_to_one_destination_under_two_names_fails() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    test.events();
    let wanted = test.add("two", "alias of a", &sink);
    let siblings = wanted.binding.siblings.clone();
    siblings.set(vec![test.sibling("one"), test.sibling("two")]);
    test.set().await;
    assert_eq!(test.events(), ["two failed"]);
    test.put(2, 2);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 2);
    let events = test.events();
    assert!(!events.contains(&"one failed".to_owned()), "the first one is not disturbed: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn two_references_can_exchange_their_destinations() {
    let mut test = DeliverTest::new();
    let (a, b) = (MemorySink::default(), MemorySink::default());
    test.add("one", "a", &a);
    test.add("two", "b", &b);
    test.set().await;
    test.add("one", "b", &b);
    test.add("two", "a", &a);
    test.set().await;
    test.put(2, 2);
    time::sleep(Duration::from_secs(5)).await;
    assert_eq!((held(&a), held(&b)), (2, 2));
    assert!(
        test.events().iter().all(|event| event.ends_with("compared")),
        "no binding was fenced or cleaned"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stalled_or_crashing_sink_affects_only_its_binding() {
    let mut test = DeliverTest::new();
    let (good, stalled, crashing) = (MemorySink::default(), MemorySink::default(), MemorySink::default());
    stalled.with(|held| held.faults.push(SinkFault::Stall));
    crashing.with(|held| held.faults.push(SinkFault::Crash));
    test.add("one", "a", &good);
    test.add("stalled", "b", &stalled);
    test.add("crashing", "c", &crashing);
    test.set().await;
    assert_eq!((held(&good), held(&stalled), held(&crashing)), (1, 0, 1), "{:?}", test.events());
    test.put(2, 2);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((held(&good), held(&stalled)), (2, 0));
    // Stopping waits for what can be finished, and the caller decides how long.
    assert!(time::timeout(Duration::from_secs(10), test.deliveries.stop()).await.is_err());
}

fn restarts(test: &DeliverTest, kind: TaskKind) -> u64 {
    test.tasks.restarts().find(|(counted, _)| *counted == kind).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn a_binding_whose_sink_panics_is_reported_counted_and_restarted() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    sink.with(|held| held.faults = vec![SinkFault::Crash; 1000]);
    test.add("one", "a", &sink);
    test.set().await;
    time::sleep(Duration::from_hours(1)).await;
    let (events, restarts) = (test.events(), restarts(&test, TaskKind::Binding));
    assert_eq!(events.len() as u64, restarts, "each is reported: {events:?}");
    assert!(events.iter().all(|event| event == "one panicked"), "{events:?}");
    // Pauses double up to five minutes, and each is at least half as long as it may be.
    assert!((15..=35).contains(&restarts), "{restarts}");
    // A changed binding is tried at once: the change may have removed the cause.
    sink.with(|held| held.faults.clear());
    test.add("one", "a", &sink);
    test.apply();
    time::sleep(Duration::from_millis(100)).await;
    assert_eq!((held(&sink), test.events()), (1, vec!["one compared".to_owned()]));
    assert!(test.tasks.running(&[TaskKind::Binding]).to_string().ends_with("binding team/inventory one"));
    test.deliveries.stop().await;
    assert!(test.tasks.running(&[TaskKind::Binding]).0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cleaning_that_panics_is_reported_counted_and_restarted() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    test.add("one", "a", &sink);
    test.set().await;
    sink.with(|held| held.faults = vec![SinkFault::CrashWhenForgetting; 2]);
    test.abandon("one");
    test.set().await;
    assert_eq!((held(&sink), restarts(&test, TaskKind::Cleaning)), (0, 2));
    let panicked = "one not cleaned, panicked";
    assert_eq!(test.events(), ["one compared", panicked, panicked, "one cleaned"]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_binding_does_not_wait_for_the_pause_after_a_panic() {
    let mut test = DeliverTest::new();
    let sink = MemorySink::default();
    sink.with(|held| held.faults = vec![SinkFault::Crash; 1000]);
    test.add("one", "a", &sink);
    test.set().await;
    time::sleep(Duration::from_hours(1)).await;
    let began = time::Instant::now();
    test.deliveries.stop().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
