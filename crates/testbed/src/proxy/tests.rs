//! Tests with a real API server: requests pass, are cut, refused, stalled or answered by the proxy.

use std::io::{BufRead as _, ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use super::*;
use crate::Grant;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is silent if nothing arrives for this time.
const SILENT_TIME: Duration = Duration::from_millis(300);
const WATCH: &str = "/api/v1/namespaces?watch=true";
const DEFAULT: &str = "/api/v1/namespaces/default";

/// The shared control plane, and a proxy of its own for each test.
fn start() -> (&'static ControlPlane, Proxy) {
    let plane = ControlPlane::shared();
    (plane, Proxy::start(plane).unwrap())
}

/// A client that has sent something.
fn send(proxy: &Proxy, text: &str) -> BufReader<TcpStream> {
    let mut client = TcpStream::connect(proxy.address).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(text.as_bytes()).unwrap();
    BufReader::new(client)
}

/// A client that has sent the head of a request as the administrator, but for the empty line.
fn request(proxy: &Proxy, line: &str, more: &str) -> BufReader<TcpStream> {
    let token = ControlPlane::shared().admin_token();
    send(proxy, &format!("{line} HTTP/1.1\r\nHost: proxy\r\nAuthorization: Bearer {token}\r\n{more}"))
}

fn get(proxy: &Proxy, path: &str) -> BufReader<TcpStream> {
    request(proxy, &format!("GET {path}"), "Connection: keep-alive\r\n\r\n")
}

/// Reads until the connection is closed.
fn read_to_end(client: &mut BufReader<TcpStream>) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

/// Reads up to the line that contains `text`.
fn read_to(client: &mut BufReader<TcpStream>, text: &str) {
    let found = client.lines().any(|line| line.unwrap().contains(text));
    assert!(found, "{text} did not come before the end");
}

/// A watch that has seen the namespace `default`.
fn watch(proxy: &Proxy, path: &str) -> BufReader<TcpStream> {
    let mut client = get(proxy, path);
    read_to(&mut client, r#""name":"default""#);
    client
}

/// Whether the connection is closed, in order or not.
fn is_closed(client: &mut BufReader<TcpStream>) -> bool {
    match client.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Whether the connection is open and nothing comes.
fn is_silent(client: &mut BufReader<TcpStream>) -> bool {
    client.get_ref().set_read_timeout(Some(SILENT_TIME)).unwrap();
    let outcome = client.fill_buf().map(<[u8]>::len);
    client.get_ref().set_read_timeout(Some(TIMEOUT)).unwrap();
    outcome.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Reads what was sent before a stall.
fn drain(client: &mut BufReader<TcpStream>) {
    while !is_silent(client) {
        let length = client.buffer().len();
        assert!(length > 0, "it is closed");
        client.consume(length);
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(5));
    }
    true
}

fn is_default(response: &str) -> bool {
    response.starts_with("HTTP/1.1 200 ") && response.contains(r#""name":"default""#)
}

#[test]
fn requests_are_forwarded_and_logged() {
    let (plane, proxy) = start();
    let namespace = plane.namespace("proxy").unwrap();
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));

    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let post = format!("POST {maps}");
    let object = |name: &str| json!({ "metadata": { "name": name } }).to_string();
    let kind = "Content-Type: application/json\r\n";
    let body = object("whole");
    let more = format!("{kind}Content-Length: {}\r\n\r\n{body}", body.len());
    let with_length = read_to_end(&mut request(&proxy, &post, &more));
    assert!(with_length.starts_with("HTTP/1.1 201 "), "{with_length}");
    let body = object("chunked");
    let (start, end) = body.split_at(5);
    let more = format!(
        "{kind}Transfer-Encoding: chunked\r\n\r\n5\r\n{start}\r\n{:x}\r\n{end}\r\n0\r\n\r\n",
        end.len()
    );
    let chunked = read_to_end(&mut request(&proxy, &post, &more));
    assert!(chunked.starts_with("HTTP/1.1 201 "), "{chunked}");
    plane.kubectl(&["get", "configmaps", "whole", "chunked", "-n", &namespace]).unwrap();

    let expected =
        [format!("GET {DEFAULT} HTTP/1.1"), format!("{post} HTTP/1.1"), format!("{post} HTTP/1.1")];
    assert_eq!(proxy.requests(), expected);
    assert_eq!(proxy.open(), 0);
}

#[test]
fn a_kubeconfig_leads_to_the_proxy() {
    let (plane, proxy) = start();
    let rules = [Grant::cluster("", &["namespaces"], &["get"])];
    let user = plane.user("default", "proxied", &rules).unwrap();
    let read = |path: &Path| -> Value { serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap() };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    for original in [plane.kubeconfig(), &user] {
        let copy = proxy.kubeconfig(original).unwrap();
        assert_eq!(mode(&copy), mode(original));
        let (before, config) = (read(original), read(&copy));
        assert_eq!(config["users"], before["users"]);
        assert_eq!(config["clusters"][0]["cluster"], json!({ "server": proxy.url() }));
        // Anonymous clients may get the version; kubectl does not send its token here.
        let version = ["get", "--raw=/version", "--kubeconfig", &copy.display().to_string()];
        assert!(plane.kubectl(&version).unwrap().contains("gitVersion"));
        let token = config["users"][0]["user"]["token"].as_str().unwrap();
        let with_token =
            format!("GET {DEFAULT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
        assert!(is_default(&read_to_end(&mut send(&proxy, &with_token))));
    }
    let error = proxy.kubeconfig(Path::new("/nonexistent")).unwrap_err().to_string();
    assert_eq!(error, "could not read the kubeconfig /nonexistent");
}

#[test]
fn events_of_a_watch_come_at_once_and_a_cut_ends_it() {
    let (plane, proxy) = start();
    let mut first = watch(&proxy, WATCH);
    let mut second = watch(&proxy, WATCH);
    let mut idle = send(&proxy, "");
    assert_eq!(proxy.open(), 2);
    let namespace = plane.namespace("watched").unwrap();
    read_to(&mut first, &namespace);
    read_to(&mut second, &namespace);

    // Otherwise the idle connection might not have been accepted yet.
    assert!(wait_until(|| proxy.shared.connections.admitted() == 3));
    proxy.cut();
    assert_eq!(proxy.open(), 0);
    assert!([&mut first, &mut second, &mut idle].into_iter().all(is_closed));
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));
}

#[test]
fn a_client_that_disconnects_is_noticed() {
    let (_, proxy) = start();
    let client = watch(&proxy, WATCH);
    assert_eq!(proxy.open(), 1);
    drop(client);
    assert!(wait_until(|| proxy.open() == 0));

    proxy.stall(true);
    let client = get(&proxy, WATCH);
    assert!(wait_until(|| proxy.open() == 1));
    drop(client);
    assert!(wait_until(|| proxy.open() == 0));
}

#[test]
fn connections_are_closed_while_clients_are_refused() {
    let (_, proxy) = start();
    let mut before = watch(&proxy, WATCH);
    proxy.refuse(true);
    assert!(is_closed(&mut before));
    for _ in 0..3 {
        assert!(is_closed(&mut send(&proxy, "")));
    }
    proxy.refuse(false);
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));
    assert_eq!(proxy.requests().len(), 2);
}

