//! Requests for the objects of one query, and what comes back.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt};
use http::{
    Request, Response, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, RETRY_AFTER},
};
use http_body_util::BodyExt;
use kollect_engine::watch::{BlindReason, Blindness, Query};
use kollect_model::crd::shapes::is_namespace_name;
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time;

use super::{discovery::ServedResource, innermost_cause};

/// Objects per page: what kubectl requests.
pub(super) const PAGE_SIZE: usize = 500;
/// How long an API server may take to begin an answer.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Longer lines cannot be objects: an API server stores none that large.
const LONGEST_LINE: usize = 64 << 20;

/// Why a request failed.
#[derive(Debug)]
pub(super) struct RequestFailure {
    pub(super) status: Option<StatusCode>,
    pub(super) message: String,
    /// Value of the header Retry-After.
    pub(super) retry_after: Option<Duration>,
}

impl RequestFailure {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self { status: None, message: message.into(), retry_after: None }
    }

    pub(super) fn is(&self, status: StatusCode) -> bool {
        self.status == Some(status)
    }

    /// Whether a retry cannot succeed unless something else changes first.
    pub(super) fn is_final(&self) -> bool {
        self.reason() != BlindReason::Failed
    }

    fn reason(&self) -> BlindReason {
        match self.status {
            Some(StatusCode::FORBIDDEN) => BlindReason::Forbidden,
            Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => BlindReason::NotServed,
            Some(StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) => BlindReason::Rejected,
            _ => BlindReason::Failed,
        }
    }
}

/// The fields of a `Status` object that are used here.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    pub(super) code: u16,
    pub(super) message: String,
}

/// One query to one resource.
pub(super) struct ResourceEndpoint {
    client: Client,
    path: String,
    selectors: String,
    metadata_only: bool,
    /// Name for messages: `deployments.apps in namespace shop`.
    pub(super) name: String,
}

impl ResourceEndpoint {
    pub(super) fn new(client: Client, served: &ServedResource, query: &Query) -> Result<Self, Blindness> {
        let gvk = &query.gvk;
        let root = if gvk.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", gvk.group) };
        let mut path = format!("{root}/{}", gvk.version);
        let mut name = served.resource_name(&gvk.group);
        match query.namespace.as_deref() {
            // A name from a manifest must not change the path.
            Some(namespace) if !is_namespace_name(namespace) => {
                let message = format!("{namespace} is not the name of a namespace");
                return Err(Blindness { reason: BlindReason::Rejected, message });
            }
            Some(namespace) => {
                path = format!("{path}/namespaces/{namespace}");
                name = format!("{name} in namespace {namespace}");
            }
            None => name.push_str(" in the whole cluster"),
        }
        path = format!("{path}/{}", served.plural);
        let by_name = query.name.as_ref().map(|name| format!("metadata.name={name}"));
        // All terms of a field selector must match.
        let fields: Vec<String> = by_name.into_iter().chain(query.field_selector.clone()).collect();
        let mut selectors = form_urlencoded::Serializer::new(String::new());
        if let Some(labels) = &query.label_selector {
            selectors.append_pair("labelSelector", labels);
        }
        if !fields.is_empty() {
            selectors.append_pair("fieldSelector", &fields.join(","));
        }
        Ok(Self { client, path, selectors: selectors.finish(), metadata_only: query.metadata_only, name })
    }

    /// What the coverage reports for a failure.
    pub(super) fn blindness(&self, verb: &str, failure: &RequestFailure) -> Blindness {
        let reason = failure.reason();
        let name = &self.name;
        let message = match reason {
            BlindReason::Forbidden => format!("{verb} {name}: forbidden; grant the verb {verb} on it"),
            _ => format!("{verb} {name}: {}", failure.message),
        };
        Blindness { reason, message }
    }

