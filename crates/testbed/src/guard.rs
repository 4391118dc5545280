//! Processes and directories that cannot outlive this process.
//!
//! A destructor does not run at exit, on a signal or in a static, so each server has a guard: a
//! shell that holds the reading end of a pipe whose only writing end is ours. When we drop it, exit
//! or are killed, the guard reads end-of-file and stops the server. Each directory has one too, the
//! cleaner; every guard of a server in that directory holds the cleaner's pipe open, so the directory
//! is removed after the last server has ended. Guards have their own process groups: Ctrl-C in a
//! terminal reaches us and not them.
//!
//! Called by [`crate::ControlPlane`], [`crate::Postgres`], the Go build, and by any test or demo that
//! starts a process of its own. Invariant: no other process inherits the writing ends. The
//! standard library creates pipes close-on-exec.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Error;

/// `$1`: template for mktemp. The shell itself creates the directory, so that it is guarded from the
/// beginning, even if this process is killed at that moment. The second `rm` is for a directory that
/// an orphan of a killed server wrote to during the first.
const CLEANER_SCRIPT: &str = r#"
trap '' PIPE
directory=$(mktemp -d "$1") || exit 1
echo "$directory"
exec >/dev/null
read -r _
rm -rf "$directory" || { sleep 1; rm -rf "$directory"; }
"#;

/// `$1`: signal, `$2`: log file, `$3`: status file, `$4`: file for the process id, then the command of the server. The signal is repeated because
/// a shell starts background commands with INT and QUIT ignored, so one sent before the server has
/// set its own handlers is lost. The last line ends all other processes of the process group.
const GUARD_SCRIPT: &str = r#"
signal=$1 log=$2 status=$3 pid=$4
shift 4
exec 3<&0 </dev/null
rm -f "$status"
"$@" 3<&- >>"$log" 2>&1 &
server=$!
echo "$server" >"$pid"
{ read -r _ <&3; while kill -s "$signal" "$server"; do sleep 1; done; } &
wait "$server"
echo "$?" >"$status"
kill -s KILL 0
"#;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
const LOG_TAIL_LINES: usize = 25;

/// A temporary directory which is removed when the last clone and the last [`Server`] in it are
/// dropped, or when this process ends.
#[derive(Debug, Clone)]
pub struct Scratch(Arc<ScratchCleaner>);

#[derive(Debug)]
struct ScratchCleaner {
    shell: Child,
    directory: PathBuf,
}

/// Signal that ends a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGKILL: for servers whose state is thrown away.
    Kill,
    /// SIGQUIT: Postgres's immediate shutdown, which frees its shared memory.
    Quit,
    /// SIGTERM: for servers that shut down in order.
    Terminate,
}

/// A process under a guard; dropping it stops the process and waits until it has ended.
#[derive(Debug)]
pub struct Server {
    name: String,
    guard: Child,
    log: PathBuf,
    status: PathBuf,
    pid: PathBuf,
    // Keeps the directory until the guard has ended: fields are dropped after `Drop::drop`.
    _scratch: Scratch,
}

impl Scratch {
    /// Creates an empty directory, accessible to this user only.
    pub fn new() -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let action = || format!("create a temporary directory in {}", parent.display());
        let mut shell = Command::new("sh")
            .args(["-c", CLEANER_SCRIPT, "kollect-testbed-cleaner"])
            .arg(parent.join("kollect-testbed-XXXXXX"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(Error::io(action()))?;
        let line = first_line(&mut shell);
        let directory = PathBuf::from(line.as_deref().unwrap_or_default());
        let scratch = Self(Arc::new(ScratchCleaner { shell, directory }));
        line.map_err(Error::io(action()))?;
        fs::metadata(scratch.path()).map_err(Error::io(action()))?;
        Ok(scratch)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.directory
    }

    /// Writes a file into the directory and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, Error> {
        let path = self.path().join(name);
        fs::write(&path, content).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(path)
    }
}

