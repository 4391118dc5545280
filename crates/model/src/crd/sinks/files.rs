//! Settings of sinks that write local files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Filesystem {
    /// Directory. The operator keeps it below its --file-sink-root.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}

/// Settings of an SQLite database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sqlite {
    /// File. The operator keeps it below its --file-sink-root.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
}
