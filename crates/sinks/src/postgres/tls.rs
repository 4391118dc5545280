//! TLS as libpq means it: whether to encrypt, whom to trust, and whether the name must match.
//!
//! A connector of our own, because the modes between "encrypt" and "trust nobody without a name" need
//! a verifier of their own in any case.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

use super::{binding, dsn::SslMode};

/// Why no trusted connection came about.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    /// The server proved to be somebody else, or nobody.
    #[error("the server's certificate is not accepted")]
    Certificate(#[source] rustls::Error),
    /// A host that no certificate can name.
    #[error("the host is not a name that a certificate can have")]
    Name,
    /// Everything else, a lost connection for instance.
    #[error("the handshake failed")]
    Handshake(#[source] io::Error),
}

impl From<io::Error> for TlsError {
    fn from(error: io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(why)) => {
                Self::Certificate(rustls::Error::InvalidCertificate(why.clone()))
            }
            _ => Self::Handshake(error),
        }
    }
}

/// Certificates of a PEM text; none is an error, because it would trust nobody.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("holds no certificate; write PEM that begins with -----BEGIN CERTIFICATE-----".into()),
    }
}

/// A client certificate with its key, from PEM.
pub(super) fn identity(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        "holds no private key; write PEM that begins with -----BEGIN PRIVATE KEY-----".to_owned()
    })?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|_| "has a key of another certificate, or of an unknown kind".to_owned())
}

/// The client side of TLS. `trusted`: `None` for the roots of the machine.
pub(super) fn client(
    mode: SslMode,
    trusted: Option<Vec<CertificateDer<'static>>>,
    trust_anybody: bool,
    identity: Option<CertifiedKey>,
) -> Result<Connector, String> {
    let provider = Arc::new(ring::default_provider());
    // As in libpq: certificates that are given are used, even by modes that could do without.
    let check = !trust_anybody && (mode >= SslMode::VerifyCa || trusted.is_some());
    let chain = if check { Some(Chain::new(trusted, mode == SslMode::VerifyFull, &provider)?) } else { None };
    let verifier = Arc::new(Verifier { chain, provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        Some(identity) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => config.with_no_client_auth(),
    };
    Ok(Connector(Arc::new(config)))
}

/// Which chains are good.
#[derive(Debug)]
struct Chain {
    web: Arc<WebPkiServerVerifier>,
    /// Certificates that were given by hand: a server may show one of them itself.
    given: Vec<CertificateDer<'static>>,
    check_name: bool,
}

impl Chain {
    fn new(
        trusted: Option<Vec<CertificateDer<'static>>>,
        check_name: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let given = trusted.clone().unwrap_or_default();
        let mut roots = RootCertStore::empty();
        // Some machines carry roots that nobody can read; the others still count.
        roots.add_parsable_certificates(
            trusted.unwrap_or_else(|| rustls_native_certs::load_native_certs().certs),
        );
        let web = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| format!("no certificate can be trusted: {error}"))?;
        Ok(Self { web, given, check_name })
    }

    fn verify(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        // `openssl req -x509` makes such certificates, and libpq takes them; webpki says that a CA
        // cannot be a server.
        if self.given.iter().any(|given| given == shown) {
            if self.check_name {
                verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
            }
            return Ok(());
        }
        match self.web.verify_server_cert(shown, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.check_name => Ok(()),
            verified => verified.map(|_| ()),
        }
    }
}

#[derive(Debug)]
struct Verifier {
    /// `None`: any certificate will do.
    chain: Option<Chain>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(chain) = &self.chain {
            chain.verify(shown, intermediates, name, ocsp, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What the driver asks for TLS.
#[derive(Clone)]
pub(super) struct Connector(Arc<ClientConfig>);

/// A handshake with one host.
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    /// `None`: no certificate can name this host, a Unix socket for instance.
    name: Option<ServerName<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Stream<S>;
    type TlsConnect = Handshake;
    type Error = TlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, TlsError> {
        Ok(Handshake { config: self.0.clone(), name: ServerName::try_from(host.to_owned()).ok() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Stream<S>;
    type Error = TlsError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream<S>, TlsError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.name.ok_or(TlsError::Name)?;
            let stream = tokio_rustls::TlsConnector::from(self.config).connect(name, stream).await?;
            Ok(Stream(stream))
        })
    }
}

/// An encrypted connection.
pub(super) struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        match shown.and_then(|certificate| binding::end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
