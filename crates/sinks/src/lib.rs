//! Destinations for rows.
//!
//! [`plan`] and [`open`] are the only places that know which sink types exist. A type whose code is
//! not part of the build is refused by name, never skipped.

use kollect_model::{
    SpecError,
    sink::{Sink, SinkError, SinkSpec},
};
use serde_json::Value;

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
        #[cfg(feature = "sqlite")]
        SinkSpec::Database(spec) if spec.type_ == kollect_model::crd::sinks::DatabaseSinkType::Sqlite => {
            sqlite::Config::plan(spec).map(Plan::Sqlite)
        }
        SinkSpec::Snapshot(spec) => Err(not_available(serde_json::json!(spec.type_))),
        SinkSpec::Database(spec) => Err(not_available(serde_json::json!(spec.type_))),
        SinkSpec::Event(spec) => Err(not_available(serde_json::json!(spec.type_))),
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
