//! The guard before a real server, with tokens and rules of a real API server.

use std::{net::SocketAddr, path::Path, time::Duration};

use axum::{Router, routing};
use http::HeaderMap;
use kollect_engine::tasks::Tasks;
use kollect_testbed::{ControlPlane, Grant, Proxy};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    super::{
        AccessGuard, HttpServer, ServerNotice, ServerTls,
        tests::client::{Connection, Notices, endpoint, eventually},
    },
    ExpiringCache, bearer, key,
};

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A server with `/metrics` and `/other` behind a guard that sends its reviews with this kubeconfig.
async fn guarded(kubeconfig: &Path, notices: &Notices) -> HttpServer {
    let router = Router::new()
        .route("/metrics", routing::get(|| async { "numbers" }).post(|| async { "written" }))
        .route("/other", routing::get(|| async { "other" }));
    let guard = AccessGuard::new(client(kubeconfig).await, notices.report());
    HttpServer::start(&Tasks::default(), endpoint(ServerTls::Off), guard.protect(router), notices.report())
        .await
        .unwrap()
}

async fn status(address: SocketAddr, method: &str, path: &str, headers: &str) -> u16 {
    let mut connection = Connection::plain(address).await;
    connection.send(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")).await;
    connection.answer().await.unwrap().status
}

fn bearer_header(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn token(plane: &ControlPlane, namespace: &str, account: &str) -> String {
    plane.kubectl(&["create", "token", account, "-n", namespace]).unwrap().trim().to_owned()
}

/// Grants `get` on `/metrics`, and waits until the API server knows.
async fn grant(plane: &ControlPlane, namespace: &str, account: &str) {
    let name = format!("{namespace}-metrics");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": [{ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
    });
    plane.apply(&role.to_string()).unwrap();
    plane.apply(&binding.to_string()).unwrap();
    let user = format!("--as=system:serviceaccount:{namespace}:{account}");
    eventually("the rule", || plane.kubectl(&["auth", "can-i", "get", "/metrics", &user]).is_ok()).await;
}

fn reviews(proxy: &Proxy) -> usize {
    proxy.requests().iter().filter(|line| line.contains("reviews")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_users_with_the_right_to_the_path_get_an_answer() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("guard").unwrap();
    let rules = [
        Grant::cluster("authentication.k8s.io", &["tokenreviews"], &["create"]),
        Grant::cluster("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ];
    let operator = plane.user(&namespace, "operator", &rules).unwrap();
    plane.user(&namespace, "reader", &[]).unwrap();
    grant(plane, &namespace, "reader").await;
    let (reader, operator_token) = (token(plane, &namespace, "reader"), token(plane, &namespace, "operator"));
    let notices = Notices::default();
    let server = guarded(&operator, &notices).await;

    let address = server.address;
    let answer = Connection::plain(address).await.get("/metrics", &bearer_header(&reader)).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "numbers"));
    assert_eq!(status(address, "GET", "/other", &bearer_header(&reader)).await, 403);
    assert_eq!(status(address, "POST", "/metrics", &bearer_header(&reader)).await, 403, "get is not post");
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&operator_token)).await, 403);
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&format!("{reader}x"))).await, 401);
    assert_eq!(status(address, "GET", "/missing", "").await, 401, "not 404 without a token");
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(plane.admin_token())).await, 200);
    assert_eq!(notices.all(), []);

    let garbled = [
        String::new(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("Authorization: {reader}\r\n"),
        format!("Authorization: Basic {reader}\r\n"),
        "Authorization: Bearer a b\r\n".to_owned(),
        format!("{0}{0}", bearer_header(&reader)),
        bearer_header(&"x".repeat(20 << 10)),
    ];
    let mut answers = Vec::new();
    for headers in &garbled {
        let answer = Connection::plain(address).await.get("/metrics", headers).await;
        let head = answer.head.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>();
        answers.push((answer.status, head.join("\n"), answer.body.clone()));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(answers[0].0, 401);
    assert!(answers[0].1.contains("www-authenticate: bearer"), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_are_cached_and_failed_reviews_are_not() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("remember").unwrap();
    plane.user(&namespace, "reader", &[]).unwrap();
    grant(plane, &namespace, "reader").await;
    let reader = token(plane, &namespace, "reader");
    let proxy = Proxy::start(plane).unwrap();
    let notices = Notices::default();
    let server = guarded(&proxy.kubeconfig(plane.kubeconfig()).unwrap(), &notices).await;
    let address = server.address;

    proxy.refuse(true);
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&reader)).await, 500);
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&reader)).await, 500);
    let reported = notices.all();
    assert!(
        matches!(&reported[..], [ServerNotice::ReviewFailed(cause)] if cause.contains("TokenReview")),
        "{reported:?}"
    );
    assert!(!format!("{reported:?}").contains(&reader));
    assert_eq!(status(address, "GET", "/metrics", "").await, 401, "needs no review");
    proxy.refuse(false);

    // A failed second review counts as no answer.
    proxy.answer(1, |line| line.contains("subjectaccessreviews"), 403, &[], "{}");
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&reader)).await, 500);
    let before = reviews(&proxy);
    assert_eq!(status(address, "GET", "/metrics", &bearer_header(&reader)).await, 200);
    assert_eq!(reviews(&proxy), before + 2);
    for _ in 0..5 {
        assert_eq!(status(address, "GET", "/metrics", &bearer_header(&reader)).await, 200);
    }
    assert_eq!(reviews(&proxy), before + 2, "remembered");

    let before = reviews(&proxy);
    let unknown = format!("{reader}x");
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(status(address, "GET", "/metrics", &bearer_header(&unknown)).await, 401);
    }
    if started.elapsed() < super::REFUSED_LIFETIME {
        assert_eq!(reviews(&proxy), before + 1, "an unknown token needs one review");
    }
    // A refusal is cached only for a short time.
    let reviewed_again = async {
        while reviews(&proxy) < before + 2 {
            assert_eq!(status(address, "GET", "/metrics", &bearer_header(&unknown)).await, 401);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(4 * super::REFUSED_LIFETIME, reviewed_again).await.unwrap();
}

#[test]
fn a_full_cache_removes_the_least_recently_used_entry() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let name = |number: u32| key(&number.to_string(), "get", "/metrics");
    let mut cache = ExpiringCache::new(3);
    (0..3).for_each(|number| cache.put(name(number), number, at(u64::from(number)), at(100)));
    assert_eq!(cache.get(&name(0), at(3)), Some(0));
    cache.put(name(3), 3, at(4), at(10));
    assert_eq!(cache.len(), 3);
    assert_eq!(cache.get(&name(1), at(5)), None, "the least recently used");
    assert_eq!(cache.get(&name(0), at(5)), Some(0));
    assert_eq!(cache.get(&name(3), at(10)), None, "expired");
    cache.put(name(4), 4, at(11), at(100));
    assert_eq!(cache.len(), 3, "the expired one left first");
    assert_eq!(cache.get(&name(2), at(12)), Some(2));
    for number in 0..1000 {
        cache.put(name(number), number, at(20), at(100));
    }
    assert_eq!(cache.len(), 3);
}

#[test]
fn different_tokens_paths_and_verbs_have_different_cache_keys() {
    let keys = [key("a", "get", "/b"), key("a", "get", "/"), key("ba", "get", "/"), key("a", "post", "/b")];
    for (index, one) in keys.iter().enumerate() {
        assert!(keys.iter().skip(index + 1).all(|other| one != other));
    }
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "bEaReR abc.def-_=".parse().unwrap());
    assert_eq!(bearer(&headers), Some("abc.def-_="));
}
