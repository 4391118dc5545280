//! Servers on real sockets, with clients that trust one authority, are slow, or leave.

pub(super) mod client;

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Bytes, routing};
use client::{Authority, Connection, Mount, Notices, WAIT_LIMIT, endpoint, files, trusts_any_server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kollect_engine::tasks::Tasks;
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{self, Instant},
};

use super::{HttpServer, Limits, ListenEndpoint, ServerNotice, ServerTls};

fn hello_router() -> Router {
    Router::new()
        .route("/", routing::get(|| async { "hello" }))
        .route("/size", routing::post(|body: Bytes| async move { body.len().to_string() }))
}

async fn start(endpoint: ListenEndpoint) -> HttpServer {
    HttpServer::start(&Tasks::default(), endpoint, hello_router(), Notices::default().report()).await.unwrap()
}

fn limited(change: impl FnOnce(&mut Limits)) -> ListenEndpoint {
    let mut endpoint = endpoint(ServerTls::Off);
    change(&mut endpoint.limits);
    endpoint
}

#[tokio::test]
async fn a_swapped_certificate_is_served_to_new_connections_and_old_ones_go_on() {
    let authority = Authority::new();
    let (first, second) = (authority.issue(), authority.issue());
    let mut mount = Mount::new(&first);
    let notices = Notices::default();
    let server =
        HttpServer::start(&Tasks::default(), endpoint(mount.tls()), hello_router(), notices.report())
            .await
            .unwrap();
    let mut old = Connection::secure(server.address, authority.trusting()).await.unwrap();
    assert_eq!(old.certificate(), first.der);
    assert_eq!(old.get("/", "").await.body, "hello");

    mount.swap(&second.certificate, &second.key);
    assert!(matches!(notices.until(1).await, ServerNotice::CertificateReplaced(_)));
    assert_eq!(old.get("/", "").await.body, "hello");
    let mut new = Connection::secure(server.address, authority.trusting()).await.unwrap();
    assert_eq!(new.certificate(), second.der);
    assert_eq!(new.get("/", "").await.body, "hello");
    let other_authority = Authority::new().trusting();
    assert!(
        Connection::secure(server.address, other_authority).await.is_err(),
        "the client verifies certificates"
    );
}

#[tokio::test]
async fn a_broken_certificate_is_reported_once_and_the_old_one_stays() {
    let authority = Authority::new();
    let (first, second) = (authority.issue(), authority.issue());
    let mut mount = Mount::new(&first);
    let notices = Notices::default();
    let server =
        HttpServer::start(&Tasks::default(), endpoint(mount.tls()), hello_router(), notices.report())
            .await
            .unwrap();
    let served_certificate =
        || async { Connection::secure(server.address, authority.trusting()).await.unwrap().certificate() };

    mount.swap("not a certificate", &second.key);
    let ServerNotice::CertificateBroken(cause) = notices.until(1).await else {
        panic!("{:?}", notices.all())
    };
    assert!(cause.contains("tls.crt contains no certificate"), "{cause}");
    assert_eq!(served_certificate().await, first.der);
    mount.swap(&second.certificate, &first.key);
    let ServerNotice::CertificateBroken(cause) = notices.until(2).await else {
        panic!("{:?}", notices.all())
    };
    assert!(cause.contains("no usable pair"), "{cause}");
    assert!(!cause.contains("BEGIN"), "{cause}");
    assert_eq!(served_certificate().await, first.der);
    mount.swap(&second.certificate, &second.key);
    assert!(matches!(notices.until(3).await, ServerNotice::CertificateReplaced(_)), "{:?}", notices.all());
    assert_eq!(served_certificate().await, second.der);
}

#[tokio::test]
async fn errors_at_the_start_name_the_file_or_the_flag() {
    let failure = |endpoint: ListenEndpoint| async {
        let server =
            HttpServer::start(&Tasks::default(), endpoint, hello_router(), Notices::default().report()).await;
        format!("{:#}", server.err().expect("an error"))
    };
    let empty = tempfile::tempdir().unwrap();
    let missing = failure(endpoint(files(empty.path().into()))).await;
    assert!(missing.contains("tls.crt"), "{missing}");
    let running = start(endpoint(ServerTls::Off)).await;
    for address in [running.address.to_string(), "nonsense".to_owned()] {
        let error = failure(ListenEndpoint { address: address.clone(), ..endpoint(ServerTls::Off) }).await;
        assert!(error.contains(&format!("listen on {address} (--test-bind-address)")), "{error}");
    }
}

