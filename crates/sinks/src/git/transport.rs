//! The way to a repository on another machine, or in another directory of this one.
//!
//! Speaks version 0 of Git's own protocol, which every server has. Three ways carry it or stand in for it:
//! HTTP, SSH and the file system; all of them obey the program's policy. Packs go through and are not
//! looked into: whoever asks for one must check what arrives.

use std::{collections::BTreeMap, fmt, io::Write, sync::Arc};

use bytes::Bytes;
use git2::Oid;
use kollect_model::sink::{SinkError, SinkReason};

use super::remote::{Address, RemoteConfig};
use crate::Policy;

mod failure;
mod file;
mod http;
pub(super) mod known_hosts;
pub(super) mod private_key;
mod protocol;
mod ssh;
mod stream;
#[cfg(test)]
mod tests;

use failure::Failure;
use protocol::{Request, Server, Service};

/// One remote repository, with the way to it and who we are.
#[derive(Clone)]
pub(super) struct Remote(Arc<Way>);

enum Way {
    File(file::Directory),
    Server(Box<dyn Server>),
}

/// What a repository has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advertised {
    /// By their full names.
    pub(super) refs: BTreeMap<String, Oid>,
    /// What HEAD stands for, such as `refs/heads/main`.
    pub(super) head: Option<String>,
    /// What the server can do, in its words.
    pub(super) capabilities: Vec<String>,
}

/// Why a repository has not moved a ref.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// Somebody was quicker: the ref is not where the push says.
    NonFastForward(String),
    /// By a rule of the server, in its words.
    Refused(String),
}

/// Where it is; without credentials.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Way::File(directory) => write!(f, "Remote({directory})"),
            Way::Server(server) => write!(f, "Remote({server})"),
        }
    }
}

impl Remote {
    /// Prepares the way to a repository. Nobody is connected to yet.
    pub(super) fn open(config: &RemoteConfig, policy: &Policy) -> Result<Self, SinkError> {
        let address = &config.address;
        if let Some(field) = config.unread() {
            let why = format!("open {address}: the Secret of {field} has not been read");
            return Err(SinkError::new(SinkReason::Missing, why));
        }
        let network = &policy.network;
        let way = match address {
            Address::File(path) => Way::File(file::Directory::open(path, &policy.files)?),
            Address::Http(url) => Way::Server(Box::new(http::Http::open(url, config, network)?)),
            Address::Ssh { .. } => {
                let credentials = config.credentials.as_ref().and_then(|all| all.ssh.as_ref());
                let ssh = ssh::Ssh::open(address, credentials, config.trust.any_server, network)?;
                Way::Server(Box::new(ssh))
            }
        };
        Ok(Self(Arc::new(way)))
    }

    /// Lists the refs of the repository.
    pub(super) async fn refs(&self) -> Result<Advertised, SinkError> {
        let server = match &*self.0 {
            Way::File(directory) => return directory.refs().await,
            Way::Server(server) => server,
        };
        let listed = async {
            let (_conversation, mut answer) = server.ask(Service::Fetch).await?;
            answer.advertisement().await
        };
        listed.await.map_err(|failure: Failure| failure.into_error(&format!("list the refs of {server}")))
    }

    /// Asks whether we may push, as far as the server says that beforehand.
    pub(super) async fn may_push(&self) -> Result<(), SinkError> {
        let Way::Server(server) = &*self.0 else { return Ok(()) };
        let asked = async {
            let (_conversation, mut answer) = server.ask(Service::Push).await?;
            answer.advertisement().await.map(drop)
        };
        asked.await.map_err(|failure: Failure| failure.into_error(&format!("prepare a push to {server}")))
    }

    /// Fetches a commit and what it needs, except what `have` reach, as one pack that is complete but for
    /// that. With `depth`, history ends after that many commits. `shallow` are the commits whose parents
    /// are missing here; answers those that are so afterwards. `into` is dropped when this returns, and
    /// holds a whole pack only if that was without an error.
    pub(super) async fn fetch(
        &self,
        want: Oid,
        have: &[Oid],
        depth: Option<u32>,
        shallow: &[Oid],
        into: Box<dyn Write + Send>,
    ) -> Result<Vec<Oid>, SinkError> {
        let server = match &*self.0 {
            Way::File(directory) => return directory.fetch(want, have, shallow, into).await,
            Way::Server(server) => server,
        };
        let fetched = async {
            let (conversation, mut answer) = server.ask(Service::Fetch).await?;
            let advertised = answer.advertisement().await?;
            let head = protocol::fetch_request(&advertised, want, have, depth, shallow)?;
            let request = Request { head, pack: Bytes::new() };
            let answer = conversation.send(Service::Fetch, request, answer).await?;
            answer.pack(depth.is_some(), shallow, into).await
        };
        fetched.await.map_err(|failure: Failure| failure.into_error(&format!("fetch from {server}")))
    }

    /// Moves `reference` from `old` to `new` with a pack of what that needs; a zero `old` creates it, and a
    /// zero `new` removes it. The server compares `old`, and nothing else: whether `new` descends from it is
    /// for the caller to care. Nothing is pushed if a ref of `unmoved` is elsewhere. After an error the ref may
    /// have moved or not.
    pub(super) async fn push(
        &self,
        reference: &str,
        old: Oid,
        new: Oid,
        unmoved: &[(String, Oid)],
        pack: Bytes,
    ) -> Result<Result<(), Rejected>, SinkError> {
        let server = match &*self.0 {
            Way::File(directory) => {
                if let Some(moved) = Rejected::moved(unmoved, &directory.refs().await?) {
                    return Ok(Err(moved));
                }
                return directory.push(reference, old, new, pack).await;
            }
            Way::Server(server) => server,
        };
        let pushed = async {
            let (conversation, mut answer) = server.ask(Service::Push).await?;
            let advertised = answer.advertisement().await?;
            let found = advertised.refs.get(reference).copied();
            if let Some(outcome) = Rejected::before_pushing(reference, found, old, new) {
                return Ok(outcome);
            }
            if let Some(moved) = Rejected::moved(unmoved, &advertised) {
                return Ok(Err(moved));
            }
            let head = protocol::push_request(&advertised, reference, old, new)?;
            let answer = conversation.send(Service::Push, Request { head, pack }, answer).await?;
            answer.report(reference).await
        };
        pushed.await.map_err(|failure: Failure| failure.into_error(&format!("push to {server}")))
    }
}

impl Rejected {
    /// A ref that has moved meanwhile.
    fn moved(unmoved: &[(String, Oid)], advertised: &Advertised) -> Option<Self> {
        let (reference, _) = unmoved.iter().find(|(name, id)| advertised.refs.get(name) != Some(id))?;
        Some(Self::NonFastForward(format!("{reference} has moved")))
    }

    /// The outcome of a push that need not be sent, by where the ref was found; `None` if it must be.
    fn before_pushing(reference: &str, found: Option<Oid>, old: Oid, new: Oid) -> Option<Result<(), Self>> {
        match found.unwrap_or(Oid::ZERO_SHA1) {
            // Most likely our own push whose answer was lost.
            found if found == new => Some(Ok(())),
            found if found == old => None,
            found => {
                let why = format!("{reference} is at {found} and not at {old} any more");
                Some(Err(Self::NonFastForward(why)))
            }
        }
    }
}
