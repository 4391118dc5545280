//! Kollect kinds that exist, are absent or come back, from a scripted source.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::{
    StreamExt,
    channel::mpsc,
    stream::{self, BoxStream},
};
use kollect_engine::{
    tasks::Tasks,
    watch::{BlindReason, Blindness, Event, Object, Query, Resolution, Resource, WatchSource},
};
use kollect_model::crd::shapes::Gvk;
use serde_json::{json, value::to_raw_value};
use tokio::{sync::watch, time};

use super::{ObjectWatches, RETRY_INTERVAL};

/// Whether the cluster serves KollectTarget.
#[derive(Clone, Copy, PartialEq)]
enum Targets {
    /// Discovery does not contain the kind.
    NotServed,
    /// Discovery has not contained it for long enough.
    Absent,
    /// There is one target.
    Served,
}

/// A cluster in which only KollectTarget may be missing or have an object.
struct OneTargetCluster {
    targets: Mutex<Targets>,
    kinds: watch::Sender<u64>,
    /// Open streams of targets.
    open: Mutex<Vec<mpsc::UnboundedSender<Event>>>,
}

impl OneTargetCluster {
    fn new(targets: Targets) -> Arc<Self> {
        Arc::new(Self {
            targets: Mutex::new(targets),
            kinds: watch::Sender::default(),
            open: Mutex::default(),
        })
    }

    fn set(&self, targets: Targets) {
        *self.targets.lock().unwrap() = targets;
    }

    /// Removes the definition of the kind, which ends its streams.
    fn cut(&self, targets: Targets) {
        self.set(targets);
        for stream in self.open.lock().unwrap().drain(..) {
            stream.unbounded_send(Event::Blind(not_served())).unwrap();
        }
    }
}

fn not_served() -> Blindness {
    Blindness { reason: BlindReason::NotServed, message: "not served by the cluster".into() }
}

#[async_trait]
impl WatchSource for OneTargetCluster {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        match *self.targets.lock().unwrap() {
            Targets::NotServed if gvk.kind == "KollectTarget" => Resolution::Blind(not_served()),
            Targets::Absent if gvk.kind == "KollectTarget" => Resolution::Absent,
            _ => Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: true }),
        }
    }

    async fn permits(&self, _: &Query) -> bool {
        true
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let mut events = vec![Event::Listing { total: None }, Event::Synced { version: 1 }];
        if query.gvk.kind != "KollectTarget" {
            return stream::iter(events).chain(stream::pending()).boxed();
        }
        if *self.targets.lock().unwrap() != Targets::Served {
            return stream::iter([Event::Blind(not_served())]).boxed();
        }
        let target = json!({
            "metadata": { "name": "t", "namespace": "shop", "uid": "u" }, "spec": { "profileRef": "p" },
        });
        let target = Object::parse(to_raw_value(&target).unwrap(), &query.gvk).unwrap();
        events.insert(1, Event::Apply(target));
        let (sender, later_events) = mpsc::unbounded();
        self.open.lock().unwrap().push(sender);
        stream::iter(events).chain(later_events).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        self.kinds.subscribe()
    }

    fn is_complete(&self) -> bool {
        true
    }
}

fn follow(cluster: &Arc<OneTargetCluster>) -> ObjectWatches {
    let source: Arc<dyn WatchSource> = cluster.clone();
    ObjectWatches::follow(source, None, Tasks::default())
}

async fn is_listed_within(objects: &ObjectWatches, timeout: Duration) -> bool {
    time::timeout(timeout, objects.wait_until_listed()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_kollect_kind_that_one_discovery_does_not_contain_may_exist() {
    let cluster = OneTargetCluster::new(Targets::NotServed);
    let objects = follow(&cluster);
    assert!(
        !is_listed_within(&objects, RETRY_INTERVAL * 10).await,
        "an inventory must not be seen before its targets"
    );
    assert_eq!(objects.cache().unseen("KollectTarget", "shop"), Some("not served by the cluster"));
    cluster.set(Targets::Served);
    assert!(is_listed_within(&objects, RETRY_INTERVAL * 2).await);
    assert_eq!(objects.cache().targets().len(), 1);
    assert_eq!(objects.cache().unseen("KollectTarget", "shop"), None);
}

#[tokio::test(start_paused = true)]
async fn a_kollect_kind_that_certainly_does_not_exist_has_no_objects() {
    let cluster = OneTargetCluster::new(Targets::Absent);
    let objects = follow(&cluster);
    assert!(is_listed_within(&objects, Duration::from_secs(1)).await);
    assert_eq!(objects.cache().unseen("KollectTarget", "shop"), None);
}

#[tokio::test(start_paused = true)]
async fn objects_stay_until_it_is_certain_that_their_kind_was_removed() {
    let cluster = OneTargetCluster::new(Targets::Served);
    let objects = follow(&cluster);
    assert!(is_listed_within(&objects, Duration::from_secs(1)).await);
    cluster.cut(Targets::NotServed);
    time::sleep(RETRY_INTERVAL * 10).await;
    assert_eq!(objects.cache().targets().len(), 1);
    cluster.set(Targets::Absent);
    time::sleep(RETRY_INTERVAL * 2).await;
    assert_eq!(objects.cache().targets(), &BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_added_is_seen_at_once() {
    let cluster = OneTargetCluster::new(Targets::NotServed);
    let objects = follow(&cluster);
    assert!(!is_listed_within(&objects, Duration::from_secs(1)).await);
    cluster.set(Targets::Served);
    cluster.kinds.send_modify(|number| *number += 1);
    assert!(is_listed_within(&objects, Duration::from_secs(1)).await);
}
