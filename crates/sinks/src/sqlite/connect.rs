//! Opens a file and brings its tables to the version of this build.
//!
//! Tables, `application_id` and `user_version` are created or migrated in one transaction that holds the write
//! lock: if several connections open the file, one migrates it and the others find it migrated. Readers are not
//! blocked: until the commit they see the old tables.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use kollect_model::sink::{SinkError, SinkReason};
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::sqlite_error;
use crate::{
    columns::{COLUMNS, ClaimTable, Column, KEY, names},
    old_key::TableKey,
};

/// Version of the tables, kept in the file's `user_version`.
const SCHEMA_VERSION: i64 = 5;

/// The last version whose claims lack columns. Such a file can be used without a migration.
const OLD_CLAIMS_VERSION: i64 = 4;

/// The last version whose rows have the old key. Such a file can be used without a migration.
const OLD_KEY_VERSION: i64 = 3;

/// The statements that make the tables of this version.
pub(super) fn schema() -> String {
    format!("{}{OTHER_TABLES}", table_of_rows("inventory"))
}

fn table_of_rows(table: &str) -> String {
    let define = |column: Column| {
        let default = column.default.map(|value| format!(" DEFAULT {value}")).unwrap_or_default();
        format!("    {:<19} TEXT NOT NULL{default},\n", column.name)
    };
    let (columns, key) = (COLUMNS.map(define).concat(), KEY.join(", "));
    format!("\nCREATE TABLE IF NOT EXISTS {table} (\n{columns}    PRIMARY KEY ({key})\n);")
}

const OTHER_TABLES: &str = "
CREATE INDEX IF NOT EXISTS inventory_by_object ON inventory (kind, namespace, name);
CREATE TABLE IF NOT EXISTS kollect_bindings (
    cluster             TEXT NOT NULL,
    inventory_namespace TEXT NOT NULL,
    inventory_name      TEXT NOT NULL,
    owner               TEXT,
    writer              TEXT NOT NULL DEFAULT 'cli',
    epoch               INTEGER NOT NULL,
    last_export         TEXT,
    revision            INTEGER,
    row_count           INTEGER NOT NULL DEFAULT 0,
    coverage            TEXT,
    writer_id           TEXT,
    destination_id      TEXT,
    claimed_at          TEXT,
    taken_from          TEXT,
    writes              INTEGER,
    PRIMARY KEY (cluster, inventory_namespace, inventory_name)
);
PRAGMA application_id = 1263488108;
PRAGMA user_version = 5;
";

/// Files of version 1 have owners without epochs.
const FROM_VERSION_1: &str = "
INSERT INTO kollect_bindings (cluster, inventory_namespace, inventory_name, owner, epoch)
    SELECT cluster, inventory_namespace, inventory_name, owner, 0 FROM kollect_owners;
DROP TABLE kollect_owners;
PRAGMA user_version = 3;
";

/// Files up to version 4 have no ids of claims.
const ADD_CLAIM_COLUMNS: &str = "
ALTER TABLE kollect_bindings ADD COLUMN writer_id TEXT;
ALTER TABLE kollect_bindings ADD COLUMN destination_id TEXT;
ALTER TABLE kollect_bindings ADD COLUMN claimed_at TEXT;
ALTER TABLE kollect_bindings ADD COLUMN taken_from TEXT;
ALTER TABLE kollect_bindings ADD COLUMN writes INTEGER;
";

/// Files of version 2 do not store the writer, the revision and the coverage.
const FROM_VERSION_2: &str = "
ALTER TABLE kollect_bindings ADD COLUMN writer TEXT NOT NULL DEFAULT 'cli';
ALTER TABLE kollect_bindings ADD COLUMN revision INTEGER;
ALTER TABLE kollect_bindings ADD COLUMN coverage TEXT;
PRAGMA user_version = 3;
";

/// "Koll": distinguishes our files from those of other programs.
const APPLICATION_ID: i64 = 1_263_488_108;

/// How long to wait for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before the journal mode is set again: the busy timeout of SQLite does not apply to it.
const JOURNAL_MODE_PAUSE: Duration = Duration::from_millis(5);

