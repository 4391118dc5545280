//! What is remembered of the rows that a sink holds and refuses.

use std::sync::Arc;

use kollect_model::{
    batch::{Changed, Refusal, Removed},
    binding::InventoryName,
    row::{Row, TargetId},
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

#[test]
fn refused_rows_are_remembered_until_they_are_written_or_gone() {
    let (board, name) = (Board::default(), binding());
    board.begin(&name, &export_place(&place()));
    let state = || {
        let progress = board.of(&name);
        (progress.rows.unwrap(), progress.refused.join(" "), progress.written)
    };
    let outcome = outcome(delta(&["1", "2", "3"], &[], &[]), receipt(None, &["3"]));
    board.hear(&name, &place(), &Told::Compared(&outcome));
    assert_eq!(state(), (2, "3".into(), 2));
    let written =
        |delta: Delta, receipt: Receipt| board.hear(&name, &place(), &Told::Written(&delta, &receipt));
    // A receipt names all rows that are missing, not only those of its write.
    written(delta(&["4"], &[], &[]), receipt(None, &["3"]));
    assert_eq!(state(), (3, "3".into(), 3), "another write does not make it fit");
    written(delta(&["5"], &["1"], &[]), receipt(None, &["3", "5"]));
    assert_eq!(state(), (3, "3 5".into(), 4));
    written(delta(&[], &["3"], &["5", "4"]), receipt(None, &[]));
    assert_eq!(state(), (3, String::new(), 7), "one fits now, one is gone, and one was never held");
    written(delta(&[], &["3"], &[]), receipt(None, &["3"]));
    assert_eq!(state(), (3, "3".into(), 7), "the sink holds its older version");
    written(delta(&[], &[], &["3"]), receipt(None, &[]));
    assert_eq!(state(), (2, String::new(), 8));
    // A write that began before the sink led somewhere else and back ends now.
    board.begin(&name, &ExportPlace::new("sqlite:/elsewhere".into(), ""));
    board.begin(&name, &export_place(&place()));
    written(delta(&["6"], &[], &[]), receipt(None, &[]));
    let progress = board.of(&name);
    assert_eq!(
        (progress.rows, progress.confirmed),
        (None, false),
        "only a comparison knows how many there are"
    );
}

#[test]
fn what_is_held_back_knows_since_when() {
    let (board, name) = (Board::default(), binding());
    board.begin(&name, &export_place(&place()));
    board.hear(&name, &place(), &Told::HeldBack { coverage: "blind: Pod" });
    let first = board.of(&name).held_back_since.unwrap();
    board.hear(&name, &place(), &Told::HeldBack { coverage: "blind: Pod" });
    assert_eq!(board.of(&name).held_back_since, Some(first));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(Some("sum"), &[]));
    board.hear(&name, &place(), &Told::Compared(&outcome));
    assert_eq!(board.of(&name).held_back_since, None);
}

#[test]
fn writes_that_change_nothing_but_counts_are_told_apart() {
    let (board, name) = (Board::default(), binding());
    board.begin(&name, &export_place(&place()));
    let (mut changes, mut counts) = (board.changes(), board.counts());
    let mut told = |what: Told<'_>| {
        board.hear(&name, &place(), &what);
        let heard = (changes.has_changed().unwrap(), counts.has_changed().unwrap());
        changes.mark_unchanged();
        counts.mark_unchanged();
        heard
    };
    let (news, only_counts) = ((true, false), (false, true));
    let (rows, works, refuses) = (delta(&["1"], &[], &[]), receipt(None, &[]), receipt(None, &["1"]));
    let outcome = outcome(delta(&["1"], &[], &[]), receipt(None, &[]));
    assert_eq!(told(Told::Compared(&outcome)), news, "it has not worked before");
    assert_eq!(told(Told::Written(&rows, &works)), only_counts);
    assert_eq!(told(Told::Written(&rows, &refuses)), news);
    assert_eq!(told(Told::Written(&rows, &works)), news, "nothing is refused any more");
    assert_eq!(told(Told::HeldBack { coverage: "blind: Pod" }), news);
    assert_eq!(told(Told::Written(&rows, &works)), news, "it is not held back any more");
    assert_eq!(told(Told::Written(&rows, &works)), only_counts);
    board.begin(&name, &export_place(&place()));
    assert_eq!(told(Told::Written(&rows, &works)), news, "it was doubted");
}

#[test]
fn what_a_binding_did_in_another_destination_does_not_count() {
    let (board, name) = (Board::default(), binding());
    board.begin(&name, &export_place(&place()));
    board.hear(&name, &place(), &Told::Compared(&outcome(delta(&["1"], &[], &[]), receipt(None, &[]))));
    assert!(board.of(&name).confirmed);
    let new = Place { destination: "sqlite:/new".into(), ..place() };
    board.begin(&name, &export_place(&new));
    assert_eq!((board.of(&name).confirmed, board.of(&name).rows), (false, None));
    board.hear(&name, &place(), &Told::Written(&delta(&["1"], &[], &[]), &receipt(None, &[])));
    assert!(!board.of(&name).confirmed, "the last write to the old one");
}

#[test]
fn the_last_write_of_a_duplicate_does_not_count() {
    let (board, name) = (Board::default(), binding());
    board.begin(&name, &export_place(&place()));
    let other = BindingName { sink: "database/r".into(), ..binding() };
    board.refuse_duplicates(&BTreeMap::from([(name.clone(), other)]));
    board.hear(&name, &place(), &Told::Compared(&outcome(delta(&["1"], &[], &[]), receipt(None, &[]))));
    assert_eq!(
        board.of(&name).failure().unwrap().message,
        "two references of one inventory lead to one place: this one and team/i database/r"
    );
    assert!(!board.of(&name).is_synced());
    board.refuse_duplicates(&BTreeMap::new());
    assert!(board.of(&name).failure().is_none());
    assert!(!board.of(&name).confirmed, "the other one has written meanwhile");
}

fn place() -> Place {
    Place { destination: "sqlite:/data".into(), inventory: binding().inventory.in_cluster("") }
}

fn binding() -> BindingName {
    let inventory = InventoryName { namespace: Some("team".into()), name: "i".into() };
    BindingName { inventory, sink: "database/s".into() }
}
