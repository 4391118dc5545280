//! The generated definitions on a real API server: accepted, explained, and every rule enforced.

use std::{fs, sync::OnceLock};

use kollect_testbed::ControlPlane;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::program::{kollect, root, sample_file};

const KINDS: [&str; 11] = [
    "kollectprofiles",
    "kollecttargets",
    "kollectclustertargets",
    "kollectinventories",
    "kollectclusterinventories",
    "kollectsnapshotsinks",
    "kollectdatabasesinks",
    "kollecteventsinks",
    "kollectscopes",
    "kollectclusterscopes",
    "kollectconnectiontests",
];

/// The shared control plane with all kinds of Kollect and the namespaces of the samples.
pub(crate) fn with_kinds() -> &'static ControlPlane {
    static READY: OnceLock<&'static ControlPlane> = OnceLock::new();
    READY.get_or_init(|| {
        let plane = ControlPlane::shared();
        let bases = root().join("config/crd/bases");
        plane.kubectl(&["apply", "--server-side", "-f", bases.to_str().unwrap()]).unwrap();
        // By name: other tests remove definitions of their own meanwhile.
        let names = KINDS.map(|kind| format!("crd/{kind}.kollect.dev"));
        let names = names.each_ref().map(String::as_str);
        plane.wait(&[&["--for=condition=Established"], &names[..]].concat()).unwrap();
        plane.kubectl(&["create", "namespace", "team-a"]).unwrap();
        plane.kubectl(&["create", "namespace", "kollect-system"]).unwrap();
        plane
    })
}

#[test]
fn every_flag_that_a_definition_names_exists() {
    let help = kollect(["operator", "--help"]).ok();
    let is_in_flag = |letter: char| letter.is_ascii_lowercase() || letter == '-';
    for base in fs::read_dir(root().join("config/crd/bases")).unwrap() {
        let text = fs::read_to_string(base.unwrap().path()).unwrap();
        for rest in text.split(" --").skip(1) {
            let flag: String =
                "--".chars().chain(rest.chars().take_while(|letter| is_in_flag(*letter))).collect();
            assert!(help.contains(&format!("{flag} ")), "{flag} is not in the help of the operator");
        }
    }
}

async fn client(plane: &ControlPlane) -> Client {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn sample(name: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(sample_file(name)).unwrap()).unwrap()
}

/// Sends an object as kubectl does, with unknown fields as errors. An error is the message of the API server.
async fn send(client: &Client, method: &str, object: &Value, dry_run: bool) -> Result<Value, String> {
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural =
        if kind.ends_with('y') { format!("{}ies", kind.trim_end_matches('y')) } else { format!("{kind}s") };
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .map(|namespace| format!("namespaces/{namespace}/"))
        .unwrap_or_default();
    let name = match method {
        "PUT" => format!("/{}", object["metadata"]["name"].as_str().unwrap()),
        _ => String::new(),
    };
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let uri = format!("/apis/kollect.dev/v1alpha1/{namespace}{plural}{name}?fieldValidation=Strict{dry_run}");
    let request = http::Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object).unwrap())
        .unwrap();
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    })
}

