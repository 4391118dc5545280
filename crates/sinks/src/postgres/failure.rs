//! Maps SQLSTATEs and connection errors to the closed set of reasons.

use std::error::Error as _;

use kollect_model::sink::{SinkError, SinkReason};
use tokio_postgres::error::DbError;

use super::tls::TlsError;
use crate::cause::cause;

/// An error during an operation: from the database, or found by the sink itself.
pub(super) enum PostgresError {
    Database(tokio_postgres::Error),
    Sink(SinkError),
}

impl From<tokio_postgres::Error> for PostgresError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<SinkError> for PostgresError {
    fn from(error: SinkError) -> Self {
        Self::Sink(error)
    }
}

/// An error of the server in our own words. The server's text is not shown: a sink may be pointed at any server,
/// and details contain whole rows.
#[derive(Debug, thiserror::Error)]
#[error("{} (SQLSTATE {code})", message(code))]
struct ServerRefusal {
    /// Five digits and letters.
    code: String,
}

impl PostgresError {
    /// Converts it to the error of a sink. With `may_create`, missing tables are created at the next open.
    pub(super) fn into_error(self, attempt: String, may_create: bool) -> SinkError {
        let error = match self {
            Self::Sink(error) => return error,
            Self::Database(error) => error,
        };
        if let Some(server_error) = error.as_db_error() {
            let reason = match reason(server_error.code().code()) {
                SinkReason::Missing if may_create && server_error.code().code() == "42P01" => {
                    SinkReason::WriteFailed
                }
                reason => reason,
            };
            return SinkError::because(reason, attempt, ServerRefusal::new(server_error));
        }
        let reason = match tls(&error) {
            _ if is_refused_identity(&error) => SinkReason::Forbidden,
            Some(TlsError::Certificate(_) | TlsError::Name) => SinkReason::Incompatible,
            None if refuses_tls(&error) => SinkReason::Incompatible,
            Some(TlsError::Handshake(_)) | None => SinkReason::Unreachable,
        };
        // The driver finds a missing or wrong password before the server can report it.
        let reason = if error.to_string().starts_with("invalid configuration")
            || error.to_string().starts_with("authentication error")
        {
            SinkReason::Forbidden
        } else {
            reason
        };
        SinkError::because(reason, attempt, driver_message(&error))
    }

    /// Whether the session can be used again. Other errors may be caused by state of the session, such as cached
    /// rights and plans.
    pub(super) fn keeps_session(&self) -> bool {
        match self {
            Self::Database(error) => error
                .code()
                .is_some_and(|code| matches!(reason(code.code()), SinkReason::Busy | SinkReason::Refused)),
            Self::Sink(_) => true,
        }
    }

    /// Whether the user may not change a table, or other objects of the database depend on it.
    pub(super) fn forbids_change(&self) -> bool {
        match self {
            Self::Database(error) => {
                error.code().is_some_and(|code| matches!(code.code(), "42501" | "2BP01" | "0A000"))
            }
            Self::Sink(_) => false,
        }
    }

    /// Whether the server refused a value and not the whole write.
    pub(super) fn is_about_values(&self) -> bool {
        match self {
            Self::Database(error) => {
                error.code().is_some_and(|code| reason(code.code()) == SinkReason::Refused)
            }
            Self::Sink(_) => false,
        }
    }
}

impl ServerRefusal {
    fn new(server_error: &DbError) -> Self {
        let code = server_error.code().code();
        let is_code = code.len() == 5 && code.bytes().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
        Self { code: if is_code { code.to_owned() } else { "unknown".to_owned() } }
    }
}

