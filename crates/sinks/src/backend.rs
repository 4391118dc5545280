//! The trait of a backend, which is a type of sink; and [`Plan`], the validated configuration of a
//! sink of any backend.
//!
//! A backend implements [`Backend`] for its configuration and has one line in the table of `lib.rs`.
//! Everything else (admission, statuses, the command line, metrics) uses [`Plan`] and the table.

use std::{any::Any, fmt, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use kollect_model::{
    SpecError,
    crd::sinks::{KollectDatabaseSinkSpec, KollectEventSinkSpec, KollectSnapshotSinkSpec, Preview},
    destination::Destination,
    sink::{Sink, SinkError, SinkSpec},
};

use crate::{Secrets, SinkPolicy};

/// A type of sink. The Rust type that implements it is its configuration: which destination, how rows are
/// written there, and how to get access. In the operator only `open` touches anything outside of the process; on
/// the command line `destination` follows the user's symbolic links.
pub trait Backend: Clone + fmt::Debug + PartialEq + Send + Sync + Sized + 'static {
    /// `spec.type` of its sinks; also the label of metrics.
    const TYPE: &'static str;
    /// How a command line names its destinations; `None`: it cannot.
    const OUT: Option<OutScheme> = None;

    /// Whether only a Secret names the server of a destination: then the operator does not show it in statuses.
    /// The server begins with `TYPE://`.
    const SECRET_SERVER: bool = false;

    /// Keys of `spec.options` that have an effect.
    const OPTIONS: &'static [&'static str] = &[];

    /// The spec of its family.
    type Spec: FamilySpec;
    /// What its open sinks share, such as pools of connections; `()`: nothing.
    type Clients: Send + Sync + 'static;

    /// What its open sinks will share.
    fn clients(settings: &SinkSettings) -> Self::Clients;

    /// The configuration of a spec, or everything that is wrong with it.
    fn plan(spec: &Self::Spec) -> Result<Self, Vec<SpecError>>;

    /// The configuration of a destination on a command line, with its scheme. An error does not repeat the text,
    /// which may hold a password. Not called without [`Backend::OUT`].
    fn plan_out(_text: &str) -> Result<Self, String> {
        Err(format!("destinations of type {} cannot be named on a command line", Self::TYPE))
    }

    /// Warnings about a valid spec that may not do what its author wants.
    fn advice(_spec: &Self::Spec) -> Vec<String> {
        Vec::new()
    }

    /// Adds what is in the Secrets that the spec names.
    fn with_secrets(self, _secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        Ok(self)
    }

    /// Adds the name of the sink, if the destination shows it to readers.
    #[must_use]
    fn named(self, _name: &str) -> Self {
        self
    }

    /// Refuses hosts and paths that the policy does not allow. Checks names only and does not resolve them.
    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>>;

    /// Where the rows are, without credentials and options: equal for two sinks that write one destination.
    /// Statuses store this text or a digest of it, so its format must never change.
    fn destination(&self, policy: &SinkPolicy) -> Destination;

    /// The same sink at a former destination, or `None` if its credentials do not give access to it.
    /// [`Plan::at`] checks that the result leads to exactly this destination.
    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self>;

    /// An export of a few sample rows, in a cluster of this name.
    fn preview(&self, cluster: &str) -> Preview;

    /// Opens the destination.
    fn open(
        &self,
        policy: &SinkPolicy,
        clients: &Self::Clients,
    ) -> impl Future<Output = Result<Box<dyn Sink>, SinkError>> + Send;
}

/// How a command line names destinations of a backend: `SCHEME:REST`.
#[derive(Clone, Copy, Debug)]
pub struct OutScheme {
    /// The schemes.
    pub schemes: &'static [&'static str],
    /// The form of a destination, for the help text.
    pub form: &'static str,
}

/// A spec of one of the three kinds of sinks.
pub trait FamilySpec: Sized {
    /// The spec, if it is of this kind.
    fn of(spec: &SinkSpec) -> Option<&Self>;
}

impl FamilySpec for KollectSnapshotSinkSpec {
    fn of(spec: &SinkSpec) -> Option<&Self> {
        if let SinkSpec::Snapshot(spec) = spec { Some(spec) } else { None }
    }
}

impl FamilySpec for KollectDatabaseSinkSpec {
    fn of(spec: &SinkSpec) -> Option<&Self> {
        if let SinkSpec::Database(spec) = spec { Some(spec) } else { None }
    }
}

impl FamilySpec for KollectEventSinkSpec {
    fn of(spec: &SinkSpec) -> Option<&Self> {
        if let SinkSpec::Event(spec) = spec { Some(spec) } else { None }
    }
}

/// Settings of all open sinks of a process.
#[derive(Clone, Debug, Default)]
pub struct SinkSettings {
    /// How long unused connections stay open; `None`: a minute.
    pub idle_limit: Option<Duration>,
    /// Where copies of remote repositories are kept; `None`: in the user's cache.
    pub mirrors: Option<PathBuf>,
}

/// The validated configuration of a sink, of any backend: what is needed to open it.
#[derive(Clone)]
pub struct Plan(Arc<dyn AnyPlan>);

impl Plan {
    /// The plan of a configuration.
    pub fn of<B: Backend>(config: B) -> Self {
        Self(Arc::new(PlannedSink(config)))
    }

