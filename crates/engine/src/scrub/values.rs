//! Texts that are no credentials although their names say so: switches, placeholders, references, names of objects, times; and texts
//! that look random.

use super::names::{NameMeaning, is_plural, measures};

/// Words that switch something on or off, or say that there is nothing.
pub(crate) const SWITCHES: &[&str] = &[
    "true", "false", "yes", "no", "on", "off", "enabled", "disabled", "none", "null", "nil", "required",
    "optional", "always", "never", "auto", "default", "unset", "empty", "missing", "string", "str", "jwt",
    "opaque",
];

/// Ways to authenticate, which `auth` and the like may hold.
const METHODS: &[&str] = &[
    "basic", "bearer", "iam", "jwt", "kerberos", "ldap", "mtls", "oauth", "oauth2", "oidc", "opaque",
    "password", "plain", "saml", "scram", "sso", "token",
];

/// What references to credentials in other stores begin with.
pub(crate) const REFERENCE_PREFIXES: &[&str] = &[
    "vault:",
    "ref+",
    "op://",
    "arn:aws:",
    "ocid1.",
    "<path:",
    "file:/",
    "env:",
    "sops:",
    "gcpsm://",
    "awssm://",
    "$__file{",
    "$__env{",
    "@Microsoft.KeyVault(",
    "<%= ENV",
    "<%= Rails.application.credentials",
    "secret://",
    "@{",
];

/// What ciphertexts begin with that are made to be stored in Git.
pub(crate) const CIPHERTEXT_PREFIXES: &[&str] = &["ENC[AES256_GCM,", "ENC[PKCS7,", "ENC(", "{aes-gcm}"];

/// What public keys begin with.
pub(crate) const PUBLIC_PREFIXES: &[&str] = &[
    "ssh-rsa ",
    "ssh-ed25519 ",
    "ecdsa-sha2-",
    "-----BEGIN PUBLIC KEY",
    "-----BEGIN CERTIFICATE",
    "pk_live_",
    "pk_test_",
    "pk-lf-",
    "pk.",
];

/// Commands that get a credential from somewhere else.
const COMMANDS: &[&str] =
    &["aws ", "az ", "cat ", "gcloud ", "kubectl ", "op read ", "openssl rand ", "vault "];

/// What variables of nginx begin with.
const NGINX_VARIABLES: &[&str] = &["$http_", "$cookie_", "$arg_", "$jwt_", "$upstream_", "$ssl_"];

/// What comes before a credential in a header.
pub(super) const SCHEMES: &[&str] = &["Bearer ", "Basic ", "Token ", "ApiKey "];

/// First directories of absolute paths. A credential in base64 may begin with a slash, but hardly with one of these.
pub(crate) const PATH_ROOTS: &[&str] = &[
    "app", "certs", "config", "data", "etc", "home", "keys", "mnt", "opt", "root", "run", "secret",
    "secrets", "srv", "tmp", "usr", "var", "vault",
];

/// Last words of the names of Secrets, and of keys in them.
pub(crate) const OBJECT_WORDS: &[&str] = &[
    "auth",
    "ca",
    "cert",
    "certificate",
    "connection",
    "credentials",
    "creds",
    "crt",
    "endpoint",
    "host",
    "id",
    "key",
    "keys",
    "otp",
    "pass",
    "passwd",
    "password",
    "pat",
    "port",
    "provider",
    "secret",
    "secrets",
    "tls",
    "token",
    "tokens",
    "user",
    "username",
];

/// Words of passwords that only look like the name of an object.
pub(crate) const JOKING_WORDS: &[&str] =
    &["super", "top", "my", "dev", "test", "some", "very", "so", "big", "change", "me"];

/// Words before `secret` in names of what is a secret itself, and not the name of an object.
const LITERAL_SECRETS: &[&str] = &[
    "client", "shared", "cookie", "session", "jwt", "hmac", "oauth", "signing", "webhook", "app", "api",
    "consumer", "state", "nonce",
];

/// The fewest characters of a credential that is no password.
const SHORTEST: usize = 3;

/// Whether a text is a credential, by what its name means.
pub(crate) fn is_credential(meaning: NameMeaning, name: &str, text: &str) -> bool {
    match meaning {
        NameMeaning::Plain => false,
        NameMeaning::Added => !text.is_empty(),
        NameMeaning::Key => looks_random(text) && !is_harmless(text),
        // A password may be anything.
        NameMeaning::Credential { numbers: true, .. } => !is_stand_in(text),
        NameMeaning::Auth if is_method(name, text) => false,
        NameMeaning::Auth | NameMeaning::Credential { .. } => {
            !is_harmless(text)
                && !is_number_of(name, text)
                && !is_key_id(name, text)
                && !names_an_object(name, text)
        }
    }
}

