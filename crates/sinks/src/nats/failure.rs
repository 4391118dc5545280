//! Maps answers and timeouts of the server to the closed set of reasons.

use std::error::Error as _;

use async_nats::{
    ConnectError, ConnectErrorKind,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind, RequestError, RequestErrorKind},
    },
};
use kollect_model::sink::{SinkError, SinkReason};

use crate::cause::{cause, tls_error};

/// An error during an operation: from the server, or found by the sink itself.
#[derive(Debug)]
pub(super) enum NatsError {
    /// The server refused with a status and a code.
    JetStream { status: usize, code: u64 },
    /// No responder for the subject: the stream or JetStream is missing.
    NoResponders,
    /// No answer in time.
    TimedOut,
    /// The connection is lost. It is not restored.
    Lost,
    /// The server does not permit it.
    Forbidden(&'static str),
    /// Another writer has sent to the subject in the meantime.
    Conflict,
    /// The message exceeds the limit of the server.
    TooLarge,
    /// Any other error, in our own words.
    Other(String),
    /// Already an error of a sink.
    Sink(SinkError),
}

pub(super) const STREAM_NOT_FOUND: u64 = 10059;
pub(super) const STREAM_EXISTS: u64 = 10058;
const TOO_LARGE: u64 = 10054;

impl From<SinkError> for NatsError {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

impl From<&jetstream::Error> for NatsError {
    fn from(error: &jetstream::Error) -> Self {
        let ErrorCode(code) = error.error_code();
        if code == TOO_LARGE {
            return Self::TooLarge;
        }
        Self::JetStream { status: error.code(), code }
    }
}

impl From<&RequestError> for NatsError {
    fn from(error: &RequestError) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::NoResponders,
            RequestErrorKind::TimedOut => Self::TimedOut,
            _ => Self::unexpected(error),
        }
    }
}

impl From<PublishError> for NatsError {
    fn from(error: PublishError) -> Self {
        match error.kind() {
            PublishErrorKind::StreamNotFound => Self::NoResponders,
            PublishErrorKind::WrongLastSequence => Self::Conflict,
            PublishErrorKind::TimedOut => Self::TimedOut,
            PublishErrorKind::BrokenPipe => Self::Lost,
            PublishErrorKind::MaxPayloadExceeded => Self::TooLarge,
            _ => match error.source().and_then(|cause| cause.downcast_ref::<jetstream::Error>()) {
                Some(server_error) => server_error.into(),
                None => Self::unexpected(&error),
            },
        }
    }
}

