//! The columns of the table of rows, and of the table of claims, for all SQL databases.
//!
//! Table definitions, statements, copied rows and reading back all use this one list and its order, so a value
//! cannot end up in another column.

use kollect_model::{
    batch::InventoryId,
    claim::Claim,
    row::{Row, RowDigest},
};

/// A column of the rows.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) value: ColumnValue,
    /// The SQL default of the column.
    pub(crate) default: Option<&'static str>,
    /// SQL for its value in rows of the Go implementation; empty if tables of the Go implementation have the column.
    pub(crate) filled_from: &'static str,
}

/// Where the value of a column comes from.
#[derive(Clone, Copy)]
pub(crate) enum ColumnValue {
    /// A text of the inventory, the same for all of its rows.
    Inventory(fn(&InventoryId) -> &str),
    /// A text of the row.
    Row(fn(&Row) -> &str),
    /// The whole row, as JSON.
    Payload,
    /// The digest of the row.
    Digest,
    /// The time at which the row was first written. Later writes do not change it.
    Since,
    /// The time of the write.
    Now,
}

const fn column(name: &'static str, value: ColumnValue, filled_from: &'static str) -> Column {
    Column { name, value, default: None, filled_from }
}

const fn with_default(column: Column) -> Column {
    Column { default: Some("''"), ..column }
}

/// All columns, in the order that existing tables have.
pub(crate) const COLUMNS: [Column; 17] = [
    with_default(column("cluster", ColumnValue::Inventory(|inventory| &inventory.cluster), "")),
    column("inventory_namespace", ColumnValue::Inventory(InventoryId::stored_namespace), ""),
    column("inventory_name", ColumnValue::Inventory(|inventory| &inventory.name), ""),
    column("target_name", ColumnValue::Row(|row| &row.key.target.name), ""),
    column("source_uid", ColumnValue::Row(|row| &row.key.uid), ""),
    column(
        "target_namespace",
        ColumnValue::Row(Row::target_namespace),
        "coalesce(payload ->> 'targetNamespace', '')",
    ),
    column("api_group", ColumnValue::Row(|row| &row.key.group), "coalesce(payload ->> 'group', '')"),
    column("api_version", ColumnValue::Row(|row| &row.version), "coalesce(payload ->> 'version', '')"),
    column("kind", ColumnValue::Row(|row| &row.key.kind), "coalesce(payload ->> 'kind', '')"),
    column("namespace", ColumnValue::Row(|row| &row.key.namespace), "coalesce(payload ->> 'namespace', '')"),
    column("name", ColumnValue::Row(|row| &row.name), "coalesce(payload ->> 'name', '')"),
    with_default(column("resource_namespace", ColumnValue::Row(|row| &row.key.namespace), "")),
    column("payload", ColumnValue::Payload, ""),
    // An empty text equals no digest, so the first export writes the row again.
    column("row_digest", ColumnValue::Digest, "''"),
    column("first_seen_at", ColumnValue::Since, "exported_at"),
    column("changed_at", ColumnValue::Now, "exported_at"),
    column("exported_at", ColumnValue::Now, ""),
];

/// The primary key. The API server may serve one object, with one UID, in two API groups.
pub(crate) const KEY: [&str; 7] =
    [OLD_KEY[0], OLD_KEY[1], OLD_KEY[2], OLD_KEY[3], OLD_KEY[4], COLUMNS[6].name, COLUMNS[8].name];

/// The key of tables that older versions made.
pub(crate) const OLD_KEY: [&str; 5] =
    [COLUMNS[0].name, COLUMNS[1].name, COLUMNS[2].name, COLUMNS[3].name, COLUMNS[4].name];

/// The names of all columns, as a list in SQL.
pub(crate) fn names() -> String {
    COLUMNS.map(|column| column.name).join(", ")
}

/// The SET clause of an upsert: replaces all columns except the key and the time of the first write.
pub(crate) fn replacements() -> String {
    let replaced = COLUMNS
        .into_iter()
        .filter(|column| !KEY.contains(&column.name) && !matches!(column.value, ColumnValue::Since));
    let each = replaced.map(|Column { name, .. }| format!("{name} = excluded.{name}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The columns that a baseline is read from, as a list in SQL.
pub(crate) fn baseline_columns() -> String {
    ["target_name", "source_uid", "api_group", "kind", "namespace", "row_digest"].join(", ")
}

/// What a baseline says about a row.
pub(crate) struct HeldRow<'a> {
    pub(crate) target: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) group: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) digest: RowDigest,
}

