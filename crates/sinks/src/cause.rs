//! Which part of a connection error may be shown.
//!
//! A user who may write a sink can point it at any server that the operator reaches, and reads the error in its
//! status. So an error is described in our own words, with codes and names from fixed sets: errors of this machine
//! and errors of TLS. Text that a server sends is never part of it.

use std::{error::Error, io};

use rustls::{AlertDescription, CertificateError};

/// The first cause of an error that may be shown: an error of this machine, or of TLS.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls_text(tls));
        }
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io_text(io);
        }
        next = error.source();
    }
    None
}

/// An I/O error of this machine, or the error that it wraps. Other inner texts are not shown: libraries may quote
/// data that they have read.
fn io_text(error: &io::Error) -> Option<String> {
    if error.raw_os_error().is_some() {
        return Some(error.to_string());
    }
    match error.get_ref().and_then(|inner| cause(inner)) {
        Some(text) => Some(text),
        None => match error.kind() {
            io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => None,
            kind => Some(kind.to_string()),
        },
    }
}

/// The TLS error behind an error.
pub(crate) fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Some(tls);
        }
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(tls) = inner.and_then(|inner| tls_error(inner)) {
            return Some(tls);
        }
        next = error.source();
    }
    None
}

/// Describes a TLS error. The library's own text is not used: it quotes the names in the server's certificate.
pub(crate) fn tls_text(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => {
            let alert = match alert {
                AlertDescription::Unknown(code) => format!("number {code}"),
                known => format!("{known:?}"),
            };
            format!("the server refused our TLS, most often for the client certificate (alert {alert})")
        }
        rustls::Error::InvalidCertificate(problem) => certificate_text(problem).to_owned(),
        rustls::Error::InvalidMessage(_) => "the server does not use TLS at this port".to_owned(),
        _ => "the TLS handshake failed".to_owned(),
    }
}

fn certificate_text(problem: &CertificateError) -> &'static str {
    match problem {
        CertificateError::UnknownIssuer => {
            "the certificate of the server is not signed by an authority that is trusted; put the certificate of its \
             authority into spec.tls.caBundle or spec.tls.caSecretRef"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate of the server names other hosts"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate of the server has expired"
        }
        _ => "the certificate of the server cannot be trusted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: &str = "what-the-server-said";

    #[test]
    fn texts_inside_of_errors_are_not_shown() {
        let quoting = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, MARKER));
        assert_eq!(cause(&quoting), None);
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, MARKER);
        assert_eq!(cause(&ended).as_deref(), Some("unexpected end of file"));
        let refused = io::Error::other(io::Error::from_raw_os_error(111));
        assert!(cause(&refused).is_some_and(|text| text.starts_with("Connection refused")));
        let tls = rustls::Error::General(MARKER.into());
        assert_eq!(cause(&io::Error::other(tls)).as_deref(), Some("the TLS handshake failed"));
    }
}
