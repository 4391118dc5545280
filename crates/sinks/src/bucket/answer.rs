//! What an answer of an object store means: its error code, in words that say what to do.
//!
//! [`condensed`] cuts the answer to its code and a short message before the client library sees it: an error never repeats a
//! page that a server has sent.

use std::error::Error as _;

use kollect_model::sink::{SinkError, SinkReason};

/// Separates the code from the message.
const SEPARATOR: char = '\u{1f}';

/// The longest message of a server that is repeated.
const MAX_MESSAGE: usize = 200;

/// Error codes of S3 and its like: the reason, and what to do.
const CODES: &[(&str, SinkReason, &str)] = &[
    ("NoSuchBucket", SinkReason::Missing, "there is no such bucket: create it, or correct spec.endpoint"),
    ("InvalidBucketName", SinkReason::Incompatible, "no bucket can have this name: correct spec.endpoint"),
    (
        "AccessDenied",
        SinkReason::Forbidden,
        "the credentials may not do this: grant them to list the bucket, and to read, write and delete objects below the prefix; a retention lock of the bucket also denies it",
    ),
    (
        "InvalidAccessKeyId",
        SinkReason::Forbidden,
        "the server does not know the access key: correct accessKeyID in the Secret",
    ),
    (
        "SignatureDoesNotMatch",
        SinkReason::Forbidden,
        "the server computes another signature: correct secretAccessKey in the Secret",
    ),
    ("ExpiredToken", SinkReason::Forbidden, "the session token has expired: renew it in the Secret"),
    (
        "InvalidToken",
        SinkReason::Forbidden,
        "the server does not accept the session token: renew it in the Secret",
    ),
    (
        "RequestTimeTooSkewed",
        SinkReason::Forbidden,
        "the clocks of this machine and of the server differ by more than 15 minutes: set them",
    ),
    (
        "AuthorizationHeaderMalformed",
        SinkReason::Incompatible,
        "the bucket is in another region: set objectStore.region",
    ),
    (
        "PermanentRedirect",
        SinkReason::Incompatible,
        "the bucket is at another address: set objectStore.region, or the address in spec.endpoint",
    ),
    (
        "IllegalLocationConstraintException",
        SinkReason::Incompatible,
        "the bucket is in another region: set objectStore.region",
    ),
    (
        "InvalidStorageClass",
        SinkReason::Incompatible,
        "the store has no such class: correct objectStore.storageClass",
    ),
    (
        "KMS.NotFoundException",
        SinkReason::Incompatible,
        "there is no such key: correct objectStore.encryption.kmsKeyID",
    ),
    ("EntityTooLarge", SinkReason::Refused, "the document is larger than the store takes"),
    ("SlowDown", SinkReason::Unreachable, "the server is busy"),
    ("NotImplemented", SinkReason::Incompatible, "the server cannot do this"),
];

/// The text that replaces the body of an answer that is no success.
pub(super) fn condensed(body: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim())
    };
    match element("Code") {
        Some(code) if code.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') => {
            let message = element("Message").unwrap_or_default();
            let shown: String = message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
            format!("{code}{SEPARATOR}{shown}")
        }
        _ if body.trim_start().starts_with('<') => {
            format!("{SEPARATOR}the answer is a page and not that of an object store; is this its address?")
        }
        _ => SEPARATOR.to_string(),
    }
}

/// The code and the message of the server.
fn code_of(error: &object_store::Error) -> Option<(String, String)> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if inner.source().is_none()
            && let Some((before, message)) = text.split_once(SEPARATOR)
        {
            let code = before.rsplit(' ').next().unwrap_or_default();
            return Some((code.to_owned(), message.to_owned()));
        }
        cause = inner.source();
    }
    None
}

/// Whether there is no such object; a missing bucket is another matter.
pub(super) fn is_absent(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { .. })
        && code_of(error).is_none_or(|(code, _)| code != "NoSuchBucket")
}

/// The error of a failed request.
pub(super) fn failed(attempt: String, error: object_store::Error) -> SinkError {
    use object_store::Error as E;
    let mut deepest: &(dyn std::error::Error + 'static) = &error;
    while let Some(inner) = deepest.source() {
        if let Some(refused) = inner.downcast_ref::<SinkError>() {
            // The connection failed: its error says everything.
            let why = refused.source().map(|source| format!(": {source}")).unwrap_or_default();
            return SinkError::new(refused.reason, format!("{attempt}: {refused}{why}"));
        }
        deepest = inner;
    }
    let by_kind = match &error {
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => SinkReason::Forbidden,
        E::NotFound { .. } => SinkReason::Missing,
        E::InvalidPath { .. } | E::NotSupported { .. } | E::NotImplemented { .. } => SinkReason::Incompatible,
        _ => SinkReason::WriteFailed,
    };
    let Some((code, message)) = code_of(&error) else {
        return SinkError::new(by_kind, format!("{attempt}: {deepest}"));
    };
    let status = deepest.to_string();
    let is_server_error = status.contains("status code: 5");
    let known = CODES.iter().find(|(known, _, _)| *known == code);
    let (reason, advice) = match known {
        Some((_, reason, advice)) => (*reason, (*advice).to_owned()),
        None if is_server_error => (SinkReason::Unreachable, "the server failed".to_owned()),
        None if !message.is_empty() => {
            let reason = if code.is_empty() { SinkReason::Incompatible } else { by_kind };
            (reason, message.clone())
        }
        None => (
            by_kind,
            status.split(SEPARATOR).next().unwrap_or_default().trim_end_matches([' ', ':']).to_owned(),
        ),
    };
    let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
    SinkError::new(reason, format!("{attempt}: {advice}{code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_to_its_code_and_a_short_message() {
        let xml = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>no\n way</Message><HostId>x</HostId></Error>";
        assert_eq!(condensed(xml), format!("AccessDenied{SEPARATOR}no way"));
        let page = format!("<html><body>{}</body></html>", "x".repeat(9000));
        let text = condensed(&page);
        assert!(text.len() < 100 && text.contains("is a page"), "{text}");
        assert_eq!(condensed("plain text with anything"), SEPARATOR.to_string());
        let long = format!("<Code>Odd</Code><Message>{}</Message>", "y".repeat(9000));
        assert_eq!(condensed(&long).len(), 3 + 1 + MAX_MESSAGE);
    }
}
