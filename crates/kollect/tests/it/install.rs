//! What `kubectl apply -k` installs is enough: the operator runs as exactly the service account of the
//! manifests, with exactly their arguments, and the API server's own log shows that nothing was refused.

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

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
";

/// Where the Deployment serves; every test needs ports of its own.
const PROBES: &str = "--health-probe-bind-address=:8081";
const METRICS: &str = "--metrics-bind-address=:8443";
/// Long for a probe on a busy machine, and less than a connection that sends nothing is kept.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// A control plane whose requests are logged, and a database.
struct World {
    plane: ControlPlane,
    postgres: Postgres,
    /// Of the operator.
    namespace: &'static str,
    port: u16,
    operator: Option<Child>,
    dir: tempfile::TempDir,
}

impl Drop for World {
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

impl World {
    fn new(namespace: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy.yaml");
        fs::write(&policy, POLICY).unwrap();
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

    fn install(&self, what: &str) {
        let dir = root().join(what);
        self.plane.kubectl(&["apply", "-k", dir.to_str().unwrap()]).unwrap();
    }

    fn install_kinds(&self, what: &str) {
        self.install(what);
        self.plane.wait(&["crd", "--for=condition=Established", "--all"]).unwrap();
    }

    fn account(&self) -> String {
        format!("system:serviceaccount:{}:kollect", self.namespace)
    }

    /// Returns when the authorizer has seen the roles.
    fn may(&self, question: &[&str]) {
        let account = self.account();
        eventually(&format!("{question:?} is allowed"), || {
            let asked = [&["auth", "can-i", "--as", &account], question].concat();
            self.plane.kubectl(&asked).map(drop).map_err(|error| error.to_string())
        });
    }

    /// Makes sure that the operator has no more rights than it needs.
    fn may_not(&self, question: &[&str]) {
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

    fn get(&self, path: &str) -> Result<(), String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PROBE_LIMIT))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: kollect\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    }

