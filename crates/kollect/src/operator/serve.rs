//! HTTP and HTTPS for webhooks, metrics and probes: certificates are replaced while it runs, slow or large requests are
//! limited, and shutdown is graceful.

mod certificates;
mod connections;
mod guard;

use std::{
    fmt,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use anyhow::Context;
use axum::{
    Extension, Router,
    body::{Body, HttpBody as _},
    extract::{DefaultBodyLimit, Request},
    middleware::{Next, from_fn},
    response::IntoResponse,
};
pub(crate) use certificates::{ServedCertificate, ServerTls};
use connections::{ConnectionSlot, Connections};
use futures::{StreamExt as _, stream};
pub(crate) use guard::AccessGuard;
use http::StatusCode;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use kollect_engine::tasks::{Task, TaskKind, TaskName, Tasks};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
    time::{self, Instant},
};
use tokio_rustls::TlsAcceptor;

/// Pause after a connection could not be accepted, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The least time between two notices that there are too many connections.
const CROWDED_NOTICE_PAUSE: Duration = Duration::from_mins(1);
/// Limit of the request head in bytes. The largest headers that clients send are tokens.
const LARGEST_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 64;
const MAX_STREAMS: u32 = 64;

/// Where to listen, and how.
#[derive(Debug, Clone)]
pub(crate) struct ListenEndpoint {
    /// The flag that gave the address, for errors.
    pub(crate) flag: &'static str,
    /// `:8443`, `127.0.0.1:8080` or `[::1]:8080`; without a host, on all addresses.
    pub(crate) address: String,
    pub(crate) tls: ServerTls,
    /// Offers HTTP/2 to clients with TLS. It has had more denial-of-service weaknesses than HTTP/1.1.
    pub(crate) http2: bool,
    pub(crate) limits: Limits,
}

/// Limits for connections and requests. Every client in the cluster may connect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Limit of open connections. A new one closes the one that has waited longest for its client; if all are answering
    /// requests, it waits until one of them is done.
    pub(crate) connections: usize,
    /// Time limit of the TLS handshake.
    pub(crate) handshake: Duration,
    /// Time limit of the head of a request, counted from the end of the previous request.
    pub(crate) head: Duration,
    /// Time limit of the body of a request and of its handling.
    pub(crate) request: Duration,
    /// Time limit of a connection; one that is in use ends after the response.
    pub(crate) age: Duration,
    /// The largest body, in bytes. A review contains the object twice, and the API server accepts 3 MiB.
    pub(crate) body: usize,
    /// The interval between two reads of the certificate files.
    pub(crate) reload: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            handshake: Duration::from_secs(10),
            head: Duration::from_mins(1),
            request: Duration::from_secs(30),
            age: Duration::from_mins(10),
            body: 7 << 20,
            reload: Duration::from_secs(5),
        }
    }
}

/// An event of a server that is worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerNotice {
    /// New connections get the new certificate.
    CertificateReplaced(String),
    /// The files changed to something that cannot be used; the old certificate is still served.
    CertificateBroken(String),
    /// A connection could not be accepted.
    AcceptFailed(String),
    /// This limit of connections was reached: for each new one the one that has waited longest is closed.
    Crowded(usize),
    /// A connection ended with a panic.
    ConnectionPanicked,
    /// The rights of a client could not be reviewed.
    ReviewFailed(String),
}

impl fmt::Display for ServerNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CertificateReplaced(file) => write!(f, "serve the new certificate of {file}"),
            Self::CertificateBroken(cause) => write!(f, "keep the old certificate: {cause}"),
            Self::AcceptFailed(cause) => write!(f, "accept a connection: {cause}"),
            Self::Crowded(limit) => write!(
                f,
                "{limit} connections are open: for each new one the one that has waited longest is closed"
            ),
            Self::ConnectionPanicked => f.write_str("answer a request: the task panicked; this is a bug"),
            Self::ReviewFailed(cause) => write!(f, "review the rights of a client: {cause}"),
        }
    }
}

