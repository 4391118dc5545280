//! The chart, rendered by helm: every value does something or is named, what comes out is accepted by the schemas of four
//! versions of Kubernetes, and the manifests below config/ are made from it. Whether the operator works with it is tested
//! in `install`.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use kollect_testbed::{Helm, chart_tool, schemas};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::program::{kollect, root};

const RELEASE: [&str; 3] = ["kollect", "charts/kollect", "--namespace=kollect-system"];

/// A helm that runs in the root of the repository, and a directory for files of values.
struct Chart {
    helm: Helm,
    directory: tempfile::TempDir,
}

impl Chart {
    fn new() -> Self {
        Self { helm: Helm::offline().unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn run(&self, command: &[&str], values: &Value) -> Result<String, String> {
        let file = self.directory.path().join("values.json");
        fs::write(&file, values.to_string()).unwrap();
        let release = RELEASE.map(|part| if part == "charts/kollect" { path(part) } else { part.into() });
        let release = release.each_ref().map(String::as_str);
        let arguments = [command, &release, &["--values", file.to_str().unwrap()]].concat();
        self.helm.run(&arguments).map_err(|error| error.to_string())
    }

    fn render(&self, values: &Value) -> String {
        self.run(&["template"], values).unwrap()
    }

    fn notes(&self, values: &Value) -> String {
        let text = self.run(&["install", "--dry-run=client"], values).unwrap();
        text.split_once("\nNOTES:\n").unwrap().1.to_owned()
    }
}

fn path(relative: &str) -> String {
    root().join(relative).to_str().unwrap().to_owned()
}

fn yaml(relative: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(root().join(relative)).unwrap()).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&fs::read_to_string(root().join("charts/kollect/values.schema.json")).unwrap())
        .unwrap()
}

fn team_values() -> Value {
    yaml("charts/kollect/values-team.yaml")
}

/// All values of the Go implementation but its image, which is another program.
fn go_values() -> Value {
    let mut values = yaml("crates/kollect/testdata/chart/go-values.yaml");
    values.as_object_mut().unwrap().remove("image");
    values
}

/// Objects of rendered manifests.
fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

#[derive(Deserialize)]
struct ValueCase {
    values: Value,
    #[serde(default)]
    shows: Vec<String>,
    #[serde(default)]
    hides: Vec<String>,
}

fn cases() -> Vec<ValueCase> {
    let file = root().join("crates/kollect/testdata/chart/values.yaml");
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Paths of the values that a part of the schema describes, and of the retired ones.
fn leaves(schema: &Value, prefix: &str, effective: &mut BTreeSet<String>, retired: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().unwrap() {
        let path = format!("{prefix}{name}");
        let description = field["description"].as_str().unwrap_or_default();
        assert!(!description.is_empty(), "{path} has no description");
        if description.starts_with("No effect") {
            retired.insert(path);
        } else if field["properties"].is_object() {
            leaves(field, &format!("{path}."), effective, retired);
        } else if path != "global" {
            effective.insert(path);
        }
    }
}

fn leaf_at<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(values, |value, key| value.get(key))
}

#[test]
fn every_value_changes_what_is_rendered() {
    let chart = Chart::new();
    let default = chart.render(&json!({}));
    let (mut effective, mut retired) = (BTreeSet::new(), BTreeSet::new());
    leaves(&schema(), "", &mut effective, &mut retired);
    for case in cases() {
        let rendered = chart.render(&case.values);
        assert_ne!(rendered, default, "{}", case.values);
        for text in &case.shows {
            assert!(rendered.contains(text), "{}: {text:?} is not in\n{rendered}", case.values);
            assert!(!default.contains(text) || case.shows.len() > 1, "{text:?} is there by default");
        }
        for text in &case.hides {
            assert!(!rendered.contains(text), "{}: {text:?} is in\n{rendered}", case.values);
        }
        effective.retain(|path| leaf_at(&case.values, path).is_none());
    }
    assert!(effective.is_empty(), "no case in testdata/chart/values.yaml: {effective:?}");
}

