//! PostgreSQL: one table, one row per row.
//!
//! A batch is one transaction: a reader sees all of it or nothing. The table has the columns of the Go
//! implementation and some more; `kollect_bindings` in the same schema says which cluster an inventory
//! belongs to and who may write it. The address is in a Secret and appears in no message: what fails is
//! named by its table.

use std::{collections::HashMap, fmt, fs, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::TryStreamExt as _;
use kollect_model::{
    SpecError,
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant, Holder, Writer},
    crd::sinks::{KollectDatabaseSinkSpec, ProvisioningMode},
    row::{RowDigest, RowKey, TargetId},
    sink::{Sink, SinkError, SinkReason},
};
use tokio::{sync::Mutex, task::JoinHandle, time::timeout};
use tokio_postgres::{Client, Statement, Transaction, config::Host, types::ToSql};

use crate::{Secrets, tls::certificates};

mod dsn;
mod failure;
mod tables;
mod tls;
mod write;

use dsn::{Dsn, SslMode};
use failure::Failure;
use tables::Tables;

const DATABASE_REF: &str = "spec.postgres.databaseRef";
const DATABASE_KEYS: &[&str] = &["dsn", "url", "connectionString", "DATABASE_URL"];
const CA_REF: &str = "spec.tls.caSecretRef";
const CA_KEYS: &[&str] = &["tls.crt", "ca.crt", "ca.pem"];

/// Table of a destination on a command line that names none.
const TABLE: &str = "inventory";

/// From the first packet to a session that can be used.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// For a server that accepts and then says nothing; longer than any statement may take.
const ANSWER_LIMIT: Duration = Duration::from_mins(6);
/// With so many rows that the server refuses one by one, something else is wrong.
const MANY_REFUSED: usize = 100;
/// Of the session. A lock is held by another writer, and by nobody for long.
const SESSION: &str = "SET statement_timeout = '5min'; SET lock_timeout = '10s'; \
                       SET idle_in_transaction_session_timeout = '5min'";

/// Which table, on which server, and whether it may be created.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    tables: Tables,
    create: bool,
    trust: Trust,
    /// `None` until the Secret has been read.
    server: Option<Box<Dsn>>,
}

/// Which servers to trust.
#[derive(Clone, PartialEq, Eq)]
struct Trust {
    /// PEM; `None`: what the connection string names, or the roots of the machine.
    certificates: Option<Vec<u8>>,
    anybody: bool,
}

/// Without the server: its address is a secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("tables", &self.tables)
            .field("create", &self.create)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The plan of a sink of type postgres. It opens after [`Config::with_secrets`].
    pub fn plan(spec: &KollectDatabaseSinkSpec) -> Result<Self, Vec<SpecError>> {
        let Some(postgres) = &spec.postgres else {
            return Err(vec![SpecError::absent("spec.postgres", "is required for type postgres")]);
        };
        let schema = postgres.schema.as_deref().unwrap_or("public");
        let mut errors = Vec::new();
        for (field, name) in [("spec.postgres.schema", schema), ("spec.postgres.table", &postgres.table)] {
            if let Err(problem) = tables::check_name(name) {
                errors.push(SpecError::new(field, &name.into(), problem));
            }
        }
        let tls = spec.common.tls.clone().unwrap_or_default();
        let bundle = tls.ca_bundle.as_deref().map(|bundle| {
            let pem = STANDARD.decode(bundle.trim()).map_err(|_| "is not base64".to_owned())?;
            certificates(&pem).map(|_| pem)
        });
        let certificates = bundle.transpose().unwrap_or_else(|problem| {
            errors.push(SpecError::absent("spec.tls.caBundle", problem));
            None
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        let mode = spec.common.provisioning.as_ref().and_then(|p| p.mode).unwrap_or_default();
        Ok(Self {
            tables: Tables { schema: schema.to_owned(), table: postgres.table.clone() },
            create: mode == ProvisioningMode::Ensure,
            trust: Trust { certificates, anybody: tls.insecure_skip_verify },
            server: None,
        })
    }

    /// The plan with the address of the server.
    pub fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        let wrong = |field, problem| vec![SpecError::absent(field, problem)];
        let Some(text) = secrets.first(DATABASE_REF, DATABASE_KEYS) else {
            let problem = format!("the Secret has none of the keys {}", DATABASE_KEYS.join(", "));
            return Err(wrong(DATABASE_REF, problem));
        };
        let text =
            str::from_utf8(text).map_err(|_| wrong(DATABASE_REF, "the Secret holds no text".into()))?;
        let dsn =
            Dsn::parse(text, &[]).map_err(|problem| wrong(DATABASE_REF, format!("the Secret {problem}")))?;
        if dsn.root_cert.as_ref().is_some_and(|file| file.as_os_str() != "system") {
            let problem =
                "the Secret names a file in sslrootcert; write the certificates into spec.tls.caBundle";
            return Err(wrong(DATABASE_REF, problem.into()));
        }
        if let Some(pem) = secrets.first(CA_REF, CA_KEYS) {
            certificates(pem).map_err(|problem| wrong(CA_REF, format!("the Secret {problem}")))?;
            self.trust.certificates = Some(pem.to_vec());
        }
        self.server = Some(Box::new(dsn));
        Ok(self)
    }

    /// A URL on a command line, with the table and schema as options of their own.
    pub fn destination(url: &str) -> Result<Self, String> {
        let mut server = Dsn::parse(url, &["table", "schema"])?;
        if server.driver.get_password().is_some() {
            return Err("holds a password, and everybody on this machine can read command lines; \
                        put it into PGPASSWORD"
                .into());
        }
        let password = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        if let Some(password) = password {
            server.driver.password(password);
        }
        let mut tables = Tables { schema: "public".into(), table: TABLE.into() };
        for (key, name) in std::mem::take(&mut server.own) {
            tables::check_name(&name).map_err(|problem| format!("{key} {problem}"))?;
            if key == "table" { tables.table = name } else { tables.schema = name }
        }
        let trust = Trust { certificates: None, anybody: false };
        Ok(Self { tables, create: true, trust, server: Some(Box::new(server)) })
    }
}

