//! Bare repositories behind the SSH server of the machine.
//!
//! It accepts the user that runs the tests, with one of several keys, and has a host key of each kind.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{ENVIRONMENT, Repository, create_repositories, program, run};
use crate::ports::on_free_port;
use crate::{Error, Scratch, Server, Stop};

const START_LIMIT: Duration = Duration::from_mins(1);
/// Kinds of keys, for the server and for clients, with the size that is generated fastest.
const KEY_KINDS: &[(&str, &str)] = &[("ed25519", "256"), ("ecdsa", "256"), ("rsa", "2048")];
/// Empty directory that sshd requires when it runs as root. No setting changes its path.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct GitSsh {
    port: u16,
    user: String,
    repositories: PathBuf,
    keys: Vec<ClientKey>,
    unknown_key: ClientKey,
    host_keys: Vec<String>,
    scratch: Scratch,
    _server: Server,
}

/// A key of a client.
#[derive(Debug, Clone)]
pub struct ClientKey {
    /// Such as `ed25519`.
    pub kind: &'static str,
    /// As `ssh-keygen` writes it.
    pub private: String,
    /// Passphrase of the private key; `None` if it has none.
    pub passphrase: Option<&'static str>,
}

impl GitSsh {
    /// Starts a server of its own for one test, and returns when it answers.
    pub fn start() -> Result<Self, Error> {
        let sshd = program("sshd", "openssh-server")?;
        let keygen = program("ssh-keygen", "openssh-client")?;
        program("git", "git")?;
        on_free_port(|port| Self::start_on(port, &sshd, &keygen))
    }

    /// The server that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<GitSsh, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(server) => server,
            Err(error) => panic!("the shared SSH server did not start: {}", error.with_causes()),
        }
    }

    /// Creates an empty repository.
    pub fn create(&self, name: &str) -> Result<Repository, Error> {
        Repository::at(self.repositories.join(format!("{name}.git")))
    }

    /// The address of a repository.
    pub fn url(&self, name: &str) -> String {
        let path = self.repositories.join(format!("{name}.git"));
        format!("ssh://{}@localhost:{}{}", self.user, self.port, path.display())
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Keys that the server accepts: one of each kind, and one with a passphrase.
    pub fn keys(&self) -> &[ClientKey] {
        &self.keys
    }

    /// A key that the server refuses.
    pub fn unknown_key(&self) -> &ClientKey {
        &self.unknown_key
    }

    /// Public keys of the server, each a kind and the key.
    pub fn host_keys(&self) -> &[String] {
        &self.host_keys
    }

    /// The lines for the server in a file `known_hosts`.
    pub fn known_hosts(&self) -> String {
        let line = |key: &String| format!("[localhost]:{} {key}\n", self.port);
        self.host_keys.iter().map(line).collect()
    }

    /// The same with hashes in place of names.
    pub fn hashed_known_hosts(&self) -> Result<String, Error> {
        let file = self.scratch.write("known_hosts", self.known_hosts())?;
        run(Command::new("ssh-keygen").arg("-H").arg("-f").arg(&file))?;
        read(&file)
    }

    fn start_on(port: u16, sshd: &Path, keygen: &Path) -> Result<Self, Error> {
        let scratch = Scratch::new()?;
        let repositories = create_repositories(&scratch)?;
        let user = run(Command::new("id").arg("-un"))?.trim_end().to_owned();
        let mut config = format!(
            "ListenAddress 127.0.0.1:{port}\nPidFile none\nStrictModes no\nUsePAM no\nPrintMotd no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n\
             MaxStartups 100\nAuthorizedKeysFile {0}/authorized_keys\nSetEnv",
            scratch.path().display(),
        );
        for (key, value) in ENVIRONMENT {
            config = format!("{config} {key}={value}");
        }
        config.push('\n');
        let mut host_keys = Vec::new();
        for (kind, bits) in KEY_KINDS {
            let (file, public) = new_key(keygen, &scratch, &format!("host_{kind}"), (kind, bits), "")?;
            config = format!("{config}HostKey {}\n", file.display());
            host_keys.push(public);
        }
        let (mut keys, mut authorized) = (Vec::new(), String::new());
        let client = |kind: &'static str, bits, passphrase: Option<&'static str>, name: &str| {
            let passphrase_text = passphrase.unwrap_or_default();
            let (file, public) = new_key(keygen, &scratch, name, (kind, bits), passphrase_text)?;
            Ok::<_, Error>((ClientKey { kind, private: read(&file)?, passphrase }, public))
        };
        for (kind, bits) in KEY_KINDS {
            let (key, public) = client(kind, bits, None, &format!("client_{kind}"))?;
            authorized = format!("{authorized}{public}\n");
            keys.push(key);
        }
        let (key, public) = client("ed25519", "256", Some("correct horse"), "client_locked")?;
        authorized = format!("{authorized}{public}\n");
        keys.push(key);
        let (unknown_key, _) = client("ed25519", "256", None, "stranger")?;
        scratch.write("authorized_keys", authorized)?;
        let file = scratch.write("sshd_config", config)?;

        if user == "root" {
            fs::create_dir_all(PRIVILEGE_SEPARATION)
                .map_err(Error::io(format!("create {PRIVILEGE_SEPARATION}")))?;
        }
        let mut command = Command::new(sshd);
        command.args(["-D", "-e", "-f"]).arg(&file);
        // Newer servers block clients that use wrong keys, as tests do; older ones do not know the option.
        let option = "PerSourcePenalties=no";
        if run(Command::new(sshd).arg("-t").arg("-f").arg(&file).args(["-o", option])).is_ok() {
            command.args(["-o", option]);
        }
        let mut server = Server::start(&scratch, "sshd", Stop::Kill, &command)?;
        // If another server has this port, clients notice it: its host keys differ.
        server.wait_until(START_LIMIT, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Self { port, user, repositories, keys, unknown_key, host_keys, scratch, _server: server })
    }
}

/// Makes a key. Returns the file of the private key, and the public key without its comment.
fn new_key(
    keygen: &Path,
    scratch: &Scratch,
    name: &str,
    (kind, bits): (&str, &str),
    passphrase: &str,
) -> Result<(PathBuf, String), Error> {
    let file = scratch.path().join(name);
    run(Command::new(keygen)
        .args(["-q", "-t", kind, "-b", bits, "-C", "testbed", "-N", passphrase, "-f"])
        .arg(&file))?;
    let public = read(&file.with_extension("pub"))?;
    Ok((file, public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")))
}

fn read(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).map_err(Error::io(format!("read {}", file.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::git;
    use super::*;

    fn clone(server: &GitSsh, key: &ClientKey, known_hosts: &str) -> Result<String, Error> {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let ssh = format!(
            "ssh -F /dev/null -o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={} -i {}",
            file("known_hosts", known_hosts),
            file("key", &key.private),
        );
        run(git()
            .args(["clone", "--quiet", "--bare", &server.url("testbed")])
            .arg(directory.path().join("clone"))
            .env("GIT_SSH_COMMAND", ssh))
    }

    #[test]
    fn the_git_client_needs_a_known_key_and_a_known_host() {
        let server = GitSsh::shared();
        server.create("testbed").unwrap();
        for key in server.keys().iter().filter(|key| key.passphrase.is_none()) {
            clone(server, key, &server.known_hosts()).unwrap();
        }
        let key = &server.keys()[0];
        clone(server, key, &server.hashed_known_hosts().unwrap()).unwrap();
        assert!(clone(server, server.unknown_key(), &server.known_hosts()).is_err());
        assert!(clone(server, key, "").is_err());
    }
}
