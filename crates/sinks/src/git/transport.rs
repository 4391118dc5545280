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

mod file;
pub(super) mod known_hosts;
pub(super) mod ssh;

/// One remote repository, with the way to it and who we are.
#[derive(Clone)]
pub(super) struct Remote(Arc<Way>);

enum Way {
    File(file::Directory),
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
        let place: &dyn fmt::Display = match &*self.0 {
            Way::File(directory) => directory,
        };
        write!(f, "Remote({place})")
    }
}

impl Remote {
    /// Prepares the way to a repository. Nobody is connected to yet.
    pub(super) fn open(config: &RemoteConfig, policy: &Policy) -> Result<Self, SinkError> {
        if let Some(field) = config.unread() {
            let why = format!("open {}: the Secret of {field} has not been read", config.address);
            return Err(SinkError::new(SinkReason::Missing, why));
        }
        let way = match &config.address {
            Address::File(path) => Way::File(file::Directory::open(path, &policy.files)?),
            Address::Http(_) | Address::Ssh { .. } => {
                let why = format!("open {}: not available yet", config.address);
                return Err(SinkError::new(SinkReason::Incompatible, why));
            }
        };
        Ok(Self(Arc::new(way)))
    }

    /// Lists the refs of the repository.
    pub(super) async fn refs(&self) -> Result<Advertised, SinkError> {
        match &*self.0 {
            Way::File(directory) => directory.refs().await,
        }
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
        match &*self.0 {
            Way::File(directory) => directory.fetch(want, have, depth, shallow, into).await,
        }
    }

    /// Moves `reference` from `old` to `new` with a pack of what that needs; a zero `old` creates it. The
    /// server compares `old`, and nothing else: whether `new` descends from it is for the caller to care.
    /// After an error the ref may have moved or not.
    pub(super) async fn push(
        &self,
        reference: &str,
        old: Oid,
        new: Oid,
        pack: Bytes,
    ) -> Result<Result<(), Rejected>, SinkError> {
        match &*self.0 {
            Way::File(directory) => directory.push(reference, old, new, pack).await,
        }
    }
}

impl Rejected {
    /// Nobody looks at what a ref that has moved meanwhile is compared with: `None` if it may be pushed.
    fn before_pushing(reference: &str, found: Option<Oid>, old: Oid, new: Oid) -> Option<Result<(), Self>> {
        match found.unwrap_or_else(Oid::zero) {
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
