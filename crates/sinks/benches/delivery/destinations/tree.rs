//! A directory. Every write replaces a file with a new one, which has another inode.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::Result;
use kollect_model::sink::SinkSpec;
use kollect_sinks::Plan;
use serde_json::json;
use tempfile::TempDir;

use super::{BenchDestination, planned_spec};

/// The directory of manifests and claims, which are not rows.
const KOLLECT_DIRECTORY: &str = ".kollect";

/// A directory in one of the layouts.
pub(crate) struct Tree {
    directory: TempDir,
    mode: &'static str,
    seen: Mutex<SeenFiles>,
}

#[derive(Default)]
struct SeenFiles {
    files: BTreeMap<PathBuf, File>,
    /// How many files differed, over all calls of `compare`.
    different: usize,
}

/// Distinguishes a file from another one with the same path.
#[derive(PartialEq)]
struct File {
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl Tree {
    pub(crate) fn new(mode: &'static str) -> Result<Self> {
        Ok(Self { directory: tempfile::tempdir()?, mode, seen: Mutex::default() })
    }

    /// Bytes of all files of rows.
    pub(crate) fn bytes(&self) -> Result<u64> {
        Ok(self.files()?.values().map(|file| file.bytes).sum())
    }

    fn files(&self) -> Result<BTreeMap<PathBuf, File>> {
        let mut files = BTreeMap::new();
        let mut unread = vec![self.directory.path().to_owned()];
        while let Some(directory) = unread.pop() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                if metadata.is_file() {
                    let modified = (metadata.mtime(), metadata.mtime_nsec());
                    let file = File { inode: metadata.ino(), modified, bytes: metadata.len() };
                    files.insert(entry.path(), file);
                } else if entry.path().file_name() != Some(Path::new(KOLLECT_DIRECTORY).as_os_str()) {
                    unread.push(entry.path());
                }
            }
        }
        Ok(files)
    }

    /// Compares the files with the last call. Returns how many differed, over all calls.
    fn compare(&self) -> Result<usize> {
        let files = self.files()?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let written = files.iter().filter(|(path, file)| seen.files.get(*path) != Some(file)).count();
        let removed = seen.files.keys().filter(|path| !files.contains_key(*path)).count();
        seen.different += written + removed;
        seen.files = files;
        Ok(seen.different)
    }
}

impl BenchDestination for Tree {
    fn plan(&self) -> Result<Plan> {
        let spec = json!({
            "type": "filesystem",
            "filesystem": { "path": self.directory.path() },
            "layout": { "mode": self.mode },
        });
        planned_spec(&SinkSpec::Snapshot(serde_json::from_value(spec)?))
    }

    async fn count(&self) -> Result<()> {
        self.compare()?;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).different = 0;
        Ok(())
    }

    async fn written(&self) -> Result<usize> {
        self.compare()
    }
}
