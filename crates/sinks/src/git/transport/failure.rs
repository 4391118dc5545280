//! What went wrong on the way, from words of servers and silence to the closed set of reasons.

use std::{error::Error, io};

use kollect_model::sink::{SinkError, SinkReason};
use rustls::CertificateError;

/// More of a server's words would hide the message around them.
const WORDS: usize = 600;

/// A failure in the middle of a conversation.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke.
    Io(io::Error),
    /// The server ended the conversation before its end.
    Ended,
    /// What the server says is not Git's protocol, or not one that we know.
    Malformed(&'static str),
    /// The server refused, in its words.
    Said(String),
    /// The server refused by its answer's status.
    Refused(SinkReason, String),
    /// What arrived could not be stored here.
    Unstored(io::Error),
    /// Said already.
    Sink(SinkError),
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    /// The error of a sink.
    pub(super) fn into_error(self, attempt: &str) -> SinkError {
        let said = |reason, why: &str| SinkError::new(reason, format!("{attempt}: {why}"));
        match self {
            Self::Sink(known) => known,
            Self::Io(error) => of_connection(attempt, error),
            Self::Ended => {
                said(SinkReason::Unreachable, "the server ended the conversation in the middle of it")
            }
            Self::Malformed(why) => said(SinkReason::Incompatible, why),
            Self::Said(words) => {
                said(of_words(&words), &format!("the server says: {}", spoken(words.as_bytes())))
            }
            Self::Refused(reason, why) => said(reason, &why),
            Self::Unstored(error) => {
                SinkError::because(SinkReason::WriteFailed, format!("{attempt}: store what arrives"), error)
            }
        }
    }
}

/// Why a connection did not come about, or broke.
pub(super) fn of_connection(attempt: &str, error: impl Error + Send + Sync + 'static) -> SinkError {
    let Some(tls) = tls(&error) else {
        return SinkError::because(SinkReason::Unreachable, attempt, error);
    };
    let (reason, why) = match tls {
        // Alerts come from the server: it does not like our certificate, or misses one.
        rustls::Error::AlertReceived(_) => {
            (SinkReason::Forbidden, "the server refused our TLS, most often for the client certificate")
        }
        rustls::Error::InvalidCertificate(problem) => (
            SinkReason::Incompatible,
            match problem {
                CertificateError::UnknownIssuer => {
                    "the certificate of the server is signed by nobody that is trusted; put the certificate of \
                     its authority into spec.tls.caBundle or spec.tls.caSecretRef"
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    "the certificate of the server names other hosts; use one of these in spec.endpoint"
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "the certificate of the server has expired"
                }
                _ => "the certificate of the server cannot be trusted",
            },
        ),
        rustls::Error::InvalidMessage(_) => {
            (SinkReason::Incompatible, "the server does not speak TLS at this port")
        }
        _ => (SinkReason::Incompatible, "no TLS with the server"),
    };
    let why = format!("{attempt}: {why} ({tls})");
    SinkError::new(reason, why)
}

fn tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(tls) = inner.and_then(|inner| tls(inner)) {
            return Some(tls);
        }
        cause = error.source();
    }
    None
}

/// The reason behind words that servers are known to use. Trying again is the mildest answer to others.
fn of_words(words: &str) -> SinkReason {
    let words = words.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    if has(&["not our ref"]) {
        // The branch has moved between two requests.
        SinkReason::Busy
    } else if has(&["not found", "not appear to be a git repository", "could not be found", "does not exist"])
    {
        SinkReason::Missing
    } else if has(&[
        "denied",
        "permission",
        "not allowed",
        "forbidden",
        "unauthorized",
        "read-only",
        "archived",
    ]) {
        SinkReason::Forbidden
    } else {
        SinkReason::WriteFailed
    }
}

/// Words of a server on one line, without what a terminal would act on.
pub(super) fn spoken(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= WORDS { line } else { line.chars().take(WORDS).chain("…".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_known_servers_have_reasons() {
        for (words, expected) in [
            ("ERROR: Repository not found.", SinkReason::Missing),
            ("fatal: '/x' does not appear to be a git repository", SinkReason::Missing),
            ("The project you were looking for could not be found", SinkReason::Missing),
            ("ERROR: Permission to a/b.git denied to deploy key", SinkReason::Forbidden),
            ("You are not allowed to push code to this project.", SinkReason::Forbidden),
            ("upload-pack: not our ref 1234", SinkReason::Busy),
            ("out of memory", SinkReason::WriteFailed),
        ] {
            assert_eq!(of_words(words), expected, "{words}");
        }
    }

    #[test]
    fn words_become_one_short_line() {
        assert_eq!(spoken(b"a\x1b[31m\r\n  b\n"), "a [31m b");
        assert_eq!(spoken("ä".repeat(5000).as_bytes()).chars().count(), WORDS + 1);
    }
}
