//! When a Secret is read that may not be watched, against an API server in memory and with paused time.

use std::{
    future,
    sync::atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use http::{Request, Response};
use kollect_engine::watch::Resolution;
use kube::client::Body;
use serde_json::json;

use super::*;

/// A cluster where nothing may be listed or watched.
struct GetOnly;

#[async_trait]
impl WatchSource for GetOnly {
    async fn resolve(&self, _: &Gvk) -> Resolution {
        Resolution::Absent
    }

    async fn permits(&self, _: &Query) -> bool {
        false
    }

    fn watch(&self, _: Query) -> BoxStream<'static, Event> {
        stream::pending().boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_complete(&self) -> bool {
        true
    }
}

/// Follows one Secret. `answer` is what the API server answers to the nth read, from 1 on; each read is counted.
fn follow(
    answer: fn(usize) -> (u16, serde_json::Value),
) -> (SecretWatches, ObjectName, watch::Receiver<usize>) {
    let (count, reads) = watch::channel(0);
    let so_far = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |_: Request<Body>| {
        let read = so_far.fetch_add(1, Ordering::SeqCst) + 1;
        let (code, body) = answer(read);
        count.send_replace(read);
        let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
        future::ready(response)
    });
    let mut secrets =
        SecretWatches::new(Client::new(service, "default"), Arc::new(GetOnly), Tasks::default());
    let name: ObjectName = ("shop".into(), "portal".into());
    secrets.set(&[name.clone()].into());
    (secrets, name, reads)
}

fn found(_: usize) -> (u16, serde_json::Value) {
    (200, json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal" }, "data": {} }))
}

/// Waits for the nth read. Returns after how many seconds it came.
async fn seconds_until(reads: &mut watch::Receiver<usize>, nth: usize) -> u64 {
    let began = Instant::now();
    reads.wait_for(|read| *read >= nth).await.unwrap();
    began.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_may_not_be_watched_is_read_every_five_minutes_and_more_often_for_a_failing_sink() {
    let (secrets, name, mut reads) = follow(found);
    assert_eq!(seconds_until(&mut reads, 1).await, 0);
    assert_eq!(seconds_until(&mut reads, 2).await, 300);
    time::sleep(Duration::from_mins(1)).await;
    secrets.read_more_often(&name);
    assert_eq!(seconds_until(&mut reads, 3).await, 0, "the last read is a minute ago");
    for _ in 0..100 {
        secrets.read_more_often(&name);
        tokio::task::yield_now().await;
    }
    for read in 4..10 {
        assert_eq!(seconds_until(&mut reads, read).await, 10, "every ten seconds at first");
    }
    for _ in 0..9 {
        time::sleep(Duration::from_mins(1)).await;
        secrets.read_more_often(&name);
    }
    let read = *reads.borrow();
    assert_eq!(seconds_until(&mut reads, read + 2).await / 60, 1, "every minute after ten minutes");
    time::sleep(Duration::from_mins(10)).await;
    let read = *reads.borrow();
    time::sleep(Duration::from_mins(30)).await;
    assert_eq!(*reads.borrow() - read, 6, "it does not fail any more");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_has_changed_after_a_failure_is_read_at_the_normal_interval_again() {
    let (secrets, name, mut reads) = follow(|read| {
        let data = json!({ "password": if read > 1 { "bmV3" } else { "b2xk" } });
        (200, json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "portal" }, "data": data }))
    });
    assert_eq!(seconds_until(&mut reads, 1).await, 0);
    secrets.read_more_often(&name);
    assert_eq!(seconds_until(&mut reads, 2).await, 10);
    assert_eq!(seconds_until(&mut reads, 3).await, 300);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_does_not_exist_yet_is_found_soon() {
    let (_secrets, _, mut reads) = follow(|read| {
        let missing = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
        if read < 4 { (404, missing) } else { found(read) }
    });
    assert!(seconds_until(&mut reads, 4).await <= 2 + 4 + 8);
    assert!(seconds_until(&mut reads, 5).await > 200);
}
