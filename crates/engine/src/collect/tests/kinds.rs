//! Targets that change their kind: the old rows are removed with the first complete list of the new kind, and with
//! nothing else.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kollect_model::row::RowKey;
use serde_json::{Value, json};
use tokio::time;

use super::{Lab, Phase, Target, lab_with_pods, profile, target, target_id};
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

fn want(lab: &mut Lab, kinds: &[&str]) {
    lab.targets.insert(0, of_kinds(kinds));
    lab.set_targets();
}

fn put(lab: &Lab, kind: &str, uid: &str, namespace: &str) {
    let mut object = json!({ "metadata": { "name": uid, "namespace": namespace }, "spec": { "image": "i" } });
    if namespace.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("namespace");
    }
    lab.with(|world| world.put(kind, uid, object));
}

/// Two pods and two jobs, in namespaces a and b; the target wants the pods.
async fn lab_with_kinds() -> (Lab, Changes) {
    let mut lab = lab_with_pods(0).await;
    lab.with(|world| world.put("Namespace", "ns-b", json!({ "metadata": { "name": "b" } })));
    for (kind, uid, namespace) in [
        ("Pod", "p-a", "a"),
        ("Pod", "p-b", "b"),
        ("Job", "j-a", "a"),
        ("Job", "j-b", "b"),
        ("Node", "n", ""),
    ] {
        put(&lab, kind, uid, namespace);
    }
    want(&mut lab, &["Pod"]);
    lab.flow().await;
    assert_eq!(uids(&lab), ["p-a", "p-b"]);
    let changes = lab.rows.changes(&[target_id(0)]);
    (lab, changes)
}

fn uids(lab: &Lab) -> Vec<String> {
    let rows = lab.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything).rows;
    let mut uids: Vec<String> = rows.keys().map(|key| key.uid.to_string()).collect();
    uids.sort();
    uids
}

/// What has changed: `+` and `-` before the UID.
fn take(changes: &mut Changes) -> BTreeSet<String> {
    let sign = |gone: bool| if gone { '-' } else { '+' };
    changes
        .take()
        .iter()
        .map(|change| format!("{}{}", sign(change.after.is_none()), change.key.uid))
        .collect()
}

/// Lets every stream send what it has, one event after the other. Returns what a reader that reads after each event
/// gets, without empty results.
async fn readings(lab: &mut Lab, changes: &mut Changes) -> Vec<BTreeSet<String>> {
    let mut readings = Vec::new();
    for _ in 0..12 {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for index in 0..lab.with(|world| world.streams.len()) {
                let (world, random) = (lab.world.clone(), &mut lab.random);
                moved |= world.lock().unwrap().step(index, random);
                lab.arrive().await;
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
fn discover(lab: &Lab) {
    lab.kinds.send_modify(|number| *number += 1);
}

fn deny(lab: &Lab, kind: &str, namespaces: &[Option<&str>]) {
    let places = namespaces.iter().map(|name| (kind.to_owned(), name.map(ToOwned::to_owned)));
    lab.with(|world| world.denied.extend(places));
}

/// Keys of rows that an earlier process has written.
fn baseline(lab: &Lab) -> Vec<RowKey> {
    lab.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything).rows.into_keys().collect()
}

/// Which of these rows an operator would remove from a sink.
fn removed(lab: &Lab, baseline: &[RowKey]) -> Vec<String> {
    let snapshot = lab.rows.snapshot_of_seen(&[target_id(0)], Visibility::Everything);
    let gone = baseline.iter().filter(|key| snapshot.knows_gone(key));
    gone.map(|key| key.uid.to_string()).collect()
}

/// The same cluster, and a process that has just begun to look at it.
async fn restart(lab: &Lab, kinds: &[&str]) -> Lab {
    let mut new = Lab::new(2);
    let (objects, version) = lab.with(|world| (world.objects.clone(), world.version));
    let (absent, denied) = lab.with(|world| (world.absent.clone(), world.denied.clone()));
    new.with(|world| {
        (world.objects, world.version, world.absent, world.denied) = (objects, version, absent, denied);
    });
    want(&mut new, kinds);
    new.rest().await;
    new
}

#[tokio::test(start_paused = true)]
async fn law_5_a_new_kind_replaces_the_old_one_at_once() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_a_kind_that_is_not_served_replaces_nothing() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    lab.with(|world| world.absent.insert("Job".into()));
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, []);
    assert_eq!(uids(&lab), ["p-a", "p-b"]);
    let visibilities = lab.rows.visibilities(&[target_id(0)]);
    assert_eq!(visibilities.into_values().collect::<Vec<_>>(), [Visibility::Absent]);
    // The typing error is corrected.
    want(&mut lab, &["Pod"]);
    assert_eq!(readings(&mut lab, &mut changes).await, []);
    assert_eq!(uids(&lab), ["p-a", "p-b"]);
    // The kind was no typing error: it is installed now.
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, []);
    lab.with(|world| world.absent.clear());
    discover(&lab);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
    // The kind has been listed and is removed now: its own objects are known to be gone.
    lab.with(|world| world.absent.insert("Job".into()));
    discover(&lab);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-j-a", "-j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_after_a_restart_a_kind_that_is_not_served_removes_nothing_from_a_sink() {
    let (lab, _) = lab_with_kinds().await;
    let pods = baseline(&lab);
    lab.with(|world| world.absent.insert("Job".into()));
    let mut lab = restart(&lab, &["Job"]).await;
    assert_eq!(removed(&lab, &pods), [""; 0], "only the sink knows them");
    let jobs: Vec<RowKey> = pods.iter().map(|key| RowKey { kind: "Job".into(), ..key.clone() }).collect();
    assert_eq!(removed(&lab, &jobs).len(), 2, "the kind that does not exist has no objects");
    lab.with(|world| world.absent.clear());
    discover(&lab);
    lab.arrive().await;
    assert_eq!(removed(&lab, &pods), [""; 0], "it is being listed");
    lab.rest().await;
    assert_eq!(
        (removed(&lab, &pods), uids(&lab)),
        (vec!["p-a".into(), "p-b".into()], vec!["j-a".into(), "j-b".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn law_5_a_kind_that_may_not_be_listed_replaces_nothing() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    let pods = baseline(&lab);
    deny(&lab, "Job", &[None, Some("a"), Some("b")]);
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, []);
    assert_eq!(removed(&restart(&lab, &["Job"]).await, &pods), [""; 0]);
    lab.with(|world| world.denied.clear());
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_a_kind_that_may_be_listed_in_one_namespace_replaces_the_rows_there() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    let pods = baseline(&lab);
    deny(&lab, "Job", &[None, Some("b")]);
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "+j-a"])]);
    assert_eq!(uids(&lab), ["j-a", "p-b"]);
    assert_eq!(removed(&restart(&lab, &["Job"]).await, &pods), ["p-a"]);
    lab.with(|world| world.denied.clear());
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-b", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_cluster_scoped_rows_stay_until_the_new_kind_can_be_listed_everywhere() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    want(&mut lab, &["Node"]);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    let nodes = baseline(&lab);
    deny(&lab, "Job", &[None, Some("a"), Some("b")]);
    want(&mut lab, &["Job"]);
    assert_eq!(readings(&mut lab, &mut changes).await, []);
    assert_eq!(removed(&restart(&lab, &["Job"]).await, &nodes), [""; 0]);
    lab.with(|world| world.denied.clear());
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-n", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_a_list_that_fails_replaces_nothing_until_it_succeeds() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    want(&mut lab, &["Job"]);
    lab.arrive().await;
    let jobs = lab.with(|world| world.streams.iter().position(|s| s.query.gvk.kind == "Job").unwrap());
    // The list begins, shows one object, and breaks off.
    while !lab.with(
        |world| matches!(&world.streams[jobs].phase, Phase::Listing { objects, .. } if objects.len() < 2),
    ) {
        let (world, random) = (lab.world.clone(), &mut lab.random);
        world.lock().unwrap().step(jobs, random);
    }
    let failed = || Event::Blind(Blindness { reason: BlindReason::Failed, message: "cut".into() });
    lab.with(|world| world.streams[jobs].events.unbounded_send(failed()).unwrap());
    lab.arrive().await;
    assert_eq!((lab.rows.count(&target_id(0)), uids(&lab)), (3, vec!["p-a".into(), "p-b".into()]));
    assert_eq!(take(&mut changes), set(&[]), "half a list is shown to no reader");
    lab.with(|world| world.streams[jobs].phase = Phase::Asked);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+j-a", "+j-b"])]);
}

