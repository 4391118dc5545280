//! NATS JetStream: one message per row in a stream that keeps the last message of each row, or whole snapshots.
//!
//! With `mode: rows` every row has its own subject below the sink's, and the stream keeps the last message of
//! each: the sink can read back what the stream holds, and a subscriber sees every change. A batch is a
//! sequence of events, each of them atomic; after an error the engine reads back what has arrived and
//! sends the rest. With `mode: snapshot` every event is a whole document on one subject.
//!
//! An existing stream keeps its configuration: the sink only adds its subject to the list.

use std::{fmt, time::Duration};

use kollect_model::{
    SpecError,
    crd::sinks::{EventMode, KollectEventSinkSpec, NatsPreview, Preview, ProvisioningMode},
    destination::Destination,
    sink::{Sink, SinkError, SinkReason},
};

use crate::{
    Backend, Network, Secrets, SinkPolicy, SinkSettings, preview::provisioned, sample::SampleRows,
    secrets::ClientCertificate, tls::ServerTrust,
};

mod connect;
mod failure;
mod message;
mod read;
mod rows;
mod snapshot;
mod stream;
mod subjects;

use connect::{Connection, ServerAddress};
use stream::StreamProperties;

const NATS_REF: &str = "spec.nats.secretRef";
const SECRET_REF: &str = "spec.secretRef";
const STREAM: &str = "kollect_events";

/// How long the message that a row was removed stays in the stream. A reader that was away for longer reads the whole
/// stream: rows without a message do not exist.
const MARKER_TTL: Duration = Duration::from_hours(24);

/// The configuration of a sink: subjects, stream and servers.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsConfig {
    servers: Vec<ServerAddress>,
    subject: String,
    stream: String,
    mode: EventMode,
    create: bool,
    marker_ttl: Duration,
    trust: ServerTrust,
    /// The field that names the Secret with credentials.
    secret: Option<&'static str>,
    credentials: NatsCredentials,
}

/// The credentials of the client.
#[derive(Clone, Default, PartialEq, Eq)]
struct NatsCredentials {
    /// Whether the Secret has been read, or there is none.
    read: bool,
    token: Option<String>,
    user: Option<(String, String)>,
    /// Client certificate and key, PEM.
    identity: Option<ClientCertificate>,
}

/// Prints no credentials.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("servers", &self.servers)
            .field("subject", &self.subject)
            .field("stream", &self.stream)
            .field("mode", &self.mode)
            .field("create", &self.create)
            .finish_non_exhaustive()
    }
}

impl Backend for NatsConfig {
    const TYPE: &'static str = "nats";
    type Spec = KollectEventSinkSpec;
    type Clients = ();

    fn clients(_settings: &SinkSettings) {}

