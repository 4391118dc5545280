//! Credentials inside of texts: in URLs, files, arguments, headers, and tokens that are known by their shape.
//!
//! [`mask`] replaces the part that is the credential and keeps the rest readable. Its work is in proportion to the text.

mod assignments;
mod commands;
mod lines;
mod quotes;
mod shapes;
mod urls;

use std::ops::Range;

pub(super) use self::commands::CommandLine;
use super::names::CredentialNames;

/// What stands for a credential inside of a text.
pub(crate) const MASK: &str = "***";

/// What masking made of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MaskedText {
    /// There is no credential in it.
    Unchanged,
    /// It is a credential from its beginning to its end.
    Whole,
    /// The text with [`MASK`] for each credential in it.
    Partly(String),
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextForm {
    /// A single value; if it has several lines, a file.
    Value,
    /// A file of a ConfigMap, also if it has only one line.
    File,
}

/// Masks the credentials in a text.
pub(crate) fn mask(text: &str, form: TextForm, names: &CredentialNames) -> MaskedText {
    let signs = TextSigns::of(text.as_bytes());
    let is_file = form == TextForm::File || signs.has(TextSigns::LINE);
    let mut finder = CredentialFinder { text, names, found: Vec::new() };
    // Most texts have none of the signs that a credential needs.
    if signs.has(TextSigns::LONG_WORD) {
        finder.tokens();
    }
    if signs.has(TextSigns::LONG_WORD | TextSigns::DOLLAR | TextSigns::QUOTE) {
        finder.hashes();
    }
    if signs.has(TextSigns::LONG_WORD | TextSigns::SPACE) {
        finder.private_keys();
    }
    if signs.has(TextSigns::COLON | TextSigns::AT) {
        finder.urls();
    }
    if signs.has(TextSigns::EQUALS) {
        finder.equal_signs();
    }
    if signs.has(TextSigns::QUOTE) {
        finder.quoted_keys();
    }
    if signs.has(TextSigns::SPACE | TextSigns::QUOTE | TextSigns::LESS) {
        finder.pairs();
    }
    if signs.has(TextSigns::LESS) {
        finder.elements();
    }
    if signs.has(TextSigns::SPACE) {
        finder.headers();
        finder.commands();
        finder.phrases();
    }
    if is_file {
        finder.lines();
    } else if signs.has(TextSigns::SPACE | TextSigns::COLON) {
        finder.single_line();
    }
    finder.masked()
}

/// Which signs a text has.
#[derive(Clone, Copy)]
struct TextSigns(u16);

impl TextSigns {
    const SPACE: u16 = 1;
    const EQUALS: u16 = 2;
    const QUOTE: u16 = 4;
    const AT: u16 = 8;
    const LESS: u16 = 16;
    const COLON: u16 = 32;
    const DOLLAR: u16 = 64;
    const LINE: u16 = 128;
    /// A word of at least [`LONG_WORD`] characters.
    const LONG_WORD: u16 = 256;
    const WORD: u16 = 512;

    const OF_BYTES: [u16; 256] = {
        let mut of = [0; 256];
        let mut byte: u8 = 0;
        loop {
            of[byte as usize] = match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => Self::WORD,
                b' ' | b'\t' => Self::SPACE,
                b'\n' => Self::LINE | Self::SPACE,
                b'=' => Self::EQUALS,
                b'"' | b'\'' => Self::QUOTE,
                b'@' => Self::AT,
                b'<' => Self::LESS,
                b':' => Self::COLON,
                b'$' => Self::DOLLAR,
                _ => 0,
            };
            if byte == u8::MAX {
                break;
            }
            byte += 1;
        }
        of
    };

    fn of(text: &[u8]) -> Self {
        const LONG_WORD: u32 = 16;
        let (mut signs, mut word, mut longest) = (0, 0, 0);
        for byte in text {
            let sign = Self::OF_BYTES[usize::from(*byte)];
            signs |= sign;
            word = if sign == Self::WORD { word + 1 } else { 0 };
            longest = longest.max(word);
        }
        Self(if longest >= LONG_WORD { signs | Self::LONG_WORD } else { signs })
    }

    fn has(self, any: u16) -> bool {
        self.0 & any != 0
    }
}

/// Where credentials are in a text.
struct CredentialFinder<'t> {
    text: &'t str,
    names: &'t CredentialNames,
    found: Vec<Range<usize>>,
}

impl<'t> CredentialFinder<'t> {
    fn bytes(&self) -> &'t [u8] {
        self.text.as_bytes()
    }

    /// The part of the text; empty if a boundary is inside of a character.
    fn part(&self, range: Range<usize>) -> &'t str {
        self.text.get(range).unwrap_or_default()
    }

    fn add(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.found.push(range);
        }
    }

    fn masked(mut self) -> MaskedText {
        if self.found.is_empty() {
            return MaskedText::Unchanged;
        }
        self.found.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(self.found.len());
        for range in self.found {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        let trimmed = self.text.trim();
        let start = self.text.len() - self.text.trim_start().len();
        if let [only] = merged.as_slice()
            && only.start <= start
            && only.end >= start + trimmed.len()
        {
            return MaskedText::Whole;
        }
        let mut out = String::with_capacity(self.text.len());
        let mut kept = 0;
        for range in merged {
            out.push_str(self.text.get(kept..range.start).unwrap_or_default());
            out.push_str(MASK);
            kept = range.end;
        }
        out.push_str(self.text.get(kept..).unwrap_or_default());
        MaskedText::Partly(out)
    }

    /// The end of a run of bytes that satisfy the condition.
    fn run(&self, from: usize, condition: impl Fn(u8) -> bool) -> usize {
        let rest = self.bytes().get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !condition(*byte)).unwrap_or(rest.len())
    }
}

/// Where a word is in a text. Most texts are short: to prepare a faster search would take longer.
fn occurrences<'t>(text: &'t [u8], word: &'t str) -> impl Iterator<Item = usize> + 't {
    let word = word.as_bytes();
    memchr::memchr_iter(word[0], text).filter(move |at| text[*at..].starts_with(word))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a byte can be in a name.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/')
}

#[cfg(test)]
mod tests;
