//! Git: an inventory as files of a branch, one commit per change.
//!
//! The remote is authoritative: every write starts from its current state, and a push that loses a race is
//! computed again from the new state. Files are made as in every other [`layout`].

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use git2::Oid;
use kollect_model::{
    SpecError,
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    crd::sinks::{GitPreview, KollectSnapshotSinkSpec, Preview, ProvisioningMode, PushPolicy, SinkCommon},
    destination::Destination,
    sink::{Atomicity, Sink, SinkError, SinkReason},
};

use crate::{
    Backend, OutScheme, Secrets, SinkPolicy, SinkSettings,
    layout::{self, LayoutSettings, ReadableFormat},
    preview::provisioned,
    sample::{SampleRows, TIME},
};

mod branch;
mod claims;
mod commit;
mod contested_paths;
mod message;
mod mirror;
mod remote;
mod transport;
mod tree;

use branch::{Branch, BranchKey};
use commit::{InventoryWrite, KnownManifest, WriteKind, WriteResult};
use message::{CommitMessages, MessageValues};
use remote::{RemoteConfig, RepositoryAddress};

/// A branch, and what its files and commits look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitConfig {
    remote: RemoteConfig,
    settings: Arc<LayoutSettings>,
    messages: Arc<CommitMessages>,
    depth: u32,
    force: bool,
    create: bool,
    /// The name of the sink, for commits.
    name: String,
}

impl Backend for GitConfig {
    const TYPE: &'static str = "git";
    const OUT: Option<OutScheme> = Some(OutScheme { schemes: &["git"], form: "git:REPOSITORY" });
    type Spec = KollectSnapshotSinkSpec;
    type Clients = Branches;

    fn clients(settings: &SinkSettings) -> Branches {
        Branches::with_mirrors(settings.mirrors.clone().unwrap_or_else(mirror::default_root))
    }

    fn plan(spec: &KollectSnapshotSinkSpec) -> Result<Self, Vec<SpecError>> {
        let git = spec.git.as_ref();
        let remote = RemoteConfig::plan(&spec.common, git);
        let (settings, messages) = (LayoutSettings::plan(spec), CommitMessages::plan(git));
        match (remote, settings, messages) {
            (Ok(remote), Ok(settings), Ok(messages)) => {
                let mode = spec
                    .common
                    .provisioning
                    .as_ref()
                    .and_then(|provisioning| provisioning.mode)
                    .unwrap_or_default();
                Ok(Self {
                    remote,
                    settings: Arc::new(settings),
                    messages: Arc::new(messages),
                    depth: git
                        .and_then(|git| git.clone_depth)
                        .and_then(|depth| depth.try_into().ok())
                        .unwrap_or(1),
                    force: git.and_then(|git| git.push_policy) == Some(PushPolicy::ForcePush),
                    create: mode == ProvisioningMode::Ensure,
                    name: String::new(),
                })
            }
            (remote, settings, messages) => {
                let errors = [remote.err(), settings.err(), messages.err()];
                Err(errors.into_iter().flatten().flatten().collect())
            }
        }
    }

    /// `git:PATH` or `git:URL`, `#branch=NAME` and options behind a question mark.
    fn plan_out(text: &str) -> Result<Self, String> {
        let text = text.split_once(':').map_or(text, |(_, text)| text);
        let (repository, options) = text.split_once('?').unwrap_or((text, ""));
        let endpoint =
            if repository.contains("://") { repository.to_owned() } else { format!("file:{repository}") };
        let common = SinkCommon { endpoint: Some(endpoint), ..SinkCommon::default() };
        let remote = RemoteConfig::plan(&common, None)
            .map_err(|errors| errors.first().map_or_else(String::new, |error| error.problem.clone()))?;
        Ok(Self {
            remote,
            settings: Arc::new(LayoutSettings::options(options, ReadableFormat::Yaml)?),
            messages: Arc::default(),
            depth: 1,
            force: false,
            create: true,
            name: "out".into(),
        })
    }

    fn advice(spec: &KollectSnapshotSinkSpec) -> Vec<String> {
        let mut advice = layout::advice(spec);
        if spec.git.as_ref().and_then(|git| git.push_policy) == Some(PushPolicy::ForcePush) {
            advice.push("spec.git.pushPolicy = ForcePush: the history of the branch is overwritten".into());
        }
        if spec.common.serialization.as_ref().and_then(|serialization| serialization.format).is_none() {
            advice.push("spec.serialization.format is absent: documents are written as yaml".into());
        }
        advice
    }

    fn with_secrets(self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        Ok(Self { remote: self.remote.clone().with_secrets(secrets)?, ..self })
    }

    /// Commit messages contain the name.
    fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    fn destination(&self, policy: &SinkPolicy) -> Destination {
        Destination::new(format!("git:{}", self.remote.repository(policy)), [&*self.remote.branch])
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        let [branch] = destination.names_at(self.destination(policy).server())?;
        Some(Self { remote: self.remote.clone().with_branch(branch.to_owned()), ..self.clone() })
    }

    /// Previews the files and the commit message of sample rows.
    fn preview(&self, cluster: &str) -> Preview {
        let base = provisioned(self.create, "the branch is not made");
        let preview = layout::preview::preview(&self.settings, cluster, base);
        let sample = SampleRows::new(cluster, false);
        let batch = sample.batch();
        let values = MessageValues {
            inventory: batch.inventory,
            sink: &self.name,
            generation: batch.generation,
            items: batch.delta.len(),
            checksum: &"0".repeat(64),
            exported_at: TIME,
            path: &self.settings.document_path(batch.inventory, batch.generation),
            changes: &message::changes(batch.delta, |_| None, |_| None),
        };
        let text = self.messages.text(&values);
        let (subject, body) = text.trim_end().split_once("\n\n").unwrap_or((text.trim_end(), ""));
        let git = GitPreview {
            sample_commit_subject: Some(subject.to_owned()),
            sample_commit_body: (!body.is_empty()).then(|| body.to_owned()),
        };
        Preview { git: Some(git), ..preview }
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        self.remote.check(policy)
    }

