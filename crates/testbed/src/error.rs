//! Errors of finding, building, starting and using real servers.
//!
//! Every module of this crate returns [`Error`]. A message says what was attempted and, if the user
//! must act, what to do; the cause is in `source` and not in the message.

use std::error::Error as _;
use std::io;

/// A server could not be found, built, started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("could not {action}")]
    Io {
        /// What was attempted; follows "could not" in the message.
        action: String,
        /// Why it was refused.
        #[source]
        source: io::Error,
    },
    /// No `go` on `PATH`, or one that is too old.
    #[error(
        "Go {needed} or newer is needed to build the servers ({found}); install it from your \
         package manager or https://go.dev/dl and put it on PATH"
    )]
    GoMissing {
        /// The version that `go.mod` asks for.
        needed: String,
        /// What was found instead.
        found: String,
    },
    /// No Postgres server programs on this machine.
    #[error("PostgreSQL server is missing: apt-get install postgresql")]
    PostgresMissing,
    /// A program of the system is not on this machine.
    #[error("{program} is missing: apt-get install {package}")]
    ProgramMissing {
        /// Which program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A server, or a program run under a guard, ended when it should not have.
    #[error("{name} ended with status {status}; the end of its log:\n{log}")]
    Ended {
        /// Which program.
        name: String,
        /// Its exit status as a shell reports it.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// A server runs but does not answer.
    #[error("{name} was not ready after {seconds} s; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        name: String,
        /// How long it was given.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },
    /// A client program such as kubectl or psql reported failure.
    #[error("`{command}` failed: {stderr}")]
    Command {
        /// The program and its arguments.
        command: String,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// A key or a certificate could not be made.
    #[error("could not make a key and a certificate")]
    Keys(#[from] rcgen::Error),
    /// A certificate of a client was requested from a server without TLS.
    #[error("the server has no TLS: start it with start_with_tls")]
    NoTls,
    /// The image is larger than an image may be.
    #[error("the image for linux/{architecture} has {bytes} bytes, more than {max}: find out what has grown", max = crate::image::MAX_BYTES)]
    ImageTooLarge {
        /// As in Go: `amd64` or `arm64`.
        architecture: String,
        /// Of the compressed layers.
        bytes: usize,
    },
    /// The configuration of an image lacks something.
    #[error("the configuration of the image has no {missing}")]
    ImageConfig {
        /// A field, or a label.
        missing: String,
    },
    /// Tests have seen messages that the listing does not have.
    #[error("{count} messages are not in {listing}: read them, then run make messages\n  {lines}")]
    UnlistedMessages {
        /// How many.
        count: usize,
        /// One per line.
        lines: String,
        /// The file of the listing.
        listing: String,
    },
}

impl Error {
    /// For `map_err`: an operating system error, with what was attempted.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The error and all its causes on one line, for output to the user.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }

    /// Whether a server ended because another process took its port first.
    pub(crate) fn is_port_taken(&self) -> bool {
        // Go and Postgres differ in the case of the first letter.
        matches!(self, Self::Ended { log, .. } if log.contains("ddress already in use"))
    }
}
