//! The two tables: what they must look like, what they look like, and the statements in between.
//!
//! `ensure` runs the statements, `existing` prints them: both come from [`Found::statements`]. A table
//! of the Go implementation is one that lacks some columns and has a key without the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::{Client, GenericClient};

use super::failure::Failure;
use crate::columns::{COLUMNS, Column, KEY, Value};

/// Table of owners and epochs, in the schema of the rows.
const BINDINGS: &str = "kollect_bindings";

const TEXT: &str = "text";

/// The type of a column, as the server writes it.
fn type_name(column: &Column) -> &'static str {
    match column.value {
        Value::Inventory(_) | Value::Row(_) | Value::Digest => TEXT,
        Value::Payload => "jsonb",
        Value::Since | Value::Now => "timestamp with time zone",
    }
}

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
    PRIMARY KEY (inventory_table, cluster, inventory_namespace, inventory_name)";

/// Names of the tables. Printed quoted, the way SQL takes them.
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

    /// The table of owners and epochs.
    pub(super) fn bindings(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(BINDINGS))
    }
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rows())
    }
}

/// Longer names are cut by the server, and two tables would become one.
const NAME_BYTES: usize = 63;

/// Checks the name of a table or schema. It is quoted wherever it is used, so this is for people.
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
        return Err("is the table of owners: choose another name".into());
    }
    Ok(())
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Makes the tables what they must be, or says what is to be done.
pub(super) async fn prepare(client: &mut Client, tables: &Tables, create: bool) -> Result<(), Failure> {
    let found = Found::read(client, tables).await?;
    let statements = found.statements(tables)?;
    if statements.is_empty() {
        return Ok(());
    }
    if !create {
        return Err(found.refuse(tables, &statements).into());
    }
    let transaction = client.transaction().await?;
    // Replicas and other inventories start at the same time; the second finds nothing left to do. All tables of
    // a schema share one of owners, so they wait for each other.
    let lock = format!("kollect {}", tables.bindings());
    transaction.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await?;
    for statement in Found::read(&transaction, tables).await?.statements(tables)? {
        transaction.batch_execute(&statement).await?;
    }
    Ok(transaction.commit().await?)
}

/// What `ensure` would run in a database that has nothing.
pub(super) fn in_empty_database(tables: &Tables) -> String {
    let nothing = Found { schema: tables.schema == "public", rows: None, bindings: None };
    format!("{};", nothing.statements(tables).unwrap_or_default().join(";\n"))
}

/// What the database has.
struct Found {
    schema: bool,
    rows: Option<Relation>,
    bindings: Option<Relation>,
}

struct Relation {
    is_table: bool,
    /// Types by name.
    columns: BTreeMap<String, String>,
    uniques: Vec<Unique>,
}

struct Unique {
    /// `None` for an index without a constraint.
    constraint: Option<String>,
    primary: bool,
    columns: BTreeSet<String>,
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

