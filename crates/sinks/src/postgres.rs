//! PostgreSQL: one table, one row per row.
//!
//! A batch is one transaction: a reader sees all of it or nothing. The table has the columns of the Go
//! implementation and some more; `kollect_bindings` in the same schema holds the claims. The address is in a
//! Secret and appears in no message: errors name the table instead.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::TryStreamExt as _;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt, RefusedRow},
    claim::{Claim, Claimant},
    row::{RowKey, TargetId},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use tokio::time::{error::Elapsed, timeout};
use tokio_postgres::{Client, Statement, Transaction};

use crate::{Network, columns::HeldRow};

mod channel_binding;
mod claims;
mod config;
mod dsn;
mod failure;
mod pool;
mod refused;
mod relation;
mod session;
mod tables;
mod timeouts;
mod tls;
mod write;

pub use config::PostgresConfig;
use failure::PostgresError;
pub use pool::Pools;
use pool::{Pool, PooledSession};
use session::{PostgresServer, Statements};
use tables::Tables;
use write::AppliedToTable;

/// Limit for opening a session, from the first packet to a usable session.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A table, and sessions to write it with.
pub struct PostgresSink {
    tables: Tables,
    create: bool,
    network: Network,
    pool: Arc<Pool>,
    /// Limit for a server that accepts a request and does not answer.
    answer_limit: Duration,
    /// Whether warnings about tables of older versions have been given.
    warned: AtomicBool,
}

impl PostgresSink {
    /// Connects, and creates or migrates the tables unless the plan says that they must exist.
    pub(crate) async fn open(
        config: PostgresConfig,
        network: &Network,
        pools: &Pools,
    ) -> Result<Self, SinkError> {
        let PostgresConfig { tables, create, trust, identity, timeouts, server } = config;
        let Some(dsn) = server else {
            let why = format!(
                "connect to PostgreSQL for table {tables}: the Secret of {} has not been read",
                config::DATABASE_REF
            );
            return Err(SinkError::new(SinkReason::Missing, why));
        };
        let pool = pools.of(PostgresServer { dsn, trust, identity, network: network.clone(), timeouts });
        let answer_limit = timeouts.answer_limit();
        let warned = AtomicBool::new(false);
        let sink = Self { tables, create, network: network.clone(), pool, answer_limit, warned };
        let mut pooled = sink.pool.acquire(network, &sink.connect_attempt()).await?;
        let outcome =
            timeout(answer_limit, tables::prepare(&mut pooled.session.client, &sink.tables, create));
        let outcome = outcome.await;
        sink.end_session("prepare", pooled, outcome)?;
        // Prepare the statements now, so that an error in them is reported here and not at the first write.
        let (pooled, _) = sink.prepared_session().await?;
        pooled.give_back();
        Ok(sink)
    }

    fn connect_attempt(&self) -> String {
        format!("connect to PostgreSQL for table {}", self.tables)
    }

    /// A session with the statements for the table.
    async fn prepared_session(&self) -> Result<(PooledSession, Arc<Statements>), SinkError> {
        let mut pooled = self.pool.acquire(&self.network, &self.connect_attempt()).await?;
        match timeout(self.answer_limit, pooled.session.statements(&self.tables)).await {
            Ok(Ok(statements)) => Ok((pooled, statements)),
            Ok(Err(failure)) => Err(self.failed("prepare", pooled, failure)),
            Err(_) => Err(self.no_answer("prepare")),
        }
    }

    /// Gives the session back or closes it, depending on the outcome. Failures and timeouts become sink errors.
    fn end_session<T>(
        &self,
        attempt: &str,
        pooled: PooledSession,
        outcome: Result<Result<T, PostgresError>, Elapsed>,
    ) -> Result<T, SinkError> {
        match outcome {
            Ok(Ok(value)) => {
                pooled.give_back();
                Ok(value)
            }
            Ok(Err(failure)) => Err(self.failed(attempt, pooled, failure)),
            Err(_) => Err(self.no_answer(attempt)),
        }
    }

