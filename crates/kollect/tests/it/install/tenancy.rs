//! A team with only the role `kollect-editor` in its namespace tries to read objects of others. The operator may read
//! all objects here: only Kollect itself can prevent it.

use super::*;

/// In objects of others: must not be in any row.
const FOREIGN: &str = "hunter2-of-team-b";
/// In the team's own Secrets: must not be in any row either.
const OWN_SECRET: &str = "hunter2-of-team-a";
const TEAM: &str = "team-a";

/// A team: its kubeconfig, and the names of its targets.
struct Team {
    kubeconfig: PathBuf,
    targets: Vec<String>,
}

impl InstallTest {
    /// Objects in two namespaces and a cluster-scoped one.
    fn create_objects(&self) {
        for namespace in [TEAM, "team-b"] {
            let secret = if namespace == TEAM { OWN_SECRET } else { FOREIGN };
            let value = if namespace == TEAM { "canary" } else { FOREIGN };
            let metadata =
                |name: &str| json!({ "name": name, "namespace": namespace, "labels": { "app": "shop" } });
            let objects = [
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata("settings"), "stringData": { "password": secret } }),
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("settings"), "data": { "value": value } }),
            ];
            for object in objects {
                self.plane.apply(&object.to_string()).unwrap();
            }
        }
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7, "description": FOREIGN,
            "metadata": { "name": "foreign", "labels": { "app": "shop" } },
        });
        self.plane.apply(&class.to_string()).unwrap();
        self.apply_secret();
        let token = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": "token", "namespace": TEAM,
                "annotations": { "kubernetes.io/service-account.name": "default" },
            },
        });
        self.plane.apply(&token.to_string()).unwrap();
    }

    /// A user with the shipped role in the namespace of the team.
    fn team(&self) -> Team {
        self.plane.kubectl(&["create", "serviceaccount", "tenant", "-n", TEAM]).unwrap();
        let binding = ["create", "rolebinding", "tenant", "-n", TEAM, "--clusterrole=kollect-editor"];
        self.plane.kubectl(&[&binding[..], &["--serviceaccount=team-a:tenant"]].concat()).unwrap();
        let kubeconfig = self.kubeconfig_of(TEAM, "tenant");
        let team = Team { kubeconfig, targets: Vec::new() };
        eventually("the team may edit", || {
            team.kubectl(self, &["auth", "can-i", "create", "kollecttargets", "-n", TEAM], "").map(drop)
        });
        for forbidden in ["secrets", "configmaps", "kollectscopes.kollect.dev"] {
            let answer = team.kubectl(self, &["auth", "can-i", "create", forbidden, "-n", TEAM], "");
            assert!(answer.is_err(), "{forbidden}");
        }
        assert!(team.kubectl(self, &["get", "configmaps", "-n", "team-b"], "").is_err());
        team
    }

    /// `type status reason: message` of all conditions of an object.
    fn conditions(&self, resource: &str) -> Vec<String> {
        let object = self.plane.kubectl(&["get", "-n", TEAM, resource, "-o", "json"]).unwrap();
        let object: Value = serde_json::from_str(&object).unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |condition: &Value| {
            let [type_, status, reason, message] = ["type", "status", "reason", "message"]
                .map(|key| condition[key].as_str().unwrap().to_owned());
            format!("{type_} {status} {reason}: {message}")
        };
        conditions.iter().map(text).collect()
    }

    fn wait_for_text(&self, resource: &str, words: &[&str]) {
        eventually(&format!("{resource} tells {words:?}"), || {
            let conditions = self.conditions(resource);
            let has_all = |line: &String| words.iter().all(|words| line.contains(words));
            if conditions.iter().any(has_all) { Ok(()) } else { Err(format!("{conditions:?}")) }
        });
    }

    /// Fails unless the rows of the canaries are in the table, and no rows of others.
    fn assert_only_own_rows(&self, team: &Team, canaries: &[&str]) {
        let canary_targets =
            "SELECT DISTINCT target_name FROM inventory WHERE payload::text LIKE '%canary%' ORDER BY 1";
        self.wait_for_rows(canary_targets, canaries);
        for target in &team.targets {
            eventually(&format!("{target} has been looked at"), || {
                let conditions = self.conditions(&format!("kollecttarget/{target}"));
                let is_settled = conditions.iter().any(|line| line.starts_with("Ready "))
                    && !conditions.iter().any(|line| line.contains("Listing"));
                if is_settled { Ok(()) } else { Err(format!("{conditions:?}")) }
            });
        }
        let foreign = "SELECT target_name, namespace, name FROM inventory WHERE namespace <> 'team-a' OR \
                       payload::text LIKE '%hunter2%' OR payload::text LIKE '%aHVudGVyMi%'";
        assert_eq!(self.postgres.psql(foreign).unwrap(), "");
    }
}

