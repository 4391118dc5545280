//! Errors that are found in an expression without an object: unknown functions and variables, wrong numbers of
//! arguments, bad patterns.
//!
//! `Expression::compile` runs it on the tree as it was parsed, macros expanded. CEL's type checker is not
//! part of `cel`: whether a field exists or a value has the right type is only known per object.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue},
};

use super::{
    CelError, functions,
    names::{self, FUNCTIONS, METHODS, NAMESPACE, OBJECT},
    parse::{ParsedExpression, children},
    patterns,
};

pub(super) fn check(parsed: &ParsedExpression) -> Result<(), CelError> {
    Checker { parsed, variables: Vec::new() }.expr(&parsed.root)
}

/// The name that a chain of selections spells: `a.b.c`. As in the interpreter, `has(a.b)` is none.
pub(super) fn qualified_name(expr: &IdedExpr) -> Option<String> {
    match &expr.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", qualified_name(&select.operand)?, select.field))
        }
        _ => None,
    }
}

/// The full name of a call, if it is one of a function with a namespace: `math.abs(x)`.
pub(super) fn namespaced(call: &CallExpr) -> Option<String> {
    let name = format!("{}.{}", qualified_name(call.target.as_deref()?)?, call.func_name);
    let name = name.trim_start_matches('.');
    FUNCTIONS.iter().any(|(known, ..)| *known == name).then(|| name.to_owned())
}

/// Whether an expression can contain the name: operators and expanded macros have names that cannot be written.
fn is_written(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

fn fail<T>(at: Option<usize>, problem: String) -> Result<T, CelError> {
    Err(CelError { at, problem })
}

struct Checker<'p> {
    parsed: &'p ParsedExpression,
    /// Of macros, innermost last.
    variables: Vec<&'p str>,
}

