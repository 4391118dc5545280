//! Writes one delta in one transaction.
//!
//! A few rows are sent as arrays in one statement. Many are sent with COPY: into the table itself if it holds no
//! rows of the inventory, else into a staging table first, because COPY cannot update.

use std::{collections::HashSet, pin::pin, time::SystemTime};

use futures::future::try_join_all;
use kollect_model::{
    batch::{Delta, InventoryId, RefusedRow, RemovedRow},
    row::{Row, RowKey},
};
use tokio_postgres::{
    Statement, Transaction,
    binary_copy::BinaryCopyInWriter,
    types::{Json, ToSql, Type},
};

use super::{failure::PostgresError, session::Statements, tables::Tables};
use crate::{
    columns::{COLUMNS, Column, ColumnValue, KEY, OLD_KEY, names, replacements},
    old_key::{self, HeldKinds, TableKey},
};

/// Up to this number of rows one statement with arrays is faster than COPY.
pub(super) const FEW_ROWS: usize = 500;
const FEW_ROWS_BYTES: usize = 8 << 20;

/// The type of a column in a COPY.
fn copied_type(column: &Column) -> Type {
    match column.value {
        ColumnValue::Inventory(_) | ColumnValue::Row(_) | ColumnValue::Digest => Type::TEXT,
        ColumnValue::Payload => Type::JSONB,
        ColumnValue::Since | ColumnValue::Now => Type::TIMESTAMPTZ,
    }
}

/// A value of one row in a COPY.
enum CopyCell<'a> {
    Text(&'a str),
    Digest(String),
    Payload(Json<&'a Row>),
    Time(SystemTime),
}

impl<'a> CopyCell<'a> {
    fn of(column: &Column, inventory: &'a InventoryId, row: &'a Row, now: SystemTime) -> Self {
        match column.value {
            ColumnValue::Inventory(text) => Self::Text(text(inventory)),
            ColumnValue::Row(text) => Self::Text(text(row)),
            ColumnValue::Digest => Self::Digest(row.digest.to_string()),
            ColumnValue::Payload => Self::Payload(Json(row)),
            ColumnValue::Since | ColumnValue::Now => Self::Time(now),
        }
    }

    fn as_sql(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Text(text) => text,
            Self::Digest(text) => text,
            Self::Payload(payload) => payload,
            Self::Time(time) => time,
        }
    }
}

/// The values of many rows in a column, as a parameter of a statement.
enum ColumnParameter<'a> {
    /// One value for all rows.
    Text(&'a str),
    Texts(Vec<&'a str>),
    Digests(Vec<String>),
    Payloads(Vec<Json<&'a Row>>),
}

impl<'a> ColumnParameter<'a> {
    /// `None` for columns that the server fills.
    fn of(column: &Column, inventory: &'a InventoryId, rows: &[&'a Row]) -> Option<Self> {
        match column.value {
            ColumnValue::Inventory(text) => Some(Self::Text(text(inventory))),
            ColumnValue::Row(text) => Some(Self::Texts(rows.iter().map(|row| text(row)).collect())),
            ColumnValue::Digest => {
                Some(Self::Digests(rows.iter().map(|row| row.digest.to_string()).collect()))
            }
            ColumnValue::Payload => Some(Self::Payloads(rows.iter().map(|row| Json(*row)).collect())),
            ColumnValue::Since | ColumnValue::Now => None,
        }
    }

    fn as_sql(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Text(text) => text,
            Self::Texts(texts) => texts,
            Self::Digests(texts) => texts,
            Self::Payloads(payloads) => payloads,
        }
    }
}

/// Rows whose digest is in the table already are not changed, also not their times. Returns how many rows are new.
fn upsert(tables: &Tables, key: TableKey, source: &str) -> String {
    let (columns, replacements) = (names(), replacements());
    let (key, same_row) = match key {
        TableKey::Current => (KEY.join(", "), ""),
        // A row never replaces a row of another group or kind.
        TableKey::Old => {
            (OLD_KEY.join(", "), " AND held.api_group = excluded.api_group AND held.kind = excluded.kind")
        }
    };
    format!(
        "WITH written AS (
            INSERT INTO {tables} AS held ({columns}) {source}
            ON CONFLICT ({key}) DO UPDATE SET {replacements}
            WHERE held.row_digest IS DISTINCT FROM excluded.row_digest{same_row}
            RETURNING held.xmax = 0 AS is_new
        ) SELECT count(*) FILTER (WHERE is_new) FROM written"
    )
}