impl Team {
    fn kubectl(&self, test: &InstallTest, args: &[&str], input: &str) -> Result<String, String> {
        let as_team = [&["--kubeconfig", self.kubeconfig.to_str().unwrap()], args].concat();
        test.plane.kubectl_with_input(&as_team, input).map_err(|error| error.to_string())
    }

    fn apply(&self, test: &InstallTest, kind: &str, name: &str, annotations: &Value, spec: &Value) {
        let object = json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "spec": spec,
            "metadata": { "name": name, "namespace": TEAM, "annotations": annotations },
        });
        self.kubectl(test, &["apply", "-f", "-"], &object.to_string()).unwrap();
    }

    fn target(&mut self, test: &InstallTest, name: &str, profile: &str, more: &Value) {
        let mut spec = json!({ "profileRef": profile });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(test, "KollectTarget", name, &json!({}), &spec);
        self.targets.push(name.into());
    }

    /// Profiles that would show data of others, with every annotation that allows more.
    fn write_profiles(&self, test: &InstallTest) {
        let annotations = json!({
            "kollect.dev/allow-secret-extraction": "true", "kollect.dev/allow-full-resource-export": "true",
        });
        let attributes = |path: &str| json!([{ "name": "x", "path": path }]);
        let secret = json!({ "version": "v1", "kind": "Secret" });
        let map = json!({ "version": "v1", "kind": "ConfigMap" });
        let class = json!({ "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" });
        let full_export = json!({ "mode": "Resource" });
        for (name, spec) in [
            ("secret-path", json!({ "targetGVK": secret, "attributes": attributes("$.data.password") })),
            ("secret-cel", json!({ "targetGVK": secret, "attributes": attributes("cel:object.data") })),
            ("secret-deep", json!({ "targetGVK": secret, "attributes": attributes("{..password}") })),
            (
                "secret-whole",
                json!({ "targetGVK": secret, "attributes": attributes("$.metadata.name"), "export": full_export }),
            ),
            (
                "secret-helm",
                json!({ "targetGVK": secret, "attributes": attributes("helm:release.releaseName") }),
            ),
            (
                "secret-values",
                json!({ "targetGVK": secret, "attributes": attributes("helm:release.config") }),
            ),
            ("maps", json!({ "targetGVK": map, "attributes": attributes("$.data") })),
            ("classes", json!({ "targetGVK": class, "attributes": attributes("$.description") })),
        ] {
            self.apply(test, "KollectProfile", name, &annotations, &spec);
        }
    }

    /// Targets that select all objects, with every kind of selector.
    fn write_targets(&mut self, test: &InstallTest) {
        let all_namespaces = json!({ "namespaceSelector": {} });
        let secret = json!({ "version": "v1", "kind": "Secret" });
        let other_team = json!({ "matchLabels": { "kubernetes.io/metadata.name": "team-b" } });
        for profile in ["path", "cel", "deep", "whole", "helm", "values"] {
            self.target(test, &format!("secrets-{profile}"), &format!("secret-{profile}"), &all_namespaces);
        }
        self.target(test, "all", "maps", &json!({}));
        self.target(test, "included", "maps", &json!({ "includedNamespaces": [TEAM, "team-b"] }));
        self.target(test, "only-others", "maps", &json!({ "includedNamespaces": ["team-b"] }));
        self.target(test, "every", "maps", &all_namespaces);
        self.target(test, "labelled", "maps", &json!({ "namespaceSelector": other_team }));
        self.target(test, "but-one", "maps", &json!({ "excludedNamespaces": ["team-c"] }));
        self.target(test, "fields", "maps", &json!({ "fieldSelector": "metadata.namespace=team-b" }));
        self.target(test, "by-name", "maps", &json!({ "names": ["settings"] }));
        self.target(
            test,
            "by-label",
            "maps",
            &json!({ "labelSelector": { "matchLabels": { "app": "shop" } } }),
        );
        let rules = json!([
            { "gvk": { "version": "v1", "kind": "ConfigMap" }, "namespaceSelector": other_team },
            { "gvk": secret, "matchPolicy": "object.metadata.name == 'settings'" },
        ]);
        self.target(test, "rules", "maps", &json!({ "resourceRules": rules }));
        self.target(test, "opt-in", "maps", &json!({ "watchMode": "OptIn", "namespaceSelector": {} }));
        self.target(test, "classes", "classes", &json!({}));
    }

    fn write_sinks(&self, test: &InstallTest) {
        let postgres = |reference: Value| json!({ "type": "postgres", "postgres": { "databaseRef": reference, "table": "inventory" } });
        self.apply(
            test,
            "KollectDatabaseSink",
            "portal",
            &json!({}),
            &postgres(json!({ "name": "portal-database" })),
        );
        let foreign = postgres(json!({ "name": "settings", "namespace": "team-b" }));
        self.apply(test, "KollectDatabaseSink", "foreign", &json!({}), &foreign);
        let token = postgres(json!({ "name": "token" }));
        self.apply(test, "KollectDatabaseSink", "token", &json!({}), &token);
        let api_server = json!({ "type": "git", "endpoint": format!("{}/x.git", test.plane.url()) });
        self.apply(test, "KollectSnapshotSink", "api-server", &json!({}), &api_server);
        self.apply(
            test,
            "KollectInventory",
            "all",
            &json!({}),
            &json!({ "databaseSinkRefs": ["portal", "foreign"] }),
        );
    }
}

