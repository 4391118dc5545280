//! Helm, with directories of its own: it neither reads nor writes the configuration and the caches of the user.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{ControlPlane, Error, Scratch, command, programs};

/// Runs helm.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: Scratch,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Without a cluster: for charts that are only rendered.
    pub fn offline() -> Result<Self, Error> {
        Self::with_kubeconfig(Path::new("/nonexistent"))
    }

    /// Acts as the administrator of a control plane, unless `--kube-as-user` is given.
    pub fn of(plane: &ControlPlane) -> Result<Self, Error> {
        Self::with_kubeconfig(plane.kubeconfig())
    }

    fn with_kubeconfig(kubeconfig: &Path) -> Result<Self, Error> {
        Ok(Self { program: programs::helm()?, home: Scratch::new()?, kubeconfig: kubeconfig.to_owned() })
    }

    /// What helm wrote to standard output.
    pub fn run(&self, args: &[&str]) -> Result<String, Error> {
        let mut helm = Command::new(&self.program);
        helm.args(args).env_clear().env("HOME", self.home.path()).env("KUBECONFIG", &self.kubeconfig);
        command::run(&mut helm, Stdio::null(), &format!("helm {}", args.join(" ")))
    }
}
