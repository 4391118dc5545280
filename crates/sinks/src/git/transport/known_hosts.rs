//! Which keys belong to which hosts, from a file `known_hosts` as OpenSSH reads it.

use ring::hmac;
use russh::keys::{
    Algorithm, HashAlg, PublicKey,
    ssh_key::known_hosts::{Entry, HostPatterns, Marker},
};

const SSH_PORT: u16 = 22;

/// The lines of a file.
#[derive(Debug)]
pub(in crate::git) struct KnownHosts(Vec<Entry>);

impl KnownHosts {
    /// Parses a file. Lines that cannot be parsed, such as unknown kinds of keys, are skipped; with a marker (`@`) they
    /// are an error.
    pub(in crate::git) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first() {
                None => continue,
                Some(first) if first.starts_with('#') => continue,
                Some(_) => {}
            }
            match words.join(" ").parse() {
                Ok(entry) => entries.push(entry),
                Err(_) if line.trim_start().starts_with('@') => {
                    return Err(format!("has a line {} in known_hosts that cannot be read", number + 1));
                }
                Err(_) => {}
            }
        }
        if entries.is_empty() {
            return Err("has no line in known_hosts that can be read; each is a host, a kind of key and a \
                        key, as ssh-keyscan prints them"
                .into());
        }
        Ok(Self(entries))
    }

    /// The kinds of keys that are known for the host. The server is asked for one of these.
    pub(super) fn algorithms(&self, host: &str, port: u16) -> Vec<Algorithm> {
        let mut found = Vec::new();
        for entry in self.of(host, port).filter(|entry| entry.marker().is_none()) {
            let kinds = match entry.public_key().algorithm() {
                // One RSA key has several signature algorithms; the oldest, with SHA-1, is broken.
                Algorithm::Rsa { .. } => [HashAlg::Sha512, HashAlg::Sha256]
                    .map(|hash| Algorithm::Rsa { hash: Some(hash) })
                    .to_vec(),
                other => vec![other],
            };
            found.extend(kinds.into_iter().filter(|kind| !found.contains(kind)).collect::<Vec<_>>());
        }
        found
    }

    /// Returns an error unless the key that a server presents belongs to the host.
    pub(super) fn check(&self, host: &str, port: u16, shown: &PublicKey) -> Result<(), String> {
        let print = shown.fingerprint(HashAlg::Sha256);
        let is_shown = |entry: &&Entry| entry.public_key().key_data() == shown.key_data();
        let revoked = |entry: &&Entry| entry.marker() == Some(&Marker::Revoked);
        if self.of_any_port(host, port).filter(revoked).any(|entry| is_shown(&entry)) {
            return Err(format!("the server shows the key {print}, which known_hosts calls revoked"));
        }
        let mut keys = self.of(host, port).filter(|entry| entry.marker().is_none()).peekable();
        let only_others = keys.peek().is_none();
        if keys.any(|entry| is_shown(&entry)) {
            return Ok(());
        }
        let kind = shown.algorithm();
        Err(if !only_others {
            format!(
                "the key of the host has CHANGED, or another server answers: the server shows {kind} {print}, \
                 and known_hosts has other keys for it; if the change is right, put the new line of \
                 ssh-keyscan into the Secret"
            )
        } else if self.of(host, port).next().is_some() {
            "known_hosts has only authorities or revoked keys for the host, and certificates of hosts are not \
             supported; add the key of the host itself"
                .to_owned()
        } else {
            format!(
                "the host is UNKNOWN: known_hosts has no line for it, and the server shows {kind} {print}; \
                 add its line of ssh-keyscan to the Secret if that is right"
            )
        })
    }

    /// Entries for the host with that port; if there are none, entries for the host alone.
    fn of(&self, host: &str, port: u16) -> impl Iterator<Item = &Entry> {
        let [with_port, alone] = names(host, port);
        let is_there = self.0.iter().any(|entry| matches(entry, &with_port));
        let name = if is_there { with_port } else { alone };
        self.0.iter().filter(move |entry| matches(entry, &name))
    }

    fn of_any_port(&self, host: &str, port: u16) -> impl Iterator<Item = &Entry> {
        let names = names(host, port);
        self.0.iter().filter(move |entry| names.iter().any(|name| matches(entry, name)))
    }
}

