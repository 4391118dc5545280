//! The operations that a store of files must offer.

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::SinkError;

/// Identifies one state of a file: another state has another version. `None` if the store has no versions.
pub type BlobVersion = Option<String>;

/// Files by path, relative to the root. Every operation is atomic: a reader sees all of its effect or nothing.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// The bytes of a file; `None` if it does not exist.
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError>;

    /// Writes or replaces a file. Returns its version.
    async fn write(&self, path: &str, bytes: Bytes) -> Result<BlobVersion, SinkError>;

    /// Writes a file unless it exists; returns whether it was written.
    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError>;

    /// Removes a file, and directories that become empty. A missing file is not an error.
    async fn delete(&self, path: &str) -> Result<(), SinkError>;

    /// The paths of all files below a directory.
    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError>;

    /// The same with their versions.
    async fn list_versions(&self, directory: &str) -> Result<Vec<(String, BlobVersion)>, SinkError>;

    /// Returns an error unless files can be written.
    async fn check(&self) -> Result<(), SinkError>;

    /// Whether a directory around the root, or between the root and a file, has records of other sinks: the file may then be
    /// one of theirs.
    fn has_other_records(&self, _path: &str) -> bool {
        false
    }

    /// The name of the store, for messages.
    fn describe(&self) -> String;
}
