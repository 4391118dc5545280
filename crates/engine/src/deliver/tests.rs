//! Bindings that come, go, move and pause.

use std::sync::Mutex;

use kollect_model::{binding::InventoryName, row::RowKey};

use super::*;
use crate::{
    export::tests::{Fault, Memory, binding, gvk, row, target},
    store::{KindRows, Origin, Sight, store},
};

struct World {
    deliveries: Deliveries,
    pods: KindRows,
    wanted: BTreeMap<BindingName, Wanted>,
    told: Arc<Mutex<Vec<String>>>,
    tasks: Tasks,
}

impl World {
    fn new() -> Self {
        let (writer, rows) = store();
        let pods = writer.rows(&target(), &gvk("Pod"));
        pods.set_sight(Sight::Everything);
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        let tasks = Tasks::default();
        let deliveries = Deliveries::new(rows, tasks.clone(), move |name, told| {
            let word = match told {
                Told::Failed { error, .. } if error.to_string().contains("panicked") => "panicked",
                Told::NotCleaned { error, .. } if error.to_string().contains("panicked") => {
                    "not cleaned, panicked"
                }
                Told::Compared(_) => "compared",
                Told::Cleaned { moved: false, .. } => "cleaned",
                Told::Cleaned { moved: true, .. } => "moved",
                Told::NotCleaned { .. } => "not cleaned",
                Told::Failed { .. } => "failed",
                _ => return,
            };
            log.lock().unwrap().push(format!("{} {word}", name.sink));
        });
        let world = Self { deliveries, pods, wanted: BTreeMap::new(), told, tasks };
        world.put(1, 1);
        world
    }

    fn put(&self, uid: usize, value: usize) {
        self.pods.upsert(row("Pod", uid, value), Origin::default());
    }

    /// Wants a binding to a destination.
    fn want(&mut self, name: &str, destination: &str, sink: &Memory) -> &mut Wanted {
        let wanted =
            Wanted { binding: Arc::new(binding(sink)), destination: destination.into(), suspended: false };
        self.wanted.entry(named(name)).insert_entry(wanted).into_mut()
    }

