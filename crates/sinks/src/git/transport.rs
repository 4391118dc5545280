//! Access to a repository on another machine or in a directory of this one.
//!
//! Uses version 0 of the Git protocol, which every server supports, over HTTP and SSH; a directory is accessed
//! directly. All of them obey the policy. Packs are passed on unchecked: a caller that fetches one must check
//! it.

use std::{collections::BTreeMap, fmt, io::Write, sync::Arc};

use bytes::Bytes;
use git2::Oid;
use kollect_model::sink::{SinkError, SinkReason};

use super::remote::{RemoteConfig, RepositoryAddress};
use crate::SinkPolicy;

mod failure;
mod file;
mod http;
pub(super) mod known_hosts;
pub(super) mod private_key;
mod protocol;
mod ssh;
#[cfg(test)]
mod tests;

use failure::TransportError;
use protocol::{GitServer, Service, ServiceRequest};

/// A remote repository, with its transport and the credentials.
#[derive(Clone)]
pub(super) struct Remote(Arc<TransportKind>);

enum TransportKind {
    File(file::LocalRepository),
    Server(Box<dyn GitServer>),
}

/// The refs and capabilities of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdvertisedRefs {
    /// Commits by the full names of their refs.
    pub(super) refs: BTreeMap<String, Oid>,
    /// The ref that HEAD points to, such as `refs/heads/main`.
    pub(super) head: Option<String>,
    /// The capabilities of the server, as advertised.
    pub(super) capabilities: Vec<String>,
}

/// Why a repository has not moved a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RejectedPush {
    /// Another writer was first: the ref is not at the commit that the push expects.
    NonFastForward(String),
    /// A rule of the server refuses it.
    Refused(String),
}

/// Prints the address without credentials.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            TransportKind::File(directory) => write!(f, "Remote({directory})"),
            TransportKind::Server(server) => write!(f, "Remote({server})"),
        }
    }
}

impl Remote {
    /// Prepares the access to a repository. Does not connect yet.
    pub(super) fn open(config: &RemoteConfig, policy: &SinkPolicy) -> Result<Self, SinkError> {
        let address = &config.address;
        if let Some(field) = config.unread_secret() {
            let why = format!("open {address}: the Secret of {field} has not been read");
            return Err(SinkError::new(SinkReason::Missing, why));
        }
        let network = &policy.network;
        let transport = match address {
            RepositoryAddress::File(path) => {
                TransportKind::File(file::LocalRepository::open(path, &policy.files)?)
            }
            RepositoryAddress::Http(url) => {
                TransportKind::Server(Box::new(http::HttpServer::open(url, config, network)?))
            }
            RepositoryAddress::Ssh { .. } => {
                let credentials = config.credentials.as_ref().and_then(|all| all.ssh.as_ref());
                let ssh = ssh::SshServer::open(address, credentials, config.trust.any_server, network)?;
                TransportKind::Server(Box::new(ssh))
            }
        };
        Ok(Self(Arc::new(transport)))
    }

    /// Lists the refs of the repository.
    pub(super) async fn refs(&self) -> Result<AdvertisedRefs, SinkError> {
        let server = match &*self.0 {
            TransportKind::File(directory) => return directory.refs().await,
            TransportKind::Server(server) => server,
        };
        let listed = async {
            let (_conversation, mut answer) = server.begin(Service::Fetch).await?;
            answer.advertisement().await
        };
        listed
            .await
            .map_err(|failure: TransportError| failure.into_error(&format!("list the refs of {server}")))
    }

    /// Returns an error if we may not push, as far as the server tells before a push.
    pub(super) async fn may_push(&self) -> Result<(), SinkError> {
        let TransportKind::Server(server) = &*self.0 else { return Ok(()) };
        let checked = async {
            let (_conversation, mut answer) = server.begin(Service::Push).await?;
            answer.advertisement().await.map(drop)
        };
        checked
            .await
            .map_err(|failure: TransportError| failure.into_error(&format!("prepare a push to {server}")))
    }

