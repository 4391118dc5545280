//! How the operator ends: on a signal, or because a core task has ended. Either way running writes may
//! finish until a deadline, the log names the tasks that are stuck then, and the lease is released.
//! A second signal cuts all of this short.

use std::time::Duration;

use anyhow::bail;
use futures::future::join_all;
use kollect_engine::tasks::{CoreTaskEnded, TaskKind, Tasks};
use tracing::{error, info, warn};

use super::{leader::LeaderHandle, serve::HttpServer};

/// Time limit for releasing the lease and stopping the servers, after the last write.
const LAST_STEPS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for requests that are being answered.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the loop until a signal asks the program to stop. The error names the core task that ended.
pub(crate) async fn until_stopped(
    tasks: &Tasks,
    reconcile: impl Future<Output = ()>,
    signal: impl Future<Output = ()>,
) -> Result<(), CoreTaskEnded> {
    let ended = tokio::select! {
        // `biased`: after a signal the loop stops. The first two branches complete once and do not starve it.
        biased;
        () = signal => Ok(()),
        ended = tasks.core_task_ended() => Err(ended),
        ended = tasks.run_core(TaskKind::Loop.into(), reconcile) => Err(ended),
    };
    tasks.stop();
    match &ended {
        Ok(()) => info!("stopping; running writes may finish"),
        Err(error) => error!(%error, "stopping; running writes may finish"),
    }
    ended
}

/// Lets `writes` finish within the grace period, and then takes the last steps. A second signal aborts.
pub(crate) async fn stop(
    tasks: &Tasks,
    grace: Duration,
    writes: impl Future<Output = ()>,
    last_steps: impl Future<Output = ()>,
    signal: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let orderly = async {
        if let Err(stuck) = tasks.within(grace, &[TaskKind::Binding], writes).await {
            warn!(tasks = %stuck, "stopped before all writes were done");
        }
        // No write is running any more, so another replica may lead.
        let kinds = [TaskKind::Lease, TaskKind::Server];
        if let Err(stuck) = tasks.within(LAST_STEPS_TIMEOUT, &kinds, last_steps).await {
            warn!(tasks = %stuck, "stopped before all tasks had ended");
        }
    };
    // The names are collected before the tasks are dropped.
    let aborted = async {
        signal.await;
        tasks.running(&[TaskKind::Binding, TaskKind::Lease, TaskKind::Server])
    };
    tokio::select! {
        // `biased`: a second signal after an orderly stop is not an error.
        biased;
        () = orderly => Ok(()),
        running = aborted => {
            bail!("stopped at once by a second signal; these tasks had not ended: {running}");
        }
    }
}

/// Releases the lease, and lets servers finish the requests that they are answering.
pub(crate) async fn release(leader: LeaderHandle, servers: Vec<HttpServer>) {
    leader.release().await;
    join_all(servers.into_iter().map(|server| server.shutdown(LAST_ANSWERS_TIMEOUT))).await;
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        io,
        sync::{Arc, Mutex},
    };

    use kollect_engine::tasks::TaskName;
    use kollect_model::{
        binding::{BindingName, InventoryName},
        crd::shapes::Gvk,
    };
    use serde_json::{Value, json};
    use tokio::time;
    use tracing::{Level, error_span};

    use super::*;

    fn binding() -> TaskName {
        let inventory = InventoryName { namespace: Some("shop".into()), name: "web".into() };
        TaskName::of_binding(TaskKind::Binding, &BindingName { inventory, sink: "database/portal".into() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_core_task_that_ends_stops_the_operator_with_an_error_that_names_it() {
        let tasks = Tasks::default();
        let _lease = tasks.core(TaskKind::Lease.into(), time::sleep(Duration::from_secs(3)));
        let error = until_stopped(&tasks, pending(), pending()).await.unwrap_err().to_string();
        assert!(error.contains("\"lease\" has ended"), "{error}");

        let tasks = Tasks::default();
        let error = until_stopped(&tasks, async { unreachable!("a bug") }, pending()).await.unwrap_err();
        assert!(error.to_string().contains("\"loop\" panicked"), "{error}");

        assert_eq!(until_stopped(&Tasks::default(), pending(), ready(())).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_stops_the_operator_at_once() {
        let tasks = Tasks::default();
        let name = binding();
        let stuck = tasks.restarted(name, pending, time::sleep);
        let began = time::Instant::now();
        let writes = async { stuck.await.unwrap() };
        let aborted = stop(&tasks, Duration::from_secs(10), writes, pending(), ready(())).await.unwrap_err();
        assert!(aborted.to_string().ends_with("binding shop/web database/portal"), "{aborted}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadlines_hold_even_if_everything_is_stuck() {
        let tasks = Tasks::default();
        let began = time::Instant::now();
        stop(&tasks, Duration::from_secs(10), pending(), pending(), pending()).await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(10) + LAST_STEPS_TIMEOUT);
    }

    /// Records what is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_line_that_a_task_logs_has_fields_that_name_it() {
        let (log, tasks) = (Log::default(), Tasks::default());
        let writer = log.clone();
        let logs =
            tracing_subscriber::fmt().json().with_writer(move || writer.clone()).with_max_level(Level::WARN);
        let _logs = tracing::subscriber::set_default(logs.finish());
        let name = binding();
        let started = error_span!("another task");
        started.in_scope(|| tasks.restarted(name, || async { warn!("slow") }, time::sleep)).await.unwrap();
        let kind = Gvk { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() };
        let name = TaskName::of_kind(TaskKind::Watch, &kind, Some(&"shop".into()));
        tasks.restarted(name, || async { warn!("slow") }, time::sleep).await.unwrap();
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let binding = json!({
            "name": "task", "task": "binding", "binding": "shop/web database/portal", "sink": "database/portal",
        });
        let watch = json!({
            "name": "task", "task": "watch", "kind": "apps/v1 Deployment", "namespace": "shop",
        });
        let spans: Vec<&Value> = lines.iter().map(|line| &line["spans"]).collect();
        assert_eq!(spans, [&json!([binding]), &json!([watch])], "and not the task that started it");
    }
}
