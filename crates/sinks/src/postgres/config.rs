//! The configuration of a sink, from a spec, a Secret or a command line: table, server and credentials.

use std::fmt;

use kollect_model::{
    SpecError,
    crd::sinks::{KollectDatabaseSinkSpec, Preview, ProvisioningMode, TablePreview},
    destination::Destination,
    sink::{Sink, SinkError, SinkReason},
};
use tokio_postgres::config::Host;

use super::{
    Pools, PostgresSink,
    dsn::Dsn,
    tables::{self, Tables},
    timeouts::{self, Timeouts},
    tls,
};
use crate::{
    Backend, Network, OutScheme, Secrets, SinkPolicy, SinkSettings, preview::provisioned, tls::ServerTrust,
};

pub(super) const DATABASE_REF: &str = "spec.postgres.databaseRef";
const DATABASE_KEYS: &[&str] = &["dsn", "url", "connectionString", "DATABASE_URL"];
const CERTIFICATE_KEY: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";

/// The table if a destination on a command line names none.
const DEFAULT_TABLE: &str = "inventory";

/// Which table on which server, and whether it may be created.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    pub(super) tables: Tables,
    pub(super) create: bool,
    /// Without certificates: those that the connection string names, or the roots of the machine.
    pub(super) trust: ServerTrust,
    /// `None`: the one that the connection string names, or none.
    pub(super) identity: Option<ClientIdentity>,
    pub(super) timeouts: Timeouts,
    /// `None` until the Secret has been read.
    pub(super) server: Option<Box<Dsn>>,
}

/// A client certificate and its key, PEM both. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ClientIdentity {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Prints no server: its address is secret.
impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("tables", &self.tables)
            .field("create", &self.create)
            .finish_non_exhaustive()
    }
}

