//! Git over HTTP, with and without TLS.
//!
//! One connection per use, for its few requests. Credentials are sent only to the host of the address, and only
//! after it has asked for them unless the sink says otherwise. Only the first request follows redirects; later
//! requests go to the server that answered it.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    Method, Response, StatusCode,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1::{self, SendRequest},
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use kollect_model::sink::{SinkError, SinkReason};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use url::{Position, Url};

use super::{
    failure::{TransportError, connection_error},
    protocol::{AGENT, Chunks, Conversation, GitServer, PIECE_BYTES, Service, ServiceAnswer, ServiceRequest},
};
use crate::{
    Network, connection_task,
    git::remote::RemoteConfig,
    stall::{SILENCE_LIMIT, StallLimited},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: u32 = 5;
/// How errors name a server that another one redirects to.
const REDIRECT_TARGET: &str = "the server that it redirects to";
/// Environment variable that sets `forceBasicAuth` for all sinks.
const FORCE_BASIC_AUTH: &str = "KOLLECT_GIT_FORCE_BASIC_AUTH";

/// A repository on a web server.
pub(super) struct HttpServer {
    url: Url,
    network: Network,
    tls: Option<Arc<ClientConfig>>,
    /// The header with user and password.
    authorization: Option<HeaderValue>,
    /// Whether the credentials are sent: the server has asked for them, or the sink does not wait for that.
    authorize: AtomicBool,
}

impl fmt::Display for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl HttpServer {
    pub(super) fn open(url: &Url, config: &RemoteConfig, network: &Network) -> Result<Self, SinkError> {
        let attempt = format!("open {url}");
        let wrong =
            |problem: String| SinkError::new(SinkReason::Incompatible, format!("{attempt}: {problem}"));
        let tls = if url.scheme() == "https" { Some(Arc::new(tls(config).map_err(wrong)?)) } else { None };
        let basic = config.credentials.as_ref().and_then(|credentials| credentials.basic.as_ref());
        let authorization = basic.map(|(user, password)| {
            let mut value =
                HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
                    .expect("base64 is made of characters that headers take");
            value.set_sensitive(true);
            value
        });
        let authorize = config.force_basic_auth
            || std::env::var(FORCE_BASIC_AUTH).is_ok_and(|value| matches!(&*value, "1" | "true" | "yes"));
        Ok(Self {
            url: url.clone(),
            network: network.clone(),
            tls,
            authorization,
            authorize: authorize.into(),
        })
    }
}

#[async_trait]
impl GitServer for HttpServer {
    async fn begin(
        &self,
        service: Service,
    ) -> Result<(Box<dyn Conversation + '_>, ServiceAnswer), TransportError> {
        let mut requests = HttpRequests { http: self, base: self.url.clone(), sender: None };
        let path = format!("info/refs?service={}", service.program());
        for _ in 0..=MAX_REDIRECTS {
            let response = requests.exchange(Method::GET, &path, None, ServiceRequest::default()).await?;
            if response.status().is_redirection() {
                requests.follow(&response, &path)?;
                continue;
            }
            let response = requests.checked_status(response)?;
            let expected = format!("application/x-{}-advertisement", service.program());
            let found = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
            // A suffix such as a character set is allowed.
            if !found.starts_with(expected.as_bytes()) {
                return Err(TransportError::Malformed(
                    "the answer is not that of a Git server; is this the address of a repository?",
                ));
            }
            return Ok((Box::new(requests), ServiceAnswer::new(response.into_body())));
        }
        Err(TransportError::Malformed("the server redirects more than 5 times"))
    }
}

/// Requests to one server, one after the other.
struct HttpRequests<'a> {
    http: &'a HttpServer,
    /// The address of the repository: after a redirect, not the configured one.
    base: Url,
    sender: Option<SendRequest<RequestBody>>,
}

#[async_trait]
impl Conversation for HttpRequests<'_> {
    async fn send(
        mut self: Box<Self>,
        service: Service,
        request: ServiceRequest,
        advertisement: ServiceAnswer,
    ) -> Result<ServiceAnswer, TransportError> {
        advertisement.end().await;
        let response = self.exchange(Method::POST, service.program(), Some(service), request).await?;
        let response = self.checked_status(response)?;
        Ok(ServiceAnswer::new(response.into_body()))
    }
}

