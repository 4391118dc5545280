//! TLS with the modes of libpq: whether to encrypt, which certificates to trust, and whether the name must match.
//!
//! A custom connector, because the modes between "encrypt only" and "check chain and name" need a custom
//! verifier.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
    sign::CertifiedKey,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

use super::{channel_binding, dsn::SslMode};
use crate::tls::{CertificateCheck, client_config};
pub(super) use crate::tls::{certificates, identity};

/// Why a trusted connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    /// The server's certificate is not trusted, is for another host, or is missing.
    #[error("the server's certificate is not accepted")]
    Certificate(#[source] rustls::Error),
    /// The host cannot be the name in a certificate.
    #[error("the host is not a name that a certificate can have")]
    Name,
    /// Any other error, for example a lost connection.
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

/// The client side of TLS. `trusted`: `None` for the roots of the machine.
pub(super) fn client(
    mode: SslMode,
    trusted: Option<Vec<CertificateDer<'static>>>,
    trust_any_server: bool,
    identity: Option<CertifiedKey>,
) -> Result<PostgresTls, String> {
    let check = match mode {
        _ if trust_any_server => CertificateCheck::Nothing,
        SslMode::VerifyFull => CertificateCheck::ChainAndName,
        SslMode::VerifyCa => CertificateCheck::Chain,
        // As in libpq: given certificates are checked even in modes that do not require it.
        _ if trusted.is_some() => CertificateCheck::Chain,
        _ => CertificateCheck::Nothing,
    };
    Ok(PostgresTls(Arc::new(client_config(check, trusted, None, identity)?)))
}

/// The TLS implementation for the driver.
#[derive(Clone)]
pub(super) struct PostgresTls(Arc<ClientConfig>);

/// A handshake with one host.
pub(super) struct PostgresHandshake {
    config: Arc<ClientConfig>,
    /// `None` if the host cannot be the name in a certificate, for example a Unix socket.
    name: Option<ServerName<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for PostgresTls {
    type Stream = Stream<S>;
    type TlsConnect = PostgresHandshake;
    type Error = TlsError;

    fn make_tls_connect(&mut self, host: &str) -> Result<PostgresHandshake, TlsError> {
        Ok(PostgresHandshake { config: self.0.clone(), name: ServerName::try_from(host.to_owned()).ok() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for PostgresHandshake {
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
        let presented = session.peer_certificates().and_then(<[_]>::first);
        match presented.and_then(|certificate| channel_binding::end_point(certificate)) {
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
