//! From text to steps. What is refused is refused here, with the position and how to write it instead.
//!
//! Conditions of filters are read in `parse/condition.rs`. Nesting is limited because both the reader and
//! the evaluation of filters call themselves.

mod condition;

use std::mem;

use super::{
    PathError,
    steps::{ChildSelector, MAX_STEPS, PathStep, PathSteps, UnionMember},
};

const MAX_CHARS: usize = 4096;
const MAX_DEPTH: usize = 32;

/// How often unions may lead to the same value: the work grows with it.
const MAX_REPETITIONS: usize = 64;

const FUNCTION: &str =
    "functions such as length() are not available in a path: an attribute can be a cel: expression";
const TEXT_AROUND: &str = "a path stands alone, without text around it, such as {.spec.x}";
const FIRST: &str = "a path starts with $ or a dot, such as $.spec.x";
const QUOTE_KEY: &str = "quote a key with such a character, as in ['a key']";
const UNION: &str = "a union lists only indices or only quoted keys, as in [0,2] or ['a','b']";

pub(super) struct PathParser {
    chars: Vec<char>,
    at: usize,
    /// Brackets and parentheses that are open.
    depth: usize,
    /// Whether the path at hand has a `..` so far.
    deep: bool,
    /// Whether a path around the path at hand has one.
    deep_around: bool,
}

impl PathParser {
    pub(super) fn path(text: &str) -> Result<PathSteps, PathError> {
        let chars: Vec<char> = text.chars().take(MAX_CHARS + 1).collect();
        let mut parser = Self { chars, at: 0, depth: 0, deep: false, deep_around: false };
        if parser.chars.len() > MAX_CHARS {
            return refuse(MAX_CHARS, "a path has at most 4096 characters");
        }
        parser.spaces();
        let braced = parser.eat('{');
        parser.spaces();
        let rooted = parser.start(braced)?;
        let steps = if !rooted && parser.is_lone_dot() {
            parser.at += 1;
            PathSteps::new(Vec::new())
        } else {
            parser.steps()?
        };
        parser.end(braced)?;
        Ok(steps)
    }

    /// Whether the path starts with a sign for the whole object.
    fn start(&mut self, braced: bool) -> Result<bool, PathError> {
        if self.eat('$') || self.eat('@') {
            return Ok(true);
        }
        let word: String = self.chars.iter().skip(self.at).take_while(|c| c.is_alphanumeric()).collect();
        match self.peek() {
            Some('.' | '[') => Ok(false),
            _ if braced && matches!(&*word, "range" | "end") => {
                self.fail("range and end are not available: {.items[*].name} gives the whole list")
            }
            Some('(') => self.fail(FUNCTION),
            _ if self.chars.get(self.at + word.chars().count()) == Some(&'(') => self.fail(FUNCTION),
            _ if !braced && self.chars.contains(&'{') => self.fail(TEXT_AROUND),
            _ => self.fail(FIRST),
        }
    }

    /// `.` alone is the whole object.
    fn is_lone_dot(&self) -> bool {
        self.peek() == Some('.') && self.chars.get(self.at + 1).is_none_or(|c| *c == '}' || c.is_whitespace())
    }

    fn end(&mut self, braced: bool) -> Result<(), PathError> {
        let here = self.at;
        self.spaces();
        let closed = braced && self.eat('}');
        self.spaces();
        match self.peek() {
            None if closed || !braced => Ok(()),
            None => self.fail("the closing } is missing"),
            Some('{') if closed => self.fail("a path is one block: write each block as a path of its own"),
            Some(_) if closed => self.fail(TEXT_AROUND),
            Some(_) => {
                self.at = here;
                self.fail(self.unexpected())
            }
        }
    }

