//! The Secrets that sinks name, and no others: each is followed by its own name.
//!
//! A Secret that may be read but not watched is read every few minutes, and more often while a sink that names it
//! fails: a corrected Secret may repair the sink.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kollect_engine::{
    tasks::{self, Task, TaskKind, TaskName, Tasks},
    watch::{BlindReason, Event, Query, WatchSource},
};
use kollect_model::{backoff::Backoff, crd::shapes::Gvk};
use kube::{Api, Client};
use tokio::{
    sync::{Notify, watch},
    time::{self, Instant},
};

use crate::resolve::{ObjectName, Secret, SecretContents, check_secret_type};

/// How often a Secret is read that may not be watched.
const READ_INTERVAL: Duration = Duration::from_mins(5);
/// How often the operator checks whether a Secret may be watched.
const PERMISSION_CHECK_INTERVAL: Duration = Duration::from_hours(1);
/// The first pause after a read that found none; later ones are longer.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// How often a Secret is read while a sink fails, at first and later on.
const FAILING_READ_INTERVALS: [Duration; 2] = [Duration::from_secs(10), Duration::from_mins(1)];
/// From then on the longer interval applies.
const LONG_FAILURE: Duration = Duration::from_mins(10);
/// A sink without a failure for this long works again: attempts are more frequent than that.
const RECOVERED_AFTER: Duration = Duration::from_mins(6);
/// The least time between two reads for failing sinks, of all Secrets together: sinks that keep failing must not flood
/// the API server.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(100);

/// Follows Secrets until it is dropped.
pub(crate) struct SecretWatches {
    client: Client,
    source: Arc<dyn WatchSource>,
    current: Arc<Mutex<BTreeMap<ObjectName, Secret>>>,
    changed: watch::Sender<()>,
    tasks: Tasks,
    followed: BTreeMap<ObjectName, FollowedSecret>,
    pace: Arc<ReadPacing>,
}

struct FollowedSecret {
    /// Notified when a sink fails that names the Secret.
    sink_failed: Arc<Notify>,
    task: Task,
}

/// Keeps reads for failing sinks apart.
#[derive(Default)]
struct ReadPacing(tokio::sync::Mutex<Option<Instant>>);

impl ReadPacing {
    /// Waits until the caller may read.
    async fn wait(&self) {
        let mut last = self.0.lock().await;
        if let Some(last) = *last {
            time::sleep_until(last + MIN_READ_INTERVAL).await;
        }
        *last = Some(Instant::now());
    }
}

impl SecretWatches {
    pub(crate) fn new(client: Client, source: Arc<dyn WatchSource>, tasks: Tasks) -> Self {
        let (current, changed) = (Arc::default(), watch::Sender::default());
        Self { client, source, current, changed, tasks, followed: BTreeMap::new(), pace: Arc::default() }
    }

    /// Changes whenever a Secret does.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What is known now about the Secrets that are wanted.
    pub(crate) fn current(&self) -> BTreeMap<ObjectName, Secret> {
        lock(&self.current).clone()
    }

    /// Stops following all Secrets and forgets their contents.
    pub(crate) async fn clear(&mut self) {
        tasks::abort(self.followed.values_mut().map(|followed| &mut followed.task)).await;
        self.followed.clear();
        lock(&self.current).clear();
    }

    /// Follows exactly these from now on.
    pub(crate) fn set(&mut self, wanted: &BTreeSet<ObjectName>) {
        for (name, followed) in self.followed.extract_if(.., |name, _| !wanted.contains(name)) {
            drop(followed);
            lock(&self.current).remove(&name);
        }
        for name in wanted {
            if !self.followed.contains_key(name) {
                lock(&self.current).insert(name.clone(), Secret::Awaited);
                let follower = Arc::new(SecretFollower {
                    name: name.clone(),
                    client: self.client.clone(),
                    current: self.current.clone(),
                    changed: self.changed.clone(),
                    sink_failed: Arc::default(),
                    pace: self.pace.clone(),
                });
                let sink_failed = follower.sink_failed.clone();
                let task = follower.start(&self.tasks, self.source.clone());
                self.followed.insert(name.clone(), FollowedSecret { sink_failed, task });
            }
        }
    }

    /// Reads a Secret more often for a while: a sink that names it has failed, and the Secret may be corrected soon.
    pub(crate) fn read_more_often(&self, name: &ObjectName) {
        if let Some(followed) = self.followed.get(name) {
            followed.sink_failed.notify_one();
        }
    }
}

fn lock(current: &Mutex<BTreeMap<ObjectName, Secret>>) -> MutexGuard<'_, BTreeMap<ObjectName, Secret>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SecretFollower {
    name: ObjectName,
    client: Client,
    current: Arc<Mutex<BTreeMap<ObjectName, Secret>>>,
    changed: watch::Sender<()>,
    sink_failed: Arc<Notify>,
    pace: Arc<ReadPacing>,
}

/// Since when a sink fails that names a Secret, and when it failed last.
struct FailingSince {
    since: Instant,
    last: Instant,
}

impl FailingSince {
    /// The time between two reads.
    fn pause(&self, now: Instant) -> Duration {
        let [at_first, later_on] = FAILING_READ_INTERVALS;
        if now < self.since + LONG_FAILURE { at_first } else { later_on }
    }

    /// Whether it does not fail any more.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.last + RECOVERED_AFTER
    }
}

/// How a read of a Secret ended.
enum SecretRead {
    /// It holds what it held before.
    Same,
    Changed,
    /// The API server does not permit to read it.
    Forbidden,
    /// There is none, or the API server did not answer.
    Nothing,
}

