//! Admission on an API server of its own: what kubectl prints, and that objects can always be deleted.

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

struct AdmissionOperator {
    child: Child,
    log: PathBuf,
    port: u16,
}

impl Drop for AdmissionOperator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- log of the operator\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// A control plane that sends admission requests to operators.
struct AdmissionTest {
    operators: Vec<AdmissionOperator>,
    kubectl: PathBuf,
    authority: Authority,
    dir: tempfile::TempDir,
    plane: ControlPlane,
}

/// What kubectl printed, and whether it succeeded.
#[derive(Debug)]
struct KubectlAnswer {
    success: bool,
    text: String,
}

impl KubectlAnswer {
    fn assert_allowed(&self, warnings: &[&str]) {
        assert!(self.success, "{self:?}");
        let found: Vec<&str> = self.text.lines().filter(|line| line.starts_with("Warning: ")).collect();
        assert_eq!(found.len(), warnings.len(), "{self:?}");
        for words in warnings {
            assert!(found.iter().any(|line| line.contains(words)), "{words} is not in {self:?}");
        }
    }

    fn assert_denied(&self, kind: &str, words: &[&str]) {
        let refusal =
            format!("admission webhook \"v{}.kb.io\" denied the request: {kind} ", kind.to_lowercase());
        assert!(!self.success && self.text.contains(&refusal), "{self:?}");
        for words in words {
            assert!(self.text.contains(words), "{words} is not in {self:?}");
        }
    }
}

