//! Runs the tasks of all processes and servers of a schedule in one thread, in an order that the seed decides.
//!
//! Tasks that are ready at the same time form a round, and each round is polled in random order. So nothing depends on
//! the order in which the runtime wakes tasks, which differs from run to run. All tasks of a process can be paused or
//! dropped at once.

use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Wake, Waker},
};

use fastrand::Rng;
use futures::future::{self, BoxFuture, LocalBoxFuture};
use kollect_engine::tasks::TaskHost;
use tokio::{sync::oneshot, task};

/// Number of a process.
pub(super) type ProcessId = usize;
/// The process of all servers and of the schedule itself: it is never paused and never ends.
pub(super) const SERVER_PROCESS: ProcessId = 0;

/// All tasks of a schedule. Cheap to clone.
#[derive(Clone)]
pub(super) struct Executor(Arc<Mutex<ExecutorState>>);

type ExecutorTask = Pin<Box<task::coop::Unconstrained<LocalBoxFuture<'static, ()>>>>;

thread_local! {
    /// The tasks of the schedule that this thread runs; `None`: ended, or being polled. They are not a part of the
    /// state, which wakers share between threads.
    static TASKS: RefCell<Vec<Option<ExecutorTask>>> = const { RefCell::new(Vec::new()) };
}

fn take_task(number: usize) -> Option<ExecutorTask> {
    TASKS.with_borrow_mut(|tasks| tasks.get_mut(number)?.take())
}

struct ExecutorState {
    random: Rng,
    slots: Vec<Option<TaskSlot>>,
    /// Tasks to poll in the next round.
    ready: Vec<usize>,
    /// Wakes the runtime when a task becomes ready.
    runtime: Option<Waker>,
    processes: Vec<ProcessTasks>,
    /// Tasks that are to be dropped before anything else is polled.
    ended: Vec<usize>,
}

struct TaskSlot {
    process: ProcessId,
    waker: Waker,
    is_ready: bool,
}

#[derive(Default)]
struct ProcessTasks {
    paused: bool,
    ended: bool,
    /// Tasks that became ready while the process was paused.
    waiting: Vec<usize>,
}

struct TaskWaker {
    executor: Executor,
    number: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let runtime = self.executor.lock().make_ready(self.number);
        runtime.into_iter().for_each(Waker::wake);
    }
}

impl ExecutorState {
    /// Marks a task as ready. Returns the waker of the runtime, if it must be woken.
    fn make_ready(&mut self, number: usize) -> Option<Waker> {
        let slot = self.slots.get_mut(number)?.as_mut()?;
        if mem::replace(&mut slot.is_ready, true) {
            return None;
        }
        self.ready.push(number);
        self.runtime.take()
    }

    /// The tasks of the next round, in random order.
    fn next_round(&mut self) -> Vec<usize> {
        let mut round = mem::take(&mut self.ready);
        // Tasks are woken in an order that differs from run to run.
        round.sort_unstable();
        round.retain(|&number| {
            let Some(slot) = self.slots.get(number).and_then(Option::as_ref) else { return false };
            let process = &mut self.processes[slot.process];
            if process.paused {
                process.waiting.push(number);
            }
            !process.paused
        });
        self.random.shuffle(&mut round);
        round
    }

    /// A task is polled now.
    fn begin_poll(&mut self, number: usize) -> Option<Waker> {
        let slot = self.slots.get_mut(number)?.as_mut()?;
        slot.is_ready = false;
        Some(slot.waker.clone())
    }

    fn remove(&mut self, number: usize) {
        if let Some(slot) = self.slots.get_mut(number) {
            *slot = None;
        }
    }
}

impl Executor {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(ExecutorState {
            random: Rng::with_seed(seed),
            slots: Vec::new(),
            ready: Vec::new(),
            runtime: None,
            processes: vec![ProcessTasks::default()],
            ended: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, ExecutorState> {
        self.0.lock().unwrap()
    }

    /// Runs `work` to its end, and all other tasks meanwhile. All of them are dropped afterwards.
    pub(super) fn run<T: 'static>(
        &self,
        runtime: &tokio::runtime::Runtime,
        work: impl Future<Output = T> + 'static,
    ) -> T {
        let (sender, mut result) = oneshot::channel();
        self.spawn(SERVER_PROCESS, Box::pin(async move { drop(sender.send(work.await)) }));
        let result = runtime.block_on(future::poll_fn(|context| {
            self.run_round(context);
            match result.try_recv() {
                Ok(result) => Poll::Ready(result),
                Err(_) => Poll::Pending,
            }
        }));
        // A task may own others, and wakes some when it is dropped.
        while let Some(task) = TASKS.with_borrow_mut(Vec::pop) {
            drop(task);
        }
        result
    }

    fn run_round(&self, context: &Context<'_>) {
        let round = self.lock().next_round();
        if round.is_empty() {
            self.lock().runtime = Some(context.waker().clone());
            return;
        }
        for number in round {
            let Some(waker) = self.lock().begin_poll(number) else { continue };
            let Some(mut task) = take_task(number) else { continue };
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.lock().remove(number);
            } else if self.lock().slots[number].is_some() {
                TASKS.with_borrow_mut(|tasks| tasks[number] = Some(task));
            }
            self.drop_ended();
        }
        // The runtime has tasks of its own, which drop aborted ones.
        context.waker().wake_by_ref();
    }

