//! Objects that change as fast as the API server lets them.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use kube::Client;
use serde_json::json;

use super::objects::{WRITERS, patch, path};

/// The owner after the last change.
pub(crate) const LAST_OWNER: &str = "last-change@example.com";

/// What the writers have done.
pub(crate) struct Churned {
    pub(crate) changes: usize,
    /// When they stopped, before the last change.
    pub(crate) ended: Instant,
}

/// Changes random objects for some time, then one more.
pub(crate) async fn churn(client: &Client, count: usize, time: Duration) -> Result<Churned> {
    let deadline = Instant::now() + time;
    let writers = try_join_all((0..WRITERS).map(|writer| write(client, count, writer, deadline))).await?;
    let ended = Instant::now();
    patch(client, &path(0), &json!({ "metadata": { "annotations": { "owner": LAST_OWNER } } })).await?;
    Ok(Churned { changes: writers.iter().sum(), ended })
}

/// Changes objects and counts the changes. Each change contains its number, so none is a no-op.
async fn write(client: &Client, count: usize, writer: usize, deadline: Instant) -> Result<usize> {
    let mut changes = 0;
    while Instant::now() < deadline {
        changes += 1;
        let change = json!({ "spec": { "replicas": changes * WRITERS + writer } });
        patch(client, &path(fastrand::usize(..count)), &change).await?;
    }
    Ok(changes)
}
