//! The chart on a control plane: install, upgrade, roll back, uninstall; for a whole cluster, for a team without
//! cluster-wide rights, and with two replicas.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::*;
use crate::catalogue;

const CONFIGURATION: &str = "validatingwebhookconfiguration/kollect-validating-webhook-configuration";
const CERTIFICATE: &str = "secret/kollect-webhook-certificate";

/// A profile that admission refuses.
fn wrong_profile() -> String {
    json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectProfile",
        "metadata": { "name": "wrong", "namespace": "default" },
        "spec": { "targetGVK": { "version": "v1", "kind": "Pod" }, "attributes": [{ "name": "a", "path": "$.spec[" }] },
    })
    .to_string()
}

impl InstallTest {
    fn apply_sample(&self, name: &str) {
        self.plane.kubectl(&["apply", "-f", sample_file(name).to_str().unwrap()]).unwrap();
    }

    /// Installs as a user who has the roles `admin` and `kollect-admin` in the namespace of the team, and no others.
    pub(super) fn install_for_team(&self, more: &[&str]) {
        for role in ["admin", "kollect-admin"] {
            let (name, role) = (format!("alice-{role}"), format!("--clusterrole={role}"));
            let bind = ["create", "rolebinding", &name, "-n", self.namespace, &role, "--user=alice"];
            self.plane.kubectl(&bind).unwrap();
        }
        for question in [["create", "roles"], ["create", "kollecttargets"]] {
            let ask = [&["auth", "can-i", "--as=alice", "-n", self.namespace], &question[..]].concat();
            eventually("alice has her rights", || {
                self.plane.kubectl(&ask).map(drop).map_err(|error| error.to_string())
            });
        }
        let everywhere = ["auth", "can-i", "list", "pods", "--as=alice", "-A"];
        assert!(self.plane.kubectl(&everywhere).is_err(), "alice has no cluster-wide rights");
        let values = root().join("charts/kollect/values-team.yaml");
        let chart = root().join("charts/kollect");
        let install =
            ["install", "kollect", chart.to_str().unwrap(), "-n", self.namespace, "--kube-as-user=alice"];
        let values = ["--values", values.to_str().unwrap(), "--wait", "--timeout=2m", ALLOW_LOOPBACK];
        self.helm.run(&[&install[..], &values, more].concat()).unwrap();
    }

    /// What kubectl prints when it applies a wrong profile.
    fn refusal(&self) -> String {
        let apply = ["apply", "--server-side", "--dry-run=server", "-f", "-"];
        match self.plane.kubectl_with_input(&apply, &wrong_profile()) {
            Ok(answer) => format!("accepted: {answer}"),
            Err(error) => error.to_string(),
        }
    }

    fn assert_refused_by_admission(&self) {
        let answer = self.refusal();
        assert!(
            answer.contains("admission webhook \"vkollectprofile.kb.io\" denied the request"),
            "{answer}"
        );
        assert!(answer.contains("spec.attributes[0].path"), "{answer}");
    }

    /// Field of an object of the operator's namespace.
    fn field(&self, resource: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.plane.kubectl(&["get", resource, "-n", self.namespace, "-o", &path]).unwrap()
    }

    fn authority(&self) -> String {
        let bundles = self.field(CONFIGURATION, "{.webhooks[*].clientConfig.caBundle}");
        let mut bundles = bundles.split(' ');
        let first = bundles.next().unwrap();
        assert!(
            bundles.clone().count() == 10 && bundles.all(|bundle| bundle == first),
            "all eleven are equal"
        );
        String::from_utf8(BASE64_STANDARD.decode(first).unwrap()).unwrap()
    }

    /// Asks the webhooks all the time while `work` runs, and fails if one did not answer.
    fn while_webhooks_answer<T>(&self, work: impl FnOnce() -> T) -> T {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut answers = 0;
                while !done.load(Ordering::Relaxed) {
                    self.assert_refused_by_admission();
                    answers += 1;
                }
                answers
            });
            let result = work();
            // Requests that begin after the change count as well.
            thread::sleep(Duration::from_secs(1));
            done.store(true, Ordering::Relaxed);
            assert!(asking.join().unwrap() > 3);
            result
        })
    }
}