#[test]
fn printed_definitions_are_the_committed_ones() {
    let mut files: Vec<_> =
        fs::read_dir(root().join("config/crd/bases")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let printed = kollect(["crds"]).ok();
    let mut documents: Vec<&str> = printed.split_inclusive("---\n").collect();
    documents.retain(|document| *document != "---\n");
    assert_eq!(documents.len(), files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        assert!(printed.contains(&text), "{}", file.display());
    }
}

#[test]
fn kubectl_explains_every_kind() {
    let plane = with_kinds();
    for kind in KINDS {
        let text = plane.kubectl(&["explain", "--recursive", kind]).unwrap();
        assert!(text.contains("spec"), "{text}");
    }
    let field = plane.kubectl(&["explain", "kollectprofiles.spec.attributes.path"]).unwrap();
    assert!(field.contains("kubectl JSONPath"), "{field}");
    for short in
        ["kprof", "ktgt", "kctgt", "kinv", "kcinv", "ksnap", "kdb", "kevt", "kscope", "kcscope", "kconntest"]
    {
        plane.kubectl(&["get", short, "-A"]).unwrap();
    }
    let resources = plane.kubectl(&["api-resources", "--categories=kollect", "-o", "name"]).unwrap();
    assert_eq!(resources.lines().count(), KINDS.len(), "{resources}");
}

#[test]
fn samples_are_accepted_by_kubectl() {
    let plane = with_kinds();
    for group in ["config/samples", "config/samples/more"] {
        let group = root().join(group);
        plane
            .kubectl(&["apply", "--server-side", "--dry-run=server", "-k", group.to_str().unwrap()])
            .unwrap();
    }
}

#[derive(Deserialize)]
struct Case {
    base: String,
    #[serde(default)]
    patch: Value,
    update: Option<Value>,
    expect: Option<String>,
    server: Option<String>,
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

#[tokio::test]
async fn every_rule_is_enforced_by_the_api_server() {
    let client = client(with_kinds()).await;
    let file = root().join("crates/kollect/testdata/refused.yaml");
    let cases: Vec<Case> = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let mut object = sample(&case.base);
        let answer = match &case.update {
            Some(update) => {
                object["metadata"]["name"] = "updated".into();
                let mut stored = send(&client, "POST", &object, false).await.unwrap();
                merge(&mut stored, update);
                send(&client, "PUT", &stored, true).await
            }
            None => {
                merge(&mut object, &case.patch);
                send(&client, "POST", &object, true).await
            }
        };
        let expected = case.expect.or(case.server).unwrap();
        match answer {
            Err(message) if message.contains(&expected) => {}
            other => wrong.push(format!(
                "{} {} {:?}: expected {expected:?}, got {other:?}",
                case.base, case.patch, case.update
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn an_object_older_than_a_rule_can_still_lose_its_finalizer() {
    // The rule comes after the object: both live in a kind of their own, so that no other test sees it.
    let plane = with_kinds();
    let text =
        fs::read_to_string(root().join("config/crd/bases/kollect.dev_kollectinventories.yaml")).unwrap();
    let mut definition: Value = serde_saphyr::from_str(&text).unwrap();
    definition["metadata"]["name"] = "oldinventories.kollect.dev".into();
    definition["spec"]["names"] =
        json!({ "kind": "OldInventory", "plural": "oldinventories", "singular": "oldinventory" });
    let rules = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"].take();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([]);
    plane.apply(&definition.to_string()).unwrap();
    plane.wait(&["crd/oldinventories.kollect.dev", "--for=condition=Established"]).unwrap();
    let namespace = plane.namespace("q3").unwrap();
    let old = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": "OldInventory",
        "metadata": { "name": "old", "namespace": namespace, "finalizers": ["kollect.dev/inventory-cleanup"] },
        "spec": { "httpEndpoint": { "enabled": true } },
    });
    plane.apply(&old.to_string()).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        rules;
    plane.apply(&definition.to_string()).unwrap();
    let mut refused = old.clone();
    refused["metadata"]["name"] = "new".into();
    // The API server needs a moment to use the new schema.
    for _ in 0..100 {
        if plane.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &refused.to_string()).is_err()
        {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(
        plane.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &refused.to_string()).is_err()
    );
    plane.kubectl(&["delete", "oldinventory/old", "-n", &namespace, "--wait=false"]).unwrap();
    plane
        .kubectl(&[
            "patch",
            "oldinventory/old",
            "-n",
            &namespace,
            "--type=merge",
            "-p",
            r#"{"metadata":{"finalizers":null}}"#,
        ])
        .unwrap();
    plane.wait(&["oldinventory/old", "-n", &namespace, "--for=delete"]).unwrap();
}