    fn failed(&self, attempt: &str, pooled: PooledSession, failure: PostgresError) -> SinkError {
        if failure.keeps_session() {
            pooled.give_back();
        } else {
            pooled.close();
        }
        failure.into_error(format!("{attempt} table {}", self.tables), self.create)
    }

    fn no_answer(&self, attempt: &str) -> SinkError {
        SinkError::new(SinkReason::Unreachable, format!("{attempt} table {}: no answer", self.tables))
    }

    /// One transaction: checks the claim, applies the delta, records the export. Returns the rows that do not fit the
    /// key of the table.
    async fn write_all(
        &self,
        client: &mut Client,
        statements: &Statements,
        batch: &Batch<'_>,
    ) -> Result<Vec<RefusedRow>, PostgresError> {
        let tables = &self.tables;
        let transaction = client.transaction().await?;
        if claims::check(&transaction, tables, statements, batch.inventory, batch.claim).await? {
            remove_parts(&transaction, tables, batch.inventory).await?;
        }
        let AppliedToTable { grown, refused } =
            write::apply(&transaction, tables, statements, batch.inventory, batch.delta).await?;
        let InventoryId { cluster, name, .. } = batch.inventory;
        let namespace = batch.inventory.stored_namespace();
        transaction
            .execute(
                &statements.note_export,
                &[
                    cluster,
                    &namespace,
                    name,
                    &tables.table,
                    &grown,
                    &i64::try_from(batch.revision).unwrap_or(i64::MAX),
                    &batch.coverage,
                ],
            )
            .await?;
        transaction.commit().await?;
        Ok(refused)
    }

    /// Warnings about tables of older versions; returned by the first write only.
    fn warnings(&self, statements: &Statements) -> Vec<String> {
        if self.warned.swap(true, Ordering::Relaxed) { Vec::new() } else { statements.warnings.clone() }
    }

    /// Writes the rows that the server accepts, and returns the others as refusals.
    async fn write_accepted(
        &self,
        client: &mut Client,
        statements: &Statements,
        batch: &Batch<'_>,
    ) -> Result<Receipt, PostgresError> {
        let mut refused = refused::rows_with_nul(batch);
        loop {
            let delta = refused::without(batch.delta, &refused);
            let batch = Batch { delta: &delta, ..*batch };
            match self.write_all(client, statements, &batch).await {
                Err(error) if error.is_about_values() => {
                    let found = refused::find_refused(client, statements, &batch).await?;
                    if found.is_empty() {
                        return Err(error);
                    }
                    refused.extend(found);
                }
                outcome => {
                    refused.extend(outcome?);
                    let warnings = self.warnings(statements);
                    return Ok(Receipt { refused, warnings, ..Receipt::default() });
                }
            }
        }
    }
}

#[async_trait]
impl Sink for PostgresSink {
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn check(&self) -> Result<(), SinkError> {
        let (pooled, _) = self.prepared_session().await?;
        let outcome = timeout(self.answer_limit, check(&pooled.session.client, &self.tables)).await;
        self.end_session("read", pooled, outcome)
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let (pooled, statements) = self.prepared_session().await?;
        let work = baseline(&pooled.session.client, &statements.baseline, inventory);
        let outcome = timeout(self.answer_limit, work).await;
        self.end_session("read", pooled, outcome)
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let (mut pooled, statements) = self.prepared_session().await?;
        let work = claims::claim(&mut pooled.session.client, &self.tables, &statements, inventory, claimant);
        let outcome = timeout(self.answer_limit, work).await;
        self.end_session("claim", pooled, outcome)
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let (pooled, statements) = self.prepared_session().await?;
        let work = claims::held(&pooled.session.client, &self.tables, statements.claims, inventories);
        let outcome = timeout(self.answer_limit, work).await;
        self.end_session("read the claims of", pooled, outcome)
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let (mut pooled, statements) = self.prepared_session().await?;
        let work = self.write_accepted(&mut pooled.session.client, &statements, batch);
        let outcome = timeout(self.answer_limit, work).await;
        self.end_session("write", pooled, outcome)
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let (mut pooled, statements) = self.prepared_session().await?;
        let work = forget(&mut pooled.session.client, &self.tables, &statements, inventory, claim);
        let outcome = timeout(self.answer_limit, work).await;
        self.end_session("clean", pooled, outcome)
    }
}