impl Backend for PostgresConfig {
    const TYPE: &'static str = "postgres";
    const OUT: Option<OutScheme> =
        Some(OutScheme { schemes: &["postgres", "postgresql"], form: "postgres://USER@HOST/DATABASE" });
    const SECRET_SERVER: bool = true;
    const OPTIONS: &'static [&'static str] = timeouts::OPTIONS;
    type Spec = KollectDatabaseSinkSpec;
    type Clients = Pools;

    fn clients(settings: &SinkSettings) -> Pools {
        Pools::new(settings.idle_limit)
    }

    /// The plan can be opened only after `with_secrets`.
    fn plan(spec: &KollectDatabaseSinkSpec) -> Result<Self, Vec<SpecError>> {
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
        let trust = ServerTrust::plan(spec.common.tls.as_ref()).unwrap_or_else(|error| {
            errors.push(error);
            ServerTrust::default()
        });
        let timeouts = Timeouts::plan(&spec.common.options).unwrap_or_else(|wrong| {
            errors.extend(wrong);
            Timeouts::default()
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        let mode =
            spec.common.provisioning.as_ref().and_then(|provisioning| provisioning.mode).unwrap_or_default();
        Ok(Self {
            tables: Tables { schema: schema.to_owned(), table: postgres.table.clone() },
            create: mode == ProvisioningMode::Ensure,
            trust,
            identity: None,
            timeouts,
            server: None,
        })
    }

    /// Adds the address of the server, and the client certificate if there is one.
    fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
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
        if dsn.client_cert.is_some() || dsn.client_key.is_some() {
            let problem = "the Secret names files in sslcert and sslkey; write what they hold into its keys \
                           tls.crt and tls.key";
            return Err(wrong(DATABASE_REF, problem.into()));
        }
        self.identity = identity(secrets).map_err(|problem| wrong(DATABASE_REF, problem))?;
        self.trust = self.trust.with_secrets(secrets).map_err(|error| vec![error])?;
        self.server = Some(Box::new(dsn));
        Ok(self)
    }

    /// Previews the tables.
    fn preview(&self, _cluster: &str) -> Preview {
        let postgres =
            Some(TablePreview { expected_ddl: Some(tables::statements_for_empty_database(&self.tables)) });
        Preview { postgres, ..provisioned(self.create, "the owner of the database runs these statements") }
    }

    /// A URL with options for the table and the schema.
    fn plan_out(url: &str) -> Result<Self, String> {
        let mut server = Dsn::parse(url, &["table", "schema"])?;
        if server.driver.get_password().is_some() {
            return Err("holds a password, and all users of this machine can read command lines; \
                        put it into PGPASSWORD"
                .into());
        }
        let password = std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        if let Some(password) = password {
            server.driver.password(password);
        }
        let mut tables = Tables { schema: "public".into(), table: DEFAULT_TABLE.into() };
        for (key, name) in std::mem::take(&mut server.kollect_options) {
            tables::check_name(&name).map_err(|problem| format!("{key} {problem}"))?;
            if key == "table" { tables.table = name } else { tables.schema = name }
        }
        let server = Some(Box::new(server));
        let (trust, timeouts) = (ServerTrust::default(), Timeouts::default());
        Ok(Self { tables, create: true, trust, identity: None, timeouts, server })
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        let checked = self.server.as_ref().map_or(Ok(()), |dsn| dsn.check(&policy.network));
        checked.map_err(|problem| vec![SpecError::absent(DATABASE_REF, format!("the Secret: {problem}"))])
    }

    fn destination(&self, _policy: &SinkPolicy) -> Destination {
        let database = self.server.as_ref().map(|dsn| dsn.servers_and_database()).unwrap_or_default();
        Destination::new(format!("postgres://{database}"), [&*self.tables.schema, &*self.tables.table])
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        let [schema, table] = destination.names_at(self.destination(policy).server())?;
        let tables = Tables { schema: schema.to_owned(), table: table.to_owned() };
        Some(Self { tables, ..self.clone() })
    }

    async fn open(&self, policy: &SinkPolicy, pools: &Pools) -> Result<Box<dyn Sink>, SinkError> {
        // The policy is checked for every sink, also if a session is already open.
        self.check(policy).map_err(|errors| {
            let problems: Vec<&str> = errors.iter().map(|error| error.problem.as_str()).collect();
            let attempt = format!("connect to PostgreSQL for table {}", self.tables);
            SinkError::new(SinkReason::Forbidden, format!("{attempt}: {}", problems.join("; ")))
        })?;
        Ok(Box::new(PostgresSink::open(self.clone(), &policy.network, pools).await?))
    }
}

/// The client certificate in the Secret of the server.
fn identity(secrets: &Secrets) -> Result<Option<ClientIdentity>, String> {
    let value_of = |key: &str| secrets.first(DATABASE_REF, &[key]).map(<[u8]>::to_vec);
    match (value_of(CERTIFICATE_KEY), value_of(PRIVATE_KEY)) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            tls::identity(&certificate, &key).map_err(|problem| {
                format!("the client certificate of the Secret ({CERTIFICATE_KEY}, {PRIVATE_KEY}) {problem}")
            })?;
            Ok(Some(ClientIdentity { certificate, key }))
        }
        (Some(_), None) => Err(format!("the Secret has {CERTIFICATE_KEY} and no {PRIVATE_KEY}")),
        (None, Some(_)) => Err(format!("the Secret has {PRIVATE_KEY} and no {CERTIFICATE_KEY}")),
    }
}

impl Dsn {
    fn check(&self, network: &Network) -> Result<(), String> {
        let check = |host: &str, index| {
            let checked = network.check_server(host, port(&self.driver, index));
            // The address is secret, so the error does not contain it.
            checked.map_err(|refusal| refusal.without_address())
        };
        for (index, host) in self.driver.get_hosts().iter().enumerate() {
            match host {
                Host::Tcp(host) => check(host, index)?,
                Host::Unix(_) if *network == Network::Open => {}
                Host::Unix(_) => return Err(NO_SOCKETS.into()),
            }
        }
        let mut addresses = self.driver.get_hostaddrs().iter().enumerate();
        addresses.try_for_each(|(index, address)| check(&address.to_string(), index))
    }

