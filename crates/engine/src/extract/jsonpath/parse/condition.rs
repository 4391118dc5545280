//! From text to the condition of a filter: `||` binds less than `&&`, `&&` less than `!` and comparisons.

use std::borrow::Cow;

use super::{ChildSelector, FUNCTION, PathError, PathParser, is_plain, refuse};
use crate::{
    extract::jsonpath::condition::{
        FilterComparison, FilterCondition, FilterOperand, FilterPath, FilterPathRoot,
    },
    json::Json,
};

impl PathParser {
    /// The parser stands at the question mark.
    pub(super) fn filter(&mut self) -> Result<ChildSelector, PathError> {
        self.at += 1;
        self.spaces();
        if self.peek() != Some('(') {
            return self.fail("a filter stands in parentheses, as in [?(@.x == 'y')]");
        }
        let around = self.deep_around;
        self.deep_around |= self.deep;
        let condition = self.group()?;
        self.deep_around = around;
        self.spaces();
        match self.peek() {
            Some(']') | None => Ok(ChildSelector::Where(condition)),
            Some(_) => self.fail("a condition stands in one pair of parentheses, as in [?(@.a && @.b)]"),
        }
    }

    fn group(&mut self) -> Result<FilterCondition, PathError> {
        self.open()?;
        let condition = self.condition()?;
        self.spaces();
        match self.peek() {
            Some(')') | None => {}
            Some(_) => return self.fail("expected a comparison, &&, || or ) here"),
        }
        self.close(')')?;
        Ok(condition)
    }

    fn condition(&mut self) -> Result<FilterCondition, PathError> {
        let mut any = vec![self.all()?];
        while self.joined_by('|')? {
            any.push(self.all()?);
        }
        Ok(if any.len() == 1 { any.swap_remove(0) } else { FilterCondition::Any(any) })
    }

    fn all(&mut self) -> Result<FilterCondition, PathError> {
        let mut all = vec![self.term()?];
        while self.joined_by('&')? {
            all.push(self.term()?);
        }
        Ok(if all.len() == 1 { all.swap_remove(0) } else { FilterCondition::All(all) })
    }

    fn joined_by(&mut self, sign: char) -> Result<bool, PathError> {
        self.spaces();
        let start = self.at;
        match (self.eat(sign), self.eat(sign)) {
            (false, _) => Ok(false),
            (true, true) => Ok(true),
            (true, false) => refuse(start, &format!("write {sign}{sign}")),
        }
    }

    fn term(&mut self) -> Result<FilterCondition, PathError> {
        self.spaces();
        if !self.eat('!') {
            return if self.peek() == Some('(') { self.group() } else { self.comparison() };
        }
        self.spaces();
        let start = self.at;
        let inner = match self.peek() {
            Some('(') => self.group()?,
            Some('!') => return self.fail("one ! is enough"),
            _ => match self.operand()? {
                FilterOperand::Query(query) => FilterCondition::Exists(query),
                FilterOperand::Literal(_) => return refuse(start, "! stands before a path or parentheses"),
            },
        };
        self.spaces();
        if self.peek().is_some_and(is_sign) {
            return self.fail("put what is negated into parentheses, as in !(@.x == 'y')");
        }
        Ok(FilterCondition::Not(Box::new(inner)))
    }

    fn comparison(&mut self) -> Result<FilterCondition, PathError> {
        let start = self.at;
        let left = self.operand()?;
        self.spaces();
        let sign_at = self.at;
        let Some(comparison) = self.sign()? else {
            return match left {
                FilterOperand::Query(query) => Ok(FilterCondition::Exists(query)),
                FilterOperand::Literal(_) => refuse(start, "compare this with a path, as in @.x == 'y'"),
            };
        };
        self.spaces();
        let right = self.operand()?;
        self.spaces();
        if self.peek().is_some_and(is_sign) {
            return self.fail("compare two values at a time, as in @.x > 1 && @.x < 5");
        }
        if left.is_many() && right.is_many() {
            return refuse(sign_at, "only one side can be many values: name one value on the other");
        }
        if let (FilterOperand::Literal(_), FilterOperand::Literal(_)) = (&left, &right) {
            return refuse(start, "one side of a comparison is a path, as in @.x == 'y'");
        }
        Ok(FilterCondition::Compare(left, comparison, right))
    }

    fn sign(&mut self) -> Result<Option<FilterComparison>, PathError> {
        let start = self.at;
        while self.peek().is_some_and(is_sign) {
            self.at += 1;
        }
        let sign: String = self.chars.iter().take(self.at).skip(start).collect();
        let problem = match &*sign {
            "" => return Ok(None),
            "==" => return Ok(Some(FilterComparison::Equal)),
            "!=" => return Ok(Some(FilterComparison::NotEqual)),
            "<" => return Ok(Some(FilterComparison::Less)),
            "<=" => return Ok(Some(FilterComparison::LessOrEqual)),
            ">" => return Ok(Some(FilterComparison::Greater)),
            ">=" => return Ok(Some(FilterComparison::GreaterOrEqual)),
            "=" => "write == to compare",
            "=~" => {
                "=~ is not available in a path: compare with ==, or use a cel: expression for the attribute"
            }
            "<>" => "write != for values that differ",
            _ => "no such comparison: write one of == != < <= > >=",
        };
        refuse(start, problem)
    }

    fn operand(&mut self) -> Result<FilterOperand, PathError> {
        let start = self.at;
        let origin = match self.peek() {
            Some('\'' | '"') => {
                let text = self.quoted(escaped)?;
                return Ok(FilterOperand::Literal(Json::String(Cow::Owned(text))));
            }
            Some('@' | '.' | '[') => FilterPathRoot::Item,
            Some('$') => FilterPathRoot::Root,
            _ => return self.word(),
        };
        if let Some('@' | '$') = self.peek() {
            self.at += 1;
            if self.peek().is_some_and(|c| c != '.' && is_plain(c)) {
                return self.fail("expected a dot or [ here");
            }
        }
        let steps = self.steps()?;
        if self.peek() == Some('(') {
            return self.fail(FUNCTION);
        }
        if origin == FilterPathRoot::Root && !steps.are_definite() {
            return refuse(start, "a path from $ in a filter names one value, such as $.spec.x");
        }
        Ok(FilterOperand::Query(FilterPath { origin, steps }))
    }

    /// A literal without quotes.
    fn word(&mut self) -> Result<FilterOperand, PathError> {
        let start = self.at;
        while self.peek().is_some_and(is_plain) {
            self.at += 1;
        }
        let word: String = self.chars.iter().take(self.at).skip(start).collect();
        let value = match &*word {
            "" => return self.fail("expected a path or a value here, such as @.x or 'y'"),
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "null" => Json::Null,
            _ if self.peek() == Some('(') => return refuse(start, FUNCTION),
            word if is_number(word) => Json::Number(Cow::Owned(word.to_owned())),
            _ => return refuse(start, "quote text, as in 'y', and start a path with @, as in @.x"),
        };
        Ok(FilterOperand::Literal(value))
    }
}

/// What a character after a backslash stands for in a literal.
fn escaped(c: char) -> Option<char> {
    match c {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        c => Some(c).filter(|c| !c.is_alphanumeric()),
    }
}

fn is_sign(c: char) -> bool {
    matches!(c, '=' | '!' | '<' | '>' | '~')
}

fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.ends_with(|c: char| c.is_ascii_digit())
        && word.parse::<f64>().is_ok_and(f64::is_finite)
}
