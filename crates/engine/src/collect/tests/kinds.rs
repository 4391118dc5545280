//! Targets that change their kind: the old rows are removed with the first complete list of the new kind, and with
//! nothing else.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kollect_model::row::RowKey;
use serde_json::{Value, json};
use tokio::time;

use super::{CollectTest, Target, WatchPhase, profile, target, target_id, test_with_pods};
use crate::{
    store::{Changes, Visibility},
    watch::{BlindReason, Blindness, Event},
};

/// The first target, with these kinds.
fn of_kinds(kinds: &[&str]) -> Arc<Target> {
    let rules: Vec<Value> =
        kinds.iter().map(|kind| json!({ "gvk": { "version": "v1", "kind": kind } })).collect();
    let version = json!({ "name": "version", "path": "$.metadata.resourceVersion", "type": "string" });
    target(0, &json!({ "resourceRules": rules }), &profile(&json!([version])))
}

fn select_kinds(test: &mut CollectTest, kinds: &[&str]) {
    test.targets.insert(0, of_kinds(kinds));
    test.set_targets();
}

fn put(test: &CollectTest, kind: &str, uid: &str, namespace: &str) {
    let mut object = json!({ "metadata": { "name": uid, "namespace": namespace }, "spec": { "image": "i" } });
    if namespace.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("namespace");
    }
    test.with(|cluster| cluster.put(kind, uid, object));
}

/// Two pods and two jobs, in namespaces a and b; the target selects the pods.
async fn test_with_kinds() -> (CollectTest, Changes) {
    let mut test = test_with_pods(0).await;
    test.with(|cluster| cluster.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } })));
    for (kind, uid, namespace) in [
        ("Pod", "p-a", "a"),
        ("Pod", "p-b", "b"),
        ("Job", "j-a", "a"),
        ("Job", "j-b", "b"),
        ("Node", "n", ""),
    ] {
        put(&test, kind, uid, namespace);
    }
    select_kinds(&mut test, &["Pod"]);
    test.drain_streams().await;
    assert_eq!(uids(&test), ["p-a", "p-b"]);
    let changes = test.rows.changes(&[target_id(0)]);
    (test, changes)
}

fn uids(test: &CollectTest) -> Vec<String> {
    let rows = test.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything).rows;
    let mut uids: Vec<String> = rows.keys().map(|key| key.uid.to_string()).collect();
    uids.sort();
    uids
}

/// What has changed: `+` and `-` before the UID.
fn take(changes: &mut Changes) -> BTreeSet<String> {
    let sign = |is_removed: bool| if is_removed { '-' } else { '+' };
    changes
        .take()
        .iter()
        .map(|change| format!("{}{}", sign(change.after.is_none()), change.key.uid))
        .collect()
}

/// Lets every stream send what it has, one event after the other. Returns what a reader that reads after each event
/// gets, without empty results.
async fn readings(test: &mut CollectTest, changes: &mut Changes) -> Vec<BTreeSet<String>> {
    let mut readings = Vec::new();
    for _ in 0..12 {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for index in 0..test.with(|cluster| cluster.streams.len()) {
                let (cluster, random) = (test.cluster.clone(), &mut test.random);
                moved |= cluster.lock().unwrap().step(index, random);
                test.receive_events().await;
                readings.push(take(changes));
            }
        }
        time::sleep(Duration::from_secs(8)).await;
        readings.push(take(changes));
    }
    readings.retain(|reading| !reading.is_empty());
    readings
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(ToString::to_string).collect()
}

/// Discovery reports a change.
fn discover(test: &CollectTest) {
    test.kinds.send_modify(|number| *number += 1);
}

fn deny(test: &CollectTest, kind: &str, namespaces: &[Option<&str>]) {
    let denied = namespaces.iter().map(|name| (kind.to_owned(), name.map(ToOwned::to_owned)));
    test.with(|cluster| cluster.denied.extend(denied));
}

/// Keys of rows that an earlier process has written.
fn baseline(test: &CollectTest) -> Vec<RowKey> {
    test.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything).rows.into_keys().collect()
}