/// What a file is, according to its header and its tables.
enum ExistingFile {
    /// It has the tables of this build.
    Current,
    /// It has our tables, whose claims lack columns.
    OldClaims,
    /// It has our tables with the old key, and claims of this build. `rebuildable`: a new table of rows would lose
    /// nothing.
    OldKey { rebuildable: bool },
    /// It has our tables with the old key, whose claims lack columns.
    OldKeyAndClaims,
    /// It has our tables of an older version that must be migrated.
    Older(i64),
    /// It has our tables of a version that this build does not know.
    Unknown(i64),
    /// It has no tables and belongs to no program.
    Empty,
    /// It has tables of another program.
    Foreign,
}

/// Opens a file. With `create`, missing tables are created and older ones migrated.
pub(super) fn connect(file: &Path, create: bool) -> Result<Connection, SinkError> {
    let path = file.display();
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let failed = |error| sqlite_error(format!("open {path}"), error);
    let mut connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let found = provision(&mut connection, create).map_err(failed)?;
    let (reason, why) = match found {
        ExistingFile::Current
        | ExistingFile::OldClaims
        | ExistingFile::OldKey { .. }
        | ExistingFile::OldKeyAndClaims => {
            use_write_ahead_log(&connection).map_err(failed)?;
            return Ok(connection);
        }
        ExistingFile::Older(version) => {
            let why = format!(
                "{path} has tables of version {version}, this build needs version {OLD_KEY_VERSION} to \
                 {SCHEMA_VERSION}, and provisioning.mode is existing: open it once with mode ensure"
            );
            (SinkReason::Incompatible, why)
        }
        ExistingFile::Unknown(version) => {
            let why = format!(
                "{path} has tables of version {version}, this build knows version {SCHEMA_VERSION}: \
                 use another file or another build"
            );
            (SinkReason::Incompatible, why)
        }
        ExistingFile::Foreign => {
            let why = format!("{path} is the database of another program: use another file");
            (SinkReason::Incompatible, why)
        }
        ExistingFile::Empty => {
            let why = format!("{path} has no Kollect tables and provisioning.mode is existing");
            (SinkReason::Missing, why)
        }
    };
    Err(SinkError::new(reason, why))
}

