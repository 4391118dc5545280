//! The SSH server of this machine.

use kollect_testbed::{GitSsh, git::ClientKey};

use super::*;

/// A key that no server here has.
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS";

fn remote_with(key: &ClientKey, known_hosts: impl Into<String>) -> TestRemote {
    let mut secret = vec![("ssh-privatekey", key.private.clone()), ("known_hosts", known_hosts.into())];
    secret.extend(key.passphrase.map(|phrase| ("passphrase", phrase.to_owned())));
    TestRemote { secret, ..TestRemote::default() }
}

/// Settings with an accepted key and the known host.
fn trusted_remote() -> TestRemote {
    remote_with(&GitSsh::shared().keys()[0], GitSsh::shared().known_hosts())
}

#[tokio::test]
async fn a_repository_can_be_pushed_to_and_fetched_over_ssh() {
    let server = GitSsh::shared().create("conversation").unwrap();
    push_and_fetch(&trusted_remote().remote(&GitSsh::shared().url("conversation")), &server).await;
}

#[tokio::test]
async fn a_part_of_the_history_can_be_fetched_over_ssh() {
    GitSsh::shared().create("shallow").unwrap();
    shallow_history(&trusted_remote().remote(&GitSsh::shared().url("shallow"))).await;
}

#[tokio::test]
async fn a_declined_push_and_a_concurrent_push_are_different_errors_over_ssh() {
    let server = GitSsh::shared().create("hooks").unwrap();
    declined_and_concurrent_pushes(&trusted_remote().remote(&GitSsh::shared().url("hooks")), &server).await;
}

#[tokio::test]
async fn large_packs_are_pushed_and_fetched_over_ssh() {
    let server = GitSsh::shared().create("large").unwrap();
    large_packs(&trusted_remote().remote(&GitSsh::shared().url("large")), &server).await;
}

#[tokio::test]
async fn every_type_of_key_is_accepted_and_an_unknown_key_is_refused() {
    let ssh = GitSsh::shared();
    ssh.create("keys").unwrap();
    let url = ssh.url("keys");
    let kinds: Vec<_> = ssh.keys().iter().map(|key| (key.kind, key.passphrase.is_some())).collect();
    assert_eq!(kinds, [("ed25519", false), ("ecdsa", false), ("rsa", false), ("ed25519", true)]);
    for key in ssh.keys() {
        remote_with(key, ssh.known_hosts()).remote(&url).refs().await.unwrap();
    }
    let refused = remote_with(ssh.unknown_key(), ssh.known_hosts()).remote(&url).refs().await;
    assert_error(
        refused,
        SinkReason::Forbidden,
        &["does not accept the key SHA256:", "ed25519", "for the user"],
    );
}

#[test]
fn an_encrypted_key_needs_the_right_passphrase() {
    let ssh = GitSsh::shared();
    let encrypted = &ssh.keys()[3];
    for (passphrase, part) in [(None, "add it"), (Some("hunter2"), "does not open")] {
        let key = ClientKey { passphrase, ..encrypted.clone() };
        let problem = remote_with(&key, ssh.known_hosts()).config(&ssh.url("x")).unwrap_err();
        assert!(problem.contains(part) && !problem.contains("hunter2"), "{problem}");
    }
}

#[tokio::test]
async fn a_host_key_must_be_known() {
    let ssh = GitSsh::shared();
    ssh.create("hosts").unwrap();
    let url = ssh.url("hosts");
    let key = &ssh.keys()[0];
    let name = format!("[localhost]:{}", ssh.port());
    // The server is asked for the key that is known, whichever of its keys that is.
    for known in ssh.host_keys().iter().map(|host_key| format!("{name} {host_key}")) {
        remote_with(key, known).remote(&url).refs().await.unwrap();
    }
    remote_with(key, ssh.hashed_known_hosts().unwrap()).remote(&url).refs().await.unwrap();

    let other_host = format!("git.example {}", ssh.host_keys()[0]);
    let unknown = remote_with(key, other_host.clone()).remote(&url).refs().await;
    assert_error(unknown, SinkReason::Incompatible, &["UNKNOWN", "SHA256:", "ssh-keyscan"]);
    let changed = remote_with(key, format!("{name} {OTHER}")).remote(&url).refs().await;
    assert_error(changed, SinkReason::Incompatible, &["CHANGED", "SHA256:"]);
    let revoked = format!("{}@revoked * {}", ssh.known_hosts(), ssh.host_keys()[0]);
    let revoked = remote_with(key, revoked).remote(&url).refs().await;
    assert_error(revoked, SinkReason::Incompatible, &["revoked"]);

    let any_server = TestRemote { insecure: true, ..remote_with(key, other_host) };
    any_server.remote(&url).refs().await.unwrap();
    let mut without = trusted_remote();
    without.secret.retain(|(key, _)| *key != "known_hosts");
    let problem = without.config(&url).unwrap_err();
    assert!(problem.contains("known_hosts") && problem.contains("insecureSkipVerify"), "{problem}");
}

#[tokio::test]
async fn a_repository_that_does_not_exist_is_missing_over_ssh() {
    let ssh = GitSsh::shared();
    let remote = trusted_remote().remote(&ssh.url("nothing"));
    assert_error(remote.refs().await, SinkReason::Missing, &["there is no such repository"]);
    let quoted = trusted_remote().remote(&ssh.url("it's;%20touch%20$HOME/x"));
    assert_error(quoted.refs().await, SinkReason::Missing, &["it's; touch $HOME/x"]);
}

#[tokio::test]
async fn closed_addresses_are_not_connected_to_over_ssh() {
    let remote = TestRemote { policy: guarded(), ..trusted_remote() }.remote(&GitSsh::shared().url("x"));
    assert_error(remote.refs().await, SinkReason::Forbidden, &["may not reach", "--allow-sink-cidrs"]);
}

#[tokio::test]
async fn a_server_that_does_not_use_ssh_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let outcome = trusted_remote().remote(&format!("ssh://localhost:{port}/x")).refs().await;
    assert_error(outcome, SinkReason::Unreachable, &["with SSH", &port.to_string()]);
    served.await.unwrap();
}

/// Servers that do not use SSH, or that end the conversation with a text.
#[tokio::test]
async fn no_error_contains_the_text_of_an_ssh_server() {
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
        let remote = remote_with(key, format!("[127.0.0.1]:{port} {OTHER}"))
            .remote(&format!("ssh://git@127.0.0.1:{port}/x.git"));
        let error = remote.refs().await.unwrap_err();
        assert!(!text_of(&error).contains(MARKER) && !format!("{error:?}").contains(MARKER), "{error:?}");
        served.await.unwrap();
    }
}
