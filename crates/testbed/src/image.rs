//! `make image`: an OCI image layout of the program, without Docker.
//!
//! The same programs give the same digest: entries have fixed owners, modes and times, and the date is that of the
//! commit. The authorities of certificates are those of Mozilla, from a crate, and not those of this machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::Error;

/// User and group of the process.
const USER: u64 = 65532;
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// The most bytes of compressed layers that a platform may have.
pub const MAX_BYTES: usize = 30_000_000;

/// A program for a platform.
#[derive(Debug, Clone)]
pub struct ImageProgram {
    /// As in Go: `amd64` or `arm64`.
    pub architecture: String,
    /// The static program.
    pub file: PathBuf,
}

/// What labels say.
#[derive(Debug, Clone)]
pub struct ImageLabels {
    /// Version of the program.
    pub version: String,
    /// The commit that it was built from.
    pub revision: String,
    /// The date of that commit, as RFC 3339.
    pub created: String,
}

/// Writes the layout into `directory`, which is emptied first. Returns the digest of the image, which is that of
/// `index.json`, and the size of the compressed layers of each platform.
pub fn write(
    directory: &Path,
    programs: &[ImageProgram],
    labels: &ImageLabels,
) -> Result<(String, Vec<(String, usize)>), Error> {
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(Error::io(format!("remove {}", directory.display())))?;
    }
    let blobs = Blobs(directory.join("blobs/sha256"));
    fs::create_dir_all(&blobs.0).map_err(Error::io(format!("create {}", blobs.0.display())))?;
    let (mut manifests, mut sizes) = (Vec::new(), Vec::new());
    for program in programs {
        let (manifest, size) = blobs.image(program, labels)?;
        manifests.push(manifest);
        sizes.push((program.architecture.clone(), size));
    }
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests, "annotations": annotations(labels),
    });
    let index = index.to_string();
    for (name, text) in [("index.json", index.as_str()), ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)]
    {
        let path = directory.join(name);
        fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))?;
    }
    let digest = format!("sha256:{}", hex(&Sha256::digest(index.as_bytes())));
    Ok((digest, sizes))
}

/// What a kubelet takes from the configuration of an image, a line each: the user, the program, and the environment. All labels
/// must be there.
pub fn settings(config: &str) -> Result<String, Error> {
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    let config = &config["config"];
    let text = |value: &Value, name: &str| {
        let text = value.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        text.ok_or_else(|| Error::ImageConfig { missing: name.to_owned() })
    };
    let no_labels = ImageLabels { version: String::new(), revision: String::new(), created: String::new() };
    for label in annotations(&no_labels).as_object().into_iter().flatten().map(|(label, _)| label) {
        text(&config["Labels"][label], label)?;
    }
    let mut lines = vec![text(&config["User"], "User")?, text(&config["Entrypoint"][0], "Entrypoint")?];
    for variable in config["Env"].as_array().into_iter().flatten() {
        lines.push(text(variable, "Env")?);
    }
    Ok(lines.join("\n") + "\n")
}

fn annotations(labels: &ImageLabels) -> Value {
    json!({
        "org.opencontainers.image.title": "kollect",
        "org.opencontainers.image.description": "Kubernetes inventory: an operator and a command line around the same engine",
        "org.opencontainers.image.version": labels.version,
        "org.opencontainers.image.revision": labels.revision,
        "org.opencontainers.image.created": labels.created,
        "org.opencontainers.image.licenses": "MIT",
    })
}

/// The directory of a layout's contents.
struct Blobs(PathBuf);

impl Blobs {
    /// Writes a blob and returns its descriptor.
    fn write(&self, media_type: &str, bytes: &[u8]) -> Result<Value, Error> {
        let digest = hex(&Sha256::digest(bytes));
        let path = self.0.join(&digest);
        fs::write(&path, bytes).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    }

    fn json(&self, media_type: &str, value: &Value) -> Result<Value, Error> {
        self.write(media_type, value.to_string().as_bytes())
    }

