//! No error contains the answer of a server: a user who may write a sink could point it at any server and read it.

use kollect_model::sink::{SinkError, SinkSpec};
use kollect_sinks::{Plan, SinkPolicy, SinkSettings, Sinks, plan};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::postgres::{full_text, planned};

const MARKER: &str = "what-the-server-said";

/// A server that sends a greeting, and answers every request with the same bytes, once per connection.
async fn server(greeting: Vec<u8>, answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (greeting, answer) = (greeting.clone(), answer.clone());
            tokio::spawn(async move {
                stream.write_all(&greeting).await.ok();
                let mut request = [0; 4096];
                // Wait for the request before answering.
                if !stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    return;
                }
                stream.write_all(&answer).await.ok();
                stream.shutdown().await.ok();
                // Keep it open until the client has closed it: an early close could discard the answer.
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    port
}

/// The error of a sink at a server. It must not contain the server's text.
async fn refusal(plan: &Plan) -> SinkError {
    let mirrors = tempfile::tempdir().unwrap();
    let settings = SinkSettings { mirrors: Some(mirrors.path().to_owned()), ..SinkSettings::default() };
    let checked = match Sinks::new(&settings).open(plan, &SinkPolicy::default()).await {
        Ok(sink) => sink.check().await,
        Err(error) => Err(error),
    };
    let error = checked.unwrap_err();
    assert!(!full_text(&error).contains(MARKER), "{}", full_text(&error));
    error
}

/// A message of PostgreSQL: its type, its length and its fields.
fn message(message_type: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[message_type], &length.to_be_bytes()[..], body].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_contains_the_answer_of_a_postgresql_server() {
    let error = |code: &str| {
        let fields = format!("SFATAL\0C{code}\0M{MARKER}\0D{MARKER}\0H{MARKER}\0n{MARKER}\0\0");
        message(b'E', fields.as_bytes())
    };
    let mechanisms = format!("{MARKER}\0\0");
    let unknown_login = message(b'R', &[&10_u32.to_be_bytes()[..], mechanisms.as_bytes()].concat());
    for (answer, expected) in [
        (error("28P01"), "the server does not accept the password (SQLSTATE 28P01)"),
        (error("3D000"), "there is no such database (SQLSTATE 3D000)"),
        (error("53300"), "the server has too many connections (SQLSTATE 53300)"),
        (error("ZZ999"), "the server refused (SQLSTATE ZZ999)"),
        (error(MARKER), "the server refused (SQLSTATE unknown)"),
        (unknown_login, "the server does not accept the user and password of the Secret"),
        (format!("HTTP/1.1 400 {MARKER}\r\n\r\n").into(), "connect to PostgreSQL for table"),
        (message(b'R', MARKER.as_bytes()), "the answer is not that of a PostgreSQL server"),
    ] {
        let port = server(Vec::new(), answer).await;
        let dsn = format!("postgres://me:secret@127.0.0.1:{port}/shop?sslmode=disable");
        let error = refusal(&planned(&dsn, "public", "ensure")).await;
        assert!(full_text(&error).contains(expected), "{expected}: {}", full_text(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_contains_the_answer_of_a_nats_server() {
    let info = json!({
        "server_id": MARKER, "server_name": MARKER, "version": "2.10.0", "go": MARKER, "host": MARKER,
        "port": 1, "max_payload": 1_048_576, "proto": 1, "client_id": 1, "headers": true, "jetstream": true,
    });
    let info = format!("INFO {info}\r\n");
    for (greeting, answer) in [
        (info.clone(), format!("-ERR '{MARKER}'\r\n")),
        (info.clone(), format!("-ERR 'Authorization Violation: {MARKER}'\r\n")),
        (info.clone(), format!("{MARKER}\r\n")),
        (format!("INFO {{\"server_id\":\"{MARKER}\"\r\n"), String::new()),
        (format!("INFO {{\"port\":\"{MARKER}\"}}\r\n"), String::new()),
        (format!("HTTP/1.1 400 {MARKER}\r\n\r\n"), String::new()),
    ] {
        let port = server(greeting.into(), answer.into()).await;
        let spec =
            json!({ "type": "nats", "nats": { "url": format!("nats://127.0.0.1:{port}"), "subject": "a" } });
        refusal(&plan(&SinkSpec::Event(serde_json::from_value(spec).unwrap())).unwrap()).await;
    }
}

fn git(endpoint: &str, fields: Value) -> Plan {
    let mut spec = json!({ "type": "git", "endpoint": endpoint });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    plan(&SinkSpec::Snapshot(serde_json::from_value(spec).unwrap())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_contains_the_answer_of_a_git_server() {
    let http = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    };
    let text = "Content-Type: text/plain\r\n";
    let refs = "Content-Type: application/x-git-upload-pack-advertisement\r\n";
    let line = |text: &str| format!("{:04x}{text}", text.len() + 4);
    let other_path = "/x.git/info/refs?service=git-upload-pack\r\n";
    for (answer, expected) in [
        (http("403 Forbidden", text, MARKER), "denies access (HTTP 403)"),
        (http(&format!("500 {MARKER}"), text, MARKER), "the server failed (HTTP 500)"),
        (http("200 OK", refs, &line(&format!("ERR {MARKER}"))), "the server refused"),
        (http("200 OK", refs, &line(&format!("ERR {MARKER} not found"))), "no such repository"),
        (
            http("200 OK", refs, &format!("{}0000", line(&format!("{MARKER} {MARKER}\n")))),
            "not Git's protocol",
        ),
        (http("200 OK", &format!("Content-Type: {MARKER}\r\n"), MARKER), "not that of a Git server"),
        (http("302 Found", &format!("Location: /{MARKER}\r\n"), ""), "no repository"),
        (
            http("302 Found", &format!("Location: http://{MARKER}.invalid{other_path}"), ""),
            "resolve the host the server that it redirects to",
        ),
        (format!("SSH-2.0-{MARKER}\r\n{MARKER}\r\n"), "list the refs of"),
    ] {
        let port = server(Vec::new(), answer.into()).await;
        let error = refusal(&git(&format!("http://127.0.0.1:{port}/x.git"), json!({}))).await;
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}
