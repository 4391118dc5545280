//! Destinations that are claimed, left and cleaned, with a process that may end at any time.

use std::collections::BTreeMap;

use kollect_engine::export::Outcome;
use kollect_model::{
    batch::{Delta, Receipt},
    sink::SinkError,
};

use super::*;

fn held_destination(name: &str) -> RecordedDestination {
    RecordedDestination::new(format!("sqlite:/{name}").into(), "east")
}

fn with_id(name: &str, id: &str) -> RecordedDestination {
    RecordedDestination { id: Some(id.into()), ..held_destination(name) }
}

fn claiming_destination(name: &str) -> RecordedDestination {
    RecordedDestination { asked_only: true, ..held_destination(name) }
}

fn claim(id: &str) -> Claim {
    Claim { destination_id: Some(id.into()), ..Claim::default() }
}

fn known(name: &str, id: Option<&str>, filled: bool) -> KnownDestinations {
    let mut known = KnownDestinations::default();
    known.begin(&held_destination(name));
    if let Some(id) = id {
        known.handle_event(&held_destination(name), &BindingEvent::Claimed(&claim(id)));
    }
    known.filled = filled;
    known
}

fn line(
    held: Option<RecordedDestination>,
    claiming: Option<RecordedDestination>,
    left: &[RecordedDestination],
) -> Destinations {
    Destinations { held, claiming, left: left.to_vec() }
}

#[test]
fn a_destination_is_held_only_after_its_claim_was_granted() {
    let nothing = Destinations::default();
    let (a, nothing_known) = (held_destination("a"), KnownDestinations::default());
    let claiming = nothing.next(Some(&a), &nothing_known);
    assert_eq!(claiming, line(None, Some(a.clone()), &[]));
    assert!(claiming.names(&a), "now the claim may be requested");
    let granted = claiming.clone().next(Some(&a), &known("a", Some("1"), false));
    assert_eq!(granted, line(Some(with_id("a", "1")), None, &[]));
    // Refused, because another cluster owns it: nothing of it is remembered.
    let mut refused = known("a", None, false);
    let error = SinkError::new(SinkReason::OwnedByOther, "refused");
    refused.handle_event(&a, &BindingEvent::Failed { error: &error, pause: None });
    assert_eq!(claiming.clone().next(Some(&a), &refused), claiming);
    assert_eq!(
        claiming.clone().next(Some(&held_destination("b")), &refused),
        line(None, Some(held_destination("b")), &[])
    );
    assert_eq!(claiming.clone().next(None, &refused), Destinations::default());
    // A later process does not know that: it checks whether there is a claim.
    assert_eq!(
        claiming.next(Some(&held_destination("b")), &nothing_known),
        line(None, Some(held_destination("b")), &[claiming_destination("a")])
    );
}

#[test]
fn the_new_destination_is_filled_before_the_old_one_is_cleaned() {
    let (a, b) = (with_id("a", "1"), held_destination("b"));
    let begun = line(Some(a.clone()), None, &[]).next(Some(&b), &known("a", Some("1"), true));
    assert_eq!(begun, line(Some(a.clone()), Some(b.clone()), &[]));
    let claiming = known("b", None, false);
    assert_eq!(begun.clone().next(Some(&b), &claiming), begun);
    assert!(!claiming.may_clean(Some(&b)));
    let granted = begun.next(Some(&b), &known("b", Some("2"), false));
    assert_eq!(granted, line(Some(with_id("b", "2")), None, std::slice::from_ref(&a)));
    assert!(!known("b", Some("2"), false).may_clean(Some(&b)));
    assert!(known("b", Some("2"), true).may_clean(Some(&b)));
    let mut compared = known("b", Some("2"), false);
    for is_complete in [false, true] {
        let (delta, receipt, kept) = (Delta::default(), Receipt::default(), BTreeMap::new());
        let outcome = Outcome { delta, receipt, unchanged: 1, left_alone: 0, drifted: 0, is_complete, kept };
        compared.handle_event(&b, &BindingEvent::Compared(&outcome));
        assert_eq!(compared.may_clean(Some(&b)), is_complete, "the old one may hold what cannot be seen now");
    }
    let mut clean = known("b", Some("2"), true);
    clean.handle_event(&a, &BindingEvent::Cleaned { cleaned: &CleaningOutcome::Removed, moved: true });
    assert_eq!(granted.next(Some(&b), &clean), line(Some(with_id("b", "2")), None, &[]));
}

#[test]
fn a_removed_binding_leaves_all_its_destinations() {
    let all = line(Some(with_id("a", "1")), Some(held_destination("b")), &[with_id("c", "3")]);
    let left = all.next(None, &KnownDestinations::default());
    assert_eq!(left, line(None, None, &[with_id("c", "3"), claiming_destination("b"), with_id("a", "1")]));
    assert!(KnownDestinations::default().may_clean(None));
}