#[test]
fn a_stall_delays_all_bytes_until_it_ends() {
    let (plane, proxy) = start();
    let mut old = watch(&proxy, WATCH);
    let mut ending = watch(&proxy, &format!("{WATCH}&timeoutSeconds=2"));
    proxy.stall(true);
    drain(&mut old);
    drain(&mut ending);
    proxy.answer(1, |line| line.contains("/answered"), 503, &[], "");
    let namespace = plane.namespace("stalled").unwrap();
    let mut new = get(&proxy, DEFAULT);
    let mut answered = get(&proxy, "/answered");
    assert!(wait_until(|| proxy.requests().len() == 4));
    // Long enough for the API server to end the second watch.
    sleep(Duration::from_secs(3));
    assert!([&mut old, &mut ending, &mut new, &mut answered].into_iter().all(is_silent));
    assert_eq!(proxy.open(), 3);

    proxy.stall(false);
    read_to(&mut old, &namespace);
    assert!(is_default(&read_to_end(&mut new)));
    assert!(read_to_end(&mut answered).starts_with("HTTP/1.1 503 "));
    assert!(read_to_end(&mut ending).ends_with("\r\n0\r\n\r\n"), "the API server has ended it in order");
    assert_eq!(proxy.open(), 1);
}

#[test]
fn held_requests_do_not_delay_others() {
    let (_, proxy) = start();
    proxy.hold(|line| line.contains("/version"));
    let mut held = get(&proxy, "/version");
    assert!(wait_until(|| proxy.requests().len() == 1));
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));
    assert!(is_silent(&mut held));
    proxy.release();
    assert!(read_to_end(&mut held).contains("gitVersion"));
    assert!(read_to_end(&mut get(&proxy, "/version")).contains("gitVersion"), "released");
}

#[test]
fn a_client_that_does_not_read_does_not_delay_others() {
    let (_, proxy) = start();
    // More than fits into the buffers of the system.
    let body = "x".repeat(64 << 20);
    proxy.answer(1, |line| line.contains("/large"), 200, &[], &body);
    let mut slow = get(&proxy, "/large");
    slow.fill_buf().unwrap();
    sleep(SILENT_TIME);
    let started = Instant::now();
    proxy.stall(true);
    proxy.stall(false);
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));
    assert!(started.elapsed() < Duration::from_secs(2));
    let response = read_to_end(&mut slow);
    assert!(response.split_once("\r\n\r\n").is_some_and(|(_, received)| received == body));
}

