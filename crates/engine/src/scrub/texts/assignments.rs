//! Names with values anywhere in a text: `name=value`, `"name": "value"`, `name == "value"`, `{name: NAME, value: value}`,
//! `('name', 'value')`, `<name>value</name>`.

use std::ops::Range;

use super::{
    super::{
        names::NameMeaning,
        values::{is_credential, is_stand_in},
    },
    CredentialFinder,
    commands::is_flag_of_credential,
    is_blank, is_name, occurrences,
    quotes::is_quote,
};

/// The longest name that is looked at.
const MAX_NAME: usize = 64;

/// Parameters of URLs that sign them.
pub(crate) const SIGNATURES: &[&str] = &["sig", "signature", "x-amz-signature", "x-goog-signature"];

/// What regular expressions for values begin with.
const PATTERNS: &[&str] = &["(?", "(\\S", "(\\w", "(.", "\\S", "\\w", "[^", "***"];

/// What the value of a pair is called beside `name` or `key`.
const PAIR_NAMES: &[&str] = &["name", "key"];

impl CredentialFinder<'_> {
    /// What a name in the text means.
    pub(super) fn meaning(&self, name: Range<usize>) -> NameMeaning {
        self.names.meaning(self.part(name))
    }

    /// Adds a value, if its name makes it a credential.
    pub(super) fn add_value(&mut self, name: &Range<usize>, value: Range<usize>) {
        let (name, text) = (self.part(name.clone()), self.part(value.clone()));
        let is_pattern = || PATTERNS.iter().any(|pattern| text.starts_with(pattern));
        let meaning = match self.names.meaning(name) {
            // In a text, `auth` is a label as often as not.
            NameMeaning::Auth if !text.bytes().any(|byte| byte.is_ascii_digit() || byte == b':') => return,
            meaning => meaning,
        };
        if is_credential(meaning, name, text) && !is_pattern() {
            self.add(value);
        }
    }

    /// The name that ends at a position, or before a placeholder or a bracket there: `ENV['name'] = …`.
    fn name_before(&self, end: usize) -> Range<usize> {
        let bytes = self.bytes();
        let mut end = end;
        let window = end.saturating_sub(MAX_NAME);
        if bytes[..end].ends_with(b"']") || bytes[..end].ends_with(b"\"]") {
            end -= 2;
        } else if bytes[..end].ends_with(b")")
            && let Some(open) = self.part(window..end).rfind("$(")
        {
            end = window + open;
        }
        let before = &bytes[end.saturating_sub(MAX_NAME)..end];
        end - before.iter().rev().take_while(|byte| is_name(**byte)).count()..end
    }

    /// `name=value` anywhere: flags, environments, parameters of URLs, connection strings.
    pub(super) fn equal_signs(&mut self) {
        let bytes = self.bytes();
        // What was looked at is not looked at again, so that the work stays in proportion to the text.
        let mut done = 0;
        for equals in memchr::memchr_iter(b'=', bytes) {
            let before = equals.checked_sub(1).map(|at| bytes[at]);
            if equals < done || matches!(before, None | Some(b'<' | b'>')) {
                continue;
            }
            if bytes.get(equals + 1) == Some(&b'=') || before == Some(b'!') {
                done = self.comparison(equals);
                continue;
            }
            let spaces =
                bytes[..equals].iter().rev().take(MAX_NAME).take_while(|byte| is_blank(**byte)).count();
            let name = self.name_before(equals - spaces);
            let separator = name.start.checked_sub(1).map(|at| bytes[at]);
            let signs = matches!(separator, Some(b'?' | b'&'))
                && SIGNATURES.iter().any(|known| self.part(name.clone()).eq_ignore_ascii_case(known));
            if !signs && self.meaning(name.clone()) == NameMeaning::Plain {
                continue;
            }
            let start = self.after_blanks(equals + 1);
            // With spaces around the sign, only a text in quotes is a value: `local key = "…"`.
            let has_spaces = spaces > 0 || start > equals + 1;
            let value = match self.quoted(start, bytes.len()) {
                Some(value) => value,
                None if has_spaces => continue,
                None => self.assigned(separator, start),
            };
            done = value.end;
            if !signs {
                self.add_value(&name, value);
            } else if !is_stand_in(self.part(value.clone())) {
                self.add(value);
            }
        }
    }

    /// A value without quotes behind an equal sign. Where it ends depends on what stands before its name and on what follows.
    fn assigned(&self, separator: Option<u8>, start: usize) -> Range<usize> {
        let bytes = self.bytes();
        let line = self.line_end(start);
        match separator {
            // Server=a;Password=b c;
            Some(b';') => return start..self.run(start, |byte| !matches!(byte, b';' | b'"' | b'\n')),
            Some(b'?' | b'&') => {
                return self.bare(start, |byte| matches!(byte, b'&' | b'#' | b'"' | b'\'' | b'<' | b'`'));
            }
            _ => {}
        }
        let word = self.bare(start, |byte| matches!(byte, b'"' | b'`'));
        // user=a,password=b,host=c and Password=b c;Server=a: the sign before the next name ends it.
        let begins_next = |at: usize| {
            let sign = bytes[at];
            if !matches!(sign, b',' | b';' | b'&') || bytes[at - 1] == b'\\' {
                return false;
            }
            let name = self.after_blanks(at + 1);
            let length = bytes[name..]
                .iter()
                .take(MAX_NAME)
                .take_while(|byte| is_name(**byte) || **byte == b' ')
                .count();
            length > 0 && bytes.get(name + length) == Some(&b'=')
        };
        // An escaped comma belongs to the value, and so does what is behind a space up to a semicolon.
        if let Some(end) =
            (start + 1..line).find(|at| begins_next(*at) && (bytes[*at] == b';' || *at < word.end))
        {
            return start..end;
        }
        let end = if bytes[word.clone()].ends_with(b";") { word.end - 1 } else { word.end };
        start..end
    }

    /// `$http_x_api_key != "value"`. Returns where it ends.
    fn comparison(&mut self, equals: usize) -> usize {
        let bytes = self.bytes();
        let sign = equals - usize::from(bytes[equals - 1] == b'!');
        let spaces = bytes[..sign].iter().rev().take(MAX_NAME).take_while(|byte| is_blank(**byte)).count();
        let name = self.name_before(sign - spaces);
        let start = self.run(equals, |byte| byte == b'=' || is_blank(byte));
        match self.quoted(start, bytes.len()) {
            Some(value) => {
                let end = value.end;
                self.add_value(&name, value);
                end
            }
            None => start,
        }
    }

    /// `"name": "value"` in JSON and its like, and `'name' => 'value'`.
    pub(super) fn quoted_keys(&mut self) {
        let bytes = self.bytes();
        let mut done = 0;
        for sign in memchr::memchr2_iter(b':', b'>', bytes) {
            let is_arrow = bytes[sign] == b'>';
            if sign < done || is_arrow && (sign == 0 || bytes[sign - 1] != b'=') {
                continue;
            }
            let before = sign - usize::from(is_arrow);
            let spaces =
                bytes[..before].iter().rev().take(MAX_NAME).take_while(|byte| **byte == b' ').count();
            let Some(close) = (before - spaces).checked_sub(1).filter(|close| is_quote(bytes[*close])) else {
                continue;
            };
            let slashes = bytes[..close].iter().rev().take_while(|byte| **byte == b'\\').count();
            let name = self.name_before(close - slashes);
            if self.meaning(name.clone()) == NameMeaning::Plain
                || name.start == 0
                || !is_quote(bytes[name.start - 1])
            {
                continue;
            }
            let start = self.run(sign + 1, |byte| byte.is_ascii_whitespace());
            done = self.json_value(start, &name);
        }
    }

    /// Adds the value that begins here, and returns where it ends.
    fn json_value(&mut self, start: usize, name: &Range<usize>) -> usize {
        let bytes = self.bytes();
        if let Some(value) = self.quoted(start, bytes.len()) {
            let end = value.end;
            self.add_value(name, value);
            return end;
        }
        if bytes.get(start) == Some(&b'[') {
            // The texts of a list, but not those of maps in it.
            let mut at = start + 1;
            while !matches!(bytes.get(at), None | Some(b']' | b'{')) {
                match self.quoted(at, bytes.len()) {
                    Some(value) => {
                        at = value.end + 1;
                        self.add_value(name, value);
                    }
                    None => at += 1,
                }
            }
            return at;
        }
        let end = self.run(start, |byte| byte.is_ascii_digit());
        if self.meaning(name.clone()).covers_numbers() {
            self.add(start..end);
        }
        end
    }

    /// `name: NAME` and `value: value` beside each other, in YAML, JSON or XML; `('name', 'value')`; `["--flag", "value"]`.
    pub(super) fn pairs(&mut self) {
        let bytes = self.bytes();
        for key in PAIR_NAMES {
            for at in occurrences(bytes, key) {
                self.pair(at, key);
            }
        }
        for open in memchr::memchr_iter(b'(', bytes) {
            let Some(name) = self.quoted(open + 1, bytes.len().min(open + 2 + MAX_NAME)) else { continue };
            self.next_argument(name);
        }
        for quote in memchr::memchr2_iter(b'"', b'\'', bytes) {
            if bytes.get(quote + 1) == Some(&b'-')
                && let Some(flag) = self.quoted(quote, bytes.len().min(quote + 2 + MAX_NAME))
                && is_flag_of_credential(self.part(flag.clone()), self.names)
            {
                self.next_argument(flag);
            }
        }
    }

    /// Adds the text in quotes behind a comma, if the one before it makes it a credential.
    fn next_argument(&mut self, name: Range<usize>) {
        let next = self.run(name.end + 1, |byte| byte == b',' || is_blank(byte));
        if next > name.end + 1
            && let Some(value) = self.quoted(next, self.line_end(next))
        {
            self.add_value(&name, value);
        }
    }

    /// Adds the value of a pair whose name has this key.
    fn pair(&mut self, at: usize, key: &str) {
        let Some((name, style)) = self.field(at, key) else { return };
        if self.meaning(name.clone()) == NameMeaning::Plain {
            return;
        }
        let next = match style {
            PairStyle::Element => {
                let close = self.run(name.end, |byte| byte != b'>') + 1;
                self.run(close, |byte| byte.is_ascii_whitespace() || byte == b'<')
            }
            _ => self.run(name.end, |byte| {
                byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'\\' | b',')
            }),
        };
        if let Some((value, style)) = self.field(next, "value") {
            // A line of YAML ends with the line.
            let is_line = style == PairStyle::Line && self.bytes()[name.end..next].contains(&b'\n');
            let end = if is_line { self.run(value.start, |byte| byte != b'\n') } else { value.end };
            self.add_value(&name, value.start..end);
        }
    }

    /// The value of a field at a position: `key: value`, `key="value"` or `<key>value</key>`.
    fn field(&self, at: usize, key: &str) -> Option<(Range<usize>, PairStyle)> {
        let bytes = self.bytes();
        if !self.part(at..self.text.len()).starts_with(key) {
            return None;
        }
        let end = at + key.len();
        if bytes.get(end) == Some(&b'>') && at > 0 && bytes[at - 1] == b'<' {
            let value = self.run(end + 1, |byte| byte != b'<' && byte != b'\n');
            return Some((end + 1..value, PairStyle::Element));
        }
        let sign = self.run(end, |byte| is_quote(byte) || byte == b'\\' || is_blank(byte));
        if !matches!(bytes.get(sign), Some(b':' | b'=')) {
            return None;
        }
        let start = self.after_blanks(sign + 1);
        match self.quoted(start, bytes.len()) {
            Some(value) => Some((value, PairStyle::Quoted)),
            None if bytes[sign] == b'=' => None,
            None => Some((self.bare(start, |byte| matches!(byte, b',' | b'}' | b']')), PairStyle::Line)),
        }
    }

    /// `PASSWORD 'value'` and `IDENTIFIED BY 'value'` of SQL, `password: value` and `pw value` in a sentence, `user:value` of
    /// chpasswd, users of Kafka.
    pub(super) fn phrases(&mut self) {
        const WORDS: &[&str] = &["password", "passwd", "passphrase", "pwd", "pw", "identified by"];
        let bytes = self.bytes();
        let begins = memchr::memchr2_iter(b'p', b'P', bytes).chain(memchr::memchr2_iter(b'i', b'I', bytes));
        for at in begins.filter(|at| *at == 0 || !is_name(bytes[at - 1])) {
            let is_here = |word: &&&str| {
                let here = bytes.get(at..at + word.len());
                here.is_some_and(|here| here.eq_ignore_ascii_case(word.as_bytes()))
            };
            let Some(end) = WORDS.iter().find(is_here).map(|word| at + word.len()) else { continue };
            let next = self.run(end, |byte| is_blank(byte) || byte == b':');
            // A quote behind the word may close the text that the word is in.
            let is_closed = at > 0 && is_quote(bytes[at - 1]) && bytes.get(next) == Some(&bytes[at - 1]);
            if next == end || is_closed {
                continue;
            }
            match self.quoted(next, self.line_end(next)) {
                Some(value) if !is_stand_in(self.part(value.clone())) => self.add(value),
                Some(_) => {}
                None => {
                    let value = self.bare(next, |byte| matches!(byte, b',' | b';' | b')' | b'"' | b'\''));
                    let text = self.part(value.clone()).trim_end_matches('.');
                    if looks_chosen(text) {
                        self.add(value.start..value.start + text.len());
                    }
                }
            }
        }
        if let Some(program) = occurrences(bytes, "chpasswd").next() {
            let line = bytes[..program].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if let Some(colon) = memchr::memchr(b':', &bytes[line..program]).map(|at| line + at) {
                let end = self.run(colon + 1, |byte| !byte.is_ascii_whitespace() && !is_quote(byte));
                self.add(colon + 1..end);
            }
        }
        if occurrences(bytes, "LoginModule").next().is_some() {
            for at in occurrences(bytes, "user_") {
                let name = self.run(at, is_name);
                if bytes.get(name) == Some(&b'=')
                    && let Some(value) = self.quoted(name + 1, bytes.len())
                {
                    self.add(value);
                }
            }
        }
    }

    /// `<name>value</name>`.
    pub(super) fn elements(&mut self) {
        let bytes = self.bytes();
        for close in occurrences(bytes, "</") {
            let name = close + 2..self.run(close + 2, is_name);
            if bytes.get(name.end) == Some(&b'>')
                && self.meaning(name.clone()) != NameMeaning::Plain
                && let Some(open) = memchr::memrchr(b'>', &bytes[..close])
            {
                self.add_value(&name, open + 1..close);
            }
        }
    }
}

/// How a field of a pair is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PairStyle {
    Quoted,
    /// Without quotes: in a flow of YAML, or to the end of the line.
    Line,
    Element,
}

/// Whether a word in a sentence looks like a password: letters with digits or signs among them, and no call.
fn looks_chosen(text: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| text.bytes().any(|byte| kind(&byte));
    text.len() >= 6
        && has(u8::is_ascii_alphabetic)
        && has(|byte| byte.is_ascii_digit() || b"!#%&*+?$".contains(byte))
        && !text.contains('(')
        && !is_stand_in(text)
}
