//! The nouns of Kollect: the eleven kinds, rows, batches and the sink seam.
//!
//! Every other crate builds on this one and it builds on none of them. It does no I/O: what it
//! offers can be checked by a unit test without a server.

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
pub mod sink;
mod spec_error;
pub mod yaml;

pub use spec_error::SpecError;
