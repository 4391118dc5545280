use std::thread;

use serde_json::{json, value::to_raw_value};

use super::*;
use crate::select::BeyondReach;

fn target() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "t".into() }
}

fn gvk(kind: &str) -> Gvk {
    Gvk { version: "v1".into(), kind: kind.into(), ..Gvk::default() }
}

fn key(kind: &str, namespace: &str, uid: &str) -> RowKey {
    let (kind, namespace, uid) = (kind.into(), namespace.into(), uid.into());
    RowKey { target: target(), group: "".into(), kind, namespace, uid }
}

fn row(kind: &str, namespace: &str, uid: &str) -> Row {
    let attributes = to_raw_value(&json!({ "uid": uid })).unwrap();
    Row::new(key(kind, namespace, uid), "v1".into(), uid.into(), attributes.into())
}

fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn rows_of_a_deselected_kind_are_replaced_where_every_selected_kind_has_been_listed() {
    let replaced = |visibilities: &[Visibility]| {
        ["a", "b", ""].map(|namespace| is_replaced(&key("Pod", namespace, "u"), visibilities.iter()))
    };
    let beyond = |seen: Visibility, beyond| seen.limited_by(Some(beyond));
    let (all_but, within) = (Visibility::AllBut(names(&["b"])), Visibility::Within(names(&["a"])));
    let (none, all) = ([false; 3], [true; 3]);
    for nothing_listed in [Visibility::Pending, Visibility::Partial, Visibility::Absent] {
        assert_eq!(replaced(std::slice::from_ref(&nothing_listed)), none);
        assert_eq!(replaced(&[Visibility::Everything, nothing_listed]), none);
    }
    assert_eq!(replaced(&[Visibility::Everything]), all);
    assert_eq!(replaced(std::slice::from_ref(&all_but)), [true, false, false]);
    assert_eq!(replaced(&[within]), [true, false, false]);
    assert_eq!(replaced(&[all_but, Visibility::AllBut(names(&["a"]))]), none, "each where the other is not");
    assert_eq!(
        replaced(&[beyond(Visibility::Everything, BeyondReach::Kind)]),
        none,
        "nothing of it was listed"
    );
    let own = BeyondReach::OtherNamespaces(names(&["a"]));
    assert_eq!(replaced(&[beyond(Visibility::Everything, own)]), [true, false, true]);
    assert_eq!(replaced(&[]), all, "the target selects nothing at all");
}

/// A row that comes and goes between two reads must not be in one of them alone.
#[test]
fn changes_and_rows_that_are_taken_together_agree_while_rows_come_and_go() {
    let (writer, reader) = store();
    let pods = writer.rows(&target(), &gvk("Pod"));
    pods.set_visibility(Visibility::Everything);
    let mut changes = reader.changes(&[target()]);
    let mut known: BTreeMap<RowKey, Arc<Row>> = BTreeMap::new();
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for number in 0..20_000 {
                let uid = format!("u{}", number % 3);
                if number % 2 == 0 {
                    pods.upsert(row("Pod", "a", &uid), RowOrigin::default(), None);
                } else {
                    pods.remove(&uid);
                }
            }
        });
        while !writing.is_finished() {
            let (taken, rows) = changes.take_with_rows();
            for change in taken.changes {
                match change.after {
                    Some(row) => drop(known.insert(change.key, row)),
                    None => drop(known.remove(&change.key)),
                }
            }
            assert!(known.keys().eq(rows.keys()), "changes lead to {known:?}, and the rows are {rows:?}");
        }
    });
}

#[test]
fn a_run_of_one_namespace_removes_rows_of_deselected_kinds_there_only() {
    let (writer, reader) = store();
    writer.rows(&target(), &gvk("Node")).set_visibility(Visibility::Everything);
    let is_gone = |outside: Visibility| {
        let snapshot = reader.snapshot(&[target()], outside).unwrap();
        ["a", "b", ""].map(|namespace| snapshot.knows_gone(&key("Pod", namespace, "u")))
    };
    assert_eq!(is_gone(Visibility::Everything), [true; 3]);
    assert_eq!(is_gone(Visibility::Within(names(&["a"]))), [true, false, false]);
    assert_eq!(is_gone(Visibility::Partial), [false; 3], "files say nothing about what they do not contain");
}

#[test]
fn rows_of_the_old_and_of_the_new_kind_change_at_once_for_a_reader_in_another_thread() {
    for _ in 0..300 {
        let (writer, reader) = store();
        let pods = writer.rows(&target(), &gvk("Pod"));
        pods.upsert(row("Pod", "a", "p"), RowOrigin::default(), None);
        pods.set_visibility(Visibility::Everything);
        let mut changes = reader.changes(&[target()]);
        let jobs = writer.rows(&target(), &gvk("Job"));
        writer.set_selected_kinds(&target(), &[&gvk("Job")].into());
        jobs.upsert(row("Job", "a", "j"), RowOrigin::default(), None);
        assert!(changes.is_empty());
        let first = thread::scope(|threads| {
            threads.spawn(|| jobs.set_visibility(Visibility::Everything));
            loop {
                let found = changes.take();
                if !found.is_empty() {
                    return found;
                }
            }
        });
        assert_eq!(first.len(), 2);
    }
}

