//! The move from the Go implementation, as docs/understand/migrate.md describes it: its objects, its table and its document
//! in Git are what its users have when it has been uninstalled.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kollect_model::crd;
use kollect_testbed::GitHttp;

use super::*;

/// Namespaces with a Deployment each. The target is in the first one.
const NAMESPACES: [&str; 3] = ["team-a", "team-b", "platform"];

impl InstallTest {
    /// The kinds as the Go implementation has installed them: without our rules, and without an owner. Its chart never
    /// upgraded them, so its users did, with kubectl.
    fn install_go_kinds(&self) {
        for crd in crd::all() {
            let mut crd = serde_json::to_value(&crd).unwrap();
            let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
            crd["spec"]["versions"][0]["schema"] = schema;
            crd["spec"]["versions"][0].as_object_mut().unwrap().remove("additionalPrinterColumns");
            crd["spec"]["names"].as_object_mut().unwrap().remove("categories");
            let create = ["create", "--field-manager=helm", "-f", "-"];
            self.plane.kubectl_with_input(&create, &crd.to_string()).unwrap();
            let upgrade = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
            self.plane.kubectl_with_input(&upgrade, &crd.to_string()).unwrap();
        }
        self.plane.wait(&["crd", "--for=condition=Established", "--all"]).unwrap();
    }

    /// What the Go implementation has left: objects, the Lease that it released, rows, and a document in Git.
    fn leave_what_go_leaves(&self, git: &GitHttp) {
        for namespace in NAMESPACES.iter().chain(&["kollect-system"]) {
            self.plane.kubectl(&["create", "namespace", namespace]).unwrap();
        }
        self.plane.kubectl(&["label", "namespace", "platform", "kollect.dev/tenant=platform"]).unwrap();
        for namespace in NAMESPACES {
            self.plane.kubectl(&["create", "deployment", "web", "-n", namespace, "--image=web:1"]).unwrap();
        }
        self.apply_secret();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "3274ac8a.kollect.dev", "namespace": "kollect-system" },
            "spec": {
                "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7,
                "acquireTime": "2026-08-01T10:00:00.000000Z", "renewTime": "2026-08-01T10:00:00.000000Z",
            },
        });
        let credentials = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "git", "namespace": "team-a" },
            "stringData": { "username": GitHttp::USER, "password": GitHttp::PASSWORD },
        });
        let history = json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectSnapshotSink",
            "metadata": { "name": "history", "namespace": "team-a" },
            "spec": {
                "type": "git", "endpoint": git.url("history"), "secretRef": { "name": "git" },
                "tls": { "caBundle": BASE64_STANDARD.encode(&git.certificates().ca) }, "git": { "branch": "main", "engine": "go-git" },
            },
        });
        for object in [lease, credentials, history] {
            self.plane.kubectl_with_input(&["create", "-f", "-"], &object.to_string()).unwrap();
        }
        let objects = fs::read_to_string(root().join("crates/kollect/testdata/go/objects.yaml")).unwrap();
        self.plane.kubectl_with_input(&["create", "-f", "-"], &objects).unwrap();
        let delete = ["delete", "-n", "team-a", "kollecttarget/abandoned", "--wait=false"];
        self.plane.kubectl(&delete).unwrap();
        self.create_go_table();
    }

    fn uid(&self, namespace: &str) -> String {
        let get = ["get", "deployment/web", "-n", namespace, "-o", "jsonpath={.metadata.uid}"];
        self.plane.kubectl(&get).unwrap()
    }

    /// The table of the Go implementation with a row for each Deployment, and one for a Deployment that is gone.
    fn create_go_table(&self) {
        self.postgres
            .psql(
                "CREATE TABLE kollect_inventory (inventory_namespace TEXT NOT NULL, inventory_name TEXT NOT NULL, \
                 target_name TEXT NOT NULL, source_uid TEXT NOT NULL, cluster TEXT NOT NULL DEFAULT '', \
                 resource_namespace TEXT NOT NULL DEFAULT '', payload JSONB NOT NULL, exported_at TIMESTAMPTZ NOT NULL, \
                 PRIMARY KEY (inventory_namespace, inventory_name, target_name, source_uid))",
            )
            .unwrap();
        let objects = NAMESPACES.map(|namespace| (namespace, "web", self.uid(namespace)));
        let gone = ("team-a", "gone", "00000000-0000-0000-0000-000000000000".to_owned());
        for (namespace, name, uid) in objects.into_iter().chain([gone]) {
            let item = go_item(namespace, name, &uid, "web:0");
            let insert = format!(
                "INSERT INTO kollect_inventory VALUES ('team-a', 'all', 'deployments', '{uid}', '', '{namespace}', '{item}', now())"
            );
            self.postgres.psql(&insert).unwrap();
        }
    }
}

/// A row as the Go implementation stores it.
fn go_item(namespace: &str, name: &str, uid: &str, image: &str) -> Value {
    json!({
        "targetNamespace": "team-a", "targetName": "deployments", "namespace": namespace, "name": name, "group": "apps",
        "version": "v1", "kind": "Deployment", "uid": uid, "attributes": { "image": image, "containerCount": 1 },
    })
}

