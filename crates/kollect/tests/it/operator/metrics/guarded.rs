//! `/metrics` over TLS: the API server decides who may read, whichever authority signed the certificate.

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
fn only_those_who_may_get_them_get_metrics_over_tls() {
    let world = World::new("guarded");
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certs = world.dir.path().join("certs");
    std::fs::create_dir(&certs).unwrap();
    std::fs::write(certs.join("my.crt"), certificate.pem()).unwrap();
    std::fs::write(certs.join("my.key"), key.serialize_pem()).unwrap();
    let path = certs.to_str().unwrap().to_owned();
    let files = ["--metrics-cert-path", &path, "--metrics-cert-name=my.crt", "--metrics-cert-key=my.key"];
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let client = builder().with_root_certificates(roots);
    is_guarded(world, &[&ADDRESS[..], &files].concat(), client);
}

#[test]
fn without_a_certificate_metrics_are_encrypted_and_guarded_as_well() {
    let provider = Arc::new(ring::default_provider());
    let client = builder().dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)));
    is_guarded(World::new("selfsigned"), &ADDRESS, client);
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    client.with_safe_default_protocol_versions().unwrap()
}

fn is_guarded(mut world: World, args: &[&str], client: rustls::ConfigBuilder<ClientConfig, WantsClientCert>) {
    world.start(args);
    let client = Arc::new(client.with_no_client_auth());
    let address = world.metrics_address();
    let status = |headers: &str| {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(client.clone(), name).unwrap();
        ask(StreamOwned::new(connection, TcpStream::connect(address).unwrap()), headers)
    };
    let bearer = |account: &str| {
        world.plane.user(&world.namespace, account, &[]).unwrap();
        let token = world.plane.kubectl(&["create", "token", account, "-n", &world.namespace]).unwrap();
        format!("Authorization: Bearer {}\r\n", token.trim())
    };
    let (reader, nobody) = (bearer("reader"), bearer("nobody"));
    let labels = json!({ "name": format!("{}-metrics", world.namespace) });
    let account = json!({ "kind": "ServiceAccount", "name": "reader", "namespace": world.namespace });
    let role = std::fs::read_to_string(root().join("config/rbac/metrics_reader_role.yaml")).unwrap();
    world.plane.apply(&role).unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": labels,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kollect-metrics-reader",
        },
        "subjects": [account],
    });
    world.plane.apply(&binding.to_string()).unwrap();
    assert_eq!(status("").0, "401");
    assert_eq!(status("Authorization: Bearer made-up\r\n").0, "401");
    assert_eq!(status(&nobody).0, "403");
    eventually("the right", || {
        let (status, body) = status(&reader);
        (status == "200").then(|| drop(Exposition::parse(&body))).ok_or(status)
    });
    let mut plain = TcpStream::connect(address).unwrap();
    // The server may close the connection before it has read the whole request.
    write!(plain, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{reader}\r\n").ok();
    let mut answer = Vec::new();
    plain.read_to_end(&mut answer).ok();
    assert!(!String::from_utf8_lossy(&answer).contains("kollect_"), "nothing without TLS");
}

/// Trusts every server that proves to have the key of the certificate that it shows.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
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
