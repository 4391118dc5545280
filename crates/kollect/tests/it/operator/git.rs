//! An inventory in Git: the commits that auditors see of changes in the cluster.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_testbed::git::{GitHttp, Repository};

use super::*;

struct History {
    server: &'static GitHttp,
    repository: Repository,
}

impl History {
    fn new(test: &OperatorTest) -> Self {
        let server = GitHttp::shared();
        Self { server, repository: server.create(&test.namespace).unwrap() }
    }

    fn sink(&self, test: &OperatorTest, branch: &str) -> Value {
        json!({
            "type": "git", "endpoint": self.server.url(&test.namespace), "minChangeInterval": "0s",
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

    fn wait_for_files(&self, branch: &str, expected: &[&str]) {
        eventually(&format!("{expected:?} in {branch}"), || {
            let found = self.files(branch);
            (found == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    }
}

fn apply_git_secret(test: &OperatorTest, password: &str) {
    test.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git" },
        "stringData": { "username": GitHttp::USER, "password": password },
    }));
}

#[test]
fn a_branch_has_a_commit_for_every_change_in_the_cluster() {
    let mut test = OperatorTest::new("history");
    let history = History::new(&test);
    let (a, b) = (
        format!("default/{}/configmap/a.yaml", test.namespace),
        format!("default/{}/configmap/b.yaml", test.namespace),
    );
    test.install();
    test.apply_config_map("a", "1");
    apply_git_secret(&test, "wrong");
    test.apply_kollect("KollectSnapshotSink", "history", history.sink(&test, "main"));
    test.apply_kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["history"] }));
    test.start(&[]);
    test.wait_for_condition(
        "kollectsnapshotsink/history",
        "ConnectionVerified",
        "False ConnectionTestFailed",
    );
    let message = test.get("kollectinventory/all").to_string();
    assert!(!message.contains("wrong"), "{message}");

    // The right password takes effect at once.
    apply_git_secret(&test, GitHttp::PASSWORD);
    test.wait_for_condition("kollectsnapshotsink/history", "ConnectionVerified", "True ConnectionOK");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    history.wait_for_files("main", &[&a]);
    assert_eq!(history.repository.git(&["show", &format!("main:{a}")]).unwrap(), "value: \"1\"\n");
    let first = history.log("main");
    assert_eq!(first.trim(), format!("+ {}/ConfigMap/a\n\nSink: history", test.namespace));

    test.apply_config_map("a", "2");
    test.apply_config_map("b", "1");
    history.wait_for_files("main", &[&a, &b]);
    eventually("both changes", || {
        let log = history.log("main");
        let expected = [
            format!("~ {}/ConfigMap/a: value 1 → 2", test.namespace),
            format!("+ {}/ConfigMap/b", test.namespace),
        ];
        expected.iter().all(|line| log.contains(line)).then_some(()).ok_or(log)
    });
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");

    // Nothing has changed: no commit, also after a crash.
    let before = history.repository.git(&["rev-parse", "main"]).unwrap();
    test.operator.as_mut().unwrap().kill();
    test.start(&[]);
    let annotated = ["annotate", "-n", &test.namespace, "kinv/all", "kollect.dev/requestedAt=now"];
    test.plane.kubectl(&annotated).unwrap();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(history.repository.git(&["rev-parse", "main"]).unwrap(), before);

    // A push that a hook declines: the status reports it, without the text of the server.
    history.repository.hook("pre-receive", "echo 'ask the audit team first' >&2; exit 1").unwrap();
    test.apply_config_map("a", "3");
    eventually("why nothing is pushed", || {
        let export = test.get("kollectinventory/all")["status"]["sinkExports"][0].clone();
        let error = export["lastError"].to_string();
        assert!(!error.contains("audit team"), "{error}");
        error.contains("a hook of the server declined it").then_some(()).ok_or(export.to_string())
    });
    std::fs::remove_file(history.repository.path().join("hooks/pre-receive")).unwrap();

    // Another branch: it is filled first, then the files of the old one are removed.
    test.apply_kollect("KollectSnapshotSink", "history", history.sink(&test, "audit"));
    history.wait_for_files("audit", &[&a, &b]);
    history.wait_for_files("main", &[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.delete("kollectinventory/all");
    history.wait_for_files("audit", &[]);
    eventually("the inventory is gone", || {
        let found = test.plane.kubectl(&["get", "-n", &test.namespace, "kollectinventory/all"]);
        found.is_err().then_some(()).ok_or("it is still there".into())
    });
    let refs = history.repository.git(&["for-each-ref", "--format=%(refname)"]).unwrap();
    assert_eq!(refs, "refs/heads/audit\nrefs/heads/main\n");
    history.repository.fsck().unwrap();
    let log = std::fs::read_to_string(&test.operator.as_ref().unwrap().log).unwrap();
    assert!(!log.contains(GitHttp::PASSWORD));
}
