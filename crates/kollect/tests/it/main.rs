//! The program against a real API server: one binary for all of it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "tests start tasks and threads and dial servers as they like")]

mod admission;
mod bad_input;
mod catalogue;
mod cel;
mod chart;
mod collect;
mod completion;
mod crds;
mod documentation;
mod exposition;
mod files;
mod install;
mod logs;
mod operator;
mod postgres;
mod program;
mod redaction;
mod reference;
mod scale;
mod schemas;
mod watch;
