//! The local copy of a branch: a bare repository with the objects of its last commits, and little else.
//!
//! Everything in it is also at the remote, so it may be deleted at any time, and a damaged mirror is replaced.

use std::{
    env,
    ffi::OsStr,
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use git2::{Oid, Repository};
use kollect_model::{
    envelope,
    sink::{SinkError, SinkReason},
};
use sha2::{Digest, Sha256};

/// The commit of the remote's branch when it was last read.
const TIP: &str = "refs/kollect/tip";
/// The commit that we pushed last.
const LAST_PUSHED: &str = "refs/kollect/own";
/// Every push and every fetch leaves a pack; above this number they are merged into one.
const MAX_PACKS: usize = 48;

/// What went wrong.
#[derive(Debug)]
pub(super) enum GitError {
    /// The mirror is damaged: a new one may help.
    Mirror(git2::Error),
    /// A new mirror would not help.
    Sink(SinkError),
}

impl From<git2::Error> for GitError {
    fn from(error: git2::Error) -> Self {
        Self::Mirror(error)
    }
}

impl From<SinkError> for GitError {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

/// The mirror of a branch, locked against other processes.
pub(super) struct Mirror {
    directory: PathBuf,
    _lock: File,
}

/// The directory of all mirrors.
pub(super) fn default_root() -> PathBuf {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("KOLLECT_GIT_MIRROR_DIR")
        .or_else(|| {
            let cache =
                variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
            Some(cache.join("kollect/git-mirrors"))
        })
        .unwrap_or_else(|| env::temp_dir().join("kollect-git-mirrors"))
}

impl Mirror {
    /// The mirror of a branch, created if it is missing; `None` while another process uses it.
    pub(super) fn open(root: &Path, destination: &str) -> Result<Option<Self>, SinkError> {
        let failed = |error: io::Error| {
            SinkError::because(SinkReason::WriteFailed, format!("use mirrors in {}", root.display()), error)
        };
        create_private_directory(root)?;
        let name: String = envelope::hex(&Sha256::digest(destination)).chars().take(32).collect();
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join(format!("{name}.lock")))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mirror = Self { directory: root.join(name), _lock: lock };
        create_private_directory(&mirror.directory)?;
        if mirror.repository().is_err() {
            mirror.rebuild()?;
        }
        Ok(Some(mirror))
    }

    /// Replaces the mirror with an empty one.
    pub(super) fn rebuild(&self) -> Result<(), SinkError> {
        let attempt = || format!("make the mirror {}", self.directory.display());
        let failed = |error: io::Error| SinkError::because(SinkReason::WriteFailed, attempt(), error);
        fs::remove_dir_all(&self.directory).map_err(failed)?;
        create_private_directory(&self.directory)?;
        Repository::init_bare(&self.directory)
            .map(drop)
            .map_err(|error| SinkError::because(SinkReason::WriteFailed, attempt(), error))
    }

    pub(super) fn repository(&self) -> Result<Repository, git2::Error> {
        // Without this directory libgit2 puts packs elsewhere.
        if !self.directory.join("objects/pack").is_dir() {
            return Err(git2::Error::from_str("there is no directory for packs"));
        }
        Repository::open_bare(&self.directory)
    }

    /// Commits that the mirror has. A fetch names them to the server as known.
    pub(super) fn known_commits(&self) -> Result<Vec<Oid>, git2::Error> {
        let repository = self.repository()?;
        let commit_of =
            |name| repository.refname_to_id(name).ok().filter(|id| repository.find_commit(*id).is_ok());
        Ok([TIP, LAST_PUSHED].into_iter().filter_map(commit_of).collect())
    }

    /// The commit that we pushed last.
    pub(super) fn last_pushed(&self) -> Result<Option<Oid>, git2::Error> {
        Ok(self.repository()?.refname_to_id(LAST_PUSHED).ok())
    }

    /// Commits whose parents are not in the mirror.
    pub(super) fn shallow(&self) -> Vec<Oid> {
        let text = fs::read_to_string(self.directory.join("shallow")).unwrap_or_default();
        text.lines().filter_map(|line| Oid::from_str(line).ok()).collect()
    }

    /// A writer for a pack that is being received. [`accept`](Self::accept) adds the pack to the mirror.
    pub(super) fn incoming(&self) -> Result<Box<dyn Write + Send>, SinkError> {
        let path = self.directory.join("incoming.pack");
        // A task that was stopped may still be writing to the old file.
        fs::remove_file(&path).ok();
        let file = File::create(&path).map_err(|error| {
            SinkError::because(SinkReason::WriteFailed, format!("write {}", path.display()), error)
        })?;
        Ok(Box::new(io::BufWriter::new(file)))
    }

    /// Adds the received pack to the mirror.
    pub(super) fn accept(&self, shallow: &[Oid]) -> Result<(), git2::Error> {
        let path = self.directory.join("incoming.pack");
        // Before the commits: a commit with missing parents must be listed as shallow.
        self.write_shallow(&[&self.shallow()[..], shallow].concat())?;
        let repository = self.repository()?;
        let odb = repository.odb()?;
        let mut writer = odb.packwriter()?;
        let copied = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut writer));
        copied.map_err(|error| git2::Error::from_str(&error.to_string()))?;
        writer.commit()?;
        fs::remove_file(&path).ok();
        self.write_shallow(shallow)
    }

    /// Adds the pack of our own push.
    pub(super) fn store(&self, pack: &[u8], commit: Oid) -> Result<(), git2::Error> {
        let repository = self.repository()?;
        let odb = repository.odb()?;
        let mut writer = odb.packwriter()?;
        writer.write_all(pack).map_err(|error| git2::Error::from_str(&error.to_string()))?;
        writer.commit()?;
        repository.reference(LAST_PUSHED, commit, true, "pushed")?;
        self.remember_tip(commit)
    }

    /// Forgets the commit that we pushed last.
    pub(super) fn forget_last_pushed(&self) -> Result<(), git2::Error> {
        match self.repository()?.find_reference(LAST_PUSHED) {
            Ok(mut reference) => reference.delete(),
            Err(_) => Ok(()),
        }
    }

    /// Remembers the commit of the remote's branch.
    pub(super) fn remember_tip(&self, tip: Oid) -> Result<(), git2::Error> {
        let repository = self.repository()?;
        if repository.refname_to_id(TIP).ok() != Some(tip) {
            repository.reference(TIP, tip, true, "seen")?;
        }
        Ok(())
    }

    /// If there are many packs, keeps the last `depth` commits in one pack and deletes everything else.
    pub(super) fn tidy(&self, depth: u32) -> Result<(), git2::Error> {
        if self.packs().len() <= MAX_PACKS {
            return Ok(());
        }
        let old_packs = self.packs();
        let repository = self.repository()?;
        let mut new_pack = repository.packbuilder()?;
        new_pack.set_threads(1);
        let mut shallow = Vec::new();
        for name in [TIP, LAST_PUSHED] {
            let Ok(mut commit) = repository.refname_to_id(name) else { continue };
            for remaining in (0..depth).rev() {
                new_pack.insert_commit(commit)?;
                let parents: Vec<Oid> = repository.find_commit(commit)?.parent_ids().collect();
                match *parents {
                    [] => break,
                    [parent] if remaining > 0 && repository.find_commit(parent).is_ok() => commit = parent,
                    // History also ends at merges: the mirror needs no more, and the remote has all of it.
                    _ => {
                        shallow.push(commit);
                        break;
                    }
                }
            }
        }
        new_pack.write(&self.directory.join("objects/pack"), 0o400)?;
        let name = format!("pack-{}", new_pack.name()?.unwrap_or_default());
        drop(new_pack);
        self.write_shallow(&shallow)?;
        for pack in old_packs.iter().filter(|pack| pack.file_stem() != Some(OsStr::new(&name))) {
            // Delete the index first: libgit2 ignores a pack without an index.
            fs::remove_file(pack.with_extension("idx")).ok();
            fs::remove_file(pack).ok();
        }
        Ok(())
    }

    fn packs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.join("objects/pack")).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| path.extension() == Some(OsStr::new("pack"))).collect()
    }

    fn write_shallow(&self, commits: &[Oid]) -> Result<(), git2::Error> {
        let path = self.directory.join("shallow");
        let lines: String = commits.iter().flat_map(|commit| [commit.to_string(), "\n".into()]).collect();
        let written = match &*lines {
            "" => fs::remove_file(&path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            lines => fs::write(&path, lines),
        };
        written.map_err(|error| git2::Error::from_str(&error.to_string()))
    }
}

/// Creates a directory for this user only, and refuses one that other users could write to.
fn create_private_directory(directory: &Path) -> Result<(), SinkError> {
    let shown = directory.display();
    let failed = |error: io::Error| {
        SinkError::because(SinkReason::WriteFailed, format!("make the directory {shown}"), error)
    };
    let refuse = |why: &str| {
        let why = format!("keep mirrors in {shown}: {why}; set KOLLECT_GIT_MIRROR_DIR to another directory");
        Err(SinkError::new(SinkReason::Forbidden, why))
    };
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let metadata = directory.symlink_metadata().map_err(failed)?;
    if metadata.is_symlink() {
        return refuse("it is a symbolic link");
    }
    if !metadata.is_dir() {
        return refuse("it is not a directory");
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refuse("it belongs to another user");
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse("others may write to it");
    }
    Ok(())
}
