//! Programs that run to their end, such as kubectl, helm and git.

use std::io::{Seek as _, Write as _};
use std::process::{Command, Stdio};

use crate::Error;

/// Standard input with this text. It is a file and not a pipe: a program that writes while it still reads could block both sides.
pub(crate) fn input(text: &str) -> Result<Stdio, Error> {
    let file = tempfile::tempfile().and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    });
    file.map(Stdio::from).map_err(Error::io("write the input of a program"))
}

/// Runs a command and returns what it wrote to standard output. `shown` names it in errors.
pub(crate) fn run(command: &mut Command, input: Stdio, shown: &str) -> Result<String, Error> {
    let output = command.stdin(input).output().map_err(Error::io(format!("run {shown}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Command { command: shown.to_owned(), stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