/// Receives notices; must not block.
pub(crate) type ReportNotice = Arc<dyn Fn(ServerNotice) + Send + Sync>;

/// A running server. Dropping it cuts all connections.
pub(crate) struct HttpServer {
    /// Where it listens, with the port that was chosen for port 0.
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    task: Task<Option<usize>>,
}

impl HttpServer {
    /// Listens, and answers from then on. Errors name the flag or the file.
    pub(crate) async fn start(
        tasks: &Tasks,
        endpoint: ListenEndpoint,
        router: Router,
        report: ReportNotice,
    ) -> anyhow::Result<Self> {
        let ListenEndpoint { flag, address, tls, http2, limits } = endpoint;
        let tls_config = tls.load(http2)?;
        let failed = || format!("listen on {address} ({flag})");
        let listener = bind(&address).await.with_context(failed)?;
        let address = listener.local_addr().with_context(failed)?;
        let (acceptor, reload) = match tls_config {
            Some((config, reload)) => (Some(TlsAcceptor::from(config)), reload),
            None => (None, None),
        };
        let shared = Arc::new(ConnectionSettings::new(acceptor, bounded(router, limits), limits));
        let (stop, stopped) = oneshot::channel();
        let task = tasks.core(TaskName::of_object(TaskKind::Server, flag), async move {
            let reloads = async {
                if let Some(reload) = reload {
                    reload.run(limits.reload, report.clone()).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                cut = accept(listener, shared, stopped, report.clone()) => cut,
                () = reloads => 0,
            }
        });
        Ok(Self { address, stop, task })
    }

    /// Accepts nothing more, lets running requests finish for as long as `grace_period`, and returns how many
    /// connections had to be cut.
    pub(crate) async fn shutdown(self, grace_period: Duration) -> usize {
        if self.stop.send(grace_period).is_err() {
            return 0;
        }
        self.task.await.ok().flatten().unwrap_or(0)
    }
}

/// Without a host: all addresses, of both families if the machine has both.
async fn bind(address: &str) -> std::io::Result<TcpListener> {
    if !address.starts_with(':') {
        return TcpListener::bind(address).await;
    }
    match TcpListener::bind(format!("[::]{address}")).await {
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind(format!("0.0.0.0{address}")).await
        }
        bound => bound,
    }
}

