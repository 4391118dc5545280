//! `kollect watch` on live objects.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use kollect_testbed::{ControlPlane, Grant, Proxy};
use serde_json::Value;

use crate::program::{kollect_without_reader, root};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The program while it runs, with the lines that it prints.
struct RunningProgram {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl RunningProgram {
    fn start(kubeconfig: &Path, args: &[&str]) -> Self {
        Self::start_command("watch", kubeconfig, args)
    }

    fn start_command(command: &str, kubeconfig: &Path, args: &[&str]) -> Self {
        let examples = root().join("docs/examples/deployments");
        let mut child = Command::new(env!("CARGO_BIN_EXE_kollect"))
            .args([command, "-f", examples.to_str().unwrap(), "--kubeconfig", kubeconfig.to_str().unwrap()])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, stderr) = (lines(child.stdout.take().unwrap()), lines(child.stderr.take().unwrap()));
        Self { child, stdout, stderr }
    }

    fn stop(&mut self) -> i32 {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let signalled = Instant::now();
        let code = self.child.wait().unwrap().code().unwrap();
        assert!(signalled.elapsed() < Duration::from_secs(5), "it ends at once, even on a busy machine");
        code
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn next_line(lines: &Receiver<String>) -> String {
    lines.recv_timeout(TIMEOUT).expect("a line")
}

fn apply_cart(plane: &ControlPlane, namespace: &str, image: &str) {
    let object = serde_json::json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "cart", "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": "cart" } },
            "template": {
                "metadata": { "labels": { "app": "cart" } },
                "spec": { "containers": [{ "name": "main", "image": image }] },
            },
        },
    });
    plane.apply(&object.to_string()).unwrap();
}

/// As in `kollect watch … | head`.
#[test]
fn watch_ends_when_its_standard_output_is_closed() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("reader").unwrap();
    let kubeconfig = plane.kubeconfig().to_str().unwrap();
    let args = ["watch", "-f", "docs/examples/deployments", "--kubeconfig", kubeconfig, "-o", "ndjson", "-n"];
    let finished = kollect_without_reader(args.into_iter().chain([&*namespace]));
    assert_eq!(finished.code, 141, "{}", finished.stderr);
    assert!(!finished.stderr.contains("rror"), "{}", finished.stderr);
}

#[test]
fn changes_are_printed_as_they_happen() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("watch").unwrap();
    let mut watch = RunningProgram::start(plane.kubeconfig(), &["--namespace", &namespace]);
    assert!(next_line(&watch.stderr).starts_with("watching 0 rows, listed in "));
    apply_cart(plane, &namespace, "cart:1");
    assert_eq!(
        next_line(&watch.stdout),
        format!(
            "+ Deployment {namespace}/cart  image: \"cart:1\", replicas: 1, strategy: \"RollingUpdate\", team: null"
        )
    );
    // A change of no attribute is not printed.
    plane.kubectl(&["annotate", "deployment/cart", "-n", &namespace, "a=b"]).unwrap();
    apply_cart(plane, &namespace, "cart:2");
    assert_eq!(
        next_line(&watch.stdout),
        format!("~ Deployment {namespace}/cart  image: \"cart:1\" → \"cart:2\"")
    );
    plane.kubectl(&["delete", "deployment/cart", "-n", &namespace]).unwrap();
    assert_eq!(next_line(&watch.stdout), format!("- Deployment {namespace}/cart"));
    assert_eq!(watch.stop(), 0);
}