/// A row that this definition makes, in a kind that has been listed.
fn listed(writer: &StoreWriter, kind: &str, definition: u32) -> KindRows {
    let rows = writer.rows(&target(), &gvk(kind)).for_definition(definition);
    rows.upsert(row(kind, "a", "u"), RowOrigin { definition, ..RowOrigin::default() }, None);
    rows.set_visibility(Visibility::Everything);
    rows
}

/// Why the only row that has changed was removed.
fn cause(changes: &mut Changes) -> Option<RemovalCause> {
    let taken = changes.take();
    assert!(matches!(&*taken, [change] if change.after.is_none()), "{taken:?}");
    taken[0].removal
}

#[test]
fn a_row_that_its_own_definition_removes_has_the_cause_object_gone() {
    let removals: [fn(&KindRows); 5] = [
        |rows| assert!(rows.remove("u")),
        |rows| rows.remove_where(|_, _| true),
        KindRows::clear,
        |rows| {
            let origin = RowOrigin { definition: 1, ..RowOrigin::default() };
            assert!(rows.fail(key("Pod", "a", "u"), origin, "no number".into()).removed_row);
        },
        |rows| {
            // A row that is only read again is no change of specs.
            rows.outdate(Some("a"));
            assert!(!rows.origin("u").unwrap().is_of(1));
            assert!(rows.remove("u"));
        },
    ];
    for remove in removals {
        let (writer, reader) = store();
        let mut changes = reader.changes(&[target()]);
        let rows = listed(&writer, "Pod", 1);
        assert_eq!(changes.take().len(), 1);
        remove(&rows);
        assert_eq!(cause(&mut changes), Some(RemovalCause::ObjectGone));
    }
}

#[test]
fn a_row_that_another_definition_removes_has_the_cause_spec_changed() {
    let removals: [fn(&StoreWriter, &KindRows); 5] = [
        |_, new| assert!(new.remove("u")),
        |_, new| new.remove_where(|_, origin| !origin.is_of(2)),
        |_, new| {
            let origin = RowOrigin { definition: 2, ..RowOrigin::default() };
            assert!(new.fail(key("Pod", "a", "u"), origin, "no number".into()).removed_row);
        },
        |writer, _| writer.remove_target(&target()),
        |writer, _| {
            writer.rows(&target(), &gvk("Job")).set_visibility(Visibility::Everything);
            writer.set_selected_kinds(&target(), &[&gvk("Job")].into());
        },
    ];
    for remove in removals {
        let (writer, reader) = store();
        let mut changes = reader.changes(&[target()]);
        drop(listed(&writer, "Pod", 1));
        assert_eq!(changes.take().len(), 1);
        remove(&writer, &writer.rows(&target(), &gvk("Pod")).for_definition(2));
        assert_eq!(cause(&mut changes), Some(RemovalCause::SpecChanged));
    }
    // A kind that does not exist has no objects, whichever definition made the rows.
    let (writer, reader) = store();
    drop(listed(&writer, "Pod", 1));
    let mut changes = reader.changes(&[target()]);
    writer.rows(&target(), &gvk("Pod")).for_definition(2).clear();
    assert_eq!(cause(&mut changes), Some(RemovalCause::ObjectGone));
}

#[test]
fn the_last_removal_of_a_row_is_its_cause_and_a_row_that_came_back_has_none() {
    let (writer, reader) = store();
    drop(listed(&writer, "Pod", 1));
    let mut changes = reader.changes(&[target()]);
    let rows = writer.rows(&target(), &gvk("Pod")).for_definition(2);
    let origin = RowOrigin { definition: 2, ..RowOrigin::default() };
    assert!(rows.remove("u"));
    rows.upsert(row("Pod", "a", "u"), origin, None);
    assert!(changes.take().is_empty(), "it is as it was");
    assert!(rows.remove("u"));
    rows.upsert(row("Pod", "a", "u"), RowOrigin { definition: 1, ..origin }, None);
    assert!(rows.remove("u"));
    assert_eq!(cause(&mut changes), Some(RemovalCause::SpecChanged));
    rows.upsert(row("Pod", "a", "u"), origin, None);
    let back = changes.take();
    assert!(back[0].after.is_some() && back[0].removal.is_none());
}