    async fn open(&self, policy: &SinkPolicy, branches: &Branches) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(open(self.clone(), policy, branches).await?))
    }
}

/// Branches in use. Sinks that write the same branch with the same credentials and policy share a writer.
pub(crate) struct Branches {
    /// The directory of the mirrors.
    mirrors: PathBuf,
    open: Mutex<Vec<Weak<Branch>>>,
}

impl Branches {
    fn with_mirrors(mirrors: PathBuf) -> Self {
        Self { mirrors, open: Mutex::default() }
    }

    fn get(&self, key: BranchKey) -> Result<Arc<Branch>, SinkError> {
        let mut branches = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        branches.retain(|branch| branch.strong_count() > 0);
        if let Some(branch) = branches.iter().filter_map(Weak::upgrade).find(|branch| branch.key == key) {
            return Ok(branch);
        }
        let branch = Arc::new(Branch::new(key, self.mirrors.clone())?);
        branches.push(Arc::downgrade(&branch));
        Ok(branch)
    }
}

/// Opens a branch. A repository in a directory is created if it is missing and the plan allows that.
async fn open(config: GitConfig, policy: &SinkPolicy, branches: &Branches) -> Result<GitSink, SinkError> {
    let GitConfig { remote, settings, messages, depth, force, create, name } = config;
    if let RepositoryAddress::File(path) = &remote.address
        && create
    {
        let (path, branch, files) = (path.clone(), remote.branch.clone(), policy.files.clone());
        tokio::task::spawn_blocking(move || create_repository(&path, &branch, &files))
            .await
            .map_err(|error| SinkError::because(SinkReason::WriteFailed, "make a repository", error))??;
    }
    let branch = branches.get(BranchKey { remote, policy: policy.clone(), depth, force, create })?;
    Ok(GitSink { branch, settings, messages, name, known_trees: Mutex::default() })
}

fn create_repository(path: &str, branch: &str, files: &crate::FilePolicy) -> Result<(), SinkError> {
    let attempt = format!("make the repository {path}");
    let directory = files
        .resolve(path)
        .map_err(|why| SinkError::new(SinkReason::Forbidden, format!("{attempt}: {why}")))?;
    if directory.exists() {
        return Ok(());
    }
    // Create it under another name and rename it: a process that is killed leaves no incomplete repository here.
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let draft = directory.with_file_name(format!(".{name}.{}-{}", std::process::id(), fastrand::u32(..)));
    let mut options = git2::RepositoryInitOptions::new();
    options.bare(true).no_reinit(true).initial_head(branch);
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        SinkError::because(SinkReason::WriteFailed, attempt.clone(), error)
    };
    git2::Repository::init_opts(&draft, &options).map_err(|error| failed(error.into()))?;
    let renamed = std::fs::rename(&draft, &directory);
    if renamed.is_err() {
        std::fs::remove_dir_all(&draft).ok();
    }
    // Another process may have created it first.
    if directory.exists() { Ok(()) } else { renamed.map_err(|error| failed(error.into())) }
}

/// A branch as a sink.
pub(crate) struct GitSink {
    branch: Arc<Branch>,
    settings: Arc<LayoutSettings>,
    messages: Arc<CommitMessages>,
    name: String,
    /// The ids of the trees that hold the manifests, as last read or written by this sink; `None`: there was none. A
    /// different id means that the files were changed by others.
    known_trees: Mutex<HashMap<InventoryId, Option<Oid>>>,
}

impl GitSink {
    async fn run(
        &self,
        inventory: &InventoryId,
        claim: &Claim,
        operation: WriteKind,
    ) -> Result<Receipt, SinkError> {
        let request = InventoryWrite {
            inventory: inventory.clone(),
            claim: claim.clone(),
            settings: self.settings.clone(),
            messages: self.messages.clone(),
            // With force, commits of others are dropped, so a changed manifest is expected and not compared.
            known: match self.known_trees().get(inventory) {
                Some(tree) if !self.branch.key.force => KnownManifest::Tree(*tree),
                _ => KnownManifest::Unknown,
            },
            operation,
        };
        // Removed first: after a failure the state of the branch is unknown.
        self.known_trees().remove(inventory);
        let WriteResult { receipt, manifest_tree } = self.branch.run(request).await?;
        self.known_trees().insert(inventory.clone(), manifest_tree);
        Ok(receipt)
    }

    fn known_trees(&self) -> std::sync::MutexGuard<'_, HashMap<InventoryId, Option<Oid>>> {
        self.known_trees.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sink for GitSink {
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    fn claim_check_interval(&self) -> Duration {
        Duration::from_mins(5)
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.branch.check().await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let (baseline, manifest_tree) = self.branch.baseline(inventory, &self.settings).await?;
        self.known_trees().insert(inventory.clone(), manifest_tree);
        Ok(baseline)
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.branch.claim(inventory, claimant).await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.branch.held_claims(inventories).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let operation = WriteKind::Write {
            delta: batch.delta.clone(),
            sink: self.name.clone(),
            generation: batch.generation,
            part_bytes: batch.part_bytes,
        };
        self.run(batch.inventory, batch.claim, operation).await
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.run(inventory, claim, WriteKind::Forget).await?;
        // The claim is released last: if this run is interrupted, the next one repeats it.
        self.branch.release(inventory, claim).await
    }
}