impl HttpRequests<'_> {
    /// Sends a request, and sends it again with credentials if the server asks for them.
    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        service: Option<Service>,
        body: ServiceRequest,
    ) -> Result<Response<Incoming>, TransportError> {
        let authorized = self.authorization().is_some() && self.http.authorize.load(Ordering::Relaxed);
        let response = self.request(&method, path, service, body.clone(), authorized).await?;
        if response.status() == StatusCode::UNAUTHORIZED && !authorized && self.authorization().is_some() {
            drop(response);
            self.http.authorize.store(true, Ordering::Relaxed);
            return self.request(&method, path, service, body, true).await;
        }
        Ok(response)
    }

    async fn request(
        &mut self,
        method: &Method,
        path: &str,
        service: Option<Service>,
        body: ServiceRequest,
        authorized: bool,
    ) -> Result<Response<Incoming>, TransportError> {
        let uri = format!("{}/{path}", &self.base[Position::BeforePath..Position::AfterPath]);
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, &self.base[Position::BeforeHost..Position::AfterPort])
            .header(USER_AGENT, AGENT);
        if let Some(service) = service {
            let program = service.program();
            request = request
                .header(CONTENT_TYPE, format!("application/x-{program}-request"))
                .header(ACCEPT, format!("application/x-{program}-result"));
        }
        if let Some(authorization) = self.authorization().filter(|_| authorized) {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(RequestBody(body))
            .map_err(|_| TransportError::Malformed("the address has characters that HTTP does not take"))?;
        let sender = self.sender().await?;
        sender.send_request(request).await.map_err(broken)
    }

    /// The connection; a new one if the last one cannot be used any more.
    async fn sender(&mut self) -> Result<&mut SendRequest<RequestBody>, TransportError> {
        let mut usable = None;
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            usable = Some(sender);
        }
        let sender = match usable {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        Ok(self.sender.insert(sender))
    }

    async fn connect(&self) -> Result<SendRequest<RequestBody>, TransportError> {
        let host = self.base.host_str().unwrap_or_default();
        let port = self.base.port_or_known_default().unwrap_or_default();
        // The target of a redirect is text from a server and is not shown.
        let shown = self.is_redirected().then_some(REDIRECT_TARGET);
        let stream = self.http.network.connect_as(shown, host, port, CONNECT_LIMIT).await?;
        let stream = StallLimited::new(stream, SILENCE_LIMIT);
        match (&self.http.tls, self.base.scheme()) {
            (Some(tls), "https") => {
                let stream = encrypted(tls.clone(), host, port, shown, stream).await?;
                handshake(TokioIo::new(stream)).await
            }
            (None, "https") => Err(TransportError::Malformed(
                "the server redirects to https://; write the address that it names into spec.endpoint",
            )),
            _ => handshake(TokioIo::new(stream)).await,
        }
    }

    /// Whether a redirect has led to another server.
    fn is_redirected(&self) -> bool {
        self.base.origin() != self.http.url.origin()
    }

    /// User and password, only for the configured server.
    fn authorization(&self) -> Option<&HeaderValue> {
        self.http.authorization.as_ref().filter(|_| !self.is_redirected())
    }

    /// Follows a redirect, if its target is the same request to a repository. HTTPS is never left for HTTP.
    fn follow(&mut self, response: &Response<Incoming>, path: &str) -> Result<(), TransportError> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let requested = format!("{}/{path}", self.base);
        let next = location.and_then(|location| Url::parse(&requested).ok()?.join(location).ok());
        let base = next.and_then(|mut next| {
            next.set_fragment(None);
            next.set_username("").ok()?;
            next.set_password(None).ok()?;
            Url::parse(next.as_str().strip_suffix(&format!("/{path}"))?).ok()
        });
        let Some(base) = base else {
            return Err(TransportError::Malformed(
                "the server redirects to something that is no repository, such as a page to log in",
            ));
        };
        match (self.base.scheme(), base.scheme()) {
            (_, "https") | ("http", "http") => {}
            _ => {
                return Err(TransportError::Malformed(
                    "the server redirects from https:// to something else",
                ));
            }
        }
        if base.origin() != self.base.origin() {
            self.sender = None;
        }
        self.base = base;
        Ok(())
    }

    /// The response, or an error by its status.
    fn checked_status(&self, response: Response<Incoming>) -> Result<Response<Incoming>, TransportError> {
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let redirected = self.is_redirected();
        let (reason, why) = match status {
            StatusCode::UNAUTHORIZED if redirected => (
                SinkReason::Forbidden,
                "the server redirects to another one, which asks for credentials, and these are for their own \
                 server only; write the address of the other one into spec.endpoint",
            ),
            StatusCode::UNAUTHORIZED if self.http.authorization.is_some() => (
                SinkReason::Forbidden,
                "the server does not accept the user and password, or token, of the Secret",
            ),
            StatusCode::UNAUTHORIZED => (
                SinkReason::Forbidden,
                "the server asks for credentials and there are none; name a Secret with the key token, or with \
                 username and password, in spec.git.auth.secretRef",
            ),
            StatusCode::FORBIDDEN => {
                (SinkReason::Forbidden, "the server accepts the credentials and denies access")
            }
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                (SinkReason::Missing, "there is no such repository, or none for these credentials")
            }
            StatusCode::PAYLOAD_TOO_LARGE => {
                (SinkReason::Refused, "the server takes no request of that size; raise its limit")
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                (SinkReason::Unreachable, "the server is busy")
            }
            _ if status.is_server_error() => (SinkReason::Unreachable, "the server failed"),
            _ => (SinkReason::Incompatible, "the server answers something unexpected"),
        };
        let prefix = if redirected { "after a redirect: " } else { "" };
        Err(TransportError::RefusedWithStatus(reason, format!("{prefix}{why} (HTTP {})", status.as_u16())))
    }
}

