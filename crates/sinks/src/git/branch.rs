//! One branch of one remote with one writer: writes that arrive while a push is running go together into the
//! next push.

use std::{
    collections::HashMap,
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use git2::Oid;
use kollect_model::{
    backoff::Backoff,
    batch::{Baseline, InventoryId},
    claim::Claim,
    sink::{SinkError, SinkReason},
};
use tokio::{sync::oneshot, time};

use super::{
    commit::{self, InventoryWrite, MadeCommits, WriteResult},
    mirror::{GitError, Mirror},
    remote::RemoteConfig,
    transport::{AdvertisedRefs, RejectedPush, Remote},
};
use crate::{
    SinkPolicy,
    layout::{LayoutSettings, path_owners::PathOwners},
};

/// How many times another push may be first before this one gives up.
pub(super) const ATTEMPTS: u32 = 8;
/// The pauses between these attempts. They are random, so that writers do not all retry at the same moment.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(1280));
/// How long to wait while another process uses the mirror.
const MIRROR_LIMIT: Duration = Duration::from_mins(1);

/// Branches with equal keys share one writer.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BranchKey {
    pub(super) remote: RemoteConfig,
    pub(super) policy: SinkPolicy,
    pub(super) depth: u32,
    /// Drops commits that others have made since our last one.
    pub(super) force: bool,
    /// Whether the branch may be created.
    pub(super) create: bool,
}

/// A branch and its writer.
pub(super) struct Branch {
    pub(super) key: BranchKey,
    pub(super) remote: Remote,
    pub(super) destination: String,
    reference: String,
    mirrors: PathBuf,
    waiting: Mutex<Vec<WaitingWrite>>,
    /// Held by the task of this process that uses the mirror. The mirror itself is locked against other processes.
    pub(super) mirror_lock: Arc<tokio::sync::Mutex<()>>,
    /// Claims, by the ids of their commits.
    pub(super) claims: Mutex<HashMap<Oid, Claim>>,
    /// The remembered paths of the manifests on the branch; the id of a tree is the version of a manifest.
    owners: Arc<Mutex<PathOwners>>,
}

struct WaitingWrite {
    request: InventoryWrite,
    answer: oneshot::Sender<Result<WriteResult, SinkError>>,
}

/// The state of the remote.
pub(super) struct RemoteState {
    pub(super) refs: AdvertisedRefs,
    /// The commit of the branch, if the branch exists.
    tip: Option<Oid>,
    /// The parent of the next commit.
    base: Option<Oid>,
}

/// How a push ended.
enum PushOutcome {
    Done(Vec<Result<WriteResult, SinkError>>),
    /// The server refuses the push.
    Refused(String),
}

impl Branch {
    pub(super) fn new(key: BranchKey, mirrors: PathBuf) -> Result<Self, SinkError> {
        Ok(Self {
            remote: Remote::open(&key.remote, &key.policy)?,
            destination: key.remote.destination_text(&key.policy),
            reference: format!("refs/heads/{}", key.remote.branch),
            mirrors,
            waiting: Mutex::default(),
            mirror_lock: Arc::default(),
            claims: Mutex::default(),
            owners: Arc::default(),
            key,
        })
    }

    /// Whether the branch can be reached, and be written as far as the server tells before a push.
    pub(super) async fn check(&self) -> Result<(), SinkError> {
        let state = self.state_of(self.remote.refs().await?);
        self.check_exists(&state)?;
        self.remote.may_push().await
    }

