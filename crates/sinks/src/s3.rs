//! S3 and compatible stores: one object per inventory.
//!
//! [`document`](crate::document) decides what the objects hold, [`bucket`](crate::bucket) speaks to the store.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use kollect_model::{
    SpecError,
    crd::sinks::{EncryptionType, KollectSnapshotSinkSpec, ObjectEncryption, Preview, ProvisioningMode},
    destination::Destination,
    sink::{Sink, SinkError, SinkReason},
};
use object_store::{
    RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
};
use tokio::sync::OnceCell;

use crate::{
    Backend, Network, OutScheme, Secrets, SinkPolicy, SinkSettings,
    bucket::{
        Bucket,
        connector::{ConnectorClient, GuardedConnector},
    },
    document::{DocumentFormat, DocumentSettings, sink::DocumentSink},
    sample::SampleRows,
    tls::ServerTrust,
};

mod address;

use address::BucketAddress;

const SECRET_REF: &str = "spec.secretRef";
const DEFAULT_REGION: &str = "us-east-1";
const IDLE_LIMIT: Duration = Duration::from_mins(1);
/// Options that set fields of `objectStore` of the same names as well.
const REGION: &str = "region";
const STORAGE_CLASS: &str = "storageClass";

/// The configuration of a sink: the bucket, access to it, and the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    access: BucketAccess,
    prefix: String,
    storage_class: Option<String>,
    unconditional: bool,
    documents: DocumentSettings,
}

/// What requests to a bucket need.
#[derive(Clone, PartialEq, Eq)]
struct BucketAccess {
    address: BucketAddress,
    region: String,
    encryption: Option<ObjectEncryption>,
    trust: ServerTrust,
    /// `None`: the Secret has not been read.
    keys: Option<AccessKeys>,
}

/// The credentials of a client.
#[derive(Clone, PartialEq, Eq)]
struct AccessKeys {
    id: String,
    secret: String,
    session_token: Option<String>,
}

/// Prints no credentials.
impl fmt::Debug for BucketAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketAccess")
            .field("address", &self.address)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// Connections that sinks share.
#[derive(Default)]
pub struct SharedConnections {
    idle_limit: Option<Duration>,
    known: Mutex<Vec<SharedConnection>>,
}

/// Connections to one bucket with one set of credentials, while a sink uses them.
struct SharedConnection {
    access: BucketAccess,
    network: Network,
    /// Its probe does not test conditions.
    unconditional: bool,
    connector: Weak<ConnectorClient>,
    /// Set when the store was found to keep the conditions of puts.
    probed: Arc<OnceCell<()>>,
}

impl SharedConnections {
    /// A connector, and whether the store was probed.
    fn of(
        &self,
        access: &BucketAccess,
        network: &Network,
        unconditional: bool,
    ) -> Result<(GuardedConnector, Arc<OnceCell<()>>), SinkError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|connection| connection.connector.strong_count() > 0);
        let is_same = |known: &&SharedConnection| {
            known.access == *access && known.network == *network && known.unconditional == unconditional
        };
        if let Some(connection) = known.iter().find(is_same)
            && let Some(connector) = GuardedConnector::upgrade(&connection.connector)
        {
            return Ok((connector, connection.probed.clone()));
        }
        let tls = access.trust.client_config(None, None).map_err(|problem| {
            SinkError::new(SinkReason::Incompatible, format!("open {}: {problem}", access.address))
        })?;
        let idle_limit = self.idle_limit.unwrap_or(IDLE_LIMIT);
        let connector = GuardedConnector::new(network.clone(), tls, idle_limit);
        let probed = Arc::default();
        known.push(SharedConnection {
            access: access.clone(),
            network: network.clone(),
            unconditional,
            connector: connector.downgrade(),
            probed: Arc::clone(&probed),
        });
        Ok((connector, probed))
    }
}

