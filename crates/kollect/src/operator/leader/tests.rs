//! Elections on a real API server, on a network that breaks. There are never two leaders.

mod candidate;

use std::{process::Command, time::Duration};

use candidate::{Candidate, Term};
use kollect_testbed::{ControlPlane, Grant, Programs, Proxy, Scratch, Server, Stop};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{LEASE, Leader, Leadership, LeaseTimings, identity, wait_for_end, wait_for_term};

/// Long enough for a machine that is busy with something else.
const WAIT_LIMIT: Duration = Duration::from_secs(40);

const QUICK: LeaseTimings = LeaseTimings {
    lease: Duration::from_secs(8),
    renew_deadline: Duration::from_secs(6),
    retry: Duration::from_millis(300),
};

/// For tests that wait until leases expire.
const BRIEF: LeaseTimings = LeaseTimings {
    lease: Duration::from_secs(4),
    renew_deadline: Duration::from_secs(3),
    retry: Duration::from_millis(300),
};

/// Neither a retry nor an expiry happens while a test runs.
const SLOW: LeaseTimings = LeaseTimings {
    lease: Duration::from_mins(10),
    renew_deadline: Duration::from_mins(5),
    retry: Duration::from_mins(2),
};

fn assert_never_both_lead(one: &Candidate, other: &Candidate) {
    for term in one.terms() {
        for other_term in other.terms() {
            let apart = term.until.is_some_and(|end| end <= other_term.from)
                || other_term.until.is_some_and(|end| end <= term.from);
            assert!(apart, "{term:?} overlaps {other_term:?}");
        }
    }
}

fn lease(plane: &ControlPlane, namespace: &str) -> Value {
    let text = plane.kubectl(&["get", "lease", LEASE, "-n", namespace, "-o", "json"]).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["spec"].take()
}

fn write_lease(plane: &ControlPlane, namespace: &str, spec: &Value) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": LEASE, "namespace": namespace }, "spec": spec,
    });
    plane.apply(&lease.to_string()).unwrap();
}

#[test]
fn timings_that_allow_two_leaders_are_refused_with_the_flags() {
    let message = |timings: LeaseTimings| timings.check().unwrap_err().to_string();
    LeaseTimings::default().check().unwrap();
    let second = Duration::from_secs(1);
    let deadline_error =
        message(LeaseTimings { lease: 4 * second, renew_deadline: 4 * second, retry: second });
    assert!(deadline_error.contains("--leader-elect-renew-deadline (4s)"), "{deadline_error}");
    assert!(deadline_error.contains("--leader-elect-lease-duration (4s)"), "{deadline_error}");
    let retry_error =
        message(LeaseTimings { lease: 4 * second, renew_deadline: 2 * second, retry: 3 * second });
    assert!(retry_error.contains("--leader-elect-retry-period (3s)"), "{retry_error}");
    assert!(message(LeaseTimings { retry: Duration::ZERO, ..QUICK }).contains("--leader-elect-retry-period"));
}

#[tokio::test]
async fn a_term_ends_at_its_deadline_even_if_the_candidate_is_stuck() {
    let until = Instant::now() + Duration::from_millis(100);
    let (_stuck, mut leadership) =
        watch::channel(Leadership::Leading { term: 3, until: Some(until), problem: None });
    assert_eq!(wait_for_term(&mut leadership).await, Some(3));
    time::timeout(WAIT_LIMIT, wait_for_end(&mut leadership, 3)).await.unwrap();
    assert!(Instant::now() >= until);
    assert_eq!(leadership.borrow().term(), None);
}

