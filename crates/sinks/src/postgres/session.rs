//! A session: connected to a checked address, authenticated, with prepared statements.

use std::{collections::HashMap, fs, sync::Arc, time::Duration};

use kollect_model::sink::{SinkError, SinkReason};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit, time::timeout};
use tokio_postgres::{Client, Config as Driver, Statement, config::Host};
use tokio_util::task::AbortOnDropHandle;

use super::{
    CONNECT_LIMIT,
    config::{ClientIdentity, NO_SOCKETS, port},
    dsn::{Dsn, SslMode},
    failure::PostgresError,
    tables::{OldParts, Tables},
    timeouts::Timeouts,
    tls, write,
};
use crate::{
    Network, ResolveError,
    columns::{ClaimTable, baseline_columns},
    connection_task,
    old_key::TableKey,
    tls::ServerTrust,
};

/// Limit for the request that cancels an abandoned statement.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How many tables' statements a session keeps.
const MAX_TABLES: usize = 256;
/// Server, credentials, TLS settings, network policy and time limits. Sinks with equal values may share sessions.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PostgresServer {
    pub(super) dsn: Box<Dsn>,
    pub(super) trust: ServerTrust,
    pub(super) identity: Option<ClientIdentity>,
    pub(super) network: Network,
    pub(super) timeouts: Timeouts,
}

/// A session; dropping it closes the connection.
pub(super) struct Session {
    pub(super) client: Client,
    statements: HashMap<Tables, Arc<Statements>>,
    connector: tls::PostgresTls,
    driver: AbortOnDropHandle<()>,
    /// The permit of the pool, while the session is in use.
    permit: Option<OwnedSemaphorePermit>,
}

/// Statements that are prepared once per session and table.
pub(super) struct Statements {
    pub(super) baseline: Statement,
    pub(super) upsert: Statement,
    pub(super) delete: Statement,
    pub(super) claim: Statement,
    pub(super) note_export: Statement,
    /// The key of the table.
    pub(super) key: TableKey,
    /// The columns of claims.
    pub(super) claims: ClaimTable,
    /// Warnings about tables of older versions.
    pub(super) warnings: Vec<String>,
    /// Whether this user may create temporary tables.
    pub(super) may_stage: bool,
}

/// Cancels a running statement, so that its locks are released, and aborts the connection, so that an unused
/// session does not wait for a server that has stopped answering.
impl Drop for Session {
    fn drop(&mut self) {
        let permit = self.permit.take().filter(|_| !self.is_closed());
        self.driver.abort();
        let Some(permit) = permit else { return };
        let (token, connector) = (self.client.cancel_token(), self.connector.clone());
        // The permit is kept until the server has answered: sessions still count there.
        if Handle::try_current().is_ok() {
            let cancel = async move {
                timeout(CANCEL_LIMIT, token.cancel_query(connector)).await.ok();
                drop(permit);
            };
            drop(connection_task::spawn("cancel a statement", cancel).detach());
        }
    }
}

impl Session {
    /// Connects, within [`CONNECT_LIMIT`].
    pub(super) async fn open(
        server: &PostgresServer,
        network: &Network,
        attempt: &str,
    ) -> Result<Self, SinkError> {
        timeout(CONNECT_LIMIT, connect(server, network, attempt)).await.unwrap_or_else(|_| {
            Err(SinkError::new(SinkReason::Unreachable, format!("{attempt}: no answer within 10 s")))
        })
    }

    /// Whether the connection is known to be lost.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The statements for a table.
    pub(super) async fn statements(&mut self, tables: &Tables) -> Result<Arc<Statements>, PostgresError> {
        if let Some(known) = self.statements.get(tables) {
            return Ok(known.clone());
        }
        if self.statements.len() >= MAX_TABLES {
            self.statements.clear();
        }
        let prepared = Arc::new(Statements::prepare(&self.client, tables).await?);
        self.statements.insert(tables.clone(), prepared.clone());
        Ok(prepared)
    }

