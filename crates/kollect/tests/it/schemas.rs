//! Warnings from schemas: mistakes in profiles that the API server's own documents show.

use std::fs;

use kollect_testbed::schemas;

use crate::{
    crds::with_kinds,
    program::{kollect, root},
};

const MANIFESTS: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: deployments }
spec:
  targetGVK: { group: apps, version: v1, kind: Deployment }
  attributes:
    - { name: replicas, path: $.spec.replica, type: int }
    - { name: images, path: 'cel:object.spec.template.spec.containers.map(c, c.imagee)', optional: true }
    - { name: count, path: 'cel:object.spec.template.spec.containers.map(c, c.image)', type: int }
    - { name: name, path: $.metadata.labels.app }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: applications }
spec:
  targetGVK: { group: argoproj.io, version: v1alpha1, kind: Application }
  attributes:
    - { name: project, path: $.spec.projec }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: deployments }
spec: { profileRef: deployments }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: applications }
spec: { profileRef: applications }
";

#[test]
fn misspelt_fields_of_built_in_and_custom_kinds_are_warnings() {
    let plane = with_kinds();
    let argo = schemas::argo_application().unwrap();
    plane.apply(&fs::read_to_string(argo).unwrap()).unwrap();
    plane.wait(&["--for=condition=Established", "crd/applications.argoproj.io"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manifests.yaml");
    fs::write(&file, MANIFESTS).unwrap();
    // A namespace without objects: only what is said about the profiles matters.
    let arguments = ["collect", "-f", file.to_str().unwrap(), "-o", "json", "--namespace", "kube-public"];
    let cluster = ["--kubeconfig", plane.kubeconfig().to_str().unwrap()];
    let expected = [
        "KollectProfile deployments: spec.attributes[0].path = \"$.spec.replica\": the schema has no field replica here: did you mean replicas?",
        "the schema has no field imagee here: did you mean image?",
        "the result is a list, which can never be the type int",
        "KollectProfile applications: spec.attributes[0].path = \"$.spec.projec\": the schema has no field projec here: did you mean project?",
    ];
    // The document of a new kind may take a moment.
    crate::program::eventually("the warnings", || {
        let printed = kollect(arguments.into_iter().chain(cluster));
        assert_eq!(printed.code, 0, "{}", printed.stderr);
        let warnings: Vec<&str> = printed
            .stderr
            .lines()
            .filter(|line| line.starts_with("warning: ") && line.contains("KollectProfile "))
            .collect();
        let found = expected.iter().all(|text| warnings.iter().any(|line| line.contains(text)));
        if found && warnings.len() == expected.len() { Ok(()) } else { Err(printed.stderr) }
    });
    // Without a cluster there is no schema, and no warning.
    let printed = kollect(arguments.into_iter().chain(["--from", "/dev/null"]));
    assert!(!printed.stderr.contains("the schema"), "{}", printed.stderr);
}

/// The samples and examples are read by users first.
#[test]
fn samples_for_built_in_kinds_have_no_warnings() {
    let plane = with_kinds();
    let kubeconfig = plane.kubeconfig().to_str().unwrap();
    for sample in ["config/samples/start", "docs/examples/deployments", "docs/examples/pods.yaml"] {
        let path = root().join(sample);
        let printed =
            kollect(["collect", "-f", path.to_str().unwrap(), "--kubeconfig", kubeconfig, "-o", "json"]);
        assert!(!printed.stderr.contains("warning: "), "{sample}: {}", printed.stderr);
    }
}
