//! The samples: accepted by a real API server and by the command line, and those of the catalogue yield
//! exactly the rows that their golden files show.

use std::fs;

use serde_json::{Value, json};

use crate::{
    crds::with_kinds,
    program::{kollect, root},
};

const CATALOGUE: [&str; 7] = [
    "certificates",
    "deployments",
    "flux-helmrelease-values",
    "flux-helmreleases",
    "helm-releases",
    "ingresses",
    "services",
];

#[test]
fn samples_of_the_catalogue_yield_the_expected_rows() {
    let plane = with_kinds();
    let testdata = root().join("crates/kollect/testdata/catalogue");
    plane.apply(&fs::read_to_string(testdata.join("kinds.yaml")).unwrap()).unwrap();
    let definitions = ["crd/certificates.cert-manager.io", "crd/helmreleases.helm.toolkit.fluxcd.io"];
    plane.wait(&["--for=condition=Established", definitions[0], definitions[1]]).unwrap();
    plane.apply(&fs::read_to_string(testdata.join("objects.yaml")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for name in CATALOGUE {
        let sample = root().join(format!("config/samples/catalogue/{name}.yaml"));
        let kubeconfig = plane.kubeconfig().to_str().unwrap();
        let namespace = ["--namespace", "team-a-shop"];
        let printed = kollect(
            ["collect", "-f", sample.to_str().unwrap(), "--kubeconfig", kubeconfig, "-o", "json"]
                .into_iter()
                .chain(namespace),
        );
        assert!(!printed.stdout.contains("hunter2"), "{name}: a secret came out");
        let rows: Value = serde_json::from_str(&printed.ok()).unwrap();
        // Values that differ from run to run are left out of the file.
        let shown: Vec<Value> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| json!({ "kind": row["kind"], "namespace": row["namespace"], "name": row["name"], "attributes": row["attributes"] }))
            .collect();
        let found = format!("{:#}\n", json!(shown));
        let file = testdata.join(format!("{name}.golden.json"));
        if fs::read_to_string(&file).ok().as_ref() != Some(&found) {
            wrong.push(format!("{}:\n{found}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "rows are not those of the golden files\n{}", wrong.join("\n"));
}

/// Roles that let the operator read more Secrets than those of sinks: administrators apply and bind them if needed.
const NOT_IN_DEFAULT: [&str; 2] = ["secret_watcher_role.yaml", "helm_collector_role.yaml"];

#[test]
fn every_manifest_is_in_its_kustomization() {
    for (dir, files) in [
        ("config/crd", "bases/"),
        ("config/default", ""),
        ("config/manager", ""),
        ("config/rbac", ""),
        ("config/samples", ""),
        ("config/samples/catalogue", ""),
        ("config/tenant", ""),
    ] {
        let text = fs::read_to_string(root().join(dir).join("kustomization.yaml")).unwrap();
        for entry in fs::read_dir(root().join(dir).join(files)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = text.lines().any(|line| line == format!("  - {files}{name}"));
            if NOT_IN_DEFAULT.contains(&name.as_str()) {
                assert!(!listed, "{dir}/{name} is not part of the default");
                continue;
            }
            assert!(
                name == "kustomization.yaml" || listed,
                "{dir}/{files}{name}: add it to {dir}/kustomization.yaml"
            );
        }
    }
}

#[test]
fn every_sample_is_known_and_accepted_by_the_command_line() {
    let files: Vec<String> = fs::read_dir(root().join("config/samples/catalogue"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .map(|name| name.trim_end_matches(".yaml").to_owned())
        .collect();
    assert_eq!(files.len(), CATALOGUE.len());
    assert!(files.iter().all(|name| CATALOGUE.contains(&name.as_str())), "{files:?}");
    // Printing needs no sink: some of the samples name servers that do not exist.
    let all =
        ["collect", "-f", "config/samples", "config/samples/catalogue", "--from", "/dev/null", "-o", "json"];
    let printed = kollect(all);
    let wrong = printed.stderr.lines().filter(|line| line.starts_with("error: "));
    // Samples may describe what this build does not support yet.
    let wrong: Vec<&str> = wrong.filter(|line| !line.contains("not available in this build")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