#[test]
fn the_chart_installs_an_operator_that_collects_the_samples_without_a_forbidden_request() {
    let test = InstallTest::new("kollect-system");
    let notes = test.install_as_in_the_readme();
    assert!(notes.contains("is installed for the whole cluster"), "{notes}");
    // `--wait` means it: webhooks answer from the first request on.
    test.assert_refused_by_admission();
    assert!(test.node().probe(&test.pod(), "/readyz").unwrap().contains("ok: leads"));
    let objects = fs::read_to_string(root().join("crates/kollect/testdata/catalogue/objects.yaml")).unwrap();
    for (name, manifest) in [("kinds", catalogue::definitions()), ("objects", objects)] {
        eventually(name, || test.plane.apply(&manifest).map(drop).map_err(|error| error.to_string()));
    }
    test.apply_directory("config/samples");
    test.wait_until_ready("team-a", "kollectprofiles,kollecttargets,kollectinventories");
    for file in
        ["argo-applications", "certificates", "flux-helmrelease-values", "flux-helmreleases", "helm-releases"]
    {
        let file = root().join(format!("config/samples/more/{file}.yaml"));
        test.plane.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    }
    // Helm keeps releases in Secrets, and listing them is not part of the default.
    for verb in ["list", "watch"] {
        test.assert_not_allowed(&[verb, "secrets", "-A"]);
        test.assert_not_allowed(&[verb, "secrets", "-n", "team-a-shop"]);
    }
    for namespace in ["team-a", "team-a-shop"] {
        test.bind_in(namespace, "kollect-helm-collector");
    }
    // Collected kinds are read, and never written.
    for verb in ["create", "update", "patch", "delete"] {
        for resource in ["deployments.apps", "services", "secrets", "namespaces"] {
            test.assert_not_allowed(&[verb, resource, "-A"]);
        }
    }
    test.wait_until_allowed(&["list", "secrets", "-n", "team-a-shop"]);
    test.plane
        .kubectl(&["annotate", "-n", "team-a", "ktgt/helm-releases", "kollect.dev/requestedAt=1"])
        .unwrap();
    test.wait_until_ready("team-a", "kollectprofiles,kollecttargets,kollectinventories");

    test.apply_secret();
    test.apply_sample("kollectdatabasesink");
    let only = json!({ "spec": { "snapshotSinkRefs": [], "eventSinkRefs": [] } }).to_string();
    test.apply_sample("kollectinventory");
    test.plane.kubectl(&["patch", "-n", "team-a", "kinv/team-a", "--type=merge", "-p", &only]).unwrap();
    let sql = "SELECT target_name || ' ' || count(*) FROM inventory WHERE inventory_name = 'team-a' \
               GROUP BY target_name ORDER BY target_name";
    let before = [
        "argo-applications 2",
        "certificates 2",
        "deployments 2",
        "flux-helmrelease-values 2",
        "flux-helmreleases 2",
    ];
    let before = [&before[..], &["helm-releases 1"]].concat();
    test.wait_for_rows(sql, &[&before[..], &["ingresses 1", "services 2", "workloads 2"]].concat());
    for part in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        test.check_probes_beside_open_connections(part);
    }
    test.apply_sample("kollectconnectiontest");
    let ttl = r#"{"spec":{"ttlSecondsAfterFinished":1}}"#;
    test.plane
        .kubectl(&["patch", "-n", "team-a", "kollectconnectiontest/portal", "--type=merge", "-p", ttl])
        .unwrap();
    test.wait_until_deleted("team-a", "kollectconnectiontest/portal");
    // A finalizer of the Go implementation; the operator only removes it.
    let finalizer = r#"{"metadata":{"finalizers":["kollect.dev/target-cleanup"]}}"#;
    test.plane
        .kubectl(&["patch", "-n", "team-a", "ktgt/ingresses", "--type=merge", "-p", finalizer])
        .unwrap();
    test.plane.kubectl(&["delete", "-n", "team-a", "ktgt/ingresses", "--wait=false"]).unwrap();
    test.wait_until_deleted("team-a", "kollecttarget/ingresses");
    test.wait_for_rows(sql, &[&before[..], &["services 2", "workloads 2"]].concat());
    let requests = test.assert_all_requests_allowed();
    let certificate_requests =
        requests.iter().filter(|event| event["objectRef"]["name"] == "kollect-webhook-certificate");
    let verbs: Vec<&str> = certificate_requests.map(|event| event["verb"].as_str().unwrap()).collect();
    assert!(verbs.iter().all(|verb| ["get", "patch"].contains(verb)), "{verbs:?}");
}

