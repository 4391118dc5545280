//! A NATS server with JetStream, built from its Go module.
//!
//! Called by the tests of the event sink, the demo and benches. Listens on loopback TCP only and accepts
//! all clients unless it is started with credentials. Its streams survive [`Nats::kill`].

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::certificates::{Certificates, write_certificates};
use crate::ports::on_free_port;
use crate::{Error, Scratch, Server, Stop, programs};

const START_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Larger than the default of 1 MiB, so that large rows fit.
const MAX_PAYLOAD: u32 = 8 << 20;

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Nats {
    program: PathBuf,
    port: u16,
    scratch: Scratch,
    certificates: Option<Certificates>,
    /// `None` while it is down.
    server: Option<Server>,
}

impl Nats {
    /// Starts a server of its own for one test, and returns when it answers.
    pub fn start() -> Result<Self, Error> {
        Self::start_with("")
    }

    /// Like [`Self::start`], with more lines in the server's own configuration language.
    pub fn start_with(config: &str) -> Result<Self, Error> {
        Self::start_as(config, None)
    }

    /// Like [`Self::start`], for clients with this token.
    pub fn start_with_token(token: &str) -> Result<Self, Error> {
        Self::start_with(&format!("authorization {{ token: \"{token}\" }}"))
    }

    /// Like [`Self::start`], for clients with this user name and password.
    pub fn start_with_user(user: &str, password: &str) -> Result<Self, Error> {
        Self::start_with(&format!("authorization {{ user: \"{user}\", password: \"{password}\" }}"))
    }

    /// Like [`Self::start`], with a certificate for `host`; see [`Self::certificates`].
    pub fn start_with_tls(host: &str) -> Result<Self, Error> {
        Self::start_as("", Some((host, false)))
    }

    /// Like [`Self::start_with_tls`], for clients with a certificate of the same authority only.
    pub fn start_with_client_certificates(host: &str) -> Result<Self, Error> {
        Self::start_as("", Some((host, true)))
    }

    /// The server that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<Nats, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(nats) => nats,
            Err(error) => panic!("the shared NATS server did not start: {}", error.with_causes()),
        }
    }

    /// Kills the server at once: clients lose their connections.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts the server again after [`Self::kill`], with its streams and on its port.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.server = Some(self.run()?);
        Ok(())
    }

    /// The directory of its streams.
    pub fn store(&self) -> PathBuf {
        self.scratch.path().join("store")
    }

    /// The address for clients. It is the same with TLS, which the client must then request.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What a TLS client needs; `None` without TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    fn start_as(config: &str, tls: Option<(&str, bool)>) -> Result<Self, Error> {
        let program = programs::nats_server()?;
        on_free_port(|port| {
            let scratch = Scratch::new()?;
            let file = |name: &str| scratch.path().join(name).display().to_string();
            let certificates = tls.map(|(host, _)| write_certificates(&scratch, host)).transpose()?;
            let tls = tls.map_or_else(String::new, |(_, verifies_clients)| {
                format!(
                    "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: {verifies_clients} }}",
                    file("server.crt"),
                    file("server.key"),
                    file("ca.crt"),
                )
            });
            let config = format!(
                "host: 127.0.0.1\nport: {port}\nserver_name: \"{}\"\nmax_payload: {MAX_PAYLOAD}\n\
                 jetstream {{ store_dir: \"{}\" }}\n{tls}\n{config}\n",
                server_name(&scratch),
                file("store"),
            );
            scratch.write("nats.conf", config)?;
            let mut nats = Self { program: program.clone(), port, scratch, certificates, server: None };
            nats.resume()?;
            Ok(nats)
        })
    }

    fn run(&self) -> Result<Server, Error> {
        let mut command = std::process::Command::new(&self.program);
        command.arg("--config").arg(self.scratch.path().join("nats.conf"));
        let mut server = Server::start(&self.scratch, "nats", Stop::Kill, &command)?;
        // Checks the name: another process may have started its own server on this port first.
        let name = format!("\"server_name\":\"{}\"", server_name(&self.scratch));
        server.wait_until(START_LIMIT, || greeting(self.port).is_some_and(|line| line.contains(&name)))?;
        Ok(server)
    }
}

/// A unique name for the server.
fn server_name(scratch: &Scratch) -> String {
    scratch.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The first line that a server sends.
fn greeting(port: u16) -> Option<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_killed_server_resumes_on_its_port_with_its_files() {
        let mut nats = Nats::start().unwrap();
        let store = nats.scratch.path().join("store");
        assert!(greeting(nats.port).unwrap().contains("\"jetstream\":true"));
        assert!(fs::metadata(&store).unwrap().is_dir());
        nats.kill();
        assert_eq!(greeting(nats.port), None);
        nats.resume().unwrap();
        assert!(greeting(nats.port).unwrap().starts_with("INFO "));
    }

    #[test]
    fn tls_is_required_where_there_are_certificates() {
        let nats = Nats::start_with_client_certificates("localhost").unwrap();
        assert!(greeting(nats.port()).unwrap().contains("\"tls_verify\":true"));
        assert!(nats.certificates().unwrap().ca.starts_with("-----BEGIN CERTIFICATE-----"));
    }
}
