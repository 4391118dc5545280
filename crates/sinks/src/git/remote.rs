//! The repository, the branch, the trusted servers and the credentials: from a spec and its Secrets.

use std::{fmt, sync::Arc};

use kollect_model::{
    SpecError,
    crd::sinks::{Git, GitAuthType, SinkCommon},
};
use russh::keys::PrivateKey;

use super::transport::{known_hosts::KnownHosts, private_key::private_key};
use crate::{Secrets, SinkPolicy, secrets::ClientCertificate, tls::ServerTrust};

mod address;

pub(super) use address::RepositoryAddress;

const ENDPOINT: &str = "spec.endpoint";
const BRANCH: &str = "spec.git.branch";
const AUTH_REF: &str = "spec.git.auth.secretRef";
const SECRET_REF: &str = "spec.secretRef";
const PRIVATE_KEY_KEYS: &[&str] = &["ssh-privatekey", "identity", "id_rsa"];
const DEFAULT_BRANCH: &str = "main";
/// The user name beside a token, which servers ignore.
const TOKEN_USER: &str = "x-access-token";
/// The user name beside a password, and of SSH, unless the Secret or the address names one.
const DEFAULT_USER: &str = "git";

/// A repository and one of its branches. It can be opened only after [`RemoteConfig::with_secrets`].
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RemoteConfig {
    pub(super) address: RepositoryAddress,
    pub(super) branch: String,
    pub(super) trust: ServerTrust,
    /// Whether credentials are sent before the server asks for them.
    pub(super) force_basic_auth: bool,
    /// The field that names the Secret with credentials.
    secret: Option<&'static str>,
    /// `None` until the Secret has been read.
    pub(super) credentials: Option<GitCredentials>,
}

/// Credentials. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct GitCredentials {
    /// User and password for HTTP.
    pub(super) basic: Option<(String, String)>,
    /// Client certificate and its key for HTTPS, PEM both.
    pub(super) identity: Option<ClientCertificate>,
    /// For SSH.
    pub(super) ssh: Option<SshCredentials>,
}

/// A decrypted SSH key, and the known hosts. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SshCredentials {
    pub(super) user: String,
    pub(super) key: Arc<PrivateKey>,
    pub(super) known_hosts: String,
}

/// Prints no credentials.
impl fmt::Debug for RemoteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteConfig")
            .field("address", &self.address)
            .field("branch", &self.branch)
            .finish_non_exhaustive()
    }
}

impl RemoteConfig {
    /// The configuration of a spec, checked without the Secrets.
    pub(super) fn plan(common: &SinkCommon, git: Option<&Git>) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let endpoint = common.endpoint.as_deref().unwrap_or_default();
        let parsed = RepositoryAddress::parse(endpoint).map_err(|problem| {
            errors.push(SpecError::new(ENDPOINT, &address::printable(endpoint).into(), problem));
        });
        let endpoint_branch = parsed.as_ref().ok().and_then(|(_, branch)| branch.clone());
        let spec_branch = git.and_then(|git| git.branch.clone());
        let (field, branch) = match (spec_branch, endpoint_branch) {
            (Some(branch), _) => (BRANCH, branch),
            (None, Some(branch)) => (ENDPOINT, branch),
            (None, None) => (BRANCH, DEFAULT_BRANCH.to_owned()),
        };
        if let Err(problem) = check_branch(&branch) {
            errors.push(SpecError::new(field, &branch.as_str().into(), problem));
        }
        let trust = ServerTrust::plan(common.tls.as_ref()).unwrap_or_else(|error| {
            errors.push(error);
            ServerTrust::default()
        });
        let auth = git.and_then(|git| git.auth.as_ref());
        let secret = match (auth.and_then(|auth| auth.secret_ref.as_ref()), &common.secret_ref) {
            (Some(_), _) => Some(AUTH_REF),
            (None, Some(_)) => Some(SECRET_REF),
            (None, None) => None,
        };
        if let Ok((address, _)) = &parsed {
            errors.extend(auth_error(address, auth.and_then(|auth| auth.type_), secret));
        }
        match parsed {
            Ok((address, _)) if errors.is_empty() => Ok(Self {
                address,
                branch,
                trust,
                force_basic_auth: git.and_then(|git| git.force_basic_auth).unwrap_or_default(),
                secret,
                credentials: secret.is_none().then(GitCredentials::default),
            }),
            _ => Err(errors),
        }
    }

    /// The plan with credentials and certificates.
    pub(super) fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        let wrong = |field, problem| vec![SpecError::absent(field, format!("the Secret {problem}"))];
        if let Some(field) = self.secret {
            let read = match &self.address {
                RepositoryAddress::Http(_) => GitCredentials::for_http(secrets, field),
                RepositoryAddress::Ssh { user, .. } => {
                    GitCredentials::for_ssh(secrets, field, user.as_deref(), self.trust.any_server)
                }
                RepositoryAddress::File(_) => Ok(GitCredentials::default()),
            };
            self.credentials = Some(read.map_err(|problem| wrong(field, problem))?);
        }
        self.trust = self.trust.with_secrets(secrets).map_err(|error| vec![error])?;
        Ok(self)
    }

    /// Another branch of the same repository.
    pub(super) fn with_branch(self, branch: String) -> Self {
        Self { branch, ..self }
    }

    /// Refuses servers and paths that the policy does not allow. Checks names only and does not resolve them.
    pub(super) fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        let checked = match &self.address {
            RepositoryAddress::Http(url) => {
                let port = url.port_or_known_default().unwrap_or_default();
                let checked = policy.network.check_server(url.host_str().unwrap_or_default(), port);
                checked.map_err(|refusal| refusal.to_string())
            }
            RepositoryAddress::Ssh { host, port, .. } => {
                policy.network.check_server(host, *port).map_err(|refusal| refusal.to_string())
            }
            RepositoryAddress::File(path) => policy.files.check(path),
        };
        checked.map_err(|problem| vec![SpecError::new(ENDPOINT, &self.address.to_string().into(), problem)])
    }

    /// The repository without the user: two users of one repository write the same destination.
    pub(super) fn repository(&self, policy: &SinkPolicy) -> String {
        match &self.address {
            RepositoryAddress::File(path) => format!("file://{}", policy.files.absolute(path).display()),
            address => address.canonical(),
        }
    }

    /// Which branch of which repository.
    pub(super) fn destination_text(&self, policy: &SinkPolicy) -> String {
        format!("{} {}", self.repository(policy), self.branch)
    }

    /// The field of the Secret that has not been read yet.
    pub(super) fn unread_secret(&self) -> Option<&'static str> {
        self.secret.filter(|_| self.credentials.is_none())
    }
}

