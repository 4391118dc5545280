//! Which kinds the API server serves, and under which names.
//!
//! Aggregated discovery answers for all groups at once. It is refreshed when CustomResourceDefinitions or APIServices
//! change, when a query needs a kind that is missing, and every few minutes.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;
use futures::{FutureExt, Stream, StreamExt, stream};
use http::{Request, header::ACCEPT};
use kollect_engine::watch::{BlindReason, Blindness, Event, Query, Resolution, WatchSource};
use kollect_model::crd::shapes::Gvk;
use kube::Client;
use serde::Deserialize;
use tokio::{
    sync::{Mutex, watch},
    time::{self, Instant},
};
use tracing::{info, warn};

use super::{plain, request::PATIENCE};
use crate::error_chain::LastProblem;

const FORMAT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Discovery is refreshed at least this often.
const REFRESH: Duration = Duration::from_mins(3);
/// An answer younger than this is not refreshed because a kind is missing.
const FRESH: Duration = Duration::from_secs(5);
/// How long a missing kind is remembered after the last query for it. Targets ask for theirs twice a minute.
const FORGET: Duration = Duration::from_mins(10);
/// Changes of definitions within this time cause one refresh.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// How to ask for the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) namespaced: bool,
    verbs: Vec<String>,
    /// The resource, if the kind is only that of its subresource.
    part_of: Option<String>,
}

type Kinds = BTreeMap<(String, String), Vec<Served>>;

#[derive(Default)]
struct Answer {
    kinds: Kinds,
    /// Groups whose servers did not answer.
    stale: BTreeSet<String>,
    at: Option<Instant>,
    /// The last error of a request, so that each is logged once.
    problem: LastProblem,
    /// Whether the last request failed.
    failed: bool,
    /// Kinds that something asks for and that complete answers do not contain.
    missing: BTreeMap<(String, String), Missing>,
}

struct Missing {
    /// When the kind was first found to be missing.
    since: Instant,
    /// When something last asked for the kind.
    asked: Instant,
}

/// What is known about kinds. Cheap to clone.
#[derive(Clone)]
pub(super) struct Discovery {
    client: Client,
    answer: Arc<RwLock<Answer>>,
    /// Held during a request: one at a time.
    asking: Arc<Mutex<()>>,
    /// A kind that complete answers this far apart do not contain does not exist.
    certain: Duration,
    pub(super) changes: watch::Sender<u64>,
}

#[derive(Deserialize)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: GroupMetadata,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupMetadata {
    name: String,
}

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "version")]
    name: String,
    #[serde(default)]
    resources: Vec<ApiResource>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    subresources: Vec<Subresource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    /// A subresource may have a kind of another group.
    group: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subresource {
    response_kind: Option<ResponseKind>,
}

impl Discovery {
    pub(super) fn new(client: Client, certain: Duration) -> Self {
        let answer = Arc::default();
        Self { client, answer, asking: Arc::default(), certain, changes: watch::Sender::default() }
    }

