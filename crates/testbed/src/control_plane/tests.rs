//! One control plane, seen as its administrator and as a user with few rights.

use std::net::TcpListener;
use std::time::Instant;

use super::*;

const DEPLOYMENT: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: shop
spec:
  selector:
    matchLabels: { app: shop }
  template:
    metadata:
      labels: { app: shop }
    spec:
      containers:
        - name: shop
          image: registry.example/shop:1
";

#[test]
fn a_control_plane_enforces_rbac_restarts_and_deletes_namespaces() {
    Programs::find_or_build().unwrap();
    let started = Instant::now();
    let mut plane = ControlPlane::start().unwrap();
    println!("ready after {:?}", started.elapsed());
    let namespace = plane.namespace("shop").unwrap();
    let in_namespace = ["-n", namespace.as_str()];
    let apply = ["apply", "--server-side", "-f", "-"];
    plane.kubectl_with_input(&[&in_namespace[..], &apply].concat(), DEPLOYMENT).unwrap();

    let rules = [
        Grant::in_namespace(&namespace, "apps", &["deployments"], &["list"]),
        Grant::cluster("", &["namespaces"], &["get"]),
    ];
    let kubeconfig = plane.user(&namespace, "reader", &rules).unwrap();
    let kubeconfig = flag("kubeconfig", kubeconfig.display());
    let as_reader =
        |args: &[&str]| plane.kubectl(&[&[kubeconfig.as_str()], &in_namespace[..], args].concat());
    let names = as_reader(&["get", "deployments", "-o", "name"]).unwrap();
    assert_eq!(names, "deployment.apps/shop\n");
    as_reader(&["get", "namespace", &namespace]).unwrap();
    let refused = as_reader(&["get", "secrets"]).unwrap_err().to_string();
    assert!(refused.contains("Forbidden"), "{refused}");
    plane.user(&namespace, "stranger", &[]).unwrap();

    plane.stop_api_server();
    assert!(!plane.is_ready());
    plane.start_api_server().unwrap();

    plane.kubectl(&["delete", "namespace", &namespace, "--wait=false"]).unwrap();
    plane.wait(&["--for=delete", &format!("namespace/{namespace}")]).unwrap();
}

#[test]
fn a_missing_program_is_named_in_the_error() {
    let programs = Programs {
        kube_apiserver: "/nonexistent/kube-apiserver".into(),
        kube_controller_manager: "/nonexistent/kube-controller-manager".into(),
        kubectl: "/nonexistent/kubectl".into(),
        etcd: "/nonexistent/etcd".into(),
    };
    let error = ControlPlane::start_on(1, &programs, &[], None).unwrap_err().to_string();
    assert!(error.starts_with("etcd ended with status 127"), "{error}");
    assert!(error.contains("/nonexistent/etcd"), "{error}");
}

#[test]
fn a_taken_port_of_the_api_server_is_recognised() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = ControlPlane::start_on(port, &Programs::find_or_build().unwrap(), &[], None).unwrap_err();
    assert!(error.is_port_taken(), "{error}");
}

#[test]
fn compaction_forgets_history_and_flags_survive_a_restart() {
    let mut plane = ControlPlane::start_with(&["--feature-gates=WatchList=false"]).unwrap();
    let raw = |plane: &ControlPlane, path: &str| plane.kubectl(&["get", "--raw", path]);
    let list = raw(&plane, "/api/v1/namespaces?limit=1").unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let namespace = plane.namespace("later").unwrap();
    // Answered from etcd, because a restarted API server has no history of its own.
    let past = format!("/api/v1/namespaces?resourceVersionMatch=Exact&resourceVersion={version}");
    plane.start_api_server().unwrap();
    assert!(!raw(&plane, &past).unwrap().contains(&namespace));

    plane.stop_api_server();
    plane.compact_etcd().unwrap();
    plane.compact_etcd().unwrap();
    plane.start_api_server().unwrap();
    let error = raw(&plane, &past).unwrap_err().to_string();
    assert!(error.contains("(Expired)"), "{error}");
    let events = raw(&plane, "/api/v1/namespaces?watch=true&resourceVersion=1").unwrap();
    assert!(events.starts_with(r#"{"type":"ERROR""#) && events.contains(r#""code":410"#), "{events}");
    plane.kubectl(&["get", "namespace", &namespace]).unwrap();

    let has_watch_lists = |plane: &ControlPlane| {
        let metrics = raw(plane, "/metrics").unwrap();
        let line = metrics.lines().find(|line| line.contains(r#"name="WatchList""#)).unwrap();
        line.ends_with(" 1")
    };
    assert!(!has_watch_lists(&plane));
    plane.restart_api_server(&[]).unwrap();
    assert!(has_watch_lists(&plane));
}
