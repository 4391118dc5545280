//! Which names mean a credential: the table, and how a name is compared with it.
//!
//! `docs/use/redaction.md` shows the same table; a test compares the two.

/// What a name says about the values under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameMeaning {
    /// Nothing.
    Plain,
    /// A text is a credential if it looks random: keys of all kinds.
    Key,
    /// `auth` and its like: a text is a credential; what is below is judged by its own keys, and a few more of them count.
    Auth,
    /// A credential.
    Credential {
        /// Numbers are redacted too.
        numbers: bool,
        /// Every text below is redacted, unless it describes or references the credential.
        below: bool,
    },
    /// An administrator or a profile has added the name: everything is redacted, and everything below.
    Added,
}

impl NameMeaning {
    /// Whether a text under the name is a credential, whatever it looks like.
    pub(crate) fn is_credential(self) -> bool {
        matches!(self, Self::Auth | Self::Credential { .. } | Self::Added)
    }

    /// Whether a number under the name is a credential.
    pub(crate) fn covers_numbers(self) -> bool {
        matches!(self, Self::Credential { numbers: true, .. } | Self::Added)
    }
}

/// How a name is compared with a word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordMatch {
    /// The name ends in the word, with or without a boundary: `PGPASSWORD`.
    End,
    /// The word is the last word of the name, or the name.
    LastWord,
    /// The word is the last word of a name with other words.
    LastOfSeveral,
}

/// A word that means a credential, in lower case and without separators.
pub(crate) struct CredentialWord {
    pub(crate) word: &'static str,
    pub(crate) matched: WordMatch,
    pub(crate) meaning: NameMeaning,
}

const fn word(word: &'static str, matched: WordMatch, numbers: bool, below: bool) -> CredentialWord {
    CredentialWord { word, matched, meaning: NameMeaning::Credential { numbers, below } }
}

/// A word of which numbers are redacted too.
const fn password(text: &'static str) -> CredentialWord {
    word(text, WordMatch::End, true, true)
}

/// A word under which everything is redacted, except numbers.
const fn secret(text: &'static str) -> CredentialWord {
    word(text, WordMatch::End, false, true)
}

/// A word whose own texts are redacted, but not what is below.
const fn text_only(text: &'static str, matched: WordMatch) -> CredentialWord {
    word(text, matched, false, false)
}

/// The words that mean a credential.
pub(crate) const CREDENTIAL_WORDS: &[CredentialWord] = &[
    password("password"),
    password("passwd"),
    password("passphrase"),
    password("passcode"),
    password("pwd"),
    password("pass"),
    secret("secret"),
    secret("token"),
    secret("credential"),
    word("cred", WordMatch::LastWord, false, true),
    secret("apikey"),
    secret("privatekey"),
    secret("secretkey"),
    secret("accesskey"),
    secret("signingkey"),
    secret("encryptionkey"),
    secret("decryptionkey"),
    secret("masterkey"),
    secret("accountkey"),
    secret("sharedkey"),
    secret("sshkey"),
    secret("hmackey"),
    secret("authkey"),
    secret("licensekey"),
    secret("keydata"),
    secret("connectionstring"),
    secret("connstring"),
    secret("connstr"),
    text_only("pat", WordMatch::LastOfSeveral),
    text_only("pin", WordMatch::LastOfSeveral),
    text_only("pw", WordMatch::LastWord),
    text_only("bindpw", WordMatch::End),
    text_only("salt", WordMatch::End),
    text_only("secretid", WordMatch::End),
    text_only("authuserinfo", WordMatch::End),
    text_only("erlangcookie", WordMatch::End),
    text_only("secretscookie", WordMatch::End),
    text_only("secretssystem", WordMatch::End),
    text_only("authorization", WordMatch::LastWord),
    CredentialWord { word: "auth", matched: WordMatch::End, meaning: NameMeaning::Auth },
    CredentialWord { word: "key", matched: WordMatch::LastWord, meaning: NameMeaning::Key },
];

/// Names whose last words are these mean no credential: names of Secrets and of keys in them, and keys of well-known services that
/// are public.
pub(crate) const OTHER_MEANINGS: &[&str] = &[
    "existingsecret",
    "existingsecretkey",
    "connectionsecretkey",
    "pullsecret",
    "pushsecret",
    "casecret",
    "certsecret",
    "certificatesecret",
    "tlssecret",
    "bostoken",
    "eostoken",
    "stoptoken",
    "searchonlyapikey",
    "searchonlykey",
    "sitekey",
    "ovhapplicationkey",
    "pusherappkey",
    "shopifyapikey",
];

/// Words that end in a word of the table and mean something else.
pub(crate) const OTHER_WORDS: &[&str] = &["bypass", "compass", "surpass", "trespass", "onepassword"];

/// A key with one of these words in its name is meant to be public.
pub(crate) const PUBLIC_WORDS: &[&str] = &["public", "publishable"];

/// First words of names of numbers and sums: `maxTokens`, `checksum/secret`.
pub(crate) const MEASURING_WORDS: &[&str] =
    &["checksum", "count", "fingerprint", "hash", "limit", "max", "min", "num", "number", "sha256", "total"];

