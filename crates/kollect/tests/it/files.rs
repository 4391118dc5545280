//! Rows as files in a directory, from the command line.

use std::{collections::BTreeMap, fs, path::Path};

use crate::program::{kollect, kollect_without_reader};

const MANIFESTS: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: pods }
spec: { targetGVK: { version: v1, kind: Pod }, attributes: [{ name: node, path: $.spec.nodeName }] }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: pods }
spec: { profileRef: pods }
";

fn read_tree(root: &Path, below: &Path, found: &mut BTreeMap<String, String>) {
    for path in fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            read_tree(root, &path, found);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn a_directory_is_kept_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(file("kollect.yaml"), MANIFESTS).unwrap();
    let collect = |pods: &[(&str, &str)], out: &str| {
        let items: Vec<_> = pods
            .iter()
            .map(|(name, node)| {
                serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "spec": { "nodeName": node },
                    "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") } })
            })
            .collect();
        fs::write(
            file("pods.json"),
            serde_json::json!({ "kind": "List", "apiVersion": "v1", "items": items }).to_string(),
        )
        .unwrap();
        let (manifests, pods) = (file("kollect.yaml"), file("pods.json"));
        kollect(["collect", "-f", &manifests, "--from", &pods, "--out", out]).ok();
        let root = dir.path().join("out");
        let mut found = BTreeMap::new();
        read_tree(&root, &root, &mut found);
        found.retain(|path, _| !path.starts_with(".kollect/"));
        found
    };
    let rows = format!("dir:{}?layout=perResource&format=yaml", file("out"));
    let files = collect(&[("a", "n1"), ("b", "n2")], &rows);
    assert_eq!(
        files.keys().collect::<Vec<_>>(),
        ["default/default/pod/a.yaml", "default/default/pod/b.yaml"]
    );
    assert!(
        files["default/default/pod/a.yaml"].ends_with("uid: uid-a\nattributes:\n  node: n1\n"),
        "{files:?}"
    );
    // Rows of objects that the input does not contain stay.
    let files = collect(&[("a", "n3")], &rows);
    assert_eq!(
        files.keys().collect::<Vec<_>>(),
        ["default/default/pod/a.yaml", "default/default/pod/b.yaml"]
    );
    assert!(files["default/default/pod/a.yaml"].contains("node: n3"));

    // Another layout: the old files are removed, and their rows are in the new one.
    let files = collect(&[("a", "n4")], &format!("dir:{}", file("out")));
    let (path, text) = files.first_key_value().unwrap();
    assert!(files.len() == 1 && path.starts_with("inventory/"), "{files:?}");
    let document: serde_json::Value = serde_json::from_str(text).unwrap();
    let nodes: Vec<_> =
        document["items"].as_array().unwrap().iter().map(|item| &item["attributes"]["node"]).collect();
    assert_eq!(nodes, ["n4", "n2"]);
}

/// As in `kollect … | head`: no message, and the exit code of a program that SIGPIPE has ended.
#[test]
fn a_closed_standard_output_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let (manifests, objects) = (dir.path().join("manifests.yaml"), dir.path().join("pod.json"));
    fs::write(&manifests, MANIFESTS).unwrap();
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"cart","namespace":"default","uid":"u"},"spec":{"nodeName":"n"}}"#;
    fs::write(&objects, pod).unwrap();
    let (manifests, objects) = (manifests.to_str().unwrap(), objects.to_str().unwrap());
    for output in ["table", "json", "ndjson", "yaml", "csv"] {
        let finished = kollect_without_reader(["collect", "-f", manifests, "--from", objects, "-o", output]);
        assert_eq!((finished.code, &*finished.stderr), (141, ""), "{output}");
    }
    let finished = kollect_without_reader(["crds"]);
    assert_eq!((finished.code, &*finished.stderr), (141, ""));

    // The sink has been written, and one that fails is still an error.
    let file = dir.path().join("x.db");
    let out = format!("sqlite:{}", file.display());
    let finished = kollect_without_reader(["collect", "-f", manifests, "--from", objects, "--out", &out]);
    assert_eq!((finished.code, &*finished.stderr), (141, ""));
    assert!(file.is_file());
    let out = format!("sqlite:{objects}");
    let failed = kollect_without_reader(["collect", "-f", manifests, "--from", objects, "--out", &out]);
    assert_eq!(failed.code, 1, "{}", failed.stderr);
    assert!(failed.stderr.contains("error: "), "{}", failed.stderr);
}
