//! An existing table, and the statements that turn it into the table of rows.
//!
//! The key of a table in use is widened in two steps of one transaction. First a unique index is built under a
//! SHARE lock: readers continue and writers wait. Then the constraints are exchanged under an ACCESS EXCLUSIVE
//! lock, which is held until the commit that follows immediately: readers wait only for that time.

use std::collections::{BTreeMap, BTreeSet};

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::GenericClient;

use super::{
    failure::PostgresError,
    tables::{MAX_NAME_BYTES, Tables, quoted},
};
use crate::columns::{COLUMNS, Column, ColumnValue, KEY, OLD_KEY};

const TEXT: &str = "text";

/// The type of a column, as PostgreSQL spells it.
pub(super) fn type_name(column: &Column) -> &'static str {
    match column.value {
        ColumnValue::Inventory(_) | ColumnValue::Row(_) | ColumnValue::Digest => TEXT,
        ColumnValue::Payload => "jsonb",
        ColumnValue::Since | ColumnValue::Now => "timestamp with time zone",
    }
}

/// A table, or another relation with its name.
pub(super) struct Relation {
    pub(super) is_table: bool,
    is_partitioned: bool,
    /// Types by the name of the column.
    pub(super) columns: BTreeMap<String, String>,
    uniques: Vec<UniqueIndex>,
}

/// A unique index, with or without a constraint.
struct UniqueIndex {
    index: String,
    constraint: Option<String>,
    primary: bool,
    columns: BTreeSet<String>,
}

impl UniqueIndex {
    fn is_on(&self, key: &[&str]) -> bool {
        self.columns.len() == key.len() && key.iter().all(|name| self.columns.contains(*name))
    }

    /// Whether it forbids rows that [`KEY`] allows.
    fn is_narrower_than_key(&self) -> bool {
        self.columns.len() < KEY.len() && self.columns.iter().all(|name| KEY.contains(&name.as_str()))
    }
}

/// The statements that a table needs.
#[derive(Default)]
pub(super) struct MigrationStatements {
    /// Without these statements the table cannot be used.
    pub(super) needed: Vec<String>,
    /// Without these statements the tables can be used, with a key or claims of older versions.
    pub(super) wanted: Vec<String>,
}

