//! How often statuses are written, against an API server in memory and with paused time.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use http::{Method, Request, Response};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::client::Body;
use tokio::time;

use super::*;

/// A writer, and how many statuses it has written.
fn writer() -> (StatusWriter, Arc<AtomicUsize>) {
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        count.fetch_add(usize::from(request.method() == Method::PUT), SeqCst);
        let object = json!({ "apiVersion": "v1", "kind": "Any", "metadata": { "name": "a" } });
        future::ready(Response::builder().status(200).body(Body::from(object.to_string().into_bytes())))
    });
    (StatusWriter::new(Client::new(service, "default"), Meter::default()), written)
}

fn condition(type_: &str, holds: bool, reason: &str, message: &str) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: if holds { ConditionStatus::True } else { ConditionStatus::False },
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(Timestamp::default()),
        observed_generation: Some(1),
    }
}

/// A sink whose status changes from one condition to another.
fn desired(before: Condition, after: Condition) -> DesiredStatus {
    let change = StatusChange {
        metadata: ObjectMeta::default(),
        after: json!({}),
        conditions_before: vec![before],
        conditions_after: vec![after],
        at_once: false,
    };
    let name = ("shop".to_owned(), "portal".to_owned());
    DesiredStatus { kind: "KollectDatabaseSink", name, change: Some(change) }
}

#[tokio::test(start_paused = true)]
async fn statuses_that_change_all_the_time_are_written_at_a_limited_rate() {
    let (mut writer, written) = writer();
    let failed =
        |second: u64| condition("Ready", false, "ConnectionTestFailed", &format!("attempt {second}"));
    let mut after = Vec::new();
    for second in 0..=180 {
        after.push(written.load(SeqCst));
        writer.write(vec![desired(failed(second), failed(second + 1))]).await;
        time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(after[5], 5, "the first five at once");
    assert_eq!((after[120] - after[60], after[180] - after[120]), (6, 6), "{after:?}");
    let before = written.load(SeqCst);
    let works = condition("Ready", true, "ConnectionOK", "the sink answers");
    writer.write(vec![desired(failed(0), works.clone())]).await;
    assert_eq!(written.load(SeqCst), before + 1, "another state is written at once");
    assert_eq!(
        writer.write(vec![desired(works.clone(), works)]).await.len(),
        1,
        "a status that has changed again is due later"
    );
}

#[test]
fn a_problem_with_a_condition_of_its_own_is_one_event() {
    let ready = condition("Ready", false, "KindNotServed", "see Unmatched");
    let degraded = condition("Degraded", true, "KindNotServed", "see condition Ready");
    let unmatched = condition("Unmatched", true, "KindNotServed", "correct the profile");
    let both = [ready.clone(), degraded.clone(), unmatched];
    assert_eq!(
        condition_events(&[], &both),
        [("Warning", "KindNotServed".into(), "correct the profile".into())]
    );
    assert_eq!(
        condition_events(&[], &[ready, degraded]),
        [("Warning", "KindNotServed".into(), "see Unmatched".into())]
    );
    let recovered = condition_events(&both, &[condition("Ready", true, "Collecting", "collecting 1 row")]);
    assert_eq!(recovered[1].1, "Recovered");
}