#[tokio::test]
async fn the_only_candidate_leads_until_it_is_released() {
    let handle = Leader::alone();
    let mut leadership = handle.watch();
    assert_eq!(wait_for_term(&mut leadership).await, Some(1));
    handle.release().await;
    time::timeout(WAIT_LIMIT, wait_for_end(&mut leadership, 1)).await.unwrap();
    assert_eq!(wait_for_term(&mut leadership).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_leads_and_its_release_is_noticed_at_once() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("release").unwrap();
    let first = Candidate::start(plane.kubeconfig(), &namespace, "first", SLOW).await;
    first.until_leads().await;
    let second = Candidate::start(plane.kubeconfig(), &namespace, "second", SLOW).await;
    second.until_stands_by_for("first").await;
    let held = lease(plane, &namespace);
    assert!(held["holderIdentity"].as_str().unwrap().starts_with("first_"), "{held}");
    assert_eq!((&held["leaseDurationSeconds"], &held["leaseTransitions"]), (&json!(600), &json!(0)));

    // Neither a retry nor the end of the lease is near.
    let terms = first.leave().await;
    second.until_leads().await;
    let held = lease(plane, &namespace);
    assert!(held["holderIdentity"].as_str().unwrap().starts_with("second_"), "{held}");
    assert_eq!(held["leaseTransitions"], 1, "a release alone is no transition: {held}");
    assert!(terms[0].until.unwrap() <= second.terms()[0].from);
}

#[test]
fn a_container_that_was_started_again_is_the_same_candidate() {
    let pod = |name: &str| match name {
        "POD_NAME" => Some("kollect-5f".to_owned()),
        "POD_UID" => Some("8a1f".to_owned()),
        _ => None,
    };
    assert_eq!(identity(pod), "kollect-5f_8a1f");
    let host = |name: &str| (name == "HOSTNAME").then(|| "laptop".to_owned());
    assert!(identity(host).starts_with("laptop_"));
    assert_ne!(identity(host), identity(host));
    let no_uid = |name: &str| (name == "POD_NAME").then(|| "kollect-5f".to_owned());
    assert_ne!(identity(no_uid), identity(no_uid), "the name of a Pod may come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_container_takes_its_lease_back_at_once() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("restarted").unwrap();
    let start =
        async || Candidate::start_as(plane.kubeconfig(), &namespace, "pod_uid".to_owned(), SLOW).await;
    let first = start().await;
    first.until_leads().await;
    // Killed: the lease is not released, and lasts for ten minutes.
    drop(first);
    let second = start().await;
    second.until_leads().await;
    let held = lease(plane, &namespace);
    assert_eq!((&held["holderIdentity"], &held["leaseTransitions"]), (&json!("pod_uid"), &json!(0)));
    // Another Pod waits.
    let other = Candidate::start(plane.kubeconfig(), &namespace, "other", SLOW).await;
    other.until_stands_by_for("pod").await;
    second.leave().await;
    other.until_leads().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_candidates_leads_after_each_release() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("many").unwrap();
    let mut candidates = Vec::new();
    for number in 0..4 {
        let name = format!("c{number}");
        candidates.push(Candidate::start(plane.kubeconfig(), &namespace, &name, QUICK).await);
    }
    let mut terms: Vec<Term> = Vec::new();
    while !candidates.is_empty() {
        let deadline = Instant::now() + WAIT_LIMIT;
        let leads = loop {
            if let Some(leads) = candidates.iter().position(Candidate::leads) {
                break leads;
            }
            assert!(Instant::now() < deadline, "no candidate leads");
            time::sleep(Duration::from_millis(5)).await;
        };
        candidates[leads].until_leads().await;
        for (one, other) in candidates.iter().zip(candidates.iter().skip(1)) {
            assert_never_both_lead(one, other);
        }
        terms.extend(candidates.swap_remove(leads).leave().await);
    }
    for (one, next) in terms.iter().zip(terms.iter().skip(1)) {
        assert!(one.until.unwrap() <= next.from, "{terms:?}");
    }
    assert_eq!(lease(plane, &namespace)["leaseTransitions"], 3);
}

/// A program with the leader election of client-go.
fn start_client_go(plane: &ControlPlane, namespace: &str, scratch: &Scratch) -> Server {
    let mut command = Command::new(Programs::find_or_build().unwrap().kube_controller_manager);
    command.args([
        &format!("--kubeconfig={}", plane.kubeconfig().display()),
        "--controllers=ttl-controller",
        "--secure-port=0",
        "--leader-elect=true",
        &format!("--leader-elect-resource-name={LEASE}"),
        &format!("--leader-elect-resource-namespace={namespace}"),
        "--leader-elect-lease-duration=4s",
        "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=300ms",
    ]);
    Server::start(scratch, "client-go", Stop::Kill, &command).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_passes_between_this_program_and_client_go() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("interop").unwrap();
    let scratch = Scratch::new().unwrap();
    let ours = Candidate::start(plane.kubeconfig(), &namespace, "ours", BRIEF).await;
    ours.until_leads().await;
    let holder = || lease(plane, &namespace)["holderIdentity"].as_str().unwrap_or_default().to_owned();
    let mut theirs = start_client_go(plane, &namespace, &scratch);
    let log = theirs.log().to_owned();
    let competes = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("Attempting to acquire leader lease")
    };
    theirs.wait_until(WAIT_LIMIT, competes).unwrap();
    // Longer than the lease: client-go sees the renewals.
    let deadline = Instant::now() + BRIEF.lease + Duration::from_secs(1);
    while Instant::now() < deadline {
        assert!(holder().starts_with("ours_"), "{}", holder());
    }
    assert_eq!(ours.terms().len(), 1);

    ours.leave().await;
    theirs.wait_until(WAIT_LIMIT, || !holder().is_empty()).unwrap();
    let their_name = holder();
    assert!(!their_name.starts_with("ours_"), "{their_name}");
    let successor = Candidate::start(plane.kubeconfig(), &namespace, "heir", BRIEF).await;
    successor.until("seeing them lead", |now| *now == standby(&their_name)).await;
    let deadline = Instant::now() + BRIEF.lease + Duration::from_secs(1);
    while Instant::now() < deadline {
        assert_eq!(holder(), their_name, "we see that they renew");
    }
    drop(theirs);
    successor.until_leads().await;
    assert_eq!(lease(plane, &namespace)["leaseTransitions"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_stops_before_the_next_one_starts_and_can_lead_again() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("frozen").unwrap();
    let proxy = Proxy::start(plane).unwrap();
    let through_proxy = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let frozen = Candidate::start(&through_proxy, &namespace, "frozen", QUICK).await;
    frozen.until_leads().await;
    let other = Candidate::start(plane.kubeconfig(), &namespace, "other", QUICK).await;
    other.until_stands_by_for("frozen").await;

    proxy.stall(true);
    let stalled = Instant::now();
    frozen.until("the renew deadline", |now| now.term().is_none()).await;
    let waited = stalled.elapsed();
    assert!(waited <= QUICK.renew_deadline + Duration::from_secs(1), "stopped after {waited:?}");
    other.until_leads().await;
    assert_never_both_lead(&frozen, &other);
    let waited = other.terms()[0].from - stalled;
    assert!(waited <= QUICK.lease + QUICK.retry + Duration::from_secs(2), "took over after {waited:?}");

    proxy.stall(false);
    frozen.until_stands_by_for("other").await;
    assert!(other.leads());
    // For a standby a proxy that refuses has the same effect as one that stalls.
    proxy.refuse(true);
    frozen.until_problem(LEASE).await;
    proxy.refuse(false);
    frozen.until_stands_by_for("other").await;

    let terms = other.leave().await;
    frozen.until_leads().await;
    assert!(terms[0].until.unwrap() <= frozen.terms()[1].from);
    let numbers: Vec<u64> = frozen.terms().iter().map(|term| term.number).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_a_wrong_clock_keeps_the_lease_while_it_renews() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("clock").unwrap();
    let record = |renew: &str| {
        json!({ "holderIdentity": "wild", "leaseDurationSeconds": 6, "leaseTransitions": 7,
                "acquireTime": renew, "renewTime": renew })
    };
    // Decades too old: a candidate that compared clocks would take over at once.
    write_lease(plane, &namespace, &record("1999-01-01T00:00:00.000000Z"));
    let started = Instant::now();
    let candidate = Candidate::start(plane.kubeconfig(), &namespace, "sane", QUICK).await;
    candidate.until("seeing the holder", |now| *now == standby("wild")).await;
    // Twice as long as its lease.
    let mut minutes = 0..60;
    while started.elapsed() < Duration::from_secs(12) {
        let minute = minutes.next().unwrap();
        write_lease(plane, &namespace, &record(&format!("1999-01-01T01:{minute:02}:00.000000Z")));
        time::sleep(Duration::from_millis(300)).await;
    }
    assert!(candidate.terms().is_empty(), "it renewed all the time");

    // Far in the future: a candidate that compared clocks would wait for decades.
    write_lease(plane, &namespace, &record("2099-01-01T00:00:00.000000Z"));
    let silent = Instant::now();
    candidate.until_leads().await;
    let waited = candidate.terms()[0].from - silent;
    assert!(waited >= Duration::from_secs(5), "took over after {waited:?}");
    assert_eq!(lease(plane, &namespace)["leaseTransitions"], 8);
}

fn standby(holder: &str) -> Leadership {
    Leadership::Standby { holder: Some(holder.into()), problem: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_label_does_not_end_a_term_and_another_holder_does() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("edited").unwrap();
    let candidate = Candidate::start(plane.kubeconfig(), &namespace, "a", QUICK).await;
    candidate.until_leads().await;
    let renewed = lease(plane, &namespace)["renewTime"].clone();
    plane.kubectl(&["label", "lease", LEASE, "-n", &namespace, "seen=yes"]).unwrap();
    let deadline = Instant::now() + WAIT_LIMIT;
    while lease(plane, &namespace)["renewTime"] == renewed {
        assert!(Instant::now() < deadline, "it never renewed again");
    }
    let label = ["get", "lease", LEASE, "-n", &namespace, "-o", "jsonpath={.metadata.labels.seen}"];
    assert_eq!(plane.kubectl(&label).unwrap(), "yes");
    assert_eq!(candidate.terms().len(), 1);
    assert!(candidate.leads());

    write_lease(plane, &namespace, &json!({ "holderIdentity": "thief", "leaseDurationSeconds": 2 }));
    candidate.until("losing the lease", |now| *now == standby("thief")).await;
    candidate.until_leads().await;
    assert_eq!(candidate.terms().last().unwrap().number, 2);
    plane.kubectl(&["delete", "lease", LEASE, "-n", &namespace]).unwrap();
    candidate.until("a term after the deletion", |now| now.term() == Some(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_api_server_ends_a_term_and_not_the_candidate() {
    let mut plane = ControlPlane::start().unwrap();
    let namespace = plane.namespace("restart").unwrap();
    let candidate = Candidate::start(plane.kubeconfig(), &namespace, "a", QUICK).await;
    candidate.until_leads().await;
    plane.stop_api_server();
    let warned = |now: &Leadership| matches!(now, Leadership::Leading { problem: Some(_), .. });
    candidate.until("a failed renewal", warned).await;
    candidate.until_problem("lease").await;
    plane.start_api_server().unwrap();
    candidate.until_leads().await;
    assert_eq!(candidate.terms().last().unwrap().number, 2);

    plane.stop_api_server();
    let released = time::timeout(WAIT_LIMIT, candidate.leave()).await;
    assert!(released.is_ok(), "leaving ends although the API server does not answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_on_leases_suffice_and_missing_ones_are_reported() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("rights").unwrap();
    let verbs = ["get", "create", "update"];
    let rule = |namespace: &str| Grant::in_namespace(namespace, "coordination.k8s.io", &["leases"], &verbs);
    let user = plane.user(&namespace, "stranger", &[]).unwrap();
    let candidate = Candidate::start(&user, &namespace, "a", QUICK).await;
    candidate.until_problem("grant get, create, update").await;
    plane.user(&namespace, "stranger", &[rule(&namespace)]).unwrap();
    candidate.until_leads().await;

    let missing = format!("{namespace}-later");
    let without_namespace = Candidate::start(plane.kubeconfig(), &missing, "a", QUICK).await;
    without_namespace.until_problem(&format!("namespaces \"{missing}\" not found")).await;
    plane.kubectl(&["create", "namespace", &missing]).unwrap();
    without_namespace.until_leads().await;
}
