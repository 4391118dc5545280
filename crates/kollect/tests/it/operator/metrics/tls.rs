//! `/metrics` over TLS: the API server decides which clients may read them, with any certificate of the operator.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
    client::{
        WantsClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::*;

const ADDRESS: [&str; 2] = ["--metrics-bind-address", "127.0.0.1:0"];

#[test]
fn only_authorized_clients_get_metrics_over_tls() {
    let test = OperatorTest::new("guarded");
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certs = test.dir.path().join("certs");
    std::fs::create_dir(&certs).unwrap();
    std::fs::write(certs.join("my.crt"), certificate.pem()).unwrap();
    std::fs::write(certs.join("my.key"), key.serialize_pem()).unwrap();
    let path = certs.to_str().unwrap().to_owned();
    let files = ["--metrics-cert-path", &path, "--metrics-cert-name=my.crt", "--metrics-cert-key=my.key"];
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let client = client_builder().with_root_certificates(roots);
    check_authorization(test, &[&ADDRESS[..], &files].concat(), client);
}

#[test]
fn without_a_configured_certificate_metrics_are_encrypted_and_need_authorization() {
    let provider = Arc::new(ring::default_provider());
    let client = client_builder().dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)));
    check_authorization(OperatorTest::new("selfsigned"), &ADDRESS, client);
}

fn client_builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    client.with_safe_default_protocol_versions().unwrap()
}

fn check_authorization(
    mut test: OperatorTest,
    args: &[&str],
    client: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
) {
    test.start(args);
    let client = Arc::new(client.with_no_client_auth());
    let address = test.metrics_address();
    let status = |headers: &str| {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(client.clone(), name).unwrap();
        get_metrics(StreamOwned::new(connection, TcpStream::connect(address).unwrap()), headers)
    };
    let bearer = |account: &str| {
        test.plane.user(&test.namespace, account, &[]).unwrap();
        let token = test.plane.kubectl(&["create", "token", account, "-n", &test.namespace]).unwrap();
        format!("Authorization: Bearer {}\r\n", token.trim())
    };
    let (reader, without_rights) = (bearer("reader"), bearer("other"));
    let labels = json!({ "name": format!("{}-metrics", test.namespace) });
    let account = json!({ "kind": "ServiceAccount", "name": "reader", "namespace": test.namespace });
    let role = std::fs::read_to_string(root().join("config/rbac/user_roles.yaml")).unwrap();
    test.plane.apply(&role).unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": labels,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kollect-metrics-reader",
        },
        "subjects": [account],
    });
    test.plane.apply(&binding.to_string()).unwrap();
    assert_eq!(status("").0, "401");
    assert_eq!(status("Authorization: Bearer made-up\r\n").0, "401");
    assert_eq!(status(&without_rights).0, "403");
    eventually("the right", || {
        let (status, body) = status(&reader);
        (status == "200").then(|| drop(Exposition::parse(&body))).ok_or(status)
    });
    let mut without_tls = TcpStream::connect(address).unwrap();
    // The server may close the connection before it has read the whole request.
    write!(without_tls, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{reader}\r\n").ok();
    let mut answer = Vec::new();
    without_tls.read_to_end(&mut answer).ok();
    assert!(!String::from_utf8_lossy(&answer).contains("kollect_"), "nothing without TLS");
}

/// Trusts every server that has the key of its certificate.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
