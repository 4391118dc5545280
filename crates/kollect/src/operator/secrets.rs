//! The Secrets that sinks name, and no others: each is followed by its own name.
//!
//! Where watching one is not permitted, reading it may be: then it is read now and then.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kollect_engine::{
    tasks::{Task, TaskKind, TaskName, Tasks},
    watch::{BlindReason, Event, Query, WatchSource},
};
use kollect_model::crd::shapes::Gvk;
use kube::{Api, Client};
use tokio::{sync::watch, time};

use crate::world::{Contents, Name, Secret, check_secret_type};

/// How often a Secret is read that may not be watched.
const READ_AGAIN: Duration = Duration::from_mins(5);

/// Follows Secrets for as long as it lives.
pub(crate) struct Secrets {
    client: Client,
    source: Arc<dyn WatchSource>,
    known: Arc<Mutex<BTreeMap<Name, Secret>>>,
    changed: watch::Sender<()>,
    tasks: Tasks,
    followed: BTreeMap<Name, Task>,
}

impl Secrets {
    pub(crate) fn new(client: Client, source: Arc<dyn WatchSource>, tasks: Tasks) -> Self {
        let (known, changed) = (Arc::default(), watch::Sender::default());
        Self { client, source, known, changed, tasks, followed: BTreeMap::new() }
    }

    /// Changes whenever a Secret does.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What is known about the Secrets that are wanted.
    pub(crate) fn known(&self) -> BTreeMap<Name, Secret> {
        lock(&self.known).clone()
    }

    /// Follows exactly these from now on.
    pub(crate) fn set(&mut self, wanted: &BTreeSet<Name>) {
        for (name, task) in self.followed.extract_if(.., |name, _| !wanted.contains(name)) {
            drop(task);
            lock(&self.known).remove(&name);
        }
        for name in wanted {
            if !self.followed.contains_key(name) {
                lock(&self.known).insert(name.clone(), Secret::Awaited);
                let follower = Arc::new(Follower {
                    name: name.clone(),
                    client: self.client.clone(),
                    known: self.known.clone(),
                    changed: self.changed.clone(),
                });
                self.followed.insert(name.clone(), follower.start(&self.tasks, self.source.clone()));
            }
        }
    }
}

fn lock(known: &Mutex<BTreeMap<Name, Secret>>) -> MutexGuard<'_, BTreeMap<Name, Secret>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Follower {
    name: Name,
    client: Client,
    known: Arc<Mutex<BTreeMap<Name, Secret>>>,
    changed: watch::Sender<()>,
}

impl Follower {
    /// Starts to follow the Secret. After a panic what was known of it counts until it has been read again.
    fn start(self: Arc<Self>, tasks: &Tasks, source: Arc<dyn WatchSource>) -> Task {
        let (namespace, name) = &self.name;
        let task = TaskName::of_object(TaskKind::Secret, format_args!("{namespace}/{name}"));
        let panicked = self.clone();
        tasks.restarted(
            task,
            move || self.clone().follow(source.clone()),
            move |pause| {
                panicked.put_first(Secret::Unreadable("reading the Secret panicked; this is a bug".into()));
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
            self.read().await;
            time::sleep(READ_AGAIN).await;
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
                // What was known stays: the API server may be away for a while.
                Event::Synced { .. } | Event::Progress { .. } | Event::Resumed => {}
                Event::Blind(blindness) if blindness.reason == BlindReason::Forbidden => return,
                Event::Blind(blindness) => self.put_first(Secret::Unreadable(blindness.message)),
            }
        }
    }

    async fn read(&self) {
        let (namespace, name) = &self.name;
        match Api::<KubeSecret>::namespaced(self.client.clone(), namespace).get_opt(name).await {
            Ok(Some(secret)) => self.put(self.usable(secret)),
            Ok(None) => self.put(self.missing()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let why = format!("the operator may not read Secret {name} in namespace {namespace}");
                self.put(Secret::Unreadable(why));
            }
            Err(_) => self.put_first(Secret::Unreadable("the API server does not answer".into())),
        }
    }

    fn usable(&self, secret: KubeSecret) -> Secret {
        let (namespace, name) = &self.name;
        match check_secret_type(secret.type_.as_deref()) {
            Ok(()) => Secret::Known(Arc::new(contents(secret))),
            Err(problem) => Secret::Unreadable(format!("Secret {name} in namespace {namespace}: {problem}")),
        }
    }

    fn missing(&self) -> Secret {
        let (namespace, name) = &self.name;
        Secret::Unreadable(format!("no Secret {name} in namespace {namespace}: add it or correct the name"))
    }

    fn put(&self, secret: Secret) {
        let before = lock(&self.known).insert(self.name.clone(), secret.clone());
        if before != Some(secret) {
            self.changed.send_replace(());
        }
    }

    fn put_first(&self, secret: Secret) {
        let awaited = lock(&self.known).get(&self.name) == Some(&Secret::Awaited);
        if awaited {
            self.put(secret);
        }
    }
}

fn contents(secret: KubeSecret) -> Contents {
    secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect()
}