#[test]
fn upgrades_rollbacks_and_uninstalls_leave_what_they_should() {
    let test = InstallTest::new("kollect-system");
    test.helm("install", &[]);
    let authority = test.authority();
    let key = test.field(CERTIFICATE, "{.data.tls\\.key}");
    test.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    for sample in ["kollectprofile", "kollecttarget", "kollectdatabasesink", "kollectinventory"] {
        test.apply_sample(sample);
    }
    let only = json!({ "spec": { "snapshotSinkRefs": [], "eventSinkRefs": [] } }).to_string();
    test.plane.kubectl(&["patch", "-n", "team-a", "kinv/team-a", "--type=merge", "-p", &only]).unwrap();
    let everywhere = json!({ "spec": { "namespaceSelector": null } }).to_string();
    test.plane
        .kubectl(&["patch", "-n", "team-a", "ktgt/deployments", "--type=merge", "-p", &everywhere])
        .unwrap();
    test.apply_secret();
    test.plane.kubectl(&["create", "deployment", "web", "-n", "team-a", "--image=web:1"]).unwrap();
    let sql = "SELECT name FROM inventory ORDER BY name";
    test.wait_for_rows(sql, &["web"]);

    // The new Pod is ready before the old one stops, and webhooks answer all the time.
    let first_pod = test.pod();
    test.while_webhooks_answer(|| test.helm("upgrade", &["--set=logLevel=debug"]));
    let second_pod = test.pod();
    assert_ne!(first_pod, second_pod);
    assert_eq!(test.field(CERTIFICATE, "{.data.tls\\.key}"), key, "the certificate is as it was");
    assert_eq!(test.authority(), authority);
    let rollback = ["rollback", "kollect", "1", "-n", "kollect-system", "--wait", "--timeout=2m"];
    test.while_webhooks_answer(|| test.helm.run(&rollback).unwrap());
    assert_eq!(test.field(CERTIFICATE, "{.data.tls\\.key}"), key);
    let arguments = test.field("deployment/kollect", "{.spec.template.spec.containers[0].args}");
    assert!(arguments.contains("--log-level=info"), "{arguments}");

    // What was collected meanwhile arrives, and nothing was written twice.
    test.plane.kubectl(&["create", "deployment", "api", "-n", "team-a", "--image=api:1"]).unwrap();
    test.wait_for_rows(sql, &["api", "web"]);
    assert_eq!(
        test.postgres.psql("SELECT name FROM inventory WHERE changed_at > first_seen_at").unwrap(),
        ""
    );

    test.assert_nothing_forbidden();
    // Without --wait: Kubernetes' own controller for aggregated roles sometimes makes kollect-collector again, when it sees that one of
    // its parts is gone before it sees that the role itself is.
    let kept = test.helm.run(&["uninstall", "kollect", "-n", "kollect-system"]).unwrap();
    assert!(kept.contains("kept due to the resource policy"), "{kept}");
    for gone in [
        CONFIGURATION,
        CERTIFICATE,
        "clusterrole/kollect-operator",
        "deployment/kollect",
        "role/kollect-own-namespace",
    ] {
        test.wait_until_deleted("kollect-system", gone);
    }
    // Kinds, objects and rows stay, and users can change objects.
    assert_eq!(test.postgres.psql(sql).unwrap().lines().count(), 2);
    test.plane.kubectl(&["label", "-n", "team-a", "kprof/deployments", "a=b"]).unwrap();
    // An inventory that is deleted now waits for the operator; this command of the documentation frees it.
    test.plane.kubectl(&["delete", "-n", "team-a", "kinv/team-a", "--wait=false"]).unwrap();
    let finalizers = ["get", "-n", "team-a", "kinv/team-a", "-o", "jsonpath={.metadata.finalizers}"];
    assert!(test.plane.kubectl(&finalizers).unwrap().contains("kollect.dev/inventory-cleanup"));
    let documented = r#"{"metadata":{"finalizers":null}}"#;
    let page = fs::read_to_string(root().join("docs/use/install.md")).unwrap();
    assert!(page.contains(documented), "docs/use/install.md has the command");
    test.plane.kubectl(&["patch", "-n", "team-a", "kinv/team-a", "--type=merge", "-p", documented]).unwrap();
    test.wait_until_deleted("team-a", "kinv/team-a");
    assert_eq!(test.postgres.psql(sql).unwrap().lines().count(), 2);

    // Installed again it takes the kinds over that were kept.
    test.plane.kubectl(&["delete", "clusterrole/kollect-collector", "--ignore-not-found"]).unwrap();
    test.helm("install", &[]);
    test.assert_refused_by_admission();
}