impl AdmissionTest {
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
        self.operators.push(AdmissionOperator { child, log, port });
        port
    }

    /// The configuration as it is shipped, except for the address of the operator and the authority of its certificate.
    fn configure(&self, port: u16) {
        self.configure_as("kb.io", port, &self.authority);
    }

    fn configure_as(&self, domain: &str, port: u16, authority: &Authority) {
        let text = fs::read_to_string(root().join("config/default/kollect.yaml")).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let mut configuration =
            objects.into_iter().find(|object| object["kind"] == "ValidatingWebhookConfiguration").unwrap();
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

    /// Waits until the API server asks the operator of the configuration.
    fn wait_for_webhook(&self, domain: &str) {
        let words = format!("\"vkollectprofile.{domain}\" denied the request: KollectProfile \"wrong\"");
        eventually("the webhook answers", || {
            let answer = self.kubectl(&["create", "--dry-run=server"], &wrong_profile());
            answer.text.contains(&words).then_some(()).ok_or(answer.text)
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

    fn patch(&self, resource: &str, patch: &Value) -> KubectlAnswer {
        self.run(&["patch", "-n", "shop", resource, "--type=merge", "-p", &patch.to_string()])
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
fn kubectl_prints_errors_for_invalid_objects_and_warnings_for_questionable_ones() {
    let mut test = AdmissionTest::new();
    let files = test.dir.path().join("files");
    let port = test.start("one", &["--file-sink-root", files.to_str().unwrap()]);
    test.configure(port);
    test.wait_for_webhook("kb.io");

    test.apply("KollectTarget", "maps", json!({ "profileRef": "maps" }))
        .assert_allowed(&["no KollectProfile maps"]);
    test
        .apply("KollectProfile", "maps", json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [
                { "name": "a", "path": "{.data.list[?(@.x==1)].y}" }, { "name": "b", "path": "$.data.b", "type": "text" },
            ],
        }))
        .assert_allowed(&["spec.attributes[0].path", "spec.attributes[1].type"]);
    test.apply("KollectProfile", "pods", profile_of("Pod")).assert_allowed(&[]);
    // The API server's own schema of Pods knows no such field.
    let mut misspelt = profile_of("Pod");
    misspelt["attributes"][0]["path"] = json!("cel:object.spec.nodeNam");
    test.apply("KollectProfile", "misspelt", misspelt)
        .assert_allowed(&["the schema has no field nodeNam here: did you mean nodeName?"]);
    let mut secrets = profile_of("Secret");
    secrets["attributes"][0]["path"] = json!("$.data.password");
    test.apply("KollectProfile", "secrets", secrets)
        .assert_denied("KollectProfile", &["spec.attributes[0].path"]);
    let rule = json!({ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": "object.x ==" });
    test.apply("KollectTarget", "rules", json!({ "profileRef": "later", "resourceRules": [rule] }))
        .assert_denied("KollectTarget", &["\"rules\": spec.resourceRules[0].matchPolicy"]);

    let cluster_target = |policy: &str| {
        json!({
            "profileRef": { "name": "maps", "namespace": "shop" },
            "namespaceSelector": { "matchLabels": { "a": "b" } },
            "resourceRules": [{ "gvk": { "version": "v1", "kind": "Pod" }, "matchPolicy": policy }],
        })
    };
    let tenant_editable = "users who may edit it in namespace shop decide";
    test.apply("KollectClusterTarget", "all", cluster_target("true")).assert_allowed(&[tenant_editable]);
    test.apply("KollectClusterTarget", "all", cluster_target("1 +"))
        .assert_denied("KollectClusterTarget", &["matchPolicy"]);

    check_sink_addresses(&test);
    let inventory = json!({ "databaseSinkRefs": ["portal", "later"], "maxExportBytes": 1000 });
    test.apply("KollectInventory", "all", inventory)
        .assert_allowed(&["no database sink later", "spec.maxExportBytes is the size of one part"]);
    test.apply("KollectInventory", "all", json!({ "databaseSinkRefs": [{ "name": "a", "namespace": "b" }] }))
        .assert_denied("KollectInventory", &["spec.databaseSinkRefs[0].namespace"]);
    test.plane.kubectl(&["create", "namespace", "cluster"]).unwrap();
    let mut reserved = object("KollectInventory", "all", json!({}));
    reserved["metadata"]["namespace"] = json!("cluster");
    test.kubectl(&["create"], &reserved)
        .assert_denied("KollectInventory", &["metadata.namespace = \"cluster\""]);
    let cluster_inventory =
        |reference: Value| json!({ "sinkNamespace": "shop", "databaseSinkRefs": [reference] });
    test.apply("KollectClusterInventory", "all", cluster_inventory(json!("portal")))
        .assert_allowed(&[tenant_editable]);
    test.apply("KollectClusterInventory", "all", cluster_inventory(json!({ "name": "a/b" })))
        .assert_denied("KollectClusterInventory", &["spec.databaseSinkRefs[0].name"]);
    test.apply("KollectConnectionTest", "try", json!({ "sinkRef": { "eventSinkRef": "later" } }))
        .assert_allowed(&["no event sink later"]);
    let mut generated = object("KollectConnectionTest", "", json!({ "sinkRef": { "eventSinkRef": "bus" } }));
    generated["metadata"] = json!({ "generateName": "try-", "namespace": "shop" });
    test.kubectl(&["create"], &generated).assert_allowed(&[]);

    check_scopes(&test);

    check_without_operator(test);
}

fn check_sink_addresses(test: &AdmissionTest) {
    test.apply("KollectEventSink", "bus", nats("nats.example.com")).assert_allowed(&[]);
    test.apply("KollectEventSink", "bus", nats("169.254.169.254"))
        .assert_denied("KollectEventSink", &["spec.nats.url"]);
    let mut provisioned = nats("nats.example.com");
    provisioned["provisioning"] = json!({ "mode": "existing" });
    test.apply("KollectEventSink", "bus", provisioned).assert_allowed(&["spec.provisioning.mode"]);
    test.apply("KollectDatabaseSink", "portal", postgres(json!({ "name": "none" }))).assert_allowed(&[]);
    test.apply("KollectDatabaseSink", "portal", postgres(json!({ "name": "a", "namespace": "kube-system" })))
        .assert_denied("KollectDatabaseSink", &["spec.postgres.databaseRef.namespace"]);
    let files = |path: &str| json!({ "type": "filesystem", "filesystem": { "path": path } });
    test.apply("KollectSnapshotSink", "files", files("out")).assert_allowed(&[]);
    test.apply("KollectSnapshotSink", "files", files("/etc"))
        .assert_denied("KollectSnapshotSink", &["spec.filesystem.path = \"/etc\""]);
}

fn check_without_operator(mut test: AdmissionTest) {
    test.operators.clear();
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
        let answer = test.apply(kind, "late", spec);
        let words = format!("failed calling webhook \"v{}.kb.io\"", kind.to_lowercase());
        assert!(!answer.success && answer.text.contains(&words), "{answer:?}");
    }
    let deleted = test.run(&["delete", "-n", "shop", "kollectprofile/maps", "kollecteventsink/bus"]);
    deleted.assert_allowed(&[]);
}

fn check_scopes(test: &AdmissionTest) {
    let mut held = object("KollectTarget", "held", json!({ "profileRef": "maps" }));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    test.kubectl(&["create"], &held).assert_allowed(&[]);
    let limits = json!({
        "allowedGVKs": [{ "version": "v1", "kind": "Pod" }], "deniedNamespaces": ["kube-system"],
        "minExportInterval": "5m", "databaseSinkRefs": ["portal"],
    });
    test.apply("KollectScope", "limits", limits).assert_allowed(&[]);
    let late = json!({ "profileRef": "maps" });
    eventually("the scope counts", || {
        let answer =
            test.kubectl(&["create", "--dry-run=server"], &object("KollectTarget", "late", late.clone()));
        (!answer.success).then_some(()).ok_or(answer.text)
    });
    test.apply("KollectTarget", "late", late).assert_denied("KollectTarget", &["KollectScope limits", "v1"]);
    test.apply("KollectTarget", "fine", json!({ "profileRef": "pods" })).assert_allowed(&[]);
    test.apply(
        "KollectTarget",
        "fine",
        json!({ "profileRef": "pods", "includedNamespaces": ["kube-system"] }),
    )
    .assert_denied("KollectTarget", &["spec.includedNamespaces[0] = \"kube-system\""]);
    test.apply("KollectInventory", "quick", json!({ "exportMinInterval": "1m" }))
        .assert_denied("KollectInventory", &["spec.exportMinInterval = \"1m0s\"", "at least 5m0s"]);
    test.apply("KollectInventory", "quick", json!({ "databaseSinkRefs": ["other"] }))
        .assert_denied("KollectInventory", &["spec.databaseSinkRefs[0] = \"other\""]);
    test.apply("KollectInventory", "quick", json!({ "databaseSinkRefs": ["portal"] })).assert_allowed(&[]);
    let interval_patch = |interval: &str| json!({ "spec": { "exportMinInterval": interval } });
    test.patch("kollecteventsink/bus", &interval_patch("1m"))
        .assert_denied("KollectEventSink", &["spec.exportMinInterval"]);
    test.patch("kollecteventsink/bus", &interval_patch("5m")).assert_allowed(&["spec.provisioning.mode"]);
    let limits = json!({ "allowedStaticRefNamespaces": ["platform"] });
    test.apply("KollectClusterScope", "limits", limits).assert_allowed(&[]);
    eventually("the cluster scope counts", || {
        let patch = json!({ "spec": { "suspend": true } }).to_string();
        let answer = test.run(&[
            "patch",
            "kollectclustertarget/all",
            "--type=merge",
            "--dry-run=server",
            "-p",
            &patch,
        ]);
        answer.text.contains("KollectClusterScope limits").then_some(()).ok_or(answer.text)
    });

    // An object that has become invalid can still be labelled and deleted, and its finalizer removed.
    test.patch("kollecttarget/held", &json!({ "metadata": { "labels": { "a": "b" } } })).assert_allowed(&[]);
    test.patch("kollecttarget/held", &json!({ "spec": { "suspend": true } }))
        .assert_denied("KollectTarget", &["KollectScope limits"]);
    test.run(&["delete", "-n", "shop", "kollecttarget/held", "--wait=false"]).assert_allowed(&[]);
    test.patch("kollecttarget/held", &json!({ "spec": { "suspend": true } })).assert_allowed(&[]);
    test.patch("kollecttarget/held", &json!({ "metadata": { "finalizers": null } })).assert_allowed(&[]);
    eventually("the target is gone", || {
        let answer = test.run(&["get", "-n", "shop", "kollecttarget/held"]);
        answer.text.contains("NotFound").then_some(()).ok_or(answer.text)
    });
}

#[test]
fn a_standby_answers_admission_requests_and_loads_new_certificates() {
    let mut test = AdmissionTest::new();
    let elect = ["--leader-elect", "--leader-election-namespace", "default"];
    test.start("leader", &elect);
    let holder = |test: &AdmissionTest| {
        let lease = ["get", "lease", "-n", "default", "-o", "jsonpath={.items[*].spec.holderIdentity}"];
        test.plane.kubectl(&lease).unwrap()
    };
    eventually("the first operator leads", || {
        let holder = holder(&test);
        holder.starts_with("leader").then_some(()).ok_or(holder)
    });
    let port = test.start("standby", &elect);
    assert_ne!(port, test.operators[0].port);
    test.configure(port);
    test.wait_for_webhook("kb.io");
    test.apply("KollectTarget", "maps", json!({ "profileRef": "maps" }))
        .assert_allowed(&["no KollectProfile maps"]);
    assert!(holder(&test).starts_with("leader"), "the other one stands by");

    let successor = Authority::new();
    successor.issue(test.dir.path());
    // Under other names: an answer shows which configuration was used, and which authority it trusts.
    test.configure_as("successor.io", port, &successor);
    test.wait_for_webhook("successor.io");
    assert!(holder(&test).starts_with("leader"), "no operator was restarted");
}

#[test]
fn samples_are_admitted_and_http_2_is_used_where_it_is_enabled() {
    let mut test = AdmissionTest::new();
    let files = test.dir.path().join("files");
    let port = test.start("one", &["--enable-http2", "--file-sink-root", files.to_str().unwrap()]);
    test.configure(port);
    test.wait_for_webhook("kb.io");
    let log = fs::read_to_string(&test.operators[0].log).unwrap();
    assert!(log.contains("HTTP/2.0") && !log.contains("HTTP/1.1"), "the API server prefers it: {log}");
    test.plane.kubectl(&["create", "namespace", "kollect-system"]).unwrap();
    let answers = ["config/samples", "config/samples/more"].map(|group| {
        let group = root().join(group);
        test.run(&["apply", "-k", group.to_str().unwrap()]).text
    });
    let expected = [
        // They come in the order of their kinds.
        ("Warning: ", "add it or correct the name"),
        // This operator runs in another namespace, and the cluster scope is created later.
        ("Warning: ", "move it to default"),
        // Where the operator does not know of the scope yet, which is created with the others.
        ("Warning: ", "is within reach"),
        ("Warning: ", "a filter always gives a list"),
        ("Warning: ", "spec.serialization.format is absent"),
        ("The request is invalid: ", "is not available in this build"),
        ("Error from server (Invalid): ", "is not available in this build"),
    ];
    let mut created = BTreeSet::new();
    for line in
        answers.iter().flat_map(|answer| answer.lines()).filter(|line| *line != "namespace/team-a created")
    {
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
    let mut test = AdmissionTest::new();
    for file in ["tls.crt", "tls.key"] {
        fs::remove_file(test.dir.path().join(file)).unwrap();
    }
    let port = test.start("tenant", &["--tenant-mode", "--watch-namespaces", "shop"]);
    test.kubectl(&["create"], &wrong_profile()).assert_allowed(&[]);
    eventually("its status says what is wrong", || {
        let reason = "jsonpath={.status.conditions[?(@.type=='Degraded')].reason}";
        let answer = test.run(&["get", "kollectprofile/wrong", "-n", "shop", "-o", reason]);
        (answer.text == "InvalidSpec").then_some(()).ok_or(answer.text)
    });
    let error = TcpStream::connect(("127.0.0.1", port)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn an_operator_without_a_certificate_names_the_file_and_the_flag() {
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

#[test]
fn published_samples_of_the_go_implementation_are_admitted() {
    let mut test = AdmissionTest::new();
    let port = test.start("one", &[]);
    test.configure(port);
    test.wait_for_webhook("kb.io");
    test.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    let file = root().join("crates/kollect/testdata/go/samples.yaml");
    let documents = fs::read_to_string(&file).unwrap().split("\n---\n").count();
    let answer = test.run(&["apply", "-f", file.to_str().unwrap()]);
    let created = answer.text.lines().filter(|line| line.ends_with(" created")).count();
    let refused: Vec<&str> =
        answer.text.lines().filter(|line| line.contains("is not available in this build")).collect();
    let others =
        answer.text.lines().filter(|line| !line.ends_with(" created") && !line.starts_with("Warning: "));
    assert!(others.eq(refused.iter().copied()), "{}", answer.text);
    assert_eq!(created + refused.len(), documents, "{}", answer.text);
    // BigQuery, MongoDB and Kafka.
    assert_eq!(refused.len(), 3, "{refused:#?}");
}
