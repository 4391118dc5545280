//! Git over SSH, with a key, to known hosts.

use std::{
    fmt, io,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::{SinkError, SinkReason};
use russh::{
    ChannelMsg, ChannelReadHalf, ChannelWriteHalf,
    client::{self, AuthResult, Handle, Msg},
    keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate},
};
use tokio::time::timeout;

use super::{
    failure::{RefusalMeaning, TransportError, connection_error},
    known_hosts::KnownHosts,
    protocol::{Chunks, Conversation, GitServer, PIECE_BYTES, Service, ServiceAnswer, ServiceRequest},
};
use crate::{
    Network, connection_task,
    git::remote::{RepositoryAddress, SshCredentials},
    stall::{SILENCE_LIMIT, StallLimited},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for the error of a connection that has ended.
const FINAL_ERROR_LIMIT: Duration = Duration::from_secs(1);
/// Maximum size of a server's messages for people.
const MESSAGES_LIMIT: usize = 8 << 10;

/// A repository behind an SSH server.
pub(super) struct SshServer {
    address: RepositoryAddress,
    host: String,
    port: u16,
    path: String,
    user: String,
    key: Arc<PrivateKey>,
    /// `None`: any host key is accepted.
    known: Option<Arc<KnownHosts>>,
    network: Network,
}

impl fmt::Display for SshServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)
    }
}

impl SshServer {
    pub(super) fn open(
        address: &RepositoryAddress,
        credentials: Option<&SshCredentials>,
        trust_any_server: bool,
        network: &Network,
    ) -> Result<Self, SinkError> {
        let wrong =
            |problem: &str| SinkError::new(SinkReason::Incompatible, format!("open {address}: {problem}"));
        let (RepositoryAddress::Ssh { host, port, path, .. }, Some(credentials)) = (address, credentials)
        else {
            return Err(wrong("there is no key for SSH"));
        };
        let known = (!trust_any_server).then(|| KnownHosts::parse(&credentials.known_hosts)).transpose();
        let known = known.map_err(|problem| wrong(&format!("the Secret {problem}")))?;
        Ok(Self {
            address: address.clone(),
            host: host.clone(),
            port: *port,
            path: path.clone(),
            user: credentials.user.clone(),
            key: credentials.key.clone(),
            known: known.map(Arc::new),
            network: network.clone(),
        })
    }

    /// A connection to a checked host, authenticated as the user.
    async fn connect(&self) -> Result<Handle<HostKeyCheck>, TransportError> {
        let attempt = format!("connect to {} port {} with SSH", self.host, self.port);
        let failed = |error: SshError| TransportError::Sink(error.into_error(&attempt));
        let stream = self.network.connect(&self.host, self.port, CONNECT_LIMIT).await?;
        let stream = StallLimited::new(stream, SILENCE_LIMIT);
        let mut config = client::Config::default();
        if let Some(known) = &self.known {
            let mut algorithms = known.algorithms(&self.host, self.port);
            algorithms.extend(
                config
                    .preferred
                    .key
                    .iter()
                    .filter(|algorithm| !algorithms.contains(algorithm))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
            config.preferred.key = algorithms.into();
        }
        let host_key_check =
            HostKeyCheck { known: self.known.clone(), host: self.host.clone(), port: self.port };
        let connected = client::connect_stream(Arc::new(config), stream, host_key_check);
        let mut handle = timeout(CONNECT_LIMIT, connected)
            .await
            .unwrap_or_else(|_| Err(SshError::TimedOut))
            .map_err(failed)?;
        let accepted = timeout(CONNECT_LIMIT, self.authenticate(&mut handle))
            .await
            .unwrap_or(Err(SshError::TimedOut))
            .map_err(failed)?;
        if !accepted.success() {
            let why = format!(
                "{attempt}: the server does not accept the key {} ({}) for the user {}",
                self.key.public_key().fingerprint(HashAlg::Sha256),
                self.key.algorithm(),
                self.user,
            );
            return Err(SinkError::new(SinkReason::Forbidden, why).into());
        }
        Ok(handle)
    }

    async fn authenticate(&self, handle: &mut Handle<HostKeyCheck>) -> Result<AuthResult, SshError> {
        // RSA keys have several signature algorithms; the oldest, with SHA-1, is broken.
        let hash = if self.key.algorithm().is_rsa() {
            handle.best_supported_rsa_hash().await?.flatten().or(Some(HashAlg::Sha512))
        } else {
            None
        };
        let key = PrivateKeyWithHashAlg::new(self.key.clone(), hash);
        Ok(handle.authenticate_publickey(&self.user, key).await?)
    }
}

#[async_trait]
impl GitServer for SshServer {
    async fn begin(
        &self,
        service: Service,
    ) -> Result<(Box<dyn Conversation + '_>, ServiceAnswer), TransportError> {
        let handle = self.connect().await?;
        let opened = async {
            let channel = handle.channel_open_session().await?;
            let path = self.path.replace('\'', r"'\''");
            channel.exec(true, format!("{} '{path}'", service.program())).await?;
            Ok::<_, russh::Error>(channel.split())
        };
        let (read, write) = opened.await.map_err(broken)?;
        let alive = Arc::new(());
        let sender = SshSender { write, receiver_alive: Arc::downgrade(&alive) };
        let receiver = SshReceiver { read, handle, messages: Vec::new(), _alive: alive };
        Ok((Box::new(sender), ServiceAnswer::new(receiver)))
    }
}

/// The sending half of a conversation with the remote program.
struct SshSender {
    write: ChannelWriteHalf<Msg>,
    /// Expires when no task waits for the answer any more.
    receiver_alive: Weak<()>,
}

#[async_trait]
impl Conversation for SshSender {
    async fn send(
        self: Box<Self>,
        _: Service,
        request: ServiceRequest,
        advertisement: ServiceAnswer,
    ) -> Result<ServiceAnswer, TransportError> {
        // In a task beside the reading: the remote program may send before it has read everything, and must not block.
        let send = async move {
            let ServiceRequest { head, mut pack } = request;
            let has_receiver = || self.receiver_alive.strong_count() > 0;
            let mut sent = self.write.data_bytes(head).await;
            while !pack.is_empty() && sent.is_ok() && has_receiver() {
                sent = self.write.data_bytes(pack.split_to(pack.len().min(PIECE_BYTES))).await;
            }
            // If sending failed, the program has ended, and the task that reads the answer gets the reason.
        };
        drop(connection_task::spawn("send a pack", send).detach());
        Ok(advertisement)
    }
}

/// The receiving half of a conversation with the remote program.
struct SshReceiver {
    read: ChannelReadHalf,
    /// Dropping it closes the connection.
    handle: Handle<HostKeyCheck>,
    /// Messages of the program for people.
    messages: Vec<u8>,
    /// Expires the sender's reference when it is dropped.
    _alive: Arc<()>,
}

#[async_trait]
impl Chunks for SshReceiver {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        let mut succeeded = false;
        loop {
            match self.read.wait().await {
                Some(ChannelMsg::Data { data }) => return Ok(Some(data)),
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    let length = MESSAGES_LIMIT.saturating_sub(self.messages.len()).min(data.len());
                    self.messages.extend_from_slice(&data[..length]);
                }
                Some(ChannelMsg::ExitStatus { exit_status }) => succeeded = exit_status == 0,
                Some(ChannelMsg::Failure) => {
                    // The server does not allow to run a program.
                    return Err(TransportError::RefusedByServer(RefusalMeaning::Denied));
                }
                Some(ChannelMsg::Close) => break,
                Some(_) => {}
                None => {
                    if let Ok(Err(SshError::Ssh(error))) = timeout(FINAL_ERROR_LIMIT, &mut self.handle).await
                    {
                        return Err(broken(error));
                    }
                    break;
                }
            }
        }
        if succeeded || self.messages.is_empty() {
            Ok(None)
        } else {
            Err(TransportError::RefusedByServer(RefusalMeaning::of(&self.messages)))
        }
    }
}