    /// `metadata` is the kind to request if only metadata is needed.
    async fn get(&self, parameters: &str, metadata: &str) -> Result<Response<Body>, RequestFailure> {
        let form =
            if self.metadata_only { format!(";as={metadata};g=meta.k8s.io;v=v1") } else { String::new() };
        let separator = if self.selectors.is_empty() { "" } else { "&" };
        let uri = format!("{}?{}{separator}{parameters}", self.path, self.selectors);
        let request = Request::get(uri)
            .header(ACCEPT, format!("application/json{form}"))
            // A compressed watch is one archive per event, which cannot be decoded as one stream.
            .header(ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(|error| RequestFailure::failed(error.to_string()))?;
        let answer = time::timeout(REQUEST_TIMEOUT, self.client.send(request));
        let response = answer
            .await
            .map_err(|_| RequestFailure::failed(format!("no answer for {} s", REQUEST_TIMEOUT.as_secs())))?
            .map_err(|error| RequestFailure::failed(innermost_cause(error).to_string()))?;
        if response.status().is_success() { Ok(response) } else { Err(failure_of(response).await) }
    }

    /// One page of a list.
    pub(super) async fn page(&self, continue_token: Option<&str>) -> Result<ListPage, RequestFailure> {
        let mut parameters = format!("limit={PAGE_SIZE}");
        if let Some(token) = continue_token {
            parameters
                .extend(["&continue="].into_iter().chain(form_urlencoded::byte_serialize(token.as_bytes())));
        }
        let response = self.get(&parameters, "PartialObjectMetadataList").await?;
        let body = time::timeout(REQUEST_TIMEOUT, response.into_body().collect_bytes());
        let body = body.await.map_err(|_| RequestFailure::failed("the page did not arrive"))?;
        let body = body.map_err(|error| RequestFailure::failed(innermost_cause(error).to_string()))?;
        let answer: ListAnswer = serde_json::from_slice(&body)
            .map_err(|error| RequestFailure::failed(format!("read the page: {error}")))?;
        if !answer.kind.ends_with("List") {
            return Err(RequestFailure::failed(format!("a {:?} instead of a list", answer.kind)));
        }
        Ok(ListPage { metadata: answer.metadata, items: answer.items.unwrap_or_default() })
    }

    /// The lines of a watch.
    pub(super) async fn watch(
        &self,
        parameters: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, RequestFailure>> + Unpin + use<>, RequestFailure> {
        let response = self.get(parameters, "PartialObjectMetadata").await?;
        let chunks = response.into_body().into_data_stream();
        let chunks =
            chunks.map_err(|error| RequestFailure::failed(innermost_cause(error).to_string())).boxed();
        Ok(Box::pin(futures::stream::try_unfold((chunks, BytesMut::new(), 0), next_line)))
    }
}

type ResponseChunks = futures::stream::BoxStream<'static, Result<Bytes, RequestFailure>>;

/// The next complete line. A line that was cut off at the end is dropped.
async fn next_line(
    (mut chunks, mut buffer, mut searched): (ResponseChunks, BytesMut, usize),
) -> Result<Option<(Bytes, (ResponseChunks, BytesMut, usize))>, RequestFailure> {
    loop {
        if let Some(end) = memchr::memchr(b'\n', buffer.get(searched..).unwrap_or_default()) {
            let line = buffer.split_to(searched + end + 1).freeze();
            return Ok(Some((line, (chunks, buffer, 0))));
        }
        searched = buffer.len();
        if searched > LONGEST_LINE {
            return Err(RequestFailure::failed("an event is larger than any object can be"));
        }
        match chunks.next().await.transpose()? {
            Some(chunk) => buffer.extend_from_slice(&chunk),
            None => return Ok(None),
        }
    }
}

async fn failure_of(response: Response<Body>) -> RequestFailure {
    let status = response.status();
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = time::timeout(REQUEST_TIMEOUT, response.into_body().collect_bytes()).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let api_status: ApiStatus = serde_json::from_slice(&body).unwrap_or_default();
    let reason = status.canonical_reason().unwrap_or("no reason given").to_owned();
    let message = if api_status.message.is_empty() { reason } else { api_status.message };
    RequestFailure {
        status: Some(status),
        message: format!("{message} ({})", status.as_u16()),
        retry_after: seconds.map(Duration::from_secs),
    }
}

/// One page of a list, with the items as they were sent.
pub(super) struct ListPage {
    pub(super) metadata: PageMetadata,
    pub(super) items: Vec<Box<RawValue>>,
}

/// Every field has a default, so another object could look like an empty page: `kind` shows the difference.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct ListAnswer {
    kind: String,
    metadata: PageMetadata,
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(super) struct PageMetadata {
    #[serde(rename = "continue")]
    pub(super) continue_token: Option<String>,
    pub(super) resource_version: String,
    pub(super) remaining_item_count: Option<u64>,
}
