//! SQLite: one file, one table, one row per row.
//!
//! A batch is one transaction: a reader sees all of it or nothing. The table `inventory` has the columns of the
//! other databases; `kollect_bindings` holds the claims. The file has a write-ahead log, so readers are never
//! blocked.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use kollect_model::{
    SpecError,
    batch::{Baseline, Batch, Delta, InventoryId, Receipt, RefusedRow},
    claim::{Claim, Claimant, WriterProgram},
    crd::sinks::{KollectDatabaseSinkSpec, Preview, ProvisioningMode, TablePreview},
    destination::Destination,
    row::{Row, RowKey, TargetId},
    sink::{Atomicity, Sink, SinkError, SinkReason},
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, ToSql, Transaction, params, params_from_iter};

use crate::{
    Backend, FilePolicy, OutScheme, SinkPolicy, SinkSettings,
    columns::{self, CLAIM_COLUMNS, COLUMNS, ClaimTable, ColumnValue, HeldRow, KEY},
    old_key::{self, HeldKinds, TableKey},
    preview::provisioned,
};

/// The scheme of destinations.
const SCHEME: &str = "sqlite:";

mod connect;

use connect::{claim_table, connect, schema};

/// The parameters are the values of all columns, in their order. With the old key, too, a row never replaces a
/// row of another group or kind.
static UPSERT: LazyLock<String> = LazyLock::new(|| {
    let parameters: Vec<String> = (1..=COLUMNS.len()).map(|number| format!("?{number}")).collect();
    format!(
        "INSERT INTO inventory ({}) VALUES ({})
         ON CONFLICT DO UPDATE SET {} WHERE inventory.row_digest IS NOT excluded.row_digest
             AND inventory.api_group = excluded.api_group AND inventory.kind = excluded.kind",
        columns::names(),
        parameters.join(", "),
        columns::replacements(),
    )
});

/// The parameters are the values of the key columns, in their order.
static DELETE: LazyLock<String> = LazyLock::new(|| {
    let terms: Vec<String> =
        KEY.iter().zip(1..).map(|(name, number)| format!("{name} = ?{number}")).collect();
    format!("DELETE FROM inventory WHERE {}", terms.join(" AND "))
});

fn note_export(table: ClaimTable) -> String {
    format!(
        "UPDATE kollect_bindings
         SET last_export = ?4, row_count = row_count + ?5, revision = ?6, coverage = ?7{}
         WHERE cluster = ?1 AND inventory_namespace = ?2 AND inventory_name = ?3",
        table.count_write()
    )
}

/// Where the file is, and whether it may be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteConfig {
    path: String,
    create: bool,
}

impl SqliteConfig {
    /// A file that is created when it is missing.
    fn file(path: &str) -> Result<Self, String> {
        // SQLite opens a temporary or in-memory database for these names: nothing would be stored.
        if path.is_empty() || path == ":memory:" {
            return Err("is not a file: write a path such as inventory.db".into());
        }
        Ok(Self { path: path.to_owned(), create: true })
    }
}

impl Backend for SqliteConfig {
    const TYPE: &'static str = "sqlite";
    const OUT: Option<OutScheme> = Some(OutScheme { schemes: &["sqlite"], form: "sqlite:FILE" });
    type Spec = KollectDatabaseSinkSpec;
    type Clients = ();

    fn clients(_settings: &SinkSettings) {}

    fn plan(spec: &KollectDatabaseSinkSpec) -> Result<Self, Vec<SpecError>> {
        let Some(sqlite) = &spec.sqlite else {
            return Err(vec![SpecError::absent("spec.sqlite.path", "is required for type sqlite")]);
        };
        let file = Self::file(&sqlite.path).map_err(|problem| {
            vec![SpecError::new("spec.sqlite.path", &sqlite.path.as_str().into(), problem)]
        })?;
        let mode =
            spec.common.provisioning.as_ref().and_then(|provisioning| provisioning.mode).unwrap_or_default();
        Ok(Self { create: mode == ProvisioningMode::Ensure, ..file })
    }

    fn plan_out(text: &str) -> Result<Self, String> {
        Self::file(text.split_once(':').map_or(text, |(_, path)| path))
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        policy
            .files
            .check(&self.path)
            .map_err(|problem| vec![SpecError::new("spec.sqlite.path", &self.path.as_str().into(), problem)])
    }

    /// Previews the tables.
    fn preview(&self, _cluster: &str) -> Preview {
        let sqlite = Some(TablePreview { expected_ddl: Some(schema().trim().to_owned()) });
        Preview { sqlite, ..provisioned(self.create, "the file must have these tables already") }
    }

    fn destination(&self, policy: &SinkPolicy) -> Destination {
        policy.files.destination(SCHEME, &self.path)
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        Some(Self { path: policy.files.path_at(SCHEME, destination)?, ..self.clone() })
    }

