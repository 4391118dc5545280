//! The yardstick of the benchmark: how long any client needs at least to read all objects in pages.

use std::time::Instant;

use anyhow::Result;
use http::Request;
use kube::{Client, client::Body};
use memchr::memmem;

/// A list that was read and not parsed.
pub(crate) struct Listing {
    pub(crate) seconds: f64,
    pub(crate) pages: usize,
    pub(crate) bytes: usize,
}

/// Reads all Deployments in pages.
pub(crate) async fn list(client: &Client) -> Result<Listing> {
    let began = Instant::now();
    let (mut pages, mut bytes) = (0, 0);
    let mut token = Some(String::new());
    while let Some(continue_token) = token {
        let path = format!("/apis/apps/v1/deployments?limit=500&continue={continue_token}");
        let response = client.send(Request::get(path).body(Body::empty())?).await?;
        anyhow::ensure!(response.status().is_success(), "list Deployments: {}", response.status());
        let page = response.into_body().collect_bytes().await?;
        (pages, bytes) = (pages + 1, bytes + page.len());
        token = next_token(&page);
    }
    Ok(Listing { seconds: began.elapsed().as_secs_f64(), pages, bytes })
}

/// The token of the next page. It is near the beginning, and it needs no escapes.
fn next_token(page: &[u8]) -> Option<String> {
    let head = page.get(..2000).unwrap_or(page);
    let head = head.get(..memmem::find(head, br#""items":"#)?)?;
    let (_, rest) = std::str::from_utf8(head).ok()?.split_once(r#""continue":""#)?;
    rest.split_once('"').map(|(token, _)| token.to_owned())
}
