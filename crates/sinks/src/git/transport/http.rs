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
    failure::{Failure, of_connection},
    protocol::{AGENT, Answer, Chunks, Conversation, PIECE, Request, Server, Service},
    stream::{Attentive, SILENCE_LIMIT},
};
use crate::{Network, connection_task, git::remote::RemoteConfig};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const REDIRECTS: u32 = 5;
/// How errors name a server that another one redirects to.
const ELSEWHERE: &str = "the server that it redirects to";
/// Environment variable that sets `forceBasicAuth` for all sinks.
const FORCE_BASIC_AUTH: &str = "KOLLECT_GIT_FORCE_BASIC_AUTH";

/// A repository on a web server.
pub(super) struct Http {
    url: Url,
    network: Network,
    tls: Option<Arc<ClientConfig>>,
    /// The header with user and password.
    authorization: Option<HeaderValue>,
    /// Whether the credentials are sent: the server has asked for them, or the sink does not wait for that.
    authorize: AtomicBool,
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl Http {
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
        let force = config.force_basic_auth
            || std::env::var(FORCE_BASIC_AUTH).is_ok_and(|value| matches!(&*value, "1" | "true" | "yes"));
        Ok(Self { url: url.clone(), network: network.clone(), tls, authorization, authorize: force.into() })
    }
}

#[async_trait]
impl Server for Http {
    async fn ask(&self, service: Service) -> Result<(Box<dyn Conversation + '_>, Answer), Failure> {
        let mut talk = Talk { http: self, base: self.url.clone(), sender: None };
        let question = format!("info/refs?service={}", service.program());
        for _ in 0..=REDIRECTS {
            let response = talk.exchange(Method::GET, &question, None, Request::default()).await?;
            if response.status().is_redirection() {
                talk.follow(&response, &question)?;
                continue;
            }
            let response = talk.good(response)?;
            let expected = format!("application/x-{}-advertisement", service.program());
            let found = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
            // A suffix such as a character set is allowed.
            if !found.starts_with(expected.as_bytes()) {
                return Err(Failure::Malformed(
                    "the answer is not that of a Git server; is this the address of a repository?",
                ));
            }
            return Ok((Box::new(talk), Answer::new(response.into_body())));
        }
        Err(Failure::Malformed("the server redirects in circles"))
    }
}

/// Requests to one server, one after the other.
struct Talk<'a> {
    http: &'a Http,
    /// The address of the repository: after a redirect, not the configured one.
    base: Url,
    sender: Option<SendRequest<Pieces>>,
}

#[async_trait]
impl Conversation for Talk<'_> {
    async fn send(
        mut self: Box<Self>,
        service: Service,
        request: Request,
        advertisement: Answer,
    ) -> Result<Answer, Failure> {
        advertisement.end().await;
        let response = self.exchange(Method::POST, service.program(), Some(service), request).await?;
        let response = self.good(response)?;
        Ok(Answer::new(response.into_body()))
    }
}

