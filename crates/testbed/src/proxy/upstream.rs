//! The API server as the proxy sees it: an address, and a certificate to trust.
//!
//! Called for each request that is forwarded. No protocol is negotiated, so it is HTTP/1.1.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::connections::{ProxyConnection, Socket};
use crate::ControlPlane;

/// How to reach the API server.
#[derive(Debug)]
pub(super) struct Upstream {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl Upstream {
    pub(super) fn new(plane: &ControlPlane) -> io::Result<Self> {
        let url = plane.url();
        let host_and_port = url.trim_start_matches("https://");
        let address = host_and_port.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let certificate = CertificateDer::from_pem_slice(plane.ca_pem().as_bytes());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, tls: Arc::new(tls) })
    }

    /// Connects the server's end of `connection`. The handshake takes place with the first bytes.
    pub(super) fn connect<'a>(
        &self,
        connection: &'a ProxyConnection<'_>,
    ) -> io::Result<StreamOwned<ClientConnection, Socket<'a>>> {
        let name = ServerName::from(self.address.ip());
        let session = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(session, connection.connect(self.address)?))
    }
}
