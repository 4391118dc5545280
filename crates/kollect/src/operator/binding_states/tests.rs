//! What is remembered of the rows that a sink holds and refuses.

use std::sync::Arc;

use kollect_engine::{export::Acknowledgement, store::Revision};
use kollect_model::{
    batch::{ChangedRow, RefusedRow, RemovedRow},
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
    let refuse = |uid: &&str| RefusedRow { key: row(uid).key.clone(), why: (*uid).to_owned() };
    Receipt {
        checksum: checksum.map(Into::into),
        refused: refused.iter().map(refuse).collect(),
        ..Receipt::default()
    }
}

fn delta(added: &[&str], changed: &[&str], removed: &[&str]) -> Delta {
    Delta {
        added: added.iter().map(|uid| row(uid)).collect(),
        changed: changed.iter().map(|uid| ChangedRow { before: None, after: row(uid) }).collect(),
        removed: removed.iter().map(|uid| RemovedRow { key: row(uid).key.clone(), before: None }).collect(),
    }
}

fn outcome(delta: Delta, receipt: Receipt) -> Outcome {
    let kept = BTreeMap::new();
    Outcome { delta, receipt, unchanged: 0, left_alone: 0, drifted: 0, is_complete: true, kept }
}

fn acknowledgement(version: u64, wrote: bool) -> Acknowledgement {
    let reached = Revision::at(1);
    Acknowledgement { version, generation: 1, reached, checksum: None, refused: 0, wrote }
}

/// Begins a version of the binding. Returns its progress.
fn begin(binding_states: &BindingStates, destination: &RecordedDestination, number: u64) -> BindingProgress {
    let progress = binding_states.read(&binding(), |state| state.progress().clone()).unwrap_or_default();
    let wanted = WantedVersion { number, since: Instant::now(), cadence: Duration::ZERO, requested: None };
    binding_states.begin(&binding(), destination, &progress, wanted);
    progress
}

/// The status names the destination of the rows.
fn set_status_destination(binding_states: &BindingStates, destination: &RecordedDestination) {
    let in_status = Destinations { held: Some(destination.clone()), ..Destinations::default() };
    binding_states.advance(&binding(), in_status, Some(destination));
}

#[test]
fn refused_rows_are_remembered_and_not_counted_as_written() {
    let (binding_states, name) = (BindingStates::default(), binding());
    begin(&binding_states, &export_destination(&test_destination()), 1);
    let state = || {
        let state = binding_states.of(&name);
        (state.refused.join(" "), state.written)
    };
    let outcome = outcome(delta(&["1", "2", "3"], &[], &[]), receipt(None, &["3"]));
    binding_states.handle_event(&name, &test_destination(), &BindingEvent::Compared(&outcome));
    assert_eq!(state(), ("3".into(), 2));
    let written = |delta: Delta, receipt: Receipt| {
        binding_states.handle_event(&name, &test_destination(), &BindingEvent::Written(&delta, &receipt));
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
fn a_binding_that_is_held_back_keeps_the_time_of_the_first_report() {
    let (binding_states, name) = (BindingStates::default(), binding());
    begin(&binding_states, &export_destination(&test_destination()), 1);
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::HeldBack { coverage: "blind: Pod" },
    );
    let first = binding_states.of(&name).held_back_since.unwrap();
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::HeldBack { coverage: "blind: Pod" },
    );
    assert_eq!(binding_states.of(&name).held_back_since, Some(first));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(Some("sum"), &[]));
    binding_states.handle_event(&name, &test_destination(), &BindingEvent::Compared(&outcome));
    assert_eq!(binding_states.of(&name).held_back_since, None);
}

#[test]
fn writes_that_change_only_counts_have_their_own_signal() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let progress = begin(&binding_states, &export_destination(&test_destination()), 1);
    let (mut changes, mut counts) = (binding_states.changes(), binding_states.counts());
    let mut signals_after = |event: BindingEvent<'_>| {
        binding_states.handle_event(&name, &test_destination(), &event);
        let signals = (changes.has_changed().unwrap(), counts.has_changed().unwrap());
        changes.mark_unchanged();
        counts.mark_unchanged();
        signals
    };
    let (change, only_counts) = ((true, false), (false, true));
    let (rows, works, refuses) = (delta(&["1"], &[], &[]), receipt(None, &[]), receipt(None, &["1"]));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(None, &[]));
    progress.acknowledge(acknowledgement(1, true));
    assert_eq!(signals_after(BindingEvent::Compared(&outcome)), change, "it has not worked before");
    assert_eq!(signals_after(BindingEvent::Written(&rows, &works)), only_counts);
    assert_eq!(signals_after(BindingEvent::Waits), only_counts);
    assert_eq!(signals_after(BindingEvent::Late), change);
    assert_eq!(signals_after(BindingEvent::Written(&rows, &refuses)), change);
    assert_eq!(signals_after(BindingEvent::Written(&rows, &works)), change, "nothing is refused any more");
    assert_eq!(signals_after(BindingEvent::HeldBack { coverage: "blind: Pod" }), change);
    assert_eq!(signals_after(BindingEvent::Written(&rows, &works)), change, "it is not held back any more");
    assert_eq!(signals_after(BindingEvent::Written(&rows, &works)), only_counts);
    let error = SinkError::new(SinkReason::Unreachable, "away");
    let fails = || BindingEvent::Failed { error: &error, pause: Some(Duration::from_secs(1)) };
    assert_eq!(signals_after(fails()), change);
    assert_eq!(signals_after(fails()), only_counts, "only when it is tried again");
    assert_eq!(signals_after(BindingEvent::Written(&rows, &works)), change, "it works again");
    begin(&binding_states, &export_destination(&test_destination()), 2);
    assert_eq!(
        signals_after(BindingEvent::Written(&rows, &works)),
        only_counts,
        "the last write of the old version"
    );
    progress.acknowledge(acknowledgement(2, false));
    assert_eq!(signals_after(BindingEvent::Compared(&outcome)), change, "the new version");
    assert_eq!(binding_states.take_changed().failed, BTreeSet::from([name.clone()]));
}

