//! Runs the program as a user would.

use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use kollect_testbed::messages;

/// The result of a run of the program.
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The standard output of a run that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }
}

/// Enough for a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Waits until `check` succeeds; its error says what it found instead.
#[track_caller]
pub(crate) fn eventually(expectation: &str, mut check: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match check() {
            Ok(()) => return,
            Err(found) => assert!(Instant::now() < deadline, "{expectation} never came true, but {found}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The sample of a kind, such as `kollectinventory`. Where there are two, the one with sinks.
pub(crate) fn sample_file(name: &str) -> PathBuf {
    let file = |group: &str| root().join(format!("config/samples/{group}/kollect_v1alpha1_{name}.yaml"));
    if file("more").exists() { file("more") } else { file("start") }
}

/// Runs `kollect` with arguments.
pub(crate) fn kollect<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    kollect_with_input(args, "")
}

/// Runs `kollect` with a standard output that is closed.
pub(crate) fn kollect_without_reader<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_kollect"))
        .args(args)
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Finished { code: output.status.code().unwrap(), stdout: String::new(), stderr }
}

/// Runs `kollect` with arguments and a standard input.
pub(crate) fn kollect_with_input<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
    input: &str,
) -> Finished {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kollect"))
        .args(args)
        .current_dir(root())
        .env("KUBECONFIG", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    messages::record("cli", &stderr);
    Finished {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr,
    }
}