/// Targets that collect from the team's own namespace.
const CANARIES: &[&str] = &["all", "but-one", "by-label", "by-name", "every", "included"];

#[test]
fn a_team_gets_no_rows_of_other_teams_with_any_spec() {
    let test = InstallTest::new("kollect-system");
    // Without admission, which refuses most of these objects before the operator sees them.
    test.helm("install", &["--set=webhooks.enabled=false"]);
    for namespace in [TEAM, "team-b"] {
        test.plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "everything", "labels": { "kollect.dev/aggregate-to-collector": "true" } },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"] }],
    });
    test.plane.apply(&role.to_string()).unwrap();
    test.create_objects();
    test.wait_until_allowed(&["list", "secrets", "-A"]);
    test.wait_until_allowed(&["list", "priorityclasses.scheduling.k8s.io"]);
    test.wait_until_allowed(&["list", "kollecttargets.kollect.dev", "-A"]);
    let mut team = test.team();
    team.write_profiles(&test);
    team.write_targets(&test);
    team.write_sinks(&test);
    test.assert_only_own_rows(&team, CANARIES);

    // Each refusal names what to do.
    let scope = "KollectScope in namespace team-a";
    test.wait_for_text("kollecttarget/every", &["ScopeClipped True BeyondReach", "namespaces (", scope]);
    for target in ["included", "only-others", "labelled"] {
        test.wait_for_text(
            &format!("kollecttarget/{target}"),
            &["ScopeClipped True BeyondReach", "team-b", scope],
        );
    }
    test.wait_for_text("kollecttarget/only-others", &["Ready False BeyondReach"]);
    test.wait_for_text(
        "kollecttarget/classes",
        &["ScopeClipped True BeyondReach", "spec.allowedGVKs", scope],
    );
    let flag = "--allow-secret-extraction team-a";
    for target in ["path", "cel", "values"] {
        test.wait_for_text(&format!("kollecttarget/secrets-{target}"), &["Ready False ProfileInvalid", flag]);
    }
    test.wait_for_text(
        "kollectdatabasesink/foreign",
        &["SecretResolveFailed", "--allow-secret-namespaces team-a=team-b"],
    );
    test.wait_for_text(
        "kollectdatabasesink/token",
        &["SecretResolveFailed", "kubernetes.io/service-account-token", "make a Secret of type Opaque"],
    );
    test.wait_for_text("kollectsnapshotsink/api-server", &["InvalidSpec", "is the API server"]);
    assert!(test.conditions("kollecttarget/all").iter().all(|line| !line.starts_with("ScopeClipped")));

    // The statuses that the team may read contain nothing of the others.
    let kinds = "kollectprofiles,kollecttargets,kollectinventories,kollectdatabasesinks";
    let statuses = team.kubectl(&test, &["get", kinds, "-n", TEAM, "-o", "yaml"], "").unwrap();
    assert!(!statuses.contains("hunter2"), "{statuses}");

    // A profile of the team that a cluster target uses does not read Secrets either.
    let cluster_target = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectClusterTarget", "metadata": { "name": "secrets" },
        "spec": { "profileRef": { "name": "secret-path", "namespace": TEAM }, "namespaceSelector": { "matchLabels": { "a": "b" } } },
    });
    test.plane.apply(&cluster_target.to_string()).unwrap();
    let inventory = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectClusterInventory", "metadata": { "name": "all" },
        "spec": { "sinkNamespace": TEAM, "databaseSinkRefs": ["portal"] },
    });
    test.plane.apply(&inventory.to_string()).unwrap();
    let wait_for_condition = |resource: &str, type_: &str, expected: &str| {
        let path = format!("jsonpath={{.status.conditions[?(@.type==\"{type_}\")]['status','reason']}}");
        eventually(&format!("{resource} {type_} {expected}"), || {
            match test.plane.kubectl(&["get", resource, "-o", &path]) {
                Ok(found) if found == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    };
    wait_for_condition("kollectclustertarget/secrets", "Degraded", "True ProfileInvalid");
    wait_for_condition("kollectclustertarget/secrets", "TenantEditable", "True NamespaceNotListed");
    wait_for_condition("kollectclusterinventory/all", "TenantEditable", "True NamespaceNotListed");
    test.assert_only_own_rows(&team, CANARIES);
    test.assert_nothing_forbidden();
}

#[test]
fn a_team_with_its_own_operator_gets_no_rows_of_other_teams() {
    let test = InstallTest::new(TEAM);
    test.install_kinds();
    for namespace in [TEAM, "team-b"] {
        test.plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    test.apply_directory("config/rbac");
    test.install_for_team(&[]);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "everything", "namespace": TEAM },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"] }],
    });
    test.plane.apply(&role.to_string()).unwrap();
    let bind = ["create", "rolebinding", "everything", "-n", TEAM, "--role=everything"];
    test.plane.kubectl(&[&bind[..], &["--serviceaccount=team-a:kollect"]].concat()).unwrap();
    test.create_objects();
    test.wait_until_allowed(&["list", "configmaps", "-n", TEAM]);
    test.wait_until_allowed(&["list", "kollecttargets.kollect.dev", "-n", TEAM]);
    let mut team = test.team();
    team.write_profiles(&test);
    team.write_targets(&test);
    team.write_sinks(&test);
    // Labels of namespaces may not be read here: selectors select nothing.
    test.assert_only_own_rows(&team, &["all", "but-one", "by-label", "by-name", "included"]);
    test.wait_for_text(
        "kollecttarget/classes",
        &["ScopeClipped True BeyondReach", "KollectScope in namespace team-a"],
    );
    test.wait_for_text("kollecttarget/every", &["Degraded True ScopeForbidden"]);
    test.wait_for_text(
        "kollecttarget/secrets-path",
        &["Ready False ProfileInvalid", "--allow-secret-extraction team-a"],
    );
    test.assert_nothing_forbidden();
}
