//! Sinks against real destinations: one binary for all tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "tests start tasks and threads and dial servers as they like")]

mod available;
mod conformance;
mod delivery;
mod destinations;
mod filesystem;
mod git;
mod nats;
mod old_claims;
mod old_keys;
mod postgres;
mod postgres_access;
mod postgres_refused;
mod postgres_sessions;
mod preview;
mod s3;
mod server_answers;
mod sqlite;
