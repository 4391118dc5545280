//! Bad input: every problem at once, with file, document, field, value and fix; nothing is collected.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::program::{Finished, kollect, kollect_with_input, sample_file};

const PROFILE: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: pods }
spec: { targetGVK: { version: v1, kind: Pod }, attributes: [{ name: node, path: $.spec.nodeName }] }
";
const TARGET: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: pods }
spec: { profileRef: pods }
";

struct ManifestFiles(TempDir);

impl ManifestFiles {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn collect(&self) -> Finished {
        kollect(["collect", "-f", self.0.path().to_str().unwrap(), "--from", "/dev/null"])
    }
}

#[test]
fn every_problem_is_printed_at_once_with_file_document_and_field() {
    let second = PROFILE.replace("spec: {", "spec: { targetKind: Pod,").replace("name: pods", "name: other");
    let files = ManifestFiles::new(&[
        ("a.yaml", &format!("{PROFILE}---{TARGET}---{PROFILE}")),
        ("b.yaml", &second),
        (
            "c.yaml",
            &TARGET.replace("name: pods", "name: two").replace("profileRef: pods", "profileRef: podz"),
        ),
        ("d.yaml", "kind: KollectTarget\nmetadata: {}\n"),
        ("e.yaml", "apiVersion: kollect.dev/v1alpha1\nkind: KollectTarge\nmetadata: { name: x }\n"),
        ("f.yaml", "a: [1\n"),
        (
            "g.yaml",
            &PROFILE
                .replace("$.spec.nodeName", "\"{.spec.containers[*.image}\"")
                .replace("name: pods", "name: list"),
        ),
        ("h.yaml", &PROFILE.replace("version: v1", "version: 1").replace("name: pods", "name: typed")),
    ]);
    let finished = files.collect();
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    for expected in [
        "a.yaml: document 3: KollectProfile pods: metadata.name: is defined twice, first in ",
        "b.yaml: document 1: KollectProfile other: spec.targetKind: is not a known field; known here: attributes, export, metrics, targetGVK",
        "c.yaml: document 1: KollectTarget two: spec.profileRef = \"podz\": no KollectProfile podz in namespace default",
        "d.yaml: document 1: apiVersion and kind are needed",
        "e.yaml: document 1: kind = \"kollect.dev/v1alpha1 KollectTarge\": is unknown; known in kollect.dev/v1alpha1: KollectClusterInventory",
        "f.yaml: document 1: ",
        "g.yaml: document 1: KollectProfile list: spec.attributes[0].path = \"{.spec.containers[*.image}\": ",
        "h.yaml: document 1: KollectProfile typed: spec.targetGVK.version = 1: must be a string: put it in quotes",
        "8 problems; nothing was collected",
    ] {
        assert!(finished.stderr.contains(expected), "missing {expected:?} in\n{}", finished.stderr);
    }
}

#[test]
fn manifests_that_violate_the_schema_are_still_checked_completely() {
    let profile = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: pods }
spec:
  nope: 1
  targetGVK: { version: 1, kind: Pod }
  attributes:
    - { name: first, path: 'cel: object.(' }
    - { name: '', path: '{.spec[' }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: second }
spec:
  targetGVK: { version: v1, kind: Pod }
  attributes: [{ name: first, path: '{.spec[' }]
  metrics: [{ name: m, path: none }]
";
    let target = "
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: pods }
spec:
  profileRef: podz
  suspend: 'yes'
  resourceRules: [{ gvk: { version: v1, kind: Pod }, matchPolicy: 'object.(' }]
";
    let inventory = "
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: { name: all }
spec: { targetRefs: [pods, gone], nope: 1, databaseSinkRefs: [db] }
";
    let sink = "
