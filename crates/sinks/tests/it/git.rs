//! Git repositories behind real servers, as auditors and other pushers see them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::sink::{Sink, SinkSpec};
use kollect_sinks::{Plan, Secrets, SinkPolicy, SinkSettings, Sinks, plan};
use kollect_testbed::git::{GitHttp, GitSsh, Repository};
use serde_json::{Value, json};

use crate::{
    conformance::{TestDestination, conformance},
    filesystem::{attributes, edit_files, files_of, paths_with_inventory},
};

mod faults;
mod history;
mod path_owners;
mod shared_branch;

/// How a repository is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestTransport {
    File,
    Https,
    Ssh,
}

/// A repository of one test, with its own mirrors.
struct Remote {
    transport: TestTransport,
    repository: Repository,
    url: String,
    fields: Value,
    mirrors: tempfile::TempDir,
    _directory: tempfile::TempDir,
}

impl Remote {
    fn new(transport: TestTransport, fields: Value) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sink-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let directory = tempfile::tempdir().unwrap();
        let (repository, url) = match transport {
            TestTransport::File => {
                let repository = Repository::at(directory.path().join("remote.git")).unwrap();
                let url = format!("file://{}", repository.path().display());
                (repository, url)
            }
            TestTransport::Https => (GitHttp::shared().create(&name).unwrap(), GitHttp::shared().url(&name)),
            TestTransport::Ssh => (GitSsh::shared().create(&name).unwrap(), GitSsh::shared().url(&name)),
        };
        Self {
            transport,
            repository,
            url,
            fields,
            mirrors: tempfile::tempdir().unwrap(),
            _directory: directory,
        }
    }

    /// The default settings: a YAML document below `inventory/`.
    fn with_default_settings() -> Self {
        Self::new(TestTransport::File, json!({}))
    }

    fn plan(&self, fields: &Value) -> Plan {
        let mut spec = json!({ "type": "git", "endpoint": self.url });
        if self.transport != TestTransport::File {
            spec["secretRef"] = json!({ "name": "git" });
        }
        if self.transport == TestTransport::Https {
            spec["tls"] = json!({ "caBundle": STANDARD.encode(&GitHttp::shared().certificates().ca) });
        }
        for object in [&self.fields, fields] {
            for (name, value) in object.as_object().unwrap() {
                spec[name] = value.clone();
            }
        }
        let mut secrets = Secrets::default();
        let text = |text: &str| text.as_bytes().to_vec();
        let content = match self.transport {
            TestTransport::File => BTreeMap::new(),
            TestTransport::Https => BTreeMap::from([
                ("username".into(), text(GitHttp::USER)),
                ("password".into(), text(GitHttp::PASSWORD)),
            ]),
            TestTransport::Ssh => BTreeMap::from([
                ("ssh-privatekey".into(), text(&GitSsh::shared().keys()[0].private)),
                ("known_hosts".into(), text(&GitSsh::shared().known_hosts())),
            ]),
        };
        secrets.insert("spec.secretRef", content);
        let spec = SinkSpec::Snapshot(serde_json::from_value(spec).unwrap());
        plan(&spec).unwrap().with_secrets(&secrets).unwrap()
    }

    /// Sinks with a separate writer, as in another process.
    fn sinks(&self) -> Sinks {
        sinks_with_mirrors(self.mirrors.path().join("git"))
    }

    async fn open_with(&self, fields: &Value) -> Box<dyn Sink> {
        self.sinks().open(&self.plan(fields), &SinkPolicy::default()).await.unwrap()
    }

    async fn open(&self) -> Box<dyn Sink> {
        self.open_with(&json!({})).await
    }

    fn git(&self, arguments: &[&str]) -> String {
        self.repository.git(arguments).unwrap().trim_end().to_owned()
    }

    /// Number of commits on the branch.
    fn commits(&self) -> usize {
        self.git(&["rev-list", "--count", "main"]).parse().unwrap()
    }

    /// A work tree of another user.
    fn checkout(&self) -> Checkout {
        let directory = tempfile::tempdir().unwrap();
        let checkout = Checkout { path: directory.path().join("work"), _directory: directory };
        let source = self.repository.path().to_str().unwrap();
        git(
            Path::new("/"),
            &["clone", "--quiet", "--branch", "main", source, checkout.path.to_str().unwrap()],
        );
        checkout
    }

    /// The only mirror.
    fn mirror(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.mirrors.path().join("git")).unwrap();
        let mut mirrors = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let mirror = mirrors.next().unwrap();
        assert_eq!(mirrors.next(), None);
        mirror
    }
}