#[test]
fn two_renders_are_equal_and_the_chart_has_nothing_random() {
    let chart = Chart::new();
    for values in [json!({}), team_values()] {
        assert_eq!(chart.render(&values), chart.render(&values));
        chart.helm.run(&["lint", "--strict", &path("charts/kollect")]).unwrap();
    }
    for template in fs::read_dir(root().join("charts/kollect/templates")).unwrap() {
        let text = fs::read_to_string(template.unwrap().path()).unwrap();
        for word in [
            "lookup",
            "rand",
            "genCA",
            "genSelfSignedCert",
            "genSignedCert",
            "genPrivateKey",
            "uuidv4",
            "now",
        ] {
            assert!(!text.contains(&format!("{word} ")) || word == "now", "{word}");
        }
        assert!(!text.contains("{{ now") && !text.contains("(now"), "now");
    }
}

#[test]
fn values_of_the_go_implementation_are_accepted_and_those_without_effect_are_named() {
    let chart = Chart::new();
    let go_values = go_values();
    chart.render(&go_values);
    let notes = chart.notes(&go_values);
    let (mut effective, mut retired) = (BTreeSet::new(), BTreeSet::new());
    leaves(&schema(), "", &mut effective, &mut retired);
    let named = |path: &str| notes.contains(&format!("\n  {path}: "));
    for path in retired {
        let value = leaf_at(&go_values, &path);
        assert!(value.is_some(), "{path} is no value of the Go implementation");
        assert!(named(&path) || value == Some(&json!("")), "{path} is not named in\n{notes}");
    }
    assert!(!named("replicaCount"));
    let other = json!({ "largeCluster": { "collectDispatchWorkers": 8 } });
    assert!(
        chart.notes(&other).contains("\n  largeCluster.collectDispatchWorkers: only largeCluster.resources")
    );
    let quiet = chart.notes(&json!({ "global": { "a": 1 } }));
    assert!(!quiet.contains("have no effect") && !quiet.contains("does not know"), "{quiet}");
}

/// Values whose default is another one than in the Go implementation, with those that it does not have.
fn differences(
    ours: &Value,
    theirs: &Value,
    prefix: &str,
    changed: &mut BTreeSet<String>,
    new: &mut BTreeSet<String>,
) {
    for (key, value) in ours.as_object().unwrap() {
        let path = format!("{prefix}{key}");
        match theirs.get(key) {
            None => drop(new.insert(path)),
            Some(other)
                if value.is_object() && other.is_object() && !value.as_object().unwrap().is_empty() =>
            {
                differences(value, other, &format!("{path}."), changed, new);
            }
            Some(other) if other != value => drop(changed.insert(path)),
            Some(_) => {}
        }
    }
}

/// Rows of a table of the chart's README, by the heading above it: what stands in code in the first cell.
fn readme_rows(heading: &str) -> BTreeSet<String> {
    let readme = fs::read_to_string(root().join("charts/kollect/README.md")).unwrap();
    let section = readme.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split(" |").next())
        .flat_map(|cell| cell.split('`').step_by(2))
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn the_readme_lists_every_difference_to_the_go_implementation() {
    let ours = yaml("charts/kollect/values.yaml");
    let theirs = yaml("crates/kollect/testdata/chart/go-values.yaml");
    let (mut changed, mut new) = (BTreeSet::new(), BTreeSet::new());
    differences(&ours, &theirs, "", &mut changed, &mut new);
    let listed = readme_rows("Coming from the Go implementation");
    let unlisted: Vec<&String> = changed.iter().filter(|path| !listed.contains(*path)).collect();
    assert!(unlisted.is_empty(), "defaults that differ and are not in the table: {unlisted:?}");
    let all = readme_rows("Values");
    let (mut effective, mut retired) = (BTreeSet::new(), BTreeSet::new());
    leaves(&schema(), "", &mut effective, &mut retired);
    let top: BTreeSet<String> = ours.as_object().unwrap().keys().cloned().collect();
    for path in &top {
        let has_row = all.iter().any(|row| row == path || row.starts_with(&format!("{path}.")));
        assert!(has_row, "{path} is not in the README");
    }
    for path in &all {
        assert!(
            leaf_at(&ours, path).is_some() || effective.contains(path),
            "the README names {path}, which does not exist"
        );
    }
    assert!(retired.iter().all(|path| listed.contains(path)), "{retired:?} {listed:?}");
}

