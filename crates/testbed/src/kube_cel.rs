//! Kubernetes' own CEL, and the conformance cases of CEL, for tests that compare.
//!
//! The program is `servers/cel/main.go`: it evaluates with the environment of the API server's admission policies.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Error, command, programs, schemas};

/// The module with the conformance cases, which is one that the environment itself uses.
const CASES: &str = "cel.dev/expr@v0.25.1";

/// The outcome of each input: `{"value", "type"}`, `{"error"}` or `{"invalid"}`. An input is `{"expr", "object", "namespaceObject"}`.
pub fn evaluate(inputs: &[Value]) -> Result<Vec<Value>, Error> {
    let lines: Vec<String> = inputs.iter().map(Value::to_string).collect();
    let input = command::input(&lines.join("\n"))?;
    parse(&command::run(Command::new(programs::cel()?).arg("eval"), input, "cel eval")?)
}

/// The conformance cases of CEL: `{"file", "name", "expr", "bindings", "excluded", "expected"}`.
pub fn conformance_cases() -> Result<Vec<Value>, Error> {
    let directory = schemas::module_directory(CASES)?.join("tests/simple/testdata");
    let mut cases = Command::new(programs::cel()?);
    parse(&command::run(cases.arg("conformance").arg(directory), Stdio::null(), "cel conformance")?)
}

fn parse(lines: &str) -> Result<Vec<Value>, Error> {
    let parse =
        |line| serde_json::from_str(line).map_err(|error| Error::io("read a line of cel")(error.into()));
    lines.lines().map(parse).collect()
}