/// The names of a host in a file, the most specific first.
fn names(host: &str, port: u16) -> [String; 2] {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let with_port = if port == SSH_PORT { host.clone() } else { format!("[{host}]:{port}") };
    [with_port, host]
}

fn matches(entry: &Entry, name: &str) -> bool {
    match entry.host_patterns() {
        HostPatterns::HashedName { salt, hash } => {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
            hmac::verify(&key, name.as_bytes(), hash).is_ok()
        }
        HostPatterns::Patterns(patterns) => {
            let is = |pattern: &str| fits(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let refused = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(is);
            !refused && patterns.iter().any(|pattern| !pattern.starts_with('!') && is(pattern))
        }
    }
}

/// `*` matches any characters and `?` one. Backtracks to the last star only, so that no pattern takes long.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(wanted) if *wanted == b'?' || *wanted == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p.min(pattern.len())..].iter().all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS";

    fn verdict(file: &str, host: &str, port: u16) -> Result<(), String> {
        KnownHosts::parse(file)?.check(host, port, &KEY.parse().unwrap())
    }

    #[test]
    fn hosts_are_found_by_name_port_pattern_and_hash() {
        for (line, host, port) in [
            ("git.example", "git.example", 22),
            ("git.example", "GIT.Example", 22),
            ("git.example", "git.example", 2222),
            ("[git.example]:2222", "git.example", 2222),
            ("other,git.example", "git.example", 22),
            ("*.example", "git.example", 22),
            ("g?t.*", "git.example", 22),
            ("[*.example]:2222", "git.example", 2222),
            ("[::1]:2222", "[::1]", 2222),
        ] {
            assert_eq!(verdict(&format!("{line} {KEY}"), host, port), Ok(()), "{line}");
        }
        for (line, host, port) in [
            ("git.example", "git.example.org", 22),
            ("[git.example]:2222", "git.example", 22),
            ("!git.example,*.example", "git.example", 22),
            ("*.example", "example", 22),
            ("g?t.example", "gt.example", 22),
        ] {
            let problem = verdict(&format!("{line} {KEY}"), host, port).unwrap_err();
            assert!(problem.contains("UNKNOWN"), "{line}: {problem}");
        }
        let hashed = hashed("git.example");
        assert_eq!(verdict(&format!("{hashed} {KEY}"), "git.example", 22), Ok(()));
        assert!(verdict(&format!("{hashed} {KEY}"), "git2.example", 22).is_err());
    }

    fn hashed(name: &str) -> String {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let salt = [7; 20];
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt), name.as_bytes());
        format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(tag))
    }

    #[test]
    fn several_keys_revoked_ones_and_authorities() {
        let several = format!("h {OTHER}\nh {KEY}\n");
        assert_eq!(verdict(&several, "h", 22), Ok(()));
        let changed = verdict(&format!("h {OTHER}"), "h", 22).unwrap_err();
        assert!(changed.contains("CHANGED"), "{changed}");
        let revoked = verdict(&format!("h {KEY}\n@revoked * {KEY}"), "h", 22).unwrap_err();
        assert!(revoked.contains("revoked"), "{revoked}");
        let authority = verdict(&format!("@cert-authority h {KEY}"), "h", 22).unwrap_err();
        assert!(authority.contains("certificates of hosts are not supported"), "{authority}");
        assert_eq!(verdict(&format!("@cert-authority h {OTHER}\nh\t{KEY} comment"), "h", 22), Ok(()));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (text, part) in [
            ("", "no line"),
            ("# nothing\n\n", "no line"),
            ("h ssh-nothing AAAA", "no line"),
            ("h ssh-ed25519 AAAA\n@revoked h ssh-ed25519 AAAA", "line 2"),
        ] {
            let problem = KnownHosts::parse(text).unwrap_err();
            assert!(problem.contains(part), "{text:?}: {problem}");
        }
        assert!(KnownHosts::parse(&format!("h ssh-dss AAAA\nh {KEY}")).is_ok());
    }
}
