//! The two tables: their definition, their state in a database, and the statements that migrate them.
//!
//! `ensure` runs the statements, `existing` prints them: both come from [`Found::todo`]. A table of the Go
//! implementation lacks some columns and has a key without the cluster; a table of an older version has a key
//! without group and kind.

use std::fmt;

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::{Client, GenericClient};

use super::{
    failure::Failure,
    relation::{Relation, Todo, type_name},
};
use crate::{
    columns::{CLAIM_COLUMNS, COLUMNS, ClaimTable, Column, KEY, OLD_CLAIM_COLUMNS},
    old_key::{self, Key},
};

/// Table of claims, in the schema of the rows.
const BINDINGS: &str = "kollect_bindings";

const BINDING_COLUMNS: &str = "
    inventory_table text NOT NULL,
    cluster text NOT NULL,
    inventory_namespace text NOT NULL,
    inventory_name text NOT NULL,
    owner text,
    writer text NOT NULL DEFAULT 'cli',
    epoch bigint NOT NULL,
    last_export timestamp with time zone,
    revision bigint,
    row_count bigint NOT NULL DEFAULT 0,
    coverage text,
    writer_id text,
    destination_id text,
    claimed_at text,
    taken_from text,
    writes bigint,
    PRIMARY KEY (inventory_table, cluster, inventory_namespace, inventory_name)";

/// Names of the tables. `Display` quotes them for SQL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tables {
    pub(super) schema: String,
    pub(super) table: String,
}

impl Tables {
    /// The table of rows.
    pub(super) fn rows(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.table))
    }

    /// The table of claims.
    pub(super) fn bindings(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(BINDINGS))
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rows())
    }
}

/// The server truncates longer names, so two tables could become one.
pub(super) const NAME_BYTES: usize = 63;

/// Checks the name of a table or schema. Names are quoted in SQL, so this check is only there to find mistakes.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let first = name.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
    let rest = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'));
    if !first || !rest {
        return Err("is not a name: write letters, digits, _, - and $, beginning with a letter; \
                    a schema has a field of its own"
            .into());
    }
    if name.len() > NAME_BYTES {
        return Err(format!("is longer than {NAME_BYTES} bytes"));
    }
    if name == BINDINGS {
        return Err("is the table of claims: choose another name".into());
    }
    Ok(())
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// While a migration waits for a lock, readers wait behind it. So it gives up soon and is retried later.
const MIGRATION_LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '3s'";

/// Creates or migrates the tables, or returns the needed statements as an error. A key and claims of older versions
/// stay if the user may not change them, or if other objects of the database depend on them.
pub(super) async fn prepare(client: &mut Client, tables: &Tables, create: bool) -> Result<(), Failure> {
    let found = Found::read(client, tables).await?;
    let todo = found.todo(tables)?;
    if todo.needed.is_empty() && (!create || todo.wanted.is_empty()) {
        return Ok(());
    }
    if !create {
        return Err(found.refuse(tables, &todo).into());
    }
    match migrate(client, tables).await {
        Err(failure) if todo.needed.is_empty() && failure.forbids_change() => Ok(()),
        outcome => outcome,
    }
}

/// Runs the needed statements in one transaction.
async fn migrate(client: &mut Client, tables: &Tables) -> Result<(), Failure> {
    let transaction = client.transaction().await?;
    // Replicas and other inventories start at the same time; the second finds nothing left to do. All tables of a
    // schema share one table of claims, so they use one lock.
    let lock = format!("kollect {}", tables.bindings());
    transaction.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await?;
    transaction.batch_execute(MIGRATION_LOCK_TIMEOUT).await?;
    let Todo { needed, wanted } = Found::read(&transaction, tables).await?.todo(tables)?;
    for statement in needed.iter().chain(&wanted) {
        transaction.batch_execute(statement).await?;
    }
    Ok(transaction.commit().await?)
}

/// Which parts of the tables are of older versions.
pub(super) struct OldParts {
    pub(super) key: Key,
    pub(super) claims: ClaimTable,
    /// Warnings about these parts.
    pub(super) warnings: Vec<String>,
}

impl OldParts {
    /// Reads the state of tables that can be used.
    pub(super) async fn read(client: &impl GenericClient, tables: &Tables) -> Result<Self, Failure> {
        let found = Found::read(client, tables).await?;
        let (mut old, bindings) = (
            Self { key: Key::Current, claims: ClaimTable::Current, warnings: Vec::new() },
            tables.bindings(),
        );
        if let Some(rows) = found.rows.as_ref().filter(|rows| rows.is_usable_with_old_key()) {
            old.key = Key::Old;
            let statements = rows.migrate(tables)?.wanted.join("; ");
            old.warnings.push(old_key::warning(&tables.rows(), &format!("run: {statements}")));
        }
        if let Some(statement) = found.bindings.as_ref().and_then(|table| longer_claims(table, tables)) {
            old.claims = ClaimTable::Old;
            old.warnings.push(ClaimTable::warning(&bindings, &format!("run: {statement}")));
        }
        Ok(old)
    }
}

