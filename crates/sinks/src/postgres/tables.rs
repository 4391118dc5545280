//! The two tables: their definition, their state in a database, and the statements that migrate them.
//!
//! `ensure` runs the statements, `existing` prints them: both come from [`ExistingTables::migration`]. A table of the
//! Go implementation lacks some columns and has a key without the cluster; a table of an older version has a key
//! without group and kind.

use std::fmt;

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::{Client, GenericClient};

use super::{
    failure::PostgresError,
    relation::{MigrationStatements, Relation, type_name},
};
use crate::{
    columns::{CLAIM_COLUMNS, COLUMNS, ClaimTable, Column, KEY, OLD_CLAIM_COLUMNS},
    old_key::{self, TableKey},
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
pub(super) const MAX_NAME_BYTES: usize = 63;

/// Checks the name of a table or schema. Names are quoted in SQL, so this check is only there to find mistakes.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let starts_with_letter = name.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
    let all_allowed = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'));
    if !starts_with_letter || !all_allowed {
        return Err("is not a name: write letters, digits, _, - and $, beginning with a letter; \
                    a schema has a field of its own"
            .into());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("is longer than {MAX_NAME_BYTES} bytes"));
    }
    if name == BINDINGS {
        return Err("is the table of claims: choose another name".into());
    }
    Ok(())
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// While a migration waits for a lock, readers wait behind it. So it gives up soon and is retried later. The limit of
/// `spec.options` is for statements that write rows: a migration may take as long as the caller waits for it.
const MIGRATION_TIMEOUTS: &str = "SET LOCAL lock_timeout = '3s'; SET LOCAL statement_timeout = 0";

/// Creates or migrates the tables, or returns the needed statements as an error. A key and claims of older versions
/// stay if the user may not change them, or if other objects of the database depend on them.
pub(super) async fn prepare(client: &mut Client, tables: &Tables, create: bool) -> Result<(), PostgresError> {
    let found = ExistingTables::read(client, tables).await?;
    let migration = found.migration(tables)?;
    if migration.needed.is_empty() && (!create || migration.wanted.is_empty()) {
        return Ok(());
    }
    if !create {
        return Err(found.refuse(tables, &migration).into());
    }
    match migrate(client, tables).await {
        Err(failure) if migration.needed.is_empty() && failure.forbids_change() => Ok(()),
        outcome => outcome,
    }
}

/// Runs the needed statements in one transaction.
async fn migrate(client: &mut Client, tables: &Tables) -> Result<(), PostgresError> {
    let transaction = client.transaction().await?;
    // Replicas and other inventories start at the same time; the second finds nothing left to do. All tables of a
    // schema share one table of claims, so they use one lock.
    let lock = format!("kollect {}", tables.bindings());
    transaction.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await?;
    transaction.batch_execute(MIGRATION_TIMEOUTS).await?;
    let MigrationStatements { needed, wanted } =
        ExistingTables::read(&transaction, tables).await?.migration(tables)?;
    for statement in needed.iter().chain(&wanted) {
        transaction.batch_execute(statement).await?;
    }
    Ok(transaction.commit().await?)
}

/// Which parts of the tables are of older versions.
pub(super) struct OldParts {
    pub(super) key: TableKey,
    pub(super) claims: ClaimTable,
    /// Warnings about these parts.
    pub(super) warnings: Vec<String>,
}

impl OldParts {
    /// Reads the state of tables that can be used.
    pub(super) async fn read(client: &impl GenericClient, tables: &Tables) -> Result<Self, PostgresError> {
        let found = ExistingTables::read(client, tables).await?;
        let (mut old, bindings) = (
            Self { key: TableKey::Current, claims: ClaimTable::Current, warnings: Vec::new() },
            tables.bindings(),
        );
        if let Some(rows) = found.rows.as_ref().filter(|rows| rows.is_usable_with_old_key()) {
            old.key = TableKey::Old;
            let statements = rows.migrate(tables)?.wanted.join("; ");
            old.warnings.push(old_key::warning(&tables.rows(), &format!("run: {statements}")));
        }
        if let Some(statement) = found.bindings.as_ref().and_then(|table| add_claim_columns(table, tables)) {
            old.claims = ClaimTable::Old;
            old.warnings.push(ClaimTable::warning(&bindings, &format!("run: {statement}")));
        }
        Ok(old)
    }
}

/// The statement that adds the columns that claims of older versions lack.
fn add_claim_columns(bindings: &Relation, tables: &Tables) -> Option<String> {
    let newer = CLAIM_COLUMNS.iter().skip(OLD_CLAIM_COLUMNS);
    let missing = newer.filter(|name| !bindings.columns.contains_key(**name));
    let add = |name: &&str| {
        let column_type = if *name == "writes" { "bigint" } else { "text" };
        format!("ADD COLUMN {name} {column_type}")
    };
    let added: Vec<String> = missing.map(add).collect();
    (!added.is_empty()).then(|| format!("ALTER TABLE {} {}", tables.bindings(), added.join(", ")))
}

/// The statements that `ensure` would run in an empty database.
pub(super) fn statements_for_empty_database(tables: &Tables) -> String {
    let empty_database = ExistingTables { schema: tables.schema == "public", rows: None, bindings: None };
    format!("{};", empty_database.migration(tables).unwrap_or_default().needed.join(";\n"))
}

/// The state of the database.
struct ExistingTables {
    schema: bool,
    rows: Option<Relation>,
    bindings: Option<Relation>,
}

impl ExistingTables {
    async fn read(client: &impl GenericClient, tables: &Tables) -> Result<Self, PostgresError> {
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
    fn migration(&self, tables: &Tables) -> Result<MigrationStatements, SinkError> {
        let mut migration = match &self.rows {
            None => MigrationStatements { needed: create(tables).into(), ..MigrationStatements::default() },
            Some(rows) => rows.migrate(tables)?,
        };
        if !self.schema {
            migration.needed.insert(0, format!("CREATE SCHEMA {}", quoted(&tables.schema)));
        }
        match &self.bindings {
            None => {
                migration.needed.push(format!("CREATE TABLE {} ({BINDING_COLUMNS}\n)", tables.bindings()));
            }
            Some(bindings) if !bindings.is_table || !bindings.columns.contains_key("inventory_table") => {
                let attempt =
                    format!("{} is the table of another program: use another schema", tables.bindings());
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
            Some(bindings) => {
                let has_writer = bindings.columns.contains_key("coverage");
                migration.needed.extend((!has_writer).then(|| {
                    format!(
                        "ALTER TABLE {} ADD COLUMN writer text NOT NULL DEFAULT 'cli', \
                         ADD COLUMN revision bigint, ADD COLUMN coverage text",
                        tables.bindings()
                    )
                }));
                let claims = if has_writer { &mut migration.wanted } else { &mut migration.needed };
                claims.extend(add_claim_columns(bindings, tables));
            }
        }
        Ok(migration)
    }

    fn refuse(&self, tables: &Tables, migration: &MigrationStatements) -> SinkError {
        let (reason, what) = if self.rows.is_some() && self.bindings.is_some() {
            (SinkReason::Incompatible, "is not as it must be")
        } else {
            (SinkReason::Missing, "is not there, or its table of claims is not")
        };
        let statements = [migration.needed.as_slice(), &migration.wanted].concat().join("; ");
        let attempt = format!("{tables} {what}, and provisioning.mode is existing; run: {statements}");
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
    fn the_definition_of_the_postgresql_table_does_not_change() {
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
