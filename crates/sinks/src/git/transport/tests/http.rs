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
fn settings() -> Settings {
    let secret = vec![("username", GitHttp::USER.into()), ("password", GitHttp::PASSWORD.into())];
    Settings { ca: Some(GitHttp::shared().certificates().ca.clone()), secret, ..Settings::default() }
}

/// Answers each request on a separate connection, and returns the requests.
async fn script(answers: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/x.git", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            // No connection within the limit: the client has sent no further request.
            let Ok(accepted) = timeout(Duration::from_secs(10), listener.accept()).await else { break };
            let (mut stream, _) = accepted.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            asked.push(String::from_utf8(request).unwrap().to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        asked
    });
    (address, served)
}

fn status(line: &str, more: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn the_web_server_is_talked_to() {
    let server = GitHttp::shared().create("conversation").unwrap();
    conversation(&settings().remote(&GitHttp::shared().url("conversation")), &server).await;
}

#[tokio::test]
async fn without_tls_and_without_a_password_as_well() {
    let http = GitHttp::shared();
    for name in ["plain", "open"] {
        let server = http.create(name).unwrap();
        let remote = if name == "plain" {
            settings().remote(&http.plain_url(name))
        } else {
            Settings { secret: Vec::new(), ..settings() }.remote(&http.open_url(name))
        };
        conversation(&remote, &server).await;
    }
}

#[tokio::test]
async fn a_part_of_the_history_can_be_fetched() {
    GitHttp::shared().create("shallow").unwrap();
    shallow_history(&settings().remote(&GitHttp::shared().url("shallow"))).await;
}

#[tokio::test]
async fn a_hook_that_declines_is_told_from_a_quicker_push() {
    let server = GitHttp::shared().create("hooks").unwrap();
    rejections(&settings().remote(&GitHttp::shared().url("hooks")), &server).await;
}

#[tokio::test]
async fn large_packs_go_both_ways() {
    let server = GitHttp::shared().create("large").unwrap();
    large_packs(&settings().remote(&GitHttp::shared().url("large")), &server).await;
}

#[tokio::test]
async fn who_may_not_come_in_is_told_why() {
    let http = GitHttp::shared();
    http.create("guarded").unwrap();
    let url = http.url("guarded");
    let wrong = Settings { secret: vec![("token", "hunter2wrong".into())], ..settings() };
    assert_error(wrong.remote(&url).refs().await, SinkReason::Forbidden, &["does not accept", "HTTP 401"]);
    let nobody = Settings { secret: Vec::new(), ..settings() }.remote(&url);
    assert_error(nobody.refs().await, SinkReason::Forbidden, &["there are none", "spec.git.auth.secretRef"]);
    let ours = Local::new();
    let commit = ours.commit(None, b"1");
    let pushed = nobody.push(MAIN, NONE, commit, &[], ours.pack(commit, None)).await;
    assert_error(pushed, SinkReason::Forbidden, &["push to", "there are none"]);
    let missing = settings().remote(&http.url("missing")).refs().await;
    assert_error(missing, SinkReason::Missing, &["no such repository", "missing.git"]);
}

#[tokio::test]
async fn certificates_are_checked_both_ways() {
    let http = GitHttp::shared();
    http.create("certified").unwrap();
    let url = http.url("certified");
    let strangers = Settings { ca: None, ..settings() }.remote(&url).refs().await;
    assert_error(
        strangers,
        SinkReason::Incompatible,
        &["not signed by an authority that is trusted", "spec.tls.caBundle"],
    );
    let misnamed = settings().remote(&url.replace("localhost", "127.0.0.1")).refs().await;
    assert_error(misnamed, SinkReason::Incompatible, &["names other hosts"]);
    let anybody = Settings { ca: None, insecure: true, ..settings() };
    anybody.remote(&url).refs().await.unwrap();
    let plain = settings().remote(&http.plain_url("certified").replace("http:", "https:")).refs().await;
    assert_error(plain, SinkReason::Incompatible, &["does not speak TLS"]);

    let url = http.certified_url("certified");
    let secret = vec![
        ("tls.crt", http.certificates().client.clone()),
        ("tls.key", http.certificates().client_key.clone()),
    ];
    Settings { secret, ..settings() }.remote(&url).refs().await.unwrap();
    let without = settings().remote(&url).refs().await;
    assert_error(without, SinkReason::Forbidden, &["does not let us", "HTTP 403"]);
}

#[tokio::test]
async fn closed_addresses_are_not_connected_to() {
    let http = GitHttp::shared();
    http.create("closed").unwrap();
    for url in [http.url("closed"), http.url("closed").replace("localhost", "127.0.0.1")] {
        let remote = Settings { policy: guarded(), ..settings() }.remote(&url);
        assert_error(remote.refs().await, SinkReason::Forbidden, &["may not reach", "--allow-sink-cidrs"]);
    }
}

#[tokio::test]
async fn hosts_that_do_not_answer_are_named() {
    let free = kollect_testbed::free_port().unwrap();
    let refused = settings().remote(&format!("https://localhost:{free}/x")).refs().await;
    assert_error(refused, SinkReason::Unreachable, &["localhost", &free.to_string(), "refused"]);
    let unknown = settings().remote("https://git.invalid/x").refs().await;
    assert_error(unknown, SinkReason::Unreachable, &["resolve the host git.invalid"]);
}

#[tokio::test]
async fn credentials_wait_until_they_are_asked_for() {
    let ask = || status("401 Unauthorized", "WWW-Authenticate: Basic\r\n");
    let (url, served) = script(vec![ask(), ask()]).await;
    let outcome = settings().remote(&url).refs().await;
    assert_error(outcome, SinkReason::Forbidden, &["does not accept"]);
    let asked = served.await.unwrap();
    assert!(!asked[0].contains("authorization") && asked[1].contains("authorization: basic "), "{asked:?}");

    let (url, served) = script(vec![ask()]).await;
    let forced = Settings { force_basic_auth: true, ..settings() };
    assert_error(forced.remote(&url).refs().await, SinkReason::Forbidden, &["does not accept"]);
    assert!(served.await.unwrap()[0].contains("authorization: basic "));
}

#[tokio::test]
async fn a_redirect_takes_no_credentials_to_another_host() {
    let ask = status("401 Unauthorized", "WWW-Authenticate: Basic\r\n");
    let (other, at_other) = script(vec![ask]).await;
    let location = format!("Location: {other}/info/refs?service=git-upload-pack\r\n");
    let (url, served) = script(vec![status("302 Found", &location)]).await;
    let forced = Settings { force_basic_auth: true, ..settings() };
    let outcome = forced.remote(&url).refs().await;
    assert_error(outcome, SinkReason::Forbidden, &["after a redirect", "redirects to another one"]);
    assert!(served.await.unwrap()[0].contains("authorization: basic "));
    let asked = at_other.await.unwrap();
    assert!(
        asked[0].starts_with("get /x.git/info/refs?") && !asked[0].contains("authorization"),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_redirect_to_the_repository_elsewhere_is_followed() {
    let http = GitHttp::shared();
    let server = http.create("moved").unwrap();
    let url = http.plain_url("moved").replace("/moved", "/open/moved");
    let to = |service: &str| {
        status("301 Moved Permanently", &format!("Location: {url}/info/refs?service={service}\r\n"))
    };
    let (from, _served) = script(vec![to("git-receive-pack"), to("git-upload-pack")]).await;
    let remote = settings().remote(&from);
    let ours = Local::new();
    let commit = ours.commit(None, b"1");
    remote.push(MAIN, NONE, commit, &[], ours.pack(commit, None)).await.unwrap().unwrap();
    assert_eq!(server.git(&["show", "main:rows.json"]).unwrap(), "1");
    assert_eq!(remote.refs().await.unwrap().refs[MAIN], commit);
}

#[tokio::test]
async fn redirects_that_lead_nowhere_are_refused() {
    let policy = |api_servers: Vec<ApiServer>, denied: &[&str]| Policy {
        network: Network::Guarded(Guard {
            allowed: vec!["127.0.0.1/32".parse().unwrap(), "127.0.0.2/32".parse().unwrap()],
            denied: denied.iter().map(|range| range.parse().unwrap()).collect(),
            api_servers,
            ..Guard::default()
        }),
        files: crate::Files::Refused,
    };
    let api_server = ApiServer { host: "127.0.0.1".into(), port: 9 };
    let at = |host: &str| format!("http://{host}/x.git/info/refs?service=git-upload-pack");
    for (location, policy, reason, part) in [
        ("/login".into(), Policy::default(), SinkReason::Incompatible, "page to log in"),
        (at("127.0.0.3:9"), policy(Vec::new(), &[]), SinkReason::Forbidden, "loopback"),
        (
            at("127.0.0.2:9"),
            policy(Vec::new(), &["127.0.0.2/32"]),
            SinkReason::Forbidden,
            "--deny-sink-cidrs",
        ),
        (at("127.0.0.1:9"), policy(vec![api_server], &[]), SinkReason::Forbidden, "the API server"),
    ] {
        let (url, _served) = script(vec![status("302 Found", &format!("Location: {location}\r\n"))]).await;
        let outcome = Settings { policy, ..settings() }.remote(&url).refs().await;
        assert_error(outcome, reason, &[part]);
    }
    let (url, _served) = script(vec![status("200 OK", "Content-Type: text/html\r\n")]).await;
    assert_error(
        settings().remote(&url).refs().await,
        SinkReason::Incompatible,
        &["not that of a Git server"],
    );
    let (url, _served) = script(vec![status("503 Service Unavailable", "")]).await;
    assert_error(settings().remote(&url).refs().await, SinkReason::Unreachable, &["HTTP 503"]);
}

#[tokio::test]
async fn a_server_that_goes_away_in_the_middle_is_noticed() {
    let id = "1234567890123456789012345678901234567890";
    let line = format!("{id} {MAIN}\0side-band-64k report-status\n");
    let lines = format!("001e# service=git-upload-pack\n0000{:04x}{line}0000", line.len() + 4);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\n\
                Connection: close\r\n";
    let whole = format!("{head}Content-Length: {}\r\n\r\n{lines}", lines.len());
    let half = format!("{head}Content-Length: {}\r\n\r\n001e# service", lines.len());

    let (url, _served) = script(vec![half]).await;
    assert_error(settings().remote(&url).refs().await, SinkReason::Unreachable, &["list the refs of"]);

    let pack = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0008NAK\n000d\u{1}PACKdata";
    let (url, _served) = script(vec![whole, pack.to_owned()]).await;
    let remote = settings().remote(&url);
    let fetched = remote.fetch(Oid::from_str(id).unwrap(), &[], None, &[], Box::new(Kept::default()));
    assert_error(fetched.await, SinkReason::Unreachable, &["fetch from"]);
}
