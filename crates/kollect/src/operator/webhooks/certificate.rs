//! A certificate of the webhooks, with the authority that signed it, as it is kept in a Secret. No request is made here.
//!
//! The key of an authority signs one certificate and is discarded, so every new certificate has a new authority. Whether
//! a certificate can be used is verified as a client would: for a name, with an authority, at a point in time.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use anyhow::{Context, anyhow};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    sign::CertifiedKey,
};

const DAY: Duration = Duration::from_hours(24);
/// How long a certificate is valid.
const VALIDITY: Duration = DAY.saturating_mul(365);
/// A certificate that ends sooner than this is replaced.
const RENEW_BEFORE: Duration = DAY.saturating_mul(120);
/// Certificates begin this long before they are made: clocks of API servers may be behind.
const CLOCK_TOLERANCE: Duration = Duration::from_mins(10);
/// A bundle of authorities is not longer: others can edit it.
const MAX_BUNDLE_BYTES: usize = 16 << 10;

/// Keys of the Secret.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
const NAMES: &str = "names";

/// A certificate, its key and its authority, all as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct WebhookCertificate {
    certificate: String,
    key: String,
    authority: String,
    /// DNS names of the certificate.
    names: Vec<String>,
}

impl WebhookCertificate {
    /// Makes a certificate for some names.
    pub(super) fn make(names: &[String], now: SystemTime) -> anyhow::Result<Self> {
        let begin = now.checked_sub(CLOCK_TOLERANCE).unwrap_or(now).duration_since(SystemTime::UNIX_EPOCH)?;
        let issued = date_time_ymd(1970, 1, 1) + begin;
        let params = |names: &[String], common_name: &str| -> anyhow::Result<CertificateParams> {
            let mut params = CertificateParams::new(names)?;
            params.not_before = issued;
            params.not_after = issued + CLOCK_TOLERANCE + VALIDITY;
            params.distinguished_name.push(DnType::CommonName, common_name);
            Ok(params)
        };
        // The time tells authorities apart: two of them are trusted while certificates are replaced.
        let mut authority = params(&[], &format!("kollect webhooks {}", begin.as_secs()))?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut certificate = params(names, "kollect webhooks")?;
        certificate.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        certificate.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        certificate.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = certificate.signed_by(&key, &authority)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            authority: authority.pem(),
            names: names.to_vec(),
        })
    }

    /// The certificate of a Secret; `None` if the Secret holds none.
    pub(super) fn of_secret(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        Some(Self {
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
            authority: text(AUTHORITY)?,
            names: text(NAMES)?.split_whitespace().map(Into::into).collect(),
        })
    }

    /// What the Secret holds.
    pub(super) fn secret_data(&self) -> BTreeMap<String, ByteString> {
        let Self { certificate, key, authority, names } = self;
        [(CERTIFICATE, certificate), (KEY, key), (AUTHORITY, authority), (NAMES, &names.join(" "))]
            .into_iter()
            .map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())))
            .collect()
    }

    /// DNS names of the certificate.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// What clients must trust that expect this certificate, or one of the `earlier` authorities. The newest are first; the
    /// oldest are left out if all are too long.
    pub(super) fn bundle(&self, earlier: &Authorities) -> String {
        let mut bundle = self.authority.clone();
        for authority in earlier.0.iter().filter(|authority| **authority != self.authority) {
            if bundle.len() + authority.len() > MAX_BUNDLE_BYTES {
                break;
            }
            bundle.push_str(authority);
        }
        bundle
    }

    /// Whether clients that know only its own authority accept it for a name, and will for long enough.
    pub(super) fn is_good_for(&self, name: &str, now: SystemTime) -> bool {
        // Now as well: a replica whose clock is fast makes a certificate that is not valid yet.
        let is_valid = |at| self.is_trusted_by(&self.authority, name, at);
        self.certified_key().is_ok() && is_valid(now) && is_valid(now + RENEW_BEFORE)
    }

    /// Whether a client that trusts the authorities of `bundle` accepts it for a name at a point in time.
    pub(super) fn is_trusted_by(&self, bundle: &str, name: &str, at: SystemTime) -> bool {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        certificate.is_ok_and(|certificate| verify(&certificate, bundle, name, at).is_ok())
    }

    /// What a server presents. Fails if the key does not belong to the certificate.
    pub(super) fn certified_key(&self) -> anyhow::Result<CertifiedKey> {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(|error| anyhow!("{CERTIFICATE}: {error}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| anyhow!("{KEY}: {error}"))?;
        CertifiedKey::from_der(vec![certificate], key, &ring::default_provider())
            .context("key and certificate are no usable pair")
    }
}

/// Authorities that clients trust: PEM blocks, each once.
#[derive(Default)]
pub(super) struct Authorities(Vec<String>);

impl Authorities {
    /// Those of several bundles.
    pub(super) fn of<'b>(bundles: impl IntoIterator<Item = &'b [u8]>) -> Self {
        const END: &str = "-----END CERTIFICATE-----";
        let mut authorities = Vec::new();
        for bundle in bundles.into_iter().filter_map(|bundle| str::from_utf8(bundle).ok()) {
            for block in bundle.split_inclusive(END).filter(|block| block.ends_with(END)) {
                let block = format!("{}\n", block.trim());
                if !authorities.contains(&block) {
                    authorities.push(block);
                }
            }
        }
        Self(authorities)
    }

    /// Whether a client that trusts these accepts a certificate.
    pub(super) fn accept(&self, certificate: &WebhookCertificate, name: &str, at: SystemTime) -> bool {
        certificate.is_trusted_by(&self.0.concat(), name, at)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Verifies a certificate as a client does that trusts the authorities of `bundle`.
pub(super) fn verify(
    certificate: &CertificateDer<'_>,
    bundle: &str,
    name: &str,
    at: SystemTime,
) -> anyhow::Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten());
    let provider = ring::default_provider().into();
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build()?;
    let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH)?);
    verifier.verify_server_cert(certificate, &[], &ServerName::try_from(name)?, &[], at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "kollect-webhook-service.kollect-system.svc";

    fn make(now: SystemTime) -> WebhookCertificate {
        WebhookCertificate::make(&[NAME.to_owned()], now).unwrap()
    }

    #[test]
    fn a_new_certificate_is_good_until_it_must_be_renewed() {
        let now = SystemTime::now();
        let certificate = make(now);
        certificate.certified_key().unwrap();
        for (days, good, valid) in
            [(0, true, true), (244, true, true), (246, false, true), (366, false, false)]
        {
            let at = now + DAY * days;
            assert_eq!(certificate.is_good_for(NAME, at), good, "{days} days later");
            assert_eq!(
                certificate.is_trusted_by(&certificate.authority, NAME, at),
                valid,
                "{days} days later"
            );
        }
        assert!(!certificate.is_good_for("other.kollect-system.svc", now), "another name");
        assert!(!certificate.is_good_for(NAME, now - Duration::from_hours(1)), "not valid yet");
        let other = make(now);
        assert!(!certificate.is_trusted_by(&other.authority, NAME, now), "another authority");
        assert!(!certificate.is_trusted_by("", NAME, now), "no authority");
        let mixed = WebhookCertificate { key: other.key.clone(), ..certificate.clone() };
        assert!(!mixed.is_good_for(NAME, now), "a key of another certificate");
        let slow_clock = now - Duration::from_mins(9);
        assert!(certificate.is_trusted_by(&certificate.authority, NAME, slow_clock));
    }

    #[test]
    fn a_certificate_survives_the_secret() {
        let now = SystemTime::now();
        let names = [NAME.to_owned(), "old.kollect-system.svc".to_owned()];
        let certificate = WebhookCertificate::make(&names, now).unwrap();
        let data = certificate.secret_data();
        assert!(WebhookCertificate::of_secret(&data).unwrap() == certificate);
        assert!(names.iter().all(|name| certificate.is_good_for(name, now)));
        assert!(WebhookCertificate::of_secret(&BTreeMap::new()).is_none());
    }

    #[test]
    fn a_bundle_has_the_earlier_authorities_once_and_the_newest_if_they_are_many() {
        let now = SystemTime::now();
        let (old, new) = (make(now), make(now));
        let earlier = Authorities::of([old.authority.as_bytes(), b"nonsense", &[0xff]]);
        let both = new.bundle(&earlier);
        assert!([&old, &new].iter().all(|certificate| certificate.is_trusted_by(&both, NAME, now)));
        let again = Authorities::of([both.as_bytes(), old.authority.as_bytes(), both.trim_end().as_bytes()]);
        assert_eq!(new.bundle(&again), both, "nothing to change");
        assert!(again.accept(&old, NAME, now) && !Authorities::default().accept(&old, NAME, now));
        let many: Vec<WebhookCertificate> = (0..30).map(|_| make(now)).collect();
        let bundle = new.bundle(&Authorities::of(many.iter().map(|old| old.authority.as_bytes())));
        let trusts = |certificate: &WebhookCertificate| certificate.is_trusted_by(&bundle, NAME, now);
        assert!(bundle.len() <= MAX_BUNDLE_BYTES && trusts(&new) && trusts(&many[0]) && !trusts(&many[29]));
    }
}
