//! Connection strings: URLs and `key=value` lists, as libpq reads them.
//!
//! The driver does not know all values of sslmode, nor files of certificates, so these are parsed here. An error
//! never quotes the string: any piece of it may be part of the password.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Options of libpq and of Go's driver that are ignored: they configure pools and caches that we do not have.
const IGNORED: &[&str] = &[
    "pool_max_conns",
    "pool_min_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter",
    "pool_max_conn_idle_time",
    "pool_health_check_period",
    "default_query_exec_mode",
    "statement_cache_capacity",
    "description_cache_capacity",
    "fallback_application_name",
    "client_encoding",
    "sslsni",
    "gssencmode",
];

/// Options that are refused, because users rely on them and we do not support them. Their names are safe to print.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("sslpassword", "sslpassword is not supported: name a key without a password in sslkey"),
    ("sslcrl", "sslcrl is not supported: revocation lists are not available"),
    ("service", "service is not supported: name the server itself"),
    ("passfile", "passfile is not supported: put the password into the Secret, or into PGPASSWORD"),
];

const MALFORMED: &str =
    "is not a connection string; write postgres://USER@HOST/DATABASE and percent-encode special characters";

/// Whether to encrypt, and what of the server's certificate to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// A parsed connection string. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Dsn {
    pub(super) driver: tokio_postgres::Config,
    /// `None`: not in the string.
    pub(super) sslmode: Option<SslMode>,
    /// File with trusted certificates; `system` for those of the machine.
    pub(super) root_cert: Option<PathBuf>,
    /// File with the client's certificate; if set, `client_key` is set too.
    pub(super) client_cert: Option<PathBuf>,
    /// File with its key.
    pub(super) client_key: Option<PathBuf>,
    /// Kollect's own options, such as the table on a command line.
    pub(super) kollect_options: Vec<(String, String)>,
}

impl Dsn {
    /// Parses a connection string; options named in `kollect_options` are kept separately.
    pub(super) fn parse(text: &str, kollect_options: &[&str]) -> Result<Self, String> {
        let text = text.trim();
        let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
        let (base, options) = if is_url { url_options(text)? } else { (String::new(), list_options(text)?) };
        let mut dsn = Self {
            driver: tokio_postgres::Config::new(),
            sslmode: None,
            root_cert: None,
            client_cert: None,
            client_key: None,
            kollect_options: Vec::new(),
        };
        let mut driver_options = Vec::new();
        for (key, value) in options {
            match key.as_str() {
                "sslmode" => dsn.sslmode = Some(sslmode(&value)?),
                "sslrootcert" => dsn.root_cert = Some(value.into()),
                "sslcert" => dsn.client_cert = Some(value.into()),
                "sslkey" => dsn.client_key = Some(value.into()),
                key if kollect_options.contains(&key) => dsn.kollect_options.push((key.to_owned(), value)),
                key if IGNORED.contains(&key) => {}
                key => match UNSUPPORTED.iter().find(|(name, _)| *name == key) {
                    Some((_, problem)) => return Err((*problem).to_owned()),
                    None => driver_options.push((key.to_owned(), value)),
                },
            }
        }
        let driver_string = if is_url { url(&base, &driver_options) } else { list(&driver_options) };
        dsn.driver = driver_string.parse().map_err(|_| MALFORMED.to_owned())?;
        if dsn.driver.get_hosts().is_empty() && dsn.driver.get_hostaddrs().is_empty() {
            return Err("names no host; write postgres://USER@HOST/DATABASE".into());
        }
        if dsn.client_cert.is_some() != dsn.client_key.is_some() {
            return Err("has one of sslcert and sslkey; write both or none".into());
        }
        Ok(dsn)
    }
}

fn sslmode(value: &str) -> Result<SslMode, String> {
    match value {
        "disable" => Ok(SslMode::Disable),
        // For `allow`, libpq tries without TLS first; trying with TLS first accepts the same servers.
        "allow" | "prefer" => Ok(SslMode::Prefer),
        "require" => Ok(SslMode::Require),
        "verify-ca" => Ok(SslMode::VerifyCa),
        "verify-full" => Ok(SslMode::VerifyFull),
        _ => Err("has no known sslmode; write disable, prefer, require, verify-ca or verify-full".into()),
    }
}