/// Creates or migrates the tables if that is needed and allowed. Returns what the file is afterwards.
fn provision(connection: &mut Connection, create: bool) -> rusqlite::Result<ExistingFile> {
    let is_final = |found: &ExistingFile| match found {
        ExistingFile::Empty
        | ExistingFile::Older(_)
        | ExistingFile::OldClaims
        | ExistingFile::OldKeyAndClaims
        | ExistingFile::OldKey { rebuildable: true } => !create,
        ExistingFile::Current
        | ExistingFile::OldKey { rebuildable: false }
        | ExistingFile::Unknown(_)
        | ExistingFile::Foreign => true,
    };
    // Most files are current: the write lock is taken only if something must be written.
    let mut found = inspect(&connection.transaction()?)?;
    if is_final(&found) {
        return Ok(found);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another connection may have migrated it before this one got the lock.
    found = inspect(&transaction)?;
    while !is_final(&found) {
        match found {
            ExistingFile::Empty => transaction.execute_batch(&schema())?,
            ExistingFile::Older(1) => transaction.execute_batch(&format!("{} {FROM_VERSION_1}", schema()))?,
            ExistingFile::Older(_) => transaction.execute_batch(FROM_VERSION_2)?,
            ExistingFile::OldKeyAndClaims => transaction.execute_batch(ADD_CLAIM_COLUMNS)?,
            ExistingFile::OldClaims => transaction
                .execute_batch(&format!("{ADD_CLAIM_COLUMNS} PRAGMA user_version = {SCHEMA_VERSION};"))?,
            _ => widen_key(&transaction)?,
        }
        found = inspect(&transaction)?;
    }
    transaction.commit()?;
    Ok(found)
}

/// Gives the table of rows the key of this version. SQLite cannot change a key: the rows move to a new table,
/// which takes over the name, the indexes and the triggers of the old one. Views refer to the table by name.
fn widen_key(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let attached: Vec<String> = transaction
        .prepare(
            "SELECT sql FROM sqlite_master
             WHERE tbl_name = 'inventory' AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let (table, columns) = (table_of_rows("kollect_widened"), names());
    // Otherwise RENAME fails if a view refers to `inventory`, which does not exist at that moment.
    transaction.execute_batch("PRAGMA legacy_alter_table = ON")?;
    let moved = transaction.execute_batch(&format!(
        "{table}
         INSERT INTO kollect_widened ({columns}) SELECT {columns} FROM inventory ORDER BY rowid;
         DROP TABLE inventory;
         ALTER TABLE kollect_widened RENAME TO inventory;
         PRAGMA user_version = {SCHEMA_VERSION};"
    ));
    transaction.execute_batch("PRAGMA legacy_alter_table = OFF")?;
    moved?;
    attached.iter().try_for_each(|statement| transaction.execute_batch(statement))
}

/// Whether a new table of rows would lose nothing: users have added no columns, and no table refers to it.
fn is_rebuildable(transaction: &Transaction<'_>) -> rusqlite::Result<bool> {
    let columns: Vec<String> = transaction
        .prepare("SELECT name FROM pragma_table_xinfo('inventory')")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let referring: i64 = transaction.query_row(
        "SELECT count(*) FROM sqlite_master AS other, pragma_foreign_key_list(other.name) AS reference
         WHERE other.type = 'table' AND lower(reference.\"table\") = 'inventory'",
        [],
        |row| row.get(0),
    )?;
    let has_our_columns = COLUMNS.iter().all(|column| columns.iter().any(|name| name == column.name));
    Ok(has_our_columns && columns.len() == COLUMNS.len() && referring == 0)
}

/// The key of the rows in a file that [`connect`] has opened.
pub(super) fn table_key(transaction: &Transaction<'_>) -> rusqlite::Result<TableKey> {
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(if version == OLD_KEY_VERSION { TableKey::Old } else { TableKey::Current })
}

/// The columns of claims in a file that [`connect`] has opened.
pub(super) fn claim_table(connection: &Connection) -> rusqlite::Result<ClaimTable> {
    let columns: Vec<String> = connection
        .prepare("SELECT name FROM pragma_table_info('kollect_bindings')")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(ClaimTable::with(|name| columns.iter().any(|column| column == name)))
}

/// Reads header and tables in one transaction, so that both are of the same state.
fn inspect(transaction: &Transaction<'_>) -> rusqlite::Result<ExistingFile> {
    let number = |query: &str| transaction.query_row(query, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_master")?;
    Ok(match (application, version) {
        (APPLICATION_ID, SCHEMA_VERSION) => ExistingFile::Current,
        (APPLICATION_ID, OLD_CLAIMS_VERSION) => ExistingFile::OldClaims,
        (APPLICATION_ID, OLD_KEY_VERSION) if claim_table(transaction)? == ClaimTable::Old => {
            ExistingFile::OldKeyAndClaims
        }
        (APPLICATION_ID, OLD_KEY_VERSION) => {
            ExistingFile::OldKey { rebuildable: is_rebuildable(transaction)? }
        }
        (APPLICATION_ID, older @ (1 | 2)) => ExistingFile::Older(older),
        (APPLICATION_ID, other) => ExistingFile::Unknown(other),
        (0, 0) if tables == 0 => ExistingFile::Empty,
        _ => ExistingFile::Foreign,
    })
}

/// Turns the write-ahead log on. While another connection does the same, SQLite fails immediately and ignores the
/// busy timeout, so this function retries.
fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<()> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && Instant::now() < deadline =>
            {
                thread::sleep(JOURNAL_MODE_PAUSE);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statuses show this text.
    #[test]
    fn the_definition_of_the_sqlite_table_does_not_change() {
        let expected = "
CREATE TABLE IF NOT EXISTS inventory (
    cluster             TEXT NOT NULL DEFAULT '',
    inventory_namespace TEXT NOT NULL,
    inventory_name      TEXT NOT NULL,
    target_name         TEXT NOT NULL,
    source_uid          TEXT NOT NULL,
    target_namespace    TEXT NOT NULL,
    api_group           TEXT NOT NULL,
    api_version         TEXT NOT NULL,
    kind                TEXT NOT NULL,
    namespace           TEXT NOT NULL,
    name                TEXT NOT NULL,
    resource_namespace  TEXT NOT NULL DEFAULT '',
    payload             TEXT NOT NULL,
    row_digest          TEXT NOT NULL,
    first_seen_at       TEXT NOT NULL,
    changed_at          TEXT NOT NULL,
    exported_at         TEXT NOT NULL,
    PRIMARY KEY (cluster, inventory_namespace, inventory_name, target_name, source_uid, api_group, kind)
);
CREATE INDEX IF NOT EXISTS inventory_by_object ON inventory (kind, namespace, name);
";
        assert!(schema().starts_with(expected), "{}", schema());
    }
}
