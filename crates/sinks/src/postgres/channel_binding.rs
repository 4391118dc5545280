//! Channel binding `tls-server-end-point` (RFC 5929): makes a password proof valid for this server only.
//!
//! It is a hash of the server's certificate, with the hash function of the certificate's signature.

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};

/// Hash functions by the DER of the signature algorithm. The RFC replaces weak hashes with SHA-256.
const HASHES: &[(&[u8], &Algorithm)] = &[
    // RSA with MD5, SHA-1, SHA-256, SHA-384, SHA-512.
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], &SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], &SHA512),
    // ECDSA with SHA-1, SHA-256, SHA-384, SHA-512.
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], &SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], &SHA512),
];

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// The channel binding of the server with this certificate (DER). `None` for signature algorithms without one
/// hash function, such as Ed25519: the RFC does not define a binding for them.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (outer, _) = element(certificate, SEQUENCE)?;
    let (_, following) = element(outer, SEQUENCE)?;
    let (algorithm, _) = element(following, SEQUENCE)?;
    let (name, _) = element(algorithm, OBJECT_IDENTIFIER)?;
    let (_, hash) = HASHES.iter().find(|(known, _)| *known == name)?;
    Some(digest(hash, certificate).as_ref().to_vec())
}

/// Content of the first element of some DER, and what follows the element.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        // A length of four bytes is enough for any certificate.
        length = (1..=4)
            .contains(&digits.len())
            .then(|| digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)))?;
        rest = after;
    }
    (found == tag).then(|| rest.split_at_checked(length)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(algorithm: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, content: &[u8]| {
            let length = u16::try_from(content.len()).unwrap().to_be_bytes();
            [&[tag, 0x82], length.as_slice(), content].concat()
        };
        let to_be_signed = wrap(SEQUENCE, &[0; 300]);
        let algorithm = wrap(SEQUENCE, &wrap(OBJECT_IDENTIFIER, algorithm));
        wrap(SEQUENCE, &[to_be_signed, algorithm, wrap(3, &[0; 64])].concat())
    }

    #[test]
    fn the_signature_algorithm_decides_the_hash() {
        for (name, hash) in HASHES {
            let certificate = certificate(name);
            assert_eq!(end_point(&certificate).unwrap(), digest(hash, &certificate).as_ref());
        }
        // Ed25519.
        assert_eq!(end_point(&certificate(&[0x2b, 0x65, 0x70])), None);
    }

    #[test]
    fn an_incomplete_certificate_has_no_channel_binding() {
        let complete = certificate(HASHES[2].0);
        for length in 0..complete.len() {
            assert_eq!(end_point(&complete[..length]), None, "{length}");
        }
        assert_eq!(end_point(&[SEQUENCE, 0xff, 0, 0]), None);
        assert_eq!(end_point(&[SEQUENCE, 0x80, 0, 0]), None);
    }
}
