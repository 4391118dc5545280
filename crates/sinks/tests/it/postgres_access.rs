//! PostgreSQL: where the operator's sinks may connect to, and how clients authenticate.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::{
    SpecError,
    sink::{ErrorClass, SinkError, SinkReason},
};
use kollect_sinks::{AddressGuard, FilePolicy, Network, Plan, Secrets, SinkPolicy, open, plan, plan_out};
use kollect_testbed::Postgres;
use serde_json::json;

use crate::{
    conformance::{added, assert_holds, inventory, row, write},
    postgres::{full_text, planned, schema, secrets, spec},
};

fn guarded(allowed: &[&str]) -> SinkPolicy {
    let allowed = allowed.iter().map(|range| range.parse().unwrap()).collect();
    let guard =
        AddressGuard { namespace: "team-a".into(), allow_private: true, allowed, ..AddressGuard::default() };
    SinkPolicy { network: Network::Guarded(guard), files: FilePolicy::Refused }
}

async fn refused(plan: &Plan, policy: &SinkPolicy) -> SinkError {
    let Err(error) = open(plan, policy).await else { unreachable!("{plan:?} must not open") };
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_connects_to_checked_addresses_only() {
    let server = schema("checked");
    let port = server.port();
    let plan_at =
        |host: &str| planned(&format!("postgres://postgres:hunter2@{host}/postgres"), "checked", "ensure");
    for host in [
        format!("127.0.0.1:{port}"),
        format!("127.1:{port}"),
        format!("localhost:{port}"),
        format!("8.8.8.8,127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        let plan = plan_at(&host);
        let errors: Vec<SpecError> = plan.check(&guarded(&[])).unwrap_err();
        assert_eq!(errors[0].field, "spec.postgres.databaseRef");
        let error = refused(&plan, &guarded(&[])).await;
        assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden));
        assert!(error.to_string().contains("--allow-sink-cidrs team-a=CIDR"), "{error}");
        let names = host.split([',', ':']).filter(|name| name.len() > 3);
        for text in [full_text(&error), errors[0].to_string()] {
            let secret = names.clone().chain(["hunter2", "127.0.0.1"]).find(|name| text.contains(name));
            assert_eq!(secret, None, "the address is a secret: {text}");
        }
    }
    let sockets = planned("host=/var/run/postgresql dbname=x", "checked", "ensure");
    assert!(sockets.check(&guarded(&[])).is_err());
    let error = refused(&sockets, &guarded(&[])).await;
    assert!(error.reason == SinkReason::Forbidden && error.to_string().contains("Unix sockets"), "{error}");
    let unknown = plan_at("no.such.host.invalid");
    assert_eq!(unknown.check(&guarded(&[])), Ok(()), "no server is contacted at admission");
    let error = refused(&unknown, &guarded(&[])).await;
    assert_eq!(error.reason, SinkReason::Unreachable);
    assert!(!full_text(&error).contains("no.such.host"), "the address is a secret: {}", full_text(&error));

    // Servers that the flag allows can be written, also as the second of two hosts.
    let loopback_allowed = guarded(&["127.0.0.0/8", "::1/128"]);
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("no.such.host.invalid:{port},127.0.0.1:{port}"),
        format!("127.0.0.1:1,127.0.0.1:{port}"),
    ] {
        let plan = plan_at(&host);
        assert_eq!(plan.check(&loopback_allowed), Ok(()), "{host}");
        let sink = open(&plan, &loopback_allowed).await.unwrap();
        let rows = [row("u1", "{}")];
        write(&*sink, &inventory("", "all"), None, &added(&rows)).await.unwrap();
        assert_holds(&*sink, &inventory("", "all"), &rows).await;
    }
    // User, database and options are sent as without a guard.
    let other_database = format!("postgres://postgres@127.0.0.1:{port}/absent");
    assert_eq!(
        refused(&planned(&other_database, "checked", "ensure"), &loopback_allowed).await.reason,
        SinkReason::Missing
    );
    let options = format!(
        "postgres://postgres@127.0.0.1:{port}/postgres?options=-c%20default_transaction_read_only%3Don"
    );
    let sink = open(&planned(&options, "checked", "existing"), &loopback_allowed).await.unwrap();
    let error = write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap_err();
    assert!(full_text(&error).contains("25006"), "{}", full_text(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_is_checked_against_the_name_of_a_resolved_host() {
    let server = Postgres::start_with_tls("localhost").unwrap();
    let bundle = json!({ "caBundle": STANDARD.encode(server.certificate().unwrap()) });
    let policy = guarded(&["127.0.0.0/8", "::1/128"]);
    for (host, expected) in [("localhost", None), ("127.0.0.1", Some(SinkReason::Incompatible))] {
        let dsn = format!("postgres://postgres@{host}:{}/postgres?sslmode=verify-full", server.port());
        let plan =
            plan(&spec("public", "ensure", bundle.clone())).unwrap().with_secrets(&secrets(&dsn)).unwrap();
        let reason = open(&plan, &policy).await.err().map(|error| error.reason);
        assert_eq!(reason, expected, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_authenticate_with_certificates() {
    let server = Postgres::start_with_tls("localhost").unwrap();
    let other_server = Postgres::start_with_tls("localhost").unwrap();
    server
        .psql("CREATE ROLE with_certificate; CREATE ROLE ada LOGIN IN ROLE with_certificate; GRANT ALL ON SCHEMA public TO ada")
        .unwrap();
    let ada = server.client_certificate("ada").unwrap();
    let bob = server.client_certificate("bob").unwrap();
    let of_other_authority = other_server.client_certificate("ada").unwrap();
    let dsn = format!("postgres://ada@localhost:{}/postgres?sslmode=require", server.port());
    let plan_with = |identity: Option<&(String, String)>| {
        let mut content = std::collections::BTreeMap::from([("dsn".to_owned(), dsn.clone().into_bytes())]);
        if let Some((certificate, key)) = identity {
            content.insert("tls.crt".into(), certificate.clone().into());
            content.insert("tls.key".into(), key.clone().into());
        }
        let mut secrets = Secrets::default();
        secrets.insert("spec.postgres.databaseRef", content);
        plan(&spec("public", "ensure", json!({}))).unwrap().with_secrets(&secrets)
    };
    let policy = SinkPolicy::default();
    let sink = open(&plan_with(Some(&ada)).unwrap(), &policy).await.unwrap();
    let rows = [row("u1", "{}")];
    write(&*sink, &inventory("", "all"), None, &added(&rows)).await.unwrap();
    let shown = server
        .psql("SELECT client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'kollect'")
        .unwrap();
    assert!(shown.contains("CN=ada"), "{shown}");
    for identity in [None, Some(&bob), Some(&of_other_authority)] {
        let error = refused(&plan_with(identity).unwrap(), &policy).await;
        let text = full_text(&error);
        assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden), "{text}");
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }

    // An invalid certificate or key is refused before a connection is opened.
    for (identity, part) in [
        ((ada.0.clone(), bob.1.clone()), "key of another certificate"),
        ((ada.0.clone(), "hunter2".into()), "holds no private key"),
        (("hunter2".into(), ada.1.clone()), "holds no certificate"),
        ((ada.0.clone(), String::new()), "tls.crt and no tls.key"),
        ((String::new(), ada.1.clone()), "tls.key and no tls.crt"),
    ] {
        let errors = plan_with(Some(&identity)).unwrap_err();
        let text = errors[0].to_string();
        assert!(text.contains(part) && !text.contains("hunter2"), "{text}");
    }

    // Files are allowed on a command line, but not in a Secret: the operator has other files.
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("ada.crt"), dir.path().join("ada.key"));
    fs::write(&certificate, &ada.0).unwrap();
    fs::write(&key, &ada.1).unwrap();
    let url = format!("{dsn}&sslcert={}&sslkey={}", certificate.display(), key.display());
    open(&plan_out(&url).unwrap(), &policy).await.unwrap().check().await.unwrap();
    fs::remove_file(&key).unwrap();
    let error = refused(&plan_out(&url).unwrap(), &policy).await;
    assert!(error.reason == SinkReason::Incompatible && error.to_string().contains("read sslkey"), "{error}");
    let errors =
        plan(&spec("public", "ensure", json!({}))).unwrap().with_secrets(&secrets(&url)).unwrap_err();
    assert!(errors[0].to_string().contains("tls.crt and tls.key"), "{}", errors[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_use_channel_binding() {
    let server = Postgres::start_with_tls("localhost").unwrap();
    server
        .psql("CREATE ROLE with_password; CREATE ROLE eve LOGIN PASSWORD 'hunter2' IN ROLE with_password; GRANT ALL ON SCHEMA public TO eve")
        .unwrap();
    for (user, options, expected) in [
        ("eve:hunter2", "sslmode=require&channel_binding=require", None),
        ("eve:hunter2", "sslmode=require&channel_binding=prefer", None),
        ("eve:hunter2", "sslmode=require&channel_binding=disable", None),
        ("eve:wrong", "sslmode=require&channel_binding=require", Some(SinkReason::Forbidden)),
        // Without TLS there is no channel to bind to.
        ("eve:hunter2", "sslmode=disable&channel_binding=require", Some(SinkReason::Forbidden)),
        // A server that asks for no password proves nothing.
        ("postgres", "sslmode=require&channel_binding=require", Some(SinkReason::Forbidden)),
    ] {
        let dsn = format!("postgres://{user}@localhost:{}/postgres?{options}", server.port());
        let outcome = open(&planned(&dsn, "public", "ensure"), &SinkPolicy::default()).await;
        let reason = outcome.as_ref().err().map(|error| error.reason);
        assert_eq!(reason, expected, "{user} {options}: {:?}", outcome.as_ref().err().map(full_text));
    }
}