#[test]
fn a_late_write_to_the_previous_destination_does_not_count() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let old = begin(&binding_states, &export_destination(&test_destination()), 1);
    old.acknowledge(acknowledgement(1, true));
    set_status_destination(&binding_states, &export_destination(&test_destination()));
    assert!(binding_states.of(&name).is_synced());
    let new = export_destination(&DestinationKey { destination: "sqlite:/new".into(), ..test_destination() });
    let wanted = WantedVersion { number: 2, since: Instant::now(), cadence: Duration::ZERO, requested: None };
    binding_states.begin(&name, &new, &BindingProgress::default(), wanted);
    assert!(!binding_states.of(&name).is_synced());
    // The last write to the old one.
    old.acknowledge(acknowledgement(1, true));
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::Written(&delta(&["1"], &[], &[]), &receipt(None, &[])),
    );
    assert!(!binding_states.of(&name).is_synced());
}

#[test]
fn a_binding_is_not_synced_while_the_specs_ask_for_a_newer_version() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let progress = begin(&binding_states, &export_destination(&test_destination()), 1);
    set_status_destination(&binding_states, &export_destination(&test_destination()));
    progress.acknowledge(acknowledgement(1, true));
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
    begin(&binding_states, &export_destination(&test_destination()), 2);
    assert!(binding_states.of(&name).newer_since().is_none() && !binding_states.of(&name).is_synced());
}

#[test]
fn a_request_is_handled_when_an_attempt_has_ended_that_began_after_it() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let progress = begin(&binding_states, &export_destination(&test_destination()), 1);
    let is_handled = |value: &str| binding_states.of(&name).has_handled(Some(&value.to_owned()));
    let error = SinkError::new(SinkReason::Unreachable, "away");
    progress.tried(1);
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::Failed { error: &error, pause: None },
    );
    let requested = Some("now".to_owned());
    let wanted = WantedVersion { number: 2, since: Instant::now(), cadence: Duration::ZERO, requested };
    binding_states.begin(&name, &export_destination(&test_destination()), &progress, wanted);
    assert!(!is_handled("now"), "the failure is older");
    progress.tried(1);
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::Failed { error: &error, pause: None },
    );
    assert!(!is_handled("now"), "an attempt that had begun before");
    progress.tried(2);
    assert!(is_handled("now"));
    assert!(!is_handled("later"));
}

#[test]
fn the_last_write_of_a_duplicate_does_not_count() {
    let (binding_states, name) = (BindingStates::default(), binding());
    let progress = begin(&binding_states, &export_destination(&test_destination()), 1);
    set_status_destination(&binding_states, &export_destination(&test_destination()));
    let other = BindingName { sink: "database/r".into(), ..binding() };
    binding_states.refuse_duplicates(&BTreeMap::from([(name.clone(), other)]));
    progress.acknowledge(acknowledgement(1, true));
    binding_states.handle_event(
        &name,
        &test_destination(),
        &BindingEvent::Compared(&outcome(delta(&["1"], &[], &[]), receipt(None, &[]))),
    );
    assert_eq!(
        binding_states.of(&name).failure().unwrap().message,
        "two references of one inventory have the same destination: this one and team/i database/r"
    );
    assert!(!binding_states.of(&name).is_synced());
    binding_states.refuse_duplicates(&BTreeMap::new());
    assert!(binding_states.of(&name).failure().is_none());
    assert!(!binding_states.of(&name).is_synced(), "the other one has written meanwhile");
}

fn test_destination() -> DestinationKey {
    DestinationKey { destination: "sqlite:/data".into(), inventory: binding().inventory.in_cluster("") }
}

fn binding() -> BindingName {
    let inventory = InventoryName { namespace: Some("team".into()), name: "i".into() };
    BindingName { inventory, sink: "database/s".into() }
}