#[tokio::test]
async fn an_address_without_a_host_is_every_address() {
    let server = start(ListenEndpoint { address: ":0".into(), ..endpoint(ServerTls::Off) }).await;
    let address = ([127, 0, 0, 1], server.address.port()).into();
    assert_eq!(Connection::plain(address).await.get("/", "").await.body, "hello");
}

#[tokio::test]
async fn a_self_signed_server_uses_http_1_unless_http_2_is_enabled() {
    let offers = |protocols: &[&str]| {
        let mut config = trusts_any_server();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    };
    let server = start(endpoint(ServerTls::SelfSigned)).await;
    let mut both = Connection::secure(server.address, offers(&["h2", "http/1.1"])).await.unwrap();
    assert_eq!(both.protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(both.get("/", "").await.body, "hello");
    assert!(Connection::secure(server.address, offers(&["h2"])).await.is_err());
    let other_authority = Authority::new().trusting();
    assert!(Connection::secure(server.address, other_authority).await.is_err());

    let server = start(ListenEndpoint { http2: true, ..endpoint(ServerTls::SelfSigned) }).await;
    let both = Connection::secure(server.address, offers(&["h2", "http/1.1"])).await.unwrap();
    assert_eq!(both.protocol(), Some(&b"h2"[..]));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(both.stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("https://localhost/").body(axum::body::Body::empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    let mut without_alpn = Connection::secure(server.address, offers(&[])).await.unwrap();
    assert_eq!(without_alpn.get("/", "").await.body, "hello");
}

#[tokio::test]
async fn a_shutdown_finishes_running_requests_and_closes_the_others() {
    let (entered, proceed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enter, wait) = (entered.clone(), proceed.clone());
    let slow = routing::get(|| async move {
        enter.notify_one();
        wait.notified().await;
        "done"
    });
    let router = hello_router().route("/slow", slow);
    let server = HttpServer::start(
        &Tasks::default(),
        endpoint(ServerTls::SelfSigned),
        router,
        Notices::default().report(),
    )
    .await
    .unwrap();
    let address = server.address;
    let mut idle = Connection::secure(address, trusts_any_server()).await.unwrap();
    idle.get("/", "").await;
    let mut running = Connection::secure(address, trusts_any_server()).await.unwrap();
    running.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
    entered.notified().await;

    let shutdown = tokio::spawn(server.shutdown(WAIT_LIMIT));
    assert_eq!(idle.answer().await, None, "an idle connection is closed at once");
    assert!(TcpStream::connect(address).await.is_err());
    assert!(!shutdown.is_finished());
    proceed.notify_one();
    assert_eq!(running.answer().await.unwrap().body, "done");
    assert_eq!(shutdown.await.unwrap(), 0);
}

#[tokio::test]
async fn a_shutdown_cuts_what_is_not_finished_at_its_deadline() {
    let entered = Arc::new(Notify::new());
    let enter = entered.clone();
    let stuck = routing::get(|| async move {
        enter.notify_one();
        std::future::pending::<&str>().await
    });
    let router = Router::new().route("/", stuck);
    let server =
        HttpServer::start(&Tasks::default(), endpoint(ServerTls::Off), router, Notices::default().report())
            .await
            .unwrap();
    let mut running = Connection::plain(server.address).await;
    running.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    entered.notified().await;
    let started = Instant::now();
    let cut = time::timeout(WAIT_LIMIT, server.shutdown(Duration::from_millis(200))).await.unwrap();
    assert_eq!(cut, 1);
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(running.answer().await, None);
}

#[tokio::test]
async fn slow_clients_lose_their_connection() {
    let short = Duration::from_millis(200);
    let server = start(limited(|limits| limits.head = short)).await;
    let mut slow_head = Connection::plain(server.address).await;
    slow_head.send("GET / HTTP/1.1\r\nX-Slow: ").await;
    assert_ne!(slow_head.answer().await.map(|answer| answer.status), Some(200));
    let mut no_request = Connection::plain(server.address).await;
    assert_eq!(no_request.answer().await, None, "before the first request as well");
    let mut after_request = Connection::plain(server.address).await;
    assert_eq!(after_request.get("/", "").await.status, 200);
    assert_eq!(after_request.answer().await, None, "after a request it is no different");

    let server = start(limited(|limits| limits.request = short)).await;
    let mut slow_body = Connection::plain(server.address).await;
    slow_body.send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").await;
    assert_eq!(slow_body.answer().await.unwrap().status, 503);

    let mut secure = endpoint(ServerTls::SelfSigned);
    secure.limits.handshake = short;
    let server = start(secure).await;
    let mut no_request = Connection::plain(server.address).await;
    assert_eq!(no_request.answer().await, None);

    let server = start(limited(|limits| limits.age = short)).await;
    let mut old = Connection::plain(server.address).await;
    assert_eq!(old.get("/", "").await.status, 200);
    assert_eq!(old.answer().await, None, "a connection has a limited age");
}

#[tokio::test]
async fn large_requests_are_refused() {
    let server = start(limited(|limits| limits.body = 3 << 20)).await;
    let post = |length: usize| format!("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    let mut connection = Connection::plain(server.address).await;
    let fits = 3 << 20;
    connection.send(&format!("{}{}", post(fits), "x".repeat(fits))).await;
    assert_eq!(connection.answer().await.unwrap().body, fits.to_string());
    connection.send(&post(fits + 1)).await;
    assert_eq!(connection.answer().await.unwrap().status, 413, "before a byte of it was sent");

    // Without a length the limit is noticed while the body is read.
    let mut chunked = Connection::plain(server.address).await;
    let chunk = format!("{:x}\r\n{}\r\n", fits + 1, "x".repeat(fits + 1));
    chunked.send("POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    chunked.send(&chunk).await;
    assert_eq!(chunked.answer().await.unwrap().status, 413);

    let mut large_head = Connection::plain(server.address).await;
    large_head.send(&format!("GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}", "x".repeat(100 << 10))).await;
    assert_eq!(large_head.answer().await.unwrap().status, 431);
}

/// Only the limit of connections closes one.
fn crowded(tls: ServerTls) -> ListenEndpoint {
    let long = Duration::from_hours(1);
    let limits = Limits {
        connections: 4,
        handshake: long,
        head: long,
        request: long,
        age: long,
        ..endpoint(ServerTls::Off).limits
    };
    ListenEndpoint { limits, ..endpoint(tls) }
}

#[tokio::test]
async fn clients_that_send_nothing_or_half_a_request_do_not_block_other_clients() {
    let server = start(crowded(ServerTls::Off)).await;
    let incomplete_requests =
        ["", "GET / HTTP/1.1\r\nHost:", "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"];
    for incomplete in incomplete_requests {
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut connection = Connection::plain(server.address).await;
            connection.send(incomplete).await;
            held.push(connection);
        }
        assert_eq!(
            Connection::plain(server.address).await.get("/", "").await.body,
            "hello",
            "{incomplete:?}"
        );
        let first = held.first_mut().unwrap();
        assert_eq!(first.answer().await, None, "the one that has waited longest is closed: {incomplete:?}");
    }

    let server = start(crowded(ServerTls::SelfSigned)).await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(Connection::plain(server.address).await);
    }
    let mut connection = Connection::secure(server.address, trusts_any_server()).await.unwrap();
    assert_eq!(connection.get("/", "").await.body, "hello");
}

#[tokio::test]
async fn a_client_that_was_answered_lately_is_closed_after_those_that_wait_longer() {
    let notices = Notices::default();
    let server =
        HttpServer::start(&Tasks::default(), crowded(ServerTls::Off), hello_router(), notices.report())
            .await
            .unwrap();
    let mut used = Connection::plain(server.address).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::plain(server.address).await;
        assert_eq!(connection.get("/", "").await.status, 200);
        idle.push(connection);
    }
    assert_eq!(used.get("/", "").await.status, 200);
    assert_eq!(notices.all(), [], "there is room for four");
    let mut others = Vec::new();
    for connection in &mut idle {
        let mut other = Connection::plain(server.address).await;
        assert_eq!(other.get("/", "").await.status, 200);
        assert_eq!(connection.answer().await, None);
        others.push(other);
    }
    assert_eq!(used.get("/", "").await.status, 200);
    assert_eq!(notices.all(), [ServerNotice::Crowded(4)], "reported once, not for every connection");
}

#[tokio::test]
async fn requests_that_are_being_answered_are_finished_before_others_are_admitted() {
    let (entered, proceed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enter, wait) = (entered.clone(), proceed.clone());
    let slow = routing::post(|_: Bytes| async move {
        enter.notify_one();
        wait.notified().await;
        "done"
    });
    let mut endpoint = crowded(ServerTls::Off);
    endpoint.limits.connections = 1;
    let router = hello_router().route("/slow", slow);
    let server =
        HttpServer::start(&Tasks::default(), endpoint, router, Notices::default().report()).await.unwrap();
    let mut first = Connection::plain(server.address).await;
    first.send("POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab").await;
    entered.notified().await;
    let mut second = Connection::plain(server.address).await;
    second.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let waiting = tokio::spawn(async move { second.answer().await.unwrap().body });
    proceed.notify_one();
    assert_eq!(first.answer().await.unwrap().body, "done");
    assert_eq!(waiting.await.unwrap(), "hello");
}
