//! Elections on a real API server, on a network that breaks. There are never two leaders.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kollect_testbed::{ControlPlane, Proxy, Rule};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{self, Instant},
};

use super::{
    LEASE, Leader, LeaderHandle, Leadership, Timings, ended, gained,
    record::{self, Observation},
};

/// Long enough for a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(40);

const QUICK: Timings = Timings {
    lease: Duration::from_secs(5),
    renew_deadline: Duration::from_secs(3),
    retry: Duration::from_millis(300),
};

/// Nothing happens by itself while a test runs.
const SLOW: Timings = Timings {
    lease: Duration::from_mins(10),
    renew_deadline: Duration::from_mins(5),
    retry: Duration::from_mins(2),
};

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A candidate, and from when until when it led.
struct Candidate {
    handle: LeaderHandle,
    leadership: watch::Receiver<Leadership>,
    terms: Arc<Mutex<Vec<Term>>>,
    _diary: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy)]
struct Term {
    number: u64,
    from: Instant,
    until: Option<Instant>,
}

impl Candidate {
    async fn start(kubeconfig: &Path, namespace: &str, identity: &str, timings: Timings) -> Self {
        let handle = Leader::start(client(kubeconfig).await, namespace, identity, timings).unwrap();
        let terms: Arc<Mutex<Vec<Term>>> = Arc::default();
        let (mut leadership, written) = (handle.watch(), terms.clone());
        // What the operator does with its writers.
        let diary = tokio::spawn(async move {
            while let Some(number) = gained(&mut leadership).await {
                written.lock().unwrap().push(Term { number, from: Instant::now(), until: None });
                ended(&mut leadership, number).await;
                written.lock().unwrap().last_mut().unwrap().until = Some(Instant::now());
            }
        });
        Self { leadership: handle.watch(), handle, terms, _diary: diary }
    }

    fn now(&self) -> Leadership {
        self.leadership.borrow().clone()
    }

    fn leads(&self) -> bool {
        self.now().term().is_some()
    }

    fn terms(&self) -> Vec<Term> {
        self.terms.lock().unwrap().clone()
    }

    async fn until(&self, what: &str, condition: impl FnMut(&Leadership) -> bool) -> Leadership {
        let mut leadership = self.leadership.clone();
        let found = time::timeout(LIMIT, leadership.wait_for(condition)).await;
        found.unwrap_or_else(|_| panic!("{what} never came true: {}", self.now())).unwrap().clone()
    }

