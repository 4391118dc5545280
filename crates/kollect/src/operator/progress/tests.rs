//! What is remembered of the rows that a sink holds and refuses.

use std::sync::Arc;

use kollect_engine::{export::Acknowledgement, store::Reached};
use kollect_model::{
    batch::{Changed, Refusal, Removed},
    binding::InventoryName,
    row::{Row, TargetId},
    sink::{SinkError, SinkReason},
};
use serde_json::value::RawValue;

use super::*;

fn row(uid: &str) -> Arc<Row> {
    let key = RowKey {
        target: TargetId { namespace: None, name: "t".into() },
        group: "".into(),
        kind: "Pod".into(),
        namespace: "n".into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string("{}".into()).unwrap();
    Arc::new(Row::new(key, "v1".into(), uid.into(), attributes.into()))
}

fn receipt(checksum: Option<&str>, refused: &[&str]) -> Receipt {
    let refuse = |uid: &&str| Refusal { key: row(uid).key.clone(), why: (*uid).to_owned() };
    Receipt {
        checksum: checksum.map(Into::into),
        refused: refused.iter().map(refuse).collect(),
        ..Receipt::default()
    }
}

fn delta(added: &[&str], changed: &[&str], removed: &[&str]) -> Delta {
    Delta {
        added: added.iter().map(|uid| row(uid)).collect(),
        changed: changed.iter().map(|uid| Changed { before: None, after: row(uid) }).collect(),
        removed: removed.iter().map(|uid| Removed { key: row(uid).key.clone(), before: None }).collect(),
    }
}

fn outcome(delta: Delta, receipt: Receipt) -> Outcome {
    let kept = BTreeMap::new();
    Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, is_complete: true, kept }
}

fn acknowledgement(version: u64, wrote: bool) -> Acknowledgement {
    let reached = Reached::at(1);
    Acknowledgement { version, generation: 1, reached, checksum: None, refused: 0, wrote }
}

/// Begins a version of the binding. Returns its progress.
fn begin(binding_states: &BindingStates, at: &ExportPlace, number: u64) -> BindingProgress {
    let engine = binding_states.look(&binding(), |progress| progress.engine().clone()).unwrap_or_default();
    let wanted = WantedVersion { number, since: Instant::now(), cadence: Duration::ZERO, requested: None };
    binding_states.begin(&binding(), at, &engine, wanted);
    engine
}

/// The status says that the rows are at a place.
fn tell_place(binding_states: &BindingStates, at: &ExportPlace) {
    let told = Destinations { held: Some(at.clone()), ..Destinations::default() };
    binding_states.advance(&binding(), told, Some(at));
}

#[test]
fn refused_rows_are_remembered_and_not_counted_as_written() {
    let (binding_states, name) = (BindingStates::default(), binding());
    begin(&binding_states, &export_place(&place()), 1);
    let state = || {
        let progress = binding_states.of(&name);
        (progress.refused.join(" "), progress.written)
    };
    let outcome = outcome(delta(&["1", "2", "3"], &[], &[]), receipt(None, &["3"]));
    binding_states.hear(&name, &place(), &BindingEvent::Compared(&outcome));
    assert_eq!(state(), ("3".into(), 2));
    let written = |delta: Delta, receipt: Receipt| {
        binding_states.hear(&name, &place(), &BindingEvent::Written(&delta, &receipt));
    };
    // A receipt names all rows that are missing, not only those of its write.
    written(delta(&["4"], &[], &[]), receipt(None, &["3"]));
    assert_eq!(state(), ("3".into(), 3), "another write does not make it fit");
    written(delta(&["5"], &["1"], &[]), receipt(None, &["3", "5"]));
    assert_eq!(state(), ("3 5".into(), 4));
    written(delta(&[], &["3"], &["5", "4"]), receipt(None, &[]));
    assert_eq!(state(), (String::new(), 7));
}

#[test]
fn what_is_held_back_knows_since_when() {
    let (binding_states, name) = (BindingStates::default(), binding());
    begin(&binding_states, &export_place(&place()), 1);
    binding_states.hear(&name, &place(), &BindingEvent::HeldBack { coverage: "blind: Pod" });
    let first = binding_states.of(&name).held_back_since.unwrap();
    binding_states.hear(&name, &place(), &BindingEvent::HeldBack { coverage: "blind: Pod" });
    assert_eq!(binding_states.of(&name).held_back_since, Some(first));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(Some("sum"), &[]));
    binding_states.hear(&name, &place(), &BindingEvent::Compared(&outcome));
    assert_eq!(binding_states.of(&name).held_back_since, None);
}