    /// Marks the session as in use.
    pub(super) fn in_use(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Marks the session as idle. Returns the permit of the pool.
    pub(super) fn take_permit(&mut self) -> Option<OwnedSemaphorePermit> {
        self.permit.take()
    }
}

impl Statements {
    async fn prepare(client: &Client, tables: &Tables) -> Result<Self, PostgresError> {
        let bindings = tables.bindings();
        let condition = "cluster = $1 AND inventory_namespace = $2 AND inventory_name = $3";
        let may_stage = client
            .query_one("SELECT has_database_privilege(current_database(), 'TEMPORARY')", &[])
            .await?
            .get(0);
        let OldParts { key, claims, warnings } = OldParts::read(client, tables).await?;
        Ok(Self {
            baseline: client
                .prepare(&format!("SELECT {} FROM {tables} WHERE {condition}", baseline_columns()))
                .await?,
            upsert: client.prepare(&write::upsert_arrays(tables, key)).await?,
            delete: client.prepare(&write::delete(tables)).await?,
            // FOR UPDATE locks the claim until the transaction ends: no other writer claims between check and commit.
            claim: client
                .prepare(&format!(
                    "SELECT last_export IS NULL, {} FROM {bindings}
                     WHERE {condition} AND inventory_table = $4 FOR UPDATE",
                    claims.columns().join(", ")
                ))
                .await?,
            note_export: client
                .prepare(&format!(
                    "UPDATE {bindings} SET last_export = now(), row_count = row_count + $5, revision = $6,
                         coverage = $7{}
                     WHERE {condition} AND inventory_table = $4",
                    claims.count_write()
                ))
                .await?,
            key,
            claims,
            warnings,
            may_stage,
        })
    }
}

async fn connect(server: &PostgresServer, network: &Network, attempt: &str) -> Result<Session, SinkError> {
    let dsn = &server.dsn;
    let misconfigured = |problem| SinkError::new(SinkReason::Incompatible, format!("{attempt}: {problem}"));
    let (mode, connector) = tls_settings(server).map_err(misconfigured)?;
    let mut driver = match network {
        Network::Open => dsn.driver.clone(),
        Network::Guarded(_) => with_checked_addresses(&dsn.driver, network, attempt).await?,
    };
    driver.ssl_mode(mode).connect_timeout(CONNECT_LIMIT);
    if driver.get_application_name().is_none() {
        driver.application_name("kollect");
    }
    // A peer that has disappeared is noticed in about a minute, not in hours.
    driver
        .keepalives_idle(Duration::from_secs(30))
        .keepalives_interval(Duration::from_secs(10))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_mins(1));
    let failed =
        |error: tokio_postgres::Error| PostgresError::from(error).into_error(attempt.to_owned(), false);
    let (client, connection) = driver.connect(connector.clone()).await.map_err(failed)?;
    // The next use of the session reports why it ended.
    let driver = connection_task::spawn("drive a session", async move {
        connection.await.ok();
    });
    let session = Session { client, statements: HashMap::new(), connector, driver, permit: None };
    session.client.batch_execute(&server.timeouts.settings()).await.map_err(failed)?;
    Ok(session)
}

