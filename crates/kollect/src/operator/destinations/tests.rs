//! Destinations that are claimed, left and cleaned, with a process that may end at any time.

use std::collections::BTreeMap;

use kollect_engine::export::Outcome;
use kollect_model::{
    batch::{Delta, Receipt},
    sink::SinkError,
};

use super::*;

fn place(name: &str) -> ExportPlace {
    ExportPlace::new(format!("sqlite:/{name}").into(), "east")
}

fn with_id(name: &str, id: &str) -> ExportPlace {
    ExportPlace { id: Some(id.into()), ..place(name) }
}

fn asked(name: &str) -> ExportPlace {
    ExportPlace { asked_only: true, ..place(name) }
}

fn claim(id: &str) -> Claim {
    Claim { destination_id: Some(id.into()), ..Claim::default() }
}

fn known(name: &str, id: Option<&str>, filled: bool) -> KnownDestinations {
    let mut known = KnownDestinations::default();
    known.begin(&place(name));
    if let Some(id) = id {
        known.hear(&place(name), &BindingEvent::Claimed(&claim(id)));
    }
    known.filled = filled;
    known
}

fn line(held: Option<ExportPlace>, claiming: Option<ExportPlace>, left: &[ExportPlace]) -> Destinations {
    Destinations { held, claiming, left: left.to_vec() }
}

#[test]
fn a_destination_is_ours_only_after_its_claim_was_granted() {
    let nothing = Destinations::default();
    let (a, ids) = (place("a"), KnownDestinations::default());
    let asked_for = nothing.next(Some(&a), &ids);
    assert_eq!(asked_for, line(None, Some(a.clone()), &[]));
    assert!(asked_for.speak_of(&a), "now the claim may be asked for");
    let granted = asked_for.clone().next(Some(&a), &known("a", Some("1"), false));
    assert_eq!(granted, line(Some(with_id("a", "1")), None, &[]));
    // Refused, because another cluster owns it: nothing of it is remembered.
    let mut refused = known("a", None, false);
    let error = SinkError::new(SinkReason::OwnedByOther, "refused");
    refused.hear(&a, &BindingEvent::Failed { error: &error, pause: None });
    assert_eq!(asked_for.clone().next(Some(&a), &refused), asked_for);
    assert_eq!(asked_for.clone().next(Some(&place("b")), &refused), line(None, Some(place("b")), &[]));
    assert_eq!(asked_for.clone().next(None, &refused), Destinations::default());
    // A later process does not know that: it checks whether there is a claim.
    assert_eq!(asked_for.next(Some(&place("b")), &ids), line(None, Some(place("b")), &[asked("a")]));
}

#[test]
fn the_new_destination_is_filled_before_the_old_one_is_cleaned() {
    let (a, b) = (with_id("a", "1"), place("b"));
    let begun = line(Some(a.clone()), None, &[]).next(Some(&b), &known("a", Some("1"), true));
    assert_eq!(begun, line(Some(a.clone()), Some(b.clone()), &[]));
    let asked_for = known("b", None, false);
    assert_eq!(begun.clone().next(Some(&b), &asked_for), begun);
    assert!(!asked_for.may_clean(Some(&b)));
    let granted = begun.next(Some(&b), &known("b", Some("2"), false));
    assert_eq!(granted, line(Some(with_id("b", "2")), None, std::slice::from_ref(&a)));
    assert!(!known("b", Some("2"), false).may_clean(Some(&b)));
    assert!(known("b", Some("2"), true).may_clean(Some(&b)));
    let mut compared = known("b", Some("2"), false);
    for is_complete in [false, true] {
        let (delta, receipt, kept) = (Delta::default(), Receipt::default(), BTreeMap::new());
        let outcome = Outcome { delta, receipt, unchanged: 1, left_alone: 0, drifted: 0, is_complete, kept };
        compared.hear(&b, &BindingEvent::Compared(&outcome));
        assert_eq!(compared.may_clean(Some(&b)), is_complete, "the old one may hold what cannot be seen now");
    }
    let mut clean = known("b", Some("2"), true);
    clean.hear(&a, &BindingEvent::Cleaned { cleaned: &Cleaned::Removed, moved: true });
    assert_eq!(granted.next(Some(&b), &clean), line(Some(with_id("b", "2")), None, &[]));
}

#[test]
fn a_binding_that_is_gone_leaves_everything() {
    let all = line(Some(with_id("a", "1")), Some(place("b")), &[with_id("c", "3")]);
    let left = all.next(None, &KnownDestinations::default());
    assert_eq!(left, line(None, None, &[with_id("c", "3"), asked("b"), with_id("a", "1")]));
    assert!(KnownDestinations::default().may_clean(None));
}

