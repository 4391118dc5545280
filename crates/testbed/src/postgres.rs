//! A Postgres server from the programs that the machine has installed.
//!
//! Called by the tests of the database sink, the demo and benches. Listens on loopback TCP only,
//! trusts all users except members of the roles `with_password` and, with TLS, `with_certificate`, and never
//! waits for the disk. Postgres refuses to run as root, so root runs it as the user `postgres`, who then
//! owns the scratch directory.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::ports::on_free_port;
use crate::{Error, Scratch, Server, Stop};

/// Where Debian and Ubuntu install each major version, outside of `PATH`.
const DEBIAN_DIRECTORY: &str = "/usr/lib/postgresql";
/// The first line that matches a client decides. The roles need not exist.
const ACCESS_RULES: &str = "host all +with_password all scram-sha-256\nhost all all all trust\n";
/// With TLS these lines come first: the common name of the certificate must be the user.
const ACCESS_RULES_BY_CERTIFICATE: &str = "hostssl all +with_certificate all trust clientcert=verify-full\nhostnossl all +with_certificate all reject\n";
const START_LIMIT: Duration = Duration::from_mins(1);

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    port: u16,
    scratch: Scratch,
    unprivileged_command: fn(&Path) -> Command,
    /// Certificate of the server, PEM; `None` without TLS.
    certificate: Option<String>,
    /// Signs certificates of clients; `None` without TLS.
    authority: Option<Authority>,
    /// `None` while it is down.
    server: Option<Server>,
}

impl Postgres {
    /// Starts a server of its own for one test, and returns when it answers.
    pub fn start() -> Result<Self, Error> {
        let programs = programs(Path::new(DEBIAN_DIRECTORY), "pg_config").ok_or(Error::PostgresMissing)?;
        on_free_port(|port| Self::start_on(port, &programs, None))
    }

    /// Like [`Self::start`], with a self-signed certificate for `host`.
    pub fn start_with_tls(host: &str) -> Result<Self, Error> {
        let programs = programs(Path::new(DEBIAN_DIRECTORY), "pg_config").ok_or(Error::PostgresMissing)?;
        on_free_port(|port| Self::start_on(port, &programs, Some(host)))
    }

    /// Ends the server at once: clients lose their connections.
    pub fn crash(&mut self) {
        self.server = None;
    }

