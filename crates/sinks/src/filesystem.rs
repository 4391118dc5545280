//! A directory: rows in documents or in one file each, for people, for tools that read files, and for backups.
//!
//! [`layout`] decides which files there are and what they hold; this module stores them.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use kollect_model::{
    SpecError,
    crd::sinks::{KollectSnapshotSinkSpec, Preview, ProvisioningMode},
    destination::Destination,
    sink::{Sink, SinkError, SinkReason},
};
use object_store::{ObjectStore, ObjectStoreExt, PutMode, local::LocalFileSystem, path::Path as Location};

use crate::{
    Backend, FilePolicy, OutScheme, SinkPolicy, SinkSettings,
    layout::{
        self, LayoutSettings, ReadableFormat,
        blobs::{BlobVersion, Blobs},
        file_sink::FileSink,
        path_owners::PathOwners,
    },
    preview::provisioned,
};

/// The scheme of destinations.
const SCHEME: &str = "dir:";

/// Where the directory is, whether it may be created, and what its files look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemConfig {
    path: String,
    create: bool,
    settings: LayoutSettings,
}

impl Backend for FilesystemConfig {
    const TYPE: &'static str = "filesystem";
    const OUT: Option<OutScheme> = Some(OutScheme { schemes: &["dir"], form: "dir:DIRECTORY" });
    type Spec = KollectSnapshotSinkSpec;
    type Clients = ();

    fn clients(_settings: &SinkSettings) {}

    fn plan(spec: &KollectSnapshotSinkSpec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let path = match spec.filesystem.as_ref().map(|filesystem| &*filesystem.path) {
            None | Some("") => {
                errors.push(SpecError::absent("spec.filesystem.path", "is required for type filesystem"));
                String::new()
            }
            Some(path) if path.contains('\0') => {
                let problem = "holds a NUL character: write a path";
                errors.push(SpecError::new("spec.filesystem.path", &path.into(), problem));
                String::new()
            }
            Some(path) => path.into(),
        };
        let mode =
            spec.common.provisioning.as_ref().and_then(|provisioning| provisioning.mode).unwrap_or_default();
        match LayoutSettings::plan(spec) {
            Ok(settings) if errors.is_empty() => {
                Ok(Self { path, create: mode == ProvisioningMode::Ensure, settings })
            }
            Ok(_) => Err(errors),
            Err(others) => Err(errors.into_iter().chain(others).collect()),
        }
    }

    /// With options: `dir:DIRECTORY?layout=perResource&format=yaml`.
    fn plan_out(text: &str) -> Result<Self, String> {
        let text = text.split_once(':').map_or(text, |(_, text)| text);
        let (path, options) = text.split_once('?').unwrap_or((text, ""));
        if path.is_empty() || path.contains('\0') {
            return Err("is not a directory: write a path such as dir:inventory".into());
        }
        let settings = LayoutSettings::options(options, ReadableFormat::Json)?;
        Ok(Self { path: path.into(), create: true, settings })
    }

    fn advice(spec: &KollectSnapshotSinkSpec) -> Vec<String> {
        layout::advice(spec)
    }

    /// Previews the files.
    fn preview(&self, cluster: &str) -> Preview {
        let base = provisioned(self.create, "the directory must be there already");
        layout::preview::preview(&self.settings, cluster, base)
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        policy.files.check(&self.path).map_err(|problem| {
            vec![SpecError::new("spec.filesystem.path", &self.path.as_str().into(), problem)]
        })
    }

    fn destination(&self, policy: &SinkPolicy) -> Destination {
        policy.files.destination(SCHEME, &self.path)
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        Some(Self { path: policy.files.path_at(SCHEME, destination)?, ..self.clone() })
    }

    async fn open(&self, policy: &SinkPolicy, (): &()) -> Result<Box<dyn Sink>, SinkError> {
        let (directory, settings) = directory(self.clone(), &policy.files).await?;
        let lock = write_lock(&directory.root);
        Ok(Box::new(FileSink::new(directory, settings, lock)))
    }
}

/// The lock shared by all sinks of this process that write below a directory, by its canonical path, with the paths
/// that its manifests name. Other processes do not see this lock.
fn write_lock(root: &Path) -> Arc<tokio::sync::Mutex<PathOwners>> {
    static LOCKS: Mutex<BTreeMap<PathBuf, Weak<tokio::sync::Mutex<PathOwners>>>> =
        Mutex::new(BTreeMap::new());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    locks.retain(|_, lock| lock.strong_count() > 0);
    if let Some(lock) = locks.get(root).and_then(Weak::upgrade) {
        return lock;
    }
    let lock = Arc::default();
    locks.insert(root.to_owned(), Arc::downgrade(&lock));
    lock
}

/// Opens the directory, and creates it unless the plan says that it must exist. Returns also the settings of its
/// files.
pub async fn directory(
    config: FilesystemConfig,
    files: &FilePolicy,
) -> Result<(DirectoryBlobs, LayoutSettings), SinkError> {
    let FilesystemConfig { path, create, settings } = config;
    let files = files.clone();
    let open = move || {
        let forbidden =
            |why| SinkError::new(SinkReason::Forbidden, format!("open directory {path:?}: {why}"));
        DirectoryBlobs::open(&files.resolve(&path).map_err(forbidden)?, create)
    };
    let directory = tokio::task::spawn_blocking(open)
        .await
        .map_err(|error| SinkError::because(SinkReason::WriteFailed, "open a directory", error))??;
    Ok((directory, settings))
}