/// Last words that say nothing: `TOKEN_VALUE`, `SECRET_KEY_BASE`, `passwordV4`.
pub(crate) const EMPTY_LAST_WORDS: &[&str] = &["value", "base", "v"];

/// The names that mean a credential: those of the table, more of them, and without some.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialNames {
    /// In lower case; a name that ends in one of these means a credential.
    added: Vec<String>,
    /// In lower case; these names are taken out of the table.
    allowed: Vec<String>,
}

impl CredentialNames {
    pub(crate) fn new<'k>(
        added: impl IntoIterator<Item = &'k String>,
        allowed: impl IntoIterator<Item = &'k String>,
    ) -> Self {
        fn lower<'k>(names: impl IntoIterator<Item = &'k String>) -> Vec<String> {
            names.into_iter().map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect()
        }
        Self { added: lower(added), allowed: lower(allowed) }
    }

    /// What a key, the name of a pair or the name of an attribute means.
    pub(crate) fn meaning(&self, name: &str) -> NameMeaning {
        let name = name.trim();
        if !self.added.is_empty() && self.added.iter().any(|added| is_added(name, added)) {
            return NameMeaning::Added;
        }
        if !may_end_in_a_word(name.as_bytes()) {
            return NameMeaning::Plain;
        }
        match NameTail::of(name).meaning(name) {
            meaning if meaning != NameMeaning::Plain && self.is_allowed(name) => NameMeaning::Plain,
            meaning => meaning,
        }
    }

    fn is_allowed(&self, name: &str) -> bool {
        !self.allowed.is_empty() && self.allowed.contains(&name.to_lowercase())
    }
}

/// Whether a name ends in one that an administrator or a profile has added. A short one must be the whole name.
fn is_added(name: &str, added: &str) -> bool {
    if !added.is_ascii() {
        return name.to_lowercase().ends_with(added);
    }
    let tail = name.len().checked_sub(added.len()).and_then(|at| name.as_bytes().get(at..));
    let same = |(a, b): (&u8, u8)| a.eq_ignore_ascii_case(&b) || *a == b'-' && b == b'_';
    tail.is_some_and(|tail| tail.iter().zip(added.bytes()).all(same))
        && (added.len() > 2 || name.len() == added.len())
}

/// By the last three letters, without the `s` of a plural: whether a word of the tables ends in them.
static ENDINGS: [bool; 26 * 26 * 26] = {
    let mut endings = [false; 26 * 26 * 26];
    let mut index = 0;
    while index < CREDENTIAL_WORDS.len() + EMPTY_LAST_WORDS.len() {
        let word = if index < CREDENTIAL_WORDS.len() {
            CREDENTIAL_WORDS[index].word.as_bytes()
        } else {
            EMPTY_LAST_WORDS[index - CREDENTIAL_WORDS.len()].as_bytes()
        };
        index += 1;
        if let [.., a, b, c] = word {
            endings[ending(*a, *b, *c)] = true;
        } else if let [b, c] = word {
            let mut a = b'a';
            while a <= b'z' {
                endings[ending(a, *b, *c)] = true;
                a += 1;
            }
        }
    }
    endings
};

/// Where three letters are in [`ENDINGS`].
const fn ending(a: u8, b: u8, c: u8) -> usize {
    (letter(a) * 26 + letter(b)) * 26 + letter(c)
}

const fn letter(byte: u8) -> usize {
    (byte | 0x20) as usize - b'a' as usize
}

/// Whether a name may end in a word of the tables, so that it must be looked at. Most names end here.
fn may_end_in_a_word(name: &[u8]) -> bool {
    let stem = match name {
        [.., b's' | b'S', b's' | b'S'] => name,
        [stem @ .., b's' | b'S'] => stem,
        _ => name,
    };
    match stem {
        [.., a, b, c] if [a, b, c].iter().all(|byte| byte.is_ascii_alphabetic()) => {
            ENDINGS[ending(*a, *b, *c)]
        }
        // Digits and separators at the end do not count.
        _ => stem.len() >= 2,
    }
}

/// The longest part of a name that is compared.
const MAX_TAIL: usize = 32;

/// The end of a name: letters and digits in lower case, and where its words begin.
struct NameTail {
    /// From `start` on.
    letters: [u8; MAX_TAIL],
    start: usize,
    /// Bit `n`: a word begins at `letters[n]`.
    word_starts: u32,
}

impl NameTail {
    fn of(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut tail = Self { letters: [0; MAX_TAIL], start: MAX_TAIL, word_starts: 0 };
        let mut end = bytes.len();
        loop {
            // Digits at the end count nothing: PASSWORD_1.
            while end > 0 && !is_letter(bytes[end - 1]) {
                end -= 1;
            }
            tail.fill(&bytes[..end]);
            let Some(without) = tail.empty_last_word() else { return tail };
            // As many letters of the name as the last word has, and what is between it and the word before.
            end -= without;
            if !bytes[..end].iter().any(|byte| is_letter(*byte)) {
                return Self { start: MAX_TAIL, ..tail };
            }
        }
    }

