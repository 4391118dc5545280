//! Keys, tokens and kubeconfigs: everything that a client needs to authenticate.
//!
//! Called by the control plane at start and once per user. One fresh key serves the API server's
//! TLS and signs service account tokens; its certificate is self-signed and so its own authority.
//! Keys and tokens are valid only as long as the scratch directory exists.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use crate::{Error, Scratch};

const CONTEXT: &str = "kollect-testbed";

/// Port, keys and tokens that the API server is started with.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(super) port: u16,
    pub(super) admin_token: String,
    pub(crate) certificate: String,
    pub(super) certificate_file: PathBuf,
    pub(super) key_file: PathBuf,
    pub(super) tokens_file: PathBuf,
}

impl Access {
    pub(super) fn create(scratch: &Scratch, port: u16) -> Result<Self, Error> {
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let key = rcgen::generate_simple_self_signed(names)?;
        let certificate = key.cert.pem();
        let admin_token = random_token()?;
        let admin = format!("{admin_token},admin,admin,\"system:masters\"\n");
        Ok(Self {
            port,
            certificate_file: scratch.write("apiserver.crt", &certificate)?,
            key_file: scratch.write("apiserver.key", key.signing_key.serialize_pem())?,
            tokens_file: scratch.write("tokens.csv", admin)?,
            admin_token,
            certificate,
        })
    }

    /// What Pods find in variables.
    pub(crate) fn host_and_port(&self) -> (String, String) {
        ("127.0.0.1".to_owned(), self.port.to_string())
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Writes a kubeconfig for the bearer of `token`, with `namespace` as the default of its context. JSON is YAML too.
    pub(crate) fn write_kubeconfig(
        &self,
        scratch: &Scratch,
        name: &str,
        token: &str,
        namespace: Option<&str>,
    ) -> Result<PathBuf, Error> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": CONTEXT, "cluster": {
                "server": self.url(),
                "certificate-authority-data": BASE64.encode(&self.certificate),
            }}],
            "users": [{ "name": name, "user": { "token": token } }],
            "contexts": [{ "name": CONTEXT, "context": { "cluster": CONTEXT, "user": name, "namespace": namespace } }],
            "current-context": CONTEXT,
        });
        scratch.write(&format!("{name}.kubeconfig"), format!("{config:#}\n"))
    }
}

fn random_token() -> Result<String, Error> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(Error::io("read random bytes"))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