#[test]
fn a_destination_that_is_wanted_again_is_not_left() {
    let moved = line(Some(with_id("b", "2")), None, &[with_id("a", "1")]);
    let back = moved.next(Some(&place("a")), &known("b", Some("2"), true));
    assert_eq!(back, line(Some(with_id("b", "2")), Some(place("a")), &[]));
    let there = back.next(Some(&place("a")), &known("a", Some("1"), false));
    assert_eq!(there, line(Some(with_id("a", "1")), None, &[with_id("b", "2")]));
}

#[test]
fn statuses_of_older_versions_are_read() {
    let told = SinkExport { place: Some(place("a")), left: vec![place("b")], ..SinkExport::default() };
    assert_eq!(Destinations::of(&told, None), line(Some(place("a")), None, &[place("b")]));
    let time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
    let untold = SinkExport { last_export_time: Some(time), ..SinkExport::default() };
    let leaving = SinkExport { left: vec![place("a")], ..untold.clone() };
    assert_eq!(Destinations::of(&leaving, Some(&place("b"))), line(None, None, &[place("a")]));
    assert_eq!(Destinations::of(&untold, Some(&place("a"))).held, Some(place("a")));
    assert_eq!(Destinations::of(&untold, None).held.unwrap().destination.to_string(), "an unknown place");
    assert_eq!(Destinations::of(&SinkExport::default(), Some(&place("a"))), Destinations::default());
}

#[test]
fn an_id_tells_that_two_names_are_one_destination() {
    let moved = line(Some(with_id("new", "1")), None, &[with_id("old", "1")]);
    assert!(moved.is_held_under_another_name(&with_id("old", "1")));
    assert!(!moved.is_held_under_another_name(&with_id("old", "2")));
    assert!(!moved.is_held_under_another_name(&place("old")));
}

/// The world outside of the process: the status, and which destinations hold a claim.
#[derive(Default)]
struct World {
    status: Destinations,
    claims: BTreeMap<String, String>,
}

/// Every destination that was ever claimed is clean in the end, wherever processes ended, however often the binding
/// moved and whether or not statuses could be written.
#[test]
fn whatever_happens_nothing_is_forgotten() {
    let names = ["a", "b", "c", "d"];
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut world, mut known) = (World::default(), KnownDestinations::default());
        let mut wanted = Some(place("a"));
        let mut history = Vec::new();
        for step in 0..60 {
            let told = world.status.clone();
            known.retain(&told);
            let next = told.clone().next(wanted.as_ref(), &known);
            let what = random.u8(..12);
            history.push(format!("{step}: {what} {wanted:?} {next:?}"));
            let run_at = wanted.clone().filter(|wanted| told.speak_of(wanted));
            match what {
                0 => wanted = Some(place(names[random.usize(..names.len())])),
                1 if random.bool() => wanted = None,
                2 => known = KnownDestinations::default(),
                // The status can be written.
                3..7 => world.status = next.clone(),
                7..10 => {
                    let Some(at) = run_at else { continue };
                    if !known.is_current(&at) {
                        known.begin(&at);
                    }
                    let name = at.destination.to_string();
                    let id = world.claims.entry(name).or_insert_with(|| step.to_string()).clone();
                    // The process may end before it hears the answer.
                    if random.u8(..4) > 0 {
                        known.hear(&at, &BindingEvent::Claimed(&claim(&id)));
                        known.filled |= random.bool();
                    }
                }
                _ if known.may_clean(wanted.as_ref()) => {
                    for place in &next.left {
                        world.claims.remove(&place.destination.to_string());
                        if random.u8(..4) > 0 {
                            let cleaned = Cleaned::Removed;
                            known.hear(
                                place,
                                &BindingEvent::Cleaned { cleaned: &cleaned, moved: wanted.is_some() },
                            );
                        }
                    }
                }
                _ => {}
            }
            let spoken: BTreeSet<String> =
                world.status.all().map(|place| place.destination.to_string()).collect();
            let forgotten: Vec<_> = world.claims.keys().filter(|claim| !spoken.contains(*claim)).collect();
            assert!(forgotten.is_empty(), "seed {seed}: {forgotten:?}\n{}", history.join("\n"));
        }
        wanted = None;
        for _ in 0..2 {
            let next = world.status.clone().next(wanted.as_ref(), &known);
            for place in &next.left {
                world.claims.remove(&place.destination.to_string());
                known.hear(place, &BindingEvent::Cleaned { cleaned: &Cleaned::Removed, moved: false });
            }
            world.status = next;
        }
        assert_eq!(world.claims, BTreeMap::new(), "seed {seed}\n{}", history.join("\n"));
    }
}