    /// The plan can be opened only after `with_secrets`.
    fn plan(spec: &KollectEventSinkSpec) -> Result<Self, Vec<SpecError>> {
        let Some(nats) = &spec.nats else {
            return Err(vec![SpecError::absent("spec.nats", "is required for type nats")]);
        };
        let mut errors = Vec::new();
        let (field, url) = match (&nats.url, &spec.common.endpoint) {
            (Some(url), _) => ("spec.nats.url", url.as_str()),
            (None, Some(endpoint)) => ("spec.endpoint", endpoint.as_str()),
            (None, None) => ("spec.nats.url", ""),
        };
        // The text may hold a password, so the error does not repeat it.
        let servers = ServerAddress::parse_list(url).unwrap_or_else(|problem| {
            errors.push(SpecError::absent(field, problem));
            Vec::new()
        });
        if let Err(problem) = subjects::check(&nats.subject) {
            errors.push(SpecError::new("spec.nats.subject", &nats.subject.as_str().into(), problem));
        }
        let stream = nats.stream.as_deref().unwrap_or(STREAM).replace('.', "_");
        if let Err(problem) = stream::check_name(&stream) {
            errors.push(SpecError::new("spec.nats.stream", &stream.as_str().into(), problem));
        }
        let trust = ServerTrust::plan(spec.common.tls.as_ref()).unwrap_or_else(|error| {
            errors.push(error);
            ServerTrust::default()
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        let secret = match (&nats.secret_ref, &spec.common.secret_ref) {
            (Some(_), _) => Some(NATS_REF),
            (None, Some(_)) => Some(SECRET_REF),
            (None, None) => None,
        };
        let provisioning =
            spec.common.provisioning.as_ref().and_then(|provisioning| provisioning.mode).unwrap_or_default();
        Ok(Self {
            servers,
            subject: nats.subject.clone(),
            stream,
            mode: spec.mode.unwrap_or_default(),
            create: provisioning == ProvisioningMode::Ensure,
            marker_ttl: MARKER_TTL,
            trust,
            secret,
            credentials: NatsCredentials { read: secret.is_none(), ..NatsCredentials::default() },
        })
    }

    fn with_secrets(mut self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        if let Some(field) = self.secret {
            self.credentials = NatsCredentials::read(secrets, field)
                .map_err(|problem| vec![SpecError::absent(field, format!("the Secret {problem}"))])?;
        }
        self.trust = self.trust.with_secrets(secrets).map_err(|error| vec![error])?;
        Ok(self)
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        let errors: Vec<SpecError> = self
            .servers
            .iter()
            .filter_map(|server| {
                let refusal = policy.network.check_server(&server.host, server.port).err()?;
                Some(SpecError::new("spec.nats.url", &server.host.as_str().into(), refusal.to_string()))
            })
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Previews a message.
    fn preview(&self, cluster: &str) -> Preview {
        let sample = SampleRows::new(cluster, false);
        let sent = match self.mode {
            EventMode::Rows => rows::sample(&self.subject, &sample.batch()),
            EventMode::Snapshot => snapshot::sample(&self.subject, &sample.batch()),
        };
        let (subject, body) = sent.unzip();
        let nats = NatsPreview {
            stream: Some(self.stream.clone()),
            subject,
            sample_message: body.map(|body| String::from_utf8_lossy(&body).into_owned()),
        };
        let base = provisioned(self.create, "the stream must be there already, with this subject");
        Preview { nats: Some(nats), ..base }
    }

    fn destination(&self, _policy: &SinkPolicy) -> Destination {
        let mut servers: Vec<String> =
            self.servers.iter().map(|server| server.to_string().to_lowercase()).collect();
        servers.sort();
        Destination::new(format!("nats://{}", servers.join(",")), [&*self.stream, &*self.subject])
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        let [stream, subject] = destination.names_at(self.destination(policy).server())?;
        Some(Self { stream: stream.to_owned(), subject: subject.to_owned(), ..self.clone() })
    }

    async fn open(&self, policy: &SinkPolicy, (): &()) -> Result<Box<dyn Sink>, SinkError> {
        open(self, &policy.network).await
    }
}

impl NatsConfig {
    /// The plan with another time for removals to stay in the stream; whole seconds, at least one.
    #[must_use]
    pub fn with_marker_ttl(mut self, ttl: Duration) -> Self {
        self.marker_ttl = ttl;
        self
    }
}

impl NatsCredentials {
    fn read(secrets: &Secrets, field: &str) -> Result<Self, String> {
        let text = |key: &str| secrets.text(field, key);
        let user = match (text("username")?, text("password")?) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            (Some(_), None) => return Err("has a username and no password".into()),
            (None, Some(_)) => return Err("has a password and no username".into()),
        };
        let identity = secrets.identity(field)?;
        let token = text("token")?;
        if token.is_none() && user.is_none() && identity.is_none() {
            return Err("has none of the keys token, username and password, tls.crt and tls.key".into());
        }
        Ok(Self { read: true, token, user, identity })
    }
}

/// Connects, and creates the stream or adds the subject to it unless the plan says that both must exist.
async fn open(config: &NatsConfig, network: &Network) -> Result<Box<dyn Sink>, SinkError> {
    if let Some(field) = config.secret.filter(|_| !config.credentials.read) {
        let why = format!("connect to NATS: the Secret of {field} has not been read");
        return Err(SinkError::new(SinkReason::Missing, why));
    }
    let connection = Connection::open(config, network).await?;
    let stream = StreamProperties::prepare(&connection, config).await?;
    Ok(match config.mode {
        EventMode::Rows => Box::new(rows::RowSink::new(connection, stream, config)),
        EventMode::Snapshot => Box::new(snapshot::SnapshotSink::new(connection, stream, config)),
    })
}