#[test]
fn wrong_values_are_refused_with_what_to_do() {
    let chart = Chart::new();
    for (values, expected) in [
        (json!({ "image": { "tags": "x" } }), "additional properties 'tags' not allowed"),
        (
            json!({ "webhooks": { "certManager": { "enabled": true } } }),
            "additional properties 'enabled' not allowed",
        ),
        (json!({ "image": { "digest": "latest" } }), "/image/digest"),
        (json!({ "watchNamespaces": "team-a" }), "/watchNamespaces"),
        (json!({ "crossNamespaceTargets": "some" }), "/crossNamespaceTargets"),
        (json!({ "collect": [{ "resources": ["pods"] }] }), "missing property 'group'"),
        (json!({ "leaderElection": { "leaseDuration": "1 minute" } }), "/leaderElection/leaseDuration"),
        (
            json!({ "replicaCount": 2, "leaderElection": { "enabled": false } }),
            "replicaCount 2 needs leaderElection.enabled",
        ),
        (json!({ "webhooks": { "existingSecret": "mine" } }), "needs webhooks.caBundle"),
        (
            json!({ "image": { "repository": "mirror.example.com/platformrelay/kollect" } }),
            "has the Go implementation, which does not know the arguments of this chart: remove image",
        ),
        (json!({ "leaderElection": null }), "missing property 'leaderElection'"),
        (json!({ "webhooks": { "certManager": null } }), "missing property 'certManager'"),
        (json!({ "watchNamespaces": ["a", "a"] }), "/watchNamespaces"),
        (
            json!({ "webhooks": { "existingSecret": "mine", "caBundle": "-----BEGIN CERTIFICATE-----", "certManager": { "create": true } } }),
            "exclude each other",
        ),
    ] {
        let refusal = chart.run(&["template"], &values).unwrap_err();
        assert!(refusal.contains(expected), "{values}: {refusal}");
    }
    let notes = chart.notes(&json!({ "resoures": {}, "watchNamespace": "a" }));
    assert!(notes.contains("does not know these values: resoures, watchNamespace."), "{notes}");
}

#[test]
fn the_notes_say_which_install_it_is() {
    let chart = Chart::new();
    let cluster = chart.notes(&json!({}));
    assert!(cluster.contains("is installed for the whole cluster."), "{cluster}");
    assert!(
        cluster.contains(
            "kubectl delete validatingwebhookconfiguration kollect-validating-webhook-configuration"
        )
    );
    let team = chart.notes(&team_values());
    assert!(team.contains("is installed for one team: it watches kollect-system with Roles there"), "{team}");
    assert!(!team.contains("validatingwebhookconfiguration"), "{team}");
    assert!(team.contains("The kinds are not part of this release (tenantMode)"), "{team}");
    assert!(team.contains("kubectl get kollect -n kollect-system\n"), "{team}");
    let tenant = chart.notes(&json!({ "tenantMode": true }));
    assert!(
        tenant.contains("/metrics is not served") && tenant.contains("webhooks.enabled has no effect"),
        "{tenant}"
    );
    let own = chart.notes(&json!({ "webhooks": { "certManager": { "secretName": "mine" } } }));
    assert!(own.contains("webhooks.certManager.secretName has no effect"), "{own}");
}

/// Renders that together have every object of the chart.
fn renders(chart: &Chart) -> Vec<(&'static str, String)> {
    let monitored = json!({
        "replicaCount": 2, "podDisruptionBudget": { "enabled": true },
        "metrics": { "serviceMonitor": { "enabled": true }, "prometheusRule": { "enabled": true }, "grafanaDashboard": { "enabled": true } },
        "webhooks": { "certManager": { "create": true } }, "collectHelmReleases": true, "rbac": { "watchSecrets": true },
    });
    let go_values = go_values();
    let all = [("default", json!({})), ("team", team_values()), ("monitored", monitored), ("go", go_values)];
    all.map(|(name, values)| (name, chart.render(&values))).into()
}

