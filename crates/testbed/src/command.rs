//! Programs that run to their end, such as kubectl, helm and git.

use std::process::{Command, Stdio};

use crate::Error;

/// Runs a command and returns what it wrote to standard output. `shown` names it in errors.
pub(crate) fn run(command: &mut Command, input: Stdio, shown: &str) -> Result<String, Error> {
    let output = command.stdin(input).output().map_err(Error::io(format!("run {shown}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Command { command: shown.to_owned(), stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
