//! JSON values that borrow from the bytes they were read from, and a reader that builds only what is
//! asked for.
//!
//! Extraction works on these. Numbers keep their text, so that integers and decimals of any size survive; maps are
//! sorted, so that equal values are equal bytes. Fields that a [`Projection`] does not name are skipped without being
//! parsed.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _};

use memchr::memchr2;

use crate::scrub::MapKeys;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// The text of a number, as it was written.
    Number(Cow<'a, str>),
    String(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Map(JsonMap<'a>),
    /// A text or a number that was redacted: it is there, and what it is stays unknown.
    Redacted,
}

/// Keys in ascending order, without repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JsonMap<'a> {
    entries: Vec<(Cow<'a, str>, Json<'a>)>,
    /// The keys that the projection left out.
    pub(crate) skipped: MapKeys,
}

impl<'a> JsonMap<'a> {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { entries: Vec::with_capacity(entries), skipped: MapKeys::default() }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Json<'a>> {
        // Most maps are small: a linear search is faster than a binary search.
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Json<'a>> {
        self.entries.iter_mut().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(crate) fn insert(&mut self, key: impl Into<Cow<'a, str>>, value: Json<'a>) {
        let key = key.into();
        match self.entries.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(at) => self.entries[at].1 = value,
            Err(at) => self.entries.insert(at, (key, value)),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Json<'a>> {
        let at = self.entries.iter().position(|(known, _)| known == key)?;
        Some(self.entries.remove(at).1)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|(key, _)| keep(key));
    }

    /// Keeps the entries for which `keep` says so, which may change their values.
    pub(crate) fn retain_mut(&mut self, mut keep: impl FnMut(&str, &mut Json<'a>) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// The key at a position.
    pub(crate) fn key_at(&self, index: usize) -> &str {
        &self.entries[index].0
    }

    /// The value at a position.
    pub(crate) fn value_at(&self, index: usize) -> &Json<'a> {
        &self.entries[index].1
    }

    /// The key and the value at a position.
    pub(crate) fn entry_at(&mut self, index: usize) -> (&str, &mut Json<'a>) {
        let (key, value) = &mut self.entries[index];
        (key, value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Json<'a>)> for JsonMap<'a> {
    /// Of repeated keys the last one counts.
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Json<'a>)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            entries.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    std::mem::swap(later, earlier);
                }
                same
            });
        }
        Self { entries, skipped: MapKeys::default() }
    }
}

impl<'a> Json<'a> {
    /// The value of a key, if this is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Json::Map(map) => map.get(key),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it is a text, or may have texts in it.
    pub(crate) fn holds_text(&self) -> bool {
        !matches!(self, Json::Null | Json::Bool(_) | Json::Number(_))
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// Name of its JSON type, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::List(_) => "a list",
            Json::Map(_) => "a map",
            Json::Redacted => "a redacted value",
        }
    }

    /// Approximate size of the value as JSON, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Json::Null | Json::Bool(_) => 4,
            Json::Number(text) | Json::String(text) => text.len() + 2,
            Json::List(items) => items.iter().map(|item| item.size() + 1).sum::<usize>() + 2,
            Json::Map(map) => map.iter().map(|(key, value)| key.len() + value.size() + 4).sum::<usize>() + 2,
            Json::Redacted => REDACTION_MARKER.len(),
        }
    }

    /// Reads what the projection names.
    pub(crate) fn read(text: &'a str, projection: &Projection) -> Result<Self, ReadError> {
        let mut reader = JsonReader { text, at: 0, depth: 0 };
        reader.space();
        let value = reader.value(projection)?;
        reader.space();
        if reader.at == text.len() { Ok(value) } else { Err(reader.fail("the end of the object")) }
    }

    /// Appends the value as JSON: sorted keys, no white space.
    pub(crate) fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => out.push_str(n),
            Json::String(s) => write_string(s, out),
            Json::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Json::Map(map) => {
                out.push('{');
                for (index, (key, value)) in map.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
            Json::Redacted => out.push_str(REDACTION_MARKER),
        }
    }
}

/// What a row has in the place of a redacted value.
pub(crate) const REDACTION_MARKER: &str = r#"{"reason":"sensitive-key","redacted":true}"#;

/// Escapes what JSON demands and nothing else.
fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|b| b < 0x20 || b == b'"' || b == b'\\') {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        match special.as_bytes()[0] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            other => write!(out, "\\u{other:04x}").expect("writing to a String does not fail"),
        }
        rest = special.split_at(1).1;
    }
    out.push_str(rest);
    out.push('"');
}

/// Which parts of an object are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Projection {
    /// Everything from here on.
    everything: bool,
    keys: BTreeMap<String, Projection>,
    /// Every item of a list, every value of a map.
    each: Option<Box<Projection>>,
}