#[test]
fn manifests_conform_to_the_schemas_of_four_versions_of_kubernetes() {
    let chart = Chart::new();
    let directory = schemas::directory().unwrap();
    let kubeconform = chart_tool("kubeconform").unwrap();
    let file = chart.directory.path().join("rendered.yaml");
    for (name, rendered) in renders(&chart) {
        fs::write(&file, rendered).unwrap();
        for (version, _) in schemas::KUBERNETES_VERSIONS {
            let location = format!(
                "{}/{version}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json",
                directory.display()
            );
            let output = Command::new(&kubeconform)
                .args(["-strict", "-summary", "-schema-location", &location])
                .arg(&file)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("Skipped: 0"), "{name} with {version}: {text}");
        }
    }
    // A field that no version has is found.
    fs::write(&file, "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {port: [1]}\n").unwrap();
    let location = format!("{}/1.33/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json", directory.display());
    let wrong = Command::new(&kubeconform)
        .args(["-strict", "-schema-location", &location])
        .arg(&file)
        .output()
        .unwrap();
    assert!(!wrong.status.success());
}

/// The image has a fixed tag or a digest, so a node need not ask the registry each time.
const IGNORED_CHECKS: &str = "container-image-pull-policy";

#[test]
fn kube_score_has_no_critical_finding() {
    let chart = Chart::new();
    let kube_score = chart_tool("kube-score").unwrap();
    let file = chart.directory.path().join("rendered.yaml");
    for (name, rendered) in renders(&chart) {
        fs::write(&file, rendered).unwrap();
        let score = Command::new(&kube_score)
            .args(["score", "--ignore-test", IGNORED_CHECKS, "--output-format", "ci"])
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&score.stdout);
        let critical: Vec<&str> = text.lines().filter(|line| line.starts_with("[CRITICAL]")).collect();
        assert!(critical.is_empty() && text.contains("[OK]"), "{name}: {critical:#?}");
    }
}

/// Manifests below config/ that are made from the chart: the file, the values, and more arguments of helm.
fn generated() -> Vec<(PathBuf, Value, &'static [&'static str])> {
    let without_kinds = json!({ "crds": { "create": false } });
    vec![
        (root().join("config/default/kollect.yaml"), without_kinds.clone(), &["template"]),
        (root().join("config/tenant/kollect.yaml"), team_values(), &["template"]),
        (
            root().join("config/rbac/user_roles.yaml"),
            without_kinds,
            &["template", "--show-only=templates/rbac-users.yaml"],
        ),
    ]
}

