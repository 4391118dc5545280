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
    draw::{self, Done, Drawn, Work},
    mirror::{Failure, Mirror},
    remote::RemoteConfig,
    transport::{Advertised, Rejected, Remote},
};
use crate::{
    Policy,
    layout::{Settings, path_owners::PathOwners},
};

/// How many times another push may be first before this one gives up.
pub(super) const ATTEMPTS: u32 = 8;
/// The pauses between these attempts. They are random, so that writers do not all retry at the same moment.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(1280));
/// How long to wait while another process uses the mirror.
const MIRROR_LIMIT: Duration = Duration::from_mins(1);

/// Branches with equal keys share one writer.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) remote: RemoteConfig,
    pub(super) policy: Policy,
    pub(super) depth: u32,
    /// Drops commits that others have made since our last one.
    pub(super) force: bool,
    /// Whether the branch may be created.
    pub(super) create: bool,
}

/// A branch and its writer.
pub(super) struct Branch {
    pub(super) key: Key,
    pub(super) remote: Remote,
    pub(super) place: String,
    reference: String,
    mirrors: PathBuf,
    waiting: Mutex<Vec<Waiting>>,
    /// Held by the task that uses the mirror.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// Claims, by the ids of their commits.
    pub(super) claims: Mutex<HashMap<Oid, Claim>>,
    /// The remembered paths of the manifests on the branch; the id of a tree is the version of a manifest.
    owners: Arc<Mutex<PathOwners>>,
}

struct Waiting {
    work: Work,
    answer: oneshot::Sender<Result<Done, SinkError>>,
}

/// The state of the remote.
pub(super) struct Seen {
    pub(super) refs: Advertised,
    /// The commit of the branch, if the branch exists.
    tip: Option<Oid>,
    /// The parent of the next commit.
    base: Option<Oid>,
}

/// How a push ended.
enum Pushed {
    Done(Vec<Result<Done, SinkError>>),
    /// The server refuses the push.
    Refused(String),
}

impl Branch {
    pub(super) fn new(key: Key, mirrors: PathBuf) -> Result<Self, SinkError> {
        Ok(Self {
            remote: Remote::open(&key.remote, &key.policy)?,
            place: key.remote.place(&key.policy),
            reference: format!("refs/heads/{}", key.remote.branch),
            mirrors,
            waiting: Mutex::default(),
            turn: Arc::default(),
            claims: Mutex::default(),
            owners: Arc::default(),
            key,
        })
    }

    /// Whether the branch can be reached, and be written as far as the server tells before a push.
    pub(super) async fn check(&self) -> Result<(), SinkError> {
        let seen = self.see(self.remote.refs().await?);
        self.exists(&seen)?;
        self.remote.may_push().await
    }

    /// The rows of an inventory on the branch, and the id of its books.
    pub(super) async fn baseline(
        self: &Arc<Self>,
        inventory: &InventoryId,
        settings: &Arc<Settings>,
    ) -> Result<(Baseline, Option<Oid>), SinkError> {
        let turn = self.turn.clone().lock_owned().await;
        let mirror = self.mirror().await?;
        let mut rebuilt = false;
        let found = loop {
            let seen = self.look(&mirror).await?;
            self.exists(&seen)?;
            let (inventory, settings, owners) = (inventory.clone(), settings.clone(), self.owners.clone());
            let read = blocking(&mirror, move |mirror| {
                draw::baseline(&mirror.repository()?, seen.base, &inventory, &settings, &owners)
            });
            match read.await? {
                Ok(found) => break found,
                Err(failure) => self.repair(&mirror, failure, &mut rebuilt).await?,
            }
        };
        self.tidy(turn, mirror);
        Ok(found)
    }

    /// Tidies the mirror in the background. The next user of the mirror waits for it.
    fn tidy(&self, turn: tokio::sync::OwnedMutexGuard<()>, mirror: Arc<Mirror>) {
        let depth = self.key.depth;
        tokio::task::spawn_blocking(move || {
            if mirror.tidy(depth).is_err() {
                // A new mirror needs no tidying. If it cannot be created, the next user of the mirror gets the error.
                mirror.rebuild().ok();
            }
            // In this order: the lock of the mirror must be free when the next task takes its turn.
            drop(mirror);
            drop(turn);
        });
    }