/// Checks the host key of a server.
struct HostKeyCheck {
    known: Option<Arc<KnownHosts>>,
    host: String,
    port: u16,
}

/// Why a connection failed.
#[derive(Debug)]
enum SshError {
    Ssh(russh::Error),
    /// The host key is not a known one: it may be another server.
    WrongHost(String),
    TimedOut,
}

impl From<russh::Error> for SshError {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

impl SshError {
    fn into_error(self, attempt: &str) -> SinkError {
        match self {
            Self::WrongHost(why) => SinkError::new(SinkReason::Incompatible, format!("{attempt}: {why}")),
            Self::TimedOut => {
                SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer in time"))
            }
            Self::Ssh(russh::Error::NoCommonAlgo { kind, .. }) => {
                let why = format!("{attempt}: the server and we have no algorithm in common ({kind:?})");
                SinkError::new(SinkReason::Incompatible, why)
            }
            Self::Ssh(russh::Error::Version | russh::Error::KexInit) => {
                let why = format!("{attempt}: the answer is not that of an SSH server");
                SinkError::new(SinkReason::Incompatible, why)
            }
            Self::Ssh(russh::Error::WrongServerSig) => {
                let why = format!("{attempt}: the server does not have the key that it shows");
                SinkError::new(SinkReason::Incompatible, why)
            }
            Self::Ssh(russh::Error::IO(error)) => connection_error(attempt, &error),
            // Other errors of the library may contain text that the server sent.
            Self::Ssh(_) => {
                let why = format!("{attempt}: the server ended the connection");
                SinkError::new(SinkReason::Unreachable, why)
            }
        }
    }
}

/// An error during a connection. Its text may contain text that the server sent, its cause does not.
fn broken(error: russh::Error) -> TransportError {
    match error {
        russh::Error::IO(error) => TransportError::Io(error),
        error => TransportError::Io(io::Error::other(error)),
    }
}

impl client::Handler for HostKeyCheck {
    type Error = SshError;

    async fn check_server_key(&mut self, presented: &PublicKeyOrCertificate) -> Result<bool, SshError> {
        let Some(known) = &self.known else { return Ok(true) };
        match presented {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                known.check(&self.host, self.port, key).map_err(SshError::WrongHost)?;
                Ok(true)
            }
            PublicKeyOrCertificate::Certificate(_) => Err(SshError::WrongHost(
                "the server shows a certificate, and certificates of hosts are not supported".into(),
            )),
        }
    }
}
