//! What `kubectl apply -k` installs is enough: the operator runs as the service account of the manifests, with their
//! arguments, and the audit log of the API server shows that no request was refused.

mod tenancy;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use kollect_testbed::{ControlPlane, Postgres, free_port};
use serde_json::{Value, json};

use crate::program::{eventually, kollect, root};

const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
";

/// Flags of the Deployment that tests replace: every test needs ports of its own.
const PROBES: &str = "--health-probe-bind-address=:8081";
const METRICS: &str = "--metrics-bind-address=:8443";
/// Long for a probe on a busy machine, and less than a connection that sends nothing is kept.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// A control plane whose requests are logged, and a database.
struct InstallTest {
    plane: ControlPlane,
    postgres: Postgres,
    /// Of the operator.
    namespace: &'static str,
    port: u16,
    operator: Option<Child>,
    dir: tempfile::TempDir,
}

impl Drop for InstallTest {
    fn drop(&mut self) {
        if let Some(operator) = &mut self.operator {
            operator.kill().ok();
            operator.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the operator\n{}", fs::read_to_string(self.log()).unwrap_or_default());
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
        let plane = ControlPlane::start_with(&flags.each_ref().map(String::as_str)).unwrap();
        let postgres = Postgres::start().unwrap();
        Self { plane, postgres, namespace, port: free_port().unwrap(), operator: None, dir }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("operator.log")
    }

    fn install(&self, directory: &str) {
        let dir = root().join(directory);
        self.plane.kubectl(&["apply", "-k", dir.to_str().unwrap()]).unwrap();
    }

    fn install_kinds(&self, directory: &str) {
        self.install(directory);
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

    /// The arguments of the Deployment, as a kubelet would hand them over.
    fn arguments(&self) -> Vec<String> {
        let get = ["get", "deployment", "kollect", "-n", self.namespace, "-o", "json"];
        let deployment: Value = serde_json::from_str(&self.plane.kubectl(&get).unwrap()).unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["env"][0]["name"], "POD_NAMESPACE");
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "metadata.namespace");
        for (variable, path) in [(1, "metadata.name"), (2, "metadata.uid")] {
            assert_eq!(container["env"][variable]["valueFrom"]["fieldRef"]["fieldPath"], path);
        }
        let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        args.map(|arg| arg.replace("$(POD_NAMESPACE)", self.namespace)).collect()
    }

