//! The table of claims.

use kollect_model::{
    batch::InventoryId,
    claim::{Claim, Claimant, WriterProgram},
};
use tokio_postgres::{Client, Transaction, types::ToSql};

use super::{failure::PostgresError, session::Statements, tables::Tables};
use crate::columns::{CLAIM_COLUMNS, ClaimTable};

/// Claims the inventory.
pub(super) async fn claim(
    client: &mut Client,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    claimant: &Claimant,
) -> Result<Claim, PostgresError> {
    let transaction = client.transaction().await?;
    let bindings = tables.bindings();
    let namespace = inventory.stored_namespace();
    let insert = format!(
        "INSERT INTO {bindings} (cluster, inventory_namespace, inventory_name, inventory_table, epoch)
         VALUES ($1, $2, $3, $4, 0) ON CONFLICT DO NOTHING"
    );
    transaction.execute(&insert, &[&inventory.cluster, &namespace, &inventory.name, &tables.table]).await?;
    let held = locked(&transaction, tables, statements, inventory).await?;
    let held = held.as_ref().map(|(claim, _)| claim);
    let granted = statements.claims.without_missing_columns(claimant.take(inventory, held)?);
    let columns = statements.claims.columns();
    let assignments: Vec<String> =
        columns.iter().zip(5..).map(|(name, number)| format!("{name} = ${number}")).collect();
    // Counted in the database, so that rows that other clients have added or removed are included.
    let update = format!(
        "UPDATE {bindings} SET {}, row_count = (
             SELECT count(*) FROM {tables}
             WHERE cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3)
         WHERE cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3 AND inventory_table = $4",
        assignments.join(", ")
    );
    let writer = granted.writer.as_str();
    let Claim { owner, epoch, writer_id, destination_id, claimed_at, taken_from, writes, .. } = &granted;
    let claim_values: [&(dyn ToSql + Sync); CLAIM_COLUMNS.len()] =
        [owner, &writer, epoch, writer_id, destination_id, claimed_at, taken_from, writes];
    let inventory_values: [&(dyn ToSql + Sync); 4] =
        [&inventory.cluster, &namespace, &inventory.name, &tables.table];
    let values: Vec<_> =
        inventory_values.into_iter().chain(claim_values.into_iter().take(columns.len())).collect();
    transaction.execute(&update, &values).await?;
    transaction.commit().await?;
    Ok(granted)
}

/// The claim in the columns of a result, from column `first` on.
fn claim_of(row: &tokio_postgres::Row, first: usize, table: ClaimTable) -> Claim {
    let old = Claim {
        owner: row.get(first),
        writer: WriterProgram::stored(row.get(first + 1)),
        epoch: row.get(first + 2),
        ..Claim::default()
    };
    match table {
        ClaimTable::Old => old,
        ClaimTable::Current => Claim {
            writer_id: row.get(first + 3),
            destination_id: row.get(first + 4),
            claimed_at: row.get(first + 5),
            taken_from: row.get(first + 6),
            writes: row.get(first + 7),
            ..old
        },
    }
}

/// The claim of an inventory, locked until the transaction ends, and whether nothing was ever exported.
async fn locked(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
) -> Result<Option<(Claim, bool)>, PostgresError> {
    let namespace = inventory.stored_namespace();
    let found = transaction
        .query_opt(&statements.claim, &[&inventory.cluster, &namespace, &inventory.name, &tables.table])
        .await?;
    Ok(found.map(|row| (claim_of(&row, 1, statements.claims), row.get(0))))
}

/// The claims of some inventories, in their order.
pub(super) async fn held(
    client: &Client,
    tables: &Tables,
    table: ClaimTable,
    inventories: &[InventoryId],
) -> Result<Vec<Option<Claim>>, PostgresError> {
    let query = format!(
        "SELECT place.number, {} FROM {} AS held
         JOIN unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY
             AS place (cluster, namespace, name, number)
             ON held.cluster = place.cluster AND held.inventory_namespace = place.namespace
                 AND held.inventory_name = place.name
         WHERE held.inventory_table = $1",
        table.columns().iter().map(|name| format!("held.{name}")).collect::<Vec<_>>().join(", "),
        tables.bindings()
    );
    let texts = |text: fn(&InventoryId) -> &str| inventories.iter().map(text).collect::<Vec<&str>>();
    let clusters = texts(|inventory| &inventory.cluster);
    let (namespaces, names) = (texts(InventoryId::stored_namespace), texts(|inventory| &inventory.name));
    let found = client.query(&query, &[&tables.table, &clusters, &namespaces, &names]).await?;
    let mut claims = vec![None; inventories.len()];
    for row in found {
        let number = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
        claims.iter_mut().skip(number).take(1).for_each(|claim| *claim = Some(claim_of(&row, 1, table)));
    }
    Ok(claims)
}

/// Returns an error unless the granted claim is still the held one. Returns whether nothing was ever exported.
pub(super) async fn check(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    granted: &Claim,
) -> Result<bool, PostgresError> {
    let held = locked(transaction, tables, statements, inventory).await?;
    Claim::admits(held.as_ref().map(|(claim, _)| claim), inventory, granted)?;
    Ok(held.is_some_and(|(_, never_written)| never_written))
}
