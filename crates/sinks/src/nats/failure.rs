//! What went wrong, from answers and silence of the server to the closed set of reasons.

use std::error::Error as _;

use async_nats::{
    ConnectError, ConnectErrorKind,
    jetstream::{
        self, ErrorCode,
        context::{PublishError, PublishErrorKind, RequestError, RequestErrorKind},
    },
};
use kollect_model::sink::{SinkError, SinkReason};

/// A failure in the middle of the work: of the server, or found by the sink itself.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused, and said why.
    Said { status: usize, code: u64, text: String },
    /// Nobody listens: the stream is gone, or JetStream is.
    NobodyListens,
    /// No answer in time.
    Late,
    /// The connection is lost, and is not taken up again.
    Lost,
    /// The server does not let us.
    Forbidden(String),
    /// Somebody has written to the subject meanwhile.
    Overtaken,
    /// Larger than the server takes.
    TooLarge,
    /// Everything else.
    Other(String),
    /// Said already.
    Sink(SinkError),
}

pub(super) const STREAM_NOT_FOUND: u64 = 10059;
pub(super) const STREAM_EXISTS: u64 = 10058;
const TOO_LARGE: u64 = 10054;

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

impl From<&jetstream::Error> for Failure {
    fn from(error: &jetstream::Error) -> Self {
        let ErrorCode(code) = error.error_code();
        if code == TOO_LARGE {
            return Self::TooLarge;
        }
        Self::Said { status: error.code(), code, text: error.to_string() }
    }
}

impl From<&RequestError> for Failure {
    fn from(error: &RequestError) -> Self {
        match error.kind() {
            RequestErrorKind::NoResponders => Self::NobodyListens,
            RequestErrorKind::TimedOut => Self::Late,
            _ => Self::Other(with_causes(error)),
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error.kind() {
            PublishErrorKind::StreamNotFound => Self::NobodyListens,
            PublishErrorKind::WrongLastSequence => Self::Overtaken,
            PublishErrorKind::TimedOut => Self::Late,
            PublishErrorKind::BrokenPipe => Self::Lost,
            PublishErrorKind::MaxPayloadExceeded => Self::TooLarge,
            _ => match error.source().and_then(|cause| cause.downcast_ref::<jetstream::Error>()) {
                Some(said) => said.into(),
                None => Self::Other(with_causes(&error)),
            },
        }
    }
}

impl Failure {
    /// The error of a sink.
    pub(super) fn into_error(self, attempt: &str) -> SinkError {
        let error = |reason, why: &str| SinkError::new(reason, format!("{attempt}: {why}"));
        match self {
            Self::Sink(known) => known,
            Self::Said { status, code, text } => error(reason(status, code), &text),
            // Somebody has removed the stream or the subject from it: the next open brings it back.
            Self::NobodyListens => error(SinkReason::WriteFailed, "no stream of the server takes it"),
            Self::Late => error(SinkReason::Unreachable, "no answer in time"),
            Self::Lost => error(SinkReason::Unreachable, "the connection is lost"),
            Self::Forbidden(text) => error(SinkReason::Forbidden, &text),
            Self::Overtaken => error(SinkReason::WriteFailed, "somebody else has written there meanwhile"),
            Self::TooLarge => error(SinkReason::Refused, "the message is larger than the server takes"),
            Self::Other(text) => error(SinkReason::WriteFailed, &text),
        }
    }
}

/// The reason behind an answer of JetStream.
fn reason(status: usize, code: u64) -> SinkReason {
    match code {
        STREAM_NOT_FOUND => SinkReason::Missing,
        // JetStream is not enabled, for the server or for the account. Another stream has the subject; wrong
        // expected stream; sealed; no time to live; bad configuration.
        10035 | 10039 | 10076 | 10052 | 10060 | 10065 | 10109 | 10166 => SinkReason::Incompatible,
        // No quorum, no leader, no peers.
        10005 | 10008 | 10009 => SinkReason::Unreachable,
        // The store is full, for instance.
        10077 => SinkReason::WriteFailed,
        _ => match status {
            401 | 403 => SinkReason::Forbidden,
            503 => SinkReason::Unreachable,
            _ => SinkReason::WriteFailed,
        },
    }
}

/// Why no connection came about.
pub(super) fn of_connecting(attempt: &str, error: &ConnectError) -> SinkError {
    let reason = match (error.kind(), tls(error)) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => {
            SinkReason::Forbidden
        }
        // Alerts come from the server: it does not like our certificate, or misses one.
        (_, Some(rustls::Error::AlertReceived(_))) => SinkReason::Forbidden,
        (_, Some(_)) | (ConnectErrorKind::Tls | ConnectErrorKind::ServerParse, _) => SinkReason::Incompatible,
        _ => SinkReason::Unreachable,
    };
    SinkError::new(reason, format!("{attempt}: {}", with_causes(error)))
}

fn tls(error: &ConnectError) -> Option<&rustls::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        let io = error.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        if let Some(tls) = io.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Some(tls);
        }
        cause = error.source();
    }
    None
}

/// The error and its causes on one line. The crate's own texts repeat some causes.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_a_reason() {
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
}
