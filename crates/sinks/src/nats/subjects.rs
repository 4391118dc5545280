//! Subjects: encodes any text as a valid token, and gives each row a subject.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kollect_model::{batch::InventoryId, event::DEFAULT_CLUSTER, row::RowKey};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

/// Maximum length of a token; longer ones end with a hash.
const MAX_TOKEN_LENGTH: usize = 64;
/// How many characters of a long text are kept, for people.
const KEPT_CHARACTERS: usize = 32;
/// The token for objects without a namespace.
const NO_NAMESPACE: &str = "-";
/// The token of the claim, after the inventory. No token of a row has this character.
const CLAIM: &str = "$holder";

/// Returns an error unless messages can be sent to a subject and below it.
pub(super) fn check(subject: &str) -> Result<(), String> {
    if subject.split('.').any(str::is_empty) {
        return Err("has an empty token: no dot at its ends, no two in a row".into());
    }
    if subject.contains(|c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>') {
        return Err("must not contain white space, * or >".into());
    }
    if subject.starts_with('$') || subject.starts_with("_INBOX.") {
        return Err("belongs to the server: begin with another name".into());
    }
    Ok(())
}

/// The subjects of one inventory.
#[derive(Clone, Debug)]
pub(super) struct Subjects {
    /// `<subject>.<cluster>.<namespace>.<inventory>`
    prefix: String,
}

impl Subjects {
    pub(super) fn new(subject: &str, inventory: &InventoryId) -> Self {
        let InventoryId { cluster, name, .. } = inventory;
        let cluster = if cluster.is_empty() { DEFAULT_CLUSTER } else { cluster };
        let namespace = inventory.stored_namespace();
        Self { prefix: format!("{subject}.{}.{}.{}", token(cluster), token(namespace), token(name)) }
    }

    /// Matches all of them.
    pub(super) fn all(&self) -> String {
        format!("{}.>", self.prefix)
    }

    /// The subject of the claim.
    pub(super) fn claim(&self) -> String {
        format!("{}.{CLAIM}", self.prefix)
    }

    /// The subject of a row, unique for each key: `<prefix>.<kind>.<namespace>.<row>`.
    pub(super) fn row(&self, key: &RowKey) -> String {
        let namespace = if key.namespace.is_empty() { NO_NAMESPACE.into() } else { token(&key.namespace) };
        let hash = URL_SAFE_NO_PAD.encode(hash(key).to_be_bytes());
        format!("{}.{}.{namespace}.{hash}", self.prefix, token(&key.kind))
    }
}

/// A hash of the subject, used as its key in memory: eight bytes instead of a hundred.
pub(super) fn subject_hash(subject: &str) -> u64 {
    xxh3_64(subject.as_bytes())
}

/// A hash of the key. It includes the lengths of the parts, so that different keys never give the same bytes.
fn hash(key: &RowKey) -> u128 {
    let RowKey { target, group, kind, namespace, uid } = key;
    let mut hasher = Xxh3::new();
    hasher.update(&[u8::from(target.namespace.is_some())]);
    for part in [target.namespace.as_deref().unwrap_or_default(), &target.name, group, kind, namespace, uid] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.digest128()
}

/// A token for any text: invalid bytes become `=` and two digits, and a long text ends with a hash.
fn token(text: &str) -> String {
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            token.push(char::from(byte));
        } else {
            write!(token, "={byte:02X}").ok();
        }
    }
    match token.as_str() {
        "" => "=".into(),
        // A single `-` stands for "no namespace".
        NO_NAMESPACE => "=2D".into(),
        _ if token.len() > MAX_TOKEN_LENGTH => {
            token.truncate(KEPT_CHARACTERS);
            // No hexadecimal digit follows `=` here, so it cannot equal the token of a short text.
            format!("{token}=h{:032x}", xxh3_128(text.as_bytes()))
        }
        _ => token,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kollect_model::row::TargetId;

    use super::*;

    #[test]
    fn tokens_keep_readable_characters_and_escape_others() {
        for (text, expected) in [
            ("shop", "shop"),
            ("Cron-Tab_2", "Cron-Tab_2"),
            ("a.b", "a=2Eb"),
            ("> *", "=3E=20=2A"),
            ("ü", "=C3=BC"),
            ("=2E", "=3D2E"),
            ("-", "=2D"),
            ("$holder", "=24holder"),
            ("", "="),
        ] {
            assert_eq!(token(text), expected);
        }
        assert_eq!(token(&"n".repeat(64)), "n".repeat(64));
        assert_eq!(token(&"n".repeat(65)).len(), KEPT_CHARACTERS + 34);
    }

    #[test]
    fn distinct_keys_have_distinct_legal_subjects() {
        let long = ["x".repeat(64), "x".repeat(65), format!("{}y", "x".repeat(65)), "🦀".repeat(100)];
        let mut texts = vec!["", "-", "a", "a.b", "a=2Eb", "a b", "*", ">", "\u{0}\r\n", "$holder", "ä"];
        texts.extend(long.iter().map(String::as_str));
        let mut seen: HashMap<String, String> = HashMap::new();
        let mut check_subject = |subject: String, owner: String| {
            for token in subject.split('.') {
                assert!(!token.is_empty() && token.len() <= 100, "{subject}");
                assert!(token.bytes().all(|b| b.is_ascii_graphic() && b != b'*' && b != b'>'), "{subject}");
            }
            if let Some(other) = seen.insert(subject.clone(), owner.clone()) {
                assert_eq!(other, owner, "{subject}");
            }
        };
        for cluster in ["", "east"] {
            for one in &texts {
                for other in &texts {
                    let inventory = InventoryId {
                        cluster: cluster.into(),
                        namespace: Some((*one).into()),
                        name: (*other).into(),
                    };
                    check_subject(Subjects::new("kollect", &inventory).claim(), format!("{inventory:?}"));
                }
            }
        }
        let inventory = InventoryId { cluster: String::new(), namespace: None, name: "all".into() };
        let subjects = Subjects::new("kollect", &inventory);
        for one in &texts {
            for other in &texts {
                for target in [None, Some("")] {
                    for parts in [
                        [*one, *other, "k", "n", "u"],
                        ["t", *one, *other, "n", "u"],
                        ["t", "g", "k", *one, *other],
                    ] {
                        let [name, group, kind, namespace, uid] = parts.map(Into::into);
                        let target = TargetId { namespace: target.map(Into::into), name };
                        let key = RowKey { target, group, kind, namespace, uid };
                        check_subject(subjects.row(&key), format!("{key:?}"));
                    }
                }
            }
        }
    }

    #[test]
    fn subjects_that_no_client_can_send_to_are_refused() {
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "$JS.API", "_INBOX.x", "a\tb"] {
            assert!(check(bad).is_err(), "{bad}");
        }
        for good in ["kollect", "kollect.rows", "team-a_1.inventory", "a.$b"] {
            assert!(check(good).is_ok(), "{good}");
        }
    }
}