#[test]
fn ndjson_output_begins_with_all_rows() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("watch").unwrap();
    apply_cart(plane, &namespace, "cart:1");
    let mut watch = RunningProgram::start(plane.kubeconfig(), &["--namespace", &namespace, "-o", "ndjson"]);
    let event =
        |watch: &RunningProgram| -> Value { serde_json::from_str(&next_line(&watch.stdout)).unwrap() };
    let added = event(&watch);
    assert_eq!((&added["op"], &added["after"]["name"]), (&"added".into(), &"cart".into()));
    assert_eq!(event(&watch), serde_json::json!({ "op": "synced", "rows": 1 }));
    apply_cart(plane, &namespace, "cart:2");
    let changed = event(&watch);
    assert_eq!(changed["changed"], serde_json::json!(["image"]));
    assert_eq!(changed["before"]["attributes"]["image"], "cart:1");
    assert_eq!(changed["key"]["uid"], added["key"]["uid"]);
    plane.kubectl(&["delete", "deployment/cart", "-n", &namespace]).unwrap();
    let removed = event(&watch);
    assert_eq!((&removed["op"], &removed["after"]), (&"removed".into(), &Value::Null));
    assert_eq!(watch.stop(), 0);
}

#[test]
fn a_kind_that_may_not_be_listed_is_reported() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("watch").unwrap();
    let user = plane.user(&namespace, "stranger", &[Grant::cluster("", &["namespaces"], &["list", "watch"])]);
    let mut watch = RunningProgram::start(&user.unwrap(), &["--namespace", &namespace]);
    let message = next_line(&watch.stderr);
    assert_eq!(
        message,
        format!(
            "blind: Forbidden: list deployments.apps in namespace {namespace}: forbidden; \
             grant the verbs list and watch on it; its rows stay as they are"
        )
    );
    assert!(next_line(&watch.stderr).starts_with("watching 0 rows"));
    assert_eq!(watch.stop(), 0);
}

#[test]
fn bad_input_is_refused_before_anything_is_watched() {
    let finished = crate::program::kollect(["watch", "-f", "/nonexistent"]);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
}

#[test]
fn a_run_that_is_stopped_while_it_lists_writes_nothing() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let database = dir.path().join("inventory.db");
    // The program gets as far as the list, and no further.
    proxy.answer(1000, |line| line.contains("deployments?"), 429, &[("Retry-After", "60")], "{}");
    let out = format!("sqlite:{}", database.display());
    let mut run = RunningProgram::start_command("collect", &kubeconfig, &["--out", &out]);
    let deadline = Instant::now() + TIMEOUT;
    while !proxy.requests().iter().any(|line| line.contains("deployments?")) {
        assert!(Instant::now() < deadline, "the list was never requested: {:?}", proxy.requests());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(run.stop(), 130);
    assert_eq!(next_line(&run.stderr), "stopped; nothing was written");
    assert!(!database.exists());
}

#[test]
fn changes_reach_the_database_as_they_happen() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("watch").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("inventory.db");
    apply_cart(plane, &namespace, "cart:1");
    let out = format!("sqlite:{}", file.display());
    let start = || RunningProgram::start(plane.kubeconfig(), &["--namespace", &namespace, "--out", &out]);
    let row = || -> Option<(String, String)> {
        let database = rusqlite::Connection::open(&file).ok()?;
        let query = "SELECT payload ->> '$.attributes.image', changed_at FROM inventory";
        database.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).ok()
    };
    let wait_for_image = |image: Option<&str>| {
        let deadline = Instant::now() + TIMEOUT;
        while row().as_ref().map(|(image, _)| &**image) != image {
            assert!(Instant::now() < deadline, "found {:?} instead of {image:?}", row());
            thread::sleep(Duration::from_millis(20));
        }
    };
    let mut watch = start();
    wait_for_image(Some("cart:1"));
    apply_cart(plane, &namespace, "cart:2");
    wait_for_image(Some("cart:2"));
    assert_eq!(watch.stop(), 0);

    // A restart with nothing changed writes nothing; what changed meanwhile is written.
    let before = row();
    let mut watch = start();
    while !next_line(&watch.stderr).starts_with("watching") {}
    thread::sleep(Duration::from_millis(500));
    assert_eq!(row(), before);
    watch.child.kill().unwrap();
    plane.kubectl(&["delete", "deployment/cart", "-n", &namespace]).unwrap();
    let mut watch = start();
    wait_for_image(None);
    assert_eq!(watch.stop(), 0);
}