impl Projection {
    /// A projection of everything.
    pub(crate) fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.everything
    }

    /// Asks for everything from here on.
    pub(crate) fn take_all(&mut self) {
        *self = Self::everything();
    }

    /// The projection of a key's value.
    pub(crate) fn key(&mut self, key: &str) -> &mut Projection {
        self.keys.entry(key.to_owned()).or_default()
    }

    /// The projection of every item or value.
    pub(crate) fn each(&mut self) -> &mut Projection {
        self.each.get_or_insert_default()
    }

    /// Whether a key is asked for by name.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Whether nothing but the value of this key is read.
    pub(crate) fn reads_only(&self, key: &str) -> bool {
        !self.everything && self.each.is_none() && self.keys.keys().all(|known| known == key)
    }

    /// The projections of everything directly below.
    pub(crate) fn children_mut(&mut self) -> impl Iterator<Item = &mut Projection> {
        self.keys.values_mut().chain(self.each.as_deref_mut())
    }

    /// What is read of every item of a list.
    pub(crate) fn of_items(&self) -> Option<&Projection> {
        if self.everything { Some(self) } else { self.each.as_deref() }
    }

    fn reads_nothing(&self) -> bool {
        !self.everything && self.keys.is_empty() && self.each.is_none()
    }

    /// What is read of a key's value; `None`: nothing.
    pub(crate) fn of_key(&self, key: &str) -> Option<Cow<'_, Projection>> {
        let (named, each) = (self.keys.get(key), self.each.as_deref());
        match (named, each) {
            _ if self.everything => Some(Cow::Borrowed(self)),
            (Some(one), None) | (None, Some(one)) => Some(Cow::Borrowed(one)),
            (Some(a), Some(b)) => Some(Cow::Owned(a.union(b))),
            (None, None) => None,
        }
    }

    /// What either of two projections reads.
    pub(crate) fn union(&self, other: &Projection) -> Projection {
        if self.everything || other.everything {
            return Self::everything();
        }
        let mut union = self.clone();
        for (key, projection) in &other.keys {
            let merged = union.key(key).union(projection);
            union.keys.insert(key.clone(), merged);
        }
        if let Some(each) = &other.each {
            let merged = union.each().union(each);
            union.each = Some(Box::new(merged));
        }
        union
    }
}

/// Text that is not JSON, or nested too deeply.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the object: expected {expected}")]
pub(crate) struct ReadError {
    at: usize,
    expected: &'static str,
}

/// Limits recursion. Objects of the API server nest far less.
const MAX_DEPTH: usize = 128;

struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> JsonReader<'a> {
    fn fail(&self, expected: &'static str) -> ReadError {
        ReadError { at: self.at, expected }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn slice(&self, from: usize, to: usize) -> &'a str {
        self.text.get(from..to).expect("tokens of JSON end at ASCII characters")
    }

    fn value(&mut self, projection: &Projection) -> Result<Json<'a>, ReadError> {
        match self.peek() {
            Some(b'{') => self.nested(|reader| reader.map(projection)),
            Some(b'[') => self.nested(|reader| reader.list(projection)),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(b'-' | b'0'..=b'9') => Ok(Json::Number(Cow::Borrowed(self.number()))),
            _ => Err(self.fail("a value")),
        }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, ReadError>) -> Result<T, ReadError> {
        if self.depth == MAX_DEPTH {
            return Err(self.fail("at most 128 levels of nesting"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn map(&mut self, projection: &Projection) -> Result<Json<'a>, ReadError> {
        let (mut entries, mut skipped) = (Vec::new(), MapKeys::default());
        self.items(b'}', |reader| {
            let key = reader.string()?;
            reader.space();
            if reader.peek() != Some(b':') {
                return Err(reader.fail("a colon"));
            }
            reader.at += 1;
            reader.space();
            match projection.of_key(&key) {
                Some(projection) => entries.push((key, reader.value(&projection)?)),
                None => {
                    let start = reader.at;
                    reader.skip()?;
                    skipped.add_skipped(&key, reader.slice(start, reader.at));
                }
            }
            Ok(())
        })?;
        let entries: JsonMap<'a> = entries.into_iter().collect();
        Ok(Json::Map(JsonMap { skipped, ..entries }))
    }

    fn list(&mut self, projection: &Projection) -> Result<Json<'a>, ReadError> {
        let nothing = Projection::default();
        let each = projection.of_items().unwrap_or(&nothing);
        let mut items = Vec::new();
        self.items(b']', |reader| {
            // An item of which nothing is read becomes null, so that the others keep their index.
            if each.reads_nothing() {
                reader.skip()?;
                items.push(Json::Null);
            } else {
                items.push(reader.value(each)?);
            }
            Ok(())
        })?;
        Ok(Json::List(items))
    }

    fn items(
        &mut self,
        end: u8,
        mut item: impl FnMut(&mut Self) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        self.space();
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            item(self)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.fail("a comma or the end of a list or map")),
            }
        }
    }

    fn word(&mut self, word: &'static str, value: Json<'a>) -> Result<Json<'a>, ReadError> {
        let end = self.at + word.len();
        if self.text.as_bytes().get(self.at..end) != Some(word.as_bytes()) {
            return Err(self.fail("true, false or null"));
        }
        self.at = end;
        Ok(value)
    }

    fn number(&mut self) -> &'a str {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
            self.at += 1;
        }
        self.slice(start, self.at)
    }

    /// A string without its quotes; it is copied only if it has escapes.
    fn string(&mut self) -> Result<Cow<'a, str>, ReadError> {
        if self.peek() != Some(b'"') {
            return Err(self.fail("a string"));
        }
        let start = self.at;
        let escaped = self.skip_string()?;
        let inner = self.slice(start + 1, self.at - 1);
        if !escaped {
            return Ok(Cow::Borrowed(inner));
        }
        let quoted = self.slice(start, self.at);
        match serde_json::from_str::<String>(quoted) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => Err(self.fail("a string with valid escapes")),
        }
    }

    /// Moves past a string. Returns whether it has escapes.
    fn skip_string(&mut self) -> Result<bool, ReadError> {
        let bytes = self.text.as_bytes();
        self.at += 1;
        let mut escaped = false;
        while let Some(found) = bytes.get(self.at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
            self.at += found;
            if bytes[self.at] == b'"' {
                self.at += 1;
                return Ok(escaped);
            }
            escaped = true;
            self.at += 2;
        }
        Err(self.fail("the end of a string"))
    }

    /// Moves past a value without building it. A JSON reader has validated the bytes before, so this only searches
    /// for the end.
    fn skip(&mut self) -> Result<(), ReadError> {
        let bytes = self.text.as_bytes();
        match self.peek() {
            Some(b'"') => self.skip_string().map(drop),
            Some(b'{' | b'[') => {
                let mut open = 0_usize;
                while let Some(byte) = self.peek() {
                    match byte {
                        b'"' => {
                            self.skip_string()?;
                            continue;
                        }
                        b'{' | b'[' => open += 1,
                        b'}' | b']' => open -= 1,
                        _ => {}
                    }
                    self.at += 1;
                    if open == 0 {
                        return Ok(());
                    }
                }
                Err(self.fail("the end of a list or map"))
            }
            Some(_) => {
                let rest = &bytes[self.at..];
                let end =
                    rest.iter().position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'));
                self.at += end.unwrap_or(rest.len());
                Ok(())
            }
            None => Err(self.fail("a value")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, projection: &Projection) -> String {
        let mut out = String::new();
        Json::read(text, projection).unwrap_or_else(|e| unreachable!("{text}: {e}")).write(&mut out);
        out
    }

    #[test]
    fn values_are_unchanged_and_keys_are_sorted() {
        for (text, expected) in [
            (r#" { "b" : 1 , "a" : [ true , null , "x" ] } "#, r#"{"a":[true,null,"x"],"b":1}"#),
            (
                r#"{"n":12345678901234567890.1234567890123456789,"i":9223372036854775808,"e":1E400}"#,
                r#"{"e":1E400,"i":9223372036854775808,"n":12345678901234567890.1234567890123456789}"#,
            ),
            (r#"{"s":"a\"\\\n\u0001\ud83e\udd80/é"}"#, "{\"s\":\"a\\\"\\\\\\n\\u0001🦀/é\"}"),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
            ("[]", "[]"),
            ("{}", "{}"),
        ] {
            assert_eq!(read(text, &Projection::everything()), expected);
        }
    }

    #[test]
    fn only_what_the_projection_names_is_built() {
        let text = r#"{"skip":{"deep":["]}\"",{"x":[1]}]},"a":{"b":1,"c":{"d":2},"e":"x"},"l":[{"n":"one","v":1},{"n":"two"}],"z":12,"m":{"p":{"k":1,"o":2},"q":{"k":3}}}"#;
        let mut projection = Projection::default();
        projection.key("a").key("c").take_all();
        projection.key("l").each().key("n").take_all();
        projection.key("z").take_all();
        projection.key("m").each().key("k").take_all();
        projection.key("m").key("p").key("o").take_all();
        assert_eq!(
            read(text, &projection),
            r#"{"a":{"c":{"d":2}},"l":[{"n":"one"},{"n":"two"}],"m":{"p":{"k":1,"o":2},"q":{"k":3}},"z":12}"#
        );
    }

    #[test]
    fn malformed_text_is_an_error() {
        let deep = "[".repeat(10_000);
        for text in ["", "{", "{\"a\"}", "[1", "{\"a\":tru}", "\"x", "[1]]", "{\"a\":\"\\q\"}", &deep] {
            assert!(Json::read(text, &Projection::everything()).is_err(), "{text:.20}");
        }
    }
}
