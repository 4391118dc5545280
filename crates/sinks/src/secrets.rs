//! Contents of the Secrets that a sink names.
//!
//! The code that reads Secrets inserts one entry for each field of `SinkSpec::secret_refs`; a plan takes what
//! it needs. No value is ever printed.

use std::{collections::BTreeMap, fmt};

/// Contents of Secrets, by the field that names them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, BTreeMap<String, Vec<u8>>>);

impl Secrets {
    /// Adds the content of the Secret that `field` names, such as `spec.postgres.databaseRef`.
    pub fn insert(&mut self, field: impl Into<String>, content: BTreeMap<String, Vec<u8>>) {
        self.0.insert(field.into(), content);
    }

    /// The first of `keys` that has a value in the Secret of `field`.
    pub fn first(&self, field: &str, keys: &[&str]) -> Option<&[u8]> {
        let content = self.0.get(field)?;
        keys.iter().filter_map(|key| content.get(*key)).map(Vec::as_slice).find(|value| !value.is_empty())
    }
}

/// A certificate and its key, PEM both.
pub(crate) type ClientCertificate = (Vec<u8>, Vec<u8>);

#[cfg(feature = "tls")]
impl Secrets {
    /// The text of a key, without newlines at its end: Secrets made from files have them, passwords never do.
    pub(crate) fn text(&self, field: &str, key: &str) -> Result<Option<String>, String> {
        let text = self.first(field, &[key]).map(str::from_utf8).transpose();
        let text = text.map_err(|_| format!("holds no text in key {key}"))?;
        Ok(text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// The client certificate and its key, checked to belong together.
    pub(crate) fn identity(&self, field: &str) -> Result<Option<ClientCertificate>, String> {
        let file = |name| self.first(field, &[name]).map(<[u8]>::to_vec);
        match (file("tls.crt"), file("tls.key")) {
            (Some(certificate), Some(key)) => {
                crate::tls::identity(&certificate, &key)?;
                Ok(Some((certificate, key)))
            }
            (None, Some(_)) => Err("has tls.key and no tls.crt".into()),
            // A certificate without a key is a CA certificate, as in spec.tls.
            (_, None) => Ok(None),
        }
    }
}

/// Prints names of fields and keys only, no values.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = |content: &BTreeMap<String, Vec<u8>>| content.keys().cloned().collect::<Vec<_>>();
        f.debug_map().entries(self.0.iter().map(|(field, content)| (field, keys(content)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_wins_and_no_value_is_printed() {
        let mut secrets = Secrets::default();
        let content =
            [("url", "hunter2"), ("dsn", "hunter3"), ("empty", "")].map(|(k, v)| (k.to_owned(), v.into()));
        secrets.insert("spec.x", content.into());
        assert_eq!(secrets.first("spec.x", &["empty", "dsn", "url"]), Some("hunter3".as_bytes()));
        assert_eq!(secrets.first("spec.y", &["dsn", "url"]), None);
        assert_eq!(format!("{secrets:?}"), r#"{"spec.x": ["dsn", "empty", "url"]}"#);
    }
}