    /// Writes the image of a platform. Returns the descriptor of its manifest, and the size of its layers.
    fn image(&self, program: &ImageProgram, labels: &ImageLabels) -> Result<(Value, usize), Error> {
        let binary =
            fs::read(&program.file).map_err(Error::io(format!("read {}", program.file.display())))?;
        // The second layer is all that a new version changes.
        let layers =
            [base_layer(), program_layer(&binary)].map(|layer| layer.map_err(Error::io("pack a layer")));
        let (mut descriptors, mut digests, mut size) = (Vec::new(), Vec::new(), 0);
        for layer in layers {
            let layer = layer?;
            let compressed = gzip(&layer).map_err(Error::io("compress a layer"))?;
            size += compressed.len();
            digests.push(format!("sha256:{}", hex(&Sha256::digest(&layer))));
            descriptors.push(self.write("application/vnd.oci.image.layer.v1.tar+gzip", &compressed)?);
        }
        let history = ["authorities of certificates and /tmp", "the program"]
            .map(|text| json!({ "created": labels.created, "created_by": text }));
        let config = json!({
            "architecture": program.architecture, "os": "linux", "created": labels.created,
            "config": {
                "User": format!("{USER}:{USER}"), "Entrypoint": ["/kollect"], "WorkingDir": "/",
                "Env": ["PATH=/", format!("SSL_CERT_FILE=/{AUTHORITIES}")], "Labels": annotations(labels),
            },
            "rootfs": { "type": "layers", "diff_ids": digests }, "history": history,
        });
        let config = self.json("application/vnd.oci.image.config.v1+json", &config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config, "layers": descriptors, "annotations": annotations(labels),
        });
        let mut descriptor = self.json("application/vnd.oci.image.manifest.v1+json", &manifest)?;
        descriptor["platform"] = json!({ "architecture": program.architecture, "os": "linux" });
        Ok((descriptor, size))
    }
}

fn base_layer() -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for directory in ["etc/", "etc/ssl/", "etc/ssl/certs/"] {
        append(&mut archive, directory, 0o755, &[])?;
    }
    append(&mut archive, AUTHORITIES, 0o644, authorities().as_bytes())?;
    append(&mut archive, "tmp/", 0o1777, &[])?;
    archive.into_inner()
}

fn program_layer(binary: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "kollect", 0o755, binary)?;
    archive.into_inner()
}

/// A path that ends with a slash is a directory.
fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
    let mut header = tar::Header::new_ustar();
    let is_directory = path.ends_with('/');
    header.set_entry_type(if is_directory { tar::EntryType::Directory } else { tar::EntryType::Regular });
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive.append_data(&mut header, path, content)
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The authorities that Mozilla trusts, as PEM.
fn authorities() -> String {
    let mut text = String::new();
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = BASE64.encode(certificate);
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, others) = rest.split_at(rest.len().min(64));
            text.push_str(line);
            text.push('\n');
            rest = others;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_program_gives_the_same_digest() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("program");
        fs::write(&file, "a program").unwrap();
        let labels = ImageLabels {
            version: "1.2.3".into(),
            revision: "abc".into(),
            created: "2026-11-18T00:00:00Z".into(),
        };
        let program =
            |architecture: &str| ImageProgram { architecture: architecture.into(), file: file.clone() };
        let programs = [program("amd64"), program("arm64")];
        let write = |name: &str| write(&directory.path().join(name), &programs, &labels).unwrap();
        let (first, sizes) = write("first");
        assert_eq!(write("second"), (first.clone(), sizes.clone()));
        assert!(first.starts_with("sha256:") && sizes.len() == 2, "{first} {sizes:?}");
        let blobs = fs::read_dir(directory.path().join("first/blobs/sha256")).unwrap();
        let texts = blobs.filter_map(|blob| fs::read_to_string(blob.unwrap().path()).ok());
        let config = texts.into_iter().find(|text| text.contains("Entrypoint")).unwrap();
        assert_eq!(
            settings(&config).unwrap(),
            "65532:65532\n/kollect\nPATH=/\nSSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n"
        );
        let error = settings(&config.replace("image.revision", "image.other")).unwrap_err().to_string();
        assert_eq!(error, "the configuration of the image has no org.opencontainers.image.revision");
        fs::write(&file, "another program").unwrap();
        assert_ne!(write("third").0, first);
        assert!(authorities().matches("BEGIN CERTIFICATE").count() > 100);
    }
}
