//! DuckDB, which reads documents as analysts do.
//!
//! Its Python wheel is installed into the cache, beside the servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::command::{input, run};
use crate::{Error, programs};

const VERSION: &str = "2.0.0";

/// Prints a row of each result as JSON, in a line of its own.
const PROGRAM: &str = "
import sys, json, duckdb
duckdb.sql(\"SET TimeZone = 'UTC'\")
for row in duckdb.sql(sys.stdin.read()).fetchall():
    print(json.dumps([value if isinstance(value, (int, float, bool, type(None))) else str(value) for value in row]))
";

/// The rows of a query, as lines of JSON lists.
pub fn query(sql: &str) -> Result<Vec<String>, Error> {
    let python = python()?;
    let rows = run(Command::new(python).args(["-c", PROGRAM]), input(sql)?, "duckdb")?;
    Ok(rows.lines().map(ToOwned::to_owned).collect())
}

/// The Python that has DuckDB; installed first if it is missing.
fn python() -> Result<PathBuf, Error> {
    static INSTALLS: Mutex<()> = Mutex::new(());
    let _one = INSTALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = programs::cache()?.join(format!("duckdb-{VERSION}"));
    let python = directory.join("bin/python");
    if is_complete(&directory) {
        return Ok(python);
    }
    fs::create_dir_all(&directory).map_err(Error::io("make a directory for DuckDB"))?;
    run(
        Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory),
        Stdio::null(),
        "python3 -m venv",
    )?;
    let package = format!("duckdb=={VERSION}");
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &package];
    run(Command::new(&python).args(arguments), Stdio::null(), "pip install duckdb")?;
    fs::write(directory.join("complete"), "").map_err(Error::io("mark DuckDB as installed"))?;
    Ok(python)
}

/// Whether an installation has ended.
fn is_complete(directory: &Path) -> bool {
    directory.join("complete").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_rows() {
        assert_eq!(query("SELECT 1, 'a', 0.5 UNION ALL SELECT 2, 'b', 1").unwrap().len(), 2);
        assert!(query("SELECT nothing").is_err());
    }
}