    /// Why the path cannot go on here.
    fn unexpected(&self) -> &'static str {
        let before = self.at.checked_sub(1).and_then(|at| self.chars.get(at));
        match (before, self.peek()) {
            (_, Some('(')) => FUNCTION,
            (_, Some(')' | ']' | '}')) => "there is no opening bracket for this one",
            (_, Some('{')) => "braces stand around the whole path, as in {.spec.x}",
            (_, Some('*')) => "* stands alone, as in .* or [*]",
            (Some(']' | '*' | '$' | '@'), _) => "expected a dot or [ here",
            _ => QUOTE_KEY,
        }
    }

    fn steps(&mut self) -> Result<PathSteps, PathError> {
        let around = mem::replace(&mut self.deep, false);
        let mut steps = Vec::new();
        loop {
            let start = self.at;
            let step = match self.peek() {
                Some('.') => self.dot()?,
                Some('[') => PathStep { deep: false, select: self.bracket()? },
                _ => break,
            };
            if steps.len() == MAX_STEPS {
                return refuse(start, "a path has at most 64 steps");
            }
            steps.push(step);
        }
        self.deep = around;
        let steps = PathSteps::new(steps);
        if steps.repetitions() > MAX_REPETITIONS {
            return self.fail("the unions of this path name the same values too often");
        }
        Ok(steps)
    }

    fn dot(&mut self) -> Result<PathStep, PathError> {
        let start = self.at;
        self.at += 1;
        let deep = self.eat('.');
        if deep && self.deep_around {
            // Every value would be looked at once for each list around it.
            return refuse(start, ".. is not available in a filter that stands behind a ..: name the keys");
        }
        self.deep |= deep;
        let select = match self.peek() {
            Some('[') => self.bracket()?,
            Some('*') => {
                self.at += 1;
                ChildSelector::Every
            }
            Some('.') => return self.fail("one dot too many: .. looks at any depth, as in ..name"),
            Some('\'' | '"') => return self.fail("a quoted key stands in brackets, as in ['a key']"),
            _ => ChildSelector::Key(self.bare_key(deep)?),
        };
        Ok(PathStep { deep, select })
    }

    fn bare_key(&mut self, deep: bool) -> Result<String, PathError> {
        let mut key = String::new();
        while let Some(c) = self.peek().filter(|c| *c != '.' && is_plain(*c)) {
            if c == '\\' {
                self.at += 1;
            }
            let Some(c) = self.peek() else { return self.fail("nothing follows the \\") };
            key.push(c);
            self.at += 1;
        }
        match (key.is_empty(), deep) {
            (false, _) => Ok(key),
            (true, true) => self.fail("name what to find after ..: ..name, ..* or ..['name']"),
            (true, false) => self.fail("a key is missing after the dot, as in .name or .['a key']"),
        }
    }

    fn bracket(&mut self) -> Result<ChildSelector, PathError> {
        self.open()?;
        self.spaces();
        let select = match self.peek() {
            Some('*') => {
                self.at += 1;
                ChildSelector::Every
            }
            Some('?') => self.filter()?,
            Some('\'' | '"') => self.names()?,
            Some('-' | ':' | '0'..='9') => self.union_members()?,
            Some('(') => return self.fail("scripts are not available: [-1] is the last item"),
            _ => {
                return self.fail(
                    "expected an index, a quoted key, * or a filter: [0], ['key'], [*], [?(@.x == 'y')]",
                );
            }
        };
        self.spaces();
        match self.peek() {
            Some(']') | None => {}
            Some(',') => {
                return self.fail("a union lists only indices or only quoted keys: [0,2] or ['a','b']");
            }
            Some(_) => return self.fail("expected ] here"),
        }
        self.close(']')?;
        Ok(select)
    }

    fn names(&mut self) -> Result<ChildSelector, PathError> {
        let mut names = Vec::new();
        let start = self.at;
        let any = self.chars.get(start..start + 3) == Some(&['\'', '*', '\'']);
        loop {
            names.push(self.quoted(Some)?);
            if !self.comma() {
                break;
            }
            if !matches!(self.peek(), Some('\'' | '"')) {
                return self.fail(UNION);
            }
        }
        match (names.len(), any) {
            // As in kubectl; the key * is ["*"].
            (1, true) => Ok(ChildSelector::Every),
            (1, false) => Ok(ChildSelector::Key(names.swap_remove(0))),
            (_, true) => refuse(start, "'*' stands alone, as in ['*']"),
            (_, false) => Ok(ChildSelector::Keys(names)),
        }
    }

    fn union_members(&mut self) -> Result<ChildSelector, PathError> {
        let mut union_members = Vec::new();
        loop {
            union_members.push(self.union_member()?);
            if !self.comma() {
                break;
            }
            if !matches!(self.peek(), Some('-' | ':' | '0'..='9')) {
                return self.fail(UNION);
            }
        }
        match union_members.as_slice() {
            [UnionMember::At(at)] => Ok(ChildSelector::Item(*at)),
            _ => Ok(ChildSelector::Items(union_members)),
        }
    }

    fn comma(&mut self) -> bool {
        self.spaces();
        let found = self.eat(',');
        self.spaces();
        found
    }

    fn union_member(&mut self) -> Result<UnionMember, PathError> {
        let from = self.bound()?;
        if !self.eat(':') {
            return match from {
                Some(at) => Ok(UnionMember::At(at)),
                None => self.fail("this index is not a number"),
            };
        }
        let to = self.bound()?;
        let mut step = 1;
        if self.eat(':') {
            let start = self.at;
            if let Some(given) = self.bound()? {
                if given < 1 {
                    return refuse(start, "the step of a slice is at least 1, as in [0:4:2]");
                }
                step = usize::try_from(given).unwrap_or(usize::MAX);
            }
        }
        Ok(UnionMember::Slice { from, to, step })
    }

    fn bound(&mut self) -> Result<Option<i64>, PathError> {
        let start = self.at;
        self.eat('-');
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.chars.iter().take(self.at).skip(start).collect();
        match digits.parse() {
            Ok(bound) => Ok(Some(bound)),
            Err(_) if digits.is_empty() => Ok(None),
            Err(_) if digits == "-" => self.fail("a number is missing after the -"),
            Err(_) => refuse(start, "this index is too large"),
        }
    }

    /// A quoted text; `unescape` says what a character after a backslash stands for.
    fn quoted(&mut self, unescape: fn(char) -> Option<char>) -> Result<String, PathError> {
        let start = self.at;
        let quote = self.peek();
        let mut text = String::new();
        self.at += 1;
        while self.peek() != quote {
            match self.peek() {
                None => break,
                Some('\\') => {
                    self.at += 1;
                    match self.peek().map(unescape) {
                        None => break,
                        Some(Some(c)) => text.push(c),
                        Some(None) => {
                            return refuse(self.at - 1, "only \\n, \\r, \\t and signs can be escaped");
                        }
                    }
                }
                Some(c) => text.push(c),
            }
            self.at += 1;
        }
        if self.peek().is_none() {
            return refuse(start, "the closing quote is missing");
        }
        self.at += 1;
        Ok(text)
    }

    fn open(&mut self) -> Result<(), PathError> {
        if self.depth == MAX_DEPTH {
            return self.fail("a path nests at most 32 brackets and parentheses");
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    fn close(&mut self, c: char) -> Result<(), PathError> {
        if !self.eat(c) {
            return self.fail(&format!("the closing {c} is missing"));
        }
        self.depth -= 1;
        Ok(())
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, problem: &str) -> Result<T, PathError> {
        refuse(self.at, problem)
    }
}

fn refuse<T>(at: usize, problem: &str) -> Result<T, PathError> {
    Err(PathError { at, problem: problem.into() })
}

/// Whether a character needs no quotes in a key or a literal.
fn is_plain(c: char) -> bool {
    !c.is_whitespace() && !"[]{}()$@,'\"*?=!<>&|".contains(c)
}
