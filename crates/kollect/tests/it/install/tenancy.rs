//! A team with only `kollect-editor` in its namespace tries to read what belongs to others. The operator may read
//! everything here: only Kollect itself can prevent it.

use super::*;

/// What belongs to others, and must not arrive.
const FOREIGN: &str = "hunter2-of-team-b";
/// What is in the team's own Secrets, and must not arrive either.
const OWN: &str = "hunter2-of-team-a";
const TEAM: &str = "team-a";

/// A team: its kubeconfig, and what it has written.
struct Team {
    kubeconfig: PathBuf,
    targets: Vec<String>,
}

impl World {
    /// Objects of two namespaces and of none.
    fn furnish(&self) {
        for namespace in [TEAM, "team-b"] {
            let secret = if namespace == TEAM { OWN } else { FOREIGN };
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
        self.secret();
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

    /// `status reason: message` of the conditions of an object that are not about success.
    fn told(&self, what: &str) -> Vec<String> {
        let object = self.plane.kubectl(&["get", "-n", TEAM, what, "-o", "json"]).unwrap();
        let object: Value = serde_json::from_str(&object).unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |condition: &Value| {
            let [type_, status, reason, message] = ["type", "status", "reason", "message"]
                .map(|key| condition[key].as_str().unwrap().to_owned());
            format!("{type_} {status} {reason}: {message}")
        };
        conditions.iter().map(text).collect()
    }

    fn tells(&self, what: &str, words: &[&str]) {
        eventually(&format!("{what} tells {words:?}"), || {
            let told = self.told(what);
            let fits = |line: &String| words.iter().all(|words| line.contains(words));
            if told.iter().any(fits) { Ok(()) } else { Err(format!("{told:?}")) }
        });
    }

    /// The canaries arrive, and nothing else does.
    fn nothing_of_others_arrives(&self, team: &Team, canaries: &[&str]) {
        let count =
            "SELECT DISTINCT target_name FROM inventory WHERE payload::text LIKE '%canary%' ORDER BY 1";
        self.holds(count, canaries);
        for target in &team.targets {
            eventually(&format!("{target} has been looked at"), || {
                let told = self.told(&format!("kollecttarget/{target}"));
                let settled = told.iter().any(|line| line.starts_with("Ready "))
                    && !told.iter().any(|l| l.contains("Listing"));
                if settled { Ok(()) } else { Err(format!("{told:?}")) }
            });
        }
        let foreign = "SELECT target_name, namespace, name FROM inventory WHERE namespace <> 'team-a' OR \
                       payload::text LIKE '%hunter2%' OR payload::text LIKE '%aHVudGVyMi%'";
        assert_eq!(self.postgres.psql(foreign).unwrap(), "");
    }
}

impl Team {
    fn kubectl(&self, world: &World, args: &[&str], input: &str) -> Result<String, String> {
        let as_team = [&["--kubeconfig", self.kubeconfig.to_str().unwrap()], args].concat();
        world.plane.kubectl_with_input(&as_team, input).map_err(|error| error.to_string())
    }

    fn apply(&self, world: &World, kind: &str, name: &str, annotations: &Value, spec: &Value) {
        let object = json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "spec": spec,
            "metadata": { "name": name, "namespace": TEAM, "annotations": annotations },
        });
        self.kubectl(world, &["apply", "-f", "-"], &object.to_string()).unwrap();
    }

    fn target(&mut self, world: &World, name: &str, profile: &str, more: &Value) {
        let mut spec = json!({ "profileRef": profile });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.apply(world, "KollectTarget", name, &json!({}), &spec);
        self.targets.push(name.into());
    }