fn bounded(router: Router, limits: Limits) -> Router {
    let limit = move |Extension(slot): Extension<ConnectionSlot>, request: Request, next: Next| async move {
        let announced = usize::try_from(request.body().size_hint().lower()).unwrap_or(usize::MAX);
        if announced > limits.body {
            return (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large\n").into_response();
        }
        let answering = Arc::new(OnceLock::new());
        let arrived = answering.clone();
        let request = request.map(|body| {
            let arrived = move || drop(arrived.set(slot.answering()));
            Body::new(Limited::new(at_end(body, arrived), limits.body))
        });
        let response = time::timeout(limits.request, next.run(request)).await;
        let response = response.unwrap_or_else(|_| {
            (StatusCode::SERVICE_UNAVAILABLE, "the request took too long\n").into_response()
        });
        // The request counts as being answered until the body of its response is dropped.
        response.map(|body| {
            Body::new(body.map_err(move |error| {
                let _ = &answering;
                error
            }))
        })
    };
    // The limit above applies to every reader of the body, not only to extractors that honour axum's limit.
    router.layer(DefaultBodyLimit::disable()).layer(from_fn(limit))
}

/// The body; `arrived` is called when its end was read.
fn at_end(body: Body, arrived: impl FnOnce() + Send + 'static) -> Body {
    if body.is_end_stream() {
        arrived();
        return body;
    }
    let mut arrived = Some(arrived);
    let end = stream::poll_fn(move |_| {
        if let Some(arrived) = arrived.take() {
            arrived();
        }
        Poll::Ready(None)
    });
    Body::from_stream(body.into_data_stream().chain(end))
}

/// Accepts connections until it is stopped. Returns how many connections it had to cut.
async fn accept(
    listener: TcpListener,
    settings: Arc<ConnectionSettings>,
    mut stop: oneshot::Receiver<Duration>,
    report: ReportNotice,
) -> usize {
    let open = Connections::new(settings.limits.connections);
    let (closing, _) = watch::channel(());
    let mut connections = JoinSet::new();
    // Accepted, but not admitted yet.
    let mut next: Option<TcpStream> = None;
    let mut crowded_reported: Option<Instant> = None;
    let grace_period = loop {
        tokio::select! {
            grace_period = &mut stop => break grace_period.unwrap_or_default(),
            Some(ended) = connections.join_next() => {
                if ended.is_err() {
                    report(ServerNotice::ConnectionPanicked);
                }
            }
            accepted = listener.accept(), if next.is_none() => match accepted {
                Ok((stream, _)) => next = Some(stream),
                Err(error) => {
                    report(ServerNotice::AcceptFailed(error.to_string()));
                    time::sleep(ACCEPT_PAUSE).await;
                }
            },
            closed_another = open.wait_for_room(), if next.is_some() => {
                if closed_another && crowded_reported.is_none_or(|reported| reported.elapsed() >= CROWDED_NOTICE_PAUSE) {
                    crowded_reported = Some(Instant::now());
                    report(ServerNotice::Crowded(settings.limits.connections));
                }
                let Some(stream) = next.take() else { continue };
                let (slot, closed) = open.admit();
                let (settings, closing) = (settings.clone(), closing.subscribe());
                #[expect(clippy::disallowed_methods, reason = "a panic ends one connection, and is reported here")]
                connections.spawn(async move {
                    tokio::select! {
                        () = settings.serve(stream, slot, closing) => {}
                        _ = closed => {}
                    }
                });
            }
        }
    };
    drop(next);
    drop(listener);
    closing.send_replace(());
    time::timeout(grace_period, async { while connections.join_next().await.is_some() {} }).await.ok();
    let cut = connections.len();
    connections.shutdown().await;
    cut
}

/// What all connections share.
struct ConnectionSettings {
    acceptor: Option<TlsAcceptor>,
    router: Router,
    http1: Builder<TokioExecutor>,
    http2: Builder<TokioExecutor>,
    limits: Limits,
}

impl ConnectionSettings {
    fn new(acceptor: Option<TlsAcceptor>, router: Router, limits: Limits) -> Self {
        let mut http1 = Builder::new(TokioExecutor::new()).http1_only();
        http1
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(LARGEST_HEAD)
            .max_headers(MAX_HEADERS);
        let mut http2 = Builder::new(TokioExecutor::new()).http2_only();
        http2
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.head)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(LARGEST_HEAD).unwrap_or(u32::MAX));
        Self { acceptor, router, http1, http2, limits }
    }

    async fn serve(&self, stream: TcpStream, slot: ConnectionSlot, mut closing: watch::Receiver<()>) {
        // Best effort: with Nagle's algorithm small responses may be delayed.
        stream.set_nodelay(true).ok();
        let Some(acceptor) = &self.acceptor else {
            return self.serve_http(&self.http1, stream, slot, closing).await;
        };
        let handshake = tokio::select! {
            handshake = time::timeout(self.limits.handshake, acceptor.accept(stream)) => handshake,
            _ = closing.changed() => return,
        };
        // Clients that do not trust the certificate, port scanners, and clients that were too slow.
        let Ok(Ok(stream)) = handshake else { return };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.serve_http(if is_http2 { &self.http2 } else { &self.http1 }, stream, slot, closing).await;
    }

    async fn serve_http(
        &self,
        http: &Builder<TokioExecutor>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        slot: ConnectionSlot,
        mut closing: watch::Receiver<()>,
    ) {
        let service = TowerToHyperService::new(self.router.clone().layer(Extension(slot)));
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        // Errors of a connection are not logged: the client sees them.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = closing.changed() => {}
            () = time::sleep(self.limits.age) => {}
        }
        connection.as_mut().graceful_shutdown();
        // A client that does not read its response must not keep the connection open.
        time::timeout(self.limits.request, connection).await.ok();
    }
}

#[cfg(test)]
mod tests;