/// Describes an error of the driver. Its causes may contain text that the server sent.
fn driver_message(error: &tokio_postgres::Error) -> String {
    let cause = cause(error);
    let what = match error.to_string().as_str() {
        "error connecting to server" => "no connection",
        "error communicating with the server" if cause.is_some() => "the connection broke",
        "error communicating with the server" => {
            "the connection broke, or the answer is not that of a PostgreSQL server"
        }
        "connection closed" => "the connection was closed",
        "timeout waiting for server" => "no answer in time",
        "error performing TLS handshake" if refuses_tls(error) => "the server does not support TLS",
        "error performing TLS handshake" => "no TLS",
        "authentication error" => "the server does not accept the user and password of the Secret",
        "invalid configuration" => "the connection string lacks what the server asks for, such as a password",
        "error parsing response from server" | "unexpected message from server" => {
            "the answer is not that of a PostgreSQL server"
        }
        _ => "the answer is not what was asked for",
    };
    cause.map_or_else(|| what.to_owned(), |cause| format!("{what}: {cause}"))
}

/// Compares the text, because the driver has no type for this error.
fn refuses_tls(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|why| why.to_string() == "server does not support TLS")
}

fn tls(error: &tokio_postgres::Error) -> Option<&TlsError> {
    error.source()?.downcast_ref()
}

/// Whether the server refuses our certificate, or requires one. It sends an alert, with TLS 1.3 only after the
/// handshake.
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
                    // An invalid signature, for example of a CA with the same name.
                    | Alert::DecryptError
            );
        }
        cause = error.source();
    }
    false
}

/// The message for a SQLSTATE.
fn message(code: &str) -> &'static str {
    match code {
        "28P01" => "the server does not accept the password",
        "28000" => "the server does not let this user in from here",
        "3D000" => "there is no such database",
        "3F000" => "there is no such schema",
        "42P01" => "there is no such table",
        "42703" => "there is no such column",
        "42501" => "the user lacks a permission",
        "42P10" => "the key of the table has changed",
        "25006" => "the server is read-only",
        "53100" => "the disk of the server is full",
        "53200" => "the server is out of memory",
        "53300" => "the server has too many connections",
        "53400" => "a limit of the server is reached",
        "57P01" | "57P02" => "the server is shutting down",
        "57P03" => "the server does not take connections now",
        "57014" => "the server ended the statement, most often because it took too long",
        "40001" | "40P01" => "conflict with another transaction",
        "55P03" => "another transaction holds a lock",
        "22001" => "a value is too long for its column",
        "22P05" => "the table cannot store a character",
        "23502" => "a column must have a value",
        "23503" => "a row must be named by another table",
        "23505" => "a row with this key exists",
        "23514" => "a rule of the table refuses a row",
        "0A000" => "the server does not support this",
        "2BP01" => "other objects of the database depend on this",
        _ => match code.get(..2) {
            Some("08") => "the connection failed",
            Some("22") => "the table cannot store a value",
            Some("23") => "a rule of the table refuses a row",
            Some("28") => "the server does not let this user in",
            Some("42") => "the database is not as expected",
            Some("53") => "the server lacks a resource",
            Some("54") => "a value is too large for the server",
            Some("57") => "an administrator or a limit of the server ended the operation",
            Some("58" | "XX") => "the server failed",
            _ => "the server refused",
        },
    }
}

/// The reason for a SQLSTATE.
fn reason(code: &str) -> SinkReason {
    match code {
        // Too many connections, shutting down, starting up.
        "53300" | "57P01" | "57P02" | "57P03" => SinkReason::Unreachable,
        // Serialization, deadlock, lock not available, statement timeout.
        "40001" | "40P01" | "55P03" | "57014" => SinkReason::Busy,
        "42501" => SinkReason::Forbidden,
        // No such database, schema, table.
        "3D000" | "3F000" | "42P01" => SinkReason::Missing,
        // Another writer was first: the next attempt sees the row, or the new key of the table.
        "23505" | "42P10" => SinkReason::WriteFailed,
        // Objects depend on something that a migration would drop; or the server does not support it.
        "2BP01" | "0A000" => SinkReason::Incompatible,
        _ => match code.get(..2) {
            Some("08") => SinkReason::Unreachable,
            Some("28") => SinkReason::Forbidden,
            Some("42") => SinkReason::Incompatible,
            // Data exceptions, constraints that the owner has added to the table, limits of a value.
            Some("22" | "23" | "54") => SinkReason::Refused,
            _ => SinkReason::WriteFailed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_a_reason() {
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
            ("42P10", SinkReason::WriteFailed),
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