impl Backend for S3Config {
    const TYPE: &'static str = "s3";
    const OUT: Option<OutScheme> = Some(OutScheme { schemes: &["s3"], form: "s3://BUCKET/PREFIX" });
    const OPTIONS: &'static [&'static str] = &[REGION, STORAGE_CLASS];
    type Spec = KollectSnapshotSinkSpec;
    type Clients = SharedConnections;

    fn clients(settings: &SinkSettings) -> SharedConnections {
        SharedConnections { idle_limit: settings.idle_limit, known: Mutex::default() }
    }

    /// The plan can be opened only after `with_secrets`.
    fn plan(spec: &KollectSnapshotSinkSpec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let store = spec.object_store.clone().unwrap_or_default();
        let endpoint = spec.common.endpoint.as_deref().unwrap_or_default();
        let address = BucketAddress::parse(endpoint, store.path_style);
        let (address, prefix) = address.unwrap_or_else(|problem| {
            // The text may hold a password, so the error does not repeat it.
            errors.push(SpecError::absent("spec.endpoint", problem));
            Default::default()
        });
        if spec.common.secret_ref.is_none() {
            let problem = "is required: name a Secret with accessKeyID and secretAccessKey; the credentials of the operator's Pod are \
                           not used for sinks";
            errors.push(SpecError::absent(SECRET_REF, problem));
        }
        let trust = ServerTrust::plan(spec.common.tls.as_ref()).unwrap_or_else(|error| {
            errors.push(error);
            ServerTrust::default()
        });
        let documents = DocumentSettings::plan(spec).unwrap_or_else(|others| {
            errors.extend(others);
            DocumentSettings::of(DocumentFormat::Json)
        });
        let option = spec.common.options.get(STORAGE_CLASS);
        if let (Some(class), Some(other)) = (&store.storage_class, option)
            && class != other
        {
            let problem = "contradicts objectStore.storageClass: keep one of them";
            errors.push(SpecError::new("spec.options.storageClass", &other.as_str().into(), problem));
        }
        let region = store.region.or_else(|| spec.common.options.get(REGION).cloned());
        if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
            let problem = "is no region: write lower-case letters, digits and -, such as eu-west-1";
            errors.push(SpecError::new("spec.objectStore.region", &region.into(), problem));
        }
        let storage_class = store.storage_class.or_else(|| option.cloned());
        if let Some(class) = storage_class.as_deref().filter(|class| !is_storage_class(class)) {
            let problem = "is no class that can be read at once: write one such as STANDARD_IA";
            errors.push(SpecError::new("spec.objectStore.storageClass", &class.into(), problem));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let access = BucketAccess {
            address,
            region: region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
            encryption: store.encryption,
            trust,
            keys: None,
        };
        Ok(Self { access, prefix, storage_class, unconditional: store.unconditional, documents })
    }

    /// With options: `s3://BUCKET/PREFIX?format=parquet&endpoint=http://127.0.0.1:9000`. The keys are those of the user's
    /// environment.
    fn plan_out(text: &str) -> Result<Self, String> {
        let variable = |names: &[&str]| {
            names.iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
        };
        let (address, options) = text.split_once('?').unwrap_or((text, ""));
        let mut documents = DocumentSettings::of(DocumentFormat::Json);
        let mut region = variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let mut endpoint = variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("format", name)) => {
                    documents = DocumentFormat::named(name).map(DocumentSettings::of).ok_or_else(|| {
                        format!("has a format that is not known, {name}; write json, ndjson, csv or parquet")
                    })?;
                }
                Some(("region", name)) => region = Some(name.to_owned()),
                Some(("endpoint", url)) => endpoint = Some(url.to_owned()),
                _ => {
                    return Err(format!(
                        "has an option that is not known, {option}; write format=, region= or endpoint="
                    ));
                }
            }
        }
        let address = match &endpoint {
            None => address.to_owned(),
            Some(endpoint) => {
                let bucket = address.strip_prefix("s3://").unwrap_or(address);
                format!("{}/{bucket}", endpoint.trim_end_matches('/'))
            }
        };
        let (address, prefix) = BucketAddress::parse(&address, None)?;
        let keys = match (variable(&["AWS_ACCESS_KEY_ID"]), variable(&["AWS_SECRET_ACCESS_KEY"])) {
            (Some(id), Some(secret)) => {
                AccessKeys { id, secret, session_token: variable(&["AWS_SESSION_TOKEN"]) }
            }
            _ => return Err("needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".into()),
        };
        if let Some(wrong) = region.as_deref().filter(|region| !is_region(region)) {
            return Err(format!("has a region that is none, {wrong}; write one such as eu-west-1"));
        }
        let access = BucketAccess {
            address,
            region: region.unwrap_or_else(|| DEFAULT_REGION.to_owned()),
            encryption: None,
            trust: ServerTrust::default(),
            keys: Some(keys),
        };
        Ok(Self { access, prefix, storage_class: None, unconditional: false, documents })
    }

    fn advice(spec: &KollectSnapshotSinkSpec) -> Vec<String> {
        let mut advice = crate::layout::advice(spec);
        if spec.object_store.as_ref().is_some_and(|store| store.unconditional) {
            advice.push(
                "spec.objectStore.unconditional: two writers may overwrite each other's documents; use it only with a store that \
                 does not keep the conditions of puts"
                    .into(),
            );
        }
        let mode = spec.common.provisioning.as_ref().and_then(|provisioning| provisioning.mode);
        if mode == Some(ProvisioningMode::Ensure) {
            advice.push("spec.provisioning.mode: has no effect; the bucket must exist".into());
        }
        advice
    }

    fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        let wrong = |problem: String| vec![SpecError::absent(SECRET_REF, format!("the Secret {problem}"))];
        self.access.keys = Some(AccessKeys::read(secrets).map_err(wrong)?);
        self.access.trust = self.access.trust.with_secrets(secrets).map_err(|error| vec![error])?;
        Ok(self)
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        let (host, port) = self.access.address.server(&self.access.region);
        policy.network.check_server(&host, port).map_err(|refusal| {
            vec![SpecError::new("spec.endpoint", &host.as_str().into(), refusal.to_string())]
        })
    }

    /// Previews the document.
    fn preview(&self, cluster: &str) -> Preview {
        let sample = SampleRows::new(cluster, false);
        let batch = sample.batch();
        Preview {
            serialization_format: Some(self.documents.format.name().to_owned()),
            object_path: Some(self.documents.path(batch.inventory, batch.generation)),
            provisioning_mode: Some("existing".into()),
            ..Preview::default()
        }
    }

    /// Names: the prefix, `/` for none, and the template.
    fn destination(&self, _policy: &SinkPolicy) -> Destination {
        let prefix = if self.prefix.is_empty() { "/" } else { &self.prefix };
        let template = self.documents.template().replace(' ', "%20");
        Destination::new(self.access.address.to_string(), [prefix.to_owned(), template])
    }

    fn at(&self, destination: &Destination, _policy: &SinkPolicy) -> Option<Self> {
        let [prefix, template] = destination.names_at(&self.access.address.to_string())?;
        let documents = self.documents.clone().at(&template.replace("%20", " "));
        Some(Self { prefix: prefix.trim_matches('/').to_owned(), documents, ..self.clone() })
    }

    async fn open(
        &self,
        policy: &SinkPolicy,
        clients: &SharedConnections,
    ) -> Result<Box<dyn Sink>, SinkError> {
        let Some(keys) = &self.access.keys else {
            let why = format!("open {}: the Secret of {SECRET_REF} has not been read", self.access.address);
            return Err(SinkError::new(SinkReason::Missing, why));
        };
        let (connector, probed) = clients.of(&self.access, &policy.network, self.unconditional)?;
        let store = self.access.store(keys, &connector).map_err(|error| {
            SinkError::because(SinkReason::Incompatible, format!("open {}", self.access.address), error)
        })?;
        let described = if self.prefix.is_empty() {
            self.access.address.to_string()
        } else {
            format!("{}/{}", self.access.address, self.prefix)
        };
        let bucket = Bucket::new(Arc::new(store), &self.prefix, described)
            .with_storage_class(self.storage_class.clone())
            .unconditional(self.unconditional);
        Ok(Box::new(DocumentSink::new(bucket, self.documents.clone(), probed)))
    }
}

