//! Passwords and tokens in URLs.

use std::ops::Range;

use super::{super::values::is_stand_in, CredentialFinder, occurrences};

/// Addresses whose path is the credential.
pub(crate) const SECRET_ADDRESSES: &[&str] = &[
    "hooks.slack.com/services/",
    "hooks.slack.com/workflows/",
    "/api/webhooks/",
    "webhook.office.com/webhookb2/",
    "outlook.office.com/webhook/",
    "hooks.zapier.com/hooks/catch/",
];

/// The longest user and password that are looked for.
const MAX_USER_INFO: usize = 512;

/// Whether a URL ends here.
fn ends_url(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
}

impl CredentialFinder<'_> {
    pub(super) fn urls(&mut self) {
        let bytes = self.bytes();
        let has_url = occurrences(bytes, "://").next().is_some();
        if !has_url && memchr::memchr(b'@', bytes).is_none() {
            return;
        }
        let mut end = 0;
        for scheme in occurrences(bytes, "://") {
            let start = scheme + 3;
            if start > end {
                end = self.run(start, |byte| !ends_url(byte));
            }
            if let Some(password) = self.password(start, end) {
                self.add_unless_harmless(password);
            }
        }
        for address in SECRET_ADDRESSES.iter().filter(|_| has_url) {
            end = 0;
            for at in occurrences(bytes, address) {
                let start = at + address.len();
                if start > end {
                    end = self.run(start, |byte| !ends_url(byte));
                }
                self.add(start..end);
            }
        }
        // The addresses of MySQL's driver for Go have no scheme.
        for network in ["@tcp(", "@unix(", "@("] {
            for at in occurrences(bytes, network) {
                let before = &bytes[at.saturating_sub(MAX_USER_INFO)..at];
                let length = before.iter().rev().take_while(|byte| !ends_url(**byte)).count();
                if let Some(colon) = memchr::memchr(b':', &bytes[at - length..at]) {
                    self.add_unless_harmless(at - length + colon + 1..at);
                }
            }
        }
        // Those of Oracle are user/password@//host.
        for at in occurrences(bytes, "@//") {
            let before = &bytes[at.saturating_sub(MAX_USER_INFO)..at];
            let length = before.iter().rev().take_while(|byte| !ends_url(**byte)).count();
            if let Some(slash) = memchr::memchr(b'/', &bytes[at - length..at]) {
                self.add_unless_harmless(at - length + slash + 1..at);
            }
        }
    }

    fn add_unless_harmless(&mut self, range: Range<usize>) {
        if !is_stand_in(self.part(range.clone())) {
            self.add(range);
        }
    }

    /// Where the password of a URL is, whose authority begins at `start`.
    fn password(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let bytes = self.bytes();
        let authority_end = start
            + bytes[start..end].iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(end - start);
        let authority = &bytes[start..authority_end];
        if let Some(at) = memchr::memrchr(b'@', authority) {
            return match memchr::memchr(b':', &authority[..at]) {
                Some(colon) => Some(start + colon + 1..start + at),
                None => is_token_of_a_user(&authority[..at]).then_some(start..start + at),
            };
        }
        // A password with a slash that is not escaped: what follows the colon is no port.
        let colon = start + memchr::memchr(b':', authority)?;
        if bytes[colon + 1..authority_end].iter().all(u8::is_ascii_digit) {
            return None;
        }
        let at = memchr::memchr(b'@', &bytes[colon..end.min(colon + MAX_USER_INFO)])?;
        Some(colon + 1..colon + at)
    }
}

/// Whether a user without a password is a token: long, with letters and digits.
fn is_token_of_a_user(user: &[u8]) -> bool {
    user.len() >= 16
        && user.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        && user.iter().any(u8::is_ascii_digit)
        && user.iter().any(u8::is_ascii_alphabetic)
}
