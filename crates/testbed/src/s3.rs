//! versitygw, an S3 server that keeps each object in a file, built from its Go module.
//!
//! Called by the tests of object stores. Listens on loopback TCP only. Tests read the stored files as any other reader would.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::certificates::{Certificates, write_certificates};
use crate::command::run;
use crate::ports::on_free_port;
use crate::{Error, Scratch, Server, Stop, programs};

const START_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct S3 {
    port: u16,
    certificates: Option<Certificates>,
    /// `None` while it is down.
    server: Option<Server>,
    command: Command,
    scratch: Scratch,
}

impl S3 {
    /// The access key of its only account.
    pub const ACCESS_KEY: &str = "testbed";
    /// The secret of that key.
    pub const SECRET_KEY: &str = "hunter2-of-the-bucket";

    /// Starts a server of its own for one test, and returns when it answers.
    pub fn start() -> Result<Self, Error> {
        Self::start_as(None)
    }

    /// Like [`Self::start`], with a certificate for `host`; see [`Self::certificates`].
    pub fn start_with_tls(host: &str) -> Result<Self, Error> {
        Self::start_as(Some(host))
    }

    /// The server that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<S3, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(server) => server,
            Err(error) => panic!("the shared S3 server did not start: {}", error.with_causes()),
        }
    }

    fn start_as(tls_host: Option<&str>) -> Result<Self, Error> {
        let program = programs::versitygw()?;
        on_free_port(|port| {
            let scratch = Scratch::new()?;
            let certificates = tls_host.map(|host| write_certificates(&scratch, host)).transpose()?;
            let mut command = Command::new(&program);
            // Keys are not arguments: every user sees those.
            command.env("ROOT_ACCESS_KEY", Self::ACCESS_KEY).env("ROOT_SECRET_KEY", Self::SECRET_KEY);
            command.args(["--keep-alive", "--port"]).arg(format!("127.0.0.1:{port}"));
            if certificates.is_some() {
                command.arg("--cert").arg(scratch.path().join("server.crt"));
                command.arg("--key").arg(scratch.path().join("server.key"));
            }
            // Beside the objects, because not every file system has attributes.
            for directory in ["buckets", "metadata"] {
                fs::create_dir_all(scratch.path().join(directory))
                    .map_err(Error::io("make a directory for buckets"))?;
            }
            command.args(["posix", "--sidecar"]).arg(scratch.path().join("metadata"));
            command.arg(scratch.path().join("buckets"));
            let mut server = Self { port, certificates, server: None, command, scratch };
            server.resume()?;
            Ok(server)
        })
    }

    /// Kills the server at once.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts the server again after [`Self::kill`], with its objects and on its port.
    pub fn resume(&mut self) -> Result<(), Error> {
        let mut server = Server::start(&self.scratch, "versitygw", Stop::Kill, &self.command)?;
        let is_encrypted = self.certificates.is_some();
        server.wait_until(START_LIMIT, || answers(self.port, is_encrypted))?;
        self.server = Some(server);
        Ok(())
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What a TLS client needs; `None` without TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Method and path of every request so far.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.scratch.path().join("versitygw.log")).unwrap_or_default();
        let request = |line: &str| {
            let mut fields = line.split('|').map(str::trim).skip(5);
            Some(format!("{} {}", fields.next()?, fields.next()?))
        };
        log.lines().filter_map(request).collect()
    }

    /// Makes a bucket.
    pub fn create_bucket(&self, bucket: &str) -> Result<(), Error> {
        fs::create_dir_all(self.bucket(bucket)).map_err(Error::io("make a bucket"))
    }

    /// An object as it is stored now.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        fs::read(self.bucket(bucket).join(key)).ok()
    }

    /// Replaces an object through the server, as another client.
    pub fn put(&self, bucket: &str, key: &str, content: &[u8]) -> Result<(), Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = self.scratch.path().join(format!("put-{number}"));
        fs::write(&file, content).map_err(Error::io("write what curl sends"))?;
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user"]);
        command.arg(format!("{}:{}", Self::ACCESS_KEY, Self::SECRET_KEY));
        command.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--upload-file"]).arg(&file);
        command.arg(format!("{}/{bucket}/{}", self.url(), key.replace('=', "%3D")));
        run(&mut command, Stdio::null(), "put an object with curl")?;
        fs::remove_file(file).map_err(Error::io("remove what curl has sent"))
    }

    /// The keys of all objects of a bucket, sorted.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let root = self.bucket(bucket);
        let mut keys = Vec::new();
        collect_files(&root, &mut |file| {
            keys.extend(file.strip_prefix(&root).ok().map(|key| key.display().to_string()));
        });
        keys.sort();
        keys
    }

    /// The directory of a bucket's objects.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        self.scratch.path().join("buckets").join(bucket)
    }
}

fn collect_files(directory: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            // The server's own files.
            if !path.ends_with(".sgwtmp") {
                collect_files(&path, visit);
            }
        } else {
            visit(&path);
        }
    }
}

/// Whether the server answers a request, or begins to talk TLS.
fn answers(port: u16, is_encrypted: bool) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    if is_encrypted {
        return true;
    }
    let mut answer = [0; 64];
    let request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    stream.set_read_timeout(Some(ANSWER_LIMIT)).is_ok()
        && stream.write_all(request).is_ok()
        && stream.read(&mut answer).is_ok_and(|length| answer[..length].starts_with(b"HTTP/1.1 403"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_server_resumes_on_its_port_with_its_objects() {
        let mut server = S3::start().unwrap();
        server.create_bucket("a").unwrap();
        fs::write(server.bucket("a").join("x"), "1").unwrap();
        assert!(answers(server.port(), false));
        server.kill();
        assert!(!answers(server.port(), false));
        server.resume().unwrap();
        assert_eq!((server.keys("a"), server.object("a", "x")), (vec!["x".to_owned()], Some(b"1".to_vec())));
    }
}
