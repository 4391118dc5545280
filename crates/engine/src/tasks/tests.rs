//! Tasks that panic, end and hang, with paused time.

use kollect_model::binding::{BindingName, InventoryName};
use tokio::sync::mpsc;

use super::*;

fn binding(sink: &str) -> TaskName {
    let inventory = InventoryName { namespace: Some("shop".into()), name: "web".into() };
    TaskName::of_binding(TaskKind::Binding, &BindingName { inventory, sink: sink.into() })
}

fn restarts(tasks: &Tasks, kind: TaskKind) -> u64 {
    tasks.restarts().find(|(counted, _)| *counted == kind).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_counted_reported_and_restarted_with_growing_pauses() {
    let tasks = Tasks::default();
    let (starts, mut started) = mpsc::unbounded_channel();
    let (pauses, mut reported) = mpsc::unbounded_channel();
    let mut left = 4;
    let task = tasks.restarted(
        binding("database/portal"),
        move || {
            starts.send(Instant::now()).unwrap();
            left -= 1;
            async move { assert_eq!(left, 0, "it panics until nothing is left") }
        },
        move |pause| {
            pauses.send(pause).unwrap();
            time::sleep(pause)
        },
    );
    task.await.unwrap();
    let mut times = Vec::new();
    while let Ok(time) = started.try_recv() {
        times.push(time);
    }
    assert_eq!(times.len(), 4);
    let mut longest = Duration::from_secs(1);
    for pair in times.windows(2) {
        let pause = reported.try_recv().unwrap();
        assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        assert!(pair[1] - pair[0] >= pause, "it waited");
        longest *= 2;
    }
    assert_eq!(restarts(&tasks, TaskKind::Binding), 3);
    assert_eq!(
        restarts(&tasks, TaskKind::Watch),
        0,
        "counted before the first panic, so that it is an increase"
    );
    assert!(tasks.running(&[TaskKind::Binding]).0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pauses_are_short_again_after_a_long_time_without_a_panic() {
    let tasks = Tasks::default();
    let (pauses, mut reported) = mpsc::unbounded_channel();
    let _task = tasks.restarted(
        binding("database/portal"),
        || async {
            time::sleep(Duration::from_hours(1)).await;
            unreachable!("now and then")
        },
        move |pause| {
            pauses.send(pause).unwrap();
            time::sleep(pause)
        },
    );
    for _ in 0..5 {
        assert!(reported.recv().await.unwrap() <= Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_core_task_that_ends_is_named() {
    let tasks = Tasks::default();
    let lease = tasks.core(TaskKind::Lease.into(), async { 7 });
    let ended = tasks.core_task_ended().await;
    assert_eq!(ended, CoreTaskEnded::Returned(TaskKind::Lease.into()));
    assert!(ended.to_string().starts_with("the task \"lease\" has ended"), "{ended}");
    assert_eq!(lease.await.unwrap(), Some(7));

    let tasks = Tasks::default();
    let name = TaskName::of_object(TaskKind::Objects, "KollectTarget");
    let objects = tasks.core(name, async { unreachable!("a bug") });
    let ended = tasks.core_task_ended().await.to_string();
    assert!(ended.starts_with("the task \"objects KollectTarget\" panicked: "), "{ended}");
    assert!(ended.contains("a bug"), "{ended}");
    assert_eq!(objects.await.unwrap(), None::<()>);
}

#[tokio::test(start_paused = true)]
async fn a_core_task_that_runs_within_its_caller_is_named_too() {
    let tasks = Tasks::default();
    let ended = tasks.run_core(TaskKind::Loop.into(), async { unreachable!("a bug") as () }).await;
    assert!(ended.to_string().starts_with("the task \"loop\" panicked: "), "{ended}");
    assert_eq!(tasks.core_task_ended().await, ended);
}

#[tokio::test(start_paused = true)]
async fn core_tasks_may_end_when_the_program_stops_or_their_handles_are_dropped() {
    let tasks = Tasks::default();
    drop(tasks.core(TaskKind::Discovery.into(), std::future::pending::<()>()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tasks.core(TaskName::of_object(TaskKind::Server, "metrics"), stopped);
    tasks.stop();
    drop(stop);
    server.await.unwrap();
    assert!(time::timeout(Duration::from_hours(1), tasks.core_task_ended()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_names_the_tasks_that_have_not_ended() {
    let tasks = Tasks::default();
    let pending = |name| tasks.restarted(binding(name), std::future::pending, time::sleep);
    let (stuck, other) = (pending("database/portal"), pending("database/copy"));
    let quick = tasks.restarted(binding("snapshot/git"), || time::sleep(Duration::from_secs(1)), time::sleep);
    let lease = tasks.core(TaskKind::Lease.into(), std::future::pending::<()>());
    let work = async {
        quick.await.unwrap();
        other.abort();
        stuck.await.unwrap();
    };
    let late = tasks.within(Duration::from_secs(10), &[TaskKind::Binding], work).await.unwrap_err();
    assert_eq!(late.to_string(), "binding shop/web database/portal");
    // The work is dropped, and its tasks with it.
    tokio::task::yield_now().await;
    assert_eq!(tasks.running(&[TaskKind::Binding]), StuckTasks(Vec::new()));
    assert_eq!(tasks.running(&[TaskKind::Lease]).0.len(), 1);
    drop(lease);
    assert_eq!(tasks.within(Duration::from_secs(10), &[TaskKind::Binding], async { 3 }).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_task_is_aborted() {
    let tasks = Tasks::default();
    drop(tasks.restarted(binding("database/portal"), std::future::pending, time::sleep));
    tokio::task::yield_now().await;
    assert!(tasks.running(&[TaskKind::Binding]).0.is_empty());
}