#[tokio::test(start_paused = true)]
async fn law_5_a_kind_that_changes_twice_before_its_list_ends_is_replaced_once() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    want(&mut lab, &["Job"]);
    lab.arrive().await;
    let jobs = lab.with(|world| world.streams.iter().position(|s| s.query.gvk.kind == "Job").unwrap());
    while !lab.with(
        |world| matches!(&world.streams[jobs].phase, Phase::Listing { objects, .. } if objects.len() < 2),
    ) {
        let (world, random) = (lab.world.clone(), &mut lab.random);
        world.lock().unwrap().step(jobs, random);
    }
    lab.arrive().await;
    assert_eq!(lab.rows.count(&target_id(0)), 3, "one job is known, and not shown");
    want(&mut lab, &["Node"]);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    assert_eq!(lab.rows.count(&target_id(0)), 1);
}

#[tokio::test(start_paused = true)]
async fn law_5_old_rows_wait_for_every_kind_that_the_target_wants() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    let pods = baseline(&lab);
    lab.with(|world| world.absent.insert("Node".into()));
    want(&mut lab, &["Job", "Node"]);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["+j-a", "+j-b"])], "jobs have been listed");
    assert_eq!(removed(&restart(&lab, &["Job", "Node"]).await, &pods), [""; 0]);
    lab.with(|world| world.absent.clear());
    discover(&lab);
    assert_eq!(readings(&mut lab, &mut changes).await, [set(&["-p-a", "-p-b", "+n"])]);
    // A kind that is left waits for no list if the others have been listed.
    want(&mut lab, &["Node"]);
    lab.arrive().await;
    assert_eq!(take(&mut changes), set(&["-j-a", "-j-b"]));
}

#[tokio::test(start_paused = true)]
async fn a_target_between_two_kinds_that_is_frozen_or_deleted() {
    let (mut lab, mut changes) = lab_with_kinds().await;
    lab.with(|world| world.absent.insert("Job".into()));
    want(&mut lab, &["Job"]);
    lab.flow().await;
    lab.collector.set_targets(&[], &BTreeSet::from([target_id(0)]));
    lab.flow().await;
    assert_eq!((take(&mut changes), uids(&lab)), (set(&[]), vec!["p-a".into(), "p-b".into()]));
    lab.set_targets();
    lab.flow().await;
    assert_eq!((take(&mut changes), uids(&lab)), (set(&[]), vec!["p-a".into(), "p-b".into()]));
    lab.targets.clear();
    lab.set_targets();
    assert_eq!(take(&mut changes), set(&["-p-a", "-p-b"]), "a deleted target takes its rows along");
}
