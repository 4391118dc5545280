//! Addresses of repositories, as users write them into `spec.endpoint`.

use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

const FORM: &str =
    "write https://HOST/PATH, ssh://git@HOST/PATH or file:PATH, with #branch=NAME at the end if need be";
const SSH_PORT: u16 = 22;

/// Where a repository is. Holds no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) enum RepositoryAddress {
    /// With or without TLS; without user, query, fragment and slash at the end.
    Http(Url),
    Ssh {
        user: Option<String>,
        host: String,
        port: u16,
        path: String,
    },
    /// A directory of this machine.
    File(String),
}

impl RepositoryAddress {
    /// An address, and the branch that its fragment names. An error does not repeat the text.
    pub(super) fn parse(text: &str) -> Result<(Self, Option<String>), String> {
        let (address, fragment) =
            text.split_once('#').map_or((text, None), |(address, fragment)| (address, Some(fragment)));
        let branch = match fragment {
            None | Some("") => None,
            Some(fragment) => match fragment.strip_prefix("branch=") {
                Some(branch) if !branch.is_empty() => Some(branch.to_owned()),
                _ => return Err(format!("has a fragment that is not #branch=NAME; {FORM}")),
            },
        };
        Ok((Self::parse_address(address)?, branch))
    }

    fn parse_address(text: &str) -> Result<Self, String> {
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(format!("has a space or a control character; {FORM}"));
        }
        if let Some(path) = text.strip_prefix("file:") {
            return file(path);
        }
        let Some((scheme, _)) = text.split_once("://") else { return Err(no_scheme(text)) };
        let url = Url::parse(text).map_err(|error| format!("is not a URL ({error}); {FORM}"))?;
        if url.password().is_some() {
            return Err(
                "holds a password, and every user who may read the sink can read it; put it into the \
                        Secret of spec.git.auth.secretRef"
                    .into(),
            );
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err(format!("names no host; {FORM}"));
        };
        if url.query().is_some() {
            return Err(format!("has a question mark, which addresses of repositories do not have; {FORM}"));
        }
        if url.path().trim_matches('/').is_empty() {
            return Err(format!("names a server and no repository; {FORM}"));
        }
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => Ok(Self::Http(without_user_and_fragment(url))),
            "ssh" => Ok(Self::Ssh {
                user: (!url.username().is_empty()).then(|| decoded(url.username())).transpose()?,
                host: host.to_ascii_lowercase(),
                port: url.port().unwrap_or(SSH_PORT),
                path: ssh_path(url.path())?,
            }),
            _ => Err(format!("has a scheme that is not supported; {FORM}")),
        }
    }

    /// A text that is equal for addresses of one repository, as far as addresses tell.
    pub(super) fn canonical(&self) -> String {
        let text = self.to_string();
        text.strip_suffix(".git").unwrap_or(&text).to_owned()
    }
}

/// Without the user: two users of one repository write the same destination.
impl fmt::Display for RepositoryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => write!(f, "{url}"),
            Self::Ssh { host, port, path, .. } => {
                let port = if *port == SSH_PORT { String::new() } else { format!(":{port}") };
                let slash = if path.starts_with('/') { "" } else { "/" };
                write!(f, "ssh://{host}{port}{slash}{path}")
            }
            Self::File(path) if path.starts_with('/') => write!(f, "file://{path}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

/// A value of the field for printing: hidden if it may hold a password.
pub(super) fn printable(text: &str) -> String {
    let before_at = text.rsplit_once('@').map_or("", |(before, _)| before);
    let user = before_at.split_once("://").map_or(before_at, |(_, user)| user);
    // In HTTP URLs the user may be a token.
    let is_http = text.starts_with("http://") || text.starts_with("https://");
    if user.contains(':') || (is_http && !user.is_empty()) { "…".to_owned() } else { text.to_owned() }
}

fn without_user_and_fragment(mut url: Url) -> Url {
    // This cannot fail for addresses that have a host.
    url.set_username("").ok();
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url
}

fn file(path: &str) -> Result<RepositoryAddress, String> {
    let path = match path.strip_prefix("//") {
        None => path,
        Some(absolute) if absolute.starts_with('/') => absolute,
        Some(_) => {
            return Err("names a host; write file:///ABSOLUTE/PATH or file:RELATIVE/PATH".into());
        }
    };
    let path = decoded(path)?;
    let path = if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path };
    if path.is_empty() || path == "/" || path.contains('\0') {
        return Err(format!("names no directory; {FORM}"));
    }
    Ok(RepositoryAddress::File(path))
}

/// The path for the command line. `/~user/x` is below a home directory and loses its slash.
fn ssh_path(path: &str) -> Result<String, String> {
    let path = decoded(path)?;
    if path.chars().any(char::is_control) {
        return Err("has a control character in its path".into());
    }
    let path = path.trim_end_matches('/');
    Ok(if path.starts_with("/~") { path.trim_start_matches('/') } else { path }.to_owned())
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "has percent-encoding that is not valid UTF-8".into())
}

/// The error for an address without a scheme: most often it is the short form of SSH.
fn no_scheme(text: &str) -> String {
    match text.split_once(':') {
        Some((host, path)) if !host.is_empty() && !host.contains('/') && !path.contains('@') => {
            let host = if host.contains('@') { host.to_owned() } else { format!("git@{host}") };
            format!("is the short form of SSH; write ssh://{host}/{}", path.trim_start_matches('/'))
        }
        _ => format!("is not a URL; {FORM}"),
    }
}