#[test]
fn planned_answers_are_given_in_order_and_as_often_as_planned() {
    let (_, proxy) = start();
    let is_watch = |line: &str| line.starts_with("GET ") && line.contains("watch=true");
    proxy.answer(2, is_watch, 429, &[("Retry-After", "7")], "slow down");
    proxy.answer(1, is_watch, 410, &[], "gone");
    proxy.answer(0, |_| true, 500, &[], "never");
    let expected =
        "HTTP/1.1 429 \r\nContent-Length: 9\r\nConnection: close\r\nRetry-After: 7\r\n\r\nslow down";
    assert_eq!(read_to_end(&mut get(&proxy, WATCH)), expected);
    assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))));
    assert_eq!(read_to_end(&mut get(&proxy, WATCH)), expected);
    assert!(read_to_end(&mut get(&proxy, WATCH)).starts_with("HTTP/1.1 410 "));
    watch(&proxy, WATCH);
    assert_eq!(proxy.requests().len(), 5, "requests that the proxy answers are logged too");
}

#[test]
fn one_request_fails_before_or_after_the_api_server_handles_it() {
    let (plane, proxy) = start();
    let namespace = plane.namespace("proxy").unwrap();
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let (sender, failures) = std::sync::mpsc::channel();
    for (number, moment) in [(2, FailureMoment::BeforeServer), (3, FailureMoment::AfterServer)] {
        let (sender, maps) = (sender.clone(), maps.clone());
        let is_post = move |line: &str| line.starts_with(&format!("POST {maps}"));
        proxy.fail_nth(number, is_post, moment, move || sender.send(moment).unwrap());
    }
    let answers = ["a", "b", "c", "d"].map(|name| {
        let body = json!({ "metadata": { "name": name } }).to_string();
        let more = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        assert!(is_default(&read_to_end(&mut get(&proxy, DEFAULT))), "other requests do not fail");
        let mut client = request(&proxy, &format!("POST {maps}"), &more);
        let mut text = String::new();
        client.read_to_string(&mut text).map_or(String::new(), |_| text)
    });
    let answered = answers.map(|answer| answer.starts_with("HTTP/1.1 201 "));
    assert_eq!(answered, [true, false, false, true]);
    assert_eq!(
        failures.try_iter().collect::<Vec<_>>(),
        [FailureMoment::BeforeServer, FailureMoment::AfterServer]
    );
    let names = plane.kubectl(&["get", "configmaps", "-n", &namespace, "-o", "name"]).unwrap();
    assert_eq!(names, "configmap/a\nconfigmap/c\nconfigmap/d\n", "only one POST did not arrive");
}

#[test]
fn a_dropped_proxy_leaves_no_thread_port_or_file() {
    let (plane, proxy) = start();
    let address = proxy.address;
    let directory = proxy.scratch.path().to_owned();
    proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let mut idle = send(&proxy, "GET / HT");
    let mut open = watch(&proxy, WATCH);
    proxy.stall(true);
    let mut stalled = get(&proxy, WATCH);
    assert!(wait_until(|| proxy.open() == 2));
    let shared = Arc::downgrade(&proxy.shared);
    let started = Instant::now();
    drop(proxy);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(shared.upgrade().is_none(), "no thread uses it any more");
    assert!(!directory.exists());
    assert!([&mut idle, &mut open, &mut stalled].into_iter().all(is_closed));
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    TcpListener::bind(address).unwrap();
}

#[test]
fn clients_see_the_end_of_an_api_server_after_a_stall_and_reach_the_next_one() {
    let mut plane = ControlPlane::start().unwrap();
    let proxy = Proxy::start(&plane).unwrap();
    let as_admin =
        format!("HTTP/1.1\r\nHost: proxy\r\nAuthorization: Bearer {}\r\n\r\n", plane.admin_token());
    let mut watch = send(&proxy, &format!("GET {WATCH} {as_admin}"));
    read_to(&mut watch, r#""name":"default""#);
    proxy.stall(true);
    drain(&mut watch);
    plane.stop_api_server();
    let get = format!("GET {DEFAULT} {as_admin}");
    let mut early = send(&proxy, &get);
    assert!(is_silent(&mut watch) && is_silent(&mut early));
    proxy.stall(false);
    assert!(is_closed(&mut watch) && is_closed(&mut early));
    plane.start_api_server().unwrap();
    assert!(is_default(&read_to_end(&mut send(&proxy, &get))));
}
