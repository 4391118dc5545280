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

use super::{innermost_cause, request::REQUEST_TIMEOUT};
use crate::error_chain::LastProblem;

const FORMAT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Discovery is refreshed at least this often.
const REFRESH_INTERVAL: Duration = Duration::from_mins(3);
/// An answer younger than this is not refreshed because a kind is missing.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long a missing kind is remembered after the last query for it. Targets look theirs up twice a minute.
const FORGET_AFTER: Duration = Duration::from_mins(10);
/// Changes of definitions within this time cause one refresh.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// How to request the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedResource {
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) namespaced: bool,
    verbs: Vec<String>,
    /// The resource, if the kind is only that of its subresource.
    part_of: Option<String>,
}

type ServedKinds = BTreeMap<(String, String), Vec<ServedResource>>;

#[derive(Default)]
struct DiscoveryAnswer {
    kinds: ServedKinds,
    /// Groups whose servers did not answer.
    stale: BTreeSet<String>,
    received: Option<Instant>,
    /// The last error of a request, so that each is logged once.
    problem: LastProblem,
    /// Whether the last request failed.
    failed: bool,
    /// Kinds that were looked up and that complete answers do not contain.
    missing: BTreeMap<(String, String), MissingKind>,
}

struct MissingKind {
    /// When the kind was first found to be missing.
    since: Instant,
    /// When the kind was last looked up.
    looked_up: Instant,
}

/// What is known about kinds. Cheap to clone.
#[derive(Clone)]
pub(super) struct Discovery {
    client: Client,
    answer: Arc<RwLock<DiscoveryAnswer>>,
    /// Held during a request: one at a time.
    request_lock: Arc<Mutex<()>>,
    /// A kind that complete answers this far apart do not contain does not exist.
    absent_after: Duration,
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
    pub(super) fn new(client: Client, absent_after: Duration) -> Self {
        let answer = Arc::default();
        Self { client, answer, request_lock: Arc::default(), absent_after, changes: watch::Sender::default() }
    }

