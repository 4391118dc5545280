//! An inventory in Git, kept by the operator: what auditors see of what happens in the cluster.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_testbed::git::{GitHttp, Repository};

use super::*;

struct History {
    server: &'static GitHttp,
    repository: Repository,
}

impl History {
    fn new(world: &World) -> Self {
        let server = GitHttp::shared();
        Self { server, repository: server.create(&world.namespace).unwrap() }
    }

    fn sink(&self, world: &World, branch: &str) -> Value {
        json!({
            "type": "git", "endpoint": self.server.url(&world.namespace), "minChangeInterval": "0s",
            "secretRef": { "name": "git" }, "git": { "branch": branch, "commitTrailers": ["Sink: {sink}"] },
            "tls": { "caBundle": STANDARD.encode(&self.server.certificates().ca) },
            "layout": { "mode": "perResource", "content": "attributes" },
        })
    }

    /// Subjects and bodies of all commits, the last one first.
    fn log(&self, branch: &str) -> String {
        self.repository.git(&["log", "--format=%b", branch]).unwrap_or_default()
    }

    fn files(&self, branch: &str) -> Vec<String> {
        let listed = self.repository.git(&["ls-tree", "-r", "--name-only", branch]).unwrap_or_default();
        listed.lines().filter(|path| !path.starts_with(".kollect")).map(Into::into).collect()
    }

    fn has(&self, branch: &str, expected: &[&str]) {
        eventually(&format!("{expected:?} in {branch}"), || {
            let found = self.files(branch);
            (found == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    }
}

fn secret(world: &World, password: &str) {
    world.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git" },
        "stringData": { "username": GitHttp::USER, "password": password },
    }));
}

#[test]
fn a_branch_tells_what_happened_in_the_cluster() {
    let mut world = World::new("history");
    let history = History::new(&world);
    let (a, b) = (
        format!("default/{}/configmap/a.yaml", world.namespace),
        format!("default/{}/configmap/b.yaml", world.namespace),
    );
    world.install();
    world.map("a", "1");
    secret(&world, "wrong");
    world.kollect("KollectSnapshotSink", "history", history.sink(&world, "main"));
    world.kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["history"] }));
    world.start(&[]);
    world.becomes("kollectsnapshotsink/history", "ConnectionVerified", "False ConnectionTestFailed");
    let message = world.get("kollectinventory/all").to_string();
    assert!(!message.contains("wrong"), "{message}");

    // The right password takes effect at once.
    secret(&world, GitHttp::PASSWORD);
    world.becomes("kollectsnapshotsink/history", "ConnectionVerified", "True ConnectionOK");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    history.has("main", &[&a]);
    assert_eq!(history.repository.git(&["show", &format!("main:{a}")]).unwrap(), "value: \"1\"\n");
    let first = history.log("main");
    assert_eq!(first.trim(), format!("+ {}/ConfigMap/a\n\nSink: history", world.namespace));

    world.map("a", "2");
    world.map("b", "1");
    history.has("main", &[&a, &b]);
    eventually("both changes", || {
        let log = history.log("main");
        let all = [
            format!("~ {}/ConfigMap/a: value 1 → 2", world.namespace),
            format!("+ {}/ConfigMap/b", world.namespace),
        ];
        all.iter().all(|line| log.contains(line)).then_some(()).ok_or(log)
    });
    world.becomes("kollectinventory/all", "Ready", "True Exported");

    // Nothing has changed: no commit, also after a crash.
    let before = history.repository.git(&["rev-parse", "main"]).unwrap();
    world.operator.as_mut().unwrap().kill();
    world.start(&[]);
    let annotated = ["annotate", "-n", &world.namespace, "kinv/all", "kollect.dev/requestedAt=now"];
    world.plane.kubectl(&annotated).unwrap();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(history.repository.git(&["rev-parse", "main"]).unwrap(), before);

    // A push that a hook declines: the status says so, without the words of the server.
    history.repository.hook("pre-receive", "echo 'ask the audit team first' >&2; exit 1").unwrap();
    world.map("a", "3");
    eventually("why nothing is pushed", || {
        let export = world.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
        let error = export["lastError"].to_string();
        assert!(!error.contains("audit team"), "{error}");
        error.contains("a hook of the server declined it").then_some(()).ok_or(export.to_string())
    });
    std::fs::remove_file(history.repository.path().join("hooks/pre-receive")).unwrap();

    // Another branch: it is filled first, then the files of the old one go.
    world.kollect("KollectSnapshotSink", "history", history.sink(&world, "audit"));
    history.has("audit", &[&a, &b]);
    history.has("main", &[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.delete("kollectinventory/all");
    history.has("audit", &[]);
    eventually("the inventory is gone", || {
        let found = world.plane.kubectl(&["get", "-n", &world.namespace, "kollectinventory/all"]);
        found.is_err().then_some(()).ok_or("it is still there".into())
    });
    let refs = history.repository.git(&["for-each-ref", "--format=%(refname)"]).unwrap();
    assert_eq!(refs, "refs/heads/audit\nrefs/heads/main\n");
    history.repository.fsck().unwrap();
    let log = std::fs::read_to_string(&world.operator.as_ref().unwrap().log).unwrap();
    assert!(!log.contains(GitHttp::PASSWORD));
}