impl ScratchCleaner {
    /// A handle that keeps the directory while any process has the handle open.
    fn hold(&self) -> io::Result<OwnedFd> {
        let pipe = self.shell.stdin.as_ref().expect("it was piped and is never taken");
        pipe.as_fd().try_clone_to_owned()
    }
}

impl Drop for ScratchCleaner {
    fn drop(&mut self) {
        // Closes the pipe first. A failure means that the shell has ended already.
        self.shell.wait().ok();
    }
}

impl Stop {
    fn signal(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Quit => "QUIT",
            Self::Terminate => "TERM",
        }
    }
}

impl Server {
    /// Starts `command` under a guard. `name` names its log in `scratch`.
    ///
    /// Program, arguments, variables and directory are taken from `command` (the directory is
    /// `scratch` unless set), but neither its standard streams nor `env_clear`, which cannot be read
    /// back from it.
    pub fn start(scratch: &Scratch, name: &str, stop: Stop, command: &Command) -> Result<Self, Error> {
        let action = || format!("start {name}");
        let log = scratch.path().join(format!("{name}.log"));
        let status = scratch.path().join(format!("{name}.status"));
        let pid = scratch.path().join(format!("{name}.pid"));
        let cleaner_pipe = scratch.0.hold().map_err(Error::io(action()))?;
        let mut guard = Command::new("sh");
        guard
            .args(["-c", GUARD_SCRIPT, "kollect-testbed-guard", stop.signal()])
            .args([&log, &status, &pid])
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(command.get_current_dir().unwrap_or(scratch.path()))
            .stdin(Stdio::piped())
            // Never written to: the cleaner waits while it is open.
            .stdout(cleaner_pipe)
            .stderr(Stdio::null())
            .process_group(0);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(key, value),
                None => guard.env_remove(key),
            };
        }
        let guard = guard.spawn().map_err(Error::io(action()))?;
        Ok(Self { name: name.to_owned(), guard, log, status, pid, _scratch: scratch.clone() })
    }

    /// The file that the server's output goes to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends SIGTERM once. Dropping the server repeats its signal until the process has ended.
    pub fn terminate(&self) -> Result<(), Error> {
        let pid = fs::read_to_string(&self.pid).map_err(Error::io(format!("find {}", self.name)))?;
        let sent = Command::new("kill").args(["-TERM", pid.trim()]).status();
        sent.map(drop).map_err(Error::io(format!("stop {}", self.name)))
    }

    /// Whether the process still runs; `false` if it ended with success, an error if with failure.
    pub fn running(&mut self) -> Result<bool, Error> {
        let guard = self.guard.try_wait();
        if guard.map_err(Error::io(format!("ask whether {} runs", self.name)))?.is_none() {
            return Ok(true);
        }
        match fs::read_to_string(&self.status).unwrap_or_default().trim() {
            "0" => Ok(false),
            status => Err(self.ended(status)),
        }
    }

    /// Waits until `ready` returns true. Fails as soon as the server ends, and after `limit`.
    pub fn wait_until(&mut self, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + limit;
        loop {
            // Read before the checks, so that a server that has ended is not reported as slow.
            let expired = Instant::now() >= deadline;
            if !self.running()? {
                return Err(self.ended("0"));
            }
            if ready() {
                return Ok(());
            }
            if expired {
                return Err(Error::NotReady {
                    name: self.name.clone(),
                    seconds: limit.as_secs(),
                    log: self.log_tail(),
                });
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Waits until the program has ended. Fails if it ended with failure.
    pub fn finish(mut self) -> Result<(), Error> {
        while self.running()? {
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn ended(&self, status: &str) -> Error {
        let status = if status.is_empty() { "unknown" } else { status };
        Error::Ended { name: self.name.clone(), status: status.to_owned(), log: self.log_tail() }
    }

    fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closes the pipe first. A failure means that the guard was waited for already.
        self.guard.wait().ok();
    }
}

fn first_line(shell: &mut Child) -> io::Result<String> {
    let stdout = shell.stdout.take().expect("it was piped and not taken before");
    BufReader::new(stdout).lines().next().unwrap_or(Err(io::ErrorKind::UnexpectedEof.into()))
}

#[cfg(test)]
mod tests;
