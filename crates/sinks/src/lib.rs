//! Destinations for rows.
//!
//! [`plan`] and [`open`] are the only places that know which sink types exist. A type whose code is
//! not part of the build is refused by name, never skipped.

use kollect_model::{
    SpecError,
    crd::sinks::{DatabaseSinkType, EventSinkType, SnapshotSinkType},
    sink::{Sink, SinkError, SinkSpec},
};
use serde_json::{Value, json};

#[cfg(not(feature = "sqlite"))]
compile_error!("select at least one sink, such as --features sqlite");

#[cfg(feature = "sqlite")]
pub mod sqlite;

/// What is needed to open a sink: a spec without open questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// An SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Config),
}

/// Turns a spec into a plan, or says what is wrong with it. Touches nothing outside.
pub fn plan(spec: &SinkSpec) -> Result<Plan, Vec<SpecError>> {
    match spec {
        SinkSpec::Snapshot(spec) => match spec.type_ {
            SnapshotSinkType::Git
            | SnapshotSinkType::Gitlab
            | SnapshotSinkType::S3
            | SnapshotSinkType::Gcs
            | SnapshotSinkType::Azureblob
            | SnapshotSinkType::Filesystem => Err(not_available(json!(spec.type_))),
        },
        SinkSpec::Database(spec) => match spec.type_ {
            #[cfg(feature = "sqlite")]
            DatabaseSinkType::Sqlite => sqlite::Config::plan(spec).map(Plan::Sqlite),
            #[cfg(not(feature = "sqlite"))]
            DatabaseSinkType::Sqlite => Err(not_available(json!(spec.type_))),
            DatabaseSinkType::Postgres | DatabaseSinkType::Bigquery | DatabaseSinkType::Mongodb => {
                Err(not_available(json!(spec.type_)))
            }
        },
        SinkSpec::Event(spec) => match spec.type_ {
            EventSinkType::Nats | EventSinkType::Kafka => Err(not_available(json!(spec.type_))),
        },
    }
}

/// The plan of a destination on a command line, such as `sqlite:inventory.db`.
pub fn plan_destination(text: &str) -> Result<Plan, String> {
    match text.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", file)) => sqlite::Config::file(file).map(Plan::Sqlite),
        Some((scheme, rest)) if !rest.is_empty() => {
            Err(format!("{scheme} is not available in this build; write sqlite:FILE"))
        }
        _ => Err("is not a destination; write sqlite:FILE".into()),
    }
}

/// Opens what a plan describes.
pub async fn open(plan: &Plan) -> Result<Box<dyn Sink>, SinkError> {
    match plan {
        #[cfg(feature = "sqlite")]
        Plan::Sqlite(config) => Ok(Box::new(sqlite::SqliteSink::open(config.clone()).await?)),
    }
}

fn not_available(type_: Value) -> Vec<SpecError> {
    vec![SpecError::new(
        "spec.type",
        &type_,
        format!("is not available in this build; available: {AVAILABLE}"),
    )]
}

const AVAILABLE: &str = "sqlite";
