//! What readers of five sinks see during faults. Each reader reads all the time with a client of its own, and keeps
//! every state that it has seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use async_nats::jetstream::{self, consumer};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::StreamExt as _;
use kollect_testbed::{
    Nats, Postgres,
    git::{GitHttp, Repository},
};
use serde_json::{Value, json};

use super::{OperatorTest, separate_plane};
use crate::program::eventually;

/// The names of the objects whose rows a reader sees.
type State = BTreeSet<String>;

const SINKS: [&str; 5] = Destinations::ALL;

/// Destinations of the five kinds that can be read back, for one namespace.
pub(super) struct Destinations {
    /// Namespace and name of the inventory; also the names of table, stream and repository.
    namespace: String,
    pub(super) postgres: Postgres,
    /// It is stopped and started by one test.
    nats: Mutex<Nats>,
    nats_url: String,
    git: &'static GitHttp,
    pub(super) repository: Repository,
    /// Below it each namespace has its files.
    root: tempfile::TempDir,
}

impl Destinations {
    pub(super) const ALL: [&str; 5] = ["postgres", "sqlite", "git", "files", "nats"];

    fn new(namespace: &str) -> Self {
        let (git, nats) = (GitHttp::shared(), Nats::start().unwrap());
        Self {
            namespace: namespace.to_owned(),
            postgres: Postgres::start().unwrap(),
            nats_url: nats.url(),
            nats: Mutex::new(nats),
            git,
            repository: git.create(namespace).unwrap(),
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn table(&self) -> String {
        self.namespace.replace('-', "_")
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.root.path().join(&self.namespace)
    }

    /// The five sinks, as a cluster with this name sees them, and an inventory with all of them.
    fn install(&self, test: &OperatorTest, cluster: &str) {
        test.apply_secret(&self.postgres.dsn());
        test.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git" },
            "stringData": { "username": GitHttp::USER, "password": GitHttp::PASSWORD },
        }));
        self.install_sinks(test, cluster);
        let inventory = json!({
            "databaseSinkRefs": ["postgres", "sqlite"],
            "snapshotSinkRefs": ["git", "files"],
            "eventSinkRefs": ["nats"],
            "minChangeInterval": "0s",
        });
        test.apply_kollect("KollectInventory", "all", inventory);
    }

    fn install_sinks(&self, test: &OperatorTest, cluster: &str) {
        let postgres = json!({
            "type": "postgres", "cluster": cluster,
            "postgres": { "databaseRef": { "name": "portal" }, "table": self.table() },
        });
        test.apply_kollect("KollectDatabaseSink", "postgres", postgres);
        let sqlite = json!({ "type": "sqlite", "cluster": cluster, "sqlite": { "path": "rows.db" } });
        test.apply_kollect("KollectDatabaseSink", "sqlite", sqlite);
        test.apply_kollect(
            "KollectSnapshotSink",
            "git",
            self.git_sink(cluster, &self.git.url(&self.namespace)),
        );
        let files = json!({
            "type": "filesystem", "cluster": cluster, "filesystem": { "path": "files" },
            "minChangeInterval": "0s", "layout": { "mode": "perResource" },
        });
        test.apply_kollect("KollectSnapshotSink", "files", files);
        test.apply_kollect("KollectEventSink", "nats", self.nats_sink(cluster, &self.nats_url));
    }

    fn git_sink(&self, cluster: &str, url: &str) -> Value {
        json!({
            "type": "git", "cluster": cluster, "endpoint": url, "secretRef": { "name": "git" },
            "tls": { "caBundle": STANDARD.encode(&self.git.certificates().ca) },
            "minChangeInterval": "0s", "layout": { "mode": "perResource" },
        })
    }

    fn nats_sink(&self, cluster: &str, url: &str) -> Value {
        json!({
            "type": "nats", "cluster": cluster, "mode": "rows",
            "nats": { "url": url, "subject": self.table(), "stream": self.table() },
        })
    }

    /// The rows of a cluster that a reader of one sink sees; `None`: it could not read.
    fn read_names(&self, sink: &str, cluster: &str) -> Option<State> {
        let sql = format!(
            "SELECT name FROM {} WHERE cluster = '{cluster}'",
            match sink {
                "sqlite" => "inventory".to_owned(),
                _ => self.table(),
            }
        );
        match sink {
            "postgres" => Some(lines(&self.postgres.psql(&sql).ok()?)),
            "sqlite" => {
                let file = self.directory().join("rows.db");
                let output = Command::new("sqlite3").arg("-readonly").arg(file).arg(sql).output().unwrap();
                output.status.success().then(|| lines(&String::from_utf8(output.stdout).unwrap()))
            }
            "git" => {
                let tree = self.repository.git(&["ls-tree", "-r", "--name-only", "main"]).ok()?;
                Some(names(tree.lines().map(Path::new), cluster))
            }
            "files" => {
                let root = self.directory().join("files");
                let found = files_below(&root.join(cluster))?;
                let paths: Vec<PathBuf> =
                    found.iter().map(|path| path.strip_prefix(&root).unwrap().to_owned()).collect();
                Some(names(paths.iter().map(PathBuf::as_path), cluster))
            }
            "nats" => self.messages(cluster).map(|rows| rows.into_keys().collect()),
            other => unreachable!("{other}"),
        }
    }

    /// The attributes of the rows that a reader of one sink sees, by the names of the objects; `None`: it could not read.
    pub(super) fn attributes(&self, sink: &str, cluster: &str) -> Option<BTreeMap<String, Value>> {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let yaml = |text: &str| serde_saphyr::from_str::<Value>(text).ok();
        let object_name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let select = |table: &str, attributes: &str| {
            format!("SELECT name || ' ' || {attributes} FROM {table} WHERE cluster = '{cluster}'")
        };
        let rows = |text: String| {
            let row =
                |line: &str| line.split_once(' ').and_then(|(name, row)| Some((name.to_owned(), json(row)?)));
            text.lines().map(row).collect::<Option<BTreeMap<_, _>>>()
        };
        match sink {
            "postgres" => {
                rows(self.postgres.psql(&select(&self.table(), "(payload -> 'attributes')::text")).ok()?)
            }
            "sqlite" => {
                let file = self.directory().join("rows.db");
                let sql = select("inventory", "json_extract(payload, '$.attributes')");
                let output = Command::new("sqlite3").arg("-readonly").arg(file).arg(sql).output().unwrap();
                rows(String::from_utf8(output.stdout).unwrap()).filter(|_| output.status.success())
            }
            "git" => {
                let head = self.repository.git(&["rev-parse", "main"]).ok()?;
                let head = head.trim();
                let tree = self.repository.git(&["ls-tree", "-r", "--name-only", head]).ok()?;
                let paths = tree.lines().filter(|path| path.starts_with(&format!("{cluster}/")));
                let row = |path: &str| {
                    let text = self.repository.git(&["show", &format!("{head}:{path}")]).ok()?;
                    Some((object_name(Path::new(path)), yaml(&text)?["attributes"].clone()))
                };
                paths.map(row).collect()
            }
            "files" => {
                let found = files_below(&self.directory().join("files").join(cluster))?;
                let row = |path: &PathBuf| {
                    Some((object_name(path), yaml(&fs::read_to_string(path).ok()?)?["attributes"].clone()))
                };
                found.iter().map(row).collect()
            }
            "nats" => {
                let rows = self.messages(cluster)?;
                Some(rows.into_iter().map(|(name, (_, row))| (name, row["attributes"].clone())).collect())
            }
            other => unreachable!("{other}"),
        }
    }

    /// Rows in the stream by the names of their objects, with the sequences of their messages.
    fn messages(&self, cluster: &str) -> Option<BTreeMap<String, (u64, Value)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (url, stream) = (self.nats_url.clone(), self.table());
        let filter = format!("{stream}.{cluster}.{}.all.*.*.*", self.namespace);
        let read = async {
            let jetstream = jetstream::new(async_nats::connect(url).await.ok()?);
            let config = consumer::pull::Config {
                deliver_policy: consumer::DeliverPolicy::LastPerSubject,
                ack_policy: consumer::AckPolicy::None,
                filter_subject: filter,
                ..Default::default()
            };
            let consumer = jetstream.create_consumer_on_stream(config, &stream).await.ok()?;
            let pending = usize::try_from(consumer.cached_info().num_pending).unwrap();
            let mut batch = consumer.fetch().max_messages(pending.max(1)).messages().await.ok()?;
            let (mut found, mut fetched) = (BTreeMap::new(), 0);
            while let Some(message) = batch.next().await {
                let message = message.ok()?;
                fetched += 1;
                let removed = message.headers.as_ref()?.get("Kollect-Op")?.as_str() == "removed";
                let body: Value = serde_json::from_slice(&message.payload).ok()?;
                if !removed {
                    let name = body["data"]["after"]["name"].as_str()?.to_owned();
                    let row = body["data"]["after"].clone();
                    found.insert(name, (message.info().ok()?.stream_sequence, row));
                }
            }
            // A batch that ended early is no state of the stream.
            (fetched >= pending).then_some(found)
        };
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), read).await.ok()? })
    }

    pub(super) fn nats_url(&self) -> &str {
        &self.nats_url
    }

    pub(super) fn wait_for_rows(&self, cluster: &str, expected: &[&str]) {
        let expected: State = expected.iter().map(|name| (*name).to_owned()).collect();
        for sink in SINKS {
            eventually(&format!("{sink} holds {expected:?}"), || {
                let found = self.read_names(sink, cluster);
                (found.as_ref() == Some(&expected)).then_some(()).ok_or(format!("{found:?}"))
            });
        }
    }
}