/// `make generate` writes them (`UPDATE=1`); without it the test compares, and a difference fails.
#[test]
fn manifests_below_config_are_generated_from_the_chart() {
    let chart = Chart::new();
    let mut stale = Vec::new();
    for (file, values, command) in generated() {
        let rendered = chart.run(command, &values).unwrap();
        // Helm does not manage what kubectl applies.
        let is_of_helm = |line: &str| {
            line.starts_with("# Source: ")
                || line.contains("managed-by: Helm")
                || line.contains("helm.sh/chart: ")
        };
        let lines: Vec<&str> = rendered.lines().filter(|line| !is_of_helm(line)).collect();
        let text = format!(
            "# Generated by `make generate` from charts/kollect: edit that.\n{}\n",
            lines.join("\n").trim_end()
        );
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, text).unwrap();
        } else if fs::read_to_string(&file).ok() != Some(text) {
            stale.push(file);
        }
    }
    assert!(stale.is_empty(), "run make generate: {stale:?}");
    let bases = fs::read_dir(root().join("config/crd/bases")).unwrap().map(|entry| entry.unwrap().path());
    for base in bases {
        let copy = root().join("charts/kollect/files/crds").join(base.file_name().unwrap());
        assert_eq!(
            fs::read_to_string(&base).unwrap(),
            fs::read_to_string(copy).unwrap_or_default(),
            "run make generate"
        );
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn pod(objects: &[Value]) -> &Value {
    &of_kind(objects, "Deployment")[0]["spec"]["template"]
}

fn container(objects: &[Value]) -> &Value {
    &pod(objects)["spec"]["containers"][0]
}

fn selects(selector: &Value, objects: &[Value]) -> bool {
    let labels = &pod(objects)["metadata"]["labels"];
    selector.as_object().is_some_and(|selector| selector.iter().all(|(key, value)| labels[key] == *value))
}

/// Names and numbers of the container's ports.
fn container_ports(objects: &[Value]) -> Vec<(&str, u64)> {
    let ports = items(&container(objects)["ports"]).iter();
    ports.map(|port| (port["name"].as_str().unwrap(), port["containerPort"].as_u64().unwrap())).collect()
}

/// Every port of a Service is one of the container, flags serve exactly these, and the policy admits exactly these.
fn check_ports(objects: &[Value]) {
    let ports = container_ports(objects);
    for service in of_kind(objects, "Service") {
        assert!(selects(&service["spec"]["selector"], objects), "{service}");
        for port in items(&service["spec"]["ports"]) {
            let target = port["targetPort"].as_str().expect("a name");
            assert!(ports.iter().any(|(name, _)| *name == target), "{port} is not a port of the container");
        }
    }
    let flags: Vec<&str> =
        items(&container(objects)["args"]).iter().map(|flag| flag.as_str().unwrap()).collect();
    let flag = |name: &str| match name {
        "probes" => "--health-probe-bind-address=",
        "metrics" => "--metrics-bind-address=",
        "webhook" => "--webhook-bind-address=",
        _ => "the flag of an unknown port: ",
    };
    for (name, number) in &ports {
        assert!(flags.contains(&format!("{}:{number}", flag(name)).as_str()), "{name}: {flags:?}");
    }
    let served = flags.iter().filter(|flag| flag.contains("-bind-address="));
    assert_eq!(served.count(), ports.len(), "{flags:?}");
    let expanded = flags.iter().map(|flag| flag.replace("$(POD_NAMESPACE)", "kollect-system"));
    kollect(expanded.chain(["--help".into()])).ok();
    let policy = &of_kind(objects, "NetworkPolicy")[0]["spec"];
    assert!(selects(&policy["podSelector"]["matchLabels"], objects), "{policy}");
    let rule = &policy["ingress"][0];
    assert_eq!(rule["from"], Value::Null, "an API server and a kubelet have no labels");
    let open = items(&rule["ports"]).iter().map(|port| port["port"].as_str().unwrap());
    assert!(open.eq(ports.iter().map(|(name, _)| *name)), "{rule}");
}

fn mebibytes(quantity: &Value) -> u64 {
    let text = quantity.as_str().expect("a quantity");
    match text.strip_suffix("Gi") {
        Some(gibi) => gibi.parse::<u64>().unwrap() * 1024,
        None => text.strip_suffix("Mi").expect("Mi or Gi").parse().unwrap(),
    }
}

/// The size of the Pod's files is limited, and the limits of the container allow it.
fn check_volume_sizes(objects: &[Value]) {
    let volumes = items(&pod(objects)["spec"]["volumes"]).iter();
    let files: u64 = volumes
        .filter_map(|volume| volume.get("emptyDir"))
        .map(|volume| mebibytes(&volume["sizeLimit"]))
        .sum();
    let resources = &container(objects)["resources"];
    let limit = mebibytes(&resources["limits"]["ephemeral-storage"]);
    assert!(
        files > 0 && limit > files,
        "logs need room as well, or the Pod is evicted before the volume is full"
    );
    assert!((1..=limit).contains(&mebibytes(&resources["requests"]["ephemeral-storage"])));
}

#[test]
fn ports_policies_and_volumes_of_the_manifests_fit_together() {
    let chart = Chart::new();
    for values in [
        json!({}),
        json!({ "resourcesProfile": "large" }),
        team_values(),
        json!({ "webhooks": { "certManager": { "create": true } } }),
    ] {
        let objects = objects(&chart.render(&values));
        check_ports(&objects);
        check_volume_sizes(&objects);
        let Some(configuration) = of_kind(&objects, "ValidatingWebhookConfiguration").first().copied() else {
            continue;
        };
        assert_eq!(items(&configuration["webhooks"]).len(), 11);
        for hook in items(&configuration["webhooks"]) {
            let client = &hook["clientConfig"]["service"];
            let services = of_kind(&objects, "Service");
            let service =
                services.iter().find(|service| service["metadata"]["name"] == client["name"]).unwrap();
            assert_eq!(service["metadata"]["namespace"], client["namespace"]);
            // 443 is the default of a webhook.
            assert_eq!(service["spec"]["ports"][0]["port"], 443);
            assert_eq!(service["spec"]["ports"][0]["targetPort"], "webhook");
        }
        if let Some(certificate) = of_kind(&objects, "Certificate").first() {
            let service = &configuration["webhooks"][0]["clientConfig"]["service"];
            let host = format!(
                "{}.{}.svc",
                service["name"].as_str().unwrap(),
                service["namespace"].as_str().unwrap()
            );
            assert_eq!(certificate["spec"]["dnsNames"], json!([host]));
            let volumes = items(&pod(&objects)["spec"]["volumes"]);
            let name = &certificate["spec"]["secretName"];
            assert!(volumes.iter().any(|volume| volume["secret"]["secretName"] == *name));
            let issuer = of_kind(&objects, "Issuer")[0];
            assert_eq!(certificate["spec"]["issuerRef"]["name"], issuer["metadata"]["name"]);
        }
    }
}

/// Rights that a tenant or a stolen token could abuse: Secrets are never listed by default, and nothing of others is written.
#[test]
fn default_roles_write_nothing_but_kollect_objects_and_pinned_names() {
    let objects = objects(&Chart::new().render(&json!({})));
    let bound: BTreeSet<&str> = objects
        .iter()
        .filter(|object| object["kind"].as_str().unwrap().ends_with("RoleBinding"))
        .map(|binding| binding["roleRef"]["name"].as_str().unwrap())
        .chain(["kollect-collect"])
        .collect();
    let mut checked = 0;
    let is_role = |object: &&Value| ["Role", "ClusterRole"].contains(&object["kind"].as_str().unwrap());
    for role in objects
        .iter()
        .filter(is_role)
        .filter(|role| bound.contains(role["metadata"]["name"].as_str().unwrap()))
    {
        for rule in items(&role["rules"]) {
            checked += 1;
            let verbs: Vec<&str> = items(&rule["verbs"]).iter().map(|verb| verb.as_str().unwrap()).collect();
            let resources = items(&rule["resources"]);
            let is_pinned = !items(&rule["resourceNames"]).is_empty();
            let reads_only = verbs.iter().all(|verb| ["get", "list", "watch"].contains(verb));
            let creates_answers =
                resources.iter().all(|resource| resource.as_str().unwrap().ends_with("reviews"));
            let is_event_or_lease = resources == [json!("events")] || resources == [json!("leases")];
            let is_ours = rule["apiGroups"] == json!(["kollect.dev"]);
            assert!(reads_only || is_pinned || creates_answers || is_event_or_lease || is_ours, "{rule}");
            if resources.contains(&json!("secrets")) && !is_pinned {
                assert_eq!(verbs, ["get"], "{rule}");
            }
            assert!(!resources.contains(&json!("*")) && !verbs.contains(&"*"), "{rule}");
        }
    }
    assert!(checked > 15, "{checked}");
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let text = fs::read_to_string(root().join("charts/kollect/files/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let documented = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let documented = documented.split("\n## Retired").next().unwrap();
    let mut expressions = Vec::new();
    for panel in items(&dashboard["panels"]) {
        assert!(panel["title"].is_string() && panel["gridPos"].is_object(), "{panel}");
        expressions.extend(
            items(&panel["targets"]).iter().map(|target| target["expr"].as_str().unwrap().to_owned()),
        );
    }
    assert!(expressions.len() > 8, "{expressions:?}");
    for expression in &expressions {
        let names = expression.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        for name in names.filter(|name| name.starts_with("kollect_")) {
            let name = name.trim_end_matches("_bucket").trim_end_matches("_count").trim_end_matches("_sum");
            assert!(documented.contains(&format!("| `{name}` |")), "{name} in {expression}");
        }
    }
}
