//! What a store must offer to keep files in it.

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::SinkError;

/// Files by path, relative to the root. Every operation is atomic: a reader sees all of it or nothing.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// The bytes of a file; `None` if there is none.
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError>;

    /// Writes or replaces a file.
    async fn write(&self, path: &str, bytes: Bytes) -> Result<(), SinkError>;

    /// Writes a file unless there is one; says whether it did.
    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError>;

    /// Removes a file, and directories that are empty then. A file that is not there is no error.
    async fn delete(&self, path: &str) -> Result<(), SinkError>;

    /// The paths of all files below a directory.
    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError>;

    /// Whether files can be written.
    async fn check(&self) -> Result<(), SinkError>;

    /// Where this is, for messages.
    fn describe(&self) -> String;
}
