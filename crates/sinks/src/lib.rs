//! Destinations for rows.
//!
//! [`plan`] and [`Sinks::open`] are the only places that know which sink types exist. A type whose code is
//! not part of the build is refused by name, never skipped. Between the two, [`Plan::with_secrets`]
//! adds what is in Secrets.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests start tasks and dial servers as they like")
)]

use kollect_model::{
    SpecError,
    crd::sinks::{DatabaseSinkType, EventSinkType, SnapshotSinkType},
    sink::{Sink, SinkError, SinkSpec},
};
use serde_json::{Value, json};

#[cfg(not(any(
    feature = "filesystem",
    feature = "git",
    feature = "nats",
    feature = "postgres",
    feature = "sqlite"
)))]
compile_error!("select at least one sink, such as --features sqlite");

#[cfg(any(feature = "git", feature = "postgres"))]
mod connection_task;
mod dial;
#[cfg(feature = "filesystem")]
pub mod filesystem;
#[cfg(feature = "git")]
mod git;
#[cfg(any(feature = "filesystem", feature = "git"))]
pub mod layout;
#[cfg(feature = "nats")]
pub mod nats;
mod policy;
#[cfg(feature = "postgres")]
pub mod postgres;
mod preview;
mod secrets;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "git", feature = "nats", feature = "postgres"))]
mod tls;

pub use dial::{Cidr, Network};
pub use policy::{Files, Policy};
pub use secrets::Secrets;

/// What is needed to open a sink: a spec without open questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// An SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Config),
    /// A PostgreSQL table.
    #[cfg(feature = "postgres")]
    Postgres(postgres::Config),
    /// A directory.
    #[cfg(feature = "filesystem")]
    Filesystem(filesystem::Config),
    /// A branch of a Git repository.
    #[cfg(feature = "git")]
    Git(git::Config),
    /// Subjects of a NATS stream.
    #[cfg(feature = "nats")]
    Nats(nats::Config),
}

impl Plan {
    /// The plan with what it needs from the Secrets that the spec names.
    #[cfg_attr(
        not(any(feature = "git", feature = "nats", feature = "postgres")),
        expect(unused_variables, reason = "files have no secrets")
    )]
    pub fn with_secrets(self, secrets: &Secrets) -> Result<Self, Vec<SpecError>> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Ok(Self::Sqlite(config)),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => config.with_secrets(secrets).map(Self::Postgres),
            #[cfg(feature = "filesystem")]
            Self::Filesystem(config) => Ok(Self::Filesystem(config)),
            #[cfg(feature = "git")]
            Self::Git(config) => config.with_secrets(secrets).map(Self::Git),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.with_secrets(secrets).map(Self::Nats),
        }
    }

    /// The plan of the sink with this name, for sinks that tell it to readers.
    #[must_use]
    #[cfg_attr(not(feature = "git"), expect(unused_variables, reason = "only commits tell it"))]
    pub fn named(self, name: &str) -> Self {
        match self {
            #[cfg(feature = "git")]
            Self::Git(config) => Self::Git(config.named(name)),
            other => other,
        }
    }

    /// The type as specs and metrics name it.
    pub fn type_name(&self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => "sqlite",
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => "postgres",
            #[cfg(feature = "filesystem")]
            Self::Filesystem(_) => "filesystem",
            #[cfg(feature = "git")]
            Self::Git(_) => "git",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
        }
    }

    /// Refuses what the policy does not allow, as far as that shows without touching anything.
    pub fn check(&self, policy: &Policy) -> Result<(), Vec<SpecError>> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.check(&policy.files),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => config.check(&policy.network),
            #[cfg(feature = "filesystem")]
            Self::Filesystem(config) => config.check(&policy.files),
            #[cfg(feature = "git")]
            Self::Git(config) => config.check(policy),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.check(&policy.network),
        }
    }

    /// Where rows go, without credentials and options: equal for two sinks that would write one place.
    #[cfg_attr(
        not(any(feature = "filesystem", feature = "git", feature = "sqlite")),
        expect(unused_variables, reason = "only files depend on it")
    )]
    pub fn destination(&self, policy: &Policy) -> String {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => config.place(&policy.files),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => config.place(),
            #[cfg(feature = "filesystem")]
            Self::Filesystem(config) => config.place(&policy.files),
            #[cfg(feature = "git")]
            Self::Git(config) => config.place(policy),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.place(),
        }
    }
}

