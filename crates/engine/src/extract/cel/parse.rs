//! From text to syntax tree, with errors that say where and what to do.
//!
//! `cel`'s parser recurses deeply, more than 100 KB per pair of parentheses without optimisation, so it
//! runs on a thread with a stack for the worst text of [`MAX_LEN`] bytes. What it returns nests at most
//! [`MAX_DEPTH`] levels: everything that walks the tree afterwards may recurse.

use std::{borrow::Cow, thread};

use cel::{
    IdedExpr, ParseErrors,
    common::ast::{EntryExpr, Expr, SourceInfo},
};

use super::{CelError, functions};

/// The longest expression, in bytes.
const MAX_LEN: usize = 8 * 1024;

/// The most levels of a syntax tree; a macro is a few.
const MAX_DEPTH: usize = 128;

/// Enough for every text of `MAX_LEN` bytes, without optimisation; only what is used is ever allocated.
const STACK: usize = 64 * 1024 * 1024;

/// The longest message of the parser that is repeated.
const MAX_MESSAGE: usize = 160;

/// A syntax tree and where its nodes are written.
pub(super) struct ParsedExpression {
    pub(super) root: IdedExpr,
    info: SourceInfo,
}

impl ParsedExpression {
    /// Where a node is written, in characters.
    pub(super) fn at(&self, node: &IdedExpr) -> Option<usize> {
        let (start, _) = self.info.offset_for(node.id)?;
        Some(self.info.source.get(..usize::try_from(start).ok()?)?.chars().count())
    }

    /// Where the name of a call is written; the node of a call is its parenthesis.
    pub(super) fn at_name(&self, node: &IdedExpr, name: &str) -> Option<usize> {
        let (start, _) = self.info.offset_for(node.id)?;
        let before = self.info.source.get(..usize::try_from(start).ok()?)?.trim_end();
        match before.strip_suffix(name) {
            Some(before) => Some(before.chars().count()),
            None => self.at(node),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<ParsedExpression, CelError> {
    let refuse = |problem: String| Err(CelError { at: None, problem });
    if text.len() > MAX_LEN {
        return refuse(format!("the expression is longer than {MAX_LEN} bytes: split it up"));
    }
    if text.trim().is_empty() {
        return refuse("the expression is empty: write one, such as object.spec.replicas".into());
    }
    let parsed = thread::scope(|threads| {
        let parser = thread::Builder::new().name("cel-parser".into()).stack_size(STACK);
        parser.spawn_scoped(threads, || parse_on_this_thread(text)).map(thread::ScopedJoinHandle::join)
    });
    match parsed {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(_)) => refuse("the parser failed on this expression: simplify it".into()),
        Err(error) => refuse(format!("no thread to read the expression: {error}")),
    }
}

fn parse_on_this_thread(text: &str) -> Result<ParsedExpression, CelError> {
    let parser = functions::env().parser().enable_ident_escape_syntax(true);
    let (root, info) = parser.parse_with_source_info(text).map_err(|errors| explain(text, errors))?;
    if depth(&root) > MAX_DEPTH {
        let problem = format!("the expression nests more than {MAX_DEPTH} levels: split it up");
        return Err(CelError { at: None, problem });
    }
    Ok(ParsedExpression { root, info })
}

/// The parts of a node, in the order they are written.
pub(super) fn children(expr: &IdedExpr) -> Vec<&IdedExpr> {
    match &expr.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(message) => message.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Comprehension(c) => vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result],
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

fn depth(expr: &IdedExpr) -> usize {
    1 + children(expr).into_iter().map(depth).max().unwrap_or_default()
}

/// The first error that the grammar found, else the first one.
fn explain(text: &str, errors: ParseErrors) -> CelError {
    let errors = errors.errors;
    let first = errors.iter().find(|error| error.msg.starts_with("Syntax error")).or(errors.first());
    match first {
        Some(error) => {
            let at = offset(text, error.pos);
            let ended = at.is_some_and(|at| at == text.chars().count());
            let problem = if ended { "the expression ends too early".into() } else { reword(&error.msg) };
            CelError { at, problem: problem.into_owned() }
        }
        None => CelError { at: None, problem: "this is not an expression".into() },
    }
}

/// A line and a column, both from one, as an offset in characters.
fn offset(text: &str, (line, column): (isize, isize)) -> Option<usize> {
    let (line, column) = (usize::try_from(line - 1).ok()?, usize::try_from(column - 1).ok()?);
    let before: usize = text.split_inclusive('\n').take(line).map(|line| line.chars().count()).sum();
    Some((before + column).min(text.chars().count()))
}

fn reword(message: &str) -> Cow<'_, str> {
    let message = message.trim_start_matches("Syntax error: ");
    let unexpected = ["mismatched input '", "extraneous input '", "no viable alternative at input '"]
        .iter()
        .find_map(|start| message.strip_prefix(start))
        .map(|rest| rest.split_once("' expecting").map_or(rest.trim_end_matches('\''), |(found, _)| found));
    if let Some(found) = unexpected {
        return format!("did not expect {found:.40} here").into();
    }
    if let Some(found) = message.strip_prefix("token recognition error at: '") {
        if found.starts_with(['\'', '"']) {
            return "this text is not closed, or has an escape that CEL does not know".into();
        }
        return format!("did not expect {:.40} here", found.trim_end_matches('\'')).into();
    }
    if let Some(name) = message.strip_prefix("reserved identifier: ") {
        return format!("{name} is a reserved word: choose another name, or write ['{name}']").into();
    }
    match message {
        _ if message.contains("Recursion limit") => "the expression nests too deeply: split it up".into(),
        _ if message.starts_with("Incomplete") || message.starts_with("No `") => {
            "the expression is not complete".into()
        }
        "argument must be a simple name" => {
            "a macro's variable must be a simple name, as in x.map(item, ...)".into()
        }
        "invalid argument to has() macro" => "has() takes a field, as in has(object.spec.replicas)".into(),
        "invalid int literal" => "this integer does not fit 64 bits".into(),
        message => message.lines().next().unwrap_or_default().chars().take(MAX_MESSAGE).collect(),
    }
}
