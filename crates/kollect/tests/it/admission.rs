//! Admission on an API server of its own: what kubectl is told, and that nothing gets stuck.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kollect_testbed::{ControlPlane, Programs, free_port};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::program::{eventually, root};

/// Signs certificates for this machine.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// Puts a certificate and its key into a directory, one file after the other.
    fn issue(&self, dir: &Path) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
            fs::write(dir.join("new"), text).unwrap();
            fs::rename(dir.join("new"), dir.join(name)).unwrap();
        }
    }
}

struct Operator {
    child: Child,
    log: PathBuf,
    port: u16,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- log of the operator\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// A control plane that sends admission requests to operators.
struct Stage {
    operators: Vec<Operator>,
    kubectl: PathBuf,
    authority: Authority,
    dir: tempfile::TempDir,
    plane: ControlPlane,
}

/// What kubectl said, and whether it succeeded.
#[derive(Debug)]
struct KubectlAnswer {
    success: bool,
    text: String,
}

impl KubectlAnswer {
    fn allowed(&self, warnings: &[&str]) {
        assert!(self.success, "{self:?}");
        let found: Vec<&str> = self.text.lines().filter(|line| line.starts_with("Warning: ")).collect();
        assert_eq!(found.len(), warnings.len(), "{self:?}");
        for words in warnings {
            assert!(found.iter().any(|line| line.contains(words)), "{words} is not in {self:?}");
        }
    }

    fn denied(&self, kind: &str, words: &[&str]) {
        let who = format!("admission webhook \"v{}.kb.io\" denied the request: {kind} ", kind.to_lowercase());
        assert!(!self.success && self.text.contains(&who), "{self:?}");
        for words in words {
            assert!(self.text.contains(words), "{words} is not in {self:?}");
        }
    }
}

impl Stage {
    fn new() -> Self {
        let plane = ControlPlane::start().unwrap();
        let bases = root().join("config/crd/bases");
        plane.kubectl(&["apply", "--server-side", "-f", bases.to_str().unwrap()]).unwrap();
        plane.wait(&["crd", "--for=condition=Established", "--all"]).unwrap();
        plane.kubectl(&["create", "namespace", "shop"]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.issue(dir.path());
        let kubectl = Programs::find_or_build().unwrap().kubectl;
        Self { operators: Vec::new(), kubectl, authority, dir, plane }
    }

    fn start(&mut self, name: &str, args: &[&str]) -> u16 {
        let port = free_port().unwrap();
        let log = self.dir.path().join(format!("{name}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_kollect"))
            .args(["operator", "--kubeconfig", self.plane.kubeconfig().to_str().unwrap()])
            .args(["--health-probe-bind-address", "0", "--log-level", "kollect=debug"])
            .args(["--webhook-bind-address", &format!("127.0.0.1:{port}")])
            .args(["--webhook-cert-path", self.dir.path().to_str().unwrap()])
            .args(args)
            .env("HOSTNAME", name)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        self.operators.push(Operator { child, log, port });
        port
    }

    /// The configuration as it is shipped, except for the address of the operator and the authority of its certificate.
    fn configure(&self, port: u16) {
        self.configure_as("kb.io", port, &self.authority);
    }

    fn configure_as(&self, domain: &str, port: u16, authority: &Authority) {
        let text = fs::read_to_string(root().join("config/webhook/manifests.yaml")).unwrap();
        let mut configuration: Value = serde_saphyr::from_str(&text).unwrap();
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap();
            let name = webhook["name"].as_str().unwrap().replace("kb.io", domain);
            webhook["clientConfig"] = json!({
                "url": format!("https://127.0.0.1:{port}{path}"),
                "caBundle": BASE64_STANDARD.encode(authority.0.pem()),
            });
            webhook["name"] = json!(name);
        }
        self.plane.apply(&configuration.to_string()).unwrap();
    }

    /// Returns when the operator behind the configuration is asked, and answers.
    fn answers(&self, domain: &str) {
        let words = format!("\"vkollectprofile.{domain}\" denied the request: KollectProfile \"wrong\"");
        eventually("the webhook answers", || {
            let told = self.kubectl(&["create", "--dry-run=server"], &wrong_profile());
            told.text.contains(&words).then_some(()).ok_or(told.text)
        });
    }