/// Whether a text stands for a credential, or says that there is none.
pub(crate) fn is_stand_in(text: &str) -> bool {
    let text = text.trim();
    let text = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
    text.is_empty()
        || is_switch(text)
        || is_placeholder(text)
        || is_path(text)
        || begins(REFERENCE_PREFIXES)
        || begins(CIPHERTEXT_PREFIXES)
        || is_masked(text)
}

/// Whether a text is no credential, unless its name means a password.
fn is_harmless(text: &str) -> bool {
    let text = text.trim();
    text.len() < SHORTEST
        || is_stand_in(text)
        || is_time(text)
        || is_duration(text)
        || is_digest(text)
        || is_cloud_resource(text)
        || is_email(text)
        || PUBLIC_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

fn is_switch(text: &str) -> bool {
    text.len() <= 8 && SWITCHES.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Whether a text under `auth` says how to authenticate: `ldap`, `client_secret_post`.
fn is_method(name: &str, text: &str) -> bool {
    METHODS.iter().any(|method| text.eq_ignore_ascii_case(method))
        || !is_variable(name) && is_identifier(text)
}

/// Whether a text is a number or a sum, under a name that counts or adds up: `maxTokens`, `secrets: "100"` of a quota.
fn is_number_of(name: &str, text: &str) -> bool {
    let is_number = text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_sum = text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number && is_plural(name) || (is_number || is_sum) && measures(name)
}

/// Whether the text stands for another value: `$(NAME)`, `${NAME}`, `$NAME`, `{{ .name }}`, `<name>`. One with a default in it is none:
/// the default may be a credential.
pub(crate) fn is_placeholder(text: &str) -> bool {
    let inside = |open: &str, close: &str| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    let is_plain = |text: &str, signs: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
    };
    if let Some(name) = inside("${", "}") {
        // An empty default.
        let name = name.strip_suffix(":-").or_else(|| name.strip_suffix(':')).unwrap_or(name);
        let of_a_source =
            |source: &str| name.strip_prefix(source).is_some_and(|rest| is_plain(rest, "_./:-"));
        let is_path = name.contains('.') && is_plain(name, "_.-");
        return is_plain(name, "_")
            || is_path
            || name.starts_with("env `")
            || ["env:", "file:", "secrets:", "configmaps:"].iter().any(|source| of_a_source(source));
    }
    if let Some(name) = inside("$(", ")") {
        let is_parameter = name.contains('.') && is_plain(name, "_.-");
        return is_plain(name, "_")
            || is_parameter
            || COMMANDS.iter().any(|command| name.starts_with(command)) && is_plain(name, " _./-");
    }
    if let Some(name) = inside("{{", "}}") {
        let name = name.trim().trim_start_matches(['=', '-']).trim_end_matches('-').trim();
        let is_call = ["get ", "index ", "env ", "secret ", "vault ", "lookup "]
            .iter()
            .any(|call| name.starts_with(call));
        return is_plain(name, "_.-$[]") || is_call && is_plain(name, "_.-$ \"/");
    }
    if let Some(name) = inside("<", ">") {
        return is_plain(name, "-_ ") && !name.contains(|c: char| c.is_ascii_digit());
    }
    if NGINX_VARIABLES.iter().any(|prefix| text.starts_with(prefix)) {
        return is_plain(text, "$_");
    }
    let Some(name) = text.strip_prefix('$') else { return false };
    let is_variable = name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        && (name.contains('_')
            || ["PASS", "TOKEN", "SECRET", "KEY", "PWD"].iter().any(|word| name.contains(word)));
    // A key of a Secret of Argo CD: letters, and a sign between words.
    let is_key = name.contains(['-', '.', ':'])
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphabetic() || "-.:".contains(c));
    is_variable || is_key
}

/// Whether the text is an absolute path below a usual directory.
fn is_path(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('/') else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-@".contains(c);
    let first = rest.split('/').next().unwrap_or_default();
    PATH_ROOTS.contains(&first) && rest.chars().all(plain)
}

/// Whether the text is a date with a time.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let signs = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    (19..=35).contains(&bytes.len())
        && signs.iter().all(|(at, sign)| bytes[*at] == *sign)
        && [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18].into_iter().all(is_digit)
}

/// Whether the text is a length of time: `24h`, `1h30m`.
fn is_duration(text: &str) -> bool {
    let is_unit = |byte: u8| b"smhdwy".contains(&byte);
    text.len() <= 8
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| is_unit(u8::try_from(c).unwrap_or_default()))
        && text.bytes().all(|byte| byte.is_ascii_digit() || is_unit(byte))
}

/// Whether the text is the digest of something.
fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|sum| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether the text is the name of a resource of Google Cloud: `projects/shop/locations/global/keyRings/…`.
fn is_cloud_resource(text: &str) -> bool {
    let segments = text.split('/').count();
    text.starts_with("projects/")
        && segments >= 4
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte))
}