#[test]
fn a_team_installs_the_chart_without_cluster_wide_rights() {
    let test = InstallTest::new("team-a");
    test.install_kinds();
    test.apply_directory("config/rbac");
    test.plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
    test.install_for_team(&[]);
    for sample in ["kollectprofile", "kollectdatabasesink", "kollectinventory"] {
        test.apply_sample(sample);
    }
    // The other sinks of the sample do not exist here, and its deletion would wait for them.
    let only = r#"{"spec":{"snapshotSinkRefs":[],"eventSinkRefs":[]}}"#;
    test.plane.kubectl(&["patch", "-n", "team-a", "kinv/team-a", "--type=merge", "-p", only]).unwrap();
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
    // The operator does not watch namespace default.
    for namespace in ["team-a", "default"] {
        test.plane.kubectl(&["create", "deployment", "cart", "-n", namespace, "--image=cart:1"]).unwrap();
    }
    let sql = "SELECT target_name || ' ' || namespace || '/' || name FROM inventory ORDER BY 1";
    // The operator itself is a Deployment of the namespace.
    let rows = ["all team-a/cart", "all team-a/kollect", "named team-a/cart", "named team-a/kollect"];
    test.wait_for_rows(sql, &rows);
    test.probe("/healthz").unwrap();
    // Without the labels of namespaces a selector selects nothing, and that is reported as a failure.
    let degraded = "jsonpath={.status.conditions[?(@.type=='Degraded')].reason}";
    let get = ["get", "kollecttarget/selected", "-n", "team-a", "-o", degraded];
    eventually("the selector is reported", || match test.plane.kubectl(&get) {
        Ok(reason) if reason == "ScopeForbidden" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The id of the operator is that of its own namespace. It survives an uninstall, and so do the rows.
    let uid = test.field("configmap/kollect-identity", "{.metadata.uid}");
    test.wait_for_rows("SELECT DISTINCT owner FROM kollect_bindings", &[&uid]);
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
    let uninstall =
        ["uninstall", "kollect", "-n", "team-a", "--wait", "--timeout=2m", "--kube-as-user=alice"];
    test.helm.run(&uninstall).unwrap();
    assert_eq!(test.field("configmap/kollect-identity", "{.metadata.uid}"), uid);
    test.wait_for_rows(
        &sql.replace("ORDER", "WHERE name = 'cart' ORDER"),
        &["all team-a/cart", "named team-a/cart"],
    );
    for role in ["admin", "kollect-admin"] {
        test.plane.kubectl(&["delete", "rolebinding", &format!("alice-{role}"), "-n", "team-a"]).unwrap();
    }
    test.install_for_team(&[]);
    test.plane.kubectl(&["delete", "-n", "team-a", "kinv/team-a", "--wait=false"]).unwrap();
    test.wait_until_deleted("team-a", "kinv/team-a");
    test.wait_for_rows(sql, &[]);
}

#[test]
fn two_replicas_share_a_certificate_and_webhooks_answer_whatever_happens_to_it() {
    let test = InstallTest::new("kollect-system");
    test.helm("install", &["--set=replicaCount=2"]);
    let pods = test.node().ready_pods();
    assert_eq!(pods.len(), 2, "helm waits for both");
    let readiness: Vec<String> = pods.iter().filter_map(|pod| test.node().probe(pod, "/readyz")).collect();
    assert!(readiness.iter().any(|answer| answer.contains("ok: leads")), "{readiness:?}");
    assert!(readiness.iter().any(|answer| answer.contains("ok: stands by")), "{readiness:?}");
    let authority = test.authority();
    assert_eq!(authority.matches("BEGIN CERTIFICATE").count(), 1, "both use the same certificate");
    // A Secret that is deleted is a new certificate; the old authority stays trusted meanwhile.
    test.while_webhooks_answer(|| {
        test.plane.kubectl(&["delete", CERTIFICATE, "-n", "kollect-system"]).unwrap();
        eventually("both authorities are trusted", || {
            let bundle = test.authority();
            let is_both = bundle.contains(&authority) && bundle.matches("BEGIN CERTIFICATE").count() == 2;
            is_both.then_some(()).ok_or(bundle)
        });
        // Both replicas have changed to it after this.
        thread::sleep(Duration::from_secs(70));
    });
    test.assert_nothing_forbidden();
    // A process is killed: the other one answers. Then the Service gets another name.
    test.while_webhooks_answer(|| test.node().kill(&pods[0]));
    test.helm("upgrade", &["--set=replicaCount=2", "--set=fullnameOverride=kollect-inventory"]);
    test.assert_refused_by_admission();
}

#[test]
fn without_an_operator_objects_can_be_deleted_and_webhooks_can_get_another_certificate() {
    let test = InstallTest::new("kollect-system");
    test.helm("install", &[]);
    let held = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectProfile",
        "metadata": { "name": "held", "namespace": "default", "finalizers": ["example.com/hold"] },
        "spec": { "targetGVK": { "version": "v1", "kind": "Pod" }, "attributes": [{ "name": "a", "path": "$.spec.x" }] },
    });
    test.plane.apply(&held.to_string()).unwrap();
    let authority = test.dir.path().join("authority.pem");
    // Others than those of the operator.
    fs::write(&authority, test.authority().repeat(2)).unwrap();
    test.helm("upgrade", &["--set=replicaCount=0"]);
    eventually("the Pod has ended", || {
        let answer = test.refusal();
        answer.contains("failed calling webhook").then_some(()).ok_or(answer)
    });
    test.plane.kubectl(&["delete", "kprof/held", "-n", "default", "--wait=false"]).unwrap();
    let no_finalizers = r#"{"metadata":{"finalizers":null}}"#;
    test.plane
        .kubectl(&["patch", "kprof/held", "-n", "default", "--type=merge", "-p", no_finalizers])
        .unwrap();
    test.wait_until_deleted("default", "kprof/held");

    // `caBundle` belongs to the operator until the upgrade takes it, as docs/use/admission.md says.
    let bundle = format!("--set-file=webhooks.caBundle={}", authority.display());
    let chart = root().join("charts/kollect");
    let upgrade =
        ["upgrade", "kollect", chart.to_str().unwrap(), "-n", "kollect-system", "--set=replicaCount=0"];
    let upgrade = [&upgrade[..], &["--set=webhooks.existingSecret=mine", &bundle]].concat();
    let conflict = test.helm.run(&upgrade).unwrap_err().to_string();
    assert!(conflict.contains("conflict"), "{conflict}");
    test.helm.run(&[&upgrade[..], &["--force-conflicts"]].concat()).unwrap();
    assert_eq!(test.authority(), fs::read_to_string(&authority).unwrap());
}

#[test]
fn the_default_kustomization_installs_an_operator_that_becomes_ready() {
    let test = InstallTest::new("kollect-system");
    eventually("kinds are there", || {
        let dir = root().join("config/default");
        let apply = ["apply", "--server-side", "-k", dir.to_str().unwrap()];
        test.plane.kubectl(&apply).map(drop).map_err(|error| error.to_string())
    });
    let rollout = ["rollout", "status", "-n", "kollect-system", "deployment/kollect", "--timeout=60s"];
    test.plane.kubectl(&rollout).unwrap();
    test.assert_refused_by_admission();
    // Installing again revokes no right: the aggregated rules of the collectors are not part of the manifest.
    let rules = ["get", "clusterrole", "kollect-collector", "-o", "jsonpath={.rules[*].resources[*]}"];
    let mut before = String::new();
    eventually("the collector may list", || {
        before = test.plane.kubectl(&rules).unwrap();
        before.contains("deployments").then_some(()).ok_or(before.clone())
    });
    test.apply_directory("config/default");
    assert_eq!(test.plane.kubectl(&rules).unwrap(), before);
    test.assert_nothing_forbidden();
}