    /// A kubeconfig of the service account, with a token as a Pod gets it.
    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(self.namespace, "kollect")
    }

    fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let token = self.plane.kubectl(&["create", "token", account, "-n", namespace]).unwrap();
        let authority = self.dir.path().join("ca.pem");
        fs::write(&authority, self.plane.ca_pem()).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{ "name": "pod", "cluster": { "server": self.plane.url(), "certificate-authority": authority } }],
            "users": [{ "name": "pod", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "pod", "context": { "cluster": "pod", "user": "pod", "namespace": namespace } }],
        });
        let file = self.dir.path().join(format!("kubeconfig-{account}"));
        fs::write(&file, config.to_string()).unwrap();
        file
    }

    /// Starts the operator as the Deployment does. Its database is on this machine, which only an
    /// explicit flag permits.
    fn start(&mut self) {
        let args = self.arguments();
        kollect(args.iter().map(String::as_str).chain(["--help"])).ok();
        assert!(args.iter().any(|arg| arg == PROBES), "{args:?}");
        let probes = format!("--health-probe-bind-address=127.0.0.1:{}", self.port);
        let args = args.into_iter().map(|arg| match arg.as_str() {
            PROBES => probes.clone(),
            METRICS => "--metrics-bind-address=127.0.0.1:0".into(),
            _ => arg,
        });
        let log = fs::File::create(self.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kollect"));
        command
            .args(args)
            .envs([("POD_NAMESPACE", self.namespace), ("POD_NAME", "kollect-0"), ("POD_UID", "uid-0")])
            .args(["--allow-sink-cidrs", "127.0.0.0/8"])
            .arg("--kubeconfig")
            .arg(self.kubeconfig());
        self.operator = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    fn probe(&self, path: &str) -> Result<(), String> {
        let request = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PROBE_LIMIT))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: kollect\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        let answer = request().map_err(|error| error.to_string())?;
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

    /// Applies a ClusterRole that is not in the default, and binds it in one namespace, as its file says.
    fn bind_in(&self, namespace: &str, file: &str, role: &str) {
        let path = root().join("config/rbac").join(file);
        self.plane.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
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

    /// Probes are answered while clients hold more connections than the server allows, each after having sent `part`.
    fn check_probes_beside_open_connections(&self, part: &str) {
        let connections = (0..600).map(|_| TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        let held: Vec<TcpStream> =
            connections.inspect(|mut stream| stream.write_all(part.as_bytes()).unwrap()).collect();
        self.probe("/healthz").and_then(|()| self.probe("/readyz")).unwrap();
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
fn the_default_install_collects_the_samples_without_a_forbidden_request() {
    let mut test = InstallTest::new("kollect-system");
    test.install_kinds("config/default");
    let testdata = root().join("crates/kollect/testdata/catalogue");
    for file in ["kinds.yaml", "objects.yaml"] {
        let manifest = fs::read_to_string(testdata.join(file)).unwrap();
        eventually(file, || test.plane.apply(&manifest).map(drop).map_err(|error| error.to_string()));
    }
    test.install("config/samples");
    test.apply_secret();
    // A finalizer of the Go implementation; the operator only removes it.
    let finalizer = r#"{"metadata":{"finalizers":["kollect.dev/target-cleanup"]}}"#;
    let patch = ["patch", "-n", "team-a", "kollecttarget/ingresses", "--type=merge", "-p", finalizer];
    test.plane.kubectl(&patch).unwrap();
    let ttl = r#"{"spec":{"ttlSecondsAfterFinished":1}}"#;
    let patch = ["patch", "-n", "team-a", "kollectconnectiontest/portal", "--type=merge", "-p", ttl];
    test.plane.kubectl(&patch).unwrap();
    // Helm keeps releases in Secrets, and listing them is not part of the default.
    for verb in ["list", "watch"] {
        test.assert_not_allowed(&[verb, "secrets", "-A"]);
        test.assert_not_allowed(&[verb, "secrets", "-n", "team-a-shop"]);
    }
    test.bind_in("team-a-shop", "helm_collector_role.yaml", "kollect-helm-collector");
    test.wait_until_allowed(&["list", "secrets", "-n", "team-a-shop"]);
    test.wait_until_allowed(&["list", "certificates.cert-manager.io", "-A"]);
    test.wait_until_allowed(&["list", "kollecttargets.kollect.dev", "-A"]);
    test.wait_until_allowed(&["create", "leases.coordination.k8s.io", "-n", "kollect-system"]);
    // Collected kinds are read, and never written.
    for verb in ["create", "update", "patch", "delete"] {
        for resource in ["deployments.apps", "services", "secrets", "namespaces"] {
            test.assert_not_allowed(&[verb, resource, "-A"]);
        }
    }

    test.start();
    let sql = "SELECT target_name || ' ' || count(*) FROM inventory WHERE inventory_name = 'team-a' \
               GROUP BY target_name ORDER BY target_name";
    let others = [
        "certificates 2",
        "deployments 2",
        "flux-helmrelease-values 2",
        "flux-helmreleases 2",
        "helm-releases 1",
    ];
    test.wait_for_rows(sql, &[&others[..], &["ingresses 1", "services 2", "workloads 2"]].concat());
    eventually("the probes answer", || test.probe("/healthz").and_then(|()| test.probe("/readyz")));
    for part in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        test.check_probes_beside_open_connections(part);
    }
    // Installing again revokes no right: the aggregated rules of the collectors are not part of the manifest.
    let rules = ["get", "clusterrole", "kollect-collector", "-o", "jsonpath={.rules[*].resources[*]}"];
    let before = test.plane.kubectl(&rules).unwrap();
    test.install("config/default");
    assert_eq!(test.plane.kubectl(&rules).unwrap(), before);
    assert!(before.contains("deployments"), "{before}");
    test.wait_until_deleted("team-a", "kollectconnectiontest/portal");
    test.plane.kubectl(&["delete", "-n", "team-a", "kollecttarget/ingresses", "--wait=false"]).unwrap();
    test.wait_until_deleted("team-a", "kollecttarget/ingresses");
    test.wait_for_rows(sql, &[&others[..], &["services 2", "workloads 2"]].concat());
    test.assert_all_requests_allowed();
}

#[test]
fn the_tenant_install_needs_a_role_in_its_namespace_only() {
    let mut test = InstallTest::new("team-a");
    test.install_kinds("config/crd");
    test.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    test.install("config/tenant");
    let samples = root().join("config/samples");
    for file in ["kollectprofile", "kollectdatabasesink", "kollectinventory"] {
        let file = samples.join(format!("kollect_v1alpha1_{file}.yaml"));
        test.plane.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    }
    // The other sinks of the sample do not exist here, and its deletion would wait for them.
    let only = r#"{"spec":{"snapshotSinkRefs":[],"eventSinkRefs":[]}}"#;
    let patch = ["patch", "-n", "team-a", "kollectinventory/team-a", "--type=merge", "-p", only];
    test.plane.kubectl(&patch).unwrap();
    test.apply_secret();
    let apply_target = |name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": "team-a", "labels": { "tier": "workloads" } });
        let object = json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectTarget", "metadata": metadata, "spec": spec });
        test.plane.apply(&object.to_string()).unwrap();
    };
    apply_target("named", json!({ "profileRef": "deployments", "includedNamespaces": ["team-a"] }));
    apply_target("all", json!({ "profileRef": "deployments" }));
    let labels = json!({ "matchLabels": { "kollect.dev/tenant": "team-a" } });
    apply_target("selected", json!({ "profileRef": "deployments", "namespaceSelector": labels }));
    let deployment = |namespace: &str| {
        let labels = json!({ "app": "cart" });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "cart", "namespace": namespace },
            "spec": { "selector": { "matchLabels": labels }, "template": {
                "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main", "image": "cart:1" }] } } },
        })
    };
    // The operator does not watch namespace default.
    for namespace in ["team-a", "default"] {
        test.plane.apply(&deployment(namespace).to_string()).unwrap();
    }
    test.wait_until_allowed(&["list", "deployments.apps", "-n", "team-a"]);
    test.wait_until_allowed(&["list", "kollecttargets.kollect.dev", "-n", "team-a"]);

    test.start();
    let sql = "SELECT target_name || ' ' || namespace || '/' || name FROM inventory ORDER BY 1";
    // The operator itself is a Deployment of the namespace.
    test.wait_for_rows(
        sql,
        &["all team-a/cart", "all team-a/kollect", "named team-a/cart", "named team-a/kollect"],
    );
    eventually("the probes answer", || test.probe("/healthz").and_then(|()| test.probe("/readyz")));
    // Without the labels of namespaces a selector selects nothing, and that is reported as a failure.
    let degraded = "jsonpath={.status.conditions[?(@.type=='Degraded')].reason}";
    let get = ["get", "kollecttarget/selected", "-n", "team-a", "-o", degraded];
    eventually("the selector is reported", || match test.plane.kubectl(&get) {
        Ok(reason) if reason == "ScopeForbidden" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The id of the operator is that of its own namespace.
    let uid = ["get", "configmap", "kollect-identity", "-n", "team-a", "-o", "jsonpath={.metadata.uid}"];
    let uid = test.plane.kubectl(&uid).unwrap();
    test.wait_for_rows("SELECT DISTINCT owner FROM kollect_bindings", &[&uid]);
    test.plane.kubectl(&["delete", "-n", "team-a", "kollectinventory/team-a", "--wait=false"]).unwrap();
    test.wait_until_deleted("team-a", "kollectinventory/team-a");
    test.wait_for_rows(sql, &[]);

    for event in test.assert_all_requests_allowed() {
        let object = &event["objectRef"];
        let is_inside = object["namespace"] == "team-a";
        let is_discovery = object.is_null() || object["resource"] == "selfsubjectaccessreviews";
        assert!(
            is_inside || is_discovery,
            "outside of the namespace: {} {}",
            event["verb"],
            event["requestURI"]
        );
    }
}

#[test]
fn a_rotated_password_is_read_after_the_first_refusal_without_watching_secrets() {
    let mut test = InstallTest::new("kollect-system");
    test.install_kinds("config/default");
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
    test.wait_until_allowed(&["list", "services", "-A"]);
    test.wait_until_allowed(&["get", "secrets", "-n", "team-a"]);
    test.wait_until_allowed(&["create", "leases.coordination.k8s.io", "-n", "kollect-system"]);
    test.start();
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
    let of_secrets = requests.iter().filter(|event| event["objectRef"]["resource"] == "secrets");
    let verbs: Vec<&str> = of_secrets.map(|event| event["verb"].as_str().unwrap()).collect();
    assert!(!verbs.is_empty() && verbs.iter().all(|verb| *verb == "get"), "{verbs:?}");
    let refused = requests.iter().find(|event| event["responseStatus"]["code"] == 403);
    assert_eq!(refused, None);
}