/// An open session.
pub struct PostgresSink {
    tables: Tables,
    create: bool,
    client: Mutex<Client>,
    statements: Statements,
    session: JoinHandle<()>,
}

/// Prepared once for each session.
struct Statements {
    baseline: Statement,
    upsert: Statement,
    delete: Statement,
    holder: Statement,
    note_export: Statement,
    /// Whether this user may create temporary tables.
    may_stage: bool,
}

/// A session whose sink is gone must not wait for a server that has stopped answering.
impl Drop for PostgresSink {
    fn drop(&mut self) {
        self.session.abort();
    }
}

impl PostgresSink {
    /// Connects, and creates or migrates the tables unless the plan says that they must exist.
    pub async fn open(config: Config) -> Result<Self, SinkError> {
        let Config { tables, create, trust, server } = config;
        let attempt = format!("connect to PostgreSQL for table {tables}");
        let Some(dsn) = server else {
            let why = format!("{attempt}: the Secret of {DATABASE_REF} has not been read");
            return Err(SinkError::new(SinkReason::Missing, why));
        };
        let connected = timeout(CONNECT_LIMIT, connect(*dsn, &trust, &attempt)).await;
        let no_answer =
            |_| SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer within 10 s"));
        let (mut client, session) = connected.map_err(no_answer)??;
        let statements = prepare(&mut client, &tables, create)
            .await
            .map_err(|error| error.into_error(format!("prepare table {tables}"), create))?;
        Ok(Self { tables, create, client: Mutex::new(client), statements, session })
    }

    /// One transaction: the claim is checked, the delta applied, the export noted.
    async fn write_all(&self, client: &mut Client, batch: &Batch<'_>) -> Result<(), Failure> {
        let Self { tables, statements, .. } = self;
        let transaction = client.transaction().await?;
        if check_claim(&transaction, tables, statements, batch.inventory, batch.claim).await? {
            remove_parts(&transaction, tables, batch.inventory).await?;
        }
        let grown = write::apply(&transaction, tables, statements, batch.inventory, batch.delta).await?;
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
        Ok(transaction.commit().await?)
    }

