//! Names with values in the lines of files: YAML, properties, ini, and the files of servers.

use std::ops::Range;

use super::{
    super::{
        REFERENCE_KEYS, describes,
        names::NameMeaning,
        values::{SCHEMES, is_stand_in},
    },
    CredentialFinder,
    commands::is_flag_of_credential,
    is_blank, is_name,
};

/// Words that are followed by a name and a value.
const DIRECTIVES: &[&str] =
    &["proxy_set_header", "add_header", "fastcgi_param", "uwsgi_param", "SetEnv", "setenv", "ENV", "ARG"];

/// Directives of Redis that are followed by a password.
const DIRECTIVES_OF_REDIS: &[&str] = &["requirepass", "masterauth"];

/// Directives of nginx that are followed by an address.
const ADDRESS_DIRECTIVES: &[&str] =
    &["proxy_pass", "fastcgi_pass", "grpc_pass", "memcached_pass", "scgi_pass", "uwsgi_pass"];

/// What the next lines are.
#[derive(Clone, Copy)]
enum NextLines {
    /// Lines of their own.
    Own,
    /// A text, as long as they are deeper than this.
    Text(usize),
    /// Values below the name of a credential, as long as they are deeper than this, or items of a list at the same depth.
    Below(usize),
    /// The value of a flag, in the next item of a list.
    Argument,
}