    fn kubectl(&self, args: &[&str], object: &Value) -> KubectlAnswer {
        let file = self.dir.path().join("object.json");
        fs::write(&file, object.to_string()).unwrap();
        self.run(&[args, &["-f", file.to_str().unwrap()]].concat())
    }

    fn run(&self, args: &[&str]) -> KubectlAnswer {
        let output = Command::new(&self.kubectl)
            .args(args)
            .env_clear()
            .env("HOME", self.dir.path())
            .env("KUBECONFIG", self.plane.kubeconfig())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        KubectlAnswer { success: output.status.success(), text }
    }

    fn apply(&self, kind: &str, name: &str, spec: Value) -> KubectlAnswer {
        self.kubectl(&["apply", "--server-side", "--force-conflicts"], &object(kind, name, spec))
    }

    fn patch(&self, what: &str, patch: &Value) -> KubectlAnswer {
        self.run(&["patch", "-n", "shop", what, "--type=merge", "-p", &patch.to_string()])
    }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    if !kind.starts_with("KollectCluster") {
        object["metadata"]["namespace"] = json!("shop");
    }
    object
}

fn profile_of(kind: &str) -> Value {
    json!({
        "targetGVK": { "version": "v1", "kind": kind },
        "attributes": [{ "name": "value", "path": "$.metadata.name" }],
    })
}

fn nats(host: &str) -> Value {
    json!({ "type": "nats", "nats": { "url": format!("nats://{host}:4222"), "subject": "a" } })
}

fn postgres(reference: Value) -> Value {
    json!({ "type": "postgres", "postgres": { "databaseRef": reference, "table": "rows" } })
}

fn wrong_profile() -> Value {
    let mut spec = profile_of("Pod");
    spec["attributes"][0]["path"] = json!("cel:object.");
    object("KollectProfile", "wrong", spec)
}

#[test]
fn kubectl_is_told_what_is_wrong_and_what_may_be() {
    let mut stage = Stage::new();
    let files = stage.dir.path().join("files");
    let port = stage.start("one", &["--file-sink-root", files.to_str().unwrap()]);
    stage.configure(port);
    stage.answers("kb.io");

    stage
        .apply("KollectTarget", "maps", json!({ "profileRef": "maps" }))
        .allowed(&["no KollectProfile maps"]);
    stage
        .apply("KollectProfile", "maps", json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [
                { "name": "a", "path": "{.data.list[?(@.x==1)].y}" }, { "name": "b", "path": "$.data.b", "type": "text" },
            ],
        }))
        .allowed(&["spec.attributes[0].path", "spec.attributes[1].type"]);
    stage.apply("KollectProfile", "pods", profile_of("Pod")).allowed(&[]);
    let mut secrets = profile_of("Secret");
    secrets["attributes"][0]["path"] = json!("$.data.password");
    stage.apply("KollectProfile", "secrets", secrets).denied("KollectProfile", &["spec.attributes[0].path"]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    stage
        .apply("KollectTarget", "rules", json!({ "profileRef": "later", "resourceRules": [rule] }))
        .denied("KollectTarget", &["\"rules\": spec.resourceRules[0].matchPolicy"]);

    let cluster = |policy: &str| {
        json!({
            "profileRef": { "name": "maps", "namespace": "shop" },
            "namespaceSelector": { "matchLabels": { "a": "b" } },
            "resourceRules": [{ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": policy }],
        })
    };
    let hands = "users who may edit it in namespace shop decide";
    stage.apply("KollectClusterTarget", "all", cluster("true")).allowed(&[hands]);
    stage
        .apply("KollectClusterTarget", "all", cluster("1 +"))
        .denied("KollectClusterTarget", &["matchPolicy"]);

    sinks_are_refused_where_the_operator_would_not_go(&stage);
    let inventory = json!({ "databaseSinkRefs": ["portal", "later"], "maxExportBytes": 1000 });
    stage
        .apply("KollectInventory", "all", inventory)
        .allowed(&["no database sink later", "spec.maxExportBytes is the size of one part"]);
    stage
        .apply("KollectInventory", "all", json!({ "databaseSinkRefs": [{ "name": "a", "namespace": "b" }] }))
        .denied("KollectInventory", &["spec.databaseSinkRefs[0].namespace"]);
    stage.plane.kubectl(&["create", "namespace", "cluster"]).unwrap();
    let mut reserved = object("KollectInventory", "all", json!({}));
    reserved["metadata"]["namespace"] = json!("cluster");
    stage.kubectl(&["create"], &reserved).denied("KollectInventory", &["metadata.namespace = \"cluster\""]);
    let cluster = |reference: Value| json!({ "sinkNamespace": "shop", "databaseSinkRefs": [reference] });
    stage.apply("KollectClusterInventory", "all", cluster(json!("portal"))).allowed(&[hands]);
    stage
        .apply("KollectClusterInventory", "all", cluster(json!({ "name": "a/b" })))
        .denied("KollectClusterInventory", &["spec.databaseSinkRefs[0].name"]);
    stage
        .apply("KollectConnectionTest", "try", json!({ "sinkRef": { "eventSinkRef": "later" } }))
        .allowed(&["no event sink later"]);
    let mut generated = object("KollectConnectionTest", "", json!({ "sinkRef": { "eventSinkRef": "bus" } }));
    generated["metadata"] = json!({ "generateName": "try-", "namespace": "shop" });
    stage.kubectl(&["create"], &generated).allowed(&[]);

    scopes_close_what_was_open_and_nothing_gets_stuck(&stage);

    nothing_is_stored_without_an_operator(stage);
}

fn sinks_are_refused_where_the_operator_would_not_go(stage: &Stage) {
    stage.apply("KollectEventSink", "bus", nats("nats.example.com")).allowed(&[]);
    stage
        .apply("KollectEventSink", "bus", nats("169.254.169.254"))
        .denied("KollectEventSink", &["spec.nats.url"]);
    let mut loud = nats("nats.example.com");
    loud["provisioning"] = json!({ "mode": "existing" });
    stage.apply("KollectEventSink", "bus", loud).allowed(&["spec.provisioning.mode"]);
    stage.apply("KollectDatabaseSink", "portal", postgres(json!({ "name": "none" }))).allowed(&[]);
    stage
        .apply("KollectDatabaseSink", "portal", postgres(json!({ "name": "a", "namespace": "kube-system" })))
        .denied("KollectDatabaseSink", &["spec.postgres.databaseRef.namespace"]);
    let files = |path: &str| json!({ "type": "filesystem", "filesystem": { "path": path } });
    stage.apply("KollectSnapshotSink", "files", files("out")).allowed(&[]);
    stage
        .apply("KollectSnapshotSink", "files", files("/etc"))
        .denied("KollectSnapshotSink", &["spec.filesystem.path = \"/etc\""]);
}

fn nothing_is_stored_without_an_operator(mut stage: Stage) {
    stage.operators.clear();
    let everywhere = json!({
        "profileRef": { "name": "a", "namespace": "b" }, "namespaceSelector": { "matchLabels": { "a": "b" } },
    });
    for (kind, spec) in [
        ("KollectProfile", profile_of("Pod")),
        ("KollectTarget", json!({ "profileRef": "a" })),
        ("KollectClusterTarget", everywhere),
        ("KollectInventory", json!({})),
        ("KollectClusterInventory", json!({})),
        ("KollectSnapshotSink", json!({ "type": "filesystem", "filesystem": { "path": "out" } })),
        ("KollectDatabaseSink", postgres(json!({ "name": "a" }))),
        ("KollectEventSink", nats("nats.example.com")),
        ("KollectScope", json!({})),
        ("KollectClusterScope", json!({})),
        ("KollectConnectionTest", json!({ "sinkRef": { "eventSinkRef": "a" } })),
    ] {
        let told = stage.apply(kind, "late", spec);
        let words = format!("failed calling webhook \"v{}.kb.io\"", kind.to_lowercase());
        assert!(!told.success && told.text.contains(&words), "{told:?}");
    }
    let gone = stage.run(&["delete", "-n", "shop", "kollectprofile/maps", "kollecteventsink/bus"]);
    gone.allowed(&[]);
}

fn scopes_close_what_was_open_and_nothing_gets_stuck(stage: &Stage) {
    let mut held = object("KollectTarget", "held", json!({ "profileRef": "maps" }));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    stage.kubectl(&["create"], &held).allowed(&[]);
    let limits = json!({
        "allowedGVKs": [{ "version": "v1", "kind": "Pod" }], "deniedNamespaces": ["kube-system"],
        "minExportInterval": "5m", "databaseSinkRefs": ["portal"],
    });
    stage.apply("KollectScope", "limits", limits).allowed(&[]);
    let late = json!({ "profileRef": "maps" });
    eventually("the scope counts", || {
        let told =
            stage.kubectl(&["create", "--dry-run=server"], &object("KollectTarget", "late", late.clone()));
        (!told.success).then_some(()).ok_or(told.text)
    });
    stage.apply("KollectTarget", "late", late).denied("KollectTarget", &["KollectScope limits", "v1"]);
    stage.apply("KollectTarget", "fine", json!({ "profileRef": "pods" })).allowed(&[]);
    stage
        .apply(
            "KollectTarget",
            "fine",
            json!({ "profileRef": "pods", "includedNamespaces": ["kube-system"] }),
        )
        .denied("KollectTarget", &["spec.includedNamespaces[0] = \"kube-system\""]);
    stage
        .apply("KollectInventory", "quick", json!({ "exportMinInterval": "1m" }))
        .denied("KollectInventory", &["spec.exportMinInterval = \"1m0s\"", "at least 5m0s"]);
    stage
        .apply("KollectInventory", "quick", json!({ "databaseSinkRefs": ["other"] }))
        .denied("KollectInventory", &["spec.databaseSinkRefs[0] = \"other\""]);
    stage.apply("KollectInventory", "quick", json!({ "databaseSinkRefs": ["portal"] })).allowed(&[]);
    let sink = |interval: &str| json!({ "spec": { "exportMinInterval": interval } });
    stage.patch("kollecteventsink/bus", &sink("1m")).denied("KollectEventSink", &["spec.exportMinInterval"]);
    stage.patch("kollecteventsink/bus", &sink("5m")).allowed(&["spec.provisioning.mode"]);
    let limits = json!({ "allowedStaticRefNamespaces": ["platform"] });
    stage.apply("KollectClusterScope", "limits", limits).allowed(&[]);
    eventually("the cluster scope counts", || {
        let patch = json!({ "spec": { "suspend": true } }).to_string();
        let told = stage.run(&[
            "patch",
            "kollectclustertarget/all",
            "--type=merge",
            "--dry-run=server",
            "-p",
            &patch,
        ]);
        told.text.contains("KollectClusterScope limits").then_some(()).ok_or(told.text)
    });

    // Q3: an object that has become invalid can still be labelled and deleted, and its finalizer removed.
    stage.patch("kollecttarget/held", &json!({ "metadata": { "labels": { "a": "b" } } })).allowed(&[]);
    stage
        .patch("kollecttarget/held", &json!({ "spec": { "suspend": true } }))
        .denied("KollectTarget", &["KollectScope limits"]);
    stage.run(&["delete", "-n", "shop", "kollecttarget/held", "--wait=false"]).allowed(&[]);
    stage.patch("kollecttarget/held", &json!({ "spec": { "suspend": true } })).allowed(&[]);
    stage.patch("kollecttarget/held", &json!({ "metadata": { "finalizers": null } })).allowed(&[]);
    eventually("the target is gone", || {
        let told = stage.run(&["get", "-n", "shop", "kollecttarget/held"]);
        told.text.contains("NotFound").then_some(()).ok_or(told.text)
    });
}

#[test]
fn a_standby_answers_too_and_certificates_are_replaced_while_it_does() {
    let mut stage = Stage::new();
    let elect = ["--leader-elect", "--leader-election-namespace", "default"];
    stage.start("leader", &elect);
    let holder = |stage: &Stage| {
        let lease = ["get", "lease", "-n", "default", "-o", "jsonpath={.items[*].spec.holderIdentity}"];
        stage.plane.kubectl(&lease).unwrap()
    };
    eventually("somebody leads", || {
        let holder = holder(&stage);
        holder.starts_with("leader").then_some(()).ok_or(holder)
    });
    let port = stage.start("standby", &elect);
    assert_ne!(port, stage.operators[0].port);
    stage.configure(port);
    stage.answers("kb.io");
    stage
        .apply("KollectTarget", "maps", json!({ "profileRef": "maps" }))
        .allowed(&["no KollectProfile maps"]);
    assert!(holder(&stage).starts_with("leader"), "the other one stands by");

    let successor = Authority::new();
    successor.issue(stage.dir.path());
    // Under other names: an answer shows which configuration was used, and which authority it trusts.
    stage.configure_as("successor.io", port, &successor);
    stage.answers("successor.io");
    assert!(holder(&stage).starts_with("leader"), "no operator was restarted");
}

#[test]
fn samples_pass_and_http_2_is_spoken_where_it_is_enabled() {
    let mut stage = Stage::new();
    let files = stage.dir.path().join("files");
    let port = stage.start("one", &["--enable-http2", "--file-sink-root", files.to_str().unwrap()]);
    stage.configure(port);
    stage.answers("kb.io");
    let log = fs::read_to_string(&stage.operators[0].log).unwrap();
    assert!(log.contains("HTTP/2.0") && !log.contains("HTTP/1.1"), "the API server prefers it: {log}");
    let samples = root().join("config/samples");
    stage.plane.kubectl(&["apply", "-f", samples.join("namespace.yaml").to_str().unwrap()]).unwrap();
    stage.plane.kubectl(&["create", "namespace", "kollect-system"]).unwrap();
    let told = stage.run(&["apply", "-k", samples.to_str().unwrap()]);
    let expected = [
        // They come in the order of their kinds.
        ("Warning: ", "add it or correct the name"),
        // This operator is at home in another namespace, and the cluster scope comes later.
        ("Warning: ", "move it to default"),
        ("Warning: ", "a filter always gives a list"),
        ("Warning: ", "spec.serialization.format is absent"),
        ("The request is invalid: ", "is not available in this build"),
        ("Error from server (Invalid): ", "is not available in this build"),
    ];
    let mut created = BTreeSet::new();
    for line in told.text.lines().filter(|line| *line != "namespace/team-a unchanged") {
        match line.split_once(".kollect.dev/").filter(|_| line.ends_with(" created")) {
            Some((kind, _)) => drop(created.insert(kind.to_owned())),
            None => assert!(
                expected.iter().any(|(start, words)| line.starts_with(start) && line.contains(words)),
                "{line}"
            ),
        }
    }
    assert_eq!(created.len(), 11, "one object of every kind: {created:?}");
}

#[test]
fn tenants_have_no_webhooks_and_need_no_certificate() {
    let mut stage = Stage::new();
    for file in ["tls.crt", "tls.key"] {
        fs::remove_file(stage.dir.path().join(file)).unwrap();
    }
    let port = stage.start("tenant", &["--tenant-mode", "--watch-namespaces", "shop"]);
    stage.kubectl(&["create"], &wrong_profile()).allowed(&[]);
    eventually("its status says what is wrong", || {
        let reason = "jsonpath={.status.conditions[?(@.type=='Degraded')].reason}";
        let told = stage.run(&["get", "kollectprofile/wrong", "-n", "shop", "-o", reason]);
        (told.text == "InvalidSpec").then_some(()).ok_or(told.text)
    });
    let error = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_operator_without_a_certificate_says_which_file_and_which_flag() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kollect"))
        .args(["operator", "--kubeconfig", "/nonexistent"])
        .args(["--webhook-cert-path", dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let file = dir.path().join("tls.crt");
    for words in ["--webhook-cert-path", "--validating-webhooks-enabled=false", file.to_str().unwrap()] {
        assert!(text.contains(words), "{text}");
    }
}