    /// Turns failures into errors, and silence too.
    async fn bounded<T>(
        &self,
        attempt: &str,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, SinkError> {
        let attempt = format!("{attempt} table {}", self.tables);
        match timeout(ANSWER_LIMIT, work).await {
            Ok(outcome) => outcome.map_err(|error| error.into_error(attempt, self.create)),
            Err(_) => Err(SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer"))),
        }
    }
}

async fn connect(dsn: Dsn, trust: &Trust, attempt: &str) -> Result<(Client, JoinHandle<()>), SinkError> {
    let misconfigured = |problem| SinkError::new(SinkReason::Incompatible, format!("{attempt}: {problem}"));
    let (mode, connector) = security(&dsn, trust).map_err(misconfigured)?;
    let mut driver = dsn.driver;
    driver.ssl_mode(mode).connect_timeout(CONNECT_LIMIT);
    if driver.get_application_name().is_none() {
        driver.application_name("kollect");
    }
    // A peer that vanished is noticed in about a minute, not in hours.
    driver
        .keepalives_idle(Duration::from_secs(30))
        .keepalives_interval(Duration::from_secs(10))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_mins(1));
    let failed = |error: tokio_postgres::Error| Failure::from(error).into_error(attempt.to_owned(), false);
    let (client, connection) = driver.connect(connector).await.map_err(failed)?;
    // Why a session ended is told to whoever uses it next.
    let session = tokio::spawn(async move {
        connection.await.ok();
    });
    client.batch_execute(SESSION).await.map_err(failed)?;
    Ok((client, session))
}

/// What the connection string and the spec say about TLS, taken together.
fn security(dsn: &Dsn, trust: &Trust) -> Result<(tokio_postgres::config::SslMode, tls::Connector), String> {
    let file = dsn.root_cert.as_ref().filter(|file| file.as_os_str() != "system");
    let pem = match (&trust.certificates, file) {
        (Some(pem), _) => Some(pem.clone()),
        (None, Some(file)) => Some(fs::read(file).map_err(|error| format!("read sslrootcert: {error}"))?),
        (None, None) => None,
    };
    let trusted = pem.as_deref().map(certificates).transpose()?;
    // Whoever says whom to trust wants that checked, and not given up by the first who says "no TLS".
    let unsaid =
        if trusted.is_some() || dsn.root_cert.is_some() { SslMode::VerifyFull } else { SslMode::Prefer };
    let sslmode = dsn.sslmode.unwrap_or(unsaid);
    // Unix sockets have no TLS, whatever the mode: as in libpq.
    let local = dsn.driver.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
        && dsn.driver.get_hostaddrs().is_empty();
    let mode = match sslmode {
        _ if local => tokio_postgres::config::SslMode::Disable,
        SslMode::Disable => tokio_postgres::config::SslMode::Disable,
        SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            tokio_postgres::config::SslMode::Require
        }
    };
    Ok((mode, tls::client(sslmode, trusted, trust.anybody)?))
}

async fn prepare(client: &mut Client, tables: &Tables, create: bool) -> Result<Statements, Failure> {
    tables::prepare(client, tables, create).await?;
    let bindings = tables.bindings();
    let place = "cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3";
    let may_stage =
        client.query_one("SELECT has_database_privilege(current_database(), 'TEMPORARY')", &[]).await?.get(0);
    Ok(Statements {
        baseline: client
            .prepare(&format!(
                "SELECT target_name, source_uid, api_group, kind, namespace, row_digest FROM {tables} WHERE {place}"
            ))
            .await?,
        upsert: client.prepare(&write::upsert_arrays(tables)).await?,
        delete: client.prepare(&write::delete(tables)).await?,
        // Locked until the transaction ends: nobody claims between check and commit.
        holder: client
            .prepare(&format!(
                "SELECT owner, writer, epoch, last_export IS NULL FROM {bindings}
                 WHERE {place} AND inventory_table = $4 FOR UPDATE"
            ))
            .await?,
        note_export: client
            .prepare(&format!(
                "UPDATE {bindings} SET last_export = now(), row_count = row_count + $5, revision = $6,
                     coverage = $7
                 WHERE {place} AND inventory_table = $4"
            ))
            .await?,
        may_stage,
    })
}

#[async_trait]
impl Sink for PostgresSink {
    async fn check(&self) -> Result<(), SinkError> {
        self.bounded("read", async {
            let client = self.client.lock().await;
            check(&client, &self.tables).await
        })
        .await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.bounded("read", async {
            let client = self.client.lock().await;
            baseline(&client, &self.statements.baseline, inventory).await
        })
        .await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.bounded("claim", async {
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await?;
            let claim = claim(&transaction, &self.tables, &self.statements, inventory, claimant).await?;
            transaction.commit().await?;
            Ok(claim)
        })
        .await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let mut refused = write::unfit(batch);
        self.bounded("write", async {
            let mut client = self.client.lock().await;
            loop {
                let delta = write::without(batch.delta, &refused);
                let batch = Batch { delta: &delta, ..*batch };
                match self.write_all(&mut client, &batch).await {
                    Err(error) if error.is_about_values() && refused.len() < MANY_REFUSED => {
                        match write::name_refused(&mut client, &self.statements.upsert, &batch).await {
                            Some(named) => refused.push(named),
                            None => return Err(error),
                        }
                    }
                    outcome => return outcome.map(|()| Receipt { checksum: None, refused }),
                }
            }
        })
        .await
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.bounded("clean", async {
            let Self { tables, statements, .. } = self;
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await?;
            check_claim(&transaction, tables, statements, inventory, claim).await?;
            remove_parts(&transaction, tables, inventory).await?;
            let InventoryId { cluster, name, .. } = inventory;
            let namespace = inventory.stored_namespace();
            let place = "cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3";
            let rows = format!("DELETE FROM {tables} WHERE {place}");
            transaction.execute(&rows, &[cluster, &namespace, name]).await?;
            let record = format!("DELETE FROM {} WHERE {place} AND inventory_table = $4", tables.bindings());
            transaction.execute(&record, &[cluster, &namespace, name, &tables.table]).await?;
            Ok(transaction.commit().await?)
        })
        .await
    }
}

