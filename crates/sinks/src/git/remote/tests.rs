use std::collections::BTreeMap;

use kollect_model::crd::shapes::SecretReference;

use super::*;

fn plan(endpoint: &str) -> Result<RemoteConfig, Vec<SpecError>> {
    let common = SinkCommon {
        endpoint: Some(endpoint.to_owned()),
        secret_ref: Some(SecretReference { name: "git".into(), namespace: None }),
        ..SinkCommon::default()
    };
    RemoteConfig::plan(&common, None)
}

fn secrets(content: &[(&str, &str)]) -> Secrets {
    let mut secrets = Secrets::default();
    let content: BTreeMap<String, Vec<u8>> =
        content.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
    secrets.insert(SECRET_REF, content);
    secrets
}

#[test]
fn addresses_are_read_without_users_and_with_branches() {
    for (text, shown, branch) in [
        ("https://git.example/team/inventory.git", "https://git.example/team/inventory.git", "main"),
        ("https://me@GIT.example:443/x/", "https://git.example/x", "main"),
        ("http://git.example:8080/x#branch=live/eu", "http://git.example:8080/x", "live/eu"),
        ("ssh://git@Git.example/x.git", "ssh://git.example/x.git", "main"),
        ("ssh://git.example:2222/~me/a%20b", "ssh://git.example:2222/~me/a b", "main"),
        ("ssh://git@[::1]:2222/x", "ssh://[::1]:2222/x", "main"),
        ("file:///srv/git/x.git/", "file:///srv/git/x.git", "main"),
        ("file:team/x.git#branch=b", "file:team/x.git", "b"),
    ] {
        let config = plan(text).unwrap();
        assert_eq!((config.address.to_string().as_str(), config.branch.as_str()), (shown, branch), "{text}");
    }
}

#[test]
fn addresses_that_cannot_be_used_are_refused_with_advice_and_without_passwords() {
    for (text, part) in [
        ("", "is not a URL"),
        ("git@git.example:team/x.git", "write ssh://git@git.example/team/x.git"),
        ("git.example:team/x.git", "write ssh://git@git.example/team/x.git"),
        ("git://git.example/x", "scheme that is not supported"),
        ("https://git.example", "no repository"),
        ("https:///", "is not a URL"),
        ("https://git.example/x?y", "question mark"),
        ("https://git.example/x#main", "#branch=NAME"),
        ("https://git.example/x#branch=a..b", "not the name of a branch"),
        ("https://me:hunter2@git.example/x", "holds a password"),
        ("me:hunter2@git.example/x", "is not a URL"),
        ("file://host/x", "names a host"),
        ("file:", "names no directory"),
        ("https://git.example/a b", "space"),
    ] {
        let errors = plan(text).unwrap_err();
        let error = errors[0].to_string();
        assert!(error.starts_with(ENDPOINT) && error.contains(part), "{text}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn branch_names_follow_the_rules_of_git() {
    for good in ["main", "live/eu", "a.b", "v1-2_3"] {
        assert_eq!(check_branch(good), Ok(()), "{good}");
    }
    for bad in
        ["", "-x", ".x", "/x", "a..b", "refs/heads/x", "x.", "x.lock", "a/.b", "a//b", "a/", "a b", "a@{b"]
    {
        assert!(check_branch(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_token_takes_precedence_over_a_password_and_users_have_defaults() {
    let basic = |content: &[(&str, &str)]| {
        plan("https://git.example/x").unwrap().with_secrets(&secrets(content)).map(|config| {
            config.credentials.unwrap().basic.map(|(user, password)| format!("{user}:{password}"))
        })
    };
    for (content, expected) in [
        (&[("token", "t\n")][..], "x-access-token:t"),
        (&[("token", "t"), ("password", "p")], "x-access-token:t"),
        (&[("token", "t"), ("username", "me")], "me:t"),
        (&[("password", "p")], "git:p"),
        (&[("password", "p"), ("username", "me")], "me:p"),
    ] {
        assert_eq!(basic(content).unwrap().as_deref(), Some(expected));
    }
    for (content, part) in [
        (&[("username", "me")][..], "neither token nor password"),
        (&[("ssh-privatekey", "hunter2")], "none of the keys"),
        (&[("username", "a:b"), ("token", "hunter2")], "colon"),
    ] {
        let error = basic(content).unwrap_err()[0].to_string();
        assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn ssh_needs_a_key_and_known_hosts() {
    for (content, part) in [
        (&[("token", "hunter2")][..], "ssh-privatekey, identity, id_rsa"),
        (&[("ssh-privatekey", "hunter2")], "cannot be read"),
        (&[("identity", "hunter2")], "the Secret has in its key identity a private key that cannot be read"),
    ] {
        let config = plan("ssh://git.example/x").unwrap();
        let error = config.with_secrets(&secrets(content)).unwrap_err()[0].to_string();
        assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
    }
    let without_secret = SinkCommon { endpoint: Some("ssh://git.example/x".into()), ..SinkCommon::default() };
    let error = RemoteConfig::plan(&without_secret, None).unwrap_err()[0].to_string();
    assert!(error.starts_with(AUTH_REF) && error.contains("known_hosts"), "{error}");
}

#[test]
fn the_type_of_authentication_must_fit_the_address() {
    for (endpoint, type_) in [("https://h/x", GitAuthType::Ssh), ("ssh://h/x", GitAuthType::Token)] {
        let secret_ref = Some(SecretReference { name: "git".into(), namespace: None });
        let common = SinkCommon { endpoint: Some(endpoint.into()), secret_ref, ..SinkCommon::default() };
        let auth = kollect_model::crd::sinks::GitAuth { type_: Some(type_), secret_ref: None };
        let git = Git { auth: Some(auth), ..Git::default() };
        let error = RemoteConfig::plan(&common, Some(&git)).unwrap_err()[0].to_string();
        assert!(error.starts_with("spec.git.auth.type"), "{error}");
    }
}

#[test]
fn one_repository_has_one_destination_and_closed_servers_are_refused() {
    let destination = |text: &str| plan(text).unwrap().destination_text(&SinkPolicy::default());
    assert_eq!(destination("https://git.example/x.git"), destination("https://me@GIT.EXAMPLE:443/x/"));
    assert_ne!(destination("https://git.example/x"), destination("https://git.example/x#branch=b"));
    let guarded = SinkPolicy {
        network: crate::Network::Guarded(crate::AddressGuard::default()),
        files: crate::FilePolicy::Refused,
    };
    for (text, part) in [
        ("https://127.0.0.1/x", "loopback"),
        ("http://2130706433/x", "loopback"),
        ("ssh://localhost/x", "this machine"),
        ("ssh://[::1]/x", "loopback"),
        ("file:x", "--file-sink-root"),
    ] {
        let error = plan(text).unwrap().check(&guarded).unwrap_err()[0].to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(plan("https://git.example/x").unwrap().check(&guarded), Ok(()));
}