#[test]
fn a_destination_that_is_wanted_again_is_not_cleaned() {
    let moved = line(Some(with_id("b", "2")), None, &[with_id("a", "1")]);
    let back = moved.next(Some(&held_destination("a")), &known("b", Some("2"), true));
    assert_eq!(back, line(Some(with_id("b", "2")), Some(held_destination("a")), &[]));
    let arrived = back.next(Some(&held_destination("a")), &known("a", Some("1"), false));
    assert_eq!(arrived, line(Some(with_id("a", "1")), None, &[with_id("b", "2")]));
}

#[test]
fn statuses_of_older_versions_are_read() {
    let current = SinkExport {
        place: Some(held_destination("a")),
        left: vec![held_destination("b")],
        ..SinkExport::default()
    };
    assert_eq!(
        Destinations::of(&current, None),
        line(Some(held_destination("a")), None, &[held_destination("b")])
    );
    let time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
    let older = SinkExport { last_export_time: Some(time), ..SinkExport::default() };
    let leaving = SinkExport { left: vec![held_destination("a")], ..older.clone() };
    assert_eq!(
        Destinations::of(&leaving, Some(&held_destination("b"))),
        line(None, None, &[held_destination("a")])
    );
    assert_eq!(Destinations::of(&older, Some(&held_destination("a"))).held, Some(held_destination("a")));
    assert_eq!(Destinations::of(&older, None).held.unwrap().destination.to_string(), "an unknown place");
    assert_eq!(
        Destinations::of(&SinkExport::default(), Some(&held_destination("a"))),
        Destinations::default()
    );
}

#[test]
fn two_names_with_the_same_id_are_one_destination() {
    let moved = line(Some(with_id("new", "1")), None, &[with_id("old", "1")]);
    assert!(moved.is_held_under_another_name(&with_id("old", "1")));
    assert!(!moved.is_held_under_another_name(&with_id("old", "2")));
    assert!(!moved.is_held_under_another_name(&held_destination("old")));
}

/// The state outside of the process: the status, and which destinations hold a claim.
#[derive(Default)]
struct OutsideState {
    status: Destinations,
    claims: BTreeMap<String, String>,
}

/// Every destination that was ever claimed is clean in the end, wherever processes ended, however often the binding
/// moved and whether or not statuses could be written.
#[test]
fn every_destination_that_was_claimed_is_cleaned_in_the_end() {
    let names = ["a", "b", "c", "d"];
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut outside, mut known) = (OutsideState::default(), KnownDestinations::default());
        let mut wanted = Some(held_destination("a"));
        let mut history = Vec::new();
        for step in 0..60 {
            let in_status = outside.status.clone();
            known.retain(&in_status);
            let next = in_status.clone().next(wanted.as_ref(), &known);
            let action = random.u8(..12);
            history.push(format!("{step}: {action} {wanted:?} {next:?}"));
            let run_in = wanted.clone().filter(|wanted| in_status.names(wanted));
            match action {
                0 => wanted = Some(held_destination(names[random.usize(..names.len())])),
                1 if random.bool() => wanted = None,
                2 => known = KnownDestinations::default(),
                // The status can be written.
                3..7 => outside.status = next.clone(),
                7..10 => {
                    let Some(destination) = run_in else { continue };
                    if !known.is_current(&destination) {
                        known.begin(&destination);
                    }
                    let name = destination.destination.to_string();
                    let id = outside.claims.entry(name).or_insert_with(|| step.to_string()).clone();
                    // The process may end before it receives the answer.
                    if random.u8(..4) > 0 {
                        known.handle_event(&destination, &BindingEvent::Claimed(&claim(&id)));
                        known.filled |= random.bool();
                    }
                }
                _ if known.may_clean(wanted.as_ref()) => {
                    for destination in &next.left {
                        outside.claims.remove(&destination.destination.to_string());
                        if random.u8(..4) > 0 {
                            let cleaned = CleaningOutcome::Removed;
                            known.handle_event(
                                destination,
                                &BindingEvent::Cleaned { cleaned: &cleaned, moved: wanted.is_some() },
                            );
                        }
                    }
                }
                _ => {}
            }
            let in_status_now: BTreeSet<String> =
                outside.status.all().map(|destination| destination.destination.to_string()).collect();
            let forgotten: Vec<_> =
                outside.claims.keys().filter(|claim| !in_status_now.contains(*claim)).collect();
            assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}\n{}", history.join("\n"));
        }
        wanted = None;
        for _ in 0..2 {
            let next = outside.status.clone().next(wanted.as_ref(), &known);
            for destination in &next.left {
                outside.claims.remove(&destination.destination.to_string());
                known.handle_event(
                    destination,
                    &BindingEvent::Cleaned { cleaned: &CleaningOutcome::Removed, moved: false },
                );
            }
            outside.status = next;
        }
        assert_eq!(outside.claims, BTreeMap::new(), "seed {seed}\n{}", history.join("\n"));
    }
}