/// Returns an error if the settings for authentication do not fit the address.
fn auth_error(
    address: &RepositoryAddress,
    type_: Option<GitAuthType>,
    secret: Option<&'static str>,
) -> Option<SpecError> {
    let is_ssh = matches!(address, RepositoryAddress::Ssh { .. });
    match type_ {
        Some(GitAuthType::Ssh) if !is_ssh => Some(SpecError::new(
            "spec.git.auth.type",
            &"ssh".into(),
            "fits addresses that begin with ssh:// only; remove it, or write such an address",
        )),
        Some(GitAuthType::Token) if is_ssh => Some(SpecError::new(
            "spec.git.auth.type",
            &"token".into(),
            "fits addresses that begin with https:// or http:// only; write ssh",
        )),
        _ if is_ssh && secret.is_none() => Some(SpecError::absent(
            AUTH_REF,
            "is needed for addresses that begin with ssh://: a Secret with the keys ssh-privatekey and \
             known_hosts",
        )),
        _ => None,
    }
}

/// Checks a branch name by the rules of the CRD, which do not apply to command lines, and by those of Git.
pub(super) fn check_branch(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    let is_valid = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(is_allowed)
        && !name.contains("..")
        && !name.starts_with("refs/")
        && !name.ends_with('.')
        && git2::Reference::is_valid_name(&format!("refs/heads/{name}"));
    if is_valid {
        return Ok(());
    }
    Err("is not the name of a branch; write letters, digits and . _ / -, not below refs/, without .. and not \
         ending in . or .lock"
        .into())
}

impl GitCredentials {
    fn for_http(secrets: &Secrets, field: &str) -> Result<Self, String> {
        let user = secrets.text(field, "username")?;
        let token = secrets.text(field, "token")?;
        let password = secrets.text(field, "password")?;
        if user.as_ref().is_some_and(|user| user.contains(':')) {
            return Err("has a username with a colon, which HTTP cannot carry".into());
        }
        let basic = match (token, password) {
            (Some(token), _) => Some((user.unwrap_or_else(|| TOKEN_USER.into()), token)),
            (None, Some(password)) => Some((user.unwrap_or_else(|| DEFAULT_USER.into()), password)),
            (None, None) if user.is_some() => {
                return Err("has a username and neither token nor password".into());
            }
            (None, None) => None,
        };
        let certificate = secrets.identity(field)?;
        if basic.is_none() && certificate.is_none() {
            return Err("has none of the keys token, password, tls.crt and tls.key".into());
        }
        Ok(Self { basic, identity: certificate, ssh: None })
    }

    fn for_ssh(
        secrets: &Secrets,
        field: &str,
        url_user: Option<&str>,
        trust_any_server: bool,
    ) -> Result<Self, String> {
        let named = |name: &'static str| secrets.first(field, &[name]).map(|key| (name, key));
        let Some((name, key)) = PRIVATE_KEY_KEYS.iter().copied().find_map(named) else {
            return Err(format!("has none of the keys {}", PRIVATE_KEY_KEYS.join(", ")));
        };
        let key = str::from_utf8(key)
            .map_err(|_| format!("has in its key {name} a private key that is no text"))?;
        let passphrase = secrets.text(field, "passphrase")?;
        // Decrypting the key may take a second, so the plan stores the result.
        let key = private_key(key, passphrase.as_deref())
            .map_err(|problem| format!("has in its key {name} {problem}"))?;
        let known_hosts = match secrets.text(field, "known_hosts")? {
            Some(known) => {
                KnownHosts::parse(&known)?;
                known
            }
            None if trust_any_server => String::new(),
            None => {
                return Err("has no key known_hosts, so it is not known whether the server is the right \
                            one; add the output of ssh-keyscan, checked, or set \
                            spec.tls.insecureSkipVerify"
                    .into());
            }
        };
        let user = secrets.text(field, "username")?;
        let user = user.as_deref().or(url_user).unwrap_or(DEFAULT_USER).to_owned();
        let ssh = SshCredentials { user, key: Arc::new(key), known_hosts };
        Ok(Self { ssh: Some(ssh), ..Self::default() })
    }
}

#[cfg(test)]
mod tests;