/// Whether the text is an address of mail.
fn is_email(text: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte))
    };
    text.split_once('@').is_some_and(|(user, host)| plain(user) && plain(host) && host.contains('.'))
}

/// Whether the text has been masked before.
fn is_masked(text: &str) -> bool {
    text.chars().all(|c| c == '*')
}

/// Whether the text has the form of an object's name.
pub(crate) fn may_be_object_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 63 && text.bytes().all(fits)
}

/// Whether a text is made of words of letters, with digits at their ends: `regcred-prod2`.
fn is_wordy_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        !word.is_empty()
            && word.len() - letters.len() <= 4
            && !letters.bytes().any(|byte| byte.is_ascii_digit())
    };
    may_be_object_name(text) && text.split(['-', '.']).all(is_word)
}

/// Whether the text is the name of an object. One word alone may be a password.
pub(crate) fn is_object_name(text: &str) -> bool {
    let is_joke = |word: &str| JOKING_WORDS.contains(&word);
    is_wordy_name(text) && text.contains(['-', '.']) && !text.split(['-', '.']).any(is_joke)
}

/// Whether the text is the name of a Secret, or of a key in one, by its last word: `password`, `db-token`, `tls.key`.
pub(crate) fn names_a_key(text: &str) -> bool {
    let last = text.rsplit(['-', '.', '_']).next().unwrap_or_default();
    let is_joke = |word: &str| JOKING_WORDS.contains(&word);
    OBJECT_WORDS.contains(&last.to_ascii_lowercase().as_str())
        && text.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-._".contains(&byte))
        && !text.split(['-', '.', '_']).any(is_joke)
}

/// Whether a text is the name of an object that holds the credential, and not the credential: `shop/db-auth`, or
/// `webhook-secret: slack-webhook-secret`. Environment variables hold values.
fn names_an_object(name: &str, text: &str) -> bool {
    if let Some((namespace, object)) = text.split_once(':') {
        // The plugin of Argo CD: AVP_SECRET=argocd:vault-credentials
        let is_secret = name.to_ascii_lowercase().ends_with("secret");
        return is_secret && is_wordy_name(namespace) && is_object_name(object) && names_a_key(object);
    }
    if is_variable(name) {
        return false;
    }
    // `secret`, `spec.secrets` of Prometheus and their like hold names.
    let lower = name.to_ascii_lowercase();
    let before = lower.strip_suffix('s').unwrap_or(&lower).strip_suffix("secret");
    let is_literal = |before: &str| {
        let before = before.trim_end_matches(['-', '_', '.']);
        LITERAL_SECRETS.iter().any(|word| before.ends_with(word))
    };
    // Annotations of Ingresses name Secrets.
    let is_annotation = name.contains(".kubernetes.io/");
    let holds_name =
        before.is_some_and(|before| is_annotation || !is_literal(before)) || lower == "credentials";
    if let Some((namespace, object)) = text.split_once('/') {
        return holds_name && is_wordy_name(namespace) && is_wordy_name(object);
    }
    let is_kind = !text.contains('-') && names_a_key(text.strip_prefix("attribute.").unwrap_or(text));
    is_kind
        || is_object_name(text) && (holds_name || names_a_key(text))
        || is_annotation && holds_name && is_wordy_name(text)
}

/// Whether a name is that of an environment variable.
fn is_variable(name: &str) -> bool {
    !name.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Whether a text is a word, or words with signs between them, and no more: `client_secret_post`.
pub(crate) fn is_identifier(text: &str) -> bool {
    text.len() <= 32
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Whether a text is the id or the fingerprint of a key of GnuPG, which Git's `signingkey` holds.
fn is_key_id(name: &str, text: &str) -> bool {
    matches!(text.len(), 16 | 40)
        && name.to_ascii_lowercase().ends_with("signingkey")
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

/// Whether a text looks like one that a program has made: long, without words, letters and digits mixed.
pub(crate) fn looks_random(text: &str) -> bool {
    let is_made = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=_-.:".contains(&byte);
    let is_mixed = |word: &str| {
        let has = |kind: fn(&u8) -> bool| word.bytes().any(|byte| kind(&byte));
        word.len() >= 12 && has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic)
    };
    let has = |kind: fn(&u8) -> bool| text.bytes().any(|byte| kind(&byte));
    let is_long = text.len() >= 32
        && !text.contains(['/', '.'])
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase);
    text.len() >= 16
        && text.bytes().all(is_made)
        && !is_uuid(text)
        && (is_long || text.split(['-', '.', '_', ':', '/', '=']).any(is_mixed))
}

/// A UUID names something.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}