/// Removes the rows and the claim record of an inventory.
async fn forget(
    client: &mut Client,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    claim: &Claim,
) -> Result<(), PostgresError> {
    let transaction = client.transaction().await?;
    claims::check(&transaction, tables, statements, inventory, claim).await?;
    remove_parts(&transaction, tables, inventory).await?;
    let InventoryId { cluster, name, .. } = inventory;
    let namespace = inventory.stored_namespace();
    let condition = "cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3";
    let rows = format!("DELETE FROM {tables} WHERE {condition}");
    transaction.execute(&rows, &[cluster, &namespace, name]).await?;
    let record = format!("DELETE FROM {} WHERE {condition} AND inventory_table = $4", tables.bindings());
    transaction.execute(&record, &[cluster, &namespace, name, &tables.table]).await?;
    Ok(transaction.commit().await?)
}

/// Whether the database user has the rights that writing needs. Writes nothing.
async fn check(client: &Client, tables: &Tables) -> Result<(), PostgresError> {
    for (table, rights) in [
        (tables.rows(), ["SELECT", "INSERT", "UPDATE", "DELETE"].as_slice()),
        (tables.bindings(), &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ] {
        for right in rights {
            let granted: bool = client
                .query_one("SELECT has_table_privilege($1::text, $2::text)", &[&table, right])
                .await?
                .get(0);
            if !granted {
                let attempt =
                    format!("use {table}: this user may not {right}; GRANT {} ON {table}", rights.join(", "));
                return Err(SinkError::new(SinkReason::Forbidden, attempt).into());
            }
        }
    }
    Ok(())
}

async fn baseline(
    client: &Client,
    statement: &Statement,
    inventory: &InventoryId,
) -> Result<Baseline, PostgresError> {
    let parameters = [inventory.cluster.as_str(), inventory.stored_namespace(), &inventory.name];
    let mut rows = Box::pin(client.query_raw(statement, parameters).await?);
    // Thousands of rows share a few targets, groups, kinds and namespaces: each text is allocated once.
    let mut shared: HashMap<String, Arc<str>> = HashMap::new();
    let mut share = |text: &str| match shared.get(text) {
        Some(known) => known.clone(),
        None => shared.entry(text.to_owned()).or_insert_with(|| text.into()).clone(),
    };
    // Targets live in the namespace of their inventory; cluster targets have none.
    let target_namespace: Option<Arc<str>> = inventory.namespace.as_deref().map(Into::into);
    let mut baseline = Baseline::new();
    while let Some(row) = rows.try_next().await? {
        let held = HeldRow::read(|column| row.try_get(column))?;
        let key = RowKey {
            target: TargetId { namespace: target_namespace.clone(), name: share(held.target) },
            uid: held.uid.into(),
            group: share(held.group),
            kind: share(held.kind),
            namespace: share(held.namespace),
        };
        baseline.insert(key, held.digest);
    }
    Ok(baseline)
}

/// The Go implementation split large inventories into parts with names of their own, such as
/// `all.part-0001-of-0002`. Removes these rows; the export writes them again under the inventory's own name.
async fn remove_parts(
    transaction: &Transaction<'_>,
    tables: &Tables,
    inventory: &InventoryId,
) -> Result<(), PostgresError> {
    let statement = format!(
        "DELETE FROM {tables} AS held
         WHERE cluster = $1 AND inventory_namespace = $2
             AND starts_with(inventory_name, $3 || '.part-')
             AND substr(inventory_name, length($3) + 7) ~ '^[0-9]{{4,}}-of-[0-9]{{4,}}$'
             AND NOT EXISTS (SELECT FROM {} AS own
                 WHERE own.inventory_table = $4 AND own.cluster = held.cluster
                     AND own.inventory_namespace = held.inventory_namespace
                     AND own.inventory_name = held.inventory_name)",
        tables.bindings()
    );
    let namespace = inventory.stored_namespace();
    transaction
        .execute(&statement, &[&inventory.cluster, &namespace, &inventory.name, &tables.table])
        .await?;
    Ok(())
}