    async fn open(&self, policy: &SinkPolicy, (): &()) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(SqliteSink::open(self.clone(), &policy.files).await?))
    }
}

/// An open file.
pub struct SqliteSink {
    path: Arc<Path>,
    /// The file that the path led to when the sink was opened.
    file: FileId,
    connection: Arc<Mutex<Connection>>,
    claims: ClaimTable,
    /// Whether warnings about tables of older versions have been given.
    warned: AtomicBool,
}

impl SqliteSink {
    /// Opens the file, and creates what is missing unless the plan says that it must exist.
    pub(crate) async fn open(config: SqliteConfig, files: &FilePolicy) -> Result<Self, SinkError> {
        let files = files.clone();
        let (path, file, connection, claims) = blocking(move || {
            let forbidden = |why| {
                SinkError::new(
                    SinkReason::Forbidden,
                    format!("open the SQLite file {:?}: {why}", config.path),
                )
            };
            let path = files.resolve(&config.path).map_err(forbidden)?;
            if config.create && matches!(files, FilePolicy::Below(_)) {
                // Users cannot create it: the directory belongs to the operator.
                let parent = path.parent().unwrap_or(&path);
                fs::create_dir_all(parent).map_err(|error| {
                    let attempt = format!("create the directory {}", parent.display());
                    SinkError::because(SinkReason::Missing, attempt, error)
                })?;
            }
            let connection = connect(&path, config.create)?;
            let claims = claim_table(&connection)
                .map_err(|error| sqlite_error(format!("open {}", path.display()), error))?;
            let file = FileId::of(&path).ok_or_else(|| file_removed("open", &path))?;
            Ok((path, file, connection, claims))
        })
        .await?;
        let connection = Arc::new(Mutex::new(connection));
        Ok(Self { path: path.into(), file, connection, claims, warned: AtomicBool::new(false) })
    }

    /// Warnings about tables of older versions; returned by the first write only.
    fn warnings(&self, key: TableKey) -> Vec<String> {
        if self.warned.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        let table = |name: &str| format!("table {name} of {}", self.path.display());
        let old_key = (key == TableKey::Old).then(|| {
            let advice = "open the file once with provisioning.mode: ensure, which keeps it as it is while \
                              the table inventory has columns of others or other tables refer to it";
            old_key::warning(&table("inventory"), advice)
        });
        let old_claims = (self.claims == ClaimTable::Old).then(|| {
            let advice = "open the file once with provisioning.mode: ensure";
            ClaimTable::warning(&table("kollect_bindings"), advice)
        });
        old_key.into_iter().chain(old_claims).collect()
    }

    /// Runs `work` on a thread that may block: SQLite has no async interface.
    async fn run<T: Send + 'static>(
        &self,
        attempt: &'static str,
        work: impl FnOnce(&mut Connection) -> Result<T, WriteError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let (path, file, connection) = (self.path.clone(), self.file, self.connection.clone());
        blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let result = work(&mut connection).map_err(|error| match error {
                WriteError::Sqlite(error) => sqlite_error(format!("{attempt} {}", path.display()), error),
                WriteError::Sink(error) => error,
            });
            // SQLite continues to write a file that was removed or replaced, and readers of the path would not see it.
            if FileId::of(&path) == Some(file) { result } else { Err(file_removed(attempt, &path)) }
        })
        .await
    }
}

/// Identifies a file independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that a path leads to; `None` if it does not exist.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

fn file_removed(attempt: &str, path: &Path) -> SinkError {
    let why = format!("{attempt} {}: the file was removed or replaced", path.display());
    SinkError::new(SinkReason::Missing, why)
}

enum WriteError {
    Sqlite(rusqlite::Error),
    Sink(SinkError),
}

impl From<SinkError> for WriteError {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SinkError> + Send + 'static,
) -> Result<T, SinkError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| SinkError::because(SinkReason::WriteFailed, "run an SQLite statement", error))?
}

fn sqlite_error(attempt: String, error: rusqlite::Error) -> SinkError {
    let reason = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SinkReason::Busy,
        Some(ErrorCode::CannotOpen) => SinkReason::Missing,
        Some(ErrorCode::NotADatabase) => SinkReason::Incompatible,
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => SinkReason::Forbidden,
        _ => SinkReason::WriteFailed,
    };
    SinkError::because(reason, attempt, error)
}