/// The statement that adds the columns that claims of older versions lack.
fn longer_claims(bindings: &Relation, tables: &Tables) -> Option<String> {
    let newer = CLAIM_COLUMNS.iter().skip(OLD_CLAIM_COLUMNS);
    let missing = newer.filter(|name| !bindings.columns.contains_key(**name));
    let add = |name: &&str| {
        let kind = if *name == "writes" { "bigint" } else { "text" };
        format!("ADD COLUMN {name} {kind}")
    };
    let added: Vec<String> = missing.map(add).collect();
    (!added.is_empty()).then(|| format!("ALTER TABLE {} {}", tables.bindings(), added.join(", ")))
}

/// The statements that `ensure` would run in an empty database.
pub(super) fn in_empty_database(tables: &Tables) -> String {
    let nothing = Found { schema: tables.schema == "public", rows: None, bindings: None };
    format!("{};", nothing.todo(tables).unwrap_or_default().needed.join(";\n"))
}

/// The state of the database.
struct Found {
    schema: bool,
    rows: Option<Relation>,
    bindings: Option<Relation>,
}

impl Found {
    async fn read(client: &impl GenericClient, tables: &Tables) -> Result<Self, Failure> {
        let schema = client
            .query_one("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text)", &[&tables.schema])
            .await?
            .get(0);
        Ok(Self {
            schema,
            rows: Relation::read(client, &tables.schema, &tables.table).await?,
            bindings: Relation::read(client, &tables.schema, BINDINGS).await?,
        })
    }

    /// The statements that the tables need; none if they are current.
    fn todo(&self, tables: &Tables) -> Result<Todo, SinkError> {
        let mut todo = match &self.rows {
            None => Todo { needed: create(tables).into(), ..Todo::default() },
            Some(rows) => rows.migrate(tables)?,
        };
        if !self.schema {
            todo.needed.insert(0, format!("CREATE SCHEMA {}", quoted(&tables.schema)));
        }
        match &self.bindings {
            None => todo.needed.push(format!("CREATE TABLE {} ({BINDING_COLUMNS}\n)", tables.bindings())),
            Some(bindings) if !bindings.is_table || !bindings.columns.contains_key("inventory_table") => {
                let attempt =
                    format!("{} is the table of another program: use another schema", tables.bindings());
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
            Some(bindings) => {
                let has_writer = bindings.columns.contains_key("coverage");
                todo.needed.extend((!has_writer).then(|| {
                    format!(
                        "ALTER TABLE {} ADD COLUMN writer text NOT NULL DEFAULT 'cli', \
                         ADD COLUMN revision bigint, ADD COLUMN coverage text",
                        tables.bindings()
                    )
                }));
                let claims = if has_writer { &mut todo.wanted } else { &mut todo.needed };
                claims.extend(longer_claims(bindings, tables));
            }
        }
        Ok(todo)
    }

    fn refuse(&self, tables: &Tables, todo: &Todo) -> SinkError {
        let (reason, what) = if self.rows.is_some() && self.bindings.is_some() {
            (SinkReason::Incompatible, "is not as it must be")
        } else {
            (SinkReason::Missing, "is not there, or its table of claims is not")
        };
        let todo = [todo.needed.as_slice(), &todo.wanted].concat().join("; ");
        let attempt = format!("{tables} {what}, and provisioning.mode is existing; run: {todo}");
        SinkError::new(reason, attempt)
    }
}

fn create(tables: &Tables) -> [String; 2] {
    let define = |column: Column| {
        let default = column.default.map(|value| format!(" DEFAULT {value}")).unwrap_or_default();
        format!("{} {} NOT NULL{default}", column.name, type_name(&column))
    };
    let columns = COLUMNS.map(define).join(",\n    ");
    let key = KEY.join(", ");
    [
        format!("CREATE TABLE {tables} (\n    {columns},\n    PRIMARY KEY ({key})\n)"),
        format!("CREATE INDEX ON {tables} (kind, namespace, name)"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        for name in ["inventory", "_x", "Übersicht", "a-b$1"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "1a", "public.inventory", "a b", "a\"b", "a;", "a\0", BINDINGS, &"x".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }

    /// Statuses show this text.
    #[test]
    fn the_definition_of_the_table_does_not_change() {
        let tables = Tables { schema: "public".into(), table: "inventory".into() };
        let expected = r#"CREATE TABLE "public"."inventory" (
    cluster text NOT NULL DEFAULT '',
    inventory_namespace text NOT NULL,
    inventory_name text NOT NULL,
    target_name text NOT NULL,
    source_uid text NOT NULL,
    target_namespace text NOT NULL,
    api_group text NOT NULL,
    api_version text NOT NULL,
    kind text NOT NULL,
    namespace text NOT NULL,
    name text NOT NULL,
    resource_namespace text NOT NULL DEFAULT '',
    payload jsonb NOT NULL,
    row_digest text NOT NULL,
    first_seen_at timestamp with time zone NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    exported_at timestamp with time zone NOT NULL,
    PRIMARY KEY (cluster, inventory_namespace, inventory_name, target_name, source_uid, api_group, kind)
)"#;
        assert_eq!(create(&tables)[0], expected);
    }
}
