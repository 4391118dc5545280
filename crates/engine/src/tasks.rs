//! The tasks of the program. Each is started through [`Tasks`], has a name and a tracing span, and no panic in it
//! goes unnoticed.
//!
//! | | when its work panics | when its work returns |
//! |---|---|---|
//! | [`Tasks::restarted`] | counted, reported, started again with backoff | the task is done |
//! | [`Tasks::core`] | the program stops with an error that names it | the same |
//!
//! Dropping the handle of a task aborts it.

mod name;

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use kollect_model::backoff::Backoff;
pub use name::{TaskKind, TaskName};
use tokio::{
    sync::{oneshot, watch},
    task::JoinError,
    time::{self, Instant},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, error};

/// A running task; dropping it aborts the task.
pub type Task<T = ()> = AbortOnDropHandle<T>;

/// All tasks of the program. Cheap to clone; clones are the same set.
#[derive(Clone, Default)]
pub struct Tasks(Arc<TaskSet>);

#[derive(Default)]
struct TaskSet {
    /// By a number that is never reused.
    running: Mutex<BTreeMap<u64, TaskName>>,
    started: AtomicU64,
    restarts: Mutex<BTreeMap<TaskKind, u64>>,
    /// The first core task that ended.
    core_ended: watch::Sender<Option<CoreTaskEnded>>,
    /// The program is stopping: core tasks may end.
    stopping: AtomicBool,
    /// `Some` only in the simulator.
    host: Option<Arc<dyn TaskHost>>,
}

/// Runs the tasks of a set instead of the runtime. The simulator runs the tasks of several processes in one thread,
/// in an order that its seed decides, and stops, pauses or ends all tasks of a process at once.
pub trait TaskHost: Send + Sync {
    /// Takes a task over. It runs until it returns, or until the future that is returned here is dropped; that
    /// future is done when the task is.
    fn run(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

/// A task that the program cannot work without has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreTaskEnded {
    /// It returned.
    #[error("the task \"{0}\" has ended, and the program cannot go on without it; this is a bug")]
    Returned(TaskName),
    /// It panicked.
    #[error("the task \"{task}\" panicked: {message}; this is a bug")]
    Panicked {
        /// Which task.
        task: TaskName,
        /// The panic message.
        message: String,
    },
}

/// Tasks that had not ended in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTasks(pub Vec<TaskName>);

impl fmt::Display for StuckTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tasks").field(&*lock(&self.0.running)).finish()
    }
}

impl Tasks {
    /// A set whose tasks run in `host` instead of the runtime.
    pub fn hosted_by(host: Arc<dyn TaskHost>) -> Self {
        Self(Arc::new(TaskSet { host: Some(host), ..TaskSet::default() }))
    }

    /// Starts a task that is started again whenever its work panics. `work` makes the work; `panicked` is called
    /// after each panic with the backoff pause, and returns what to wait for before the next start.
    pub fn restarted<W, P>(
        &self,
        name: TaskName,
        mut work: impl FnMut() -> W + Send + 'static,
        mut panicked: impl FnMut(Duration) -> P + Send + 'static,
    ) -> Task
    where
        W: Future<Output = ()> + Send,
        P: Future<Output = ()> + Send,
    {
        let (tasks, kind) = (self.clone(), name.task);
        self.spawn(name, async move {
            let mut backoff = Backoff::default();
            loop {
                let began = Instant::now();
                let Err(message) = caught(async { work().await }).await else { return };
                if began.elapsed() > backoff.longest() {
                    backoff.reset();
                }
                let pause = backoff.next(fastrand::f64());
                *lock(&tasks.0.restarts).entry(kind).or_default() += 1;
                error!(
                    panic = message,
                    pause_seconds = pause.as_secs_f64(),
                    "task panicked; it is restarted"
                );
                panicked(pause).await;
            }
        })
    }

    /// Starts a task that the program cannot work without: when it ends, [`Tasks::core_task_ended`] returns, unless
    /// the program is stopping. The task returns `None` if its work panicked.
    pub fn core<T: Send + 'static>(
        &self,
        name: TaskName,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Task<Option<T>> {
        let (tasks, own) = (self.clone(), name.clone());
        self.spawn(name, async move {
            let ended = caught(work).await;
            tasks.end_core(own, ended.as_ref().err().cloned());
            ended.ok()
        })
    }

