//! Messages of rows. The headers contain all that a comparison needs, so bodies need not be read.
//!
//! `Kollect-Row-Key` names the row, `Kollect-Row-Digest` is its digest, `Kollect-Op` is the operation. The
//! server checks the other headers: the stream, the message that is replaced, the message id, and the time to
//! live.

use std::fmt::Write as _;

use async_nats::{HeaderMap, header, jetstream::message::PublishMessage};
use bytes::Bytes;
use kollect_model::{
    event,
    row::{RowDigest, RowKey, TargetId},
};

const ROW_KEY: header::HeaderName = header::HeaderName::from_static("Kollect-Row-Key");
const ROW_DIGEST: header::HeaderName = header::HeaderName::from_static("Kollect-Row-Digest");
const OP: header::HeaderName = header::HeaderName::from_static("Kollect-Op");
const TTL: header::HeaderName = header::HeaderName::from_static("Nats-TTL");
const CONTENT_TYPE: header::HeaderName = header::HeaderName::from_static("Content-Type");

/// The value of [`OP`] for a removal.
const REMOVED: &str = "removed";
/// The segment of a key for a target without a namespace. No encoded text equals it.
const NONE: &str = "~";

/// The meaning of the last message of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldMessage {
    /// A row.
    Row(RowDigest),
    /// A row that was removed.
    Marker,
    /// Not a valid message of a row: another client has sent it.
    Unknown,
}

/// The values of the headers that the server checks.
pub(super) struct CheckedHeaders<'a> {
    pub(super) stream: &'a str,
    /// Sequence of the message that it replaces; 0 if there is none.
    pub(super) replaces: u64,
    /// Messages with the same id are stored once. `None`: always stored.
    pub(super) id: Option<&'a str>,
    /// The time to live.
    pub(super) ttl: Option<&'a str>,
}

impl CheckedHeaders<'_> {
    /// The headers that the server checks.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_STREAM, self.stream);
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, self.replaces.to_string());
        if let Some(id) = self.id {
            headers.insert(header::NATS_MESSAGE_ID, id);
        }
        if let Some(ttl) = self.ttl {
            headers.insert(TTL, ttl);
        }
        headers
    }

    /// The headers of a row's message; without a digest it is a removal.
    pub(super) fn row(&self, key: &RowKey, op: &str, digest: Option<RowDigest>) -> HeaderMap {
        let mut headers = self.headers();
        headers.insert(CONTENT_TYPE, event::CONTENT_TYPE);
        headers.insert(OP, op);
        headers.insert(ROW_KEY, encode(key));
        if let Some(digest) = digest {
            headers.insert(ROW_DIGEST, digest.to_string());
        }
        headers
    }
}

/// A message with these headers and this body.
pub(super) fn message(headers: HeaderMap, body: Bytes) -> PublishMessage {
    PublishMessage::build().headers(headers).payload(body)
}

/// The size of the headers on the wire, in bytes.
pub(super) fn size(headers: &HeaderMap) -> usize {
    let line = |name: &str, value: &str| name.len() + value.len() + 4;
    let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    14 + lines.map(|(name, value)| line(name.as_ref(), value.as_str())).sum::<usize>()
}

/// The key and the meaning of a message, from its headers; the key is `None` if the message is not a row's.
pub(super) fn read(headers: Option<&HeaderMap>) -> (Option<RowKey>, HeldMessage) {
    let get = |name| headers.and_then(|headers| headers.get(name)).map(header::HeaderValue::as_str);
    let Some(key) = get(ROW_KEY).and_then(decode) else { return (None, HeldMessage::Unknown) };
    let digest = get(ROW_DIGEST).and_then(|digest| digest.parse().ok());
    let held = match (get(OP), digest) {
        (Some(REMOVED), _) => HeldMessage::Marker,
        (Some(_), Some(digest)) => HeldMessage::Row(digest),
        _ => HeldMessage::Unknown,
    };
    (Some(key), held)
}

/// The key as one line of visible ASCII.
fn encode(key: &RowKey) -> String {
    let RowKey { target, group, kind, namespace, uid } = key;
    let mut text = String::with_capacity(128);
    match &target.namespace {
        Some(namespace) => escape(&mut text, namespace),
        None => text.push_str(NONE),
    }
    for part in [&target.name, group, kind, namespace, uid] {
        text.push('/');
        escape(&mut text, part);
    }
    text
}

fn escape(text: &mut String, part: &str) {
    for byte in part.bytes() {
        if byte.is_ascii_graphic() && !b"%/~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").ok();
        }
    }
}

fn decode(text: &str) -> Option<RowKey> {
    let mut parts = text.split('/');
    let target_namespace = match parts.next()? {
        NONE => None,
        namespace => Some(unescape(namespace)?.into()),
    };
    let mut next = || parts.next().and_then(unescape);
    let key = RowKey {
        target: TargetId { namespace: target_namespace, name: next()?.into() },
        group: next()?.into(),
        kind: next()?.into(),
        namespace: next()?.into(),
        uid: next()?.into(),
    };
    parts.next().is_none().then_some(key)
}

fn unescape(part: &str) -> Option<String> {
    if !part.contains('%') {
        return Some(part.to_owned());
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut bytes_left = part.bytes();
    while let Some(byte) = bytes_left.next() {
        if byte == b'%' {
            let digits = [bytes_left.next()?, bytes_left.next()?];
            bytes.push(u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_any_characters_are_decoded_as_they_were_encoded() {
        for text in ["", "a", "~", "/", "%", "%41", "a b", "\r\n", "ü🦀", "it's \"so\"", ":"] {
            for namespace in [None, Some(text)] {
                let key = RowKey {
                    target: TargetId { namespace: namespace.map(Into::into), name: text.into() },
                    group: text.into(),
                    kind: "K".into(),
                    namespace: text.into(),
                    uid: text.into(),
                };
                let line = encode(&key);
                assert!(line.bytes().all(|byte| byte.is_ascii_graphic()), "{line}");
                assert_eq!(decode(&line), Some(key));
            }
        }
        for bad in ["", "a/b", "~/t/g/k/n/u/x", "~/%4/g/k/n/u", "~/%zz/g/k/n/u", "~/%ff/g/k/n/u"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn headers_are_read_back_as_row_removal_or_unknown() {
        let target = TargetId { namespace: None, name: "t".into() };
        let key =
            RowKey { target, group: "".into(), kind: "Node".into(), namespace: "".into(), uid: "u".into() };
        let checked = CheckedHeaders { stream: "s", replaces: 7, id: Some("id"), ttl: Some("60s") };
        let row = checked.row(&key, "added", Some(RowDigest(1)));
        assert_eq!(read(Some(&row)), (Some(key.clone()), HeldMessage::Row(RowDigest(1))));
        assert_eq!(row.get(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE).unwrap().as_str(), "7");
        assert_eq!(row.get("Nats-TTL").unwrap().as_str(), "60s");
        assert_eq!(read(Some(&checked.row(&key, REMOVED, None))), (Some(key.clone()), HeldMessage::Marker));
        assert_eq!(read(Some(&checked.row(&key, "added", None))), (Some(key), HeldMessage::Unknown));
        assert_eq!(read(Some(&checked.headers())), (None, HeldMessage::Unknown));
        assert_eq!(read(None), (None, HeldMessage::Unknown));
    }
}