    fn secret(&self) {
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

    /// Binds a ClusterRole that is shipped apart, in one namespace, as its file says.
    fn bind_in(&self, namespace: &str, file: &str, role: &str) {
        let path = root().join("config/rbac").join(file);
        self.plane.kubectl(&["apply", "-f", path.to_str().unwrap()]).unwrap();
        let (role_flag, account) =
            (format!("--clusterrole={role}"), format!("--serviceaccount={}:kollect", self.namespace));
        let bind = ["create", "rolebinding", role, "-n", namespace, &role_flag, &account];
        self.plane.kubectl(&bind).unwrap();
    }

    fn holds(&self, sql: &str, expected: &[&str]) {
        eventually(sql, || {
            let found = self.postgres.psql(sql).map_err(|error| error.to_string())?;
            if found.lines().eq(expected.iter().copied()) { Ok(()) } else { Err(found) }
        });
    }

    fn vanishes(&self, namespace: &str, what: &str) {
        eventually(&format!("{what} is gone"), || {
            let found = self.plane.kubectl(&["get", "-n", namespace, "--ignore-not-found", what]);
            let found = found.map_err(|error| error.to_string())?;
            if found.is_empty() { Ok(()) } else { Err(found) }
        });
    }

    /// Clients hold more connections to the probes than the server allows, each after having sent `part`.
    fn probes_answer_beside(&self, part: &str) {
        let connections = (0..600).map(|_| TcpStream::connect(("127.0.0.1", self.port)).unwrap());
        let held: Vec<TcpStream> =
            connections.inspect(|mut stream| stream.write_all(part.as_bytes()).unwrap()).collect();
        self.get("/healthz").and_then(|()| self.get("/readyz")).unwrap();
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

    /// No request of the operator was answered with 403.
    fn nothing_was_forbidden(&self) -> Vec<Value> {
        let requests = self.requests();
        let refused: Vec<String> = requests
            .iter()
            .filter(|event| event["responseStatus"]["code"] == 403)
            .map(|event| format!("{} {}", event["verb"], event["requestURI"]))
            .collect();
        assert!(refused.is_empty(), "forbidden:\n{}", refused.join("\n"));
        requests
    }

    /// Nothing was forbidden, and this is not because nothing was asked.
    fn nothing_was_refused(&self) -> Vec<Value> {
        let requests = self.nothing_was_forbidden();
        for (verb, resource, subresource) in [
            ("watch", "deployments", None),
            ("get", "secrets", None),
            ("update", "kollectinventories", Some("status")),
            ("patch", "kollectinventories", None),
            ("create", "events", None),
            ("create", "leases", None),
        ] {
            let seen = requests.iter().any(|event| {
                event["verb"] == verb
                    && event["objectRef"]["resource"] == resource
                    && event["objectRef"]["subresource"].as_str() == subresource
            });
            assert!(seen, "no {verb} of {resource} {subresource:?}");
        }
        requests
    }
}

#[test]
fn the_default_install_collects_the_samples_and_asks_for_nothing_forbidden() {
    let mut world = World::new("kollect-system");
    world.install_kinds("config/default");
    let testdata = root().join("crates/kollect/testdata/catalogue");
    for file in ["kinds.yaml", "objects.yaml"] {
        let text = fs::read_to_string(testdata.join(file)).unwrap();
        eventually(file, || world.plane.apply(&text).map(drop).map_err(|error| error.to_string()));
    }
    world.install("config/samples");
    world.secret();
    // Of the Go implementation; the operator only removes it.
    let finalizer = r#"{"metadata":{"finalizers":["kollect.dev/target-cleanup"]}}"#;
    let patch = ["patch", "-n", "team-a", "kollecttarget/ingresses", "--type=merge", "-p", finalizer];
    world.plane.kubectl(&patch).unwrap();
    let ttl = r#"{"spec":{"ttlSecondsAfterFinished":1}}"#;
    let patch = ["patch", "-n", "team-a", "kollectconnectiontest/portal", "--type=merge", "-p", ttl];
    world.plane.kubectl(&patch).unwrap();
    // Helm keeps releases in Secrets, and listing them is not part of the default.
    for verb in ["list", "watch"] {
        world.may_not(&[verb, "secrets", "-A"]);
        world.may_not(&[verb, "secrets", "-n", "team-a-shop"]);
    }
    world.bind_in("team-a-shop", "helm_collector_role.yaml", "kollect-helm-collector");
    world.may(&["list", "secrets", "-n", "team-a-shop"]);
    world.may(&["list", "certificates.cert-manager.io", "-A"]);
    world.may(&["list", "kollecttargets.kollect.dev", "-A"]);
    world.may(&["create", "leases.coordination.k8s.io", "-n", "kollect-system"]);
    // ⚠26: what is collected is read, and nothing of it is written.
    for verb in ["create", "update", "patch", "delete"] {
        for resource in ["deployments.apps", "services", "secrets", "namespaces"] {
            world.may_not(&[verb, resource, "-A"]);
        }
    }

    world.start();
    let sql = "SELECT target_name || ' ' || count(*) FROM inventory WHERE inventory_name = 'team-a' \
               GROUP BY target_name ORDER BY target_name";
    let others = [
        "certificates 2",
        "deployments 2",
        "flux-helmrelease-values 2",
        "flux-helmreleases 2",
        "helm-releases 1",
    ];
    world.holds(sql, &[&others[..], &["ingresses 1", "services 2", "workloads 2"]].concat());
    eventually("the probes answer", || world.get("/healthz").and_then(|()| world.get("/readyz")));
    for part in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        world.probes_answer_beside(part);
    }
    // Installing again takes no right away: the sum of the collectors' roles is not part of the manifest.
    let rules = ["get", "clusterrole", "kollect-collector", "-o", "jsonpath={.rules[*].resources[*]}"];
    let before = world.plane.kubectl(&rules).unwrap();
    world.install("config/default");
    assert_eq!(world.plane.kubectl(&rules).unwrap(), before);
    assert!(before.contains("deployments"), "{before}");
    world.vanishes("team-a", "kollectconnectiontest/portal");
    world.plane.kubectl(&["delete", "-n", "team-a", "kollecttarget/ingresses", "--wait=false"]).unwrap();
    world.vanishes("team-a", "kollecttarget/ingresses");
    world.holds(sql, &[&others[..], &["services 2", "workloads 2"]].concat());
    world.nothing_was_refused();
}

#[test]
fn the_tenant_install_needs_a_role_in_its_namespace_only() {
    let mut world = World::new("team-a");
    world.install_kinds("config/crd");
    world.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    world.install("config/tenant");
    let samples = root().join("config/samples");
    for file in ["kollectprofile", "kollectdatabasesink", "kollectinventory"] {
        let file = samples.join(format!("kollect_v1alpha1_{file}.yaml"));
        world.plane.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    }
    // The other sinks of the sample do not exist here, and its deletion would wait for them.
    let only = r#"{"spec":{"snapshotSinkRefs":[],"eventSinkRefs":[]}}"#;
    let patch = ["patch", "-n", "team-a", "kollectinventory/team-a", "--type=merge", "-p", only];
    world.plane.kubectl(&patch).unwrap();
    world.secret();
    let target = |name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": "team-a", "labels": { "tier": "workloads" } });
        let object = json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectTarget", "metadata": metadata, "spec": spec });
        world.plane.apply(&object.to_string()).unwrap();
    };
    target("named", json!({ "profileRef": "deployments", "includedNamespaces": ["team-a"] }));
    target("all", json!({ "profileRef": "deployments" }));
    let labels = json!({ "matchLabels": { "kollect.dev/tenant": "team-a" } });
    target("selected", json!({ "profileRef": "deployments", "namespaceSelector": labels }));
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
        world.plane.apply(&deployment(namespace).to_string()).unwrap();
    }
    world.may(&["list", "deployments.apps", "-n", "team-a"]);
    world.may(&["list", "kollecttargets.kollect.dev", "-n", "team-a"]);

    world.start();
    let sql = "SELECT target_name || ' ' || namespace || '/' || name FROM inventory ORDER BY 1";
    // The operator itself is a Deployment of the namespace.
    world.holds(sql, &["all team-a/cart", "all team-a/kollect", "named team-a/cart", "named team-a/kollect"]);
    eventually("the probes answer", || world.get("/healthz").and_then(|()| world.get("/readyz")));
    // Without the labels of namespaces a selector decides nothing, and that is no success.
    let degraded = "jsonpath={.status.conditions[?(@.type=='Degraded')].reason}";
    let get = ["get", "kollecttarget/selected", "-n", "team-a", "-o", degraded];
    eventually("the selector is told to be undecided", || match world.plane.kubectl(&get) {
        Ok(reason) if reason == "ScopeForbidden" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The id of the operator is that of its own namespace.
    let uid = ["get", "configmap", "kollect-identity", "-n", "team-a", "-o", "jsonpath={.metadata.uid}"];
    let uid = world.plane.kubectl(&uid).unwrap();
    world.holds("SELECT DISTINCT owner FROM kollect_bindings", &[&uid]);
    world.plane.kubectl(&["delete", "-n", "team-a", "kollectinventory/team-a", "--wait=false"]).unwrap();
    world.vanishes("team-a", "kollectinventory/team-a");
    world.holds(sql, &[]);

    for event in world.nothing_was_refused() {
        let object = &event["objectRef"];
        let inside = object["namespace"] == "team-a";
        let discovery = object.is_null() || object["resource"] == "selfsubjectaccessreviews";
        assert!(inside || discovery, "outside of the namespace: {} {}", event["verb"], event["requestURI"]);
    }
}

#[test]
fn w24_a_rotated_password_is_read_after_the_first_refusal_without_watching_secrets() {
    let mut world = World::new("kollect-system");
    world.install_kinds("config/default");
    world.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    world.postgres.psql("CREATE ROLE with_password").unwrap();
    world.postgres.psql("CREATE ROLE portal LOGIN PASSWORD 'first' IN ROLE with_password").unwrap();
    world.postgres.psql("GRANT CREATE ON SCHEMA public TO portal").unwrap();
    let object = |world: &World, kind: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": "team-a" });
        let object =
            json!({ "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        world.plane.apply(&object.to_string()).unwrap();
    };
    let secret = |world: &World, password: &str| {
        let dsn = format!("postgres://portal:{password}@127.0.0.1:{}/postgres", world.postgres.port());
        let metadata = json!({ "name": "portal", "namespace": "team-a" });
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "dsn": dsn } });
        world.plane.apply(&secret.to_string()).unwrap();
    };
    let service = |world: &World, name: &str| {
        let metadata = json!({ "name": name, "namespace": "team-a" });
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
        world.plane.apply(&service.to_string()).unwrap();
    };
    let attributes = json!([{ "name": "type", "path": "$.spec.type" }]);
    let gvk = json!({ "version": "v1", "kind": "Service" });
    object(&world, "KollectProfile", "services", json!({ "targetGVK": gvk, "attributes": attributes }));
    object(&world, "KollectTarget", "services", json!({ "profileRef": "services" }));
    let database = json!({ "databaseRef": { "name": "portal" }, "table": "rotated" });
    object(&world, "KollectDatabaseSink", "portal", json!({ "type": "postgres", "postgres": database }));
    object(&world, "KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    secret(&world, "first");
    service(&world, "a");
    world.may(&["list", "services", "-A"]);
    world.may(&["get", "secrets", "-n", "team-a"]);
    world.may(&["create", "leases.coordination.k8s.io", "-n", "kollect-system"]);
    world.start();
    let sql = "SELECT name FROM rotated ORDER BY name";
    world.holds(sql, &["a"]);

    // The operator gets no event for the changed Secret. Then the old password stops working.
    secret(&world, "second");
    world.postgres.psql("ALTER ROLE portal PASSWORD 'second'").unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'portal'";
    world.postgres.psql(end).unwrap();
    service(&world, "b");
    world.holds(sql, &["a", "b"]);

    let requests = world.requests();
    let of_secrets = requests.iter().filter(|event| event["objectRef"]["resource"] == "secrets");
    let verbs: Vec<&str> = of_secrets.map(|event| event["verb"].as_str().unwrap()).collect();
    assert!(!verbs.is_empty() && verbs.iter().all(|verb| *verb == "get"), "{verbs:?}");
    let refused = requests.iter().find(|event| event["responseStatus"]["code"] == 403);
    assert_eq!(refused, None);
}