/// After each test the repository must pass fsck.
impl Drop for Remote {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.repository.path().exists() {
            self.repository.fsck().unwrap();
        }
    }
}

struct Checkout {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Checkout {
    fn git(&self, arguments: &[&str]) -> String {
        git(&self.path, arguments)
    }

    fn push(&self, message: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
        self.git(&["push", "--quiet", "origin", "HEAD:main"]);
    }
}

/// Runs the Git program.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=Eve", "-c", "user.email=eve@example.com"])
        .args(arguments)
        .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("LC_ALL", "C")])
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

impl TestDestination for Remote {
    async fn open(&self) -> Box<dyn Sink> {
        self.open().await
    }

    /// Includes the history: a commit counts as a change.
    async fn read_all(&self) -> String {
        let log = self.git(&["log", "--format=%H %cI %s", "main"]);
        let files = files_of(&self.checkout().path, "all");
        format!("{log}\n{files:?}")
    }

    async fn edit_as_other_client(&self) {
        let checkout = self.checkout();
        edit_files(&checkout.path, files_of(&checkout.path, "all"));
        checkout.push("tidy up");
    }

    async fn attributes(&self, uid: &str) -> String {
        attributes(&files_of(&self.checkout().path, "awkward"), uid)
    }

    async fn read_torn(&self) -> String {
        let found =
            self.repository.git(&["grep", "-h", "-o", "-E", "torn-[a-z]+-[0-9]+-", "main", "--", "default"]);
        // `git grep` fails if it finds nothing.
        found.unwrap_or_default()
    }

    /// All refs, including those of claims.
    type Backup = String;

    async fn back_up(&self) -> String {
        self.git(&["for-each-ref", "--format=%(objectname) %(refname)"])
    }

    async fn restore(&self, backup: &String) {
        for line in self.back_up().await.lines() {
            let (_, name) = line.split_once(' ').unwrap();
            if !backup.lines().any(|line| line.ends_with(&format!(" {name}"))) {
                self.git(&["update-ref", "-d", name]);
            }
        }
        for line in backup.lines() {
            let (object, name) = line.split_once(' ').unwrap();
            self.git(&["update-ref", name, object]);
        }
    }

    fn large_row_count(&self) -> usize {
        5_000
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_yaml_over_https_conform() {
    conformance(&Remote::new(TestTransport::Https, paths_with_inventory("document", "yaml"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_per_row_over_https_conform() {
    conformance(&Remote::new(TestTransport::Https, paths_with_inventory("perResource", "yaml"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_per_row_over_ssh_conform() {
    conformance(&Remote::new(TestTransport::Ssh, paths_with_inventory("perResource", "json"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn split_files_in_a_directory_conform() {
    conformance(&Remote::new(TestTransport::File, paths_with_inventory("split", "ndjson"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_json_in_a_directory_conform() {
    conformance(&Remote::new(TestTransport::File, paths_with_inventory("document", "json"))).await;
}

/// Sinks with mirrors of branches below this directory.
fn sinks_with_mirrors(directory: PathBuf) -> Sinks {
    Sinks::new(&SinkSettings { mirrors: Some(directory), ..SinkSettings::default() })
}
