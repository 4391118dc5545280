//! Authentication, and the errors if it fails.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::sink::{ErrorClass, SinkReason};
use kollect_sinks::{Guard, Network, Policy, Secrets, plan};
use kollect_testbed::{Certificates, Nats};
use serde_json::{Value, json};

use super::{open, refused, secrets, spec, told};
use crate::conformance::{added, inventory, row, write};

const COMMON: &str = "spec.secretRef";
const OWN: &str = "spec.nats.secretRef";

/// The outcome of opening a sink with credentials from a Secret.
async fn outcome(url: &str, more: Value, secrets: &Secrets) -> Result<(), SinkReason> {
    let plan = plan(&spec(url, "access", "rows", more)).unwrap().with_secrets(secrets).unwrap();
    match open(&plan).await {
        Ok(sink) => {
            sink.check().await.unwrap();
            Ok(())
        }
        Err(error) => {
            assert!(!told(&error).contains("hunter"), "{error:?}");
            Err(error.reason)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_open_and_wrong_ones_do_not() {
    let server = Nats::start_with_token("hunter2").unwrap();
    let common = json!({ "secretRef": { "name": "s" } });
    let own = json!({ "secretRef": { "name": "s" }, "nats": { "secretRef": { "name": "own" } } });
    let url = &server.url();
    assert_eq!(outcome(url, common.clone(), &secrets(COMMON, &[("token", "hunter2\n")])).await, Ok(()));
    assert_eq!(outcome(url, own.clone(), &secrets(OWN, &[("token", "hunter2")])).await, Ok(()));
    // As in the Go implementation, a token takes precedence.
    let both = secrets(COMMON, &[("token", "hunter2"), ("username", "u"), ("password", "hunter3")]);
    assert_eq!(outcome(url, common.clone(), &both).await, Ok(()));
    let wrong = secrets(COMMON, &[("token", "hunter4")]);
    assert_eq!(outcome(url, common, &wrong).await, Err(SinkReason::Forbidden));
    assert_eq!(outcome(url, json!({}), &Secrets::default()).await, Err(SinkReason::Forbidden));

    // The sink's own Secret is not replaced by the common one, and must have been read.
    let spec = spec(url, "access", "rows", own);
    let error = plan(&spec).unwrap().with_secrets(&secrets(COMMON, &[("token", "hunter2")])).unwrap_err();
    assert!(error[0].to_string().starts_with("spec.nats.secretRef"), "{error:?}");
    assert_eq!(refused(&plan(&spec).unwrap()).await.reason, SinkReason::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_open_and_wrong_passwords_do_not() {
    let server = Nats::start_with_user("me", "hunter2").unwrap();
    let more = json!({ "secretRef": { "name": "s" } });
    let user = |password| secrets(COMMON, &[("username", "me"), ("password", password)]);
    assert_eq!(outcome(&server.url(), more.clone(), &user("hunter2")).await, Ok(()));
    assert_eq!(outcome(&server.url(), more, &user("hunter3")).await, Err(SinkReason::Forbidden));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_not_be_sent_is_forbidden() {
    let server = Nats::start_with(
        "authorization { users: [ { user: me, password: hunter2, permissions: { publish: { deny: \"access.>\" } } } ] }",
    )
    .unwrap();
    let plan = plan(&spec(&server.url(), "access", "rows", json!({ "secretRef": { "name": "s" } }))).unwrap();
    let plan = plan.with_secrets(&secrets(COMMON, &[("username", "me"), ("password", "hunter2")])).unwrap();
    let sink = open(&plan).await.unwrap();
    let error = write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden), "{error}");
    assert!(error.to_string().contains("does not permit to publish"), "{error}");
    assert!(!told(&error).contains("hunter"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_jetstream_there_is_no_stream() {
    let server = Nats::start_with(
        "accounts { A { users: [ { user: me, password: hunter2 } ] }, B { jetstream: enabled } }",
    )
    .unwrap();
    let user = secrets(COMMON, &[("username", "me"), ("password", "hunter2")]);
    let more = json!({ "secretRef": { "name": "s" } });
    assert_eq!(outcome(&server.url(), more, &user).await, Err(SinkReason::Incompatible));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_run_is_unreachable() {
    let port = kollect_testbed::free_port().unwrap();
    let url = format!("nats://127.0.0.1:{port}");
    assert_eq!(outcome(&url, json!({}), &Secrets::default()).await, Err(SinkReason::Unreachable));
    let nowhere = outcome("nats://nowhere.invalid", json!({}), &Secrets::default()).await;
    assert_eq!(nowhere, Err(SinkReason::Unreachable));
    // The second server of a list answers.
    let both = format!("{url},{}", Nats::shared().url());
    assert_eq!(outcome(&both, json!({}), &Secrets::default()).await, Ok(()));
}

fn bundle(ca: &str) -> Value {
    json!({ "tls": { "caBundle": STANDARD.encode(ca) } })
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_trusts_whom_it_is_told_and_checks_the_name() {
    let server = Nats::start_with_tls("localhost").unwrap();
    let Certificates { ca, .. } = server.certificates().unwrap();
    let named = format!("tls://localhost:{}", server.port());
    let none = &Secrets::default();
    assert_eq!(outcome(&named, bundle(ca), none).await, Ok(()));
    let plain = format!("nats://localhost:{}", server.port());
    assert_eq!(outcome(&plain, bundle(ca), none).await, Ok(()), "a CA alone asks for TLS");
    let by_secret = json!({ "tls": { "caSecretRef": { "name": "ca" } } });
    for key in ["tls.crt", "ca.crt", "ca.pem"] {
        let secret = secrets("spec.tls.caSecretRef", &[(key, ca)]);
        assert_eq!(outcome(&named, by_secret.clone(), &secret).await, Ok(()), "{key}");
    }
    // The certificate names localhost, not the address.
    assert_eq!(outcome(&server.url(), bundle(ca), none).await, Err(SinkReason::Incompatible));
    let anybody = json!({ "tls": { "insecureSkipVerify": true } });
    assert_eq!(outcome(&server.url(), anybody.clone(), none).await, Ok(()));
    let stranger = Nats::start_with_tls("localhost").unwrap();
    let wrong = bundle(&stranger.certificates().unwrap().ca);
    assert_eq!(outcome(&named, wrong, none).await, Err(SinkReason::Incompatible));
    assert_eq!(outcome(&named, json!({}), none).await, Err(SinkReason::Incompatible));
    // A sink with TLS settings does not connect without TLS.
    let without = outcome(&Nats::shared().url(), anybody, none).await;
    assert!(without.is_err(), "{without:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_open_and_missing_ones_do_not() {
    let server = Nats::start_with_client_certificates("localhost").unwrap();
    let Certificates { ca, client, client_key } = server.certificates().unwrap();
    let url = format!("nats://localhost:{}", server.port());
    let mut more = bundle(ca);
    assert!(outcome(&url, more.clone(), &Secrets::default()).await.is_err());
    more["secretRef"] = json!({ "name": "s" });
    let identity = secrets(COMMON, &[("tls.crt", client), ("tls.key", client_key)]);
    assert_eq!(outcome(&url, more.clone(), &identity).await, Ok(()));

    let stranger = Nats::start_with_client_certificates("localhost").unwrap();
    let theirs = stranger.certificates().unwrap();
    let wrong = secrets(COMMON, &[("tls.crt", &theirs.client), ("tls.key", &theirs.client_key)]);
    assert!(outcome(&url, more.clone(), &wrong).await.is_err());
    let broken = secrets(COMMON, &[("tls.crt", client), ("tls.key", "hunter2")]);
    let problems = plan(&spec(&url, "access", "rows", more)).unwrap().with_secrets(&broken).unwrap_err();
    assert!(!format!("{problems:?}").contains("hunter2"));
}

#[test]
fn specs_that_cannot_work_are_refused_by_field() {
    let wrong = |more: Value| {
        let problems = plan(&spec("nats://h", "access", "rows", more)).unwrap_err();
        let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(!text.contains("hunter2"), "{text}");
        text
    };
    assert!(wrong(json!({ "nats": { "url": "nats://me:hunter2@h" } })).starts_with("spec.nats.url"));
    assert!(wrong(json!({ "nats": { "url": "http://h" } })).starts_with("spec.nats.url"));
    assert!(
        wrong(json!({ "nats": { "url": null }, "endpoint": "nats://hunter2@h" }))
            .starts_with("spec.endpoint")
    );
    assert!(wrong(json!({ "nats": { "subject": "a.*" } })).starts_with("spec.nats.subject = \"a.*\""));
    assert!(wrong(json!({ "nats": { "stream": "a b" } })).starts_with("spec.nats.stream = \"a b\""));
    assert!(wrong(json!({ "tls": { "caBundle": "%" } })).starts_with("spec.tls.caBundle"));
    let plan = plan(&spec("nats://h", "access", "rows", json!({ "secretRef": { "name": "s" } }))).unwrap();
    for content in
        [&[("token", "")][..], &[("username", "u")], &[("password", "hunter2")], &[("tls.key", "hunter2")]]
    {
        let problems = plan.clone().with_secrets(&secrets(COMMON, content)).unwrap_err();
        let text = problems[0].to_string();
        assert!(text.starts_with("spec.secretRef: the Secret has") && !text.contains("hunter2"), "{text}");
    }
    let known = plan.with_secrets(&secrets(COMMON, &[("token", "hunter2")])).unwrap();
    assert!(!format!("{known:?}").contains("hunter2"), "{known:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_the_operator_may_not_reach_are_refused() {
    let server = Nats::shared();
    let guarded = |allowed: &str| {
        let allowed = allowed.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
        let guard = Guard { allow_private: true, allowed: allowed.collect(), ..Guard::default() };
        let network = Network::Guarded(guard);
        Policy { network, ..Policy::default() }
    };
    let plan = plan(&spec(&server.url(), "checked", "rows", json!({}))).unwrap();
    let errors = plan.check(&guarded("")).unwrap_err();
    assert!(errors[0].to_string().starts_with("spec.nats.url = \"127.0.0.1\""), "{errors:?}");
    let Err(error) = kollect_sinks::open(&plan, &guarded("")).await else {
        unreachable!("loopback is closed")
    };
    assert_eq!(error.reason, SinkReason::Forbidden, "{error}");
    let here = guarded("127.0.0.0/8");
    plan.check(&here).unwrap();
    kollect_sinks::open(&plan, &here).await.unwrap().check().await.unwrap();
    assert_eq!(plan.destination(&here).names(), Some(["checked", "checked"]));
}
