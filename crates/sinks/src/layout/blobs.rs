//! What a store must offer to keep files in it.

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::SinkError;

/// What a store says about one state of a file: of another state it says something else. `None` if it says nothing.
pub type Version = Option<String>;

/// Files by path, relative to the root. Every operation is atomic: a reader sees all of it or nothing.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// The bytes of a file; `None` if there is none.
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError>;

    /// Writes or replaces a file. Answers its version.
    async fn write(&self, path: &str, bytes: Bytes) -> Result<Version, SinkError>;

    /// Writes a file unless there is one; says whether it did.
    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError>;

    /// Removes a file, and directories that are empty then. A file that is not there is no error.
    async fn delete(&self, path: &str) -> Result<(), SinkError>;

    /// The paths of all files below a directory.
    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError>;

    /// The same with their versions.
    async fn list_versions(&self, directory: &str) -> Result<Vec<(String, Version)>, SinkError>;

    /// Whether files can be written.
    async fn check(&self) -> Result<(), SinkError>;

    /// Where this is, for messages.
    fn describe(&self) -> String;
}
