//! Regular expressions: `matches`, `find`, `findAll`, and `regex.replace`, `regex.extract` and `regex.extractAll`.
//!
//! `check` asks [`problem`] about patterns that are written out, the functions compile the others once
//! per thread. A search takes time linear in the text and in the size of the compiled pattern; both are
//! bounded, and a search is charged for both. The syntax is RE2's, which `re2` translates.

mod re2;

use std::{cell::RefCell, collections::HashMap, ops::Range};

use cel::{
    ExecutionError,
    common::{
        types::{CelList, CelOptional, CelString},
        value::{CowVal, Val},
    },
};
use regex::{Regex, RegexBuilder, bytes};

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
    regex: CompiledRegex,
    /// In KiB.
    size: usize,
}

enum CompiledRegex {
    Text(Regex),
    /// Matches at bytes; those that split a character do not count.
    Bytes(bytes::Regex),
}

/// Where a pattern and each of its groups match.
type MatchedGroups = Vec<Option<Range<usize>>>;

impl Pattern {
    fn is_match(&self, text: &str) -> Result<bool, ExecutionError> {
        match &self.regex {
            CompiledRegex::Text(regex) => Ok(regex.is_match(text)),
            CompiledRegex::Bytes(_) => Ok(self.find_at(text, 0)?.is_some()),
        }
    }

    /// How many groups the pattern has.
    fn groups(&self) -> usize {
        match &self.regex {
            CompiledRegex::Text(regex) => regex.captures_len() - 1,
            CompiledRegex::Bytes(regex) => regex.captures_len() - 1,
        }
    }

    /// The first match at or after a position.
    fn find_at(&self, text: &str, start: usize) -> Result<Option<MatchedGroups>, ExecutionError> {
        match &self.regex {
            CompiledRegex::Text(regex) => {
                let Some(found) = regex.captures_at(text, start) else { return Ok(None) };
                let group = |group| found.get(group).map(|group: regex::Match<'_>| group.range());
                Ok(Some((0..found.len()).map(group).collect()))
            }
            CompiledRegex::Bytes(regex) => {
                let mut start = start;
                loop {
                    let Some(found) = regex.captures_at(text.as_bytes(), start) else { return Ok(None) };
                    let Some(whole) = found.get(0).map(|whole| whole.range()) else { return Ok(None) };
                    if text.is_char_boundary(whole.start) && text.is_char_boundary(whole.end) {
                        let group = |group| found.get(group).map(|group: bytes::Match<'_>| group.range());
                        return Ok(Some((0..found.len()).map(group).collect()));
                    }
                    start = whole.start + 1;
                    meter::spend(self.cost(text.len().saturating_sub(start), RESUME_UNIT))?;
                }
            }
        }
    }

    /// Calls `visitor` with every match until it returns false; each match is charged.
    fn visit(
        &self,
        text: &str,
        mut visitor: impl FnMut(MatchedGroups) -> Result<bool, ExecutionError>,
    ) -> Result<(), ExecutionError> {
        let (mut start, mut last_end) = (0, None);
        while let Some(groups) = self.find_at(text, start)? {
            let Some(whole) = groups.first().cloned().flatten() else { break };
            meter::spend(self.cost(text.len() - whole.start, RESUME_UNIT))?;
            // An empty match right behind another one does not count.
            let counts = !whole.is_empty() || last_end != Some(whole.end);
            last_end = Some(whole.end);
            if counts && !visitor(groups)? {
                break;
            }
            start = if whole.is_empty() {
                match text.get(whole.end..).and_then(|rest| rest.chars().next()) {
                    Some(next) => whole.end + next.len_utf8(),
                    None => break,
                }
            } else {
                whole.end
            };
        }
        Ok(())
    }

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
    let translated =
        re2::translate(pattern).map_err(|problem| format!("the pattern is not valid: {problem}"))?;
    for size in SIZES {
        match build(&translated, size * 1024) {
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

fn build(translated: &re2::Translated, size: usize) -> Result<CompiledRegex, regex::Error> {
    if translated.splits_characters {
        let mut builder = bytes::RegexBuilder::new(&translated.pattern);
        builder.size_limit(size).dfa_size_limit(SEARCH_MEMORY).nest_limit(128);
        return builder.build().map(CompiledRegex::Bytes);
    }
    let mut builder = RegexBuilder::new(&translated.pattern);
    builder.size_limit(size).dfa_size_limit(SEARCH_MEMORY).nest_limit(128);
    builder.build().map(CompiledRegex::Text)
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
    search("matches", pattern, text, |pattern| Ok(boolean(pattern.is_match(text)?)))
}

pub(super) fn find<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(text), Some(pattern)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(mismatch("find", &args));
    };
    let found = search("find", pattern, text, |pattern| Ok(matched(text, pattern.find_at(text, 0)?, 0)))?;
    Ok(CowVal::owned(CelString::from(found.unwrap_or_default())))
}

/// The text of a group.
fn matched(text: &str, groups: Option<MatchedGroups>, group: usize) -> Option<String> {
    text.get(groups?.get(group)?.clone()?).map(ToOwned::to_owned)
}

fn list<'b, 'v>(texts: Vec<String>) -> CowVal<'b, 'v> {
    let items: Vec<Box<dyn Val + 'v>> =
        texts.into_iter().map(|text| Box::new(CelString::from(text)) as Box<dyn Val + 'v>).collect();
    CowVal::owned(CelList::from(items))
}

pub(super) fn find_all<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let limit = if args.len() == 3 { int_at(&args, 2) } else { Some(-1) };
    let (Some(text), Some(pattern), Some(limit)) = (text_at(&args, 0), text_at(&args, 1), limit) else {
        return Err(mismatch("findAll", &args));
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    search("findAll", pattern, text, |pattern| {
        pattern.visit(text, |groups| {
            if found.len() < limit {
                found.extend(matched(text, Some(groups), 0));
            }
            Ok(found.len() < limit)
        })
    })?;
    Ok(list(found))
}

/// The group that `regex.extract` and `regex.extractAll` give: the only one, or the whole match.
fn extracted_group(function: &str, pattern: &Pattern) -> Result<usize, ExecutionError> {
    match pattern.groups() {
        groups @ (0 | 1) => Ok(groups),
        _ => Err(ExecutionError::function_error(function, "the pattern has more than one group")),
    }
}

pub(super) fn extract<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(text), Some(pattern)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(mismatch("regex.extract", &args));
    };
    let found = search("regex.extract", pattern, text, |pattern| {
        let group = extracted_group("regex.extract", pattern)?;
        let found = matched(text, pattern.find_at(text, 0)?, group);
        // A group that matches nothing is no result; a pattern that does is one.
        Ok(found.filter(|found| group == 0 || !found.is_empty()))
    })?;
    Ok(CowVal::owned(match found {
        Some(found) => CelOptional::of(Box::new(CelString::from(found))),
        None => CelOptional::none(),
    }))
}

pub(super) fn extract_all<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(text), Some(pattern)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(mismatch("regex.extractAll", &args));
    };
    let mut found = Vec::new();
    search("regex.extractAll", pattern, text, |pattern| {
        let group = extracted_group("regex.extractAll", pattern)?;
        pattern.visit(text, |groups| {
            found.extend(matched(text, Some(groups), group).filter(|found| group == 0 || !found.is_empty()));
            Ok(true)
        })
    })?;
    Ok(list(found))
}

