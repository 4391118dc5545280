//! The objects of Kollect that the operator works with.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kollect_testbed::ControlPlane;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::objects::{WRITERS, post};

const KOLLECT_API: &str = "/apis/kollect.dev/v1alpha1";
const TIMEOUT: Duration = Duration::from_mins(10);
/// How often statuses are read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Objects of each of the many targets.
const MAPS_PER_TARGET: usize = 2;

/// Defines all kinds of Kollect.
pub(crate) fn install(plane: &ControlPlane) -> Result<()> {
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/crd/bases");
    plane.kubectl(&["apply", "--server-side", "-f", crds])?;
    plane.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
    Ok(())
}

/// A sink with its Secret, and an inventory of all targets of a namespace.
pub(crate) async fn create_sink_and_inventory(client: &Client, namespace: &str, dsn: &str) -> Result<()> {
    let secret = json!({ "metadata": { "name": "portal" }, "stringData": { "dsn": dsn } });
    post(client, &format!("/api/v1/namespaces/{namespace}/secrets"), &secret).await?;
    let sink = json!({ "type": "postgres", "postgres": { "databaseRef": { "name": "portal" }, "table": "inventory" } });
    create(client, namespace, "KollectDatabaseSink", "portal", &sink).await?;
    create(client, namespace, "KollectInventory", "all", &json!({ "databaseSinkRefs": ["portal"] })).await
}

async fn create(client: &Client, namespace: &str, kind: &str, name: &str, spec: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    let plural = format!("{}s", kind.to_lowercase()).replace("inventorys", "inventories");
    post(client, &format!("{KOLLECT_API}/namespaces/{namespace}/{plural}"), &object).await
}

/// Lets the targets of a namespace collect from all others.
pub(crate) async fn allow_all_namespaces(client: &Client, namespace: &str) -> Result<()> {
    create(client, namespace, "KollectScope", "all", &json!({ "allowedNamespaces": ["*"] })).await
}

pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    post(client, "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await
}

/// Many teams: each has a namespace, an inventory, a sink and some targets.
#[derive(Clone, Copy)]
pub(crate) struct Teams {
    pub(crate) count: usize,
    /// Number of targets of all teams together.
    pub(crate) targets: usize,
}

impl Teams {
    pub(crate) fn namespace(team: usize) -> String {
        format!("team-{team:03}")
    }

    /// The path of an object of the first target of a team.
    pub(crate) fn path(team: usize) -> String {
        format!("/api/v1/namespaces/{}/configmaps/part-0-0", Self::namespace(team))
    }

    pub(crate) fn rows(self) -> usize {
        self.targets * MAPS_PER_TARGET
    }

    fn targets_of(self, team: usize) -> usize {
        self.targets * (team + 1) / self.count - self.targets * team / self.count
    }

    pub(crate) async fn create(self, client: &Client, dsn: &str) -> Result<()> {
        let teams = stream::iter(0..self.count).map(|team| self.create_one(client, dsn, team));
        teams.buffer_unordered(WRITERS).try_collect().await
    }

    async fn create_one(self, client: &Client, dsn: &str, team: usize) -> Result<()> {
        let namespace = Self::namespace(team);
        create_namespace(client, &namespace).await?;
        create(client, &namespace, "KollectProfile", "maps", &profile()).await?;
        for target in 0..self.targets_of(team) {
            let label = format!("part-{target}");
            let spec = json!({
                "profileRef": "maps", "includedNamespaces": [namespace],
                "labelSelector": { "matchLabels": { "part": label } },
            });
            create(client, &namespace, "KollectTarget", &label, &spec).await?;
            for map in 0..MAPS_PER_TARGET {
                let metadata = json!({ "name": format!("{label}-{map}"), "labels": { "part": label } });
                let map = json!({ "metadata": metadata, "data": { "value": "1" } });
                post(client, &format!("/api/v1/namespaces/{namespace}/configmaps"), &map).await?;
            }
        }
        create_sink_and_inventory(client, &namespace, dsn).await
    }
}

/// Teams whose targets collect the same objects: many rows of few objects.
#[derive(Clone, Copy)]
pub(crate) struct SharedTeams {
    pub(crate) count: usize,
    /// Number per team.
    pub(crate) targets: usize,
    /// Number per team.
    pub(crate) maps: usize,
}

impl SharedTeams {
    pub(crate) fn rows(self) -> usize {
        self.count * self.targets * self.maps
    }

    /// Creates everything. `on_progress` is called with the number of teams so far.
    pub(crate) async fn create(self, client: &Client, dsn: &str, on_progress: impl Fn(usize)) -> Result<()> {
        for team in 0..self.count {
            let namespace = Teams::namespace(team);
            create_namespace(client, &namespace).await?;
            create(client, &namespace, "KollectProfile", "maps", &profile()).await?;
            for target in 0..self.targets {
                let spec = json!({ "profileRef": "maps", "includedNamespaces": [namespace] });
                create(client, &namespace, "KollectTarget", &format!("part-{target}"), &spec).await?;
            }
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            let maps = stream::iter(0..self.maps).map(|map| {
                let path = &path;
                let map = json!({ "metadata": { "name": format!("map-{map}") }, "data": { "value": "1" } });
                async move { post(client, path, &map).await }
            });
            maps.buffer_unordered(WRITERS).try_collect::<()>().await?;
            create_sink_and_inventory(client, &namespace, dsn).await?;
            on_progress(team + 1);
        }
        Ok(())
    }
}

fn profile() -> Value {
    json!({
        "targetGVK": { "version": "v1", "kind": "ConfigMap" },
        "attributes": [{ "name": "owner", "path": "$.metadata.annotations.owner" }],
    })
}

/// Waits until `count` inventories are ready; `before_check` is called before each check.
pub(crate) async fn wait_until_ready(
    client: &Client,
    count: usize,
    mut before_check: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let began = Instant::now();
    loop {
        before_check().await?;
        let request = Request::get(format!("{KOLLECT_API}/kollectinventories")).body(Vec::new())?;
        let list: Value = serde_json::from_str(&client.request_text(request).await?)?;
        let items = list["items"].as_array().context("no list of inventories")?;
        let found = items.iter().filter(|item| is_ready(item)).count();
        if found == count {
            return Ok(());
        }
        ensure!(
            began.elapsed() < TIMEOUT,
            "{found} of {count} inventories are ready: {}",
            items.first().unwrap_or(&list)
        );
        sleep(POLL_INTERVAL).await;
    }
}

fn is_ready(inventory: &Value) -> bool {
    let conditions = inventory["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
}
