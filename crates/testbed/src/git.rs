//! Real Git servers: bare repositories behind a web server, and behind an SSH server.
//!
//! Called by the tests of the Git sink, the demo and benches. Both servers run as the user that runs the tests, on
//! loopback only, from programs that the machine has installed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Error, Scratch, command};

mod http;
mod ssh;

pub use http::GitHttp;
pub use ssh::{ClientKey, GitSsh};

/// A bare repository on this machine's disk, which a server serves.
#[derive(Debug, Clone)]
pub struct Repository {
    path: PathBuf,
}

impl Repository {
    /// Creates an empty repository whose first branch is `main`. Every client that a server accepts may push.
    pub fn at(path: PathBuf) -> Result<Self, Error> {
        let arguments = ["init", "--quiet", "--bare", "--initial-branch=main", "--template="];
        run(git().args(arguments).arg(&path))?;
        let repository = Self { path };
        repository.git(&["config", "http.receivepack", "true"])?;
        Ok(repository)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the real `git` in the repository, such as `log --format=%s main`, and returns what it prints.
    pub fn git(&self, arguments: &[&str]) -> Result<String, Error> {
        run(git().arg("--git-dir").arg(&self.path).args(arguments))
    }

    /// Commits one file on `main`, as another user does.
    pub fn commit_file(&self, path: &str, content: &str) -> Result<(), Error> {
        let scratch = Scratch::new()?;
        let work = scratch.path().join("work");
        run(git().args(["clone", "--quiet"]).arg(&self.path).arg(&work))?;
        let file = work.join(path);
        let action = || format!("write {}", file.display());
        fs::create_dir_all(file.parent().unwrap_or(&work)).map_err(Error::io(action()))?;
        fs::write(&file, content).map_err(Error::io(action()))?;
        run_in(&work, &["add", "--all"])?;
        let author = ["-c", "user.name=kollect", "-c", "user.email=kollect@kollect.dev"];
        run_in(&work, &[&author[..], &["commit", "--quiet", "--message", "export"]].concat())?;
        run_in(&work, &["push", "--quiet", "origin", "HEAD:main"]).map(drop)
    }

    /// Checks every object, as strictly as Git can.
    pub fn fsck(&self) -> Result<(), Error> {
        self.git(&["fsck", "--strict", "--full"]).map(drop)
    }

    /// Installs a hook such as `pre-receive`: a shell script.
    pub fn hook(&self, name: &str, script: &str) -> Result<(), Error> {
        let hooks = self.path.join("hooks");
        let file = hooks.join(name);
        let action = || format!("write {}", file.display());
        fs::create_dir_all(&hooks).map_err(Error::io(action()))?;
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).map_err(Error::io(action()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(Error::io(action()))
    }
}

/// Makes `git` ignore the configuration of the machine and of the user.
const ENVIRONMENT: &[(&str, &str)] =
    &[("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("LC_ALL", "C")];

/// Runs the real `git` in a directory.
pub(crate) fn run_in(directory: &Path, arguments: &[&str]) -> Result<String, Error> {
    run(git().current_dir(directory).args(arguments))
}

fn git() -> Command {
    let mut command = Command::new("git");
    command.envs(ENVIRONMENT.iter().copied());
    command
}

fn run(command: &mut Command) -> Result<String, Error> {
    let shown = format!("{command:?}");
    command::run(command, Stdio::null(), &shown)
}

/// A directory below `scratch` for repositories.
fn create_repositories(scratch: &Scratch) -> Result<PathBuf, Error> {
    let path = scratch.path().join("repositories");
    fs::create_dir(&path).map_err(Error::io(format!("create {}", path.display())))?;
    Ok(path)
}

/// Finds a program. Server programs may be in directories that the `PATH` of users lacks.
fn program(program: &'static str, package: &'static str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or(Error::ProgramMissing { program, package })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let error = program("kollect-no-such-server", "nginx-light").unwrap_err().to_string();
        assert_eq!(error, "kollect-no-such-server is missing: apt-get install nginx-light");
    }

    #[test]
    fn a_failure_of_git_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::at(directory.path().join("x.git")).unwrap();
        repository.fsck().unwrap();
        let error = repository.git(&["log", "main"]).unwrap_err().to_string();
        assert!(error.contains("main"), "{error}");
    }
}