/// The parameters are those of [`ColumnParameter::of`], for all columns in their order.
pub(super) fn upsert_arrays(tables: &Tables, key: TableKey) -> String {
    let (mut selected, mut arrays, mut named) = (Vec::new(), Vec::new(), Vec::new());
    let mut parameter = 0;
    for Column { name, value, .. } in COLUMNS {
        let element = match value {
            ColumnValue::Inventory(_) => {
                parameter += 1;
                selected.push(format!("${parameter}"));
                continue;
            }
            ColumnValue::Since | ColumnValue::Now => {
                selected.push("now()".to_owned());
                continue;
            }
            ColumnValue::Row(_) | ColumnValue::Digest => "text",
            ColumnValue::Payload => "jsonb",
        };
        parameter += 1;
        selected.push(name.to_owned());
        arrays.push(format!("${parameter}::{element}[]"));
        named.push(name);
    }
    let (selected, arrays, named) = (selected.join(", "), arrays.join(", "), named.join(", "));
    upsert(tables, key, &format!("SELECT {selected} FROM unnest({arrays}) AS row ({named})"))
}

/// Deletes one row by its whole key.
pub(super) fn delete(tables: &Tables) -> String {
    let terms: Vec<String> =
        KEY.iter().zip(1..).map(|(name, number)| format!("{name} = ${number}")).collect();
    format!("DELETE FROM {tables} WHERE {}", terms.join(" AND "))
}

fn delete_arrays(tables: &Tables) -> String {
    format!(
        "DELETE FROM {tables} AS held
         USING unnest($4::text[], $5::text[], $6::text[], $7::text[])
             AS gone (target_name, source_uid, api_group, kind)
         WHERE held.cluster = $1 AND held.inventory_namespace = $2 AND held.inventory_name = $3
             AND held.target_name = gone.target_name AND held.source_uid = gone.source_uid
             AND held.api_group = gone.api_group AND held.kind = gone.kind"
    )
}

/// The result of applying a delta.
pub(super) struct AppliedToTable {
    /// By how many rows the table has grown.
    pub(super) grown: i64,
    /// Rows that do not fit the key of the table.
    pub(super) refused: Vec<RefusedRow>,
}

/// Applies a delta inside the transaction that has checked the claim.
pub(super) async fn apply(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    delta: &Delta,
) -> Result<AppliedToTable, PostgresError> {
    // Removals first: with the old key, a row that moved to another API group takes over its own former key.
    let removed = remove(transaction, tables, &statements.delete, inventory, &delta.removed).await?;
    let rows = last_of_each(delta);
    let (rows, refused) = match statements.key {
        TableKey::Current => (rows, Vec::new()),
        TableKey::Old => {
            let held = held_kinds(transaction, tables, inventory, &rows).await?;
            old_key::fit(inventory, &rows, &held)
        }
    };
    let bytes: usize = rows.iter().map(|row| row.attributes.get().len()).sum();
    let added = if rows.len() <= FEW_ROWS && bytes <= FEW_ROWS_BYTES {
        merge_arrays(transaction, &statements.upsert, inventory, &rows).await?
    } else if is_empty(transaction, tables, inventory).await? {
        copy(transaction, &tables.rows(), inventory, &rows).await?;
        count(rows.len())
    } else if statements.may_stage {
        merge_staged(transaction, tables, statements.key, inventory, &rows).await?
    } else {
        let mut added = 0;
        for rows in rows.chunks(FEW_ROWS) {
            added += merge_arrays(transaction, &statements.upsert, inventory, rows).await?;
        }
        added
    };
    Ok(AppliedToTable { grown: added - removed, refused })
}

/// The groups and kinds of the rows that a table with the old key holds for these objects.
async fn held_kinds(
    transaction: &Transaction<'_>,
    tables: &Tables,
    inventory: &InventoryId,
    rows: &[&Row],
) -> Result<HeldKinds, PostgresError> {
    let (targets, uids): (Vec<&str>, Vec<&str>) =
        rows.iter().map(|row| (&*row.key.target.name, &*row.key.uid)).unzip();
    let query = format!(
        "SELECT held.target_name, held.source_uid, held.api_group, held.kind FROM {tables} AS held
         JOIN (SELECT DISTINCT * FROM unnest($4::text[], $5::text[]) AS row (target_name, source_uid)) AS row
             ON held.target_name = row.target_name AND held.source_uid = row.source_uid
         WHERE held.cluster = $1 AND held.inventory_namespace = $2 AND held.inventory_name = $3"
    );
    let namespace = inventory.stored_namespace();
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&inventory.cluster, &namespace, &inventory.name, &targets, &uids];
    let held = transaction.query(&query, &parameters).await?;
    Ok(held.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3)))).collect())
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// The rows to write, each key once: one statement cannot write a row twice. The last of equal keys wins.
pub(super) fn last_of_each(delta: &Delta) -> Vec<&Row> {
    let mut seen = HashSet::with_capacity(delta.added.len() + delta.changed.len());
    let all = delta.rows().map(AsRef::as_ref);
    let mut rows: Vec<&Row> = all.rev().filter(|row: &&Row| seen.insert(&row.key)).collect();
    rows.reverse();
    rows
}

