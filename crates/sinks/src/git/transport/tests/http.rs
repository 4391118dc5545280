//! Web servers: a real one, and scripted ones that misbehave or record requests.

use kollect_testbed::GitHttp;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
    time::{Duration, timeout},
};

use super::*;

/// Settings with the right certificate and password.
fn trusted_remote() -> TestRemote {
    let secret = vec![("username", GitHttp::USER.into()), ("password", GitHttp::PASSWORD.into())];
    TestRemote { ca: Some(GitHttp::shared().certificates().ca.clone()), secret, ..TestRemote::default() }
}

/// Answers each request on a separate connection, and returns the requests.
async fn scripted_server(answers: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/x.git", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let mut requests = Vec::new();
        for answer in answers {
            // No connection within the limit: the client has sent no further request.
            let Ok(accepted) = timeout(Duration::from_secs(10), listener.accept()).await else { break };
            let (mut stream, _) = accepted.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            requests.push(String::from_utf8(request).unwrap().to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        requests
    });
    (address, served)
}

fn status(line: &str, headers: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_repository_can_be_pushed_to_and_fetched_over_https() {
    let server = GitHttp::shared().create("conversation").unwrap();
    push_and_fetch(&trusted_remote().remote(&GitHttp::shared().url("conversation")), &server).await;
}

#[tokio::test]
async fn a_repository_can_be_used_without_tls_and_without_a_password() {
    let http = GitHttp::shared();
    for name in ["plain", "open"] {
        let server = http.create(name).unwrap();
        let remote = if name == "plain" {
            trusted_remote().remote(&http.plain_url(name))
        } else {
            TestRemote { secret: Vec::new(), ..trusted_remote() }.remote(&http.open_url(name))
        };
        push_and_fetch(&remote, &server).await;
    }
}

#[tokio::test]
async fn a_part_of_the_history_can_be_fetched_over_https() {
    GitHttp::shared().create("shallow").unwrap();
    shallow_history(&trusted_remote().remote(&GitHttp::shared().url("shallow"))).await;
}

#[tokio::test]
async fn a_declined_push_and_a_concurrent_push_are_different_errors_over_https() {
    let server = GitHttp::shared().create("hooks").unwrap();
    declined_and_concurrent_pushes(&trusted_remote().remote(&GitHttp::shared().url("hooks")), &server).await;
}

#[tokio::test]
async fn large_packs_are_pushed_and_fetched_over_https() {
    let server = GitHttp::shared().create("large").unwrap();
    large_packs(&trusted_remote().remote(&GitHttp::shared().url("large")), &server).await;
}

#[tokio::test]
async fn a_client_without_rights_gets_an_error_that_says_why() {
    let http = GitHttp::shared();
    http.create("guarded").unwrap();
    let url = http.url("guarded");
    let wrong = TestRemote { secret: vec![("token", "hunter2wrong".into())], ..trusted_remote() };
    assert_error(wrong.remote(&url).refs().await, SinkReason::Forbidden, &["does not accept", "HTTP 401"]);
    let unauthenticated = TestRemote { secret: Vec::new(), ..trusted_remote() }.remote(&url);
    assert_error(
        unauthenticated.refs().await,
        SinkReason::Forbidden,
        &["there are none", "spec.git.auth.secretRef"],
    );
    let ours = Local::new();
    let commit = ours.commit(None, b"1");
    let pushed = unauthenticated.push(MAIN, NONE, commit, &[], ours.pack(commit, None)).await;
    assert_error(pushed, SinkReason::Forbidden, &["push to", "there are none"]);
    let missing = trusted_remote().remote(&http.url("missing")).refs().await;
    assert_error(missing, SinkReason::Missing, &["no such repository", "missing.git"]);
}

#[tokio::test]
async fn certificates_of_server_and_client_are_checked() {
    let http = GitHttp::shared();
    http.create("certified").unwrap();
    let url = http.url("certified");
    let untrusted = TestRemote { ca: None, ..trusted_remote() }.remote(&url).refs().await;
    assert_error(
        untrusted,
        SinkReason::Incompatible,
        &["not signed by an authority that is trusted", "spec.tls.caBundle"],
    );
    let misnamed = trusted_remote().remote(&url.replace("localhost", "127.0.0.1")).refs().await;
    assert_error(misnamed, SinkReason::Incompatible, &["names other hosts"]);
    let any_server = TestRemote { ca: None, insecure: true, ..trusted_remote() };
    any_server.remote(&url).refs().await.unwrap();
    let plain = trusted_remote().remote(&http.plain_url("certified").replace("http:", "https:")).refs().await;
    assert_error(plain, SinkReason::Incompatible, &["does not use TLS"]);

    let url = http.certified_url("certified");
    let secret = vec![
        ("tls.crt", http.certificates().client.clone()),
        ("tls.key", http.certificates().client_key.clone()),
    ];
    TestRemote { secret, ..trusted_remote() }.remote(&url).refs().await.unwrap();
    let without = trusted_remote().remote(&url).refs().await;
    assert_error(without, SinkReason::Forbidden, &["denies access", "HTTP 403"]);
}

#[tokio::test]
async fn closed_addresses_are_not_connected_to_over_https() {
    let http = GitHttp::shared();
    http.create("closed").unwrap();
    for url in [http.url("closed"), http.url("closed").replace("localhost", "127.0.0.1")] {
        let remote = TestRemote { policy: guarded(), ..trusted_remote() }.remote(&url);
        assert_error(remote.refs().await, SinkReason::Forbidden, &["may not reach", "--allow-sink-cidrs"]);
    }
}

#[tokio::test]
async fn hosts_that_do_not_answer_are_named() {
    let free = kollect_testbed::free_port().unwrap();
    let refused = trusted_remote().remote(&format!("https://localhost:{free}/x")).refs().await;
    assert_error(refused, SinkReason::Unreachable, &["localhost", &free.to_string(), "refused"]);
    let unknown = trusted_remote().remote("https://git.invalid/x").refs().await;
    assert_error(unknown, SinkReason::Unreachable, &["resolve the host git.invalid"]);
}

#[tokio::test]
async fn credentials_are_sent_only_after_the_server_asks_for_them() {
    let unauthorized = || status("401 Unauthorized", "WWW-Authenticate: Basic\r\n");
    let (url, served) = scripted_server(vec![unauthorized(), unauthorized()]).await;
    let outcome = trusted_remote().remote(&url).refs().await;
    assert_error(outcome, SinkReason::Forbidden, &["does not accept"]);
    let requests = served.await.unwrap();
    assert!(
        !requests[0].contains("authorization") && requests[1].contains("authorization: basic "),
        "{requests:?}"
    );

    let (url, served) = scripted_server(vec![unauthorized()]).await;
    let forced = TestRemote { force_basic_auth: true, ..trusted_remote() };
    assert_error(forced.remote(&url).refs().await, SinkReason::Forbidden, &["does not accept"]);
    assert!(served.await.unwrap()[0].contains("authorization: basic "));
}

#[tokio::test]
async fn credentials_are_not_sent_to_another_host_after_a_redirect() {
    let unauthorized = status("401 Unauthorized", "WWW-Authenticate: Basic\r\n");
    let (other, other_served) = scripted_server(vec![unauthorized]).await;
    let location = format!("Location: {other}/info/refs?service=git-upload-pack\r\n");
    let (url, served) = scripted_server(vec![status("302 Found", &location)]).await;
    let forced = TestRemote { force_basic_auth: true, ..trusted_remote() };
    let outcome = forced.remote(&url).refs().await;
    assert_error(outcome, SinkReason::Forbidden, &["after a redirect", "redirects to another one"]);
    assert!(served.await.unwrap()[0].contains("authorization: basic "));
    let requests = other_served.await.unwrap();
    assert!(
        requests[0].starts_with("get /x.git/info/refs?") && !requests[0].contains("authorization"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_redirect_to_the_same_repository_at_another_address_is_followed() {
    let http = GitHttp::shared();
    let server = http.create("moved").unwrap();
    let url = http.plain_url("moved").replace("/moved", "/open/moved");
    let redirect_to = |service: &str| {
        status("301 Moved Permanently", &format!("Location: {url}/info/refs?service={service}\r\n"))
    };
    let (first_url, _served) =
        scripted_server(vec![redirect_to("git-receive-pack"), redirect_to("git-upload-pack")]).await;
    let remote = trusted_remote().remote(&first_url);
    let ours = Local::new();
    let commit = ours.commit(None, b"1");
    remote.push(MAIN, NONE, commit, &[], ours.pack(commit, None)).await.unwrap().unwrap();
    assert_eq!(server.git(&["show", "main:rows.json"]).unwrap(), "1");
    assert_eq!(remote.refs().await.unwrap().refs[MAIN], commit);
}

#[tokio::test]
async fn redirects_to_closed_servers_and_to_other_pages_are_refused() {
    let policy = |api_servers: Vec<ApiServer>, denied: &[&str]| SinkPolicy {
        network: Network::Guarded(AddressGuard {
            allowed: vec!["127.0.0.1/32".parse().unwrap(), "127.0.0.2/32".parse().unwrap()],
            denied: denied.iter().map(|range| range.parse().unwrap()).collect(),
            api_servers,
            ..AddressGuard::default()
        }),
        files: crate::FilePolicy::Refused,
    };
    let api_server = ApiServer { host: "127.0.0.1".into(), port: 9 };
    let refs_url = |host: &str| format!("http://{host}/x.git/info/refs?service=git-upload-pack");
    for (location, policy, reason, part) in [
        ("/login".into(), SinkPolicy::default(), SinkReason::Incompatible, "page to log in"),
        (refs_url("127.0.0.3:9"), policy(Vec::new(), &[]), SinkReason::Forbidden, "loopback"),
        (
            refs_url("127.0.0.2:9"),
            policy(Vec::new(), &["127.0.0.2/32"]),
            SinkReason::Forbidden,
            "--deny-sink-cidrs",
        ),
        (refs_url("127.0.0.1:9"), policy(vec![api_server], &[]), SinkReason::Forbidden, "the API server"),
    ] {
        let (url, _served) =
            scripted_server(vec![status("302 Found", &format!("Location: {location}\r\n"))]).await;
        let outcome = TestRemote { policy, ..trusted_remote() }.remote(&url).refs().await;
        assert_error(outcome, reason, &[part]);
    }
    let (url, _served) = scripted_server(vec![status("200 OK", "Content-Type: text/html\r\n")]).await;
    assert_error(
        trusted_remote().remote(&url).refs().await,
        SinkReason::Incompatible,
        &["not that of a Git server"],
    );
    let (url, _served) = scripted_server(vec![status("503 Service Unavailable", "")]).await;
    assert_error(trusted_remote().remote(&url).refs().await, SinkReason::Unreachable, &["HTTP 503"]);
}

#[tokio::test]
async fn a_server_that_closes_the_connection_early_is_an_error() {
    let id = "1234567890123456789012345678901234567890";
    let line = format!("{id} {MAIN}\0side-band-64k report-status\n");
    let lines = format!("001e# service=git-upload-pack\n0000{:04x}{line}0000", line.len() + 4);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\
                Connection: close\r\n";
    let complete = format!("{head}Content-Length: {}\r\n\r\n{lines}", lines.len());
    let incomplete = format!("{head}Content-Length: {}\r\n\r\n001e# service", lines.len());

    let (url, _served) = scripted_server(vec![incomplete]).await;
    assert_error(trusted_remote().remote(&url).refs().await, SinkReason::Unreachable, &["list the refs of"]);

    let pack = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0008NAK\n000d\u{1}PACKdata";
    let (url, _served) = scripted_server(vec![complete, pack.to_owned()]).await;
    let remote = trusted_remote().remote(&url);
    let fetched = remote.fetch(Oid::from_str(id).unwrap(), &[], None, &[], Box::new(ReceivedPack::default()));
    assert_error(fetched.await, SinkReason::Unreachable, &["fetch from"]);
}
