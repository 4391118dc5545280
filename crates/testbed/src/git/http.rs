//! Bare repositories behind nginx, fcgiwrap and `git http-backend`.
//!
//! Below `/` the server asks for a password, below `/open/` it asks for nothing, and below `/certified/` for
//! a certificate of its authority. Without TLS the same is at a second port.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{ENVIRONMENT, Repository, create_repositories, git, program, run};
use crate::certificates::{Certificates, write_certificates};
use crate::ports::on_free_port;
use crate::{Error, Scratch, Server, Stop, free_port};

const START_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Number of processes of fcgiwrap.
const FCGIWRAP_PROCESSES: &str = "4";

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct GitHttp {
    nginx: PathBuf,
    port: u16,
    plain_port: u16,
    scratch: Scratch,
    repositories: PathBuf,
    certificates: Certificates,
    _fcgiwrap: Server,
    /// `None` while it is down.
    server: Option<Server>,
}

impl GitHttp {
    /// User that the server accepts.
    pub const USER: &str = "kollect";
    /// Password of that user.
    pub const PASSWORD: &str = "hunter2";

    /// Starts a server of its own for one test, with a certificate for `localhost`, and returns when it
    /// answers.
    pub fn start() -> Result<Self, Error> {
        let nginx = program("nginx", "nginx-light")?;
        let fcgiwrap = program("fcgiwrap", "fcgiwrap")?;
        program("git", "git")?;
        on_free_port(|port| Self::start_on(port, &nginx, &fcgiwrap))
    }

    /// The server that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<GitHttp, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(server) => server,
            Err(error) => panic!("the shared Git web server did not start: {}", error.with_causes()),
        }
    }

    /// Creates an empty repository.
    pub fn create(&self, name: &str) -> Result<Repository, Error> {
        Repository::at(self.repositories.join(format!("{name}.git")))
    }

    /// The address of a repository, which asks for [`Self::USER`] and [`Self::PASSWORD`].
    pub fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/{name}.git", self.port)
    }

    /// The address of the same repository without authentication.
    pub fn open_url(&self, name: &str) -> String {
        format!("https://localhost:{}/open/{name}.git", self.port)
    }

    /// The address of the same repository for clients with a certificate; see [`Self::certificates`].
    pub fn certified_url(&self, name: &str) -> String {
        format!("https://localhost:{}/certified/{name}.git", self.port)
    }

    /// The address of the same repository without TLS, which asks for the same password.
    pub fn plain_url(&self, name: &str) -> String {
        format!("http://localhost:{}/{name}.git", self.plain_port)
    }

    /// The authority that signed the certificate of the server, and a certificate for a client.
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The loopback port with TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server at once: clients lose their connections.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts the server again after [`Self::kill`], with its repositories and on its ports.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.server = Some(self.run()?);
        Ok(())
    }

    fn start_on(port: u16, nginx: &Path, fcgiwrap: &Path) -> Result<Self, Error> {
        let scratch = Scratch::new()?;
        let plain_port = free_port()?;
        let repositories = create_repositories(&scratch)?;
        let certificates = write_certificates(&scratch, "localhost")?;
        let (user, password) = (Self::USER, Self::PASSWORD);
        scratch.write("passwords", format!("{user}:{{PLAIN}}{password}\n"))?;
        let backend = run(git().arg("--exec-path"))?;
        let backend = Path::new(backend.trim_end()).join("git-http-backend");
        let config = config(&scratch, (port, plain_port), &repositories, &backend);
        scratch.write("nginx.conf", config)?;

        let mut command = Command::new(fcgiwrap);
        command
            .args(["-c", FCGIWRAP_PROCESSES, "-s"])
            .arg(format!("unix:{}", scratch.path().join("socket").display()));
        command.envs(ENVIRONMENT.iter().copied());
        let mut fcgiwrap = Server::start(&scratch, "fcgiwrap", Stop::Kill, &command)?;
        let socket = scratch.path().join("socket");
        fcgiwrap.wait_until(START_LIMIT, || socket.exists())?;
        let nginx = nginx.to_owned();
        let mut server = Self {
            nginx,
            port,
            plain_port,
            scratch,
            repositories,
            certificates,
            _fcgiwrap: fcgiwrap,
            server: None,
        };
        server.resume()?;
        Ok(server)
    }

    fn run(&self) -> Result<Server, Error> {
        let file = |name: &str| self.scratch.path().join(name);
        let mut command = Command::new(&self.nginx);
        command.arg("-p").arg(self.scratch.path()).arg("-c").arg(file("nginx.conf"));
        // Without it nginx writes to another log until it has read its configuration.
        command.arg("-e").arg("stderr");
        let mut server = Server::start(&self.scratch, "nginx", Stop::Kill, &command)?;
        // Checks the name: another process may have started its own server on this port first.
        let name = server_name(&self.scratch);
        server.wait_until(START_LIMIT, || {
            greeting(self.plain_port).is_some_and(|response| response.ends_with(&name))
        })?;
        Ok(server)
    }
}