    /// Drops the tasks that have ended, without a lock: tasks may own others.
    fn drop_ended(&self) {
        while let Some(number) = { self.lock().ended.pop() } {
            drop(take_task(number));
        }
    }

    fn spawn(&self, process: ProcessId, task: LocalBoxFuture<'static, ()>) -> Option<usize> {
        let mut state = self.lock();
        if state.processes[process].ended {
            return None;
        }
        let number = state.slots.len();
        let waker = Waker::from(Arc::new(TaskWaker { executor: self.clone(), number }));
        let task = Some(Box::pin(task::coop::unconstrained(task)));
        TASKS.with_borrow_mut(|tasks| tasks.push(task));
        state.slots.push(Some(TaskSlot { process, waker, is_ready: false }));
        let runtime = state.make_ready(number);
        drop(state);
        runtime.into_iter().for_each(Waker::wake);
        Some(number)
    }

    /// Starts work of a server, which continues when its clients end.
    pub(super) fn serve(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(SERVER_PROCESS, Box::pin(work));
    }

    /// Makes a process, which does not run yet.
    pub(super) fn add_process(&self) -> ProcessId {
        let mut state = self.lock();
        state.processes.push(ProcessTasks { ended: true, ..ProcessTasks::default() });
        state.processes.len() - 1
    }

    /// Starts a process that does not run. When its work is done all its tasks end.
    pub(super) fn start(&self, process: ProcessId, work: impl Future<Output = ()> + 'static) {
        self.lock().processes[process] = ProcessTasks::default();
        let executor = self.clone();
        let work = async move {
            work.await;
            executor.crash(process);
        };
        self.spawn(process, Box::pin(work));
    }

    /// What runs the tasks of a process.
    pub(super) fn host(&self, process: ProcessId) -> Arc<dyn TaskHost> {
        Arc::new(ProcessHost { executor: self.clone(), process })
    }

    /// Whether a process has neither crashed nor returned.
    pub(super) fn is_running(&self, process: ProcessId) -> bool {
        !self.lock().processes[process].ended
    }

    /// Ends a process and all its tasks at once.
    pub(super) fn crash(&self, process: ProcessId) {
        let mut state = self.lock();
        let ExecutorState { processes, slots, ended, .. } = &mut *state;
        processes[process].ended = true;
        for (number, slot) in slots.iter_mut().enumerate() {
            if slot.take_if(|slot| slot.process == process).is_some() {
                ended.push(number);
            }
        }
    }

    /// From now on no task of a process is polled.
    pub(super) fn pause(&self, process: ProcessId) {
        self.lock().processes[process].paused = true;
    }

    /// The tasks of a paused process continue.
    pub(super) fn resume(&self, process: ProcessId) {
        let mut state = self.lock();
        let ExecutorState { processes, ready, runtime, .. } = &mut *state;
        let process = &mut processes[process];
        process.paused = false;
        ready.append(&mut process.waiting);
        let runtime = runtime.take();
        drop(state);
        runtime.into_iter().for_each(Waker::wake);
    }
}

/// Runs the tasks of one process.
struct ProcessHost {
    executor: Executor,
    process: ProcessId,
}

impl TaskHost for ProcessHost {
    fn run(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let (end_sender, end_receiver) = oneshot::channel::<()>();
        let work = Box::pin(async move {
            task.await;
            drop(end_sender);
        });
        let number = self.executor.spawn(self.process, work);
        let running = RunningTask { executor: self.executor.clone(), number };
        Box::pin(async move {
            let _running = running;
            end_receiver.await.ok();
        })
    }
}

/// Dropping it ends the task.
struct RunningTask {
    executor: Executor,
    number: Option<usize>,
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.executor.lock().remove(number);
            drop(take_task(number));
        }
    }
}