    /// Fetches a commit and all objects that it needs, except those reachable from `have`, as one pack. With `depth`,
    /// history ends after that many commits. `shallow` are the commits whose parents are missing here; returns
    /// those whose parents are missing afterwards. `into` is dropped when this returns, and holds a whole pack
    /// only if there was no error.
    pub(super) async fn fetch(
        &self,
        want: Oid,
        have: &[Oid],
        depth: Option<u32>,
        shallow: &[Oid],
        into: Box<dyn Write + Send>,
    ) -> Result<Vec<Oid>, SinkError> {
        let server = match &*self.0 {
            TransportKind::File(directory) => return directory.fetch(want, have, shallow, into).await,
            TransportKind::Server(server) => server,
        };
        let fetched = async {
            let (conversation, mut answer) = server.begin(Service::Fetch).await?;
            let advertised = answer.advertisement().await?;
            let head = protocol::fetch_request(&advertised, want, have, depth, shallow)?;
            let request = ServiceRequest { head, pack: Bytes::new() };
            let answer = conversation.send(Service::Fetch, request, answer).await?;
            answer.pack(depth.is_some(), shallow, into).await
        };
        fetched.await.map_err(|failure: TransportError| failure.into_error(&format!("fetch from {server}")))
    }

    /// Moves `reference` from `old` to `new` with a pack of the objects that this needs; a zero `old` creates it, and
    /// a zero `new` removes it. The server only compares `old`: the caller must make sure that `new` descends from
    /// it. Nothing is pushed if a ref of `unmoved` is at another commit. After an error the ref may have moved or
    /// not.
    pub(super) async fn push(
        &self,
        reference: &str,
        old: Oid,
        new: Oid,
        unmoved: &[(String, Oid)],
        pack: Bytes,
    ) -> Result<Result<(), RejectedPush>, SinkError> {
        let server = match &*self.0 {
            TransportKind::File(directory) => {
                if let Some(moved) = RejectedPush::moved(unmoved, &directory.refs().await?) {
                    return Ok(Err(moved));
                }
                return directory.push(reference, old, new, pack).await;
            }
            TransportKind::Server(server) => server,
        };
        let pushed = async {
            let (conversation, mut answer) = server.begin(Service::Push).await?;
            let advertised = answer.advertisement().await?;
            let found = advertised.refs.get(reference).copied();
            if let Some(outcome) = RejectedPush::before_pushing(reference, found, old, new) {
                return Ok(outcome);
            }
            if let Some(moved) = RejectedPush::moved(unmoved, &advertised) {
                return Ok(Err(moved));
            }
            let head = protocol::push_request(&advertised, reference, old, new)?;
            let answer = conversation.send(Service::Push, ServiceRequest { head, pack }, answer).await?;
            answer.report(reference).await
        };
        pushed.await.map_err(|failure: TransportError| failure.into_error(&format!("push to {server}")))
    }
}

impl RejectedPush {
    /// The rejection for a ref of `unmoved` that is at another commit.
    fn moved(unmoved: &[(String, Oid)], advertised: &AdvertisedRefs) -> Option<Self> {
        let (reference, _) = unmoved.iter().find(|(name, id)| advertised.refs.get(name) != Some(id))?;
        Some(Self::NonFastForward(format!("{reference} has moved")))
    }

    /// If the position of the ref already decides the outcome of a push, returns it. `None`: the push must be sent.
    fn before_pushing(reference: &str, found: Option<Oid>, old: Oid, new: Oid) -> Option<Result<(), Self>> {
        match found.unwrap_or(Oid::ZERO_SHA1) {
            // Most likely our own earlier push, whose answer was lost.
            found if found == new => Some(Ok(())),
            found if found == old => None,
            found => {
                let why = format!("{reference} is at {found} and not at {old} any more");
                Some(Err(Self::NonFastForward(why)))
            }
        }
    }
}