    fn read<T>(&self, read: impl FnOnce(&DiscoveryAnswer) -> T) -> T {
        read(&self.answer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How to request objects of the kind, or why that is impossible.
    pub(super) async fn find(&self, gvk: &Gvk) -> Result<ServedResource, Resolution> {
        let known = self.read(|answer| answer.received.map(|_| answer.find(gvk, self.absent_after)));
        if let Some(Ok(served)) = known {
            return Ok(served);
        }
        if self.read(|answer| answer.received.is_none_or(|received| received.elapsed() >= FRESH_FOR)) {
            self.refresh().await.map_err(|error| {
                let message = format!("ask which kinds the cluster serves: {error:#}");
                Resolution::Blind(Blindness { reason: BlindReason::Failed, message })
            })?;
        }
        let mut answer = self.answer.write().unwrap_or_else(PoisonError::into_inner);
        answer.find_or_record_missing(gvk, self.absent_after, Instant::now())
    }

    /// Whether all groups answered the last request; `None`: no request was made yet.
    pub(super) fn is_healthy(&self) -> Option<bool> {
        self.read(|answer| {
            let requested = answer.received.is_some() || answer.failed;
            requested.then_some(!answer.failed && answer.stale.is_empty())
        })
    }

    async fn refresh(&self) -> anyhow::Result<()> {
        let result = self.fetch().await;
        let mut answer = self.answer.write().unwrap_or_else(PoisonError::into_inner);
        answer.failed = result.is_err();
        match &result {
            Ok(()) if answer.problem.clear() => info!("discovery works again"),
            Ok(()) => {}
            Err(error) => {
                let error = format!("{error:#}");
                if answer.problem.replace(&error) {
                    warn!(error, "cannot ask the API server which kinds it serves; trying again");
                }
            }
        }
        drop(answer);
        result
    }

    async fn fetch(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        let _request = self.request_lock.lock().await;
        // Another task has refreshed the answer while this one waited for the lock.
        if self.read(|answer| answer.received.is_some_and(|received| received >= began)) {
            return Ok(());
        }
        let mut kinds = ServedKinds::new();
        let mut stale = BTreeSet::new();
        for path in ["/api", "/apis"] {
            let request = Request::get(path).header(ACCEPT, FORMAT).body(Vec::new())?;
            let answer = time::timeout(REQUEST_TIMEOUT, self.client.request(request)).await;
            let request_text = || format!("get {path}");
            let groups: Groups = answer
                .context("no answer")
                .with_context(request_text)?
                .map_err(innermost_cause)
                .with_context(request_text)?;
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
        let mut refresh = time::interval(REFRESH_INTERVAL);
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
                        self.refresh_while_polling(&mut changes, &mut ended).await;
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
                        self.refresh_while_polling(&mut changes, &mut ended).await;
                    }
                }
            }
        }
    }

    /// Refreshes the answer, and once more if definitions changed meanwhile. A watch that begins may wait for a refresh
    /// too, one at a time, so `changes` must be polled meanwhile. Failures are ignored: the next refresh comes soon.
    async fn refresh_while_polling(
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
                    result = &mut refreshed => {
                        drop(result);
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
    fn add_to(self, kinds: &mut ServedKinds, stale: &mut BTreeSet<String>) {
        let group = self.metadata.name;
        for Version { name: version, resources, freshness } in self.versions {
            if freshness == "Stale" {
                stale.insert(group.clone());
            }
            for resource in resources {
                let served = |part_of| ServedResource {
                    version: version.clone(),
                    plural: resource.resource.clone(),
                    namespaced: resource.scope == "Namespaced",
                    verbs: resource.verbs.clone(),
                    part_of,
                };
                let kind = resource.response_kind.as_ref().map_or("", |kind| &kind.kind);
                kinds.entry((group.clone(), kind.to_owned())).or_default().push(served(None));
                for part in resource.subresources.iter().filter_map(|part| part.response_kind.as_ref()) {
                    let part_group = if part.group.is_empty() { &group } else { &part.group };
                    let parts = kinds.entry((part_group.clone(), part.kind.clone())).or_default();
                    parts.push(served(Some(resource.resource.clone())));
                }
            }
        }
    }
}

impl DiscoveryAnswer {
    /// Takes a complete answer. Returns whether it differs from the one before.
    fn replace(&mut self, kinds: ServedKinds, stale: BTreeSet<String>, now: Instant) -> bool {
        let changed = self.kinds != kinds || self.stale != stale;
        let known = |name: &(String, String)| kinds.contains_key(name) || stale.contains(&name.0);
        self.missing
            .retain(|name, missing| !known(name) && now.duration_since(missing.looked_up) < FORGET_AFTER);
        (self.kinds, self.stale, self.received) = (kinds, stale, Some(now));
        changed
    }

    /// Looks the kind up. If it is missing, remembers that.
    fn find_or_record_missing(
        &mut self,
        gvk: &Gvk,
        absent_after: Duration,
        now: Instant,
    ) -> Result<ServedResource, Resolution> {
        let found = self.find(gvk, absent_after);
        let missing = match &found {
            Err(Resolution::Blind(blindness)) => blindness.reason == BlindReason::NotServed,
            Err(Resolution::Absent) => true,
            _ => false,
        };
        if let Some(received) = self.received.filter(|_| missing) {
            let name = (gvk.group.clone(), gvk.kind.clone());
            self.missing.entry(name).or_insert(MissingKind { since: received, looked_up: now }).looked_up =
                now;
        }
        found
    }

    fn find(&self, gvk: &Gvk, absent_after: Duration) -> Result<ServedResource, Resolution> {
        let blind = |reason, message| Err(Resolution::Blind(Blindness { reason, message }));
        let name = (gvk.group.clone(), gvk.kind.clone());
        let served = self.kinds.get(&name).map_or(&[][..], |served| served);
        let resources: Vec<&ServedResource> =
            served.iter().filter(|served| served.part_of.is_none()).collect();
        let listable = |served: &&&ServedResource| {
            ["list", "watch"].iter().all(|verb| served.verbs.iter().any(|known| known == verb))
        };
        let version: Vec<&ServedResource> =
            resources.iter().copied().filter(|served| served.version == gvk.version).collect();
        if let Some(served) = version.iter().find(listable) {
            return Ok((*served).clone());
        }
        if !version.is_empty() {
            let message =
                format!("{gvk} cannot be collected: the API server offers no list and watch for it");
            return blind(BlindReason::NotListable, message);
        }
        if !resources.is_empty() {
            let versions: BTreeSet<&str> = resources.iter().map(|served| &*served.version).collect();
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
        if let (Some(MissingKind { since, .. }), Some(received)) = (missing, self.received)
            && received.duration_since(*since) >= absent_after
        {
            return Err(Resolution::Absent);
        }
        let message = format!("{gvk} is not served by the cluster: check group, version and kind");
        blind(BlindReason::NotServed, message)
    }
}

impl ServedResource {
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