    fn read<T>(&self, read: impl FnOnce(&Answer) -> T) -> T {
        read(&self.answer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How to request objects of the kind, or why that is impossible.
    pub(super) async fn find(&self, gvk: &Gvk) -> Result<Served, Resolution> {
        let known = self.read(|answer| answer.at.map(|_| answer.find(gvk, self.certain)));
        if let Some(Ok(served)) = known {
            return Ok(served);
        }
        if self.read(|answer| answer.at.is_none_or(|at| at.elapsed() >= FRESH)) {
            self.refresh().await.map_err(|error| {
                let message = format!("ask which kinds the cluster serves: {error:#}");
                Resolution::Blind(Blindness { reason: BlindReason::Failed, message })
            })?;
        }
        let mut answer = self.answer.write().unwrap_or_else(PoisonError::into_inner);
        answer.find_or_miss(gvk, self.certain, Instant::now())
    }

    /// Whether all groups answered the last request; `None`: no request was made yet.
    pub(super) fn is_healthy(&self) -> Option<bool> {
        self.read(|answer| {
            let asked = answer.at.is_some() || answer.failed;
            asked.then_some(!answer.failed && answer.stale.is_empty())
        })
    }

    async fn refresh(&self) -> anyhow::Result<()> {
        let asked = self.ask().await;
        let mut answer = self.answer.write().unwrap_or_else(PoisonError::into_inner);
        answer.failed = asked.is_err();
        match &asked {
            Ok(()) if answer.problem.is_solved() => info!("the API server tells which kinds it serves again"),
            Ok(()) => {}
            Err(error) => {
                let error = format!("{error:#}");
                if answer.problem.is_new(&error) {
                    warn!(error, "cannot ask the API server which kinds it serves; trying again");
                }
            }
        }
        drop(answer);
        asked
    }

    async fn ask(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let _asking = self.asking.lock().await;
        // Another task has refreshed the answer while this one waited for the lock.
        if self.read(|answer| answer.at.is_some_and(|at| at >= began)) {
            return Ok(());
        }
        let mut kinds = Kinds::new();
        let mut stale = BTreeSet::new();
        for path in ["/api", "/apis"] {
            let request = Request::get(path).header(ACCEPT, FORMAT).body(Vec::new())?;
            let answer = time::timeout(PATIENCE, self.client.request(request)).await;
            let asked = || format!("get {path}");
            let groups: Groups =
                answer.context("no answer").with_context(asked)?.map_err(plain).with_context(asked)?;
            groups.items.into_iter().for_each(|group| group.add_to(&mut kinds, &mut stale));
        }
        let mut answer = self.answer.write().unwrap_or_else(PoisonError::into_inner);
        let changed = answer.replace(kinds, stale, Instant::now());
        drop(answer);
        if changed {
            self.changes.send_modify(|number| *number += 1);
        }
        Ok(())
    }

    /// Refreshes the answer whenever kinds may have changed. Never returns.
    pub(super) async fn follow(self, source: Arc<dyn WatchSource>) {
        let definition = |group: &str, kind: &str| {
            let gvk = Gvk { group: group.into(), version: "v1".into(), kind: kind.into() };
            Query { metadata_only: true, ..Query::all(gvk) }
        };
        let definitions = [
            definition("apiextensions.k8s.io", "CustomResourceDefinition"),
            definition("apiregistration.k8s.io", "APIService"),
        ];
        let mut refresh = time::interval(REFRESH);
        loop {
            let mut streams = Vec::new();
            for query in &definitions {
                if source.permits(query).await {
                    let events = source.watch(query.clone()).map(Some);
                    streams.push(events.chain(stream::iter([None])).boxed());
                }
            }
            let mut ended = false;
            let mut changes = stream::select_all(streams);
            loop {
                tokio::select! {
                    // The periodic refresh is due only every few minutes, so it does not keep changes waiting.
                    biased;
                    _ = refresh.tick() => {
                        self.refresh_beside(&mut changes, &mut ended).await;
                        if ended || changes.is_empty() {
                            break;
                        }
                    }
                    Some(event) = changes.next() => {
                        ended |= event.is_none();
                        if !matches!(event, Some(Event::Apply(_) | Event::Delete(_))) {
                            continue;
                        }
                        time::sleep(DEBOUNCE).await;
                        while let Some(Some(event)) = changes.next().now_or_never() {
                            ended |= event.is_none();
                        }
                        self.refresh_beside(&mut changes, &mut ended).await;
                    }
                }
            }
        }
    }

    /// Refreshes the answer, and once more if definitions changed meanwhile. A watch that begins may wait for a refresh
    /// too, one at a time, so `changes` must be polled meanwhile. Failures are ignored: the next refresh comes soon.
    async fn refresh_beside(
        &self,
        changes: &mut (impl Stream<Item = Option<Event>> + Unpin),
        ended: &mut bool,
    ) {
        let mut again = true;
        while std::mem::take(&mut again) {
            let mut refreshed = pin!(self.refresh());
            loop {
                tokio::select! {
                    biased;
                    asked = &mut refreshed => {
                        drop(asked);
                        break;
                    }
                    Some(event) = changes.next() => {
                        *ended |= event.is_none();
                        again |= matches!(event, Some(Event::Apply(_) | Event::Delete(_)));
                    }
                }
            }
        }
    }
}

impl Group {
    fn add_to(self, kinds: &mut Kinds, stale: &mut BTreeSet<String>) {
        let group = self.metadata.name;
        for Version { name: version, resources, freshness } in self.versions {
            if freshness == "Stale" {
                stale.insert(group.clone());
            }
            for resource in resources {
                let served = |part_of| Served {
                    version: version.clone(),
                    plural: resource.resource.clone(),
                    namespaced: resource.scope == "Namespaced",
                    verbs: resource.verbs.clone(),
                    part_of,
                };
                let kind = resource.response_kind.as_ref().map_or("", |kind| &kind.kind);
                kinds.entry((group.clone(), kind.to_owned())).or_default().push(served(None));
                for part in resource.subresources.iter().filter_map(|part| part.response_kind.as_ref()) {
                    let of = if part.group.is_empty() { &group } else { &part.group };
                    let parts = kinds.entry((of.clone(), part.kind.clone())).or_default();
                    parts.push(served(Some(resource.resource.clone())));
                }
            }
        }
    }
}

impl Answer {
    /// Takes a complete answer. Returns whether it differs from the one before.
    fn replace(&mut self, kinds: Kinds, stale: BTreeSet<String>, now: Instant) -> bool {
        let changed = self.kinds != kinds || self.stale != stale;
        let known = |name: &(String, String)| kinds.contains_key(name) || stale.contains(&name.0);
        self.missing.retain(|name, missing| !known(name) && now.duration_since(missing.asked) < FORGET);
        (self.kinds, self.stale, self.at) = (kinds, stale, Some(now));
        changed
    }

    /// Looks the kind up. If it is missing, remembers that.
    fn find_or_miss(&mut self, gvk: &Gvk, certain: Duration, now: Instant) -> Result<Served, Resolution> {
        let found = self.find(gvk, certain);
        let missing = match &found {
            Err(Resolution::Blind(blindness)) => blindness.reason == BlindReason::NotServed,
            Err(Resolution::Absent) => true,
            _ => false,
        };
        if let Some(at) = self.at.filter(|_| missing) {
            let name = (gvk.group.clone(), gvk.kind.clone());
            self.missing.entry(name).or_insert(Missing { since: at, asked: now }).asked = now;
        }
        found
    }

    fn find(&self, gvk: &Gvk, certain: Duration) -> Result<Served, Resolution> {
        let blind = |reason, message| Err(Resolution::Blind(Blindness { reason, message }));
        let name = (gvk.group.clone(), gvk.kind.clone());
        let served = self.kinds.get(&name).map_or(&[][..], |served| served);
        let whole: Vec<&Served> = served.iter().filter(|served| served.part_of.is_none()).collect();
        let listable = |served: &&&Served| {
            ["list", "watch"].iter().all(|verb| served.verbs.iter().any(|known| known == verb))
        };
        let version: Vec<&Served> = whole.iter().copied().filter(|s| s.version == gvk.version).collect();
        if let Some(served) = version.iter().find(listable) {
            return Ok((*served).clone());
        }
        if !version.is_empty() {
            let message =
                format!("{gvk} cannot be collected: the API server offers no list and watch for it");
            return blind(BlindReason::NotListable, message);
        }
        if !whole.is_empty() {
            let versions: BTreeSet<&str> = whole.iter().map(|served| &*served.version).collect();
            let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
            let message = format!(
                "{gvk} is not served by the cluster: {} is served as {versions}; name one of these versions",
                gvk.kind
            );
            return blind(BlindReason::VersionNotServed, message);
        }
        if let Some(part) = served.first().and_then(|served| served.part_of.as_ref()) {
            let message =
                format!("{gvk} cannot be collected: it is a part of {part} and has no list of its own");
            return blind(BlindReason::NotListable, message);
        }
        if self.stale.contains(&gvk.group) {
            let message = format!("{gvk}: the API group {} does not answer", gvk.group);
            return blind(BlindReason::Failed, message);
        }
        let missing = self.missing.get(&name);
        if let (Some(Missing { since, .. }), Some(at)) = (missing, self.at)
            && at.duration_since(*since) >= certain
        {
            return Err(Resolution::Absent);
        }
        let message = format!("{gvk} is not served by the cluster: check group, version and kind");
        blind(BlindReason::NotServed, message)
    }
}

impl Served {
    /// The resource as RBAC messages name it: `deployments.apps`.
    pub(super) fn resource_name(&self, group: &str) -> String {
        match group {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

#[cfg(test)]
mod tests;