#[test]
fn a_snapshot_knows_which_rows_of_a_sink_are_gone_because_of_specs() {
    let (writer, reader) = store();
    drop(listed(&writer, "Pod", 1));
    let by_spec = |targets: &[TargetId], key: &RowKey| {
        let snapshot = reader.snapshot(targets, Visibility::Everything).unwrap();
        (snapshot.knows_gone(key), snapshot.is_gone_by_spec(key))
    };
    let other = TargetId { namespace: None, name: "other".into() };
    assert_eq!(by_spec(&[target()], &key("Pod", "a", "u")), (false, false), "it exists");
    assert_eq!(by_spec(&[target()], &key("Pod", "a", "v")), (true, false), "its object may be gone");
    assert_eq!(by_spec(&[target()], &key("Job", "a", "v")), (true, true), "the target has left the kind");
    let foreign = RowKey { target: other.clone(), ..key("Pod", "a", "v") };
    assert_eq!(by_spec(&[target()], &foreign), (true, true), "not a target of the inventory");
    assert_eq!(by_spec(&[target(), other], &foreign), (false, false), "no task collects it");
    writer.rows(&target(), &gvk("Node")).set_visibility(Visibility::Absent);
    assert_eq!(by_spec(&[target()], &key("Job", "a", "v")), (false, false), "it waits for a kind");
    assert_eq!(by_spec(&[target()], &key("Node", "", "v")), (true, false), "the kind has no objects");
}

#[test]
fn a_row_of_an_undecided_object_stays_until_it_is_decided() {
    let (writer, reader) = store();
    let pods = writer.rows(&target(), &gvk("Pod"));
    let origin = |version| RowOrigin { version, ..RowOrigin::default() };
    let undecide = |uid: &str, version| {
        pods.undecide(key("Pod", "a", uid), format!("pod-{uid}").into(), origin(version))
    };
    pods.upsert(row("Pod", "a", "old"), origin(1), None);
    pods.set_visibility(Visibility::Everything);
    let mut changes = reader.changes(&[target()]);
    changes.take();
    assert!(undecide("old", 2) && undecide("new", 2) && !undecide("new", 3), "it is new once");
    assert_eq!(reader.undecided(&target()), (2, vec!["a/pod-new".to_owned(), "a/pod-old".to_owned()]));
    assert_eq!([pods.origin("old"), pods.origin("new")].map(|origin| origin.unwrap().version), [2, 3]);
    let gone = || {
        let snapshot = reader.snapshot(&[target()], Visibility::Everything).unwrap();
        ["old", "new", "other"].map(|uid| snapshot.knows_gone(&key("Pod", "a", uid)))
    };
    assert_eq!(gone(), [false, false, true], "a sink may hold the row of the new one");
    assert!(changes.take().is_empty(), "nothing has changed");
    // Decided: one is not selected, the other is.
    assert!(!pods.remove("new"), "there was no row");
    pods.upsert(row("Pod", "a", "old"), origin(4), None);
    assert_eq!((gone(), reader.undecided(&target()).0), ([false, true, true], 0));
    let taken = changes.take();
    assert!(
        matches!(taken.as_slice(), [change] if *change.key.uid == *"new" && change.before.is_none() && change.after.is_none()),
        "a binding must compare: {taken:?}"
    );
    // What removes rows removes undecided objects.
    undecide("old", 5);
    undecide("new", 5);
    assert_eq!(pods.find(|_, _| true).len(), 2);
    pods.remove_where(|_, origin| origin.version == 5);
    assert_eq!((reader.count(&target()), reader.undecided(&target()).0, gone()), (0, 0, [true; 3]));
    undecide("new", 6);
    pods.clear();
    assert_eq!(reader.undecided(&target()).0, 0);
}

#[test]
fn notes_of_rows_are_counted_and_their_examples_are_current() {
    let (writer, reader) = store();
    let pods = writer.rows(&target(), &gvk("Pod"));
    let notes = |values| {
        let types = Some(("int", "a string"));
        let nulls = vec![NullAttribute { name: "n".into(), cause: NullCause::TypeMismatch, types }];
        Arc::new(RowNotes { nulls, redactions: vec![RedactedAttribute { name: "env".into(), values }] })
    };
    let upsert = |uid: &str, values, found: &str| {
        let examples = vec![("n".into(), found.to_owned())];
        pods.upsert(row("Pod", "a", uid), RowOrigin::default(), Some((notes(values), &examples)))
    };
    let found = || {
        let nulls =
            reader.nulls(&target()).into_iter().map(|null| (null.rows, null.object, null.found)).next();
        let redactions = reader.redactions(&target());
        let redactions =
            redactions.into_iter().map(|redacted| (redacted.rows, redacted.values, redacted.object)).next();
        (nulls.unwrap_or_default(), redactions.unwrap_or_default())
    };
    upsert("p", 2, "x");
    upsert("q", 3, "y");
    assert_eq!(found(), ((2, "a/p".into(), "x".into()), (2, 5, "a/p".into())));
    upsert("p", 2, "z");
    assert_eq!(found().0, (2, "a/p".into(), "z".into()), "the example is what the object has now");
    pods.remove("p");
    assert_eq!(
        found(),
        ((1, "a/q".into(), String::new()), (1, 3, "a/q".into())),
        "another example, without its value"
    );
    upsert("q", 1, "y");
    assert_eq!(found(), ((1, "a/q".into(), "y".into()), (1, 1, "a/q".into())));
    assert_eq!((reader.mismatched(&target()), reader.redacted_values(&target())["env"]), (1, 1));
    pods.upsert(row("Pod", "a", "q"), RowOrigin::default(), None);
    assert!(reader.nulls(&target()).is_empty() && reader.redacted_values(&target()).is_empty());
}
