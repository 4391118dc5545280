//! A binding reports exactly what its sink holds, and what waits.

use super::*;

/// Rows and digest that the binding says its sink has acknowledged.
fn acknowledged(world: &World) -> (usize, u128) {
    let Acknowledged { rows, digest, .. } = world.binding.progress.read().acknowledged.unwrap();
    (rows, digest)
}

/// Rows and digest of what the sink holds.
fn held(world: &World) -> (usize, u128) {
    let rows = world.holds();
    (rows.len(), rows.values().fold(0, |sum, row| row.0.wrapping_add(sum)))
}

#[tokio::test(start_paused = true)]
async fn law_12_what_is_acknowledged_is_what_the_sink_holds() {
    for seed in 0..60 {
        let mut random = Random(seed + 1);
        let mut world = World::new(Duration::from_secs(random.below(3) as u64));
        ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
        world.start();
        for _ in 0..40 {
            match random.below(8) {
                0 => world.memory.with(|held| held.faults.push(Fault::Before)),
                1 => world.memory.with(|held| held.faults.push(Fault::After)),
                2 => {
                    let unwelcome = row("Pod", random.below(6), 0).key;
                    world.memory.with(|held| {
                        if !held.unwelcome.remove(&unwelcome) {
                            held.unwelcome.insert(unwelcome);
                        }
                    });
                }
                3 => drop(world.kinds["Pod"].remove(&format!("Pod{}", random.below(6)))),
                4 => world.see(
                    "Node",
                    if random.below(2) == 0 { Visibility::Partial } else { Visibility::Everything },
                ),
                _ => world.put("Pod", random.below(6), random.below(100)),
            }
            time::sleep(Duration::from_millis(random.below(4000) as u64)).await;
            let progress = world.binding.progress.read();
            if progress.is_known && progress.doing.is_none() {
                assert_eq!(acknowledged(&world), held(&world), "seed {seed}");
            }
        }
        world.memory.with(|held| {
            held.faults.clear();
            held.unwelcome.clear();
        });
        world.see("Node", Visibility::Everything);
        world.rest().await;
        let progress = world.binding.progress.read();
        assert_eq!((acknowledged(&world), progress.pending), (held(&world), None), "seed {seed}");
        let revision = progress.acknowledged.unwrap().revision;
        assert_eq!(revision, world.rows.revision(&[target()]), "seed {seed}");
        world.halt(true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn law_12_rows_of_a_list_that_is_running_are_not_below_the_revision() {
    let mut world = World::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.put("Pod", 1, 1);
    world.start();
    time::sleep(Duration::from_secs(1)).await;
    let reached = || {
        let acknowledged = world.binding.progress.read().acknowledged.unwrap();
        (acknowledged.revision, acknowledged.shown_revision)
    };
    let (before, _) = reached();
    // The profile has changed: Pods are listed again, and readers see their rows when the list is complete.
    world.see("Pod", Visibility::Pending);
    world.put("Pod", 1, 2);
    world.put("Node", 1, 1);
    time::sleep(Duration::from_secs(1)).await;
    let last = world.rows.revision(&[target()]);
    let (all, shown) = reached();
    assert!(before <= all && all < last - 1 && shown == last, "{before} {all} {shown} {last}");
    assert_eq!(world.holds().len(), 2, "the Pod as it was, and the Node");
    let listing = world.rows.listing(&target()).unwrap();
    assert_eq!((listing.is_first, listing.since.elapsed()), (true, Duration::from_secs(1)));
    world.see("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    let last = world.rows.revision(&[target()]);
    assert_eq!((reached(), world.holds()), ((last, last), world.expected()));
    assert_eq!(world.rows.listing(&target()), None);
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn law_12_changes_that_wait_for_the_cadence_are_pending_and_not_acknowledged() {
    let mut world = World::new(Duration::from_mins(10));
    world.binding.cadence.audit = None;
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.put("Pod", 1, 1);
    world.start();
    time::sleep(Duration::from_secs(1)).await;
    let before = world.binding.progress.read().acknowledged.unwrap();
    world.told();
    world.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(30)).await;
    world.put("Pod", 3, 1);
    time::sleep(Duration::from_secs(30)).await;
    let progress = world.binding.progress.read();
    assert_eq!(progress.acknowledged.as_ref(), Some(&before), "the sink has neither of them");
    let pending = progress.pending.unwrap();
    assert_eq!((pending.rows, pending.since.elapsed()), (2, Duration::from_mins(1)));
    let left = pending.next_write.unwrap() - Instant::now();
    assert_eq!(left.as_secs() / 60, 8, "written ten minutes after the first write: {left:?}");
    assert_eq!(world.told(), ["waits"]);
    time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.told(), ["written 2 refused 0"]);
    let after = world.binding.progress.read();
    assert_eq!((after.pending, after.acknowledged.unwrap().rows), (None, 3));
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn law_12_a_sink_that_does_not_answer_is_told_after_ten_seconds_and_left_after_two_minutes() {
    let mut world = World::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.put("Pod", 1, 1);
    world.start();
    time::sleep(Duration::from_secs(1)).await;
    world.told();
    world.memory.with(|held| held.faults.push(Fault::Stall));
    world.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(9)).await;
    assert_eq!(world.told(), [""; 0]);
    assert_eq!(world.binding.progress.read().late(Duration::ZERO, Instant::now()), None);
    time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.told(), ["late"]);
    let late = world.binding.progress.read().late(Duration::ZERO, Instant::now());
    assert_eq!(late, Some(Late::Doing(Doing::Writing)));
    time::sleep(Duration::from_secs(110)).await;
    assert_eq!(world.told()[0], "failed Unreachable");
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.holds(), world.expected());
    assert_eq!(acknowledged(&world), held(&world));
    world.halt(true).await;
}

#[tokio::test(start_paused = true)]
async fn what_has_vanished_is_opened_again_at_once() {
    let mut world = World::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| world.see(kind, Visibility::Everything));
    world.start();
    time::sleep(Duration::from_secs(11)).await;
    world.told();
    // A sink that is open says that its table is gone; opening it makes the table again.
    world.memory.with(|held| {
        held.rows.clear();
        held.faults.push(Fault::Terminal);
    });
    world.put("Pod", 1, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told(), ["claim lost", "compared 1 0"]);
    // One that cannot be opened is left alone for a minute.
    world.memory.with(|held| held.faults = vec![Fault::Terminal; 2]);
    time::sleep(Duration::from_secs(11)).await;
    world.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(50)).await;
    assert_eq!(world.told(), ["claim lost", "failed Missing"]);
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.holds(), world.expected());
    world.halt(true).await;
}