    /// The type as specs and metrics name it.
    pub fn type_name(&self) -> &'static str {
        self.0.type_name()
    }

    /// The plan with what it needs from the Secrets that the spec names.
    pub fn with_secrets(&self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        self.0.with_secrets(secrets)
    }

    /// The plan of the sink with this name, for destinations that show it to readers.
    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        self.0.named(name)
    }

    /// Refuses what the policy does not allow. Touches nothing outside of the process.
    pub fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        self.0.check(policy)
    }

    /// Where rows go, without credentials and options: equal for two sinks that write one destination.
    pub fn destination(&self, policy: &SinkPolicy) -> Destination {
        self.0.destination(policy)
    }

    /// The same sink at a former destination, or `None` if its credentials do not give access to it: another table
    /// of the same database, another file, another subject of the same servers.
    pub fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Self> {
        let plan = self.0.at(destination, policy)?;
        // The caller removes rows at the former destination: the plan must not lead to any other one.
        (plan.destination(policy) == *destination).then_some(plan)
    }

    /// What an export of a few sample rows would look like, in a cluster of this name.
    pub fn preview(&self, cluster: &str) -> Preview {
        Preview { input_sample_source: Some("synthetic".into()), ..self.0.preview(cluster) }
    }

    /// Opens the sink. `clients` are those of its backend.
    pub(crate) async fn open(
        &self,
        policy: &SinkPolicy,
        clients: &(dyn Any + Send + Sync),
    ) -> Result<Box<dyn Sink>, SinkError> {
        self.0.open(policy, clients).await
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0)
    }
}

type OpenFuture<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Sink>, SinkError>> + Send + 'a>>;

/// [`Backend`] without its associated types, so that it can be a trait object.
trait AnyPlan: Any + fmt::Debug + Send + Sync {
    fn equals(&self, other: &dyn AnyPlan) -> bool;
    fn type_name(&self) -> &'static str;
    fn with_secrets(&self, secrets: &Secrets) -> Result<Plan, Vec<SpecError>>;
    fn named(&self, name: &str) -> Plan;
    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>>;
    fn destination(&self, policy: &SinkPolicy) -> Destination;
    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Plan>;
    fn preview(&self, cluster: &str) -> Preview;
    fn open<'a>(&'a self, policy: &'a SinkPolicy, clients: &'a (dyn Any + Send + Sync)) -> OpenFuture<'a>;
}

struct PlannedSink<B>(B);

impl<B: Backend> AnyPlan for PlannedSink<B> {
    fn equals(&self, other: &dyn AnyPlan) -> bool {
        (other as &dyn Any).downcast_ref::<Self>().is_some_and(|other| self.0 == other.0)
    }

    fn type_name(&self) -> &'static str {
        B::TYPE
    }

    fn with_secrets(&self, secrets: &Secrets) -> Result<Plan, Vec<SpecError>> {
        self.0.clone().with_secrets(secrets).map(Plan::of)
    }

    fn named(&self, name: &str) -> Plan {
        Plan::of(self.0.clone().named(name))
    }

    fn check(&self, policy: &SinkPolicy) -> Result<(), Vec<SpecError>> {
        self.0.check(policy)
    }

    fn destination(&self, policy: &SinkPolicy) -> Destination {
        self.0.destination(policy)
    }

    fn at(&self, destination: &Destination, policy: &SinkPolicy) -> Option<Plan> {
        self.0.at(destination, policy).map(Plan::of)
    }

    fn preview(&self, cluster: &str) -> Preview {
        self.0.preview(cluster)
    }

    fn open<'a>(&'a self, policy: &'a SinkPolicy, clients: &'a (dyn Any + Send + Sync)) -> OpenFuture<'a> {
        let clients = clients.downcast_ref().expect("each backend is given the clients that it has made");
        Box::pin(self.0.open(policy, clients))
    }
}

impl<B: Backend> fmt::Debug for PlannedSink<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

type PlanResult = Result<Plan, Vec<SpecError>>;

/// A line of the table of backends.
pub(crate) struct BackendEntry {
    pub(crate) type_name: &'static str,
    pub(crate) out: Option<OutScheme>,
    pub(crate) secret_server: bool,
    pub(crate) options: &'static [&'static str],
    pub(crate) plan: fn(&SinkSpec) -> Option<PlanResult>,
    pub(crate) plan_out: fn(&str) -> Result<Plan, String>,
    pub(crate) advice: fn(&SinkSpec) -> Vec<String>,
    pub(crate) clients: fn(&SinkSettings) -> Arc<dyn Any + Send + Sync>,
}

impl BackendEntry {
    pub(crate) const fn of<B: Backend>() -> Self {
        Self {
            type_name: B::TYPE,
            out: B::OUT,
            secret_server: B::SECRET_SERVER,
            options: B::OPTIONS,
            plan: |spec| B::Spec::of(spec).map(|spec| B::plan(spec).map(Plan::of)),
            plan_out: |text| B::plan_out(text).map(Plan::of),
            advice: |spec| B::Spec::of(spec).map(B::advice).unwrap_or_default(),
            clients: |settings| Arc::new(B::clients(settings)),
        }
    }
}
