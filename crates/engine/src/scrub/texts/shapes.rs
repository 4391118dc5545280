//! Tokens and keys that are known by their shape.

use base64::{Engine, engine::general_purpose::STANDARD};
use memchr::memmem;

use super::{CredentialFinder, occurrences};

/// What tokens of known issuers begin with, and how many characters follow at least.
pub(crate) const TOKEN_PREFIXES: &[(&str, usize)] = &[
    // AWS
    ("AKIA", 16),
    ("ASIA", 16),
    // GitHub
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    // GitLab
    ("glpat-", 16),
    ("gldt-", 16),
    ("glrt-", 16),
    ("glptt-", 16),
    ("glcbt-", 16),
    ("glsoat-", 16),
    ("GR1348941", 20),
    // Slack
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxe-", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    // Google
    ("AIza", 30),
    ("ya29.", 20),
    ("GOCSPX-", 20),
    // Stripe
    ("sk_live_", 10),
    ("sk_test_", 10),
    ("rk_live_", 10),
    ("rk_test_", 10),
    ("whsec_", 16),
    // Others
    ("AGE-SECRET-KEY-1", 20),
    ("dckr_pat_", 16),
    ("dop_v1_", 20),
    ("dp.pt.", 20),
    ("glsa_", 20),
    ("hf_", 24),
    ("hvb.", 20),
    ("hvr.", 20),
    ("hvs.", 20),
    ("lin_api_", 20),
    ("npm_", 30),
    ("NRAK-", 20),
    ("PMAK-", 20),
    ("pul-", 30),
    ("pypi-AgE", 20),
    ("rubygems_", 30),
    ("SG.", 30),
    ("shpat_", 20),
    ("shpss_", 20),
    ("sk-ant-", 20),
    ("sk-proj-", 20),
    ("sdk-", 36),
    ("sqa_", 30),
    ("sqp_", 30),
    ("squ_", 30),
    ("tskey-", 16),
    ("xkeysib-", 20),
];

/// The header of a JSON Web Token: `{"` in base64.
const JWT: &str = "eyJ";

/// A PEM block in base64: `-----BEGIN`.
const ENCODED_PEM: &str = "LS0tLS1CRUdJTi";

/// The logins of registries in base64: `{"auths":`.
const ENCODED_LOGINS: &str = "eyJhdXRocyI6";

/// What hashes of passwords begin with.
pub(crate) const PASSWORD_HASHES: &[&str] =
    &["$2a$", "$2b$", "$2y$", "$5$", "$6$", "$apr1$", "$argon2", "$y$"];

/// By first byte: which of [`TOKEN_PREFIXES`] begin with it. Most words begin like none of them.
const PREFIXES_OF_BYTES: [u64; 128] = {
    let mut of = [0; 128];
    let mut index = 0;
    while index < TOKEN_PREFIXES.len() {
        of[TOKEN_PREFIXES[index].0.as_bytes()[0] as usize] |= 1 << index;
        index += 1;
    }
    of
};

/// The prefix of a token that a text begins with.
fn token_prefix(text: &[u8]) -> Option<(&'static str, usize)> {
    let first = text.first().filter(|byte| byte.is_ascii())?;
    let mut candidates = PREFIXES_OF_BYTES[usize::from(*first)];
    while candidates != 0 {
        let index = candidates.trailing_zeros() as usize;
        candidates &= candidates - 1;
        if text.starts_with(TOKEN_PREFIXES[index].0.as_bytes()) {
            return Some(TOKEN_PREFIXES[index]);
        }
    }
    None
}

