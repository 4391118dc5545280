//! The control plane through kubectl, as its administrator.
//!
//! Called by tests and the demo. kubectl runs with an empty environment except for a home inside the
//! scratch directory: it neither reads nor writes the configuration and the caches of the user.

use std::io::{Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use super::ControlPlane;
use crate::Error;

impl ControlPlane {
    /// Runs kubectl and returns what it wrote to standard output. Pass `--kubeconfig` to act as a
    /// user other than the administrator.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, Error> {
        self.run_kubectl(args, Stdio::null())
    }

    /// Runs kubectl with `input` as its standard input.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, Error> {
        // A file and not a pipe: kubectl writes while it still reads, so with a large input both sides
        // could block.
        let file = tempfile::tempfile().and_then(|mut file| {
            file.write_all(input.as_bytes())?;
            file.rewind()?;
            Ok(file)
        });
        let file = file.map_err(Error::io("hand kubectl its input"))?;
        self.run_kubectl(args, Stdio::from(file))
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

    fn run_kubectl(&self, args: &[&str], input: Stdio) -> Result<String, Error> {
        let output = Command::new(&self.programs.kubectl)
            .args(args)
            .env_clear()
            .env("HOME", self.scratch.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(input)
            .output()
            .map_err(Error::io(format!("run {}", self.programs.kubectl.display())))?;
        if !output.status.success() {
            return Err(Error::Command {
                command: format!("kubectl {}", args.join(" ")),
                stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
