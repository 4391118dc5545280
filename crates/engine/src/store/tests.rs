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