impl NatsError {
    /// An error of the client library without a case of its own. Its text may contain text that the server sent.
    pub(super) fn unexpected(error: &(dyn std::error::Error + 'static)) -> Self {
        let what = "the answer is not that of JetStream";
        Self::Other(
            cause(error).map_or_else(|| what.to_owned(), |cause| format!("the request failed: {cause}")),
        )
    }

    /// Converts it to the error of a sink.
    pub(super) fn into_error(self, attempt: &str) -> SinkError {
        let error = |reason, why: &str| SinkError::new(reason, format!("{attempt}: {why}"));
        match self {
            Self::Sink(known) => known,
            Self::JetStream { status, code } => {
                let why = format!("{} (JetStream error {code}, status {status})", message(status, code));
                error(reason(status, code), &why)
            }
            // The stream was removed, or the subject was removed from it: the next open creates it again.
            Self::NoResponders => error(SinkReason::WriteFailed, "no stream of the server takes it"),
            Self::TimedOut => error(SinkReason::Unreachable, "no answer in time"),
            Self::Lost => error(SinkReason::Unreachable, "the connection is lost"),
            Self::Forbidden(why) => error(SinkReason::Forbidden, why),
            Self::Conflict => error(SinkReason::WriteFailed, "another client has written there meanwhile"),
            Self::TooLarge => error(SinkReason::Refused, "the message is larger than the server takes"),
            Self::Other(text) => error(SinkReason::WriteFailed, &text),
        }
    }
}

/// The reason for a JetStream error.
fn reason(status: usize, code: u64) -> SinkReason {
    match code {
        STREAM_NOT_FOUND => SinkReason::Missing,
        // JetStream is not enabled for the server or the account; the subject overlaps with another stream; wrong
        // expected stream; sealed; no time to live; bad configuration.
        10035 | 10039 | 10076 | 10052 | 10060 | 10065 | 10109 | 10166 => SinkReason::Incompatible,
        // No quorum, no leader, no peers.
        10005 | 10008 | 10009 => SinkReason::Unreachable,
        // For example, the store is full.
        10077 => SinkReason::WriteFailed,
        _ => match status {
            401 | 403 => SinkReason::Forbidden,
            503 => SinkReason::Unreachable,
            _ => SinkReason::WriteFailed,
        },
    }
}

/// The error of a connection that could not be opened.
pub(super) fn connect_error(attempt: &str, error: &ConnectError) -> SinkError {
    let reason = match (error.kind(), tls_error(error)) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => {
            SinkReason::Forbidden
        }
        // Alerts come from the server: it refuses our certificate, or requires one.
        (_, Some(rustls::Error::AlertReceived(_))) => SinkReason::Forbidden,
        (_, Some(_)) | (ConnectErrorKind::Tls | ConnectErrorKind::ServerParse, _) => SinkReason::Incompatible,
        _ => SinkReason::Unreachable,
    };
    let what = match error.kind() {
        ConnectErrorKind::ServerParse => "the answer is not that of a NATS server",
        ConnectErrorKind::Dns => "the name has no address",
        ConnectErrorKind::Authentication => "the server asks for credentials that the Secret does not hold",
        ConnectErrorKind::AuthorizationViolation => "the server does not accept the credentials",
        ConnectErrorKind::TimedOut => "no answer in time",
        ConnectErrorKind::Tls => "no TLS",
        ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => "no connection",
    };
    let why = cause(error).map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}"));
    SinkError::new(reason, format!("{attempt}: {why}"))
}

/// The message for a JetStream error.
fn message(status: usize, code: u64) -> &'static str {
    match code {
        STREAM_NOT_FOUND => "the stream does not exist",
        STREAM_EXISTS => "a stream of this name exists",
        TOO_LARGE => "the message is larger than the stream takes",
        10005 | 10008 | 10009 => "the servers of the cluster do not agree now",
        10035 | 10039 | 10076 => "JetStream is not enabled on this server or for this account",
        10023 | 10028 | 10047 | 10077 => "the server has no room left for this",
        10026 => "the stream has as many consumers as it may have",
        10052 => "the server does not take these settings of the stream",
        10060 => "the stream that takes the subject is another one",
        10065 => "the subjects overlap with those of another stream; name another subject or stream",
        10071 => "there is a newer message on the subject",
        10109 => "the stream is sealed",
        10166 => "the stream does not let messages expire",
        _ => match status {
            401 | 403 => "the server does not permit this",
            404 => "the server does not have what was asked for",
            503 => "the server is not ready",
            _ => "the server refused",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jetstream_error_has_a_reason() {
        for (status, code, expected) in [
            (404, 10059, SinkReason::Missing),
            (503, 10039, SinkReason::Incompatible),
            (503, 10076, SinkReason::Incompatible),
            (400, 10065, SinkReason::Incompatible),
            (503, 10008, SinkReason::Unreachable),
            (503, 10077, SinkReason::WriteFailed),
            (403, 0, SinkReason::Forbidden),
            (400, 10047, SinkReason::WriteFailed),
        ] {
            assert_eq!(reason(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn no_error_contains_the_text_of_a_nats_server() {
        const MARKER: &str = "what-the-server-said";
        let text = format!(r#"{{"code":400,"err_code":10065,"description":"{MARKER}"}}"#);
        let server_error: jetstream::Error = serde_json::from_str(&text).unwrap();
        let error = NatsError::from(&server_error).into_error("prepare stream a");
        assert_eq!(
            error.to_string(),
            "prepare stream a: the subjects overlap with those of another stream; name another subject or stream \
             (JetStream error 10065, status 400)"
        );
        let broken = serde_json::from_str::<u8>(&format!("\"{MARKER}\"")).unwrap_err();
        for error in [NatsError::unexpected(&broken), NatsError::unexpected(&std::io::Error::other(MARKER))] {
            let error = error.into_error("read");
            assert!(!format!("{error} {error:?}").contains(MARKER), "{error:?}");
        }
    }
}
