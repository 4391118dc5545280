//! What `helm install` installs is enough. The Pods of the Deployment run as processes of this machine, with the command
//! line, the variables, the account and the probes that the API server has for them; the audit log of the API server shows
//! that no request was refused.

mod helm;
mod migration;
mod tenancy;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::PathBuf,
};

use kollect_testbed::{ControlPlane, Helm, Node, Postgres};
use serde_json::{Value, json};

use crate::{
    logs::check_lines,
    program::{eventually, root, sample_file},
};

const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
";

/// Databases of tests are on this machine, which only a value permits.
const ALLOW_LOOPBACK: &str = "--set-string=allowSinkCidrs={127.0.0.0/8}";

/// A control plane whose requests are logged, with a node that runs operators, and a database.
struct InstallTest {
    helm: Helm,
    plane: ControlPlane,
    postgres: Postgres,
    /// Of the operator.
    namespace: &'static str,
    dir: tempfile::TempDir,
}

impl Drop for InstallTest {
    fn drop(&mut self) {
        for (pod, log) in self.node().logs() {
            if std::thread::panicking() {
                eprintln!("--- log of {pod}\n{log}");
            } else {
                check_lines(&log);
            }
        }
    }
}

impl InstallTest {
    fn new(namespace: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy.yaml");
        fs::write(&policy, AUDIT_POLICY).unwrap();
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", dir.path().join("audit.log").display()),
        ];
        // `make test-image` runs the program of the image.
        let program = std::env::var_os("KOLLECT_PROGRAM");
        let program = program.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_kollect")), PathBuf::from);
        let plane =
            ControlPlane::start_with_node(&program, &[], &flags.each_ref().map(String::as_str)).unwrap();
        let helm = Helm::of(&plane).unwrap();
        Self { helm, plane, postgres: Postgres::start().unwrap(), namespace, dir }
    }

    fn node(&self) -> &Node {
        self.plane.node().unwrap()
    }

    /// Runs the command of the README that installs the chart, with a value that the database of the test needs.
    fn install_as_in_the_readme(&self) -> String {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        let command = readme.lines().find_map(|line| line.strip_prefix("helm ")).unwrap();
        assert!(command.ends_with("--namespace kollect-system --create-namespace --wait"), "{command}");
        for page in ["docs/use/install.md", "charts/kollect/README.md"] {
            assert!(
                fs::read_to_string(root().join(page)).unwrap().contains(&format!("helm {command}\n")),
                "{page}"
            );
        }
        let chart = root().join("charts/kollect");
        let arguments = command
            .split(' ')
            .map(|word| if word == "charts/kollect" { chart.to_str().unwrap() } else { word });
        self.helm.run(&arguments.chain([ALLOW_LOOPBACK]).collect::<Vec<_>>()).unwrap()
    }

    /// Runs helm with the chart, and waits until the operator is ready: `helm install` or `helm upgrade`.
    fn helm(&self, command: &str, more: &[&str]) -> String {
        let chart = root().join("charts/kollect");
        let release = [command, "kollect", chart.to_str().unwrap(), "--namespace", self.namespace];
        let wait = ["--create-namespace", "--wait", "--timeout=2m", ALLOW_LOOPBACK];
        let wait = if command == "upgrade" { &wait[1..] } else { &wait };
        self.helm.run(&[&release[..], wait, more].concat()).unwrap()
    }

    fn apply_directory(&self, directory: &str) {
        let dir = root().join(directory);
        self.plane.kubectl(&["apply", "-k", dir.to_str().unwrap()]).unwrap();
    }

    fn install_kinds(&self) {
        self.apply_directory("config/crd");
        self.plane.wait(&["crd", "--for=condition=Established", "--all"]).unwrap();
    }

    fn account(&self) -> String {
        format!("system:serviceaccount:{}:kollect", self.namespace)
    }

    /// Waits until the authorizer has seen the roles.
    fn wait_until_allowed(&self, question: &[&str]) {
        let account = self.account();
        eventually(&format!("{question:?} is allowed"), || {
            let arguments = [&["auth", "can-i", "--as", &account], question].concat();
            self.plane.kubectl(&arguments).map(drop).map_err(|error| error.to_string())
        });
    }

    /// Fails if the operator has a right.
    fn assert_not_allowed(&self, question: &[&str]) {
        let answer = self.plane.kubectl(&[&["auth", "can-i", "--as", &self.account()], question].concat());
        assert!(answer.is_err(), "{question:?} is allowed");
    }

    fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        self.plane.pod_kubeconfig(namespace, account).unwrap()
    }

    /// The name of the only Pod that is ready.
    fn pod(&self) -> String {
        let pods = self.node().ready_pods();
        assert_eq!(pods.len(), 1, "{pods:?}");
        pods[0].clone()
    }

    /// Fails unless the Pod answers a probe with success.
    fn probe(&self, path: &str) -> Result<(), String> {
        let answer = self.node().probe(&self.pod(), path).unwrap_or_default();
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    }

    fn apply_secret(&self) {
        self.plane
            .apply(
                &json!({
                    "apiVersion": "v1", "kind": "Secret",
                    "metadata": { "name": "portal-database", "namespace": "team-a" },
                    "stringData": { "dsn": self.postgres.dsn() },
                })
                .to_string(),
            )
            .unwrap();
    }

    /// Binds a ClusterRole of the chart to the operator in one namespace.
    fn bind_in(&self, namespace: &str, role: &str) {
        let (role_flag, account) =
            (format!("--clusterrole={role}"), format!("--serviceaccount={}:kollect", self.namespace));
        let bind = ["create", "rolebinding", role, "-n", namespace, &role_flag, &account];
        self.plane.kubectl(&bind).unwrap();
    }

    fn wait_for_rows(&self, sql: &str, expected: &[&str]) {
        eventually(sql, || {
            let found = self.postgres.psql(sql).map_err(|error| error.to_string())?;
            if found.lines().eq(expected.iter().copied()) { Ok(()) } else { Err(found) }
        });
    }

    fn wait_until_deleted(&self, namespace: &str, resource: &str) {
        eventually(&format!("{resource} is gone"), || {
            let found = self.plane.kubectl(&["get", "-n", namespace, "--ignore-not-found", resource]);
            let found = found.map_err(|error| error.to_string())?;
            if found.is_empty() { Ok(()) } else { Err(found) }
        });
    }

    /// Waits until every object of the kinds in a namespace is Ready.
    fn wait_until_ready(&self, namespace: &str, kinds: &str) {
        eventually(&format!("{kinds} are Ready"), || {
            let objects = self.plane.kubectl(&["get", kinds, "-n", namespace, "-o", "json"]).unwrap();
            let objects: Value = serde_json::from_str(&objects).unwrap();
            let objects = objects["items"].as_array().unwrap();
            let is_ready = |object: &&Value| {
                let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions
                    .iter()
                    .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            };
            let unready: Vec<String> = objects
                .iter()
                .filter(|object| !is_ready(object))
                .map(|object| {
                    format!("{} {}: {}", object["kind"], object["metadata"]["name"], object["status"])
                })
                .collect();
            if unready.is_empty() && !objects.is_empty() { Ok(()) } else { Err(unready.join("\n")) }
        });
    }

    /// Probes are answered while clients hold more connections than the server allows, each after having sent `sent`.
    fn check_probes_beside_open_connections(&self, sent: &str) {
        let port = self.node().port(&self.pod(), "probes").unwrap();
        let connections = (0..600).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap());
        let held: Vec<TcpStream> =
            connections.inspect(|mut stream| stream.write_all(sent.as_bytes()).unwrap()).collect();
        eventually("probes are answered", || self.probe("/healthz").and_then(|()| self.probe("/readyz")));
        drop(held);
    }

    /// The requests of the service account that the API server has answered.
    fn requests(&self) -> Vec<Value> {
        let account = self.account();
        let log = BufReader::new(fs::File::open(self.dir.path().join("audit.log")).unwrap());
        // The last line may be half written.
        let events = log.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
        events.filter(|event: &Value| event["user"]["username"] == account).collect()
    }

    /// Fails if a request of the operator was answered with 403.
    fn assert_nothing_forbidden(&self) -> Vec<Value> {
        let requests = self.requests();
        let refused: Vec<String> = requests
            .iter()
            .filter(|event| event["responseStatus"]["code"] == 403)
            .map(|event| format!("{} {}", event["verb"], event["requestURI"]))
            .collect();
        assert!(refused.is_empty(), "forbidden:\n{}", refused.join("\n"));
        requests
    }

    /// No request was forbidden, and the expected ones were made.
    fn assert_all_requests_allowed(&self) -> Vec<Value> {
        let requests = self.assert_nothing_forbidden();
        for (verb, resource, subresource) in [
            ("watch", "deployments", None),
            ("get", "secrets", None),
            ("update", "kollectinventories", Some("status")),
            ("patch", "kollectinventories", None),
            ("create", "events", None),
            ("create", "leases", None),
        ] {
            let was_made = requests.iter().any(|event| {
                event["verb"] == verb
                    && event["objectRef"]["resource"] == resource
                    && event["objectRef"]["subresource"].as_str() == subresource
            });
            assert!(was_made, "no {verb} of {resource} {subresource:?}");
        }
        requests
    }
}

