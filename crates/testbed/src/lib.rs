//! Real servers for tests, the demo and benches.
//!
//! [`ControlPlane`] is etcd, kube-apiserver and kube-controller-manager, built once from their Go modules; [`Proxy`]
//! simulates network faults in front of it; [`Nats`] is a NATS server with JetStream, built likewise; [`Postgres`],
//! [`GitHttp`] and [`GitSsh`] are servers that the machine has installed. Each starts on free loopback ports in its own
//! [`Scratch`] directory. The server is stopped and its directory removed when the handle is dropped or this process
//! ends in any way, SIGKILL included (see [`guard`]).
//!
//! A missing program is an [`Error`] that says what to install, never a skipped test.

#![expect(
    clippy::disallowed_methods,
    reason = "test servers need threads, and the address guard of sinks does not apply here"
)]

mod certificates;
mod command;
pub mod control_plane;
pub mod demo;
pub mod duckdb;
mod error;
pub mod features;
pub mod git;
pub mod guard;
pub mod helm;
pub mod image;
pub mod kube_cel;
pub mod messages;
pub mod nats;
pub mod node;
pub mod playground;
mod ports;
pub mod postgres;
pub mod programs;
pub mod proxy;
pub mod s3;
pub mod sbom;
pub mod schemas;

pub use certificates::Certificates;
pub use control_plane::{ControlPlane, Grant};
pub use error::Error;
pub use git::{GitHttp, GitSsh};
pub use guard::{Scratch, Server, Stop};
pub use helm::Helm;
pub use nats::Nats;
pub use node::Node;
pub use playground::Playground;
pub use ports::free_port;
pub use postgres::{Postgres, StoppedPostgres};
pub use programs::{Programs, chart_tool, promtool};
pub use proxy::{FailureMoment, Proxy, RecordedList};
pub use s3::S3;
