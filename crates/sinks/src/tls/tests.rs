//! How `spec.tls` and its Secret are read, and which problems are reported.

use std::collections::BTreeMap;

use kollect_model::crd::sinks::Tls;

use super::*;

/// PEM with different content for each text.
fn pem(text: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(text))
}

fn secrets(content: &[(&str, String)]) -> Secrets {
    let content: BTreeMap<String, Vec<u8>> =
        content.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into_bytes())).collect();
    let mut secrets = Secrets::default();
    secrets.insert(CA_REF, content);
    secrets
}

#[test]
fn a_bundle_is_decoded_and_must_hold_a_certificate() {
    let plan =
        |bundle: &str| ServerTrust::plan(Some(&Tls { ca_bundle: Some(bundle.into()), ..Tls::default() }));
    let trust = plan(&format!("{}\n", STANDARD.encode(pem("ca")))).unwrap_or_default();
    assert_eq!(trust.certificates, Some(pem("ca").into_bytes()));
    for (bundle, problem) in [
        ("***", "is not base64"),
        (
            &*STANDARD.encode("text"),
            "holds no certificate; write PEM that begins with -----BEGIN CERTIFICATE-----",
        ),
    ] {
        assert_eq!(plan(bundle).err(), Some(SpecError::absent("spec.tls.caBundle", problem)));
    }
}

#[test]
fn without_settings_the_roots_of_the_machine_are_trusted() {
    assert!(ServerTrust::plan(None).ok() == Some(ServerTrust { certificates: None, any_server: false }));
    let tls = Tls { insecure_skip_verify: true, ..Tls::default() };
    assert!(ServerTrust::plan(Some(&tls)).ok() == Some(ServerTrust { certificates: None, any_server: true }));
}

#[test]
fn certificates_of_the_secret_replace_those_of_the_spec() {
    let read = |content: &[(&str, String)]| {
        let trust = ServerTrust { certificates: Some(b"old".to_vec()), any_server: false };
        trust.with_secrets(&secrets(content)).map(|trust| trust.certificates)
    };
    let ca = ("ca.crt", pem("ca"));
    let own = ("tls.crt", pem("own"));
    assert_eq!(read(&[]), Ok(Some(b"old".to_vec())));
    assert_eq!(read(std::slice::from_ref(&ca)), Ok(Some(pem("ca").into_bytes())));
    assert_eq!(read(&[("ca.pem", pem("ca"))]), Ok(Some(pem("ca").into_bytes())));
    assert_eq!(read(&[ca.clone(), own.clone()]), Ok(Some(pem("own").into_bytes())));
    // cert-manager writes these three: the certificate of the key's owner is not the one that signed it.
    let key = ("tls.key", "a key".to_owned());
    assert_eq!(read(&[ca, own.clone(), key.clone()]), Ok(Some(pem("ca").into_bytes())));
    assert_eq!(read(&[own, key]), Ok(Some(pem("own").into_bytes())));
    let problem = "the Secret holds no certificate; write PEM that begins with -----BEGIN CERTIFICATE-----";
    assert_eq!(
        read(&[("ca.crt", "text".into())]),
        Err(SpecError::absent("spec.tls.caSecretRef", problem)),
        "and what it holds is not repeated"
    );
}