apiVersion: kollect.dev/v1alpha1
kind: KollectDatabaseSink
metadata: { name: db }
spec: { type: postgres, nope: 1, postgres: { databaseRef: { name: gone }, table: t } }
";
    let files = ManifestFiles::new(&[("a.yaml", &format!("{profile}---{target}---{inventory}---{sink}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    for expected in [
        "KollectProfile pods: spec.nope: is not a known field",
        "KollectProfile pods: spec.targetGVK.version = 1: must be a string",
        "KollectProfile pods: spec.attributes[0].path = \" object.(\": ",
        "KollectProfile pods: spec.attributes[1].name",
        "KollectProfile second: spec: metrics[].path must be the name of one of the attributes",
        "KollectProfile second: spec.attributes[0].path = \"{.spec[\": ",
        "KollectProfile pods: spec.attributes[1].path = \"{.spec[\": ",
        "KollectTarget pods: spec.suspend = \"yes\": ",
        "KollectTarget pods: spec.profileRef = \"podz\": no KollectProfile podz in namespace default",
        "KollectTarget pods: spec.resourceRules[0].matchPolicy = \"object.(\": ",
        "KollectInventory all: spec.nope: is not a known field",
        "KollectInventory all: spec.targetRefs[1] = \"gone\": no KollectTarget gone",
        "KollectDatabaseSink db: spec.nope: is not a known field",
        "KollectDatabaseSink db: spec.postgres.databaseRef",
        "15 problems; nothing was collected",
    ] {
        assert!(finished.stderr.contains(expected), "missing {expected:?} in\n{}", finished.stderr);
    }
}

#[test]
fn dangling_and_wrong_references_of_inventories_are_named() {
    let inventory = "
apiVersion: kollect.dev/v1alpha1
kind: KollectInventory
metadata: { name: all }
spec: { targetRefs: [podz], databaseSinkRefs: [db, { nam: x }], eventSinkRefs: [{ name: e, namespace: other }] }
";
    let connection_test = "
apiVersion: kollect.dev/v1alpha1
kind: KollectConnectionTest
metadata: { name: probe }
spec: { sinkRef: { eventSinkRef: gone } }
";
    let files =
        ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{TARGET}---{inventory}---{connection_test}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    for expected in [
        "spec.targetRefs[0] = \"podz\": no KollectTarget podz",
        "spec.databaseSinkRefs[1] = {\"nam\":\"x\"}: unknown field `nam`",
        "spec.eventSinkRefs[0].namespace",
        "spec.sinkRef.eventSinkRef = \"gone\": no event sink gone in namespace default",
    ] {
        assert!(finished.stderr.contains(expected), "missing {expected:?} in\n{}", finished.stderr);
    }
}

#[test]
fn scopes_limit_kinds_on_the_command_line_too() {
    let scope = "
apiVersion: kollect.dev/v1alpha1
kind: KollectScope
metadata: { name: only-services }
spec: { allowedGVKs: [{ version: v1, kind: Service }] }
";
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{TARGET}---{scope}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    assert!(
        finished.stderr.contains("spec.profileRef: KollectScope only-services does not allow kind v1 Pod"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_sink_with_a_missing_secret_is_refused_unless_the_run_only_prints() {
    let sample = |file: &str| sample_file(file).to_str().unwrap().to_owned();
    let mut args: Vec<String> = ["collect", "--from", "/dev/null", "-f"].map(Into::into).to_vec();
    args.extend(
        [
            "kollectprofile",
            "kollecttarget",
            "kollectinventory",
            "kollectsnapshotsink",
            "kollectdatabasesink",
            "kollecteventsink",
        ]
        .map(sample),
    );
    let finished = kollect(&args);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    let expected = "no Secret git-credentials in namespace team-a: add it or correct the name";
    assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    let missing = "no Secret portal-database in namespace team-a: add it or correct the name";
    assert!(finished.stderr.contains(missing), "{}", finished.stderr);
    args.push("-ojson".into());
    let finished = kollect(&args);
    assert!(
        finished.stderr.contains("3 sink reference(s) of the manifests were not written"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.ok().trim(), "[]");
}

#[test]
fn unknown_destinations_are_refused() {
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{TARGET}"))]);
    for (out, expected) in [
        ("kafka:x", "--out kafka:x: kafka is not available in this build; write "),
        ("postgres://me:hunter2@db/x", "--out postgres://db/x: "),
        ("sqlite:", "--out sqlite:: is not a file"),
        ("sqlite::memory:", "--out sqlite::memory:: is not a file"),
        ("x.db", "is not a destination; write "),
    ] {
        let finished = kollect([
            "collect",
            "-f",
            files.path("a.yaml").to_str().unwrap(),
            "--from",
            "/dev/null",
            "--out",
            out,
        ]);
        assert_eq!(finished.code, 2);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
        assert!(!finished.stderr.contains("hunter2"), "{}", finished.stderr);
    }
}

#[test]
fn input_that_is_no_kubernetes_object_is_refused() {
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{TARGET}"))]);
    let manifests = files.path("a.yaml");
    for (input, expected) in [
        ("{\"a\": 1}", "-: document 1: apiVersion and kind are needed"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", "-: document 1: metadata.name is needed in Pod"),
        ("{", "-: document 1: "),
    ] {
        let finished =
            kollect_with_input(["collect", "-f", manifests.to_str().unwrap(), "--from", "-"], input);
        assert_eq!(finished.code, 2, "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    }
    let finished = kollect(["collect", "-f", manifests.to_str().unwrap(), "--from", "/no/such/file"]);
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("/no/such/file: No such file or directory"), "{}", finished.stderr);
}

#[test]
fn an_unreachable_cluster_is_named() {
    let files = ManifestFiles::new(&[
        ("a.yaml", &format!("{PROFILE}---{TARGET}")),
        (
            "kubeconfig",
            "
apiVersion: v1
kind: Config
contexts: [{ name: nowhere, context: { cluster: c, user: u } }]
clusters: [{ name: c, cluster: { server: 'https://127.0.0.1:1' } }]
users: [{ name: u, user: {} }]
",
        ),
    ]);
    let (manifests, kubeconfig) = (files.path("a.yaml"), files.path("kubeconfig"));
    let run = |context: &str| {
        kollect([
            "collect",
            "-f",
            manifests.to_str().unwrap(),
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--context",
            context,
        ])
    };
    let finished = run("nowhere");
    assert_eq!(finished.code, 1);
    assert!(
        finished.stderr.contains("reach the cluster at https://127.0.0.1:1/ (context nowhere)"),
        "{}",
        finished.stderr
    );
    let finished = run("unknown");
    assert_eq!(finished.code, 1);
    assert!(finished.stderr.contains("context unknown"), "{}", finished.stderr);
}

#[test]
fn a_reference_to_an_invalid_manifest_is_not_reported_as_missing() {
    let wrong = PROFILE.replace("spec: {", "spec: { nope: 1,");
    let files = ManifestFiles::new(&[("a.yaml", &format!("{wrong}---{TARGET}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("1 problem;"), "{}", finished.stderr);
}

#[test]
fn values_of_unknown_fields_are_not_printed_and_paths_in_names_are_refused() {
    let sink = "
apiVersion: kollect.dev/v1alpha1
kind: KollectDatabaseSink
metadata: { name: db }
spec: { type: postgres, postgres: { databaseRef: { name: x }, table: t, dsn: 'postgres://u:hunter2@h/db' } }
";
    let target_with_path = TARGET
        .replace("profileRef: pods", "profileRef: pods, includedNamespaces: ['kube-system/secrets?a=']");
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{target_with_path}---{sink}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("spec.postgres.dsn: is not a known field"), "{}", finished.stderr);
    assert!(!finished.stderr.contains("hunter2"), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("spec.includedNamespaces[0] = \"kube-system/secrets?a=\": must match"),
        "{}",
        finished.stderr
    );
}

#[test]
fn items_of_lists_are_read_and_manifests_without_targets_are_refused() {
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {}\n",
        "{apiVersion: kollect.dev/v1alpha1, kind: KollectProfile, metadata: {name: pods}, spec: {targetGVK: {version: v1, kind: Pod}}}",
        "{apiVersion: kollect.dev/v1alpha1, kind: KollectTarget, metadata: {name: pods}, spec: {profileRef: pods}}",
    );
    let files = ManifestFiles::new(&[("a.yaml", &list)]);
    assert_eq!(files.collect().code, 0);
    let files = ManifestFiles::new(&[("a.yaml", PROFILE)]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    assert!(finished.stderr.contains("hold no KollectTarget"), "{}", finished.stderr);
}

#[test]
fn selectors_that_files_cannot_answer_are_refused_and_missing_namespaces_are_reported() {
    let selector =
        TARGET.replace("profileRef: pods", "profileRef: pods, fieldSelector: status.phase=Running");
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{selector}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    assert!(
        finished.stderr.contains("fieldSelector status.phase=Running: only an API server"),
        "{}",
        finished.stderr
    );

    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{TARGET}"))]);
    let input = "{apiVersion: v1, kind: Pod, metadata: {name: x}}";
    let finished =
        kollect_with_input(["collect", "-f", files.path("a.yaml").to_str().unwrap(), "--from", "-"], input);
    assert!(finished.stderr.contains("1 v1 Pod without metadata.namespace"), "{}", finished.stderr);
    let input = "{apiVersion: v1, kind: Pod, metadata: {name: x, labels: {version: 1}}}";
    let finished =
        kollect_with_input(["collect", "-f", files.path("a.yaml").to_str().unwrap(), "--from", "-"], input);
    assert_eq!(finished.code, 2, "an object is never dropped silently: {}", finished.stderr);
}

#[test]
fn scopes_limit_the_profile_namespaces_of_cluster_targets() {
    let scope = "
apiVersion: kollect.dev/v1alpha1
kind: KollectClusterScope
metadata: { name: platform }
spec: { allowedStaticRefNamespaces: [kollect-system] }
";
    let target = "
apiVersion: kollect.dev/v1alpha1
kind: KollectClusterTarget
metadata: { name: pods }
spec: { profileRef: { name: pods, namespace: default }, namespaceSelector: { matchLabels: { a: b } } }
";
    let files = ManifestFiles::new(&[("a.yaml", &format!("{PROFILE}---{target}---{scope}"))]);
    let finished = files.collect();
    assert_eq!(finished.code, 2);
    let expected = "spec.profileRef.namespace: KollectClusterScope platform does not allow profiles of namespace default";
    assert!(finished.stderr.contains(expected), "{}", finished.stderr);
}

#[test]
fn numbers_of_json_files_keep_their_digits() {
    let profile = PROFILE.replace("$.spec.nodeName", "$.spec.n");
    let files = ManifestFiles::new(&[("a.yaml", &format!("{profile}---{TARGET}"))]);
    let input = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"x","namespace":"a"},"spec":{"n":[12345678901234567890123,1.10]}}]}"#;
    let manifests = files.path("a.yaml");
    let json =
        kollect_with_input(["collect", "-f", manifests.to_str().unwrap(), "--from", "-", "-ondjson"], input)
            .ok();
    assert!(json.contains(r#""node":[12345678901234567890123,1.10]"#), "{json}");
    let yaml =
        kollect_with_input(["collect", "-f", manifests.to_str().unwrap(), "--from", "-", "-oyaml"], input)
            .ok();
    assert!(yaml.ends_with("    node:\n    - 12345678901234567890123\n    - 1.10\n"), "{yaml}");
}