    /// Profiles that would show what is foreign, with every annotation that opens something.
    fn write_profiles(&self, world: &World) {
        let opened = json!({
            "kollect.dev/allow-secret-extraction": "true", "kollect.dev/allow-full-resource-export": "true",
        });
        let attributes = |path: &str| json!([{ "name": "x", "path": path }]);
        let secret = json!({ "version": "v1", "kind": "Secret" });
        let map = json!({ "version": "v1", "kind": "ConfigMap" });
        let class = json!({ "group": "scheduling.k8s.io", "version": "v1", "kind": "PriorityClass" });
        let whole = json!({ "mode": "Resource" });
        for (name, spec) in [
            ("secret-path", json!({ "targetGVK": secret, "attributes": attributes("$.data.password") })),
            ("secret-cel", json!({ "targetGVK": secret, "attributes": attributes("cel:object.data") })),
            ("secret-deep", json!({ "targetGVK": secret, "attributes": attributes("{..password}") })),
            (
                "secret-whole",
                json!({ "targetGVK": secret, "attributes": attributes("$.metadata.name"), "export": whole }),
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
            self.apply(world, "KollectProfile", name, &opened, &spec);
        }
    }

    /// Targets that ask for everything, in every way there is.
    fn write_targets(&mut self, world: &World) {
        let every = json!({ "namespaceSelector": {} });
        let secret = json!({ "version": "v1", "kind": "Secret" });
        let named = json!({ "matchLabels": { "kubernetes.io/metadata.name": "team-b" } });
        for profile in ["path", "cel", "deep", "whole", "helm", "values"] {
            self.target(world, &format!("secrets-{profile}"), &format!("secret-{profile}"), &every);
        }
        self.target(world, "all", "maps", &json!({}));
        self.target(world, "included", "maps", &json!({ "includedNamespaces": [TEAM, "team-b"] }));
        self.target(world, "only-others", "maps", &json!({ "includedNamespaces": ["team-b"] }));
        self.target(world, "every", "maps", &every);
        self.target(world, "labelled", "maps", &json!({ "namespaceSelector": named }));
        self.target(world, "but-one", "maps", &json!({ "excludedNamespaces": ["team-c"] }));
        self.target(world, "fields", "maps", &json!({ "fieldSelector": "metadata.namespace=team-b" }));
        self.target(world, "by-name", "maps", &json!({ "names": ["settings"] }));
        self.target(
            world,
            "by-label",
            "maps",
            &json!({ "labelSelector": { "matchLabels": { "app": "shop" } } }),
        );
        let rules = json!([
            { "gvk": { "version": "v1", "kind": "ConfigMap" }, "namespaceSelector": named },
            { "gvk": secret, "matchPolicy": "object.metadata.name == 'settings'" },
        ]);
        self.target(world, "rules", "maps", &json!({ "resourceRules": rules }));
        self.target(world, "opt-in", "maps", &json!({ "watchMode": "OptIn", "namespaceSelector": {} }));
        self.target(world, "classes", "classes", &json!({}));
    }

    fn write_sinks(&self, world: &World) {
        let postgres = |reference: Value| json!({ "type": "postgres", "postgres": { "databaseRef": reference, "table": "inventory" } });
        self.apply(
            world,
            "KollectDatabaseSink",
            "portal",
            &json!({}),
            &postgres(json!({ "name": "portal-database" })),
        );
        let foreign = postgres(json!({ "name": "settings", "namespace": "team-b" }));
        self.apply(world, "KollectDatabaseSink", "foreign", &json!({}), &foreign);
        let token = postgres(json!({ "name": "token" }));
        self.apply(world, "KollectDatabaseSink", "token", &json!({}), &token);
        let api_server = json!({ "type": "git", "endpoint": format!("{}/x.git", world.plane.url()) });
        self.apply(world, "KollectSnapshotSink", "api-server", &json!({}), &api_server);
        self.apply(
            world,
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
fn law_9_law_10_a_team_gets_nothing_of_its_neighbours_whatever_it_writes() {
    let mut world = World::new("kollect-system");
    world.install_kinds("config/default");
    for namespace in [TEAM, "team-b"] {
        world.plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let everything = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "everything", "labels": { "kollect.dev/aggregate-to-collector": "true" } },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"] }],
    });
    world.plane.apply(&everything.to_string()).unwrap();
    world.furnish();
    world.may(&["list", "secrets", "-A"]);
    world.may(&["list", "priorityclasses.scheduling.k8s.io"]);
    world.may(&["list", "kollecttargets.kollect.dev", "-A"]);
    world.may(&["create", "leases.coordination.k8s.io", "-n", "kollect-system"]);
    let mut team = world.team();
    team.write_profiles(&world);
    team.write_targets(&world);
    team.write_sinks(&world);
    world.start();
    world.nothing_of_others_arrives(&team, CANARIES);

    // Each refusal says what to do.
    let scope = "KollectScope in namespace team-a";
    world.tells("kollecttarget/every", &["ScopeClipped True BeyondReach", "namespaces (", scope]);
    for target in ["included", "only-others", "labelled"] {
        world.tells(&format!("kollecttarget/{target}"), &["ScopeClipped True BeyondReach", "team-b", scope]);
    }
    world.tells("kollecttarget/only-others", &["Ready False BeyondReach"]);
    world.tells("kollecttarget/classes", &["ScopeClipped True BeyondReach", "spec.allowedGVKs", scope]);
    let flag = "--allow-secret-extraction team-a";
    for target in ["path", "cel", "values"] {
        world.tells(&format!("kollecttarget/secrets-{target}"), &["Ready False ProfileInvalid", flag]);
    }
    world.tells(
        "kollectdatabasesink/foreign",
        &["SecretResolveFailed", "--allow-secret-namespaces team-a=team-b"],
    );
    world.tells(
        "kollectdatabasesink/token",
        &["SecretResolveFailed", "kubernetes.io/service-account-token", "make a Secret of type Opaque"],
    );
    world.tells("kollectsnapshotsink/api-server", &["InvalidSpec", "is the API server"]);
    assert!(world.told("kollecttarget/all").iter().all(|line| !line.starts_with("ScopeClipped")));

    // The team can see nothing of the others in what the operator wrote about it.
    let kinds = "kollectprofiles,kollecttargets,kollectinventories,kollectdatabasesinks";
    let statuses = team.kubectl(&world, &["get", kinds, "-n", TEAM, "-o", "yaml"], "").unwrap();
    assert!(!statuses.contains("hunter2"), "{statuses}");

    // A profile of the team that a cluster target uses does not read Secrets either.
    let cluster_target = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectClusterTarget", "metadata": { "name": "secrets" },
        "spec": { "profileRef": { "name": "secret-path", "namespace": TEAM }, "namespaceSelector": { "matchLabels": { "a": "b" } } },
    });
    world.plane.apply(&cluster_target.to_string()).unwrap();
    let inventory = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "KollectClusterInventory", "metadata": { "name": "all" },
        "spec": { "sinkNamespace": TEAM, "databaseSinkRefs": ["portal"] },
    });
    world.plane.apply(&inventory.to_string()).unwrap();
    let condition = |what: &str, type_: &str, expected: &str| {
        let path = format!("jsonpath={{.status.conditions[?(@.type==\"{type_}\")]['status','reason']}}");
        eventually(&format!("{what} {type_} {expected}"), || {
            match world.plane.kubectl(&["get", what, "-o", &path]) {
                Ok(found) if found == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    };
    condition("kollectclustertarget/secrets", "Degraded", "True ProfileInvalid");
    condition("kollectclustertarget/secrets", "TenantEditable", "True NamespaceNotListed");
    condition("kollectclusterinventory/all", "TenantEditable", "True NamespaceNotListed");
    world.nothing_of_others_arrives(&team, CANARIES);
    world.nothing_was_forbidden();
}

#[test]
fn law_9_law_10_a_team_with_its_own_operator_gets_nothing_of_its_neighbours() {
    let mut world = World::new(TEAM);
    world.install_kinds("config/crd");
    for namespace in [TEAM, "team-b"] {
        world.plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let editor = root().join("config/rbac/editor_role.yaml");
    world.plane.kubectl(&["apply", "-f", editor.to_str().unwrap()]).unwrap();
    world.install("config/tenant");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "everything", "namespace": TEAM },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"] }],
    });
    world.plane.apply(&role.to_string()).unwrap();
    let bind = ["create", "rolebinding", "everything", "-n", TEAM, "--role=everything"];
    world.plane.kubectl(&[&bind[..], &["--serviceaccount=team-a:kollect"]].concat()).unwrap();
    world.furnish();
    world.may(&["list", "configmaps", "-n", TEAM]);
    world.may(&["list", "kollecttargets.kollect.dev", "-n", TEAM]);
    let mut team = world.team();
    team.write_profiles(&world);
    team.write_targets(&world);
    team.write_sinks(&world);
    world.start();
    // Labels of namespaces may not be read here: selectors decide nothing.
    world.nothing_of_others_arrives(&team, &["all", "but-one", "by-label", "by-name", "included"]);
    world.tells(
        "kollecttarget/classes",
        &["ScopeClipped True BeyondReach", "KollectScope in namespace team-a"],
    );
    world.tells("kollecttarget/every", &["Degraded True ScopeForbidden"]);
    world.tells(
        "kollecttarget/secrets-path",
        &["Ready False ProfileInvalid", "--allow-secret-extraction team-a"],
    );
    world.nothing_was_forbidden();
}
