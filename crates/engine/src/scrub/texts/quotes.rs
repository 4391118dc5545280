//! Texts in quotes, and values without them.

use std::ops::Range;

use super::{CredentialFinder, is_blank};

/// The most parts of a word in quotes.
const MAX_PARTS: usize = 16;

/// How far the end of a line is looked for, where the work would grow with the length of the text otherwise.
const MAX_LINE: usize = 8192;

/// How far the end of a placeholder is looked for.
const MAX_PLACEHOLDER: usize = 256;

pub(super) fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'')
}

impl CredentialFinder<'_> {
    /// A text in quotes, without them, that ends at `last` if it is not closed; `None`: no quote is here. A word of a shell may have
    /// several quoted parts beside each other: 'it'"'"'s'.
    pub(super) fn quoted(&self, at: usize, last: usize) -> Option<Range<usize>> {
        let mut whole = self.quoted_part(at, last)?;
        for _ in 0..MAX_PARTS {
            let (quote, next) = (self.bytes().get(whole.end), self.bytes()[..last].get(whole.end + 1));
            let is_beside = quote.is_some_and(|quote| is_quote(*quote))
                && next.is_some_and(|next| is_quote(*next) && Some(next) != quote);
            match self.quoted_part(whole.end + 1, last).filter(|_| is_beside) {
                Some(part) => whole.end = part.end,
                None => break,
            }
        }
        Some(whole)
    }

    fn quoted_part(&self, at: usize, last: usize) -> Option<Range<usize>> {
        let bytes = &self.bytes()[..last];
        // JSON inside of JSON has backslashes before its quotes, one more with each level.
        let slashes = bytes.get(at..)?.iter().take_while(|byte| **byte == b'\\').count();
        let open = at + slashes;
        let quote = *bytes.get(open).filter(|byte| is_quote(**byte))?;
        // Three quotes end at three.
        if bytes[open..].starts_with(&[quote; 3]) {
            let start = open + 3;
            let end = bytes[start..].windows(3).position(|three| three == [quote; 3]);
            return Some(start..end.map_or(bytes.len(), |end| start + end));
        }
        let mut end = open + 1;
        let mut run = 0;
        while let Some(byte) = bytes.get(end) {
            match byte {
                b'\\' => run += 1,
                byte if *byte == quote => {
                    // A quote is written twice inside of quotes, in YAML and SQL.
                    let is_doubled = slashes == 0 && bytes.get(end + 1) == Some(&quote) && end > open + 1;
                    if is_doubled && run == 0 {
                        end += 1;
                    } else if run % (2 * (slashes + 1)) == slashes {
                        break;
                    }
                    run = 0;
                }
                _ => run = 0,
            }
            end += 1;
        }
        Some(open + 1..end.saturating_sub(slashes).max(open + 1).min(bytes.len()))
    }

    /// A value without quotes: up to a space, or what else ends it. A placeholder may have spaces in it.
    pub(super) fn bare(&self, start: usize, ends: impl Fn(u8) -> bool) -> Range<usize> {
        let rest = self.part(start..self.text.len());
        for (open, close) in [("{{", "}}"), ("${", "}"), ("$(", ")")] {
            if rest.starts_with(open) {
                let near = rest
                    .char_indices()
                    .nth(MAX_PLACEHOLDER)
                    .map_or(rest, |(end, _)| rest.get(..end).unwrap_or(rest));
                if let Some(end) = near.find(close) {
                    return start..start + end + close.len();
                }
            }
        }
        start..self.run(start, |byte| !byte.is_ascii_whitespace() && !ends(byte))
    }

    /// Where the line ends, as far as it is looked at.
    pub(super) fn line_end(&self, at: usize) -> usize {
        let end = self.text.len().min(at + MAX_LINE);
        at + memchr::memchr(b'\n', &self.bytes()[at..end]).unwrap_or(end - at)
    }

    /// The first byte that is no blank.
    pub(super) fn after_blanks(&self, at: usize) -> usize {
        self.run(at, is_blank)
    }
}
