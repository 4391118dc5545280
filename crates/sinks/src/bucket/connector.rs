//! HTTP for the client library of object stores: every connection goes through the guard of addresses and our TLS.
//!
//! Redirects are not followed. A store's clients are shared by its sinks, and with them the connections.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{Method, Uri, header::CONTENT_LENGTH};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioIo, TokioTimer},
};
use kollect_model::sink::{SinkError, SinkReason};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{MAX_OBJECT_BYTES, answer};
use crate::{
    Network, connection_task,
    stall::{SILENCE_LIMIT, StallLimited},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest time between a request and the beginning of its answer.
const ANSWER_LIMIT: Duration = Duration::from_mins(5);
/// The largest answer; objects have a lower limit.
const MAX_ANSWER_BYTES: usize = MAX_OBJECT_BYTES + (1 << 20);
/// How much of an answer that is no success is read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// How servers are reached.
#[derive(Clone)]
pub(crate) struct GuardedConnector {
    client: Arc<ConnectorClient>,
}

/// The connections of a connector.
pub(crate) type ConnectorClient = Client<GuardedConnections, HttpRequestBody>;

impl fmt::Debug for GuardedConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedConnector").finish_non_exhaustive()
    }
}

impl GuardedConnector {
    /// `idle_limit`: how long unused connections stay open.
    pub(crate) fn new(network: Network, tls: ClientConfig, idle_limit: Duration) -> Self {
        let connections = GuardedConnections { network, tls: Arc::new(tls) };
        let client = Client::builder(ConnectionTasks)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_limit)
            .build(connections);
        Self { client: Arc::new(client) }
    }

    /// The connector, for as long as a client uses it.
    pub(crate) fn downgrade(&self) -> Weak<ConnectorClient> {
        Arc::downgrade(&self.client)
    }

    /// The inverse of [`Self::downgrade`], while a client uses it.
    pub(crate) fn upgrade(client: &Weak<ConnectorClient>) -> Option<Self> {
        client.upgrade().map(|client| Self { client })
    }
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for GuardedConnector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_head = request.method() == Method::HEAD;
        let answered = timeout(ANSWER_LIMIT, self.client.request(request)).await;
        let response = match answered {
            Err(_) => {
                let why = format!("no answer within {} s", ANSWER_LIMIT.as_secs());
                return Err(HttpError::new(
                    HttpErrorKind::Timeout,
                    SinkError::new(SinkReason::Unreachable, why),
                ));
            }
            Ok(Err(error)) => return Err(HttpError::new_boxed(HttpErrorKind::Unknown, cause_of(error))),
            Ok(Ok(response)) => response,
        };
        let (parts, body) = response.into_parts();
        let unreadable = |error| HttpError::new_boxed(HttpErrorKind::Interrupted, error);
        if parts.status.is_success() || parts.status.is_informational() {
            // The library reserves as much memory as an answer claims to have.
            let length = parts
                .headers
                .get(CONTENT_LENGTH)
                .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
            if !is_head && length.is_some_and(|length| length > MAX_ANSWER_BYTES as u64) {
                return Err(unreadable(too_large()));
            }
            let body = Limited::new(body, MAX_ANSWER_BYTES).map_err(move |error| {
                let is_limit = error.is::<LengthLimitError>();
                unreadable(if is_limit { too_large() } else { error })
            });
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)));
        }
        let body = Limited::new(body, MAX_REFUSAL_BYTES).collect().await;
        // A longer answer is no error of an object store.
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        let condensed = answer::condensed(&text.unwrap_or_else(|_| "<".to_owned()));
        let body = Full::new(Bytes::from(condensed)).map_err(|never| match never {});
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

fn too_large() -> Box<dyn std::error::Error + Send + Sync> {
    let why = format!("the answer is larger than {} MiB", MAX_ANSWER_BYTES >> 20);
    Box::new(SinkError::new(SinkReason::Incompatible, why))
}

/// The error of the connection, if that is why a request failed.
fn cause_of(
    error: impl std::error::Error + Send + Sync + 'static,
) -> Box<dyn std::error::Error + Send + Sync> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(refused) = inner.downcast_ref::<SinkError>() {
            let why =
                std::error::Error::source(refused).map(|source| format!(": {source}")).unwrap_or_default();
            return Box::new(SinkError::new(refused.reason, format!("{refused}{why}")));
        }
        cause = inner.source();
    }
    let mut deepest: &(dyn std::error::Error + 'static) = &error;
    while let Some(inner) = deepest.source() {
        deepest = inner;
    }
    Box::new(SinkError::new(SinkReason::Unreachable, format!("the connection broke: {deepest}")))
}

/// Starts the tasks that drive connections.
#[derive(Clone, Copy)]
struct ConnectionTasks;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionTasks {
    fn execute(&self, drive: F) {
        drop(connection_task::spawn("drive an HTTP connection", drive).detach());
    }
}

/// Dials servers for the client.
#[derive(Clone)]
pub(crate) struct GuardedConnections {
    network: Network,
    tls: Arc<ClientConfig>,
}

impl tower::Service<Uri> for GuardedConnections {
    type Response = TokioIo<GuardedStream>;
    type Error = SinkError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, SinkError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), SinkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Self { network, tls } = self.clone();
        Box::pin(async move { Ok(TokioIo::new(dial(&network, tls, &server).await?)) })
    }
}

async fn dial(network: &Network, tls: Arc<ClientConfig>, server: &Uri) -> Result<GuardedStream, SinkError> {
    let host = server.host().unwrap_or_default();
    let is_encrypted = server.scheme_str() == Some("https");
    let port = server.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
    let stream = network.connect(host, port, CONNECT_LIMIT).await?;
    let stream = StallLimited::new(stream, SILENCE_LIMIT);
    if !is_encrypted {
        return Ok(GuardedStream::Plain(stream));
    }
    let attempt = format!("connect to {host} port {port} with TLS");
    let without_brackets = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(without_brackets.to_owned()).map_err(|_| {
        SinkError::new(SinkReason::Incompatible, format!("{attempt}: no certificate can have this name"))
    })?;
    match timeout(CONNECT_LIMIT, TlsConnector::from(tls).connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(GuardedStream::Encrypted(Box::new(stream))),
        Ok(Err(error)) => Err(SinkError::because(SinkReason::Unreachable, attempt, error)),
        Err(_) => Err(SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer in time"))),
    }
}

pub(crate) enum GuardedStream {
    Plain(StallLimited<TcpStream>),
    Encrypted(Box<TlsStream<StallLimited<TcpStream>>>),
}

impl Connection for GuardedStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
