//! Destinations for rows.
//!
//! `BACKENDS` is the only list of backends. A type that this build does not contain is
//! refused by name, never skipped. [`plan`] turns a spec into a [`Plan`], [`Plan::with_secrets`] adds the
//! contents of Secrets, [`Sinks::open`] connects.

#![cfg_attr(
    not(feature = "default"),
    allow(dead_code, reason = "a build with some of the sinks does not use all that they share")
)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests start tasks and dial servers as they like")
)]

use std::{any::Any, collections::BTreeMap, sync::Arc};

use kollect_model::{
    SpecError,
    destination::Destination,
    sink::{Sink, SinkError, SinkSpec},
};

mod backend;
#[cfg(feature = "bucket")]
mod bucket;
#[cfg(feature = "tls")]
mod cause;
mod columns;
#[cfg(feature = "connection")]
mod connection_task;
mod dial;
#[cfg(feature = "document")]
mod document;
#[cfg(feature = "filesystem")]
pub mod filesystem;
#[cfg(feature = "git")]
mod git;
#[cfg(feature = "layout")]
pub mod layout;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod old_key;
mod policy;
#[cfg(feature = "postgres")]
pub mod postgres;
mod preview;
#[cfg(feature = "s3")]
pub mod s3;
mod sample;
mod secrets;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "connection")]
mod stall;
#[cfg(feature = "tls")]
mod tls;

pub use backend::{Backend, FamilySpec, OutScheme, Plan, SinkSettings};
pub use dial::{AddressGuard, ApiServer, Cidr, Network, RefusedAddress, ResolveError};
pub use policy::{FilePolicy, SinkPolicy, real_path};
pub use secrets::Secrets;

/// The backends of this build, by type.
static BACKENDS: &[backend::BackendEntry] = &[
    #[cfg(feature = "filesystem")]
    backend::BackendEntry::of::<filesystem::FilesystemConfig>(),
    #[cfg(feature = "git")]
    backend::BackendEntry::of::<git::GitConfig>(),
    #[cfg(feature = "nats")]
    backend::BackendEntry::of::<nats::NatsConfig>(),
    #[cfg(feature = "postgres")]
    backend::BackendEntry::of::<postgres::PostgresConfig>(),
    #[cfg(feature = "s3")]
    backend::BackendEntry::of::<s3::S3Config>(),
    #[cfg(feature = "sqlite")]
    backend::BackendEntry::of::<sqlite::SqliteConfig>(),
];

const _: () = assert!(!BACKENDS.is_empty(), "select at least one sink, such as --features sqlite");

/// Turns a spec into a plan, or returns everything that is wrong with it. Touches nothing outside of the process.
pub fn plan(spec: &SinkSpec) -> Result<Plan, Vec<SpecError>> {
    let type_name = spec.type_name();
    let planned = BACKENDS.iter().find(|backend| backend.type_name == type_name);
    planned.and_then(|backend| (backend.plan)(spec)).unwrap_or_else(|| {
        let available: Vec<&str> = BACKENDS.iter().map(|backend| backend.type_name).collect();
        let problem = format!("is not available in this build; available: {}", available.join(", "));
        Err(vec![SpecError::new("spec.type", &type_name.into(), problem)])
    })
}

/// Warnings about a valid spec that may not do what its author wants.
pub fn advice(spec: &SinkSpec) -> Vec<String> {
    let type_name = spec.type_name();
    let backend = BACKENDS.iter().find(|backend| backend.type_name == type_name);
    let options = backend.map(|backend| backend.options).unwrap_or_default();
    let without_effect = spec.common().options.keys().filter(|key| !options.contains(&key.as_str()));
    let known = match options {
        [] => format!("sinks of type {type_name} have no options"),
        options => format!("sinks of type {type_name} know {}", options.join(" and ")),
    };
    let without_effect = without_effect.map(|key| format!("spec.options.{key}: has no effect; {known}"));
    without_effect.chain(backend.map(|backend| (backend.advice)(spec)).unwrap_or_default()).collect()
}

/// The plan of a destination on a command line, such as `sqlite:inventory.db` or `postgres://me@db/shop`.
/// An error does not repeat the text, which may hold a password: print [`destination_name`] beside it.
pub fn plan_out(text: &str) -> Result<Plan, String> {
    let (scheme, remaining) = text.split_once(':').unwrap_or((text, ""));
    let is_named = |out: OutScheme| out.schemes.contains(&scheme);
    match BACKENDS.iter().find(|backend| backend.out.is_some_and(is_named)) {
        Some(backend) => (backend.plan_out)(text),
        None if remaining.is_empty() => Err(format!("is not a destination; write {}", out_forms())),
        None => Err(format!("{scheme} is not available in this build; write {}", out_forms())),
    }
}

/// The forms of destinations on a command line in this build.
pub fn out_forms() -> String {
    let forms = BACKENDS.iter().rev().filter_map(|backend| Some(backend.out?.form));
    forms.collect::<Vec<_>>().join(" or ")
}

/// A destination of a command line for printing: URLs without user, password and options.
pub fn destination_name(text: &str) -> String {
    let Some((scheme, remaining)) = text.split_once("://") else { return text.to_owned() };
    let address = remaining.split_once('?').map_or(remaining, |(address, _)| address);
    match address.rsplit_once('@') {
        Some((_, without_user)) => format!("{scheme}://{without_user}"),
        // A password may contain a question mark: then nothing before it is safe to print.
        None if remaining.contains('@') => format!("{scheme}://…"),
        None => format!("{scheme}://{address}"),
    }
}

/// A destination for users who may read statuses but not Secrets: a server that only a Secret names is replaced by
/// a digest, which is salted with the id of the cluster.
pub fn shown_destination(destination: &Destination, cluster_id: &str) -> Destination {
    let scheme = destination.server().split_once("://").map_or("", |(scheme, _)| scheme);
    if BACKENDS.iter().any(|backend| backend.secret_server && backend.type_name == scheme) {
        destination.with_secret_server(cluster_id)
    } else {
        destination.clone()
    }
}

/// Opens sinks. Sinks opened here share connections if server, credentials and policy are equal; unused
/// connections are closed after a minute.
#[derive(Clone)]
pub struct Sinks {
    /// The shared clients of each backend, by its type.
    clients: Arc<BTreeMap<&'static str, Arc<dyn Any + Send + Sync>>>,
}

impl Default for Sinks {
    fn default() -> Self {
        Self::new(&SinkSettings::default())
    }
}

impl Sinks {
    /// Sinks with these settings.
    pub fn new(settings: &SinkSettings) -> Self {
        let clients = BACKENDS.iter().map(|backend| (backend.type_name, (backend.clients)(settings)));
        Self { clients: Arc::new(clients.collect()) }
    }

    /// Opens what a plan describes, within a policy.
    pub async fn open(&self, plan: &Plan, policy: &SinkPolicy) -> Result<Box<dyn Sink>, SinkError> {
        plan.open(policy, &*self.clients[plan.type_name()]).await
    }
}

/// Opens what a plan describes, within a policy, with connections of its own.
pub async fn open(plan: &Plan, policy: &SinkPolicy) -> Result<Box<dyn Sink>, SinkError> {
    Sinks::default().open(plan, policy).await
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
}
