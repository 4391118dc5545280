use std::thread;

use serde_json::{json, value::to_raw_value};

use super::*;

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
fn a_left_row_is_replaced_where_every_wanted_kind_has_been_listed() {
    let replaced = |sights: &[Sight]| {
        ["a", "b", ""].map(|namespace| is_replaced(&key("Pod", namespace, "u"), sights.iter()))
    };
    let beyond = |seen: Sight, beyond| seen.but(Some(beyond));
    let (all_but, within) = (Sight::AllBut(names(&["b"])), Sight::Within(names(&["a"])));
    let (none, all) = ([false; 3], [true; 3]);
    for nothing_listed in [Sight::Pending, Sight::Partial, Sight::Absent] {
        assert_eq!(replaced(std::slice::from_ref(&nothing_listed)), none);
        assert_eq!(replaced(&[Sight::Everything, nothing_listed]), none);
    }
    assert_eq!(replaced(&[Sight::Everything]), all);
    assert_eq!(replaced(std::slice::from_ref(&all_but)), [true, false, false]);
    assert_eq!(replaced(&[within]), [true, false, false]);
    assert_eq!(replaced(&[all_but, Sight::AllBut(names(&["a"]))]), none, "each where the other is not");
    assert_eq!(replaced(&[beyond(Sight::Everything, Beyond::Kind)]), none, "nothing of it was listed");
    let own = Beyond::OtherNamespaces(names(&["a"]));
    assert_eq!(replaced(&[beyond(Sight::Everything, own)]), [true, false, true]);
    assert_eq!(replaced(&[]), all, "the target selects nothing at all");
}

#[test]
fn a_run_that_looked_at_one_namespace_removes_left_rows_there_only() {
    let (writer, reader) = store();
    writer.rows(&target(), &gvk("Node")).set_sight(Sight::Everything);
    let gone = |rest: Sight| {
        let snapshot = reader.snapshot(&[target()], rest).unwrap();
        ["a", "b", ""].map(|namespace| snapshot.knows_gone(&key("Pod", namespace, "u")))
    };
    assert_eq!(gone(Sight::Everything), [true; 3]);
    assert_eq!(gone(Sight::Within(names(&["a"]))), [true, false, false]);
    assert_eq!(gone(Sight::Partial), [false; 3], "files say nothing about what they do not contain");
}

#[test]
fn rows_of_the_old_and_of_the_new_kind_change_at_once_for_a_reader_in_another_thread() {
    for _ in 0..300 {
        let (writer, reader) = store();
        let pods = writer.rows(&target(), &gvk("Pod"));
        pods.upsert(row("Pod", "a", "p"), Origin::default());
        pods.set_sight(Sight::Everything);
        let mut changes = reader.changes(&[target()]);
        let jobs = writer.rows(&target(), &gvk("Job"));
        writer.keep_kinds(&target(), &[&gvk("Job")].into());
        jobs.upsert(row("Job", "a", "j"), Origin::default());
        assert!(changes.is_empty());
        let first = thread::scope(|threads| {
            threads.spawn(|| jobs.set_sight(Sight::Everything));
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