#[async_trait]
impl Sink for SqliteSink {
    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.run("read", |connection| {
            Ok(connection.query_row("SELECT count(*) FROM kollect_bindings", [], |_| Ok(()))?)
        })
        .await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        let inventory = inventory.clone();
        self.run("read", move |connection| baseline(connection, &inventory)).await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        let (inventory, claimant, table) = (inventory.clone(), claimant.clone(), self.claims);
        self.run("claim", move |connection| {
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let claim = claim(&transaction, table, &inventory, &claimant)?;
            transaction.commit()?;
            Ok(claim)
        })
        .await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        let (inventories, table) = (inventories.to_vec(), self.claims);
        self.run("read the claims of", move |connection| {
            let transaction = connection.transaction()?;
            inventories.iter().map(|inventory| held_claim(&transaction, table, inventory)).collect()
        })
        .await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let (inventory, claim, delta) = (batch.inventory.clone(), batch.claim.clone(), batch.delta.clone());
        let (revision, coverage) = (i64::try_from(batch.revision).ok(), batch.coverage.to_owned());
        let table = self.claims;
        let (key, refused) = self
            .run("write", move |connection| {
                // Take the write lock first, so that no other writer claims between check and write.
                let transaction =
                    connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                check_claim(&transaction, table, &inventory, &claim)?;
                let now: String =
                    transaction
                        .query_row("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')", [], |row| row.get(0))?;
                let AppliedToFile { key, grown, refused } = apply(&transaction, &inventory, &delta, &now)?;
                transaction.prepare_cached(&note_export(table))?.execute(params![
                    inventory.cluster,
                    inventory.stored_namespace(),
                    inventory.name,
                    now,
                    grown,
                    revision,
                    coverage
                ])?;
                transaction.commit()?;
                Ok((key, refused))
            })
            .await?;
        Ok(Receipt { refused, warnings: self.warnings(key), ..Receipt::default() })
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        let (inventory, claim, table) = (inventory.clone(), claim.clone(), self.claims);
        self.run("clean", move |connection| {
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            check_claim(&transaction, table, &inventory, &claim)?;
            for table in ["inventory", "kollect_bindings"] {
                transaction.execute(
                    &format!(
                        "DELETE FROM {table}
                         WHERE cluster = ?1 AND inventory_namespace = ?2 AND inventory_name = ?3"
                    ),
                    params![inventory.cluster, inventory.stored_namespace(), inventory.name],
                )?;
            }
            Ok(transaction.commit()?)
        })
        .await
    }
}

fn baseline(connection: &Connection, inventory: &InventoryId) -> Result<Baseline, WriteError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {} FROM inventory
         WHERE cluster = ?1 AND inventory_namespace = ?2 AND inventory_name = ?3",
        columns::baseline_columns()
    ))?;
    let parameters = params![inventory.cluster, inventory.stored_namespace(), inventory.name];
    let mut rows = statement.query(parameters)?;
    let mut baseline = Baseline::new();
    while let Some(row) = rows.next()? {
        let held = HeldRow::read(|column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from))?;
        let key = RowKey {
            target: TargetId {
                // Targets live in the namespace of their inventory; cluster targets have none.
                namespace: inventory.namespace.as_deref().map(Into::into),
                name: held.target.into(),
            },
            uid: held.uid.into(),
            group: held.group.into(),
            kind: held.kind.into(),
            namespace: held.namespace.into(),
        };
        baseline.insert(key, held.digest);
    }
    Ok(baseline)
}

/// Claims the inventory.
fn claim(
    transaction: &Transaction<'_>,
    table: ClaimTable,
    inventory: &InventoryId,
    claimant: &Claimant,
) -> Result<Claim, WriteError> {
    let held = held_claim(transaction, table, inventory)?;
    let granted = table.without_missing_columns(claimant.take(inventory, held.as_ref())?);
    let columns = table.columns();
    let parameters: Vec<String> = (4..4 + columns.len()).map(|number| format!("?{number}")).collect();
    let replacements: Vec<String> = columns.iter().map(|name| format!("{name} = excluded.{name}")).collect();
    let statement = format!(
        "INSERT INTO kollect_bindings (cluster, inventory_namespace, inventory_name, {}) VALUES (?1, ?2, ?3, {})
         ON CONFLICT DO UPDATE SET {}",
        columns.join(", "),
        parameters.join(", "),
        replacements.join(", ")
    );
    let (namespace, writer) = (inventory.stored_namespace(), granted.writer.as_str());
    let Claim { owner, epoch, writer_id, destination_id, claimed_at, taken_from, writes, .. } = &granted;
    let claim_values: [&dyn ToSql; CLAIM_COLUMNS.len()] =
        [owner, &writer, epoch, writer_id, destination_id, claimed_at, taken_from, writes];
    let inventory_values: [&dyn ToSql; 3] = [&inventory.cluster, &namespace, &inventory.name];
    let values = inventory_values.into_iter().chain(claim_values.into_iter().take(columns.len()));
    transaction.execute(&statement, params_from_iter(values))?;
    Ok(granted)
}

