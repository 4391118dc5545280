//! The types that all crates of Kollect share: the eleven kinds, rows, batches and the [`sink::Sink`] trait.
//!
//! The other crates of the product depend on this one, and it depends on none of them. It does no I/O, so unit tests
//! need no server.

pub mod backoff;
pub mod batch;
pub mod binding;
pub mod claim;
pub mod crd;
pub mod destination;
pub mod difference;
pub mod envelope;
pub mod event;
pub mod row;
pub mod schema;
pub mod sink;
mod spec_error;
pub mod yaml;

pub use spec_error::SpecError;