#[test]
fn an_installation_of_the_go_implementation_is_taken_over() {
    let test = InstallTest::new("kollect-system");
    let git = GitHttp::start().unwrap();
    let repository = git.create("history").unwrap();
    test.install_go_kinds();
    test.leave_what_go_leaves(&git);
    // The document of the Go implementation: a list of items with sorted keys.
    let item = serde_json::to_string(&[go_item("team-a", "web", &test.uid("team-a"), "web:0")]).unwrap();
    repository.commit_file("inventory/team-a/all.yaml", &item).unwrap();

    let page = fs::read_to_string(root().join("docs/understand/migrate.md")).unwrap();
    assert!(
        page.contains("--create-namespace --wait --take-ownership --force-conflicts --values my-values.yaml"),
        "the command of the page"
    );
    // A values file that sets everything, without `image`, as the page says.
    let values = fs::read_to_string(root().join("crates/kollect/testdata/chart/go-values.yaml")).unwrap();
    let mut values: Value = serde_saphyr::from_str(&values).unwrap();
    values.as_object_mut().unwrap().remove("image");
    // There is no cert-manager here.
    values["webhooks"]["certManager"]["create"] = json!(false);
    let file = test.dir.path().join("my-values.json");
    fs::write(&file, values.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let notes = test.helm("install", &["--take-ownership", "--force-conflicts", "--values", file]);
    assert!(notes.contains("These values of the Go implementation have no effect:"), "{notes}");

    // Rows continue: what changed is written, what is gone is removed, and what is beyond the reach stays as it was.
    let sql = "SELECT resource_namespace || '/' || (payload ->> 'name') || ' ' || (payload #>> '{attributes,image}') \
               FROM kollect_inventory WHERE inventory_name = 'all' ORDER BY 1";
    test.wait_for_rows(sql, &["platform/web web:0", "team-a/web web:1", "team-b/web web:0"]);
    // Its table has our columns and our key now.
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'kollect_inventory' AND column_name \
                   IN ('row_digest', 'api_group', 'kind', 'first_seen_at', 'changed_at')";
    test.wait_for_rows(columns, &["5"]);
    let rollup = "SELECT payload #>> '{attributes,image}' FROM kollect_inventory WHERE inventory_namespace = 'cluster'";
    test.wait_for_rows(rollup, &["web:1"]);
    // What the namespace policy freezes is counted.
    let clipped = "jsonpath={.status.conditions[?(@.type=='ScopeClipped')].message}";
    let get = ["get", "kollecttarget/deployments", "-n", "team-a", "-o", clipped];
    eventually("the target says what is beyond its reach", || {
        let message = test.plane.kubectl(&get).unwrap();
        (message.contains("2 rows") && message.contains("KollectScope")).then_some(()).ok_or(message)
    });
    // A target that was deleted meanwhile goes: the operator removes its finalizer, and those of all targets.
    test.wait_until_deleted("team-a", "kollecttarget/abandoned");
    let finalizers = "jsonpath={.items[*].metadata.finalizers}";
    eventually("finalizers of targets are removed", || {
        let kinds = "kollecttargets,kollectclustertargets";
        let found = test.plane.kubectl(&["get", kinds, "-A", "-o", finalizers]).unwrap();
        found.trim().is_empty().then_some(()).ok_or(found)
    });
    // The document in Git is adopted, and its history goes on.
    eventually("the document is written", || {
        let document = repository.git(&["show", "main:inventory/team-a/all.yaml"]).unwrap();
        document.contains("image: web:1").then_some(()).ok_or(document)
    });
    test.wait_until_ready(
        "team-a",
        "kollectinventories,kollectdatabasesinks,kollectsnapshotsinks,kollectprofiles",
    );
    // Statuses and objects that its schema accepted can still be written.
    test.plane.kubectl(&["label", "-n", "team-a", "kdb/portal", "moved=true"]).unwrap();
    // Each of its finalizers is removed by this operator when the object is deleted.
    let delete = |resource: &str| {
        test.plane.kubectl(&["delete", "-n", "team-a", resource, "--wait=false"]).unwrap();
        test.wait_until_deleted("team-a", resource);
    };
    delete("kollectclusterinventory/rollup");
    test.wait_for_rows(rollup, &[]);
    delete("kollectclustertarget/platform");
    // The old reach again, with the value of the page.
    test.helm("upgrade", &["--set=crossNamespaceTargets=all"]);
    let image = format!("kollect-system/kollect ghcr.io/kollect-dev/kollect:v{}", env!("CARGO_PKG_VERSION"));
    test.wait_for_rows(sql, &[&image, "platform/web web:1", "team-a/web web:1", "team-b/web web:1"]);
    delete("kollectinventory/all");
    test.wait_for_rows(sql, &[]);
    delete("kollecttarget/deployments");
    test.assert_nothing_forbidden();
}
