//! Converts JSON text to YAML text without parsing numbers, so that every number keeps its digits.
//!
//! The form is that of kubectl: block style, two spaces, lists not indented below their key. A string is
//! quoted unless every YAML 1.1 and 1.2 parser reads it as a string.

/// The YAML document of a JSON text.
pub fn document(json: &str) -> String {
    let mut emitter = Emitter { json, at: 0, out: String::with_capacity(json.len() * 3 / 2) };
    emitter.value(0, Position::Top);
    emitter.out
}

/// The YAML list element of a JSON text, not indented.
pub fn list_item(json: &str) -> String {
    let mut emitter = Emitter { json, at: 0, out: String::with_capacity(json.len() * 3 / 2) };
    emitter.out.push_str("- ");
    emitter.value(2, Position::Element);
    emitter.out
}

/// Position of a value. It decides how a nested value begins.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    /// Nothing before it.
    Top,
    /// After `- `: the first entry of a nested value is on the same line.
    Element,
    /// After `key:`.
    Entry,
}

struct Emitter<'a> {
    json: &'a str,
    at: usize,
    out: String,
}

impl<'a> Emitter<'a> {
    fn peek(&mut self) -> u8 {
        let bytes = self.json.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(b'\0')
    }

    /// The token at the cursor: a string with its quotes, a number or a word.
    fn token(&mut self) -> &'a str {
        let start = self.at;
        let bytes = self.json.as_bytes();
        if self.peek() == b'"' {
            self.at += 1;
            while bytes.get(self.at).is_some_and(|byte| *byte != b'"') {
                self.at += if bytes[self.at] == b'\\' { 2 } else { 1 };
            }
            self.at += 1;
        } else {
            while bytes.get(self.at).is_some_and(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)) {
                self.at += 1;
            }
            // Not valid JSON: advance all the same, so that the conversion ends.
            self.at = self.at.max(start + 1);
        }
        self.json.get(start..self.at).unwrap_or_default()
    }

    fn value(&mut self, indent: usize, position: Position) {
        match self.peek() {
            b'{' => self.map(indent, position),
            b'[' => self.list(indent, position),
            _ => {
                if position == Position::Entry {
                    self.out.push(' ');
                }
                self.scalar();
                self.out.push('\n');
            }
        }
    }

    fn scalar(&mut self) {
        let token = self.token();
        match serde_json::from_str::<String>(token) {
            Ok(text) => string(&text, &mut self.out),
            Err(_) => self.out.push_str(token),
        }
    }

    /// Skips the opening bracket at the cursor. Writes and skips the pair, and returns true, if it is empty.
    fn empty(&mut self, close: u8, text: &str, position: Position) -> bool {
        self.at += 1;
        if self.peek() != close {
            return false;
        }
        self.at += 1;
        if position == Position::Entry {
            self.out.push(' ');
        }
        self.out.push_str(text);
        self.out.push('\n');
        true
    }

    fn indent(&mut self, indent: usize) {
        self.out.extend(std::iter::repeat_n(' ', indent));
    }

    fn map(&mut self, indent: usize, position: Position) {
        if self.empty(b'}', "{}", position) {
            return;
        }
        let indent = if position == Position::Entry { indent + 2 } else { indent };
        if position == Position::Entry {
            self.out.push('\n');
        }
        let mut inline = position == Position::Element;
        while !matches!(self.peek(), b'}' | b'\0') {
            if !std::mem::take(&mut inline) {
                self.indent(indent);
            }
            self.scalar();
            self.peek();
            self.at += 1;
            self.out.push(':');
            self.value(indent, Position::Entry);
            if self.peek() == b',' {
                self.at += 1;
                self.peek();
            }
        }
        self.at += 1;
    }

    fn list(&mut self, indent: usize, position: Position) {
        if self.empty(b']', "[]", position) {
            return;
        }
        if position == Position::Entry {
            self.out.push('\n');
        }
        let mut inline = position == Position::Element;
        while !matches!(self.peek(), b']' | b'\0') {
            if !std::mem::take(&mut inline) {
                self.indent(indent);
            }
            self.out.push_str("- ");
            self.value(indent + 2, Position::Element);
            if self.peek() == b',' {
                self.at += 1;
                self.peek();
            }
        }
        self.at += 1;
    }
}

fn string(text: &str, out: &mut String) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    // A JSON string is a valid double-quoted YAML string, except for characters that YAML calls unprintable.
    for c in serde_json::Value::from(text).to_string().chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                out.extend(format!("\\u{:04x}", u32::from(c)).chars());
            }
            c => out.push(c),
        }
    }
}

/// Words that some YAML parsers do not read as strings.
const RESERVED_WORDS: [&str; 12] =
    ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "infinity"];

fn is_plain(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/' || c == '_');
    let inside = text.chars().all(|c| c.is_ascii_alphanumeric() || "_./@+=,-: ".contains(c));
    let ends = !text.ends_with([' ', ':']) && !text.contains(": ");
    first && inside && ends && !RESERVED_WORDS.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_kubectl_would_write_them() {
        let json = r#"{"a":{"list":[1,{"x":"nginx:1.25","z":[]},[2,[3]],[]],"map":{}},"b c":"no","d":null}"#;
        assert_eq!(
            document(json),
            "a:\n  list:\n  - 1\n  - x: nginx:1.25\n    z: []\n  - - 2\n    - - 3\n  - []\n  map: {}\nb c: \"no\"\nd: null\n"
        );
        assert_eq!(list_item(r#"{"a":1,"b":{"c":true}}"#), "- a: 1\n  b:\n    c: true\n");
        assert_eq!(document(" { \"a\" : [ 1 , 2 ] } "), "a:\n- 1\n- 2\n");
    }

    #[test]
    fn numbers_keep_their_text_and_strings_stay_strings() {
        let numbers = r#"{"a":18446744073709551615,"b":1.0e-7,"c":2.50,"d":123456789012345678901234567890}"#;
        assert_eq!(
            document(numbers),
            "a: 18446744073709551615\nb: 1.0e-7\nc: 2.50\nd: 123456789012345678901234567890\n"
        );
        let strings = [
            "",
            " ",
            "1",
            "1.5",
            "0x1f",
            "1e3",
            "null",
            "Null",
            "~",
            "true",
            "Yes",
            "off",
            "y",
            "NaN",
            ".inf",
            "2026-01-01",
            "12:30:45",
            "- a",
            "a: b",
            "a #b",
            "a:",
            "#",
            "&x",
            "*x",
            "!x",
            "%x",
            "@x",
            "`x",
            "{",
            "[",
            "'",
            "\"",
            "\\",
            "a\nb",
            "a\tb",
            "\u{0}",
            "\u{7f}",
            "\u{85}",
            "\u{2028}",
            "\u{feff}",
            "🦀",
            "---",
            "...",
            "=",
            "<<",
            "? x",
            "| x",
            "> x",
            "key",
            "/path",
            "nginx:1.25",
            "a, b",
            "x=1,y=2",
        ];
        let json = serde_json::to_string(strings.as_slice()).unwrap();
        let back: Vec<serde_json::Value> = serde_saphyr::from_str(&document(&json)).unwrap();
        assert_eq!(back, strings.map(serde_json::Value::from).to_vec());
    }
}