    async fn set(&mut self) {
        self.deliveries.set(self.wanted.clone());
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
    world.wanted.remove(&named("two"));
    world.put(2, 2);
    world.set().await;
    assert_eq!((held(&one), held(&two)), (2, 0));
    assert_eq!(world.told().last().unwrap(), "two cleaned");
    world.put(3, 3);
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!((held(&one), held(&two)), (3, 0), "and nobody writes there again");
}

#[tokio::test(start_paused = true)]
async fn a_new_place_is_filled_before_the_old_one_is_cleaned() {
    let mut world = World::new();
    let (old, new) = (Memory::default(), Memory::default());
    world.want("one", "a", &old);
    world.set().await;
    // The new place does not answer for a while.
    new.with(|held| held.faults = vec![Fault::Before; 3]);
    world.want("one", "b", &new);
    world.deliveries.set(world.wanted.clone());
    time::sleep(Duration::from_millis(200)).await;
    assert_eq!((held(&old), held(&new)), (1, 0));
    time::sleep(Duration::from_mins(2)).await;
    assert_eq!((held(&old), held(&new)), (0, 1));
    let told = world.told();
    let position = |what: &str| told.iter().rposition(|told| told == what).unwrap();
    assert!(position("one compared") < position("one moved"), "{told:?}");
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
    // Deleted while it is suspended: gone is gone.
    world.want("one", "a", &sink).suspended = true;
    world.set().await;
    world.wanted.clear();
    world.set().await;
    assert_eq!(held(&sink), 0);
}

#[tokio::test(start_paused = true)]
async fn two_references_to_one_place_are_one_too_many() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.want("two", "a", &sink);
    world.set().await;
    let told = world.told();
    assert!(told.contains(&"two failed".to_owned()) && told.contains(&"one compared".to_owned()));
    world.set().await;
    assert!(world.told().is_empty(), "it is said once");
    // The other one takes over without a moment of emptiness.
    world.wanted.remove(&named("one"));
    let rows: BTreeSet<RowKey> = sink.with(|held| held.rows.keys().cloned().collect());
    world.set().await;
    assert_eq!(sink.with(|held| held.rows.keys().cloned().collect::<BTreeSet<_>>()), rows);
    assert!(!world.told().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_again_is_not_cleaned_any_more() {
    let mut world = World::new();
    let sink = Memory::default();
    world.want("one", "a", &sink);
    world.set().await;
    // The sink is away while the reference is removed, and comes back with it.
    sink.with(|held| held.faults = vec![Fault::Before; 1000]);
    world.wanted.clear();
    world.set().await;
    assert_eq!(world.told().last().unwrap(), "one not cleaned");
    world.want("two", "a", &sink);
    world.deliveries.set(world.wanted.clone());
    sink.with(|held| held.faults.clear());
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(held(&sink), 1);
    assert!(!world.told().contains(&"one cleaned".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn cleaning_outlives_failures_until_somebody_gives_up() {
    let mut world = World::new();
    let sink = Memory::default();
    let wanted = world.want("one", "a", &sink).clone();
    world.set().await;
    sink.with(|held| held.faults = vec![Fault::Before; 3]);
    world.wanted.clear();
    world.set().await;
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!(held(&sink), 0);
    // Left behind by an earlier process.
    sink.with(|held| {
        held.faults = vec![Fault::Before; 1000];
        held.rows.insert(row("Pod", 1, 1).key, row("Pod", 1, 1).digest);
    });
    world.deliveries.clean(&named("one"), wanted.clone(), false);
    time::sleep(Duration::from_mins(1)).await;
    assert!(world.deliveries.is_cleaning(&named("one")));
    sink.with(|held| held.faults.clear());
    time::sleep(Duration::from_hours(1)).await;
    assert_eq!((held(&sink), world.deliveries.is_cleaning(&named("one"))), (0, false));
    // Left behind by a move: told apart from the end of the binding.
    assert_eq!(world.told().last().unwrap(), "one cleaned");
    sink.with(|held| held.rows.insert(row("Pod", 1, 1).key, row("Pod", 1, 1).digest));
    world.deliveries.clean(&named("one"), wanted.clone(), true);
    assert!(world.deliveries.is_cleaning_place(&"a".into(), &wanted.binding.inventory));
    assert!(!world.deliveries.is_cleaning_place(&"b".into(), &wanted.binding.inventory));
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!((held(&sink), world.told().pop().unwrap().as_str()), (0, "one moved"));
    // What is written under another name is nobody's leftover.
    world.want("two", "a", &sink);
    world.set().await;
    world.deliveries.clean(&named("one"), wanted, false);
    time::sleep(Duration::from_mins(1)).await;
    assert_eq!(held(&sink), 1);
}

#[tokio::test(start_paused = true)]
async fn a_place_is_cleaned_when_the_last_of_several_moves_has_been_filled() {
    let mut world = World::new();
    let (first, second, third) = (Memory::default(), Memory::default(), Memory::default());
    world.want("one", "a", &first);
    world.set().await;
    second.with(|held| held.faults = vec![Fault::Before; 1000]);
    third.with(|held| held.faults = vec![Fault::Before; 3]);
    world.want("one", "b", &second);
    world.set().await;
    world.want("one", "c", &third);
    world.deliveries.set(world.wanted.clone());
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!((held(&first), held(&third)), (1, 0), "the only copy stays");
    time::sleep(Duration::from_mins(3)).await;
    assert_eq!((held(&first), held(&third)), (0, 1));
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
    assert!(world.told().iter().all(|told| told.ends_with("compared")), "nobody was fenced or cleaned");
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
    // Whatever was changed may have been the reason: that is not waited for.
    sink.with(|held| held.faults.clear());
    world.want("one", "a", &sink);
    world.deliveries.set(world.wanted.clone());
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
    world.wanted.clear();
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
