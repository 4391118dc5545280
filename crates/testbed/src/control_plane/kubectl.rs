//! The control plane through kubectl, as its administrator.
//!
//! Called by tests and the demo. kubectl runs with an empty environment except for a home inside the
//! scratch directory: it neither reads nor writes the configuration and the caches of the user.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use super::ControlPlane;
use crate::{Error, command};

/// Runs kubectl for one control plane.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    pub(super) program: PathBuf,
    /// For caches.
    pub(super) home: PathBuf,
    pub(super) kubeconfig: PathBuf,
}

impl Kubectl {
    /// A command that acts as the administrator.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// What kubectl wrote to standard output.
    pub(crate) fn run(&self, args: &[&str]) -> Result<String, Error> {
        self.run_with(args, Stdio::null())
    }

    fn run_with(&self, args: &[&str], input: Stdio) -> Result<String, Error> {
        command::run(&mut self.command(args), input, &format!("kubectl {}", args.join(" ")))
    }

    /// Runs kubectl with `input` as its standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Result<String, Error> {
        self.run_with(args, command::input(input)?)
    }
}

impl ControlPlane {
    /// Runs kubectl and returns what it wrote to standard output. Pass `--kubeconfig` to act as a
    /// user other than the administrator.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, Error> {
        self.kubectl.run(args)
    }

    /// Runs kubectl with `input` as its standard input.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, Error> {
        self.kubectl.run_with_input(args, input)
    }

    /// Creates or updates the objects of a manifest, YAML or JSON.
    pub fn apply(&self, manifest: &str) -> Result<String, Error> {
        self.kubectl_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], manifest)
    }

    /// `kubectl wait` for at most 30 seconds, such as `["--for=delete", "namespace/x"]`.
    pub fn wait(&self, args: &[&str]) -> Result<String, Error> {
        self.kubectl(&[&["wait", "--timeout=30s"], args].concat())
    }

    /// Creates a namespace whose name starts with `prefix` and was never used before.
    pub fn namespace(&self, prefix: &str) -> Result<String, Error> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{number}");
        self.kubectl(&["create", "namespace", &name])?;
        Ok(name)
    }
}
