//! The parts of config/ fit together on a real API server: ports, Services, webhooks, network policies and
//! the size of volumes. Whether the operator works with them is tested in `install`.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kollect_testbed::ControlPlane;
use serde_json::{Value, json};

use crate::program::{kollect, root};

fn kustomize(plane: &ControlPlane, directory: &Path) -> Vec<Value> {
    let text = plane.kubectl(&["kustomize", directory.to_str().unwrap()]).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The objects of a directory, as the API server stores them. Asks it without storing them.
fn dry_run(plane: &ControlPlane, directory: &str) -> Vec<Value> {
    let directory = root().join(directory);
    let apply =
        ["apply", "--server-side", "--dry-run=server", "-o", "json", "-k", directory.to_str().unwrap()];
    let list: Value = serde_json::from_str(&plane.kubectl(&apply).unwrap()).unwrap();
    list["items"].as_array().unwrap().clone()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = of_kind(objects, kind).into_iter().find(|object| object["metadata"]["name"] == name);
    assert!(found.is_some(), "there is no {kind} {name}");
    found.unwrap()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn pod(objects: &[Value]) -> &Value {
    &named(objects, "Deployment", "kollect")["spec"]["template"]
}

fn container(objects: &[Value]) -> &Value {
    &pod(objects)["spec"]["containers"][0]
}

/// Names and numbers of the container's ports.
fn container_ports(objects: &[Value]) -> Vec<(&str, u64)> {
    let ports = items(&container(objects)["ports"]).iter();
    ports.map(|port| (port["name"].as_str().unwrap(), port["containerPort"].as_u64().unwrap())).collect()
}

fn selects(selector: &Value, objects: &[Value]) -> bool {
    let labels = &pod(objects)["metadata"]["labels"];
    selector.as_object().is_some_and(|selector| selector.iter().all(|(key, value)| labels[key] == *value))
}

/// Ports that a client can reach: every one of a Service is one of the container, and flags serve exactly these.
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
        items(&container(objects)["args"]).iter().map(|argument| argument.as_str().unwrap()).collect();
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
}

/// The Pod accepts connections at its ports only, and may connect to any address.
fn check_network_policy(objects: &[Value]) {
    let policies = of_kind(objects, "NetworkPolicy");
    assert_eq!(policies.len(), 1, "{policies:?}");
    let spec = &policies[0]["spec"];
    assert!(selects(&spec["podSelector"]["matchLabels"], objects), "{spec}");
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    assert_eq!(items(&spec["ingress"]).len(), 1, "{spec}");
    let rule = &spec["ingress"][0];
    assert_eq!(rule["from"], Value::Null, "an API server and a kubelet have no labels");
    let open: Vec<&str> = items(&rule["ports"]).iter().map(|port| port["port"].as_str().unwrap()).collect();
    let ports: Vec<&str> = container_ports(objects).into_iter().map(|(name, _)| name).collect();
    assert_eq!(open, ports);
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
    let limits: Vec<u64> = volumes
        .filter_map(|volume| volume.get("emptyDir"))
        .map(|volume| mebibytes(&volume["sizeLimit"]))
        .collect();
    let resources = &container(objects)["resources"];
    let storage = |kind: &str| mebibytes(&resources[kind]["ephemeral-storage"]);
    let files: u64 = limits.iter().sum();
    assert!(files > 0);
    assert!(
        storage("limits") > files,
        "logs need room as well, or the Pod is evicted before the volume is full"
    );
    assert!((1..=storage("limits")).contains(&storage("requests")));
}

fn check_all(objects: &[Value]) {
    check_ports(objects);
    check_network_policy(objects);
    check_volume_sizes(objects);
}

#[test]
fn ports_policies_and_volumes_of_the_manifests_fit_together() {
    let plane = ControlPlane::start().unwrap();
    for namespace in ["kollect-system", "team-a"] {
        plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let default = dry_run(&plane, "config/default");
    check_all(&default);
    assert!(of_kind(&default, "ValidatingWebhookConfiguration").is_empty());
    check_all(&dry_run(&plane, "config/tenant"));

    let webhook = dry_run(&plane, "config/webhook");
    check_all(&webhook);
    let configuration =
        named(&webhook, "ValidatingWebhookConfiguration", "kollect-validating-webhook-configuration");
    for hook in items(&configuration["webhooks"]) {
        let client = &hook["clientConfig"]["service"];
        let service = named(&webhook, "Service", client["name"].as_str().unwrap());
        assert_eq!(service["metadata"]["namespace"], client["namespace"]);
        let reached = items(&service["spec"]["ports"]).iter().find(|port| port["port"] == client["port"]);
        assert_eq!(reached.expect("the port of the Service")["targetPort"], "webhook");
    }
    assert_eq!(items(&configuration["webhooks"]).len(), 11);
    // What differs from the default is the certificate, the port and the flags.
    let flags = items(&container(&webhook)["args"]);
    assert!(!flags.contains(&json!("--validating-webhooks-enabled=false")), "{flags:?}");
    let mounts = items(&container(&webhook)["volumeMounts"]);
    let certificate = mounts.iter().find(|mount| mount["name"] == "webhook-certificate").unwrap();
    assert_eq!(certificate["mountPath"], "/tmp/k8s-webhook-server/serving-certs");
    let volumes = items(&pod(&webhook)["spec"]["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == "webhook-certificate").unwrap();
    assert_eq!(volume["secret"]["secretName"], "kollect-webhook-server-cert");
}

#[test]
fn the_authority_of_a_certificate_reaches_every_webhook() {
    let plane = ControlPlane::start().unwrap();
    let shipped = kustomize(&plane, &root().join("config/webhook"));
    let copy = tempfile::tempdir().unwrap();
    copy_directory(&root().join("config"), copy.path());
    let directory = copy.path().join("webhook");
    let authority = plane.ca_pem();
    fs::write(directory.join("own-certificate/ca.crt"), authority).unwrap();
    let with_authority = kustomize(&plane, &directory);
    assert_eq!(
        of_kind(&with_authority, "Secret"),
        of_kind(&shipped, "Secret"),
        "the file is for the webhooks only"
    );
    plane.apply(&of_kind(&with_authority, "ValidatingWebhookConfiguration")[0].to_string()).unwrap();
    let get =
        ["get", "validatingwebhookconfiguration", "kollect-validating-webhook-configuration", "-o", "json"];
    let stored: Value = serde_json::from_str(&plane.kubectl(&get).unwrap()).unwrap();
    assert_eq!(items(&stored["webhooks"]).len(), 11);
    for hook in items(&stored["webhooks"]) {
        let bundle = hook["clientConfig"]["caBundle"].as_str().unwrap();
        assert_eq!(BASE64_STANDARD.decode(bundle).unwrap(), authority.as_bytes());
    }

    let kustomization = fs::read_to_string(directory.join("kustomization.yaml")).unwrap();
    let kustomization = kustomization.replace("- own-certificate", "- cert-manager");
    fs::write(directory.join("kustomization.yaml"), kustomization).unwrap();
    let rendered = kustomize(&plane, &directory);
    let certificate = of_kind(&rendered, "Certificate")[0];
    let (name, namespace) = (&certificate["metadata"]["name"], &certificate["metadata"]["namespace"]);
    let issuer = of_kind(&rendered, "Issuer")[0];
    assert_eq!(certificate["spec"]["issuerRef"]["name"], issuer["metadata"]["name"]);
    let configuration = of_kind(&rendered, "ValidatingWebhookConfiguration")[0];
    assert_eq!(
        configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"],
        format!("{}/{}", namespace.as_str().unwrap(), name.as_str().unwrap())
    );
    assert!(items(&configuration["webhooks"]).iter().all(|hook| hook["clientConfig"]["caBundle"].is_null()));
    let volumes = items(&pod(&rendered)["spec"]["volumes"]);
    assert!(volumes.iter().any(|volume| volume["secret"]["secretName"] == certificate["spec"]["secretName"]));
    let service = &configuration["webhooks"][0]["clientConfig"]["service"];
    let host =
        format!("{}.{}.svc", service["name"].as_str().unwrap(), service["namespace"].as_str().unwrap());
    assert!(items(&certificate["spec"]["dnsNames"]).contains(&json!(host)));
}

fn copy_directory(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