impl SecretFollower {
    /// Starts to follow the Secret. After a panic the known contents stay in use until the next read.
    fn start(self: Arc<Self>, tasks: &Tasks, source: Arc<dyn WatchSource>) -> Task {
        let (namespace, name) = &self.name;
        let task = TaskName::of_object(TaskKind::Secret, format_args!("{namespace}/{name}"));
        let panicked = self.clone();
        tasks.restarted(
            task,
            move || self.clone().follow(source.clone()),
            move |pause| {
                panicked
                    .put_if_awaited(Secret::Unreadable("reading the Secret panicked; this is a bug".into()));
                time::sleep(pause)
            },
        )
    }

    async fn follow(self: Arc<Self>, source: Arc<dyn WatchSource>) {
        let (namespace, name) = &self.name;
        let gvk = Gvk { group: String::new(), version: "v1".into(), kind: "Secret".into() };
        let query =
            Query { namespace: Some(namespace.as_str().into()), name: Some(name.clone()), ..Query::all(gvk) };
        loop {
            if source.permits(&query).await {
                self.watch(&*source, &query).await;
            }
            self.read_for_a_while().await;
        }
    }

    /// Reads the Secret repeatedly, until it is time to check whether it may be watched.
    async fn read_for_a_while(&self) {
        let until = Instant::now() + PERMISSION_CHECK_INTERVAL;
        let mut missing = Backoff::new(FIRST_PAUSE, READ_INTERVAL);
        let mut failing: Option<FailingSince> = None;
        while Instant::now() < until {
            let read = self.read().await;
            let read_at = Instant::now();
            failing =
                failing.filter(|failing| !matches!(read, SecretRead::Changed) && !failing.is_over(read_at));
            let pause = match (read, &failing) {
                (SecretRead::Nothing, _) => missing.next(fastrand::f64()),
                (SecretRead::Same, Some(failing)) => failing.pause(read_at),
                (SecretRead::Same | SecretRead::Changed | SecretRead::Forbidden, _) => READ_INTERVAL,
            };
            let mut next = until.min(read_at + pause);
            while Instant::now() < next {
                tokio::select! {
                    // `biased`: a failure at the end of the pause is handled in the next pause.
                    biased;
                    () = time::sleep_until(next) => {}
                    () = self.sink_failed.notified() => {
                        let now = Instant::now();
                        let failing = failing.get_or_insert(FailingSince { since: now, last: now });
                        failing.last = now;
                        next = next.min((read_at + failing.pause(now)).max(now));
                    }
                }
            }
            if failing.is_some() {
                self.pace.wait().await;
            }
        }
    }

    async fn watch(&self, source: &dyn WatchSource, query: &Query) {
        let mut events = source.watch(query.clone());
        let mut found = false;
        while let Some(event) = events.next().await {
            match event {
                Event::Listing { .. } => found = false,
                Event::Apply(object) => {
                    found = true;
                    match serde_json::from_str::<KubeSecret>(object.raw.get()) {
                        Ok(secret) => self.put(self.usable(secret)),
                        Err(_) => self.put(Secret::Unreadable("the Secret cannot be read".into())),
                    }
                }
                Event::Delete(_) => self.put(self.missing()),
                Event::Synced { .. } if !found => self.put(self.missing()),
                // The known contents stay in use, even while the API server does not answer.
                Event::Synced { .. } | Event::Progress { .. } | Event::Resumed => {}
                Event::Blind(blindness) if blindness.reason == BlindReason::Forbidden => return,
                Event::Blind(blindness) => self.put_if_awaited(Secret::Unreadable(blindness.message)),
            }
        }
    }

    async fn read(&self) -> SecretRead {
        let (namespace, name) = &self.name;
        match Api::<KubeSecret>::namespaced(self.client.clone(), namespace).get_opt(name).await {
            Ok(Some(secret)) => {
                let changed = self.replace(self.usable(secret));
                if changed { SecretRead::Changed } else { SecretRead::Same }
            }
            Ok(None) => {
                self.put(self.missing());
                SecretRead::Nothing
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let why = format!("the operator may not read Secret {name} in namespace {namespace}");
                self.put(Secret::Unreadable(why));
                SecretRead::Forbidden
            }
            Err(_) => {
                self.put_if_awaited(Secret::Unreadable("the API server does not answer".into()));
                SecretRead::Nothing
            }
        }
    }

    fn usable(&self, secret: KubeSecret) -> Secret {
        let (namespace, name) = &self.name;
        match check_secret_type(secret.type_.as_deref()) {
            Ok(()) => Secret::Contents(Arc::new(contents(secret))),
            Err(problem) => Secret::Unreadable(format!("Secret {name} in namespace {namespace}: {problem}")),
        }
    }

    fn missing(&self) -> Secret {
        let (namespace, name) = &self.name;
        Secret::Unreadable(format!("no Secret {name} in namespace {namespace}: add it or correct the name"))
    }

    fn put(&self, secret: Secret) {
        self.replace(secret);
    }

    /// Stores what was read. Returns whether it has changed.
    fn replace(&self, secret: Secret) -> bool {
        let before = lock(&self.current).insert(self.name.clone(), secret.clone());
        let changed = before != Some(secret);
        if changed {
            self.changed.send_replace(());
        }
        changed
    }

    fn put_if_awaited(&self, secret: Secret) {
        let awaited = lock(&self.current).get(&self.name) == Some(&Secret::Awaited);
        if awaited {
            self.put(secret);
        }
    }
}

fn contents(secret: KubeSecret) -> SecretContents {
    secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect()
}

#[cfg(test)]
mod tests;