    /// The rows of an inventory on the branch, and the id of the tree that holds its manifest.
    pub(super) async fn baseline(
        self: &Arc<Self>,
        inventory: &InventoryId,
        settings: &Arc<LayoutSettings>,
    ) -> Result<(Baseline, Option<Oid>), SinkError> {
        let guard = self.mirror_lock.clone().lock_owned().await;
        let mirror = self.mirror().await?;
        let mut rebuilt = false;
        let found = loop {
            let state = self.fetch_state(&mirror).await?;
            self.check_exists(&state)?;
            let (inventory, settings, owners) = (inventory.clone(), settings.clone(), self.owners.clone());
            let read = blocking(&mirror, move |mirror| {
                commit::baseline(&mirror.repository()?, state.base, &inventory, &settings, &owners)
            });
            match read.await? {
                Ok(found) => break found,
                Err(failure) => self.repair(&mirror, failure, &mut rebuilt).await?,
            }
        };
        self.tidy(guard, mirror);
        Ok(found)
    }

    /// Tidies the mirror in the background. The next user of the mirror waits for it.
    fn tidy(&self, guard: tokio::sync::OwnedMutexGuard<()>, mirror: Arc<Mirror>) {
        let depth = self.key.depth;
        tokio::task::spawn_blocking(move || {
            if mirror.tidy(depth).is_err() {
                // A new mirror needs no tidying. If it cannot be created, the next user of the mirror gets the error.
                mirror.rebuild().ok();
            }
            // In this order: the mirror must not be locked when the next task of this process uses it.
            drop(mirror);
            drop(guard);
        });
    }

    /// Writes one request, together with all other requests that wait.
    pub(super) async fn run(self: &Arc<Self>, request: InventoryWrite) -> Result<WriteResult, SinkError> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(WaitingWrite { request, answer });
        let guard = tokio::select! {
            biased;
            result = &mut answered => return self.received(result),
            guard = self.mirror_lock.clone().lock_owned() => guard,
        };
        if let Ok(result) = answered.try_recv() {
            return result;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        match self.mirror().await {
            Ok(mirror) => {
                self.write_waiting(waiting, &mirror).await;
                self.tidy(guard, mirror);
            }
            Err(error) => answer_all(waiting, &error),
        }
        self.received(answered.await)
    }

    fn received(
        &self,
        answer: Result<Result<WriteResult, SinkError>, oneshot::error::RecvError>,
    ) -> Result<WriteResult, SinkError> {
        answer.unwrap_or_else(|_| {
            let why = format!("write to {}: the write was interrupted", self.destination);
            Err(SinkError::new(SinkReason::WriteFailed, why))
        })
    }

    async fn write_waiting(&self, mut waiting: Vec<WaitingWrite>, mirror: &Arc<Mirror>) {
        // A caller that has stopped waiting may have lost its claim: do not write for it.
        waiting.retain(|write| !write.answer.is_closed());
        let requests: Arc<Vec<InventoryWrite>> =
            Arc::new(waiting.iter().map(|write| write.request.clone()).collect());
        match self.push(requests, mirror).await {
            Ok(PushOutcome::Done(results)) => {
                for (write, result) in waiting.into_iter().zip(results) {
                    write.answer.send(result).ok();
                }
            }
            // The server may refuse only one of them: push each one separately.
            Ok(PushOutcome::Refused(_)) if waiting.len() > 1 => {
                for write in waiting {
                    Box::pin(self.write_waiting(vec![write], mirror)).await;
                }
            }
            Ok(PushOutcome::Refused(why)) => {
                let attempt = format!("push to {}: the server refuses it: {why}", self.destination);
                answer_all(waiting, &SinkError::new(SinkReason::Forbidden, attempt));
            }
            Err(error) => answer_all(waiting, &error),
        }
    }