    /// Runs the work of a core task within the task of the caller. Returns when it ends.
    pub async fn run_core<T>(&self, name: TaskName, work: impl Future<Output = T>) -> CoreTaskEnded {
        let _running = self.register(name.clone());
        let span = name.span();
        let ended = caught(work.instrument(span)).await;
        self.end_core(name.clone(), ended.as_ref().err().cloned());
        end(name, ended.err())
    }

    /// Runs blocking work outside of the async tasks, and returns its result. A host runs it at once.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        match &self.0.host {
            None => tokio::task::spawn_blocking(work).await,
            Some(_) => Ok(work()),
        }
    }

    /// Returns when a core task has ended although the program is not stopping.
    pub async fn core_task_ended(&self) -> CoreTaskEnded {
        let mut ended = self.0.core_ended.subscribe();
        loop {
            let first = ended.borrow_and_update().clone();
            if let Some(first) = first {
                return first;
            }
            // The sender lives as long as this set.
            ended.changed().await.ok();
        }
    }

    /// The program stops: core tasks may end now.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Relaxed);
    }

    /// Waits for `work`, for as long as `limit`. If it takes longer it is dropped, and the tasks of the given
    /// kinds that were still running are returned.
    pub async fn within<T>(
        &self,
        limit: Duration,
        waited_for: &[TaskKind],
        work: impl Future<Output = T>,
    ) -> Result<T, StuckTasks> {
        let mut work = pin!(work);
        // Dropping the work may abort tasks, so their names are read before.
        time::timeout(limit, &mut work).await.map_err(|_| self.running(waited_for))
    }

    /// The tasks of the given kinds that are running.
    pub fn running(&self, kinds: &[TaskKind]) -> StuckTasks {
        let running = lock(&self.0.running);
        StuckTasks(running.values().filter(|name| kinds.contains(&name.task)).cloned().collect())
    }

    /// Number of restarts after a panic, for every kind of task that is restarted.
    pub fn restarts(&self) -> impl Iterator<Item = (TaskKind, u64)> {
        let counted = lock(&self.0.restarts).clone();
        TaskKind::RESTARTED.into_iter().map(move |kind| (kind, counted.get(&kind).copied().unwrap_or(0)))
    }

    fn end_core(&self, name: TaskName, panic: Option<String>) {
        if let Some(message) = &panic {
            error!(panic = message, "core task panicked");
        }
        if !self.0.stopping.load(Ordering::Relaxed) {
            self.0.core_ended.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(|| end(name, panic));
                is_first
            });
        }
    }

    fn register(&self, name: TaskName) -> RegisteredTask {
        let number = self.0.started.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.running).insert(number, name);
        RegisteredTask { shared: self.0.clone(), number }
    }

    fn spawn<T: Send + 'static>(
        &self,
        name: TaskName,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let span = name.span();
        let registered = self.register(name);
        let work = async move {
            let _registered = registered;
            work.await
        };
        let work = work.instrument(span);
        #[expect(clippy::disallowed_methods, reason = "this is where named tasks are started")]
        AbortOnDropHandle::new(match &self.0.host {
            None => tokio::spawn(work),
            Some(host) => tokio::spawn(run_hosted(&**host, work)),
        })
    }
}

/// Aborts tasks, and returns when all have ended: until then they may still be running.
pub async fn abort<'a, T: 'a>(tasks: impl IntoIterator<Item = &'a mut Task<T>>) {
    let ended: Vec<_> = tasks.into_iter().inspect(|task| task.abort()).collect();
    join_all(ended).await;
}

/// Runs work in a host; the future that is returned only waits for it.
fn run_hosted<T: Send + 'static>(
    host: &dyn TaskHost,
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + 'static {
    let (sender, result) = oneshot::channel();
    let task = host.run(Box::pin(async move { drop(sender.send(work.await)) }));
    async move {
        task.await;
        match result.await {
            Ok(result) => result,
            // The host has ended the task before its work was done.
            Err(_) => std::future::pending().await,
        }
    }
}

/// The entry of a running task in its set.
struct RegisteredTask {
    shared: Arc<TaskSet>,
    number: u64,
}

impl Drop for RegisteredTask {
    fn drop(&mut self) {
        lock(&self.shared.running).remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(task: TaskName, panic: Option<String>) -> CoreTaskEnded {
    match panic {
        None => CoreTaskEnded::Returned(task),
        Some(message) => CoreTaskEnded::Panicked { task, message },
    }
}

/// Runs work to its end. The error is the panic message.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|payload| text_of(&*payload))
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests;