    /// Waits until its writers run.
    async fn until_leads(&self) {
        self.until("leading", |now| now.term().is_some()).await;
        let deadline = Instant::now() + LIMIT;
        while self.terms().last().is_none_or(|term| term.until.is_some()) {
            assert!(Instant::now() < deadline, "nobody heard that it leads: {}", self.now());
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_stands_by_for(&self, identity: &str) {
        let prefix = format!("{identity}_");
        self.until("standing by", |now| match now {
            Leadership::Standby { holder: Some(holder), .. } => holder.starts_with(&prefix),
            _ => false,
        })
        .await;
    }

    async fn until_problem(&self, text: &str) {
        self.until(text, |now| match now {
            Leadership::Standby { problem: Some(problem), .. } => problem.contains(text),
            _ => false,
        })
        .await;
    }
}

fn never_two(one: &Candidate, other: &Candidate) {
    for a in one.terms() {
        for b in other.terms() {
            let apart = a.until.is_some_and(|end| end <= b.from) || b.until.is_some_and(|end| end <= a.from);
            assert!(apart, "{a:?} overlaps {b:?}");
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

fn parsed(lease: &Value) -> Lease {
    serde_json::from_value(lease.clone()).unwrap()
}

#[test]
fn timings_that_allow_two_leaders_are_refused_with_the_flags() {
    let message = |timings: Timings| timings.check().unwrap_err().to_string();
    Timings::default().check().unwrap();
    let second = Duration::from_secs(1);
    let late = message(Timings { lease: 4 * second, renew_deadline: 4 * second, retry: second });
    assert!(late.contains("--leader-elect-renew-deadline (4s)"), "{late}");
    assert!(late.contains("--leader-elect-lease-duration (4s)"), "{late}");
    let lazy = message(Timings { lease: 4 * second, renew_deadline: 2 * second, retry: 3 * second });
    assert!(lazy.contains("--leader-elect-retry-period (3s)"), "{lazy}");
    assert!(message(Timings { retry: Duration::ZERO, ..QUICK }).contains("--leader-elect-retry-period"));
}

#[test]
fn records_are_written_as_client_go_writes_them() {
    let start: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    let later: Timestamp = "2026-01-02T03:04:06.123456789Z".parse().unwrap();
    let spec = |lease: &Lease| serde_json::to_value(lease).unwrap()["spec"].clone();
    let first = record::claimed(Lease::default(), "a", Duration::from_millis(4500), start);
    let expected = json!({
        "holderIdentity": "a", "leaseDurationSeconds": 5, "leaseTransitions": 0,
        "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.000000Z",
    });
    assert_eq!(spec(&first), expected);

    let mut stored = first;
    stored.metadata.resource_version = Some("7".into());
    stored.metadata.labels = Some([("team".to_owned(), "x".to_owned())].into());
    let renewed = record::claimed(stored, "a", Duration::from_mins(1), later);
    assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
    assert!(renewed.metadata.labels.is_some());
    let expected = json!({
        "holderIdentity": "a", "leaseDurationSeconds": 60, "leaseTransitions": 0,
        "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:06.123456Z",
    });
    assert_eq!(spec(&renewed), expected);

    let taken = record::claimed(renewed.clone(), "b", Duration::from_mins(1), later);
    assert_eq!(spec(&taken)["leaseTransitions"], 1);
    assert_eq!(spec(&taken)["acquireTime"], "2026-01-02T03:04:06.123456Z");

    let released = record::released(taken, later);
    assert_eq!(record::holder(&released), None);
    assert_eq!(
        (&spec(&released)["leaseDurationSeconds"], &spec(&released)["leaseTransitions"]),
        (&json!(1), &json!(1))
    );
    let by_older_clients = parsed(&json!({ "metadata": {}, "spec": { "holderIdentity": "" } }));
    assert_eq!(record::holder(&by_older_clients), None);
}

#[test]
fn only_changes_of_the_record_are_signs_of_life() {
    let start = Instant::now();
    let seconds = Duration::from_secs;
    let with = |renew: &str, label: &str| {
        parsed(&json!({
            "metadata": { "resourceVersion": label, "labels": { "l": label } },
            "spec": { "holderIdentity": "x", "leaseDurationSeconds": 9, "renewTime": renew },
        }))
    };
    let mut seen = None;
    Observation::note(&mut seen, with("2090-01-01T00:00:00Z", "1"), start);
    assert_eq!(seen.as_ref().unwrap().expires(seconds(60)), start + seconds(9), "not by their clock");
    Observation::note(&mut seen, with("2090-01-01T00:00:00Z", "2"), start + seconds(5));
    assert_eq!(seen.as_ref().unwrap().expires(seconds(60)), start + seconds(9), "a label says nothing");
    Observation::note(&mut seen, with("1990-01-01T00:00:00Z", "3"), start + seconds(6));
    assert_eq!(seen.as_ref().unwrap().expires(seconds(60)), start + seconds(15));
    let silent = parsed(&json!({ "metadata": {}, "spec": { "holderIdentity": "x" } }));
    Observation::note(&mut seen, silent, start);
    assert_eq!(seen.as_ref().unwrap().expires(seconds(60)), start + seconds(60));
}

#[tokio::test]
async fn a_term_ends_at_its_deadline_even_if_the_candidate_is_stuck() {
    let until = Instant::now() + Duration::from_millis(100);
    let (_stuck, mut leadership) = watch::channel(Leadership::Leading { term: 3, until: Some(until) });
    assert_eq!(gained(&mut leadership).await, Some(3));
    time::timeout(LIMIT, ended(&mut leadership, 3)).await.unwrap();
    assert!(Instant::now() >= until);
    assert_eq!(leadership.borrow().term(), None);
}

#[tokio::test]
async fn whoever_is_alone_leads_until_it_is_released() {
    let handle = Leader::alone();
    let mut leadership = handle.watch();
    assert_eq!(gained(&mut leadership).await, Some(1));
    handle.release().await;
    time::timeout(LIMIT, ended(&mut leadership, 1)).await.unwrap();
    assert_eq!(gained(&mut leadership).await, None);
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

    // Neither a retry nor the end of the lease is anywhere near.
    let Candidate { handle, terms, leadership, _diary } = first;
    handle.release().await;
    second.until_leads().await;
    let held = lease(plane, &namespace);
    assert!(held["holderIdentity"].as_str().unwrap().starts_with("second_"), "{held}");
    assert_eq!(held["leaseTransitions"], 1, "a release alone is no transition: {held}");
    let first_ended = terms.lock().unwrap()[0].until.unwrap();
    assert!(first_ended <= second.terms()[0].from, "{:?}", leadership.borrow());
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
    assert!(!other.leads(), "nobody takes over before the lease has run out");
    other.until_leads().await;
    never_two(&frozen, &other);

    proxy.stall(false);
    frozen.until_stands_by_for("other").await;
    assert!(other.leads());
    // The proxy that refuses instead of stalling is the same to a standby.
    proxy.refuse(true);
    frozen.until_problem(LEASE).await;
    proxy.refuse(false);
    frozen.until_stands_by_for("other").await;

    let terms = other.terms.clone();
    other.handle.release().await;
    frozen.until_leads().await;
    assert!(terms.lock().unwrap()[0].until.unwrap() <= frozen.terms()[1].from);
    let numbers: Vec<u64> = frozen.terms().iter().map(|term| term.number).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_a_wild_clock_is_honoured_while_it_renews() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("clock").unwrap();
    let record = |renew: &str| {
        json!({ "holderIdentity": "wild", "leaseDurationSeconds": 4, "leaseTransitions": 7,
                "acquireTime": renew, "renewTime": renew })
    };
    // Decades too old: whoever believed its clock would take over at once.
    write_lease(plane, &namespace, &record("1999-01-01T00:00:00.000000Z"));
    let started = Instant::now();
    let candidate = Candidate::start(plane.kubeconfig(), &namespace, "sane", QUICK).await;
    candidate.until("seeing the holder", |now| *now == standby("wild")).await;
    while started.elapsed() < Duration::from_secs(6) {
        let minute = started.elapsed().as_millis() % 60;
        write_lease(plane, &namespace, &record(&format!("1999-01-01T00:{minute:02}:00.000000Z")));
        time::sleep(Duration::from_millis(500)).await;
    }
    assert!(candidate.terms().is_empty(), "it renewed all the time");

    // Far in the future: whoever believed its clock would wait for decades.
    write_lease(plane, &namespace, &record("2099-01-01T00:00:00.000000Z"));
    let silent = Instant::now();
    candidate.until_leads().await;
    let waited = candidate.terms()[0].from - silent;
    assert!(waited >= Duration::from_secs(3), "took over after {waited:?}");
    assert_eq!(lease(plane, &namespace)["leaseTransitions"], 8);
}

fn standby(holder: &str) -> Leadership {
    Leadership::Standby { holder: Some(holder.into()), problem: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_labels_cost_no_term_and_a_taken_lease_ends_it() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("edited").unwrap();
    let candidate = Candidate::start(plane.kubeconfig(), &namespace, "a", QUICK).await;
    candidate.until_leads().await;
    let renewed = lease(plane, &namespace)["renewTime"].clone();
    plane.kubectl(&["label", "lease", LEASE, "-n", &namespace, "seen=yes"]).unwrap();
    let deadline = Instant::now() + LIMIT;
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
    candidate.until_problem("lease").await;
    plane.start_api_server().unwrap();
    candidate.until_leads().await;
    assert_eq!(candidate.terms().last().unwrap().number, 2);

    plane.stop_api_server();
    let released = time::timeout(LIMIT, candidate.handle.release()).await;
    assert!(released.is_ok(), "nobody waits for ever for an API server that is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_on_leases_suffice_and_missing_ones_are_reported() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("rights").unwrap();
    let verbs = ["get", "create", "update"];
    let rule = |namespace: &str| Rule::in_namespace(namespace, "coordination.k8s.io", &["leases"], &verbs);
    let user = plane.user(&namespace, "nobody", &[]).unwrap();
    let candidate = Candidate::start(&user, &namespace, "a", QUICK).await;
    candidate.until_problem("grant get, create, update").await;
    plane.user(&namespace, "nobody", &[rule(&namespace)]).unwrap();
    candidate.until_leads().await;

    let missing = format!("{namespace}-later");
    let lost = Candidate::start(plane.kubeconfig(), &missing, "a", QUICK).await;
    lost.until_problem(&format!("namespaces \"{missing}\" not found")).await;
    plane.kubectl(&["create", "namespace", &missing]).unwrap();
    lost.until_leads().await;
}