    async fn push(
        &self,
        requests: Arc<Vec<InventoryWrite>>,
        mirror: &Arc<Mirror>,
    ) -> Result<PushOutcome, SinkError> {
        let (mut rebuilt, mut force) = (false, self.key.force);
        let (mut last_rejection, mut backoff) = (String::new(), PAUSES);
        for _ in 0..ATTEMPTS {
            let mut state = self.fetch_state(mirror).await?;
            if force && state.tip.is_some() {
                state.base = self.last_pushed(mirror).await?.or(state.base);
            }
            let (mut refused, mut unmoved) = (HashMap::new(), Vec::new());
            for (index, request) in requests.iter().enumerate() {
                match self.check_claim(mirror, &state, request).await {
                    Ok(claim) => unmoved.push(claim),
                    Err(error) => drop(refused.insert(index, error)),
                }
            }
            let (destination, base) = (self.destination.clone(), state.base);
            let (branch_exists, owners) = (state.tip.is_some(), self.owners.clone());
            let waiting = requests.clone();
            let commits = blocking(mirror, move |mirror| {
                let repository = mirror.repository()?;
                commit::make_commits(
                    &repository,
                    &destination,
                    base,
                    branch_exists,
                    &waiting,
                    &mut refused,
                    &owners,
                )
            });
            let MadeCommits { results, tip, pack } = match commits.await? {
                Ok(commits) => commits,
                Err(failure) => {
                    self.repair(mirror, failure, &mut rebuilt).await?;
                    continue;
                }
            };
            // A missing branch is created even if no file changes, because it starts from the default branch.
            let written = requests
                .iter()
                .zip(&results)
                .any(|(request, result)| result.is_ok() && request.operation.is_write());
            let Some(tip) = tip.filter(|tip| Some(*tip) != state.tip && (branch_exists || written)) else {
                return Ok(PushOutcome::Done(results));
            };
            if self.key.force {
                // Until the push has ended it is unknown which commit is our last one.
                blocking(mirror, |mirror| Ok(mirror.forget_last_pushed()?))
                    .await?
                    .map_err(|failure| self.mirror_error(failure))?;
            }
            let old = state.tip.unwrap_or(Oid::ZERO_SHA1);
            match self.remote.push(&self.reference, old, tip, &unmoved, pack.clone()).await? {
                Ok(()) => {
                    // An error of the mirror is reported when the mirror is used again.
                    blocking(mirror, move |mirror| Ok(mirror.store(&pack, tip)?)).await?.ok();
                    return Ok(PushOutcome::Done(results));
                }
                Err(RejectedPush::NonFastForward(why)) => {
                    last_rejection = why;
                    time::sleep(backoff.next(fastrand::f64())).await;
                }
                // The server may not know our last commit any more: retry on top of the current tip.
                Err(RejectedPush::Refused(_)) if force && state.base != state.tip => force = false,
                Err(RejectedPush::Refused(why)) => return Ok(PushOutcome::Refused(why)),
            }
        }
        let why = format!(
            "push to {}: other clients pushed first, {ATTEMPTS} times in a row: {last_rejection}",
            self.destination
        );
        Err(SinkError::new(SinkReason::Busy, why))
    }

    /// The last commit that we pushed, if the mirror still has it.
    async fn last_pushed(&self, mirror: &Arc<Mirror>) -> Result<Option<Oid>, SinkError> {
        let last = blocking(mirror, |mirror| {
            let repository = mirror.repository()?;
            Ok(mirror.last_pushed()?.filter(|commit| repository.find_commit(*commit).is_ok()))
        });
        last.await?.map_err(|failure| self.mirror_error(failure))
    }

    /// The state of the remote; fetches its commit into the mirror.
    async fn fetch_state(&self, mirror: &Arc<Mirror>) -> Result<RemoteState, SinkError> {
        let state = self.state_of(self.remote.refs().await?);
        let Some(base) = state.base else { return Ok(state) };
        let mut rebuilt = false;
        let mut fetched = false;
        loop {
            let has = blocking(mirror, move |mirror| {
                let repository = mirror.repository()?;
                let has = repository.find_commit(base).and_then(|commit| commit.tree().map(drop)).is_ok();
                if has {
                    mirror.remember_tip(base)?;
                }
                Ok((has, mirror.known_commits()?))
            });
            let failure = match has.await? {
                Ok((true, _)) => return Ok(state),
                Ok((false, _)) if fetched => {
                    Some(git2::Error::from_str("the fetched commit is missing in the mirror").into())
                }
                Ok((false, known)) => {
                    fetched = true;
                    self.fetch(mirror, base, &known, self.key.depth).await?.err()
                }
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.repair(mirror, failure, &mut rebuilt).await?;
                fetched = false;
            }
        }
    }