impl Plan {
    /// The same sink at a place where it led before, if what it may use now leads there as well: another
    /// table of the same database, another file, another subject of the same servers.
    pub fn at(&self, destination: &str, policy: &Policy) -> Option<Self> {
        let plan = match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(config) => Self::Sqlite(config.at(destination, &policy.files)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => Self::Postgres(config.at(destination)?),
            #[cfg(feature = "filesystem")]
            Self::Filesystem(config) => Self::Filesystem(config.at(destination, &policy.files)?),
            #[cfg(feature = "git")]
            Self::Git(config) => Self::Git(config.at(destination)?),
            #[cfg(feature = "nats")]
            Self::Nats(config) => Self::Nats(config.at(destination)?),
        };
        // Nothing is cleaned but what was meant.
        (plan.destination(policy) == destination).then_some(plan)
    }
}

/// Turns a spec into a plan, or says what is wrong with it. Touches nothing outside.
pub fn plan(spec: &SinkSpec) -> Result<Plan, Vec<SpecError>> {
    match spec {
        SinkSpec::Snapshot(spec) => match spec.type_ {
            #[cfg(feature = "git")]
            SnapshotSinkType::Git => git::Config::plan(spec).map(Plan::Git),
            #[cfg(not(feature = "git"))]
            SnapshotSinkType::Git => Err(not_available(json!(spec.type_))),
            SnapshotSinkType::Gitlab
            | SnapshotSinkType::S3
            | SnapshotSinkType::Gcs
            | SnapshotSinkType::Azureblob => Err(not_available(json!(spec.type_))),
            #[cfg(feature = "filesystem")]
            SnapshotSinkType::Filesystem => filesystem::Config::plan(spec).map(Plan::Filesystem),
            #[cfg(not(feature = "filesystem"))]
            SnapshotSinkType::Filesystem => Err(not_available(json!(spec.type_))),
        },
        SinkSpec::Database(spec) => match spec.type_ {
            #[cfg(feature = "sqlite")]
            DatabaseSinkType::Sqlite => sqlite::Config::plan(spec).map(Plan::Sqlite),
            #[cfg(not(feature = "sqlite"))]
            DatabaseSinkType::Sqlite => Err(not_available(json!(spec.type_))),
            #[cfg(feature = "postgres")]
            DatabaseSinkType::Postgres => postgres::Config::plan(spec).map(Plan::Postgres),
            #[cfg(not(feature = "postgres"))]
            DatabaseSinkType::Postgres => Err(not_available(json!(spec.type_))),
            DatabaseSinkType::Bigquery | DatabaseSinkType::Mongodb => Err(not_available(json!(spec.type_))),
        },
        SinkSpec::Event(spec) => match spec.type_ {
            #[cfg(feature = "nats")]
            EventSinkType::Nats => nats::Config::plan(spec).map(Plan::Nats),
            #[cfg(not(feature = "nats"))]
            EventSinkType::Nats => Err(not_available(json!(spec.type_))),
            EventSinkType::Kafka => Err(not_available(json!(spec.type_))),
        },
    }
}

/// The plan of a destination on a command line, such as `sqlite:inventory.db` or `postgres://me@db/shop`.
/// A problem is said without the text, which may hold a password: print [`destination_name`] beside it.
pub fn plan_destination(text: &str) -> Result<Plan, String> {
    match text.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", file)) => sqlite::Config::file(file).map(Plan::Sqlite),
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => postgres::Config::destination(text).map(Plan::Postgres),
        #[cfg(feature = "git")]
        Some(("git", place)) => git::Config::destination(place).map(Plan::Git),
        #[cfg(feature = "filesystem")]
        Some(("dir", directory)) => filesystem::Config::destination(directory).map(Plan::Filesystem),
        Some((scheme, rest)) if !rest.is_empty() => {
            Err(format!("{scheme} is not available in this build; write {}", destinations()))
        }
        _ => Err(format!("is not a destination; write {}", destinations())),
    }
}

/// A destination of a command line, to print: URLs without user, password and options.
pub fn destination_name(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let address = rest.split_once('?').map_or(rest, |(address, _)| address);
    match address.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}://{place}"),
        // A question mark inside a password: nothing before it is safe to print.
        None if rest.contains('@') => format!("{scheme}://…"),
        None => format!("{scheme}://{address}"),
    }
}

/// Opens sinks. Those that it opens share connections where server, credentials and policy are equal;
/// connections that nobody uses for a minute are closed.
#[derive(Clone, Default)]
pub struct Sinks {
    #[cfg(feature = "git")]
    git: std::sync::Arc<git::Branches>,
    #[cfg(feature = "postgres")]
    postgres: std::sync::Arc<postgres::Pools>,
}

impl Sinks {
    /// Like the default, with another time until unused connections are closed.
    #[cfg(feature = "postgres")]
    pub fn closing_idle_after(limit: std::time::Duration) -> Self {
        Self { postgres: std::sync::Arc::new(postgres::Pools::with_idle_limit(limit)), ..Self::default() }
    }