/// Whether this user may do what writing needs, without writing.
async fn check(client: &Client, tables: &Tables) -> Result<(), Failure> {
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
) -> Result<Baseline, Failure> {
    let place = [inventory.cluster.as_str(), inventory.stored_namespace(), &inventory.name];
    let mut rows = Box::pin(client.query_raw(statement, place).await?);
    // Thousands of rows share a few targets, groups, kinds and namespaces.
    let mut shared: HashMap<String, Arc<str>> = HashMap::new();
    let mut share = |text: &str| match shared.get(text) {
        Some(known) => known.clone(),
        None => shared.entry(text.to_owned()).or_insert_with(|| text.into()).clone(),
    };
    // Targets live in the namespace of their inventory; cluster targets in none.
    let target_namespace: Option<Arc<str>> = inventory.namespace.as_deref().map(Into::into);
    let mut baseline = Baseline::new();
    while let Some(row) = rows.try_next().await? {
        let key = RowKey {
            target: TargetId { namespace: target_namespace.clone(), name: share(row.try_get(0)?) },
            uid: row.try_get::<_, &str>(1)?.into(),
            group: share(row.try_get(2)?),
            kind: share(row.try_get(3)?),
            namespace: share(row.try_get(4)?),
        };
        // A digest that somebody has spoilt equals none, so the row is written again.
        let digest = row.try_get::<_, &str>(5)?.parse().unwrap_or(RowDigest(0));
        baseline.insert(key, digest);
    }
    Ok(baseline)
}

/// Takes the inventory over.
async fn claim(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    claimant: &Claimant,
) -> Result<Claim, Failure> {
    let bindings = tables.bindings();
    let namespace = inventory.stored_namespace();
    let begin = format!(
        "INSERT INTO {bindings} (cluster, inventory_namespace, inventory_name, inventory_table, epoch)
         VALUES ($1, $2, $3, $4, 0) ON CONFLICT DO NOTHING"
    );
    transaction.execute(&begin, &[&inventory.cluster, &namespace, &inventory.name, &tables.table]).await?;
    let held = holder(transaction, tables, statements, inventory).await?;
    let taken = claimant.take(inventory, held.as_ref().map(|(holder, _)| holder))?;
    // Counted here, so that rows that others have added or removed count as well.
    let take = format!(
        "UPDATE {bindings} SET owner = $5, writer = $6, epoch = $7, row_count = (
             SELECT count(*) FROM {tables}
             WHERE cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3)
         WHERE cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3 AND inventory_table = $4"
    );
    let place: [&(dyn ToSql + Sync); 7] = [
        &inventory.cluster,
        &namespace,
        &inventory.name,
        &tables.table,
        &taken.owner,
        &taken.writer.as_str(),
        &taken.epoch,
    ];
    transaction.execute(&take, &place).await?;
    Ok(taken.claim())
}

/// The holder of an inventory, locked until the transaction ends, and whether nothing was ever written.
async fn holder(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
) -> Result<Option<(Holder, bool)>, Failure> {
    let namespace = inventory.stored_namespace();
    let found = transaction
        .query_opt(&statements.holder, &[&inventory.cluster, &namespace, &inventory.name, &tables.table])
        .await?;
    Ok(found.map(|row| {
        let holder = Holder { owner: row.get(0), writer: Writer::stored(row.get(1)), epoch: row.get(2) };
        (holder, row.get(3))
    }))
}

/// Makes sure that nobody has claimed the inventory since. Answers whether nothing was ever written.
async fn check_claim(
    transaction: &Transaction<'_>,
    tables: &Tables,
    statements: &Statements,
    inventory: &InventoryId,
    claim: &Claim,
) -> Result<bool, Failure> {
    let held = holder(transaction, tables, statements, inventory).await?;
    Holder::admits(held.as_ref().map(|(holder, _)| holder), inventory, claim)?;
    Ok(held.is_some_and(|(_, never_written)| never_written))
}

/// The Go implementation cut large inventories into parts with names of their own, such as
/// `all.part-0001-of-0002`. Their rows come back under the inventory's own name.
async fn remove_parts(
    transaction: &Transaction<'_>,
    tables: &Tables,
    inventory: &InventoryId,
) -> Result<(), Failure> {
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