#[test]
fn writes_that_change_nothing_but_counts_are_told_apart() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let engine = begin(&binding_states, &export_place(&place()), 1);
    let (mut changes, mut counts) = (binding_states.changes(), binding_states.counts());
    let mut told = |what: BindingEvent<'_>| {
        binding_states.hear(&name, &place(), &what);
        let heard = (changes.has_changed().unwrap(), counts.has_changed().unwrap());
        changes.mark_unchanged();
        counts.mark_unchanged();
        heard
    };
    let (news, only_counts) = ((true, false), (false, true));
    let (rows, works, refuses) = (delta(&["1"], &[], &[]), receipt(None, &[]), receipt(None, &["1"]));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(None, &[]));
    engine.acknowledge(acknowledgement(1, true));
    assert_eq!(told(BindingEvent::Compared(&outcome)), news, "it has not worked before");
    assert_eq!(told(BindingEvent::Written(&rows, &works)), only_counts);
    assert_eq!(told(BindingEvent::Waits), only_counts);
    assert_eq!(told(BindingEvent::Late), news);
    assert_eq!(told(BindingEvent::Written(&rows, &refuses)), news);
    assert_eq!(told(BindingEvent::Written(&rows, &works)), news, "nothing is refused any more");
    assert_eq!(told(BindingEvent::HeldBack { coverage: "blind: Pod" }), news);
    assert_eq!(told(BindingEvent::Written(&rows, &works)), news, "it is not held back any more");
    assert_eq!(told(BindingEvent::Written(&rows, &works)), only_counts);
    let error = SinkError::new(SinkReason::Unreachable, "away");
    let fails = || BindingEvent::Failed { error: &error, pause: Some(Duration::from_secs(1)) };
    assert_eq!(told(fails()), news);
    assert_eq!(told(fails()), only_counts, "only when it is tried again");
    assert_eq!(told(BindingEvent::Written(&rows, &works)), news, "it works again");
    begin(&binding_states, &export_place(&place()), 2);
    assert_eq!(told(BindingEvent::Written(&rows, &works)), only_counts, "the last write of the old version");
    engine.acknowledge(acknowledgement(2, false));
    assert_eq!(told(BindingEvent::Compared(&outcome)), news, "the new version");
    assert_eq!(binding_states.take_heard().failed, BTreeSet::from([name.clone()]));
}

#[test]
fn what_a_binding_did_in_another_destination_does_not_count() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let old = begin(&binding_states, &export_place(&place()), 1);
    old.acknowledge(acknowledgement(1, true));
    tell_place(&binding_states, &export_place(&place()));
    assert!(binding_states.of(&name).is_synced());
    let new = export_place(&Place { destination: "sqlite:/new".into(), ..place() });
    let wanted = WantedVersion { number: 2, since: Instant::now(), cadence: Duration::ZERO, requested: None };
    binding_states.begin(&name, &new, &BindingProgress::default(), wanted);
    assert!(!binding_states.of(&name).is_synced());
    // The last write to the old one.
    old.acknowledge(acknowledgement(1, true));
    binding_states.hear(
        &name,
        &place(),
        &BindingEvent::Written(&delta(&["1"], &[], &[]), &receipt(None, &[])),
    );
    assert!(!binding_states.of(&name).is_synced());
}

#[test]
fn law_12_what_specs_have_outgrown_is_not_synced_although_the_sink_has_acknowledged_it() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let engine = begin(&binding_states, &export_place(&place()), 1);
    tell_place(&binding_states, &export_place(&place()));
    engine.acknowledge(acknowledgement(1, true));
    assert!(binding_states.of(&name).is_synced());
    // A changed Secret is being read: the wanted version cannot be built yet.
    binding_states.set_newest(&name, false);
    assert!(!binding_states.of(&name).is_synced());
    let since = binding_states.of(&name).newer_since();
    binding_states.set_newest(&name, false);
    assert_eq!(binding_states.of(&name).newer_since(), since);
    binding_states.set_newest(&name, true);
    assert!(binding_states.of(&name).is_synced(), "the Secret holds what it held");
    binding_states.set_newest(&name, false);
    begin(&binding_states, &export_place(&place()), 2);
    assert!(binding_states.of(&name).newer_since().is_none() && !binding_states.of(&name).is_synced());
}

#[test]
fn a_request_is_handled_when_an_attempt_has_ended_that_began_after_it() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let engine = begin(&binding_states, &export_place(&place()), 1);
    let is_handled = |value: &str| binding_states.of(&name).has_handled(Some(&value.to_owned()));
    let error = SinkError::new(SinkReason::Unreachable, "away");
    engine.tried(1);
    binding_states.hear(&name, &place(), &BindingEvent::Failed { error: &error, pause: None });
    let requested = Some("now".to_owned());
    let wanted = WantedVersion { number: 2, since: Instant::now(), cadence: Duration::ZERO, requested };
    binding_states.begin(&name, &export_place(&place()), &engine, wanted);
    assert!(!is_handled("now"), "the failure is older");
    engine.tried(1);
    binding_states.hear(&name, &place(), &BindingEvent::Failed { error: &error, pause: None });
    assert!(!is_handled("now"), "an attempt that had begun before");
    engine.tried(2);
    assert!(is_handled("now"));
    assert!(!is_handled("later"));
}

#[test]
fn the_last_write_of_a_duplicate_does_not_count() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let engine = begin(&binding_states, &export_place(&place()), 1);
    tell_place(&binding_states, &export_place(&place()));
    let other = BindingName { sink: "database/r".into(), ..binding() };
    binding_states.refuse_duplicates(&BTreeMap::from([(name.clone(), other)]));
    engine.acknowledge(acknowledgement(1, true));
    binding_states.hear(
        &name,
        &place(),
        &BindingEvent::Compared(&outcome(delta(&["1"], &[], &[]), receipt(None, &[]))),
    );
    assert_eq!(
        binding_states.of(&name).failure().unwrap().message,
        "two references of one inventory lead to one place: this one and team/i database/r"
    );
    assert!(!binding_states.of(&name).is_synced());
    binding_states.refuse_duplicates(&BTreeMap::new());
    assert!(binding_states.of(&name).failure().is_none());
    assert!(!binding_states.of(&name).is_synced(), "the other one has written meanwhile");
}

fn place() -> Place {
    Place { destination: "sqlite:/data".into(), inventory: binding().inventory.in_cluster("") }
}

fn binding() -> BindingName {
    let inventory = InventoryName { namespace: Some("team".into()), name: "i".into() };
    BindingName { inventory, sink: "database/s".into() }
}
