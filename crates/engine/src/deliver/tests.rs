//! Bindings that come, go, move and pause, and what they leave.

use std::sync::Mutex;

use kollect_model::{
    binding::InventoryName,
    claim::{Claim, Claimant, TakeOver, Writer},
    row::RowKey,
};

use super::*;
use crate::{
    export::{
        Cleaned, CurrentClaim, Sibling,
        tests::{Fault, Memory, binding, gvk, row, target},
    },
    store::{KindRows, Origin, StoreWriter, Visibility, store},
};

struct World {
    deliveries: Deliveries,
    store: StoreWriter,
    pods: KindRows,
    wanted: BTreeMap<BindingName, Wanted>,
    leftovers: Vec<Leftover>,
    told: Arc<Mutex<Vec<String>>>,
    tasks: Tasks,
}

impl World {
    fn new() -> Self {
        let (store, rows) = store();
        let pods = store.rows(&target(), &gvk("Pod"));
        pods.set_visibility(Visibility::Everything);
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let tasks = Tasks::default();
        let deliveries = Deliveries::new(rows, tasks.clone(), Arc::new(|| true), move |name, _, told| {
            let word = match told {
                BindingEvent::Failed { error, .. } if error.to_string().contains("panicked") => "panicked",
                BindingEvent::NotCleaned { error, .. } if error.to_string().contains("panicked") => {
                    "not cleaned, panicked"
                }
                BindingEvent::Compared(_) => "compared",
                BindingEvent::Cleaned { cleaned: Cleaned::NotOurs, .. } => "not ours",
                BindingEvent::Cleaned { cleaned: Cleaned::SameAs(_), .. } => "the same",
                BindingEvent::Cleaned { moved: false, .. } => "cleaned",
                BindingEvent::Cleaned { moved: true, .. } => "moved",
                BindingEvent::NotCleaned { .. } => "not cleaned",
                BindingEvent::Failed { .. } => "failed",
                _ => return,
            };
            log.lock().unwrap().push(format!("{} {word}", name.sink));
        });
        let (wanted, leftovers) = (BTreeMap::new(), Vec::new());
        let world = Self { deliveries, store, pods, wanted, leftovers, told, tasks };
        world.put(1, 1);
        world
    }

    fn put(&self, uid: usize, value: usize) {
        self.pods.upsert(row("Pod", uid, value), Origin::default(), None);
    }

    /// Wants a binding to a destination.
    fn want(&mut self, name: &str, destination: &str, sink: &Memory) -> &mut Wanted {
        let binding = Binding { destination: destination.into(), ..binding(sink) };
        let wanted = Wanted { binding: Arc::new(binding), suspended: false };
        self.wanted.entry(named(name)).insert_entry(wanted).into_mut()
    }

    /// A binding is not wanted any more, and what it wrote must be removed.
    fn leave(&mut self, name: &str) -> &mut Leftover {
        let Wanted { binding, .. } = self.wanted.remove(&named(name)).unwrap();
        let (name, others) = (named(name), Vec::new());
        self.leftovers.push(Leftover { name, binding, was_granted: true, others, moved: false });
        self.leftovers.last_mut().unwrap()
    }

    /// A binding that another one may be the same as.
    fn sibling(&self, name: &str) -> Sibling {
        let Wanted { binding, .. } = &self.wanted[&named(name)];
        Sibling { name: name.into(), current: binding.current.clone(), sink: binding.sink.clone() }
    }

    fn apply(&mut self) -> BTreeMap<BindingName, BindingName> {
        self.deliveries.set(self.wanted.clone(), self.leftovers.clone())
    }

