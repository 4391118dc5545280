//! Rows that the server cannot store: each is named, and the other rows are written.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use kollect_model::{
    batch::{Batch, Delta, InventoryId, RefusedRow},
    row::{Row, RowKey},
};
use tokio_postgres::Client;

use super::{
    failure::PostgresError,
    session::Statements,
    write::{FEW_ROWS, last_of_each, merge_arrays},
};
use crate::old_key::{self, HeldKinds, TableKey};

/// Rows that PostgreSQL cannot store: its texts must not contain NUL characters.
pub(super) fn rows_with_nul(batch: &Batch<'_>) -> Vec<RefusedRow> {
    let why = "a NUL character (\\u0000), which PostgreSQL cannot store; leave it out of the attributes";
    batch.delta.rows().filter(|row| has_nul(row)).map(|row| refusal(batch.inventory, row, why)).collect()
}

/// A delta without the refused rows.
pub(super) fn without(delta: &Delta, refused: &[RefusedRow]) -> Delta {
    let mut delta = delta.clone();
    if !refused.is_empty() {
        let refused: HashSet<&RowKey> = refused.iter().map(|refusal| &refusal.key).collect();
        delta.added.retain(|row| !refused.contains(&row.key));
        delta.changed.retain(|changed| !refused.contains(&changed.after.key));
    }
    delta
}

/// Time limit for finding refused rows. It is enough for thousands of them; if a constraint of the table refuses
/// almost every row of a large inventory, the write fails as a whole.
const SEARCH_LIMIT: Duration = Duration::from_mins(2);

const SAVEPOINT: &str = "SAVEPOINT kollect_trial";
const KEEP_TRIAL: &str = "RELEASE SAVEPOINT kollect_trial; SAVEPOINT kollect_trial";
const UNDO_TRIAL: &str = "ROLLBACK TO SAVEPOINT kollect_trial";

/// The rows that the server refuses, in their order: writes parts of the delta in a transaction that is never
/// committed, and halves a part that is refused. Empty if the server accepts all rows, or if the time limit is
/// exceeded.
pub(super) async fn find_refused(
    client: &mut Client,
    statements: &Statements,
    batch: &Batch<'_>,
) -> Result<Vec<RefusedRow>, PostgresError> {
    let mut rows = last_of_each(batch.delta);
    if statements.key == TableKey::Old {
        // One statement cannot write two rows with the same key.
        rows = old_key::fit(batch.inventory, &rows, &HeldKinds::new()).0;
    }
    let began = Instant::now();
    let transaction = client.transaction().await?;
    transaction.batch_execute(SAVEPOINT).await?;
    let mut refused = Vec::new();
    let mut parts: Vec<&[&Row]> = rows.chunks(FEW_ROWS).rev().collect();
    while let Some(part) = parts.pop() {
        match merge_arrays(&transaction, &statements.upsert, batch.inventory, part).await {
            Ok(_) => transaction.batch_execute(KEEP_TRIAL).await?,
            Err(failure) if failure.is_about_values() => {
                transaction.batch_execute(UNDO_TRIAL).await?;
                if let [row] = part {
                    let why = "a value that the table cannot store; leave it out of the attributes";
                    refused.push(refusal(batch.inventory, row, why));
                } else {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
            Err(failure) => return Err(failure),
        }
        if began.elapsed() > SEARCH_LIMIT {
            refused.clear();
            break;
        }
    }
    transaction.rollback().await?;
    Ok(refused)
}

/// The refusal of a row.
fn refusal(inventory: &InventoryId, row: &Row, why: &str) -> RefusedRow {
    RefusedRow {
        key: row.key.clone(),
        why: format!("write inventory {inventory}: {} holds {why}", row.described()),
    }
}

fn has_nul(row: &Row) -> bool {
    let key = &row.key;
    has_escaped_nul(row.attributes.get())
        || [&key.target.name, &key.group, &key.kind, &key.namespace, &key.uid, &row.version, &row.name]
            .iter()
            .any(|text| text.contains('\0'))
}

/// Whether JSON contains the escape `\u0000`, and not an escaped backslash followed by `u0000`.
fn has_escaped_nul(json: &str) -> bool {
    json.match_indices("\\u0000").any(|(position, _)| {
        let before = json.as_bytes().get(..position).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_nul_is_distinguished_from_an_escaped_backslash() {
        assert!(has_escaped_nul(r#"{"a":"x\u0000"}"#));
        assert!(has_escaped_nul(r#"{"a\u0000":1}"#));
        assert!(has_escaped_nul(r#"{"a":"\\\u0000"}"#));
        assert!(!has_escaped_nul(r#"{"a":"\\u0000"}"#));
        assert!(!has_escaped_nul(r#"{"a":"\u0001"}"#));
    }
}