impl Talk<'_> {
    /// Sends a request, and sends it again with credentials if the server asks for them.
    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        service: Option<Service>,
        body: Request,
    ) -> Result<Response<Incoming>, Failure> {
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
        body: Request,
        authorized: bool,
    ) -> Result<Response<Incoming>, Failure> {
        let target = format!("{}/{path}", &self.base[Position::BeforePath..Position::AfterPath]);
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(target)
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
            .body(Pieces(body))
            .map_err(|_| Failure::Malformed("the address has characters that HTTP does not take"))?;
        let sender = self.sender().await?;
        sender.send_request(request).await.map_err(broken)
    }

    /// The connection; a new one if the last one cannot be used any more.
    async fn sender(&mut self) -> Result<&mut SendRequest<Pieces>, Failure> {
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

    async fn connect(&self) -> Result<SendRequest<Pieces>, Failure> {
        let host = self.base.host_str().unwrap_or_default();
        let port = self.base.port_or_known_default().unwrap_or_default();
        // The target of a redirect is text from a server and is not shown.
        let shown = self.is_elsewhere().then_some(ELSEWHERE);
        let stream = self.http.network.connect_as(shown, host, port, CONNECT_LIMIT).await?;
        let stream = Attentive::new(stream, SILENCE_LIMIT);
        match (&self.http.tls, self.base.scheme()) {
            (Some(tls), "https") => {
                let stream = encrypted(tls.clone(), host, port, shown, stream).await?;
                handshake(TokioIo::new(stream)).await
            }
            (None, "https") => Err(Failure::Malformed(
                "the server redirects to https://; write the address that it names into spec.endpoint",
            )),
            _ => handshake(TokioIo::new(stream)).await,
        }
    }

    /// Whether a redirect has led to another server.
    fn is_elsewhere(&self) -> bool {
        self.base.origin() != self.http.url.origin()
    }

    /// User and password, only for the configured server.
    fn authorization(&self) -> Option<&HeaderValue> {
        self.http.authorization.as_ref().filter(|_| !self.is_elsewhere())
    }

    /// Follows a redirect, if its target is the same request to a repository. HTTPS is never left for HTTP.
    fn follow(&mut self, response: &Response<Incoming>, question: &str) -> Result<(), Failure> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let asked = format!("{}/{question}", self.base);
        let next = location.and_then(|location| Url::parse(&asked).ok()?.join(location).ok());
        let base = next.and_then(|mut next| {
            next.set_fragment(None);
            next.set_username("").ok()?;
            next.set_password(None).ok()?;
            Url::parse(next.as_str().strip_suffix(&format!("/{question}"))?).ok()
        });
        let Some(base) = base else {
            return Err(Failure::Malformed(
                "the server redirects to something that is no repository, such as a page to log in",
            ));
        };
        match (self.base.scheme(), base.scheme()) {
            (_, "https") | ("http", "http") => {}
            _ => return Err(Failure::Malformed("the server redirects from https:// to something else")),
        }
        if base.origin() != self.base.origin() {
            self.sender = None;
        }
        self.base = base;
        Ok(())
    }

    /// The response, or an error by its status.
    fn good(&self, response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let elsewhere = self.is_elsewhere();
        let (reason, why) = match status {
            StatusCode::UNAUTHORIZED if elsewhere => (
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
                (SinkReason::Forbidden, "the server knows who we are and does not let us")
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
        let place = if elsewhere { "after a redirect: " } else { "" };
        Err(Failure::Refused(reason, format!("{place}{why} (HTTP {})", status.as_u16())))
    }
}

async fn encrypted(
    tls: Arc<ClientConfig>,
    host: &str,
    port: u16,
    shown: Option<&str>,
    stream: Attentive<TcpStream>,
) -> Result<tokio_rustls::client::TlsStream<Attentive<TcpStream>>, Failure> {
    let attempt = match shown {
        Some(shown) => format!("connect to {shown} with TLS"),
        None => format!("connect to {host} port {port} with TLS"),
    };
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(plain.to_owned())
        .map_err(|_| Failure::Malformed("the host is not a name that a certificate can have"))?;
    match timeout(CONNECT_LIMIT, TlsConnector::from(tls).connect(name, stream)).await {
        Ok(connected) => connected.map_err(|error| of_connection(&attempt, &error).into()),
        Err(_) => {
            Err(SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer in time")).into())
        }
    }
}

async fn handshake<S>(stream: TokioIo<S>) -> Result<SendRequest<Pieces>, Failure>
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await.map_err(broken)?;
    // Ends with the last request. Errors are reported to the task that waits for the answer.
    let drive = async move {
        connection.await.ok();
    };
    drop(connection_task::spawn("drive an HTTP connection", drive).detach());
    Ok(sender)
}

fn broken(error: hyper::Error) -> Failure {
    Failure::Io(std::io::Error::other(error))
}

fn tls(config: &RemoteConfig) -> Result<ClientConfig, String> {
    let own = config.credentials.as_ref().and_then(|credentials| credentials.identity.as_ref());
    config.trust.client_config(None, own)
}

#[async_trait]
impl Chunks for Incoming {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
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
struct Pieces(Request);

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Request { head, pack } = &mut self.0;
        let part = if head.is_empty() { pack } else { head };
        if part.is_empty() {
            return Poll::Ready(None);
        }
        let piece = part.split_to(part.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.head.is_empty() && self.0.pack.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.0.head.len() + self.0.pack.len()) as u64)
    }
}
