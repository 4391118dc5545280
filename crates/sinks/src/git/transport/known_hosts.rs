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
    /// Parses a file. Lines that cannot be parsed, such as unknown types of keys, are skipped; with a marker (`@`) they
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

    /// The algorithms of the keys that are known for the host. The server is asked for one of these.
    pub(super) fn algorithms(&self, host: &str, port: u16) -> Vec<Algorithm> {
        let mut found = Vec::new();
        for entry in self.entries_of(host, port).filter(|entry| entry.marker().is_none()) {
            let algorithms = match entry.public_key().algorithm() {
                // One RSA key has several signature algorithms; the oldest, with SHA-1, is broken.
                Algorithm::Rsa { .. } => [HashAlg::Sha512, HashAlg::Sha256]
                    .map(|hash| Algorithm::Rsa { hash: Some(hash) })
                    .to_vec(),
                other => vec![other],
            };
            found.extend(
                algorithms.into_iter().filter(|algorithm| !found.contains(algorithm)).collect::<Vec<_>>(),
            );
        }
        found
    }

    /// Returns an error unless the key that a server presents belongs to the host.
    pub(super) fn check(&self, host: &str, port: u16, presented: &PublicKey) -> Result<(), String> {
        let fingerprint = presented.fingerprint(HashAlg::Sha256);
        let is_presented = |entry: &&Entry| entry.public_key().key_data() == presented.key_data();
        let revoked = |entry: &&Entry| entry.marker() == Some(&Marker::Revoked);
        if self.entries_of_any_port(host, port).filter(revoked).any(|entry| is_presented(&entry)) {
            return Err(format!("the server shows the key {fingerprint}, which known_hosts calls revoked"));
        }
        let mut keys = self.entries_of(host, port).filter(|entry| entry.marker().is_none()).peekable();
        let has_keys = keys.peek().is_some();
        if keys.any(|entry| is_presented(&entry)) {
            return Ok(());
        }
        let algorithm = presented.algorithm();
        Err(if has_keys {
            format!(
                "the key of the host has CHANGED, or another server answers: the server shows {algorithm} \
                 {fingerprint}, and known_hosts has other keys for it; if the change is right, put the new line of \
                 ssh-keyscan into the Secret"
            )
        } else if self.entries_of(host, port).next().is_some() {
            "known_hosts has only authorities or revoked keys for the host, and certificates of hosts are not \
             supported; add the key of the host itself"
                .to_owned()
        } else {
            format!(
                "the host is UNKNOWN: known_hosts has no line for it, and the server shows {algorithm} \
                 {fingerprint}; add its line of ssh-keyscan to the Secret if that is right"
            )
        })
    }

    /// Entries for the host with that port; if there are none, entries for the host alone.
    fn entries_of(&self, host: &str, port: u16) -> impl Iterator<Item = &Entry> {
        let [with_port, alone] = names(host, port);
        let has_port_entries = self.0.iter().any(|entry| matches(entry, &with_port));
        let name = if has_port_entries { with_port } else { alone };
        self.0.iter().filter(move |entry| matches(entry, &name))
    }

    fn entries_of_any_port(&self, host: &str, port: u16) -> impl Iterator<Item = &Entry> {
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
            let matches_name =
                |pattern: &str| matches_pattern(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let refused = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(matches_name);
            !refused && patterns.iter().any(|pattern| !pattern.starts_with('!') && matches_name(pattern))
        }
    }
}

/// `*` matches any characters and `?` one. Backtracks to the last star only, so that no pattern takes long.
fn matches_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern_index, mut name_index) = (0, 0);
    let mut star = None;
    while name_index < name.len() {
        match pattern.get(pattern_index) {
            Some(b'*') => {
                star = Some((pattern_index, name_index));
                pattern_index += 1;
            }
            Some(wanted) if *wanted == b'?' || *wanted == name[name_index] => {
                pattern_index += 1;
                name_index += 1;
            }
            _ => match star {
                Some((star_index, name_start)) => {
                    star = Some((star_index, name_start + 1));
                    (pattern_index, name_index) = (star_index + 1, name_start + 1);
                }
                None => return false,
            },
        }
    }
    pattern[pattern_index.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9dG4kjRhQTtWTVzd2t27+t0DEHBPW7iOD23TUiYLio";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS";

    fn check(file: &str, host: &str, port: u16) -> Result<(), String> {
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
            assert_eq!(check(&format!("{line} {KEY}"), host, port), Ok(()), "{line}");
        }
        for (line, host, port) in [
            ("git.example", "git.example.org", 22),
            ("[git.example]:2222", "git.example", 22),
            ("!git.example,*.example", "git.example", 22),
            ("*.example", "example", 22),
            ("g?t.example", "gt.example", 22),
        ] {
            let problem = check(&format!("{line} {KEY}"), host, port).unwrap_err();
            assert!(problem.contains("UNKNOWN"), "{line}: {problem}");
        }
        let hashed = hashed("git.example");
        assert_eq!(check(&format!("{hashed} {KEY}"), "git.example", 22), Ok(()));
        assert!(check(&format!("{hashed} {KEY}"), "git2.example", 22).is_err());
    }

    fn hashed(name: &str) -> String {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let salt = [7; 20];
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt), name.as_bytes());
        format!("|1|{}|{}", STANDARD.encode(salt), STANDARD.encode(tag))
    }

    #[test]
    fn one_of_several_keys_is_enough_and_revoked_keys_and_authorities_are_refused() {
        let several = format!("h {OTHER}\nh {KEY}\n");
        assert_eq!(check(&several, "h", 22), Ok(()));
        let changed = check(&format!("h {OTHER}"), "h", 22).unwrap_err();
        assert!(changed.contains("CHANGED"), "{changed}");
        let revoked = check(&format!("h {KEY}\n@revoked * {KEY}"), "h", 22).unwrap_err();
        assert!(revoked.contains("revoked"), "{revoked}");
        let authority = check(&format!("@cert-authority h {KEY}"), "h", 22).unwrap_err();
        assert!(authority.contains("certificates of hosts are not supported"), "{authority}");
        assert_eq!(check(&format!("@cert-authority h {OTHER}\nh\t{KEY} comment"), "h", 22), Ok(()));
    }

    #[test]
    fn a_known_hosts_file_that_cannot_be_read_is_an_error_that_says_why() {
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