#[test]
fn a_rotated_password_is_read_after_the_first_refusal_without_watching_secrets() {
    let test = InstallTest::new("kollect-system");
    test.helm("install", &[]);
    test.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    test.postgres.psql("CREATE ROLE with_password").unwrap();
    test.postgres.psql("CREATE ROLE portal LOGIN PASSWORD 'first' IN ROLE with_password").unwrap();
    test.postgres.psql("GRANT CREATE ON SCHEMA public TO portal").unwrap();
    let apply_object = |test: &InstallTest, kind: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": "team-a" });
        let object =
            json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        test.plane.apply(&object.to_string()).unwrap();
    };
    let apply_secret = |test: &InstallTest, password: &str| {
        let dsn = format!("postgres://portal:{password}@127.0.0.1:{}/postgres", test.postgres.port());
        let metadata = json!({ "name": "portal", "namespace": "team-a" });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "dsn": dsn } });
        test.plane.apply(&secret.to_string()).unwrap();
    };
    let apply_service = |test: &InstallTest, name: &str| {
        let metadata = json!({ "name": name, "namespace": "team-a" });
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
        test.plane.apply(&service.to_string()).unwrap();
    };
    let attributes = json!([{ "name": "type", "path": "$.spec.type" }]);
    let gvk = json!({ "version": "v1", "kind": "Service" });
    apply_object(&test, "KollectProfile", "services", json!({ "targetGVK": gvk, "attributes": attributes }));
    apply_object(&test, "KollectTarget", "services", json!({ "profileRef": "services" }));
    let database = json!({ "databaseRef": { "name": "portal" }, "table": "rotated" });
    apply_object(&test, "KollectDatabaseSink", "portal", json!({ "type": "postgres", "postgres": database }));
    apply_object(&test, "KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    apply_secret(&test, "first");
    apply_service(&test, "a");
    let sql = "SELECT name FROM rotated ORDER BY name";
    test.wait_for_rows(sql, &["a"]);

    // The operator gets no event for the changed Secret. Then the old password stops working.
    apply_secret(&test, "second");
    test.postgres.psql("ALTER ROLE portal PASSWORD 'second'").unwrap();
    let end_sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'portal'";
    test.postgres.psql(end_sessions).unwrap();
    apply_service(&test, "b");
    test.wait_for_rows(sql, &["a", "b"]);

    let requests = test.requests();
    let is_of_sink = |event: &&Value| event["objectRef"]["namespace"] == "team-a";
    let of_secrets =
        requests.iter().filter(|event| event["objectRef"]["resource"] == "secrets").filter(is_of_sink);
    let verbs: Vec<&str> = of_secrets.map(|event| event["verb"].as_str().unwrap()).collect();
    assert!(!verbs.is_empty() && verbs.iter().all(|verb| *verb == "get"), "{verbs:?}");
    let refused = requests.iter().find(|event| event["responseStatus"]["code"] == 403);
    assert_eq!(refused, None);
}