async fn encrypted(
    tls: Arc<ClientConfig>,
    host: &str,
    port: u16,
    shown: Option<&str>,
    stream: StallLimited<TcpStream>,
) -> Result<tokio_rustls::client::TlsStream<StallLimited<TcpStream>>, TransportError> {
    let attempt = match shown {
        Some(shown) => format!("connect to {shown} with TLS"),
        None => format!("connect to {host} port {port} with TLS"),
    };
    let without_brackets = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(without_brackets.to_owned())
        .map_err(|_| TransportError::Malformed("the host is not a name that a certificate can have"))?;
    match timeout(CONNECT_LIMIT, TlsConnector::from(tls).connect(name, stream)).await {
        Ok(connected) => connected.map_err(|error| connection_error(&attempt, &error).into()),
        Err(_) => {
            Err(SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer in time")).into())
        }
    }
}

async fn handshake<S>(stream: TokioIo<S>) -> Result<SendRequest<RequestBody>, TransportError>
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await.map_err(broken)?;
    // Ends with the last request. Errors are reported to the task that waits for the answer.
    let run_connection = async move {
        connection.await.ok();
    };
    drop(connection_task::spawn("drive an HTTP connection", run_connection).detach());
    Ok(sender)
}

fn broken(error: hyper::Error) -> TransportError {
    TransportError::Io(std::io::Error::other(error))
}

fn tls(config: &RemoteConfig) -> Result<ClientConfig, String> {
    let certificate = config.credentials.as_ref().and_then(|credentials| credentials.identity.as_ref());
    config.trust.client_config(None, certificate)
}

#[async_trait]
impl Chunks for Incoming {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        loop {
            match self.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(broken(error)),
            }
        }
    }
}

/// A request as an HTTP body, sent in pieces and never copied as a whole.
struct RequestBody(ServiceRequest);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let ServiceRequest { head, pack } = &mut self.0;
        let part = if head.is_empty() { pack } else { head };
        if part.is_empty() {
            return Poll::Ready(None);
        }
        let piece = part.split_to(part.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.head.is_empty() && self.0.pack.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.0.head.len() + self.0.pack.len()) as u64)
    }
}