impl BucketAccess {
    fn store(
        &self,
        keys: &AccessKeys,
        connector: &GuardedConnector,
    ) -> object_store::Result<object_store::aws::AmazonS3> {
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(self.address.bucket())
            .with_region(&self.region)
            .with_access_key_id(&keys.id)
            .with_secret_access_key(&keys.secret)
            .with_endpoint(self.address.endpoint(&self.region))
            .with_virtual_hosted_style_request(!self.address.is_path_style())
            .with_allow_http(true)
            .with_http_connector(connector.clone())
            // The binding tries again, after it has compared.
            // One object at a time needs no other request, which not every server has.
            .with_disable_bulk_delete(true)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
        if let Some(token) = &keys.session_token {
            builder = builder.with_token(token);
        }
        if let Some(encryption) = &self.encryption {
            let type_ = match encryption.type_ {
                EncryptionType::S3 => "AES256",
                EncryptionType::Kms => "aws:kms",
            };
            let id = encryption.kms_key_id.as_deref().map(|id| ("aws_sse_kms_key_id", id));
            for (key, value) in [("aws_server_side_encryption", type_)].into_iter().chain(id) {
                builder = builder.with_config(key.parse::<AmazonS3ConfigKey>()?, value);
            }
        }
        builder.build()
    }
}

/// Whether a text can be the name of a region.
fn is_region(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a text can be the name of a class of objects that can be read at once: documents and records are read back.
fn is_storage_class(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic()) && !["GLACIER", "DEEP_ARCHIVE"].contains(&text)
}

impl AccessKeys {
    fn read(secrets: &Secrets) -> Result<Self, String> {
        let text = |names: [&str; 2]| -> Result<Option<String>, String> {
            for name in names {
                if let Some(text) = secrets.text(SECRET_REF, name)? {
                    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
                        return Err(format!("has characters in key {name} that no request can have"));
                    }
                    return Ok(Some(text));
                }
            }
            Ok(None)
        };
        let id = text(["accessKeyID", "AWS_ACCESS_KEY_ID"])?;
        let secret = text(["secretAccessKey", "AWS_SECRET_ACCESS_KEY"])?;
        let session_token = text(["sessionToken", "AWS_SESSION_TOKEN"])?;
        match (id, secret) {
            (Some(id), Some(secret)) => Ok(Self { id, secret, session_token }),
            (None, _) => Err("has no key accessKeyID".into()),
            (Some(_), None) => Err("has no key secretAccessKey".into()),
        }
    }
}