impl<'p> Checker<'p> {
    fn expr(&mut self, expr: &'p IdedExpr) -> Result<(), CelError> {
        match &expr.expr {
            Expr::Unspecified => fail(self.parsed.at(expr), "the expression is not complete".into()),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.variable(expr, name),
            Expr::Select(_) if self.is_type(expr) => Ok(()),
            Expr::Struct(message) => {
                let problem =
                    format!("there is no message {}: write a map, as in {{'key': value}}", message.type_name);
                fail(self.parsed.at(expr), problem)
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.key(&entry.key)?;
                    }
                }
                self.parts(expr)
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::Comprehension(comprehension) => self.comprehension(expr, comprehension),
            Expr::Select(_) | Expr::List(_) => self.parts(expr),
        }
    }

    fn parts(&mut self, expr: &'p IdedExpr) -> Result<(), CelError> {
        children(expr).into_iter().try_for_each(|part| self.expr(part))
    }

    fn knows(&self, name: &str) -> bool {
        // A leading dot skips the variables of macros.
        let inner = !name.starts_with('.') && self.variables.contains(&name);
        inner || [OBJECT, NAMESPACE].contains(&name.trim_start_matches('.'))
    }

    fn is_type(&self, expr: &IdedExpr) -> bool {
        let Some(name) = qualified_name(expr) else { return false };
        let name = name.trim_start_matches('.');
        let root = name.split('.').next().unwrap_or_default();
        !self.knows(root) && functions::env().types().find_type(name).is_some()
    }

    fn variable(&self, expr: &IdedExpr, name: &str) -> Result<(), CelError> {
        if self.knows(name) || functions::env().types().find_type(name.trim_start_matches('.')).is_some() {
            return Ok(());
        }
        let known = self.variables.iter().copied().chain([OBJECT, NAMESPACE]);
        let fix = if names::UNAVAILABLE_VARIABLES.contains(&name) {
            format!(
                "it is a variable of Kubernetes, but not available here; known are {OBJECT} and {NAMESPACE}"
            )
        } else if let Some(known) = names::nearest(name, known) {
            format!("did you mean {known}?")
        } else {
            format!("known are {OBJECT} and {NAMESPACE}; a text needs quotes")
        };
        fail(self.parsed.at(expr), format!("there is no variable {name}: {fix}"))
    }

    /// Refuses a key without quotes, which would be a variable: a common mistake.
    fn key(&self, key: &IdedExpr) -> Result<(), CelError> {
        match &key.expr {
            Expr::Ident(name) if !self.knows(name) => {
                let problem = format!("the key of an entry needs quotes: write '{name}'");
                fail(self.parsed.at(key), problem)
            }
            _ => Ok(()),
        }
    }

    fn comprehension(&mut self, expr: &IdedExpr, c: &'p ComprehensionExpr) -> Result<(), CelError> {
        // `rewrite` takes these names for types.
        let variables = [Some(&c.accu_var), Some(&c.iter_var), c.iter_var2.as_ref()];
        if let Some(name) = variables.into_iter().flatten().find(|name| names::is_type_root(name)) {
            let problem = format!("{name} is the beginning of the names of types: choose another name");
            return fail(self.parsed.at(expr), problem);
        }
        self.expr(&c.iter_range)?;
        self.expr(&c.accu_init)?;
        let outer = self.variables.len();
        self.variables.extend(variables.into_iter().flatten().map(String::as_str));
        let inside = [&c.loop_cond, &c.loop_step, &c.result].into_iter().try_for_each(|part| self.expr(part));
        self.variables.truncate(outer);
        inside
    }

    fn call(&mut self, expr: &'p IdedExpr, call: &'p CallExpr) -> Result<(), CelError> {
        if !is_written(&call.func_name) {
            return self.parts(expr);
        }
        if namespaced(call).is_some() {
            self.name(expr, call)?;
            return call.args.iter().try_for_each(|arg| self.expr(arg));
        }
        // `foo.bar()` without a variable foo is a function that does not exist.
        let root = call.target.as_deref().and_then(qualified_name);
        let root = root.as_deref().and_then(|name| name.split('.').find(|part| !part.is_empty()));
        if root.is_none_or(|root| self.knows(root)) {
            self.name(expr, call)?;
            return self.parts(expr);
        }
        self.unknown_namespace(expr, call)?;
        self.parts(expr)?;
        self.name(expr, call)
    }

    fn unknown_namespace(&self, expr: &IdedExpr, call: &CallExpr) -> Result<(), CelError> {
        let Some(namespace) = call.target.as_deref().and_then(qualified_name) else { return Ok(()) };
        let name = format!("{namespace}.{}", call.func_name);
        let same = format!("{namespace}.");
        let is_namespace = FUNCTIONS.iter().any(|(known, ..)| known.starts_with(&same));
        if names::is_unavailable(&name) || is_namespace {
            return self.unknown(expr, &call.func_name, &name, FUNCTIONS);
        }
        Ok(())
    }

    /// Whether the function exists and takes this number of arguments.
    fn name(&self, expr: &IdedExpr, call: &CallExpr) -> Result<(), CelError> {
        let full = namespaced(call);
        let plain = call.func_name.trim_start_matches('.');
        let (name, known, other) = match &full {
            Some(name) => (name.as_str(), FUNCTIONS, METHODS),
            None if call.target.is_some() => (plain, METHODS, FUNCTIONS),
            None => (plain, FUNCTIONS, METHODS),
        };
        let Some((_, fewest, most)) = known.iter().find(|(known, ..)| *known == name) else {
            if other.iter().any(|(known, ..)| *known == name) {
                let fix = if call.target.is_some() { format!("{name}(x)") } else { format!("x.{name}(...)") };
                let problem = format!("{name} is called the other way: write {fix}");
                return fail(self.parsed.at_name(expr, plain), problem);
            }
            return self.unknown(expr, plain, name, known);
        };
        let count = call.args.len();
        if !(*fewest..=*most).contains(&count) {
            let expected = if fewest == most { format!("{fewest}") } else { format!("{fewest} or {most}") };
            let plural = if expected == "1" { "argument" } else { "arguments" };
            let problem = format!("{name} takes {expected} {plural}, not {count}");
            return fail(self.parsed.at_name(expr, plain), problem);
        }
        self.pattern(call, name)
    }

    fn unknown(
        &self,
        expr: &IdedExpr,
        written: &str,
        name: &str,
        known: &'static [(&'static str, usize, usize)],
    ) -> Result<(), CelError> {
        let problem = if names::is_unavailable(name) {
            format!("{name} is part of the Kubernetes CEL libraries, but not available here")
        } else {
            match names::nearest(name, known.iter().map(|(known, ..)| *known)) {
                Some(known) => format!("there is no function {name}: did you mean {known}?"),
                None => format!("there is no function {name}"),
            }
        };
        fail(self.parsed.at_name(expr, written), problem)
    }

    /// A literal pattern must be valid.
    fn pattern(&self, call: &CallExpr, name: &str) -> Result<(), CelError> {
        let position = match name {
            "matches" | "find" | "findAll" => usize::from(call.target.is_none()),
            "regex.extract" | "regex.extractAll" | "regex.replace" => 1,
            _ => return Ok(()),
        };
        let Some(pattern) = call.args.get(position) else { return Ok(()) };
        match &pattern.expr {
            Expr::Literal(LiteralValue::String(text)) => match patterns::problem(text.inner()) {
                Some(problem) => fail(self.parsed.at(pattern), problem),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
