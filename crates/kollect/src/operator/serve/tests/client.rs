//! Clients that see what a server really sends, and an authority for its certificates.

use std::{
    fmt::Debug,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::{self, Instant},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::super::{Limits, ListenEndpoint, ReportNotice, ServerNotice, ServerTls};

/// Long enough for a machine that is busy with something else.
pub(in super::super) const WAIT_LIMIT: Duration = Duration::from_secs(30);

pub(in super::super) fn endpoint(tls: ServerTls) -> ListenEndpoint {
    let limits = Limits { reload: Duration::from_millis(50), ..Limits::default() };
    ListenEndpoint { flag: "--test-bind-address", address: "127.0.0.1:0".into(), tls, http2: false, limits }
}

/// Records notices for the test.
#[derive(Default, Clone)]
pub(in super::super) struct Notices(Arc<Mutex<Vec<ServerNotice>>>);

impl Notices {
    pub(in super::super) fn report(&self) -> ReportNotice {
        let recorded = self.0.clone();
        Arc::new(move |notice| recorded.lock().unwrap().push(notice))
    }

    pub(in super::super) fn all(&self) -> Vec<ServerNotice> {
        self.0.lock().unwrap().clone()
    }

    pub(in super::super) async fn until(&self, count: usize) -> ServerNotice {
        eventually("a notice", || self.all().len() >= count).await;
        self.all()[count - 1].clone()
    }
}

pub(in super::super) async fn eventually(expected: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{expected} never came true");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// A private authority.
pub(in super::super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate of it, with its key, as PEM.
pub(in super::super) struct Issued {
    pub(in super::super) certificate: String,
    pub(in super::super) key: String,
    pub(in super::super) der: CertificateDer<'static>,
}

impl Authority {
    pub(in super::super) fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    pub(in super::super) fn issue(&self) -> Issued {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        Issued { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }

    pub(in super::super) fn trusting(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(roots).with_no_client_auth()
    }
}

/// A directory as kubelet keeps it for a mounted Secret.
pub(in super::super) struct Mount {
    dir: tempfile::TempDir,
    generation: u32,
}

impl Mount {
    pub(in super::super) fn new(issued: &Issued) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(Path::new("..data").join(file), dir.path().join(file)).unwrap();
        }
        let mut mount = Self { dir, generation: 0 };
        mount.swap(&issued.certificate, &issued.key);
        mount
    }

    pub(in super::super) fn swap(&mut self, certificate: &str, key: &str) {
        self.generation += 1;
        let root = self.dir.path();
        let name = format!("..{}", self.generation);
        std::fs::create_dir(root.join(&name)).unwrap();
        std::fs::write(root.join(&name).join("tls.crt"), certificate).unwrap();
        std::fs::write(root.join(&name).join("tls.key"), key).unwrap();
        std::os::unix::fs::symlink(&name, root.join("..data_tmp")).unwrap();
        std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    pub(in super::super) fn tls(&self) -> ServerTls {
        files(self.dir.path().into())
    }
}

pub(in super::super) fn files(dir: PathBuf) -> ServerTls {
    ServerTls::Files { dir, cert: "tls.crt".into(), key: "tls.key".into() }
}

/// Accepts every certificate, as clients that scrape a self-signed server do.
#[derive(Debug)]
struct TrustAnyServer;

impl ServerCertVerifier for TrustAnyServer {
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

pub(in super::super) fn trusts_any_server() -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnyServer)).with_no_client_auth()
}

/// One connection that uses HTTP/1.1.
pub(in super::super) struct Connection<S> {
    pub(in super::super) stream: S,
}

#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct HttpAnswer {
    pub(in super::super) status: u16,
    pub(in super::super) head: String,
    pub(in super::super) body: String,
}

impl Connection<TcpStream> {
    pub(in super::super) async fn plain(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap() }
    }
}

impl Connection<TlsStream<TcpStream>> {
    pub(in super::super) async fn secure(address: SocketAddr, config: ClientConfig) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Self { stream: TlsConnector::from(Arc::new(config)).connect(name, stream).await? })
    }

    pub(in super::super) fn certificate(&self) -> CertificateDer<'static> {
        self.stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }

    pub(in super::super) fn protocol(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(in super::super) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub(in super::super) async fn get(&mut self, path: &str, headers: &str) -> HttpAnswer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")).await;
        self.answer().await.expect("an answer")
    }

    /// The next response; nothing if the server has closed the connection.
    pub(in super::super) async fn answer(&mut self) -> Option<HttpAnswer> {
        time::timeout(WAIT_LIMIT, self.read()).await.expect("the server neither answers nor leaves")
    }

    async fn read(&mut self) -> Option<HttpAnswer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(HttpAnswer { status, head, body: String::from_utf8(body).unwrap() })
    }
}
