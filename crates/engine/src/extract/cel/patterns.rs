//! Regular expressions: `matches`, `find` and `findAll`.
//!
//! `check` asks [`problem`] about patterns that are written out, the functions compile the others once
//! per thread. A search takes time linear in the text and in the size of the compiled pattern; both are
//! bounded, and a search is charged for both. The syntax is RE2's, as Kubernetes has it: `\d`, `\w` and
//! `\s` mean ASCII, and a class has no operators.

use std::{cell::RefCell, collections::HashMap};

use cel::{
    ExecutionError,
    common::{
        types::{CelList, CelString},
        value::{CowVal, Val},
    },
};
use regex::{Regex, RegexBuilder};

use super::{
    meter,
    operators::{Operands, OperatorResult, boolean, int_at, mismatch, text_at},
};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1024;

/// How large a compiled pattern may be, in KiB: the first of these that it fits is its size.
const SIZES: [usize; 6] = [1, 4, 16, 64, 256, 512];

/// How many compiled patterns a thread keeps.
const MAX_CACHED: usize = 32;

/// What a search may keep to be faster the next time, in bytes.
const SEARCH_MEMORY: usize = 1 << 18;

/// What compiling costs, in units of work: at least, and per KiB.
const COMPILE_COST: (u64, u64) = (1_000, 100);

/// What trying to compile costs when it fails.
const FAILED_COMPILE_COST: u64 = 20_000;

/// Bytes of searched text that cost one unit of work, for a pattern of 1 KiB.
const SEARCH_UNIT: usize = 4;

/// Bytes of remaining text that cost one unit after each match: the search may read all of the rest again.
const RESUME_UNIT: usize = 16;

struct Pattern {
    regex: Regex,
    /// In KiB.
    size: usize,
}

impl Pattern {
    /// Cost of searching this many bytes: in the worst case, each byte changes every state of the pattern.
    fn cost(&self, bytes: usize, unit: usize) -> u64 {
        1 + meter::units(bytes.saturating_mul(self.size) / unit)
    }
}

thread_local! {
    static CACHE: RefCell<HashMap<String, Pattern>> = RefCell::default();
}

/// Why a pattern cannot be used.
pub(super) fn problem(pattern: &str) -> Option<String> {
    compile(pattern).err()
}

fn compile(pattern: &str) -> Result<Pattern, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("the pattern is longer than {MAX_PATTERN} bytes"));
    }
    let translated = translate(pattern);
    for size in SIZES {
        let compiled = RegexBuilder::new(&translated)
            .size_limit(size * 1024)
            .dfa_size_limit(SEARCH_MEMORY)
            .nest_limit(32)
            .build();
        match compiled {
            Ok(regex) => return Ok(Pattern { regex, size }),
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
                return Err(format!("the pattern is not valid: {reason}"));
            }
        }
    }
    Err("the pattern is too large once its repetitions are written out".to_owned())
}

/// RE2's meaning in the syntax of `regex`.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    // Inside of [...]: how many characters of the class came before.
    let mut class: Option<usize> = None;
    while let Some(c) = chars.next() {
        let inside = class.is_some();
        match (c, class) {
            ('\\', _) => match chars.next() {
                Some('d') => out.push_str(if inside { "0-9" } else { "[0-9]" }),
                Some('w') => out.push_str(if inside { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                Some('s') => out.push_str(if inside { r"\t\n\f\r " } else { r"[\t\n\f\r ]" }),
                Some('D') => out.push_str("[^0-9]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('S') => out.push_str(r"[^\t\n\f\r ]"),
                Some('b') if !inside => out.push_str(r"(?-u:\b)"),
                other => {
                    out.push('\\');
                    out.extend(other);
                }
            },
            ('[', None) => {
                out.push('[');
                out.extend(chars.next_if_eq(&'^'));
                class = Some(0);
                continue;
            }
            (']', Some(1..)) => {
                out.push(']');
                class = None;
                continue;
            }
            ('[', Some(_)) if chars.peek() == Some(&':') => {
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            ('[' | ']' | '&' | '~', Some(_)) => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
        class = class.map(|before| before + 1);
    }
    out
}

/// Searches with the compiled pattern.
fn search<T>(
    function: &str,
    pattern: &str,
    text: &str,
    run: impl FnOnce(&Pattern) -> Result<T, ExecutionError>,
) -> Result<T, ExecutionError> {
    CACHE.with_borrow_mut(|cache| {
        if !cache.contains_key(pattern) {
            meter::spend(COMPILE_COST.0)?;
            let compiled = compile(pattern).map_err(|problem| match meter::spend(FAILED_COMPILE_COST) {
                Ok(()) => ExecutionError::function_error(function, problem),
                Err(stopped) => stopped,
            })?;
            meter::spend(COMPILE_COST.1 * meter::units(compiled.size))?;
            if cache.len() >= MAX_CACHED {
                cache.clear();
            }
            cache.insert(pattern.to_owned(), compiled);
        }
        let pattern = cache.get(pattern).expect("it was found or inserted above");
        meter::spend(pattern.cost(text.len(), SEARCH_UNIT))?;
        run(pattern)
    })
}

pub(super) fn matches<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(text), Some(pattern)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(mismatch("matches", &args));
    };
    search("matches", pattern, text, |pattern| Ok(boolean(pattern.regex.is_match(text))))
}

pub(super) fn find<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(text), Some(pattern)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(mismatch("find", &args));
    };
    let found = search("find", pattern, text, |pattern| {
        Ok(pattern.regex.find(text).map_or("", |found| found.as_str()).to_owned())
    })?;
    Ok(CowVal::owned(CelString::from(found)))
}

pub(super) fn find_all<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let limit = if args.len() == 3 { int_at(&args, 2) } else { Some(-1) };
    let (Some(text), Some(pattern), Some(limit)) = (text_at(&args, 0), text_at(&args, 1), limit) else {
        return Err(mismatch("findAll", &args));
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = search("findAll", pattern, text, |pattern| {
        let mut found: Vec<Box<dyn Val + 'v>> = Vec::new();
        for part in pattern.regex.find_iter(text).take(limit) {
            meter::spend(pattern.cost(text.len() - part.start(), RESUME_UNIT))?;
            found.push(Box::new(CelString::from(part.as_str().to_owned())));
        }
        Ok(found)
    })?;
    Ok(CowVal::owned(CelList::from(found)))
}