/// A unique name for the server.
fn server_name(scratch: &Scratch) -> String {
    scratch.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The response to `/who`, which ends with the name of the server.
fn greeting(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    stream.write_all(b"GET /who HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn config(scratch: &Scratch, ports: (u16, u16), repositories: &Path, backend: &Path) -> String {
    let directory = scratch.path().display();
    let mut text = String::new();
    // As root, workers must stay root to read the scratch directory; otherwise nginx ignores it with a warning.
    text.push_str("user root;\ndaemon off;\nworker_processes 2;\n");
    writeln!(text, "pid {directory}/nginx.pid;\nevents {{ worker_connections 256; }}\nhttp {{").ok();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "{kind}_temp_path {directory}/{kind};").ok();
    }
    let backend = format!(
        "fastcgi_pass unix:{directory}/socket;\n\
         fastcgi_param SCRIPT_FILENAME {};\n\
         fastcgi_param GIT_PROJECT_ROOT {};\n\
         fastcgi_param GIT_HTTP_EXPORT_ALL 1;\n\
         fastcgi_param PATH_INFO $1;\n\
         fastcgi_param REMOTE_USER $remote_user;\n\
         fastcgi_param REMOTE_ADDR $remote_addr;\n\
         fastcgi_param QUERY_STRING $query_string;\n\
         fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param CONTENT_TYPE $content_type;\n\
         fastcgi_param CONTENT_LENGTH $content_length;\n\
         fastcgi_param GIT_PROTOCOL $http_git_protocol;\n\
         fastcgi_buffering off;\n",
        backend.display(),
        repositories.display(),
    );
    let (port, plain_port) = ports;
    for (listen, tls) in [(format!("{port} ssl"), true), (plain_port.to_string(), false)] {
        let certificates = if tls {
            format!(
                "ssl_certificate {directory}/server.crt;\nssl_certificate_key {directory}/server.key;\n\
                 ssl_client_certificate {directory}/ca.crt;\nssl_verify_client optional;\n"
            )
        } else {
            String::new()
        };
        writeln!(
            text,
            "server {{\nlisten 127.0.0.1:{listen};\naccess_log off;\nclient_max_body_size 0;\n{certificates}\
             location = /who {{ return 200 '{}'; }}\n\
             location ~ ^/open(/.*)$ {{\n{backend}}}\n\
             location ~ ^/certified(/.*)$ {{\nif ($ssl_client_verify != SUCCESS) {{ return 403; }}\n{backend}}}\n\
             location ~ ^(/.*)$ {{\nauth_basic Git;\nauth_basic_user_file {directory}/passwords;\n{backend}}}\n}}",
            server_name(scratch),
        )
        .ok();
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(server: &GitHttp, url: &str) -> Result<String, Error> {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.crt");
        std::fs::write(&ca, &server.certificates().ca).unwrap();
        run(git()
            .args(["clone", "--quiet", "--bare", url])
            .arg(directory.path().join("clone"))
            .env("GIT_SSL_CAINFO", ca)
            .env("GIT_TERMINAL_PROMPT", "0"))
    }

    #[test]
    fn the_git_client_needs_the_password() {
        let server = GitHttp::shared();
        server.create("testbed").unwrap().fsck().unwrap();
        let url = server.url("testbed");
        let with =
            |password: &str| url.replace("https://", &format!("https://{}:{password}@", GitHttp::USER));
        clone(server, &with(GitHttp::PASSWORD)).unwrap();
        clone(server, &server.open_url("testbed")).unwrap();
        for refused in [with("wrong"), url, server.plain_url("testbed"), server.certified_url("testbed")] {
            assert!(clone(server, &refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_killed_server_resumes_on_its_port() {
        let mut server = GitHttp::start().unwrap();
        server.kill();
        assert_eq!(greeting(server.plain_port), None);
        server.resume().unwrap();
        assert!(greeting(server.plain_port).is_some());
    }
}