    /// Starts the server again after [`Self::crash`], with its data and on its port.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.server = Some(self.run()?);
        Ok(())
    }

    /// Stops all processes of the server with SIGSTOP until the result is dropped: connections stay open but silent.
    pub fn freeze(&self) -> Result<StoppedPostgres, Error> {
        let file = self.scratch.path().join("data/postmaster.pid");
        let text = std::fs::read_to_string(&file).map_err(Error::io("read the process id of postgres"))?;
        let id = text.lines().next().unwrap_or_default().to_owned();
        let frozen = StoppedPostgres(id);
        frozen.signal("STOP").map_err(Error::io("freeze postgres"))?;
        Ok(frozen)
    }

    /// The certificate of the server, PEM; `None` without TLS.
    pub fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// A certificate for the user `name` and its key, PEM both. Members of the role `with_certificate` need
    /// one.
    pub fn client_certificate(&self, name: &str) -> Result<(String, String), Error> {
        let authority = self.authority.as_ref().ok_or(Error::NoTls)?;
        let key = KeyPair::generate()?;
        let mut client = CertificateParams::new(Vec::new())?;
        client.distinguished_name.push(DnType::CommonName, name);
        let certificate = client.signed_by(&key, &authority.0)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// The server that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<Postgres, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(postgres) => postgres,
            Err(error) => panic!("the shared PostgreSQL did not start: {}", error.with_causes()),
        }
    }

    /// The address of the database `postgres`, as its superuser.
    pub fn dsn(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs SQL and returns its rows: one per line, columns separated by `|`.
    pub fn psql(&self, sql: &str) -> Result<String, Error> {
        psql(&self.programs, &self.dsn(), sql, &["--no-align", "--tuples-only"])
    }

    /// The same in another database.
    pub fn psql_in(&self, database: &str, sql: &str) -> Result<String, Error> {
        let dsn = format!("postgres://postgres@127.0.0.1:{}/{database}", self.port);
        psql(&self.programs, &dsn, sql, &["--no-align", "--tuples-only"])
    }

    /// Runs SQL and returns its rows as an aligned table.
    pub fn table(&self, sql: &str) -> Result<String, Error> {
        psql(&self.programs, &self.dsn(), sql, &[])
    }

    fn start_on(port: u16, programs: &Path, tls_host: Option<&str>) -> Result<Self, Error> {
        let scratch = Scratch::new()?;
        let certificate = tls_host.map(|host| write_certificate(&scratch, host)).transpose()?;
        let authority = tls_host.map(|_| Authority::write(&scratch)).transpose()?;
        let by_certificate = if tls_host.is_some() { ACCESS_RULES_BY_CERTIFICATE } else { "" };
        scratch.write("access", format!("{by_certificate}{ACCESS_RULES}"))?;
        let unprivileged_command = unprivileged_command(&scratch)?;
        let mut initdb = unprivileged_command(&programs.join("initdb"));
        initdb
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
            .args(["--no-sync", "-D"])
            .arg(scratch.path().join("data"));
        Server::start(&scratch, "initdb", Stop::Kill, &initdb)?.finish()?;
        let programs = programs.to_owned();
        let mut postgres =
            Self { programs, port, scratch, unprivileged_command, certificate, authority, server: None };
        postgres.resume()?;
        Ok(postgres)
    }

    fn run(&self) -> Result<Server, Error> {
        let file = |name: &str| self.scratch.path().join(name);
        let mut command = (self.unprivileged_command)(&self.programs.join("postgres"));
        command.arg("-D").arg(file("data"));
        let mut settings = vec![
            format!("port={}", self.port),
            format!("hba_file={}", file("access").display()),
            "listen_addresses=127.0.0.1".into(),
            "unix_socket_directories=".into(),
            "fsync=off".into(),
            "full_page_writes=off".into(),
        ];
        if self.certificate.is_some() {
            settings.push("ssl=on".into());
            settings.push(format!("ssl_cert_file={}", file("server.crt").display()));
            settings.push(format!("ssl_key_file={}", file("server.key").display()));
            settings.push(format!("ssl_ca_file={}", file("clients.crt").display()));
        }
        for setting in &settings {
            command.args(["-c", setting]);
        }
        let mut server = Server::start(&self.scratch, "postgres", Stop::Quit, &command)?;
        // Checks the directory: another process may have started its own server on this port first.
        server.wait_until(START_LIMIT, || {
            self.psql("show data_directory").is_ok_and(|answer| Path::new(answer.trim_end()) == file("data"))
        })?;
        Ok(server)
    }
}

/// A server whose processes are stopped. Dropping it lets them continue.
#[derive(Debug)]
pub struct StoppedPostgres(String);

impl StoppedPostgres {
    /// Sends a signal to the server and to the processes of its sessions.
    fn signal(&self, name: &str) -> std::io::Result<()> {
        let script = r#"kill -"$1" "$2"; for child in $(pgrep -P "$2"); do kill -"$1" "$child"; done"#;
        Command::new("sh").args(["-c", script, "freeze", name, &self.0]).status().map(drop)
    }
}

impl Drop for StoppedPostgres {
    fn drop(&mut self) {
        // A server that has ended needs no signal.
        self.signal("CONT").ok();
    }
}

/// The authority that signs certificates of clients.
struct Authority(Issuer<'static, KeyPair>);

/// Does not print the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Makes a new authority. The server trusts its certificate, `clients.crt`.
    fn write(scratch: &Scratch) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "clients of the testbed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        scratch.write("clients.crt", params.self_signed(&key)?.pem())?;
        Ok(Self(Issuer::new(params, key)))
    }
}

/// Writes a key and a self-signed certificate for `host`. Returns the certificate.
fn write_certificate(scratch: &Scratch, host: &str) -> Result<String, Error> {
    let pair = rcgen::generate_simple_self_signed([host.to_owned()])?;
    let key = scratch.write("server.key", pair.signing_key.serialize_pem())?;
    // Postgres refuses keys that others can read.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))
        .map_err(Error::io(format!("restrict {}", key.display())))?;
    let certificate = pair.cert.pem();
    scratch.write("server.crt", &certificate)?;
    Ok(certificate)
}