    /// Servers and database, with the defaults of the driver.
    fn servers_and_database(&self) -> String {
        let driver = &self.driver;
        let count = driver.get_hosts().len().max(driver.get_hostaddrs().len());
        let mut servers: Vec<String> = (0..count)
            .map(|index| {
                let host = match (driver.get_hosts().get(index), driver.get_hostaddrs().get(index)) {
                    (Some(Host::Tcp(host)), _) => host.trim_end_matches('.').to_ascii_lowercase(),
                    (Some(Host::Unix(directory)), _) => directory.display().to_string(),
                    (None, address) => address.map(ToString::to_string).unwrap_or_default(),
                };
                format!("{host}:{}", port(driver, index))
            })
            .collect();
        // The order of a cluster's members does not matter.
        servers.sort_unstable();
        let database = driver.get_dbname().or(driver.get_user()).unwrap_or_default();
        format!("{}/{database}", servers.join(","))
    }
}

pub(super) const NO_SOCKETS: &str = "sinks of the operator may not use Unix sockets; name a host";

/// The port of a host, by the host's index in the list.
pub(super) fn port(driver: &tokio_postgres::Config, index: usize) -> u16 {
    driver.get_ports().get(index).or_else(|| driver.get_ports().first()).copied().unwrap_or(5432)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AddressGuard;

    fn destination(url: &str) -> String {
        PostgresConfig::plan_out(url).unwrap().destination(&SinkPolicy::default()).to_string()
    }

    #[test]
    fn one_table_has_one_destination_in_every_spelling() {
        let name = "postgres://db.example:5432/shop \"public\".\"inventory\"";
        for url in [
            "postgres://db.example/shop",
            "postgresql://other@DB.Example.:5432/shop?sslmode=verify-full&application_name=x",
            "postgres://db.example/shop?table=inventory&schema=public&channel_binding=disable",
            "postgres://shop@db.example",
        ] {
            assert_eq!(destination(url), name, "{url}");
        }
        for url in [
            "postgres://db.example:5433/shop",
            "postgres://db.example/shop?table=other",
            "postgres://db.example/shop?schema=other",
            "postgres://db2.example/shop",
            "postgres://db.example/Shop",
        ] {
            assert_ne!(destination(url), name, "{url}");
        }
        assert_eq!(
            destination("postgres://b:5433,a:5432/shop"),
            destination("postgres://a,b:5433/shop"),
            "the members of a cluster have no order"
        );
        assert_eq!(
            destination("postgres:///shop?hostaddr=192.0.2.1"),
            destination("postgres://192.0.2.1/shop")
        );
    }

    #[test]
    fn closed_hosts_are_refused_before_a_connection_is_opened() {
        let guarded =
            SinkPolicy { network: Network::Guarded(AddressGuard::default()), ..SinkPolicy::default() };
        for (url, part) in [
            ("postgres://localhost/x", "the server is this machine"),
            ("postgres://db.example,127.1/x", "loopback"),
            ("postgres://db.example/x?hostaddr=10.0.0.1", "--allow-private-sinks"),
            ("postgres://%2Fvar%2Frun/x", "Unix sockets"),
            ("postgres://[::1]/x", "loopback"),
        ] {
            let config = PostgresConfig::plan_out(url).unwrap();
            let errors = config.check(&guarded).unwrap_err();
            assert!(errors[0].to_string().contains(part), "{}", errors[0]);
            assert_eq!(errors[0].field, DATABASE_REF);
            assert_eq!(config.check(&SinkPolicy::default()), Ok(()));
        }
        assert_eq!(PostgresConfig::plan_out("postgres://db.example/x").unwrap().check(&guarded), Ok(()));
    }
}