impl CredentialFinder<'_> {
    /// `name: value`, `name = value` and `name value`.
    pub(super) fn lines(&mut self) {
        let (mut start, mut map_end) = (0, 0);
        let mut next = NextLines::Own;
        for line in self.text.split_inclusive('\n') {
            let end = start + line.trim_end().len();
            let indent = line.len() - line.trim_start().len();
            let first = (start + indent).min(end);
            if first < end {
                next = self.line_after(next, first, end, indent);
                if start >= map_end {
                    map_end = self.mapped_keys(first, end);
                }
            }
            start += line.len();
        }
    }

    /// Judges a line by what the lines before it said. Returns what it says about those behind it.
    fn line_after(&mut self, before: NextLines, first: usize, end: usize, indent: usize) -> NextLines {
        let is_item =
            self.bytes()[first] == b'-' && self.bytes().get(first + 1).is_none_or(|byte| is_blank(*byte));
        match before {
            NextLines::Text(depth) if indent > depth => {
                self.add(first..end);
                return before;
            }
            NextLines::Below(depth) if indent > depth || indent == depth && is_item => {
                self.line_below(first, end);
                return before;
            }
            NextLines::Argument if is_item => {
                let value = self.after_blanks(first + 1).min(end);
                let value = self.quoted(value, end).unwrap_or(value..end);
                if !is_stand_in(self.part(value.clone())) && !self.part(value.clone()).starts_with('-') {
                    self.add(value);
                }
                return NextLines::Own;
            }
            _ => {}
        }
        self.flow_entries(first, end);
        self.line(first, end, indent)
    }

    /// A line below the name of a credential: its text is one, unless its own name describes or references it.
    fn line_below(&mut self, first: usize, end: usize) {
        let mut at = first;
        while self.part(at..end).starts_with("- ") {
            at = self.after_blanks(at + 2).min(end);
        }
        let name = at..self.run(at, is_name).min(end);
        let colon = self.after_blanks(name.end);
        let has_name = self.bytes().get(colon) == Some(&b':')
            && colon < end
            && self.bytes().get(colon + 1).is_none_or(u8::is_ascii_whitespace);
        let key = self.part(name.clone());
        if has_name && (describes(key) || REFERENCE_KEYS.contains(&key)) {
            return;
        }
        let value = if has_name { self.after_blanks(colon + 1).min(end) } else { at };
        let value = self.quoted(value, end).unwrap_or(value..end);
        let text = self.part(value.clone());
        if !is_stand_in(text) && !matches!(text.as_bytes().first(), Some(b'|' | b'>' | b'{' | b'[' | b'#')) {
            self.add(value);
        }
    }

    /// The keys of a map of nginx over a credential: `map $http_x_api_key $client { "key" name; }`. Returns where it ends.
    fn mapped_keys(&mut self, start: usize, end: usize) -> usize {
        let Some(rest) = self.part(start..end).strip_prefix("map $") else { return end };
        let name = end - rest.len()..self.run(end - rest.len(), is_name);
        if !self.meaning(name).is_credential() {
            return end;
        }
        let block_end = self.run(end, |byte| byte != b'}');
        let mut at = end;
        while let Some(line) = memchr::memchr(b'\n', &self.bytes()[at..block_end]).map(|found| at + found + 1)
        {
            let key = self.after_blanks(line);
            if let Some(value) = self.quoted(key, self.line_end(key).min(block_end)) {
                self.add(value);
            }
            at = line;
        }
        block_end
    }

    /// A text of one line, such as an item of a list: `name:value`, `Name: value`, `requirepass value`, a user of Redis.
    pub(super) fn single_line(&mut self) {
        let bytes = self.bytes();
        let name = 0..self.run(0, is_name);
        let known = self.part(name.clone());
        let text = self.part(name.end..bytes.len());
        if let Some(value) = text.strip_prefix(": ") {
            // A header.
            if known.contains('-') || known.eq_ignore_ascii_case("authorization") {
                let start = bytes.len() - value.len();
                let scheme = SCHEMES
                    .iter()
                    .find(|scheme| value.starts_with(**scheme))
                    .map_or(0, |scheme| scheme.len());
                self.add_value(&name, start + scheme..bytes.len());
            }
        } else if let Some(value) = text.strip_prefix(':') {
            let looks_made = value.bytes().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
            if looks_made && !known.contains(['.', '/']) && !value.contains([' ', '/']) {
                self.add_value(&name, name.end + 1..bytes.len());
            }
        } else if DIRECTIVES_OF_REDIS.contains(&known) {
            let value = self.after_blanks(name.end)..bytes.len();
            if !is_stand_in(self.part(value.clone())) {
                self.add(value);
            }
        } else if known == "user" {
            self.access_rule(name.end, bytes.len());
        }
    }

    /// `{name: value, name: value}` in YAML; texts in quotes are found anywhere.
    fn flow_entries(&mut self, start: usize, end: usize) {
        let bytes = self.bytes();
        for colon in memchr::memchr_iter(b':', &bytes[start..end]).map(|at| start + at) {
            let length = bytes[start..colon].iter().rev().take_while(|byte| is_name(**byte)).count();
            let name = colon - length..colon;
            let before = bytes[start..name.start].iter().rev().find(|byte| !is_blank(**byte));
            if !matches!(before, Some(b'{' | b',')) || self.meaning(name.clone()) == NameMeaning::Plain {
                continue;
            }
            let value = self.after_blanks(colon + 1).min(end);
            if value == colon + 1 || matches!(bytes.get(value), Some(b'{' | b'[')) {
                continue;
            }
            let bare = || {
                let bare_end = self.run(value, |byte| !matches!(byte, b',' | b'{' | b'}' | b'\n')).min(end);
                value..value + self.part(value..bare_end).trim_end().len()
            };
            let value = self.quoted(value, end).unwrap_or_else(bare);
            self.add_value(&name, value);
        }
    }

    /// Returns what it says about the lines behind it.
    fn line(&mut self, first: usize, end: usize, indent: usize) -> NextLines {
        let mut at = first;
        for before in ["#", "//", "? ", "- ", "export ", "set ", "local "] {
            if self.part(at..end).starts_with(before) {
                at = self.after_blanks(at + before.len());
            }
        }
        if self.part(at..end).starts_with('-') && is_flag_of_credential(self.part(at..end), self.names) {
            return NextLines::Argument;
        }
        let mut name = at..self.run(at, is_name).min(end);
        match self.part(name.clone()) {
            // Users of Redis.
            "user" => self.access_rule(name.end, end),
            directive if DIRECTIVES.contains(&directive) => {
                let next = self.after_blanks(name.end);
                name = next..self.run(next, is_name).min(end);
            }
            _ => {}
        }
        let meaning = self.meaning(name.clone());
        if meaning == NameMeaning::Plain {
            return NextLines::Own;
        }
        let sign = self.after_blanks(name.end);
        let has_sign = sign < end && self.is_sign(&name, sign);
        let value = self.after_blanks(sign + usize::from(has_sign)).min(end);
        if !has_sign && (sign == name.end || ADDRESS_DIRECTIVES.contains(&self.part(name.clone()))) {
            return NextLines::Own;
        }
        // What is below a key of YAML may be at the depth behind its dash.
        let depth = indent + (at - first);
        self.line_value(&name, value..end, has_sign, depth)
    }

    /// Whether a sign behind a name separates it from its value. In YAML, a space follows the colon; in properties it need not.
    fn is_sign(&self, name: &Range<usize>, sign: usize) -> bool {
        let bytes = self.bytes();
        let next = bytes.get(sign + 1);
        match bytes[sign] {
            b'=' => true,
            b':' => {
                next.is_none_or(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'='))
                    || !self.part(name.clone()).contains('-') && next != Some(&b'/')
            }
            _ => false,
        }
    }

    fn line_value(
        &mut self,
        name: &Range<usize>,
        value: Range<usize>,
        has_sign: bool,
        depth: usize,
    ) -> NextLines {
        let meaning = self.meaning(name.clone());
        let mut start = value.start;
        // Tags and anchors of YAML.
        while has_sign && self.part(start..value.end).starts_with(['!', '&']) {
            start = self.after_blanks(self.run(start, |byte| !byte.is_ascii_whitespace())).min(value.end);
        }
        let text = self.part(start..value.end);
        if let Some(quoted) = self.quoted(
            start,
            if text.starts_with("\"\"\"") || text.starts_with("'''") { self.text.len() } else { value.end },
        ) {
            self.add_value(name, quoted);
            return NextLines::Own;
        }
        let text = text.trim_end_matches([',', ';']);
        if !has_sign {
            // `requirepass hunter2`: one word and nothing else.
            if !text.contains([' ', '\t']) && !text.starts_with('(') && !text.ends_with('{') {
                self.add_value(name, start..start + text.len());
            }
            return NextLines::Own;
        }
        let is_block =
            text.starts_with(['|', '>']) && text.bytes().skip(1).all(|byte| b"+-0123456789".contains(&byte));
        match text.as_bytes().first() {
            _ if is_block && meaning.is_credential() => return NextLines::Text(depth),
            None | Some(b'#') => {
                let hides =
                    matches!(meaning, NameMeaning::Credential { below: true, .. } | NameMeaning::Added);
                return if hides { NextLines::Below(depth) } else { NextLines::Own };
            }
            Some(b'{' | b'[' | b'*') => return NextLines::Own,
            _ => {}
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_call = text.ends_with(')') && text.contains('(') && !text.starts_with('$');
        if (!is_number || meaning.covers_numbers()) && !is_call {
            self.add_value(name, start..start + text.len());
        }
        NextLines::Own
    }

    /// The passwords of a line of Redis' users: `user app on >password ~*`.
    fn access_rule(&mut self, start: usize, end: usize) {
        let mut at = start;
        while at < end {
            let next = self.run(at, |byte| !is_blank(byte)).min(end);
            if matches!(self.bytes()[at], b'>' | b'#') {
                self.add(at + 1..next);
            }
            at = next + 1;
        }
    }
}