    /// What turns the tables into ours; nothing if they are.
    fn statements(&self, tables: &Tables) -> Result<Vec<String>, SinkError> {
        let mut statements = Vec::new();
        if !self.schema {
            statements.push(format!("CREATE SCHEMA {}", quoted(&tables.schema)));
        }
        match &self.rows {
            None => statements.extend(create(tables)),
            Some(rows) => statements.extend(rows.migrate(tables)?),
        }
        match &self.bindings {
            None => statements.push(format!("CREATE TABLE {} ({BINDING_COLUMNS}\n)", tables.bindings())),
            Some(bindings) if !bindings.is_table || !bindings.columns.contains_key("inventory_table") => {
                let attempt =
                    format!("{} is the table of another program: use another schema", tables.bindings());
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
            Some(bindings) if !bindings.columns.contains_key("coverage") => statements.push(format!(
                "ALTER TABLE {} ADD COLUMN writer text NOT NULL DEFAULT 'cli', ADD COLUMN revision bigint, \
                 ADD COLUMN coverage text",
                tables.bindings()
            )),
            Some(_) => {}
        }
        Ok(statements)
    }

    fn refuse(&self, tables: &Tables, statements: &[String]) -> SinkError {
        let (reason, what) = if self.rows.is_some() && self.bindings.is_some() {
            (SinkReason::Incompatible, "is not as it must be")
        } else {
            (SinkReason::Missing, "is not there, or its table of owners is not")
        };
        let todo = statements.join("; ");
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

impl Relation {
    async fn read(client: &impl GenericClient, schema: &str, name: &str) -> Result<Option<Self>, Failure> {
        let found = client
            .query_opt(
                "SELECT c.oid, c.relkind IN ('r', 'p') FROM pg_class c
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1::text AND c.relname = $2::text
                     AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
                &[&schema, &name],
            )
            .await?;
        let Some(found) = found else { return Ok(None) };
        let oid: u32 = found.get(0);
        let columns = client
            .query(
                "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
                 WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped",
                &[&oid],
            )
            .await?;
        // Indexes on a part of the rows, or on expressions, keep nobody from a second row.
        let uniques = client
            .query(
                "SELECT k.conname::text, i.indisprimary,
                     ARRAY(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS part (number)
                           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.number)
                 FROM pg_index i LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid
                 WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid
                     AND i.indpred IS NULL AND i.indexprs IS NULL",
                &[&oid],
            )
            .await?;
        Ok(Some(Self {
            is_table: found.get(1),
            columns: columns.iter().map(|row| (row.get(0), row.get(1))).collect(),
            uniques: uniques
                .iter()
                .map(|row| Unique {
                    constraint: row.get(0),
                    primary: row.get(1),
                    columns: row.get::<_, Vec<String>>(2).into_iter().collect(),
                })
                .collect(),
        }))
    }

    /// What is missing from a table that may be of the Go implementation.
    fn migrate(&self, tables: &Tables) -> Result<Vec<String>, SinkError> {
        let foreign = |why: String| {
            let attempt = format!("{tables} is not a table of inventories: {why}; use another table");
            Err(SinkError::new(SinkReason::Incompatible, attempt))
        };
        if !self.is_table {
            return foreign("it is no table at all".into());
        }
        let mut missing = Vec::new();
        for column in &COLUMNS {
            match self.columns.get(column.name).map(String::as_str) {
                None if column.filled_from.is_empty() => {
                    return foreign(format!("it has no column {}", column.name));
                }
                None => missing.push(column),
                Some(found) if found == type_name(column) => {}
                // As good as text.
                Some("character varying") if type_name(column) == TEXT => {}
                Some(_) => {
                    return foreign(format!("column {} is not of type {}", column.name, type_name(column)));
                }
            }
        }
        let mut statements = add_columns(tables, &missing);
        statements.extend(self.change_key(tables));
        if !missing.is_empty() {
            statements.push(format!("CREATE INDEX ON {tables} (kind, namespace, name)"));
        }
        Ok(statements)
    }

    /// A key without the cluster would make two clusters overwrite each other.
    fn change_key(&self, tables: &Tables) -> Vec<String> {
        let key: BTreeSet<String> = KEY.map(ToOwned::to_owned).into();
        let (narrow, others): (Vec<_>, Vec<_>) =
            self.uniques.iter().partition(|unique| unique.columns.is_subset(&key) && unique.columns != key);
        let mut changes: Vec<String> = narrow
            .iter()
            .filter_map(|unique| unique.constraint.as_deref())
            .map(|name| format!("DROP CONSTRAINT {}", quoted(name)))
            .collect();
        if !others.iter().any(|unique| unique.columns == key) {
            // A key of another sort is somebody's, and stays.
            let word = if others.iter().any(|unique| unique.primary) { "UNIQUE" } else { "PRIMARY KEY" };
            changes.push(format!("ADD {word} ({})", KEY.join(", ")));
        }
        if changes.is_empty() {
            Vec::new()
        } else {
            vec![format!("ALTER TABLE {tables} {}", changes.join(", "))]
        }
    }
}

fn add_columns(tables: &Tables, missing: &[&Column]) -> Vec<String> {
    if missing.is_empty() {
        return Vec::new();
    }
    let each = |form: fn(&Column) -> String| missing.iter().map(|c| form(c)).collect::<Vec<_>>().join(", ");
    vec![
        format!("ALTER TABLE {tables} {}", each(|c| format!("ADD COLUMN {} {}", c.name, type_name(c)))),
        format!("UPDATE {tables} SET {}", each(|c| format!("{} = {}", c.name, c.filled_from))),
        format!("ALTER TABLE {tables} {}", each(|c| format!("ALTER COLUMN {} SET NOT NULL", c.name))),
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

    /// Statuses show it.
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
    PRIMARY KEY (cluster, inventory_namespace, inventory_name, target_name, source_uid)
)"#;
        assert_eq!(create(&tables)[0], expected);
    }
}
