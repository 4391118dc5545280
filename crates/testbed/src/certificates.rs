//! A private certificate authority, and certificates of servers and clients that it has signed.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::{Error, Scratch};

/// What a TLS client needs, all PEM.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// Certificate of the authority that signed those of the server and of the client.
    pub ca: String,
    /// Certificate of a client.
    pub client: String,
    /// Key of that client.
    pub client_key: String,
}

/// Makes an authority, a certificate for `host`, and one for a client. Writes `ca.crt`, `server.crt` and
/// `server.key`.
pub(crate) fn write_certificates(scratch: &Scratch, host: &str) -> Result<Certificates, Error> {
    let ca_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    // OpenSSL treats a certificate as self-signed if it has the same name as its authority.
    authority.distinguished_name.push(DnType::CommonName, "authority of the testbed");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(authority, ca_key);
    let signed = |name: &str, purpose| -> Result<(String, String), Error> {
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new([name.to_owned()])?;
        leaf.distinguished_name.push(DnType::CommonName, name);
        leaf.extended_key_usages = vec![purpose];
        Ok((leaf.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    };
    let (server, server_key) = signed(host, ExtendedKeyUsagePurpose::ServerAuth)?;
    let (client, client_key) = signed("client", ExtendedKeyUsagePurpose::ClientAuth)?;
    for (file, text) in [("ca.crt", &ca), ("server.crt", &server), ("server.key", &server_key)] {
        scratch.write(file, text)?;
    }
    Ok(Certificates { ca, client, client_key })
}
