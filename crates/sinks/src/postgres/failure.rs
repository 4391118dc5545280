//! What went wrong, from SQLSTATEs and broken connections to the closed set of reasons.

use std::error::Error as _;

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::error::DbError;

use super::tls::TlsError;

/// A failure in the middle of the work: of the database, or found by the sink itself.
pub(super) enum Failure {
    Database(tokio_postgres::Error),
    Sink(SinkError),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

/// What the server said, without its details: they quote whole rows.
#[derive(Debug, thiserror::Error)]
#[error("{message} (SQLSTATE {code})")]
struct Said {
    message: String,
    code: String,
}

impl Failure {
    /// The error of a sink. With `may_create`, tables that are gone come back at the next open.
    pub(super) fn into_error(self, attempt: String, may_create: bool) -> SinkError {
        let error = match self {
            Self::Sink(error) => return error,
            Self::Database(error) => error,
        };
        if let Some(said) = error.as_db_error() {
            let reason = match reason(said.code().code()) {
                SinkReason::Missing if may_create && said.code().code() == "42P01" => SinkReason::WriteFailed,
                reason => reason,
            };
            return SinkError::because(reason, attempt, quote(said));
        }
        let reason = match tls(&error) {
            _ if is_refused_identity(&error) => SinkReason::Forbidden,
            Some(TlsError::Certificate(_) | TlsError::Name) => SinkReason::Incompatible,
            // The driver has no other way to say so.
            None if error.source().is_some_and(|why| why.to_string() == "server does not support TLS") => {
                SinkReason::Incompatible
            }
            Some(TlsError::Handshake(_)) | None => SinkReason::Unreachable,
        };
        // Wrong or missing passwords are found by the driver before the server can say so.
        let reason = if error.to_string().starts_with("invalid configuration")
            || error.to_string().starts_with("authentication error")
        {
            SinkReason::Forbidden
        } else {
            reason
        };
        SinkError::because(reason, attempt, error)
    }

    /// Whether the session is as good as before. What a session remembers, such as rights and plans, may be
    /// why others fail.
    pub(super) fn spares_session(&self) -> bool {
        match self {
            Self::Database(error) => error
                .code()
                .is_some_and(|code| matches!(reason(code.code()), SinkReason::Busy | SinkReason::Refused)),
            Self::Sink(_) => true,
        }
    }

    /// Whether the server refused a value, as opposed to the whole write.
    pub(super) fn is_about_values(&self) -> bool {
        match self {
            Self::Database(error) => {
                error.code().is_some_and(|code| reason(code.code()) == SinkReason::Refused)
            }
            Self::Sink(_) => false,
        }
    }
}

fn quote(said: &DbError) -> Said {
    Said { message: said.message().to_owned(), code: said.code().code().to_owned() }
}

fn tls(error: &tokio_postgres::Error) -> Option<&TlsError> {
    error.source()?.downcast_ref()
}

/// Whether the server does not accept our certificate, or misses one. It says so in an alert, and with
/// TLS 1.3 only after the handshake.
fn is_refused_identity(error: &tokio_postgres::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(rustls::Error::AlertReceived(alert)) = inner.and_then(|inner| inner.downcast_ref()) {
            return matches!(
                alert,
                Alert::BadCertificate
                    | Alert::UnsupportedCertificate
                    | Alert::CertificateRevoked
                    | Alert::CertificateExpired
                    | Alert::CertificateUnknown
                    | Alert::UnknownCA
                    | Alert::CertificateRequired
                    | Alert::AccessDenied
                    // A signature that does not fit: of an authority with the same name, for instance.
                    | Alert::DecryptError
            );
        }
        cause = error.source();
    }
    false
}

/// The reason behind a SQLSTATE.
fn reason(code: &str) -> SinkReason {
    match code {
        // Too many connections, shutting down, starting up.
        "53300" | "57P01" | "57P02" | "57P03" => SinkReason::Unreachable,
        // Serialization, deadlock, lock not available, statement timeout.
        "40001" | "40P01" | "55P03" | "57014" => SinkReason::Busy,
        "42501" => SinkReason::Forbidden,
        // No such database, schema, table.
        "3D000" | "3F000" | "42P01" => SinkReason::Missing,
        // Somebody was faster: the next try sees the row.
        "23505" => SinkReason::WriteFailed,
        // Objects depend on what a migration would drop; not supported by this server.
        "2BP01" | "0A000" => SinkReason::Incompatible,
        _ => match code.get(..2) {
            Some("08") => SinkReason::Unreachable,
            Some("28") => SinkReason::Forbidden,
            Some("42") => SinkReason::Incompatible,
            // Data exceptions, constraints of the table's owner, limits of a value.
            Some("22" | "23" | "54") => SinkReason::Refused,
            _ => SinkReason::WriteFailed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w25_every_sqlstate_has_a_reason() {
        for (code, expected) in [
            ("08006", SinkReason::Unreachable),
            ("57P03", SinkReason::Unreachable),
            ("40001", SinkReason::Busy),
            ("55P03", SinkReason::Busy),
            ("28P01", SinkReason::Forbidden),
            ("42501", SinkReason::Forbidden),
            ("3D000", SinkReason::Missing),
            ("42P01", SinkReason::Missing),
            ("42703", SinkReason::Incompatible),
            ("22P05", SinkReason::Refused),
            ("54001", SinkReason::Refused),
            ("23505", SinkReason::WriteFailed),
            ("53100", SinkReason::WriteFailed),
            ("XX000", SinkReason::WriteFailed),
            ("", SinkReason::WriteFailed),
        ] {
            assert_eq!(reason(code), expected, "{code}");
        }
    }
}