    async fn set(&mut self) {
        drop(self.apply());
        time::sleep(Duration::from_secs(5)).await;
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

/// The name of a binding of the one inventory.
fn named(sink: &str) -> BindingName {
    let inventory = InventoryName { namespace: Some("team".into()), name: "inventory".into() };
    BindingName { inventory, sink: sink.into() }
}

fn held(sink: &Memory) -> usize {
    sink.with(|held| held.rows.len())
}

#[tokio::test(start_paused = true)]
async fn w61_a_removed_reference_leaves_nothing_behind() {
    let mut world = World::new();
    let (one, two) = (Memory::default(), Memory::default());
    world.want("one", "a", &one);
    world.want("two", "b", &two);
    world.set().await;
    assert_eq!((held(&one), held(&two)), (1, 1));
    world.leave("two");
    world.put(2, 2);
    world.set().await;
    assert_eq!((held(&one), held(&two)), (2, 0));
    assert_eq!(two.with(|held| held.claim.clone()), None);
    assert_eq!(world.told().last().unwrap(), "two cleaned");
    world.put(3, 3);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!((held(&one), held(&two)), (3, 0), "and it is not written again");
}

#[tokio::test(start_paused = true)]
async fn rows_that_wait_for_another_kind_stay_when_their_sink_moves() {
    let mut world = World::new();
    let (old, new) = (Memory::default(), Memory::default());
    world.want("one", "a", &old);
    world.set().await;
    // A process that starts now knows only the kind that the target wants now, which is not served.
    world.want("one", "a", &old).suspended = true;
    world.set().await;
    world.store.remove_target(&target());
    let misspelt = gvk("Pood");
    let poods = world.store.rows(&target(), &misspelt);
    poods.set_visibility(Visibility::Absent);
    world.leave("one").moved = true;
    world.want("one", "b", &new);
    world.set().await;
    assert_eq!((held(&old), held(&new)), (1, 0));
    assert!(old.with(|held| held.claim.clone()).is_some_and(|claim| claim.epoch == 1), "nothing was written");
    assert_eq!(world.told(), ["one compared", "one not cleaned", "one compared"]);
    poods.set_visibility(Visibility::Everything);
    time::sleep(Duration::from_mins(6)).await;
    assert_eq!(held(&old), 0);
    assert!(world.told().contains(&"one moved".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_binding_leaves_its_rows_and_goes_on_later() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    world.want("one", "a", &sink).suspended = true;
    world.set().await;
    world.put(2, 2);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 1);
    world.want("one", "a", &sink);
    world.set().await;
    assert_eq!(held(&sink), 2);
    // A binding that is deleted while it is suspended is cleaned like any other.
    world.want("one", "a", &sink).suspended = true;
    world.set().await;
    world.leave("one");
    world.set().await;
    assert_eq!(held(&sink), 0);
}

#[tokio::test(start_paused = true)]
async fn two_references_to_one_place_are_one_too_many() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.want("two", "a", &sink);
    assert_eq!(world.apply(), BTreeMap::from([(named("two"), named("one"))]));
    time::sleep(Duration::from_secs(5)).await;
    assert!(world.told().iter().all(|told| told.starts_with("one ")));
    // The other binding takes over, and the sink keeps its rows meanwhile.
    world.wanted.remove(&named("one"));
    let rows: std::collections::BTreeSet<RowKey> = sink.with(|held| held.rows.keys().cloned().collect());
    world.set().await;
    assert_eq!(sink.with(|held| held.rows.keys().cloned().collect::<std::collections::BTreeSet<_>>()), rows);
    assert!(!world.told().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_again_is_not_cleaned_any_more() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    // The sink fails while the reference is removed, and works again when another reference is added.
    sink.with(|held| held.faults = vec![Fault::Before; 1000]);
    world.leave("one");
    world.set().await;
    assert_eq!(world.told().last().unwrap(), "one not cleaned");
    world.want("two", "a", &sink);
    world.apply();
    sink.with(|held| held.faults.clear());
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 1, "a place that is written is not cleaned");
    assert!(!world.told().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn cleaning_outlives_failures() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    sink.with(|held| held.faults = vec![Fault::Before; 3]);
    world.leave("one").moved = true;
    world.set().await;
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!((held(&sink), world.told().pop().unwrap().as_str()), (0, "one moved"));
    world.set().await;
    assert!(world.told().is_empty(), "it is done once");
}

/// What the sink holds as an operator of this cluster left it.
fn claimed_by(owner: &str) -> Memory {
    let sink = Memory::default();
    sink.with(|held| {
        held.rows.insert(row("Pod", 1, 1).key, row("Pod", 1, 1).digest);
        let claimant =
            Claimant { owner: Some(owner.into()), writer: Writer::Operator, ..Claimant::default() };
        let inventory = binding(&Memory::default()).inventory;
        held.claim = Some(claimant.take(&inventory, None).unwrap());
    });
    sink
}

#[tokio::test(start_paused = true)]
async fn cleaning_touches_nothing_of_another_owner() {
    let mut world = World::new();
    let neighbour = claimed_by("c2");
    let mut wanted = world.want("one", "a", &neighbour).clone();
    // Cleaning never takes over, even if the binding may.
    let claimant = Claimant { take_over: TakeOver::Always, ..wanted.binding.claimant.clone() };
    wanted.binding = Arc::new(Binding { claimant, ..Binding::clone(&wanted.binding) });
    world.wanted.insert(named("one"), wanted);
    world.leave("one");
    let before = neighbour.with(|held| held.claim.clone());
    world.set().await;
    assert_eq!((held(&neighbour), neighbour.with(|held| held.claim.clone())), (1, before));
    assert_eq!(world.told(), ["one not ours"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_asked_for_and_never_granted_is_no_reason_to_clean() {
    for (was_granted, left, told) in [(false, 1, "one not ours"), (true, 0, "one cleaned")] {
        let mut world = World::new();
        let sink = claimed_by("c1");
        // Rows that were written before claims existed, or whose claim was lost.
        sink.with(|held| held.claim = None);
        world.want("one", "a", &sink);
        world.leave("one").was_granted = was_granted;
        world.set().await;
        assert_eq!((held(&sink), world.told()), (left, vec![told.to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_written_under_another_name_is_not_cleaned() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    // The same under another name: what is there is adopted.
    world.want("two", "a", &sink);
    world.leave("one").moved = true;
    world.want("one", "alias of a", &sink);
    world.wanted.remove(&named("two"));
    world.leftovers[0].others = vec![world.sibling("one")];
    let writes = sink.with(|held| held.writes);
    world.set().await;
    assert_eq!((held(&sink), sink.with(|held| held.writes)), (1, writes), "no row was touched");
    assert!(world.told().contains(&"one the same".to_owned()));

    // The writer under the other name is not known: the claim that cleaning writes is read there.
    world.leftovers[0].others[0].current = CurrentClaim::default();
    let leftover = &mut world.leftovers[0];
    leftover.binding = Arc::new(Binding { destination: "another alias".into(), ..binding(&sink) });
    world.told();
    world.set().await;
    assert!(world.told().contains(&"one the same".to_owned()));
    world.put(2, 2);
    time::sleep(Duration::from_secs(30)).await;
    assert_eq!(held(&sink), 2, "the writer claims it again");
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_cleaned_and_the_other_gets_an_id_of_its_own() {
    let mut world = World::new();
    let old = Memory::default();
    world.want("one", "a", &old);
    world.set().await;
    let copy = Memory::default();
    let (rows, claim) = old.with(|held| (held.rows.clone(), held.claim.clone()));
    copy.with(|held| (held.rows, held.claim) = (rows, claim.clone()));
    let id = |sink: &Memory| sink.with(|held| held.claim.as_ref().unwrap().destination_id.clone().unwrap());
    let old_id = id(&old);
    world.leave("one").moved = true;
    let leftover = world.leftovers.pop().unwrap();
    world.want("one", "b", &copy);
    world.set().await;
    world.leftovers.push(Leftover { others: vec![world.sibling("one")], ..leftover });
    world.set().await;
    assert_eq!((held(&old), held(&copy)), (0, 1));
    assert_eq!(id(&copy), old_id);
    // The next claim of the copy gets a new id.
    copy.with(|held| held.claim = Some(Claim { epoch: 0, ..held.claim.clone().unwrap() }));
    world.put(2, 2);
    world.set().await;
    assert_ne!(id(&copy), old_id);
    assert_eq!(held(&copy), 2);
}

#[tokio::test(start_paused = true)]
async fn two_references_to_one_destination_under_two_names_are_one_too_many() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    world.told();
    let wanted = world.want("two", "alias of a", &sink);
    let siblings = wanted.binding.siblings.clone();
    siblings.set(vec![world.sibling("one"), world.sibling("two")]);
    world.set().await;
    assert_eq!(world.told(), ["two failed"]);
    world.put(2, 2);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 2);
    let told = world.told();
    assert!(!told.contains(&"one failed".to_owned()), "the first one is not disturbed: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn two_references_exchange_their_places() {
    let mut world = World::new();
    let (a, b) = (Memory::default(), Memory::default());
    world.want("one", "a", &a);
    world.want("two", "b", &b);
    world.set().await;
    world.want("one", "b", &b);
    world.want("two", "a", &a);
    world.set().await;
    world.put(2, 2);
    time::sleep(Duration::from_secs(5)).await;
    assert_eq!((held(&a), held(&b)), (2, 2));
    assert!(world.told().iter().all(|told| told.ends_with("compared")), "no binding was fenced or cleaned");
}

#[tokio::test(start_paused = true)]
async fn law_11_a_stalled_or_crashing_sink_concerns_its_binding_only() {
    let mut world = World::new();
    let (good, stalled, crashing) = (Memory::default(), Memory::default(), Memory::default());
    stalled.with(|held| held.faults.push(Fault::Stall));
    crashing.with(|held| held.faults.push(Fault::Crash));
    world.want("one", "a", &good);
    world.want("stalled", "b", &stalled);
    world.want("crashing", "c", &crashing);
    world.set().await;
    assert_eq!((held(&good), held(&stalled), held(&crashing)), (1, 0, 1), "{:?}", world.told());
    world.put(2, 2);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!((held(&good), held(&stalled)), (2, 0));
    // Stopping waits for what can be finished, and the caller decides how long.
    assert!(time::timeout(Duration::from_secs(10), world.deliveries.stop()).await.is_err());
}

fn restarts(world: &World, kind: TaskKind) -> u64 {
    world.tasks.restarts().find(|(counted, _)| *counted == kind).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn law_16_a_binding_whose_sink_panics_is_shown_counted_and_restarted() {
    let mut world = World::new();
    let sink = Memory::default();
    sink.with(|held| held.faults = vec![Fault::Crash; 1000]);
    world.want("one", "a", &sink);
    world.set().await;
    time::sleep(Duration::from_hours(1)).await;
    let (told, restarts) = (world.told(), restarts(&world, TaskKind::Binding));
    assert_eq!(told.len() as u64, restarts, "each is told: {told:?}");
    assert!(told.iter().all(|told| told == "one panicked"), "{told:?}");
    // Pauses double up to five minutes, and each is at least half as long as it may be.
    assert!((15..=35).contains(&restarts), "{restarts}");
    // A changed binding is tried at once: the change may have removed the cause.
    sink.with(|held| held.faults.clear());
    world.want("one", "a", &sink);
    world.apply();
    time::sleep(Duration::from_millis(100)).await;
    assert_eq!((held(&sink), world.told()), (1, vec!["one compared".to_owned()]));
    assert!(world.tasks.running(&[TaskKind::Binding]).to_string().ends_with("binding team/inventory one"));
    world.deliveries.stop().await;
    assert!(world.tasks.running(&[TaskKind::Binding]).0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn law_16_cleaning_that_panics_is_shown_counted_and_done_again() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    sink.with(|held| held.faults = vec![Fault::CrashWhenForgetting; 2]);
    world.leave("one");
    world.set().await;
    assert_eq!((held(&sink), restarts(&world, TaskKind::Cleaning)), (0, 2));
    let panicked = "one not cleaned, panicked";
    assert_eq!(world.told(), ["one compared", panicked, panicked, "one cleaned"]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_binding_does_not_sit_out_the_pause_after_a_panic() {
    let mut world = World::new();
    let sink = Memory::default();
    sink.with(|held| held.faults = vec![Fault::Crash; 1000]);
    world.want("one", "a", &sink);
    world.set().await;
    time::sleep(Duration::from_hours(1)).await;
    let began = time::Instant::now();
    world.deliveries.stop().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
