//! TLS for all sinks: which certificates to trust, whether the name must match, and the client certificate.
//!
//! A custom verifier is needed for two reasons. There are modes between "accept any certificate" and "check chain
//! and name". And a connection goes to an address that was resolved before, while the certificate must still be
//! checked against the name.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::{SpecError, crd::sinks::Tls};
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

use crate::{Secrets, secrets::ClientCertificate};

const CA_BUNDLE: &str = "spec.tls.caBundle";
const CA_REF: &str = "spec.tls.caSecretRef";
const CA_KEYS: &[&str] = &["tls.crt", "ca.crt", "ca.pem"];
/// If the Secret has a private key, tls.crt is usually the certificate of that key and not a CA certificate.
const CA_KEYS_BESIDE_PRIVATE_KEY: &[&str] = &["ca.crt", "ca.pem", "tls.crt"];
const PRIVATE_KEY: &str = "tls.key";

/// Which servers a sink trusts: what `spec.tls` says.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerTrust {
    /// Certificates to trust, PEM; `None`: the spec names none.
    pub(crate) certificates: Option<Vec<u8>>,
    /// `spec.tls.insecureSkipVerify`: any server is trusted.
    pub(crate) any_server: bool,
}

impl ServerTrust {
    /// The settings of the spec, without the Secret.
    pub(crate) fn plan(tls: Option<&Tls>) -> Result<Self, SpecError> {
        let Some(tls) = tls else { return Ok(Self::default()) };
        let bundle = tls.ca_bundle.as_deref().map(|bundle| {
            let pem = STANDARD.decode(bundle.trim()).map_err(|_| "is not base64".to_owned())?;
            certificates(&pem).map(|_| pem)
        });
        let certificates = bundle.transpose().map_err(|problem| SpecError::absent(CA_BUNDLE, problem))?;
        Ok(Self { certificates, any_server: tls.insecure_skip_verify })
    }

    /// The same with the certificates of the Secret that `caSecretRef` names, if it names one.
    pub(crate) fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, SpecError> {
        let has_private_key = secrets.first(CA_REF, &[PRIVATE_KEY]).is_some();
        let keys = if has_private_key { CA_KEYS_BESIDE_PRIVATE_KEY } else { CA_KEYS };
        if let Some(pem) = secrets.first(CA_REF, keys) {
            certificates(pem)
                .map_err(|problem| SpecError::absent(CA_REF, format!("the Secret {problem}")))?;
            self.certificates = Some(pem.to_vec());
        }
        Ok(self)
    }

    /// The client side of TLS with these settings. For `server_name` and the roots of the machine see
    /// [`client_config`].
    pub(crate) fn client_config(
        &self,
        server_name: Option<ServerName<'static>>,
        client_certificate: Option<&ClientCertificate>,
    ) -> Result<ClientConfig, String> {
        let trusted = self.certificates.as_deref().map(certificates).transpose()?;
        let check = if self.any_server { CertificateCheck::Nothing } else { CertificateCheck::ChainAndName };
        let client_certificate =
            client_certificate.map(|(certificate, key)| identity(certificate, key)).transpose()?;
        client_config(check, trusted, server_name, client_certificate)
    }
}

/// Which parts of a server's certificate are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateCheck {
    /// Nothing: any server is accepted.
    Nothing,
    /// The chain of signatures.
    Chain,
    /// The chain of signatures, and the name of the host.
    ChainAndName,
}

/// A client certificate with its key, from PEM. An error says nothing about the key.
pub(crate) fn identity(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        "holds no private key; write PEM that begins with -----BEGIN PRIVATE KEY-----".to_owned()
    })?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|_| "has a key of another certificate, or of an unknown kind".to_owned())
}

/// Certificates of a PEM text. An empty list is an error, because no server would be trusted.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("holds no certificate; write PEM that begins with -----BEGIN CERTIFICATE-----".into()),
    }
}

/// The client side of TLS. `trusted`: `None` for the roots of the machine. `server_name`: the name that the certificate
/// must have if it differs from the name of the connection.
pub(crate) fn client_config(
    check: CertificateCheck,
    trusted: Option<Vec<CertificateDer<'static>>>,
    server_name: Option<ServerName<'static>>,
    identity: Option<CertifiedKey>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let chain = match check {
        CertificateCheck::Nothing => None,
        _ => Some(CertificateChain::new(
            trusted,
            check == CertificateCheck::ChainAndName,
            server_name,
            &provider,
        )?),
    };
    let verifier = Arc::new(CertificateVerifier { chain, provider: provider.clone() });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(match identity {
        None => config.with_no_client_auth(),
        Some(identity) => config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
    })
}

/// Verifies certificate chains.
#[derive(Debug)]
struct CertificateChain {
    webpki: Arc<WebPkiServerVerifier>,
    /// Certificates from the configuration: the server may present one of them as its own.
    configured: Vec<CertificateDer<'static>>,
    check_name: bool,
    /// The name that the certificate must have, if it differs from the name of the connection.
    server_name: Option<ServerName<'static>>,
}

impl CertificateChain {
    fn new(
        trusted: Option<Vec<CertificateDer<'static>>>,
        check_name: bool,
        server_name: Option<ServerName<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let configured = trusted.clone().unwrap_or_default();
        let mut roots = RootCertStore::empty();
        // Some machines have root certificates that cannot be parsed; these are skipped.
        roots.add_parsable_certificates(
            trusted.unwrap_or_else(|| rustls_native_certs::load_native_certs().certs),
        );
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| format!("no certificate can be trusted: {error}"))?;
        Ok(Self { webpki, configured, check_name, server_name })
    }

    fn verify(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let name = self.server_name.as_ref().unwrap_or(name);
        // `openssl req -x509` makes self-signed CA certificates, and libpq accepts them for servers; webpki refuses a
        // CA certificate as a server certificate.
        if self.configured.iter().any(|configured| configured == presented) {
            if self.check_name {
                verify_server_name(&ParsedCertificate::try_from(presented)?, name)?;
            }
            return Ok(());
        }
        match self.webpki.verify_server_cert(presented, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.check_name => Ok(()),
            verified => verified.map(|_| ()),
        }
    }
}

#[derive(Debug)]
struct CertificateVerifier {
    /// `None`: any certificate is accepted.
    chain: Option<CertificateChain>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(chain) = &self.chain {
            chain.verify(presented, intermediates, name, ocsp, now)?;
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

#[cfg(test)]
mod tests;