impl<'a> HeldRow<'a> {
    /// Reads the columns of [`baseline_columns`] by their positions.
    pub(crate) fn read<E>(text: impl Fn(usize) -> Result<&'a str, E>) -> Result<Self, E> {
        Ok(Self {
            target: text(0)?,
            uid: text(1)?,
            group: text(2)?,
            kind: text(3)?,
            namespace: text(4)?,
            // A digest that cannot be parsed becomes 0, which equals no row's digest, so the row is written again.
            digest: text(5)?.parse().unwrap_or(RowDigest(0)),
        })
    }
}

/// The columns of a claim in the table of claims. Tables of older versions lack those after [`OLD_CLAIM_COLUMNS`].
pub(crate) const CLAIM_COLUMNS: [&str; 8] =
    ["owner", "writer", "epoch", "writer_id", "destination_id", "claimed_at", "taken_from", "writes"];

/// The number of leading columns that tables of all versions have.
pub(crate) const OLD_CLAIM_COLUMNS: usize = 3;

/// The columns that the table of claims has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimTable {
    /// All of [`CLAIM_COLUMNS`].
    Current,
    /// Those of older versions. Claims have no ids there, so a table that was restored from a backup looks as the
    /// writer left it: only a comparison of the rows detects the restore.
    Old,
}

impl ClaimTable {
    /// The table that has these columns.
    pub(crate) fn with(has_column: impl Fn(&str) -> bool) -> Self {
        if CLAIM_COLUMNS.iter().all(|name| has_column(name)) { Self::Current } else { Self::Old }
    }

    /// The columns of a claim, in their order.
    pub(crate) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Current => &CLAIM_COLUMNS,
            Self::Old => CLAIM_COLUMNS.split_at(OLD_CLAIM_COLUMNS).0,
        }
    }

    /// Counts a write, at the end of the SET clause of an UPDATE.
    pub(crate) fn count_write(self) -> &'static str {
        match self {
            Self::Current => ", writes = writes + 1",
            Self::Old => "",
        }
    }

    /// The claim without the fields for which the table has no columns.
    pub(crate) fn without_missing_columns(self, claim: Claim) -> Claim {
        match self {
            Self::Current => Claim { writes: Some(0), ..claim },
            Self::Old => {
                Claim { owner: claim.owner, writer: claim.writer, epoch: claim.epoch, ..Claim::default() }
            }
        }
    }

    /// The warning about a table of an older version. `advice` says how to add the columns.
    pub(crate) fn warning(table: &str, advice: &str) -> String {
        format!(
            "{table} has no columns {}: that the database was restored from a backup, or that it is another one under \
             the same name, is noticed only when its rows are compared; {advice}",
            CLAIM_COLUMNS.split_at(OLD_CLAIM_COLUMNS).1.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn columns_keep_the_order_of_existing_tables() {
        assert_eq!(
            names(),
            "cluster, inventory_namespace, inventory_name, target_name, source_uid, target_namespace, api_group, \
             api_version, kind, namespace, name, resource_namespace, payload, row_digest, first_seen_at, \
             changed_at, exported_at"
        );
        assert_eq!(
            replacements(),
            "target_namespace = excluded.target_namespace, api_version = excluded.api_version, \
             namespace = excluded.namespace, name = excluded.name, \
             resource_namespace = excluded.resource_namespace, payload = excluded.payload, row_digest = excluded.row_digest, changed_at = excluded.changed_at, \
             exported_at = excluded.exported_at"
        );
        assert_eq!(
            KEY.join(", "),
            "cluster, inventory_namespace, inventory_name, target_name, source_uid, api_group, kind"
        );
        assert_eq!(
            OLD_KEY.join(", "),
            "cluster, inventory_namespace, inventory_name, target_name, source_uid"
        );
    }

    #[test]
    fn a_baseline_reads_each_value_from_its_own_column() {
        let known: BTreeSet<&str> = COLUMNS.map(|column| column.name).into();
        let read = baseline_columns();
        let read: Vec<&str> = read.split(", ").collect();
        assert!(read.iter().all(|name| known.contains(name)));
        let Ok(held) = HeldRow::read(|column| Ok::<_, ()>(read[column])) else {
            unreachable!("all columns are there")
        };
        assert_eq!(
            [held.target, held.uid, held.group, held.kind, held.namespace],
            ["target_name", "source_uid", "api_group", "kind", "namespace"]
        );
    }
}
