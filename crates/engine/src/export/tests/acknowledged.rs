//! A binding reports exactly what its sink holds, and what waits.

use super::*;

/// Rows and digest that the sink has acknowledged, as the binding reports them.
fn acknowledged(test: &ExportTest) -> (usize, u128) {
    let Acknowledged { rows, digest, .. } = test.binding.progress.read().acknowledged.unwrap();
    (rows, digest)
}

/// Rows and digest of what the sink holds.
fn held(test: &ExportTest) -> (usize, u128) {
    let rows = test.holds();
    (rows.len(), rows.values().fold(0, |sum, row| row.0.wrapping_add(sum)))
}

#[tokio::test(start_paused = true)]
async fn what_is_acknowledged_is_what_the_sink_holds() {
    for seed in 0..60 {
        let mut random = Random(seed + 1);
        let mut test = ExportTest::new(Duration::from_secs(random.below(3) as u64));
        ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
        test.start();
        for _ in 0..40 {
            match random.below(8) {
                0 => test.memory.with(|held| held.faults.push(SinkFault::Before)),
                1 => test.memory.with(|held| held.faults.push(SinkFault::After)),
                2 => {
                    let key = row("Pod", random.below(6), 0).key;
                    test.memory.with(|held| {
                        if !held.refused_keys.remove(&key) {
                            held.refused_keys.insert(key);
                        }
                    });
                }
                3 => drop(test.kinds["Pod"].remove(&format!("Pod{}", random.below(6)))),
                4 => test.set_visibility(
                    "Node",
                    if random.below(2) == 0 { Visibility::Partial } else { Visibility::Everything },
                ),
                _ => test.put("Pod", random.below(6), random.below(100)),
            }
            time::sleep(Duration::from_millis(random.below(4000) as u64)).await;
            let progress = test.binding.progress.read();
            if progress.is_known && progress.doing.is_none() {
                assert_eq!(acknowledged(&test), held(&test), "seed {seed}");
            }
        }
        test.memory.with(|held| {
            held.faults.clear();
            held.refused_keys.clear();
        });
        test.set_visibility("Node", Visibility::Everything);
        test.wait().await;
        let progress = test.binding.progress.read();
        assert_eq!((acknowledged(&test), progress.pending), (held(&test), None), "seed {seed}");
        let revision = progress.acknowledged.unwrap().revision;
        assert_eq!(revision, test.rows.revision(&[target()]), "seed {seed}");
        test.stop(true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_acknowledged_revision_does_not_include_rows_of_a_running_list() {
    let mut test = ExportTest::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.put("Pod", 1, 1);
    test.start();
    time::sleep(Duration::from_secs(1)).await;
    let reached = || {
        let acknowledged = test.binding.progress.read().acknowledged.unwrap();
        (acknowledged.revision, acknowledged.shown_revision)
    };
    let (before, _) = reached();
    // The profile has changed: Pods are listed again, and readers see their rows when the list is complete.
    test.set_visibility("Pod", Visibility::Pending);
    test.put("Pod", 1, 2);
    test.put("Node", 1, 1);
    time::sleep(Duration::from_secs(1)).await;
    let last = test.rows.revision(&[target()]);
    let (all, shown) = reached();
    assert!(before <= all && all < last - 1 && shown == last, "{before} {all} {shown} {last}");
    assert_eq!(test.holds().len(), 2, "the Pod as it was, and the Node");
    let listing = test.rows.listing(&target()).unwrap();
    assert_eq!((listing.is_first, listing.since.elapsed()), (true, Duration::from_secs(1)));
    test.set_visibility("Pod", Visibility::Everything);
    time::sleep(Duration::from_secs(1)).await;
    let last = test.rows.revision(&[target()]);
    assert_eq!((reached(), test.holds()), ((last, last), test.expected()));
    assert_eq!(test.rows.listing(&target()), None);
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_wait_for_the_cadence_are_pending_and_not_acknowledged() {
    let mut test = ExportTest::new(Duration::from_mins(10));
    test.binding.cadence.audit = None;
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.put("Pod", 1, 1);
    test.start();
    time::sleep(Duration::from_secs(1)).await;
    let before = test.binding.progress.read().acknowledged.unwrap();
    test.events();
    test.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(30)).await;
    test.put("Pod", 3, 1);
    time::sleep(Duration::from_secs(30)).await;
    let progress = test.binding.progress.read();
    assert_eq!(progress.acknowledged.as_ref(), Some(&before), "the sink has neither of them");
    let pending = progress.pending.unwrap();
    assert_eq!((pending.rows, pending.since.elapsed()), (2, Duration::from_mins(1)));
    let left = pending.next_write.unwrap() - Instant::now();
    assert_eq!(left.as_secs() / 60, 8, "written ten minutes after the first write: {left:?}");
    assert_eq!(test.events(), ["waits"]);
    time::sleep(Duration::from_mins(10)).await;
    assert_eq!(test.events(), ["written 2 refused 0"]);
    let after = test.binding.progress.read();
    assert_eq!((after.pending, after.acknowledged.unwrap().rows), (None, 3));
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_does_not_answer_is_reported_after_ten_seconds_and_fails_after_two_minutes() {
    let mut test = ExportTest::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.put("Pod", 1, 1);
    test.start();
    time::sleep(Duration::from_secs(1)).await;
    test.events();
    test.memory.with(|held| held.faults.push(SinkFault::Stall));
    test.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(9)).await;
    assert_eq!(test.events(), [""; 0]);
    assert_eq!(test.binding.progress.read().late(Duration::ZERO, Instant::now()), None);
    time::sleep(Duration::from_secs(2)).await;
    assert_eq!(test.events(), ["late"]);
    let late = test.binding.progress.read().late(Duration::ZERO, Instant::now());
    assert_eq!(late, Some(LateReason::Doing(Activity::Writing)));
    time::sleep(Duration::from_secs(110)).await;
    assert_eq!(test.events()[0], "failed Unreachable");
    time::sleep(Duration::from_secs(10)).await;
    assert_eq!(test.holds(), test.expected());
    assert_eq!(acknowledged(&test), held(&test));
    test.stop(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_whose_table_is_gone_is_opened_again_at_once() {
    let mut test = ExportTest::new(Duration::ZERO);
    ["Pod", "Node"].iter().for_each(|kind| test.set_visibility(kind, Visibility::Everything));
    test.start();
    time::sleep(Duration::from_secs(11)).await;
    test.events();
    // An open sink reports that its table is gone; opening it makes the table again.
    test.memory.with(|held| {
        held.rows.clear();
        held.faults.push(SinkFault::Terminal);
    });
    test.put("Pod", 1, 1);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(test.events(), ["claim lost", "compared 1 0"]);
    // One that cannot be opened is left alone for a minute.
    test.memory.with(|held| held.faults = vec![SinkFault::Terminal; 2]);
    time::sleep(Duration::from_secs(11)).await;
    test.put("Pod", 2, 1);
    time::sleep(Duration::from_secs(50)).await;
    assert_eq!(test.events(), ["claim lost", "failed Missing"]);
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(test.holds(), test.expected());
    test.stop(true).await;
}
