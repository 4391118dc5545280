//! `kollect operator` as a process of its own.

use std::{
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::process::{KollectProcess, Memory};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A running operator; dropping it kills it.
pub(crate) struct OperatorProcess {
    process: KollectProcess,
    pub(crate) began: Instant,
}

impl OperatorProcess {
    pub(crate) fn start(kubeconfig: &Path) -> Result<Self> {
        Self::start_with(kubeconfig, &[], &[])
    }

    /// Starts it as the container of a Pod, which competes for a lease.
    pub(crate) fn start_in_pod(kubeconfig: &Path, uid: &str) -> Result<Self> {
        let elect = ["--leader-elect", "--leader-election-namespace=default"];
        Self::start_with(kubeconfig, &elect, &[("POD_NAME", "kollect"), ("POD_UID", uid)])
    }

    fn start_with(kubeconfig: &Path, more: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let flags = [
            "--allow-sink-cidrs=127.0.0.0/8,::1/128",
            "--health-probe-bind-address=127.0.0.1:0",
            "--metrics-bind-address=127.0.0.1:0",
            "--metrics-secure=false",
            "--validating-webhooks-enabled=false",
        ];
        let mut arguments = vec!["operator".as_ref(), "--kubeconfig".as_ref(), kubeconfig];
        arguments.extend(flags.iter().chain(more).map(Path::new));
        let began = Instant::now();
        Ok(Self { process: KollectProcess::spawn_with(&arguments, variables)?, began })
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        self.process.memory()
    }

    /// CPU time until now.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// CPU time during a wait, in percent of a core.
    pub(crate) fn cpu_percent(&self, time: Duration) -> Result<f64> {
        let before = self.cpu()?;
        sleep(time);
        Ok(self.cpu()?.saturating_sub(before).as_secs_f64() / time.as_secs_f64() * 100.0)
    }

    /// Sends SIGTERM, and waits for the end.
    pub(crate) fn stop(self) -> Result<()> {
        let id = self.process.id().to_string();
        ensure!(Command::new("kill").args(["-TERM", &id]).status()?.success(), "kill {id}");
        let signalled = Instant::now();
        // A process that has ended has no memory.
        while self.process.memory().is_ok() {
            ensure!(signalled.elapsed() < TIMEOUT, "the operator does not end");
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
