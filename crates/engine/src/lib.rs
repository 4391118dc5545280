//! Turns watch events into rows, and rows into the changes that a sink needs.
//!
//! ```text
//! WatchSource ──▶ collect ──▶ select ──▶ extract + scrub ──▶ store ──▶ delta ──▶ export ──▶ Sink
//!  one stream      one loop     per target, compiled once     rows       what      writes
//!  per query                                                  only     differs
//! ```
//!
//! The operator, the command line and the tests use this path; only the source differs. This crate depends on no
//! Kubernetes client and on no sink type: events come in through [`watch::WatchSource`], rows go out through
//! [`kollect_model::sink::Sink`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests start tasks as they like"))]

pub mod clock;
pub mod collect;
pub mod coverage;
pub mod deliver;
pub mod delta;
pub mod export;
pub mod extract;
mod json;
pub mod names;
#[cfg(test)]
mod random;
pub mod schedule;
pub mod scrub;
pub mod select;
pub mod store;
pub mod tasks;
pub mod watch;

#[cfg(test)]
mod tests;