/// Numbers the probe files of this process, so that probes at the same time use different files.
static PROBES: AtomicU64 = AtomicU64::new(0);

/// The files below a directory.
pub struct DirectoryBlobs {
    root: PathBuf,
    store: LocalFileSystem,
    /// Writes the files below `.kollect` with fsync: after a power cut the manifests still name all files.
    synced_store: LocalFileSystem,
}

impl DirectoryBlobs {
    fn open(path: &Path, create: bool) -> Result<Self, SinkError> {
        let attempt = || format!("open directory {}", path.display());
        if create {
            std::fs::create_dir_all(path).map_err(|error| {
                let reason = match error.kind() {
                    // A parent of the path is a file.
                    io::ErrorKind::AlreadyExists => SinkReason::Incompatible,
                    _ => reason(&error),
                };
                SinkError::because(reason, format!("create directory {}", path.display()), error)
            })?;
        }
        let root =
            path.canonicalize().map_err(|error| SinkError::because(reason(&error), attempt(), error))?;
        if !root.is_dir() {
            let attempt = format!("{} is not a directory: use another path", path.display());
            return Err(SinkError::new(SinkReason::Incompatible, attempt));
        }
        let store = LocalFileSystem::new_with_prefix(&root).map_err(|error| failed(attempt(), error))?;
        let store = store.with_automatic_cleanup(true);
        Ok(Self { root, synced_store: store.clone().with_fsync(true), store })
    }

    /// The location of a file below the root. Fails if a symbolic link on the way leads out of the root.
    fn locate(&self, path: &str) -> Result<Location, SinkError> {
        let location = Location::parse(path).map_err(|error| {
            SinkError::because(SinkReason::Incompatible, format!("use {path:?} as a path"), error)
        })?;
        let mut directory = self.root.clone();
        let parents = Path::new(path).parent().unwrap_or(Path::new(""));
        for part in parents.components() {
            if !matches!(part, Component::Normal(_)) {
                let attempt = format!("{path:?} leads out of {}: use another template", self.root.display());
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
            directory.push(part);
            let Ok(metadata) = directory.symlink_metadata() else { break };
            if metadata.is_symlink()
                && !directory.canonicalize().is_ok_and(|real| real.starts_with(&self.root))
            {
                let attempt = format!(
                    "{} is a link that leads out of {}: remove it",
                    directory.display(),
                    self.root.display()
                );
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
        }
        Ok(location)
    }

    fn store(&self, path: &str) -> &LocalFileSystem {
        if path.starts_with(".kollect/") { &self.synced_store } else { &self.store }
    }

    fn attempt(&self, verb: &str, path: &str) -> String {
        format!("{verb} {}", self.root.join(path).display())
    }
}

#[async_trait]
impl Blobs for DirectoryBlobs {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError> {
        let failed = |error| failed(self.attempt("read", path), error);
        match self.store.get(&self.locate(path)?).await {
            Ok(found) => found.bytes().await.map(Some).map_err(failed),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn write(&self, path: &str, bytes: Bytes) -> Result<BlobVersion, SinkError> {
        let written = self.store(path).put(&self.locate(path)?, bytes.into()).await;
        written.map(|written| written.e_tag).map_err(|error| failed(self.attempt("write", path), error))
    }

    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError> {
        match self.store(path).put_opts(&self.locate(path)?, bytes.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(failed(self.attempt("create", path), error)),
        }
    }

    async fn delete(&self, path: &str) -> Result<(), SinkError> {
        match self.store.delete(&self.locate(path)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(self.attempt("remove", path), error)),
        }
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError> {
        let files = self.list_versions(directory).await?;
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }

    /// A version consists of inode, size and time of the last change.
    async fn list_versions(&self, directory: &str) -> Result<Vec<(String, BlobVersion)>, SinkError> {
        let prefix = self.locate(directory)?;
        let listed = self.store.list(Some(&prefix)).map_ok(|file| (file.location.to_string(), file.e_tag));
        listed.try_collect().await.map_err(|error| failed(self.attempt("list", directory), error))
    }

    async fn check(&self) -> Result<(), SinkError> {
        if !self.root.is_dir() {
            let attempt = format!("{} is no longer there", self.root.display());
            return Err(SinkError::new(SinkReason::Missing, attempt));
        }
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let path = format!(".kollect/probe-{}-{number}", std::process::id());
        self.write(&path, Bytes::new()).await?;
        self.delete(&path).await
    }

    fn has_other_records(&self, path: &str) -> bool {
        let file = self.root.join(path);
        let mut directories = file.ancestors().skip(1).filter(|directory| *directory != self.root);
        directories.any(|directory| directory.join(layout::paths::KOLLECT_DIRECTORY).exists())
    }

    fn describe(&self) -> String {
        format!("directory {}", self.root.display())
    }
}

fn reason(error: &io::Error) -> SinkReason {
    match error.kind() {
        io::ErrorKind::NotFound => SinkReason::Missing,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => SinkReason::Forbidden,
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidFilename => {
            SinkReason::Incompatible
        }
        _ => SinkReason::WriteFailed,
    }
}

/// The error of a failed operation. The I/O error anywhere in the chain of causes decides the reason.
fn failed(attempt: String, error: object_store::Error) -> SinkError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut found = SinkReason::WriteFailed;
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<io::Error>() {
            found = reason(error);
        }
        cause = inner.source();
    }
    SinkError::because(found, attempt, error)
}