type DsnOptions = Vec<(String, String)>;

/// A URL without its options, and the options.
fn url_options(text: &str) -> Result<(String, DsnOptions), String> {
    let (base, query) = text.split_once('?').unwrap_or((text, ""));
    let decode =
        |part: &str| percent_decode_str(part).decode_utf8().map(Into::into).map_err(|_| MALFORMED.to_owned());
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let options = pairs.map(|pair| {
        let (key, value) = pair.split_once('=').ok_or(MALFORMED)?;
        Ok((decode(key)?, decode(value)?))
    });
    Ok((base.to_owned(), options.collect::<Result<_, String>>()?))
}

fn url(base: &str, options: &DsnOptions) -> String {
    let encode = |text: &str| {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let pairs: Vec<String> = options.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    if pairs.is_empty() { base.to_owned() } else { format!("{base}?{}", pairs.join("&")) }
}

/// Parses `key = value` pairs. A value is quoted or ends at white space; a backslash escapes the next character.
fn list_options(text: &str) -> Result<DsnOptions, String> {
    let mut options = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(options);
        }
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| *c != '=' && !c.is_whitespace()) {
            key.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') || key.is_empty() {
            return Err(MALFORMED.into());
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let quoted = chars.next_if_eq(&'\'').is_some();
        options.push((key, list_value(&mut chars, quoted)?));
    }
}

fn list_value(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, quoted: bool) -> Result<String, String> {
    let mut value = String::new();
    loop {
        match chars.next() {
            Some('\\') => value.push(chars.next().ok_or(MALFORMED)?),
            Some('\'') if quoted => return Ok(value),
            Some(c) if quoted || !c.is_whitespace() => value.push(c),
            None if quoted => return Err(MALFORMED.into()),
            Some(_) | None => return Ok(value),
        }
    }
}

fn list(options: &DsnOptions) -> String {
    let escape = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let pairs: Vec<String> =
        options.iter().map(|(key, value)| format!("{key}='{}'", escape(value))).collect();
    pairs.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_and_a_list_are_parsed_to_the_same_settings() {
        let url = "postgres://me:p%40ss'w@db.example:5433/shop?sslmode=verify-ca&options=-c%20a%3Db&pool_max_conns=4";
        let list = r"host=db.example port=5433 user = me password='p@ss\'w' dbname=shop sslmode=verify-ca options='-c a=b'";
        let (url, list) = (Dsn::parse(url, &[]).ok().unwrap(), Dsn::parse(list, &[]).ok().unwrap());
        assert!(url == list);
        assert_eq!(url.sslmode, Some(SslMode::VerifyCa));
        assert_eq!(url.driver.get_password(), Some("p@ss'w".as_bytes()));
        assert_eq!(url.driver.get_options(), Some("-c a=b"));
    }

    #[test]
    fn an_error_does_not_quote_the_connection_string() {
        for (text, part) in [
            ("postgres://u:hunter2@h/db?sslmode=hunter2", "verify-full"),
            ("postgres://u:hunter2@h/db?hunter2", "is not a connection string"),
            ("postgres://u:hunter2@h/db?hunter2=1", "is not a connection string"),
            ("postgres://u:hunter2@h:port/db", "is not a connection string"),
            ("password=hunter2 'x", "is not a connection string"),
            ("host=h password='hunter2", "is not a connection string"),
            ("host=h hunter2", "is not a connection string"),
            ("password=hunter2", "names no host"),
            ("postgres://u:hunter2@h/db?sslkey=/hunter2", "sslcert and sslkey"),
            ("postgres://u:hunter2@h/db?sslpassword=hunter2", "sslpassword"),
            ("hunter2", "is not a connection string"),
        ] {
            let problem = Dsn::parse(text, &[]).err().unwrap_or_default();
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