/// `regex.replace(text, pattern, replacement)`, and how many matches are replaced at most.
pub(super) fn replace<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let limit = if args.len() == 4 { int_at(&args, 3) } else { Some(-1) };
    let (Some(text), Some(pattern), Some(replacement), Some(limit)) =
        (text_at(&args, 0), text_at(&args, 1), text_at(&args, 2), limit)
    else {
        return Err(mismatch("regex.replace", &args));
    };
    if limit > i64::from(i32::MAX) {
        return Err(ExecutionError::function_error("regex.replace", "integer overflow"));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    meter::build_text(text.len())?;
    if limit == 0 {
        return Ok(CowVal::owned(CelString::from(text.to_owned())));
    }
    let (mut out, mut end, mut count) = (String::new(), 0, 0);
    search("regex.replace", pattern, text, |pattern| {
        let parts = replacement_parts(replacement, pattern.groups());
        pattern.visit(text, |groups| {
            let Some(whole) = groups.first().cloned().flatten() else { return Ok(false) };
            out.push_str(text.get(end..whole.start).unwrap_or_default());
            for part in parts.as_ref().map_err(Clone::clone)? {
                match part {
                    ReplacementPart::Text(text) => out.push_str(text),
                    ReplacementPart::Group(group) => {
                        let range = groups.get(*group).cloned().flatten();
                        out.push_str(range.and_then(|range| text.get(range)).unwrap_or_default());
                    }
                }
            }
            meter::check_text(out.len())?;
            end = whole.end;
            count += 1;
            Ok(count < limit)
        })
    })?;
    out.push_str(text.get(end..).unwrap_or_default());
    meter::build_text(out.len())?;
    Ok(CowVal::owned(CelString::from(out)))
}

enum ReplacementPart {
    Text(String),
    Group(usize),
}

/// `\1` is the first group, `\\` a backslash.
fn replacement_parts(replacement: &str, groups: usize) -> Result<Vec<ReplacementPart>, ExecutionError> {
    let failed = |problem: &str| Err(ExecutionError::function_error("regex.replace", problem));
    let mut parts = Vec::new();
    let mut chars = replacement.chars();
    let mut text = String::new();
    while let Some(c) = chars.next() {
        let group = match (c, (c == '\\').then(|| chars.next())) {
            ('\\', Some(Some('\\'))) => None,
            ('\\', Some(Some(digit))) if digit.is_ascii_digit() => digit.to_digit(10),
            ('\\', _) => return failed("a \\ of the replacement must be followed by a digit or \\"),
            _ => None,
        };
        match group.map(|group| usize::try_from(group).unwrap_or_default()) {
            Some(group) if group > groups => {
                return failed("the replacement names a group that the pattern lacks");
            }
            Some(group) => {
                parts.push(ReplacementPart::Text(std::mem::take(&mut text)));
                parts.push(ReplacementPart::Group(group));
            }
            None => text.push(c),
        }
    }
    parts.push(ReplacementPart::Text(text));
    Ok(parts)
}