/// The driver's settings with a checked address for each name: the driver connects to the address and uses the
/// name for TLS only.
async fn with_checked_addresses(
    configured: &Driver,
    network: &Network,
    attempt: &str,
) -> Result<Driver, SinkError> {
    let forbidden = |why: &str| SinkError::new(SinkReason::Forbidden, format!("{attempt}: {why}"));
    let mut driver = Driver::new();
    driver
        .ssl_negotiation(configured.get_ssl_negotiation())
        .target_session_attrs(configured.get_target_session_attrs())
        .channel_binding(configured.get_channel_binding())
        .load_balance_hosts(configured.get_load_balance_hosts());
    if let Some(user) = configured.get_user() {
        driver.user(user);
    }
    if let Some(password) = configured.get_password() {
        driver.password(password);
    }
    if let Some(database) = configured.get_dbname() {
        driver.dbname(database);
    }
    if let Some(options) = configured.get_options() {
        driver.options(options);
    }
    if let Some(name) = configured.get_application_name() {
        driver.application_name(name);
    }
    let (names, addresses) = (configured.get_hosts(), configured.get_hostaddrs());
    let count = names.len().max(addresses.len());
    let is_ambiguous = !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len();
    if is_ambiguous || configured.get_ports().len() > 1 && configured.get_ports().len() != count {
        let why = format!("{attempt}: host, hostaddr and port must be lists of equal length");
        return Err(SinkError::new(SinkReason::Incompatible, why));
    }
    for index in 0..count {
        let name = match names.get(index) {
            Some(Host::Tcp(name)) => Some(name),
            Some(Host::Unix(_)) => return Err(forbidden(NO_SOCKETS)),
            None => None,
        };
        let port = port(configured, index);
        if let Some(name) = name {
            let checked = network.check_server(name, port);
            checked.map_err(|refusal| forbidden(&refusal.without_address()))?;
        }
        let host =
            addresses.get(index).map(ToString::to_string).or_else(|| name.cloned()).unwrap_or_default();
        match network.resolve(&host, port).await {
            Ok(found) => {
                for address in found {
                    driver.hostaddr(address.ip()).port(address.port());
                    if let Some(name) = name {
                        driver.host(name);
                    }
                }
            }
            // A member of a cluster may be down; one that resolves is enough.
            Err(ResolveError::Lookup(_) | ResolveError::NoAddress | ResolveError::ApiServer(_)) => {}
            Err(ResolveError::Refused(refusal)) => return Err(forbidden(&refusal.without_address())),
        }
    }
    if driver.get_hostaddrs().is_empty() {
        // The name is secret, so the error does not contain it.
        return Err(SinkError::because(SinkReason::Unreachable, attempt, "the host cannot be resolved"));
    }
    Ok(driver)
}

/// The TLS settings of the connection string and the spec, combined.
fn tls_settings(
    server: &PostgresServer,
) -> Result<(tokio_postgres::config::SslMode, tls::PostgresTls), String> {
    let PostgresServer { dsn, trust, identity, .. } = server;
    let read = |option: &str, file| fs::read(file).map_err(|error| format!("read {option}: {error}"));
    let file = dsn.root_cert.as_ref().filter(|file| file.as_os_str() != "system");
    let pem = match (&trust.certificates, file) {
        (Some(pem), _) => Some(pem.clone()),
        (None, Some(file)) => Some(read("sslrootcert", file)?),
        (None, None) => None,
    };
    let trusted = pem.as_deref().map(tls::certificates).transpose()?;
    let identity = match (identity, &dsn.client_cert, &dsn.client_key) {
        (Some(identity), _, _) => Some(tls::identity(&identity.certificate, &identity.key)?),
        (None, Some(certificate), Some(key)) => {
            let (certificate, key) = (read("sslcert", certificate)?, read("sslkey", key)?);
            Some(
                tls::identity(&certificate, &key)
                    .map_err(|problem| format!("sslcert and sslkey: {problem}"))?,
            )
        }
        (None, _, _) => None,
    };
    // If trusted certificates are given without an sslmode, require TLS and check them: no fallback to plain text.
    let default_mode =
        if trusted.is_some() || dsn.root_cert.is_some() { SslMode::VerifyFull } else { SslMode::Prefer };
    let sslmode = dsn.sslmode.unwrap_or(default_mode);
    // As in libpq, Unix sockets do not use TLS in any mode.
    let is_local = dsn.driver.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)))
        && dsn.driver.get_hostaddrs().is_empty();
    let mode = match sslmode {
        _ if is_local => tokio_postgres::config::SslMode::Disable,
        SslMode::Disable => tokio_postgres::config::SslMode::Disable,
        SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            tokio_postgres::config::SslMode::Require
        }
    };
    Ok((mode, tls::client(sslmode, trusted, trust.any_server, identity)?))
}
