//! One connection. It is not restored after it is lost.
//!
//! The client library would reconnect on its own and then send what was waiting: changes that may have been
//! compared and sent in another way in the meantime. So reconnecting is disabled and everything that waits
//! fails; the binding opens the sink again and reads back what has arrived.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{
    Auth, AuthError, Client, ConnectOptions, Event, ServerAddr, ServerError,
    connection::State,
    jetstream::{self, context::ContextBuilder, message::PublishMessage, publish::PublishAck},
};
use futures::future::{Either, select};
use kollect_model::sink::{SinkError, SinkReason};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::{sync::watch, time::timeout};

use super::{
    NatsConfig,
    failure::{self, NatsError},
};
use crate::Network;

/// Limit for all addresses together, from the first packet to a usable session.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Limit for one address: others may answer.
const ADDRESS_LIMIT: Duration = Duration::from_secs(4);
/// Limit for an answer. A server that stores a message needs milliseconds.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of unacknowledged messages; more are not faster.
pub(super) const MAX_UNACKNOWLEDGED: usize = 1024;
/// Interval of pings: a peer that has disappeared is noticed in about half a minute.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// A server as the user names it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
    tls: bool,
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl ServerAddress {
    /// Servers of one cluster, separated by commas. An error does not repeat the text.
    pub(super) fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').map(|address| Self::parse(address.trim())).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "write nats://HOST:4222, or tls://HOST:4222";
        let address: ServerAddr = text.parse().map_err(|_| format!("is not an address; {FORM}"))?;
        if !matches!(address.scheme(), "nats" | "tls") {
            return Err(format!("has a scheme that is not supported; {FORM}"));
        }
        if address.has_user_pass() || address.password().is_some() {
            return Err(
                "holds credentials, and every user who may read the sink can read them; put them into \
                        the Secret of spec.nats.secretRef"
                    .into(),
            );
        }
        if address.host().is_empty() {
            return Err(format!("names no host; {FORM}"));
        }
        Ok(Self { host: address.host().to_owned(), port: address.port(), tls: address.scheme() == "tls" })
    }

    /// The current addresses of the server, all checked. The sink connects to no other addresses.
    async fn resolve(&self, network: &Network) -> Result<Vec<SocketAddr>, SinkError> {
        let addresses = network.resolve(&self.host, self.port).await;
        addresses.map_err(|error| error.into_sink_error(&self.host, None))
    }
}

/// Why a connection is not usable any more.
#[derive(Clone, Debug)]
enum ConnectionLoss {
    Lost,
    Forbidden(&'static str),
}

/// An open connection.
pub(super) struct Connection {
    client: Client,
    pub(super) jetstream: jetstream::Context,
    loss: watch::Receiver<Option<ConnectionLoss>>,
}

impl Connection {
    /// Connects to the first server that answers.
    pub(super) async fn open(config: &NatsConfig, network: &Network) -> Result<Self, SinkError> {
        let mut failed = None;
        let tried = timeout(CONNECT_LIMIT, async {
            for server in &config.servers {
                let attempt = format!("connect to NATS at {server}");
                match Self::open_server(config, server, network, &attempt).await {
                    Ok(connection) => return Some(connection),
                    Err(error) => failed = Some(error),
                }
            }
            None
        });
        match tried.await {
            Ok(Some(connection)) => Ok(connection),
            Ok(None) | Err(_) => Err(failed.unwrap_or_else(|| {
                let attempt = format!("connect to NATS at {:?}: no answer within 10 s", config.servers);
                SinkError::new(SinkReason::Unreachable, attempt)
            })),
        }
    }

    async fn open_server(
        config: &NatsConfig,
        server: &ServerAddress,
        network: &Network,
        attempt: &str,
    ) -> Result<Self, SinkError> {
        let mut failed = None;
        for address in server.resolve(network).await? {
            match Self::open_address(config, server, address, attempt).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| {
            SinkError::new(SinkReason::Unreachable, format!("{attempt}: the name has no address"))
        }))
    }