    fn fill(&mut self, bytes: &[u8]) {
        (self.start, self.word_starts) = (MAX_TAIL, 0);
        for at in (0..bytes.len()).rev() {
            let byte = bytes[at];
            if !byte.is_ascii_alphanumeric() && byte.is_ascii() {
                if self.start < MAX_TAIL {
                    self.word_starts |= 1 << self.start;
                }
                continue;
            }
            if self.start == 0 {
                return;
            }
            self.start -= 1;
            self.letters[self.start] = byte.to_ascii_lowercase();
            if begins_word(bytes, at) {
                self.word_starts |= 1 << self.start;
            }
        }
        if self.start < MAX_TAIL {
            self.word_starts |= 1 << self.start;
        }
    }

    /// The letters without the `s` of a plural.
    fn singular(&self) -> &[u8] {
        let letters = self.letters.get(self.start..).unwrap_or_default();
        match letters {
            [.., b's', b's'] => letters,
            [rest @ .., b's'] => rest,
            _ => letters,
        }
    }

    /// How many bytes the last word has, if it says nothing.
    fn empty_last_word(&self) -> Option<usize> {
        let letters = self.letters.get(self.start..).unwrap_or_default();
        let known = EMPTY_LAST_WORDS.iter().find(|word| ends_in(letters, word))?;
        self.begins_word(MAX_TAIL - known.len()).then_some(known.len())
    }

    fn begins_word(&self, at: usize) -> bool {
        self.word_starts >> at & 1 == 1
    }

    fn meaning(&self, name: &str) -> NameMeaning {
        let letters = self.singular();
        let is_here = |known: &&CredentialWord| {
            ends_in(letters, known.word) && {
                let at = self.start + letters.len() - known.word.len();
                match known.matched {
                    WordMatch::End => true,
                    WordMatch::LastWord => self.begins_word(at),
                    WordMatch::LastOfSeveral => self.begins_word(at) && at > self.start,
                }
            }
        };
        let end = self.start + letters.len();
        let are_last_words = |other: &&&str| ends_in(letters, other) && self.begins_word(end - other.len());
        let is_one_word = |other: &&str| !(end - other.len() + 1..end).any(|at| self.begins_word(at));
        let has_other_meaning = || {
            OTHER_MEANINGS.iter().any(|other| are_last_words(&other))
                || OTHER_WORDS.iter().any(|other| are_last_words(&other) && is_one_word(other))
        };
        match CREDENTIAL_WORDS.iter().find(is_here) {
            None => NameMeaning::Plain,
            Some(_) if has_other_meaning() || refers(name) => NameMeaning::Plain,
            Some(known) if known.word.ends_with("key") && is_public(name) => NameMeaning::Plain,
            // A header: `X-Vendor-Key`.
            Some(known) if known.meaning == NameMeaning::Key && is_header(name) => {
                NameMeaning::Credential { numbers: false, below: false }
            }
            Some(known) => known.meaning,
        }
    }
}

/// Whether letters end in a word. Compares the last letter first: most words of the tables differ there.
fn ends_in(letters: &[u8], word: &str) -> bool {
    letters.last() == word.as_bytes().last() && letters.ends_with(word.as_bytes())
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || !byte.is_ascii()
}

/// Whether a word begins at a letter because of its case: `apiKey`, `APIKey`.
fn begins_word(bytes: &[u8], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| bytes[before]) else { return true };
    let next_is_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
    bytes[at].is_ascii_uppercase() && (!before.is_ascii_uppercase() || next_is_lower)
}

/// Whether a name is that of a reference: with the name of a variable behind it, as in `spark.kubernetes.driver.secretKeyRef.PASSWORD`,
/// or of an annotation that says what Vault's agent reads.
fn refers(name: &str) -> bool {
    name.contains("secretKeyRef.") || name.starts_with("vault.hashicorp.com/")
}

fn is_header(name: &str) -> bool {
    name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("x-"))
}

/// The words of a name, in lower case.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    for (at, byte) in name.bytes().enumerate() {
        if !byte.is_ascii_alphanumeric() || begins_word(name.as_bytes(), at) {
            words.push(String::new());
        }
        if byte.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(char::from(byte.to_ascii_lowercase()));
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

fn is_public(name: &str) -> bool {
    words(name).any(|word| PUBLIC_WORDS.contains(&word.as_str()))
}

/// Whether the first word of a name is one of a number or a sum.
pub(crate) fn measures(name: &str) -> bool {
    words(name).next().is_some_and(|word| MEASURING_WORDS.contains(&word.as_str()))
}

/// Whether a name is a plural.
pub(crate) fn is_plural(name: &str) -> bool {
    matches!(name.as_bytes(), [.., before, b's' | b'S'] if !before.eq_ignore_ascii_case(&b's'))
}

/// Whether the last word of a name is one of these; they are in lower case, without the `s` of a plural.
pub(crate) fn has_last_word(name: &str, words: &[&str]) -> bool {
    let tail = NameTail::of(name);
    let letters = tail.singular();
    words.iter().any(|word| {
        letters.ends_with(word.as_bytes()) && tail.begins_word(tail.start + letters.len() - word.len())
    })
}
