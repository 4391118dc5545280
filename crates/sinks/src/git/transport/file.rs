//! A bare repository in a directory, read and written in this process. No hooks run.

use std::{fmt, io::Write, path::PathBuf};

use bytes::Bytes;
use git2::{ErrorClass, ErrorCode, Oid, Repository, Sort};
use kollect_model::sink::{SinkError, SinkReason};

use super::{AdvertisedRefs, RejectedPush};
use crate::FilePolicy;

/// A repository, opened for each use: it may be removed and created again.
#[derive(Clone)]
pub(super) struct LocalRepository {
    path: PathBuf,
}

impl fmt::Display for LocalRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl LocalRepository {
    pub(super) fn open(path: &str, files: &FilePolicy) -> Result<Self, SinkError> {
        let path = files.resolve(path).map_err(|problem| {
            SinkError::new(SinkReason::Forbidden, format!("open the repository {path}: {problem}"))
        })?;
        Ok(Self { path })
    }

    pub(super) async fn refs(&self) -> Result<AdvertisedRefs, SinkError> {
        self.run("list the refs of", |repository| {
            let mut found = AdvertisedRefs::default();
            for reference in repository.references()? {
                let reference = reference?;
                // Skip dangling refs: Git does not advertise them either.
                if let (Ok(name), Ok(target)) = (reference.name(), reference.resolve()) {
                    found.refs.extend(target.target().map(|target| (name.to_owned(), target)));
                }
            }
            let head = repository.find_reference("HEAD")?;
            found.head = head.symbolic_target()?.map(str::to_owned);
            Ok(found)
        })
        .await
    }

    /// Sends the whole history: a limit on depth saves nothing on the same machine.
    pub(super) async fn fetch(
        &self,
        want: Oid,
        have: &[Oid],
        shallow: &[Oid],
        mut into: Box<dyn Write + Send>,
    ) -> Result<Vec<Oid>, SinkError> {
        let have = have.to_vec();
        self.run("read the pack of", move |repository| {
            let mut walk = repository.revwalk()?;
            walk.set_sorting(Sort::TOPOLOGICAL)?;
            walk.push(want)?;
            for known in have {
                // The mirror may know commits that this repository does not have.
                if repository.find_commit(known).is_ok() {
                    walk.hide(known)?;
                }
            }
            let mut pack = repository.packbuilder()?;
            pack.insert_walk(&mut walk)?;
            let mut outcome = Ok(());
            let written = pack.foreach(|chunk| {
                outcome = into.write_all(chunk);
                outcome.is_ok()
            });
            outcome.and_then(|()| into.flush()).map_err(write_error)?;
            written
        })
        .await?;
        // Shallow commits stay shallow: their parents were not requested.
        Ok(shallow.to_vec())
    }

    pub(super) async fn push(
        &self,
        reference: &str,
        old: Oid,
        new: Oid,
        pack: Bytes,
    ) -> Result<Result<(), RejectedPush>, SinkError> {
        let reference = reference.to_owned();
        self.run("push to", move |repository| {
            let current = |repository: &Repository| match repository.find_reference(&reference) {
                Ok(found) => Ok(found.target()),
                Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
                Err(error) => Err(error),
            };
            if let Some(outcome) = RejectedPush::before_pushing(&reference, current(repository)?, old, new) {
                return Ok(outcome);
            }
            if new.is_zero() {
                // The ref was compared above, not atomically with this: only Kollect deletes its refs.
                repository.find_reference(&reference)?.delete()?;
                return Ok(Ok(()));
            }
            let odb = repository.odb()?;
            let mut writer = odb.packwriter()?;
            writer.write_all(&pack).map_err(write_error)?;
            writer.commit()?;
            repository.find_commit(new)?.tree()?;
            let moved = if old.is_zero() {
                repository.reference(&reference, new, false, "push")
            } else {
                repository.reference_matching(&reference, new, true, old, "push")
            };
            match moved {
                Ok(_) => Ok(Ok(())),
                Err(error)
                    if matches!(
                        error.code(),
                        ErrorCode::Modified | ErrorCode::Exists | ErrorCode::Locked | ErrorCode::NotFound
                    ) =>
                {
                    Ok(Err(RejectedPush::NonFastForward(error.message().to_owned())))
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Runs work on the repository on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&Repository) -> Result<T, git2::Error> + Send + 'static,
    ) -> Result<T, SinkError> {
        let path = self.path.clone();
        let attempt = format!("{what} {self}");
        let finished = tokio::task::spawn_blocking(move || work(&Repository::open_bare(path)?)).await;
        match finished {
            Ok(outcome) => outcome.map_err(|error| failed(&attempt, error)),
            Err(error) => Err(SinkError::because(SinkReason::WriteFailed, attempt, error)),
        }
    }
}

fn write_error(error: std::io::Error) -> git2::Error {
    git2::Error::new(ErrorCode::GenericError, ErrorClass::Os, error.to_string())
}

fn failed(attempt: &str, error: git2::Error) -> SinkError {
    let is_about_repository = matches!(error.class(), ErrorClass::Repository | ErrorClass::Os);
    let missing = is_about_repository && error.code() == ErrorCode::NotFound;
    if missing {
        return SinkError::new(
            SinkReason::Missing,
            format!("{attempt}: there is no bare repository; make one with git init --bare"),
        );
    }
    let has_other_owner = error.code() == ErrorCode::Owner;
    let reason = if has_other_owner { SinkReason::Forbidden } else { SinkReason::WriteFailed };
    SinkError::because(reason, attempt, error)
}