fn psql(programs: &Path, dsn: &str, sql: &str, format: &[&str]) -> Result<String, Error> {
    let program = programs.join("psql");
    let output = Command::new(&program)
        .args(["--no-psqlrc", "--quiet"])
        .args(format)
        .args(["--set=ON_ERROR_STOP=1", "--dbname", dsn, "--command", sql])
        // Otherwise PGOPTIONS and similar variables would have an effect.
        .env_clear()
        // Without it psql waits forever for another server that accepts the connection and sends nothing.
        .env("PGCONNECT_TIMEOUT", "2")
        .output()
        .map_err(Error::io(format!("run {}", program.display())))?;
    if !output.status.success() {
        return Err(Error::Command {
            command: format!("psql {sql}"),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns how to run a program as a user other than root, and gives `scratch` and its files to that user.
fn unprivileged_command(scratch: &Scratch) -> Result<fn(&Path) -> Command, Error> {
    let path = scratch.path();
    let owner = fs::metadata(path).map_err(Error::io(format!("ask who owns {}", path.display())))?.uid();
    // This process has just created the directory, so the owner is the user that runs it.
    if owner != 0 {
        return Ok(|program| Command::new(program));
    }
    let output =
        Command::new("chown").args(["-R", "postgres:"]).arg(path).output().map_err(Error::io("run chown"))?;
    if !output.status.success() {
        return Err(Error::Command {
            command: format!("chown -R postgres: {}", path.display()),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(|program| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    })
}

/// The directory of the server programs: the newest of Debian's, else the one `pg_config` names.
fn programs(debian: &Path, pg_config: &str) -> Option<PathBuf> {
    let is_complete = |directory: &PathBuf| {
        ["initdb", "postgres", "psql"].iter().all(|program| directory.join(program).is_file())
    };
    let newest = fs::read_dir(debian).ok().and_then(|versions| {
        versions
            .flatten()
            .filter_map(|version| {
                let number: u32 = version.file_name().to_str()?.parse().ok()?;
                Some((number, version.path().join("bin")))
            })
            .filter(|(_, directory)| is_complete(directory))
            .max()
    });
    newest.map(|(_, directory)| directory).or_else(|| {
        let output = Command::new(pg_config).arg("--bindir").output().ok()?;
        let directory = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
        Some(directory).filter(is_complete)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_server_answers_and_reports_errors() {
        let postgres = Postgres::start().unwrap();
        assert_eq!(postgres.psql("select 1, 'a'").unwrap(), "1|a\n");
        let error = postgres.psql("select nonsense").unwrap_err().to_string();
        assert!(error.contains("column \"nonsense\" does not exist"), "{error}");
    }

    #[test]
    fn a_taken_port_of_postgres_is_recognised() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let programs = programs(Path::new(DEBIAN_DIRECTORY), "pg_config").unwrap();
        let error = Postgres::start_on(port, &programs, None).unwrap_err();
        assert!(error.is_port_taken(), "{error}");
    }

    #[test]
    fn the_newest_complete_version_is_chosen() {
        let debian = tempfile::tempdir().unwrap();
        for version in ["9", "15", "16"] {
            let directory = debian.path().join(version).join("bin");
            fs::create_dir_all(&directory).unwrap();
            for program in ["initdb", "postgres", "psql"] {
                fs::write(directory.join(program), "").unwrap();
            }
        }
        // As if only the client programs of this version were installed.
        fs::remove_file(debian.path().join("16/bin/postgres")).unwrap();
        let found = programs(debian.path(), "/nonexistent/pg_config");
        assert_eq!(found, Some(debian.path().join("15/bin")));
    }

    #[test]
    fn a_missing_server_is_reported_with_its_package() {
        assert_eq!(programs(Path::new("/nonexistent"), "/nonexistent/pg_config"), None);
        let message = Error::PostgresMissing.to_string();
        assert_eq!(message, "PostgreSQL server is missing: apt-get install postgresql");
    }
}
