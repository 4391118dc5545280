//! Git over SSH.

use russh::keys::{self, PrivateKey};

/// A private key from a Secret. A problem says nothing about it.
pub(in crate::git) fn private_key(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    // Secrets that were written by hand often lack the newline at the end.
    match keys::decode_secret_key(&format!("{}\n", text.trim()), passphrase) {
        Ok(key) => Ok(key),
        Err(keys::Error::KeyIsEncrypted) => {
            Err("has a private key with a passphrase and no key passphrase; add it".into())
        }
        Err(_) if passphrase.is_some() => {
            Err("has a private key that its passphrase does not open, or that cannot be read".into())
        }
        Err(_) => Err("has a private key that cannot be read; write what ssh-keygen makes, from -----BEGIN \
                       to the end"
            .into()),
    }
}
