//! Authentication, and the errors if it fails.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::sink::{ErrorClass, SinkReason};
use kollect_sinks::{AddressGuard, Network, Secrets, SinkPolicy, plan};
use kollect_testbed::{Certificates, Nats};
use serde_json::{Value, json};

use super::{full_text, open, refused, secrets, spec};
use crate::conformance::{added, inventory, row, write};

const COMMON_SECRET: &str = "spec.secretRef";
const OWN_SECRET: &str = "spec.nats.secretRef";

/// The outcome of opening a sink with credentials from a Secret.
async fn open_outcome(url: &str, fields: Value, secrets: &Secrets) -> Result<(), SinkReason> {
    let plan = plan(&spec(url, "access", "rows", fields)).unwrap().with_secrets(secrets).unwrap();
    match open(&plan).await {
        Ok(sink) => {
            sink.check().await.unwrap();
            Ok(())
        }
        Err(error) => {
            assert!(!full_text(&error).contains("hunter"), "{error:?}");
            Err(error.reason)
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_token_is_accepted_and_a_wrong_one_is_refused() {
    let server = Nats::start_with_token("hunter2").unwrap();
    let common = json!({ "secretRef": { "name": "s" } });
    let own = json!({ "secretRef": { "name": "s" }, "nats": { "secretRef": { "name": "own" } } });
    let url = &server.url();
    assert_eq!(
        open_outcome(url, common.clone(), &secrets(COMMON_SECRET, &[("token", "hunter2\n")])).await,
        Ok(())
    );
    assert_eq!(open_outcome(url, own.clone(), &secrets(OWN_SECRET, &[("token", "hunter2")])).await, Ok(()));
    // As in the Go implementation, a token takes precedence.
    let both = secrets(COMMON_SECRET, &[("token", "hunter2"), ("username", "u"), ("password", "hunter3")]);
    assert_eq!(open_outcome(url, common.clone(), &both).await, Ok(()));
    let wrong = secrets(COMMON_SECRET, &[("token", "hunter4")]);
    assert_eq!(open_outcome(url, common, &wrong).await, Err(SinkReason::Forbidden));
    assert_eq!(open_outcome(url, json!({}), &Secrets::default()).await, Err(SinkReason::Forbidden));

    // The sink's own Secret is not replaced by the common one, and must have been read.
    let spec = spec(url, "access", "rows", own);
    let error =
        plan(&spec).unwrap().with_secrets(&secrets(COMMON_SECRET, &[("token", "hunter2")])).unwrap_err();
    assert!(error[0].to_string().starts_with("spec.nats.secretRef"), "{error:?}");
    assert_eq!(refused(&plan(&spec).unwrap()).await.reason, SinkReason::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_is_accepted_and_a_wrong_one_is_refused() {
    let server = Nats::start_with_user("me", "hunter2").unwrap();
    let fields = json!({ "secretRef": { "name": "s" } });
    let user = |password| secrets(COMMON_SECRET, &[("username", "me"), ("password", password)]);
    assert_eq!(open_outcome(&server.url(), fields.clone(), &user("hunter2")).await, Ok(()));
    assert_eq!(open_outcome(&server.url(), fields, &user("hunter3")).await, Err(SinkReason::Forbidden));
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_without_permission_is_forbidden() {
    let server = Nats::start_with(
        "authorization { users: [ { user: me, password: hunter2, permissions: { publish: { deny: \"access.>\" } } } ] }",
    )
    .unwrap();
    let plan = plan(&spec(&server.url(), "access", "rows", json!({ "secretRef": { "name": "s" } }))).unwrap();
    let plan =
        plan.with_secrets(&secrets(COMMON_SECRET, &[("username", "me"), ("password", "hunter2")])).unwrap();
    let sink = open(&plan).await.unwrap();
    let error = write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap_err();
    assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden), "{error}");
    assert!(error.to_string().contains("does not permit to publish"), "{error}");
    assert!(!full_text(&error).contains("hunter"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_jetstream_is_incompatible() {
    let server = Nats::start_with(
        "accounts { A { users: [ { user: me, password: hunter2 } ] }, B { jetstream: enabled } }",
    )
    .unwrap();
    let user = secrets(COMMON_SECRET, &[("username", "me"), ("password", "hunter2")]);
    let fields = json!({ "secretRef": { "name": "s" } });
    assert_eq!(open_outcome(&server.url(), fields, &user).await, Err(SinkReason::Incompatible));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_run_is_unreachable() {
    let port = kollect_testbed::free_port().unwrap();
    let url = format!("nats://127.0.0.1:{port}");
    assert_eq!(open_outcome(&url, json!({}), &Secrets::default()).await, Err(SinkReason::Unreachable));
    let unknown_host = open_outcome("nats://nowhere.invalid", json!({}), &Secrets::default()).await;
    assert_eq!(unknown_host, Err(SinkReason::Unreachable));
    // The second server of a list answers.
    let both = format!("{url},{}", Nats::shared().url());
    assert_eq!(open_outcome(&both, json!({}), &Secrets::default()).await, Ok(()));
}

fn bundle(ca: &str) -> Value {
    json!({ "tls": { "caBundle": STANDARD.encode(ca) } })
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_checks_the_authority_and_the_name_of_the_server() {
    let server = Nats::start_with_tls("localhost").unwrap();
    let Certificates { ca, .. } = server.certificates().unwrap();
    let by_name = format!("tls://localhost:{}", server.port());
    let no_secrets = &Secrets::default();
    assert_eq!(open_outcome(&by_name, bundle(ca), no_secrets).await, Ok(()));
    let plain = format!("nats://localhost:{}", server.port());
    assert_eq!(open_outcome(&plain, bundle(ca), no_secrets).await, Ok(()), "a CA alone asks for TLS");
    let by_secret = json!({ "tls": { "caSecretRef": { "name": "ca" } } });
    for key in ["tls.crt", "ca.crt", "ca.pem"] {
        let secret = secrets("spec.tls.caSecretRef", &[(key, ca)]);
        assert_eq!(open_outcome(&by_name, by_secret.clone(), &secret).await, Ok(()), "{key}");
    }
    // The certificate names localhost, not the address.
    assert_eq!(open_outcome(&server.url(), bundle(ca), no_secrets).await, Err(SinkReason::Incompatible));
    let any_server = json!({ "tls": { "insecureSkipVerify": true } });
    assert_eq!(open_outcome(&server.url(), any_server.clone(), no_secrets).await, Ok(()));
    let other_server = Nats::start_with_tls("localhost").unwrap();
    let wrong = bundle(&other_server.certificates().unwrap().ca);
    assert_eq!(open_outcome(&by_name, wrong, no_secrets).await, Err(SinkReason::Incompatible));
    assert_eq!(open_outcome(&by_name, json!({}), no_secrets).await, Err(SinkReason::Incompatible));
    // A sink with TLS settings does not connect without TLS.
    let without = open_outcome(&Nats::shared().url(), any_server, no_secrets).await;
    assert!(without.is_err(), "{without:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_accepted_and_a_missing_one_is_refused() {
    let server = Nats::start_with_client_certificates("localhost").unwrap();
    let Certificates { ca, client, client_key } = server.certificates().unwrap();
    let url = format!("nats://localhost:{}", server.port());
    let mut fields = bundle(ca);
    assert!(open_outcome(&url, fields.clone(), &Secrets::default()).await.is_err());
    fields["secretRef"] = json!({ "name": "s" });
    let identity = secrets(COMMON_SECRET, &[("tls.crt", client), ("tls.key", client_key)]);
    assert_eq!(open_outcome(&url, fields.clone(), &identity).await, Ok(()));

    let other_server = Nats::start_with_client_certificates("localhost").unwrap();
    let other_certificates = other_server.certificates().unwrap();
    let wrong = secrets(
        COMMON_SECRET,
        &[("tls.crt", &other_certificates.client), ("tls.key", &other_certificates.client_key)],
    );
    assert!(open_outcome(&url, fields.clone(), &wrong).await.is_err());
    let broken = secrets(COMMON_SECRET, &[("tls.crt", client), ("tls.key", "hunter2")]);
    let problems = plan(&spec(&url, "access", "rows", fields)).unwrap().with_secrets(&broken).unwrap_err();
    assert!(!format!("{problems:?}").contains("hunter2"));
}

#[test]
fn specs_that_cannot_work_are_refused_by_field() {
    let problems_of = |fields: Value| {
        let problems = plan(&spec("nats://h", "access", "rows", fields)).unwrap_err();
        let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(!text.contains("hunter2"), "{text}");
        text
    };
    assert!(problems_of(json!({ "nats": { "url": "nats://me:hunter2@h" } })).starts_with("spec.nats.url"));
    assert!(problems_of(json!({ "nats": { "url": "http://h" } })).starts_with("spec.nats.url"));
    assert!(
        problems_of(json!({ "nats": { "url": null }, "endpoint": "nats://hunter2@h" }))
            .starts_with("spec.endpoint")
    );
    assert!(problems_of(json!({ "nats": { "subject": "a.*" } })).starts_with("spec.nats.subject = \"a.*\""));
    assert!(problems_of(json!({ "nats": { "stream": "a b" } })).starts_with("spec.nats.stream = \"a b\""));
    assert!(problems_of(json!({ "tls": { "caBundle": "%" } })).starts_with("spec.tls.caBundle"));
    let plan = plan(&spec("nats://h", "access", "rows", json!({ "secretRef": { "name": "s" } }))).unwrap();
    for content in
        [&[("token", "")][..], &[("username", "u")], &[("password", "hunter2")], &[("tls.key", "hunter2")]]
    {
        let problems = plan.clone().with_secrets(&secrets(COMMON_SECRET, content)).unwrap_err();
        let text = problems[0].to_string();
        assert!(text.starts_with("spec.secretRef: the Secret has") && !text.contains("hunter2"), "{text}");
    }
    let known = plan.with_secrets(&secrets(COMMON_SECRET, &[("token", "hunter2")])).unwrap();
    assert!(!format!("{known:?}").contains("hunter2"), "{known:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_the_operator_may_not_reach_are_refused() {
    let server = Nats::shared();
    let guarded = |allowed: &str| {
        let allowed = allowed.split(',').filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
        let guard =
            AddressGuard { allow_private: true, allowed: allowed.collect(), ..AddressGuard::default() };
        let network = Network::Guarded(guard);
        SinkPolicy { network, ..SinkPolicy::default() }
    };
    let plan = plan(&spec(&server.url(), "checked", "rows", json!({}))).unwrap();
    let errors = plan.check(&guarded("")).unwrap_err();
    assert!(errors[0].to_string().starts_with("spec.nats.url = \"127.0.0.1\""), "{errors:?}");
    let Err(error) = kollect_sinks::open(&plan, &guarded("")).await else {
        unreachable!("loopback is closed")
    };
    assert_eq!(error.reason, SinkReason::Forbidden, "{error}");
    let loopback_allowed = guarded("127.0.0.0/8");
    plan.check(&loopback_allowed).unwrap();
    kollect_sinks::open(&plan, &loopback_allowed).await.unwrap().check().await.unwrap();
    assert_eq!(plan.destination(&loopback_allowed).names(), Some(["checked", "checked"]));
}