/// Whether a byte can be in a token.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// Whether a byte can be in base64, for so many bytes.
fn is_base64_up_to(most: usize) -> impl Fn(u8) -> bool {
    let count = std::cell::Cell::new(0);
    move |byte| {
        count.set(count.get() + 1);
        count.get() <= most && is_base64(byte)
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

impl CredentialFinder<'_> {
    /// Private keys in PEM, and such texts in base64.
    pub(super) fn private_keys(&mut self) {
        const BEGIN: &str = "-----BEGIN ";
        let text = self.text;
        if !text.contains("-----") && !text.contains(ENCODED_PEM) {
            return;
        }
        let mut from = 0;
        while let Some(start) = text.get(from..).and_then(|rest| rest.find(BEGIN)).map(|at| from + at) {
            let title = start + BEGIN.len();
            let Some(header) = text.get(title..).and_then(|rest| rest.find("-----")).map(|at| title + at)
            else {
                return;
            };
            from = header;
            if self.part(title..header).contains("PRIVATE KEY") {
                let rest = text.get(header + 5..).unwrap_or_default();
                let end = rest.find("-----END").map(|at| header + 5 + at);
                let end = end.and_then(|at| Some(at + 8 + text.get(at + 8..)?.find("-----")? + 5));
                from = end.unwrap_or(text.len());
                self.add(start..from);
            }
        }
        let mut done = 0;
        for start in occurrences(text.as_bytes(), ENCODED_PEM) {
            // A whole number of groups, which contains the title of the block.
            let beginning = self.run(start, is_base64_up_to(64)) - start;
            let decoded = STANDARD.decode(self.part(start..start + beginning / 4 * 4)).unwrap_or_default();
            if start >= done && memmem::find(&decoded, b"PRIVATE KEY").is_some() {
                done = self.run(start, is_base64);
                self.add(start..done);
            }
        }
    }

    /// Tokens of known issuers, and JSON Web Tokens.
    pub(super) fn tokens(&mut self) {
        let bytes = self.bytes();
        let mut at = 0;
        while at < bytes.len() {
            if !bytes[at].is_ascii_alphanumeric() {
                at += 1;
                continue;
            }
            let end = self.run(at, |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
            at = self.token_at(at, end).unwrap_or(end);
        }
        self.bot_tokens();
    }

    /// Adds the token at the beginning of a word, and returns where it ends. A text that is looked at is not looked at again.
    fn token_at(&mut self, start: usize, word_end: usize) -> Option<usize> {
        let word = self.part(start..word_end);
        if is_mixed_key(word) {
            self.add(start..word_end);
            return Some(word_end);
        }
        // Public tokens of Mapbox begin with pk.
        let is_jwt = word.starts_with(JWT) && !self.bytes()[..start].ends_with(b"pk.");
        let known = token_prefix(&self.bytes()[start..]);
        if !is_jwt && known.is_none() {
            return None;
        }
        let end = self.run(start, is_token);
        let token = self.part(start..end).trim_end_matches('.');
        let is_token = match known {
            Some((prefix, more)) => token.len() >= prefix.len() + more,
            None => {
                let mut parts = token.split('.');
                let (header, claims) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                header.len() >= 10 && claims.starts_with(JWT) && parts.count() == 1
            }
        };
        if is_token {
            self.add(start..start + token.len());
        }
        Some(end)
    }

    /// Hashes of passwords, logins of registries, and secret members of JSON Web Keys.
    pub(super) fn hashes(&mut self) {
        let bytes = self.bytes();
        let mut done = 0;
        for start in memchr::memchr_iter(b'$', bytes) {
            if start < done
                || !PASSWORD_HASHES.iter().any(|prefix| bytes[start..].starts_with(prefix.as_bytes()))
            {
                continue;
            }
            done = self.run(start, |byte| byte.is_ascii_alphanumeric() || b"./$,=+-".contains(&byte));
            if done - start >= 20 {
                self.add(start..done);
            }
        }
        let mut done = 0;
        for start in occurrences(bytes, ENCODED_LOGINS) {
            if start >= done {
                done = self.run(start, is_base64);
                self.add(start..done);
            }
        }
        if occurrences(bytes, "\"kty\"").next().is_some() {
            for member in ["\"d\"", "\"dp\"", "\"dq\"", "\"k\"", "\"p\"", "\"q\"", "\"qi\""] {
                for at in occurrences(bytes, member) {
                    let colon = self.run(at + member.len(), |byte| matches!(byte, b' ' | b':'));
                    if let Some(value) = self.quoted(colon, bytes.len()) {
                        self.add(value);
                    }
                }
            }
        }
    }

    /// Tokens of Telegram's bots: an id, a colon, and 35 characters.
    fn bot_tokens(&mut self) {
        for colon in occurrences(self.bytes(), ":AA") {
            let before = self.bytes().get(..colon).unwrap_or_default();
            let id = before.iter().rev().take(11).take_while(|byte| byte.is_ascii_digit()).count();
            let end =
                self.run(colon + 1, |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
            if (8..=10).contains(&id) && end - colon == 36 {
                self.add(colon - id..end);
            }
        }
    }

    /// `Bearer …`, `Basic …` and their like.
    pub(super) fn headers(&mut self) {
        const NAMES: &[&str] = &["bearer", "basic", "token", "apikey", "geniekey"];
        let bytes = self.bytes();
        for space in memchr::memchr_iter(b' ', bytes) {
            let ends_here = |scheme: &&&str| {
                let start = space.checked_sub(scheme.len());
                start.is_some_and(|start| {
                    bytes[start..space].eq_ignore_ascii_case(scheme.as_bytes())
                        && (start == 0 || !bytes[start - 1].is_ascii_alphanumeric())
                })
            };
            let Some(scheme) = NAMES.iter().find(ends_here) else { continue };
            let start = self.run(space, |byte| byte == b' ');
            let end = self.run(start, |byte| is_token(byte) || is_base64(byte) || byte == b'~');
            let value = self.part(start..end);
            let is_credential = if *scheme == "basic" {
                value.len() >= 4 && STANDARD.decode(value).is_ok_and(|decoded| decoded.contains(&b':'))
            } else {
                looks_made(value)
            };
            if is_credential {
                self.add(start..end);
            }
        }
    }
}

/// Whether a text looks like a token and not like a word: it has digits or mixed case, or is long.
fn looks_made(text: &str) -> bool {
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    let has_upper = text.bytes().skip(1).any(|byte| byte.is_ascii_uppercase());
    text.len() >= 8 && (has_digit || has_upper || text.len() >= 24)
}

/// Keys of OpenAI and others: `sk-` and a long text of mixed case and digits.
fn is_mixed_key(token: &str) -> bool {
    let Some(rest) = token.strip_prefix("sk-") else { return false };
    rest.len() >= 20
        && rest.bytes().any(|byte| byte.is_ascii_digit())
        && rest.bytes().any(|byte| byte.is_ascii_uppercase())
        && rest.bytes().any(|byte| byte.is_ascii_lowercase())
}