/// Deletes a few rows one by one, all sent before the first answer: without fresh statistics the planner would
/// compare every key with every row of the inventory. For many rows, one statement with a hash join is faster.
async fn remove(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statement: &Statement,
    inventory: &InventoryId,
    removed: &[RemovedRow],
) -> Result<i64, PostgresError> {
    let InventoryId { cluster, name, .. } = inventory;
    let namespace = inventory.stored_namespace();
    let removed = if removed.len() <= FEW_ROWS {
        let delete_one = async |RemovedRow { key, .. }: &RemovedRow| {
            let key: [&(dyn ToSql + Sync); 7] =
                [cluster, &namespace, name, &&*key.target.name, &&*key.uid, &&*key.group, &&*key.kind];
            transaction.execute(statement, &key).await
        };
        try_join_all(removed.iter().map(delete_one)).await?.iter().sum()
    } else {
        let texts = |text: fn(&RowKey) -> &str| removed.iter().map(|row| text(&row.key)).collect();
        let parts: [Vec<&str>; 4] = [
            texts(|key| &key.target.name),
            texts(|key| &key.uid),
            texts(|key| &key.group),
            texts(|key| &key.kind),
        ];
        let [targets, uids, groups, kinds] = &parts;
        let parameters: [&(dyn ToSql + Sync); 7] = [cluster, &namespace, name, targets, uids, groups, kinds];
        transaction.batch_execute("SET LOCAL enable_nestloop = off").await?;
        transaction.execute(&delete_arrays(tables), &parameters).await?
    };
    Ok(i64::try_from(removed).unwrap_or(i64::MAX))
}

pub(super) async fn merge_arrays(
    transaction: &Transaction<'_>,
    statement: &Statement,
    inventory: &InventoryId,
    rows: &[&Row],
) -> Result<i64, PostgresError> {
    if rows.is_empty() {
        return Ok(0);
    }
    let parameters: Vec<ColumnParameter<'_>> =
        COLUMNS.iter().filter_map(|column| ColumnParameter::of(column, inventory, rows)).collect();
    let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(ColumnParameter::as_sql).collect();
    let added = transaction.query_one(statement, &values).await?;
    Ok(added.get(0))
}

async fn is_empty(
    transaction: &Transaction<'_>,
    tables: &Tables,
    inventory: &InventoryId,
) -> Result<bool, PostgresError> {
    let query = format!(
        "SELECT NOT EXISTS (SELECT FROM {tables}
         WHERE cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3)"
    );
    let namespace = inventory.stored_namespace();
    let answer = transaction.query_one(&query, &[&inventory.cluster, &namespace, &inventory.name]).await?;
    Ok(answer.get(0))
}

async fn merge_staged(
    transaction: &Transaction<'_>,
    tables: &Tables,
    key: TableKey,
    inventory: &InventoryId,
    rows: &[&Row],
) -> Result<i64, PostgresError> {
    const STAGING: &str = "pg_temp.kollect_staging";
    let columns = names();
    let staging = format!(
        "CREATE TEMPORARY TABLE kollect_staging ON COMMIT DROP AS SELECT {columns} FROM {tables} WITH NO DATA"
    );
    transaction.batch_execute(&staging).await?;
    copy(transaction, STAGING, inventory, rows).await?;
    let merge = upsert(tables, key, &format!("SELECT {columns} FROM {STAGING}"));
    Ok(transaction.query_one(&merge, &[]).await?.get(0))
}

/// Streams rows into a table, one encoded row at a time.
async fn copy(
    transaction: &Transaction<'_>,
    into: &str,
    inventory: &InventoryId,
    rows: &[&Row],
) -> Result<(), PostgresError> {
    let now: SystemTime = transaction.query_one("SELECT now()", &[]).await?.get(0);
    let statement = format!("COPY {into} ({}) FROM STDIN (FORMAT binary)", names());
    let types = COLUMNS.each_ref().map(copied_type);
    let mut writer = pin!(BinaryCopyInWriter::new(transaction.copy_in(&statement).await?, &types));
    for row in rows {
        let cells = COLUMNS.each_ref().map(|column| CopyCell::of(column, inventory, row, now));
        writer.as_mut().write(&cells.each_ref().map(CopyCell::as_sql)).await?;
    }
    writer.finish().await?;
    Ok(())
}