/// The claim of an inventory.
fn held_claim(
    transaction: &Transaction<'_>,
    table: ClaimTable,
    inventory: &InventoryId,
) -> Result<Option<Claim>, WriteError> {
    let parameters = params![inventory.cluster, inventory.stored_namespace(), inventory.name];
    let query = format!(
        "SELECT {} FROM kollect_bindings
         WHERE cluster = ?1 AND inventory_namespace = ?2 AND inventory_name = ?3",
        table.columns().join(", ")
    );
    let read = |row: &rusqlite::Row<'_>| {
        let writer: String = row.get(1)?;
        let old = Claim {
            owner: row.get(0)?,
            writer: WriterProgram::stored(&writer),
            epoch: row.get(2)?,
            ..Claim::default()
        };
        if table == ClaimTable::Old {
            return Ok(old);
        }
        Ok(Claim {
            writer_id: row.get(3)?,
            destination_id: row.get(4)?,
            claimed_at: row.get(5)?,
            taken_from: row.get(6)?,
            writes: row.get(7)?,
            ..old
        })
    };
    Ok(transaction.prepare_cached(&query)?.query_row(parameters, read).optional()?)
}

/// Returns an error unless the granted claim is still the held one.
fn check_claim(
    transaction: &Transaction<'_>,
    table: ClaimTable,
    inventory: &InventoryId,
    granted: &Claim,
) -> Result<(), WriteError> {
    Ok(Claim::admits(held_claim(transaction, table, inventory)?.as_ref(), inventory, granted)?)
}

/// The result of applying a delta.
struct AppliedToFile {
    /// The key of the table.
    key: TableKey,
    /// By how many rows the table has grown.
    grown: i64,
    /// Rows that do not fit the key of the table.
    refused: Vec<RefusedRow>,
}

/// Writes the rows that differ.
fn apply(
    transaction: &Transaction<'_>,
    inventory: &InventoryId,
    delta: &Delta,
    now: &str,
) -> Result<AppliedToFile, WriteError> {
    // Removals first: with the old key, a row that moved to another API group takes over its own former key.
    let mut removed = 0;
    for row in &delta.removed {
        removed += remove(transaction, inventory, &row.key)?;
    }
    let rows: Vec<&Row> = delta.rows().map(AsRef::as_ref).collect();
    let key = connect::table_key(transaction)?;
    let (rows, refused) = match key {
        TableKey::Current => (rows, Vec::new()),
        TableKey::Old => old_key::fit(inventory, &rows, &held_kinds(transaction, inventory, &rows)?),
    };
    for row in rows {
        upsert(transaction, inventory, row, now)?;
    }
    let refused_keys: HashSet<&RowKey> = refused.iter().map(|refusal| &refusal.key).collect();
    let added = delta.added.iter().filter(|row| !refused_keys.contains(&row.key)).count();
    let count = |rows: usize| i64::try_from(rows).unwrap_or(i64::MAX);
    Ok(AppliedToFile { key, grown: count(added) - count(removed), refused })
}

/// The groups and kinds that a table with the old key holds for the objects of these rows.
fn held_kinds(
    transaction: &Transaction<'_>,
    inventory: &InventoryId,
    rows: &[&Row],
) -> Result<HeldKinds, WriteError> {
    let mut statement = transaction.prepare_cached(
        "SELECT api_group, kind FROM inventory WHERE cluster = ?1 AND inventory_namespace = ?2
             AND inventory_name = ?3 AND target_name = ?4 AND source_uid = ?5",
    )?;
    let mut held = HeldKinds::new();
    for row in rows {
        let (target, uid) = old_key::differing_part(&row.key);
        let parameters =
            params![inventory.cluster, inventory.stored_namespace(), inventory.name, target, uid];
        let found = statement.query_row(parameters, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        held.extend(found.map(|kind| ((target.to_owned(), uid.to_owned()), kind)));
    }
    Ok(held)
}

fn upsert(
    transaction: &Transaction<'_>,
    inventory: &InventoryId,
    row: &Row,
    now: &str,
) -> Result<(), WriteError> {
    let payload =
        serde_json::to_string(row).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let digest = row.digest.to_string();
    let values = COLUMNS.map(|column| match column.value {
        ColumnValue::Inventory(text) => text(inventory),
        ColumnValue::Row(text) => text(row),
        ColumnValue::Payload => payload.as_str(),
        ColumnValue::Digest => digest.as_str(),
        ColumnValue::Since | ColumnValue::Now => now,
    });
    transaction.prepare_cached(&UPSERT)?.execute(params_from_iter(values))?;
    Ok(())
}

/// Returns how many rows it has removed.
fn remove(transaction: &Transaction<'_>, inventory: &InventoryId, key: &RowKey) -> Result<usize, WriteError> {
    Ok(transaction.prepare_cached(&DELETE)?.execute(params![
        inventory.cluster,
        inventory.stored_namespace(),
        inventory.name,
        &*key.target.name,
        &*key.uid,
        &*key.group,
        &*key.kind,
    ])?)
}