    /// Does one work, together with all other works that wait.
    pub(super) async fn run(self: &Arc<Self>, work: Work) -> Result<Done, SinkError> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Waiting { work, answer });
        let turn = tokio::select! {
            biased;
            done = &mut answered => return self.received(done),
            turn = self.turn.clone().lock_owned() => turn,
        };
        if let Ok(done) = answered.try_recv() {
            return done;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        match self.mirror().await {
            Ok(mirror) => {
                self.serve(waiting, &mirror).await;
                self.tidy(turn, mirror);
            }
            Err(error) => answer_all(waiting, &error),
        }
        self.received(answered.await)
    }

    fn received(
        &self,
        answer: Result<Result<Done, SinkError>, oneshot::error::RecvError>,
    ) -> Result<Done, SinkError> {
        answer.unwrap_or_else(|_| {
            let why = format!("write to {}: the writer has stopped half-way", self.place);
            Err(SinkError::new(SinkReason::WriteFailed, why))
        })
    }

    async fn serve(&self, mut waiting: Vec<Waiting>, mirror: &Arc<Mirror>) {
        // A caller that has stopped waiting may have lost its claim: do not write for it.
        waiting.retain(|one| !one.answer.is_closed());
        let asked: Arc<Vec<Work>> = Arc::new(waiting.iter().map(|one| one.work.clone()).collect());
        match self.push(asked, mirror).await {
            Ok(Pushed::Done(done)) => {
                for (one, done) in waiting.into_iter().zip(done) {
                    one.answer.send(done).ok();
                }
            }
            // The server may refuse only one of them: push each one separately.
            Ok(Pushed::Refused(_)) if waiting.len() > 1 => {
                for one in waiting {
                    Box::pin(self.serve(vec![one], mirror)).await;
                }
            }
            Ok(Pushed::Refused(words)) => {
                let attempt = format!("push to {}: the server refuses it: {words}", self.place);
                answer_all(waiting, &SinkError::new(SinkReason::Forbidden, attempt));
            }
            Err(error) => answer_all(waiting, &error),
        }
    }

    async fn push(&self, asked: Arc<Vec<Work>>, mirror: &Arc<Mirror>) -> Result<Pushed, SinkError> {
        let (mut rebuilt, mut force) = (false, self.key.force);
        let (mut last, mut backoff) = (String::new(), PAUSES);
        for _ in 0..ATTEMPTS {
            let mut seen = self.look(mirror).await?;
            if force && seen.tip.is_some() {
                seen.base = self.own(mirror).await?.or(seen.base);
            }
            let (mut refused, mut unmoved) = (HashMap::new(), Vec::new());
            for (index, work) in asked.iter().enumerate() {
                match self.admitted(mirror, &seen, work).await {
                    Ok(claim) => unmoved.push(claim),
                    Err(error) => drop(refused.insert(index, error)),
                }
            }
            let (place, drawing, base) = (self.place.clone(), asked.clone(), seen.base);
            let (is_there, owners) = (seen.tip.is_some(), self.owners.clone());
            let drawn = blocking(mirror, move |mirror| {
                let repository = mirror.repository()?;
                draw::draw(&repository, &place, base, is_there, &drawing, &mut refused, &owners)
            });
            let Drawn { done, tip, pack } = match drawn.await? {
                Ok(drawn) => drawn,
                Err(failure) => {
                    self.repair(mirror, failure, &mut rebuilt).await?;
                    continue;
                }
            };
            // A missing branch is created even if no file changes, because it starts from the default branch.
            let written = asked.iter().zip(&done).any(|(work, done)| done.is_ok() && work.task.is_write());
            let Some(tip) = tip.filter(|tip| Some(*tip) != seen.tip && (is_there || written)) else {
                return Ok(Pushed::Done(done));
            };
            if self.key.force {
                // Until the push has ended it is unknown which commit is our last one.
                blocking(mirror, |mirror| Ok(mirror.disown()?)).await?.map_err(|f| self.unusable(f))?;
            }
            let old = seen.tip.unwrap_or(Oid::ZERO_SHA1);
            match self.remote.push(&self.reference, old, tip, &unmoved, pack.clone()).await? {
                Ok(()) => {
                    // An error of the mirror is reported when the mirror is used again.
                    blocking(mirror, move |mirror| Ok(mirror.store(&pack, tip)?)).await?.ok();
                    return Ok(Pushed::Done(done));
                }
                Err(Rejected::NonFastForward(words)) => {
                    last = words;
                    time::sleep(backoff.next(fastrand::f64())).await;
                }
                // The server may not know our last commit any more: retry on top of the current tip.
                Err(Rejected::Refused(_)) if force && seen.base != seen.tip => force = false,
                Err(Rejected::Refused(words)) => return Ok(Pushed::Refused(words)),
            }
        }
        let why = format!("push to {}: others keep pushing, {ATTEMPTS} times in a row: {last}", self.place);
        Err(SinkError::new(SinkReason::Busy, why))
    }

    /// The last commit that we pushed, if the mirror still has it.
    async fn own(&self, mirror: &Arc<Mirror>) -> Result<Option<Oid>, SinkError> {
        let own = blocking(mirror, |mirror| {
            let repository = mirror.repository()?;
            Ok(mirror.own()?.filter(|own| repository.find_commit(*own).is_ok()))
        });
        own.await?.map_err(|failure| self.unusable(failure))
    }

    /// The state of the remote; fetches its commit into the mirror.
    async fn look(&self, mirror: &Arc<Mirror>) -> Result<Seen, SinkError> {
        let seen = self.see(self.remote.refs().await?);
        let Some(base) = seen.base else { return Ok(seen) };
        let mut rebuilt = false;
        let mut fetched = false;
        loop {
            let has = blocking(mirror, move |mirror| {
                let repository = mirror.repository()?;
                let has = repository.find_commit(base).and_then(|commit| commit.tree().map(drop)).is_ok();
                if has {
                    mirror.saw(base)?;
                }
                Ok((has, mirror.known()?))
            });
            let failure = match has.await? {
                Ok((true, _)) => return Ok(seen),
                Ok((false, _)) if fetched => {
                    Some(git2::Error::from_str("what was fetched is not there").into())
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

    fn see(&self, refs: Advertised) -> Seen {
        let tip = refs.refs.get(&self.reference).copied();
        let main = refs.head.as_ref().and_then(|head| refs.refs.get(head)).copied();
        Seen { tip, base: tip.or(main), refs }
    }

    /// Returns an error if the branch does not exist and may not be created.
    pub(super) fn exists(&self, seen: &Seen) -> Result<(), SinkError> {
        if seen.tip.is_some() || self.key.create {
            return Ok(());
        }
        let why = format!(
            "open {}: there is no such branch, and provisioning.mode existing does not make one",
            self.place
        );
        Err(SinkError::new(SinkReason::Missing, why))
    }

    pub(super) async fn fetch(
        &self,
        mirror: &Arc<Mirror>,
        want: Oid,
        have: &[Oid],
        depth: u32,
    ) -> Result<Result<(), Failure>, SinkError> {
        let shallow = mirror.shallow();
        let now = self.remote.fetch(want, have, Some(depth), &shallow, mirror.incoming()?).await?;
        blocking(mirror, move |mirror| Ok(mirror.accept(&now)?)).await
    }

    pub(super) async fn mirror(&self) -> Result<Arc<Mirror>, SinkError> {
        let started = time::Instant::now();
        loop {
            let (root, place) = (self.mirrors.clone(), self.place.clone());
            let opened = tokio::task::spawn_blocking(move || Mirror::open(&root, &place)).await;
            match opened.map_err(interrupted)?? {
                Some(mirror) => return Ok(Arc::new(mirror)),
                None if started.elapsed() > MIRROR_LIMIT => {
                    let why = format!("use the mirror of {}: another process holds it", self.place);
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
        failure: Failure,
        rebuilt: &mut bool,
    ) -> Result<(), SinkError> {
        if *rebuilt || matches!(failure, Failure::Sink(_)) {
            return Err(self.unusable(failure));
        }
        *rebuilt = true;
        blocking(mirror, |mirror| Ok(mirror.rebuild()?)).await?.map_err(|failure| self.unusable(failure))
    }

    pub(super) fn unusable(&self, failure: Failure) -> SinkError {
        match failure {
            Failure::Sink(error) => error,
            Failure::Mirror(error) => SinkError::because(
                SinkReason::WriteFailed,
                format!("use the mirror of {}", self.place),
                error,
            ),
        }
    }
}

/// Runs `work` on the mirror on a thread that may block. The mirror stays locked until it is done, also if the
/// caller is dropped.
pub(super) async fn blocking<T: Send + 'static>(
    mirror: &Arc<Mirror>,
    work: impl FnOnce(&Mirror) -> Result<T, Failure> + Send + 'static,
) -> Result<Result<T, Failure>, SinkError> {
    let mirror = mirror.clone();
    tokio::task::spawn_blocking(move || work(&mirror)).await.map_err(interrupted)
}

fn interrupted(error: tokio::task::JoinError) -> SinkError {
    SinkError::because(SinkReason::WriteFailed, "use a mirror", error)
}

fn answer_all(waiting: Vec<Waiting>, error: &SinkError) {
    for one in waiting {
        one.answer.send(Err(again(error))).ok();
    }
}

/// A copy of an error, for another caller that waited for the same push.
fn again(error: &SinkError) -> SinkError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    SinkError::new(error.reason, text)
}
