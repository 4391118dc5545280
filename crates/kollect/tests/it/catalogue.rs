//! The samples: accepted by a real API server and by the command line, and those of the catalogue yield
//! exactly the rows that their golden files show.

use std::fs;

use kollect_testbed::schemas;
use serde_json::{Value, json};

use crate::{
    crds::with_kinds,
    program::{kollect, root},
};

/// Samples with a target, and the directory of each.
const CATALOGUE: [(&str, &str); 10] = [
    ("more", "argo-application-snapshot"),
    ("more", "argo-applications"),
    ("more", "certificates"),
    ("start", "deployment-snapshot"),
    ("start", "deployments"),
    ("more", "flux-helmrelease-values"),
    ("more", "flux-helmreleases"),
    ("more", "helm-releases"),
    ("start", "ingresses"),
    ("start", "services"),
];

/// The definitions of kinds that the catalogue collects. That of Argo CD is its own: the API server removes fields that it does not
/// have, so a sample that reads one finds nothing.
pub(crate) fn definitions() -> String {
    let kinds = root().join("crates/kollect/testdata/catalogue/kinds.yaml");
    [kinds, schemas::argo_application().unwrap()].map(|file| fs::read_to_string(file).unwrap()).join("---\n")
}

#[test]
fn samples_of_the_catalogue_yield_the_expected_rows() {
    let plane = with_kinds();
    let testdata = root().join("crates/kollect/testdata/catalogue");
    plane.apply(&definitions()).unwrap();
    let names =
        ["certificates.cert-manager.io", "helmreleases.helm.toolkit.fluxcd.io", "applications.argoproj.io"];
    for definition in names.map(|name| format!("crd/{name}")) {
        plane.wait(&["--for=condition=Established", &definition]).unwrap();
    }
    plane.apply(&fs::read_to_string(testdata.join("objects.yaml")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (group, name) in CATALOGUE {
        let sample = root().join(format!("config/samples/{group}/{name}.yaml"));
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

#[test]
fn every_manifest_is_in_its_kustomization() {
    for (dir, files) in [
        ("config/crd", "bases/"),
        ("config/default", ""),
        ("config/rbac", ""),
        ("config/samples/start", ""),
        ("config/samples/more", ""),
        ("config/tenant", ""),
    ] {
        let text = fs::read_to_string(root().join(dir).join("kustomization.yaml")).unwrap();
        for entry in fs::read_dir(root().join(dir).join(files)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = text.lines().any(|line| line == format!("  - {files}{name}"));
            assert!(
                name == "kustomization.yaml" || listed,
                "{dir}/{files}{name}: add it to {dir}/kustomization.yaml"
            );
        }
    }
}

#[test]
fn every_sample_is_known_and_accepted_by_the_command_line() {
    for group in ["start", "more"] {
        let files = fs::read_dir(root().join("config/samples").join(group)).unwrap();
        for file in files.map(|entry| entry.unwrap().path()) {
            let has_target = fs::read_to_string(&file).unwrap().contains("kind: KollectTarget");
            let name = file.file_stem().unwrap().to_str().unwrap();
            let listed = CATALOGUE.contains(&(group, name));
            assert_eq!(has_target && !name.starts_with("kollect_"), listed, "{}", file.display());
        }
    }
    // Printing needs no sink: some of the samples name servers that do not exist.
    let all =
        ["collect", "-f", "config/samples/start", "config/samples/more", "--from", "/dev/null", "-o", "json"];
    let printed = kollect(all);
    let wrong = printed.stderr.lines().filter(|line| line.starts_with("error: "));
    // Samples may describe what this build does not support yet.
    let wrong: Vec<&str> = wrong.filter(|line| !line.contains("not available in this build")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
