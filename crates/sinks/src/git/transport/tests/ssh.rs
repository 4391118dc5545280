//! The SSH server of this machine.

use kollect_testbed::{GitSsh, git::ClientKey};

use super::*;

/// A key that no server here has.
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS";

fn with(key: &ClientKey, known_hosts: impl Into<String>) -> Settings {
    let mut secret = vec![("ssh-privatekey", key.private.clone()), ("known_hosts", known_hosts.into())];
    secret.extend(key.passphrase.map(|phrase| ("passphrase", phrase.to_owned())));
    Settings { secret, ..Settings::default() }
}

/// Settings with an accepted key and the known host.
fn settings() -> Settings {
    with(&GitSsh::shared().keys()[0], GitSsh::shared().known_hosts())
}

#[tokio::test]
async fn the_ssh_server_is_talked_to() {
    let server = GitSsh::shared().create("conversation").unwrap();
    conversation(&settings().remote(&GitSsh::shared().url("conversation")), &server).await;
}

#[tokio::test]
async fn a_part_of_the_history_can_be_fetched() {
    GitSsh::shared().create("shallow").unwrap();
    shallow_history(&settings().remote(&GitSsh::shared().url("shallow"))).await;
}

#[tokio::test]
async fn a_hook_that_declines_is_told_from_a_quicker_push() {
    let server = GitSsh::shared().create("hooks").unwrap();
    rejections(&settings().remote(&GitSsh::shared().url("hooks")), &server).await;
}

#[tokio::test]
async fn large_packs_go_both_ways() {
    let server = GitSsh::shared().create("large").unwrap();
    large_packs(&settings().remote(&GitSsh::shared().url("large")), &server).await;
}

#[tokio::test]
async fn every_kind_of_key_opens_the_door_and_strangers_stay_outside() {
    let ssh = GitSsh::shared();
    ssh.create("keys").unwrap();
    let url = ssh.url("keys");
    let kinds: Vec<_> = ssh.keys().iter().map(|key| (key.kind, key.passphrase.is_some())).collect();
    assert_eq!(kinds, [("ed25519", false), ("ecdsa", false), ("rsa", false), ("ed25519", true)]);
    for key in ssh.keys() {
        with(key, ssh.known_hosts()).remote(&url).refs().await.unwrap();
    }
    let refused = with(ssh.stranger(), ssh.known_hosts()).remote(&url).refs().await;
    assert_error(
        refused,
        SinkReason::Forbidden,
        &["does not accept the key SHA256:", "ed25519", "for the user"],
    );
}

#[test]
fn a_passphrase_must_be_there_and_right() {
    let ssh = GitSsh::shared();
    let locked = &ssh.keys()[3];
    for (passphrase, part) in [(None, "add it"), (Some("hunter2"), "does not open")] {
        let key = ClientKey { passphrase, ..locked.clone() };
        let problem = with(&key, ssh.known_hosts()).config(&ssh.url("x")).unwrap_err();
        assert!(problem.contains(part) && !problem.contains("hunter2"), "{problem}");
    }
}

#[tokio::test]
async fn hosts_must_be_known() {
    let ssh = GitSsh::shared();
    ssh.create("hosts").unwrap();
    let url = ssh.url("hosts");
    let key = &ssh.keys()[0];
    let name = format!("[localhost]:{}", ssh.port());
    // The server is asked for the key that is known, whichever of its keys that is.
    for known in ssh.host_keys().iter().map(|host_key| format!("{name} {host_key}")) {
        with(key, known).remote(&url).refs().await.unwrap();
    }
    with(key, ssh.hashed_known_hosts().unwrap()).remote(&url).refs().await.unwrap();

    let elsewhere = format!("git.example {}", ssh.host_keys()[0]);
    let unknown = with(key, elsewhere.clone()).remote(&url).refs().await;
    assert_error(unknown, SinkReason::Incompatible, &["UNKNOWN", "SHA256:", "ssh-keyscan"]);
    let changed = with(key, format!("{name} {OTHER}")).remote(&url).refs().await;
    assert_error(changed, SinkReason::Incompatible, &["CHANGED", "SHA256:"]);
    let revoked = format!("{}@revoked * {}", ssh.known_hosts(), ssh.host_keys()[0]);
    let revoked = with(key, revoked).remote(&url).refs().await;
    assert_error(revoked, SinkReason::Incompatible, &["revoked"]);

    let anybody = Settings { insecure: true, ..with(key, elsewhere) };
    anybody.remote(&url).refs().await.unwrap();
    let mut without = settings();
    without.secret.retain(|(key, _)| *key != "known_hosts");
    let problem = without.config(&url).unwrap_err();
    assert!(problem.contains("known_hosts") && problem.contains("insecureSkipVerify"), "{problem}");
}

#[tokio::test]
async fn what_is_not_there_is_missing() {
    let ssh = GitSsh::shared();
    let remote = settings().remote(&ssh.url("nothing"));
    assert_error(remote.refs().await, SinkReason::Missing, &["there is no such repository"]);
    let quoted = settings().remote(&ssh.url("it's;%20touch%20$HOME/x"));
    assert_error(quoted.refs().await, SinkReason::Missing, &["it's; touch $HOME/x"]);
}

#[tokio::test]
async fn closed_addresses_are_not_connected_to() {
    let remote = Settings { policy: guarded(), ..settings() }.remote(&GitSsh::shared().url("x"));
    assert_error(remote.refs().await, SinkReason::Forbidden, &["may not reach", "--allow-sink-cidrs"]);
}

#[tokio::test]
async fn a_server_that_does_not_speak_ssh_is_noticed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let outcome = settings().remote(&format!("ssh://localhost:{port}/x")).refs().await;
    assert_error(outcome, SinkReason::Unreachable, &["with SSH", &port.to_string()]);
    served.await.unwrap();
}

/// Servers that do not speak SSH, or that end the conversation with a text.
#[tokio::test]
async fn what_the_server_says_is_not_repeated() {
    use tokio::io::AsyncWriteExt as _;
    const MARKER: &str = "what-the-server-said";
    for greeting in [
        format!("HTTP/1.1 400 {MARKER}\r\n"),
        format!("SSH-1.5-{MARKER}\r\n"),
        format!("SSH-2.0-{MARKER}\r\n{MARKER}{MARKER}"),
        format!("{MARKER}\r\n"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(greeting.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let key = &GitSsh::shared().keys()[0];
        let remote = with(key, format!("[127.0.0.1]:{port} {OTHER}"))
            .remote(&format!("ssh://git@127.0.0.1:{port}/x.git"));
        let error = remote.refs().await.unwrap_err();
        assert!(!said(&error).contains(MARKER) && !format!("{error:?}").contains(MARKER), "{error:?}");
        served.await.unwrap();
    }
}