    fn state_of(&self, refs: AdvertisedRefs) -> RemoteState {
        let tip = refs.refs.get(&self.reference).copied();
        let default_branch = refs.head.as_ref().and_then(|head| refs.refs.get(head)).copied();
        RemoteState { tip, base: tip.or(default_branch), refs }
    }

    /// Returns an error if the branch does not exist and may not be created.
    pub(super) fn check_exists(&self, state: &RemoteState) -> Result<(), SinkError> {
        if state.tip.is_some() || self.key.create {
            return Ok(());
        }
        let why = format!(
            "open {}: there is no such branch, and provisioning.mode existing does not make one",
            self.destination
        );
        Err(SinkError::new(SinkReason::Missing, why))
    }

    pub(super) async fn fetch(
        &self,
        mirror: &Arc<Mirror>,
        want: Oid,
        have: &[Oid],
        depth: u32,
    ) -> Result<Result<(), GitError>, SinkError> {
        let shallow = mirror.shallow();
        let shallow_now = self.remote.fetch(want, have, Some(depth), &shallow, mirror.incoming()?).await?;
        blocking(mirror, move |mirror| Ok(mirror.accept(&shallow_now)?)).await
    }

    pub(super) async fn mirror(&self) -> Result<Arc<Mirror>, SinkError> {
        let started = time::Instant::now();
        loop {
            let (root, destination) = (self.mirrors.clone(), self.destination.clone());
            let opened = tokio::task::spawn_blocking(move || Mirror::open(&root, &destination)).await;
            match opened.map_err(interrupted)?? {
                Some(mirror) => return Ok(Arc::new(mirror)),
                None if started.elapsed() > MIRROR_LIMIT => {
                    let why = format!("use the mirror of {}: another process holds it", self.destination);
                    return Err(SinkError::new(SinkReason::Busy, why));
                }
                None => time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Replaces a damaged mirror with a new one, at most once.
    async fn repair(
        &self,
        mirror: &Arc<Mirror>,
        failure: GitError,
        rebuilt: &mut bool,
    ) -> Result<(), SinkError> {
        if *rebuilt || matches!(failure, GitError::Sink(_)) {
            return Err(self.mirror_error(failure));
        }
        *rebuilt = true;
        blocking(mirror, |mirror| Ok(mirror.rebuild()?)).await?.map_err(|failure| self.mirror_error(failure))
    }

    pub(super) fn mirror_error(&self, failure: GitError) -> SinkError {
        match failure {
            GitError::Sink(error) => error,
            GitError::Mirror(error) => SinkError::because(
                SinkReason::WriteFailed,
                format!("use the mirror of {}", self.destination),
                error,
            ),
        }
    }
}

/// Runs `work` on the mirror on a thread that may block. The mirror stays locked until it is done, also if the
/// caller is dropped.
pub(super) async fn blocking<T: Send + 'static>(
    mirror: &Arc<Mirror>,
    work: impl FnOnce(&Mirror) -> Result<T, GitError> + Send + 'static,
) -> Result<Result<T, GitError>, SinkError> {
    let mirror = mirror.clone();
    tokio::task::spawn_blocking(move || work(&mirror)).await.map_err(interrupted)
}

fn interrupted(error: tokio::task::JoinError) -> SinkError {
    SinkError::because(SinkReason::WriteFailed, "use a mirror", error)
}

fn answer_all(waiting: Vec<WaitingWrite>, error: &SinkError) {
    for write in waiting {
        write.answer.send(Err(copy_of(error))).ok();
    }
}

/// A copy of an error, for another caller that waited for the same push.
fn copy_of(error: &SinkError) -> SinkError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    SinkError::new(error.reason, text)
}