impl Relation {
    /// Reads the catalog of the database. `None` if no relation has the name.
    pub(super) async fn read(
        client: &impl GenericClient,
        schema: &str,
        name: &str,
    ) -> Result<Option<Self>, PostgresError> {
        let found = client
            .query_opt(
                "SELECT c.oid, c.relkind IN ('r', 'p'), c.relkind = 'p' FROM pg_class c
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
        // Partial indexes and indexes on expressions are ignored: they do not forbid a second row with the same key.
        let uniques = client
            .query(
                "SELECT x.relname::text, k.conname::text, i.indisprimary,
                     ARRAY(SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS part (number)
                           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.number)
                 FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                 LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid
                 WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid
                     AND i.indpred IS NULL AND i.indexprs IS NULL",
                &[&oid],
            )
            .await?;
        Ok(Some(Self {
            is_table: found.get(1),
            is_partitioned: found.get(2),
            columns: columns.iter().map(|row| (row.get(0), row.get(1))).collect(),
            uniques: uniques
                .iter()
                .map(|row| UniqueIndex {
                    index: row.get(0),
                    constraint: row.get(1),
                    primary: row.get(2),
                    columns: row.get::<_, Vec<String>>(3).into_iter().collect(),
                })
                .collect(),
        }))
    }

    /// The statements that a table needs, which may be one of the Go implementation.
    pub(super) fn migrate(&self, tables: &Tables) -> Result<MigrationStatements, SinkError> {
        let not_ours = |why: String| {
            let attempt = format!("{tables} is not a table of inventories: {why}; use another table");
            Err(SinkError::new(SinkReason::Incompatible, attempt))
        };
        if !self.is_table {
            return not_ours("it is no table at all".into());
        }
        let mut missing = Vec::new();
        for column in &COLUMNS {
            match self.columns.get(column.name).map(String::as_str) {
                None if column.filled_from.is_empty() => {
                    return not_ours(format!("it has no column {}", column.name));
                }
                None => missing.push(column),
                Some(found) if found == type_name(column) => {}
                // Equivalent to text.
                Some("character varying") if type_name(column) == TEXT => {}
                Some(_) => {
                    return not_ours(format!("column {} is not of type {}", column.name, type_name(column)));
                }
            }
        }
        let change_key = self.change_key(tables);
        if missing.is_empty() && self.is_usable_with_old_key() {
            return Ok(MigrationStatements { wanted: change_key, ..MigrationStatements::default() });
        }
        let mut needed = add_columns(tables, &missing);
        needed.extend(change_key);
        if !missing.is_empty() {
            needed.push(format!("CREATE INDEX ON {tables} (kind, namespace, name)"));
        }
        Ok(MigrationStatements { needed, ..MigrationStatements::default() })
    }

    /// Whether the table has the key of older versions of Kollect, and no other index forbids rows.
    pub(super) fn is_usable_with_old_key(&self) -> bool {
        let mut narrower = self.uniques.iter().filter(|unique| unique.is_narrower_than_key()).peekable();
        narrower.peek().is_some() && narrower.all(|unique| unique.is_on(&OLD_KEY))
    }

    /// The statements that give the table the key of this version. With a key without the cluster two clusters would
    /// overwrite each other's rows; without group and kind, two rows of one object.
    fn change_key(&self, tables: &Tables) -> Vec<String> {
        let (narrower, others): (Vec<_>, Vec<_>) =
            self.uniques.iter().partition(|unique| unique.is_narrower_than_key());
        let (mut statements, mut changes) = (Vec::new(), Vec::new());
        for unique in &narrower {
            match &unique.constraint {
                Some(name) => changes.push(format!("DROP CONSTRAINT {}", quoted(name))),
                None => statements.push(format!(
                    "DROP INDEX {}.{}",
                    quoted(&tables.schema),
                    quoted(&unique.index)
                )),
            }
        }
        if !others.iter().any(|unique| unique.is_on(&KEY)) {
            // A primary key on other columns belongs to the owner of the table and stays.
            let constraint_type =
                if others.iter().any(|unique| unique.primary) { "UNIQUE" } else { "PRIMARY KEY" };
            if self.is_partitioned {
                // A partitioned table cannot use an existing index for a constraint.
                changes.push(format!("ADD {constraint_type} ({})", KEY.join(", ")));
            } else {
                let (index, key) = (index_name(&tables.table), KEY.join(", "));
                statements.push(format!("CREATE UNIQUE INDEX {index} ON {tables} ({key})"));
                let old = narrower.iter().find(|unique| unique.primary);
                let name = old.and_then(|unique| unique.constraint.as_deref());
                let named = name.map(|name| format!("CONSTRAINT {} ", quoted(name))).unwrap_or_default();
                changes.push(format!("ADD {named}{constraint_type} USING INDEX {index}"));
            }
        }
        if !changes.is_empty() {
            statements.push(format!("ALTER TABLE {tables} {}", changes.join(", ")));
        }
        statements
    }
}

/// The name of the key's index before it has a constraint, quoted.
fn index_name(table: &str) -> String {
    const SUFFIX: &str = "_kollect_key";
    let mut name = table.to_owned();
    while name.len() + SUFFIX.len() > MAX_NAME_BYTES {
        name.pop();
    }
    quoted(&format!("{name}{SUFFIX}"))
}

fn add_columns(tables: &Tables, missing: &[&Column]) -> Vec<String> {
    if missing.is_empty() {
        return Vec::new();
    }
    let each = |form: fn(&Column) -> String| {
        missing.iter().map(|column| form(column)).collect::<Vec<_>>().join(", ")
    };
    vec![
        format!(
            "ALTER TABLE {tables} {}",
            each(|column| format!("ADD COLUMN {} {}", column.name, type_name(column)))
        ),
        format!("UPDATE {tables} SET {}", each(|column| format!("{} = {}", column.name, column.filled_from))),
        format!(
            "ALTER TABLE {tables} {}",
            each(|column| format!("ALTER COLUMN {} SET NOT NULL", column.name))
        ),
    ]
}