/// Which of these rows an operator would remove from a sink.
fn removed(test: &CollectTest, baseline: &[RowKey]) -> Vec<String> {
    let snapshot = test.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything);
    let removed_keys = baseline.iter().filter(|key| snapshot.knows_gone(key));
    removed_keys.map(|key| key.uid.to_string()).collect()
}

/// The same cluster, and a process that has just begun to look at it.
async fn restart(test: &CollectTest, kinds: &[&str]) -> CollectTest {
    let mut new = CollectTest::new(2);
    let (objects, version) = test.with(|cluster| (cluster.objects.clone(), cluster.version));
    let (absent, denied) = test.with(|cluster| (cluster.absent.clone(), cluster.denied.clone()));
    new.with(|cluster| {
        (cluster.objects, cluster.version, cluster.absent, cluster.denied) =
            (objects, version, absent, denied);
    });
    select_kinds(&mut new, kinds);
    new.finish().await;
    new
}

#[tokio::test(start_paused = true)]
async fn a_new_kind_replaces_the_old_one_at_once() {
    let (mut test, mut changes) = test_with_kinds().await;
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_replaces_nothing() {
    let (mut test, mut changes) = test_with_kinds().await;
    test.with(|cluster| cluster.absent.insert("Job".into()));
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, []);
    assert_eq!(uids(&test), ["p-a", "p-b"]);
    let visibilities = test.rows.visibilities(&[target_id(0)]);
    assert_eq!(visibilities.into_values().collect::<Vec<_>>(), [Visibility::Absent]);
    // The typing error is corrected.
    select_kinds(&mut test, &["Pod"]);
    assert_eq!(readings(&mut test, &mut changes).await, []);
    assert_eq!(uids(&test), ["p-a", "p-b"]);
    // The kind was no typing error: it is installed now.
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, []);
    test.with(|cluster| cluster.absent.clear());
    discover(&test);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
    // The kind has been listed and is removed now: its own objects are known to be gone.
    test.with(|cluster| cluster.absent.insert("Job".into()));
    discover(&test);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-j-a", "-j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_kind_that_is_not_served_removes_nothing_from_a_sink() {
    let (test, _) = test_with_kinds().await;
    let pods = baseline(&test);
    test.with(|cluster| cluster.absent.insert("Job".into()));
    let mut test = restart(&test, &["Job"]).await;
    assert_eq!(removed(&test, &pods), [""; 0], "only the sink knows them");
    let jobs: Vec<RowKey> = pods.iter().map(|key| RowKey { kind: "Job".into(), ..key.clone() }).collect();
    assert_eq!(removed(&test, &jobs).len(), 2, "the kind that does not exist has no objects");
    test.with(|cluster| cluster.absent.clear());
    discover(&test);
    test.receive_events().await;
    assert_eq!(removed(&test, &pods), [""; 0], "it is being listed");
    test.finish().await;
    assert_eq!(
        (removed(&test, &pods), uids(&test)),
        (vec!["p-a".into(), "p-b".into()], vec!["j-a".into(), "j-b".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_replaces_nothing() {
    let (mut test, mut changes) = test_with_kinds().await;
    let pods = baseline(&test);
    deny(&test, "Job", &[None, Some("a"), Some("b")]);
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, []);
    assert_eq!(removed(&restart(&test, &["Job"]).await, &pods), [""; 0]);
    test.with(|cluster| cluster.denied.clear());
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_be_listed_in_one_namespace_replaces_the_rows_there() {
    let (mut test, mut changes) = test_with_kinds().await;
    let pods = baseline(&test);
    deny(&test, "Job", &[None, Some("b")]);
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "+j-a"])]);
    assert_eq!(uids(&test), ["j-a", "p-b"]);
    assert_eq!(removed(&restart(&test, &["Job"]).await, &pods), ["p-a"]);
    test.with(|cluster| cluster.denied.clear());
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-b", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_rows_stay_until_the_new_kind_can_be_listed_everywhere() {
    let (mut test, mut changes) = test_with_kinds().await;
    select_kinds(&mut test, &["Node"]);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    let nodes = baseline(&test);
    deny(&test, "Job", &[None, Some("a"), Some("b")]);
    select_kinds(&mut test, &["Job"]);
    assert_eq!(readings(&mut test, &mut changes).await, []);
    assert_eq!(removed(&restart(&test, &["Job"]).await, &nodes), [""; 0]);
    test.with(|cluster| cluster.denied.clear());
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-n", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_replaces_nothing_until_it_succeeds() {
    let (mut test, mut changes) = test_with_kinds().await;
    select_kinds(&mut test, &["Job"]);
    test.receive_events().await;
    let jobs = test.with(|cluster| cluster.streams.iter().position(|s| s.query.gvk.kind == "Job").unwrap());
    // The list begins, shows one object, and breaks off.
    while !test.with(
        |cluster| matches!(&cluster.streams[jobs].phase, WatchPhase::Listing { objects, .. } if objects.len() < 2),
    ) {
        let (cluster, random) = (test.cluster.clone(), &mut test.random);
        cluster.lock().unwrap().step(jobs, random);
    }
    let failed = || Event::Blind(Blindness { reason: BlindReason::Failed, message: "cut".into() });
    test.with(|cluster| cluster.streams[jobs].events.unbounded_send(failed()).unwrap());
    test.receive_events().await;
    assert_eq!((test.rows.count(&target_id(0)), uids(&test)), (3, vec!["p-a".into(), "p-b".into()]));
    assert_eq!(take(&mut changes), set(&[]), "half a list is shown to no reader");
    test.with(|cluster| cluster.streams[jobs].phase = WatchPhase::Requested);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_changes_twice_before_its_list_ends_is_replaced_once() {
    let (mut test, mut changes) = test_with_kinds().await;
    select_kinds(&mut test, &["Job"]);
    test.receive_events().await;
    let jobs = test.with(|cluster| cluster.streams.iter().position(|s| s.query.gvk.kind == "Job").unwrap());
    while !test.with(
        |cluster| matches!(&cluster.streams[jobs].phase, WatchPhase::Listing { objects, .. } if objects.len() < 2),
    ) {
        let (cluster, random) = (test.cluster.clone(), &mut test.random);
        cluster.lock().unwrap().step(jobs, random);
    }
    test.receive_events().await;
    assert_eq!(test.rows.count(&target_id(0)), 3, "one job is known, and not shown");
    select_kinds(&mut test, &["Node"]);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    assert_eq!(test.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn old_rows_stay_until_every_kind_that_the_target_selects_is_listed() {
    let (mut test, mut changes) = test_with_kinds().await;
    let pods = baseline(&test);
    test.with(|cluster| cluster.absent.insert("Node".into()));
    select_kinds(&mut test, &["Job", "Node"]);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["+j-a", "+j-b"])], "jobs have been listed");
    assert_eq!(removed(&restart(&test, &["Job", "Node"]).await, &pods), [""; 0]);
    test.with(|cluster| cluster.absent.clear());
    discover(&test);
    assert_eq!(readings(&mut test, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    // A kind that is left waits for no list if the others have been listed.
    select_kinds(&mut test, &["Node"]);
    test.receive_events().await;
    assert_eq!(take(&mut changes), set(&["-j-a", "-j-b"]));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_changes_its_kind_may_be_frozen_or_deleted_meanwhile() {
    let (mut test, mut changes) = test_with_kinds().await;
    test.with(|cluster| cluster.absent.insert("Job".into()));
    select_kinds(&mut test, &["Job"]);
    test.drain_streams().await;
    test.collector.set_targets(&[], &BTreeSet::from([target_id(0)]));
    test.drain_streams().await;
    assert_eq!((take(&mut changes), uids(&test)), (set(&[]), vec!["p-a".into(), "p-b".into()]));
    test.set_targets();
    test.drain_streams().await;
    assert_eq!((take(&mut changes), uids(&test)), (set(&[]), vec!["p-a".into(), "p-b".into()]));
    test.targets.clear();
    test.set_targets();
    assert_eq!(take(&mut changes), set(&["-p-a", "-p-b"]), "a deleted target takes its rows along");
}
