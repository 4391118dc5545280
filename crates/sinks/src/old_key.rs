//! The key of tables that older versions made: it lacks the API group and the kind.
//!
//! The API server serves some objects in two API groups, with one UID. The old key allows only one row of such
//! an object in the table. The SQL sinks widen the key if they may alter the table; otherwise they use this
//! module to find which rows of a delta fit, and name the others.

use std::collections::HashMap;

use kollect_model::{
    batch::{InventoryId, RefusedRow},
    row::{Row, RowKey},
};

/// The key that a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKey {
    /// [`crate::columns::KEY`].
    Current,
    /// [`crate::columns::OLD_KEY`].
    Old,
}

/// The group and the kind of the row that the table holds, by name of the target and UID.
pub(crate) type HeldKinds = HashMap<(String, String), (String, String)>;

/// Which rows a table with the old key can hold, and which are refused. A row that the table holds already
/// stays; of several new rows of one object, the first in the order of their keys is written.
pub(crate) fn fit<'a>(
    inventory: &InventoryId,
    rows: &[&'a Row],
    held: &HeldKinds,
) -> (Vec<&'a Row>, Vec<RefusedRow>) {
    let mut taken: HashMap<(&str, &str), (&str, &str)> = held
        .iter()
        .map(|((target, uid), (group, kind))| {
            ((target.as_str(), uid.as_str()), (group.as_str(), kind.as_str()))
        })
        .collect();
    let mut in_order: Vec<&RowKey> = rows.iter().map(|row| &row.key).collect();
    in_order.sort_unstable();
    for key in in_order {
        taken.entry(differing_part(key)).or_insert((&key.group, &key.kind));
    }
    let (mut fitting, mut refused) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match taken.get(&differing_part(&row.key)) {
            Some((group, kind)) if (*group, *kind) != (&*row.key.group, &*row.key.kind) => {
                refused.push(refusal(inventory, row, group, kind));
            }
            _ => fitting.push(*row),
        }
    }
    (fitting, refused)
}

/// The part of the old key that differs between rows of one inventory.
pub(crate) fn differing_part(key: &RowKey) -> (&str, &str) {
    (&key.target.name, &key.uid)
}

fn refusal(inventory: &InventoryId, row: &Row, group: &str, kind: &str) -> RefusedRow {
    let why = format!(
        "write inventory {inventory}: {} is {}, and the table has a row of {} with the same UID: its primary \
         key lacks api_group and kind",
        row.described(),
        kind_and_group(&row.key.kind, &row.key.group),
        kind_and_group(kind, group),
    );
    RefusedRow { key: row.key.clone(), why }
}

fn kind_and_group(kind: &str, group: &str) -> String {
    if group.is_empty() { format!("kind {kind} of the core group") } else { format!("kind {kind}.{group}") }
}

/// The warning about a table with the old key.
pub(crate) fn warning(table: &str, advice: &str) -> String {
    format!(
        "{table} has a primary key without api_group and kind, so of an object that is served in two API \
         groups only one row can be written; {advice}"
    )
}
