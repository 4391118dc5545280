//! Destinations that count what is written, independent of the sink.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kollect_model::sink::SinkSpec;
use kollect_sinks::{Plan, plan, plan_out};
use kollect_testbed::Postgres;
use rusqlite::Connection;
use tempfile::TempDir;

// Tests include this file by its path: without these attributes the modules would not be found.
#[path = "destinations/stream.rs"]
mod stream;
#[path = "destinations/tree.rs"]
mod tree;

pub(crate) use stream::Stream;
pub(crate) use tree::Tree;

/// A destination without any rows.
pub(crate) trait BenchDestination {
    /// The plan of a sink that writes there.
    fn plan(&self) -> Result<Plan>;

    /// Starts counting, after the first rows were written.
    async fn count(&self) -> Result<()>;

    /// How many rows were added, changed and removed since then. A row counts for each write.
    async fn written(&self) -> Result<usize>;
}

/// An SQLite file. Triggers count.
pub(crate) struct SqliteFile(TempDir);

impl SqliteFile {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("inventory.db")
    }
}

impl BenchDestination for SqliteFile {
    fn plan(&self) -> Result<Plan> {
        planned(&format!("sqlite:{}", self.path().display()))
    }

    async fn count(&self) -> Result<()> {
        let triggers = ["INSERT", "UPDATE", "DELETE"].map(|event| {
            format!(
                "CREATE TRIGGER count_{event} AFTER {event} ON inventory
                 BEGIN UPDATE writes SET rows = rows + 1; END;"
            )
        });
        let table = "CREATE TABLE writes (rows INTEGER); INSERT INTO writes VALUES (0);";
        Ok(Connection::open(self.path())?.execute_batch(&format!("{table}{}", triggers.concat()))?)
    }

    async fn written(&self) -> Result<usize> {
        let connection = Connection::open(self.path())?;
        let rows: u32 = connection.query_row("SELECT rows FROM writes", [], |row| row.get(0))?;
        Ok(usize::try_from(rows)?)
    }
}

/// A schema of a PostgreSQL server. Triggers count with a sequence, which also counts rolled-back writes.
pub(crate) struct Schema<'a> {
    pub(crate) server: &'a Postgres,
    pub(crate) name: &'static str,
}

impl Schema<'_> {
    pub(crate) fn table(&self) -> String {
        format!("{}.inventory", self.name)
    }
}

impl BenchDestination for Schema<'_> {
    fn plan(&self) -> Result<Plan> {
        planned(&format!("{}?schema={}", self.server.dsn(), self.name))
    }

    async fn count(&self) -> Result<()> {
        let (schema, table) = (self.name, self.table());
        self.server.psql(&format!(
            "CREATE SEQUENCE {schema}.writes;
             CREATE FUNCTION {schema}.count_write() RETURNS trigger LANGUAGE plpgsql AS
                 $$BEGIN PERFORM nextval('{schema}.writes'); RETURN NULL; END$$;
             CREATE TRIGGER count_writes AFTER INSERT OR UPDATE OR DELETE ON {table}
                 FOR EACH ROW EXECUTE FUNCTION {schema}.count_write()"
        ))?;
        Ok(())
    }

    async fn written(&self) -> Result<usize> {
        let query =
            format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {}.writes", self.name);
        self.server.psql(&query)?.trim().parse().context("count writes")
    }
}

fn planned(destination: &str) -> Result<Plan> {
    plan_out(destination).map_err(anyhow::Error::msg)
}

fn planned_spec(spec: &SinkSpec) -> Result<Plan> {
    let problems = |errors: Vec<kollect_model::SpecError>| {
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    plan(spec).map_err(|errors| anyhow::Error::msg(problems(errors)))
}
