//! What `kollect collect` says about redacted values, nulls and dropped rows. No server is needed.

use std::fs;

use crate::program::{Finished, kollect};

const MANIFESTS: &str = "
apiVersion: kollect.dev/v1alpha1
kind: KollectProfile
metadata: { name: pods }
spec:
  targetGVK: { version: v1, kind: Pod }
  attributes:
    - { name: env, path: '$.spec.containers[*].env[*].value' }
    - { name: secretNames, path: '$.spec.volumes[*].secret.secretName' }
    - { name: ready, path: '{.status.conditions[?(@.type==\"Ready\")].status}', type: bool }
    - { name: uptime, path: $.status.uptime, type: int }
    - { name: node, path: $.spec.nodeName, optional: true }
    - { name: limit, path: 'cel:object.spec.containers[0].resources.limits.memory', optional: true }
    - { name: image, path: 'cel:object.spec.containers[0].image' }
---
apiVersion: kollect.dev/v1alpha1
kind: KollectTarget
metadata: { name: pods }
spec:
  profileRef: pods
  resourceRules:
    - { gvk: { version: v1, kind: Pod }, matchPolicy: POLICY }
";

const PODS: &str = r#"
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: Pod
    metadata: { name: cart, namespace: default, uid: u1 }
    spec:
      containers:
        - image: cart:1
          env:
            - { name: DB_PASSWORD, value: hunter2 }
            - { name: DATABASE_URL, value: "postgres://shop:hunter2@db/shop" }
      volumes: [{ secret: { secretName: cart-tls } }]
    status: { uptime: 3 days, conditions: [{ type: Ready, status: "True" }] }
  - apiVersion: v1
    kind: Pod
    metadata: { name: empty, namespace: default, uid: u2 }
    spec: { containers: [] }
"#;

fn collect(policy: &str, args: &[&str]) -> Finished {
    let finished = collect_all(policy, args);
    assert!(!format!("{}{}", finished.stdout, finished.stderr).contains("hunter2"));
    finished
}

fn collect_all(policy: &str, args: &[&str]) -> Finished {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(file("kollect.yaml"), MANIFESTS.replace("POLICY", policy)).unwrap();
    fs::write(file("pods.yaml"), PODS).unwrap();
    let (manifests, pods) = (file("kollect.yaml"), file("pods.yaml"));
    kollect(["collect", "-f", &manifests, "--from", &pods].iter().chain(args))
}

#[test]
fn redactions_nulls_and_dropped_rows_are_said_with_examples() {
    let finished = collect("\"true\"", &["-o", "ndjson"]);
    assert_eq!(finished.code, 3, "{}", finished.stderr);
    let row: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    let marker = serde_json::json!({ "reason": "sensitive-key", "redacted": true });
    assert_eq!(
        row["attributes"],
        serde_json::json!({
            "env": [marker, "postgres://shop:***@db/shop"], "image": "cart:1", "ready": true, "secretNames": ["cart-tls"], "uptime": null,
        })
    );
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "dropped: target default/pods: default/empty has no row: attribute image: index out of bounds: 0",
            "warning: target default/pods: uptime is null in 1 object: declared int, but default/cart has a string, \"3 days\"",
            "note: target default/pods: limit failed in 1 of 1 rows, such as default/cart: no such key: resources",
            "note: target default/pods: node has no value in 1 of 1 rows, such as default/cart",
            "note: target default/pods: 2 values of env are redacted in 1 of 1 rows, such as default/cart",
        ]
    );
}

#[test]
fn places_of_redacted_values_are_shown_on_request() {
    let policy = "object.metadata.name == 'cart'";
    let finished = collect(&format!("\"{policy}\""), &["-o", "ndjson", "--show-redactions"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let places: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("redacted: ")).collect();
    assert_eq!(
        places,
        [
            "redacted: target default/pods: default/cart: spec.containers[0].env[0].value: the name beside it means a credential",
            "redacted: target default/pods: default/cart: spec.containers[0].env[1].value: a part of the text is a credential",
        ]
    );
}

#[test]
fn flags_add_names_take_names_out_and_leave_texts_alone() {
    let policy = "\"object.metadata.name == 'cart'\"";
    let env = |args: &[&str]| {
        let stdout = collect_all(policy, &[&["-o", "ndjson"], args].concat()).ok();
        let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        row["attributes"]["env"].clone()
    };
    let marker = serde_json::json!({ "reason": "sensitive-key", "redacted": true });
    let masked = "postgres://shop:***@db/shop";
    assert_eq!(env(&[]), serde_json::json!([marker, masked]));
    assert_eq!(env(&["--scrub-allow-keys", "db_password"]), serde_json::json!(["hunter2", masked]));
    assert_eq!(env(&["--scrub-texts=false"]), serde_json::json!([marker, "postgres://shop:hunter2@db/shop"]));
    assert_eq!(env(&["--scrub-keys", "_url"]), serde_json::json!([marker, marker]));
}

#[test]
fn a_policy_that_depends_on_a_redacted_value_is_undecided() {
    let policy = "object.spec.containers.exists(c, c.?env.orValue([]).exists(e, e.value == 'x'))";
    let finished = collect(&format!("\"{policy}\""), &["-o", "ndjson"]);
    assert_eq!((finished.code, &*finished.stdout), (3, ""), "{}", finished.stderr);
    assert_eq!(
        finished.stderr.lines().next().unwrap(),
        "undecided: target default/pods: matchPolicy depends on redacted values of default/cart: its row is neither added, changed nor \
         removed; let matchPolicy read other fields, or give --scrub-allow-keys"
    );
}
