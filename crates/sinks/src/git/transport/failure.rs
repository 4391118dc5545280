//! Maps errors of the Git transport to the closed set of reasons. The text of a server decides the reason, and is not
//! shown.

use std::{error::Error, io};

use kollect_model::sink::{SinkError, SinkReason};

use crate::cause::{cause, tls_error};

/// An error during a conversation with a server.
#[derive(Debug)]
pub(super) enum TransportError {
    /// The connection broke.
    Io(io::Error),
    /// The server ended the conversation early.
    Ended,
    /// The server's answer is not the Git protocol, or a version that we do not support.
    Malformed(&'static str),
    /// The server refused. Its text is not shown: a sink may be pointed at any server.
    RefusedByServer(RefusalMeaning),
    /// The server refused with an HTTP status.
    RefusedWithStatus(SinkReason, String),
    /// What arrived could not be stored here.
    NotStored(io::Error),
    /// Already an error of a sink.
    Sink(SinkError),
}

impl From<SinkError> for TransportError {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

impl From<io::Error> for TransportError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl TransportError {
    /// Converts it to the error of a sink.
    pub(super) fn into_error(self, attempt: &str) -> SinkError {
        let error = |reason, why: &str| SinkError::new(reason, format!("{attempt}: {why}"));
        match self {
            Self::Sink(known) => known,
            Self::Io(error) => connection_error(attempt, &error),
            Self::Ended => {
                error(SinkReason::Unreachable, "the server ended the conversation in the middle of it")
            }
            Self::Malformed(why) => error(SinkReason::Incompatible, why),
            Self::RefusedByServer(meaning) => error(meaning.reason(), meaning.message()),
            Self::RefusedWithStatus(reason, why) => error(reason, &why),
            Self::NotStored(error) => {
                SinkError::because(SinkReason::WriteFailed, format!("{attempt}: store what arrives"), error)
            }
        }
    }
}

/// The error of a connection that failed or broke.
pub(super) fn connection_error(attempt: &str, error: &(dyn Error + 'static)) -> SinkError {
    let reason = match tls_error(error) {
        // Alerts come from the server: it refuses our certificate, or requires one.
        Some(rustls::Error::AlertReceived(_)) => SinkReason::Forbidden,
        Some(_) => SinkReason::Incompatible,
        None => SinkReason::Unreachable,
    };
    let why = cause(error).unwrap_or_else(|| "the connection broke, or the answer is not Git's".to_owned());
    SinkError::new(reason, format!("{attempt}: {why}"))
}

/// The meaning of a server's refusal, found by texts that servers are known to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalMeaning {
    /// The branch has moved between two requests.
    NotOurRef,
    NotFound,
    Denied,
    Other,
}

impl RefusalMeaning {
    pub(super) fn of(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text).to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
        if has(&["not our ref"]) {
            Self::NotOurRef
        } else if has(&[
            "not found",
            "not appear to be a git repository",
            "could not be found",
            "does not exist",
        ]) {
            Self::NotFound
        } else if has(&[
            "denied",
            "permission",
            "not allowed",
            "forbidden",
            "unauthorized",
            "read-only",
            "archived",
        ]) {
            Self::Denied
        } else {
            Self::Other
        }
    }

    /// Unknown texts become a reason that is retried.
    fn reason(self) -> SinkReason {
        match self {
            Self::NotOurRef => SinkReason::Busy,
            Self::NotFound => SinkReason::Missing,
            Self::Denied => SinkReason::Forbidden,
            Self::Other => SinkReason::WriteFailed,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::NotOurRef => "the branch has moved meanwhile",
            Self::NotFound => {
                "the server says that there is no such repository, or none for these credentials"
            }
            Self::Denied => "the server does not permit this",
            Self::Other => "the server refused, for a reason that is not known",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_of_known_servers_have_reasons() {
        for (text, expected) in [
            ("ERROR: Repository not found.", SinkReason::Missing),
            ("fatal: '/x' does not appear to be a git repository", SinkReason::Missing),
            ("The project you were looking for could not be found", SinkReason::Missing),
            ("ERROR: Permission to a/b.git denied to deploy key", SinkReason::Forbidden),
            ("You are not allowed to push code to this project.", SinkReason::Forbidden),
            ("upload-pack: not our ref 1234", SinkReason::Busy),
            ("out of memory", SinkReason::WriteFailed),
        ] {
            let error =
                TransportError::RefusedByServer(RefusalMeaning::of(text.as_bytes())).into_error("fetch");
            assert_eq!(error.reason, expected, "{text}");
            assert!(!error.to_string().contains(text), "{error}");
        }
    }
}