    /// Connects to one address. The certificate is still checked against the name of the server.
    async fn open_address(
        config: &NatsConfig,
        server: &ServerAddress,
        address: SocketAddr,
        attempt: &str,
    ) -> Result<Self, SinkError> {
        let (sender, loss) = watch::channel(None);
        let options = options(config, server, attempt)?.event_callback(move |event| {
            let sender = sender.clone();
            async move {
                let loss = match event {
                    Event::Disconnected | Event::Closed => ConnectionLoss::Lost,
                    Event::ServerError(ServerError::AuthorizationViolation) => {
                        ConnectionLoss::Forbidden("the server has revoked the authorization")
                    }
                    // The server does not answer a request that it does not permit: it only sends this event, once.
                    Event::ServerError(ServerError::Other(text)) => match permission_error(&text) {
                        Some(why) => ConnectionLoss::Forbidden(why),
                        None => return,
                    },
                    _ => return,
                };
                // Keep the first one: a missing permission explains more than the lost connection that follows.
                sender.send_if_modified(|known| {
                    let new = known.is_none();
                    if new {
                        *known = Some(loss);
                    }
                    new
                });
            }
        });
        let wrong = |_| SinkError::new(SinkReason::Incompatible, format!("{attempt}: not an address"));
        let url: ServerAddr = format!("nats://{address}").parse().map_err(wrong)?;
        let client = options.connect(url).await.map_err(|error| failure::connect_error(attempt, &error))?;
        let jetstream = ContextBuilder::new()
            .timeout(ANSWER_LIMIT)
            .ack_timeout(ANSWER_LIMIT)
            .max_ack_inflight(2 * MAX_UNACKNOWLEDGED)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Self { client, jetstream, loss })
    }

    /// Maximum size of a message with its headers.
    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Runs `work`, and fails as soon as the connection is lost.
    pub(super) async fn while_connected<T>(
        &self,
        work: impl Future<Output = Result<T, NatsError>>,
    ) -> Result<T, NatsError> {
        let mut loss = self.loss.clone();
        let connection_lost = async move {
            let found = loss.wait_for(Option::is_some).await;
            found.ok().and_then(|found| found.clone()).unwrap_or(ConnectionLoss::Lost)
        };
        match select(std::pin::pin!(work), std::pin::pin!(connection_lost)).await {
            // The library may notice the loss first and report a closed channel.
            Either::Left((Err(NatsError::Other(_)), _))
                if self.client.connection_state() != State::Connected =>
            {
                Err(NatsError::Lost)
            }
            Either::Left((outcome, _)) => outcome,
            Either::Right((ConnectionLoss::Lost, _)) => Err(NatsError::Lost),
            Either::Right((ConnectionLoss::Forbidden(text), _)) => Err(NatsError::Forbidden(text)),
        }
    }

    /// Sends a request to JetStream. Configurations are raw JSON, so that fields that we do not know are kept.
    pub(super) async fn request(&self, subject: String, body: &Value) -> Result<Value, NatsError> {
        let answer = self
            .while_connected(async {
                let answer = self.jetstream.request::<_, _, Value>(subject, body).await;
                answer.map_err(|error| (&error).into())
            })
            .await?;
        match answer.get("error") {
            None => Ok(answer),
            Some(error) => Err(match serde_json::from_value::<jetstream::Error>(error.clone()) {
                Ok(error) => (&error).into(),
                Err(_) => NatsError::Other("the server refused without saying why".into()),
            }),
        }
    }

    /// Sends a message and waits until it is stored.
    pub(super) async fn publish(
        &self,
        subject: String,
        message: PublishMessage,
    ) -> Result<PublishAck, NatsError> {
        self.while_connected(async { Ok(self.jetstream.send_publish(subject, message).await?.await?) }).await
    }
}

/// The message for a permission error of the server; `None` for other errors.
fn permission_error(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let (_, what) = text.split_once("permissions violation")?;
    Some(match what {
        _ if what.starts_with(" for publish") => {
            "the server does not permit to publish; grant the subjects of the sink and $JS.API.>"
        }
        _ if what.starts_with(" for subscription") => {
            "the server does not permit to subscribe; grant _INBOX.>"
        }
        _ => "the server does not permit this",
    })
}

fn options(config: &NatsConfig, server: &ServerAddress, attempt: &str) -> Result<ConnectOptions, SinkError> {
    let credentials = &config.credentials;
    let (user, token) = (credentials.user.clone(), credentials.token.clone());
    let connected = Arc::new(AtomicBool::new(false));
    // The library calls this for each connection: the second call refuses to reconnect.
    let mut options = ConnectOptions::with_auth_callback(move |_| {
        let is_reconnect = connected.swap(true, Ordering::Relaxed);
        let mut auth = Auth::new();
        auth.token.clone_from(&token);
        if let Some((user, password)) = user.clone().filter(|_| token.is_none()) {
            (auth.username, auth.password) = (Some(user), Some(password));
        }
        async move {
            if is_reconnect { Err(AuthError::new("a lost connection is not restored")) } else { Ok(auth) }
        }
    });
    if let Some(token) = &credentials.token {
        options = options.token(token.clone());
    }
    let trust = &config.trust;
    let required =
        server.tls || trust.certificates.is_some() || trust.any_server || credentials.identity.is_some();
    match tls(config, server) {
        Ok(tls) => options = options.tls_client_config(tls),
        // A machine without root certificates can still connect to servers without TLS.
        Err(_) if !required => {}
        Err(problem) => {
            return Err(SinkError::new(SinkReason::Incompatible, format!("{attempt}: {problem}")));
        }
    }
    Ok(options
        .name("kollect")
        .require_tls(required)
        .connection_timeout(ADDRESS_LIMIT)
        .request_timeout(Some(ANSWER_LIMIT))
        .ping_interval(PING_INTERVAL)
        .ignore_discovered_servers()
        .max_reconnects(1))
}

fn tls(config: &NatsConfig, server: &ServerAddress) -> Result<rustls::ClientConfig, String> {
    let server_name = ServerName::try_from(server.host.clone())
        .map_err(|_| "the host is not a name that a certificate can have")?;
    config.trust.client_config(Some(server_name), config.credentials.identity.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_credentials_in_them_are_refused() {
        for (text, shown, tls) in [
            ("nats://h", "h:4222", false),
            ("h:4223", "h:4223", false),
            ("tls://h.example:1", "h.example:1", true),
            ("nats://[::1]:4222", "[::1]:4222", false),
        ] {
            let address = ServerAddress::parse(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.tls), (shown, tls));
        }
        assert_eq!(ServerAddress::parse_list("nats://a, b:1").unwrap().len(), 2);
        for bad in
            ["", "http://h", "ws://h", "nats://u:hunter2@h", "nats://hunter2@h", "nats://:hunter2@h", "a,,b"]
        {
            let problem = ServerAddress::parse_list(bad).unwrap_err();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
