//! Settings of Git and GitLab sinks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{rules, shapes::SecretReference};

/// Settings of a Git sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Git {
    /// Branch; overrides the fragment #branch= of the endpoint. Default: main.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255), extend("x-kubernetes-validations" = branch_name()))]
    pub branch: Option<String>,
    /// Append to history, or overwrite it. Default: Commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_policy: Option<PushPolicy>,
    /// How to authenticate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<GitAuth>,
    /// Template of the subject line.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub commit_message: Option<String>,
    /// Template of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub commit_body: Option<String>,
    /// Templates of trailers, such as `Signed-off-by: Kollect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 1024)))]
    pub commit_trailers: Vec<String>,
    /// Author of commits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<GitAuthor>,
    /// How much history is fetched. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub clone_depth: Option<i32>,
    /// Remove files of vanished rows; always on for layouts with several files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// Accepted for both values; there is one engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<GitEngine>,
    /// Send credentials before the server asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force_basic_auth: Option<bool>,
}

/// How a branch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PushPolicy {
    /// Append a commit.
    Commit,
    /// Overwrite the branch.
    ForcePush,
}

/// How to authenticate to a Git server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitAuth {
    /// Token or SSH key. Default: token, or ssh when the URL says so.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<GitAuthType>,
    /// Secret with the credentials; overrides the sink's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Kinds of Git credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GitAuthType {
    /// Token or password over HTTP.
    Token,
    /// Key over SSH.
    Ssh,
}

/// Author of commits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GitAuthor {
    /// Name. Default: kollect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Address. Default: kollect@kollect.dev.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub email: Option<String>,
}

/// Names of Git implementations that manifests may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GitEngine {
    /// The engine.
    GoGit,
    /// The same engine.
    Cli,
}

/// Settings of a GitLab sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitLab {
    /// Merge requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_request: Option<MergeRequest>,
}

/// How changes reach the target branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules(&[
    (
        "!has(self.mode) || self.mode != 'merge_request' || has(self.targetBranch)",
        "mode merge_request needs targetBranch",
    ),
])))]
pub struct MergeRequest {
    /// Push directly, or by merge request. Default: direct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<MergeRequestMode>,
    /// Branch that merge requests go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255), extend("x-kubernetes-validations" = branch_name()))]
    pub target_branch: Option<String>,
    /// Prefix of branches. Default: kollect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub branch_prefix: Option<String>,
    /// Template of the title, with {namespace} and {name}.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub title_template: Option<String>,
    /// Merge when the pipeline succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_merge: Option<bool>,
}

/// How changes reach GitLab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MergeRequestMode {
    /// Push to the branch.
    Direct,
    /// Open a merge request.
    MergeRequest,
}

fn branch_name() -> Value {
    rules(&[(
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._/-]*$') && !self.contains('..') && !self.startsWith('refs/') && !self.endsWith('.') && !self.endsWith('.lock')",
        "must be a branch name: letters, digits and . _ / -, not below refs/, without .. and not ending in . or .lock",
    )])
}
