//! The served certificate, and its replacement at run time.
//!
//! Kubernetes replaces mounted Secrets by swapping a symbolic link, some of them on network file systems: the files are
//! compared by content every few seconds, which detects every kind of replacement.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::{Context, anyhow};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{task::spawn_blocking, time};

use super::{ReportNotice, ServerNotice};

/// Which certificate a server uses.
#[derive(Debug, Clone)]
pub(crate) enum ServerTls {
    /// Plain HTTP.
    Off,
    /// PEM files in a directory, which may be replaced at any time.
    Files {
        dir: PathBuf,
        /// Usually `tls.crt`: the certificate chain.
        cert: String,
        /// Usually `tls.key`.
        key: String,
    },
    /// A generated certificate that no client can verify: for encryption with clients that skip the verification.
    SelfSigned,
    /// A certificate that other code sets and replaces. Until it is set, handshakes fail.
    Provided(Arc<ServedCertificate>),
}

impl ServerTls {
    /// Whether a server could start with it; errors name the file.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.load(false).map(drop)
    }

    /// The TLS configuration, and what reloads its certificate; `None` for plain HTTP.
    pub(super) fn load(
        &self,
        http2: bool,
    ) -> anyhow::Result<Option<(Arc<ServerConfig>, Option<CertificateReload>)>> {
        let served = match self {
            Self::Provided(served) => served.clone(),
            _ => Arc::default(),
        };
        let source = match self {
            Self::Off => return Ok(None),
            Self::Provided(_) => None,
            Self::SelfSigned => {
                served.replace(self_signed().context("make a self-signed certificate")?);
                None
            }
            Self::Files { dir, cert, key } => {
                let files = CertificatePaths { certificate: dir.join(cert), key: dir.join(key) };
                let loaded = files.read()?;
                served.replace(files.parse(&loaded)?);
                Some((files, loaded))
            }
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("set up TLS")?
            .with_no_client_auth()
            .with_cert_resolver(served.clone());
        config.alpn_protocols =
            if http2 { vec![b"h2".into(), b"http/1.1".into()] } else { vec![b"http/1.1".into()] };
        let reload =
            source.map(|(files, loaded)| CertificateReload { files: Arc::new(files), loaded, served });
        Ok(Some((Arc::new(config), reload)))
    }
}

fn self_signed() -> anyhow::Result<CertifiedKey> {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let generated = rcgen::generate_simple_self_signed(names)?;
    let key =
        PrivateKeyDer::try_from(generated.signing_key.serialize_der()).map_err(|error| anyhow!(error))?;
    Ok(CertifiedKey::from_der(vec![generated.cert.der().clone()], key, &ring::default_provider())?)
}

/// The certificate for connections that begin now; none in the beginning.
#[derive(Debug, Default)]
pub(crate) struct ServedCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl ServedCertificate {
    /// Connections that begin from now on get this certificate.
    pub(crate) fn replace(&self, key: CertifiedKey) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(key));
    }

    /// The certificate that connections get now.
    pub(crate) fn get(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}

struct CertificatePaths {
    certificate: PathBuf,
    key: PathBuf,
}

/// What was in the two files.
#[derive(PartialEq, Eq)]
struct CertificateFiles {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl CertificatePaths {
    fn read(&self) -> anyhow::Result<CertificateFiles> {
        let read = |file: &Path| fs::read(file).with_context(|| format!("read {}", file.display()));
        Ok(CertificateFiles { certificate: read(&self.certificate)?, key: read(&self.key)? })
    }

    /// Fails if the key does not match the certificate.
    fn parse(&self, contents: &CertificateFiles) -> anyhow::Result<CertifiedKey> {
        let file = self.certificate.display();
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&contents.certificate).collect();
        let chain = chain.with_context(|| format!("{file} is not PEM"))?;
        if chain.is_empty() {
            return Err(anyhow!("{file} contains no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .with_context(|| format!("{} contains no private key", self.key.display()))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider())
            .with_context(|| format!("{file} and {} are no usable pair", self.key.display()))
    }
}

/// Reloads the certificate when the files change.
pub(super) struct CertificateReload {
    files: Arc<CertificatePaths>,
    loaded: CertificateFiles,
    served: Arc<ServedCertificate>,
}

impl CertificateReload {
    /// Never ends.
    pub(super) async fn run(mut self, interval: Duration, report: ReportNotice) {
        let mut last = None;
        let mut reported = None;
        loop {
            time::sleep(interval).await;
            let problem = self.reload(&report).await.err().map(|error| format!("{error:#}"));
            // A replacement in progress is complete at the next check: report only what fails twice in the same way.
            if let Some(problem) = problem.as_ref().filter(|_| problem == last && problem != reported) {
                report(ServerNotice::CertificateBroken(problem.clone()));
                reported = Some(problem.clone());
            }
            if problem.is_none() {
                reported = None;
            }
            last = problem;
        }
    }

    async fn reload(&mut self, report: &ReportNotice) -> anyhow::Result<()> {
        let files = self.files.clone();
        let found = spawn_blocking(move || files.read()).await.context("read the certificate files")??;
        if found != self.loaded {
            self.served.replace(self.files.parse(&found)?);
            self.loaded = found;
            report(ServerNotice::CertificateReplaced(self.files.certificate.display().to_string()));
        }
        Ok(())
    }
}