    /// Like the default, with mirrors of Git branches below this directory.
    #[cfg(feature = "git")]
    pub fn with_mirrors(directory: std::path::PathBuf) -> Self {
        Self { git: std::sync::Arc::new(git::Branches::with_mirrors(directory)), ..Self::default() }
    }

    /// Opens what a plan describes, within a policy.
    pub async fn open(&self, plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError> {
        match plan {
            #[cfg(feature = "sqlite")]
            Plan::Sqlite(config) => {
                Ok(Box::new(sqlite::SqliteSink::open(config.clone(), &policy.files).await?))
            }
            #[cfg(feature = "postgres")]
            Plan::Postgres(config) => {
                let opened = postgres::PostgresSink::open(config.clone(), &policy.network, &self.postgres);
                Ok(Box::new(opened.await?))
            }
            #[cfg(feature = "filesystem")]
            Plan::Filesystem(config) => Ok(Box::new(filesystem::open(config.clone(), &policy.files).await?)),
            #[cfg(feature = "git")]
            Plan::Git(config) => Ok(Box::new(git::open(config.clone(), policy, &self.git).await?)),
            #[cfg(feature = "nats")]
            Plan::Nats(config) => nats::open(config, &policy.network).await,
        }
    }
}

/// Opens what a plan describes, within a policy, with connections of its own.
pub async fn open(plan: &Plan, policy: &Policy) -> Result<Box<dyn Sink>, SinkError> {
    Sinks::default().open(plan, policy).await
}

fn not_available(type_: Value) -> Vec<SpecError> {
    vec![SpecError::new(
        "spec.type",
        &type_,
        format!("is not available in this build; available: {}", available()),
    )]
}

/// The types of this build, and how a command line names each that it can.
const TYPES: &[(&str, &str)] = &[
    #[cfg(feature = "filesystem")]
    ("filesystem", "dir:DIRECTORY"),
    #[cfg(feature = "git")]
    ("git", "git:REPOSITORY"),
    #[cfg(feature = "nats")]
    ("nats", ""),
    #[cfg(feature = "postgres")]
    ("postgres", "postgres://USER@HOST/DATABASE"),
    #[cfg(feature = "sqlite")]
    ("sqlite", "sqlite:FILE"),
];

fn available() -> String {
    TYPES.iter().map(|(type_, _)| *type_).collect::<Vec<_>>().join(", ")
}

fn destinations() -> String {
    let named = TYPES.iter().rev().map(|(_, destination)| *destination).filter(|text| !text.is_empty());
    named.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_destinations_hold_no_password() {
        for (text, name) in [
            ("sqlite:a@b.db", "sqlite:a@b.db"),
            ("postgres://h/db", "postgres://h/db"),
            ("postgres://u:hunter2@h:5432/db?table=x", "postgres://h:5432/db"),
            ("postgres://u@h/db?password=hun@ter2", "postgres://h/db"),
            ("postgres://u:hun?ter2@h/db", "postgres://…"),
        ] {
            assert_eq!(destination_name(text), name);
        }
    }

    #[cfg(all(feature = "postgres", feature = "sqlite", feature = "filesystem"))]
    #[test]
    fn a_plan_leads_to_places_that_its_access_reaches_and_to_no_others() {
        let policy = Policy::default();
        let plan = |text: &str| plan_destination(text).unwrap();
        for (now, before, reached) in [
            ("postgres://me@db/shop?table=new", "postgres://you@DB:5432/shop?table=old", true),
            ("postgres://me@db/shop?table=new", "postgres://me@db/shop?table=a&schema=b", true),
            ("postgres://me@db/shop?table=new", "postgres://me@db/shop2?table=old", false),
            ("postgres://me@db/shop?table=new", "postgres://me@db2/shop?table=old", false),
            ("postgres://me@db/shop?table=new", "sqlite:/nowhere/old.db", false),
            ("sqlite:/nowhere/new.db", "sqlite:/nowhere/old.db", true),
            ("dir:/nowhere/new", "dir:/nowhere/old", true),
            ("dir:/nowhere/new", "sqlite:/nowhere/old", false),
        ] {
            let place = plan(before).destination(&policy);
            let found = plan(now).at(&place, &policy).map(|plan| plan.destination(&policy));
            assert_eq!(found, reached.then_some(place), "from {now} to {before}");
        }
        // Below a root, nothing leads out of it.
        let root = tempfile::tempdir().unwrap();
        let below = Policy { files: Files::Below(root.path().to_owned()), ..Policy::default() };
        let inside = plan("sqlite:old.db").destination(&below);
        let now = plan("sqlite:new.db");
        assert_eq!(now.at(&inside, &below).map(|plan| plan.destination(&below)), Some(inside));
        assert_eq!(now.at("sqlite:/etc/old.db", &below), None);
    }
}