fn lines(text: &str) -> State {
    text.lines().map(ToOwned::to_owned).collect()
}

/// The names of objects from the paths of their files, `<cluster>/<namespace>/<kind>/<name>.<format>`.
fn names<'a>(paths: impl Iterator<Item = &'a Path>, cluster: &str) -> State {
    let rows = paths.filter(|path| {
        path.starts_with(cluster) && path.extension().is_some_and(|extension| extension != "gitattributes")
    });
    rows.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

/// All files below a directory but those that are being written; `None` if a directory vanished meanwhile.
fn files_below(directory: &Path) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else { return Some(found) };
    for entry in entries {
        let path = entry.ok()?.path();
        if path.is_dir() {
            found.extend(files_below(&path)?);
        } else if !path.to_str()?.contains('#') {
            found.push(path);
        }
    }
    Some(found)
}

/// Readers of all five sinks, at work.
struct Readers {
    stop: Arc<AtomicBool>,
    readers: Vec<(&'static str, SeenStates, JoinHandle<()>)>,
}

/// What a reader has seen, in this order.
type SeenStates = Arc<Mutex<Vec<State>>>;

impl Readers {
    fn start(destinations: &Arc<Destinations>, cluster: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let start_reader = |sink: &'static str| {
            let (destinations, cluster, stop) = (destinations.clone(), cluster.to_owned(), stop.clone());
            let states = SeenStates::default();
            let seen = states.clone();
            let thread = thread::spawn(move || {
                loop {
                    // Loaded before the sink is read: the last read sees what the sink held when the readers were stopped.
                    let is_last = stop.load(Relaxed);
                    let read = destinations.read_names(sink, &cluster);
                    let could_read = read.is_some();
                    if let Some(state) = read {
                        let mut seen = seen.lock().unwrap();
                        if seen.last() != Some(&state) {
                            seen.push(state);
                        }
                    }
                    if is_last && could_read {
                        break;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            (sink, states, thread)
        };
        Self { stop: stop.clone(), readers: SINKS.map(start_reader).into_iter().collect() }
    }

    /// The states that each has seen, one after the other.
    fn stop(self) -> Vec<(&'static str, Vec<State>)> {
        self.stop.store(true, Relaxed);
        let ended = self.readers.into_iter().map(|(sink, states, thread)| {
            thread.join().unwrap();
            (sink, states.lock().unwrap().clone())
        });
        ended.collect()
    }
}

fn state(names: &[&str]) -> State {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl OperatorTest {
    /// Claims are checked every second: only for tests in which nothing else writes to the destinations.
    pub(super) fn start_with_files(&mut self, destinations: &Destinations) {
        let root = destinations.root.path().to_str().unwrap().to_owned();
        self.start(&["--file-sink-root", &root, "--claim-check-interval=1s"]);
    }

    fn apply_profile(&self, kind: &str) {
        let profile = json!({
            "targetGVK": { "version": "v1", "kind": kind },
            "attributes": [{ "name": "value", "path": "$.data.value" }],
        });
        self.apply_kollect("KollectProfile", "maps", profile);
    }

    pub(super) fn with_five_sinks(name: &str, cluster: &str) -> (Self, Arc<Destinations>) {
        let test = Self::new(name);
        let destinations = Arc::new(Destinations::new(&test.namespace));
        test.apply_config_map("a", "1");
        test.apply_config_map("b", "1");
        test.install();
        destinations.install(&test, cluster);
        (test, destinations)
    }
}

#[test]
fn a_misspelt_kind_removes_no_row_before_or_after_it_is_corrected() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("typo", "east");
    test.start_with_files(&destinations);
    destinations.wait_for_rows("east", &["a", "b"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let readers = Readers::start(&destinations, "east");
    test.apply_profile("ConfigMapp");
    // Longer than it takes to be sure that the cluster does not have the kind.
    thread::sleep(Duration::from_secs(40));
    // A restart does not change that.
    test.operator.as_mut().unwrap().kill();
    test.start_with_files(&destinations);
    test.wait_for_condition("kollecttarget/maps", "Blind", "True NotSeen");
    thread::sleep(Duration::from_secs(40));
    test.apply_profile("ConfigMap");
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    test.apply_config_map("c", "1");
    destinations.wait_for_rows("east", &["a", "b", "c"]);
    for (sink, states) in readers.stop() {
        assert_eq!(states, [state(&["a", "b"]), state(&["a", "b", "c"])], "{sink}");
    }
}

impl Destinations {
    fn backup_path(&self, name: &str) -> PathBuf {
        self.root.path().join("backup").join(name)
    }

    fn sqlite(&self, command: &str) {
        let file = self.directory().join("rows.db");
        assert!(Command::new("sqlite3").arg(file).arg(command).status().unwrap().success());
    }

    fn refs(&self) -> String {
        self.repository.git(&["for-each-ref", "--format=update %(refname) %(objectname)"]).unwrap()
    }

    /// Saves what all destinations hold, claims too.
    fn back_up(&self) {
        fs::create_dir_all(self.backup_path("")).unwrap();
        let table = self.table();
        self.postgres
            .psql(&format!(
                "CREATE TABLE saved_rows AS TABLE {table}; CREATE TABLE saved_claims AS TABLE kollect_bindings"
            ))
            .unwrap();
        self.sqlite(&format!(".backup '{}'", self.backup_path("rows.db").display()));
        fs::write(self.backup_path("refs"), self.refs()).unwrap();
        copy_directory(&self.directory().join("files"), &self.backup_path("files"));
        let nats = self.nats.lock().unwrap();
        copy_directory(&nats.store(), &self.backup_path("nats"));
    }

    /// Brings all destinations back to what was saved, with the claims of that time.
    fn restore(&self) {
        let table = self.table();
        self.postgres
            .psql(&format!(
                "BEGIN; DELETE FROM {table}; INSERT INTO {table} TABLE saved_rows; \
                 DELETE FROM kollect_bindings; INSERT INTO kollect_bindings TABLE saved_claims; COMMIT"
            ))
            .unwrap();
        self.sqlite(&format!(".restore '{}'", self.backup_path("rows.db").display()));
        let saved = fs::read_to_string(self.backup_path("refs")).unwrap();
        for line in saved.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            self.repository.git(&["update-ref", words[1], words[2]]).unwrap();
        }
        copy_directory(&self.backup_path("files"), &self.directory().join("files"));
        let mut nats = self.nats.lock().unwrap();
        nats.kill();
        copy_directory(&self.backup_path("nats"), &nats.store());
        nats.resume().unwrap();
    }
}

/// Makes a directory the same as another one, without a moment in which a file of both is missing.
fn copy_directory(from: &Path, to: &Path) {
    let below = |root: &Path| {
        let output = Command::new("find").args([".", "-type", "f"]).current_dir(root).output().unwrap();
        lines(&String::from_utf8(output.stdout).unwrap())
    };
    fs::create_dir_all(to).unwrap();
    for file in below(from) {
        let target = to.join(&file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let draft = target.with_extension("draft#");
        fs::copy(from.join(&file), &draft).unwrap();
        fs::rename(draft, target).unwrap();
    }
    for file in below(to).difference(&below(from)) {
        fs::remove_file(to.join(file)).unwrap();
    }
}

#[test]
fn restored_destinations_catch_up_and_readers_see_no_partial_delta() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("restored", "east");
    test.start_with_files(&destinations);
    destinations.wait_for_rows("east", &["a", "b"]);
    destinations.back_up();
    // A new claim and more rows since then.
    test.operator.as_mut().unwrap().kill();
    test.start_with_files(&destinations);
    test.apply_config_map("c", "1");
    test.plane.kubectl(&["delete", "-n", &test.namespace, "configmap/b"]).unwrap();
    destinations.wait_for_rows("east", &["a", "c"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let readers = Readers::start(&destinations, "east");
    thread::sleep(Duration::from_secs(1));
    destinations.restore();
    test.apply_config_map("d", "1");
    destinations.wait_for_rows("east", &["a", "c", "d"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    for (sink, states) in readers.stop() {
        let (before, restored, now) = (state(&["a", "c"]), state(&["a", "b"]), state(&["a", "c", "d"]));
        match sink {
            // A delta is seen completely or not at all: only these three states, in this order.
            "postgres" | "sqlite" | "git" => {
                let expected = [before, restored, now];
                let mut remaining = expected.iter();
                let in_order = states.iter().all(|seen| remaining.any(|state| state == seen));
                assert!(in_order && states.last() == expected.last(), "{sink}: {states:?}");
            }
            _ => assert!(states.iter().all(|seen| seen.contains("a")), "{sink}: {states:?}"),
        }
    }
    // No object was edited for this, and nothing is written any more.
    let log = fs::read_to_string(test.dir.path().join("operator.log")).unwrap();
    assert!(log.contains("restored to an earlier state"), "{log}");
}

#[test]
fn rows_of_another_cluster_are_never_changed() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("lab2", "lab2");
    test.start_with_files(&destinations);
    destinations.wait_for_rows("lab2", &["a", "b"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let sql =
        format!("SELECT owner FROM kollect_bindings WHERE inventory_table = '{}'", destinations.table());
    let owner = destinations.postgres.psql(&sql).unwrap().trim().to_owned();
    let readers = Readers::start(&destinations, "lab2");

    // Another cluster with the same inventory under the same name.
    let plane = separate_plane();
    plane.kubectl(&["create", "namespace", &test.namespace]).unwrap();
    let mut other = OperatorTest {
        plane,
        postgres: test.postgres,
        namespace: test.namespace.clone(),
        watched: test.namespace.clone(),
        kubeconfig: None,
        environment: Vec::new(),
        operator: None,
        dir: tempfile::tempdir().unwrap(),
    };
    other.apply_config_map("x", "1");
    other.install();
    destinations.install(&other, "lab2");
    other.start_with_files(&destinations);
    other.wait_for_condition("kollectinventory/all", "Degraded", "True ExportTerminal");
    let exports = other.get("kollectinventory/all")["status"]["sinkExports"].clone();
    for export in exports.as_array().unwrap() {
        let message = export["lastError"].as_str().unwrap();
        assert!(message.contains(&format!("{}={owner}", export["name"].as_str().unwrap())), "{message}");
        assert!(export["place"].is_null() && export["left"].is_null(), "nothing is ours: {export}");
    }

    // It gets a name of its own; a take-over for another sink, or in the old form, changes nothing.
    destinations.install_sinks(&other, "b");
    other.annotate(
        "kollectinventory/all",
        &format!("kollect.dev/take-over=database/postgres={owner},{owner}"),
    );
    other.operator.as_mut().unwrap().kill();
    other.start_with_files(&destinations);
    destinations.wait_for_rows("b", &["x"]);
    other.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    other.wait_for_condition("kollectinventory/all", "TakeOver", "False TakeOverInvalid");
    let inventory = other.get("kollectinventory/all");
    for export in inventory["status"]["sinkExports"].as_array().unwrap() {
        assert!(export["left"].is_null(), "what was refused is not left: {export}");
    }
    assert!(inventory["status"]["takeOvers"].is_null(), "{inventory}");

    // It is deleted, with its own rows.
    other.delete("kollectinventory/all");
    destinations.wait_for_rows("b", &[]);
    eventually("the inventory is gone", || {
        let found = other.plane.kubectl(&["get", "-n", &other.namespace, "kollectinventory/all"]);
        found.is_err().then_some(()).ok_or("it is still there".into())
    });
    test.apply_config_map("c", "1");
    destinations.wait_for_rows("lab2", &["a", "b", "c"]);
    for (sink, states) in readers.stop() {
        assert_eq!(states, [state(&["a", "b"]), state(&["a", "b", "c"])], "{sink}");
    }
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
}

#[test]
fn a_destination_under_another_name_is_adopted_without_writing_rows() {
    let (mut test, destinations) = OperatorTest::with_five_sinks("renamed", "east");
    let git_url = |host: &str| destinations.git.plain_url(&destinations.namespace).replace("localhost", host);
    let set_host = |test: &OperatorTest, host: &str| {
        test.apply_secret(&destinations.postgres.dsn().replace("127.0.0.1", host));
        test.apply_kollect("KollectSnapshotSink", "git", destinations.git_sink("east", &git_url(host)));
        let nats = destinations.nats_url.replace("127.0.0.1", host);
        test.apply_kollect("KollectEventSink", "nats", destinations.nats_sink("east", &nats));
    };
    set_host(&test, "127.0.0.1");
    test.start_with_files(&destinations);
    destinations.wait_for_rows("east", &["a", "b"]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let table = destinations.table();
    let times = format!("SELECT name, first_seen_at, exported_at FROM {table} ORDER BY 1");
    let written = |test: &OperatorTest| {
        let commits = destinations.repository.git(&["rev-list", "--count", "main"]).unwrap();
        let exports = test.get("kollectinventory/all")["status"]["sinkExports"].to_string();
        (destinations.postgres.psql(&times).unwrap(), destinations.messages("east"), commits, exports)
    };
    let before = written(&test);
    let readers = Readers::start(&destinations, "east");
    // First while the process runs that knows both names, then while no process runs.
    for (host, restart) in [("localhost", false), ("127.0.0.1", true)] {
        if restart {
            test.operator.as_mut().unwrap().kill();
        }
        set_host(&test, host);
        if restart {
            test.start_with_files(&destinations);
        }
        eventually(&format!("all sinks lead to {host}, and nothing is left"), || {
            let inventory = test.get("kollectinventory/all");
            let exports = inventory["status"]["sinkExports"].as_array().unwrap();
            let adopted =
                exports.iter().all(|export| export["left"].is_null() && export["claiming"].is_null());
            let leads_to_host = |name: &str| {
                let export = exports.iter().find(|export| export["name"] == name).unwrap();
                export["place"]["destination"].as_str().unwrap_or_default().contains(host)
            };
            (adopted && leads_to_host("snapshot/git") && leads_to_host("event/nats"))
                .then_some(())
                .ok_or_else(|| inventory["status"].to_string())
        });
        test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
        assert_eq!(test.condition("kollectinventory/all", "LeftBehind"), "");
    }
    let after = written(&test);
    assert_eq!((before.0, before.1, before.2), (after.0, after.1, after.2), "no row was written again");
    for (sink, states) in readers.stop() {
        assert_eq!(states, [state(&["a", "b"])], "{sink}");
    }
    let events = test.get("events")["items"].as_array().unwrap().clone();
    let type_and_reason =
        |event: &Value| format!("{} {}", event["type"].as_str().unwrap(), event["reason"].as_str().unwrap());
    assert!(events.iter().any(|event| type_and_reason(event) == "Normal Adopted"), "{events:?}");
}
